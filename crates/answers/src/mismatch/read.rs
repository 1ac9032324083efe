//! Reads the tokens of a step, once, into pieces.

use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type, Int32Type};
use arrow::error::ArrowError;
use hashbrown::HashMap;

use super::MAX_OFF;

/// Octaves of -logprob, from 2^-10 to 2^4 and beyond.
pub const OCTAVES: usize = 16;
/// Quarters of an octave of |d|, from 2^-18 to 2^6.
const QUARTERS: usize = 24 * 4;
/// The first tokens of a later turn.
pub const OPENING: usize = 8;
/// Pieces of one step.
const MAX_PIECES: usize = 500_000;
/// Different engines, versions, sources: what is beyond is `others`.
const MAX_NAMES: usize = 512;
const OTHERS: &str = "others";
/// Turns with a number of their own.
const MAX_TURN: i32 = 15;
/// Tokens listed as the worst.
pub const WORST: usize = 20;

pub const CLASSES: [&str; 6] = ["special", "digits", "whitespace", "punctuation", "word", "mixed"];

/// How far tokens are off, by how likely they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    pub count: [u32; OCTAVES],
    pub off: [f32; OCTAVES],
    /// The worst of them, and where it is.
    pub worst: (f32, u32),
}

impl Sums {
    pub fn tokens(&self) -> u64 {
        self.count.iter().map(|n| u64::from(*n)).sum()
    }
}

/// Tokens of a sample that differ in nothing but their numbers.
#[derive(Clone, Debug)]
pub struct Piece {
    pub sample: u32,
    pub engine: u32,
    pub version: u32,
    pub source: u32,
    pub turn: i32,
    /// The power of two below the position.
    pub position: u8,
    pub opening: bool,
    pub told: Told,
    pub sums: Sums,
}

/// What tokenising again did to tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Once,
    /// They are not the tokens that the engine produced.
    Again,
    /// They follow such tokens.
    After,
}

/// For a line through (logprob, d).
#[derive(Clone, Copy, Debug, Default)]
pub struct Fit {
    pub n: f64,
    e: f64,
    d: f64,
    ee: f64,
    dd: f64,
    ed: f64,
}

impl Fit {
    fn push(&mut self, e: f64, d: f64) {
        self.n += 1.0;
        self.e += e;
        self.d += d;
        self.ee += e * e;
        self.dd += d * d;
        self.ed += e * d;
    }

    pub fn add(&mut self, other: &Fit) {
        self.n += other.n;
        self.e += other.e;
        self.d += other.d;
        self.ee += other.ee;
        self.dd += other.dd;
        self.ed += other.ed;
    }

    /// The slope, and the share of the variance of d that the line explains.
    pub fn line(&self) -> Option<(f64, f64)> {
        let (e, d) = (self.e / self.n, self.d / self.n);
        let (ee, dd, ed) = (self.ee / self.n - e * e, self.dd / self.n - d * d, self.ed / self.n - e * d);
        (ee > 1e-9 && dd > 1e-12).then(|| (ed / ee, ed * ed / (ee * dd)))
    }
}

#[derive(Default)]
struct Names {
    list: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let name = if self.list.len() < MAX_NAMES { name } else { OTHERS };
        let list = &mut self.list;
        *self.numbers.entry(name.to_string()).or_insert_with(|| {
            list.push(name.to_string());
            list.len() as u32 - 1
        })
    }
}

/// What is known of a step's tokens.
#[derive(Default)]
pub struct StepPieces {
    pub pieces: Vec<Piece>,
    /// By sample and class of text.
    pub classes: Vec<(u32, usize, Sums)>,
    pub fits: BTreeMap<u32, Fit>,
    /// Id and split.
    pub samples: Vec<(String, String)>,
    engines: Names,
    versions: Names,
    sources: Names,
    pub tokens: u64,
    pub k1: f64,
    pub k3: f64,
    pub negative: Quarters,
    pub positive: Quarters,
    pub worst: Vec<Worst>,
    pub retokenized_turns: u64,
    pub lengths_differ: u64,
    pub left_out: u64,
}

/// A token that is far off.
#[derive(Clone, Debug)]
pub struct Worst {
    pub sample: u32,
    pub position: u32,
    pub d: f32,
    pub text: Option<String>,
}

pub struct Quarters(pub Vec<u64>);

impl Default for Quarters {
    fn default() -> Self {
        Quarters(vec![0; QUARTERS])
    }
}

impl Quarters {
    fn push(&mut self, off: f32) {
        let at = (off.to_bits() >> 21) as i64 - ((127 - 18) << 2);
        self.0[at.clamp(0, QUARTERS as i64 - 1) as usize] += 1;
    }

    /// Where a quarter begins.
    pub fn bound(at: usize) -> f64 {
        match at {
            0 => 0.0,
            _ => f64::from(f32::from_bits(((at as u32) + ((127 - 18) << 2)) << 21)),
        }
    }
}

fn octave(logprob: f32) -> usize {
    ((((-logprob).to_bits() >> 23) & 0xff) as i64 - (127 - 11)).clamp(0, OCTAVES as i64 - 1) as usize
}

fn class_of(text: &str) -> usize {
    let trimmed = text.trim();
    let special = (text.starts_with('<') && text.ends_with('>') && text.len() > 2)
        || (text.starts_with('[') && text.ends_with(']') && text.len() > 2);
    let all = |is: fn(char) -> bool| trimmed.chars().all(is);
    match () {
        () if trimmed.is_empty() => 2,
        () if special => 0,
        () if all(|c| c.is_numeric()) => 1,
        () if all(|c| c.is_ascii_punctuation() || (!c.is_alphanumeric() && !c.is_ascii())) => 3,
        () if all(|c| c.is_alphabetic() || c == '\'') => 4,
        () => 5,
    }
}

/// The columns that are read.
pub const COLUMNS: &str = "sample_id, split, source, count, trainer_count, mask, logprobs, trainer_logprobs, texts, parts, \
                           case when trainer_ids is not null then ids end as ids, trainer_ids";

struct Part {
    start: usize,
    turn: i32,
    engine: u32,
    version: u32,
    differs_at: Option<usize>,
}

fn text_column(batch: &RecordBatch, name: &str) -> Result<ArrayRef, ArrowError> {
    let column =
        batch.column_by_name(name).ok_or_else(|| ArrowError::SchemaError(format!("there is no column `{name}`")))?;
    cast(column, &DataType::Utf8)
}

fn list<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ListArray, ArrowError> {
    let column = batch.column_by_name(name).and_then(|column| column.as_list_opt::<i32>());
    column.ok_or_else(|| ArrowError::SchemaError(format!("`{name}` is no list")))
}

fn items(list: &ListArray, row: usize) -> std::ops::Range<usize> {
    let offsets = list.value_offsets();
    offsets[row] as usize..offsets[row + 1] as usize
}

impl StepPieces {
    pub fn engine(&self, number: u32) -> &str {
        self.engines.list.get(number as usize).map_or("", String::as_str)
    }

    pub fn version(&self, number: u32) -> &str {
        self.versions.list.get(number as usize).map_or("", String::as_str)
    }

    pub fn source(&self, number: u32) -> &str {
        self.sources.list.get(number as usize).map_or("", String::as_str)
    }

    pub fn add(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let (ids, splits, sources) =
            (text_column(batch, "sample_id")?, text_column(batch, "split")?, text_column(batch, "source")?);
        let (ids, splits, sources): (&StringArray, &StringArray, &StringArray) =
            (ids.as_string(), splits.as_string(), sources.as_string());
        let number = |name: &str| {
            let column = batch.column_by_name(name).and_then(|column| column.as_primitive_opt::<Int32Type>());
            column.ok_or_else(|| ArrowError::SchemaError(format!("`{name}` is no number")))
        };
        let (counts, trainer_counts) = (number("count")?, number("trainer_count")?);
        let (engine, trainer) = (list(batch, "logprobs")?, list(batch, "trainer_logprobs")?);
        let (mask, texts, parts) = (list(batch, "mask")?, list(batch, "texts")?, list(batch, "parts")?);
        let (own, theirs) = (list(batch, "ids")?, list(batch, "trainer_ids")?);
        let numbers = |of: &ListArray, row: usize| {
            of.values().as_primitive::<Float32Type>().values().slice(items(of, row).start, items(of, row).len())
        };
        for row in 0..batch.num_rows() {
            if trainer_counts.is_valid(row) && trainer_counts.value(row) != counts.value(row) {
                self.lengths_differ += 1;
                continue;
            }
            if engine.is_null(row) || trainer.is_null(row) {
                continue;
            }
            if self.pieces.len() >= MAX_PIECES {
                self.left_out += 1;
                continue;
            }
            let (e, t) = (numbers(engine, row), numbers(trainer, row));
            let mut parts = self.parts(parts, row);
            let count = e.len().min(t.len());
            if own.is_valid(row) && theirs.is_valid(row) {
                let of = |list: &ListArray| {
                    list.values()
                        .as_primitive::<Int32Type>()
                        .values()
                        .slice(items(list, row).start, items(list, row).len())
                };
                mark_other_ids(&mut parts, &of(own), &of(theirs));
            }
            self.retokenized_turns += parts.iter().filter(|part| part.differs_at.is_some()).count() as u64;
            let trained = mask
                .is_valid(row)
                .then(|| mask.values().as_boolean().slice(items(mask, row).start, items(mask, row).len()));
            let source = if sources.is_valid(row) { self.sources.number(sources.value(row)) } else { u32::MAX };
            let sample = self.samples.len() as u32;
            self.samples.push((ids.value(row).to_string(), splits.value(row).to_string()));
            let is_trained = |at: usize| trained.as_ref().is_none_or(|trained| trained.value(at));
            self.cut(sample, source, &parts, count, &e, &t, is_trained);
            if texts.is_valid(row) {
                let (from, values) = (items(texts, row).start, texts.values().as_string::<i32>());
                let mut classes = [Sums::default(); CLASSES.len()];
                for at in (0..count).filter(|at| is_trained(*at)) {
                    push(&mut classes[class_of(values.value(from + at))], e[at], t[at], at);
                }
                for worst in self.worst.iter_mut().filter(|worst| worst.sample == sample) {
                    worst.text = Some(values.value(from + worst.position as usize).to_string());
                }
                let known = classes.into_iter().enumerate().filter(|(_, sums)| sums.tokens() > 0);
                self.classes.extend(known.map(|(class, sums)| (sample, class, sums)));
            }
        }
        Ok(())
    }

    fn parts(&mut self, parts: &ListArray, row: usize) -> Vec<Part> {
        let columns = parts.values().as_struct();
        let small = |name: &str, at: usize| {
            let column = columns.column_by_name(name)?.as_primitive_opt::<Int32Type>()?;
            column.is_valid(at).then(|| column.value(at))
        };
        let text = |name: &str, at: usize| -> Option<&str> {
            let column = columns.column_by_name(name)?.as_string_opt::<i32>()?;
            column.is_valid(at).then(|| column.value(at))
        };
        let mut out: Vec<Part> = Vec::new();
        for at in items(parts, row) {
            let start = small("start", at).unwrap_or(0).max(0) as usize;
            out.push(Part {
                start,
                turn: small("turn", at).unwrap_or(-1).clamp(-1, MAX_TURN),
                engine: text("engine", at).map_or(u32::MAX, |name| self.engines.number(name)),
                version: text("weight_version", at).map_or(u32::MAX, |name| self.versions.number(name)),
                differs_at: small("differs_at", at).map(|at| at.max(0) as usize).filter(|at| *at < start),
            });
        }
        if out.first().is_none_or(|first| first.start > 0) {
            out.insert(0, Part { start: 0, turn: -1, engine: u32::MAX, version: u32::MAX, differs_at: None });
        }
        out
    }

    /// Cuts a sample into pieces and adds up each.
    #[expect(clippy::too_many_arguments)]
    fn cut(
        &mut self,
        sample: u32,
        source: u32,
        parts: &[Part],
        count: usize,
        e: &[f32],
        t: &[f32],
        is_trained: impl Fn(usize) -> bool,
    ) {
        for (n, part) in parts.iter().enumerate() {
            let end = parts.get(n + 1).map_or(count, |next| next.start).min(count);
            let is_first_of_turn = n > 0 && parts[n - 1].turn != part.turn;
            // The rest of the turn that a later part of it may tell to be rewritten.
            let rewritten = parts[n + 1..].iter().filter_map(|next| next.differs_at).min().unwrap_or(usize::MAX);
            let follows = parts[..=n].iter().rev().take_while(|p| p.turn == part.turn).any(|p| p.differs_at.is_some());
            let mut from = part.start;
            while from < end {
                let position = (from + 1).ilog2() as u8;
                let opening = is_first_of_turn && part.turn > 0 && from < part.start + OPENING;
                let mut to = end.min((2 << position) - 1);
                if opening {
                    to = to.min(part.start + OPENING);
                }
                if from < rewritten {
                    to = to.min(rewritten);
                }
                let told = match () {
                    () if from >= rewritten => Told::Again,
                    () if follows => Told::After,
                    () => Told::Once,
                };
                let (mut sums, mut fit) = (Sums::default(), Fit::default());
                for at in (from..to).filter(|at| is_trained(*at)) {
                    let Some(d) = push(&mut sums, e[at], t[at], at) else { continue };
                    let off = d.abs();
                    let capped = d.clamp(-MAX_OFF, MAX_OFF);
                    fit.push(f64::from(e[at]), f64::from(capped));
                    self.k1 -= f64::from(d);
                    let d = d.min(20.0);
                    self.k3 += f64::from(d.exp() - 1.0 - d);
                    if d < 0.0 {
                        self.negative.push(off)
                    } else {
                        self.positive.push(off)
                    }
                    if off > 0.5 {
                        self.keep_worst(sample, at, d);
                    }
                }
                if fit.n > 0.0 {
                    self.tokens += fit.n as u64;
                    if told != Told::Again {
                        self.fits.entry(part.engine).or_default().add(&fit);
                    }
                    let (engine, version, turn) = (part.engine, part.version, part.turn);
                    self.pieces.push(Piece { sample, engine, version, source, turn, position, opening, told, sums });
                }
                from = to;
            }
        }
    }

    fn keep_worst(&mut self, sample: u32, at: usize, d: f32) {
        let worst = &mut self.worst;
        if worst.len() == WORST && worst[WORST - 1].d.abs() >= d.abs() {
            return;
        }
        let place = worst.partition_point(|other| other.d.abs() >= d.abs());
        worst.insert(place, Worst { sample, position: at as u32, d, text: None });
        worst.truncate(WORST);
    }
}

/// Adds a token, if both sides know it, and says how far off it is.
#[inline]
fn push(sums: &mut Sums, e: f32, t: f32, at: usize) -> Option<f32> {
    let d = t - e;
    if !d.is_finite() {
        return None;
    }
    let (off, octave) = (d.abs().min(MAX_OFF), octave(e));
    sums.count[octave] += 1;
    sums.off[octave] += off;
    if off > sums.worst.0.abs() || sums.worst.0 == 0.0 {
        sums.worst = (d.clamp(-MAX_OFF, MAX_OFF), at as u32);
    }
    Some(d)
}

/// Where the trainer has other ids than the engine and nobody says so, the next turn was preceded by other tokens.
fn mark_other_ids(parts: &mut Vec<Part>, own: &[i32], theirs: &[i32]) {
    let count = own.len().min(theirs.len());
    let Some(first) = (0..count).find(|at| own[*at] != theirs[*at]) else { return };
    let mut from = first;
    for n in 1..parts.len() {
        let (start, is_next_turn) = (parts[n].start.min(count), parts[n].turn != parts[n - 1].turn);
        if !is_next_turn || start <= from {
            continue;
        }
        if parts[n].differs_at.is_none() {
            parts[n].differs_at = Some(from);
        }
        match (start..count).find(|at| own[*at] != theirs[*at]) {
            Some(next) => from = next,
            None => return,
        }
    }
    // No turn follows: the last tokens of the sample.
    let last = parts.last().map_or((-1, u32::MAX, u32::MAX), |part| (part.turn, part.engine, part.version));
    let (turn, engine, version) = last;
    parts.push(Part { start: count, turn: turn.saturating_add(1), engine, version, differs_at: Some(from) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octaves_and_quarters() {
        assert_eq!(
            (octave(0.0), octave(-1e-9), octave(-1.0), octave(-1.9), octave(-2.0), octave(-100.0)),
            (0, 0, 11, 11, 12, 15)
        );
        let mut quarters = Quarters::default();
        for (off, at) in [(0.0, 0), (1e-9, 0), (1.0, 72), (1.3, 73), (1e9, QUARTERS - 1)] {
            quarters.push(off);
            assert!(quarters.0[at] > 0, "{off}");
        }
        assert_eq!((Quarters::bound(72), Quarters::bound(73)), (1.0, 1.25));
    }

    #[test]
    fn classes_of_tokens() {
        for (text, class) in [
            ("<|im_end|>", "special"),
            ("42", "digits"),
            (" 7", "digits"),
            ("\n\n", "whitespace"),
            ("", "whitespace"),
            (" (", "punctuation"),
            (" therefore", "word"),
            ("é", "word"),
            ("x1", "mixed"),
        ] {
            assert_eq!(CLASSES[class_of(text)], class, "{text:?}");
        }
    }

    #[test]
    fn other_ids_mark_the_turn_that_follows() {
        let part = |start, turn| Part { start, turn, engine: 0, version: 0, differs_at: None };
        let own = [1, 2, 3, 4, 5, 6, 7, 8];
        let mut parts = vec![part(0, 0), part(4, 1)];
        mark_other_ids(&mut parts, &own, &own);
        assert_eq!(parts.len(), 2);
        mark_other_ids(&mut parts, &own, &[1, 2, 3, 9, 5, 6, 7, 8]);
        assert_eq!((parts.len(), parts[1].differs_at), (2, Some(3)));
        mark_other_ids(&mut parts, &own, &[1, 2, 3, 9, 5, 6, 0, 8]);
        assert_eq!((parts.len(), parts[2].start, parts[2].differs_at), (3, 8, Some(6)));
    }
}
