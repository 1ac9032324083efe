//! Rows of `spans` as an `ExportTraceServiceRequest`: grouped by resource and scope in the order they first appear.
//! What OTLP has no field for (state, the start/end split, foreign ids) travels in the reserved `rollscope.*` attributes;
//! what is in a column but in no attribute (a row from a dump) gets an attribute.

use std::collections::HashMap;

use arrow::array::RecordBatch;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, EntityRef, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use rollscope_model::names::{self, KINDS, STATUSES, reserved, state};
use rollscope_model::read::{Attrs, Events, Ints, Links, SmallInts, Spans, Text};

use super::super::rows;
use crate::any_value::{entries, from_text, pair};

pub fn request(batch: &RecordBatch) -> ExportTraceServiceRequest {
    let spans = rows::spans(batch);
    let mut out = ExportTraceServiceRequest::default();
    // Both are in the description of the scope, so the resource's part of it belongs to the key of the resource.
    let mut resources: HashMap<(&str, ResourceRest), usize> = HashMap::new();
    let mut scopes: HashMap<(&str, &str), (usize, usize)> = HashMap::new();
    for row in 0..batch.num_rows() {
        let (resource, scope) = (spans.resource.get(row).unwrap_or("{}"), spans.scope.get(row).unwrap_or("{}"));
        let (r, s) = *scopes.entry((resource, scope)).or_insert_with(|| {
            let scope = ScopeText::parse(scope);
            let r = *resources.entry((resource, scope.resource.clone())).or_insert_with(|| {
                out.resource_spans.push(ResourceSpans {
                    resource: Some(Resource {
                        attributes: entries(resource),
                        dropped_attributes_count: scope.resource.dropped,
                        entity_refs: scope.resource.entities,
                    }),
                    scope_spans: Vec::new(),
                    schema_url: scope.resource.schema_url,
                });
                out.resource_spans.len() - 1
            });
            let list = &mut out.resource_spans[r].scope_spans;
            list.push(ScopeSpans { scope: Some(scope.scope), spans: Vec::new(), schema_url: scope.schema_url });
            (r, list.len() - 1)
        });
        let resource = &mut out.resource_spans[r];
        let attributes = resource.resource.as_ref().map_or(&[][..], |r| &r.attributes);
        let span = span(&spans, row, attributes);
        resource.scope_spans[s].spans.push(span);
    }
    out
}

/// The parsed `scope` column.
#[derive(Default)]
struct ScopeText {
    scope: InstrumentationScope,
    schema_url: String,
    resource: ResourceRest,
}

/// What belongs to the resource beside its attributes.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct ResourceRest {
    schema_url: String,
    dropped: u32,
    entities: Vec<EntityRef>,
}

impl ScopeText {
    fn parse(json: &str) -> Self {
        let mut out = ScopeText::default();
        for KeyValue { key, value, .. } in entries(json) {
            match (key.as_str(), value.and_then(|v| v.value)) {
                ("name", Some(Value::StringValue(text))) => out.scope.name = text,
                ("version", Some(Value::StringValue(text))) => out.scope.version = text,
                ("attributes", Some(Value::KvlistValue(list))) => out.scope.attributes = list.values,
                ("dropped_attributes_count", Some(Value::IntValue(n))) => {
                    out.scope.dropped_attributes_count = n as u32;
                }
                ("schema_url", Some(Value::StringValue(text))) => out.schema_url = text,
                ("resource_schema_url", Some(Value::StringValue(text))) => out.resource.schema_url = text,
                ("resource_dropped_attributes_count", Some(Value::IntValue(n))) => out.resource.dropped = n as u32,
                ("resource_entity_refs", Some(Value::ArrayValue(list))) => {
                    out.resource.entities = list.values.into_iter().map(entity).collect();
                }
                _ => {}
            }
        }
        out
    }
}

fn entity(value: AnyValue) -> EntityRef {
    let mut out = EntityRef::default();
    let Some(Value::KvlistValue(members)) = value.value else { return out };
    let texts = |value| match value {
        Value::ArrayValue(list) => list.values.into_iter().filter_map(|v| text(v.value?)).collect(),
        _ => Vec::new(),
    };
    for KeyValue { key, value, .. } in members.values {
        let Some(value) = value.and_then(|v| v.value) else { continue };
        match key.as_str() {
            "schema_url" => out.schema_url = text(value).unwrap_or_default(),
            "type" => out.r#type = text(value).unwrap_or_default(),
            "id_keys" => out.id_keys = texts(value),
            "description_keys" => out.description_keys = texts(value),
            _ => {}
        }
    }
    out
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

fn span(spans: &Spans, row: usize, resource: &[KeyValue]) -> Span {
    let mut attributes = attributes_of(&spans.start_attrs, row);
    let at_start = attributes.len();
    attributes.extend(attributes_of(&spans.end_attrs, row));
    add_identity(spans, row, &mut attributes, resource);
    add_reserved(spans, row, at_start, &mut attributes);
    let status =
        Status { message: spans.status_message.at(row).to_string(), code: number(spans.status.get(row), &STATUSES) };
    Span {
        trace_id: spans.trace_id.at(row).to_vec(),
        span_id: spans.span_id.at(row).to_vec(),
        trace_state: spans.trace_state.at(row).to_string(),
        parent_span_id: spans.parent_span_id.get(row).map(Vec::from).unwrap_or_default(),
        flags: spans.flags.at(row),
        name: spans.name.at(row).to_string(),
        kind: number(spans.kind.get(row), &KINDS),
        start_time_unix_nano: unsigned(spans.start_ns.at(row)),
        end_time_unix_nano: spans.end_ns.get(row).map_or(0, unsigned),
        attributes,
        dropped_attributes_count: spans.dropped_attrs.at(row),
        events: events(&spans.events, row),
        dropped_events_count: spans.dropped_events.at(row),
        links: links(&spans.links, row),
        dropped_links_count: spans.dropped_links.at(row),
        status: (status != Status::default()).then_some(status),
    }
}

/// Adds what the columns state if neither the span nor its resource does.
fn add_identity(spans: &Spans, row: usize, attributes: &mut Vec<KeyValue>, resource: &[KeyValue]) {
    let ints = |column: &Ints| column.get(row).map(Value::IntValue);
    let small = |column: &SmallInts| column.get(row).map(|n| Value::IntValue(n.into()));
    let text = |column: &Text| column.get(row).map(|t| Value::StringValue(t.to_string()));
    let facts: [(&[&str], Option<Value>); 12] = [
        (names::STEP, ints(&spans.step)),
        (names::SAMPLE_ID, text(&spans.sample_id)),
        (names::GROUP_ID, text(&spans.group_id)),
        (names::ATTEMPT, small(&spans.attempt)),
        (&[names::PHASE], text(&spans.phase)),
        (names::REQUEST_ID, text(&spans.request_id)),
        (names::THREAD_LABEL, text(&spans.thread)),
        (names::HOST, text(&spans.host)),
        (names::PID, ints(&spans.pid)),
        (&[names::TP_RANK], small(&spans.tp_rank)),
        (&[names::DP_RANK], small(&spans.dp_rank)),
        (&[names::PP_RANK], small(&spans.pp_rank)),
    ];
    let came = attributes.len();
    for (names, fact) in facts {
        let Some(fact) = fact else { continue };
        let said = |list: &[KeyValue]| list.iter().any(|a| names.contains(&a.key.as_str()) && says(a, &fact));
        if !said(&attributes[..came]) && !said(resource) {
            attributes.push(pair(names[0], AnyValue { value: Some(fact) }));
        }
    }
}

fn add_reserved(spans: &Spans, row: usize, at_start: usize, attributes: &mut Vec<KeyValue>) {
    let implied = if spans.end_ns.get(row).is_some() { state::CLOSED } else { state::OPEN };
    let actual = spans.state.get(row).unwrap_or(implied);
    if actual != implied {
        attributes.push(pair(reserved::STATE, string(actual)));
    }
    if at_start > 0 {
        let count = AnyValue { value: Some(Value::IntValue(at_start as i64)) };
        attributes.push(pair(reserved::START_ATTRS, count));
    }
    for (name, original) in [
        (reserved::ORIGINAL_TRACE_ID, &spans.original_trace_id),
        (reserved::ORIGINAL_SPAN_ID, &spans.original_span_id),
        (reserved::ORIGINAL_PARENT_SPAN_ID, &spans.original_parent_span_id),
    ] {
        if let Some(text) = original.get(row) {
            attributes.push(pair(name, string(text)));
        }
    }
}

/// Numbers and their text are the same fact.
fn says(attribute: &KeyValue, fact: &Value) -> bool {
    match (attribute.value.as_ref().and_then(|v| v.value.as_ref()), fact) {
        (Some(Value::StringValue(a)), Value::StringValue(b)) => a == b,
        (Some(Value::IntValue(a)), Value::IntValue(b)) => a == b,
        (Some(Value::IntValue(a)), Value::StringValue(b)) => *b == a.to_string(),
        (Some(Value::StringValue(a)), Value::IntValue(b)) => a.trim().parse() == Ok(*b),
        (Some(Value::DoubleValue(a)), Value::IntValue(b)) => *a == *b as f64,
        _ => false,
    }
}

fn string(text: &str) -> AnyValue {
    AnyValue { value: Some(Value::StringValue(text.to_string())) }
}

/// The OTLP number of a name; a number that has no name was stored as itself.
fn number(name: Option<&str>, names: &[&str]) -> i32 {
    let name = name.unwrap_or_default();
    names.iter().position(|n| *n == name).map_or_else(|| name.parse().unwrap_or(0), |n| n as i32)
}

/// OTLP has no time before 1970.
fn unsigned(ns: i64) -> u64 {
    ns.max(0) as u64
}

fn attributes_of(attrs: &Attrs, row: usize) -> Vec<KeyValue> {
    attrs.row(row).map(|(key, json)| pair(key, from_text(json))).collect()
}

fn events(events: &Events, row: usize) -> Vec<Event> {
    let event = |i| Event {
        time_unix_nano: unsigned(events.time_ns.at(i)),
        name: events.name.at(i).to_string(),
        attributes: attributes_of(&events.attrs, i),
        dropped_attributes_count: events.dropped_attrs.at(i),
    };
    events.of(row).map(event).collect()
}

fn links(links: &Links, row: usize) -> Vec<Link> {
    let link = |i| Link {
        trace_id: links.trace_id.at(i).to_vec(),
        span_id: links.span_id.at(i).to_vec(),
        trace_state: links.trace_state.at(i).to_string(),
        attributes: attributes_of(&links.attrs, i),
        dropped_attributes_count: links.dropped_attrs.at(i),
        flags: links.flags.at(i),
    };
    links.of(row).map(link).collect()
}
