//! Why a search failed, in words for whoever asked.

#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// What the user wrote cannot be read.
    #[error("{0}")]
    Query(String),
    /// A parameter other than the search text.
    #[error("{text}")]
    Parameter { name: &'static str, text: String },
    #[error("the search index: {0}")]
    Index(#[from] tantivy::TantivyError),
    #[error("the search index: {0}")]
    Io(#[from] std::io::Error),
    #[error("the search index could not read the store: {0}")]
    Store(#[from] rollscope_store::StoreError),
}
