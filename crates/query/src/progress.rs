//! How far a query is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use rollscope_model::time::now_ns;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use crate::error::{ErrorKind, QueryError};

/// One running query. Counts are kept by the scan itself.
#[derive(Debug)]
pub struct Progress {
    id: u64,
    sql: String,
    started_ns: i64,
    started: Instant,
    rows_total: AtomicU64,
    bytes_total: AtomicU64,
    rows_scanned: AtomicU64,
    bytes_scanned: AtomicU64,
    rows_out: AtomicU64,
    cancelled: AtomicBool,
    stop: CancellationToken,
}

/// [`Progress`] at one moment.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ProgressSnapshot {
    pub id: u64,
    pub sql: String,
    pub started_ns: i64,
    pub elapsed_ms: u64,
    /// Rows in the segments and tails that could not be ruled out in advance.
    pub rows_total: u64,
    /// Of those, rows that have been gone through or skipped, counted by file.
    pub rows_scanned: u64,
    /// Bytes of those segments. Far fewer may have to be read: only some columns, only some pages.
    pub bytes_total: u64,
    /// Bytes read so far.
    pub bytes_scanned: u64,
    /// Rows of the answer so far.
    pub rows_out: u64,
}

impl Progress {
    pub(crate) fn new(id: u64, sql: &str) -> Self {
        Progress {
            id,
            sql: sql.to_string(),
            started_ns: now_ns(),
            started: Instant::now(),
            rows_total: AtomicU64::new(0),
            bytes_total: AtomicU64::new(0),
            rows_scanned: AtomicU64::new(0),
            bytes_scanned: AtomicU64::new(0),
            rows_out: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            stop: CancellationToken::new(),
        }
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn snapshot(&self) -> ProgressSnapshot {
        let rows_total = self.rows_total.load(Relaxed);
        ProgressSnapshot {
            id: self.id,
            sql: self.sql.clone(),
            started_ns: self.started_ns,
            elapsed_ms: self.started.elapsed().as_millis() as u64,
            rows_total,
            // A file that is read twice, or in parts, may count a little more than it has.
            rows_scanned: self.rows_scanned.load(Relaxed).min(rows_total),
            bytes_total: self.bytes_total.load(Relaxed),
            bytes_scanned: self.bytes_scanned.load(Relaxed),
            rows_out: self.rows_out.load(Relaxed),
        }
    }

    /// Stops the query. Its caller gets an error at once, and its threads end with their current batch.
    pub fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
        self.stop();
    }

    /// Stops the query because its client disconnected.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Ends when the query is stopped.
    pub(crate) fn stopping(&self) -> CancellationToken {
        self.stop.clone()
    }

    pub(crate) fn why_stopped(&self) -> Option<QueryError> {
        self.stop.is_cancelled().then(|| match self.cancelled.load(Relaxed) {
            true => QueryError::new(ErrorKind::Cancelled, "the query was cancelled"),
            false => QueryError::new(ErrorKind::Cancelled, "the query was stopped because its client disconnected"),
        })
    }

    /// It is planned again.
    pub(crate) fn begin_again(&self) {
        for count in [&self.rows_total, &self.bytes_total, &self.rows_scanned, &self.bytes_scanned] {
            count.store(0, Relaxed);
        }
    }

    pub(crate) fn add_total(&self, rows: u64, bytes: u64) {
        self.rows_total.fetch_add(rows, Relaxed);
        self.bytes_total.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn add_scanned(&self, rows: u64, bytes: u64) {
        self.rows_scanned.fetch_add(rows, Relaxed);
        self.bytes_scanned.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn add_out(&self, rows: u64) {
        self.rows_out.fetch_add(rows, Relaxed);
    }
}
