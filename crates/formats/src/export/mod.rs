//! What we write.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

pub mod html;
pub mod jaeger;
pub mod otlp;
pub mod perfetto;
mod rows;
pub mod slime_cache;
pub mod tensorboard;
pub mod timeline;

/// Writes beside the target and renames, so that a reader never sees half a file and a failure leaves the old one.
pub fn atomically<T, E: From<io::Error>>(target: &Path, write: impl FnOnce(File) -> Result<T, E>) -> Result<T, E> {
    let mut partial = target.as_os_str().to_os_string();
    partial.push(format!(".{}.partial", std::process::id()));
    let partial = PathBuf::from(partial);
    let result = File::create(&partial).map_err(E::from).and_then(write).and_then(|written| {
        std::fs::rename(&partial, target)?;
        Ok(written)
    });
    if result.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    result
}
