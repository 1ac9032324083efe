//! Steps of a run. Adding up a whole run takes a while, and pages ask often while it grows, so what was read is kept, and
//! only the steps from the lowest one on that got rows since are read again.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use arrow::error::ArrowError;
use axum::extract::State;
use axum::response::Response;
use futures::StreamExt;
use parking_lot::Mutex;
use rollscope_model::Table;
use rollscope_model::kinds::{Kind, classify};
use rollscope_model::read::{Ints, Text, column};
use rollscope_store::{Snapshot, SnapshotSource};
use serde::Serialize;
use utoipa::ToSchema;

use super::runs::ns;
use super::to_json;
use crate::App;
use crate::params::Params;
use crate::problem::Problem;
use crate::query::{collect, float_column, int_column, sql_text};
use crate::run::Run;

/// Runs whose steps are kept; past this all are forgotten.
const MAX_RUNS: usize = 256;

#[derive(Default)]
pub struct StepsCache(Mutex<HashMap<String, Known>>);

struct Known {
    /// Which segments there were.
    segments: u64,
    /// The store's version at that time.
    version: u64,
    steps: BTreeMap<i64, StepInfo>,
}

impl StepsCache {
    /// What is known, and the step from which on it must be read again (`i64::MAX`: nothing).
    fn known(&self, run: &str, segments: u64, snapshot: &Snapshot) -> (BTreeMap<i64, StepInfo>, i64) {
        match self.0.lock().get(run) {
            Some(known) if known.segments == segments => match lowest_since(snapshot, run, known.version) {
                Some(from) => (known.steps.clone(), from),
                None => (BTreeMap::new(), i64::MIN),
            },
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

/// The lowest step of the run that got rows after a version; `i64::MAX` if there is none, nothing where it cannot be told.
fn lowest_since(snapshot: &Snapshot, run: &str, version: u64) -> Option<i64> {
    let mut lowest = i64::MAX;
    for table in [Table::Spans, Table::Samples] {
        for batch in snapshot.tail_since(table, version)? {
            let runs: Text = column(batch, "run_id").ok()?;
            let steps: Ints = column(batch, "step").ok()?;
            if runs.distinct().any(|name| name == run) {
                for row in (0..batch.num_rows()).filter(|row| runs.get(*row) == Some(run)) {
                    // A row that names no step may belong to any.
                    lowest = lowest.min(steps.get(row)?);
                }
            }
        }
    }
    Some(lowest)
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
    /// Some span has not ended, and the run goes on. In a run that is over, open spans were cut off.
    running: bool,
    /// Over the samples of the training split that have a number for a reward.
    reward_mean: Option<f64>,
    /// Seconds during which at least one span of the phase was running.
    phases: BTreeMap<String, f64>,
    /// Seconds split over the phases: every moment counts once, for the widest phase that runs then.
    exclusive: BTreeMap<String, f64>,
}

/// The steps of a run, each with its time by phase.
#[utoipa::path(get, path = "/api/v1/runs/{run}/steps", tag = "runs", params(("run" = String, Path)),
    responses((status = 200, body = StepsAnswer)))]
pub async fn steps(State(app): State<App>, Run(run): Run, params: Params) -> Result<Response, Problem> {
    params.done()?;
    let snapshot = app.store.snapshot();
    let segments = segments_of(&snapshot, &run);
    let (mut steps, from) = app.known_steps.known(&run, segments, &snapshot);
    if from < i64::MAX {
        steps.retain(|step, _| *step < from);
        // A segment may be merged or deleted between the snapshot and the reading: then the next snapshot knows.
        let fresh = match read(&app, &run, from).await {
            Err(_) => read(&app, &run, from).await?,
            Ok(fresh) => fresh,
        };
        steps.extend(fresh);
    }
    app.known_steps.keep(&run, Known { segments, version: snapshot.version, steps: steps.clone() });
    let goes_on = app.engine.goes_on(&run).await?;
    let steps =
        steps.into_iter().map(|(step, info)| StepInfo { step, running: goes_on && info.open > 0, ..info }).collect();
    to_json(&StepsAnswer { steps })
}

/// The steps from `from` on.
async fn read(app: &App, run: &str, from: i64) -> Result<BTreeMap<i64, StepInfo>, Problem> {
    let run = sql_text(run);
    let from = if from == i64::MIN { String::new() } else { format!(" and step >= {from}") };
    let spans_by_step = spans_by_step(app, &run, &from).await?;
    let spans = format!(
        "select step, min(start_ns) as start_ns, max(end_ns) as end_ns, count(*) as spans, \
                count(distinct sample_id) as samples, sum(case when state = 'open' then 1 else 0 end) as open \
         from {spans_by_step} group by step"
    );
    let samples = format!(
        "select step, min(start_ns) as start_ns, max(end_ns) as end_ns, count(*) as samples, \
                avg(case when split = 'train' then reward end) as reward_mean \
         from samples where run_id = {run} and step is not null{from} group by step"
    );
    let phases = format!(
        "select step, phase, start_ns, end_ns from {spans_by_step} where phase is not null and end_ns is not null"
    );
    let (spans, samples, phases) =
        tokio::try_join!(collect(&app.engine, &spans), collect(&app.engine, &samples), intervals(app, &phases))?;

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
    for (step, mut by_phase) in phases {
        let info = steps.entry(step).or_default();
        by_phase.values_mut().for_each(union);
        let seconds = |ns: i64| ns as f64 / 1e9;
        info.phases = by_phase.iter().map(|(p, list)| (p.clone(), seconds(length(list)))).collect();
        info.exclusive = split(&by_phase).into_iter().map(|(p, ns)| (p, seconds(ns))).collect();
    }
    Ok(steps)
}

/// The run's spans with their steps, to select from. Those that name none count for the step of their trace: ROLL names it
/// on the root alone. Most runs have none such, and need no join.
async fn spans_by_step(app: &App, run: &str, from: &str) -> Result<String, Problem> {
    let own = format!("run_id = {run} and step is not null{from}");
    let unnamed = format!("select 1 from spans where run_id = {run} and step is null limit 1");
    let unnamed = collect(&app.engine, &unnamed).await?.iter().any(|batch| batch.num_rows() > 0);
    let columns = ["start_ns", "end_ns", "sample_id", "state", "phase"];
    let named = format!("select step, {} from spans where {own}", columns.join(", "));
    Ok(match unnamed {
        false => format!("({named})"),
        true => format!(
            "({named} union all select t.step, {} from spans s join (select trace_id, min(step) as step from spans \
               where {own} group by trace_id having min(step) = max(step)) t on s.trace_id = t.trace_id \
             where s.run_id = {run} and s.step is null)",
            columns.map(|c| format!("s.{c}")).join(", ")
        ),
    })
}

type Intervals = Vec<(i64, i64)>;

/// Most spans with a phase that are read at once; a run of more is told without the split.
const MAX_INTERVALS: usize = 20_000_000;

/// Times of the spans by step and phase.
async fn intervals(app: &App, sql: &str) -> Result<BTreeMap<i64, BTreeMap<String, Intervals>>, Problem> {
    let mut running = app.engine.sql_rows(sql, MAX_INTERVALS).await?;
    let mut out: BTreeMap<i64, BTreeMap<String, Intervals>> = BTreeMap::new();
    while let Some(batch) = running.stream.next().await {
        let batch = batch?;
        let lacking = |e: ArrowError| Problem::internal(format!("steps: {e}"));
        let int = |name| column::<Ints>(&batch, name).map_err(lacking);
        let (step, start, end) = (int("step")?, int("start_ns")?, int("end_ns")?);
        let phase: Text = column(&batch, "phase").map_err(lacking)?;
        // Spans come in runs of one step and phase, and the look-up is the cost.
        let mut row = 0;
        while row < batch.num_rows() {
            let (s, name) = (step.at(row), phase.at(row));
            let list = out.entry(s).or_default().entry(name.to_string()).or_default();
            while row < batch.num_rows() && step.at(row) == s && phase.at(row) == name {
                list.push((start.at(row), end.at(row).max(start.at(row))));
                row += 1;
            }
        }
    }
    Ok(out)
}

/// Sorted, overlaps joined.
fn union(list: &mut Intervals) {
    list.sort_unstable();
    let mut out: Intervals = Vec::new();
    for (start, end) in list.drain(..) {
        match out.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => out.push((start, end)),
        }
    }
    *list = out;
}

fn length(list: &Intervals) -> i64 {
    list.iter().map(|(start, end)| end - start).sum()
}

/// Which of several phases a moment belongs to: the rollout as a whole before what happens inside it; work that stands alone
/// keeps its own name either way. The step as a whole, which our own package marks, is what no phase explains.
fn rank(phase: &str) -> usize {
    const WIDEST_FIRST: [Kind; 8] = [
        Kind::Rollout,
        Kind::Validation,
        Kind::Generate,
        Kind::Prefill,
        Kind::Decode,
        Kind::Tool,
        Kind::Reward,
        Kind::Queue,
    ];
    match classify("", Some(phase)) {
        Kind::Step => usize::MAX,
        kind => WIDEST_FIRST.iter().position(|wide| *wide == kind).unwrap_or(WIDEST_FIRST.len()),
    }
}

/// Every moment goes to one phase.
fn split(by_phase: &BTreeMap<String, Intervals>) -> BTreeMap<String, i64> {
    let mut phases: Vec<&String> = by_phase.keys().collect();
    phases.sort_by_key(|p| (rank(p), p.as_str()));
    let mut taken: Intervals = Vec::new();
    let mut out = BTreeMap::new();
    for phase in phases {
        let before = length(&taken);
        taken.extend_from_slice(&by_phase[phase]);
        union(&mut taken);
        let own = length(&taken) - before;
        if own > 0 {
            out.insert(phase.clone(), own);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_counts_once() {
        let by_phase = BTreeMap::from([
            ("generate".to_string(), vec![(0, 8), (9, 12)]),
            ("reward".to_string(), vec![(7, 13)]),
            ("rollout".to_string(), vec![(0, 10)]),
            ("step".to_string(), vec![(0, 21)]),
            ("train".to_string(), vec![(12, 20)]),
        ]);
        let split = split(&by_phase);
        assert_eq!(split["rollout"], 10);
        assert_eq!(split["generate"], 2);
        assert_eq!(split["reward"], 1);
        assert_eq!(split["train"], 7);
        assert_eq!(split["step"], 1);
        assert_eq!(split.values().sum::<i64>(), 21);
    }

    #[test]
    fn unions_join_what_overlaps_or_touches() {
        let mut list = vec![(5, 6), (0, 2), (1, 3), (3, 4)];
        union(&mut list);
        assert_eq!(list, [(0, 4), (5, 6)]);
    }
}
