//! Attributes by key. Spans of a kind have the same keys, so a block lists each set of keys once (a shape), which shape each
//! row has, and under every key its values from row to row. Next to one another they compress far better than row by row,
//! and the page finds an attribute without looking at the others.
//!
//! `{"rows": [shape, ...], "shapes": [{"keys": [[column, key], ...], "values": [[value, ...], ...]}, ...]}`; a list of one
//! value counts for every row of its shape.

use std::io;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use hashbrown::HashMap;
use serde::Serialize;
use serde_json::value::RawValue;

/// The columns that go in here.
pub const COLUMNS: [&str; 2] = ["start_attrs", "end_attrs"];

#[derive(Serialize)]
struct Block<'a> {
    rows: Vec<u32>,
    shapes: Vec<Shape<'a>>,
}

#[derive(Serialize)]
struct Shape<'a> {
    keys: &'a [(&'static str, &'a str)],
    values: Vec<Vec<Cell<'a>>>,
}

/// A value, which is JSON text in the store: written as it is, or as a string if it is not JSON.
#[derive(Clone, Copy, PartialEq)]
struct Cell<'a>(&'a str);

impl Serialize for Cell<'_> {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match serde_json::from_str::<&RawValue>(self.0) {
            Ok(json) => json.serialize(out),
            Err(_) => out.serialize_str(self.0),
        }
    }
}

/// One column of one batch: where each row begins, its keys and its values.
struct Map {
    name: &'static str,
    offsets: Vec<usize>,
    keys: ArrayRef,
    values: ArrayRef,
}

impl Map {
    fn of(batch: &RecordBatch, name: &'static str) -> io::Result<Option<Map>> {
        let Some(map) = batch.column_by_name(name).and_then(|c| c.as_map_opt()) else { return Ok(None) };
        let text = |a: &ArrayRef| cast(a, &DataType::Utf8).map_err(io::Error::other);
        let offsets = map.value_offsets().iter().map(|o| *o as usize).collect();
        Ok(Some(Map { name, offsets, keys: text(map.keys())?, values: text(map.values())? }))
    }

    fn texts(&self) -> (&StringArray, &StringArray) {
        (self.keys.as_string(), self.values.as_string())
    }
}

/// The block of the rows of these batches, in their order.
pub fn block(batches: &[RecordBatch]) -> io::Result<Vec<u8>> {
    let mut maps: Vec<(usize, Vec<Map>)> = Vec::with_capacity(batches.len());
    for batch in batches {
        let found = COLUMNS.into_iter().map(|name| Map::of(batch, name)).collect::<io::Result<Vec<_>>>()?;
        maps.push((batch.num_rows(), found.into_iter().flatten().collect()));
    }
    let mut known: HashMap<Vec<(&'static str, &str)>, usize> = HashMap::new();
    let mut values: Vec<Vec<Vec<Cell>>> = Vec::new();
    let mut rows = Vec::new();
    let (mut keys, mut cells) = (Vec::new(), Vec::new());
    for (count, maps) in &maps {
        for row in 0..*count {
            keys.clear();
            cells.clear();
            for map in maps {
                let (names, texts) = map.texts();
                for at in map.offsets[row]..map.offsets[row + 1] {
                    keys.push((map.name, names.value(at)));
                    cells.push(Cell(if texts.is_valid(at) { texts.value(at) } else { "null" }));
                }
            }
            let shape = match known.get(&keys) {
                Some(shape) => *shape,
                None => {
                    known.insert(keys.clone(), values.len());
                    values.push(vec![Vec::new(); keys.len()]);
                    values.len() - 1
                }
            };
            rows.push(shape as u32);
            values[shape].iter_mut().zip(&cells).for_each(|(column, cell)| column.push(*cell));
        }
    }
    for column in values.iter_mut().flatten() {
        if column.iter().all(|cell| *cell == column[0]) {
            column.truncate(1);
        }
    }
    let mut keys: Vec<(&[(&'static str, &str)], usize)> =
        known.iter().map(|(k, shape)| (k.as_slice(), *shape)).collect();
    keys.sort_unstable_by_key(|(_, shape)| *shape);
    let shapes = keys.into_iter().zip(values).map(|((keys, _), values)| Shape { keys, values }).collect();
    super::zipped_json(&Block { rows, shapes })
}
