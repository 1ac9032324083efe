//! Small questions to the engine, and readers for answers that become hand-made JSON.

use std::sync::atomic::Ordering::Relaxed;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use futures::StreamExt;
use rollscope_query::{Engine, columns};
pub use rollscope_query::{sql_text, visible_schema};

use crate::problem::{Problem, ProblemKind};

/// All rows of a small answer.
pub async fn collect(engine: &Engine, sql: &str) -> Result<Vec<RecordBatch>, Problem> {
    let mut running = engine.sql(sql).await?;
    let mut batches = Vec::new();
    while let Some(batch) = running.stream.next().await {
        batches.push(batch?);
    }
    if running.truncated.load(Relaxed) {
        return Err(Problem::new(
            ProblemKind::TooLarge,
            "the result has more rows than max_rows allows; narrow the request or raise the limit",
        ));
    }
    Ok(batches)
}

fn of_answer<T>(column: Result<T, ArrowError>) -> Result<T, Problem> {
    column.map_err(|e| Problem::internal(e.to_string()))
}

pub fn text_column(batch: &RecordBatch, name: &str) -> Result<Vec<Option<String>>, Problem> {
    of_answer(columns::text_column(batch, name))
}

pub fn int_column(batch: &RecordBatch, name: &str) -> Result<Vec<Option<i64>>, Problem> {
    of_answer(columns::int_column(batch, name))
}

pub fn float_column(batch: &RecordBatch, name: &str) -> Result<Vec<Option<f64>>, Problem> {
    of_answer(columns::float_column(batch, name))
}
