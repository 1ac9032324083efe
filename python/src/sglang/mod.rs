//! SGLang's request tracing on our core: one span per request, one per thread it passes, slices on each. Every first-level slice
//! is linked to the one before it, also in another thread or process.

mod piece;
mod request;
mod state;
mod thread;
mod travel;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use pyo3::prelude::*;

use crate::core::lock;
use crate::value;
use request::TraceReqContext;
use thread::Thread;

static INITIALIZED: AtomicBool = AtomicBool::new(false);
/// Below zero: what the environment says.
static LEVEL: AtomicI64 = AtomicI64::new(-1);
static MODULES: Mutex<Option<Vec<String>>> = Mutex::new(None);

fn global_level() -> i64 {
    match LEVEL.load(Relaxed) {
        level if level >= 0 => level,
        _ => {
            let level = std::env::var("SGLANG_TRACE_LEVEL").ok().and_then(|t| t.trim().parse().ok()).unwrap_or(3);
            LEVEL.store(level, Relaxed);
            level
        }
    }
}

#[pyfunction]
#[pyo3(signature = (on, modules = None))]
fn initialize(on: bool, modules: Option<Vec<String>>) {
    if modules.is_some() {
        *lock(&MODULES) = modules;
    }
    INITIALIZED.store(on, Relaxed);
}

#[pyfunction]
fn initialized() -> bool {
    INITIALIZED.load(Relaxed)
}

/// Names the calling thread. Only the first call has an effect.
#[pyfunction]
#[pyo3(signature = (thread_label, tp_rank = None, dp_rank = None, pp_rank = None))]
fn trace_set_thread_info(
    thread_label: &Bound<'_, PyAny>,
    tp_rank: Option<i64>,
    dp_rank: Option<i64>,
    pp_rank: Option<i64>,
) {
    if INITIALIZED.load(Relaxed) {
        let label = value::text_of(thread_label);
        thread::set(thread::number(), Thread { label, tp: tp_rank, dp: dp_rank, pp: pp_rank });
    }
}

#[pyfunction]
fn set_global_trace_level(level: i64) {
    LEVEL.store(level.max(0), Relaxed);
}

#[pyfunction]
fn get_global_trace_level() -> i64 {
    global_level()
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let sglang = crate::submodule(module, "sglang")?;
    sglang.add_class::<TraceReqContext>()?;
    sglang.add_function(wrap_pyfunction!(travel::rebuild, &sglang)?)?;
    sglang.add_function(wrap_pyfunction!(initialize, &sglang)?)?;
    sglang.add_function(wrap_pyfunction!(initialized, &sglang)?)?;
    sglang.add_function(wrap_pyfunction!(trace_set_thread_info, &sglang)?)?;
    sglang.add_function(wrap_pyfunction!(set_global_trace_level, &sglang)?)?;
    sglang.add_function(wrap_pyfunction!(get_global_trace_level, &sglang)?)
}
