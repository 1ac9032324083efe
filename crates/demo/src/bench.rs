//! Plain spans for benchmarks of ingest: what any OpenTelemetry program sends, with no run behind it. With eight
//! attributes a span is about 270 bytes in OTLP's protobuf.

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use rollscope_model::build::AttrsColumn;

use crate::dice::{Dice, Ids};
use crate::emit::{Row, Sender, Sink, nothing};
use crate::run::DEFAULT_START_NS;
use crate::sim::MS;

const SPANS_A_TRACE: usize = 16;
const NAMES: [&str; 8] =
    ["HTTP GET /v1/items", "db.query", "cache.get", "render", "auth.check", "queue.publish", "rpc.call", "serialize"];
const KEYS: [&str; 8] = [
    "http.route",
    "http.response.status_code",
    "net.peer.name",
    "duration_ms",
    "retry.enabled",
    "tokens.count",
    "user.tier",
    "request.id",
];

/// `count` spans with `attrs` attributes each, in traces of sixteen. The same seed gives the same spans.
pub fn bench_spans(seed: u64, count: usize, attrs: usize) -> Result<RecordBatch, ArrowError> {
    let sender = Sender::new(0, "bench", "{\"name\":\"bench\"}", "bench", "bench-0");
    let mut sink = Sink::new("bench", 0, DEFAULT_START_NS, Ids::new(seed, 0), Dice::new(seed, 1));
    let mut dice = Dice::new(seed, 2);
    let (mut trace, mut root) = (sink.ids.trace(), None);
    for i in 0..count {
        let within = i % SPANS_A_TRACE;
        let begin = (i / SPANS_A_TRACE) as i64 * 2 * MS;
        if within == 0 {
            (trace, root) = (sink.ids.trace(), None);
        }
        let id = sink.ids.span();
        let bits = dice.bits();
        let start = begin + within as i64 * MS / 10 + (bits & 0x3fff) as i64;
        let end = if within == 0 { begin + 3 * MS } else { start + 1 + (bits >> 16 & 0xf_ffff) as i64 };
        let row = Row {
            parent: root,
            kind: if within == 0 { "server" } else { "internal" },
            ..Row::new(&sender, trace, id, NAMES[(bits >> 40) as usize % NAMES.len()], start, end)
        };
        sink.span(&row, nothing, |a| (0..attrs).for_each(|n| attribute(a, n, bits)));
        root = root.or(Some(id));
    }
    sink.spans.finish()
}

fn attribute(a: &mut AttrsColumn, n: usize, bits: u64) {
    const ROUTES: [&str; 4] = ["/v1/items/{id}", "/v1/items", "/v1/users/{id}/orders", "/healthz"];
    const PEERS: [&str; 3] = ["db-0.internal", "cache-1.internal", "search-2.internal"];
    let key = KEYS[n % KEYS.len()];
    match n % KEYS.len() {
        0 => a.put_str(key, ROUTES[(bits >> 8 & 3) as usize]),
        1 => a.put_int(key, if bits & 31 == 0 { 500 } else { 200 }),
        2 => a.put_str(key, PEERS[(bits >> 10) as usize % 3]),
        3 => a.put_double(key, (bits >> 20 & 0xffff) as f64 / 64.0),
        4 => a.put_bool(key, bits & 1 == 1),
        5 => a.put_int(key, (bits >> 30 & 0xfff) as i64),
        6 => a.put_str(key, if bits & 7 == 0 { "enterprise" } else { "standard" }),
        _ => a.put_with(key, |out| {
            let _ = std::io::Write::write_fmt(out, format_args!("\"req-{bits:016x}\""));
        }),
    }
}
