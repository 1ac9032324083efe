//! How long workers were idle, and why.
//!
//! A worker is busy while at least one span of real work ([`Kind::is_work`]) runs on it. The rest of the step is idle, and
//! belongs to what the step was doing at that moment:
//! - in the rollout, for workers that serve it: `before start` until their first work; `tail` after their last work, while
//!   the rollout still waits for others; `data` between, when there was no request to work on;
//! - in the rollout, for all others: `data` until the tail begins, then `tail`;
//! - in a weight sync `weights`, in a reward phase `reward`, in any other phase of the trainer `training`; else `other`.
//!
//! Busy and idle times add up to workers times wall time exactly. The bubble ratio is idle time over that product. Workers
//! on several tensor-parallel ranks count each: each is a GPU. n log n.

use serde::Serialize;
use utoipa::ToSchema;

use super::kinds::Kind;
use super::phases::Phase;
use super::robust::seconds;
use super::step::{NONE, StepData, flag};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Why {
    BeforeStart,
    Tail,
    Data,
    Weights,
    Reward,
    Training,
    Other,
}

impl Why {
    pub const COUNT: usize = 7;
    const ALL: [Why; Why::COUNT] =
        [Why::BeforeStart, Why::Tail, Why::Data, Why::Weights, Why::Reward, Why::Training, Why::Other];

    fn name(self) -> &'static str {
        match self {
            Why::BeforeStart => "before start",
            Why::Tail => "tail",
            Why::Data => "data",
            Why::Weights => "weights",
            Why::Reward => "reward",
            Why::Training => "training",
            Why::Other => "other",
        }
    }
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct IdleShare {
    pub why: &'static str,
    pub seconds: f64,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WorkerIdle {
    pub worker: String,
    pub busy_s: f64,
    pub idle_s: f64,
    pub why: Vec<IdleShare>,
}

#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Idle {
    pub workers: usize,
    pub wall_s: f64,
    pub busy_s: f64,
    pub idle_s: f64,
    /// Idle over workers times wall.
    pub bubble_ratio: f64,
    /// Over all workers, the largest first.
    pub why: Vec<IdleShare>,
    pub by_worker: Vec<WorkerIdle>,
    /// Idle worker-nanoseconds while the rollout waited for its tail, and those of workers with ranks.
    #[serde(skip)]
    pub in_tail: (i64, i64),
}

const MAX_WORKERS: usize = 200;

/// `tail` is when the tail of the rollout begins and ends.
pub fn idle(data: &StepData, phases: &[Phase], tail: (i64, i64)) -> Idle {
    let (from, to) = (data.step_start, data.step_end);
    // Busy intervals of each worker, joined.
    let mut busy: Vec<Vec<(i64, i64)>> = vec![Vec::new(); data.workers.len()];
    let mut serves = vec![false; data.workers.len()];
    let mut order: Vec<u32> = (0..data.len() as u32)
        .filter(|r| {
            data.worker[*r as usize] != NONE && data.kind[*r as usize].is_work() && !data.is(*r as usize, flag::POINT)
        })
        .collect();
    order.sort_unstable_by_key(|r| (data.start[*r as usize], data.end[*r as usize]));
    for row in order.into_iter().map(|r| r as usize) {
        let worker = data.worker[row] as usize;
        serves[worker] |= data.sample[row] != NONE;
        let (start, end) = (data.start[row].clamp(from, to), data.end[row].clamp(from, to));
        match busy[worker].last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => busy[worker].push((start, end)),
        }
    }
    let mut out = Idle { wall_s: seconds(to - from), ..Idle::default() };
    let mut total = [0i64; Why::COUNT];
    let mut all_busy = 0;
    for worker in (0..busy.len()).filter(|w| !busy[*w].is_empty()) {
        let mut why = [0i64; Why::COUNT];
        let mut now = from;
        let (first, last) = (busy[worker][0].0, busy[worker][busy[worker].len() - 1].1);
        let mut worked = 0;
        for (start, end) in busy[worker].iter().copied().chain([(to, to)]) {
            classify(now, start, phases, tail, serves[worker], (first, last), &mut why);
            worked += end - start;
            now = end;
        }
        let in_tail = idle_within(&busy[worker], tail);
        out.in_tail.0 += in_tail;
        if data.workers[worker].ranks.iter().any(Option::is_some) {
            out.in_tail.1 += in_tail;
        }
        total.iter_mut().zip(why).for_each(|(t, w)| *t += w);
        all_busy += worked;
        out.workers += 1;
        out.by_worker.push(WorkerIdle {
            worker: data.worker_name(worker as u32),
            busy_s: seconds(worked),
            idle_s: seconds(to - from - worked),
            why: shares(&why),
        });
    }
    out.by_worker.sort_by(|a, b| a.worker.cmp(&b.worker));
    out.by_worker.truncate(MAX_WORKERS);
    out.busy_s = seconds(all_busy);
    let room = (to - from) * out.workers as i64;
    out.idle_s = seconds(room - all_busy);
    out.bubble_ratio = if room > 0 { (room - all_busy) as f64 / room as f64 } else { 0.0 };
    out.why = shares(&total);
    out
}

fn shares(why: &[i64; Why::COUNT]) -> Vec<IdleShare> {
    let mut out: Vec<IdleShare> = Why::ALL
        .iter()
        .zip(why)
        .filter(|(_, ns)| **ns > 0)
        .map(|(why, ns)| IdleShare { why: why.name(), seconds: seconds(*ns) })
        .collect();
    out.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    out
}

fn idle_within(busy: &[(i64, i64)], (from, to): (i64, i64)) -> i64 {
    let worked: i64 = busy.iter().map(|(s, e)| (e.min(&to) - s.max(&from)).max(0)).sum();
    (to - from).max(0) - worked
}

/// Shares out one idle stretch among the phases it lies in.
fn classify(
    from: i64,
    to: i64,
    phases: &[Phase],
    tail: (i64, i64),
    serves: bool,
    (first, last): (i64, i64),
    why: &mut [i64; Why::COUNT],
) {
    if to <= from {
        return;
    }
    let mut left = to - from;
    for phase in phases {
        let (start, end) = (from.max(phase.start), to.min(phase.end));
        if end <= start || phase.name == super::phases::BETWEEN {
            continue;
        }
        let length = (end - start).min(left);
        left -= length;
        let kind = match phase.kind {
            Kind::Rollout | Kind::Generate | Kind::Data => {
                let (begin, over) = match serves {
                    true => (first, last),
                    false => (start, tail.0),
                };
                let before = (begin.min(end) - start).clamp(0, length);
                let after = (end - over.max(start)).clamp(0, length - before);
                why[Why::BeforeStart as usize] += before;
                why[Why::Tail as usize] += after;
                why[Why::Data as usize] += length - before - after;
                continue;
            }
            Kind::WeightSync => Why::Weights,
            Kind::Reward => Why::Reward,
            _ => Why::Training,
        };
        why[kind as usize] += length;
    }
    why[Why::Other as usize] += left;
}
