//! Columns of an answer, as plain values: SQL decides their types, whoever reads a few rows wants numbers or texts.

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use arrow::error::ArrowError;

fn cast_column(batch: &RecordBatch, name: &str, to: &DataType) -> Result<ArrayRef, ArrowError> {
    let column = batch.column_by_name(name);
    cast(column.ok_or_else(|| ArrowError::SchemaError(format!("there is no column `{name}`")))?, to)
}

pub fn text_column(batch: &RecordBatch, name: &str) -> Result<Vec<Option<String>>, ArrowError> {
    let column = cast_column(batch, name, &DataType::Utf8)?;
    Ok(column.as_string::<i32>().iter().map(|value| value.map(str::to_string)).collect())
}

pub fn int_column(batch: &RecordBatch, name: &str) -> Result<Vec<Option<i64>>, ArrowError> {
    let column = cast_column(batch, name, &DataType::Int64)?;
    Ok(column.as_primitive::<Int64Type>().iter().collect())
}

pub fn float_column(batch: &RecordBatch, name: &str) -> Result<Vec<Option<f64>>, ArrowError> {
    let column = cast_column(batch, name, &DataType::Float64)?;
    Ok(column.as_primitive::<Float64Type>().iter().collect())
}
