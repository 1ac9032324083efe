//! `rollscope collect`: the receiving half of the server without a store. OTLP over gRPC and HTTP, the same limits, the same
//! ports, into files of JSON lines ([`crate::ingest::lines`]).

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::{from_fn_with_state, map_response};
use axum::routing::get;
use futures::future::BoxFuture;
use rollscope_store::Vitals;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;

use crate::auth::{self, Auth, Door};
use crate::config::{Limits, ServerConfig};
use crate::ingest::Ingest;
use crate::ingest::lines::Lines;
pub use crate::ingest::lines::{Written, file_name, indices};
use crate::metrics::Counters;
use crate::{Addresses, StartError, listen, not_otlp, open, page, panicked};

/// Where a collector writes.
#[derive(Clone, Debug)]
pub struct CollectFiles {
    /// The first file; those after it have a number before the extension.
    pub path: PathBuf,
    /// A file of this size is followed by the next.
    pub max_file_bytes: u64,
}

/// A running collector.
pub struct Collector {
    addresses: Addresses,
    limits: Limits,
    lines: Lines,
    stop: CancellationToken,
    abort: CancellationToken,
    ended: mpsc::Receiver<Infallible>,
    vitals: Vitals,
}

impl Collector {
    /// Binds `otlp_grpc` and `otlp_http` of the configuration, opens the files, and serves.
    pub fn start<'a>(
        config: &'a ServerConfig,
        files: &'a CollectFiles,
    ) -> BoxFuture<'a, Result<Collector, StartError>> {
        Box::pin(Collector::start_here(config, files))
    }

    async fn start_here(config: &ServerConfig, files: &CollectFiles) -> Result<Collector, StartError> {
        let grpc = open(&config.otlp_grpc, "--otlp-grpc", config).await?;
        let http = open(&config.otlp_http, "--otlp-http", config).await?;
        let address = |l: &Option<TcpListener>| l.as_ref().and_then(|l| l.local_addr().ok());
        let addresses = Addresses { page: None, otlp_grpc: address(&grpc), otlp_http: address(&http) };
        if grpc.is_none() && http.is_none() {
            return Err(StartError::Nothing);
        }
        let tls = config.tls.as_ref().map(listen::tls).transpose()?;
        let vitals = Vitals::default();
        let lines = Lines::open(&files.path, files.max_file_bytes, &vitals)
            .map_err(|e| StartError::Files(format!("{}: {e}", files.path.display())))?;
        let counters = Arc::new(Counters::default());
        let (shared, ended) = listen::Shared::new(tls, &config.limits, counters.clone());
        let ingest = Ingest::for_files(lines.clone(), counters.clone(), &config.limits);
        let auth = Auth::new(config, counters)?;
        for listener in [grpc, http].into_iter().flatten() {
            let Ok(bound) = listener.local_addr() else { continue };
            let router = Router::new()
                .route("/healthz", get(|| async { "ok\n" }))
                .route("/readyz", get(readyz).with_state(vitals.clone()))
                .merge(ingest.router())
                .fallback(not_otlp)
                .layer(CatchPanicLayer::custom(panicked))
                .layer(from_fn_with_state(Door { auth: auth.clone(), bound }, auth::guard))
                .layer(map_response(page::security_headers));
            vitals.task("listener", listen::serve(listener, router, shared.clone()));
        }
        let (stop, abort) = (shared.stop.clone(), shared.abort.clone());
        Ok(Collector { addresses, limits: config.limits.clone(), lines, stop, abort, ended, vitals })
    }

    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Who must not die. Others may add theirs.
    pub fn vitals(&self) -> &Vitals {
        &self.vitals
    }

    pub fn written(&self) -> Arc<Written> {
        self.lines.written().clone()
    }

    /// Running requests finish. Everything that was acknowledged is already on disk.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        let patience = Duration::from_secs(self.limits.shutdown_s);
        if tokio::time::timeout(patience, self.ended.recv()).await.is_err() {
            self.abort.cancel();
            self.ended.recv().await;
        }
        let written = self.lines.written();
        tracing::info!(
            lines = written.lines.load(Relaxed),
            spans = written.spans.load(Relaxed),
            bytes = written.bytes.load(Relaxed),
            "collected"
        );
    }
}

async fn readyz(State(vitals): State<Vitals>) -> (StatusCode, String) {
    match vitals.deaths().first() {
        None => (StatusCode::OK, "ok\n".into()),
        Some(death) => (StatusCode::SERVICE_UNAVAILABLE, format!("{} has failed; see the log\n", death.part)),
    }
}
