//! Alarms: what fires, when it did, silences, rules and sinks. What Prometheus's clients ask is in [`super::prometheus`].

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rollscope_alarms::{AlarmsAnswer, NewSilence, Silence, SilenceError};
use rollscope_app::hang::{MOMENT, parse_moment};
use rollscope_model::time::now_ns;

use super::to_json;
use crate::App;
use crate::params::Params;
use crate::problem::Problem;

/// How far back the history goes if nothing is said, and at most.
const USUAL_MS: i64 = 24 * 3_600_000;
const MAX_MS: i64 = 366 * USUAL_MS;

/// Returns alarms that are pending or fire, when alarms were on, silences, rules and sinks. `docs/alarms.md` explains them.
#[utoipa::path(get, path = "/api/v1/alarms", tag = "alarms",
    params(
        ("run" = Option<String>, Query, description = "Only alarms with this label `run`"),
        ("from" = Option<String>, Query, description = "Start of the history, such as 2026-11-17T14:22:51Z or seconds since 1970. By default 24 hours before its end"),
        ("to" = Option<String>, Query, description = "End of the history. Now by default"),
        ("history" = Option<bool>, Query, description = "`false` leaves the history out"),
    ),
    responses(
        (status = 200, description = "The alarms", body = AlarmsAnswer),
        (status = 400, description = "A parameter is wrong", body = Problem, content_type = "application/problem+json"),
    ))]
pub async fn alarms(State(app): State<App>, mut params: Params) -> Result<Response, Problem> {
    let run = params.text("run").map(str::to_string);
    let mut moment = |name: &'static str| match params.text(name) {
        Some(text) => parse_moment(text).map(|ns| Some(ns / 1_000_000)).ok_or_else(|| Problem::parameter(name, MOMENT)),
        None => Ok(None),
    };
    let (from, to) = (moment("from")?, moment("to")?);
    let history = match params.text("history") {
        None | Some("true") => true,
        Some("false") => false,
        Some(_) => return Err(Problem::parameter("history", "true or false")),
    };
    params.done()?;
    let to = to.unwrap_or_else(|| now_ns() / 1_000_000);
    let from = from.unwrap_or(to - USUAL_MS);
    if from >= to || to - from > MAX_MS {
        return Err(Problem::parameter("from", "a time before `to`, at most a year before it"));
    }
    to_json(&app.alarms.answer(run.as_deref(), history.then_some((from, to))).await?)
}

fn failed(error: SilenceError) -> Problem {
    match error {
        SilenceError::Bad(why) => Problem::bad_request(why),
        SilenceError::NotKept(_) => Problem::internal(error.to_string()),
    }
}

/// Silences alarms for a while. They are still evaluated and shown, but not sent.
#[utoipa::path(post, path = "/api/v1/alarms/silences", tag = "alarms", request_body = NewSilence, responses(
    (status = 201, description = "The silence", body = Silence),
    (status = 400, description = "The body is wrong", body = Problem, content_type = "application/problem+json"),
))]
pub async fn silence(State(app): State<App>, params: Params, body: Body) -> Result<Response, Problem> {
    params.done()?;
    let body = app.read_api_body(body).await?;
    let new: NewSilence = serde_json::from_slice(&body).map_err(|e| {
        Problem::bad_request(format!("the body must be {{\"selector\": \"StepSlow\", \"duration\": \"2h\"}}: {e}"))
    })?;
    let silence = app.alarms.silence(new).await.map_err(failed)?;
    Ok((StatusCode::CREATED, to_json(&silence)?).into_response())
}

/// Ends a silence.
#[utoipa::path(delete, path = "/api/v1/alarms/silences/{id}", tag = "alarms", params(("id" = String, Path)), responses(
    (status = 204, description = "Ended"),
    (status = 404, description = "No such silence", body = Problem, content_type = "application/problem+json"),
))]
pub async fn unsilence(State(app): State<App>, Path(id): Path<String>, params: Params) -> Result<Response, Problem> {
    params.done()?;
    match app.alarms.unsilence(&id).await.map_err(failed)? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(Problem::not_found(format!("there is no silence `{id}`; GET /api/v1/alarms lists them"))),
    }
}
