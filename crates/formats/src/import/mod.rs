//! What we read. [`IMPORTERS`] is the whole list.

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
}

impl Default for ImportOptions {
    fn default() -> Self {
        ImportOptions { run: None, batch_rows: 32_768 }
    }
}

/// Counts, for the summary a person sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    pub rows: u64,
    pub rejected: u64,
    /// First few reasons for rejection.
    pub reasons: Vec<String>,
}

/// Where batches go as they are read.
pub type Sink<'a> = dyn FnMut(Table, RecordBatch) -> Result<(), ImportError> + 'a;

/// A file format.
pub trait Importer: Sync {
    fn name(&self) -> &'static str;

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
pub const IMPORTERS: &[&dyn Importer] = &[&otlp::OtlpJson, &chrome::Chrome, &slime_pt::SlimeDump, &otlp::OtlpProtobuf];
