//! Sockets: binding with helpful errors, TLS, one accept loop per listener over HTTP/1 and HTTP/2, limits on connections
//! ([`crate::connections`]), and an orderly end.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::IntoResponse;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig as RustlsConfig};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::StartError;
use crate::config::{Limits, ServerConfig, TlsConfig};
use crate::connections::{Connection, Connections, Full, peer_of};
use crate::ingest::grpc;
use crate::metrics::{Counters, add};
use crate::page::security_headers;
use crate::problem::Problem;

/// Bytes that a sender may send before it must wait, per stream and per connection. They are large, so that the store limits
/// a sender of big batches, not round trips.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;
const FRAME_BYTES: u32 = 1 << 20;

/// How many connections over the limit get a response at the same time. Others are closed without one.
const TOLD: usize = 64;
/// How long a connection that is closed for being idle gets to say goodbye.
const GOODBYE: Duration = Duration::from_secs(5);

/// Binds `addr`. `flag` is how the operator set it.
pub async fn bind(addr: &str, flag: &'static str, config: &ServerConfig) -> Result<TcpListener, StartError> {
    let resolved: Vec<SocketAddr> = match tokio::net::lookup_host(addr).await {
        Ok(found) => found.collect(),
        Err(source) => return Err(StartError::Address { flag, addr: addr.into(), source }),
    };
    let open = resolved.iter().any(|a| !a.ip().is_loopback());
    if open && !config.has_authentication() && !config.insecure_no_auth {
        return Err(StartError::NoToken { flag, addr: addr.into() });
    }
    TcpListener::bind(&resolved[..]).await.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => StartError::InUse { flag, addr: addr.into() },
        _ => StartError::Bind { flag, addr: addr.into(), source },
    })
}

pub fn tls(config: &TlsConfig) -> Result<TlsAcceptor, StartError> {
    let bad = |path: &std::path::Path, e: &dyn std::fmt::Display| StartError::Tls(format!("{}: {e}", path.display()));
    let certs = CertificateDer::pem_file_iter(&config.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| bad(&config.cert, &e))?;
    if certs.is_empty() {
        return Err(bad(&config.cert, &"has no certificate in PEM format"));
    }
    let key = PrivateKeyDer::from_pem_file(&config.key).map_err(|e| bad(&config.key, &e))?;
    let provider = Arc::new(ring::default_provider());
    let clients = match &config.client_ca {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(path) => {
            let mut authorities = RootCertStore::empty();
            for cert in CertificateDer::pem_file_iter(path).map_err(|e| bad(path, &e))? {
                cert.map_err(|e| bad(path, &e)).and_then(|cert| authorities.add(cert).map_err(|e| bad(path, &e)))?;
            }
            WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider.clone())
                .build()
                .map_err(|e| bad(path, &e))?
        }
    };
    let mut tls = RustlsConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| StartError::Tls(e.to_string()))?
        .with_client_cert_verifier(clients)
        .with_single_cert(certs, key)
        .map_err(|e| bad(&config.key, &e))?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(tls)))
}

/// What all listeners share.
#[derive(Clone)]
pub struct Shared {
    pub tls: Option<TlsAcceptor>,
    pub limits: Limits,
    pub counters: Arc<Counters>,
    connections: Arc<Connections>,
    told: Arc<Semaphore>,
    /// Stop accepting, finish running requests.
    pub stop: CancellationToken,
    /// Time is up.
    pub abort: CancellationToken,
    /// Every task holds one; when all are gone, the server has ended.
    _alive: mpsc::Sender<Infallible>,
}

impl Shared {
    /// The receiver gets nothing and closes when the last task has ended.
    pub fn new(
        tls: Option<TlsAcceptor>,
        limits: &Limits,
        counters: Arc<Counters>,
    ) -> (Self, mpsc::Receiver<Infallible>) {
        let (alive, ended) = mpsc::channel(1);
        let shared = Shared {
            tls,
            limits: limits.clone(),
            counters,
            connections: Connections::new(limits),
            told: Arc::new(Semaphore::new(TOLD)),
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
            _alive: alive,
        };
        (shared, ended)
    }

    fn builder(&self) -> Builder<TokioExecutor> {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(Duration::from_secs(self.limits.header_timeout_s))
            .keep_alive(true);
        builder
            .http2()
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME_BYTES)
            .max_header_list_size(self.limits.max_header_bytes)
            .max_concurrent_streams(self.limits.max_concurrent_streams)
            .keep_alive_interval(Duration::from_secs(self.limits.keep_alive_s.max(1)))
            .keep_alive_timeout(Duration::from_secs(20));
        builder
    }
}

/// Accepts connections until it is stopped.
pub async fn serve(listener: TcpListener, router: Router, shared: Shared) {
    loop {
        let (stream, from) = tokio::select! {
            () = shared.stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file descriptors, most likely: others must end before the next can come.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        add(&shared.counters.connections_total, 1);
        let _ = stream.set_nodelay(true);
        let peer = peer_of(from.ip());
        match shared.connections.admit(peer) {
            Ok(place) => {
                let (router, shared) = (router.clone(), shared.clone());
                tokio::spawn(async move { connection(stream, router, shared, &place.connection).await });
            }
            Err(full) => {
                add(&shared.counters.connections_refused, 1);
                let Ok(permit) = shared.told.clone().try_acquire_owned() else { continue };
                let shared = shared.clone();
                tokio::spawn(async move {
                    let _permit = permit;
                    connection(stream, refusing(full), shared, &Connection::new(peer)).await;
                });
            }
        }
    }
}

/// Answers everything with "come again". Some gRPC clients take a 503 for an error that stays.
fn refusing(Full { limit, value }: Full) -> Router {
    Router::new().fallback(move |request: Request| async move {
        let why = format!("the limit {limit} ({value}) is reached; try again later or raise the limit");
        if grpc::is_grpc(request.headers()) {
            return grpc::error(tonic::Status::unavailable(why));
        }
        let problem = Problem::unavailable(why, Duration::from_secs(1));
        let mut response = problem.with_limit(limit).into_response();
        response.headers_mut().insert("connection", axum::http::HeaderValue::from_static("close"));
        security_headers(response).await
    })
}

struct Open(Arc<Counters>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections_open.fetch_sub(1, Relaxed);
    }
}

async fn connection(stream: TcpStream, router: Router, shared: Shared, state: &Arc<Connection>) {
    add(&shared.counters.connections_open, 1);
    let _open = Open(shared.counters.clone());
    let patience = Duration::from_secs(shared.limits.header_timeout_s);
    let served = async {
        match shared.tls.clone() {
            None => talk(stream, router, &shared, state).await,
            Some(tls) => match tokio::time::timeout(patience, tls.accept(stream)).await {
                Ok(Ok(stream)) => talk(stream, router, &shared, state).await,
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                Err(_) => tracing::debug!("TLS handshake took longer than header_timeout_s"),
            },
        }
    };
    if state.gave_way.run_until_cancelled(served).await.is_none() {
        tracing::debug!(peer = %state.peer(), "a connection without an accepted request gave way to another");
    }
}

async fn talk<I>(io: I, router: Router, shared: &Shared, state: &Arc<Connection>)
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn({
        let state = state.clone();
        move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(state.clone());
            let running = state.begin();
            let answer = router.clone().oneshot(request);
            async move {
                let Ok(response) = answer.await;
                // The request has ended when its response is sent or dropped.
                let body = |body: Body| {
                    Body::new(body.map_frame(move |frame| {
                        let _ = &running;
                        frame
                    }))
                };
                Ok::<_, Infallible>(response.map(body))
            }
        }
    });
    let builder = shared.builder();
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(io), service));
    let mut stopping = false;
    let mut closing = false;
    loop {
        // While a request runs, look again later.
        let patience = state.patience(&shared.limits);
        let wait = if closing { GOODBYE } else { patience.unwrap_or(GOODBYE) };
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection ended");
                }
                return;
            }
            () = shared.abort.cancelled() => return,
            () = shared.stop.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            () = tokio::time::sleep(wait) => match state.patience(&shared.limits) {
                None => {}
                Some(_) if closing => return,
                // An idle connection gives its place to another.
                Some(left) if left.is_zero() => {
                    closing = true;
                    connection.as_mut().graceful_shutdown();
                }
                Some(_) => {}
            }
        }
    }
}
