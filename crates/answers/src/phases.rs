//! The trainer's phases of a step: a partition of its wall time. At every moment the phase that started last counts; where
//! none runs it is `between phases`. So the parts add up to the step exactly. A step without a trainer's spans is one
//! phase, `rollout`. n log n in the number of phases.

use serde::Serialize;

use super::kinds::Kind;
use super::step::{NONE, StepData, flag};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Phase {
    pub name: String,
    pub kind: Kind,
    /// Nanoseconds of the step's wall time that are this phase's.
    #[serde(skip)]
    pub ns: i64,
    pub seconds: f64,
    #[serde(skip)]
    pub start: i64,
    #[serde(skip)]
    pub end: i64,
}

pub const BETWEEN: &str = "between phases";

pub fn phases(data: &StepData) -> Vec<Phase> {
    let is_step = |r: u32| r != NONE && data.kind[r as usize] == Kind::Step;
    let mut rows: Vec<usize> = (0..data.len())
        .filter(|r| is_step(data.parent[*r]) && data.sample[*r] == NONE && !data.is(*r, flag::POINT))
        .collect();
    let (from, to) = (data.step_start, data.step_end);
    if rows.is_empty() {
        let name = if data.samples.is_empty() { "step" } else { "rollout" }.to_string();
        let ns = to - from;
        return vec![Phase { name, kind: Kind::Rollout, ns, seconds: ns as f64 / 1e9, start: from, end: to }];
    }
    rows.sort_by_key(|r| (data.start[*r], data.end[*r], data.ids[*r]));
    let mut cuts: Vec<i64> = rows.iter().flat_map(|r| [data.start[*r], data.end[*r]]).chain([from, to]).collect();
    cuts.iter_mut().for_each(|c| *c = (*c).clamp(from, to));
    cuts.sort_unstable();
    cuts.dedup();
    let mut out: Vec<Phase> = Vec::new();
    let (mut next, mut open): (usize, Vec<usize>) = (0, Vec::new());
    for cut in cuts.windows(2) {
        while next < rows.len() && data.start[rows[next]].clamp(from, to) <= cut[0] {
            open.push(rows[next]);
            next += 1;
        }
        open.retain(|r| data.end[*r] > cut[0]);
        let (name, kind) = match open.last() {
            Some(row) => (data.name_of(*row), data.kind[*row]),
            None => (BETWEEN, Kind::Other),
        };
        let at = match out.iter().position(|p| p.name == name) {
            Some(at) => at,
            None => {
                out.push(Phase { name: name.to_string(), kind, ns: 0, seconds: 0.0, start: cut[0], end: cut[1] });
                out.len() - 1
            }
        };
        out[at].ns += cut[1] - cut[0];
        out[at].end = out[at].end.max(cut[1]);
    }
    out.iter_mut().for_each(|p| p.seconds = p.ns as f64 / 1e9);
    out
}
