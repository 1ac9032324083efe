//! Rows as JSON, requests as random as the format allows, and an OTLP JSON writer that is not ours.

use std::path::PathBuf;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float64Type, Int32Type, Int64Type, UInt32Type};
use base64::Engine as _;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue, KeyValueList};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use rollscope_model::attrs::{self, Value as Attr};
use serde_json::{Map, Value as Json, json};

pub fn fixture(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(path)
}

/// Every row as a JSON object, columns by name.
pub fn rows(batch: &RecordBatch) -> Vec<Json> {
    let schema = batch.schema();
    (0..batch.num_rows())
        .map(|row| {
            let cells = schema.fields().iter().zip(batch.columns());
            Json::Object(cells.map(|(f, column)| (f.name().clone(), cell(column, row))).collect())
        })
        .collect()
}

/// The same, in an order that does not depend on that of the batch.
pub fn sorted_rows(batch: &RecordBatch) -> Vec<String> {
    let mut rows: Vec<String> = rows(batch).iter().map(Json::to_string).collect();
    rows.sort();
    rows
}

fn cell(column: &ArrayRef, row: usize) -> Json {
    if column.is_null(row) {
        return Json::Null;
    }
    match column.data_type() {
        DataType::Utf8 => json!(column.as_string::<i32>().value(row)),
        DataType::Int64 => json!(column.as_primitive::<Int64Type>().value(row)),
        DataType::Int32 => json!(column.as_primitive::<Int32Type>().value(row)),
        DataType::UInt32 => json!(column.as_primitive::<UInt32Type>().value(row)),
        DataType::Float64 => json!(column.as_primitive::<Float64Type>().value(row)),
        DataType::FixedSizeBinary(_) => json!(hex::encode(column.as_fixed_size_binary().value(row))),
        DataType::Dictionary(..) => {
            let dict = column.as_dictionary::<Int32Type>();
            cell(dict.values(), dict.keys().value(row) as usize)
        }
        DataType::Map(..) => {
            let entries: ArrayRef = std::sync::Arc::new(column.as_map().value(row));
            let pair = |i| json!([cell(entries.as_struct().column(0), i), cell(entries.as_struct().column(1), i)]);
            Json::Array((0..entries.len()).map(pair).collect())
        }
        DataType::List(_) => {
            let items = column.as_list::<i32>().value(row);
            Json::Array((0..items.len()).map(|i| cell(&items, i)).collect())
        }
        DataType::Struct(fields) => {
            let parts = fields.iter().zip(column.as_struct().columns());
            Json::Object(parts.map(|(f, c)| (f.name().clone(), cell(c, row))).collect())
        }
        other => panic!("no cell of {other}"),
    }
}

/// The text that a value should be stored as, by way of the model's own writer.
pub fn text(value: Option<&AnyValue>) -> String {
    attrs::to_text(&attr(value))
}

fn attr(value: Option<&AnyValue>) -> Attr {
    match value.and_then(|v| v.value.clone()) {
        None | Some(Value::StringValueStrindex(_)) => Attr::Null,
        Some(Value::StringValue(s)) => Attr::Str(s),
        Some(Value::BoolValue(b)) => Attr::Bool(b),
        Some(Value::IntValue(i)) => Attr::Int(i),
        Some(Value::DoubleValue(d)) => Attr::Double(d),
        Some(Value::BytesValue(b)) => Attr::Bytes(b),
        Some(Value::ArrayValue(list)) => Attr::List(list.values.iter().map(|v| attr(Some(v))).collect()),
        Some(Value::KvlistValue(list)) => {
            Attr::Map(list.values.iter().map(|kv| (kv.key.clone(), attr(kv.value.as_ref()))).collect())
        }
    }
}

pub fn pairs(attributes: &[KeyValue]) -> Json {
    Json::Array(attributes.iter().map(|kv| json!([kv.key, text(kv.value.as_ref())])).collect())
}

pub fn kv(key: &str, value: impl Into<Attr>) -> KeyValue {
    let value = match value.into() {
        Attr::Str(s) => Value::StringValue(s),
        Attr::Int(i) => Value::IntValue(i),
        Attr::Double(d) => Value::DoubleValue(d),
        Attr::Bool(b) => Value::BoolValue(b),
        other => panic!("no short form for {other:?}"),
    };
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// A span that is good, with ids from a number.
pub fn span(n: u8) -> Span {
    Span {
        trace_id: vec![n.max(1); 16],
        span_id: vec![n.max(1); 8],
        name: format!("span {n}"),
        start_time_unix_nano: 1_700_000_000_000_000_000,
        end_time_unix_nano: 1_700_000_000_000_001_000,
        ..Span::default()
    }
}

pub fn request_of(resource: Vec<KeyValue>, spans: Vec<Span>) -> ExportTraceServiceRequest {
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource { attributes: resource, ..Resource::default() }),
            scope_spans: vec![ScopeSpans { spans, ..ScopeSpans::default() }],
            ..ResourceSpans::default()
        }],
    }
}

fn string() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9_.]{0,16}",
        any::<String>().prop_map(|s| s.chars().take(12).collect()),
        Just("quote \" back \\ line \n nul \0 \u{7f} \u{2028} 你好 😀".to_string()),
    ]
}

fn value() -> impl Strategy<Value = AnyValue> {
    let leaf = prop_oneof![
        Just(None),
        string().prop_map(|s| Some(Value::StringValue(s))),
        any::<bool>().prop_map(|b| Some(Value::BoolValue(b))),
        any::<i64>().prop_map(|i| Some(Value::IntValue(i))),
        (0i64..100).prop_map(|i| Some(Value::IntValue(i))),
        any::<f64>().prop_map(|d| Some(Value::DoubleValue(d))),
        prop_oneof![Just(0.0), Just(-0.0), Just(1.0), Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY)]
            .prop_map(|d| Some(Value::DoubleValue(d))),
        vec(any::<u8>(), 0..9).prop_map(|b| Some(Value::BytesValue(b))),
    ]
    .prop_map(|value| AnyValue { value });
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|values| Value::ArrayValue(ArrayValue { values })),
            vec((string(), option::of(inner)), 0..4).prop_map(|list| {
                let values = list.into_iter().map(|(key, value)| KeyValue { key, value, ..KeyValue::default() });
                Value::KvlistValue(KeyValueList { values: values.collect() })
            }),
        ]
        .prop_map(|value| AnyValue { value: Some(value) })
    })
}

fn key() -> impl Strategy<Value = String> {
    const KNOWN: &[&str] = &[
        "rl.step",
        "rollout_id",
        "rl.sample.id",
        "sample_index",
        "group_index",
        "attempt",
        "rl.phase",
        "rid",
        "host.name",
        "pid",
        "thread_label",
        "tp_rank",
        "rl.run.id",
        "rollscope.state",
        "rollscope.original_span_id",
        "$bytes",
        "$double",
    ];
    prop_oneof![string(), proptest::sample::select(KNOWN).prop_map(str::to_string)]
}

pub fn attributes(max: usize) -> impl Strategy<Value = Vec<KeyValue>> {
    let one = (key(), option::weighted(0.95, value()));
    vec(one.prop_map(|(key, value)| KeyValue { key, value, ..KeyValue::default() }), 0..max)
}

const TIME: std::ops::Range<u64> = 1_600_000_000_000_000_000..1_900_000_000_000_000_000;

fn event() -> impl Strategy<Value = Event> {
    (TIME, string(), attributes(3), 0u32..3).prop_map(|(time_unix_nano, name, attributes, dropped)| Event {
        time_unix_nano,
        name,
        attributes,
        dropped_attributes_count: dropped,
    })
}

fn link() -> impl Strategy<Value = Link> {
    (any::<[u8; 16]>(), any::<[u8; 8]>(), string(), attributes(3), 0u32..3, any::<u32>()).prop_map(
        |(trace_id, span_id, trace_state, attributes, dropped, flags)| Link {
            trace_id: trace_id.to_vec(),
            span_id: span_id.to_vec(),
            trace_state,
            attributes,
            dropped_attributes_count: dropped,
            flags,
        },
    )
}

prop_compose! {
    pub fn any_span()(
        trace_id in any::<[u8; 16]>(), span_id in any::<[u8; 8]>(), parent in option::of(any::<[u8; 8]>()),
        trace_state in string(), flags in any::<u32>(), name in string(), kind in 0i32..8,
        start in TIME, length in option::of(0u64..1_000_000_000),
        attributes in attributes(8), events in vec(event(), 0..3), links in vec(link(), 0..3),
        dropped in any::<[u32; 3]>(), status in option::of((string(), 0i32..5)), start_attrs in option::of(0i64..6),
    ) -> Span {
        let mut attributes = attributes;
        if let Some(n) = start_attrs {
            attributes.push(kv("rollscope.start_attrs", n));
        }
        Span {
            trace_id: trace_id.map(|b| b | 1).to_vec(),
            span_id: span_id.map(|b| b | 1).to_vec(),
            parent_span_id: parent.map_or(Vec::new(), |p| p.to_vec()),
            trace_state, flags, name, kind,
            start_time_unix_nano: start,
            end_time_unix_nano: length.map_or(0, |n| start + n),
            attributes, events, links,
            dropped_attributes_count: dropped[0],
            dropped_events_count: dropped[1],
            dropped_links_count: dropped[2],
            status: status.map(|(message, code)| Status { message, code }),
        }
    }
}

pub fn any_request() -> impl Strategy<Value = ExportTraceServiceRequest> {
    let scope = option::of((string(), string(), attributes(3), 0u32..3)).prop_map(|scope| {
        scope.map(|(name, version, attributes, dropped)| InstrumentationScope {
            name,
            version,
            attributes,
            dropped_attributes_count: dropped,
        })
    });
    let scope_spans = (scope, vec(any_span(), 0..4), string()).prop_map(|(scope, spans, schema_url)| ScopeSpans {
        scope,
        spans,
        schema_url,
    });
    let resource = option::of((attributes(5), 0u32..3, option::of("[a-z]{1,8}"))).prop_map(|resource| {
        resource.map(|(mut attributes, dropped, service)| {
            attributes.extend(service.map(|s| kv("service.name", s)));
            Resource { attributes, dropped_attributes_count: dropped, ..Resource::default() }
        })
    });
    let resource_spans = (resource, vec(scope_spans, 0..3), string())
        .prop_map(|(resource, scope_spans, schema_url)| ResourceSpans { resource, scope_spans, schema_url });
    vec(resource_spans, 0..3).prop_map(|resource_spans| ExportTraceServiceRequest { resource_spans })
}

/// How the wild writes the same request: each bit of `style` is one habit.
#[derive(Clone, Copy, Debug)]
pub struct Style(pub u32);

impl Style {
    fn has(self, bit: u32) -> bool {
        self.0 >> bit & 1 == 1
    }

    fn key(self, camel: &str) -> String {
        if !self.has(0) {
            return camel.to_string();
        }
        camel.chars().flat_map(|c| if c.is_uppercase() { vec!['_', c.to_ascii_lowercase()] } else { vec![c] }).collect()
    }

    fn id(self, id: &[u8]) -> Json {
        match id {
            [] if self.has(1) => Json::Null,
            _ if self.has(2) => json!(base64::engine::general_purpose::STANDARD.encode(id)),
            _ if self.has(3) => json!(hex::encode_upper(id)),
            _ => json!(hex::encode(id)),
        }
    }

    fn long(self, n: impl Into<i128>) -> Json {
        let n: i128 = n.into();
        match (self.has(4), u64::try_from(n), i64::try_from(n)) {
            (true, Ok(n), _) => json!(n),
            (true, _, Ok(n)) => json!(n),
            _ => json!(n.to_string()),
        }
    }

    fn number(self, names: &[&str], n: i32) -> Json {
        match names.get(n as usize) {
            Some(name) if self.has(5) => json!(name),
            _ => json!(n),
        }
    }

    fn object(self, members: Vec<(&str, Json)>) -> Json {
        let mut members: Vec<_> = members.into_iter().map(|(k, v)| (self.key(k), v)).collect();
        if self.has(6) {
            members.reverse();
        }
        if self.has(7) {
            members.insert(0, ("somethingNew".into(), json!({"a": [1, {"b": "}\"]"}]})));
        }
        Json::Object(Map::from_iter(members))
    }

    pub fn request(self, r: &ExportTraceServiceRequest) -> Json {
        let list = r.resource_spans.iter().map(|r| {
            let scopes = r.scope_spans.iter().map(|s| {
                let mut members = Vec::new();
                if let Some(scope) = &s.scope {
                    members.push((
                        "scope",
                        self.object(vec![
                            ("name", json!(scope.name)),
                            ("version", json!(scope.version)),
                            ("attributes", self.pairs(&scope.attributes)),
                            ("droppedAttributesCount", json!(scope.dropped_attributes_count)),
                        ]),
                    ));
                }
                members.push(("spans", s.spans.iter().map(|s| self.span(s)).collect()));
                members.push(("schemaUrl", json!(s.schema_url)));
                self.object(members)
            });
            let mut members = Vec::new();
            if let Some(resource) = &r.resource {
                members.push((
                    "resource",
                    self.object(vec![
                        ("attributes", self.pairs(&resource.attributes)),
                        ("droppedAttributesCount", json!(resource.dropped_attributes_count)),
                    ]),
                ));
            }
            members.push(("scopeSpans", scopes.collect()));
            members.push(("schemaUrl", json!(r.schema_url)));
            self.object(members)
        });
        self.object(vec![("resourceSpans", list.collect())])
    }

    fn span(self, s: &Span) -> Json {
        let kinds = [
            "SPAN_KIND_UNSPECIFIED",
            "SPAN_KIND_INTERNAL",
            "SPAN_KIND_SERVER",
            "SPAN_KIND_CLIENT",
            "SPAN_KIND_PRODUCER",
            "SPAN_KIND_CONSUMER",
        ];
        let codes = ["STATUS_CODE_UNSET", "STATUS_CODE_OK", "STATUS_CODE_ERROR"];
        let status = match &s.status {
            None if self.has(1) => Json::Null,
            None => json!({}),
            Some(s) => self.object(vec![("message", json!(s.message)), ("code", self.number(&codes, s.code))]),
        };
        let events = s.events.iter().map(|e| {
            self.object(vec![
                ("timeUnixNano", self.long(e.time_unix_nano)),
                ("name", json!(e.name)),
                ("attributes", self.pairs(&e.attributes)),
                ("droppedAttributesCount", json!(e.dropped_attributes_count)),
            ])
        });
        let links = s.links.iter().map(|l| {
            self.object(vec![
                ("traceId", self.id(&l.trace_id)),
                ("spanId", self.id(&l.span_id)),
                ("traceState", json!(l.trace_state)),
                ("attributes", self.pairs(&l.attributes)),
                ("droppedAttributesCount", json!(l.dropped_attributes_count)),
                ("flags", json!(l.flags)),
            ])
        });
        self.object(vec![
            ("traceId", self.id(&s.trace_id)),
            ("spanId", self.id(&s.span_id)),
            ("parentSpanId", self.id(&s.parent_span_id)),
            ("traceState", json!(s.trace_state)),
            ("flags", json!(s.flags)),
            ("name", json!(s.name)),
            ("kind", self.number(&kinds, s.kind)),
            ("startTimeUnixNano", self.long(s.start_time_unix_nano)),
            ("endTimeUnixNano", self.long(s.end_time_unix_nano)),
            ("attributes", self.pairs(&s.attributes)),
            ("droppedAttributesCount", json!(s.dropped_attributes_count)),
            ("events", events.collect()),
            ("droppedEventsCount", json!(s.dropped_events_count)),
            ("links", links.collect()),
            ("droppedLinksCount", json!(s.dropped_links_count)),
            ("status", status),
        ])
    }

    pub fn pairs(self, attributes: &[KeyValue]) -> Json {
        attributes.iter().map(|kv| self.pair(kv)).collect()
    }

    fn pair(self, kv: &KeyValue) -> Json {
        let value = kv.value.as_ref().map_or(Json::Null, |v| self.value(v));
        self.object(vec![("key", json!(kv.key)), ("value", value)])
    }

    fn value(self, value: &AnyValue) -> Json {
        let (key, json) = match &value.value {
            None | Some(Value::StringValueStrindex(_)) => return json!({}),
            Some(Value::StringValue(s)) => ("stringValue", json!(s)),
            Some(Value::BoolValue(b)) => ("boolValue", json!(b)),
            Some(Value::IntValue(i)) => ("intValue", self.long(*i)),
            Some(Value::DoubleValue(d)) if d.is_nan() => ("doubleValue", json!("NaN")),
            Some(Value::DoubleValue(d)) if d.is_infinite() => {
                ("doubleValue", json!(if *d > 0.0 { "Infinity" } else { "-Infinity" }))
            }
            Some(Value::DoubleValue(d)) => ("doubleValue", json!(d)),
            Some(Value::BytesValue(b)) => ("bytesValue", json!(base64::engine::general_purpose::STANDARD.encode(b))),
            Some(Value::ArrayValue(list)) => {
                let values: Json = list.values.iter().map(|v| self.value(v)).collect();
                ("arrayValue", json!({ "values": values }))
            }
            Some(Value::KvlistValue(list)) => ("kvlistValue", json!({ "values": self.pairs(&list.values) })),
        };
        Json::Object(Map::from_iter([(self.key(key), json)]))
    }
}
