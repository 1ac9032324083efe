//! Small looks into batches that several crates need.

use std::collections::BTreeMap;

use arrow::array::cast::AsArray;
use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{Int32Type, Int64Type};

use crate::tables::Table;

/// The runs in a batch, each with its earliest time.
pub fn runs(table: Table, batch: &RecordBatch) -> BTreeMap<String, i64> {
    let (Some(runs), Some(times)) = (batch.column_by_name("run_id"), batch.column_by_name(table.time_column())) else {
        return BTreeMap::new();
    };
    let (Some(runs), Some(times)) = (runs.as_dictionary_opt::<Int32Type>(), times.as_primitive_opt::<Int64Type>())
    else {
        return BTreeMap::new();
    };
    let names = runs.values().as_string::<i32>();
    let mut first: Vec<Option<i64>> = vec![None; names.len()];
    for (key, time) in runs.keys().iter().zip(times.iter()) {
        let Some(slot) = key.and_then(|k| first.get_mut(k as usize)) else { continue };
        let time = time.unwrap_or(i64::MAX);
        *slot = Some(slot.map_or(time, |t| t.min(time)));
    }
    names.iter().flatten().zip(first).filter_map(|(name, t)| Some((name.to_string(), t?))).collect()
}
