//! Is it alive, is it ready, what is wrong, and how much has it done.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::to_json;
use crate::App;
use crate::problem::Problem;

/// How the server is.
#[derive(Serialize, ToSchema)]
pub struct HealthAnswer {
    /// `ok`, `degraded` (something was set aside or is broken, the rest is served) or `full` (nothing can be stored).
    status: &'static str,
    version: &'static str,
    /// The store's own report and figures.
    #[schema(value_type = Object)]
    store: serde_json::Value,
    /// What an operator should look at, in words. Empty when all is well.
    problems: Vec<String>,
    /// Since the start: requests, refused, deferred, accepted, rejected, duplicates, bytes.
    #[schema(value_type = Object)]
    ingest: serde_json::Value,
}

/// How the server is, what is wrong, and what it has taken in.
#[utoipa::path(get, path = "/api/v1/health", tag = "server", responses((status = 200, body = HealthAnswer)))]
pub async fn health(State(app): State<App>) -> Result<Response, Problem> {
    let health = app.store.health();
    let status = match (app.accepts(), health.problems.is_empty()) {
        (false, _) => "full",
        (true, false) => "degraded",
        (true, true) => "ok",
    };
    let mut store = serde_json::to_value(&health).unwrap_or_default();
    if let Some(entries) = store.as_object_mut() {
        entries.insert("stats".into(), serde_json::to_value(app.store.stats()).unwrap_or_default());
    }
    to_json(&HealthAnswer {
        status,
        version: env!("CARGO_PKG_VERSION"),
        problems: health.problems,
        store,
        ingest: app.counters.ingest_json(),
    })
}

/// Alive.
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// Ready to take data: the store is open and has room, and no shutdown is under way.
pub async fn readyz(State(app): State<App>) -> Response {
    if app.stop.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response();
    }
    match app.accepts() {
        true => "ready\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the store takes nothing now\n").into_response(),
    }
}

/// Prometheus text.
pub async fn metrics(State(app): State<App>) -> Response {
    let stats = serde_json::to_value(app.store.stats()).unwrap_or_default();
    let gauges = [
        ("ingest_inflight_bytes", app.ingest.inflight_bytes() as u64),
        ("queries_running", app.engine.running().len() as u64),
        ("store_problems", app.store.health().problems.len() as u64),
    ];
    let text = app.counters.prometheus(&gauges, &stats);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
