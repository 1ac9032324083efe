//! The one place where the parameters of a request are read and checked. An error names the parameter and what is expected.

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use percent_encoding::percent_decode_str;
use rollscope_model::ids::{SpanId, TraceId};

use crate::problem::Problem;

/// Longest value of any parameter.
const MAX_VALUE: usize = 4096;

/// `a=b&c=d`, decoded.
pub fn pairs(query: &str) -> impl Iterator<Item = (String, String)> + '_ {
    query.split('&').filter(|p| !p.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(key), decode(value))
    })
}

fn decode(text: &str) -> String {
    let spaced: Cow<str> = if text.contains('+') { text.replace('+', " ").into() } else { text.into() };
    percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

/// The query string. A handler takes the parameters that it knows and calls [`Params::done`], which reports misspelt names.
pub struct Params {
    pairs: Vec<(String, String)>,
    known: Vec<&'static str>,
}

impl<S: Sync> FromRequestParts<S> for Params {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Params::from_pairs(pairs(parts.uri.query().unwrap_or("")).collect())
    }
}

impl Params {
    pub fn from_pairs(pairs: Vec<(String, String)>) -> Result<Self, Problem> {
        for (n, (key, value)) in pairs.iter().enumerate() {
            if value.len() > MAX_VALUE {
                return Err(Problem::parameter(key, format!("at most {MAX_VALUE} bytes long")));
            }
            if pairs[..n].iter().any(|(other, _)| other == key) {
                return Err(Problem::parameter(key, "given only once"));
            }
        }
        Ok(Params { pairs, known: Vec::new() })
    }

    /// Removes a parameter, so that the code that reads the rest need not know it.
    pub fn take(&mut self, name: &str) -> Option<String> {
        let at = self.pairs.iter().position(|(key, _)| key == name)?;
        Some(self.pairs.remove(at).1)
    }

    pub fn text(&mut self, name: &'static str) -> Option<&str> {
        self.known.push(name);
        self.pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A number, from its text. `good` states what is accepted.
    pub fn number<T: FromStr>(&mut self, name: &'static str, good: impl Display) -> Result<Option<T>, Problem> {
        match self.text(name) {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| Problem::parameter(name, good)),
        }
    }

    pub fn done(self) -> Result<(), Problem> {
        match self.pairs.iter().find(|(key, _)| !self.known.contains(&key.as_str())) {
            None => Ok(()),
            Some((key, _)) => Err(Problem::unknown_parameter(key, &self.known)),
        }
    }
}

/// A trace id in a path: 32 hex digits, or fewer, as systems with shorter ids write them.
pub fn trace_id(text: &str) -> Result<TraceId, Problem> {
    match hex::decode(text) {
        Ok(raw) if (1..=16).contains(&raw.len()) => Ok(rollscope_model::ids::trace_id_from_bytes(&raw)),
        _ => Err(Problem::parameter("trace", "a trace id of up to 32 hex digits")),
    }
}

/// A span id in a path: 16 hex digits.
pub fn span_id(text: &str) -> Result<SpanId, Problem> {
    match hex::decode(text) {
        Ok(raw) if (1..=8).contains(&raw.len()) => Ok(rollscope_model::ids::span_id_from_bytes(&raw)),
        _ => Err(Problem::parameter("span", "a span id of up to 16 hex digits")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn params(query: &str) -> Result<Params, Problem> {
        let (mut parts, ()) = axum::http::Request::get(format!("/x?{query}")).body(()).unwrap().into_parts();
        Params::from_request_parts(&mut parts, &()).await
    }

    #[tokio::test]
    async fn names_and_values_are_decoded_and_judged() {
        let mut good = params("step=412&run=a%2Fb+c&empty").await.unwrap();
        assert_eq!(good.number::<i64>("step", "an integer").unwrap(), Some(412));
        assert_eq!(good.text("run"), Some("a/b c"));
        assert_eq!(good.text("empty"), Some(""));
        assert_eq!(good.text("missing"), None);
        good.done().unwrap();

        let problem = params("step=x").await.unwrap().number::<i64>("step", "an integer").unwrap_err();
        assert_eq!(problem.detail(), "parameter `step` must be an integer");
        let mut misspelt = params("stpe=1").await.unwrap();
        misspelt.text("step");
        assert_eq!(misspelt.done().unwrap_err().detail(), "unknown parameter `stpe`; expected one of: step");
        assert!(params("a=1&a=2").await.is_err());
        assert!(params(&format!("a={}", "x".repeat(MAX_VALUE + 1))).await.is_err());
    }

    #[test]
    fn ids_are_hex() {
        assert_eq!(trace_id("91543acd788654df").unwrap()[8..], [0x91, 0x54, 0x3a, 0xcd, 0x78, 0x86, 0x54, 0xdf]);
        for bad in ["", "xyz", "abc", &"0".repeat(34)] {
            assert!(trace_id(bad).is_err(), "{bad}");
        }
        assert!(span_id("0102030405060708").is_ok() && span_id("010203040506070809").is_err());
    }
}
