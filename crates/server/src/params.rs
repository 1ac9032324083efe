//! Parameters of a request, from its query string and its path. They are judged by [`rollscope_app::params`].

use std::ops::{Deref, DerefMut};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use rollscope_app::params as app;
use rollscope_model::Table;
use rollscope_model::ids::{SpanId, TraceId};

use crate::problem::Problem;

/// `a=b&c=d`, decoded.
pub fn pairs(query: &str) -> impl Iterator<Item = (String, String)> + '_ {
    form_urlencoded::parse(query.as_bytes()).into_owned()
}

/// The query string.
pub struct Params(pub app::Params);

impl<S: Sync> FromRequestParts<S> for Params {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Ok(Params(app::Params::from_pairs(pairs(parts.uri.query().unwrap_or("")).collect())?))
    }
}

impl Deref for Params {
    type Target = app::Params;

    fn deref(&self) -> &app::Params {
        &self.0
    }
}

impl DerefMut for Params {
    fn deref_mut(&mut self) -> &mut app::Params {
        &mut self.0
    }
}

impl Params {
    /// The parameter `columns`, as a list for `select`. All by default.
    pub fn columns(&mut self, table: Table) -> Result<String, Problem> {
        let columns = self.text("columns").unwrap_or("*").to_string();
        let schema = rollscope_app::query::visible_schema(table);
        if columns != "*" && columns.split(',').any(|name| schema.column_with_name(name).is_none()) {
            let expected = format!("comma-separated names of columns of `{}`", table.name());
            return Err(Problem::parameter("columns", &expected));
        }
        Ok(columns)
    }

    pub fn done(self) -> Result<(), Problem> {
        Ok(self.0.done()?)
    }
}

/// A trace id in a path.
pub fn trace_id(text: &str) -> Result<TraceId, Problem> {
    Ok(app::trace_id(text)?)
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
    async fn names_and_values_are_decoded() {
        let mut good = params("step=412&run=a%2Fb+c&empty").await.unwrap();
        assert_eq!(good.number::<i64>("step", "an integer").unwrap(), Some(412));
        assert_eq!(good.text("run"), Some("a/b c"));
        assert_eq!(good.text("empty"), Some(""));
        assert_eq!(good.text("missing"), None);
        good.done().unwrap();
        assert!(params("a=1&a=2").await.is_err());
    }

    #[test]
    fn odd_encodings_are_taken_as_they_are() {
        let all = |query: &str| pairs(query).collect::<Vec<_>>();
        let pair = |key: &str, value: &str| (key.to_string(), value.to_string());
        assert_eq!(all("&&a=b=c&"), [pair("a", "b=c")]);
        assert_eq!(all("a=100%&b=%zz"), [pair("a", "100%"), pair("b", "%zz")]);
        assert_eq!(all("a=%FF"), [pair("a", "\u{fffd}")]);
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
