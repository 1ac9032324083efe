//! The language of the search box.
//!
//! ```text
//! memory leak               both words, anywhere
//! "out of memory"           the words next to each other
//! alloc*                    words that begin so;  word~ and word~2: with one or two typing errors
//! -warning                  not;  a OR b;  ( ... )
//! role:tool error           the words in what a tool returned (system, user, assistant, reasoning, tool, other)
//! reward:<0.5 step:100..120 numbers: = < <= > >= and ranges, ends included;  -3 and * are numbers and open ends
//! status:truncated,aborted  one of;  key, source, tool, sample, group, run, trace, id likewise, with * at the end
//! metadata.difficulty:hard  any field of the metadata, metadata.score:>3
//! contains:"f(x) ="         exactly these characters;  /out of \w+/ a regular expression. Slower: the texts are read
//! ```

use crate::error::SearchError;
use crate::schema::{NUMBERS, TEXTS};
use crate::text::Role;

/// Longest search text, most words and deepest nesting.
const MAX_BYTES: usize = 2048;
const MAX_NODES: usize = 64;
const MAX_DEPTH: usize = 8;
/// Bytes of all words that may have typos: each takes 0.05 MB of an automaton.
const MAX_FUZZY_BYTES: usize = 48;

#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    And(Vec<Node>),
    Or(Vec<Node>),
    Not(Box<Node>),
    /// Words that are next to each other. A single word is a phrase of one.
    Phrase(String),
    Prefix(String),
    Fuzzy(String, u8),
    Role(Vec<Role>),
    /// One of these, as they are.
    Name {
        field: String,
        values: Vec<String>,
    },
    /// A number between two ends; the flag is true if the end is included.
    Range {
        field: String,
        low: Option<(f64, bool)>,
        high: Option<(f64, bool)>,
    },
    Contains(String),
    Regex(String),
}

/// Reads a search text. Empty text finds everything.
pub fn parse(text: &str) -> Result<Node, SearchError> {
    if text.len() > MAX_BYTES {
        return Err(SearchError::Query(format!("the search text is longer than {MAX_BYTES} bytes; shorten it")));
    }
    let mut parser = Parser { rest: text, nodes: 0, fuzzy_bytes: 0 };
    let node = parser.any(0)?;
    match parser.rest.trim_start().chars().next() {
        None => Ok(node),
        Some(_) => Err(SearchError::Query("`)` without `(`; add the `(`, or put the text in double quotes".into())),
    }
}

impl Node {
    /// The conditions that must be checked in the texts themselves.
    pub fn slow(&self) -> Vec<&Node> {
        match self {
            Node::And(all) => all.iter().flat_map(Node::slow).collect(),
            Node::Contains(_) | Node::Regex(_) => vec![self],
            _ => Vec::new(),
        }
    }

    /// The words that are searched for, for snippets and highlighting.
    pub fn wanted(&self) -> Vec<&Node> {
        match self {
            Node::And(all) | Node::Or(all) => all.iter().flat_map(Node::wanted).collect(),
            Node::Phrase(_) | Node::Prefix(_) | Node::Fuzzy(..) | Node::Contains(_) | Node::Regex(_) => vec![self],
            _ => Vec::new(),
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
    nodes: usize,
    fuzzy_bytes: usize,
}

impl<'a> Parser<'a> {
    fn any(&mut self, depth: usize) -> Result<Node, SearchError> {
        if depth > MAX_DEPTH {
            return Err(SearchError::Query(format!("parentheses are nested more than {MAX_DEPTH} deep")));
        }
        let mut choices = vec![self.all(depth)?];
        while self.keyword("OR") {
            choices.push(self.all(depth)?);
        }
        if choices.len() > 1 && choices.iter().any(|c| !c.slow().is_empty()) {
            return Err(slow_inside());
        }
        Ok(if choices.len() == 1 { choices.swap_remove(0) } else { Node::Or(choices) })
    }

    fn all(&mut self, depth: usize) -> Result<Node, SearchError> {
        let mut all = Vec::new();
        loop {
            self.rest = self.rest.trim_start();
            if self.rest.is_empty() || self.rest.starts_with(')') || self.at_keyword("OR") {
                break;
            }
            if self.keyword("AND") {
                continue;
            }
            all.push(self.one(depth)?);
            self.nodes += 1;
            if self.nodes > MAX_NODES {
                return Err(SearchError::Query(format!(
                    "the search has more than {MAX_NODES} words and conditions; use fewer"
                )));
            }
        }
        Ok(if all.len() == 1 { all.swap_remove(0) } else { Node::And(all) })
    }

    fn one(&mut self, depth: usize) -> Result<Node, SearchError> {
        if self.keyword("NOT") {
            return self.negated(depth);
        }
        let mut chars = self.rest.chars();
        match chars.next() {
            Some('-') if chars.next().is_some_and(|c| !c.is_whitespace()) => {
                self.rest = &self.rest[1..];
                self.negated(depth)
            }
            Some('(') => {
                self.rest = &self.rest[1..];
                let inner = self.any(depth + 1)?;
                self.rest = self.rest.trim_start();
                match self.rest.strip_prefix(')') {
                    Some(rest) => self.rest = rest,
                    None => {
                        return Err(SearchError::Query(
                            "`(` without `)`; add the `)`, or put the text in double quotes".into(),
                        ));
                    }
                }
                Ok(inner)
            }
            Some('"') => Ok(Node::Phrase(self.quoted()?)),
            Some('/') if self.rest[1..].contains('/') => {
                let pattern = &self.rest[1..];
                let mut escaped = false;
                let end = pattern.find(|c| {
                    let ends = c == '/' && !escaped;
                    escaped = c == '\\' && !escaped;
                    ends
                });
                match end {
                    Some(end) if end > 0 => {
                        self.rest = &pattern[end + 1..];
                        Ok(Node::Regex(pattern[..end].replace("\\/", "/")))
                    }
                    _ => self.word(),
                }
            }
            _ => self.field_or_word(),
        }
    }

    fn negated(&mut self, depth: usize) -> Result<Node, SearchError> {
        self.rest = self.rest.trim_start();
        if self.rest.is_empty() || depth >= MAX_DEPTH {
            return Err(SearchError::Query("expected a word or condition after `-` or NOT".into()));
        }
        let inner = self.one(depth + 1)?;
        match inner.slow().is_empty() {
            true => Ok(Node::Not(Box::new(inner))),
            false => Err(slow_inside()),
        }
    }

    fn field_or_word(&mut self) -> Result<Node, SearchError> {
        let end = self.rest.find(|c: char| c == ':' || c == '"' || c.is_whitespace() || c == '(' || c == ')');
        let Some(end) = end.filter(|end| self.rest[*end..].starts_with(':') && *end > 0) else {
            return self.word();
        };
        let (name, after) = (&self.rest[..end], &self.rest[end + 1..]);
        let known = |list: &[(&str, &str)]| list.iter().any(|(n, _)| *n == name);
        let is_metadata = name.strip_prefix("metadata.").is_some_and(|key| !key.is_empty());
        let special = matches!(name, "role" | "contains");
        if !(known(NUMBERS) || known(TEXTS) || is_metadata || special) {
            // `std::vector`, `http://...` and `12:30` are words; `stpe:3` is a mistake that must be reported.
            let looks_like_a_field = name.chars().all(|c| c.is_ascii_alphabetic() || c == '_')
                && !after.starts_with([':', '/'])
                && after.chars().next().is_some_and(|c| !c.is_whitespace());
            if looks_like_a_field {
                let good: Vec<&str> = NUMBERS.iter().chain(TEXTS).map(|(n, _)| *n).collect();
                return Err(SearchError::Query(format!(
                    "unknown field `{name}`; expected one of: role, {}, metadata.NAME, contains (to search for this text, put it in \
                     double quotes)",
                    good.join(", ")
                )));
            }
            return self.word();
        }
        self.rest = after;
        let quoted = self.rest.starts_with('"');
        let value = if quoted { self.quoted()? } else { self.plain().to_string() };
        if value.is_empty() {
            return Err(SearchError::Query(format!("expected a value after `{name}:`")));
        }
        match name {
            "role" => {
                let all: Option<Vec<Role>> = value
                    .split(',')
                    .map(|v| match Role::from_name(v) {
                        Role::Other if v != "other" => None,
                        role => Some(role),
                    })
                    .collect();
                all.map(Node::Role).ok_or_else(|| {
                    let good: Vec<&str> = Role::ALL.iter().map(|r| r.name()).collect();
                    SearchError::Query(format!("unknown role `{value}`; expected one of: {}", good.join(", ")))
                })
            }
            "contains" => Ok(Node::Contains(value)),
            _ if known(NUMBERS) => range(name, &value)?.ok_or_else(|| bad_number(name, &value)),
            _ if is_metadata && !quoted => match range(name, &value)? {
                Some(range) => Ok(range),
                None => Ok(names(name, &value, quoted)),
            },
            _ => Ok(names(name, &value, quoted)),
        }
    }

    /// Up to the next space or bracket.
    fn plain(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| c.is_whitespace() || c == ')').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn word(&mut self) -> Result<Node, SearchError> {
        let word = self.plain();
        let distance = match word.rsplit_once('~') {
            Some((_, "" | "1")) => Some(1),
            Some((_, "2")) => Some(2),
            _ => None,
        };
        Ok(match (distance, word.strip_suffix('*')) {
            (Some(distance), _) => {
                let word = &word[..word.rfind('~').unwrap_or(word.len())];
                self.fuzzy_bytes += word.len();
                if self.fuzzy_bytes > MAX_FUZZY_BYTES {
                    return Err(SearchError::Query(format!(
                        "words with `~` have more than {MAX_FUZZY_BYTES} bytes together; use fewer, or look for their beginnings with `*`"
                    )));
                }
                Node::Fuzzy(word.to_string(), distance)
            }
            (None, Some(stem)) => Node::Prefix(stem.to_string()),
            (None, None) => Node::Phrase(word.to_string()),
        })
    }

    fn quoted(&mut self) -> Result<String, SearchError> {
        let mut out = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(out);
                }
                '\\' => match chars.next() {
                    Some((_, c @ ('"' | '\\'))) => out.push(c),
                    Some((_, c)) => out.extend(['\\', c]),
                    None => break,
                },
                c => out.push(c),
            }
        }
        Err(SearchError::Query("missing closing `\"`".into()))
    }

    fn at_keyword(&self, word: &str) -> bool {
        let after = self.rest.strip_prefix(word);
        after.is_some_and(|r| r.is_empty() || r.starts_with(|c: char| c.is_whitespace() || c == '('))
    }

    fn keyword(&mut self, word: &str) -> bool {
        self.rest = self.rest.trim_start();
        let is = self.at_keyword(word);
        if is {
            self.rest = &self.rest[word.len()..];
        }
        is
    }
}

fn slow_inside() -> SearchError {
    SearchError::Query(
        "`contains:` and `/…/` cannot be used inside OR, NOT or `-`; they filter what the rest of the search finds"
            .into(),
    )
}

fn bad_number(field: &str, value: &str) -> SearchError {
    SearchError::Query(format!(
        "`{field}:{value}`: {field} is a number; write {field}:3, {field}:<3, {field}:>=3 or {field}:1..3"
    ))
}

fn names(field: &str, value: &str, quoted: bool) -> Node {
    let values = if quoted {
        vec![value.to_string()]
    } else {
        value.split(',').filter(|v| !v.is_empty()).map(str::to_string).collect()
    };
    Node::Name { field: field.to_string(), values }
}

/// `3`, `<3`, `>=3`, `1..3`, `*..3`. `None` if it is not a number; an error if it is half of one.
fn range(field: &str, value: &str) -> Result<Option<Node>, SearchError> {
    let node = |low, high| Ok(Some(Node::Range { field: field.to_string(), low, high }));
    let number = |text: &str| text.parse::<f64>().ok().filter(|n| !n.is_nan());
    let must = |text: &str| number(text).ok_or_else(|| bad_number(field, value));
    if let Some(text) = value.strip_prefix("<=") {
        return node(None, Some((must(text)?, true)));
    }
    if let Some(text) = value.strip_prefix(">=") {
        return node(Some((must(text)?, true)), None);
    }
    if let Some(text) = value.strip_prefix('<') {
        return node(None, Some((must(text)?, false)));
    }
    if let Some(text) = value.strip_prefix('>') {
        return node(Some((must(text)?, false)), None);
    }
    if let Some((low, high)) = value.split_once("..") {
        let end = |text: &str| match text {
            "" | "*" => Ok(None),
            text => must(text).map(|n| Some((n, true))),
        };
        return node(end(low)?, end(high)?);
    }
    let text = value.strip_prefix('=').unwrap_or(value);
    match number(text) {
        Some(n) => node(Some((n, true)), Some((n, true))),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(text: &str) -> String {
        match parse(text) {
            Ok(node) => format!("{node:?}"),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn the_language_reads_as_documented() {
        let issue = parse("role:tool reward:<0.5 step:100..120 tool:bash status:truncated \"out of memory\"").unwrap();
        assert_eq!(
            issue,
            Node::And(vec![
                Node::Role(vec![Role::Tool]),
                Node::Range { field: "reward".into(), low: None, high: Some((0.5, false)) },
                Node::Range { field: "step".into(), low: Some((100.0, true)), high: Some((120.0, true)) },
                Node::Name { field: "tool".into(), values: vec!["bash".into()] },
                Node::Name { field: "status".into(), values: vec!["truncated".into()] },
                Node::Phrase("out of memory".into()),
            ])
        );
        assert_eq!(parse("").unwrap(), Node::And(vec![]));
        assert_eq!(
            parse("a OR b c").unwrap(),
            Node::Or(vec![
                Node::Phrase("a".into()),
                Node::And(vec![Node::Phrase("b".into()), Node::Phrase("c".into())]),
            ])
        );
        assert_eq!(show("-(a b)"), "Not(And([Phrase(\"a\"), Phrase(\"b\")]))");
        assert_eq!(show("alloc* wrod~ x~2"), "And([Prefix(\"alloc\"), Fuzzy(\"wrod\", 1), Fuzzy(\"x\", 2)])");
        assert!(parse(&"word~2 ".repeat(12)).is_ok());
        for long in ["word~2 ".repeat(13), format!("{}~", "x".repeat(49))] {
            assert!(parse(&long).unwrap_err().to_string().contains("more than 48 bytes together"), "{long}");
        }
        assert_eq!(show("/a\\/b+/"), "Regex(\"a/b+\")");
        assert_eq!(show("contains:\"f(x) =\""), "Contains(\"f(x) =\")");
        assert_eq!(show("metadata.level:hard"), "Name { field: \"metadata.level\", values: [\"hard\"] }");
        assert_eq!(show("metadata.n:>3"), "Range { field: \"metadata.n\", low: Some((3.0, false)), high: None }");
        assert_eq!(show("reward:-1"), "Range { field: \"reward\", low: Some((-1.0, true)), high: Some((-1.0, true)) }");
        assert_eq!(
            show("std::vector http://x 12:30"),
            "And([Phrase(\"std::vector\"), Phrase(\"http://x\"), Phrase(\"12:30\")])"
        );
        assert_eq!(show("status:a,b"), "Name { field: \"status\", values: [\"a\", \"b\"] }");
    }

    #[test]
    fn mistakes_are_told() {
        for (text, says) in [
            ("stpe:3", "unknown field `stpe`; expected one of: role, step"),
            ("step:x", "step is a number"),
            ("reward:<", "reward is a number"),
            ("role:wizard", "unknown role `wizard`; expected one of: system"),
            ("(a", "`(` without `)`"),
            ("a)", "`)` without `(`"),
            ("\"a", "missing closing"),
            ("a OR /b/", "cannot be used inside"),
            ("-contains:x", "cannot be used inside"),
            ("status:", "expected a"),
            ("NOT", "expected a"),
        ] {
            assert!(show(text).contains(says), "{text}: {}", show(text));
        }
        assert!(show(&"(".repeat(50)).starts_with("error"));
        assert!(show(&"a ".repeat(500)).starts_with("error"));
        assert!(show(&"a".repeat(5000)).starts_with("error"));
    }
}
