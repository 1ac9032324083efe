//! In a lake: rows that are in the logs of other writers and in no table yet, shown beside this node's own tail.
//!
//! They are only shown. What this node keeps and writes does not depend on them: they are in no generation, and nothing is written of
//! them here. A row that is here, too, or in a segment, is shown once. Which one does not matter, except that a span that has ended is
//! shown as such. A part of a log leaves at the moment in which this node sees the version of a table that has it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use arrow::compute::filter_record_batch;
use rollscope_model::Table;
use rollscope_model::tables::Keep;

use super::{
    Chunk, Incoming, Index, KnownSegment, Place, State, TableIndex, count, replaces, run_of, says_nothing,
    time_is_identity, times,
};
use crate::contents::{Contents, batch_bytes};

/// The last numbers of a log that are in the tables.
pub(crate) type Floors = [u64; Table::COUNT];

/// A part of the log of another writer.
pub(crate) struct LogPart {
    pub writer: Arc<str>,
    pub number: u64,
    pub rows: Vec<Arc<Incoming>>,
}

#[derive(Default)]
pub(crate) struct Theirs {
    tables: [TheirTable; Table::COUNT],
    /// How much of each log that is followed is in the tables, as this node sees them.
    pub floors: HashMap<String, Floors>,
    next: u32,
}

#[derive(Default)]
struct TheirTable {
    /// By a number that a batch keeps, so that places stay right.
    batches: BTreeMap<u32, Held>,
    /// Where rows are that are shown.
    index: Index,
    /// Identities of rows in segments that rows here replace, and how many of them each run has.
    replaced: Arc<HashSet<u128>>,
    replaced_of: Arc<HashMap<String, u64>>,
    /// Rows of this node's tail that are not shown: open spans that have ended here, and older versions of what may change.
    outdone: HashSet<u128>,
}

struct Held {
    writer: Arc<str>,
    number: u64,
    rows: Arc<Incoming>,
    chunk: Chunk,
    /// Since this version, its table has all but its open spans, which go on in a later part.
    passed: Option<u64>,
}

impl State {
    /// Shows a part of a log. `known`: for each batch of it, the segments that may hold its rows.
    pub fn hold(&mut self, part: &LogPart, known: Vec<Vec<KnownSegment>>, own: &[TableIndex; Table::COUNT]) {
        let Some(mut theirs) = self.theirs.take() else { return };
        let floors = theirs.floors.get(&*part.writer).copied().unwrap_or_default();
        for (rows, known) in part.rows.iter().zip(known) {
            let t = rows.table as usize;
            if part.number > floors[t] {
                self.learn(rows.table, &rows.attr_types);
                let own = Own { index: &own[t], tail: &self.tables[t] };
                let number = theirs.next;
                theirs.next = theirs.next.wrapping_add(1);
                let version = self.version + 1;
                theirs.tables[t].hold(number, part, rows, &known, &own, version);
            }
        }
        self.theirs = Some(theirs);
    }

    /// Other writers have added a segment that may hold rows of theirs.
    pub fn meet(&mut self, known: &KnownSegment) {
        if let (Some(theirs), Some(table)) = (&mut self.theirs, Table::from_name(&known.segment.table)) {
            theirs.tables[table as usize].meet(table, known);
        }
    }

    /// The tables have logs up to these numbers now.
    pub fn let_pass(&mut self, floors: HashMap<String, Floors>) -> bool {
        let Some(theirs) = &mut self.theirs else { return false };
        let mut is_less = false;
        for table in Table::ALL {
            let of_table = &mut theirs.tables[table as usize];
            let is_in_table = |held: &Held| floors.get(&*held.writer).is_some_and(|f| held.number <= f[table as usize]);
            let passed: Vec<u32> = of_table
                .batches
                .iter()
                .filter(|(_, held)| held.passed.is_none() && is_in_table(held))
                .map(|(n, _)| *n)
                .collect();
            is_less |= !passed.is_empty();
            passed.into_iter().for_each(|number| of_table.let_pass(number, self.version));
        }
        theirs.floors.extend(floors);
        if is_less {
            self.settled = self.version + 1;
        }
        is_less
    }

    /// Parts of logs are gone. To be called before what is new is held: that may be a copy of them.
    pub fn let_go(&mut self, is_gone: impl Fn(&Arc<str>, u64) -> bool) {
        self.remove(|held| is_gone(&held.writer, held.number));
    }

    /// Logs were looked at after this version was shown: spans that were open then go on in what was held since.
    pub fn let_passed_go(&mut self, since: u64) {
        self.remove(|held| held.passed.is_some_and(|version| version < since));
    }

    fn remove(&mut self, which: impl Fn(&Held) -> bool) {
        let Some(theirs) = &mut self.theirs else { return };
        for table in &mut theirs.tables {
            let gone: Vec<u32> = table.batches.iter().filter(|(_, held)| which(held)).map(|(n, _)| *n).collect();
            if !gone.is_empty() {
                self.settled = self.version + 1;
            }
            gone.into_iter().for_each(|number| table.remove(number));
        }
    }
}

/// What this node has itself.
struct Own<'a> {
    index: &'a TableIndex,
    tail: &'a super::TableState,
}

impl Own<'_> {
    /// Whether it shows a row, and whether that is open.
    fn shows(&self, table: Table, key: u128) -> Option<bool> {
        // Nothing replaces these, so nobody keeps up where they are.
        if table.keep() == Keep::First {
            return (self.index.active.contains_key(&key) || self.index.sealed.contains_key(&key)).then_some(false);
        }
        let at = |index: &Index, chunks: &[Chunk]| {
            let place = index.get(&key)?;
            // One that is still on its way to the log makes way when it has arrived.
            let is_shown = chunks.get(place.chunk as usize).is_some_and(|chunk| !chunk.is_dead(place.row as usize));
            is_shown.then_some(place.open)
        };
        at(&self.index.active, &self.tail.active).or_else(|| at(&self.index.sealed, &self.tail.sealed))
    }
}

impl TheirTable {
    fn hold(
        &mut self,
        number: u32,
        part: &LogPart,
        rows: &Arc<Incoming>,
        known: &[KnownSegment],
        own: &Own,
        version: u64,
    ) {
        let table = rows.table;
        let by_time = time_is_identity(table).then(|| times(table, &rows.batch));
        let chunk = Chunk::new(rows.batch.clone(), Vec::new(), Vec::new(), batch_bytes(&rows.batch), version);
        let (writer, held) = (part.writer.clone(), rows.clone());
        // Before its rows: one of them may replace another one.
        self.batches.insert(number, Held { writer, number: part.number, rows: held, chunk, passed: None });
        for (row, key) in rows.keys.iter().enumerate() {
            let open = rows.is_open(row);
            let is_guess = says_nothing(table, &rows.batch, row);
            let replaces = |old_open| replaces(table, old_open) && !is_guess;
            if self.index.get(key).is_some_and(|place| !replaces(place.open)) {
                self.kill(number, row);
                continue;
            }
            let segment = known.iter().find(|s| s.holds(*key, by_time.map(|times| times[row])));
            let is_in_segment = segment.is_some_and(|segment| !replaces(segment.open.contains(key)));
            if is_in_segment {
                self.hide(*key);
            }
            // Of rows that may change, the last one to arrive is shown.
            let is_here = match own.shows(table, *key) {
                Some(own_open) if table.keep() == Keep::Last && !is_guess || own_open && !open => {
                    self.outdone.insert(*key);
                    false
                }
                Some(_) => {
                    self.hide(*key);
                    true
                }
                None => false,
            };
            if is_in_segment || is_here {
                self.kill(number, row);
                continue;
            }
            if segment.is_some() {
                self.replace(*key, run_of(&rows.batch, row));
            }
            if let Some(place) = self.index.insert(*key, Place { chunk: number, row: row as u32, open }) {
                self.kill(place.chunk, place.row as usize);
            }
        }
    }

    fn kill(&mut self, number: u32, row: usize) {
        self.batches.get_mut(&number).expect("places are of batches that are held").chunk.kill(row);
    }

    /// Another row with this identity is shown.
    fn hide(&mut self, key: u128) {
        let Some(place) = self.index.remove(&key) else { return };
        let held = self.batches.get_mut(&place.chunk).expect("places are of batches that are held");
        held.chunk.kill(place.row as usize);
        let rows = held.rows.clone();
        self.forget(key, &rows, place.row as usize);
    }

    /// A row that is shown takes the place of one in a segment.
    fn replace(&mut self, key: u128, run: &str) {
        if Arc::make_mut(&mut self.replaced).insert(key) {
            count(Arc::make_mut(&mut self.replaced_of), run);
        }
    }

    /// What a row that is gone has hidden elsewhere is shown again.
    fn forget(&mut self, key: u128, rows: &Incoming, row: usize) {
        self.outdone.remove(&key);
        if self.replaced.contains(&key)
            && Arc::make_mut(&mut self.replaced).remove(&key)
            && let Some(count) = Arc::make_mut(&mut self.replaced_of).get_mut(run_of(&rows.batch, row))
        {
            *count = count.saturating_sub(1);
        }
    }

    fn meet(&mut self, table: Table, known: &KnownSegment) {
        let mut met = Vec::new();
        for (key, place) in &self.index {
            let rows = &self.batches[&place.chunk].rows;
            let row = place.row as usize;
            let time = time_is_identity(table).then(|| times(table, &rows.batch)[row]);
            if known.holds(*key, time) {
                met.push((*key, run_of(&rows.batch, row).to_string(), says_nothing(table, &rows.batch, row)));
            }
        }
        for (key, run, is_guess) in met {
            if is_guess || !replaces(table, known.open.contains(&key)) {
                self.hide(key);
            } else {
                self.replace(key, &run);
            }
        }
    }

    /// A table has a batch now.
    fn let_pass(&mut self, number: u32, version: u64) {
        let held = &self.batches[&number];
        let is_open = |row: &usize| held.rows.is_open(*row) && !held.chunk.is_dead(*row);
        if !(0..held.rows.keys.len()).any(|row| is_open(&row)) {
            return self.remove(number);
        }
        let rows = held.rows.clone();
        let closed: Vec<usize> = (0..rows.keys.len()).filter(|row| !is_open(row)).collect();
        closed.into_iter().for_each(|row| self.hide_at(number, row, &rows));
        self.batches.get_mut(&number).expect("it was just there").passed = Some(version);
    }

    fn remove(&mut self, number: u32) {
        let Some(held) = self.batches.get(&number) else { return };
        let rows = held.rows.clone();
        (0..rows.keys.len()).for_each(|row| self.hide_at(number, row, &rows));
        self.batches.remove(&number);
    }

    fn hide_at(&mut self, number: u32, row: usize, rows: &Incoming) {
        let is_here = |place: &Place| (place.chunk, place.row as usize) == (number, row);
        if self.index.get(&rows.keys[row]).is_some_and(is_here) {
            self.hide(rows.keys[row]);
        }
    }

    /// Rows of a batch of this node's tail that are not shown.
    fn outdone_in<'a>(&'a self, table: Table, chunk: &'a Chunk) -> impl Iterator<Item = usize> + 'a {
        let is_last = table.keep() == Keep::Last;
        let may_be = !self.outdone.is_empty() && (is_last || !chunk.open.is_empty());
        let rows = if may_be { 0..chunk.keys.len() } else { 0..0 };
        rows.filter(move |row| {
            !chunk.is_dead(*row) && (is_last || chunk.open[*row]) && self.outdone.contains(&chunk.keys[*row])
        })
    }

    fn live(&self) -> impl Iterator<Item = &Chunk> {
        self.batches.values().map(|held| &held.chunk).filter(|chunk| chunk.live_rows() > 0)
    }
}

impl Theirs {
    /// A batch of this node is shown from now on.
    pub(super) fn make_way(&mut self, incoming: &Incoming, is_shown: impl Fn(usize) -> bool) {
        let table = &mut self.tables[incoming.table as usize];
        if table.index.is_empty() {
            return;
        }
        for (row, key) in incoming.keys.iter().enumerate().filter(|(row, _)| is_shown(*row)) {
            match table.index.get(key) {
                Some(place)
                    if incoming.is_open(row) && !place.open || says_nothing(incoming.table, &incoming.batch, row) =>
                {
                    table.outdone.insert(*key);
                }
                Some(_) => table.hide(*key),
                None => {}
            }
        }
    }

    /// Rows of this node's tail are in segments now. Those that are not shown are left out there.
    pub(super) fn outdo_segments(&mut self, table: Table, chunks: &[Chunk]) {
        let of_table = &mut self.tables[table as usize];
        for chunk in chunks {
            let outdone: Vec<usize> = of_table.outdone_in(table, chunk).collect();
            for row in outdone {
                of_table.outdone.remove(&chunk.keys[row]);
                of_table.replace(chunk.keys[row], run_of(&chunk.batch, row));
            }
        }
    }

    pub fn rows(&self) -> u64 {
        self.tables.iter().flat_map(TheirTable::live).map(|chunk| chunk.live_rows() as u64).sum()
    }

    pub(super) fn live(&self, table: Table) -> impl Iterator<Item = &Chunk> {
        self.tables[table as usize].live()
    }

    /// What is left out of segments because of own rows or theirs.
    pub(super) fn replaced_with(
        &self,
        table: Table,
        own: (&Arc<HashSet<u128>>, &Arc<HashMap<String, u64>>),
    ) -> (Arc<HashSet<u128>>, Arc<HashMap<String, u64>>) {
        let theirs = &self.tables[table as usize];
        if theirs.replaced.is_empty() {
            return (own.0.clone(), own.1.clone());
        }
        if own.0.is_empty() {
            return (theirs.replaced.clone(), theirs.replaced_of.clone());
        }
        let mut replaced_of = HashMap::clone(own.1);
        for (run, rows) in &*theirs.replaced_of {
            *replaced_of.entry(run.clone()).or_default() += rows;
        }
        // A row that both replace counts once.
        let twice = theirs.replaced.intersection(own.0).filter_map(|key| theirs.index.get(key));
        for Place { chunk, row, .. } in twice {
            let run = run_of(&theirs.batches[chunk].chunk.batch, *row as usize);
            replaced_of.entry(run.to_string()).and_modify(|rows| *rows = rows.saturating_sub(1));
        }
        (Arc::new(&**own.0 | &*theirs.replaced), Arc::new(replaced_of))
    }

    /// A batch of the own tail without the rows that are not shown. `None`: it has none.
    pub(super) fn without_outdone(
        &self,
        table: Table,
        chunk: &Chunk,
    ) -> Option<(RecordBatch, Arc<OnceLock<Contents>>)> {
        let outdone: Vec<usize> = self.tables[table as usize].outdone_in(table, chunk).collect();
        if outdone.is_empty() {
            return None;
        }
        let mut shown: Vec<bool> = (0..chunk.keys.len()).map(|row| !chunk.is_dead(row)).collect();
        outdone.into_iter().for_each(|row| shown[row] = false);
        let batch = filter_record_batch(&chunk.batch, &shown.into()).expect("the mask has a bit for each row");
        Some((batch, Arc::default()))
    }

    /// Are there open spans of parts that have passed before this version?
    pub fn has_passed(&self, since: u64) -> bool {
        let held = self.tables.iter().flat_map(|table| table.batches.values());
        held.filter_map(|held| held.passed).any(|version| version < since)
    }
}
