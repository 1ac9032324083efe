//! Answers over a large step, each beside the time of reading the columns it needs; its report, first, again and after a
//! restart; and the findings of a long run, when its steps are worked out first and when they were before.

use std::sync::Arc;
use std::time::Instant;

use rollscope_answers::Answers;
use rollscope_answers::breakdown::breakdown;
use rollscope_answers::critical_path::{Divided, critical_path, walk};
use rollscope_answers::difference::{Shape, Side, difference};
use rollscope_answers::idle::idle;
use rollscope_answers::phases::phases;
use rollscope_answers::samples::sample_times;
use rollscope_answers::stragglers::stragglers;
use rollscope_demo::{DemoOptions, Generator};
use rollscope_model::Table;
use rollscope_query::QueryLimits;
use rollscope_store::{Store, StoreOptions};

use crate::report::{Report, thousands};
use crate::server::Server;

/// For reading a million spans, for a report about them, and for what is known already.
const READING_LIMIT_S: f64 = 1.0;
const REPORT_LIMIT_S: f64 = 1.5;
const AGAIN_LIMIT_S: f64 = 0.1;
/// For who waits for whom.
const HANG_LIMIT_S: f64 = 1.0;
/// For the findings of ten million spans.
const FINDINGS_LIMIT_S: f64 = 1.0;

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        one_step(report).await?;
        long_run(report).await
    })
}

async fn store(dir: &std::path::Path, options: DemoOptions) -> anyhow::Result<(Arc<Store>, usize)> {
    let store = Arc::new(Store::open(StoreOptions { dir: dir.to_path_buf(), ..StoreOptions::default() }).await?);
    let mut generator = Generator::new(options);
    let mut spans = 0;
    for step in 0..generator.options().steps {
        let data = generator.step(step)?;
        spans += data.rows(Table::Spans);
        for (table, batch) in data.batches.into_iter().filter(|(t, _)| matches!(t, Table::Spans | Table::Samples)) {
            // In messages of a usual size.
            let mut at = 0;
            while at < batch.num_rows() {
                let rows = (batch.num_rows() - at).min(20_000);
                store.append(table, batch.slice(at, rows)).await?;
                at += rows;
            }
        }
    }
    store.flush().await?;
    Ok((store, spans))
}

async fn one_step(report: &mut Report) -> anyhow::Result<()> {
    let samples = if crate::full() { 11_000 } else { 1_100 };
    let dir = tempfile::tempdir()?;
    let (store, spans) = store(dir.path(), DemoOptions::load(1, 1, samples, 8)).await?;
    let engine = Answers::new(store.clone(), QueryLimits::default())?;
    let started = Instant::now();
    let mut data = engine.step_data("demo", Some(0)).await?;
    let reading = started.elapsed().as_secs_f64();
    let per_million = |s: f64| s * 1e6 / spans as f64;
    println!("one step with {} spans, read from the store in {reading:.2} s", thousands(spans as f64));
    let mut row = |name: &str, seconds: f64| {
        report.row(
            &format!("{name}, seconds per million spans"),
            format!("{:.3}", per_million(seconds)),
            "reading its columns",
            format!("{:.3}", per_million(reading)),
            seconds / reading,
            "< 3, and < 0.5 s",
        );
    };
    let timed = |work: &mut dyn FnMut()| {
        let started = Instant::now();
        work();
        started.elapsed().as_secs_f64()
    };
    let mut times = Default::default();
    row("parts of every sample", timed(&mut || times = sample_times(&mut data)));
    let mut shares = Default::default();
    row("breakdown", timed(&mut || shares = breakdown(&data)));
    let mut path = Default::default();
    let mut segments = Vec::new();
    row(
        "critical path",
        timed(&mut || {
            segments = walk(&data);
            path = critical_path(&data, &segments, &Divided::of(&times.requests));
        }),
    );
    let mut tail = Default::default();
    row("stragglers", timed(&mut || tail = stragglers(&data, &times)));
    row("idle", timed(&mut || drop(idle(&data, &phases(&data, &[], &segments), tail.window))));
    let shape = Shape { step: Some(0), wall_s: 1.0, path: path.totals.clone(), names: shares.by_name.clone() };
    let side = || Side { name: "step 0".into(), steps: vec![&shape], others: Vec::new() };
    row("difference", timed(&mut || drop(difference(&side(), &side()))));
    report.row(
        "reading the columns of a step, seconds per million spans",
        format!("{:.2}", per_million(reading)),
        "limit",
        format!("{READING_LIMIT_S}"),
        per_million(reading) / READING_LIMIT_S,
        "<= 1",
    );
    let mut row = |name: &str, seconds: f64, limit: f64| {
        report.row(name, format!("{seconds:.3}"), "limit", format!("{limit}"), seconds / limit, "<= 1");
    };
    let first = report_s(&engine).await?;
    row("report of a step, seconds per million spans, first", per_million(first), REPORT_LIMIT_S);
    row("report of a step, seconds, again", report_s(&engine).await?, AGAIN_LIMIT_S);
    store.close().await?;
    let store = Arc::new(Store::open(StoreOptions { dir: dir.path().to_path_buf(), ..StoreOptions::default() }).await?);
    let engine = Answers::new(store.clone(), QueryLimits::default())?;
    row("report of a step, seconds, after a restart", report_s(&engine).await?, AGAIN_LIMIT_S);
    store.close().await?;
    let seconds = hang_s(dir.path(), &mut data.end)?;
    row("who waits for whom, in the middle of the step, seconds per million spans", per_million(seconds), HANG_LIMIT_S);
    Ok(())
}

/// The median of five. At the median end of its spans, half of them are usual and some are open.
fn hang_s(dir: &std::path::Path, ends: &mut [i64]) -> anyhow::Result<f64> {
    let server = Server::start(dir)?;
    let middle = ends.len() / 2;
    let at = *ends.select_nth_unstable(middle).1;
    let mut times = Vec::new();
    for _ in 0..5 {
        let started = Instant::now();
        server.get(&format!("/api/v1/runs/demo/hang?at={}.{:09}", at / 1_000_000_000, at % 1_000_000_000))?;
        times.push(started.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    server.stop()?;
    Ok(times[2])
}

async fn report_s(answers: &Answers) -> anyhow::Result<f64> {
    let started = Instant::now();
    answers.step_report_json("demo", Some(0)).await?;
    Ok(started.elapsed().as_secs_f64())
}

async fn long_run(report: &mut Report) -> anyhow::Result<()> {
    let (steps, samples) = if crate::full() { (100, 1_100) } else { (20, 220) };
    let dir = tempfile::tempdir()?;
    let (store, spans) = store(dir.path(), DemoOptions::load(2, steps, samples, 8)).await?;
    let engine = Answers::new(
        store.clone(),
        QueryLimits { timeout: std::time::Duration::from_secs(300), ..QueryLimits::default() },
    )?;
    let started = Instant::now();
    let found = engine.run_findings("demo").await?;
    let cold = started.elapsed().as_secs_f64();
    anyhow::ensure!(found.steps.len() == steps as usize, "{} steps", found.steps.len());
    println!("findings of {} spans, every step worked out first: {cold:.2} s", thousands(spans as f64));
    let scale = 10e6 / spans as f64;
    let mut row = |name: &str, seconds: f64, limit: f64| {
        report.row(name, format!("{seconds:.3}"), "limit", format!("{limit}"), seconds / limit, "<= 1");
    };
    // A new process, which has the steps on the disk and nothing in memory.
    let engine = Answers::new(store.clone(), QueryLimits::default())?;
    let started = Instant::now();
    engine.run_findings_json("demo").await?;
    let name = "findings of a run whose steps were worked out, seconds per 10 million spans";
    row(name, started.elapsed().as_secs_f64() * scale, FINDINGS_LIMIT_S);
    let started = Instant::now();
    engine.run_findings_json("demo").await?;
    row("findings of a run, seconds, again", started.elapsed().as_secs_f64(), AGAIN_LIMIT_S);
    store.close().await?;
    Ok(())
}
