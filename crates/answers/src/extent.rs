//! Which rows a run has, and whether those of a step are still the same as when something was worked out from them.
//!
//! A step's fingerprint is the sum of the marks of its rows, and of those that name no step and were there at its time
//! ([`Census`]). It does not change when rows move from the tail to segments, when these are merged, and when the server starts
//! again. Segments that have no census, and those that the run shares with others, count by their names.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use futures::future::join_all;
use hashbrown::HashMap;
use rollscope_model::Table;
use rollscope_model::read::{Ints, Text, column};
use rollscope_spans::joins::SKEW_NS;
use rollscope_store::{Census, Segment, Snapshot};

/// Segments whose census is read at the same time.
const AT_ONCE: usize = 8;
/// Censuses that are remembered.
const MAX_REMEMBERED: usize = 20_000;

/// Censuses by the path of their segment, which never changes.
#[derive(Default)]
pub struct Censuses(Mutex<HashMap<String, Option<Arc<Census>>>>);

impl Censuses {
    async fn of(&self, snapshot: &Snapshot, segment: &Segment) -> Option<Arc<Census>> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known().get(&segment.path) {
            return found.clone();
        }
        let read = snapshot.census(segment).await.map(Arc::new);
        let mut known = known();
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        known.insert(segment.path.clone(), read.clone());
        read
    }
}

/// A run's rows, and those of others that may belong to its steps.
pub struct Extent {
    /// Of this run.
    own: Vec<Arc<Census>>,
    own_tail: Census,
    /// Spans of any run.
    spans: Vec<Arc<Census>>,
    spans_tail: Census,
    unknown: Vec<Unknown>,
    has_rows: bool,
}

/// A segment without a census, or with one that is not of the run alone.
struct Unknown {
    /// Of this run; else it may hold spans that name no step and belong to one of the run.
    own: bool,
    steps: Option<(i64, i64)>,
    times: (i64, i64),
    path: u64,
}

impl Extent {
    pub async fn read(censuses: &Censuses, snapshot: &Snapshot, run: &str) -> Extent {
        let tables = || [Table::Spans, Table::Samples].into_iter().filter_map(|t| Some((t, snapshot.tables.get(&t)?)));
        let mut out = Extent {
            own: Vec::new(),
            own_tail: Census::default(),
            spans: Vec::new(),
            spans_tail: Census::default(),
            unknown: Vec::new(),
            has_rows: false,
        };
        let widest = |a: (i64, i64), b: (i64, i64)| (a.0.min(b.0), a.1.max(b.1));
        let in_tail = tables().flat_map(|(table, rows)| rows.tail.iter().map(move |batch| (table, batch)));
        let tail_times = in_tail.filter_map(|(table, batch)| out.add_tail(table, batch, run)).reduce(widest);
        let own = tables().flat_map(|(_, rows)| &rows.segments).filter_map(|s| s.part(run));
        let times = own.map(|part| (part.min_time, part.max_time)).chain(tail_times).reduce(widest);
        let Some((from, to)) = times else { return out };
        let (from, to) = (from.saturating_sub(SKEW_NS), to.saturating_add(SKEW_NS));
        let may_belong = |table: Table, s: &Segment| {
            s.part(run).is_some() || table == Table::Spans && s.min_time <= to && s.max_time >= from
        };
        let segments = tables().flat_map(|(table, rows)| rows.segments.iter().map(move |segment| (table, segment)));
        let segments: Vec<(Table, &Arc<Segment>)> = segments.filter(|(table, s)| may_belong(*table, s)).collect();
        let mut read = Vec::with_capacity(segments.len());
        for some in segments.chunks(AT_ONCE) {
            read.extend(join_all(some.iter().map(|(_, segment)| censuses.of(snapshot, segment))).await);
        }
        for ((table, segment), census) in segments.into_iter().zip(read) {
            let own = segment.part(run);
            out.has_rows |= own.is_some();
            // The census of a segment that several runs share says nothing of each.
            if census.is_none() || own.is_some() && segment.is_shared() {
                let mut hasher = DefaultHasher::new();
                segment.path.hash(&mut hasher);
                let (steps, times) = own.map_or((segment.steps, (segment.min_time, segment.max_time)), |part| {
                    (part.steps, (part.min_time, part.max_time))
                });
                out.unknown.push(Unknown { own: own.is_some(), steps, times, path: hasher.finish() });
            }
            let Some(census) = census else { continue };
            if table == Table::Spans {
                out.spans.push(census.clone());
            }
            if own.is_some() && !segment.is_shared() {
                out.own.push(census);
            }
        }
        out
    }

    /// Returns when the run's own rows were.
    fn add_tail(&mut self, table: Table, batch: &RecordBatch, run: &str) -> Option<(i64, i64)> {
        let marks = Census::marks(table, batch)?;
        if table == Table::Spans {
            self.spans_tail.add(batch, &marks, |_| true);
        }
        let runs: Text = column(batch, "run_id").ok()?;
        if runs.distinct().all(|name| name != run) {
            return None;
        }
        let of_run = |row: &usize| runs.get(*row) == Some(run);
        self.own_tail.add(batch, &marks, |row| of_run(&row));
        let (starts, ends): (Ints, Ints) = (column(batch, "start_ns").ok()?, column(batch, "end_ns").ok()?);
        let own = || (0..batch.num_rows()).filter(of_run);
        self.has_rows |= own().next().is_some();
        let first = own().filter_map(|row| starts.get(row)).min()?;
        Some((first, own().filter_map(|row| ends.get(row)).max().unwrap_or(first).max(first)))
    }

    pub fn has_rows(&self) -> bool {
        self.has_rows
    }

    /// The steps that rows name; `None` if it is not known without reading them.
    pub fn steps(&self) -> Option<BTreeSet<i64>> {
        if self.unknown.iter().any(|segment| segment.own) {
            return None;
        }
        let all = self.own.iter().map(AsRef::as_ref).chain([&self.own_tail]);
        Some(all.flat_map(Census::steps).collect())
    }

    /// Of a step that lasted from one time to another.
    pub fn fingerprint(&self, step: Option<i64>, (from, to): (i64, i64)) -> u64 {
        // As far as rows are looked for that belong to the step.
        let (from, to) = (from.saturating_sub(SKEW_NS), to.saturating_add(SKEW_NS));
        let own = self.own.iter().map(AsRef::as_ref).chain([&self.own_tail]);
        let sum = |sum: u64, of: u64| sum.wrapping_add(of);
        let (named, unnamed) = match step {
            Some(step) => {
                let spans = self.spans.iter().map(AsRef::as_ref).chain([&self.spans_tail]);
                (own.map(|of| of.step(step)).fold(0, sum), spans.map(|of| of.unnamed(from, to)).fold(0, sum))
            }
            // A run without steps is its own rows only.
            None => (own.map(Census::all).fold(0, sum), 0),
        };
        let may_hold = |segment: &&Unknown| match (segment.own, segment.steps, step) {
            (true, Some((first, last)), Some(step)) if (first..=last).contains(&step) => true,
            (true, None, _) | (true, _, None) => true,
            (false, _, None) => false,
            _ => segment.times.0 <= to && segment.times.1 >= from,
        };
        let mut unknown: Vec<u64> = self.unknown.iter().filter(may_hold).map(|segment| segment.path).collect();
        unknown.sort_unstable();
        let mut hasher = DefaultHasher::new();
        (named, unnamed, unknown).hash(&mut hasher);
        hasher.finish()
    }
}
