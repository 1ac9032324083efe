//! What is usual in a run. For every kind of unit (calls of one tool, queue times, seconds a token, ...) the values of all
//! steps are pooled and sorted once. What is usual for one step comes from the pool *without that step*:
//!
//! - the **middle** is the median, what the counterfactual puts in place of an unusual value;
//! - the **bound** is the value that one in a hundred exceeds, times a margin ([`margin`]: 1.25, more where few values speak
//!   for it), and at least twice the middle. Beyond it a value is unusual.
//!
//! Both are ranks, so a few wild values in other steps do not move them. Leaving a step out costs a scan over the largest
//! hundredth. With fewer than [`ENOUGH`] values in other steps, the step is its own reference: the bound is the median
//! times `exp(5 s)`, where `s` is the spread (median distance) of logarithms, and never less than [`ALONE`] medians.

use hashbrown::HashMap;

use super::robust::{median, middle};
use super::samples::Part;
use super::summary::StepSummary;

/// What one in a hundred exceeds is known the less the fewer values there are.
pub fn margin(values: usize) -> f64 {
    1.0 + 0.25 * (200.0 / values.max(1) as f64).sqrt().max(1.0)
}

/// An unusual value is at least this many times the median; the pace of a group is a median, which varies less.
const TIMES_MIDDLE: f64 = 2.0;
const TIMES_MIDDLE_OF_GROUPS: f64 = 1.5;
/// The pace of one request varies with what else its engine does.
const TIMES_MIDDLE_OF_PACE: f64 = 3.0;
pub const ENOUGH: usize = 20;
const ALONE: f64 = 3.0;
/// Values needed for a step to be its own reference.
const ENOUGH_ALONE: usize = 8;

/// What is pooled together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Of {
    Tool(String),
    Reward,
    Queue,
    Prefill,
    Transfer,
    Retry,
    /// Tokens of one generation, by the source of the prompt.
    Tokens(String),
    /// Of any source, for sources with too few outputs.
    AnyTokens,
    /// Seconds a token.
    Pace,
    /// The median of the same over a group.
    GroupPace,
}

/// Shorter generations reveal little about pace.
const MIN_TOKENS: f64 = 32.0;

#[derive(Default)]
struct Pool {
    /// Largest first, with the step each came from.
    values: Vec<(f64, u32)>,
    by_step: HashMap<u32, Vec<f64>>,
}

#[derive(Clone, Copy, Debug)]
pub struct Usual {
    pub middle: f64,
    /// What one in a hundred exceeds.
    pub longest: f64,
    /// Values of other steps that this rests on.
    pub values: usize,
    pub bound: f64,
}

#[derive(Default)]
pub struct History {
    pools: HashMap<Of, Pool>,
}

impl History {
    pub fn new<'a>(steps: impl Iterator<Item = &'a StepSummary>) -> History {
        let mut history = History::default();
        for (index, step) in steps.enumerate() {
            each_value(step, |of, value| {
                let pool = history.pools.entry(of).or_default();
                pool.values.push((value, index as u32));
                pool.by_step.entry(index as u32).or_default().push(value);
            });
        }
        for pool in history.pools.values_mut() {
            pool.values.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        }
        history
    }

    /// What is usual for the step at this place, by what the other steps did.
    pub fn usual(&self, of: &Of, step: u32) -> Option<Usual> {
        let pool = self.pools.get(of)?;
        let own = pool.by_step.get(&step).map_or(&[][..], Vec::as_slice);
        let others = pool.values.len() - own.len();
        if others >= ENOUGH {
            let mut left = others / 100;
            let high = pool.values.iter().filter(|(_, s)| *s != step).find(|_| {
                let here = left == 0;
                left = left.saturating_sub(1);
                here
            })?;
            let half = others / 2;
            let middle = pool.values.iter().filter(|(_, s)| *s != step).nth(half)?;
            let least = match of {
                Of::GroupPace => TIMES_MIDDLE_OF_GROUPS,
                Of::Pace => TIMES_MIDDLE_OF_PACE,
                _ => TIMES_MIDDLE,
            };
            let (middle, longest) = (middle.0, high.0);
            return Some(Usual {
                middle,
                longest,
                values: others,
                bound: (margin(others) * longest).max(least * middle),
            });
        }
        let alone = pool.by_step.len() == 1 && own.len() >= ENOUGH_ALONE;
        let logs: Vec<f64> = own.iter().map(|v| v.max(1e-6).ln()).collect();
        let (centre, spread) = middle(&logs).filter(|_| alone)?;
        let bound = centre.exp() * (5.0 * spread).exp().max(ALONE);
        Some(Usual { middle: centre.exp(), longest: bound, values: 0, bound })
    }
}

/// Seconds per token of a generation, if it is long enough.
pub fn pace(seconds: f64, tokens: f64) -> Option<f64> {
    (tokens >= MIN_TOKENS && seconds > 0.0).then(|| seconds / tokens)
}

/// Median pace of each group's generations, with their number.
pub fn group_paces(step: &StepSummary) -> HashMap<&str, (f64, usize)> {
    let mut of: HashMap<&str, Vec<f64>> = HashMap::new();
    for unit in step.units.iter().filter(|u| u.what == Part::Decode) {
        let group = step.samples[unit.sample as usize].group.as_str();
        if let Some(pace) = pace(unit.seconds, unit.tokens)
            && !group.is_empty()
        {
            of.entry(group).or_default().push(pace);
        }
    }
    of.into_iter()
        .filter(|(_, v)| v.len() >= 2)
        .filter_map(|(g, v)| Some((g, (median(v.iter().copied())?, v.len()))))
        .collect()
}

fn each_value(step: &StepSummary, mut each: impl FnMut(Of, f64)) {
    for unit in &step.units {
        match unit.what {
            Part::Tool => each(Of::Tool(step.key(unit.key).to_string()), unit.seconds),
            Part::Reward => each(Of::Reward, unit.seconds),
            Part::Queue => each(Of::Queue, unit.seconds),
            Part::Prefill => each(Of::Prefill, unit.seconds),
            Part::Transfer => each(Of::Transfer, unit.seconds),
            Part::Decode => {
                if unit.tokens.is_finite() {
                    each(Of::Tokens(step.samples[unit.sample as usize].source.clone()), unit.tokens);
                    each(Of::AnyTokens, unit.tokens);
                }
                if let Some(pace) = pace(unit.seconds, unit.tokens) {
                    each(Of::Pace, pace);
                }
            }
            _ => {}
        }
    }
    for sample in step.samples.iter().filter(|s| s.parts[Part::Retry as usize] > 0.0) {
        each(Of::Retry, sample.parts[Part::Retry as usize]);
    }
    for (pace, _) in group_paces(step).into_values() {
        each(Of::GroupPace, pace);
    }
}
