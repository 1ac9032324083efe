//! Work on all cores.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What `work` makes of each number below `count`, in order.
pub fn each<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = cores().min(count);
    if threads < 2 {
        return (0..count).map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        loop {
            match next.fetch_add(1, Relaxed) {
                at if at < count => done.push((at, work(at))),
                _ => return done,
            }
        }
    };
    let mut all: Vec<(usize, T)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(take)).collect();
        let mut all = take();
        for other in others {
            all.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    all.sort_unstable_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, made)| made).collect()
}

/// What two pieces of work make, done at the same time.
pub fn both<A, B: Send>(one: impl FnOnce() -> A, other: impl FnOnce() -> B + Send) -> (A, B) {
    std::thread::scope(|scope| {
        let other = scope.spawn(other);
        let one = one();
        (one, other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn in_order_whoever_does_it() {
        assert_eq!(super::each(1000, |n| n * n), (0..1000).map(|n| n * n).collect::<Vec<_>>());
        assert!(super::each(0, |n| n).is_empty());
    }
}
