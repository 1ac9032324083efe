//! A folder opened for reading, while a server may be writing it. Takes no lock and changes nothing.

use std::path::Path;

use crate::disk::Disk;
use crate::error::StoreError;
use crate::manifest::Manifest;
use crate::options::StoreOptions;
use crate::root::Root;
use crate::snapshot::{Snapshot, SnapshotSource};
use crate::tail::State;
use crate::{journal, open, wal};

pub struct ReadOnlyStore {
    root: Root,
    state: State,
}

/// A flush may move rows from the log to segments between two of our reads: then the manifest has changed, and we look again.
const TRIES: usize = 10;

impl ReadOnlyStore {
    pub async fn open(dir: &Path) -> Result<ReadOnlyStore, StoreError> {
        if !dir.join("wal").is_dir() {
            return Err(StoreError::NoStore(dir.to_path_buf()));
        }
        let root = Root::new(dir, Disk::default())?;
        let mut last = None;
        for _ in 0..TRIES {
            match Self::read_state(&root, dir).await {
                Ok(Some(state)) => return Ok(ReadOnlyStore { root, state }),
                Ok(None) => {}
                Err(e @ StoreError::Newer { .. }) => return Err(e),
                Err(e) => last = Some(e),
            }
        }
        Err(last.unwrap_or_else(|| {
            StoreError::Busy(
                "the folder changes faster than it can be read; query the server instead with --server URL".into(),
            )
        }))
    }

    async fn manifest(root: &Root) -> Result<Manifest, StoreError> {
        let found = journal::find(root).await?;
        match (found.manifest, found.damage.into_iter().next()) {
            (Some(manifest), _) => Ok(manifest),
            (None, None) => Ok(Manifest::default()),
            (None, Some((file, why))) => {
                Err(StoreError::Damaged(format!("{file}: {why}; start the server once to rebuild it")))
            }
        }
    }

    async fn read_state(root: &Root, dir: &Path) -> Result<Option<State>, StoreError> {
        let before = Self::manifest(root).await?;
        let (version, floor) = (before.version, before.wal_floor);
        let wal_dir = dir.join("wal");
        let options = StoreOptions::at(dir);
        let (task_root, handle) = (root.clone(), tokio::runtime::Handle::current());
        let replayed = tokio::task::spawn_blocking(move || {
            let numbers: Vec<u64> = wal::list(&wal_dir)?.into_iter().filter(|n| *n >= floor).collect();
            open::replay(&task_root, &options, &wal_dir, before, &numbers, &handle, false)
        })
        .await
        .expect("replay does not panic")?;
        let after = Self::manifest(root).await?;
        Ok((after.version == version).then_some(replayed.state))
    }
}

impl SnapshotSource for ReadOnlyStore {
    fn snapshot(&self) -> Snapshot {
        self.state.snapshot(self.root.objects.clone())
    }
}
