//! What the handles, the writer thread and the background work of a store share.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use futures::future::BoxFuture;
use parking_lot::{Condvar, Mutex, RwLock};
use rollscope_model::Table;
use rollscope_model::time::now_ns;
use tokio::sync::{mpsc, watch};

use super::flush::FlushState;
use super::follow::Follower;
use super::writer::{Request, WRITER, Writer};
use crate::commits::Commits;
use crate::error::StoreError;
use crate::identity::IdentitySet;
use crate::known::KnownSegments;
use crate::lake::{self, FilesFound, Heir, Listed, NodeEntry, Nodes, SeenNode, Silent, Stuck, Watch};
use crate::lock::Lock;
use crate::logs::Logs;
use crate::manifest::{Identities, MISSING, Manifest, Segment, SetAside, Unread};
use crate::options::StoreOptions;
use crate::root::Root;
use crate::segment::{self, Effort, NewSegment};
use crate::tail::{Incoming, KnownSegment, State};
use crate::touched::{self, Touched};
use crate::vitals::Vitals;
use crate::wal;

/// What was worked out from rows.
#[derive(Default)]
pub(super) struct Derived {
    /// Bytes that this process has written since it looked at all of it.
    pub(super) written: Arc<AtomicU64>,
    pub(super) looked: Mutex<Option<Instant>>,
}

pub(super) struct Shared {
    pub(super) options: StoreOptions,
    pub(super) root: Root,
    pub(super) state: RwLock<State>,
    /// It may be held while the log waits for a network, so nobody who waits for it may keep a thread of the reactor.
    pub(super) writer: tokio::sync::Mutex<Writer>,
    pub(super) queue: Mutex<Option<mpsc::Sender<Request>>>,
    /// Held for writing while a run is deleted.
    pub(super) gate: tokio::sync::RwLock<()>,
    /// Commits to the manifest happen one at a time.
    pub(super) commit: tokio::sync::Mutex<Commits>,
    pub(super) flush_wanted: tokio::sync::Notify,
    pub(super) flush_state: Mutex<FlushState>,
    pub(super) flush_done: Condvar,
    pub(super) changes: watch::Sender<u64>,
    pub(super) counters: Counters,
    /// Unique in this store: part of the name of every segment.
    pub(super) writer_id: String,
    pub(super) names: AtomicU64,
    /// Files to delete, and when.
    pub(super) doomed: Mutex<Vec<(Instant, String)>>,
    pub(super) derived: Derived,
    /// Segments of commits that failed, but may be there at the next start: to be deleted after the next commit.
    pub(super) unsettled: Mutex<Vec<String>>,
    pub(super) logs: Logs,
    pub(super) closed: AtomicBool,
    pub(super) lock: Mutex<Option<Lock>>,
    /// Of a lake.
    pub(super) node: Option<NodeEntry>,
    pub(super) watch: tokio::sync::Mutex<Option<Watch>>,
    /// Who was there when this node last looked.
    pub(super) nodes: RwLock<Vec<SeenNode>>,
    pub(super) looking: tokio::sync::Mutex<Option<Nodes>>,
    /// Files that no table named when they were last looked for.
    pub(super) left_over: Mutex<HashSet<String>>,
    /// Since when this node cannot say that it is there, and why.
    pub(super) unheard: Mutex<Option<(Instant, String)>>,
    /// What was read of the logs of others.
    pub(super) follower: tokio::sync::Mutex<Option<Follower>>,
    pub(super) follow_problems: Mutex<Vec<String>>,
    /// Whether the object store takes the log.
    pub(super) stuck: Stuck,
    /// Another writer has taken over.
    pub(super) is_fenced: AtomicBool,
    pub(super) set_aside_now: Mutex<Vec<SetAside>>,
    pub(super) touched: Touched,
    pub(super) vitals: Vitals,
}

/// How long running queries may use what a user deleted.
const DELETED_GRACE: Duration = Duration::from_secs(5);

/// What a commit is about.
#[derive(Clone, Copy, Default)]
pub(super) struct What<'a> {
    /// Files that a user deleted.
    pub(super) deleted: &'a [String],
    pub(super) flushed: Option<(Table, u64)>,
    /// Of the segments that a flush has written.
    pub(super) identities: &'a [(Arc<Segment>, Arc<IdentitySet>)],
}

/// Background work holds the store weakly: it ends when the last handle is gone.
pub(super) type WeakShared = Weak<Shared>;

#[derive(Default)]
pub(super) struct Counters {
    pub(super) rows: [AtomicU64; Table::COUNT],
    pub(super) duplicates: AtomicU64,
    pub(super) log_bytes: AtomicU64,
    pub(super) log_syncs: AtomicU64,
    pub(super) append_errors: AtomicU64,
    pub(super) flushes: AtomicU64,
    pub(super) flush_errors: AtomicU64,
    pub(super) flush_ms: AtomicU64,
    pub(super) compactions: AtomicU64,
    pub(super) expired_segments: AtomicU64,
    /// Of the writer, so that nobody has to wait for it to ask how it is.
    pub(super) part_bytes: AtomicU64,
    pub(super) known_bytes: AtomicU64,
    pub(super) known_skipped: AtomicU64,
}

impl Counters {
    pub(super) fn note(&self, writer: &Writer) {
        self.part_bytes.store(writer.log.bytes(), Ordering::Relaxed);
        self.known_bytes.store(writer.known.bytes() as u64, Ordering::Relaxed);
        self.known_skipped.store(writer.known.skipped, Ordering::Relaxed);
    }
}

/// Takes what others have left while senders go on. No flush begins meanwhile: whoever adopts holds the lock of commits.
struct LivingWriter<'a>(&'a Shared);

impl Heir for LivingWriter<'_> {
    fn take(&mut self, records: Vec<u8>, rows: Vec<(Table, RecordBatch)>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let shared = self.0;
            // What cannot be shown must not be copied: the next flush would forget it.
            let rows = rows.into_iter().map(|(table, batch)| {
                let steps = touched::steps(table, &batch);
                Ok((Incoming::new(table, segment::upgrade(table, &batch)?), steps))
            });
            let rows = rows.collect::<Result<Vec<_>, StoreError>>()?;
            let mut writer = shared.writer.lock().await;
            let writer = &mut *writer;
            wal::append(&mut *writer.log, &records)?;
            let (manifest, handle) = (shared.state.read().manifest.clone(), tokio::runtime::Handle::current());
            tokio::task::block_in_place(|| {
                for (incoming, steps) in rows {
                    let table = incoming.table;
                    let known = writer.known.of(&incoming, &manifest, &shared.root, &handle);
                    let admitted = writer.indices[table as usize].admit(incoming, &known);
                    shared.state.write().publish(admitted);
                    shared.touched.note(steps);
                }
            });
            let mut state = shared.state.write();
            state.coalesce(&mut writer.indices);
            shared.changes.send_replace(state.version);
            Ok(())
        })
    }
}

impl Shared {
    pub(super) fn new_name(&self) -> String {
        format!("{:020}{:03}", now_ns(), self.names.fetch_add(1, Ordering::Relaxed) % 1000)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Why the writer does not answer.
    pub(super) fn gone(&self) -> StoreError {
        let death = self.vitals.deaths().into_iter().find(|death| death.part == WRITER);
        death.map_or(StoreError::Closed, StoreError::Failed)
    }

    /// Changes the manifest on disk, then in memory together with `also`, so that readers see both or neither, and the
    /// writer admits every group of rows against one of them. What was removed is deleted once readers had time to finish:
    /// little for what a user `deleted`, which no query finds any more.
    ///
    /// A lake may take a part of it, which stays then.
    pub(super) async fn commit_manifest(
        &self,
        commits: &mut Commits,
        mut manifest: Manifest,
        what: What<'_>,
        also: impl FnOnce(&mut State, &mut Writer),
    ) -> Result<(), StoreError> {
        let mut commit = {
            let state = self.state.read();
            manifest.version = state.manifest.version + 1;
            manifest.attr_types =
                state.attr_types.iter().map(|(t, types)| (t.name().to_string(), types.clone())).collect();
            manifest.since(&state.manifest)
        };
        commit.flushed = what.flushed;
        commit.identities = what.identities.to_vec();
        let removed = commit.removed.clone();
        manifest.gone = self.doomed.lock().iter().map(|(_, path)| path).chain(&removed).cloned().collect();
        let manifest = Arc::new(manifest);
        let mut parts = commits.split(commit).into_iter();
        while let Some(part) = parts.next() {
            let added: Vec<String> = part.added.iter().map(|s| s.path.clone()).collect();
            let (table_added, table_removed) = (part.added.clone(), part.removed.clone());
            if let Err(failed) = commits.commit(part, &manifest).await {
                match failed.is_certain {
                    true => self.discard(&added).await,
                    // The next start may find it, and then needs its segments.
                    false if self.logs.are_files() => self.unsettled.lock().extend(added),
                    // So may anybody else. Files that are in no table are deleted much later.
                    false => {}
                }
                let rest: Vec<String> = parts.flat_map(|part| part.added).map(|s| s.path.clone()).collect();
                self.discard(&rest).await;
                return Err(failed.error);
            }
            if parts.len() > 0 {
                let mut state = self.state.write();
                let mut now = Manifest::clone(&state.manifest);
                now.segments.retain(|segment| !table_removed.contains(&segment.path));
                now.segments.extend(table_added);
                state.manifest = Arc::new(now);
                state.version += 1;
            }
        }
        {
            let mut writer = self.writer.lock().await;
            let mut state = self.state.write();
            state.manifest = manifest;
            also(&mut state, &mut writer);
            self.counters.note(&writer);
            state.version += 1;
            self.changes.send_replace(state.version);
        }
        let settled = std::mem::take(&mut *self.unsettled.lock());
        settled.into_iter().for_each(|path| self.doom(path, Duration::ZERO));
        for path in removed {
            // In a lake, other nodes do not know at once.
            let is_short = what.deleted.contains(&path) && self.node.is_none();
            let grace = if is_short { DELETED_GRACE } else { Duration::MAX };
            self.doom(path, grace);
        }
        Ok(())
    }

    /// In a lake: takes in what others have committed, and what this process has, if it could not tell. A row of the tail that another
    /// node was sent, too, is there once after that. What others have flushed is not shown from their logs any more, from the same moment.
    pub(super) async fn refresh(&self, commits: &mut Commits) -> Result<(), StoreError> {
        let Commits::Lake(tables) = commits else { return Ok(()) };
        let listed = tables.list().await?;
        let followed: Vec<String> =
            self.state.read().theirs.iter().flat_map(|theirs| theirs.floors.keys().cloned()).collect();
        let floors = followed.iter().cloned().zip(tables.floors(&followed).await?).collect();
        let mut known: HashMap<String, Option<KnownSegment>> = HashMap::new();
        // Rows go on coming while segments are read, and may be in others of them.
        let (mut writer, mut state) = loop {
            let writer = self.writer.lock().await;
            let missing: Vec<Arc<Segment>> = {
                let state = self.state.read();
                let met = self.met_of_others(&state, &writer.known, &listed);
                met.into_iter().filter(|segment| !known.contains_key(&segment.path)).cloned().collect()
            };
            if missing.is_empty() {
                break (writer, self.state.write());
            }
            drop(writer);
            for segment in missing {
                let rows: usize = known.values().flatten().map(|known| known.identities.len()).sum();
                let is_too_much = (rows + segment.rows as usize) * 16 > self.options.duplicate_check_bytes;
                let read = if is_too_much { Ok(None) } else { KnownSegments::read(&self.root, &segment).await };
                // One that is gone was merged meanwhile, or somebody else has deleted it: it must not stop everything.
                let read = read.or_else(|e| if e.is_missing() { Ok(None) } else { Err(e) })?;
                if read.is_none() {
                    self.writer.lock().await.known.skipped += 1;
                }
                known.insert(segment.path.clone(), read);
            }
        };
        let writer = &mut *writer;
        let floor = writer.sealed_floor;
        let mut manifest = Manifest::clone(&state.manifest);
        manifest.segments = listed.iter().flat_map(|(_, listed)| listed.segments.iter().cloned()).collect();
        let paths: HashSet<&str> = manifest.segments.iter().map(|segment| segment.path.as_str()).collect();
        manifest.unread.retain(|unread| paths.contains(unread.segment.path.as_str()));
        let is_unread = |path: &str| manifest.unread.iter().any(|unread| unread.segment.path == path);
        manifest.segments = manifest.segments.extract_if(.., |s| !is_unread(&s.path)).collect();
        let before: HashSet<&str> = state.manifest.kept().map(|segment| segment.path.as_str()).collect();
        let is_new = |segment: &Arc<Segment>| !before.contains(segment.path.as_str());
        let has_new = manifest.segments.iter().any(is_new);
        let mut is_change = has_new || manifest.kept().count() != before.len();
        state.manifest = Arc::new(manifest);
        for (table, listed) in listed {
            state.learn(table, &listed.attr_types);
            if listed.logged.is_some_and(|logged| logged + 1 >= floor) {
                is_change |= !state.tables[table as usize].sealed.is_empty();
                state.drop_sealed(table);
                writer.indices[table as usize].drop_sealed();
                state.settled = state.settled.max(state.sealed_at);
            }
        }
        known.keys().for_each(|path| writer.known.checked(path));
        for table in Table::ALL {
            let is_of = |known: &Option<KnownSegment>| known.as_ref().is_some_and(|s| s.segment.table == table.name());
            let met: Vec<KnownSegment> =
                known.extract_if(|_, known| is_of(known)).filter_map(|(_, known)| known).collect();
            if !met.is_empty() {
                is_change = true;
                let left = state.settle(table, &mut writer.indices[table as usize], &met);
                self.counters.duplicates.fetch_add(left, Ordering::Relaxed);
            }
        }
        is_change |= state.let_pass(floors);
        // Pages read everything again when they hear of a change.
        if is_change {
            state.version += 1;
            self.changes.send_replace(state.version);
        }
        if has_new {
            state.settled = state.version;
        }
        Ok(())
    }

    /// Segments that other writers have added since this node last looked, and that may hold rows of its tail.
    fn met_of_others<'a>(
        &self,
        state: &State,
        known: &KnownSegments,
        listed: &'a [(Table, Listed)],
    ) -> Vec<&'a Arc<Segment>> {
        let before: HashSet<&str> = state.manifest.kept().map(|segment| segment.path.as_str()).collect();
        let is_new = |s: &&Arc<Segment>| {
            known.is_unchecked(&s.path) || (s.writer != self.writer_id && !before.contains(s.path.as_str()))
        };
        let of = |(table, listed): &'a (Table, Listed)| state.meeting(*table, listed.segments.iter().filter(is_new));
        listed.iter().flat_map(of).collect()
    }

    /// In a lake: how many of the nodes that are there come before this one. All could do the same upkeep; what two do at once, one does in vain.
    pub(super) fn nodes_before(&self) -> u32 {
        let Some(own) = &self.node else { return 0 };
        let nodes = self.nodes.read();
        let before = |node: &&SeenNode| node.writes && node.is_there() && node.about.name.as_str() < own.name();
        nodes.iter().filter(before).count() as u32
    }

    /// In a lake: says that this node is there.
    pub(super) async fn beat(&self) -> Result<(), StoreError> {
        let Some(node) = &self.node else { return Ok(()) };
        let rows = self.counters.rows.iter().map(|rows| rows.load(Ordering::Relaxed)).sum();
        let log_rows = self.state.read().tail_rows();
        node.beat(rows, log_rows, &HashSet::new()).await
    }

    /// In a lake: deletes what processes have left that were killed, and looks for what others have deleted. Returns the number of files that
    /// were deleted.
    pub(super) async fn clean(&self) -> Result<usize, StoreError> {
        if self.node.is_none() {
            return Ok(0);
        }
        let before = self.state.read().manifest.clone();
        let found = FilesFound::look(&self.root).await?;
        self.refresh(&mut *self.commit.lock().await).await?;
        self.note_missing(&before, &found.files()).await?;
        let manifest = self.state.read().manifest.clone();
        let live: HashSet<&str> = manifest.kept().map(|segment| segment.path.as_str()).collect();
        let now = found.left_over(|path| live.contains(path));
        let before = std::mem::replace(&mut *self.left_over.lock(), now.clone());
        let mut deleted = 0;
        for path in now.intersection(&before) {
            self.root.delete(path).await?;
            deleted += 1;
        }
        if deleted > 0 {
            tracing::info!(files = deleted, "deleted files that processes had left when they were killed");
        }
        Ok(deleted)
    }

    /// Leaves out segments of which somebody has deleted the file, so that nothing stumbles over them, and takes up again those that are back.
    /// `before`: as it was before the files were listed.
    async fn note_missing(&self, before: &Manifest, files: &HashSet<&str>) -> Result<(), StoreError> {
        for segment in before.segments.iter().filter(|segment| !files.contains(segment.path.as_str())) {
            if let Err(e) = self.read_segment(segment).await {
                self.drop_segment(&segment.path, e).await?;
            }
        }
        let is_back = |unread: &Unread| unread.why == MISSING && files.contains(unread.segment.path.as_str());
        let _commit = self.commit.lock().await;
        let _writer = self.writer.lock().await;
        let mut state = self.state.write();
        if state.manifest.unread.iter().any(is_back) {
            let mut manifest = Manifest::clone(&state.manifest);
            let back: Vec<Unread> = manifest.unread.extract_if(.., |unread| is_back(unread)).collect();
            manifest.segments.extend(back.into_iter().map(|unread| Arc::new(unread.segment)));
            state.manifest = Arc::new(manifest);
            state.version += 1;
            state.settled = state.version;
            self.changes.send_replace(state.version);
        }
        Ok(())
    }

    /// In a lake: another writer has taken over.
    pub(super) fn note_fence(&self, error: &StoreError) {
        if matches!(error, StoreError::Fenced) {
            self.is_fenced.store(true, Ordering::Relaxed);
        }
    }

    /// In a lake: takes over the logs of nodes that are silent, and puts their rows into the tail.
    pub(super) async fn adopt_silent(&self) -> Result<(), StoreError> {
        let (Some(node), mut watch) = (&self.node, self.watch.lock().await) else { return Ok(()) };
        let Some(watch) = watch.as_mut() else { return Ok(()) };
        // Whoever cannot say that it is there must not take silence for an end: perhaps nobody can write.
        if self.unheard.lock().is_some() {
            watch.begin_again();
            return Ok(());
        }
        let silent = watch.silent(node).await?;
        let orphans = lake::orphans(&self.root, &node.writer).await?;
        let mut dead: Vec<(HashSet<String>, Option<Silent>)> = vec![(orphans, None)];
        dead.extend(silent.into_iter().map(|silent| (silent.writers.clone(), Some(silent))));
        for (dead, silent) in dead.into_iter().filter(|(dead, _)| !dead.is_empty()) {
            let mut commits = self.commit.lock().await;
            if self.is_closed() || self.is_fenced.load(Ordering::Relaxed) {
                return Ok(());
            }
            // Whoever was replaced finds its fence here, and must fence nobody else.
            self.refresh(&mut commits).await?;
            let Commits::Lake(tables) = &mut *commits else { return Ok(()) };
            // Senders wait only while something is copied, not while the logs of the dead are fenced and read.
            let (mut set_aside, mut heir) = (Vec::new(), LivingWriter(self));
            let adopted = lake::adopt_dead(&self.root, tables, &mut heir, &node.writer, dead, &mut set_aside).await;
            self.set_aside_now.lock().extend(set_aside);
            adopted?;
            if let Some(silent) = silent {
                watch.settle(node, silent).await;
            }
            drop(commits);
            // Each may have left as much as one tail may hold.
            if self.flush_due() {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Brings `manifest.json` up to date.
    pub(super) async fn write_manifest(&self, commits: &mut Commits) {
        let manifest = || {
            let mut manifest = Manifest::clone(&self.state.read().manifest);
            manifest.gone = self.doomed.lock().iter().map(|(_, path)| path.clone()).collect();
            manifest
        };
        commits.write_manifest(manifest).await;
    }

    /// Writes new segments. If one cannot be written, none is left.
    pub(super) async fn put_segments(&self, new: Vec<NewSegment>) -> Result<Identities, StoreError> {
        let mut written = Vec::with_capacity(new.len());
        for new in new {
            let put = self.root.put(&new.segment.path, new.data).await;
            let path = new.segment.path.clone();
            written.push((Arc::new(new.segment), Arc::new(new.identities)));
            if let Err(e) = put {
                tracing::warn!(file = path, error = %e, "cannot write a segment");
                let paths: Vec<String> = written.iter().map(|(segment, _)| segment.path.clone()).collect();
                self.discard(&paths).await;
                return Err(e);
            }
        }
        Ok(written)
    }

    /// Deletes segments that no reader has seen: at once, because nothing fills a disk like a write that is tried again.
    pub(super) async fn discard(&self, paths: &[String]) {
        for path in paths {
            if self.root.delete(path).await.is_err() {
                self.doom(path.clone(), Duration::ZERO);
            }
        }
    }

    pub(super) async fn record_set_aside(&self, items: Vec<SetAside>) -> Result<(), StoreError> {
        let mut commit = self.commit.lock().await;
        let mut manifest = Manifest::clone(&self.state.read().manifest);
        manifest.remove(|s| items.iter().any(|i| i.file == s.path));
        manifest.set_aside.extend(items.iter().cloned());
        let committed = self.commit_manifest(&mut commit, manifest, What::default(), |_, _| {}).await;
        // Reported also if it could not be recorded, and not before readers do without it.
        self.set_aside_now.lock().extend(items);
        committed
    }

    pub(super) async fn read_segment(&self, segment: &Segment) -> Result<bytes::Bytes, StoreError> {
        self.root.read_segment(segment).await
    }

    /// The error says that a file is damaged, and why it is still where it was.
    pub(super) async fn quarantine(&self, path: &str, why: String) -> Result<SetAside, String> {
        self.root.set_aside(path, &why).await?;
        tracing::warn!(file = path, why, "moved a damaged file to quarantine");
        Ok(SetAside { file: path.into(), why, at_ns: now_ns() })
    }

    async fn leave_out(&self, path: &str, why: &str) -> Result<(), StoreError> {
        let mut commit = self.commit.lock().await;
        let mut manifest = Manifest::clone(&self.state.read().manifest);
        manifest.leave_out(path, why);
        self.commit_manifest(&mut commit, manifest, What::default(), |_, _| {}).await
    }

    /// A live segment turned out to be damaged, or cannot be read: stop serving it, and report it. A damaged one is moved
    /// to quarantine. Other errors are passed on.
    pub(super) async fn drop_segment(&self, path: &str, error: StoreError) -> Result<(), StoreError> {
        // It was deleted or merged while it was read: then it is missing, as it should be.
        if !self.state.read().manifest.kept().any(|segment| segment.path == path) {
            return Ok(());
        }
        match error {
            StoreError::Damaged(why) => match self.quarantine(path, why).await {
                Ok(item) => self.record_set_aside(vec![item]).await,
                Err(why) => self.leave_out(path, &why).await,
            },
            StoreError::Unreadable(why) => self.leave_out(path, &why).await,
            // In a lake, others merge and delete. What a table still names was deleted by somebody who must not.
            missing if missing.is_missing() => {
                self.refresh(&mut *self.commit.lock().await).await?;
                self.leave_out(path, MISSING).await
            }
            other => Err(other),
        }
    }

    /// Segments that the writer stumbled over.
    pub(super) async fn check_unreadable(&self) {
        let paths = self.writer.lock().await.known.take_unreadable();
        for path in paths {
            let segment = self.state.read().manifest.segments.iter().find(|s| s.path == path).cloned();
            if let Some(segment) = segment
                && let Err(e) = self.read_segment(&segment).await
                && let Err(e) = self.drop_segment(&path, e).await
            {
                tracing::warn!(file = path, error = %e, "cannot read a segment");
            }
        }
    }

    /// Encoding is work for a core, not for the reactor.
    pub(super) async fn build(
        &self,
        table: Table,
        batches: Vec<RecordBatch>,
        effort: Effort,
        replaces: Vec<String>,
    ) -> Result<Vec<NewSegment>, StoreError> {
        let name = self.new_name();
        let writer = self.writer_id.clone();
        tokio::task::spawn_blocking(move || {
            let mut n = 0;
            segment::build(table, &batches, &writer, effort, &replaces, || {
                n += 1;
                format!("{name}-{n}")
            })
        })
        .await
        .map_err(|e| StoreError::Busy(e.to_string()))?
    }
}
