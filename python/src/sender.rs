//! The background thread: takes full buffers, wraps them into requests, sends them, and keeps what cannot be sent on disk.
//! It never needs Python's lock, so it cannot be in the way and cannot be stopped by an interpreter that shuts down.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::clock;
use crate::config::{Config, Exporter};
use crate::core::{Chunk, Core, Counters, Queue, Signal, beat_record, lock, set_level_from_server, stats_record};
use crate::spill::{Spill, Spilled};
use crate::split;
use crate::stacks;
use crate::transport::{Link, Outcome};
use crate::wire::{Out, field_len};

/// Buffers are put together up to this size.
const MAX_REQUEST_BYTES: usize = 4 << 20;
/// With the server away for longer than this, things go to disk.
const PATIENCE: Duration = Duration::from_secs(2);
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
const LAST_BACKOFF: Duration = Duration::from_secs(15);
/// How often we look whether processes before us left something.
const ADOPT_EVERY: Duration = Duration::from_secs(20);
/// Signs of life: how often one is noted, and how many are sent together.
const BEAT_EVERY: Duration = Duration::from_secs(1);
const BEATS_TOGETHER: u64 = 5;
/// Open spans looked at under one lock.
const SCAN_SLICE: usize = 256;
/// Of the time to exit, what is kept for writing to disk.
const SPILL_RESERVE: Duration = Duration::from_millis(300);

/// A record that the server fails on is given up after this many tries, each with others that passed before it.
const TRIES: u32 = 5;
/// A request that the server is unavailable for so many times lets others pass, as long as no more than these wait for one that does.
const IN_VAIN: u32 = 3;
const MAX_SET_ASIDE: usize = 8;
/// Requests that the server failed on are taken apart until there are this many.
const MAX_DOUBTED: usize = 256;
/// Of the memory for what waits, what they may have. More goes to disk.
const DOUBTED_SHARE: usize = 4;

/// One message, ready to send.
pub struct Request {
    pub signal: Signal,
    pub records: u64,
    /// Bytes of the queue that it stands for.
    pub queued: usize,
    /// Five bytes for the gRPC frame, then the message.
    pub framed: Bytes,
    /// Where it is on disk, shared by the parts that it was taken apart into.
    pub file: Option<Arc<OnDisk>>,
}

pub struct OnDisk {
    path: PathBuf,
    /// Some part of it could not be sent: it stays.
    again: AtomicBool,
}

impl Request {
    fn message(&self) -> &[u8] {
        &self.framed[5..]
    }

    fn from_spilled(spilled: Spilled) -> Request {
        let mut framed = frame(spilled.message.len());
        framed.put(&spilled.message);
        let file = Some(Arc::new(OnDisk { path: spilled.path, again: AtomicBool::new(false) }));
        Request { signal: spilled.signal, records: spilled.records, queued: 0, framed: framed.into(), file }
    }

    fn of_chunk(chunk: &Chunk) -> Request {
        Request {
            signal: chunk.signal,
            records: chunk.records,
            queued: chunk.bytes.len(),
            framed: envelope(&chunk.resource, &[&chunk.bytes]).into(),
            file: None,
        }
    }

    fn halves(&self) -> Option<[Request; 2]> {
        let [first, second] = split::halves(self.signal, self.message())?;
        let half = |(framed, records): (Vec<u8>, u64), queued| Request {
            signal: self.signal,
            records,
            queued,
            framed: framed.into(),
            file: self.file.clone(),
        };
        Some([half(first, self.queued / 2), half(second, self.queued - self.queued / 2)])
    }
}

/// How much the server has taken so far, of each signal.
#[derive(Clone, Copy, Default, PartialEq)]
struct Passed([u64; 2]);

impl Passed {
    fn of(&self, signal: Signal) -> u64 {
        self.0[signal as usize]
    }
}

/// A request that the server failed on. If others pass, the request is to blame and not the server: it is taken apart, and in
/// the end the record that is to blame is given up.
struct Doubted {
    request: Arc<Request>,
    doubt: Doubt,
    due: Instant,
}

#[derive(Clone, Copy)]
struct Doubt {
    tries: u32,
    /// How often the server was unavailable for it while it took others. That alone gives nothing up.
    in_vain: u32,
    /// When it was tried last.
    passed: Passed,
}

/// The frame of a gRPC message, with room for it.
fn frame(len: usize) -> Vec<u8> {
    let mut framed = Vec::with_capacity(len + 5);
    framed.push(0);
    framed.put(&(len as u32).to_be_bytes());
    framed
}

/// `Export…ServiceRequest { Resource… { resource, Scope… { scope, items } } }`; the tags are the same for spans and logs.
pub fn envelope(resource: &[u8], chunks: &[&[u8]]) -> Vec<u8> {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    let mut scope = Vec::with_capacity(32);
    scope.field(0x0a, b"rollscope");
    scope.field(0x12, VERSION.as_bytes());
    let items: usize = chunks.iter().map(|c| c.len()).sum();
    let scoped = field_len(scope.len()) + items;
    let all = field_len(resource.len()) + field_len(scoped);
    let mut framed = frame(field_len(all));
    framed.byte(0x0a);
    framed.varint(all as u64);
    framed.field(0x0a, resource);
    framed.byte(0x12);
    framed.varint(scoped as u64);
    framed.field(0x0a, &scope);
    chunks.iter().for_each(|chunk| framed.put(chunk));
    framed
}

pub fn start(core: &'static Core) {
    if matches!(core.config.exporter, Exporter::Memory) {
        return;
    }
    let spawned = std::thread::Builder::new().name("rollscope".into()).stack_size(1 << 20).spawn(move || run(core));
    if let Err(error) = spawned {
        core.note_error(format!("cannot start a thread: {error}"));
        core.counters.errors.fetch_add(1, Relaxed);
    }
}

fn run(core: &'static Core) {
    // Signals are for Python's threads.
    // SAFETY: the set is ours, and filled before it is used.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            core.note_error(format!("cannot start: {error}"));
            core.counters.errors.fetch_add(1, Relaxed);
            return;
        }
    };
    runtime.block_on(Sender::new(core).run());
}

struct Sender {
    core: &'static Core,
    link: Option<Link>,
    spill: Spill,
    /// A request that could not be sent yet.
    held: Option<Arc<Request>>,
    /// How often that was in vain, although the request may be to blame.
    in_vain: u32,
    /// Requests that the server failed on.
    doubted: VecDeque<Doubted>,
    passed: Passed,
    /// What had passed when the server failed last.
    passed_at_failure: Passed,
    /// What is on disk waits: the server failed on some of it.
    spilled_until: Option<Instant>,
    away: Option<Away>,
    last_scan: Instant,
    last_seal: Instant,
    last_stats: Option<Instant>,
    last_beat: Instant,
    /// How many there were, and those that wait to be sent.
    beats: u64,
    waiting_beats: Vec<u8>,
    last_adopt: Option<Instant>,
    /// The last look for what others left found something.
    adopting: bool,
}

/// The server does not take anything now.
struct Away {
    since: Instant,
    until: Instant,
    backoff: Duration,
}

impl Sender {
    fn new(core: &'static Core) -> Sender {
        let Config { exporter, spill_dir, spill_bytes, .. } = &core.config;
        let link = match exporter {
            Exporter::Network(endpoint) => Some(Link::new(endpoint.clone())),
            _ => None,
        };
        Sender {
            core,
            link,
            spill: Spill::new(spill_dir.clone(), *spill_bytes),
            held: None,
            in_vain: 0,
            doubted: VecDeque::new(),
            passed: Passed::default(),
            passed_at_failure: Passed::default(),
            spilled_until: None,
            away: None,
            last_scan: Instant::now(),
            last_seal: Instant::now(),
            last_stats: None,
            last_beat: Instant::now(),
            beats: 0,
            waiting_beats: Vec::new(),
            last_adopt: None,
            adopting: false,
        }
    }

    async fn run(mut self) {
        loop {
            let (flush, close) = {
                let orders = lock(&self.core.orders);
                (orders.flush_asked, orders.close)
            };
            let asked = flush > lock(&self.core.orders).flush_done;
            if let Some(by) = close {
                self.close(by).await;
                return;
            }
            if asked {
                self.hurry();
            }
            self.scan_open();
            self.report_stats(false);
            self.beat();
            self.seal(asked);
            self.drain(None).await;
            self.retry_doubted(None).await;
            self.send_spilled(None).await;
            self.core.counters.thread_cpu_ns.store(thread_cpu_ns(), Relaxed);
            if asked {
                let mut orders = lock(&self.core.orders);
                orders.flush_done = flush;
                orders.flush_sent = self.away.is_none() && self.doubted.is_empty() && self.spill.waiting() == 0;
                self.core.done.notify_all();
                continue;
            }
            let nap = self.core.config.flush_interval;
            // Between two seals a full buffer may come; everything else waits for its time.
            let _ = tokio::time::timeout(nap, self.core.wake.notified()).await;
            self.core.heard();
        }
    }

    /// Sends what there is within the time, keeps the rest on disk, and says that it is done.
    async fn close(&mut self, by: Instant) {
        let patience = by.saturating_duration_since(Instant::now());
        let deadline = by - SPILL_RESERVE.min(patience / 4);
        self.report_stats(true);
        self.seal(true);
        self.hurry();
        self.drain(Some(deadline)).await;
        self.retry_doubted(Some(deadline)).await;
        self.send_spilled(Some(deadline)).await;
        if self.away.is_none() {
            // The last word: the counters as they are now.
            self.report_stats(true);
            self.seal(true);
            self.drain(Some(deadline)).await;
        }
        self.empty();
        self.spill.close();
        self.core.counters.thread_cpu_ns.store(thread_cpu_ns(), Relaxed);
        lock(&self.core.orders).closed = true;
        self.core.done.notify_all();
    }

    /// Somebody waits: what was put off is tried now.
    fn hurry(&mut self) {
        let now = Instant::now();
        self.spilled_until = None;
        self.doubted.iter_mut().for_each(|doubted| doubted.due = now);
        if let Some(away) = &mut self.away {
            away.until = now;
        }
    }

    fn seal(&mut self, now: bool) {
        if now || self.last_seal.elapsed() >= self.core.config.flush_interval {
            self.last_seal = Instant::now();
            let mut queue = self.core.queue();
            queue.seal(Signal::Spans);
            queue.seal(Signal::Records);
        }
    }

    /// Reports spans that have been open for a while.
    fn scan_open(&mut self) {
        let after = self.core.config.pending_after;
        if self.last_scan.elapsed() < after / 4 {
            return;
        }
        self.last_scan = Instant::now();
        let before = clock::now_ns().saturating_sub(after.as_nanos() as u64);
        let mut at = 0;
        loop {
            let mut queue = self.core.queue();
            let end = (at + SCAN_SLICE).min(queue.open.len());
            if at >= end {
                return;
            }
            let Queue { spans, bytes, open, .. } = &mut *queue;
            for span in (at..end).filter_map(|slot| open.get(slot)) {
                if *bytes >= self.core.config.queue_bytes {
                    return;
                }
                if span.start_ns() > before || span.reported().swap(true, Relaxed) {
                    continue;
                }
                let from = spans.bytes.len();
                // Not counted: it is recorded when it ends.
                span.write_open(&mut spans.bytes);
                *bytes += spans.bytes.len() - from;
            }
            at = end;
        }
    }

    fn report_stats(&mut self, now: bool) {
        let due = self.last_stats.is_none_or(|at| at.elapsed() >= self.core.config.stats_interval);
        if self.link.is_none() || !(now || due) || self.core.totals().0 == 0 {
            return;
        }
        // Not at once: the first seconds are for what was recorded.
        if self.last_stats.is_none() && !now {
            self.last_stats = Some(Instant::now());
            return;
        }
        self.last_stats = Some(Instant::now());
        let record = stats_record(self.core, clock::now_ns());
        let mut queue = self.core.queue();
        if queue.bytes < self.core.config.queue_bytes {
            queue.bytes += record.len();
            queue.records.bytes.put(&record);
        }
    }

    /// A sign of life every second, sent a few at a time. It says that the process lives, not that its Python code moves: this
    /// thread needs no lock of it. Without a server, signs are worth nothing later and are not kept.
    fn beat(&mut self) {
        if self.last_beat.elapsed() < BEAT_EVERY || self.link.is_none() {
            return;
        }
        // A process that has only imported the package is none of the run's.
        if self.core.totals().0 == 0 && self.core.queue().open.len() == 0 {
            return;
        }
        self.last_beat = Instant::now();
        self.beats += 1;
        if self.away.is_some() {
            self.waiting_beats.clear();
            return;
        }
        beat_record(&mut self.waiting_beats, clock::now_ns(), self.beats);
        if !self.beats.is_multiple_of(BEATS_TOGETHER) {
            return;
        }
        let mut queue = self.core.queue();
        if queue.bytes < self.core.config.queue_bytes {
            queue.bytes += self.waiting_beats.len();
            queue.records.bytes.put(&self.waiting_beats);
        }
        self.waiting_beats.clear();
    }

    /// Sends requests until there are none, or the server does not want any.
    async fn drain(&mut self, deadline: Option<Instant>) {
        loop {
            if self.is_away() {
                self.keep_while_away();
                return;
            }
            if deadline.is_some_and(|d| Instant::now() >= d) {
                return;
            }
            let request = match self.held.take() {
                Some(request) => request,
                None => match self.next_request() {
                    Some(request) => {
                        self.in_vain = 0;
                        Arc::new(request)
                    }
                    None => return,
                },
            };
            self.deliver(request, None, deadline).await;
        }
    }

    /// Full buffers of one kind and resource, as one request.
    fn next_request(&mut self) -> Option<Request> {
        let mut chunks: Vec<Chunk> = Vec::new();
        let mut bytes = 0;
        {
            let mut queue = self.core.queue();
            while let Some(next) = queue.full.front() {
                let fits = chunks.first().is_none_or(|first| {
                    first.signal == next.signal
                        && Arc::ptr_eq(&first.resource, &next.resource)
                        && bytes + next.bytes.len() <= MAX_REQUEST_BYTES
                });
                if !fits {
                    break;
                }
                bytes += next.bytes.len();
                chunks.extend(queue.full.pop_front());
            }
        }
        let first = chunks.first()?;
        let parts: Vec<&[u8]> = chunks.iter().map(|c| c.bytes.as_slice()).collect();
        let request = Request {
            signal: first.signal,
            records: chunks.iter().map(|c| c.records).sum(),
            queued: bytes,
            framed: envelope(&first.resource, &parts).into(),
            file: None,
        };
        let mut queue = self.core.queue();
        chunks.into_iter().for_each(|chunk| queue.recycle(chunk.bytes));
        Some(request)
    }

    /// Sends one request and deals with the answer. `doubt`: the server failed on it before.
    async fn deliver(&mut self, request: Arc<Request>, doubt: Option<Doubt>, deadline: Option<Instant>) {
        let Some(outcome) = self.exchange(&request, deadline).await else {
            // Measuring: it went nowhere.
            self.core.counters.sent.fetch_add(request.records, Relaxed);
            self.settle(request, false);
            return;
        };
        match outcome {
            Outcome::Taken { rejected, message, told } => {
                self.away = None;
                self.passed.0[request.signal as usize] += 1;
                set_level_from_server(told.level);
                told.stacks.iter().for_each(|asked| stacks::asked(self.core, asked));
                let rejected = rejected.min(request.records);
                if rejected > 0 {
                    self.core.note_error(message);
                    self.core.lose(request.signal, rejected, &self.core.counters.rejected);
                }
                let Counters { sent, recovered, .. } = &self.core.counters;
                let counter = if request.file.is_some() { recovered } else { sent };
                counter.fetch_add(request.records - rejected, Relaxed);
                self.settle(request, false);
            }
            Outcome::Refused { why } => {
                self.away = None;
                self.give_up(request, why);
            }
            Outcome::Later { why, after, suspect } => {
                self.core.note_error(why);
                let passed = self.passed;
                match doubt {
                    Some(doubt) if suspect && doubt.passed.of(request.signal) != passed.of(request.signal) => {
                        return self.unavailable(request, doubt);
                    }
                    Some(doubt) => self.doubted.push_back(Doubted { request, doubt, due: Instant::now() }),
                    None if request.file.is_some() => self.settle(request, true),
                    None if suspect && self.in_vain + 1 >= IN_VAIN && self.set_aside() < MAX_SET_ASIDE => {
                        self.doubt(request, Doubt { tries: 0, in_vain: 0, passed }, Instant::now());
                    }
                    None => {
                        self.in_vain += u32::from(suspect);
                        self.held = Some(request);
                    }
                }
                self.stay_away(after);
            }
            Outcome::Failed { why } => self.failed(request, doubt, why),
        }
    }

    /// Sends one request. While that lasts, memory is kept under its bound. `None`: there is nowhere to send to.
    async fn exchange(&mut self, request: &Arc<Request>, deadline: Option<Instant>) -> Option<Outcome> {
        let link = self.link.as_mut()?;
        *lock(&self.core.inflight) = Some(request.clone());
        let mut timeout = self.core.config.timeout;
        if let Some(deadline) = deadline {
            timeout = timeout.min(deadline.saturating_duration_since(Instant::now()));
        }
        self.core.counters.requests.fetch_add(1, Relaxed);
        let outcome = {
            let mut sending = std::pin::pin!(link.send(request.signal, request.framed.clone(), timeout));
            let mut give_up: Option<Instant> = None;
            loop {
                let end = async {
                    match give_up {
                        Some(at) => tokio::time::sleep_until(at.into()).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    outcome = &mut sending => break outcome,
                    () = end => {
                        let why = "no answer before the process ended".to_string();
                        break Outcome::Later { why, after: None, suspect: false };
                    }
                    () = self.core.wake.notified() => {
                        self.core.heard();
                        overflow(self.core, &mut self.spill);
                        if give_up.is_none() && deadline.is_none() {
                            let now = Instant::now();
                            give_up = lock(&self.core.orders).close.map(|by| now + by.saturating_duration_since(now) / 2);
                        }
                    }
                }
            }
        };
        *lock(&self.core.inflight) = None;
        Some(outcome)
    }

    /// The server failed on a request. If nothing has passed since it failed last, it is unwell, and everything waits.
    /// If others of the same kind pass, the request is to blame.
    fn failed(&mut self, request: Arc<Request>, doubt: Option<Doubt>, why: String) {
        let passed = self.passed;
        if passed == self.passed_at_failure {
            self.stay_away(None);
        }
        self.passed_at_failure = passed;
        let mut tries = 1;
        if let Some(doubt) = doubt {
            tries = doubt.tries;
            if doubt.passed != passed
                && self.doubted.len() < MAX_DOUBTED
                && let Some(halves) = request.halves()
            {
                let (due, doubt) = (Instant::now(), Doubt { tries: 0, in_vain: 0, passed });
                self.doubted.extend(halves.map(|half| Doubted { request: Arc::new(half), doubt, due }));
                return;
            }
            if doubt.passed.of(request.signal) != passed.of(request.signal) {
                tries += 1;
            }
        }
        if tries >= TRIES {
            let text =
                format!("{} set aside: the server failed {TRIES} times while it took others: {why}", request.records);
            return self.give_up(request, text);
        }
        self.core.note_error(why);
        self.doubt(request, Doubt { tries, in_vain: 0, passed }, Instant::now() + FIRST_BACKOFF * (1 << tries));
    }

    /// A server that takes others calls itself unavailable for this request. That it is to blame is never certain, so the records that are are
    /// looked for, and tried again as long as there is room for them.
    fn unavailable(&mut self, request: Arc<Request>, doubt: Doubt) {
        let passed = self.passed;
        let in_vain = doubt.in_vain + 1;
        if in_vain >= IN_VAIN
            && self.doubted.len() < MAX_DOUBTED
            && let Some(halves) = request.halves()
        {
            let (due, doubt) = (Instant::now(), Doubt { tries: 0, in_vain: IN_VAIN - 1, passed });
            self.doubted.extend(halves.map(|half| Doubted { request: Arc::new(half), doubt, due }));
            return;
        }
        let wait = FIRST_BACKOFF.saturating_mul(1 << in_vain.min(16)).min(LAST_BACKOFF);
        self.doubt(request, Doubt { in_vain, passed, ..doubt }, Instant::now() + wait);
    }

    /// Requests that were set aside since the server last took one.
    fn set_aside(&self) -> usize {
        self.doubted.iter().filter(|doubted| doubted.doubt.passed == self.passed).count()
    }

    /// Tries a request again later, beside others.
    fn doubt(&mut self, request: Arc<Request>, doubt: Doubt, due: Instant) {
        self.doubted.push_back(Doubted { request, doubt, due });
        while self.doubted.len() > 1 && self.doubted_bytes() > self.core.config.queue_bytes / DOUBTED_SHARE {
            let Some(first) = self.doubted.pop_front() else { return };
            self.shelve_or_drop(first.request);
        }
    }

    fn doubted_bytes(&self) -> usize {
        self.doubted.iter().map(|doubted| doubted.request.framed.len()).sum()
    }

    /// Tries again what the server failed on and what is due.
    async fn retry_doubted(&mut self, deadline: Option<Instant>) {
        for _ in 0..self.doubted.len() {
            let now = Instant::now();
            if self.is_away() || deadline.is_some_and(|d| now >= d) {
                return;
            }
            let Some(at) = self.doubted.iter().position(|doubted| doubted.due <= now) else { return };
            let Some(Doubted { request, doubt, .. }) = self.doubted.remove(at) else { return };
            self.deliver(request, Some(doubt), deadline).await;
            // What is new comes first.
            self.seal(false);
            self.drain(deadline).await;
        }
    }

    /// The server will never take it.
    fn give_up(&mut self, request: Arc<Request>, why: String) {
        self.core.note_error(why);
        self.core.lose(request.signal, request.records, &self.core.counters.rejected);
        self.settle(request, false);
    }

    /// Memory is done with a request. Its file, if it has one, stays if some part of it must be sent again.
    fn settle(&mut self, request: Arc<Request>, again: bool) {
        release(self.core, &request);
        let Ok(request) = Arc::try_unwrap(request) else { return };
        let Some(file) = request.file else { return };
        file.again.fetch_or(again, Relaxed);
        if let Some(OnDisk { path, again }) = Arc::into_inner(file) {
            if again.into_inner() {
                self.spill.put_back(path);
            } else {
                self.spill.done(&path);
            }
        }
    }

    /// Puts a request on disk, if it is not there already. Comes back if there is no room.
    fn shelve(&mut self, request: Arc<Request>) -> Result<(), Arc<Request>> {
        if request.file.is_none() && !keep(self.core, &mut self.spill, &request) {
            return Err(request);
        }
        self.settle(request, true);
        Ok(())
    }

    fn shelve_or_drop(&mut self, request: Arc<Request>) {
        if let Err(request) = self.shelve(request) {
            self.core.lose(request.signal, request.records, &self.core.counters.dropped);
            self.settle(request, false);
        }
    }

    /// Whether nothing is to be sent now. After that time, the next request shows whether the server is back.
    fn is_away(&self) -> bool {
        self.away.as_ref().is_some_and(|away| Instant::now() < away.until)
    }

    fn stay_away(&mut self, after: Option<Duration>) {
        let now = Instant::now();
        let (since, backoff) = match &self.away {
            Some(away) => (away.since, (away.backoff * 2).min(LAST_BACKOFF)),
            None => (now, FIRST_BACKOFF),
        };
        // Many processes must not come back in the same instant.
        let mut jitter = [0u8; 1];
        clock::system_random(&mut jitter);
        let wait = after.unwrap_or(backoff).max(backoff).min(LAST_BACKOFF);
        let wait = wait + wait.mul_f64(f64::from(jitter[0]) / 512.0);
        self.away = Some(Away { since, until: now + wait, backoff });
    }

    fn keep_while_away(&mut self) {
        let long = self.away.as_ref().is_some_and(|away| away.since.elapsed() >= PATIENCE);
        if !long {
            overflow(self.core, &mut self.spill);
        } else if !self.spill.is_resting() {
            self.spill_all();
        }
    }

    /// Everything that waits in memory goes to disk. What has no room there goes on waiting.
    fn spill_all(&mut self) {
        if self.link.is_none() {
            return;
        }
        while let Some(first) = self.doubted.pop_front() {
            let Doubted { request, doubt, due } = first;
            if let Err(request) = self.shelve(request) {
                return self.doubted.push_front(Doubted { request, doubt, due });
            }
        }
        while let Some(request) = self.held.take().or_else(|| self.next_request().map(Arc::new)) {
            if let Err(request) = self.shelve(request) {
                self.held = Some(request);
                return;
            }
        }
    }

    /// The process ends: what waits in memory goes to disk, and what has no room there is dropped.
    fn empty(&mut self) {
        if self.link.is_none() {
            return;
        }
        let doubted: Vec<_> = self.doubted.drain(..).map(|doubted| doubted.request).collect();
        doubted.into_iter().for_each(|request| self.shelve_or_drop(request));
        while let Some(request) = self.held.take().or_else(|| self.next_request().map(Arc::new)) {
            self.shelve_or_drop(request);
        }
    }

    /// Sends what is on disk, as long as nothing new waits.
    async fn send_spilled(&mut self, deadline: Option<Instant>) {
        // A process that ends does not do the work of others.
        if deadline.is_none() && self.away.is_none() && self.link.is_some() {
            let due = self.last_adopt.is_none_or(|at| at.elapsed() >= ADOPT_EVERY);
            if due && self.core.counters.requests.load(Relaxed) > 0 {
                self.last_adopt = Some(Instant::now());
                self.adopting |= self.spill.adopt();
            }
        }
        while !self.is_away()
            && deadline.is_none_or(|d| Instant::now() < d)
            && self.spilled_until.is_none_or(|until| Instant::now() >= until)
        {
            let spilled = self.spill.next();
            let damaged = self.spill.take_damaged();
            if damaged > 0 {
                self.core.note_error(format!("{damaged} lost: they were on disk in files that are damaged"));
                self.core.lose(Signal::Records, damaged, &self.core.counters.dropped);
            }
            let Some(spilled) = spilled else {
                // Where one process left something, others may have.
                self.adopting = self.adopting && deadline.is_none() && self.spill.adopt();
                if self.adopting {
                    continue;
                }
                break;
            };
            let doubted = self.doubted.len();
            self.deliver(Arc::new(Request::from_spilled(spilled)), None, deadline).await;
            if self.doubted.len() > doubted {
                self.spilled_until = Some(Instant::now() + PATIENCE);
            }
            // What is new comes first.
            self.seal(false);
            self.drain(deadline).await;
        }
        self.spill.leave();
    }
}

/// Keeps memory under its bound while a request is on its way: the oldest buffers go to disk, as far as there is room.
fn overflow(core: &Core, spill: &mut Spill) {
    while !spill.is_resting() {
        let chunk = {
            let mut queue = core.queue();
            if queue.bytes <= core.config.queue_bytes / 2 {
                return;
            }
            match queue.full.pop_front() {
                Some(chunk) => chunk,
                None => return,
            }
        };
        let request = Request::of_chunk(&chunk);
        if !keep(core, spill, &request) {
            core.queue().full.push_front(chunk);
            return;
        }
        core.queue().recycle(chunk.bytes);
        release(core, &request);
    }
}

/// Puts a request on disk. False: there is no room.
fn keep(core: &Core, spill: &mut Spill, request: &Request) -> bool {
    match spill.write(request.signal, request.records, request.message()) {
        Ok(()) => {
            core.counters.spilled.fetch_add(request.records, Relaxed);
            true
        }
        Err(why) => {
            core.note_error(why);
            false
        }
    }
}

/// A request no longer takes memory.
fn release(core: &Core, request: &Request) {
    let mut queue = core.queue();
    queue.bytes = queue.bytes.saturating_sub(request.queued);
}

/// The process ends and the background thread does not answer: what it had goes to disk from here.
pub fn rescue(core: &Core) {
    let mut spill = Spill::new(core.config.spill_dir.clone(), core.config.spill_bytes);
    let mut rescue = |request: &Request| {
        if request.file.is_none() && !keep(core, &mut spill, request) {
            core.lose(request.signal, request.records, &core.counters.dropped);
        }
    };
    if let Ok(mut inflight) = core.inflight.try_lock()
        && let Some(request) = inflight.take()
    {
        rescue(&request);
    }
    let Some(mut queue) = core.try_queue() else { return };
    queue.seal(Signal::Spans);
    queue.seal(Signal::Records);
    let full = std::mem::take(&mut queue.full);
    drop(queue);
    full.iter().for_each(|chunk| rescue(&Request::of_chunk(chunk)));
    spill.close();
}

fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
