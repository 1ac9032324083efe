//! Column and row builders. Importers fill these. No other code builds a batch of a table by hand.
//!
//! Hot paths (OTLP) write the columns directly with interned keys; everyone else fills a row struct ([`NewSpan`],
//! [`NewSample`], ...) and calls `push`. A row struct is an argument list with names: it borrows, and is never stored.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanBuilder, DictionaryArray, FixedSizeBinaryArray, Float64Builder, Int32Array, Int32Builder,
    Int64Builder, ListArray, MapArray, RecordBatch, StringArray, StringBuilder, StructArray, UInt32Array,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Int32Type};
use arrow::error::ArrowError;
use std::collections::HashMap;
use xxhash_rust::xxh3::Xxh3Builder;

use crate::attrs::{self, Value};
use crate::ids::{SpanId, TraceId};
use crate::tables::{Table, attrs_type, event_fields, link_fields};

/// Repeated text. `intern` once, `push` the key as often as needed.
#[derive(Default)]
pub struct DictColumn {
    keys: Vec<i32>,
    values: StringBuilder,
    seen: HashMap<String, i32, Xxh3Builder>,
    last: Option<(String, i32)>,
}

/// The key of a missing value.
pub const NULL_KEY: i32 = -1;

impl DictColumn {
    pub fn intern(&mut self, text: &str) -> i32 {
        if let Some((last, key)) = &self.last
            && last == text
        {
            return *key;
        }
        let key = match self.seen.get(text) {
            Some(key) => *key,
            None => {
                let key = self.seen.len() as i32;
                self.values.append_value(text);
                self.seen.insert(text.to_string(), key);
                key
            }
        };
        match &mut self.last {
            Some((last, k)) => {
                last.clear();
                last.push_str(text);
                *k = key;
            }
            None => self.last = Some((text.to_string(), key)),
        }
        key
    }

    pub fn push_key(&mut self, key: i32) {
        self.keys.push(key);
    }

    pub fn push(&mut self, text: &str) {
        let key = self.intern(text);
        self.keys.push(key);
    }

    pub fn push_opt(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.push(text),
            None => self.keys.push(NULL_KEY),
        }
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Forgets rows past `len`: undo for a row that turned out to be bad.
    pub fn truncate(&mut self, len: usize) {
        self.keys.truncate(len);
    }

    pub fn finish(&mut self) -> ArrayRef {
        let keys = std::mem::take(&mut self.keys);
        let nulls = keys.contains(&NULL_KEY).then(|| NullBuffer::from_iter(keys.iter().map(|k| *k != NULL_KEY)));
        let keys = match nulls {
            Some(nulls) => Int32Array::new(keys.iter().map(|k| (*k).max(0)).collect(), Some(nulls)),
            None => Int32Array::new(keys.into(), None),
        };
        // A column of nothing but nulls still needs a value to point at.
        if self.seen.is_empty() && !keys.is_empty() {
            self.values.append_value("");
        }
        self.seen.clear();
        self.last = None;
        let values = self.values.finish();
        Arc::new(DictionaryArray::<Int32Type>::try_new(keys, Arc::new(values)).expect("keys come from intern"))
    }
}

/// Fixed-size ids.
#[derive(Default)]
pub struct IdColumn<const N: usize> {
    bytes: Vec<u8>,
    valid: Vec<bool>,
}

impl<const N: usize> IdColumn<N> {
    pub fn push(&mut self, id: &[u8; N]) {
        self.bytes.extend_from_slice(id);
        self.valid.push(true);
    }

    pub fn push_opt(&mut self, id: Option<&[u8; N]>) {
        match id {
            Some(id) => self.push(id),
            None => {
                self.bytes.resize(self.bytes.len() + N, 0);
                self.valid.push(false);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.valid.len()
    }

    pub fn is_empty(&self) -> bool {
        self.valid.is_empty()
    }

    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len * N);
        self.valid.truncate(len);
    }

    pub fn finish(&mut self) -> ArrayRef {
        let bytes = Buffer::from_vec(std::mem::take(&mut self.bytes));
        let valid = std::mem::take(&mut self.valid);
        let nulls = valid.contains(&false).then(|| NullBuffer::from(valid));
        Arc::new(FixedSizeBinaryArray::new(N as i32, bytes, nulls))
    }
}

/// Text without nulls, as raw buffers: the parts of an attribute column.
#[derive(Default)]
pub struct TextBuffer {
    offsets: Vec<i32>,
    bytes: Vec<u8>,
}

impl TextBuffer {
    /// Writes one text. `write` must append valid UTF-8.
    fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.offsets.is_empty() {
            self.offsets.push(0);
        }
        write(&mut self.bytes);
        self.offsets.push(self.bytes.len() as i32);
    }

    fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.offsets.truncate(len + 1);
            self.bytes.truncate(self.offsets[len] as usize);
        }
    }

    fn finish(&mut self) -> StringArray {
        let mut offsets = std::mem::take(&mut self.offsets);
        if offsets.is_empty() {
            offsets.push(0);
        }
        let bytes = Buffer::from_vec(std::mem::take(&mut self.bytes));
        StringArray::new(OffsetBuffer::new(offsets.into()), bytes, None)
    }
}

/// Attributes: a row is any number of `put_*` followed by `end_row`.
#[derive(Default)]
pub struct AttrsColumn {
    offsets: Vec<i32>,
    keys: TextBuffer,
    values: TextBuffer,
}

impl AttrsColumn {
    pub fn put_with(&mut self, key: &str, write: impl FnOnce(&mut Vec<u8>)) {
        self.keys.push_with(|out| out.extend_from_slice(key.as_bytes()));
        self.values.push_with(write);
    }

    pub fn put(&mut self, key: &str, value: &Value) {
        self.put_with(key, |out| attrs::write_value(out, value));
    }

    pub fn put_str(&mut self, key: &str, value: &str) {
        self.put_with(key, |out| attrs::write_str(out, value));
    }

    pub fn put_int(&mut self, key: &str, value: i64) {
        self.put_with(key, |out| attrs::write_int(out, value));
    }

    pub fn put_double(&mut self, key: &str, value: f64) {
        self.put_with(key, |out| attrs::write_double(out, value));
    }

    pub fn put_bool(&mut self, key: &str, value: bool) {
        self.put_with(key, |out| attrs::write_bool(out, value));
    }

    /// A value that is JSON text already, written by [`crate::attrs`].
    pub fn put_json(&mut self, key: &str, json: &str) {
        self.put_with(key, |out| out.extend_from_slice(json.as_bytes()));
    }

    pub fn end_row(&mut self) {
        if self.offsets.is_empty() {
            self.offsets.push(0);
        }
        self.offsets.push(self.keys.len() as i32);
    }

    pub fn push(&mut self, entries: &[(&str, Value)]) {
        for (key, value) in entries {
            self.put(key, value);
        }
        self.end_row();
    }

    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets rows past `len`, and entries of a row that was not ended.
    pub fn truncate(&mut self, len: usize) {
        let entries = if self.offsets.is_empty() {
            0
        } else {
            self.offsets.truncate(len + 1);
            *self.offsets.last().unwrap() as usize
        };
        self.keys.truncate(entries);
        self.values.truncate(entries);
    }

    /// Entries put into the row that has not been ended yet.
    pub fn open_entries(&self) -> usize {
        self.keys.len() - self.offsets.last().map_or(0, |o| *o as usize)
    }

    pub fn finish(&mut self) -> ArrayRef {
        let DataType::Map(entries_field, _) = attrs_type() else { unreachable!() };
        let DataType::Struct(fields) = entries_field.data_type() else { unreachable!() };
        let entries =
            StructArray::new(fields.clone(), vec![Arc::new(self.keys.finish()), Arc::new(self.values.finish())], None);
        let mut offsets = std::mem::take(&mut self.offsets);
        if offsets.is_empty() {
            offsets.push(0);
        }
        Arc::new(MapArray::new(entries_field, OffsetBuffer::new(offsets.into()), entries, None, false))
    }
}

/// Span events: `push_event` any number of times (its attributes go into `attrs` first), then `end_row`.
#[derive(Default)]
pub struct EventsColumn {
    offsets: Vec<i32>,
    times: Vec<i64>,
    names: TextBuffer,
    pub attrs: AttrsColumn,
    dropped: Vec<u32>,
}

impl EventsColumn {
    /// Call after the event's attributes were put into `attrs` (without `end_row`).
    pub fn push_event(&mut self, time_ns: i64, name: &str, dropped: u32) {
        self.times.push(time_ns);
        self.names.push_with(|out| out.extend_from_slice(name.as_bytes()));
        self.attrs.end_row();
        self.dropped.push(dropped);
    }

    pub fn end_row(&mut self) {
        if self.offsets.is_empty() {
            self.offsets.push(0);
        }
        self.offsets.push(self.times.len() as i32);
    }

    pub fn truncate(&mut self, len: usize) {
        let events = truncate_list(&mut self.offsets, len);
        self.times.truncate(events);
        self.names.truncate(events);
        self.attrs.truncate(events);
        self.dropped.truncate(events);
    }

    pub fn finish(&mut self) -> ArrayRef {
        let times: ScalarBuffer<i64> = std::mem::take(&mut self.times).into();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(arrow::array::Int64Array::new(times, None)),
            Arc::new(self.names.finish()),
            self.attrs.finish(),
            Arc::new(UInt32Array::from(std::mem::take(&mut self.dropped))),
        ];
        finish_list(&mut self.offsets, StructArray::new(event_fields(), columns, None))
    }
}

/// Span links: `push_link` any number of times (its attributes go into `attrs` first), then `end_row`.
#[derive(Default)]
pub struct LinksColumn {
    offsets: Vec<i32>,
    trace_ids: IdColumn<16>,
    span_ids: IdColumn<8>,
    trace_states: TextBuffer,
    has_state: Vec<bool>,
    pub attrs: AttrsColumn,
    flags: Vec<u32>,
    dropped: Vec<u32>,
}

impl LinksColumn {
    /// Call after the link's attributes were put into `attrs` (without `end_row`).
    pub fn push_link(
        &mut self,
        trace_id: &TraceId,
        span_id: &SpanId,
        trace_state: Option<&str>,
        flags: u32,
        dropped: u32,
    ) {
        self.trace_ids.push(trace_id);
        self.span_ids.push(span_id);
        self.trace_states.push_with(|out| out.extend_from_slice(trace_state.unwrap_or("").as_bytes()));
        self.has_state.push(trace_state.is_some());
        self.attrs.end_row();
        self.flags.push(flags);
        self.dropped.push(dropped);
    }

    pub fn end_row(&mut self) {
        if self.offsets.is_empty() {
            self.offsets.push(0);
        }
        self.offsets.push(self.flags.len() as i32);
    }

    /// Forgets rows past `len`, and links of a row that was not ended.
    pub fn truncate(&mut self, len: usize) {
        let links = truncate_list(&mut self.offsets, len);
        self.trace_ids.truncate(links);
        self.span_ids.truncate(links);
        self.attrs.truncate(links);
        self.flags.truncate(links);
        self.dropped.truncate(links);
        self.trace_states.truncate(links);
        self.has_state.truncate(links);
    }

    pub fn finish(&mut self) -> ArrayRef {
        let has_state = std::mem::take(&mut self.has_state);
        let nulls = has_state.contains(&false).then(|| NullBuffer::from(has_state));
        let (offsets, bytes, _) = self.trace_states.finish().into_parts();
        let trace_states = StringArray::new(offsets, bytes, nulls);
        let columns: Vec<ArrayRef> = vec![
            self.trace_ids.finish(),
            self.span_ids.finish(),
            Arc::new(trace_states),
            self.attrs.finish(),
            Arc::new(UInt32Array::from(std::mem::take(&mut self.flags))),
            Arc::new(UInt32Array::from(std::mem::take(&mut self.dropped))),
        ];
        finish_list(&mut self.offsets, StructArray::new(link_fields(), columns, None))
    }
}

fn truncate_list(offsets: &mut Vec<i32>, len: usize) -> usize {
    offsets.truncate(len + 1);
    offsets.last().map_or(0, |o| *o as usize)
}

fn finish_list(offsets: &mut Vec<i32>, items: StructArray) -> ArrayRef {
    let mut offsets = std::mem::take(offsets);
    if offsets.is_empty() {
        offsets.push(0);
    }
    let field = Arc::new(Field::new("item", items.data_type().clone(), false));
    Arc::new(ListArray::new(field, OffsetBuffer::new(offsets.into()), Arc::new(items), None))
}

/// An event for [`SpansBuilder::push`].
#[derive(Clone, Debug)]
pub struct NewEvent<'a> {
    pub time_ns: i64,
    pub name: &'a str,
    pub attrs: &'a [(&'a str, Value)],
}

/// A link for [`SpansBuilder::push`].
#[derive(Clone, Debug)]
pub struct NewLink<'a> {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    pub attrs: &'a [(&'a str, Value)],
}

/// Named arguments of [`SpansBuilder::push`].
#[derive(Clone, Debug)]
pub struct NewSpan<'a> {
    pub run_id: &'a str,
    pub step: Option<i64>,
    pub trace_id: TraceId,
    pub span_id: SpanId,
    pub parent_span_id: Option<SpanId>,
    pub name: &'a str,
    pub kind: &'a str,
    pub service: &'a str,
    pub phase: Option<&'a str>,
    pub thread: Option<&'a str>,
    pub host: Option<&'a str>,
    pub pid: Option<i64>,
    pub tp_rank: Option<i32>,
    pub dp_rank: Option<i32>,
    pub pp_rank: Option<i32>,
    pub start_ns: i64,
    pub end_ns: Option<i64>,
    pub state: &'a str,
    pub status: &'a str,
    pub status_message: Option<&'a str>,
    pub sample_id: Option<&'a str>,
    pub group_id: Option<&'a str>,
    pub attempt: Option<i32>,
    pub request_id: Option<&'a str>,
    pub start_attrs: &'a [(&'a str, Value)],
    pub end_attrs: &'a [(&'a str, Value)],
    pub events: &'a [NewEvent<'a>],
    pub links: &'a [NewLink<'a>],
    /// JSON object.
    pub resource: &'a str,
    /// JSON object.
    pub scope: &'a str,
    pub original_trace_id: Option<&'a str>,
    pub original_span_id: Option<&'a str>,
    pub original_parent_span_id: Option<&'a str>,
}

impl Default for NewSpan<'_> {
    fn default() -> Self {
        NewSpan {
            run_id: "",
            step: None,
            trace_id: [0; 16],
            span_id: [0; 8],
            parent_span_id: None,
            name: "",
            kind: "internal",
            service: "",
            phase: None,
            thread: None,
            host: None,
            pid: None,
            tp_rank: None,
            dp_rank: None,
            pp_rank: None,
            start_ns: 0,
            end_ns: None,
            state: "closed",
            status: "unset",
            status_message: None,
            sample_id: None,
            group_id: None,
            attempt: None,
            request_id: None,
            start_attrs: &[],
            end_attrs: &[],
            events: &[],
            links: &[],
            resource: "{}",
            scope: "{}",
            original_trace_id: None,
            original_span_id: None,
            original_parent_span_id: None,
        }
    }
}

/// The columns of `spans`, in the order of the schema. Public, so that the OTLP decoder can write them one by one.
#[derive(Default)]
pub struct SpansBuilder {
    pub run_id: DictColumn,
    pub step: Int64Builder,
    pub trace_id: IdColumn<16>,
    pub span_id: IdColumn<8>,
    pub parent_span_id: IdColumn<8>,
    pub name: DictColumn,
    pub kind: DictColumn,
    pub service: DictColumn,
    pub phase: DictColumn,
    pub thread: DictColumn,
    pub host: DictColumn,
    pub pid: Int64Builder,
    pub tp_rank: Int32Builder,
    pub dp_rank: Int32Builder,
    pub pp_rank: Int32Builder,
    pub start_ns: Vec<i64>,
    pub end_ns: Int64Builder,
    pub state: DictColumn,
    pub status: DictColumn,
    pub status_message: DictColumn,
    pub sample_id: DictColumn,
    pub group_id: DictColumn,
    pub attempt: Int32Builder,
    pub request_id: DictColumn,
    pub start_attrs: AttrsColumn,
    pub end_attrs: AttrsColumn,
    pub events: EventsColumn,
    pub links: LinksColumn,
    pub resource: DictColumn,
    pub scope: DictColumn,
    pub trace_state: DictColumn,
    pub flags: Vec<u32>,
    pub dropped_attrs: Vec<u32>,
    pub dropped_events: Vec<u32>,
    pub dropped_links: Vec<u32>,
    pub original_trace_id: StringBuilder,
    pub original_span_id: StringBuilder,
    pub original_parent_span_id: StringBuilder,
}

impl SpansBuilder {
    pub fn len(&self) -> usize {
        self.start_ns.len()
    }

    pub fn is_empty(&self) -> bool {
        self.start_ns.is_empty()
    }

    pub fn push(&mut self, s: &NewSpan) {
        self.run_id.push(s.run_id);
        self.step.append_option(s.step);
        self.trace_id.push(&s.trace_id);
        self.span_id.push(&s.span_id);
        self.parent_span_id.push_opt(s.parent_span_id.as_ref());
        self.name.push(s.name);
        self.kind.push(s.kind);
        self.service.push(s.service);
        self.phase.push_opt(s.phase);
        self.thread.push_opt(s.thread);
        self.host.push_opt(s.host);
        self.pid.append_option(s.pid);
        self.tp_rank.append_option(s.tp_rank);
        self.dp_rank.append_option(s.dp_rank);
        self.pp_rank.append_option(s.pp_rank);
        self.start_ns.push(s.start_ns);
        self.end_ns.append_option(s.end_ns);
        self.state.push(s.state);
        self.status.push(s.status);
        self.status_message.push_opt(s.status_message);
        self.sample_id.push_opt(s.sample_id);
        self.group_id.push_opt(s.group_id);
        self.attempt.append_option(s.attempt);
        self.request_id.push_opt(s.request_id);
        self.start_attrs.push(s.start_attrs);
        self.end_attrs.push(s.end_attrs);
        for e in s.events {
            for (key, value) in e.attrs {
                self.events.attrs.put(key, value);
            }
            self.events.push_event(e.time_ns, e.name, 0);
        }
        self.events.end_row();
        for l in s.links {
            for (key, value) in l.attrs {
                self.links.attrs.put(key, value);
            }
            self.links.push_link(&l.trace_id, &l.span_id, None, 0, 0);
        }
        self.links.end_row();
        self.resource.push(s.resource);
        self.scope.push(s.scope);
        self.trace_state.push_opt(None);
        self.flags.push(0);
        self.dropped_attrs.push(0);
        self.dropped_events.push(0);
        self.dropped_links.push(0);
        self.original_trace_id.append_option(s.original_trace_id);
        self.original_span_id.append_option(s.original_span_id);
        self.original_parent_span_id.append_option(s.original_parent_span_id);
    }

    pub fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let start: ScalarBuffer<i64> = std::mem::take(&mut self.start_ns).into();
        let u32s = |v: &mut Vec<u32>| Arc::new(UInt32Array::from(std::mem::take(v))) as ArrayRef;
        let columns: Vec<ArrayRef> = vec![
            self.run_id.finish(),
            Arc::new(self.step.finish()),
            self.trace_id.finish(),
            self.span_id.finish(),
            self.parent_span_id.finish(),
            self.name.finish(),
            self.kind.finish(),
            self.service.finish(),
            self.phase.finish(),
            self.thread.finish(),
            self.host.finish(),
            Arc::new(self.pid.finish()),
            Arc::new(self.tp_rank.finish()),
            Arc::new(self.dp_rank.finish()),
            Arc::new(self.pp_rank.finish()),
            Arc::new(arrow::array::Int64Array::new(start, None)),
            Arc::new(self.end_ns.finish()),
            self.state.finish(),
            self.status.finish(),
            self.status_message.finish(),
            self.sample_id.finish(),
            self.group_id.finish(),
            Arc::new(self.attempt.finish()),
            self.request_id.finish(),
            self.start_attrs.finish(),
            self.end_attrs.finish(),
            self.events.finish(),
            self.links.finish(),
            self.resource.finish(),
            self.scope.finish(),
            self.trace_state.finish(),
            u32s(&mut self.flags),
            u32s(&mut self.dropped_attrs),
            u32s(&mut self.dropped_events),
            u32s(&mut self.dropped_links),
            Arc::new(self.original_trace_id.finish()),
            Arc::new(self.original_span_id.finish()),
            Arc::new(self.original_parent_span_id.finish()),
        ];
        RecordBatch::try_new(Table::Spans.schema(), columns)
    }
}

/// Declares a row struct and its builder for a table of plain columns, in the order of the schema.
macro_rules! plain_table {
    ($table:ident, $row:ident, $builder:ident, { $($field:ident : $kind:ident),+ $(,)? }) => {
        #[doc = concat!("Named arguments of [`", stringify!($builder), "::push`].")]
        #[derive(Clone, Debug, Default)]
        pub struct $row<'a> { $(pub $field: plain_table!(@arg $kind 'a)),+ }

        #[derive(Default)]
        pub struct $builder { $($field: plain_table!(@builder $kind)),+ }

        impl $builder {
            pub fn push(&mut self, row: &$row) {
                $(plain_table!(@push $kind self.$field, row.$field);)+
            }

            pub fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
                RecordBatch::try_new(Table::$table.schema(), vec![$(plain_table!(@finish $kind self.$field)),+])
            }
        }
    };
    (@arg dict $l:lifetime) => { &$l str };
    (@arg dict_opt $l:lifetime) => { Option<&$l str> };
    (@arg text $l:lifetime) => { &$l str };
    (@arg text_opt $l:lifetime) => { Option<&$l str> };
    (@arg int $l:lifetime) => { i64 };
    (@arg int_opt $l:lifetime) => { Option<i64> };
    (@arg int32_opt $l:lifetime) => { Option<i32> };
    (@arg float $l:lifetime) => { f64 };
    (@arg float_opt $l:lifetime) => { Option<f64> };
    (@arg bool_opt $l:lifetime) => { Option<bool> };
    (@arg trace_opt $l:lifetime) => { Option<TraceId> };
    (@arg span_opt $l:lifetime) => { Option<SpanId> };
    (@builder dict) => { DictColumn };
    (@builder dict_opt) => { DictColumn };
    (@builder text) => { StringBuilder };
    (@builder text_opt) => { StringBuilder };
    (@builder int) => { Int64Builder };
    (@builder int_opt) => { Int64Builder };
    (@builder int32_opt) => { Int32Builder };
    (@builder float) => { Float64Builder };
    (@builder float_opt) => { Float64Builder };
    (@builder bool_opt) => { BooleanBuilder };
    (@builder trace_opt) => { IdColumn<16> };
    (@builder span_opt) => { IdColumn<8> };
    (@push dict $b:expr, $v:expr) => { $b.push($v) };
    (@push dict_opt $b:expr, $v:expr) => { $b.push_opt($v) };
    (@push text $b:expr, $v:expr) => { $b.append_value($v) };
    (@push text_opt $b:expr, $v:expr) => { $b.append_option($v) };
    (@push int $b:expr, $v:expr) => { $b.append_value($v) };
    (@push int_opt $b:expr, $v:expr) => { $b.append_option($v) };
    (@push int32_opt $b:expr, $v:expr) => { $b.append_option($v) };
    (@push float $b:expr, $v:expr) => { $b.append_value($v) };
    (@push float_opt $b:expr, $v:expr) => { $b.append_option($v) };
    (@push bool_opt $b:expr, $v:expr) => { $b.append_option($v) };
    (@push trace_opt $b:expr, $v:expr) => { $b.push_opt($v.as_ref()) };
    (@push span_opt $b:expr, $v:expr) => { $b.push_opt($v.as_ref()) };
    (@finish dict $b:expr) => { $b.finish() };
    (@finish dict_opt $b:expr) => { $b.finish() };
    (@finish trace_opt $b:expr) => { $b.finish() };
    (@finish span_opt $b:expr) => { $b.finish() };
    (@finish $other:ident $b:expr) => { Arc::new($b.finish()) as ArrayRef };
}

plain_table!(Runs, NewRun, RunsBuilder, {
    run_id: dict, project: dict_opt, name: text_opt, framework: dict_opt, config: text_opt, tags: text_opt,
    started_ns: int, ended_ns: int_opt, status: dict_opt, updated_ns: int,
});

plain_table!(Samples, NewSample, SamplesBuilder, {
    run_id: dict, step: int_opt, sample_id: dict, split: dict, group_id: dict_opt, trace_id: trace_opt,
    attempt: int32_opt, status: dict_opt, reward: float_opt, reward_json: text_opt, label: text_opt,
    source: dict_opt, start_ns: int_opt, end_ns: int_opt, prompt_tokens: int_opt, response_tokens: int_opt,
    total_tokens: int_opt, response_length: int_opt, turns: int32_opt, tool_calls: int32_opt,
    weight_versions: text_opt, cached_tokens: int_opt, cache_total_tokens: int_opt, spec_accepted: int_opt,
    spec_drafted: int_opt, spec_verifies: int_opt, non_generation_s: float_opt, removed: bool_opt,
    metadata: text_opt, file: dict_opt,
});

plain_table!(Conversations, NewConversation, ConversationsBuilder, {
    id: text, run_id: dict, step: int_opt, key: dict_opt, index: int_opt, sample_id: dict_opt, group_id: dict_opt,
    trace_id: trace_opt, span_id: span_opt, messages: text, metadata: text_opt, reward: float_opt,
    status: dict_opt, message_count: int, turn_count: int, tool_call_count: int, media_count: int,
    char_count: int, logged_ns: int,
});

plain_table!(Metrics, NewMetric, MetricsBuilder, {
    run_id: dict, step: int_opt, time_ns: int, name: dict, value: float, source: dict_opt,
});

plain_table!(Series, NewPoint, SeriesBuilder, {
    run_id: dict, target: dict, name: dict, labels: dict, kind: dict, time_ns: int, value: float,
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pushed_span_fits_the_schema() {
        let mut b = SpansBuilder::default();
        b.push(&NewSpan {
            run_id: "r",
            name: "a",
            start_attrs: &[("n", Value::Int(3))],
            events: &[NewEvent { time_ns: 5, name: "e", attrs: &[("k", "v".into())] }],
            links: &[NewLink { trace_id: [1; 16], span_id: [2; 8], attrs: &[] }],
            ..NewSpan::default()
        });
        b.push(&NewSpan { run_id: "r", name: "b", phase: Some("train"), ..NewSpan::default() });
        let batch = b.finish().unwrap();
        assert_eq!(batch.num_rows(), 2);
        assert_eq!(batch.column_by_name("phase").unwrap().null_count(), 1);
        assert_eq!(b.finish().unwrap().num_rows(), 0);
    }

    #[test]
    fn every_table_builds_an_empty_batch_and_a_row() {
        let mut samples = SamplesBuilder::default();
        samples.push(&NewSample { run_id: "r", sample_id: "0", split: "train", ..NewSample::default() });
        assert_eq!(samples.finish().unwrap().num_rows(), 1);
        assert_eq!(RunsBuilder::default().finish().unwrap().num_rows(), 0);
        assert_eq!(ConversationsBuilder::default().finish().unwrap().num_rows(), 0);
        assert_eq!(MetricsBuilder::default().finish().unwrap().num_rows(), 0);
        assert_eq!(SeriesBuilder::default().finish().unwrap().num_rows(), 0);
    }

    #[test]
    fn a_bad_row_can_be_undone() {
        let mut column = AttrsColumn::default();
        column.put_int("a", 1);
        column.end_row();
        column.put_int("b", 2);
        assert_eq!(column.open_entries(), 1);
        column.truncate(1);
        column.put_str("c", "x");
        column.end_row();
        let array = column.finish();
        let map = array.as_any().downcast_ref::<MapArray>().unwrap();
        assert_eq!(map.value_length(0), 1);
        assert_eq!(map.value_length(1), 1);
        assert_eq!(map.keys().len(), 2);
    }
}
