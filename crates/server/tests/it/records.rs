//! What our SDK sends as log records: runs, metrics, conversations, media, counters; and the level it is told.

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, KeyValueList};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use serde_json::json;

use crate::harness::*;

fn record(event: &str, time: u64, attributes: Vec<KeyValue>, body: Option<Any>) -> LogRecord {
    LogRecord {
        event_name: event.into(),
        time_unix_nano: time,
        attributes,
        body: body.map(|value| AnyValue { value: Some(value) }),
        ..LogRecord::default()
    }
}

fn message(records: Vec<LogRecord>) -> ExportLogsServiceRequest {
    let attributes =
        vec![text("service.name", "trainer"), text("rl.run.id", "r1"), text("service.instance.id", "host:7")];
    let resource = Some(Resource { attributes, ..Resource::default() });
    let scope_logs = vec![ScopeLogs { log_records: records, ..ScopeLogs::default() }];
    ExportLogsServiceRequest { resource_logs: vec![ResourceLogs { resource, scope_logs, ..ResourceLogs::default() }] }
}

fn run(time: u64, status: &str, ended: Option<u64>) -> LogRecord {
    let mut attributes = vec![
        text("rl.project", "math"),
        text("rl.run.name", "grpo"),
        text("rollscope.config", r#"{"lr":1e-6}"#),
        text("rollscope.status", status),
        int("rollscope.started_ns", T0 as i64),
    ];
    attributes.extend(ended.map(|t| int("rollscope.ended_ns", t as i64)));
    record("rollscope.run", time, attributes, None)
}

fn values(pairs: &[(&str, f64)]) -> Option<Any> {
    let values = pairs.iter().map(|(k, v)| attr(k, Any::DoubleValue(*v))).collect();
    Some(Any::KvlistValue(KeyValueList { values }))
}

async fn put(rig: &Rig, records: Vec<LogRecord>) -> HttpAnswer {
    let answer = post_proto(&rig.otlp("/v1/logs"), message(records).encode_to_vec(), &[]).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_record_reaches_its_table() {
    let rig = rig().await;
    let messages = r#"[{"role":"user","content":"1+1?"},{"role":"assistant","content":"2"}]"#;
    let mut said = record(
        "rollscope.conversation",
        T0 + 5,
        vec![
            text("rollscope.id", "abc"),
            int("rl.step", 12),
            text("rollscope.key", "agent"),
            int("rollscope.index", 1),
            text("rl.sample.id", "7"),
            text("rollscope.metadata", r#"{"reward":0.5,"status":"completed","group_id":3}"#),
        ],
        Some(Any::StringValue(messages.into())),
    );
    said.trace_id = vec![1; 16];
    said.span_id = vec![2; 8];
    let stats = vec![int("rollscope.stat.recorded", 10), int("rollscope.stat.dropped", 1)];
    let records = vec![
        run(T0, "running", None),
        record("rollscope.metrics", T0 + 3, vec![int("rl.step", 12)], values(&[("loss", 1.5), ("kl", f64::NAN)])),
        said,
        record("rollscope.media", T0, vec![], Some(Any::BytesValue(b"a picture".to_vec()))),
        record("rollscope.stats", T0 + 9, stats, None),
    ];
    let mut client = LogsServiceClient::connect(rig.grpc_url()).await.unwrap();
    let answer = client.export(message(records.clone())).await.unwrap();
    assert!(answer.get_ref().partial_success.is_none());
    assert!(answer.metadata().get("rollscope-trace-level").is_none());
    // Sent again, as after a lost answer: nothing doubles.
    put(&rig, records[..4].to_vec()).await;

    let rows = rig.rows("select project, name, status, config, started_ns, ended_ns from runs").await;
    assert_eq!(json!(rows), json!([["math", "grpo", "running", "{\"lr\":1e-6}", T0, null]]));
    let rows = rig.rows("select step, name, value, time_ns from metrics order by name desc").await;
    assert_eq!(json!(rows[0]), json!([12, "loss", 1.5, T0 + 3]));
    assert_eq!((rows.len(), &rows[1][1]), (2, &json!("kl")));
    let rows = rig
        .rows(
            "select id, step, key, \"index\", sample_id, group_id, reward, status, message_count, turn_count, messages, logged_ns \
             from conversations",
        )
        .await;
    assert_eq!(json!(rows), json!([["abc", 12, "agent", 1, "7", "3", 0.5, "completed", 2, 1, messages, T0 + 5]]));
    let rows = rig.rows("select target, name, value from series order by name").await;
    assert_eq!(json!(rows[0]), json!(["trainer/host:7", "rollscope_sdk_dropped_total", 1.0]));
    let hash = "b9c7d32a0d1f1d2a9d8c";
    assert!(rig.store.media_get(hash).await.unwrap().is_none());
    let stored = rig.store.media_put(b"a picture".to_vec()).await.unwrap();
    assert_eq!(rig.store.media_get(&stored).await.unwrap().unwrap().as_ref(), b"a picture");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_is_not_undone_by_what_was_held_up() {
    let rig = rig().await;
    let status = "select status from runs";
    put(&rig, vec![run(T0 + 10, "finished", Some(T0 + 10))]).await;
    put(&rig, vec![run(T0, "running", None)]).await;
    assert_eq!(rig.rows(status).await, [["finished"]]);
    // Started again later under the same name: it runs.
    put(&rig, vec![run(T0 + 20, "running", None)]).await;
    assert_eq!(rig.rows(status).await, [["running"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_kept_is_refused_with_words_and_the_rest_is_kept() {
    let rig = rig().await;
    let body = |text: &str| Some(Any::StringValue(text.into()));
    let deep = "[".repeat(5000);
    let records = vec![
        record("", T0, vec![], body("a log line")),
        record("rollscope.other", T0, vec![], None),
        record("rollscope.conversation", T0, vec![], body("{}")),
        record("rollscope.conversation", T0, vec![], body(&deep)),
        record("rollscope.conversation", T0, vec![text("rollscope.metadata", "{")], body("[]")),
        record("rollscope.metrics", T0, vec![], body("1")),
        record("rollscope.metrics", 5, vec![], values(&[("early", 1.0)])),
        record("rollscope.metrics", T0, vec![], values(&[("kept", 1.0)])),
        record("rollscope.metrics", T0, vec![text("rl.run.id", &"x".repeat(300))], values(&[("a", 1.0)])),
    ];
    let answer = put(&rig, records).await;
    let said = ExportLogsServiceResponse::decode(&answer.body[..]).unwrap().partial_success.unwrap();
    assert_eq!(said.rejected_log_records, 8);
    for reason in
        ["log records are not stored", "docs/wire.md", "not valid JSON", "before the year 2000", "run id is longer"]
    {
        assert!(said.error_message.contains(reason), "{}", said.error_message);
    }
    assert_eq!(rig.rows("select name from metrics").await, [["kept"]]);
    // The same over JSON, in its own words.
    let line = r#"{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"timeUnixNano":"1700000000000000000","body":{"stringValue":"a log line"}}]}]}]}"#;
    let answer = post_json(&rig.otlp("/v1/logs"), line).await;
    let said = &answer.json()["partialSuccess"];
    assert_eq!((answer.status, said["rejectedLogRecords"].as_str()), (200, Some("1")));
    assert!(said["errorMessage"].as_str().unwrap().contains("log records are not stored"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_level_is_told_with_every_answer() {
    let rig = rig().await;
    let url = rig.page("/api/v1/trace-level");
    assert_eq!(rig.get("/api/v1/trace-level").await.json(), json!({"level": null}));
    let set = |body: &'static str| {
        let url = url.clone();
        async move { send("PUT", &url, &[("content-type", "application/json")], body.into()).await }
    };
    for bad in [r#"{"level":4}"#, r#"{"level":-1}"#, r#"{"level":"1"}"#, "x", r#"{"other":1}"#] {
        assert_eq!(set(bad).await.status, 400, "{bad}");
    }
    assert_eq!(set(r#"{"level":1}"#).await.json(), json!({"level": 1}));
    assert_eq!(put(&rig, vec![]).await.header("rollscope-trace-level"), "1");
    let mut client = rig.grpc().await;
    let answer = client.export(spans("r1", 1, 2)).await.unwrap();
    assert_eq!(answer.metadata().get("rollscope-trace-level").unwrap(), "1");
    set(r#"{"level":null}"#).await;
    assert_eq!(put(&rig, vec![]).await.header("rollscope-trace-level"), "");
}
