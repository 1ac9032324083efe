//! Writes dumps as slime and torch do: a pickle of protocol 2 with torch's habits (everything remembered, batches of a
//! thousand), in a zip archive that stores its entries at multiples of 64 bytes. [`Shape`] makes dumps of any size.

use std::collections::HashMap;
use std::io::{self, Write};

/// A pickle under construction.
#[derive(Default)]
pub struct Pickler {
    pub out: Vec<u8>,
    memo: u32,
    texts: HashMap<String, u32>,
}

/// Lists and dicts are written in batches of this many.
const BATCH: usize = 1000;

impl Pickler {
    pub fn new() -> Pickler {
        Pickler { out: vec![0x80, 2], ..Pickler::default() }
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.out.push(b'.');
        self.out
    }

    /// Remembers what was written last; returns its number.
    pub fn put(&mut self) -> u32 {
        let n = self.memo;
        self.memo += 1;
        match u8::try_from(n) {
            Ok(n) => self.out.extend_from_slice(&[b'q', n]),
            Err(_) => {
                self.out.push(b'r');
                self.out.extend_from_slice(&n.to_le_bytes());
            }
        }
        n
    }

    pub fn get(&mut self, n: u32) {
        match u8::try_from(n) {
            Ok(n) => self.out.extend_from_slice(&[b'h', n]),
            Err(_) => {
                self.out.push(b'j');
                self.out.extend_from_slice(&n.to_le_bytes());
            }
        }
    }

    pub fn op(&mut self, op: u8) {
        self.out.push(op);
    }

    pub fn none(&mut self) {
        self.op(b'N');
    }

    pub fn bool(&mut self, b: bool) {
        self.op(if b { 0x88 } else { 0x89 });
    }

    pub fn int(&mut self, i: i64) {
        match i {
            0..=0xff => self.out.extend_from_slice(&[b'K', i as u8]),
            0x100..=0xffff => {
                self.op(b'M');
                self.out.extend_from_slice(&(i as u16).to_le_bytes());
            }
            _ if i32::try_from(i).is_ok() => {
                self.op(b'J');
                self.out.extend_from_slice(&(i as i32).to_le_bytes());
            }
            _ => {
                self.out.extend_from_slice(&[0x8a, 8]);
                self.out.extend_from_slice(&i.to_le_bytes());
            }
        }
    }

    pub fn float(&mut self, f: f64) {
        self.op(b'G');
        self.out.extend_from_slice(&f.to_be_bytes());
    }

    /// Text that is met once.
    pub fn push_text(&mut self, text: &str) -> u32 {
        self.op(b'X');
        self.out.extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.out.extend_from_slice(text.as_bytes());
        self.put()
    }

    /// Text that Python keeps one copy of: keys and constants.
    pub fn shared(&mut self, text: &str) {
        match self.texts.get(text) {
            Some(n) => self.get(*n),
            None => {
                let n = self.push_text(text);
                self.texts.insert(text.to_string(), n);
            }
        }
    }

    pub fn global(&mut self, module: &str, name: &str) {
        let key = format!("\0{module} {name}");
        match self.texts.get(&key) {
            Some(n) => self.get(*n),
            None => {
                self.out.extend_from_slice(format!("c{module}\n{name}\n").as_bytes());
                let n = self.put();
                self.texts.insert(key, n);
            }
        }
    }

    /// A list; `item` writes each of `count` items.
    pub fn list(&mut self, count: usize, mut item: impl FnMut(&mut Pickler, usize)) {
        self.op(b']');
        self.put();
        for start in (0..count).step_by(BATCH) {
            let batch = BATCH.min(count - start);
            if batch > 1 {
                self.op(b'(');
            }
            for n in start..start + batch {
                item(self, n);
            }
            self.op(if batch > 1 { b'e' } else { b'a' });
        }
    }

    /// A dict; `entries` writes keys and values in turn, `count` of each.
    pub fn dict(&mut self, count: usize, entries: impl FnOnce(&mut Pickler)) {
        self.op(b'}');
        self.put();
        if count > 1 {
            self.op(b'(');
        }
        entries(self);
        match count {
            0 => {}
            1 => self.op(b's'),
            _ => self.op(b'u'),
        }
    }

    /// A one-dimensional tensor over the whole of a storage.
    pub fn tensor(&mut self, storage_type: &str, key: &str, numel: usize) {
        self.global("torch._utils", "_rebuild_tensor_v2");
        self.op(b'(');
        self.op(b'(');
        self.shared("storage");
        self.global("torch", storage_type);
        self.push_text(key);
        self.shared("cpu");
        self.int(numel as i64);
        self.op(b't');
        self.put();
        self.op(b'Q');
        self.int(0);
        self.int(numel as i64);
        self.op(0x85);
        self.put();
        self.int(1);
        self.op(0x85);
        self.put();
        self.bool(false);
        self.global("collections", "OrderedDict");
        self.op(b')');
        self.op(b'R');
        self.put();
        self.op(b't');
        self.put();
        self.op(b'R');
        self.put();
    }
}

/// A zip archive as torch writes it.
pub struct Archive<W> {
    out: W,
    name: String,
    at: u64,
    directory: Vec<u8>,
    entries: u64,
}

const ALIGNMENT: u64 = 64;

impl<W: Write> Archive<W> {
    pub fn new(out: W, name: &str) -> Archive<W> {
        Archive { out, name: name.to_string(), at: 0, directory: Vec::new(), entries: 0 }
    }

    pub fn entry(&mut self, name: &str, data: &[u8]) -> io::Result<()> {
        self.entry_in_parts(name, &[data])
    }

    /// One entry, from several pieces.
    pub fn entry_in_parts(&mut self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let path = format!("{}/{name}", self.name);
        let size: u64 = parts.iter().map(|p| p.len() as u64).sum();
        let mut crc = flate2::Crc::new();
        parts.iter().for_each(|p| crc.update(p));
        // torch fills the extra field so that the data begin at a multiple of 64.
        let before = self.at + 30 + path.len() as u64 + 4;
        let padding = (ALIGNMENT - before % ALIGNMENT) % ALIGNMENT;
        let mut fixed = Vec::new();
        fixed.extend_from_slice(&[0, 0, 0, 8, 0, 0, 0, 0, 0, 0]);
        fixed.extend_from_slice(&crc.sum().to_le_bytes());
        let small = u32::try_from(size).map_err(|_| io::Error::other("an entry over 4 GiB needs zip64"))?;
        fixed.extend_from_slice(&small.to_le_bytes());
        fixed.extend_from_slice(&small.to_le_bytes());
        fixed.extend_from_slice(&(path.len() as u16).to_le_bytes());

        let mut local = b"PK\x03\x04".to_vec();
        local.extend_from_slice(&fixed);
        local.extend_from_slice(&(padding as u16 + 4).to_le_bytes());
        local.extend_from_slice(path.as_bytes());
        local.extend_from_slice(b"FB");
        local.extend_from_slice(&(padding as u16).to_le_bytes());
        local.resize(local.len() + padding as usize, b'Z');
        self.out.write_all(&local)?;
        for part in parts {
            self.out.write_all(part)?;
        }
        let place = u32::try_from(self.at).map_err(|_| io::Error::other("an archive over 4 GiB needs zip64"))?;
        self.directory.extend_from_slice(b"PK\x01\x02\0\0");
        self.directory.extend_from_slice(&fixed);
        self.directory.extend_from_slice(&[0; 12]);
        self.directory.extend_from_slice(&place.to_le_bytes());
        self.directory.extend_from_slice(path.as_bytes());
        self.at += local.len() as u64 + size;
        self.entries += 1;
        Ok(())
    }

    pub fn finish(mut self) -> io::Result<W> {
        self.entry("byteorder", b"little")?;
        self.entry("version", b"3\n")?;
        self.out.write_all(&self.directory)?;
        let mut end = b"PK\x05\x06\0\0\0\0".to_vec();
        end.extend_from_slice(&(self.entries as u16).to_le_bytes());
        end.extend_from_slice(&(self.entries as u16).to_le_bytes());
        end.extend_from_slice(&(self.directory.len() as u32).to_le_bytes());
        end.extend_from_slice(&(self.at as u32).to_le_bytes());
        end.extend_from_slice(&[0, 0]);
        self.out.write_all(&end)?;
        Ok(self.out)
    }
}

/// A torch file around a pickle.
pub fn torch_file(pickle: &[u8]) -> Vec<u8> {
    let mut archive = Archive::new(Vec::new(), "archive");
    archive.entry("data.pkl", pickle).expect("memory can be written");
    archive.finish().expect("memory can be written")
}

/// What a generated dump is like.
#[derive(Clone, Debug)]
pub struct Shape {
    pub rollout_id: i64,
    pub samples: usize,
    /// Spans a sample, the group span included.
    pub spans: usize,
    pub prompt_tokens: usize,
    pub response_tokens: usize,
    /// Bytes of the response text.
    pub response_bytes: usize,
}

impl Shape {
    /// 2,048 samples of 60 spans, 143 MB.
    pub const M: Shape = Shape {
        rollout_id: 0,
        samples: 2048,
        spans: 60,
        prompt_tokens: 512,
        response_tokens: 2860,
        response_bytes: 11_440,
    };
    /// 8,192 samples of 114 spans, 713 MB.
    pub const L: Shape = Shape {
        rollout_id: 0,
        samples: 8192,
        spans: 114,
        prompt_tokens: 512,
        response_tokens: 3150,
        response_bytes: 12_600,
    };
}

/// Numbers that look random and are always the same.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0 ^ self.0 >> 33;
        x.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 11
    }

    fn unit(&mut self) -> f64 {
        (self.next() % 1_000_000) as f64 / 1e6
    }

    fn hex32(&mut self) -> String {
        format!("{:016x}{:016x}", self.next(), self.next())
    }
}

/// Times and ids of one sample's trace.
struct Trace<'a> {
    dice: &'a mut Dice,
    id: u32,
    sample: i64,
    group: i64,
    now: f64,
}

impl Trace<'_> {
    /// One event; a start brings a new id. Returns the number of the id.
    fn event(
        &mut self,
        p: &mut Pickler,
        kind: &str,
        name: &str,
        span: Option<u32>,
        parent: Option<u32>,
        attrs: &[(&str, f64)],
    ) -> u32 {
        let starts = kind == "span_start";
        let has_id = starts || span.is_some();
        let mut id = span.unwrap_or(0);
        let count = 7 + usize::from(has_id) + usize::from(parent.is_some()) + usize::from(!attrs.is_empty());
        p.dict(count, |p| {
            p.shared("type");
            p.shared(kind);
            p.shared("name");
            p.shared(name);
            p.shared("ts");
            p.float(self.now);
            p.shared("trace_id");
            p.get(self.id);
            p.shared("sample_id");
            p.int(self.sample);
            p.shared("group_id");
            p.int(self.group);
            p.shared("attempt");
            p.int(0);
            if has_id {
                p.shared("span_id");
                if starts {
                    id = p.push_text(&self.dice.hex32());
                } else {
                    p.get(id);
                }
            }
            if let Some(parent) = parent {
                p.shared("parent_span_id");
                p.get(parent);
            }
            if !attrs.is_empty() {
                p.shared("attrs");
                p.dict(attrs.len(), |p| {
                    for (key, value) in attrs {
                        p.shared(key);
                        if value.fract() == 0.0 { p.int(*value as i64) } else { p.float(*value) }
                    }
                });
            }
        });
        id
    }
}

/// Writes a dump of the given shape, as slime would.
pub fn write_dump<W: Write>(out: W, shape: &Shape) -> io::Result<W> {
    let mut dice = Dice(42);
    let mut p = Pickler::new();
    p.dict(2, |p| {
        p.shared("rollout_id");
        p.int(shape.rollout_id);
        p.shared("samples");
        p.list(shape.samples, |p, n| sample(p, &mut dice, shape, n));
    });
    let pickle = p.finish();
    let mut archive = Archive::new(out, "rollout");
    archive.entry("data.pkl", &pickle)?;
    archive.finish()
}

/// Text of two thousand made-up words, the first ones far more often than the last, as in real text.
fn words(dice: &mut Dice, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 10);
    while text.len() < bytes {
        let n = Dice((2000.0 * dice.unit().powi(3)) as u64 * 7919 + 1).next();
        for i in 0..2 + n % 8 {
            text.push(char::from(b'a' + (n >> (i * 5) & 31).min(25) as u8));
        }
        text.push(' ');
    }
    text.truncate(bytes);
    text
}

fn sample(p: &mut Pickler, dice: &mut Dice, shape: &Shape, n: usize) {
    let tokens = shape.prompt_tokens + shape.response_tokens;
    p.dict(19, |p| {
        p.shared("group_index");
        p.int((n / 8) as i64);
        p.shared("index");
        p.int(n as i64);
        p.shared("rollout_id");
        p.none();
        p.shared("prompt");
        p.list(1, |p, _| {
            p.dict(2, |p| {
                p.shared("role");
                p.shared("user");
                p.shared("content");
                p.push_text(&words(dice, shape.prompt_tokens * 4));
            });
        });
        p.shared("tokens");
        p.list(tokens, |p, _| p.int((dice.next() % 151_000) as i64));
        p.shared("response");
        p.push_text(&words(dice, shape.response_bytes));
        p.shared("response_length");
        p.int(shape.response_tokens as i64);
        p.shared("label");
        p.push_text("42");
        p.shared("reward");
        p.float(f64::from(u8::from(dice.next().is_multiple_of(2))));
        p.shared("loss_mask");
        p.list(shape.response_tokens, |p, _| p.int(1));
        p.shared("weight_versions");
        p.list(1, |p, _| p.shared("7"));
        p.shared("rollout_log_probs");
        p.list(shape.response_tokens, |p, _| p.float(-dice.unit()));
        p.shared("remove_sample");
        p.bool(false);
        p.shared("status");
        p.shared("completed");
        p.shared("metadata");
        p.dict(2, |p| {
            p.shared("source_name");
            p.shared("swe");
            p.shared("task_id");
            p.push_text(&format!("t-{n}"));
        });
        p.shared("non_generation_time");
        p.float(dice.unit());
        p.shared("spec_info");
        p.dict(1, |p| {
            p.shared("spec_verify_ct");
            p.int(0);
        });
        p.shared("prefix_cache_info");
        p.dict(2, |p| {
            p.shared("cached_tokens");
            p.int(128);
            p.shared("total_prompt_tokens");
            p.int(shape.prompt_tokens as i64);
        });
        p.shared("trace");
        trace(p, dice, shape, n);
    });
}

fn trace(p: &mut Pickler, dice: &mut Dice, shape: &Shape, n: usize) {
    p.dict(6, |p| {
        p.shared("version");
        p.int(1);
        p.shared("trace_id");
        let id = p.push_text(&dice.hex32());
        p.shared("events");
        // Two events a span; every sixteenth span is followed by an instant.
        let inner = shape.spans.saturating_sub(2);
        let instants = inner / 16;
        let start = 1_756_000_000.0 + (n / 8) as f64 * 0.01;
        let mut trace = Trace { dice, id, sample: n as i64, group: (n / 8) as i64, now: start };
        let (mut group, mut outer, mut open, mut span, mut step) = (0, 0, 0, 0, 0);
        p.list(2 * (inner + 2) + instants, |p, _| match step {
            0 => {
                group = trace.event(p, "span_start", "generate_and_rm_group", None, None, &[("group_size", 8.0)]);
                step = 1;
            }
            1 => {
                outer = trace.event(p, "span_start", "generate_and_rm", None, Some(group), &[]);
                step = if inner == 0 { 4 } else { 2 };
            }
            2 => {
                let tool = span % 2 == 1;
                let name = if tool { "tool_call" } else { "sglang_generate" };
                let attrs: &[(&str, f64)] = if tool { &[("turn", 1.0)] } else { &[("max_new_tokens", 4096.0)] };
                open = trace.event(p, "span_start", name, None, Some(outer), attrs);
                trace.now += 0.05 + trace.dice.unit();
                step = 3;
                span += 1;
            }
            3 => {
                let (name, attrs): (&str, Vec<(&str, f64)>) = if span % 2 == 0 {
                    ("tool_call", vec![("exit_code", 0.0), ("output_chars", 100.0)])
                } else {
                    let unit = trace.dice.unit();
                    (
                        "sglang_generate",
                        vec![
                            ("prompt_tokens", 512.0),
                            ("completion_tokens", 40.0),
                            ("cached_tokens", 128.0),
                            ("queue_time", unit / 7.0),
                            ("e2e_latency", unit * 3.0 + 0.001),
                            ("decode_throughput", 40.0 + unit),
                        ],
                    )
                };
                trace.event(p, "span_end", name, Some(open), None, &attrs);
                step = if span % 16 == 0 && span / 16 <= instants { 6 } else { 2 };
                if span == inner && step == 2 {
                    step = 4;
                }
            }
            6 => {
                trace.event(p, "event", "tool_enqueue", None, Some(outer), &[("turn", 2.0)]);
                step = if span == inner { 4 } else { 2 };
            }
            4 => {
                trace.event(p, "span_end", "generate_and_rm", Some(outer), None, &[]);
                step = 5;
            }
            _ => {
                trace.event(p, "span_end", "generate_and_rm_group", Some(group), None, &[]);
            }
        });
        p.shared("sample_id");
        p.int(n as i64);
        p.shared("group_id");
        p.int((n / 8) as i64);
        p.shared("attempt");
        p.int(0);
    });
}
