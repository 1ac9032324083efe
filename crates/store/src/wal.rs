//! The write-ahead log. A file is a header and records; a record is a header and one Arrow IPC stream, complete in itself
//! (schema, dictionaries, batch), so that damage to one record harms no other.
//!
//! ```text
//! file:   "RSWAL\0\0\0"  version u32  number u64
//! record: "RSL1"  length u32  crc32 u32  table u8  0 0 0  | Arrow IPC stream
//! ```
//! All numbers are little-endian; the checksum covers the table byte and the stream.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use rollscope_model::Table;
use rollscope_model::tables::FORMAT_VERSION;

use crate::disk::{Disk, DiskFile};
use crate::error::StoreError;

const FILE_MAGIC: &[u8; 8] = b"RSWAL\0\0\0";
const FILE_HEADER: usize = 20;
const RECORD_MAGIC: &[u8; 4] = b"RSL1";
const RECORD_HEADER: usize = 16;

/// Encodes one batch as a record. Done by the caller, on its own core, before the writer thread sees it.
pub(crate) fn encode(table: Table, batch: &RecordBatch) -> Result<Vec<u8>, StoreError> {
    let mut out = Vec::with_capacity(batch.get_array_memory_size() + 4096);
    out.resize(RECORD_HEADER, 0);
    let mut writer = StreamWriter::try_new_with_options(&mut out, &batch.schema(), IpcWriteOptions::default())?;
    writer.write(batch)?;
    writer.finish()?;
    drop(writer);
    let length = u32::try_from(out.len() - RECORD_HEADER)
        .map_err(|_| StoreError::Damaged("the batch is larger than 4 GiB and cannot be written to the log".into()))?;
    out[0..4].copy_from_slice(RECORD_MAGIC);
    out[4..8].copy_from_slice(&length.to_le_bytes());
    out[12] = table as u8;
    let crc = checksum(out[12], &out[RECORD_HEADER..]);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    Ok(out)
}

fn checksum(table: u8, payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[table]);
    crc.update(payload);
    crc.finalize()
}

/// The log file that is being written.
pub(crate) struct Log {
    file: DiskFile,
    path: PathBuf,
    pub number: u64,
    /// Everything before this is on disk.
    synced: u64,
    written: u64,
}

impl Log {
    pub fn create(disk: &Disk, dir: &Path, number: u64) -> Result<Log, StoreError> {
        let path = path(dir, number);
        let io = |e| StoreError::io(&path, e);
        let mut file = disk.create(&path).map_err(io)?;
        let mut header = [0; FILE_HEADER];
        header[..8].copy_from_slice(FILE_MAGIC);
        header[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        header[12..].copy_from_slice(&number.to_le_bytes());
        let made = file.write(&header).and_then(|()| file.sync()).and_then(|()| disk.sync_folder(dir));
        if let Err(e) = made {
            let _ = disk.remove(&path);
            return Err(io(e));
        }
        Ok(Log { file, path, number, synced: FILE_HEADER as u64, written: FILE_HEADER as u64 })
    }

    pub fn write(&mut self, record: &[u8]) -> Result<(), StoreError> {
        self.file.write(record).map_err(|e| StoreError::io(&self.path, e))?;
        self.written += record.len() as u64;
        Ok(())
    }

    pub fn sync(&mut self) -> Result<(), StoreError> {
        self.file.sync().map_err(|e| StoreError::io(&self.path, e))?;
        self.synced = self.written;
        Ok(())
    }

    /// After a failure: forgets everything that was not synced, so that the next record starts at a clean place.
    pub fn rewind(&mut self) -> Result<(), StoreError> {
        self.file.cut(self.synced).map_err(|e| StoreError::io(&self.path, e))?;
        self.written = self.synced;
        Ok(())
    }

    pub fn bytes(&self) -> u64 {
        self.synced
    }
}

pub(crate) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016}.log"))
}

/// The numbers of the log files in a folder, ascending.
pub(crate) fn list(dir: &Path) -> Result<Vec<u64>, StoreError> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| StoreError::io(dir, e))? {
        let name = entry.map_err(|e| StoreError::io(dir, e))?.file_name();
        if let Some(n) = name.to_str().and_then(|n| n.strip_suffix(".log")).and_then(|n| n.parse().ok()) {
            numbers.push(n);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// A stretch of a log file that is not a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    pub from: usize,
    pub to: usize,
    pub why: String,
}

/// What reading a log file found, besides the records.
#[derive(Debug, Default)]
pub(crate) struct ReplayReport {
    pub records: u64,
    /// Stretches between good records.
    pub damage: Vec<Damage>,
    /// Bytes after the last good record: a write that was cut off.
    pub torn: Option<Damage>,
}

/// Reads every good record, in order. Never fails on what the file contains: what is not a record is reported.
pub(crate) fn replay(bytes: &[u8], mut each: impl FnMut(Table, RecordBatch)) -> Result<ReplayReport, StoreError> {
    let mut report = ReplayReport::default();
    let mut at = FILE_HEADER;
    let mut why = String::new();
    let mut damaged_from = None;
    if bytes.len() < FILE_HEADER || &bytes[..8] != FILE_MAGIC {
        why = "the file header is damaged".into();
        damaged_from = Some(0);
        at = 0;
    } else {
        let version = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
        if version > FORMAT_VERSION {
            return Err(StoreError::Newer { found: version, known: FORMAT_VERSION });
        }
    }
    while at < bytes.len() {
        match record_at(bytes, at) {
            Ok((table, batches, end)) => {
                if let Some(from) = damaged_from.take() {
                    report.damage.push(Damage { from, to: at, why: std::mem::take(&mut why) });
                }
                report.records += 1;
                batches.into_iter().for_each(|batch| each(table, batch));
                at = end;
            }
            Err(problem) => {
                if damaged_from.is_none() {
                    damaged_from = Some(at);
                    why = problem;
                }
                // Look for the next record that is whole.
                at = match find(&bytes[at + 1..], RECORD_MAGIC) {
                    Some(skip) => at + 1 + skip,
                    None => bytes.len(),
                };
            }
        }
    }
    report.torn = damaged_from.map(|from| Damage { from, to: bytes.len(), why });
    Ok(report)
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}

fn record_at(bytes: &[u8], at: usize) -> Result<(Table, Vec<RecordBatch>, usize), String> {
    let header = bytes.get(at..at + RECORD_HEADER).ok_or("a record header is truncated")?;
    if &header[..4] != RECORD_MAGIC {
        return Err("no record starts here".into());
    }
    let number = |from: usize| u32::from_le_bytes(header[from..from + 4].try_into().expect("four bytes"));
    let (length, crc) = (number(4) as usize, number(8));
    let end = at + RECORD_HEADER + length;
    let payload = bytes.get(at + RECORD_HEADER..end).ok_or("a record is truncated")?;
    if checksum(header[12], payload) != crc {
        return Err("the checksum of a record is wrong".into());
    }
    let table = Table::from_u8(header[12]).ok_or("a record names an unknown table")?;
    Ok((table, batches(payload)?, end))
}

/// Arrow's reader panics on some streams that are damaged in spite of their checksum. That must not keep a store from opening.
fn batches(stream: &[u8]) -> Result<Vec<RecordBatch>, String> {
    let read = || StreamReader::try_new(Cursor::new(stream), None)?.collect::<Result<Vec<_>, _>>();
    match std::panic::catch_unwind(read) {
        Ok(read) => read.map_err(|e| e.to_string()),
        Err(_) => Err("the rows of a record cannot be read".into()),
    }
}

/// For the fuzz target: right checksums, so that damage reaches what is behind them.
pub(crate) fn mend(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(skip) = find(&bytes[at..], RECORD_MAGIC) {
        at += skip + 1;
        let Some((header, rest)) = bytes[at - 1..].split_at_mut_checked(RECORD_HEADER) else { return };
        let length = u32::from_le_bytes(header[4..8].try_into().expect("four bytes")) as usize;
        if let Some(payload) = rest.get(..length) {
            let crc = checksum(header[12], payload);
            header[8..12].copy_from_slice(&crc.to_le_bytes());
            at += RECORD_HEADER + length - 1;
        }
    }
}
