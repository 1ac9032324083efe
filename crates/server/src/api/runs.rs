//! Runs and their steps.

use std::collections::{BTreeMap, HashMap};

use arrow::array::{Array, AsArray};
use arrow::compute::{max, min};
use arrow::datatypes::{Int32Type, Int64Type};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rollscope_model::Table;
use rollscope_store::{Snapshot, SnapshotSource};
use serde::Serialize;
use utoipa::ToSchema;

use super::to_json;
use crate::App;
use crate::params::Params;
use crate::problem::Problem;
use crate::query::{collect, float_column, int_column, sql_text, text_column};

#[derive(Serialize, ToSchema)]
pub struct RunsAnswer {
    /// Newest first.
    runs: Vec<RunInfo>,
}

/// One run. Nanoseconds are text.
#[derive(Serialize, ToSchema)]
pub struct RunInfo {
    run_id: String,
    project: Option<String>,
    name: Option<String>,
    framework: Option<String>,
    /// `running`, `finished`, `failed`; null if nobody said.
    status: Option<String>,
    started_ns: Option<String>,
    ended_ns: Option<String>,
    /// The latest time in any of its rows.
    last_ns: Option<String>,
    spans: i64,
    samples: i64,
    /// From its first step to its last, both counted.
    steps: i64,
    /// On disk, not counting what is still in the log.
    bytes: u64,
}

fn ns(value: Option<i64>) -> Option<String> {
    value.map(|v| v.to_string())
}

/// All runs.
#[utoipa::path(get, path = "/api/v1/runs", tag = "runs", responses((status = 200, body = RunsAnswer)))]
pub async fn runs(State(app): State<App>, params: Params) -> Result<Response, Problem> {
    params.done()?;
    let batch = app.engine.runs().await?;
    let extents = extents(&app.store.snapshot());
    let text = |name| text_column(&batch, name);
    let int = |name| int_column(&batch, name);
    let (ids, projects, names) = (text("run_id")?, text("project")?, text("name")?);
    let (frameworks, statuses) = (text("framework")?, text("status")?);
    let (started, ended, last) = (int("started_ns")?, int("ended_ns")?, int("last_ns")?);
    let (spans, samples) = (int("spans")?, int("samples")?);
    let runs = (0..batch.num_rows())
        .map(|i| {
            let run_id = ids[i].clone().unwrap_or_default();
            let extent = extents.get(&run_id).cloned().unwrap_or_default();
            RunInfo {
                project: projects[i].clone(),
                name: names[i].clone(),
                framework: frameworks[i].clone(),
                status: statuses[i].clone(),
                started_ns: ns(started[i]),
                ended_ns: ns(ended[i]),
                last_ns: ns(last[i]),
                spans: spans[i].unwrap_or(0),
                samples: samples[i].unwrap_or(0),
                steps: extent.steps.map_or(0, |(first, last)| last.saturating_sub(first).saturating_add(1)),
                bytes: extent.bytes,
                run_id,
            }
        })
        .collect();
    to_json(&RunsAnswer { runs })
}

#[derive(Clone, Default)]
struct Extent {
    bytes: u64,
    steps: Option<(i64, i64)>,
}

impl Extent {
    fn widen(&mut self, (first, last): (i64, i64)) {
        self.steps = Some(self.steps.map_or((first, last), |(a, b)| (a.min(first), b.max(last))));
    }
}

/// Bytes and steps of every run, from the manifest and the tail, without reading a segment.
fn extents(snapshot: &Snapshot) -> HashMap<String, Extent> {
    let mut runs: HashMap<String, Extent> = HashMap::new();
    for (table, rows) in &snapshot.tables {
        for segment in &rows.segments {
            let extent = runs.entry(segment.run_id.clone()).or_default();
            extent.bytes += segment.bytes;
            if let Some(steps) = segment.steps {
                extent.widen(steps);
            }
        }
        if !matches!(table, Table::Spans | Table::Samples | Table::Metrics | Table::Conversations) {
            continue;
        }
        for batch in &rows.tail {
            let (Some(run), Some(step)) = (batch.column_by_name("run_id"), batch.column_by_name("step")) else {
                continue;
            };
            let (run, step) = (run.as_dictionary::<Int32Type>(), step.as_primitive::<Int64Type>());
            let names = run.values().as_string::<i32>();
            if let (1, Some(first), Some(last)) = (names.len(), min(step), max(step)) {
                // One sender, one run: the usual batch.
                runs.entry(names.value(0).to_string()).or_default().widen((first, last));
                continue;
            }
            let mut by_key: HashMap<i32, Extent> = HashMap::new();
            for row in (0..batch.num_rows()).filter(|row| step.is_valid(*row) && run.is_valid(*row)) {
                let step = step.value(row);
                by_key.entry(run.keys().value(row)).or_default().widen((step, step));
            }
            for (key, found) in by_key {
                if let Some(steps) = found.steps {
                    runs.entry(names.value(key as usize).to_string()).or_default().widen(steps);
                }
            }
        }
    }
    runs
}

/// Deletes a run with everything in it, from every table. There is no way back.
#[utoipa::path(delete, path = "/api/v1/runs/{run}", tag = "runs", params(("run" = String, Path)), responses(
    (status = 204, description = "Deleted"),
    (status = 404, description = "No such run", body = Problem, content_type = "application/problem+json"),
))]
pub async fn delete_run(State(app): State<App>, Path(run): Path<String>, params: Params) -> Result<Response, Problem> {
    params.done()?;
    let deleted = app.store.delete_run(&run).await?;
    app.ingest.forget_run(&run);
    match deleted {
        true => {
            tracing::info!(run, "deleted a run");
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        false => Err(Problem::not_found(format!("there is no run `{run}`"))),
    }
}

#[derive(Serialize, ToSchema)]
pub struct StepsAnswer {
    /// In order.
    steps: Vec<StepInfo>,
}

/// One training step. Nanoseconds are text.
#[derive(Default, Serialize, ToSchema)]
pub struct StepInfo {
    step: i64,
    start_ns: Option<String>,
    /// The latest end so far.
    end_ns: Option<String>,
    spans: i64,
    samples: i64,
    /// Spans that have not ended.
    open: i64,
    /// Over the samples of the training split that have a number for a reward.
    reward_mean: Option<f64>,
    /// Seconds during which at least one span of the phase was running.
    phases: BTreeMap<String, f64>,
}

/// The steps of a run, each with its time by phase.
#[utoipa::path(get, path = "/api/v1/runs/{run}/steps", tag = "runs", params(("run" = String, Path)),
    responses((status = 200, body = StepsAnswer)))]
pub async fn steps(State(app): State<App>, Path(run): Path<String>, params: Params) -> Result<Response, Problem> {
    params.done()?;
    let run = sql_text(&run);
    let spans = format!(
        "select step, min(start_ns) as start_ns, max(end_ns) as end_ns, count(*) as spans, \
                count(distinct sample_id) as samples, sum(case when state = 'open' then 1 else 0 end) as open \
         from spans where run_id = {run} and step is not null group by step"
    );
    let samples = format!(
        "select step, min(start_ns) as start_ns, max(end_ns) as end_ns, count(*) as samples, \
                avg(case when split = 'train' then reward end) as reward_mean \
         from samples where run_id = {run} and step is not null group by step"
    );
    // The length of a union of intervals: each adds what reaches beyond the latest end before it.
    let phases = format!(
        "select step, phase, sum(greatest(end_ns - greatest(start_ns, coalesce(before, start_ns)), 0)) / 1e9 as seconds \
         from (select step, phase, start_ns, end_ns, max(end_ns) over (partition by step, phase \
                      order by start_ns, end_ns rows between unbounded preceding and 1 preceding) as before \
               from spans where run_id = {run} and step is not null and phase is not null and end_ns is not null) \
         group by step, phase"
    );
    let (spans, samples, phases) =
        tokio::try_join!(collect(&app.engine, &spans), collect(&app.engine, &samples), collect(&app.engine, &phases))?;

    let mut steps: BTreeMap<i64, StepInfo> = BTreeMap::new();
    for batch in &spans {
        let (step, start, end) =
            (int_column(batch, "step")?, int_column(batch, "start_ns")?, int_column(batch, "end_ns")?);
        let (spans, samples) = (int_column(batch, "spans")?, int_column(batch, "samples")?);
        let open = int_column(batch, "open")?;
        for i in 0..batch.num_rows() {
            let info = steps.entry(step[i].unwrap_or_default()).or_default();
            (info.start_ns, info.end_ns) = (ns(start[i]), ns(end[i]));
            info.spans = spans[i].unwrap_or(0);
            info.samples = samples[i].unwrap_or(0);
            info.open = open[i].unwrap_or(0);
        }
    }
    for batch in &samples {
        let (step, start, end) =
            (int_column(batch, "step")?, int_column(batch, "start_ns")?, int_column(batch, "end_ns")?);
        let (samples, reward) = (int_column(batch, "samples")?, float_column(batch, "reward_mean")?);
        for i in 0..batch.num_rows() {
            let info = steps.entry(step[i].unwrap_or_default()).or_default();
            // Spans know the times better, where there are any.
            if info.spans == 0 {
                (info.start_ns, info.end_ns) = (ns(start[i]), ns(end[i]));
            }
            info.samples = info.samples.max(samples[i].unwrap_or(0));
            info.reward_mean = reward[i].filter(|r| r.is_finite());
        }
    }
    for batch in &phases {
        let (step, phase) = (int_column(batch, "step")?, text_column(batch, "phase")?);
        let seconds = float_column(batch, "seconds")?;
        for i in 0..batch.num_rows() {
            if let (Some(phase), Some(seconds)) = (&phase[i], seconds[i]) {
                steps.entry(step[i].unwrap_or_default()).or_default().phases.insert(phase.clone(), seconds);
            }
        }
    }
    let steps = steps.into_iter().map(|(step, info)| StepInfo { step, ..info }).collect();
    to_json(&StepsAnswer { steps })
}
