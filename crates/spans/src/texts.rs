//! Texts by number.

use std::hash::BuildHasher;

use arrow::array::{Array, RecordBatch, StringArray};
use arrow::error::ArrowError;
use hashbrown::DefaultHashBuilder;
use hashbrown::hash_table::{Entry, HashTable};
use rollscope_model::read::{Text, column};

use crate::NONE;

/// Texts numbered in the order they are met.
#[derive(Default)]
pub struct Texts {
    /// Of the texts in the list.
    numbers: HashTable<u32>,
    hasher: DefaultHashBuilder,
    pub list: Vec<String>,
}

impl Texts {
    /// The number of a text, which gets one if it has none.
    pub fn number(&mut self, text: &str) -> u32 {
        let Texts { numbers, hasher, list } = self;
        let entry = numbers.entry(
            hasher.hash_one(text),
            |number| list[*number as usize] == text,
            |number| hasher.hash_one(list[*number as usize].as_str()),
        );
        if let Entry::Occupied(known) = entry {
            return *known.get();
        }
        let number = list.len() as u32;
        entry.insert(number);
        list.push(text.to_string());
        number
    }

    /// The number of a text, if it was met.
    pub fn find(&self, text: &str) -> Option<u32> {
        self.numbers.find(self.hasher.hash_one(text), |number| self.list[*number as usize] == text).copied()
    }

    /// Empty for [`NONE`].
    pub fn get(&self, number: u32) -> &str {
        self.list.get(number as usize).map_or("", String::as_str)
    }

    /// Numbers of the texts of a column, row by row; [`NONE`] where there is none. Each distinct text of a batch is looked
    /// up once, and once for all batches that follow each other and share their texts, as those of one part of a file do.
    pub fn column(&mut self, batches: &[RecordBatch], name: &str) -> Result<Vec<u32>, ArrowError> {
        let mut out = Vec::with_capacity(batches.iter().map(RecordBatch::num_rows).sum());
        // By key; looked up when first seen.
        let mut numbers: Vec<Option<u32>> = Vec::new();
        let mut numbered: Option<&StringArray> = None;
        for batch in batches {
            let text: Text = column(batch, name)?;
            let Some((keys, values)) = text.dictionary() else {
                out.extend((0..batch.num_rows()).map(|row| text.get(row).map_or(NONE, |text| self.number(text))));
                continue;
            };
            if !numbered.is_some_and(|before| is_same(before, values)) {
                numbers.clear();
                numbers.resize(values.len(), None);
                numbered = Some(values);
            }
            out.extend(keys.iter().map(|key| {
                let Some(key) = key.map(|key| key as usize) else { return NONE };
                *numbers[key].get_or_insert_with(|| match values.is_null(key) {
                    true => NONE,
                    false => self.number(values.value(key)),
                })
            }));
        }
        Ok(out)
    }
}

/// Two names of the same memory: no text is compared.
fn is_same(a: &StringArray, b: &StringArray) -> bool {
    let same_nulls = match (a.nulls(), b.nulls()) {
        (None, None) => true,
        (Some(a), Some(b)) => a.buffer().as_ptr() == b.buffer().as_ptr() && a.offset() == b.offset(),
        _ => false,
    };
    a.len() == b.len() && same_nulls && a.offsets().ptr_eq(b.offsets()) && a.values().as_ptr() == b.values().as_ptr()
}
