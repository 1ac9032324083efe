//! What a batch of the tail holds of each run, as a segment says it of itself. Worked out once, by whoever asks first: lists of
//! runs and whether a step has changed are asked for often, and a tail may have a million rows.

use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use rollscope_model::Table;
use rollscope_model::read::{Ints, column};

use crate::census::Census;
use crate::manifest::Part;
use crate::segment::{rows_by_run, step_range, time_range};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    pub parts: Vec<Part>,
    /// Of each part. Empty where the table has none.
    pub censuses: Vec<Arc<Census>>,
    /// What the rows take in memory, and about what they take in the log.
    pub bytes: u64,
}

impl Contents {
    pub(crate) fn of(table: Table, batch: &RecordBatch) -> Contents {
        let mut groups = rows_by_run(batch);
        let marks = Census::marks(table, batch);
        let census = |rows: &Vec<u32>| Census::of_rows(batch, marks.as_ref()?, rows.iter().map(|row| *row as usize));
        let censuses = groups.iter().filter_map(|(_, rows)| census(rows).map(Arc::new)).collect();
        let parts = match groups.as_mut_slice() {
            // One sender, one run: the usual batch.
            [(run_id, rows)] => {
                let (min_time, max_time) = time_range(table, batch);
                let (run_id, rows) = (std::mem::take(run_id), rows.len() as u64);
                vec![Part { run_id, rows, min_time, max_time, steps: step_range(batch) }]
            }
            _ => groups.into_iter().map(|(run_id, rows)| part(table, batch, run_id, &rows)).collect(),
        };
        Contents { parts, censuses, bytes: batch_bytes(batch) as u64 }
    }
}

fn part(table: Table, batch: &RecordBatch, run_id: String, rows: &[u32]) -> Part {
    let of = |name: &str| {
        let values: Option<Ints> = column(batch, name).ok();
        rows.iter().filter_map(move |row| values?.get(*row as usize))
    };
    let (starts, ends) = (of(table.time_column()), of("end_ns"));
    let (min_time, max_time) = starts.fold(None, widen).unwrap_or_default();
    let max_time = ends.fold(max_time, i64::max);
    Part { run_id, rows: rows.len() as u64, min_time, max_time, steps: of("step").fold(None, widen) }
}

fn widen(range: Option<(i64, i64)>, value: i64) -> Option<(i64, i64)> {
    Some(range.map_or((value, value), |(first, last)| (first.min(value), last.max(value))))
}

/// The size of the rows themselves: buffers that a batch shares with others are not counted whole.
pub(crate) fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|c| c.to_data().get_slice_memory_size().unwrap_or(0)).sum()
}
