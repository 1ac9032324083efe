//! One writer per folder. The lock is the operating system's (`flock`), so it goes with the process, however that ends.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::error::StoreError;

pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    pub fn take(dir: &Path) -> Result<Lock, StoreError> {
        let path = dir.join("LOCK");
        let io = |e| StoreError::io(&path, e);
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(0o600);
        let mut file = options.open(&path).map_err(io)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = if holder.trim().is_empty() { "unknown".into() } else { holder.trim().to_string() };
            return Err(StoreError::Locked { dir: dir.to_path_buf(), holder });
        }
        // Who holds it is a courtesy to the next one who tries; a full disk must not keep the store from opening.
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| write!(file, "{}", std::process::id()));
        Ok(Lock { _file: file })
    }
}
