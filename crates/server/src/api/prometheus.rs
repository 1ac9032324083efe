//! `/prometheus/api/v1`: Prometheus's HTTP query API over the table `series`, so that Grafana, promtool and other
//! clients can use it. Parameters, responses and errors are Prometheus's. Queries may come by GET or as a POSTed form.

use std::fmt::Write as _;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rollscope_alarms::Wanted;
use rollscope_app::duration::parse_duration;
use rollscope_model::time::now_ns;
use rollscope_query::promql::{Labels, Points, PromAnswer, PromQuery, SeriesInfo, kinds, label_names, label_values};
use rollscope_query::{ErrorKind, QueryError};

use super::json;
use crate::App;
use crate::metrics::add;
use crate::params::pairs;
use crate::problem::Problem;

/// Selectors in one question.
const MAX_SELECTORS: usize = 100;

pub fn router() -> Router<App> {
    Router::new()
        .route("/query", get(query).post(query))
        .route("/query_range", get(query_range).post(query_range))
        .route("/series", get(series).post(series))
        .route("/labels", get(labels).post(labels))
        .route("/label/{name}/values", get(values))
        .route("/metadata", get(metadata))
        .route("/rules", get(rules))
        .route("/alerts", get(alerts))
        .route("/status/buildinfo", get(buildinfo))
        .fallback(unknown)
}

/// What went wrong, in Prometheus's form.
struct Failed {
    status: StatusCode,
    kind: &'static str,
    message: String,
}

impl Failed {
    fn bad(message: impl Into<String>) -> Self {
        Failed { status: StatusCode::BAD_REQUEST, kind: "bad_data", message: message.into() }
    }
}

impl From<QueryError> for Failed {
    fn from(error: QueryError) -> Self {
        let (status, kind) = match error.kind {
            ErrorKind::Parse => (StatusCode::BAD_REQUEST, "bad_data"),
            ErrorKind::Plan | ErrorKind::NotFound => (StatusCode::UNPROCESSABLE_ENTITY, "execution"),
            ErrorKind::Limit if error.message.contains("timeout") => (StatusCode::SERVICE_UNAVAILABLE, "timeout"),
            ErrorKind::Limit => (StatusCode::UNPROCESSABLE_ENTITY, "execution"),
            ErrorKind::Cancelled => (client_closed_request(), "canceled"),
            ErrorKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        };
        Failed { status, kind, message: error.message }
    }
}

/// 499, Prometheus's status for a query that was given up.
fn client_closed_request() -> StatusCode {
    StatusCode::from_u16(499).expect("a status has three digits")
}

impl From<Problem> for Failed {
    fn from(problem: Problem) -> Self {
        let kind = if problem.status().is_server_error() { "internal" } else { "bad_data" };
        Failed { status: problem.status(), kind, message: problem.detail().to_string() }
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let body = serde_json::json!({ "status": "error", "errorType": self.kind, "error": self.message });
        (self.status, json(body.to_string())).into_response()
    }
}

async fn unknown(request: Request) -> Response {
    unknown_path(request.uri().path())
}

pub(super) fn unknown_path(path: &str) -> Response {
    let message = format!("there is no {path}; docs/serving.md describes PromQL in rollscope");
    Failed { status: StatusCode::NOT_FOUND, kind: "not_found", message }.into_response()
}

/// Parameters of the address and of the form.
struct Form(Vec<(String, String)>);

impl Form {
    async fn from_request(app: &App, request: Request) -> Result<Form, Failed> {
        let mut all: Vec<_> = pairs(request.uri().query().unwrap_or("")).collect();
        if request.method() == axum::http::Method::POST {
            let kind = request.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
            if !kind.starts_with("application/x-www-form-urlencoded") {
                return Err(Failed::bad("the content type must be application/x-www-form-urlencoded"));
            }
            let body = app.read_api_body(request.into_body()).await?;
            let text = std::str::from_utf8(&body).map_err(|_| Failed::bad("the form is not valid UTF-8"))?;
            all.extend(pairs(text));
        }
        Ok(Form(all))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// A time in milliseconds.
    fn time(&self, name: &str) -> Result<Option<i64>, Failed> {
        self.get(name)
            .map(|text| {
                time(text).ok_or_else(|| {
                    Failed::bad(format!("invalid parameter \"{name}\": cannot parse {text:?} to a valid timestamp"))
                })
            })
            .transpose()
    }

    /// How many results at most. 0 and nothing mean all.
    fn limit(&self) -> Result<usize, Failed> {
        match self.get("limit").unwrap_or_default() {
            "" | "0" => Ok(usize::MAX),
            text => text.parse().map_err(|_| {
                Failed::bad(format!("invalid parameter \"limit\": {text:?} is not a non-negative integer"))
            }),
        }
    }

    /// How long the client is ready to wait.
    fn timeout(&self) -> Result<Option<Duration>, Failed> {
        let Some(text) = self.get("timeout").filter(|t| !t.is_empty()) else { return Ok(None) };
        match step(text) {
            Some(ms) => Ok(Some(Duration::from_millis(ms as u64))),
            None => {
                Err(Failed::bad(format!("invalid parameter \"timeout\": cannot parse {text:?} to a valid duration")))
            }
        }
    }

    fn query(&self) -> Result<PromQuery, Failed> {
        let text = self.get("query").unwrap_or_default();
        PromQuery::parse(text).map_err(|e| Failed::bad(format!("invalid parameter \"query\": {}", e.message)))
    }

    fn selectors(&self) -> Result<Vec<Vec<rollscope_query::promql::Matcher>>, Failed> {
        let texts: Vec<&str> = self.0.iter().filter(|(n, _)| n == "match[]").map(|(_, v)| v.as_str()).collect();
        if texts.len() > MAX_SELECTORS {
            return Err(Failed::bad(format!("more than {MAX_SELECTORS} selectors")));
        }
        let parse = |text: &&str| {
            PromQuery::selector(text).map_err(|e| Failed::bad(format!("invalid parameter \"match[]\": {}", e.message)))
        };
        texts.iter().map(parse).collect()
    }
}

/// For the fuzz target: all parameters but the query, which has a target of its own.
pub(super) fn exercise(query: &str) {
    let form = Form(pairs(query).collect());
    let _ = (form.time("time"), form.time("start"), form.time("end"), form.limit(), form.timeout(), form.selectors());
    let _ = form.get("step").map(step);
}

/// Seconds since the epoch, or RFC 3339.
fn time(text: &str) -> Option<i64> {
    if let Ok(seconds) = text.parse::<f64>() {
        return (seconds.is_finite() && seconds.abs() < 1e12).then(|| (seconds * 1000.0).round() as i64);
    }
    Some(chrono::DateTime::parse_from_rfc3339(text).ok()?.timestamp_millis())
}

/// Seconds as a number, or a duration.
fn step(text: &str) -> Option<i64> {
    let ms = match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds < 1e10 => (seconds * 1000.0).round() as i64,
        Ok(_) => return None,
        Err(_) => i64::try_from(parse_duration(text).ok()?.as_millis()).ok()?,
    };
    (ms > 0).then_some(ms)
}

fn number(v: f64) -> String {
    if v.is_nan() {
        "NaN".into()
    } else if v.is_infinite() {
        if v > 0.0 { "+Inf".into() } else { "-Inf".into() }
    } else {
        v.to_string()
    }
}

fn write_text(out: &mut String, text: &str) {
    out.push_str(&serde_json::to_string(text).expect("text is JSON"));
}

fn write_labels(out: &mut String, labels: &Labels) {
    out.push('{');
    for (i, (name, value)) in labels.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_text(out, name);
        out.push(':');
        write_text(out, value);
    }
    out.push('}');
}

fn write_point(out: &mut String, (ms, value): (i64, f64)) {
    let (seconds, millis) = (ms.div_euclid(1000), ms.rem_euclid(1000));
    let _ = match millis {
        0 => write!(out, "[{seconds},\"{}\"]", number(value)),
        _ => write!(out, "[{seconds}.{millis:03},\"{}\"]", number(value)),
    };
}

fn write_points(out: &mut String, points: &Points) {
    out.push('[');
    for (i, point) in points.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_point(out, *point);
    }
    out.push(']');
}

fn success(data: &str) -> Response {
    json(format!("{{\"status\":\"success\",\"data\":{data}}}"))
}

/// With Prometheus's own words where results were left out.
fn success_of(data: &str, truncated: bool) -> Response {
    match truncated {
        false => success(data),
        true => json(format!(
            "{{\"status\":\"success\",\"data\":{data},\"warnings\":[\"results truncated due to limit\"]}}"
        )),
    }
}

/// Keeps at most `limit`. Were there more?
fn cut<T>(list: &mut Vec<T>, limit: usize) -> bool {
    let more = list.len() > limit;
    list.truncate(limit);
    more
}

async fn work_out(
    app: &App,
    form: &Form,
    query: PromQuery,
    (start, end, step): (i64, i64, i64),
) -> Result<PromAnswer, Failed> {
    add(&app.counters.queries, 1);
    let answer = app.engine.promql(query, start, end, step, &app.promql);
    let Some(timeout) = form.timeout()? else { return Ok(answer.await?) };
    match tokio::time::timeout(timeout, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Failed {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: "timeout",
            message: "query timed out in expression evaluation: it took longer than the parameter \"timeout\"".into(),
        }),
    }
}

fn write_rows(out: &mut String, rows: &[(Labels, Points)], key: &str, mut points: impl FnMut(&mut String, &Points)) {
    out.push('[');
    for (i, (labels, values)) in rows.iter().enumerate() {
        out.push_str(if i > 0 { ",{\"metric\":" } else { "{\"metric\":" });
        write_labels(out, labels);
        let _ = write!(out, ",\"{key}\":");
        points(out, values);
        out.push('}');
    }
    out.push(']');
}

fn matrix(rows: &[(Labels, Points)]) -> String {
    let mut out = String::from("{\"resultType\":\"matrix\",\"result\":");
    write_rows(&mut out, rows, "values", write_points);
    out.push('}');
    out
}

async fn query(State(app): State<App>, request: Request) -> Result<Response, Failed> {
    let form = Form::from_request(&app, request).await?;
    let now = now_ns() / 1_000_000;
    let limit = form.limit()?;
    let at = form.time("time")?.unwrap_or(now);
    let mut truncated = false;
    let data = match work_out(&app, &form, form.query()?, (at, at, 1)).await? {
        PromAnswer::Scalar(points) => {
            let mut out = String::from("{\"resultType\":\"scalar\",\"result\":");
            write_point(&mut out, points.first().copied().unwrap_or((at, f64::NAN)));
            out + "}"
        }
        PromAnswer::Text(text) => {
            let mut out = String::from("{\"resultType\":\"string\",\"result\":[");
            let _ = write!(out, "{},", at as f64 / 1000.0);
            write_text(&mut out, &text);
            out + "]}"
        }
        PromAnswer::Vector(mut rows) => {
            truncated = cut(&mut rows, limit);
            let mut out = String::from("{\"resultType\":\"vector\",\"result\":");
            write_rows(&mut out, &rows, "value", |out, points| write_point(out, points[0]));
            out + "}"
        }
        PromAnswer::Matrix(mut rows) => {
            truncated = cut(&mut rows, limit);
            matrix(&rows)
        }
    };
    Ok(success_of(&data, truncated))
}

async fn query_range(State(app): State<App>, request: Request) -> Result<Response, Failed> {
    let form = Form::from_request(&app, request).await?;
    let limit = form.limit()?;
    let needed = |name: &str| Failed::bad(format!("missing parameter \"{name}\""));
    let start = form.time("start")?.ok_or_else(|| needed("start"))?;
    let end = form.time("end")?.ok_or_else(|| needed("end"))?;
    let text = form.get("step").ok_or_else(|| needed("step"))?;
    let step = step(text).ok_or_else(|| {
        Failed::bad(format!(
            "invalid parameter \"step\": {text:?} is neither a positive number of seconds nor a duration"
        ))
    })?;
    if end < start {
        return Err(Failed::bad("invalid parameter \"end\": end timestamp must not be before start time"));
    }
    if (end - start) / step >= app.promql.promql_max_steps as i64 {
        return Err(Failed::bad(format!(
            "exceeded maximum resolution of {} points per timeseries. Try decreasing the query resolution (?step=XX)",
            app.promql.promql_max_steps
        )));
    }
    let query = form.query()?;
    let wrong_type = || {
        Failed::bad(
            "invalid parameter \"query\": invalid expression type for range query, must be Scalar or instant Vector",
        )
    };
    if !query.has_steps() {
        return Err(wrong_type());
    }
    let mut truncated = false;
    let data = match work_out(&app, &form, query, (start, end, step)).await? {
        PromAnswer::Scalar(points) => matrix(&[(Labels::default(), points)]),
        PromAnswer::Vector(mut rows) => {
            rows.sort_by(|a, b| a.0.cmp(&b.0));
            truncated = cut(&mut rows, limit);
            matrix(&rows)
        }
        PromAnswer::Text(_) | PromAnswer::Matrix(_) => return Err(wrong_type()),
    };
    Ok(success_of(&data, truncated))
}

async fn found(app: &App, form: &Form) -> Result<Vec<SeriesInfo>, Failed> {
    // Without a time: everything there is.
    let start = form.time("start")?.unwrap_or(0);
    let end = form.time("end")?.unwrap_or(i64::MAX / 2_000_000);
    Ok(app.engine.promql_series(form.selectors()?, start, end, &app.promql).await?)
}

async fn series(State(app): State<App>, request: Request) -> Result<Response, Failed> {
    let form = Form::from_request(&app, request).await?;
    if form.selectors()?.is_empty() {
        return Err(Failed::bad("no match[] parameter provided"));
    }
    let limit = form.limit()?;
    let mut found = found(&app, &form).await?;
    let truncated = cut(&mut found, limit);
    let mut out = String::from("[");
    for (i, series) in found.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_labels(&mut out, &series.labels);
    }
    Ok(success_of(&(out + "]"), truncated))
}

fn list(texts: impl IntoIterator<Item = String>, limit: usize) -> Response {
    let mut texts: Vec<String> = texts.into_iter().collect();
    let truncated = cut(&mut texts, limit);
    success_of(&serde_json::to_string(&texts).expect("text is JSON"), truncated)
}

async fn labels(State(app): State<App>, request: Request) -> Result<Response, Failed> {
    let form = Form::from_request(&app, request).await?;
    let limit = form.limit()?;
    Ok(list(label_names(&found(&app, &form).await?), limit))
}

async fn values(State(app): State<App>, Path(name): Path<String>, request: Request) -> Result<Response, Failed> {
    let form = Form::from_request(&app, request).await?;
    let limit = form.limit()?;
    Ok(list(label_values(&found(&app, &form).await?, &name), limit))
}

/// Kinds of metrics. Help texts and units are not kept.
async fn metadata(State(app): State<App>, request: Request) -> Result<Response, Failed> {
    let form = Form::from_request(&app, request).await?;
    let wanted = form.get("metric").map(str::to_string);
    // Here, as in Prometheus, 0 means none, and what is below zero means all. There is one entry per metric.
    let number = |name: &str| match form.get(name).filter(|text| !text.is_empty()) {
        None => Ok(usize::MAX),
        Some(text) => match text.parse::<i64>() {
            Ok(n) => Ok(usize::try_from(n).unwrap_or(usize::MAX)),
            Err(_) => Err(Failed::bad(format!("{name} must be a number"))),
        },
    };
    number("limit_per_metric")?;
    let limit = number("limit")?;
    let all = kinds(&found(&app, &Form(Vec::new())).await?);
    let kept = all.into_iter().filter(|(name, _)| wanted.as_ref().is_none_or(|w| w == name)).take(limit);
    let data: serde_json::Map<String, serde_json::Value> =
        kept.map(|(name, kind)| (name, serde_json::json!([{ "type": kind, "help": "", "unit": "" }]))).collect();
    Ok(success(&serde_json::Value::Object(data).to_string()))
}

/// Rules with their state.
async fn rules(State(app): State<App>, request: Request) -> Result<Response, Failed> {
    let form = Form::from_request(&app, request).await?;
    let all = |name: &str| form.0.iter().filter(|(n, _)| n == name).map(|(_, v)| v.clone()).collect::<Vec<_>>();
    let (alerting, recording) = match form.get("type").unwrap_or_default() {
        "" => (true, true),
        "alert" => (true, false),
        "record" => (false, true),
        other => return Err(Failed::bad(format!("invalid parameter \"type\": not supported value {other:?}"))),
    };
    let without_alerts = match form.get("exclude_alerts").unwrap_or_default() {
        "" | "false" | "0" => false,
        "true" | "1" => true,
        other => return Err(Failed::bad(format!("invalid parameter \"exclude_alerts\": {other:?} is not a boolean"))),
    };
    let (names, groups, files) = (all("rule_name[]"), all("rule_group[]"), all("file[]"));
    let wanted = Wanted { alerting, recording, names, groups, files, without_alerts };
    Ok(success(&app.alarms.prometheus_rules(&wanted).to_string()))
}

/// Alarms that are pending or fire.
async fn alerts(State(app): State<App>) -> Response {
    success(&app.alarms.prometheus_alerts().to_string())
}

/// Grafana requests this to detect the kind of server. The language is that of Prometheus 3 (windows are open on the left).
async fn buildinfo() -> Response {
    let data = serde_json::json!({
        "version": "3.0.0", "revision": concat!("rollscope ", env!("CARGO_PKG_VERSION")), "branch": "", "buildUser": "",
        "buildDate": "", "goVersion": "",
    });
    success(&data.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_steps() {
        assert_eq!(time("1700000000.5"), Some(1_700_000_000_500));
        assert_eq!(time("2023-11-14T22:13:20Z"), Some(1_700_000_000_000));
        assert_eq!(time("2023-11-15T00:13:20.25+02:00"), Some(1_700_000_000_250));
        assert_eq!(time("1970-01-01T00:00:00Z"), Some(0));
        for bad in ["", "soon", "2023-13-14T22:13:20Z", "2023-11-14", "NaN"] {
            assert_eq!(time(bad), None, "{bad}");
        }
        assert_eq!((step("15"), step("0.5"), step("1m30s")), (Some(15_000), Some(500), Some(90_000)));
        assert_eq!((step("0"), step("-1"), step("x")), (None, None, None));
    }

    #[test]
    fn numbers_as_go_writes_them() {
        assert_eq!(
            [1.0, 0.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(number),
            ["1", "0.1", "NaN", "+Inf", "-Inf"]
        );
        let mut out = String::new();
        write_point(&mut out, (1_700_000_000_050, 1e21));
        assert_eq!(out, "[1700000000.050,\"1000000000000000000000\"]");
    }
}
