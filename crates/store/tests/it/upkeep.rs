//! Compaction, retention, deletion, media.

use arrow::array::RecordBatch;
use rollscope_model::Table;
use rollscope_model::build::{ConversationsBuilder, NewConversation};
use rollscope_store::{Census, ReadOnlyStore, SnapshotSource, Store};

use crate::{batches, expected, open, open_spans, open_with, seen, spans, spans_with};

#[tokio::test]
async fn compaction_merges_small_segments_of_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for i in 0..10 {
        store.append(Table::Spans, spans("a", i * 10, 10)).await.unwrap();
        store.append(Table::Spans, spans("b", 1000 + i * 10, 10)).await.unwrap();
        store.flush().await.unwrap();
    }
    assert_eq!(store.snapshot().tables[&Table::Spans].segments.len(), 20);
    store.compact().await.unwrap();
    let snapshot = store.snapshot();
    let mut runs: Vec<_> = snapshot.tables[&Table::Spans]
        .segments
        .iter()
        .flat_map(|s| s.parts())
        .map(|part| (part.run_id.to_string(), part.rows))
        .collect();
    runs.sort();
    assert_eq!(runs, [("a".to_string(), 100), ("b".to_string(), 100)]);
    let all = [expected("a", 0..100), expected("b", 1000..1100)].concat();
    assert_eq!(seen(&store), all);
    drop(store);
    assert_eq!(seen(&open(dir.path()).await), all);
}

fn files(dir: &std::path::Path) -> usize {
    let folders: Vec<_> = std::fs::read_dir(dir.join("spans")).unwrap().map(|e| e.unwrap()).collect();
    folders.iter().map(|f| std::fs::read_dir(f.path()).unwrap().count()).sum()
}

#[tokio::test]
async fn what_an_earlier_process_left_behind_is_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for first in [0, 100, 200] {
        store.append(Table::Spans, spans("a", first, 10)).await.unwrap();
        store.flush().await.unwrap();
    }
    store.compact().await.unwrap();
    drop(store);
    assert_eq!(files(dir.path()), 4, "three that were merged are still there for readers");
    let store = open_with(dir.path(), |o| o.delete_grace_s = 0).await;
    for _ in 0..200 {
        if files(dir.path()) == 1 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert_eq!(files(dir.path()), 1);
    assert_eq!(seen(&store).len(), 30);
}

#[tokio::test]
async fn a_deleted_run_is_gone_from_memory_and_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.append(Table::Spans, spans("a", 0, 10)).await.unwrap();
    store.append(Table::Spans, spans("../b c/ü", 100, 10)).await.unwrap();
    assert!(store.delete_run("../b c/ü").await.unwrap());
    assert!(!store.delete_run("../b c/ü").await.unwrap());
    assert_eq!(seen(&store), expected("a", 0..10));
    // Queries under way get a few seconds.
    for _ in 0..200 {
        if files(dir.path()) == 1 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert_eq!(files(dir.path()), 1);
    drop(store);
    assert_eq!(seen(&open(dir.path()).await), expected("a", 0..10));
}

fn conversation(run: &str, media: &[&str]) -> RecordBatch {
    let parts: Vec<String> = media.iter().map(|m| format!(r#"{{"type":"image","media":"{m}"}}"#)).collect();
    let messages = format!(r#"[{{"role":"user","content":[{}]}}]"#, parts.join(","));
    let mut b = ConversationsBuilder::default();
    b.push(&NewConversation {
        id: &format!("{run}/{}", media.concat()),
        run_id: run,
        messages: &messages,
        media_count: media.len() as i64,
        ..NewConversation::default()
    });
    b.finish().unwrap()
}

#[tokio::test]
async fn a_deleted_run_takes_its_open_spans_and_its_media_along() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let own = store.media_put(b"only here".to_vec()).await.unwrap();
    let late = store.media_put(b"only here, in the tail".to_vec()).await.unwrap();
    let shared = store.media_put(b"in both".to_vec()).await.unwrap();
    store.append(Table::Conversations, conversation("gone", &[&own, &shared])).await.unwrap();
    store.append(Table::Conversations, conversation("stays", &[&shared])).await.unwrap();
    store.append(Table::Spans, open_spans("gone", 0, 5)).await.unwrap();
    store.append(Table::Spans, open_spans("stays", 0, 5)).await.unwrap();
    store.flush().await.unwrap();
    store.append(Table::Conversations, conversation("gone", &[&late])).await.unwrap();
    store.append(Table::Spans, spans("gone", 100, 5)).await.unwrap();
    store.append(Table::Spans, open_spans("gone", 200, 5)).await.unwrap();
    assert!(store.delete_run("gone").await.unwrap());
    for kept in [&own, &late] {
        assert!(store.media_get(kept).await.unwrap().is_none());
    }
    assert!(store.media_get(&shared).await.unwrap().is_some());
    let runs = |store: &Store| -> Vec<String> { seen(store).into_iter().map(|row| row.0).collect() };
    assert_eq!(runs(&store), vec!["stays"; 5]);
    assert_eq!(batches(&store, Table::Conversations).iter().map(|b| b.num_rows()).sum::<usize>(), 1);
    assert!(!store.delete_run("gone").await.unwrap());
    drop(store);
    // Also not from the log.
    let store = open(dir.path()).await;
    assert_eq!(runs(&store), vec!["stays"; 5]);
    // It may come again, and its open spans end as others do.
    store.append(Table::Spans, spans("stays", 0, 5)).await.unwrap();
    assert_eq!(store.append(Table::Spans, spans("gone", 0, 5)).await.unwrap().accepted, 5);
    assert_eq!(seen(&store), [expected("gone", 0..5), expected("stays", 0..5)].concat());
    assert!(store.delete_run("stays").await.unwrap());
    assert!(store.media_get(&shared).await.unwrap().is_none(), "the last that named it is gone");
}

#[tokio::test]
async fn retention_drops_the_oldest() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), |o| o.retention_bytes = 1).await;
    store.append(Table::Spans, spans("a", 0, 10)).await.unwrap();
    store.flush().await.unwrap();
    for _ in 0..200 {
        if store.stats().expired_segments > 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert_eq!(seen(&store), []);
    assert_eq!(store.stats().expired_segments, 1);
}

/// Samples of a dump may have no time: they are as old as their file.
#[tokio::test]
async fn age_takes_what_is_old_and_not_what_has_no_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), |o| o.retention_age_s = 3600).await;
    store.append(Table::Samples, crate::damage::samples("a", 0, 10)).await.unwrap();
    store.append(Table::Spans, spans_with("a", 0, 10, |s| (s.start_ns, s.end_ns) = (1, Some(2)))).await.unwrap();
    store.flush().await.unwrap();
    store.tidy().await.unwrap();
    assert_eq!(seen(&store), []);
    assert_eq!(batches(&store, Table::Samples).iter().map(RecordBatch::num_rows).sum::<usize>(), 10);
}

/// Of this many segments and nine files of a tenth of a segment each: how many segments went, and how many files stayed, where there is
/// room for three segments and one such file.
async fn expired_and_kept(segments: u64) -> (u64, usize) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for n in 0..segments {
        store.append(Table::Spans, spans("a", n * 100, 10)).await.unwrap();
        store.flush().await.unwrap();
    }
    let size = store.snapshot().tables[&Table::Spans].segments[0].bytes;
    store.close().await.unwrap();
    drop(store);
    let folder = dir.path().join("derived/run=a");
    std::fs::create_dir_all(&folder).unwrap();
    for n in 0..9 {
        std::fs::write(folder.join(n.to_string()), vec![0; size as usize / 10]).unwrap();
    }
    let store = open_with(dir.path(), |o| o.retention_bytes = size * 31 / 10).await;
    let kept = || std::fs::read_dir(&folder).unwrap().count();
    store.tidy().await.unwrap();
    // The upkeep in the background may have taken some of the files on its list, and be deleting them still.
    for _ in 0..300 {
        if kept() <= 3 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    store.close().await.unwrap();
    (store.stats().expired_segments, kept())
}

#[tokio::test]
async fn retention_counts_what_was_worked_out_and_limits_it() {
    // A tenth of the room is for three files. With them, three segments are too much.
    assert_eq!(tokio::join!(expired_and_kept(2), expired_and_kept(3)), ((0, 3), (1, 3)));
}

/// Files of what was worked out, of 600 MB each and so many days old: which of them stay.
async fn kept_of(days: &[u64], retention_age_s: u64) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.append(Table::Spans, spans("a", 0, 10)).await.unwrap();
    store.append(Table::Samples, crate::damage::samples("a", 0, 10)).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let folder = dir.path().join("derived/run=a");
    std::fs::create_dir_all(&folder).unwrap();
    for age in days {
        let file = std::fs::File::create(folder.join(age.to_string())).unwrap();
        // They take no room on the disk.
        file.set_len(600 << 20).unwrap();
        let age = std::time::Duration::from_secs(age * 24 * 3600 + 60);
        file.set_modified(std::time::SystemTime::now() - age).unwrap();
    }
    let store = open_with(dir.path(), |o| o.retention_age_s = retention_age_s).await;
    store.tidy().await.unwrap();
    store.close().await.unwrap();
    let mut kept: Vec<String> =
        std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    kept.sort();
    kept
}

#[tokio::test]
async fn what_was_worked_out_takes_a_gigabyte_beside_few_rows_and_gets_no_older_than_they() {
    assert_eq!(kept_of(&[0, 1, 2, 3], 0).await, ["0"]);
    assert_eq!(kept_of(&[1], 0).await, ["1"]);
    assert_eq!(kept_of(&[1], 3600).await, Vec::<String>::new());
    assert_eq!(kept_of(&[0], 3600).await, ["0"]);
}

#[tokio::test]
async fn media_are_kept_once_by_content() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let hash = store.media_put(b"picture".to_vec()).await.unwrap();
    assert_eq!(store.media_put(b"picture".to_vec()).await.unwrap(), hash);
    assert_eq!(store.media_get(&hash).await.unwrap().unwrap().as_ref(), b"picture");
    assert!(store.media_get("../../etc/passwd").await.unwrap().is_none());
    assert!(store.media_get(&"0".repeat(64)).await.unwrap().is_none());
}

/// What all segments and the tail hold of a step, and of rows without one.
async fn census(store: &Store, step: i64) -> (u64, u64) {
    let snapshot = store.snapshot();
    let spans = &snapshot.tables[&Table::Spans];
    let mut all: Vec<Census> = spans.tail.iter().map(|batch| Census::of(Table::Spans, batch).unwrap()).collect();
    for segment in &spans.segments {
        all.push(snapshot.census(segment).await.unwrap());
    }
    let sum = |of: &dyn Fn(&Census) -> u64| all.iter().fold(0u64, |sum, census| sum.wrapping_add(of(census)));
    (sum(&|census| census.step(step)), sum(&|census| census.unnamed(i64::MIN, i64::MAX)))
}

#[tokio::test]
async fn the_census_of_a_step_changes_with_its_rows_and_with_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let unnamed = |n| spans_with("engine", n, 5, |span| span.step = None);
    for i in 0..4 {
        store.append(Table::Spans, spans("a", i * 50, 50)).await.unwrap();
        store.append(Table::Spans, unnamed(10_000 + i * 5)).await.unwrap();
    }
    let in_tail = census(&store, 1).await;
    assert!(in_tail.0 != 0 && in_tail.1 != 0);
    store.flush().await.unwrap();
    assert_eq!(census(&store, 1).await, in_tail, "in segments");
    let zero = census(&store, 0).await;
    store.append(Table::Spans, spans("a", 200, 50)).await.unwrap();
    store.flush().await.unwrap();
    store.append(Table::Spans, spans("a", 0, 50)).await.unwrap();
    store.compact().await.unwrap();
    assert_eq!(census(&store, 1).await, in_tail, "merged, beside rows of another step and repeated ones");
    store.close().await.unwrap();
    let store = open(dir.path()).await;
    assert_eq!((census(&store, 1).await, census(&store, 0).await), (in_tail, zero), "after a restart");
    store.append(Table::Spans, spans_with("a", 5_000, 1, |span| span.step = Some(1))).await.unwrap();
    assert_ne!(census(&store, 1).await.0, in_tail.0, "one more row");
    assert_eq!(census(&store, 0).await, zero);
    // A span that was open and is closed.
    store.append(Table::Spans, open_spans("a", 700, 1)).await.unwrap();
    let open = census(&store, 7).await;
    store.append(Table::Spans, spans("a", 700, 1)).await.unwrap();
    assert_ne!(census(&store, 7).await, open);
}

/// Spans of a step may be below one that began long before it and ends long after it.
#[test]
fn a_census_knows_of_what_goes_on_all_the_time() {
    const MINUTE: i64 = 60_000_000_000;
    let census = |start: i64, end: Option<i64>| {
        let batch = spans_with("a", 0, 1, |span| {
            (span.step, span.start_ns, span.end_ns) = (None, start * MINUTE, end.map(|end| end * MINUTE));
        });
        Census::of(Table::Spans, &batch).unwrap()
    };
    let at = |census: &Census, minute: i64| census.unnamed(minute * MINUTE, (minute + 1) * MINUTE);
    let closed = census(10, Some(100));
    let during = at(&closed, 50);
    assert!(during != 0 && at(&closed, 12) == during && at(&closed, 98) == during);
    assert_eq!((at(&closed, 5), at(&closed, 102)), (0, 0));
    let open = census(10, None);
    assert_eq!(at(&open, 50), during, "its end changes nothing for those in between");
    assert_ne!(at(&open, 102), at(&closed, 102));
    assert_ne!(at(&census(11, Some(100)), 50), during);
}

#[tokio::test]
async fn what_was_worked_out_from_a_run_goes_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for run in ["a", "../b"] {
        store.append(Table::Spans, spans(run, 0, 10)).await.unwrap();
        store.snapshot().keep_derived(run, "x", run.as_bytes().to_vec()).await;
    }
    store.flush().await.unwrap();
    assert_eq!(store.snapshot().derived("../b", "x").await.as_deref(), Some(&b"../b"[..]));
    assert!(store.delete_run("../b").await.unwrap());
    assert_eq!(store.snapshot().derived("../b", "x").await, None);
    store.snapshot().keep_derived("../b", "late", vec![1]).await;
    drop(store);
    let reader = ReadOnlyStore::open(dir.path()).await.unwrap();
    assert_eq!(reader.snapshot().derived("a", "x").await.as_deref(), Some(&b"a"[..]));
    reader.snapshot().keep_derived("a", "x", vec![]).await;
    assert_eq!(reader.snapshot().derived("a", "x").await.as_deref(), Some(&b"a"[..]), "readers change nothing");
    let store = open(dir.path()).await;
    for _ in 0..200 {
        if store.snapshot().derived("../b", "late").await.is_none() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert_eq!(store.snapshot().derived("../b", "late").await, None, "of a run that is no longer there");
    assert!(store.snapshot().derived("a", "x").await.is_some());
}
