//! Every change that the store makes to the disk. One place decides who may read a file (its owner), what a power cut may
//! take (nothing that was synced, in a folder that was synced), and what is asked before each change, so that tests can
//! record changes and refuse them.

use std::collections::HashSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

/// Ends the name of a file that is being written.
pub(crate) const PARTIAL: &str = ".partial";

/// A change that is about to be made.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    MakeFolder(&'a Path),
    /// Of a file that was not there.
    Create(&'a Path),
    /// At the end of a file.
    Write(&'a Path, &'a [u8]),
    /// To this length.
    Cut(&'a Path, u64),
    Sync(&'a Path),
    Rename(&'a Path, &'a Path),
    Remove(&'a Path),
    /// Names that were made, changed and removed in a folder.
    SyncFolder(&'a Path),
}

/// Is asked before each change. An error is that of the disk.
pub type Watch = Arc<dyn Fn(Change) -> io::Result<()> + Send + Sync>;

/// The disk, as the store changes it. Reading goes through `object_store`.
#[derive(Clone, Default)]
pub struct Disk {
    watch: Option<Watch>,
    /// Folders that are known to survive a power cut. One that is found may have been made by a process that was killed.
    synced: Arc<Mutex<HashSet<PathBuf>>>,
}

impl Disk {
    pub fn watched(watch: Watch) -> Disk {
        Disk { watch: Some(watch), ..Disk::default() }
    }

    fn ask(&self, change: Change) -> io::Result<()> {
        self.watch.as_ref().map_or(Ok(()), |watch| watch(change))
    }

    /// Makes a folder for its owner alone, with those that lead to it from `root`, and returns when all of them will
    /// survive a power cut.
    pub(crate) fn make_folder(&self, root: &Path, folder: &Path) -> io::Result<()> {
        if self.synced.lock().contains(folder) {
            return Ok(());
        }
        let parent = folder.parent().filter(|_| folder != root);
        if let Some(parent) = parent {
            self.make_folder(root, parent)?;
        }
        if !folder.is_dir() {
            self.ask(Change::MakeFolder(folder))?;
            match DirBuilder::new().mode(0o700).recursive(parent.is_none()).create(folder) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
        }
        match parent {
            Some(parent) => self.sync_folder(parent)?,
            // What is above the store need not be ours to open.
            None => drop(folder.parent().map(|above| self.sync_folder(above))),
        }
        self.synced.lock().insert(folder.to_path_buf());
        Ok(())
    }

    /// A new file, for its owner alone. Never follows a link, nor opens what is there.
    pub(crate) fn create(&self, path: &Path) -> io::Result<DiskFile> {
        self.ask(Change::Create(path))?;
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        Ok(DiskFile { file, path: path.to_path_buf(), disk: self.clone() })
    }

    /// A file that is there, to be continued.
    pub(crate) fn open(&self, path: &Path) -> io::Result<DiskFile> {
        let file = OpenOptions::new().append(true).open(path)?;
        Ok(DiskFile { file, path: path.to_path_buf(), disk: self.clone() })
    }

    /// Writes a file beside the place where it will be, and syncs it.
    pub(crate) fn stage(&self, path: &Path, data: &[u8]) -> io::Result<Staged> {
        let mut staged = self.write_beside(path, data)?;
        staged.file.sync()?;
        Ok(staged)
    }

    /// Nobody can guess its name, so nobody can be there first.
    fn write_beside(&self, path: &Path, data: &[u8]) -> io::Result<Staged> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{:016x}{PARTIAL}", u64::from_be_bytes(random)));
        let file = self.create(Path::new(&partial))?;
        let mut staged = Staged { file, target: path.to_path_buf(), is_named: false };
        staged.file.write(data)?;
        Ok(staged)
    }

    /// Writes a file whole or not at all, and returns when it will survive a power cut.
    pub(crate) fn put(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        self.stage(path, data)?.publish()
    }

    /// Writes a file whole or not at all. A power cut may take it, or what it holds.
    pub(crate) fn put_unsynced(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        self.write_beside(path, data)?.name()
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.ask(Change::Rename(from, to))?;
        std::fs::rename(from, to)
    }

    /// Removes a file. One that is not there is removed already.
    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        self.ask(Change::Remove(path))?;
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    pub(crate) fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.ask(Change::SyncFolder(folder))?;
        File::open(folder)?.sync_all()
    }
}

/// A file that is written at its end.
pub(crate) struct DiskFile {
    file: File,
    path: PathBuf,
    disk: Disk,
}

impl DiskFile {
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        self.disk.ask(Change::Write(&self.path, data))?;
        self.file.write_all(data)
    }

    pub fn sync(&mut self) -> io::Result<()> {
        self.disk.ask(Change::Sync(&self.path))?;
        self.file.sync_data()
    }

    /// Forgets everything after this place. Not synced.
    pub fn cut(&mut self, length: u64) -> io::Result<()> {
        self.disk.ask(Change::Cut(&self.path, length))?;
        self.file.set_len(length)
    }
}

/// A file that has its content, and not yet its name. Dropping it removes it.
pub(crate) struct Staged {
    file: DiskFile,
    target: PathBuf,
    is_named: bool,
}

impl Staged {
    /// Gives it its name, for good. After an error it may have it or not.
    pub fn publish(mut self) -> io::Result<()> {
        self.name()?;
        self.target.parent().map_or(Ok(()), |folder| self.file.disk.sync_folder(folder))
    }

    /// A power cut may take the name back.
    pub fn name(&mut self) -> io::Result<()> {
        self.file.disk.rename(&self.file.path, &self.target)?;
        self.is_named = true;
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.is_named
            && let Err(e) = self.file.disk.remove(&self.file.path)
        {
            tracing::warn!(file = %self.file.path.display(), error = %e, "cannot remove a file that was not finished");
        }
    }
}

/// All files below a folder. There may be no such folder.
pub(crate) fn files_below(folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => files_below(&entry.path(), found)?,
            false => found.push(entry.path()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_put_in_the_way_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, target) = (folder.path().join("victim"), folder.path().join("target"));
        std::fs::write(&victim, "mine").unwrap();
        std::os::unix::fs::symlink(&victim, &target).unwrap();
        let disk = Disk::default();
        assert_eq!(disk.create(&target).map(drop).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let (one, other) = (disk.stage(&target, b"1").unwrap(), disk.stage(&target, b"2").unwrap());
        assert_ne!(one.file.path, other.file.path, "nobody can guess the name");
        one.publish().unwrap();
        drop(other);
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "mine");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "1");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "what was not published is removed");
    }
}
