//! Sockets: binding with helpful errors, TLS, one accept loop per listener over HTTP/1 and HTTP/2, a bound on
//! connections, and an orderly end.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig as RustlsConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::StartError;
use crate::config::{Limits, ServerConfig, TlsConfig};
use crate::metrics::{Counters, add};
use crate::problem::Problem;

/// Bytes that a sender may send before it must wait, per stream and per connection. They are large, so that the store limits
/// a sender of big batches, not round trips.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;
const FRAME_BYTES: u32 = 1 << 20;

/// How many connections over the limit get a response at the same time. Others are closed without one.
const TOLD: usize = 64;

/// Binds `addr`. `flag` is how the operator set it.
pub async fn bind(addr: &str, flag: &'static str, config: &ServerConfig) -> Result<TcpListener, StartError> {
    let resolved: Vec<SocketAddr> = match tokio::net::lookup_host(addr).await {
        Ok(found) => found.collect(),
        Err(source) => return Err(StartError::Address { flag, addr: addr.into(), source }),
    };
    let open = resolved.iter().any(|a| !a.ip().is_loopback());
    if open && config.tokens.is_empty() && !config.insecure_no_auth {
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
    let mut tls = RustlsConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| StartError::Tls(e.to_string()))?
        .with_no_client_auth()
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
    /// One permit a connection.
    pub connections: Arc<Semaphore>,
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
            connections: Arc::new(Semaphore::new(limits.max_connections)),
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
        let stream = tokio::select! {
            () = shared.stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, most likely: others must end before the next can come.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        add(&shared.counters.connections_total, 1);
        let (router, permit) = match shared.connections.clone().try_acquire_owned() {
            Ok(permit) => (router.clone(), permit),
            Err(_) => {
                add(&shared.counters.connections_refused, 1);
                let Ok(permit) = shared.told.clone().try_acquire_owned() else { continue };
                (full(shared.limits.max_connections), permit)
            }
        };
        let _ = stream.set_nodelay(true);
        tokio::spawn(connection(stream, router, shared.clone(), permit));
    }
}

/// Answers everything with 503, which HTTP clients and gRPC clients both take as "come again".
fn full(limit: usize) -> Router {
    Router::new().fallback(move || async move {
        let problem = Problem::unavailable(
            format!("the limit max_connections ({limit}) is reached; try again later or raise the limit"),
            Duration::from_secs(1),
        );
        let mut response = problem.with_limit("max_connections").into_response();
        response.headers_mut().insert("connection", axum::http::HeaderValue::from_static("close"));
        response
    })
}

struct Open(Arc<Counters>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections_open.fetch_sub(1, Relaxed);
    }
}

async fn connection(stream: TcpStream, router: Router, shared: Shared, permit: OwnedSemaphorePermit) {
    add(&shared.counters.connections_open, 1);
    let _open = (Open(shared.counters.clone()), permit);
    let patience = Duration::from_secs(shared.limits.header_timeout_s);
    match shared.tls.clone() {
        None => talk(stream, router, &shared, patience).await,
        Some(tls) => match tokio::time::timeout(patience, tls.accept(stream)).await {
            Ok(Ok(stream)) => talk(stream, router, &shared, patience).await,
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake took longer than header_timeout_s"),
        },
    }
}

async fn talk<I>(io: I, router: Router, shared: &Shared, patience: Duration)
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let spoke = Arc::new(AtomicBool::new(false));
    let service = service_fn({
        let spoke = spoke.clone();
        move |request: Request<Incoming>| {
            spoke.store(true, Relaxed);
            router.clone().oneshot(request)
        }
    });
    let builder = shared.builder();
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(io), service));
    let mut silence = std::pin::pin!(tokio::time::sleep(patience));
    let mut waiting = true;
    let mut stopping = false;
    loop {
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
            () = silence.as_mut(), if waiting => {
                // An idle connection gives its place to another.
                waiting = false;
                if !spoke.load(Relaxed) {
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}
