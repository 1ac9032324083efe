//! Finding traces, and one trace laid out for a waterfall.

use axum::extract::{Path, RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use rollscope_answers::critical_path::CriticalPath;
use rollscope_answers::traces::{requests, view};
use rollscope_app::encode::ArrowStream;
use rollscope_app::listings::traces::{self, FoundTraces, TracePoints, trace_ids};
use rollscope_app::query::{collect, text_column};
use rollscope_model::read::{Ids, column};
use rollscope_query::scope::{Scope, ScopeRead};
use rollscope_query::{MAX_TRACE_SPANS, too_many_spans};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::schema::AnyOfBuilder;
use utoipa::openapi::{Ref, RefOr, Schema};

use super::to_json;
use crate::App;
use crate::params::{self, Params, pairs};
use crate::problem::Problem;

/// [`TracePoints`] with `points=true`, else [`FoundTraces`].
pub struct TracesAnswer;

impl utoipa::PartialSchema for TracesAnswer {
    fn schema() -> RefOr<Schema> {
        let named = |name| Ref::from_schema_name(name);
        AnyOfBuilder::new().item(named(FoundTraces::name())).item(named(TracePoints::name())).into()
    }
}

impl ToSchema for TracesAnswer {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((FoundTraces::name().into(), <FoundTraces as utoipa::PartialSchema>::schema()));
        schemas.push((TracePoints::name().into(), <TracePoints as utoipa::PartialSchema>::schema()));
        FoundTraces::schemas(schemas);
        TracePoints::schemas(schemas);
    }
}

/// Finds traces.
///
/// All conditions on spans must hold for the same span. The duration is that of the whole trace. `attr=KEY=VALUE` can be
/// repeated. `points=true` returns only what a scatter plot needs.
#[utoipa::path(get, path = "/api/v1/traces", tag = "runs", params(
    ("run" = Option<String>, Query), ("step" = Option<i64>, Query), ("sample" = Option<String>, Query),
    ("rid" = Option<String>, Query, description = "Request id of the serving engine"),
    ("service" = Option<String>, Query), ("name" = Option<String>, Query, description = "Name of a span. `*` matches anything"),
    ("status" = Option<String>, Query, description = "Status of a span: unset, ok or error"),
    ("attr" = Option<String>, Query, description = "KEY=VALUE of the span or its resource"),
    ("from_ns" = Option<i64>, Query), ("to_ns" = Option<i64>, Query),
    ("min_duration" = Option<String>, Query, description = "Duration such as 250ms"), ("max_duration" = Option<String>, Query),
    ("sort" = Option<String>, Query, description = "start, duration, spans or errors, with a leading `-` for descending order"),
    ("limit" = Option<usize>, Query), ("offset" = Option<usize>, Query), ("points" = Option<bool>, Query),
), responses(
    (status = 200, description = "Traces and their total number", body = TracesAnswer),
    (status = 400, description = "Invalid parameter", body = Problem, content_type = "application/problem+json"),
))]
pub async fn find(State(app): State<App>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let (search, points) = traces::parse(pairs(query.as_deref().unwrap_or("")))?;
    match points {
        true => to_json(&traces::points(&app.engine, &search).await?),
        false => to_json(&traces::find(&app.engine, &search).await?),
    }
}

/// What the response says of a trace before its spans.
#[derive(Serialize, ToSchema)]
pub struct TraceView {
    #[serde(flatten)]
    summary: view::Summary,
    /// Spans of other traces whose requests this trace served. At most 20.
    callers: Vec<Caller>,
}

#[derive(Serialize, ToSchema)]
pub struct Caller {
    trace_id: String,
    span_id: String,
    name: String,
    service: String,
}

/// Returns a trace with its layout.
///
/// Parents come before children, with depth, size of the subtree, own time, lane and damage. Spans of other traces that served
/// its requests are placed under the span that made the request (`joined=false` leaves them out). The response is 4 bytes (the
/// length of a JSON text, little endian), the JSON text (the schema `TraceView`), padded with spaces to a multiple of 8, and an Arrow
/// IPC stream.
#[utoipa::path(get, path = "/api/v1/traces/{trace}/view", tag = "runs", params(
    ("trace" = String, Path, description = "Trace id in hex"),
    ("joined" = Option<bool>, Query),
), responses(
    (status = 200, description = "Summary and spans", body = Vec<u8>, content_type = "application/octet-stream"),
    (status = 404, description = "No such trace", body = Problem, content_type = "application/problem+json"),
))]
pub async fn view(State(app): State<App>, Path(trace): Path<String>, mut params: Params) -> Result<Response, Problem> {
    let joined = params.text("joined") != Some("false");
    params.done()?;
    let id = params::trace_id(&trace)?;
    let read = ScopeRead {
        columns: view::COLUMNS.join(", "),
        max_rows: MAX_TRACE_SPANS,
        too_many: too_many_spans(&id),
        traces: None,
        at_once: false,
        details: None,
    };
    let callers_sql = requests::callers_sql(&id);
    let called = async { if joined { collect(&app.engine, &callers_sql).await } else { Ok(Vec::new()) } };
    let own = async { Ok(app.engine.spans_of(Scope::Trace { trace: id, joined }, read).await?.batches) };
    let (batches, called) = tokio::try_join!(own, called)?;
    if batches.is_empty() {
        return Err(Problem::not_found(format!("there is no trace {trace}")));
    }
    let mut callers = Vec::new();
    for batch in called {
        let (names, services) = (text_column(&batch, "name")?, text_column(&batch, "service")?);
        let spans: Option<Ids<8>> = column(&batch, "span_id").ok();
        for (row, caller) in trace_ids(&batch)?.iter().enumerate() {
            callers.push(Caller {
                trace_id: hex::encode(caller),
                span_id: spans.and_then(|ids| ids.get(row)).map(hex::encode).unwrap_or_default(),
                name: names[row].clone().unwrap_or_default(),
                service: services[row].clone().unwrap_or_default(),
            });
        }
    }
    let laid_out = tokio::task::spawn_blocking(move || -> Result<Vec<u8>, String> {
        let (summary, batch) = view::layout(&id, &batches).map_err(|e| e.to_string())?;
        drop(batches);
        let mut text = serde_json::to_vec(&TraceView { summary, callers }).map_err(|e| e.to_string())?;
        while (text.len() + 4) % 8 != 0 {
            text.push(b' ');
        }
        let mut out = (text.len() as u32).to_le_bytes().to_vec();
        out.append(&mut text);
        let mut stream = ArrowStream::new(&batch.schema()).map_err(|e| e.to_string())?;
        stream.write(&batch).and_then(|()| stream.finish()).map_err(|e| e.to_string())?;
        out.append(&mut stream.drain());
        Ok(out)
    });
    let out = laid_out.await.map_err(|e| Problem::internal(e.to_string()))?.map_err(Problem::internal)?;
    let headers = [(header::CONTENT_TYPE, "application/octet-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, out).into_response())
}

/// A critical path that begins with a trace.
#[derive(Serialize, ToSchema)]
pub struct TracePath {
    #[serde(flatten)]
    path: CriticalPath,
    /// Nanoseconds since the epoch, as text.
    start_ns: String,
}

/// Returns the critical path of a trace: which span held it, moment by moment.
#[utoipa::path(get, path = "/api/v1/traces/{trace}/path", tag = "runs", params(("trace" = String, Path)), responses(
    (status = 200, description = "Parts in order, starting at `start_ns`, and their sums per name", body = TracePath),
    (status = 404, description = "No such trace", body = Problem, content_type = "application/problem+json"),
))]
pub async fn path(State(app): State<App>, Path(trace): Path<String>, params: Params) -> Result<Response, Problem> {
    params.done()?;
    let id = params::trace_id(&trace)?;
    let (start_ns, path) = app.answers.trace_path(id).await?;
    to_json(&TracePath { path, start_ns: start_ns.to_string() })
}
