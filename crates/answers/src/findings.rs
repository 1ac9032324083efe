//! What stands out in a step, why, and what it cost.
//!
//! **Causes.** What samples lost and why is in [`super::effects`]. A cause stands out if it cost clearly more than the same
//! cause in the other steps of the run ([`Judge::stands_out`]): so what varies anyway is left in peace, however much it
//! varies.
//!
//! **Cost.** Let `T` be when the last sample ended and `T0` when it would have ended without any of the causes that stand out.
//! The step is longer by `T - T0`. At every moment between, the samples that have not ended hold it; the moment is shared
//! out among the causes of their excess, in proportion. The shares add up to `T - T0` exactly, do not depend on any order,
//! and for a single cause are its whole effect. `without_s` is the other reading: how long the step would have taken without
//! this cause alone. Phases of the trainer cost what they took beyond their median over the other steps, as far as the
//! step waited for them.
//!
//! **Threshold.** A cost counts if it is at least [`MIN_SHARE`] of the run's usual step and [`MIN_COST_S`]; what samples cost
//! must be [`MIN_SHARE_OF_SAMPLES`] (of one alone: [`MIN_SHARE_OF_ONE`]) and more than the spread of the run's steps, for rollouts vary with their prompts, and the
//! step must be longer than usual by [`MIN_FELT`] of it: what only filled time that others needed anyway slowed nothing. Clocks
//! that disagree and data that never came cost no time, but make every other number less certain: they are reported when
//! they are there. A step that is still running has no findings about missing data: parents come last.
//!
//! Sorting by end makes it n log n.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

use hashbrown::{HashMap, HashSet};
use serde::Serialize;
use utoipa::ToSchema;

use super::causes::Cause;
use super::effects::{Effect, Unit, effects, end_without, last_end, merge_second_causes};
use super::engines::Engines;
use super::history::{History, Work};
use super::kinds::Kind;
use super::phases::{BETWEEN, Phase};
use super::robust::{median, middle, quantile, sorted};
use super::summary::{RankTime, StepSummary};

pub const MIN_COST_S: f64 = 1.0;
pub const MIN_SHARE: f64 = 0.05;
/// Samples differ more from step to step than phases of the trainer do.
pub const MIN_SHARE_OF_SAMPLES: f64 = 0.1;
/// How long outputs are, and which engine they meet at, is a matter of chance more than anything else is.
const MIN_SHARE_BY_CHANCE: f64 = 0.15;
/// One sample alone is more easily chance than several with the same cause.
const MIN_SHARE_OF_ONE: f64 = 0.25;
/// What varies with prompts and luck; and the share of its cost that must show in the step's wall time.
const BY_CHANCE: [&str; 4] = ["long_outputs", "source_mix", "long_prompts", "retries"];
const MIN_FELT: f64 = 0.3;
/// A cause stands out if it cost this many spreads more than in other steps, and this share of a usual step more.
const COST_SPREADS: f64 = 4.0;
const COST_SHARE: f64 = 0.03;
/// And this many times what it costs in one step of five.
const TIMES_OFTEN: f64 = 1.3;
const OFTEN: f64 = 0.8;
/// Up to a share of the samples, how many times the usual they must be.
const UNUSUAL: [(f64, f64); 3] = [(0.15, 2.0), (0.5, 1.4), (1.0, 1.15)];
/// Requests and calls count as evidence from this part of the largest excess.
const EVIDENT: f64 = 0.2;
/// Phases: beyond this many spreads, and this share, above the median of at least this many other steps.
const PHASE_SPREADS: f64 = 6.0;
const PHASE_SHARE: f64 = 0.3;
const PHASE_STEPS: usize = 3;
/// Training is compared by tokens if seconds per token vary at most this many times as much as seconds do.
const AS_STEADY: f64 = 1.5;
/// Sequences are longer than usual beyond this many spreads, and this share.
const MORE_TOKENS_SPREADS: f64 = 3.0;
const MORE_TOKENS: f64 = 0.15;
/// A part that grew is told if it grew by this much of what the step did.
const MUCH_OF_IT: f64 = 0.4;
/// A rank is slow if it takes so many times longer than the others, beyond what is usual between ranks.
const SLOWER_RANK: f64 = 1.15;
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
    /// Where prompts come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// A rank of the trainer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
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

/// A cause that was weighed, whether it became a finding or not.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Considered {
    pub kind: &'static str,
    /// The tool, engine, group or source.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subject: String,
    /// How much earlier the last sample would have ended without it.
    pub cost_s: f64,
    /// What the samples lost to it together.
    pub sample_s: f64,
    /// What it cost in the median of the other steps.
    pub usual_cost_s: f64,
    /// Its requests or calls are far enough from the usual, for how few they are.
    pub unusual: bool,
    /// It cost clearly more than in the other steps.
    pub stands_out: bool,
}

/// What a run's steps usually take.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct UsualStep {
    pub median_s: f64,
    pub spread_s: f64,
    /// Other steps that this rests on.
    pub steps: usize,
}

impl UsualStep {
    /// Differences of this many seconds are worth a word.
    pub fn notable(&self) -> f64 {
        (2.0 * self.spread_s).max(MIN_SHARE * self.median_s)
    }
}

/// A run's steps, ready to be judged one by one.
pub struct Judge<'a> {
    pub steps: Vec<&'a StepSummary>,
    history: History,
    engines: Engines,
    /// By step: what each cause cost alone. Computed when it is asked for.
    costs: Vec<OnceLock<HashMap<Cause, f64>>>,
    /// By step: the unusual ones among its effects, from when its costs are computed until its findings are; as far as there is
    /// room for their requests and calls.
    unusual: Vec<Mutex<Option<Vec<Effect>>>>,
    room: AtomicUsize,
}

/// Requests and calls of effects that are kept, about 100 bytes each.
const ROOM: usize = 1_000_000;

impl<'a> Judge<'a> {
    pub fn new(steps: Vec<&'a StepSummary>) -> Self {
        let history = History::new(&steps);
        let engines = Engines::new(&steps);
        let costs = steps.iter().map(|_| OnceLock::new()).collect();
        let unusual = steps.iter().map(|_| Mutex::default()).collect();
        Judge { steps, history, engines, costs, unusual, room: AtomicUsize::new(ROOM) }
    }

    /// What a step of this run usually takes, by all steps but this one that are over.
    pub fn usual_step(&self, index: usize) -> Option<UsualStep> {
        let others = self.steps.iter().enumerate().filter(|(i, s)| *i != index && s.is_timed());
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
        let mut found = self.of_samples(index, least.max(MIN_SHARE_OF_SAMPLES * reference), reference);
        // Longer outputs that only filled time that others needed anyway slowed nothing.
        let felt = |f: &Finding| step.wall_s - reference >= MIN_FELT * f.cost_s;
        let (clear_mix, clear_outputs) = (self.is_clear_mix(index), self.is_clear_outputs(index));
        let is_clear = |f: &Finding| match f.kind {
            "source_mix" => clear_mix,
            "long_outputs" => clear_outputs,
            _ => false,
        };
        if usual.is_some() {
            let by_chance = |f: &Finding| BY_CHANCE.contains(&f.kind) && !is_clear(f);
            found.retain(|f| !by_chance(f) || felt(f) && (f.kind == "retries" || f.cost_s >= spread));
            found.retain(|f| f.evidence.count > 1 || f.cost_s >= MIN_SHARE_OF_ONE * reference);
        }
        found.extend(self.of_phases(index, least));
        self.lengths_in_training(index, least, &mut found);
        // Each of rollout and training may be little.
        found.retain(|f| !is_clear(f) || felt(f) && f.cost_s >= least.max(MIN_SHARE_OF_SAMPLES * reference));
        found.extend(of_data(step));
        found.sort_by(|a, b| {
            b.cost_s.total_cmp(&a.cost_s).then_with(|| a.kind.cmp(b.kind)).then_with(|| a.text.cmp(&b.text))
        });
        found
    }

    fn effects(&self, index: usize) -> Vec<Effect> {
        effects(self.steps[index], &self.history, &self.engines, index)
    }

    fn costs(&self, index: usize) -> &HashMap<Cause, f64> {
        self.costs[index].get_or_init(|| {
            let mut costs: HashMap<Cause, f64> = HashMap::new();
            let effects = self.effects(index);
            for effect in &effects {
                let cost = costs.entry(effect.cause.family()).or_default();
                *cost = cost.max(effect.cost);
            }
            let unusual = self.unusual_of(index, effects);
            let size = unusual.iter().map(|effect| effect.units.len()).sum();
            if self.room.fetch_update(Relaxed, Relaxed, |room| room.checked_sub(size)).is_ok() {
                *self.unusual[index].lock().unwrap_or_else(PoisonError::into_inner) = Some(unusual);
            }
            costs
        })
    }

    fn unusual_of(&self, index: usize, mut effects: Vec<Effect>) -> Vec<Effect> {
        effects.retain(|effect| self.is_unusual(self.steps[index], effect));
        effects
    }

    fn unusual(&self, index: usize) -> Vec<Effect> {
        self.costs(index);
        let kept = self.unusual[index].lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(effects) = &kept {
            self.room.fetch_add(effects.iter().map(|effect| effect.units.len()).sum(), Relaxed);
        }
        kept.unwrap_or_else(|| self.unusual_of(index, self.effects(index)))
    }

    /// Weighs the causes of the steps that one is compared with, on all cores.
    pub fn weigh_others(&self, index: usize) {
        let others = self.history.others(index);
        super::parallel::each(others.len(), |at| {
            self.costs(others[at]);
        });
    }

    /// More of a source, or longer outputs altogether, than chance brings: no other step needs to be asked what they cost there.
    fn is_clear(&self, index: usize, cause: &Cause) -> bool {
        match cause {
            Cause::Mix(_) => self.is_clear_mix(index),
            Cause::Tokens => self.is_clear_outputs(index),
            _ => false,
        }
    }

    fn is_clear_mix(&self, index: usize) -> bool {
        self.history.mix(index).is_some_and(|mix| mix.is_clear)
    }

    fn is_clear_outputs(&self, index: usize) -> bool {
        self.history.more_work(Work::Outputs, index).is_some()
    }

    /// Did the cause cost clearly more than it does in the other steps?
    fn stands_out(&self, index: usize, effect: &Effect, reference: f64) -> bool {
        if self.is_clear(index, &effect.cause) {
            return effect.cost > COST_SHARE * reference;
        }
        let family = effect.cause.family();
        let others = self.history.others(index);
        let usual: Vec<f64> = others.iter().map(|at| self.costs(*at).get(&family).copied().unwrap_or(0.0)).collect();
        let Some((centre, spread)) = middle(&usual).filter(|_| usual.len() >= PHASE_STEPS) else {
            return effect.cost > 0.0;
        };
        let often = quantile(&sorted(usual), OFTEN).unwrap_or(0.0);
        effect.cost > 0.0
            && effect.cost > (centre.max(0.0) + COST_SPREADS * spread).max(TIMES_OFTEN * often) + COST_SHARE * reference
    }

    /// Few samples are more easily chance than many: the fewer they are, the more unusual each must be.
    fn is_unusual(&self, step: &StepSummary, effect: &Effect) -> bool {
        // Engines are compared with each other, and all their requests speak.
        // That the mix changed is shown by the mix.
        if effect.cause.is_engines() || matches!(effect.cause, Cause::Mix(_)) {
            return true;
        }
        let is_far = |of: &[&Unit]| {
            let samples: HashSet<u32> = of.iter().map(|u| u.sample).collect();
            let share = samples.len() as f64 / step.samples.len() as f64;
            let least = UNUSUAL.iter().find(|(up_to, _)| share <= *up_to).map_or(1.0, |(_, times)| *times);
            median(of.iter().map(|u| u.times)).is_some_and(|times| times >= least)
        };
        // Of outputs, those alone that the step waited for longest: one far beyond the others is not excused by many a little beyond.
        let mut of = evident(effect);
        is_far(&of)
            || effect.cause == Cause::Tokens && {
                let middle = (last_end(step) + end_without(step, std::iter::once(effect))) / 2.0;
                of.retain(|u| step.samples[u.sample as usize].end > middle);
                is_far(&of)
            }
    }

    /// What was weighed: every cause with what it cost the samples, the costliest first.
    pub fn considered(&self, index: usize) -> Vec<Considered> {
        let step = self.steps[index];
        let reference = self.usual_step(index).map_or(step.wall_s, |u| u.median_s);
        let others = self.history.others(index);
        let weighed = |effect: Effect| {
            let family = effect.cause.family();
            let usual = others.iter().map(|at| self.costs(*at).get(&family).copied().unwrap_or(0.0));
            Considered {
                kind: effect.cause.kind(),
                subject: effect.cause.subject().to_string(),
                cost_s: effect.cost,
                sample_s: effect.total(),
                usual_cost_s: median(usual).unwrap_or(0.0),
                unusual: self.is_unusual(step, &effect),
                stands_out: self.stands_out(index, &effect, reference),
            }
        };
        let mut out: Vec<Considered> = self.effects(index).into_iter().map(weighed).collect();
        out.sort_by(|a, b| b.cost_s.total_cmp(&a.cost_s).then_with(|| (a.kind, &a.subject).cmp(&(b.kind, &b.subject))));
        out
    }

    fn of_samples(&self, index: usize, least: f64, reference: f64) -> Vec<Finding> {
        let step = self.steps[index];
        let mut left = self.unusual(index);
        if !left.iter().any(|effect| self.stands_out(index, effect, reference)) {
            cost_beside_others(step, &mut left);
        }
        // The next one is what costs most beside those found before: alone, it may have been hidden behind them.
        let mut found: Vec<Effect> = Vec::new();
        while let Some(at) = (0..left.len()).max_by(|a, b| left[*a].cost.total_cmp(&left[*b].cost))
            && self.stands_out(index, &left[at], reference)
        {
            found.push(left.swap_remove(at));
            let before = end_without(step, found.iter());
            for effect in &mut left {
                let beside = before - end_without(step, found.iter().chain(std::iter::once(&*effect)));
                effect.cost = effect.cost.max(beside);
            }
        }
        let found = merge_second_causes(step, found);
        let (last, without_all) = (last_end(step), end_without(step, found.iter()));
        // From the last end backwards: who holds the step, and why.
        let total =
            |sample: u32| -> f64 { found.iter().filter_map(|e| e.excess.get(sample)).filter(|s| *s > 0.0).sum() };
        let end = |s: u32| step.samples[s as usize].end;
        let mut held: Vec<u32> = (0..step.samples.len() as u32).filter(|s| total(*s) > 0.0).collect();
        held.sort_by(|a, b| end(*b).total_cmp(&end(*a)).then(a.cmp(b)));
        let mut cost = vec![0.0; found.len()];
        let mut weight = vec![0.0; found.len()];
        for (i, sample) in held.iter().enumerate() {
            for (weight, effect) in weight.iter_mut().zip(&found) {
                *weight += effect.excess.get(*sample).map_or(0.0, |s| s.max(0.0));
            }
            let from = end(*sample).min(last);
            let to = held.get(i + 1).map_or(without_all, |next| end(*next)).max(without_all);
            let all: f64 = weight.iter().sum();
            if from > to && all > 0.0 {
                cost.iter_mut().zip(&weight).for_each(|(c, w)| *c += (from - to) * w / all);
            }
        }
        let least = |effect: &Effect| match effect.cause {
            Cause::Mix(_) | Cause::Tokens if self.is_clear(index, &effect.cause) => 0.0,
            Cause::Tokens | Cause::Mix(_) | Cause::Starved(_) => least.max(MIN_SHARE_BY_CHANCE * reference),
            _ => least,
        };
        let worth = found.iter().zip(cost).filter(|(effect, cost)| *cost >= least(effect));
        worth.map(|(effect, cost)| self.describe(step, effect, cost)).collect()
    }

    fn describe(&self, step: &StepSummary, effect: &Effect, cost_s: f64) -> Finding {
        let without_s = step.wall_s - effect.cost;
        let mut of = evident(effect);
        of.sort_by(|a, b| worst(step, a, b));
        let mut seen: HashSet<u32> = HashSet::new();
        let samples: Vec<u32> = of.iter().map(|u| u.sample).filter(|s| seen.insert(*s)).collect();
        let mut evidence = Evidence {
            count: samples.len(),
            of: step.samples.len(),
            samples: samples.iter().take(MAX_EVIDENCE).map(|s| step.samples[*s as usize].id.clone()).collect(),
            spans: of.iter().take(MAX_EVIDENCE).map(|u| span_ref(step, u)).collect(),
            measured: median(of.iter().map(|u| u.measured)),
            usual: Some(effect.usual),
            ..Evidence::default()
        };
        // In samples, what they lost is the sum over their requests.
        let each = median(samples.iter().filter_map(|s| effect.excess.get(*s))).unwrap_or(0.0);
        let seconds = |failed: bool| -> f64 { of.iter().filter(|u| u.failed == failed).map(|u| u.excess).sum() };
        let failed = seconds(true) > seconds(false);
        let people = super::words::some_of(samples.len(), step.samples.len(), "sample");
        let (measured, usual) = (evidence.measured.unwrap_or(0.0), effect.usual);
        let time = super::words::time;
        let text = match &effect.cause {
            Cause::Tool(tool) => {
                let waited = if failed { "waited in vain" } else { "waited" };
                format!("{people} {waited} {} for the `{tool}` tool (usually {})", time(measured), time(usual))
            }
            Cause::Reward => {
                let took = if failed { "failed after" } else { "took" };
                format!("the reward of {people} {took} {} (usually {})", time(measured), time(usual))
            }
            Cause::Tokens => format!(
                "{people} produced outputs of {measured:.0} tokens (the longest usual ones have {usual:.0}), which took {} longer to decode",
                time(each)
            ),
            Cause::Mix(source) => {
                format!("more prompts than usual came from `{source}`, whose outputs are longer")
            }
            Cause::Prompts => format!("{people} had prompts of {measured:.0} tokens (usually {usual:.0}) to prefill"),
            Cause::Cache => format!(
                "{people} had {measured:.0} tokens to prefill that the prefix cache lacked (usually {usual:.0})"
            ),
            Cause::Prefill => format!("prefill took {} (usually {}) in {people}", time(measured), time(usual)),
            Cause::Transfer => {
                format!("KV cache transfers took {} (usually {}), in {people}", time(measured), time(usual))
            }
            Cause::Retry => format!("{people} lost {} to failed attempts (usually {})", time(measured), time(usual)),
            Cause::Rest => {
                format!("generations of {people} spent {} outside the engine (usually {})", time(measured), time(usual))
            }
            Cause::SlowEngine(engine) => {
                format!("engine {engine} decoded at {measured:.0} tokens/s (the others at {usual:.0}), in {people}")
            }
            Cause::Stall(engine) if failed => {
                format!("{measured:.0} requests failed on engine {engine}, in {people}")
            }
            Cause::Stall(engine) => format!("engine {engine} stood still for {}, in {people}", time(measured)),
            Cause::Imbalance(engine) => format!(
                "engine {engine} got {measured:.0} requests (the others {usual:.0} each), which held {people} up"
            ),
            Cause::Starved(engine) => {
                format!("{people} queued {} for {engine} (for the others {})", time(measured), time(usual))
            }
            Cause::Group(group) => format!(
                "group {group} decoded at {measured:.0} tokens/s (usually {usual:.0}) and {people} held up the rest"
            ),
            Cause::Pace => format!("{people} decoded at {measured:.0} tokens/s (usually {usual:.0})"),
            Cause::Queue => format!("{people} queued {} (usually {})", time(measured), time(usual)),
        };
        let subject = || Some(effect.cause.subject().to_string());
        match &effect.cause {
            Cause::Tool(_) => evidence.tool = subject(),
            Cause::Mix(_) => evidence.source = subject(),
            Cause::Group(_) => evidence.group = subject(),
            cause if cause.is_engines() => evidence.engine = subject(),
            _ => {}
        }
        let kind = if failed && effect.cause == Cause::Reward { "reward_timeout" } else { effect.cause.kind() };
        Finding { kind, step: step.step, text, cost_s, without_s: Some(without_s), evidence }
    }

    /// Phases of the trainer, and the time between them, against the other steps. A phase that another step lacks took no
    /// time there. What the samples explain is theirs, so the phase that holds them is left out.
    fn of_phases(&self, index: usize, least: f64) -> Vec<Finding> {
        let step = self.steps[index];
        let others: Vec<&StepSummary> = self.history.others(index).into_iter().map(|at| self.steps[at]).collect();
        if others.len() < PHASE_STEPS {
            return Vec::new();
        }
        let mut out = Vec::new();
        for (at, phase) in step.phases.iter().enumerate().filter(|(_, p)| !p.holds_samples) {
            let Some(UsualPhase { usual, spread, .. }) = usual_phase(step, phase, &others) else { continue };
            let more = (phase.seconds - usual).min(phase.on_path_s);
            if more < least || more < PHASE_SPREADS * spread || more < PHASE_SHARE * usual {
                continue;
            }
            let time = super::words::time;
            let usually =
                if usual > 0.0 { format!("usually {}", time(usual)) } else { "most steps have none".to_string() };
            let mut evidence = Evidence {
                count: 1,
                of: 1,
                phase: Some(phase.name.clone()),
                measured: Some(phase.seconds),
                usual: Some(usual),
                ..Evidence::default()
            };
            let took = time(phase.seconds);
            let (kind, text) = if phase.name == BETWEEN {
                (
                    "driver_gap",
                    format!("{took} passed between phases ({usually}): the driver did nothing that it reports"),
                )
            } else if let Some((rank, own, middle)) = self.slow_rank(index, at as u32, &others) {
                evidence.worker = Some(rank.clone());
                (evidence.measured, evidence.usual) = (Some(own), Some(middle));
                let text = format!("{rank} took {} in `{}` (the other ranks {})", time(own), phase.name, time(middle));
                ("slow_rank", text)
            } else if phase.kind == Kind::WeightSync {
                ("slow_weight_sync", format!("the weight sync took {took} ({usually})"))
            } else {
                ("slow_phase", format!("`{}` took {took} ({usually})", phase.name))
            };
            let (cost_s, without_s) = (more, Some(step.wall_s - more));
            out.push(Finding { kind, step: step.step, text, cost_s, without_s, evidence });
        }
        out
    }

    /// Longer sequences also take longer to learn from.
    fn lengths_in_training(&self, index: usize, least: f64, found: &mut Vec<Finding>) {
        let step = self.steps[index];
        let others: Vec<&StepSummary> = self.history.others(index).into_iter().map(|at| self.steps[at]).collect();
        let by_tokens = |phase: &Phase| usual_phase(step, phase, &others).map_or(0.0, |u| u.by_tokens);
        let trained: f64 = step.phases.iter().filter(|p| !p.holds_samples && p.on_path_s > 0.0).map(by_tokens).sum();
        let of_lengths = |f: &&mut Finding| ["source_mix", "long_outputs", "long_prompts"].contains(&f.kind);
        let lengths = found.iter_mut().filter(of_lengths).max_by_key(|f| f.kind == "source_mix");
        if let Some(lengths) = lengths {
            lengths.cost_s += trained.max(0.0);
            lengths.without_s = lengths.without_s.map(|s| s - trained.max(0.0));
            return;
        }
        let usual = |of: fn(&StepSummary) -> f64| middle(&others.iter().map(|s| of(s)).collect::<Vec<f64>>());
        let (Some((tokens, spread)), Some((prompts, _))) = (usual(|s| s.tokens), usual(|s| s.prompts)) else { return };
        let mix = self.history.mix(index).filter(|mix| mix.sequences);
        let is_clear = step.tokens - tokens > (MORE_TOKENS_SPREADS * spread).max(MORE_TOKENS * tokens)
            || mix.is_some_and(|mix| mix.is_clear)
            || self.history.more_work(Work::Prompts, index).is_some();
        if trained < least.max(MIN_SHARE_OF_SAMPLES * step.wall_s) || !is_clear {
            return;
        }
        let of_prompts = step.prompts - prompts > 0.5 * (step.tokens - tokens);
        let source = mix.filter(|mix| mix.is_clear || !of_prompts).map(|mix| mix.source.clone());
        let (kind, what) = match &source {
            Some(source) => ("source_mix", format!("more prompts than usual came from `{source}`: longer sequences")),
            None if of_prompts => ("long_prompts", "longer prompts".to_string()),
            None => ("long_outputs", "longer outputs".to_string()),
        };
        let text = format!(
            "{what} made {:.0} tokens to learn from (usually {tokens:.0}), so training took {} longer",
            step.tokens,
            super::words::time(trained)
        );
        let (measured, usual, count) = (Some(step.tokens), Some(tokens), step.samples.len());
        let evidence = Evidence { count, of: count, measured, usual, source, ..Evidence::default() };
        let (cost_s, without_s) = (trained, Some(step.wall_s - trained));
        found.push(Finding { kind, step: step.step, text, cost_s, without_s, evidence });
    }

    /// Where nothing stands out: the phase, or the part of the critical path, that grew most, if it grew by much of what the step
    /// did; with its seconds here and usually.
    pub fn part_that_grew(&self, index: usize) -> Option<(String, f64, f64)> {
        let (step, usual) = (self.steps[index], self.usual_step(index)?);
        let others: Vec<&StepSummary> = self.history.others(index).into_iter().map(|at| self.steps[at]).collect();
        let phases = step.phases.iter().filter(|p| !p.holds_samples).map(|phase| {
            let seconds = |s: &&StepSummary| s.phases.iter().filter(|p| p.name == phase.name).map(|p| p.seconds).sum();
            let what =
                if phase.name == BETWEEN { "the time between phases".into() } else { format!("`{}`", phase.name) };
            (what, phase.seconds, median(others.iter().map(seconds)).unwrap_or(0.0).max(0.0))
        });
        // What the trainer does has its phases.
        let contains = |kind: Kind| matches!(kind, Kind::Step | Kind::Rollout);
        let kinds = Kind::ALL.into_iter().filter(|kind| !contains(*kind) && !kind.is_trainers());
        let parts = kinds.map(|kind| {
            let seconds = |s: &&StepSummary| s.path[kind as usize];
            (kind.label().to_string(), step.path[kind as usize], median(others.iter().map(seconds)).unwrap_or(0.0))
        });
        let grew = phases.chain(parts).max_by(|a, b| (a.1 - a.2).total_cmp(&(b.1 - b.2)))?;
        (grew.1 - grew.2 >= MUCH_OF_IT * (step.wall_s - usual.median_s)).then_some(grew)
    }

    /// The rank that a phase waited for, with its time and that of the others, if it is slower than ranks usually are.
    fn slow_rank(&self, index: usize, phase: u32, others: &[&StepSummary]) -> Option<(String, f64, f64)> {
        let slowest = |step: &StepSummary, phase: u32| {
            let of: Vec<&RankTime> = step.ranks.iter().filter(|r| r.phase == phase).collect();
            let most = of.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds)).filter(|_| of.len() > 1)?;
            let rest = median(of.iter().filter(|r| r.rank != most.rank).map(|r| r.seconds))?;
            Some((step.key(most.rank).to_string(), most.seconds, rest))
        };
        let step = self.steps[index];
        let found = slowest(step, phase)?;
        let name = &step.phases[phase as usize].name;
        let usual = others.iter().filter_map(|s| {
            let at = s.phases.iter().position(|p| p.name == *name)?;
            slowest(s, at as u32).map(|(_, most, rest)| most / rest.max(1e-9))
        });
        let usual = median(usual).unwrap_or(1.0);
        (found.1 / found.2.max(1e-9) > SLOWER_RANK * usual).then_some(found)
    }
}

/// What a phase would usually take in a step.
struct UsualPhase {
    usual: f64,
    spread: f64,
    /// Of `usual`, what follows from the step having more tokens than the others.
    by_tokens: f64,
}

/// A phase that only some steps have (a checkpoint, an evaluation) is compared with those, unless it was not due; one that no other
/// has took no time there. Training takes as long as there are tokens, if it does in this run.
fn usual_phase(step: &StepSummary, phase: &Phase, others: &[&StepSummary]) -> Option<UsualPhase> {
    let seconds =
        |s: &StepSummary| -> f64 { s.phases.iter().filter(|p| p.name == phase.name).map(|p| p.seconds).sum() };
    let present: Vec<&StepSummary> = others.iter().copied().filter(|s| seconds(s) > 0.0).collect();
    if !present.is_empty() && !is_due(step, &present) {
        return Some(UsualPhase { usual: 0.0, spread: 0.0, by_tokens: 0.0 });
    }
    if present.is_empty() || phase.name == BETWEEN {
        let lengths: Vec<f64> = others.iter().map(|s| seconds(s)).collect();
        let (usual, spread) = middle(&lengths)?;
        return Some(UsualPhase { usual: usual.max(0.0), spread, by_tokens: 0.0 });
    }
    let lengths: Vec<f64> = present.iter().map(|s| seconds(s)).collect();
    let (plain, spread) = middle(&lengths)?;
    let grows = matches!(phase.kind, Kind::Train | Kind::LogProbs) && step.tokens > 0.0;
    let rates: Vec<f64> = present.iter().filter(|s| s.tokens > 0.0).map(|s| seconds(s) / s.tokens).collect();
    if let Some((rate, of_rate)) = middle(&rates).filter(|_| grows && rates.len() >= PHASE_STEPS)
        && of_rate * plain <= AS_STEADY * spread * rate
    {
        let usual = rate * step.tokens;
        return Some(UsualPhase { usual, spread: of_rate * step.tokens, by_tokens: usual - plain });
    }
    Some(UsualPhase { usual: plain, spread, by_tokens: 0.0 })
}

/// Whether what comes every so many steps, by the other steps that have it, comes in this one.
fn is_due(step: &StepSummary, present: &[&StepSummary]) -> bool {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let numbers: Vec<i64> = present.iter().filter_map(|s| s.step).collect();
    let (Some(this), [first, ..]) = (step.step, &numbers[..]) else { return true };
    let every = numbers.iter().fold(0, |every, n| gcd(every, n.abs_diff(*first)));
    // With this one, it may come more often: then at every one of these times.
    let with_this = gcd(every, this.abs_diff(*first));
    let all = || numbers.iter().copied().chain([this]);
    let (from, to) = (all().min().unwrap_or(this), all().max().unwrap_or(this));
    every == 0 || with_this == every || to.abs_diff(from) / with_this.max(1) == numbers.len() as u64
}

/// Clocks and completeness: they cost nothing, but they limit how far to trust the rest.
fn of_data(step: &StepSummary) -> Vec<Finding> {
    let mut out = Vec::new();
    let plain = |kind, text, evidence| Finding { kind, step: step.step, text, cost_s: 0.0, without_s: None, evidence };
    for clock in &step.clocks {
        let way = if clock.ahead_ms > 0.0 { "ahead of" } else { "behind" };
        let text = format!(
            "the clock of {} is at least {} {way} the clocks of its callers (up to {} more); its times were moved",
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

/// Of two causes that end together, neither costs anything alone. Each costs what it adds to the others.
fn cost_beside_others(step: &StepSummary, effects: &mut [Effect]) {
    let without_all = end_without(step, effects.iter());
    let costs: Vec<f64> = (0..effects.len())
        .map(|at| {
            let others = effects.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, e)| e);
            end_without(step, others) - without_all
        })
        .collect();
    effects.iter_mut().zip(costs).for_each(|(effect, cost)| effect.cost = effect.cost.max(cost));
}

/// The requests and calls that show a cause.
fn evident(effect: &Effect) -> Vec<&Unit> {
    let most = effect.units.iter().map(|u| u.excess).fold(0.0, f64::max);
    effect.units.iter().filter(|u| u.excess > EVIDENT * most).collect()
}

fn worst(step: &StepSummary, a: &Unit, b: &Unit) -> Ordering {
    let end = |u: &Unit| step.samples[u.sample as usize].end;
    b.excess.total_cmp(&a.excess).then_with(|| end(b).total_cmp(&end(a))).then_with(|| a.span.cmp(&b.span))
}

fn span_ref(step: &StepSummary, unit: &Unit) -> SpanRef {
    SpanRef {
        trace_id: hex::encode(unit.span.0),
        span_id: hex::encode(unit.span.1),
        sample_id: step.samples[unit.sample as usize].id.clone(),
        seconds: unit.seconds,
    }
}
