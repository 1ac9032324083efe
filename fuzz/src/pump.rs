//! Makes a long input of a short one: repeats a part of it many times, where the format allows a list. What is quadratic
//! takes no time worth noticing in a few kilobytes.

/// How the parts of a format are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// By delimiters.
    Text,
    /// By fields with lengths, one inside the other.
    Protobuf,
    /// Any stretch of bytes is a part.
    Bytes,
}

/// Random numbers that are the same for the same seed.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Less than `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.roll() % n as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// An input of about `len` bytes. `None` if there is nothing to repeat.
pub fn pump(data: &[u8], len: usize, shape: Shape, dice: &mut Dice) -> Option<Vec<u8>> {
    match shape {
        Shape::Protobuf => pump_field(data, len, dice, 0),
        Shape::Text => pump_text(data, len, dice),
        Shape::Bytes => {
            let (from, to) = (dice.below(data.len() + 1), dice.below(data.len() + 1));
            pump_range(data, from.min(to), from.max(to), len, dice)
        }
    }
}

/// Between two delimiters of the same kind, with one of them.
fn pump_text(data: &[u8], len: usize, dice: &mut Dice) -> Option<Vec<u8>> {
    const DELIMITERS: &[u8] = b",\n&;([{ +";
    let at = |wanted: &[u8]| -> Vec<usize> { (0..data.len()).filter(|i| wanted.contains(&data[*i])).collect() };
    let all = at(DELIMITERS);
    if all.is_empty() {
        return pump_range(data, 0, data.len(), len, dice);
    }
    let first = *dice.pick(&all);
    let same: Vec<usize> = at(&[data[first]]).into_iter().filter(|i| *i > first).take(8).collect();
    let last = if same.is_empty() { data.len() - 1 } else { *dice.pick(&same) };
    pump_range(data, first, last, len, dice)
}

fn pump_range(data: &[u8], from: usize, to: usize, len: usize, dice: &mut Dice) -> Option<Vec<u8>> {
    if from >= to {
        return None;
    }
    let mut out = data[..from].to_vec();
    repeat(&mut out, &data[from..to], len, dice);
    out.extend_from_slice(&data[to..]);
    Some(out)
}

/// Copies of a part. A word in it becomes a number, or all copies would have the same names.
fn repeat(out: &mut Vec<u8>, part: &[u8], len: usize, dice: &mut Dice) {
    let words: Vec<usize> = (0..part.len().saturating_sub(3)).filter(|i| is_word(&part[*i..*i + 4])).collect();
    let word = if words.is_empty() || dice.one_in(3) { None } else { Some(*dice.pick(&words)) };
    for n in 0..len.saturating_sub(out.len()) / part.len() + 1 {
        let start = out.len();
        out.extend_from_slice(part);
        if let Some(at) = word {
            let name = [n >> 12, n >> 8, n >> 4, n].map(|nibble| b'a' + (nibble & 15) as u8);
            out[start + at..start + at + 4].copy_from_slice(&name);
        }
    }
}

fn is_word(bytes: &[u8]) -> bool {
    bytes.iter().all(u8::is_ascii_alphanumeric)
}

/// Repeats a field of a message, at any depth, and corrects the lengths around it.
fn pump_field(message: &[u8], len: usize, dice: &mut Dice, depth: usize) -> Option<Vec<u8>> {
    let fields = fields(message)?;
    let (start, body, end) = *fields.get(dice.below(fields.len().max(1)))?;
    let mut out = message[..start].to_vec();
    let inner = match body {
        Some(body) if depth < 12 && !dice.one_in(4) => pump_field(&message[body..end], len, dice, depth + 1),
        _ => None,
    };
    match (inner, body) {
        (Some(inner), Some(_)) => {
            let (_, after_tag) = varint(message, start)?;
            out.extend_from_slice(&message[start..after_tag]);
            let mut rest = inner.len() as u64;
            while rest >= 0x80 {
                out.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            out.push(rest as u8);
            out.extend_from_slice(&inner);
        }
        _ => repeat(&mut out, &message[start..end], len, dice),
    }
    out.extend_from_slice(&message[end..]);
    Some(out)
}

/// Where each field starts, where its body starts if it has a length, and where it ends.
fn fields(message: &[u8]) -> Option<Vec<(usize, Option<usize>, usize)>> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < message.len() {
        let (tag, after) = varint(message, at)?;
        let (body, end) = match tag & 7 {
            0 => (None, varint(message, after)?.1),
            1 => (None, after + 8),
            5 => (None, after + 4),
            2 => {
                let (len, body) = varint(message, after)?;
                (Some(body), body.checked_add(usize::try_from(len).ok()?)?)
            }
            _ => return None,
        };
        if end > message.len() {
            return None;
        }
        all.push((at, body, end));
        at = end;
    }
    (!all.is_empty()).then_some(all)
}

fn varint(bytes: &[u8], from: usize) -> Option<(u64, usize)> {
    let mut value = 0;
    for (n, byte) in bytes.get(from..)?.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * n).min(63);
        if byte & 0x80 == 0 {
            return Some((value, from + n + 1));
        }
    }
    None
}
