//! `/api/v1`: the API of the page, the command line and other programs. Bulk data is Arrow IPC, small responses are JSON, errors
//! are problems. Adding an endpoint means adding a handler with its `utoipa::path`, a route and a line in [`ApiDoc`].

mod answers;
mod conversations;
mod health;
mod jaeger;
mod live;
mod metrics;
mod prometheus;
mod runs;
mod scrape;
mod spans;
mod sql;
mod steps;
mod stream;
mod tables;
mod timeline;
mod trace_level;
mod traces;

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use utoipa::OpenApi;

use crate::App;
use crate::problem::Problem;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "rollscope",
        description = "Traces, samples, conversations and metrics of reinforcement learning runs. Bulk data is sent as Arrow IPC \
                       streams (`application/vnd.apache.arrow.stream`), errors as problem JSON (RFC 9457). In most JSON \
                       responses, nanoseconds are text, because they exceed the numbers of JavaScript. In SQL results, every \
                       integer is a number."
    ),
    paths(
        health::health,
        sql::sql,
        sql::queries,
        sql::cancel,
        tables::tables,
        runs::runs,
        runs::run,
        runs::delete_run,
        steps::steps,
        answers::report,
        answers::findings,
        answers::diff,
        timeline::timeline,
        runs::set_tags,
        timeline::samples,
        timeline::links,
        spans::span,
        spans::trace,
        traces::find,
        traces::view,
        traces::path,
        live::live,
        trace_level::get_level,
        trace_level::set_level,
        metrics::metrics,
        metrics::points,
        metrics::sinks,
        scrape::scrape,
        conversations::list,
        conversations::one,
        conversations::stats,
        conversations::export,
        conversations::media_file,
        openapi,
    ),
    components(schemas(Problem))
)]
struct ApiDoc;

pub fn router(app: &App) -> Router {
    let v1 = Router::new()
        .route("/health", get(health::health))
        .route("/sql", post(sql::sql))
        .route("/queries", get(sql::queries))
        .route("/queries/{id}", delete(sql::cancel))
        .route("/tables", get(tables::tables))
        .route("/runs", get(runs::runs))
        .route("/runs/{run}", get(runs::run).delete(runs::delete_run))
        .route("/runs/{run}/steps", get(steps::steps))
        .route("/runs/{run}/steps/{step}/report", get(answers::report))
        .route("/runs/{run}/findings", get(answers::findings))
        .route("/runs/{run}/diff", get(answers::diff))
        .route("/runs/{run}/timeline", get(timeline::timeline))
        .route("/runs/{run}/samples", get(timeline::samples))
        .route("/runs/{run}/links", get(timeline::links))
        .route("/runs/{run}/tags", put(runs::set_tags))
        .route("/spans/{trace}/{span}", get(spans::span))
        .route("/traces", get(traces::find))
        .route("/traces/{trace}", get(spans::trace))
        .route("/traces/{trace}/view", get(traces::view))
        .route("/traces/{trace}/path", get(traces::path))
        .route("/runs/{run}/metrics", get(metrics::metrics))
        .route("/runs/{run}/metrics/points", get(metrics::points))
        .route("/sinks", get(metrics::sinks))
        .route("/scrape", get(scrape::scrape))
        .route("/live", get(live::live))
        .route("/trace-level", get(trace_level::get_level).put(trace_level::set_level))
        .route("/conversations", get(conversations::list))
        .route("/conversations/{*id}", get(conversations::one))
        .route("/conversations-stats", get(conversations::stats))
        .route("/conversations-export", get(conversations::export))
        .route("/media/{hash}", get(conversations::media_file))
        .route("/openapi.json", get(openapi))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method);
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .route("/metrics/run/{run}", get(metrics::last_step))
        .nest("/prometheus/api/v1", prometheus::router())
        .nest("/api/v1", v1)
        .with_state(app.clone())
        .merge(jaeger::router(app))
}

/// Whether the server is alive and ready, for the OTLP ports.
pub fn health_router(app: &App) -> Router {
    Router::new().route("/healthz", get(health::healthz)).route("/readyz", get(health::readyz)).with_state(app.clone())
}

/// Returns this OpenAPI document.
#[utoipa::path(get, path = "/api/v1/openapi.json", tag = "server", responses((status = 200, description = "OpenAPI document")))]
async fn openapi() -> Response {
    match ApiDoc::openapi().to_json() {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => Problem::internal(error.to_string()).into_response(),
    }
}

/// The response to an unknown path under the prefix of an API: an error in the form of that API. A program that sends a
/// request there must not get the page.
pub fn unknown_path(path: &str) -> Option<Response> {
    let prefix = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    match prefix {
        "jaeger" => Some(jaeger::unknown(path)),
        "prometheus" => Some(prometheus::unknown_path(path)),
        "api" | "v1" | "metrics" | "healthz" | "readyz" => {
            let detail = format!("there is no {path}; /api/v1/openapi.json lists all paths");
            Some(Problem::not_found(detail).into_response())
        }
        _ => None,
    }
}

async fn unknown(request: Request) -> Problem {
    let path = request.uri().path();
    Problem::not_found(format!("there is no /api/v1{path}; /api/v1/openapi.json lists all paths"))
}

async fn wrong_method(request: Request) -> Problem {
    let (method, path) = (request.method(), request.uri().path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, format!("{path} does not support {method}; see /api/v1/openapi.json"))
}

/// JSON that must not be cached.
pub(crate) fn json(body: impl Into<axum::body::Body>) -> Response {
    ([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], body.into()).into_response()
}

pub(crate) fn to_json<T: serde::Serialize>(value: &T) -> Result<Response, Problem> {
    serde_json::to_vec(value).map(json).map_err(|e| Problem::internal(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_path_says_what_it_answers() {
        let doc = serde_json::to_value(ApiDoc::openapi()).unwrap();
        let paths = doc["paths"].as_object().unwrap();
        assert!(paths.len() >= 29, "{:?}", paths.keys());
        for (path, operations) in paths {
            for (method, operation) in operations.as_object().unwrap() {
                assert!(path.starts_with("/api/v1/"), "{path}");
                assert!(operation["summary"].is_string() || operation["description"].is_string(), "{method} {path}");
                assert!(!operation["responses"].as_object().unwrap().is_empty(), "{method} {path}");
            }
        }
    }
}
