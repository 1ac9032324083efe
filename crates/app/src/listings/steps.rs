//! Steps of a run. Summing a whole run takes a while, and pages request it often while it grows, so the result is cached, and
//! only the steps from the lowest one on that got rows since are read again.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;

use futures::StreamExt;
use lru::LruCache;
use parking_lot::Mutex;
use rollscope_answers::Answers;
use rollscope_answers::phase_time::{Claim, divide};
use rollscope_model::Table;
use rollscope_model::kinds::{Kind, classify};
use rollscope_model::read::{Ints, Text, column};
use rollscope_query::Engine;
use rollscope_spans::intervals::{length, union};
use rollscope_store::Snapshot;
use serde::Serialize;
use utoipa::ToSchema;

use super::ns;
use crate::problem::Problem;
use crate::query::{collect, float_column, int_column, sql_text};

/// Runs whose steps are cached, those asked for last.
const MAX_RUNS: NonZeroUsize = NonZeroUsize::new(256).unwrap();

pub struct StepsCache(Mutex<LruCache<String, KnownSteps>>);

impl Default for StepsCache {
    fn default() -> Self {
        StepsCache(Mutex::new(LruCache::new(MAX_RUNS)))
    }
}

struct KnownSteps {
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

    /// The steps of a run, in order.
    pub async fn list(&self, answers: &Answers, run: &str) -> Result<Vec<StepInfo>, Problem> {
        let engine = answers.engine();
        let snapshot = engine.snapshot();
        let segments = segments_of(&snapshot, run);
        let (mut steps, from) = self.known(run, segments, &snapshot);
        if from < i64::MAX {
            steps.retain(|step, _| *step < from);
            // A segment may be merged or deleted between the snapshot and the reading: then the next snapshot knows.
            let fresh = match read_steps(engine, run, from).await {
                Err(_) => read_steps(engine, run, from).await?,
                Ok(fresh) => fresh,
            };
            steps.extend(fresh);
        }
        let known = KnownSteps { segments, version: snapshot.version, steps: steps.clone() };
        self.0.lock().put(run.to_string(), known);
        let goes_on = answers.goes_on(run).await?;
        Ok(steps.into_iter().map(|(step, info)| StepInfo { step, running: goes_on && info.open > 0, ..info }).collect())
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

/// The lowest step of the run that got rows after a version; `i64::MAX` if there is none, `None` if it is unknown.
fn lowest_since(snapshot: &Snapshot, run: &str, version: u64) -> Option<i64> {
    let mut lowest = i64::MAX;
    for table in [Table::Spans, Table::Samples] {
        for batch in snapshot.tail_since(table, version)? {
            let (runs, steps) = (column::<Text>(batch, "run_id").ok()?, column::<Ints>(batch, "step").ok()?);
            let (keys, names) = runs.dictionary()?;
            let Some(wanted) = names.iter().position(|name| name == Some(run)) else { continue };
            for (row, key) in keys.iter().enumerate() {
                if key == Some(wanted as i32) {
                    // A row that names no step may belong to any.
                    lowest = lowest.min(steps.get(row)?);
                }
            }
        }
    }
    Some(lowest)
}

/// One training step. Nanoseconds are text.
#[derive(Clone, Default, Serialize, ToSchema)]
pub struct StepInfo {
    step: i64,
    #[schema(required)]
    start_ns: Option<String>,
    /// Latest end so far.
    #[schema(required)]
    end_ns: Option<String>,
    spans: i64,
    samples: i64,
    /// Spans that have not ended.
    open: i64,
    /// True if a span is open and the run is running. In a run that is over, open spans were cut off.
    running: bool,
    /// Mean reward of the samples of the training split whose reward is a number.
    #[schema(required)]
    reward_mean: Option<f64>,
    /// Seconds during which at least one span of the phase was running.
    phases: BTreeMap<String, f64>,
    /// Seconds divided among the phases: each moment counts once, for the widest phase that was running.
    exclusive: BTreeMap<String, f64>,
}

/// The steps from `from` on.
async fn read_steps(engine: &Engine, run: &str, from: i64) -> Result<BTreeMap<i64, StepInfo>, Problem> {
    let run = sql_text(run);
    let from = if from == i64::MIN { String::new() } else { format!(" and step >= {from}") };
    let spans_by_step = spans_by_step(engine, &run, &from).await?;
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
        tokio::try_join!(collect(engine, &spans), collect(engine, &samples), intervals(engine, &phases))?;

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
            // The times of spans are more precise, if there are any.
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
async fn spans_by_step(engine: &Engine, run: &str, from: &str) -> Result<String, Problem> {
    let own = format!("run_id = {run} and step is not null{from}");
    let unnamed = format!("select 1 from spans where run_id = {run} and step is null limit 1");
    let unnamed = collect(engine, &unnamed).await?.iter().any(|batch| batch.num_rows() > 0);
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

/// The most spans with a phase that are read at once. For a run with more, the division is left out.
const MAX_INTERVALS: usize = 20_000_000;

/// Times of the spans by step and phase.
async fn intervals(engine: &Engine, sql: &str) -> Result<BTreeMap<i64, BTreeMap<String, Intervals>>, Problem> {
    let mut running = engine.sql_rows(sql, MAX_INTERVALS).await?;
    let mut out: BTreeMap<i64, BTreeMap<String, Intervals>> = BTreeMap::new();
    while let Some(batch) = running.stream.next().await {
        let batch = batch?;
        let int = |name| column::<Ints>(&batch, name).ok();
        let phase = column::<Text>(&batch, "phase").ok().and_then(|phase| phase.dictionary());
        let (Some(step), Some((phases, names)), Some(start), Some(end)) =
            (int("step"), phase, int("start_ns"), int("end_ns"))
        else {
            return Err(Problem::internal("spans lack a column of the steps"));
        };
        // Spans come in runs of one step and phase, and the look-up is the cost.
        let mut row = 0;
        while row < batch.num_rows() {
            let (s, key) = (step.at(row), phases.value(row));
            let list = out.entry(s).or_default().entry(names.value(key as usize).to_string()).or_default();
            while row < batch.num_rows() && step.at(row) == s && phases.value(row) == key {
                list.push((start.at(row), end.at(row).max(start.at(row))));
                row += 1;
            }
        }
    }
    Ok(out)
}

/// Which of several phases a moment belongs to: the rollout as a whole before what happens inside it; work outside of it
/// keeps its own name. The step as a whole, which our own package marks, gets what no phase explains.
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
    let claims: Vec<Claim<Reverse<usize>>> = phases
        .iter()
        .enumerate()
        .flat_map(|(place, phase)| by_phase[*phase].iter().map(move |(start, end)| (place, *start, *end)))
        .map(|(place, start, end)| Claim { start, end, rank: Reverse(place) })
        .collect();
    let from = claims.iter().map(|c| c.start).min().unwrap_or(0);
    let to = claims.iter().map(|c| c.end).max().unwrap_or(from);
    let mut out = BTreeMap::new();
    for piece in divide(&claims, from, to) {
        if let Some(winner) = piece.winner {
            *out.entry(phases[claims[winner].rank.0].clone()).or_default() += piece.length();
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
}
