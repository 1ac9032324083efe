//! Requests on disk, while the server is away or slow. One folder per process, locked while the process lives; whoever finds
//! an unlocked one sends what is in it, so nothing waits for the process that wrote it to come back.
//!
//! A file is one request: a header (magic, version, signal, records, checksum) and the message. It is written under
//! another name first, so a half-written file is never taken for a whole one.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::core::Signal;

const MAGIC: &[u8; 4] = b"RSS1";
const HEADER: usize = 4 + 1 + 8 + 4;
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Folders that this process made or took over.
static OURS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

pub struct Spill {
    root: Option<PathBuf>,
    limit: u64,
    own: Option<Folder>,
    /// A folder of a process that is gone.
    adopted: Option<Folder>,
    used: u64,
    number: u64,
}

struct Folder {
    path: PathBuf,
    files: VecDeque<PathBuf>,
    /// Holds the lock while it is open.
    _lock: File,
}

/// A spilled request, read back.
pub struct Spilled {
    pub signal: Signal,
    pub records: u64,
    pub message: Vec<u8>,
    pub path: PathBuf,
}

impl Spill {
    pub fn new(root: Option<PathBuf>, limit: u64) -> Spill {
        Spill { root, limit, own: None, adopted: None, used: 0, number: 0 }
    }

    /// Writes one request; false if there is no room or the disk says no.
    pub fn write(&mut self, signal: Signal, records: u64, message: &[u8]) -> bool {
        if self.used + message.len() as u64 > self.limit {
            return false;
        }
        if self.own.is_none() {
            self.own = self.root.as_deref().and_then(new_folder);
        }
        let Some(own) = &mut self.own else { return false };
        let name = format!("{:010}", self.number);
        self.number += 1;
        let (part, path) = (own.path.join(format!("{name}.part")), own.path.join(format!("{name}.otlp")));
        let mut header = Vec::with_capacity(HEADER);
        header.extend_from_slice(MAGIC);
        header.push(signal as u8);
        header.extend_from_slice(&records.to_le_bytes());
        header.extend_from_slice(&crc32fast::hash(message).to_le_bytes());
        let written = File::create(&part).and_then(|mut file| {
            file.write_all(&header)?;
            file.write_all(message)?;
            fs::rename(&part, &path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&part);
            return false;
        }
        self.used += message.len() as u64;
        own.files.push_back(path);
        true
    }

    /// The oldest request. Stays on disk until [`Spill::done`].
    pub fn next(&mut self) -> Option<Spilled> {
        for folder in [&mut self.own, &mut self.adopted] {
            while let Some(path) = folder.as_ref().and_then(|f| f.files.front()).cloned() {
                match read(&path) {
                    Some(found) => return Some(found),
                    None => {
                        // Not one of ours, or damaged: set aside under a name that is not looked at.
                        let _ = fs::rename(&path, path.with_extension("damaged"));
                        if let Some(folder) = folder.as_mut() {
                            folder.files.pop_front();
                        }
                    }
                }
            }
        }
        self.leave();
        None
    }

    /// The server has it.
    pub fn done(&mut self, spilled: &Spilled) {
        let _ = fs::remove_file(&spilled.path);
        for (folder, own) in [(&mut self.own, true), (&mut self.adopted, false)] {
            if let Some(folder) = folder.as_mut()
                && folder.files.front() == Some(&spilled.path)
            {
                folder.files.pop_front();
                if own {
                    self.used = self.used.saturating_sub(spilled.message.len() as u64);
                }
            }
        }
    }

    /// Looks for what processes before us could not send.
    pub fn adopt(&mut self) {
        if self.adopted.is_some() {
            return;
        }
        let Some(root) = &self.root else { return };
        let Ok(entries) = fs::read_dir(root) else { return };
        for entry in entries.flatten().take(4096) {
            let path = entry.path();
            // Our own process would get its own lock again.
            if crate::core::lock(&OURS).contains(&path) || !path.is_dir() {
                continue;
            }
            let Some(lock) = lock(&path) else { continue };
            let mut files: Vec<PathBuf> = fs::read_dir(&path)
                .map(|list| {
                    list.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "otlp")).collect()
                })
                .unwrap_or_default();
            files.sort();
            let folder = Folder { path, files: files.into(), _lock: lock };
            if folder.files.is_empty() {
                remove(&folder);
                continue;
            }
            crate::core::lock(&OURS).push(folder.path.clone());
            self.adopted = Some(folder);
            return;
        }
    }

    /// Empty folders are removed; at the end of the process our own too.
    pub fn leave(&mut self) {
        if let Some(folder) = self.adopted.take_if(|f| f.files.is_empty()) {
            remove(&folder);
        }
    }

    pub fn close(&mut self) {
        self.leave();
        if let Some(folder) = self.own.take_if(|f| f.files.is_empty()) {
            remove(&folder);
        }
    }

    /// Files of our own that are not sent yet.
    pub fn waiting(&self) -> usize {
        self.own.as_ref().map_or(0, |f| f.files.len())
    }
}

fn remove(folder: &Folder) {
    let _ = fs::remove_file(folder.path.join("lock"));
    // Fails, as it should, while something is left in it.
    let _ = fs::remove_dir(&folder.path);
    crate::core::lock(&OURS).retain(|path| *path != folder.path);
}

fn new_folder(root: &Path) -> Option<Folder> {
    let mut nonce = [0u8; 4];
    crate::clock::system_random(&mut nonce);
    let path = root.join(format!("{}-{:08x}", std::process::id(), u32::from_le_bytes(nonce)));
    fs::create_dir_all(&path).ok()?;
    use std::os::unix::fs::PermissionsExt;
    let _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o700));
    let lock = lock(&path)?;
    crate::core::lock(&OURS).push(path.clone());
    Some(Folder { path, files: VecDeque::new(), _lock: lock })
}

/// The lock of a folder, if nobody alive has it.
fn lock(folder: &Path) -> Option<File> {
    let file = File::options().create(true).truncate(false).write(true).open(folder.join("lock")).ok()?;
    // A lock of the process, not of the descriptor: a forked child does not hold it on after its parent is gone.
    // SAFETY: all zero is a valid flock: from the start, to the end.
    let mut whole: libc::flock = unsafe { std::mem::zeroed() };
    whole.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: the descriptor is open, the struct is ours.
    let free = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &whole) } == 0;
    free.then_some(file)
}

fn read(path: &Path) -> Option<Spilled> {
    let mut file = File::open(path).ok()?;
    let size = file.metadata().ok()?.len();
    if size < HEADER as u64 || size > MAX_FILE_BYTES {
        return None;
    }
    let mut header = [0u8; HEADER];
    file.read_exact(&mut header).ok()?;
    let mut message = Vec::with_capacity(size as usize - HEADER);
    file.read_to_end(&mut message).ok()?;
    let signal = match header[4] {
        0 => Signal::Spans,
        1 => Signal::Records,
        _ => return None,
    };
    let records = u64::from_le_bytes(header[5..13].try_into().ok()?);
    let sum = u32::from_le_bytes(header[13..17].try_into().ok()?);
    (&header[..4] == MAGIC && crc32fast::hash(&message) == sum).then(|| Spilled {
        signal,
        records,
        message,
        path: path.to_path_buf(),
    })
}
