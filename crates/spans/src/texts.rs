//! Texts by number.

use arrow::array::{Array, RecordBatch};
use arrow::error::ArrowError;
use hashbrown::HashMap;
use rollscope_model::read::{Text, column};

use crate::NONE;

/// Texts numbered in the order they are met.
#[derive(Default)]
pub struct Texts {
    numbers: HashMap<String, u32>,
    pub list: Vec<String>,
}

impl Texts {
    /// The number of a text, which gets one if it has none.
    pub fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.list.len() as u32;
        self.numbers.insert(text.to_string(), number);
        self.list.push(text.to_string());
        number
    }

    /// The number of a text, if it was met.
    pub fn find(&self, text: &str) -> Option<u32> {
        self.numbers.get(text).copied()
    }

    /// Empty for [`NONE`].
    pub fn get(&self, number: u32) -> &str {
        self.list.get(number as usize).map_or("", String::as_str)
    }

    /// Numbers of the texts of a column, row by row; [`NONE`] where there is none. Each distinct text of a batch is looked
    /// up once.
    pub fn column(&mut self, batches: &[RecordBatch], name: &str) -> Result<Vec<u32>, ArrowError> {
        let mut out = Vec::with_capacity(batches.iter().map(RecordBatch::num_rows).sum());
        for batch in batches {
            let text: Text = column(batch, name)?;
            let Some((keys, values)) = text.dictionary() else {
                out.extend((0..batch.num_rows()).map(|row| text.get(row).map_or(NONE, |text| self.number(text))));
                continue;
            };
            // By key; looked up when first seen.
            let mut numbers: Vec<Option<u32>> = vec![None; values.len()];
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
