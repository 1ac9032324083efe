//! What can go wrong, and whether a retry helps.

use std::path::PathBuf;
use std::time::Duration;

use crate::vitals::Death;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the disk of {0} is full; free some space (acknowledged data is safe)")]
    Full(PathBuf),
    #[error("the store cannot keep up: {0}")]
    Busy(String),
    #[error("{dir} is in use by another rollscope (process {holder}); stop it or choose another folder with --data")]
    Locked { dir: PathBuf, holder: String },
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("object store: {0}")]
    ObjectStore(#[from] object_store::Error),
    #[error("arrow: {0}")]
    Arrow(#[from] arrow::error::ArrowError),
    #[error("parquet: {0}")]
    Parquet(#[from] parquet::errors::ParquetError),
    #[error("damaged file: {0}")]
    Damaged(String),
    /// The file may be fine.
    #[error("cannot read the file: {0}")]
    Unreadable(String),
    #[error(
        "the store was written by a newer rollscope (format {found}; this version reads up to {known}); upgrade rollscope"
    )]
    Newer { found: u32, known: u32 },
    #[error("the batch does not have the columns of table {0}")]
    WrongSchema(&'static str),
    #[error("the store is closed")]
    Closed,
    /// Of a lake.
    #[error(
        "another process has taken over the log of this one, because it was silent or started under the same name; restart rollscope (what was acknowledged is safe)"
    )]
    Fenced,
    /// Of a lake.
    #[error("another process has changed the same files; trying again")]
    Conflict,
    #[error("{0}")]
    Failed(Death),
    #[error("{0} is not a rollscope store; pass another folder with --data")]
    NoStore(PathBuf),
}

impl StoreError {
    pub(crate) fn io(path: impl Into<PathBuf>, source: std::io::Error) -> StoreError {
        let path = path.into();
        if source.kind() == std::io::ErrorKind::StorageFull || source.kind() == std::io::ErrorKind::QuotaExceeded {
            StoreError::Full(path)
        } else {
            StoreError::Io { path, source }
        }
    }

    /// The same error for another request: several may wait for one write.
    pub(crate) fn again(&self) -> StoreError {
        match self {
            StoreError::Full(path) => StoreError::Full(path.clone()),
            StoreError::Failed(death) => StoreError::Failed(death.clone()),
            StoreError::Fenced => StoreError::Fenced,
            StoreError::Conflict => StoreError::Conflict,
            other => StoreError::Busy(other.to_string()),
        }
    }

    /// There is no such file.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, StoreError::ObjectStore(object_store::Error::NotFound { .. }))
    }

    /// What a segment is that could not be got from the disk: damaged, if it is missing; not to be read now, if the disk
    /// or the rights to the file are at fault. Too many open files or no memory say nothing of it.
    pub(crate) fn of_segment(self) -> StoreError {
        use rustix::io::Errno;
        if self.is_missing() {
            return StoreError::Damaged("it is missing".into());
        }
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&self);
        while let Some(error) = source {
            if let Some(io) = error.downcast_ref::<std::io::Error>() {
                let of_machine = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(|e| Some(e.raw_os_error()));
                let why = io.to_string();
                return if of_machine.contains(&io.raw_os_error()) { self } else { StoreError::Unreadable(why) };
            }
            source = error.source();
        }
        StoreError::Unreadable(self.to_string())
    }

    /// `Some`: the same request may succeed after this time. `None`: it will not.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            StoreError::Full(_) => Some(Duration::from_secs(5)),
            StoreError::Busy(_)
            | StoreError::Closed
            | StoreError::Failed(_)
            | StoreError::Fenced
            | StoreError::Conflict => Some(Duration::from_secs(1)),
            StoreError::Io { .. } | StoreError::ObjectStore(_) => Some(Duration::from_secs(5)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files that cannot be read are not set aside, whatever keeps them from being read. Root may read all, so tests with files try other errors.
    #[test]
    fn only_a_file_that_is_missing_is_damaged() {
        use rustix::io::Errno;
        let of = |errno: Errno| {
            let source = std::io::Error::from_raw_os_error(errno.raw_os_error());
            let error = object_store::Error::Generic { store: "LocalFileSystem", source: Box::new(source) };
            StoreError::from(error).of_segment()
        };
        for errno in [Errno::ACCESS, Errno::PERM, Errno::IO, Errno::LOOP, Errno::STALE] {
            assert!(matches!(of(errno), StoreError::Unreadable(_)), "{errno}");
        }
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            assert!(matches!(of(errno), StoreError::ObjectStore(_)), "{errno}");
        }
        let missing = object_store::Error::NotFound { path: "x".into(), source: "gone".into() };
        assert!(matches!(StoreError::from(missing).of_segment(), StoreError::Damaged(_)));
    }
}
