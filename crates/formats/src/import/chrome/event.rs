//! One event.

use rollscope_model::attrs::{self, Value};

use crate::json::{Error, Reader};

/// A process, thread or event id: numbers mostly, text from some.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Id {
    Number(i64),
    Text(String),
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Id::Number(n) => n.fmt(f),
            Id::Text(text) => text.fmt(f),
        }
    }
}

#[derive(Default)]
pub(super) struct Event {
    pub(super) phase: u8,
    pub(super) name: String,
    pub(super) category: String,
    pub(super) ts_ns: Option<i64>,
    pub(super) dur_ns: Option<i64>,
    pub(super) pid: Option<Id>,
    pub(super) tid: Option<Id>,
    pub(super) id: Option<String>,
    pub(super) args: Vec<(String, Value)>,
}

impl Event {
    pub(super) fn parse(json: &[u8]) -> Result<Event, Error> {
        let mut event = Event::default();
        let mut r = Reader::new(json);
        r.begin(b'{')?;
        let mut first = true;
        while let Some(key) = r.key(&mut first)? {
            match &*key {
                "ph" => event.phase = r.string()?.bytes().next().unwrap_or(0),
                "name" => event.name = read_text(&mut r)?,
                "cat" => event.category = read_text(&mut r)?,
                "ts" => event.ts_ns = microseconds(&mut r)?,
                "dur" => event.dur_ns = microseconds(&mut r)?,
                "pid" => event.pid = Some(id(&mut r)?),
                "tid" => event.tid = Some(id(&mut r)?),
                "id" | "id2" => event.id = Some(read_text(&mut r)?),
                "args" if r.peek()? == b'{' => {
                    r.begin(b'{')?;
                    let mut first = true;
                    while let Some(key) = r.key(&mut first)? {
                        let value = value(&mut r, json)?;
                        event.args.push((key.into_owned(), value));
                    }
                }
                _ => r.skip()?,
            }
        }
        r.end()?;
        Ok(event)
    }

    pub(super) fn arg(&self, key: &str) -> Option<&Value> {
        self.args.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }
}

/// Text, or the text form of any other value.
fn read_text(r: &mut Reader) -> Result<String, Error> {
    match r.peek()? {
        b'"' => Ok(r.string()?.into_owned()),
        b'-' | b'0'..=b'9' => Ok(r.number()?.to_string()),
        _ => r.skip().map(|()| String::new()),
    }
}

fn id(r: &mut Reader) -> Result<Id, Error> {
    let text = read_text(r)?;
    Ok(text.parse().map_or_else(|_| Id::Text(text), Id::Number))
}

fn value(r: &mut Reader, json: &[u8]) -> Result<Value, Error> {
    Ok(match r.peek()? {
        b'"' => Value::Str(r.string()?.into_owned()),
        b't' | b'f' => Value::Bool(r.bool()?),
        b'n' => {
            r.null()?;
            Value::Null
        }
        b'{' | b'[' => {
            let from = r.pos();
            r.skip()?;
            let text = String::from_utf8_lossy(&json[from..r.pos()]);
            attrs::parse(&text).unwrap_or_else(|| Value::Str(text.into_owned()))
        }
        _ => {
            let text = r.number()?;
            match (text.parse(), text.parse()) {
                (Ok(int), _) => Value::Int(int),
                (_, Ok(double)) if text.contains(['.', 'e', 'E']) => Value::Double(double),
                _ => Value::Str(text.to_string()),
            }
        }
    })
}

/// Microseconds as nanoseconds, to the last digit: a double would lose them.
fn microseconds(r: &mut Reader) -> Result<Option<i64>, Error> {
    let text = match r.peek()? {
        b'"' => r.string()?.into_owned(),
        b'-' | b'0'..=b'9' => r.number()?.to_string(),
        _ => return r.skip().map(|()| None),
    };
    Ok(microseconds_text(&text))
}

fn microseconds_text(text: &str) -> Option<i64> {
    if text.contains(['e', 'E']) {
        let ns = (text.parse::<f64>().ok()? * 1000.0).round();
        return (ns.abs() < i64::MAX as f64).then_some(ns as i64);
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let negative = whole.starts_with('-');
    let whole: i64 = whole.parse::<i64>().ok()?.checked_mul(1000)?;
    let mut digits = fraction.bytes().map(|b| i64::from(b.wrapping_sub(b'0')));
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let mut ns = 0;
    for scale in [100, 10, 1] {
        ns += digits.next().unwrap_or(0) * scale;
    }
    ns += i64::from(digits.next().unwrap_or(0) >= 5);
    whole.checked_add(if negative { -ns } else { ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_are_exact() {
        for (text, ns) in [
            ("0", 0),
            ("1756000000001283.513", 1_756_000_000_001_283_513),
            ("12.5", 12_500),
            ("-0.005", -5),
            ("1.23456", 1_235),
            ("1e3", 1_000_000),
        ] {
            assert_eq!(microseconds_text(text), Some(ns), "{text}");
        }
        for bad in ["", "x", "1.x", "9223372036854775807"] {
            assert_eq!(microseconds_text(bad), None, "{bad}");
        }
    }
}
