//! What we write.

pub mod html;
pub mod jaeger;
pub mod otlp;
mod pending;
pub mod perfetto;
mod rows;
pub mod slime_cache;
pub mod tensorboard;
pub mod timeline;

pub use pending::{PendingFile, atomically};
