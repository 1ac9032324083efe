//! The run that a path names (`/runs/{run}/...`): by id, name, `project/name`, or a beginning that fits only one run.

use std::collections::HashMap;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use crate::App;
use crate::problem::Problem;

/// Its id.
pub struct Run(pub String);

impl FromRequestParts<App> for Run {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Run, Problem> {
        let Path(named): Path<HashMap<String, String>> =
            Path::from_request_parts(parts, app).await.map_err(|e| Problem::bad_request(e.to_string()))?;
        let named = named.get("run").ok_or_else(|| Problem::internal("the path names no run"))?;
        Ok(Run(app.engine.find_run(named).await?))
    }
}
