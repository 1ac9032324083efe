//! What belongs together although no context was sent, and what is reported many times although it happened once.
//!
//! **The join.** A sample's span knows the serving engine's request id (`sglang_request_id`), the engine's spans know it too
//! (`rid`); both are `spans.request_id`. Where the request carried no `traceparent`, the engine's spans are a trace of their own.
//! Then the engine's root spans are placed under the span that made the request: [`callees_sql`] finds those traces, [`view`](super::view) hangs
//! them in.
//!
//! **Slices of a batch.** SGLang's scheduler does one forward for many requests and reports it in each of them. Two slices of
//! different requests with the same thread, name, start and end are one piece of work ([`Repeats`]); sums of engine time
//! count it once. In SQL, `engine_time` in `docs/sglang-traces.md` shows the same rule.

use std::collections::HashSet;

use rollscope_model::TraceId;

use super::find::id_list;

/// Most traces that are hung into one.
pub const MAX_JOINED: usize = 1000;

/// Traces that serve requests which this trace sent. Column: trace_id.
pub fn callees_sql(trace: &TraceId) -> String {
    let own = id_list(&[*trace]);
    format!(
        "select distinct s.trace_id as trace_id from spans s \
         join (select distinct request_id from spans where trace_id = {own} and request_id is not null) r \
           on s.request_id = r.request_id \
         where s.trace_id <> {own} and s.parent_span_id is null limit {MAX_JOINED}"
    )
}

/// Spans elsewhere that sent the requests which this trace serves. Columns: trace_id, span_id, name, service.
pub fn callers_sql(trace: &TraceId) -> String {
    let own = id_list(&[*trace]);
    format!(
        "select s.trace_id as trace_id, s.span_id as span_id, s.name as name, s.service as service from spans s \
         join (select distinct request_id from spans where trace_id = {own} and request_id is not null \
               and parent_span_id is null) r on s.request_id = r.request_id \
         where s.trace_id <> {own} and s.parent_span_id is not null order by s.start_ns limit 20"
    )
}

/// Tells a slice that was seen before in another request.
#[derive(Default)]
pub struct Repeats {
    seen: HashSet<(u32, u32, i64, i64)>,
}

impl Repeats {
    /// Whether this piece of work was reported before. `lane` is the thread, `name` the slice, both as numbers of the caller's.
    pub fn again(&mut self, lane: u32, name: u32, start: i64, end: i64) -> bool {
        !self.seen.insert((lane, name, start, end))
    }
}
