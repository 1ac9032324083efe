//! Jaeger's HTTP query API, under `/jaeger`, so that Grafana's Jaeger data source and Jaeger's own page can be pointed here:
//! the unversioned one that they use, and version 3 (OTLP JSON). Its conventions are kept: an envelope around every response, times in
//! microseconds, a filter that must hold for one span, a missing trace as 404 with an error in the envelope. Parameters that we do
//! not know are ignored, as Jaeger does.

use std::collections::HashMap;

use arrow::array::RecordBatch;
use axum::Router;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use rollscope_answers::traces::find::{TraceSearch, orphans_sql, services_sql};
use rollscope_app::listings::traces::{duration_ns, trace_ids};
use rollscope_app::query::{collect, int_column, sql_text, text_column};
use rollscope_formats::export::{jaeger, otlp};
use rollscope_model::ids::trace_id_from_bytes;
use rollscope_model::time::now_ns;
use rollscope_model::{TraceId, time};
use rollscope_query::{ErrorKind, MAX_TRACE_SPANS, too_many_spans};
use serde_json::{Value, json};

use crate::App;
use crate::params::pairs;
use crate::problem::Problem;

const DEFAULT_LIMIT: usize = 100;
/// The most traces in one response.
const MAX_LIMIT: usize = 1500;
const MAX_OPERATIONS: usize = 10_000;
/// How far back a search goes by default.
const DEFAULT_LOOKBACK_NS: i64 = 2 * 24 * 3600 * time::NS_PER_S;

pub fn router(app: &App) -> Router {
    Router::new()
        .route("/jaeger/api/services", get(services))
        .route("/jaeger/api/services/{service}/operations", get(operation_names))
        .route("/jaeger/api/operations", get(operations))
        .route("/jaeger/api/traces", get(find))
        .route("/jaeger/api/traces/{trace}", get(one))
        .route("/jaeger/api/dependencies", get(dependencies))
        .route("/jaeger/api/v3/services", get(services_v3))
        .route("/jaeger/api/v3/operations", get(operations_v3))
        .route("/jaeger/api/v3/traces", get(find_v3))
        .route("/jaeger/api/v3/traces/{trace}", get(one_v3))
        .route("/jaeger/api/v3/trace-summaries", get(summaries_v3))
        .method_not_allowed_fallback(wrong_method)
        .with_state(app.clone())
}

/// An error in the shape that the API's clients expect.
struct Failure {
    status: StatusCode,
    message: String,
    v3: bool,
}

impl Failure {
    fn bad(message: impl Into<String>) -> Self {
        Failure { status: StatusCode::BAD_REQUEST, message: message.into(), v3: false }
    }

    fn not_found() -> Self {
        Failure { status: StatusCode::NOT_FOUND, message: "trace not found".into(), v3: false }
    }

    fn too_large(message: impl Into<String>) -> Self {
        Failure { status: StatusCode::PAYLOAD_TOO_LARGE, message: message.into(), v3: false }
    }

    fn v3(mut self) -> Self {
        self.v3 = true;
        self
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Failure { status: problem.status(), message: problem.detail().to_string(), v3: false }
    }
}

impl From<rollscope_app::problem::Problem> for Failure {
    fn from(problem: rollscope_app::problem::Problem) -> Self {
        Problem::from(problem).into()
    }
}

impl From<rollscope_query::QueryError> for Failure {
    fn from(error: rollscope_query::QueryError) -> Self {
        Problem::from(error).into()
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let code = self.status.as_u16();
        let body = if self.v3 {
            json!({ "error": { "httpCode": code, "message": self.message } })
        } else {
            json!({ "data": null, "total": 0, "limit": 0, "offset": 0, "errors": [{ "code": code, "msg": self.message }] })
        };
        (self.status, answer(body.to_string().into_bytes())).into_response()
    }
}

fn answer(body: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], body).into_response()
}

fn envelope(data: Value, total: usize) -> Response {
    let body = json!({ "data": data, "total": total, "limit": 0, "offset": 0, "errors": null });
    answer(body.to_string().into_bytes())
}

/// A path of Jaeger's that is not served here.
pub(super) fn unknown(path: &str) -> Response {
    let message = format!("there is no {path}; docs/jaeger.md lists the supported endpoints of Jaeger's API");
    Failure { status: StatusCode::NOT_FOUND, message, v3: path.starts_with("/jaeger/api/v3/") }.into_response()
}

async fn wrong_method(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let message = format!("{path} does not support {method}");
    Failure { status: StatusCode::METHOD_NOT_ALLOWED, message, v3: path.starts_with("/jaeger/api/v3/") }.into_response()
}

/// The query string, with all values of a name that is given several times.
struct Query(Vec<(String, String)>);

impl Query {
    fn new(query: &Option<String>) -> Result<Self, Failure> {
        let all: Vec<_> = pairs(query.as_deref().unwrap_or("")).collect();
        match all.iter().find(|(_, value)| value.len() > 4096) {
            Some((key, _)) => Err(Failure::bad(format!("parameter '{key}' is longer than 4096 bytes"))),
            None => Ok(Query(all)),
        }
    }

    fn get(&self, names: &[&str]) -> Option<&str> {
        let found = self.0.iter().find(|(key, value)| names.contains(&key.as_str()) && !value.is_empty());
        found.map(|(_, value)| value.as_str())
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &str) -> Result<Option<i64>, Failure> {
        match self.get(&[name]) {
            None => Ok(None),
            Some(text) => text
                .parse()
                .map(Some)
                .map_err(|_| Failure::bad(format!("unable to parse param '{name}': {text:?} is not a number"))),
        }
    }

    fn duration(&self, names: &[&str]) -> Result<Option<i64>, Failure> {
        match self.get(names) {
            None => Ok(None),
            Some(text) => duration_ns(text).map(Some).ok_or_else(|| {
                Failure::bad(format!(
                    "unable to parse param '{}': {text:?} is not a duration such as 1.2s, 100ms, 500us",
                    names[0]
                ))
            }),
        }
    }
}

async fn names(app: &App, sql: &str, column: &str) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    for batch in collect(&app.engine, sql).await? {
        found.extend(text_column(&batch, column)?.into_iter().flatten());
    }
    Ok(found)
}

async fn list_services(app: &App) -> Result<Vec<String>, Failure> {
    names(app, "select distinct service from spans order by service limit 10000", "service").await
}

async fn services(State(app): State<App>) -> Result<Response, Failure> {
    let found = list_services(&app).await?;
    let total = found.len();
    Ok(envelope(json!(found), total))
}

async fn services_v3(State(app): State<App>) -> Result<Response, Failure> {
    let found = list_services(&app).await.map_err(Failure::v3)?;
    Ok(answer(json!({ "services": found }).to_string().into_bytes()))
}

async fn operation_names(State(app): State<App>, Path(service): Path<String>) -> Result<Response, Failure> {
    let sql = format!(
        "select distinct name from spans where service = {} order by name limit {MAX_OPERATIONS}",
        sql_text(&service)
    );
    let found = names(&app, &sql, "name").await?;
    let total = found.len();
    Ok(envelope(json!(found), total))
}

async fn list_operations(app: &App, query: &Query) -> Result<Vec<Value>, Failure> {
    let Some(service) = query.get(&["service"]) else { return Err(Failure::bad("parameter 'service' is required")) };
    let kind = match query.get(&["spanKind", "span_kind"]) {
        Some(kind) => format!(" and kind = {}", sql_text(kind)),
        None => String::new(),
    };
    let sql = format!(
        "select distinct name, kind from spans where service = {}{kind} order by name, kind limit {MAX_OPERATIONS}",
        sql_text(service)
    );
    let mut found = Vec::new();
    for batch in collect(&app.engine, &sql).await? {
        let (names, kinds) = (text_column(&batch, "name")?, text_column(&batch, "kind")?);
        for (name, kind) in names.into_iter().zip(kinds) {
            let kind = kind.filter(|k| k != "unspecified").unwrap_or_else(|| "internal".into());
            found.push(json!({ "name": name, "spanKind": kind }));
        }
    }
    Ok(found)
}

async fn operations(State(app): State<App>, RawQuery(query): RawQuery) -> Result<Response, Failure> {
    let found = list_operations(&app, &Query::new(&query)?).await?;
    let total = found.len();
    Ok(envelope(json!(found), total))
}

async fn operations_v3(State(app): State<App>, RawQuery(query): RawQuery) -> Result<Response, Failure> {
    let found = list_operations(&app, &Query::new(&query).map_err(Failure::v3)?).await.map_err(Failure::v3)?;
    Ok(answer(json!({ "operations": found }).to_string().into_bytes()))
}

/// `{"key":"value"}` of a `tags` parameter.
fn tags(search: &mut TraceSearch, text: &str, parameter: &str) -> Result<(), Failure> {
    let parsed: Value = serde_json::from_str(text).map_err(|_| {
        Failure::bad(format!("malformed '{parameter}' parameter, expecting a JSON object of strings: {text}"))
    })?;
    let Some(object) = parsed.as_object() else {
        return Err(Failure::bad(format!(
            "malformed '{parameter}' parameter, expecting a JSON object of strings: {text}"
        )));
    };
    for (key, value) in object {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        search.attributes.push((key.clone(), value));
    }
    Ok(())
}

fn search(query: &Query) -> Result<TraceSearch, Failure> {
    let microseconds = |t: i64| t.saturating_mul(1000);
    let to = query.number("end")?.map_or_else(now_ns, microseconds);
    let from = query.number("start")?.map_or(to.saturating_sub(DEFAULT_LOOKBACK_NS), microseconds);
    let mut search = TraceSearch {
        service: query.get(&["service"]).map(str::to_string),
        // Jaeger's page sends "all" for any.
        name: query.get(&["operation"]).filter(|o| *o != "all").map(str::to_string),
        kind: query.get(&["spanKind"]).map(str::to_string),
        from_ns: Some(from),
        to_ns: Some(to.saturating_add(999)),
        min_span_ns: query.duration(&["minDuration"])?,
        max_span_ns: query.duration(&["maxDuration"])?,
        limit: query.number("limit")?.map_or(DEFAULT_LIMIT, |n| n.clamp(1, MAX_LIMIT as i64) as usize),
        ..TraceSearch::default()
    };
    if let (Some(min), Some(max)) = (search.min_span_ns, search.max_span_ns)
        && min > max
    {
        return Err(Failure::bad("'maxDuration' should be greater than 'minDuration'"));
    }
    for tag in query.all("tag") {
        let Some((key, value)) = tag.split_once(':') else {
            return Err(Failure::bad(format!("malformed 'tag' parameter, expecting key:value, received: {tag}")));
        };
        search.attributes.push((key.to_string(), value.to_string()));
    }
    for text in query.all("tags") {
        tags(&mut search, text, "tags")?;
    }
    if search.service.is_none() {
        return Err(Failure::bad("parameter 'service' is required"));
    }
    Ok(search)
}

/// For the fuzz target: both versions' searches, and ids.
pub(super) fn exercise(query: &str) {
    let Ok(query) = Query::new(&Some(query.to_string())) else { return };
    for found in [search(&query), search_v3(&query)].into_iter().flatten() {
        found.ids_sql();
    }
    for (_, value) in &query.0 {
        let _ = (parse_id(value), parse_id_v3(value));
    }
}

/// In version 3 an id may be base64 too, in either alphabet.
fn parse_id_v3(text: &str) -> Result<TraceId, Failure> {
    let bare = text.trim_end_matches('=');
    let base64 = || STANDARD_NO_PAD.decode(bare).or_else(|_| URL_SAFE_NO_PAD.decode(bare)).ok();
    match (parse_id(text), base64()) {
        (Err(_), Some(raw)) if raw.len() == 16 => Ok(trace_id_from_bytes(&raw)),
        (parsed, _) => parsed.map_err(Failure::v3),
    }
}

/// Hex of any length, with or without leading zeros.
fn parse_id(text: &str) -> Result<TraceId, Failure> {
    let padded = if text.len() % 2 == 1 { format!("0{text}") } else { text.to_string() };
    match hex::decode(&padded) {
        Ok(raw) if (1..=16).contains(&raw.len()) => Ok(trace_id_from_bytes(&raw)),
        _ => Err(Failure::bad(format!("{text:?} is not a trace id; expected up to 32 hex digits"))),
    }
}

/// The spans of traces, as far as they fit into one answer. A trace that is asked for alone is refused if it does not.
async fn fetch(app: &App, ids: &[TraceId]) -> Result<Vec<Vec<RecordBatch>>, Failure> {
    let (mut found, mut left) = (Vec::new(), MAX_TRACE_SPANS);
    for id in ids {
        match app.engine.trace_up_to(*id, left).await {
            Ok(Some(batches)) if batches.is_empty() => {}
            Ok(Some(batches)) => {
                left = left.saturating_sub(batches.iter().map(RecordBatch::num_rows).sum());
                found.push(batches);
            }
            Ok(None) if ids.len() == 1 => return Err(Failure::too_large(too_many_spans(id))),
            Ok(None) => {}
            // What was read so far is an answer.
            Err(error) if error.kind == ErrorKind::Limit && !found.is_empty() => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

async fn matching(app: &App, search: &TraceSearch) -> Result<Vec<TraceId>, Failure> {
    let mut ids = Vec::new();
    for batch in collect(&app.engine, &search.ids_sql()).await? {
        ids.extend(trace_ids(&batch)?);
    }
    Ok(ids)
}

async fn write(traces: Vec<Vec<RecordBatch>>) -> Result<Response, Failure> {
    let body = tokio::task::spawn_blocking(move || {
        let mut out = b"{\"data\":[".to_vec();
        let total = traces.len();
        for (n, trace) in traces.iter().enumerate() {
            if n > 0 {
                out.push(b',');
            }
            jaeger::write_trace(&mut out, trace);
        }
        out.extend_from_slice(format!("],\"total\":{total},\"limit\":0,\"offset\":0,\"errors\":null}}").as_bytes());
        out
    });
    Ok(answer(body.await.map_err(|e| Failure::from(Problem::internal(e.to_string())))?))
}

async fn find(State(app): State<App>, RawQuery(query): RawQuery) -> Result<Response, Failure> {
    let query = Query::new(&query)?;
    let ids: Vec<&str> = query.all("traceID").collect();
    let ids = if ids.is_empty() {
        matching(&app, &search(&query)?).await?
    } else {
        ids.into_iter().take(MAX_LIMIT).map(parse_id).collect::<Result<_, _>>()?
    };
    write(fetch(&app, &ids).await?).await
}

async fn one(State(app): State<App>, Path(trace): Path<String>) -> Result<Response, Failure> {
    let found = fetch(&app, &[parse_id(&trace)?]).await?;
    if found.is_empty() {
        return Err(Failure::not_found());
    }
    write(found).await
}

/// Which service calls which: parents and children of different services.
async fn dependencies(State(app): State<App>, RawQuery(query): RawQuery) -> Result<Response, Failure> {
    let query = Query::new(&query)?;
    let milliseconds = |t: i64| t.saturating_mul(1_000_000);
    let to = query.number("endTs")?.map_or_else(now_ns, milliseconds);
    let lookback = query.number("lookback")?.map_or(24 * 3600 * time::NS_PER_S, milliseconds);
    let from = to.saturating_sub(lookback);
    let only = match query.get(&["service"]) {
        Some(service) => format!(" and (p.service = {0} or c.service = {0})", sql_text(service)),
        None => String::new(),
    };
    let sql = format!(
        "select p.service as parent, c.service as child, count(*) as calls \
         from (select trace_id, parent_span_id, service from spans where parent_span_id is not null \
               and start_ns between {from} and {to}) c \
         join (select trace_id, span_id, service from spans where start_ns <= {to}) p \
           on c.trace_id = p.trace_id and c.parent_span_id = p.span_id \
         where p.service <> c.service{only} group by 1, 2 order by 1, 2 limit 10000"
    );
    let mut links = Vec::new();
    for batch in collect(&app.engine, &sql).await? {
        let (parents, children) = (text_column(&batch, "parent")?, text_column(&batch, "child")?);
        let calls = int_column(&batch, "calls")?;
        for row in 0..batch.num_rows() {
            links.push(json!({ "parent": parents[row], "child": children[row], "callCount": calls[row] }));
        }
    }
    let total = links.len();
    Ok(envelope(json!(links), total))
}

/// `{"result":{"resourceSpans":[...]}}`.
async fn write_v3(traces: Vec<Vec<RecordBatch>>) -> Result<Response, Failure> {
    let body = tokio::task::spawn_blocking(move || -> Result<Vec<u8>, String> {
        let batches: Vec<RecordBatch> = traces.into_iter().flatten().collect();
        let schema = batches[0].schema();
        let all = arrow::compute::concat_batches(&schema, &batches).map_err(|e| e.to_string())?;
        let mut out = b"{\"result\":".to_vec();
        otlp::write_json_line(&all, &mut out).map_err(|e| e.to_string())?;
        out.push(b'}');
        Ok(out)
    });
    let body = body.await.map_err(|e| e.to_string()).and_then(|b| b);
    Ok(answer(body.map_err(|e| Failure::from(Problem::internal(e)).v3())?))
}

fn none_v3() -> Failure {
    Failure { status: StatusCode::NOT_FOUND, message: "No traces found".into(), v3: true }
}

async fn one_v3(State(app): State<App>, Path(trace): Path<String>) -> Result<Response, Failure> {
    let found = fetch(&app, &[parse_id_v3(&trace)?]).await.map_err(Failure::v3)?;
    if found.is_empty() {
        return Err(none_v3());
    }
    write_v3(found).await
}

async fn find_v3(State(app): State<App>, RawQuery(query): RawQuery) -> Result<Response, Failure> {
    let ids = match search_v3(&Query::new(&query).map_err(Failure::v3)?) {
        Ok(search) => matching(&app, &search).await.map_err(Failure::v3)?,
        Err(failure) => return Err(failure.v3()),
    };
    let found = fetch(&app, &ids).await.map_err(Failure::v3)?;
    if found.is_empty() {
        return Err(none_v3());
    }
    write_v3(found).await
}

/// What a list of traces shows: Jaeger's page searches with this since 2.19, and fetches a trace when it is opened.
async fn summaries_v3(State(app): State<App>, RawQuery(query): RawQuery) -> Result<Response, Failure> {
    let search = Query::new(&query).and_then(|query| search_v3(&query)).map_err(Failure::v3)?;
    let ids = matching(&app, &search).await.map_err(Failure::v3)?;
    let summaries = summaries(&app, &ids).await.map_err(Failure::v3)?;
    Ok(answer(json!({ "summaries": summaries }).to_string().into_bytes()))
}

/// One trace in a list.
#[derive(Default)]
struct Summary {
    start_ns: Option<i64>,
    end_ns: Option<i64>,
    spans: i64,
    errors: i64,
    orphans: i64,
    /// When the root began, its service and its name.
    root: Option<(i64, String, String)>,
    services: Vec<Value>,
}

async fn summaries(app: &App, ids: &[TraceId]) -> Result<Vec<Value>, Failure> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut found: HashMap<TraceId, Summary> = HashMap::new();
    for batch in collect(&app.engine, &services_sql(ids)).await? {
        let (services, roots) = (text_column(&batch, "service")?, text_column(&batch, "root")?);
        let [spans, errors, start, end, root_ns] =
            ["spans", "errors", "start_ns", "end_ns", "root_ns"].map(|name| int_column(&batch, name));
        let (spans, errors, start, end, root_ns) = (spans?, errors?, start?, end?, root_ns?);
        for (row, id) in trace_ids(&batch)?.into_iter().enumerate() {
            let trace = found.entry(id).or_default();
            let service = services[row].clone().unwrap_or_default();
            let (n, bad) = (spans[row].unwrap_or(0), errors[row].unwrap_or(0));
            trace.spans += n;
            trace.errors += bad;
            trace.start_ns = [trace.start_ns, start[row]].into_iter().flatten().min();
            trace.end_ns = trace.end_ns.max(end[row]);
            trace.services.push(json!({ "name": service, "spanCount": n, "errorSpanCount": bad }));
            if let Some(at) = root_ns[row]
                && trace.root.as_ref().is_none_or(|(first, ..)| at < *first)
            {
                trace.root = Some((at, service, roots[row].clone().unwrap_or_default()));
            }
        }
    }
    for batch in collect(&app.engine, &orphans_sql(ids)).await? {
        for (id, orphans) in trace_ids(&batch)?.into_iter().zip(int_column(&batch, "orphans")?) {
            found.entry(id).or_default().orphans = orphans.unwrap_or(0);
        }
    }
    // Times are nanoseconds as text: they do not fit the numbers of JavaScript.
    let listed = ids.iter().filter_map(|id| Some((id, found.remove(id)?)));
    let listed = listed.map(|(id, trace)| {
        let (_, service, operation) = trace.root.unwrap_or_default();
        json!({
            "traceId": hex::encode(id),
            "rootServiceName": service,
            "rootOperationName": operation,
            "minStartTimeUnixNano": trace.start_ns.unwrap_or(0).to_string(),
            "maxEndTimeUnixNano": trace.end_ns.unwrap_or(0).to_string(),
            "spanCount": trace.spans,
            "errorSpanCount": trace.errors,
            "orphanSpanCount": trace.orphans,
            "services": trace.services,
        })
    });
    Ok(listed.collect())
}

fn search_v3(query: &Query) -> Result<TraceSearch, Failure> {
    if query.get(&["query.filter"]).is_some() {
        return Err(Failure::bad("query.filter is not supported; use query.attributes"));
    }
    let time = |names: &[&str]| match query.get(names) {
        None => Err(Failure::bad("query.startTimeMin and query.startTimeMax are required")),
        Some(text) => {
            rfc3339_ns(text).ok_or_else(|| Failure::bad(format!("malformed parameter {}: {text:?}", names[0])))
        }
    };
    let from = time(&["query.startTimeMin", "query.start_time_min"])?;
    let to = time(&["query.startTimeMax", "query.start_time_max"])?;
    if from >= to {
        return Err(Failure::bad("query.startTimeMin must be before query.startTimeMax"));
    }
    let depth = query.get(&["query.searchDepth", "query.search_depth", "query.num_traces"]);
    let depth = match depth {
        None => DEFAULT_LIMIT,
        Some(text) => text
            .parse::<usize>()
            .map_err(|_| Failure::bad(format!("malformed parameter query.searchDepth: {text:?}")))?
            .clamp(1, MAX_LIMIT),
    };
    let mut search = TraceSearch {
        service: query.get(&["query.serviceName", "query.service_name"]).map(str::to_string),
        name: query.get(&["query.operationName", "query.operation_name"]).map(str::to_string),
        from_ns: Some(from),
        to_ns: Some(to),
        min_span_ns: query.duration(&["query.durationMin", "query.duration_min"])?,
        max_span_ns: query.duration(&["query.durationMax", "query.duration_max"])?,
        limit: depth,
        ..TraceSearch::default()
    };
    if let Some(text) = query.get(&["query.attributes"]) {
        tags(&mut search, text, "query.attributes")?;
    }
    Ok(search)
}

/// `2026-11-15T13:00:00.123456789Z`, also with an offset such as `+02:00`.
fn rfc3339_ns(text: &str) -> Option<i64> {
    chrono::DateTime::parse_from_rfc3339(text).ok()?.timestamp_nanos_opt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_version_three() {
        for (text, ns) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2026-11-15T13:00:00.5Z", 1_794_747_600_500_000_000),
            ("2026-11-15T15:00:00.123456789+02:00", 1_794_747_600_123_456_789),
            ("2000-02-29T12:00:00Z", 951_825_600_000_000_000),
        ] {
            assert_eq!(rfc3339_ns(text), Some(ns), "{text}");
        }
        for bad in [
            "",
            "2026-11-15",
            "2026-13-15T13:00:00Z",
            "2026-11-15T13:00:00",
            "2026-11-15T13:00:00.Z!",
            "2026-02-30T00:00:00Z",
        ] {
            assert_eq!(rfc3339_ns(bad), None, "{bad}");
        }
    }
}
