//! What a well-behaved sender sees.

use std::io::Write;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::metrics::v1::{
    Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, metric, number_data_point,
};
use prost::Message;
use tonic::codec::CompressionEncoding;

use crate::harness::*;

#[tokio::test(flavor = "multi_thread")]
async fn grpc_takes_traces_plain_and_compressed() {
    let rig = rig().await;
    for (trace, encoding) in [(1, None), (2, Some(CompressionEncoding::Gzip)), (3, Some(CompressionEncoding::Zstd))] {
        let mut client = rig.grpc().await;
        if let Some(encoding) = encoding {
            client = client.send_compressed(encoding);
        }
        let answer = client.export(spans("run-a", trace, 50)).await.unwrap().into_inner();
        assert!(answer.partial_success.is_none(), "{answer:?}");
    }
    // Visible at once, and a repetition counts once.
    assert_eq!(rig.count().await, 150);
    rig.grpc().await.export(spans("run-a", 1, 50)).await.unwrap();
    assert_eq!(rig.count().await, 150);
    let health = rig.get("/api/v1/health").await.json();
    assert_eq!(health["ingest"]["accepted"], 150);
    assert_eq!(health["ingest"]["duplicates"], 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn http_takes_both_forms_and_every_encoding() {
    let rig = rig().await;
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    let body = |trace| spans("run-h", trace, 20).encode_to_vec();
    zlib.write_all(&body(4)).unwrap();
    let packed = [
        ("identity", body(1)),
        ("gzip", gzip(&body(2))),
        ("zstd", zstd::encode_all(&body(3)[..], 1).unwrap()),
        ("deflate", zlib.finish().unwrap()),
    ];
    for (encoding, body) in packed {
        let answer = post_proto(&rig.otlp("/v1/traces"), body, &[("content-encoding", encoding)]).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, "application/x-protobuf"), "{encoding}");
        assert!(answer.body.is_empty());
    }
    assert_eq!(rig.count().await, 80);

    // JSON as the wild writes it; also on the page's port.
    let json = r#"{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"web"}}]},
        "scopeSpans":[{"spans":[{"traceId":"0af7651916cd43dd8448eb211c80319c","spanId":"b7ad6b7169203331","name":"json",
        "kind":"SPAN_KIND_SERVER","startTimeUnixNano":"1700000000000000000","endTimeUnixNano":1700000000005000000}]}]}]}"#;
    let answer = post_json(&rig.page("/v1/traces"), json).await;
    assert_eq!((answer.status, answer.header("content-type"), answer.text().as_str()), (200, "application/json", "{}"));
    let rows = rig.rows("select service, kind, end_ns - start_ns from spans where name = 'json'").await;
    assert_eq!(rows, [["web".into(), "server".into(), serde_json::json!(5_000_000)]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_two_otlp_ports_speak_both_protocols() {
    let rig = rig().await;
    let swapped = format!("http://{}", rig.at.otlp_http.unwrap());
    let mut client =
        opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient::connect(swapped)
            .await
            .unwrap();
    client.export(spans("r", 1, 3)).await.unwrap();
    let url = format!("{}/v1/traces", rig.grpc_url());
    assert_eq!(post_proto(&url, spans("r", 2, 3).encode_to_vec(), &[]).await.status, 200);
    assert_eq!(rig.count().await, 6);
}

fn gauge(points: usize) -> ExportMetricsServiceRequest {
    let point = |n: usize| NumberDataPoint {
        time_unix_nano: T0 + n as u64,
        value: Some(number_data_point::Value::AsDouble(n as f64)),
        ..NumberDataPoint::default()
    };
    let data = metric::Data::Gauge(Gauge { data_points: (0..points).map(point).collect() });
    let metric = Metric { name: "queue".into(), data: Some(data), ..Metric::default() };
    let scope_metrics = vec![ScopeMetrics { metrics: vec![metric], ..ScopeMetrics::default() }];
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics { scope_metrics, ..ResourceMetrics::default() }],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_go_into_series() {
    let rig = rig().await;
    let mut client = MetricsServiceClient::connect(rig.grpc_url()).await.unwrap();
    client.export(gauge(10)).await.unwrap();
    // The first ten of these are there already.
    let answer = post_proto(&rig.otlp("/v1/metrics"), gauge(15).encode_to_vec(), &[]).await;
    assert_eq!(answer.status, 200);
    let rows = rig.rows("select name, count(*), max(value) from series group by name").await;
    assert_eq!(rows, [["queue".into(), 15.into(), serde_json::json!(14.0)]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_messages_and_many_senders_at_once() {
    let rig = rig().await;
    let mut senders = Vec::new();
    for trace in 1..=16u8 {
        let mut client = rig.grpc().await;
        senders.push(tokio::spawn(async move {
            for part in 0..4u64 {
                let all = (1..=500).map(|n| span(trace, part * 500 + n, "work")).collect();
                client.export(request("many", all)).await.unwrap();
            }
        }));
    }
    for sender in senders {
        sender.await.unwrap();
    }
    assert_eq!(rig.count().await, 16 * 4 * 500);
    // About 20 MB in one message, decoded off the reactor.
    let mut big: Vec<_> = (1..=2000).map(|n| span(99, n, "big")).collect();
    big.iter_mut().for_each(|s| s.attributes.push(text("blob", &"x".repeat(10_000))));
    let big = request("many", big);
    assert!(big.encoded_len() > 20_000_000);
    let mut client = rig.grpc().await.max_encoding_message_size(usize::MAX).send_compressed(CompressionEncoding::Gzip);
    client.export(big).await.unwrap();
    let rows = rig.rows("select count(*) from spans where name = 'big'").await;
    assert_eq!(rows[0][0], 2000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_entered_once_and_never_overwritten() {
    let rig = rig().await;
    rig.put(&spans("run-1", 1, 2)).await;
    rig.put(&spans("run-1", 2, 2)).await;
    let rows = rig.rows("select run_id, status, started_ns from runs").await;
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0][..2], ["run-1", "running"]);

    // Somebody writes the row on purpose; a server that has not seen the run yet leaves it alone.
    use rollscope_model::build::{NewRun, RunsBuilder};
    let mut own = RunsBuilder::default();
    own.push(&NewRun { run_id: "run-2", status: Some("finished"), started_ns: 5, updated_ns: 6, ..NewRun::default() });
    rig.store.append(rollscope_model::Table::Runs, own.finish().unwrap()).await.unwrap();
    rig.put(&spans("run-2", 3, 2)).await;
    let rows = rig.rows("select status, started_ns from runs where run_id = 'run-2'").await;
    assert_eq!(rows, [["finished".into(), serde_json::json!(5)]]);
}
