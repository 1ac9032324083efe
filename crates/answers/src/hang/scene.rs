//! What a run was doing at one moment: the spans that were open, what is usual, and who sent what last. Read once from columns.

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use hashbrown::{HashMap, HashSet};
use rollscope_model::names::{self, state};
use rollscope_model::read::{Attrs, Ids, Ints, column};
use rollscope_model::{SpanId, TraceId};
use rollscope_spans::{NONE, Texts};

use crate::kinds::{Kind, classify};

/// The columns of `spans` that are needed; `request_id` only of those that are open.
pub const SPAN_COLUMNS: &[&str] = &[
    "run_id",
    "trace_id",
    "span_id",
    "parent_span_id",
    "name",
    "phase",
    "service",
    "resource",
    "step",
    "sample_id",
    "request_id",
    "start_ns",
    "end_ns",
    "state",
];
/// And of those that are open, beside their ids.
pub const DETAIL_COLUMNS: &[&str] = &["trace_id", "span_id", "start_attrs", "end_attrs"];
/// Of `series`.
pub const SERIES_COLUMNS: &[&str] = &["target", "name", "labels", "time_ns", "value"];

/// Rows as the store has them. No span starts after `at_ns`. What ended after it counts as open.
#[derive(Default)]
pub struct Rows {
    pub run: String,
    pub at_ns: i64,
    /// What the run says of itself, if it is over: its status, and when it ended.
    pub over: Option<(String, i64)>,
    /// Of the run: those that are open, and what came before. Of other runs: those that are open.
    pub spans: Vec<RecordBatch>,
    pub details: Vec<RecordBatch>,
    /// Of engines.
    pub series: Vec<RecordBatch>,
    /// Signs of life, by process and stretch of time: `target`, `first_ns`, `last_ns` and how many (`points`).
    pub beats: Vec<RecordBatch>,
    /// The times at which the run logged metrics (`time_ns`).
    pub metrics: Vec<RecordBatch>,
}

/// Seconds of the history that are remembered one by one.
const MAX_SECONDS: usize = 7 * 86_400;
/// Lengths of spans of one name that are remembered.
const MAX_LENGTHS: usize = 100_000;
/// Longest text taken from an attribute.
const MAX_TEXT: usize = 200;

pub struct Open {
    pub trace: TraceId,
    pub span: SpanId,
    /// Among the open ones.
    pub parent: Option<usize>,
    pub has_children: bool,
    pub name: u32,
    pub kind: Kind,
    pub sender: u32,
    pub start: i64,
    /// As named, or by the nearest parent that names one.
    pub sample: u32,
    pub step: Option<i64>,
    pub request: u32,
    /// Of another run: an engine's.
    pub foreign: bool,
    /// Where the request goes, as the caller says.
    pub address: Option<String>,
    pub tool: Option<String>,
    pub rank: Option<String>,
}

/// How long spans of one name usually take, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usual {
    pub count: usize,
    pub median: f64,
    pub longest: f64,
}

/// One process that sends.
#[derive(Clone, Debug, Default)]
pub struct Sender {
    pub label: String,
    pub service: String,
    pub host: String,
    pub pid: Option<i64>,
    pub rank: Option<String>,
    /// As its signs of life are stored: `service/instance`.
    pub target: String,
    /// The last start or end of a span, and its name.
    pub last_ns: i64,
    pub last_name: u32,
}

#[derive(Default)]
pub struct Scene {
    pub run: String,
    pub at: i64,
    pub over: Option<(String, i64)>,
    pub texts: Texts,
    pub open: Vec<Open>,
    pub senders: HashMap<u32, Sender>,
    usual: HashMap<u32, Usual>,
    /// The last start or end of a span of the run.
    pub last: Option<i64>,
    /// Seconds in which something happened: the first of them, and one flag each.
    pub zero: i64,
    pub seconds: Vec<bool>,
    /// Steps that are over.
    pub steps_over: HashSet<i64>,
    pub usual_step: Option<Usual>,
    /// How many spans of a name each sender has finished since the current step began.
    pub finished: HashMap<(u32, u32), u64>,
    /// Who sent spans of a name at all.
    pub sent: HashMap<u32, HashSet<u32>>,
    /// The number of the newest step, when it began, and the samples that began since.
    pub step: Option<i64>,
    pub step_start: Option<i64>,
    pub samples: usize,
    /// Spans that were read.
    pub spans: usize,
}

struct Columns {
    runs: Vec<u32>,
    names: Vec<u32>,
    phases: Vec<u32>,
    senders: Vec<u32>,
    services: Vec<u32>,
    samples: Vec<u32>,
    requests: Vec<u32>,
    states: Vec<u32>,
    starts: Vec<i64>,
    ends: Vec<Option<i64>>,
    steps: Vec<Option<i64>>,
}

impl Columns {
    fn read(batches: &[RecordBatch], texts: &mut Texts) -> Result<Columns, ArrowError> {
        let mut text = |name: &str| texts.column(batches, name);
        let ints = |name: &str| -> Result<Vec<Option<i64>>, ArrowError> {
            let mut out = Vec::new();
            for batch in batches {
                out.extend(column::<Ints>(batch, name)?.iter());
            }
            Ok(out)
        };
        Ok(Columns {
            runs: text("run_id")?,
            names: text("name")?,
            phases: text("phase")?,
            senders: text("resource")?,
            services: text("service")?,
            samples: text("sample_id")?,
            requests: text("request_id")?,
            states: text("state")?,
            starts: ints("start_ns")?.into_iter().map(Option::unwrap_or_default).collect(),
            ends: ints("end_ns")?,
            steps: ints("step")?,
        })
    }
}

impl Scene {
    pub fn read(rows: &Rows) -> Result<Scene, ArrowError> {
        let mut scene = Scene { run: rows.run.clone(), at: rows.at_ns, over: rows.over.clone(), ..Scene::default() };
        let mut texts = Texts::default();
        let columns = Columns::read(&rows.spans, &mut texts)?;
        let (own, is_open, ended) = (texts.find(&rows.run), texts.find(state::OPEN), texts.find(state::ORPHAN_END));
        let mut kinds: HashMap<(u32, u32), Kind> = HashMap::new();
        let mut kind_of = |row: usize| {
            *kinds.entry((columns.names[row], columns.phases[row])).or_insert_with(|| {
                let said = (columns.phases[row] != NONE).then(|| texts.get(columns.phases[row]));
                classify(texts.get(columns.names[row]), said)
            })
        };
        let at = rows.at_ns;
        // With `None`: it is a point, or only its end came.
        let end_of = |row: usize| match columns.ends[row] {
            Some(end) if end > at => None,
            Some(end) => Some(end),
            None if Some(columns.states[row]) == is_open => None,
            None => Some(columns.starts[row]),
        };
        let known = |row: usize| columns.starts[row] <= at && (Some(columns.states[row]) != ended);

        scene.read_open(rows, &columns, own, &mut kind_of, &known, &end_of)?;
        scene.find_step(&columns, own, &mut kind_of, &known, &end_of);
        let mut lengths: HashMap<u32, Vec<f32>> = HashMap::new();
        let mut step_lengths: Vec<f32> = Vec::new();
        let begin = (0..columns.starts.len()).filter(|row| Some(columns.runs[*row]) == own && known(*row));
        let earliest = begin.map(|row| columns.starts[row]).min().unwrap_or(at);
        scene.zero = earliest.max(at.saturating_sub(MAX_SECONDS as i64 * SECOND));
        scene.seconds = vec![false; ((at - scene.zero) / SECOND).max(0) as usize + 1];
        let mut begun: HashSet<u32> = HashSet::new();
        // Of other runs: only who serves this one.
        let serving: HashSet<u32> = scene.open.iter().filter(|open| open.foreign).map(|open| open.sender).collect();
        for row in (0..columns.starts.len()).filter(|row| known(*row)) {
            let (start, end) = (columns.starts[row], end_of(row));
            let (name, sender) = (columns.names[row], columns.senders[row]);
            if Some(columns.runs[row]) != own && !serving.contains(&sender) {
                continue;
            }
            let of = scene.senders.entry(sender).or_insert_with(|| {
                // By its resource alone: other columns may differ from span to span.
                sender_of(texts.get(sender), texts.get(columns.services[row]))
            });
            let last = end.unwrap_or(start);
            // Of two at the same time, one must be last whatever the order of rows.
            if last > of.last_ns || last == of.last_ns && texts.get(name) > texts.get(of.last_name) {
                (of.last_ns, of.last_name) = (last, name);
            }
            if Some(columns.runs[row]) != own {
                continue;
            }
            scene.spans += 1;
            scene.last = scene.last.max(Some(last));
            scene.note(start);
            if columns.samples[row] != NONE && scene.step_start.is_none_or(|begin| start >= begin) {
                begun.insert(columns.samples[row]);
            }
            let Some(end) = end else { continue };
            scene.note(end);
            scene.sent.entry(name).or_default().insert(sender);
            if end > start {
                let seconds = (end - start) as f32 / 1e9;
                let of = lengths.entry(name).or_default();
                if of.len() < MAX_LENGTHS {
                    of.push(seconds);
                }
                if kind_of(row) == Kind::Step && columns.samples[row] == NONE {
                    step_lengths.push(seconds);
                }
            }
            if scene.step_start.is_none_or(|begin| end >= begin) {
                *scene.finished.entry((sender, name)).or_default() += 1;
            }
        }
        scene.samples = begun.len();
        scene.usual = lengths.into_iter().filter_map(|(name, lengths)| Some((name, usual(lengths)?))).collect();
        scene.usual_step = usual(step_lengths);
        for batch in &rows.metrics {
            for time in column::<Ints>(batch, "time_ns")?.iter().flatten().filter(|time| *time <= at) {
                scene.note(time);
                scene.last = scene.last.max(Some(time));
            }
        }
        scene.texts = texts;
        scene.read_details(&rows.details)?;
        Ok(scene)
    }

    fn read_open(
        &mut self,
        rows: &Rows,
        columns: &Columns,
        own: Option<u32>,
        kind_of: &mut impl FnMut(usize) -> Kind,
        known: &impl Fn(usize) -> bool,
        end_of: &impl Fn(usize) -> Option<i64>,
    ) -> Result<(), ArrowError> {
        let mut parents: Vec<Option<SpanId>> = Vec::new();
        let mut row = 0;
        for batch in &rows.spans {
            let (traces, spans, up): (Ids<16>, Ids<8>, Ids<8>) =
                (column(batch, "trace_id")?, column(batch, "span_id")?, column(batch, "parent_span_id")?);
            for at in 0..batch.num_rows() {
                if known(row) && end_of(row).is_none() {
                    parents.push(up.get(at));
                    self.open.push(Open {
                        trace: traces.at(at),
                        span: spans.at(at),
                        parent: None,
                        has_children: false,
                        name: columns.names[row],
                        kind: kind_of(row),
                        sender: columns.senders[row],
                        start: columns.starts[row],
                        sample: columns.samples[row],
                        step: columns.steps[row],
                        request: columns.requests[row],
                        foreign: Some(columns.runs[row]) != own,
                        address: None,
                        tool: None,
                        rank: None,
                    });
                }
                row += 1;
            }
        }
        let by_id: HashMap<(TraceId, SpanId), usize> =
            self.open.iter().enumerate().map(|(at, open)| ((open.trace, open.span), at)).collect();
        let mut elsewhere: HashSet<(TraceId, SpanId)> = HashSet::new();
        for (at, parent) in parents.iter().enumerate() {
            let Some(id) = parent.map(|id| (self.open[at].trace, id)) else { continue };
            match by_id.get(&id).filter(|up| **up != at) {
                Some(up) => self.open[at].parent = Some(*up),
                None => _ = elsewhere.insert(id),
            }
        }
        let over = if elsewhere.is_empty() { HashSet::new() } else { closed_among(&rows.spans, &elsewhere)? };
        let traces: HashSet<TraceId> = self.open.iter().filter(|o| !o.foreign).map(|o| o.trace).collect();
        let requests: HashSet<u32> =
            self.open.iter().filter(|o| !o.foreign && o.request != NONE).map(|o| o.request).collect();
        // What outlives its parent is waited for by nobody. Other runs' spans count where they serve this one.
        let keep: Vec<bool> = self
            .open
            .iter()
            .zip(&parents)
            .map(|(open, parent)| {
                let left = parent.is_some_and(|id| over.contains(&(open.trace, id)));
                let serves = !open.foreign || traces.contains(&open.trace) || requests.contains(&open.request);
                !left && serves
            })
            .collect();
        self.retain(&keep);
        Ok(())
    }

    /// Keeps some of the open spans, and what is below none of the others.
    pub fn retain(&mut self, keep: &[bool]) {
        let mut stays = keep.to_vec();
        for at in 0..self.open.len() {
            let mut up = self.open[at].parent;
            for _ in 0..MAX_DEPTH {
                let Some(parent) = up else { break };
                if !stays[parent] {
                    stays[at] = false;
                    break;
                }
                up = self.open[parent].parent;
            }
        }
        let mut places = vec![None; self.open.len()];
        let mut next = 0;
        for (at, stays) in stays.iter().enumerate() {
            if *stays {
                places[at] = Some(next);
                next += 1;
            }
        }
        let mut at = 0;
        self.open.retain(|_| {
            at += 1;
            stays[at - 1]
        });
        for open in &mut self.open {
            open.parent = open.parent.and_then(|parent| places[parent]);
            open.has_children = false;
        }
        for at in 0..self.open.len() {
            if let Some(parent) = self.open[at].parent {
                self.open[parent].has_children = true;
            }
            let (mut sample, mut step) = (self.open[at].sample, self.open[at].step);
            let mut up = self.open[at].parent;
            for _ in 0..MAX_DEPTH {
                let Some(parent) = up.filter(|_| sample == NONE || step.is_none()) else { break };
                let parent = &self.open[parent];
                sample = if sample == NONE { parent.sample } else { sample };
                step = step.or(parent.step);
                up = parent.parent;
            }
            (self.open[at].sample, self.open[at].step) = (sample, step);
        }
    }

    /// The newest step, and which are over. What is open of a step that is over was left behind.
    fn find_step(
        &mut self,
        columns: &Columns,
        own: Option<u32>,
        kind_of: &mut impl FnMut(usize) -> Kind,
        known: &impl Fn(usize) -> bool,
        end_of: &impl Fn(usize) -> Option<i64>,
    ) {
        let mut newest: Option<(i64, i64)> = None;
        for row in (0..columns.starts.len()).filter(|row| Some(columns.runs[*row]) == own && known(*row)) {
            let is_step = kind_of(row) == Kind::Step;
            let Some(step) = columns.steps[row] else { continue };
            if is_step && columns.samples[row] == NONE && end_of(row).is_some() {
                self.steps_over.insert(step);
            }
            newest = newest.max(Some((columns.starts[row], step)));
        }
        let over = std::mem::take(&mut self.steps_over);
        let keep: Vec<bool> = self.open.iter().map(|open| open.step.is_none_or(|step| !over.contains(&step))).collect();
        self.retain(&keep);
        self.steps_over = over;
        let is_step = |open: &&Open| open.kind == Kind::Step && !open.foreign && open.sample == NONE;
        let current = self.open.iter().filter(is_step).max_by_key(|open| open.start);
        self.step = current.and_then(|open| open.step).or(newest.map(|(_, step)| step));
        self.step_start = current.map(|open| open.start);
        if self.step_start.is_none() {
            let of_step = |row: &usize| columns.steps[*row] == self.step && self.step.is_some();
            let rows = (0..columns.starts.len()).filter(|row| Some(columns.runs[*row]) == own && known(*row));
            self.step_start = rows.filter(of_step).map(|row| columns.starts[row]).min();
        }
    }

    fn read_details(&mut self, batches: &[RecordBatch]) -> Result<(), ArrowError> {
        let by_id: HashMap<(TraceId, SpanId), usize> =
            self.open.iter().enumerate().map(|(at, open)| ((open.trace, open.span), at)).collect();
        for batch in batches {
            let (traces, spans): (Ids<16>, Ids<8>) = (column(batch, "trace_id")?, column(batch, "span_id")?);
            let (start, end): (Attrs, Attrs) = (column(batch, "start_attrs")?, column(batch, "end_attrs")?);
            for row in 0..batch.num_rows() {
                let Some(at) = by_id.get(&(traces.at(row), spans.at(row))) else { continue };
                let open = &mut self.open[*at];
                let mut port = None;
                let (mut address, mut tool) = ((usize::MAX, None), (usize::MAX, None));
                for (key, value) in start.row(row).chain(end.row(row)) {
                    if let Some(place) = ADDRESS.iter().position(|known| *known == key)
                        && place < address.0
                    {
                        address = (place, plain(value));
                    } else if let Some(place) = names::TOOL_NAME.iter().position(|known| *known == key && key != "name")
                        && place < tool.0
                    {
                        tool = (place, plain(value));
                    } else if key == "server.port" {
                        port = plain(value);
                    } else if RANK.contains(&key) {
                        open.rank = plain(value);
                    }
                }
                open.address = address.1.map(|host| match port.filter(|_| !host.contains(':')) {
                    Some(port) => format!("{host}:{port}"),
                    None => host,
                });
                open.tool = tool.1;
            }
        }
        Ok(())
    }

    /// Something happened at this time.
    pub fn note(&mut self, time: i64) {
        if time >= self.zero
            && let Some(slot) = self.seconds.get_mut(((time - self.zero) / SECOND) as usize)
        {
            *slot = true;
        }
    }

    /// The longest time, in seconds, in which nothing happened before `until`. None if too little is known.
    pub fn longest_pause(&self, until: i64) -> Option<f64> {
        let seconds = ((until - self.zero) / SECOND).clamp(0, self.seconds.len() as i64) as usize;
        let happened: Vec<usize> = (0..seconds).filter(|at| self.seconds[*at]).collect();
        happened.windows(2).map(|pair| (pair[1] - pair[0]) as f64).reduce(f64::max)
    }

    pub fn usual(&self, name: u32) -> Option<Usual> {
        self.usual.get(&name).copied()
    }

    pub fn age(&self, start: i64) -> f64 {
        (self.at - start).max(0) as f64 / 1e9
    }
}

pub const SECOND: i64 = 1_000_000_000;
/// Parents above parents.
const MAX_DEPTH: usize = 64;

/// Where a request goes, by the names that callers use; the first that is there is believed.
const ADDRESS: &[&str] = &[
    "engine",
    "rl.engine",
    "worker_url",
    "server.address",
    "url.full",
    "http.url",
    "net.peer.name",
    "peer.service",
    "endpoint",
    "base_url",
];
pub const RANK: &[&str] = &["rank", "rl.rank", "global_rank", "world_rank"];

/// Text or a number, as a JSON value writes it.
fn plain(json: &str) -> Option<String> {
    let text = match serde_json::from_str::<serde_json::Value>(json).ok()? {
        serde_json::Value::String(text) => text,
        serde_json::Value::Number(number) => number.to_string(),
        _ => return None,
    };
    (!text.is_empty()).then(|| text.chars().take(MAX_TEXT).collect())
}

fn usual(mut lengths: Vec<f32>) -> Option<Usual> {
    let count = lengths.len();
    if count == 0 {
        return None;
    }
    lengths.sort_unstable_by(f32::total_cmp);
    Some(Usual { count, median: lengths[count / 2].into(), longest: lengths[count - 1].into() })
}

/// Which of these spans are here and over.
fn closed_among(
    batches: &[RecordBatch],
    wanted: &HashSet<(TraceId, SpanId)>,
) -> Result<HashSet<(TraceId, SpanId)>, ArrowError> {
    let mut found = HashSet::new();
    for batch in batches {
        let (traces, spans): (Ids<16>, Ids<8>) = (column(batch, "trace_id")?, column(batch, "span_id")?);
        let ids = (0..batch.num_rows()).map(|row| (traces.at(row), spans.at(row)));
        found.extend(ids.filter(|id| wanted.contains(id)));
    }
    Ok(found)
}

/// A process, by its resource.
pub fn sender_of(resource: &str, service: &str) -> Sender {
    let fields: serde_json::Value = serde_json::from_str(resource).unwrap_or_default();
    let text = |key: &str| fields[key].as_str().map(|text| text.chars().take(MAX_TEXT).collect::<String>());
    let number = |key: &str| fields[key].as_i64().or_else(|| fields[key].as_str()?.parse().ok());
    let host = names::HOST.iter().find_map(|key| text(key)).unwrap_or_default();
    let pid = number(names::PROCESS_PID);
    let instance = text(names::SERVICE_INSTANCE_ID);
    let rank = RANK.iter().find_map(|key| number(key)).map(|rank| rank.to_string());
    let label = match (&instance, pid) {
        (Some(instance), _) if !is_random(instance) => instance.clone(),
        (_, Some(pid)) if !host.is_empty() => format!("{service} on {host}, pid {pid}"),
        (_, Some(pid)) => format!("{service}, pid {pid}"),
        _ if !host.is_empty() => format!("{service} on {host}"),
        _ => service.to_string(),
    };
    let target = instance.map_or(service.to_string(), |instance| format!("{service}/{instance}"));
    Sender { label, service: service.to_string(), host, pid, rank, target, last_ns: i64::MIN, last_name: NONE }
}

/// An id that says nothing to people.
fn is_random(id: &str) -> bool {
    let digits = id.bytes().filter(|b| b.is_ascii_hexdigit() || *b == b'-').count();
    digits == id.len() && id.len() >= 16
}

impl Sender {
    /// With its rank, where that is known and not in its name.
    pub fn name(&self) -> String {
        match &self.rank {
            Some(rank) => format!("rank {rank} ({})", self.label),
            None => self.label.clone(),
        }
    }
}
