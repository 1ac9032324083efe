//! What a segment, or a part of the tail, holds of each step, as one number: so that whoever keeps something that was worked
//! out from a step's rows can tell whether they are still the same, without reading them.
//!
//! A row has a mark: a hash of what changes when the row is replaced. A step has the sum of its rows' marks, which does not
//! depend on how rows are ordered or divided: it stays the same when rows move from the tail to segments, when segments are
//! merged, and after a restart. Rows without a step are summed by when they begin and end, in slices of time: whether they
//! belong to a step is a matter of when they were. One that begins long before a step and ends long after it counts, too:
//! spans of the step may be below it.
//!
//! A segment carries its census in its own metadata.

use std::collections::BTreeMap;

use arrow::array::{ArrayRef, RecordBatch};
use rollscope_model::Table;
use rollscope_model::read::{Ints, column};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::identity::row_hashes;

/// Sums at most. A segment with more has no census.
const MAX_SUMS: usize = 8192;
/// Two to this power of nanoseconds are a slice: 17 seconds.
const SLICE_BITS: u32 = 34;

/// Sums of marks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Census {
    steps: BTreeMap<i64, u64>,
    /// Rows without a step, by the slices of time in which they begin and end.
    unnamed: BTreeMap<i64, u64>,
    /// Of rows without a step, those that began in a slice or before it and go on after it, where that changes. Their marks stay the same
    /// when they end.
    #[serde(default)]
    lasting: BTreeMap<i64, u64>,
}

/// What changes when a row of the table is replaced, and what its readers look at. None: it has no steps to speak of.
fn marked(table: Table) -> Option<&'static [&'static str]> {
    match table {
        // The first row of a span is kept, unless it was open.
        Table::Spans => Some(&["trace_id", "span_id", "end_ns"]),
        Table::Samples => Some(&[
            "sample_id",
            "split",
            "group_id",
            "source",
            "status",
            "reward",
            "start_ns",
            "end_ns",
            "response_tokens",
            "cached_tokens",
            "cache_total_tokens",
            "spec_accepted",
            "spec_drafted",
            "spec_verifies",
            "weight_versions",
        ]),
        Table::Tokens => Some(&["sample_id", "split", "half", "logged_ns", "count", "logprobs", "trainer_logprobs"]),
        _ => None,
    }
}

impl Census {
    /// Of all rows of a batch. `None` where a table has no census, or where there is too much to sum up.
    pub fn of(table: Table, batch: &RecordBatch) -> Option<Census> {
        let census = Census::of_rows(batch, &Census::marks(table, batch)?, 0..batch.num_rows())?;
        (census.steps.len() + census.unnamed.len() + census.lasting.len() <= MAX_SUMS).then_some(census)
    }

    /// A mark for each row of a batch.
    pub(crate) fn marks(table: Table, batch: &RecordBatch) -> Option<Vec<u64>> {
        let columns: Vec<&ArrayRef> =
            marked(table)?.iter().map(|name| batch.column_by_name(name)).collect::<Option<_>>()?;
        Some(row_hashes(&columns, 0).map(|hash| hash as u64).collect())
    }

    /// Of some rows of a batch. `None` if it lacks a column.
    pub(crate) fn of_rows(batch: &RecordBatch, marks: &[u64], rows: impl IntoIterator<Item = usize>) -> Option<Census> {
        let mut census = Census::default();
        let starts = column(batch, "start_ns").or_else(|_| column(batch, "logged_ns"));
        let (steps, starts): (Ints, Ints) = (column(batch, "step").ok()?, starts.ok()?);
        let ends: Option<Ints> = column(batch, "end_ns").ok();
        // Rows of a step come together as a rule.
        let mut run: Option<(i64, u64)> = None;
        for row in rows {
            let mark = marks[row];
            match (steps.get(row), &mut run) {
                (Some(step), Some((of, sum))) if step == *of => *sum = sum.wrapping_add(mark),
                (Some(step), run) => {
                    if let Some((of, sum)) = run.replace((step, mark)) {
                        add(&mut census.steps, of, sum);
                    }
                }
                (None, _) => {
                    let start_ns = starts.get(row).unwrap_or(0);
                    let start = start_ns >> SLICE_BITS;
                    add(&mut census.unnamed, start, mark);
                    let end = ends.as_ref().and_then(|ends| ends.get(row)).map(|end| end >> SLICE_BITS);
                    if let Some(end) = end.filter(|end| *end != start) {
                        add(&mut census.unnamed, end, mark.rotate_left(32));
                    }
                    // There is a whole slice between its start and its end, or it is open.
                    if end.is_none_or(|end| end > start + 1) {
                        let mark = xxh3_64(&start_ns.to_le_bytes());
                        add(&mut census.lasting, start, mark);
                        if let Some(end) = end {
                            add(&mut census.lasting, end - 1, mark.wrapping_neg());
                        }
                    }
                }
            }
        }
        if let Some((of, sum)) = run {
            add(&mut census.steps, of, sum);
        }
        let mut going_on = 0u64;
        for change in census.lasting.values_mut() {
            going_on = going_on.wrapping_add(*change);
            *change = going_on;
        }
        Some(census)
    }

    pub fn steps(&self) -> impl Iterator<Item = i64> {
        self.steps.keys().copied()
    }

    /// The rows that name a step.
    pub fn step(&self, step: i64) -> u64 {
        self.steps.get(&step).copied().unwrap_or(0)
    }

    /// The rows that name no step and are there between two times, or a little before or after.
    pub fn unnamed(&self, from: i64, to: i64) -> u64 {
        let first = from >> SLICE_BITS;
        let slices = self.unnamed.range(first..=(to >> SLICE_BITS).max(first));
        let lasting = self.lasting.range(..first).next_back().map_or(0, |(_, sum)| *sum);
        slices.fold(lasting, |sum, (_, of)| sum.wrapping_add(*of))
    }

    /// All rows.
    pub fn all(&self) -> u64 {
        self.steps.values().chain(self.unnamed.values()).fold(0, |sum, of| sum.wrapping_add(*of))
    }
}

fn add(sums: &mut BTreeMap<i64, u64>, key: i64, mark: u64) {
    let sum = sums.entry(key).or_default();
    *sum = sum.wrapping_add(mark);
}
