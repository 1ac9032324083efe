//! What the timeline draws: spans of a step or a window, and the samples they belong to. Arrow, sorted by the server.

use axum::extract::{Path, State};
use axum::response::Response;

use super::stream::{Format, respond};
use crate::App;
use crate::params::Params;
use crate::problem::Problem;
use crate::query::{self, collect, int_column, sql_text};

/// The columns of a timeline, in the order they are sent.
const COLUMNS: [&str; 15] = [
    "trace_id",
    "span_id",
    "parent_span_id",
    "name",
    "service",
    "phase",
    "thread",
    "host",
    "state",
    "status",
    "sample_id",
    "group_id",
    "attempt",
    "start_ns",
    "end_ns",
];

/// A step, or a window of time in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Window {
    Step(i64),
    Time { from: i64, to: i64 },
}

fn window(mut params: Params) -> Result<Option<Window>, Problem> {
    let good = "nanoseconds since the epoch, as an integer";
    let step = params.number("step", "an integer, as in GET /api/v1/runs/{run}/steps")?;
    let (from, to) = (params.number("from_ns", good)?, params.number("to_ns", good)?);
    params.done()?;
    match (step, from, to) {
        (Some(step), None, None) => Ok(Some(Window::Step(step))),
        (None, Some(from), Some(to)) if from <= to => Ok(Some(Window::Time { from, to })),
        (None, Some(_), Some(_)) => Err(Problem::parameter("to_ns", "no less than `from_ns`")),
        (None, Some(_), None) => Err(Problem::parameter("to_ns", "given together with `from_ns`")),
        (None, None, Some(_)) => Err(Problem::parameter("from_ns", "given together with `to_ns`")),
        (Some(_), _, _) => Err(Problem::parameter("step", "given alone, without `from_ns` and `to_ns`")),
        (None, None, None) => Ok(None),
    }
}

/// Spans that are there at some time between `from` and `to`.
fn overlaps(from: i64, to: i64) -> String {
    format!("start_ns <= {to} and (end_ns >= {from} or (end_ns is null and (state = 'open' or start_ns >= {from})))")
}

/// The spans of a step or a window, without their attributes.
///
/// An Arrow IPC stream, sorted by sample and start. Spans of the same traces that know of no step or sit in another run, such
/// as those of a serving engine, are there too, under the sample of their trace. Columns: trace_id, span_id, parent_span_id,
/// name, service, phase, thread, host, state, status, sample_id, group_id, attempt, start_ns, end_ns.
#[utoipa::path(get, path = "/api/v1/runs/{run}/timeline", tag = "runs", params(
    ("run" = String, Path),
    ("step" = Option<i64>, Query, description = "a step; or"),
    ("from_ns" = Option<i64>, Query, description = "a window of time"),
    ("to_ns" = Option<i64>, Query, description = "its end"),
), responses(
    (status = 200, description = "Spans", body = Vec<u8>, content_type = "application/vnd.apache.arrow.stream"),
    (status = 400, description = "A bad parameter", body = Problem, content_type = "application/problem+json"),
))]
pub async fn timeline(State(app): State<App>, Path(run): Path<String>, params: Params) -> Result<Response, Problem> {
    let run = sql_text(&run);
    let (own, others, from, to) = match window(params)? {
        None => return Err(Problem::parameter("step", "given, or `from_ns` and `to_ns`")),
        Some(Window::Time { from, to }) => {
            (format!("run_id = {run} and {}", overlaps(from, to)), format!("run_id <> {run}"), from, to)
        }
        Some(Window::Step(step)) => {
            let own = format!("run_id = {run} and step = {step}");
            // The step's time bounds the search for spans that only its traces tell of.
            let range =
                format!("select min(start_ns) as lo, max(coalesce(end_ns, start_ns)) as hi from spans where {own}");
            let range = collect(&app.engine, &range).await?;
            let bound = |name| -> Result<Option<i64>, Problem> {
                Ok(range.first().map(|b| int_column(b, name)).transpose()?.and_then(|c| c.first().copied().flatten()))
            };
            (own, "step is null".to_string(), bound("lo")?.unwrap_or(0), bound("hi")?.unwrap_or(0))
        }
    };
    let answer = query::start(&app.engine, &app.counters, &timeline_sql(&own, &others, from, to)).await?;
    respond(answer, Format::Arrow, u64::MAX).await
}

fn timeline_sql(own: &str, others: &str, from: i64, to: i64) -> String {
    let columns = COLUMNS.join(", ");
    let joined: Vec<String> = COLUMNS
        .iter()
        .map(|c| match *c {
            "sample_id" | "group_id" => format!("coalesce(s.{c}, t.{c}) as {c}"),
            c => format!("s.{c}"),
        })
        .collect();
    let joined = joined.join(", ");
    let overlaps = overlaps(from, to);
    let text = "arrow_cast(sample_id, 'Dictionary(Int32, Utf8)') as sample_id, \
                arrow_cast(group_id, 'Dictionary(Int32, Utf8)') as group_id";
    let outer = columns.replace("sample_id, group_id", text);
    // A trace of one sample lends its sample to spans that have none; a trace of many has none to lend.
    format!(
        "with own as (select {columns} from spans where {own}), \
         traces as (select trace_id, \
                           case when min(sample_id) = max(sample_id) then min(sample_id) end as sample_id, \
                           case when min(group_id) = max(group_id) then min(group_id) end as group_id \
                    from own group by trace_id), \
         others as (select {joined} from (select {columns} from spans where {others} and {overlaps}) s \
                    join traces t on s.trace_id = t.trace_id) \
         select {outer} from (select {columns} from own union all select {columns} from others) \
         order by sample_id, start_ns, span_id"
    )
}

/// The samples of a run, of one of its steps, or of a window.
///
/// An Arrow IPC stream of the table `samples`, sorted by step and sample.
#[utoipa::path(get, path = "/api/v1/runs/{run}/samples", tag = "runs", params(
    ("run" = String, Path),
    ("step" = Option<i64>, Query, description = "a step; or"),
    ("from_ns" = Option<i64>, Query, description = "a window of time"),
    ("to_ns" = Option<i64>, Query, description = "its end"),
), responses(
    (status = 200, description = "Samples", body = Vec<u8>, content_type = "application/vnd.apache.arrow.stream"),
    (status = 400, description = "A bad parameter", body = Problem, content_type = "application/problem+json"),
))]
pub async fn samples(State(app): State<App>, Path(run): Path<String>, params: Params) -> Result<Response, Problem> {
    let mut filter = format!("run_id = {}", sql_text(&run));
    match window(params)? {
        None => {}
        Some(Window::Step(step)) => filter.push_str(&format!(" and step = {step}")),
        Some(Window::Time { from, to }) => {
            filter.push_str(&format!(" and start_ns <= {to} and (end_ns is null or end_ns >= {from})"));
        }
    }
    let sql = format!("select * from samples where {filter} order by step, sample_id");
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
        window(params).map_err(|p| p.detail().to_string())
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
