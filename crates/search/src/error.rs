//! Why a search failed, in words for the user.

#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The search text is invalid.
    #[error("{0}")]
    Query(String),
    /// A parameter other than the search text.
    #[error("{text}")]
    Parameter { name: &'static str, text: String },
    #[error("search index: {0}")]
    Index(#[from] tantivy::TantivyError),
    #[error("search index: {0}")]
    Io(#[from] std::io::Error),
    #[error("the search index cannot read the store: {0}")]
    Store(#[from] rollscope_store::StoreError),
}
