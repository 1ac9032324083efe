//! `merge_attrs(a, b)`, what the virtual column `spans.attrs` is made of, and `attr_keys(col)`.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use arrow::array::cast::AsArray;
use arrow::array::{Array, ArrayRef, ListBuilder, MapArray, StringArray, StringBuilder, StructArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Int32Type};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use rollscope_model::tables::attrs_type;

use super::lookup::{check_source, json_keys, normalise};
use super::udf;

pub const MERGE: &str = "merge_attrs";
/// Of as many keys or fewer a set costs more than it saves.
const FEW: usize = 16;

pub fn merge_attrs() -> Arc<ScalarUDF> {
    static FUNCTION: LazyLock<Arc<ScalarUDF>> =
        LazyLock::new(|| udf(Merge { signature: Signature::any(2, Volatility::Immutable) }));
    FUNCTION.clone()
}

pub fn attr_keys() -> Arc<ScalarUDF> {
    udf(Keys { signature: Signature::any(1, Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Merge {
    signature: Signature,
}

impl ScalarUDFImpl for Merge {
    fn name(&self) -> &str {
        MERGE
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        if args.iter().any(|ty| *ty != attrs_type()) {
            return plan_err!("merge_attrs expects two attribute columns, as in merge_attrs(start_attrs, end_attrs)");
        }
        Ok(attrs_type())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let (a, b) = (args.args[0].to_array(rows)?, args.args[1].to_array(rows)?);
        Ok(ColumnarValue::Array(Arc::new(merge(a.as_map(), b.as_map())?)))
    }
}

/// The text of each map's entries: keys and values.
fn entries(map: &MapArray) -> Result<(&StringArray, &StringArray)> {
    match (map.keys().as_string_opt(), map.values().as_string_opt()) {
        (Some(keys), Some(values)) => Ok((keys, values)),
        _ => exec_err!("attributes must be maps of text to text"),
    }
}

/// All entries of `b`, after those of `a` that `b` does not have.
fn merge(a: &MapArray, b: &MapArray) -> Result<MapArray> {
    let ((a_keys, a_values), (b_keys, b_values)) = (entries(a)?, entries(b)?);
    let size = a_keys.len() + b_keys.len();
    let (mut keys, mut values) =
        (StringBuilder::with_capacity(size, size * 8), StringBuilder::with_capacity(size, size * 8));
    let mut lengths = Vec::with_capacity(a.len());
    let range = |map: &MapArray, row: usize| match map.is_null(row) {
        true => 0..0,
        false => map.value_offsets()[row] as usize..map.value_offsets()[row + 1] as usize,
    };
    for row in 0..a.len() {
        let mut length = 0;
        let of_b = range(b, row).map(|j| b_keys.value(j));
        let many: Option<HashSet<&str>> = (of_b.len() > FEW).then(|| of_b.clone().collect());
        for i in range(a, row) {
            let key = a_keys.value(i);
            let is_in_b = match &many {
                Some(keys) => keys.contains(key),
                None => of_b.clone().any(|other| other == key),
            };
            if !is_in_b {
                keys.append_value(key);
                values.append_value(a_values.value(i));
                length += 1;
            }
        }
        for j in range(b, row) {
            keys.append_value(b_keys.value(j));
            values.append_value(b_values.value(j));
            length += 1;
        }
        lengths.push(length);
    }
    let DataType::Map(field, sorted) = attrs_type() else { return exec_err!("attributes are a map") };
    let DataType::Struct(fields) = field.data_type() else { return exec_err!("attributes are a map") };
    let columns: Vec<ArrayRef> = vec![Arc::new(keys.finish()), Arc::new(values.finish())];
    let entries = StructArray::try_new(fields.clone(), columns, None)?;
    Ok(MapArray::try_new(field, OffsetBuffer::from_lengths(lengths), entries, None, sorted)?)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Keys {
    signature: Signature,
}

impl ScalarUDFImpl for Keys {
    fn name(&self) -> &str {
        "attr_keys"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        check_source(self.name(), &args[0])?;
        Ok(DataType::List(Arc::new(Field::new("item", DataType::Utf8, true))))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let scalar = matches!(args.args[0], ColumnarValue::Scalar(_));
        let array = normalise(&args.args[0].to_array(if scalar { 1 } else { args.number_rows })?)?;
        let mut out = ListBuilder::new(StringBuilder::new());
        match array.data_type() {
            DataType::Map(_, _) => {
                let map = array.as_map();
                let (keys, _) = entries(map)?;
                for row in 0..map.len() {
                    if !map.is_null(row) {
                        let ends = map.value_offsets();
                        (ends[row] as usize..ends[row + 1] as usize)
                            .for_each(|i| out.values().append_value(keys.value(i)));
                    }
                    out.append(!map.is_null(row));
                }
            }
            DataType::Dictionary(_, _) => {
                let dict = array.as_dictionary::<Int32Type>();
                let texts: &StringArray = dict.values().as_string();
                let lists: Vec<Vec<String>> = texts.iter().map(|t| t.map(json_keys).unwrap_or_default()).collect();
                for row in 0..dict.len() {
                    if let Some(list) = dict.key(row).and_then(|k| lists.get(k)) {
                        list.iter().for_each(|key| out.values().append_value(key));
                    }
                    out.append(!dict.is_null(row));
                }
            }
            _ => {
                for text in array.as_string::<i32>() {
                    text.map(json_keys).unwrap_or_default().iter().for_each(|key| out.values().append_value(key));
                    out.append(text.is_some());
                }
            }
        }
        let list: ArrayRef = Arc::new(out.finish());
        Ok(if scalar {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&list, 0)?)
        } else {
            ColumnarValue::Array(list)
        })
    }
}
