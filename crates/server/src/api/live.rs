//! `GET /api/v1/live`: server-sent events that say "there is something new". What is new, the page asks for itself.

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

use crate::App;
use crate::metrics::Counters;
use crate::params::Params;
use crate::problem::Problem;

/// No more than five events a second, however fast the store changes.
const PAUSE: Duration = Duration::from_millis(200);
/// A comment when nothing happens, so that a dead connection is noticed.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// An event `{"version": N}`: at once, and whenever the store has changed.
#[utoipa::path(get, path = "/api/v1/live", tag = "server", responses(
    (status = 200, description = "Server-sent events", body = String, content_type = "text/event-stream"),
    (status = 503, description = "max_live_clients are listening", body = Problem, content_type = "application/problem+json"),
))]
pub async fn live(State(app): State<App>, params: Params) -> Result<Response, Problem> {
    params.done()?;
    let client = Client::new(&app.counters);
    if client.0.live_clients.load(Relaxed) > app.limits.max_live_clients as u64 {
        let detail = format!("max_live_clients ({}) are listening", app.limits.max_live_clients);
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
    let first = true;
    futures::stream::unfold((changes, stop, client, first), |(mut changes, stop, client, first)| async move {
        if !first {
            tokio::time::sleep(PAUSE).await;
        }
        let event = tokio::select! {
            () = stop.cancelled() => return None,
            changed = changes.changed() => match changed {
                Err(_) => return None,
                Ok(()) => format!("data: {{\"version\":{}}}\n\n", *changes.borrow_and_update()),
            },
            () = tokio::time::sleep(HEARTBEAT) => ":\n\n".to_string(),
        };
        Some((Ok(Bytes::from(event)), (changes, stop, client, false)))
    })
}
