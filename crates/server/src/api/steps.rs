//! Steps of a run.

use axum::extract::State;
use axum::response::Response;
use rollscope_app::listings::steps::{StepInfo, list};
use serde::Serialize;
use utoipa::ToSchema;

use super::to_json;
use crate::App;
use crate::params::Params;
use crate::problem::Problem;
use crate::run::Run;

#[derive(Serialize, ToSchema)]
pub struct StepsAnswer {
    /// In ascending order.
    steps: Vec<StepInfo>,
}

/// Lists the steps of a run, each with its time per phase.
#[utoipa::path(get, path = "/api/v1/runs/{run}/steps", tag = "runs", params(("run" = String, Path)),
    responses((status = 200, body = StepsAnswer)))]
pub async fn steps(State(app): State<App>, Run(run): Run, params: Params) -> Result<Response, Problem> {
    params.done()?;
    to_json(&StepsAnswer { steps: list(&app.answers, &run).await? })
}
