//! Shutdown, TLS, and clients that take their time.

use std::process::Command;
use std::time::{Duration, Instant};

use prost::Message;
use rollscope_server::{Limits, ServerConfig, TlsConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::*;

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_finishes_what_is_under_way_and_refuses_the_rest() {
    let rig = rig().await;
    let body = spans("r", 1, 10).encode_to_vec();
    let page = rig.at.otlp_http.unwrap();
    let mut slow = TcpStream::connect(page).await.unwrap();
    let head = format!(
        "POST /v1/traces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-protobuf\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    slow.write_all(&body[..10]).await.unwrap();
    // A page that listens for changes must not hold up the end.
    let mut live = TcpStream::connect(rig.at.page.unwrap()).await.unwrap();
    live.write_all(b"GET /api/v1/live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;

    let started = Instant::now();
    let (server, store) = (rig.server, rig.store);
    let ending = tokio::spawn(server.shutdown());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(TcpStream::connect(page).await.is_err(), "nobody accepts");
    slow.write_all(&body[10..]).await.unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    ending.await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(store.stats().rows_appended["spans"], 10);
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_does_not_wait_for_ever() {
    let limits = Limits { shutdown_s: 1, ..Limits::default() };
    let rig = rig_with(ServerConfig { limits, ..config() }).await;
    let mut stuck = TcpStream::connect(rig.at.otlp_http.unwrap()).await.unwrap();
    let head = "POST /v1/traces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-protobuf\r\ncontent-length: 99\r\n\r\n";
    stuck.write_all(head.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let started = Instant::now();
    rig.server.shutdown().await;
    assert!((900..4000).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_falls_silent_is_given_up() {
    let limits = Limits { body_timeout_s: 1, header_timeout_s: 1, ..Limits::default() };
    let rig = rig_with(ServerConfig { limits, ..config() }).await;
    let mut silent = TcpStream::connect(rig.at.otlp_http.unwrap()).await.unwrap();
    let head =
        "POST /v1/traces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{";
    silent.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    tokio::time::timeout(Duration::from_secs(5), silent.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");

    for first in [&b""[..], b"GET / HT", b"PRI * HT"] {
        let mut dumb = TcpStream::connect(rig.at.otlp_http.unwrap()).await.unwrap();
        dumb.write_all(first).await.unwrap();
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(10), dumb.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "{:?} is closed", String::from_utf8_lossy(first));
    }
    rig.put(&spans("r", 1, 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_by_certificate_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .expect("openssl makes the certificate");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let tls = Some(TlsConfig { cert: cert.clone(), key: key.clone(), client_ca: None });
    let rig = rig_with(ServerConfig { tls, ..config() }).await;
    let url = format!("https://localhost:{}/healthz", rig.at.page.unwrap().port());
    let text = tokio::task::spawn_blocking(move || {
        let root = ureq::tls::Certificate::from_pem(&std::fs::read(cert).unwrap()).unwrap();
        let tls = ureq::tls::TlsConfig::builder().root_certs(ureq::tls::RootCerts::new_with_certs(&[root])).build();
        let agent: ureq::Agent = ureq::Agent::config_builder().tls_config(tls).build().into();
        agent.get(&url).call().unwrap().body_mut().read_to_string().unwrap()
    });
    assert_eq!(text.await.unwrap(), "ok\n");

    let wrong = TlsConfig { cert: key.clone(), key, client_ca: None };
    let engine = rollscope_answers::Answers::new(
        std::sync::Arc::new(rig.store.clone()),
        rollscope_query::QueryLimits::default(),
    )
    .unwrap();
    let config = ServerConfig { tls: Some(wrong), ..config() };
    let error = rollscope_server::Server::start(&config, rig.store.clone(), engine).await.err().unwrap().to_string();
    assert!(error.contains("key.pem") && error.contains("PEM"), "{error}");
}
