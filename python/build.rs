fn main() {
    // Tells apart Pythons with and without a global lock.
    pyo3_build_config::use_pyo3_cfgs();
}
