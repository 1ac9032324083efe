//! Files beside the tables, named by the SHA-256 of their content: the same image is kept once.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::error::StoreError;
use crate::root::Root;

fn path(hash: &str) -> String {
    format!("media/{}/{hash}", &hash[..2])
}

pub(crate) async fn put(root: &Root, data: Vec<u8>) -> Result<String, StoreError> {
    let hash: String = Sha256::digest(&data).iter().map(|b| format!("{b:02x}")).collect();
    root.put(&path(&hash), data).await?;
    Ok(hash)
}

/// `None` if there is no such file, or the hash is no hash.
pub(crate) async fn get(root: &Root, hash: &str) -> Result<Option<Bytes>, StoreError> {
    if hash.len() != 64 || !hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Ok(None);
    }
    match root.get(&path(hash)).await {
        Ok(data) => Ok(Some(data)),
        Err(StoreError::ObjectStore(object_store::Error::NotFound { .. })) => Ok(None),
        Err(e) => Err(e),
    }
}
