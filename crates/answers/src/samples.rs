//! What each sample did with its time, and the pieces that can be compared with those of other steps.
//!
//! **Parts of a sample.** From its first span to the end of its last one (waiting for the rest of its group apart), every
//! nanosecond belongs to exactly one part: a sweep over starts and ends keeps how many spans of each kind run, and takes
//! the first in [`Kind`]'s order. A span inside which another classified span runs does not count itself (KV transfer is
//! the tail of prefill's forward, hand-shakes lie inside queues); copies on several ranks and overlapping prefill and
//! decode sides count once. So the parts add up to the sample's time exactly. What was given up ([`given_up`]) is
//! `retry`. A generation without spans inside is divided by the fields its caller noted.
//!
//! **Requests and calls.** Each generation is a request with the time it spent in each part, its tokens and its engine;
//! each tool call and each reward is a call with its length. They are what findings compare with the run's other steps.
//! n log n.

use hashbrown::{HashMap, HashSet};

use super::attributes::SpanFacts;
use super::kinds::Kind;
use super::parallel;
use super::robust::seconds;
use super::step::{NONE, StepData, flag};
use rollscope_spans::intervals;

/// Where a sample's time went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Part {
    Queue,
    Prefill,
    Transfer,
    Decode,
    /// In a generation, but in none of the above: network, tokenizing, or time that the engine did not report.
    Generate,
    Tool,
    Reward,
    Retry,
    Other,
}

impl Part {
    pub const COUNT: usize = 9;
    pub const ALL: [Part; Part::COUNT] = [
        Part::Queue,
        Part::Prefill,
        Part::Transfer,
        Part::Decode,
        Part::Generate,
        Part::Tool,
        Part::Reward,
        Part::Retry,
        Part::Other,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Part::Queue => "queue",
            Part::Prefill => "prefill",
            Part::Transfer => "transfer",
            Part::Decode => "decode",
            Part::Generate => "generate",
            Part::Tool => "tool",
            Part::Reward => "reward",
            Part::Retry => "retry",
            Part::Other => "other",
        }
    }

    fn of(kind: Kind) -> Part {
        match kind.under() {
            Kind::Queue => Part::Queue,
            Kind::Prefill => Part::Prefill,
            Kind::Transfer => Part::Transfer,
            Kind::Decode => Part::Decode,
            Kind::Generate => Part::Generate,
            Kind::Tool => Part::Tool,
            Kind::Reward => Part::Reward,
            _ => Part::Other,
        }
    }
}

pub type Parts = [i64; Part::COUNT];

#[derive(Clone, Debug, Default)]
pub struct SampleTime {
    pub start: i64,
    /// Its own end; its group may wait longer.
    pub end: i64,
    pub group_end: i64,
    pub parts: Parts,
    pub tokens: f64,
}

impl SampleTime {
    pub fn length(&self) -> i64 {
        self.end - self.start
    }
}

/// One generation. Times are in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub sample: u32,
    pub row: u32,
    /// The senders that prefilled and decoded; texts' numbers, [`NONE`] if no engine reported on it.
    pub prefill_engine: u32,
    pub engine: u32,
    pub queue: f64,
    pub prefill: f64,
    pub transfer: f64,
    pub decode: f64,
    /// In none of these.
    pub rest: f64,
    /// Tokens made, of the prompt, and of the prompt from the cache. NaN: not known.
    pub tokens: f64,
    pub prompt: f64,
    pub cached: f64,
    pub failed: bool,
    /// Made in an attempt that was given up.
    pub given_up: bool,
}

/// A tool call or a reward.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub sample: u32,
    pub row: u32,
    /// The tool; a text's number. [`NONE`]: a reward.
    pub tool: u32,
    pub seconds: f64,
    pub failed: bool,
}

#[derive(Default)]
pub struct SampleTimes {
    /// By sample. `None` if a sample has no spans.
    pub times: Vec<Option<SampleTime>>,
    pub requests: Vec<Request>,
    pub calls: Vec<Call>,
}

fn counts(kind: Kind) -> bool {
    matches!(
        kind.under(),
        Kind::Tool | Kind::Reward | Kind::Decode | Kind::Prefill | Kind::Queue | Kind::Transfer | Kind::Generate
    )
}

/// How many ancestors are checked to find what contains a span.
const MAX_CLIMB: usize = 64;

struct Generation {
    row: u32,
    parts: Parts,
    /// The longest prefill and the longest decode, with their senders; and the longest span of another sender than the
    /// caller's that passed nothing on.
    prefill: (i64, u32),
    decode: (i64, u32),
    other: (i64, u32),
    /// From when to when each other sender had to do with it.
    served: Vec<(u32, i64, i64)>,
    /// It failed, or what served it did.
    failed: bool,
}

pub fn sample_times(data: &mut StepData) -> SampleTimes {
    // Rows by sample.
    let mut ends = vec![0u32; data.samples.len() + 1];
    for sample in data.sample.iter().filter(|s| **s != NONE) {
        ends[*sample as usize + 1] += 1;
    }
    for i in 1..ends.len() {
        ends[i] += ends[i - 1];
    }
    let mut next = ends.clone();
    let mut rows = vec![0u32; ends[data.samples.len()] as usize];
    for row in 0..data.len() {
        if data.sample[row] != NONE {
            let slot = &mut next[data.sample[row] as usize];
            rows[*slot as usize] = row as u32;
            *slot += 1;
        }
    }
    // Each core takes as many rows.
    let shares = if rows.len() < WORTH_SHARING { 1 } else { parallel::cores() };
    let first_of = |share: usize| match share {
        0 => 0,
        share if share == shares => data.samples.len(),
        share => ends[1..].partition_point(|end| (*end as usize) <= rows.len() * share / shares),
    };
    let gateways = gateways(data);
    let swept = parallel::each(shares, |share| {
        let (mut swept, mut sweep) = (Swept::default(), Sweep::new(data.len(), &gateways));
        for sample in first_of(share)..first_of(share + 1) {
            let rows = &rows[ends[sample] as usize..ends[sample + 1] as usize];
            let time = sweep.sample(data, sample as u32, rows, &mut swept);
            swept.times.push(time);
        }
        swept
    });
    let mut out = SampleTimes::default();
    for Swept { times, requests, calls, told } in swept {
        out.times.extend(times);
        out.requests.extend(requests);
        out.calls.extend(calls.into_iter().map(|call| {
            let said = data.facts.get(call.row).and_then(|f| f.tool).filter(|_| call.tool != NONE);
            Call { tool: said.unwrap_or(call.tool), ..call }
        }));
        told.into_iter().for_each(|(row, facts)| data.facts.insert(row, facts));
    }
    out
}

/// Senders that pass generations on to others: gateways and routers are no engines.
fn gateways(data: &StepData) -> HashSet<u32> {
    let sender = |row: u32| data.sender[row as usize];
    let mut out = HashSet::new();
    for row in (0..data.len()).filter(|row| data.sample[*row] != NONE) {
        let up = data.parent[row];
        if up == NONE || sender(up) == data.sender[row] || out.contains(&sender(up)) {
            continue;
        }
        let Some(generation) = generation_of(data, up) else { continue };
        let caller = if generation == up { data.parent[up as usize] } else { generation };
        if caller != NONE && sender(caller) != sender(up) {
            out.insert(sender(up));
        }
    }
    out
}

/// The generation that a span belongs to.
fn generation_of(data: &StepData, row: u32) -> Option<u32> {
    let mut at = row;
    for _ in 0..MAX_CLIMB {
        if at == NONE || data.is(at as usize, flag::GENERATION) {
            break;
        }
        at = data.parent[at as usize];
    }
    Some(at).filter(|at| *at != NONE && data.is(*at as usize, flag::GENERATION))
}

/// Rows that are worth the cost of starting threads.
const WORTH_SHARING: usize = 20_000;

/// What was found of some samples.
#[derive(Default)]
struct Swept {
    times: Vec<Option<SampleTime>>,
    requests: Vec<Request>,
    /// Of tools: with the name of the span.
    calls: Vec<Call>,
    /// Generations of which the engine told more than their caller.
    told: Vec<(u32, SpanFacts)>,
}

/// When a sample did what was for nothing. Where it was tried again as a whole: until its last attempt. Where requests were: from
/// one that failed, or counts fewer attempts than the next, until the next one starts. `generations` are by start.
fn given_up(data: &StepData, own: impl Iterator<Item = usize> + Clone, generations: &[Generation]) -> Vec<(i64, i64)> {
    let as_a_whole = |r: &usize| data.kind[*r] != Kind::Generate;
    let last = own.clone().filter(as_a_whole).map(|r| data.attempt[r]).max().unwrap_or(0);
    if last > 0 {
        let starts = || own.clone().map(|r| data.start[r]);
        let again = own.clone().filter(|r| data.attempt[*r] == last).map(|r| data.start[r]).min();
        return starts().min().zip(again).filter(|(from, until)| from < until).into_iter().collect();
    }
    let row = |g: &Generation| g.row as usize;
    let mut lost: Vec<(i64, i64)> = generations
        .windows(2)
        .filter(|w| w[0].failed || data.attempt[row(&w[1])] > data.attempt[row(&w[0])])
        .map(|w| (data.start[row(&w[0])], data.start[row(&w[1])]))
        .collect();
    intervals::union(&mut lost);
    lost
}

/// Room that is used again for every sample.
struct Sweep<'a> {
    gateways: &'a HashSet<u32>,
    active: Vec<bool>,
    inside: Vec<u32>,
    around: Vec<u32>,
    generation: Vec<u32>,
    events: Vec<(i64, bool, u32)>,
}

impl<'a> Sweep<'a> {
    fn new(rows: usize, gateways: &'a HashSet<u32>) -> Self {
        Sweep {
            gateways,
            active: vec![false; rows],
            inside: vec![0; rows],
            around: vec![NONE; rows],
            generation: vec![NONE; rows],
            events: Vec::new(),
        }
    }

    fn sample(&mut self, data: &StepData, sample: u32, rows: &[u32], out: &mut Swept) -> Option<SampleTime> {
        let counts_itself = |row: &usize| !data.is(*row, flag::SHARED | flag::POINT) && data.length(*row) > 0;
        let own: Vec<usize> = rows.iter().map(|row| *row as usize).filter(counts_itself).collect();
        let own = || own.iter().copied();
        let start = own().map(|r| data.start[r]).min()?;
        let end = own().map(|r| data.end[r]).max()?;
        let shared = rows.iter().filter(|r| data.is(**r as usize, flag::SHARED));
        let group_end = shared.map(|r| data.end[data.shared[*r as usize] as usize]).max().unwrap_or(end).max(end);
        let mut time = SampleTime { start, end, group_end, ..SampleTime::default() };

        let mut generations: Vec<Generation> = Vec::new();
        self.events.clear();
        for row in own() {
            let (mut at, mut climbed) = (data.parent[row], 0);
            while at != NONE && climbed < MAX_CLIMB && !counts(data.kind[at as usize]) {
                at = data.parent[at as usize];
                climbed += 1;
            }
            self.around[row] = if climbed < MAX_CLIMB { at } else { NONE };
            self.generation[row] = generation_of(data, row as u32).unwrap_or(NONE);
            if counts(data.kind[row]) {
                self.events.push((data.start[row], true, row as u32));
                self.events.push((data.end[row], false, row as u32));
            }
            if data.is(row, flag::GENERATION) {
                generations.push(Generation {
                    row: row as u32,
                    parts: [0; Part::COUNT],
                    prefill: (0, NONE),
                    decode: (0, NONE),
                    other: (0, NONE),
                    served: Vec::new(),
                    failed: data.is(row, flag::ERROR),
                });
            }
        }
        // Ends before starts: neighbours that touch do not overlap.
        self.events.sort_unstable_by_key(|(at, starts, row)| (*at, *starts, *row));
        let place: HashMap<u32, usize> = generations.iter().enumerate().map(|(i, g)| (g.row, i)).collect();
        // What the engine tells of a generation, where its caller does not.
        let mut told: HashMap<u32, SpanFacts> = HashMap::new();
        for row in own() {
            if let Some(g) = place.get(&self.generation[row]) {
                let g = &mut generations[*g];
                if row as u32 != g.row
                    && let Some(facts) = data.facts.get(row as u32).filter(|_| data.kind[row] == Kind::Generate)
                {
                    let of_caller = || data.facts.get(g.row).unwrap_or_default();
                    told.entry(g.row).or_insert_with(of_caller).fill_from(&facts);
                }
                // An answer with tokens is one, whoever complained on the way.
                let answered = |row| data.facts.get(row).is_some_and(|f| f.completion_tokens.is_some());
                g.failed |= data.is(row, flag::ERROR) && !answered(g.row) && !answered(row as u32);
                let (sender, start, end) = (data.sender[row], data.start[row], data.end[row]);
                if sender != data.sender[g.row as usize] {
                    match g.served.iter_mut().find(|(known, ..)| *known == sender) {
                        Some((_, from, until)) => (*from, *until) = (start.min(*from), end.max(*until)),
                        None => g.served.push((sender, start, end)),
                    }
                }
                let longest = (data.length(row), sender);
                match data.kind[row] {
                    Kind::Prefill => g.prefill = g.prefill.max(longest),
                    Kind::Decode => g.decode = g.decode.max(longest),
                    _ if sender == data.sender[g.row as usize] || self.gateways.contains(&sender) => {}
                    _ => g.other = g.other.max(longest),
                }
            }
        }

        let lost = given_up(data, own(), &generations);
        let mut ahead = lost.as_slice();
        let mut running = [0i32; Kind::COUNT];
        let mut open: Vec<usize> = Vec::new();
        let mut now = start;
        let mut pass = |from: i64, to: i64, running: &[i32; Kind::COUNT], open: &[usize]| {
            let part = running.iter().position(|n| *n > 0).map_or(Part::Other, |k| Part::of(Kind::ALL[k]));
            if let Some(g) = open.last() {
                generations[*g].parts[part as usize] += to - from;
            }
            while ahead.first().is_some_and(|(_, until)| *until <= from) {
                ahead = &ahead[1..];
            }
            let given_up = intervals::covered(ahead.iter().copied().take_while(|(start, _)| *start < to), from, to);
            time.parts[Part::Retry as usize] += given_up;
            time.parts[part as usize] += to - from - given_up;
        };
        for at in 0..self.events.len() {
            let (when, starts, row) = self.events[at];
            let row = row as usize;
            let when = when.clamp(start, end);
            if when > now {
                pass(now, when, &running, &open);
                now = when;
            }
            let kind = data.kind[row] as usize;
            let around = self.around[row];
            if starts {
                self.active[row] = true;
                running[kind] += i32::from(self.inside[row] == 0);
                if around != NONE {
                    let around = around as usize;
                    self.inside[around] += 1;
                    running[data.kind[around] as usize] -= i32::from(self.inside[around] == 1 && self.active[around]);
                }
                if let Some(g) = place.get(&(row as u32)) {
                    open.push(*g);
                }
            } else {
                self.active[row] = false;
                running[kind] -= i32::from(self.inside[row] == 0);
                if around != NONE {
                    let around = around as usize;
                    self.inside[around] -= 1;
                    running[data.kind[around] as usize] += i32::from(self.inside[around] == 0 && self.active[around]);
                }
                if let Some(g) = place.get(&(row as u32)) {
                    open.retain(|o| o != g);
                }
            }
        }
        pass(now, end, &running, &open);

        for g in &mut generations {
            let row = g.row as usize;
            let next = lost.partition_point(|(_, until)| *until < data.end[row]);
            let given_up = lost.get(next).is_some_and(|(from, _)| *from <= data.start[row]);
            let facts = told.get(&g.row).copied().or_else(|| data.facts.get(g.row));
            if let Some(facts) = &facts {
                divide(facts, g, &mut time, given_up);
            }
            let tokens = facts.and_then(|f| f.completion_tokens).unwrap_or(f64::NAN);
            if tokens.is_finite() {
                time.tokens += tokens;
            }
            let known = |of: fn(SpanFacts) -> Option<f64>| facts.and_then(of).unwrap_or(f64::NAN);
            let part = |part: Part| seconds(g.parts[part as usize]);
            // Where its caller reports none of its own, a generation is what the engine sent.
            let up = data.parent[row];
            let is_sent = up != NONE && data.sender[up as usize] != data.sender[row];
            let its_own = if is_sent && !self.gateways.contains(&data.sender[row]) { data.sender[row] } else { NONE };
            let sender = |first: (i64, u32), second: (i64, u32)| match (first.1, second.1) {
                (NONE, NONE) if g.other.1 == NONE => its_own,
                (NONE, NONE) => g.other.1,
                (NONE, second) => second,
                (first, _) => first,
            };
            let (prefill_engine, engine) = (sender(g.prefill, g.decode), sender(g.decode, g.prefill));
            // What an engine does not explain of its own time, it did not spend elsewhere.
            let inside = g.served.iter().filter(|(by, ..)| [prefill_engine, engine].contains(by));
            let inside = inside.map(|(_, from, until)| until - from).max().unwrap_or(0);
            let divided = [Part::Queue, Part::Prefill, Part::Transfer, Part::Decode].iter().any(|p| part(*p) > 0.0);
            let outside = if divided { seconds((data.length(row) - inside).max(0)) } else { f64::INFINITY };
            out.requests.push(Request {
                sample,
                row: g.row,
                prefill_engine,
                engine,
                queue: part(Part::Queue),
                prefill: part(Part::Prefill),
                transfer: part(Part::Transfer),
                decode: part(Part::Decode),
                rest: (part(Part::Generate) + part(Part::Other)).min(outside),
                tokens,
                prompt: known(|f| f.prompt_tokens),
                cached: known(|f| f.cached_tokens),
                failed: g.failed,
                given_up,
            });
        }
        for row in own() {
            let (kind, failed) = (data.kind[row], data.is(row, flag::ERROR));
            let outermost = self.around[row] == NONE || data.kind[self.around[row] as usize] != kind;
            if matches!(kind, Kind::Tool | Kind::Reward) && outermost {
                let tool = if kind == Kind::Tool { data.name[row] } else { NONE };
                let seconds = seconds(data.length(row));
                out.calls.push(Call { sample, row: row as u32, tool, seconds, failed });
            }
        }
        out.told.extend(told);
        Some(time)
    }
}

/// Divides a generation that has no spans inside by what its caller noted; the rest stays `generate`.
fn divide(facts: &SpanFacts, g: &mut Generation, time: &mut SampleTime, given_up: bool) {
    let known = [Part::Queue, Part::Prefill, Part::Transfer, Part::Decode];
    if known.iter().any(|p| g.parts[*p as usize] > 0) {
        return;
    }
    let ns = |s: Option<f64>| (s.unwrap_or(0.0) * 1e9).clamp(0.0, 1e18) as i64;
    let [bootstrap, forward, transfer, decode] = facts.pd;
    let prefill = match forward {
        Some(_) => ns(forward) - ns(transfer).min(ns(forward)),
        None => ns(facts.prefill_s),
    };
    let decode = match (decode.or(facts.decode_s), facts.completion_tokens, facts.throughput) {
        (Some(s), _, _) => ns(Some(s)),
        (None, Some(tokens), Some(rate)) => ns(Some(tokens / rate)),
        _ => 0,
    };
    // The queue time that SGLang notes lies behind the bootstrap queue.
    let wanted = [
        (Part::Decode, decode),
        (Part::Prefill, prefill),
        (Part::Transfer, ns(transfer)),
        (Part::Queue, ns(bootstrap) + ns(facts.queue_s)),
    ];
    for (part, wanted) in wanted {
        let moved = wanted.min(g.parts[Part::Generate as usize]);
        g.parts[Part::Generate as usize] -= moved;
        g.parts[part as usize] += moved;
        if !given_up {
            let moved = moved.min(time.parts[Part::Generate as usize]);
            time.parts[Part::Generate as usize] -= moved;
            time.parts[part as usize] += moved;
        }
    }
}
