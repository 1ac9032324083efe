//! The live tail: rows that are logged but not yet in a segment, and the bookkeeping that keeps every row once.
//!
//! A table has an *active* generation, which takes rows, and, while a flush is running, a *sealed* one, which is being
//! written. A batch stays as it arrived, as one chunk; rows that turn out to be duplicates, or that a newer row replaces,
//! are marked dead and left out of what readers see. The log holds the same rows in the same order, without the duplicates, so replaying it
//! gives the same tail.

mod theirs;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, OnceLock};

use arrow::array::cast::AsArray;
use arrow::array::{Array, BooleanArray, RecordBatch};
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::Int64Type;
use rollscope_model::Table;
use rollscope_model::read::{Text, column};
use rollscope_model::tables::Keep;

use crate::attr_types;
use crate::contents::{Contents, batch_bytes};
use crate::error::StoreError;
use crate::identity::{IdentitySet, identity_hashes, open_rows};
use crate::manifest::{AttrTypes, MAX_ATTR_KEYS, Manifest, Part, Segment};
use crate::segment::runs;
use crate::snapshot::{Snapshot, TableSnapshot};

pub(crate) use theirs::{Floors, LogPart, Theirs};

/// A batch in the tail.
pub(crate) struct Chunk {
    pub batch: RecordBatch,
    pub keys: Vec<u128>,
    open: Vec<bool>,
    dead: Vec<bool>,
    dead_count: usize,
    visible: OnceLock<RecordBatch>,
    /// Of what is visible.
    contents: Arc<OnceLock<Contents>>,
    pub bytes: usize,
    /// [`State::version`] that its newest row came with.
    version: u64,
}

impl Chunk {
    fn new(batch: RecordBatch, keys: Vec<u128>, open: Vec<bool>, bytes: usize, version: u64) -> Chunk {
        let (visible, contents) = (OnceLock::new(), Arc::default());
        Chunk { batch, keys, open, dead: Vec::new(), dead_count: 0, visible, contents, bytes, version }
    }

    fn kill(&mut self, row: usize) {
        if self.dead.is_empty() {
            self.dead = vec![false; self.batch.num_rows()];
        }
        if !std::mem::replace(&mut self.dead[row], true) {
            self.dead_count += 1;
            self.visible = OnceLock::new();
            self.contents = Arc::default();
        }
    }

    fn is_dead(&self, row: usize) -> bool {
        self.dead.get(row).copied().unwrap_or(false)
    }

    fn live_rows(&self) -> usize {
        self.batch.num_rows() - self.dead_count
    }

    /// The batch without its dead rows.
    pub fn visible(&self) -> RecordBatch {
        if self.dead_count == 0 {
            return self.batch.clone();
        }
        self.visible
            .get_or_init(|| {
                let live: BooleanArray = self.dead.iter().map(|d| Some(!d)).collect();
                filter_record_batch(&self.batch, &live).expect("the mask has a bit for each row")
            })
            .clone()
    }
}

/// A batch on its way into the tail, with everything that can be computed outside the lock.
pub(crate) struct Incoming {
    pub table: Table,
    pub batch: RecordBatch,
    keys: Vec<u128>,
    open: Vec<bool>,
    attr_types: AttrTypes,
}

impl Incoming {
    pub fn new(table: Table, batch: RecordBatch) -> Incoming {
        let keys = identity_hashes(table, &batch);
        let open = open_rows(table, &batch);
        let attr_types = attr_types::of(&batch);
        Incoming { table, batch, keys, open, attr_types }
    }

    fn is_open(&self, row: usize) -> bool {
        self.open.get(row).copied().unwrap_or(false)
    }
}

#[derive(Clone, Copy)]
struct Place {
    chunk: u32,
    row: u32,
    open: bool,
}

/// The keys are hashes already.
#[derive(Default)]
pub(crate) struct PassThrough(u64);

impl Hasher for PassThrough {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only u128 keys are hashed")
    }
    fn write_u128(&mut self, key: u128) {
        self.0 = key as u64;
    }
}

type Index = HashMap<u128, Place, BuildHasherDefault<PassThrough>>;

/// The identities of a segment that may hold a row that comes again.
pub(crate) struct KnownSegment {
    pub segment: Arc<Segment>,
    pub identities: Arc<IdentitySet>,
    pub open: Arc<HashSet<u128>>,
}

impl KnownSegment {
    /// `time`: of the row, where a row that comes again has the same.
    fn holds(&self, key: u128, time: Option<i64>) -> bool {
        time.is_none_or(|time| (self.segment.min_time..=self.segment.max_time).contains(&time))
            && self.identities.contains(key)
            || self.open.contains(&key)
    }
}

/// Does a row take the place of one that was there before, open or not?
fn replaces(table: Table, old_open: bool) -> bool {
    match table.keep() {
        Keep::First => false,
        Keep::FirstClosed => old_open,
        Keep::Last => true,
    }
}

/// A row of a run that says no more than that there is one: a server writes it when the first rows of a run come, and nobody has said anything
/// of the run yet.
fn says_nothing(table: Table, batch: &RecordBatch, row: usize) -> bool {
    if table != Table::Runs {
        return false;
    }
    let is_null = |name: &str| batch.column_by_name(name).is_none_or(|values| values.is_null(row));
    let status = column::<Text>(batch, "status").ok().and_then(|status| status.get(row));
    status == Some("running") && ["config", "tags", "ended_ns"].into_iter().all(is_null)
}

/// What the writer knows of a table, for recognising rows. Readers do not need it.
#[derive(Default)]
pub(crate) struct TableIndex {
    active: Index,
    sealed: Index,
    /// Chunks in the active generation, counting those admitted but not yet visible.
    chunks: u32,
}

/// What must happen to the visible state when an admitted batch is on disk.
pub(crate) struct Admitted {
    incoming: Incoming,
    dead: Vec<u32>,
    kills: Vec<(bool, Place)>,
    /// Rows that replace one of a segment, with its path, or of the generation that is becoming segments.
    replacing: Vec<(u32, Option<String>)>,
    undo: Vec<(u128, Option<Place>)>,
    pub accepted: u64,
    pub duplicates: u64,
}

impl Admitted {
    pub fn table(&self) -> Table {
        self.incoming.table
    }

    /// Nothing new in it: it needs no place in the log.
    pub fn is_empty(&self) -> bool {
        self.accepted == 0
    }

    /// What belongs in the log. A duplicate does not: when the log is read again, the row that was there first may have been deleted,
    /// and the duplicate would bring it back.
    pub fn accepted_rows(&self) -> Result<RecordBatch, StoreError> {
        let batch = &self.incoming.batch;
        if self.dead.is_empty() {
            return Ok(batch.clone());
        }
        let mut accepted = vec![true; batch.num_rows()];
        self.dead.iter().for_each(|row| accepted[*row as usize] = false);
        Ok(filter_record_batch(batch, &accepted.into())?)
    }
}

impl TableIndex {
    /// Decides for each row whether it is new, a duplicate, or replaces another. Changes only the index;
    /// [`State::publish`] makes the rest visible once the log is synced, [`TableIndex::undo`] forgets it if that fails.
    pub fn admit(&mut self, incoming: Incoming, known: &[KnownSegment]) -> Admitted {
        let table = incoming.table;
        let rows = incoming.batch.num_rows();
        let mut out = Admitted {
            incoming,
            dead: Vec::new(),
            kills: Vec::new(),
            replacing: Vec::new(),
            undo: Vec::new(),
            accepted: 0,
            duplicates: 0,
        };
        let by_time = time_is_identity(table).then(|| times(table, &out.incoming.batch));
        let chunk = self.chunks;
        for row in 0..rows {
            let key = out.incoming.keys[row];
            let open = out.incoming.is_open(row);
            // A guess comes late where a log is read again, or two nodes were sent rows of a run.
            let is_guess = says_nothing(table, &out.incoming.batch, row);
            let replaces = |old_open| replaces(table, old_open) && !is_guess;
            if let Some(old) = self.active.get(&key) {
                if !replaces(old.open) {
                    out.dead.push(row as u32);
                    continue;
                }
                out.kills.push((false, *old));
            } else if let Some(old) = self.sealed.get(&key) {
                if !replaces(old.open) {
                    out.dead.push(row as u32);
                    continue;
                }
                out.kills.push((true, *old));
                out.replacing.push((row as u32, None));
            } else if let Some(old) = known.iter().find(|s| s.holds(key, by_time.map(|times| times[row]))) {
                if !replaces(old.open.contains(&key)) {
                    out.dead.push(row as u32);
                    continue;
                }
                out.replacing.push((row as u32, Some(old.segment.path.clone())));
            }
            let place = Place { chunk, row: row as u32, open };
            out.undo.push((key, self.active.insert(key, place)));
        }
        out.duplicates = out.dead.len() as u64;
        out.accepted = rows as u64 - out.duplicates;
        self.chunks += u32::from(out.accepted > 0);
        out
    }

    /// Takes back what [`TableIndex::admit`] did. In reverse order of admission.
    pub fn undo(&mut self, admitted: Admitted) {
        for (key, old) in admitted.undo.into_iter().rev() {
            match old {
                Some(place) => self.active.insert(key, place),
                None => self.active.remove(&key),
            };
        }
        self.chunks -= u32::from(admitted.accepted > 0);
    }

    pub fn drop_sealed(&mut self) {
        self.sealed = Index::default();
    }
}

/// For these a duplicate has the same time, so segments of other times need not be checked.
fn time_is_identity(table: Table) -> bool {
    matches!(table, Table::Spans | Table::Metrics | Table::Series)
}

pub(crate) fn times(table: Table, batch: &RecordBatch) -> &[i64] {
    batch.column_by_name(table.time_column()).expect("declared").as_primitive::<Int64Type>().values()
}

fn run_of(batch: &RecordBatch, row: usize) -> &str {
    runs(batch).at(row)
}

/// Segments of the manifest that may hold rows of this batch.
pub(crate) fn candidates<'a>(incoming: &Incoming, manifest: &'a Manifest) -> Vec<&'a Arc<Segment>> {
    if manifest.segments.is_empty() || incoming.keys.is_empty() {
        return Vec::new();
    }
    let extent = Extent::of(incoming.table, [&incoming.batch]);
    manifest.segments_of(incoming.table).filter(|s| extent.may_meet(s)).collect()
}

/// Of which runs rows are and, where a row that comes again has the same time, from when to when.
struct Extent<'a> {
    runs: HashSet<&'a str>,
    range: Option<(i64, i64)>,
}

impl<'a> Extent<'a> {
    fn of(table: Table, batches: impl IntoIterator<Item = &'a RecordBatch>) -> Extent<'a> {
        let mut extent =
            Extent { runs: HashSet::new(), range: time_is_identity(table).then_some((i64::MAX, i64::MIN)) };
        for batch in batches {
            extent.runs.extend(runs(batch).distinct());
            if let Some((first, last)) = &mut extent.range {
                for time in times(table, batch) {
                    (*first, *last) = ((*first).min(*time), (*last).max(*time));
                }
            }
        }
        extent
    }

    /// May a segment hold one of these rows?
    fn may_meet(&self, segment: &Segment) -> bool {
        // The end of a span may report another start than its beginning did.
        let is_in_time = segment.has_open
            || self.range.is_none_or(|(first, last)| segment.min_time <= last && first <= segment.max_time);
        is_in_time && self.runs.iter().any(|run| segment.part(run).is_some())
    }
}

/// Of which runs rows of all tables are, and when.
pub(crate) struct Extents<'a>(Vec<Extent<'a>>);

impl<'a> Extents<'a> {
    pub fn of(rows: impl Iterator<Item = &'a Arc<Incoming>> + Clone) -> Extents<'a> {
        let of = |table| Extent::of(table, rows.clone().filter(|rows| rows.table == table).map(|rows| &rows.batch));
        Extents(Table::ALL.map(of).into())
    }

    /// May a segment hold one of these rows?
    pub fn may_meet(&self, segment: &Segment) -> bool {
        Table::from_name(&segment.table).is_some_and(|table| self.0[table as usize].may_meet(segment))
    }
}

/// Rows in segments that newer rows replace, and where to look for them.
#[derive(Clone, Default)]
pub(crate) struct Replaced {
    pub keys: HashSet<u128>,
    /// Paths of segments that hold such a row, as long as they are not merged.
    found_in: HashSet<String>,
    /// The path is not known of each.
    is_elsewhere: bool,
    /// For each run, the first and the last time that such a row can have.
    ranges: HashMap<String, (i64, i64)>,
    /// How many of `keys` each run has.
    counts: HashMap<String, u64>,
}

impl Replaced {
    fn add(&mut self, key: u128, run: &str, time: Option<i64>, path: Option<String>) {
        if self.keys.insert(key) {
            count(&mut self.counts, run);
        }
        self.is_elsewhere |= path.is_none();
        self.found_in.extend(path);
        let (first, last) = time.map_or((i64::MIN, i64::MAX), |time| (time, time));
        match self.ranges.get_mut(run) {
            Some(range) => *range = (range.0.min(first), range.1.max(last)),
            None => drop(self.ranges.insert(run.to_string(), (first, last))),
        }
    }

    /// The row that replaced it is gone.
    fn forget(&mut self, key: u128, run: &str) {
        if self.keys.remove(&key)
            && let Some(count) = self.counts.get_mut(run)
        {
            *count = count.saturating_sub(1);
        }
    }

    /// The segments that may hold such a row.
    pub fn in_segments(&self, table: Table, manifest: &Manifest) -> Vec<Arc<Segment>> {
        let of_table = || manifest.segments_of(table);
        let named = of_table().filter(|s| self.found_in.contains(&s.path)).count();
        let is_all = !self.is_elsewhere && named == self.found_in.len();
        let may_hold = |s: &&Arc<Segment>| if is_all { self.found_in.contains(&s.path) } else { self.may_be_in(s) };
        of_table().filter(may_hold).cloned().collect()
    }

    fn may_be_in(&self, segment: &Segment) -> bool {
        let is_in = |part: Part<&str>| {
            let range = self.ranges.get(part.run_id);
            range.is_some_and(|(first, last)| segment.has_open || part.min_time <= *last && *first <= part.max_time)
        };
        !self.ranges.is_empty() && segment.parts().any(is_in)
    }
}

fn count(counts: &mut HashMap<String, u64>, run: &str) {
    match counts.get_mut(run) {
        Some(count) => *count += 1,
        None => drop(counts.insert(run.to_string(), 1)),
    }
}

#[derive(Default)]
pub(crate) struct TableState {
    pub sealed: Vec<Chunk>,
    pub active: Vec<Chunk>,
    /// What readers leave out of segments: `replaced_by_sealed` and `replaced_by_active` together.
    pub replaced: Arc<HashSet<u128>>,
    /// How many of them each run has in segments.
    pub replaced_of: Arc<HashMap<String, u64>>,
    /// What the flush of the sealed generation takes out of segments.
    pub replaced_by_sealed: Replaced,
    /// What came since, for the flush after it: also rows that this flush is writing.
    pub replaced_by_active: Replaced,
}

impl TableState {
    /// The sealed generation is in segments now.
    pub fn drop_sealed(&mut self) {
        self.sealed = Vec::new();
        self.replaced_by_sealed = Replaced::default();
        if self.replaced.len() != self.replaced_by_active.keys.len() {
            self.replaced = Arc::new(self.replaced_by_active.keys.clone());
        }
        self.replaced_of = Arc::new(self.replaced_by_active.counts.clone());
    }
}

/// Everything readers see, behind one lock.
pub(crate) struct State {
    pub manifest: Arc<Manifest>,
    pub tables: [TableState; Table::COUNT],
    pub version: u64,
    /// Version at which the sealed generation was closed.
    pub sealed_at: u64,
    /// Rows that came with this version or an earlier one may have left the tail, or may be gone.
    pub settled: u64,
    pub attr_types: Arc<BTreeMap<Table, AttrTypes>>,
    /// When the oldest row of the active generation came.
    pub first_at: Option<std::time::Instant>,
    /// In a lake: what the logs of others hold, if this node follows them.
    pub theirs: Option<Box<Theirs>>,
}

/// Chunks below this many rows are merged when there are many.
const SMALL_CHUNK_ROWS: usize = 2048;
const SMALL_CHUNKS: usize = 64;

impl State {
    pub fn new(manifest: Manifest) -> State {
        let attr_types = manifest
            .attr_types
            .iter()
            .filter_map(|(name, types)| Some((Table::from_name(name)?, types.clone())))
            .collect();
        // Versions of an earlier process must not be taken for ours: they start at the time, in microseconds.
        let version = rollscope_model::time::now_ns() as u64 / 1000;
        State {
            manifest: Arc::new(manifest),
            tables: Default::default(),
            version,
            sealed_at: version,
            settled: version,
            attr_types: Arc::new(attr_types),
            first_at: None,
            theirs: None,
        }
    }

    /// The sealed generation of a table is in segments now.
    pub fn drop_sealed(&mut self, table: Table) {
        let rows = &mut self.tables[table as usize];
        if let Some(theirs) = &mut self.theirs {
            theirs.outdo_segments(table, &rows.sealed);
        }
        rows.drop_sealed();
    }

    /// Makes an admitted batch visible.
    pub fn publish(&mut self, admitted: Admitted) {
        if admitted.is_empty() {
            return;
        }
        let Admitted { incoming, dead, kills, replacing, .. } = admitted;
        if let Some(theirs) = &mut self.theirs {
            // Rows that are dead here are elsewhere in this node's tail or in a segment.
            theirs.make_way(&incoming, |row| dead.binary_search(&(row as u32)).is_err());
        }
        let Incoming { table, batch, keys, open, attr_types } = incoming;
        self.learn(table, &attr_types);
        let state = &mut self.tables[table as usize];
        let by_time = time_is_identity(table);
        if !replacing.is_empty() {
            let (all, counts) = (Arc::make_mut(&mut state.replaced), Arc::make_mut(&mut state.replaced_of));
            let times = by_time.then(|| times(table, &batch));
            for (row, path) in replacing {
                let row = row as usize;
                // What the flush that is running has not written yet is in no segment.
                if all.insert(keys[row]) && path.is_some() {
                    count(counts, run_of(&batch, row));
                }
                state.replaced_by_active.add(keys[row], run_of(&batch, row), times.map(|t| t[row]), path);
            }
        }
        // Nothing replaces a row of which the first stays, so its place is never needed.
        let keys = if table.keep() == Keep::First { Vec::new() } else { keys };
        let bytes = batch_bytes(&batch) + keys.len() * 16;
        let version = self.version + 1;
        let mut chunk = Chunk::new(batch, keys, open, bytes, version);
        dead.into_iter().for_each(|row| chunk.kill(row as usize));
        state.active.push(chunk);
        for (sealed, place) in kills {
            let row = place.row as usize;
            if sealed {
                let chunk = &mut state.sealed[place.chunk as usize];
                chunk.kill(row);
                // The current flush writes it anyway, and at its own time, which need not be that of the new row.
                let time = by_time.then(|| times(table, &chunk.batch)[row]);
                state.replaced_by_active.add(chunk.keys[row], run_of(&chunk.batch, row), time, None);
            } else {
                state.active[place.chunk as usize].kill(row);
            }
        }
        self.first_at.get_or_insert_with(std::time::Instant::now);
        self.version = version;
    }

    /// Merges small chunks. Only when everything admitted is visible: it moves rows to other places.
    pub fn coalesce(&mut self, indices: &mut [TableIndex; Table::COUNT]) {
        for table in Table::ALL {
            coalesce(table, &mut self.tables[table as usize], &mut indices[table as usize]);
        }
    }

    /// Which of these segments may hold rows of the tail.
    pub fn meeting<'a>(&self, table: Table, segments: impl Iterator<Item = &'a Arc<Segment>>) -> Vec<&'a Arc<Segment>> {
        let mut segments = segments.peekable();
        if segments.peek().is_none() {
            return Vec::new();
        }
        let rows = &self.tables[table as usize];
        let live = rows.sealed.iter().chain(&rows.active).filter(|chunk| chunk.live_rows() > 0);
        let extent = Extent::of(table, live.map(|chunk| &chunk.batch));
        segments.filter(|segment| extent.may_meet(segment)).collect()
    }

    /// Compares the tail with segments that came after its rows, from other writers. A row that is there already leaves the tail, or takes
    /// the place of the other one, as if it had come now. Returns how many have left.
    pub fn settle(&mut self, table: Table, index: &mut TableIndex, known: &[KnownSegment]) -> u64 {
        let by_time = time_is_identity(table);
        let TableState { sealed, active, replaced, replaced_of, replaced_by_sealed, replaced_by_active } =
            &mut self.tables[table as usize];
        let mut left = 0;
        for is_active in [false, true] {
            let (chunks, places) =
                if is_active { (&mut *active, &mut index.active) } else { (&mut *sealed, &mut index.sealed) };
            for chunk in chunks {
                // Those of rows that nothing replaces are not kept.
                let hashes = (table.keep() == Keep::First).then(|| identity_hashes(table, &chunk.batch));
                for row in 0..chunk.batch.num_rows() {
                    let key = hashes.as_ref().unwrap_or(&chunk.keys)[row];
                    let time = by_time.then(|| times(table, &chunk.batch)[row]);
                    let Some(other) = known.iter().find(|s| !chunk.is_dead(row) && s.holds(key, time)) else {
                        continue;
                    };
                    let run = run_of(&chunk.batch, row);
                    if replaces(table, other.open.contains(&key)) && !says_nothing(table, &chunk.batch, row) {
                        if Arc::make_mut(replaced).insert(key) {
                            count(Arc::make_mut(replaced_of), run);
                        }
                        let replacing = if is_active { &mut *replaced_by_active } else { &mut *replaced_by_sealed };
                        replacing.add(key, run, time, Some(other.segment.path.clone()));
                        continue;
                    }
                    // What it was to take the place of is gone, and the other one must stay.
                    if Arc::make_mut(replaced).remove(&key)
                        && let Some(count) = Arc::make_mut(replaced_of).get_mut(run)
                    {
                        *count = count.saturating_sub(1);
                    }
                    replaced_by_sealed.forget(key, run);
                    replaced_by_active.forget(key, run);
                    chunk.kill(row);
                    places.remove(&key);
                    left += 1;
                }
            }
        }
        left
    }

    pub fn learn(&mut self, table: Table, found: &AttrTypes) {
        let known = self.attr_types.get(&table);
        let is_new = |column: &String, key: &String, bits: &u8| {
            known.and_then(|k| k.get(column)).and_then(|c| c.get(key)).is_none_or(|old| old | bits != *old)
        };
        if !found.iter().any(|(column, keys)| keys.iter().any(|(key, bits)| is_new(column, key, bits))) {
            return;
        }
        let all = Arc::make_mut(&mut self.attr_types).entry(table).or_default();
        for (column, keys) in found {
            let known = all.entry(column.clone()).or_default();
            for (key, bits) in keys {
                if let Some(old) = known.get_mut(key) {
                    *old |= bits;
                } else if known.len() < MAX_ATTR_KEYS {
                    known.insert(key.clone(), *bits);
                }
            }
        }
    }

    pub fn active_bytes(&self) -> usize {
        self.tables.iter().flat_map(|t| &t.active).map(|c| c.bytes).sum()
    }

    pub fn sealed_bytes(&self) -> usize {
        self.tables.iter().flat_map(|t| &t.sealed).map(|c| c.bytes).sum()
    }

    pub fn active_rows(&self, table: Table) -> usize {
        self.tables[table as usize].active.iter().map(Chunk::live_rows).sum()
    }

    /// Rows that are in no segment yet.
    pub fn tail_rows(&self) -> u64 {
        self.tables.iter().flat_map(|t| t.sealed.iter().chain(&t.active)).map(|chunk| chunk.live_rows() as u64).sum()
    }

    pub fn has_sealed(&self) -> bool {
        self.tables.iter().any(|t| !t.sealed.is_empty())
    }

    pub fn has_run(&self, run_id: &str) -> bool {
        let in_tail = |chunk: &Chunk| {
            let batch = chunk.visible();
            (0..batch.num_rows()).any(|row| run_of(&batch, row) == run_id)
        };
        let theirs = self.theirs.iter().flat_map(|theirs| Table::ALL.map(|table| theirs.live(table))).flatten();
        self.manifest.kept().any(|s| s.part(run_id).is_some())
            || self.tables.iter().flat_map(|t| t.sealed.iter().chain(&t.active)).chain(theirs).any(in_tail)
    }

    pub fn has_active(&self) -> bool {
        self.tables.iter().any(|t| !t.active.is_empty())
    }

    /// Spans that are still open, to be carried over into the next log file instead of being written as they are.
    /// At most `limit`, the newest.
    /// Those of the run `but_of` are left out.
    pub fn open_spans(&self, limit: usize, but_of: Option<&str>) -> Result<Option<RecordBatch>, StoreError> {
        let chunks = &self.tables[Table::Spans as usize].active;
        let mut open = Vec::new();
        for chunk in chunks.iter().filter(|c| !c.open.is_empty()) {
            let wanted = |r: usize| {
                chunk.open[r] && !chunk.is_dead(r) && but_of.is_none_or(|run| run_of(&chunk.batch, r) != run)
            };
            let mask: BooleanArray = (0..chunk.batch.num_rows()).map(|r| Some(wanted(r))).collect();
            if mask.true_count() > 0 {
                open.push(filter_record_batch(&chunk.batch, &mask)?);
            }
        }
        if open.is_empty() {
            return Ok(None);
        }
        let all = concat_batches(&Table::Spans.schema(), &open)?;
        let skip = all.num_rows().saturating_sub(limit);
        Ok(Some(all.slice(skip, all.num_rows() - skip)))
    }

    /// Starts a new generation. `carried` are the open spans that go on in it.
    pub fn seal(&mut self, indices: &mut [TableIndex; Table::COUNT], carried: Option<RecordBatch>) {
        for (state, index) in self.tables.iter_mut().zip(indices.iter_mut()) {
            state.sealed = std::mem::take(&mut state.active);
            state.replaced_by_sealed = std::mem::take(&mut state.replaced_by_active);
            index.sealed = std::mem::take(&mut index.active);
            index.chunks = 0;
        }
        self.first_at = None;
        self.sealed_at = self.version;
        if let Some(batch) = carried {
            let incoming = Incoming::new(Table::Spans, batch);
            let state = &mut self.tables[Table::Spans as usize];
            let index = &mut indices[Table::Spans as usize];
            for key in &incoming.keys {
                if let Some(place) = index.sealed.remove(key) {
                    state.sealed[place.chunk as usize].kill(place.row as usize);
                }
            }
            let admitted = index.admit(incoming, &[]);
            self.publish(admitted);
        }
    }

    pub fn snapshot(&self, object_store: Arc<dyn object_store::ObjectStore>) -> Snapshot {
        let tables = Table::ALL
            .into_iter()
            .map(|table| {
                let state = &self.tables[table as usize];
                let theirs = self.theirs.as_deref();
                let own = state.sealed.iter().chain(&state.active).filter(|c| c.live_rows() > 0);
                let live: Vec<&Chunk> = own.chain(theirs.iter().flat_map(|theirs| theirs.live(table))).collect();
                let shown = |chunk: &&Chunk| {
                    let less = theirs.and_then(|theirs| theirs.without_outdone(table, chunk));
                    less.unwrap_or_else(|| (chunk.visible(), chunk.contents.clone()))
                };
                let (tail, contents) = live.iter().map(shown).unzip();
                let tail_versions = live.iter().map(|c| c.version).collect();
                let segments = self.manifest.segments_of(table).cloned().collect();
                let (replaced, replaced_of) = match theirs {
                    Some(theirs) => theirs.replaced_with(table, (&state.replaced, &state.replaced_of)),
                    None => (state.replaced.clone(), state.replaced_of.clone()),
                };
                (table, TableSnapshot { segments, tail, tail_versions, replaced, replaced_of, contents })
            })
            .collect();
        let (version, settled) = (self.version, self.settled);
        Snapshot { object_store, keeper: None, version, settled, tables, attr_types: self.attr_types.clone() }
    }
}

/// Many single spans would make many tiny batches, which are slow to read: merges the small ones at the end.
fn coalesce(table: Table, state: &mut TableState, index: &mut TableIndex) {
    let small = state.active.iter().rev().take_while(|c| c.batch.num_rows() < SMALL_CHUNK_ROWS).count();
    if small < SMALL_CHUNKS {
        return;
    }
    let from = state.active.len() - small;
    let parts: Vec<Chunk> = state.active.drain(from..).collect();
    let batches: Vec<RecordBatch> = parts.iter().map(Chunk::visible).collect();
    let Ok(batch) = concat_batches(&table.schema(), &batches) else {
        state.active.extend(parts);
        return;
    };
    // Without keys there are no places to keep right.
    let keys: Vec<u128> = parts
        .iter()
        .flat_map(|c| c.keys.iter().enumerate().filter(|(row, _)| !c.is_dead(*row)).map(|(_, key)| *key))
        .collect();
    let open = open_rows(table, &batch);
    for (row, key) in keys.iter().enumerate() {
        let open = open.get(row).copied().unwrap_or(false);
        index.active.insert(*key, Place { chunk: from as u32, row: row as u32, open });
    }
    let bytes = batch_bytes(&batch) + keys.len() * 16;
    let version = parts.iter().map(|c| c.version).max().unwrap_or(0);
    state.active.push(Chunk::new(batch, keys, open, bytes, version));
    index.chunks = state.active.len() as u32;
}
