//! The bytes of a file, mapped into memory: only what is used is read.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

/// Shared, immutable bytes.
#[derive(Clone)]
pub struct Source(Arc<Bytes>);

enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Source {
    pub fn open(path: &Path) -> std::io::Result<Source> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file"));
        }
        // SAFETY: the map is read-only and never handed out as anything but `&[u8]`. Like every program that maps a
        // file we rely on no process truncating it meanwhile; torch writes a dump once.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file)? };
        Ok(Source(Arc::new(Bytes::Mapped(map))))
    }

    /// Tells the system that these bytes are not needed for now, so that they do not count as our memory. Looking at
    /// them again is allowed and reads them again.
    pub fn forget(&self, start: usize, end: usize) {
        const PAGE: usize = 1 << 16;
        let (start, end) = (start.next_multiple_of(PAGE), end / PAGE * PAGE);
        if let Bytes::Mapped(map) = &*self.0
            && start < end
            && end <= map.len()
        {
            #[cfg(unix)]
            // SAFETY: dropping the pages of a read-only map of a file loses nothing: they come back from the file.
            #[allow(unsafe_code)]
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start) };
        }
    }
}

impl From<Vec<u8>> for Source {
    fn from(bytes: Vec<u8>) -> Source {
        Source(Arc::new(Bytes::Owned(bytes)))
    }
}

impl std::ops::Deref for Source {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &*self.0 {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}
