//! Exports of Langfuse: tables of observations and traces from its page (JSON, JSON lines, CSV; fields as in `startTime`) or its blob
//! storage export (`start_time`), and what its API returns (`GET /api/public/traces/ID`, `/traces`, `/observations`).
//!
//! An observation becomes a span. Generations have the messages of their call on it, of which conversations are made.

use std::io::Read;
use std::path::Path;

use rollscope_model::build::NewSpan;
use rollscope_model::names::state;
use rollscope_model::time::seconds_to_ns;
use rollscope_model::{attrs, ids};

use super::csv;
use super::lines;
use super::record::Json;
use super::rows::{self, Fault, Rows};
use super::times::parse_time;
use crate::import::{ImportError, ImportOptions, Imported, Importer, Sink};
use crate::json::BOM;

/// Fields that have a column, or an attribute of another name.
const KNOWN: &[&str] = &[
    "id",
    "trace_id",
    "parent_observation_id",
    "type",
    "name",
    "start_time",
    "end_time",
    "input",
    "output",
    "status_message",
    "timestamp",
    "observations",
    "model",
    "provided_model_name",
    "usage_details",
    "scores",
    "latency",
];

pub struct Langfuse;

/// How rows are written.
enum Layout {
    Lines,
    Csv,
    Document,
}

impl Importer for Langfuse {
    fn name(&self) -> &'static str {
        "Langfuse export"
    }

    fn detects(&self, head: &[u8], _path: &Path) -> bool {
        layout(head).is_some()
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let mut head = Vec::new();
        (&mut *input).take(64 << 10).read_to_end(&mut head)?;
        let layout = layout(&head);
        let mut input = head.as_slice().chain(input);
        let mut rows = Rows::new(path, &rows::home(path, |_| false), "langfuse", options, sink);
        match layout {
            Some(Layout::Lines) => lines::each(&mut input, &mut rows, row)?,
            Some(Layout::Csv) => {
                for (line, record) in csv::records(&mut input)? {
                    one(&mut rows, "line", line, record)?;
                }
            }
            _ => {
                let mut document = lines::document(&mut input)?;
                let list = match &mut document {
                    Json::List(list) => std::mem::take(list),
                    other => match other.take("data") {
                        Some(Json::List(list)) => list,
                        Some(one) => vec![one],
                        None => vec![document],
                    },
                };
                for (number, record) in (1..).zip(list) {
                    one(&mut rows, "entry", number, record)?;
                }
            }
        }
        rows.finish()
    }
}

fn one(rows: &mut Rows, what: &str, number: u64, record: Json) -> Result<(), ImportError> {
    let bytes = record.entries().len() * 100;
    match row(rows, number, record) {
        Ok(()) => {}
        Err(Fault::Line(why)) => rows.reject_what(&format!("{what} {number}"), &why),
        Err(Fault::Stop(error)) => return Err(error),
    }
    rows.read(bytes)
}

/// Is it such an export? Told from the fields of the first row.
fn layout(head: &[u8]) -> Option<Layout> {
    let head = head.strip_prefix(BOM).unwrap_or(head).trim_ascii_start();
    let is_row = |keys: &[String]| {
        let has = |name: &str| keys.iter().any(|key| snake(key) == name);
        let observation = has("trace_id") && has("start_time") && has("type");
        let trace = has("timestamp") && (has("project_id") || has("html_path")) && has("name");
        has("id") && (observation || trace)
    };
    let inner = |text: &[u8]| {
        let text = text.strip_prefix(b"[").unwrap_or(text).trim_ascii_start();
        is_row(&lines::first_keys(text).0)
    };
    match head.first()? {
        b'[' => inner(head).then_some(Layout::Document),
        b'{' => {
            let (keys, _) = lines::first_keys(head);
            let wraps = keys.first().is_some_and(|key| key == "data");
            let list = memchr::memchr(b':', head).map(|at| head[at + 1..].trim_ascii_start());
            match () {
                () if wraps => list.is_some_and(inner).then_some(Layout::Document),
                () if keys.iter().any(|key| key == "observations") && is_row(&keys) => Some(Layout::Document),
                () => is_row(&keys).then_some(Layout::Lines),
            }
        }
        _ => {
            let line = head.split(|b| *b == b'\n').next()?;
            is_row(&csv::header(line)?).then_some(Layout::Csv)
        }
    }
}

/// `startTime` as `start_time`.
fn snake(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

fn row(rows: &mut Rows, number: u64, record: Json) -> Result<(), Fault> {
    let entries = record.into_entries().into_iter().map(|(key, value)| (snake(&key), value)).collect();
    let record = Json::Map(entries);
    if record.get("trace_id").is_some() { observation(rows, &record) } else { trace(rows, number, record) }
}

fn time(record: &Json, name: &str) -> Option<i64> {
    parse_time(record.str_of(name)?)
}

fn observation(rows: &mut Rows, record: &Json) -> Result<(), Fault> {
    let (Some(id), Some(trace)) =
        (record.get("id").and_then(Json::as_id), record.get("trace_id").and_then(Json::as_id))
    else {
        return Err(Fault::Line("it has no \"id\" or no id of a trace".into()));
    };
    let Some(start_ns) = time(record, "start_time") else {
        return Err(Fault::Line("it has no time at which it started".into()));
    };
    let kind = record.str_of("type").unwrap_or("SPAN").to_ascii_uppercase();
    let parent = record.get("parent_observation_id").and_then(Json::as_id).map(|id| ids::span_id_from_text(&id).0);
    // An event is a moment.
    let end_ns = time(record, "end_time").or((kind == "EVENT").then_some(start_ns)).map(|end| end.max(start_ns));
    let phase = match kind.as_str() {
        "GENERATION" => Some("generate"),
        "TOOL" => Some("tool"),
        "EVALUATOR" => Some("reward"),
        _ => None,
    };
    let name = record.str_of("name").filter(|name| !name.is_empty()).unwrap_or("observation");
    span(
        rows,
        record,
        Span {
            id: &id,
            trace: &trace,
            name,
            kind: &kind,
            phase,
            parent,
            start_ns,
            end_ns,
            talks: kind == "GENERATION",
        },
    );
    Ok(())
}

/// A trace is a span, too. Its observations may be in it. If they are not, its input and output are all there is of the conversation.
fn trace(rows: &mut Rows, _number: u64, mut record: Json) -> Result<(), Fault> {
    let Some(id) = record.get("id").and_then(Json::as_id) else {
        return Err(Fault::Line("it has no \"id\"".into()));
    };
    let Some(start_ns) = time(&record, "timestamp") else {
        return Err(Fault::Line("it has no \"timestamp\"".into()));
    };
    let observations = match record.take("observations") {
        Some(Json::List(list)) => list,
        _ => Vec::new(),
    };
    // The list of traces names its observations only by their ids.
    let observations: Vec<Json> = observations.into_iter().filter(|o| matches!(o, Json::Map(_))).collect();
    let talks = observations.is_empty();
    let mut last = None;
    for inner in observations {
        let entries = inner.into_entries().into_iter().map(|(key, value)| (snake(&key), value)).collect();
        let inner = Json::Map(entries);
        last = last.max(time(&inner, "end_time"));
        observation(rows, &inner)?;
    }
    let lasted = record.get("latency").and_then(|s| s.as_f64().or_else(|| s.as_str()?.parse().ok()));
    let lasted = lasted.filter(|s| *s >= 0.0).and_then(seconds_to_ns);
    let end_ns = lasted.map(|ns| start_ns.saturating_add(ns)).max(last).unwrap_or(start_ns).max(start_ns);
    let own = format!("trace {id}");
    let name = record.str_of("name").filter(|name| !name.is_empty()).unwrap_or("trace");
    span(
        rows,
        &record,
        Span {
            id: &own,
            trace: &id,
            name,
            kind: "TRACE",
            phase: None,
            parent: None,
            start_ns,
            end_ns: Some(end_ns),
            talks,
        },
    );
    Ok(())
}

struct Span<'a> {
    id: &'a str,
    trace: &'a str,
    name: &'a str,
    kind: &'a str,
    phase: Option<&'a str>,
    parent: Option<[u8; 8]>,
    start_ns: i64,
    end_ns: Option<i64>,
    /// It has the messages of a model call.
    talks: bool,
}

fn span(rows: &mut Rows, record: &Json, span: Span) {
    let text = |json: &Json| attrs::Value::from(json.as_str().map_or_else(|| json.to_text(), str::to_string));
    let mut about: Vec<(String, attrs::Value)> = vec![("langfuse.type".into(), span.kind.into())];
    for (name, value) in record.entries() {
        if KNOWN.contains(&name.as_str()) || *value == Json::Null || value.count() == Some(0) {
            continue;
        }
        about.extend(attrs::parse(&value.to_text()).map(|value| (format!("langfuse.{name}"), value)));
    }
    let (asked, answered) =
        if span.talks { ("gen_ai.prompt", "gen_ai.completion") } else { ("langfuse.input", "langfuse.output") };
    for (name, field) in [(asked, "input"), (answered, "output")] {
        about.extend(record.get(field).map(|value| (name.to_string(), text(value))));
    }
    let model = record.str_of("provided_model_name").or(record.str_of("model"));
    about.extend(model.map(|model| ("gen_ai.request.model".to_string(), model.into())));
    let usage = record.get("usage_details").or(record.get("usage"));
    for (name, field) in [("gen_ai.usage.input_tokens", "input"), ("gen_ai.usage.output_tokens", "output")] {
        about.extend(usage.and_then(|usage| usage.i64_of(field)).map(|count| (name.to_string(), count.into())));
    }
    for score in record.get("scores").map_or(&[][..], Json::items) {
        if let (Some(name), Some(value)) = (score.str_of("name"), score.f64_of("value")) {
            let name = if name == "reward" { name.to_string() } else { format!("langfuse.score.{name}") };
            about.push((name, value.into()));
        }
    }
    let about: Vec<(&str, attrs::Value)> = about.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    let failed = record.str_of("level") == Some("ERROR");
    rows.span(NewSpan {
        trace_id: ids::trace_id_from_text(span.trace).0,
        span_id: ids::span_id_from_text(span.id).0,
        parent_span_id: span.parent,
        name: span.name,
        kind: if span.kind == "GENERATION" { "client" } else { "internal" },
        phase: span.phase,
        start_ns: span.start_ns,
        end_ns: span.end_ns,
        state: if span.end_ns.is_some() { state::CLOSED } else { state::OPEN },
        status: if failed { "error" } else { "unset" },
        status_message: record.str_of("status_message").filter(|_| failed),
        start_attrs: &about,
        ..NewSpan::default()
    });
}
