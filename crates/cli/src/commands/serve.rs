//! `rollscope serve`: opens the store, starts the server, waits for a signal, shuts down in order.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rollscope_answers::Answers;
use rollscope_query::WorkerServer;
use rollscope_server::{Limits, Server, StartError};
use rollscope_store::{Store, Vitals};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::nodes::{self, Internal, Peers};
use super::{files, watch};
use crate::args::{Role, ServeArgs};
use crate::config::{Config, Usage};
use crate::{output, place};

/// How soon a node of a lake that answers shows what others have taken in. Each look is a list of the logs.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

pub async fn run(args: ServeArgs) -> anyhow::Result<()> {
    let config = Config::resolve(&args)?;
    if args.print_config {
        print!("{}", config.to_toml()?);
        return Ok(());
    }
    start_logs(&config);
    warn_of_flag("--token", args.token.as_deref(), "--token-file or ROLLSCOPE_TOKEN");
    let mut signals = StopSignals::listen()?;
    if config.role == Some(Role::Worker) {
        return nodes::work(&config, signals).await;
    }
    let Serving { store, server, worker } = tokio::select! {
        started = start(&config) => started?,
        // A long log is read at the start. What it holds is read again next time.
        () = signals.received() => return Ok(()),
    };
    announce(&config, &server);
    let watching = start_watching(&config, &store);
    until_told_to_stop(&mut signals, store.vitals(), &config.server.limits).await;
    watching.stop().await;
    if let Some(worker) = worker {
        worker.stop().await;
    }
    stop(store, server).await
}

/// What a server consists of.
pub struct Serving {
    pub store: Store,
    pub server: Server,
    /// Works for the queries of other nodes.
    pub worker: Option<WorkerServer>,
}

/// Follows folders until it is stopped.
pub struct Watching(Option<tokio::task::JoinHandle<()>>);

pub fn start_watching(config: &Config, store: &Store) -> Watching {
    if config.watch.is_empty() {
        return Watching(None);
    }
    for path in &config.watch {
        println!("watching        {}", path.display());
    }
    Watching(Some(store.vitals().task("watch", watch::beside_server(store.clone(), config.watch.clone()))))
}

impl Watching {
    pub async fn stop(self) {
        if let Some(task) = self.0 {
            task.abort();
            let _ = task.await;
        }
    }
}

pub fn start_logs(config: &Config) {
    output::start_logs("info", config.log_json);
}

/// Every user of the machine can list the arguments of its processes. `instead` says how else to pass it.
pub fn warn_of_flag(flag: &str, secret: Option<&str>, instead: &str) {
    let Some(secret) = secret else { return };
    let is_it =
        |arg: String| arg == secret || arg.strip_prefix(flag).and_then(|arg| arg.strip_prefix('=')) == Some(secret);
    if std::env::args().any(is_it) {
        tracing::warn!(
            "every user of this machine can see the value of {flag} in the list of processes; use {instead}"
        );
    }
}

/// For commands that talk to a person: only what went wrong.
pub fn start_quiet_logs() {
    output::start_logs("warn", false);
}

pub async fn start(config: &Config) -> anyhow::Result<Serving> {
    files::check_patterns(&config.watch)?;
    let tokenizers = config.open_tokenizers()?;
    let (store, lake, worker) = match place::lake_url(&config.data) {
        None => (Store::open(config.store.clone()).await?, None, None),
        Some(url) => {
            let internal = Internal::listen(config).await?;
            let mut lake = place::lake_for_writing(url, nodes::about(config, internal.as_ref())).await?;
            lake.follow_every = config.role.unwrap_or_default().answers().then_some(FOLLOW_EVERY);
            // Before others learn of it, so that nobody waits for the log to be read.
            let worker = internal.map(|internal| internal.start(config, &lake)).transpose()?;
            (place::open_lake(config.store.clone(), lake.clone()).await?, Some(lake), worker)
        }
    };
    for problem in store.health().problems {
        tracing::warn!("{problem}");
    }
    let answers = Answers::with_tokenizers(Arc::new(store.clone()), config.query.clone(), tokenizers)
        .context("the query engine")?;
    if let Some(lake) = &lake {
        answers.engine().use_workers(Peers::new(&store, lake));
    }
    let server = match Server::start(&config.server, store.clone(), answers).await {
        Ok(server) => server,
        Err(e) => {
            store.close().await?;
            return Err(match e {
                StartError::NoToken { .. }
                | StartError::Address { .. }
                | StartError::Scrape(_)
                | StartError::Alarms(_)
                | StartError::EmptyToken
                | StartError::TokenFile(_)
                | StartError::Nothing => Usage(e.to_string()).into(),
                other => other.into(),
            });
        }
    };
    Ok(Serving { store, server, worker })
}

/// Prints the addresses to standard output.
pub fn announce(config: &Config, server: &Server) {
    let at = server.addresses();
    let scheme = if config.server.tls.is_some() { "https" } else { "http" };
    if let Some(page) = at.page {
        println!("rollscope is at {scheme}://{page}");
    }
    if let Some(grpc) = at.otlp_grpc {
        println!("OTLP gRPC       {scheme}://{grpc}");
    }
    if let Some(http) = at.otlp_http {
        println!("OTLP HTTP       {scheme}://{http}");
    }
    println!("data            {}", config.data.display());
}

/// SIGTERM and SIGINT. Once we listen to these, a signal does not end the process by itself. This must happen before the
/// address is printed, because a client may then stop us at once and expect a flush.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub fn listen() -> anyhow::Result<StopSignals> {
        Ok(StopSignals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => tracing::info!("stopping (SIGTERM)"),
            _ = self.interrupt.recv() => tracing::info!("stopping (SIGINT)"),
        }
    }
}

/// Waits for a signal. If a part of the program fails, the rest reports it for a while, and then the program ends. A
/// supervisor starts it again, and nothing that was acknowledged is lost.
pub async fn until_told_to_stop(signals: &mut StopSignals, vitals: &Vitals, limits: &Limits) {
    tokio::select! {
        () = signals.received() => {}
        () = async {
            vitals.died().await;
            tokio::time::sleep(Duration::from_secs(limits.failed_linger_s)).await;
        } => {}
    }
}

/// Running requests finish, then the tail is flushed. A flush that fails loses nothing, because the log has the rows.
pub async fn stop(store: Store, server: Server) -> anyhow::Result<()> {
    server.shutdown().await;
    if let Err(e) = store.close().await {
        tracing::warn!(error = %e, "cannot flush the live tail; it is in the log and will be read at the next start");
    }
    alive(store.vitals())
}

/// A failed part is also an exit code.
pub fn alive(vitals: &Vitals) -> anyhow::Result<()> {
    match vitals.deaths().first() {
        None => Ok(()),
        Some(death) => Err(anyhow::anyhow!("{death}")),
    }
}
