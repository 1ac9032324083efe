//! Reading a step.

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use hashbrown::HashMap;
use rollscope_model::read::{Column, Counts, Floats, Ints, Links, SmallInts, Text, column};
use rollscope_spans::joins::Connections;
use rollscope_spans::{Forest, NONE, State, Texts, Walk};

use super::{SampleRow, StepData, Worker, flag};
use crate::attributes;
use crate::kinds::{Kind, classify, is_generation, is_said_rollout};

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
        let mut forest = Forest::read(spans)?;
        let mut data = StepData::default();
        let mut numbers = HashMap::new();
        data.read_spans(&forest, spans, &mut numbers)?;
        Connections::read(&forest, spans)?.attach(&mut forest, &data.sample);
        data.read_samples(samples, &mut numbers)?;
        data.read_links(&forest, spans)?;
        data.give_samples(&forest, &Walk::of(&forest));
        (data.start, data.end) = (std::mem::take(&mut forest.start), std::mem::take(&mut forest.end));
        (data.parent, data.trace) = (std::mem::take(&mut forest.parent), std::mem::take(&mut forest.trace));
        data.relate(forest.traces.len());
        for batch in attributes {
            let wanted = |row: &u32| {
                let row = *row as usize;
                tells(data.kind[row], data.sample[row] != NONE)
            };
            attributes::read(batch, &mut data.facts, |trace, span| forest.find(&trace, &span).filter(wanted))?;
        }
        data.read_sources();
        Ok(data)
    }

    fn read_spans(
        &mut self,
        forest: &Forest,
        batches: &[RecordBatch],
        numbers: &mut HashMap<u32, u32>,
    ) -> Result<(), ArrowError> {
        let mut text = |name: &str| match is_read(batches, name) {
            true => forest.texts(batches, name, &mut self.texts),
            false => Ok(vec![NONE; forest.len()]),
        };
        let (names, phases, statuses) = (text("name")?, text("phase")?, text("status")?);
        let (services, hosts, threads, senders) = (text("service")?, text("host")?, text("thread")?, text("resource")?);
        let (samples, groups) = (text("sample_id")?, text("group_id")?);
        let pids = numbers_of::<Ints, _>(forest, batches, "pid", |c, row| c.get(row))?;
        let small = |name| numbers_of::<SmallInts, _>(forest, batches, name, |c, row| c.get(row));
        let ranks = [small("tp_rank")?, small("dp_rank")?, small("pp_rank")?];
        let attempts = small("attempt")?;
        for name in ["dropped_attrs", "dropped_events", "dropped_links"].into_iter().filter(|n| is_read(batches, n)) {
            for batch in batches {
                let counts: Counts = column(batch, name)?;
                self.dropped += counts.iter().flatten().map(u64::from).sum::<u64>();
            }
        }
        let error = self.texts.find("error");
        let mut workers: HashMap<Worker, u32> = HashMap::new();
        // By name and phase: the kind, and the flags that follow from both.
        let mut kinds: HashMap<(u32, u32), (Kind, u8)> = HashMap::new();
        for row in 0..forest.len() {
            let (name, phase) = (names[row], phases[row]);
            let (kind, of_kind) = *kinds.entry((name, phase)).or_insert_with(|| {
                let (name, said) = (self.texts.get(name), (phase != NONE).then(|| self.texts.get(phase)));
                let generation = if is_generation(name, said) { flag::GENERATION } else { 0 };
                let rollout = if is_said_rollout(said) { flag::SAID_ROLLOUT } else { 0 };
                (classify(name, said), generation | rollout)
            });
            let mut flags = match forest.state[row] {
                State::Closed => of_kind,
                State::Open => of_kind | flag::OPEN,
                State::Instant | State::OrphanEnd => of_kind & !flag::GENERATION | flag::POINT,
            };
            flags |= if Some(statuses[row]) == error { flag::ERROR } else { 0 };
            flags |= if forest.is_lost(row) { flag::MISSING_PARENT } else { 0 };
            self.flags.push(flags);
            self.name.push(name);
            self.phase.push(phase);
            self.kind.push(kind);
            self.group.push(groups[row]);
            self.attempt.push(attempts[row].unwrap_or(0));
            self.sender.push(senders[row]);
            self.ids.push((forest.traces[forest.trace[row] as usize], forest.span[row]));
            let worker = Worker {
                service: services[row],
                host: hosts[row],
                thread: threads[row],
                pid: pids[row],
                ranks: ranks.each_ref().map(|ranks| ranks[row]),
                sender: senders[row],
            };
            self.worker.push(match worker == (Worker { service: worker.service, sender: worker.sender, ..nobody() }) {
                true => NONE,
                false => *workers.entry(worker).or_insert_with_key(|w| {
                    self.workers.push(w.clone());
                    self.workers.len() as u32 - 1
                }),
            });
            let sample = match samples[row] {
                NONE => NONE,
                id => self.sample_number(id, numbers),
            };
            self.sample.push(sample);
        }
        self.open = forest.state.iter().filter(|state| **state == State::Open).count();
        self.orphan_ends = forest.state.iter().filter(|state| **state == State::OrphanEnd).count();
        self.missing_parents = self.flags.iter().filter(|flags| **flags & flag::MISSING_PARENT != 0).count();
        Ok(())
    }

    fn read_links(&mut self, forest: &Forest, batches: &[RecordBatch]) -> Result<(), ArrowError> {
        let links: Vec<Links> = batches.iter().map(|batch| column(batch, "links")).collect::<Result<_, _>>()?;
        for row in 0..forest.len() {
            let (batch, at) = forest.place(row);
            let links = &links[batch];
            let targets = links.of(at).filter_map(|i| forest.find(&links.trace_id.get(i)?, &links.span_id.get(i)?));
            self.link_targets.extend(targets);
            self.link_ends.push(self.link_targets.len() as u32);
        }
        Ok(())
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
        let mut said: Vec<(u32, &str)> =
            self.facts.iter().filter_map(|(row, facts)| Some((*row, facts.source.as_deref()?))).collect();
        said.sort_unstable();
        for (row, source) in said {
            let sample = self.sample[row as usize];
            if sample != NONE && self.samples[sample as usize].source == NONE {
                self.samples[sample as usize].source = self.texts.number(source);
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

/// A worker that is not named.
fn nobody() -> Worker {
    Worker { host: NONE, thread: NONE, ..Worker::default() }
}

/// Is the column one of [`OUTLINE_COLUMNS`], or were all read?
fn is_read(batches: &[RecordBatch], name: &str) -> bool {
    batches.iter().all(|batch| batch.column_by_name(name).is_some())
}

/// A column of numbers, in the order of the forest.
fn numbers_of<'a, C: Column<'a>, T: Copy>(
    forest: &Forest,
    batches: &'a [RecordBatch],
    name: &str,
    get: impl Fn(&C, usize) -> Option<T>,
) -> Result<Vec<Option<T>>, ArrowError> {
    if !is_read(batches, name) {
        return Ok(vec![None; forest.len()]);
    }
    let mut out = Vec::with_capacity(forest.len());
    for batch in batches {
        let numbers: C = column(batch, name)?;
        out.extend((0..batch.num_rows()).map(|row| get(&numbers, row)));
    }
    Ok(forest.arrange(out))
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
