//! Limits and thresholds, each with a name and a default.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreOptions {
    /// The folder.
    #[serde(skip)]
    pub dir: PathBuf,
    /// The live tail of all tables together is flushed to segments at this size in memory.
    pub flush_bytes: usize,
    /// ... or when one table has this many rows,
    pub flush_rows: usize,
    /// ... or this long after its first row, in seconds.
    pub flush_age_s: u64,
    /// Maximum number of rows of a compacted segment.
    pub segment_rows: u64,
    /// Memory for detecting rows that are already in segments: 16 bytes per row of the segments that overlap in time.
    pub duplicate_check_bytes: usize,
    /// Segments whose newest row is older than this are deleted, in seconds. 0 keeps everything.
    pub retention_age_s: u64,
    /// The oldest segments are deleted while the store is larger than this. 0 keeps everything.
    pub retention_bytes: u64,
    /// Every value of scraped series is kept this long, in seconds. Older series are thinned. 0 never thins.
    pub series_full_age_s: u64,
    /// Thinned series keep the last, the smallest and the largest sample per this many seconds.
    pub series_thin_s: u64,
    /// Files that are no longer live are kept this long for readers that still use them, in seconds.
    pub delete_grace_s: u64,
    /// At start, up to this many bytes of segments are checked before serving, and the rest afterwards.
    pub check_at_start_bytes: u64,
    /// In a lake: time between two parts of the log, in milliseconds. Less makes acknowledgements faster, and requests more.
    pub log_every_ms: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            dir: PathBuf::from("rollscope-data"),
            flush_bytes: 256 << 20,
            flush_rows: 1 << 20,
            flush_age_s: 120,
            segment_rows: 1 << 20,
            duplicate_check_bytes: 256 << 20,
            retention_age_s: 0,
            retention_bytes: 0,
            series_full_age_s: 7 * 86_400,
            series_thin_s: 300,
            delete_grace_s: 300,
            check_at_start_bytes: 2 << 30,
            log_every_ms: 200,
        }
    }
}

impl StoreOptions {
    pub fn at(dir: impl Into<PathBuf>) -> StoreOptions {
        StoreOptions { dir: dir.into(), ..StoreOptions::default() }
    }

    pub(crate) fn flush_age(&self) -> Duration {
        Duration::from_secs(self.flush_age_s)
    }

    /// Beyond this, the writer waits for the current flush.
    pub(crate) fn tail_limit_bytes(&self) -> usize {
        self.flush_bytes * 2
    }
}
