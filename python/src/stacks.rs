//! The Python stacks of this process, when the server asks for them: in a header of a response, by a number and the run.
//!
//! A thread that is made for this wakes the package's own Python thread (`rollscope/_stacks.py`), which reads all frames while it
//! holds Python's lock, for about a millisecond. If that thread gets no turn for [`PATIENCE`], somebody keeps Python's lock: native
//! code that hangs. Then `faulthandler` writes the frames, which needs no lock, from the handler of a signal that the thread here
//! sends to itself. No thread of the program is interrupted or waited for.

use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use rollscope_names::attributes::event;
use rollscope_names::percent;

use crate::clock;
use crate::core::{Core, generation, lock};
use crate::row::Row;
use crate::wire::{self, attrs_of};

/// How long Python's lock may be taken before the stacks are read without it.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often we look whether the Python thread is done.
const GLANCE: Duration = Duration::from_millis(10);
/// Longest text. What is beyond that is cut off.
const MAX_BYTES: usize = 256 << 10;
const RUN_ID: &str = "rl.run.id";

/// The request that was answered last.
static ANSWERED: AtomicU64 = AtomicU64::new(0);
/// Only one thread at a time collects.
static COLLECTING: AtomicBool = AtomicBool::new(false);
/// What the Python thread reported, for whoever waits for it.
static REPORTED: AtomicPtr<String> = AtomicPtr::new(null_mut());
/// The process that the rest is of: a forked child has its own.
static OF_GENERATION: AtomicU32 = AtomicU32::new(0);
/// Where a byte wakes the Python thread, where `faulthandler` writes, and the signal that makes it. -1: there is none.
static WAKE: AtomicI32 = AtomicI32::new(-1);
static DUMP: AtomicI32 = AtomicI32::new(-1);
static SIGNAL: AtomicI32 = AtomicI32::new(-1);

/// Python is ready to answer in this process.
pub fn ready(wake: RawFd, dump: RawFd, signal: i32) {
    OF_GENERATION.store(0, Release);
    WAKE.store(wake, Relaxed);
    DUMP.store(dump, Relaxed);
    SIGNAL.store(signal, Relaxed);
    COLLECTING.store(false, Relaxed);
    OF_GENERATION.store(generation(), Release);
}

pub fn report(text: String) {
    drop_reported(REPORTED.swap(Box::into_raw(Box::new(text)), AcqRel));
}

fn drop_reported(text: *mut String) -> Option<String> {
    // SAFETY: it came from a box, and whoever swapped it out is the only one who has it.
    (!text.is_null()).then(|| unsafe { *Box::from_raw(text) })
}

/// A signal that nobody uses, from the top of those for programs.
pub fn free_signal() -> Option<i32> {
    (libc::SIGRTMIN() + 1..=libc::SIGRTMAX() - 1).rev().find(|number| {
        // SAFETY: it is only asked what is there, into memory of ours.
        unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            libc::sigaction(*number, std::ptr::null(), &mut old) == 0 && old.sa_sigaction == libc::SIG_DFL
        }
    })
}

/// The server asked: `NUMBER RUN`.
pub fn asked(core: &'static Core, header: &str) {
    let Some((number, run)) = header.split_once(' ') else { return };
    let Ok(number) = number.parse::<u64>() else { return };
    if number <= ANSWERED.load(Relaxed) || OF_GENERATION.load(Acquire) != generation() {
        return;
    }
    let own = lock(&core.config.resource.0).iter().any(|(key, value)| key == RUN_ID && percent(value) == run);
    if !own || COLLECTING.swap(true, AcqRel) {
        return;
    }
    ANSWERED.store(number, Relaxed);
    let work = move || {
        record(core, &collect());
        COLLECTING.store(false, Release);
    };
    if std::thread::Builder::new().name("rollscope-stacks".into()).stack_size(256 << 10).spawn(work).is_err() {
        COLLECTING.store(false, Release);
    }
}

fn collect() -> String {
    drop_reported(REPORTED.swap(null_mut(), AcqRel));
    let from = Instant::now();
    // SAFETY: one byte of ours, to a pipe that is never closed. If it is full, the thread has been woken already.
    unsafe { libc::write(WAKE.load(Relaxed), c"?".as_ptr().cast(), 1) };
    while from.elapsed() < PATIENCE {
        std::thread::sleep(GLANCE);
        if let Some(text) = drop_reported(REPORTED.swap(null_mut(), AcqRel)) {
            return text;
        }
    }
    let pid = std::process::id();
    let why = format!("Process {pid}: Python's lock has not been free for {} s\n", PATIENCE.as_secs());
    why + &without_lock()
}

/// What `faulthandler` writes in the handler of a signal.
fn without_lock() -> String {
    let (dump, signal) = (DUMP.load(Relaxed), SIGNAL.load(Relaxed));
    if dump < 0 || signal < 0 {
        return "Python's faulthandler is not available\n".into();
    }
    // SAFETY: the handler runs on this thread, on its ordinary stack, before `pthread_kill` returns. The file is ours.
    unsafe {
        let off = libc::stack_t { ss_sp: null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        libc::sigaltstack(&off, null_mut());
        libc::ftruncate(dump, 0);
        libc::lseek(dump, 0, libc::SEEK_SET);
        let mut only: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut only);
        libc::sigaddset(&mut only, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &only, null_mut());
        libc::pthread_kill(libc::pthread_self(), signal);
        let mut text = vec![0_u8; MAX_BYTES];
        let read = libc::pread(dump, text.as_mut_ptr().cast(), text.len(), 0);
        text.truncate(usize::try_from(read).unwrap_or(0));
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// A span without length, with the stacks as its attribute.
fn record(core: &Core, text: &str) {
    let mut end = text.len().min(MAX_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut attribute = Vec::new();
    wire::text_attr(&mut attribute, attrs_of::SPAN, event::STACKS.as_bytes(), &text.as_bytes()[..end]);
    let (trace, span) = (clock::new_id::<16>(), clock::new_id::<8>());
    let mut row = Row::instant((&trace, &span), event::STACKS.as_bytes(), clock::now_ns());
    row.end_attrs[1] = &attribute;
    core.record_row(&row);
}
