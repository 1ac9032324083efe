//! What each cause did to the samples of a step.
//!
//! **Excess.** For every factor ([`super::factors`]) the step's values are compared rank by rank with what is usual
//! ([`super::history`]). What a request or call took beyond that is its excess: seconds, or tokens at the pace they had. A
//! sample's requests and calls follow one another, so without an excess the sample would have ended that much earlier.
//! Excesses can be negative: luck counts both ways.
//!
//! **Cost.** How much earlier the last sample would have ended without the cause.
//!
//! **First and second causes.** Output lengths, prompts, tools, rewards and the health of an engine come from outside. Queues and
//! the pace of decoding also follow from them: longer outputs fill the engines. So where something from outside changed,
//! what queues and pace add is its doing; they stand for themselves only where nothing else explains them.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::causes::Cause;
use super::engines::{Engines, Trouble};
use super::factors::Factor;
use super::history::{History, Usual, Work};
use super::samples::Part;
use super::step::NONE;
use super::summary::{RequestSummary, StepSummary};

/// A request or call that took longer than usual.
#[derive(Clone, Debug)]
pub struct Unit {
    pub sample: u32,
    pub span: ([u8; 16], [u8; 8]),
    pub excess: f64,
    /// As it is reported: seconds, tokens, or tokens per second.
    pub measured: f64,
    /// How many times what is usual for its rank.
    pub times: f64,
    pub seconds: f64,
    pub failed: bool,
}

/// Seconds by sample, of those that are concerned.
#[derive(Clone, Debug, Default)]
pub struct Excess(Vec<Option<f64>>);

impl Excess {
    pub fn get(&self, sample: u32) -> Option<f64> {
        self.0.get(sample as usize).copied().flatten()
    }

    fn add(&mut self, sample: u32, seconds: f64) {
        let sample = sample as usize;
        if self.0.len() <= sample {
            self.0.resize(sample + 1, None);
        }
        *self.0[sample].get_or_insert(0.0) += seconds;
    }

    fn iter(&self) -> impl Iterator<Item = (u32, f64)> {
        self.0.iter().enumerate().filter_map(|(sample, seconds)| Some((sample as u32, (*seconds)?)))
    }

    /// The same for some samples only.
    fn of(&self, samples: impl Fn(u32) -> bool) -> Excess {
        let kept = self.0.iter().enumerate().map(|(sample, seconds)| seconds.filter(|_| samples(sample as u32)));
        Excess(kept.collect())
    }
}

#[derive(Clone, Debug)]
pub struct Effect {
    pub cause: Cause,
    pub excess: Excess,
    pub units: Vec<Unit>,
    /// What is usual, as it is reported.
    pub usual: f64,
    /// How much earlier the last sample would have ended.
    pub cost: f64,
}

impl Effect {
    fn new(cause: Cause, usual: f64) -> Effect {
        Effect { cause, excess: Excess::default(), units: Vec::new(), usual, cost: 0.0 }
    }

    fn add(&mut self, unit: Unit) {
        self.excess.add(unit.sample, unit.excess);
        self.units.push(unit);
    }

    /// Sum of what is positive.
    pub fn total(&self) -> f64 {
        self.excess.iter().map(|(_, seconds)| seconds).filter(|s| *s > 0.0).sum()
    }
}

/// When the last sample would have ended without these excesses.
pub fn end_without<'a>(step: &StepSummary, effects: impl Iterator<Item = &'a Effect> + Clone) -> f64 {
    let ends = step.samples.iter().enumerate().map(|(at, sample)| {
        let excess: f64 = effects.clone().filter_map(|e| e.excess.get(at as u32)).sum();
        sample.end - excess.min(sample.end - sample.start)
    });
    ends.fold(0.0, f64::max)
}

pub fn last_end(step: &StepSummary) -> f64 {
    step.samples.iter().map(|s| s.end).fold(0.0, f64::max)
}

/// Everything that could explain when the samples of a step ended. Costs are those of each alone.
pub fn effects(step: &StepSummary, history: &History, engines: &Engines, index: usize) -> Vec<Effect> {
    if step.samples.is_empty() {
        return Vec::new();
    }
    let compare = Compare { step, history, index };
    let mut troubles = engines.troubles(step, &history.others(index), index);
    if compare.is_filled() {
        // They wait where more is to be prefilled.
        troubles.retain(|trouble| !matches!(trouble.cause, Cause::Starved(_)));
    }
    let last = last_end(step);
    let mut out: Vec<Effect> = Vec::new();
    let mut felt: Vec<&Trouble> = Vec::new();
    for trouble in &troubles {
        let effect = of_engine(step, trouble);
        // What nobody felt explains nothing: its requests are compared as all others are.
        if last - end_without(step, std::iter::once(&effect)) > FELT * last {
            felt.push(trouble);
            out.push(effect);
        }
    }
    let troubled = |request: &RequestSummary| felt.iter().any(|t| t.concerns(request));
    out.extend(compare.calls());
    out.extend(compare.tokens(&troubled));
    out.extend(compare.prompts(&troubled));
    out.extend(compare.plain(Factor::Transfer, Cause::Transfer, &|_| false));
    out.extend(compare.plain(Factor::Rest, Cause::Rest, &|_| false));
    if !history.fills_the_pipeline(index) {
        out.extend(compare.plain(Factor::Queue, Cause::Queue, &troubled));
        out.extend(compare.paces(&troubled));
    }
    out.extend(compare.retries(&out));
    compare.fill_engines(&mut out);
    if let Some(mix) = history.mix(index).filter(|mix| mix.outputs)
        && let Some(effect) = compare.mix(mix.source.clone(), &troubled)
    {
        compare.mixed(&mut out, effect, mix.is_clear);
    }
    for effect in &mut out {
        effect.cost = last - end_without(step, std::iter::once(&*effect));
    }
    out
}

/// A request, its value of a factor, and what is usual for its rank.
type Ranked = (usize, f64, f64);

/// Is the request explained by its engine?
type Troubled<'t> = &'t dyn Fn(&RequestSummary) -> bool;

/// Slow requests decode this many times more slowly than those of full engines usually do.
const SLOWER_THAN_FULL: f64 = 1.2;

/// Of the time until the last sample ended.
const FELT: f64 = 0.03;

struct Compare<'a> {
    step: &'a StepSummary,
    history: &'a History,
    index: usize,
}

impl Compare<'_> {
    fn usual(&self, factor: &Factor, count: usize) -> Option<Usual> {
        self.history.usual(factor, self.index, count)
    }

    /// Requests with their value of a factor and what is usual for their rank.
    fn ranked(&self, factor: &Factor, troubled: Troubled) -> Option<(Vec<Ranked>, Usual)> {
        let requests = self.step.requests.iter().enumerate();
        let of = requests.filter(|(_, request)| !request.failed && !troubled(request));
        let values: Vec<(usize, f64)> = match factor {
            Factor::TokensOf(source) => of
                .filter(|(_, request)| self.step.samples[request.sample as usize].source == *source)
                .filter_map(|(at, request)| Some((at, request.value(&Factor::Tokens)?)))
                .collect(),
            factor => of.filter_map(|(at, request)| Some((at, request.value(factor)?))).collect(),
        };
        self.rank(factor, values)
    }

    fn rank(&self, factor: &Factor, mut values: Vec<(usize, f64)>) -> Option<(Vec<Ranked>, Usual)> {
        if values.is_empty() {
            return None;
        }
        values.sort_unstable_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        let usual = self.usual(factor, values.len())?;
        let ranked = values.iter().zip(&usual.ranks).map(|((at, value), usual)| (*at, *value, *usual)).collect();
        Some((ranked, usual))
    }

    fn unit(&self, (request, value, usual): Ranked, excess: f64, measured: f64) -> Unit {
        let r = &self.step.requests[request];
        let (sample, span, failed) = (r.sample, r.span, r.failed);
        Unit { sample, span, excess, measured, times: times(value, usual), seconds: r.end - r.start, failed }
    }

    /// Seconds that are compared as they are.
    fn plain(&self, factor: Factor, cause: Cause, troubled: Troubled) -> Option<Effect> {
        let (ranked, usual) = self.ranked(&factor, troubled)?;
        let mut effect = Effect::new(cause, usual.middle);
        for ranked @ (_, value, usual) in ranked {
            effect.add(self.unit(ranked, value - usual, value));
        }
        Some(effect)
    }

    fn calls(&self) -> Vec<Effect> {
        let mut by_tool: HashMap<u32, Vec<(usize, f64)>> = HashMap::new();
        for (at, call) in self.step.calls.iter().enumerate() {
            by_tool.entry(call.tool).or_default().push((at, call.seconds));
        }
        let mut out = Vec::new();
        for (tool, values) in by_tool {
            let (factor, cause) = match tool {
                NONE => (Factor::Reward, Cause::Reward),
                tool => {
                    let tool = self.step.key(tool).to_string();
                    (Factor::Tool(tool.clone()), Cause::Tool(tool))
                }
            };
            let Some((ranked, usual)) = self.rank(&factor, values) else { continue };
            let mut effect = Effect::new(cause, usual.middle);
            for (at, value, usual) in ranked {
                let call = &self.step.calls[at];
                let (sample, span, failed) = (call.sample, call.span, call.failed);
                let times = times(value, usual);
                effect.add(Unit {
                    sample,
                    span,
                    excess: value - usual,
                    measured: value,
                    times,
                    seconds: value,
                    failed,
                });
            }
            out.push(effect);
        }
        out.sort_by(|a, b| a.cause.cmp(&b.cause));
        out
    }

    /// Longer outputs. Tokens cost what they cost in that request.
    fn tokens(&self, troubled: Troubled) -> Option<Effect> {
        let (ranked, usual) = self.ranked(&Factor::Tokens, troubled)?;
        let seconds_per_token = |at: usize| {
            let r = &self.step.requests[at];
            r.decode() / r.tokens.max(1.0)
        };
        let mut all = Effect::new(Cause::Tokens, usual.longest());
        for ranked @ (at, value, usual) in &ranked {
            all.add(self.unit(*ranked, (value - usual) * seconds_per_token(*at), *value));
        }
        let mut sources: Vec<&str> = self.step.samples.iter().map(|s| s.source.as_str()).collect();
        sources.sort_unstable();
        sources.dedup();
        if sources.len() < 2 {
            return Some(all);
        }
        // Compared within their source, what is left is no matter of the mix.
        let mut within = Effect::new(Cause::Tokens, usual.longest());
        for source in &sources {
            let Some((ranked, _)) = self.ranked(&Factor::TokensOf(source.to_string()), troubled) else { continue };
            for ranked @ (at, value, usual) in ranked {
                within.add(self.unit(ranked, (value - usual) * seconds_per_token(at), value));
            }
        }
        Some(within)
    }

    /// More samples of a source with longer outputs. What a sample made in all its turns is compared with what samples usually make.
    fn mix(&self, source: String, troubled: Troubled) -> Option<Effect> {
        let mut made: BTreeMap<u32, (f64, f64, usize)> = BTreeMap::new();
        for (at, request) in self.step.requests.iter().enumerate().filter(|(_, r)| !r.failed && !troubled(r)) {
            if let Some(tokens) = request.value(&Factor::Tokens) {
                let of = made.entry(request.sample).or_insert((0.0, 0.0, at));
                *of = (of.0 + tokens, of.1 + request.decode(), at);
            }
        }
        let values = made.iter().map(|(sample, (tokens, ..))| (*sample as usize, *tokens)).collect();
        let (ranked, usual) = self.rank(&Factor::Made, values)?;
        let mut effect = Effect::new(Cause::Mix(source), usual.longest());
        for (sample, value, usual) in ranked {
            let (_, seconds, request) = made[&(sample as u32)];
            let excess = (value - usual) * seconds / value.max(1.0);
            effect.add(self.unit((request, value, usual), excess, value));
        }
        Some(effect)
    }

    /// Prefill: longer prompts, fewer of their tokens in the cache, or a lower pace.
    fn prompts(&self, troubled: Troubled) -> Vec<Effect> {
        let mut out = Vec::new();
        if let Some((ranked, _)) = self.ranked(&Factor::Uncached, troubled) {
            let prompt = self.ranked(&Factor::Prompt, troubled);
            let sum = |of: &[Ranked]| -> (f64, f64) { (of.iter().map(|v| v.1).sum(), of.iter().map(|v| v.2).sum()) };
            let (long, usually) = prompt.as_ref().map_or((0.0, 0.0), |(ranked, _)| sum(ranked));
            let (fresh, usually_fresh) = sum(&ranked);
            // Of the tokens to prefill beyond the usual, those that longer prompts bring at the usual share of misses.
            let longer = self.history.more_work(Work::Prompts, self.index).unwrap_or(long / usually.max(1.0));
            let is_length = (longer - 1.0) * usually_fresh >= 0.5 * (fresh - usually_fresh);
            let (cause, factor) =
                if is_length { (Cause::Prompts, Factor::Prompt) } else { (Cause::Cache, Factor::Uncached) };
            let usual = self.usual(&factor, ranked.len()).map_or(0.0, |u| u.middle);
            let mut effect = Effect::new(cause, usual);
            for ranked @ (at, value, usual) in ranked {
                let r = &self.step.requests[at];
                let measured = r.value(&factor).unwrap_or(value);
                effect.add(self.unit(ranked, r.prefill * (1.0 - usual / value.max(1.0)), measured));
            }
            out.push(effect);
        }
        let mut pace = Effect::new(Cause::Prefill, 0.0);
        let mut usuals = Vec::new();
        if let Some((ranked, _)) = self.ranked(&Factor::PrefillPace, troubled) {
            for ranked @ (at, value, usual) in ranked {
                let r = &self.step.requests[at];
                pace.add(self.unit(ranked, r.prefill * (1.0 - usual / value), r.prefill));
                usuals.push(r.prefill * usual / value);
            }
        }
        if let Some((ranked, _)) = self.ranked(&Factor::Prefill, troubled) {
            for ranked @ (_, value, usual) in ranked {
                pace.add(self.unit(ranked, value - usual, value));
                usuals.push(usual);
            }
        }
        pace.usual = super::robust::median(usuals).unwrap_or(0.0);
        if !pace.units.is_empty() {
            out.push(pace);
        }
        out
    }

    /// Decoding slower than usual: everywhere, or in one group.
    fn paces(&self, troubled: Troubled) -> Option<Effect> {
        let mut effect = Effect::new(Cause::Pace, 0.0);
        if let Some((ranked, usual)) = self.ranked(&Factor::Pace, troubled) {
            effect.usual = 1.0 / usual.middle.max(1e-9);
            for ranked @ (at, value, usual) in ranked {
                let r = &self.step.requests[at];
                effect.add(self.unit(ranked, r.decode() * (1.0 - usual / value), 1.0 / value));
            }
        }
        if let Some((ranked, _)) = self.ranked(&Factor::Decode, troubled) {
            for ranked @ (_, value, usual) in ranked {
                effect.add(self.unit(ranked, value - usual, value));
            }
        }
        if effect.units.is_empty() {
            return None;
        }
        // One group that holds most of the excess is a group's matter, not the engines'.
        let mut by_group: HashMap<&str, f64> = HashMap::new();
        for (sample, excess) in effect.excess.iter().filter(|(_, s)| *s > 0.0) {
            let group = self.step.samples[sample as usize].group.as_str();
            *by_group.entry(group).or_default() += excess;
        }
        let all: f64 = by_group.values().sum();
        let most = by_group.iter().max_by(|a, b| a.1.total_cmp(b.1).then_with(|| b.0.cmp(a.0)));
        if let Some((group, excess)) = most
            && !group.is_empty()
            && by_group.len() >= 4
            && *excess > 0.7 * all
        {
            effect.cause = Cause::Group(group.to_string());
            let members = |sample: u32| self.step.samples[sample as usize].group == **group;
            effect.units.retain(|unit| members(unit.sample));
            effect.excess = effect.excess.of(members);
        }
        Some(effect)
    }

    /// An engine prefills one prompt after the other, and decodes more slowly meanwhile: a request waits for the prompts of others
    /// more than for its own. So where there is clearly more to prefill than usual, and not because outputs were longer,
    /// queues and pace are the prompts' doing.
    fn is_filled(&self) -> bool {
        let grew = |work| self.history.more_work(work, self.index).is_some();
        grew(Work::Prompts) || !grew(Work::Outputs) && grew(Work::Uncached)
    }

    fn fill_engines(&self, out: &mut Vec<Effect>) {
        let fills = |effect: &Effect| matches!(effect.cause, Cause::Prompts | Cause::Cache);
        let Some(at) = out.iter().position(fills).filter(|_| self.is_filled()) else { return };
        let mut prompts = out.swap_remove(at);
        let follows = |effect: &Effect| effect.cause.is_second() || effect.cause == Cause::Prefill;
        for effect in out.iter().filter(|effect| follows(effect)) {
            take_over(&mut prompts, effect, 1.0);
        }
        out.retain(|effect| !follows(effect));
        out.push(prompts);
    }

    /// More work of another kind fills the engines, too. What outputs within their sources cost is no matter of the mix.
    fn mixed(&self, out: &mut Vec<Effect>, mut mix: Effect, is_clear: bool) {
        let last = last_end(self.step);
        let cost = |effect: &Effect| last - end_without(self.step, std::iter::once(effect));
        // Full engines decode slowly for longer, not more slowly than ever.
        let is_slower = self.history.slow_pace(self.index).is_some_and(|times| times > SLOWER_THAN_FULL);
        let follows = |effect: &Effect| match effect.cause {
            Cause::Queue => true,
            _ => effect.cause.is_second() && !is_slower,
        };
        for effect in out.iter().filter(|effect| follows(effect)) {
            take_over(&mut mix, effect, 1.0);
        }
        let within = out.iter().find(|effect| effect.cause == Cause::Tokens).map_or(0.0, cost);
        if within < if is_clear { 1.0 } else { 0.5 } * cost(&mix) {
            out.retain(|effect| !follows(effect) && effect.cause != Cause::Tokens);
            out.push(mix);
        }
    }

    fn retries(&self, before: &[Effect]) -> Option<Effect> {
        let lost: Vec<(usize, f64)> =
            self.step.samples.iter().map(|s| s.parts[Part::Retry as usize]).enumerate().collect();
        let (ranked, usual) = self.rank(&Factor::Retry, lost)?;
        let mut effect = Effect::new(Cause::Retry, usual.middle);
        for (at, value, usual) in ranked.into_iter().filter(|(_, value, usual)| *value > 0.0 || *usual > 0.0) {
            // What made it fail explains it better: an engine, a tool, a judge.
            let fails = |cause: &Cause| cause.is_engines() || matches!(cause, Cause::Tool(_) | Cause::Reward);
            let before = before.iter().filter(|e| fails(&e.cause));
            let known: f64 = before.filter_map(|e| e.excess.get(at as u32)).filter(|s| *s > 0.0).sum();
            let excess = value - usual - known.min((value - usual).max(0.0));
            let sample = &self.step.samples[at];
            // They stand by sample.
            let first = self.step.requests.partition_point(|r| r.sample < at as u32);
            let first = self.step.requests.get(first).filter(|r| r.sample == at as u32);
            let span = first.map_or_else(Default::default, |r| r.span);
            effect.add(Unit {
                sample: at as u32,
                span,
                excess,
                measured: value,
                times: times(value, usual),
                seconds: sample.end - sample.start,
                failed: true,
            });
        }
        Some(effect)
    }
}

fn times(value: f64, usual: f64) -> f64 {
    value / usual.max(1e-3 * value).max(1e-9)
}

fn of_engine(step: &StepSummary, trouble: &Trouble) -> Effect {
    let mut effect = Effect::new(trouble.cause.clone(), trouble.usual);
    for (at, excess) in &trouble.excess {
        let r = &step.requests[*at];
        let (sample, span, failed, seconds) = (r.sample, r.span, r.failed, r.end - r.start);
        let (measured, times) = (trouble.measured, times(seconds, seconds - excess));
        effect.add(Unit { sample, span, excess: *excess, measured, times, seconds, failed });
    }
    effect
}

/// Gives what queues and pace added to the causes from outside that explain it.
pub fn merge_second_causes(step: &StepSummary, effects: Vec<Effect>) -> Vec<Effect> {
    let (second, mut first): (Vec<Effect>, Vec<Effect>) = effects.into_iter().partition(|e| e.cause.is_second());
    let last = last_end(step);
    let outside: f64 = first.iter().map(Effect::total).sum();
    let mut second = second;
    if first.is_empty() {
        // Of queues and pace, one brings the other: the one that was found first.
        if second.len() > 1 {
            let other = second.split_off(1);
            for effect in &other {
                take_over(&mut second[0], effect, 1.0);
            }
        }
        first = second;
    } else {
        for effect in second {
            if effect.total() > MOST_INDUCED * outside {
                first.push(effect);
                continue;
            }
            for cause in first.iter_mut().filter(|cause| !cause.cause.is_second()) {
                let share = cause.total() / outside;
                take_over(cause, &effect, share);
            }
        }
    }
    for effect in &mut first {
        // Beside others it may have cost more than alone.
        effect.cost = effect.cost.max(last - end_without(step, std::iter::once(&*effect)));
    }
    first
}

/// Queues and pace that add more than so many times what comes from outside have a cause of their own.
const MOST_INDUCED: f64 = 4.0;

fn take_over(cause: &mut Effect, induced: &Effect, share: f64) {
    induced.excess.iter().for_each(|(sample, seconds)| cause.excess.add(sample, seconds * share));
}
