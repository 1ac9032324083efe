//! Every order in which the writer, a flush, a merge and a deletion can take the locks.
//!
//! All that they share is behind locks, so what happens is decided by the order of their critical sections. Here they are
//! steps of threads that an explorer interleaves in all possible ways. The steps work on the real tail ([`State`],
//! [`TableIndex`]); files, the log and the manifest are lists in memory. What a thread does under its locks, and what it
//! reads in between, is that of `store::writer`, `store::flush` and `store::upkeep`: whoever changes the order there changes
//! it here.
//!
//! After each step a reader looks, and another one opens what a crash would leave.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollscope_model::Table;
use rollscope_model::attrs::Value;
use rollscope_model::build::{MetricsBuilder, NewMetric, NewPoint, NewSpan, SeriesBuilder, SpansBuilder};
use rollscope_model::read::{Floats, Ids, Ints, Text, column};

use crate::identity::{IdentitySet, identity_hashes, open_rows};
use crate::manifest::{Manifest, Segment};
use crate::segment;
use crate::tail::{Incoming, KnownSegment, Replaced, State, TableIndex, TableState, candidates};

/// (table, run, number).
type Key = (Table, &'static str, u64);
/// (version, is it open).
type Row = (u64, bool);
type Rows = BTreeMap<Key, Row>;

const RUNS: [&str; 2] = ["a", "b"];
const TABLES: [Table; 3] = [Table::Spans, Table::Metrics, Table::Series];

fn batch(table: Table, rows: &[(Key, Row)]) -> RecordBatch {
    let mut spans = SpansBuilder::default();
    let mut metrics = MetricsBuilder::default();
    let mut series = SeriesBuilder::default();
    for ((_, run_id, n), (version, is_open)) in rows {
        let (time_ns, value) = (*n as i64 * 1000, *version as f64);
        match table {
            Table::Spans => spans.push(&NewSpan {
                run_id,
                trace_id: [1; 16],
                span_id: (n + 1).to_be_bytes(),
                start_ns: time_ns,
                end_ns: (!is_open).then_some(time_ns + 1),
                state: if *is_open { "open" } else { "closed" },
                pid: Some(*version as i64),
                end_attrs: &[("k", Value::Int(1))],
                ..NewSpan::default()
            }),
            Table::Metrics => {
                metrics.push(&NewMetric { run_id, step: None, time_ns, name: "m", value, source: None });
            }
            _ => {
                let kind = &version.to_string();
                series.push(&NewPoint { run_id, target: "", name: "s", labels: "{}", kind, time_ns, value: 1.0 });
            }
        }
    }
    match table {
        Table::Spans => spans.finish(),
        Table::Metrics => metrics.finish(),
        _ => series.finish(),
    }
    .unwrap()
}

fn rows_of(table: Table, batch: &RecordBatch) -> Vec<(Key, Row)> {
    let runs = column::<Text>(batch, "run_id").unwrap();
    let run = |row: usize| RUNS.into_iter().find(|run| *run == runs.at(row)).unwrap();
    let time = |row: usize| column::<Ints>(batch, "time_ns").unwrap().at(row) as u64 / 1000;
    let of = |row: usize| match table {
        Table::Spans => {
            let id = u64::from_be_bytes(column::<Ids<8>>(batch, "span_id").unwrap().at(row)) - 1;
            let version = column::<Ints>(batch, "pid").unwrap().at(row) as u64;
            (id, (version, column::<Text>(batch, "state").unwrap().at(row) == "open"))
        }
        Table::Metrics => (time(row), (column::<Floats>(batch, "value").unwrap().at(row) as u64, false)),
        _ => (time(row), (column::<Text>(batch, "kind").unwrap().at(row).parse().unwrap(), false)),
    };
    (0..batch.num_rows())
        .map(|row| {
            let (n, value) = of(row);
            ((table, run(row), n), value)
        })
        .collect()
}

/// Which of two rows stays.
fn winner(table: Table, old: Option<Row>, new: Row) -> Row {
    match (table, old) {
        (Table::Series, Some(old)) => old,
        (Table::Spans, Some(old)) if !old.1 => old,
        _ => new,
    }
}

/// One critical section.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// A group of this batch: admitted, logged and published under the writer's lock.
    Write(usize),
    /// The same, with a log that cannot be synced.
    WriteFails(usize),
    Seal(Option<&'static str>),
    /// The rows of the sealed generation, and what they replace.
    Collect,
    /// The manifest that the commit starts from; segments are written again.
    Read(Option<&'static str>),
    Commit(Option<&'static str>),
    /// The flush ends without a commit.
    GiveUp,
    MergeRead,
    MergeCommit,
}

impl Step {
    /// A flush holds the commit from the first to the last of its steps. A merge needs it for its last one.
    fn needs_commit(self) -> bool {
        !matches!(self, Step::Write(_) | Step::WriteFails(_) | Step::MergeRead)
    }

    fn ends_commit(self) -> bool {
        matches!(self, Step::Commit(_) | Step::GiveUp | Step::MergeCommit)
    }
}

const FLUSH: [Step; 4] = [Step::Seal(None), Step::Collect, Step::Read(None), Step::Commit(None)];
const FAILED_FLUSH: [Step; 4] = [Step::Seal(None), Step::Collect, Step::Read(None), Step::GiveUp];
/// Deletes the second run. A generation left over from a flush that failed goes first.
const DELETE: [Step; 7] = [
    Step::Collect,
    Step::Read(None),
    Step::Commit(None),
    Step::Seal(Some("b")),
    Step::Collect,
    Step::Read(Some("b")),
    Step::Commit(Some("b")),
];

/// What a flush has in hand.
#[derive(Default)]
struct Flush {
    work: Vec<(Table, Vec<RecordBatch>, Replaced)>,
    manifest: Option<Manifest>,
    fresh: Vec<(Segment, RecordBatch)>,
}

struct World {
    state: State,
    indices: [TableIndex; Table::COUNT],
    files: HashMap<String, RecordBatch>,
    names: usize,
    log: Vec<(u64, Table, RecordBatch)>,
    log_number: u64,
    sealed_floor: u64,
    flush: Flush,
    merge: Vec<Arc<Segment>>,
    /// What was acknowledged.
    rows: Rows,
}

fn known(files: &HashMap<String, RecordBatch>, incoming: &Incoming, manifest: &Manifest) -> Vec<KnownSegment> {
    let known = |segment: &Arc<Segment>| {
        let rows = &files[&segment.path];
        let hashes = identity_hashes(incoming.table, rows);
        let open: HashSet<u128> =
            open_rows(incoming.table, rows).iter().zip(&hashes).filter(|(open, _)| **open).map(|(_, h)| *h).collect();
        let identities = Arc::new(IdentitySet::new(hashes));
        KnownSegment { segment: segment.clone(), identities, open: Arc::new(open) }
    };
    candidates(incoming, manifest).into_iter().rev().map(known).collect()
}

impl World {
    fn new() -> World {
        World {
            state: State::new(Manifest::default()),
            indices: Default::default(),
            files: HashMap::new(),
            names: 0,
            log: Vec::new(),
            log_number: 1,
            sealed_floor: 0,
            flush: Flush::default(),
            merge: Vec::new(),
            rows: Rows::new(),
        }
    }

    /// Segments of a batch, one for each run.
    fn build(&mut self, table: Table, batches: &[RecordBatch]) -> Vec<(Segment, RecordBatch)> {
        let all = concat_batches(&table.schema(), batches).unwrap();
        let mut built = Vec::new();
        for run in RUNS {
            let others = RUNS.into_iter().find(|other| *other != run).unwrap();
            let rows = segment::without_run(&all, others).unwrap();
            if rows.num_rows() > 0 {
                let times = column::<Ints>(&rows, table.time_column()).unwrap();
                let times: Vec<i64> = times.iter().flatten().collect();
                self.names += 1;
                let segment = Segment {
                    table: table.name().into(),
                    run_id: run.into(),
                    path: format!("{}", self.names),
                    rows: rows.num_rows() as u64,
                    min_time: *times.iter().min().unwrap(),
                    max_time: *times.iter().max().unwrap(),
                    ..Segment::default()
                };
                built.push((segment, rows));
            }
        }
        built
    }

    fn write(&mut self, table: Table, rows: &[(Key, Row)], fails: bool) {
        let incoming = Incoming::new(table, batch(table, rows));
        let known = known(&self.files, &incoming, &self.state.manifest);
        let admitted = self.indices[table as usize].admit(incoming, &known);
        if fails {
            return self.indices[table as usize].undo(admitted);
        }
        if !admitted.is_empty() {
            self.log.push((self.log_number, table, admitted.accepted_rows().unwrap()));
        }
        self.state.publish(admitted);
        self.state.coalesce(&mut self.indices);
        for (key, row) in rows {
            let now = self.rows.get(key).copied();
            self.rows.insert(*key, winner(key.0, now, *row));
        }
    }

    fn step(&mut self, step: Step, batches: &[(Table, Vec<(Key, Row)>)]) {
        match step {
            Step::Write(n) => self.write(batches[n].0, &batches[n].1, false),
            Step::WriteFails(n) => self.write(batches[n].0, &batches[n].1, true),
            Step::Seal(but) => {
                if self.state.has_sealed() || !self.state.has_active() {
                    return;
                }
                self.log_number += 1;
                let carried = self.state.open_spans(100, but).unwrap();
                self.log.extend(carried.iter().map(|batch| (self.log_number, Table::Spans, batch.clone())));
                self.sealed_floor = self.log_number;
                self.state.seal(&mut self.indices, carried);
            }
            Step::Collect => {
                let rows = |table: Table| {
                    let t = &self.state.tables[table as usize];
                    (table, t.sealed.iter().map(|c| c.visible()).collect(), t.replaced_by_sealed.clone())
                };
                self.flush = Flush { work: TABLES.into_iter().map(rows).collect(), ..Flush::default() };
            }
            Step::Read(but) => {
                let mut manifest = Manifest::clone(&self.state.manifest);
                manifest.remove(|s| Some(s.run_id.as_str()) == but);
                for (table, mut batches, replaced) in std::mem::take(&mut self.flush.work) {
                    for old in replaced.in_segments(table, &manifest) {
                        let rows = self.files[&old.path].clone();
                        let kept = segment::without(table, rows.clone(), &replaced.keys).unwrap();
                        if kept.num_rows() < rows.num_rows() {
                            manifest.remove(|s| s.path == old.path);
                            let rewritten = self.build(table, &[kept]);
                            self.flush.fresh.extend(rewritten);
                        }
                    }
                    if let Some(run) = but {
                        batches = batches.iter().map(|b| segment::without_run(b, run).unwrap()).collect();
                    }
                    let fresh = self.build(table, &batches);
                    self.flush.fresh.extend(fresh);
                }
                self.flush.manifest = Some(manifest);
            }
            Step::Commit(_) => {
                let Flush { manifest, fresh, .. } = std::mem::take(&mut self.flush);
                let mut manifest = manifest.unwrap();
                for (segment, rows) in fresh {
                    self.files.insert(segment.path.clone(), rows);
                    manifest.segments.push(Arc::new(segment));
                }
                manifest.wal_floor = manifest.wal_floor.max(self.sealed_floor);
                self.state.manifest = Arc::new(manifest);
                self.state.tables.iter_mut().for_each(TableState::drop_sealed);
                self.indices.iter_mut().for_each(TableIndex::drop_sealed);
            }
            Step::GiveUp => self.flush = Flush::default(),
            Step::MergeRead => self.merge = self.state.manifest.segments.clone(),
            Step::MergeCommit => {
                let old = std::mem::take(&mut self.merge);
                let mut manifest = Manifest::clone(&self.state.manifest);
                // A flush may have written one of them again meanwhile.
                if old.iter().any(|segment| !manifest.segments.contains(segment)) {
                    return;
                }
                manifest.segments.retain(|segment| !old.contains(segment));
                for table in TABLES {
                    let of_table = old.iter().filter(|s| s.table == table.name());
                    let batches: Vec<RecordBatch> = of_table.map(|s| self.files[&s.path].clone()).collect();
                    for (segment, rows) in self.build(table, &batches) {
                        self.files.insert(segment.path.clone(), rows);
                        manifest.segments.push(Arc::new(segment));
                    }
                }
                self.state.manifest = Arc::new(manifest);
            }
        }
    }

    /// What readers see, each row once.
    fn visible(&self, state: &State) -> Result<Rows, String> {
        let mut seen = Rows::new();
        for table in TABLES {
            let rows = &state.tables[table as usize];
            let mut all: Vec<(Key, Row)> = Vec::new();
            for segment in state.manifest.segments_of(table) {
                let left = segment::without(table, self.files[&segment.path].clone(), &rows.replaced).unwrap();
                all.extend(rows_of(table, &left));
            }
            all.extend(rows.sealed.iter().chain(&rows.active).flat_map(|chunk| rows_of(table, &chunk.visible())));
            for (key, row) in all {
                if let Some(other) = seen.insert(key, row) {
                    return Err(format!("{key:?} is there twice: {other:?} and {row:?}"));
                }
            }
        }
        Ok(seen)
    }

    /// What the next process sees.
    fn after_a_crash(&self) -> Result<Rows, String> {
        let mut state = State::new(Manifest::clone(&self.state.manifest));
        let mut indices: [TableIndex; Table::COUNT] = Default::default();
        let floor = state.manifest.wal_floor;
        for (_, table, batch) in self.log.iter().filter(|(number, ..)| *number >= floor) {
            let incoming = Incoming::new(*table, batch.clone());
            let known = known(&self.files, &incoming, &state.manifest);
            let admitted = indices[*table as usize].admit(incoming, &known);
            state.publish(admitted);
        }
        self.visible(&state)
    }
}

/// Runs the threads in the order that the choices say, and in the first possible one where they end. Returns what there was
/// to choose from at each step.
fn run(
    threads: &[Vec<Step>],
    batches: &[(Table, Vec<(Key, Row)>)],
    choices: &[usize],
) -> Result<Vec<(usize, usize)>, String> {
    let mut world = World::new();
    let mut at = vec![0; threads.len()];
    let mut holder: Option<usize> = None;
    let mut taken: Vec<(usize, usize)> = Vec::new();
    let mut deleted_before = BTreeSet::new();
    let mut order = Vec::new();
    loop {
        let can_go = |thread: &usize| {
            let step = threads[*thread].get(at[*thread]);
            step.is_some_and(|step| holder.is_none_or(|h| h == *thread) || !step.needs_commit())
        };
        let ready: Vec<usize> = (0..threads.len()).filter(can_go).collect();
        let Some(choice) = choices.get(taken.len()).copied().or((!ready.is_empty()).then_some(0)) else { break };
        let thread = ready[choice];
        taken.push((choice, ready.len()));
        let step = threads[thread][at[thread]];
        at[thread] += 1;
        if step.needs_commit() {
            holder = (!step.ends_commit() || threads[thread].get(at[thread]) == Some(&Step::Seal(Some("b"))))
                .then_some(thread);
        }
        order.push(step);
        world.step(step, batches);
        match step {
            // What came until here goes; what comes until the commit stays.
            Step::Seal(Some(run)) => {
                deleted_before = world.rows.iter().filter(|(k, _)| k.1 == run).map(|(k, r)| (*k, *r)).collect()
            }
            Step::Commit(Some(_)) => {
                let is_gone = |key: &Key, row: &Row| deleted_before.contains(&(*key, *row));
                world.rows.retain(|key, row| !is_gone(key, row));
            }
            _ => {}
        }
        let wrong = |what: &str, found: Result<Rows, String>| match found {
            Ok(found) if found == world.rows => Ok(()),
            Ok(found) => Err(format!("{what}: {found:?} instead of {:?}", world.rows)),
            Err(why) => Err(format!("{what}: {why}")),
        };
        let checked =
            wrong("a reader", world.visible(&world.state)).and_then(|()| wrong("a crash", world.after_a_crash()));
        checked.map_err(|why| format!("{why}\nafter {order:?}\nof {batches:?}"))?;
    }
    Ok(taken)
}

/// Tries all orders. Returns how many there are.
fn explore(threads: &[Vec<Step>], batches: &[(Table, Vec<(Key, Row)>)]) -> usize {
    let mut choices: Vec<usize> = Vec::new();
    for count in 1.. {
        let taken = run(threads, batches, &choices).unwrap_or_else(|why| panic!("{why}"));
        // The last choice that has another one after it.
        let Some(last) = taken.iter().rposition(|(choice, of)| choice + 1 < *of) else { return count };
        choices = taken[..last].iter().map(|(choice, _)| *choice).collect();
        choices.push(taken[last].0 + 1);
    }
    unreachable!("it returns when there is no other order")
}

/// Batches of few rows that meet each other often.
fn script(seed: u64, batches: usize) -> Vec<(Table, Vec<(Key, Row)>)> {
    let mut dice = StdRng::seed_from_u64(seed);
    let table = TABLES[dice.random_range(0..TABLES.len())];
    let mut version = 0;
    (0..batches)
        .map(|_| {
            let rows = (0..dice.random_range(1..4)).map(|_| {
                version += 1;
                let run = RUNS[dice.random_range(0..RUNS.len())];
                let is_open = table == Table::Spans && dice.random_bool(0.5);
                ((table, run, dice.random_range(0..3)), (version, is_open))
            });
            (table, rows.collect())
        })
        .collect()
}

/// How many scripts a test tries of each kind. `SCRIPTS=200` tries more.
fn scripts() -> u64 {
    std::env::var("SCRIPTS").map_or(2, |n| n.parse().expect("SCRIPTS is a number"))
}

fn writes(n: usize) -> Vec<Step> {
    (0..n).map(Step::Write).collect()
}

#[test]
fn no_order_of_writes_flushes_and_merges_loses_or_doubles_a_row() {
    let mut orders = 0;
    for seed in 0..scripts() {
        let batches = script(seed, 4);
        orders += explore(&[writes(4), [FLUSH, FLUSH].concat()], &batches);
        orders += explore(&[writes(3), [FAILED_FLUSH, FLUSH].concat()], &batches);
        let some_fail = vec![Step::Write(0), Step::WriteFails(1), Step::Write(2), Step::Write(3)];
        orders += explore(&[some_fail, FLUSH.to_vec()], &batches);
        let merge = vec![Step::MergeRead, Step::MergeCommit];
        orders += explore(&[writes(2), [FLUSH, FLUSH].concat(), merge], &batches);
    }
    println!("schedules: {orders} orders of {} scripts of writes, flushes and merges", 4 * scripts());
}

#[test]
fn no_order_of_writes_flushes_and_a_deletion_loses_or_doubles_a_row_or_brings_one_back() {
    let mut orders = 0;
    for seed in 0..scripts() {
        let batches = script(2000 + seed, 3);
        orders += explore(&[writes(3), FLUSH.to_vec(), DELETE.to_vec()], &batches);
        orders += explore(&[writes(3), FAILED_FLUSH.to_vec(), DELETE.to_vec()], &batches);
    }
    println!("schedules: {orders} orders of {} scripts of writes, flushes and a deletion", 2 * scripts());
}
