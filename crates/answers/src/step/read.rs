//! Reading a step.

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use hashbrown::HashMap;
use rollscope_model::read::{Column, Counts, Floats, Ints, SmallInts, Text, column};
use rollscope_spans::joins::Connections;
use rollscope_spans::{Forest, NONE, State, Texts, Walk};

use super::{SampleRow, StepData, Worker, flag};
use crate::attributes::{self, FactsById, facts_of};
use crate::kinds::{Kind, classify, is_generation, is_said_rollout};
use crate::parallel;

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
    "request_id",
    "bootstrap_room",
    "links",
    "dropped_attrs",
    "dropped_events",
    "dropped_links",
];

/// Enough of them for when a step was, its phases, and how many spans and samples it has. What is not read is not known.
pub const OUTLINE_COLUMNS: &[&str] = &[
    "trace_id",
    "span_id",
    "parent_span_id",
    "name",
    "phase",
    "resource",
    "start_ns",
    "end_ns",
    "state",
    "sample_id",
    "group_id",
    "request_id",
    "bootstrap_room",
    "links",
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

impl StepData {
    /// Reads a step. `attributes` are rows of `spans` with `start_attrs` and `end_attrs`: those of generations and tool
    /// calls, others are passed over.
    pub fn read(
        spans: &[RecordBatch],
        attributes: &[RecordBatch],
        samples: &[RecordBatch],
    ) -> Result<StepData, ArrowError> {
        let facts = attributes.iter().map(facts_of).collect::<Result<_, _>>()?;
        StepData::read_connected(spans.to_vec(), None, facts, samples)
    }

    /// The same where the forest of the spans as they were given, and what connects them, are known. `facts` are what [`facts_of`]
    /// has made of attributes. Rows are given away: they take as much memory as what is made of them, and are let go as soon as they are
    /// read.
    pub fn read_connected(
        spans: Vec<RecordBatch>,
        connected: Option<(Forest, Connections)>,
        facts: Vec<RecordBatch>,
        samples: &[RecordBatch],
    ) -> Result<StepData, ArrowError> {
        let mut data = StepData::default();
        let connect = || match connected {
            Some((forest, connections)) => {
                let forest = forest.put_in_order();
                let connections = connections.put_in_order(&forest);
                Ok((forest, connections))
            }
            None => {
                let forest = Forest::read(&spans)?;
                let connections = Connections::read(&forest, &spans)?;
                Ok::<_, ArrowError>((forest, connections))
            }
        };
        // Neither needs the other.
        let (connected, (columns, facts)) = parallel::both(connect, || {
            (SpanColumns::read(&spans, &mut data.texts), FactsById::read(facts, &mut data.texts))
        });
        let ((mut forest, connections), columns, facts) = (connected?, columns?, facts?);
        drop(spans);
        let mut numbers = HashMap::new();
        let ((), rows) = parallel::both(|| data.read_spans(&forest, columns, &mut numbers), || facts.find(&forest));
        data.read_links(&connections);
        connections.attach(&mut forest, &data.sample);
        data.read_samples(samples, &mut numbers)?;
        data.give_samples(&forest, &Walk::of(&forest));
        (data.start, data.end) = (std::mem::take(&mut forest.start), std::mem::take(&mut forest.end));
        (data.parent, data.trace) = (std::mem::take(&mut forest.parent), std::mem::take(&mut forest.trace));
        let traces = forest.traces.len();
        drop((forest, connections));
        data.relate(traces);
        data.facts = facts.by_row(rows, data.len(), |row| tells(data.kind[row], data.sample[row] != NONE));
        data.read_sources();
        Ok(data)
    }

    fn read_spans(&mut self, forest: &Forest, columns: SpanColumns, numbers: &mut HashMap<u32, u32>) {
        let error = self.texts.find("error");
        let rows = forest.len();
        // Numbered anew, so that nothing depends on the order of arrival.
        let mut worker_numbers = vec![NONE; columns.numbered.len()];
        self.flags.reserve(rows);
        self.kind.reserve(rows);
        self.sample.reserve(rows);
        self.ids.reserve(rows);
        self.worker.reserve(rows);
        for (row, at) in forest.source.iter().map(|at| *at as usize).enumerate() {
            let (kind, of_kind) = columns.kinds[at];
            let mut flags = match forest.state[row] {
                State::Closed => of_kind,
                State::Open => of_kind | flag::OPEN,
                State::Instant | State::OrphanEnd => of_kind & !flag::GENERATION | flag::POINT,
            };
            flags |= if Some(columns.statuses[at]) == error { flag::ERROR } else { 0 };
            flags |= if forest.is_lost(row) { flag::MISSING_PARENT } else { 0 };
            self.flags.push(flags);
            self.kind.push(kind);
            self.ids.push((forest.traces[forest.trace[row] as usize], forest.span[row]));
            self.worker.push(match columns.workers[at] {
                NONE => NONE,
                worker => {
                    let number = &mut worker_numbers[worker as usize];
                    if *number == NONE {
                        *number = self.workers.len() as u32;
                        self.workers.push(columns.numbered[worker as usize].clone());
                    }
                    *number
                }
            });
            let sample = match columns.samples[at] {
                NONE => NONE,
                id => self.sample_number(id, numbers),
            };
            self.sample.push(sample);
        }
        self.name = forest.arrange(columns.names);
        self.phase = forest.arrange(columns.phases);
        self.group = forest.arrange(columns.groups);
        self.attempt = forest.arrange(columns.attempts);
        self.sender = forest.arrange(columns.senders);
        self.dropped = columns.dropped;
        self.open = forest.state.iter().filter(|state| **state == State::Open).count();
        self.orphan_ends = forest.state.iter().filter(|state| **state == State::OrphanEnd).count();
        self.missing_parents = self.flags.iter().filter(|flags| **flags & flag::MISSING_PARENT != 0).count();
    }

    fn read_links(&mut self, connections: &Connections) {
        self.link_targets = connections.links.iter().map(|(_, to)| *to).collect();
        let mut links = connections.links.iter().map(|(from, _)| *from).enumerate().peekable();
        for row in 0..self.len() as u32 {
            while links.next_if(|(_, from)| *from <= row).is_some() {}
            self.link_ends.push(links.peek().map_or(self.link_targets.len(), |(at, _)| *at) as u32);
        }
    }

    fn read_samples(&mut self, batches: &[RecordBatch], numbers: &mut HashMap<u32, u32>) -> Result<(), ArrowError> {
        for batch in batches {
            let text = |name: &str| column::<Text>(batch, name);
            let (ids, groups, sources, statuses) =
                (text("sample_id")?, text("group_id")?, text("source")?, text("status")?);
            let (splits, versions) = (text("split")?, text("weight_versions")?);
            let rewards: Floats = column(batch, "reward")?;
            let int = |name: &str| column::<Ints>(batch, name);
            let (tokens, cached, cacheable) =
                (int("response_tokens")?, int("cached_tokens")?, int("cache_total_tokens")?);
            let (accepted, drafted, verifies) = (int("spec_accepted")?, int("spec_drafted")?, int("spec_verifies")?);
            for row in 0..batch.num_rows() {
                if splits.get(row).is_some_and(|s| s != "train") {
                    continue;
                }
                let mut number = |text: Option<&str>| text.map_or(NONE, |text| self.texts.number(text));
                let (id, group) = (number(ids.get(row)), number(groups.get(row)));
                let (source, status) = (number(sources.get(row)), number(statuses.get(row)));
                let sample = self.sample_number(id, numbers) as usize;
                let known = &mut self.samples[sample];
                if group != NONE {
                    known.group = group;
                }
                (known.source, known.status) = (source, status);
                known.reward = rewards.get(row).filter(|r| r.is_finite());
                (known.response_tokens, known.cached_tokens) = (tokens.get(row), cached.get(row));
                (known.cache_total_tokens, known.spec_accepted) = (cacheable.get(row), accepted.get(row));
                (known.spec_drafted, known.spec_verifies) = (drafted.get(row), verifies.get(row));
                known.weight_versions = versions.get(row).map(attributes::integers).unwrap_or_default();
                known.listed = true;
            }
        }
        Ok(())
    }

    /// Where no row of `samples` says where a prompt comes from, spans of its sample may.
    fn read_sources(&mut self) {
        for row in self.facts.rows() {
            let Some(source) = self.facts.get(row).and_then(|facts| facts.source) else { continue };
            let sample = self.sample[row as usize];
            if sample != NONE && self.samples[sample as usize].source == NONE {
                self.samples[sample as usize].source = source;
            }
        }
    }

    pub(super) fn sample_number(&mut self, id: u32, numbers: &mut HashMap<u32, u32>) -> u32 {
        *numbers.entry(id).or_insert_with(|| {
            self.sample_ids.push(id);
            self.samples.push(SampleRow { group: NONE, source: NONE, status: NONE, ..SampleRow::default() });
            self.samples.len() as u32 - 1
        })
    }
}

/// The columns of a step's spans, as they were given. What was not asked for ([`OUTLINE_COLUMNS`]) is not known.
struct SpanColumns {
    names: Vec<u32>,
    phases: Vec<u32>,
    /// And the flags that follow from name and phase.
    kinds: Vec<(Kind, u8)>,
    statuses: Vec<u32>,
    senders: Vec<u32>,
    /// Places in `numbered`.
    workers: Vec<u32>,
    numbered: Vec<Worker>,
    samples: Vec<u32>,
    groups: Vec<u32>,
    attempts: Vec<i32>,
    dropped: u64,
}

impl SpanColumns {
    fn read(batches: &[RecordBatch], texts: &mut Texts) -> Result<SpanColumns, ArrowError> {
        let mut dropped = 0;
        for name in ["dropped_attrs", "dropped_events", "dropped_links"].into_iter().filter(|name| has(batches, name)) {
            for batch in batches {
                let counts: Counts = column(batch, name)?;
                dropped += counts.iter().flatten().map(u64::from).sum::<u64>();
            }
        }
        let mut text = |name: &str| text_column(batches, name, texts);
        let (names, phases, statuses, senders) = (text("name")?, text("phase")?, text("status")?, text("resource")?);
        let (samples, groups) = (text("sample_id")?, text("group_id")?);
        let (workers, numbered) = workers(batches, &senders, texts)?;
        let mut known: HashMap<(u32, u32), (Kind, u8)> = HashMap::new();
        let kinds = repeated(
            names.len(),
            |row| (names[row], phases[row]),
            |key| {
                *known.entry(*key).or_insert_with(|| {
                    let (name, said) = (texts.get(key.0), (key.1 != NONE).then(|| texts.get(key.1)));
                    let generation = if is_generation(name, said) { flag::GENERATION } else { 0 };
                    let rollout = if is_said_rollout(said) { flag::SAID_ROLLOUT } else { 0 };
                    (classify(name, said), generation | rollout)
                })
            },
        );
        let attempts = numbers::<SmallInts, _>(batches, "attempt", |c, row| c.get(row))?;
        let attempts = attempts.into_iter().map(|attempt| attempt.unwrap_or(0)).collect();
        Ok(SpanColumns {
            names,
            phases,
            kinds,
            statuses,
            senders,
            workers,
            numbered,
            samples,
            groups,
            attempts,
            dropped,
        })
    }
}

/// The number of each row's worker, and the workers. Batch by batch: a worker has seven columns, of which only the number stays.
fn workers(batches: &[RecordBatch], senders: &[u32], texts: &mut Texts) -> Result<(Vec<u32>, Vec<Worker>), ArrowError> {
    let (mut numbers_of, mut numbered): (HashMap<Worker, u32>, Vec<Worker>) = Default::default();
    let mut out = Vec::with_capacity(senders.len());
    for batch in batches {
        let (first, batch) = (out.len(), std::slice::from_ref(batch));
        let mut text = |name: &str| text_column(batch, name, texts);
        let (services, hosts, threads) = (text("service")?, text("host")?, text("thread")?);
        let pids = numbers::<Ints, _>(batch, "pid", |c, row| c.get(row))?;
        let rank = |name: &str| numbers::<SmallInts, _>(batch, name, |c, row| c.get(row));
        let ranks = [rank("tp_rank")?, rank("dp_rank")?, rank("pp_rank")?];
        out.extend(repeated(
            services.len(),
            |row| Worker {
                service: services[row],
                host: hosts[row],
                thread: threads[row],
                pid: pids[row],
                ranks: ranks.each_ref().map(|ranks| ranks[row]),
                sender: senders[first + row],
            },
            |worker| match *worker == (Worker { service: worker.service, sender: worker.sender, ..nobody() }) {
                true => NONE,
                false => *numbers_of.entry(worker.clone()).or_insert_with(|| {
                    numbered.push(worker.clone());
                    numbered.len() as u32 - 1
                }),
            },
        ));
    }
    Ok((out, numbered))
}

fn has(batches: &[RecordBatch], name: &str) -> bool {
    batches.iter().all(|batch| batch.column_by_name(name).is_some())
}

fn rows(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

fn text_column(batches: &[RecordBatch], name: &str, texts: &mut Texts) -> Result<Vec<u32>, ArrowError> {
    if has(batches, name) { texts.column(batches, name) } else { Ok(vec![NONE; rows(batches)]) }
}

/// What `of` makes of each row's key. Rows that follow each other often have the same.
fn repeated<K: PartialEq, T: Copy>(rows: usize, key: impl Fn(usize) -> K, mut of: impl FnMut(&K) -> T) -> Vec<T> {
    let mut last: Option<(K, T)> = None;
    let each = |row| {
        let key = key(row);
        match &last {
            Some((before, made)) if *before == key => *made,
            _ => {
                let made = of(&key);
                last = Some((key, made));
                made
            }
        }
    };
    (0..rows).map(each).collect()
}

fn numbers<'a, C: Column<'a>, T: Clone>(
    batches: &'a [RecordBatch],
    name: &str,
    get: impl Fn(&C, usize) -> Option<T>,
) -> Result<Vec<Option<T>>, ArrowError> {
    if !has(batches, name) {
        return Ok(vec![None; rows(batches)]);
    }
    let mut out = Vec::with_capacity(rows(batches));
    for batch in batches {
        let numbers: C = column(batch, name)?;
        out.extend((0..batch.num_rows()).map(|row| get(&numbers, row)));
    }
    Ok(out)
}

/// A worker that is not named.
fn nobody() -> Worker {
    Worker { host: NONE, thread: NONE, ..Worker::default() }
}

/// Whose attributes are read: those of generations, as callers and engines see them, of tool calls, and of what contains a sample.
fn tells(kind: Kind, of_sample: bool) -> bool {
    matches!(kind, Kind::Tool | Kind::Generate) || of_sample && matches!(kind, Kind::Rollout | Kind::Other)
}

/// Which spans' attributes are worth reading. An SQL condition; none where there are no such spans.
pub fn with_attributes(spans: &[RecordBatch], quote: impl Fn(&str) -> String) -> Option<String> {
    let mut texts = Texts::default();
    let mut column = |name| texts.column(spans, name).ok();
    let (names, phases, samples) = (column("name")?, column("phase")?, column("sample_id")?);
    let of_sample = samples.into_iter().map(|sample| sample != NONE);
    let spans: hashbrown::HashSet<((u32, u32), bool)> =
        names.into_iter().zip(phases).zip(of_sample).filter(|((name, _), _)| *name != NONE).collect();
    let mut found = std::collections::BTreeSet::new();
    let mut of_requests = false;
    for ((name, phase), of_sample) in spans {
        let (name, said) = (texts.get(name), (phase != NONE).then(|| texts.get(phase)));
        if !tells(classify(name, said), of_sample) {
            continue;
        }
        // SGLang's requests have a name each.
        match name.contains("Req ") {
            true => of_requests = true,
            false => {
                found.insert(name.to_string());
            }
        }
    }
    let mut conditions = Vec::new();
    if !found.is_empty() && found.len() <= MAX_NAMES {
        let list: Vec<String> = found.iter().map(|name| quote(name)).collect();
        conditions.push(format!("name in ({})", list.join(", ")));
    }
    if of_requests {
        conditions.push("name like '%Req %'".to_string());
    }
    (!conditions.is_empty()).then(|| conditions.join(" or "))
}

/// Names that are listed in a query.
const MAX_NAMES: usize = 200;
