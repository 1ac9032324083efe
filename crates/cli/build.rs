//! `ROLLSCOPE_FOLD=1` lets the linker keep one copy of functions that compiled to the same code, for the smallest program:
//! `make release` and `make wheel` ask for it. It takes a linker that can (lld, which is Rust's own on Linux, or mold; `python/zig_linker.py`).

fn main() {
    println!("cargo::rerun-if-env-changed=ROLLSCOPE_FOLD");
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("ROLLSCOPE_FOLD").is_some_and(|v| v == "1") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
