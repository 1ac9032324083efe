//! What can go wrong, in the product's own terms. The server turns each kind into an HTTP status, the command line into an
//! exit code.

use std::time::Duration;

use rollscope_query::{ErrorKind, QueryError};
use rollscope_search::SearchError;
use rollscope_store::StoreError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// The request is wrong: a parameter, or the SQL.
    BadRequest,
    /// What it names is not there.
    NotFound,
    /// It asks for more than a limit allows.
    TooLarge,
    /// It took longer than it may.
    Timeout,
    /// The file is no image.
    NotAnImage,
    /// Not now, but perhaps later.
    Unavailable,
    /// Our fault, or the disk's.
    Internal,
}

/// What went wrong and what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{detail}")]
pub struct Problem {
    pub kind: ProblemKind,
    detail: String,
    /// The wrong parameter.
    pub parameter: Option<String>,
    /// The exceeded limit, by its name in the configuration.
    pub limit: Option<&'static str>,
    pub retry_after: Option<Duration>,
}

impl Problem {
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Problem { kind, detail: detail.into(), parameter: None, limit: None, retry_after: None }
    }

    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::BadRequest, detail)
    }

    /// A parameter with a wrong value. `good` states what is accepted.
    pub fn parameter(name: &str, good: impl std::fmt::Display) -> Self {
        Self::about(name, format!("parameter `{name}` must be {good}"))
    }

    /// A parameter with a name that the endpoint does not take. `known` lists the names that it takes.
    pub fn unknown_parameter(name: &str, known: &[&str]) -> Self {
        Self::about(
            name,
            match known.is_empty() {
                true => format!("unknown parameter `{name}`; this endpoint takes no parameters"),
                false => format!("unknown parameter `{name}`; expected one of: {}", known.join(", ")),
            },
        )
    }

    pub fn missing_parameter(name: &str, expected: impl std::fmt::Display) -> Self {
        Self::about(name, format!("missing parameter `{name}`; expected {expected}"))
    }

    /// A bad request because of a parameter.
    pub fn about(name: &str, detail: impl Into<String>) -> Self {
        Problem { parameter: Some(name.to_string()), ..Self::bad_request(detail) }
    }

    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::NotFound, detail)
    }

    pub fn too_large(limit: &'static str, detail: impl Into<String>) -> Self {
        Problem { limit: Some(limit), ..Self::new(ProblemKind::TooLarge, detail) }
    }

    pub fn unavailable(detail: impl Into<String>, retry_after: Duration) -> Self {
        Problem { retry_after: Some(retry_after), ..Self::new(ProblemKind::Unavailable, detail) }
    }

    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::Internal, detail)
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Can whoever asked mend it?
    pub fn is_users(&self) -> bool {
        matches!(self.kind, ProblemKind::BadRequest | ProblemKind::NotFound)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error.retry_after() {
            Some(after) => Problem::unavailable(error.to_string(), after),
            None => Problem::internal(error.to_string()),
        }
    }
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        match error.kind {
            ErrorKind::Parse | ErrorKind::Plan => Problem::bad_request(error.message),
            ErrorKind::NotFound => Problem::not_found(error.message),
            ErrorKind::Limit if error.message.contains("timeout") => {
                Problem { limit: Some("timeout"), ..Problem::new(ProblemKind::Timeout, error.message) }
            }
            ErrorKind::Limit if error.message.contains("max_concurrent") => {
                Problem { limit: Some("max_concurrent"), ..Problem::unavailable(error.message, Duration::from_secs(1)) }
            }
            ErrorKind::Limit => Problem::new(ProblemKind::TooLarge, error.message),
            ErrorKind::Cancelled => Problem::new(ProblemKind::Unavailable, error.message),
            ErrorKind::Internal => Problem::internal(error.message),
        }
    }
}

impl From<SearchError> for Problem {
    fn from(error: SearchError) -> Self {
        match error {
            SearchError::Query(text) => Problem::about("search", format!("parameter `search`: {text}")),
            SearchError::Parameter { name, text } => Problem::parameter(name, text),
            other => Problem::internal(other.to_string()),
        }
    }
}
