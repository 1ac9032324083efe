//! The trainer's phases of a step: a partition of its wall time. At every moment the phase that started last counts; where
//! none runs it is `between phases`. So the parts add up to the step exactly. Validation beside another phase takes nothing
//! from it: the step waits for the other. A step without a trainer's spans is one phase, `rollout`, and an engine alone is `requests`. n log n in the number of
//! phases.

use std::collections::BTreeMap;

use bitcode::{Decode, Encode};
use serde::Serialize;
use utoipa::ToSchema;

use rollscope_spans::intervals;

use super::critical_path::Segment;
use super::kinds::Kind;
use super::phase_time::{Claim, Piece, divide};
use super::step::{DETACHED, NONE, StepData, flag};

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema, Encode, Decode)]
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
    /// The samples run in it: what it took follows from them.
    #[serde(skip)]
    pub holds_samples: bool,
    /// How much of it the step waited for.
    #[serde(skip)]
    pub on_path_s: f64,
}

pub const BETWEEN: &str = "between phases";

/// The spans that are phases: right under the step, and about no sample. What hangs there because its parent was lost is one only
/// if it is a trainer's.
fn rows(data: &StepData) -> Vec<usize> {
    let is_step = |r: u32| r != NONE && data.kind[r as usize] == Kind::Step && data.sample[r as usize] == NONE;
    let mut rows: Vec<usize> = (0..data.len())
        .filter(|r| is_step(data.parent[*r]) && data.sample[*r] == NONE && !data.is(*r, flag::POINT))
        .filter(|r| !data.is(*r, flag::MISSING_PARENT) || data.kind[*r].is_trainers())
        .collect();
    rows.sort_by_key(|r| (data.start[*r], data.end[*r], data.ids[*r]));
    rows
}

/// Whose each moment of the step is, of these phases.
fn pieces(data: &StepData, rows: &[usize]) -> impl Iterator<Item = (Piece, Option<usize>)> {
    let claim = |(place, row): (usize, &usize)| Claim {
        start: data.start[*row],
        end: data.end[*row],
        rank: (data.kind[*row] != Kind::Validation, place),
    };
    let claims: Vec<Claim<(bool, usize)>> = rows.iter().enumerate().map(claim).collect();
    let pieces = divide(&claims, data.step_start, data.step_end);
    pieces.into_iter().map(|piece| (piece, piece.winner.map(|claim| rows[claim])))
}

/// Nanoseconds of the trainer's phases by kind; none where it wrote no phases.
pub fn by_kind(data: &StepData) -> Option<BTreeMap<Kind, i64>> {
    let rows = rows(data);
    let mut out = BTreeMap::new();
    for (piece, row) in pieces(data, &rows) {
        if let Some(row) = row {
            *out.entry(data.kind[row]).or_default() += piece.length();
        }
    }
    (!rows.is_empty()).then_some(out)
}

/// `samples` are the times at which samples ran, by start.
pub fn phases(data: &StepData, samples: &[(i64, i64)], path: &[Segment]) -> Vec<Phase> {
    let rows = rows(data);
    let (from, to) = (data.step_start, data.step_end);
    if rows.is_empty() {
        let name = match (data.requests_only, data.samples.is_empty()) {
            (true, _) => REQUESTS,
            (false, true) => "step",
            (false, false) => "rollout",
        };
        let name = name.to_string();
        let ns = to - from;
        let seconds = ns as f64 / 1e9;
        // A step is no explanation of itself.
        let (kind, holds_samples, on_path_s) = (Kind::Rollout, true, seconds);
        return vec![Phase { name, kind, ns, seconds, start: from, end: to, holds_samples, on_path_s }];
    }
    let mut out: Vec<Phase> = Vec::new();
    for (piece, row) in pieces(data, &rows) {
        let (name, kind) = row.map_or((BETWEEN, Kind::Other), |row| (data.name_of(row), data.kind[row]));
        let at = match out.iter().position(|p| p.name == name) {
            Some(at) => at,
            None => {
                let (start, end) = (piece.start, piece.end);
                let (ns, seconds, holds_samples, on_path_s) = (0, 0.0, false, 0.0);
                out.push(Phase { name: name.to_string(), kind, ns, seconds, start, end, holds_samples, on_path_s });
                out.len() - 1
            }
        };
        out[at].ns += piece.length();
        out[at].end = out[at].end.max(piece.end);
    }
    out.iter_mut().for_each(|p| p.seconds = p.ns as f64 / 1e9);
    let place = |row: usize, out: &[Phase]| out.iter().position(|p| p.name == data.name_of(row));
    // Samples that run beside training do not make it theirs.
    let during = |from, to| intervals::covered(samples.iter().copied(), from, to);
    let all = during(from, to);
    for row in rows.iter().copied().filter(|r| !data.kind[*r].is_trainers() && data.kind[*r] != Kind::Reward) {
        let inside = during(data.start[row], data.end[row]);
        if let Some(at) = place(row, &out) {
            out[at].holds_samples |=
                matches!(data.kind[row], Kind::Rollout | Kind::Generate) || inside * 2 > all && all > 0;
        }
    }
    let of_row = of_spans(data, &out);
    let between = out.iter().position(|p| p.name == BETWEEN);
    for segment in path {
        let phase = match segment.row {
            NONE => between,
            row => around(data, &of_row, row).or(between),
        };
        if let Some(phase) = phase {
            out[phase].on_path_s += (segment.end - segment.start) as f64 / 1e9;
        }
    }
    out
}

/// The only phase where nobody says what an engine's requests were for.
pub const REQUESTS: &str = "requests";

/// How many spans up to a phase are looked at.
const MAX_CLIMB: usize = 64;

/// The phase that a span is, by place in `phases`.
pub fn of_spans(data: &StepData, phases: &[Phase]) -> Vec<u32> {
    let mut out = vec![NONE; data.len()];
    for row in rows(data) {
        out[row] = phases.iter().position(|p| p.name == data.name_of(row)).map_or(NONE, |at| at as u32);
    }
    out
}

/// The phase around a span, or the span itself.
pub fn around(data: &StepData, of_spans: &[u32], row: u32) -> Option<usize> {
    let mut at = row;
    for _ in 0..MAX_CLIMB {
        if at == NONE || at == DETACHED {
            return None;
        }
        if of_spans[at as usize] != NONE {
            return Some(of_spans[at as usize] as usize);
        }
        // A sample's trace is waited for by the phase that holds it.
        at = if data.parent[at as usize] == NONE { data.waiter[at as usize] } else { data.parent[at as usize] };
    }
    None
}
