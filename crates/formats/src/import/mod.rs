//! What we read. [`IMPORTERS`] is the whole list.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use arrow::array::RecordBatch;
use rollscope_model::Table;

pub mod chrome;
mod open;
pub mod otlp;
pub mod prometheus;
pub mod remote_write;
pub mod slime_pt;
pub mod torch;
pub mod trainers;
mod wire;

pub use open::{Source, open};

/// What went wrong with a file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Not this format, or damaged: what, and where.
    #[error("{0}")]
    Malformed(String),
    /// A named limit was exceeded.
    #[error("{what} exceeds the limit {limit} ({name})")]
    Limit { what: String, name: &'static str, limit: u64 },
    /// The receiver of the batches failed.
    #[error("{0}")]
    Sink(String),
}

/// How to read.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// Puts everything into this run and ignores the run that the file names.
    pub run: Option<String>,
    /// A batch is handed on once it has this many rows, or was made from a kilobyte for each. The default suits the store;
    /// fewer take less memory.
    pub batch_rows: usize,
    /// Whether tokens are read, where a file has them: half of the bytes of a dump.
    pub tokens: bool,
    /// Lines that were read before, in formats that have a record per line. They are passed over.
    pub lines_before: u64,
    /// Somebody still writes the file: half a line at its end is not an error, it will be read when it is whole.
    pub growing: bool,
    /// Reads Parquet. This crate does not know Parquet, so whoever calls it passes the reader.
    pub parquet: ReadParquet,
}

impl Default for ImportOptions {
    fn default() -> Self {
        let no_reader = |_| Err(ImportError::Malformed("Parquet files cannot be read here".into()));
        ImportOptions {
            run: None,
            batch_rows: 32_768,
            lines_before: 0,
            growing: false,
            parquet: no_reader,
            tokens: true,
        }
    }
}

pub type ReadParquet = fn(File) -> Result<ForeignBatches, ImportError>;
/// Batches with the columns of another program.
pub type ForeignBatches = Box<dyn Iterator<Item = Result<RecordBatch, ImportError>>>;

/// Counts, for the summary a person sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    pub rows: u64,
    pub rejected: u64,
    /// First few reasons for rejection.
    pub reasons: Vec<String>,
    /// Whole lines of the file, in formats that have a record per line: [`ImportOptions::lines_before`] of the next time.
    pub lines: Option<u64>,
}

/// Where batches go as they are read.
pub type Sink<'a> = dyn FnMut(Table, RecordBatch) -> Result<(), ImportError> + 'a;

/// A file format.
pub trait Importer: Sync {
    fn name(&self) -> &'static str;

    /// Does the writer of this format give files such names? A folder is searched for them; the path is relative to it.
    fn belongs(&self, _path: &Path) -> bool {
        false
    }

    /// Decided from the first bytes (decompressed, up to 64 KiB) and the name. The first importer that accepts the file reads it.
    fn detects(&self, head: &[u8], path: &Path) -> bool;

    /// Streams the file into `sink`. `input` counts the bytes it gives out, so progress needs no help from here.
    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError>;
}

/// Every format we read, in the order they are tried.
pub const IMPORTERS: &[&dyn Importer] = &[
    &otlp::OtlpJson,
    &chrome::Chrome,
    &chrome::ArealEvents,
    &slime_pt::SlimeTrainData,
    &slime_pt::SlimeDump,
    &trainers::Langfuse,
    &trainers::Atif,
    &trainers::Rllm,
    &trainers::Tinker,
    &trainers::TinkerMetrics,
    &trainers::Verl,
    &trainers::Trl,
    &trainers::NemoRl,
    &trainers::Miles,
    &trainers::PrimeRl,
    &trainers::PrimeRlMetrics,
    &trainers::PrimeRlTokens,
    &trainers::ArealSessions,
    &trainers::SglangRequests,
    &trainers::SglangDump,
    &otlp::OtlpProtobuf,
];

/// Is this file, in a folder that was passed, one of those that a writer of a known format leaves there?
pub fn belongs(path: &Path) -> bool {
    IMPORTERS.iter().any(|importer| importer.belongs(path))
}

/// When a file was written last. 0 if there is no such file.
fn written_ns(path: &Path) -> i64 {
    let written = std::fs::metadata(path).and_then(|m| m.modified()).ok();
    let since = written.and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
    since.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(0))
}
