//! A disk that fails, at each of the calls that a store makes: once, twice, or for good. A write that fails may have stored
//! a part of its bytes.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rollscope_model::Table;
use rollscope_model::build::{ConversationsBuilder, NewConversation};
use rollscope_store::{Change, Disk, SnapshotSource, Store, StoreOptions};

use crate::once::{metrics, values};
use crate::{batches, open_spans, open_with, seen, spans};

const ENOSPC: i32 = 28;
const EIO: i32 = 5;
const EACCES: i32 = 13;

/// What a sender was told.
#[derive(Default)]
struct Told {
    sent: BTreeSet<u64>,
    acknowledged: BTreeSet<u64>,
    /// The metric's last value that was acknowledged, and all that were sent since.
    metric: Vec<f64>,
    measured: bool,
    deleted: bool,
    /// The image of a conversation.
    shown: Option<String>,
}

const IMAGE: &[u8] = b"\x89PNG\r\n\x1a\n of a conversation";

async fn converse(store: &Store, told: &mut Told) {
    let Ok(image) = store.media_put(IMAGE.to_vec()).await else { return };
    let mut b = ConversationsBuilder::default();
    let messages = format!(r#"[{{"type":"image","media":"{image}"}}]"#);
    b.push(&NewConversation { run_id: "a", id: "c", messages: &messages, media_count: 1, ..Default::default() });
    if store.append(Table::Conversations, b.finish().unwrap()).await.is_ok() {
        told.shown = Some(image);
    }
}

async fn work(store: &Store, told: &mut Told) {
    for round in 0..4u64 {
        if round == 0 {
            converse(store, told).await;
        }
        let numbers = round * 10..round * 10 + 10;
        told.sent.extend(numbers.clone());
        if store.append(Table::Spans, spans("a", numbers.start, 10)).await.is_ok() {
            told.acknowledged.extend(numbers);
        }
        if store.append(Table::Spans, spans("b", round, 1)).await.is_ok() {
            told.deleted = false;
        }
        let value = round as f64;
        told.metric.push(value);
        if store.append(Table::Metrics, metrics("a", 0, 1, value)).await.is_ok() {
            (told.metric, told.measured) = (vec![value], true);
        }
        let _ = match round {
            1 => store.compact().await,
            2 => store.delete_run("b").await.map(|deleted| told.deleted |= deleted),
            _ => store.flush().await,
        };
    }
}

async fn check(store: &Store, told: &Told, at: &str) {
    let rows = seen(store);
    let of_a: Vec<u64> = rows.iter().filter(|row| row.0 == "a").map(|row| row.1).collect();
    let found: BTreeSet<u64> = of_a.iter().copied().collect();
    assert_eq!(found.len(), of_a.len(), "{at}: a row is there twice");
    assert!(found.is_superset(&told.acknowledged), "{at}: an acknowledged row is lost");
    assert!(found.is_subset(&told.sent), "{at}");
    assert!(!told.deleted || !rows.iter().any(|row| row.0 == "b"), "{at}: a deleted run is back");
    let metric = values(store).remove("m0").unwrap_or_default();
    assert!(metric.len() <= 1 && metric.iter().all(|value| told.metric.contains(value)), "{at}: {metric:?}");
    assert!(metric.len() == 1 || !told.measured, "{at}: the metric is lost");
    let conversations: usize = batches(store, Table::Conversations).iter().map(|batch| batch.num_rows()).sum();
    assert!(conversations <= 1 && (conversations == 1 || told.shown.is_none()), "{at}: {conversations} conversations");
    if let Some(image) = &told.shown {
        assert_eq!(store.media_get(image).await.unwrap().as_deref(), Some(IMAGE), "{at}: the image is lost");
    }
}

/// Files of segments.
fn files(dir: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders: Vec<_> = ["spans", "metrics", "conversations"].map(|table| dir.join(table)).into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => drop(found.insert(path.strip_prefix(dir).unwrap().to_str().unwrap().to_string())),
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fails_at_any_call_loses_nothing_and_fills_with_nothing() {
    let (mut faults, mut n) = (0, 0);
    loop {
        let mut reached = false;
        let kinds = [
            (EIO, 1, false),
            (EIO, 2, false),
            (EACCES, 3, false),
            (ENOSPC, usize::MAX, false),
            (EIO, 1, true),
            (EIO, 2, true),
            (ENOSPC, usize::MAX, true),
        ];
        for (error, times, stores_half) in kinds {
            let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
            let calls = Arc::new(AtomicUsize::new(0));
            let counted = calls.clone();
            let disk = Disk::watched(Arc::new(move |change| {
                let call = counted.fetch_add(1, Ordering::Relaxed);
                // A full disk still removes and cuts.
                let makes_room = matches!(change, Change::Remove(_) | Change::Cut(..) | Change::SyncFolder(_));
                if call < n || call - n >= times || error == ENOSPC && makes_room {
                    return Ok(());
                }
                if let Change::Write(path, data) = change
                    && stores_half
                {
                    std::fs::OpenOptions::new().append(true).open(path)?.write_all(&data[..data.len() / 2])?;
                }
                Err(io::Error::from_raw_os_error(error))
            }));
            let at = format!("error {error} at call {n}, {times} times, with half a write: {stores_half}");
            let options = StoreOptions { delete_grace_s: 0, ..StoreOptions::at(dir.path()) };
            let mut told = Told::default();
            if let Ok(store) = Store::open_on(options, disk).await {
                work(&store, &mut told).await;
                check(&store, &told, &at).await;
                let is_over = calls.load(Ordering::Relaxed) >= n.saturating_add(times);
                let flushed = store.flush().await;
                assert!(!is_over || flushed.is_ok(), "{at}: it does not recover: {flushed:?}");
                drop(store);
            }
            reached |= calls.load(Ordering::Relaxed) > n;
            faults += 1;
            let store = open_with(dir.path(), |options| options.delete_grace_s = 0).await;
            check(&store, &told, &format!("{at}, opened again")).await;
            let snapshot = store.snapshot();
            let live: BTreeSet<String> =
                snapshot.tables.values().flat_map(|table| &table.segments).map(|s| s.path.clone()).collect();
            assert_eq!(files(dir.path()), live, "{at}: files that nobody needs");
            assert_eq!(store.health().problems, Vec::<String>::new(), "{at}");
        }
        if !reached {
            break;
        }
        n += 1;
    }
    println!("faults: {n} calls, {faults} failures of the disk");
}

/// A flush that fails is tried again, with other names.
#[tokio::test]
async fn a_flush_that_fails_leaves_no_files_behind() {
    for refused in ["commits.log", ".parquet"] {
        let dir = tempfile::tempdir().unwrap();
        let full = Arc::new(AtomicUsize::new(0));
        let is_full = full.clone();
        let disk = Disk::watched(Arc::new(move |change| match change {
            Change::Write(path, _) if is_full.load(Ordering::Relaxed) == 1 => {
                let is_refused = path.to_str().unwrap().contains(refused) && !path.to_str().unwrap().contains("run=a");
                if is_refused { Err(io::Error::from_raw_os_error(ENOSPC)) } else { Ok(()) }
            }
            _ => Ok(()),
        }));
        let store = Store::open_on(StoreOptions::at(dir.path()), disk).await.unwrap();
        for run in ["a", "b"] {
            store.append(Table::Spans, spans(run, 0, 10)).await.unwrap();
        }
        full.store(1, Ordering::Relaxed);
        for _ in 0..3 {
            assert!(store.flush().await.is_err(), "{refused}");
            assert_eq!(files(dir.path()), BTreeSet::new(), "{refused}");
        }
        full.store(0, Ordering::Relaxed);
        store.flush().await.unwrap();
        assert_eq!(files(dir.path()).len(), 2, "{refused}");
        assert_eq!(seen(&store).len(), 20);
    }
}

#[tokio::test]
async fn files_and_folders_are_for_their_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let store = open_with(&data, |_| {}).await;
    store.append(Table::Spans, spans("a", 0, 10)).await.unwrap();
    store.media_put(b"picture".to_vec()).await.unwrap();
    store.snapshot().keep_derived("a", "x", vec![1]).await;
    store.compact().await.unwrap();
    store.append(Table::Spans, spans("a", 10, 10)).await.unwrap();
    store.close().await.unwrap();
    let (mut folders, mut kinds) = (vec![data.clone()], BTreeSet::new());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    while let Some(folder) = folders.pop() {
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            kinds.insert(path.strip_prefix(&data).unwrap().iter().next().unwrap().to_str().unwrap().to_string());
            match path.is_dir() {
                true => folders.push(path),
                false => assert_eq!(mode(&path), 0o600, "{}", path.display()),
            }
        }
    }
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    assert_eq!(kinds, ["LOCK", "commits.log", "derived", "manifest.json", "media", "spans", "wal"]);
}

/// Rows that could not be synced were refused. They may be in the log all the same.
#[tokio::test]
async fn rows_that_were_refused_do_not_bring_a_deleted_run_back() {
    let dir = tempfile::tempdir().unwrap();
    let fails = Arc::new(AtomicUsize::new(0));
    let failing = fails.clone();
    let disk = Disk::watched(Arc::new(move |change| match change {
        Change::Sync(_) | Change::Cut(..) if failing.load(Ordering::Relaxed) == 1 => {
            Err(io::Error::from_raw_os_error(EIO))
        }
        _ => Ok(()),
    }));
    let store = Store::open_on(StoreOptions::at(dir.path()), disk).await.unwrap();
    store.append(Table::Spans, spans("a", 0, 10)).await.unwrap();
    store.flush().await.unwrap();
    fails.store(1, Ordering::Relaxed);
    assert!(store.append(Table::Spans, spans("a", 10, 10)).await.is_err());
    fails.store(0, Ordering::Relaxed);
    assert!(store.delete_run("a").await.unwrap());
    drop(store);
    assert_eq!(seen(&open_with(dir.path(), |_| {}).await), []);
}

/// A flush that cannot make its log, nor remove what it made of it, is tried again.
#[tokio::test]
async fn a_log_that_could_not_be_removed_does_not_stand_in_the_way() {
    for synced in [0, 1] {
        let dir = tempfile::tempdir().unwrap();
        // Syncs that still succeed. Removing fails as long as syncs do.
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let counted = left.clone();
        let disk = Disk::watched(Arc::new(move |change| match (change, counted.load(Ordering::Relaxed)) {
            (_, usize::MAX) => Ok(()),
            (Change::Sync(_) | Change::Remove(_), 0) => Err(io::Error::from_raw_os_error(EIO)),
            (Change::Sync(_), n) => {
                counted.store(n - 1, Ordering::Relaxed);
                Ok(())
            }
            _ => Ok(()),
        }));
        let store = Store::open_on(StoreOptions::at(dir.path()), disk).await.unwrap();
        store.append(Table::Spans, spans("a", 0, 10)).await.unwrap();
        store.append(Table::Spans, open_spans("a", 10, 10)).await.unwrap();
        left.store(synced, Ordering::Relaxed);
        assert!(store.flush().await.is_err());
        left.store(usize::MAX, Ordering::Relaxed);
        store.flush().await.unwrap();
        assert_eq!(seen(&store).len(), 20);
        drop(store);
        assert_eq!(seen(&open_with(dir.path(), |_| {}).await).len(), 20);
    }
}

/// A write stores half a record, which can be cut off neither then nor by going on in another log. What is acknowledged later
/// must not stand behind it: it would go when the log is cut at last.
#[tokio::test]
async fn nothing_is_written_behind_half_a_record() {
    let dir = tempfile::tempdir().unwrap();
    // Writes to the log store a half and fail; with 2, it cannot be cut nor followed by another, either.
    let trouble = Arc::new(AtomicUsize::new(0));
    let troubled = trouble.clone();
    let disk = Disk::watched(Arc::new(move |change| match (change, troubled.load(Ordering::Relaxed)) {
        (Change::Write(path, data), 1..) => {
            std::fs::OpenOptions::new().append(true).open(path)?.write_all(&data[..data.len() / 2])?;
            Err(io::Error::from_raw_os_error(EIO))
        }
        (Change::Cut(..) | Change::Create(_), 2) => Err(io::Error::from_raw_os_error(EIO)),
        _ => Ok(()),
    }));
    let store = Store::open_on(StoreOptions::at(dir.path()), disk).await.unwrap();
    let append = async |number| store.append(Table::Spans, spans("a", number, 1)).await.is_ok();
    assert!(append(0).await);
    trouble.store(2, Ordering::Relaxed);
    assert!(!append(1).await);
    assert!(!append(2).await);
    trouble.store(0, Ordering::Relaxed);
    assert!(append(3).await);
    trouble.store(1, Ordering::Relaxed);
    assert!(!append(4).await);
    drop(store);
    let numbers: Vec<u64> = seen(&open_with(dir.path(), |_| {}).await).into_iter().map(|row| row.1).collect();
    assert_eq!(numbers, [0, 3]);
}

/// A commit that is cut off on a disk that then fails for a while, so that the rows are written to segments a second time, before
/// the process is killed. Neither attempt counts: the rows are in the log.
#[tokio::test]
async fn attempts_at_a_commit_that_was_cut_off_leave_nothing_twice() {
    let (dir, left) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // 1: the commit is cut off, and nothing can be undone. 2: the process is killed when it has written segments again.
    let (from, to) = (dir.path().to_path_buf(), left.path().to_path_buf());
    let trouble = Arc::new(AtomicUsize::new(0));
    let troubled = trouble.clone();
    let fails = || Err(io::Error::from_raw_os_error(ENOSPC));
    let disk = Disk::watched(Arc::new(move |change| {
        let (Change::Write(path, _) | Change::Cut(path, _) | Change::Create(path)) = change else { return Ok(()) };
        let is_commit = path.file_name().unwrap().to_str().unwrap().starts_with("commits.log");
        match (change, troubled.load(Ordering::Relaxed)) {
            (Change::Write(path, data), 1) if is_commit => {
                std::fs::OpenOptions::new().append(true).open(path)?.write_all(&data[..data.len() / 2])?;
                fails()
            }
            (_, 1) if is_commit => fails(),
            (_, 2) if is_commit => {
                crate::damage::copy(&from, &to);
                fails()
            }
            _ => Ok(()),
        }
    }));
    let store = Store::open_on(StoreOptions::at(dir.path()), disk).await.unwrap();
    store.append(Table::Metrics, metrics("a", 0, 3, 1.0)).await.unwrap();
    store.flush().await.unwrap();
    store.append(Table::Metrics, metrics("a", 0, 3, 2.0)).await.unwrap();
    for round in [1, 2] {
        trouble.store(round, Ordering::Relaxed);
        assert!(store.flush().await.is_err());
    }
    let store = open_with(left.path(), |_| {}).await;
    for _ in 0..2 {
        let found = values(&store);
        assert!(found.len() == 3 && found.values().all(|values| values == &[2.0]), "{found:?}");
        store.flush().await.unwrap();
    }
}
