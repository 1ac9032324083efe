//! `rollscope metrics`: the metrics of a step; and what else the command line does with them.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use futures::StreamExt;
use rollscope_answers::Answers;
use rollscope_answers::ask::MAX_STEPS;
use rollscope_answers::perf::PerfRules;
use rollscope_app::listings::steps::list;
use rollscope_app::{sinks, steps, timeline};
use rollscope_model::read::{Floats, Ints, Text, column};
use rollscope_model::time::{now_ns, ns_to_seconds};
use rollscope_query::{Engine, QueryLimits, sql_text};
use rollscope_store::Store;

use crate::args::{ExportTensorboardArgs, MetricsArgs, SqlArgs, TokenizerArgs};
use crate::output::count;
use crate::place;

pub async fn run(args: MetricsArgs) -> anyhow::Result<()> {
    let run = sql_text(&super::answers::find_run(&args.source, &args.run).await?);
    let step = match args.step {
        Some(step) => step.to_string(),
        None => format!("(select max(step) from metrics where run_id = {run})"),
    };
    let query = format!(
        "select step, name, last_value(value order by time_ns) as value, \
                case when max(source) is null then 'the run' else max(source) end as source \
         from metrics where run_id = {run} and step = {step} and starts_with(name, {}) group by step, name order by name",
        sql_text(&args.prefix)
    );
    super::sql::run(SqlArgs {
        source: args.source,
        format: args.format,
        tokenizers: TokenizerArgs::default(),
        max_rows: 100_000,
        timeout: 300,
        query,
    })
    .await
}

/// Works out the metrics of every step that was written to a store, where no server does it; `complete`: and answers, lists and
/// timelines, so that the first look need not wait for them.
pub async fn work_out(store: &Store, complete: bool) -> anyhow::Result<()> {
    let answers = Answers::new(Arc::new(store.clone()), QueryLimits::default())?;
    let rules = PerfRules::default();
    let mut steps_of: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for (run, step) in store.touched_steps() {
        steps::compute(answers.engine(), store, &rules, &run, step)
            .await
            .map_err(|e| anyhow::anyhow!("cannot compute the metrics of step {step} of run {run}: {e}"))?;
        steps_of.entry(run).or_default().push(step);
    }
    if !complete {
        return Ok(());
    }
    // Nobody misses what fails here, or what is left out: whoever looks at the step first waits a little longer.
    let mut left = MAX_STEPS;
    for (run, mut steps) in steps_of.into_iter().rev() {
        if left == 0 {
            break;
        }
        let run = &run;
        steps.sort_unstable();
        let steps = answers.with_rows(run, steps).await.unwrap_or_default();
        let steps = &steps[steps.len().saturating_sub(left)..];
        left -= steps.len();
        if steps.is_empty() {
            continue;
        }
        if let Err(error) = answers.prepare_all(run, steps).await {
            tracing::debug!(run, %error, "cannot prepare the answers about steps");
        }
        if let Err(error) = list(&answers, run).await {
            tracing::debug!(run, %error, "cannot prepare the list of steps");
        }
        for step in steps {
            if let Err(error) = timeline::prepare(&answers, run, *step, i64::MAX).await {
                tracing::debug!(run, step, %error, "cannot prepare the timeline of a step");
            }
        }
    }
    Ok(())
}

pub async fn tensorboard(args: ExportTensorboardArgs) -> anyhow::Result<()> {
    let store = place::open_for_reading(&args.folder.data).await?;
    let limits =
        QueryLimits { max_rows: usize::MAX, timeout: std::time::Duration::from_secs(3600), ..QueryLimits::default() };
    let engine = Engine::new(Arc::new(store), limits)?;
    let filter = match &args.run {
        Some(run) => format!("run_id = {}", sql_text(&engine.find_run(run).await.map_err(super::answers::usage)?)),
        None => "true".into(),
    };
    let sql = format!(
        "select run_id, step, time_ns, name, value from metrics where step is not null and {filter} \
         order by run_id, step, time_ns, name"
    );
    let mut rows = engine.sql(&sql).await?;
    let (mut written, mut runs) = (0u64, 0u64);
    let mut open: Option<(String, _)> = None;
    while let Some(batch) = rows.stream.next().await {
        let batch = batch?;
        let (run_ids, names): (Text, Text) = (column(&batch, "run_id")?, column(&batch, "name")?);
        let (steps, times): (Ints, Ints) = (column(&batch, "step")?, column(&batch, "time_ns")?);
        let values: Floats = column(&batch, "value")?;
        for row in 0..batch.num_rows() {
            let run = run_ids.at(row);
            if open.as_ref().is_none_or(|(name, _)| name != run) {
                let file =
                    sinks::event_file(&args.out, run, now_ns()).with_context(|| args.out.display().to_string())?;
                open = Some((run.to_string(), file));
                runs += 1;
            }
            let (_, file) = open.as_mut().expect("it was opened");
            file.scalar(ns_to_seconds(times.at(row)), steps.at(row), names.at(row), values.at(row))?;
            written += 1;
        }
    }
    if let Some((_, mut file)) = open {
        file.flush()?;
    }
    println!("{}: {} values from {} runs", args.out.display(), count(written), count(runs));
    Ok(())
}
