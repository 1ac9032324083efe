//! Files generated from the schemas and the names, for people and other languages. They are checked in. These tests fail
//! if one is stale: run `UPDATE=1 cargo test --workspace` and commit.

mod generated;
mod tables_page;

use std::path::Path;

/// Compares a checked-in file, by its path in the repository, with what it should hold.
#[track_caller]
fn up_to_date(path: &str, content: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, content).unwrap();
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(found, content, "{path} is stale: UPDATE=1 cargo test --workspace");
}
