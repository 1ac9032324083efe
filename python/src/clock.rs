//! Time and ids. Both can be replaced for users' tests (`rollscope.testing`).

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::core::generation;

/// Set by `rollscope.testing`: times and ids come from counters.
static FAKE: AtomicBool = AtomicBool::new(false);
static FAKE_NOW: AtomicU64 = AtomicU64::new(0);
static FAKE_TICK: AtomicU64 = AtomicU64::new(0);
static FAKE_ID: AtomicU64 = AtomicU64::new(0);

pub fn fake(now_ns: Option<u64>, tick_ns: u64) {
    FAKE_NOW.store(now_ns.unwrap_or(0), Relaxed);
    FAKE_TICK.store(tick_ns, Relaxed);
    FAKE_ID.store(0, Relaxed);
    FAKE.store(now_ns.is_some(), Relaxed);
}

/// Moves the fake clock.
pub fn advance(ns: u64) {
    FAKE_NOW.fetch_add(ns, Relaxed);
}

/// Nanoseconds since the epoch.
#[inline]
pub fn now_ns() -> u64 {
    if FAKE.load(Relaxed) {
        return FAKE_NOW.fetch_add(FAKE_TICK.load(Relaxed), Relaxed);
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

const POOL: usize = 1024;

/// Bytes from the operating system, fetched some at a time. After a fork the child's are thrown away.
struct Pool {
    generation: u32,
    left: usize,
    bytes: [u8; POOL],
}

thread_local! {
    static POOLED: RefCell<Pool> = const { RefCell::new(Pool { generation: 0, left: 0, bytes: [0; POOL] }) };
}

/// Fills `out` from the operating system; never from a seeded generator.
pub fn system_random(out: &mut [u8]) {
    let mut filled = 0;
    while filled < out.len() {
        // SAFETY: the rest of `out` is ours to write.
        let n = unsafe { libc::getrandom(out[filled..].as_mut_ptr().cast(), out.len() - filled, 0) };
        match n {
            n if n > 0 => filled += n as usize,
            _ if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            // Cannot happen on a kernel of this century; ids must differ all the same.
            _ => {
                let mut seed = now_ns() ^ (std::process::id() as u64) << 40 ^ out.as_ptr() as u64;
                for byte in &mut out[filled..] {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    *byte = (seed >> 56) as u8;
                }
                return;
            }
        }
    }
}

/// An id that nobody else has, never zero.
#[inline]
pub fn new_id<const N: usize>() -> [u8; N] {
    if FAKE.load(Relaxed) {
        let mut id = [0; N];
        id[N - 8..].copy_from_slice(&(FAKE_ID.fetch_add(1, Relaxed) + 1).to_be_bytes());
        return id;
    }
    let taken = POOLED.try_with(|pool| {
        let mut pool = pool.borrow_mut();
        if pool.left < N || pool.generation != generation() {
            let pool = &mut *pool;
            pool.generation = generation();
            system_random(&mut pool.bytes);
            pool.left = POOL;
        }
        let at = pool.left - N;
        let mut id = [0; N];
        id.copy_from_slice(&pool.bytes[at..at + N]);
        pool.left = at;
        id
    });
    let mut id = taken.unwrap_or_else(|_| {
        // The thread is going away.
        let mut id = [0; N];
        system_random(&mut id);
        id
    });
    if id.iter().all(|b| *b == 0) {
        id[N - 1] = 1;
    }
    id
}
