//! Readers of files that may be damaged, for the fuzz targets. Not part of the program.

use crate::error::StoreError;
use crate::{journal, wal};

/// Reads a log as a start does. Returns how many rows it has.
pub fn read_log(bytes: &[u8]) -> Result<usize, StoreError> {
    let mut rows = 0;
    wal::replay(bytes, |_, batch| rows += batch.num_rows())?;
    Ok(rows)
}

/// Gives every record of a log the checksum of what it holds.
pub fn mend_log(bytes: &mut [u8]) {
    wal::mend(bytes);
}

/// Reads `manifest.json` and `commits.log` as a start does. Returns how many segments are live.
pub fn read_manifest(manifest: Option<&[u8]>, commits: Option<&[u8]>) -> Result<Option<usize>, StoreError> {
    let found = journal::judge(manifest, commits)?;
    Ok(found.manifest.map(|manifest| manifest.kept().count()))
}

/// A line of `commits.log` with its checksum.
pub fn mend_line(json: &[u8]) -> Vec<u8> {
    let sum = crc32fast::hash(json.strip_suffix(b"\n").unwrap_or(json));
    [format!("{sum:08x} ").as_bytes(), json].concat()
}
