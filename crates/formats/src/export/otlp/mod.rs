//! `spans` batches to OTLP, as JSON lines and as protobuf. What was imported and is exported again is equal.

use std::io::{self, Write};

use arrow::array::RecordBatch;
use prost::Message as _;

mod json;
mod request;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;

use crate::import::otlp::{DecodeError, check_traces};

/// A protobuf `ExportTraceServiceRequest` as one line of OTLP JSON, field by field, and how many spans it holds.
pub fn protobuf_to_json_line(bytes: &[u8]) -> Result<(Vec<u8>, u64), DecodeError> {
    check_traces(bytes)?;
    let request = ExportTraceServiceRequest::decode(bytes)
        .map_err(|e| DecodeError(format!("not an ExportTraceServiceRequest in protobuf: {e}")))?;
    let scopes = request.resource_spans.iter().flat_map(|r| &r.scope_spans);
    let spans: u64 = scopes.map(|s| s.spans.len() as u64).sum();
    let mut line = Vec::with_capacity(spans as usize * 700 + 64);
    json::request(&mut line, &request);
    line.push(b'\n');
    Ok((line, spans))
}

/// One `ExportTraceServiceRequest` in OTLP JSON, on one line.
pub fn write_json_line(batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
    let mut line = Vec::with_capacity(batch.num_rows() * 700 + 64);
    json::request(&mut line, &request::request(batch));
    line.push(b'\n');
    out.write_all(&line)
}

/// One `ExportTraceServiceRequest` as protobuf.
pub fn to_protobuf(batch: &RecordBatch) -> Vec<u8> {
    request::request(batch).encode_to_vec()
}
