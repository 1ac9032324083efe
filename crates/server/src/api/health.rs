//! Whether the server is alive and ready, what is wrong, and how much it has done.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rollscope_store::{Health as StoreHealth, StoreStats};
use serde::Serialize;
use utoipa::ToSchema;

use super::to_json;
use crate::App;
use crate::metrics::IngestSums;
use crate::problem::Problem;

/// Health of the server.
#[derive(Serialize, ToSchema)]
pub struct HealthAnswer {
    /// `ok`, `degraded` (something is damaged or broken; everything else is served), `full` (nothing can be stored) or
    /// `failed` (a part of the server failed; the server is about to exit).
    status: &'static str,
    version: &'static str,
    store: StoreAnswer,
    /// What an operator should look at, in words. Empty if everything is fine.
    problems: Vec<String>,
    ingest: IngestSums,
}

/// Health and statistics of the store.
#[derive(Serialize, ToSchema)]
pub struct StoreAnswer {
    #[serde(flatten)]
    health: StoreHealth,
    stats: StoreStats,
}

/// Returns the health of the server, what is wrong, and what it has received.
#[utoipa::path(get, path = "/api/v1/health", tag = "server", responses((status = 200, body = HealthAnswer)))]
pub async fn health(State(app): State<App>) -> Result<Response, Problem> {
    let health = app.store.health();
    let scraping = app.scraping.problems();
    let status = match (health.deaths.is_empty(), health.writable, health.problems.is_empty()) {
        (false, ..) => "failed",
        (true, false, _) => "full",
        (true, true, false) => "degraded",
        (true, true, true) => "ok",
    };
    // A target that is down is worth a look, but the server itself is fine.
    let searching = match &app.conversations {
        Some(conversations) => conversations.problem(),
        None => Some("the search index cannot be opened, so conversations cannot be searched; see the log".into()),
    };
    let problems =
        health.problems.iter().cloned().chain(scraping).chain(app.alarms.problems()).chain(searching).collect();
    to_json(&HealthAnswer {
        status,
        version: env!("CARGO_PKG_VERSION"),
        problems,
        store: StoreAnswer { health, stats: app.store.stats() },
        ingest: app.counters.ingest_sums(),
    })
}

/// Whether the server is alive.
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether the server accepts data: the store is open and has room, no part has failed, and no shutdown is in progress.
pub async fn readyz(State(app): State<App>) -> Response {
    if app.stop.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response();
    }
    let health = app.store.health();
    // The message of a panic may quote data, and this endpoint needs no token.
    if let Some(death) = health.deaths.first() {
        let text = format!("{} has failed; see the log and /api/v1/health\n", death.part);
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    }
    match health.writable {
        true => "ready\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the store accepts no data; see /api/v1/health\n").into_response(),
    }
}

/// Writes one value, with its help text if it is the first of its name.
fn put(out: &mut String, name: &str, kind: &str, help: &str, labels: &str, value: f64) {
    if !help.is_empty() {
        let _ = writeln!(out, "# HELP rollscope_{name} {help}\n# TYPE rollscope_{name} {kind}");
    }
    let _ = writeln!(out, "rollscope_{name}{labels} {value}");
}

/// Figures of scraping, of step metrics and of the sinks.
fn scrape_text(out: &mut String, app: &App) {
    let (targets, c) = (app.scraping.status(), &app.scraping.counters);
    let down = targets.iter().filter(|t| t.up == Some(false)).count();
    put(out, "scrape_targets", "gauge", "scrape targets", "", targets.len() as f64);
    put(out, "scrape_targets_down", "gauge", "scrape targets whose last scrape failed", "", down as f64);
    for (name, help, counter) in [
        ("scrapes_total", "scrapes", &c.scrapes),
        ("scrape_failures_total", "failed scrapes", &c.failures),
        ("scrape_samples_total", "scraped samples that were stored", &c.samples),
        ("scrape_bad_lines_total", "scraped lines that are invalid", &c.bad_lines),
        ("scrape_duplicates_total", "samples that appeared twice on a page", &c.duplicates),
        (
            "scrape_out_of_order_total",
            "samples with a time before the previous sample or in the future",
            &c.out_of_order,
        ),
        ("scrape_not_stored_total", "scraped pages that could not be stored", &c.not_stored),
        ("steps_computed_total", "steps whose metrics were computed", &app.steps.computed),
        ("steps_failed_total", "steps whose metrics could not be computed", &app.steps.failed),
    ] {
        put(out, name, "counter", help, "", counter.load(Relaxed) as f64);
    }
    let seconds = app.steps.microseconds.load(Relaxed) as f64 / 1e6;
    put(out, "steps_seconds_total", "counter", "time spent computing the metrics of steps", "", seconds);
    let sinks = app.sinks.status();
    type Pick = fn(&rollscope_app::sinks::SinkStatus) -> u64;
    let figures: [(&str, &str, &str, Pick); 4] = [
        ("sink_backlog", "gauge", "steps waiting for a sink", |s| s.backlog),
        ("sink_written_total", "counter", "steps written to a sink", |s| s.written),
        ("sink_failed_total", "counter", "steps that a sink failed to write", |s| s.failed),
        ("sink_dropped_total", "counter", "steps dropped because the backlog of a sink was full", |s| s.dropped),
    ];
    for (name, kind, help, pick) in figures {
        for (i, sink) in sinks.iter().enumerate() {
            let labels = format!("{{sink=\"{}\"}}", sink.name);
            put(out, name, kind, if i == 0 { help } else { "" }, &labels, pick(sink) as f64);
        }
    }
}

/// Figures of alarms and of their sinks.
fn alarm_text(out: &mut String, app: &App) {
    let c = app.alarms.counters();
    put(out, "alarm_rules", "gauge", "rules that are evaluated", "", c.rules.load(Relaxed) as f64);
    let seconds = c.microseconds.load(Relaxed) as f64 / 1e6;
    put(out, "alarm_round_seconds", "gauge", "time that the last round of rules took", "", seconds);
    for (name, help, counter) in [
        ("alarm_rounds_total", "rounds of rules", &c.rounds),
        ("alarm_failures_total", "evaluations of rules that failed", &c.failures),
        ("alarm_not_stored_total", "samples of rules that could not be stored", &c.not_stored),
        ("alarm_bad_files_total", "changes of rule files that could not be read", &c.bad_files),
    ] {
        put(out, name, "counter", help, "", counter.load(Relaxed) as f64);
    }
    let sinks = app.alarms.sinks();
    type Pick = fn(&rollscope_alarms::SinkStatus) -> u64;
    let figures: [(&str, &str, &str, Pick); 4] = [
        ("alarm_sink_backlog", "gauge", "messages waiting for an alarm sink", |s| s.backlog),
        ("alarm_sink_sent_total", "counter", "messages sent to an alarm sink", |s| s.sent),
        ("alarm_sink_failed_total", "counter", "messages that an alarm sink did not take", |s| s.failed),
        ("alarm_sink_dropped_total", "counter", "messages dropped because an alarm sink was too slow", |s| s.dropped),
    ];
    for (name, kind, help, pick) in figures {
        for (i, sink) in sinks.iter().enumerate() {
            let labels = format!("{{sink={:?}}}", sink.name);
            put(out, name, kind, if i == 0 { help } else { "" }, &labels, pick(sink) as f64);
        }
    }
}

/// Prometheus text.
pub async fn metrics(State(app): State<App>) -> Response {
    let stats = serde_json::to_value(app.store.stats()).unwrap_or_default();
    let gauges = [
        ("ingest_inflight_bytes", "bytes of OTLP messages being processed", app.ingest.inflight_bytes() as u64),
        ("queries_running", "queries that are running or waiting", app.engine.running().len() as u64),
        (
            "store_problems",
            "problems of the store, listed by GET /api/v1/health",
            app.store.health().problems.len() as u64,
        ),
    ];
    let mut text = app.counters.prometheus(&gauges, &stats);
    scrape_text(&mut text, &app);
    alarm_text(&mut text, &app);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
