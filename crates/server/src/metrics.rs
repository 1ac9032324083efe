//! Figures for operators: counters that the rest of the server bumps, and their Prometheus text at `/metrics`.
//! The figures of the store and the engine are read on demand, not copied here.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rollscope_store::resident_bytes;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// How a message came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Grpc,
    HttpProtobuf,
    HttpJson,
    RemoteWrite,
}

impl Protocol {
    pub const ALL: [Protocol; 4] = [Protocol::Grpc, Protocol::HttpProtobuf, Protocol::HttpJson, Protocol::RemoteWrite];

    pub fn name(self) -> &'static str {
        match self {
            Protocol::Grpc => "grpc",
            Protocol::HttpProtobuf => "http/protobuf",
            Protocol::HttpJson => "http/json",
            Protocol::RemoteWrite => "remote-write",
        }
    }
}

/// What came in by one protocol.
#[derive(Debug, Default)]
pub struct IngestCounters {
    pub requests: AtomicU64,
    /// Answered with an error that a retry cannot cure.
    pub refused: AtomicU64,
    /// Answered with a retryable error.
    pub deferred: AtomicU64,
    /// Rows stored: spans, and points of metrics.
    pub accepted: AtomicU64,
    /// Rows named in a partial success, or in the refusal of a part.
    pub rejected: AtomicU64,
    /// Rows that were there already.
    pub duplicates: AtomicU64,
    /// Bytes as they came over the wire, still compressed.
    pub bytes: AtomicU64,
}

/// What came in since the start, by all protocols.
#[derive(Serialize, ToSchema)]
pub struct IngestSums {
    requests: u64,
    /// Requests answered with an error that a retry cannot cure.
    refused: u64,
    /// Requests answered with a retryable error.
    deferred: u64,
    /// Rows stored: spans, and points of metrics.
    accepted: u64,
    /// Rows named in a partial success, or in the refusal of a part.
    rejected: u64,
    /// Rows that were there already.
    duplicates: u64,
    /// Bytes before decompression.
    bytes: u64,
}

impl IngestSums {
    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    pub fn refused(&self) -> u64 {
        self.refused
    }
}

#[derive(Debug, Default)]
pub struct Counters {
    pub ingest: [IngestCounters; Protocol::ALL.len()],
    pub connections_open: AtomicU64,
    pub connections_total: AtomicU64,
    pub connections_refused: AtomicU64,
    pub unauthorized: AtomicU64,
    /// Requests that got 401, 403 or 429 before any handler saw them, and failed log-ins.
    pub refused: AtomicU64,
    pub queries: AtomicU64,
    pub queries_failed: AtomicU64,
    /// Ended by the client going away or by `DELETE /api/v1/queries/{id}`.
    pub queries_cancelled: AtomicU64,
    pub query_microseconds: AtomicU64,
    pub query_rows: AtomicU64,
    pub live_clients: AtomicU64,
}

pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

impl Counters {
    pub fn ingest(&self, protocol: Protocol) -> &IngestCounters {
        &self.ingest[protocol as usize]
    }

    /// For `/api/v1/health`: all protocols together.
    pub fn ingest_sums(&self) -> IngestSums {
        let sum =
            |pick: fn(&IngestCounters) -> &AtomicU64| self.ingest.iter().map(|c| pick(c).load(Relaxed)).sum::<u64>();
        IngestSums {
            requests: sum(|c| &c.requests),
            refused: sum(|c| &c.refused),
            deferred: sum(|c| &c.deferred),
            accepted: sum(|c| &c.accepted),
            rejected: sum(|c| &c.rejected),
            duplicates: sum(|c| &c.duplicates),
            bytes: sum(|c| &c.bytes),
        }
    }

    /// The Prometheus text. `gauges` are further figures: name, help, value.
    pub fn prometheus(&self, gauges: &[(&str, &str, u64)], store: &Value) -> String {
        let mut out = String::with_capacity(8192);
        type Pick = fn(&IngestCounters) -> &AtomicU64;
        let ingest: [(&str, &str, Pick); 7] = [
            ("requests_total", "OTLP requests", |c| &c.requests),
            ("refused_total", "OTLP requests refused, not to be sent again", |c| &c.refused),
            ("deferred_total", "OTLP requests deferred, to be sent again", |c| &c.deferred),
            ("accepted_total", "spans and metric points stored", |c| &c.accepted),
            ("rejected_total", "spans and metric points rejected in a partial success", |c| &c.rejected),
            ("duplicates_total", "spans that were already stored", |c| &c.duplicates),
            ("bytes_total", "OTLP bytes received, before decompression", |c| &c.bytes),
        ];
        for (name, help, pick) in ingest {
            let _ = writeln!(out, "# HELP rollscope_ingest_{name} {help}\n# TYPE rollscope_ingest_{name} counter");
            for protocol in Protocol::ALL {
                let value = pick(self.ingest(protocol)).load(Relaxed);
                let _ = writeln!(out, "rollscope_ingest_{name}{{protocol=\"{}\"}} {value}", protocol.name());
            }
        }
        let plain: [(&str, &str, &str, &AtomicU64); 9] = [
            ("connections_open", "gauge", "open connections", &self.connections_open),
            ("connections_total", "counter", "connections accepted", &self.connections_total),
            (
                "connections_refused_total",
                "counter",
                "connections refused because of max_connections or max_connections_per_peer",
                &self.connections_refused,
            ),
            ("unauthorized_total", "counter", "requests without a valid token", &self.unauthorized),
            ("refused_total", "counter", "requests refused for want of a token, a scope or a rate", &self.refused),
            ("queries_total", "counter", "queries started", &self.queries),
            ("queries_failed_total", "counter", "queries that failed", &self.queries_failed),
            ("queries_cancelled_total", "counter", "queries whose client disconnected", &self.queries_cancelled),
            ("query_rows_total", "counter", "rows returned by queries", &self.query_rows),
        ];
        for (name, kind, help, value) in plain {
            let value = value.load(Relaxed);
            let _ = writeln!(
                out,
                "# HELP rollscope_{name} {help}\n# TYPE rollscope_{name} {kind}\nrollscope_{name} {value}"
            );
        }
        let seconds = self.query_microseconds.load(Relaxed) as f64 / 1e6;
        let _ = writeln!(
            out,
            "# HELP rollscope_query_seconds_total time spent on queries\n\
             # TYPE rollscope_query_seconds_total counter\nrollscope_query_seconds_total {seconds}"
        );
        let live = ("live_clients", "clients connected to /api/v1/live", self.live_clients.load(Relaxed));
        for (name, help, value) in gauges.iter().chain([&live]) {
            let _ = writeln!(
                out,
                "# HELP rollscope_{name} {help}\n# TYPE rollscope_{name} gauge\nrollscope_{name} {value}"
            );
        }
        store_figures(&mut out, store);
        if let Some(bytes) = resident_bytes() {
            let _ = writeln!(
                out,
                "# HELP process_resident_memory_bytes resident memory\n\
                 # TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes {bytes}"
            );
        }
        out
    }
}

/// Figures of the store: their name in the store, their metric name, kind and help text.
const STORE: [(&str, &str, &str, &str); 18] = [
    ("rows_appended", "rows_appended_total", "counter", "rows stored"),
    ("duplicates", "duplicates_total", "counter", "rows that were already stored"),
    ("append_errors", "append_errors_total", "counter", "failed appends"),
    ("log_bytes_written", "log_written_bytes_total", "counter", "bytes written to the log"),
    ("log_syncs", "log_syncs_total", "counter", "times the log was synced to disk"),
    ("log_bytes", "log_bytes", "gauge", "bytes in the log that are not in segments yet"),
    ("tail_rows", "tail_rows", "gauge", "rows in memory that are not in segments yet"),
    ("tail_bytes", "tail_bytes", "gauge", "bytes of rows in memory"),
    ("segments", "segments", "gauge", "segments on disk"),
    ("segment_rows", "segment_rows", "gauge", "rows in segments"),
    ("segment_bytes", "segment_bytes", "gauge", "bytes of segments"),
    ("flushes", "flushes_total", "counter", "flushes of rows in memory to segments"),
    ("flush_errors", "flush_errors_total", "counter", "failed flushes"),
    ("flush_ms", "flush_seconds_total", "counter", "time spent in flushes"),
    ("compactions", "compactions_total", "counter", "merges of small segments"),
    ("expired_segments", "expired_segments_total", "counter", "segments deleted by retention"),
    ("duplicate_check_bytes", "duplicate_check_bytes", "gauge", "memory used to detect duplicates"),
    (
        "duplicate_check_skipped",
        "duplicate_check_skipped_total",
        "counter",
        "duplicate checks skipped because this memory was too small",
    ),
];

/// Writes every number in the figures of the store, those of a table with its name as a label. A number that is not described
/// above is written as a gauge.
fn store_figures(out: &mut String, figures: &Value) {
    for (key, value) in figures.as_object().into_iter().flatten() {
        let words = format!("{} of the store", key.replace('_', " "));
        let known = STORE.iter().find(|(theirs, ..)| theirs == key);
        let (name, kind, help) =
            known.map_or((key.as_str(), "gauge", words.as_str()), |(_, name, kind, help)| (*name, *kind, *help));
        let scale = if key.ends_with("_ms") { 1e-3 } else { 1.0 };
        let samples: Vec<(String, f64)> = match value {
            Value::Object(tables) => {
                let of = |(table, n): (&String, &Value)| Some((format!("{{table=\"{table}\"}}"), n.as_f64()?));
                tables.iter().filter_map(of).collect()
            }
            Value::Bool(b) => vec![(String::new(), f64::from(*b))],
            other => other.as_f64().map(|n| (String::new(), n)).into_iter().collect(),
        };
        if samples.is_empty() {
            continue;
        }
        let _ = writeln!(out, "# HELP rollscope_store_{name} {help}\n# TYPE rollscope_store_{name} {kind}");
        for (labels, n) in samples {
            let _ = writeln!(out, "rollscope_store_{name}{labels} {}", n * scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_every_protocol_and_the_store() {
        let counters = Counters::default();
        add(&counters.ingest(Protocol::HttpJson).accepted, 7);
        let text = counters.prometheus(
            &[("inflight_bytes", "bytes on their way", 3)],
            &serde_json::json!({"tail_rows": {"spans": 5}, "flush_ms": 1500, "new": 7, "x": [1]}),
        );
        assert!(text.contains("rollscope_ingest_accepted_total{protocol=\"http/json\"} 7\n"));
        assert!(text.contains("\nrollscope_store_tail_rows{table=\"spans\"} 5\n"));
        assert!(text.contains("\n# TYPE rollscope_store_flush_seconds_total counter\n"));
        assert!(text.contains("\nrollscope_store_flush_seconds_total 1.5\n"));
        // One that is not described yet.
        assert!(text.contains("\nrollscope_store_new 7\n"));
        assert!(text.contains("\nrollscope_inflight_bytes 3\n"));
        for line in text.lines().filter_map(|l| l.strip_prefix("# TYPE ")) {
            let name = line.split(' ').next().unwrap();
            assert!(text.contains(&format!("# HELP {name} ")), "{name}");
        }
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            assert!(line.rsplit_once(' ').unwrap().1.parse::<f64>().is_ok(), "{line}");
        }
    }
}
