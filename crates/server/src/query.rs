//! The server's side of the query engine: a query for a client is started and metered.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use futures::StreamExt;
use futures::stream::BoxStream;
use rollscope_query::{Engine, QueryError};

use crate::metrics::{Counters, add};
use crate::problem::Problem;

/// A result that is being sent to a client. Dropping it cancels the query.
pub struct StreamedResult {
    pub schema: SchemaRef,
    pub batches: BoxStream<'static, Result<RecordBatch, QueryError>>,
    /// Set once the engine has left out rows. Final when the stream has ended.
    pub truncated: Arc<AtomicBool>,
}

/// Starts a query for a client and counts it.
pub async fn start(engine: &Engine, counters: &Arc<Counters>, sql: &str) -> Result<StreamedResult, Problem> {
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
    Ok(StreamedResult { schema, batches: batches.boxed(), truncated })
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
