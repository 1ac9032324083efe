//! What callers hand in, read the same way for every kind of span: names, attributes, times. Nothing here raises.

use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString};
use smallvec::SmallVec;

use crate::clock;
use crate::row::{KIND_INTERNAL, STATUS_ERROR, STATUS_OK, STATUS_UNSET};
use crate::value;

/// Attributes as they are sent.
#[derive(Default)]
pub struct Attrs {
    pub bytes: SmallVec<[u8; 256]>,
    pub count: u32,
    /// How many were left out.
    pub dropped: u32,
}

impl Attrs {
    /// Of a dict or a mapping; `tag` says what they are attributes of.
    #[inline]
    pub fn read(given: Option<&Bound<'_, PyAny>>, tag: u8) -> Attrs {
        Attrs::read_more(given, tag, 0)
    }

    /// The same for a span that has `written` attributes already.
    #[inline]
    pub fn read_more(given: Option<&Bound<'_, PyAny>>, tag: u8, written: u32) -> Attrs {
        let mut attrs = Attrs::default();
        if let Some(given) = given {
            let (count, dropped) = value::put_dict(&mut attrs.bytes, tag, given, written as usize);
            (attrs.count, attrs.dropped) = (count as u32, dropped as u32);
        }
        attrs
    }
}

/// The text of a name, bounded.
#[inline]
pub fn name(name: &Bound<'_, PyAny>) -> SmallVec<[u8; 48]> {
    match name.cast::<PyString>().ok().and_then(|n| n.to_str().ok()) {
        Some(text) => SmallVec::from_slice(value::bounded(text)),
        None => SmallVec::from_vec(value::text_of(name).into_bytes()),
    }
}

/// Nanoseconds since the epoch; now, where none are given.
#[inline]
pub fn time(ns: Option<u64>) -> u64 {
    ns.unwrap_or_else(clock::now_ns)
}

/// A whole number, also out of a scalar of numpy or torch.
pub fn whole(value: &Bound<'_, PyAny>) -> Option<i64> {
    value.extract().ok().or_else(|| value::scalar(value)?.extract().ok())
}

/// What an enum of OpenTelemetry or a plain text calls itself, in lower case.
fn enum_name(value: &Bound<'_, PyAny>) -> String {
    let name = value.getattr("name").map_or_else(|_| value::text_of(value), |name| value::text_of(&name));
    name.to_ascii_lowercase()
}

/// OTLP's number of a span's kind.
pub fn kind(kind: Option<&Bound<'_, PyAny>>) -> u8 {
    let Some(kind) = kind else { return KIND_INTERNAL };
    if kind.is_instance_of::<PyInt>() {
        return kind.extract::<u8>().ok().filter(|k| *k <= 5).unwrap_or(KIND_INTERNAL);
    }
    match enum_name(kind).as_str() {
        "server" => 2,
        "client" => 3,
        "producer" => 4,
        "consumer" => 5,
        _ => KIND_INTERNAL,
    }
}

/// OTLP's number of a status.
pub fn status(status: &Bound<'_, PyAny>) -> u8 {
    match enum_name(status).as_str() {
        "ok" | "1" => STATUS_OK,
        "error" | "2" => STATUS_ERROR,
        _ => STATUS_UNSET,
    }
}
