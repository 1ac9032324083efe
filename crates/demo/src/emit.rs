//! Writes spans straight into the columns of a batch. The generator is also the source of load for benchmarks, so this
//! path allocates nothing per span.

use rollscope_model::build::{AttrsColumn, SpansBuilder};
use rollscope_model::names::state;
use rollscope_model::{SpanId, TraceId};

use crate::dice::{Dice, Ids};
use crate::task::Failure;

/// A thread or worker that spans run on.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// Name of SGLang's thread spans.
    pub title: String,
    pub thread: String,
    pub host: String,
    pub pid: i64,
    pub tp: Option<i32>,
    pub dp: Option<i32>,
    pub pp: Option<i32>,
}

/// Who sends a span.
#[derive(Clone, Debug, Default)]
pub struct Sender {
    /// Its number among the senders of the run.
    pub slot: usize,
    pub service: &'static str,
    pub resource: String,
    pub scope: &'static str,
    /// It knows no run, step or sample, as real engines and gateways do.
    pub bare: bool,
}

impl Sender {
    pub fn new(slot: usize, service: &'static str, scope: &'static str, run_id: &str, instance: &str) -> Self {
        let resource = serde_json::json!({
            "service.name": service, "service.instance.id": instance, "rl.run.id": run_id, "rl.system": "slime",
        });
        Sender { slot, service, resource: resource.to_string(), scope, bare: false }
    }

    pub fn bare(self) -> Self {
        let mut resource: serde_json::Value = serde_json::from_str(&self.resource).unwrap_or_default();
        if let Some(named) = resource.as_object_mut() {
            named.retain(|key, _| !key.starts_with("rl."));
        }
        Sender { resource: resource.to_string(), bare: true, ..self }
    }
}

/// What all spans of a sample share.
#[derive(Clone, Copy)]
pub struct SampleKey<'a> {
    pub sample_id: &'a str,
    pub group_id: &'a str,
}

/// A batch of the engine, as SGLang writes it into the `schedule` event of a slice.
#[derive(Clone, Copy)]
pub struct Batch {
    pub id: u64,
    pub size: u32,
    pub mode: &'static str,
}

/// Named arguments of [`Sink::span`]. Times are relative to the step.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    pub sender: &'a Sender,
    pub lane: Option<&'a Lane>,
    pub trace: TraceId,
    pub id: SpanId,
    pub parent: Option<SpanId>,
    pub name: &'a str,
    pub kind: &'a str,
    pub phase: Option<&'a str>,
    pub start: i64,
    pub end: i64,
    pub failure: Option<Failure>,
    pub sample: Option<SampleKey<'a>>,
    pub attempt: Option<i32>,
    pub request: Option<&'a str>,
    pub links: &'a [(TraceId, SpanId)],
    pub batch: Option<Batch>,
    pub instant: bool,
}

impl<'a> Row<'a> {
    pub fn new(sender: &'a Sender, trace: TraceId, id: SpanId, name: &'a str, start: i64, end: i64) -> Self {
        Row {
            sender,
            lane: None,
            trace,
            id,
            parent: None,
            name,
            kind: "internal",
            phase: None,
            start,
            end,
            failure: None,
            sample: None,
            attempt: None,
            request: None,
            links: &[],
            batch: None,
            instant: false,
        }
    }
}

/// Collects the spans of a step.
pub struct Sink {
    pub spans: SpansBuilder,
    pub ids: Ids,
    step: i64,
    /// Start of the step, nanoseconds since the epoch.
    base: i64,
    /// Added to every time while an engine with a wrong clock is writing.
    pub skew: i64,
    /// Share of rows that get lost, while an engine is writing that loses them.
    pub lost: f64,
    dice: Dice,
    /// By sender: keys of run, service, resource and scope, once it has written.
    senders: Vec<Option<[i32; 4]>>,
    common: Common,
}

/// Keys of the values that nearly every row has, looked up once.
struct Common {
    run: i32,
    internal: i32,
    closed: i32,
    unset: i32,
}

pub fn nothing(_: &mut AttrsColumn) {}

impl Sink {
    pub fn new(run_id: &str, step: u64, base: i64, ids: Ids, dice: Dice) -> Self {
        let mut spans = SpansBuilder::default();
        let common = Common {
            run: spans.run_id.intern(run_id),
            internal: spans.kind.intern("internal"),
            closed: spans.state.intern(state::CLOSED),
            unset: spans.status.intern("unset"),
        };
        Sink { spans, ids, step: step as i64, base, skew: 0, lost: 0.0, dice, senders: Vec::new(), common }
    }

    fn sender(&mut self, sender: &Sender) -> [i32; 4] {
        if self.senders.len() <= sender.slot {
            self.senders.resize(sender.slot + 1, None);
        }
        let s = &mut self.spans;
        *self.senders[sender.slot].get_or_insert_with(|| {
            // Who names no run gets the name of its service.
            let run = if sender.bare { s.run_id.intern(sender.service) } else { self.common.run };
            [run, s.service.intern(sender.service), s.resource.intern(&sender.resource), s.scope.intern(sender.scope)]
        })
    }

    pub fn span(
        &mut self,
        row: &Row,
        start_attrs: impl FnOnce(&mut AttrsColumn),
        end_attrs: impl FnOnce(&mut AttrsColumn),
    ) {
        if self.lost > 0.0 && self.dice.chance(self.lost) {
            return;
        }
        let (start, end) = (self.base + self.skew + row.start, self.base + self.skew + row.end);
        let [run, service, resource, scope] = self.sender(row.sender);
        let knows = !row.sender.bare;
        let (sample, attempt) = (row.sample.filter(|_| knows), row.attempt.filter(|_| knows));
        let s = &mut self.spans;
        s.run_id.push_key(run);
        s.step.append_option(knows.then_some(self.step));
        s.trace_id.push(&row.trace);
        s.span_id.push(&row.id);
        s.parent_span_id.push_opt(row.parent.as_ref());
        s.name.push(row.name);
        match row.kind {
            "internal" => s.kind.push_key(self.common.internal),
            other => s.kind.push(other),
        }
        s.service.push_key(service);
        s.phase.push_opt(row.phase);
        s.thread.push_opt(row.lane.map(|l| l.thread.as_str()));
        s.host.push_opt(row.lane.map(|l| l.host.as_str()));
        s.pid.append_option(row.lane.map(|l| l.pid));
        s.tp_rank.append_option(row.lane.and_then(|l| l.tp));
        s.dp_rank.append_option(row.lane.and_then(|l| l.dp));
        s.pp_rank.append_option(row.lane.and_then(|l| l.pp));
        s.start_ns.push(start);
        s.end_ns.append_value(end);
        match row.instant {
            true => s.state.push(state::INSTANT),
            false => s.state.push_key(self.common.closed),
        }
        match row.failure {
            Some(_) => s.status.push("error"),
            None => s.status.push_key(self.common.unset),
        }
        s.status_message.push_opt(row.failure.map(|f| f.1));
        s.sample_id.push_opt(sample.map(|k| k.sample_id));
        s.group_id.push_opt(sample.map(|k| k.group_id));
        s.attempt.append_option(attempt);
        s.request_id.push_opt(row.request);
        s.bootstrap_room.push_opt(None);
        start_attrs(&mut s.start_attrs);
        s.start_attrs.end_row();
        end_attrs(&mut s.end_attrs);
        if let Some((kind, message)) = row.failure {
            s.end_attrs.put_str("error_type", kind);
            s.end_attrs.put_str("error_message", message);
        }
        s.end_attrs.end_row();
        if let Some(batch) = row.batch {
            s.events.attrs.put_with("bid", |out| hex8(out, batch.id));
            s.events.attrs.put_int("batch_size", i64::from(batch.size));
            s.events.attrs.put_str("forward_mode", batch.mode);
            s.events.push_event(start, "schedule", 0);
        }
        s.events.end_row();
        for (trace, span) in row.links {
            s.links.push_link(trace, span, None, 0, 0);
        }
        s.links.end_row();
        s.resource.push_key(resource);
        s.scope.push_key(scope);
        s.trace_state.push_opt(None);
        s.flags.push(0);
        s.dropped_attrs.push(0);
        s.dropped_events.push(0);
        s.dropped_links.push(0);
        s.original_trace_id.append_null();
        s.original_span_id.append_null();
        s.original_parent_span_id.append_null();
    }

    /// A point in time under `row.parent`, at `row.start`.
    pub fn instant(&mut self, row: &Row, attrs: impl FnOnce(&mut AttrsColumn)) {
        self.span(&Row { end: row.start, instant: true, ..*row }, attrs, nothing);
    }
}

/// A JSON string of eight hex digits.
fn hex8(out: &mut Vec<u8>, id: u64) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    for shift in (0..8).rev() {
        out.push(DIGITS[(id >> (4 * shift) & 15) as usize]);
    }
    out.push(b'"');
}

pub fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}
