//! `GET /api/v1/live`: server-sent events that report changes. The page then requests what is new.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::Stream;
use rollscope_model::Table;
use rollscope_model::read::{Text, column};
use rollscope_store::{Snapshot, SnapshotSource};
use serde::Serialize;
use utoipa::ToSchema;

use crate::App;
use crate::metrics::Counters;
use crate::params::Params;
use crate::problem::Problem;

/// At most five events per second, however fast the store changes.
const PAUSE: Duration = Duration::from_millis(200);
/// A comment when nothing happens, so that a dead connection is noticed.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The data of an event.
#[derive(Serialize, ToSchema)]
pub struct LiveEvent {
    /// Version of the store.
    version: u64,
    /// Runs that got rows since the previous event. If it is empty, any run may have changed.
    runs: Vec<String>,
}

/// Streams an event `{"version": N, "runs": [...]}` at once and whenever the store has changed. `runs` lists the runs that got
/// rows since the previous event. If it is empty, any run may have changed.
#[utoipa::path(get, path = "/api/v1/live", tag = "server", responses(
    (status = 200, description = "Server-sent events", body = String, content_type = "text/event-stream"),
    (status = 503, description = "The limit max_live_clients is reached", body = Problem, content_type = "application/problem+json"),
))]
pub async fn live(State(app): State<App>, params: Params) -> Result<Response, Problem> {
    params.done()?;
    let client = Client::new(&app.counters);
    if client.0.live_clients.load(Relaxed) > app.limits.max_live_clients as u64 {
        let detail = format!(
            "the limit max_live_clients ({}) is reached; close another page or raise the limit",
            app.limits.max_live_clients
        );
        return Err(Problem::unavailable(detail, Duration::from_secs(5)).with_limit("max_live_clients"));
    }
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(events(&app, client))).into_response())
}

struct Client(Arc<Counters>);

impl Client {
    fn new(counters: &Arc<Counters>) -> Self {
        counters.live_clients.fetch_add(1, Relaxed);
        Client(counters.clone())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.live_clients.fetch_sub(1, Relaxed);
    }
}

fn events(app: &App, client: Client) -> impl Stream<Item = Result<Bytes, Infallible>> + use<> {
    // What is there now counts as the first change.
    let (mut changes, stop) = (app.store.changes(), app.stop.clone());
    changes.mark_changed();
    let state = (changes, stop, client, app.clone(), None);
    futures::stream::unfold(state, |(mut changes, stop, client, app, seen)| async move {
        if seen.is_some() {
            tokio::time::sleep(PAUSE).await;
        }
        let (event, seen) = tokio::select! {
            () = stop.cancelled() => return None,
            changed = changes.changed() => match changed {
                Err(_) => return None,
                Ok(()) => {
                    changes.borrow_and_update();
                    let snapshot = app.store.snapshot();
                    let version = snapshot.version;
                    let runs = seen.map_or_else(Vec::new, |seen| changed_runs(&snapshot, seen));
                    let event = serde_json::to_string(&LiveEvent { version, runs }).unwrap_or_default();
                    (format!("data: {event}\n\n"), Some(version))
                }
            },
            () = tokio::time::sleep(HEARTBEAT) => (":\n\n".to_string(), seen),
        };
        Some((Ok(Bytes::from(event)), (changes, stop, client, app, seen)))
    })
}

/// If more runs than this change at once, the event reports none, which means any.
const MAX_RUNS: usize = 64;

/// Runs that got rows after a version. Empty if they are unknown.
fn changed_runs(snapshot: &Snapshot, since: u64) -> Vec<String> {
    let mut runs = BTreeSet::new();
    for table in Table::ALL {
        let Some(batches) = snapshot.tail_since(table, since) else { return Vec::new() };
        for batch in batches {
            let Ok(column) = column::<Text>(batch, "run_id") else { return Vec::new() };
            runs.extend(column.distinct().map(str::to_string));
        }
    }
    if runs.len() > MAX_RUNS { Vec::new() } else { runs.into_iter().collect() }
}
