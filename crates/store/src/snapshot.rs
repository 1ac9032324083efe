//! What a reader sees.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow::array::RecordBatch;
use object_store::{ObjectStore, ObjectStoreExt};
use rollscope_model::Table;

use crate::error::StoreError;
use crate::manifest::{AttrTypes, Segment};
use crate::segment::{self, SegmentBatches};

/// One table at one moment.
#[derive(Clone, Default)]
pub struct TableSnapshot {
    pub segments: Vec<Arc<Segment>>,
    /// Rows not yet in a segment. Already without duplicates and replaced rows.
    pub tail: Vec<RecordBatch>,
    /// For each batch of `tail`, the version that its newest row came with.
    pub tail_versions: Vec<u64>,
    /// Identities ([`crate::identity_hashes`]) of rows in `segments` that newer rows in `tail` replace: to be left out.
    pub replaced: Arc<HashSet<u128>>,
}

/// All tables at one moment.
#[derive(Clone)]
pub struct Snapshot {
    pub object_store: Arc<dyn ObjectStore>,
    /// Rises with every visible change.
    pub version: u64,
    /// Rows newer than a version `v >= settled` are all in the tail ([`Snapshot::tail_since`]); for an older `v` they may
    /// not be.
    pub settled: u64,
    pub tables: BTreeMap<Table, TableSnapshot>,
    /// Attribute keys and types over segments and tail, per table and attribute column.
    pub attr_types: Arc<BTreeMap<Table, AttrTypes>>,
}

impl Snapshot {
    /// Batches of the tail with rows that came after `version` (and perhaps some that came before). `None` if the tail
    /// alone cannot tell.
    pub fn tail_since(&self, table: Table, version: u64) -> Option<impl Iterator<Item = &RecordBatch>> {
        let rows = self.tables.get(&table)?;
        let newer = move |(batch, v): (_, &u64)| (*v > version).then_some(batch);
        (self.settled..=self.version)
            .contains(&version)
            .then(|| rows.tail.iter().zip(&rows.tail_versions).filter_map(newer))
    }

    /// Reads some columns of a segment, batch by batch. For code that follows the store without SQL; the rows in
    /// [`TableSnapshot::replaced`] are among them.
    pub async fn read_segment(
        &self,
        table: Table,
        segment: &Segment,
        columns: &[&str],
    ) -> Result<SegmentBatches, StoreError> {
        let path = object_store::path::Path::from(segment.path.as_str());
        let data = self.object_store.get(&path).await?.bytes().await?;
        segment::read_columns(table, data, columns)
    }
}

/// The server's store, or a folder opened for reading.
pub trait SnapshotSource: Send + Sync {
    fn snapshot(&self) -> Snapshot;
}
