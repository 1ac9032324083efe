//! Trace and span ids. W3C ids are 16 and 8 bytes; other systems use other lengths (slime's span ids are 16 bytes,
//! SGLang's trace ids 8). Foreign ids are mapped here, the same way everywhere, and the text they came as is kept in the
//! `original_*` columns by whoever maps them.

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

pub type TraceId = [u8; 16];
pub type SpanId = [u8; 8];

/// A trace id of any length. 16 bytes stay; fewer than 16 are a number with leading zeros; more are hashed.
pub fn trace_id_from_bytes(raw: &[u8]) -> TraceId {
    match raw.len() {
        0..=16 => {
            let mut id = [0; 16];
            id[16 - raw.len()..].copy_from_slice(raw);
            id
        }
        _ => xxh3_128(raw).to_be_bytes(),
    }
}

/// A span id of any length. 8 bytes stay; fewer get leading zeros; 16 (a UUID) are folded by exclusive or; others are hashed.
/// The Python package uses this too, so that a dump and the live spans of the same run meet.
pub fn span_id_from_bytes(raw: &[u8]) -> SpanId {
    match raw.len() {
        0..=8 => {
            let mut id = [0; 8];
            id[8 - raw.len()..].copy_from_slice(raw);
            id
        }
        16 => std::array::from_fn(|i| raw[i] ^ raw[i + 8]),
        _ => xxh3_64(raw).to_be_bytes(),
    }
}

/// An id as text: hex if it looks like hex, otherwise its own bytes, hashed. Returns the id and whether the text is
/// already the canonical form (if not, the caller keeps the original).
pub fn trace_id_from_text(text: &str) -> (TraceId, bool) {
    match decode_hex(text) {
        Some(raw) => (trace_id_from_bytes(&raw), raw.len() == 16 && is_lower_hex(text)),
        None => (xxh3_128(text.as_bytes()).to_be_bytes(), false),
    }
}

/// See [`trace_id_from_text`].
pub fn span_id_from_text(text: &str) -> (SpanId, bool) {
    match decode_hex(text) {
        Some(raw) => (span_id_from_bytes(&raw), raw.len() == 8 && is_lower_hex(text)),
        None => (xxh3_64(text.as_bytes()).to_be_bytes(), false),
    }
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The bytes of an id in hex, of at most 32 bytes. Decoded in place: every span has two or three.
fn decode_hex(text: &str) -> Option<Decoded> {
    let mut raw = Decoded { bytes: [0; 32], len: text.len() / 2 };
    if text.is_empty() || raw.len > raw.bytes.len() {
        return None;
    }
    hex::decode_to_slice(text, &mut raw.bytes[..raw.len]).ok()?;
    Some(raw)
}

struct Decoded {
    bytes: [u8; 32],
    len: usize,
}

impl std::ops::Deref for Decoded {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The id of something in a trace that has none, such as slime's events, or one that was used before: made from its place in
/// the trace's list of events.
pub fn span_id_from_place(trace_id: &TraceId, event: u32) -> SpanId {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(trace_id);
    bytes[16..20].copy_from_slice(&event.to_be_bytes());
    bytes[20..].copy_from_slice(b"evnt");
    span_id_from_bytes(&bytes)
}

pub fn is_zero(id: &[u8]) -> bool {
    id.iter().all(|b| *b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_trace_ids_are_numbers_with_leading_zeros() {
        let (id, canonical) = trace_id_from_text("91543acd788654df");
        assert_eq!(hex::encode(id), "000000000000000091543acd788654df");
        assert!(!canonical);
    }

    #[test]
    fn slime_span_ids_fold_to_eight_bytes() {
        let (id, canonical) = span_id_from_text("00112233445566778899aabbccddeeff");
        assert_eq!(hex::encode(id), "8888888888888888");
        assert!(!canonical);
        assert!(span_id_from_text("c06f3f0aa0c231dd").1);
    }

    #[test]
    fn any_text_is_an_id() {
        assert_ne!(trace_id_from_text("not hex at all").0, trace_id_from_text("not hex at al1").0);
        assert!(!is_zero(&span_id_from_text("x").0));
    }
}
