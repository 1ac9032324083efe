//! The serving engines' own spans, in SGLang's shape: request, thread, slice, every first-level slice linked to the one
//! before it, also from prefill to decode. They hang under the sample's `sglang_generate` span, as they do when the
//! caller sends its context along; disaggregated requests pass the gateway, whose span is in between.

use std::fmt::Write as _;

use rollscope_model::build::AttrsColumn;
use rollscope_model::{SpanId, TraceId};

use crate::dice::scatter;
use crate::emit::{Batch, Lane, Row, SampleKey, Sender, Sink, nothing, seconds};
use crate::sim::{MS, Outcome, Request, Role, SECOND, role, tensor_parallel};
use crate::task::Turn;

/// Decoding is reported in windows that all requests of a batch share.
const WINDOW: i64 = 3 * SECOND;
/// Prefill is cut into chunks of this many tokens.
const CHUNK: i64 = 512;

/// The processes of one engine.
#[derive(Clone, Debug)]
pub struct Engine {
    pub sender: Sender,
    pub tokenizer: Lane,
    pub schedulers: Vec<Lane>,
    pub role: Role,
    /// Address it is scraped at.
    pub target: String,
}

pub fn engines(count: usize, run_id: &str, seed: u64, bare: bool) -> Vec<Engine> {
    (0..count)
        .map(|e| {
            let sender = Sender::new(3 + e, "sglang", "{\"name\":\"sglang server\"}", run_id, &format!("engine-{e}"));
            let host = format!("{:016x}{:016x}", scatter(seed ^ 0xe0 ^ (e as u64) << 8), scatter(e as u64 + 1));
            let pid = 4000 + 100 * e as i64;
            let dp = (e / 4) as i32;
            let tokenizer = Lane {
                title: format!("Tokenizer(host:{} | pid:{pid})", &host[..8]),
                thread: "Tokenizer".to_string(),
                host: host.clone(),
                pid,
                ..Lane::default()
            };
            let label = match role(e) {
                Role::Unified => "Scheduler",
                Role::Prefill => "Prefill Scheduler",
                Role::Decode => "Decode Scheduler",
            };
            let schedulers = (0..tensor_parallel(e))
                .map(|tp| Lane {
                    title: format!(
                        "{label} [TP {tp}] [PP 0] [DP {dp}] (host:{} | pid:{})",
                        &host[..8],
                        pid + 1 + i64::from(tp)
                    ),
                    thread: label.to_string(),
                    host: host.clone(),
                    pid: pid + 1 + i64::from(tp),
                    tp: Some(tp),
                    dp: Some(dp),
                    pp: Some(0),
                })
                .collect();
            Engine {
                sender: if bare { sender.bare() } else { sender },
                tokenizer,
                schedulers,
                role: role(e),
                target: format!("10.0.{}.{}:30000", e / 4, 10 + e % 4),
            }
        })
        .collect()
}

/// How many requests each engine was decoding, window by window.
pub struct Windows(Vec<Vec<u32>>);

impl Windows {
    pub fn new(engines: usize, outcome: &Outcome) -> Self {
        let mut counts = vec![Vec::new(); engines];
        for r in &outcome.requests {
            let of: &mut Vec<u32> = &mut counts[r.decode_engine];
            let (first, last) = ((r.decode_start / WINDOW) as usize, ((r.decode_end - 1) / WINDOW) as usize);
            if of.len() <= last {
                of.resize(last + 1, 0);
            }
            of[first..=last].iter_mut().for_each(|n| *n += 1);
        }
        Windows(counts)
    }

    fn size(&self, engine: usize, window: i64) -> u32 {
        self.0[engine].get(window as usize).copied().unwrap_or(0)
    }
}

/// Where the spans of a request belong.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub trace: TraceId,
    /// None where the request carries no context.
    pub parent: Option<SpanId>,
    pub sample: SampleKey<'a>,
    pub attempt: i32,
    /// SGLang's `rid`.
    pub rid: &'a str,
}

pub struct EngineWriter<'a> {
    pub engines: &'a [Engine],
    pub gateway: &'a Sender,
    pub gateway_lane: &'a Lane,
    pub windows: Windows,
    /// Scatters the ids of batches, so that those of two steps differ.
    pub step_salt: u64,
    /// By engine: how wrong its clock is.
    pub skew: &'a [i64],
    pub lost: f64,
    pub name: String,
    pub room: String,
}

impl EngineWriter<'_> {
    pub fn request(&mut self, sink: &mut Sink, place: Place, r: &Request, turn: &Turn) {
        sink.lost = self.lost;
        if r.disaggregated() {
            self.room.clear();
            let _ = write!(self.room, "{:#x}", scatter(self.step_salt ^ (r.sample as u64) << 16 ^ r.turn as u64) >> 1);
            let gateway = sink.ids.span();
            let row = Row {
                lane: Some(self.gateway_lane),
                parent: place.parent,
                kind: "server",
                sample: Some(place.sample),
                attempt: Some(place.attempt),
                request: Some(place.rid),
                ..Row::new(self.gateway, place.trace, gateway, "POST /generate", r.sent + MS / 5, r.done - MS / 5)
            };
            sink.span(&row, nothing, |a| {
                a.put_str("http.request.method", "POST");
                a.put_str("url.path", "/generate");
                a.put_int("http.response.status_code", 200);
                a.put_str("smg.policy", "cache_aware");
                a.put_str("smg.prefill_worker", &self.engines[r.engine].target);
                a.put_str("smg.decode_worker", &self.engines[r.decode_engine].target);
            });
            let place = Place { parent: Some(gateway), ..place };
            let kv = self.prefill_side(sink, place, r, turn);
            self.decode_side(sink, place, r, turn, kv);
        } else if self.engines[r.engine].sender.bare {
            // The rollout calls this one itself and sends no context: the request id is all that they share.
            let trace = sink.ids.trace();
            self.unified(sink, Place { trace, parent: None, ..place }, r, turn);
        } else {
            self.unified(sink, place, r, turn);
        }
        (sink.skew, sink.lost) = (0, 0.0);
    }

    fn unified(&mut self, sink: &mut Sink, place: Place, r: &Request, turn: &Turn) {
        let engine = r.engine;
        let (request, dispatch) = self.open(sink, place, engine, "", r, r.decode_end + MS / 2, turn);
        for rank in 0..self.engines[engine].schedulers.len() {
            let mut t = self.thread(sink, place, request, engine, rank, r.arrived, r.decode_end, Some(dispatch));
            t.slice(sink, "request_process", r.arrived, r.queued);
            t.slice(sink, "prefill_waiting", r.queued, r.prefill_start);
            self.prefill_forward(sink, &mut t, r, turn);
            t.slice(sink, "decode_waiting", r.prefill_end, r.decode_start);
            self.decode_forward(sink, &mut t, r, turn);
        }
    }

    fn prefill_side(&mut self, sink: &mut Sink, place: Place, r: &Request, turn: &Turn) -> SpanId {
        let engine = r.engine;
        let (request, dispatch) = self.open(sink, place, engine, "prefill", r, r.transferred + MS / 2, turn);
        let mut t = self.thread(sink, place, request, engine, 0, r.arrived, r.transferred, Some(dispatch));
        t.slice(sink, "request_process", r.arrived, r.arrived + MS / 5);
        t.slice(sink, "prefill_bootstrap", r.arrived + MS / 5, r.bootstrapped);
        t.slice(sink, "prefill_prepare", r.bootstrapped, r.queued);
        t.slice(sink, "prefill_waiting", r.queued, r.prefill_start);
        self.prefill_forward(sink, &mut t, r, turn);
        t.slice(sink, "prefill_transfer_kv_cache", r.prefill_end, r.transferred)
    }

    fn decode_side(&mut self, sink: &mut Sink, place: Place, r: &Request, turn: &Turn, kv: SpanId) {
        let engine = r.decode_engine;
        let (request, dispatch) = self.open(sink, place, engine, "decode", r, r.decode_end + MS / 2, turn);
        let mut t = self.thread(sink, place, request, engine, 0, r.arrived, r.decode_end, Some(dispatch));
        t.slice(sink, "request_process", r.arrived, r.arrived + MS / 5);
        t.slice(sink, "decode_bootstrap", r.arrived + MS / 5, r.decode_bootstrapped);
        t.slice(sink, "decode_prepare", r.decode_bootstrapped, r.preallocated);
        t.also = Some(kv);
        t.slice(sink, "decode_transferred", r.preallocated, r.transferred);
        t.slice(sink, "decode_waiting", r.transferred, r.decode_start);
        self.decode_forward(sink, &mut t, r, turn);
    }

    /// The request span and the tokenizer's part. Returns the request and the last slice before the scheduler.
    #[allow(clippy::too_many_arguments)]
    fn open(
        &mut self,
        sink: &mut Sink,
        place: Place,
        engine: usize,
        role: &str,
        r: &Request,
        end: i64,
        turn: &Turn,
    ) -> (SpanId, SpanId) {
        let e = &self.engines[engine];
        sink.skew = self.skew[engine];
        let start = r.sent + MS * 2 / 5;
        let request = sink.ids.span();
        self.name.clear();
        let _ = write!(self.name, "{role} Req {}", &place.rid[..8]);
        let room = &self.room;
        let whole = role != "prefill";
        let row = Row {
            parent: place.parent,
            sample: Some(place.sample),
            attempt: Some(place.attempt),
            request: Some(place.rid),
            ..Row::new(&e.sender, place.trace, request, &self.name, start, end)
        };
        sink.span(&row, nothing, |a| {
            a.put_str("rid", place.rid);
            a.put_str("module", "sglang::request");
            if r.disaggregated() {
                a.put_str("bootstrap_room", room);
            }
            a.put_int("gen_ai.usage.prompt_tokens", turn.prompt_tokens);
            a.put_int("gen_ai.usage.cached_tokens", turn.cached_tokens);
            if whole {
                a.put_int("gen_ai.usage.completion_tokens", turn.completion_tokens);
                a.put_double("gen_ai.latency.e2e", seconds(end - start));
                a.put_str("gen_ai.response.finish_reasons", turn.finish);
            }
        });
        let thread = sink.ids.span();
        let dispatched = r.arrived - MS / 10;
        let mut t = Thread { engine: e, lane: &e.tokenizer, place, thread, last: None, also: None };
        t.open(sink, request, start, dispatched);
        let middle = start + (dispatched - start) * 9 / 10;
        t.slice(sink, "tokenize", start, middle);
        (request, t.slice(sink, "api_server_dispatch", middle, dispatched))
    }

    #[allow(clippy::too_many_arguments)]
    fn thread<'b>(
        &'b self,
        sink: &mut Sink,
        place: Place<'b>,
        request: SpanId,
        engine: usize,
        rank: usize,
        start: i64,
        end: i64,
        last: Option<SpanId>,
    ) -> Thread<'b> {
        let e = &self.engines[engine];
        let thread = sink.ids.span();
        let t = Thread { engine: e, lane: &e.schedulers[rank], place, thread, last, also: None };
        t.open(sink, request, start, end);
        t
    }

    fn prefill_forward(&self, sink: &mut Sink, t: &mut Thread, r: &Request, turn: &Turn) {
        let id = scatter(self.step_salt ^ (r.engine as u64) << 32 ^ u64::from(r.batch));
        let batch = Batch { id, size: r.batch_size, mode: "prefill" };
        let new = turn.prompt_tokens - turn.cached_tokens;
        if new <= CHUNK {
            t.timed(sink, "prefill_forward", r.prefill_start, r.prefill_end, Some(batch), nothing);
            return;
        }
        let forward = t.timed(sink, "prefill_forward", r.prefill_start, r.prefill_end, None, nothing);
        let chunks = ((new + CHUNK - 1) / CHUNK).min(8);
        let cut = |i: i64| r.prefill_start + (r.prefill_end - r.prefill_start) * i / chunks;
        for i in 0..chunks {
            t.inner(sink, forward, "chunked_prefill", cut(i), cut(i + 1), Some(batch), nothing);
        }
    }

    fn decode_forward(&self, sink: &mut Sink, t: &mut Thread, r: &Request, turn: &Turn) {
        let forward = t.timed(sink, "decode_forward", r.decode_start, r.decode_end, None, |a| {
            a.put_int("completion_tokens", turn.completion_tokens);
            a.put_int("spec_verify_ct", turn.verifies);
        });
        let tokens_at = |time: i64| {
            (turn.completion_tokens as f64 * (time - r.decode_start) as f64
                / (r.decode_end - r.decode_start).max(1) as f64) as i64
        };
        for window in r.decode_start / WINDOW..=(r.decode_end - 1) / WINDOW {
            let (start, end) = (r.decode_start.max(window * WINDOW), r.decode_end.min((window + 1) * WINDOW));
            let batch = Batch {
                id: scatter(self.step_salt ^ 1 << 63 ^ (r.decode_engine as u64) << 32 ^ window as u64),
                size: self.windows.size(r.decode_engine, window),
                mode: "decode",
            };
            t.inner(sink, forward, "decode_loop", start, end, Some(batch), |a| {
                a.put_int("decode_ct", tokens_at(start));
            });
        }
    }
}

/// One thread of one request, and the slice that the next one is linked to.
struct Thread<'a> {
    engine: &'a Engine,
    lane: &'a Lane,
    place: Place<'a>,
    thread: SpanId,
    last: Option<SpanId>,
    /// A second predecessor, in another process.
    also: Option<SpanId>,
}

impl Thread<'_> {
    fn row<'b>(&'b self, id: SpanId, parent: SpanId, name: &'b str, start: i64, end: i64) -> Row<'b> {
        Row {
            lane: Some(self.lane),
            parent: Some(parent),
            sample: Some(self.place.sample),
            attempt: Some(self.place.attempt),
            // SGLang names it on the request alone.
            request: (!self.engine.sender.bare).then_some(self.place.rid),
            ..Row::new(&self.engine.sender, self.place.trace, id, name, start, end)
        }
    }

    fn open(&self, sink: &mut Sink, request: SpanId, start: i64, end: i64) {
        sink.span(&self.row(self.thread, request, &self.lane.title, start, end), nothing, |a| {
            a.put_str("host_id", &self.lane.host);
            a.put_int("pid", self.lane.pid);
            a.put_str("thread_label", &self.lane.thread);
            for (key, rank) in [("tp_rank", self.lane.tp), ("pp_rank", self.lane.pp), ("dp_rank", self.lane.dp)] {
                if let Some(rank) = rank {
                    a.put_int(key, i64::from(rank));
                }
            }
        });
    }

    fn slice(&mut self, sink: &mut Sink, name: &str, start: i64, end: i64) -> SpanId {
        self.timed(sink, name, start, end, None, nothing)
    }

    /// A first-level slice, linked to the one before.
    fn timed(
        &mut self,
        sink: &mut Sink,
        name: &str,
        start: i64,
        end: i64,
        batch: Option<Batch>,
        attrs: impl FnOnce(&mut AttrsColumn),
    ) -> SpanId {
        let id = sink.ids.span();
        let trace = self.place.trace;
        let both = [(trace, self.last.unwrap_or_default()), (trace, self.also.unwrap_or_default())];
        let links = match (self.last, self.also.take()) {
            (None, _) => &both[..0],
            (Some(_), None) => &both[..1],
            (Some(_), Some(_)) => &both[..],
        };
        sink.span(&Row { links, batch, ..self.row(id, self.thread, name, start, end) }, nothing, attrs);
        self.last = Some(id);
        id
    }

    #[allow(clippy::too_many_arguments)]
    fn inner(
        &self,
        sink: &mut Sink,
        parent: SpanId,
        name: &str,
        start: i64,
        end: i64,
        batch: Option<Batch>,
        attrs: impl FnOnce(&mut AttrsColumn),
    ) {
        let id = sink.ids.span();
        sink.span(&Row { batch, ..self.row(id, parent, name, start, end) }, nothing, attrs);
    }
}
