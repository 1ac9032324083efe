//! Where the time went, by kind, name and worker.
//!
//! - **wall**: how long at least one such span ran (the length of the union of their intervals);
//! - **inclusive**: their lengths added up, of the outermost ones only (a span inside another of the same key counts
//!   once). Where those inside run beside each other or beyond it, what they took together counts instead: so inclusive
//!   is never less than exclusive;
//! - **exclusive**: their own time added up: length minus the union of their children's intervals inside them. Over a
//!   tree whose children do not overlap, exclusive times add up to the root's length.
//!
//! Spans that are written several times count once: a group's span ([`StepData::shared`]); an engine's slices on several
//! tensor-parallel ranks are the same work (rank 0 counts by kind and name, every rank for its worker). By sample the parts
//! of [`super::samples`] are the answer, by phase those of [`super::phases`]; both add up exactly. n log n.

use std::collections::BTreeMap;

use bitcode::{Decode, Encode};
use hashbrown::HashMap;
use serde::Serialize;
use utoipa::ToSchema;

use super::kinds::Kind;
use super::robust::seconds;
use super::step::{NONE, StepData, flag};

#[derive(Clone, Debug, Serialize, ToSchema, Encode, Decode)]
#[schema(as = BreakdownShare)]
pub struct Share {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    pub spans: usize,
    pub wall_s: f64,
    pub inclusive_s: f64,
    pub exclusive_s: f64,
}

#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Breakdown {
    pub by_kind: Vec<Share>,
    /// The names with the most time of their own.
    pub by_name: Vec<Share>,
    pub names_left_out: usize,
    pub by_worker: Vec<Share>,
    pub workers_left_out: usize,
}

const MAX_NAMES: usize = 50;
const MAX_WORKERS: usize = 200;

#[derive(Clone, Copy, Default)]
struct Sum {
    spans: usize,
    wall: i64,
    reach: Option<i64>,
    inclusive: i64,
    exclusive: i64,
}

impl Sum {
    /// Spans come by start: each adds what reaches beyond the latest end before it.
    fn add(&mut self, start: i64, end: i64, own: i64, inclusive: i64) {
        self.spans += 1;
        let from = self.reach.map_or(start, |r| r.max(start));
        self.wall += (end - from).max(0);
        self.reach = Some(self.reach.map_or(end, |r| r.max(end)));
        self.inclusive += inclusive;
        self.exclusive += own;
    }

    fn share(&self, name: String, kind: Option<Kind>) -> Share {
        Share {
            name,
            kind,
            spans: self.spans,
            wall_s: seconds(self.wall),
            inclusive_s: seconds(self.inclusive),
            exclusive_s: seconds(self.exclusive),
        }
    }
}

/// Length of every span minus the union of its children's intervals inside it.
pub fn own_times(data: &StepData, order: &[u32]) -> Vec<i64> {
    let mut own: Vec<i64> = (0..data.len()).map(|r| data.length(r)).collect();
    let mut reach: Vec<i64> = data.start.clone();
    for row in order.iter().map(|r| *r as usize) {
        let up = data.parent[row];
        if up == NONE || data.is(row, flag::POINT) || data.shared[row] != row as u32 {
            continue;
        }
        let up = data.shared[up as usize] as usize;
        let (from, to) = (data.start[row].max(reach[up]), data.end[row].min(data.end[up]));
        if to > from {
            own[up] -= to - from;
            reach[up] = to;
        }
    }
    own
}

/// An engine's slice on a rank that does what rank 0 does.
fn is_copy(data: &StepData, row: usize) -> bool {
    let worker = data.workers.get(data.worker[row] as usize);
    worker.is_some_and(|w| w.ranks[0].is_some_and(|tp| tp > 0)) && data.sample[row] != NONE
}

/// What each outermost span of a key took with those of the same key inside it; 0 for those inside.
fn inclusive_times(data: &StepData, own: &[i64], same: impl Fn(usize, usize) -> bool) -> Vec<i64> {
    const HOPS: usize = 16;
    let counts = |row: usize| !data.is(row, flag::POINT) && data.shared[row] == row as u32 && !is_copy(data, row);
    let up_from = |row: usize| Some(data.parent[row]).filter(|up| *up != NONE).map(|up| up as usize);
    let around = |row: usize| {
        std::iter::successors(up_from(row), |up| up_from(*up)).take(HOPS).find(|up| same(*up, row) && counts(*up))
    };
    let outer: Vec<u32> =
        (0..data.len()).map(|row| around(row).filter(|_| counts(row)).map_or(NONE, |up| up as u32)).collect();
    let mut inside = vec![0u32; data.len()];
    outer.iter().filter(|up| **up != NONE).for_each(|up| inside[*up as usize] += 1);
    // From the innermost ones outwards.
    let mut ready: Vec<usize> = (0..data.len()).filter(|row| inside[*row] == 0).collect();
    let mut out = own.to_vec();
    while let Some(row) = ready.pop() {
        out[row] = out[row].max(data.length(row));
        if outer[row] != NONE {
            let up = outer[row] as usize;
            out[up] += std::mem::take(&mut out[row]);
            inside[up] -= 1;
            if inside[up] == 0 {
                ready.push(up);
            }
        }
    }
    out
}

/// Calls by tool, under the names that the critical path has for them.
pub fn by_tool(data: &StepData) -> Vec<Share> {
    let mut tools: BTreeMap<String, Sum> = BTreeMap::new();
    for row in 0..data.len() {
        let named = data.kind[row] == Kind::Tool && data.facts.get(row as u32).is_some_and(|f| f.tool.is_some());
        if named && !data.is(row, flag::POINT) && data.shared[row] == row as u32 {
            let sum = tools.entry(super::critical_path::label(data, row as u32).0).or_default();
            sum.add(data.start[row], data.end[row], 0, data.length(row));
        }
    }
    tools.into_iter().map(|(name, sum)| sum.share(name, Some(Kind::Tool))).collect()
}

pub fn breakdown(data: &StepData) -> Breakdown {
    let mut order: Vec<u32> = (0..data.len() as u32).collect();
    // They nearly are: a stable sort makes use of that.
    order.sort_by_key(|r| (data.start[*r as usize], data.end[*r as usize]));
    let own = own_times(data, &order);
    let of_kind = inclusive_times(data, &own, |a, b| data.kind[a] == data.kind[b]);
    let of_name = inclusive_times(data, &own, |a, b| data.name[a] == data.name[b]);
    let mut kinds = [Sum::default(); Kind::COUNT];
    let mut names: HashMap<(u32, Kind), Sum> = HashMap::new();
    let mut workers = vec![Sum::default(); data.workers.len()];
    // Requests of an engine have a name each; they count as one.
    let mut family: HashMap<u32, u32> = HashMap::new();
    let mut texts: Vec<String> = Vec::new();
    let mut known: HashMap<String, u32> = HashMap::new();
    for row in order.iter().map(|r| *r as usize) {
        if data.is(row, flag::POINT) || data.shared[row] != row as u32 {
            continue;
        }
        let (start, end, kind) = (data.start[row], data.end[row], data.kind[row]);
        if let Some(sum) = workers.get_mut(data.worker[row] as usize)
            && kind.is_work()
        {
            let outermost = data.parent[row] == NONE || data.kind[data.parent[row] as usize] != kind;
            sum.add(start, end, own[row], if outermost { end - start } else { 0 });
        }
        if is_copy(data, row) {
            continue;
        }
        let name = *family.entry(data.name[row]).or_insert_with(|| {
            let text = super::critical_path::label(data, row as u32).0;
            let text = if data.kind[row] == Kind::Tool { data.name_of(row).to_string() } else { text };
            *known.entry(text).or_insert_with_key(|text| {
                texts.push(text.clone());
                texts.len() as u32 - 1
            })
        });
        kinds[kind as usize].add(start, end, own[row], of_kind[row]);
        names.entry((name, kind)).or_default().add(start, end, own[row], of_name[row]);
    }
    let by_own = |a: &Share, b: &Share| {
        b.exclusive_s.total_cmp(&a.exclusive_s).then_with(|| a.name.cmp(&b.name)).then_with(|| a.kind.cmp(&b.kind))
    };
    let mut out = Breakdown::default();
    let used = Kind::ALL.into_iter().zip(kinds).filter(|(_, s)| s.spans > 0);
    out.by_kind = used.map(|(kind, sum)| sum.share(kind.label().to_string(), Some(kind))).collect();
    out.by_kind.sort_by(by_own);
    out.by_name = names.iter().map(|((n, k), sum)| sum.share(texts[*n as usize].clone(), Some(*k))).collect();
    out.by_name.sort_by(by_own);
    out.names_left_out = out.by_name.len().saturating_sub(MAX_NAMES);
    out.by_name.truncate(MAX_NAMES);
    let busy = workers.iter().enumerate().filter(|(_, s)| s.spans > 0);
    out.by_worker = busy.map(|(w, sum)| sum.share(data.worker_name(w as u32), None)).collect();
    out.by_worker.sort_by(|a, b| a.name.cmp(&b.name));
    out.workers_left_out = out.by_worker.len().saturating_sub(MAX_WORKERS);
    out.by_worker.truncate(MAX_WORKERS);
    out
}
