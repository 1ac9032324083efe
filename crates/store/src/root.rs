//! Files of the store: read through `object_store`, changed through [`Disk`].

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::disk::{Disk, PARTIAL, files_below};
use crate::error::StoreError;
use crate::manifest::Segment;
use crate::segment;

#[derive(Clone)]
pub(crate) struct Root {
    pub objects: Arc<dyn ObjectStore>,
    pub disk: Disk,
    folder: PathBuf,
}

impl Root {
    pub fn new(dir: &Path, disk: Disk) -> Result<Root, StoreError> {
        let objects = Arc::new(LocalFileSystem::new_with_prefix(dir)?);
        let folder = dir.canonicalize().map_err(|e| StoreError::io(dir, e))?;
        Ok(Root { objects, disk, folder })
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    pub async fn get(&self, path: &str) -> Result<Bytes, StoreError> {
        Ok(self.objects.get(&ObjectPath::from(path)).await?.bytes().await?)
    }

    /// Writes a file whole or not at all, and returns when it will survive a power cut.
    pub async fn put(&self, path: &str, data: Vec<u8>) -> Result<(), StoreError> {
        self.change(path, move |root, file| {
            root.make_folder_of(&file)?;
            root.disk.put(&file, &data)
        })
        .await
    }

    /// The same for what can be lost.
    pub async fn put_unsynced(&self, path: &str, data: Vec<u8>) -> Result<(), StoreError> {
        self.change(path, move |root, file| {
            root.make_folder_of(&file)?;
            root.disk.put_unsynced(&file, &data)
        })
        .await
    }

    pub async fn delete(&self, path: &str) -> Result<(), StoreError> {
        self.change(path, |root, file| root.disk.remove(&file)).await
    }

    /// The bytes of a segment, if they are what was written. [`StoreError::of_segment`] says what an error means.
    pub async fn read_segment(&self, segment: &Segment) -> Result<Bytes, StoreError> {
        let data = self.get(&segment.path).await.map_err(StoreError::of_segment)?;
        segment::verify(segment, &data).map_err(StoreError::Damaged)?;
        Ok(data)
    }

    /// After files were deleted: a power cut does not bring them back.
    pub async fn sync_folders_of(&self, paths: &[String]) -> Result<(), StoreError> {
        let folders: BTreeSet<&str> = paths.iter().filter_map(|path| Some(path.rsplit_once('/')?.0)).collect();
        let mut synced = Ok(());
        for folder in folders {
            let one = self.change(folder, |root, folder| match root.disk.sync_folder(&folder) {
                // What was never made holds nothing that could come back.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
                done => done,
            });
            synced = synced.and(one.await);
        }
        synced
    }

    /// Moves a damaged file to `quarantine/`. One that is missing need not be moved. The error says that it is damaged, and why it
    /// is still where it was.
    pub async fn set_aside(&self, path: &str, why: &str) -> Result<(), String> {
        let to = self.path(&format!("quarantine/{}", path.replace('/', "__")));
        let moved = self.change(path, move |root, from| {
            root.make_folder_of(&to)?;
            match root.disk.rename(&from, &to) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
                renamed => renamed,
            }?;
            root.disk.sync_folder(to.parent().expect("it is in a folder"))
        });
        let stays = |e| {
            tracing::warn!(file = path, why, error = %e, "cannot move a damaged file to quarantine");
            format!("it is damaged: {why}; it cannot be moved to quarantine: {e}")
        };
        moved.await.map_err(stays)
    }

    /// Paths of all files below a folder.
    pub async fn list(&self, folder: &str) -> Result<Vec<String>, StoreError> {
        self.change(folder, |root, folder| {
            let mut found = Vec::new();
            files_below(&folder, &mut found)?;
            Ok(found.iter().filter_map(|f| Some(f.strip_prefix(&root.folder).ok()?.to_str()?.to_string())).collect())
        })
        .await
    }

    /// The files below a folder, with their sizes; what was written last comes first.
    pub async fn sizes(&self, folder: &str) -> Result<Vec<(String, u64)>, StoreError> {
        let mut found = self
            .change(folder, |root, folder| {
                let (mut files, mut found) = (Vec::new(), Vec::new());
                files_below(&folder, &mut files)?;
                for file in files {
                    // One that has gone meanwhile takes no room.
                    let (Ok(path), Ok(about)) = (file.strip_prefix(&root.folder), file.metadata()) else { continue };
                    found.extend(path.to_str().map(|path| (about.modified().ok(), path.to_string(), about.len())));
                }
                Ok(found)
            })
            .await?;
        found.sort_unstable_by(|a, b| b.cmp(a));
        Ok(found.into_iter().map(|(_, path, bytes)| (path, bytes)).collect())
    }

    /// Removes what writers that were killed had not finished.
    pub async fn remove_partial(&self) -> Result<(), StoreError> {
        self.change("", |root, folder| {
            let mut found = Vec::new();
            files_below(&folder, &mut found)?;
            let partial = |file: &&PathBuf| file.to_str().is_some_and(|name| name.ends_with(PARTIAL));
            found.iter().filter(partial).try_for_each(|file| root.disk.remove(file))
        })
        .await
    }

    fn make_folder_of(&self, file: &Path) -> std::io::Result<()> {
        file.parent().map_or(Ok(()), |folder| self.disk.make_folder(&self.folder, folder))
    }

    /// Waiting for a disk is no work for the reactor.
    async fn change<T: Send + 'static>(
        &self,
        path: &str,
        change: impl FnOnce(&Root, PathBuf) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (root, file) = (self.clone(), self.path(path));
        let changed =
            tokio::task::spawn_blocking(move || change(&root, file.clone()).map_err(|e| StoreError::io(file, e)));
        changed.await.map_err(|e| StoreError::Busy(e.to_string()))?
    }
}
