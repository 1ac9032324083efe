//! What the handles, the writer thread and the background work of a store share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use arrow::array::RecordBatch;
use parking_lot::{Condvar, Mutex, RwLock};
use rollscope_model::Table;
use rollscope_model::time::now_ns;
use tokio::sync::{mpsc, watch};

use super::flush::FlushState;
use super::writer::{Request, WRITER, Writer};
use crate::error::StoreError;
use crate::lock::Lock;
use crate::manifest::{self, Manifest, Segment, SetAside};
use crate::options::StoreOptions;
use crate::root::Root;
use crate::segment::{self, Effort, NewSegment};
use crate::tail::State;
use crate::touched::Touched;
use crate::vitals::Vitals;

pub(super) struct Shared {
    pub(super) options: StoreOptions,
    pub(super) root: Root,
    pub(super) state: RwLock<State>,
    pub(super) writer: Mutex<Writer>,
    pub(super) queue: Mutex<Option<mpsc::Sender<Request>>>,
    /// Held for writing while a run is deleted.
    pub(super) gate: tokio::sync::RwLock<()>,
    /// Commits to the manifest happen one at a time.
    pub(super) commit: tokio::sync::Mutex<()>,
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
    pub(super) wal_dir: PathBuf,
    pub(super) closed: AtomicBool,
    pub(super) lock: Mutex<Option<Lock>>,
    pub(super) set_aside_now: Mutex<Vec<SetAside>>,
    pub(super) touched: Touched,
    pub(super) vitals: Vitals,
}

/// Background work holds the store weakly: it ends when the last handle is gone.
pub(super) type WeakShared = Weak<Shared>;

#[derive(Default)]
pub(super) struct Counters {
    pub(super) rows: [AtomicU64; 6],
    pub(super) duplicates: AtomicU64,
    pub(super) log_bytes: AtomicU64,
    pub(super) log_syncs: AtomicU64,
    pub(super) append_errors: AtomicU64,
    pub(super) flushes: AtomicU64,
    pub(super) flush_errors: AtomicU64,
    pub(super) flush_ms: AtomicU64,
    pub(super) compactions: AtomicU64,
    pub(super) expired_segments: AtomicU64,
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

    /// Replaces the manifest on disk, then in memory together with `also`, so that readers see both or neither, and the
    /// writer admits every group of rows against one of them. The caller holds `commit`.
    pub(super) async fn commit_manifest(
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

    pub(super) async fn record_set_aside(&self, items: Vec<SetAside>) -> Result<(), StoreError> {
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
    pub(super) async fn read_segment(&self, segment: &Segment) -> Result<bytes::Bytes, StoreError> {
        let data = self.root.get(&segment.path).await.map_err(|e| match e.is_of_the_machine() {
            true => e,
            false => StoreError::Damaged(e.to_string()),
        })?;
        segment::verify(segment, &data).map_err(StoreError::Damaged)?;
        Ok(data)
    }

    pub(super) async fn quarantine(&self, path: &str, why: String) -> SetAside {
        tracing::warn!(file = path, why, "moved a damaged file to quarantine");
        if let Err(e) = self.root.set_aside(path).await {
            tracing::warn!(file = path, error = %e, "cannot move a damaged file to quarantine");
        }
        SetAside { file: path.into(), why, at_ns: now_ns() }
    }

    /// A live segment turned out to be damaged: stop serving it, move it to quarantine and report it.
    pub(super) async fn set_segment_aside(&self, path: &str, why: String) -> Result<(), StoreError> {
        let item = self.quarantine(path, why).await;
        self.record_set_aside(vec![item]).await
    }

    /// Segments that the writer stumbled over.
    pub(super) async fn check_unreadable(&self) {
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
