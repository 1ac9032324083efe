//! Columns of each type, as they are filled.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, DictionaryArray, FixedSizeBinaryArray, Int32Array, Int64Array, ListArray, MapArray, StringArray,
    StringBuilder, StructArray, UInt32Array,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Int32Type};
use xxhash_rust::xxh3::Xxh3Builder;

use crate::attrs::{self, Value};
use crate::ids::{SpanId, TraceId};
use crate::tables::{attrs_type, event_fields, link_fields};

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
pub(super) struct TextBuffer {
    offsets: Vec<i32>,
    bytes: Vec<u8>,
}

impl TextBuffer {
    /// Writes one text. `write` must append valid UTF-8.
    pub(super) fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.offsets.is_empty() {
            self.offsets.push(0);
        }
        write(&mut self.bytes);
        self.offsets.push(self.bytes.len() as i32);
    }

    pub(super) fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.offsets.truncate(len + 1);
            self.bytes.truncate(self.offsets[len] as usize);
        }
    }

    pub(super) fn finish(&mut self) -> StringArray {
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
            Arc::new(Int64Array::new(times, None)),
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

pub(super) fn finish_list(offsets: &mut Vec<i32>, items: StructArray) -> ArrayRef {
    let mut offsets = std::mem::take(offsets);
    if offsets.is_empty() {
        offsets.push(0);
    }
    let field = Arc::new(Field::new("item", items.data_type().clone(), false));
    Arc::new(ListArray::new(field, OffsetBuffer::new(offsets.into()), Arc::new(items), None))
}
