//! A running query: the schema of the result at once, its rows as a stream. Time, rows and cancellation are watched here,
//! on the reader's side, so that they hold even while the query's own threads are busy.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use futures::{Stream, TryStreamExt};
use tokio::sync::mpsc::Receiver;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Sleep;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::error::{ErrorKind, QueryError};
use crate::limits::QueryLimits;
use crate::progress::Progress;

/// A query that has been planned and is running. Dropping its stream stops it.
pub struct Running {
    pub schema: SchemaRef,
    pub stream: QueryStream,
    pub progress: Arc<Progress>,
    /// Set once the stream has ended at `max_rows` although there were more.
    pub truncated: Arc<AtomicBool>,
}

impl Running {
    /// All rows, and whether some are missing because of `max_rows`.
    pub async fn collect(self) -> Result<(Vec<RecordBatch>, bool), QueryError> {
        let batches = self.stream.try_collect().await?;
        Ok((batches, self.truncated.load(Relaxed)))
    }
}

/// Keeps a query in the list of running ones. When it is dropped, nobody waits for the query any more.
pub(crate) struct Registration {
    running: Arc<Mutex<BTreeMap<u64, Arc<Progress>>>>,
    progress: Arc<Progress>,
}

impl Registration {
    pub fn new(running: Arc<Mutex<BTreeMap<u64, Arc<Progress>>>>, progress: Arc<Progress>) -> Self {
        running.lock().unwrap_or_else(PoisonError::into_inner).insert(progress.id(), progress.clone());
        Registration { running, progress }
    }

    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.progress.stop();
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.progress.id());
    }
}

/// The rows of a running query.
pub struct QueryStream {
    pub(crate) batches: Receiver<Result<RecordBatch, QueryError>>,
    pub(crate) task: JoinHandle<()>,
    pub(crate) deadline: Pin<Box<Sleep>>,
    pub(crate) stopping: Pin<Box<WaitForCancellationFutureOwned>>,
    pub(crate) limits: QueryLimits,
    pub(crate) rows_left: usize,
    pub(crate) truncated: Arc<AtomicBool>,
    pub(crate) registration: Registration,
    pub(crate) done: bool,
}

impl QueryStream {
    fn end(&mut self) {
        self.done = true;
        self.registration.progress().stop();
    }

    fn fail(&mut self, error: QueryError) -> Poll<Option<Result<RecordBatch, QueryError>>> {
        self.end();
        Poll::Ready(Some(Err(error)))
    }
}

impl Stream for QueryStream {
    type Item = Result<RecordBatch, QueryError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.done {
            return Poll::Ready(None);
        }
        if this.deadline.as_mut().poll(cx).is_ready() {
            let error = timed_out(&this.limits);
            return this.fail(error);
        }
        if this.stopping.as_mut().poll(cx).is_ready()
            && let Some(error) = this.registration.progress().why_stopped()
        {
            return this.fail(error);
        }
        loop {
            match ready!(this.batches.poll_recv(cx)) {
                Some(Ok(batch)) if batch.num_rows() == 0 => continue,
                Some(Ok(batch)) => {
                    let rows = batch.num_rows().min(this.rows_left);
                    if rows < batch.num_rows() {
                        this.truncated.store(true, Relaxed);
                        this.end();
                        if rows == 0 {
                            return Poll::Ready(None);
                        }
                    }
                    this.rows_left -= rows;
                    this.registration.progress().add_out(rows as u64);
                    return Poll::Ready(Some(Ok(batch.slice(0, rows))));
                }
                Some(Err(error)) => return this.fail(error),
                None => {
                    let ended = ready!(Pin::new(&mut this.task).poll(cx));
                    return match ended {
                        Ok(()) => {
                            this.done = true;
                            Poll::Ready(None)
                        }
                        Err(e) => {
                            let error = task_failed(e);
                            this.fail(error)
                        }
                    };
                }
            }
        }
    }
}

pub(crate) fn timed_out(limits: &QueryLimits) -> QueryError {
    QueryError::new(
        ErrorKind::Limit,
        format!(
            "the query took longer than timeout = {} s; narrow it (one run, one step, a time range) or raise the limit",
            limits.timeout.as_secs_f64()
        ),
    )
}

pub(crate) fn task_failed(error: JoinError) -> QueryError {
    if error.is_cancelled() {
        return QueryError::new(ErrorKind::Cancelled, "the query was cancelled");
    }
    let panic = error.into_panic();
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    QueryError::new(ErrorKind::Internal, format!("the query failed unexpectedly: {}", text.unwrap_or("unknown reason")))
}
