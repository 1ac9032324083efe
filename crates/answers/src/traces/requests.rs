//! Who sent the requests that a trace serves, and what is reported many times although it happened once.
//!
//! **Slices of a batch.** SGLang's scheduler does one forward for many requests and reports it in each of them. Two slices of
//! different requests with the same thread, name, start and end are one piece of work ([`Repeats`]); sums of engine time
//! count it once. In SQL, `engine_time` in `docs/sglang-traces.md` shows the same rule.

use std::collections::HashSet;

use rollscope_model::TraceId;
use rollscope_query::sql_trace_ids;

/// Spans elsewhere that sent the requests which this trace serves. Columns: trace_id, span_id, name, service.
pub fn callers_sql(trace: &TraceId) -> String {
    let own = sql_trace_ids([trace]);
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
