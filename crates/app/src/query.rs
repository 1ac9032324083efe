//! Small questions to the engine, and readers for answers that become hand-made JSON.

use std::sync::atomic::Ordering::Relaxed;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use futures::StreamExt;
use rollscope_query::Engine;
pub use rollscope_query::sql_text;

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

fn column(batch: &RecordBatch, name: &str, to: &DataType) -> Result<ArrayRef, Problem> {
    let column = batch.column_by_name(name).ok_or_else(|| Problem::internal(format!("no column {name}")))?;
    cast(column, to).map_err(|e| Problem::internal(format!("column {name}: {e}")))
}

pub fn text_column(batch: &RecordBatch, name: &str) -> Result<Vec<Option<String>>, Problem> {
    let column = column(batch, name, &DataType::Utf8)?;
    Ok(column.as_string::<i32>().iter().map(|v| v.map(str::to_string)).collect())
}

pub fn int_column(batch: &RecordBatch, name: &str) -> Result<Vec<Option<i64>>, Problem> {
    let column = column(batch, name, &DataType::Int64)?;
    Ok(column.as_primitive::<Int64Type>().iter().collect())
}

pub fn float_column(batch: &RecordBatch, name: &str) -> Result<Vec<Option<f64>>, Problem> {
    let column = column(batch, name, &DataType::Float64)?;
    Ok(column.as_primitive::<Float64Type>().iter().collect())
}
