//! One trace, laid out: every span once, parents before children, children by their start, with what a waterfall needs:
//! depth, size of the subtree, time spent in the span itself, its lane, what is damaged, how clocks differ.
//! Linear in the number of spans but for one sort.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, DictionaryArray, Float64Array, Int32Array, RecordBatch, StringArray, UInt32Array};
use arrow::compute::concat_batches;
use arrow::datatypes::{Field, Int32Type, Schema};
use arrow::error::ArrowError;
use hashbrown::HashMap;
use rollscope_model::TraceId;
use rollscope_model::read::{Events, Links, SmallInts, column};
use rollscope_spans::joins::Connections;
use rollscope_spans::{Forest, NONE, State, Texts, Walk, fault, intervals};
use serde::Serialize;
use utoipa::ToSchema;

use super::requests::Repeats;

/// Bits of the column `flags`.
pub mod flags {
    pub const OPEN: u32 = 1;
    pub const INSTANT: u32 = 2;
    pub const ORPHAN_END: u32 = 4;
    pub const ERROR: u32 = 8;
    /// It names a parent that is not there.
    pub const MISSING_PARENT: u32 = 16;
    /// It begins before its parent or ends after it.
    pub const OUTSIDE_PARENT: u32 = 32;
    /// Hung under its caller by the request id or a link, not by a context.
    pub const JOINED: u32 = 64;
    /// The same piece of engine work as another span of another request.
    pub const REPEATED: u32 = 128;
    pub const HAS_EVENTS: u32 = 256;
    pub const HAS_LINKS: u32 = 512;
    /// It ends before it begins.
    pub const NEGATIVE: u32 = 1024;
    /// It is a thread of a request (SGLang's second level).
    pub const THREAD: u32 = 2048;
}

/// What is said of the trace as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
#[schema(as = TraceSummary)]
pub struct Summary {
    pub trace_id: String,
    /// The run of the span that the trace begins with.
    pub run_id: String,
    /// Zero of `start` and `end`, in nanoseconds since the epoch, as text.
    pub base_ns: String,
    pub spans: usize,
    pub duration_ns: i64,
    pub errors: usize,
    pub open: usize,
    pub missing_parents: usize,
    pub outside_parents: usize,
    pub repeated: usize,
    pub joined: usize,
    /// All traces that are in here, the one that was asked for first.
    pub traces: Vec<String>,
    pub hosts: Vec<HostClock>,
}

/// How far a host's clock is off, as far as the spans tell.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct HostClock {
    pub host: String,
    /// Adding this to its times puts its spans where their parents and links allow. 0: nothing speaks against its clock.
    pub shift_ns: i64,
    /// Parents, children and links across hosts that were looked at.
    pub pairs: usize,
    /// Whether one shift satisfies all of them.
    pub consistent: bool,
}

/// That of the parent.
const NO_LANE: u32 = u32::MAX;
/// A link leads out of this view.
const ELSEWHERE: i32 = -2;
/// There is no link.
const NO_LINK: i32 = -1;
/// Skew is looked for over this many hosts.
const MAX_HOSTS: usize = 1024;

/// The spans of a trace and those of traces that are joined to it, as `spans` stores them; at least [`COLUMNS`].
pub fn layout(trace: &TraceId, batches: &[RecordBatch]) -> Result<(Summary, RecordBatch), ArrowError> {
    let Some(first) = batches.first() else {
        return Err(ArrowError::InvalidArgumentError("there are no spans".into()));
    };
    let wanted: Vec<usize> = COLUMNS.iter().map(|name| first.schema().index_of(name)).collect::<Result<_, _>>()?;
    let narrow: Vec<RecordBatch> = batches.iter().map(|b| b.project(&wanted)).collect::<Result<_, _>>()?;
    let all = concat_batches(&narrow[0].schema(), &narrow)?;
    let mut layout = Layout::read(*trace, &all)?;
    layout.place();
    let hosts = layout.clocks();
    let batch = layout.batch()?;
    Ok((layout.summary(hosts), batch))
}

/// What a layout is made from.
pub const COLUMNS: &[&str] = &[
    "run_id",
    "trace_id",
    "span_id",
    "parent_span_id",
    "name",
    "service",
    "thread",
    "host",
    "tp_rank",
    "dp_rank",
    "pp_rank",
    "start_ns",
    "end_ns",
    "state",
    "status",
    "sample_id",
    "request_id",
    "bootstrap_room",
    "events",
    "links",
];

struct Layout<'a> {
    all: &'a RecordBatch,
    forest: Forest,
    walk: Walk,
    /// Rows, [`ELSEWHERE`] or [`NO_LINK`].
    link: Vec<i32>,
    flags: Vec<u32>,
    subtree: Vec<i32>,
    own_ns: Vec<f64>,
    lane: Vec<u32>,
    lanes: Vec<String>,
    /// Place of the row's trace among `traces`; the one that was asked for is the first.
    trace_of: Vec<u32>,
    traces: Vec<TraceId>,
    texts: Texts,
    run: Vec<u32>,
    name: Vec<u32>,
    service: Vec<u32>,
    thread: Vec<u32>,
    host: Vec<u32>,
}

/// Host, thread and service by number, ranks, and whether it is a root: what a lane's label is made from.
type LaneKey = (u32, u32, u32, [Option<i32>; 3], bool);

impl<'a> Layout<'a> {
    fn read(trace: TraceId, all: &'a RecordBatch) -> Result<Self, ArrowError> {
        let batches = std::slice::from_ref(all);
        let mut forest = Forest::read(batches)?;
        let mut texts = Texts::default();
        let mut text = |name: &str| forest.texts(batches, name, &mut texts);
        let (run, name, service, thread) = (text("run_id")?, text("name")?, text("service")?, text("thread")?);
        let (host, status, sample) = (text("host")?, text("status")?, text("sample_id")?);
        // The trace that was asked for comes first.
        let asked = forest.traces.iter().position(|id| *id == trace).map_or(NONE, |place| place as u32);
        let others = forest.traces.iter().filter(|id| **id != trace);
        let traces = std::iter::once(&trace).chain(others).copied().collect();
        let renumbered = |number: &u32| match *number {
            number if number == asked => 0,
            number if number < asked => number + 1,
            number => number,
        };
        let trace_of: Vec<u32> = forest.trace.iter().map(renumbered).collect();

        let error = texts.find("error");
        let (events, links): (Events, Links) = (column(all, "events")?, column(all, "links")?);
        let mut flags = vec![0; forest.len()];
        let mut link = vec![NO_LINK; forest.len()];
        for (i, f) in flags.iter_mut().enumerate() {
            let source = forest.source[i] as usize;
            *f |= match forest.state[i] {
                State::Closed => 0,
                State::Open => flags::OPEN,
                State::Instant => flags::INSTANT,
                State::OrphanEnd => flags::ORPHAN_END,
            };
            let marks = [
                (Some(status[i]) == error, flags::ERROR),
                (forest.faults[i] & fault::BACKWARDS != 0, flags::NEGATIVE),
                (forest.faults[i] & (fault::LOST_PARENT | fault::IN_CIRCLE) != 0, flags::MISSING_PARENT),
                (!events.of(source).is_empty(), flags::HAS_EVENTS),
                (thread[i] != NONE, flags::THREAD),
            ];
            *f |= marks.into_iter().filter(|(is, _)| *is).map(|(_, mark)| mark).sum::<u32>();
            if let Some(first) = links.of(source).next() {
                *f |= flags::HAS_LINKS;
                let ids = links.trace_id.get(first).zip(links.span_id.get(first));
                let found = ids.and_then(|(trace, span)| forest.find(&trace, &span));
                link[i] = found.map_or(ELSEWHERE, |row| row as i32);
            }
        }
        for root in Connections::read(&forest, batches)?.attach(&mut forest, &sample) {
            flags[root as usize] |= flags::JOINED;
        }
        let walk = Walk::of(&forest);
        let n = forest.len();
        Ok(Layout {
            all,
            forest,
            walk,
            link,
            flags,
            subtree: vec![1; n],
            own_ns: vec![0.0; n],
            lane: vec![0; n],
            lanes: Vec::new(),
            trace_of,
            traces,
            texts,
            run,
            name,
            service,
            thread,
            host,
        })
    }

    fn rows(&self) -> usize {
        self.forest.len()
    }

    fn text(&self, number: u32) -> Option<&str> {
        (number != NONE).then(|| self.texts.get(number))
    }

    /// The parent, as a row.
    fn parent(&self, i: usize) -> Option<usize> {
        Some(self.forest.parent[i] as usize).filter(|_| self.forest.parent[i] != NONE)
    }

    /// Sizes of subtrees, lanes, own times, and what is odd about a span.
    fn place(&mut self) {
        // From the last row up.
        for i in self.walk.order.iter().rev().map(|i| *i as usize) {
            if let Some(parent) = self.parent(i) {
                self.subtree[parent] += self.subtree[i];
            }
        }
        self.lanes_and_times();
    }

    fn lanes_and_times(&mut self) {
        let all = self.all;
        let rank = |name| column::<SmallInts>(all, name).ok();
        let ranks = [("PP", rank("pp_rank")), ("DP", rank("dp_rank")), ("TP", rank("tp_rank"))];
        // By what makes them, so that a label is written once, and by their labels.
        let mut made: HashMap<LaneKey, u32> = HashMap::new();
        let mut known: HashMap<String, u32> = HashMap::new();
        let mut repeats = Repeats::default();
        for at in 0..self.walk.order.len() {
            let i = self.walk.order[at] as usize;
            let parent = self.parent(i);
            let (start, end) = (self.forest.start[i], self.forest.end[i]);
            let own_thread = self.flags[i] & flags::THREAD != 0;
            self.lane[i] = if own_thread || parent.is_none_or(|p| self.service[i] != self.service[p]) {
                let source = self.forest.source[i] as usize;
                let rank = |n: usize| ranks[n].1.as_ref().filter(|_| own_thread).and_then(|rank| rank.get(source));
                let key = (self.host[i], self.thread[i], self.service[i], [0, 1, 2].map(rank), parent.is_none());
                *made.entry(key).or_insert_with(|| {
                    let label = self.text(self.thread[i]).or(self.text(self.service[i])).unwrap_or_default();
                    let mut label = on_host(self.text(self.host[i]), label);
                    for ((which, _), rank) in ranks.iter().zip(key.3) {
                        if let Some(rank) = rank {
                            label.push_str(&format!("-{which}{rank}"));
                        }
                    }
                    if label.is_empty() && parent.is_some() {
                        return NO_LANE;
                    }
                    *known.entry(label.clone()).or_insert_with(|| {
                        self.lanes.push(label);
                        self.lanes.len() as u32 - 1
                    })
                })
            } else {
                NO_LANE
            };
            if let Some(p) = parent {
                if self.lane[i] == NO_LANE {
                    self.lane[i] = self.lane[p];
                }
                let outside = start < self.forest.start[p] || end > self.forest.end[p];
                if outside && !self.forest.state[p].is_point() {
                    self.flags[i] |= flags::OUTSIDE_PARENT;
                }
                // Only below a thread: elsewhere two spans with the same times are two things.
                let in_thread = !own_thread && self.flags[p] & flags::THREAD != 0;
                if in_thread && repeats.again(self.lane[i], self.name[i], start, end) {
                    self.flags[i] |= flags::REPEATED;
                }
            }
            let times = |child: &u32| (self.forest.start[*child as usize], self.forest.end[*child as usize]);
            let children = self.walk.children.of(i).iter().map(times);
            // What no child covers.
            self.own_ns[i] = (end - start - intervals::covered(children, start, end)) as f64;
        }
    }

    /// A child cannot begin before its parent, nor a span before what it links to. Where the hosts differ and it seems to,
    /// a clock is off: at least by that much.
    fn clocks(&self) -> Vec<HostClock> {
        let mut numbers: HashMap<u32, usize> = HashMap::new();
        let mut names: Vec<&str> = Vec::new();
        // Hosts as threads name them; a span without one is where its parent is, if it is of the same service.
        let mut of = vec![usize::MAX; self.rows()];
        for i in self.walk.order.iter().map(|i| *i as usize) {
            of[i] = match (self.texts.get(self.host[i]), self.parent(i)) {
                ("", Some(p)) if self.service[i] == self.service[p] => of[p],
                ("", _) => usize::MAX,
                (name, _) => *numbers.entry(self.host[i]).or_insert_with(|| {
                    names.push(name);
                    names.len() - 1
                }),
            };
        }
        if names.len() < 2 || names.len() > MAX_HOSTS {
            return Vec::new();
        }
        // (from host, to host): the least and the most that may be added to the second's times.
        let mut bounds: HashMap<(usize, usize), (i64, i64, usize)> = HashMap::new();
        let mut learn = |a: usize, b: usize, low: i64, high: i64| {
            if a != usize::MAX && b != usize::MAX && a != b {
                let entry = bounds.entry((a, b)).or_insert((i64::MIN, i64::MAX, 0));
                *entry = (entry.0.max(low), entry.1.min(high), entry.2 + 1);
                let back = bounds.entry((b, a)).or_insert((i64::MIN, i64::MAX, 0));
                *back = (back.0.max(high.saturating_neg()), back.1.min(low.saturating_neg()), back.2 + 1);
            }
        };
        let (starts, ends) = (&self.forest.start, &self.forest.end);
        for i in 0..self.rows() {
            if let Some(p) = self.parent(i) {
                let closed = (self.flags[i] | self.flags[p]) & flags::OPEN == 0;
                let fits = ends[i].saturating_sub(starts[i]) <= ends[p].saturating_sub(starts[p]);
                // A child may outlive its parent; one that would fit is expected to.
                let end = if closed && fits { ends[p].saturating_sub(ends[i]) } else { i64::MAX };
                learn(of[p], of[i], starts[p].saturating_sub(starts[i]), end);
            }
            if let Ok(l) = usize::try_from(self.link[i]) {
                learn(of[l], of[i], starts[l].saturating_sub(starts[i]), i64::MAX);
            }
        }
        // From the host of the root outwards.
        let root = self.walk.order.iter().map(|i| of[*i as usize]).find(|h| *h != usize::MAX).unwrap_or(0);
        let mut shift: Vec<Option<HostClock>> = vec![None; names.len()];
        let clock =
            |h: usize, shift_ns, pairs, consistent| HostClock { host: names[h].into(), shift_ns, pairs, consistent };
        shift[root] = Some(clock(root, 0, 0, true));
        let mut queue = std::collections::VecDeque::from([root]);
        while let Some(from) = queue.pop_front() {
            let base = shift[from].as_ref().map_or(0, |c| c.shift_ns);
            let mut next: Vec<_> = bounds.iter().filter(|((a, _), _)| *a == from).collect();
            next.sort_unstable_by_key(|((_, b), _)| *b);
            for ((_, to), (low, high, pairs)) in next {
                if shift[*to].is_some() {
                    continue;
                }
                let need = match (*low, *high) {
                    (low, _) if low > 0 => low,
                    (_, high) if high < 0 => high,
                    _ => 0,
                };
                shift[*to] = Some(clock(*to, base.saturating_add(need), *pairs, low <= high));
                queue.push_back(*to);
            }
        }
        shift.into_iter().enumerate().map(|(h, c)| c.unwrap_or_else(|| clock(h, 0, 0, true))).collect()
    }

    fn base(&self) -> i64 {
        // Rows stand by start.
        self.forest.start.first().copied().unwrap_or(0)
    }

    fn batch(&self) -> Result<RecordBatch, ArrowError> {
        let base = self.base();
        let order = &self.walk.order;
        let mut place = vec![0; order.len()];
        for (at, i) in order.iter().enumerate() {
            place[*i as usize] = at as i32;
        }
        let rows = || order.iter().map(|i| *i as usize);
        let ints = |of: &dyn Fn(usize) -> i32| -> ArrayRef { Arc::new(Int32Array::from_iter_values(rows().map(of))) };
        let floats =
            |of: &dyn Fn(usize) -> f64| -> ArrayRef { Arc::new(Float64Array::from_iter_values(rows().map(of))) };
        let flags = UInt32Array::from_iter_values(rows().map(|i| self.flags[i]));
        let sources = UInt32Array::from_iter_values(rows().map(|i| self.forest.source[i]));
        let span_ids = arrow::compute::take(&self.all["span_id"], &sources, None)?;
        let lane_keys = Int32Array::from_iter_values(rows().map(|i| self.lane[i] as i32));
        let lane_values = StringArray::from_iter_values(if self.lanes.is_empty() {
            vec![""]
        } else {
            self.lanes.iter().map(String::as_str).collect()
        });
        let lanes = DictionaryArray::<Int32Type>::try_new(lane_keys, Arc::new(lane_values))?;
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("trace", ints(&|i| self.trace_of[i] as i32)),
            ("span_id", span_ids),
            ("parent", ints(&|i| self.parent(i).map_or(-1, |parent| place[parent]))),
            ("depth", ints(&|i| self.walk.depth[i] as i32)),
            ("subtree", ints(&|i| self.subtree[i])),
            ("link", ints(&|i| usize::try_from(self.link[i]).map_or(self.link[i], |to| place[to]))),
            ("flags", Arc::new(flags)),
            ("start", floats(&|i| (self.forest.start[i] - base) as f64)),
            ("end", floats(&|i| (self.forest.end[i] - base) as f64)),
            ("own", floats(&|i| self.own_ns[i])),
            ("name", self.dictionary(&self.name)?),
            ("service", self.dictionary(&self.service)?),
            ("host", self.dictionary(&self.host)?),
            ("lane", Arc::new(lanes)),
        ];
        let fields: Vec<Field> =
            columns.iter().map(|(name, a)| Field::new(*name, a.data_type().clone(), true)).collect();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.into_iter().map(|(_, a)| a).collect())
    }

    /// A column of texts as it is sent, each text once.
    fn dictionary(&self, numbers: &[u32]) -> Result<ArrayRef, ArrowError> {
        let mut values: Vec<&str> = Vec::new();
        let mut keys: HashMap<u32, i32> = HashMap::new();
        let key = |i: &u32| {
            let number = numbers[*i as usize];
            (number != NONE).then(|| {
                *keys.entry(number).or_insert_with(|| {
                    values.push(self.texts.get(number));
                    values.len() as i32 - 1
                })
            })
        };
        let keys: Int32Array = self.walk.order.iter().map(key).collect();
        Ok(Arc::new(DictionaryArray::<Int32Type>::try_new(keys, Arc::new(StringArray::from(values)))?))
    }

    fn summary(&self, hosts: Vec<HostClock>) -> Summary {
        let count = |flag: u32| self.flags.iter().filter(|f| **f & flag != 0).count();
        let base = self.base();
        let all: Vec<String> = self.traces.iter().map(hex::encode).collect();
        // Spans of other traces may be drawn above it: those that were joined by a request id.
        let first = self.walk.order.iter().map(|row| *row as usize).find(|row| self.trace_of[*row] == 0);
        let run = first.map(|row| self.texts.get(self.run[row]));
        Summary {
            trace_id: all[0].clone(),
            run_id: run.unwrap_or_default().to_string(),
            base_ns: base.to_string(),
            spans: self.rows(),
            duration_ns: self.forest.end.iter().max().map_or(0, |end| end - base),
            errors: count(flags::ERROR),
            open: count(flags::OPEN),
            missing_parents: count(flags::MISSING_PARENT),
            outside_parents: count(flags::OUTSIDE_PARENT),
            repeated: count(flags::REPEATED),
            joined: count(flags::JOINED),
            traces: all,
            hosts,
        }
    }
}

fn on_host(host: Option<&str>, name: &str) -> String {
    match host.unwrap_or_default() {
        "" => name.to_string(),
        host => format!("{}:{name}", host.chars().take(8).collect::<String>()),
    }
}
