//! Delta temporality: points that state what was added since the last one. `series` holds running totals, because rates
//! need them. So every stream of deltas (a metric with its labels, from one source) is summed here.
//!
//! - A point that comes again (a retry) is recognised by its interval and adds nothing.
//! - A point that comes late (another sender of the same stream was faster) is entered just after the last one.
//! - A series begins with a sample of what it was before its first point, so that the first point counts in a rate.
//! - The sums are in the store, at the last sample of each series: [`Source::of_stored`] continues from there.

use std::collections::{BTreeMap, HashMap, VecDeque};

use arrow::array::RecordBatch;
use rollscope_model::build::SeriesBuilder;
use serde_json::value::RawValue;

use super::metrics::{COUNTER, GAUGE, HISTOGRAM, Histogram, MAX_BUCKETS, Point, STALE};
use super::span::{Reason, Rejects};

const NS_PER_MS: i64 = 1_000_000;
/// Intervals that a stream remembers, to know them again.
const REMEMBERED: usize = 32;
/// How much later than others of its stream a point may come.
const MAX_LATE_NS: i64 = 300_000 * NS_PER_MS;
/// Memory for the streams of one source.
const MAX_SOURCE_BYTES: usize = 32 << 20;
/// What a stream takes beside its name and its buckets.
const STREAM_BYTES: usize = 256 + REMEMBERED * 16;

/// One data point that states what was added between two times.
#[derive(Clone, Debug)]
pub struct Delta {
    pub run_id: String,
    pub target: String,
    pub(super) kind: &'static str,
    pub(super) name: String,
    /// Sorted; values as JSON text.
    pub(super) labels: Vec<(String, String)>,
    /// Zero if the sender does not set it.
    pub(super) start_ns: i64,
    pub(super) time_ns: i64,
    /// None: the series ended.
    pub(super) added: Option<Total>,
}

impl Delta {
    /// When the interval began, as far as that is known.
    pub fn start_ns(&self) -> i64 {
        if self.start_ns > 0 { self.start_ns } else { self.time_ns }
    }

    /// Sorted out by run and target, in their order.
    pub fn by_source(deltas: Vec<Delta>) -> BTreeMap<(String, String), Vec<Delta>> {
        let mut sources: BTreeMap<_, Vec<Delta>> = BTreeMap::new();
        for delta in deltas {
            sources.entry((delta.run_id.clone(), delta.target.clone())).or_default().push(delta);
        }
        sources
    }

    fn stream(&self) -> String {
        key(self.kind, &self.name, &self.labels)
    }
}

fn key(kind: &str, name: &str, labels: &[(String, String)]) -> String {
    let mut out = format!("{kind}\0{name}");
    for (name, value) in labels {
        out.extend(["\0", name.as_str(), "\0", value.as_str()]);
    }
    out
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Total {
    Number(f64),
    Histogram(Histogram),
}

impl Total {
    /// What it was before anything was added.
    fn zero(&self) -> Total {
        match self {
            Total::Number(_) => Total::Number(0.0),
            Total::Histogram(h) => Total::Histogram(Histogram { sum: h.sum.map(|_| 0.0), ..Histogram::default() }),
        }
    }

    fn plus(&self, added: &Total) -> Total {
        match (self, added) {
            (Total::Histogram(total), Total::Histogram(added)) => Total::Histogram(total.plus(added)),
            (Total::Number(total), Total::Number(added)) => Total::Number(total + added),
            // The kind is part of a stream's key.
            (_, added) => added.clone(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Total::Number(_) => 0,
            Total::Histogram(h) => h.buckets.len() * 16,
        }
    }
}

impl Histogram {
    /// How many are at most `bound`; `None` if the buckets do not show it.
    fn at(&self, bound: f64) -> Option<f64> {
        match self.buckets.binary_search_by(|(b, _)| b.total_cmp(&bound)) {
            Ok(i) => Some(self.buckets[i].1),
            Err(i) => {
                let below = i.checked_sub(1).map_or(0.0, |i| self.buckets[i].1);
                let above = self.buckets.get(i).map_or(self.count, |b| b.1);
                // Inside an empty bucket nothing changes.
                (below == above).then_some(below)
            }
        }
    }

    /// Both together. Buckets may differ (exponential ones do): the bounds at which both are known are kept.
    fn plus(&self, added: &Histogram) -> Histogram {
        let mut bounds: Vec<f64> = self.buckets.iter().chain(&added.buckets).map(|b| b.0).collect();
        bounds.sort_by(f64::total_cmp);
        bounds.dedup();
        let both = |bound: f64| Some((bound, self.at(bound)? + added.at(bound)?));
        let mut buckets: Vec<(f64, f64)> = bounds.into_iter().filter_map(both).collect();
        while buckets.len() > MAX_BUCKETS {
            // Every second bound is as right as all of them.
            let mut n = 0;
            buckets.retain(|_| {
                n += 1;
                n % 2 == 0
            });
        }
        Histogram { buckets, count: self.count + added.count, sum: self.sum.zip(added.sum).map(|(a, b)| a + b) }
    }
}

struct Stream {
    total: Total,
    last_ns: i64,
    /// Intervals that were added, oldest first.
    counted: VecDeque<(i64, i64)>,
    /// Points up to here were added, but which is not known any more.
    forgotten_ns: i64,
}

/// What becomes of a point.
enum Verdict {
    Add { time_ns: i64 },
    Again,
    Refuse,
}

impl Stream {
    fn judge(&self, start_ns: i64, time_ns: i64) -> Verdict {
        if self.counted.contains(&(start_ns, time_ns)) {
            return Verdict::Again;
        }
        if time_ns > self.last_ns {
            return Verdict::Add { time_ns };
        }
        if time_ns == self.forgotten_ns {
            // After a restart: the last point that was stored, sent again.
            return Verdict::Again;
        }
        if time_ns < self.forgotten_ns || self.last_ns - time_ns > MAX_LATE_NS {
            return Verdict::Refuse;
        }
        Verdict::Add { time_ns: (self.last_ns / NS_PER_MS + 1).saturating_mul(NS_PER_MS) }
    }

    fn count(&mut self, interval: (i64, i64)) {
        if self.counted.len() == REMEMBERED
            && let Some((_, time_ns)) = self.counted.pop_front()
        {
            self.forgotten_ns = self.forgotten_ns.max(time_ns);
        }
        self.counted.push_back(interval);
    }
}

/// The last sample of a stored series.
#[derive(Clone, Debug)]
pub struct Stored {
    pub name: String,
    /// As in `series.labels`.
    pub labels: String,
    pub kind: String,
    pub time_ns: i64,
    pub value: f64,
}

/// Running totals of all streams of one source: a run and a target.
#[derive(Default)]
pub struct Source {
    streams: HashMap<String, Stream>,
    bytes: usize,
}

/// Rows that were made of deltas, and what was refused.
#[derive(Default)]
pub struct Summed {
    columns: SeriesBuilder,
    rejects: Rejects,
}

impl Summed {
    pub fn finish(mut self) -> (RecordBatch, u64, Vec<String>) {
        let batch = self.columns.finish().expect("columns are written row by row");
        (batch, self.rejects.total, self.rejects.reasons())
    }
}

impl Source {
    /// Goes on from what the store has.
    pub fn of_stored(rows: Vec<Stored>) -> Source {
        let mut source = Source::default();
        let mut histograms: HashMap<String, Vec<(Part, i64, f64)>> = HashMap::new();
        for row in rows {
            let Some(mut labels) = stored_labels(&row.labels) else { continue };
            let kind = match row.kind.as_str() {
                "counter" => COUNTER,
                "gauge" => GAUGE,
                "histogram" => {
                    if let Some((part, name)) = Part::of(&row.name, &mut labels) {
                        let key = key(HISTOGRAM, name, &labels);
                        histograms.entry(key).or_default().push((part, row.time_ns, row.value));
                    }
                    continue;
                }
                _ => continue,
            };
            source.resume(key(kind, &row.name, &labels), Total::Number(row.value), row.time_ns);
        }
        for (key, parts) in histograms {
            // All parts of a histogram are written together; a bucket that was given up has an older time.
            let Some(last_ns) = parts.iter().map(|p| p.1).max() else { continue };
            let mut total = Histogram::default();
            for (part, _, value) in parts.into_iter().filter(|p| p.1 == last_ns) {
                match part {
                    Part::Bucket(bound) if bound.is_finite() => total.buckets.push((bound, value)),
                    Part::Bucket(_) => {}
                    Part::Sum => total.sum = Some(value),
                    Part::Count => total.count = value,
                }
            }
            total.buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            source.resume(key, Total::Histogram(total), last_ns);
        }
        source
    }

    fn resume(&mut self, key: String, total: Total, last_ns: i64) {
        self.bytes += key.len() + STREAM_BYTES + total.bytes();
        let stream = Stream { total, last_ns, counted: VecDeque::new(), forgotten_ns: last_ns };
        self.streams.insert(key, stream);
    }

    /// Memory in use, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds points of this source up and writes the totals.
    pub fn add(&mut self, deltas: Vec<Delta>, out: &mut Summed) {
        let mut deltas: Vec<(String, Delta)> = deltas.into_iter().map(|d| (d.stream(), d)).collect();
        deltas.sort_by(|(a, x), (b, y)| (a, x.time_ns, x.start_ns).cmp(&(b, y.time_ns, y.start_ns)));
        // The same interval twice in one message is not a retry: two scopes have a metric of the same name.
        deltas.dedup_by(|(key, next), (kept_key, kept)| {
            let same = key == kept_key && (next.time_ns, next.start_ns) == (kept.time_ns, kept.start_ns);
            match (same, &mut kept.added, &next.added) {
                (true, Some(total), Some(added)) => {
                    *total = total.plus(added);
                    true
                }
                _ => false,
            }
        });
        for (key, delta) in deltas {
            if let Err(reason) = self.add_one(key, delta, &mut out.columns) {
                out.rejects.add(reason, 1);
            }
        }
    }

    fn add_one(&mut self, key: String, delta: Delta, columns: &mut SeriesBuilder) -> Result<(), Reason> {
        let mut point = Point {
            columns,
            run_id: &delta.run_id,
            target: &delta.target,
            kind: delta.kind,
            labels: delta.labels,
            time_ns: delta.time_ns,
        };
        let known = self.streams.get(&key);
        let Some(added) = delta.added else {
            if let Some(stream) = known.filter(|s| s.last_ns < delta.time_ns) {
                write(&mut point, &delta.name, &stream.total, true, |_| true);
            }
            return Ok(());
        };
        let (before, time_ns) = match &known {
            None => (added.zero(), delta.time_ns),
            Some(stream) => match stream.judge(delta.start_ns, delta.time_ns) {
                Verdict::Again => return Ok(()),
                Verdict::Refuse => return Err(Reason::LateDelta),
                Verdict::Add { time_ns } => (stream.total.clone(), time_ns),
            },
        };
        let total = before.plus(&added);
        let is_new = known.is_none();
        let bytes = total.bytes() + if is_new { key.len() + STREAM_BYTES } else { 0 };
        if is_new && self.bytes + bytes > MAX_SOURCE_BYTES {
            return Err(Reason::TooManyDeltas(MAX_SOURCE_BYTES));
        }
        self.bytes = (self.bytes + bytes).saturating_sub(if is_new { 0 } else { before.bytes() });
        // What a new series was before: just after the start, where the last sample of an older one may be, and before
        // the point itself. PromQL distinguishes milliseconds.
        if delta.start_ns > 0 {
            point.time_ns = (delta.start_ns / NS_PER_MS + 1).min(time_ns / NS_PER_MS - 1) * NS_PER_MS;
            let opening = before.at_bounds_of(&total);
            write(&mut point, &delta.name, &opening, false, |bound| is_new || !before.has(bound));
        }
        point.time_ns = time_ns;
        write(&mut point, &delta.name, &total, false, |_| true);
        let interval = (delta.start_ns, delta.time_ns);
        let fresh = || Stream { total: before, last_ns: 0, counted: VecDeque::new(), forgotten_ns: i64::MIN };
        let stream = self.streams.entry(key).or_insert_with(fresh);
        stream.total = total;
        stream.last_ns = time_ns;
        stream.count(interval);
        Ok(())
    }
}

impl Total {
    /// The same total at the bounds of another.
    fn at_bounds_of(&self, other: &Total) -> Total {
        match (self, other) {
            (Total::Histogram(h), Total::Histogram(other)) => {
                let buckets = other.buckets.iter().filter_map(|(bound, _)| Some((*bound, h.at(*bound)?))).collect();
                Total::Histogram(Histogram { buckets, ..h.clone() })
            }
            _ => self.clone(),
        }
    }

    /// Is there a series for this bound? (None: the series that every kind has.)
    fn has(&self, bound: Option<f64>) -> bool {
        match (self, bound) {
            (Total::Histogram(h), Some(bound)) => h.buckets.binary_search_by(|b| b.0.total_cmp(&bound)).is_ok(),
            _ => true,
        }
    }
}

/// The rows of a total, as far as they are wanted.
fn write(point: &mut Point, name: &str, total: &Total, stale: bool, wanted: impl Fn(Option<f64>) -> bool) {
    match total {
        Total::Number(value) if wanted(None) => point.push(name, None, if stale { STALE } else { *value }),
        Total::Number(_) => {}
        Total::Histogram(h) => h.write(point, name, stale, wanted),
    }
}

/// Which series of a histogram a stored one is.
enum Part {
    Bucket(f64),
    Sum,
    Count,
}

impl Part {
    /// And the name of the histogram. Takes `le` out of the labels.
    fn of<'n>(name: &'n str, labels: &mut Vec<(String, String)>) -> Option<(Part, &'n str)> {
        if let Some(name) = name.strip_suffix("_bucket") {
            let place = labels.iter().position(|(name, _)| name == "le")?;
            let bound: String = serde_json::from_str(&labels.remove(place).1).ok()?;
            return Some((Part::Bucket(bound.parse().ok()?), name));
        }
        let sum = name.strip_suffix("_sum").map(|name| (Part::Sum, name));
        sum.or_else(|| name.strip_suffix("_count").map(|name| (Part::Count, name)))
    }
}

/// Labels as [`Point`] has them, of the text that it writes.
fn stored_labels(text: &str) -> Option<Vec<(String, String)>> {
    let labels: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text).ok()?;
    let plain = |name: String| match name.strip_prefix("$$") {
        Some(rest) => format!("${rest}"),
        None => name,
    };
    let mut labels: Vec<_> = labels.into_iter().map(|(name, value)| (plain(name), value.get().to_string())).collect();
    labels.sort();
    Some(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_point_after_the_last_possible_time_is_taken() {
        let (total, counted) = (Total::Number(0.0), VecDeque::new());
        let stream = Stream { total, last_ns: i64::MAX, counted, forgotten_ns: 0 };
        assert!(matches!(stream.judge(0, i64::MAX - 1), Verdict::Add { time_ns: i64::MAX }));
    }
}
