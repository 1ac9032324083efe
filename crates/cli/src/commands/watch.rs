//! `rollscope import --watch`: follows folders that grow while a run trains.
//!
//! Files are looked at from time to time. One with a record per line is read from where it ended last time, up to its last whole line.
//! Any other is read as a whole, once it stopped changing. After a restart everything is read again, and changes nothing: rows
//! have identities.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rollscope_formats::import::ImportOptions;
use rollscope_store::{Store, StoreOptions};

use super::import::{self, Runs};
use super::serve::StopSignals;
use super::{files, metrics};
use crate::args::ImportArgs;

const EVERY: Duration = Duration::from_secs(1);
/// What of a file's beginning must stay the same for it to be the same file.
const HEAD_BYTES: u64 = 4096;

pub async fn run(args: ImportArgs) -> anyhow::Result<()> {
    let mut signals = StopSignals::listen()?;
    let store = Store::open(StoreOptions::at(&args.folder.data)).await?;
    let mut runs = Runs::default();
    println!("watching; press Ctrl-C to stop");
    let done = tokio::select! {
        failed = follow(&store, &args, &mut runs) => failed,
        () = signals.received() => Ok(()),
    };
    // What was imported before it was stopped is in the store: its runs should be, too.
    let written = runs.write(&store).await;
    store.close().await?;
    done.and(written)
}

/// What is known of a file.
#[derive(Default)]
struct Seen {
    size: u64,
    changed: Option<SystemTime>,
    /// As it was when it was imported last.
    imported: Option<(u64, Option<SystemTime>)>,
    head: Vec<u8>,
    lines: u64,
}

async fn follow(store: &Store, args: &ImportArgs, runs: &mut Runs) -> anyhow::Result<()> {
    let mut known: HashMap<PathBuf, Seen> = HashMap::new();
    loop {
        let mut imported = false;
        for path in files::present(&args.files)? {
            imported |= look_at(store, &path, known.entry(path.clone()).or_default(), args, runs).await;
        }
        if imported {
            runs.write(store).await?;
            metrics::work_out(store).await?;
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Imports what is new in a file. A failure is reported, and the file is looked at again when it has changed.
async fn look_at(store: &Store, path: &Path, seen: &mut Seen, args: &ImportArgs, runs: &mut Runs) -> bool {
    let Ok(now) = std::fs::metadata(path) else { return false };
    let (size, changed) = (now.len(), now.modified().ok());
    let settled = seen.size == size && seen.changed == changed;
    (seen.size, seen.changed) = (size, changed);
    let has_lines = path.extension().is_some_and(|e| e == "jsonl" || e == "log");
    if size == 0 || seen.imported == Some((size, changed)) || !(settled || has_lines) {
        return false;
    }
    let head = head_of(path);
    if !head.starts_with(&seen.head) {
        // Another file took its name.
        seen.lines = 0;
    }
    let options = ImportOptions { lines_before: seen.lines, growing: has_lines, ..import::options(args.run.clone()) };
    let started = Instant::now();
    let done = import::file(store, path, &options, runs).await;
    seen.imported = Some((size, changed));
    match done {
        Ok((imported, new, format)) => {
            seen.head = head;
            seen.lines = imported.lines.unwrap_or(0);
            import::report(path, format, &imported, new, started);
            true
        }
        // Its first line may not be whole yet.
        Err(_) if !settled => {
            seen.imported = None;
            false
        }
        Err(e) => {
            eprintln!("rollscope: {}: {e:#}", path.display());
            false
        }
    }
}

fn head_of(path: &Path) -> Vec<u8> {
    let mut head = Vec::new();
    if let Ok(file) = std::fs::File::open(path) {
        let _ = file.take(HEAD_BYTES).read_to_end(&mut head);
    }
    head
}
