//! What a reader sees.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow::array::RecordBatch;
use object_store::ObjectStore;
use rollscope_model::Table;

use crate::manifest::{AttrTypes, Segment};

/// One table at one moment.
#[derive(Clone, Default)]
pub struct TableSnapshot {
    pub segments: Vec<Arc<Segment>>,
    /// Rows not yet in a segment. Already without duplicates and replaced rows.
    pub tail: Vec<RecordBatch>,
    /// Identities ([`crate::identity_hashes`]) of rows in `segments` that newer rows in `tail` replace: to be left out.
    pub replaced: Arc<HashSet<u128>>,
}

/// All tables at one moment.
#[derive(Clone)]
pub struct Snapshot {
    pub object_store: Arc<dyn ObjectStore>,
    /// Rises with every visible change.
    pub version: u64,
    pub tables: BTreeMap<Table, TableSnapshot>,
    /// Attribute keys and types over segments and tail, per table and attribute column.
    pub attr_types: Arc<BTreeMap<Table, AttrTypes>>,
}

/// The server's store, or a folder opened for reading.
pub trait SnapshotSource: Send + Sync {
    fn snapshot(&self) -> Snapshot;
}
