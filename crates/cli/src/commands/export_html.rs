//! `rollscope export html`: a run of a store as one HTML file that opens from disk.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use arrow::array::RecordBatch;
use futures::StreamExt;
use rollscope_formats::export::PendingFile;
use rollscope_formats::export::html::{Page, Window};
use rollscope_model::Table;
use rollscope_query::columns::{int_column, text_column};
use rollscope_query::{Engine, QueryLimits, sql_text};
use rollscope_store::SnapshotSource;

use crate::args::ExportHtmlArgs;
use crate::output::{count, size};
use crate::place;
use crate::progress::Bar;

/// Spans in one file. Browsers open that; more is what a server is for.
pub const MAX_SPANS: u64 = 2_000_000;

/// Program and version, as written into the files.
pub fn generator() -> String {
    format!("rollscope {}", env!("CARGO_PKG_VERSION"))
}

/// The page that is filled with data.
pub fn template() -> anyhow::Result<String> {
    rollscope_server::page::viewer().context("this build does not include the page; run `make ui` and build again")
}

pub async fn run(args: ExportHtmlArgs) -> anyhow::Result<()> {
    let engine = engine(place::open_for_reading(&args.folder.data).await?)?;
    let runs = column(&engine, "select run_id from runs order by started_ns desc").await?;
    let run = match (args.run, runs.len()) {
        (Some(run), _) => engine.find_run(&run).await.map_err(super::answers::usage)?,
        (None, 1) => runs[0].clone(),
        (None, 0) => anyhow::bail!("{} has no runs", args.folder.data.display()),
        (None, _) => anyhow::bail!("the store has several runs; choose one with --run: {}", list(&runs)),
    };
    let out = args.out.unwrap_or_else(|| PathBuf::from(format!("{}.html", safe_name(&run))));
    let spans = write(&engine, &[(run, args.step)], &out).await?;
    let bytes = std::fs::metadata(&out)?.len();
    println!("{}: {} spans, {}", out.display(), count(spans), size(bytes));
    Ok(())
}

fn list(runs: &[String]) -> String {
    let mut text = runs.iter().take(10).map(|r| format!("{r:?}")).collect::<Vec<_>>().join(", ");
    if runs.len() > 10 {
        text.push_str(&format!(" and {} more", runs.len() - 10));
    }
    text
}

/// A file name out of a run's name: no separators, nothing hidden.
fn safe_name(run: &str) -> String {
    let name: String =
        run.chars().map(|c| if c.is_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' }).collect();
    let name = name.trim_start_matches('.');
    if name.is_empty() { "run".into() } else { name.chars().take(100).collect() }
}

/// An engine for long reads over everything.
pub fn engine(store: impl SnapshotSource + 'static) -> anyhow::Result<Engine> {
    let limits =
        QueryLimits { max_rows: usize::MAX, timeout: Duration::from_secs(24 * 3600), ..QueryLimits::default() };
    Ok(Engine::new(Arc::new(store), limits)?)
}

/// Writes runs, each with some of its steps (none named: the newest that fit), into one file. Returns the number of spans.
pub async fn write(engine: &Engine, runs: &[(String, Vec<i64>)], out: &Path) -> anyhow::Result<u64> {
    let write = async {
        let pending = PendingFile::create(out)?;
        let spans = fill(engine, runs, Box::new(BufWriter::with_capacity(1 << 20, pending.writer()?))).await?;
        pending.finish()?;
        Ok(spans)
    };
    write.await.map_err(|e: anyhow::Error| e.context(out.display().to_string()))
}

async fn fill(engine: &Engine, runs: &[(String, Vec<i64>)], out: Box<dyn Write + Send>) -> anyhow::Result<u64> {
    let mut page = Page::begin(out, &template()?, &generator())?;
    for (run, steps) in runs {
        let windows = windows(engine, run, steps, &mut page).await?;
        let done = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let counter = done.clone();
        let _bar = Bar::over("writing steps", windows.len() as u64, move || {
            counter.load(std::sync::atomic::Ordering::Relaxed)
        });
        for step in windows {
            let alone = runs.len() == 1;
            one_window(engine, run, step, alone, &mut page).await.with_context(|| format!("run {run:?}"))?;
            done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let spans = page.spans();
    page.finish("")?;
    Ok(spans)
}

/// Which steps go in: those named, or the newest as long as they fit. A run without steps is one window.
async fn windows(engine: &Engine, run: &str, named: &[i64], page: &mut Page) -> anyhow::Result<Vec<Option<i64>>> {
    let sql = format!(
        "select step, sum(n) as n from ( \
           select step, count(*) as n from spans where run_id = {run} and step is not null group by step union all \
           select step, count(*) as n from samples where run_id = {run} and step is not null group by step) \
         group by step order by step desc",
        run = sql_text(run)
    );
    let (mut found, mut fitting, mut total) = (Vec::new(), Vec::new(), page.spans());
    for batch in collect(engine, &sql).await? {
        for (step, rows) in int_column(&batch, "step")?.into_iter().zip(int_column(&batch, "n")?) {
            let Some(step) = step else { continue };
            found.push(step);
            total += rows.unwrap_or_default() as u64;
            if total <= MAX_SPANS || fitting.is_empty() {
                fitting.push(Some(step));
            }
        }
    }
    if let Some(absent) = named.iter().find(|s| !found.contains(s)) {
        anyhow::bail!("run {run:?} has no step {absent}");
    }
    if !named.is_empty() {
        return Ok(named.iter().copied().map(Some).collect());
    }
    if fitting.len() < found.len() {
        page.note(format!(
            "{} older steps of run {run} were left out to keep this file small",
            found.len() - fitting.len()
        ));
    }
    if fitting.is_empty() {
        fitting.push(None);
    }
    fitting.reverse();
    Ok(fitting)
}

/// Traces of steps. Spans in them that name no step are shown there.
const IN_STEPS: &str = "select trace_id from spans where step is not null";

/// Runs that have anything to show: one whose spans are all in steps of others, as a serving engine's, has not.
pub async fn runs_to_show(engine: &Engine) -> anyhow::Result<Vec<String>> {
    let sql = format!(
        "select run_id from spans where step is not null union \
         select run_id from spans where step is null and trace_id not in ({IN_STEPS}) order by run_id"
    );
    column(engine, &sql).await
}

/// `alone`: the page holds no other run, in whose steps spans could be shown.
async fn one_window(engine: &Engine, run: &str, step: Option<i64>, alone: bool, page: &mut Page) -> anyhow::Result<()> {
    let own = match step {
        Some(step) => format!("run_id = {} and step = {step}", sql_text(run)),
        None => format!("run_id = {}", sql_text(run)),
    };
    let mut window = Window::begin(vec![page], run, step);
    let columns = |table: Table, from: &str| -> String {
        let names: Vec<String> = table.schema().fields().iter().map(|f| format!("{from}\"{}\"", f.name())).collect();
        names.join(", ")
    };
    let members = match step {
        Some(step) => Some(engine.members_of_step(run, step).await?),
        None => None,
    };
    // Spans that name no step, such as those of a serving engine, belong to the sample of their trace.
    let all = columns(Table::Spans, "");
    let joined = columns(Table::Spans, "s.")
        .replace("s.\"sample_id\"", "coalesce(s.sample_id, t.sample_id) as sample_id")
        .replace("s.\"group_id\"", "coalesce(s.group_id, t.group_id) as group_id");
    let spans = match step {
        None if alone => format!("select {all} from spans where {own} order by sample_id, start_ns, span_id"),
        None => {
            format!(
                "select {all} from spans where {own} and trace_id not in ({IN_STEPS}) order by sample_id, start_ns, span_id"
            )
        }
        Some(_) => format!(
            "with own as (select {all} from spans where {own}), \
             traces as (select trace_id, case when min(sample_id) = max(sample_id) then min(sample_id) end as sample_id, \
                               case when min(group_id) = max(group_id) then min(group_id) end as group_id \
                        from own group by trace_id) \
             select {all} from (select {all} from own union all \
               select {joined} from spans s left join traces t on s.trace_id = t.trace_id where s.step is null and {filter}) \
             order by sample_id, start_ns, span_id",
            filter = members.as_ref().map_or("true", |m| m.filter.as_str())
        ),
    };
    let of = |table: Table, order: &str| {
        format!("select {} from {} where {own} order by {order}", columns(table, ""), table.name())
    };
    let parts = [
        (Table::Spans, spans),
        (Table::Samples, of(Table::Samples, "sample_id")),
        (Table::Conversations, of(Table::Conversations, "sample_id, id")),
        (Table::Runs, format!("select {} from runs where run_id = {}", columns(Table::Runs, ""), sql_text(run))),
    ];
    for (table, sql) in parts {
        let mut running = engine.sql(&sql).await?;
        while let Some(batch) = running.stream.next().await {
            match &members {
                Some(members) if table == Table::Spans => window.push(table, members.keep(&batch?)?)?,
                _ => window.push(table, batch?)?,
            }
        }
    }
    window.finish()?;
    Ok(())
}

async fn collect(engine: &Engine, sql: &str) -> anyhow::Result<Vec<RecordBatch>> {
    let mut running = engine.sql(sql).await?;
    let mut batches = Vec::new();
    while let Some(batch) = running.stream.next().await {
        batches.push(batch?);
    }
    Ok(batches)
}

/// The texts of a query's first column.
pub async fn column(engine: &Engine, sql: &str) -> anyhow::Result<Vec<String>> {
    let mut values = Vec::new();
    for batch in collect(engine, sql).await? {
        values.extend(text_column(&batch, batch.schema_ref().field(0).name())?.into_iter().flatten());
    }
    Ok(values)
}
