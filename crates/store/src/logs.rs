//! Where the log is: in files of a folder, or in objects of a lake.

use crate::error::StoreError;
use crate::lake::WriterLog;
use crate::root::Folder;
use crate::wal;

/// Folder of the log files.
pub(crate) const WAL: &str = "wal";

pub(crate) enum Logs {
    Folder(Folder),
    Lake(WriterLog),
}

impl Logs {
    pub fn are_files(&self) -> bool {
        matches!(self, Logs::Folder(_))
    }

    /// Deletes the parts below a number: what they hold is in segments.
    pub async fn forget(&self, floor: u64) -> Result<(), StoreError> {
        let folder = match self {
            Logs::Folder(folder) => folder,
            Logs::Lake(log) => return log.forget(floor).await,
        };
        let dir = folder.path(WAL);
        for number in wal::list(&dir)?.into_iter().filter(|n| *n < floor) {
            let path = wal::path(&dir, number);
            folder.disk.remove(&path).map_err(|e| StoreError::io(path, e))?;
        }
        Ok(())
    }
}
