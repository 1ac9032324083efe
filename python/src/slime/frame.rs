//! Which spans are open in a context.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyString;

use super::span::Side;
use crate::context::SLIME;

/// The open spans of a context, innermost first.
#[pyclass(frozen, module = "rollscope.slime")]
pub struct Frame {
    pub(super) outer: Option<Py<Frame>>,
    /// Of the innermost span, in the order of its targets.
    pub(super) sides: Arc<Vec<Side>>,
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
        let likely = this.sides.get(hint).filter(|side| side.trace_id == *trace);
        if let Some(side) = likely.or_else(|| this.sides.iter().rev().find(|side| side.trace_id == *trace)) {
            return Some(side.span_text.bind(py).clone());
        }
        frame = this.outer.as_ref().map(|outer| outer.bind(py).clone());
    }
    None
}

pub(super) fn current_frame(py: Python<'_>) -> Option<Bound<'_, Frame>> {
    SLIME.get(py)?.cast_into::<Frame>().ok()
}
