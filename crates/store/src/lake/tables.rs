//! Commits of one writer to the tables of a lake.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use rollscope_model::Table;

use super::log::WriterLog;
use super::{TableChange, TableVersion, Tables};
use crate::error::StoreError;
use crate::identity::IdentitySet;
use crate::known::KnownSegments;
use crate::manifest::{AttrTypes, Commit, Identities, Manifest, Segment, Uncommitted};
use crate::root::Root;

/// How long a commit is tried.
const PATIENCE: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The mark of a table in which a writer must not commit any more.
pub(super) fn fence_of(writer: &str) -> String {
    format!("fence:{writer}")
}

/// The tables as one writer has seen and changed them.
pub(crate) struct LakeTables {
    tables: Arc<dyn Tables>,
    root: Root,
    writer: String,
    seen: [TableVersion; Table::COUNT],
    /// Tables of which the outcome of a commit is not known.
    unsure: [bool; Table::COUNT],
    /// Logs that are copied to ours, and are still to be deleted, up to a number: before what was copied can be forgotten.
    takeovers: Vec<(WriterLog, u64)>,
}

/// What a table has now.
pub(crate) struct Listed {
    pub segments: Vec<Arc<Segment>>,
    pub attr_types: AttrTypes,
    /// The last number of this writer's log that is in the table. `None`: there is none.
    pub logged: Option<u64>,
}

impl LakeTables {
    pub fn new(tables: Arc<dyn Tables>, root: &Root, writer: &str) -> LakeTables {
        LakeTables {
            tables,
            root: root.clone(),
            writer: writer.into(),
            seen: Default::default(),
            unsure: Default::default(),
            takeovers: Vec::new(),
        }
    }

    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Takes in what others have committed.
    pub async fn list(&mut self) -> Result<Vec<(Table, Listed)>, StoreError> {
        let versions = try_join_all(Table::ALL.map(|table| self.tables.read(table))).await?;
        let mut all = Vec::with_capacity(versions.len());
        for (table, version) in Table::ALL.into_iter().zip(&versions) {
            // Always, and not only when something has changed: whoever asked before may have failed before it used the answer.
            let marks = self.tables.marks(table, &[fence_of(&self.writer), self.writer.clone()]).await?;
            if marks[0].is_some() {
                return Err(StoreError::Fenced);
            }
            let logged = marks[1];
            let TableVersion { segments, attr_types, .. } = version.clone();
            all.push((table, Listed { segments, attr_types, logged }));
        }
        // What is unsure stays so until somebody has committed after it: it may still come.
        for (table, version) in Table::ALL.into_iter().zip(versions) {
            self.unsure[table as usize] &= version.number == self.seen[table as usize].number;
            self.seen[table as usize] = version;
        }
        Ok(all)
    }

    /// The same as a manifest.
    pub async fn manifest(&mut self) -> Result<Manifest, StoreError> {
        let mut manifest = Manifest::default();
        for (table, listed) in self.list().await? {
            manifest.segments.extend(listed.segments);
            manifest.learn(table.name().to_string(), listed.attr_types);
        }
        Ok(manifest)
    }

    /// Commits a change of one table.
    pub async fn commit(&mut self, commit: Commit, manifest: &Manifest) -> Result<(), Uncommitted> {
        let certain = |error| Uncommitted { error, is_certain: true };
        let named =
            commit.added.first().map(|s| s.table.as_str()).or_else(|| commit.removed.first()?.split('/').next());
        let named = named.and_then(Table::from_name).or(commit.flushed.map(|(table, _)| table));
        let Some(table) = named else { return Ok(()) };
        let t = table as usize;
        let is_removed = |s: &&Arc<Segment>| commit.removed.contains(&s.path);
        let removed: Vec<Arc<Segment>> = self.seen[t].segments.iter().filter(is_removed).cloned().collect();
        if removed.len() != commit.removed.len() {
            return Err(certain(StoreError::Conflict));
        }
        let flushed = commit.flushed.map(|(_, floor)| floor.saturating_sub(1));
        let change = TableChange {
            is_new: flushed.is_some() || commit.added.is_empty(),
            added: commit.added,
            removed,
            attr_types: manifest.attr_types.get(table.name()).cloned().unwrap_or_default(),
            marks: flushed.map(|number| (self.writer.clone(), number)).into_iter().collect(),
        };
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let after = self.seen[t].number;
            let error = match self.tables.append(table, after, &change).await {
                Ok(true) => {
                    self.seen[t].number += 1;
                    self.seen[t].segments.retain(|s| !commit.removed.contains(&s.path));
                    self.seen[t].segments.extend(change.added.iter().cloned());
                    return Ok(());
                }
                Ok(false) => StoreError::Busy(format!("many change the table {} at once", table.name())),
                Err(e) => e,
            };
            self.unsure[t] = true;
            match self.tables.read(table).await {
                // Somebody was first, perhaps this very change.
                Ok(now) if now.number > after => {
                    let before = std::mem::replace(&mut self.seen[t], now);
                    let is_live = |segment: &Arc<Segment>| self.seen[t].segments.iter().any(|s| s.path == segment.path);
                    // No name is used twice: one file proves it. The others may have been merged already.
                    if change.added.iter().any(is_live) {
                        self.unsure[t] = false;
                        return Ok(());
                    }
                    let names = [fence_of(&self.writer), self.writer.clone()];
                    let marks = self.tables.marks(table, &names).await;
                    let marks = marks.map_err(|error| Uncommitted { error, is_certain: false })?;
                    if marks[0].is_some() {
                        return Err(certain(StoreError::Fenced));
                    }
                    if let (Some(number), Some(logged)) = (flushed, marks[1])
                        && logged >= number
                    {
                        // An earlier attempt, of which nobody knew. The next one finds it.
                        return match change.added.is_empty() {
                            true => Ok(()),
                            false => Err(certain(StoreError::Busy("an earlier flush has succeeded after all".into()))),
                        };
                    }
                    if !change.removed.iter().all(is_live) {
                        return Err(certain(StoreError::Conflict));
                    }
                    // Rows that others have added now must not be added again.
                    let shared = is_any_in(&self.root, &commit.identities, &before, &self.seen[t]).await;
                    if shared.map_err(certain)? {
                        return Err(certain(StoreError::Conflict));
                    }
                    self.unsure[t] = false;
                    if begun.elapsed() > PATIENCE {
                        return Err(certain(error));
                    }
                }
                _ if begun.elapsed() > PATIENCE => return Err(Uncommitted { error, is_certain: false }),
                _ => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// A log that was copied to ours.
    pub fn taken_over(&mut self, log: WriterLog, fence: u64) {
        self.takeovers.push((log, fence));
    }

    pub fn has_copied(&self, writer: &str) -> bool {
        self.takeovers.iter().any(|(log, _)| log.writer == writer)
    }

    /// Deletes the logs that were copied.
    pub async fn finish_takeovers(&mut self) -> Result<(), StoreError> {
        while let Some((log, fence)) = self.takeovers.last() {
            log.forget(*fence).await?;
            self.takeovers.pop();
        }
        Ok(())
    }

    /// Keeps a writer from committing anything more, and returns the last numbers of its log that are in the tables.
    pub async fn fence(&mut self, writer: &str) -> Result<[u64; Table::COUNT], StoreError> {
        let mut floors = [0; Table::COUNT];
        let names = [fence_of(writer), writer.to_string()];
        for table in Table::ALL {
            let begun = Instant::now();
            let mut pause = FIRST_PAUSE;
            loop {
                let now = self.tables.read(table).await?;
                let marks = self.tables.marks(table, &names).await?;
                let change = TableChange {
                    attr_types: now.attr_types.clone(),
                    marks: vec![(names[0].clone(), 1)],
                    ..TableChange::default()
                };
                let fenced = match marks[0] {
                    Some(_) => Ok(true),
                    None => self.tables.append(table, now.number, &change).await,
                };
                match fenced {
                    Ok(true) => {
                        floors[table as usize] = marks[1].unwrap_or(0);
                        break;
                    }
                    Err(e) if begun.elapsed() > PATIENCE => return Err(e),
                    _ => {}
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        Ok(floors)
    }

    /// Has anybody taken over the log of one of these writers, as the tables were last read?
    pub async fn is_any_fenced(&self, writers: &[String]) -> Result<bool, StoreError> {
        let fences: Vec<String> = writers.iter().map(|writer| fence_of(writer)).collect();
        for table in Table::ALL {
            if self.tables.marks(table, &fences).await?.iter().any(Option::is_some) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The last numbers of a writer's log that are in the tables, as they were last read.
    pub async fn floors(&self, writers: &[String]) -> Result<Vec<[u64; Table::COUNT]>, StoreError> {
        let mut floors = vec![[0; Table::COUNT]; writers.len()];
        for table in Table::ALL {
            for (floors, mark) in floors.iter_mut().zip(self.tables.marks(table, writers).await?) {
                floors[table as usize] = mark.unwrap_or(0);
            }
        }
        Ok(floors)
    }
}

/// Is any of `ours` in a segment that came between two versions of a table?
async fn is_any_in(
    root: &Root,
    ours: &Identities,
    before: &TableVersion,
    now: &TableVersion,
) -> Result<bool, StoreError> {
    for theirs in new_segments(before, now) {
        let ours: Vec<&IdentitySet> =
            ours.iter().filter(|(own, _)| may_meet(own, &theirs)).map(|(_, set)| &**set).collect();
        if ours.is_empty() {
            continue;
        }
        if let Some(theirs) = KnownSegments::read(root, &theirs).await?
            && ours.iter().any(|identities| identities.meets(&theirs.identities))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn new_segments(before: &TableVersion, now: &TableVersion) -> Vec<Arc<Segment>> {
    let known: HashSet<&str> = before.segments.iter().map(|segment| segment.path.as_str()).collect();
    now.segments.iter().filter(|segment| !known.contains(segment.path.as_str())).cloned().collect()
}

/// May two segments hold the same row?
fn may_meet(one: &Segment, other: &Segment) -> bool {
    let is_in_time = one.min_time <= other.max_time && other.min_time <= one.max_time;
    (one.has_open || other.has_open || is_in_time) && one.runs().any(|run| other.part(run).is_some())
}
