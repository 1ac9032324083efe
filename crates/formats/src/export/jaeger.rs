//! Spans as Jaeger's query service writes them (its "UI model"), with its conventions: microseconds, the parent and the links as
//! references, processes apart, every tag typed, status and kind as tags, events as logs.

use std::collections::HashMap;

use arrow::array::RecordBatch;
use rollscope_model::attrs::{self, Type};
use rollscope_model::read::Spans;

use super::rows;
use crate::json::Reader;

/// JavaScript's numbers are exact up to here; Jaeger writes larger ones as text.
const MAX_SAFE: i64 = 9_007_199_254_740_991;

/// Jaeger writes a trace id whose upper half is zero with 16 digits.
pub fn trace_id(id: &[u8]) -> String {
    let text = hex::encode(id);
    match text.strip_prefix("0000000000000000") {
        Some(low) if id.len() == 16 => low.to_string(),
        _ => text,
    }
}

/// One trace as an object of the answer to `/api/traces`.
pub fn write_trace(out: &mut Vec<u8>, batches: &[RecordBatch]) {
    let mut processes = Processes::default();
    out.extend_from_slice(b"{\"traceID\":");
    let first = batches.iter().find(|b| b.num_rows() > 0);
    let id = first.map_or_else(String::new, |b| trace_id(&rows::spans(b).trace_id.at(0)));
    attrs::write_str(out, &id);
    out.extend_from_slice(b",\"spans\":[");
    let mut any = false;
    for batch in batches {
        let spans = rows::spans(batch);
        for row in 0..spans.len() {
            if std::mem::replace(&mut any, true) {
                out.push(b',');
            }
            span(out, &spans, row, &mut processes);
        }
    }
    out.extend_from_slice(b"],\"processes\":{");
    for (i, (service, resource)) in processes.list.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        out.extend_from_slice(format!("\"p{}\":{{\"serviceName\":", i + 1).as_bytes());
        attrs::write_str(out, service);
        out.extend_from_slice(b",\"tags\":[");
        let mut tags = Tags::new(out);
        for (key, value) in members(resource) {
            if key != "service.name" {
                tags.json(&key, &value);
            }
        }
        out.extend_from_slice(b"]}");
    }
    out.extend_from_slice(b"},\"warnings\":null}");
}

#[derive(Default)]
struct Processes {
    by_key: HashMap<(String, String), usize>,
    list: Vec<(String, String)>,
}

impl Processes {
    fn number(&mut self, service: &str, resource: &str) -> usize {
        let key = (service.to_string(), resource.to_string());
        if let Some(n) = self.by_key.get(&key) {
            return *n;
        }
        self.list.push(key.clone());
        self.by_key.insert(key, self.list.len());
        self.list.len()
    }
}

/// The members of a JSON object of ours: key, and value as text.
fn members(json: &str) -> Vec<(String, String)> {
    let mut out = Vec::new();
    let mut r = Reader::new(json.as_bytes());
    let mut first = true;
    if r.begin(b'{').is_err() {
        return out;
    }
    while let Ok(Some(key)) = r.key(&mut first) {
        if r.peek().is_err() {
            break;
        }
        let from = r.pos();
        if r.skip().is_err() {
            break;
        }
        out.push((key.into_owned(), json[from..r.pos()].to_string()));
    }
    out
}

/// A list of tags being written.
struct Tags<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> Tags<'a> {
    fn new(out: &'a mut Vec<u8>) -> Self {
        Tags { out, first: true }
    }

    fn tag(&mut self, key: &str, ty: &str, value: impl FnOnce(&mut Vec<u8>)) {
        if !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
        self.out.extend_from_slice(b"{\"key\":");
        attrs::write_str(self.out, key);
        self.out.extend_from_slice(format!(",\"type\":\"{ty}\",\"value\":").as_bytes());
        value(self.out);
        self.out.push(b'}');
    }

    fn text_tag(&mut self, key: &str, value: &str) {
        self.tag(key, "string", |out| attrs::write_str(out, value));
    }

    /// A value as JSON text of ours.
    fn json(&mut self, key: &str, json: &str) {
        match attrs::type_of(json) {
            Type::Str => self.tag(key, "string", |out| out.extend_from_slice(json.as_bytes())),
            Type::Bool => self.tag(key, "bool", |out| out.extend_from_slice(json.as_bytes())),
            Type::Int => {
                let safe = json.parse::<i64>().is_ok_and(|n| (-MAX_SAFE..=MAX_SAFE).contains(&n));
                let quote: &[u8] = if safe { b"" } else { b"\"" };
                self.tag(key, "int64", |out| {
                    out.extend_from_slice(quote);
                    out.extend_from_slice(json.as_bytes());
                    out.extend_from_slice(quote);
                });
            }
            Type::Double if json.starts_with('{') => {
                // JSON has no NaN and no infinity.
                let name = attrs::number(json).map_or_else(|| "NaN".into(), |d| d.to_string());
                self.tag(key, "float64", |out| attrs::write_str(out, &name));
            }
            Type::Double => self.tag(key, "float64", |out| out.extend_from_slice(json.as_bytes())),
            Type::Other => match attrs::parse(json) {
                Some(attrs::Value::Bytes(_)) => {
                    let inner = json.trim_start_matches("{\"$bytes\":").trim_end_matches('}');
                    self.tag(key, "binary", |out| out.extend_from_slice(inner.as_bytes()));
                }
                // Lists and maps are text in Jaeger.
                _ => self.text_tag(key, json),
            },
        }
    }
}

fn span(out: &mut Vec<u8>, spans: &Spans, row: usize, processes: &mut Processes) {
    let (start, end) = (spans.start_ns.at(row), spans.end_ns.get(row));
    let id = trace_id(&spans.trace_id.at(row));
    out.extend_from_slice(b"{\"traceID\":");
    attrs::write_str(out, &id);
    out.extend_from_slice(b",\"spanID\":");
    attrs::write_str(out, &hex::encode(spans.span_id.at(row)));
    out.extend_from_slice(b",\"operationName\":");
    attrs::write_str(out, spans.name.at(row));
    out.extend_from_slice(b",\"references\":[");
    let mut any = false;
    let mut reference = |out: &mut Vec<u8>, kind: &str, trace: &str, span: &[u8]| {
        if std::mem::replace(&mut any, true) {
            out.push(b',');
        }
        out.extend_from_slice(format!("{{\"refType\":\"{kind}\",\"traceID\":\"{trace}\",\"spanID\":\"").as_bytes());
        out.extend_from_slice(hex::encode(span).as_bytes());
        out.extend_from_slice(b"\"}");
    };
    if let Some(parent) = spans.parent_span_id.get(row) {
        reference(out, "CHILD_OF", &id, &parent);
    }
    for i in spans.links.of(row) {
        let child = spans.links.attrs.row(i).any(|(k, v)| k == "opentracing.ref_type" && v == "\"child_of\"");
        let kind = if child { "CHILD_OF" } else { "FOLLOWS_FROM" };
        reference(out, kind, &trace_id(&spans.links.trace_id.at(i)), &spans.links.span_id.at(i));
    }
    let duration = end.map_or(0, |end| end.saturating_sub(start).max(0)) / 1000;
    out.extend_from_slice(format!("],\"startTime\":{},\"duration\":{duration},\"tags\":[", start / 1000).as_bytes());
    tags(out, spans, row);
    out.extend_from_slice(b"],\"logs\":[");
    for (n, i) in spans.events.of(row).enumerate() {
        if n > 0 {
            out.push(b',');
        }
        let time = spans.events.time_ns.at(i) / 1000;
        out.extend_from_slice(format!("{{\"timestamp\":{time},\"fields\":[").as_bytes());
        let mut fields = Tags::new(out);
        fields.text_tag("event", spans.events.name.at(i));
        for (key, json) in spans.events.attrs.row(i) {
            fields.json(key, json);
        }
        out.extend_from_slice(b"]}");
    }
    let process = processes.number(spans.service.at(row), spans.resource.get(row).unwrap_or("{}"));
    out.extend_from_slice(format!("],\"processID\":\"p{process}\",\"warnings\":").as_bytes());
    match spans.state.get(row) {
        Some("open") => out.extend_from_slice(b"[\"the span is still open\"]}"),
        Some("orphan_end") => out.extend_from_slice(b"[\"an end without a start\"]}"),
        _ => out.extend_from_slice(b"null}"),
    }
}

fn tags(out: &mut Vec<u8>, spans: &Spans, row: usize) {
    let mut tags = Tags::new(out);
    for (key, json) in members(spans.scope.get(row).unwrap_or("{}")) {
        if key == "name" || key == "version" {
            tags.json(&format!("otel.scope.{key}"), &json);
        }
    }
    for (key, json) in spans.attrs(row) {
        tags.json(key, json);
    }
    if let Some(kind) = spans.kind.get(row).filter(|k| *k != "unspecified") {
        tags.text_tag("span.kind", kind);
    }
    match spans.status.get(row) {
        Some("error") => {
            tags.text_tag("otel.status_code", "ERROR");
            tags.tag("error", "bool", |out| out.extend_from_slice(b"true"));
        }
        Some("ok") => tags.text_tag("otel.status_code", "OK"),
        _ => {}
    }
    if let Some(message) = spans.status_message.get(row).filter(|m| !m.is_empty()) {
        tags.text_tag("otel.status_description", message);
    }
    if let Some(state) = spans.trace_state.get(row).filter(|s| !s.is_empty()) {
        tags.text_tag("w3c.tracestate", state);
    }
}
