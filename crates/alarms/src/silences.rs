//! Alarms that nobody wants to hear of for a while.

use rollscope_query::promql::{Labels, Matcher, PromQuery, matches};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Silences at a time, how long one may last, and the characters of its texts.
pub const MAX_SILENCES: usize = 1000;
const MAX_NS: i64 = 366 * 86_400_000_000_000;
const MAX_CHARS: usize = 1000;

/// As it is kept and shown. Nanoseconds are text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Silence {
    pub id: String,
    /// Which alarms, such as `StepSlow{run="a"}` or `{severity!="page"}`.
    pub selector: String,
    #[schema(value_type = String)]
    #[serde(with = "ns_text")]
    pub starts_ns: i64,
    #[schema(value_type = String)]
    #[serde(with = "ns_text")]
    pub ends_ns: i64,
    pub comment: String,
    pub created_by: String,
}

mod ns_text {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(ns: &i64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&ns.to_string())
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<i64, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The matchers of a silence. A name before the braces is that of the alarm.
pub fn selector(text: &str) -> Result<Vec<Matcher>, String> {
    let mut matchers = PromQuery::selector(text).map_err(|e| e.message)?;
    for matcher in matchers.iter_mut().filter(|m| m.name == "__name__") {
        matcher.name = "alertname".into();
    }
    Ok(matchers)
}

impl Silence {
    pub fn check(&self) -> Result<(), String> {
        selector(&self.selector).map_err(|why| format!("selector: {why}"))?;
        if self.ends_ns <= self.starts_ns || self.ends_ns - self.starts_ns > MAX_NS {
            return Err("a silence must end after it starts, within a year".into());
        }
        match [&self.comment, &self.created_by].iter().any(|text| text.chars().count() > MAX_CHARS) {
            true => Err(format!("`comment` and `created_by` must have at most {MAX_CHARS} characters")),
            false => Ok(()),
        }
    }
}

/// The silences, ready to be asked.
#[derive(Clone, Debug, Default)]
pub struct Silences(Vec<(Silence, Vec<Matcher>)>);

impl Silences {
    /// Those that cannot be read any more are left out.
    pub fn new(all: Vec<Silence>) -> Silences {
        let read = |s: Silence| selector(&s.selector).ok().map(|matchers| (s, matchers));
        Silences(all.into_iter().filter_map(read).take(MAX_SILENCES).collect())
    }

    pub fn list(&self) -> Vec<Silence> {
        self.0.iter().map(|(s, _)| s.clone()).collect()
    }

    pub fn add(&mut self, silence: Silence) -> Result<(), String> {
        silence.check()?;
        if self.0.len() >= MAX_SILENCES {
            return Err(format!("there are {MAX_SILENCES} silences; delete some first"));
        }
        let matchers = selector(&silence.selector)?;
        self.0.push((silence, matchers));
        Ok(())
    }

    pub fn remove(&mut self, id: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|(s, _)| s.id != id);
        self.0.len() < before
    }

    /// Forgets those that have ended. Were there any?
    pub fn expire(&mut self, now_ns: i64) -> bool {
        let before = self.0.len();
        self.0.retain(|(s, _)| s.ends_ns > now_ns);
        self.0.len() < before
    }

    /// The silence that an alarm is under.
    pub fn of(&self, labels: &Labels, now_ns: i64) -> Option<&Silence> {
        let fits = |(s, matchers): &&(Silence, Vec<Matcher>)| {
            (s.starts_ns..s.ends_ns).contains(&now_ns) && matches(matchers, labels)
        };
        self.0.iter().find(fits).map(|(s, _)| s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence(selector: &str) -> Silence {
        let (id, comment, created_by) = ("1".into(), String::new(), String::new());
        Silence { id, selector: selector.into(), starts_ns: 10, ends_ns: 20, comment, created_by }
    }

    #[test]
    fn a_silence_is_for_some_alarms_and_some_time() {
        let labels = Labels::new([("alertname".into(), "StepSlow".into()), ("run".into(), "a".into())]);
        for (selector, fits) in [
            ("StepSlow", true),
            ("StepSlow{run=\"a\"}", true),
            ("{alertname=\"StepSlow\",run=~\"a|b\"}", true),
            ("StepSlow{run!=\"a\"}", false),
            ("Other", false),
        ] {
            let mut silences = Silences::default();
            silences.add(silence(selector)).unwrap();
            assert_eq!(silences.of(&labels, 15).is_some(), fits, "{selector}");
            assert!(silences.of(&labels, 9).is_none() && silences.of(&labels, 20).is_none());
            assert!(!silences.expire(19) && silences.expire(20));
        }
        for bad in ["", "sum(x)", "{a=~\"(\"}", "x[5m]", "{}"] {
            assert!(silence(bad).check().is_err(), "{bad}");
        }
        assert!(Silence { ends_ns: 10, ..silence("a") }.check().is_err());
        assert!(Silence { comment: "x".repeat(1001), ..silence("a") }.check().is_err());
    }
}
