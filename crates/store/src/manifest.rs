//! The manifest: the only truth about which segments are live. One JSON file, replaced atomically, tagged with a version.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollscope_model::Table;
use rollscope_model::tables::FORMAT_VERSION;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::StoreError;

pub(crate) const PATH: &str = "manifest.json";

/// For each attribute column, each key and the types seen under it (bits of `rollscope_model::attrs::Type`).
pub type AttrTypes = BTreeMap<String, BTreeMap<String, u8>>;

/// Most attribute keys remembered per column: beyond this `attr()` treats a key as text.
pub(crate) const MAX_ATTR_KEYS: usize = 10_000;

/// One Parquet file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    pub table: String,
    pub run_id: String,
    /// Path under the root of the store.
    pub path: String,
    pub rows: u64,
    pub bytes: u64,
    /// Estimated size in memory: bounds what a compaction may load.
    pub memory_bytes: u64,
    /// Range of the table's time column; for spans `max_time` is the latest end.
    pub min_time: i64,
    pub max_time: i64,
    /// Range of `step` over the rows that have one.
    pub steps: Option<(i64, i64)>,
    /// Holds spans that were still open when they had to be written.
    pub has_open: bool,
    /// xxh3 of the whole file.
    pub checksum: u64,
    pub format_version: u32,
    pub writer: String,
    /// 0 when flushed, 1 when compacted, 2 when thinned.
    pub level: u8,
    /// Segments this one was made from: how a lost manifest can be rebuilt without counting rows twice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaces: Vec<String>,
}

/// A file that was damaged and is kept aside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SetAside {
    pub file: String,
    pub why: String,
    pub at_ns: i64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub format_version: u32,
    /// Rises with every commit.
    pub version: u64,
    /// Log files below this number are in segments already.
    pub wal_floor: u64,
    #[serde(with = "shared")]
    pub segments: Vec<Arc<Segment>>,
    #[serde(default)]
    pub attr_types: BTreeMap<String, AttrTypes>,
    #[serde(default)]
    pub set_aside: Vec<SetAside>,
    /// Hashes of media that deleted runs named: to be deleted where no other run names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doomed_media: Vec<String>,
}

/// Segments are shared in memory and plain on disk.
mod shared {
    use super::{Arc, Deserialize, Segment};

    pub fn serialize<S: serde::Serializer>(segments: &[Arc<Segment>], out: S) -> Result<S::Ok, S::Error> {
        out.collect_seq(segments.iter().map(AsRef::as_ref))
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<Arc<Segment>>, D::Error> {
        Ok(Vec::<Segment>::deserialize(from)?.into_iter().map(Arc::new).collect())
    }
}

impl Default for Manifest {
    fn default() -> Self {
        Manifest {
            format_version: FORMAT_VERSION,
            version: 0,
            wal_floor: 0,
            segments: Vec::new(),
            attr_types: BTreeMap::new(),
            set_aside: Vec::new(),
            doomed_media: Vec::new(),
        }
    }
}

impl Manifest {
    pub fn parse(bytes: &[u8]) -> Result<Manifest, StoreError> {
        #[derive(Deserialize)]
        struct Tag {
            format_version: u32,
        }
        let bad = |e: serde_json::Error| StoreError::Damaged(format!("{PATH}: {e}"));
        let tag: Tag = serde_json::from_slice(bytes).map_err(bad)?;
        if tag.format_version > FORMAT_VERSION {
            return Err(StoreError::Newer { found: tag.format_version, known: FORMAT_VERSION });
        }
        serde_json::from_slice(bytes).map_err(bad)
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a manifest is plain data")
    }

    pub fn segments_of(&self, table: Table) -> impl Iterator<Item = &Arc<Segment>> {
        self.segments.iter().filter(move |s| s.table == table.name())
    }
}
