//! The scrape targets and their state.

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::to_json;
use crate::App;
use crate::params::Params;
use crate::problem::Problem;
use crate::scrape::TargetStatus;

#[derive(Serialize, ToSchema)]
pub struct ScrapeAnswer {
    targets: Vec<TargetStatus>,
    /// Problems with target lists, and targets that are down.
    problems: Vec<String>,
}

/// Lists the scrape targets, whether they are up, and problems with their pages.
#[utoipa::path(get, path = "/api/v1/scrape", tag = "metrics", responses((status = 200, body = ScrapeAnswer)))]
pub async fn scrape(State(app): State<App>, params: Params) -> Result<Response, Problem> {
    params.done()?;
    to_json(&ScrapeAnswer { targets: app.scraping.status(), problems: app.scraping.problems() })
}
