//! Metrics of a run, for charts and for Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use rollscope_app::listings::metrics::{self, MetricInfo, PointsAnswer};
use rollscope_app::query::{collect, float_column, int_column, sql_text, text_column};
use rollscope_app::sinks::SinkStatus;
use serde::Serialize;
use utoipa::ToSchema;

use super::to_json;
use crate::App;
use crate::params::Params;
use crate::problem::Problem;
use crate::run::Run;

#[derive(Serialize, ToSchema)]
pub struct MetricsAnswer {
    /// Sorted by name.
    metrics: Vec<MetricInfo>,
}

/// Lists the metrics of a run, each with its last, smallest and largest value.
#[utoipa::path(get, path = "/api/v1/runs/{run}/metrics", tag = "metrics", params(("run" = String, Path)),
    responses((status = 200, body = MetricsAnswer)))]
pub async fn metrics(State(app): State<App>, Run(run): Run, params: Params) -> Result<Response, Problem> {
    params.done()?;
    to_json(&MetricsAnswer { metrics: metrics::list(&app.engine, &run).await? })
}

/// Returns metrics over steps, time or tokens, thinned without hiding spikes.
#[utoipa::path(get, path = "/api/v1/runs/{run}/metrics/points", tag = "metrics", params(
    ("run" = String, Path),
    ("names" = String, Query, description = "Comma-separated names, or a JSON array of strings"),
    ("x" = Option<String>, Query, description = "Axis: step (default), time or tokens"),
    ("from" = Option<f64>, Query, description = "Start on the axis"),
    ("to" = Option<f64>, Query, description = "End on the axis"),
    ("points" = Option<i64>, Query, description = "Maximum number of points per metric. The default is 1000"),
), responses(
    (status = 200, body = PointsAnswer),
    (status = 400, description = "Invalid parameter", body = Problem, content_type = "application/problem+json"),
))]
pub async fn points(State(app): State<App>, Run(run): Run, params: Params) -> Result<Response, Problem> {
    to_json(&metrics::points(&app.engine, &run, params.0).await?)
}

#[derive(Serialize, ToSchema)]
pub struct SinksAnswer {
    sinks: Vec<SinkStatus>,
}

/// Lists the sinks that metrics are written to besides the store, with their state.
#[utoipa::path(get, path = "/api/v1/sinks", tag = "metrics", responses((status = 200, body = SinksAnswer)))]
pub async fn sinks(State(app): State<App>, params: Params) -> Result<Response, Problem> {
    params.done()?;
    to_json(&SinksAnswer { sinks: app.sinks.status() })
}

/// Replaces characters that Prometheus does not allow in a name.
fn prometheus_name(name: &str) -> String {
    let safe: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
    if safe.starts_with(|c: char| c.is_ascii_digit()) || safe.is_empty() { format!("_{safe}") } else { safe }
}

fn prometheus_value(v: f64) -> String {
    match v {
        v if v.is_nan() => "NaN".into(),
        f64::INFINITY => "+Inf".into(),
        f64::NEG_INFINITY => "-Inf".into(),
        v => v.to_string(),
    }
}

/// The metrics of a run's last step as Prometheus text.
pub async fn last_step(State(app): State<App>, Run(run): Run) -> Result<Response, Problem> {
    let sql = format!(
        "select name, step, last_value(value order by time_ns) as value from metrics where run_id = {} and step = \
         (select max(step) from metrics where run_id = {}) group by name, step order by name",
        sql_text(&run),
        sql_text(&run)
    );
    let quote = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut families: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
    let mut step = None;
    for batch in collect(&app.engine, &sql).await? {
        let (names, values) = (text_column(&batch, "name")?, float_column(&batch, "value")?);
        step = step.or(int_column(&batch, "step")?.first().copied().flatten());
        for (name, value) in names.into_iter().zip(values) {
            if let (Some(name), Some(value)) = (name, value) {
                families.entry(prometheus_name(&name)).or_default().push((name, value));
            }
        }
    }
    let Some(step) = step else { return Err(Problem::not_found(format!("run `{run}` has no metrics with a step"))) };
    let run = quote(&run);
    let mut out = format!(
        "# HELP rollscope_step step of these metrics\n# TYPE rollscope_step gauge\nrollscope_step{{run=\"{run}\"}} {step}\n"
    );
    for (family, members) in families {
        let _ = writeln!(out, "# HELP {family} {}", quote(&members[0].0));
        let _ = writeln!(out, "# TYPE {family} gauge");
        for (name, value) in members {
            let _ = writeln!(out, "{family}{{run=\"{run}\",name=\"{}\"}} {}", quote(&name), prometheus_value(value));
        }
    }
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], out).into_response())
}
