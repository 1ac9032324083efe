//! Chrome's trace event format, which torch's profiler, Chrome, Perfetto's converters and many others write: one JSON
//! object with `traceEvents`, or the bare list. Read event by event in bounded memory.
//!
//! A file is one trace. Slices (`X`, `B`/`E`, `b`/`e`) become spans, instants (`i`, `I`, `R`, `n`) instants, counters (`C`) rows of
//! `series`; names of processes and threads (`M`) become service and thread. A slice's parent is the slice of the same thread
//! that holds it; that is exact when the slices of a thread come in the order of their start, as torch writes them. A
//! kernel is linked to the call that launched it by torch's correlation id. Times are microseconds, from
//! `baseTimeNanoseconds` on where the file names it.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::path::Path;

use rollscope_model::attrs::{self, Value};
use rollscope_model::build::{NewLink, NewPoint, NewRun, NewSpan, RunsBuilder, SeriesBuilder, SpansBuilder};
use rollscope_model::names::state;
use rollscope_model::{SpanId, Table, TraceId};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed, xxh3_128};

use super::{ImportError, ImportOptions, Imported, Importer, Sink};
use crate::json::{BOM, Error, Reader};

/// One event, or one value beside the events. More is an error that names this limit.
pub const MAX_EVENT_BYTES: usize = 64 << 20;
/// Slices that may be open at the same time (`B` without `E`, and slices that may still hold others).
const MAX_OPEN: usize = 1_000_000;
/// What is kept of the values beside the events, as attributes of the resource.
const MAX_HEADER_VALUE: usize = 16 << 10;
const CHUNK: usize = 256 << 10;

pub struct Chrome;

impl Importer for Chrome {
    fn name(&self) -> &'static str {
        "Chrome trace JSON"
    }

    fn detects(&self, head: &[u8], _path: &Path) -> bool {
        let head = head.strip_prefix(BOM).unwrap_or(head).trim_ascii_start();
        let has = |key: &[u8]| memchr::memmem::find(head, key).is_some();
        match head.first() {
            Some(b'{') => has(b"\"traceEvents\"") || (has(b"\"schemaVersion\"") && has(b"\"deviceProperties\"")),
            Some(b'[') => has(b"\"ph\""),
            _ => false,
        }
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let mut import = Import::new(path, options, sink);
        let mut stream = Stream::new(input);
        walk(&mut stream, &mut |part| match part {
            Part::Header(key, json) => {
                import.header(key, json);
                Ok(())
            }
            Part::Event(json) => import.event(json),
        })?;
        import.finish()
    }
}

/// Calls `each` with the text of every event.
pub fn events(input: &mut dyn Read, each: &mut dyn FnMut(&[u8]) -> Result<(), ImportError>) -> Result<(), ImportError> {
    walk(&mut Stream::new(input), &mut |part| match part {
        Part::Event(json) => each(json),
        Part::Header(..) => Ok(()),
    })
}

/// The zero of a torch profile, and the process ids in it.
pub fn profile_facts(input: &mut dyn Read) -> Result<(Option<i64>, HashSet<i64>), ImportError> {
    let (mut zero, mut pids) = (None, HashSet::new());
    walk(&mut Stream::new(input), &mut |part| {
        match part {
            Part::Header("baseTimeNanoseconds", json) => {
                zero = std::str::from_utf8(json).ok().and_then(|t| t.parse().ok())
            }
            Part::Header(..) => {}
            Part::Event(json) => {
                if let Ok(event) = Event::parse(json)
                    && let Some(Id::Number(pid)) = event.pid
                {
                    pids.insert(pid);
                }
            }
        }
        Ok(())
    })?;
    Ok((zero, pids))
}

enum Part<'a> {
    /// A value beside the events.
    Header(&'a str, &'a [u8]),
    Event(&'a [u8]),
}

type Each<'a> = dyn FnMut(Part) -> Result<(), ImportError> + 'a;

/// The file from its beginning to its end. A list of events that was cut off (Chrome allows that) ends there.
fn walk(stream: &mut Stream, each: &mut Each) -> Result<(), ImportError> {
    match stream.peek()? {
        Some(b'[') => {
            stream.skip(1);
            list(stream, each)
        }
        Some(b'{') => {
            stream.skip(1);
            loop {
                match stream.peek()? {
                    Some(b',') => stream.skip(1),
                    Some(b'"') => {
                        let key = stream.value()?;
                        let key = Reader::new(key).string().map(|key| key.into_owned());
                        let key = key.map_err(|e| stream.damaged(&e.to_string()))?;
                        if stream.peek()? != Some(b':') {
                            return Err(stream.damaged("expected a colon"));
                        }
                        stream.skip(1);
                        if key == "traceEvents" && stream.peek()? == Some(b'[') {
                            stream.skip(1);
                            list(stream, each)?;
                        } else {
                            stream.peek()?;
                            let value = stream.value()?;
                            each(Part::Header(&key, value))?;
                        }
                    }
                    Some(b'}') | None => return Ok(()),
                    Some(_) => return Err(stream.damaged("expected a key")),
                }
            }
        }
        _ => Err(stream.damaged("expected an object or a list of events")),
    }
}

fn list(stream: &mut Stream, each: &mut Each) -> Result<(), ImportError> {
    loop {
        match stream.peek()? {
            Some(b',') => stream.skip(1),
            Some(b']') => {
                stream.skip(1);
                return Ok(());
            }
            None => return Ok(()),
            Some(b'{') => {
                let Some(event) = stream.whole_value()? else { return Ok(()) };
                each(Part::Event(event))?;
            }
            Some(_) => return Err(stream.damaged("expected an event as an object")),
        }
    }
}

/// Text in pieces.
struct Stream<'a> {
    input: &'a mut dyn Read,
    buffer: Vec<u8>,
    at: usize,
    /// Bytes that came before the buffer.
    before: u64,
    ended: bool,
}

impl<'a> Stream<'a> {
    fn new(input: &'a mut dyn Read) -> Self {
        Stream { input, buffer: Vec::new(), at: 0, before: 0, ended: false }
    }

    fn damaged(&self, what: &str) -> ImportError {
        ImportError::Malformed(format!("{what} at byte {}", self.before + self.at as u64))
    }

    fn skip(&mut self, n: usize) {
        self.at += n;
    }

    /// More text behind what is there. Texts before `at` go away.
    fn fill(&mut self) -> Result<bool, ImportError> {
        if self.ended {
            return Ok(false);
        }
        self.buffer.drain(..self.at);
        self.before += self.at as u64;
        self.at = 0;
        let len = self.buffer.len();
        // Twice as much each time: a large value is not looked through again and again for nothing.
        self.buffer.resize(len + CHUNK.max(len), 0);
        let n = self.input.read(&mut self.buffer[len..])?;
        self.buffer.truncate(len + n);
        self.ended = n == 0;
        if self.before == 0 && self.buffer.starts_with(BOM) {
            self.at = BOM.len();
        }
        Ok(n > 0)
    }

    /// The first byte that is not white space.
    fn peek(&mut self) -> Result<Option<u8>, ImportError> {
        loop {
            let rest = &self.buffer[self.at..];
            match rest.iter().position(|b| !matches!(b, b' ' | b'\n' | b'\r' | b'\t')) {
                Some(n) => {
                    self.at += n;
                    return Ok(Some(self.buffer[self.at]));
                }
                None => {
                    self.at = self.buffer.len();
                    if !self.fill()? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// The value that begins here; an error if the file ends in it.
    fn value(&mut self) -> Result<&[u8], ImportError> {
        let cut = self.damaged("the file ends inside a value");
        self.whole_value()?.ok_or(cut)
    }

    /// The value that begins here, `None` if the file ends in it.
    fn whole_value(&mut self) -> Result<Option<&[u8]>, ImportError> {
        loop {
            if let Some(len) = value_length(&self.buffer[self.at..], self.ended) {
                let from = self.at;
                self.at += len;
                return Ok(Some(&self.buffer[from..from + len]));
            }
            if self.buffer.len() - self.at > MAX_EVENT_BYTES {
                let what = format!("the value at byte {}", self.before + self.at as u64);
                return Err(ImportError::Limit { what, name: "MAX_EVENT_BYTES", limit: MAX_EVENT_BYTES as u64 });
            }
            if !self.fill()? {
                return Ok(value_length(&self.buffer[self.at..], true).map(|len| {
                    let from = self.at;
                    self.at += len;
                    &self.buffer[from..from + len]
                }));
            }
        }
    }
}

/// How long the JSON value is that the text begins with, if all of it is there.
fn value_length(text: &[u8], ended: bool) -> Option<usize> {
    let string = |from: usize| -> Option<usize> {
        let mut at = from + 1;
        loop {
            let n = memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
            if text[at + n] == b'"' {
                return Some(at + n + 1);
            }
            at += n + 2;
        }
    };
    match text.first()? {
        b'"' => string(0),
        b'{' | b'[' => {
            let (mut at, mut depth) = (0, 0usize);
            loop {
                match text.get(at)? {
                    b'"' => {
                        at = string(at)?;
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => {
                        depth -= 1;
                        if depth == 0 {
                            return Some(at + 1);
                        }
                    }
                    _ => {}
                }
                at += 1;
            }
        }
        _ => {
            let end = text.iter().position(|b| matches!(b, b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t'));
            end.or_else(|| ended.then_some(text.len()))
        }
    }
}

/// A process, thread or event id: numbers mostly, text from some.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Id {
    Number(i64),
    Text(String),
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Id::Number(n) => n.fmt(f),
            Id::Text(text) => text.fmt(f),
        }
    }
}

#[derive(Default)]
struct Event {
    phase: u8,
    name: String,
    category: String,
    ts_ns: Option<i64>,
    dur_ns: Option<i64>,
    pid: Option<Id>,
    tid: Option<Id>,
    id: Option<String>,
    args: Vec<(String, Value)>,
}

impl Event {
    fn parse(json: &[u8]) -> Result<Event, Error> {
        let mut event = Event::default();
        let mut r = Reader::new(json);
        r.begin(b'{')?;
        let mut first = true;
        while let Some(key) = r.key(&mut first)? {
            match &*key {
                "ph" => event.phase = r.string()?.bytes().next().unwrap_or(0),
                "name" => event.name = read_text(&mut r)?,
                "cat" => event.category = read_text(&mut r)?,
                "ts" => event.ts_ns = microseconds(&mut r)?,
                "dur" => event.dur_ns = microseconds(&mut r)?,
                "pid" => event.pid = Some(id(&mut r)?),
                "tid" => event.tid = Some(id(&mut r)?),
                "id" | "id2" => event.id = Some(read_text(&mut r)?),
                "args" if r.peek()? == b'{' => {
                    r.begin(b'{')?;
                    let mut first = true;
                    while let Some(key) = r.key(&mut first)? {
                        let value = value(&mut r, json)?;
                        event.args.push((key.into_owned(), value));
                    }
                }
                _ => r.skip()?,
            }
        }
        r.end()?;
        Ok(event)
    }

    fn arg(&self, key: &str) -> Option<&Value> {
        self.args.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }
}

/// Text, or the text form of any other value.
fn read_text(r: &mut Reader) -> Result<String, Error> {
    match r.peek()? {
        b'"' => Ok(r.string()?.into_owned()),
        b'-' | b'0'..=b'9' => Ok(r.number()?.to_string()),
        _ => r.skip().map(|()| String::new()),
    }
}

fn id(r: &mut Reader) -> Result<Id, Error> {
    let text = read_text(r)?;
    Ok(text.parse().map_or_else(|_| Id::Text(text), Id::Number))
}

fn value(r: &mut Reader, json: &[u8]) -> Result<Value, Error> {
    Ok(match r.peek()? {
        b'"' => Value::Str(r.string()?.into_owned()),
        b't' | b'f' => Value::Bool(r.bool()?),
        b'n' => {
            r.null()?;
            Value::Null
        }
        b'{' | b'[' => {
            let from = r.pos();
            r.skip()?;
            let text = String::from_utf8_lossy(&json[from..r.pos()]);
            attrs::parse(&text).unwrap_or_else(|| Value::Str(text.into_owned()))
        }
        _ => {
            let text = r.number()?;
            match (text.parse(), text.parse()) {
                (Ok(int), _) => Value::Int(int),
                (_, Ok(double)) if text.contains(['.', 'e', 'E']) => Value::Double(double),
                _ => Value::Str(text.to_string()),
            }
        }
    })
}

/// Microseconds as nanoseconds, to the last digit: a double would lose them.
fn microseconds(r: &mut Reader) -> Result<Option<i64>, Error> {
    let text = match r.peek()? {
        b'"' => r.string()?.into_owned(),
        b'-' | b'0'..=b'9' => r.number()?.to_string(),
        _ => return r.skip().map(|()| None),
    };
    Ok(microseconds_text(&text))
}

fn microseconds_text(text: &str) -> Option<i64> {
    if text.contains(['e', 'E']) {
        let ns = (text.parse::<f64>().ok()? * 1000.0).round();
        return (ns.abs() < i64::MAX as f64).then_some(ns as i64);
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let negative = whole.starts_with('-');
    let whole: i64 = whole.parse::<i64>().ok()?.checked_mul(1000)?;
    let mut digits = fraction.bytes().map(|b| i64::from(b.wrapping_sub(b'0')));
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let mut ns = 0;
    for scale in [100, 10, 1] {
        ns += digits.next().unwrap_or(0) * scale;
    }
    ns += i64::from(digits.next().unwrap_or(0) >= 5);
    whole.checked_add(if negative { -ns } else { ns })
}

/// A slice that has begun.
struct Begun {
    span_id: SpanId,
    parent: Option<SpanId>,
    event: Event,
}

type Thread = (Option<Id>, Option<Id>);

struct Import<'a, 's> {
    sink: &'a mut Sink<'s>,
    run: String,
    file: String,
    trace_id: TraceId,
    base_ns: i64,
    resource: Vec<(String, Value)>,
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
    fn new(path: &Path, options: &ImportOptions, sink: &'a mut Sink<'s>) -> Self {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let stem = file.split(".json").next().unwrap_or(&file).split(".trace").next().unwrap_or(&file).to_string();
        Import {
            sink,
            run: options.run.clone().unwrap_or(stem),
            trace_id: xxh3_128(file.as_bytes()).to_be_bytes(),
            file,
            base_ns: 0,
            resource: Vec::new(),
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

    fn header(&mut self, key: &str, json: &[u8]) {
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
        if text.len() <= MAX_HEADER_VALUE
            && let Some(value) = attrs::parse(&text)
        {
            self.resource.push((key.to_string(), value));
        }
    }

    fn reason(&mut self, reason: String) {
        if self.reasons.len() < 10 {
            self.reasons.push(reason);
        }
    }

    fn event(&mut self, json: &[u8]) -> Result<(), ImportError> {
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
        let link = launched.map(|span_id| NewLink { trace_id: self.trace_id, span_id, attrs: &[] });
        let resource = attrs::to_text(&Value::Map(self.resource.clone()));
        self.spans.push(&NewSpan {
            run_id: &self.run,
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
            resource: &resource,
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

    fn finish(mut self) -> Result<Imported, ImportError> {
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
            framework: Some("profile"),
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
        Ok(Imported { rows: self.rows, rejected: self.rejected, reasons: self.reasons })
    }
}

fn is_launch(category: &str) -> bool {
    matches!(category, "cuda_runtime" | "cuda_driver" | "privateuse1_runtime" | "Runtime")
}

fn is_device(category: &str) -> bool {
    matches!(category, "kernel" | "gpu_memcpy" | "gpu_memset" | "Kernel" | "Memcpy" | "Memset")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_are_exact() {
        for (text, ns) in [
            ("0", 0),
            ("1756000000001283.513", 1_756_000_000_001_283_513),
            ("12.5", 12_500),
            ("-0.005", -5),
            ("1.23456", 1_235),
            ("1e3", 1_000_000),
        ] {
            assert_eq!(microseconds_text(text), Some(ns), "{text}");
        }
        for bad in ["", "x", "1.x", "9223372036854775807"] {
            assert_eq!(microseconds_text(bad), None, "{bad}");
        }
    }

    #[test]
    fn values_are_measured_in_any_pieces() {
        let text = br#"{"a":"}\"","b":[1,{"c":"]"}]},"#;
        assert_eq!(value_length(text, false), Some(text.len() - 1));
        for cut in 1..text.len() - 1 {
            assert_eq!(value_length(&text[..cut], true), None, "{cut}");
        }
        assert_eq!(value_length(b"12", false), None);
        assert_eq!(value_length(b"12", true), Some(2));
        assert_eq!(value_length(b"12,", false), Some(2));
    }
}
