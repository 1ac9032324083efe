//! Columns of the store as plain vectors, texts as numbers.

use arrow::array::{Array, RecordBatch};
use arrow::error::ArrowError;
use hashbrown::HashMap;
use rollscope_model::pd::{KEY_PREFIX, segment_of};
use rollscope_model::read::{Attrs, Ids, Ints, SmallInts, Text, column};

use super::{COLUMNS, flag, pd};

/// No text, no sample, no parent.
pub const NONE: i32 = -1;

/// Texts numbered in the order they are met.
#[derive(Default)]
pub struct Texts {
    pub texts: Vec<String>,
    index: HashMap<String, i32>,
}

impl Texts {
    pub fn add(&mut self, text: &str) -> i32 {
        if let Some(code) = self.index.get(text) {
            return *code;
        }
        let code = self.texts.len() as i32;
        self.texts.push(text.to_string());
        self.index.insert(text.to_string(), code);
        code
    }
}

/// All spans, column by column.
#[derive(Default)]
pub struct Items {
    pub base_ns: i64,
    /// Nanoseconds since `base_ns`.
    pub start: Vec<i64>,
    /// As drawn. Unknown (`i64::MIN`) until open spans are cut.
    pub end: Vec<i64>,
    pub extent: i64,
    pub parent: Vec<i32>,
    pub depth: Vec<u8>,
    pub flags: Vec<u8>,
    pub name: Vec<i32>,
    pub names: Texts,
    pub phase: Vec<i32>,
    pub phases: Texts,
    pub sample: Vec<i32>,
    pub samples: Texts,
    pub group: Vec<i32>,
    pub groups: Texts,
    pub worker: Vec<i32>,
    pub workers: Texts,
    pub attempt: Vec<u8>,
    pub trace: Vec<i32>,
    pub traces: Vec<[u8; 16]>,
    pub span: Vec<u64>,
    pub parent_id: Vec<u64>,
    /// Rows that came; those after them we made up.
    pub given: usize,
    /// Spans with prefill and decode times among their attributes, and these in nanoseconds.
    pub pd: Vec<(u32, pd::Times)>,
}

pub const UNKNOWN: i64 = i64::MIN;

impl Items {
    pub fn len(&self) -> usize {
        self.start.len()
    }

    pub fn state(&self, i: usize) -> u8 {
        self.flags[i] & flag::STATE
    }
}

fn missing(name: &str) -> ArrowError {
    ArrowError::SchemaError(format!("the timeline needs the column {name} as the store has it"))
}

/// Numbers of the texts of one column; one look-up for each distinct text of the batch.
fn codes(batch: &RecordBatch, name: &str, texts: &mut Texts, out: &mut Vec<i32>) -> Result<(), ArrowError> {
    let column: Option<Text> = column(batch, name).ok();
    let (keys, values) = column.and_then(|text| text.dictionary()).ok_or_else(|| missing(name))?;
    let mut map: Vec<i32> = vec![i32::MIN; values.len()];
    for row in 0..keys.len() {
        if keys.is_null(row) {
            out.push(NONE);
            continue;
        }
        let key = keys.value(row) as usize;
        if map[key] == i32::MIN {
            map[key] = if values.is_null(key) { NONE } else { texts.add(values.value(key)) };
        }
        out.push(map[key]);
    }
    Ok(())
}

pub fn read(batches: &[RecordBatch]) -> Result<Items, ArrowError> {
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    if rows > i32::MAX as usize / 4 {
        return Err(ArrowError::InvalidArgumentError(format!("{rows} spans are too many for one timeline")));
    }
    let mut items = Items { given: rows, ..Items::default() };
    let (mut states, mut statuses) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    let mut words = Texts::default();
    let mut places = [const { Vec::new() }; 3];
    let mut trace_index: HashMap<[u8; 16], i32> = HashMap::new();
    let mut starts: Vec<i64> = Vec::with_capacity(rows);
    let mut ends: Vec<i64> = Vec::with_capacity(rows);
    for batch in batches {
        for name in COLUMNS {
            batch.column_by_name(name).ok_or_else(|| missing(name))?;
        }
        let at = starts.len() as u32;
        codes(batch, "name", &mut items.names, &mut items.name)?;
        codes(batch, "phase", &mut items.phases, &mut items.phase)?;
        codes(batch, "sample_id", &mut items.samples, &mut items.sample)?;
        codes(batch, "group_id", &mut items.groups, &mut items.group)?;
        codes(batch, "state", &mut words, &mut states)?;
        codes(batch, "status", &mut words, &mut statuses)?;
        for (name, out) in ["service", "thread", "host"].into_iter().zip(&mut places) {
            codes(batch, name, &mut words, out)?;
        }
        let (traces, spans, parents): (Ids<16>, Ids<8>, Ids<8>) =
            (column(batch, "trace_id")?, column(batch, "span_id")?, column(batch, "parent_span_id")?);
        for row in 0..batch.num_rows() {
            let id = traces.at(row);
            let known = items.trace.last().filter(|t| items.traces[**t as usize] == id).copied();
            let code = known.unwrap_or_else(|| {
                *trace_index.entry(id).or_insert_with(|| {
                    items.traces.push(id);
                    items.traces.len() as i32 - 1
                })
            });
            items.trace.push(code);
            items.span.push(u64::from_le_bytes(spans.at(row)));
            items.parent_id.push(parents.get(row).map_or(0, u64::from_le_bytes));
        }
        let (start, end): (Ints, Ints) = (column(batch, "start_ns")?, column(batch, "end_ns")?);
        starts.extend_from_slice(start.values());
        ends.extend(end.iter().map(|t| t.unwrap_or(UNKNOWN)));
        let attempts: SmallInts = column(batch, "attempt")?;
        items.attempt.extend(attempts.iter().map(|a| a.unwrap_or(0).clamp(0, 255) as u8));
        if let Ok(attrs) = column(batch, "end_attrs") {
            read_pd(&attrs, batch.num_rows(), at, &mut items.pd);
        }
    }
    items.worker = workers(&mut items.workers, &words, &places);
    times(&mut items, starts, ends);
    let state_of = |code: i32, end: i64| match words.texts.get(code as usize).map(String::as_str) {
        Some("instant") => flag::INSTANT,
        Some("orphan_end") => flag::ORPHAN_END,
        Some("open") => flag::OPEN,
        _ if end == UNKNOWN => flag::OPEN,
        _ => flag::CLOSED,
    };
    let error = words.texts.iter().position(|w| w == "error").map_or(i32::MIN, |p| p as i32);
    items.flags = (0..rows)
        .map(|i| state_of(states[i], items.end[i]) | if statuses[i] == error { flag::ERROR } else { 0 })
        .collect();
    for i in 0..rows {
        match items.state(i) {
            flag::INSTANT => items.end[i] = items.start[i],
            // An end alone stands where it ends.
            flag::ORPHAN_END if items.end[i] != UNKNOWN => items.start[i] = items.end[i],
            flag::ORPHAN_END => items.end[i] = items.start[i],
            flag::OPEN => items.end[i] = UNKNOWN,
            _ => {}
        }
    }
    items.parent = vec![NONE; rows];
    items.depth = vec![0; rows];
    Ok(items)
}

/// Times relative to the earliest start.
fn times(items: &mut Items, starts: Vec<i64>, ends: Vec<i64>) {
    let base = starts.iter().copied().min().unwrap_or(0);
    items.base_ns = base;
    items.start = starts.into_iter().map(|t| t.saturating_sub(base)).collect();
    items.end = ends.into_iter().map(|t| if t == UNKNOWN { UNKNOWN } else { t.saturating_sub(base) }).collect();
    for (start, end) in items.start.iter().zip(&mut items.end) {
        if *end != UNKNOWN && *end < *start {
            *end = *start;
        }
        items.extent = items.extent.max(*start).max(*end);
    }
}

/// Thread, host and service as one text.
fn workers(texts: &mut Texts, words: &Texts, [service, thread, host]: &[Vec<i32>; 3]) -> Vec<i32> {
    let text = |code: i32| words.texts.get(code as usize).map_or("", String::as_str);
    let mut known: HashMap<(i32, i32, i32), i32> = HashMap::new();
    let mut last = ((i32::MIN, 0, 0), 0);
    let mut out = Vec::with_capacity(service.len());
    for i in 0..service.len() {
        let key = (service[i], thread[i], host[i]);
        if key != last.0 {
            let code = *known.entry(key).or_insert_with(|| {
                let (service, thread, host) = (text(key.0), text(key.1), text(key.2));
                let mut label = thread.to_string();
                // SGLang's thread labels name the host themselves.
                if !host.is_empty() && !thread.contains(host.get(..8).unwrap_or(host)) {
                    label.push_str(if label.is_empty() { "@" } else { " @" });
                    label.push_str(host);
                }
                if !service.is_empty() {
                    label.push_str(if label.is_empty() { "" } else { " · " });
                    label.push_str(service);
                }
                texts.add(if label.is_empty() { "unknown" } else { &label })
            });
            last = (key, code);
        }
        out.push(last.1);
    }
    out
}

pub fn has_pd(batch: &RecordBatch) -> bool {
    let attrs: Option<Attrs> = column(batch, "end_attrs").ok();
    attrs.is_some_and(|attrs| (0..batch.num_rows()).any(|row| attrs.row(row).any(|(key, _)| segment_of(key).is_some())))
}

/// Finds `pd_*` durations among end attributes.
fn read_pd(attrs: &Attrs, rows: usize, at: u32, out: &mut Vec<(u32, pd::Times)>) {
    for row in 0..rows {
        let mut times: Option<pd::Times> = None;
        for (key, json) in attrs.row(row).filter(|(key, _)| key.starts_with(KEY_PREFIX)) {
            let (Some(which), Ok(seconds)) = (segment_of(key), json.parse::<f64>()) else { continue };
            if seconds.is_finite() && seconds >= 0.0 {
                times.get_or_insert([None; 10])[which] = Some((seconds * 1e9) as i64);
            }
        }
        if let Some(times) = times {
            out.push((at + row as u32, times));
        }
    }
}
