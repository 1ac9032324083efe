//! Finds the value of one key, row by row, in every form that attributes have: `Map` columns, JSON objects as text, and
//! dictionaries of such texts (searched once per distinct value). Nothing is copied: the result is a slice of the JSON
//! text of the value.

use std::borrow::Cow;
use std::fmt;

use arrow::array::cast::AsArray;
use arrow::array::{Array, ArrayRef, Int32Array, MapArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int32Type};
use datafusion::common::{Result, exec_err, plan_err};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Refuses what attributes cannot be read from.
pub fn check_source(function: &str, ty: &DataType) -> Result<()> {
    match ty {
        DataType::Null | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Ok(()),
        DataType::Map(entries, _) if matches!(entries.data_type(), DataType::Struct(f) if f.len() == 2 && f.iter().all(|f| f.data_type() == &DataType::Utf8)) => {
            Ok(())
        }
        DataType::Dictionary(_, value)
            if matches!(**value, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) =>
        {
            Ok(())
        }
        other => plan_err!(
            "{function} expects an attribute column (start_attrs, end_attrs, attrs) or JSON text (resource, metadata, ...), \
             not {other}"
        ),
    }
}

/// Brings an argument into one of the forms that [`Source`] reads.
pub fn normalise(array: &ArrayRef) -> Result<ArrayRef> {
    let dict = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    Ok(match array.data_type() {
        DataType::Utf8 | DataType::Map(_, _) => array.clone(),
        ty if *ty == dict => array.clone(),
        DataType::Dictionary(_, _) => cast(array, &dict)?,
        _ => cast(array, &DataType::Utf8)?,
    })
}

/// One column of attributes, ready for one key.
pub enum Source<'a> {
    Map { map: &'a MapArray, keys: &'a StringArray, values: &'a StringArray, key: &'a [u8] },
    Text { texts: &'a StringArray, key: &'a str },
    Dictionary { keys: &'a Int32Array, found: Vec<Option<&'a str>> },
}

impl<'a> Source<'a> {
    pub fn new(array: &'a ArrayRef, key: &'a str) -> Result<Self> {
        Ok(match array.data_type() {
            DataType::Map(_, _) => {
                let map = array.as_map();
                let (Some(keys), Some(values)) = (map.keys().as_string_opt(), map.values().as_string_opt()) else {
                    return exec_err!("attributes must be a map of text to text");
                };
                Source::Map { map, keys, values, key: key.as_bytes() }
            }
            DataType::Utf8 => Source::Text { texts: array.as_string(), key },
            DataType::Dictionary(_, _) => {
                let dict = array.as_dictionary::<Int32Type>();
                let texts: &StringArray = dict.values().as_string();
                let found = texts.iter().map(|text| find_in_json(text?, key)).collect();
                Source::Dictionary { keys: dict.keys(), found }
            }
            other => return exec_err!("cannot read attributes from {other}"),
        })
    }

    /// The JSON text of the value in this row.
    #[inline]
    pub fn get(&self, row: usize) -> Option<&'a str> {
        match self {
            Source::Map { map, keys, values, key } => {
                if map.is_null(row) {
                    return None;
                }
                let ends = map.value_offsets();
                let (bytes, offsets) = (keys.value_data(), keys.value_offsets());
                (ends[row] as usize..ends[row + 1] as usize)
                    .find(|at| bytes[offsets[*at] as usize..offsets[at + 1] as usize] == **key)
                    .map(|at| values.value(at))
            }
            Source::Text { texts, key } => {
                if texts.is_null(row) {
                    return None;
                }
                find_in_json(texts.value(row), key)
            }
            Source::Dictionary { keys, found } => {
                if keys.is_null(row) {
                    return None;
                }
                found.get(keys.value(row) as usize).copied().flatten()
            }
        }
    }
}

/// The value of a key of a JSON object, as text. `None` if there is no such key or the text is not a JSON object.
pub fn find_in_json<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut parser = serde_json::Deserializer::from_str(text);
    parser.deserialize_map(Find { key }).ok().flatten()
}

struct Find<'k> {
    key: &'k str,
}

impl<'de> Visitor<'de> for Find<'_> {
    type Value = Option<&'de str>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<Key>()? {
            if found.is_none() && key.0 == self.key {
                found = Some(map.next_value::<&RawValue>()?.get());
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// A key, borrowed unless it has escapes.
#[derive(serde::Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// The keys of a JSON object, in order; none if the text is not a JSON object.
pub fn json_keys(text: &str) -> Vec<String> {
    struct Keys;
    impl<'de> Visitor<'de> for Keys {
        type Value = Vec<String>;
        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("a JSON object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut keys = Vec::new();
            while let Some((key, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                keys.push(key);
            }
            Ok(keys)
        }
    }
    serde_json::Deserializer::from_str(text).deserialize_map(Keys).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_whatever_surrounds_it() {
        let text = r#"{"a":1,"b\n":"x","nested":{"a":2},"list":[1,{"a":3}],"e":1.5}"#;
        assert_eq!(find_in_json(text, "a"), Some("1"));
        assert_eq!(find_in_json(text, "b\n"), Some("\"x\""));
        assert_eq!(find_in_json(text, "nested"), Some("{\"a\":2}"));
        assert_eq!(find_in_json(text, "e"), Some("1.5"));
        assert_eq!(find_in_json(text, "missing"), None);
        for bad in ["", "[]", "null", "{", "{\"a\":", "{\"a\":1", &"{\"a\":".repeat(10_000)] {
            assert_eq!(find_in_json(bad, "a"), None, "{}", &bad[..bad.len().min(20)]);
        }
        assert_eq!(json_keys(text), ["a", "b\n", "nested", "list", "e"]);
        assert!(json_keys("[1]").is_empty());
    }
}
