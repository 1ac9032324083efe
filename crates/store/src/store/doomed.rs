//! What goes away: files that no manifest names any more, and the media of deleted runs.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rollscope_model::Table;

use super::shared::{Shared, What};
use crate::error::StoreError;
use crate::manifest::Manifest;
use crate::snapshot::{DERIVED, derived_folder, split_path};

/// One part in this many of `retention_bytes` is for what was worked out from rows.
const DERIVED_PART: u64 = 10;

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

    /// Where retention limits bytes, what was worked out from rows may take a part of them: what was written last stays. Returns how
    /// much that is.
    pub(super) async fn trim_derived(&self) -> Result<u64, StoreError> {
        let (most, mut total) = (self.options.retention_bytes / DERIVED_PART, 0);
        for (path, bytes) in self.root.sizes(DERIVED).await? {
            match total + bytes <= most {
                true => total += bytes,
                false => self.doom(path, Duration::ZERO),
            }
        }
        self.delete_doomed().await;
        Ok(total)
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
