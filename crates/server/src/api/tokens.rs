//! What happened to each token of a sample.

use axum::extract::State;
use axum::response::Response;
use rollscope_app::query::sql_text;
use rollscope_model::Table;

use super::stream::{Format, respond};
use crate::App;
use crate::params::Params;
use crate::problem::Problem;
use crate::query;
use crate::run::Run;

/// Returns the tokens of a sample.
///
/// An Arrow IPC stream of the table `tokens`: one row per step and split in which the sample has tokens, in the order of steps.
/// No row if nothing is known of them.
#[utoipa::path(get, path = "/api/v1/runs/{run}/tokens", tag = "runs", params(
    ("run" = String, Path),
    ("sample" = String, Query, description = "Sample"),
    ("step" = Option<i64>, Query, description = "Step. All by default"),
    ("split" = Option<String>, Query, description = "`train` or `eval`. Both by default"),
    ("columns" = Option<String>, Query, description = "Comma-separated column names. All by default"),
), responses(
    (status = 200, description = "Tokens", body = Vec<u8>, content_type = "application/vnd.apache.arrow.stream"),
    (status = 400, description = "Invalid parameter", body = Problem, content_type = "application/problem+json"),
))]
pub async fn tokens(State(app): State<App>, Run(run): Run, mut params: Params) -> Result<Response, Problem> {
    let sample = params.text("sample").map(str::to_string);
    let step: Option<i64> = params.number("step", "an integer; see GET /api/v1/runs/{run}/steps")?;
    let split = params.text("split").map(str::to_string);
    let columns = params.columns(Table::Tokens)?;
    params.done()?;
    let Some(sample) = sample else { return Err(Problem::parameter("sample", "a sample")) };
    let mut filter = format!("run_id = {} and sample_id = {}", sql_text(&run), sql_text(&sample));
    if let Some(step) = step {
        filter.push_str(&format!(" and step = {step}"));
    }
    if let Some(split) = split {
        filter.push_str(&format!(" and split = {}", sql_text(&split)));
    }
    let sql = format!("select {columns} from tokens where {filter} order by step, split");
    let answer = query::start(&app.engine, &app.counters, &sql).await?;
    respond(answer, Format::Arrow, u64::MAX).await
}
