//! Events as rows: slices and instants as spans, counters as series.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use rollscope_model::attrs::{self, Value};
use rollscope_model::build::{NewLink, NewPoint, NewRun, NewSpan, RunsBuilder, SeriesBuilder, SpansBuilder};
use rollscope_model::names::state;
use rollscope_model::{SpanId, Table, TraceId};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed, xxh3_128};

use super::event::{Event, Id};
use super::{ImportError, ImportOptions, Imported, Sink};
use crate::import::written_ns;

/// Slices that may be open at the same time (`B` without `E`, and slices that may still hold others).
const MAX_OPEN: usize = 1_000_000;
/// What is kept of a value beside the events, and of all of them, as attributes of the resource, which every row has.
const MAX_HEADER_VALUE: usize = 16 << 10;
const MAX_HEADER: usize = 64 << 10;
/// How many values are kept that come after an event: the rows behind each have another resource.
const MAX_HEADERS_BETWEEN: u64 = 16;

/// A slice that has begun.
struct Begun {
    span_id: SpanId,
    parent: Option<SpanId>,
    event: Event,
}

type Thread = (Option<Id>, Option<Id>);

pub(super) struct Import<'a, 's> {
    sink: &'a mut Sink<'s>,
    run: String,
    framework: &'static str,
    file: String,
    trace_id: TraceId,
    base_ns: i64,
    /// As rows have it: JSON.
    resource: String,
    headers_between: u64,
    spans: SpansBuilder,
    series: SeriesBuilder,
    batch_rows: usize,
    pending_spans: usize,
    pending_series: usize,
    number: u64,
    rows: u64,
    rejected: u64,
    reasons: Vec<String>,
    left_out: HashMap<u8, u64>,
    processes: HashMap<Id, String>,
    threads: HashMap<Thread, String>,
    /// Slices that may still hold others, by thread: (end, id).
    holders: HashMap<Thread, Vec<(i64, SpanId)>>,
    begun: HashMap<Thread, Vec<Begun>>,
    asynchronous: HashMap<(Option<Id>, String, String), Vec<Begun>>,
    open: usize,
    launches: HashSet<i64>,
    first_ns: i64,
}

impl<'a, 's> Import<'a, 's> {
    pub(super) fn new(path: &Path, options: &ImportOptions, sink: &'a mut Sink<'s>) -> Self {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let stem = file.split(".json").next().unwrap_or(&file).split(".trace").next().unwrap_or(&file).to_string();
        Import {
            sink,
            run: options.run.clone().unwrap_or(stem),
            framework: "profile",
            trace_id: xxh3_128(file.as_bytes()).to_be_bytes(),
            file,
            base_ns: 0,
            resource: "{}".into(),
            headers_between: 0,
            spans: SpansBuilder::default(),
            series: SeriesBuilder::default(),
            batch_rows: options.batch_rows,
            pending_spans: 0,
            pending_series: 0,
            number: 0,
            rows: 0,
            rejected: 0,
            reasons: Vec::new(),
            left_out: HashMap::new(),
            processes: HashMap::new(),
            threads: HashMap::new(),
            holders: HashMap::new(),
            begun: HashMap::new(),
            asynchronous: HashMap::new(),
            open: 0,
            launches: HashSet::new(),
            first_ns: i64::MAX,
        }
    }

    /// The file is one of many of a run. Its times count from a start that is not known; `last_ns` is the last of them.
    pub(super) fn of_process(
        &mut self,
        home: &Path,
        path: &Path,
        framework: &'static str,
        options: &ImportOptions,
        last_ns: i64,
    ) {
        self.framework = framework;
        if let (None, Some(folder)) = (&options.run, home.file_name()) {
            self.run = folder.to_string_lossy().into_owned();
        }
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let place = path.strip_prefix(home).unwrap_or(&path).to_string_lossy();
        self.trace_id = xxh3_128(place.as_bytes()).to_be_bytes();
        self.base_ns = (written_ns(&path) - last_ns).max(0);
    }

    pub(super) fn left_out(&mut self, line: u64, why: &str) {
        self.rejected += 1;
        self.reason(format!("line {line}: {why}"));
    }

    pub(super) fn header(&mut self, key: &str, json: &[u8]) {
        let text = String::from_utf8_lossy(json);
        if key == "baseTimeNanoseconds"
            && let Ok(base) = text.parse()
        {
            self.base_ns = base;
            // Another profile under the same name is another trace.
            self.trace_id = xxh3_128(format!("{}\0{base}", self.file).as_bytes()).to_be_bytes();
            if self.number > 0 {
                self.reason("baseTimeNanoseconds comes after the events, so their times are not relative to it".into());
            }
        }
        self.headers_between += u64::from(self.number > 0);
        if self.headers_between <= MAX_HEADERS_BETWEEN
            && text.len() <= MAX_HEADER_VALUE
            && self.resource.len() + key.len() + text.len() <= MAX_HEADER
            && let Some(value) = attrs::parse(&text)
        {
            let mut entry = Vec::new();
            attrs::write_key(&mut entry, key);
            attrs::write_value(&mut entry, &value);
            self.resource.pop();
            self.resource.push_str(if self.resource.len() > 1 { "," } else { "" });
            self.resource.push_str(std::str::from_utf8(&entry).expect("only UTF-8 is written"));
            self.resource.push('}');
        }
    }

    fn reason(&mut self, reason: String) {
        if self.reasons.len() < 10 {
            self.reasons.push(reason);
        }
    }

    pub(super) fn event(&mut self, json: &[u8]) -> Result<(), ImportError> {
        self.number += 1;
        let event = match Event::parse(json) {
            Ok(event) => event,
            Err(error) => {
                self.rejected += 1;
                self.reason(format!("event {}: {error}", self.number));
                return Ok(());
            }
        };
        match event.phase {
            b'M' => self.name(event),
            b's' | b't' | b'f' => *self.left_out.entry(event.phase).or_default() += 1,
            b'X' | b'B' | b'E' | b'i' | b'I' | b'R' | b'b' | b'n' | b'e' | b'C' => return self.timed(event),
            phase => *self.left_out.entry(phase).or_default() += 1,
        }
        Ok(())
    }

    fn name(&mut self, event: Event) {
        let Some(Value::Str(name)) = event.arg("name") else { return };
        match (event.name.as_str(), event.pid.clone()) {
            ("process_name", Some(pid)) => {
                self.processes.insert(pid, name.clone());
            }
            ("thread_name", pid) => {
                self.threads.insert((pid, event.tid.clone()), name.clone());
            }
            _ => {}
        }
    }

    fn timed(&mut self, mut event: Event) -> Result<(), ImportError> {
        let Some(ts) = event.ts_ns.and_then(|ts| ts.checked_add(self.base_ns)) else {
            self.rejected += 1;
            self.reason(format!("event {}: its time is missing or out of range", self.number));
            return Ok(());
        };
        event.ts_ns = Some(ts);
        self.first_ns = self.first_ns.min(ts);
        let thread = (event.pid.clone(), event.tid.clone());
        match event.phase {
            b'X' => {
                let end = ts.saturating_add(event.dur_ns.unwrap_or(0).max(0));
                let span_id = self.id_of(&event);
                let parent = self.holder(&thread, ts, end, span_id);
                self.push(&event, span_id, parent, Some(end), state::CLOSED, &[]);
            }
            b'i' | b'I' | b'R' | b'n' => {
                let span_id = self.id_of(&event);
                let parent = self.holder_at(&thread, ts);
                self.push(&event, span_id, parent, Some(ts), state::INSTANT, &[]);
            }
            b'B' | b'b' => {
                self.open += 1;
                if self.open > MAX_OPEN {
                    let what = "the number of slices open at the same time".to_string();
                    return Err(ImportError::Limit { what, name: "MAX_OPEN", limit: MAX_OPEN as u64 });
                }
                let span_id = self.id_of(&event);
                let stack = if event.phase == b'B' {
                    self.begun.entry(thread).or_default()
                } else {
                    let key = (event.pid.clone(), event.category.clone(), event.id.clone().unwrap_or_default());
                    self.asynchronous.entry(key).or_default()
                };
                let parent = stack.last().map(|b| b.span_id);
                stack.push(Begun { span_id, parent, event });
            }
            b'E' | b'e' => {
                let begun = if event.phase == b'E' {
                    self.begun.get_mut(&thread).and_then(Vec::pop)
                } else {
                    let key = (event.pid.clone(), event.category.clone(), event.id.clone().unwrap_or_default());
                    self.asynchronous.get_mut(&key).and_then(Vec::pop)
                };
                match begun {
                    Some(begun) => {
                        self.open -= 1;
                        let args = std::mem::take(&mut event.args);
                        self.push(&begun.event, begun.span_id, begun.parent, Some(ts), state::CLOSED, &args);
                    }
                    None => {
                        let span_id = self.id_of(&event);
                        self.push(&event, span_id, None, Some(ts), state::ORPHAN_END, &[]);
                    }
                }
            }
            _ => self.counter(&event, ts),
        }
        if self.pending_spans.max(self.pending_series) >= self.batch_rows {
            self.flush()?;
        }
        Ok(())
    }

    /// The same event gets the same id whenever the file is read. A call that launches work is known by its correlation.
    fn id_of(&mut self, event: &Event) -> SpanId {
        if let (true, Some(Value::Int(correlation))) = (is_launch(&event.category), event.arg("correlation"))
            && *correlation != 0
            && self.launches.insert(*correlation)
        {
            return self.launch_id(*correlation);
        }
        xxh3_64_with_seed(&self.trace_id, self.number).max(1).to_be_bytes()
    }

    fn launch_id(&self, correlation: i64) -> SpanId {
        let mut text = self.trace_id.to_vec();
        text.extend_from_slice(b"launch");
        text.extend_from_slice(&correlation.to_be_bytes());
        xxh3_64(&text).max(1).to_be_bytes()
    }

    /// The slice of the thread that holds this one; which may hold others in turn.
    fn holder(&mut self, thread: &Thread, start: i64, end: i64, span_id: SpanId) -> Option<SpanId> {
        let stack = match self.holders.get_mut(thread) {
            Some(stack) => stack,
            None => self.holders.entry(thread.clone()).or_default(),
        };
        while stack.last().is_some_and(|(until, _)| *until <= start && *until < end) {
            stack.pop();
        }
        let parent = stack.iter().rev().find(|(until, _)| end <= *until).map(|(_, id)| *id);
        if stack.len() < 4096 {
            stack.push((end, span_id));
        }
        parent
    }

    fn holder_at(&self, thread: &Thread, at: i64) -> Option<SpanId> {
        let stack = self.holders.get(thread)?;
        stack.iter().rev().find(|(until, _)| at <= *until).map(|(_, id)| *id)
    }

    fn push(
        &mut self,
        event: &Event,
        span_id: SpanId,
        parent: Option<SpanId>,
        end: Option<i64>,
        state: &str,
        end_args: &[(String, Value)],
    ) {
        let number = |id: &Option<Id>| match id {
            Some(Id::Number(n)) => Some(*n),
            _ => None,
        };
        let process = event.pid.as_ref().and_then(|pid| self.processes.get(pid)).cloned();
        let thread = match self.threads.get(&(event.pid.clone(), event.tid.clone())) {
            Some(name) => Some(name.clone()),
            None => event.tid.as_ref().map(|tid| format!("thread {tid}")),
        };
        let mut attrs: Vec<(&str, Value)> = Vec::with_capacity(event.args.len() + 2);
        if !event.category.is_empty() {
            attrs.push(("category", event.category.as_str().into()));
        }
        if let Some(Id::Text(pid)) = &event.pid {
            attrs.push(("process", pid.as_str().into()));
        }
        if let Some(tid) = &event.tid {
            attrs.push(("tid", number(&event.tid).map_or_else(|| tid.to_string().into(), Value::Int)));
        }
        attrs.extend(event.args.iter().map(|(k, v)| (k.as_str(), v.clone())));
        let end_attrs: Vec<(&str, Value)> = end_args.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
        let launched = match event.arg("correlation") {
            Some(Value::Int(n)) if *n != 0 && is_device(&event.category) => Some(self.launch_id(*n)),
            _ => None,
        };
        // AReaL names the step of what it does for one.
        let step = match event.arg("global_step") {
            Some(Value::Int(step)) => Some(*step),
            _ => None,
        };
        let link = launched.map(|span_id| NewLink { trace_id: self.trace_id, span_id, attrs: &[] });
        self.spans.push(&NewSpan {
            run_id: &self.run,
            step,
            trace_id: self.trace_id,
            span_id,
            parent_span_id: parent,
            name: &event.name,
            service: process.as_deref().unwrap_or("profile"),
            thread: thread.as_deref(),
            pid: number(&event.pid),
            start_ns: event.ts_ns.unwrap_or(0),
            end_ns: end,
            state,
            start_attrs: &attrs,
            end_attrs: &end_attrs,
            links: link.as_slice(),
            resource: &self.resource,
            scope: "{\"name\":\"chrome\"}",
            ..NewSpan::default()
        });
        self.pending_spans += 1;
    }

    fn counter(&mut self, event: &Event, ts: i64) {
        let process = event.pid.as_ref().map(|pid| self.processes.get(pid).cloned().unwrap_or_else(|| pid.to_string()));
        let target = process.unwrap_or_else(|| "profile".into());
        for (key, value) in &event.args {
            let value = match value {
                Value::Int(n) => *n as f64,
                Value::Double(d) => *d,
                _ => continue,
            };
            let mut labels = Vec::new();
            labels.push(b'{');
            attrs::write_key(&mut labels, "value");
            attrs::write_str(&mut labels, key);
            labels.push(b'}');
            self.series.push(&NewPoint {
                run_id: &self.run,
                target: &target,
                name: &event.name,
                labels: std::str::from_utf8(&labels).unwrap_or("{}"),
                kind: "gauge",
                time_ns: ts,
                value,
            });
            self.pending_series += 1;
        }
    }

    fn flush(&mut self) -> Result<(), ImportError> {
        let failed = |e: arrow::error::ArrowError| ImportError::Malformed(e.to_string());
        if std::mem::take(&mut self.pending_spans) > 0 {
            let batch = self.spans.finish().map_err(failed)?;
            self.rows += batch.num_rows() as u64;
            (self.sink)(Table::Spans, batch)?;
        }
        if std::mem::take(&mut self.pending_series) > 0 {
            let batch = self.series.finish().map_err(failed)?;
            self.rows += batch.num_rows() as u64;
            (self.sink)(Table::Series, batch)?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Imported, ImportError> {
        // What was begun and never ended is open.
        let mut begun: Vec<Begun> = std::mem::take(&mut self.begun).into_values().flatten().collect();
        begun.extend(std::mem::take(&mut self.asynchronous).into_values().flatten());
        begun.sort_by_key(|b| b.event.ts_ns);
        for b in begun {
            self.push(&b.event, b.span_id, b.parent, None, state::OPEN, &[]);
        }
        self.flush()?;
        if self.number > 0 && self.rows == 0 && self.rejected == self.number {
            let first = self.reasons.first().cloned().unwrap_or_default();
            return Err(ImportError::Malformed(first));
        }
        let mut run = RunsBuilder::default();
        let started = if self.first_ns == i64::MAX { 0 } else { self.first_ns };
        run.push(&NewRun {
            run_id: &self.run,
            framework: Some(self.framework),
            started_ns: started,
            updated_ns: started,
            ..NewRun::default()
        });
        (self.sink)(Table::Runs, run.finish().map_err(|e| ImportError::Malformed(e.to_string()))?)?;
        let mut left_out: Vec<_> = std::mem::take(&mut self.left_out).into_iter().collect();
        left_out.sort_unstable();
        for (phase, count) in left_out {
            let phase = phase as char;
            let what = match phase {
                's' | 't' | 'f' => "arrows are not read; kernels are linked to their launch by correlation id",
                _ => "this phase is not supported",
            };
            self.reason(format!("{count} events of phase {phase:?} were left out: {what}"));
        }
        Ok(Imported { rows: self.rows, rejected: self.rejected, reasons: self.reasons, ..Imported::default() })
    }
}

fn is_launch(category: &str) -> bool {
    matches!(category, "cuda_runtime" | "cuda_driver" | "privateuse1_runtime" | "Runtime")
}

fn is_device(category: &str) -> bool {
    matches!(category, "kernel" | "gpu_memcpy" | "gpu_memset" | "Kernel" | "Memcpy" | "Memset")
}
