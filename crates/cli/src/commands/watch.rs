//! `rollscope serve --watch` and `rollscope import --watch`: follow folders that grow while a run trains.
//!
//! Files are looked at from time to time. One with a record per line is read from where it ended last time, up to its last whole line.
//! Any other is read as a whole, once it stopped changing. Reading something again changes nothing, because rows have identities. A
//! server remembers what it has read all the same: after a restart it need not read everything again, and what was deleted stays deleted.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::Context;
use rollscope_formats::export::atomically;
use rollscope_formats::import::{ImportError, ImportOptions, Imported};
use rollscope_store::Store;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::import::{self, Runs};
use super::serve::StopSignals;
use super::{files, metrics};
use crate::args::ImportArgs;

const EVERY: Duration = Duration::from_secs(1);
/// Looking at large folders, or at those of a slow file system, takes no more than this share of the time.
const LOOKING: u32 = 20;
/// After something went wrong that may pass: the disk was full, a file could not be opened.
const PATIENCE: Duration = Duration::from_secs(30);
/// What of a file's beginning must stay the same for it to be the same file.
const HEAD_BYTES: u64 = 4096;
/// In the folder of the store.
const MEMORY: &str = "watched.json";
const MAX_MEMORY: u64 = 256 << 20;

/// Until a signal, with the store for itself.
pub async fn run(args: ImportArgs) -> anyhow::Result<()> {
    let mut signals = StopSignals::listen()?;
    let store = import::open(&args.folder.data).await?;
    let mut follower = Follower::new(&store, args.files, args.run, false);
    println!("watching; press Ctrl-C to stop");
    let follow = async {
        loop {
            let (_, problems, pause) = follower.round().await?;
            if let Some(problem) = problems.into_iter().next() {
                return Err(problem);
            }
            tokio::time::sleep(pause).await;
        }
    };
    let done: anyhow::Result<()> = tokio::select! {
        failed = follow => failed,
        () = signals.received() => Ok(()),
    };
    // What was imported before it was stopped is in the store: its runs should be, too.
    let written = follower.runs.write(&store).await;
    store.close().await?;
    done.and(written)
}

/// Beside a server, for as long as that runs.
pub async fn beside_server(store: Store, named: Vec<PathBuf>) {
    for path in named.iter().filter(|path| !path.exists() && !files::is_pattern(path)) {
        tracing::warn!(path = %path.display(), "what is to be watched does not exist yet");
    }
    // What is remembered must not depend on where the server was started.
    let named = named.into_iter().map(|path| std::path::absolute(&path).unwrap_or(path)).collect();
    let memory = store.options().dir.join(MEMORY);
    let mut follower = Follower::new(&store, named, None, true);
    follower.known = remembered(&memory).unwrap_or_else(|e| {
        tracing::warn!("{}: {e:#}; what is watched is read again", memory.display());
        HashMap::new()
    });
    let mut told = HashSet::new();
    loop {
        let pause = match follower.round().await {
            Ok((imported, problems, pause)) => {
                if imported && let Err(e) = remember(memory.clone(), &follower.known).await {
                    tracing::warn!("{}: {e:#}; after a restart, what is watched is read again", memory.display());
                }
                // What else is watched goes on.
                for problem in problems.iter().map(|problem| format!("{problem:#}")) {
                    if told.insert(problem.clone()) {
                        tracing::warn!("watching: {problem}");
                    }
                }
                pause
            }
            Err(e) => {
                tracing::warn!("watching: {e:#}");
                PATIENCE
            }
        };
        tokio::time::sleep(pause).await;
    }
}

fn remembered(memory: &Path) -> anyhow::Result<HashMap<PathBuf, Seen>> {
    let mut text = Vec::new();
    match std::fs::File::open(memory) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(HashMap::new()),
        file => file?.take(MAX_MEMORY).read_to_end(&mut text)?,
    };
    serde_json::from_slice(&text).context("it is damaged")
}

/// Returns when it will survive a power cut.
async fn remember(memory: PathBuf, known: &HashMap<PathBuf, Seen>) -> anyhow::Result<()> {
    // JSON has no names that are not UTF-8: such files are read again.
    let kept = known.iter().filter(|(path, seen)| path.to_str().is_some() && seen.imported.is_some());
    let text = serde_json::to_vec(&kept.collect::<HashMap<_, _>>())?;
    tokio::task::spawn_blocking(move || {
        atomically(&memory, |mut file| {
            file.write_all(&text)?;
            file.sync_all()
        })
    })
    .await?
    .map_err(Into::into)
}

/// Its size, and when it was changed in nanoseconds since 1970.
type Version = (u64, Option<i64>);

/// What is known of a file.
#[derive(Default, Serialize, Deserialize)]
struct Seen {
    /// As it was when it was looked at last.
    #[serde(skip)]
    now: Option<Version>,
    /// As it was when it was imported last.
    imported: Option<Version>,
    /// As it was when that failed, and until when it is not tried again. None: until it changes.
    #[serde(skip)]
    failed: Option<(Version, Option<Instant>)>,
    /// How many bytes it began with then, and their digest.
    head: (u64, String),
    lines: u64,
}

struct Follower {
    store: Store,
    named: Vec<PathBuf>,
    run: Option<String>,
    /// A server has a log, and works out the metrics of steps by itself.
    beside_server: bool,
    known: HashMap<PathBuf, Seen>,
    runs: Runs,
}

impl Follower {
    fn new(store: &Store, named: Vec<PathBuf>, run: Option<String>, beside_server: bool) -> Follower {
        Follower { store: store.clone(), named, run, beside_server, known: HashMap::new(), runs: Runs::default() }
    }

    /// Imports what is new. Returns whether anything was, what cannot be looked at, and when to look again.
    async fn round(&mut self) -> anyhow::Result<(bool, Vec<anyhow::Error>, Duration)> {
        let named = self.named.clone();
        let started = Instant::now();
        let (present, problems) = tokio::task::spawn_blocking(move || files::present(&named)).await?;
        let pause = EVERY.max(started.elapsed() * LOOKING);
        let mut imported = false;
        for path in present {
            imported |= self.look_at(&path).await;
        }
        // Those that could not be written last time are written now.
        imported |= self.runs.first().is_some();
        if imported {
            self.runs.write(&self.store).await?;
            // What was written once must not come back after it was deleted.
            self.runs = Runs::default();
            if !self.beside_server {
                // More may come.
                metrics::work_out(&self.store, false).await?;
            }
        }
        Ok((imported, problems, pause))
    }

    /// Imports what is new in a file. A failure is reported. A file that is damaged is looked at again when it has changed, any other
    /// after a while.
    async fn look_at(&mut self, path: &Path) -> bool {
        let Ok(found) = std::fs::metadata(path) else { return false };
        let seen = self.known.entry(path.to_path_buf()).or_default();
        let changed = found.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let now = (found.len(), changed.and_then(|since| i64::try_from(since.as_nanos()).ok()));
        let settled = seen.now.replace(now) == Some(now);
        let has_lines = path.extension().is_some_and(|e| e == "jsonl" || e == "log");
        if now.0 == 0 || seen.imported == Some(now) || !(settled || has_lines) {
            return false;
        }
        if seen.failed.is_some_and(|(version, until)| version == now && until.is_none_or(|at| Instant::now() < at)) {
            return false;
        }
        let head = head_of(path);
        if seen.head != digest(&head, seen.head.0) {
            // Another file took its name.
            seen.lines = 0;
        }
        let options =
            ImportOptions { lines_before: seen.lines, growing: has_lines, ..import::options(self.run.clone()) };
        let started = Instant::now();
        let done = import::file(&self.store, path, &options, &mut self.runs).await;
        match done {
            Ok((imported, new, format)) => {
                (seen.imported, seen.failed) = (Some(now), None);
                seen.head = digest(&head, head.len() as u64);
                seen.lines = imported.lines.unwrap_or(0);
                match self.beside_server {
                    true => log(path, format, &imported),
                    false => import::report(path, format, &imported, new, started),
                }
                true
            }
            // Its first line may not be whole yet.
            Err(_) if !settled => false,
            Err(e) => {
                let of_file = e.downcast_ref().is_some_and(|e| !matches!(e, ImportError::Io(_) | ImportError::Sink(_)));
                seen.failed = Some((now, (!of_file).then(|| Instant::now() + PATIENCE)));
                match self.beside_server {
                    true => tracing::warn!("{}: {e:#}", path.display()),
                    false => eprintln!("rollscope: {}: {e:#}", path.display()),
                }
                false
            }
        }
    }
}

fn log(path: &Path, format: &str, imported: &Imported) {
    let (path, rows, rejected) = (path.display(), imported.rows, imported.rejected);
    if rejected > 0 {
        let why = imported.reasons.join("; ");
        tracing::warn!(%path, format, rows, rejected, why, "imported, but not all of it");
    } else if rows > 0 {
        tracing::info!(%path, format, rows, "imported");
    }
}

fn head_of(path: &Path) -> Vec<u8> {
    let mut head = Vec::new();
    if let Ok(file) = std::fs::File::open(path) {
        let _ = file.take(HEAD_BYTES).read_to_end(&mut head);
    }
    head
}

/// Of so many bytes of a beginning, or of all if it is shorter.
fn digest(head: &[u8], bytes: u64) -> (u64, String) {
    let head = &head[..head.len().min(bytes as usize)];
    (head.len() as u64, hex::encode(Sha256::digest(head)))
}
