//! A hash of the sources that decide what is kept: answers and timelines. What was worked out by other sources is worked out again.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

const SOURCES: [&str; 7] = [
    "src",
    "../spans/src",
    "../names/src",
    "../query/src/scope.rs",
    "../formats/src/export/timeline",
    "../app/src/timeline.rs",
    "../app/src/listings/steps.rs",
];

fn files(at: &Path, out: &mut Vec<PathBuf>) {
    match std::fs::read_dir(at) {
        Ok(entries) => entries.flatten().for_each(|entry| files(&entry.path(), out)),
        Err(_) => out.push(at.to_path_buf()),
    }
}

fn main() {
    let mut all = Vec::new();
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
        files(Path::new(source), &mut all);
    }
    all.sort();
    let mut hasher = DefaultHasher::new();
    for file in all {
        let text = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        text.hash(&mut hasher);
    }
    println!("cargo:rustc-env=ROLLSCOPE_ANSWERS_VERSION={:016x}", hasher.finish());
}
