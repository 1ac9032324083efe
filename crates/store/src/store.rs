//! The store that a server writes: the writer thread, flushing, and what keeps it tidy in the background.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use futures::future::BoxFuture;
use parking_lot::{Condvar, Mutex, RwLock};
use rollscope_model::Table;
use rollscope_model::time::now_ns;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};
use utoipa::ToSchema;

use crate::error::StoreError;
use crate::identity::IdentitySet;
use crate::known::KnownSegments;
use crate::lock::Lock;
use crate::manifest::{self, Manifest, Segment, SetAside};
use crate::options::StoreOptions;
use crate::root::Root;
use crate::segment::{self, Effort, NewSegment};
use crate::snapshot::{Snapshot, SnapshotSource};
use crate::tail::{Admitted, Incoming, Replaced, State, TableIndex, TableState};
use crate::touched::{self, Step, Touched};
use crate::vitals::{Death, Vitals};
use crate::wal::{self, Log};

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    pub accepted: u64,
    /// Rows that were there already.
    pub duplicates: u64,
}

/// Requests that may wait for the writer thread.
const QUEUE: usize = 512;
/// Most bytes written between two syncs.
const GROUP_BYTES: usize = 64 << 20;
/// Open spans that are carried from log file to log file instead of being written as open.
const MAX_CARRIED: usize = 100_000;
/// How long running queries may use a deleted run.
const DELETED_RUN_GRACE: Duration = Duration::from_secs(5);
/// Without this thread nothing can be stored.
const WRITER: &str = "store-writer";

/// A handle; clones share the store. [`Store::close`] flushes and releases the folder.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    _handle: Arc<LastHandle>,
}

/// When the last handle goes without [`Store::close`], the writer thread ends and the folder is released, as after a
/// crash: what was acknowledged is in the log.
struct LastHandle(Arc<Shared>);

impl Drop for LastHandle {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Relaxed);
        self.0.queue.lock().take();
        self.0.lock.lock().take();
    }
}

pub(crate) struct Shared {
    pub options: StoreOptions,
    pub root: Root,
    pub state: RwLock<State>,
    writer: Mutex<Writer>,
    queue: Mutex<Option<mpsc::Sender<Request>>>,
    /// Held for writing while a run is deleted.
    gate: tokio::sync::RwLock<()>,
    /// Commits to the manifest happen one at a time.
    pub commit: tokio::sync::Mutex<()>,
    flush_wanted: tokio::sync::Notify,
    flush_state: Mutex<FlushState>,
    flush_done: Condvar,
    changes: watch::Sender<u64>,
    pub counters: Counters,
    /// Unique in this store: part of the name of every segment.
    pub writer_id: String,
    names: AtomicU64,
    /// Files to delete, and when.
    doomed: Mutex<Vec<(Instant, String)>>,
    wal_dir: PathBuf,
    closed: AtomicBool,
    lock: Mutex<Option<Lock>>,
    set_aside_now: Mutex<Vec<SetAside>>,
    touched: Touched,
    vitals: Vitals,
}

#[derive(Default)]
struct FlushState {
    failure: Option<StoreError>,
}

/// Behind one lock: the log, and the index of what is in the tail.
pub(crate) struct Writer {
    log: Log,
    indices: [TableIndex; 6],
    known: KnownSegments,
    /// Once the sealed generation is in segments, log files below this are not needed.
    sealed_floor: u64,
}

struct Request {
    incoming: Incoming,
    record: Vec<u8>,
    reply: oneshot::Sender<Result<Appended, StoreError>>,
}

#[derive(Default)]
pub(crate) struct Counters {
    rows: [AtomicU64; 6],
    duplicates: AtomicU64,
    log_bytes: AtomicU64,
    log_syncs: AtomicU64,
    append_errors: AtomicU64,
    flushes: AtomicU64,
    flush_errors: AtomicU64,
    flush_ms: AtomicU64,
    pub compactions: AtomicU64,
    pub expired_segments: AtomicU64,
}

/// Figures for `/metrics` and the health page.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct StoreStats {
    pub rows_appended: HashMap<&'static str, u64>,
    pub duplicates: u64,
    pub append_errors: u64,
    pub log_bytes_written: u64,
    pub log_syncs: u64,
    pub log_bytes: u64,
    pub tail_rows: HashMap<&'static str, u64>,
    pub tail_bytes: u64,
    pub segments: u64,
    pub segment_rows: u64,
    pub segment_bytes: u64,
    pub flushes: u64,
    pub flush_errors: u64,
    pub flush_ms: u64,
    pub compactions: u64,
    pub expired_segments: u64,
    pub duplicate_check_bytes: u64,
    pub duplicate_check_skipped: u64,
}

/// Is everything all right, and if not, what to do.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = StoreHealth)]
pub struct Health {
    pub writable: bool,
    pub problems: Vec<String>,
    pub set_aside: Vec<SetAside>,
    /// Background work that has ended in a panic.
    pub deaths: Vec<Death>,
}

impl Store {
    /// Opens or creates a store, replays the log, and starts the writer. Must be called inside a tokio runtime.
    /// Boxed, so that it is compiled here and not once more in each crate that opens a store.
    pub fn open(options: StoreOptions) -> BoxFuture<'static, Result<Store, StoreError>> {
        Box::pin(Store::open_here(options))
    }

    async fn open_here(options: StoreOptions) -> Result<Store, StoreError> {
        let dir = options.dir.clone();
        let wal_dir = dir.join("wal");
        std::fs::create_dir_all(&wal_dir).map_err(|e| StoreError::io(&wal_dir, e))?;
        let lock = Lock::take(&dir)?;
        let root = Root::local(&dir)?;
        let mut opened = crate::open::load(&root, &options).await?;
        let numbers = wal::list(&wal_dir)?;
        let next = numbers.last().map_or(opened.manifest.wal_floor, |n| n + 1).max(opened.manifest.wal_floor).max(1);
        for stale in numbers.iter().filter(|n| **n < opened.manifest.wal_floor) {
            let _ = std::fs::remove_file(wal::path(&wal_dir, *stale));
        }
        let live: Vec<u64> = numbers.into_iter().filter(|n| *n >= opened.manifest.wal_floor).collect();
        let replayed = {
            let (root, options, wal_dir) = (root.clone(), options.clone(), wal_dir.clone());
            let (manifest, handle) = (opened.manifest.clone(), tokio::runtime::Handle::current());
            tokio::task::spawn_blocking(move || {
                crate::open::replay(&root, &options, &wal_dir, manifest, &live, &handle, true)
            })
            .await
            .expect("replay does not panic")?
        };
        opened.set_aside.extend(replayed.set_aside);
        let log = Log::create(&wal_dir, next)?;
        let mut id = [0; 4];
        getrandom::fill(&mut id).map_err(|e| StoreError::Busy(format!("cannot get random numbers: {e}")))?;
        let writer_id = format!("{:08x}", u32::from_be_bytes(id));
        let (queue, requests) = mpsc::channel(QUEUE);
        let shared = Arc::new(Shared {
            root,
            state: RwLock::new(replayed.state),
            writer: Mutex::new(Writer { log, indices: replayed.indices, known: replayed.known, sealed_floor: 0 }),
            queue: Mutex::new(Some(queue)),
            gate: tokio::sync::RwLock::new(()),
            commit: tokio::sync::Mutex::new(()),
            flush_wanted: tokio::sync::Notify::new(),
            flush_state: Mutex::default(),
            flush_done: Condvar::new(),
            changes: watch::Sender::new(0),
            counters: Counters::default(),
            writer_id,
            names: AtomicU64::new(0),
            doomed: Mutex::default(),
            wal_dir,
            closed: AtomicBool::new(false),
            lock: Mutex::new(Some(lock)),
            set_aside_now: Mutex::default(),
            touched: Touched::default(),
            vitals: Vitals::default(),
            options,
        });
        for table in [Table::Spans, Table::Samples, Table::Metrics] {
            let state = shared.state.read();
            let rows = &state.tables[table as usize];
            for chunk in rows.sealed.iter().chain(&rows.active) {
                shared.touched.note(touched::steps(table, &chunk.batch));
            }
        }
        if !opened.set_aside.is_empty() {
            for problem in &opened.set_aside {
                tracing::warn!(file = problem.file, why = problem.why, "moved a damaged file to quarantine");
            }
            if let Err(e) = shared.record_set_aside(opened.set_aside).await {
                tracing::warn!(error = %e, "cannot record a quarantined file");
            }
        }
        shared.doom_leftovers().await?;
        let (writer, handle) = (shared.clone(), tokio::runtime::Handle::current());
        let vitals = &shared.vitals;
        vitals
            .thread(WRITER, move || write_loop(&writer, requests, &handle))
            .map_err(|e| StoreError::io(&shared.options.dir, e))?;
        vitals.task("store-upkeep", crate::maintain::run(Arc::downgrade(&shared)));
        vitals.task("store-check", crate::maintain::check_rest(Arc::downgrade(&shared), opened.unchecked));
        Ok(Store { _handle: Arc::new(LastHandle(shared.clone())), shared })
    }

    /// Takes a batch in. When this returns, the rows are on disk and readers see them.
    pub async fn append(&self, table: Table, batch: RecordBatch) -> Result<Appended, StoreError> {
        if batch.schema_ref().fields() != table.schema().fields() {
            return Err(StoreError::WrongSchema(table.name()));
        }
        if batch.num_rows() == 0 {
            return Ok(Appended::default());
        }
        let record = wal::encode(table, &batch)?;
        let steps = touched::steps(table, &batch);
        let incoming = Incoming::new(table, batch);
        let (reply, answer) = oneshot::channel();
        let queue = self.shared.queue.lock().clone().ok_or(StoreError::Closed)?;
        queue.send(Request { incoming, record, reply }).await.map_err(|_| self.shared.gone())?;
        let appended = answer.await.map_err(|_| self.shared.gone())??;
        if appended.accepted > 0 {
            self.shared.touched.note(steps);
        }
        Ok(appended)
    }

    /// Steps that got new spans, samples or logged metrics since this was last called; at first, those that the log held at the start.
    pub fn touched_steps(&self) -> Vec<Step> {
        self.shared.touched.take()
    }

    /// Writes the tail into segments. Returns when that is done.
    pub async fn flush(&self) -> Result<(), StoreError> {
        self.shared.flush().await
    }

    /// Merges small segments and compresses what was written in a hurry.
    pub fn compact(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            self.flush().await?;
            crate::maintain::compact(&self.shared, true).await
        })
    }

    /// Deletes everything of a run: what is in segments, in the tail and in the log, and the media that no other run
    /// names. False if there was nothing. What comes for the run afterwards is kept.
    pub fn delete_run<'a>(&'a self, run_id: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            {
                let _alone = self.shared.gate.write().await;
                if !self.shared.state.read().has_run(run_id) {
                    return Ok(false);
                }
                self.shared.touched.forget(run_id);
                self.shared.flush_but(run_id).await?;
            }
            self.shared.sweep_media().await;
            Ok(true)
        })
    }

    /// While this is held, no run is deleted: for code that reads what there is and writes what follows from it, so that
    /// a deleted run does not come back with it.
    pub async fn hold_runs(&self) -> tokio::sync::RwLockReadGuard<'_, ()> {
        self.shared.gate.read().await
    }

    /// Who must not die. Others may add theirs.
    pub fn vitals(&self) -> &Vitals {
        &self.shared.vitals
    }

    /// Keeps a file by the hash of its content, and returns that hash.
    pub async fn media_put(&self, data: Vec<u8>) -> Result<String, StoreError> {
        crate::media::put(&self.shared.root, data).await
    }

    pub async fn media_get(&self, hash: &str) -> Result<Option<bytes::Bytes>, StoreError> {
        crate::media::get(&self.shared.root, hash).await
    }

    /// Rises whenever readers would see something new.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    pub fn options(&self) -> &StoreOptions {
        &self.shared.options
    }

    pub fn stats(&self) -> StoreStats {
        let c = &self.shared.counters;
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        let (log_bytes, known_bytes, skipped) = {
            let writer = self.shared.writer.lock();
            (writer.log.bytes(), writer.known.bytes() as u64, writer.known.skipped)
        };
        let state = self.shared.state.read();
        let tail = |t: Table| {
            let s = &state.tables[t as usize];
            s.sealed.iter().chain(&s.active).map(|c| c.batch.num_rows() as u64).sum::<u64>()
        };
        StoreStats {
            rows_appended: Table::ALL.map(|t| (t.name(), get(&c.rows[t as usize]))).into(),
            duplicates: get(&c.duplicates),
            append_errors: get(&c.append_errors),
            log_bytes_written: get(&c.log_bytes),
            log_syncs: get(&c.log_syncs),
            log_bytes,
            tail_rows: Table::ALL.map(|t| (t.name(), tail(t))).into(),
            tail_bytes: (state.active_bytes() + state.sealed_bytes()) as u64,
            segments: state.manifest.segments.len() as u64,
            segment_rows: state.manifest.segments.iter().map(|s| s.rows).sum(),
            segment_bytes: state.manifest.segments.iter().map(|s| s.bytes).sum(),
            flushes: get(&c.flushes),
            flush_errors: get(&c.flush_errors),
            flush_ms: get(&c.flush_ms),
            compactions: get(&c.compactions),
            expired_segments: get(&c.expired_segments),
            duplicate_check_bytes: known_bytes,
            duplicate_check_skipped: skipped,
        }
    }

    pub fn health(&self) -> Health {
        let mut problems = Vec::new();
        let failure = self.shared.flush_state.lock().failure.as_ref().map(StoreError::again);
        if let Some(failure) = &failure {
            problems.push(format!("cannot write the live tail to segments: {failure}"));
        }
        let manifest = self.shared.state.read().manifest.clone();
        let mut set_aside = manifest.set_aside.clone();
        for item in self.shared.set_aside_now.lock().iter() {
            if !set_aside.contains(item) {
                set_aside.push(item.clone());
            }
        }
        for item in &set_aside {
            problems.push(format!(
                "{} is damaged ({}) and was moved to quarantine; everything else is served",
                item.file, item.why
            ));
        }
        let deaths = self.shared.vitals.deaths();
        problems.extend(deaths.iter().map(ToString::to_string));
        let writable =
            failure.is_none() && !self.shared.closed.load(Ordering::Relaxed) && !self.shared.vitals.is_dead(WRITER);
        Health { writable, problems, set_aside, deaths }
    }

    /// Flushes, stops taking rows, and releases the folder.
    pub async fn close(&self) -> Result<(), StoreError> {
        drop(self.shared.queue.lock().take());
        self.shared.closed.store(true, Ordering::Relaxed);
        let result = self.flush().await;
        self.shared.lock.lock().take();
        result
    }
}

impl SnapshotSource for Store {
    fn snapshot(&self) -> Snapshot {
        self.shared.state.read().snapshot(self.shared.root.objects.clone())
    }
}

impl Shared {
    pub fn new_name(&self) -> String {
        format!("{:020}{:03}", now_ns(), self.names.fetch_add(1, Ordering::Relaxed) % 1000)
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Why the writer does not answer.
    fn gone(&self) -> StoreError {
        let death = self.vitals.deaths().into_iter().find(|death| death.part == WRITER);
        death.map_or(StoreError::Closed, StoreError::Failed)
    }

    /// Replaces the manifest on disk, then in memory together with `also`, so that readers see both or neither, and the
    /// writer admits every group of rows against one of them. The caller holds `commit`.
    pub async fn commit_manifest(
        &self,
        mut manifest: Manifest,
        also: impl FnOnce(&mut State, &mut Writer),
    ) -> Result<(), StoreError> {
        {
            let state = self.state.read();
            manifest.version = state.manifest.version + 1;
            manifest.attr_types =
                state.attr_types.iter().map(|(t, types)| (t.name().to_string(), types.clone())).collect();
        }
        self.root.put(manifest::PATH, manifest.to_bytes()).await?;
        let mut writer = self.writer.lock();
        let mut state = self.state.write();
        state.manifest = Arc::new(manifest);
        also(&mut state, &mut writer);
        state.version += 1;
        self.changes.send_replace(state.version);
        Ok(())
    }

    async fn record_set_aside(&self, items: Vec<SetAside>) -> Result<(), StoreError> {
        let _commit = self.commit.lock().await;
        let mut manifest = Manifest::clone(&self.state.read().manifest);
        manifest.segments.retain(|s| !items.iter().any(|i| i.file == s.path));
        manifest.set_aside.extend(items.iter().cloned());
        let committed = self.commit_manifest(manifest, |_, _| {}).await;
        // Reported also if it could not be recorded, and not before readers do without it.
        self.set_aside_now.lock().extend(items);
        committed
    }

    /// The bytes of a segment, checked. `Damaged`: it is missing or not what was written, and trying again does not help.
    pub async fn read_segment(&self, segment: &Segment) -> Result<bytes::Bytes, StoreError> {
        let data = self.root.get(&segment.path).await.map_err(|e| match e.is_of_the_machine() {
            true => e,
            false => StoreError::Damaged(e.to_string()),
        })?;
        segment::verify(segment, &data).map_err(StoreError::Damaged)?;
        Ok(data)
    }

    async fn quarantine(&self, path: &str, why: String) -> SetAside {
        tracing::warn!(file = path, why, "moved a damaged file to quarantine");
        if let Err(e) = self.root.set_aside(path).await {
            tracing::warn!(file = path, error = %e, "cannot move a damaged file to quarantine");
        }
        SetAside { file: path.into(), why, at_ns: now_ns() }
    }

    /// A live segment turned out to be damaged: stop serving it, move it to quarantine and report it.
    pub async fn set_segment_aside(&self, path: &str, why: String) -> Result<(), StoreError> {
        let item = self.quarantine(path, why).await;
        self.record_set_aside(vec![item]).await
    }

    /// Segments that the writer stumbled over.
    pub async fn check_unreadable(&self) {
        let paths = self.writer.lock().known.take_unreadable();
        for path in paths {
            let segment = self.state.read().manifest.segments.iter().find(|s| s.path == path).cloned();
            if let Some(segment) = segment
                && let Err(StoreError::Damaged(why)) = self.read_segment(&segment).await
                && let Err(e) = self.set_segment_aside(&path, why).await
            {
                tracing::warn!(error = %e, "cannot record a quarantined file");
            }
        }
    }

    /// Deletes the media that deleted runs named and that no other run names. What cannot be done now is tried again.
    pub async fn sweep_media(&self) {
        let doomed: HashSet<String> = self.state.read().manifest.doomed_media.iter().cloned().collect();
        if doomed.is_empty() {
            return;
        }
        let swept = async {
            let mut unnamed = doomed.clone();
            let mut looked_at = HashSet::new();
            self.leave_named_media(&mut unnamed, &mut looked_at).await?;
            // A file is put before the conversation that names it: no other writer may come in between. What came since we
            // looked is little.
            let _alone = self.gate.write().await;
            self.leave_named_media(&mut unnamed, &mut looked_at).await?;
            for hash in &unnamed {
                self.root.delete(&crate::media::path(hash)).await?;
            }
            let _commit = self.commit.lock().await;
            let mut manifest = Manifest::clone(&self.state.read().manifest);
            manifest.doomed_media.retain(|hash| !doomed.contains(hash));
            self.commit_manifest(manifest, |_, _| {}).await
        };
        if let Err(e) = swept.await {
            tracing::warn!(error = %e, "cannot delete the media of a deleted run; trying again later");
        }
    }

    async fn leave_named_media(
        &self,
        unnamed: &mut HashSet<String>,
        looked_at: &mut HashSet<String>,
    ) -> Result<(), StoreError> {
        let snapshot = self.state.read().snapshot(self.root.objects.clone());
        crate::media::leave_named(&snapshot, unnamed, looked_at).await.map_err(|(path, error)| {
            self.writer.lock().known.note_unreadable(path);
            error
        })
    }

    /// Deletes a file that is no longer live once readers had time to finish: as long as all files get, or less.
    pub fn doom(&self, path: String, at_most: Duration) {
        let grace = Duration::from_secs(self.options.delete_grace_s).min(at_most);
        self.doomed.lock().push((Instant::now() + grace, path));
    }

    /// Files that no manifest names: left by a process that ended before their time had come.
    async fn doom_leftovers(&self) -> Result<(), StoreError> {
        let live: HashSet<String> =
            self.state.read().manifest.segments.iter().map(|segment| segment.path.clone()).collect();
        for table in Table::ALL {
            for object in self.root.list(table.name()).await? {
                let path = object.location.to_string();
                if !live.contains(&path) {
                    self.doom(path, Duration::MAX);
                }
            }
        }
        Ok(())
    }

    pub async fn delete_doomed(&self) {
        let due: Vec<String> = {
            let mut doomed = self.doomed.lock();
            let now = Instant::now();
            let (due, wait) = std::mem::take(&mut *doomed).into_iter().partition(|(at, _)| *at <= now);
            *doomed = wait;
            let due: Vec<(Instant, String)> = due;
            due.into_iter().map(|(_, path)| path).collect()
        };
        for path in due {
            if let Err(e) = self.root.delete(&path).await {
                tracing::warn!(file = path, error = %e, "cannot delete a file");
            }
        }
    }

    pub fn flush_due(&self) -> bool {
        let state = self.state.read();
        state.has_sealed()
            || state.active_bytes() >= self.options.flush_bytes
            || Table::ALL.iter().any(|t| state.active_rows(*t) >= self.options.flush_rows)
            || state.first_at.is_some_and(|at| at.elapsed() >= self.options.flush_age())
    }

    pub async fn wait_for_flush_request(&self) {
        self.flush_wanted.notified().await;
    }

    pub async fn flush(&self) -> Result<(), StoreError> {
        let result = self.try_flush().await;
        self.tell_flushed(&result);
        result
    }

    fn tell_flushed(&self, result: &Result<(), StoreError>) {
        match result {
            Ok(()) => self.flush_state.lock().failure = None,
            Err(e) => {
                self.counters.flush_errors.fetch_add(1, Ordering::Relaxed);
                self.flush_state.lock().failure = Some(e.again());
            }
        }
        self.flush_done.notify_all();
    }

    async fn try_flush(&self) -> Result<(), StoreError> {
        let _commit = self.commit.lock().await;
        match self.seal(None)? {
            true => self.write_sealed(None).await,
            false => Ok(()),
        }
    }

    /// A flush that leaves out a run, and drops its segments in the same commit.
    async fn flush_but(&self, run_id: &str) -> Result<(), StoreError> {
        let _commit = self.commit.lock().await;
        let flushed = async {
            // A generation left over from a flush that failed was closed before: it goes first.
            if self.state.read().has_sealed() {
                self.write_sealed(None).await?;
            }
            self.seal(Some(run_id))?;
            self.write_sealed(Some(run_id)).await
        };
        let result = flushed.await;
        self.tell_flushed(&result);
        result
    }

    /// Makes segments of the sealed generation, without the rows and segments of the run `but`. The caller holds `commit`.
    async fn write_sealed(&self, but: Option<&str>) -> Result<(), StoreError> {
        if self.vitals.is_dead(WRITER) {
            // It may have died half-way through a change of the tail. The log has all that was acknowledged.
            return Err(self.gone());
        }
        let started = Instant::now();
        let floor = self.writer.lock().sealed_floor;
        let work: Vec<(Table, Vec<RecordBatch>, Replaced)> = {
            let state = self.state.read();
            let rows = |table: Table| {
                let t = &state.tables[table as usize];
                (table, t.sealed.iter().map(|c| c.visible()).collect(), t.replaced_by_sealed.clone())
            };
            Table::ALL.into_iter().map(rows).collect()
        };
        let mut manifest = Manifest::clone(&self.state.read().manifest);
        let mut fresh: Vec<NewSegment> = Vec::new();
        let mut gone: Vec<String> = Vec::new();
        let mut deleted: Vec<Arc<Segment>> = Vec::new();
        let mut doomed_media: HashSet<String> = manifest.doomed_media.drain(..).collect();
        if let Some(run) = but {
            deleted = manifest.segments.iter().filter(|s| s.run_id == run).cloned().collect();
            manifest.segments.retain(|s| s.run_id != run);
            self.media_named_in(&deleted, &mut doomed_media).await;
        }
        for (table, mut batches, replaced) in work {
            // Rows of older segments that newer rows replace: those segments are written again without them.
            for old in manifest.segments_of(table).filter(|s| replaced.may_be_in(s)).cloned().collect::<Vec<_>>() {
                match self.rewrite_without(table, &old, &replaced.keys).await {
                    Ok(None) => {}
                    Ok(Some(rewritten)) => {
                        fresh.extend(rewritten);
                        gone.push(old.path.clone());
                    }
                    // One bad file does not keep the rows of all others in memory.
                    Err(StoreError::Damaged(why)) => {
                        manifest.segments.retain(|s| s.path != old.path);
                        manifest.set_aside.push(self.quarantine(&old.path, why).await);
                    }
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
                fresh.extend(self.build(table, batches, Effort::Flush, Vec::new()).await?);
            }
        }
        manifest.doomed_media = doomed_media.into_iter().collect();
        manifest.segments.retain(|s| !gone.contains(&s.path));
        let mut identities = Vec::new();
        for new in fresh {
            self.root.put(&new.segment.path, new.data).await?;
            let segment = segment::arc(new.segment);
            manifest.segments.push(segment.clone());
            identities.push((segment, new.identities));
        }
        manifest.wal_floor = manifest.wal_floor.max(floor);
        self.commit_manifest(manifest, |state, writer| {
            state.tables.iter_mut().for_each(TableState::drop_sealed);
            state.settled = match but {
                None => state.settled.max(state.sealed_at),
                Some(_) => state.version + 1,
            };
            writer.indices.iter_mut().for_each(TableIndex::drop_sealed);
            for (segment, set) in identities {
                writer.known.insert(&segment, set);
            }
        })
        .await?;
        for path in gone {
            self.doom(path, Duration::MAX);
        }
        // A user deleted it: no query finds it any more, and the files are deleted when running queries are done with them.
        for segment in deleted {
            self.doom(segment.path.clone(), DELETED_RUN_GRACE);
        }
        for number in wal::list(&self.wal_dir)?.into_iter().filter(|n| *n < floor) {
            let path = wal::path(&self.wal_dir, number);
            std::fs::remove_file(&path).map_err(|e| StoreError::io(path, e))?;
        }
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        self.counters.flush_ms.fetch_add(started.elapsed().as_millis() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Encoding is work for a core, not for the reactor.
    pub async fn build(
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

    async fn rewrite_without(
        &self,
        table: Table,
        old: &Arc<Segment>,
        replaced: &HashSet<u128>,
    ) -> Result<Option<Vec<NewSegment>>, StoreError> {
        let holds_one = |identities: &IdentitySet| replaced.iter().any(|key| identities.contains(*key));
        let damaged = |e: StoreError| StoreError::Damaged(e.to_string());
        let known = self.writer.lock().known.get(old);
        if known.as_deref().is_some_and(|identities| !holds_one(identities)) {
            return Ok(None);
        }
        let data = self.read_segment(old).await?;
        if known.is_none() && !holds_one(&segment::read_identities(table, data.clone()).map_err(damaged)?.0) {
            return Ok(None);
        }
        let mut kept = Vec::new();
        for batch in segment::read_batches(table, data).map_err(damaged)? {
            kept.push(segment::without(table, batch, replaced)?);
        }
        if kept.iter().all(|b| b.num_rows() == 0) {
            return Ok(Some(Vec::new()));
        }
        Ok(Some(self.build(table, kept, Effort::Flush, vec![old.path.clone()]).await?))
    }

    /// Hashes that the conversations in these segments name. A segment that cannot be read names nothing.
    async fn media_named_in(&self, segments: &[Arc<Segment>], hashes: &mut HashSet<String>) {
        let snapshot = self.state.read().snapshot(self.root.objects.clone());
        for segment in segments.iter().filter(|s| s.table == Table::Conversations.name()) {
            if let Err(e) = crate::media::named_in_segment(&snapshot, segment, hashes).await {
                tracing::warn!(file = segment.path, error = %e, "cannot read a segment of a deleted run; its media are kept");
            }
        }
    }

    /// Starts a new log file and a new generation. False if there is nothing to flush. A sealed generation left over
    /// from a flush that failed is taken up again. Open spans go on in the new generation, except those of the run `but`.
    fn seal(&self, but: Option<&str>) -> Result<bool, StoreError> {
        let mut writer = self.writer.lock();
        let mut state = self.state.write();
        if state.has_sealed() {
            return Ok(true);
        }
        if !state.has_active() {
            return Ok(false);
        }
        let mut log = Log::create(&self.wal_dir, writer.log.number + 1)?;
        let carried = if self.is_closed() { None } else { state.open_spans(MAX_CARRIED, but)? };
        if let Some(batch) = &carried {
            let logged = wal::encode(Table::Spans, batch).and_then(|r| log.write(&r)).and_then(|()| log.sync());
            if let Err(e) = logged {
                let _ = std::fs::remove_file(wal::path(&self.wal_dir, log.number));
                return Err(e);
            }
        }
        writer.sealed_floor = log.number;
        writer.log = log;
        state.seal(&mut writer.indices, carried);
        Ok(state.has_sealed())
    }

    /// Waits while the current flush has to catch up. Fails if flushing fails: then only space helps.
    fn wait_for_room(&self) -> Result<(), StoreError> {
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

/// Group commit: takes what is waiting, writes it, syncs once, then makes it visible and answers.
fn write_loop(shared: &Arc<Shared>, mut requests: mpsc::Receiver<Request>, handle: &tokio::runtime::Handle) {
    while let Some(first) = requests.blocking_recv() {
        let mut bytes = first.record.len();
        let mut group = vec![first];
        while bytes < GROUP_BYTES
            && let Ok(next) = requests.try_recv()
        {
            bytes += next.record.len();
            group.push(next);
        }
        let room = shared.wait_for_room();
        if let Err(e) = room {
            refuse(shared, group.into_iter().map(|r| r.reply), &e);
            continue;
        }
        write_group(shared, group, handle);
        if shared.flush_due() {
            shared.flush_wanted.notify_one();
        }
    }
}

fn write_group(shared: &Arc<Shared>, group: Vec<Request>, handle: &tokio::runtime::Handle) {
    let mut writer = shared.writer.lock();
    let writer = &mut *writer;
    let manifest = shared.state.read().manifest.clone();
    let mut admitted: Vec<(Admitted, oneshot::Sender<Result<Appended, StoreError>>)> = Vec::new();
    let mut failed: Option<StoreError> = None;
    let mut rest = Vec::new();
    for request in group {
        if failed.is_some() {
            rest.push(request.reply);
            continue;
        }
        let table = request.incoming.table;
        let known = writer.known.of(&request.incoming, &manifest, &shared.root, handle);
        let one = writer.indices[table as usize].admit(request.incoming, &known);
        if !one.is_empty()
            && let Err(e) = writer.log.write(&request.record)
        {
            failed = Some(e);
        } else if !one.is_empty() {
            shared.counters.log_bytes.fetch_add(request.record.len() as u64, Ordering::Relaxed);
        }
        admitted.push((one, request.reply));
    }
    if failed.is_none() {
        failed = writer.log.sync().err();
        shared.counters.log_syncs.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(error) = failed {
        for (one, reply) in admitted.into_iter().rev() {
            let index = &mut writer.indices[one.table() as usize];
            index.undo(one);
            rest.push(reply);
        }
        if writer.log.rewind().is_err() {
            // The file cannot be brought back to a clean place: leave it as it is and go on in a new one. What was
            // not acknowledged may come back from it at the next start, where duplicates are recognised.
            match Log::create(&shared.wal_dir, writer.log.number + 1) {
                Ok(log) => writer.log = log,
                Err(e) => tracing::error!(error = %e, "cannot write the log"),
            }
        }
        tracing::warn!(error = %error, "refused {} requests", rest.len());
        refuse(shared, rest.into_iter(), &error);
        return;
    }
    let mut state = shared.state.write();
    let mut answers = Vec::with_capacity(admitted.len());
    for (one, reply) in admitted {
        let answer = Appended { accepted: one.accepted, duplicates: one.duplicates };
        shared.counters.rows[one.table() as usize].fetch_add(one.accepted, Ordering::Relaxed);
        shared.counters.duplicates.fetch_add(one.duplicates, Ordering::Relaxed);
        state.publish(one);
        answers.push((reply, answer));
    }
    state.coalesce(&mut writer.indices);
    let version = state.version;
    drop(state);
    shared.changes.send_replace(version);
    for (reply, answer) in answers {
        // The caller may be gone, but the rows stay.
        let _ = reply.send(Ok(answer));
    }
}

fn refuse(
    shared: &Shared,
    replies: impl Iterator<Item = oneshot::Sender<Result<Appended, StoreError>>>,
    error: &StoreError,
) {
    for reply in replies {
        shared.counters.append_errors.fetch_add(1, Ordering::Relaxed);
        let _ = reply.send(Err(error.again()));
    }
}

/// Background work holds the store weakly: it ends when the last handle is gone.
pub(crate) type WeakShared = Weak<Shared>;
