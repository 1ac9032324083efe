//! Rows: durable, visible, and there once.

use std::collections::BTreeMap;

use rollscope_model::Table;
use rollscope_model::build::{NewSample, SamplesBuilder};
use rollscope_store::{ReadOnlyStore, SnapshotSource, Store, StoreError, StoreOptions};

use crate::{expected, open, open_spans, open_with, seen, spans, spans_with};

#[tokio::test]
async fn what_is_appended_is_visible_at_once_and_after_a_flush_and_after_opening_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let done = store.append(Table::Spans, spans("a", 0, 100)).await.unwrap();
    assert_eq!((done.accepted, done.duplicates), (100, 0));
    assert_eq!(seen(&store), expected("a", 0..100));
    store.flush().await.unwrap();
    assert_eq!(store.snapshot().tables[&Table::Spans].segments.len(), 1);
    store.append(Table::Spans, spans("a", 100, 50)).await.unwrap();
    assert_eq!(seen(&store), expected("a", 0..150));
    store.close().await.unwrap();
    drop(store);
    let store = open(dir.path()).await;
    assert_eq!(seen(&store), expected("a", 0..150));
}

#[tokio::test]
async fn without_a_close_the_log_brings_everything_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.append(Table::Spans, spans("a", 0, 100)).await.unwrap();
    store.flush().await.unwrap();
    store.append(Table::Spans, spans("a", 100, 100)).await.unwrap();
    drop(store);
    let store = open(dir.path()).await;
    assert_eq!(seen(&store), expected("a", 0..200));
}

#[tokio::test]
async fn the_same_span_counts_once_wherever_it_already_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.append(Table::Spans, spans("a", 0, 10)).await.unwrap();
    let again = store.append(Table::Spans, spans("a", 5, 10)).await.unwrap();
    assert_eq!((again.accepted, again.duplicates), (5, 5), "in the tail");
    store.flush().await.unwrap();
    let again = store.append(Table::Spans, spans("a", 0, 20)).await.unwrap();
    assert_eq!((again.accepted, again.duplicates), (5, 15), "in a segment just written");
    assert_eq!(seen(&store), expected("a", 0..20));
    store.close().await.unwrap();
    drop(store);
    let store = open(dir.path()).await;
    let again = store.append(Table::Spans, spans("a", 0, 20)).await.unwrap();
    assert_eq!(again.duplicates, 20, "in a segment of an earlier process");
    assert_eq!(seen(&store), expected("a", 0..20));
}

#[tokio::test]
async fn an_open_span_is_replaced_by_its_end_wherever_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.append(Table::Spans, open_spans("a", 0, 4)).await.unwrap();
    assert_eq!(seen(&store)[0].2, "open");
    store.append(Table::Spans, spans("a", 0, 1)).await.unwrap();
    assert_eq!(seen(&store)[0].2, "closed");
    // A late report of an open span does not reopen it.
    assert_eq!(store.append(Table::Spans, open_spans("a", 0, 1)).await.unwrap().duplicates, 1);
    // Open spans stay out of segments: they go on in the next log.
    store.flush().await.unwrap();
    assert_eq!(seen(&store).len(), 4);
    store.append(Table::Spans, spans("a", 1, 1)).await.unwrap();
    // A close writes what is still open; the next process replaces it.
    store.close().await.unwrap();
    drop(store);
    let store = open(dir.path()).await;
    let states: Vec<String> = seen(&store).into_iter().map(|r| r.2).collect();
    assert_eq!(states, ["closed", "closed", "open", "open"]);
    store.append(Table::Spans, spans("a", 2, 1)).await.unwrap();
    let states: Vec<String> = seen(&store).into_iter().map(|r| r.2).collect();
    assert_eq!(states, ["closed", "closed", "closed", "open"]);
    store.flush().await.unwrap();
    assert!(store.snapshot().tables[&Table::Spans].replaced.is_empty(), "the segment was written again");
    let states: Vec<String> = seen(&store).into_iter().map(|r| r.2).collect();
    assert_eq!(states, ["closed", "closed", "closed", "open"]);
}

#[tokio::test]
async fn an_end_that_reports_another_start_replaces_the_open_span() {
    let late = |n: u64| spans_with("a", n, 1, |s| s.start_ns += 3_600_000_000_000);
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.append(Table::Spans, open_spans("a", 0, 2)).await.unwrap();
    store.append(Table::Spans, late(0)).await.unwrap();
    assert_eq!(seen(&store).len(), 2, "in memory");
    store.close().await.unwrap();
    drop(store);
    let store = open(dir.path()).await;
    store.append(Table::Spans, late(1)).await.unwrap();
    assert_eq!(seen(&store), expected("a", 0..2), "in a segment");
    store.flush().await.unwrap();
    assert_eq!(seen(&store), expected("a", 0..2), "in a segment that was written again");
    assert!(store.snapshot().tables[&Table::Spans].replaced.is_empty());
}

#[tokio::test]
async fn the_newest_row_of_a_sample_wins() {
    let sample = |reward: f64| {
        let mut b = SamplesBuilder::default();
        b.push(&NewSample {
            run_id: "a",
            step: Some(1),
            sample_id: "7",
            split: "train",
            reward: Some(reward),
            ..NewSample::default()
        });
        b.finish().unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.append(Table::Samples, sample(0.0)).await.unwrap();
    store.append(Table::Samples, sample(0.5)).await.unwrap();
    let tail = store.snapshot().tables[&Table::Samples].tail.clone();
    assert_eq!(tail.iter().map(|b| b.num_rows()).sum::<usize>(), 1);
    store.flush().await.unwrap();
    store.append(Table::Samples, sample(1.0)).await.unwrap();
    assert_eq!(store.snapshot().tables[&Table::Samples].replaced.len(), 1);
    store.flush().await.unwrap();
    let snapshot = store.snapshot();
    let rows: u64 = snapshot.tables[&Table::Samples].segments.iter().map(|s| s.rows).sum();
    assert_eq!(rows, 1);
}

#[tokio::test]
async fn a_second_process_is_refused_by_name_and_readers_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.append(Table::Spans, spans("a", 0, 10)).await.unwrap();
    let Err(error) = Store::open(StoreOptions::at(dir.path())).await else { panic!("two writers") };
    assert!(matches!(error, StoreError::Locked { .. }));
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    let reader = ReadOnlyStore::open(dir.path()).await.unwrap();
    assert_eq!(seen(&reader), expected("a", 0..10));
    store.flush().await.unwrap();
    store.append(Table::Spans, spans("a", 10, 10)).await.unwrap();
    assert_eq!(seen(&ReadOnlyStore::open(dir.path()).await.unwrap()), expected("a", 0..20));
    assert!(matches!(ReadOnlyStore::open(&dir.path().join("no")).await, Err(StoreError::NoStore(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_writers_while_flushing_lose_nothing_and_double_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), |o| o.flush_rows = 500).await;
    let writers: Vec<_> = (0..8u64)
        .map(|w| {
            let store = store.clone();
            tokio::spawn(async move {
                for i in 0..50 {
                    let batch = spans("a", w * 1000 + i * 20, 20);
                    store.append(Table::Spans, batch.clone()).await.unwrap();
                    if i % 5 == 0 {
                        assert_eq!(store.append(Table::Spans, batch).await.unwrap().duplicates, 20);
                    }
                }
            })
        })
        .collect();
    for w in writers {
        w.await.unwrap();
    }
    let mut all: Vec<_> = (0..8).flat_map(|w| expected("a", w * 1000..w * 1000 + 1000)).collect();
    all.sort();
    assert_eq!(seen(&store), all);
    drop(store);
    assert_eq!(seen(&open(dir.path()).await), all);
}

#[tokio::test]
async fn many_single_spans_become_few_batches() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.append(Table::Spans, open_spans("a", 0, 300)).await.unwrap();
    for i in 0..300 {
        store.append(Table::Spans, spans("a", i, 1)).await.unwrap();
    }
    let tail = store.snapshot().tables[&Table::Spans].tail.len();
    assert!(tail < 80, "{tail} batches");
    assert_eq!(seen(&store), expected("a", 0..300));
}

#[tokio::test]
async fn attribute_types_are_known() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.append(Table::Spans, spans("a", 0, 3)).await.unwrap();
    let types =
        |store: &Store| -> BTreeMap<String, u8> { store.snapshot().attr_types[&Table::Spans]["end_attrs"].clone() };
    let wanted: BTreeMap<String, u8> = [("n".into(), 2), ("text".into(), 1)].into();
    assert_eq!(types(&store), wanted);
    store.close().await.unwrap();
    drop(store);
    assert_eq!(types(&open(dir.path()).await), wanted);
}
