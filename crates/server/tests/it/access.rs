//! Who gets in.

use rollscope_answers::Answers;
use rollscope_query::QueryLimits;
use rollscope_server::{Limits, Secret, Server, ServerConfig, StartError};
use rollscope_store::{Store, StoreOptions};
use std::sync::Arc;
use tonic::Code;
use tonic::metadata::MetadataValue;

use crate::harness::*;

fn guarded() -> ServerConfig {
    ServerConfig { tokens: vec![Secret::new("open sesame"), Secret::new("second")], ..config() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_every_port() {
    let rig = rig_with(guarded()).await;
    let body = || prost::Message::encode_to_vec(&spans("r", 1, 1));
    let urls = [
        (rig.page("/api/v1/runs"), "GET"),
        (rig.page("/metrics"), "GET"),
        (rig.page("/"), "GET"),
        (rig.page("/v1/traces"), "POST"),
        (rig.otlp("/v1/traces"), "POST"),
    ];
    let proto = ("content-type", "application/x-protobuf");
    for (url, method) in &urls {
        for (authorization, good) in [
            (None, false),
            (Some("Bearer wrong"), false),
            (Some("Bearer open sesam"), false),
            (Some("Basic open sesame"), false),
            (Some("Bearer open sesame"), true),
            (Some("bearer second"), true),
        ] {
            let mut headers = vec![proto];
            headers.extend(authorization.map(|a| ("authorization", a)));
            let answer = send(method, url, &headers, if *method == "POST" { body() } else { vec![] }).await;
            assert_eq!(answer.status, if good { 200 } else { 401 }, "{method} {url} {authorization:?}");
            if !good {
                assert!(answer.header("www-authenticate").starts_with("Bearer"));
                assert_eq!(answer.header("content-type"), "application/problem+json");
            }
        }
    }
    for open in ["/healthz", "/readyz", "/login"] {
        assert_eq!(rig.get(open).await.status, 200, "{open}");
    }
    let refused = rig.grpc().await.export(spans("r", 2, 1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    for (token, good) in [("Bearer wrong", false), ("Bearer open sesame", true)] {
        let mut request = tonic::Request::new(spans("r", 2, 1));
        request.metadata_mut().insert("authorization", MetadataValue::try_from(token).unwrap());
        assert_eq!(rig.grpc().await.export(request).await.is_ok(), good, "{token}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_logs_in_with_a_cookie() {
    let rig = rig_with(guarded()).await;
    let page = send("GET", &rig.page("/"), &[("accept", "text/html")], vec![]).await;
    assert_eq!(page.status, 401);
    assert!(page.text().contains("<form method=\"post\" action=\"/login\">"));
    assert!(page.header("content-security-policy").contains("frame-ancestors 'none'"));
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let wrong = send("POST", &rig.page("/login"), &form, b"token=nonsense".to_vec()).await;
    assert_eq!((wrong.status, wrong.header("set-cookie")), (401, ""));
    let right = send("POST", &rig.page("/login"), &form, b"token=open+sesame".to_vec()).await;
    assert_eq!((right.status, right.header("location")), (303, "/"));
    let cookie = right.header("set-cookie");
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && !cookie.contains("sesame"),
        "{cookie}"
    );
    let cookie = cookie.split(';').next().unwrap();
    let runs = rig.page("/api/v1/runs");
    assert_eq!(send("GET", &runs, &[("cookie", cookie)], vec![]).await.status, 200);
    assert_eq!(send("GET", &runs, &[("cookie", "rollscope_session=guess")], vec![]).await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_origins_of_others_are_turned_away() {
    let rig = rig().await;
    let runs = rig.page("/api/v1/runs");
    for (host, status) in [("localhost:7200", 200), ("127.0.0.1", 200), ("[::1]:99", 200), ("evil.example", 403)] {
        assert_eq!(send("GET", &runs, &[("host", host)], vec![]).await.status, status, "{host}");
    }
    let sql = rig.page("/api/v1/sql");
    let body = br#"{"query":"select 1"}"#.to_vec();
    for (origin, status) in [("http://localhost:5173", 200), ("https://evil.example", 403), ("null", 403)] {
        let headers = [("content-type", "application/json"), ("origin", origin)];
        assert_eq!(send("POST", &sql, &headers, body.clone()).await.status, status, "{origin}");
    }
    let preflight = [("origin", "https://evil.example"), ("access-control-request-method", "POST")];
    let answer = send("OPTIONS", &sql, &preflight, vec![]).await;
    assert_eq!(answer.header("access-control-allow-origin"), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_safe_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::at(dir.path())).await.unwrap();
    let engine = Answers::new(Arc::new(store.clone()), QueryLimits::default()).unwrap();
    let start = async |config: ServerConfig| Server::start(&config, store.clone(), engine.clone()).await;
    let everywhere = || ServerConfig { otlp_grpc: "0.0.0.0:0".into(), ..config() };

    let error = start(everywhere()).await.err().unwrap();
    assert!(matches!(error, StartError::NoToken { .. }));
    let text = error.to_string();
    assert!(text.contains("0.0.0.0:0") && text.contains("--token") && text.contains("--insecure-no-auth"), "{text}");
    start(ServerConfig { insecure_no_auth: true, ..everywhere() }).await.unwrap().shutdown().await;
    start(ServerConfig { tokens: vec![Secret::new("t")], ..everywhere() }).await.unwrap().shutdown().await;
    let error = start(ServerConfig { tokens: vec![Secret::new(" ")], ..everywhere() }).await.err().unwrap();
    assert!(matches!(error, StartError::EmptyToken));

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let error = start(ServerConfig { otlp_http: addr.clone(), ..config() }).await.err().unwrap().to_string();
    assert!(error.contains(&addr) && error.contains("in use") && error.contains("--otlp-http"), "{error}");
    let error = start(ServerConfig { listen: "nonsense".into(), ..config() }).await.err().unwrap().to_string();
    assert!(error.contains("--listen nonsense"), "{error}");
    let none = ServerConfig { listen: "".into(), otlp_grpc: "".into(), otlp_http: "".into(), ..config() };
    assert!(matches!(start(none).await.err().unwrap(), StartError::Nothing));
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_bounded_and_the_refusal_says_so() {
    let limits = Limits { max_connections: 2, ..Limits::default() };
    let rig = rig_with(ServerConfig { limits, ..config() }).await;
    let held = (
        tokio::net::TcpStream::connect(rig.at.page.unwrap()).await.unwrap(),
        tokio::net::TcpStream::connect(rig.at.page.unwrap()).await.unwrap(),
    );
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let refused = rig.get("/healthz").await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, "1"));
    assert!(refused.text().contains("max_connections"));
    drop(held);
    for _ in 0..50 {
        if rig.get("/healthz").await.status == 200 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the places were not given back");
}
