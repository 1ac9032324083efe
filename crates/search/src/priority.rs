//! Which threads of the index come after those that answer.

/// Whoever waits for a page comes first: this thread, and those that the index starts from it, take a third of a busy core. Linux
/// alone does this for a thread; elsewhere it would be the whole process.
pub fn give_way() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(5) {
        tracing::debug!(%error, "the search index runs at the usual priority");
    }
}
