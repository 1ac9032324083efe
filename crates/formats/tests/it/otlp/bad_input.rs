//! Each kind of bad input by name: what is refused, alone or with the whole request, and what is said.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue, KeyValueList};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use prost::Message as _;
use rollscope_formats::export::otlp::protobuf_to_json_line;
use rollscope_formats::import::otlp::{
    DecodeOptions, Decoded, Limits, decode_logs, decode_logs_json, decode_metrics, decode_metrics_json, decode_traces,
    decode_traces_json,
};
use serde_json::json;

use super::support::{Style, kv, request_of, span};

fn options() -> DecodeOptions {
    let limits =
        Limits { attributes_per_span: 4, attribute_bytes: 64, events_per_span: 2, links_per_span: 2, nesting: 3 };
    DecodeOptions { limits, live: true, run: None }
}

/// One bad span between two good ones, by both ways in: it alone is refused, for the reason given.
#[track_caller]
fn refused(change: impl Fn(&mut Span), reason: &str) {
    let mut bad = span(2);
    change(&mut bad);
    let request = request_of(vec![], vec![span(1), bad, span(3)]);
    let protobuf = decode_traces(&request.encode_to_vec(), &options()).unwrap();
    let json = decode_traces_json(Style(0).request(&request).to_string().as_bytes(), &options()).unwrap();
    for decoded in [protobuf, json] {
        only_the_middle_is_missing(&decoded, reason);
    }
}

#[track_caller]
fn only_the_middle_is_missing(decoded: &Decoded, reason: &str) {
    assert_eq!(decoded.batch.num_rows(), 2, "{:?}", decoded.reasons);
    assert_eq!(decoded.rejected, 1);
    assert_eq!(decoded.reasons.len(), 1);
    assert!(decoded.reasons[0].contains(reason), "{:?} does not say {reason:?}", decoded.reasons);
    let names = super::support::rows(&decoded.batch).iter().map(|r| r["name"].clone()).collect::<Vec<_>>();
    assert_eq!(names, ["span 1", "span 3"]);
}

#[test]
fn ids() {
    refused(|s| s.trace_id = vec![], "trace id");
    refused(|s| s.trace_id = vec![0; 16], "trace id");
    refused(|s| s.trace_id = vec![1; 8], "trace id");
    refused(|s| s.span_id = vec![], "span id");
    refused(|s| s.span_id = vec![0; 8], "span id");
    refused(|s| s.span_id = vec![1; 16], "span id");
    refused(|s| s.parent_span_id = vec![1; 7], "parent span id");
    refused(|s| s.links = vec![Link { trace_id: vec![1; 3], ..Link::default() }], "link");
}

#[test]
fn times() {
    let (early, late) = (86_400_000_000_000, 16_725_225_600_000_000_000);
    refused(|s| s.end_time_unix_nano = s.start_time_unix_nano - 1, "end is before the start");
    refused(|s| s.start_time_unix_nano = 0, "before the year 2000");
    refused(|s| (s.start_time_unix_nano, s.end_time_unix_nano) = (early, early), "before the year 2000");
    refused(|s| (s.start_time_unix_nano, s.end_time_unix_nano) = (late, late), "after the year 2199");
    refused(|s| s.end_time_unix_nano = u64::MAX, "after the year 2199");
    refused(|s| s.events = vec![Event { time_unix_nano: late, ..Event::default() }], "after the year 2199");
    // A file may have any time.
    let mut old = span(1);
    (old.start_time_unix_nano, old.end_time_unix_nano) = (0, early);
    let bytes = request_of(vec![], vec![old]).encode_to_vec();
    assert_eq!(decode_traces(&bytes, &DecodeOptions::default()).unwrap().batch.num_rows(), 1);
}

fn nested(depth: usize, map: bool) -> AnyValue {
    let mut value = AnyValue { value: Some(Value::IntValue(1)) };
    for _ in 0..depth {
        value = AnyValue {
            value: Some(if map {
                let entry = KeyValue { key: "k".into(), value: Some(value), ..KeyValue::default() };
                Value::KvlistValue(KeyValueList { values: vec![entry] })
            } else {
                Value::ArrayValue(ArrayValue { values: vec![value] })
            }),
        };
    }
    value
}

#[test]
fn limits() {
    refused(|s| s.attributes = (0..5).map(|i| kv("a", i64::from(i))).collect(), "attributes_per_span");
    refused(|s| s.attributes = vec![kv("a", "x".repeat(64))], "attribute_bytes");
    refused(|s| s.name = "x".repeat(65), "attribute_bytes");
    refused(|s| s.events = vec![Event::default(); 3], "events_per_span");
    refused(|s| s.links = vec![Link::default(); 3], "links_per_span");
    for map in [false, true] {
        let attribute = |depth| KeyValue { key: "a".into(), value: Some(nested(depth, map)), ..KeyValue::default() };
        refused(|s| s.attributes = vec![attribute(4)], "nesting");
        let mut deep = span(1);
        deep.attributes = vec![attribute(3)];
        let request = request_of(vec![], vec![deep]);
        assert_eq!(decode_traces(&request.encode_to_vec(), &options()).unwrap().rejected, 0);
        let text = Style(0).request(&request).to_string();
        assert_eq!(decode_traces_json(text.as_bytes(), &options()).unwrap().rejected, 0);
    }
}

/// In JSON a list may come again. What it adds counts.
#[test]
fn attributes_in_several_lists_are_counted_together() {
    let text = Style(0).request(&request_of(vec![], vec![span(1), span(2), span(3)])).to_string();
    let decode = |place: &str, with: &str| {
        assert!(text.contains(place), "{text}");
        decode_traces_json(text.replace(place, with).as_bytes(), &options()).unwrap()
    };
    let lists = |counts: [usize; 2]| {
        let list = |count| format!("\"attributes\":[{}]", vec!["{\"key\":\"a\"}"; count].join(","));
        counts.map(list).join(",")
    };
    let (most, more) = (lists([2, 2]), lists([2, 3]));
    for [before, after] in [["", ""], ["\"events\":[{", "}]"], ["\"links\":[{", "}]"]] {
        let of_span =
            |lists: &str| decode("\"name\":\"span 2\"", &format!("\"name\":\"span 2\",{before}{lists}{after}"));
        assert_eq!(of_span(&most).rejected, 0, "{before}");
        only_the_middle_is_missing(&of_span(&more), "attributes_per_span");
    }
    for (place, with) in
        [("\"resource\":{", "\"resource\":{LISTS,"), ("\"scopeSpans\":[{", "\"scopeSpans\":[{\"scope\":{LISTS},")]
    {
        assert_eq!(decode(place, &with.replace("LISTS", &most)).rejected, 0, "{place}");
        let refused = decode(place, &with.replace("LISTS", &more));
        assert_eq!((refused.batch.num_rows(), refused.rejected), (0, 3), "{place}");
        assert!(refused.reasons[0].contains("attributes_per_span"), "{:?}", refused.reasons);
    }
}

/// An empty record is two bytes in protobuf, three in JSON, and two hundred in memory.
#[test]
fn messages_that_would_take_far_more_memory_than_bytes_are_refused() {
    let many = 4_000_000;
    let empty = |number: u8, count: usize| field(number, &[]).repeat(count);
    let of_scope = |inner: &[u8]| field(1, &field(2, inner));
    let options = DecodeOptions::default();

    let decoded = decode_logs(&of_scope(&empty(2, 1_000_000)), &options).unwrap();
    assert_eq!(decoded.rejected, 1_000_000);
    let refused = |result: Result<(), String>| {
        let error = result.unwrap_err();
        assert!(error.contains("send smaller batches"), "{error}");
    };
    for logs in [of_scope(&empty(2, many)), field(1, &field(1, &empty(3, many))), field(1, &empty(2, many))] {
        refused(decode_logs(&logs, &options).map(drop).map_err(|e| e.to_string()));
    }
    for data in [5, 7, 9, 10, 11] {
        let metrics = of_scope(&field(2, &field(data, &empty(1, many))));
        refused(decode_metrics(&metrics, &options).map(drop).map_err(|e| e.to_string()));
    }
    refused(protobuf_to_json_line(&of_scope(&empty(2, many))).map(drop).map_err(|e| e.to_string()));

    let json = |before: &str, after: &str| format!("{before}{}{{}}{after}", "{},".repeat(many)).into_bytes();
    let logs = json(r#"{"resourceLogs":[{"scopeLogs":[{"logRecords":["#, "]}]}]}");
    refused(decode_logs_json(&logs, &options).map(drop).map_err(|e| e.to_string()));
    let before = r#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"exponentialHistogram":{"dataPoints":["#;
    let metrics = json(before, "]}}]}]}]}");
    refused(decode_metrics_json(&metrics, &options).map(drop).map_err(|e| e.to_string()));
}

#[test]
fn entities_of_a_resource_are_bounded() {
    let decode = |entities: usize, keys: usize| {
        let entity = field(3, &field(3, b"k").repeat(keys));
        let resource = field(1, &entity.repeat(entities));
        let spans = field(2, &field(2, &span(1).encode_to_vec()));
        let protobuf = decode_traces(&field(1, &[resource, spans].concat()), &options()).unwrap();
        let ids = vec!["k"; keys];
        let mut request = Style(0).request(&request_of(vec![], vec![span(1)]));
        request["resourceSpans"][0]["resource"]["entityRefs"] = json!(vec![json!({ "idKeys": ids }); entities]);
        let json = decode_traces_json(request.to_string().as_bytes(), &options()).unwrap();
        [protobuf, json]
    };
    for decoded in decode(1024, 1).into_iter().chain(decode(1, 1024)) {
        assert_eq!((decoded.batch.num_rows(), decoded.rejected), (1, 0), "{:?}", decoded.reasons);
    }
    for decoded in decode(1025, 1).into_iter().chain(decode(1, 1025)) {
        assert_eq!((decoded.batch.num_rows(), decoded.rejected), (0, 1));
        assert!(decoded.reasons[0].contains("more than 1024 entities"), "{:?}", decoded.reasons);
    }
}

/// Conversations are read into a tree of values, of which each takes more memory than the two bytes it may have.
#[test]
fn conversations_of_too_many_values_and_calls_of_too_many_attributes_are_left_out() {
    use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
    use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};

    let text = |text: String| Some(AnyValue { value: Some(Value::StringValue(text)) });
    let record = |event_name: &str| LogRecord {
        time_unix_nano: 1_700_000_000_000_000_000,
        event_name: event_name.into(),
        ..LogRecord::default()
    };
    let conversation = |messages: String| LogRecord { body: text(messages), ..record("rollscope.conversation") };
    let call = |attributes| LogRecord { attributes, ..record("gen_ai.client.inference.operation.details") };
    let values = format!("[{}0]", "0,".repeat(1 << 20));
    let log_records = vec![
        // Commas in texts are no values.
        conversation(json!([{ "role": "user", "content": ",".repeat(2 << 20) }]).to_string()),
        conversation(values.clone()),
        call(vec![KeyValue { key: "gen_ai.input.messages".into(), value: text(values), ..KeyValue::default() }]),
        call((0..1025i64).map(|n| kv(&format!("a{n}"), n)).collect()),
    ];
    let scope_logs = vec![ScopeLogs { log_records, ..ScopeLogs::default() }];
    let resource_logs = vec![ResourceLogs { scope_logs, ..ResourceLogs::default() }];
    let message = ExportLogsServiceRequest { resource_logs }.encode_to_vec();
    let decoded = decode_logs(&message, &DecodeOptions::default()).unwrap();
    assert_eq!((decoded.batches.len(), decoded.batches[0].1.num_rows(), decoded.rejected), (1, 1, 3));
    assert!(decoded.reasons[0].contains("JSON values") && decoded.reasons[0].ends_with("(2)"), "{:?}", decoded.reasons);
    assert!(decoded.reasons[1].contains("attributes_per_span"), "{:?}", decoded.reasons);
}

#[test]
fn nesting_of_any_depth_does_not_crash() {
    let deep = 200_000;
    let mut value = vec![];
    // Protobuf: each level wraps the one before, so build from the inside.
    for _ in 0..2_000 {
        let mut list = vec![0x0a];
        prost::encoding::encode_varint(value.len() as u64, &mut list);
        list.extend_from_slice(&value);
        value = vec![0x2a];
        prost::encoding::encode_varint(list.len() as u64, &mut value);
        value.extend_from_slice(&list);
    }
    let mut attribute = b"\x0a\x01a\x12".to_vec();
    prost::encoding::encode_varint(value.len() as u64, &mut attribute);
    attribute.extend_from_slice(&value);
    let mut bytes = span(2).encode_to_vec();
    bytes.push(0x4a);
    prost::encoding::encode_varint(attribute.len() as u64, &mut bytes);
    bytes.extend_from_slice(&attribute);
    only_the_middle_is_missing(&decode_traces(&three(&bytes), &options()).unwrap(), "nesting");

    let value = "{\"arrayValue\":{\"values\":[".repeat(deep) + "{}" + &"]}}".repeat(deep);
    let mut request = Style(0).request(&request_of(vec![], vec![span(1), span(2), span(3)]));
    request["resourceSpans"][0]["scopeSpans"][0]["spans"][1]["attributes"] = json!("HERE");
    let text = request.to_string().replace("\"HERE\"", &format!("[{{\"key\":\"a\",\"value\":{value}}}]"));
    only_the_middle_is_missing(&decode_traces_json(text.as_bytes(), &options()).unwrap(), "nesting");
}

/// A field of a message, as bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    prost::encoding::encode_varint(bytes.len() as u64, &mut out);
    out.extend_from_slice(bytes);
    out
}

/// A request with a good span, then these bytes as a span, then a good one.
fn three(middle: &[u8]) -> Vec<u8> {
    let spans = [span(1).encode_to_vec(), middle.to_vec(), span(3).encode_to_vec()].map(|s| field(2, &s)).concat();
    field(1, &field(2, &spans))
}

#[test]
fn invalid_utf8() {
    let mut bytes = span(2).encode_to_vec();
    bytes.extend_from_slice(b"\x2a\x02\xff\xfe");
    only_the_middle_is_missing(&decode_traces(&three(&bytes), &options()).unwrap(), "UTF-8");
    let mut bytes = span(2).encode_to_vec();
    bytes.extend_from_slice(b"\x4a\x06\x0a\x01a\x12\x01\xff");
    assert!(decode_traces(&three(&bytes), &options()).is_err(), "0xff is no tag either");
    let mut bytes = span(2).encode_to_vec();
    bytes.extend_from_slice(b"\x4a\x08\x0a\x01a\x12\x03\x0a\x01\xff");
    only_the_middle_is_missing(&decode_traces(&three(&bytes), &options()).unwrap(), "UTF-8");

    let text = Style(0).request(&request_of(vec![], vec![span(1), span(2), span(3)])).to_string();
    let mut bytes = text.into_bytes();
    let at = memchr::memmem::find(&bytes, b"span 2").unwrap();
    bytes[at] = 0xff;
    only_the_middle_is_missing(&decode_traces_json(&bytes, &options()).unwrap(), "UTF-8");
}

#[test]
fn a_bad_resource_refuses_its_spans_only() {
    let mut request = request_of(vec![kv("big", "x".repeat(100))], vec![span(1), span(2)]);
    request.resource_spans.extend(request_of(vec![], vec![span(3)]).resource_spans);
    let text = Style(0).request(&request).to_string();
    for decoded in [
        decode_traces(&request.encode_to_vec(), &options()).unwrap(),
        decode_traces_json(text.as_bytes(), &options()).unwrap(),
    ] {
        assert_eq!((decoded.batch.num_rows(), decoded.rejected), (1, 2));
        assert!(decoded.reasons[0].contains("attribute_bytes") && decoded.reasons[0].ends_with("(2)"));
    }
}

#[track_caller]
fn malformed(bytes: &[u8], what: &str) {
    let error = decode_traces(bytes, &options()).unwrap_err().to_string();
    assert!(error.contains(what), "{error:?} does not say {what:?}");
}

#[test]
fn malformed_protobuf_says_what_and_where() {
    let bytes = request_of(vec![kv("service.name", "s")], vec![span(1)]).encode_to_vec();
    malformed(&bytes[..bytes.len() - 1], "ends inside a field at byte 2");
    malformed(&[0x0a], "ends inside a varint at byte 1");
    malformed(&[0x0a, 0x05, 0x00], "ends inside a field at byte 2");
    malformed(&[0x0f, 0x00], "wrong wire type");
    malformed(&[0x08, 0x01], "wrong wire type at byte 1");
    malformed(&[0x13, 0x00], "unknown wire type at byte 1");
    malformed(&[0x02, 0x00], "number 0");
    malformed(&[0xff; 12], "longer than 64 bits at byte 0");
    malformed(&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], "longer than 64 bits at byte 1");
    malformed(&three(&[0x39, 1, 2]), "ends inside a number");
    assert_eq!(decode_traces(&[], &options()).unwrap().batch.num_rows(), 0);
}

#[test]
fn unknown_fields_are_passed_over() {
    let mut bytes = span(2).encode_to_vec();
    for field in [
        &[0xa0u8, 0x06, 0x96, 0x01][..],
        &[0xa1, 0x06, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0xa2, 0x06, 2, 9, 9],
        &[0xa5, 0x06, 1, 2, 3, 4],
    ] {
        bytes.extend_from_slice(field);
    }
    let decoded = decode_traces(&three(&bytes), &options()).unwrap();
    assert_eq!((decoded.batch.num_rows(), decoded.rejected), (3, 0));
}

#[test]
fn malformed_json_says_what_and_where() {
    for (text, what) in [
        ("", "ends early at byte 0"),
        ("{", "ends early at byte 1"),
        ("[]", "wrong JSON type"),
        ("{\"resourceSpans\":[}", "expected a value at byte 18"),
        ("{\"resourceSpans\":5}", "wrong JSON type"),
        ("{\"resourceSpans\":[]} x", "after the value at byte 21"),
        ("{\"a\" 1}", "expected a colon at byte 5"),
        ("{\"a\":\"x", "unterminated string"),
    ] {
        let error = decode_traces_json(text.as_bytes(), &options()).unwrap_err().to_string();
        assert!(error.contains(what), "{text}: {error:?} does not say {what:?}");
    }
    for text in ["{}", "{\"resourceSpans\":null}", "\u{feff}{\"resourceSpans\":[{}]}"] {
        assert_eq!(decode_traces_json(text.as_bytes(), &options()).unwrap().batch.num_rows(), 0);
    }
}

#[test]
fn wrong_json_types_refuse_the_span_alone() {
    for (key, value, reason) in [
        ("name", json!(5), "wrong JSON type"),
        ("kind", json!("SPAN_KIND_NEW"), "wrong JSON type"),
        ("traceId", json!("xyz"), "trace id"),
        ("traceId", json!("zz010101010101010101010101010101"), "trace id"),
        ("startTimeUnixNano", json!("soon"), "number"),
        ("startTimeUnixNano", json!(-5), "number"),
        ("flags", json!(1u64 << 40), "number"),
        ("attributes", json!({"a": 1}), "wrong JSON type"),
        ("attributes", json!([{"key": "a", "value": {"intValue": "99999999999999999999"}}]), "number"),
        ("attributes", json!([{"key": "a", "value": {"bytesValue": "*"}}]), "base64"),
        ("attributes", json!([{"key": "a", "value": 5}]), "wrong JSON type"),
    ] {
        let mut request = Style(0).request(&request_of(vec![], vec![span(1), span(2), span(3)]));
        request["resourceSpans"][0]["scopeSpans"][0]["spans"][1][key] = value;
        only_the_middle_is_missing(&decode_traces_json(request.to_string().as_bytes(), &options()).unwrap(), reason);
    }
}

#[test]
fn every_cut_of_a_request_is_an_error_or_a_smaller_request() {
    let request: ExportTraceServiceRequest = request_of(vec![kv("service.name", "s")], vec![span(1), span(2)]);
    let bytes = request.encode_to_vec();
    for cut in 1..bytes.len() {
        assert!(decode_traces(&bytes[..cut], &options()).is_err(), "cut at {cut}");
    }
    let text = Style(0).request(&request).to_string();
    for cut in 0..text.len() {
        assert!(decode_traces_json(&text.as_bytes()[..cut], &options()).is_err(), "cut at {cut}");
    }
}

/// A resource with as many attributes as fit, and as many records as fit, each of which asks the resource for its run.
/// If each looked through all of them, this would take hours.
#[test]
fn records_of_a_resource_with_many_attributes_are_read_in_time() {
    use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
    use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
    use opentelemetry_proto::tonic::resource::v1::Resource;

    let text = |key: String, value: &str| {
        let value = Some(AnyValue { value: Some(Value::StringValue(value.into())) });
        KeyValue { key, value, ..KeyValue::default() }
    };
    let mut attributes: Vec<KeyValue> = (0..1_000_000).map(|_| KeyValue::default()).collect();
    attributes.push(text("service.name".into(), "first"));
    attributes.push(text("service.name".into(), &"long".repeat(1_000_000)));
    let record = |run: usize| LogRecord {
        time_unix_nano: 1_700_000_000_000_000_000,
        event_name: "rollscope.stats".into(),
        attributes: match run {
            0 => Vec::new(),
            run => vec![text("rl.run.id".into(), &run.to_string())],
        },
        ..LogRecord::default()
    };
    let message = |records: Vec<LogRecord>| {
        let resource = Some(Resource { attributes: attributes.clone(), ..Resource::default() });
        let scope_logs = vec![ScopeLogs { log_records: records, ..ScopeLogs::default() }];
        let resource_logs = vec![ResourceLogs { resource, scope_logs, ..ResourceLogs::default() }];
        ExportLogsServiceRequest { resource_logs }.encode_to_vec()
    };
    let decoded = decode_logs(&message((0..200_000).map(|_| record(0)).collect()), &options()).unwrap();
    // Of equal keys the first counts.
    let seen: Vec<&str> = decoded.seen.iter().map(|run| run.run_id.as_str()).collect();
    assert_eq!((seen, decoded.rejected), (vec!["first"], 0));
    // As many runs as records: the first of them are taken.
    let decoded = decode_logs(&message((1..=200_000).map(record).collect()), &options()).unwrap();
    assert_eq!((decoded.seen.len(), decoded.rejected), (4096, 200_000 - 4096));
    assert!(decoded.reasons[0].contains("more than 4096 runs"), "{:?}", decoded.reasons);
}
