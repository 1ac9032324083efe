//! The store as its users see it: append, look, close, damage, open again.

mod damage;
mod faults;
mod lake;
mod once;
mod power;
mod rows;
mod sharing;
mod simulation;
mod upkeep;

use arrow::array::cast::AsArray;
use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{Int32Type, Int64Type};
use rollscope_model::Table;
use rollscope_model::attrs::Value;
use rollscope_model::build::{NewSpan, SpansBuilder};
use rollscope_store::{SnapshotSource, Store, StoreOptions};

pub const T0: i64 = 1_790_000_000_000_000_000;

/// `n` closed spans of run `run`, numbered from `first`, a trace for every ten.
pub fn spans(run: &str, first: u64, n: u64) -> RecordBatch {
    spans_with(run, first, n, |_| {})
}

pub fn spans_with(run: &str, first: u64, n: u64, change: impl Fn(&mut NewSpan)) -> RecordBatch {
    let mut b = SpansBuilder::default();
    for i in first..first + n {
        let start = T0 + i as i64 * 1_000_000;
        let attrs = [("n", Value::Int(i as i64)), ("text", Value::Str(format!("value {i}")))];
        let mut span = NewSpan {
            run_id: run,
            step: Some((i / 100) as i64),
            trace_id: u128::from(i / 10 + 1).to_be_bytes(),
            span_id: (i + 1).to_be_bytes(),
            name: "work",
            service: "test",
            start_ns: start,
            end_ns: Some(start + 500_000),
            end_attrs: &attrs,
            ..NewSpan::default()
        };
        change(&mut span);
        b.push(&span);
    }
    b.finish().unwrap()
}

pub fn open_spans(run: &str, first: u64, n: u64) -> RecordBatch {
    spans_with(run, first, n, |s| {
        s.end_ns = None;
        s.state = "open";
    })
}

/// Every span a reader sees, as (run, number, state), sorted: segments without replaced rows, and the tail.
pub fn seen(source: &dyn SnapshotSource) -> Vec<(String, u64, String)> {
    let mut rows: Vec<_> = batches(source, Table::Spans).iter().flat_map(numbers).collect();
    rows.sort();
    rows
}

/// Everything a reader sees of a table.
pub fn batches(source: &dyn SnapshotSource, table: Table) -> Vec<RecordBatch> {
    let snapshot = source.snapshot();
    let rows = &snapshot.tables[&table];
    let mut all = Vec::new();
    for batch in rows.segments.iter().flat_map(|segment| read(&snapshot, &segment.path)) {
        let live = rollscope_store::identity_hashes(table, &batch);
        let live: arrow::array::BooleanArray = live.iter().map(|h| Some(!rows.replaced.contains(h))).collect();
        all.push(arrow::compute::filter_record_batch(&batch, &live).unwrap());
    }
    all.extend(rows.tail.iter().cloned());
    all
}

fn read(snapshot: &rollscope_store::Snapshot, path: &str) -> Vec<RecordBatch> {
    read_file(snapshot.object_store.clone(), path)
}

fn read_file(store: std::sync::Arc<dyn object_store::ObjectStore>, path: &str) -> Vec<RecordBatch> {
    use object_store::ObjectStoreExt;
    let path = object_store::path::Path::from(path);
    let data = std::thread::spawn(move || {
        let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
        rt.block_on(async { store.get(&path).await.unwrap().bytes().await.unwrap() })
    })
    .join()
    .unwrap();
    let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(data).unwrap().build().unwrap();
    reader.map(Result::unwrap).collect()
}

fn numbers(batch: &RecordBatch) -> Vec<(String, u64, String)> {
    let text = |name: &str, row: usize| {
        let dict = batch.column_by_name(name).unwrap().as_dictionary::<Int32Type>();
        dict.values().as_string::<i32>().value(dict.keys().value(row) as usize).to_string()
    };
    let ids = batch.column_by_name("span_id").unwrap().as_fixed_size_binary();
    let starts = batch.column_by_name("start_ns").unwrap().as_primitive::<Int64Type>();
    (0..batch.num_rows())
        .map(|row| {
            let number = u64::from_be_bytes(ids.value(row).try_into().unwrap()) - 1;
            assert!(starts.is_valid(row));
            (text("run_id", row), number, text("state", row))
        })
        .collect()
}

pub fn expected(run: &str, numbers: std::ops::Range<u64>) -> Vec<(String, u64, String)> {
    numbers.map(|n| (run.to_string(), n, "closed".to_string())).collect()
}

pub async fn open(dir: &std::path::Path) -> Store {
    open_with(dir, |_| {}).await
}

pub async fn open_with(dir: &std::path::Path, change: impl Fn(&mut StoreOptions)) -> Store {
    let mut options = StoreOptions::at(dir);
    change(&mut options);
    Store::open(options).await.unwrap()
}
