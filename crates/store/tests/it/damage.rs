//! Logs and segments cut and corrupted at every kind of place.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use rollscope_model::Table;
use rollscope_model::build::{NewSample, SamplesBuilder};
use rollscope_store::{Change, Disk, SnapshotSource, Store, StoreOptions};

use crate::once::{metrics, values};
use crate::power::folder;
use crate::{batches, expected, open, open_with, seen, spans};

pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

fn only_log(dir: &Path) -> PathBuf {
    let logs = std::fs::read_dir(dir.join("wal")).unwrap().map(|e| e.unwrap().path());
    logs.max_by_key(|p| std::fs::metadata(p).unwrap().len()).unwrap()
}

/// A folder with three records of ten spans in the log, as a crash leaves it; where each record ends.
async fn crashed() -> (tempfile::TempDir, Vec<usize>) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let mut ends = vec![20];
    for i in 0..3 {
        store.append(Table::Spans, spans("a", i * 10, 10)).await.unwrap();
        ends.push(std::fs::metadata(only_log(dir.path())).unwrap().len() as usize);
    }
    drop(store);
    (dir, ends)
}

#[tokio::test]
async fn a_log_cut_anywhere_keeps_every_whole_record() {
    let (dir, ends) = crashed().await;
    let log = std::fs::read(only_log(dir.path())).unwrap();
    let cuts = (0..log.len()).step_by(97).chain(ends.iter().flat_map(|e| [e - 1, *e])).chain([log.len() - 1]);
    for cut in cuts {
        let again = tempfile::tempdir().unwrap();
        copy(dir.path(), again.path());
        std::fs::write(only_log(again.path()), &log[..cut]).unwrap();
        let store = open(again.path()).await;
        let whole = ends.iter().skip(1).filter(|end| **end <= cut).count() as u64;
        assert_eq!(seen(&store), expected("a", 0..whole * 10), "cut at {cut}");
        // And it goes on from there.
        store.append(Table::Spans, spans("a", 100, 1)).await.unwrap();
        store.close().await.unwrap();
        drop(store);
        assert_eq!(seen(&open(again.path()).await).len() as u64, whole * 10 + 1, "cut at {cut}");
    }
}

#[tokio::test]
async fn a_flipped_byte_costs_one_record_and_is_reported() {
    let (dir, ends) = crashed().await;
    let log = std::fs::read(only_log(dir.path())).unwrap();
    for at in (20..log.len()).step_by(61).chain([20, 24, 28, 32, ends[1], ends[1] + 4, ends[2] + 8]) {
        let again = tempfile::tempdir().unwrap();
        copy(dir.path(), again.path());
        let mut bad = log.clone();
        bad[at] ^= 0x40;
        std::fs::write(only_log(again.path()), &bad).unwrap();
        let store = open(again.path()).await;
        let hit = ends.iter().skip(1).position(|end| at < *end).unwrap() as u64;
        let wanted: Vec<_> = expected("a", 0..30).into_iter().filter(|r| r.1 / 10 != hit).collect();
        let found = seen(&store);
        // The three bytes that pad a record header are not covered by the checksum and mean nothing.
        if found.len() == 30 {
            assert!(ends.iter().any(|end| (end + 13..end + 16).contains(&at)), "byte {at} went unnoticed");
            continue;
        }
        assert_eq!(found, wanted, "byte {at}");
        if hit < 2 {
            assert_eq!(store.health().problems.len(), 1, "byte {at}: {:?}", store.health());
            assert!(again.path().join("quarantine").is_dir());
        }
    }
}

#[tokio::test]
async fn a_log_full_of_nonsense_does_not_keep_the_store_from_opening() {
    let (dir, _) = crashed().await;
    std::fs::write(only_log(dir.path()), b"RSL1 this is no log RSL1RSL1").unwrap();
    let store = open(dir.path()).await;
    assert_eq!(seen(&store), []);
    store.append(Table::Spans, spans("a", 0, 1)).await.unwrap();
}

/// A folder with two runs of a hundred spans each; the file of the second, and what it holds with one bit flipped.
async fn two_runs() -> (tempfile::TempDir, PathBuf, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.append(Table::Spans, spans("a", 0, 100)).await.unwrap();
    store.append(Table::Spans, spans("b", 100, 100)).await.unwrap();
    store.close().await.unwrap();
    let file = std::fs::read_dir(dir.path().join("spans/run=b")).unwrap().next().unwrap().unwrap().path();
    let mut data = std::fs::read(&file).unwrap();
    let middle = data.len() / 3;
    data[middle] ^= 1;
    (dir, file, data)
}

#[tokio::test]
async fn a_damaged_segment_is_set_aside_reported_and_the_rest_served() {
    for kind in ["flip", "cut", "gone"] {
        let (dir, file, data) = two_runs().await;
        let middle = data.len() / 3;
        match kind {
            "flip" => std::fs::write(&file, &data).unwrap(),
            "cut" => std::fs::write(&file, &data[..middle]).unwrap(),
            _ => std::fs::remove_file(&file).unwrap(),
        }
        for _ in 0..2 {
            let store = open(dir.path()).await;
            assert_eq!(seen(&store), expected("a", 0..100), "{kind}");
            let health = store.health();
            assert_eq!(health.problems.len(), 1, "{kind}: {health:?}");
            assert!(health.problems[0].contains("run=b"), "{health:?}");
            store.close().await.unwrap();
        }
        // What was lost can be sent again.
        let store = open(dir.path()).await;
        assert_eq!(store.append(Table::Spans, spans("b", 100, 100)).await.unwrap().accepted, 100);
    }
}

/// One bad file must not keep the rows of all runs in the log.
#[tokio::test]
async fn a_flush_goes_on_past_a_damaged_segment() {
    for kind in ["flip", "cut", "gone"] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        for run in ["a", "b"] {
            store.append(Table::Samples, samples(run, 0, 20)).await.unwrap();
        }
        store.close().await.unwrap();
        drop(store);
        // Checked at the start, damaged afterwards.
        let store = open(dir.path()).await;
        let folder = dir.path().join("samples/run=b");
        let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
        let mut data = std::fs::read(&file).unwrap();
        let middle = data.len() / 3;
        data[middle] ^= 1;
        match kind {
            "flip" => std::fs::write(&file, &data).unwrap(),
            "cut" => std::fs::write(&file, &data[..middle]).unwrap(),
            _ => std::fs::remove_file(&file).unwrap(),
        }
        // A row of another run that replaces one: the bad file is not even looked at.
        store.append(Table::Samples, samples("a", 0, 1)).await.unwrap();
        store.flush().await.unwrap();
        assert!(store.snapshot().tables[&Table::Samples].tail.is_empty(), "{kind}");
        assert_eq!(store.health().problems, Vec::<String>::new(), "{kind}");
        // And rows of its own run.
        store.append(Table::Samples, samples("b", 10, 20)).await.unwrap();
        store.flush().await.unwrap();
        let rows = |store: &Store| -> usize { batches(store, Table::Samples).iter().map(|b| b.num_rows()).sum() };
        for _ in 0..200 {
            if !store.health().problems.is_empty() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        let problems = store.health().problems;
        assert!(problems.len() == 1 && problems[0].contains("run=b"), "{kind}: {problems:?}");
        assert!(store.snapshot().tables[&Table::Samples].tail.is_empty(), "{kind}");
        assert_eq!(rows(&store), 20 + 20, "{kind}: what was sent again is there");
        drop(store);
        let store = open(dir.path()).await;
        assert_eq!(rows(&store), 20 + 20, "{kind}");
        assert_eq!(store.health().problems.len(), 1, "{kind}");
    }
}

/// A file that cannot be read may be fine: it stays where it is, and is served again when it can be read. A link that leads
/// to itself gives an error that `root` gets too.
#[tokio::test]
async fn a_file_that_cannot_be_read_is_left_out_until_it_can_be() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for run in ["a", "b"] {
        store.append(Table::Spans, spans(run, 0, 10)).await.unwrap();
        store.append(Table::Samples, samples(run, 0, 10)).await.unwrap();
    }
    store.close().await.unwrap();
    drop(store);
    let hide = |table: &str| {
        let folder = dir.path().join(table).join("run=b");
        let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
        std::fs::rename(&file, dir.path().join(table).with_extension("hidden")).unwrap();
        std::os::unix::fs::symlink(&file, &file).unwrap();
        file
    };
    let show = |table: &str, file: &Path| {
        std::fs::rename(dir.path().join(table).with_extension("hidden"), file).unwrap();
    };
    let both = [expected("a", 0..10), expected("b", 0..10)].concat();
    let hidden = hide("spans");
    for round in 0..2 {
        let store = open(dir.path()).await;
        assert_eq!(seen(&store), [expected("a", 0..10), expected("c", 0..round)].concat());
        let problems = store.health().problems;
        assert!(
            problems.len() == 1 && problems[0].contains("run=b") && problems[0].contains("restart"),
            "{problems:?}"
        );
        assert_eq!(store.health().set_aside, []);
        store.append(Table::Spans, spans("c", round, 1)).await.unwrap();
        store.close().await.unwrap();
    }
    show("spans", &hidden);
    let store = open(dir.path()).await;
    assert_eq!(seen(&store), [both, expected("c", 0..2)].concat());
    assert_eq!(store.health().problems, Vec::<String>::new());
    // Checked at the start, and not to be read when a flush has to write it again.
    let hidden = hide("samples");
    store.append(Table::Samples, samples("b", 0, 1)).await.unwrap();
    store.append(Table::Spans, spans("c", 2, 1)).await.unwrap();
    store.flush().await.unwrap();
    assert!(store.snapshot().tables[&Table::Spans].tail.is_empty(), "one file keeps nothing else in memory");
    for _ in 0..200 {
        if !store.health().problems.is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert_eq!(store.health().problems.len(), 1);
    drop(store);
    show("samples", &hidden);
    let store = open(dir.path()).await;
    store.compact().await.unwrap();
    let samples: usize = batches(&store, Table::Samples).iter().map(RecordBatch::num_rows).sum();
    assert_eq!(samples, 20, "each once");
    // A run is deleted with what cannot be read of it.
    let hidden = hide("spans");
    drop(store);
    let store = open(dir.path()).await;
    assert!(store.delete_run("b").await.unwrap());
    drop(store);
    show("spans", &hidden);
    assert_eq!(seen(&open(dir.path()).await), [expected("a", 0..10), expected("c", 0..3)].concat());
}

/// Only the file that holds a replaced row is written again. The others are not looked at, also where there are too many
/// to remember what is in them.
#[tokio::test]
async fn a_replaced_row_leaves_other_files_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), |options| options.duplicate_check_bytes = 16 * 10).await;
    for first in [0, 10, 20] {
        store.append(Table::Samples, samples("a", first, 10)).await.unwrap();
        store.flush().await.unwrap();
    }
    let before: Vec<String> = segments(&store);
    let hidden = dir.path().join(&before[0]);
    std::fs::remove_file(&hidden).unwrap();
    std::os::unix::fs::symlink(&hidden, &hidden).unwrap();
    store.append(Table::Samples, samples("a", 25, 1)).await.unwrap();
    store.flush().await.unwrap();
    let after = segments(&store);
    assert!(after.contains(&before[0]) && after.contains(&before[1]) && !after.contains(&before[2]), "{after:?}");
}

fn segments(store: &Store) -> Vec<String> {
    store.snapshot().tables[&Table::Samples].segments.iter().map(|s| s.path.clone()).collect()
}

pub fn samples(run: &str, first: u64, n: u64) -> RecordBatch {
    let mut b = SamplesBuilder::default();
    for i in first..first + n {
        let sample_id = i.to_string();
        b.push(&NewSample {
            run_id: run,
            step: Some(1),
            sample_id: &sample_id,
            split: "train",
            ..NewSample::default()
        });
    }
    b.finish().unwrap()
}

#[tokio::test]
async fn a_damaged_manifest_is_rebuilt_from_the_segments() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for i in 0..3 {
        store.append(Table::Spans, spans("a", i * 10, 10)).await.unwrap();
        store.flush().await.unwrap();
    }
    store.compact().await.unwrap();
    store.append(Table::Spans, spans("a", 30, 10)).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    std::fs::write(dir.path().join("manifest.json"), b"{\"format_version\": 1, oops").unwrap();
    let store = open(dir.path()).await;
    assert_eq!(seen(&store), expected("a", 0..40));
    assert!(store.health().problems[0].contains("manifest.json"));
}

#[tokio::test]
async fn a_newer_format_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("wal")).unwrap();
    std::fs::write(dir.path().join("manifest.json"), b"{\"format_version\": 999}").unwrap();
    let options = StoreOptions::at(dir.path());
    let Err(error) = Store::open(options).await else { panic!("opened") };
    assert!(error.to_string().contains("upgrade rollscope"), "{error}");
}

/// What is in the folder of [`a_flipped_bit_anywhere_is_noticed`].
fn everything(source: &dyn SnapshotSource) -> Vec<String> {
    let spans = seen(source).into_iter().map(|row| format!("{row:?}"));
    let metrics = values(source).into_iter().flat_map(|(name, v)| v.into_iter().map(move |v| format!("{name} {v}")));
    let mut rows: Vec<String> = spans.chain(metrics).collect();
    rows.sort();
    rows
}

fn all_files(dir: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![dir.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    files.into_iter().map(|file| file.strip_prefix(dir).unwrap().to_path_buf()).collect()
}

/// Places tried in each file, at most.
const FLIPS: usize = 150;

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_anywhere_is_noticed() {
    let dir = folder();
    // What is in the log stays there, however slow the machine is.
    let store = open_with(dir.path(), |options| options.flush_age_s = 3600).await;
    let image = store.media_put(b"a picture".to_vec()).await.unwrap();
    let other = store.media_put(b"another picture".to_vec()).await.unwrap();
    for run in ["a", "b"] {
        store.append(Table::Spans, spans(run, 0, 10)).await.unwrap();
        store.flush().await.unwrap();
    }
    store.append(Table::Metrics, metrics("a", 0, 5, 1.0)).await.unwrap();
    store.flush().await.unwrap();
    for i in 1..4 {
        store.append(Table::Spans, spans("a", i * 10, 10)).await.unwrap();
        store.append(Table::Metrics, metrics("b", i as i64 * 10, 5, 1.0)).await.unwrap();
    }
    let wanted = everything(&store);
    drop(store);
    let (mut tried, mut kinds) = (0, std::collections::BTreeSet::new());
    for file in all_files(dir.path()) {
        let name = file.to_str().unwrap().to_string();
        let kind = name.split('/').next().unwrap().to_string();
        if kind == "LOCK" {
            continue;
        }
        let data = std::fs::read(dir.path().join(&file)).unwrap();
        let step = (data.len() / FLIPS).max(1);
        for at in (0..data.len()).step_by(step) {
            let bit = at / step % 8;
            let label = format!("{name}, bit {bit} of byte {at}");
            let again = folder();
            copy(dir.path(), again.path());
            let mut bad = data.clone();
            bad[at] ^= 1 << bit;
            std::fs::write(again.path().join(&file), bad).unwrap();
            tried += 1;
            kinds.insert(kind.clone());
            let options = StoreOptions::at(again.path());
            let store = match Store::open(options).await {
                Ok(store) => store,
                // The header of a log says which version wrote it, and has no checksum.
                Err(e) => {
                    assert!(kind == "wal" && (8..12).contains(&at) && e.to_string().contains("newer"), "{label}: {e}");
                    continue;
                }
            };
            let found = everything(&store);
            let lost: Vec<&String> = wanted.iter().filter(|row| !found.contains(row)).collect();
            assert_eq!(found.len() + lost.len(), wanted.len(), "{label}: a row is wrong, or there twice");
            let problems = store.health().problems;
            match kind.as_str() {
                "media" => {
                    let (mine, fine) = if name.contains(&image) { (&image, &other) } else { (&other, &image) };
                    assert!(store.media_get(mine).await.is_err(), "{label}");
                    assert!(store.media_get(mine).await.unwrap().is_none(), "{label}: it is in quarantine");
                    assert!(store.media_get(fine).await.unwrap().is_some(), "{label}");
                    assert!(store.health().problems.iter().any(|problem| problem.contains(mine)), "{label}");
                    assert!(lost.is_empty(), "{label}: {lost:?}");
                }
                "commits.log" | "manifest.json" => assert!(lost.is_empty(), "{label}: {lost:?}"),
                "wal" => {
                    assert!(lost.len() <= 10, "{label}: more than one record is lost: {lost:?}");
                    // The end of the last log may be a write that was cut off, which is no damage.
                    let is_last = lost.iter().all(|row| row.starts_with("m3"));
                    assert!(is_last || problems.iter().any(|problem| problem.contains(&name)), "{label}: {problems:?}");
                }
                _ => {
                    let of_run = |row: &&&String| row.contains(if name.contains("run=a") { "\"a\"" } else { "\"b\"" });
                    assert!(
                        lost.len() == 10 && lost.iter().filter(of_run).count() == 10 || lost.len() == 5,
                        "{label}: {lost:?}"
                    );
                    assert!(problems.len() == 1 && problems[0].contains(&name), "{label}: {problems:?}");
                }
            }
        }
    }
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    assert_eq!(kinds, ["commits.log", "manifest.json", "media", "metrics", "spans", "wal"]);
    println!("flipped bits: {tried} places");
}

/// What a kill leaves that comes when a log has been made, and has no header yet.
#[tokio::test]
async fn a_log_without_a_header_is_an_unfinished_write_at_every_later_start() {
    for length in [0, 7] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        store.append(Table::Spans, spans("a", 0, 10)).await.unwrap();
        drop(store);
        std::fs::write(dir.path().join("wal/0000000000000002.log"), &b"RSWAL\0\0"[..length]).unwrap();
        for _ in 0..3 {
            let store = open(dir.path()).await;
            assert_eq!(seen(&store), expected("a", 0..10));
            assert_eq!(store.health().problems, Vec::<String>::new(), "{length} bytes");
        }
    }
}

/// A file that no manifest names is deleted at a start. A damaged one that cannot be moved must not become such a file.
#[tokio::test]
async fn a_damaged_file_that_cannot_be_moved_is_kept_until_it_can_be() {
    let (dir, file, data) = two_runs().await;
    std::fs::write(&file, &data).unwrap();
    for _ in 0..2 {
        let disk = Disk::watched(Arc::new(|change| match change {
            Change::Rename(_, to) if to.to_str().unwrap().contains("quarantine") => Err(std::io::Error::other("no")),
            _ => Ok(()),
        }));
        let options = StoreOptions { delete_grace_s: 0, ..StoreOptions::at(dir.path()) };
        let store = Store::open_on(options, disk).await.unwrap();
        store.tidy().await.unwrap();
        assert_eq!(seen(&store), expected("a", 0..100));
        let problems = store.health().problems;
        assert!(
            problems.len() == 1 && problems[0].contains("run=b") && problems[0].contains("damaged"),
            "{problems:?}"
        );
        assert_eq!(std::fs::read(&file).unwrap(), data);
        store.close().await.unwrap();
    }
    let store = open(dir.path()).await;
    assert!(store.health().problems[0].contains("was moved to quarantine"));
    assert!(!file.exists());
}
