//! OTLP traces and metrics, protobuf and JSON, into `spans` and `series`; and log records: our SDK's and the events of
//! model calls ([`logs`]).
//!
//! A span goes: [`protobuf`] or [`json`] reads it into a [`span::Span`] that borrows from the request, [`write`] checks
//! it and writes its row. Metrics go through the generated structs ([`metrics`]). [`file`] reads files of either.

use arrow::array::RecordBatch;

mod deltas;
mod file;
mod json;
mod known;
mod logs;
mod logs_json;
mod metrics;
mod metrics_json;
mod protobuf;
mod room;
mod span;
mod tokens;
mod write;

pub use deltas::{Delta, Source, Stored, Summed};
pub use file::{OtlpJson, OtlpProtobuf};
pub use logs::{DecodedLogs, RunRecord, runs_batch};
use write::Writer;

/// The largest request that is decoded. Bounds what a column can hold: text grows at most sixfold when it is stored, and
/// Arrow counts its bytes in 31 bits.
pub const MAX_REQUEST_BYTES: usize = 256 << 20;

/// Distinct runs in one request or file, and rows of `runs` in one request.
const MAX_RUNS: usize = 4096;

/// Limits of one request. Over a limit: the span is rejected (partial success), never truncated in silence.
#[derive(Clone, Debug)]
pub struct Limits {
    pub attributes_per_span: usize,
    pub attribute_bytes: usize,
    pub events_per_span: usize,
    pub links_per_span: usize,
    pub nesting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            attributes_per_span: 1024,
            attribute_bytes: 4 << 20,
            events_per_span: 65_536,
            links_per_span: 65_536,
            nesting: 32,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct DecodeOptions {
    pub limits: Limits,
    /// Overrides the run of every row.
    pub run: Option<String>,
    /// Live traffic: times before 2000 are rejected as a clock that was never set. Files may have any time.
    pub live: bool,
}

/// One decoded request.
#[derive(Debug)]
pub struct Decoded {
    pub batch: RecordBatch,
    /// Points of delta temporality: they become rows when they are added up ([`Source::add`]).
    pub deltas: Vec<Delta>,
    pub rejected: u64,
    /// The first few reasons, each once with its count.
    pub reasons: Vec<String>,
    /// Runs named by the resources, so that the server can enter them into `runs`.
    pub runs: Vec<RunSeen>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunSeen {
    pub run_id: String,
    pub project: Option<String>,
    pub name: Option<String>,
    pub framework: Option<String>,
    pub first_ns: i64,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(pub String);

/// Protobuf `ExportTraceServiceRequest` into `spans`.
pub fn decode_traces(bytes: &[u8], options: &DecodeOptions) -> Result<Decoded, DecodeError> {
    traces(bytes, options, protobuf::request)
}

/// The same request in JSON.
pub fn decode_traces_json(bytes: &[u8], options: &DecodeOptions) -> Result<Decoded, DecodeError> {
    traces(bytes, options, json::request)
}

fn traces(
    bytes: &[u8],
    options: &DecodeOptions,
    read: impl FnOnce(&[u8], &mut Writer) -> Result<(), span::Fault>,
) -> Result<Decoded, DecodeError> {
    check_size(bytes)?;
    let mut writer = Writer::new(options);
    read(bytes, &mut writer).map_err(span::Fault::into_error)?;
    let batch = writer.take();
    let (rejected, reasons) = (writer.rejects.total, writer.rejects.reasons());
    Ok(Decoded { batch, deltas: Vec::new(), rejected, reasons, runs: writer.runs() })
}

/// Protobuf `ExportMetricsServiceRequest` into `series`.
pub fn decode_metrics(bytes: &[u8], options: &DecodeOptions) -> Result<Decoded, DecodeError> {
    check_size(bytes)?;
    metrics::decode(bytes, options)
}

/// The same request in JSON.
pub fn decode_metrics_json(bytes: &[u8], options: &DecodeOptions) -> Result<Decoded, DecodeError> {
    check_size(bytes)?;
    metrics_json::decode(bytes, options)
}

/// Protobuf `ExportLogsServiceRequest`: the records of our SDK into `runs`, `metrics`, `conversations` and media, the events
/// of model calls into `conversations`. Other records are rejected.
pub fn decode_logs(bytes: &[u8], options: &DecodeOptions) -> Result<DecodedLogs, DecodeError> {
    check_size(bytes)?;
    logs::decode(bytes, options)
}

/// The same request in JSON.
pub fn decode_logs_json(bytes: &[u8], options: &DecodeOptions) -> Result<DecodedLogs, DecodeError> {
    check_size(bytes)?;
    logs::decode_json(bytes, options)
}

/// Refuses a protobuf `ExportTraceServiceRequest` whose generated structs would take too much memory.
pub(crate) fn check_traces(bytes: &[u8]) -> Result<(), DecodeError> {
    room::check(bytes, room::Shape::Traces)
}

fn check_size(bytes: &[u8]) -> Result<(), DecodeError> {
    if bytes.len() > MAX_REQUEST_BYTES {
        let len = bytes.len();
        return Err(DecodeError(format!(
            "the request has {len} bytes, more than {MAX_REQUEST_BYTES} (MAX_REQUEST_BYTES)"
        )));
    }
    Ok(())
}
