//! What follows from all spans of a step together.

use hashbrown::HashMap;
use rollscope_spans::{Forest, NONE, Walk, samples};

use super::{DETACHED, StepData, clocks, flag};
use crate::kinds::Kind;

/// Ends of a shared span's copies agree to this: they are written one after the other.
const SHARED_NS: i64 = 5_000_000;
/// How many spans up are looked at for what contains a span.
const MAX_CLIMB: usize = 64;

impl StepData {
    pub(super) fn relate(&mut self, traces: usize) {
        self.adopt(traces);
        self.clocks = clocks::correct(self);
        self.find_step();
        self.name_unknown_work();
        self.find_generations();
        self.share();
        self.find_waiters();
        self.find_hand_overs();
    }

    /// See [`samples`]. Where there are no samples at all, every trace with a generation is one.
    pub(super) fn give_samples(&mut self, forest: &Forest, walk: &Walk) {
        samples::inherit(forest, walk, &mut self.sample);
        let mut of_trace = samples::of_traces(forest, &self.sample, |row| self.kind[row].is_trainers());
        let is_root = |row: usize| forest.parent[row] == NONE;
        if self.samples.is_empty() {
            let mut numbers = HashMap::new();
            for row in 0..self.len() {
                let trace = forest.trace[row] as usize;
                if of_trace[trace] == NONE && is_root(row) && self.kind[row] == Kind::Generate {
                    let id = self.texts.number(self.name_of(row).trim().to_string().as_str());
                    of_trace[trace] = self.sample_number(id, &mut numbers);
                }
            }
            // A trainer that asks for all at once: each request is a sample, and what asks for them a rollout, whatever its name.
            for row in 0..self.len() {
                let up = forest.parent[row];
                if up != NONE
                    && self.kind[row] == Kind::Generate
                    && self.sender[row] != self.sender[up as usize]
                    && match self.kind[up as usize] {
                        Kind::Generate | Kind::Rollout => true,
                        kind => kind == Kind::Train && !is_root(up as usize),
                    }
                    && of_trace[forest.trace[row] as usize] == NONE
                    && self.sample[up as usize] == NONE
                {
                    if self.kind[up as usize] == Kind::Train {
                        self.kind[up as usize] = Kind::Rollout;
                    }
                    let id = self.texts.number(&hex::encode(&self.ids[row].1[..4]));
                    self.sample[row] = self.sample_number(id, &mut numbers);
                }
            }
            samples::inherit(forest, walk, &mut self.sample);
            let asked_for = |row: usize| self.kind[row].is_trainers() || self.kind[row] == Kind::Rollout;
            self.requests_only =
                (0..self.len()).all(|row| !asked_for(row) && (!is_root(row) || self.kind[row] == Kind::Generate));
        }
        if !self.flags.iter().any(|f| f & flag::GENERATION != 0) {
            // Only an engine's spans: its requests are the generations.
            for row in 0..self.len() {
                if self.kind[row] == Kind::Generate && is_root(row) && !self.is(row, flag::POINT) {
                    self.flags[row] |= flag::GENERATION;
                }
            }
        }
        samples::lend(forest, &of_trace, &mut self.sample);
        for row in 0..self.len() {
            if self.sample[row] != NONE {
                let known = &mut self.samples[self.sample[row] as usize];
                if known.group == NONE {
                    known.group = self.group[row];
                }
            }
        }
    }

    /// Spans whose parent never came hang under the longest span of their trace.
    fn adopt(&mut self, traces: usize) {
        let mut longest = vec![NONE; traces];
        for row in 0..self.len() {
            let slot = &mut longest[self.trace[row] as usize];
            if self.parent[row] == NONE
                && !self.is(row, flag::MISSING_PARENT)
                && (*slot == NONE || self.length(row) > self.length(*slot as usize))
            {
                *slot = row as u32;
            }
        }
        for row in 0..self.len() {
            let over = longest[self.trace[row] as usize];
            if self.is(row, flag::MISSING_PARENT) && over != NONE && over != row as u32 {
                self.parent[row] = over;
            }
        }
    }

    fn find_step(&mut self) {
        // What is called a step inside a sample is an agent's, or its environment's.
        for row in 0..self.len() {
            if self.kind[row] == Kind::Step && self.sample[row] != NONE {
                self.kind[row] = Kind::Tool;
            }
        }
        // A `train_step` that contains rollouts, or the weights' way to the engines, is a step.
        let of_a_step = |kind: Kind| matches!(kind, Kind::Rollout | Kind::Generate | Kind::WeightSync);
        for row in 0..self.len() {
            if self.parent[row] != NONE && of_a_step(self.kind[row]) && self.sample[row] == NONE {
                let up = self.parent[row] as usize;
                if self.parent[up] == NONE && self.kind[up] == Kind::Train {
                    self.kind[up] = Kind::Step;
                }
            }
        }
        let steps = || (0..self.len()).filter(|r| self.kind[*r] == Kind::Step && self.sample[*r] == NONE);
        let own: Vec<usize> = steps().filter(|r| self.parent[*r] == NONE).collect();
        let spans: Vec<usize> = match own.is_empty() {
            // Without a trainer's span the step is as long as its roots.
            true => (0..self.len()).filter(|r| self.parent[*r] == NONE && !self.is(*r, flag::POINT)).collect(),
            false => own.clone(),
        };
        // Right under the step, a rollout is what its sender calls one, whatever its name.
        for row in 0..self.len() {
            let up = self.parent[row];
            if up != NONE
                && self.is(row, flag::SAID_ROLLOUT)
                && self.sample[row] == NONE
                && own.contains(&(up as usize))
            {
                self.kind[row] = Kind::Rollout;
                self.flags[row] &= !flag::GENERATION;
            }
        }
        self.root = (own.len() == 1).then(|| own[0] as u32);
        self.step_start = spans.iter().map(|r| self.start[*r]).min().unwrap_or(0);
        self.step_end = spans.iter().map(|r| self.end[*r]).max().unwrap_or(0);
        self.running = spans.iter().any(|r| self.is(*r, flag::OPEN));
    }

    /// What a worker does for a phase of the trainer (ROLL's `exec` under `worker.train_step`) is of that kind, where its name says nothing.
    fn name_unknown_work(&mut self) {
        let unknown = |row: usize| self.kind[row] == Kind::Other && self.sample[row] == NONE;
        let mut found = Vec::new();
        for row in (0..self.len()).filter(|row| unknown(*row)) {
            let mut at = self.parent[row];
            for _ in 0..MAX_CLIMB {
                if at == NONE || !unknown(at as usize) {
                    break;
                }
                at = self.parent[at as usize];
            }
            if at != NONE && self.kind[at as usize].is_trainers() && self.kind[at as usize] != Kind::Step {
                found.push((row, self.kind[at as usize]));
            }
        }
        found.into_iter().for_each(|(row, kind)| self.kind[row] = kind);
    }

    /// The outermost span of a sample that generates is a generation, whatever its name, unless one inside it is called so.
    fn find_generations(&mut self) {
        let mut around = vec![false; self.len()];
        for row in (0..self.len()).filter(|r| self.is(*r, flag::GENERATION)) {
            let mut at = self.parent[row];
            while at != NONE && !around[at as usize] {
                around[at as usize] = true;
                at = self.parent[at as usize];
            }
        }
        let generates = |row: usize| self.kind[row] == Kind::Generate && !self.is(row, flag::POINT);
        let mut found = Vec::new();
        for row in (0..self.len()).filter(|r| self.sample[*r] != NONE && !around[*r] && generates(*r)) {
            let (mut at, mut inside) = (self.parent[row], self.is(row, flag::GENERATION));
            for _ in 0..MAX_CLIMB {
                if at == NONE || inside {
                    break;
                }
                let own = self.sample[at as usize] == self.sample[row];
                inside = own && (generates(at as usize) || self.is(at as usize, flag::GENERATION));
                at = self.parent[at as usize];
            }
            if !inside {
                found.push(row);
            }
        }
        found.into_iter().for_each(|row| self.flags[row] |= flag::GENERATION);
    }

    fn share(&mut self) {
        self.shared = (0..self.len() as u32).collect();
        let mut copies: HashMap<(u32, u32, i32), Vec<u32>> = HashMap::new();
        for row in 0..self.len() {
            if self.group[row] != NONE && self.kind[row] == Kind::Rollout && !self.is(row, flag::POINT) {
                copies.entry((self.name[row], self.group[row], self.attempt[row])).or_default().push(row as u32);
            }
        }
        for rows in copies.values().filter(|rows| rows.len() > 1) {
            let ends = || rows.iter().map(|r| self.end[*r as usize]);
            let (first, last) = (ends().min().unwrap_or(0), ends().max().unwrap_or(0));
            let mut traces: Vec<u32> = rows.iter().map(|r| self.trace[*r as usize]).collect();
            traces.sort_unstable();
            if last - first > SHARED_NS || traces.windows(2).any(|w| w[0] == w[1]) {
                continue;
            }
            // The first, which starts first unless its clock was off, stands for all, from the first start to the last end.
            let stands = rows[0];
            let start = rows.iter().map(|r| self.start[*r as usize]).min().unwrap_or(0);
            (self.start[stands as usize], self.end[stands as usize]) = (start, last);
            for row in rows {
                self.shared[*row as usize] = stands;
                self.flags[*row as usize] |= flag::SHARED;
            }
        }
    }

    fn find_waiters(&mut self) {
        let rollouts: Vec<usize> = (0..self.len())
            .filter(|r| self.sample[*r] == NONE && matches!(self.kind[*r], Kind::Rollout | Kind::Generate))
            .collect();
        self.waiter = vec![NONE; self.len()];
        for row in 0..self.len() {
            let contains = |r: usize| r != row && self.start[r] <= self.start[row] && self.end[r] >= self.end[row];
            let up = self.parent[row];
            if up == NONE {
                let linked = self
                    .links(row)
                    .iter()
                    .map(|r| *r as usize)
                    .find(|r| contains(*r) && self.trace[*r] != self.trace[row]);
                // Only samples look for a rollout around them; there are few rollouts in a step.
                let around = || match self.sample[row] {
                    NONE => None,
                    _ => rollouts.iter().rev().copied().find(|r| contains(*r)),
                };
                self.waiter[row] = match linked.or_else(around) {
                    Some(r) => self.shared[r],
                    None if self.end[row] > self.step_end => DETACHED,
                    None => NONE,
                };
                continue;
            }
            let mut at = self.shared[up as usize];
            loop {
                if self.end[at as usize] >= self.end[row] {
                    self.waiter[row] = at;
                    break;
                }
                at = match self.parent[at as usize] {
                    NONE => {
                        self.waiter[row] = if self.end[row] > self.step_end { DETACHED } else { NONE };
                        break;
                    }
                    up => self.shared[up as usize],
                };
            }
        }
    }

    /// Where one engine prefills and another decodes, a request has a side for each: two trees below one generation. The decode side
    /// cannot go on before the prefill side has sent the cache. Ranks report it once each: the last to be done counts.
    fn find_hand_overs(&mut self) {
        if !self.kind.contains(&Kind::Transfer) {
            return;
        }
        // By the span of a side: what it did, and the generation that it is for.
        let mut sides: HashMap<u32, Side> = HashMap::new();
        for row in (0..self.len()).filter(|row| !self.is(*row, flag::POINT) && self.length(*row) > 0) {
            let kind = self.kind[row];
            if !matches!(kind, Kind::Prefill | Kind::Decode | Kind::Transfer) {
                continue;
            }
            let Some(request) = self.above(row as u32, |at| self.kind[at] == Kind::Generate) else { continue };
            let side = sides.entry(request).or_default();
            match kind {
                Kind::Decode => side.decodes = true,
                Kind::Prefill => side.prefills = true,
                _ => side.transfers.push(row as u32),
            }
            if kind != Kind::Decode {
                // Of two that end together the outer one, in which the other is found.
                let order = |row: u32| (self.end[row as usize], self.length(row as usize), self.ids[row as usize]);
                side.last = side.last.into_iter().chain([row as u32]).max_by_key(|row| order(*row));
            }
        }
        let mut prefilled: HashMap<u32, Vec<u32>> = HashMap::new();
        let generation = |request: u32| self.above(request, |at| self.is(at, flag::GENERATION));
        for (request, side) in sides.iter().filter(|(_, side)| side.prefills && !side.decodes) {
            prefilled.entry(generation(*request).unwrap_or(*request)).or_default().extend(side.last);
        }
        let mut found = HashMap::new();
        for (request, side) in sides.iter().filter(|(_, side)| side.decodes && !side.prefills) {
            let Some(last) = generation(*request).and_then(|generation| prefilled.get(&generation)) else { continue };
            for transfer in &side.transfers {
                let (start, end) = (self.start[*transfer as usize], self.end[*transfer as usize]);
                let during = |row: &&u32| self.start[**row as usize] < end && self.end[**row as usize] > start;
                let arrives = |row: &&u32| (self.end[**row as usize].min(end), self.ids[**row as usize]);
                if let Some(last) = last.iter().filter(during).max_by_key(arrives) {
                    found.insert(*transfer, *last);
                }
            }
        }
        self.handed_over = found;
    }

    /// The nearest span that it is, or that is above it.
    fn above(&self, row: u32, is: impl Fn(usize) -> bool) -> Option<u32> {
        std::iter::successors(Some(row), |row| Some(self.parent[*row as usize]).filter(|up| *up != NONE))
            .take(MAX_CLIMB)
            .find(|row| is(*row as usize))
    }
}

/// One side of a disaggregated request, or a request that one engine served as a whole.
#[derive(Default)]
struct Side {
    prefills: bool,
    decodes: bool,
    transfers: Vec<u32>,
    /// What it did last, decoding apart.
    last: Option<u32>,
}
