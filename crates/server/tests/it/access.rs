//! Who gets in.

use rollscope_answers::Answers;
use rollscope_query::QueryLimits;
use rollscope_server::{Limits, Secret, Server, ServerConfig, StartError};
use rollscope_store::{Store, StoreOptions};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
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
    // A connection on which a request was answered keeps its place.
    let hold = async || {
        let mut stream = TcpStream::connect(rig.at.page.unwrap()).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
        stream
    };
    let held = (hold().await, hold().await);
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

#[tokio::test(flavor = "multi_thread")]
async fn one_peer_does_not_get_all_connections_of_any_port() {
    let limits = Limits { max_connections: 100, max_connections_per_peer: 3, ..Limits::default() };
    let rig = rig_with(ServerConfig { limits, ..config() }).await;
    let mut held = Vec::new();
    for n in 0..3 {
        let mut client = rig.grpc().await;
        client.export(spans("r", n, 1)).await.unwrap();
        held.push(client);
    }
    let refused = rig.get("/healthz").await;
    assert!(refused.text().contains("max_connections_per_peer"), "{}", refused.text());
    assert!(refused.header("content-security-policy").contains("default-src 'none'"));
    let refused = rig.grpc().await.export(spans("r", 9, 1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    held[2].export(spans("r", 10, 1)).await.unwrap();
}

/// What an HTTP/2 client sends first, and then nothing: the preface and empty settings.
const SILENT_HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

async fn silent(rig: &Rig) -> TcpStream {
    let mut stream = TcpStream::connect(rig.at.otlp_grpc.unwrap()).await.unwrap();
    stream.write_all(SILENT_HTTP2).await.unwrap();
    assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
    stream
}

/// The end of a stream, whatever comes before it.
async fn ends(stream: &mut TcpStream) {
    while stream.read(&mut [0; 1024]).await.is_ok_and(|n| n > 0) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_token_give_way_to_those_with_one() {
    let limits = Limits { max_connections: 20, header_timeout_s: 3600, ..Limits::default() };
    let rig = rig_with(ServerConfig { limits, ..guarded() }).await;
    let mut strangers = Vec::new();
    for _ in 0..60 {
        strangers.push(silent(&rig).await);
    }
    let token = [("authorization", "Bearer open sesame")];
    let answer = send("GET", &rig.page("/api/v1/runs"), &token, vec![]).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    // The oldest went first.
    ends(&mut strangers[0]).await;
    // Asking with a wrong token does not make a stranger known.
    for _ in 0..30 {
        let mut stream = TcpStream::connect(rig.at.page.unwrap()).await.unwrap();
        let ask = b"GET /api/v1/runs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer wrong\r\n\r\n";
        stream.write_all(ask).await.unwrap();
        assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
        strangers.push(stream);
    }
    assert_eq!(send("GET", &rig.page("/api/v1/runs"), &token, vec![]).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_are_closed() {
    let limits = Limits { header_timeout_s: 1, idle_timeout_s: 1, ..Limits::default() };
    let rig = rig_with(ServerConfig { limits, ..guarded() }).await;
    let mut stranger = silent(&rig).await;
    // A log-in that never comes to its end holds nothing either.
    let mut slow = TcpStream::connect(rig.at.page.unwrap()).await.unwrap();
    slow.write_all(b"POST /login HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\ntoken").await.unwrap();
    ends(&mut stranger).await;
    ends(&mut slow).await;
    // One with a token that does nothing more is closed, too.
    let mut idle = TcpStream::connect(rig.at.page.unwrap()).await.unwrap();
    let ask = b"GET /api/v1/runs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer second\r\n\r\n";
    idle.write_all(ask).await.unwrap();
    ends(&mut idle).await;
    // The next call makes a new connection.
    let mut request = tonic::Request::new(spans("r", 1, 1));
    request.metadata_mut().insert("authorization", MetadataValue::from_static("Bearer second"));
    let mut client = rig.grpc().await;
    client.export(request).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let mut request = tonic::Request::new(spans("r", 2, 1));
    request.metadata_mut().insert("authorization", MetadataValue::from_static("Bearer second"));
    client.export(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_what_its_scopes_say_and_the_file_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let (file, audit) = (dir.path().join("tokens"), dir.path().join("audit.log"));
    std::fs::write(&file, "ingest iii trainers\nread rrr\nadmin aaa alice\n").unwrap();
    let config = ServerConfig { token_file: Some(file.clone()), audit_log: Some(audit.clone()), ..config() };
    let rig = rig_with(config).await;
    let ask = async |method: &str, url: String, token: &str, body: Vec<u8>| {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/x-protobuf")];
        send(method, &url, &headers, body).await.status
    };
    let body = || prost::Message::encode_to_vec(&spans("r", 1, 1));
    for (token, sends, reads, deletes) in [("iii", 200, 403, 403), ("rrr", 403, 200, 403), ("aaa", 200, 200, 204)] {
        assert_eq!(ask("POST", rig.otlp("/v1/traces"), token, body()).await, sends, "{token}");
        assert_eq!(ask("GET", rig.page("/api/v1/runs"), token, vec![]).await, reads, "{token}");
        assert_eq!(ask("DELETE", rig.page("/api/v1/runs/r"), token, vec![]).await, deletes, "{token}");
    }
    let form = [("content-type", "application/x-www-form-urlencoded")];
    assert_eq!(send("POST", &rig.page("/login"), &form, b"token=iii".to_vec()).await.status, 401);
    let cookie = send("POST", &rig.page("/login"), &form, b"token=rrr".to_vec()).await;
    let cookie = cookie.header("set-cookie").split(';').next().unwrap().to_string();
    let with_cookie = async || send("GET", &rig.page("/api/v1/runs"), &[("cookie", &cookie)], vec![]).await.status;
    assert_eq!(with_cookie().await, 200);

    // A token that is gone takes its log-ins with it.
    std::fs::write(&file, "ingest iii trainers\nadmin bbb bob\n").unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    assert_eq!(ask("GET", rig.page("/api/v1/runs"), "aaa", vec![]).await, 401);
    assert_eq!(ask("GET", rig.page("/api/v1/runs"), "bbb", vec![]).await, 200);
    assert_eq!(with_cookie().await, 401);

    let lines: Vec<serde_json::Value> =
        std::fs::read_to_string(&audit).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let has = |who: &str, method: &str, path: &str, status: u16| {
        lines.iter().any(|l| l["who"] == who && l["method"] == method && l["path"] == path && l["status"] == status)
    };
    assert!(has("alice", "DELETE", "/api/v1/runs/r", 204), "{lines:?}");
    assert!(has("trainers", "DELETE", "/api/v1/runs/r", 403) && has("nobody", "GET", "/api/v1/runs", 401), "{lines:?}");
    assert!(has("nobody", "POST", "/login", 401) && lines.iter().all(|l| l["peer"] == "127.0.0.1"), "{lines:?}");
    assert!(!lines.iter().any(|l| ["iii", "rrr", "aaa", "bbb"].iter().any(|t| l.to_string().contains(t))));
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_requests_are_refused_and_those_with_a_token_are_counted_apart() {
    let limits = Limits { max_unauthorized_per_peer_s: 1, max_requests_per_peer_s: 0, ..Limits::default() };
    let rig = rig_with(ServerConfig { limits, ..guarded() }).await;
    let mut statuses = Vec::new();
    for _ in 0..40 {
        let answer = rig.get("/api/v1/runs").await;
        if answer.status == 429 {
            assert_eq!(answer.header("retry-after"), "1");
            assert!(answer.text().contains("max_unauthorized_per_peer_s"), "{}", answer.text());
        }
        statuses.push(answer.status);
    }
    assert!(statuses.starts_with(&[401; 10]) && statuses.contains(&429), "{statuses:?}");
    let refused = rig.grpc().await.export(spans("r", 1, 1)).await.unwrap_err();
    assert!(refused.message().contains("max_unauthorized_per_peer_s"), "{refused}");
    let token = [("authorization", "Bearer second")];
    assert_eq!(send("GET", &rig.page("/api/v1/runs"), &token, vec![]).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_has_a_strict_policy() {
    let rig = rig().await;
    for path in ["/", "/login", "/api/v1/runs", "/nothing.js", "/metrics"] {
        let answer = rig.get(path).await;
        let policy = answer.header("content-security-policy");
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert!(answer.header("permissions-policy").contains("camera=()"), "{path}");
    }
    let hash = rig.store.media_put(b"\x89PNG\r\n\x1a\n".to_vec()).await.unwrap();
    let media = rig.get(&format!("/api/v1/media/{hash}")).await;
    assert_eq!((media.status, media.header("content-security-policy")), (200, "sandbox; default-src 'none'"));
}
