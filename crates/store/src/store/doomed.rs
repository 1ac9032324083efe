//! What goes away: files that no manifest names any more, and the media of deleted runs.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use rollscope_model::Table;

use super::shared::{Shared, What};
use crate::error::StoreError;
use crate::manifest::Manifest;
use crate::snapshot::{DERIVED, derived_folder, split_path};

/// One part in this many of `retention_bytes` is for what was worked out from rows.
const DERIVED_PART: u64 = 10;
/// Without that limit, one part in this many of what rows take, and at least so much.
const DERIVED_SHARE: u64 = 4;
const LEAST_DERIVED: u64 = 1 << 30;
/// Without that limit, it is looked at when so much was written, or after so long.
const LOOK_AFTER: u64 = 64 << 20;
const LOOK_EVERY: Duration = Duration::from_secs(600);

impl Shared {
    /// Deletes the media that deleted runs named and that no other run names. What cannot be done now is tried again.
    pub(super) async fn sweep_media(&self) {
        let doomed: HashSet<String> = self.state.read().manifest.doomed_media.iter().cloned().collect();
        // In a lake, conversations that other nodes have not flushed may name them.
        if doomed.is_empty() || self.node.is_some() {
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
            let mut commit = self.commit.lock().await;
            let mut manifest = Manifest::clone(&self.state.read().manifest);
            manifest.doomed_media.retain(|hash| !doomed.contains(hash));
            self.commit_manifest(&mut commit, manifest, What::default(), |_, _| {}).await
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
        match crate::media::leave_named(&snapshot, unnamed, looked_at).await {
            Ok(()) => Ok(()),
            Err((path, error)) => {
                self.writer.lock().await.known.note_unreadable(path);
                Err(error)
            }
        }
    }

    /// Deletes a file that is no longer live once readers had time to finish: as long as all files get, or less.
    pub(super) fn doom(&self, path: String, at_most: Duration) {
        let grace = Duration::from_secs(self.options.delete_grace_s).min(at_most);
        let split = self.node.as_ref().and_then(|_| split_path(&path));
        let due = Instant::now() + grace;
        self.doomed.lock().extend([Some(path), split].into_iter().flatten().map(|path| (due, path)));
    }

    /// Files that no manifest names: left by a process that ended before their time had come, or before its commit.
    pub(super) async fn doom_leftovers(&self) -> Result<(), StoreError> {
        let manifest = self.state.read().manifest.clone();
        let kept: HashSet<&str> = manifest.kept().map(|segment| segment.path.as_str()).collect();
        let gone: HashSet<&str> = manifest.gone.iter().map(String::as_str).collect();
        for table in Table::ALL {
            for path in self.root.list(table.name()).await?.into_iter().filter(|path| !kept.contains(path.as_str())) {
                // Readers may use what was live once.
                let grace = if gone.contains(path.as_str()) { Duration::MAX } else { Duration::ZERO };
                self.doom(path, grace);
            }
        }
        let runs: HashSet<String> = manifest.kept().flat_map(|s| s.runs()).map(derived_folder).collect();
        for path in self.root.list(DERIVED).await? {
            if !path.rsplit_once('/').is_some_and(|(folder, _)| runs.contains(folder)) {
                self.doom(path, Duration::ZERO);
            }
        }
        self.delete_doomed().await;
        Ok(())
    }

    /// What was worked out from the rows of a deleted run.
    pub(super) async fn delete_derived(&self, run_id: &str) {
        let files = self.root.list(&derived_folder(run_id)).await.unwrap_or_default();
        files.into_iter().for_each(|path| self.doom(path, Duration::ZERO));
        self.delete_doomed().await;
    }

    /// What was worked out from rows may take a part of the bytes that rows take, or may take where retention limits them: what was
    /// written last stays. Nothing stays for longer than rows do. Returns how much it takes, where retention limits it.
    pub(super) async fn trim_derived(&self) -> Result<u64, StoreError> {
        let limit = self.options.retention_bytes;
        let looked = *self.derived.looked.lock();
        let written = self.derived.written.load(Ordering::Relaxed);
        let is_due = looked.is_none_or(|at| at.elapsed() > LOOK_EVERY) || written > LOOK_AFTER;
        if limit == 0 && !is_due {
            return Ok(0);
        }
        *self.derived.looked.lock() = Some(Instant::now());
        self.derived.written.fetch_sub(written, Ordering::Relaxed);
        let rows: u64 = self.state.read().manifest.segments.iter().map(|segment| segment.bytes).sum();
        let most = if limit == 0 { (rows / DERIVED_SHARE).max(LEAST_DERIVED) } else { limit / DERIVED_PART };
        let age = Duration::from_secs(self.options.retention_age_s);
        let oldest = SystemTime::now().checked_sub(age).filter(|_| !age.is_zero());
        let mut total = 0;
        let found = match self.root.sizes(DERIVED).await {
            // What else there is to do does not depend on it.
            Err(e) if limit == 0 => {
                tracing::warn!(error = %e, "cannot see what takes room in {DERIVED}; trying again later");
                return Ok(0);
            }
            found => found?,
        };
        for (at, path, bytes) in found {
            let is_old = oldest.is_some_and(|oldest| at.is_some_and(|at| at < oldest));
            match !is_old && total + bytes <= most {
                true => total += bytes,
                false => self.doom(path, Duration::ZERO),
            }
        }
        self.delete_doomed().await;
        Ok(if limit == 0 { 0 } else { total })
    }

    pub(super) async fn delete_doomed(&self) {
        let due: Vec<String> = {
            let mut doomed = self.doomed.lock();
            let now = Instant::now();
            let (due, wait) = std::mem::take(&mut *doomed).into_iter().partition(|(at, _)| *at <= now);
            *doomed = wait;
            let due: Vec<(Instant, String)> = due;
            due.into_iter().map(|(_, path)| path).collect()
        };
        for path in &due {
            if let Err(e) = self.root.delete(path).await {
                tracing::warn!(file = path, error = %e, "cannot delete a file; trying again later");
                self.doom(path.clone(), Duration::MAX);
            }
        }
        // Until this is done, the manifest calls them gone.
        if let Err(e) = self.root.sync_folders_of(&due).await {
            tracing::warn!(error = %e, "cannot sync a folder");
        }
    }
}
