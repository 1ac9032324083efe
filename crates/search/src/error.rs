//! Why a search failed, in words for the user.

use tantivy::TantivyError;
use tantivy::directory::error::{OpenReadError, OpenWriteError};

#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The search text is invalid.
    #[error("{0}")]
    Query(String),
    /// A parameter other than the search text.
    #[error("{text}")]
    Parameter { name: &'static str, text: String },
    #[error("search index: {0}")]
    Index(#[from] TantivyError),
    #[error("search index: {0}")]
    Io(#[from] std::io::Error),
    #[error("the search index cannot read the store: {0}")]
    Store(#[from] rollscope_store::StoreError),
}

impl SearchError {
    /// Says nothing about the files of the index: the store, the disk, or another process is at fault.
    pub(crate) fn is_of_the_system(&self) -> bool {
        let io = match self {
            SearchError::Store(_) | SearchError::Index(TantivyError::LockFailure(..)) => return true,
            SearchError::Io(error) => Some(error),
            SearchError::Index(
                TantivyError::IoError(error)
                | TantivyError::OpenReadError(OpenReadError::IoError { io_error: error, .. })
                | TantivyError::OpenWriteError(OpenWriteError::IoError { io_error: error, .. }),
            ) => Some(&**error),
            _ => None,
        };
        io.is_some_and(|error| error.raw_os_error().is_some())
    }
}
