//! The audit log: who deleted or changed what, and who was refused. One JSON object per line, in a file that only its owner can
//! read, and in the server's log. What was sent is not in it, nor is any token.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use chrono::{SecondsFormat, Utc};
use parking_lot::Mutex;
use serde::Serialize;

/// A file of this size is moved to `NAME.1`, in place of the one before it.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Refusals that are written per second. The rest is counted.
const REFUSALS_PER_S: u64 = 20;
/// The longest path or method that is written: strangers choose both.
const MAX_CHARS: usize = 300;

/// One line.
#[derive(Serialize)]
pub struct Entry<'a> {
    /// The address that the request came from. Behind a proxy it is the proxy's.
    pub peer: Option<IpAddr>,
    /// The name of the token in its file, or its line.
    pub who: &'a str,
    pub method: &'a str,
    pub path: &'a str,
    pub status: u16,
}

impl<'a> Entry<'a> {
    fn shortened(&self) -> Entry<'a> {
        Entry { method: beginning(self.method), path: beginning(self.path), ..*self }
    }
}

fn beginning(text: &str) -> &str {
    text.char_indices().nth(MAX_CHARS).map_or(text, |(end, _)| &text[..end])
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(flatten)]
    entry: &'a Entry<'a>,
    /// Refusals before this one that were not written.
    #[serde(skip_serializing_if = "is_zero")]
    left_out: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

#[derive(Debug)]
pub struct Audit {
    path: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: Option<(File, u64)>,
    second: Instant,
    refusals: u64,
    left_out: u64,
}

impl Audit {
    /// Into this file, which is made with the first line.
    pub fn new(path: Option<&Path>) -> Audit {
        let state = State { file: None, second: Instant::now(), refusals: 0, left_out: 0 };
        Audit { path: path.map(Path::to_path_buf), state: Mutex::new(state) }
    }

    /// Something was deleted or changed, or the attempt failed.
    pub fn changed(&self, entry: &Entry) {
        let entry = &entry.shortened();
        tracing::info!(target: "audit", peer = ?entry.peer, who = entry.who, method = entry.method, path = entry.path, status = entry.status, "changed");
        self.write(&mut self.state.lock(), entry);
    }

    /// A request was refused. A flood of them does not fill the disk.
    pub fn refused(&self, entry: &Entry) {
        let mut state = self.state.lock();
        if state.second.elapsed().as_secs() >= 1 {
            (state.second, state.refusals) = (Instant::now(), 0);
        }
        state.refusals += 1;
        if state.refusals > REFUSALS_PER_S {
            state.left_out += 1;
            return;
        }
        let entry = &entry.shortened();
        tracing::info!(target: "audit", peer = ?entry.peer, who = entry.who, method = entry.method, path = entry.path, status = entry.status, "refused");
        self.write(&mut state, entry);
    }

    fn write(&self, state: &mut State, entry: &Entry) {
        let Some(path) = &self.path else { return };
        let line = Line {
            time: Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true),
            entry,
            left_out: std::mem::take(&mut state.left_out),
        };
        let Ok(mut line) = serde_json::to_vec(&line) else { return };
        line.push(b'\n');
        if let Err(error) = append(&mut state.file, path, &line) {
            state.file = None;
            tracing::error!(%error, file = %path.display(), "cannot write the audit log");
        }
    }
}

fn append(file: &mut Option<(File, u64)>, path: &Path, line: &[u8]) -> std::io::Result<()> {
    if file.as_ref().is_some_and(|(_, size)| *size > MAX_FILE_BYTES) {
        *file = None;
        let mut before = path.as_os_str().to_owned();
        before.push(".1");
        std::fs::rename(path, before)?;
    }
    if file.is_none() {
        let mut options = OpenOptions::new();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let opened = options.append(true).create(true).open(path)?;
        let size = opened.metadata()?.len();
        *file = Some((opened, size));
    }
    if let Some((file, size)) = file {
        file.write_all(line)?;
        *size += line.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_flood_of_refusals_is_counted_and_changes_are_all_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let audit = Audit::new(Some(&path));
        let entry = Entry { peer: None, who: "nobody", method: "GET", path: "/api/v1/runs", status: 401 };
        (0..1000).for_each(|_| audit.refused(&entry));
        audit.changed(&Entry { who: "alice", method: "DELETE", status: 204, ..entry });
        let lines = lines(&path);
        assert!(lines.len() < 200, "{}", lines.len());
        let last = lines.last().unwrap();
        assert_eq!((&last["who"], &last["status"]), (&"alice".into(), &204.into()));
        let left_out: u64 = lines.iter().filter_map(|line| line["left_out"].as_u64()).sum();
        assert_eq!(left_out as usize + lines.len(), 1001);
    }

    /// It is shortened before it goes to the file and to the server's log.
    #[test]
    fn what_strangers_choose_is_short() {
        let (long, odd) = ("/".repeat(100_000), "é".repeat(MAX_CHARS + 1));
        let entry = Entry { peer: None, who: "nobody", method: &odd, path: &long, status: 401 };
        let short = entry.shortened();
        assert_eq!((short.path.len(), short.method.chars().count()), (MAX_CHARS, MAX_CHARS));
        assert_eq!((short.who, short.status), ("nobody", 401));
        let same = Entry { method: "GET", path: "/api/v1/runs", ..short }.shortened();
        assert_eq!((same.method, same.path), ("GET", "/api/v1/runs"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let audit = Audit::new(Some(&path));
        audit.refused(&entry);
        audit.changed(&entry);
        let written = lines(&path);
        assert_eq!(written.len(), 2);
        assert!(written.iter().all(|line| line["path"] == long[..MAX_CHARS] && line["who"] == "nobody"));
    }

    #[cfg(unix)]
    #[test]
    fn the_file_is_its_owners_and_stays_small() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        std::fs::write(&path, vec![b'\n'; MAX_FILE_BYTES as usize + 1]).unwrap();
        let audit = Audit::new(Some(&path));
        let entry = Entry { peer: None, who: "a", method: "DELETE", path: &"/".repeat(100_000), status: 204 };
        (0..3).for_each(|_| audit.changed(&entry));
        assert!(std::fs::metadata(dir.path().join("audit.log.1")).unwrap().len() > MAX_FILE_BYTES);
        let file = std::fs::metadata(&path).unwrap();
        assert!(file.len() < 2000 && file.permissions().mode() & 0o777 == 0o600, "{file:?}");
    }
}
