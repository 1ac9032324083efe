//! SQL, and what is running.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rollscope_query::ProgressSnapshot;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::stream::{self, Format};
use super::to_json;
use crate::App;
use crate::params::Params;
use crate::problem::Problem;
use crate::query;

/// An SQL query.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SqlRequest {
    /// Read-only SQL over the tables of `GET /api/v1/tables`.
    query: String,
    /// `arrow`, `json` or `csv`. By default it follows from the `Accept` header, else it is `json`.
    format: Option<String>,
    /// Maximum number of rows, if it is below the server's limit.
    max_rows: Option<u64>,
}

/// A result as JSON.
#[derive(ToSchema)]
#[allow(dead_code, reason = "the body is streamed; this is its description")]
pub struct SqlAnswer {
    columns: Vec<SqlColumn>,
    /// One array per row. Integers are numbers of up to 64 bits, bytes are hex text, attributes are objects, NaN is text.
    rows: Vec<Vec<serde_json::Value>>,
    /// True if there were more rows than the limit.
    truncated: bool,
}

#[derive(ToSchema)]
#[allow(dead_code, reason = "the body is streamed; this is its description")]
pub struct SqlColumn {
    name: String,
    #[serde(rename = "type")]
    kind: String,
}

/// Runs read-only SQL.
///
/// The result is streamed. Closing the connection cancels the query. Whether rows were cut off is reported in `truncated`
/// (JSON), in the header `rollscope-truncated` (results under 256 KiB), or in a trailer of that name.
#[utoipa::path(post, path = "/api/v1/sql", tag = "sql", request_body = SqlRequest, responses(
    (status = 200, description = "The rows", content(
        (SqlAnswer = "application/json"),
        (String = "text/csv"),
        (Vec<u8> = "application/vnd.apache.arrow.stream"),
    )),
    (status = 400, description = "The SQL is invalid or not allowed", body = Problem, content_type = "application/problem+json"),
    (status = 408, description = "The query took longer than the limit", body = Problem, content_type = "application/problem+json"),
    (status = 413, description = "The query needs more memory than the limit", body = Problem, content_type = "application/problem+json"),
    (status = 415, description = "The body is not JSON", body = Problem, content_type = "application/problem+json"),
    (status = 503, description = "Cancelled", body = Problem, content_type = "application/problem+json"),
))]
pub async fn sql(State(app): State<App>, headers: HeaderMap, body: Body) -> Result<Response, Problem> {
    // A form on another site cannot send this content type.
    let kind = headers.get(header::CONTENT_TYPE).map_or("", |v| v.to_str().unwrap_or(""));
    if !kind.to_ascii_lowercase().starts_with("application/json") {
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the content type must be application/json"));
    }
    let body = app.read_api_body(body).await?;
    let request: SqlRequest = serde_json::from_slice(&body).map_err(|e| {
        Problem::bad_request(format!(
            "the body must be {{\"query\": \"...\", \"format\": \"arrow|json|csv\", \"max_rows\": N}}: {e}"
        ))
    })?;
    let format = match &request.format {
        Some(name) => named(name)?,
        None => accepted(&headers),
    };
    let answer = query::start(&app.engine, &app.counters, &request.query).await?;
    stream::respond(answer, format, request.max_rows.unwrap_or(u64::MAX)).await
}

fn named(name: &str) -> Result<Format, Problem> {
    match name {
        "arrow" => Ok(Format::Arrow),
        "json" => Ok(Format::Json),
        "csv" => Ok(Format::Csv),
        _ => Err(Problem::parameter("format", "one of: arrow, json, csv")),
    }
}

fn accepted(headers: &HeaderMap) -> Format {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("");
    let first = accept.split(',').find_map(|part| match part.split(';').next().unwrap_or("").trim() {
        "application/vnd.apache.arrow.stream" => Some(Format::Arrow),
        "text/csv" => Some(Format::Csv),
        "application/json" => Some(Format::Json),
        _ => None,
    });
    first.unwrap_or(Format::Json)
}

/// Running queries with their progress.
#[derive(Serialize, ToSchema)]
pub struct QueriesAnswer {
    queries: Vec<ProgressSnapshot>,
}

/// Lists the running queries.
#[utoipa::path(get, path = "/api/v1/queries", tag = "sql", responses((status = 200, body = QueriesAnswer)))]
pub async fn queries(State(app): State<App>, params: Params) -> Result<Response, Problem> {
    params.done()?;
    to_json(&QueriesAnswer { queries: app.engine.running() })
}

/// Cancels a running query.
#[utoipa::path(delete, path = "/api/v1/queries/{id}", tag = "sql", params(("id" = u64, Path)), responses(
    (status = 204, description = "The query is being cancelled"),
    (status = 404, description = "No such query is running", body = Problem, content_type = "application/problem+json"),
))]
pub async fn cancel(State(app): State<App>, Path(id): Path<String>) -> Result<Response, Problem> {
    let id: u64 =
        id.parse().map_err(|_| Problem::parameter("id", "the number of a running query; see GET /api/v1/queries"))?;
    match app.engine.cancel(id) {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(Problem::not_found(format!("no query {id} is running"))),
    }
}
