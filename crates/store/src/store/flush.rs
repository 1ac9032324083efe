//! Flushing: the tail becomes segments.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use rollscope_model::Table;

use super::shared::{Shared, What};
use super::writer::WRITER;
use crate::commits::Commits;
use crate::error::StoreError;
use crate::identity::IdentitySet;
use crate::manifest::{MISSING, Manifest, Segment, Unread};
use crate::segment::{self, Effort, NewSegment};
use crate::tail::Replaced;
use crate::wal;

/// Open spans that are carried from log file to log file instead of being written as open.
const MAX_CARRIED: usize = 100_000;
/// How often a flush is tried at once if other writers of a lake are faster.
const CONFLICTS: usize = 5;

#[derive(Default)]
pub(super) struct FlushState {
    pub(super) failure: Option<StoreError>,
}

impl Shared {
    pub(super) fn flush_due(&self) -> bool {
        let state = self.state.read();
        state.has_sealed()
            || state.active_bytes() >= self.options.flush_bytes
            || Table::ALL.iter().any(|t| state.active_rows(*t) >= self.options.flush_rows)
            || state.first_at.is_some_and(|at| at.elapsed() >= self.options.flush_age())
    }

    pub(super) async fn wait_for_flush_request(&self) {
        self.flush_wanted.notified().await;
    }

    pub(super) async fn flush(&self) -> Result<(), StoreError> {
        let result = self.try_flush().await;
        self.tell_flushed(&result);
        result
    }

    fn tell_flushed(&self, result: &Result<(), StoreError>) {
        match result {
            Ok(()) => self.flush_state.lock().failure = None,
            Err(e) => {
                self.note_fence(e);
                self.counters.flush_errors.fetch_add(1, Ordering::Relaxed);
                self.flush_state.lock().failure = Some(e.again());
            }
        }
        self.flush_done.notify_all();
    }

    async fn try_flush(&self) -> Result<(), StoreError> {
        let mut commit = self.commit.lock().await;
        match self.seal(None).await? {
            true => self.write_sealed(&mut commit, None).await,
            false => Ok(()),
        }
    }

    /// A flush that leaves out a run, and drops its segments in the same commit.
    pub(super) async fn flush_but(&self, run_id: &str) -> Result<(), StoreError> {
        let mut commit = self.commit.lock().await;
        let shares = |unread: &&Unread| unread.segment.is_shared() && unread.segment.part(run_id).is_some();
        if let Some(unread) = self.state.read().manifest.unread.iter().find(shares) {
            return Err(StoreError::Unreadable(format!("this run shares a file with others: {}", unread.problem())));
        }
        let mut flushed = async || {
            // A generation left over from a flush that failed was closed before: it goes first.
            if self.state.read().has_sealed() {
                self.write_sealed(&mut commit, None).await?;
            }
            self.seal(Some(run_id)).await?;
            self.write_sealed(&mut commit, Some(run_id)).await?;
            // No segment says that others are deleted: it stands in both files of the manifest.
            self.write_manifest(&mut commit).await;
            Ok(())
        };
        let result = flushed().await;
        self.tell_flushed(&result);
        result
    }

    /// Makes segments of the sealed generation, without the rows and segments of the run `but`.
    async fn write_sealed(&self, commits: &mut Commits, but: Option<&str>) -> Result<(), StoreError> {
        if self.vitals.is_dead(WRITER) {
            // It may have died half-way through a change of the tail. The log has all that was acknowledged.
            return Err(self.gone());
        }
        let started = Instant::now();
        let floor = self.writer.lock().await.sealed_floor;
        for attempt in 1.. {
            self.refresh(commits).await?;
            match self.write_groups(commits, floor, but).await {
                // What others have written meanwhile is looked at first.
                Err(StoreError::Conflict) if attempt < CONFLICTS => {}
                Err(e) => return Err(e),
                Ok(()) => break,
            }
        }
        if let Commits::Lake(tables) = commits {
            tables.finish_takeovers().await?;
        }
        self.logs.forget(floor).await?;
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        self.counters.flush_ms.fetch_add(started.elapsed().as_millis() as u64, Ordering::Relaxed);
        Ok(())
    }

    async fn write_groups(&self, commits: &mut Commits, floor: u64, but: Option<&str>) -> Result<(), StoreError> {
        for tables in commits.groups() {
            self.write_tables(commits, &tables, floor, but).await?;
        }
        Ok(())
    }

    /// The same for tables that are committed together.
    async fn write_tables(
        &self,
        commits: &mut Commits,
        tables: &[Table],
        floor: u64,
        but: Option<&str>,
    ) -> Result<(), StoreError> {
        let work: Vec<(Table, Vec<RecordBatch>, Replaced)> = {
            let state = self.state.read();
            let rows = |table: Table| {
                let t = &state.tables[table as usize];
                (table, t.sealed.iter().map(|c| c.visible()).collect(), t.replaced_by_sealed.clone())
            };
            tables.iter().copied().map(rows).collect()
        };
        let flushed = match tables {
            [table] => (!self.state.read().tables[*table as usize].sealed.is_empty()).then_some((*table, floor)),
            _ => None,
        };
        let mut manifest = Manifest::clone(&self.state.read().manifest);
        let mut fresh: Vec<NewSegment> = Vec::new();
        let mut gone: Vec<String> = Vec::new();
        let mut doomed_media: HashSet<String> = manifest.doomed_media.drain(..).collect();
        let mut deleted = Vec::new();
        if let Some(run) = but {
            let is_of = |s: &Segment| tables.iter().any(|table| table.name() == s.table);
            let is_own = |s: &Segment| is_of(s) && !s.is_shared() && s.part(run).is_some();
            let own: Vec<Segment> = manifest.kept().filter(|s| is_own(s)).cloned().collect();
            manifest.remove(is_own);
            self.media_named_in(&own, &mut doomed_media).await;
            deleted.extend(own.into_iter().map(|segment| segment.path));
        }
        for (table, mut batches, replaced) in work {
            // Rows of older segments that newer rows replace: those segments are written again without them. One that has
            // no others is replaced by what is flushed now.
            let mut emptied = Vec::new();
            let is_deleted_from = |s: &Segment| but.is_some_and(|run| s.part(run).is_some());
            let mut changed = replaced.in_segments(table, &manifest);
            let shared = manifest.segments_of(table).filter(|s| is_deleted_from(s) && !changed.contains(s));
            changed.extend(shared.cloned().collect::<Vec<_>>());
            for old in changed {
                match self.rewrite_without(table, &old, &replaced.keys, but, &mut doomed_media).await {
                    Ok(None) => {}
                    Ok(Some(rewritten)) => {
                        if rewritten.is_empty() {
                            emptied.push(old.path.clone());
                        }
                        fresh.extend(rewritten);
                        gone.push(old.path.clone());
                    }
                    // One bad file does not keep the rows of all others in memory.
                    Err(StoreError::Damaged(why)) => match self.quarantine(&old.path, why).await {
                        Ok(item) => {
                            manifest.remove(|s| s.path == old.path);
                            manifest.set_aside.push(item);
                        }
                        Err(why) if !is_deleted_from(&old) => manifest.leave_out(&old.path, &why),
                        Err(why) => return Err(StoreError::Damaged(why)),
                    },
                    Err(StoreError::Unreadable(why)) if !is_deleted_from(&old) => manifest.leave_out(&old.path, &why),
                    // In a lake: there is nothing left to write again, or to delete.
                    Err(e) if e.is_missing() => match is_deleted_from(&old) {
                        true => gone.push(old.path.clone()),
                        false => manifest.leave_out(&old.path, MISSING),
                    },
                    Err(e) => return Err(e),
                }
            }
            if let Some(run) = but {
                if table == Table::Conversations {
                    batches.iter().for_each(|b| crate::media::named_in(b, Some(run), &mut doomed_media));
                }
                batches = batches.iter().map(|b| segment::without_run(b, run)).collect::<Result<_, _>>()?;
            }
            batches.retain(|b| b.num_rows() > 0);
            if !batches.is_empty() {
                fresh.extend(self.build(table, batches, Effort::Flush, emptied).await?);
            }
        }
        manifest.doomed_media = doomed_media.into_iter().collect();
        manifest.remove(|s| gone.contains(&s.path));
        let identities = self.put_segments(fresh).await?;
        manifest.segments.extend(identities.iter().map(|(segment, _)| segment.clone()));
        if self.logs.are_files() {
            manifest.wal_floor = manifest.wal_floor.max(floor);
        }
        let what = What { deleted: &deleted, flushed, identities: &identities };
        self.commit_manifest(commits, manifest, what, |state, writer| {
            tables.iter().for_each(|table| state.drop_sealed(*table));
            state.settled = match but {
                None => state.settled.max(state.sealed_at),
                Some(_) => state.version + 1,
            };
            tables.iter().for_each(|table| writer.indices[*table as usize].drop_sealed());
            for (segment, set) in &identities {
                writer.known.insert(segment, set.clone());
            }
        })
        .await
    }

    /// What a segment becomes without rows that are replaced, and without the run `but`, whose media are `doomed`. `None`:
    /// it stays as it is.
    async fn rewrite_without(
        &self,
        table: Table,
        old: &Arc<Segment>,
        replaced: &HashSet<u128>,
        but: Option<&str>,
        doomed: &mut HashSet<String>,
    ) -> Result<Option<Vec<NewSegment>>, StoreError> {
        let but = but.filter(|run| old.part(run).is_some());
        let holds_one = |identities: &IdentitySet| replaced.iter().any(|key| identities.contains(*key));
        let damaged = |e: StoreError| StoreError::Damaged(e.to_string());
        let known = self.writer.lock().await.known.get(old);
        if but.is_none() && known.as_deref().is_some_and(|identities| !holds_one(identities)) {
            return Ok(None);
        }
        let data = self.read_segment(old).await?;
        let is_known = but.is_some() || known.is_some();
        if !is_known && !holds_one(&segment::read_identities(table, data.clone()).map_err(damaged)?.0) {
            return Ok(None);
        }
        let mut kept = Vec::new();
        for batch in segment::read_batches(table, data).map_err(damaged)? {
            let batch = segment::without(table, batch, replaced)?;
            kept.push(match but {
                None => batch,
                Some(run) => {
                    if table == Table::Conversations {
                        crate::media::named_in(&batch, Some(run), doomed);
                    }
                    segment::without_run(&batch, run)?
                }
            });
        }
        if kept.iter().all(|b| b.num_rows() == 0) {
            return Ok(Some(Vec::new()));
        }
        Ok(Some(self.build(table, kept, Effort::Flush, vec![old.path.clone()]).await?))
    }

    /// Hashes that the conversations in these segments name. A segment that cannot be read names nothing.
    async fn media_named_in(&self, segments: &[Segment], hashes: &mut HashSet<String>) {
        let snapshot = self.state.read().snapshot(self.root.objects.clone());
        for segment in segments.iter().filter(|s| s.table == Table::Conversations.name()) {
            if let Err(e) = crate::media::named_in_segment(&snapshot, segment, hashes).await {
                tracing::warn!(file = segment.path, error = %e, "cannot read a segment of a deleted run; its media are kept");
            }
        }
    }

    /// Starts a new log file and a new generation. False if there is nothing to flush. A sealed generation left over
    /// from a flush that failed is taken up again. Open spans go on in the new generation, except those of the run `but`.
    async fn seal(&self, but: Option<&str>) -> Result<bool, StoreError> {
        let mut writer = self.writer.lock().await;
        let carried = {
            let state = self.state.read();
            if state.has_sealed() {
                return Ok(true);
            }
            // A deletion starts a new log in any case: the old one may hold rows of the run that were refused, because they
            // could not be synced, and that would come back with the next start.
            if !state.has_active() && but.is_none() {
                return Ok(false);
            }
            if self.is_closed() { None } else { state.open_spans(MAX_CARRIED, but)? }
        };
        let record = carried.as_ref().map(|batch| wal::encode(Table::Spans, batch)).transpose()?;
        // Readers go on meanwhile. Nobody changes what they see, because that takes the writer.
        writer.sealed_floor = writer.log.begin(record.as_deref())?;
        let mut state = self.state.write();
        state.seal(&mut writer.indices, carried);
        Ok(state.has_sealed())
    }

    /// Waits while the current flush has to catch up. Fails if flushing fails: then only space helps.
    pub(super) fn wait_for_room(&self) -> Result<(), StoreError> {
        let mut flush = self.flush_state.lock();
        loop {
            let (active, sealed) = {
                let state = self.state.read();
                (state.active_bytes(), state.has_sealed())
            };
            if active < self.options.flush_bytes || (!sealed && active < self.options.tail_limit_bytes()) {
                return Ok(());
            }
            self.flush_wanted.notify_one();
            if let Some(failure) = &flush.failure {
                return Err(failure.again());
            }
            self.flush_done.wait_for(&mut flush, Duration::from_millis(200));
        }
    }
}
