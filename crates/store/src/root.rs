//! Files of the store: read through `object_store`. Those of a folder are changed through [`Disk`], those of a lake through
//! `object_store`, too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{MultipartUpload as _, ObjectStore, ObjectStoreExt};
use tokio::io::AsyncReadExt;

use crate::disk::{Disk, PARTIAL, files_below};
use crate::error::StoreError;
use crate::manifest::Segment;
use crate::segment;

/// Larger files go to an object store in parts of this size.
const PART_BYTES: usize = 8 << 20;

#[derive(Clone)]
pub(crate) struct Root {
    pub objects: Arc<dyn ObjectStore>,
    /// `None`: the files are objects of a lake.
    folder: Option<Folder>,
}

/// A folder on a disk, with paths below it.
#[derive(Clone)]
pub(crate) struct Folder {
    pub disk: Disk,
    path: PathBuf,
}

impl Folder {
    pub fn path(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }

    pub fn make(&self, path: &Path) -> std::io::Result<()> {
        self.disk.make_folder(&self.path, path)
    }

    fn make_folder_of(&self, file: &Path) -> std::io::Result<()> {
        file.parent().map_or(Ok(()), |folder| self.make(folder))
    }

    /// Waiting for a disk is no work for the reactor.
    async fn change<T: Send + 'static>(
        &self,
        path: &str,
        change: impl FnOnce(&Folder, PathBuf) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (folder, file) = (self.clone(), self.path(path));
        let changed =
            tokio::task::spawn_blocking(move || change(&folder, file.clone()).map_err(|e| StoreError::io(file, e)));
        changed.await.map_err(|e| StoreError::Busy(e.to_string()))?
    }
}

impl Root {
    pub fn new(dir: &Path, disk: Disk) -> Result<(Root, Folder), StoreError> {
        let objects = Arc::new(LocalFileSystem::new_with_prefix(dir)?);
        let folder = Folder { disk, path: dir.canonicalize().map_err(|e| StoreError::io(dir, e))? };
        Ok((Root { objects, folder: Some(folder.clone()) }, folder))
    }

    pub fn of_lake(objects: Arc<dyn ObjectStore>) -> Root {
        Root { objects, folder: None }
    }

    pub async fn get(&self, path: &str) -> Result<Bytes, StoreError> {
        Ok(self.objects.get(&ObjectPath::from(path)).await?.bytes().await?)
    }

    /// Writes a file whole or not at all, and returns when it will survive a power cut.
    pub async fn put(&self, path: &str, data: Vec<u8>) -> Result<(), StoreError> {
        let Some(folder) = &self.folder else { return self.put_object(path, data).await };
        let put = move |folder: &Folder, file: PathBuf| {
            folder.make_folder_of(&file)?;
            folder.disk.put(&file, &data)
        };
        folder.change(path, put).await
    }

    /// The same for what can be lost.
    pub async fn put_unsynced(&self, path: &str, data: Vec<u8>) -> Result<(), StoreError> {
        let Some(folder) = &self.folder else { return self.put_object(path, data).await };
        let put = move |folder: &Folder, file: PathBuf| {
            folder.make_folder_of(&file)?;
            folder.disk.put_unsynced(&file, &data)
        };
        folder.change(path, put).await
    }

    /// Writes an object of a lake that may be large, in parts. It is there as a whole or not at all.
    pub async fn put_file(&self, path: &str, from: &Path) -> Result<(), StoreError> {
        let failed = |e| StoreError::io(from, e);
        let mut file = tokio::fs::File::open(from).await.map_err(failed)?;
        let mut next = async || -> Result<Vec<u8>, StoreError> {
            let mut part = Vec::with_capacity(PART_BYTES);
            (&mut file).take(PART_BYTES as u64).read_to_end(&mut part).await.map_err(failed)?;
            Ok(part)
        };
        let (first, mut part) = (next().await?, next().await?);
        if part.is_empty() {
            return self.put_object(path, first).await;
        }
        let mut upload = self.objects.put_multipart(&ObjectPath::from(path)).await?;
        let uploaded = async {
            upload.put_part(first.into()).await?;
            while !part.is_empty() {
                upload.put_part(part.into()).await?;
                part = next().await?;
            }
            Ok(upload.complete().await.map(drop)?)
        };
        let uploaded: Result<(), StoreError> = uploaded.await;
        if uploaded.is_err() {
            // Parts that stay cost money and are not listed.
            let _ = upload.abort().await;
        }
        uploaded
    }

    async fn put_object(&self, path: &str, data: Vec<u8>) -> Result<(), StoreError> {
        Ok(self.objects.put(&ObjectPath::from(path), data.into()).await.map(drop)?)
    }

    /// One that is not there is deleted already.
    pub async fn delete(&self, path: &str) -> Result<(), StoreError> {
        if let Some(folder) = &self.folder {
            return folder.change(path, |folder, file| folder.disk.remove(&file)).await;
        }
        match self.objects.delete(&ObjectPath::from(path)).await {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            done => Ok(done?),
        }
    }

    /// The bytes of a segment, if they are what was written. [`StoreError::of_segment`] says what an error means.
    pub async fn read_segment(&self, segment: &Segment) -> Result<Bytes, StoreError> {
        let data = self.get(&segment.path).await;
        // In a lake, another process may have merged and deleted it, or the network is at fault.
        let data = if self.folder.is_some() { data.map_err(StoreError::of_segment)? } else { data? };
        segment::verify(segment, &data).map_err(StoreError::Damaged)?;
        Ok(data)
    }

    /// After files were deleted: a power cut does not bring them back.
    pub async fn sync_folders_of(&self, paths: &[String]) -> Result<(), StoreError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let folders: BTreeSet<&str> = paths.iter().filter_map(|path| Some(path.rsplit_once('/')?.0)).collect();
        let mut synced = Ok(());
        for path in folders {
            let one = folder.change(path, |folder, path| match folder.disk.sync_folder(&path) {
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
        let to = format!("quarantine/{}", path.replace('/', "__"));
        let moved = match &self.folder {
            Some(folder) => folder.change(path, move |folder, from| move_file(folder, &from, &folder.path(&to))).await,
            None => match self.objects.rename(&ObjectPath::from(path), &ObjectPath::from(to)).await {
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                moved => moved.map_err(StoreError::from),
            },
        };
        moved.map_err(|e| {
            tracing::warn!(file = path, why, error = %e, "cannot move a damaged file to quarantine");
            format!("it is damaged: {why}; it cannot be moved to quarantine: {e}")
        })
    }

    /// Paths of all files below a folder.
    pub async fn list(&self, path: &str) -> Result<Vec<String>, StoreError> {
        let Some(folder) = &self.folder else {
            return Ok(self.objects_below(path).await?.into_iter().map(|o| o.1).collect());
        };
        folder
            .change(path, |folder, path| {
                let mut found = Vec::new();
                files_below(&path, &mut found)?;
                Ok(found
                    .iter()
                    .filter_map(|f| Some(f.strip_prefix(&folder.path).ok()?.to_str()?.to_string()))
                    .collect())
            })
            .await
    }

    /// The files below a folder, with their sizes; what was written last comes first.
    pub async fn sizes(&self, path: &str) -> Result<Vec<(Option<SystemTime>, String, u64)>, StoreError> {
        let mut found = match &self.folder {
            Some(folder) => folder.change(path, |folder, path| sizes_below(folder, &path)).await?,
            None => self.objects_below(path).await?,
        };
        found.sort_unstable_by(|a, b| b.cmp(a));
        Ok(found)
    }

    async fn objects_below(&self, path: &str) -> Result<Vec<(Option<SystemTime>, String, u64)>, StoreError> {
        let found = self.objects.list(Some(&ObjectPath::from(path)));
        let about = |o: object_store::ObjectMeta| (Some(o.last_modified.into()), o.location.to_string(), o.size);
        Ok(found.map_ok(about).try_collect().await?)
    }
}

/// Removes what writers that were killed had not finished.
pub(crate) async fn remove_partial(folder: &Folder) -> Result<(), StoreError> {
    folder
        .change("", |folder, path| {
            let mut found = Vec::new();
            files_below(&path, &mut found)?;
            let partial = |file: &&PathBuf| file.to_str().is_some_and(|name| name.ends_with(PARTIAL));
            found.iter().filter(partial).try_for_each(|file| folder.disk.remove(file))
        })
        .await
}

fn move_file(folder: &Folder, from: &Path, to: &Path) -> std::io::Result<()> {
    folder.make_folder_of(to)?;
    match folder.disk.rename(from, to) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        renamed => renamed,
    }?;
    folder.disk.sync_folder(to.parent().expect("it is in a folder"))
}

fn sizes_below(folder: &Folder, path: &Path) -> std::io::Result<Vec<(Option<SystemTime>, String, u64)>> {
    let (mut files, mut found) = (Vec::new(), Vec::new());
    files_below(path, &mut files)?;
    for file in files {
        // One that has gone meanwhile takes no room.
        let (Ok(path), Ok(about)) = (file.strip_prefix(&folder.path), file.metadata()) else { continue };
        found.extend(path.to_str().map(|path| (about.modified().ok(), path.to_string(), about.len())));
    }
    Ok(found)
}
