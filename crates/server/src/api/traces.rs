//! Finding traces, and one trace laid out for a waterfall.

use std::collections::HashMap;

use arrow::array::RecordBatch;
use axum::extract::{Path, RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use rollscope_answers::critical_path::CriticalPath;
use rollscope_answers::traces::find::{Sort, TraceSearch, details_sql};
use rollscope_answers::traces::{requests, view};
use rollscope_app::duration::parse_duration;
use rollscope_app::encode::ArrowStream;
use rollscope_app::query::{collect, int_column, text_column};
use rollscope_model::TraceId;
use rollscope_model::read::{Ids, column};
use rollscope_query::scope::{Scope, ScopeRead};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::schema::AnyOfBuilder;
use utoipa::openapi::{Ref, RefOr, Schema};

use super::to_json;
use crate::App;
use crate::params::{self, Params, pairs};
use crate::problem::Problem;

/// The most traces in one response.
const MAX_LIMIT: usize = 5000;
/// The most conditions on attributes.
const MAX_ATTRIBUTES: usize = 20;

/// A trace as a point of a scatter plot.
#[derive(Serialize, ToSchema)]
pub struct TracePoint {
    trace_id: String,
    /// Nanoseconds, as text.
    start_ns: String,
    duration_ns: i64,
    spans: i64,
    /// Spans with an error.
    errors: i64,
    /// Spans that have not ended.
    open: i64,
}

/// Root, services and identity of a trace.
#[derive(Clone, Default, Serialize, ToSchema)]
pub struct TraceDetails {
    /// Name of the root.
    root: String,
    /// Service of the root.
    service: String,
    /// Number of services.
    services: i64,
    run_id: String,
    #[schema(required)]
    step: Option<i64>,
    #[schema(required)]
    sample_id: Option<String>,
    /// Request id of the serving engine.
    #[schema(required)]
    request_id: Option<String>,
}

/// A trace as a list shows it.
#[derive(Serialize, ToSchema)]
pub struct FoundTrace {
    #[serde(flatten)]
    point: TracePoint,
    #[serde(flatten)]
    details: TraceDetails,
}

#[derive(Serialize, ToSchema)]
pub struct TracePoints {
    traces: Vec<TracePoint>,
    /// Traces on all pages.
    total: i64,
    limit: usize,
    offset: usize,
}

#[derive(Serialize, ToSchema)]
pub struct FoundTraces {
    traces: Vec<FoundTrace>,
    /// Traces on all pages.
    total: i64,
    limit: usize,
    offset: usize,
}

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
    let (mut search, points) = parse(query.as_deref().unwrap_or(""))?;
    if let Some(run) = &mut search.run {
        *run = app.engine.find_run(run).await?;
    }
    let rows = collect(&app.engine, &search.sql()).await?;
    let mut traces: Vec<TracePoint> = Vec::new();
    let mut ids: Vec<TraceId> = Vec::new();
    let mut total = 0;
    for batch in &rows {
        let found = trace_ids(batch)?;
        let columns = ["start_ns", "duration_ns", "spans", "errors", "open", "total"];
        let [start, duration, spans, errors, open, all] = columns.map(|name| int_column(batch, name));
        let (start, duration, spans, errors, open, all) = (start?, duration?, spans?, errors?, open?, all?);
        for row in 0..batch.num_rows() {
            total = all[row].unwrap_or(0);
            ids.push(found[row]);
            traces.push(TracePoint {
                trace_id: hex::encode(found[row]),
                start_ns: start[row].unwrap_or(0).to_string(),
                duration_ns: duration[row].unwrap_or(0),
                spans: spans[row].unwrap_or(0),
                errors: errors[row].unwrap_or(0),
                open: open[row].unwrap_or(0),
            });
        }
    }
    let (limit, offset) = (search.limit, search.offset);
    if points {
        return to_json(&TracePoints { traces, total, limit, offset });
    }
    let details = describe(&app, &ids).await?;
    let of = |id| details.get(id).cloned().unwrap_or_default();
    let traces = traces.into_iter().zip(&ids).map(|(point, id)| FoundTrace { point, details: of(id) }).collect();
    to_json(&FoundTraces { traces, total, limit, offset })
}

/// Root, services and identity of the traces of one page.
async fn describe(app: &App, ids: &[TraceId]) -> Result<HashMap<TraceId, TraceDetails>, Problem> {
    let mut details = HashMap::new();
    if ids.is_empty() {
        return Ok(details);
    }
    for batch in collect(&app.engine, &details_sql(ids)).await? {
        let texts = ["root", "service", "run_id", "sample_id", "request_id"].map(|name| text_column(&batch, name));
        let [roots, names, runs, samples, requests] = texts;
        let (roots, names, runs, samples, requests) = (roots?, names?, runs?, samples?, requests?);
        let (services, steps) = (int_column(&batch, "services")?, int_column(&batch, "step")?);
        for (row, id) in trace_ids(&batch)?.into_iter().enumerate() {
            let found = TraceDetails {
                root: roots[row].clone().unwrap_or_default(),
                service: names[row].clone().unwrap_or_default(),
                services: services[row].unwrap_or(0),
                run_id: runs[row].clone().unwrap_or_default(),
                step: steps[row],
                sample_id: samples[row].clone(),
                request_id: requests[row].clone(),
            };
            details.insert(id, found);
        }
    }
    Ok(details)
}

pub fn trace_ids(batch: &RecordBatch) -> Result<Vec<TraceId>, Problem> {
    let ids: Ids<16> = column(batch, "trace_id").map_err(|e| Problem::internal(e.to_string()))?;
    Ok((0..batch.num_rows()).map(|row| ids.get(row).unwrap_or_default()).collect())
}

pub(super) fn parse(query: &str) -> Result<(TraceSearch, bool), Problem> {
    let mut search = TraceSearch::default();
    let mut points = false;
    let mut seen: Vec<String> = Vec::new();
    for (key, value) in pairs(query) {
        if value.len() > 4096 {
            return Err(Problem::parameter(&key, "at most 4096 bytes long"));
        }
        if key != "attr" && seen.contains(&key) {
            return Err(Problem::parameter(&key, "given only once"));
        }
        let number = |good: &str| value.parse::<i64>().map_err(|_| Problem::parameter(&key, good));
        let ns = "an integer: nanoseconds since the epoch";
        match key.as_str() {
            "run" => search.run = Some(value),
            "step" => search.step = Some(number("an integer")?),
            "sample" => search.sample = Some(value),
            "rid" => search.request = Some(value),
            "service" => search.service = Some(value),
            "name" => search.name = Some(value),
            "status" if ["unset", "ok", "error"].contains(&value.as_str()) => search.status = Some(value),
            "status" => return Err(Problem::parameter("status", "unset, ok or error")),
            "attr" => {
                let Some((name, wanted)) = value.split_once('=').filter(|(name, _)| !name.is_empty()) else {
                    return Err(Problem::parameter("attr", "KEY=VALUE"));
                };
                if search.attributes.len() == MAX_ATTRIBUTES {
                    return Err(Problem::parameter("attr", format!("given at most {MAX_ATTRIBUTES} times")));
                }
                search.attributes.push((name.to_string(), wanted.to_string()));
            }
            "from_ns" => search.from_ns = Some(number(ns)?),
            "to_ns" => search.to_ns = Some(number(ns)?),
            "min_duration" | "max_duration" => {
                let Some(ns) = duration_ns(&value) else {
                    return Err(Problem::parameter(&key, "a number and a unit, such as 250ms or 1.5s"));
                };
                *(if key == "min_duration" { &mut search.min_duration_ns } else { &mut search.max_duration_ns }) =
                    Some(ns);
            }
            "sort" => {
                let name = value.strip_prefix('-').unwrap_or(&value);
                let Some((_, sort)) = Sort::NAMES.iter().find(|(n, _)| *n == name) else {
                    return Err(Problem::parameter(
                        "sort",
                        "start, duration, spans or errors, with a leading `-` for descending order",
                    ));
                };
                (search.sort, search.descending) = (*sort, value.starts_with('-'));
            }
            "limit" => {
                search.limit = value
                    .parse()
                    .ok()
                    .filter(|n| (1..=MAX_LIMIT).contains(n))
                    .ok_or_else(|| Problem::parameter("limit", format!("a number from 1 to {MAX_LIMIT}")))?;
            }
            "offset" => {
                search.offset = value.parse().map_err(|_| Problem::parameter("offset", "a non-negative integer"))?;
            }
            "points" => points = value != "false",
            _ => {
                let known = "run, step, sample, rid, service, name, status, attr, from_ns, to_ns, min_duration, \
                             max_duration, sort, limit, offset, points";
                return Err(Problem::unknown_parameter(&key, &[known]));
            }
        }
        seen.push(key);
    }
    Ok((search, points))
}

pub fn duration_ns(text: &str) -> Option<i64> {
    i64::try_from(parse_duration(text).ok()?.as_nanos()).ok()
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
        max_rows: usize::MAX,
        too_many: String::new(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_judged_by_name() {
        let (search, points) = parse("attr=a=1&attr=b%3D=x&sort=-duration&limit=7&points").unwrap();
        assert_eq!(search.attributes, [("a".to_string(), "1".to_string()), ("b".to_string(), "=x".to_string())]);
        assert!(points && search.descending && search.sort == Sort::Duration && search.limit == 7);
        for (bad, name) in [
            ("limit=0", "limit"),
            ("sort=x", "sort"),
            ("stpe=1", "stpe"),
            ("step=1&step=2", "step"),
            ("attr=x", "attr"),
        ] {
            assert!(parse(bad).unwrap_err().detail().contains(name), "{bad}");
        }
    }
}
