//! Answers: why a step took as long as it did, what stands out in a run, what changed. `query`'s analysis computes and caches
//! them, and computes them again only for steps that changed.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use rollscope_answers::ask::Which;
use rollscope_answers::difference::Difference;
use rollscope_answers::hang::{Hang, State as HangState};
use rollscope_answers::mismatch::Mismatch;
use rollscope_answers::report::{RunFindings, StepReport};
use rollscope_app::hang::ray::join_ray;
use rollscope_app::hang::{self, MOMENT, parse_moment};
use serde::Serialize;
use utoipa::ToSchema;

use super::{json, to_json};
use crate::App;
use crate::params::Params;
use crate::problem::Problem;
use crate::run::Run;

/// Explains why a step took as long as it did: its sentence, findings by cost with their evidence, phases, breakdown, critical path,
/// stragglers, idle time and health. `docs/answers.md` explains each number. If the rows of a run name no step, write `-` in
/// place of the step to get the run as a whole.
#[utoipa::path(get, path = "/api/v1/runs/{run}/steps/{step}/report", tag = "answers",
    params(("run" = String, Path), ("step" = String, Path, description = "Step number, or `-` for a run without steps")),
    responses(
        (status = 200, description = "The report", body = StepReport),
        (status = 404, description = "No such run or step", body = Problem, content_type = "application/problem+json"),
    ))]
pub async fn report(
    State(app): State<App>,
    Run(run): Run,
    Path((_, step)): Path<(String, String)>,
    params: Params,
) -> Result<Response, Problem> {
    params.done()?;
    let step = match step.as_str() {
        "-" => None,
        text => Some(
            text.parse::<i64>()
                .map_err(|_| Problem::parameter("step", "an integer, or `-` for a run without steps"))?,
        ),
    };
    Ok(json(app.answers.step_report_json(&run, step).await?))
}

/// Returns what stands out in a run, by cost, and how long each step took.
#[utoipa::path(get, path = "/api/v1/runs/{run}/findings", tag = "answers", params(("run" = String, Path)), responses(
    (status = 200, description = "The findings", body = RunFindings),
    (status = 404, description = "No such run", body = Problem, content_type = "application/problem+json"),
))]
pub async fn findings(State(app): State<App>, Run(run): Run, params: Params) -> Result<Response, Problem> {
    params.done()?;
    Ok(json(app.answers.run_findings_json(&run).await?))
}

/// Returns what changed between two steps of a run (`step`, `with`), or between two runs (`other`), or between steps of two runs.
#[utoipa::path(get, path = "/api/v1/runs/{run}/diff", tag = "answers",
    params(
        ("run" = String, Path, description = "Run before"),
        ("step" = Option<i64>, Query, description = "Step before. All steps by default"),
        ("other" = Option<String>, Query, description = "Run after. The same run by default"),
        ("with" = Option<i64>, Query, description = "Step after. All steps by default"),
    ),
    responses(
        (status = 200, description = "The difference", body = Difference),
        (status = 404, description = "No such run or step", body = Problem, content_type = "application/problem+json"),
    ))]
pub async fn diff(State(app): State<App>, Run(run): Run, mut params: Params) -> Result<Response, Problem> {
    let step = params.number("step", "an integer")?;
    let with = params.number("with", "an integer")?;
    let other = params.text("other").map(str::to_string);
    params.done()?;
    if other.is_none() && (step.is_none() || with.is_none()) {
        return Err(Problem::missing_parameter("with", "`step` and `with`, or `other`"));
    }
    let before = Which { run: run.clone(), step };
    let after = Which { run: other.unwrap_or(run), step: with };
    to_json(&app.answers.difference(&before, &after).await?)
}

/// Returns where trainer and engine disagree about log-probabilities: how far off the tokens of a step are, over the steps of the run,
/// and which engine, version of the weights, turn, position, class of token or source explains it. `docs/answers.md` explains each number.
#[utoipa::path(get, path = "/api/v1/runs/{run}/mismatch", tag = "answers",
    params(
        ("run" = String, Path),
        ("step" = Option<i64>, Query, description = "Step. By default the one that stands out most, else the newest"),
    ),
    responses(
        (status = 200, description = "The mismatch", body = Mismatch),
        (status = 404, description = "No such run or step, or no tokens to compare", body = Problem, content_type = "application/problem+json"),
    ))]
pub async fn mismatch(State(app): State<App>, Run(run): Run, mut params: Params) -> Result<Response, Problem> {
    let step = params.number("step", "an integer")?;
    params.done()?;
    to_json(&app.answers.mismatch(&run, step).await?)
}

/// Says whether a run moves, and if not, who waits for whom: from open spans, the figures of engines, and signs of life.
/// `docs/hang.md` explains how it is judged.
#[utoipa::path(get, path = "/api/v1/runs/{run}/hang", tag = "answers",
    params(
        ("run" = String, Path),
        ("at" = Option<String>, Query, description = "The moment to ask about, such as 2026-11-17T14:22:51Z or seconds since 1970. Now by default"),
    ),
    responses(
        (status = 200, description = "What everyone is waiting for", body = Hang),
        (status = 404, description = "No such run", body = Problem, content_type = "application/problem+json"),
    ))]
pub async fn hang(State(app): State<App>, Run(run): Run, mut params: Params) -> Result<Response, Problem> {
    let at = match params.text("at") {
        Some(text) => Some(parse_moment(text).ok_or_else(|| Problem::parameter("at", MOMENT))?),
        None => None,
    };
    params.done()?;
    let mut found = hang::ask(&app.engine, &run, at).await?;
    if at.is_none() && found.state == HangState::Hanging && found.workers.iter().all(|worker| worker.place.is_none()) {
        app.ingest.stacks().ask(&found.run);
        found.advice.push("The processes have been asked for their stacks. Ask again in ten seconds.".to_string());
    }
    if let Some(ray) = app.ray.as_ref().filter(|_| at.is_none()) {
        match &*ray.state().await {
            Ok(ray) => join_ray(&mut found, ray),
            Err(why) => found.advice.push(format!("Ray says nothing: {why}")),
        }
    }
    to_json(&found)
}

#[derive(Serialize, ToSchema)]
pub struct StacksAsked {
    run: String,
    /// False: they had been asked less than a minute before, or 16 other runs had been.
    asked: bool,
}

/// Asks the processes of a run for the stacks of their Python threads. They answer within some seconds, if they use the rollscope
/// package: see `workers[].place` and `workers[].stacks` in what `/hang` returns.
#[utoipa::path(post, path = "/api/v1/runs/{run}/stacks", tag = "answers", params(("run" = String, Path)),
    responses(
        (status = 202, description = "They are being asked", body = StacksAsked),
        (status = 404, description = "No such run", body = Problem, content_type = "application/problem+json"),
    ))]
pub async fn ask_stacks(State(app): State<App>, Run(run): Run, params: Params) -> Result<Response, Problem> {
    params.done()?;
    let run = app.engine.find_run(&run).await?;
    let asked = app.ingest.stacks().ask(&run);
    let mut response = to_json(&StacksAsked { run, asked })?;
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}
