//! One row of a table as the page gets it, and the schema of that: as in [`super`], but nanoseconds are text, because they
//! exceed the numbers of JavaScript, and columns that hold a JSON object as text are that object.

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field};
use arrow::error::ArrowError;
use rollscope_model::{Table, tables};
use serde_json::{Map, Value};
use utoipa::openapi::schema::{AdditionalProperties, ArrayBuilder, SchemaType};
use utoipa::openapi::{Object, ObjectBuilder, Schema, Type};

fn is_time(name: &str) -> bool {
    name.ends_with("_ns")
}

/// `objects` are the columns that hold a JSON object as text.
pub fn row(batch: &RecordBatch, row: usize, objects: &[&str]) -> Result<Map<String, Value>, ArrowError> {
    let bytes = super::json_object(batch, row)?;
    let mut row: Map<String, Value> =
        serde_json::from_slice(&bytes).map_err(|e| ArrowError::JsonError(e.to_string()))?;
    for (name, value) in &mut row {
        if objects.contains(&name.as_str())
            && let Some(parsed) = value.as_str().and_then(|text| serde_json::from_str(text).ok())
        {
            *value = parsed;
        }
    }
    text_times(&mut row);
    Ok(row)
}

/// Also within the objects of lists, such as events.
fn text_times(object: &mut Map<String, Value>) {
    for (name, value) in object {
        match value {
            Value::Number(ns) if is_time(name) => *value = Value::String(ns.to_string()),
            Value::Array(items) => items.iter_mut().filter_map(Value::as_object_mut).for_each(text_times),
            _ => {}
        }
    }
}

/// What [`row`] makes of the rows of a table.
pub fn row_schema(table: Table, objects: &[&str]) -> Object {
    object_of(table.schema().fields().iter().map(AsRef::as_ref), objects)
}

fn object_of<'a>(fields: impl Iterator<Item = &'a Field>, objects: &[&str]) -> Object {
    let add = |object: ObjectBuilder, field: &Field| {
        let schema = column(field, objects.contains(&field.name().as_str()));
        object.property(field.name(), schema).required(field.name())
    };
    fields.fold(ObjectBuilder::new(), add).build()
}

fn column(field: &Field, is_object: bool) -> Schema {
    let doc = Some(tables::doc(field)).filter(|doc| !doc.is_empty());
    let typed = |types: &[Type]| {
        let mut types = types.to_vec();
        types.extend(field.is_nullable().then_some(Type::Null));
        let types = if let [one] = &types[..] { SchemaType::new(one.clone()) } else { SchemaType::from_iter(types) };
        ObjectBuilder::new().schema_type(types).description(doc)
    };
    // Attributes have values of any type.
    let free = || typed(&[Type::Object]).additional_properties(Some(AdditionalProperties::FreeForm(true)));
    let object = match field.data_type() {
        _ if is_object => free(),
        DataType::Map(..) => free(),
        DataType::List(item) => {
            let DataType::Struct(fields) = item.data_type() else { return typed(&[Type::Array]).into() };
            let item = object_of(fields.iter().map(AsRef::as_ref), &[]);
            return ArrayBuilder::new().items(item).description(doc).into();
        }
        DataType::Boolean => typed(&[Type::Boolean]),
        // NaN and infinities are text.
        data_type if data_type.is_floating() => typed(&[Type::Number, Type::String]),
        data_type if data_type.is_integer() && !is_time(field.name()) => typed(&[Type::Integer]),
        _ => typed(&[Type::String]),
    };
    object.into()
}
