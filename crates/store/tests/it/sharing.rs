//! Small runs share segments.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use rollscope_model::Table;
use rollscope_model::build::{ConversationsBuilder, NewConversation, NewRun, RunsBuilder};
use rollscope_model::read::{Text, column};
use rollscope_store::{ReadOnlyStore, SnapshotSource, Store};

use crate::{batches, expected, open, open_spans, seen, spans};

/// Names that sort as their numbers do.
fn name(run: u64) -> String {
    format!("run {run:05}")
}

/// One span of each run.
async fn one_span_each(store: &Store, runs: std::ops::Range<u64>) {
    for run in runs {
        store.append(Table::Spans, spans(&name(run), run, 1)).await.unwrap();
    }
}

fn of_each(runs: impl IntoIterator<Item = u64>) -> Vec<(String, u64, String)> {
    runs.into_iter().flat_map(|run| expected(&name(run), run..run + 1)).collect()
}

fn files(store: &Store, table: Table) -> usize {
    store.snapshot().tables[&table].segments.len()
}

/// Rows of each run, as the manifest has them.
fn parts(store: &Store, table: Table) -> BTreeMap<String, u64> {
    let mut rows = BTreeMap::new();
    for part in store.snapshot().tables[&table].segments.iter().flat_map(|segment| segment.parts()) {
        *rows.entry(part.run_id.to_string()).or_default() += part.rows;
    }
    rows
}

#[tokio::test]
async fn many_small_runs_share_files_from_the_first_flush() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    one_span_each(&store, 0..2500).await;
    store.append(Table::Spans, spans("large", 10_000, 5000)).await.unwrap();
    store.flush().await.unwrap();
    assert_eq!(files(&store, Table::Spans), 4, "three of 1024 runs at most, and one of the large run");
    let all = [expected("large", 10_000..15_000), of_each(0..2500)].concat();
    assert_eq!(seen(&store), all);
    assert_eq!(parts(&store, Table::Spans).len(), 2501);
    let snapshot = store.snapshot();
    let of_run =
        |run: &str| snapshot.tables[&Table::Spans].segments.iter().filter_map(|s| s.part(run)).collect::<Vec<_>>();
    let part = of_run("run 01234")[0];
    assert_eq!((part.rows, part.steps), (1, Some((12, 12))));
    assert_eq!(part.max_time - part.min_time, 500_000);
    assert!(of_run("run 0").is_empty() && of_run("").is_empty());
    // A row that comes again is recognised, whoever it shares its file with.
    let again = store.append(Table::Spans, spans(&name(7), 7, 1)).await.unwrap();
    assert_eq!((again.accepted, again.duplicates), (0, 1));
    // A small commit does not write down what all runs have.
    let journal = || std::fs::metadata(dir.path().join("commits.log")).unwrap();
    let before = journal();
    store.append(Table::Spans, spans("large", 15_000, 1)).await.unwrap();
    store.flush().await.unwrap();
    let all = [all[..5000].to_vec(), expected("large", 15_000..15_001), all[5000..].to_vec()].concat();
    let (after, whole) = (journal(), before.len());
    assert!(whole > 100_000 && after.ino() == before.ino(), "{whole} bytes");
    assert!(after.len() - whole < 10_000, "{} bytes for one row", after.len() - whole);
    drop(store);
    assert_eq!(seen(&open(dir.path()).await), all);
    assert_eq!(seen(&ReadOnlyStore::open(dir.path()).await.unwrap()), all);
}

#[tokio::test]
async fn runs_that_come_one_by_one_are_put_together_later() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for run in 0..40 {
        one_span_each(&store, run..run + 1).await;
        store.flush().await.unwrap();
    }
    assert_eq!(files(&store, Table::Spans), 40);
    store.compact().await.unwrap();
    assert_eq!(files(&store, Table::Spans), 1);
    assert_eq!(seen(&store), of_each(0..40));
    // It is not written again for nothing.
    let before = store.snapshot().tables[&Table::Spans].segments[0].path.clone();
    store.compact().await.unwrap();
    assert_eq!(store.snapshot().tables[&Table::Spans].segments[0].path, before);
    // A run that grows gets a file of its own, with what it had in the shared one.
    for i in 0..5 {
        store.append(Table::Spans, spans(&name(3), 1000 + i * 1000, 1000)).await.unwrap();
        store.flush().await.unwrap();
    }
    store.compact().await.unwrap();
    let large = [expected(&name(3), 3..4), expected(&name(3), 1000..6000)].concat();
    let all = [of_each(0..3), large, of_each(4..40)].concat();
    assert_eq!(seen(&store), all);
    assert_eq!(files(&store, Table::Spans), 2);
    drop(store);
    assert_eq!(seen(&open(dir.path()).await), all);
}

#[tokio::test]
async fn a_deleted_run_leaves_the_file_that_it_shares() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let picture = store.media_put(b"of the deleted run".to_vec()).await.unwrap();
    let kept = store.media_put(b"of another".to_vec()).await.unwrap();
    let mut b = ConversationsBuilder::default();
    for run in 0..20 {
        let media = if run == 5 { &picture } else { &kept };
        let messages = format!(r#"[{{"type":"image","media":"{media}"}}]"#);
        let (run_id, id) = (name(run), format!("conversation {run}"));
        b.push(&NewConversation {
            run_id: &run_id,
            id: &id,
            messages: &messages,
            media_count: 1,
            ..Default::default()
        });
    }
    store.append(Table::Conversations, b.finish().unwrap()).await.unwrap();
    one_span_each(&store, 0..20).await;
    store.flush().await.unwrap();
    assert_eq!((files(&store, Table::Spans), files(&store, Table::Conversations)), (1, 1));
    // Open spans, which a flush carries along, and rows in the tail go too.
    store.append(Table::Spans, open_spans(&name(5), 5000, 2)).await.unwrap();
    store.flush().await.unwrap();
    store.append(Table::Spans, spans(&name(5), 6000, 2)).await.unwrap();
    assert!(store.delete_run(&name(5)).await.unwrap());
    assert!(!store.delete_run(&name(5)).await.unwrap());
    let left = of_each((0..20).filter(|run| *run != 5));
    assert_eq!(seen(&store), left);
    let rows: usize = batches(&store, Table::Conversations).iter().map(|b| b.num_rows()).sum();
    assert_eq!(rows, 19);
    assert_eq!(store.media_get(&picture).await.unwrap(), None);
    assert!(store.media_get(&kept).await.unwrap().is_some());
    // What comes for the run afterwards is kept.
    store.append(Table::Spans, spans(&name(5), 5, 1)).await.unwrap();
    assert_eq!(seen(&store), of_each(0..20));
    drop(store);
    assert_eq!(seen(&open(dir.path()).await), of_each(0..20));
    // Also without its manifest.
    for file in ["commits.log", "manifest.json"] {
        std::fs::remove_file(dir.path().join(file)).unwrap();
    }
    let rebuilt = open(dir.path()).await;
    assert_eq!(seen(&rebuilt), of_each(0..20));
    assert_eq!(parts(&rebuilt, Table::Spans).len(), 19, "the last one is in the log");
}

fn runs_row(run: u64, status: &str) -> arrow::array::RecordBatch {
    let mut b = RunsBuilder::default();
    b.push(&NewRun { run_id: &name(run), started_ns: crate::T0, status: Some(status), ..NewRun::default() });
    b.finish().unwrap()
}

#[tokio::test]
async fn a_row_is_replaced_in_a_shared_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for run in 0..10 {
        store.append(Table::Runs, runs_row(run, "running")).await.unwrap();
    }
    store.append(Table::Spans, open_spans(&name(0), 0, 1)).await.unwrap();
    one_span_each(&store, 1..10).await;
    store.flush().await.unwrap();
    store.append(Table::Runs, runs_row(4, "finished")).await.unwrap();
    store.append(Table::Spans, spans(&name(0), 0, 1)).await.unwrap();
    let status = |store: &Store| {
        let mut rows = BTreeMap::new();
        for batch in batches(store, Table::Runs) {
            let (runs, status): (Text, Text) = (column(&batch, "run_id").unwrap(), column(&batch, "status").unwrap());
            for row in 0..batch.num_rows() {
                assert_eq!(rows.insert(runs.at(row).to_string(), status.at(row).to_string()), None);
            }
        }
        rows
    };
    for _ in 0..2 {
        let found = status(&store);
        assert_eq!(found.len(), 10);
        assert!(found.iter().all(|(run, status)| *status == if *run == name(4) { "finished" } else { "running" }));
        assert_eq!(seen(&store), of_each(0..10));
        store.flush().await.unwrap();
    }
}

#[tokio::test]
async fn a_run_is_not_deleted_while_a_file_that_it_shares_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    one_span_each(&store, 0..10).await;
    store.close().await.unwrap();
    drop(store);
    let file = std::fs::read_dir(dir.path().join("spans/run=_")).unwrap().next().unwrap().unwrap().path();
    let hidden = dir.path().join("hidden");
    std::fs::rename(&file, &hidden).unwrap();
    std::os::unix::fs::symlink(&file, &file).unwrap();
    let store = open(dir.path()).await;
    store.append(Table::Spans, spans(&name(3), 100, 1)).await.unwrap();
    let refused = store.delete_run(&name(3)).await.unwrap_err().to_string();
    assert!(refused.contains("run=_") && refused.contains("restart"), "{refused}");
    assert!(store.health().writable);
    assert!(store.delete_run(&name(30)).await.is_ok_and(|found| !found));
    drop(store);
    std::fs::rename(&hidden, &file).unwrap();
    let store = open(dir.path()).await;
    assert_eq!(seen(&store).len(), 11);
    assert!(store.delete_run(&name(3)).await.unwrap());
    assert_eq!(seen(&store), of_each((0..10).filter(|run| *run != 3)));
}
