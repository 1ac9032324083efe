//! What takes long and waits for nothing, off the threads that serve sockets.

use std::sync::{Arc, LazyLock};

use rollscope_store::StoreError;
use tokio::sync::Semaphore;

/// One at a time for each processor.
static WORKERS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    Arc::new(Semaphore::new(processors))
});

/// Does it there. If nobody waits for it any more, because a sender has hung up, it still counts until it is done.
pub(crate) async fn work<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Result<T, StoreError> {
    let permit = WORKERS.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
    let task = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        run()
    });
    match task.await {
        Ok(done) => Ok(done),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(StoreError::Closed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_counts_until_it_is_done_even_if_nobody_waits() {
        let all = std::thread::available_parallelism().map_or(2, usize::from) as u32;
        let (begin, begun) = tokio::sync::oneshot::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let waiting = tokio::spawn(work(move || {
            let _ = begin.send(());
            let _ = released.recv();
        }));
        begun.await.unwrap();
        waiting.abort();
        assert!(waiting.await.is_err());
        assert!(WORKERS.try_acquire_many(all).is_err());
        release.send(()).unwrap();
        assert!(WORKERS.acquire_many(all).await.is_ok());
    }
}
