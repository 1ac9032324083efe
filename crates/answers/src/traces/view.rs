//! One trace, laid out: every span once, parents before children, children by their start, with what a waterfall needs
//! worked out: depth, size of the subtree, time spent in the span itself, its lane, what is damaged, how clocks differ.
//! Linear in the number of spans but for one sort.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, DictionaryArray, FixedSizeBinaryArray, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringArray, UInt32Array,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{Field, Int32Type, Int64Type, Schema};
use arrow::error::ArrowError;
use hashbrown::HashMap;
use rollscope_model::TraceId;
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
    /// Hung under its caller by the request id, not by a context.
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

const NONE: i32 = -1;
/// That of the parent.
const NO_LANE: u32 = u32::MAX;
/// A link leads out of this view.
const ELSEWHERE: i32 = -2;
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
    let mut layout = Layout::new(*trace, &all);
    layout.relate();
    layout.order();
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
    "request_id",
    "events",
    "links",
];

struct Layout<'a> {
    trace: TraceId,
    all: &'a RecordBatch,
    start: &'a Int64Array,
    end: Vec<i64>,
    parent: Vec<i32>,
    link: Vec<i32>,
    flags: Vec<u32>,
    /// Rows in the order they are drawn.
    drawn: Vec<u32>,
    depth: Vec<i32>,
    subtree: Vec<i32>,
    own_ns: Vec<f64>,
    lane: Vec<u32>,
    lanes: Vec<String>,
    /// Place of the row's trace among `traces`; the one that was asked for is the first.
    trace_of: Vec<i32>,
    traces: Vec<TraceId>,
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> &'a ArrayRef {
    batch.column_by_name(name).expect("the columns were chosen above")
}

fn ids<'a>(batch: &'a RecordBatch, name: &str) -> &'a FixedSizeBinaryArray {
    column(batch, name).as_fixed_size_binary()
}

/// A dictionary column: the key of a row, and the text of a key.
struct Text<'a> {
    array: &'a DictionaryArray<Int32Type>,
    values: &'a StringArray,
    /// The first key with the same text: batches were joined, and a text may stand in the dictionary more than once.
    first: Vec<i32>,
}

impl<'a> Text<'a> {
    fn of(batch: &'a RecordBatch, name: &str) -> Self {
        let array = column(batch, name).as_dictionary::<Int32Type>();
        let values = array.values().as_string();
        let mut seen: HashMap<&str, i32> = HashMap::new();
        let first = (0..values.len()).map(|k| *seen.entry(values.value(k)).or_insert(k as i32)).collect();
        Text { array, values, first }
    }

    /// A number that two rows share if and only if they have the same text, or neither has one.
    fn id(&self, row: usize) -> i32 {
        match self.array.keys().is_valid(row) {
            true => self.first[self.array.keys().value(row) as usize],
            false => NONE,
        }
    }

    /// The column as it is told on, each text once.
    fn taken(&self, order: &UInt32Array) -> Result<ArrayRef, ArrowError> {
        let keys: Int32Array = self.array.keys().unary(|key| self.first.get(key as usize).copied().unwrap_or(0));
        let column = DictionaryArray::<Int32Type>::try_new(keys, self.array.values().clone())?;
        arrow::compute::take(&column, order, None)
    }

    fn get(&self, row: usize) -> Option<&'a str> {
        self.array.keys().is_valid(row).then(|| self.values.value(self.array.keys().value(row) as usize))
    }
}

/// Host, thread and service as [`Text::id`] has them, ranks, and whether it is a root: what a lane's label is made from.
type LaneKey = (i32, i32, i32, [Option<i32>; 3], bool);
/// The number of its trace, and the span's id.
type SpanKey = (i32, [u8; 8]);

fn array<const N: usize>(id: &[u8]) -> [u8; N] {
    id.try_into().unwrap_or([0; N])
}

/// Children by their parents, in the order in which they were added.
struct Children {
    from: Vec<u32>,
    all: Vec<u32>,
}

impl Children {
    fn new(parent: &[i32], in_order: &[u32]) -> Children {
        let mut from = vec![0u32; parent.len() + 1];
        for p in parent.iter().filter(|p| **p != NONE) {
            from[*p as usize + 1] += 1;
        }
        for i in 0..parent.len() {
            from[i + 1] += from[i];
        }
        let mut all = vec![0; from[parent.len()] as usize];
        let mut next = from.clone();
        for i in in_order {
            let p = parent[*i as usize];
            if p != NONE {
                all[next[p as usize] as usize] = *i;
                next[p as usize] += 1;
            }
        }
        Children { from, all }
    }

    fn of(&self, row: usize) -> &[u32] {
        &self.all[self.from[row] as usize..self.from[row + 1] as usize]
    }
}

impl<'a> Layout<'a> {
    fn new(trace: TraceId, all: &'a RecordBatch) -> Self {
        let start = column(all, "start_ns").as_primitive::<Int64Type>();
        let ends = column(all, "end_ns").as_primitive::<Int64Type>();
        let n = all.num_rows();
        // An open span lasts as long as anything is known.
        let last = (0..n).map(|i| if ends.is_valid(i) { ends.value(i) } else { start.value(i) }).max().unwrap_or(0);
        let (state, status) = (Text::of(all, "state"), Text::of(all, "status"));
        let events = column(all, "events").as_list::<i32>();
        let mut flags = vec![0; n];
        let mut end = Vec::with_capacity(n);
        for (i, f) in flags.iter_mut().enumerate() {
            match state.get(i) {
                Some("open") => *f |= flags::OPEN,
                Some("instant") => *f |= flags::INSTANT,
                Some("orphan_end") => *f |= flags::ORPHAN_END,
                _ => {}
            }
            if status.get(i) == Some("error") {
                *f |= flags::ERROR;
            }
            if events.value_length(i) > 0 {
                *f |= flags::HAS_EVENTS;
            }
            let s = start.value(i);
            end.push(match ends.is_valid(i) {
                true if ends.value(i) < s => {
                    *f |= flags::NEGATIVE;
                    s
                }
                true => ends.value(i),
                false if *f & flags::OPEN != 0 => last.max(s),
                false => s,
            });
        }
        Layout {
            trace,
            all,
            start,
            end,
            parent: vec![NONE; n],
            link: vec![NONE; n],
            flags,
            drawn: Vec::with_capacity(n),
            depth: vec![0; n],
            subtree: vec![1; n],
            own_ns: vec![0.0; n],
            lane: vec![0; n],
            lanes: Vec::new(),
            trace_of: Vec::new(),
            traces: vec![trace],
        }
    }

    fn rows(&self) -> usize {
        self.all.num_rows()
    }

    /// Parents and links as rows.
    fn relate(&mut self) {
        let (traces, spans) = (ids(self.all, "trace_id"), ids(self.all, "span_id"));
        let parents = ids(self.all, "parent_span_id");
        let n = self.rows();
        let mut known: HashMap<TraceId, i32> = HashMap::from([(self.trace, 0)]);
        let mut by_id: HashMap<SpanKey, i32> = HashMap::with_capacity(n);
        for i in 0..n {
            let id = array(traces.value(i));
            let number = match id == self.trace {
                true => 0,
                false => *known.entry(id).or_insert_with(|| {
                    self.traces.push(id);
                    self.traces.len() as i32 - 1
                }),
            };
            self.trace_of.push(number);
            by_id.insert((number, array(spans.value(i))), i as i32);
        }
        // Who sent a request: of several spans that know it, the one that began last, which is the innermost.
        let requests = Text::of(self.all, "request_id");
        let mut callers: HashMap<&str, i32> = HashMap::new();
        for i in 0..n {
            if self.trace_of[i] == 0
                && let Some(request) = requests.get(i)
            {
                let caller = callers.entry(request).or_insert(i as i32);
                if self.start.value(i) > self.start.value(*caller as usize) {
                    *caller = i as i32;
                }
            }
        }
        for i in 0..n {
            if parents.is_valid(i) {
                match by_id.get(&(self.trace_of[i], array(parents.value(i)))) {
                    Some(parent) if *parent != i as i32 => self.parent[i] = *parent,
                    _ => self.flags[i] |= flags::MISSING_PARENT,
                }
            } else if self.trace_of[i] != 0
                && let Some(caller) = requests.get(i).and_then(|r| callers.get(r))
            {
                self.parent[i] = *caller;
                self.flags[i] |= flags::JOINED;
            }
        }
        let links = column(self.all, "links").as_list::<i32>();
        let items = links.values().as_struct();
        let (to_trace, to_span) = (items.column(0).as_fixed_size_binary(), items.column(1).as_fixed_size_binary());
        for i in 0..n {
            let at = links.value_offsets()[i] as usize;
            if links.value_length(i) > 0 {
                self.flags[i] |= flags::HAS_LINKS;
                let found = known.get(&array::<16>(to_trace.value(at)));
                let found = found.and_then(|trace| by_id.get(&(*trace, array(to_span.value(at)))));
                self.link[i] = found.copied().unwrap_or(ELSEWHERE);
            }
        }
    }

    /// Parents before children, children by start; then what follows from it.
    fn order(&mut self) {
        let n = self.rows();
        let mut by_start: Vec<u32> = (0..n as u32).collect();
        by_start.sort_unstable_by_key(|i| {
            let i = *i as usize;
            (self.start.value(i), std::cmp::Reverse(self.end[i]), i)
        });
        let children = Children::new(&self.parent, &by_start);
        let roots: Vec<u32> = by_start.into_iter().filter(|i| self.parent[*i as usize] == NONE).collect();
        let mut seen = vec![false; n];
        self.walk(&roots, &children, &mut seen);
        // What only knows itself as its ancestor is shown too.
        for i in 0..n {
            if !seen[i] {
                self.parent[i] = NONE;
                self.flags[i] |= flags::MISSING_PARENT;
                self.walk(&[i as u32], &children, &mut seen);
            }
        }
        // Sizes of subtrees, from the last row up.
        for at in (0..self.drawn.len()).rev() {
            let i = self.drawn[at] as usize;
            if self.parent[i] != NONE {
                self.subtree[self.parent[i] as usize] += self.subtree[i];
            }
        }
        self.lanes_and_times(&children);
    }

    fn walk(&mut self, roots: &[u32], children: &Children, seen: &mut [bool]) {
        let mut stack: Vec<u32> = roots.iter().rev().copied().collect();
        while let Some(i) = stack.pop() {
            if std::mem::replace(&mut seen[i as usize], true) {
                continue;
            }
            self.drawn.push(i);
            for child in children.of(i as usize).iter().rev() {
                if !seen[*child as usize] {
                    self.depth[*child as usize] = self.depth[i as usize] + 1;
                    stack.push(*child);
                }
            }
        }
    }

    fn lanes_and_times(&mut self, children: &Children) {
        let all = self.all;
        let text = |name| Text::of(all, name);
        let (thread, host, service) = (text("thread"), text("host"), text("service"));
        let rank = |name| column(all, name).as_primitive::<Int32Type>();
        let ranks = [("PP", rank("pp_rank")), ("DP", rank("dp_rank")), ("TP", rank("tp_rank"))];
        let name = text("name");
        // By what makes them, so that a label is written once, and by their labels.
        let mut made: HashMap<LaneKey, u32> = HashMap::new();
        let mut known: HashMap<String, u32> = HashMap::new();
        let mut repeats = Repeats::default();
        for at in 0..self.drawn.len() {
            let i = self.drawn[at] as usize;
            let parent = self.parent[i];
            let own_thread = thread.get(i).is_some();
            if own_thread {
                self.flags[i] |= flags::THREAD;
            }
            self.lane[i] = if own_thread || parent == NONE || service.id(i) != service.id(parent as usize) {
                let rank = |n: usize| (own_thread && ranks[n].1.is_valid(i)).then(|| ranks[n].1.value(i));
                let of = (host.id(i), thread.id(i), service.id(i), [0, 1, 2].map(rank), parent == NONE);
                *made.entry(of).or_insert_with(|| {
                    let mut label = on_host(host.get(i), thread.get(i).or(service.get(i)).unwrap_or_default());
                    for ((which, _), rank) in ranks.iter().zip(of.3) {
                        if let Some(rank) = rank {
                            label.push_str(&format!("-{which}{rank}"));
                        }
                    }
                    if label.is_empty() && parent != NONE {
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
            if self.lane[i] == NO_LANE && parent != NONE {
                self.lane[i] = self.lane[parent as usize];
            }
            if parent != NONE {
                let p = parent as usize;
                let outside = self.start.value(i) < self.start.value(p) || self.end[i] > self.end[p];
                if outside && self.flags[p] & (flags::INSTANT | flags::ORPHAN_END) == 0 {
                    self.flags[i] |= flags::OUTSIDE_PARENT;
                }
            }
            // Only below a thread: elsewhere two spans with the same times are two things.
            let in_thread =
                parent != NONE && self.flags[i] & flags::THREAD == 0 && thread.get(parent as usize).is_some();
            if in_thread && repeats.again(self.lane[i], name.id(i) as u32, self.start.value(i), self.end[i]) {
                self.flags[i] |= flags::REPEATED;
            }
            // What no child covers.
            let mut own = (self.end[i] - self.start.value(i)) as f64;
            let mut until = self.start.value(i);
            for child in children.of(i) {
                let c = *child as usize;
                let from = self.start.value(c).max(until);
                let to = self.end[c].min(self.end[i]);
                if to > from {
                    own -= (to - from) as f64;
                    until = to;
                }
            }
            self.own_ns[i] = own.max(0.0);
        }
    }

    /// A child cannot begin before its parent, nor a span before what it links to. Where the hosts differ and it seems to,
    /// a clock is off: at least by that much.
    fn clocks(&self) -> Vec<HostClock> {
        let host = Text::of(self.all, "host");
        let service = Text::of(self.all, "service");
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        let mut names: Vec<&str> = Vec::new();
        // Hosts as threads name them; a span without one is where its parent is, if it is of the same service.
        let mut of = vec![usize::MAX; self.rows()];
        for i in &self.drawn {
            let i = *i as usize;
            of[i] = match (host.get(i), self.parent[i]) {
                (Some(name), _) if !name.is_empty() => *numbers.entry(name).or_insert_with(|| {
                    names.push(name);
                    names.len() - 1
                }),
                (_, p) if p != NONE && service.id(i) == service.id(p as usize) => of[p as usize],
                _ => usize::MAX,
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
        for i in 0..self.rows() {
            if self.parent[i] != NONE {
                let p = self.parent[i] as usize;
                let start = self.start.value(p).saturating_sub(self.start.value(i));
                let closed = self.flags[i] & flags::OPEN == 0 && self.flags[p] & flags::OPEN == 0;
                let fits =
                    self.end[i].saturating_sub(self.start.value(i)) <= self.end[p].saturating_sub(self.start.value(p));
                // A child may outlive its parent; one that would fit is expected to.
                let end = if closed && fits { self.end[p].saturating_sub(self.end[i]) } else { i64::MAX };
                learn(of[p], of[i], start, end);
            }
            if self.link[i] >= 0 {
                let l = self.link[i] as usize;
                learn(of[l], of[i], self.start.value(l).saturating_sub(self.start.value(i)), i64::MAX);
            }
        }
        // From the host of the root outwards.
        let root = self.drawn.iter().map(|i| of[*i as usize]).find(|h| *h != usize::MAX).unwrap_or(0);
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
        (0..self.rows()).map(|i| self.start.value(i)).min().unwrap_or(0)
    }

    fn batch(&self) -> Result<RecordBatch, ArrowError> {
        let base = self.base();
        let n = self.drawn.len();
        let mut place = vec![NONE; n];
        for (at, i) in self.drawn.iter().enumerate() {
            place[*i as usize] = at as i32;
        }
        let row = |r: i32| if r < 0 { r } else { place[r as usize] };
        let rows = || self.drawn.iter().map(|i| *i as usize);
        let order = UInt32Array::from(self.drawn.clone());
        let taken = |name: &str| arrow::compute::take(column(self.all, name), &order, None);
        let lane_keys = Int32Array::from_iter_values(rows().map(|i| self.lane[i] as i32));
        let lane_values = StringArray::from_iter_values(if self.lanes.is_empty() {
            vec![""]
        } else {
            self.lanes.iter().map(String::as_str).collect()
        });
        let lanes = DictionaryArray::<Int32Type>::try_new(lane_keys, Arc::new(lane_values))?;
        let shown_end = |i: usize| (self.end[i] - base) as f64;
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("trace", Arc::new(Int32Array::from_iter_values(rows().map(|i| self.trace_of[i])))),
            ("span_id", taken("span_id")?),
            ("parent", Arc::new(Int32Array::from_iter_values(rows().map(|i| row(self.parent[i]))))),
            ("depth", Arc::new(Int32Array::from_iter_values(rows().map(|i| self.depth[i])))),
            ("subtree", Arc::new(Int32Array::from_iter_values(rows().map(|i| self.subtree[i])))),
            ("link", Arc::new(Int32Array::from_iter_values(rows().map(|i| row(self.link[i]))))),
            ("flags", Arc::new(UInt32Array::from_iter_values(rows().map(|i| self.flags[i])))),
            ("start", Arc::new(Float64Array::from_iter_values(rows().map(|i| (self.start.value(i) - base) as f64)))),
            ("end", Arc::new(Float64Array::from_iter_values(rows().map(shown_end)))),
            ("own", Arc::new(Float64Array::from_iter_values(rows().map(|i| self.own_ns[i])))),
            ("name", Text::of(self.all, "name").taken(&order)?),
            ("service", Text::of(self.all, "service").taken(&order)?),
            ("host", Text::of(self.all, "host").taken(&order)?),
            ("lane", Arc::new(lanes)),
        ];
        let fields: Vec<Field> =
            columns.iter().map(|(name, a)| Field::new(*name, a.data_type().clone(), true)).collect();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.into_iter().map(|(_, a)| a).collect())
    }

    fn summary(&self, hosts: Vec<HostClock>) -> Summary {
        let count = |flag: u32| self.flags.iter().filter(|f| **f & flag != 0).count();
        let base = self.base();
        let all: Vec<String> = self.traces.iter().map(hex::encode).collect();
        // Spans of other traces may be drawn above it: those that were joined by a request id.
        let first = self.drawn.iter().find(|row| self.trace_of[**row as usize] == 0);
        let run = first.and_then(|row| Text::of(self.all, "run_id").get(*row as usize));
        Summary {
            trace_id: all[0].clone(),
            run_id: run.unwrap_or_default().to_string(),
            base_ns: base.to_string(),
            spans: self.rows(),
            duration_ns: self.end.iter().max().map_or(0, |end| end - base),
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
