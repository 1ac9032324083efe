//! What was worked out is kept beside the rows, and thrown away when they change.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use rollscope_answers::{Answers, Line};
use rollscope_demo::{DemoOptions, Generator};
use rollscope_model::Table;
use rollscope_query::QueryLimits;
use rollscope_store::{SnapshotSource, Store, StoreOptions};

async fn open(dir: &Path) -> (Store, Answers) {
    let store = Store::open(StoreOptions { dir: dir.to_path_buf(), ..StoreOptions::default() }).await.unwrap();
    let answers = Answers::new(Arc::new(store.clone()), QueryLimits::default()).unwrap();
    (store, answers)
}

/// Appends a step, but for so many of its last spans, which are returned.
async fn append(store: &Store, generator: &mut Generator, step: u64, but: usize) -> arrow::array::RecordBatch {
    let data = generator.step(step).unwrap();
    let spans = data.batch(Table::Spans).unwrap().clone();
    let first = spans.num_rows() - but;
    store.append(Table::Spans, spans.slice(0, first)).await.unwrap();
    store.append(Table::Samples, data.batch(Table::Samples).unwrap().clone()).await.unwrap();
    spans.slice(first, but)
}

/// What is kept, by name.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let folder = dir.join("derived/run=demo");
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut out: Vec<_> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap())
        })
        .collect();
    out.sort();
    out
}

fn names(files: &[(String, Vec<u8>)]) -> Vec<&str> {
    files.iter().map(|(name, _)| name.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_survive_a_restart_and_follow_the_rows() {
    let dir = tempfile::tempdir().unwrap();
    let mut generator = Generator::new(DemoOptions::load(3, 6, 8, 4));
    let (store, answers) = open(dir.path()).await;
    let mut late = None;
    for step in 0..6 {
        let rest = append(&store, &mut generator, step, if step == 2 { 5 } else { 0 }).await;
        late = if step == 2 { Some(rest) } else { late };
    }
    let report = answers.step_report_json("demo", Some(2)).await.unwrap();
    let findings = answers.run_findings_json("demo").await.unwrap();
    let before = files(dir.path());
    assert_eq!(
        names(&before),
        ["findings", "report=2", "step=0", "step=1", "step=2", "step=3", "step=4", "step=5"],
        "of rows that are in the log only"
    );
    store.close().await.unwrap();

    // Rows are in segments now. What is found is used: nothing is written again.
    let (store, answers) = open(dir.path()).await;
    for name in ["findings", "report=2"] {
        std::fs::remove_file(dir.path().join("derived/run=demo").join(name)).unwrap();
    }
    let written = |name: &str| {
        let file = dir.path().join("derived/run=demo").join(name);
        file.metadata().unwrap().modified().unwrap()
    };
    let times: Vec<_> = (0..6).map(|step| written(&format!("step={step}"))).collect();
    store.compact().await.unwrap();
    assert_eq!(answers.step_report_json("demo", Some(2)).await.unwrap(), report);
    assert_eq!(answers.run_findings_json("demo").await.unwrap(), findings);
    assert_eq!((0..6).map(|step| written(&format!("step={step}"))).collect::<Vec<_>>(), times);

    // A damaged file is nothing.
    std::fs::write(dir.path().join("derived/run=demo/step=4"), &before[6].1[..100]).unwrap();
    let (_, fresh) = (store.snapshot(), Answers::new(Arc::new(store.clone()), QueryLimits::default()).unwrap());
    std::fs::remove_file(dir.path().join("derived/run=demo/findings")).unwrap();
    assert_eq!(fresh.run_findings_json("demo").await.unwrap(), findings);

    // Late rows of one step change the answers about it, and what is said of the run.
    store.append(Table::Spans, late.unwrap()).await.unwrap();
    let spans = |report: &[u8]| {
        let report: serde_json::Value = serde_json::from_slice(report).unwrap();
        report["health"]["data"]["spans"].as_u64().unwrap()
    };
    let again = answers.step_report_json("demo", Some(2)).await.unwrap();
    assert_eq!(spans(&again), spans(&report) + 5);
    assert_ne!(written("step=2"), times[2]);
    assert_eq!(written("step=5"), times[5], "steps that are far away in time");
    let now = answers.run_findings("demo").await.unwrap();
    assert_eq!(serde_json::to_vec(&now).unwrap(), answers.run_findings_json("demo").await.unwrap());

    assert!(store.delete_run("demo").await.unwrap());
    assert!(answers.run_findings_json("demo").await.is_err());
    assert_eq!(files(dir.path()), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_of_a_list_are_kept_step_by_step() {
    let dir = tempfile::tempdir().unwrap();
    let mut generator = Generator::new(DemoOptions::load(4, 3, 8, 4));
    let (store, answers) = open(dir.path()).await;
    let mut late = None;
    for step in 0..3 {
        let rest = append(&store, &mut generator, step, if step == 1 { 2 } else { 0 }).await;
        late = if step == 1 { Some(rest) } else { late };
    }
    let window = |step: i64| {
        let spans = store.snapshot().tables[&Table::Spans].tail.clone();
        let rows = spans.iter().flat_map(|batch| {
            let column = |name: &str| batch.column_by_name(name).unwrap().as_primitive::<Int64Type>().clone();
            let (steps, starts, ends) = (column("step"), column("start_ns"), column("end_ns"));
            (0..batch.num_rows())
                .filter(|row| steps.is_valid(*row) && steps.value(*row) == step)
                .map(|row| (starts.value(row), ends.value(row)))
                .collect::<Vec<_>>()
        });
        rows.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap()
    };
    let lines = answers.lines("demo").await.unwrap();
    assert_eq!((lines.known.len(), lines.missing.as_slice()), (0, &[0, 1, 2][..]));
    let fresh = (0..3).map(|step| Line { step, window: window(step), text: vec![step as u8] });
    answers.keep_lines(lines, fresh.collect()).await;
    store.close().await.unwrap();

    let (store, answers) = open(dir.path()).await;
    let lines = answers.lines("demo").await.unwrap();
    assert_eq!((lines.known.len(), lines.missing.len()), (3, 0), "after a restart");
    store.append(Table::Spans, late.unwrap()).await.unwrap();
    let lines = answers.lines("demo").await.unwrap();
    assert_eq!(lines.missing, [1], "the step that got rows");
    assert_eq!(lines.known.into_values().map(|(_, text)| text).collect::<Vec<_>>(), [[0], [2]]);
}
