//! The one recorder of a process: what the hot path appends to and the background thread empties.
//!
//! A finished span is written as protobuf straight into a shared buffer under a short lock. Full buffers queue up, by bytes
//! and bounded; the background thread ([`crate::sender`]) wraps them into requests. Spans that are still open are known by
//! a pointer, so that the thread can report them.
//!
//! After a fork the child finds no recorder and makes its own: the parent's locks, thread and unsent spans are the
//! parent's.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use rollscope_names::attributes::event;
use rollscope_names::limits::TRACE_LEVEL;

use crate::config::Config;
use crate::open::Slab;
use crate::row::Row;
use crate::wire::{self, Out, attrs_of};

/// A buffer of this size is handed to the background thread without waiting for the next flush.
pub const CHUNK_BYTES: usize = 256 << 10;
/// Buffers kept for reuse: touching fresh memory costs more than writing it.
const SPARE_CHUNKS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Spans,
    Records,
}

/// Encoded spans or records of one resource.
pub struct Chunk {
    pub signal: Signal,
    pub resource: Arc<Vec<u8>>,
    pub bytes: Vec<u8>,
    pub records: u64,
}

#[derive(Default)]
pub struct Buffer {
    pub bytes: Vec<u8>,
    pub records: u64,
}

/// What is behind the lock of the hot path. Held only for copying bytes, never while Python code runs.
pub struct Queue {
    pub spans: Buffer,
    pub records: Buffer,
    pub full: VecDeque<Chunk>,
    /// Bytes in `full` and on their way to the server.
    pub bytes: usize,
    /// Since the start of the process.
    pub recorded: u64,
    dropped: u64,
    pub resource: Arc<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    pub open: Slab,
}

/// Counted from the start of the process.
#[derive(Default)]
pub struct Counters {
    pub sent: AtomicU64,
    pub spilled: AtomicU64,
    /// Sent from spilled files, of this process or an earlier one.
    pub recovered: AtomicU64,
    pub dropped: AtomicU64,
    /// Refused by the server for good, or set aside because it fails on them.
    pub rejected: AtomicU64,
    /// Of the dropped and the rejected, those that may have been records: no spans.
    pub records_lost: AtomicU64,
    /// Errors of our own that were swallowed.
    pub errors: AtomicU64,
    pub requests: AtomicU64,
    pub thread_cpu_ns: AtomicU64,
}

/// What the background thread is asked for and what it has done.
#[derive(Default)]
pub struct Orders {
    pub flush_asked: u64,
    pub flush_done: u64,
    /// Whether everything up to `flush_done` reached the server.
    pub flush_sent: bool,
    /// The process ends: by when everything must be sent or on disk.
    pub close: Option<Instant>,
    pub closed: bool,
}

pub struct Core {
    pub config: Config,
    pub generation: u32,
    queue: Mutex<Queue>,
    pub counters: Counters,
    pub orders: Mutex<Orders>,
    pub done: Condvar,
    pub wake: tokio::sync::Notify,
    /// Whether the background thread has been told that a chunk is full.
    told: AtomicBool,
    started: AtomicBool,
    closed: AtomicBool,
    pub last_error: Mutex<String>,
    /// Requests on their way: written to disk if the process ends first.
    pub inflight: Mutex<Option<Arc<crate::sender::Request>>>,
}

static CORE: AtomicPtr<Core> = AtomicPtr::new(std::ptr::null_mut());
/// The recorder of before the fork, whose settings the child's takes over.
static PARENT: AtomicPtr<Core> = AtomicPtr::new(std::ptr::null_mut());
static GENERATION: AtomicU32 = AtomicU32::new(1);
static LEVEL: AtomicU8 = AtomicU8::new(TRACE_LEVEL);
/// What the process asked for, while the server says otherwise.
static OWN_LEVEL: AtomicU8 = AtomicU8::new(TRACE_LEVEL);
static ON: AtomicBool = AtomicBool::new(false);

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Rises with every fork on the child's side.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// The level at which spans are recorded; 0 while nothing is.
#[inline]
pub fn level() -> u8 {
    if ON.load(Ordering::Relaxed) { LEVEL.load(Ordering::Relaxed) } else { 0 }
}

pub fn own_level() -> u8 {
    LEVEL.load(Ordering::Relaxed)
}

pub fn set_level(level: u8) {
    OWN_LEVEL.store(level.min(TRACE_LEVEL), Ordering::Relaxed);
    LEVEL.store(level.min(TRACE_LEVEL), Ordering::Relaxed);
}

/// The server's word. `None`: it has none, and the process's own counts.
pub fn set_level_from_server(level: Option<u8>) {
    let level = level.unwrap_or_else(|| OWN_LEVEL.load(Ordering::Relaxed));
    LEVEL.store(level.min(TRACE_LEVEL), Ordering::Relaxed);
}

extern "C" fn after_fork_in_child() {
    // Only what may be done here: no locks, no memory. The old recorder is leaked, its locks may be held.
    let old = CORE.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if !old.is_null() {
        PARENT.store(old, Ordering::Release);
    }
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// Starts recording with these settings. A recorder that is there already is closed by its owner first.
pub fn configure(config: Config) {
    static WATCH_FORKS: Once = Once::new();
    // SAFETY: the handler does nothing but atomic operations.
    WATCH_FORKS.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(after_fork_in_child));
    });
    let core = Box::into_raw(Box::new(Core::new(config)));
    // The old one is never freed: other threads may be in it. There are as many as calls of init with a new address.
    CORE.store(core, Ordering::Release);
    ON.store(true, Ordering::Release);
}

/// Nothing is recorded from now on.
pub fn switch_off() {
    ON.store(false, Ordering::Release);
}

pub fn switch_on() {
    ON.store(!CORE.load(Ordering::Acquire).is_null() || inherited().is_some(), Ordering::Release);
}

/// The recorder, if there is one.
#[inline]
pub fn core() -> Option<&'static Core> {
    let core = CORE.load(Ordering::Acquire);
    // SAFETY: recorders are never freed.
    match unsafe { core.as_ref() } {
        Some(core) => Some(core),
        None => inherited(),
    }
}

#[cold]
fn inherited() -> Option<&'static Core> {
    let parent = PARENT.load(Ordering::Acquire);
    // SAFETY: recorders are never freed, and what is read here never changes once it is published. The resource is read
    // from the settings, not from behind a lock that may be held.
    let parent = unsafe { parent.as_ref() }?;
    let fresh = Box::into_raw(Box::new(Core::new(parent.config.clone_for_child())));
    match CORE.compare_exchange(std::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: as above.
        Ok(_) => unsafe { fresh.as_ref() },
        Err(other) => {
            // SAFETY: nobody has seen `fresh`; the other is never freed.
            unsafe {
                drop(Box::from_raw(fresh));
                other.as_ref()
            }
        }
    }
}

impl Core {
    fn new(config: Config) -> Core {
        let resource = config.resource.encode();
        Core {
            generation: generation(),
            queue: Mutex::new(Queue {
                spans: Buffer::default(),
                records: Buffer::default(),
                full: VecDeque::new(),
                bytes: 0,
                recorded: 0,
                dropped: 0,
                resource: Arc::new(resource),
                spare: Vec::new(),
                open: Slab::default(),
            }),
            config,
            counters: Counters::default(),
            orders: Mutex::default(),
            done: Condvar::new(),
            wake: tokio::sync::Notify::new(),
            told: AtomicBool::new(false),
            started: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            last_error: Mutex::default(),
            inflight: Mutex::new(None),
        }
    }

    #[inline]
    pub fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    /// For the end of the process: does not wait for somebody who may never come back.
    pub fn try_queue(&self) -> Option<MutexGuard<'_, Queue>> {
        for _ in 0..50 {
            match self.queue.try_lock() {
                Ok(queue) => return Some(queue),
                Err(std::sync::TryLockError::Poisoned(queue)) => return Some(queue.into_inner()),
                Err(std::sync::TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        None
    }

    /// Recorded and dropped since the start of the process.
    pub fn totals(&self) -> (u64, u64) {
        let queue = self.queue();
        (queue.recorded, queue.dropped + self.counters.dropped.load(Ordering::Relaxed))
    }

    /// What was on its way is lost, and why: refused by the server, or nowhere to keep it.
    pub fn lose(&self, signal: Signal, records: u64, counter: &AtomicU64) {
        counter.fetch_add(records, Ordering::Relaxed);
        if signal == Signal::Records {
            self.counters.records_lost.fetch_add(records, Ordering::Relaxed);
        }
    }

    /// Appends one span or record, written by `write`, and counts it. False: there was no room for it.
    #[inline]
    fn record(&self, signal: Signal, len: usize, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut queue = self.queue();
        self.record_locked(&mut queue, signal, len, write)
    }

    #[inline]
    fn record_locked(&self, queue: &mut Queue, signal: Signal, len: usize, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        queue.recorded += 1;
        if queue.bytes + len > self.config.queue_bytes || self.closed.load(Ordering::Relaxed) {
            queue.dropped += 1;
            return false;
        }
        let buffer = match signal {
            Signal::Spans => &mut queue.spans,
            Signal::Records => &mut queue.records,
        };
        if buffer.bytes.capacity() == 0 {
            buffer.bytes = queue.spare.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 8));
        }
        write(&mut buffer.bytes);
        buffer.records += 1;
        queue.bytes += len;
        if buffer.bytes.len() >= CHUNK_BYTES {
            queue.seal(signal);
            self.tell();
        } else if !self.started.load(Ordering::Relaxed) {
            self.tell();
        }
        true
    }

    /// Appends a finished span.
    #[inline]
    pub fn record_row(&self, row: &Row<'_>) {
        self.record_row_locked(&mut self.queue(), row);
    }

    #[inline]
    pub fn record_row_locked(&self, queue: &mut Queue, row: &Row<'_>) {
        self.record_locked(queue, Signal::Spans, row.len(), |out| row.write(out));
    }

    /// Wakes the background thread, and starts it the first time.
    #[cold]
    fn tell(&self) {
        if !self.started.swap(true, Ordering::AcqRel)
            && let Some(core) = core().filter(|c| std::ptr::eq(*c, self))
        {
            crate::sender::start(core);
        }
        if !self.told.swap(true, Ordering::AcqRel) {
            self.wake.notify_one();
        }
    }

    pub fn started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }

    pub fn heard(&self) {
        self.told.store(false, Ordering::Release);
    }

    pub fn nudge(&self) {
        self.tell();
    }

    pub fn close_for_good(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// The resource changed (a run began): what was written belongs to the old one.
    pub fn set_resource(&self, resource: Vec<u8>) {
        let mut queue = self.queue();
        if *queue.resource == resource {
            return;
        }
        queue.seal(Signal::Spans);
        queue.seal(Signal::Records);
        queue.resource = Arc::new(resource);
    }

    pub fn note_error(&self, text: String) {
        *lock(&self.last_error) = text;
    }
}

impl Queue {
    /// Moves what a buffer holds to the full ones.
    pub fn seal(&mut self, signal: Signal) {
        let buffer = match signal {
            Signal::Spans => &mut self.spans,
            Signal::Records => &mut self.records,
        };
        if buffer.bytes.is_empty() {
            return;
        }
        let buffer = std::mem::take(buffer);
        let resource = self.resource.clone();
        self.full.push_back(Chunk { signal, resource, bytes: buffer.bytes, records: buffer.records });
    }

    /// A chunk is done with: its memory is used again.
    pub fn recycle(&mut self, mut bytes: Vec<u8>) {
        if self.spare.len() < SPARE_CHUNKS && bytes.capacity() <= 4 * CHUNK_BYTES {
            bytes.clear();
            self.spare.push(bytes);
        }
    }
}

/// A log record with an event name: what OTLP's spans cannot carry. False: there was no room for it.
pub fn record_event(
    core: &Core,
    name: &str,
    time_ns: u64,
    attributes: &[u8],
    body: Option<&[u8]>,
    ids: Option<(&[u8; 16], &[u8; 8])>,
) -> bool {
    let mut record = Vec::with_capacity(attributes.len() + body.map_or(0, <[u8]>::len) + 96);
    record.fixed64(0x09, time_ns);
    if let Some(body) = body {
        record.field(0x2a, body);
    }
    record.put(attributes);
    if let Some((trace, span)) = ids {
        record.field(0x4a, trace);
        record.field(0x52, span);
    }
    record.field(0x62, name.as_bytes());
    let len = wire::field_len(record.len());
    core.record(Signal::Records, len, |out| out.field(0x12, &record))
}

/// A sign of life: how many there were. Not counted itself.
pub fn beat_record(out: &mut Vec<u8>, time_ns: u64, beats: u64) {
    let mut record = Vec::with_capacity(64);
    record.fixed64(0x09, time_ns);
    wire::int_attr(&mut record, attrs_of::LOG, format!("{}beats", event::STAT_PREFIX).as_bytes(), beats as i64);
    record.field(0x62, event::STATS.as_bytes());
    out.field(0x12, &record);
}

/// The counters as a record, and as a sign of life. Not counted itself.
pub fn stats_record(core: &Core, time_ns: u64) -> Vec<u8> {
    let mut record = Vec::with_capacity(256);
    record.fixed64(0x09, time_ns);
    let c = &core.counters;
    let (recorded, dropped) = core.totals();
    for (name, count) in [
        ("recorded", recorded),
        ("sent", c.sent.load(Ordering::Relaxed)),
        ("spilled", c.spilled.load(Ordering::Relaxed)),
        ("dropped", dropped),
        ("rejected", c.rejected.load(Ordering::Relaxed)),
    ] {
        wire::int_attr(&mut record, attrs_of::LOG, format!("{}{name}", event::STAT_PREFIX).as_bytes(), count as i64);
    }
    record.field(0x62, event::STATS.as_bytes());
    let mut framed = Vec::with_capacity(record.len() + 4);
    framed.field(0x12, &record);
    framed
}
