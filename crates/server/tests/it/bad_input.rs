//! The list of issue 2, "Bad input", one by one. After each, the next good request is served.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use rollscope_server::Limits;
use tonic::codec::CompressionEncoding;

use crate::harness::*;

/// A good request, told apart by its trace.
async fn still_serves(rig: &Rig, trace: u8) {
    let before = rig.count().await;
    rig.put(&spans("good", trace, 1)).await;
    assert_eq!(rig.count().await, before + 1);
}

fn small() -> rollscope_server::ServerConfig {
    rollscope_server::ServerConfig { limits: Limits { max_message_bytes: 1 << 20, ..Limits::default() }, ..config() }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_message_are_refused_for_good() {
    let rig = rig().await;
    let good = spans("r", 1, 20).encode_to_vec();
    let url = rig.otlp("/v1/traces");
    type Broken<'a> = (&'a str, Vec<u8>, &'a [(&'a str, &'a str)]);
    let broken: [Broken; 6] = [
        ("truncated protobuf", good[..good.len() - 7].to_vec(), &[]),
        ("noise", (0..4096u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8 | 0x80).collect(), &[]),
        ("not gzip", good.clone(), &[("content-encoding", "gzip")]),
        ("truncated gzip", gzip(&good)[..40].to_vec(), &[("content-encoding", "gzip")]),
        ("not zstd", good.clone(), &[("content-encoding", "zstd")]),
        ("not zlib", good.clone(), &[("content-encoding", "deflate")]),
    ];
    for (n, (what, body, headers)) in broken.into_iter().enumerate() {
        let answer = post_proto(&url, body, headers).await;
        assert_eq!(answer.status, 400, "{what}: {}", answer.text());
        assert_eq!(answer.header("content-type"), "application/x-protobuf", "{what}");
        assert_eq!(answer.header("retry-after"), "", "{what}");
        // google.rpc.Status: field 1 is the code, 3 for INVALID_ARGUMENT.
        assert_eq!(answer.body[..2], [0x08, 3], "{what}");
        still_serves(&rig, 10 + n as u8).await;
    }
    for (n, json) in ["", "{", "[1,2", "\"text\"", "{\"resourceSpans\": 7}", "\u{1}"].into_iter().enumerate() {
        let answer = post_json(&url, json).await;
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (400, "application/json"),
            "{json}: {}",
            answer.text()
        );
        assert_eq!(answer.json()["code"], 3, "{json}");
        still_serves(&rig, 30 + n as u8).await;
    }
    let health = rig.get("/api/v1/health").await.json();
    assert_eq!(health["ingest"]["refused"], 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn nesting_and_invalid_utf8_do_no_harm() {
    let rig = rig().await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(post_json(&rig.otlp("/v1/traces"), &deep).await.status, 400);
    still_serves(&rig, 1).await;

    let mut value = AnyValue { value: Some(any_value::Value::IntValue(1)) };
    for _ in 0..200 {
        value = AnyValue { value: Some(any_value::Value::ArrayValue(ArrayValue { values: vec![value] })) };
    }
    let mut nested = span(2, 1, "nested");
    nested.attributes.push(opentelemetry_proto::tonic::common::v1::KeyValue {
        key: "deep".into(),
        value: Some(value),
        ..Default::default()
    });
    let answer = post_proto(&rig.otlp("/v1/traces"), request("r", vec![nested]).encode_to_vec(), &[]).await;
    assert!(answer.status == 400 || rejected(&answer) == 1, "{} {}", answer.status, answer.text());
    still_serves(&rig, 3).await;

    // A name that is no UTF-8: the text of the name is replaced by bytes of the same length.
    let mut body = request("r", vec![span(4, 1, "NAMENAME")]).encode_to_vec();
    let at = body.windows(8).position(|w| w == b"NAMENAME").unwrap();
    body[at..at + 8].copy_from_slice(&[0xff, 0xfe, 0xc0, 0x80, 0xed, 0xa0, 0x80, 0xff]);
    let answer = post_proto(&rig.otlp("/v1/traces"), body, &[]).await;
    assert!(answer.status == 400 || answer.status == 200, "{}", answer.status);
    still_serves(&rig, 5).await;
}

fn rejected(answer: &HttpAnswer) -> i64 {
    assert_eq!(answer.status, 200, "{}", answer.text());
    ExportTraceServiceResponse::decode(&answer.body[..]).unwrap().partial_success.map_or(0, |p| {
        assert!(!p.error_message.is_empty());
        p.rejected_spans
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_spans_are_rejected_and_their_neighbours_kept() {
    let rig = rig().await;
    let year = |y: u64| (y - 1970) * 31_557_600_000_000_000;
    type Change = Box<dyn Fn(&mut Span)>;
    let cases: [(&str, Change); 6] = [
        ("no trace id", Box::new(|s| s.trace_id.clear())),
        ("no span id", Box::new(|s| s.span_id.clear())),
        ("zero trace id", Box::new(|s| s.trace_id = vec![0; 16])),
        ("year 1970", Box::new(|s| (s.start_time_unix_nano, s.end_time_unix_nano) = (1, 2))),
        ("year 2500", Box::new(move |s| (s.start_time_unix_nano, s.end_time_unix_nano) = (year(2500), year(2500) + 1))),
        ("a million attributes", Box::new(|s| s.attributes = (0..1_000_000).map(|n| int("k", n)).collect())),
    ];
    for (n, (what, spoil)) in cases.iter().enumerate() {
        let trace = 50 + n as u8;
        let mut bad = span(trace, 2, "bad");
        spoil(&mut bad);
        let before = rig.count().await;
        let message = request("r", vec![span(trace, 1, "good"), bad, span(trace, 3, "good")]);
        let answer = post_proto(&rig.otlp("/v1/traces"), message.encode_to_vec(), &[]).await;
        assert_eq!(rejected(&answer), 1, "{what}");
        assert_eq!(rig.count().await, before + 2, "{what}");
        still_serves(&rig, 100 + n as u8).await;
    }
    // The same over gRPC.
    let mut bad = span(90, 2, "bad");
    bad.trace_id.clear();
    let answer = rig.grpc().await.export(request("r", vec![span(90, 1, "good"), bad])).await.unwrap().into_inner();
    assert_eq!(answer.partial_success.unwrap().rejected_spans, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_before_the_start_does_no_harm() {
    let rig = rig().await;
    let mut odd = span(1, 1, "odd");
    odd.end_time_unix_nano = odd.start_time_unix_nano - 5;
    let answer = post_proto(&rig.otlp("/v1/traces"), request("r", vec![odd]).encode_to_vec(), &[]).await;
    let kept = 1 - rejected(&answer);
    assert_eq!(rig.count().await, kept);
    let negative = rig.rows("select count(*) from spans where end_ns < start_ns").await;
    assert_eq!(negative[0][0], 0);
    still_serves(&rig, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn types_and_encodings_that_we_do_not_read() {
    let rig = rig().await;
    let body = spans("r", 1, 1).encode_to_vec();
    let url = rig.otlp("/v1/traces");
    for kind in ["text/plain", "application/xml", "application/x-www-form-urlencoded", ""] {
        let answer = send("POST", &url, &[("content-type", kind)], body.clone()).await;
        assert_eq!((answer.status, answer.header("content-type")), (415, "application/problem+json"), "{kind}");
        assert!(answer.json()["detail"].as_str().unwrap().contains("application/x-protobuf"));
    }
    let answer = post_proto(&url, body.clone(), &[("content-encoding", "br")]).await;
    assert_eq!(answer.status, 415);
    assert_eq!(send("GET", &url, &[], vec![]).await.status, 405);
    assert_eq!(send("PUT", &url, &[("content-type", "application/json")], vec![]).await.status, 405);
    assert_eq!(post_proto(&rig.otlp("/v1/trace"), body, &[]).await.status, 404);
    still_serves(&rig, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_over_the_limit_and_bombs() {
    let rig = rig_with(small()).await;
    let url = rig.otlp("/v1/traces");
    let large = request(
        "r",
        vec![{
            let mut s = span(1, 1, "large");
            s.attributes.push(text("blob", &"x".repeat(2 << 20)));
            s
        }],
    );
    let answer = post_proto(&url, large.encode_to_vec(), &[]).await;
    assert_eq!(answer.status, 413);
    assert!(answer.text().contains("max_message_bytes"), "{}", answer.text());
    assert_eq!(answer.header("retry-after"), "");
    still_serves(&rig, 2).await;

    // 64 MB of zeros in 64 kB.
    let zeros = vec![0; 64 << 20];
    for (encoding, bomb) in [("gzip", gzip(&zeros)), ("zstd", zstd::encode_all(&zeros[..], 3).unwrap())] {
        assert!(bomb.len() < 1 << 20);
        let answer = post_proto(&url, bomb, &[("content-encoding", encoding)]).await;
        assert_eq!(answer.status, 413, "{encoding}");
    }
    still_serves(&rig, 3).await;

    // gRPC: not retryable, so no RetryInfo, and not OUT_OF_RANGE.
    for encoding in [None, Some(CompressionEncoding::Gzip), Some(CompressionEncoding::Zstd)] {
        let mut client = rig.grpc().await;
        if let Some(encoding) = encoding {
            client = client.send_compressed(encoding);
        }
        let status = client.export(large.clone()).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{encoding:?} {status:?}");
        assert!(status.details().is_empty());
        assert!(status.message().contains("max_message_bytes"), "{}", status.message());
        // The same connection goes on.
        client.export(spans("good", 4, 1)).await.unwrap();
    }
    let health = rig.get("/api/v1/health").await.json();
    assert_eq!(health["ingest"]["refused"], 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_frames_that_lie() {
    let rig = rig().await;
    let url = format!("{}/opentelemetry.proto.collector.trace.v1.TraceService/Export", rig.grpc_url());
    let headers = [("content-type", "application/grpc"), ("te", "trailers")];
    let frames: [&[u8]; 5] =
        [b"", b"\0\0\0", b"\0\0\0\0\x09abc", b"\x01\0\0\0\x03abc", b"\0\0\0\0\x04\xff\xff\xff\xff"];
    for frame in frames {
        let answer = send("POST", &url, &headers, frame.to_vec()).await;
        assert_eq!((answer.status, answer.header("grpc-status")), (200, "3"), "{frame:?} {:?}", answer.headers);
    }
    let unknown = format!("{}/some.Service/Call", rig.grpc_url());
    assert_eq!(send("POST", &unknown, &headers, vec![]).await.header("grpc-status"), "12");
    still_serves(&rig, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_much_at_once_is_told_to_come_again() {
    let limits = Limits { max_inflight_bytes: 100_000, ..Limits::default() };
    let rig = rig_with(rollscope_server::ServerConfig { limits, ..config() }).await;
    let body = spans("r", 1, 5000).encode_to_vec();
    assert!(body.len() > 100_000);
    let answer = post_proto(&rig.otlp("/v1/traces"), body, &[]).await;
    assert_eq!((answer.status, answer.header("retry-after")), (429, "1"));
    let status = rig.grpc().await.export(spans("r", 1, 5000)).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    assert!(!status.details().is_empty(), "RetryInfo");
    still_serves(&rig, 2).await;
}
