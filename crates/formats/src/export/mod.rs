//! What we write.

pub mod otlp;
pub mod slime_cache;
pub mod timeline;
