//! How a request's trace goes to another process and comes out there.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rollscope_names::limits::TRACE_LEVEL;

use super::request::TraceReqContext;
use super::state::State;
use super::{INITIALIZED, thread};
use crate::context;
use crate::core::{self, lock};
use crate::value;

/// In the shape that SGLang's own class has.
pub fn pack<'py>(py: Python<'py>, state: &Mutex<State>) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    // Copied first: making objects may run code, and that must not find the lock held.
    let copy = {
        let s = lock(state);
        let root = s.root_ids.filter(|_| s.enabled);
        root.map(|root| {
            let texts = (s.rid.clone(), s.role.clone(), s.module.clone());
            (root, texts, s.bootstrap_room, s.start_ns, s.level, s.is_copy, s.pid, s.previous())
        })
    };
    let Some(((trace, root), (rid, role, module), room, start_ns, level, is_copy, pid, previous)) = copy else {
        out.set_item("tracing_enable", false)?;
        return Ok(out);
    };
    out.set_item("tracing_enable", true)?;
    out.set_item("rid", rid)?;
    out.set_item("bootstrap_room", room)?;
    out.set_item("start_time_ns", start_ns)?;
    out.set_item("role", role)?;
    out.set_item("trace_level", level)?;
    out.set_item("module_name", module)?;
    out.set_item("is_copy", is_copy)?;
    out.set_item("pid", pid)?;
    out.set_item("thread_context", py.None())?;
    out.set_item("root_span", py.None())?;
    let carrier = PyDict::new(py);
    carrier.set_item("traceparent", context::traceparent(&trace, &root))?;
    out.set_item("root_span_context", carrier)?;
    match previous {
        Some((trace, span)) => {
            let last = PyDict::new(py);
            last.set_item("span_id", u64::from_be_bytes(span))?;
            last.set_item("trace_id", u128::from_be_bytes(trace))?;
            out.set_item("last_span_context", last)?;
        }
        None => out.set_item("last_span_context", py.None())?,
    }
    Ok(out)
}

/// A context from what travelled: a copy that continues the same request.
#[pyfunction]
pub fn rebuild(travelled: &Bound<'_, PyDict>) -> PyResult<TraceReqContext> {
    let get = |key: &str| travelled.get_item(key).ok().flatten().filter(|v| !v.is_none());
    let enabled: bool = get("tracing_enable").and_then(|v| v.extract().ok()).unwrap_or(false);
    let mut state = State::default();
    let root = get("root_span_context").and_then(|carrier| {
        let header = carrier.get_item("traceparent").ok()?;
        context::ids_of(&header)
    });
    let text = |key: &str| get(key).map(|v| value::text_of(&v)).unwrap_or_default();
    state.rid = text("rid");
    if enabled && root.is_some() && INITIALIZED.load(Relaxed) && core::core().is_some() {
        state.enabled = true;
        state.bootstrap_room = get("bootstrap_room").and_then(|v| v.extract().ok());
        state.start_ns = get("start_time_ns").and_then(|v| v.extract().ok()).unwrap_or(0);
        state.role = text("role");
        state.module = text("module_name");
        state.level = get("trace_level").and_then(|v| v.extract().ok()).unwrap_or(TRACE_LEVEL.into());
        state.is_copy = true;
        state.pid = thread::number();
        state.root_ids = root;
        state.last = get("last_span_context").and_then(|last| {
            let trace: u128 = last.get_item("trace_id").ok()?.extract().ok()?;
            let span: u64 = last.get_item("span_id").ok()?.extract().ok()?;
            Some((trace.to_be_bytes(), span.to_be_bytes()))
        });
    }
    Ok(state.into())
}
