//! The pickle machine: protocols 0 to 5, reading only. It builds plain values in a [`Heap`]; what a pickle wants to
//! call is looked up in the list of [`super::reduce`] and otherwise remembered by name. Nothing is ever called.

use std::collections::HashMap;

use super::heap::{Heap, Object, Run};
use super::limits;
use super::source::Source;
use super::value::{MAX_POSITION, Tag, Value};
use crate::import::ImportError;

pub(super) fn damaged(at: usize, what: impl std::fmt::Display) -> ImportError {
    ImportError::Malformed(format!("the pickle is damaged at byte {at}: {what}"))
}

pub(super) struct Machine {
    src: Source,
    pos: usize,
    end: usize,
    pub heap: Heap,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: Memo,
    /// Bytes up to here were given back to the system.
    forgotten: usize,
}

/// Pickles number what they remember from 0 up; others may use any number.
#[derive(Default)]
struct Memo {
    /// [`Value::ABSENT`] where a number was passed over.
    dense: Vec<Value>,
    sparse: HashMap<u64, Value>,
}

impl Memo {
    fn put(&mut self, at: u64, value: Value) -> Result<(), ImportError> {
        let len = self.dense.len() as u64;
        if at < len {
            self.dense[at as usize] = value;
        } else if at <= len + 1024 {
            limits::check("remembered values", "MAX_MEMO", at, limits::MAX_MEMO)?;
            self.dense.resize(at as usize, Value::ABSENT);
            self.dense.push(value);
        } else {
            self.sparse.insert(at, value);
        }
        Ok(())
    }

    fn get(&self, at: u64) -> Option<Value> {
        match self.dense.get(at as usize) {
            Some(value) if *value != Value::ABSENT => Some(*value),
            _ => self.sparse.get(&at).copied(),
        }
    }

    fn len(&self) -> u64 {
        (self.dense.len() + self.sparse.len()) as u64
    }
}

/// Memory is reserved in advance for pickles up to this size.
const MAX_RESERVED_FOR: usize = 2 << 30;
/// After this many bytes, the part of the file that was read is released.
const FORGET_EVERY: usize = 32 << 20;

impl Machine {
    pub fn new(src: Source) -> Result<Machine, ImportError> {
        if src.len() as u64 > MAX_POSITION {
            return Err(ImportError::Malformed("the file is too large to be a torch file".into()));
        }
        Ok(Machine {
            heap: Heap::new(src.clone()),
            src,
            pos: 0,
            end: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Memo::default(),
            forgotten: 0,
        })
    }

    /// Reads one pickle from `start`, not beyond `end`. Returns its value and where it stopped.
    pub fn load(&mut self, start: usize, end: usize) -> Result<(Value, usize), ImportError> {
        (self.pos, self.end, self.forgotten) = (start, end.min(self.src.len()), start);
        self.stack.clear();
        self.marks.clear();
        self.memo = Memo::default();
        // Address space, not memory: pages that are never written to are never there. To grow a step at a time would
        // copy, and hold the old and the new place at once. If that fails, the list has to grow.
        let bytes = self.end.saturating_sub(start).min(MAX_RESERVED_FOR);
        let _ = self.memo.dense.try_reserve(bytes / 12);
        self.heap.reserve(bytes);
        let source = self.src.clone();
        let src: &[u8] = &source[..self.end];
        loop {
            if self.step(src)? {
                let value = self.pop()?;
                self.memo = Memo::default();
                self.stack = Vec::new();
                return Ok((value, self.pos));
            }
            if self.pos - self.forgotten > 2 * FORGET_EVERY {
                self.src.forget(self.forgotten, self.pos - FORGET_EVERY);
                self.forgotten = self.pos - FORGET_EVERY;
            }
        }
    }

    fn fail<T>(&self, what: impl std::fmt::Display) -> Result<T, ImportError> {
        Err(damaged(self.pos, what))
    }

    fn take<'a>(&mut self, src: &'a [u8], n: usize) -> Result<&'a [u8], ImportError> {
        match self.pos.checked_add(n).and_then(|end| src.get(self.pos..end)) {
            Some(bytes) => {
                self.pos += n;
                Ok(bytes)
            }
            None => self.fail("it ends too early"),
        }
    }

    fn u8(&mut self, src: &[u8]) -> Result<u8, ImportError> {
        Ok(self.take(src, 1)?[0])
    }

    fn u32(&mut self, src: &[u8]) -> Result<u32, ImportError> {
        let b = self.take(src, 4)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn u64(&mut self, src: &[u8]) -> Result<u64, ImportError> {
        let (low, high) = (self.u32(src)?, self.u32(src)?);
        Ok(u64::from(low) | u64::from(high) << 32)
    }

    /// A line, without its end.
    fn line<'a>(&mut self, src: &'a [u8]) -> Result<&'a [u8], ImportError> {
        let rest = src.get(self.pos..).unwrap_or_default();
        match memchr::memchr(b'\n', rest) {
            Some(n) => {
                self.pos += n + 1;
                Ok(&rest[..n])
            }
            None => self.fail("a line has no end"),
        }
    }

    fn push(&mut self, value: Value) -> Result<(), ImportError> {
        if self.stack.len() as u64 >= limits::MAX_STACK {
            limits::check("values on the stack", "MAX_STACK", u64::MAX, limits::MAX_STACK)?;
        }
        self.stack.push(value);
        Ok(())
    }

    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Value, ImportError> {
        if self.stack.len() <= self.floor() {
            return self.fail("it pops a value from an empty stack");
        }
        self.stack.pop().ok_or_else(|| damaged(self.pos, "it pops a value from an empty stack"))
    }

    fn top(&self) -> Result<Value, ImportError> {
        match self.stack.last() {
            Some(value) if self.stack.len() > self.floor() => Ok(*value),
            _ => self.fail("it reads a value from an empty stack"),
        }
    }

    fn pop_mark(&mut self) -> Result<usize, ImportError> {
        self.marks.pop().ok_or_else(|| damaged(self.pos, "missing mark"))
    }

    fn remember(&mut self, at: u64) -> Result<(), ImportError> {
        let value = self.top()?;
        self.memo.put(at, value)
    }

    fn recall(&mut self, at: u64) -> Result<(), ImportError> {
        match self.memo.get(at) {
            Some(value) => self.push(value),
            None => self.fail(format_args!("it refers to value {at}, which does not exist")),
        }
    }

    /// A text or bytes opcode at `at` whose length was just read.
    fn stretch(&mut self, src: &[u8], tag: Tag, at: usize, len: u64) -> Result<(), ImportError> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.take(src, len)?;
        self.push(Value::tagged(tag, at as u64))
    }

    /// One opcode. `true` at the end of the pickle.
    #[inline]
    fn step(&mut self, src: &[u8]) -> Result<bool, ImportError> {
        let at = self.pos;
        let op = self.u8(src)?;
        match op {
            // Ordered by how often a dump has them.
            b'h' => {
                let n = self.u8(src)?;
                self.recall(n.into())?;
            }
            b'j' => {
                let n = self.u32(src)?;
                self.recall(n.into())?;
            }
            b'q' => {
                let n = self.u8(src)?;
                self.remember(n.into())?;
            }
            b'r' => {
                let n = self.u32(src)?;
                self.remember(n.into())?;
            }
            0x94 => self.remember(self.memo.len())?,
            b'K' | b'M' | b'J' | b'G' | b'N' | 0x88 | 0x89 | 0x8a => match scalar_at(src, at) {
                Some((Some(value), next)) => {
                    self.pos = next;
                    self.push(value)?;
                }
                _ => return self.fail("it ends too early"),
            },
            b'X' => {
                let n = self.u32(src)?;
                self.stretch(src, Tag::Str, at, n.into())?;
            }
            0x8c => {
                let n = self.u8(src)?;
                self.stretch(src, Tag::Str, at, n.into())?;
            }
            b'(' => {
                if !self.numbers(src) {
                    limits::check("marks", "MAX_STACK", self.marks.len() as u64, limits::MAX_STACK)?;
                    self.marks.push(self.stack.len());
                }
            }
            b'}' => {
                let dict = self.heap.empty(Tag::Dict)?;
                self.push(dict)?;
            }
            b']' => {
                let list = self.heap.empty(Tag::List)?;
                self.push(list)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                let dict = self.top()?;
                self.set_items(dict, &[key, value])?;
            }
            b'u' => {
                let from = self.pop_mark()?;
                let mut stack = std::mem::take(&mut self.stack);
                if from <= self.floor() || (stack.len() - from) % 2 == 1 {
                    return self.fail("a key has no value or no dict");
                }
                self.set_items(stack[from - 1], &stack[from..])?;
                stack.truncate(from);
                self.stack = stack;
            }
            b'a' => {
                let item = self.pop()?;
                let list = self.top()?;
                self.append(list, &[item])?;
            }
            b'e' | 0x90 => {
                let from = self.pop_mark()?;
                let mut stack = std::mem::take(&mut self.stack);
                if from <= self.floor() {
                    return self.fail("items have no list");
                }
                self.append(stack[from - 1], &stack[from..])?;
                stack.truncate(from);
                self.stack = stack;
            }
            b'.' => return Ok(true),
            _ => self.rare(src, op, at)?,
        }
        Ok(false)
    }

    /// The opcodes that a dump has few of.
    fn rare(&mut self, src: &[u8], op: u8, at: usize) -> Result<(), ImportError> {
        match op {
            // Protocol and frames carry nothing.
            0x80 => {
                let protocol = self.u8(src)?;
                if protocol > 5 {
                    return self.fail(format_args!("unknown protocol {protocol}"));
                }
            }
            0x95 => {
                self.u64(src)?;
            }
            // Numbers and text in the old protocols.
            b'I' | b'L' => {
                let line = self.line(src)?;
                let value = match line {
                    b"00" if op == b'I' => Value::FALSE,
                    b"01" if op == b'I' => Value::TRUE,
                    _ => self.decimal(line, at)?,
                };
                self.push(value)?;
            }
            b'F' => {
                let line = self.line(src)?;
                let Some(f) = std::str::from_utf8(line).ok().and_then(|t| t.trim().parse().ok()) else {
                    return self.fail("a number is invalid");
                };
                self.push(Value::float(f))?;
            }
            0x8b => {
                let n = self.u32(src)? as usize;
                let bytes = self.take(src, n)?;
                let value = small_long(bytes).unwrap_or(Value::tagged(Tag::Long, at as u64));
                self.push(value)?;
            }
            b'S' | b'V' => {
                let line = self.line(src)?;
                let text = if op == b'V' { unescape(line, false) } else { unescape(unquote(line), true) };
                let value = self.heap.owned_text(Tag::Str, text);
                self.push(value)?;
            }
            b'T' => {
                let n = self.u32(src)?;
                self.stretch(src, Tag::Str, at, n.into())?;
            }
            b'U' => {
                let n = self.u8(src)?;
                self.stretch(src, Tag::Str, at, n.into())?;
            }
            0x8d => {
                let n = self.u64(src)?;
                self.stretch(src, Tag::Str, at, n)?;
            }
            b'B' => {
                let n = self.u32(src)?;
                self.stretch(src, Tag::Bytes, at, n.into())?;
            }
            b'C' => {
                let n = self.u8(src)?;
                self.stretch(src, Tag::Bytes, at, n.into())?;
            }
            0x8e | 0x96 => {
                let n = self.u64(src)?;
                self.stretch(src, Tag::Bytes, at, n)?;
            }
            // Containers.
            b')' => {
                let tuple = self.heap.empty(Tag::Tuple)?;
                self.push(tuple)?;
            }
            0x85..=0x87 => {
                let n = usize::from(op - 0x84);
                if self.stack.len() < self.floor() + n {
                    return self.fail("a tuple lacks values");
                }
                let items = self.stack.split_off(self.stack.len() - n);
                let tuple = self.heap.sequence(Tag::Tuple, &items)?;
                self.push(tuple)?;
            }
            b't' | b'l' | 0x91 => {
                let from = self.pop_mark()?;
                let items = self.stack.split_off(from);
                let tag = match op {
                    b't' => Tag::Tuple,
                    b'l' => Tag::List,
                    _ => Tag::FrozenSet,
                };
                let value = self.heap.sequence(tag, &items)?;
                self.push(value)?;
            }
            b'd' => {
                let from = self.pop_mark()?;
                let pairs = self.stack.split_off(from);
                if pairs.len() % 2 == 1 {
                    return self.fail("a key has no value");
                }
                let dict = self.heap.empty(Tag::Dict)?;
                self.heap.set_items(dict, &pairs)?;
                self.push(dict)?;
            }
            0x8f => {
                let set = self.heap.empty(Tag::Set)?;
                self.push(set)?;
            }
            // The stack and the memo.
            b'0' => {
                if self.stack.len() <= self.floor() && !self.marks.is_empty() {
                    self.marks.pop();
                } else {
                    self.pop()?;
                }
            }
            b'1' => {
                let from = self.pop_mark()?;
                self.stack.truncate(from);
            }
            b'2' => {
                let value = self.top()?;
                self.push(value)?;
            }
            b'p' | b'g' => {
                let line = self.line(src)?;
                let Some(n) = std::str::from_utf8(line).ok().and_then(|t| t.trim().parse().ok()) else {
                    return self.fail("a reference is not a number");
                };
                if op == b'p' { self.remember(n)? } else { self.recall(n)? }
            }
            // Classes, functions and objects: by name only.
            b'c' => {
                let (module, name) = (self.line(src)?, self.line(src)?);
                let global = self.heap.find_global(module, name)?;
                self.push(global)?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Some(module), Some(name)) = (self.heap.str(module), self.heap.str(name)) else {
                    return self.fail("the name of a class is not text");
                };
                let (module, name) = (module.into_owned(), name.into_owned());
                let global = self.heap.find_global(module.as_bytes(), name.as_bytes())?;
                self.push(global)?;
            }
            0x82..=0x84 => {
                let code = match op {
                    0x82 => u32::from(self.u8(src)?),
                    0x83 => {
                        let b = self.take(src, 2)?;
                        u32::from(u16::from_le_bytes([b[0], b[1]]))
                    }
                    _ => self.u32(src)?,
                };
                let global = self.heap.find_global(b"copyreg.extension", code.to_string().as_bytes())?;
                self.push(global)?;
            }
            b'R' => {
                let (args, callable) = (self.pop()?, self.pop()?);
                let value = self.heap.reduce(callable, args)?;
                self.push(value)?;
            }
            0x81 => {
                let (args, class) = (self.pop()?, self.pop()?);
                let value = self.heap.new_object(class, args)?;
                self.push(value)?;
            }
            0x92 => {
                let (_named, args, class) = (self.pop()?, self.pop()?, self.pop()?);
                let value = self.heap.new_object(class, args)?;
                self.push(value)?;
            }
            b'o' | b'i' => {
                let from = self.pop_mark()?;
                let mut items = self.stack.split_off(from);
                let class = if op == b'i' {
                    let (module, name) = (self.line(src)?, self.line(src)?);
                    self.heap.find_global(module, name)?
                } else if items.is_empty() {
                    return self.fail("an object has no class");
                } else {
                    items.remove(0)
                };
                let args = self.heap.sequence(Tag::Tuple, &items)?;
                let value = self.heap.new_object(class, args)?;
                self.push(value)?;
            }
            b'b' => {
                let state = self.pop()?;
                let value = self.top()?;
                self.heap.build(value, state);
            }
            b'Q' | b'P' => {
                let id = if op == b'Q' {
                    self.pop()?
                } else {
                    let line = self.line(src)?.to_vec();
                    self.heap.owned_text(Tag::Str, line)
                };
                let value = self.heap.persistent(id)?;
                self.push(value)?;
            }
            // Buffers outside the pickle: torch has none.
            0x97 => return self.fail("it needs a buffer that is not in the file"),
            0x98 => {}
            _ => return self.fail(format_args!("unknown opcode 0x{op:02x}")),
        }
        Ok(())
    }

    /// After a mark: numbers up to an `APPENDS` stay in the file. `false` where anything else comes.
    fn numbers(&mut self, src: &[u8]) -> bool {
        let Some(list) = self.stack.last().copied().filter(|v| v.tag() == Tag::List) else { return false };
        if self.stack.len() <= self.floor() {
            return false;
        }
        let start = self.pos;
        let (mut pos, mut count) = (start, 0u32);
        while let Some(op) = src.get(pos) {
            pos += match op {
                b'K' => 2,
                b'M' => 3,
                b'J' => 5,
                b'G' => 9,
                b'N' | 0x88 | 0x89 => 1,
                0x8a => 2 + src.get(pos + 1).copied().map_or(0, usize::from),
                0x95 => {
                    pos += 9;
                    continue;
                }
                b'e' if count > 0 => {
                    let run = Run { start: start as u64, end: pos as u64, count };
                    if !self.heap.append_run(list, run) {
                        return false;
                    }
                    self.pos = pos + 1;
                    return true;
                }
                _ => return false,
            };
            let Some(more) = count.checked_add(1) else { return false };
            count = more;
        }
        false
    }

    fn append(&mut self, list: Value, items: &[Value]) -> Result<(), ImportError> {
        match list.tag() {
            Tag::List | Tag::Set | Tag::FrozenSet => self.heap.append(list, items),
            Tag::Object => {
                let at = list.payload() as usize;
                if self.heap.things[at].items.is_none() {
                    self.heap.things[at].items = self.heap.empty(Tag::List)?;
                }
                let inner = self.heap.things[at].items;
                self.heap.append(inner, items)
            }
            _ => self.fail("it appends to something that is not a list"),
        }
    }

    fn set_items(&mut self, dict: Value, pairs: &[Value]) -> Result<(), ImportError> {
        match dict.tag() {
            Tag::Dict => self.heap.set_items(dict, pairs),
            Tag::Object => {
                let at = dict.payload() as usize;
                if self.heap.things[at].entries.is_none() {
                    self.heap.things[at].entries = self.heap.empty(Tag::Dict)?;
                }
                let inner = self.heap.things[at].entries;
                self.heap.set_items(inner, pairs)
            }
            _ => self.fail("it sets an entry of something that is not a dict"),
        }
    }

    /// An integer in decimal digits, at most as long as Python prints.
    fn decimal(&self, line: &[u8], at: usize) -> Result<Value, ImportError> {
        match decimal_text(line) {
            Some(text) => Ok(text.parse().ok().and_then(Value::int).unwrap_or(Value::tagged(Tag::Long, at as u64))),
            None => self.fail("a number is invalid"),
        }
    }
}

impl Object {
    pub(super) fn new(class: Value, args: Value) -> Object {
        Object { class, args, state: Value::NONE, items: Value::NONE, entries: Value::NONE }
    }
}

/// Digits of a text integer, without the `L` of Python 2.
fn decimal_text(line: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(line).ok()?.trim().trim_end_matches('L');
    let digits = text.strip_prefix('-').unwrap_or(text);
    (!digits.is_empty() && digits.len() <= 4300 && digits.bytes().all(|b| b.is_ascii_digit())).then_some(text)
}

/// One scalar opcode: its value and where the next begins. No value: an opcode that may occur between the numbers of a
/// list (frame, mark, append).
#[inline]
pub(super) fn scalar_at(src: &[u8], at: usize) -> Option<(Option<Value>, usize)> {
    let rest = src.get(at..)?;
    Some(match *rest.first()? {
        b'K' => (Some(Value::small((*rest.get(1)?).into())), at + 2),
        b'M' => (Some(Value::small(u16::from_le_bytes(rest.get(1..3)?.try_into().ok()?).into())), at + 3),
        b'J' => (Some(Value::small(i32::from_le_bytes(rest.get(1..5)?.try_into().ok()?))), at + 5),
        b'G' => (Some(Value::float(f64::from_be_bytes(rest.get(1..9)?.try_into().ok()?))), at + 9),
        b'N' => (Some(Value::NONE), at + 1),
        0x88 => (Some(Value::TRUE), at + 1),
        0x89 => (Some(Value::FALSE), at + 1),
        0x8a => {
            let n = usize::from(*rest.get(1)?);
            let bytes = rest.get(2..2 + n)?;
            (Some(small_long(bytes).unwrap_or(Value::tagged(Tag::Long, at as u64))), at + 2 + n)
        }
        b'e' | b'(' => (None, at + 1),
        0x95 => (None, at + 9),
        _ => return None,
    })
}

/// Two's complement, little-endian.
fn long_to_i64(bytes: &[u8]) -> Option<i64> {
    if bytes.len() > 8 {
        return None;
    }
    let fill = if bytes.last().is_some_and(|b| *b >= 0x80) { 0xff } else { 0 };
    let mut all = [fill; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    Some(i64::from_le_bytes(all))
}

fn small_long(bytes: &[u8]) -> Option<Value> {
    long_to_i64(bytes).and_then(Value::int)
}

/// An integer in the file, of any size.
pub(super) enum Long<'a> {
    Binary(&'a [u8]),
    Decimal(&'a str),
}

pub(super) fn long_at(src: &[u8], at: usize) -> Option<Long<'_>> {
    let rest = src.get(at..)?;
    match *rest.first()? {
        0x8a => rest.get(2..2 + usize::from(*rest.get(1)?)).map(Long::Binary),
        0x8b => {
            let n = u32::from_le_bytes(rest.get(1..5)?.try_into().ok()?) as usize;
            rest.get(5..5usize.checked_add(n)?).map(Long::Binary)
        }
        _ => decimal_text(&rest[1..memchr::memchr(b'\n', rest)?]).map(Long::Decimal),
    }
}

impl Long<'_> {
    pub fn to_i64(&self) -> Option<i64> {
        match self {
            Long::Binary(bytes) => long_to_i64(bytes),
            Long::Decimal(text) => text.parse().ok(),
        }
    }

    /// `None` if it is too long to be worth it.
    pub fn digits(&self) -> Option<String> {
        let bytes = match self {
            // As Python shows it: JSON has no leading zeros.
            Long::Decimal(text) => {
                let (sign, digits) = text.strip_prefix('-').map_or(("", *text), |digits| ("-", digits));
                return Some(match digits.trim_start_matches('0') {
                    "" => "0".to_string(),
                    digits => format!("{sign}{digits}"),
                });
            }
            Long::Binary(bytes) if bytes.len() > limits::MAX_LONG_BYTES => return None,
            Long::Binary(bytes) => bytes,
        };
        let negative = bytes.last().is_some_and(|b| *b >= 0x80);
        // Base 10^9, least significant first; the magnitude comes in from its most significant byte.
        let mut parts: Vec<u32> = vec![0];
        let mut magnitude: Vec<u8> = bytes.to_vec();
        if negative {
            let mut carry = true;
            for b in &mut magnitude {
                let (sum, over) = (!*b).overflowing_add(u8::from(carry));
                (*b, carry) = (sum, over);
            }
        }
        for b in magnitude.iter().rev() {
            let mut carry = u64::from(*b);
            for part in &mut parts {
                let sum = u64::from(*part) * 256 + carry;
                *part = (sum % 1_000_000_000) as u32;
                carry = sum / 1_000_000_000;
            }
            if carry > 0 {
                parts.push(carry as u32);
            }
        }
        let mut out = String::new();
        if negative {
            out.push('-');
        }
        for (i, part) in parts.iter().rev().enumerate() {
            out.push_str(&if i == 0 { part.to_string() } else { format!("{part:09}") });
        }
        Some(out)
    }
}

fn unquote(line: &[u8]) -> &[u8] {
    match line {
        [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] => inner,
        _ => line,
    }
}

/// Text of protocol 0: `\uXXXX` and, in byte strings, Python's other escapes. Anything else stays as it is.
fn unescape(line: &[u8], all: bool) -> Vec<u8> {
    let mut out = String::with_capacity(line.len());
    let mut i = 0;
    while i < line.len() {
        let hex = |n: usize| {
            let digits = std::str::from_utf8(line.get(i + 2..i + 2 + n)?).ok()?;
            Some((char::from_u32(u32::from_str_radix(digits, 16).ok()?).unwrap_or('\u{fffd}'), n + 2))
        };
        let escape = match (line[i], line.get(i + 1)) {
            (b'\\', Some(b'u')) if !all => hex(4),
            (b'\\', Some(b'U')) if !all => hex(8),
            (b'\\', Some(b'x')) if all => hex(2),
            (b'\\', Some(c)) if all => match c {
                b'n' => Some(('\n', 2)),
                b't' => Some(('\t', 2)),
                b'r' => Some(('\r', 2)),
                b'\\' | b'\'' | b'"' => Some((char::from(*c), 2)),
                _ => None,
            },
            _ => None,
        };
        let (c, n) = escape.unwrap_or((char::from(line[i]), 1));
        out.push(c);
        i += n;
    }
    out.into_bytes()
}
