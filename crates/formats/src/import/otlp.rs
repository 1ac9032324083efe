//! OTLP traces and metrics, protobuf and JSON, into `spans` and `series`.

use std::io::Read;
use std::path::Path;

use arrow::array::RecordBatch;

use super::{ImportError, ImportOptions, Imported, Importer, Sink};

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
    pub rejected: u64,
    /// First few reasons, each said once with its count.
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

pub fn decode_traces(_bytes: &[u8], _options: &DecodeOptions) -> Result<Decoded, DecodeError> {
    Err(DecodeError("stub".into()))
}

pub fn decode_traces_json(_bytes: &[u8], _options: &DecodeOptions) -> Result<Decoded, DecodeError> {
    Err(DecodeError("stub".into()))
}

/// Metrics into `series`.
pub fn decode_metrics(_bytes: &[u8], _options: &DecodeOptions) -> Result<Decoded, DecodeError> {
    Err(DecodeError("stub".into()))
}

pub fn decode_metrics_json(_bytes: &[u8], _options: &DecodeOptions) -> Result<Decoded, DecodeError> {
    Err(DecodeError("stub".into()))
}

/// OTLP JSON files: one object, an array, or lines; the caller has undone gzip or zstd.
pub struct OtlpJson;

impl Importer for OtlpJson {
    fn name(&self) -> &'static str {
        "OTLP JSON"
    }

    fn detects(&self, _head: &[u8], _path: &Path) -> bool {
        false
    }

    fn read(
        &self,
        _path: &Path,
        _input: &mut dyn Read,
        _options: &ImportOptions,
        _sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        Err(ImportError::Malformed("stub".into()))
    }
}
