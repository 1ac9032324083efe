//! The only crate that knows HTTP and gRPC: wire, authentication and routing. What the product does is in `rollscope_app`.
//!
//! [`Server::start`] binds up to three listeners over one [`Store`] and its [`Answers`]: OTLP over gRPC, OTLP over HTTP, and the
//! page with its API. A request passes [`auth`] (token and scope, host, origin, rate), then either [`ingest`] (bytes to batches to
//! `rollscope_app::intake`, answered when they are on disk) or [`api`] (SQL to a stream of batches to Arrow, JSON or CSV),
//! or it gets a file of the [`page`]. Assistants ask at `/mcp` (`rollscope_mcp`). On its own the server asks scrape targets for their series ([`scrape`]) and lets the
//! metrics of every step be computed and handed on (`rollscope_app::{steps, sinks}`), and rules be evaluated (`rollscope_alarms`). [`listen`] owns sockets, TLS, limits on
//! connections ([`connections`]) and the orderly end; [`audit`] records deletions and refusals; [`metrics`] counts; every refusal of the API is a [`problem::Problem`], and only there an error
//! gets its status. [`collect`] is the way in alone, into files. All settings are in [`config`].

mod api;
mod audit;
mod auth;
pub mod collect;
pub mod config;
mod connections;
mod ingest;
mod listen;
mod metrics;
pub mod page;
mod params;
mod problem;
mod query;
mod rates;
pub mod ray;
mod run;
pub mod scrape;
mod tokens;
pub mod trace_level;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use rollscope_alarms::{Alarms, Dropped, Sources};
use rollscope_answers::Answers;
use rollscope_app::conversations::Conversations;
use rollscope_app::listings::runs::KnownRuns;
use rollscope_app::sinks::Sinks;
use rollscope_app::steps::{StepCounters, StepWatcher};
use rollscope_mcp::{Assistant, Desk, Page, Source};
use rollscope_query::Engine;
use rollscope_store::Store;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::trace::TraceLayer;

#[doc(hidden)]
pub use api::testing;
use auth::{Auth, Door};
pub use config::{Limits, ServerConfig, TlsConfig};
use ingest::{Ingest, grpc};
use metrics::Counters;
use problem::Problem;
use ray::RaySource;
pub use rollscope_app::secret::Secret;
use scrape::Scraping;

/// Why the server did not start and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{flag} {addr}: invalid address: {source}; expected HOST:PORT, such as 127.0.0.1:7200")]
    Address { flag: &'static str, addr: String, source: std::io::Error },
    #[error(
        "{flag} {addr} can be reached from other machines, and there is no token; set one with --token-file or ROLLSCOPE_TOKEN, \
         listen on 127.0.0.1, or pass --insecure-no-auth"
    )]
    NoToken { flag: &'static str, addr: String },
    #[error(
        "{flag} {addr}: the address is in use, perhaps by another rollscope or an OpenTelemetry collector; stop it or choose \
         another address with {flag} HOST:PORT"
    )]
    InUse { flag: &'static str, addr: String },
    #[error("{flag} {addr}: cannot listen: {source}; choose another address with {flag} HOST:PORT")]
    Bind { flag: &'static str, addr: String, source: std::io::Error },
    #[error("TLS: {0}; --tls-cert and --tls-key expect PEM files")]
    Tls(String),
    #[error("a token is empty; set one with --token-file or ROLLSCOPE_TOKEN, or leave it out")]
    EmptyToken,
    #[error("--token-file {0}")]
    TokenFile(String),
    #[error("{0}")]
    Files(String),
    #[error("scraping: {0}")]
    Scrape(String),
    #[error("alarms: {0}")]
    Alarms(String),
    #[error("nothing to serve: --listen, --otlp-grpc and --otlp-http are all empty; set at least one")]
    Nothing,
}

/// What handlers share.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

pub(crate) struct Shared {
    store: Store,
    engine: Engine,
    answers: Answers,
    ingest: Ingest,
    /// None: the search index could not be opened.
    conversations: Option<Conversations>,
    /// Limits how many images are decoded at the same time.
    thumbnails: Arc<tokio::sync::Semaphore>,
    counters: Arc<Counters>,
    limits: Limits,
    promql: rollscope_query::promql::PromLimits,
    scraping: Scraping,
    ray: Option<RaySource>,
    sinks: Sinks,
    alarms: Alarms,
    steps: Arc<StepCounters>,
    stop: CancellationToken,
    known_runs: Arc<KnownRuns>,
    /// Of the page's address.
    scheme: &'static str,
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// Where assistants ask.
const MCP: &str = "/mcp";

impl App {
    fn assistant(&self) -> Assistant {
        let desk =
            Desk { answers: self.answers.clone(), promql: self.promql.clone(), known_runs: self.known_runs.clone() };
        let source = Source::Store(desk, self.conversations.clone());
        Assistant::Answer { source, page: Page::new(""), scheme: self.scheme }
    }

    async fn read_api_body(&self, mut body: Body) -> Result<Bytes, Problem> {
        let limit = self.limits.max_api_request_bytes;
        let patience = Duration::from_secs(self.limits.body_timeout_s);
        match tokio::time::timeout(patience, Limited::new(&mut body, limit).collect()).await {
            Ok(Ok(read)) => Ok(read.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                ingest::discard(body).await;
                Err(Problem::too_large(
                    "max_api_request_bytes",
                    format!("the request is larger than max_api_request_bytes ({limit}); send less or raise the limit"),
                ))
            }
            Ok(Err(error)) => Err(Problem::bad_request(format!("the body ended early: {error}"))),
            Err(_) => Err(Problem::new(
                axum::http::StatusCode::REQUEST_TIMEOUT,
                "the body took longer than body_timeout_s; send it faster or raise the limit",
            )),
        }
    }
}

/// Where the server listens. `None` if the port is turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    pub page: Option<SocketAddr>,
    pub otlp_grpc: Option<SocketAddr>,
    pub otlp_http: Option<SocketAddr>,
}

/// A running server. [`Server::shutdown`] ends it cleanly. Dropping it only stops it from accepting connections.
pub struct Server {
    addresses: Addresses,
    limits: Limits,
    stop: CancellationToken,
    abort: CancellationToken,
    conversations: Option<Conversations>,
    /// Closed when the last task has ended.
    ended: mpsc::Receiver<Infallible>,
}

impl Server {
    /// Binds everything, then serves. The store stays the caller's to close, after [`Server::shutdown`].
    /// Boxed, so that the whole server is compiled here and not once more in each program that starts it.
    pub fn start(config: &ServerConfig, store: Store, answers: Answers) -> BoxFuture<'_, Result<Server, StartError>> {
        Box::pin(Server::start_here(config, store, answers))
    }

    async fn start_here(config: &ServerConfig, store: Store, answers: Answers) -> Result<Server, StartError> {
        let engine = answers.engine().clone();
        let page = open(&config.listen, "--listen", config).await?;
        let otlp_grpc = open(&config.otlp_grpc, "--otlp-grpc", config).await?;
        let otlp_http = open(&config.otlp_http, "--otlp-http", config).await?;
        let address = |l: &Option<TcpListener>| l.as_ref().and_then(|l| l.local_addr().ok());
        let addresses =
            Addresses { page: address(&page), otlp_grpc: address(&otlp_grpc), otlp_http: address(&otlp_http) };
        if page.is_none() && otlp_grpc.is_none() && otlp_http.is_none() {
            return Err(StartError::Nothing);
        }
        let tls = config.tls.as_ref().map(listen::tls).transpose()?;
        let counters = Arc::new(Counters::default());
        let auth = Auth::new(config, counters.clone())?;
        let (shared, ended) = listen::Shared::new(tls, &config.limits, counters.clone());
        let scraping = Scraping::start(&config.scrape, &store, &shared.stop).map_err(StartError::Scrape)?;
        let sinks = Sinks::start(&config.sinks, store.vitals());
        let steps = Arc::new(StepCounters::default());
        if config.perf.enabled || !sinks.is_empty() {
            let watcher = StepWatcher {
                answers: answers.clone(),
                store: store.clone(),
                rules: config.perf.clone(),
                sinks: sinks.clone(),
                counters: steps.clone(),
            };
            store.vitals().task("step-watcher", watcher.run(shared.stop.clone()));
        }
        let conversations = match Conversations::start(&store, engine.clone()) {
            Ok(conversations) => Some(conversations),
            Err(error) => {
                tracing::error!(%error, "cannot open the search index; conversations cannot be searched");
                None
            }
        };
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        let page_url = addresses.page.map_or_else(String::new, |at| format!("{scheme}://{at}"));
        let ingest =
            Ingest::new(store.clone(), engine.clone(), counters.clone(), &config.limits, &config.scrape.limits);
        let asked = ingest.clone();
        let sources = Sources {
            answers: answers.clone(),
            store: store.clone(),
            dropped: dropped(&counters, &scraping, &sinks, &store),
            ask_stacks: Arc::new(move |run| {
                asked.stacks().ask(run);
            }),
            steps: steps.clone(),
            perf: config.perf.clone(),
        };
        let alarms = Alarms::start(&config.alarms, sources, &config.promql, page_url, &shared.stop)
            .map_err(StartError::Alarms)?;
        let app = App(Arc::new(Shared {
            conversations: conversations.clone(),
            thumbnails: Arc::new(tokio::sync::Semaphore::new(cores)),
            ingest,
            store,
            engine,
            answers,
            counters,
            limits: config.limits.clone(),
            promql: config.promql.clone(),
            scraping,
            ray: config.ray.clone().map(RaySource::new),
            sinks,
            alarms,
            steps,
            stop: shared.stop.clone(),
            known_runs: Arc::default(),
            scheme,
        }));
        let vitals = app.store.vitals().clone();
        for (listener, router) in
            [(page, page_router(&app, &auth)), (otlp_grpc, otlp_router(&app)), (otlp_http, otlp_router(&app))]
        {
            let Some(listener) = listener else { continue };
            let bound = listener.local_addr().map_err(|source| StartError::Bind {
                flag: "--listen",
                addr: config.listen.clone(),
                source,
            })?;
            let door = Door { auth: auth.clone(), bound };
            let router = router
                .layer(CatchPanicLayer::custom(panicked))
                .layer(from_fn_with_state(door, auth::guard))
                .layer(map_response(page::security_headers));
            vitals.task("listener", listen::serve(listener, router, shared.clone()));
        }
        let (stop, abort) = (shared.stop.clone(), shared.abort.clone());
        Ok(Server { addresses, limits: config.limits.clone(), stop, abort, conversations, ended })
    }

    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Stops accepting connections, gives requests `shutdown_s` to finish, then ends the rest.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        let patience = Duration::from_secs(self.limits.shutdown_s);
        if tokio::time::timeout(patience, self.ended.recv()).await.is_err() {
            tracing::warn!("some requests did not end within shutdown_s; closing them");
            self.abort.cancel();
            self.ended.recv().await;
        }
        if let Some(conversations) = &self.conversations {
            conversations.stop().await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn open(addr: &str, flag: &'static str, config: &ServerConfig) -> Result<Option<TcpListener>, StartError> {
    match addr.trim() {
        "" => Ok(None),
        addr => listen::bind(addr, flag, config).await.map(Some),
    }
}

/// What alarms count as dropped.
fn dropped(counters: &Arc<Counters>, scraping: &Scraping, sinks: &Sinks, store: &Store) -> Dropped {
    let (counters, scraping, sinks, store) = (counters.clone(), scraping.clone(), sinks.clone(), store.clone());
    Arc::new(move || {
        let ingest = counters.ingest_sums();
        let scraped = scraping.counters.not_stored.load(Relaxed);
        let steps = sinks.status().iter().map(|sink| sink.dropped).sum();
        vec![
            ("rows rejected", ingest.rejected()),
            ("requests refused", ingest.refused()),
            ("scraped pages not stored", scraped),
            ("failed writes to the store", store.stats().append_errors),
            ("steps dropped by a sink", steps),
        ]
    })
}

fn page_router(app: &App, auth: &Arc<Auth>) -> Router {
    let login = Router::new().route("/login", get(auth::login_page).post(auth::login)).with_state(auth.clone());
    api::router(app)
        .merge(app.ingest.router())
        .route_service(MCP, rollscope_mcp::http_service(app.assistant()))
        .merge(login)
        .fallback(page::serve)
        .layer(DefaultBodyLimit::max(app.limits.max_api_request_bytes))
        .layer(TraceLayer::new_for_http())
}

fn otlp_router(app: &App) -> Router {
    api::health_router(app).merge(app.ingest.router()).fallback(not_otlp)
}

async fn not_otlp(request: Request) -> Response {
    let path = request.uri().path();
    if grpc::is_grpc(request.headers()) {
        return grpc::error(tonic::Status::unimplemented(format!("there is no {path}; this is an OTLP receiver")));
    }
    Problem::not_found(format!(
        "there is no {path}; this port accepts OTLP (POST /v1/traces, /v1/metrics), and the page is on another port"
    ))
    .into_response()
}

/// A bug in a handler: it is logged and reported, and the next request is served.
fn panicked(panic: Box<dyn std::any::Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    tracing::error!(panic = text.unwrap_or("no message"), "a request failed unexpectedly");
    Problem::internal("the server failed unexpectedly; see its log").into_response()
}
