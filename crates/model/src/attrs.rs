//! Attribute values as JSON text. A column of attributes is `Map<Utf8, Utf8>`: key, and the value as JSON that keeps its
//! type, so that what OTLP sent can be sent on unchanged:
//!
//! | value | text |
//! |---|---|
//! | text | `"stop"` |
//! | integer | `512` |
//! | double | `0.5`, `1.0`, `1e300` (always a point or an exponent) |
//! | NaN, infinities | `{"$double":"NaN"}`, `{"$double":"inf"}`, `{"$double":"-inf"}` |
//! | boolean, nothing | `true`, `null` |
//! | bytes | `{"$bytes":"<base64>"}` |
//! | list, map | JSON array, JSON object; a map's key that starts with `$` gets a second `$` |
//!
//! Every text is valid JSON. Why this and not a union or a struct: `docs/adr/0001-attributes.md`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Write as _;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// A value to write to a column or read from it.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Str(String),
    Bool(bool),
    Int(i64),
    Double(f64),
    Bytes(Vec<u8>),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
}

impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Value::Str(v.to_string())
    }
}
impl From<String> for Value {
    fn from(v: String) -> Self {
        Value::Str(v)
    }
}
impl From<i64> for Value {
    fn from(v: i64) -> Self {
        Value::Int(v)
    }
}
impl From<f64> for Value {
    fn from(v: f64) -> Self {
        Value::Double(v)
    }
}
impl From<bool> for Value {
    fn from(v: bool) -> Self {
        Value::Bool(v)
    }
}

/// Deepest nesting of lists and maps that is written or read.
pub const MAX_DEPTH: usize = 32;

pub fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Str(s) => write_str(out, s),
        Value::Bool(b) => write_bool(out, *b),
        Value::Int(i) => write_int(out, *i),
        Value::Double(d) => write_double(out, *d),
        Value::Bytes(b) => write_bytes(out, b),
        Value::List(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write_value(out, item);
            }
            out.push(b']');
        }
        Value::Map(entries) => {
            out.push(b'{');
            for (i, (key, item)) in entries.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write_key(out, key);
                write_value(out, item);
            }
            out.push(b'}');
        }
    }
}

pub fn to_text(value: &Value) -> String {
    let mut out = Vec::new();
    write_value(&mut out, value);
    String::from_utf8(out).expect("only UTF-8 is written")
}

/// `"key":`, with the escape that keeps `$bytes` and `$double` ours.
pub fn write_key(out: &mut Vec<u8>, key: &str) {
    if key.starts_with('$') {
        write_str(out, &format!("${key}"));
    } else {
        write_str(out, key);
    }
    out.push(b':');
}

pub fn write_bool(out: &mut Vec<u8>, value: bool) {
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

pub fn write_int(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

pub fn write_double(out: &mut Vec<u8>, value: f64) {
    if value.is_finite() {
        out.extend_from_slice(ryu::Buffer::new().format_finite(value).as_bytes());
    } else {
        let name = if value.is_nan() {
            "NaN"
        } else if value > 0.0 {
            "inf"
        } else {
            "-inf"
        };
        let _ = write!(out, "{{\"$double\":\"{name}\"}}");
    }
}

pub fn write_bytes(out: &mut Vec<u8>, value: &[u8]) {
    out.extend_from_slice(b"{\"$bytes\":\"");
    out.extend_from_slice(base64(value).as_bytes());
    out.extend_from_slice(b"\"}");
}

/// A JSON string. Text that needs no escape, nearly all of it, is copied as it is.
pub fn write_str(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut clean = 0;
    for (i, &b) in bytes.iter().enumerate() {
        if b >= 0x20 && b != b'"' && b != b'\\' {
            continue;
        }
        out.extend_from_slice(&bytes[clean..i]);
        clean = i + 1;
        match b {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => out.extend_from_slice(&[b'\\', b'u', b'0', b'0', HEX[(b >> 4) as usize], HEX[(b & 15) as usize]]),
        }
    }
    out.extend_from_slice(&bytes[clean..]);
    out.push(b'"');
}

/// Reads what [`write_value`] wrote. Any other JSON is read as what it most plainly means; an integer beyond 64 bits
/// becomes text, so that no digit is lost.
pub fn parse(text: &str) -> Option<Value> {
    parse_at(serde_json::from_str::<&RawValue>(text).ok()?, 0)
}

/// Numbers are read from their text: serde_json is off by the last bit of some doubles.
fn parse_at(raw: &RawValue, depth: usize) -> Option<Value> {
    if depth > MAX_DEPTH {
        return None;
    }
    let text = raw.get();
    Some(match text.as_bytes().first()? {
        b'n' => Value::Null,
        b't' => Value::Bool(true),
        b'f' => Value::Bool(false),
        b'"' => Value::Str(serde_json::from_str(text).ok()?),
        b'[' => {
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            Value::List(items.into_iter().map(|item| parse_at(item, depth + 1)).collect::<Option<_>>()?)
        }
        b'{' => {
            let Entries(entries) = serde_json::from_str(text).ok()?;
            if let [(key, value)] = entries.as_slice() {
                let inner = || serde_json::from_str::<String>(value.get()).ok();
                match (key.as_str(), inner()) {
                    ("$double", Some(double)) => return double.parse().ok().map(Value::Double),
                    ("$bytes", Some(bytes)) => return unbase64(&bytes).map(Value::Bytes),
                    _ => {}
                }
            }
            let entry = |(key, value): (String, &RawValue)| {
                let key = if key.starts_with("$$") { key[1..].to_string() } else { key };
                Some((key, parse_at(value, depth + 1)?))
            };
            Value::Map(entries.into_iter().map(entry).collect::<Option<_>>()?)
        }
        _ if type_of(text) == Type::Double => Value::Double(text.parse().ok().filter(|d: &f64| d.is_finite())?),
        _ => text.parse().map_or_else(|_| Value::Str(text.to_string()), Value::Int),
    })
}

/// The entries of an object, in order. Of several with one key, the last counts.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<'de>, A::Error> {
                let mut entries: Vec<(String, &RawValue)> = Vec::new();
                let mut places: HashMap<String, usize> = HashMap::new();
                while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                    match places.entry(key) {
                        Entry::Occupied(place) => entries[*place.get()].1 = value,
                        Entry::Vacant(place) => {
                            entries.push((place.key().clone(), value));
                            place.insert(entries.len() - 1);
                        }
                    }
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Read)
    }
}

/// Text of a value for people and for text comparison: strings without quotes, everything else as JSON.
pub fn display(text: &str) -> std::borrow::Cow<'_, str> {
    use std::borrow::Cow;
    match text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
        Some(inner) if !inner.contains('\\') => Cow::Borrowed(inner),
        Some(_) => serde_json::from_str::<String>(text).map_or(Cow::Borrowed(text), Cow::Owned),
        None => Cow::Borrowed(text),
    }
}

/// The number in a text: an integer or double, not a boolean and not a string.
pub fn number(text: &str) -> Option<f64> {
    match text.as_bytes().first()? {
        b'0'..=b'9' | b'-' => text.parse().ok(),
        b'{' => match parse(text)? {
            Value::Double(d) => Some(d),
            _ => None,
        },
        _ => None,
    }
}

/// What a text contains, decided by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Type {
    Str = 1,
    Int = 2,
    Double = 4,
    Bool = 8,
    Other = 16,
}

pub fn type_of(text: &str) -> Type {
    let bytes = text.as_bytes();
    match bytes.first() {
        Some(b'"') => Type::Str,
        Some(b't' | b'f') => Type::Bool,
        Some(b'0'..=b'9' | b'-') if bytes.iter().any(|b| matches!(b, b'.' | b'e' | b'E')) => Type::Double,
        Some(b'0'..=b'9' | b'-') => Type::Int,
        Some(b'{') if text.starts_with("{\"$double\":") => Type::Double,
        _ => Type::Other,
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let n = u32::from(chunk[0]) << 16
            | u32::from(*chunk.get(1).unwrap_or(&0)) << 8
            | u32::from(*chunk.get(2).unwrap_or(&0));
        for i in 0..4 {
            if i <= chunk.len() {
                out.push(ALPHABET[(n >> (18 - 6 * i) & 63) as usize] as char);
            } else {
                out.push('=');
            }
        }
    }
    out
}

fn unbase64(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut buffer, mut bits) = (0u32, 0);
    for b in text.trim_end_matches('=').bytes() {
        let v = ALPHABET.iter().position(|a| *a == b)? as u32;
        buffer = buffer << 6 | v;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((buffer >> bits) as u8);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(value: Value) {
        let text = to_text(&value);
        serde_json::from_str::<serde_json::Value>(&text).expect("valid JSON");
        assert_eq!(parse(&text), Some(value), "{text}");
    }

    #[test]
    fn values_keep_their_types() {
        round(Value::Null);
        // Found by fuzzing: it came back as ...463e36.
        round(Value::Double(1.8446744073184466e36));
        round(Value::List(vec![Value::Map(vec![("in".into(), Value::Double(1.8446744073184466e36))])]));
        round("plain".into());
        round("quote \" slash \\ tab \t nul \0 é 你好".into());
        round(Value::Int(i64::MIN));
        round(Value::Double(1.0));
        round(Value::Double(-0.0));
        round(Value::Double(1e300));
        round(Value::Double(f64::NEG_INFINITY));
        round(Value::Bytes(vec![0, 255, 7, 9]));
        round(Value::Bytes(vec![]));
        round(Value::List(vec![Value::Int(1), Value::Double(1.0), Value::Bool(false)]));
        round(Value::Map(vec![("$bytes".into(), "mine".into()), ("b".into(), Value::List(vec![]))]));
        let nan = parse(&to_text(&Value::Double(f64::NAN)));
        assert!(matches!(nan, Some(Value::Double(d)) if d.is_nan()));
        let last = parse(r#"{"a": 1, "b": [2e0, 18446744073709551616], "a": 3}"#);
        let list = Value::List(vec![Value::Double(2.0), "18446744073709551616".into()]);
        assert_eq!(last, Some(Value::Map(vec![("a".into(), Value::Int(3)), ("b".into(), list)])));
        for wrong in ["", "[1,]", "{\"a\" 1}", "1e400", "[1e400]", "01", "nul"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert!(parse(&format!("{}1{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH))).is_some());
        assert_eq!(parse(&format!("{}1{}", "[".repeat(MAX_DEPTH + 1), "]".repeat(MAX_DEPTH + 1))), None);
    }

    #[test]
    fn types_are_told_from_the_text() {
        for (value, ty) in [
            (Value::Int(5), Type::Int),
            (Value::Double(5.0), Type::Double),
            (Value::Double(f64::NAN), Type::Double),
            ("5".into(), Type::Str),
            (Value::Bool(true), Type::Bool),
            (Value::Null, Type::Other),
        ] {
            assert_eq!(type_of(&to_text(&value)), ty);
        }
    }
}
