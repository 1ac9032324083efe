//! Rows of `spans` as an `ExportTraceServiceRequest`: grouped by resource and scope in the order they first appear.
//! What OTLP has no field for (state, the start/end split, foreign ids) travels in the reserved `rollscope.*` attributes;
//! what is in a column but in no attribute (a row from a dump) gets an attribute.

use std::collections::HashMap;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeBinaryArray, Int32Array, Int64Array, ListArray, MapArray, RecordBatch,
    StringArray, StructArray, UInt32Array,
};
use arrow::datatypes::{Int32Type, Int64Type, UInt32Type};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, EntityRef, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use rollscope_model::names::{self, KINDS, STATUSES, reserved, state};

use crate::any_value::{entries, from_text, pair};

pub fn request(batch: &RecordBatch) -> ExportTraceServiceRequest {
    let columns = Columns::new(batch);
    let mut out = ExportTraceServiceRequest::default();
    // Both are in the description of the scope, so the resource's part of it belongs to the key of the resource.
    let mut resources: HashMap<(&str, ResourceRest), usize> = HashMap::new();
    let mut scopes: HashMap<(&str, &str), (usize, usize)> = HashMap::new();
    for row in 0..batch.num_rows() {
        let (resource, scope) = (columns.resource.get(row).unwrap_or("{}"), columns.scope.get(row).unwrap_or("{}"));
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
        let span = columns.span(row, attributes);
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

/// A dictionary column of text.
struct Text<'a> {
    keys: &'a Int32Array,
    values: &'a StringArray,
}

impl<'a> Text<'a> {
    fn get(&self, row: usize) -> Option<&'a str> {
        self.keys.is_valid(row).then(|| self.values.value(self.keys.value(row) as usize))
    }
}

/// The columns, by type. Batches of `spans` are made by our own builders: a batch of another shape is a mistake in the
/// program, not in the data.
struct Columns<'a> {
    step: &'a Int64Array,
    trace_id: &'a FixedSizeBinaryArray,
    span_id: &'a FixedSizeBinaryArray,
    parent: &'a FixedSizeBinaryArray,
    name: Text<'a>,
    kind: Text<'a>,
    phase: Text<'a>,
    thread: Text<'a>,
    host: Text<'a>,
    pid: &'a Int64Array,
    ranks: [(&'static str, &'a Int32Array); 3],
    start: &'a Int64Array,
    end: &'a Int64Array,
    state: Text<'a>,
    status: Text<'a>,
    status_message: Text<'a>,
    sample: Text<'a>,
    group: Text<'a>,
    attempt: &'a Int32Array,
    request: Text<'a>,
    start_attrs: Attrs<'a>,
    end_attrs: Attrs<'a>,
    events: Events<'a>,
    links: Links<'a>,
    resource: Text<'a>,
    scope: Text<'a>,
    trace_state: Text<'a>,
    flags: &'a UInt32Array,
    dropped_attrs: &'a UInt32Array,
    dropped_events: &'a UInt32Array,
    dropped_links: &'a UInt32Array,
    originals: [(&'static str, &'a StringArray); 3],
}

impl<'a> Columns<'a> {
    fn new(batch: &'a RecordBatch) -> Self {
        let column = |name: &str| -> &'a ArrayRef {
            batch.column_by_name(name).unwrap_or_else(|| panic!("a batch of spans has a column {name}"))
        };
        let text = |name| {
            let array = column(name).as_dictionary::<Int32Type>();
            Text { keys: array.keys(), values: array.values().as_string() }
        };
        let ints = |name| column(name).as_primitive::<Int64Type>();
        let small = |name| column(name).as_primitive::<Int32Type>();
        let counts = |name| column(name).as_primitive::<UInt32Type>();
        let ids = |name| column(name).as_fixed_size_binary();
        let plain = |name| column(name).as_string::<i32>();
        Columns {
            step: ints("step"),
            trace_id: ids("trace_id"),
            span_id: ids("span_id"),
            parent: ids("parent_span_id"),
            name: text("name"),
            kind: text("kind"),
            phase: text("phase"),
            thread: text("thread"),
            host: text("host"),
            pid: ints("pid"),
            ranks: [
                (names::TP_RANK, small("tp_rank")),
                (names::DP_RANK, small("dp_rank")),
                (names::PP_RANK, small("pp_rank")),
            ],
            start: ints("start_ns"),
            end: ints("end_ns"),
            state: text("state"),
            status: text("status"),
            status_message: text("status_message"),
            sample: text("sample_id"),
            group: text("group_id"),
            attempt: small("attempt"),
            request: text("request_id"),
            start_attrs: Attrs::new(column("start_attrs")),
            end_attrs: Attrs::new(column("end_attrs")),
            events: Events::new(column("events").as_list()),
            links: Links::new(column("links").as_list()),
            resource: text("resource"),
            scope: text("scope"),
            trace_state: text("trace_state"),
            flags: counts("flags"),
            dropped_attrs: counts("dropped_attrs"),
            dropped_events: counts("dropped_events"),
            dropped_links: counts("dropped_links"),
            originals: [
                (reserved::ORIGINAL_TRACE_ID, plain("original_trace_id")),
                (reserved::ORIGINAL_SPAN_ID, plain("original_span_id")),
                (reserved::ORIGINAL_PARENT_SPAN_ID, plain("original_parent_span_id")),
            ],
        }
    }

    fn span(&self, row: usize, resource: &[KeyValue]) -> Span {
        let mut attributes = self.start_attrs.row(row);
        let at_start = attributes.len();
        attributes.extend(self.end_attrs.row(row));
        self.add_identity(row, &mut attributes, resource);
        self.add_reserved(row, at_start, &mut attributes);
        let status = Status {
            message: self.status_message.get(row).unwrap_or_default().to_string(),
            code: number(self.status.get(row), &STATUSES),
        };
        Span {
            trace_id: self.trace_id.value(row).to_vec(),
            span_id: self.span_id.value(row).to_vec(),
            trace_state: self.trace_state.get(row).unwrap_or_default().to_string(),
            parent_span_id: if self.parent.is_valid(row) { self.parent.value(row).to_vec() } else { Vec::new() },
            flags: self.flags.value(row),
            name: self.name.get(row).unwrap_or_default().to_string(),
            kind: number(self.kind.get(row), &KINDS),
            start_time_unix_nano: unsigned(self.start.value(row)),
            end_time_unix_nano: if self.end.is_valid(row) { unsigned(self.end.value(row)) } else { 0 },
            attributes,
            dropped_attributes_count: self.dropped_attrs.value(row),
            events: self.events.row(row),
            dropped_events_count: self.dropped_events.value(row),
            links: self.links.row(row),
            dropped_links_count: self.dropped_links.value(row),
            status: (status != Status::default()).then_some(status),
        }
    }

    /// Adds what the columns state if neither the span nor its resource does.
    fn add_identity(&self, row: usize, attributes: &mut Vec<KeyValue>, resource: &[KeyValue]) {
        let ints = |array: &Int64Array| array.is_valid(row).then(|| Value::IntValue(array.value(row)));
        let small = |array: &Int32Array| array.is_valid(row).then(|| Value::IntValue(array.value(row).into()));
        let text = |column: &Text| column.get(row).map(|t| Value::StringValue(t.to_string()));
        let [tp, dp, pp] = &self.ranks;
        let facts: [(&[&str], Option<Value>); 12] = [
            (names::STEP, ints(self.step)),
            (names::SAMPLE_ID, text(&self.sample)),
            (names::GROUP_ID, text(&self.group)),
            (names::ATTEMPT, small(self.attempt)),
            (&[names::PHASE], text(&self.phase)),
            (names::REQUEST_ID, text(&self.request)),
            (names::THREAD_LABEL, text(&self.thread)),
            (names::HOST, text(&self.host)),
            (names::PID, ints(self.pid)),
            (&[tp.0], small(tp.1)),
            (&[dp.0], small(dp.1)),
            (&[pp.0], small(pp.1)),
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

    fn add_reserved(&self, row: usize, at_start: usize, attributes: &mut Vec<KeyValue>) {
        let implied = if self.end.is_valid(row) { state::CLOSED } else { state::OPEN };
        let actual = self.state.get(row).unwrap_or(implied);
        if actual != implied {
            attributes.push(pair(reserved::STATE, string(actual)));
        }
        if at_start > 0 {
            let count = AnyValue { value: Some(Value::IntValue(at_start as i64)) };
            attributes.push(pair(reserved::START_ATTRS, count));
        }
        for (name, array) in &self.originals {
            if array.is_valid(row) {
                attributes.push(pair(*name, string(array.value(row))));
            }
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

struct Attrs<'a> {
    map: &'a MapArray,
    keys: &'a StringArray,
    values: &'a StringArray,
}

impl<'a> Attrs<'a> {
    fn new(array: &'a ArrayRef) -> Self {
        let map = array.as_map();
        Attrs { map, keys: map.keys().as_string(), values: map.values().as_string() }
    }

    fn row(&self, row: usize) -> Vec<KeyValue> {
        let offsets = self.map.value_offsets();
        let range = offsets[row] as usize..offsets[row + 1] as usize;
        range.map(|i| pair(self.keys.value(i), from_text(self.values.value(i)))).collect()
    }
}

fn field<'a>(items: &'a StructArray, name: &str) -> &'a ArrayRef {
    items.column_by_name(name).unwrap_or_else(|| panic!("events and links have a field {name}"))
}

struct Events<'a> {
    list: &'a ListArray,
    time: &'a Int64Array,
    name: &'a StringArray,
    attrs: Attrs<'a>,
    dropped: &'a UInt32Array,
}

impl<'a> Events<'a> {
    fn new(list: &'a ListArray) -> Self {
        let items = list.values().as_struct();
        Events {
            list,
            time: field(items, "time_ns").as_primitive(),
            name: field(items, "name").as_string(),
            attrs: Attrs::new(field(items, "attrs")),
            dropped: field(items, "dropped_attrs").as_primitive(),
        }
    }

    fn row(&self, row: usize) -> Vec<Event> {
        let offsets = self.list.value_offsets();
        let event = |i| Event {
            time_unix_nano: unsigned(self.time.value(i)),
            name: self.name.value(i).to_string(),
            attributes: self.attrs.row(i),
            dropped_attributes_count: self.dropped.value(i),
        };
        (offsets[row] as usize..offsets[row + 1] as usize).map(event).collect()
    }
}

struct Links<'a> {
    list: &'a ListArray,
    trace_id: &'a FixedSizeBinaryArray,
    span_id: &'a FixedSizeBinaryArray,
    trace_state: &'a StringArray,
    attrs: Attrs<'a>,
    flags: &'a UInt32Array,
    dropped: &'a UInt32Array,
}

impl<'a> Links<'a> {
    fn new(list: &'a ListArray) -> Self {
        let items = list.values().as_struct();
        Links {
            list,
            trace_id: field(items, "trace_id").as_fixed_size_binary(),
            span_id: field(items, "span_id").as_fixed_size_binary(),
            trace_state: field(items, "trace_state").as_string(),
            attrs: Attrs::new(field(items, "attrs")),
            flags: field(items, "flags").as_primitive(),
            dropped: field(items, "dropped_attrs").as_primitive(),
        }
    }

    fn row(&self, row: usize) -> Vec<Link> {
        let offsets = self.list.value_offsets();
        let link = |i| Link {
            trace_id: self.trace_id.value(i).to_vec(),
            span_id: self.span_id.value(i).to_vec(),
            trace_state: if self.trace_state.is_valid(i) { self.trace_state.value(i).into() } else { String::new() },
            attributes: self.attrs.row(i),
            dropped_attributes_count: self.dropped.value(i),
            flags: self.flags.value(i),
        };
        (offsets[row] as usize..offsets[row + 1] as usize).map(link).collect()
    }
}
