//! The level at which SDKs record, set for all of them at once. They hear of it with the next answer to what they send.

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};

use crate::App;
use crate::ingest::HIGHEST_LEVEL;
use crate::problem::Problem;

#[derive(Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// 0 off, 1 important spans, 2 all but nested, 3 all; null: every SDK keeps its own.
    level: Option<u8>,
}

/// The trace level that SDKs are told.
#[utoipa::path(get, path = "/api/v1/trace-level", tag = "server", responses((status = 200, description = "The level", body = Level)))]
pub async fn get_level(State(app): State<App>) -> Result<Response, Problem> {
    super::to_json(&Level { level: app.ingest.level().get() })
}

/// Sets the trace level of every SDK that sends here.
#[utoipa::path(put, path = "/api/v1/trace-level", tag = "server", request_body = Level,
    responses((status = 200, description = "The level as it is now", body = Level), (status = 400, description = "No level", body = Problem)))]
pub async fn set_level(State(app): State<App>, body: axum::body::Body) -> Result<Response, Problem> {
    let bytes = app.read_api_body(body).await?;
    let asked: Level = serde_json::from_slice(&bytes).map_err(|e| {
        Problem::bad_request(format!("write {{\"level\": 0..{HIGHEST_LEVEL}}} or {{\"level\": null}}: {e}"))
    })?;
    if asked.level.is_some_and(|level| level > HIGHEST_LEVEL) {
        return Err(Problem::bad_request(format!("a trace level is 0 to {HIGHEST_LEVEL}, or null")));
    }
    app.ingest.level().set(asked.level);
    super::to_json(&asked)
}
