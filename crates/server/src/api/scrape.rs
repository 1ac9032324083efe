//! What is scraped, and how it goes.

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
    /// What is wrong with lists of targets, and which targets are down.
    problems: Vec<String>,
}

/// Scrape targets: whether they are up, and what was wrong with their pages.
#[utoipa::path(get, path = "/api/v1/scrape", tag = "metrics", responses((status = 200, body = ScrapeAnswer)))]
pub async fn scrape(State(app): State<App>, params: Params) -> Result<Response, Problem> {
    params.done()?;
    to_json(&ScrapeAnswer { targets: app.scraping.status(), problems: app.scraping.problems() })
}
