//! A step as it would have arrived, for playing it in real time. Made from the finished rows, so that what has arrived
//! in the end is what the finished step has: a span of the trainer or the rollout is reported open when it starts (our
//! SDK does that) and again when it ends; engine and gateway spans only when they end, as OpenTelemetry's exporters do.
//! A sample is reported pending, then with its outcome.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, UInt32Array, new_null_array};
use arrow::compute::take_record_batch;
use arrow::datatypes::Int32Type;
use arrow::error::ArrowError;
use rollscope_model::Table;
use rollscope_model::build::{AttrsColumn, DictColumn, EventsColumn};
use rollscope_model::names::state;
use rollscope_model::read::{self, Ints, Text};

use crate::sim::MS;
use crate::step::StepData;

/// Rows that arrive within this time come as one batch.
pub const TICK: i64 = 250 * MS;

/// What arrives: nanoseconds after the start of the step, and the rows.
pub type Arrival = (i64, Table, RecordBatch);

/// Yields arrivals in the order of time.
pub struct Live {
    data: StepData,
    /// Sorted by tick: table, row, and whether it comes unfinished.
    queue: VecDeque<Pending>,
    failed: Option<ArrowError>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pending {
    tick: i64,
    unfinished: bool,
    table: Table,
    row: u32,
}

impl Live {
    pub(crate) fn new(data: StepData) -> Result<Self, ArrowError> {
        let mut queue = Vec::new();
        let tick_of = |time: i64| (time - data.start_ns).max(0).div_euclid(TICK) + 1;
        for (table, batch) in &data.batches {
            let column = |name| read::column::<Ints>(batch, name);
            let (starts, ends) = match table {
                Table::Spans | Table::Samples => (Some(column("start_ns")?), column("end_ns")?),
                other => (None, column(other.time_column())?),
            };
            let announced = announced(*table, batch);
            for row in 0..batch.num_rows() {
                let end = tick_of(ends.at(row));
                let at = |tick, unfinished| Pending { tick, unfinished, table: *table, row: row as u32 };
                if let Some(starts) = starts
                    && announced(row)
                    && tick_of(starts.at(row)) < end
                {
                    queue.push(at(tick_of(starts.at(row)), true));
                }
                queue.push(at(end, false));
            }
        }
        queue.sort_unstable();
        Ok(Live { data, queue: queue.into(), failed: None })
    }

    pub fn start_ns(&self) -> i64 {
        self.data.start_ns
    }

    pub fn end_ns(&self) -> i64 {
        self.data.end_ns
    }

    /// What kept the iterator from going on, if anything did.
    pub fn error(&self) -> Option<&ArrowError> {
        self.failed.as_ref()
    }

    fn make(&self, table: Table, unfinished: bool, rows: Vec<u32>) -> Result<RecordBatch, ArrowError> {
        let whole = self.data.batch(table).ok_or_else(|| ArrowError::SchemaError("no such table".to_string()))?;
        let batch = compact(&take_record_batch(whole, &UInt32Array::from(rows))?)?;
        if unfinished { reopen(table, &batch) } else { Ok(batch) }
    }
}

/// Which rows of a table are reported before they are finished.
fn announced(table: Table, batch: &RecordBatch) -> impl Fn(usize) -> bool + '_ {
    let spans = (table == Table::Spans).then(|| Some((texts(batch, "service")?, texts(batch, "state")?))).flatten();
    move |row| match &spans {
        Some((services, states)) => {
            matches!(services.at(row), "trainer" | "rollout") && states.at(row) == state::CLOSED
        }
        None => table == Table::Samples,
    }
}

fn texts<'a>(batch: &'a RecordBatch, name: &str) -> Option<Text<'a>> {
    read::column(batch, name).ok()
}

impl Iterator for Live {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let first = *self.queue.front()?;
        let mut rows = Vec::new();
        while let Some(p) = self.queue.front()
            && (p.tick, p.table, p.unfinished) == (first.tick, first.table, first.unfinished)
        {
            rows.push(p.row);
            self.queue.pop_front();
        }
        match self.make(first.table, first.unfinished, rows) {
            Ok(batch) => Some((first.tick * TICK, first.table, batch)),
            Err(error) => {
                self.failed = Some(error);
                self.queue.clear();
                None
            }
        }
    }
}

/// Dictionaries with only the values that are used: a batch of a few rows must not carry those of the whole step.
fn compact(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().map(|column| {
        let Some(dict) = column.as_dictionary_opt::<Int32Type>() else { return column.clone() };
        let values = dict.values().as_string::<i32>();
        let mut out = DictColumn::default();
        for row in 0..dict.len() {
            out.push_opt(dict.key(row).map(|key| values.value(key)));
        }
        out.finish()
    });
    RecordBatch::try_new(batch.schema(), columns.collect())
}

/// Takes away what was not known yet when the row was first reported.
fn reopen(table: Table, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let rows = batch.num_rows();
    let repeat = |text: &str| {
        let mut column = DictColumn::default();
        (0..rows).for_each(|_| column.push(text));
        column.finish()
    };
    let schema = batch.schema();
    let columns = schema.fields().iter().zip(batch.columns()).map(|(field, column)| -> ArrayRef {
        match (table, field.name().as_str()) {
            (Table::Spans, "end_ns") => Arc::new(Int64Array::new_null(rows)),
            (Table::Spans, "state") => repeat(state::OPEN),
            (Table::Spans, "status") => repeat("unset"),
            (Table::Spans, "end_attrs") => {
                let mut empty = AttrsColumn::default();
                (0..rows).for_each(|_| empty.end_row());
                empty.finish()
            }
            (Table::Spans, "events") => {
                let mut empty = EventsColumn::default();
                (0..rows).for_each(|_| empty.end_row());
                empty.finish()
            }
            (Table::Spans, "status_message") => no_text(rows),
            (Table::Samples, "status") => repeat("pending"),
            (
                Table::Samples,
                "run_id" | "step" | "sample_id" | "split" | "group_id" | "trace_id" | "label" | "source" | "start_ns",
            ) => column.clone(),
            (Table::Samples, _) if field.data_type() == &rollscope_model::tables::dict() => no_text(rows),
            (Table::Samples, _) => new_null_array(field.data_type(), rows),
            _ => column.clone(),
        }
    });
    RecordBatch::try_new(batch.schema(), columns.collect())
}

fn no_text(rows: usize) -> ArrayRef {
    let mut column = DictColumn::default();
    (0..rows).for_each(|_| column.push_opt(None));
    column.finish()
}
