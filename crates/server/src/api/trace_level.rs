//! The level at which SDKs record, set for all of them at once. They get it with the next response to what they send.
//! SGLang's engines get it at their own address.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use futures::StreamExt;
use serde::{Deserialize, Serialize};

use crate::App;
use crate::ingest::HIGHEST_LEVEL;
use crate::problem::Problem;
use crate::scrape::config::without_credentials;

#[derive(Serialize, utoipa::ToSchema)]
pub struct Level {
    /// 0 (off), 1 (important spans), 2 (all but nested) or 3 (all). Null: each SDK keeps its own level.
    #[schema(required)]
    level: Option<u8>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetLevel {
    /// As in the response.
    #[schema(required)]
    level: Option<u8>,
    /// Also set the level of the serving engines that are scraped. SGLang has no level of its own to return to.
    #[serde(default)]
    engines: bool,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct LevelSet {
    #[schema(required)]
    level: Option<u8>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    engines: Vec<EngineLevel>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct EngineLevel {
    url: String,
    /// Why the level could not be set.
    #[schema(required)]
    problem: Option<String>,
}

/// How long an engine may take to set its level.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(5);
/// How many engines are called at the same time.
const AT_ONCE: usize = 16;

/// Returns the trace level that SDKs get.
#[utoipa::path(get, path = "/api/v1/trace-level", tag = "server", responses((status = 200, description = "The level", body = Level)))]
pub async fn get_level(State(app): State<App>) -> Result<Response, Problem> {
    super::to_json(&Level { level: app.ingest.level().get() })
}

/// Sets the trace level of every SDK that sends to this server and, with `engines`, of the engines that are scraped.
#[utoipa::path(put, path = "/api/v1/trace-level", tag = "server", request_body = SetLevel,
    responses((status = 200, description = "The new level", body = LevelSet), (status = 400, description = "Invalid level", body = Problem)))]
pub async fn set_level(State(app): State<App>, body: axum::body::Body) -> Result<Response, Problem> {
    let bytes = app.read_api_body(body).await?;
    let asked: SetLevel = serde_json::from_slice(&bytes).map_err(|e| {
        Problem::bad_request(format!("the body must be {{\"level\": 0..{HIGHEST_LEVEL}}} or {{\"level\": null}}: {e}"))
    })?;
    if asked.level.is_some_and(|level| level > HIGHEST_LEVEL) {
        return Err(Problem::bad_request(format!("`level` must be 0 to {HIGHEST_LEVEL}, or null")));
    }
    app.ingest.level().set(asked.level);
    // Only engines that this server is configured to scrape: it never calls an address that a client names.
    let urls: BTreeSet<String> = match asked.level {
        Some(_) if asked.engines => app.scraping.urls().iter().filter_map(|url| origin(url)).collect(),
        _ => BTreeSet::new(),
    };
    let level = asked.level.unwrap_or_default();
    let engines = futures::stream::iter(urls)
        .map(|url| async move {
            let asked = url.clone();
            let done =
                tokio::task::spawn_blocking(move || crate::trace_level::set(&asked, level, None, ENGINE_TIMEOUT));
            let problem = done.await.map_err(|e| e.to_string()).and_then(|answer| answer).err();
            let shown = without_credentials(&url);
            EngineLevel { problem: problem.map(|why| why.replace(&url, &shown)), url: shown }
        })
        .buffered(AT_ONCE)
        .collect()
        .await;
    super::to_json(&LevelSet { level: asked.level, engines })
}

/// Scheme and host of an address.
fn origin(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.split(['/', '?']).next().filter(|h| !h.is_empty())?;
    Some(format!("{scheme}://{host}"))
}
