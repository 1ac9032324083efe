//! A row is there once: repeated while a flush commits, under two runs, after a crash in the middle of a flush.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::RecordBatch;
use arrow::array::cast::AsArray;
use arrow::datatypes::{Float64Type, Int32Type, Int64Type};
use rollscope_model::Table;
use rollscope_model::build::{MetricsBuilder, NewMetric, NewPoint, SeriesBuilder};
use rollscope_store::{SnapshotSource, Store};

use crate::damage::copy;
use crate::{T0, batches, expected, open, open_spans, open_with, seen, spans};

/// `n` metrics of one step of a run. The same `first` gives the same rows, with another value.
pub fn metrics(run: &str, first: i64, n: i64, value: f64) -> RecordBatch {
    let mut b = MetricsBuilder::default();
    for i in first..first + n {
        let name = format!("m{i}");
        b.push(&NewMetric { run_id: run, step: Some(1), time_ns: T0 + i, name: &name, value, source: None });
    }
    b.finish().unwrap()
}

pub fn series(run: &str, first: i64, n: i64) -> RecordBatch {
    let mut b = SeriesBuilder::default();
    for i in first..first + n {
        let labels = format!("{{\"n\":\"{}\"}}", i % 10);
        let time_ns = T0 + i * 1_000_000;
        let value = if i % 7 == 0 { f64::NAN } else { i as f64 };
        b.push(&NewPoint { run_id: run, target: "t", name: "up", labels: &labels, kind: "gauge", time_ns, value });
    }
    b.finish().unwrap()
}

pub fn rows(source: &dyn SnapshotSource, table: Table) -> usize {
    batches(source, table).iter().map(RecordBatch::num_rows).sum()
}

/// Every value a reader sees, by the name of its metric.
pub fn values(source: &dyn SnapshotSource) -> BTreeMap<String, Vec<f64>> {
    let mut found: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for batch in batches(source, Table::Metrics) {
        let names = batch.column_by_name("name").unwrap().as_dictionary::<Int32Type>().clone();
        let values = batch.column_by_name("value").unwrap().as_primitive::<Float64Type>().clone();
        for row in 0..batch.num_rows() {
            let name = names.values().as_string::<i32>().value(names.keys().value(row) as usize);
            found.entry(name.to_string()).or_default().push(values.value(row));
        }
    }
    found
}

/// What a client that retries does: rows of the generation that is being written come again, all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rows_sent_again_while_a_flush_commits_are_there_once() {
    const WRITERS: i64 = 4;
    const ROUNDS: i64 = 60;
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let done = Arc::new(AtomicBool::new(false));
    let flusher = tokio::spawn({
        let (store, done) = (store.clone(), done.clone());
        async move {
            while !done.load(Ordering::Relaxed) {
                store.flush().await.unwrap();
                tokio::task::yield_now().await;
            }
        }
    });
    let writers: Vec<_> = (0..WRITERS)
        .map(|w| {
            let store = store.clone();
            tokio::spawn(async move {
                for round in 0..ROUNDS {
                    store.append(Table::Metrics, metrics("a", w * 1000, 20, round as f64)).await.unwrap();
                }
            })
        })
        .collect();
    for w in writers {
        w.await.unwrap();
    }
    done.store(true, Ordering::Relaxed);
    flusher.await.unwrap();
    assert_eq!(store.vitals().deaths(), []);
    let last = vec![(ROUNDS - 1) as f64];
    let wanted: BTreeMap<String, Vec<f64>> =
        (0..WRITERS).flat_map(|w| (w * 1000..w * 1000 + 20).map(|i| (format!("m{i}"), last.clone()))).collect();
    assert_eq!(values(&store), wanted, "as it is served");
    store.flush().await.unwrap();
    assert_eq!(values(&store), wanted, "in segments");
    let segments = store.snapshot().tables[&Table::Metrics].segments.clone();
    assert_eq!(segments.iter().map(|s| s.rows).sum::<u64>(), wanted.len() as u64);
    drop(store);
    assert_eq!(values(&open(dir.path()).await), wanted, "by the next process");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_spans_that_end_while_a_flush_commits_are_there_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for round in 0..40 {
        store.append(Table::Spans, open_spans("a", round * 10, 10)).await.unwrap();
        let (flushed, ended) = tokio::join!(store.flush(), store.append(Table::Spans, spans("a", round * 10, 10)));
        flushed.unwrap();
        assert_eq!(ended.unwrap().accepted, 10);
    }
    assert_eq!(seen(&store), expected("a", 0..400));
    drop(store);
    assert_eq!(seen(&open(dir.path()).await), expected("a", 0..400));
}

#[tokio::test]
async fn the_same_series_rows_count_once_wherever_they_already_are() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.append(Table::Series, series("a", 0, 100)).await.unwrap();
    let again = store.append(Table::Series, series("a", 50, 100)).await.unwrap();
    assert_eq!((again.accepted, again.duplicates), (50, 50), "in the tail");
    store.flush().await.unwrap();
    assert_eq!(store.append(Table::Series, series("a", 0, 150)).await.unwrap().duplicates, 150, "in a segment");
    drop(store);
    let store = open(dir.path()).await;
    assert_eq!(store.append(Table::Series, series("a", 0, 150)).await.unwrap().duplicates, 150, "of another process");
    assert_eq!(rows(&store, Table::Series), 150);
    assert_eq!(store.append(Table::Series, series("b", 0, 150)).await.unwrap().accepted, 150, "another run");
    assert!(store.snapshot().tables[&Table::Series].replaced.is_empty(), "nothing is written again for it");
    // Two values for one time are two rows, as before.
    let mut other = SeriesBuilder::default();
    let (labels, time_ns) = ("{\"n\":\"1\"}", T0 + 1_000_000);
    other.push(&NewPoint { run_id: "a", target: "t", name: "up", labels, kind: "gauge", time_ns, value: 77.0 });
    assert_eq!(store.append(Table::Series, other.finish().unwrap()).await.unwrap().accepted, 1);
    for i in 0..200 {
        store.append(Table::Series, series("c", i, 1)).await.unwrap();
    }
    assert_eq!(store.append(Table::Series, series("c", 0, 200)).await.unwrap().duplicates, 200, "in merged batches");
    store.compact().await.unwrap();
    assert_eq!(rows(&store, Table::Series), 150 + 1 + 150 + 200);
}

/// Segments are on disk, the manifest that names them is not: what a kill in the middle of a flush leaves.
#[tokio::test]
async fn a_kill_in_the_first_flush_doubles_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.append(Table::Series, series("a", 0, 100)).await.unwrap();
    store.append(Table::Metrics, metrics("a", 0, 100, 1.0)).await.unwrap();
    store.append(Table::Spans, spans("a", 0, 100)).await.unwrap();
    let killed = tempfile::tempdir().unwrap();
    copy(dir.path(), killed.path());
    store.flush().await.unwrap();
    for table in ["series", "metrics", "spans"] {
        copy(&dir.path().join(table), &killed.path().join(table));
    }
    // Folders of earlier versions had no manifest before their first flush.
    for has_manifest in [true, false] {
        let again = tempfile::tempdir().unwrap();
        copy(killed.path(), again.path());
        if !has_manifest {
            std::fs::remove_file(again.path().join("manifest.json")).unwrap();
        }
        let store = open(again.path()).await;
        let counts = |store: &Store| [Table::Series, Table::Metrics, Table::Spans].map(|t| rows(store, t));
        assert_eq!(counts(&store), [100; 3], "manifest: {has_manifest}");
        store.compact().await.unwrap();
        assert_eq!(counts(&store), [100; 3], "manifest: {has_manifest}");
    }
}

#[tokio::test]
async fn the_same_span_ids_under_another_run_are_other_spans() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.append(Table::Spans, spans("a", 0, 10)).await.unwrap();
    let second = store.append(Table::Spans, spans("b", 0, 10)).await.unwrap();
    assert_eq!((second.accepted, second.duplicates), (10, 0), "while the first is in the tail");
    store.flush().await.unwrap();
    assert_eq!(store.append(Table::Spans, spans("c", 0, 10)).await.unwrap().accepted, 10);
    // The end of a span closes the one of its own run.
    store.append(Table::Spans, open_spans("d", 0, 1)).await.unwrap();
    store.append(Table::Spans, open_spans("e", 0, 1)).await.unwrap();
    store.append(Table::Spans, spans("e", 0, 1)).await.unwrap();
    let open_ones = |rows: Vec<(String, u64, String)>| rows.into_iter().filter(|r| r.2 == "open").map(|r| r.0);
    assert_eq!(open_ones(seen(&store)).collect::<Vec<_>>(), ["d"]);
    drop(store);
    let store = open(dir.path()).await;
    assert_eq!(seen(&store).len(), 32);
    assert_eq!(open_ones(seen(&store)).collect::<Vec<_>>(), ["d"]);
    assert_eq!(store.append(Table::Spans, spans("b", 0, 10)).await.unwrap().duplicates, 10);
}

/// A row that is replaced may have another time than the one that replaces it.
#[tokio::test]
async fn a_span_whose_end_tells_another_start_is_there_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), |o| o.flush_age_s = 3600).await;
    let later = |first| crate::spans_with("a", first, 1, |s| s.start_ns -= 3_600_000_000_000);
    store.append(Table::Spans, spans("a", 100, 10)).await.unwrap();
    store.append(Table::Spans, open_spans("a", 0, 1)).await.unwrap();
    store.append(Table::Spans, later(0)).await.unwrap();
    store.flush().await.unwrap();
    assert_eq!(seen(&store).len(), 11);
    let times = batches(&store, Table::Spans);
    let first =
        times.iter().flat_map(|b| b.column_by_name("start_ns").unwrap().as_primitive::<Int64Type>().values().to_vec());
    assert_eq!(first.min(), Some(T0 - 3_600_000_000_000));
}
