//! The trainer's phases of a step: a partition of its wall time. At every moment the phase that started last counts; where
//! none runs it is `between phases`. So the parts add up to the step exactly. A step without a trainer's spans is one
//! phase, `rollout`. n log n in the number of phases.

use serde::Serialize;
use utoipa::ToSchema;

use super::kinds::Kind;
use super::phase_time::{Claim, divide};
use super::step::{NONE, StepData, flag};

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = StepPhase)]
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
    let claim = |(rank, row): (usize, &usize)| Claim { start: data.start[*row], end: data.end[*row], rank };
    let claims: Vec<Claim<usize>> = rows.iter().enumerate().map(claim).collect();
    let mut out: Vec<Phase> = Vec::new();
    for piece in divide(&claims, from, to) {
        let (name, kind) = match piece.winner {
            Some(claim) => (data.name_of(rows[claim]), data.kind[rows[claim]]),
            None => (BETWEEN, Kind::Other),
        };
        let at = match out.iter().position(|p| p.name == name) {
            Some(at) => at,
            None => {
                out.push(Phase {
                    name: name.to_string(),
                    kind,
                    ns: 0,
                    seconds: 0.0,
                    start: piece.start,
                    end: piece.end,
                });
                out.len() - 1
            }
        };
        out[at].ns += piece.length();
        out[at].end = out[at].end.max(piece.end);
    }
    out.iter_mut().for_each(|p| p.seconds = p.ns as f64 / 1e9);
    out
}
