//! The page is embedded from `ui/dist`, and as one file from `ui/dist-static`. Without them a debug build serves a
//! placeholder; a release build is refused, so that nobody ships a binary without its page.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-env-changed=ROLLSCOPE_WITHOUT_PAGE");
    let ui = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("../../ui");
    let release = std::env::var("PROFILE").is_ok_and(|p| p == "release");
    let waived = std::env::var_os("ROLLSCOPE_WITHOUT_PAGE").is_some();
    for (folder, page) in [("dist", "index.html"), ("dist-static", "viewer.html")] {
        let folder = ui.join(folder);
        if !folder.exists() {
            std::fs::create_dir_all(&folder).expect("a folder for the page can be created");
        }
        println!("cargo:rerun-if-changed={}", folder.display());
        if release && !waived && !folder.join(page).exists() {
            panic!(
                "the page is not built: run `make ui` first (or set ROLLSCOPE_WITHOUT_PAGE=1 for a binary without it)"
            );
        }
    }
}
