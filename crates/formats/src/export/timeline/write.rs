//! The packed batch.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, DictionaryArray, FixedSizeBinaryArray, Float64Array, Int32Array, PrimitiveArray, RecordBatch,
    StringArray, UInt8Array, UInt16Array,
};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{ArrowDictionaryKeyType, DataType, Field, Int32Type, Schema, UInt16Type};
use arrow::error::ArrowError;

use super::Options;
use super::lanes::Placed;
use super::read::{Items, NONE, Texts};

/// More different phases than this are hostile; the rest count as none.
const MAX_PHASES: i32 = u16::MAX as i32;

pub fn write(items: &Items, placed: &Placed, parent_ids: &[u64], options: Options) -> Result<RecordBatch, ArrowError> {
    let order = &placed.order;
    let mut place = vec![0i32; items.len()];
    order.iter().enumerate().for_each(|(at, i)| place[*i as usize] = at as i32);
    let ms = |column: &[i64]| -> ArrayRef {
        Arc::new(Float64Array::from_iter_values(order.iter().map(|i| column[*i as usize] as f64 / 1e6)))
    };
    let bytes = |column: &[u8]| -> ArrayRef {
        Arc::new(UInt8Array::from_iter_values(order.iter().map(|i| column[*i as usize])))
    };
    let parents = order.iter().map(|i| match items.parent[*i as usize] {
        NONE => NONE,
        p => place[p as usize],
    });
    let ids = |column: &[u64]| -> Result<ArrayRef, ArrowError> {
        let words: Vec<u64> = order.iter().map(|i| column.get(*i as usize).copied().unwrap_or(0)).collect();
        Ok(Arc::new(FixedSizeBinaryArray::try_new(8, Buffer::from_vec(words), None)?))
    };
    let phases: Vec<i32> = items.phase.iter().map(|p| if *p < MAX_PHASES { *p } else { NONE }).collect();
    let phase_keys: Vec<u16> = order.iter().map(|i| phases[*i as usize].max(0) as u16).collect();
    let phase_texts = &items.phases.texts[..items.phases.texts.len().min(MAX_PHASES as usize)];
    let phase_keys = UInt16Array::new(phase_keys.into(), nulls(&phases, order));
    let traces = FixedSizeBinaryArray::try_new(16, Buffer::from_vec(items.traces.concat()), None)?;

    let mut columns: Vec<(&str, ArrayRef)> = vec![
        ("start", ms(&items.start)),
        ("end", ms(&items.end)),
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
        ("trace", dictionary::<Int32Type>(keys(&items.trace, order), Arc::new(traces))?),
        ("span_id", ids(&items.span)?),
    ];
    if options.live {
        columns.push(("parent_span_id", ids(parent_ids)?));
    }
    if options.source {
        let given = order.iter().map(|i| if (*i as usize) < items.given { *i as i32 } else { NONE });
        columns.push(("source", Arc::new(Int32Array::from_iter_values(given))));
    }
    let fields: Vec<Field> =
        columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
    let metadata = [
        ("base_ns".to_string(), items.base_ns.to_string()),
        ("extent_ms".to_string(), (items.extent as f64 / 1e6).to_string()),
    ];
    let schema = Arc::new(Schema::new(fields).with_metadata(metadata.into()));
    RecordBatch::try_new(schema, columns.into_iter().map(|(_, array)| array).collect())
}

fn nulls(codes: &[i32], order: &[u32]) -> Option<NullBuffer> {
    codes.contains(&NONE).then(|| order.iter().map(|i| codes[*i as usize] != NONE).collect())
}

fn keys(codes: &[i32], order: &[u32]) -> Int32Array {
    let values: Vec<i32> = order.iter().map(|i| codes[*i as usize].max(0)).collect();
    Int32Array::new(values.into(), nulls(codes, order))
}

fn texts(codes: &[i32], texts: &Texts, order: &[u32]) -> Result<ArrayRef, ArrowError> {
    dictionary::<Int32Type>(keys(codes, order), Arc::new(StringArray::from_iter_values(&texts.texts)))
}

fn dictionary<K: ArrowDictionaryKeyType>(keys: PrimitiveArray<K>, values: ArrayRef) -> Result<ArrayRef, ArrowError> {
    debug_assert!(matches!(values.data_type(), DataType::Utf8 | DataType::FixedSizeBinary(16)));
    Ok(Arc::new(DictionaryArray::<K>::try_new(keys, values)?))
}
