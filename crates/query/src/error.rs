//! What can go wrong with a query, and whose fault it is.

use datafusion::arrow::error::ArrowError;
use datafusion::common::DataFusionError;

/// Whose fault it is; decides the HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The text is not valid SQL.
    Parse,
    /// The SQL needs something that does not exist, is not allowed or is not possible.
    Plan,
    /// A limit was reached; the message names it.
    Limit,
    /// There is no such run or step.
    NotFound,
    /// Somebody cancelled the query.
    Cancelled,
    /// Our fault, or the disk's.
    Internal,
}

/// A query that failed. The message is for the user.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct QueryError {
    pub kind: ErrorKind,
    pub message: String,
}

/// Messages that list every column of a wide table are cut here.
const MAX_MESSAGE: usize = 2000;

impl QueryError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message: String = message.into();
        if message.len() > MAX_MESSAGE {
            let end = (0..=MAX_MESSAGE).rev().find(|i| message.is_char_boundary(*i)).unwrap_or(0);
            message.truncate(end);
            message.push('…');
        }
        QueryError { kind, message }
    }

    /// Is it the user's to mend: a bad query rather than a bad server?
    pub fn is_users(&self) -> bool {
        matches!(self.kind, ErrorKind::Parse | ErrorKind::Plan | ErrorKind::NotFound)
    }

    pub(crate) fn from_datafusion(error: &DataFusionError, limits: &crate::QueryLimits) -> Self {
        let root = error.find_root();
        if let DataFusionError::External(e) = root
            && let Some(own) = e.downcast_ref::<QueryError>()
        {
            return own.clone();
        }
        if is_exhausted(root) {
            return QueryError::new(
                ErrorKind::Limit,
                format!(
                    "the query needs more memory than memory_bytes = {} allows for all queries together; \
                     narrow it (one run, one step, fewer columns or groups) or raise the limit",
                    limits.memory_bytes
                ),
            );
        }
        let kind = match root {
            DataFusionError::SQL(..) => ErrorKind::Parse,
            DataFusionError::Plan(_)
            | DataFusionError::SchemaError(..)
            | DataFusionError::NotImplemented(_)
            | DataFusionError::Configuration(_)
            | DataFusionError::Execution(_) => ErrorKind::Plan,
            DataFusionError::ArrowError(e, _) => match **e {
                ArrowError::DivideByZero
                | ArrowError::ArithmeticOverflow(_)
                | ArrowError::CastError(_)
                | ArrowError::ParseError(_)
                | ArrowError::ComputeError(_)
                | ArrowError::InvalidArgumentError(_)
                | ArrowError::NotYetImplemented(_) => ErrorKind::Plan,
                _ => ErrorKind::Internal,
            },
            _ => ErrorKind::Internal,
        };
        let text = match root {
            // Without the name of DataFusion's error class in front.
            DataFusionError::Plan(text)
            | DataFusionError::NotImplemented(text)
            | DataFusionError::Execution(text)
            | DataFusionError::Configuration(text) => without_backtrace(text),
            DataFusionError::SQL(e, _) => e.to_string().replace("sql parser error: ", ""),
            DataFusionError::SchemaError(e, _) => e.to_string().replace("Schema error: ", ""),
            DataFusionError::ArrowError(e, _) if kind == ErrorKind::Plan => e.to_string(),
            other => other.strip_backtrace(),
        };
        QueryError::new(kind, text)
    }
}

fn without_backtrace(text: &str) -> String {
    text.split(DataFusionError::BACK_TRACE_SEP).next().unwrap_or_default().to_string()
}
/// Arrow and Parquet wrap the error of a filter as text.
fn is_exhausted(error: &DataFusionError) -> bool {
    matches!(error, DataFusionError::ResourcesExhausted(_))
        || matches!(
            error,
            DataFusionError::ArrowError(..) | DataFusionError::ParquetError(_) | DataFusionError::External(_)
        ) && error.to_string().contains("ResourcesExhausted(")
}
