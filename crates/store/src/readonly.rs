//! A folder or a lake opened for reading, while servers may be writing it. Takes no lock and changes nothing.

use std::path::Path;

use crate::disk::Disk;
use crate::error::StoreError;
use crate::lake::{AllLogs, Lake, LakeTables};
use crate::logs::WAL;
use crate::manifest::Manifest;
use crate::open::Replayed;
use crate::options::StoreOptions;
use crate::root::{Folder, Root};
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
        if !dir.join(WAL).is_dir() {
            return Err(StoreError::NoStore(dir.to_path_buf()));
        }
        let (root, folder) = Root::new(dir, Disk::default())?;
        let mut last = None;
        for _ in 0..TRIES {
            match Self::read_state(&root, &folder).await {
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

    /// The tables of a lake, and what the logs of its writers hold beside.
    pub async fn open_lake(lake: Lake) -> Result<ReadOnlyStore, StoreError> {
        let root = Root::of_lake(lake.objects);
        let mut tables = LakeTables::new(lake.tables, &root, "");
        for _ in 0..TRIES {
            let logs = AllLogs::read(&root).await?;
            let manifest = tables.manifest().await?;
            let mut rows = Vec::new();
            if !logs.replay(&tables, |table, batch| rows.push((table, batch))).await? {
                continue;
            }
            let (task_root, handle) = (root.clone(), tokio::runtime::Handle::current());
            let replayed = tokio::task::spawn_blocking(move || {
                let mut replayed = Replayed::new(manifest, &StoreOptions::default());
                for (table, batch) in rows {
                    replayed.take(table, &batch, &task_root, &handle)?;
                }
                Ok::<_, StoreError>(replayed.state)
            });
            let state = replayed.await.expect("replay does not panic")?;
            return Ok(ReadOnlyStore { root, state });
        }
        Err(StoreError::Busy("the lake changes faster than it can be read; try again".into()))
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

    async fn read_state(root: &Root, folder: &Folder) -> Result<Option<State>, StoreError> {
        let before = Self::manifest(root).await?;
        let (version, floor) = (before.version, before.wal_floor);
        let options = StoreOptions::default();
        let (task_root, folder, handle) = (root.clone(), folder.clone(), tokio::runtime::Handle::current());
        let replayed = tokio::task::spawn_blocking(move || {
            let numbers: Vec<u64> = wal::list(&folder.path(WAL))?.into_iter().filter(|n| *n >= floor).collect();
            open::replay(&task_root, &folder, &options, before, &numbers, &handle, false)
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
