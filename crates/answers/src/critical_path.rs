//! What held the step, moment by moment: the last finisher, walked backwards.
//!
//! Start at the step's end in the step itself. Being in span `S` at time `t`:
//! 1. Among the spans that `S` waits for ([`StepData::waiter`]), take the one that ended last at or before `t`, and after
//!    `S` started: it was the last to arrive. The time from its end to `t` is `S`'s own; go on in it, at its end.
//!    A transfer of a cache also waits for what the prefill side did last ([`StepData::handed_over`]), which may be over a little
//!    later by its own clock: it has arrived when the transfer has ended.
//! 2. If there is none, everything down to `S`'s start is `S`'s own. What made it start? Of the spans it is linked to
//!    and the siblings its parent waited for, the one that ended last before; the time between is the parent's. Otherwise the
//!    parent itself, at that moment.
//!
//! Time never rises and every span is entered once, so the walk ends; ends are sorted once and each list is passed once,
//! so it is n log n. The parts cover the step's wall time without gap or overlap: they add up to it exactly.
//!
//! Asynchronous children need no special case: a child that ends after its parent is waited for by a span that outlives both, or
//! by none, and then it cannot be on the path. A producer is reached from its consumer by the link.
//!
//! **Slack** of a part: how much shorter the step would be if it took no time. Shortening it moves everything behind it
//! until, at some join on the way out, the next-to-last to arrive becomes the last: the least of the part's length and of
//! the leads that the path had at the joins around it. Exact where the rest of the step would have gone as it did.

use std::cmp::Reverse;

use bitcode::{Decode, Encode};
use hashbrown::HashMap;
use serde::Serialize;
use utoipa::ToSchema;

use super::kinds::Kind;
use super::robust::seconds;
use super::samples::Request;
use super::step::{DETACHED, NONE, StepData, flag};

/// One stretch of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The span whose own time it is; [`NONE`]: the step itself.
    pub row: u32,
    pub start: i64,
    pub end: i64,
    pub slack: i64,
}

/// The path, from the start of the step to its end.
pub fn walk(data: &StepData) -> Vec<Segment> {
    let waited = Waited::new(data);
    let mut next: Vec<u32> = waited.ends.windows(2).map(|w| w[1]).collect();
    let mut entered = vec![false; data.len()];
    let mut out: Vec<Segment> = Vec::new();
    // The lead at the joins around each entered span: what can be gained inside it.
    let mut lead = vec![i64::MAX; data.len() + 1];
    let (mut at, mut t) = (NONE, data.step_end);
    let mut push = |row: u32, start: i64, end: i64, lead: i64| {
        if end > start {
            out.push(Segment { row, start, end, slack: lead.min(end - start) });
        }
    };
    loop {
        let slot = waited.slot(at);
        let begin = if at == NONE { data.step_start } else { data.start[at as usize].max(data.step_start) };
        let list = &waited.rows[waited.ends[slot] as usize..next[slot] as usize];
        // The last to arrive before `t`, and how many of the list that leaves.
        let mut left = list.len();
        while left > 0 {
            let row = list[left - 1] as usize;
            if data.end[row] <= t && !entered[row] {
                break;
            }
            left -= 1;
        }
        next[slot] = waited.ends[slot] + left as u32;
        let arrived = list[..left].last().map_or(begin, |row| data.end[*row as usize]);
        let handed_over = data.handed_over.get(&at).filter(|row| !entered[**row as usize]);
        if let Some(row) = handed_over.copied()
            && let Some(end) = Some(data.end[row as usize].min(t)).filter(|end| *end > arrived.max(begin))
            && data.start[row as usize] < end
        {
            push(at, end, t, lead[slot]);
            // With a faster prefill side, the decode side would have waited for itself.
            let gain = lead[slot].min(end - begin);
            let mut above = row;
            while above != NONE && !entered[above as usize] {
                entered[above as usize] = true;
                lead[waited.slot(above)] = gain;
                above = data.parent[above as usize];
            }
            (at, t) = (row, end);
            continue;
        }
        if left > 0 && data.end[list[left - 1] as usize] > begin {
            let row = list[left - 1];
            let own = lead[slot];
            push(at, data.end[row as usize], t, own);
            entered[row as usize] = true;
            next[slot] -= 1;
            // The next to arrive, unless it was over before this one began.
            let second =
                list[..left - 1].iter().rev().map(|r| data.end[*r as usize]).find(|e| *e <= data.end[row as usize]);
            let floor = data.start[row as usize].max(begin);
            let gain = data.end[row as usize] - second.map_or(floor, |e| e.max(floor));
            lead[waited.slot(row)] = own.min(gain);
            // Whatever came before it moves it, but not past one that ran beside it and ended soon after.
            if let Some(beside) = second.filter(|e| *e > data.start[row as usize]) {
                lead[slot] = own.min(data.end[row as usize] - beside);
            }
            (at, t) = (row, data.end[row as usize]);
            continue;
        }
        if at == NONE {
            push(NONE, data.step_start, t, lead[slot]);
            break;
        }
        let row = at as usize;
        push(at, begin, t, lead[slot]);
        t = t.min(begin);
        if t <= data.step_start {
            break;
        }
        let up = match data.parent[row] {
            NONE => match data.waiter[row] {
                DETACHED => NONE,
                other => other,
            },
            up => data.shared[up as usize],
        };
        // A producer that was done before: reached by its link, if it ended after every sibling that was done.
        let producer = data.links(row).iter().map(|r| data.shared[*r as usize]);
        let producer = producer
            .filter(|r| !entered[*r as usize] && data.end[*r as usize] <= t && !data.is(*r as usize, flag::POINT))
            .filter(|r| data.length(*r as usize) > 0)
            .max_by_key(|r| (data.end[*r as usize], data.ids[*r as usize]));
        if let Some(producer) = producer {
            let slot = waited.slot(up);
            let list = &waited.rows[waited.ends[slot] as usize..next[slot] as usize];
            let sibling = list.iter().rev().find(|r| data.end[**r as usize] <= t && !entered[**r as usize]);
            if sibling.is_none_or(|s| data.end[*s as usize] <= data.end[producer as usize]) {
                push(up, data.end[producer as usize].max(data.step_start), t, lead[slot]);
                entered[producer as usize] = true;
                lead[waited.slot(producer)] = lead[slot];
                (at, t) = (producer, data.end[producer as usize]);
                continue;
            }
        }
        // A span that the path comes into from its middle: what can be gained there is what could be gained so far.
        if up != NONE && !entered[up as usize] {
            entered[up as usize] = true;
            lead[waited.slot(up)] = lead[waited.slot(at)];
        }
        at = up;
    }
    out.reverse();
    out
}

/// Who waits for what, each list by end. The step itself is the last slot.
struct Waited {
    rows: Vec<u32>,
    ends: Vec<u32>,
    step: usize,
}

impl Waited {
    fn new(data: &StepData) -> Self {
        let step = data.len();
        let counts = |row: usize| {
            let waiter = data.waiter[row];
            let stands = data.shared[row] == row as u32 && !data.is(row, flag::POINT) && data.length(row) > 0;
            (stands && waiter != DETACHED && waiter != row as u32).then_some(if waiter == NONE {
                step
            } else {
                waiter as usize
            })
        };
        let mut ends = vec![0u32; step + 2];
        for row in 0..step {
            if let Some(slot) = counts(row) {
                ends[slot + 1] += 1;
            }
        }
        for i in 1..ends.len() {
            ends[i] += ends[i - 1];
        }
        let mut fill = ends.clone();
        let mut rows = vec![0u32; ends[step + 1] as usize];
        for row in 0..step {
            if let Some(slot) = counts(row) {
                rows[fill[slot] as usize] = row as u32;
                fill[slot] += 1;
            }
        }
        for slot in ends.windows(2).filter(|slot| slot[1] - slot[0] > 1) {
            // Of two that end together the shorter is the last to have been started.
            rows[slot[0] as usize..slot[1] as usize].sort_unstable_by_key(|row| {
                let row = *row as usize;
                (data.end[row], Reverse(data.start[row]), Reverse(data.ids[row]))
            });
        }
        Waited { rows, ends, step }
    }

    fn slot(&self, row: u32) -> usize {
        if row == NONE { self.step } else { row as usize }
    }
}

/// One part of the path as it is reported.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PathPart {
    pub name: String,
    pub kind: Kind,
    /// Seconds it held the step.
    pub seconds: f64,
    /// How much shorter the step would be if it took no time.
    pub slack_s: f64,
    /// From the start of the step.
    pub start_s: f64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sample_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub worker: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub trace_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub span_id: String,
}

/// Time on the path by name.
#[derive(Clone, Debug, Serialize, ToSchema, Encode, Decode)]
pub struct PathTotal {
    pub name: String,
    pub kind: Kind,
    pub seconds: f64,
    #[serde(skip)]
    pub ns: i64,
    pub parts: usize,
}

#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct CriticalPath {
    /// In order; neighbours of the same span are one. At most [`MAX_PARTS`], the rest is in `totals`.
    pub parts: Vec<PathPart>,
    pub left_out: usize,
    /// Adds up to the step's wall time.
    pub totals: Vec<PathTotal>,
    /// Spans without an end that the path goes through: it may change.
    pub open: usize,
    /// Spans on the path whose parent never came.
    pub missing_parents: usize,
}

pub const MAX_PARTS: usize = 2000;

/// What a span on the path is called: a tool by the tool, an engine's thread by its slice.
pub fn label(data: &StepData, row: u32) -> (String, Kind) {
    if row == NONE {
        let (name, kind) = data.own_name();
        return (name.to_string(), kind);
    }
    let kind = data.kind[row as usize];
    let tool = data.facts.get(row).and_then(|f| f.tool).filter(|_| kind == Kind::Tool);
    let name = data.name_of(row as usize);
    let name = match (tool, name.split_once(" Req ")) {
        (Some(tool), _) => format!("{} (tool)", data.texts.get(tool)),
        (None, Some((role, _))) => format!("{role} request").trim().to_string(),
        _ => name.split(" [").next().unwrap_or(name).split("(host:").next().unwrap_or(name).to_string(),
    };
    (name, kind)
}

/// What generations went into, of those that only their callers report on: shares of their time, by span.
pub struct Divided(HashMap<u32, [(Kind, f64); 4]>);

impl Divided {
    pub fn of(requests: &[Request]) -> Divided {
        let known = requests.iter().filter(|r| r.engine == NONE && r.queue + r.prefill + r.transfer + r.decode > 0.0);
        Divided(
            known
                .map(|r| {
                    let all = r.queue + r.prefill + r.transfer + r.decode + r.rest;
                    let parts = [
                        (Kind::Queue, r.queue),
                        (Kind::Prefill, r.prefill),
                        (Kind::Transfer, r.transfer),
                        (Kind::Decode, r.decode),
                    ];
                    (r.row, parts.map(|(kind, seconds)| (kind, seconds / all)))
                })
                .collect(),
        )
    }

    /// The time of a segment by kind. It adds up.
    pub fn each(&self, segment: &Segment, kind: Kind, mut each: impl FnMut(Kind, i64)) {
        let mut left = segment.end - segment.start;
        for (kind, share) in self.0.get(&segment.row).into_iter().flatten().filter(|(_, share)| *share > 0.0) {
            let ns = ((segment.end - segment.start) as f64 * share) as i64;
            each(*kind, ns.min(left));
            left -= ns.min(left);
        }
        if left > 0 || segment.end == segment.start {
            each(kind, left);
        }
    }
}

pub fn critical_path(data: &StepData, segments: &[Segment], divided: &Divided) -> CriticalPath {
    let mut out = CriticalPath::default();
    let mut totals: HashMap<(String, Kind), (i64, usize)> = HashMap::new();
    let mut last = None;
    for segment in segments {
        let (name, kind) = label(data, segment.row);
        divided.each(segment, kind, |kind, ns| {
            let total = totals.entry((name.clone(), kind)).or_default();
            total.0 += ns;
            total.1 += 1;
        });
        let length = seconds(segment.end - segment.start);
        if last == Some(segment.row)
            && let Some(part) = out.parts.last_mut()
            && out.left_out == 0
        {
            part.seconds += length;
            part.slack_s += seconds(segment.slack);
            continue;
        }
        last = Some(segment.row);
        if segment.row != NONE {
            out.open += usize::from(data.is(segment.row as usize, flag::OPEN));
            out.missing_parents += usize::from(data.is(segment.row as usize, flag::MISSING_PARENT));
        }
        if out.parts.len() == MAX_PARTS {
            out.left_out += 1;
            continue;
        }
        let row = segment.row as usize;
        let known = segment.row != NONE;
        out.parts.push(PathPart {
            name,
            kind,
            seconds: length,
            slack_s: seconds(segment.slack),
            start_s: seconds(segment.start - data.step_start),
            sample_id: if known { data.sample_name(data.sample[row]).to_string() } else { String::new() },
            worker: if known { data.worker_name(data.worker[row]) } else { String::new() },
            trace_id: if known { hex::encode(data.ids[row].0) } else { String::new() },
            span_id: if known { hex::encode(data.ids[row].1) } else { String::new() },
        });
    }
    out.totals = totals
        .into_iter()
        .map(|((name, kind), (ns, parts))| PathTotal { name, kind, seconds: seconds(ns), ns, parts })
        .collect();
    out.totals.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.name.cmp(&b.name)).then_with(|| a.kind.cmp(&b.kind)));
    out
}
