//! Requests on disk, while the server is away or slow. One folder per process, locked while the process lives; whoever finds
//! an unlocked one sends what is in it, so nothing waits for the process that wrote it to come back.
//!
//! A file is one request: a header (magic, version, signal, records, checksum) and the message. It is written under
//! another name first, so a half-written file is never taken for a whole one.
//!
//! All processes that send to one address share one limit. The length of a folder's lock file, which has no content, is how
//! many blocks the folder holds. A process first claims the room there, then adds up all claims, and takes its own back if they
//! are too many: so the limit holds without a lock, whoever writes at the same time.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::core::Signal;

const MAGIC: &[u8; 4] = b"RSS1";
const HEADER: usize = 4 + 1 + 8 + 4;
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Room is counted in blocks: so the limit bounds how many files there are, too.
const BLOCK_BYTES: u64 = 4096;
/// A disk that refused is asked again after this.
const REST: Duration = Duration::from_secs(1);
const LOCK: &str = "lock";

/// Folders that this process made or took over.
static OURS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

pub struct Spill {
    root: Option<PathBuf>,
    /// In bytes.
    limit: u64,
    own: Option<Folder>,
    /// A folder of a process that is gone.
    adopted: Option<Folder>,
    number: u64,
    refused: Option<Instant>,
    /// Records in files that were found damaged, since they were last asked for.
    damaged: u64,
}

struct Folder {
    path: PathBuf,
    files: VecDeque<PathBuf>,
    /// Files that [`Spill::next`] gave out.
    out: usize,
    /// Holds the lock while it is open, and has one byte per block that the folder holds.
    lock: File,
    /// In blocks.
    used: u64,
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
        Spill { root, limit, own: None, adopted: None, number: 0, refused: None, damaged: 0 }
    }

    /// Writes one request, or says why it cannot.
    pub fn write(&mut self, signal: Signal, records: u64, message: &[u8]) -> Result<(), String> {
        let written = self.try_write(signal, records, message);
        self.refused = written.is_err().then(Instant::now);
        written
    }

    /// Whether the disk has just refused something, so that asking again is no use yet.
    pub fn is_resting(&self) -> bool {
        self.refused.is_some_and(|at| at.elapsed() < REST)
    }

    fn try_write(&mut self, signal: Signal, records: u64, message: &[u8]) -> Result<(), String> {
        let root = self.root.as_deref().ok_or("cannot keep data on disk: ROLLSCOPE_SPILL_DIR is empty")?;
        let told = |error: io::Error| format!("cannot keep data on disk in {}: {error}", root.display());
        if self.own.is_none() {
            self.own = Some(new_folder(root).map_err(told)?);
        }
        let Some(own) = &mut self.own else { return Err(String::new()) };
        let size = blocks((HEADER + message.len()) as u64);
        own.set_used(own.used + size).map_err(told)?;
        let held = blocks_in(root) * BLOCK_BYTES;
        if held > self.limit {
            let _ = own.set_used(own.used - size);
            let (root, limit) = (root.display(), self.limit);
            return Err(format!(
                "cannot keep data on disk: {root} would hold {held} bytes of {limit} (ROLLSCOPE_SPILL_BYTES)"
            ));
        }
        let name = format!("{:010}", self.number);
        self.number += 1;
        let (part, path) = (own.path.join(format!("{name}.part")), own.path.join(format!("{name}.otlp")));
        let mut header = Vec::with_capacity(HEADER);
        header.extend_from_slice(MAGIC);
        header.push(signal as u8);
        header.extend_from_slice(&records.to_le_bytes());
        header.extend_from_slice(&crc32fast::hash(message).to_le_bytes());
        let written = File::options().create_new(true).write(true).mode(0o600).open(&part).and_then(|mut file| {
            file.write_all(&header)?;
            file.write_all(message)?;
            fs::rename(&part, &path)
        });
        if let Err(error) = written {
            let _ = fs::remove_file(&part);
            let _ = own.set_used(own.used - size);
            return Err(told(error));
        }
        own.files.push_back(path);
        Ok(())
    }

    /// The oldest request. Its file stays on disk until [`Spill::done`], and is looked at again after [`Spill::put_back`].
    pub fn next(&mut self) -> Option<Spilled> {
        for folder in [&mut self.own, &mut self.adopted].into_iter().flatten() {
            for _ in 0..folder.files.len() {
                let Some(path) = folder.files.pop_front() else { break };
                match read(&path) {
                    Ok(Ok(found)) => {
                        folder.out += 1;
                        return Some(found);
                    }
                    Ok(Err(records)) => {
                        // Damaged: set aside under a name that is not looked at.
                        self.damaged += records;
                        let _ = fs::rename(&path, path.with_extension("damaged"));
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    // It may be readable another time.
                    Err(_) => folder.files.push_back(path),
                }
            }
        }
        self.leave();
        None
    }

    /// How many records were in files that turned out to be damaged. Told once.
    pub fn take_damaged(&mut self) -> u64 {
        std::mem::take(&mut self.damaged)
    }

    /// The request is settled: its file goes.
    pub fn done(&mut self, path: &Path) {
        let size = fs::metadata(path).map_or(0, |found| blocks(found.len()));
        let gone = fs::remove_file(path).is_ok();
        let Some(folder) = self.folder_of(path) else { return };
        folder.out -= 1;
        if gone {
            let _ = folder.set_used(folder.used.saturating_sub(size));
        }
    }

    /// The request could not be sent: its turn comes again, after the others.
    pub fn put_back(&mut self, path: PathBuf) {
        if let Some(folder) = self.folder_of(&path) {
            folder.out -= 1;
            folder.files.push_back(path);
        }
    }

    fn folder_of(&mut self, path: &Path) -> Option<&mut Folder> {
        [&mut self.own, &mut self.adopted].into_iter().flatten().find(|folder| path.starts_with(&folder.path))
    }

    /// Looks for what a process before us could not send. Returns whether there is something.
    pub fn adopt(&mut self) -> bool {
        if self.adopted.is_some() {
            return false;
        }
        let Some(root) = &self.root else { return false };
        let Ok(entries) = fs::read_dir(root) else { return false };
        for entry in entries.flatten().take(4096) {
            let path = entry.path();
            // Our own process would get its own lock again.
            if crate::core::lock(&OURS).contains(&path) || !path.is_dir() {
                continue;
            }
            let Ok(lock) = lock(&path) else { continue };
            let mut folder = Folder { path, files: VecDeque::new(), out: 0, lock, used: 0 };
            folder.look();
            if folder.files.is_empty() {
                remove(&folder);
                continue;
            }
            crate::core::lock(&OURS).push(folder.path.clone());
            self.adopted = Some(folder);
            return true;
        }
        false
    }

    /// Empty folders are removed; at the end of the process our own too.
    pub fn leave(&mut self) {
        if let Some(folder) = self.adopted.take_if(|f| f.is_empty()) {
            remove(&folder);
        }
    }

    pub fn close(&mut self) {
        self.leave();
        if let Some(folder) = self.own.take_if(|f| f.is_empty()) {
            remove(&folder);
        }
    }

    /// Files of our own that are not sent yet.
    pub fn waiting(&self) -> usize {
        self.own.as_ref().map_or(0, |f| f.files.len())
    }
}

impl Folder {
    fn is_empty(&self) -> bool {
        self.files.is_empty() && self.out == 0
    }

    fn set_used(&mut self, used: u64) -> io::Result<()> {
        self.lock.set_len(used)?;
        self.used = used;
        Ok(())
    }

    /// What is in a folder that a process left.
    fn look(&mut self) {
        let mut used = 0;
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let path = entry.path();
            match path.extension().and_then(|e| e.to_str()) {
                // Never finished.
                Some("part") if fs::remove_file(&path).is_ok() => continue,
                Some("otlp") => self.files.push_back(path),
                None => continue,
                _ => {}
            }
            used += entry.metadata().map_or(0, |found| blocks(found.len()));
        }
        self.files.make_contiguous().sort();
        let _ = self.set_used(used);
    }
}

fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES)
}

/// What all processes that send to this address hold.
fn blocks_in(root: &Path) -> u64 {
    let folders = fs::read_dir(root).into_iter().flatten().flatten();
    folders.filter_map(|folder| fs::metadata(folder.path().join(LOCK)).ok()).map(|lock| lock.len()).sum()
}

fn remove(folder: &Folder) {
    // Damaged files stay, and what says how large they are.
    if folder.used == 0 {
        let _ = fs::remove_file(folder.path.join(LOCK));
        let _ = fs::remove_dir(&folder.path);
    }
    crate::core::lock(&OURS).retain(|path| *path != folder.path);
}

fn new_folder(root: &Path) -> io::Result<Folder> {
    let mut nonce = [0u8; 4];
    crate::clock::system_random(&mut nonce);
    let path = root.join(format!("{}-{:08x}", std::process::id(), u32::from_le_bytes(nonce)));
    DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
    let lock = lock(&path)?;
    crate::core::lock(&OURS).push(path.clone());
    Ok(Folder { path, files: VecDeque::new(), out: 0, lock, used: 0 })
}

/// The lock of a folder, if nobody alive has it.
fn lock(folder: &Path) -> io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(folder.join(LOCK))?;
    // A lock of the process, not of the descriptor: a forked child does not hold it on after its parent is gone.
    // SAFETY: all zero is a valid flock: from the start, to the end.
    let mut whole: libc::flock = unsafe { std::mem::zeroed() };
    whole.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: the descriptor is open, the struct is ours.
    let free = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &whole) } == 0;
    if free { Ok(file) } else { Err(io::Error::last_os_error()) }
}

/// A request, or, if the file is damaged, how many records it had.
fn read(path: &Path) -> io::Result<Result<Spilled, u64>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    if size < HEADER as u64 || size > MAX_FILE_BYTES {
        return Ok(Err(1));
    }
    let mut header = [0u8; HEADER];
    file.read_exact(&mut header)?;
    let mut message = Vec::with_capacity(size as usize - HEADER);
    file.take(MAX_FILE_BYTES).read_to_end(&mut message)?;
    let signal = match header[4] {
        0 => Signal::Spans,
        1 => Signal::Records,
        _ => return Ok(Err(1)),
    };
    let Some((records, sum)) = header[5..].split_first_chunk() else { return Ok(Err(1)) };
    let records = u64::from_le_bytes(*records);
    if &header[..4] != MAGIC || crc32fast::hash(&message).to_le_bytes() != sum {
        // Nobody records more than one per byte: the count may be what is damaged.
        return Ok(Err(records.clamp(1, size)));
    }
    Ok(Ok(Spilled { signal, records, message, path: path.to_path_buf() }))
}
