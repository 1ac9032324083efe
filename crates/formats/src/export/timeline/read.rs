//! Columns of the store as plain vectors, texts as numbers.

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use hashbrown::HashMap;
use rollscope_model::kinds::classify;
use rollscope_model::pd::{KEY_PREFIX, segment_of};
use rollscope_model::read::{Attrs, Ints, SmallInts, column};
use rollscope_spans::joins::Connections;
use rollscope_spans::{Forest, NONE, Texts, Walk, samples};

use super::{COLUMNS, flag, pd};

/// All spans, column by column.
pub struct Items {
    /// Times are nanoseconds since the epoch here.
    pub forest: Forest,
    pub depth: Vec<u8>,
    pub flags: Vec<u8>,
    pub name: Vec<u32>,
    pub names: Texts,
    pub phase: Vec<u32>,
    pub phases: Texts,
    pub sample: Vec<u32>,
    pub samples: Texts,
    pub group: Vec<u32>,
    pub groups: Texts,
    pub worker: Vec<u32>,
    pub workers: Texts,
    pub attempt: Vec<u8>,
    /// Spans with prefill and decode times among their attributes, and these in nanoseconds.
    pub pd: Vec<(u32, pd::Times)>,
}

impl Items {
    pub fn read(batches: &[RecordBatch]) -> Result<Items, ArrowError> {
        for (batch, name) in batches.iter().flat_map(|batch| COLUMNS.map(|name| (batch, name))) {
            batch.column_by_name(name).ok_or_else(|| {
                ArrowError::SchemaError(format!("the timeline needs the column {name} as the store has it"))
            })?;
        }
        let mut forest = Forest::read_as_given(batches)?;
        let (mut names, mut phases, mut words) = (Texts::default(), Texts::default(), Texts::default());
        let (mut samples, mut groups) = (Texts::default(), Texts::default());
        let name = forest.texts(batches, "name", &mut names)?;
        let phase = forest.texts(batches, "phase", &mut phases)?;
        let mut sample = forest.texts(batches, "sample_id", &mut samples)?;
        Connections::read(&forest, batches)?.attach(&mut forest, &sample);
        let walk = Walk::of(&forest);
        let group = forest.texts(batches, "group_id", &mut groups)?;
        let status = forest.texts(batches, "status", &mut words)?;
        let error = words.find("error");
        let flags = (0..forest.len())
            .map(|row| {
                let mut flags = forest.state[row] as u8;
                flags |= if Some(status[row]) == error { flag::ERROR } else { 0 };
                flags |= if walk.children.of(row).is_empty() { 0 } else { flag::PARENT };
                flags | if forest.is_lost(row) { flag::LOST_PARENT } else { 0 }
            })
            .collect();
        let said = |row: usize| (phase[row] != NONE).then(|| phases.get(phase[row]));
        samples::inherit(&forest, &walk, &mut sample);
        let is_trainers = |row: usize| classify(names.get(name[row]), said(row)).is_trainers();
        let of_traces = samples::of_traces(&forest, &sample, is_trainers);
        samples::lend(&forest, &of_traces, &mut sample);
        let group = groups_of_samples(group, &sample, samples.list.len());
        let attempts: Result<Vec<SmallInts>, ArrowError> = batches.iter().map(|b| column(b, "attempt")).collect();
        let attempt = attempts?.iter().flat_map(SmallInts::iter).map(|a| a.unwrap_or(0).clamp(0, 255) as u8).collect();
        let attempt = forest.arrange(attempt);
        let (worker, workers) = workers(&forest, &walk, batches)?;
        let depth = walk.depth.iter().map(|depth| (*depth).min(255) as u8).collect();
        let pd = read_pd(&forest, batches);
        Ok(Items {
            forest,
            depth,
            flags,
            name,
            names,
            phase,
            phases,
            sample,
            samples,
            group,
            groups,
            worker,
            workers,
            attempt,
            pd,
        })
    }

    pub fn len(&self) -> usize {
        self.forest.len()
    }
}

/// A sample that any of its spans gives a group has it everywhere.
fn groups_of_samples(mut group: Vec<u32>, sample: &[u32], samples: usize) -> Vec<u32> {
    let mut of_sample = vec![NONE; samples];
    for (group, sample) in group.iter().zip(sample) {
        if let Some(known) = of_sample.get_mut(*sample as usize).filter(|known| **known == NONE) {
            *known = *group;
        }
    }
    for (group, sample) in group.iter_mut().zip(sample) {
        if *group == NONE {
            *group = of_sample.get(*sample as usize).copied().unwrap_or(NONE);
        }
    }
    group
}

/// Service, thread, host; process and ranks.
type WorkerKey = (u32, u32, u32, (Option<i64>, [Option<i32>; 3]));

/// Thread, host, process, ranks and service as one text: two engines on a host, and their ranks, are told apart.
fn workers(forest: &Forest, walk: &Walk, batches: &[RecordBatch]) -> Result<(Vec<u32>, Texts), ArrowError> {
    let (mut words, mut texts) = (Texts::default(), Texts::default());
    let service = forest.texts(batches, "service", &mut words)?;
    let thread = forest.texts(batches, "thread", &mut words)?;
    let host = forest.texts(batches, "host", &mut words)?;
    let mut processes = Vec::with_capacity(service.len());
    for batch in batches {
        let pid: Ints = column(batch, "pid")?;
        let small = |name| column::<SmallInts>(batch, name);
        let ranks = [small("tp_rank")?, small("dp_rank")?, small("pp_rank")?];
        processes.extend((0..batch.num_rows()).map(|row| (pid.get(row), ranks.each_ref().map(|ranks| ranks.get(row)))));
    }
    let processes = forest.arrange(processes);
    let mut known: HashMap<WorkerKey, u32> = HashMap::new();
    let mut last = None;
    let mut out = Vec::with_capacity(service.len());
    for row in 0..service.len() {
        let key = (service[row], thread[row], host[row], processes[row]);
        let number = match last {
            Some((before, number)) if before == key => number,
            _ => *known.entry(key).or_insert_with(|| {
                let (service, thread, host) = (words.get(key.0), words.get(key.1), words.get(key.2));
                let mut label = thread.to_string();
                // SGLang's thread labels name the host themselves.
                if !host.is_empty() && !thread.contains(host.get(..8).unwrap_or(host)) {
                    label.push_str(if label.is_empty() { "@" } else { " @" });
                    label.push_str(host);
                }
                let (pid, ranks) = key.3;
                for (rank, word) in ranks.iter().zip(["TP", "DP", "PP"]) {
                    if let Some(rank) = rank.filter(|_| !thread.contains(word) && !thread.contains("rank")) {
                        label.push_str(&format!(" {word}{rank}"));
                    }
                }
                let of_a_process = !thread.is_empty() || ranks.iter().any(Option::is_some);
                if let Some(pid) = pid.filter(|_| of_a_process && !thread.contains("pid")) {
                    label.push_str(&format!(" pid {pid}"));
                }
                label = label.trim_start().to_string();
                if !service.is_empty() {
                    label.push_str(if label.is_empty() { "" } else { " · " });
                    label.push_str(service);
                }
                texts.number(if label.is_empty() { "unknown" } else { &label })
            }),
        };
        last = Some((key, number));
        out.push(number);
    }
    // A slice of an engine names nothing but its service: it runs where the thread above it does.
    let bare = |row: usize| thread[row] == NONE && host[row] == NONE && processes[row] == (None, [None; 3]);
    for row in walk.order.iter().map(|row| *row as usize) {
        let up = forest.parent[row];
        if up != NONE && bare(row) && service[row] == service[up as usize] {
            out[row] = out[up as usize];
        }
    }
    Ok((out, texts))
}

pub fn has_pd(batch: &RecordBatch) -> bool {
    let attrs: Option<Attrs> = column(batch, "end_attrs").ok();
    attrs.is_some_and(|attrs| (0..batch.num_rows()).any(|row| attrs.row(row).any(|(key, _)| segment_of(key).is_some())))
}

/// Finds `pd_*` durations among end attributes.
fn read_pd(forest: &Forest, batches: &[RecordBatch]) -> Vec<(u32, pd::Times)> {
    let attrs: Vec<Option<Attrs>> = batches.iter().map(|batch| column(batch, "end_attrs").ok()).collect();
    let mut out = Vec::new();
    if attrs.iter().all(Option::is_none) {
        return out;
    }
    for row in 0..forest.len() {
        let (batch, at) = forest.place(row);
        let Some(attrs) = &attrs[batch] else { continue };
        let mut times: Option<pd::Times> = None;
        for (key, json) in attrs.row(at).filter(|(key, _)| key.starts_with(KEY_PREFIX)) {
            let (Some(which), Ok(seconds)) = (segment_of(key), json.parse::<f64>()) else { continue };
            if seconds.is_finite() && seconds >= 0.0 {
                times.get_or_insert([None; 10])[which] = Some((seconds * 1e9) as i64);
            }
        }
        out.extend(times.map(|times| (row as u32, times)));
    }
    out
}
