//! Attribute values between our JSON text (see [`rollscope_model::attrs`]) and OTLP's generated `AnyValue`. Repeated keys
//! of a map stay, which is why this does not go through a JSON tree.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue, KeyValueList};
use rollscope_model::attrs;

use crate::json::{Error, Reader};

/// The value that a stored text represents. A text that is not our JSON is taken as plain text, so that nothing is lost.
pub fn from_text(text: &str) -> AnyValue {
    let mut r = Reader::new(text.as_bytes());
    match read_any_value(&mut r, 0).and_then(|value| r.end().map(|()| value)) {
        Ok(value) => value,
        Err(_) => AnyValue { value: Some(Value::StringValue(text.to_string())) },
    }
}

/// The members of a stored object in order, including repeated keys. Anything but an object has none.
pub fn entries(json: &str) -> Vec<KeyValue> {
    match from_text(json).value {
        Some(Value::KvlistValue(list)) => list.values,
        _ => Vec::new(),
    }
}

pub fn pair(key: impl Into<String>, value: AnyValue) -> KeyValue {
    KeyValue { key: key.into(), value: Some(value), ..KeyValue::default() }
}

fn read_any_value(r: &mut Reader, depth: usize) -> Result<AnyValue, Error> {
    if depth > attrs::MAX_DEPTH + 1 {
        return Err(Error::Type { at: r.pos() });
    }
    let value = match r.peek()? {
        b'n' => {
            r.null()?;
            None
        }
        b't' | b'f' => Some(Value::BoolValue(r.bool()?)),
        b'"' => Some(Value::StringValue(r.string()?.into_owned())),
        b'[' => {
            r.begin(b'[')?;
            let (mut values, mut first) = (Vec::new(), true);
            while r.element(&mut first)? {
                values.push(read_any_value(r, depth + 1)?);
            }
            Some(Value::ArrayValue(ArrayValue { values }))
        }
        b'{' => Some(object(r, depth)?),
        _ => {
            let text = r.number()?;
            Some(match (text.parse(), text.parse()) {
                (Ok(int), _) => Value::IntValue(int),
                (_, Ok(double)) if text.contains(['.', 'e', 'E']) => Value::DoubleValue(double),
                _ => Value::StringValue(text.to_string()),
            })
        }
    };
    Ok(AnyValue { value })
}

fn object(r: &mut Reader, depth: usize) -> Result<Value, Error> {
    r.begin(b'{')?;
    let (mut values, mut first) = (Vec::new(), true);
    let mut marked = None;
    while let Some(key) = r.key(&mut first)? {
        let value = read_any_value(r, depth + 1)?;
        match (&*key, &value.value) {
            ("$double", Some(Value::StringValue(text))) => marked = text.parse().ok().map(Value::DoubleValue),
            ("$bytes", Some(Value::StringValue(text))) => {
                use base64::Engine as _;
                marked = base64::engine::general_purpose::STANDARD.decode(text).ok().map(Value::BytesValue);
            }
            _ => {}
        }
        let key = if key.starts_with("$$") { &key[1..] } else { &key };
        values.push(pair(key, value));
    }
    match marked {
        Some(value) if values.len() == 1 => Ok(value),
        _ => Ok(Value::KvlistValue(KeyValueList { values })),
    }
}

/// Appends the text of a value; false if it is nested deeper than `limit`.
pub fn write_text(out: &mut Vec<u8>, value: Option<&AnyValue>, limit: usize) -> bool {
    match value.and_then(|v| v.value.as_ref()) {
        None | Some(Value::StringValueStrindex(_)) => out.extend_from_slice(b"null"),
        Some(Value::StringValue(s)) => attrs::write_str(out, s),
        Some(Value::BoolValue(b)) => attrs::write_bool(out, *b),
        Some(Value::IntValue(i)) => attrs::write_int(out, *i),
        Some(Value::DoubleValue(d)) => attrs::write_double(out, *d),
        Some(Value::BytesValue(b)) => attrs::write_bytes(out, b),
        Some(Value::ArrayValue(_) | Value::KvlistValue(_)) if limit == 0 => return false,
        Some(Value::ArrayValue(list)) => {
            out.push(b'[');
            for (i, item) in list.values.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                if !write_text(out, Some(item), limit - 1) {
                    return false;
                }
            }
            out.push(b']');
        }
        Some(Value::KvlistValue(list)) => {
            out.push(b'{');
            for (i, item) in list.values.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                attrs::write_key(out, &item.key);
                if !write_text(out, item.value.as_ref(), limit - 1) {
                    return false;
                }
            }
            out.push(b'}');
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_goes_there_and_back() {
        for text in [
            "null",
            "true",
            "-5",
            "9223372036854775807",
            "1.0",
            "1e300",
            "-0.0",
            r#""a\n\"b""#,
            r#"{"$double":"NaN"}"#,
            r#"{"$double":"-inf"}"#,
            r#"{"$bytes":"AAEC/w=="}"#,
            r#"[1,[],{}]"#,
            r#"{"a":1,"a":2,"$$bytes":"x","b":{"$bytes":""}}"#,
        ] {
            let mut out = Vec::new();
            assert!(write_text(&mut out, Some(&from_text(text)), 32));
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }

    #[test]
    fn what_is_not_ours_is_text() {
        for text in ["", "nope", "[1,", "{\"a\":1} x", &"[".repeat(100_000)] {
            assert_eq!(from_text(text).value, Some(Value::StringValue(text.to_string())));
        }
        assert_eq!(from_text("18446744073709551616").value, Some(Value::StringValue("18446744073709551616".into())));
    }
}
