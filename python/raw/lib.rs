//! Tests of what the recorder does through raw pointers: bytes into reserved room, and open spans. They need no Python and no
//! network, so the modules that need neither are taken as source, and this crate is compiled in seconds.

#![cfg(test)]
#![allow(dead_code)]

#[path = "../src/clock.rs"]
mod clock;
#[path = "../src/config.rs"]
mod config;
#[path = "../src/core.rs"]
mod core;
#[path = "../src/open.rs"]
mod open;
#[path = "../src/row.rs"]
mod row;
#[path = "../src/wire.rs"]
mod wire;

/// Nothing is sent.
mod sender {
    pub struct Request;

    pub fn start(_: &crate::core::Core) {}
}

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, Once};
use std::time::Duration;

use self::core::{Core, Signal};
use config::{Config, Exporter, Resource};
use open::{OpenSpan, Opened};
use row::{Row, put_event, put_link};
use smallvec::SmallVec;
use wire::{Out, attrs_of};

const GUARD: usize = 64;

/// Hands out exactly the room that is asked for, with guards around it.
struct Guarded {
    fill: u8,
    room: Vec<u8>,
    written: Vec<u8>,
}

impl Guarded {
    fn new(fill: u8) -> Guarded {
        Guarded { fill, room: vec![], written: vec![] }
    }

    fn check(&self) {
        let guards = self.room.iter().take(GUARD).chain(self.room.iter().rev().take(GUARD));
        assert!(guards.into_iter().all(|byte| *byte == self.fill), "written outside of the room");
    }
}

impl Out for Guarded {
    fn room(&mut self, len: usize) -> *mut u8 {
        self.check();
        self.room = vec![self.fill; GUARD + len + GUARD];
        self.room[GUARD..].as_mut_ptr()
    }

    unsafe fn advance(&mut self, len: usize) {
        assert!(len <= self.room.len() - 2 * GUARD, "{len} bytes are more than the room");
        self.check();
        self.written.extend_from_slice(&self.room[GUARD..GUARD + len]);
    }
}

/// What a piece of code writes, on three kinds of output: all bytes are written, and none beside the room.
macro_rules! written {
    (|$out:ident| $code:expr) => {{
        let [zeros, ones] = [0x00, 0xff].map(|fill| {
            let mut guarded = Guarded::new(fill);
            let $out = &mut guarded;
            $code;
            guarded.check();
            guarded.written
        });
        assert_eq!(zeros, ones, "a byte was left as it was");
        let mut vec = Vec::new();
        let $out = &mut vec;
        $code;
        assert_eq!(vec, zeros);
        let mut small = SmallVec::<[u8; 24]>::new();
        let $out = &mut small;
        $code;
        assert_eq!(small[..], zeros[..]);
        zeros
    }};
}

/// Protobuf as its description has it, byte by byte.
mod plain {
    pub fn varint(mut value: u64) -> Vec<u8> {
        let mut out = vec![];
        loop {
            let low = (value & 0x7f) as u8;
            value >>= 7;
            if value == 0 {
                out.push(low);
                return out;
            }
            out.push(low | 0x80);
        }
    }

    pub fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
        [&[tag][..], &varint(bytes.len() as u64), bytes].concat()
    }

    pub fn number(tag: u8, value: u64) -> Vec<u8> {
        [vec![tag], varint(value)].concat()
    }

    pub fn fixed64(tag: u8, value: u64) -> Vec<u8> {
        [&[tag][..], &value.to_le_bytes()].concat()
    }

    pub fn attr(tag: u8, key: &[u8], any_value: &[u8]) -> Vec<u8> {
        field(tag, &[field(0x0a, key), field(0x12, any_value)].concat())
    }
}

/// Lengths at which the copying or the length of a length changes.
fn lengths() -> impl Iterator<Item = usize> {
    (0..40).chain([126, 127, 128, 129, 300, 16_383, 16_384, 16_385])
}

fn bytes(len: usize) -> Vec<u8> {
    // In memory of its own, so that valgrind sees a byte that is read beyond it.
    (0..len).map(|at| (at * 7 + 1) as u8).collect()
}

const NUMBERS: [u64; 12] =
    [0, 1, 127, 128, 16_383, 16_384, 1 << 28, 1 << 35, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX];

#[test]
fn every_length_is_copied_whole() {
    for len in lengths() {
        let text = bytes(len);
        assert_eq!(written!(|out| out.put(&text)), text, "{len}");
        assert_eq!(written!(|out| out.field(0x12, &text)), plain::field(0x12, &text), "{len}");
    }
}

#[test]
fn numbers_are_as_long_as_they_are_said_to_be() {
    for n in NUMBERS {
        let text = plain::varint(n);
        assert_eq!(written!(|out| out.varint(n)), text);
        assert_eq!(wire::varint_len(n), text.len(), "{n}");
        assert_eq!(written!(|out| out.fixed64(0x09, n)), plain::fixed64(0x09, n));
        assert_eq!(written!(|out| out.byte(n as u8)), [n as u8]);
    }
}

#[test]
fn attributes_of_every_kind_and_length() {
    for len in lengths() {
        let key = bytes(len);
        for other in [0, 1, 7, 8, 17, 127, 128, 20_000] {
            let text = bytes(other);
            let any = plain::field(0x0a, &text);
            assert_eq!(
                written!(|out| wire::text_attr(out, attrs_of::SPAN, &key, &text)),
                plain::attr(0x4a, &key, &any)
            );
            assert_eq!(written!(|out| wire::raw_attr(out, attrs_of::LOG, &key, &any)), plain::attr(0x32, &key, &any));
        }
        for n in NUMBERS {
            let any = plain::number(0x18, n);
            assert_eq!(
                written!(|out| wire::int_attr(out, attrs_of::EVENT, &key, n as i64)),
                plain::attr(0x1a, &key, &any)
            );
            let any = plain::fixed64(0x21, n);
            let float = f64::from_bits(n);
            assert_eq!(
                written!(|out| wire::double_attr(out, attrs_of::LINK, &key, float)),
                plain::attr(0x22, &key, &any)
            );
        }
        for flag in [false, true] {
            let any = plain::number(0x10, u64::from(flag));
            assert_eq!(written!(|out| wire::bool_attr(out, attrs_of::MAP, &key, flag)), plain::attr(0x0a, &key, &any));
        }
    }
}

#[test]
fn events_and_links() {
    let (trace, span) = ([3; 16], [4; 8]);
    for len in lengths() {
        let (name, attrs) = (bytes(len), bytes(len / 2));
        for dropped in [0u32, 1, 127, 128, u32::MAX] {
            let mut body = [plain::fixed64(0x09, 77), plain::field(0x12, &name), attrs.clone()].concat();
            if dropped > 0 {
                body.extend(plain::number(0x20, u64::from(dropped)));
            }
            assert_eq!(written!(|out| put_event(out, &name, 77, &attrs, dropped)), plain::field(0x5a, &body));
        }
        let body = [plain::field(0x0a, &trace), plain::field(0x12, &span), attrs.clone()].concat();
        assert_eq!(written!(|out| put_link(out, &trace, &span, &attrs)), plain::field(0x6a, &body));
    }
}

/// A row by the order of OTLP's fields.
fn expected(row: &Row<'_>) -> Vec<u8> {
    let mut body = [plain::field(0x0a, row.trace_id), plain::field(0x12, row.span_id)].concat();
    if let Some(parent) = row.parent_id {
        body.extend(plain::field(0x22, parent));
    }
    body.extend(plain::field(0x2a, row.name));
    body.extend(plain::number(0x30, u64::from(row.kind)));
    body.extend(plain::fixed64(0x39, row.start_ns));
    if let Some(end) = row.end_ns {
        body.extend(plain::fixed64(0x41, end.max(row.start_ns)));
    }
    body.extend(row.start_attrs.concat());
    if row.start_count > 0 {
        let count = plain::number(0x18, u64::from(row.start_count));
        body.extend(plain::attr(0x4a, b"rollscope.start_attrs", &count));
    }
    body.extend(row.end_attrs.concat());
    if row.dropped > 0 {
        body.extend(plain::number(0x50, u64::from(row.dropped)));
    }
    body.extend([row.events, row.links].concat());
    let mut status = vec![];
    if !row.message.is_empty() {
        status.extend(plain::field(0x12, row.message.as_bytes()));
    }
    if row.status != 0 || !row.message.is_empty() {
        status.extend(plain::number(0x18, u64::from(row.status)));
        body.extend(plain::field(0x7a, &status));
    }
    plain::field(0x12, &body)
}

#[test]
fn a_row_is_as_long_as_it_says_with_and_without_every_part() {
    let (trace, span, parent) = ([1; 16], [2; 8], [3; 8]);
    let parts: Vec<Vec<u8>> = [0, 1, 130, 300].map(bytes).into();
    let message = "m".repeat(130);
    for (at, name) in [0, 5, 16, 40, 200, 16_400].map(bytes).iter().enumerate() {
        // Each bit is one part that may be missing.
        for has in 0u32..1 << 9 {
            let bit = |n: u32| has >> n & 1 == 1;
            let part = |n: u32| if bit(n) { &parts[(at + n as usize) % parts.len()][..] } else { &[] };
            let count = |n: u32| if bit(n) { [1, 127, 128, u32::MAX][at % 4] } else { 0 };
            let row = Row {
                parent_id: bit(0).then_some(&parent),
                end_ns: bit(1).then_some(if bit(2) { 9 } else { 11 }),
                start_attrs: [part(3), part(4)],
                start_count: count(3),
                end_attrs: [part(5), part(4)],
                dropped: count(6),
                events: part(7),
                links: part(2),
                status: if bit(8) { 2 } else { 0 },
                message: if bit(7) { &message } else { "" },
                ..Row::new((&trace, &span), name, 10)
            };
            let wanted = expected(&row);
            assert_eq!(written!(|out| row.write(out)), wanted);
            assert_eq!(row.len(), wanted.len());
        }
    }
    let instant = Row::instant((&trace, &span), b"now", 5);
    assert_eq!((instant.start_ns, instant.end_ns), (5, Some(5)));
    assert_eq!(written!(|out| instant.write(out)), expected(&instant));
}

#[test]
fn hex_both_ways() {
    for byte in 0..=255u8 {
        let text = wire::hex::<1, 2>(&[byte]);
        assert_eq!(text, *format!("{byte:02x}").as_bytes());
        let mut back = [0];
        assert!(wire::unhex(&text, &mut back) && wire::unhex(&text.map(|c| c.to_ascii_uppercase()), &mut back));
        assert_eq!(back, [byte]);
        let is_digit = byte.is_ascii_hexdigit();
        assert_eq!(wire::unhex(&[byte, b'0'], &mut back), is_digit);
        assert_eq!(wire::unhex(&[b'0', byte], &mut back), is_digit);
    }
    assert!(!wire::unhex(b"abc", &mut [0; 2]) && !wire::unhex(b"abcd", &mut [0; 1]) && !wire::unhex(b"", &mut [0; 1]));
    // Of an id, many digits are read at once.
    let id: [u8; 16] = std::array::from_fn(|i| (i * 73 + 5) as u8);
    let text = wire::hex::<16, 32>(&id);
    assert_eq!(text, *format!("{:032x}", u128::from_be_bytes(id)).as_bytes());
    for place in 0..32 {
        for byte in 0..=255u8 {
            let mut other = text;
            other[place] = byte;
            let expected = std::str::from_utf8(&other).ok().and_then(|t| u128::from_str_radix(t, 16).ok());
            let expected = expected.filter(|_| byte != b'+').map(u128::to_be_bytes);
            let mut back = [0; 16];
            assert_eq!(wire::unhex(&other, &mut back).then_some(back), expected);
        }
    }
}

const ALIVE: u64 = 0x0123_4567_89ab_cdef;

/// A span that notices when it is looked at after its end.
struct Probe {
    alive: Box<u64>,
    number: u64,
    reported: AtomicBool,
}

impl Probe {
    fn new(number: u64) -> Probe {
        Probe { alive: Box::new(ALIVE), number, reported: AtomicBool::new(false) }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let open = core::core().map(open_now).unwrap_or_default();
        assert!(!open.contains(&self.number), "a span's memory goes while it is still known");
        *self.alive = 0;
    }
}

impl OpenSpan for Probe {
    fn start_ns(&self) -> u64 {
        assert_eq!(*self.alive, ALIVE, "a span is looked at whose memory is gone");
        self.number
    }

    fn reported(&self) -> &AtomicBool {
        &self.reported
    }

    fn write_open(&self, out: &mut Vec<u8>) {
        out.put(&self.number.to_le_bytes());
    }
}

/// The recorder of the process, and the right to be the only test that uses it.
fn recorder() -> (&'static Core, MutexGuard<'static, ()>) {
    static ONE: Mutex<()> = Mutex::new(());
    static START: Once = Once::new();
    let only = core::lock(&ONE);
    START.call_once(|| {
        core::configure(Config {
            exporter: Exporter::Memory,
            resource: Resource::default(),
            queue_bytes: 1 << 20,
            spill_dir: None,
            spill_bytes: 0,
            flush_interval: Duration::from_millis(1),
            timeout: Duration::from_secs(1),
            pending_after: Duration::from_millis(1),
            stats_interval: Duration::from_secs(1),
        });
    });
    (core::core().expect("it was just configured"), only)
}

/// Start times of all spans that are known as open, as the background thread finds them.
fn open_now(core: &Core) -> Vec<u64> {
    let queue = core.queue();
    let mut found: Vec<u64> =
        (0..queue.open.len()).filter_map(|slot| queue.open.get(slot)).map(|s| s.start_ns()).collect();
    found.sort_unstable();
    found
}

#[test]
fn a_span_is_known_from_its_start_to_its_end_and_its_slot_is_used_again() {
    let (core, _only) = recorder();
    let mut first = Opened::start(core, Probe::new(1));
    let second = Opened::start(core, Probe::new(2));
    assert_eq!((first.number, second.number), (1, 2));
    assert_eq!(open_now(core), [1, 2]);
    // Moved: the slab's pointer is still good.
    let moved = vec![second];
    assert_eq!(open_now(core), [1, 2]);
    let (trace, id) = ([1; 16], [2; 8]);
    let row = Row { end_ns: Some(1), ..Row::new((&trace, &id), b"first", 1) };
    first.end(|span, core, queue| {
        assert_eq!(span.number, 1);
        core.record_row_locked(queue, &row);
    });
    assert_eq!(open_now(core), [2], "it is no longer open, though its memory is still there");
    drop(first);
    let slots = core.queue().open.len();
    let third = Opened::start(core, Probe::new(3));
    let fourth = Opened::start(core, Probe::new(4));
    assert_eq!(open_now(core), [2, 3, 4], "a slot is free once, also where a span has ended before it was dropped");
    assert!(core.queue().open.len() <= slots.max(3));
    drop((moved, third, fourth));
    assert_eq!(open_now(core), [0; 0]);
    let mut queue = core.queue();
    queue.seal(Signal::Spans);
    let chunk = queue.full.pop_back().expect("the ended span is recorded");
    assert_eq!(chunk.bytes, expected(&row));
    queue.bytes = 0;
}

#[test]
fn spans_start_and_end_in_many_threads_while_they_are_looked_at() {
    let (core, _only) = recorder();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looked = scope.spawn(|| {
            let mut looked = 0;
            while !done.load(Relaxed) {
                looked += open_now(core).len();
            }
            looked
        });
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                scope.spawn(move || {
                    let mut open = Vec::new();
                    for n in 0..500 {
                        open.push(Opened::start(core, Probe::new(worker << 32 | n)));
                        match n % 4 {
                            0 => drop(open.swap_remove(n as usize % open.len())),
                            1 => open[0].end(|_, _, _| {}),
                            _ => {}
                        }
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().expect("a worker");
        }
        done.store(true, Relaxed);
        looked.join().expect("nothing was looked at after its end");
    });
    assert_eq!(open_now(core), [0; 0]);
}
