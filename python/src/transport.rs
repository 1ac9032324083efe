//! One connection to the server: OTLP over gRPC or over HTTP, with or without TLS. Made when needed, kept while it works.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, TE, USER_AGENT};
use hyper::{Method, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rollscope_names::attributes::event;
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::config::{Endpoint, Protocol};
use crate::core::Signal;

/// An answer larger than this is not read.
const MAX_ANSWER_BYTES: usize = 1 << 20;
const LEVEL_HEADER: HeaderName = HeaderName::from_static(event::LEVEL_HEADER);
const STACKS_HEADER: HeaderName = HeaderName::from_static(event::STACKS_HEADER);
/// Requests for stacks that are looked at.
const MAX_STACKS_ASKED: usize = 16;

/// What became of a request.
#[derive(Debug)]
pub enum Outcome {
    /// Stored, except for what was rejected.
    Taken { rejected: u64, message: String, told: Told },
    /// Not now: the server is away, busy, or lets nobody in. `suspect`: what is before the server says so, or the server does not say when
    /// to come again. If that goes on while others pass, the request is to blame.
    Later { why: String, after: Option<Duration>, suspect: bool },
    /// The server had the request and did not cope with it. Whether the request is to blame shows in what becomes of others.
    Failed { why: String },
    /// Never.
    Refused { why: String },
}

/// What the server says beside the answer, to all that send to it.
#[derive(Debug, Default)]
pub struct Told {
    pub level: Option<u8>,
    /// Requests for stacks: see [`crate::stacks::asked`].
    pub stacks: Vec<String>,
}

impl Told {
    fn in_headers(headers: &HeaderMap) -> Told {
        let text = |value: &HeaderValue| value.to_str().map(str::to_string).ok();
        Told {
            level: headers.get(LEVEL_HEADER).and_then(|value| text(value)?.parse().ok()),
            stacks: headers.get_all(STACKS_HEADER).iter().take(MAX_STACKS_ASKED).filter_map(text).collect(),
        }
    }
}

enum Connection {
    Two(http2::SendRequest<Full<Bytes>>),
    One(http1::SendRequest<Full<Bytes>>),
}

pub struct Link {
    endpoint: Endpoint,
    connection: Option<Connection>,
    tls: Option<Arc<ClientConfig>>,
}

impl Link {
    pub fn new(endpoint: Endpoint) -> Link {
        Link { endpoint, connection: None, tls: None }
    }

    /// Sends one message, which has room for a gRPC frame in its first five bytes.
    pub async fn send(&mut self, signal: Signal, framed: Bytes, timeout: Duration) -> Outcome {
        let mut reached = false;
        let why = match tokio::time::timeout(timeout, self.exchange(signal, framed, &mut reached)).await {
            Ok(Ok(outcome)) => return outcome,
            Ok(Err(why)) => why,
            Err(_) => format!("no answer within {timeout:?}"),
        };
        self.connection = None;
        if reached { Outcome::Failed { why } } else { Outcome::Later { why, after: None, suspect: false } }
    }

    /// `reached`: there is a connection, and the request is on its way.
    async fn exchange(&mut self, signal: Signal, framed: Bytes, reached: &mut bool) -> Result<Outcome, String> {
        if self.connection.as_ref().is_none_or(|c| match c {
            Connection::Two(two) => two.is_closed(),
            Connection::One(one) => one.is_closed(),
        }) {
            self.connection = Some(self.connect().await?);
        }
        let request = self.request(signal, framed)?;
        let sent = match self.connection.as_mut() {
            Some(Connection::Two(two)) => {
                two.ready().await.map_err(|e| said(&e))?;
                *reached = true;
                two.send_request(request).await
            }
            Some(Connection::One(one)) => {
                one.ready().await.map_err(|e| said(&e))?;
                *reached = true;
                one.send_request(request).await
            }
            None => return Err("no connection".into()),
        };
        let (head, body) = sent.map_err(|e| said(&e))?.into_parts();
        let body = http_body_util::Limited::new(body, MAX_ANSWER_BYTES).collect().await.map_err(|e| e.to_string())?;
        let trailers = body.trailers().cloned();
        let bytes = body.to_bytes();
        let told = Told::in_headers(&head.headers);
        Ok(match self.endpoint.protocol {
            Protocol::Grpc => {
                if head.status != 200 {
                    http_outcome(head.status.as_u16(), &head.headers, &bytes, told)
                } else {
                    let status = trailers.as_ref().filter(|t| t.contains_key("grpc-status")).unwrap_or(&head.headers);
                    grpc_outcome(status, bytes.get(5..).unwrap_or_default(), told)
                }
            }
            Protocol::Http => http_outcome(head.status.as_u16(), &head.headers, &bytes, told),
        })
    }

    fn request(&self, signal: Signal, framed: Bytes) -> Result<Request<Full<Bytes>>, String> {
        let e = &self.endpoint;
        let (path, body, kind) = match (e.protocol, signal) {
            (Protocol::Grpc, Signal::Spans) => {
                ("/opentelemetry.proto.collector.trace.v1.TraceService/Export", framed, "application/grpc")
            }
            (Protocol::Grpc, Signal::Records) => {
                ("/opentelemetry.proto.collector.logs.v1.LogsService/Export", framed, "application/grpc")
            }
            (Protocol::Http, Signal::Spans) => ("/v1/traces", framed.slice(5..), "application/x-protobuf"),
            (Protocol::Http, Signal::Records) => ("/v1/logs", framed.slice(5..), "application/x-protobuf"),
        };
        let scheme = if e.tls { "https" } else { "http" };
        let host = if e.host.contains(':') { format!("[{}]", e.host) } else { e.host.clone() };
        let mut builder = Request::builder().method(Method::POST);
        builder = match e.protocol {
            Protocol::Grpc => builder
                .uri(format!("{scheme}://{host}:{}{path}", e.port))
                .version(hyper::Version::HTTP_2)
                .header(TE, "trailers"),
            Protocol::Http => builder.uri(format!("{}{path}", e.prefix)).header(HOST, format!("{host}:{}", e.port)),
        };
        builder = builder
            .header(CONTENT_TYPE, kind)
            .header(USER_AGENT, concat!("rollscope-python/", env!("CARGO_PKG_VERSION")));
        for (name, value) in &e.headers {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name.as_str()), HeaderValue::try_from(value.as_str()))
            {
                builder = builder.header(name, value);
            }
        }
        builder.body(Full::new(body)).map_err(|e| e.to_string())
    }

    async fn connect(&mut self) -> Result<Connection, String> {
        let e = &self.endpoint;
        let address = format!("{}:{}", e.host, e.port);
        let stream = TcpStream::connect((e.host.as_str(), e.port))
            .await
            .map_err(|error| format!("cannot reach {address}: {error}"))?;
        let _ = stream.set_nodelay(true);
        if !e.tls {
            return handshake(e.protocol, stream).await;
        }
        let config = match &self.tls {
            Some(config) => config.clone(),
            None => {
                let config = tls(e)?;
                self.tls = Some(config.clone());
                config
            }
        };
        let name = ServerName::try_from(self.endpoint.host.clone()).map_err(|e| e.to_string())?;
        let stream = tokio_rustls::TlsConnector::from(config)
            .connect(name, stream)
            .await
            .map_err(|error| format!("TLS with {address}: {error}"))?;
        handshake(self.endpoint.protocol, stream).await
    }
}

async fn handshake<S>(protocol: Protocol, stream: S) -> Result<Connection, String>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(stream);
    match protocol {
        Protocol::Grpc => {
            let (sender, driver) = http2::handshake(TokioExecutor::new(), io).await.map_err(|e| said(&e))?;
            tokio::spawn(async move {
                let _ = driver.await;
            });
            Ok(Connection::Two(sender))
        }
        Protocol::Http => {
            let (sender, driver) = http1::handshake(io).await.map_err(|e| said(&e))?;
            tokio::spawn(async move {
                let _ = driver.await;
            });
            Ok(Connection::One(sender))
        }
    }
}

/// The certificates to trust: the given file's, else those of the system.
fn tls(endpoint: &Endpoint) -> Result<Arc<ClientConfig>, String> {
    const SYSTEM: [&str; 4] = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
    ];
    let given = endpoint.ca_file.clone().or_else(|| std::env::var_os("SSL_CERT_FILE").map(Into::into));
    let file = given.or_else(|| SYSTEM.iter().map(std::path::PathBuf::from).find(|p| p.exists()));
    let file = file.ok_or("TLS: no certificates to trust were found; set OTEL_EXPORTER_OTLP_CERTIFICATE")?;
    let pem = std::fs::read(&file).map_err(|e| format!("TLS: {}: {e}", file.display()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem).flatten() {
        let _ = roots.add(certificate);
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = match endpoint.protocol {
        Protocol::Grpc => vec![b"h2".to_vec()],
        Protocol::Http => vec![b"http/1.1".to_vec()],
    };
    Ok(Arc::new(config))
}

fn said(error: &hyper::Error) -> String {
    use std::error::Error as _;
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn grpc_outcome(status: &HeaderMap, message: &[u8], told: Told) -> Outcome {
    let code: i32 = status.get("grpc-status").and_then(|v| v.to_str().ok()?.parse().ok()).unwrap_or(2);
    if code == 0 {
        let (rejected, message) = partial_success(message);
        return Outcome::Taken { rejected, message, told };
    }
    let text = status.get("grpc-message").and_then(|v| v.to_str().ok()).unwrap_or("no message");
    let why = format!("gRPC status {code}: {text}");
    match code {
        // Malformed, unknown, too large without a delay, not implemented: it would be the same next time.
        3 | 5 | 6 | 9 | 12 => Outcome::Refused { why },
        8 if !status.contains_key("grpc-status-details-bin") => Outcome::Refused { why },
        // Not allowed, too busy, not known: the same for every request.
        7 | 8 | 16 => Outcome::Later { why, after: None, suspect: false },
        // Cancelled, too slow, aborted, unavailable: mostly the same for every request.
        1 | 4 | 10 | 14 => {
            Outcome::Later { why, after: None, suspect: !status.contains_key("grpc-status-details-bin") }
        }
        _ => Outcome::Failed { why },
    }
}

fn http_outcome(status: u16, headers: &HeaderMap, body: &[u8], told: Told) -> Outcome {
    if (200..300).contains(&status) {
        let kind = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        // A login page or a proxy says yes to everything. What it was given is not stored.
        if !body.is_empty() && kind.starts_with("text/") {
            return Outcome::Later {
                why: format!("not an OTLP server: HTTP status {status} with {kind}"),
                after: None,
                suspect: false,
            };
        }
        let (rejected, message) = partial_success(body);
        return Outcome::Taken { rejected, message, told };
    }
    let why = format!("HTTP status {status}");
    match status {
        400 | 404 | 405 | 411 | 413 | 415 | 431 => Outcome::Refused { why },
        500.. if !matches!(status, 502..=504) => Outcome::Failed { why },
        402..500 if !matches!(status, 403 | 407 | 408 | 425 | 429) => Outcome::Failed { why },
        _ => {
            let after = headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse().ok()).map(Duration::from_secs);
            Outcome::Later { why, after, suspect: matches!(status, 502..=504) && after.is_none() }
        }
    }
}

/// `Export*ServiceResponse { partial_success { rejected, error_message } }`.
fn partial_success(message: &[u8]) -> (u64, String) {
    let mut rejected = 0;
    let mut text = String::new();
    for (field, value) in fields(message) {
        if let (1, Value::Bytes(partial)) = (field, value) {
            for (field, value) in fields(partial) {
                match (field, value) {
                    (1, Value::Number(n)) => rejected = n,
                    (2, Value::Bytes(bytes)) => text = String::from_utf8_lossy(bytes).into_owned(),
                    _ => {}
                }
            }
        }
    }
    (rejected, text)
}

pub enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, as far as it can be followed.
pub fn fields(mut message: &[u8]) -> Vec<(u64, Value<'_>)> {
    fn varint(bytes: &mut &[u8]) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (first, rest) = bytes.split_first()?;
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
    let mut found = Vec::new();
    while let Some(tag) = varint(&mut message) {
        match tag & 7 {
            0 => match varint(&mut message) {
                Some(n) => found.push((tag >> 3, Value::Number(n))),
                None => break,
            },
            2 => match varint(&mut message) {
                Some(n) if n as usize <= message.len() => {
                    let (bytes, rest) = message.split_at(n as usize);
                    message = rest;
                    found.push((tag >> 3, Value::Bytes(bytes)));
                }
                _ => break,
            },
            1 => match message.split_first_chunk() {
                Some((number, rest)) => {
                    message = rest;
                    found.push((tag >> 3, Value::Number(u64::from_le_bytes(*number))));
                }
                None => break,
            },
            5 => match message.split_first_chunk() {
                Some((number, rest)) => {
                    message = rest;
                    found.push((tag >> 3, Value::Number(u64::from(u32::from_le_bytes(*number)))));
                }
                None => break,
            },
            _ => break,
        }
    }
    found
}
