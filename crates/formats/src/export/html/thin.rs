//! The packed timeline with its numbers as differences: from the end of the bar before, from the row of the parent, from
//! the row before. They are small, and each byte of them has its own column (`start:0`, `start:1`, ...; columns of
//! nothing but zeros at the end are left out), so that gzip leaves a quarter. `ui/src/data/thin.ts` puts them back.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, UInt8Array};
use arrow::datatypes::{DataType, Field, Float64Type, Int32Type, Schema};
use arrow::error::ArrowError;

pub fn thin(packed: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let ms = |name: &str| packed.column_by_name(name).map(|c| &c.as_primitive::<Float64Type>().values()[..]);
    let rows = |name: &str| packed.column_by_name(name).map(|c| &c.as_primitive::<Int32Type>().values()[..]);
    let (Some(start), Some(end)) = (ms("start"), ms("end")) else { return Ok(packed.clone()) };
    let ns = |ms: f64| (ms * 1e6).round() as i64;
    let mut fields = Vec::new();
    let mut columns: Vec<ArrayRef> = Vec::new();
    for (field, column) in packed.schema_ref().fields().iter().zip(packed.columns()) {
        let name = field.name().as_str();
        let differences: Vec<i64> = match name {
            "start" => {
                let ends = std::iter::once(0).chain(end.iter().map(|ms| ns(*ms)));
                start.iter().zip(ends).map(|(ms, before)| ns(*ms).wrapping_sub(before)).collect()
            }
            "end" => start.iter().zip(end).map(|(start, end)| ns(*end).wrapping_sub(ns(*start))).collect(),
            // No row is its own parent: 0 is none.
            "parent" => {
                let parents = rows(name).into_iter().flatten().enumerate();
                parents.map(|(row, parent)| if *parent < 0 { 0 } else { row as i64 - i64::from(*parent) }).collect()
            }
            "source" => {
                let own = || rows(name).into_iter().flatten().map(|row| i64::from(*row));
                own().zip(std::iter::once(-1).chain(own())).map(|(row, before)| row - before).collect()
            }
            _ => {
                fields.push(field.as_ref().clone());
                columns.push(column.clone());
                continue;
            }
        };
        // Small numbers of either sign in the lowest bytes.
        let folded: Vec<u64> = differences.into_iter().map(|d| (d << 1 ^ d >> 63) as u64).collect();
        let used = folded.iter().fold(0, |all, n| all | n);
        let bytes = (8 - used.leading_zeros() / 8).max(1);
        for byte in 0..bytes {
            fields.push(Field::new(format!("{name}:{byte}"), DataType::UInt8, false));
            columns.push(Arc::new(UInt8Array::from_iter_values(folded.iter().map(|n| (n >> (8 * byte)) as u8))));
        }
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields).with_metadata(packed.schema().metadata().clone())), columns)
}
