//! A request as OTLP JSON, as the specification has it: lowerCamelCase keys, ids in hex, enums as numbers, 64-bit integers
//! as text, bytes in base64. Fields that have their default value are left out.

use base64::Engine as _;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, EntityRef, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use rollscope_model::attrs;

pub fn request(out: &mut Vec<u8>, request: &ExportTraceServiceRequest) {
    let mut o = Object::begin(out);
    // Always there, so that an empty request is still seen to be one of traces.
    o.key("resourceSpans");
    list(o.out, &request.resource_spans, resource_spans);
    o.end();
}

/// An object being written.
struct Object<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> Object<'a> {
    fn begin(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Object { out, first: true }
    }

    fn key(&mut self, key: &str) {
        if !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn text_member(&mut self, key: &str, text: &str) {
        if !text.is_empty() {
            self.key(key);
            attrs::write_str(self.out, text);
        }
    }

    fn id(&mut self, key: &str, id: &[u8]) {
        if !id.is_empty() {
            self.key(key);
            attrs::write_str(self.out, &hex::encode(id));
        }
    }

    fn number(&mut self, key: &str, number: i64) {
        if number != 0 {
            self.key(key);
            attrs::write_int(self.out, number);
        }
    }

    fn time(&mut self, key: &str, ns: u64) {
        if ns != 0 {
            self.key(key);
            attrs::write_str(self.out, itoa::Buffer::new().format(ns));
        }
    }

    fn list<T>(&mut self, key: &str, items: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
        if !items.is_empty() {
            self.key(key);
            list(self.out, items, write);
        }
    }

    fn end(self) {
        self.out.push(b'}');
    }
}

fn list<T>(out: &mut Vec<u8>, items: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
    out.push(b'[');
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

fn resource_spans(out: &mut Vec<u8>, r: &ResourceSpans) {
    let mut o = Object::begin(out);
    o.key("resource");
    let mut inner = Object::begin(o.out);
    if let Some(resource) = &r.resource {
        inner.list("attributes", &resource.attributes, key_value);
        inner.number("droppedAttributesCount", resource.dropped_attributes_count.into());
        inner.list("entityRefs", &resource.entity_refs, entity);
    }
    inner.end();
    o.list("scopeSpans", &r.scope_spans, scope_spans);
    o.text_member("schemaUrl", &r.schema_url);
    o.end();
}

fn entity(out: &mut Vec<u8>, e: &EntityRef) {
    let mut o = Object::begin(out);
    o.text_member("schemaUrl", &e.schema_url);
    o.text_member("type", &e.r#type);
    o.list("idKeys", &e.id_keys, |out, key| attrs::write_str(out, key));
    o.list("descriptionKeys", &e.description_keys, |out, key| attrs::write_str(out, key));
    o.end();
}

fn scope_spans(out: &mut Vec<u8>, s: &ScopeSpans) {
    let mut o = Object::begin(out);
    o.key("scope");
    let mut inner = Object::begin(o.out);
    if let Some(scope) = &s.scope {
        inner.text_member("name", &scope.name);
        inner.text_member("version", &scope.version);
        inner.list("attributes", &scope.attributes, key_value);
        inner.number("droppedAttributesCount", scope.dropped_attributes_count.into());
    }
    inner.end();
    o.list("spans", &s.spans, span);
    o.text_member("schemaUrl", &s.schema_url);
    o.end();
}

fn span(out: &mut Vec<u8>, s: &Span) {
    let mut o = Object::begin(out);
    o.id("traceId", &s.trace_id);
    o.id("spanId", &s.span_id);
    o.text_member("traceState", &s.trace_state);
    o.id("parentSpanId", &s.parent_span_id);
    o.number("flags", s.flags.into());
    o.text_member("name", &s.name);
    o.number("kind", s.kind.into());
    o.time("startTimeUnixNano", s.start_time_unix_nano);
    o.time("endTimeUnixNano", s.end_time_unix_nano);
    o.list("attributes", &s.attributes, key_value);
    o.number("droppedAttributesCount", s.dropped_attributes_count.into());
    o.list("events", &s.events, event);
    o.number("droppedEventsCount", s.dropped_events_count.into());
    o.list("links", &s.links, link);
    o.number("droppedLinksCount", s.dropped_links_count.into());
    o.key("status");
    let mut inner = Object::begin(o.out);
    if let Some(status) = &s.status {
        inner.text_member("message", &status.message);
        inner.number("code", status.code.into());
    }
    inner.end();
    o.end();
}

fn event(out: &mut Vec<u8>, e: &Event) {
    let mut o = Object::begin(out);
    o.time("timeUnixNano", e.time_unix_nano);
    o.text_member("name", &e.name);
    o.list("attributes", &e.attributes, key_value);
    o.number("droppedAttributesCount", e.dropped_attributes_count.into());
    o.end();
}

fn link(out: &mut Vec<u8>, l: &Link) {
    let mut o = Object::begin(out);
    o.id("traceId", &l.trace_id);
    o.id("spanId", &l.span_id);
    o.text_member("traceState", &l.trace_state);
    o.list("attributes", &l.attributes, key_value);
    o.number("droppedAttributesCount", l.dropped_attributes_count.into());
    o.number("flags", l.flags.into());
    o.end();
}

fn key_value(out: &mut Vec<u8>, pair: &KeyValue) {
    let mut o = Object::begin(out);
    // A key may be empty, but it is always there.
    o.key("key");
    attrs::write_str(o.out, &pair.key);
    o.key("value");
    match &pair.value {
        Some(value) => any_value(o.out, value),
        None => o.out.extend_from_slice(b"{}"),
    }
    o.end();
}

fn any_value(out: &mut Vec<u8>, value: &AnyValue) {
    let mut o = Object::begin(out);
    match &value.value {
        None | Some(Value::StringValueStrindex(_)) => {}
        Some(Value::StringValue(s)) => {
            o.key("stringValue");
            attrs::write_str(o.out, s);
        }
        Some(Value::BoolValue(b)) => {
            o.key("boolValue");
            attrs::write_bool(o.out, *b);
        }
        Some(Value::IntValue(i)) => {
            o.key("intValue");
            attrs::write_str(o.out, itoa::Buffer::new().format(*i));
        }
        Some(Value::DoubleValue(d)) => {
            o.key("doubleValue");
            match d {
                _ if d.is_nan() => o.out.extend_from_slice(b"\"NaN\""),
                _ if d.is_infinite() && *d > 0.0 => o.out.extend_from_slice(b"\"Infinity\""),
                _ if d.is_infinite() => o.out.extend_from_slice(b"\"-Infinity\""),
                _ => attrs::write_double(o.out, *d),
            }
        }
        Some(Value::BytesValue(bytes)) => {
            o.key("bytesValue");
            attrs::write_str(o.out, &base64::engine::general_purpose::STANDARD.encode(bytes));
        }
        Some(Value::ArrayValue(items)) => {
            o.key("arrayValue");
            let mut inner = Object::begin(o.out);
            inner.key("values");
            list(inner.out, &items.values, any_value);
            inner.end();
        }
        Some(Value::KvlistValue(items)) => {
            o.key("kvlistValue");
            let mut inner = Object::begin(o.out);
            inner.key("values");
            list(inner.out, &items.values, key_value);
            inner.end();
        }
    }
    o.end();
}
