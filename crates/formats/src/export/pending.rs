//! Files that appear whole or not at all.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A file that is written beside its target and gets its name at the end: a reader never sees half of it, and a failure
/// leaves the old one. Dropping it removes it.
pub struct PendingFile {
    file: NamedTempFile,
    target: PathBuf,
}

impl PendingFile {
    pub fn create(target: &Path) -> io::Result<PendingFile> {
        let folder = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        builder.prefix(".rollscope-").suffix(".partial");
        // The umask decides who may read it, as for any other file that a program writes.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        Ok(PendingFile { file: builder.tempfile_in(folder)?, target: target.to_path_buf() })
    }

    /// A handle to write through.
    pub fn writer(&self) -> io::Result<File> {
        self.file.as_file().try_clone()
    }

    /// Moves the file into place. Everything must have been written by now.
    pub fn finish(self) -> io::Result<()> {
        self.file.persist(&self.target).map(drop).map_err(|e| e.error)
    }
}

/// Writes a file whole or not at all.
pub fn atomically<T, E: From<io::Error>>(target: &Path, write: impl FnOnce(File) -> Result<T, E>) -> Result<T, E> {
    let pending = PendingFile::create(target)?;
    let written = write(pending.writer()?)?;
    pending.finish()?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn names(folder: &Path) -> Vec<String> {
        let mut all: Vec<String> =
            folder.read_dir().unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        all.sort();
        all
    }

    #[test]
    fn the_old_file_stays_until_the_new_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a.html");
        std::fs::write(&target, "old").unwrap();
        let failed = atomically(&target, |mut file| {
            file.write_all(b"ne")?;
            assert_eq!(std::fs::read_to_string(&target)?, "old");
            Err::<(), _>(io::Error::other("no"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no");
        assert_eq!(names(folder.path()), ["a.html"]);
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "old");
        assert_eq!(atomically(&target, |mut file| file.write_all(b"new").map(|()| 7)).unwrap(), 7);
        assert_eq!(names(folder.path()), ["a.html"]);
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "new");
    }

    #[cfg(unix)]
    #[test]
    fn it_is_readable_as_any_other_file() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let (plain, target) = (folder.path().join("plain"), folder.path().join("target"));
        File::create(&plain).unwrap();
        atomically(&target, |_| io::Result::Ok(())).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
        assert_eq!(mode(&target), mode(&plain));
    }
}
