//! Every error of the HTTP API, as RFC 9457 problem JSON. One constructor per kind, so that only this file decides statuses.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rollscope_app::problem::{self as app, ProblemKind};
use rollscope_query::QueryError;
use rollscope_store::StoreError;
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

/// What went wrong and what to do. Content type `application/problem+json`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Problem {
    /// Always `about:blank`: the status gives the kind, and `detail` the rest.
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// What went wrong and what to do, in words.
    detail: String,
    /// The wrong parameter or field.
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter: Option<String>,
    /// The exceeded limit, by its name in the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<String>,
    #[serde(skip)]
    retry_after: Option<Duration>,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.detail)
    }
}

impl Problem {
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Problem {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: detail.into(),
            parameter: None,
            limit: None,
            retry_after: None,
        }
    }

    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// A parameter with a wrong value. `good` states what is accepted.
    pub fn parameter(name: &str, good: impl std::fmt::Display) -> Self {
        app::Problem::parameter(name, good).into()
    }

    pub fn missing_parameter(name: &str, expected: impl std::fmt::Display) -> Self {
        app::Problem::missing_parameter(name, expected).into()
    }

    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    pub fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, detail)
    }

    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    pub fn too_large(limit: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail).with_limit(limit)
    }

    pub fn too_many(limit: &str, detail: impl Into<String>) -> Self {
        let mut problem = Self::new(StatusCode::TOO_MANY_REQUESTS, detail).with_limit(limit);
        problem.retry_after = Some(Duration::from_secs(1));
        problem
    }

    pub fn unavailable(detail: impl Into<String>, retry_after: Duration) -> Self {
        let mut problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, detail);
        problem.retry_after = Some(retry_after);
        problem
    }

    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
    }

    pub fn with_limit(mut self, limit: &str) -> Self {
        self.limit = Some(limit.to_string());
        self
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// Whole seconds, at least one, as `Retry-After` needs them.
pub(crate) fn retry_after_value(after: Duration) -> HeaderValue {
    HeaderValue::from(after.as_secs() + u64::from(after.subsec_nanos() > 0 || after.is_zero()))
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (self.status(), body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.status == 401 {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"rollscope\""));
        }
        if let Some(after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, retry_after_value(after));
        }
        response
    }
}

/// The one place where what went wrong gets its status.
impl From<app::Problem> for Problem {
    fn from(problem: app::Problem) -> Self {
        let status = match problem.kind {
            ProblemKind::BadRequest => StatusCode::BAD_REQUEST,
            ProblemKind::NotFound => StatusCode::NOT_FOUND,
            ProblemKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ProblemKind::Timeout => StatusCode::REQUEST_TIMEOUT,
            ProblemKind::NotAnImage => StatusCode::UNPROCESSABLE_ENTITY,
            ProblemKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ProblemKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Problem {
            parameter: problem.parameter.clone(),
            limit: problem.limit.map(str::to_string),
            retry_after: problem.retry_after,
            ..Problem::new(status, problem.detail())
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        app::Problem::from(error).into()
    }
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        app::Problem::from(error).into()
    }
}
