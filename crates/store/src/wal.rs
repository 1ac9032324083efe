//! The write-ahead log. A file is a header and records; a record is a header and one Arrow IPC stream, complete in itself
//! (schema, dictionaries, batch), so that damage to one record harms no other.
//!
//! ```text
//! file:   "RSWAL\0\0\0"  version u32  number u64
//! record: "RSL1"  length u32  crc32 u32  table u8  0 0 0  | Arrow IPC stream
//! ```
//! All numbers are little-endian; the checksum covers the table byte and the stream.

use std::path::{Path, PathBuf};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use rollscope_model::Table;
use rollscope_model::tables::FORMAT_VERSION;

use crate::disk::{Disk, DiskFile};
use crate::error::StoreError;

const FILE_MAGIC: &[u8; 8] = b"RSWAL\0\0\0";
const FILE_HEADER: usize = 20;
const RECORD_MAGIC: &[u8; 4] = b"RSL1";
const RECORD_HEADER: usize = 16;

/// Encodes one batch as a record. Done by the sender, on its own core, before the writer thread sees it; again, where it has duplicates.
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

/// In the log of a lake, in the place of a table: the log of another writer was copied here.
const ADOPTED: u8 = u8::MAX;

/// What a record of a lake holds.
pub(crate) enum Kind {
    Rows(Table, Vec<RecordBatch>),
    /// All that the log of this writer had is in this part or the tables.
    Adopted(String),
}

/// A record that says that the log of a writer was copied.
pub(crate) fn encode_adopted(writer: &str) -> Vec<u8> {
    let mut out = vec![0; RECORD_HEADER];
    out[0..4].copy_from_slice(RECORD_MAGIC);
    out[4..8].copy_from_slice(&(writer.len() as u32).to_le_bytes());
    out[8..12].copy_from_slice(&checksum(ADOPTED, writer.as_bytes()).to_le_bytes());
    out[12] = ADOPTED;
    out.extend_from_slice(writer.as_bytes());
    out
}

/// The records of a part of a lake's log, whose bytes are known to be as they were written, each with its own bytes.
pub(crate) fn records(bytes: &[u8]) -> impl Iterator<Item = Result<(Kind, &[u8]), StoreError>> {
    let mut sums = Sums::new(bytes);
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= bytes.len() {
            return None;
        }
        let from = at;
        let read = record_at(&mut sums, at).and_then(|record| {
            at = record.end;
            match record.table {
                ADOPTED => Ok(Kind::Adopted(String::from_utf8_lossy(record.payload).into_owned())),
                _ => decode(&record).map(|(table, batches)| Kind::Rows(table, batches)),
            }
        });
        if read.is_err() && at == from {
            at = bytes.len();
        }
        Some(read.map(|kind| (kind, &bytes[from..at])).map_err(StoreError::Damaged))
    })
}

fn checksum(table: u8, payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[table]);
    crc.update(payload);
    crc.finalize()
}

/// The log that is being written. It has parts, which are numbered: files of a folder, objects of a lake.
pub(crate) trait Log: Send {
    fn write(&mut self, record: &[u8]) -> Result<(), StoreError>;

    /// Returns when everything that was written will survive.
    fn sync(&mut self) -> Result<(), StoreError>;

    /// After a failure: forgets everything that was not synced, so that the next record starts at a clean place.
    fn rewind(&mut self);

    /// Begins a new part, with this record, synced. Returns its number: everything before is in parts below it. After an error,
    /// the log goes on as it was.
    fn begin(&mut self, first: Option<&[u8]>) -> Result<u64, StoreError>;

    /// Nothing can be written any more.
    fn close(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Bytes of the part that is being written.
    fn bytes(&self) -> u64;

    /// How long the next sync should wait for others to join it.
    fn pause(&self) -> Duration {
        Duration::ZERO
    }
}

/// Writes records and waits until they will survive. After an error, the log is as it was.
pub(crate) fn append(log: &mut dyn Log, records: &[u8]) -> Result<(), StoreError> {
    let written = log.write(records).and_then(|()| log.sync());
    written.inspect_err(|_| log.rewind())
}

/// A log of files.
pub(crate) struct Files {
    disk: Disk,
    dir: PathBuf,
    current: LogFile,
}

impl Files {
    pub fn create(disk: &Disk, dir: &Path, number: u64) -> Result<Files, StoreError> {
        let current = LogFile::create(disk, dir, number)?;
        Ok(Files { disk: disk.clone(), dir: dir.to_path_buf(), current })
    }
}

impl Log for Files {
    fn write(&mut self, record: &[u8]) -> Result<(), StoreError> {
        self.current.write(record)
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.current.sync()
    }

    fn rewind(&mut self) {
        if self.current.rewind().is_err() {
            // The file cannot be brought back to a clean place: leave it as it is and go on in a new one. What was
            // not acknowledged may come back from it at the next start, where duplicates are recognised.
            match LogFile::create(&self.disk, &self.dir, self.current.number + 1) {
                Ok(file) => self.current = file,
                Err(e) => tracing::error!(error = %e, "cannot write the log"),
            }
        }
    }

    fn begin(&mut self, first: Option<&[u8]>) -> Result<u64, StoreError> {
        let mut file = LogFile::create(&self.disk, &self.dir, self.current.number + 1)?;
        if let Some(record) = first
            && let Err(e) = file.write(record).and_then(|()| file.sync())
        {
            let _ = self.disk.remove(&file.path);
            return Err(e);
        }
        self.current = file;
        Ok(self.current.number)
    }

    fn bytes(&self) -> u64 {
        self.current.synced
    }
}

/// The log file that is being written.
struct LogFile {
    file: DiskFile,
    path: PathBuf,
    number: u64,
    /// Everything before this is on disk.
    synced: u64,
    written: u64,
    /// A write or a sync failed: nobody knows what is in the file after `synced`.
    is_unclear: bool,
}

impl LogFile {
    fn create(disk: &Disk, dir: &Path, number: u64) -> Result<LogFile, StoreError> {
        let path = path(dir, number);
        let io = |e| StoreError::io(&path, e);
        // Left by an attempt that failed, and could not be undone. It never became the log, so nothing in it was acknowledged.
        if path.exists() {
            disk.remove(&path).map_err(io)?;
        }
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
        Ok(LogFile { file, path, number, synced: FILE_HEADER as u64, written: FILE_HEADER as u64, is_unclear: false })
    }

    fn write(&mut self, record: &[u8]) -> Result<(), StoreError> {
        self.make_clear()?;
        self.is_unclear = true;
        self.file.write(record).map_err(|e| StoreError::io(&self.path, e))?;
        self.is_unclear = false;
        self.written += record.len() as u64;
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.make_clear()?;
        self.is_unclear = true;
        self.file.sync().map_err(|e| StoreError::io(&self.path, e))?;
        self.is_unclear = false;
        self.synced = self.written;
        Ok(())
    }

    /// After a failure: forgets everything that was not synced, so that the next record starts at a clean place. Until this is
    /// done, nothing is written: half a record may be in between, and what follows it would be cut off with it later.
    fn rewind(&mut self) -> Result<(), StoreError> {
        self.is_unclear = true;
        self.file.cut(self.synced).map_err(|e| StoreError::io(&self.path, e))?;
        self.is_unclear = false;
        self.written = self.synced;
        Ok(())
    }

    fn make_clear(&mut self) -> Result<(), StoreError> {
        if self.is_unclear { self.rewind() } else { Ok(()) }
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
    /// Bytes that went through a checksum, each time they did.
    pub checksummed: usize,
    /// Stretches between good records.
    pub damage: Vec<Damage>,
    /// Bytes after the last good record: a write that was cut off.
    pub torn: Option<Damage>,
}

/// Reads every good record, in order. Never fails on what the file contains: what is not a record is reported. Takes time
/// in proportion to the size of the file, also if a damaged record is full of what looks like records ([`Sums`]).
pub(crate) fn replay(bytes: &[u8], mut each: impl FnMut(Table, RecordBatch)) -> Result<ReplayReport, StoreError> {
    let mut report = ReplayReport::default();
    let mut sums = Sums::new(bytes);
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
        let (problem, next) = match record_at(&mut sums, at) {
            Ok(record) => match decode(&record) {
                Ok((table, batches)) => {
                    if let Some(from) = damaged_from.take() {
                        report.damage.push(Damage { from, to: at, why: std::mem::take(&mut why) });
                    }
                    report.records += 1;
                    batches.into_iter().for_each(|batch| each(table, batch));
                    at = record.end;
                    continue;
                }
                // It is as it was written, so no record starts inside it.
                Err(problem) => (problem, record.end),
            },
            Err(problem) => {
                // From here on, records are not what they claim to be.
                sums.prepare(at);
                (problem, at + 1)
            }
        };
        if damaged_from.is_none() {
            damaged_from = Some(at);
            why = problem;
        }
        // Look for the next record that is whole.
        at = find(&bytes[next..], RECORD_MAGIC).map_or(bytes.len(), |skip| next + skip);
    }
    // A log that was cut off before its first byte holds nothing that could be damaged.
    report.torn = damaged_from.filter(|from| *from < bytes.len()).map(|from| Damage { from, to: bytes.len(), why });
    report.checksummed = sums.summed;
    Ok(report)
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}

/// A record whose checksum is right.
struct Record<'a> {
    table: u8,
    payload: &'a [u8],
    end: usize,
}

fn record_at<'a>(sums: &mut Sums<'a>, at: usize) -> Result<Record<'a>, String> {
    let bytes = sums.bytes;
    let header = bytes.get(at..at + RECORD_HEADER).ok_or("a record header is truncated")?;
    if &header[..4] != RECORD_MAGIC {
        return Err("no record starts here".into());
    }
    let number = |from: usize| u32::from_le_bytes(header[from..from + 4].try_into().expect("four bytes"));
    let (length, crc) = (number(4) as usize, number(8));
    let (table, from) = (header[12], at + RECORD_HEADER);
    let end = from + length;
    let payload = bytes.get(from..end).ok_or("a record is truncated")?;
    if sums.of_record(table, from, end) != crc {
        return Err("the checksum of a record is wrong".into());
    }
    Ok(Record { table, payload, end })
}

fn decode(record: &Record) -> Result<(Table, Vec<RecordBatch>), String> {
    let table = Table::from_u8(record.table).ok_or("a record names an unknown table")?;
    Ok((table, batches(record.payload)?))
}

/// Arrow panics on some streams that are damaged in spite of their checksum. That must not keep a store from opening. Nor must a
/// length: the decoder takes what is there, where a reader would first make room for as many bytes as the stream claims.
fn batches(stream: &[u8]) -> Result<Vec<RecordBatch>, String> {
    let read = || {
        let (mut rest, mut decoder, mut batches) = (Buffer::from(stream), StreamDecoder::new(), Vec::new());
        while let Some(batch) = decoder.decode(&mut rest)? {
            batches.push(batch);
        }
        decoder.finish()?;
        Ok(batches)
    };
    match std::panic::catch_unwind(read) {
        Ok(read) => read.map_err(|e: ArrowError| e.to_string()),
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

/// Checksums of records, true and supposed. A damaged record may hold any number of marks, in names that senders chose, each
/// of which claims that a long record follows. So once a record is damaged, the checksum of a stretch is computed from those
/// of two beginnings, which are known at every [`STRIDE`]: it costs the same for every length.
struct Sums<'a> {
    bytes: &'a [u8],
    /// Where the beginnings start.
    from: usize,
    /// The checksum of `i * STRIDE` bytes from there. Empty as long as nothing is damaged.
    beginnings: Vec<u32>,
    summed: usize,
}

/// Small, because up to this many bytes are read for both ends of a supposed record.
const STRIDE: usize = 64;

impl<'a> Sums<'a> {
    fn new(bytes: &'a [u8]) -> Sums<'a> {
        Sums { bytes, from: 0, beginnings: Vec::new(), summed: 0 }
    }

    fn prepare(&mut self, from: usize) {
        if !self.beginnings.is_empty() {
            return;
        }
        let rest = &self.bytes[from..];
        let mut crc = crc32fast::Hasher::new();
        self.beginnings = Vec::with_capacity(rest.len() / STRIDE + 1);
        for stretch in rest.chunks(STRIDE) {
            self.beginnings.push(crc.clone().finalize());
            crc.update(stretch);
        }
        self.beginnings.push(crc.finalize());
        self.from = from;
        self.summed += rest.len();
    }

    /// The same as [`checksum`].
    fn of_record(&mut self, table: u8, from: usize, to: usize) -> u32 {
        if self.beginnings.is_empty() {
            self.summed += to - from;
            return checksum(table, &self.bytes[from..to]);
        }
        let before = self.until(from) ^ crc32fast::hash(&[table]);
        // A checksum is that of its first part, moved over the length of the second, xor that of the second.
        let mut moved = crc32fast::Hasher::new_with_initial_len(before, 0);
        moved.combine(&crc32fast::Hasher::new_with_initial_len(0, (to - from) as u64));
        moved.finalize() ^ self.until(to)
    }

    fn until(&mut self, to: usize) -> u32 {
        let stride = (to - self.from) / STRIDE;
        let rest = &self.bytes[self.from + stride * STRIDE..to];
        let mut crc = crc32fast::Hasher::new_with_initial(self.beginnings[stride]);
        crc.update(rest);
        self.summed += rest.len();
        crc.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollscope_model::build::{NewSpan, SpansBuilder};

    fn record(names: &[String]) -> Vec<u8> {
        let mut spans = SpansBuilder::default();
        for (i, name) in names.iter().enumerate() {
            let span_id = (i as u64 + 1).to_be_bytes();
            spans.push(&NewSpan { run_id: "a", trace_id: [1; 16], span_id, name, ..NewSpan::default() });
        }
        encode(Table::Spans, &spans.finish().unwrap()).unwrap()
    }

    fn log(records: &[Vec<u8>]) -> Vec<u8> {
        let mut header = vec![0; FILE_HEADER];
        header[..8].copy_from_slice(FILE_MAGIC);
        header[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        [vec![header], records.to_vec()].concat().concat()
    }

    /// A name that looks like the start of records of this length.
    fn marks(length: u32) -> String {
        let mark = [RECORD_MAGIC.as_slice(), &length.to_le_bytes(), b"ABCD", &[1, 0, 0, 0]].concat();
        String::from_utf8(mark).unwrap().repeat(8)
    }

    /// The number of rows of each record, and the report.
    fn read(bytes: &[u8]) -> (Vec<usize>, ReplayReport) {
        let mut rows = Vec::new();
        let report = replay(bytes, |_, batch| rows.push(batch.num_rows())).unwrap();
        (rows, report)
    }

    /// Half of the bytes of this log are marks, and each claims that most of the file is its record.
    #[test]
    fn a_damaged_record_full_of_marks_costs_a_few_readings_of_the_file() {
        let size = |n: u32| log(&[record(&(0..n).map(|i| format!("{i}{}", marks(0))).collect::<Vec<_>>())]).len();
        let mut worst = 0;
        for n in [500, 2_000] {
            let claimed = (size(n) as u32 * 3 / 4) & 0x7f7f_7f7f;
            let names: Vec<String> = (0..n).map(|i| format!("{i}{}", marks(claimed))).collect();
            let good = record(&["after".into(), "it".into()]);
            let mut bytes = log(&[record(&names), good.clone(), good.clone()]);
            assert_eq!(read(&bytes).1.checksummed, bytes.len() - FILE_HEADER - 3 * RECORD_HEADER);
            bytes[FILE_HEADER + RECORD_HEADER + 100] ^= 1;
            let (rows, report) = read(&bytes);
            assert_eq!(rows, [2, 2], "what follows is found");
            assert_eq!((report.damage.len(), report.torn.is_none()), (1, true));
            assert_eq!(report.damage[0].to, bytes.len() - 2 * good.len());
            worst = worst.max(report.checksummed / bytes.len());
        }
        // Once for the damaged record, once for all beginnings, and two strides for each mark of sixteen bytes.
        assert!(worst <= 2 + 2 * STRIDE / RECORD_HEADER, "each byte was read {worst} times");
    }

    #[test]
    fn checksums_computed_from_beginnings_are_those_of_the_bytes() {
        let bytes: Vec<u8> = (0..1_000u32).map(|i| (i * i % 251) as u8).collect();
        for prepared in [0, 1, 63, 64, 130] {
            let mut sums = Sums::new(&bytes);
            sums.prepare(prepared);
            for from in (prepared..bytes.len()).step_by(37) {
                for to in (from..=bytes.len()).step_by(29).chain([bytes.len()]) {
                    assert_eq!(sums.of_record(3, from, to), checksum(3, &bytes[from..to]), "{prepared} {from} {to}");
                }
            }
        }
    }

    /// A record of a table that this version does not know, with marks inside.
    #[test]
    fn no_record_is_looked_for_inside_one_whose_checksum_is_right() {
        let inner = record(&["inner".into()]);
        let mut outer = vec![0; RECORD_HEADER];
        outer[..4].copy_from_slice(RECORD_MAGIC);
        outer[4..8].copy_from_slice(&(inner.len() as u32).to_le_bytes());
        outer[8..12].copy_from_slice(&checksum(99, &inner).to_le_bytes());
        outer[12] = 99;
        outer.extend(inner);
        let bytes = log(&[record(&["before".into()]), outer.clone(), record(&["after".into(), "it".into()])]);
        let (rows, report) = read(&bytes);
        assert_eq!(rows, [1, 2]);
        assert_eq!((report.damage.len(), report.damage[0].to - report.damage[0].from), (1, outer.len()));
    }
}
