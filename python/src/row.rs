//! One span as OTLP writes it: length first, then the bytes, both from the same parts.

use rollscope_names::attributes::{reserved, state};
pub use rollscope_names::ids::{SpanId, TraceId};

use crate::wire::{self, Out, field_len, raw};

pub const KIND_INTERNAL: u8 = 1;
pub const STATUS_UNSET: u8 = 0;
pub const STATUS_OK: u8 = 1;
pub const STATUS_ERROR: u8 = 2;

const START_ATTRS: &[u8] = reserved::START_ATTRS.as_bytes();

pub struct Row<'a> {
    pub trace_id: &'a TraceId,
    pub span_id: &'a SpanId,
    pub parent_id: Option<&'a SpanId>,
    pub name: &'a [u8],
    pub kind: u8,
    pub start_ns: u64,
    /// None: it is open.
    pub end_ns: Option<u64>,
    /// Encoded attributes: those of the start, and the others.
    pub start_attrs: [&'a [u8]; 2],
    pub start_count: u32,
    pub end_attrs: [&'a [u8]; 2],
    pub dropped: u32,
    pub events: &'a [u8],
    pub links: &'a [u8],
    pub status: u8,
    pub message: &'a str,
}

impl<'a> Row<'a> {
    /// An open span with nothing on it yet.
    #[inline]
    pub fn new((trace_id, span_id): (&'a TraceId, &'a SpanId), name: &'a [u8], start_ns: u64) -> Row<'a> {
        Row {
            trace_id,
            span_id,
            parent_id: None,
            name,
            kind: KIND_INTERNAL,
            start_ns,
            end_ns: None,
            start_attrs: [&[], &[]],
            start_count: 0,
            end_attrs: [&[], &[]],
            dropped: 0,
            events: &[],
            links: &[],
            status: STATUS_UNSET,
            message: "",
        }
    }

    /// A moment without length.
    pub fn instant(ids: (&'a TraceId, &'a SpanId), name: &'a [u8], time_ns: u64) -> Row<'a> {
        Row { end_ns: Some(time_ns), end_attrs: [instant_mark(), &[]], ..Row::new(ids, name, time_ns) }
    }

    fn start_count_len(&self) -> usize {
        if self.start_count == 0 {
            return 0;
        }
        let value = 1 + wire::varint_len(u64::from(self.start_count));
        field_len(field_len(START_ATTRS.len()) + field_len(value))
    }

    fn status_len(&self) -> usize {
        match (self.status, self.message.is_empty()) {
            (STATUS_UNSET, true) => 0,
            (_, true) => 2,
            (_, false) => 2 + field_len(self.message.len()),
        }
    }

    fn body_len(&self) -> usize {
        let mut len = 18 + 10 + 2 + 9 + field_len(self.name.len()) + self.start_count_len();
        if self.parent_id.is_some() {
            len += 10;
        }
        if self.end_ns.is_some() {
            len += 9;
        }
        for attrs in self.start_attrs.iter().chain(&self.end_attrs) {
            len += attrs.len();
        }
        if self.dropped > 0 {
            len += 1 + wire::varint_len(u64::from(self.dropped));
        }
        let status = self.status_len();
        if status > 0 {
            len += field_len(status);
        }
        len + self.events.len() + self.links.len()
    }

    /// Bytes with tag and length.
    pub fn len(&self) -> usize {
        field_len(self.body_len())
    }

    pub fn write(&self, out: &mut impl Out) {
        let body = self.body_len();
        let len = field_len(body);
        // SAFETY: `body_len` counts every byte that is written here.
        unsafe {
            let start = out.room(len);
            let mut at = raw::varint(raw::byte(start, 0x12), body as u64);
            at = raw::field(at, 0x0a, self.trace_id);
            at = raw::field(at, 0x12, self.span_id);
            if let Some(parent) = self.parent_id {
                at = raw::field(at, 0x22, parent);
            }
            at = raw::field(at, 0x2a, self.name);
            at = raw::byte(raw::byte(at, 0x30), self.kind);
            at = raw::fixed64(at, 0x39, self.start_ns);
            if let Some(end) = self.end_ns {
                at = raw::fixed64(at, 0x41, end.max(self.start_ns));
            }
            for attrs in self.start_attrs {
                at = raw::copy(at, attrs);
            }
            if self.start_count > 0 {
                let number = 1 + wire::varint_len(u64::from(self.start_count));
                let pair = field_len(START_ATTRS.len()) + field_len(number);
                at = raw::varint(raw::byte(at, wire::attrs_of::SPAN), pair as u64);
                at = raw::field(at, 0x0a, START_ATTRS);
                at = raw::byte(raw::byte(raw::byte(at, 0x12), number as u8), 0x18);
                at = raw::varint(at, u64::from(self.start_count));
            }
            for attrs in self.end_attrs {
                at = raw::copy(at, attrs);
            }
            if self.dropped > 0 {
                at = raw::varint(raw::byte(at, 0x50), u64::from(self.dropped));
            }
            at = raw::copy(at, self.events);
            at = raw::copy(at, self.links);
            let status = self.status_len();
            if status > 0 {
                at = raw::varint(raw::byte(at, 0x7a), status as u64);
                if !self.message.is_empty() {
                    at = raw::field(at, 0x12, self.message.as_bytes());
                }
                at = raw::byte(raw::byte(at, 0x18), self.status);
            }
            debug_assert_eq!(at.offset_from(start) as usize, len);
            out.advance(len);
        }
    }
}

/// The reserved attribute `rollscope.state` = `instant`, encoded.
fn instant_mark() -> &'static [u8] {
    static MARK: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    MARK.get_or_init(|| {
        let mut mark = Vec::new();
        wire::text_attr(&mut mark, wire::attrs_of::SPAN, reserved::STATE.as_bytes(), state::INSTANT.as_bytes());
        mark
    })
}

/// An event of a span.
pub fn put_event(out: &mut impl Out, name: &[u8], time_ns: u64, attrs: &[u8], dropped: u32) {
    let count = if dropped > 0 { 1 + wire::varint_len(u64::from(dropped)) } else { 0 };
    out.byte(0x5a);
    out.varint((9 + field_len(name.len()) + attrs.len() + count) as u64);
    out.fixed64(0x09, time_ns);
    out.field(0x12, name);
    out.put(attrs);
    if dropped > 0 {
        out.byte(0x20);
        out.varint(u64::from(dropped));
    }
}

/// A link of a span.
pub fn put_link(out: &mut impl Out, trace_id: &TraceId, span_id: &SpanId, attrs: &[u8]) {
    out.byte(0x6a);
    out.varint((18 + 10 + attrs.len()) as u64);
    out.field(0x0a, trace_id);
    out.field(0x12, span_id);
    out.put(attrs);
}
