//! Run, step, sample and the rest: where they are read from, in which order, and how rows without attributes travel.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use prost::Message as _;
use rollscope_formats::export::otlp::to_protobuf;
use rollscope_formats::import::otlp::{DecodeOptions, RunSeen, decode_traces};
use rollscope_model::attrs::Value;
use rollscope_model::build::{NewSpan, SpansBuilder};
use serde_json::{Value as Json, json};

use super::support::{kv, request_of, rows, span};

fn decode(request: &ExportTraceServiceRequest) -> (Vec<Json>, Vec<RunSeen>) {
    let decoded = decode_traces(&request.encode_to_vec(), &DecodeOptions::default()).unwrap();
    assert_eq!(decoded.rejected, 0, "{:?}", decoded.reasons);
    (rows(&decoded.batch), decoded.runs)
}

#[test]
fn a_span_is_believed_before_its_resource_and_a_better_name_before_a_worse() {
    let mut s = span(1);
    s.attributes = vec![
        kv("rollout_id", 3),
        kv("rl.step", "7"),
        kv("sample_index", 12),
        kv("attempt", "two"),
        kv("tp_rank", 1i64 << 40),
        kv("rid", ""),
    ];
    let resource = vec![
        kv("rl.step", 1),
        kv("group_id", 5),
        kv("rl.attempt", 4),
        kv("host.name", "node-1"),
        kv("process.pid", "99"),
        kv("gen_ai.response.id", "r-1"),
        kv("tp_rank", 2),
    ];
    let (rows, _) = decode(&request_of(resource, vec![s]));
    let row = &rows[0];
    assert_eq!(row["step"], 7);
    assert_eq!(row["sample_id"], "12");
    assert_eq!(row["group_id"], "5");
    assert_eq!(row["attempt"], 4, "text that is no number is not believed");
    assert_eq!(row["tp_rank"], 2, "a rank that does not fit is not believed");
    assert_eq!(row["request_id"], "r-1", "empty text says nothing");
    assert_eq!((&row["host"], &row["pid"]), (&json!("node-1"), &json!(99)));
    assert_eq!((&row["service"], &row["run_id"]), (&json!("unknown_service"), &json!("default")));
}

#[test]
fn a_bootstrap_room_is_the_same_however_it_is_written() {
    let key = "bootstrap_room";
    let room = |attribute| {
        let mut s = span(1);
        s.attributes = vec![attribute];
        decode(&request_of(vec![kv(key, 7)], vec![s])).0[0][key].clone()
    };
    for written in [kv(key, "0x5eed01"), kv(key, "0x5EED01"), kv(key, "6221057"), kv(key, 0x5eed01)] {
        assert_eq!(room(written), "0x5eed01");
    }
    assert_eq!(room(kv(key, "0x7fffffffffffffff")), "0x7fffffffffffffff");
    for nothing in [kv(key, "0x0"), kv(key, "0"), kv(key, ""), kv(key, "room 7"), kv(key, 0), kv(key, -1)] {
        assert_eq!(room(nothing), Json::Null, "neither is a room, and a resource has none");
    }
}

#[test]
fn the_run_is_named_by_option_span_resource_or_service() {
    let mut own = span(2);
    own.attributes = vec![kv("rl.run.id", "of-span")];
    own.start_time_unix_nano -= 5;
    let resource = vec![
        kv("service.name", "trainer"),
        kv("rl.run.id", "of-resource"),
        kv("rl.project", "p"),
        kv("rl.run.name", "n"),
        kv("rl.system", "verl"),
    ];
    let mut request = request_of(resource, vec![span(1), own]);
    request.resource_spans.extend(request_of(vec![kv("service.name", "smg")], vec![span(3)]).resource_spans);
    let mut roll = request_of(vec![kv("service.name", "pipeline")], vec![span(4)]);
    roll.resource_spans[0].scope_spans[0].scope =
        Some(InstrumentationScope { name: "roll".into(), ..InstrumentationScope::default() });
    request.resource_spans.extend(roll.resource_spans);
    request.resource_spans.extend(request_of(vec![], vec![span(5)]).resource_spans);

    let (rows, runs) = decode(&request);
    let of: Vec<_> = rows.iter().map(|r| r["run_id"].as_str().unwrap()).collect();
    assert_eq!(of, ["of-resource", "of-span", "smg", "roll", "default"]);
    let start = span(1).start_time_unix_nano as i64;
    let seen = |run: &str, framework: &str, first_ns| RunSeen {
        run_id: run.into(),
        framework: Some(framework.into()),
        first_ns,
        ..RunSeen::default()
    };
    let described = |r: RunSeen| RunSeen { project: Some("p".into()), name: Some("n".into()), ..r };
    assert_eq!(
        runs,
        [
            described(seen("of-resource", "verl", start)),
            described(seen("of-span", "verl", start - 5)),
            seen("smg", "sglang", start),
            seen("roll", "roll", start),
            seen("default", "opentelemetry", start),
        ]
    );

    let options = DecodeOptions { run: Some("mine".into()), ..DecodeOptions::default() };
    let decoded = decode_traces(&request.encode_to_vec(), &options).unwrap();
    assert_eq!(decoded.runs.len(), 1);
    assert_eq!((decoded.runs[0].run_id.as_str(), decoded.runs[0].first_ns), ("mine", start - 5));
}

#[test]
fn reserved_attributes_become_columns() {
    let mut s = span(1);
    s.end_time_unix_nano = 0;
    s.attributes = vec![
        kv("a", 1),
        kv("rollscope.start_attrs", 2),
        kv("b", 2),
        kv("rollscope.state", "instant"),
        kv("c", 3),
        kv("rollscope.original_trace_id", "t"),
        kv("rollscope.original_parent_span_id", "p"),
        kv("rollscope.other", true),
    ];
    let row = &decode(&request_of(vec![], vec![s])).0[0];
    assert_eq!(row["start_attrs"], json!([["a", "1"], ["b", "2"]]));
    assert_eq!(row["end_attrs"], json!([["c", "3"], ["rollscope.other", "true"]]));
    assert_eq!((&row["state"], &row["end_ns"]), (&json!("instant"), &Json::Null));
    assert_eq!((&row["original_trace_id"], &row["original_parent_span_id"]), (&json!("t"), &json!("p")));
}

#[test]
fn rows_of_a_dump_keep_what_their_columns_say() {
    let mut builder = SpansBuilder::default();
    builder.push(&NewSpan {
        run_id: "service",
        service: "service",
        step: Some(4),
        trace_id: [1; 16],
        span_id: [2; 8],
        name: "generate",
        phase: Some("rollout"),
        thread: Some("worker"),
        host: Some("h"),
        pid: Some(17),
        dp_rank: Some(3),
        start_ns: 1_000,
        end_ns: Some(2_000),
        state: "orphan_end",
        sample_id: Some("12"),
        group_id: Some("1"),
        attempt: Some(0),
        request_id: Some("r"),
        start_attrs: &[("x", Value::Int(1))],
        end_attrs: &[("sample_index", Value::Int(12))],
        resource: r#"{"service.name":"service","rl.step":4}"#,
        original_span_id: Some("00112233445566778899aabbccddeeff"),
        ..NewSpan::default()
    });
    let batch = builder.finish().unwrap();
    let before = &rows(&batch)[0];
    let after = decode_traces(&to_protobuf(&batch), &DecodeOptions::default()).unwrap();
    let after = &rows(&after.batch)[0];
    for (column, value) in before.as_object().unwrap() {
        if column != "end_attrs" {
            assert_eq!(&after[column], value, "{column}");
        }
    }
    let keys: Vec<_> = after["end_attrs"].as_array().unwrap().iter().map(|kv| kv[0].as_str().unwrap()).collect();
    assert_eq!(
        keys,
        ["sample_index", "rl.group.id", "rl.attempt", "rl.phase", "rid", "thread_label", "host_id", "pid", "dp_rank"],
        "what an attribute of the span or the resource says already is not said again"
    );
}
