//! The packed batch.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, DictionaryArray, FixedSizeBinaryArray, Float64Array, Int32Array, PrimitiveArray, RecordBatch,
    StringArray, UInt8Array, UInt16Array,
};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{ArrowDictionaryKeyType, DataType, Field, Int32Type, Schema, UInt16Type};
use arrow::error::ArrowError;

use rollscope_spans::lanes::Lanes;
use rollscope_spans::{NONE, Texts};

use super::Options;
use super::read::Items;

/// More different phases than this are hostile; the rest count as none.
const MAX_PHASES: u32 = u16::MAX as u32;

pub fn write(items: &Items, placed: &Lanes, options: Options) -> Result<RecordBatch, ArrowError> {
    let (order, forest) = (&placed.order, &items.forest);
    let base_ns = forest.start.iter().copied().min().unwrap_or(0);
    let mut place = vec![0i32; items.len()];
    order.iter().enumerate().for_each(|(at, i)| place[*i as usize] = at as i32);
    let ms = |column: &[i64]| -> ArrayRef {
        let since = |i: &u32| column[*i as usize].saturating_sub(base_ns) as f64 / 1e6;
        Arc::new(Float64Array::from_iter_values(order.iter().map(since)))
    };
    let bytes = |column: &[u8]| -> ArrayRef {
        Arc::new(UInt8Array::from_iter_values(order.iter().map(|i| column[*i as usize])))
    };
    let parents = order.iter().map(|i| match forest.parent[*i as usize] {
        NONE => -1,
        parent => place[parent as usize],
    });
    let spans: Vec<u8> = order.iter().flat_map(|i| forest.span[*i as usize]).collect();
    let phases: Vec<u32> = items.phase.iter().map(|p| if *p < MAX_PHASES { *p } else { NONE }).collect();
    let phase_keys: Vec<u16> = order.iter().map(|i| number(phases[*i as usize]) as u16).collect();
    let phase_texts = &items.phases.list[..items.phases.list.len().min(MAX_PHASES as usize)];
    let phase_keys = UInt16Array::new(phase_keys.into(), nulls(&phases, order));
    let traces = FixedSizeBinaryArray::try_new(16, Buffer::from_vec(forest.traces.concat()), None)?;

    let mut columns: Vec<(&str, ArrayRef)> = vec![
        ("start", ms(&forest.start)),
        ("end", ms(&forest.end)),
        ("parent", Arc::new(Int32Array::from_iter_values(parents))),
        ("flags", bytes(&items.flags)),
        ("depth", bytes(&items.depth)),
        ("lane", bytes(&placed.lane)),
        ("attempt", bytes(&items.attempt)),
        ("name", texts(&items.name, &items.names, order)?),
        ("phase", dictionary::<UInt16Type>(phase_keys, Arc::new(StringArray::from_iter_values(phase_texts)))?),
        ("sample", texts(&items.sample, &items.samples, order)?),
        ("group", texts(&items.group, &items.groups, order)?),
        ("worker", texts(&items.worker, &items.workers, order)?),
        ("trace", dictionary::<Int32Type>(keys(&forest.trace, order), Arc::new(traces))?),
        ("span_id", Arc::new(FixedSizeBinaryArray::try_new(8, Buffer::from_vec(spans), None)?)),
    ];
    if options.source {
        let given = order.iter().map(|i| forest.source[*i as usize] as i32);
        columns.push(("source", Arc::new(Int32Array::from_iter_values(given))));
    }
    let fields: Vec<Field> =
        columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
    let metadata = [
        (super::BASE_NS.to_string(), base_ns.to_string()),
        (super::EXTENT_MS.to_string(), (forest.latest.saturating_sub(base_ns) as f64 / 1e6).to_string()),
    ];
    let schema = Arc::new(Schema::new(fields).with_metadata(metadata.into()));
    RecordBatch::try_new(schema, columns.into_iter().map(|(_, array)| array).collect())
}

fn nulls(numbers: &[u32], order: &[u32]) -> Option<NullBuffer> {
    numbers.contains(&NONE).then(|| order.iter().map(|i| numbers[*i as usize] != NONE).collect())
}

/// Anything, where there is none: it is null.
fn number(number: u32) -> i32 {
    if number == NONE { 0 } else { number as i32 }
}

fn keys(numbers: &[u32], order: &[u32]) -> Int32Array {
    let values: Vec<i32> = order.iter().map(|i| number(numbers[*i as usize])).collect();
    Int32Array::new(values.into(), nulls(numbers, order))
}

fn texts(numbers: &[u32], texts: &Texts, order: &[u32]) -> Result<ArrayRef, ArrowError> {
    dictionary::<Int32Type>(keys(numbers, order), Arc::new(StringArray::from_iter_values(&texts.list)))
}

fn dictionary<K: ArrowDictionaryKeyType>(keys: PrimitiveArray<K>, values: ArrayRef) -> Result<ArrayRef, ArrowError> {
    debug_assert!(matches!(values.data_type(), DataType::Utf8 | DataType::FixedSizeBinary(16)));
    Ok(Arc::new(DictionaryArray::<K>::try_new(keys, values)?))
}
