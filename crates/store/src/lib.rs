//! Keeps batches for good. Write path: [`Store::append`] writes the log, syncs it, makes the batch visible in the live tail,
//! and only then returns; the tail is flushed by size and age into Parquet segments, listed by the manifest, which is
//! the only truth about what is live. Read path: [`Snapshot`], a consistent view of segments and tail.
//!
//! Knows Arrow, Parquet and `object_store`; knows nothing of SQL, HTTP or where the batches come from.

mod snapshot;

pub use snapshot::{Segment, Snapshot, SnapshotSource, TableSnapshot};
