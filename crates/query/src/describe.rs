//! What is there, without reading it: columns and their meanings, sizes of tables, the list of runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use rollscope_model::build::{NewRun, RunsBuilder};
use rollscope_model::read::{Ints, Text, column};
use rollscope_model::{Table, tables};
use rollscope_store::{Part, Snapshot, TableSnapshot};
use rollscope_tokenizer::Tokenizers;
use serde::Serialize;

/// A column as the SQL page shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ColumnInfo {
    pub table: &'static str,
    pub name: String,
    #[serde(rename = "type")]
    pub data_type: String,
    pub nullable: bool,
    pub doc: String,
}

/// One table at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableStats {
    pub table: &'static str,
    pub segments: usize,
    /// Rows in segments and tail. Rows of segments that the tail replaces count once.
    pub rows: u64,
    pub tail_rows: u64,
    /// Bytes of the segments.
    pub bytes: u64,
    /// First and last time, if there are rows.
    pub first_ns: Option<i64>,
    pub last_ns: Option<i64>,
}

/// The columns of a table as users see it.
pub fn visible_schema(table: Table) -> SchemaRef {
    let schema = crate::tables::schema(table);
    let stored = Arc::new(datafusion::datasource::empty::EmptyTable::new(schema.clone()));
    crate::tables::visible(table, stored, &Tokenizers::default()).map_or(schema, |view| view.schema())
}

pub fn columns() -> Vec<ColumnInfo> {
    let mut out = Vec::new();
    for table in Table::ALL {
        out.extend(visible_schema(table).fields().iter().map(|field| ColumnInfo {
            table: table.name(),
            name: field.name().clone(),
            data_type: type_name(field.data_type()),
            nullable: field.is_nullable(),
            doc: tables::doc(field).to_string(),
        }));
    }
    out
}

/// A type in SQL terms.
fn type_name(ty: &DataType) -> String {
    match ty {
        DataType::Utf8 => "text".to_string(),
        DataType::Dictionary(_, value) => type_name(value),
        DataType::Int32 | DataType::Int64 | DataType::UInt32 => "integer".to_string(),
        DataType::Float64 => "double".to_string(),
        DataType::Boolean => "boolean".to_string(),
        DataType::FixedSizeBinary(n) => format!("id ({n} bytes, as hex text)"),
        DataType::Map(_, _) => "attributes".to_string(),
        DataType::List(item) => format!("list of {}", type_name(item.data_type())),
        DataType::Struct(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|f| format!("{} {}", f.name(), type_name(f.data_type()))).collect();
            format!("({})", fields.join(", "))
        }
        other => other.to_string(),
    }
}

/// First and last time, and a count.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    rows: u64,
    range: Option<(i64, i64)>,
}

impl Extent {
    fn widen(&mut self, first: i64, last: i64) {
        self.range = Some(self.range.map_or((first, last), |(a, b)| (a.min(first), b.max(last))));
    }
}

/// Rows and range of one table by run.
fn extents(table: Table, snapshot: &Snapshot) -> BTreeMap<String, Extent> {
    let mut runs: BTreeMap<String, Extent> = BTreeMap::new();
    let mut add = |part: Part<&str>| {
        let extent = runs.entry(part.run_id.to_string()).or_default();
        extent.rows += part.rows;
        // Samples may come without times: then there are zeros.
        if (part.min_time, part.max_time) != (0, 0) {
            extent.widen(part.min_time, part.max_time);
        }
    };
    let Some(rows) = snapshot.tables.get(&table) else { return runs };
    rows.segments.iter().flat_map(|segment| segment.parts()).for_each(&mut add);
    snapshot.tail_contents(table).flat_map(|batch| &batch.parts).for_each(|part| add(part.borrowed()));
    // A row in the tail that replaces one in a segment has been counted there.
    for (run, replaced) in rows.replaced_of.iter() {
        if let Some(extent) = runs.get_mut(run) {
            extent.rows = extent.rows.saturating_sub(*replaced);
        }
    }
    runs
}

/// Rows of one run in a table, and the time of its newest, if there are times.
pub fn extent(table: Table, snapshot: &Snapshot, run: &str) -> (u64, Option<i64>) {
    let mut all = Extent::default();
    let segments = snapshot.tables.get(&table).into_iter().flat_map(|rows| &rows.segments);
    let in_tail = snapshot.tail_contents(table).flat_map(|batch| &batch.parts).map(|part| part.borrowed());
    for part in segments.filter_map(|segment| segment.part(run)).chain(in_tail.filter(|part| part.run_id == run)) {
        all.rows += part.rows;
        all.widen(part.min_time, part.max_time);
    }
    (all.rows, all.range.map(|(_, last)| last).filter(|last| *last != 0))
}

pub fn table_stats(snapshot: &Snapshot) -> Vec<TableStats> {
    let empty = TableSnapshot::default();
    Table::ALL
        .into_iter()
        .map(|table| {
            let rows = snapshot.tables.get(&table).unwrap_or(&empty);
            let mut all = Extent::default();
            for extent in extents(table, snapshot).into_values() {
                all.rows += extent.rows;
                if let Some((first, last)) = extent.range {
                    all.widen(first, last);
                }
            }
            TableStats {
                table: table.name(),
                segments: rows.segments.len(),
                rows: all.rows,
                tail_rows: rows.tail.iter().map(|b| b.num_rows() as u64).sum(),
                bytes: rows.segments.iter().map(|s| s.bytes).sum(),
                first_ns: all.range.map(|r| r.0),
                last_ns: all.range.map(|r| r.1),
            }
        })
        .collect()
}

/// The rows of `runs` with what the manifest knows about each.
pub fn runs(snapshot: &Snapshot, rows: &[RecordBatch]) -> Result<RecordBatch, ArrowError> {
    let others = Table::ALL.into_iter().filter(|t| *t != Table::Runs);
    let mut by_table: BTreeMap<Table, BTreeMap<String, Extent>> =
        others.map(|table| (table, extents(table, snapshot))).collect();
    let mut seen: BTreeMap<String, Extent> = BTreeMap::new();
    for extents in by_table.values() {
        for (run, extent) in extents {
            let all = seen.entry(run.clone()).or_default();
            all.rows += extent.rows;
            if let Some((first, last)) = extent.range {
                all.widen(first, last);
            }
        }
    }

    let mut of = |table| by_table.remove(&table).unwrap_or_default();
    let (spans, samples) = (of(Table::Spans), of(Table::Samples));
    seen.remove(rollscope_model::names::SCRAPED_RUN);

    let schema = Table::Runs.schema();
    let rows: Vec<RecordBatch> =
        rows.iter().map(|b| RecordBatch::try_new(schema.clone(), b.columns().to_vec())).collect::<Result<_, _>>()?;
    let mut all = concat_batches(&schema, &rows)?;
    let known: std::collections::HashSet<String> = run_ids(&all).into_iter().collect();
    let mut strangers = RunsBuilder::default();
    for (run, extent) in seen.iter().filter(|(run, _)| !known.contains(*run)) {
        let (first, last) = extent.range.unwrap_or_default();
        strangers.push(&NewRun { run_id: run, started_ns: first, updated_ns: last, ..NewRun::default() });
    }
    all = concat_batches(&schema, &[all, strangers.finish()?])?;

    // A run is entered when its first message comes; the roots of steps, which begin first, come last.
    let noted = column::<Ints>(&all, "started_ns")?;
    let first = |run: &String| spans.get(run)?.range.map(|(first, _)| first);
    let started: Vec<i64> = run_ids(&all)
        .iter()
        .enumerate()
        .map(|(row, run)| first(run).map_or(noted.at(row), |first| first.min(noted.at(row))))
        .collect();
    let mut columns = all.columns().to_vec();
    columns[schema.index_of("started_ns")?] = Arc::new(Int64Array::from(started.clone()));
    let all = RecordBatch::try_new(schema.clone(), columns)?;
    let mut order: Vec<u32> = (0..all.num_rows() as u32).collect();
    order.sort_by_key(|row| std::cmp::Reverse(started[*row as usize]));
    let all = take_record_batch(&all, &UInt32Array::from(order))?;

    let ids = run_ids(&all);
    let range = |pick: fn((i64, i64)) -> i64| -> ArrayRef {
        Arc::new(ids.iter().map(|run| seen.get(run)?.range.map(pick)).collect::<Int64Array>())
    };
    let count = |of: &BTreeMap<String, Extent>| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(ids.iter().map(|run| of.get(run).map_or(0, |e| e.rows as i64))))
    };
    let mut fields: Vec<Arc<Field>> = schema.fields().iter().cloned().collect();
    let mut columns = all.columns().to_vec();
    for (name, nullable, column) in [
        ("first_ns", true, range(|r| r.0)),
        ("last_ns", true, range(|r| r.1)),
        ("spans", false, count(&spans)),
        ("samples", false, count(&samples)),
    ] {
        fields.push(Arc::new(Field::new(name, DataType::Int64, nullable)));
        columns.push(column);
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
}

fn run_ids(batch: &RecordBatch) -> Vec<String> {
    let Ok(runs) = column::<Text>(batch, "run_id") else { return Vec::new() };
    (0..batch.num_rows()).map(|row| runs.at(row).to_string()).collect()
}
