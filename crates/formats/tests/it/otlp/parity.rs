//! The decoder against prost's structs, JSON against protobuf, there and back again, and damage.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use proptest::prelude::*;
use prost::Message as _;
use rollscope_formats::export::otlp::{to_protobuf, write_json_line};
use rollscope_formats::import::otlp::{DecodeOptions, decode_traces, decode_traces_json};
use serde_json::{Value as Json, json};

use super::support::{Style, any_request, pairs, rows, sorted_rows};

const KINDS: [&str; 6] = ["unspecified", "internal", "server", "client", "producer", "consumer"];
const STATUSES: [&str; 3] = ["unset", "ok", "error"];

fn named(names: &[&str], n: i32) -> String {
    names.get(n as usize).map_or(n.to_string(), |name| name.to_string())
}

fn or_null(text: &str) -> Json {
    if text.is_empty() { Json::Null } else { json!(text) }
}

fn str_of(kv: &KeyValue) -> Option<&str> {
    match kv.value.as_ref()?.value.as_ref()? {
        Value::StringValue(s) => Some(s),
        _ => None,
    }
}

/// Reserved attributes that are understood, and what is left, in order, split at the start.
fn split(span: &Span) -> (Vec<&KeyValue>, Vec<KeyValue>, Vec<KeyValue>) {
    let mut taken: Vec<&KeyValue> = Vec::new();
    let mut rest = Vec::new();
    for kv in &span.attributes {
        let understood = match kv.key.as_str() {
            "rollscope.state" => matches!(str_of(kv), Some("closed" | "open" | "instant" | "orphan_end")),
            "rollscope.original_span_id" => str_of(kv).is_some(),
            "rollscope.start_attrs" => {
                matches!(kv.value, Some(AnyValue { value: Some(Value::IntValue(n)) }) if n >= 0)
            }
            _ => false,
        };
        if understood && !taken.iter().any(|t| t.key == kv.key) {
            taken.push(kv);
        } else {
            rest.push(kv.clone());
        }
    }
    let start = taken.iter().find(|t| t.key == "rollscope.start_attrs").map_or(0, |t| match t.value {
        Some(AnyValue { value: Some(Value::IntValue(n)) }) => (n as usize).min(rest.len()),
        _ => 0,
    });
    let end = rest.split_off(start);
    (taken, rest, end)
}

/// What a span's row should say, worked out from prost's struct.
fn expected(span: &Span) -> Json {
    let (taken, start, end) = split(span);
    let said = |key: &str| taken.iter().find(|t| t.key == key).and_then(|t| str_of(t));
    let open = span.end_time_unix_nano == 0;
    let parent = &span.parent_span_id;
    let status = span.status.clone().unwrap_or_default();
    json!({
        "trace_id": hex::encode(&span.trace_id),
        "span_id": hex::encode(&span.span_id),
        "parent_span_id": if parent.iter().all(|b| *b == 0) { Json::Null } else { json!(hex::encode(parent)) },
        "name": span.name,
        "kind": named(&KINDS, span.kind),
        "start_ns": span.start_time_unix_nano,
        "end_ns": if open { Json::Null } else { json!(span.end_time_unix_nano) },
        "state": said("rollscope.state").unwrap_or(if open { "open" } else { "closed" }),
        "original_span_id": said("rollscope.original_span_id"),
        "status": named(&STATUSES, status.code),
        "status_message": or_null(&status.message),
        "trace_state": or_null(&span.trace_state),
        "flags": span.flags,
        "dropped_attrs": span.dropped_attributes_count,
        "dropped_events": span.dropped_events_count,
        "dropped_links": span.dropped_links_count,
        "start_attrs": pairs(&start),
        "end_attrs": pairs(&end),
        "events": span.events.iter().map(|e| json!({
            "time_ns": e.time_unix_nano, "name": e.name, "attrs": pairs(&e.attributes),
            "dropped_attrs": e.dropped_attributes_count,
        })).collect::<Json>(),
        "links": span.links.iter().map(|l| json!({
            "trace_id": hex::encode(&l.trace_id), "span_id": hex::encode(&l.span_id),
            "trace_state": or_null(&l.trace_state), "attrs": pairs(&l.attributes),
            "flags": l.flags, "dropped_attrs": l.dropped_attributes_count,
        })).collect::<Json>(),
    })
}

fn spans(request: &ExportTraceServiceRequest) -> impl Iterator<Item = &Span> {
    request.resource_spans.iter().flat_map(|r| &r.scope_spans).flat_map(|s| &s.spans)
}

/// Every field that OTLP has, set.
#[test]
fn an_export_is_the_request_that_came() {
    use super::support::{kv, request_of, span};
    use opentelemetry_proto::tonic::common::v1::{EntityRef, InstrumentationScope};
    use opentelemetry_proto::tonic::trace::v1::Status;
    use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
    let mut full = span(1);
    full.parent_span_id = vec![9; 8];
    full.trace_state = "a=b".into();
    full.flags = 0x301;
    full.kind = 3;
    full.attributes = vec![kv("twice", 1i64), kv("twice", "two"), kv("", false), kv("d", 1.0)];
    full.status = Some(Status { message: "bad".into(), code: 2 });
    (full.dropped_attributes_count, full.dropped_events_count, full.dropped_links_count) = (1, 2, 3);
    full.events = vec![
        Event { time_unix_nano: 5, name: "e".into(), attributes: vec![kv("k", 1i64)], dropped_attributes_count: 4 },
        Event::default(),
    ];
    full.links = vec![Link {
        trace_id: vec![7; 16],
        span_id: vec![8; 8],
        trace_state: "c=d".into(),
        attributes: vec![kv("k", "v")],
        dropped_attributes_count: 5,
        flags: 6,
    }];
    let mut open = span(2);
    open.end_time_unix_nano = 0;
    let mut request = request_of(vec![kv("service.name", "s"), kv("x", 1i64), kv("x", 2i64)], vec![full, open]);
    let resource = &mut request.resource_spans[0];
    resource.schema_url = "https://example.org/resource".into();
    resource.scope_spans[0].schema_url = "https://example.org/scope".into();
    resource.scope_spans[0].scope = Some(InstrumentationScope {
        name: "n".into(),
        version: "v".into(),
        attributes: vec![kv("k", true)],
        dropped_attributes_count: 7,
    });
    let inner = resource.resource.as_mut().unwrap();
    inner.dropped_attributes_count = 8;
    inner.entity_refs = vec![
        EntityRef {
            schema_url: "https://example.org/entity".into(),
            r#type: "service".into(),
            id_keys: vec!["service.name".into()],
            description_keys: vec!["x".into(), "y".into()],
        },
        EntityRef::default(),
    ];
    let options = DecodeOptions::default();
    let batch = decode_traces(&request.encode_to_vec(), &options).unwrap().batch;
    assert_eq!(ExportTraceServiceRequest::decode(&to_protobuf(&batch)[..]).unwrap(), request);
    let mut line = Vec::new();
    write_json_line(&batch, &mut line).unwrap();
    assert_eq!(decode_traces_json(&line, &options).unwrap().batch, batch);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn columns_say_what_prost_says(request in any_request()) {
        let bytes = request.encode_to_vec();
        let decoded = decode_traces(&bytes, &DecodeOptions::default()).unwrap();
        prop_assert_eq!(decoded.rejected, 0, "{:?}", decoded.reasons);
        let rows = rows(&decoded.batch);
        prop_assert_eq!(rows.len(), spans(&request).count());
        for (row, span) in rows.iter().zip(spans(&request)) {
            for (column, value) in expected(span).as_object().unwrap() {
                prop_assert_eq!(&row[column], value, "column {}", column);
            }
        }
    }

    #[test]
    fn json_and_protobuf_give_the_same_rows(request in any_request(), style in 0u32..256) {
        let style = Style(style);
        let text = style.request(&request).to_string();
        let from_json = decode_traces_json(text.as_bytes(), &DecodeOptions::default()).unwrap();
        let from_protobuf = decode_traces(&request.encode_to_vec(), &DecodeOptions::default()).unwrap();
        prop_assert_eq!(from_json.reasons, from_protobuf.reasons);
        prop_assert_eq!(&from_json.batch, &from_protobuf.batch);
        prop_assert_eq!(from_json.runs, from_protobuf.runs);
    }

    #[test]
    fn exported_and_imported_again_is_equal(request in any_request()) {
        let options = DecodeOptions::default();
        let first = decode_traces(&request.encode_to_vec(), &options).unwrap();
        let second = decode_traces(&to_protobuf(&first.batch), &options).unwrap();
        prop_assert_eq!(second.rejected, 0);
        prop_assert_eq!(sorted_rows(&first.batch), sorted_rows(&second.batch));
        let mut line = Vec::new();
        write_json_line(&first.batch, &mut line).unwrap();
        serde_json::from_slice::<Json>(&line).unwrap();
        let third = decode_traces_json(&line, &options).unwrap();
        // Rows of equal resources were brought together the first time: from then on the order stays.
        prop_assert_eq!(&second.batch, &third.batch);
        prop_assert_eq!(to_protobuf(&third.batch), to_protobuf(&second.batch));
    }

    #[test]
    fn damaged_requests_never_panic(
        request in any_request(), cut in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), live in any::<bool>(),
    ) {
        let options = DecodeOptions { live, ..DecodeOptions::default() };
        let mutate = |mut bytes: Vec<u8>| {
            for (at, value) in &flips {
                if !bytes.is_empty() {
                    let i = at.index(bytes.len());
                    bytes[i] = *value;
                }
            }
            bytes.truncate(cut.index(bytes.len() + 1).max(bytes.len() / 2));
            bytes
        };
        let bytes = mutate(request.encode_to_vec());
        // Where prost reads it, so do we; prost is stricter about text and about what it does not know.
        let ours = decode_traces(&bytes, &options);
        if ExportTraceServiceRequest::decode(&bytes[..]).is_ok() {
            prop_assert!(ours.is_ok(), "{:?}", ours.err());
        }
        let _ = decode_traces_json(&mutate(Style(0).request(&request).to_string().into_bytes()), &options);
    }
}
