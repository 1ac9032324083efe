//! What the timeline draws: spans of a step or a window, and the samples they belong to. Arrow, sorted by the server.

use std::collections::HashSet;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use rollscope_app::query::{collect, int_column, sql_text};
use rollscope_app::timeline::{self, Detail, Window};
use rollscope_model::{SpanId, Table, TraceId};
use rollscope_query::scope::{Traces, overlaps, traces};
use rollscope_store::{Snapshot, SnapshotSource};

use super::stream::{Format, respond};
use crate::App;
use crate::params::Params;
use crate::problem::Problem;
use crate::query;
use crate::run::Run;

const MOST_ITEMS: &str = "an integer from 1000 to 4000000";
/// Version of the store that a response shows, to pass as `since` next time.
const VERSION: HeaderName = HeaderName::from_static("rollscope-version");
/// `true` on a response to `since` that has only the traces which changed.
const DELTA: HeaderName = HeaderName::from_static("rollscope-delta");

pub(super) fn window(params: &mut Params) -> Result<Option<Window>, Problem> {
    let good = "an integer: nanoseconds since the epoch";
    let step = params.number("step", "an integer; see GET /api/v1/runs/{run}/steps")?;
    let (from, to) = (params.number("from_ns", good)?, params.number("to_ns", good)?);
    match (step, from, to) {
        (Some(step), None, None) => Ok(Some(Window::Step(step))),
        (None, Some(from), Some(to)) if from <= to => Ok(Some(Window::Time { from, to })),
        (None, Some(_), Some(_)) => Err(Problem::parameter("to_ns", "at least `from_ns`")),
        (None, Some(_), None) => Err(Problem::missing_parameter("to_ns", "the end of the window")),
        (None, None, Some(_)) => Err(Problem::missing_parameter("from_ns", "the start of the window")),
        (Some(_), _, _) => Err(Problem::parameter("step", "left out if `from_ns` or `to_ns` is given")),
        (None, None, None) => Ok(None),
    }
}

/// Returns the spans of a step or a time window as the page draws them.
///
/// An Arrow IPC stream of one packed batch, compressed if you accept zstd and it is kept so: parents as row numbers, lanes, sorted by sample, lane and start, without
/// attributes (`crates/formats/src/export/timeline` defines the columns). It includes spans of the same traces that name no
/// step or belong to another run, such as those of a serving engine, under the sample of their trace. Of more spans than `most`,
/// short ones that look alike and lie beside each other become one item, with a `weight`: how many they are, and in milliseconds
/// how long together (`total`) and the longest (`longest`). The header
/// `rollscope-version` gives the version of the store. Pass it as `since` to get only the traces that changed later, whole,
/// with `rollscope-delta: true`: they take the place of what you had of them. If those cannot be determined, you get all spans
/// with `rollscope-delta: false`.
#[utoipa::path(get, path = "/api/v1/runs/{run}/timeline", tag = "runs", params(
    ("run" = String, Path),
    ("step" = Option<i64>, Query, description = "Step. Pass this, or `from_ns` and `to_ns`"),
    ("from_ns" = Option<i64>, Query, description = "Start of a time window, in nanoseconds since the epoch"),
    ("to_ns" = Option<i64>, Query, description = "End of the time window"),
    ("live" = Option<u8>, Query, description = "1 if the step is running: open spans then reach to the newest time"),
    ("since" = Option<u64>, Query, description = "With `step`: only the traces that changed after this version"),
    ("most" = Option<u64>, Query, description = "Items that you want, about. 1,500,000 by default"),
    ("focus_from_ns" = Option<i64>, Query, description = "Where you look, in nanoseconds since the epoch: spans stay apart there as far as possible"),
    ("focus_to_ns" = Option<i64>, Query, description = "End of where you look"),
    ("focus_samples" = Option<String>, Query, description = "Samples at which you look, as a JSON list of texts. All by default. What belongs to no sample is always among them"),
    ("apart" = Option<String>, Query, description = "A span that stays apart wherever it is, as trace id, `.` and span id"),
), responses(
    (status = 200, description = "Spans", body = Vec<u8>, content_type = "application/vnd.apache.arrow.stream"),
    (status = 400, description = "Invalid parameter", body = Problem, content_type = "application/problem+json"),
    (status = 413, description = "Too many spans for one timeline", body = Problem, content_type = "application/problem+json"),
))]
pub async fn timeline(
    State(app): State<App>,
    Run(run): Run,
    asked: HeaderMap,
    mut params: Params,
) -> Result<Response, Problem> {
    let found = window(&mut params)?;
    let live = params.number::<u8>("live", "0 or 1")?.unwrap_or(0) == 1;
    let since = params.number::<u64>("since", "the `rollscope-version` of an earlier response")?;
    let detail = detail(&mut params)?;
    params.done()?;
    let Some(window) = found else {
        return Err(Problem::missing_parameter("step", "`step`, or `from_ns` and `to_ns`"));
    };
    // Taken before the rows are read: what comes in between is sent again, which does no harm.
    let snapshot = app.store.snapshot();
    let changed = match (since, window) {
        (Some(since), Window::Step(_)) => changed_traces(&snapshot, since)?,
        _ => None,
    };
    let delta = changed.is_some();
    let packed = match window {
        Window::Step(step) if !live && !delta => timeline::of_step(&app.answers, &run, step, detail).await?,
        window => timeline::read(&app.answers, &run, window, changed, live, detail).await?,
    };
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(Format::Arrow.content_type()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(VERSION, snapshot.version.into());
    headers.insert(DELTA, HeaderValue::from_static(if delta { "true" } else { "false" }));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if packed.is_zstd && takes_zstd(&asked) {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("zstd"));
        return Ok((headers, packed.bytes).into_response());
    }
    Ok((headers, packed.uncompressed(&app.engine).await?).into_response())
}

fn detail(params: &mut Params) -> Result<Detail, Problem> {
    let most = params.number::<usize>("most", MOST_ITEMS)?.unwrap_or(timeline::MOST);
    if !(1000..=timeline::MAX_ITEMS).contains(&most) {
        return Err(Problem::parameter("most", MOST_ITEMS));
    }
    let good = "an integer: nanoseconds since the epoch";
    let (from, to) = (params.number("focus_from_ns", good)?, params.number("focus_to_ns", good)?);
    let samples = params.text("focus_samples").map(serde_json::from_str::<HashSet<String>>).transpose();
    let samples = samples.map_err(|_| Problem::parameter("focus_samples", "a JSON list of texts"))?;
    let focus = match (from, to) {
        (None, None) if samples.is_none() => None,
        (from, to) => Some((from.unwrap_or(i64::MIN), to.unwrap_or(i64::MAX), samples)),
    };
    let apart = params.text("apart").map(span_of).transpose()?;
    Ok(Detail { most, focus, apart })
}

fn span_of(text: &str) -> Result<(TraceId, SpanId), Problem> {
    let (mut trace, mut span) = (TraceId::default(), SpanId::default());
    let ids = text.split_once('.').filter(|(of_trace, of_span)| {
        hex::decode_to_slice(of_trace, &mut trace).is_ok() && hex::decode_to_slice(of_span, &mut span).is_ok()
    });
    ids.map(|_| (trace, span))
        .ok_or_else(|| Problem::parameter("apart", "a trace id, `.` and a span id, in hexadecimal"))
}

/// Browsers undo it faster than they could read what it stands for.
fn takes_zstd(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|coding| coding.trim() == "zstd")
}

/// Traces that got spans after a version. `None` if the tail alone cannot tell.
fn changed_traces(snapshot: &Snapshot, since: u64) -> Result<Option<Traces>, Problem> {
    let Some(batches) = snapshot.tail_since(Table::Spans, since) else { return Ok(None) };
    let batches: Vec<RecordBatch> = batches.cloned().collect();
    traces(&batches).map(Some).map_err(internal)
}

fn internal(error: ArrowError) -> Problem {
    Problem::internal(error.to_string())
}

/// Returns the links between spans of a step or a time window.
///
/// An Arrow IPC stream: trace_id, span_id, to_trace_id, to_span_id.
#[utoipa::path(get, path = "/api/v1/runs/{run}/links", tag = "runs", params(
    ("run" = String, Path),
    ("step" = Option<i64>, Query, description = "Step. Pass this, or `from_ns` and `to_ns`"),
    ("from_ns" = Option<i64>, Query, description = "Start of a time window, in nanoseconds since the epoch"),
    ("to_ns" = Option<i64>, Query, description = "End of the time window"),
), responses(
    (status = 200, description = "Links", body = Vec<u8>, content_type = "application/vnd.apache.arrow.stream"),
    (status = 400, description = "Invalid parameter", body = Problem, content_type = "application/problem+json"),
))]
pub async fn links(State(app): State<App>, Run(run): Run, mut params: Params) -> Result<Response, Problem> {
    let found = window(&mut params)?;
    params.done()?;
    let run = sql_text(&run);
    let filter = match found {
        None => return Err(Problem::missing_parameter("step", "`step`, or `from_ns` and `to_ns`")),
        Some(Window::Time { from, to }) => overlaps(from, to),
        Some(Window::Step(step)) => {
            let own = format!("run_id = {run} and step = {step}");
            let sql =
                format!("select min(start_ns) as lo, max(coalesce(end_ns, start_ns)) as hi from spans where {own}");
            let range = collect(&app.engine, &sql).await?;
            let bound = |name| -> Result<i64, Problem> {
                let column = range.first().map(|b| int_column(b, name)).transpose()?;
                Ok(column.and_then(|c| c.first().copied().flatten()).unwrap_or(0))
            };
            format!("(({own}) or (step is null and {}))", overlaps(bound("lo")?, bound("hi")?))
        }
    };
    let sql = format!(
        "select trace_id, span_id, link['trace_id'] as to_trace_id, link['span_id'] as to_span_id from \
         (select trace_id, span_id, unnest(links) as link from spans where {filter} and cardinality(links) > 0)"
    );
    let answer = query::start(&app.engine, &app.counters, &sql).await?;
    respond(answer, Format::Arrow, u64::MAX).await
}

/// Returns the samples of a run, of one of its steps, or of a time window.
///
/// An Arrow IPC stream of the table `samples` or of some of its columns, sorted by step and sample.
#[utoipa::path(get, path = "/api/v1/runs/{run}/samples", tag = "runs", params(
    ("run" = String, Path),
    ("step" = Option<i64>, Query, description = "Step. Pass this, or `from_ns` and `to_ns`"),
    ("from_ns" = Option<i64>, Query, description = "Start of a time window, in nanoseconds since the epoch"),
    ("to_ns" = Option<i64>, Query, description = "End of the time window"),
    ("columns" = Option<String>, Query, description = "Comma-separated column names. All by default"),
), responses(
    (status = 200, description = "Samples", body = Vec<u8>, content_type = "application/vnd.apache.arrow.stream"),
    (status = 400, description = "Invalid parameter", body = Problem, content_type = "application/problem+json"),
))]
pub async fn samples(State(app): State<App>, Run(run): Run, mut params: Params) -> Result<Response, Problem> {
    let mut filter = format!("run_id = {}", sql_text(&run));
    let found = window(&mut params)?;
    let columns = params.columns(Table::Samples)?;
    params.done()?;
    match found {
        None => {}
        Some(Window::Step(step)) => filter.push_str(&format!(" and step = {step}")),
        Some(Window::Time { from, to }) => {
            filter.push_str(&format!(" and start_ns <= {to} and (end_ns is null or end_ns >= {from})"));
        }
    }
    let sql = format!("select {columns} from samples where {filter} order by step, sample_id");
    let answer = query::start(&app.engine, &app.counters, &sql).await?;
    respond(answer, Format::Arrow, u64::MAX).await
}

#[cfg(test)]
mod tests {
    use axum::extract::FromRequestParts;

    use super::*;

    async fn parse(query: &str) -> Result<Option<Window>, String> {
        let (mut parts, ()) = axum::http::Request::get(format!("/x?{query}")).body(()).unwrap().into_parts();
        let params = Params::from_request_parts(&mut parts, &()).await.map_err(|p| p.detail().to_string())?;
        let mut params = params;
        let found = window(&mut params).map_err(|p| p.detail().to_string())?;
        params.done().map_err(|p| p.detail().to_string())?;
        Ok(found)
    }

    #[tokio::test]
    async fn a_window_is_a_step_or_two_times() {
        assert_eq!(parse("step=-3").await, Ok(Some(Window::Step(-3))));
        assert_eq!(parse("from_ns=1&to_ns=2").await, Ok(Some(Window::Time { from: 1, to: 2 })));
        assert_eq!(parse("").await, Ok(None));
        for (bad, named) in [
            ("step=1.5", "`step`"),
            ("step=1&from_ns=2", "`step`"),
            ("from_ns=1", "`to_ns`"),
            ("to_ns=1", "`from_ns`"),
            ("from_ns=2&to_ns=1", "`to_ns`"),
            ("from_ns=1e9&to_ns=2", "`from_ns`"),
            ("stop=1", "`stop`"),
        ] {
            assert!(parse(bad).await.unwrap_err().contains(named), "{bad}");
        }
    }
}
