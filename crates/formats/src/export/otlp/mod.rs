//! `spans` batches to OTLP, as JSON lines and as protobuf. What was imported and is exported again is equal.

use std::io::{self, Write};

use arrow::array::RecordBatch;
use prost::Message as _;

mod json;
mod request;

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
