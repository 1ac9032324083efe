//! The index follows the store. It is made from snapshots alone: rows of the live tail that it has not seen, segments that
//! it has not covered, and runs that lost rows. Every pass is idempotent (a row is known by its id and version), so it does
//! not matter where a crash cut it off: each commit carries the list of segments that it covers, and everything after it
//! is read again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, RecordBatch};
use parking_lot::Mutex;
use rollscope_model::Table;
use rollscope_model::read::{Text, column};
use rollscope_store::{Segment, Snapshot, SnapshotSource, TableSnapshot, Vitals, identity_hashes};
use serde::{Deserialize, Serialize};
use tantivy::columnar::Column;
use tantivy::directory::error::{OpenReadError, OpenWriteError};
use tantivy::query::TermQuery;
use tantivy::schema::IndexRecordOption;
use tantivy::{DocSet, IndexWriter, Searcher, TERMINATED, TantivyDocument, TantivyError, Term};
use tokio::sync::watch;

use crate::error::SearchError;
use crate::index::{Search, guarded};
use crate::priority::give_way;
use crate::schema::{Rows, id_hash, light_columns};
use crate::split::Splits;

/// Memory of the writer, for all its threads.
const WRITER_BYTES: usize = 128 << 20;
/// The index is never further behind than this, as long as it keeps up.
const COMMIT_EVERY: Duration = Duration::from_millis(300);
/// In a long catching-up, a commit after this many conversations: a crash does not start from the beginning.
const COMMIT_ROWS: u64 = 50_000;
/// After a failure.
const REST: Duration = Duration::from_secs(2);

/// How often a pass of the command line is tried.
const TRIES: usize = 3;

/// What a commit covers.
#[derive(Default, Serialize, Deserialize)]
struct Covered {
    /// Paths of segments, with their runs.
    #[serde(default)]
    runs_of: BTreeMap<String, Vec<String>>,
    /// Runs that have conversations in the index.
    #[serde(default)]
    runs: BTreeSet<String>,
}

/// What became of following, for health and for who waits.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The snapshot that the index shows.
    pub version: u64,
    pub added: u64,
    pub failure: Option<String>,
}

/// Keeps an index up to date on its own thread. Dropping it ends the thread after a last commit.
pub struct Follower {
    stop: watch::Sender<bool>,
    status: Arc<Mutex<Status>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Follower {
    /// Must be called inside a tokio runtime: segments are read through it.
    pub fn start(
        search: Search,
        source: Arc<dyn SnapshotSource>,
        changes: watch::Receiver<u64>,
        vitals: &Vitals,
    ) -> Result<Follower, SearchError> {
        let (stop, stopped) = watch::channel(false);
        let status = Arc::new(Mutex::new(Status::default()));
        let handle = tokio::runtime::Handle::current();
        let shared = status.clone();
        let thread =
            vitals.thread("search-index", move || follow(&search, &*source, changes, stopped, &handle, &shared))?;
        Ok(Follower { stop, status, thread: Some(thread) })
    }

    pub fn status(&self) -> Status {
        self.status.lock().clone()
    }

    /// Asks the thread to end, and waits for it.
    pub fn stop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
    }
}

fn follow(
    search: &Search,
    source: &dyn SnapshotSource,
    mut changes: watch::Receiver<u64>,
    mut stopped: watch::Receiver<bool>,
    handle: &tokio::runtime::Handle,
    status: &Mutex<Status>,
) {
    give_way();
    // Before anything is written: damage would go into merged files, and a commit that meets it ends the process.
    let ending = stopped.clone();
    let is_over = || *ending.borrow();
    if search.is_damaged(&is_over) {
        build_again(search);
    }
    changes.mark_changed();
    while !*stopped.borrow() {
        let followed = guarded(|| {
            let mut indexer = Indexer::new(search)?;
            loop {
                let ended = handle.block_on(async {
                    tokio::select! {
                        changed = changes.changed() => changed.is_err(),
                        // The value, not the change: a change that the pause below took notice of would be waited for in vain.
                        _ = stopped.wait_for(|stop| *stop) => true,
                    }
                });
                let started = Instant::now();
                changes.borrow_and_update();
                let snapshot = source.snapshot();
                let passed = indexer.pass(&snapshot, handle);
                indexer.commit()?;
                passed?;
                {
                    let mut status = status.lock();
                    *status = Status { version: snapshot.version, added: indexer.added, failure: None };
                }
                if ended || *stopped.borrow() {
                    return Ok(());
                }
                drop(snapshot);
                // What comes meanwhile goes into the next commit.
                if let Some(left) = COMMIT_EVERY.checked_sub(started.elapsed()) {
                    let _ = handle
                        .block_on(async { tokio::time::timeout(left, stopped.wait_for(|stop| *stop)).await.is_ok() });
                }
            }
        });
        match followed {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(%error, "the search index cannot read new conversations; trying again");
                status.lock().failure = Some(error.to_string());
                changes.mark_changed();
                std::thread::sleep(REST);
                mend(search, &error, &is_over);
            }
        }
    }
}

/// Brings an index up to a snapshot, once. For the command line.
pub fn catch_up(search: &Search, snapshot: &Snapshot, handle: &tokio::runtime::Handle) -> Result<u64, SearchError> {
    let pass = || {
        let mut indexer = Indexer::new(search)?;
        indexer.pass(snapshot, handle)?;
        indexer.commit()?;
        indexer.wait_for_merges()?;
        Ok(indexer.added)
    };
    let mut tries = 0;
    loop {
        tries += 1;
        match guarded(pass) {
            Err(error) if tries < TRIES && mend(search, &error, &|| false) => {}
            done => return done,
        }
    }
}

/// After a failure: what can be done, so that it does not come again. Was there anything?
fn mend(search: &Search, error: &SearchError, is_over: &dyn Fn() -> bool) -> bool {
    match error {
        // A commit that failed has left it.
        SearchError::Index(TantivyError::OpenWriteError(OpenWriteError::FileAlreadyExists(_))) => {
            search.collect_garbage().is_ok()
        }
        SearchError::Index(TantivyError::OpenReadError(OpenReadError::FileDoesNotExist(_))) => build_again(search),
        error => !error.is_of_the_system() && search.is_damaged(is_over) && build_again(search),
    }
}

/// The store is read again. `false`: the index is as it was.
fn build_again(search: &Search) -> bool {
    tracing::warn!("the search index is damaged; it is built again");
    search.start_over().inspect_err(|error| tracing::warn!(%error, "the search index cannot be built again")).is_ok()
}

struct Indexer<'s> {
    search: &'s Search,
    writer: Option<IndexWriter>,
    searcher: Searcher,
    covered: Covered,
    /// The tail as the last pass saw it. Batches are identified by the address of their text in memory, which holding them keeps true.
    seen: HashMap<Address, RecordBatch>,
    /// Ids and versions added since the last commit, which no searcher sees yet.
    pending: HashMap<u64, u64>,
    dirty: bool,
    added: u64,
}

impl<'s> Indexer<'s> {
    fn new(search: &'s Search) -> Result<Indexer<'s>, SearchError> {
        let inner = &search.inner;
        // They sleep while there is nothing to add; in a burst the index is what is behind.
        let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(1, 4);
        let writer = inner.index.writer_with_num_threads(threads, WRITER_BYTES)?;
        inner.reader.reload()?;
        let payload = inner.index.load_metas()?.payload;
        let covered = payload.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        Ok(Indexer {
            search,
            writer: Some(writer),
            searcher: inner.reader.searcher(),
            covered,
            seen: HashMap::new(),
            pending: HashMap::new(),
            dirty: false,
            added: 0,
        })
    }

    fn writer(&self) -> &IndexWriter {
        self.writer.as_ref().expect("the writer lives as long as the indexer")
    }

    /// Looks at everything in a snapshot that may not be in the index yet.
    fn pass(&mut self, snapshot: &Snapshot, handle: &tokio::runtime::Handle) -> Result<(), SearchError> {
        let Some(table) = snapshot.tables.get(&Table::Conversations) else { return Ok(()) };
        let mut seen = HashMap::with_capacity(table.tail.len());
        for batch in &table.tail {
            let address = address(batch);
            if !address.is_some_and(|address| self.seen.contains_key(&address)) {
                self.add(batch)?;
            }
            seen.extend(address.map(|address| (address, batch.clone())));
        }
        self.seen = seen;
        // One that cannot be read keeps no other from being found.
        let mut covered = Ok(());
        for segment in &table.segments {
            if !self.covered.runs_of.contains_key(&segment.path) {
                covered = covered.and(self.cover(snapshot, table, segment, handle));
            }
        }
        covered?;
        self.forget_runs(table);
        self.forget(snapshot, table, handle)
    }

    /// Runs of which nothing is left.
    fn forget_runs(&mut self, table: &TableSnapshot) {
        let mut live: BTreeSet<&str> = table.segments.iter().flat_map(|s| s.runs()).collect();
        for batch in &table.tail {
            live.extend(column::<Text>(batch, "run_id").iter().flat_map(Text::distinct));
        }
        let gone: Vec<String> = self.covered.runs.iter().filter(|r| !live.contains(r.as_str())).cloned().collect();
        for run in gone {
            self.writer().delete_term(Term::from_field_text(self.search.inner.fields.run, &run));
            self.covered.runs.remove(&run);
            self.dirty = true;
        }
    }

    /// The rows of a batch that are new or changed go in; `messages` must be among the columns.
    fn add(&mut self, batch: &RecordBatch) -> Result<(), SearchError> {
        let rows = Rows::new(batch);
        for row in 0..rows.len() {
            self.add_row(&rows, row)?;
        }
        Ok(())
    }

    fn add_row(&mut self, rows: &Rows, row: usize) -> Result<(), SearchError> {
        let id = rows.id(row);
        let version = rows.version(row);
        match self.known(id)? {
            Some(known) if known == version => return Ok(()),
            Some(_) => {
                self.writer().delete_term(Term::from_field_text(self.search.inner.fields.id, id));
            }
            None => {}
        }
        let document: TantivyDocument = rows.document(&self.search.inner.fields, row);
        self.writer().add_document(document)?;
        self.pending.insert(id_hash(id), version);
        if let Some(run) = rows.text_at("run_id", row)
            && !self.covered.runs.contains(run)
        {
            self.covered.runs.insert(run.to_string());
        }
        self.dirty = true;
        self.added += 1;
        Ok(())
    }

    /// The version under which a conversation is in the index.
    fn known(&self, id: &str) -> Result<Option<u64>, SearchError> {
        if let Some(version) = self.pending.get(&id_hash(id)) {
            return Ok(Some(*version));
        }
        let term = Term::from_field_text(self.search.inner.fields.id, id);
        for segment in self.searcher.segment_readers() {
            let inverted = segment.inverted_index(self.search.inner.fields.id)?;
            let Some(mut postings) = inverted.read_postings(&term, IndexRecordOption::Basic)? else { continue };
            while postings.doc() != TERMINATED {
                if !segment.is_deleted(postings.doc()) {
                    let versions: Column<u64> = segment.fast_fields().u64("version")?;
                    return Ok(versions.first(postings.doc()));
                }
                postings.advance();
            }
        }
        Ok(None)
    }

    /// A segment that is new to us. Most of the time it is the tail that we have seen, flushed, or segments that we know,
    /// merged: then its messages need not be read.
    fn cover(
        &mut self,
        snapshot: &Snapshot,
        table: &TableSnapshot,
        segment: &Segment,
        handle: &tokio::runtime::Handle,
    ) -> Result<(), SearchError> {
        let read = |columns: &[&str]| handle.block_on(snapshot.read_segment(Table::Conversations, segment, columns));
        let (mut missing, mut others) = (false, false);
        'look: for batch in read(&light_columns())? {
            let batch = batch?;
            let replaced = replaced(table, &batch);
            let rows = Rows::new(&batch);
            for row in 0..rows.len() {
                match if replaced(row) { None } else { Some(self.known(rows.id(row))?) } {
                    Some(None) => missing = true,
                    Some(Some(version)) if version != rows.version(row) => (missing, others) = (true, true),
                    _ => others = true,
                }
                if missing && others {
                    break 'look;
                }
            }
        }
        if missing && !others && Splits::new(self.search, snapshot, handle).take(segment, self.writer()) {
            self.covered.runs.extend(segment.runs().map(str::to_string));
            self.added += segment.rows;
            self.dirty = true;
            self.commit()?;
        } else if missing {
            let schema = Table::Conversations.schema();
            let all: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
            let mut since = self.added;
            for batch in read(&all)? {
                let batch = batch?;
                let replaced = replaced(table, &batch);
                let rows = Rows::new(&batch);
                for row in (0..rows.len()).filter(|row| !replaced(*row)) {
                    self.add_row(&rows, row)?;
                }
                if self.added - since > COMMIT_ROWS {
                    since = self.added;
                    self.commit()?;
                }
            }
        }
        self.covered.runs_of.insert(segment.path.clone(), segment.runs().map(str::to_string).collect());
        self.dirty = true;
        Ok(())
    }

    /// Segments that are gone: where their rows are not elsewhere (a run was deleted, retention, damage), they leave the
    /// index too.
    fn forget(
        &mut self,
        snapshot: &Snapshot,
        table: &TableSnapshot,
        handle: &tokio::runtime::Handle,
    ) -> Result<(), SearchError> {
        let live: HashSet<&str> = table.segments.iter().map(|s| s.path.as_str()).collect();
        let gone = self.covered.runs_of.extract_if(.., |path, _| !live.contains(path.as_str()));
        let runs: BTreeSet<String> = gone.flat_map(|(_, runs)| runs).collect();
        if runs.is_empty() {
            return Ok(());
        }
        self.dirty = true;
        self.commit()?;
        for run in runs {
            // Merged and flushed segments hold what the old ones held: most of the time nothing is lost.
            let of_run = table.segments.iter().filter_map(|s| s.part(&run));
            let stored = of_run.map(|part| part.rows).sum::<u64>().saturating_sub(table.replaced.len() as u64);
            let indexed = self.searcher.doc_freq(&Term::from_field_text(self.search.inner.fields.run, &run))?;
            if indexed <= stored {
                continue;
            }
            let mut ids: HashSet<u64> = HashSet::new();
            for batch in &table.tail {
                let rows = Rows::new(batch);
                ids.extend(
                    (0..rows.len()).filter(|r| rows.text_at("run_id", *r) == Some(&*run)).map(|r| id_hash(rows.id(r))),
                );
            }
            for segment in table.segments.iter().filter(|s| s.part(&run).is_some()) {
                for batch in handle.block_on(snapshot.read_segment(Table::Conversations, segment, &["id"]))? {
                    let batch = batch?;
                    let rows = Rows::new(&batch);
                    ids.extend((0..rows.len()).map(|row| id_hash(rows.id(row))));
                }
            }
            self.retain(&run, &ids)?;
        }
        Ok(())
    }

    /// Drops every conversation of a run that is not in `ids`.
    fn retain(&mut self, run: &str, ids: &HashSet<u64>) -> Result<(), SearchError> {
        let fields = &self.search.inner.fields;
        let term = Term::from_field_text(fields.run, run);
        if ids.is_empty() {
            self.writer().delete_term(term);
            self.dirty = true;
            return Ok(());
        }
        let query = TermQuery::new(term, IndexRecordOption::Basic);
        let found = self.searcher.search(&query, &tantivy::collector::DocSetCollector)?;
        for address in found {
            let segment = self.searcher.segment_reader(address.segment_ord);
            let hashes: Column<u64> = segment.fast_fields().u64("id_hash")?;
            if hashes.first(address.doc_id).is_some_and(|hash| !ids.contains(&hash)) {
                let row = self.search.row_id(&self.searcher, address)?;
                self.writer().delete_term(Term::from_field_text(fields.id, &row));
                self.dirty = true;
            }
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), SearchError> {
        if !self.dirty {
            return Ok(());
        }
        let payload = serde_json::to_string(&self.covered).expect("a list of paths is plain data");
        let writer = self.writer.as_mut().expect("the writer lives as long as the indexer");
        let mut prepared = writer.prepare_commit()?;
        prepared.set_payload(&payload);
        prepared.commit()?;
        self.dirty = false;
        self.pending.clear();
        self.search.inner.reader.reload()?;
        self.searcher = self.search.inner.reader.searcher();
        Ok(())
    }

    fn wait_for_merges(&mut self) -> Result<(), SearchError> {
        if let Some(writer) = self.writer.take() {
            writer.wait_merging_threads()?;
        }
        self.search.inner.reader.reload()?;
        Ok(())
    }
}

/// Which rows of a segment's batch newer rows replace.
fn replaced<'a>(table: &'a TableSnapshot, batch: &RecordBatch) -> impl Fn(usize) -> bool + use<'a> {
    let hashes = if table.replaced.is_empty() { Vec::new() } else { identity_hashes(Table::Conversations, batch) };
    move |row| hashes.get(row).is_some_and(|hash| table.replaced.contains(hash))
}

/// Where the text of a batch is in memory: its offsets and its bytes, and from which row on how many it has.
type Address = (usize, usize, usize, usize);

/// That of the same batch is the same, that of an equal one is not.
fn address(batch: &RecordBatch) -> Option<Address> {
    let column = batch.column_by_name("messages")?.to_data();
    let [offsets, values] = column.buffers() else { return None };
    Some((offsets.as_ptr() as usize, values.as_ptr() as usize, column.offset(), column.len()))
}
