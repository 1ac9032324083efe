//! Rows of `spans`, by column and type, for the formats that walk them one by one. Batches of `spans` are made by our own
//! builders: a batch of another shape is a mistake in the program, not in the data.

use std::ops::Range;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeBinaryArray, Int32Array, Int64Array, ListArray, MapArray, RecordBatch,
    StringArray, StructArray,
};
use arrow::datatypes::{Int32Type, Int64Type};

/// A dictionary column of text.
pub struct Text<'a> {
    keys: &'a Int32Array,
    values: &'a StringArray,
}

impl<'a> Text<'a> {
    pub fn get(&self, row: usize) -> Option<&'a str> {
        self.keys.is_valid(row).then(|| self.values.value(self.keys.value(row) as usize))
    }
}

pub struct Spans<'a> {
    pub rows: usize,
    pub run: Text<'a>,
    pub step: &'a Int64Array,
    pub trace_id: &'a FixedSizeBinaryArray,
    pub span_id: &'a FixedSizeBinaryArray,
    pub parent: &'a FixedSizeBinaryArray,
    pub name: Text<'a>,
    pub kind: Text<'a>,
    pub service: Text<'a>,
    pub phase: Text<'a>,
    pub thread: Text<'a>,
    pub host: Text<'a>,
    pub pid: &'a Int64Array,
    pub tp: &'a Int32Array,
    pub dp: &'a Int32Array,
    pub pp: &'a Int32Array,
    pub start: &'a Int64Array,
    pub end: &'a Int64Array,
    pub state: Text<'a>,
    pub status: Text<'a>,
    pub status_message: Text<'a>,
    pub sample: Text<'a>,
    pub group: Text<'a>,
    pub attempt: &'a Int32Array,
    pub start_attrs: Attrs<'a>,
    pub end_attrs: Attrs<'a>,
    pub events: Events<'a>,
    pub links: Links<'a>,
    pub resource: Text<'a>,
    pub scope: Text<'a>,
    pub trace_state: Text<'a>,
}

impl<'a> Spans<'a> {
    pub fn of(batch: &'a RecordBatch) -> Self {
        let column = |name: &str| column(batch, name);
        let text = |name| text(batch, name);
        let ints = |name| column(name).as_primitive::<Int64Type>();
        let small = |name| column(name).as_primitive::<Int32Type>();
        let ids = |name| column(name).as_fixed_size_binary();
        Spans {
            rows: batch.num_rows(),
            run: text("run_id"),
            step: ints("step"),
            trace_id: ids("trace_id"),
            span_id: ids("span_id"),
            parent: ids("parent_span_id"),
            name: text("name"),
            kind: text("kind"),
            service: text("service"),
            phase: text("phase"),
            thread: text("thread"),
            host: text("host"),
            pid: ints("pid"),
            tp: small("tp_rank"),
            dp: small("dp_rank"),
            pp: small("pp_rank"),
            start: ints("start_ns"),
            end: ints("end_ns"),
            state: text("state"),
            status: text("status"),
            status_message: text("status_message"),
            sample: text("sample_id"),
            group: text("group_id"),
            attempt: small("attempt"),
            start_attrs: Attrs::new(column("start_attrs")),
            end_attrs: Attrs::new(column("end_attrs")),
            events: Events::new(column("events").as_list()),
            links: Links::new(column("links").as_list()),
            resource: text("resource"),
            scope: text("scope"),
            trace_state: text("trace_state"),
        }
    }

    pub fn end_of(&self, row: usize) -> Option<i64> {
        self.end.is_valid(row).then(|| self.end.value(row))
    }

    pub fn parent_of(&self, row: usize) -> Option<&'a [u8]> {
        self.parent.is_valid(row).then(|| self.parent.value(row))
    }

    /// Every attribute of a row: first those of the start, then the others.
    pub fn attrs(&self, row: usize) -> impl Iterator<Item = (&'a str, &'a str)> + '_ {
        self.start_attrs.row(row).chain(self.end_attrs.row(row))
    }
}

pub fn column<'a>(batch: &'a RecordBatch, name: &str) -> &'a ArrayRef {
    batch.column_by_name(name).unwrap_or_else(|| panic!("the batch has a column {name}"))
}

pub fn text<'a>(batch: &'a RecordBatch, name: &str) -> Text<'a> {
    let array = column(batch, name).as_dictionary::<Int32Type>();
    Text { keys: array.keys(), values: array.values().as_string() }
}

pub fn int(array: &Int64Array, row: usize) -> Option<i64> {
    array.is_valid(row).then(|| array.value(row))
}

pub fn small(array: &Int32Array, row: usize) -> Option<i32> {
    array.is_valid(row).then(|| array.value(row))
}

pub struct Attrs<'a> {
    map: &'a MapArray,
    keys: &'a StringArray,
    values: &'a StringArray,
}

impl<'a> Attrs<'a> {
    fn new(array: &'a ArrayRef) -> Self {
        let map = array.as_map();
        Attrs { map, keys: map.keys().as_string(), values: map.values().as_string() }
    }

    /// Keys, and values as JSON text.
    pub fn row(&self, row: usize) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let offsets = self.map.value_offsets();
        let (keys, values) = (self.keys, self.values);
        (offsets[row] as usize..offsets[row + 1] as usize).map(move |i| (keys.value(i), values.value(i)))
    }
}

fn field<'a>(items: &'a StructArray, name: &str) -> &'a ArrayRef {
    items.column_by_name(name).unwrap_or_else(|| panic!("events and links have a field {name}"))
}

pub struct Events<'a> {
    list: &'a ListArray,
    pub time: &'a Int64Array,
    pub name: &'a StringArray,
    pub attrs: Attrs<'a>,
}

impl<'a> Events<'a> {
    fn new(list: &'a ListArray) -> Self {
        let items = list.values().as_struct();
        Events {
            list,
            time: field(items, "time_ns").as_primitive(),
            name: field(items, "name").as_string(),
            attrs: Attrs::new(field(items, "attrs")),
        }
    }

    /// Where the events of a row are in the fields.
    pub fn of(&self, row: usize) -> Range<usize> {
        let offsets = self.list.value_offsets();
        offsets[row] as usize..offsets[row + 1] as usize
    }
}

pub struct Links<'a> {
    list: &'a ListArray,
    pub trace_id: &'a FixedSizeBinaryArray,
    pub span_id: &'a FixedSizeBinaryArray,
    pub attrs: Attrs<'a>,
}

impl<'a> Links<'a> {
    fn new(list: &'a ListArray) -> Self {
        let items = list.values().as_struct();
        Links {
            list,
            trace_id: field(items, "trace_id").as_fixed_size_binary(),
            span_id: field(items, "span_id").as_fixed_size_binary(),
            attrs: Attrs::new(field(items, "attrs")),
        }
    }

    /// Where the links of a row are in the fields.
    pub fn of(&self, row: usize) -> Range<usize> {
        let offsets = self.list.value_offsets();
        offsets[row] as usize..offsets[row + 1] as usize
    }
}
