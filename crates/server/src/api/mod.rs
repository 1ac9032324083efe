//! `/api/v1`: the API of the page, the command line and other programs. Bulk data is Arrow IPC, small responses are JSON, errors
//! are problems. Adding an endpoint means adding a handler with its `utoipa::path`, a route and a line in [`ApiDoc`].

mod alarms;
mod answers;
mod conversations;
mod health;
mod jaeger;
mod live;
mod metrics;
mod nodes;
mod prometheus;
mod runs;
mod scrape;
mod spans;
mod sql;
mod steps;
mod stream;
mod tables;
pub mod testing;
mod timeline;
mod tokens;
mod trace_level;
mod traces;

use std::sync::LazyLock;

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use serde_json::Value;
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
        nodes::nodes,
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
        answers::mismatch,
        answers::hang,
        answers::ask_stacks,
        timeline::timeline,
        runs::set_tags,
        timeline::samples,
        timeline::links,
        tokens::tokens,
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
        alarms::alarms,
        alarms::silence,
        alarms::unsilence,
        conversations::list,
        conversations::one,
        conversations::stats,
        conversations::export,
        conversations::media_file,
        openapi,
    ),
    components(schemas(Problem, live::LiveEvent, traces::TraceView))
)]
struct ApiDoc;

pub fn router(app: &App) -> Router {
    let v1 = Router::new()
        .route("/health", get(health::health))
        .route("/nodes", get(nodes::nodes))
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
        .route("/runs/{run}/mismatch", get(answers::mismatch))
        .route("/runs/{run}/hang", get(answers::hang))
        .route("/runs/{run}/stacks", post(answers::ask_stacks))
        .route("/runs/{run}/timeline", get(timeline::timeline))
        .route("/runs/{run}/samples", get(timeline::samples))
        .route("/runs/{run}/links", get(timeline::links))
        .route("/runs/{run}/tokens", get(tokens::tokens))
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
        .route("/alarms", get(alarms::alarms))
        .route("/alarms/silences", post(alarms::silence))
        .route("/alarms/silences/{id}", delete(alarms::unsilence))
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
#[utoipa::path(get, path = "/api/v1/openapi.json", tag = "server", responses((status = 200, description = "OpenAPI document", body = Object)))]
async fn openapi() -> Response {
    static DOCUMENT: LazyLock<String> = LazyLock::new(document);
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}

/// The OpenAPI document. The schemas are those of the types that are serialised.
pub fn document() -> String {
    let mut document = serde_json::to_value(ApiDoc::openapi()).expect("the document is plain data");
    absent_or_there(&mut document);
    serde_json::to_string_pretty(&document).expect("a value is plain data") + "\n"
}

/// utoipa says of every `Option` that it may be null or absent. Ours are always there (`schema(required)`) and may be null, or
/// are left out if there is nothing, and never null.
fn absent_or_there(schema: &mut Value) {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for (name, property) in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        if !required.iter().any(|r| r == name) {
            never_null(property);
        }
    }
    match schema {
        Value::Object(inner) => inner.values_mut().for_each(absent_or_there),
        Value::Array(items) => items.iter_mut().for_each(absent_or_there),
        _ => {}
    }
}

fn never_null(schema: &mut Value) {
    if let Some(types) = schema["type"].as_array() {
        let rest: Vec<&Value> = types.iter().filter(|t| *t != "null").collect();
        schema["type"] = if let [one] = rest[..] { one.clone() } else { rest.into_iter().cloned().collect() };
    }
    if let Some(schemas) = schema["oneOf"].as_array() {
        let mut rest = schemas.iter().filter(|s| s["type"] != "null");
        if let (Some(one), None) = (rest.next().cloned(), rest.next()) {
            *schema = one;
        }
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
        let doc: Value = serde_json::from_str(&document()).unwrap();
        let paths = doc["paths"].as_object().unwrap();
        assert!(paths.len() >= 29, "{:?}", paths.keys());
        for (path, operations) in paths {
            for (method, operation) in operations.as_object().unwrap() {
                assert!(path.starts_with("/api/v1/"), "{path}");
                assert!(operation["summary"].is_string() || operation["description"].is_string(), "{method} {path}");
                let good =
                    operation["responses"].as_object().unwrap().iter().filter(|(status, _)| status.starts_with('2'));
                for (status, answer) in good.filter(|(status, _)| *status != "204") {
                    for (kind, content) in answer["content"].as_object().expect(path) {
                        let named = content["schema"]["$ref"].is_string();
                        assert!(
                            named || kind != "application/json" || path.ends_with("/openapi.json"),
                            "{status} {path}"
                        );
                    }
                }
            }
        }
    }

    /// For people, and for the page, whose types are generated from it (`ui/scripts/api-types.mjs`).
    #[test]
    fn the_checked_in_document_is_up_to_date() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(file, document()).unwrap();
        }
        let found = std::fs::read_to_string(file).unwrap_or_default();
        assert!(found == document(), "docs/openapi.json is stale: UPDATE=1 cargo test --workspace");
    }

    #[test]
    fn an_option_is_always_there_or_never_null() {
        let mut schema = serde_json::json!({ "required": ["a"], "properties": {
            "a": { "type": ["string", "null"] },
            "b": { "type": ["string", "null"], "description": "kept" },
            "c": { "oneOf": [{ "type": "null" }, { "$ref": "x" }] },
            "d": { "type": "object", "properties": { "e": { "type": ["array", "null"] } } },
        }});
        absent_or_there(&mut schema);
        assert_eq!(
            schema,
            serde_json::json!({ "required": ["a"], "properties": {
                "a": { "type": ["string", "null"] },
                "b": { "type": "string", "description": "kept" },
                "c": { "$ref": "x" },
                "d": { "type": "object", "properties": { "e": { "type": "array" } } },
            }})
        );
    }
}
