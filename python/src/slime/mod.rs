//! slime's traces on our core: the carrier on the sample is kept exactly as slime keeps it, and the same spans are sent live.
//!
//! A span over a group of samples is one span on each; they are recorded together. The nesting of each trace is a stack in
//! a context variable, so inside a group span the parent of a sample's own span is that sample's group span.

mod carrier;
mod frame;
mod ids;
mod span;

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use rollscope_names::ids::span_id_from_place;
use smallvec::SmallVec;

use carrier::{Entries, TraceHandle, bind_sample, collect, copy, ensure, from_handle, handle_of, seconds};
use frame::{Frame, current_frame, parent_of};
use ids::{Ids, current_step, identity, put_originals, span_id_of, trace_id_of};
pub use span::SlimeSpan;

use crate::args::{self, Attrs};
use crate::clock;
use crate::core;
use crate::errors::swallow;
use crate::row::Row;
use crate::wire::attrs_of;

/// Starts a span on every target, as slime's function of this name does.
#[pyfunction]
#[pyo3(signature = (target, name, *, attrs = None, record_error = true))]
fn trace_span(target: Py<PyAny>, name: Py<PyAny>, attrs: Option<Py<PyAny>>, record_error: bool) -> SlimeSpan {
    SlimeSpan::new(target, name, attrs, record_error)
}

/// Records an instant on every target, as slime's function of this name does.
#[pyfunction]
#[pyo3(signature = (target, name, *, attrs = None))]
fn trace_event(py: Python<'_>, target: &Bound<'_, PyAny>, name: &Bound<'_, PyAny>, attrs: Option<&Bound<'_, PyAny>>) {
    let now = clock::now_ns();
    let _ = swallow(py, put_instants(py, target, name, attrs, now, None));
}

fn put_instants<'py>(
    py: Python<'py>,
    target: &Bound<'py, PyAny>,
    name: &Bound<'py, PyAny>,
    attrs: Option<&Bound<'py, PyAny>>,
    time_ns: u64,
    time: Option<Bound<'py, PyAny>>,
) -> PyResult<()> {
    let mut targets = Vec::new();
    collect(target, &mut targets, 0)?;
    if targets.is_empty() {
        return Ok(());
    }
    let attrs = attrs.filter(|a| a.is_truthy().unwrap_or(false));
    let frame = current_frame(py);
    let time = time.unwrap_or_else(|| seconds(py, time_ns));
    let mut entries = Entries::new(py, "event", name, &time)?;
    let live = core::core().filter(|_| core::level() > 0);
    let step = current_step(py);
    let (encoded, text) = match live {
        Some(_) => (Attrs::read(attrs, attrs_of::SPAN), args::name(name)),
        None => Default::default(),
    };
    for (index, target) in targets.iter().enumerate() {
        let trace_id = trace_id_of(&target.trace);
        let parent = target.parent.clone().or_else(|| parent_of(frame.as_ref(), &trace_id, index));
        let event = entries.of(target, None)?;
        if let Some(parent) = &parent {
            event.set_item(intern!(py, "parent_span_id"), parent)?;
        }
        if let Some(attrs) = attrs {
            event.set_item(intern!(py, "attrs"), copy(attrs)?)?;
        }
        let place = target.events.len() as u32;
        target.events.append(&event)?;
        if let Some(core) = live {
            let mut ids = Ids::new();
            let ids_count = identity(target, step, &mut ids);
            let parent = parent.as_ref().and_then(|p| p.to_str().ok()).map(span_id_of);
            core.record_row(&Row {
                parent_id: parent.as_ref(),
                start_attrs: [&ids, &encoded.bytes],
                start_count: ids_count + encoded.count,
                ..Row::instant((&trace_id, &span_id_from_place(&trace_id, place)), &text, time_ns)
            });
        }
    }
    Ok(())
}

/// Makes sure that a sample has a carrier; raises what is wrong with it.
#[pyfunction]
fn bind<'py>(sample: &Bound<'py, PyAny>) -> PyResult<Py<PyAny>> {
    match bind_sample(sample)? {
        Some(target) => handle_of(sample.py(), &target),
        None => Err(PyTypeError::new_err("not a sample: expected the attributes index and group_index")),
    }
}

/// The same for a carrier without a sample.
#[pyfunction]
#[pyo3(signature = (carrier, trace_id = None, sample_id = None, group_id = None, attempt = None, parent_span_id = None))]
fn bind_parts<'py>(
    py: Python<'py>,
    carrier: Option<Bound<'py, PyDict>>,
    trace_id: Option<Bound<'py, PyAny>>,
    sample_id: Option<Bound<'py, PyAny>>,
    group_id: Option<Bound<'py, PyAny>>,
    attempt: Option<Bound<'py, PyAny>>,
    parent_span_id: Option<Bound<'py, PyAny>>,
) -> PyResult<Py<PyAny>> {
    let or_none = |value: Option<Bound<'py, PyAny>>| value.unwrap_or_else(|| py.None().into_bound(py));
    let mut target = ensure(py, carrier, trace_id, or_none(sample_id), or_none(group_id), attempt)?;
    target.parent = parent_span_id.and_then(|p| p.cast_into::<PyString>().ok());
    handle_of(py, &target)
}

/// The handles of a target, flat; empty for what is no target.
#[pyfunction]
fn coerce_handles<'py>(target: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let py = target.py();
    let mut targets = Vec::new();
    collect(target, &mut targets, 0)?;
    let handles = PyList::empty(py);
    for target in &targets {
        match &target.handle {
            Some(handle) => handles.append(handle)?,
            None => handles.append(handle_of(py, target)?)?,
        }
    }
    Ok(handles)
}

/// The innermost open span of a trace, or `None`.
#[pyfunction]
fn current_parent<'py>(py: Python<'py>, trace_id: &Bound<'py, PyAny>) -> Option<Bound<'py, PyString>> {
    parent_of(current_frame(py).as_ref(), &trace_id_of(trace_id), 0)
}

/// Handles of the innermost span, whatever its traces; empty without one.
#[pyfunction]
fn current_handles(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let handles = PyList::empty(py);
    if let Some(frame) = current_frame(py) {
        for side in frame.get().sides.iter() {
            handles.append(side.handle(py)?)?;
        }
    }
    Ok(handles)
}

/// A finished span of the past on the wire: a segment that the engine reported afterwards.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn emit_child<'py>(
    py: Python<'py>,
    handle: &Bound<'py, PyAny>,
    name: &str,
    span_id: &str,
    parent: &str,
    start_s: f64,
    end_s: f64,
    attrs: Option<&Bound<'py, PyAny>>,
    index: i64,
) -> PyResult<()> {
    let Some(core) = core::core().filter(|_| core::level() > 0) else { return Ok(()) };
    let target = from_handle(handle)?;
    let trace_id = trace_id_of(&target.trace);
    let mut ids = Ids::new();
    let ids_count = identity(&target, current_step(py), &mut ids);
    let attrs = Attrs::read(attrs, attrs_of::SPAN);
    let ns = |s: f64| (s * 1e9).round().clamp(0.0, 7e18) as u64;
    let parent_id = (!parent.is_empty()).then(|| span_id_of(parent));
    if index >= 0 {
        core.record_row(&Row {
            parent_id: parent_id.as_ref(),
            start_attrs: [&ids, &attrs.bytes],
            start_count: ids_count + attrs.count,
            ..Row::instant((&trace_id, &span_id_from_place(&trace_id, index as u32)), name.as_bytes(), ns(start_s))
        });
        return Ok(());
    }
    let mut originals = SmallVec::<[u8; 160]>::new();
    put_originals(&mut originals, span_id.as_bytes(), parent.as_bytes());
    core.record_row(&Row {
        parent_id: parent_id.as_ref(),
        end_ns: Some(ns(end_s)),
        start_attrs: [&ids, &[]],
        start_count: ids_count,
        end_attrs: [&attrs.bytes, &originals],
        ..Row::new((&trace_id, &span_id_of(span_id)), name.as_bytes(), ns(start_s))
    });
    Ok(())
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let slime = crate::submodule(module, "slime")?;
    slime.add_class::<TraceHandle>()?;
    slime.add_class::<SlimeSpan>()?;
    slime.add_class::<Frame>()?;
    slime.add_function(wrap_pyfunction!(trace_span, &slime)?)?;
    slime.add_function(wrap_pyfunction!(trace_event, &slime)?)?;
    slime.add_function(wrap_pyfunction!(bind, &slime)?)?;
    slime.add_function(wrap_pyfunction!(bind_parts, &slime)?)?;
    slime.add_function(wrap_pyfunction!(coerce_handles, &slime)?)?;
    slime.add_function(wrap_pyfunction!(current_parent, &slime)?)?;
    slime.add_function(wrap_pyfunction!(current_handles, &slime)?)?;
    slime.add_function(wrap_pyfunction!(emit_child, &slime)?)
}
