//! What a scrape of the engines would have found, every ten seconds: gauges, counters and histograms under SGLang's
//! names, read off the same simulated requests that the spans come from.

use rollscope_model::build::{NewPoint, SeriesBuilder};

use crate::emit::seconds;
use crate::engine::Engine;
use crate::sample::transfer_speed_gb_s;
use crate::sim::{MS, Outcome, Request, Role, SECOND};
use crate::task::{DRAFT, Task, Turn};

pub const SCRAPE_EVERY: i64 = 10 * SECOND;
/// Tokens of KV cache an engine has room for, per slot.
const KV_TOKENS_A_SLOT: f64 = 6_000.0;

const LATENCY: [f64; 12] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, f64::INFINITY];
const SHORT: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, f64::INFINITY];
const SPEED: [f64; 12] = [0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 50.0, f64::INFINITY];
const MILLIS: [f64; 12] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 250.0, 500.0, 1e3, 5e3, f64::INFINITY];
const MEGABYTES: [f64; 12] = [4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 256.0, 512.0, f64::INFINITY];

struct Histogram {
    bucket: &'static str,
    sum: &'static str,
    count: &'static str,
    bounds: [f64; 12],
    disaggregated: bool,
    value: fn(&Request) -> f64,
}

const HISTOGRAMS: [Histogram; 6] = [
    Histogram {
        bucket: "sglang:e2e_request_latency_seconds_bucket",
        sum: "sglang:e2e_request_latency_seconds_sum",
        count: "sglang:e2e_request_latency_seconds_count",
        bounds: LATENCY,
        disaggregated: false,
        value: |r| seconds(r.decode_end - r.sent),
    },
    Histogram {
        bucket: "sglang:time_to_first_token_seconds_bucket",
        sum: "sglang:time_to_first_token_seconds_sum",
        count: "sglang:time_to_first_token_seconds_count",
        bounds: SHORT,
        disaggregated: false,
        value: |r| seconds(r.decode_start - r.sent),
    },
    Histogram {
        bucket: "sglang:queue_time_seconds_bucket",
        sum: "sglang:queue_time_seconds_sum",
        count: "sglang:queue_time_seconds_count",
        bounds: SHORT,
        disaggregated: false,
        value: |r| seconds(r.queue_ns()),
    },
    Histogram {
        bucket: "sglang:kv_transfer_speed_gb_s_bucket",
        sum: "sglang:kv_transfer_speed_gb_s_sum",
        count: "sglang:kv_transfer_speed_gb_s_count",
        bounds: SPEED,
        disaggregated: true,
        value: transfer_speed_gb_s,
    },
    Histogram {
        bucket: "sglang:kv_transfer_latency_ms_bucket",
        sum: "sglang:kv_transfer_latency_ms_sum",
        count: "sglang:kv_transfer_latency_ms_count",
        bounds: MILLIS,
        disaggregated: true,
        value: |r| (r.transferred - r.transfer_start) as f64 / MS as f64,
    },
    Histogram {
        bucket: "sglang:kv_transfer_total_mb_bucket",
        sum: "sglang:kv_transfer_total_mb_sum",
        count: "sglang:kv_transfer_total_mb_count",
        bounds: MEGABYTES,
        disaggregated: true,
        value: |r| r.transfer_mb,
    },
];

/// Counters of one engine since it was started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    prompt: i64,
    cached: i64,
    generated: i64,
    requests: i64,
    aborted: i64,
    failed_transfers: i64,
    histograms: [([u64; 12], f64); HISTOGRAMS.len()],
}

impl Totals {
    fn finish(&mut self, r: &Request, turn: &Turn) {
        self.requests += 1;
        self.aborted += i64::from(turn.finish == "abort");
        self.failed_transfers += r.transfer_retries;
        for (h, (counts, sum)) in HISTOGRAMS.iter().zip(&mut self.histograms) {
            if h.disaggregated && !r.disaggregated() {
                continue;
            }
            let value = (h.value)(r);
            *sum += value;
            counts.iter_mut().zip(h.bounds).filter(|(_, bound)| value <= *bound).for_each(|(n, _)| *n += 1);
        }
    }

    fn prefilled(&mut self, turn: &Turn) {
        self.prompt += turn.prompt_tokens;
        self.cached += turn.cached_tokens;
    }
}

/// The counters after a step, given those before it.
pub fn after(totals: &[Totals], outcome: &Outcome, tasks: &[Task]) -> Vec<Totals> {
    let mut totals = totals.to_vec();
    for r in &outcome.requests {
        let turn = &tasks[r.sample].turns[r.turn];
        totals[r.engine].prefilled(turn);
        totals[r.decode_engine].generated += turn.completion_tokens;
        totals[r.decode_engine].finish(r, turn);
    }
    totals
}

/// Tokens a request had produced at a time.
fn produced(r: &Request, turn: &Turn, at: i64) -> f64 {
    let share = (at - r.decode_start) as f64 / (r.decode_end - r.decode_start).max(1) as f64;
    turn.completion_tokens as f64 * share.clamp(0.0, 1.0)
}

#[derive(Clone, Default)]
struct Now {
    running: i64,
    queued: i64,
    bootstrapping: i64,
    inflight: i64,
    preallocating: i64,
    transferring: i64,
    kv_tokens: f64,
    generated: f64,
    generated_before: f64,
    accepted: i64,
    verifies: i64,
    prompt: i64,
    cached: i64,
}

pub struct Scrape<'a> {
    pub run_id: &'a str,
    pub engines: &'a [Engine],
    pub slots: &'a [usize],
    pub outcome: &'a Outcome,
    pub tasks: &'a [Task],
    /// Counters at the start of the step.
    pub before: &'a [Totals],
    /// Start of the step: since the epoch, and since the start of the run.
    pub base: i64,
    pub offset: i64,
    pub end: i64,
}

impl Scrape<'_> {
    pub fn write(&self, out: &mut SeriesBuilder) {
        let labels: Vec<Labels> = self.engines.iter().map(Labels::new).collect();
        let first = self.offset.div_euclid(SCRAPE_EVERY) + i64::from(self.offset.rem_euclid(SCRAPE_EVERY) > 0);
        let mut at = first * SCRAPE_EVERY - self.offset;
        while at < self.end {
            self.at(out, &labels, at);
            at += SCRAPE_EVERY;
        }
    }

    fn at(&self, out: &mut SeriesBuilder, labels: &[Labels], at: i64) {
        let mut now = vec![Now::default(); self.engines.len()];
        let mut totals = self.before.to_vec();
        for r in &self.outcome.requests {
            let turn = &self.tasks[r.sample].turns[r.turn];
            if r.arrived <= at {
                self.request(&mut now, &mut totals, r, turn, at);
            }
        }
        for (e, engine) in self.engines.iter().enumerate() {
            totals[e].generated += now[e].generated as i64;
            let mut put = |name, labels: &str, kind, value| {
                let (target, time_ns) = (engine.target.as_str(), self.base + at);
                out.push(&NewPoint { run_id: self.run_id, target, name, labels, kind, time_ns, value });
            };
            for rank in &labels[e].ranks {
                gauges(&now[e], engine.role, self.slots[e], |name, value| put(name, rank, "gauge", value));
            }
            let t = &totals[e];
            let whole = &labels[e].whole;
            for (name, value) in [
                ("sglang:prompt_tokens_total", t.prompt),
                ("sglang:cached_tokens_total", t.cached),
                ("sglang:generation_tokens_total", t.generated),
                ("sglang:num_requests_total", t.requests),
                ("sglang:num_aborted_requests_total", t.aborted),
                ("sglang:num_transfer_failed_reqs_total", t.failed_transfers),
            ] {
                put(name, whole, "counter", value as f64);
            }
            for (i, (h, (counts, sum))) in HISTOGRAMS.iter().zip(&t.histograms).enumerate() {
                if engine.role == Role::Prefill || (h.disaggregated && engine.role != Role::Decode) {
                    continue;
                }
                for (bucket, count) in counts.iter().enumerate() {
                    put(h.bucket, &labels[e].buckets[i][bucket], "histogram", *count as f64);
                }
                put(h.sum, whole, "histogram", *sum);
                put(h.count, whole, "histogram", counts[counts.len() - 1] as f64);
            }
        }
    }

    fn request(&self, now: &mut [Now], totals: &mut [Totals], r: &Request, turn: &Turn, at: i64) {
        let within = |from: i64, to: i64| i64::from(from <= at && at < to);
        let e = &mut now[r.engine];
        e.queued += within(r.queued, r.prefill_start);
        e.running += within(r.prefill_start, r.prefill_end);
        if r.prefill_start <= at {
            totals[r.engine].prefilled(turn);
        }
        if at - SCRAPE_EVERY < r.prefill_start && r.prefill_start <= at {
            e.prompt += turn.prompt_tokens;
            e.cached += turn.cached_tokens;
        }
        if r.disaggregated() {
            e.bootstrapping += within(r.arrived, r.queued);
            e.inflight += within(r.prefill_end, r.transferred);
            let d = &mut now[r.decode_engine];
            d.preallocating += within(r.arrived, r.preallocated);
            d.transferring += within(r.preallocated, r.transferred);
        }
        let d = &mut now[r.decode_engine];
        let decoding = within(r.decode_start, r.decode_end);
        d.running += decoding;
        let tokens = produced(r, turn, at);
        d.kv_tokens += decoding as f64 * (turn.prompt_tokens as f64 + tokens);
        d.generated += tokens;
        d.generated_before += produced(r, turn, at - SCRAPE_EVERY);
        d.accepted += decoding * turn.accepted();
        d.verifies += decoding * turn.verifies;
        if r.decode_end <= at {
            totals[r.decode_engine].finish(r, turn);
        }
    }
}

fn gauges(now: &Now, role: Role, slots: usize, mut put: impl FnMut(&'static str, f64)) {
    put("sglang:num_running_reqs", now.running as f64);
    put("sglang:num_queue_reqs", now.queued as f64);
    put("sglang:num_used_tokens", now.kv_tokens.floor());
    put("sglang:token_usage", now.kv_tokens / (KV_TOKENS_A_SLOT * slots.max(1) as f64));
    put("sglang:gen_throughput", (now.generated - now.generated_before) / seconds(SCRAPE_EVERY));
    put("sglang:cache_hit_rate", now.cached as f64 / now.prompt.max(1) as f64);
    if role != Role::Prefill {
        // What comes out of a round: the accepted ones and the one that the verifier adds.
        let rounds = now.verifies.max(1) as f64;
        put("sglang:spec_accept_length", if now.verifies > 0 { 1.0 + now.accepted as f64 / rounds } else { 0.0 });
        put("sglang:spec_accept_rate", now.accepted as f64 / (rounds * DRAFT as f64));
    }
    match role {
        Role::Unified => {}
        Role::Prefill => {
            put("sglang:num_prefill_bootstrap_queue_reqs", now.bootstrapping as f64);
            put("sglang:num_prefill_inflight_queue_reqs", now.inflight as f64);
        }
        Role::Decode => {
            put("sglang:num_decode_prealloc_queue_reqs", now.preallocating as f64);
            put("sglang:num_decode_transfer_queue_reqs", now.transferring as f64);
        }
    }
}

struct Labels {
    whole: String,
    ranks: Vec<String>,
    buckets: Vec<Vec<String>>,
}

impl Labels {
    fn new(engine: &Engine) -> Self {
        let kind = match engine.role {
            Role::Unified => "unified",
            Role::Prefill => "prefill",
            Role::Decode => "decode",
        };
        // Keys in order.
        let head = format!("{{\"engine_type\":\"{kind}\"");
        let tail = "\"model_name\":\"qwen2.5-7b\"";
        let bound = |b: f64| if b.is_infinite() { "+Inf".to_string() } else { b.to_string() };
        Labels {
            whole: format!("{head},{tail}}}"),
            ranks: engine
                .schedulers
                .iter()
                .map(|lane| format!("{head},{tail},\"tp_rank\":\"{}\"}}", lane.tp.unwrap_or(0)))
                .collect(),
            buckets: HISTOGRAMS
                .iter()
                .map(|h| h.bounds.iter().map(|b| format!("{head},\"le\":\"{}\",{tail}}}", bound(*b))).collect())
                .collect(),
        }
    }
}
