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

/// A generator of each thread, seeded by the operating system and never by the program, whose own seeds are the same in every
/// worker. After a fork the child takes a new seed. It is xoshiro256++: a system call per some ids was a sixteenth of a span.
struct Ids {
    generation: u32,
    state: [u64; 4],
}

impl Ids {
    #[inline]
    fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let next = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        next
    }

    #[cold]
    fn seed(&mut self) {
        self.generation = generation();
        let mut seed = [0; 32];
        system_random(&mut seed);
        for (word, bytes) in self.state.iter_mut().zip(seed.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        }
        // All zeros is the one state that never changes.
        self.state[0] |= 1;
    }
}

thread_local! {
    static IDS: RefCell<Ids> = const { RefCell::new(Ids { generation: u32::MAX, state: [0; 4] }) };
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
    let taken = IDS.try_with(|ids| {
        let mut ids = ids.borrow_mut();
        if ids.generation != generation() {
            ids.seed();
        }
        let mut id = [0; N];
        for bytes in id.chunks_mut(8) {
            bytes.copy_from_slice(&ids.next().to_ne_bytes()[..bytes.len()]);
        }
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
