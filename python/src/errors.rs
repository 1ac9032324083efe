//! Our own mistakes, and the caller's, as `rollscope/_errors.py` reports them. Nothing is raised.

use pyo3::prelude::*;

use crate::core;

fn call<'py>(py: Python<'py>, function: &str, arguments: impl pyo3::call::PyCallArgs<'py>) {
    let _ = py.import("rollscope._errors").and_then(|module| module.getattr(function)?.call1(arguments));
}

/// A line in the log.
pub fn warn(py: Python<'_>, text: String) {
    call(py, "warn", (text,));
}

/// What went well; an error is counted and logged.
pub fn swallow<T>(py: Python<'_>, result: PyResult<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            if let Some(core) = core::core() {
                core.counters.errors.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            call(py, "swallowed", (error.into_value(py),));
            None
        }
    }
}
