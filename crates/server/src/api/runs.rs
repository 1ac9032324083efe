//! Runs.

use std::collections::HashSet;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rollscope_app::listings::runs::{self as listing, RunInfo};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::to_json;
use crate::App;
use crate::params::Params;
use crate::problem::Problem;
use crate::run::Run;

#[derive(Serialize, ToSchema)]
pub struct RunsAnswer {
    /// The newest run comes first.
    runs: Vec<RunInfo>,
}

/// All runs.
#[utoipa::path(get, path = "/api/v1/runs", tag = "runs", responses((status = 200, body = RunsAnswer)))]
pub async fn runs(State(app): State<App>, params: Params) -> Result<Response, Problem> {
    params.done()?;
    to_json(&RunsAnswer { runs: listing::list(&app.engine, &app.known_runs).await? })
}

/// Returns one run, by its id, its name, `project/name`, or the beginning of one of these if it fits only one run. All paths
/// accept a run in this way, except that deleting a run requires its id.
#[utoipa::path(get, path = "/api/v1/runs/{run}", tag = "runs", params(("run" = String, Path)), responses(
    (status = 200, body = RunInfo),
    (status = 400, description = "The name is ambiguous", body = Problem, content_type = "application/problem+json"),
    (status = 404, description = "No such run", body = Problem, content_type = "application/problem+json"),
))]
pub async fn run(State(app): State<App>, Run(run): Run, params: Params) -> Result<Response, Problem> {
    params.done()?;
    match listing::list(&app.engine, &app.known_runs).await?.into_iter().find(|listed| listed.run_id == run) {
        Some(found) => to_json(&found),
        None => Err(Problem::not_found(format!("there is no run `{run}`"))),
    }
}

/// Deletes a run: its rows in every table, and the media that no other run uses. This cannot be undone.
/// A run that is still sending comes back with what it sends next.
#[utoipa::path(delete, path = "/api/v1/runs/{run}", tag = "runs", params(("run" = String, Path)), responses(
    (status = 204, description = "Deleted"),
    (status = 404, description = "No such run", body = Problem, content_type = "application/problem+json"),
))]
pub async fn delete_run(State(app): State<App>, Path(run): Path<String>, params: Params) -> Result<Response, Problem> {
    params.done()?;
    let deleted = app.store.delete_run(&run).await?;
    app.ingest.forget_run(&run);
    match deleted {
        true => {
            tracing::info!(run, "deleted a run");
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        // Deleting cannot be undone, so the run must be named by its id.
        false => {
            let id = app.engine.find_run(&run).await?;
            Err(Problem::not_found(format!(
                "there is no run with the id `{run}`; to delete this run, pass its id `{id}`"
            )))
        }
    }
}

/// The most tags of a run, and the most characters of a tag.
const MAX_TAGS: usize = 64;
const MAX_TAG_CHARS: usize = 100;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TagsBody {
    tags: Vec<String>,
}

/// Replaces the tags of a run.
#[utoipa::path(put, path = "/api/v1/runs/{run}/tags", tag = "runs", params(("run" = String, Path)), request_body = TagsBody, responses(
    (status = 204, description = "Done"),
    (status = 400, description = "Invalid tags", body = Problem, content_type = "application/problem+json"),
    (status = 404, description = "No such run", body = Problem, content_type = "application/problem+json"),
))]
pub async fn set_tags(State(app): State<App>, Run(run): Run, params: Params, body: Body) -> Result<Response, Problem> {
    params.done()?;
    let body = app.read_api_body(body).await?;
    let bad = |what: String| Problem::new(StatusCode::BAD_REQUEST, what);
    let TagsBody { mut tags } =
        serde_json::from_slice(&body).map_err(|e| bad(format!("the body must be {{\"tags\": [\"...\"]}}: {e}")))?;
    tags.iter_mut().for_each(|t| *t = t.trim().to_string());
    tags.retain(|t| !t.is_empty());
    let mut seen = HashSet::new();
    tags.retain(|t| seen.insert(t.clone()));
    if tags.len() > MAX_TAGS || tags.iter().any(|t| t.chars().count() > MAX_TAG_CHARS) {
        return Err(bad(format!("`tags` must have at most {MAX_TAGS} tags of at most {MAX_TAG_CHARS} characters")));
    }
    listing::set_tags(&app.engine, &app.store, &run, &tags).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
