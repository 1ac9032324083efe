//! What a reader sees.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use rollscope_model::Table;
use tokio::io::AsyncWriteExt;

use crate::census::Census;
use crate::contents::Contents;
use crate::error::StoreError;
use crate::manifest::{AttrTypes, Segment};
use crate::root::Root;
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
    /// How many of them each run has.
    pub replaced_of: Arc<HashMap<String, u64>>,
    /// What each batch of `tail` holds, for [`Snapshot::tail_contents`].
    pub contents: Vec<Arc<OnceLock<Contents>>>,
}

/// Whoever has it may write beside the tables.
#[derive(Clone)]
pub struct Keeper {
    pub(crate) root: Root,
    /// In a lake: this writer, as its segments name it.
    pub(crate) writer: Option<String>,
    /// Counts the bytes of what is kept.
    pub(crate) derived: Arc<AtomicU64>,
}

/// All tables at one moment.
#[derive(Clone)]
pub struct Snapshot {
    pub object_store: Arc<dyn ObjectStore>,
    /// Keeps what was worked out from the snapshot ([`Snapshot::keep_derived`]). `None`: nobody does.
    pub keeper: Option<Keeper>,
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

    /// What each batch of the tail holds.
    pub fn tail_contents(&self, table: Table) -> impl Iterator<Item = &Contents> {
        let rows = self.tables.get(&table);
        let each = rows.into_iter().flat_map(|rows| rows.tail.iter().zip(&rows.contents));
        each.map(move |(batch, contents)| contents.get_or_init(|| Contents::of(table, batch)))
    }

    /// Reads some columns of a segment, batch by batch. For code that follows the store without SQL; the rows in
    /// [`TableSnapshot::replaced`] are among them.
    pub async fn read_segment(
        &self,
        table: Table,
        segment: &Segment,
        columns: &[&str],
    ) -> Result<SegmentBatches, StoreError> {
        let path = Path::from(segment.path.as_str());
        let data = self.object_store.get(&path).await?.bytes().await?;
        segment::read_columns(table, data, columns)
    }

    /// What a segment holds of each step. `None` if it does not say, as those of earlier versions.
    pub async fn census(&self, segment: &Segment) -> Option<Census> {
        let path = Path::from(segment.path.as_str());
        // The length of the footer is in the last bytes. One read is enough for most.
        let read = async |bytes: u64| {
            let from = segment.bytes.saturating_sub(bytes);
            self.object_store.get_range(&path, from..segment.bytes).await.ok()
        };
        let mut end = read(FOOTER_GUESS).await?;
        let length = segment::footer_length(&end)?;
        if length > end.len() {
            end = read(length as u64).await?;
        }
        segment::census(&end, length)
    }

    /// Something that was worked out from a run's rows and kept. It may be out of date, or damaged.
    pub async fn derived(&self, run_id: &str, name: &str) -> Option<Bytes> {
        let path = Path::from(format!("{}/{name}", derived_folder(run_id)));
        self.object_store.get(&path).await.ok()?.bytes().await.ok()
    }

    /// Keeps something that was worked out from a run's rows, until the run is deleted. It can be worked out again: what
    /// cannot be written is left out, and what is written is not synced. False: it was left out.
    pub async fn keep_derived(&self, run_id: &str, name: &str, data: Vec<u8>) -> bool {
        let Some(keeper) = &self.keeper else { return false };
        keeper.derived.fetch_add(data.len() as u64, Ordering::Relaxed);
        let put = keeper.root.put_unsynced(&format!("{}/{name}", derived_folder(run_id)), data).await;
        if let Err(e) = &put {
            tracing::debug!(error = %e, "cannot keep what was worked out");
        }
        put.is_ok()
    }

    /// Is it a segment of a lake that this process has written? Then it makes the split of it ([`Snapshot::keep_split`]).
    pub fn is_own(&self, segment: &Segment) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| keeper.writer.as_deref() == Some(segment.writer.as_str()))
    }

    /// Copies the split of a segment to a file, and returns whether there is one: the search index of its rows, which another process has
    /// put beside it.
    pub async fn read_split(&self, segment: &Segment, to: &std::path::Path) -> Result<bool, StoreError> {
        let Some(path) = split_path(&segment.path) else { return Ok(false) };
        let found = match self.object_store.get(&Path::from(path)).await {
            Err(object_store::Error::NotFound { .. }) => return Ok(false),
            found => found?,
        };
        // It has each word of the texts once, with its places.
        if found.meta.size > (segment.memory_bytes + SMALL_SPLIT) * 4 {
            return Err(StoreError::Damaged(format!("the split of {} is too large", segment.path)));
        }
        let failed = |e| StoreError::io(to, e);
        let mut file = tokio::fs::File::create(to).await.map_err(failed)?;
        let mut parts = found.into_stream();
        while let Some(part) = parts.try_next().await? {
            file.write_all(&part).await.map_err(failed)?;
        }
        file.flush().await.map_err(failed)?;
        Ok(true)
    }

    /// Puts the split of a segment beside it. It is deleted with it.
    pub async fn keep_split(&self, segment: &Segment, from: &std::path::Path) -> Result<(), StoreError> {
        let (Some(keeper), Some(path)) = (&self.keeper, split_path(&segment.path)) else { return Ok(()) };
        keeper.root.put_file(&path, from).await
    }
}

/// What a split may take that is of few rows.
const SMALL_SPLIT: u64 = 16 << 20;
/// How the name of a split ends, in place of `.parquet`.
pub(crate) const SPLIT: &str = ".index.tar";

/// Where the split of a segment is, if it is one of conversations.
pub(crate) fn split_path(segment: &str) -> Option<String> {
    let name = segment.strip_suffix(".parquet")?;
    segment.starts_with(Table::Conversations.name()).then(|| format!("{name}{SPLIT}"))
}

/// Bytes at the end of a segment that hold its footer, as a rule.
const FOOTER_GUESS: u64 = 64 << 10;

/// Folder of what was worked out from rows, by run. Whoever deletes it loses nothing but time.
pub(crate) const DERIVED: &str = "derived";

pub(crate) fn derived_folder(run_id: &str) -> String {
    format!("{DERIVED}/run={}", segment::path_safe(run_id))
}

/// The server's store, or a folder opened for reading.
pub trait SnapshotSource: Send + Sync {
    fn snapshot(&self) -> Snapshot;
}
