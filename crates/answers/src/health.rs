//! Is the run learning from what it pays for? Counted over the samples of a step, and its generations and tool calls.
//!
//! - **Groups without variance**: all members have the same reward; their advantage is zero and so is their gradient. Cost:
//!   the time and tokens of their samples.
//! - **Staleness**: the newest version of the weights that produced any sample of the step, minus the oldest that produced
//!   this one; and how many samples mix versions.
//! - **Prefix cache** by turn, **speculation** (accepted of drafted tokens; tokens a verification), **tools** by time lost.
//! - **Data**: spans without an end, ends without a start, parents that never came, attributes the senders dropped.

use hashbrown::{HashMap, HashSet};
use serde::Serialize;
use utoipa::ToSchema;

use super::robust::{quantile, seconds, sorted};
use super::samples::{Part, Request, SampleTimes};
use super::step::{NONE, StepData, flag};

#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[schema(as = GroupHealth)]
pub struct Groups {
    pub groups: usize,
    /// All members have the same reward.
    pub zero_variance: usize,
    /// Of these, all rewards at the highest seen in the step, and at the lowest.
    pub all_best: usize,
    pub all_worst: usize,
    pub sample_s: f64,
    pub tokens: f64,
}

#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Staleness {
    pub samples: usize,
    /// Samples whose oldest weights were behind, and by how much at most.
    pub stale: usize,
    pub most_versions_behind: i64,
    pub mean_versions_behind: f64,
    /// Samples that more than one version produced.
    pub mixed: usize,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CacheTurn {
    pub turn: i64,
    pub generations: usize,
    pub hit_rate: f64,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ToolHealth)]
pub struct Tool {
    pub tool: String,
    pub calls: usize,
    pub failed: usize,
    pub total_s: f64,
    pub median_s: f64,
    pub p95_s: f64,
    pub max_s: f64,
}

#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[schema(as = DataHealth)]
pub struct Data {
    pub spans: usize,
    pub open: usize,
    pub missing_parents: usize,
    pub orphan_ends: usize,
    pub dropped_by_senders: u64,
    /// Rows of `samples` that have no spans.
    pub samples_without_spans: usize,
}

#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[schema(as = StepHealth)]
pub struct Health {
    pub samples: usize,
    #[schema(required)]
    pub reward_mean: Option<f64>,
    pub truncated: usize,
    pub aborted: usize,
    pub failed: usize,
    pub retried: usize,
    pub groups: Groups,
    pub staleness: Staleness,
    #[schema(required)]
    pub cache_hit_rate: Option<f64>,
    pub cache_by_turn: Vec<CacheTurn>,
    /// Accepted of drafted tokens.
    #[schema(required)]
    pub spec_accept_rate: Option<f64>,
    /// Tokens a verification.
    #[schema(required)]
    pub spec_accept_length: Option<f64>,
    /// By time lost.
    pub tools: Vec<Tool>,
    pub data: Data,
}

const MAX_TURNS: usize = 64;
const MAX_TOOLS: usize = 100;

pub fn health(data: &StepData, times: &SampleTimes) -> Health {
    let mut out = Health { samples: data.samples.len(), ..Health::default() };
    let status = |s: u32, text: &str| data.texts.get(s) == text;
    for sample in &data.samples {
        out.truncated += usize::from(status(sample.status, "truncated"));
        out.aborted += usize::from(status(sample.status, "aborted"));
        out.failed += usize::from(status(sample.status, "failed"));
    }
    let asked_again = asked_again(data, times);
    for (sample, time) in times.times.iter().enumerate() {
        let retried = time.as_ref().is_some_and(|t| t.parts[Part::Retry as usize] > 0);
        out.retried += usize::from(retried || asked_again.contains(&(sample as u32)));
    }
    let rewards: Vec<f64> = sorted(data.samples.iter().filter_map(|s| s.reward));
    out.reward_mean = (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64);
    out.groups = groups(data, times, &rewards);
    out.staleness = staleness(data);
    let sum = |of: fn(&super::step::SampleRow) -> Option<i64>| data.samples.iter().filter_map(of).sum::<i64>() as f64;
    let ratio = |a: f64, b: f64| (b > 0.0).then_some(a / b);
    // Samples that were dumped tell it; else the token counts of requests do.
    let counted = || times.requests.iter().filter(|r| r.cached.is_finite() && r.prompt.is_finite());
    let of_requests = || ratio(counted().map(|r| r.cached).sum(), counted().map(|r| r.prompt).sum());
    out.cache_hit_rate = ratio(sum(|s| s.cached_tokens), sum(|s| s.cache_total_tokens)).or_else(of_requests);
    out.spec_accept_rate = ratio(sum(|s| s.spec_accepted), sum(|s| s.spec_drafted));
    let verifies = sum(|s| s.spec_verifies);
    out.spec_accept_length = ratio(sum(|s| s.spec_accepted) + verifies, verifies);
    out.cache_by_turn = cache_by_turn(data);
    out.tools = tools(data, times);
    out.data = Data {
        spans: data.len(),
        open: data.open,
        missing_parents: data.missing_parents,
        orphan_ends: data.orphan_ends,
        dropped_by_senders: data.dropped,
        samples_without_spans: data.samples.iter().zip(&times.times).filter(|(s, t)| s.listed && t.is_none()).count(),
    };
    out
}

/// How many spans up to the generation are looked at.
const MAX_CLIMB: usize = 64;

/// Samples that made a request again after an engine had failed or aborted it.
fn asked_again(data: &StepData, times: &SampleTimes) -> HashSet<u32> {
    let mut failed = HashSet::new();
    for row in (0..data.len()).filter(|row| data.is(*row, flag::ERROR)) {
        let mut at = row as u32;
        for _ in 0..MAX_CLIMB {
            if at == NONE || data.is(at as usize, flag::GENERATION) {
                break;
            }
            at = data.parent[at as usize];
        }
        failed.insert(at);
    }
    let mut last_start: HashMap<u32, i64> = HashMap::new();
    for request in &times.requests {
        let last = last_start.entry(request.sample).or_insert(i64::MIN);
        *last = (*last).max(data.start[request.row as usize]);
    }
    let again = |r: &&Request| failed.contains(&r.row) && last_start[&r.sample] >= data.end[r.row as usize];
    times.requests.iter().filter(again).map(|r| r.sample).collect()
}

fn groups(data: &StepData, times: &SampleTimes, rewards: &[f64]) -> Groups {
    let mut members: HashMap<u32, Vec<usize>> = HashMap::new();
    for (i, sample) in data.samples.iter().enumerate() {
        if sample.group != NONE && sample.reward.is_some() {
            members.entry(sample.group).or_default().push(i);
        }
    }
    let mut out = Groups::default();
    let (Some(worst), Some(best)) = (rewards.first(), rewards.last()) else { return out };
    let mut lost = 0i64;
    for of in members.values().filter(|m| m.len() > 1) {
        out.groups += 1;
        let first = data.samples[of[0]].reward;
        if of.iter().any(|i| data.samples[*i].reward != first) {
            continue;
        }
        out.zero_variance += 1;
        out.all_best += usize::from(first == Some(*best) && best > worst);
        out.all_worst += usize::from(first == Some(*worst) && best > worst);
        for i in of {
            lost += times.times[*i].as_ref().map_or(0, |t| t.length());
            let said = data.samples[*i].response_tokens.map(|t| t as f64);
            out.tokens += said.or_else(|| Some(times.times[*i].as_ref()?.tokens)).unwrap_or(0.0);
        }
    }
    out.sample_s = seconds(lost);
    out
}

fn staleness(data: &StepData) -> Staleness {
    let of: Vec<(i64, i64)> = data
        .samples
        .iter()
        .filter_map(|s| Some((*s.weight_versions.iter().min()?, *s.weight_versions.iter().max()?)))
        .collect();
    let mut out = Staleness { samples: of.len(), ..Staleness::default() };
    let Some(newest) = of.iter().map(|v| v.1).max() else { return out };
    let mut sum = 0i128;
    for (oldest, latest) in &of {
        let behind = newest.saturating_sub(*oldest);
        out.stale += usize::from(behind > 0);
        out.mixed += usize::from(oldest != latest);
        out.most_versions_behind = out.most_versions_behind.max(behind);
        sum += i128::from(behind);
    }
    out.mean_versions_behind = sum as f64 / of.len() as f64;
    out
}

fn cache_by_turn(data: &StepData) -> Vec<CacheTurn> {
    let mut turns: HashMap<i64, (usize, f64, f64)> = HashMap::new();
    let mut rows: Vec<u32> = data.facts.rows().filter(|r| data.is(*r as usize, flag::GENERATION)).collect();
    rows.sort_unstable_by_key(|r| (data.start[*r as usize], data.ids[*r as usize]));
    // Turns without a number are numbered by their order.
    let mut next: HashMap<u32, i64> = HashMap::new();
    for row in rows {
        let Some(facts) = data.facts.get(row) else { continue };
        let order = next.entry(data.sample[row as usize]).or_default();
        let turn = facts.turn.unwrap_or(*order);
        *order += 1;
        if let (Some(cached), Some(prompt)) = (facts.cached_tokens, facts.prompt_tokens)
            && prompt > 0.0
        {
            let sum = turns.entry(turn).or_default();
            *sum = (sum.0 + 1, sum.1 + cached, sum.2 + prompt);
        }
    }
    let mut out: Vec<CacheTurn> =
        turns.into_iter().map(|(turn, (n, c, p))| CacheTurn { turn, generations: n, hit_rate: c / p }).collect();
    out.sort_by_key(|t| t.turn);
    out.truncate(MAX_TURNS);
    out
}

fn tools(data: &StepData, times: &SampleTimes) -> Vec<Tool> {
    let mut calls: HashMap<u32, (Vec<f64>, usize)> = HashMap::new();
    for call in times.calls.iter().filter(|call| call.tool != NONE) {
        let of = calls.entry(call.tool).or_default();
        of.0.push(call.seconds);
        of.1 += usize::from(call.failed);
    }
    let mut out: Vec<Tool> = calls
        .into_iter()
        .map(|(tool, (lengths, failed))| {
            let lengths = sorted(lengths);
            let at = |q| quantile(&lengths, q).unwrap_or(0.0);
            Tool {
                tool: data.texts.get(tool).to_string(),
                calls: lengths.len(),
                failed,
                total_s: lengths.iter().sum(),
                median_s: at(0.5),
                p95_s: at(0.95),
                max_s: at(1.0),
            }
        })
        .collect();
    out.sort_by(|a, b| b.total_s.total_cmp(&a.total_s).then_with(|| a.tool.cmp(&b.tool)));
    out.truncate(MAX_TOOLS);
    out
}
