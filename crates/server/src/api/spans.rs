//! One span with everything it has, and one trace.

use arrow::array::RecordBatch;
use arrow::compute::{SortColumn, concat_batches, lexsort_to_indices, take_record_batch};
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use rollscope_app::encode::{self, ArrowStream};
use rollscope_model::Table;
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use super::stream::Format;
use super::to_json;
use crate::App;
use crate::params::{self, Params};
use crate::problem::Problem;

fn internal(error: arrow::error::ArrowError) -> Problem {
    Problem::internal(error.to_string())
}

/// Columns of `spans` that hold a JSON object as text.
const OBJECTS: &[&str] = &["resource", "scope"];

/// A row of `spans`.
pub struct SpanDetail;

impl utoipa::PartialSchema for SpanDetail {
    fn schema() -> RefOr<Schema> {
        encode::row::row_schema(Table::Spans, OBJECTS).into()
    }
}

impl ToSchema for SpanDetail {}

/// Returns one span.
///
/// A JSON object with every column of `spans`. Nanoseconds are text. Attributes, resource and scope are objects.
#[utoipa::path(get, path = "/api/v1/spans/{trace}/{span}", tag = "runs", params(
    ("trace" = String, Path, description = "Trace id in hex"),
    ("span" = String, Path, description = "Span id in hex"),
), responses(
    (status = 200, description = "The span", body = SpanDetail),
    (status = 404, description = "No such span", body = Problem, content_type = "application/problem+json"),
))]
pub async fn span(
    State(app): State<App>,
    Path((trace, span)): Path<(String, String)>,
    params: Params,
) -> Result<Response, Problem> {
    params.done()?;
    let (trace_id, span_id) = (params::trace_id(&trace)?, params::span_id(&span)?);
    match app.engine.span(trace_id, span_id).await? {
        Some(batch) => to_json(&encode::row::row(&batch, 0, OBJECTS).map_err(internal)?),
        None => Err(Problem::not_found(format!("there is no span {span} in trace {trace}"))),
    }
}

/// Returns all spans of a trace.
///
/// An Arrow IPC stream with every column of `spans`, sorted by start.
#[utoipa::path(get, path = "/api/v1/traces/{trace}", tag = "runs", params(("trace" = String, Path, description = "Trace id in hex")), responses(
    (status = 200, description = "Spans", body = Vec<u8>, content_type = "application/vnd.apache.arrow.stream"),
    (status = 404, description = "No such trace", body = Problem, content_type = "application/problem+json"),
))]
pub async fn trace(State(app): State<App>, Path(trace): Path<String>, params: Params) -> Result<Response, Problem> {
    params.done()?;
    let batches = app.engine.trace(params::trace_id(&trace)?).await?;
    let Some(first) = batches.first() else {
        return Err(Problem::not_found(format!("there is no trace {trace}")));
    };
    let all = concat_batches(&first.schema(), &batches).map_err(internal)?;
    // Each of these has the whole trace.
    drop(batches);
    let sorted = by_start(&all).map_err(internal)?;
    drop(all);
    let mut stream = ArrowStream::new(&sorted.schema()).map_err(internal)?;
    stream.write(&sorted).and_then(|()| stream.finish()).map_err(internal)?;
    let headers = [(header::CONTENT_TYPE, Format::Arrow.content_type()), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, stream.drain()).into_response())
}

fn by_start(batch: &RecordBatch) -> Result<RecordBatch, arrow::error::ArrowError> {
    let keys: Vec<SortColumn> = ["start_ns", "span_id"]
        .iter()
        .filter_map(|name| batch.column_by_name(name))
        .map(|values| SortColumn { values: values.clone(), options: None })
        .collect();
    take_record_batch(batch, &lexsort_to_indices(&keys, None)?)
}
