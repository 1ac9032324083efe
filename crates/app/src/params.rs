//! The one place where the parameters of a request are read and checked. An error names the parameter and what is expected.

use std::fmt::Display;
use std::str::FromStr;

use rollscope_model::TraceId;

use crate::problem::Problem;

/// Longest value of any parameter.
const MAX_VALUE: usize = 4096;
/// Most parameters of a request. Each is compared with those before it.
const MAX_PARAMETERS: usize = 256;

/// The query string. A handler takes the parameters that it knows and calls [`Params::done`], which reports misspelt names.
#[derive(Debug)]
pub struct Params {
    pairs: Vec<(String, String)>,
    known: Vec<&'static str>,
}

impl Params {
    pub fn from_pairs(pairs: Vec<(String, String)>) -> Result<Self, Problem> {
        if let Some((key, _)) = pairs.get(MAX_PARAMETERS) {
            return Err(Problem::parameter(key, format!("among the first {MAX_PARAMETERS} parameters")));
        }
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

/// A trace id: 32 hex digits, or fewer, as systems with shorter ids write them.
pub fn trace_id(text: &str) -> Result<TraceId, Problem> {
    match hex::decode(text) {
        Ok(raw) if (1..=16).contains(&raw.len()) => Ok(rollscope_model::ids::trace_id_from_bytes(&raw)),
        _ => Err(Problem::parameter("trace", "a trace id of up to 32 hex digits")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, &str)]) -> Result<Params, Problem> {
        Params::from_pairs(pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect())
    }

    #[test]
    fn values_are_checked_and_unknown_names_refused() {
        let mut good = params(&[("step", "412"), ("empty", "")]).unwrap();
        assert_eq!(good.number::<i64>("step", "an integer").unwrap(), Some(412));
        assert_eq!((good.text("empty").map(str::len), good.text("missing").map(str::len)), (Some(0), None));
        good.done().unwrap();

        let problem = params(&[("step", "x")]).unwrap().number::<i64>("step", "an integer").unwrap_err();
        assert_eq!(problem.detail(), "parameter `step` must be an integer");
        let mut misspelt = params(&[("stpe", "1")]).unwrap();
        misspelt.text("step");
        assert_eq!(misspelt.done().unwrap_err().detail(), "unknown parameter `stpe`; expected one of: step");
        assert!(params(&[("a", "1"), ("a", "2")]).is_err());
        assert!(params(&[("a", &"x".repeat(MAX_VALUE + 1))]).is_err());
        let names: Vec<String> = (0..=MAX_PARAMETERS).map(|n| n.to_string()).collect();
        let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        assert!(params(&many[1..]).is_ok() && params(&many).is_err());
    }
}
