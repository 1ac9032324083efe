//! Files of the store, through `object_store`. On a local disk a file counts only when it and its folder are synced, which
//! `object_store` leaves to us.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};

use crate::error::StoreError;

#[derive(Clone)]
pub(crate) struct Root {
    pub objects: Arc<dyn ObjectStore>,
    local: PathBuf,
}

impl Root {
    pub fn local(dir: &Path) -> Result<Root, StoreError> {
        let objects = Arc::new(LocalFileSystem::new_with_prefix(dir)?);
        let local = dir.canonicalize().map_err(|e| StoreError::io(dir, e))?;
        Ok(Root { objects, local })
    }

    pub async fn get(&self, path: &str) -> Result<Bytes, StoreError> {
        Ok(self.objects.get(&ObjectPath::from(path)).await?.bytes().await?)
    }

    /// Writes a file whole or not at all, and returns when it will survive a power cut.
    pub async fn put(&self, path: &str, data: Vec<u8>) -> Result<(), StoreError> {
        let location = ObjectPath::from(path);
        self.objects.put(&location, PutPayload::from(data)).await.map_err(|e| self.disk_error(e))?;
        let file = self.local.join(path);
        tokio::task::spawn_blocking(move || {
            let sync = || {
                std::fs::File::open(&file)?.sync_all()?;
                file.parent().map_or(Ok(()), crate::wal::sync_dir)
            };
            sync().map_err(|e| StoreError::io(&file, e))
        })
        .await
        .map_err(|e| StoreError::Busy(e.to_string()))?
    }

    pub async fn delete(&self, path: &str) -> Result<(), StoreError> {
        match self.objects.delete(&ObjectPath::from(path)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Moves a damaged file to `quarantine/`.
    pub async fn set_aside(&self, path: &str) -> Result<String, StoreError> {
        let aside = format!("quarantine/{}", path.replace('/', "__"));
        self.objects.rename(&ObjectPath::from(path), &ObjectPath::from(aside.as_str())).await?;
        Ok(aside)
    }

    pub async fn list(&self, prefix: &str) -> Result<Vec<object_store::ObjectMeta>, StoreError> {
        Ok(self.objects.list(Some(&ObjectPath::from(prefix))).try_collect().await?)
    }

    /// `object_store` wraps the error of the disk; a full disk must be distinguished from the rest.
    fn disk_error(&self, error: object_store::Error) -> StoreError {
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(e) = source {
            if let Some(io) = e.downcast_ref::<std::io::Error>()
                && matches!(io.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
            {
                return StoreError::Full(self.local.clone());
            }
            source = e.source();
        }
        StoreError::ObjectStore(error)
    }
}
