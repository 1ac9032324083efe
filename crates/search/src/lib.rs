//! Full-text search over conversations: the only crate that knows tantivy.
