//! `/api/v1` as the page uses it.

use std::time::Duration;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int64Type};
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use rollscope_store::SnapshotSource;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::*;

fn arrow(answer: &HttpAnswer) -> RecordBatch {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), "application/vnd.apache.arrow.stream");
    let reader = arrow::ipc::reader::StreamReader::try_new(&answer.body[..], None).unwrap();
    let schema = reader.schema();
    let batches: Vec<_> = reader.map(Result::unwrap).collect();
    arrow::compute::concat_batches(&schema, &batches).unwrap()
}

fn texts(batch: &RecordBatch, column: &str) -> Vec<Option<String>> {
    let column =
        arrow::compute::cast(batch.column_by_name(column).unwrap(), &arrow::datatypes::DataType::Utf8).unwrap();
    column.as_string::<i32>().iter().map(|v| v.map(str::to_string)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_answers_in_three_forms() {
    let rig = rig().await;
    rig.put(&spans("r", 1, 3)).await;
    let query = "select name, trace_id, start_ns, end_ns is null as open, 0.0/0.0 as nan, resource from spans order by start_ns";
    let json = rig.sql(&json!({ "query": query })).await;
    assert_eq!((json.status, json.header("content-type")), (200, "application/json"));
    assert_eq!(json.header("rollscope-truncated"), "false");
    let json = json.json();
    assert_eq!(json["columns"][1]["name"], "trace_id");
    assert_eq!(json["rows"][0][1], "01010101010101010101010101010101");
    assert_eq!(json["rows"][0][2], T0 + 1_000_000);
    assert_eq!((&json["rows"][0][3], &json["rows"][0][4]), (&json!(false), &json!("NaN")));
    assert_eq!(json["truncated"], false);

    let csv = rig.sql(&json!({ "query": query, "format": "csv", "max_rows": 2 })).await;
    assert_eq!((csv.status, csv.header("content-type")), (200, "text/csv; charset=utf-8"));
    assert_eq!(csv.header("rollscope-truncated"), "true");
    assert_eq!(csv.text().split('\n').filter(|l| !l.is_empty()).count(), 3);

    let body = json!({ "query": query }).to_string().into_bytes();
    let headers = [("content-type", "application/json"), ("accept", "application/vnd.apache.arrow.stream")];
    let batch = arrow(&send("POST", &rig.page("/api/v1/sql"), &headers, body).await);
    assert_eq!((batch.num_rows(), batch.num_columns()), (3, 6));

    let attrs = rig.rows("select end_attrs, events from spans limit 1").await;
    assert!(attrs[0][0].is_object() && attrs[0][1].is_array(), "{attrs:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn long_answers_are_streamed_whole() {
    let rig = rig().await;
    let query =
        "select a.value * 1000 + b.value as n from generate_series(0, 999) a cross join generate_series(0, 99) b";
    let json = rig.sql(&json!({ "query": query })).await;
    assert_eq!(json.header("trailer"), "rollscope-truncated");
    let json = json.json();
    assert_eq!(json["rows"].as_array().unwrap().len(), 100_000);
    assert_eq!(json["truncated"], false);
    let batch = arrow(&rig.sql(&json!({ "query": query, "format": "arrow" })).await);
    assert_eq!(batch.num_rows(), 100_000);
    let cut = rig.sql(&json!({ "query": query, "max_rows": 90_000 })).await.json();
    assert_eq!((cut["rows"].as_array().unwrap().len(), &cut["truncated"]), (90_000, &Value::Bool(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_questions_are_answered_with_problems() {
    let rig = rig().await;
    let sql = |query: &str| json!({ "query": query });
    for (request, part) in [
        (sql("selec 1"), "selec"),
        (sql("select nothing from spans"), "nothing"),
        (sql("select * from nowhere"), "nowhere"),
        (sql("drop table spans"), ""),
        (sql("insert into runs select * from runs"), ""),
        (sql(""), ""),
        (json!({ "query": "select 1", "format": "xml" }), "arrow, json, csv"),
        (json!({ "sql": "select 1" }), "query"),
        (json!({ "query": "select 1", "max_rows": -1 }), "max_rows"),
        (json!([]), ""),
    ] {
        let answer = rig.sql(&request).await;
        assert_eq!((answer.status, answer.header("content-type")), (400, "application/problem+json"), "{request}");
        let problem = answer.json();
        assert_eq!(problem["status"], 400);
        assert!(problem["detail"].as_str().unwrap().contains(part), "{request}: {problem}");
    }
    let url = rig.page("/api/v1/sql");
    assert_eq!(send("POST", &url, &[("content-type", "text/plain")], b"{}".to_vec()).await.status, 415);
    let long = sql(&"x".repeat(2 << 20));
    let answer = rig.sql(&long).await;
    assert_eq!((answer.status, answer.json()["limit"].as_str()), (413, Some("max_api_request_bytes")));

    rig.put(&spans("r", 1, 1)).await;
    for (path, status, part) in [
        ("/api/v1/nowhere", 404, "openapi.json"),
        ("/api/v1/runs/q/timeline?step=1", 404, "there is no run `q`; did you mean: `r`"),
        ("/api/nowhere", 404, "openapi.json"),
        ("/api/v1/runs?limit=3", 400, "unknown parameter `limit`; this endpoint takes no parameters"),
        ("/api/v1/runs/r/timeline", 400, "missing parameter `step`"),
        ("/api/v1/runs/r/timeline?step=x", 400, "parameter `step` must be an integer"),
        ("/api/v1/runs/r/metrics/points", 400, "missing parameter `names`"),
        ("/api/v1/runs/r/samples?stepp=1", 400, "unknown parameter `stepp`; expected one of: step"),
        ("/api/v1/traces?stpe=1", 400, "unknown parameter `stpe`; expected one of: run, step"),
        ("/api/v1/traces/xyz", 400, "`trace`"),
        ("/api/v1/traces/00112233445566778899aabbccddeeff", 404, "no trace"),
        ("/api/v1/spans/00112233445566778899aabbccddeeff/0011223344556677", 404, "no span"),
        ("/api/v1/sql", 405, "openapi.json"),
    ] {
        let answer = rig.get(path).await;
        assert_eq!((answer.status, answer.header("content-type")), (status, "application/problem+json"), "{path}");
        assert!(answer.json()["detail"].as_str().unwrap().contains(part), "{path}: {}", answer.text());
    }
    let delete = |path: &str| rig.page(path);
    assert_eq!(send("DELETE", &delete("/api/v1/queries/77"), &[], vec![]).await.status, 404);
    assert_eq!(send("DELETE", &delete("/api/v1/queries/x"), &[], vec![]).await.status, 400);
    assert_eq!(send("DELETE", &delete("/api/v1/runs/none"), &[], vec![]).await.status, 404);
}

/// Two samples in step 7, an engine span that knows only its trace, and a span of step 8.
async fn a_small_run(rig: &Rig) {
    let mut all = Vec::new();
    for sample in 1..=2u8 {
        for n in 1..=3 {
            let mut s = span(sample, n, "generate");
            s.attributes = vec![
                int("rl.step", 7),
                text("rl.sample.id", &sample.to_string()),
                text("rl.group.id", "g0"),
                text("rl.phase", if n == 3 { "reward" } else { "rollout" }),
                int("tokens", 40 + n as i64),
            ];
            all.push(s);
        }
    }
    let mut later = span(3, 9, "train");
    later.attributes = vec![int("rl.step", 8), text("rl.phase", "train")];
    all.push(later);
    rig.put(&request("r", all)).await;
    let mut engine = span(2, 100, "decode");
    (engine.start_time_unix_nano, engine.end_time_unix_nano) = (T0 + 1_500_000, T0 + 1_700_000);
    engine.events = vec![Event { time_unix_nano: T0 + 1_600_000, name: "token".into(), ..Event::default() }];
    engine.links = vec![Link { trace_id: vec![9; 16], span_id: vec![9; 8], ..Link::default() }];
    rig.put(&request("engine", vec![engine])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_steps_and_timeline() {
    let rig = rig().await;
    a_small_run(&rig).await;
    for flushed in [false, true] {
        if flushed {
            rig.store.flush().await.unwrap();
        }
        let runs = rig.get("/api/v1/runs").await.json();
        let run = runs["runs"].as_array().unwrap().iter().find(|r| r["run_id"] == "r").unwrap().clone();
        assert_eq!((&run["spans"], &run["steps"], &run["status"]), (&json!(7), &json!(2), &json!("running")), "{run}");
        let bytes = |name: &str| run[name].as_u64().unwrap();
        assert!(run["last_ns"].is_string() && bytes("bytes") > 0 && (bytes("log_bytes") > 0) != flushed, "{run}");

        let steps = rig.get("/api/v1/runs/r/steps").await.json();
        let steps = steps["steps"].as_array().unwrap();
        assert_eq!(steps.len(), 2, "{steps:?}");
        assert_eq!((&steps[0]["step"], &steps[0]["spans"], &steps[0]["samples"]), (&json!(7), &json!(7), &json!(2)));
        assert_eq!(steps[0]["start_ns"], (T0 + 1_000_000).to_string());
        assert_eq!(steps[0]["end_ns"], (T0 + 4_000_000).to_string());
        // Two samples at the same time count once: 2 ms of rollout, 1 ms of reward. The engine's span states no phase.
        assert_eq!(steps[0]["phases"], json!({ "decode": 0.0002, "reward": 0.001, "rollout": 0.002 }));

        let timeline = arrow(&rig.get("/api/v1/runs/r/timeline?step=7").await);
        assert_eq!(timeline.num_rows(), 7);
        let names: Vec<_> = timeline.schema().fields().iter().map(|f| f.name().clone()).collect();
        assert_eq!(
            names.join(","),
            "start,end,parent,flags,depth,lane,attempt,name,phase,sample,group,worker,trace,span_id"
        );
        let samples = texts(&timeline, "sample");
        let samples: Vec<&str> = samples.iter().flatten().map(String::as_str).collect();
        assert_eq!(samples.len(), 7, "the engine's span is there under the sample of its trace: {samples:?}");
        assert_eq!(samples.chunk_by(|a, b| a == b).count(), 2, "rows of a sample stand together: {samples:?}");
        let spans = texts(&timeline, "name");
        let at = spans.iter().position(|n| n.as_deref() == Some("decode")).unwrap();
        assert_eq!(samples[at], "2", "{spans:?}");
        assert_eq!(timeline.schema().metadata()["base_ns"], (T0 + 1_000_000).to_string());
        let starts = timeline.column_by_name("start").unwrap().as_primitive::<Float64Type>();
        assert_eq!(starts.values().iter().copied().fold(f64::MAX, f64::min), 0.0);

        // What came later is answered alone, as long as the tail has it; after a flush everything is.
        let version = rig.store.snapshot().version;
        let answer = rig.get(&format!("/api/v1/runs/r/timeline?step=7&since={version}")).await;
        assert_eq!((answer.header("rollscope-delta"), arrow(&answer).num_rows()), ("true", 0));
        let answer = rig.get("/api/v1/runs/r/timeline?step=7&since=1").await;
        assert_eq!((answer.header("rollscope-delta"), arrow(&answer).num_rows()), ("false", 7));

        let window = format!("/api/v1/runs/r/timeline?from_ns={}&to_ns={}", T0 + 3_500_000, T0 + 3_600_000);
        assert_eq!(arrow(&rig.get(&window).await).num_rows(), 2);
        assert_eq!(arrow(&rig.get("/api/v1/runs/r/timeline?step=99").await).num_rows(), 0);
        assert_eq!(arrow(&rig.get("/api/v1/runs/r/samples?step=7").await).num_rows(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_span_and_one_trace() {
    let rig = rig().await;
    a_small_run(&rig).await;
    let trace = "02".repeat(16);
    let batch = arrow(&rig.get(&format!("/api/v1/traces/{trace}")).await);
    assert_eq!(batch.num_rows(), 4);
    assert!(batch.column_by_name("start_ns").unwrap().as_primitive::<Int64Type>().values().is_sorted());
    let span = rig.get(&format!("/api/v1/spans/{trace}/{:016x}", 100)).await.json();
    assert_eq!(span["name"], "decode");
    assert_eq!(span["start_ns"], (T0 + 1_500_000).to_string());
    assert_eq!(span["events"][0]["time_ns"], (T0 + 1_600_000).to_string());
    assert_eq!(span["links"][0]["trace_id"], "09".repeat(16));
    assert_eq!(span["resource"]["service.name"], "tests");
    assert!(span["scope"].is_object() && span["end_attrs"].is_object());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_run_is_gone_and_may_come_back() {
    let rig = rig().await;
    rig.put(&spans("doomed", 1, 5)).await;
    rig.put(&spans("kept", 2, 5)).await;
    let url = rig.page("/api/v1/runs/doomed");
    assert_eq!(send("DELETE", &url, &[], vec![]).await.status, 204);
    assert_eq!(rig.count().await, 5);
    assert_eq!(rig.rows("select run_id from runs").await, [["kept"]]);
    rig.put(&spans("doomed", 3, 1)).await;
    assert_eq!(rig.rows("select run_id from runs order by 1").await, [["doomed"], ["kept"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_health_metrics_and_the_description() {
    let rig = rig().await;
    rig.put(&spans("r", 1, 5)).await;
    let tables = rig.get("/api/v1/tables").await.json();
    let spans = tables["tables"].as_array().unwrap().iter().find(|t| t["name"] == "spans").unwrap().clone();
    assert_eq!(spans["rows"], 5);
    assert!(spans["columns"].as_array().unwrap().iter().any(|c| c["name"] == "trace_id" && c["doc"] != ""));

    let health = rig.get("/api/v1/health").await.json();
    assert_eq!((&health["status"], &health["problems"]), (&json!("ok"), &json!([])), "{health}");
    assert_eq!(rig.get("/healthz").await.text(), "ok\n");
    assert_eq!(rig.get("/readyz").await.status, 200);
    assert_eq!(send("GET", &rig.otlp("/readyz"), &[], vec![]).await.status, 200);

    let metrics = rig.get("/metrics").await.text();
    for line in [
        "rollscope_ingest_accepted_total{protocol=\"http/protobuf\"} 5",
        "rollscope_store_rows_appended_total{table=\"spans\"} 5",
        "rollscope_store_tail_rows{table=\"spans\"} 5",
        "rollscope_ingest_inflight_bytes 0",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line}\n{metrics}");
    }
    assert!(metrics.contains("\nprocess_resident_memory_bytes "));

    let doc = rig.get("/api/v1/openapi.json").await.json();
    for path in ["/api/v1/sql", "/api/v1/runs/{run}/timeline", "/api/v1/spans/{trace}/{span}", "/api/v1/live"] {
        assert!(doc["paths"][path].is_object(), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn live_tells_of_changes_and_coalesces_them() {
    let rig = rig().await;
    let mut stream = tokio::net::TcpStream::connect(rig.at.page.unwrap()).await.unwrap();
    stream.write_all(b"GET /api/v1/live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let read = async |stream: &mut tokio::net::TcpStream, time: u64| {
        let mut text = String::new();
        let mut buffer = [0; 4096];
        let until = tokio::time::Instant::now() + Duration::from_millis(time);
        while let Ok(Ok(n)) = tokio::time::timeout_at(until, stream.read(&mut buffer)).await {
            text.push_str(&String::from_utf8_lossy(&buffer[..n]));
        }
        text
    };
    let first = read(&mut stream, 500).await;
    assert!(first.contains("text/event-stream") && first.contains("data: {\"version\":"), "{first}");
    for trace in 1..=30 {
        rig.put(&spans("r", trace, 1)).await;
    }
    let more = read(&mut stream, 1000).await;
    let events = more.matches("data: ").count();
    assert!((1..30).contains(&events), "{events} events for 31 changes: {more}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_ends_when_its_client_goes_or_when_told() {
    let rig = rig().await;
    let endless = "select count(*) from generate_series(1, 1000000) a cross join generate_series(1, 1000000) b where a.value + b.value < 0";
    let body = json!({ "query": endless }).to_string();
    let mut stream = tokio::net::TcpStream::connect(rig.at.page.unwrap()).await.unwrap();
    let head = format!(
        "POST /api/v1/sql HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let running = async || rig.get("/api/v1/queries").await.json()["queries"].as_array().unwrap().clone();
    let eventually = async |count: usize| {
        for _ in 0..100 {
            if running().await.len() == count {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        false
    };
    assert!(eventually(1).await, "the query runs");
    drop(stream);
    assert!(eventually(0).await, "the query ended with its client");

    let page = rig.page("/api/v1/sql");
    let waiting =
        tokio::spawn(
            async move { send("POST", &page, &[("content-type", "application/json")], body.into_bytes()).await },
        );
    assert!(eventually(1).await, "the second query runs");
    let id = running().await[0]["id"].as_u64().unwrap();
    assert_eq!(send("DELETE", &rig.page(&format!("/api/v1/queries/{id}")), &[], vec![]).await.status, 204);
    let answer = waiting.await.unwrap();
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(answer.text().contains("cancelled"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_served_safely() {
    let rig = rig().await;
    for path in ["/", "/runs/some-run/step/3"] {
        let page = rig.get(path).await;
        assert_eq!(page.status, 200);
        assert!(page.header("content-type").starts_with("text/html"), "{path}");
        assert!(page.header("content-security-policy").contains("script-src 'self'"));
        assert_eq!(page.header("x-content-type-options"), "nosniff");
        assert_eq!(page.header("access-control-allow-origin"), "");
    }
    assert_eq!(rig.get("/missing.js").await.status, 404);
    assert_eq!(rig.get("/../Cargo.toml").await.status, 404);
    assert_eq!(send("POST", &rig.page("/"), &[], vec![]).await.status, 405);
}
