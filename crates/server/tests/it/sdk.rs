//! OpenTelemetry's Rust SDK, unchanged, over gRPC and over HTTP.

use opentelemetry::trace::{Span as _, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Compression, Protocol, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;

use crate::harness::*;

/// The SDK asks for any HTTP client; this one needs no runtime.
#[derive(Debug)]
struct Plain(ureq::Agent);

#[async_trait::async_trait]
impl HttpClient for Plain {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let mut answer = self.0.run(Request::from_parts(parts, body.to_vec()))?;
        let body = answer.body_mut().read_to_vec()?;
        Ok(Response::builder().status(answer.status()).body(body.into())?)
    }
}

/// A turn with a tool call inside, as an instrumented program would write it.
fn work(provider: &SdkTracerProvider, rounds: i64) {
    let tracer = provider.tracer("sdk-test");
    for round in 0..rounds {
        let mut turn = tracer.span_builder("turn").with_kind(SpanKind::Client).start(&tracer);
        turn.set_attribute(KeyValue::new("rl.step", round));
        turn.set_attribute(KeyValue::new("rl.sample.id", format!("s{round}")));
        turn.set_attribute(KeyValue::new("temperature", 0.7));
        let context = Context::current_with_span(turn);
        let mut tool = tracer.start_with_context("tool", &context);
        tool.add_event("retry", vec![KeyValue::new("attempt", 1)]);
        tool.set_status(Status::error("no such file"));
        tool.end();
        context.span().end();
    }
}

fn resource(run: &'static str) -> Resource {
    Resource::builder_empty().with_service_name("agent").with_attribute(KeyValue::new("rl.run.id", run)).build()
}

async fn check(rig: &Rig, run: &str) {
    let counts =
        rig.rows(&format!("select name, count(*) from spans where run_id = '{run}' group by name order by name")).await;
    assert_eq!(counts, [["tool".into(), serde_json::json!(200)], ["turn".into(), serde_json::json!(200)]]);
    let joined = rig
        .rows(&format!(
            "select count(*), max(p.step), max(c.status_message) from spans c join spans p on c.parent_span_id = p.span_id \
             where c.run_id = '{run}' and c.name = 'tool' and p.name = 'turn' and p.kind = 'client' and c.status = 'error'"
        ))
        .await;
    assert_eq!(joined[0], [serde_json::json!(200), serde_json::json!(199), "no such file".into()]);
    let one = rig
        .rows(&format!(
            "select sample_id, service, attr(end_attrs, 'temperature') from spans where run_id = '{run}' and step = 7"
        ))
        .await;
    assert_eq!(one, [["s7".into(), "agent".into(), serde_json::json!(0.7)]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_sdk_over_grpc() {
    let rig = rig().await;
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(rig.grpc_url())
        .with_compression(Compression::Gzip)
        .build()
        .unwrap();
    let provider =
        SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource("sdk-grpc")).build();
    tokio::task::spawn_blocking(move || {
        work(&provider, 200);
        provider.force_flush().unwrap();
        provider.shutdown().unwrap();
    })
    .await
    .unwrap();
    check(&rig, "sdk-grpc").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_sdk_over_http() {
    let rig = rig().await;
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Plain(ureq::Agent::new_with_defaults()))
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(rig.otlp("/v1/traces"))
        .build()
        .unwrap();
    let provider =
        SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource("sdk-http")).build();
    tokio::task::spawn_blocking(move || {
        work(&provider, 200);
        provider.force_flush().unwrap();
        provider.shutdown().unwrap();
    })
    .await
    .unwrap();
    check(&rig, "sdk-http").await;
}
