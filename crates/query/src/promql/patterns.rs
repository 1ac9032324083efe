//! Regular expressions of a query. A short one can take megabytes and seconds to compile, so their size is bounded first.

use regex::{Error, Regex, RegexBuilder};

/// Regular expressions in matchers of one query.
pub const MAX_PATTERNS: usize = 32;
/// Largest regular expression, compiled.
const MAX_BYTES: usize = 1 << 20;
/// Longest text that is valid in Go only.
const MAX_GO_TEXT: usize = 256;

pub fn compile(pattern: &str) -> Result<Regex, Error> {
    RegexBuilder::new(pattern).size_limit(MAX_BYTES).build()
}

/// Whether the parser may compile what stands in a matcher. To Go, `{` that begins no repetition is a plain character. The parser
/// escapes it when the text does not compile as it is, so such text must be harmless in any reading.
pub fn check(pattern: &str) -> Result<(), String> {
    let is_harmless = || {
        let repeats = pattern.split('{').skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        pattern.len() <= MAX_GO_TEXT && !repeats
    };
    match compile(&format!("^(?:{pattern})$")) {
        Ok(_) => Ok(()),
        Err(Error::Syntax(_)) if is_harmless() => Ok(()),
        Err(Error::Syntax(_)) => Err(format!("illegal regex for {pattern}")),
        Err(_) => Err(format!("the regular expression {pattern} is too large; use smaller repetitions")),
    }
}
