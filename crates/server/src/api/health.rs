//! Is it alive, is it ready, what is wrong, and how much has it done.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

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
    /// `ok`, `degraded` (something was set aside or is broken, the rest is served), `full` (nothing can be stored) or
    /// `failed` (a part of the server has died; it is about to end).
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
    let mut health = app.store.health();
    let scraping = app.scraping.problems();
    let status = match (health.deaths.is_empty(), health.writable, health.problems.is_empty()) {
        (false, ..) => "failed",
        (true, false, _) => "full",
        (true, true, false) => "degraded",
        (true, true, true) => "ok",
    };
    let mut store = serde_json::to_value(&health).unwrap_or_default();
    if let Some(entries) = store.as_object_mut() {
        entries.insert("stats".into(), serde_json::to_value(app.store.stats()).unwrap_or_default());
    }
    // A target that is down is worth a look, but the server itself is well.
    health.problems.extend(scraping);
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

/// Ready to take data: the store is open and has room, nothing has died, and no shutdown is under way.
pub async fn readyz(State(app): State<App>) -> Response {
    if app.stop.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response();
    }
    let health = app.store.health();
    // What a panic says may quote data, and anybody may ask here.
    if let Some(death) = health.deaths.first() {
        let text = format!("{} has failed; the log and /api/v1/health say why\n", death.part);
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    }
    match health.writable {
        true => "ready\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the store takes nothing now\n").into_response(),
    }
}

/// One figure; with its help, where it is the first of its name.
fn put(out: &mut String, name: &str, kind: &str, help: &str, labels: &str, value: f64) {
    if !help.is_empty() {
        let _ = writeln!(out, "# HELP rollscope_{name} {help}\n# TYPE rollscope_{name} {kind}");
    }
    let _ = writeln!(out, "rollscope_{name}{labels} {value}");
}

/// What scraping, the metrics of steps and the sinks have done.
fn scrape_text(out: &mut String, app: &App) {
    let (targets, c) = (app.scraping.status(), &app.scraping.counters);
    let down = targets.iter().filter(|t| t.up == Some(false)).count();
    put(out, "scrape_targets", "gauge", "targets that are scraped", "", targets.len() as f64);
    put(out, "scrape_targets_down", "gauge", "targets whose last scrape failed", "", down as f64);
    for (name, help, counter) in [
        ("scrapes_total", "scrapes", &c.scrapes),
        ("scrape_failures_total", "scrapes that failed", &c.failures),
        ("scrape_samples_total", "samples kept", &c.samples),
        ("scrape_bad_lines_total", "lines that could not be read", &c.bad_lines),
        ("scrape_duplicates_total", "samples that stood on a page twice", &c.duplicates),
        ("scrape_out_of_order_total", "samples whose time goes back or lies ahead", &c.out_of_order),
        ("scrape_not_stored_total", "pages that the store did not take", &c.not_stored),
        ("steps_computed_total", "steps whose metrics were worked out", &app.steps.computed),
        ("steps_failed_total", "steps whose metrics could not be worked out", &app.steps.failed),
    ] {
        put(out, name, "counter", help, "", counter.load(Relaxed) as f64);
    }
    let seconds = app.steps.microseconds.load(Relaxed) as f64 / 1e6;
    put(out, "steps_seconds_total", "counter", "time spent working out the metrics of steps", "", seconds);
    let sinks = app.sinks.status();
    type Pick = fn(&rollscope_app::sinks::SinkStatus) -> u64;
    let figures: [(&str, &str, &str, Pick); 4] = [
        ("sink_backlog", "gauge", "steps that wait for a sink", |s| s.backlog),
        ("sink_written_total", "counter", "steps that a sink took", |s| s.written),
        ("sink_failed_total", "counter", "steps that a sink failed on", |s| s.failed),
        ("sink_dropped_total", "counter", "steps that found a sink's backlog full", |s| s.dropped),
    ];
    for (name, kind, help, pick) in figures {
        for (i, sink) in sinks.iter().enumerate() {
            let labels = format!("{{sink=\"{}\"}}", sink.name);
            put(out, name, kind, if i == 0 { help } else { "" }, &labels, pick(sink) as f64);
        }
    }
}

/// Prometheus text.
pub async fn metrics(State(app): State<App>) -> Response {
    let stats = serde_json::to_value(app.store.stats()).unwrap_or_default();
    let gauges = [
        ("ingest_inflight_bytes", "bytes of messages under way", app.ingest.inflight_bytes() as u64),
        ("queries_running", "queries that run or wait", app.engine.running().len() as u64),
        ("store_problems", "problems of the store (GET /api/v1/health)", app.store.health().problems.len() as u64),
    ];
    let mut text = app.counters.prometheus(&gauges, &stats);
    scrape_text(&mut text, &app);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
