//! Gives every generation of a step its times, by simulating the engines: a queue in front of each, prefill in batches
//! that share their start and end, a bounded number of running requests, transfer of the KV cache where prefill and
//! decode are apart. Queue times, batch sizes and the serving series all follow from the same events, so they agree.
//!
//! All times are nanoseconds from the start of the step.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::dice::Dice;
use crate::task::Task;

pub const MS: i64 = 1_000_000;
pub const SECOND: i64 = 1_000_000_000;

/// Engines come in pods of four: two unified, one that only prefills, one that only decodes.
pub const POD: usize = 4;
const SAMPLES_A_POD: usize = 64;
const MAX_PODS: usize = 8;
const SLOTS: usize = 18;
/// Tokens in one batch of prefill, and how fast they go through.
const PREFILL_BATCH: i64 = 8192;
const PREFILL_PER_S: f64 = 16_000.0;
/// A token's share of the KV cache of a 7B model, in MB.
const KV_MB: f64 = 0.056;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Unified,
    Prefill,
    Decode,
}

pub fn role(engine: usize) -> Role {
    match engine % POD {
        2 => Role::Prefill,
        3 => Role::Decode,
        _ => Role::Unified,
    }
}

pub fn tensor_parallel(engine: usize) -> i32 {
    if role(engine) == Role::Unified { 2 } else { 1 }
}

/// What the engines of a step can do.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// Requests that may run at a time, by engine.
    pub slots: Vec<usize>,
    /// How much faster than one node: for loads beyond what the pods were made for.
    scale: f64,
    pub transfer_stall_s: f64,
}

impl Fleet {
    pub fn new(samples: usize) -> Self {
        let pods = samples.div_ceil(SAMPLES_A_POD).clamp(1, MAX_PODS);
        let scale = samples.div_ceil(SAMPLES_A_POD * pods).max(1);
        Fleet { slots: vec![SLOTS * scale; pods * POD], scale: scale as f64, transfer_stall_s: 0.0 }
    }

    pub fn engines(&self) -> usize {
        self.slots.len()
    }
}

/// One generation on the engines.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub sample: usize,
    pub turn: usize,
    /// Where it is prefilled; with disaggregation it decodes elsewhere.
    pub engine: usize,
    pub decode_engine: usize,
    pub sent: i64,
    /// Tokenized and with the scheduler.
    pub arrived: i64,
    /// Disaggregation only: hand-shake done.
    pub bootstrapped: i64,
    /// In the wait queue.
    pub queued: i64,
    pub prefill_start: i64,
    pub prefill_end: i64,
    pub batch: u32,
    pub batch_size: u32,
    pub decode_bootstrapped: i64,
    /// Disaggregation only: room on the decode side is reserved.
    pub preallocated: i64,
    pub transfer_start: i64,
    pub transferred: i64,
    pub transfer_mb: f64,
    pub transfer_retries: i64,
    pub decode_start: i64,
    pub decode_end: i64,
    /// The answer is back with the caller.
    pub done: i64,
    pub tool: Option<(i64, i64)>,
}

impl Request {
    pub fn disaggregated(&self) -> bool {
        self.engine != self.decode_engine
    }

    pub fn queue_ns(&self) -> i64 {
        self.prefill_start - self.queued
    }
}

#[derive(Clone, Debug, Default)]
pub struct SampleTimes {
    pub start: i64,
    /// Start and end of each attempt; the last one contains the reward.
    pub attempts: Vec<(i64, i64)>,
    pub reward_start: i64,
    /// End of the sample itself; its group may have to wait for others.
    pub end: i64,
    pub group_end: i64,
}

#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// By sample and turn: those of sample `s` start at `first[s]`.
    pub requests: Vec<Request>,
    pub first: Vec<usize>,
    pub samples: Vec<SampleTimes>,
}

impl Outcome {
    pub fn of(&self, sample: usize) -> &[Request] {
        &self.requests[self.first[sample]..self.first[sample + 1]]
    }

    pub fn end(&self) -> i64 {
        self.samples.iter().map(|s| s.group_end).max().unwrap_or(0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send(usize),
    Queue(usize),
    Preallocate(usize),
    PrefillDone(usize),
    Transferred(usize),
    DecodeDone(usize),
}

#[derive(Default)]
struct Engine {
    waiting: VecDeque<usize>,
    running: usize,
    batch: Vec<usize>,
    batches: u32,
}

struct Sim<'a> {
    tasks: &'a [Task],
    fleet: &'a Fleet,
    dice: &'a mut Dice,
    out: Outcome,
    engines: Vec<Engine>,
    heap: BinaryHeap<Reverse<(i64, u64, Event)>>,
    count: u64,
}

pub fn simulate(tasks: &[Task], fleet: &Fleet, group_size: usize, start: i64, dice: &mut Dice) -> Outcome {
    let mut out = Outcome::default();
    for (sample, task) in tasks.iter().enumerate() {
        out.first.push(out.requests.len());
        for turn in 0..task.turns.len() {
            out.requests.push(Request { sample, turn, ..Request::default() });
        }
    }
    out.first.push(out.requests.len());
    out.samples = vec![SampleTimes::default(); tasks.len()];
    let engines = (0..fleet.engines()).map(|_| Engine::default()).collect();
    let mut sim = Sim { tasks, fleet, dice, out, engines, heap: BinaryHeap::new(), count: 0 };
    for (sample, task) in tasks.iter().enumerate() {
        let at = start + ns(task.submit_s);
        sim.out.samples[sample].start = at;
        sim.out.samples[sample].attempts.push((at, at));
        let first = sim.out.first[sample];
        sim.at(at + MS / 5, Event::Send(first));
    }
    while let Some(Reverse((now, _, event))) = sim.heap.pop() {
        sim.handle(now, event);
    }
    for group in sim.out.samples.chunks_mut(group_size) {
        let end = group.iter().map(|s| s.end).max().unwrap_or(0) + MS / 2;
        group.iter_mut().for_each(|s| s.group_end = end);
    }
    sim.out
}

pub fn ns(seconds: f64) -> i64 {
    (seconds * 1e9) as i64
}

impl Sim<'_> {
    fn at(&mut self, time: i64, event: Event) {
        self.count += 1;
        self.heap.push(Reverse((time, self.count, event)));
    }

    fn handle(&mut self, now: i64, event: Event) {
        match event {
            Event::Send(r) => self.send(now, r),
            Event::Queue(r) => {
                let engine = self.out.requests[r].engine;
                self.out.requests[r].queued = now;
                self.engines[engine].waiting.push_back(r);
                self.prefill(now, engine);
            }
            Event::Preallocate(r) => {
                let engine = self.out.requests[r].decode_engine;
                self.engines[engine].waiting.push_back(r);
                self.preallocate(now, engine);
            }
            Event::PrefillDone(engine) => {
                for r in std::mem::take(&mut self.engines[engine].batch) {
                    self.out.requests[r].prefill_end = now;
                    if role(engine) == Role::Prefill {
                        self.engines[engine].running -= 1;
                        self.transfer(now, r);
                    } else {
                        self.decode(now, r);
                    }
                }
                self.prefill(now, engine);
            }
            Event::Transferred(r) => {
                self.out.requests[r].transferred = now;
                self.decode(now, r);
            }
            Event::DecodeDone(r) => self.done(now, r),
        }
    }

    /// From the caller through tokenizer and dispatch to an engine. Turns of a sample stay where their prefix is.
    fn send(&mut self, now: i64, r: usize) {
        let arrived = now + ns(self.dice.between(0.003, 0.009));
        let bootstrap = ns(self.dice.between(0.004, 0.02));
        let alloc = ns(self.dice.lognormal(0.004, 0.6));
        let (decode_bootstrap, retry) = (ns(self.dice.between(0.003, 0.012)), self.dice.chance(0.01));
        let pods = self.fleet.engines() / POD;
        let q = &mut self.out.requests[r];
        let task = &self.tasks[q.sample];
        let pod = task.group % pods * POD;
        (q.sent, q.arrived) = (now, arrived);
        if task.disaggregated {
            (q.engine, q.decode_engine) = (pod + 2, pod + 3);
            q.bootstrapped = arrived + bootstrap;
            q.decode_bootstrapped = arrived + decode_bootstrap;
            q.transfer_retries = i64::from(retry);
            let (queue, prealloc) = (q.bootstrapped + alloc, q.decode_bootstrapped);
            self.at(queue, Event::Queue(r));
            self.at(prealloc, Event::Preallocate(r));
        } else {
            let engine = pod + q.sample % 2;
            (q.engine, q.decode_engine) = (engine, engine);
            self.at(arrived + MS / 5, Event::Queue(r));
        }
    }

    /// Starts the next batch of prefill if the engine is free for it.
    fn prefill(&mut self, now: i64, engine: usize) {
        let e = &mut self.engines[engine];
        if !e.batch.is_empty() || role(engine) == Role::Decode {
            return;
        }
        let mut tokens = 0;
        while e.running < self.fleet.slots[engine] {
            let Some(r) = e.waiting.front().copied() else { break };
            let q = &self.out.requests[r];
            let turn = &self.tasks[q.sample].turns[q.turn];
            let new = turn.prompt_tokens - turn.cached_tokens;
            if !e.batch.is_empty() && tokens + new > PREFILL_BATCH {
                break;
            }
            tokens += new;
            e.waiting.pop_front();
            e.running += 1;
            e.batch.push(r);
        }
        if e.batch.is_empty() {
            return;
        }
        e.batches += 1;
        for r in &e.batch {
            let q = &mut self.out.requests[*r];
            (q.prefill_start, q.batch, q.batch_size) = (now, e.batches, e.batch.len() as u32);
        }
        let seconds = 0.012 + tokens as f64 / (PREFILL_PER_S * self.fleet.scale);
        self.at(now + ns(seconds), Event::PrefillDone(engine));
    }

    /// Reserves room on the decode side, first come first served.
    fn preallocate(&mut self, now: i64, engine: usize) {
        while self.engines[engine].running < self.fleet.slots[engine] {
            let Some(r) = self.engines[engine].waiting.pop_front() else { break };
            self.engines[engine].running += 1;
            self.out.requests[r].preallocated = now + MS;
            if self.out.requests[r].prefill_end > 0 {
                self.transfer(now + MS, r);
            }
        }
    }

    /// Moves the KV cache once both sides are ready.
    fn transfer(&mut self, now: i64, r: usize) {
        if self.out.requests[r].preallocated == 0 {
            return;
        }
        let speed = self.dice.lognormal(18.0, 0.25);
        let q = &mut self.out.requests[r];
        let now = now.max(q.preallocated);
        q.transfer_start = now;
        q.transfer_mb = self.tasks[q.sample].turns[q.turn].prompt_tokens as f64 * KV_MB;
        let seconds = 0.002
            + q.transfer_mb / 1e3 / speed
            + 0.15 * q.transfer_retries as f64
            + self.fleet.transfer_stall_s * (0.9 + 0.01 * (speed - 18.0));
        self.at(now + ns(seconds.max(0.001)), Event::Transferred(r));
    }

    fn decode(&mut self, now: i64, r: usize) {
        let wait = ns(self.dice.between(0.0008, 0.004));
        let q = &mut self.out.requests[r];
        let turn = &self.tasks[q.sample].turns[q.turn];
        let load = self.engines[q.decode_engine].running as f64 / self.fleet.slots[q.decode_engine].max(SLOTS) as f64;
        let speed = turn.speed / (1.0 + 0.5 * load);
        q.decode_start = now + wait;
        q.decode_end = q.decode_start + ns(turn.completion_tokens as f64 / speed);
        let end = q.decode_end;
        self.at(end, Event::DecodeDone(r));
    }

    fn done(&mut self, now: i64, r: usize) {
        let back = now + ns(self.dice.between(0.001, 0.003));
        let engine = self.out.requests[r].decode_engine;
        self.engines[engine].running -= 1;
        match role(engine) {
            Role::Decode => self.preallocate(now, engine),
            _ => self.prefill(now, engine),
        }
        let (sample, turn) = (self.out.requests[r].sample, self.out.requests[r].turn);
        let task = &self.tasks[sample];
        self.out.requests[r].done = back;
        let mut next = back + MS / 10;
        if let Some(call) = &task.turns[turn].tool {
            let end = next + ns(call.seconds);
            self.out.requests[r].tool = Some((next, end));
            next = end + MS / 10;
        }
        let times = &mut self.out.samples[sample];
        match task.turns.get(turn + 1) {
            Some(following) => {
                if following.attempt != task.turns[turn].attempt {
                    if let Some(attempt) = times.attempts.last_mut() {
                        attempt.1 = next;
                    }
                    next += SECOND;
                    times.attempts.push((next, next));
                    next += MS / 5;
                }
                self.at(next, Event::Send(r + 1));
            }
            None => {
                times.reward_start = next;
                times.end = next + ns(task.reward_s) + MS / 10;
                if let Some(attempt) = times.attempts.last_mut() {
                    attempt.1 = times.end;
                }
            }
        }
    }
}
