//! From a path to the importer that reads it: decompresses gzip and zstd (recognised by their first bytes, not by the name), reads
//! the head, tries each importer, and counts what was read so that a progress bar can be drawn.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{IMPORTERS, ImportError, ImportOptions, Imported, Importer, Sink};

/// What importers are shown of a file before one of them is chosen.
const HEAD_BYTES: usize = 64 << 10;
/// Most that a compressed file may become.
pub const MAX_DECOMPRESSED_BYTES: u64 = 1 << 40;
/// Most that it may grow by.
pub const MAX_COMPRESSION_RATIO: u64 = 1000;
/// Files that stay below this may have any ratio.
const RATIO_MATTERS_FROM: u64 = 64 << 20;

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// A file, open, with the importer that knows it.
pub struct Source {
    path: PathBuf,
    importer: &'static dyn Importer,
    input: Box<dyn Read + Send>,
    bytes_read: Arc<AtomicU64>,
    size: u64,
}

/// Opens a file of any known format, plain, gzip (one member or many) or zstd.
pub fn open(path: &Path) -> Result<Source, ImportError> {
    let file = File::open(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(ImportError::Malformed(format!("{} is a folder; pass the files in it", path.display())));
    }
    let bytes_read = Arc::new(AtomicU64::new(0));
    let mut raw = Counted { inner: file, count: bytes_read.clone() };
    let mut magic = Vec::new();
    (&mut raw).take(ZSTD.len() as u64).read_to_end(&mut magic)?;
    let (gzip, zstd) = (magic.starts_with(GZIP), magic.starts_with(ZSTD));
    let raw = BufReader::with_capacity(256 << 10, Cursor::new(magic).chain(raw));
    let mut input: Box<dyn Read + Send> = if gzip {
        Box::new(Guarded::new(flate2::bufread::MultiGzDecoder::new(raw), bytes_read.clone()))
    } else if zstd {
        Box::new(Guarded::new(zstd::stream::read::Decoder::with_buffer(raw)?, bytes_read.clone()))
    } else {
        Box::new(raw)
    };
    let mut head = Vec::new();
    (&mut input).take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    let Some(importer) = IMPORTERS.iter().find(|i| i.detects(&head, path)) else {
        let known: Vec<_> = IMPORTERS.iter().map(|i| i.name()).collect();
        let what = if head.is_empty() { "the file is empty" } else { "unknown format" };
        let known = known.join(", ");
        return Err(ImportError::Malformed(format!("{what}; supported formats: {known}")));
    };
    Ok(Source {
        path: path.to_path_buf(),
        importer: *importer,
        input: Box::new(Cursor::new(head).chain(input)),
        bytes_read,
        size: metadata.len(),
    })
}

impl Source {
    /// The name of the format.
    pub fn format(&self) -> &'static str {
        self.importer.name()
    }

    /// Size of the file on disk. 0 if it is unknown (a pipe).
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of the file read so far, compressed as they are: goes up to [`Source::size`].
    pub fn progress(&self) -> Arc<AtomicU64> {
        self.bytes_read.clone()
    }

    pub fn read(mut self, options: &ImportOptions, sink: &mut Sink) -> Result<Imported, ImportError> {
        self.importer.import(&self.path, &mut *self.input, options, sink)
    }
}

struct Counted<R> {
    inner: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.count.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// Stops a small file that would become a huge one.
struct Guarded<R> {
    inner: R,
    compressed: Arc<AtomicU64>,
    given: u64,
}

impl<R> Guarded<R> {
    fn new(inner: R, compressed: Arc<AtomicU64>) -> Self {
        Guarded { inner, compressed, given: 0 }
    }
}

impl<R: Read> Read for Guarded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.given += n as u64;
        let compressed = self.compressed.load(Ordering::Relaxed).max(1);
        if self.given > MAX_DECOMPRESSED_BYTES {
            let limit =
                format!("the decompressed file is larger than {MAX_DECOMPRESSED_BYTES} bytes (MAX_DECOMPRESSED_BYTES)");
            return Err(io::Error::new(io::ErrorKind::InvalidData, limit));
        }
        if self.given > RATIO_MATTERS_FROM && self.given / compressed > MAX_COMPRESSION_RATIO {
            let limit = format!(
                "the decompressed file is more than {MAX_COMPRESSION_RATIO} times larger than the file (MAX_COMPRESSION_RATIO)"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, limit));
        }
        Ok(n)
    }
}
