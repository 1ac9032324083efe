//! Work in chunks on every core, results in order, memory bounded: a worker is at most two chunks ahead.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// More threads than this gain nothing: one thread takes the results.
const MAX_THREADS: usize = 8;

/// Calls `make` for each of `chunks` on several threads (each with its own `state`) and `take` with the results, in order.
pub fn ordered<S, T: Send, E>(
    chunks: usize,
    state: impl Fn() -> S + Sync,
    make: impl Fn(&mut S, usize) -> T + Sync,
    mut take: impl FnMut(T) -> Result<(), E>,
) -> Result<(), E> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS).min(chunks);
    if threads <= 1 {
        let mut state = state();
        return (0..chunks).try_for_each(|chunk| take(make(&mut state, chunk)));
    }
    std::thread::scope(|scope| {
        let receivers: Vec<Receiver<T>> = (0..threads)
            .map(|first| {
                let (sender, receiver): (SyncSender<T>, _) = sync_channel(1);
                let (state, make) = (&state, &make);
                scope.spawn(move || {
                    let mut state = state();
                    for chunk in (first..chunks).step_by(threads) {
                        // The taker gave up.
                        if sender.send(make(&mut state, chunk)).is_err() {
                            return;
                        }
                    }
                });
                receiver
            })
            .collect();
        for chunk in 0..chunks {
            match receivers[chunk % threads].recv() {
                Ok(result) => take(result)?,
                // A worker panicked; the scope passes it on.
                Err(_) => break,
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_errors_stop_it() {
        let mut seen = Vec::new();
        let done: Result<(), ()> = ordered(
            100,
            || 0,
            |calls, n| {
                *calls += 1;
                n * 2
            },
            |n| {
                seen.push(n);
                Ok(())
            },
        );
        assert!(done.is_ok());
        assert_eq!(seen, (0..100).map(|n| n * 2).collect::<Vec<_>>());
        let stopped = ordered(100, || (), |(), n| n, |n| if n == 7 { Err(n) } else { Ok(()) });
        assert_eq!(stopped, Err(7));
        assert_eq!(ordered(0, || (), |(), n| n, |_| Err(())), Ok(()));
    }
}
