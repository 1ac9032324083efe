//! Small files that the nodes of a lake share beside the tables. Each is written whole, and the last one to write it wins.

use bytes::Bytes;

use crate::error::StoreError;
use crate::root::Root;

#[derive(Clone)]
pub struct SharedFiles(Root);

impl SharedFiles {
    pub(crate) fn new(root: Root) -> SharedFiles {
        SharedFiles(root)
    }

    /// Paths of all files below a folder.
    pub async fn list(&self, folder: &str) -> Result<Vec<String>, StoreError> {
        self.0.list(folder).await
    }

    /// `None`: there is none.
    pub async fn get(&self, path: &str) -> Result<Option<Bytes>, StoreError> {
        match self.0.get(path).await {
            Err(e) if e.is_missing() => Ok(None),
            found => found.map(Some),
        }
    }

    pub async fn put(&self, path: &str, data: Vec<u8>) -> Result<(), StoreError> {
        self.0.put(path, data).await
    }

    /// One that is not there is deleted already.
    pub async fn delete(&self, path: &str) -> Result<(), StoreError> {
        self.0.delete(path).await
    }
}
