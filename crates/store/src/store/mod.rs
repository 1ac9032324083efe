//! The store that a server writes. Here is its handle, [`Store`]; behind it are the [`writer`] thread, the [`flush`] of the
//! tail into segments, the [`upkeep`] in the background, and what they [share](shared).

mod doomed;
mod flush;
mod follow;
mod shared;
mod upkeep;
mod writer;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::RecordBatch;
use futures::future::BoxFuture;
use parking_lot::{Condvar, Mutex, RwLock};
use rollscope_model::Table;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};
use utoipa::ToSchema;

use crate::commits::Commits;
use crate::disk::Disk;
use crate::error::StoreError;
use crate::lake::{
    self, Beginner, Lake, LakeTables, NodeEntry, Nodes, ObjectLog, SeenNode, SharedFiles, Stuck, Watch, WriterLog,
};
use crate::lock::Lock;
use crate::logs::{Logs, WAL};
use crate::manifest::{Segment, SetAside};
use crate::open::Replayed;
use crate::options::StoreOptions;
use crate::root::{self, Root};
use crate::snapshot::{Keeper, Snapshot, SnapshotSource};
use crate::tail::Incoming;
use crate::touched::{self, Step, Touched};
use crate::vitals::{Death, Vitals};
use crate::wal::{self, Log};
use follow::Follower;
use shared::{Counters, Derived, Shared};
use writer::{Request, WRITER, Writer, write_loop};

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    pub accepted: u64,
    /// Rows that were there already.
    pub duplicates: u64,
}

/// What a store is started with.
struct Start {
    options: StoreOptions,
    root: Root,
    writer_id: String,
    log: Box<dyn Log>,
    stuck: Stuck,
    commits: Commits,
    logs: Logs,
    lock: Option<Lock>,
    node: Option<(NodeEntry, Watch)>,
    follower: Option<Follower>,
    replayed: Replayed,
    set_aside: Vec<SetAside>,
    unchecked: Vec<Arc<Segment>>,
}

/// Requests that may wait for the writer thread.
const QUEUE: usize = 512;
/// How long the start of a node waits until it has read the logs of others.
const FIRST_LOOK: Duration = Duration::from_secs(10);
/// In a lake, what another node writes to the tables when it is due is seen here after this time: it is written, and looked at.
const FLUSH_AND_REFRESH: Duration = Duration::from_secs(15);

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
    /// In a lake: rows that other nodes have acknowledged, that are in no table yet, and that this node shows.
    pub followed_rows: u64,
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
        Store::open_on(options, Disk::default())
    }

    /// The same with a disk that is watched.
    pub fn open_on(options: StoreOptions, disk: Disk) -> BoxFuture<'static, Result<Store, StoreError>> {
        Box::pin(Store::open_here(options, disk))
    }

    async fn open_here(options: StoreOptions, disk: Disk) -> Result<Store, StoreError> {
        let dir = options.dir.clone();
        disk.make_folder(&dir, &dir).map_err(|e| StoreError::io(&dir, e))?;
        let lock = Lock::take(&dir)?;
        let (root, folder) = Root::new(&dir, disk)?;
        let wal_dir = folder.path(WAL);
        folder.make(&wal_dir).map_err(|e| StoreError::io(&wal_dir, e))?;
        root::remove_partial(&folder).await?;
        let mut opened = crate::open::load(&root, &folder, &options).await?;
        let numbers = wal::list(&wal_dir)?;
        let next = numbers.last().map_or(opened.manifest.wal_floor, |n| n + 1).max(opened.manifest.wal_floor).max(1);
        for stale in numbers.iter().filter(|n| **n < opened.manifest.wal_floor) {
            let _ = folder.disk.remove(&wal::path(&wal_dir, *stale));
        }
        let live: Vec<u64> = numbers.into_iter().filter(|n| *n >= opened.manifest.wal_floor).collect();
        let replayed = {
            let (root, folder, options) = (root.clone(), folder.clone(), options.clone());
            let (manifest, handle) = (opened.manifest.clone(), tokio::runtime::Handle::current());
            tokio::task::spawn_blocking(move || {
                crate::open::replay(&root, &folder, &options, manifest, &live, &handle, true)
            })
            .await
            .expect("replay does not panic")?
        };
        opened.set_aside.extend(replayed.set_aside.iter().cloned());
        let log = wal::Files::create(&folder.disk, &wal_dir, next)?;
        let mut id = [0; 4];
        getrandom::fill(&mut id).map_err(|e| StoreError::Busy(format!("cannot get random numbers: {e}")))?;
        let start = Start {
            options,
            root,
            writer_id: format!("{:08x}", u32::from_be_bytes(id)),
            log: Box::new(log),
            stuck: Stuck::default(),
            commits: Commits::Folder(folder.clone(), opened.journal),
            logs: Logs::Folder(folder),
            lock: Some(lock),
            node: None,
            follower: None,
            replayed,
            set_aside: opened.set_aside,
            unchecked: opened.unchecked,
        };
        Store::start(start).await
    }

    /// Opens a lake as a new writer, and takes over what an earlier process of the same node has left. Must be called inside a tokio
    /// runtime with several threads. `options.dir` is for what can be lost.
    pub fn open_lake(options: StoreOptions, lake: Lake) -> BoxFuture<'static, Result<Store, StoreError>> {
        Box::pin(Store::open_lake_here(options, lake))
    }

    async fn open_lake_here(options: StoreOptions, lake: Lake) -> Result<Store, StoreError> {
        let others = Nodes::new(&lake);
        let dir = &options.dir;
        Disk::default().make_folder(dir, dir).map_err(|e| StoreError::io(dir, e))?;
        let root = Root::of_lake(lake.objects);
        let writer = lake::new_writer()?;
        let place = WriterLog { objects: root.objects.clone(), writer: writer.clone() };
        // The node first: a log that no node names is anybody's to take over. Whoever takes this node's place before its log can be fenced
        // has changed the entry by the time of the first beat.
        let (node, mut before) = NodeEntry::claim(&root, &lake.node, &writer).await?;
        let mut log = ObjectLog::create(place.clone(), Duration::from_millis(options.log_every_ms)).await?;
        node.beat(0, 0, &before).await?;
        let mut beats = tokio::task::JoinSet::new();
        beats.spawn(upkeep::beat_while_starting(node.clone(), before.clone()));
        before.extend(lake::orphans(&root, &writer).await?);
        let mut tables = LakeTables::new(lake.tables, &root, &writer);
        let (mut set_aside, mut heir) = (Vec::new(), Beginner { log: &mut log, rows: Vec::new() });
        lake::adopt_dead(&root, &mut tables, &mut heir, &writer, before, &mut set_aside).await?;
        let rows = heir.rows;
        let manifest = tables.manifest().await?;
        let (task_root, task_options, handle) = (root.clone(), options.clone(), tokio::runtime::Handle::current());
        let replayed = tokio::task::spawn_blocking(move || {
            let mut replayed = Replayed::new(manifest, &task_options);
            for (table, batch) in rows {
                replayed.take(table, &batch, &task_root, &handle)?;
            }
            Ok::<_, StoreError>(replayed)
        });
        let replayed = replayed.await.expect("replay does not panic")?;
        beats.shutdown().await;
        node.beat(0, 0, &HashSet::new()).await?;
        let follow = |_| {
            let id = &writer[..lake::WRITER_ID_LENGTH];
            Follower::new(&writer, id, options.flush_bytes, options.duplicate_check_bytes / 2)
        };
        let follower = lake.follow_every.map(follow);
        let start = Start {
            options,
            root,
            writer_id: writer[..lake::WRITER_ID_LENGTH].to_string(),
            stuck: log.stuck.clone(),
            log: Box::new(log),
            commits: Commits::Lake(Box::new(tables)),
            logs: Logs::Lake(place),
            lock: None,
            node: Some((node, Watch::new(lake.silence))),
            follower,
            replayed,
            set_aside,
            unchecked: Vec::new(),
        };
        let store = Store::start(start).await?;
        if let Some(every) = lake.follow_every {
            let (looked, first_look) = oneshot::channel();
            store.shared.vitals.task("lake-follow", upkeep::follow(Arc::downgrade(&store.shared), every, looked));
            // The first answer has it all, if that does not take long.
            let _ = tokio::time::timeout(FIRST_LOOK, first_look).await;
        }
        *store.shared.looking.lock().await = Some(others);
        store.shared.vitals.task("lake-nodes", upkeep::look_at_nodes(Arc::downgrade(&store.shared)));
        Ok(store)
    }

    async fn start(start: Start) -> Result<Store, StoreError> {
        let Start {
            options,
            root,
            writer_id,
            log,
            stuck,
            commits,
            logs,
            lock,
            node,
            follower,
            mut replayed,
            set_aside,
            unchecked,
        } = start;
        replayed.state.theirs = follower.as_ref().map(|_| Box::default());
        let (queue, requests) = mpsc::channel(QUEUE);
        let (node, watch) = node.unzip();
        let shared = Arc::new(Shared {
            root,
            state: RwLock::new(replayed.state),
            writer: tokio::sync::Mutex::new(Writer {
                log,
                indices: replayed.indices,
                known: replayed.known,
                sealed_floor: 0,
            }),
            queue: Mutex::new(Some(queue)),
            gate: tokio::sync::RwLock::new(()),
            commit: tokio::sync::Mutex::new(commits),
            flush_wanted: tokio::sync::Notify::new(),
            flush_state: Mutex::default(),
            flush_done: Condvar::new(),
            changes: watch::Sender::new(0),
            counters: Counters::default(),
            writer_id,
            names: AtomicU64::new(0),
            doomed: Mutex::default(),
            derived: Derived::default(),
            unsettled: Mutex::default(),
            logs,
            closed: AtomicBool::new(false),
            lock: Mutex::new(lock),
            node,
            watch: tokio::sync::Mutex::new(watch),
            nodes: RwLock::default(),
            looking: tokio::sync::Mutex::new(None),
            left_over: Mutex::default(),
            unheard: Mutex::default(),
            follower: tokio::sync::Mutex::new(follower),
            follow_problems: Mutex::default(),
            stuck,
            is_fenced: AtomicBool::new(false),
            set_aside_now: Mutex::default(),
            touched: Touched::default(),
            vitals: Vitals::default(),
            options,
        });
        shared.counters.note(&*shared.writer.lock().await);
        for table in [Table::Spans, Table::Samples, Table::Metrics] {
            let state = shared.state.read();
            let rows = &state.tables[table as usize];
            for chunk in rows.sealed.iter().chain(&rows.active) {
                shared.touched.note(touched::steps(table, &chunk.batch));
            }
        }
        // Before any commit: the manifest that was found says which of them readers may use.
        if shared.logs.are_files() {
            shared.doom_leftovers().await?;
        }
        if !set_aside.is_empty() {
            for problem in &set_aside {
                tracing::warn!(file = problem.file, why = problem.why, "moved a damaged file to quarantine");
            }
            if let Err(e) = shared.record_set_aside(set_aside).await {
                tracing::warn!(error = %e, "cannot record a quarantined file");
            }
        }
        let (writer, handle) = (shared.clone(), tokio::runtime::Handle::current());
        let vitals = &shared.vitals;
        if shared.node.is_some() {
            vitals.task("lake-node", upkeep::be_a_node(Arc::downgrade(&shared)));
            vitals.task("lake-watch", upkeep::look_after_nodes(Arc::downgrade(&shared)));
            vitals.task("lake-cleaner", upkeep::clean_up(Arc::downgrade(&shared)));
        }
        vitals
            .thread(WRITER, move || write_loop(&writer, requests, &handle))
            .map_err(|e| StoreError::io(&shared.options.dir, e))?;
        vitals.task("store-upkeep", upkeep::run(Arc::downgrade(&shared)));
        vitals.task("store-check", upkeep::check_rest(Arc::downgrade(&shared), unchecked));
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

    /// In a lake: takes over what nodes have left that are silent. The background does so from time to time.
    pub fn adopt_silent(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.shared.adopt_silent())
    }

    /// In a lake: shows all that other nodes have acknowledged. The background looks at their logs again and again, if this node follows
    /// others, and at the tables if something was flushed from there.
    pub fn follow(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            self.shared.follow().await?;
            self.shared.refresh(&mut *self.shared.commit.lock().await).await?;
            self.shared.follow().await
        })
    }

    /// In a lake: says that this node is there. The background does so from time to time.
    pub fn beat(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.shared.beat())
    }

    /// In a lake: deletes files that no table names, and that nobody needed when this was last called. The background does so every hour.
    pub fn clean(&self) -> BoxFuture<'_, Result<usize, StoreError>> {
        Box::pin(self.shared.clean())
    }

    /// Writes the tail into segments. Returns when that is done.
    pub async fn flush(&self) -> Result<(), StoreError> {
        self.shared.flush().await
    }

    /// Merges small segments and compresses what was written in a hurry.
    pub fn compact(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            self.flush().await?;
            upkeep::compact(&self.shared, true).await
        })
    }

    /// Does what the background does from time to time: retention, thinning, merging, and deleting files that nobody needs.
    pub fn tidy(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            let tidied = upkeep::tidy(&self.shared).await;
            self.shared.delete_doomed().await;
            tidied
        })
    }

    /// Deletes everything of a run: what is in segments, in the tail and in the log, and the media that no other run
    /// names. False if there was nothing. What comes for the run afterwards is kept.
    pub fn delete_run<'a>(&'a self, run_id: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        let (shared, run_id) = (self.shared.clone(), run_id.to_string());
        // On its own: whoever asked may go away, and a commit must not stop between disk and memory.
        let delete = async move {
            {
                let _alone = shared.gate.write().await;
                if !shared.state.read().has_run(&run_id) {
                    return Ok(false);
                }
                shared.touched.forget(&run_id);
                shared.flush_but(&run_id).await?;
            }
            shared.delete_derived(&run_id).await;
            shared.sweep_media().await;
            Ok(true)
        };
        Box::pin(async move { tokio::spawn(delete).await.map_err(|e| StoreError::Busy(e.to_string()))? })
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

    /// `None` if it was never stored. A damaged file is moved to quarantine and reported; storing it again mends that.
    pub async fn media_get(&self, hash: &str) -> Result<Option<bytes::Bytes>, StoreError> {
        let found = crate::media::get(&self.shared.root, hash).await;
        if let Err(StoreError::Damaged(why)) = &found
            && let Ok(item) = self.shared.quarantine(&crate::media::path(hash), why.clone()).await
        {
            let shared = self.shared.clone();
            let recorded = tokio::spawn(async move { shared.record_set_aside(vec![item]).await });
            recorded.await.map_err(|e| StoreError::Busy(e.to_string()))??;
        }
        found
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
            log_bytes: get(&c.part_bytes),
            tail_rows: Table::ALL.map(|t| (t.name(), tail(t))).into(),
            tail_bytes: (state.active_bytes() + state.sealed_bytes()) as u64,
            followed_rows: state.theirs.as_ref().map_or(0, |theirs| theirs.rows()),
            segments: state.manifest.segments.len() as u64,
            segment_rows: state.manifest.segments.iter().map(|s| s.rows).sum(),
            segment_bytes: state.manifest.segments.iter().map(|s| s.bytes).sum(),
            flushes: get(&c.flushes),
            flush_errors: get(&c.flush_errors),
            flush_ms: get(&c.flush_ms),
            compactions: get(&c.compactions),
            expired_segments: get(&c.expired_segments),
            duplicate_check_bytes: get(&c.known_bytes),
            duplicate_check_skipped: get(&c.known_skipped),
        }
    }

    pub fn health(&self) -> Health {
        let mut problems = Vec::new();
        let failure = self.shared.flush_state.lock().failure.as_ref().map(StoreError::again);
        if let Some(failure) = &failure {
            problems.push(format!("cannot write the live tail to segments: {failure}"));
        }
        let stuck = self.shared.stuck.problem();
        problems.extend(stuck.clone());
        if let Some((since, why)) = self.shared.unheard.lock().as_ref() {
            let seconds = since.elapsed().as_secs();
            problems.push(format!(
                "this node has been unable to say that it is there for {seconds} s ({why}); after a minute, another one takes its place"
            ));
        }
        problems.extend(self.shared.follow_problems.lock().iter().cloned());
        let is_fenced = self.shared.is_fenced.load(Ordering::Relaxed);
        if is_fenced {
            problems.push(StoreError::Fenced.to_string());
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
        for item in &manifest.unread {
            problems.push(item.problem());
        }
        let deaths = self.shared.vitals.deaths();
        problems.extend(deaths.iter().map(ToString::to_string));
        let writable = failure.is_none()
            && stuck.is_none()
            && !is_fenced
            && !self.shared.closed.load(Ordering::Relaxed)
            && !self.shared.vitals.is_dead(WRITER);
        Health { writable, problems, set_aside, deaths }
    }

    /// Flushes, stops taking rows, and releases the folder.
    pub async fn close(&self) -> Result<(), StoreError> {
        drop(self.shared.queue.lock().take());
        self.shared.closed.store(true, Ordering::Relaxed);
        // In a lake, nothing may be acknowledged behind the last flush: what is left of the log is deleted then.
        if self.shared.node.is_some() {
            // Nor may a takeover find the log closed half-way.
            let _nobody_takes_over = self.shared.watch.lock().await;
            self.shared.writer.lock().await.log.close()?;
        }
        let result = self.flush().await;
        self.shared.write_manifest(&mut *self.shared.commit.lock().await).await;
        if result.is_ok()
            && let Some(node) = &self.shared.node
            && let Err(e) = self.leave(node).await
        {
            tracing::warn!(error = %e, "cannot sign off; the next start looks after it");
        }
        self.shared.lock.lock().take();
        result
    }
}

impl Store {
    /// The nodes of a lake, this one among them, as they were seen seconds ago. Empty for a folder.
    pub fn nodes(&self) -> Vec<SeenNode> {
        self.shared.nodes.read().clone()
    }

    /// The same, looked at now, with how busy they are.
    pub fn look_at_nodes(&self) -> BoxFuture<'_, Result<Vec<SeenNode>, StoreError>> {
        Box::pin(async {
            match self.shared.looking.lock().await.as_mut() {
                Some(nodes) => nodes.look_closely().await,
                None => Ok(Vec::new()),
            }
        })
    }

    /// The name that this node has in a lake.
    pub fn node_name(&self) -> Option<&str> {
        self.shared.node.as_ref().map(NodeEntry::name)
    }

    /// In a lake: the node that tells the sinks of alarms, the first by name of those that are there and watch for the same ones. `None` in a
    /// folder, and until somebody has looked who is there.
    pub fn speaker(&self) -> Option<String> {
        let own = self.shared.node.as_ref()?.about();
        let nodes = self.shared.nodes.read();
        // This one is there, also if it cannot say so.
        let is_fenced = self.shared.is_fenced.load(Ordering::Relaxed);
        let is_there = |node: &SeenNode| node.is_there() || !is_fenced && node.about.name == own.name;
        let watching = nodes.iter().filter(|node| node.writes && is_there(node) && node.about.alarms == own.alarms);
        watching.map(|node| node.about.name.clone()).min()
    }

    /// How long it may take until rows are there that another node of a lake has acknowledged. No time for one that follows the logs of the
    /// others, and in a folder.
    pub fn behind_others(&self) -> Duration {
        let is_behind = self.shared.node.is_some() && self.shared.state.read().theirs.is_none();
        if is_behind { self.shared.options.flush_age() + FLUSH_AND_REFRESH } else { Duration::ZERO }
    }

    /// In a lake: small files that all nodes may change. `None` in a folder.
    pub fn shared_files(&self) -> Option<SharedFiles> {
        self.shared.node.as_ref().map(|_| SharedFiles::new(self.shared.root.clone()))
    }

    /// Leaves a lake, after everything was flushed.
    async fn leave(&self, node: &NodeEntry) -> Result<(), StoreError> {
        let mut commits = self.shared.commit.lock().await;
        let is_empty = {
            let state = self.shared.state.read();
            !state.has_active() && !state.has_sealed()
        };
        let Commits::Lake(tables) = &mut *commits else { return Ok(()) };
        if !is_empty || lake::answers_for_others(&self.shared.root, &node.writer).await? {
            return Err(StoreError::Busy("something is left in the log".into()));
        }
        tables.finish_takeovers().await?;
        let end = self.shared.writer.lock().await.log.begin(None)?;
        self.shared.logs.forget(end).await?;
        node.leave().await
    }
}

impl SnapshotSource for Store {
    fn snapshot(&self) -> Snapshot {
        let snapshot = self.shared.state.read().snapshot(self.shared.root.objects.clone());
        let writer = self.shared.node.as_ref().map(|_| self.shared.writer_id.clone());
        let derived = self.shared.derived.written.clone();
        Snapshot { keeper: Some(Keeper { root: self.shared.root.clone(), writer, derived }), ..snapshot }
    }
}
