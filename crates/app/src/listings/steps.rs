//! Steps of a run. Summing a whole run takes a while, and pages request it often while it grows, so the result is cached, and
//! only the steps from the lowest one on that got rows since are read again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::Mutex;
use rollscope_answers::Answers;
use rollscope_answers::phase_time::{Claim, divide};
use rollscope_answers::phases;
use rollscope_answers::step::{NONE, OUTLINE_COLUMNS, StepData, flag};
use rollscope_model::Table;
use rollscope_model::kinds::{Kind, classify};
use rollscope_model::read::{Ints, Text, column};
use rollscope_query::Engine;
use rollscope_query::scope::{ScopeRead, together};
use rollscope_spans::intervals::{length, union};
use rollscope_spans::joins::SKEW_NS;
use rollscope_store::{Segment, Snapshot};
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
    steps: BTreeMap<i64, KnownStep>,
}

#[derive(Clone, Default)]
struct KnownStep {
    info: StepInfo,
    /// From the first start to the last end of its spans.
    times: Option<(i64, i64)>,
}

impl KnownStep {
    /// May a span of this time that names no step belong to it?
    fn may_have(&self, start: i64, end: i64) -> bool {
        self.times.is_some_and(|(from, to)| start <= to.saturating_add(SKEW_NS) && end >= from.saturating_sub(SKEW_NS))
    }
}

impl StepsCache {
    /// What is known, and the step from which on it must be read again (`i64::MAX`: nothing).
    fn known(&self, run: &str, snapshot: &Snapshot) -> (BTreeMap<i64, KnownStep>, i64) {
        match self.0.lock().get(run) {
            Some(known) if known.segments == segments_of(snapshot, run, &known.steps) => {
                match lowest_since(snapshot, run, known) {
                    Some(from) => (known.steps.clone(), from),
                    None => (BTreeMap::new(), i64::MIN),
                }
            }
            _ => (BTreeMap::new(), i64::MIN),
        }
    }

    /// The steps of a run, in order.
    pub async fn list(&self, answers: &Answers, run: &str) -> Result<Vec<StepInfo>, Problem> {
        let engine = answers.engine();
        let snapshot = engine.snapshot();
        let (mut steps, from) = self.known(run, &snapshot);
        if from < i64::MAX {
            steps.retain(|step, _| *step < from);
            // A segment may be merged or deleted between the snapshot and the reading: then the next snapshot knows.
            let fresh = match read_steps(engine, run, from).await {
                Err(_) => read_steps(engine, run, from).await?,
                Ok(fresh) => fresh,
            };
            steps.extend(fresh);
        }
        let segments = segments_of(&snapshot, run, &steps);
        let known = KnownSteps { segments, version: snapshot.version, steps: steps.clone() };
        self.0.lock().put(run.to_string(), known);
        let goes_on = answers.goes_on(run).await?;
        let info = |(step, known): (i64, KnownStep)| {
            let running = goes_on && known.info.open > 0;
            StepInfo { step, running, ..known.info }
        };
        Ok(steps.into_iter().map(info).collect())
    }
}

/// The run's segments, and those of others that may have spans of its steps, such as a serving engine's.
fn segments_of(snapshot: &Snapshot, run: &str, steps: &BTreeMap<i64, KnownStep>) -> u64 {
    let mut hash = DefaultHasher::new();
    let first = steps.values().filter_map(|step| step.times).map(|(from, _)| from).min();
    let last = steps.values().filter_map(|step| step.times).map(|(_, to)| to).max();
    let all = KnownStep { times: first.zip(last), ..KnownStep::default() };
    for table in [Table::Spans, Table::Samples] {
        let segments = snapshot.tables.get(&table).into_iter().flat_map(|rows| &rows.segments);
        let served = |s: &Segment| table == Table::Spans && s.steps.is_none() && all.may_have(s.min_time, s.max_time);
        segments.filter(|s| s.run_id == run || served(s)).for_each(|s| s.path.hash(&mut hash));
    }
    hash.finish()
}

/// The lowest step of the run that may have got rows since it was read; `i64::MAX` if there is none, `None` if it is unknown.
fn lowest_since(snapshot: &Snapshot, run: &str, known: &KnownSteps) -> Option<i64> {
    let mut lowest = i64::MAX;
    for table in [Table::Spans, Table::Samples] {
        for batch in snapshot.tail_since(table, known.version)? {
            let int = |name| column::<Ints>(batch, name).ok();
            let (runs, steps) = (column::<Text>(batch, "run_id").ok()?, int("step")?);
            let (starts, ends) = (int("start_ns")?, int("end_ns")?);
            let (keys, names) = runs.dictionary()?;
            let wanted = names.iter().position(|name| name == Some(run)).map(|at| at as i32);
            for (row, key) in keys.iter().enumerate() {
                match steps.get(row) {
                    Some(step) if key.is_some() && key == wanted => lowest = lowest.min(step),
                    // It belongs to a step of its time, if to any.
                    None if table == Table::Spans => {
                        let start = starts.get(row)?;
                        let end = ends.get(row).unwrap_or(i64::MAX);
                        let may = |(_, step): &(&i64, &KnownStep)| step.may_have(start, end);
                        if let Some((step, _)) = known.steps.range(..lowest).find(may) {
                            lowest = *step;
                        }
                    }
                    _ => {}
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
    /// Seconds during which at least one span of the phase was running. Spans that state no `rl.phase` count for their kind.
    phases: BTreeMap<String, f64>,
    /// Seconds of the trainer's phases by kind, as in the report. Without such phases, each moment counts for the widest one.
    exclusive: BTreeMap<String, f64>,
}

/// A step that more spans name is listed without its phases, its samples and what belongs to it by connection.
const MAX_SPANS: usize = 4_000_000;

/// The steps from `from` on.
async fn read_steps(engine: &Engine, run: &str, from: i64) -> Result<BTreeMap<i64, KnownStep>, Problem> {
    let of_run = format!("run_id = {} and step is not null", sql_text(run));
    let of_run = if from == i64::MIN { of_run } else { format!("{of_run} and step >= {from}") };
    let spans = format!(
        "select step, min(start_ns) as start_ns, max(end_ns) as end_ns, count(*) as spans \
         from spans where {of_run} group by step order by step"
    );
    let samples = format!(
        "select step, min(start_ns) as start_ns, max(end_ns) as end_ns, count(*) as samples, \
                avg(case when split = 'train' then reward end) as reward_mean \
         from samples where {of_run} group by step"
    );
    let (spans, samples) = tokio::try_join!(collect(engine, &spans), collect(engine, &samples))?;
    let (mut steps, mut sizes) = (BTreeMap::new(), Vec::new());
    for batch in &spans {
        let (step, spans) = (int_column(batch, "step")?, int_column(batch, "spans")?);
        let (start, end) = (int_column(batch, "start_ns")?, int_column(batch, "end_ns")?);
        for i in 0..batch.num_rows() {
            let (Some(step), Some(spans)) = (step[i], spans[i]) else { continue };
            if spans as usize > MAX_SPANS {
                let (start_ns, end_ns) = (ns(start[i]), ns(end[i]));
                let info = StepInfo { start_ns, end_ns, spans, ..StepInfo::default() };
                steps.insert(step, KnownStep { info, times: start[i].zip(end[i]) });
                continue;
            }
            sizes.push((step, spans));
        }
    }
    for together in together(&sizes) {
        read_together(engine, run, &together, &mut steps).await?;
    }
    for batch in &samples {
        let (step, start, end) =
            (int_column(batch, "step")?, int_column(batch, "start_ns")?, int_column(batch, "end_ns")?);
        let (samples, reward) = (int_column(batch, "samples")?, float_column(batch, "reward_mean")?);
        for i in 0..batch.num_rows() {
            let info = &mut steps.entry(step[i].unwrap_or_default()).or_default().info;
            // The times of spans are more precise, if there are any.
            if info.spans == 0 {
                (info.start_ns, info.end_ns) = (ns(start[i]), ns(end[i]));
            }
            info.samples = info.samples.max(samples[i].unwrap_or(0));
            info.reward_mean = reward[i].filter(|r| r.is_finite());
        }
    }
    Ok(steps)
}

/// What the spans of these steps say: those that the answers read.
async fn read_together(
    engine: &Engine,
    run: &str,
    steps: &[i64],
    out: &mut BTreeMap<i64, KnownStep>,
) -> Result<(), Problem> {
    let read = ScopeRead {
        columns: OUTLINE_COLUMNS.join(", "),
        max_rows: 4 * MAX_SPANS,
        too_many: "too many spans without a step run beside a step; name the step on their roots".to_string(),
        traces: None,
        at_once: false,
    };
    for (step, spans) in steps.iter().zip(engine.spans_of_steps(run, steps, read).await?) {
        let known = engine.compute(move || StepData::read(&spans, &[], &[]).map(|data| outline(&data)));
        out.insert(*step, known.await?.map_err(|e| Problem::internal(e.to_string()))?);
    }
    Ok(())
}

fn outline(data: &StepData) -> KnownStep {
    let (from, to) = (data.step_start, data.step_end);
    let mut by_phase: BTreeMap<String, Intervals> = BTreeMap::new();
    let mut by_word: HashMap<(u32, Kind), Intervals> = HashMap::new();
    for row in (0..data.len()).filter(|row| !data.is(*row, flag::POINT | flag::OPEN)) {
        let (said, kind) = (data.phase[row], data.kind[row]);
        if said == NONE && (kind == Kind::Other || kind == Kind::Step && data.parent[row] != NONE) {
            continue;
        }
        let list = by_word.entry((said, kind)).or_default();
        list.push((data.start[row], data.end[row].max(data.start[row])));
    }
    for ((said, kind), list) in by_word {
        let name = if said == NONE { kind.name() } else { data.texts.get(said) };
        by_phase.entry(name.to_string()).or_default().extend(list);
    }
    by_phase.values_mut().for_each(union);
    let seconds = |ns: i64| ns as f64 / 1e9;
    let exclusive = match phases::by_kind(data) {
        Some(by_kind) => by_kind.into_iter().map(|(kind, ns)| (kind.name().to_string(), seconds(ns))).collect(),
        None => split(&by_phase, from, to).into_iter().map(|(phase, ns)| (phase, seconds(ns))).collect(),
    };
    let info = StepInfo {
        start_ns: ns(Some(from)),
        end_ns: ns(Some(to)),
        spans: data.len() as i64,
        samples: data.samples.len() as i64,
        open: data.open as i64,
        phases: by_phase.iter().map(|(phase, list)| (phase.clone(), seconds(length(list)))).collect(),
        exclusive,
        ..StepInfo::default()
    };
    let first = data.start.iter().min().copied();
    KnownStep { info, times: first.zip(data.end.iter().max().copied()) }
}

type Intervals = Vec<(i64, i64)>;

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
fn split(by_phase: &BTreeMap<String, Intervals>, from: i64, to: i64) -> BTreeMap<String, i64> {
    let mut phases: Vec<&String> = by_phase.keys().collect();
    phases.sort_by_key(|p| (rank(p), p.as_str()));
    let claims: Vec<Claim<Reverse<usize>>> = phases
        .iter()
        .enumerate()
        .flat_map(|(place, phase)| by_phase[*phase].iter().map(move |(start, end)| (place, *start, *end)))
        .map(|(place, start, end)| Claim { start, end, rank: Reverse(place) })
        .collect();
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
        let split = split(&by_phase, 0, 21);
        assert_eq!(split["rollout"], 10);
        assert_eq!(split["generate"], 2);
        assert_eq!(split["reward"], 1);
        assert_eq!(split["train"], 7);
        assert_eq!(split["step"], 1);
        assert_eq!(split.values().sum::<i64>(), 21);
    }
}
