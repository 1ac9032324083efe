//! Which spans are open in a context.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::context::SLIME;

/// The open spans of a context, innermost first.
#[pyclass(frozen, module = "rollscope.slime")]
pub struct Frame {
    pub(super) outer: Option<Py<Frame>>,
    /// Trace id and span id, in the order of the targets.
    pub(super) entries: Vec<([u8; 16], Py<PyString>)>,
    /// The targets, for functions without one of their own: carrier, and the handle where it was one.
    pub(super) targets: Vec<(Py<PyDict>, Option<Py<PyAny>>)>,
}

/// The innermost open span of a trace. `hint`: where a span over the same group would have it.
pub(super) fn parent_of<'py>(
    frame: Option<&Bound<'py, Frame>>,
    trace: &[u8; 16],
    hint: usize,
) -> Option<Bound<'py, PyString>> {
    let mut frame = frame.cloned();
    while let Some(at) = frame {
        let (py, this) = (at.py(), at.get());
        let likely = this.entries.get(hint).filter(|(id, _)| id == trace);
        if let Some((_, span)) = likely.or_else(|| this.entries.iter().rev().find(|(id, _)| id == trace)) {
            return Some(span.bind(py).clone());
        }
        frame = this.outer.as_ref().map(|outer| outer.bind(py).clone());
    }
    None
}

pub(super) fn current_frame(py: Python<'_>) -> Option<Bound<'_, Frame>> {
    SLIME.get(py)?.cast_into::<Frame>().ok()
}
