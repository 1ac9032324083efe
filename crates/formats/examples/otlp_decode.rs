//! What decoding costs: requests of 512 spans with 8 attributes, by our decoder into columns, by prost into structs, and
//! from JSON. Run it optimised: `cargo run --release -p rollscope-formats --example otlp_decode`.

use std::hint::black_box;
use std::time::Instant;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use rollscope_formats::export::otlp::{to_protobuf, write_json_line};
use rollscope_formats::import::otlp::{DecodeOptions, decode_traces, decode_traces_json};

const SPANS: usize = 512;
const ROUNDS: usize = 400;

fn main() {
    let request = request();
    let bytes = request.encode_to_vec();
    let options = DecodeOptions { live: true, ..DecodeOptions::default() };
    let decoded = decode_traces(&bytes, &options).expect("a good request");
    assert_eq!(decoded.batch.num_rows(), SPANS);
    let mut json = Vec::new();
    write_json_line(&decoded.batch, &mut json).expect("memory does not fail");
    println!("{SPANS} spans of 8 attributes: {} bytes a span, {} in JSON", bytes.len() / SPANS, json.len() / SPANS);

    time("decode_traces", || decode_traces(&bytes, &options).expect("a good request").batch.num_rows());
    time("prost only", || ExportTraceServiceRequest::decode(&bytes[..]).expect("a good request").encoded_len());
    time("decode_traces_json", || decode_traces_json(&json, &options).expect("a good request").batch.num_rows());
    time("to_protobuf", || to_protobuf(&decoded.batch).len());
    time("write_json_line", || {
        let mut out = Vec::new();
        write_json_line(&decoded.batch, &mut out).expect("memory does not fail");
        out.len()
    });
}

/// The best of three, so that a busy machine spoils less.
fn time(name: &str, mut run: impl FnMut() -> usize) {
    let best = (0..3)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..ROUNDS {
                black_box(run());
            }
            start.elapsed().as_nanos() as f64 / (ROUNDS * SPANS) as f64
        })
        .fold(f64::INFINITY, f64::min);
    println!("{name:20} {best:8.0} ns/span");
}

fn request() -> ExportTraceServiceRequest {
    let pair = |key: &str, value| KeyValue {
        key: key.into(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    };
    let text = |key, value: String| pair(key, Value::StringValue(value));
    let start = 1_794_700_000_000_000_000u64;
    let spans = (0..SPANS as u64).map(|n| {
        let mix = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Span {
            trace_id: [mix, mix.rotate_left(17)].map(u64::to_be_bytes).concat(),
            span_id: mix.rotate_left(31).to_be_bytes().to_vec(),
            parent_span_id: mix.rotate_left(7).to_be_bytes().to_vec(),
            name: ["generate", "tool_call", "reward", "decode_loop"][n as usize % 4].into(),
            kind: 1,
            start_time_unix_nano: start + n * 1_000_003,
            end_time_unix_nano: start + n * 1_000_003 + mix % 1_000_000_000,
            attributes: vec![
                pair("rl.step", Value::IntValue(412)),
                text("rl.sample.id", (n / 4).to_string()),
                text("rl.phase", "rollout".into()),
                pair("prompt_tokens", Value::IntValue((mix % 4096) as i64)),
                pair("completion_tokens", Value::IntValue((mix >> 20) as i64 % 8192)),
                pair("queue_time", Value::DoubleValue((mix % 1000) as f64 / 997.0)),
                text("finish_reason", "stop".into()),
                pair("cached", Value::BoolValue(n % 3 == 0)),
            ],
            flags: 256,
            ..Span::default()
        }
    });
    let resource = Resource {
        attributes: vec![text("service.name", "trainer".into()), text("rl.run.id", "bench".into())],
        ..Resource::default()
    };
    let scope = InstrumentationScope { name: "bench".into(), ..InstrumentationScope::default() };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans: spans.collect(), ..ScopeSpans::default() }];
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() }],
    }
}
