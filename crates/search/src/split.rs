//! Splits: in a lake, the index of one segment of conversations, in a tar file beside it. The node that wrote the segment makes it, and
//! whoever comes later takes it into its own index instead of reading and cutting up the texts once more.
//!
//! A split holds the files of one or a few tantivy segments (`0/idx`, `0/term`, ...) and, at its end, [`About`] them. It is not needed:
//! one that is missing, damaged or of another version is passed over.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use rollscope_model::Table;
use rollscope_store::{Segment, Snapshot, SnapshotSource, StoreError, Vitals};
use serde::{Deserialize, Serialize};
use tantivy::columnar::Column;
use tantivy::directory::TerminatingWrite;
use tantivy::index::SegmentComponent;
use tantivy::merge_policy::NoMergePolicy;
use tantivy::{Index, IndexSettings, IndexWriter, SegmentReader};
use tokio::runtime::Handle;
use tokio::sync::watch;
use xxhash_rust::xxh3::Xxh3;

use crate::error::SearchError;
use crate::index::Search;
use crate::priority::give_way;
use crate::schema::{self, Rows, VERSION};

/// Smaller segments have no split: reading their texts takes no longer than asking for it.
const FEWEST_ROWS: u64 = 200;
/// Memory of the writer of a split. What does not fit becomes another part.
const WRITER_BYTES: usize = 32 << 20;
/// Most parts: a segment has far fewer texts than would fill them.
const MAX_PARTS: usize = 1000;
/// How often the split of a segment is tried.
const MOST_TRIES: u32 = 3;
/// How long new segments may wait for their splits.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// What is being made or read, beside the index.
const SCRATCH: &str = "splits";
const ABOUT: &str = "about.json";
const MAX_ABOUT_BYTES: u64 = 1 << 20;

const FILES: [SegmentComponent; 6] = [
    SegmentComponent::Postings,
    SegmentComponent::Positions,
    SegmentComponent::FastFields,
    SegmentComponent::FieldNorms,
    SegmentComponent::Terms,
    SegmentComponent::Store,
];

#[derive(Serialize, Deserialize)]
struct About {
    /// Of the fields, and of tantivy's files.
    version: String,
    /// Conversations of each part.
    parts: Vec<u32>,
    /// xxh3 of all files before this one, with their names.
    checksum: u64,
}

fn version() -> String {
    format!("{VERSION}, {}", tantivy::version_string())
}

/// The splits of a lake, as a process sees them that has its index in a folder of this machine.
pub(crate) struct Splits<'s> {
    pub snapshot: &'s Snapshot,
    pub handle: &'s Handle,
    /// A folder for files that are being made or read.
    pub scratch: PathBuf,
}

impl<'s> Splits<'s> {
    pub fn new(search: &Search, snapshot: &'s Snapshot, handle: &'s Handle) -> Splits<'s> {
        Splits { snapshot, handle, scratch: search.inner.dir.with_file_name(SCRATCH) }
    }

    /// Takes the split of a segment into an index that has none of its conversations. `false`: there is none. The next commit makes it visible.
    pub fn take(&self, segment: &Segment, writer: &IndexWriter) -> bool {
        if segment.rows < FEWEST_ROWS {
            return false;
        }
        let taken = self.scratch("taken").and_then(|tar| {
            if !self.handle.block_on(self.snapshot.read_split(segment, &tar))? {
                return Ok(false);
            }
            let mut file = File::open(&tar)?;
            // tantivy trusts its files.
            let added = catch_unwind(AssertUnwindSafe(|| add(&mut file, writer, segment.rows)));
            let added = added.unwrap_or_else(|_| Err(io::Error::other("it cannot be read").into()));
            std::fs::remove_file(&tar)?;
            added?;
            tracing::debug!(segment = segment.path, rows = segment.rows, "took the split of a segment");
            Ok(true)
        });
        taken.unwrap_or_else(|error| {
            tracing::warn!(segment = segment.path, %error, "the texts of a segment are indexed here: its split cannot be used");
            false
        })
    }

    /// Makes the split of a segment and puts it beside it.
    pub fn make(&self, segment: &Segment, is_over: &dyn Fn() -> bool) -> Result<(), SearchError> {
        let schema = Table::Conversations.schema();
        let all: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        let rows = self.handle.block_on(self.snapshot.read_segment(Table::Conversations, segment, &all))?;
        let (folder, tar) = (self.scratch("made.index")?, self.scratch("made")?);
        make(rows.take_while(|_| !is_over()), &folder, &tar)?;
        if is_over() {
            return Ok(());
        }
        self.handle.block_on(self.snapshot.keep_split(segment, &tar))?;
        std::fs::remove_dir_all(&folder)?;
        Ok(std::fs::remove_file(&tar)?)
    }

    /// A name for something new. It may hold texts of conversations: the folder is for its owner alone.
    fn scratch(&self, name: &str) -> Result<PathBuf, SearchError> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.scratch)?;
        let path = self.scratch.join(name);
        match if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) } {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(path),
        }
    }
}

fn make(
    rows: impl Iterator<Item = Result<RecordBatch, StoreError>>,
    folder: &Path,
    tar: &Path,
) -> Result<(), SearchError> {
    std::fs::create_dir(folder)?;
    let (schema, fields) = schema::schema();
    let index = Index::builder().schema(schema).settings(IndexSettings::default()).create_in_dir(folder)?;
    Search::know_words(&index);
    let mut writer: IndexWriter = index.writer_with_num_threads(1, WRITER_BYTES)?;
    writer.set_merge_policy(Box::new(NoMergePolicy));
    for batch in rows {
        let batch = batch?;
        let rows = Rows::new(&batch);
        for row in 0..rows.len() {
            writer.add_document(rows.document(&fields, row))?;
        }
    }
    writer.commit()?;
    writer.wait_merging_threads()?;
    let mut archive = tar::Builder::new(File::create(tar)?);
    let (mut parts, mut checksum) = (Vec::new(), Xxh3::new());
    for (part, segment) in index.searchable_segments()?.into_iter().enumerate() {
        for file in FILES {
            let bytes = segment.open_read(file.clone()).map_err(tantivy::TantivyError::from)?.read_bytes()?;
            let name = format!("{part}/{file}");
            append(&mut archive, &name, &bytes)?;
            checksum.update(name.as_bytes());
            checksum.update(&bytes);
        }
        parts.push(segment.meta().max_doc());
    }
    let about = About { version: version(), parts, checksum: checksum.digest() };
    append(&mut archive, ABOUT, &serde_json::to_vec(&about).expect("it is plain data"))?;
    Ok(archive.into_inner()?.flush()?)
}

fn append(archive: &mut tar::Builder<File>, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o600);
    archive.append_data(&mut header, name, bytes)
}

/// Adds a split to an index, or nothing of it.
fn add(tar: &mut impl Read, writer: &IndexWriter, rows: u64) -> Result<(), SearchError> {
    let damaged = |why: &str| SearchError::Io(io::Error::new(io::ErrorKind::InvalidData, why.to_string()));
    let mut archive = tar::Archive::new(tar);
    let (mut segments, mut checksum, mut about) = (Vec::new(), Xxh3::new(), None);
    // Files of segments that are dropped here are deleted by tantivy.
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.to_string_lossy().into_owned();
        if name == ABOUT {
            let mut text = Vec::new();
            entry.take(MAX_ABOUT_BYTES).read_to_end(&mut text)?;
            about = Some(serde_json::from_slice::<About>(&text).map_err(|e| damaged(&e.to_string()))?);
            break;
        }
        let expected = (segments.len().saturating_sub(1)..=segments.len()).filter(|part| *part < MAX_PARTS);
        let mut expected = expected.flat_map(|part| FILES.map(|file| (part, file)));
        let found = expected.find(|(part, file)| name == format!("{part}/{file}"));
        let (part, file) = found.ok_or_else(|| damaged("unexpected file"))?;
        if part == segments.len() {
            segments.push(writer.new_segment());
        }
        checksum.update(name.as_bytes());
        let mut out = segments[part].open_write(file).map_err(tantivy::TantivyError::from)?;
        io::copy(&mut Hashed(&mut entry, &mut checksum), &mut out)?;
        out.terminate()?;
    }
    let about = about.ok_or_else(|| damaged("it has no end"))?;
    if about.version != version() {
        return Err(damaged("it is of another version"));
    }
    let stated: u64 = about.parts.iter().map(|rows| u64::from(*rows)).sum();
    if about.checksum != checksum.digest() || about.parts.len() != segments.len() || stated != rows {
        return Err(damaged("it is damaged"));
    }
    let parts: Vec<_> = segments.into_iter().zip(about.parts).map(|(part, rows)| part.with_max_doc(rows)).collect();
    for part in &parts {
        let hashes: Column<u64> = SegmentReader::open(part)?.fast_fields().u64("id_hash")?;
        if hashes.num_docs() != part.meta().max_doc() {
            return Err(damaged("it does not have as many conversations as it says"));
        }
    }
    Ok(parts.iter().try_for_each(|part| writer.add_segment(part.meta().clone()))?)
}

/// Hashes what is read.
struct Hashed<'a, R>(&'a mut R, &'a mut Xxh3);

impl<R: Read> Read for Hashed<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.0.read(buffer)?;
        self.1.update(&buffer[..length]);
        Ok(length)
    }
}

/// In a lake: makes splits of the segments that this process writes, on a thread of its own.
pub struct Splitter {
    stop: watch::Sender<bool>,
    thread: std::thread::JoinHandle<()>,
}

impl Splitter {
    /// Must be called inside a tokio runtime.
    pub fn start(search: Search, source: Arc<dyn SnapshotSource>, vitals: &Vitals) -> Result<Splitter, SearchError> {
        let (stop, mut stopped) = watch::channel(false);
        let handle = Handle::current();
        let thread = vitals.thread("search-splits", move || {
            give_way();
            let mut tries = HashMap::new();
            let wait = async |stopped: &mut watch::Receiver<bool>| {
                tokio::time::timeout(LOOK_EVERY, stopped.wait_for(|stop| *stop)).await.is_err()
            };
            while handle.block_on(wait(&mut stopped)) {
                make_new(&search, &source.snapshot(), &handle, &mut tries, &|| *stopped.borrow());
            }
        })?;
        Ok(Splitter { stop, thread })
    }

    /// Asks the thread to end, and waits for it.
    pub fn stop(self) {
        let _ = self.stop.send(true);
        let _ = self.thread.join();
    }
}

/// Makes the splits of segments that have none yet. `tries`: of each segment that was seen before.
fn make_new(
    search: &Search,
    snapshot: &Snapshot,
    handle: &Handle,
    tries: &mut HashMap<String, u32>,
    is_over: &dyn Fn() -> bool,
) {
    let Some(table) = snapshot.tables.get(&Table::Conversations) else { return };
    tries.retain(|path, _| table.segments.iter().any(|segment| segment.path == *path));
    let splits = Splits::new(search, snapshot, handle);
    for segment in &table.segments {
        if is_over() {
            return;
        }
        if segment.rows < FEWEST_ROWS || !snapshot.is_own(segment) {
            continue;
        }
        let tried = tries.entry(segment.path.clone()).or_default();
        if *tried == MOST_TRIES {
            continue;
        }
        *tried += 1;
        match splits.make(segment, is_over) {
            Ok(()) => *tried = MOST_TRIES,
            Err(error) if *tried == MOST_TRIES => tracing::warn!(
                segment = segment.path, %error, "cannot make the index of a segment for other nodes; they index its texts themselves"
            ),
            Err(error) => {
                tracing::debug!(segment = segment.path, %error, "cannot make the index of a segment; trying again")
            }
        }
    }
}

#[cfg(test)]
mod tests;
