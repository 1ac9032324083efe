//! Identities of rows that are in segments already, loaded when a batch overlaps a segment in time, bounded in memory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rollscope_model::Table;

use crate::error::StoreError;
use crate::identity::IdentitySet;
use crate::manifest::{Manifest, Segment};
use crate::root::Root;
use crate::segment;
use crate::tail::{Incoming, KnownSegment, candidates};

struct Entry {
    identities: Arc<IdentitySet>,
    open: Arc<HashSet<u128>>,
    used: u64,
}

pub(crate) struct KnownSegments {
    entries: HashMap<String, Entry>,
    limit: usize,
    clock: u64,
    /// Segments that were not checked because the memory was used up. Compaction finds their duplicates.
    pub skipped: u64,
    /// Segments that could not be read, for the upkeep to look at.
    unreadable: HashSet<String>,
    /// Segments that rows in the tail were not compared with. In a lake, they are read again before a flush.
    unchecked: HashSet<String>,
}

impl KnownSegments {
    pub fn new(limit: usize) -> KnownSegments {
        KnownSegments {
            entries: HashMap::new(),
            limit,
            clock: 0,
            skipped: 0,
            unreadable: HashSet::new(),
            unchecked: HashSet::new(),
        }
    }

    pub fn bytes(&self) -> usize {
        self.entries.values().map(|e| e.identities.len() * 16).sum()
    }

    /// The identities of a segment, if they are at hand.
    pub fn get(&self, segment: &Segment) -> Option<Arc<IdentitySet>> {
        self.entries.get(&segment.path).map(|e| e.identities.clone())
    }

    pub fn note_unreadable(&mut self, path: String) {
        self.unreadable.insert(path);
    }

    pub fn is_unchecked(&self, path: &str) -> bool {
        self.unchecked.contains(path)
    }

    /// The tail was compared with it after all, or it cannot be.
    pub fn checked(&mut self, path: &str) {
        self.unchecked.remove(path);
    }

    pub fn take_unreadable(&mut self) -> HashSet<String> {
        std::mem::take(&mut self.unreadable)
    }

    /// A segment just written: its identities are at hand.
    pub fn insert(&mut self, segment: &Segment, identities: Arc<IdentitySet>) {
        if !segment.has_open {
            self.put(segment.path.clone(), identities, HashSet::new());
        }
    }

    fn put(&mut self, path: String, identities: Arc<IdentitySet>, open: HashSet<u128>) {
        self.clock += 1;
        self.entries.insert(path, Entry { identities, open: Arc::new(open), used: self.clock });
        while self.bytes() > self.limit && self.entries.len() > 1 {
            let oldest = self.entries.iter().min_by_key(|(_, e)| e.used).map(|(path, _)| path.clone());
            oldest.map(|path| self.entries.remove(&path));
        }
    }

    /// A segment that others have written, for comparing it with what is here. `None`: it cannot be compared. Compaction finds its duplicates.
    pub async fn read(root: &Root, segment: &Arc<Segment>) -> Result<Option<KnownSegment>, StoreError> {
        let table = Table::from_name(&segment.table).expect("manifests name known tables");
        let read = root.read_segment(segment).await.and_then(|data| segment::read_identities(table, data));
        match read {
            Ok((identities, open)) => {
                let (identities, open) = (Arc::new(identities), Arc::new(open.into_iter().collect()));
                Ok(Some(KnownSegment { segment: segment.clone(), identities, open }))
            }
            Err(e @ (StoreError::Damaged(_) | StoreError::Parquet(_) | StoreError::Arrow(_))) => {
                tracing::warn!(file = segment.path, error = %e, "cannot read the segment to check for duplicates");
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// The segments that may hold rows of this batch, newest first, as far as memory allows.
    pub fn of(
        &mut self,
        incoming: &Incoming,
        manifest: &Manifest,
        root: &Root,
        handle: &tokio::runtime::Handle,
    ) -> Vec<KnownSegment> {
        let mut found = Vec::new();
        let mut budget = self.limit;
        let segments: Vec<Arc<Segment>> = candidates(incoming, manifest).into_iter().rev().cloned().collect();
        for segment in segments {
            let needed = segment.rows as usize * 16;
            let is_unreadable = self.unreadable.contains(&segment.path);
            if needed > budget || is_unreadable {
                self.skipped += 1;
                if is_unreadable {
                    self.unchecked.insert(segment.path.clone());
                }
                continue;
            }
            budget -= needed;
            if !self.entries.contains_key(&segment.path) {
                let table = Table::from_name(&segment.table).expect("manifests name known tables");
                let data = handle.block_on(root.read_segment(&segment));
                let loaded = data.and_then(|data| segment::read_identities(table, data));
                match loaded {
                    Ok((identities, open)) => {
                        self.put(segment.path.clone(), Arc::new(identities), open.into_iter().collect());
                    }
                    Err(e) => {
                        tracing::warn!(file = segment.path, error = %e, "cannot read the segment to check for duplicates");
                        self.note_unreadable(segment.path.clone());
                        self.unchecked.insert(segment.path.clone());
                        self.skipped += 1;
                        continue;
                    }
                }
            }
            self.clock += 1;
            if let Some(entry) = self.entries.get_mut(&segment.path) {
                entry.used = self.clock;
                let (identities, open) = (entry.identities.clone(), entry.open.clone());
                found.push(KnownSegment { segment, identities, open });
            }
        }
        found
    }
}
