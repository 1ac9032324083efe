//! Which rows a run has, and whether those of a step are still the same as when something was worked out from them.
//!
//! A step's fingerprint is the sum of the marks of its rows, and of those that name no step and were there at its time
//! ([`Census`]). It does not change when rows move from the tail to segments, when these are merged, and when the server starts
//! again. Segments that have no census, and those that the run shares with others, count by their names.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::join_all;
use hashbrown::HashMap;
use rollscope_model::Table;
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
    /// Spans of any run.
    spans: Vec<Arc<Census>>,
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
        Extent::of_tables(&[Table::Spans, Table::Samples], censuses, snapshot, run).await
    }

    pub async fn of_tables(tables: &[Table], censuses: &Censuses, snapshot: &Snapshot, run: &str) -> Extent {
        let tables = || tables.iter().filter_map(|t| Some((*t, snapshot.tables.get(t)?)));
        let mut out = Extent { own: Vec::new(), spans: Vec::new(), unknown: Vec::new(), has_rows: false };
        let widest = |a: (i64, i64), b: (i64, i64)| (a.0.min(b.0), a.1.max(b.1));
        let mut tail_times = Vec::new();
        for (table, contents) in tables().flat_map(|(table, _)| snapshot.tail_contents(table).map(move |c| (table, c)))
        {
            for (part, census) in contents.parts.iter().zip(&contents.censuses) {
                if table == Table::Spans {
                    out.spans.push(census.clone());
                }
                if part.run_id == run {
                    out.has_rows = true;
                    out.own.push(census.clone());
                    tail_times.extend(Some((part.min_time, part.max_time)).filter(|times| *times != (0, 0)));
                }
            }
        }
        let own = tables().flat_map(|(_, rows)| &rows.segments).filter_map(|s| s.part(run));
        let times = own.map(|part| (part.min_time, part.max_time)).chain(tail_times).reduce(widest);
        let Some((from, to)) = times else { return out };
        let (from, to) = (from.saturating_sub(SKEW_NS), to.saturating_add(SKEW_NS));
        let may_belong = |table: Table, s: &Segment| {
            s.part(run).is_some() || table == Table::Spans && s.min_time <= to && (s.max_time >= from || s.has_open)
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

    pub fn has_rows(&self) -> bool {
        self.has_rows
    }

    /// The steps that rows name; `None` if it is not known without reading them.
    pub fn steps(&self) -> Option<BTreeSet<i64>> {
        if self.unknown.iter().any(|segment| segment.own) {
            return None;
        }
        Some(self.own.iter().flat_map(|census| census.steps()).collect())
    }

    /// Of a step that lasted from one time to another.
    pub fn fingerprint(&self, step: Option<i64>, (from, to): (i64, i64)) -> u64 {
        // As far as rows are looked for that belong to the step.
        let (from, to) = (from.saturating_sub(SKEW_NS), to.saturating_add(SKEW_NS));
        let own = self.own.iter().map(AsRef::as_ref);
        let sum = |sum: u64, of: u64| sum.wrapping_add(of);
        let (named, unnamed) = match step {
            Some(step) => {
                let spans = self.spans.iter();
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
