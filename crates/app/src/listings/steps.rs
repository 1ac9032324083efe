//! Steps of a run. Reading a whole run takes a while, and pages request it often while it grows, so what is known of a step is
//! kept with the answers ([`Answers::lines`]), and only steps that got rows since are read again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use rollscope_answers::phase_time::{Claim, divide};
use rollscope_answers::phases;
use rollscope_answers::step::{NONE, OUTLINE_COLUMNS, StepData, flag};
use rollscope_answers::{Answers, Line};
use rollscope_model::kinds::{Kind, classify};
use rollscope_query::Engine;
use rollscope_query::scope::{ScopeRead, together};
use rollscope_spans::intervals::{length, union};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ns;
use crate::problem::Problem;
use crate::query::{collect, float_column, int_column, sql_text};

#[derive(Default)]
struct KnownStep {
    info: StepInfo,
    /// From the first start to the last end of its spans.
    times: Option<(i64, i64)>,
}

/// The steps of a run, in order.
pub async fn list(answers: &Answers, run: &str) -> Result<Vec<StepInfo>, Problem> {
    let mut lines = answers.lines(run).await?;
    let known = std::mem::take(&mut lines.known);
    let mut steps: BTreeMap<i64, StepInfo> = BTreeMap::new();
    for (step, (fingerprint, line)) in known {
        match serde_json::from_slice(&line) {
            Ok(info) => drop(steps.insert(step, StepInfo { version: version(fingerprint), ..info })),
            Err(_) => lines.missing.push(step),
        }
    }
    if !lines.missing.is_empty() {
        // A segment may be merged or deleted between the snapshot and the reading: then the next snapshot knows.
        let fresh = match read_steps(answers.engine(), run, &lines.missing).await {
            Err(_) => read_steps(answers.engine(), run, &lines.missing).await?,
            Ok(fresh) => fresh,
        };
        let mut kept = Vec::with_capacity(fresh.len());
        for (step, KnownStep { mut info, times }) in fresh {
            info.step = step;
            let text = serde_json::to_vec(&info).map_err(|e| Problem::internal(e.to_string()))?;
            let window = times.unwrap_or_default();
            info.version = version(lines.fingerprint(step, window));
            kept.push(Line { step, window, text });
            steps.insert(step, info);
        }
        answers.keep_lines(lines, kept).await;
    }
    let goes_on = answers.goes_on(run).await?;
    let running = |info: StepInfo| StepInfo { running: goes_on && info.open > 0, ..info };
    Ok(steps.into_values().map(running).collect())
}

fn version(fingerprint: u64) -> String {
    format!("{fingerprint:016x}")
}

/// One training step. Nanoseconds are text.
#[derive(Default, Serialize, Deserialize, ToSchema)]
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
    /// Another text when rows of the step, or such as may belong to it, were added or replaced.
    #[serde(default)]
    version: String,
}

/// A step that more spans name is listed without its phases, its samples and what belongs to it by connection.
const MAX_SPANS: usize = 4_000_000;

/// These steps.
async fn read_steps(engine: &Engine, run: &str, wanted: &[i64]) -> Result<BTreeMap<i64, KnownStep>, Problem> {
    let wanted: BTreeSet<i64> = wanted.iter().copied().collect();
    let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else { return Ok(BTreeMap::new()) };
    let of_run = format!("run_id = {} and step between {first} and {last}", sql_text(run));
    let spans = format!(
        "select step, min(start_ns) as start_ns, max(end_ns) as end_ns, count(*) as spans \
         from spans where {of_run} group by step order by step"
    );
    let samples = format!(
        "select step, min(start_ns) as start_ns, max(end_ns) as end_ns, \
                coalesce(nullif(sum(case when split = 'train' then 1 else 0 end), 0), count(*)) as samples, \
                avg(case when split = 'train' then reward end) as reward_mean \
         from samples where {of_run} group by step"
    );
    let (spans, samples) = tokio::try_join!(collect(engine, &spans), collect(engine, &samples))?;
    let (mut steps, mut sizes) = (BTreeMap::new(), Vec::new());
    for batch in &spans {
        let (step, spans) = (int_column(batch, "step")?, int_column(batch, "spans")?);
        let (start, end) = (int_column(batch, "start_ns")?, int_column(batch, "end_ns")?);
        for i in 0..batch.num_rows() {
            let (Some(step), Some(spans)) = (step[i].filter(|step| wanted.contains(step)), spans[i]) else { continue };
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
            let Some(step) = step[i].filter(|step| wanted.contains(step)) else { continue };
            let info = &mut steps.entry(step).or_default().info;
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
        details: None,
    };
    for (step, spans) in steps.iter().zip(engine.spans_of_steps(run, steps, read).await?) {
        let known = engine.compute(move || {
            let read = StepData::read_connected(spans.batches, spans.connected, Vec::new(), &[]);
            read.map(|data| outline(&data))
        });
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
