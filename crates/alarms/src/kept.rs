//! What must survive a restart besides the series: silences, and what sinks have been told. One small file in the data folder,
//! written whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::silences::Silence;

const NAME: &str = "alarms.json";
const VERSION: u32 = 1;
/// Bytes of the file.
const MAX_BYTES: u64 = 64 << 20;

/// That a sink knows of an alarm that fires.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    pub sink: String,
    pub labels: Vec<(String, String)>,
    pub started_ms: i64,
    pub told_ms: i64,
    pub sentence: String,
    pub place: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    version: u32,
    pub silences: Vec<Silence>,
    pub told: Vec<Told>,
}

impl Kept {
    pub fn new(silences: Vec<Silence>, told: Vec<Told>) -> Kept {
        Kept { version: VERSION, silences, told }
    }
}

/// The file in its folder.
#[derive(Clone, Debug)]
pub struct KeptFile(PathBuf);

impl KeptFile {
    pub fn new(folder: &Path) -> KeptFile {
        KeptFile(folder.join(NAME))
    }

    /// What was kept. A file that cannot be read is reported and set aside, so that it is not overwritten.
    pub fn read(&self) -> Kept {
        match self.try_read() {
            Ok(kept) => kept,
            Err(why) => {
                let aside = self.0.with_extension("json.unreadable");
                let moved = std::fs::rename(&self.0, &aside);
                tracing::error!(file = %self.0.display(), why, moved = moved.is_ok(), "cannot read silences; they are off");
                Kept::default()
            }
        }
    }

    fn try_read(&self) -> Result<Kept, String> {
        let mut text = Vec::new();
        match File::open(&self.0) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Kept::default()),
            file => file.and_then(|f| f.take(MAX_BYTES).read_to_end(&mut text)).map_err(|e| e.to_string())?,
        };
        let kept: Kept = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
        match kept.version {
            VERSION => Ok(kept),
            other => Err(format!("its version is {other}; this program reads {VERSION}")),
        }
    }

    /// Returns when it will survive a power cut.
    pub fn write(&self, kept: &Kept) -> io::Result<()> {
        let partial = self.0.with_extension("json.partial");
        let _ = std::fs::remove_file(&partial);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
        file.write_all(&serde_json::to_vec(kept).map_err(io::Error::other)?)?;
        file.sync_all()?;
        std::fs::rename(&partial, &self.0)?;
        self.0.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_and_what_is_damaged_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let file = KeptFile::new(folder.path());
        assert_eq!(file.read(), Kept::default());
        let told = Told {
            sink: "a".into(),
            labels: vec![("alertname".into(), "A".into())],
            started_ms: 1,
            told_ms: 2,
            sentence: "s".into(),
            place: String::new(),
        };
        let kept = Kept::new(Vec::new(), vec![told]);
        file.write(&kept).unwrap();
        assert_eq!(file.read().told, kept.told);
        std::fs::write(folder.path().join(NAME), "{").unwrap();
        assert_eq!(file.read(), Kept::default());
        assert!(folder.path().join("alarms.json.unreadable").exists());
        file.write(&kept).unwrap();
        assert_eq!(file.read().told.len(), 1);
    }
}
