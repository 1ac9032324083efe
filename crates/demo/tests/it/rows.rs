//! Reads generated batches row by row, for the tests.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int32Type, Int64Type};
use rollscope_demo::{DemoOptions, Generator, Plant, StepData};
use rollscope_model::Table;

pub fn small() -> DemoOptions {
    DemoOptions { steps: 4, samples: 32, planted: Vec::new(), ..DemoOptions::default() }
}

pub fn with(plant: Plant) -> DemoOptions {
    DemoOptions { planted: vec![plant], samples: 64, ..small() }
}

pub fn step(options: DemoOptions, step: u64) -> StepData {
    Generator::new(options).step(step).unwrap()
}

pub fn text(batch: &RecordBatch, column: &str, row: usize) -> Option<String> {
    let array = batch.column_by_name(column).unwrap_or_else(|| panic!("no column {column}"));
    if array.is_null(row) {
        return None;
    }
    Some(match array.as_dictionary_opt::<Int32Type>() {
        Some(dict) => dict.values().as_string::<i32>().value(dict.key(row)?).to_string(),
        None => array.as_string::<i32>().value(row).to_string(),
    })
}

pub fn int(batch: &RecordBatch, column: &str, row: usize) -> Option<i64> {
    let array = batch.column_by_name(column).unwrap().as_primitive::<Int64Type>();
    array.is_valid(row).then(|| array.value(row))
}

pub fn float(batch: &RecordBatch, column: &str, row: usize) -> Option<f64> {
    let array = batch.column_by_name(column).unwrap().as_primitive::<Float64Type>();
    array.is_valid(row).then(|| array.value(row))
}

pub fn id(batch: &RecordBatch, column: &str, row: usize) -> Option<Vec<u8>> {
    let array = batch.column_by_name(column).unwrap().as_fixed_size_binary();
    array.is_valid(row).then(|| array.value(row).to_vec())
}

/// A value of an attribute column, as JSON text.
pub fn attr(batch: &RecordBatch, column: &str, row: usize, key: &str) -> Option<String> {
    let entries = batch.column_by_name(column).unwrap().as_map().value(row);
    let (keys, values) = (entries.column(0).as_string::<i32>(), entries.column(1).as_string::<i32>());
    (0..keys.len()).find(|i| keys.value(*i) == key).map(|i| values.value(i).to_string())
}

#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub row: usize,
    pub trace: Vec<u8>,
    pub id: Vec<u8>,
    pub parent: Option<Vec<u8>>,
    pub name: String,
    pub service: String,
    pub phase: Option<String>,
    pub state: String,
    pub status: String,
    pub start: i64,
    pub end: Option<i64>,
    pub sample: Option<String>,
    pub request: Option<String>,
    pub lane: Option<(String, String, i64)>,
    pub links: Vec<(Vec<u8>, Vec<u8>)>,
}

pub fn spans(data: &StepData) -> Vec<Span> {
    read_spans(data.batch(Table::Spans).unwrap())
}

pub fn read_spans(batch: &RecordBatch) -> Vec<Span> {
    (0..batch.num_rows())
        .map(|row| {
            let links = batch.column_by_name("links").unwrap().as_list::<i32>().value(row);
            let links = links.as_struct();
            let part =
                |name: &str, i: usize| links.column_by_name(name).unwrap().as_fixed_size_binary().value(i).to_vec();
            Span {
                row,
                trace: id(batch, "trace_id", row).unwrap(),
                id: id(batch, "span_id", row).unwrap(),
                parent: id(batch, "parent_span_id", row),
                name: text(batch, "name", row).unwrap(),
                service: text(batch, "service", row).unwrap(),
                phase: text(batch, "phase", row),
                state: text(batch, "state", row).unwrap(),
                status: text(batch, "status", row).unwrap(),
                start: int(batch, "start_ns", row).unwrap(),
                end: int(batch, "end_ns", row),
                request: text(batch, "request_id", row),
                sample: text(batch, "sample_id", row),
                lane: text(batch, "thread", row)
                    .map(|thread| (text(batch, "host", row).unwrap(), thread, int(batch, "pid", row).unwrap())),
                links: (0..links.len()).map(|i| (part("trace_id", i), part("span_id", i))).collect(),
            }
        })
        .collect()
}

/// Logged, or to be worked out.
pub fn metric(data: &StepData, name: &str) -> Option<f64> {
    if let Some(expected) = data.expected.get(name) {
        return Some(*expected);
    }
    let batch = data.batch(Table::Metrics).unwrap();
    (0..batch.num_rows())
        .find(|r| text(batch, "name", *r).as_deref() == Some(name))
        .and_then(|r| float(batch, "value", r))
}

pub fn seconds(data: &StepData) -> f64 {
    (data.end_ns - data.start_ns) as f64 / 1e9
}
