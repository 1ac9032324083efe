//! The rollout's spans, in slime's shape: one trace per sample; the group's span, the sample's, its generations, tool
//! calls and reward. A span of a group is in the trace of each member and ends when the slowest member is done.

use std::fmt::Write as _;

use rollscope_model::build::AttrsColumn;
use rollscope_model::{SpanId, TraceId};

use crate::dice::scatter;
use crate::emit::{Row, SampleKey, Sender, Sink, nothing, seconds};
use crate::engine::{EngineWriter, Place};
use crate::sim::{MS, Outcome, Request};
use crate::task::{Status, Task};

/// What other tables refer to.
#[derive(Clone, Debug)]
pub struct Written {
    pub trace: TraceId,
    /// The last attempt's `generate_and_rm`.
    pub span: SpanId,
    pub sample_id: String,
    pub group_id: String,
}

pub struct SampleWriter<'a> {
    pub sender: &'a Sender,
    /// The trainer's rollout phase: what every sample was started by.
    pub caused_by: (TraceId, SpanId),
    /// Everything is in the trainer's trace, below its rollout.
    pub one_trace: bool,
    /// In one trace a group has one span: that of the group in hand.
    pub group: Option<(usize, SpanId)>,
    pub group_size: usize,
    pub first_sample: u64,
    pub first_group: u64,
    pub version: u64,
    pub rid_salt: u64,
    pub rid: String,
}

impl SampleWriter<'_> {
    pub fn write(
        &mut self,
        sink: &mut Sink,
        engine: &mut EngineWriter,
        outcome: &Outcome,
        index: usize,
        task: &Task,
    ) -> Written {
        let times = &outcome.samples[index];
        let sample_id = (self.first_sample + index as u64).to_string();
        let group_id = (self.first_group + task.group as u64).to_string();
        let key = SampleKey { sample_id: &sample_id, group_id: &group_id };
        let trace = if self.one_trace { self.caused_by.0 } else { sink.ids.trace() };
        let written = self.group.filter(|(known, _)| self.one_trace && *known == task.group);
        let group = written.map_or_else(|| sink.ids.span(), |(_, span)| span);
        self.group = Some((task.group, group));
        let (parent, links) = match self.one_trace {
            true => (Some(self.caused_by.1), &[][..]),
            false => (None, std::slice::from_ref(&self.caused_by)),
        };
        let sender = self.sender;
        let base = |id, name, start, end| Row { sample: Some(key), ..Row::new(sender, trace, id, name, start, end) };

        let row = Row {
            phase: Some("rollout"),
            attempt: Some(0),
            parent,
            links,
            ..base(group, "generate_and_rm_group", times.start - MS / 10, times.group_end)
        };
        let attrs = |a: &mut AttrsColumn| a.put_int("group_size", self.group_size as i64);
        match (self.one_trace, written) {
            (true, Some(_)) => {}
            (true, None) => {
                let members = &outcome.samples[index..(index + self.group_size).min(outcome.samples.len())];
                let start = members.iter().map(|member| member.start).min().unwrap_or(times.start) - MS / 10;
                sink.span(&Row { sample: None, start, ..row }, attrs, nothing);
            }
            (false, _) => sink.span(&row, attrs, nothing),
        }

        let mut span = group;
        for (attempt, (start, end)) in times.attempts.iter().enumerate() {
            let (number, last) = (attempt as i32, attempt + 1 == times.attempts.len());
            if attempt > 0 {
                let row = Row {
                    parent: Some(group),
                    attempt: Some(number),
                    ..base(sink.ids.span(), "attempt_start", *start, 0)
                };
                sink.instant(&row, |a| {
                    a.put_int("attempt", i64::from(number));
                    a.put_str("reason", "SandboxError");
                });
            }
            span = sink.ids.span();
            let lost = task.turns.iter().rev().find(|t| t.attempt == number).and_then(|t| t.tool.as_ref()?.failure);
            let failure = match (last, task.status) {
                (false, _) => lost,
                (true, Status::Failed) => Some(crate::task::SANDBOX_LOST),
                _ => None,
            };
            let row = Row {
                parent: Some(group),
                phase: Some("rollout"),
                attempt: Some(number),
                failure,
                ..base(span, "generate_and_rm", *start, *end)
            };
            sink.span(
                &row,
                |a| {
                    a.put_int("weight_version", (self.version - task.staleness) as i64);
                    a.put_str("source", task.domain.source());
                },
                |a| {
                    if last {
                        a.put_str("status", task.status.name());
                        let length: i64 =
                            task.turns.iter().filter(|t| t.attempt == number).map(|t| t.completion_tokens).sum();
                        a.put_int("response_length", length);
                    }
                },
            );
            for (turn, r) in outcome.of(index).iter().enumerate().filter(|(t, _)| task.turns[*t].attempt == number) {
                self.turn(sink, engine, task, turn, r, trace, span, key);
            }
        }
        self.finish(sink, task, times.reward_start, times.end, base(span, "", 0, 0), times.attempts.len() as i32 - 1);
        Written { trace, span, sample_id, group_id }
    }

    fn finish(&self, sink: &mut Sink, task: &Task, start: i64, end: i64, base: Row, attempt: i32) {
        let parent = Some(base.id);
        let at = Row { parent, attempt: Some(attempt), start, end: end - MS / 10, ..base };
        if task.status == Status::Aborted {
            let id = sink.ids.span();
            sink.instant(&Row { id, name: "aborted", ..at }, nothing);
            return;
        }
        let failure = task.reward_timeout.then_some(("TimeoutError", "reward did not answer in time"));
        let id = sink.ids.span();
        sink.span(
            &Row { id, name: "reward_model", phase: Some("reward"), failure, ..at },
            |a| a.put_str("verifier", if task.domain == crate::task::Domain::Math { "math_verify" } else { "sandbox" }),
            |a| {
                if let Some(reward) = task.reward {
                    a.put_double("reward", reward);
                }
            },
        );
        let length: i64 = task.turns.iter().map(|t| t.completion_tokens).sum();
        let done = Row { id: sink.ids.span(), name: "sample_completed", start: end - MS / 20, ..at };
        sink.instant(&done, |a| a.put_int("response_length", length));
    }

    #[allow(clippy::too_many_arguments)]
    fn turn(
        &mut self,
        sink: &mut Sink,
        engine: &mut EngineWriter,
        task: &Task,
        turn: usize,
        r: &Request,
        trace: TraceId,
        parent: SpanId,
        key: SampleKey,
    ) {
        let t = &task.turns[turn];
        let id = sink.ids.span();
        self.rid.clear();
        let seed = self.rid_salt ^ (r.sample as u64) << 20 ^ turn as u64;
        let _ = write!(self.rid, "{:016x}{:016x}", scatter(seed), scatter(!seed));
        let older_style = task.group.is_multiple_of(2);
        let base = |id, name, start, end| Row {
            parent: Some(parent),
            sample: Some(key),
            attempt: Some(t.attempt),
            ..Row::new(self.sender, trace, id, name, start, end)
        };
        let row = Row {
            kind: "client",
            phase: Some("generate"),
            request: Some(&self.rid),
            ..base(id, "sglang_generate", r.sent, r.done)
        };
        sink.span(
            &row,
            |a| {
                a.put_int("max_new_tokens", t.max_new_tokens);
                a.put_int("turn", turn as i64);
            },
            |a| {
                a.put_int("prompt_tokens", t.prompt_tokens);
                a.put_int("completion_tokens", t.completion_tokens);
                a.put_int("cached_tokens", t.cached_tokens);
                a.put_double("queue_time", seconds(r.queue_ns()));
                a.put_double("e2e_latency", seconds(r.decode_end + MS / 2 - r.sent - MS * 2 / 5));
                a.put_double("decode_throughput", t.completion_tokens as f64 / seconds(r.decode_end - r.decode_start));
                a.put_str("finish_reason", t.finish);
                a.put_str("sglang_request_id", &self.rid);
                if r.disaggregated() && older_style {
                    for (name, (start, end)) in pd_segments(r) {
                        a.put_double(name, seconds(end - start));
                    }
                    pd_summary(a, r);
                }
            },
        );
        if r.disaggregated() && !older_style {
            self.pd_spans(sink, r, &Row { parent: Some(id), ..base(id, "", 0, 0) });
        }
        let place = Place { trace, parent: Some(id), sample: key, attempt: t.attempt, rid: &self.rid };
        engine.request(sink, place, r, t);

        if let (Some(call), Some((start, end))) = (&t.tool, r.tool) {
            let queued = base(sink.ids.span(), "tool_enqueue", start, start);
            sink.instant(&queued, |a| {
                a.put_str("tool", call.tool);
                a.put_int("turn", turn as i64);
            });
            let id = sink.ids.span();
            sink.span(
                &Row { phase: Some("tool"), failure: call.failure, ..base(id, "tool_call", start, end) },
                |a| {
                    a.put_str("tool", call.tool);
                    a.put_int("turn", turn as i64);
                    a.put_with("tool_call_id", |out| {
                        let _ = std::io::Write::write_fmt(out, format_args!("\"call_{turn}_{}\"", key.sample_id));
                    });
                },
                |a| {
                    a.put_int("exit_code", i64::from(call.failure.is_some()));
                    a.put_int("output_chars", 40 + (scatter(seed ^ 5) % 900) as i64);
                },
            );
        }
    }

    /// Newer style: the prefill and decode sides as spans of their own, segments nested as they happened.
    fn pd_spans(&self, sink: &mut Sink, r: &Request, base: &Row) {
        let segments = pd_segments(r);
        let sides = [
            ("sglang_pd_prefill", "prefill", r.transferred, 0..5),
            ("sglang_pd_decode", "decode", r.decode_end, 5..10),
        ];
        for (name, phase, end, range) in sides {
            let side = sink.ids.span();
            sink.span(&Row { id: side, name, start: r.arrived, end, ..*base }, nothing, |a| {
                a.put_str("phase", phase);
                a.put_double("duration_s", seconds(end - r.arrived));
            });
            let mut outer = side;
            for (key, (start, end)) in &segments[range] {
                // Hand-shake and allocation lie inside the queue that contains them; the transfer is the tail of forward.
                let inside = ["_bootstrap_duration", "_alloc_wait_duration", "_transfer_queue_duration"];
                let nested = inside.iter().any(|s| key.ends_with(s));
                let id = sink.ids.span();
                let parent = Some(if nested { outer } else { side });
                let row = Row { id, parent, name: SEGMENT_NAMES[segment(key)], start: *start, end: *end, ..*base };
                sink.span(&row, nothing, |a| a.put_double(key, seconds(end - start)));
                if !nested {
                    outer = id;
                }
            }
        }
        let summary = Row { id: sink.ids.span(), name: "sglang_pd_summary", start: r.decode_end, ..*base };
        sink.instant(&summary, |a| pd_summary(a, r));
    }
}

const SEGMENT_NAMES: [&str; 10] = [
    "sglang_pd_prefill_bootstrap_queue",
    "sglang_pd_prefill_bootstrap",
    "sglang_pd_prefill_alloc_wait",
    "sglang_pd_prefill_forward",
    "sglang_pd_prefill_transfer_queue",
    "sglang_pd_decode_prealloc",
    "sglang_pd_decode_bootstrap",
    "sglang_pd_decode_alloc_wait",
    "sglang_pd_decode_transfer",
    "sglang_pd_decode_forward",
];

const SEGMENT_KEYS: [&str; 10] = [
    "pd_prefill_bootstrap_queue_duration",
    "pd_prefill_bootstrap_duration",
    "pd_prefill_alloc_wait_duration",
    "pd_prefill_forward_duration",
    "pd_prefill_transfer_queue_duration",
    "pd_decode_prealloc_duration",
    "pd_decode_bootstrap_duration",
    "pd_decode_alloc_wait_duration",
    "pd_decode_transfer_duration",
    "pd_decode_forward_duration",
];

fn segment(key: &str) -> usize {
    SEGMENT_KEYS.iter().position(|k| *k == key).unwrap_or(0)
}

/// The segments of a disaggregated request, in the order of SGLang's fields.
pub fn pd_segments(r: &Request) -> [(&'static str, (i64, i64)); 10] {
    let times = [
        (r.arrived, r.queued),
        (r.arrived, r.bootstrapped),
        (r.bootstrapped, r.queued),
        (r.prefill_start, r.transferred),
        (r.prefill_end, r.transferred),
        (r.arrived, r.preallocated),
        (r.arrived, r.decode_bootstrapped),
        (r.decode_bootstrapped, r.preallocated),
        (r.preallocated, r.transferred),
        (r.decode_start, r.decode_end),
    ];
    std::array::from_fn(|i| (SEGMENT_KEYS[i], times[i]))
}

pub fn transfer_speed_gb_s(r: &Request) -> f64 {
    r.transfer_mb / 1e3 / seconds(r.transferred - r.transfer_start)
}

fn pd_summary(a: &mut AttrsColumn, r: &Request) {
    a.put_double("pd_transfer_speed_gb_s", transfer_speed_gb_s(r));
    a.put_double("pd_transfer_total_mb", r.transfer_mb);
    a.put_int("pd_prefill_retry_count", r.transfer_retries);
}
