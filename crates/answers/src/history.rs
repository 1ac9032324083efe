//! What is usual in a run, factor by factor: calls of one tool, queue times, seconds per token, ...
//!
//! A step's values of a factor are put in order. What is usual for the value at a rank is the **median over the other steps of
//! their value at the same rank** (as a share of how many there are). So a step is compared with its run as a whole
//! distribution: a step in which all values doubled differs at every rank, a step with four wild values at its top ranks,
//! and the longest of many values is compared with the longest of other steps, not with the typical one. A median over
//! steps is not moved by a few wild steps. The nearest [`MAX_STEPS`] steps count, so that slow drifts do not matter.
//!
//! A step without others to compare with is its own reference: its median stands for values that are far beyond it, others
//! are what they are.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hashbrown::HashMap;

use super::factors::Factor;
use super::parallel;
use super::robust::{median, median_of, middle, sorted};
use super::step::NONE;
use super::summary::StepSummary;

/// Steps that a step is compared with.
pub const MAX_STEPS: usize = 24;
/// Steps with values, and values in them together, that are needed to speak of what is usual.
const FEW_STEPS: usize = 3;
const FEW_VALUES: usize = 12;
/// Values needed for a step to be its own reference.
const ENOUGH_ALONE: usize = 8;
const ALONE: f64 = 3.0;
/// Ranks that are looked up one by one, from the top; below them, every so many.
const EXACT_RANKS: usize = 64;
const OTHER_RANKS: usize = 256;

/// Work grew if it is this much more, and so many spreads.
const MORE: f64 = 0.25;
const MORE_SPREADS: f64 = 5.0;

/// The mix of sources changed if one has this much more of the samples, and if that makes their outputs this much longer.
const MIX_MORE: f64 = 0.1;
const MIX_LONGER: f64 = 0.1;
/// No chance: so much more than usual, and than in any other step.
const MIX_CLEARLY_MORE: f64 = 0.25;
const MIX_BEYOND_ALL: f64 = 0.15;

/// Steps with as many values of a source are compared rank by rank. If there are so many times more than usual, all values of
/// the other steps are taken together: the longest of few are shorter than the longest of many.
const MANY_MORE: f64 = 1.5;

/// Of requests in order of their pace.
const SLOW_ONES: f64 = 0.9;

/// Rollouts begin together if the next one does in this part of the first.
const PIPELINE: f64 = 0.5;

/// What samples made together, and how long they were with their prompts.
#[derive(Clone, Copy, Default)]
struct Made {
    samples: f64,
    tokens: f64,
    sequences: f64,
}

impl Made {
    fn add(&mut self, other: &Made) {
        self.samples += other.samples;
        self.tokens += other.tokens;
        self.sequences += other.sequences;
    }
}

/// A source of which there is more than usual.
pub struct Mix {
    pub source: String,
    /// So much more that it is no chance.
    pub is_clear: bool,
    /// It explains most of what the outputs, or whole sequences, are longer by.
    pub outputs: bool,
    pub sequences: bool,
}

/// What engines are given to do, in tokens.
#[derive(Clone, Copy)]
pub enum Work {
    Prompts,
    Uncached,
    Outputs,
}

/// What is usual for the values of one step: one value per rank, lowest first.
pub struct Usual {
    pub ranks: Vec<f64>,
    pub middle: f64,
}

impl Usual {
    pub fn longest(&self) -> f64 {
        self.ranks.last().copied().unwrap_or(0.0)
    }
}

/// One step.
struct Past {
    /// In order.
    values: HashMap<Factor, Vec<f64>>,
    running: bool,
    /// Samples by source, and the tokens that they made.
    sources: HashMap<String, Made>,
    samples: usize,
    /// Tokens of the samples' tasks.
    prompts: f64,
    /// From the first start of a sample to the last end, in seconds since the epoch.
    window: (f64, f64),
}

impl Past {
    fn new(step: &StepSummary) -> Past {
        let mut values = values_of(step);
        values.values_mut().for_each(|of| of.sort_unstable_by(f64::total_cmp));
        let mut sources: HashMap<String, Made> = HashMap::new();
        step.samples.iter().for_each(|sample| sources.entry_ref(sample.source.as_str()).or_default().samples += 1.0);
        for request in step.requests.iter().filter(|request| !request.failed) {
            if let (Some(sample), Some(tokens)) =
                (step.samples.get(request.sample as usize), request.value(&Factor::Tokens))
            {
                sources.entry_ref(sample.source.as_str()).or_default().tokens += tokens;
            }
        }
        for (sample, sequence) in step.sequences() {
            if let Some(sample) = step.samples.get(sample as usize) {
                sources.entry_ref(sample.source.as_str()).or_default().sequences += sequence.tokens;
            }
        }
        let begin = step.start_ns as f64 / 1e9;
        let starts = step.samples.iter().map(|s| s.start).fold(f64::INFINITY, f64::min);
        let ends = step.samples.iter().map(|s| s.end).fold(f64::NEG_INFINITY, f64::max);
        Past {
            values,
            running: step.running,
            sources,
            samples: step.samples.len(),
            prompts: step.prompts,
            window: (begin + starts, begin + ends),
        }
    }
}

/// A factor, and of how many values in which step.
type Asked = (Factor, usize, usize);

pub struct History {
    steps: Vec<Past>,
    /// What is usual at the ranks that are looked up: a step is judged by its causes, and by what they cost in others.
    looked_up: Mutex<HashMap<Asked, Arc<Vec<f64>>>>,
    /// By step. Computed when it is asked for.
    mixes: Vec<OnceLock<Option<Mix>>>,
}

impl History {
    pub fn new(steps: &[&StepSummary]) -> History {
        let steps = parallel::each(steps.len(), |at| Past::new(steps[at]));
        let mixes = steps.iter().map(|_| OnceLock::new()).collect();
        History { steps, looked_up: Mutex::default(), mixes }
    }

    /// The steps that this one is compared with, the nearest first.
    pub fn others(&self, step: usize) -> Vec<usize> {
        let mut others: Vec<usize> =
            (0..self.steps.len()).filter(|at| *at != step && !self.steps[*at].running).collect();
        others.sort_by_key(|at| at.abs_diff(step));
        others.truncate(MAX_STEPS);
        others
    }

    /// The first step of an asynchronous run: the rollouts of several steps begin at once, so engines have more to do than ever after.
    pub fn fills_the_pipeline(&self, step: usize) -> bool {
        let (start, end) = self.steps[step].window;
        let windows = || self.steps.iter().map(|past| past.window).enumerate();
        let others = || windows().filter(|(at, window)| *at != step && window.0.is_finite());
        start.is_finite()
            && others().all(|(_, window)| window.0 >= start)
            && others().any(|(_, window)| window.0 < start + PIPELINE * (end - start))
    }

    /// The part of a step's samples that comes from a source.
    fn share(&self, step: usize, source: &str) -> f64 {
        let of = self.steps[step].sources.get(source).map_or(0.0, |made| made.samples);
        of / self.steps[step].samples.max(1) as f64
    }

    /// The source of which there is clearly more than usual, if that made outputs or sequences longer.
    pub fn mix(&self, step: usize) -> Option<&Mix> {
        self.mixes[step].get_or_init(|| self.find_mix(step)).as_ref()
    }

    fn find_mix(&self, step: usize) -> Option<Mix> {
        let others = self.others(step);
        if others.len() < FEW_STEPS {
            return None;
        }
        let usual = |source: &str| median(others.iter().map(|at| self.share(*at, source))).unwrap_or(0.0);
        let more = |source: &str| self.share(step, source) - usual(source);
        let sources = self.steps[step].sources.keys().filter(|source| !source.is_empty());
        let grown = sources.max_by(|a, b| more(a).total_cmp(&more(b)).then_with(|| b.cmp(a)))?;
        let most = others.iter().map(|at| self.share(*at, grown)).fold(0.0, f64::max);
        if more(grown) < MIX_MORE || self.share(step, grown) < most {
            return None;
        }
        let is_clear = more(grown) >= MIX_CLEARLY_MORE && self.share(step, grown) >= most + MIX_BEYOND_ALL;
        let outputs = self.explains(step, &others, |made| made.tokens);
        let sequences = self.explains(step, &others, |made| made.sequences);
        (outputs || sequences).then(|| Mix { source: grown.clone(), is_clear, outputs, sequences })
    }

    /// Had each sample made what samples of its source usually make, would the step have most of what it has beyond the usual?
    fn explains(&self, step: usize, others: &[usize], of: fn(&Made) -> f64) -> bool {
        // Of samples of a source that no other step has, only this step knows what they make.
        let per_sample = |source: &str| {
            let mut made = Made::default();
            others.iter().filter_map(|at| self.steps[*at].sources.get(source)).for_each(|of| made.add(of));
            if made.samples == 0.0 {
                self.steps[step].sources.get(source).into_iter().for_each(|of| made.add(of));
            }
            of(&made) / made.samples.max(1.0)
        };
        let of_step =
            |at: usize| self.steps[at].sources.keys().map(|source| self.share(at, source) * per_sample(source)).sum();
        let Some(usual) = median(others.iter().map(|at| of_step(*at))) else { return false };
        let by_mix: f64 = of_step(step) - usual;
        let made: f64 = self.steps[step].sources.values().map(of).sum();
        let beyond = made / self.steps[step].samples.max(1) as f64 - usual;
        by_mix >= MIX_LONGER * usual && by_mix >= 0.5 * beyond
    }

    /// How many times slower than usual the slow ones among a step's requests decode.
    pub fn slow_pace(&self, step: usize) -> Option<f64> {
        let slow = |at: &usize| self.steps[*at].values.get(&Factor::Pace).map(|values| self::at(values, SLOW_ONES));
        let others = self.others(step);
        Some(slow(&step)? / median(others.iter().filter_map(slow)).filter(|usual| *usual > 0.0)?)
    }

    /// How many times the usual number of tokens a step has to prefill, that its samples' tasks have, or that it makes; if that is
    /// beyond what varies.
    pub fn more_work(&self, work: Work, step: usize) -> Option<f64> {
        let of = |step: usize| match work {
            Work::Prompts => self.steps[step].prompts,
            Work::Uncached => self.sum(&Factor::Uncached, step),
            Work::Outputs => self.sum(&Factor::Tokens, step),
        };
        let others: Vec<f64> = self.others(step).into_iter().map(of).filter(|tokens| *tokens > 0.0).collect();
        let (centre, spread) = middle(&others).filter(|_| others.len() >= FEW_STEPS)?;
        let more = of(step) - centre;
        (more > (MORE_SPREADS * spread).max(MORE * centre)).then(|| of(step) / centre)
    }

    fn sum(&self, factor: &Factor, step: usize) -> f64 {
        self.steps[step].values.get(factor).map_or(0.0, |values| values.iter().sum())
    }

    /// What would be usual for this many values of a factor in this step.
    pub fn usual(&self, factor: &Factor, step: usize, count: usize) -> Option<Usual> {
        let others: Vec<&[f64]> = self
            .others(step)
            .into_iter()
            .filter_map(|at| self.steps[at].values.get(factor))
            .map(Vec::as_slice)
            .filter(|values| !values.is_empty())
            .collect();
        if others.len() >= FEW_STEPS && others.iter().map(|values| values.len()).sum::<usize>() >= FEW_VALUES {
            let asked = (factor.clone(), step, count);
            let known = self.looked_up.lock().unwrap_or_else(PoisonError::into_inner).get(&asked).cloned();
            let found = known.unwrap_or_else(|| {
                let many = median(others.iter().map(|values| values.len() as f64 * MANY_MORE));
                let together = matches!(factor, Factor::TokensOf(_)) && many.is_some_and(|many| count as f64 > many);
                let all = || sorted(others.iter().flat_map(|values| values.iter().copied()));
                let found = Arc::new(if together { look_up(&[&all()], count) } else { look_up(&others, count) });
                self.looked_up.lock().unwrap_or_else(PoisonError::into_inner).insert(asked, found.clone());
                found
            });
            let ranks = all_ranks(&found, count);
            return Some(Usual { ranks, middle: median(others.iter().map(|values| at(values, 0.5)))? });
        }
        let own =
            self.steps[step].values.get(factor).filter(|own| self.steps.len() == 1 && own.len() >= ENOUGH_ALONE)?;
        let logs: Vec<f64> = own.iter().map(|v| v.max(1e-6).ln()).collect();
        let (centre, spread) = middle(&logs)?;
        let bound = centre.exp() * (5.0 * spread).exp().max(ALONE);
        let ranks = own.iter().map(|v| if *v > bound { centre.exp() } else { *v }).collect();
        Some(Usual { ranks, middle: centre.exp() })
    }
}

/// The value at a share of sorted values; between two of them in proportion.
fn at(sorted: &[f64], share: f64) -> f64 {
    let place = (share * sorted.len() as f64 - 0.5).clamp(0.0, (sorted.len() - 1) as f64);
    let low = place as usize;
    let part = place - low as f64;
    let high = (low + 1).min(sorted.len() - 1);
    sorted[low] * (1.0 - part) + sorted[high] * part
}

/// The ranks that are looked up, of so many.
fn ranks(count: usize) -> impl Iterator<Item = usize> {
    let below = count.saturating_sub(EXACT_RANKS);
    let stride = below.div_ceil(OTHER_RANKS).max(1);
    (0..below).step_by(stride).chain(below..count)
}

/// For each of these the median of what the steps have there. Step by step, so that each is gone through from its start to its end.
fn look_up(steps: &[&[f64]], count: usize) -> Vec<f64> {
    let shares: Vec<f64> = ranks(count).map(|rank| (rank as f64 + 0.5) / count as f64).collect();
    let mut found = vec![0.0; shares.len() * steps.len()];
    for (step, values) in steps.iter().enumerate() {
        let slots = found[step..].iter_mut().step_by(steps.len());
        slots.zip(&shares).for_each(|(slot, share)| *slot = at(values, *share));
    }
    found.chunks_exact_mut(steps.len().max(1)).map(|here| median_of(here).unwrap_or(0.0)).collect()
}

/// For all ranks: those between are in proportion.
fn all_ranks(looked_up: &[f64], count: usize) -> Vec<f64> {
    let mut out = Vec::with_capacity(count);
    let mut known: Option<(usize, f64)> = None;
    for (rank, value) in ranks(count).zip(looked_up.iter().copied()) {
        if let Some((before, low)) = known {
            let gap = (rank - before) as f64;
            out.extend((before + 1..rank).map(|r| low + (value - low) * ((r - before) as f64 / gap)));
        }
        out.push(value);
        known = Some((rank, value));
    }
    out
}

/// Every value of a step that can be compared.
fn values_of(step: &StepSummary) -> HashMap<Factor, Vec<f64>> {
    let mut by_tool: HashMap<u32, Vec<f64>> = HashMap::new();
    step.calls.iter().for_each(|call| by_tool.entry(call.tool).or_default().push(call.seconds));
    let requests = || step.requests.iter().filter(|request| !request.failed);
    let of_requests = [
        Factor::Queue,
        Factor::Transfer,
        Factor::Prompt,
        Factor::Uncached,
        Factor::PrefillPace,
        Factor::Prefill,
        Factor::Tokens,
        Factor::Pace,
        Factor::Decode,
        Factor::Rest,
    ]
    .map(|factor| {
        let values = requests().filter_map(|request| request.value(&factor)).collect();
        (factor, values)
    });
    let (mut by_source, mut by_sample): (HashMap<&str, Vec<f64>>, HashMap<u32, f64>) = Default::default();
    for (sample, tokens) in requests().filter_map(|request| Some((request.sample, request.value(&Factor::Tokens)?))) {
        *by_sample.entry(sample).or_default() += tokens;
        if let Some(sample) = step.samples.get(sample as usize).filter(|sample| !sample.source.is_empty()) {
            by_source.entry(sample.source.as_str()).or_default().push(tokens);
        }
    }
    let retries = step.samples.iter().map(|sample| sample.parts[super::samples::Part::Retry as usize]).collect();
    let of_samples = [(Factor::Made, by_sample.into_values().collect()), (Factor::Retry, retries)];
    let of_calls = by_tool.into_iter().map(|(tool, values)| match tool {
        NONE => (Factor::Reward, values),
        tool => (Factor::Tool(step.key(tool).to_string()), values),
    });
    let of_sources = by_source.into_iter().map(|(source, values)| (Factor::TokensOf(source.to_string()), values));
    let all = of_calls.chain(of_requests).chain(of_sources).chain(of_samples);
    all.filter(|(_, values): &(Factor, Vec<f64>)| !values.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_compared_with_the_same_rank_of_other_steps() {
        let steps: Vec<Vec<f64>> = (0..5).map(|s| (0..10).map(|i| (s + 10 * i) as f64).collect()).collect();
        let steps: Vec<&[f64]> = steps.iter().map(Vec::as_slice).collect();
        let by_rank = |steps: &[&[f64]], count| all_ranks(&look_up(steps, count), count);
        assert_eq!(by_rank(&steps, 10), (0..10).map(|i| (2 + 10 * i) as f64).collect::<Vec<_>>());
        let many = by_rank(&steps, 1000);
        assert_eq!((many.len(), many[999], many[0]), (1000, 92.0, 2.0));
        assert!(many.windows(2).all(|w| w[0] <= w[1]));
        assert_eq!(by_rank(&steps, 1), [47.0]);
    }
}
