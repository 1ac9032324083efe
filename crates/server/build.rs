//! The page is embedded from `ui/dist`. Without it a debug build serves a placeholder; a release build is refused, so that
//! nobody ships a binary without its page.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-env-changed=ROLLSCOPE_WITHOUT_PAGE");
    let dist = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("../../ui/dist");
    if !dist.exists() {
        std::fs::create_dir_all(&dist).expect("ui/dist can be created");
    }
    println!("cargo:rerun-if-changed={}", dist.display());
    let release = std::env::var("PROFILE").is_ok_and(|p| p == "release");
    let waived = std::env::var_os("ROLLSCOPE_WITHOUT_PAGE").is_some();
    if release && !waived && !dist.join("index.html").exists() {
        panic!("the page is not built: run `make ui` first (or set ROLLSCOPE_WITHOUT_PAGE=1 for a binary without it)");
    }
}
