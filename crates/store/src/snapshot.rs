//! What a reader sees.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use object_store::ObjectStore;
use rollscope_model::Table;
use serde::{Deserialize, Serialize};

/// One Parquet file, as the manifest describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    pub table: String,
    pub run_id: String,
    /// Path under the root of the store.
    pub path: String,
    pub rows: u64,
    pub bytes: u64,
    /// Range of the table's time column; for spans `max_time` is the latest end.
    pub min_time: i64,
    pub max_time: i64,
    /// Range of `step`, where any row has one. `None`: unknown or no row has one.
    pub steps: Option<(i64, i64)>,
    /// True if some rows have no step: then a step filter may not skip by range alone... it still may, null never equals.
    pub has_open: bool,
    pub format_version: u32,
    pub writer: String,
    /// For each attribute column, each key and the types it holds (bits of `rollscope_model::attrs::Type`).
    pub attr_types: BTreeMap<String, BTreeMap<String, u8>>,
}

/// One table at one moment.
#[derive(Clone, Default)]
pub struct TableSnapshot {
    pub segments: Vec<Arc<Segment>>,
    /// Rows not yet in a segment. Already without duplicates and replaced rows.
    pub tail: Vec<RecordBatch>,
    /// Identities (see [`crate::identity_hash`]) of rows in `segments` that newer rows in `tail` replace: to be left out.
    pub replaced: Arc<std::collections::HashSet<u128>>,
}

/// All tables at one moment.
#[derive(Clone)]
pub struct Snapshot {
    pub object_store: Arc<dyn ObjectStore>,
    /// Rises with every visible change.
    pub version: u64,
    pub tables: BTreeMap<Table, TableSnapshot>,
    /// Attribute keys and types over segments and tail, per table and attribute column.
    pub attr_types: Arc<BTreeMap<Table, BTreeMap<String, BTreeMap<String, u8>>>>,
}

/// The server's store, or a folder opened for reading.
pub trait SnapshotSource: Send + Sync {
    fn snapshot(&self) -> Snapshot;
}
