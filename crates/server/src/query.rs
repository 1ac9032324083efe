//! The server's side of the query engine: start, meter, collect; and small readers for answers that become hand-made JSON.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type, SchemaRef};
use futures::StreamExt;
use futures::stream::BoxStream;
use rollscope_query::{Engine, QueryError};

use crate::metrics::{Counters, add};
use crate::problem::Problem;

/// `'text'`, quotes doubled: the only way text of a caller gets into SQL that we write.
pub fn sql_text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A result that is being sent to a client. Dropping it cancels the query.
pub struct Answer {
    pub schema: SchemaRef,
    pub batches: BoxStream<'static, Result<RecordBatch, QueryError>>,
    /// Set once the engine has left out rows. Final when the stream has ended.
    pub truncated: Arc<AtomicBool>,
}

/// Starts a query for a client and counts it.
pub async fn start(engine: &Engine, counters: &Arc<Counters>, sql: &str) -> Result<Answer, Problem> {
    let mut meter = Meter { counters: counters.clone(), started: Instant::now(), done: false };
    add(&counters.queries, 1);
    let running = match engine.sql(sql).await {
        Ok(running) => running,
        Err(error) => {
            meter.failed();
            return Err(error.into());
        }
    };
    let (schema, truncated) = (running.schema.clone(), running.truncated.clone());
    let batches = futures::stream::unfold((running, meter), |(mut running, mut meter)| async move {
        match running.stream.next().await {
            None => {
                meter.ended();
                None
            }
            Some(Ok(batch)) => {
                add(&meter.counters.query_rows, batch.num_rows() as u64);
                Some((Ok(batch), (running, meter)))
            }
            Some(Err(error)) => {
                meter.failed();
                Some((Err(error), (running, meter)))
            }
        }
    });
    Ok(Answer { schema, batches: batches.boxed(), truncated })
}

struct Meter {
    counters: Arc<Counters>,
    started: Instant,
    done: bool,
}

impl Meter {
    fn ended(&mut self) {
        self.done = true;
    }

    fn failed(&mut self) {
        if !self.done {
            self.done = true;
            add(&self.counters.queries_failed, 1);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        add(&self.counters.query_microseconds, self.started.elapsed().as_micros() as u64);
        if !self.done {
            add(&self.counters.queries_cancelled, 1);
        }
    }
}

/// All rows of a small answer.
pub async fn collect(engine: &Engine, sql: &str) -> Result<Vec<RecordBatch>, Problem> {
    let mut running = engine.sql(sql).await?;
    let mut batches = Vec::new();
    while let Some(batch) = running.stream.next().await {
        batches.push(batch?);
    }
    if running.truncated.load(Relaxed) {
        return Err(Problem::new(
            axum::http::StatusCode::PAYLOAD_TOO_LARGE,
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

#[cfg(test)]
mod tests {
    use super::sql_text;

    #[test]
    fn quotes_cannot_end_a_text() {
        assert_eq!(sql_text("it's"), "'it''s'");
        assert_eq!(sql_text("'; drop table runs; --"), "'''; drop table runs; --'");
    }
}
