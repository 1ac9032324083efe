//! What is kept of a step for comparing it with the other steps of its run: small beside its spans, so that a run's history
//! stays in memory and a new step costs only itself.

use bitcode::{Decode, Encode};
use hashbrown::{HashMap, HashSet};
use rollscope_spans::intervals;

use super::critical_path::{Divided, Segment, walk};
use super::factors::{Factor, pace};
use super::kinds::Kind;
use super::phases::{Phase, around, of_spans, phases};
use super::robust::seconds;
use super::samples::{Part, SampleTimes};
use super::step::clocks::Clock;
use super::step::{NONE, StepData, Texts, flag};

/// One sample, times in seconds from the start of the step.
#[derive(Clone, Debug, Encode, Decode)]
pub struct SampleSummary {
    pub id: String,
    pub group: String,
    pub source: String,
    pub start: f64,
    pub end: f64,
    pub group_end: f64,
    pub parts: [f64; Part::COUNT],
}

/// See [`super::samples::Request`]; `sample` is the place in [`StepSummary::samples`], engines are in
/// [`StepSummary::keys`].
#[derive(Clone, Debug, Encode, Decode)]
pub struct RequestSummary {
    pub sample: u32,
    pub prefill_engine: u32,
    pub engine: u32,
    /// From the start of the step.
    pub start: f64,
    pub end: f64,
    pub queue: f64,
    pub prefill: f64,
    pub transfer: f64,
    pub decode: f64,
    pub rest: f64,
    pub tokens: f64,
    pub prompt: f64,
    pub cached: f64,
    pub failed: bool,
    pub given_up: bool,
    /// The span, as evidence.
    pub span: ([u8; 16], [u8; 8]),
}

/// See [`super::samples::Call`].
#[derive(Clone, Debug, Encode, Decode)]
pub struct CallSummary {
    pub sample: u32,
    pub tool: u32,
    pub seconds: f64,
    pub failed: bool,
    pub span: ([u8; 16], [u8; 8]),
}

/// How long one rank worked in a phase.
#[derive(Clone, Debug, Encode, Decode)]
pub struct RankTime {
    /// In [`StepSummary::phases`].
    pub phase: u32,
    /// In [`StepSummary::keys`].
    pub rank: u32,
    pub seconds: f64,
}

impl RequestSummary {
    /// What it has of a factor.
    pub fn value(&self, factor: &Factor) -> Option<f64> {
        let known = |value: f64| value.is_finite().then_some(value);
        match factor {
            Factor::Queue => Some(self.queue),
            // Without disaggregation there is no transfer: nothing to compare.
            Factor::Transfer => Some(self.transfer).filter(|s| *s > 0.0),
            Factor::Prompt => known(self.prompt),
            Factor::Uncached => self.uncached(),
            Factor::PrefillPace => self.uncached().and_then(|tokens| pace(self.prefill, tokens)),
            Factor::Prefill => Some(self.prefill).filter(|s| *s > 0.0 && self.uncached().is_none()),
            Factor::Tokens => known(self.tokens).filter(|_| self.decode() > 0.0),
            Factor::Pace => pace(self.decode(), self.tokens),
            Factor::Decode => Some(self.decode()).filter(|s| *s > 0.0 && !self.tokens.is_finite()),
            Factor::Rest => Some(self.rest).filter(|_| self.is_divided() && !self.is_cut()),
            Factor::Tool(_) | Factor::Reward | Factor::TokensOf(_) | Factor::Made | Factor::Retry => None,
        }
    }

    /// An engine or its caller tells what the time went into.
    fn is_divided(&self) -> bool {
        self.queue + self.prefill + self.transfer + self.decode > 0.0
    }

    /// There are tokens, and nobody says when they were decoded: what said so was lost. What is left is that time, and perhaps more.
    fn is_cut(&self) -> bool {
        self.is_divided() && self.decode == 0.0 && self.tokens > 1.0
    }

    /// Of a generation that nobody divided, all of it.
    pub fn decode(&self) -> f64 {
        if self.is_divided() { self.decode } else { self.rest }
    }

    fn uncached(&self) -> Option<f64> {
        let cached = if self.cached.is_finite() { self.cached } else { 0.0 };
        self.prompt.is_finite().then(|| (self.prompt - cached).max(0.0))
    }
}

#[derive(Default, Encode, Decode)]
pub struct StepSummary {
    pub step: Option<i64>,
    pub start_ns: i64,
    pub end_ns: i64,
    pub wall_s: f64,
    pub running: bool,
    /// Without any, nothing is known about times.
    pub spans: usize,
    pub known_samples: usize,
    pub reward_mean: Option<f64>,
    pub phases: Vec<Phase>,
    /// Tokens of all sequences, and those of them that are prompts; 0: not known.
    pub tokens: f64,
    pub prompts: f64,
    /// Seconds of the critical path by kind.
    pub path: [f64; Kind::COUNT],
    /// By id, so that nothing depends on the order of arrival.
    pub samples: Vec<SampleSummary>,
    pub requests: Vec<RequestSummary>,
    pub calls: Vec<CallSummary>,
    pub ranks: Vec<RankTime>,
    /// Tools, engines and ranks.
    keys: Vec<String>,
    pub clocks: Vec<Clock>,
    pub missing_parents: usize,
    /// Generations, and those of them under which an engine reported anything.
    pub generations: usize,
    pub reported: usize,
    pub open: usize,
    pub orphan_ends: usize,
    pub dropped: u64,
}

/// Tokens that a sample is trained on, and those of its task.
#[derive(Clone, Copy, Default)]
pub struct Sequence {
    pub tokens: f64,
    pub prompt: f64,
}

impl StepSummary {
    /// Also returns the critical path.
    pub fn new(step: Option<i64>, data: &StepData, times: &SampleTimes) -> (StepSummary, Vec<Segment>) {
        let path = walk(data);
        let mut ran: Vec<(i64, i64)> = times.times.iter().flatten().map(|time| (time.start, time.end)).collect();
        intervals::union(&mut ran);
        let mut out = StepSummary {
            step,
            start_ns: data.step_start,
            end_ns: data.step_end,
            wall_s: seconds(data.step_end - data.step_start),
            running: data.running,
            spans: data.len(),
            known_samples: data.samples.len(),
            phases: phases(data, &ran, &path),
            clocks: data.clocks.clone(),
            missing_parents: data.missing_parents,
            open: data.open,
            orphan_ends: data.orphan_ends,
            dropped: data.dropped,
            ..StepSummary::default()
        };
        let mut order: Vec<u32> =
            (0..data.samples.len() as u32).filter(|s| times.times[*s as usize].is_some()).collect();
        order.sort_by(|a, b| natural(data.sample_name(*a)).cmp(&natural(data.sample_name(*b))));
        let mut place = vec![NONE; data.samples.len()];
        for sample in order {
            let Some(time) = &times.times[sample as usize] else { continue };
            place[sample as usize] = out.samples.len() as u32;
            let row = &data.samples[sample as usize];
            let at = |ns: i64| seconds(ns - data.step_start);
            out.samples.push(SampleSummary {
                id: data.sample_name(sample).to_string(),
                group: data.texts.get(row.group).to_string(),
                source: data.texts.get(row.source).to_string(),
                start: at(time.start),
                end: at(time.end),
                group_end: at(time.group_end),
                parts: time.parts.map(seconds),
            });
        }
        let at = |ns: i64| seconds(ns - data.step_start);
        let mut keys = Texts::default();
        let mut engines: HashMap<u32, u32> = HashMap::new();
        for request in &times.requests {
            let row = request.row as usize;
            let mut engine = |sender: u32| match sender {
                NONE => NONE,
                sender => *engines.entry(sender).or_insert_with(|| keys.number(&data.sender_name(sender))),
            };
            let (prefill_engine, engine) = (engine(request.prefill_engine), engine(request.engine));
            out.requests.push(RequestSummary {
                sample: place[request.sample as usize],
                prefill_engine,
                engine,
                start: at(data.start[row]),
                end: at(data.end[row]),
                queue: request.queue,
                prefill: request.prefill,
                transfer: request.transfer,
                decode: request.decode,
                rest: request.rest,
                tokens: request.tokens,
                prompt: request.prompt,
                cached: request.cached,
                failed: request.failed,
                given_up: request.given_up,
                span: data.ids[row],
            });
        }
        for call in &times.calls {
            let tool = if call.tool == NONE { NONE } else { keys.number(data.texts.get(call.tool)) };
            let (sample, span) = (place[call.sample as usize], data.ids[call.row as usize]);
            out.calls.push(CallSummary { sample, tool, seconds: call.seconds, failed: call.failed, span });
        }
        // By sample and span, so that nothing depends on the order of arrival.
        out.requests.sort_by_key(|request| (request.sample, request.span));
        out.calls.sort_by_key(|call| (call.sample, call.span));
        let mut reported = vec![false; data.len()];
        for row in 0..data.len() {
            let up = data.parent[row];
            if up != NONE && !data.is(row, flag::MISSING_PARENT) && data.sender[up as usize] != data.sender[row] {
                reported[up as usize] = true;
            }
        }
        for row in (0..data.len()).filter(|r| data.is(*r, flag::GENERATION) && data.kind[*r] == Kind::Generate) {
            out.generations += 1;
            out.reported += usize::from(reported[row]);
        }
        out.count_tokens();
        out.read_ranks(data, &mut keys);
        out.keys = keys.list;
        let divided = Divided::of(&times.requests);
        for segment in &path {
            let kind = if segment.row == NONE { Kind::Step } else { data.kind[segment.row as usize] };
            divided.each(segment, kind, |kind, ns| out.path[kind as usize] += seconds(ns));
        }
        (out, path)
    }

    /// It is over, and took the time it says.
    pub fn is_timed(&self) -> bool {
        !self.running && self.spans > 0
    }

    /// By sample. A sequence is what its sample's last request had before it, and what that made.
    pub fn sequences(&self) -> HashMap<u32, Sequence> {
        let mut of: HashMap<u32, (Sequence, f64)> = HashMap::new();
        for r in self.requests.iter().filter(|r| !r.failed && !r.given_up) {
            let known = |tokens: f64| if tokens.is_finite() { tokens } else { 0.0 };
            let (sequence, made) = of.entry(r.sample).or_default();
            *made += known(r.tokens);
            sequence.tokens = sequence.tokens.max(known(r.prompt) + known(r.tokens)).max(*made);
            // The first prompt is the task.
            let task = sequence.prompt;
            sequence.prompt = if task == 0.0 { known(r.prompt) } else { task.min(known(r.prompt)) };
        }
        of.into_iter().map(|(sample, (sequence, _))| (sample, sequence)).collect()
    }

    fn count_tokens(&mut self) {
        let sequences = self.sequences();
        self.tokens = sequences.values().map(|sequence| sequence.tokens).sum();
        self.prompts = sequences.values().map(|sequence| sequence.prompt).sum();
    }

    /// How long each rank worked in each phase of the trainer. Ranks that wait for each other end together: what they waited in
    /// collectives is no work.
    fn read_ranks(&mut self, data: &StepData, keys: &mut Texts) {
        let of_spans = of_spans(data, &self.phases);
        let who = |row: usize| (data.worker[row], data.sender[row]);
        let mut sums: HashMap<(usize, u32, u32), i64> = HashMap::new();
        let waits = |row: usize| data.kind[row] == Kind::Idle || is_collective(data.name_of(row));
        for row in (0..data.len()).filter(|r| data.sample[*r] == NONE && data.parent[*r] != NONE) {
            if of_spans[row] != NONE || data.is(row, flag::POINT) {
                continue;
            }
            // The outermost of its spans; the phase's own span is the driver's.
            let up = data.parent[row] as usize;
            if who(row) == who(up) {
                if waits(row)
                    && !waits(up)
                    && let Some(phase) = around(data, &of_spans, row as u32)
                {
                    *sums.entry((phase, data.worker[row], data.sender[row])).or_default() -= data.length(row);
                }
                continue;
            }
            if let Some(phase) = around(data, &of_spans, row as u32).filter(|p| !self.phases[*p].holds_samples) {
                *sums.entry((phase, data.worker[row], data.sender[row])).or_default() += data.length(row);
            }
        }
        // What only waited is the driver.
        sums.retain(|_, ns| *ns > 0);
        // A process with a name of its own for each rank says it best.
        let senders: HashSet<u32> = sums.keys().map(|(_, _, sender)| *sender).collect();
        let by_sender = senders.len() > 1
            && senders.len() >= sums.keys().map(|(_, worker, _)| *worker).collect::<HashSet<_>>().len();
        for ((phase, worker, sender), ns) in sums {
            let name = match worker {
                NONE => data.sender_name(sender),
                _ if by_sender => data.sender_name(sender),
                worker => data.worker_name(worker),
            };
            let rank = keys.number(&name);
            self.ranks.push(RankTime { phase: phase as u32, rank, seconds: seconds(ns) });
        }
        self.ranks.sort_by(|a, b| (a.phase, keys.get(a.rank)).cmp(&(b.phase, keys.get(b.rank))));
    }

    /// From its first moment to its last, in nanoseconds.
    pub fn window(&self) -> (i64, i64) {
        (self.start_ns, self.end_ns)
    }

    /// Requests and calls, and what a step takes without any.
    pub fn size(&self) -> usize {
        self.requests.len() + self.calls.len() + 100
    }

    pub fn key(&self, key: u32) -> &str {
        self.keys.get(key as usize).map_or("", String::as_str)
    }
}

/// In which ranks wait for each other.
fn is_collective(name: &str) -> bool {
    const NAMES: [&str; 8] =
        ["all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "all_to_all", "broadcast", "barrier"];
    let name = name.to_ascii_lowercase();
    NAMES.iter().any(|collective| name.contains(collective))
}

/// Ids that are numbers are ordered as such.
pub fn natural(id: &str) -> (bool, u64, &str) {
    match id.parse::<u64>() {
        Ok(n) => (false, n, id),
        Err(_) => (true, 0, id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_span_of_decoding_was_lost_nobody_knows_what_was_outside() {
        let whole = RequestSummary {
            sample: 0,
            prefill_engine: 0,
            engine: 0,
            start: 0.0,
            end: 12.0,
            queue: 1.0,
            prefill: 1.0,
            transfer: 0.0,
            decode: 9.0,
            rest: 1.0,
            tokens: 90.0,
            prompt: f64::NAN,
            cached: f64::NAN,
            failed: false,
            given_up: false,
            span: Default::default(),
        };
        assert_eq!((whole.decode(), whole.value(&Factor::Rest)), (9.0, Some(1.0)));
        let lost = RequestSummary { decode: 0.0, rest: 10.0, ..whole.clone() };
        assert_eq!((lost.decode(), lost.value(&Factor::Rest)), (0.0, None));
        let first_token_only = RequestSummary { decode: 0.0, rest: 10.0, tokens: 1.0, ..whole };
        assert_eq!((first_token_only.decode(), first_token_only.value(&Factor::Rest)), (0.0, Some(10.0)));
    }
}
