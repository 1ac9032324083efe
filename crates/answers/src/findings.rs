//! What stands out in a step, why, and what it cost.
//!
//! **Excess.** Every unit beyond its bound ([`super::history`]) has an excess: how much longer it took than the middle (for
//! outputs: how many tokens beyond the longest usual one, at the pace they had). A sample's steps follow one another, so
//! without its excess it would have ended that much earlier.
//!
//! **Cost.** Let `T` be when the last sample ended and `T0` when it would have ended without any excess. The step is longer
//! by `T - T0`. At every moment between, the samples that have not ended hold it; the moment is shared out among the
//! causes of their excess, in proportion. The shares add up to `T - T0` exactly, do not depend on any order, and for a
//! single cause are its whole effect. `without_s` is the other reading: how long the step would have taken without this cause
//! alone. Phases of the trainer cost what they took beyond their median over the other steps.
//!
//! **Threshold.** A cost counts if it is at least [`MIN_SHARE`] of the run's usual step and [`MIN_COST_S`]; what samples cost
//! must be [`MIN_SHARE_OF_SAMPLES`] (of one alone: [`MIN_SHARE_OF_ONE`]) and more than the spread of the run's steps, for rollouts vary with their prompts, and the
//! step must be longer than usual by [`MIN_FELT`] of it: what only filled time that others needed anyway slowed nothing. Clocks
//! that disagree and data that never came cost no time, but make every other number less certain: they are reported when
//! they are there. A step that is still running has no findings about missing data: parents come last.
//!
//! Sorting by end makes it n log n.

use std::cmp::Ordering;

use hashbrown::HashMap;
use serde::Serialize;
use utoipa::ToSchema;

use super::history::{History, Of, Usual, group_paces, pace};
use super::kinds::Kind;
use super::phases::BETWEEN;
use super::robust::{median, middle};
use super::samples::Part;
use super::step::NONE;
use super::summary::{StepSummary, UnitSummary};

pub const MIN_COST_S: f64 = 1.0;
pub const MIN_SHARE: f64 = 0.05;
/// Samples differ more from step to step than phases of the trainer do.
pub const MIN_SHARE_OF_SAMPLES: f64 = 0.1;
/// One sample alone is more easily chance than several with the same cause.
const MIN_SHARE_OF_ONE: f64 = 0.25;
/// This share of what samples cost must show in the step's wall time.
const MIN_FELT: f64 = 0.3;
/// How many outputs of one source show how long its longest are.
const MANY: usize = 200;
/// Excesses of a unit below this are ignored.
const MIN_EXCESS_S: f64 = 0.25;
/// Phases: beyond this many spreads, and this share, above the median of at least this many other steps.
const PHASE_SPREADS: f64 = 6.0;
const PHASE_SHARE: f64 = 0.3;
const PHASE_STEPS: usize = 3;
/// Share of spans whose parent is missing, or of generations that no engine reported on.
const MISSING_SHARE: f64 = 0.005;
/// Spans and samples listed as evidence.
const MAX_EVIDENCE: usize = 20;

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SpanRef {
    pub trace_id: String,
    pub span_id: String,
    pub sample_id: String,
    pub seconds: f64,
}

/// Where to look.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Evidence {
    /// How many samples (or spans) it concerns, of how many.
    pub count: usize,
    pub of: usize,
    /// The worst first, at most twenty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<SpanRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The typical unusual value, and what is usual: seconds, or tokens for outputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usual: Option<f64>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Finding {
    pub kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    pub text: String,
    /// Seconds by which it made the step longer; 0 for what only makes numbers uncertain.
    pub cost_s: f64,
    /// How long the step would have taken without it alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_s: Option<f64>,
    pub evidence: Evidence,
}

/// What a run's steps usually take.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct UsualStep {
    pub median_s: f64,
    pub spread_s: f64,
    /// Other steps that this rests on.
    pub steps: usize,
}

/// A run's steps, ready to be judged one by one.
pub struct Judge<'a> {
    pub steps: Vec<&'a StepSummary>,
    history: History,
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Cause {
    Tool(String),
    Tokens,
    Group(String),
    Pace,
    Queue(String),
    Transfer,
    Prefill,
    Reward,
    Retry,
}

struct Excess<'a> {
    cause: Cause,
    sample: u32,
    seconds: f64,
    unit: Option<&'a UnitSummary>,
    measured: f64,
    usual: f64,
}

impl<'a> Judge<'a> {
    pub fn new(steps: Vec<&'a StepSummary>) -> Self {
        let history = History::new(steps.iter().copied());
        Judge { steps, history }
    }

    /// What a step of this run usually takes, by all steps but this one that are over.
    pub fn usual_step(&self, index: usize) -> Option<UsualStep> {
        let others = self.steps.iter().enumerate().filter(|(i, s)| *i != index && !s.running);
        let walls: Vec<f64> = others.map(|(_, s)| s.wall_s).collect();
        let (median_s, spread_s) = middle(&walls).filter(|_| walls.len() >= PHASE_STEPS)?;
        Some(UsualStep { median_s, spread_s, steps: walls.len() })
    }

    /// The findings of a step, by cost.
    pub fn findings(&self, index: usize) -> Vec<Finding> {
        let step = self.steps[index];
        let usual = self.usual_step(index);
        let reference = usual.map_or(step.wall_s, |u| u.median_s);
        let least = MIN_COST_S.max(MIN_SHARE * reference);
        let spread = usual.map_or(0.0, |u| u.spread_s);
        let mut found = self.of_samples(index, least.max(spread).max(MIN_SHARE_OF_SAMPLES * reference));
        if usual.is_some() {
            found.retain(|f| step.wall_s - reference >= MIN_FELT * f.cost_s);
            found.retain(|f| f.evidence.count > 1 || f.cost_s >= MIN_SHARE_OF_ONE * reference);
        }
        found.extend(self.of_phases(index, least));
        found.extend(of_data(step));
        found.sort_by(|a, b| {
            b.cost_s.total_cmp(&a.cost_s).then_with(|| a.kind.cmp(b.kind)).then_with(|| a.text.cmp(&b.text))
        });
        found
    }

    fn excesses(&self, index: usize) -> Vec<Excess<'a>> {
        let step = self.steps[index];
        let mut cached: HashMap<Of, Option<Usual>> = HashMap::new();
        let mut usual = |of: Of| *cached.entry(of).or_insert_with_key(|of| self.history.usual(of, index as u32));
        let mut slow_groups: HashMap<&str, f64> = HashMap::new();
        if let Some(u) = usual(Of::GroupPace) {
            let beyond = group_paces(step).into_iter().filter(|(_, (pace, _))| *pace > u.bound);
            slow_groups = beyond.map(|(group, _)| (group, u.middle)).collect();
        }
        let mut found: Vec<Excess<'a>> = Vec::new();
        let mut add = |cause: Cause, unit: &'a UnitSummary, seconds: f64, measured: f64, usual: f64| {
            if seconds >= MIN_EXCESS_S {
                found.push(Excess { cause, sample: unit.sample, seconds, unit: Some(unit), measured, usual });
            }
        };
        for unit in &step.units {
            let plain = |of: Of, usual: &mut dyn FnMut(Of) -> Option<Usual>| {
                usual(of).filter(|u| unit.seconds > u.bound).map(|u| (unit.seconds - u.middle, u.middle))
            };
            let (of, cause) = match unit.what {
                Part::Tool => {
                    let tool = step.key(unit.key).to_string();
                    (Of::Tool(tool.clone()), Cause::Tool(tool))
                }
                Part::Reward => (Of::Reward, Cause::Reward),
                Part::Queue => (Of::Queue, Cause::Queue(step.key(unit.key).to_string())),
                Part::Prefill => (Of::Prefill, Cause::Prefill),
                Part::Transfer => (Of::Transfer, Cause::Transfer),
                Part::Decode => {
                    let sample = &step.samples[unit.sample as usize];
                    let long = unit.tokens.is_finite().then(|| usual(Of::Tokens(sample.source.clone()))).flatten();
                    let mut tokens = unit.tokens;
                    let of_any = usual(Of::AnyTokens).map_or(0.0, |u| u.longest);
                    let beyond = |u: &Usual| unit.tokens > u.bound && (u.values >= MANY || unit.tokens > of_any);
                    if let Some(u) = long.filter(beyond) {
                        // Beyond the longest usual output, not beyond the typical one: prompts differ.
                        let longest = u.longest;
                        let seconds = unit.seconds * (1.0 - longest / unit.tokens);
                        add(Cause::Tokens, unit, seconds, unit.tokens, longest);
                        tokens = longest;
                    }
                    let Some(own) = pace(unit.seconds, unit.tokens) else { continue };
                    if let Some(middle) = slow_groups.get(sample.group.as_str()).filter(|m| own > **m) {
                        add(Cause::Group(sample.group.clone()), unit, tokens * (own - middle), 1.0 / own, 1.0 / middle);
                    } else if let Some(u) = usual(Of::Pace).filter(|u| own > u.bound) {
                        add(Cause::Pace, unit, tokens * (own - u.middle), 1.0 / own, 1.0 / u.middle);
                    }
                    continue;
                }
                _ => continue,
            };
            if let Some((seconds, middle)) = plain(of, &mut usual) {
                add(cause, unit, seconds, unit.seconds, middle);
            }
        }
        let mut before: HashMap<u32, f64> = HashMap::new();
        found.iter().for_each(|e| *before.entry(e.sample).or_default() += e.seconds);
        if let Some(u) = usual(Of::Retry) {
            for (i, sample) in step.samples.iter().enumerate() {
                let lost = sample.parts[Part::Retry as usize];
                let left = lost - u.middle - before.get(&(i as u32)).copied().unwrap_or(0.0);
                if lost > u.bound && left >= MIN_EXCESS_S {
                    let (sample, measured) = (i as u32, lost);
                    found.push(Excess {
                        cause: Cause::Retry,
                        sample,
                        seconds: left,
                        unit: None,
                        measured,
                        usual: u.middle,
                    });
                }
            }
        }
        found
    }

    fn of_samples(&self, index: usize, least: f64) -> Vec<Finding> {
        let step = self.steps[index];
        let excesses = self.excesses(index);
        if excesses.is_empty() {
            return Vec::new();
        }
        let mut causes: Vec<&Cause> = excesses.iter().map(|e| &e.cause).collect();
        causes.sort_unstable();
        causes.dedup();
        let number: HashMap<&Cause, usize> = causes.iter().enumerate().map(|(i, c)| (*c, i)).collect();
        // Excess by sample and cause.
        let mut by_sample: HashMap<u32, Vec<(usize, f64)>> = HashMap::new();
        for e in &excesses {
            by_sample.entry(e.sample).or_default().push((number[&e.cause], e.seconds));
        }
        let total = |sample: u32| by_sample.get(&sample).map_or(0.0, |v| v.iter().map(|(_, s)| s).sum::<f64>());
        let of_cause = |sample: u32, cause: usize| {
            by_sample.get(&sample).map_or(0.0, |v| v.iter().filter(|(c, _)| *c == cause).map(|(_, s)| s).sum::<f64>())
        };
        let indices = || 0..step.samples.len() as u32;
        let end = |s: u32| step.samples[s as usize].end;
        let actual = indices().map(end).fold(0.0, f64::max);
        let without_all = indices().map(|s| end(s) - total(s)).fold(0.0, f64::max);
        // From the last end backwards: who holds the step, and why.
        let mut held: Vec<u32> = by_sample.keys().copied().collect();
        held.sort_by(|a, b| end(*b).total_cmp(&end(*a)).then(a.cmp(b)));
        let mut cost = vec![0.0; causes.len()];
        let mut weight = vec![0.0; causes.len()];
        for (i, sample) in held.iter().enumerate() {
            by_sample[sample].iter().for_each(|(c, s)| weight[*c] += s);
            let from = end(*sample).min(actual);
            let to = held.get(i + 1).map_or(without_all, |next| end(*next)).max(without_all);
            let all: f64 = weight.iter().sum();
            if from > to && all > 0.0 {
                cost.iter_mut().zip(&weight).for_each(|(c, w)| *c += (from - to) * w / all);
            }
        }
        let mut out = Vec::new();
        for (cause, cost_s) in causes.iter().zip(&cost).filter(|(_, c)| **c >= least) {
            let mut of: Vec<&Excess> = excesses.iter().filter(|e| e.cause == **cause).collect();
            of.sort_by(|a, b| worst(step, a, b));
            let n = number[*cause];
            let alone = indices().map(|s| end(s) - of_cause(s, n)).fold(0.0, f64::max);
            let without_s = step.wall_s - (actual - alone);
            out.push(self.describe(step, cause, &of, *cost_s, without_s));
        }
        out
    }

    fn describe(&self, step: &StepSummary, cause: &Cause, of: &[&Excess], cost_s: f64, without_s: f64) -> Finding {
        let mut samples: Vec<u32> = Vec::new();
        of.iter().for_each(|e| {
            if !samples.contains(&e.sample) && samples.len() < step.samples.len() {
                samples.push(e.sample);
            }
        });
        let id = |s: &u32| step.samples[*s as usize].id.clone();
        let mut evidence = Evidence {
            count: samples.len(),
            of: step.samples.len(),
            samples: samples.iter().take(MAX_EVIDENCE).map(id).collect(),
            spans: of.iter().filter_map(|e| Some(span_ref(step, e.unit?))).take(MAX_EVIDENCE).collect(),
            measured: median(of.iter().map(|e| e.measured)),
            usual: median(of.iter().map(|e| e.usual)),
            ..Evidence::default()
        };
        // In samples, what they lost is the sum over their units.
        let mut lost: HashMap<u32, f64> = HashMap::new();
        of.iter().for_each(|e| *lost.entry(e.sample).or_default() += e.seconds);
        let each = median(lost.values().copied()).unwrap_or(0.0);
        let seconds = |failed: bool| -> f64 {
            of.iter().filter(|e| e.unit.is_some_and(|u| u.failed) == failed).map(|e| e.seconds).sum()
        };
        let failed = seconds(true) > seconds(false);
        let people = super::words::some_of(samples.len(), step.samples.len(), "sample");
        let measured = evidence.measured.unwrap_or(0.0);
        let usual = evidence.usual.unwrap_or(0.0);
        let time = super::words::time;
        let (kind, text) = match cause {
            Cause::Tool(tool) => {
                evidence.tool = Some(tool.clone());
                (
                    "slow_tool",
                    format!("{people} waited {} for the `{tool}` tool (usually {})", time(measured), time(usual)),
                )
            }
            Cause::Tokens => (
                "long_outputs",
                format!(
                    "{people} produced outputs of {:.0} tokens (the longest usual ones have {:.0}), which took {} longer to decode",
                    measured,
                    usual,
                    time(each)
                ),
            ),
            Cause::Group(group) => {
                evidence.group = Some(group.clone());
                (
                    "straggling_group",
                    format!(
                        "group {group} decoded at {measured:.0} tokens/s (usually {usual:.0}) and {people} held up the rest"
                    ),
                )
            }
            Cause::Pace => ("slow_decode", format!("{people} decoded at {measured:.0} tokens/s (usually {usual:.0})")),
            Cause::Queue(engine) => {
                evidence.engine = Some(engine.clone()).filter(|e| !e.is_empty());
                let at = if engine.is_empty() { String::new() } else { format!(" for {engine}") };
                ("starved_engine", format!("{people} queued {}{at} (usually {})", time(measured), time(usual)))
            }
            Cause::Transfer => (
                "kv_transfer_stall",
                format!("KV cache transfers took {} (usually {}), in {people}", time(measured), time(usual)),
            ),
            Cause::Prefill => {
                ("slow_prefill", format!("prefill took {} (usually {}) in {people}", time(measured), time(usual)))
            }
            Cause::Reward if failed => (
                "reward_timeout",
                format!("the reward of {people} failed after {} (usually {})", time(measured), time(usual)),
            ),
            Cause::Reward => {
                ("slow_reward", format!("the reward of {people} took {} (usually {})", time(measured), time(usual)))
            }
            Cause::Retry => {
                ("retries", format!("{people} lost {} to failed attempts (usually {})", time(measured), time(usual)))
            }
        };
        Finding { kind, step: step.step, text, cost_s, without_s: Some(without_s), evidence }
    }

    fn of_phases(&self, index: usize, least: f64) -> Vec<Finding> {
        let step = self.steps[index];
        let mut out = Vec::new();
        for phase in step.phases.iter().filter(|p| p.name != BETWEEN && p.kind != Kind::Rollout) {
            let others = self.steps.iter().enumerate().filter(|(i, s)| *i != index && !s.running);
            let lengths: Vec<f64> =
                others.filter_map(|(_, s)| s.phases.iter().find(|p| p.name == phase.name)).map(|p| p.seconds).collect();
            let Some((usual, spread)) = middle(&lengths).filter(|_| lengths.len() >= PHASE_STEPS) else { continue };
            let more = phase.seconds - usual;
            if more < least || more < PHASE_SPREADS * spread || more < PHASE_SHARE * usual {
                continue;
            }
            let kind = if phase.kind == Kind::WeightSync { "slow_weight_sync" } else { "slow_phase" };
            let time = super::words::time;
            let what = if phase.kind == Kind::WeightSync {
                "the weight sync".to_string()
            } else {
                format!("`{}`", phase.name)
            };
            out.push(Finding {
                kind,
                step: step.step,
                text: format!("{what} took {} (usually {})", time(phase.seconds), time(usual)),
                cost_s: more,
                without_s: Some(step.wall_s - more),
                evidence: Evidence {
                    count: 1,
                    of: 1,
                    phase: Some(phase.name.clone()),
                    measured: Some(phase.seconds),
                    usual: Some(usual),
                    ..Evidence::default()
                },
            });
        }
        out
    }
}

/// Clocks and completeness: they cost nothing, but they limit how far to trust the rest.
fn of_data(step: &StepSummary) -> Vec<Finding> {
    let mut out = Vec::new();
    let plain = |kind, text, evidence| Finding { kind, step: step.step, text, cost_s: 0.0, without_s: None, evidence };
    for clock in &step.clocks {
        let way = if clock.ahead_ms > 0.0 { "ahead of" } else { "behind" };
        let text = format!(
            "the clock of {} is {} {way} the clocks of its callers (±{}); its times were moved",
            clock.sender,
            super::words::time(clock.ahead_ms.abs() / 1e3),
            super::words::time(clock.uncertain_ms / 1e3),
        );
        let evidence = Evidence {
            count: clock.pairs,
            of: clock.pairs,
            engine: Some(clock.sender.clone()),
            measured: Some(clock.ahead_ms / 1e3),
            usual: Some(0.0),
            ..Evidence::default()
        };
        out.push(plain("clock_skew", text, evidence));
    }
    if step.running {
        return out;
    }
    let orphans = step.missing_parents;
    // An engine that reports on most generations reports on all, unless reports got lost.
    let silent = if step.reported * 2 > step.generations { step.generations - step.reported } else { 0 };
    if orphans as f64 > MISSING_SHARE * step.spans as f64
        || silent as f64 > 2.0 * MISSING_SHARE * step.generations as f64
    {
        let mut text = format!("data is missing: the parent of {orphans} of {} spans never arrived", step.spans);
        if silent > 0 {
            text.push_str(&format!(", and no engine reported on {silent} of {} generations", step.generations));
        }
        let evidence = Evidence { count: orphans, of: step.spans, ..Evidence::default() };
        out.push(plain("dropped_data", text, evidence));
    }
    out
}

fn worst(step: &StepSummary, a: &Excess, b: &Excess) -> Ordering {
    let end = |e: &Excess| step.samples[e.sample as usize].end;
    b.seconds.total_cmp(&a.seconds).then_with(|| end(b).total_cmp(&end(a))).then_with(|| a.sample.cmp(&b.sample))
}

fn span_ref(step: &StepSummary, unit: &UnitSummary) -> SpanRef {
    let sample_id = if unit.sample == NONE { String::new() } else { step.samples[unit.sample as usize].id.clone() };
    SpanRef { trace_id: hex::encode(unit.span.0), span_id: hex::encode(unit.span.1), sample_id, seconds: unit.seconds }
}
