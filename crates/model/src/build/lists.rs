//! Columns of lists: what a sample has of each of its tokens.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, BooleanArray, Int32Array, ListArray, PrimitiveArray, StringArray, StructArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::Field;

use super::columns::{TextBuffer, finish_list};
use crate::tables::part_fields;

/// What is measured per token is kept to one part in 4,096, or to 0.000004 where that is more: half of the bytes of such a
/// number are noise that no compressor can shrink, and no difference between an engine and a trainer is that small.
pub fn rounded(value: f32) -> f32 {
    /// Bits of a fraction that stay, of 23.
    const KEPT: u32 = 11;
    /// Below this, what stays is a multiple of it.
    const SMALLEST: f32 = 1.0 / (1 << 17) as f32;
    if !value.is_finite() {
        return value;
    }
    if value.abs() < SMALLEST * (1 << KEPT) as f32 {
        return (value / SMALLEST).round_ties_even() * SMALLEST;
    }
    const DROPPED: u32 = 23 - KEPT;
    let half = 1 << (DROPPED - 1);
    let bits = value.to_bits().saturating_add(half) >> DROPPED << DROPPED;
    let rounded = f32::from_bits(bits);
    if rounded.is_finite() { rounded } else { value }
}

/// Where lists begin and end, and which are null.
#[derive(Default)]
struct Rows {
    offsets: Vec<i32>,
    valid: Vec<bool>,
}

impl Rows {
    fn end(&mut self, items: usize, is_valid: bool) {
        if self.offsets.is_empty() {
            self.offsets.push(0);
        }
        self.offsets.push(items as i32);
        self.valid.push(is_valid);
    }

    fn finish(&mut self, items: ArrayRef) -> ArrayRef {
        let mut offsets = std::mem::take(&mut self.offsets);
        if offsets.is_empty() {
            offsets.push(0);
        }
        let valid = std::mem::take(&mut self.valid);
        let nulls = valid.contains(&false).then(|| NullBuffer::from(valid));
        let field = Arc::new(Field::new("item", items.data_type().clone(), false));
        Arc::new(ListArray::new(field, OffsetBuffer::new(offsets.into()), items, nulls))
    }
}

pub struct NumbersColumn<T: ArrowPrimitiveType> {
    rows: Rows,
    values: Vec<T::Native>,
}

// Derived, it would ask the same of `T`.
impl<T: ArrowPrimitiveType> Default for NumbersColumn<T> {
    fn default() -> Self {
        NumbersColumn { rows: Rows::default(), values: Vec::new() }
    }
}

impl<T: ArrowPrimitiveType> NumbersColumn<T> {
    pub fn push(&mut self, row: Option<&[T::Native]>, keep: impl Fn(T::Native) -> T::Native) {
        self.values.extend(row.unwrap_or_default().iter().map(|value| keep(*value)));
        self.rows.end(self.values.len(), row.is_some());
    }

    pub fn finish(&mut self) -> ArrayRef {
        let values = std::mem::take(&mut self.values);
        self.rows.finish(Arc::new(PrimitiveArray::<T>::new(values.into(), None)))
    }
}

#[derive(Default)]
pub struct BoolsColumn {
    rows: Rows,
    values: Vec<bool>,
}

impl BoolsColumn {
    pub fn push(&mut self, row: Option<&[bool]>) {
        self.values.extend_from_slice(row.unwrap_or_default());
        self.rows.end(self.values.len(), row.is_some());
    }

    pub fn finish(&mut self) -> ArrayRef {
        self.rows.finish(Arc::new(BooleanArray::from(std::mem::take(&mut self.values))))
    }
}

#[derive(Default)]
pub struct TextsColumn {
    rows: Rows,
    values: TextBuffer,
}

impl TextsColumn {
    pub fn push(&mut self, row: Option<&[&str]>) {
        for text in row.unwrap_or_default() {
            self.values.push_with(|out| out.extend_from_slice(text.as_bytes()));
        }
        self.rows.end(self.values.len(), row.is_some());
    }

    pub fn finish(&mut self) -> ArrayRef {
        self.rows.finish(Arc::new(self.values.finish()))
    }
}

/// Consecutive tokens that were produced together, up to the next part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewPart<'a> {
    pub start: i32,
    pub turn: Option<i32>,
    pub engine: Option<&'a str>,
    pub weight_version: Option<&'a str>,
    /// The first token of the turn's prefix, counted from the end of the prompt, that differs from what was produced before.
    pub differs_at: Option<i32>,
}

#[derive(Default)]
pub struct PartsColumn {
    offsets: Vec<i32>,
    starts: Vec<i32>,
    turns: Vec<Option<i32>>,
    engines: Vec<Option<String>>,
    weight_versions: Vec<Option<String>>,
    differ_at: Vec<Option<i32>>,
}

impl PartsColumn {
    pub fn push(&mut self, parts: &[NewPart]) {
        for part in parts {
            self.starts.push(part.start);
            self.turns.push(part.turn);
            self.engines.push(part.engine.map(str::to_string));
            self.weight_versions.push(part.weight_version.map(str::to_string));
            self.differ_at.push(part.differs_at);
        }
        if self.offsets.is_empty() {
            self.offsets.push(0);
        }
        self.offsets.push(self.starts.len() as i32);
    }

    pub fn finish(&mut self) -> ArrayRef {
        let texts = |values: &mut Vec<Option<String>>| StringArray::from(std::mem::take(values));
        let numbers = |values: &mut Vec<Option<i32>>| Int32Array::from(std::mem::take(values));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from(std::mem::take(&mut self.starts))),
            Arc::new(numbers(&mut self.turns)),
            Arc::new(texts(&mut self.engines)),
            Arc::new(texts(&mut self.weight_versions)),
            Arc::new(numbers(&mut self.differ_at)),
        ];
        finish_list(&mut self.offsets, StructArray::new(part_fields(), columns, None))
    }
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn what_is_measured_keeps_what_matters() {
        for value in [-12.345_678, -0.712_3, 1.000_123, 0.25, 3e-3, 123_456.7, f32::MAX, f32::MIN_POSITIVE] {
            for value in [value, -value] {
                let error = (rounded(value) - value).abs();
                assert!(
                    error <= (value.abs() / 4096.0).max(0.5 / (1 << 17) as f32),
                    "{value} became {}",
                    rounded(value)
                );
                assert_eq!(rounded(rounded(value)), rounded(value));
            }
        }
        assert!(rounded(f32::NAN).is_nan());
        assert_eq!((rounded(f32::NEG_INFINITY), rounded(0.0), rounded(-1e-9)), (f32::NEG_INFINITY, 0.0, 0.0));
    }
}
