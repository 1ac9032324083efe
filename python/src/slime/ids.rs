//! Ids and identity of slime's spans on the wire.

use pyo3::prelude::*;
use pyo3::types::PyString;
use smallvec::SmallVec;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::carrier::Target;
use super::span::SlimeSpan;
use crate::context;
use crate::row::{SpanId, TraceId};
use crate::span::Span;
use crate::value;
use crate::wire::{self, Out, attrs_of};

/// Ids are mapped as the server maps what it finds in a dump (`model::ids`), so that a dump and the live spans meet: hex of up to
/// 32 bytes is read as bytes, any other text is hashed.
fn from_hex(text: &[u8]) -> Option<SmallVec<[u8; 32]>> {
    let mut raw = SmallVec::<[u8; 32]>::from_elem(0, (text.len() / 2).min(32));
    (!text.is_empty() && wire::unhex(text, &mut raw)).then_some(raw)
}

/// Fewer bytes than an id has are a number with leading zeros.
fn padded<const N: usize>(raw: &[u8]) -> Option<[u8; N]> {
    let mut id = [0; N];
    id[N.checked_sub(raw.len())?..].copy_from_slice(raw);
    Some(id)
}

pub(super) fn span_id_of(text: &[u8]) -> SpanId {
    let raw = from_hex(text);
    match raw.as_deref().map(|raw| (raw, padded(raw))) {
        Some((_, Some(id))) => id,
        Some((raw, None)) => match raw.try_into() {
            Ok(long) => fold(long),
            Err(_) => xxh3_64(raw).to_be_bytes(),
        },
        None => xxh3_64(text).to_be_bytes(),
    }
}

/// Sixteen bytes, as slime's span ids are, on eight.
pub(super) fn fold(raw: &[u8; 16]) -> SpanId {
    std::array::from_fn(|i| raw[i] ^ raw[i + 8])
}

pub(super) fn trace_id_of(trace: &Bound<'_, PyAny>) -> TraceId {
    let Some(text) = trace.cast::<PyString>().ok().and_then(|t| t.to_str().ok()) else { return [0; 16] };
    let text = text.as_bytes();
    match from_hex(text) {
        Some(raw) => padded(&raw).unwrap_or_else(|| xxh3_128(&raw).to_be_bytes()),
        None => xxh3_128(text).to_be_bytes(),
    }
}

/// The id of an event in a dump: by its place in the list.
pub(super) fn event_id(trace_id: &TraceId, index: u32) -> SpanId {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(trace_id);
    bytes[16..20].copy_from_slice(&index.to_be_bytes());
    bytes[20..].copy_from_slice(b"evnt");
    xxh3_64(&bytes).to_be_bytes()
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
