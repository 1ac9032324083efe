//! The spans and samples of one step, read once into arrays that every question shares.
//!
//! Rows are put in one order that does not depend on how they arrived (start, longest first, ids). Then, in linear passes:
//! - **parents** by id; a parent that is not there is counted, and its child hangs under the longest span of its trace
//!   that contains it; circles are cut.
//! - **clocks**: see [`super::clocks`]; the times of senders whose clock is off are moved, and it is said by how much.
//! - **shared spans**: slime writes a span over a group once for each member. Spans of one name and group whose ends agree
//!   are one span with the children of all ([`StepData::shared`]); so a group waits for its slowest member and its time
//!   counts once.
//! - **waits**: who waits for a span ([`StepData::waiter`]) is its parent, if that ends later; a child that outlives its
//!   parent is waited for by the nearest ancestor that outlives it, or by nobody. A root that is linked to a span around
//!   it (slime's samples to the trainer's rollout) or belongs to a sample inside a rollout is waited for by that.

use arrow::array::cast::AsArray;
use arrow::array::{Array, ArrayRef, DictionaryArray, FixedSizeBinaryArray, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{Int32Type, Int64Type};
use arrow::error::ArrowError;
use hashbrown::HashMap;

use super::attributes::{self, SpanFacts};
use super::clocks::{self, Clock};
use super::kinds::{Kind, classify, is_generation, is_said_rollout};

/// No such row.
pub const NONE: u32 = u32::MAX;

/// Ends of a shared span's copies agree to this: they are written one after the other.
const SHARED_NS: i64 = 5_000_000;

pub mod flag {
    pub const OPEN: u8 = 1;
    pub const ERROR: u8 = 2;
    /// No length: an instant, or an end without a start.
    pub const POINT: u8 = 4;
    pub const GENERATION: u8 = 8;
    pub const MISSING_PARENT: u8 = 16;
    /// Written once for each member of a group.
    pub const SHARED: u8 = 32;
    /// Its sender says that it is a rollout, or part of one.
    pub const SAID_ROLLOUT: u8 = 64;
}

/// Texts by number.
#[derive(Default)]
pub struct Texts {
    by_text: HashMap<String, u32>,
    pub list: Vec<String>,
}

impl Texts {
    pub fn intern(&mut self, text: &str) -> u32 {
        if let Some(id) = self.by_text.get(text) {
            return *id;
        }
        let id = self.list.len() as u32;
        self.by_text.insert(text.to_string(), id);
        self.list.push(text.to_string());
        id
    }

    pub fn get(&self, id: u32) -> &str {
        self.list.get(id as usize).map_or("", String::as_str)
    }
}

/// Where spans run: a process or thread with its ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Worker {
    pub service: u32,
    pub host: u32,
    pub thread: u32,
    pub pid: Option<i64>,
    pub ranks: [Option<i32>; 3],
    /// The sender it belongs to: an engine with all its processes.
    pub sender: u32,
}

/// What the table of samples says.
#[derive(Clone, Debug, Default)]
pub struct SampleRow {
    pub group: u32,
    pub source: u32,
    pub status: u32,
    pub reward: Option<f64>,
    pub response_tokens: Option<i64>,
    pub cached_tokens: Option<i64>,
    pub cache_total_tokens: Option<i64>,
    pub spec_accepted: Option<i64>,
    pub spec_drafted: Option<i64>,
    pub spec_verifies: Option<i64>,
    pub weight_versions: Vec<i64>,
    pub listed: bool,
}

#[derive(Default)]
pub struct StepData {
    pub start: Vec<i64>,
    /// Of open spans: the latest time known of the step.
    pub end: Vec<i64>,
    pub name: Vec<u32>,
    pub kind: Vec<Kind>,
    pub flags: Vec<u8>,
    pub parent: Vec<u32>,
    /// Who waits for it; [`NONE`]: the step itself, [`DETACHED`]: nobody.
    pub waiter: Vec<u32>,
    /// The span that stands for it where a span was written once for each member of a group; else itself.
    pub shared: Vec<u32>,
    pub trace: Vec<u32>,
    pub sample: Vec<u32>,
    pub group: Vec<u32>,
    pub attempt: Vec<i32>,
    pub worker: Vec<u32>,
    pub sender: Vec<u32>,
    pub ids: Vec<([u8; 16], [u8; 8])>,
    link_ends: Vec<u32>,
    link_targets: Vec<u32>,
    /// Attributes of tool calls and generations, by row.
    pub facts: HashMap<u32, SpanFacts>,
    pub texts: Texts,
    pub workers: Vec<Worker>,
    /// Samples by number: their id as a text, and what is known of them.
    pub sample_ids: Vec<u32>,
    pub samples: Vec<SampleRow>,
    pub clocks: Vec<Clock>,
    /// The step's own span, where a trainer wrote one.
    pub root: Option<u32>,
    pub step_start: i64,
    pub step_end: i64,
    /// The step goes on: its own span is open, or there is none and something in it is.
    pub running: bool,
    pub open: usize,
    pub missing_parents: usize,
    pub orphan_ends: usize,
    pub dropped: u64,
}

/// In [`StepData::waiter`]: outlives everything that could wait for it.
pub const DETACHED: u32 = u32::MAX - 1;

/// A text column as dictionary keys, whatever it came as.
struct Keys<'a> {
    keys: &'a arrow::array::Int32Array,
    values: &'a StringArray,
    /// Number of each value; looked up when first seen.
    numbers: Vec<u32>,
}

fn dictionary(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let wanted = rollscope_model::tables::dict();
    if *column.data_type() == wanted { Ok(column.clone()) } else { cast(column, &wanted) }
}

impl<'a> Keys<'a> {
    fn new(column: &'a ArrayRef) -> Self {
        let dict: &DictionaryArray<Int32Type> = column.as_dictionary();
        let values: &StringArray = dict.values().as_string();
        Keys { keys: dict.keys(), values, numbers: vec![NONE; values.len()] }
    }

    fn text(&self, row: usize) -> Option<&'a str> {
        if self.keys.is_null(row) {
            return None;
        }
        let key = self.keys.value(row) as usize;
        (!self.values.is_null(key)).then(|| self.values.value(key))
    }

    /// The number of the text in this row.
    fn number(&mut self, row: usize, texts: &mut Texts) -> u32 {
        if self.keys.is_null(row) {
            return NONE;
        }
        let key = self.keys.value(row) as usize;
        if self.numbers[key] == NONE {
            self.numbers[key] = texts.intern(self.values.value(key));
        }
        self.numbers[key]
    }
}

pub fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef, ArrowError> {
    batch.column_by_name(name).ok_or_else(|| ArrowError::SchemaError(format!("no column {name}")))
}

/// The columns that [`StepData::read`] needs of `spans`.
pub const SPAN_COLUMNS: &[&str] = &[
    "trace_id",
    "span_id",
    "parent_span_id",
    "name",
    "phase",
    "service",
    "resource",
    "thread",
    "host",
    "pid",
    "tp_rank",
    "dp_rank",
    "pp_rank",
    "start_ns",
    "end_ns",
    "state",
    "status",
    "sample_id",
    "group_id",
    "attempt",
    "links",
    "dropped_attrs",
    "dropped_events",
    "dropped_links",
];

/// And of `samples`.
pub const SAMPLE_COLUMNS: &[&str] = &[
    "sample_id",
    "group_id",
    "source",
    "status",
    "reward",
    "response_tokens",
    "cached_tokens",
    "cache_total_tokens",
    "spec_accepted",
    "spec_drafted",
    "spec_verifies",
    "weight_versions",
    "split",
];

/// A row as it is read, before rows are put in order.
struct Raw {
    start: i64,
    /// [`i64::MIN`]: open.
    end: i64,
    trace: [u8; 16],
    span: [u8; 8],
    parent: Option<[u8; 8]>,
    name: u32,
    kind: Kind,
    flags: u8,
    sample: u32,
    group: u32,
    attempt: i32,
    worker: u32,
    sender: u32,
    links: (u32, u32),
}

impl StepData {
    /// Reads a step. `attributes` are rows of `spans` with `start_attrs` and `end_attrs`: those of generations and tool
    /// calls, others are passed over.
    pub fn read(
        spans: &[RecordBatch],
        attributes: &[RecordBatch],
        samples: &[RecordBatch],
    ) -> Result<StepData, ArrowError> {
        let mut data = StepData::default();
        let mut raw = Vec::with_capacity(spans.iter().map(RecordBatch::num_rows).sum());
        let mut links = Vec::new();
        let mut reader = Reader::default();
        for batch in spans {
            reader.batch(&mut data, batch, &mut raw, &mut links)?;
        }
        data.read_samples(samples, &mut reader.samples)?;
        data.arrange(raw, &links);
        let names: Vec<bool> =
            (0..data.len()).map(|i| data.kind[i] == Kind::Tool || data.is(i, flag::GENERATION)).collect();
        let index = data.index();
        for batch in attributes {
            attributes::read(batch, &mut data.facts, |trace, span| {
                index.get(&(trace, span)).copied().filter(|row| names[*row as usize])
            })?;
        }
        Ok(data)
    }

    pub fn len(&self) -> usize {
        self.start.len()
    }

    pub fn is_empty(&self) -> bool {
        self.start.is_empty()
    }

    pub fn is(&self, row: usize, flag: u8) -> bool {
        self.flags[row] & flag != 0
    }

    pub fn length(&self, row: usize) -> i64 {
        (self.end[row] - self.start[row]).max(0)
    }

    pub fn name_of(&self, row: usize) -> &str {
        self.texts.get(self.name[row])
    }

    pub fn sample_name(&self, sample: u32) -> &str {
        self.sample_ids.get(sample as usize).map_or("", |id| self.texts.get(*id))
    }

    pub fn links(&self, row: usize) -> &[u32] {
        let from = if row == 0 { 0 } else { self.link_ends[row - 1] };
        &self.link_targets[from as usize..self.link_ends[row] as usize]
    }

    fn index(&self) -> HashMap<([u8; 16], [u8; 8]), u32> {
        self.ids.iter().enumerate().map(|(row, id)| (*id, row as u32)).collect()
    }

    /// What a person would call a sender: its instance id, its host, or its service.
    pub fn sender_name(&self, sender: u32) -> String {
        let Some(worker) = self.workers.iter().find(|w| w.sender == sender) else {
            return self.texts.get(sender).split('\u{1}').next().map(instance).unwrap_or_default();
        };
        let said = instance(self.texts.get(sender).split('\u{1}').next().unwrap_or(""));
        if !said.is_empty() {
            return said;
        }
        let (host, service) = (self.texts.get(worker.host), self.texts.get(worker.service));
        if host.is_empty() { service.to_string() } else { format!("{service} on {}", short(host)) }
    }

    pub fn worker_name(&self, worker: u32) -> String {
        let Some(w) = self.workers.get(worker as usize) else { return String::new() };
        let label = if w.thread == NONE { self.texts.get(w.service) } else { self.texts.get(w.thread) };
        let mut name = label.to_string();
        let said = self.sender_name(w.sender);
        if !said.is_empty() && said != label {
            name = format!("{said} {name}");
        }
        for (rank, text) in w.ranks.iter().zip(["TP", "DP", "PP"]) {
            if let Some(rank) = rank
                && !name.contains("rank")
            {
                name.push_str(&format!(" {text}{rank}"));
            }
        }
        name
    }

    fn read_samples(&mut self, batches: &[RecordBatch], numbers: &mut HashMap<u32, u32>) -> Result<(), ArrowError> {
        for batch in batches {
            let texts = |name: &str| column(batch, name).and_then(dictionary);
            let (ids, groups, sources, statuses) =
                (texts("sample_id")?, texts("group_id")?, texts("source")?, texts("status")?);
            let (mut ids, mut groups) = (Keys::new(&ids), Keys::new(&groups));
            let (mut sources, mut statuses) = (Keys::new(&sources), Keys::new(&statuses));
            let splits = texts("split")?;
            let splits = Keys::new(&splits);
            let rewards = column(batch, "reward")?.as_primitive::<arrow::datatypes::Float64Type>();
            let int = |name: &str| column(batch, name).map(|c| c.as_primitive::<Int64Type>());
            let (tokens, cached, cacheable) =
                (int("response_tokens")?, int("cached_tokens")?, int("cache_total_tokens")?);
            let (accepted, drafted, verifies) = (int("spec_accepted")?, int("spec_drafted")?, int("spec_verifies")?);
            let versions = column(batch, "weight_versions")?.as_string::<i32>();
            for row in 0..batch.num_rows() {
                if splits.text(row).is_some_and(|s| s != "train") {
                    continue;
                }
                let id = ids.number(row, &mut self.texts);
                let number = self.sample_number(id, numbers);
                let value = |a: &arrow::array::Int64Array| a.is_valid(row).then(|| a.value(row));
                let group = groups.number(row, &mut self.texts);
                let known = &mut self.samples[number as usize];
                if group != NONE {
                    known.group = group;
                }
                known.source = sources.number(row, &mut self.texts);
                known.status = statuses.number(row, &mut self.texts);
                known.reward = rewards.is_valid(row).then(|| rewards.value(row)).filter(|r| r.is_finite());
                (known.response_tokens, known.cached_tokens) = (value(tokens), value(cached));
                (known.cache_total_tokens, known.spec_accepted) = (value(cacheable), value(accepted));
                (known.spec_drafted, known.spec_verifies) = (value(drafted), value(verifies));
                known.weight_versions = match versions.is_valid(row) {
                    true => attributes::integers(versions.value(row)),
                    false => Vec::new(),
                };
                known.listed = true;
            }
        }
        Ok(())
    }

    fn sample_number(&mut self, id: u32, numbers: &mut HashMap<u32, u32>) -> u32 {
        *numbers.entry(id).or_insert_with(|| {
            self.sample_ids.push(id);
            self.samples.push(SampleRow { group: NONE, source: NONE, status: NONE, ..SampleRow::default() });
            self.samples.len() as u32 - 1
        })
    }

    /// Puts rows in order and works out everything that follows from all of them together.
    fn arrange(&mut self, raw: Vec<Raw>, links: &[([u8; 16], [u8; 8])]) {
        let mut order: Vec<(i64, i64, [u8; 8], u32)> =
            raw.iter().enumerate().map(|(i, r)| (r.start, -r.end.max(r.start), r.span, i as u32)).collect();
        order.sort_unstable_by(|a, b| {
            (a.0, a.1, a.2).cmp(&(b.0, b.1, b.2)).then_with(|| raw[a.3 as usize].trace.cmp(&raw[b.3 as usize].trace))
        });
        let latest = raw.iter().map(|r| r.end.max(r.start)).max().unwrap_or(0);
        let mut traces: HashMap<[u8; 16], u32> = HashMap::new();
        let mut parents = Vec::with_capacity(raw.len());
        for (_, _, _, i) in &order {
            let r = &raw[*i as usize];
            let count = traces.len() as u32;
            self.trace.push(*traces.entry(r.trace).or_insert(count));
            self.start.push(r.start);
            let open = r.end == i64::MIN;
            self.end.push(if open { latest } else { r.end });
            self.flags.push(r.flags | if open { flag::OPEN } else { 0 });
            self.name.push(r.name);
            self.kind.push(r.kind);
            self.sample.push(r.sample);
            self.group.push(r.group);
            self.attempt.push(r.attempt);
            self.worker.push(r.worker);
            self.sender.push(r.sender);
            self.ids.push((r.trace, r.span));
            parents.push(r.parent);
        }
        self.open = self.flags.iter().filter(|f| **f & flag::OPEN != 0).count();
        let index = self.index();
        for (_, _, _, i) in &order {
            let (from, to) = raw[*i as usize].links;
            self.link_targets.extend(links[from as usize..to as usize].iter().filter_map(|id| index.get(id)));
            self.link_ends.push(self.link_targets.len() as u32);
        }
        self.find_parents(&parents, &index);
        self.give_samples(traces.len());
        self.adopt(traces.len());
        self.clocks = clocks::correct(self);
        self.find_step();
        self.share();
        self.find_waiters();
    }

    fn find_parents(&mut self, parents: &[Option<[u8; 8]>], index: &HashMap<([u8; 16], [u8; 8]), u32>) {
        for (row, parent) in parents.iter().enumerate() {
            let found = parent.and_then(|p| index.get(&(self.ids[row].0, p)).copied()).filter(|p| *p != row as u32);
            if parent.is_some() && found.is_none() {
                self.missing_parents += 1;
                self.flags[row] |= flag::MISSING_PARENT;
            }
            self.parent.push(found.unwrap_or(NONE));
        }
        // Circles are cut where they are first noticed. 0: not seen, 1: on the way up, 2: leads to a root.
        let mut seen = vec![0u8; self.len()];
        let mut path = Vec::new();
        for row in 0..self.len() {
            let mut at = row as u32;
            while at != NONE && seen[at as usize] == 0 {
                seen[at as usize] = 1;
                path.push(at);
                let up = self.parent[at as usize];
                if up != NONE && seen[up as usize] == 1 {
                    self.parent[at as usize] = NONE;
                    break;
                }
                at = up;
            }
            path.drain(..).for_each(|p| seen[p as usize] = 2);
        }
    }

    /// A span without a sample belongs to that of its nearest ancestor that has one. Where a trace is about one sample alone
    /// (slime writes one trace per sample), the sample is that of all its spans. A trace that begins with a step or a phase
    /// of the trainer is about the step: what no sample is above belongs to none. Where there are no samples at all, every
    /// trace with a generation is one.
    fn give_samples(&mut self, traces: usize) {
        self.inherit_samples();
        let mut of_trace = vec![NONE; traces];
        let mut of_several = vec![false; traces];
        for row in 0..self.len() {
            let trace = self.trace[row] as usize;
            of_several[trace] |= self.parent[row] == NONE && self.kind[row].is_trainers();
            match (of_trace[trace], self.sample[row]) {
                (_, NONE) => {}
                (NONE, sample) => of_trace[trace] = sample,
                (known, sample) => of_several[trace] |= known != sample,
            }
        }
        of_trace.iter_mut().zip(of_several).filter(|(_, several)| *several).for_each(|(sample, _)| *sample = NONE);
        if self.samples.is_empty() {
            let mut numbers = HashMap::new();
            for row in 0..self.len() {
                let trace = self.trace[row] as usize;
                if of_trace[trace] == NONE && self.parent[row] == NONE && self.kind[row] == Kind::Generate {
                    let id = self.texts.intern(self.name_of(row).trim().to_string().as_str());
                    of_trace[trace] = self.sample_number(id, &mut numbers);
                }
            }
        }
        if !self.flags.iter().any(|f| f & flag::GENERATION != 0) {
            // Only an engine's spans: its requests are the generations.
            for row in 0..self.len() {
                if self.kind[row] == Kind::Generate && self.parent[row] == NONE && !self.is(row, flag::POINT) {
                    self.flags[row] |= flag::GENERATION;
                }
            }
        }
        for row in 0..self.len() {
            if self.sample[row] == NONE {
                self.sample[row] = of_trace[self.trace[row] as usize];
            }
            if self.sample[row] != NONE {
                let known = &mut self.samples[self.sample[row] as usize];
                if known.group == NONE {
                    known.group = self.group[row];
                }
            }
        }
    }

    fn inherit_samples(&mut self) {
        let mut settled = vec![false; self.len()];
        let mut path = Vec::new();
        for row in 0..self.len() {
            let mut at = row as u32;
            while at != NONE && self.sample[at as usize] == NONE && !settled[at as usize] {
                path.push(at as usize);
                at = self.parent[at as usize];
            }
            let found = if at == NONE { NONE } else { self.sample[at as usize] };
            for row in path.drain(..) {
                self.sample[row] = found;
                settled[row] = true;
            }
        }
    }

    /// Spans whose parent never came hang under the longest span of their trace, if it contains them.
    fn adopt(&mut self, traces: usize) {
        let mut longest = vec![NONE; traces];
        for row in 0..self.len() {
            let slot = &mut longest[self.trace[row] as usize];
            if self.parent[row] == NONE
                && !self.is(row, flag::MISSING_PARENT)
                && (*slot == NONE || self.length(row) > self.length(*slot as usize))
            {
                *slot = row as u32;
            }
        }
        for row in 0..self.len() {
            let over = longest[self.trace[row] as usize];
            if self.is(row, flag::MISSING_PARENT) && over != NONE && over != row as u32 {
                self.parent[row] = over;
            }
        }
    }

    fn find_step(&mut self) {
        // A `train_step` that contains rollouts is a step.
        for row in 0..self.len() {
            if self.parent[row] != NONE && self.kind[row] == Kind::Rollout && self.sample[row] == NONE {
                let up = self.parent[row] as usize;
                if self.parent[up] == NONE && self.kind[up] == Kind::Train {
                    self.kind[up] = Kind::Step;
                }
            }
        }
        let steps = || (0..self.len()).filter(|r| self.kind[*r] == Kind::Step && self.sample[*r] == NONE);
        let own: Vec<usize> = steps().filter(|r| self.parent[*r] == NONE).collect();
        let spans: Vec<usize> = match own.is_empty() {
            // Without a trainer's span the step is as long as its roots.
            true => (0..self.len()).filter(|r| self.parent[*r] == NONE && !self.is(*r, flag::POINT)).collect(),
            false => own.clone(),
        };
        // Right under the step, a rollout is what its sender calls one, whatever its name.
        for row in 0..self.len() {
            let up = self.parent[row];
            if up != NONE
                && self.is(row, flag::SAID_ROLLOUT)
                && self.sample[row] == NONE
                && own.contains(&(up as usize))
            {
                self.kind[row] = Kind::Rollout;
                self.flags[row] &= !flag::GENERATION;
            }
        }
        self.root = (own.len() == 1).then(|| own[0] as u32);
        self.step_start = spans.iter().map(|r| self.start[*r]).min().unwrap_or(0);
        self.step_end = spans.iter().map(|r| self.end[*r]).max().unwrap_or(0);
        self.running = spans.iter().any(|r| self.is(*r, flag::OPEN));
    }

    fn share(&mut self) {
        self.shared = (0..self.len() as u32).collect();
        let mut copies: HashMap<(u32, u32, i32), Vec<u32>> = HashMap::new();
        for row in 0..self.len() {
            if self.group[row] != NONE && self.kind[row] == Kind::Rollout && !self.is(row, flag::POINT) {
                copies.entry((self.name[row], self.group[row], self.attempt[row])).or_default().push(row as u32);
            }
        }
        for rows in copies.values().filter(|rows| rows.len() > 1) {
            let ends = || rows.iter().map(|r| self.end[*r as usize]);
            let (first, last) = (ends().min().unwrap_or(0), ends().max().unwrap_or(0));
            let mut traces: Vec<u32> = rows.iter().map(|r| self.trace[*r as usize]).collect();
            traces.sort_unstable();
            if last - first > SHARED_NS || traces.windows(2).any(|w| w[0] == w[1]) {
                continue;
            }
            // The first, which starts first unless its clock was off, stands for all, from the first start to the last end.
            let stands = rows[0];
            let start = rows.iter().map(|r| self.start[*r as usize]).min().unwrap_or(0);
            (self.start[stands as usize], self.end[stands as usize]) = (start, last);
            for row in rows {
                self.shared[*row as usize] = stands;
                self.flags[*row as usize] |= flag::SHARED;
            }
        }
    }

    fn find_waiters(&mut self) {
        let rollouts: Vec<usize> = (0..self.len())
            .filter(|r| self.sample[*r] == NONE && matches!(self.kind[*r], Kind::Rollout | Kind::Generate))
            .collect();
        self.waiter = vec![NONE; self.len()];
        for row in 0..self.len() {
            let contains = |r: usize| r != row && self.start[r] <= self.start[row] && self.end[r] >= self.end[row];
            let up = self.parent[row];
            if up == NONE {
                let linked = self
                    .links(row)
                    .iter()
                    .map(|r| *r as usize)
                    .find(|r| contains(*r) && self.trace[*r] != self.trace[row]);
                // Only samples look for a rollout around them; there are few rollouts in a step.
                let around = || match self.sample[row] {
                    NONE => None,
                    _ => rollouts.iter().rev().copied().find(|r| contains(*r)),
                };
                self.waiter[row] = match linked.or_else(around) {
                    Some(r) => self.shared[r],
                    None if self.end[row] > self.step_end => DETACHED,
                    None => NONE,
                };
                continue;
            }
            let mut at = self.shared[up as usize];
            loop {
                if self.end[at as usize] >= self.end[row] {
                    self.waiter[row] = at;
                    break;
                }
                at = match self.parent[at as usize] {
                    NONE => {
                        self.waiter[row] = if self.end[row] > self.step_end { DETACHED } else { NONE };
                        break;
                    }
                    up => self.shared[up as usize],
                };
            }
        }
    }
}

/// Names of spans whose attributes are worth reading: generations and tool calls. Names that are many (a request has one of
/// its own) are left out.
pub fn names_with_attributes(spans: &[RecordBatch]) -> Vec<String> {
    const MOST: usize = 200;
    let mut found = std::collections::BTreeSet::new();
    for batch in spans {
        let Ok(names) = column(batch, "name").and_then(dictionary) else { continue };
        let Ok(phases) = column(batch, "phase").and_then(dictionary) else { continue };
        let (names, phases) = (Keys::new(&names), Keys::new(&phases));
        let mut seen: HashMap<(i32, i32), ()> = HashMap::new();
        for row in 0..batch.num_rows() {
            let phase = if phases.keys.is_null(row) { -1 } else { phases.keys.value(row) };
            if names.keys.is_null(row) || seen.insert((names.keys.value(row), phase), ()).is_some() {
                continue;
            }
            let Some(name) = names.text(row) else { continue };
            let said = phases.text(row);
            if is_generation(name, said) || classify(name, said) == Kind::Tool {
                found.insert(name.to_string());
            }
        }
    }
    if found.len() > MOST { Vec::new() } else { found.into_iter().collect() }
}

/// `service.instance.id` of a resource.
fn instance(resource: &str) -> String {
    let parsed: serde_json::Value = serde_json::from_str(resource).unwrap_or_default();
    short(parsed["service.instance.id"].as_str().unwrap_or("")).to_string()
}

/// Ids made by machines are cut to what tells them apart.
fn short(id: &str) -> &str {
    let long = id.len() > 20 && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    if long { &id[..8] } else { id }
}

#[derive(Default)]
struct Reader {
    workers: HashMap<Worker, u32>,
    samples: HashMap<u32, u32>,
    /// By name and phase: the kind, and the flags that follow from both.
    kinds: HashMap<(u32, u32), (Kind, u8)>,
}

impl Reader {
    fn batch(
        &mut self,
        data: &mut StepData,
        batch: &RecordBatch,
        raw: &mut Vec<Raw>,
        links: &mut Vec<([u8; 16], [u8; 8])>,
    ) -> Result<(), ArrowError> {
        let texts = |name: &str| column(batch, name).and_then(dictionary);
        let (names, phases, services, resources) =
            (texts("name")?, texts("phase")?, texts("service")?, texts("resource")?);
        let (threads, hosts, states, statuses) = (texts("thread")?, texts("host")?, texts("state")?, texts("status")?);
        let (samples, groups) = (texts("sample_id")?, texts("group_id")?);
        let (mut names, mut phases, mut services) = (Keys::new(&names), Keys::new(&phases), Keys::new(&services));
        let (mut resources, mut threads, mut hosts) = (Keys::new(&resources), Keys::new(&threads), Keys::new(&hosts));
        let (states, statuses) = (Keys::new(&states), Keys::new(&statuses));
        let (mut samples, mut groups) = (Keys::new(&samples), Keys::new(&groups));
        let bytes = |name: &str| -> Result<&FixedSizeBinaryArray, ArrowError> {
            column(batch, name)?
                .as_fixed_size_binary_opt()
                .ok_or_else(|| ArrowError::SchemaError(format!("{name} is no id")))
        };
        let (trace_ids, span_ids, parent_ids) = (bytes("trace_id")?, bytes("span_id")?, bytes("parent_span_id")?);
        let long = |name: &str| column(batch, name).map(|c| c.as_primitive::<Int64Type>());
        let int = |name: &str| column(batch, name).map(|c| c.as_primitive::<Int32Type>());
        let (starts, ends, pids) = (long("start_ns")?, long("end_ns")?, long("pid")?);
        let ranks = [int("tp_rank")?, int("dp_rank")?, int("pp_rank")?];
        let attempts = int("attempt")?;
        let link_list = column(batch, "links")?.as_list::<i32>();
        let link_rows = link_list.values().as_struct();
        let link_ids = (link_rows.column_by_name("trace_id"), link_rows.column_by_name("span_id"));
        let (Some(link_traces), Some(link_spans)) = link_ids else {
            return Err(ArrowError::SchemaError("links without ids".to_string()));
        };
        let (link_traces, link_spans) = (link_traces.as_fixed_size_binary(), link_spans.as_fixed_size_binary());
        for name in ["dropped_attrs", "dropped_events", "dropped_links"] {
            let counts = column(batch, name)?.as_primitive::<arrow::datatypes::UInt32Type>();
            data.dropped += counts.values().iter().map(|n| u64::from(*n)).sum::<u64>();
        }
        let trace = |a: &FixedSizeBinaryArray, row: usize| <[u8; 16]>::try_from(a.value(row)).unwrap_or_default();
        let span = |a: &FixedSizeBinaryArray, row: usize| <[u8; 8]>::try_from(a.value(row)).unwrap_or_default();
        for row in 0..batch.num_rows() {
            let state = states.text(row).unwrap_or("");
            if state == rollscope_model::names::state::ORPHAN_END {
                data.orphan_ends += 1;
            }
            let name = names.number(row, &mut data.texts);
            let phase = phases.number(row, &mut data.texts);
            let (kind, of_kind) = *self.kinds.entry((name, phase)).or_insert_with(|| {
                let said = (phase != NONE).then(|| data.texts.get(phase));
                let generation = if is_generation(data.texts.get(name), said) { flag::GENERATION } else { 0 };
                let rollout = if is_said_rollout(said) { flag::SAID_ROLLOUT } else { 0 };
                (classify(data.texts.get(name), said), generation | rollout)
            });
            let point = matches!(state, "instant" | "orphan_end");
            let mut flags = if point { flag::POINT } else { 0 };
            if statuses.text(row) == Some("error") {
                flags |= flag::ERROR;
            }
            flags |= if point { of_kind & !flag::GENERATION } else { of_kind };
            let worker = Worker {
                service: services.number(row, &mut data.texts),
                host: hosts.number(row, &mut data.texts),
                thread: threads.number(row, &mut data.texts),
                pid: pids.is_valid(row).then(|| pids.value(row)),
                ranks: ranks.map(|r| r.is_valid(row).then(|| r.value(row))),
                sender: resources.number(row, &mut data.texts),
            };
            let sender = worker.sender;
            let worker = match worker.host == NONE && worker.thread == NONE && worker.pid.is_none() {
                true => NONE,
                false => *self.workers.entry(worker).or_insert_with_key(|w| {
                    data.workers.push(w.clone());
                    data.workers.len() as u32 - 1
                }),
            };
            let sample = match samples.number(row, &mut data.texts) {
                NONE => NONE,
                id => data.sample_number(id, &mut self.samples),
            };
            let first = links.len() as u32;
            if !link_list.is_null(row) {
                let offsets = link_list.value_offsets();
                for at in offsets[row] as usize..offsets[row + 1] as usize {
                    links.push((trace(link_traces, at), span(link_spans, at)));
                }
            }
            let start = starts.value(row);
            raw.push(Raw {
                start,
                end: match (point, ends.is_valid(row)) {
                    (true, _) => start,
                    (false, true) => ends.value(row).max(start),
                    (false, false) => i64::MIN,
                },
                trace: trace(trace_ids, row),
                span: span(span_ids, row),
                parent: parent_ids.is_valid(row).then(|| span(parent_ids, row)),
                name,
                kind,
                flags,
                sample,
                group: groups.number(row, &mut data.texts),
                attempt: if attempts.is_valid(row) { attempts.value(row) } else { 0 },
                worker,
                sender,
                links: (first, links.len() as u32),
            });
        }
        Ok(())
    }
}
