//! Engines in trouble: each is compared with the other engines of the same step, and that difference with the differences
//! between engines in the other steps. Engines of a run do the same work, so what makes one slower is its own: its machine,
//! what it was given, or a time at which it stood still.
//!
//! - **slow**: the median seconds per token of its requests, against the median of the other engines' medians.
//! - **stood still**: its slow requests lost about the same number of seconds, at a time that all of them share and in which no
//!   other ended; or many of its requests failed.
//! - **overloaded**: it got more requests than the others.
//! - **starved**: its requests waited longer than those of the others, and none of the above is the case.

use hashbrown::HashMap;

use super::causes::Cause;
use super::factors::{Factor, pace};
use super::robust::{median, middle, sorted};
use super::step::NONE;
use super::summary::{RequestSummary, StepSummary};

/// Requests from which an engine's figures are taken.
const FEW_REQUESTS: usize = 6;
/// Engines from which one can be told apart.
const FEW_ENGINES: usize = 2;
/// From this pace, and this many spreads between engines.
const SLOWER: f64 = 1.25;
const SPREADS: f64 = 5.0;
/// An engine that is this slow in every step is told, too.
const ALWAYS_SLOWER: f64 = 1.8;
/// The spread of logarithms between engines is at least this.
const LEAST_SPREAD: f64 = 0.035;
const MORE_REQUESTS: f64 = 1.35;
const LONGER_QUEUE_S: f64 = 1.0;
/// The part of an engine's queue that the others lack.
const OWN_QUEUE: f64 = 0.4;
/// Failed requests that make an engine suspect.
const FEW_FAILED: usize = 3;
/// Seconds that requests lost agree to this (spread over median) if their engine stood still.
const SAME_LOSS: f64 = 0.35;
const FAR_MORE: f64 = 6.0;
const MOST_OF_IT: f64 = 0.7;

/// An engine that held samples up.
pub struct Trouble {
    pub cause: Cause,
    engine: u32,
    /// Requests and what they lost.
    pub excess: Vec<Lost>,
    pub measured: f64,
    pub usual: f64,
}

impl Trouble {
    pub fn concerns(&self, request: &RequestSummary) -> bool {
        request.engine == self.engine
    }
}

/// A request and the seconds that it lost.
type Lost = (usize, f64);

/// One engine in one step.
struct View {
    key: u32,
    name: String,
    requests: usize,
    failed: usize,
    /// Logarithm of the median seconds per token.
    pace: Option<f64>,
    prefill: Option<f64>,
    /// The mean, and the median: whether most of its requests waited.
    queue: f64,
    typical_queue: f64,
}

pub struct Engines {
    /// By step.
    views: Vec<Vec<View>>,
}

/// How one engine differs from the others of its step.
#[derive(Clone, Copy)]
struct Differs {
    pace: f64,
    prefill: f64,
    queue: f64,
    requests: f64,
}

impl Engines {
    pub fn new(steps: &[&StepSummary]) -> Engines {
        Engines { views: super::parallel::each(steps.len(), |at| views(steps[at])) }
    }

    /// Engines that held samples of this step up. `others` are the steps to compare with.
    pub fn troubles(&self, step: &StepSummary, others: &[usize], index: usize) -> Vec<Trouble> {
        let views = &self.views[index];
        if views.len() < FEW_ENGINES {
            return Vec::new();
        }
        // Engines that always differ (another machine, another share of the work) are compared with themselves.
        let mut own: HashMap<&str, Vec<Differs>> = HashMap::new();
        for at in others {
            for (view, differs) in self.views[*at].iter().zip(differences(&self.views[*at])) {
                own.entry(view.name.as_str()).or_default().push(differs);
            }
        }
        let always: HashMap<&str, Differs> = own.iter().map(|(name, of)| (*name, Differs::median(of))).collect();
        let beyond = |name: &str, differs: Differs| always.get(name).map_or(differs, |usual| differs.minus(usual));
        let usual: Vec<Differs> = own.iter().flat_map(|(name, of)| of.iter().map(|d| beyond(name, *d))).collect();
        let spread = |of: fn(&Differs) -> f64, least: f64| {
            let values: Vec<f64> = usual.iter().map(of).filter(|v| v.is_finite()).collect();
            middle(&values).map_or(least, |(_, spread)| spread.max(least))
        };
        let (of_pace, of_requests) = (spread(|d| d.pace, LEAST_SPREAD), spread(|d| d.requests, LEAST_SPREAD));
        let of_queue = spread(|d| d.queue, LONGER_QUEUE_S / SPREADS);
        let mut served: HashMap<u32, Vec<usize>> = HashMap::new();
        for (at, request) in step.requests.iter().enumerate() {
            served.entry(request.engine).or_default().push(at);
        }
        let mut out = Vec::new();
        for (view, differs) in views.iter().zip(differences(views)) {
            let more = beyond(&view.name, differs);
            // An engine that got more requests is slower for each: at most by as much.
            let by_load = more.requests.max(0.0);
            let slow = differs.pace > SLOWER.ln()
                && (more.pace - by_load > SLOWER.ln().max(SPREADS * of_pace) || differs.pace > ALWAYS_SLOWER.ln());
            // If all engines have queues, none of them is the cause.
            let waits = view.typical_queue > LONGER_QUEUE_S
                && more.queue > LONGER_QUEUE_S.max(SPREADS * of_queue)
                && differs.queue > OWN_QUEUE * view.queue;
            let overloaded =
                differs.requests > MORE_REQUESTS.ln() && more.requests > MORE_REQUESTS.ln().max(SPREADS * of_requests);
            let failures: usize = views.iter().filter(|v| v.key != view.key).map(|v| v.failed).sum();
            let fails = view.failed >= FEW_FAILED && view.failed * (views.len() - 1) > 4 * (failures + 1);
            let of: &[usize] = served.get(&view.key).map_or(&[], Vec::as_slice);
            let usual_pace = median(views.iter().filter(|v| v.key != view.key).filter_map(|v| v.pace)).map(f64::exp);
            // Most of its requests may have come before or after.
            let still = stood_still(step, of, usual_pace, slow).filter(|_| !overloaded);
            // More requests at once make each slower.
            let strained = overloaded && more.pace > SLOWER.ln().max(SPREADS * of_pace);
            let troubled = slow || waits || fails || strained || still.is_some();
            if !troubled || of_one_group(step, of, still.as_ref(), usual_pace) {
                continue;
            }
            let name = view.name.clone();
            // Against what it usually is, unless it is always in trouble.
            let than_usual = if differs.pace > ALWAYS_SLOWER.ln() { differs } else { more };
            let excess = |at: &usize| (*at, than_usual.excess(&step.requests[*at], view));
            let tokens_per_s = |pace: Option<f64>| pace.map_or(0.0, |p| 1.0 / p.max(1e-9));
            let count = |others: bool| {
                median(views.iter().filter(|v| (v.key != view.key) == others).map(|v| v.requests as f64)).unwrap_or(0.0)
            };
            let queue = |others: bool| {
                median(views.iter().filter(|v| (v.key != view.key) == others).map(|v| v.queue)).unwrap_or(0.0)
            };
            type Named = fn(String) -> Cause;
            let (cause, excess, measured, usual): (Named, Vec<Lost>, f64, f64) = if fails {
                let lost = |at: &usize| {
                    let r = &step.requests[*at];
                    (*at, if r.failed { r.end - r.start } else { 0.0 })
                };
                (Cause::Stall, of.iter().map(lost).collect(), view.failed as f64, failures as f64)
            } else if let Some(still) = still {
                let known: HashMap<usize, f64> = still.lost.iter().copied().collect();
                let lost = |at: &usize| {
                    let request = &step.requests[*at];
                    // A long one seems to have lost less: it decodes faster once the others are done.
                    let stood = still.is_within(request).then_some(still.typical).into_iter();
                    let stood = stood.chain(known.get(at).copied()).reduce(f64::max);
                    // Those that did not get in meanwhile waited, too.
                    let waited = Some(request.queue - queue(true)).filter(|s| *s > LONGER_QUEUE_S);
                    Some((*at, stood.or(waited)?))
                };
                (Cause::Stall, of.iter().filter_map(lost).collect(), still.typical, 0.0)
            } else if overloaded {
                // Shared evenly, the others would have had more to do, too: as far from theirs as the mean is.
                let mean = views.iter().map(|v| v.requests as f64).sum::<f64>() / views.len() as f64;
                let uneven = (count(false) - mean) / (count(false) - count(true)).max(1.0);
                let lost = of.iter().map(excess).map(|(at, s)| (at, s * uneven.clamp(0.0, 1.0))).collect();
                (Cause::Imbalance, lost, count(false), count(true))
            } else if slow {
                let own = tokens_per_s(view.pace.map(f64::exp));
                (Cause::SlowEngine, of.iter().map(excess).collect(), own, tokens_per_s(usual_pace))
            } else {
                (Cause::Starved, of.iter().map(excess).collect(), queue(false), queue(true))
            };
            out.push(Trouble { cause: cause(name), engine: view.key, excess, measured, usual });
        }
        out
    }
}

impl Differs {
    fn median(of: &[Differs]) -> Differs {
        let of = |get: fn(&Differs) -> f64| median(of.iter().map(get)).unwrap_or(0.0);
        Differs {
            pace: of(|d| d.pace),
            prefill: of(|d| d.prefill),
            queue: of(|d| d.queue),
            requests: of(|d| d.requests),
        }
    }

    fn minus(&self, other: &Differs) -> Differs {
        Differs {
            pace: self.pace - other.pace,
            prefill: self.prefill - other.prefill,
            queue: self.queue - other.queue,
            requests: self.requests - other.requests,
        }
    }

    /// What a request lost by being served by this engine and not by another.
    fn excess(&self, request: &RequestSummary, view: &View) -> f64 {
        let by = |seconds: f64, log: f64| if log > 0.0 { seconds * (1.0 - (-log).exp()) } else { 0.0 };
        let queue = if self.queue > 0.0 { request.queue * (self.queue / view.queue.max(1e-9)).min(1.0) } else { 0.0 };
        by(request.decode(), self.pace) + by(request.prefill, self.prefill) + queue
    }
}

fn views(step: &StepSummary) -> Vec<View> {
    let mut by_engine: HashMap<u32, Vec<&RequestSummary>> = HashMap::new();
    for request in step.requests.iter().filter(|r| r.engine != NONE) {
        by_engine.entry(request.engine).or_default().push(request);
    }
    let mut out: Vec<View> = by_engine
        .into_iter()
        .map(|(key, requests)| {
            let log = |factor: &Factor| {
                let values: Vec<f64> = requests.iter().filter(|r| !r.failed).filter_map(|r| r.value(factor)).collect();
                median(values.iter().copied()).filter(|v| values.len() >= FEW_REQUESTS && *v > 0.0).map(f64::ln)
            };
            View {
                key,
                name: step.key(key).to_string(),
                requests: requests.len(),
                failed: requests.iter().filter(|r| r.failed).count(),
                pace: log(&Factor::Pace).or_else(|| log(&Factor::Decode)).or_else(|| together(&requests)),
                prefill: log(&Factor::PrefillPace).or_else(|| log(&Factor::Prefill)),
                queue: requests.iter().map(|r| r.queue).sum::<f64>() / requests.len() as f64,
                typical_queue: median(requests.iter().map(|r| r.queue)).unwrap_or(0.0),
            }
        })
        .collect();
    out.sort_by(|a, b| a.name.cmp(&b.name));
    out
}

/// Outputs that are too short one by one reveal the pace together.
fn together(requests: &[&RequestSummary]) -> Option<f64> {
    let of: Vec<&&RequestSummary> = requests.iter().filter(|r| !r.failed && r.tokens > 0.0).collect();
    let sum = |value: fn(&RequestSummary) -> f64| of.iter().map(|r| value(r)).sum::<f64>();
    pace(sum(RequestSummary::decode), sum(|r| r.tokens)).filter(|_| of.len() >= FEW_REQUESTS).map(f64::ln)
}

fn differences(views: &[View]) -> Vec<Differs> {
    let from_others = |at: usize, of: &dyn Fn(&View) -> Option<f64>| {
        let others = views.iter().enumerate().filter(|(i, _)| *i != at).filter_map(|(_, v)| of(v));
        Some(of(&views[at])? - median(others)?)
    };
    (0..views.len())
        .map(|at| Differs {
            pace: from_others(at, &|v| v.pace).unwrap_or(0.0),
            prefill: from_others(at, &|v| v.prefill).unwrap_or(0.0),
            queue: from_others(at, &|v| Some(v.queue)).unwrap_or(0.0),
            requests: from_others(at, &|v| Some((v.requests as f64).ln())).unwrap_or(0.0),
        })
        .collect()
}

/// Whether one group is slow and the others that this engine served are not: then it is not the engine.
fn of_one_group(step: &StepSummary, requests: &[usize], still: Option<&Still>, usual_pace: Option<f64>) -> bool {
    let group = |at: usize| step.samples[step.requests[at].sample as usize].group.as_str();
    if let Some(still) = still {
        let Some(one) = still.lost.first().map(|(at, _)| group(*at)) else { return false };
        let ran = |r: &RequestSummary| r.start < still.until && r.end > still.from;
        let other = |at: &usize| group(*at) != one && ran(&step.requests[*at]);
        return still.lost.iter().all(|(at, _)| group(*at) == one) && requests.iter().any(other);
    }
    let mut by_group: HashMap<&str, Vec<f64>> = HashMap::new();
    for at in requests {
        let request = &step.requests[*at];
        if let Some(pace) = request.value(&Factor::Pace) {
            by_group.entry(group(*at)).or_default().push(pace);
        }
    }
    let typical = |paces: &[f64]| median(paces.iter().copied()).unwrap_or(0.0);
    let Some((slowest, paces)) =
        by_group.iter().max_by(|a, b| typical(a.1).total_cmp(&typical(b.1)).then(b.0.cmp(a.0)))
    else {
        return false;
    };
    let rest = median(by_group.iter().filter(|(group, _)| *group != slowest).flat_map(|(_, paces)| paces.clone()));
    let usual = usual_pace.unwrap_or(0.0);
    rest.is_some_and(|rest| rest < SLOWER * usual && typical(paces) > 2.0 * rest)
}

/// An engine that stood still: the requests that lost time by it, how much each, and how much they typically lost.
struct Still {
    lost: Vec<Lost>,
    typical: f64,
    /// The time that they share.
    from: f64,
    until: f64,
}

impl Still {
    /// Whether it was there for most of that time.
    fn is_within(&self, request: &RequestSummary) -> bool {
        request.end.min(self.until) - request.start.max(self.from) > MOST_OF_IT * self.typical
    }
}

/// Whether some requests of an engine lost the same number of seconds at a time that they share, and what each lost.
/// If the engine is not slow as a whole, that must be far more than its other requests lost.
fn stood_still(step: &StepSummary, requests: &[usize], usual_pace: Option<f64>, is_slow: bool) -> Option<Still> {
    let usual = usual_pace?;
    let lost: Vec<Lost> = requests
        .iter()
        .filter_map(|at| {
            let r = &step.requests[*at];
            pace(r.decode(), r.tokens)?;
            Some((*at, r.decode() - r.tokens * usual))
        })
        .collect();
    let most = lost.iter().map(|(_, s)| *s).fold(0.0, f64::max);
    let slow: Vec<Lost> = lost.iter().copied().filter(|(_, s)| *s > 0.4 * most && *s > 1.0).collect();
    if slow.len() < FEW_FAILED || slow.len() == lost.len() && slow.len() > 2 * FEW_FAILED {
        return None;
    }
    let times = |of: fn(&RequestSummary) -> f64| slow.iter().map(move |(at, _)| of(&step.requests[*at]));
    let (from, until) =
        (times(|r| r.start).fold(f64::NEG_INFINITY, f64::max), times(|r| r.end).fold(f64::MAX, f64::min));
    let seconds: Vec<f64> = slow.iter().map(|(_, s)| *s).collect();
    let (typical, spread) = middle(&seconds)?;
    let found = Still { lost: slow, typical, from, until };
    // Nothing ends on an engine that stands still.
    let ends = requests.iter().map(|at| step.requests[*at].end).filter(|end| *end > from && *end < until);
    let ends = sorted(ends.chain([from, until]));
    if !ends.windows(2).any(|pair| pair[1] - pair[0] > MOST_OF_IT * typical) {
        return None;
    }
    // Either all that ran then lost the same, or all lost as much as they have tokens: what leaves less unexplained.
    let pace = median(lost.iter().map(|(at, s)| s / step.requests[*at].tokens))?;
    let unexplained = |by: &dyn Fn(&RequestSummary) -> f64| -> f64 {
        lost.iter().map(|(at, s)| (s - by(&step.requests[*at])).abs()).sum()
    };
    let still = unexplained(&|r| if found.is_within(r) { typical } else { 0.0 });
    let slower = unexplained(&|r| r.tokens * pace);
    let others = lost.iter().filter(|(at, _)| !found.is_within(&step.requests[*at])).map(|(_, s)| s.abs());
    if !is_slow && median(others).is_none_or(|usual| typical < FAR_MORE * usual) {
        return None;
    }
    (spread < SAME_LOSS * typical && still < slower && until - from > MOST_OF_IT * typical).then_some(found)
}
