//! Which types the values under each attribute key have.

use std::collections::{BTreeMap, HashMap};

use arrow::array::cast::AsArray;
use arrow::array::{MapArray, RecordBatch};
use arrow::datatypes::DataType;

use crate::manifest::AttrTypes;

/// Attribute keys and their types in the map columns of a batch. Rows tend to repeat the keys of the row before, in the
/// same order, so most look-ups are one comparison.
pub(crate) fn of(batch: &RecordBatch) -> AttrTypes {
    let mut all = AttrTypes::new();
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        if !matches!(field.data_type(), DataType::Map(_, _)) {
            continue;
        }
        let found = map_types(column.as_map());
        if !found.is_empty() {
            all.insert(field.name().clone(), found);
        }
    }
    all
}

fn map_types(map: &MapArray) -> BTreeMap<String, u8> {
    let keys = map.keys().as_string::<i32>();
    let values = map.values().as_string::<i32>();
    let mut slots: Vec<(&str, u8)> = Vec::new();
    let mut by_key: HashMap<&str, usize> = HashMap::new();
    let mut layout: Vec<usize> = Vec::new();
    for window in map.offsets().windows(2) {
        for (position, entry) in (window[0] as usize..window[1] as usize).enumerate() {
            let key = keys.value(entry);
            let slot = match layout.get(position) {
                Some(slot) if slots[*slot].0 == key => *slot,
                _ => {
                    let slot = *by_key.entry(key).or_insert_with(|| {
                        slots.push((key, 0));
                        slots.len() - 1
                    });
                    if position < layout.len() {
                        layout[position] = slot;
                    } else {
                        layout.push(slot);
                    }
                    slot
                }
            };
            slots[slot].1 |= rollscope_model::attrs::type_of(values.value(entry)) as u8;
        }
    }
    slots.into_iter().map(|(key, bits)| (key.to_string(), bits)).collect()
}
