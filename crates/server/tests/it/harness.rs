//! A server on free ports over a store in a temporary folder, and small clients.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use rollscope_answers::Answers;
use rollscope_query::QueryLimits;
use rollscope_server::{Addresses, Server, ServerConfig};
use rollscope_store::{Store, StoreOptions};
use serde_json::Value;
use tempfile::TempDir;
use tonic::transport::Channel;

/// 2023-11-14T22:13:20Z.
pub const T0: u64 = 1_700_000_000_000_000_000;

pub struct Rig {
    _dir: TempDir,
    pub store: Store,
    pub server: Server,
    pub at: Addresses,
}

/// Defaults on free ports. An alarm would be in the series, and the disk of who runs the tests may be nearly full.
pub fn config() -> ServerConfig {
    let free = || "127.0.0.1:0".to_string();
    let mut config = ServerConfig { listen: free(), otlp_grpc: free(), otlp_http: free(), ..ServerConfig::default() };
    config.alarms.builtin.disk_nearly_full.enabled = Some(false);
    config
}

pub async fn rig() -> Rig {
    rig_with(config()).await
}

pub async fn rig_with(config: ServerConfig) -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::at(dir.path())).await.unwrap();
    let engine = Answers::new(Arc::new(store.clone()), QueryLimits::default()).unwrap();
    let server = Server::start(&config, store.clone(), engine).await.unwrap();
    let at = server.addresses();
    Rig { _dir: dir, store, server, at }
}

impl Rig {
    pub fn page(&self, path: &str) -> String {
        format!("http://{}{path}", self.at.page.unwrap())
    }

    pub fn otlp(&self, path: &str) -> String {
        format!("http://{}{path}", self.at.otlp_http.unwrap())
    }

    pub fn grpc_url(&self) -> String {
        format!("http://{}", self.at.otlp_grpc.unwrap())
    }

    pub async fn grpc(&self) -> TraceServiceClient<Channel> {
        TraceServiceClient::connect(self.grpc_url()).await.unwrap()
    }

    pub async fn get(&self, path: &str) -> HttpAnswer {
        send("GET", &self.page(path), &[], Vec::new()).await
    }

    /// The rows of a query.
    pub async fn rows(&self, query: &str) -> Vec<Vec<Value>> {
        let answer = self.sql(&serde_json::json!({ "query": query })).await;
        assert_eq!(answer.status, 200, "{query}: {}", answer.text());
        serde_json::from_value(answer.json()["rows"].clone()).unwrap()
    }

    pub async fn sql(&self, request: &Value) -> HttpAnswer {
        let body = request.to_string().into_bytes();
        send("POST", &self.page("/api/v1/sql"), &[("content-type", "application/json")], body).await
    }

    pub async fn count(&self) -> i64 {
        self.rows("select count(*) from spans").await[0][0].as_i64().unwrap()
    }

    /// Sends spans and expects them to be taken.
    pub async fn put(&self, request: &ExportTraceServiceRequest) {
        let answer = post_proto(&self.otlp("/v1/traces"), request.encode_to_vec(), &[]).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.body.is_empty(), "partial success");
    }
}

pub struct HttpAnswer {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl HttpAnswer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// One request. Any status is an answer.
pub async fn send(method: &str, url: &str, headers: &[(&str, &str)], body: Vec<u8>) -> HttpAnswer {
    let mut request = ureq::http::Request::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let call = move || {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .allow_non_standard_methods(true)
            .timeout_global(Some(Duration::from_secs(60)))
            .build()
            .into();
        let mut response = match body.is_empty() {
            true => agent.run(request.body(()).unwrap()).unwrap(),
            false => agent.run(request.body(body).unwrap()).unwrap(),
        };
        let headers =
            response.headers().iter().map(|(k, v)| (k.to_string(), v.to_str().unwrap_or("").to_string())).collect();
        let body = response.body_mut().with_config().limit(1 << 30).read_to_vec().unwrap();
        HttpAnswer { status: response.status().as_u16(), headers, body }
    };
    tokio::task::spawn_blocking(call).await.unwrap()
}

pub async fn post_proto(url: &str, body: Vec<u8>, headers: &[(&str, &str)]) -> HttpAnswer {
    let headers = [&[("content-type", "application/x-protobuf")], headers].concat();
    send("POST", url, &headers, body).await
}

pub async fn post_json(url: &str, body: &str) -> HttpAnswer {
    send("POST", url, &[("content-type", "application/json")], body.as_bytes().to_vec()).await
}

pub fn text(key: &str, value: &str) -> KeyValue {
    attr(key, any_value::Value::StringValue(value.into()))
}

pub fn int(key: &str, value: i64) -> KeyValue {
    attr(key, any_value::Value::IntValue(value))
}

pub fn attr(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// Span number `n` (from 1) of trace `trace`, 1 ms long.
pub fn span(trace: u8, n: u64, name: &str) -> Span {
    Span {
        trace_id: vec![trace; 16],
        span_id: n.to_be_bytes().to_vec(),
        name: name.into(),
        kind: 1,
        start_time_unix_nano: T0 + n * 1_000_000,
        end_time_unix_nano: T0 + (n + 1) * 1_000_000,
        ..Span::default()
    }
}

/// One resource with these spans, in run `run`.
pub fn request(run: &str, spans: Vec<Span>) -> ExportTraceServiceRequest {
    let resource =
        Resource { attributes: vec![text("service.name", "tests"), text("rl.run.id", run)], ..Resource::default() };
    let scope = InstrumentationScope { name: "tests".into(), ..InstrumentationScope::default() };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() }],
    }
}

/// `count` spans of one trace.
pub fn spans(run: &str, trace: u8, count: u64) -> ExportTraceServiceRequest {
    request(run, (1..=count).map(|n| span(trace, n, "work")).collect())
}

pub fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}
