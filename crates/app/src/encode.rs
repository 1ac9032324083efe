//! Batches as JSON, CSV and Arrow IPC.
//!
//! JSON: integers of any size are numbers (a reader that wants every digit of a nanosecond must parse them as 64-bit);
//! NaN and infinities, which JSON has no numbers for, are the texts `"NaN"`, `"Infinity"` and `"-Infinity"`, as in OTLP's JSON;
//! null is only what is null; ids and other bytes are hex text; attribute columns are objects whose values keep the type
//! they came with; events and links are arrays of objects; times of SQL's own types are ISO text.
//! CSV: as in RFC 4180 but with the line ends of Unix; the same values, text without its quotes, nested values as JSON; null is an empty field, empty text is `""`.

pub mod row;

use std::io::Write as _;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch, StructArray};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Field, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Schema,
    SchemaRef, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::error::ArrowError;
use arrow::ipc::writer::StreamWriter;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use rollscope_model::attrs;

/// Writes the value of one row, as JSON.
type Cell<'a> = Box<dyn Fn(&mut Vec<u8>, usize) + 'a>;

macro_rules! integers {
    ($array:expr, $type:ty) => {{
        let array = $array.as_primitive::<$type>();
        Box::new(move |out: &mut Vec<u8>, row: usize| {
            let _ = write!(out, "{}", array.value(row));
        })
    }};
}

macro_rules! bytes {
    ($array:expr) => {{
        let array = $array;
        Box::new(move |out: &mut Vec<u8>, row: usize| {
            out.push(b'"');
            out.extend_from_slice(hex::encode(array.value(row)).as_bytes());
            out.push(b'"');
        })
    }};
}

macro_rules! texts {
    ($array:expr) => {{
        let array = $array;
        Box::new(move |out: &mut Vec<u8>, row: usize| attrs::write_str(out, array.value(row)))
    }};
}

fn float(out: &mut Vec<u8>, value: f64) {
    match value {
        v if v.is_finite() => attrs::write_double(out, v),
        v if v.is_nan() => out.extend_from_slice(b"\"NaN\""),
        v if v > 0.0 => out.extend_from_slice(b"\"Infinity\""),
        _ => out.extend_from_slice(b"\"-Infinity\""),
    }
}

/// A writer for the values of `array`. The type is checked once, not once per row.
fn cell(array: &dyn Array) -> Result<Cell<'_>, ArrowError> {
    let write: Cell<'_> = match array.data_type() {
        DataType::Null => return Ok(Box::new(|out, _| out.extend_from_slice(b"null"))),
        DataType::Boolean => {
            let array = array.as_boolean();
            Box::new(move |out, row| attrs::write_bool(out, array.value(row)))
        }
        DataType::Int8 => integers!(array, Int8Type),
        DataType::Int16 => integers!(array, Int16Type),
        DataType::Int32 => integers!(array, Int32Type),
        DataType::Int64 => {
            let array = array.as_primitive::<Int64Type>();
            Box::new(move |out, row| attrs::write_int(out, array.value(row)))
        }
        DataType::UInt8 => integers!(array, UInt8Type),
        DataType::UInt16 => integers!(array, UInt16Type),
        DataType::UInt32 => integers!(array, UInt32Type),
        DataType::UInt64 => integers!(array, UInt64Type),
        DataType::Float16 => {
            let array = array.as_primitive::<Float16Type>();
            Box::new(move |out, row| float(out, array.value(row).to_f64()))
        }
        DataType::Float32 => {
            let array = array.as_primitive::<Float32Type>();
            Box::new(move |out, row| match array.value(row) {
                v if v.is_finite() => {
                    let _ = write!(out, "{v:?}");
                }
                v => float(out, v.into()),
            })
        }
        DataType::Float64 => {
            let array = array.as_primitive::<Float64Type>();
            Box::new(move |out, row| float(out, array.value(row)))
        }
        DataType::Utf8 => texts!(array.as_string::<i32>()),
        DataType::LargeUtf8 => texts!(array.as_string::<i64>()),
        DataType::Utf8View => texts!(array.as_string_view()),
        DataType::Binary => bytes!(array.as_binary::<i32>()),
        DataType::LargeBinary => bytes!(array.as_binary::<i64>()),
        DataType::BinaryView => bytes!(array.as_binary_view()),
        DataType::FixedSizeBinary(_) => bytes!(array.as_fixed_size_binary()),
        DataType::Dictionary(_, _) => {
            let dictionary = array.as_any_dictionary();
            // Nothing but nulls: there are no values to point at.
            if dictionary.values().is_empty() {
                return Ok(Box::new(|out, _| out.extend_from_slice(b"null")));
            }
            let value = cell(dictionary.values().as_ref())?;
            let keys = dictionary.normalized_keys();
            Box::new(move |out, row| value(out, keys[row]))
        }
        DataType::List(_) => {
            let array = array.as_list::<i32>();
            let item = cell(array.values().as_ref())?;
            let offsets = array.offsets();
            Box::new(move |out, row| items(out, offsets[row] as usize..offsets[row + 1] as usize, &item))
        }
        DataType::LargeList(_) => {
            let array = array.as_list::<i64>();
            let item = cell(array.values().as_ref())?;
            let offsets = array.offsets();
            Box::new(move |out, row| items(out, offsets[row] as usize..offsets[row + 1] as usize, &item))
        }
        DataType::FixedSizeList(_, size) => {
            let array = array.as_fixed_size_list();
            let item = cell(array.values().as_ref())?;
            let size = *size as usize;
            Box::new(move |out, row| items(out, row * size..(row + 1) * size, &item))
        }
        DataType::Struct(_) => object(array.as_struct())?,
        DataType::Map(_, _) => {
            let array = array.as_map();
            let keys = cast(array.keys(), &DataType::Utf8)?;
            let value = map_value(array.values().as_ref())?;
            let offsets = array.offsets();
            Box::new(move |out, row| {
                let keys = keys.as_string::<i32>();
                out.push(b'{');
                for (n, entry) in (offsets[row] as usize..offsets[row + 1] as usize).enumerate() {
                    if n > 0 {
                        out.push(b',');
                    }
                    attrs::write_str(out, keys.value(entry));
                    out.push(b':');
                    value(out, entry);
                }
                out.push(b'}');
            })
        }
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..) => {
            let text = ArrayFormatter::try_new(array, &FormatOptions::default())?;
            Box::new(move |out, row| {
                let _ = write!(out, "{}", text.value(row));
            })
        }
        _ => {
            let text = ArrayFormatter::try_new(array, &FormatOptions::default())?;
            Box::new(move |out, row| attrs::write_str(out, &text.value(row).to_string()))
        }
    };
    Ok(match array.logical_nulls() {
        Some(nulls) if nulls.null_count() > 0 => {
            Box::new(move |out, row| if nulls.is_null(row) { out.extend_from_slice(b"null") } else { write(out, row) })
        }
        _ => write,
    })
}

fn items(out: &mut Vec<u8>, range: std::ops::Range<usize>, item: &Cell) {
    out.push(b'[');
    for (n, i) in range.enumerate() {
        if n > 0 {
            out.push(b',');
        }
        item(out, i);
    }
    out.push(b']');
}

fn object(array: &StructArray) -> Result<Cell<'_>, ArrowError> {
    let mut fields = Vec::with_capacity(array.num_columns());
    for (field, column) in array.fields().iter().zip(array.columns()) {
        let mut key = Vec::new();
        attrs::write_str(&mut key, field.name());
        key.push(b':');
        fields.push((key, cell(column.as_ref())?));
    }
    Ok(Box::new(move |out, row| {
        out.push(b'{');
        for (n, (key, value)) in fields.iter().enumerate() {
            if n > 0 {
                out.push(b',');
            }
            out.extend_from_slice(key);
            value(out, row);
        }
        out.push(b'}');
    }))
}

/// Values of attributes are JSON text already (see `rollscope_model::attrs`) and are passed on as they are. Text that is not
/// JSON, from a map that a query made itself, is text.
fn map_value(values: &dyn Array) -> Result<Cell<'_>, ArrowError> {
    if values.data_type() != &DataType::Utf8 {
        return cell(values);
    }
    let values = values.as_string::<i32>();
    Ok(Box::new(move |out, i| match values.value(i) {
        _ if values.is_null(i) => out.extend_from_slice(b"null"),
        text if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => out.extend_from_slice(text.as_bytes()),
        text => attrs::write_str(out, text),
    }))
}

/// Rows as JSON arrays, each after a comma but for the first of all.
pub fn json_rows(out: &mut Vec<u8>, batch: &RecordBatch, first: &mut bool) -> Result<(), ArrowError> {
    let cells = batch.columns().iter().map(|c| cell(c.as_ref())).collect::<Result<Vec<_>, _>>()?;
    for row in 0..batch.num_rows() {
        if !std::mem::take(first) {
            out.push(b',');
        }
        out.push(b'\n');
        out.push(b'[');
        for (n, cell) in cells.iter().enumerate() {
            if n > 0 {
                out.push(b',');
            }
            cell(out, row);
        }
        out.push(b']');
    }
    Ok(())
}

/// One row as a JSON object by column name.
pub fn json_object(batch: &RecordBatch, row: usize) -> Result<Vec<u8>, ArrowError> {
    let rows = StructArray::from(batch.clone());
    let mut out = Vec::new();
    object(&rows)?(&mut out, row);
    Ok(out)
}

/// Every row as a JSON object by column name.
pub fn json_objects(batch: &RecordBatch) -> Result<Vec<Vec<u8>>, ArrowError> {
    let rows = StructArray::from(batch.clone());
    let write = object(&rows)?;
    let one = |row| {
        let mut out = Vec::new();
        write(&mut out, row);
        out
    };
    Ok((0..batch.num_rows()).map(one).collect())
}

/// `[{"name":...,"type":...}]`, types in Arrow's words.
pub fn json_columns(schema: &Schema) -> Vec<u8> {
    let columns: Vec<_> = schema
        .fields()
        .iter()
        .map(|f| serde_json::json!({ "name": f.name(), "type": type_name(f.data_type()) }))
        .collect();
    serde_json::Value::Array(columns).to_string().into_bytes()
}

/// Short where people meet it often: a dictionary is how text is kept, not what it is.
pub fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Dictionary(_, value) => type_name(value),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "Utf8".into(),
        DataType::List(item) | DataType::LargeList(item) => format!("List<{}>", type_name(item.data_type())),
        DataType::Struct(fields) => {
            let fields: Vec<_> = fields.iter().map(|f| format!("{}: {}", f.name(), type_name(f.data_type()))).collect();
            format!("Struct<{}>", fields.join(", "))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(f) if f.len() == 2 => {
                format!("Map<{}, {}>", type_name(f[0].data_type()), type_name(f[1].data_type()))
            }
            other => other.to_string(),
        },
        other => other.to_string(),
    }
}

pub fn csv_header(out: &mut Vec<u8>, schema: &Schema) {
    for (n, field) in schema.fields().iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        csv_field(out, field.name());
    }
    out.push(b'\n');
}

pub fn csv_rows(out: &mut Vec<u8>, batch: &RecordBatch) -> Result<(), ArrowError> {
    let cells = batch.columns().iter().map(|c| cell(c.as_ref())).collect::<Result<Vec<_>, _>>()?;
    let mut json = Vec::new();
    for row in 0..batch.num_rows() {
        for (n, cell) in cells.iter().enumerate() {
            if n > 0 {
                out.push(b',');
            }
            json.clear();
            cell(&mut json, row);
            match std::str::from_utf8(&json) {
                Ok("null") | Err(_) => {}
                Ok(json) => csv_field(out, &attrs::display(json)),
            }
        }
        out.push(b'\n');
    }
    Ok(())
}

fn csv_field(out: &mut Vec<u8>, text: &str) {
    if !text.is_empty() && !text.contains(['"', ',', '\n', '\r']) {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    out.push(b'"');
    out.extend_from_slice(text.replace('"', "\"\"").as_bytes());
    out.push(b'"');
}

/// Arrow IPC stream, drained as it grows. Views become plain text and bytes, which every reader of Arrow knows.
pub struct ArrowStream {
    schema: SchemaRef,
    writer: StreamWriter<Vec<u8>>,
}

impl ArrowStream {
    pub fn new(schema: &Schema) -> Result<Self, ArrowError> {
        let fields: Vec<Field> =
            schema.fields().iter().map(|f| f.as_ref().clone().with_data_type(plain(f.data_type()))).collect();
        let schema = Arc::new(Schema::new(fields));
        let writer = StreamWriter::try_new(Vec::new(), &schema)?;
        Ok(ArrowStream { schema, writer })
    }

    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let columns = batch
            .columns()
            .iter()
            .zip(self.schema.fields())
            .map(|(column, field)| match column.data_type() == field.data_type() {
                true => Ok(column.clone()),
                false => cast(column, field.data_type()),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        self.writer.write(&RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }

    pub fn finish(&mut self) -> Result<(), ArrowError> {
        self.writer.finish()
    }

    /// What was written since the last call.
    pub fn drain(&mut self) -> Vec<u8> {
        std::mem::take(self.writer.get_mut())
    }
}

fn plain(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests;

/// Rows as texts for people, cell by cell.
pub fn texts(batch: &RecordBatch) -> Result<Vec<Vec<String>>, ArrowError> {
    let cells = batch.columns().iter().map(|c| cell(c.as_ref())).collect::<Result<Vec<_>, _>>()?;
    let text = |cell: &Cell, row: usize| {
        let mut json = Vec::new();
        cell(&mut json, row);
        attrs::display(&String::from_utf8_lossy(&json)).into_owned()
    };
    Ok((0..batch.num_rows()).map(|row| cells.iter().map(|c| text(c, row)).collect()).collect())
}
