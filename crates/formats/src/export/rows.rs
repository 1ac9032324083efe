//! Columns of batches that our own builders and queries made: one of another shape is a mistake in the program, not in
//! the data.

use arrow::array::RecordBatch;
use rollscope_model::read::{self, Column, Spans};

pub fn spans(batch: &RecordBatch) -> Spans<'_> {
    Spans::of(batch).unwrap_or_else(|error| panic!("{error}"))
}

pub fn column<'a, C: Column<'a>>(batch: &'a RecordBatch, name: &str) -> C {
    read::column(batch, name).unwrap_or_else(|error| panic!("{error}"))
}
