//! Ids and identity of slime's spans on the wire.

use pyo3::prelude::*;
use pyo3::types::PyString;
use smallvec::SmallVec;

use super::carrier::Target;
use super::span::SlimeSpan;
use crate::context;
use crate::span::Span;
use crate::value;
use crate::wire::{self, Out, attrs_of};

/// The same as `model::ids` does with what it finds in a dump, so that a dump and the live spans meet.
pub(super) fn span_id_of(text: &[u8]) -> [u8; 8] {
    let (mut long, mut short) = ([0u8; 16], [0u8; 8]);
    if wire::unhex(text, &mut long) {
        fold(&long)
    } else if wire::unhex(text, &mut short) {
        short
    } else {
        xxhash_rust::xxh3::xxh3_64(text).to_be_bytes()
    }
}

pub(super) fn fold(raw: &[u8; 16]) -> [u8; 8] {
    std::array::from_fn(|i| raw[i] ^ raw[i + 8])
}

pub(super) fn trace_id_of(trace: &Bound<'_, PyAny>) -> [u8; 16] {
    let Some(text) = trace.cast::<PyString>().ok().and_then(|t| t.to_str().ok()) else { return [0; 16] };
    let mut id = [0; 16];
    if !wire::unhex(text.as_bytes(), &mut id) {
        id = xxhash_rust::xxh3::xxh3_128(text.as_bytes()).to_be_bytes();
    }
    id
}

/// The id of an event in a dump: by its place in the list.
pub(super) fn event_id(trace_id: &[u8; 16], index: u32) -> [u8; 8] {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(trace_id);
    bytes[16..20].copy_from_slice(&index.to_be_bytes());
    bytes[20..].copy_from_slice(b"evnt");
    xxhash_rust::xxh3::xxh3_64(&bytes).to_be_bytes()
}

/// The ids as slime writes them, as reserved attributes. A parent's id of 16 digits is what is sent anyway.
pub(super) fn put_originals(out: &mut impl Out, span_id: &[u8], parent: &[u8]) {
    wire::text_attr(out, attrs_of::SPAN, b"rollscope.original_span_id", span_id);
    if !parent.is_empty() && parent.len() != 16 {
        wire::text_attr(out, attrs_of::SPAN, b"rollscope.original_parent_span_id", parent);
    }
}

/// Encoded attributes of an identity.
pub(super) type Ids = SmallVec<[u8; 80]>;

/// What the attributes of the targets' identity look like on the wire, and the step of the current context.
pub(super) fn identity(target: &Target<'_>, step: Option<i64>, out: &mut Ids) -> u32 {
    let mut count = 0;
    if let Some(step) = step {
        wire::int_attr(out, attrs_of::SPAN, b"rl.step", step);
        count += 1;
    }
    for (key, id) in [(&b"rl.sample.id"[..], &target.sample_id), (b"rl.group.id", &target.group_id)] {
        if !id.is_none() {
            value::put_id(out, attrs_of::SPAN, key, id);
            count += 1;
        }
    }
    if let Ok(attempt) = target.attempt.extract::<i64>() {
        wire::int_attr(out, attrs_of::SPAN, b"rl.attempt", attempt);
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
