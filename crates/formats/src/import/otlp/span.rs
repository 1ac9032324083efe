//! One span between the wire and the columns: both readers (protobuf, JSON) fill it, and the one writer reads it.
//! It lives on the reader's stack and is filled again for every span; nothing is kept.

use std::fmt;

use rollscope_model::limits::RUN_ID_BYTES;

use super::{DecodeError, Limits, room};
use crate::import::wire;
use crate::json;
use crate::tokens::Mistake;

/// Why reading stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The bytes cannot be followed any further: the whole request fails.
    Malformed { what: &'static str, at: usize },
    /// Only this span is bad.
    Bad(Reason),
    /// What was read would take too much memory: the whole request fails.
    TooDense,
}

impl From<json::Error> for Fault {
    fn from(e: json::Error) -> Self {
        match e {
            json::Error::Syntax { what, at } => Fault::Malformed { what, at },
            json::Error::Type { .. } => Fault::Bad(Reason::Type),
            json::Error::Text { .. } => Fault::Bad(Reason::Utf8),
        }
    }
}

impl From<wire::Fault> for Fault {
    fn from(e: wire::Fault) -> Self {
        match e {
            wire::Fault::Malformed { what, at } => Fault::Malformed { what, at },
            wire::Fault::Utf8 => Fault::Bad(Reason::Utf8),
        }
    }
}

impl From<Reason> for Fault {
    fn from(r: Reason) -> Self {
        Fault::Bad(r)
    }
}

impl Fault {
    /// A fault outside of any span: the request as a whole is invalid.
    pub fn into_error(self) -> DecodeError {
        match self {
            Fault::Malformed { what, at } => DecodeError(format!("malformed request: {what} at byte {at}")),
            Fault::Bad(reason) => DecodeError(format!("malformed request: {reason}")),
            Fault::TooDense => room::too_dense(),
        }
    }
}

/// Why one span (or one data point) is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    TraceId,
    SpanId,
    ParentId,
    LinkId,
    EndBeforeStart,
    TimeTooLate,
    TimeTooEarly,
    Utf8,
    Type,
    Number,
    Base64,
    RunTooLong,
    TooManyRuns(usize),
    TooManyRows(usize),
    Attributes(usize),
    AttributeBytes(usize),
    Events(usize),
    Links(usize),
    Entities(usize),
    Nesting(usize),
    NoMetricData,
    NoValue,
    Buckets,
    TooManyBuckets(usize),
    InfiniteDelta,
    NegativeDelta,
    LateDelta,
    TooManyDeltas(usize),
    Logs,
    NoSpan,
    Event,
    Body,
    NotJson,
    TooLarge(&'static str, usize),
    TooManyValues(usize),
    NoSample,
    Tokens(Mistake),
    Unknown,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Reason::NoSample => f.write_str("the tokens name no sample (rl.sample.id)"),
            Reason::Tokens(mistake) => mistake.fmt(f),
            Reason::TraceId => f.write_str("the trace id is missing, zero or not 16 bytes long"),
            Reason::SpanId => f.write_str("the span id is missing, zero or not 8 bytes long"),
            Reason::ParentId => f.write_str("the parent span id is not 8 bytes long"),
            Reason::LinkId => f.write_str("the ids of a link are not 16 and 8 bytes long"),
            Reason::EndBeforeStart => f.write_str("the end is before the start"),
            Reason::TimeTooLate => f.write_str("a time is after the year 2199"),
            Reason::TimeTooEarly => f.write_str("a time is before the year 2000; check the sender's clock"),
            Reason::Utf8 => f.write_str("text is not valid UTF-8"),
            Reason::Type => f.write_str("a field has the wrong JSON type"),
            Reason::Number => f.write_str("a value is not a number, or out of range"),
            Reason::Base64 => f.write_str("bytes are not valid base64"),
            Reason::RunTooLong => write!(f, "the run id is longer than {RUN_ID_BYTES} bytes"),
            Reason::TooManyRuns(n) => write!(f, "more than {n} runs in one request"),
            Reason::TooManyRows(n) => write!(f, "too many values (more than {n}) or too long labels in one request"),
            Reason::Attributes(n) => write!(f, "more than {n} attributes (attributes_per_span)"),
            Reason::AttributeBytes(n) => write!(f, "an attribute or name is longer than {n} bytes (attribute_bytes)"),
            Reason::Events(n) => write!(f, "more than {n} events (events_per_span)"),
            Reason::Links(n) => write!(f, "more than {n} links (links_per_span)"),
            Reason::Entities(n) => {
                write!(f, "a resource has more than {n} entities, or one of them more than {n} keys")
            }
            Reason::Nesting(n) => write!(f, "a value is nested more than {n} deep (nesting)"),
            Reason::NoMetricData => f.write_str("the metric has no data"),
            Reason::NoValue => f.write_str("the data point has no value"),
            Reason::Buckets => f.write_str("the number of buckets of the histogram does not match its bounds"),
            Reason::TooManyBuckets(n) => write!(f, "the histogram has more than {n} buckets"),
            Reason::Logs => f.write_str(
                "log records are not stored, except events of model calls (gen_ai.*); turn off the log exporter",
            ),
            Reason::NoSpan => {
                f.write_str("the message of a model call has no trace and span id, so its call is unknown")
            }
            Reason::InfiniteDelta => f.write_str("a delta is not a finite number and cannot be summed"),
            Reason::NegativeDelta => f.write_str("a delta of a monotonic sum is negative"),
            Reason::LateDelta => {
                f.write_str("a delta ends before others that were summed already; it is a duplicate or came too late")
            }
            Reason::TooManyDeltas(n) => write!(
                f,
                "the series with delta temporality need more than {n} bytes; send fewer, or cumulative ones \
                 (OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=cumulative)"
            ),
            Reason::Event => f.write_str("unknown event name; docs/wire.md lists those that rollscope reads"),
            Reason::Body => f.write_str("the body has the wrong type; see docs/wire.md"),
            Reason::NotJson => f.write_str("a text is not valid JSON"),
            Reason::TooLarge(what, n) => write!(f, "a {what} is larger than {n} bytes"),
            Reason::TooManyValues(n) => {
                write!(f, "a conversation has more than {n} JSON values; send long lists of numbers as tokens")
            }
            Reason::Unknown => f.write_str("the request has neither spans nor metrics"),
        }
    }
}

/// Reasons, each once, with its count.
#[derive(Default)]
pub(super) struct Rejects {
    pub total: u64,
    seen: Vec<(Reason, u64)>,
}

impl Rejects {
    pub fn add(&mut self, reason: Reason, count: u64) {
        if count == 0 {
            return;
        }
        self.total += count;
        match self.seen.iter_mut().find(|(r, _)| *r == reason) {
            Some((_, n)) => *n += count,
            None => self.seen.push((reason, count)),
        }
    }

    pub fn reasons(&self) -> Vec<String> {
        self.seen.iter().map(|(reason, n)| format!("{reason} ({n})")).collect()
    }
}

/// A value. What is not a plain scalar is JSON text already, in [`Attrs::json`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Val<S> {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Str(S),
    Json { from: usize, to: usize },
}

/// Attributes in the order they came.
pub(super) struct Attrs<S> {
    pub list: Vec<(S, Val<S>)>,
    pub json: Vec<u8>,
}

impl<S> Default for Attrs<S> {
    fn default() -> Self {
        Attrs { list: Vec::new(), json: Vec::new() }
    }
}

impl<S: AsRef<str>> Attrs<S> {
    pub fn clear(&mut self) {
        self.list.clear();
        self.json.clear();
    }

    /// Adds one, within the limits. `from`: where the list of this span, event or link began.
    #[inline]
    pub fn push(&mut self, key: S, value: Val<S>, from: usize, limits: &Limits) -> Result<(), Fault> {
        let count = self.list.len() - from;
        if count >= limits.attributes_per_span
            && (count >= limits.attributes_per_span + RESERVED_ROOM
                || !key.as_ref().starts_with(rollscope_model::names::reserved::PREFIX))
        {
            return Err(Reason::Attributes(limits.attributes_per_span).into());
        }
        let size = match &value {
            Val::Str(s) => s.as_ref().len(),
            Val::Json { from, to } => to - from,
            _ => 0,
        };
        if key.as_ref().len() + size > limits.attribute_bytes {
            return Err(Reason::AttributeBytes(limits.attribute_bytes).into());
        }
        self.list.push((key, value));
        Ok(())
    }
}

/// Reserved attributes come on top of the limit, so that what we took in can be sent on.
const RESERVED_ROOM: usize = 16;

pub(super) struct Event<S> {
    pub time: u64,
    pub name: S,
    pub dropped: u32,
    /// Where its attributes end in [`Span::item_attrs`].
    pub attrs_end: usize,
}

pub(super) struct Link<S> {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    pub trace_state: S,
    pub flags: u32,
    pub dropped: u32,
    pub attrs_end: usize,
}

pub(super) struct Span<S> {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    /// Zero: none.
    pub parent_id: [u8; 8],
    pub name: S,
    pub kind: i32,
    pub start: u64,
    pub end: u64,
    pub status: i32,
    pub status_message: S,
    pub trace_state: S,
    pub flags: u32,
    pub dropped_attrs: u32,
    pub dropped_events: u32,
    pub dropped_links: u32,
    pub attrs: Attrs<S>,
    pub events: Vec<Event<S>>,
    pub event_attrs: Attrs<S>,
    pub links: Vec<Link<S>>,
    pub link_attrs: Attrs<S>,
}

impl<S: AsRef<str> + Default> Default for Span<S> {
    fn default() -> Self {
        Span {
            trace_id: [0; 16],
            span_id: [0; 8],
            parent_id: [0; 8],
            name: S::default(),
            kind: 0,
            start: 0,
            end: 0,
            status: 0,
            status_message: S::default(),
            trace_state: S::default(),
            flags: 0,
            dropped_attrs: 0,
            dropped_events: 0,
            dropped_links: 0,
            attrs: Attrs::default(),
            events: Vec::new(),
            event_attrs: Attrs::default(),
            links: Vec::new(),
            link_attrs: Attrs::default(),
        }
    }
}

impl<S: AsRef<str> + Default> Span<S> {
    /// Empty again, with the room it has grown.
    pub fn clear(&mut self) {
        self.trace_id = [0; 16];
        self.span_id = [0; 8];
        self.parent_id = [0; 8];
        self.name = S::default();
        self.kind = 0;
        self.start = 0;
        self.end = 0;
        self.status = 0;
        self.status_message = S::default();
        self.trace_state = S::default();
        self.flags = 0;
        self.dropped_attrs = 0;
        self.dropped_events = 0;
        self.dropped_links = 0;
        self.attrs.clear();
        self.events.clear();
        self.event_attrs.clear();
        self.links.clear();
        self.link_attrs.clear();
    }
}

/// The content of a `Resource` message.
pub(super) struct Resource<S> {
    pub attrs: Attrs<S>,
    pub dropped: u32,
    pub entities: Vec<Entity<S>>,
}

/// Entities of one resource, and keys of one of them.
const MAX_ENTITIES: usize = 1024;

/// Adds to the entities of a resource, or to the keys of one.
pub(super) fn push_entity<T>(list: &mut Vec<T>, item: T) -> Result<(), Reason> {
    if list.len() >= MAX_ENTITIES {
        return Err(Reason::Entities(MAX_ENTITIES));
    }
    list.push(item);
    Ok(())
}

/// Which attributes of a resource identify and describe a thing: OTLP's `EntityRef`.
#[derive(Default)]
pub(super) struct Entity<S> {
    pub schema_url: S,
    pub kind: S,
    pub id_keys: Vec<S>,
    pub description_keys: Vec<S>,
}

/// The content of an `InstrumentationScope` message.
pub(super) struct Scope<S> {
    pub name: S,
    pub version: S,
    pub attrs: Attrs<S>,
    pub dropped: u32,
}

impl<S> Default for Resource<S> {
    fn default() -> Self {
        Resource { attrs: Attrs::default(), dropped: 0, entities: Vec::new() }
    }
}

impl<S: Default> Default for Scope<S> {
    fn default() -> Self {
        Scope { name: S::default(), version: S::default(), attrs: Attrs::default(), dropped: 0 }
    }
}
