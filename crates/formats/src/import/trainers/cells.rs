//! Cells of an Arrow table as records have them.

use arrow::array::cast::AsArray;
use arrow::array::{Array, ArrayRef, ArrowPrimitiveType};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};

use super::record::{Json, MAX_DEPTH};

/// A cell. What has no form in JSON becomes null.
pub fn cell(array: &ArrayRef, row: usize) -> Json {
    at(array, row, 0)
}

fn at(array: &ArrayRef, row: usize, depth: usize) -> Json {
    if depth > MAX_DEPTH || array.is_null(row) {
        return Json::Null;
    }
    match array.data_type() {
        DataType::Boolean => Json::Bool(array.as_boolean().value(row)),
        DataType::Utf8 => Json::text(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Json::text(array.as_string::<i64>().value(row)),
        DataType::Utf8View => Json::text(array.as_string_view().value(row)),
        DataType::List(_) => list(&array.as_list::<i32>().value(row), depth),
        DataType::LargeList(_) => list(&array.as_list::<i64>().value(row), depth),
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            let entries = fields.iter().zip(columns).map(|(f, c)| (f.name().clone(), at(c, row, depth + 1)));
            // Arrow gives every message every field that any of them has.
            Json::Map(entries.filter(|(_, value)| *value != Json::Null).collect())
        }
        ty if ty.is_integer() => primitive::<Int64Type>(array, row).map_or(Json::Null, Json::Int),
        ty if ty.is_floating() => primitive::<Float64Type>(array, row).map_or(Json::Null, Json::Double),
        DataType::Dictionary(_, values) => match cast(&array.slice(row, 1), values) {
            Ok(plain) => at(&plain, 0, depth + 1),
            Err(_) => Json::Null,
        },
        _ => match cast(&array.slice(row, 1), &DataType::Utf8) {
            Ok(text) => at(&text, 0, depth + 1),
            Err(_) => Json::Null,
        },
    }
}

fn list(items: &ArrayRef, depth: usize) -> Json {
    Json::List((0..items.len()).map(|i| at(items, i, depth + 1)).collect())
}

fn primitive<T: ArrowPrimitiveType>(array: &ArrayRef, row: usize) -> Option<T::Native> {
    let one = cast(&array.slice(row, 1), &T::DATA_TYPE).ok()?;
    let one = one.as_primitive::<T>();
    one.is_valid(0).then(|| one.value(0))
}
