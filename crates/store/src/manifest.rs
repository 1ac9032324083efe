//! The manifest: the only truth about which segments are live. How it is kept on disk is the [journal](crate::journal)'s
//! business.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use rollscope_model::Table;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::StoreError;
use crate::identity::IdentitySet;

/// 2: commits after it are in the journal, which version 1 did not have. 3: runs may share a segment. 4: there are `tokens`.
pub(crate) const VERSION: u32 = 4;

/// For each attribute column, each key and the types seen under it (bits of `rollscope_model::attrs::Type`).
pub type AttrTypes = BTreeMap<String, BTreeMap<String, u8>>;

/// Most attribute keys remembered per column: beyond this `attr()` treats a key as text.
pub(crate) const MAX_ATTR_KEYS: usize = 10_000;

/// The rows of one run in a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part<Name = String> {
    pub run_id: Name,
    pub rows: u64,
    /// As of a segment.
    pub min_time: i64,
    pub max_time: i64,
    pub steps: Option<(i64, i64)>,
}

/// One Parquet file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    pub table: String,
    /// The run that has it for itself. Empty where several share it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run_id: String,
    /// The runs that share it, in the order of their names: small ones do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared_by: Vec<Part>,
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

impl Segment {
    /// What it holds of each run.
    pub fn parts(&self) -> impl Iterator<Item = Part<&str>> {
        let own = self.shared_by.is_empty().then_some(Part {
            run_id: self.run_id.as_str(),
            rows: self.rows,
            min_time: self.min_time,
            max_time: self.max_time,
            steps: self.steps,
        });
        own.into_iter().chain(self.shared_by.iter().map(Part::borrowed))
    }

    pub fn part(&self, run_id: &str) -> Option<Part<&str>> {
        if self.shared_by.is_empty() {
            return self.parts().next().filter(|own| own.run_id == run_id);
        }
        let at = self.shared_by.binary_search_by(|part| part.run_id.as_str().cmp(run_id)).ok()?;
        Some(self.shared_by[at].borrowed())
    }

    pub fn runs(&self) -> impl Iterator<Item = &str> {
        self.parts().map(|part| part.run_id)
    }

    /// When its newest row was, or, where rows have no time, as samples of a dump, when it was written: its name begins with that.
    pub(crate) fn newest(&self) -> i64 {
        let written = || self.path.rsplit('/').next()?.get(..20)?.parse().ok();
        if self.max_time == 0 { written().unwrap_or(0) } else { self.max_time }
    }

    pub fn is_shared(&self) -> bool {
        !self.shared_by.is_empty()
    }
}

impl Part {
    pub fn borrowed(&self) -> Part<&str> {
        let Part { run_id, rows, min_time, max_time, steps } = self;
        Part { run_id, rows: *rows, min_time: *min_time, max_time: *max_time, steps: *steps }
    }
}

/// A file that was damaged and is kept aside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SetAside {
    pub file: String,
    pub why: String,
    pub at_ns: i64,
}

/// A segment that is not served because its file cannot be read. Unlike a damaged one it stays where it is, and the next
/// start tries again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unread {
    pub segment: Segment,
    pub why: String,
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
    /// Files of segments that are no longer live: some may still be there, for readers that use them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
    #[serde(default)]
    pub attr_types: BTreeMap<String, AttrTypes>,
    #[serde(default)]
    pub set_aside: Vec<SetAside>,
    /// Hashes of media that deleted runs named: to be deleted where no other run names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doomed_media: Vec<String>,
}

/// What one commit changes in a manifest.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Commit {
    pub version: u64,
    pub wal_floor: u64,
    #[serde(with = "shared", skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<Arc<Segment>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attr_types: BTreeMap<String, AttrTypes>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub set_aside: Vec<SetAside>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doomed_media: Option<Vec<String>>,
    /// In a lake: what the log has for this table below this number is in the table now.
    #[serde(skip)]
    pub flushed: Option<(Table, u64)>,
    /// In a lake: what the added segments of a flush hold.
    #[serde(skip)]
    pub identities: Identities,
}

/// Which rows new segments hold.
pub(crate) type Identities = Vec<(Arc<Segment>, Arc<IdentitySet>)>;

/// Why a commit failed.
pub(crate) struct Uncommitted {
    pub error: StoreError,
    /// Nobody will ever find it.
    pub is_certain: bool,
}

impl Commit {
    /// What it changes in each table. What belongs to no table is left out.
    pub fn by_table(mut self) -> Vec<Commit> {
        let part = |table: &Table| {
            let added: Vec<_> = self.added.extract_if(.., |segment| segment.table == table.name()).collect();
            let is_of = |path: &mut String| path.split('/').next() == Some(table.name());
            let removed: Vec<_> = self.removed.extract_if(.., is_of).collect();
            let flushed = self.flushed.filter(|(flushed, _)| flushed == table);
            let identities = self.identities.extract_if(.., |(segment, _)| segment.table == table.name()).collect();
            Commit { version: self.version, added, removed, flushed, identities, ..Commit::default() }
        };
        let mut parts: Vec<Commit> = Table::ALL.iter().map(part).collect();
        parts.retain(|part| !part.added.is_empty() || !part.removed.is_empty() || part.flushed.is_some());
        parts
    }
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
            format_version: VERSION,
            version: 0,
            wal_floor: 0,
            segments: Vec::new(),
            unread: Vec::new(),
            gone: Vec::new(),
            attr_types: BTreeMap::new(),
            set_aside: Vec::new(),
            doomed_media: Vec::new(),
        }
    }
}

/// Of a segment that somebody has deleted who must not.
pub const MISSING: &str = "it is missing, although a table names it";

impl Unread {
    /// What is wrong, and what to do about it.
    pub fn problem(&self) -> String {
        let Unread { segment: Segment { path, .. }, why } = self;
        match why.as_str() {
            MISSING => format!("{path} is left out: {why}; bring it back, or its rows are lost"),
            _ => format!(
                "{path} cannot be read ({why}) and is left out; make it readable for the user that runs rollscope, then restart"
            ),
        }
    }
}

impl Manifest {
    pub fn parse(bytes: &[u8]) -> Result<Manifest, StoreError> {
        #[derive(Deserialize)]
        struct Tag {
            format_version: u32,
        }
        let bad = |e: serde_json::Error| StoreError::Damaged(e.to_string());
        let tag: Tag = serde_json::from_slice(bytes).map_err(bad)?;
        if tag.format_version > VERSION {
            return Err(StoreError::Newer { found: tag.format_version, known: VERSION });
        }
        serde_json::from_slice(bytes).map_err(bad)
    }

    pub fn segments_of(&self, table: Table) -> impl Iterator<Item = &Arc<Segment>> {
        self.segments.iter().filter(move |s| s.table == table.name())
    }

    /// All segments that are there for good, served or not.
    pub fn kept(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().map(AsRef::as_ref).chain(self.unread.iter().map(|unread| &unread.segment))
    }

    pub fn remove(&mut self, remove: impl Fn(&Segment) -> bool) {
        self.segments.retain(|segment| !remove(segment));
        self.unread.retain(|unread| !remove(&unread.segment));
    }

    /// Stops serving a segment that cannot be read now.
    pub fn leave_out(&mut self, path: &str, why: &str) {
        let unread = self.segments.extract_if(.., |segment| segment.path == path);
        self.unread.extend(unread.map(|s| Unread { segment: Segment::clone(&s), why: why.to_string() }));
    }

    /// What has changed since an earlier manifest.
    pub fn since(&self, old: &Manifest) -> Commit {
        let before: HashSet<&str> = old.kept().map(|s| s.path.as_str()).collect();
        let now: HashSet<&str> = self.kept().map(|s| s.path.as_str()).collect();
        Commit {
            version: self.version,
            wal_floor: self.wal_floor,
            added: self.segments.iter().filter(|s| !before.contains(s.path.as_str())).cloned().collect(),
            removed: before.difference(&now).map(|path| path.to_string()).collect(),
            attr_types: types_since(&self.attr_types, &old.attr_types),
            set_aside: self.set_aside.iter().filter(|item| !old.set_aside.contains(item)).cloned().collect(),
            doomed_media: (self.doomed_media != old.doomed_media).then(|| self.doomed_media.clone()),
            flushed: None,
            identities: Vec::new(),
        }
    }

    /// Takes in commits that follow each other. No path is ever used again, so it does not matter which commit added and
    /// which removed it.
    pub fn apply(&mut self, commits: impl IntoIterator<Item = Commit>) {
        let mut removed = HashSet::new();
        for commit in commits {
            self.version = commit.version;
            self.wal_floor = self.wal_floor.max(commit.wal_floor);
            self.segments.extend(commit.added);
            self.set_aside.extend(commit.set_aside);
            self.doomed_media = commit.doomed_media.unwrap_or(std::mem::take(&mut self.doomed_media));
            commit.attr_types.into_iter().for_each(|(table, types)| self.learn(table, types));
            removed.extend(commit.removed);
        }
        self.remove(|segment| removed.contains(&segment.path));
        self.gone.extend(removed);
    }

    pub fn learn(&mut self, table: String, types: AttrTypes) {
        if types.is_empty() {
            return;
        }
        let known = self.attr_types.entry(table).or_default();
        for (column, keys) in types {
            let known = known.entry(column).or_default();
            keys.into_iter().for_each(|(key, bits)| *known.entry(key).or_default() |= bits);
        }
    }
}

/// Keys whose types are not among the `old` ones.
fn types_since(new: &BTreeMap<String, AttrTypes>, old: &BTreeMap<String, AttrTypes>) -> BTreeMap<String, AttrTypes> {
    let mut since: BTreeMap<String, AttrTypes> = BTreeMap::new();
    for (table, columns) in new {
        for (column, keys) in columns {
            let old = old.get(table).and_then(|columns| columns.get(column));
            let is_new = |(key, bits): &(&String, &u8)| old.and_then(|old| old.get(*key)) != Some(bits);
            let keys: BTreeMap<String, u8> =
                keys.iter().filter(is_new).map(|(key, bits)| (key.clone(), *bits)).collect();
            if !keys.is_empty() {
                since.entry(table.clone()).or_default().insert(column.clone(), keys);
            }
        }
    }
    since
}
