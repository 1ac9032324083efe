use std::process::Command;

fn main() {
    // Tells apart Pythons with and without a global lock.
    pyo3_build_config::use_pyo3_cfgs();
    unwind_as_the_c_library_does();
}

/// A daemon thread that wants Python's lock while Python ends is ended by `pthread_exit` (before Python 3.14), which unwinds its
/// stack with libgcc_s and asks our code what to do with each frame. PyO3 then stops the thread for good. Zig would link an unwinder of
/// its own into us, which cannot read what libgcc_s hands to it: the process ended with SIGSEGV.
fn unwind_as_the_c_library_does() {
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    if !(is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu"))
        || std::env::var("HOST") != std::env::var("TARGET")
    {
        return;
    }
    let found =
        Command::new("cc").arg("-print-file-name=libgcc_s.so.1").output().ok().filter(|out| out.status.success());
    let path = found.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_string()).unwrap_or_default();
    match path.contains('/') {
        true => println!("cargo:rustc-link-arg-cdylib={path}"),
        false => {
            println!("cargo:warning=libgcc_s.so.1 was not found; threads that record while Python ends may crash it")
        }
    }
}
