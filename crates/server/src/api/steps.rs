//! Steps of a run. Adding up a whole run takes a while, and pages ask often while it grows, so what was read is kept: steps
//! below the lowest one in the live tail do not change as long as the segments are the same.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int32Type, Int64Type};
use axum::extract::{Path, State};
use axum::response::Response;
use parking_lot::Mutex;
use rollscope_model::Table;
use rollscope_store::{Snapshot, SnapshotSource};
use serde::Serialize;
use utoipa::ToSchema;

use super::runs::ns;
use super::to_json;
use crate::App;
use crate::params::Params;
use crate::problem::Problem;
use crate::query::{collect, float_column, int_column, sql_text, text_column};

/// Runs whose steps are kept; past this all are forgotten.
const MAX_RUNS: usize = 256;

#[derive(Default)]
pub struct StepsCache(Mutex<HashMap<String, Known>>);

struct Known {
    /// Which segments there were.
    segments: u64,
    /// The lowest step that was in the tail.
    tail: i64,
    steps: BTreeMap<i64, StepInfo>,
}

impl StepsCache {
    /// What is known, and the step from which on it must be read again (`i64::MAX`: nothing).
    fn known(&self, run: &str, segments: u64, tail: i64) -> (BTreeMap<i64, StepInfo>, i64) {
        match self.0.lock().get(run) {
            Some(known) if known.segments == segments => (known.steps.clone(), known.tail.min(tail)),
            _ => (BTreeMap::new(), i64::MIN),
        }
    }

    fn keep(&self, run: &str, known: Known) {
        let mut all = self.0.lock();
        if all.len() >= MAX_RUNS && !all.contains_key(run) {
            all.clear();
        }
        all.insert(run.to_string(), known);
    }
}

fn segments_of(snapshot: &Snapshot, run: &str) -> u64 {
    let mut hash = DefaultHasher::new();
    for table in [Table::Spans, Table::Samples] {
        let segments = snapshot.tables.get(&table).into_iter().flat_map(|rows| &rows.segments);
        segments.filter(|s| s.run_id == run).for_each(|s| s.path.hash(&mut hash));
    }
    hash.finish()
}

/// The lowest step of the run in the tail; `i64::MAX` if there is none.
fn lowest_in_tail(snapshot: &Snapshot, run: &str) -> i64 {
    let mut lowest = i64::MAX;
    for table in [Table::Spans, Table::Samples] {
        for batch in snapshot.tables.get(&table).into_iter().flat_map(|rows| &rows.tail) {
            let (Some(runs), Some(steps)) = (batch.column_by_name("run_id"), batch.column_by_name("step")) else {
                continue;
            };
            let (runs, steps) = (runs.as_dictionary::<Int32Type>(), steps.as_primitive::<Int64Type>());
            let Some(key) = runs.values().as_string::<i32>().iter().position(|name| name == Some(run)) else { continue };
            for row in 0..batch.num_rows() {
                if steps.is_valid(row) && runs.is_valid(row) && runs.keys().value(row) == key as i32 {
                    lowest = lowest.min(steps.value(row));
                }
            }
        }
    }
    lowest
}

#[derive(Serialize, ToSchema)]
pub struct StepsAnswer {
    /// In order.
    steps: Vec<StepInfo>,
}

/// One training step. Nanoseconds are text.
#[derive(Clone, Default, Serialize, ToSchema)]
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
    let snapshot = app.store.snapshot();
    let segments = segments_of(&snapshot, &run);
    let tail = lowest_in_tail(&snapshot, &run);
    let (mut steps, from) = app.steps.known(&run, segments, tail);
    if from < i64::MAX {
        steps.retain(|step, _| *step < from);
        steps.extend(read(&app, &run, from).await?);
        app.steps.keep(&run, Known { segments, tail, steps: steps.clone() });
    }
    let steps = steps.into_iter().map(|(step, info)| StepInfo { step, ..info }).collect();
    to_json(&StepsAnswer { steps })
}

/// The steps from `from` on.
async fn read(app: &App, run: &str, from: i64) -> Result<BTreeMap<i64, StepInfo>, Problem> {
    let run = sql_text(run);
    let from = if from == i64::MIN { String::new() } else { format!(" and step >= {from}") };
    let spans = format!(
        "select step, min(start_ns) as start_ns, max(end_ns) as end_ns, count(*) as spans, \
                count(distinct sample_id) as samples, sum(case when state = 'open' then 1 else 0 end) as open \
         from spans where run_id = {run} and step is not null{from} group by step"
    );
    let samples = format!(
        "select step, min(start_ns) as start_ns, max(end_ns) as end_ns, count(*) as samples, \
                avg(case when split = 'train' then reward end) as reward_mean \
         from samples where run_id = {run} and step is not null{from} group by step"
    );
    // The length of a union of intervals: each adds what reaches beyond the latest end before it.
    let phases = format!(
        "select step, phase, sum(greatest(end_ns - greatest(start_ns, coalesce(before, start_ns)), 0)) / 1e9 as seconds \
         from (select step, phase, start_ns, end_ns, max(end_ns) over (partition by step, phase \
                      order by start_ns, end_ns rows between unbounded preceding and 1 preceding) as before \
               from spans where run_id = {run} and step is not null{from} and phase is not null and end_ns is not null) \
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
    Ok(steps)
}
