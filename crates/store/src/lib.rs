//! Keeps batches for good.
//!
//! Write path: [`Store::append`] encodes the batch as a log record; the writer thread recognises duplicates ([`tail`]),
//! writes the record, syncs the log once for everything that waits ([`wal`]), makes the rows visible in the live tail,
//! and only then answers. The tail is flushed by size and age into Parquet [`segment`]s, one table and one run each,
//! listed by the [`manifest`], the only truth about what is live, which the [`journal`] keeps on disk. In the background
//! small segments are merged and old ones expire (`store::upkeep`).
//!
//! Read path: [`Snapshot`], a consistent view of segments and tail, from a [`Store`] or from a folder that another process
//! writes ([`ReadOnlyStore`]).
//!
//! Every row is there once: an exporter that retries, a dump imported again, a log replayed after `kill -9`. Rows are
//! recognised by the identity columns of their table ([`identity`]); the newest or the closed one wins, depending on the table.
//!
//! Locks are taken in this order: the gate (who deletes a run, or writes what follows from what it read), the commit (who
//! changes the manifest), the writer (the log, and the index of the tail), the state (what readers see). Index, tail and
//! manifest change together, under writer and state: a place that the index names is always there.
//!
//! Knows Arrow, Parquet and `object_store`; knows nothing of SQL, HTTP or where the batches come from. Files are read
//! through `object_store` and changed through [`disk`]; only the log, the lock and lists of files are read directly.

mod attr_types;
mod census;
mod commits;
mod contents;
mod disk;
mod error;
mod foreign;
mod identity;
mod journal;
mod known;
mod lake;
mod lock;
mod logs;
mod manifest;
mod media;
mod open;
mod options;
mod readonly;
mod root;
#[cfg(test)]
mod schedules;
mod segment;
mod snapshot;
mod store;
mod tail;
#[doc(hidden)]
pub mod testing;
mod thin;
mod touched;
mod vitals;
mod wal;

pub use census::Census;
pub use contents::Contents;
pub use disk::{Change, Disk, Watch};
pub use error::StoreError;
pub use foreign::read_parquet;
pub use identity::{identity_hashes, identity_hashes_of, identity_hashes_with, identity_secret};
pub use lake::{
    AboutNode, BEAT, Lake, NodeLoad, Nodes, SeenNode, SharedFiles, TableChange, TableVersion, Tables, WORKER,
    WorkerEntry, resident_bytes,
};
pub use manifest::{AttrTypes, Part, Segment, SetAside};
pub use options::StoreOptions;
pub use readonly::ReadOnlyStore;
pub use segment::{SegmentBatches, parquet_file};
pub use snapshot::{Keeper, Snapshot, SnapshotSource, TableSnapshot};
pub use store::{Appended, Health, Store, StoreStats};
pub use touched::Step;
pub use vitals::{Death, Vitals};
