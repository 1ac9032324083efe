//! What we write.

pub mod otlp;
