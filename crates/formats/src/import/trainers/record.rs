//! One record of a trainer's file as a tree. Lists of numbers or booleans, which hold a value per token, are kept packed.

use rollscope_model::attrs;

use crate::json::{Error, Reader};

/// Values in one record, without those in packed lists.
pub const MAX_VALUES: usize = 4_000_000;
/// Deepest nesting of a record: what metadata can be read at.
pub const MAX_DEPTH: usize = attrs::MAX_DEPTH;

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Json {
    #[default]
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Str(String),
    Bools(Vec<bool>),
    Ints(Vec<i64>),
    Doubles(Vec<f64>),
    List(Vec<Json>),
    Map(Vec<(String, Json)>),
}

/// Why a text is no record.
#[derive(Debug, thiserror::Error)]
pub enum BadRecord {
    #[error("{0}")]
    Json(#[from] Error),
    #[error("nested deeper than {MAX_DEPTH} (MAX_DEPTH)")]
    Depth,
    #[error("more than {MAX_VALUES} values (MAX_VALUES)")]
    Values,
}

impl Json {
    /// A whole JSON value, as Python writes it.
    pub fn parse(text: &[u8]) -> Result<Json, BadRecord> {
        let mut r = Reader::python(text);
        let value = value(&mut r, 0, &mut 0)?;
        r.end()?;
        Ok(value)
    }

    pub fn text(text: impl Into<String>) -> Json {
        Json::Str(text.into())
    }

    pub fn map<const N: usize>(entries: [(&str, Json); N]) -> Json {
        Json::Map(entries.map(|(key, value)| (key.to_string(), value)).into())
    }

    /// A field of an object, unless it is null. Of several with one name, the last counts.
    pub fn get(&self, name: &str) -> Option<&Json> {
        let Json::Map(entries) = self else { return None };
        let (_, value) = entries.iter().rev().find(|(key, _)| key == name)?;
        (*value != Json::Null).then_some(value)
    }

    /// Takes a field out of an object, with all that have its name.
    pub fn take(&mut self, name: &str) -> Option<Json> {
        let Json::Map(entries) = self else { return None };
        let mut found = Json::Null;
        entries.retain_mut(|(key, value)| {
            let is_it = key == name;
            if is_it {
                found = std::mem::take(value);
            }
            !is_it
        });
        (found != Json::Null).then_some(found)
    }

    /// The fields of an object.
    pub fn entries(&self) -> &[(String, Json)] {
        match self {
            Json::Map(entries) => entries,
            _ => &[],
        }
    }

    pub fn into_entries(self) -> Vec<(String, Json)> {
        match self {
            Json::Map(entries) => entries,
            _ => Vec::new(),
        }
    }

    /// The elements of a list that is not packed.
    pub fn items(&self) -> &[Json] {
        match self {
            Json::List(items) => items,
            _ => &[],
        }
    }

    /// How many elements a list of any kind has.
    pub fn count(&self) -> Option<usize> {
        match self {
            Json::Bools(items) => Some(items.len()),
            Json::Ints(items) => Some(items.len()),
            Json::Doubles(items) => Some(items.len()),
            Json::List(items) => Some(items.len()),
            _ => None,
        }
    }

    /// The elements of a list of numbers or booleans.
    pub fn numbers(&self) -> Option<Vec<f64>> {
        match self {
            Json::Bools(items) => Some(items.iter().map(|b| f64::from(u8::from(*b))).collect()),
            Json::Ints(items) => Some(items.iter().map(|n| *n as f64).collect()),
            Json::Doubles(items) => Some(items.clone()),
            Json::List(items) if items.is_empty() => Some(Vec::new()),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::Str(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Json::Int(n) => Some(*n as f64),
            Json::Double(n) => Some(*n),
            Json::Bool(b) => Some(f64::from(u8::from(*b))),
            _ => None,
        }
    }

    /// A whole number, also where it was written as a double.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Json::Int(n) => Some(*n),
            Json::Double(n) if n.fract() == 0.0 && n.abs() < 9e15 => Some(*n as i64),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Json::Bool(b) => Some(*b),
            _ => None,
        }
    }

    pub fn str_of(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    pub fn f64_of(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    pub fn i64_of(&self, name: &str) -> Option<i64> {
        self.get(name)?.as_i64()
    }

    /// An id as text: numbers and texts are.
    pub fn as_id(&self) -> Option<String> {
        match self {
            Json::Int(n) => Some(n.to_string()),
            Json::Str(text) if !text.is_empty() => Some(text.clone()),
            _ => None,
        }
    }

    /// Writes it as attributes are written (see [`attrs`]).
    pub fn write(&self, out: &mut Vec<u8>) {
        fn list<T: Copy>(out: &mut Vec<u8>, items: &[T], write: impl Fn(&mut Vec<u8>, T)) {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write(out, *item);
            }
            out.push(b']');
        }
        match self {
            Json::Null => out.extend_from_slice(b"null"),
            Json::Bool(b) => attrs::write_bool(out, *b),
            Json::Int(n) => attrs::write_int(out, *n),
            Json::Double(n) => attrs::write_double(out, *n),
            Json::Str(text) => attrs::write_str(out, text),
            Json::Bools(items) => list(out, items, attrs::write_bool),
            Json::Ints(items) => list(out, items, attrs::write_int),
            Json::Doubles(items) => list(out, items, attrs::write_double),
            Json::List(items) => {
                out.push(b'[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push(b',');
                    }
                    item.write(out);
                }
                out.push(b']');
            }
            Json::Map(entries) => write_map(out, entries.iter().map(|(key, value)| (key.as_str(), value))),
        }
    }

    pub fn to_text(&self) -> String {
        let mut out = Vec::new();
        self.write(&mut out);
        String::from_utf8(out).unwrap_or_default()
    }

    /// As messages are kept: plain JSON, in which there are no infinities.
    pub fn to_plain(&self) -> serde_json::Value {
        match self {
            Json::Null => serde_json::Value::Null,
            Json::Bool(b) => (*b).into(),
            Json::Int(n) => (*n).into(),
            Json::Double(n) => (*n).into(),
            Json::Str(text) => text.as_str().into(),
            Json::Bools(items) => items.clone().into(),
            Json::Ints(items) => items.clone().into(),
            Json::Doubles(items) => items.clone().into(),
            Json::List(items) => items.iter().map(Json::to_plain).collect(),
            Json::Map(entries) => entries.iter().map(|(key, value)| (key.clone(), value.to_plain())).collect(),
        }
    }
}

/// An object of these entries.
pub fn write_map<'a>(out: &mut Vec<u8>, entries: impl Iterator<Item = (&'a str, &'a Json)>) {
    out.push(b'{');
    for (i, (key, value)) in entries.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        attrs::write_key(out, key);
        value.write(out);
    }
    out.push(b'}');
}

fn value(r: &mut Reader, depth: usize, values: &mut usize) -> Result<Json, BadRecord> {
    if depth > MAX_DEPTH {
        return Err(BadRecord::Depth);
    }
    *values += 1;
    if *values > MAX_VALUES {
        return Err(BadRecord::Values);
    }
    Ok(match r.peek()? {
        b'n' => {
            r.null()?;
            Json::Null
        }
        b't' | b'f' => Json::Bool(r.bool()?),
        b'"' => Json::Str(r.string()?.into_owned()),
        b'[' => list(r, depth, values)?,
        b'{' => {
            r.begin(b'{')?;
            let (mut entries, mut first) = (Vec::new(), true);
            while let Some(key) = r.key(&mut first)? {
                let key = key.into_owned();
                entries.push((key, value(r, depth + 1, values)?));
            }
            Json::Map(entries)
        }
        _ => number(r)?,
    })
}

fn number(r: &mut Reader) -> Result<Json, Error> {
    let at = r.pos();
    let text = r.number()?;
    if let Ok(n) = text.parse() {
        return Ok(Json::Int(n));
    }
    match text.parse::<f64>() {
        // An integer beyond 64 bits keeps its digits as text.
        Ok(_) if !text.contains(['.', 'e', 'E', 'N', 'I']) => Ok(Json::Str(text.to_string())),
        Ok(n) => Ok(Json::Double(n)),
        Err(_) => Err(Error::Syntax { what: "not a number", at }),
    }
}

/// Packed as long as the elements allow it: whole numbers, then any numbers, then anything.
fn list(r: &mut Reader, depth: usize, values: &mut usize) -> Result<Json, BadRecord> {
    r.begin(b'[')?;
    let (mut list, mut first) = (Json::List(Vec::new()), true);
    while r.element(&mut first)? {
        let item = match r.peek()? {
            b'-' | b'0'..=b'9' | b'N' | b'I' => number(r)?,
            b't' | b'f' => Json::Bool(r.bool()?),
            _ => value(r, depth + 1, values)?,
        };
        list = match (list, item) {
            (Json::List(items), Json::Bool(b)) if items.is_empty() => Json::Bools(vec![b]),
            (Json::List(items), Json::Int(n)) if items.is_empty() => Json::Ints(vec![n]),
            (Json::List(items), Json::Double(n)) if items.is_empty() => Json::Doubles(vec![n]),
            (Json::Bools(mut items), Json::Bool(b)) => {
                items.push(b);
                Json::Bools(items)
            }
            (Json::Ints(mut items), Json::Int(n)) => {
                items.push(n);
                Json::Ints(items)
            }
            (Json::Ints(items), Json::Double(n)) => {
                let mut items: Vec<f64> = items.into_iter().map(|n| n as f64).collect();
                items.push(n);
                Json::Doubles(items)
            }
            (Json::Doubles(mut items), Json::Int(n)) => {
                items.push(n as f64);
                Json::Doubles(items)
            }
            (Json::Doubles(mut items), Json::Double(n)) => {
                items.push(n);
                Json::Doubles(items)
            }
            (Json::List(mut items), item) => {
                *values += 1;
                if *values > MAX_VALUES {
                    return Err(BadRecord::Values);
                }
                items.push(item);
                Json::List(items)
            }
            (packed, item) => {
                let mut items = unpack(packed, values)?;
                items.push(item);
                Json::List(items)
            }
        };
    }
    Ok(list)
}

fn unpack(packed: Json, values: &mut usize) -> Result<Vec<Json>, BadRecord> {
    *values += packed.count().unwrap_or(0);
    if *values > MAX_VALUES {
        return Err(BadRecord::Values);
    }
    Ok(match packed {
        Json::Bools(items) => items.into_iter().map(Json::Bool).collect(),
        Json::Ints(items) => items.into_iter().map(Json::Int).collect(),
        Json::Doubles(items) => items.into_iter().map(Json::Double).collect(),
        Json::List(items) => items,
        one => vec![one],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_python_writes_is_read() {
        let text = r#" {"a": [1, 2], "b": [1, 2.5, NaN], "c": [true, false], "d": [1, "x", null], "e": [-Infinity, Infinity],
            "f": "half \ud83d a pair", "g": {"$ref": 1}, "h": 123456789012345678901234567890, "i": [], "a": [3]}"#;
        let mut record = Json::parse(text.as_bytes()).unwrap();
        assert_eq!(record.get("a"), Some(&Json::Ints(vec![3])), "the last of two counts");
        assert!(matches!(record.get("b"), Some(Json::Doubles(n)) if n[..2] == [1.0, 2.5] && n[2].is_nan()));
        assert_eq!(record.get("c"), Some(&Json::Bools(vec![true, false])));
        assert_eq!(record.get("d").unwrap().to_text(), r#"[1,"x",null]"#);
        assert_eq!(record.get("e"), Some(&Json::Doubles(vec![f64::NEG_INFINITY, f64::INFINITY])));
        assert_eq!(record.str_of("f"), Some("half \u{fffd} a pair"));
        assert_eq!(record.get("g").unwrap().to_text(), r#"{"$$ref":1}"#);
        assert_eq!(record.get("g").unwrap().to_plain().to_string(), r#"{"$ref":1}"#);
        assert_eq!(record.str_of("h"), Some("123456789012345678901234567890"));
        assert_eq!(record.get("i").unwrap().numbers(), Some(vec![]));
        assert_eq!(record.take("a"), Some(Json::Ints(vec![3])));
        assert_eq!(record.get("a"), None);
        for wrong in ["{", "[1,]", "{\"a\":}", "[NaNs]", "--1", "1 2", "\"\u{1}", "Inf"] {
            assert!(Json::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_record_is_bounded() {
        let deep = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
        assert!(Json::parse(deep(MAX_DEPTH).as_bytes()).is_ok());
        assert!(matches!(Json::parse(deep(MAX_DEPTH + 2).as_bytes()), Err(BadRecord::Depth)));
        let many = |item: &str, n: usize| format!("[{}{item}]", format!("{item},").repeat(n));
        assert!(matches!(Json::parse(many("null", MAX_VALUES).as_bytes()), Err(BadRecord::Values)));
        let packed = Json::parse(many("true", MAX_VALUES).as_bytes()).unwrap();
        assert_eq!(packed.count(), Some(MAX_VALUES + 1));
        assert!(Json::parse(many("7", MAX_VALUES).as_bytes()).is_ok());
    }
}
