//! Ids and identity of slime's spans on the wire.

use pyo3::prelude::*;
use pyo3::types::PyString;
use rollscope_names::attributes::{ATTEMPT, GROUP_ID, SAMPLE_ID, STEP, reserved};
use rollscope_names::ids::{SpanId, TraceId, span_id_from_bytes, span_id_from_text, trace_id_from_text};
use smallvec::SmallVec;

use super::carrier::Target;
use super::span::SlimeSpan;
use crate::context;
use crate::span::Span;
use crate::value;
use crate::wire::{self, Out, attrs_of};

/// Ids are mapped as the server maps what it finds in a dump, so that a dump and the live spans meet.
pub(super) fn span_id_of(text: &str) -> SpanId {
    own_id(text).map_or_else(|| span_id_from_text(text).0, |raw| span_id_from_bytes(&raw))
}

pub(super) fn trace_id_of(trace: &Bound<'_, PyAny>) -> TraceId {
    let text = trace.cast::<PyString>().ok().and_then(|t| t.to_str().ok());
    text.map_or([0; 16], |text| own_id(text).unwrap_or_else(|| trace_id_from_text(text).0))
}

/// An id of 32 digits, as slime and we make them: read the short way.
fn own_id(text: &str) -> Option<[u8; 16]> {
    let mut raw = [0; 16];
    wire::unhex(text.as_bytes(), &mut raw).then_some(raw)
}

/// The ids as slime writes them, as reserved attributes. A parent's id of 16 digits is what is sent anyway.
pub(super) fn put_originals(out: &mut impl Out, span_id: &[u8], parent: &[u8]) {
    wire::text_attr(out, attrs_of::SPAN, reserved::ORIGINAL_SPAN_ID.as_bytes(), span_id);
    if !parent.is_empty() && parent.len() != 16 {
        wire::text_attr(out, attrs_of::SPAN, reserved::ORIGINAL_PARENT_SPAN_ID.as_bytes(), parent);
    }
}

/// Encoded attributes of an identity.
pub(super) type Ids = SmallVec<[u8; 80]>;

/// What the attributes of the targets' identity look like on the wire, and the step of the current context.
pub(super) fn identity(target: &Target<'_>, step: Option<i64>, out: &mut Ids) -> u32 {
    let mut count = 0;
    if let Some(step) = step {
        wire::int_attr(out, attrs_of::SPAN, STEP[0].as_bytes(), step);
        count += 1;
    }
    for (key, id) in [(SAMPLE_ID[0], &target.sample_id), (GROUP_ID[0], &target.group_id)] {
        if !id.is_none() {
            value::put_id(out, attrs_of::SPAN, key.as_bytes(), id);
            count += 1;
        }
    }
    if let Ok(attempt) = target.attempt.extract::<i64>() {
        wire::int_attr(out, attrs_of::SPAN, ATTEMPT[0].as_bytes(), attempt);
        count += 1;
    }
    count
}

pub(super) fn current_step(py: Python<'_>) -> Option<i64> {
    let current = context::current(py)?;
    if let Ok(span) = current.cast::<Span>() {
        return span.get().step();
    }
    current.cast::<SlimeSpan>().ok()?.get().step()
}
