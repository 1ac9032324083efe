//! Prometheus's rule files. What is wrong is named with its line. What we cannot do is refused, not ignored.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use rollscope_query::promql::PromQuery;
use serde::Deserialize;

use crate::template::{Template, is_label_name};
use crate::text::parse_duration;

/// Bytes of a file.
pub const MAX_FILE: u64 = 4 << 20;
/// Groups of a file, rules of a file, and labels or annotations of a rule.
const MAX_GROUPS: usize = 1000;
const MAX_RULES: usize = 5000;
const MAX_LABELS: usize = 64;
/// Rules need four: groups, group, rules, labels. The YAML reader takes a time that grows with the square of the depth.
const MAX_NESTED: usize = 100;
/// Most brackets that are open at once, with those in quotes. What looks like a quote may be none, and YAML takes time in proportion to
/// how many are open for each word.
const MAX_UNCLOSED: usize = 1000;

/// A group of rules as its file states it.
#[derive(Clone, Debug)]
pub struct GroupText {
    pub file: String,
    pub name: String,
    /// None: that of the configuration.
    pub interval_ms: Option<i64>,
    /// The most alarms or series that one rule may have. 0: no limit of its own.
    pub limit: usize,
    pub rules: Vec<RuleText>,
}

#[derive(Clone, Debug)]
pub struct RuleText {
    pub name: String,
    pub query: PromQuery,
    pub labels: Vec<(String, Template)>,
    pub kind: RuleKind,
}

#[derive(Clone, Debug)]
pub enum RuleKind {
    Record,
    Alert { hold_ms: i64, keep_ms: i64, annotations: Vec<(String, Template)> },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    groups: Vec<RawGroup>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGroup {
    name: Name,
    interval: Option<Interval>,
    #[serde(default)]
    limit: usize,
    query_offset: Option<NotSupported>,
    #[serde(default)]
    labels: RawLabels,
    #[serde(default)]
    rules: Vec<RawRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    record: Option<MetricName>,
    alert: Option<Name>,
    expr: Expression,
    r#for: Option<For>,
    keep_firing_for: Option<KeepFiringFor>,
    #[serde(default)]
    labels: RawLabels,
    #[serde(default)]
    annotations: RawLabels,
}

impl RawRule {
    /// What is wrong between its parts.
    fn check(&self) -> Result<(), String> {
        match (&self.record, &self.alert) {
            (Some(_), Some(_)) => Err("only one of `record` and `alert` must be set".into()),
            (None, None) => Err("one of `record` and `alert` must be set".into()),
            (None, Some(_)) => Ok(()),
            (Some(_), None) => {
                let wrong = [
                    ("for", self.r#for.is_some()),
                    ("keep_firing_for", self.keep_firing_for.is_some()),
                    ("annotations", !self.annotations.0.is_empty()),
                ];
                match wrong.iter().find(|(_, set)| *set) {
                    Some((field, _)) => {
                        Err(format!("`{field}` is for alerting rules; remove it or write `alert` for `record`"))
                    }
                    None => Ok(()),
                }
            }
        }
    }
}

/// Declares a text that is checked where it stands, so that the error has its line.
macro_rules! checked {
    ($name:ident($inner:ty), $field:literal, $check:expr) => {
        #[derive(Deserialize)]
        #[serde(try_from = "String")]
        struct $name($inner);

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                let check: fn(String) -> Result<$inner, String> = $check;
                check(text).map($name).map_err(|why| format!("{}{why}", in_field($field)))
            }
        }
    };
}

checked!(Name(String), "", |text| match text.trim().is_empty() || text.len() > 500 {
    true => Err("a name must have 1 to 500 characters".into()),
    false => Ok(text),
});
checked!(MetricName(String), "record", |text| {
    let fits = |(i, c): (usize, char)| c == '_' || c == ':' || c.is_ascii_alphabetic() || (i > 0 && c.is_ascii_digit());
    match !text.is_empty() && text.chars().enumerate().all(fits) {
        true => Ok(text),
        false => Err(format!("invalid recording rule name: {text:?}; expected letters, digits, _ and :")),
    }
});
checked!(Expression(PromQuery), "expr", |text| {
    let query = PromQuery::parse(&text).map_err(|e| format!("could not parse expression: {}", e.message))?;
    match query.has_steps() {
        true => Ok(query),
        false => Err("the expression must be an instant vector or a scalar".into()),
    }
});
checked!(For(i64), "for", |text| parse_duration(&text));
checked!(KeepFiringFor(i64), "keep_firing_for", |text| parse_duration(&text));
checked!(Interval(i64), "interval", |text| match parse_duration(&text)? {
    ms if ms >= 100 => Ok(ms),
    _ => Err("an interval must be at least 100ms".into()),
});
checked!(NotSupported(()), "query_offset", |_| Err(
    "`query_offset` is not supported; write `offset` in the expressions".into()
));

/// Labels or annotations, sorted by name.
#[derive(Default)]
struct RawLabels(Vec<(String, Template)>);

/// Read one by one, so that an error has the line of the first of them, and names the culprit.
impl<'de> Deserialize<'de> for RawLabels {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> serde::de::Visitor<'de> for Pairs {
            type Value = RawLabels;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a map from names to texts")
            }

            fn visit_unit<E>(self) -> Result<RawLabels, E> {
                Ok(RawLabels::default())
            }

            fn visit_map<M: serde::de::MapAccess<'de>>(self, mut map: M) -> Result<RawLabels, M::Error> {
                let wrong = |name: &str, why: String| serde::de::Error::custom(format!("{}{why}", in_field(name)));
                let mut found: BTreeMap<String, Template> = BTreeMap::new();
                while let Some((name, text)) = map.next_entry::<String, String>()? {
                    if !is_label_name(&name) || name == "__name__" {
                        let why = format!("invalid label name: {name:?}; expected letters, digits and _");
                        return Err(wrong(&name, why));
                    }
                    let template = Template::parse(&text).map_err(|why| wrong(&name, why))?;
                    if found.insert(name.clone(), template).is_some() {
                        return Err(wrong(&name, "it is there twice".into()));
                    }
                    if found.len() > MAX_LABELS {
                        return Err(wrong(&name, format!("more than {MAX_LABELS} labels or annotations")));
                    }
                }
                Ok(RawLabels(found.into_iter().collect()))
            }
        }
        from.deserialize_any(Pairs)
    }
}

/// How an error says which field it is about.
fn in_field(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!("`{name}`: ") }
}

/// Does a line begin with this key?
fn has_key(line: &str, key: &str) -> bool {
    let line = line.trim_start_matches([' ', '-']).trim_start_matches(['"', '\'']);
    line.strip_prefix(key).is_some_and(|rest| rest.trim_start_matches(['"', '\'']).trim_start().starts_with(':'))
}

/// Where an error is. The reader knows where the surrounding list or map begins; the field is in that line or after it.
fn place_of(text: &str, line: usize, said: &str) -> usize {
    let field = said.split_once('`').and_then(|(_, rest)| rest.split_once("`: ")).map(|(field, _)| field);
    let Some(field) = field else { return line };
    let after = text.lines().enumerate().skip(line.saturating_sub(1));
    let found = after.take(MAX_LABELS * 4).find(|(_, text)| has_key(text, field));
    found.map_or(line, |(at, _)| at + 1)
}

/// The line of a rule, by its place among all rules of the file. None if its expression is not on a line of its own.
fn line_of_rule(text: &str, rules: usize, place: usize) -> Option<usize> {
    let lines: Vec<usize> =
        text.lines().enumerate().filter(|(_, line)| has_key(line, "expr")).map(|(at, _)| at + 1).collect();
    (lines.len() == rules).then(|| lines.get(place).copied()).flatten()
}

/// The line where more than `MAX_NESTED` brackets are open at once. Those in quotes do not count.
fn too_deep(text: &str) -> Option<usize> {
    let (mut depth, mut quote, mut before) = (0_usize, None, '\n');
    let mut line = 1;
    let mut all = text.chars();
    while let Some(c) = all.next() {
        match (quote, c) {
            (_, '\n') => line += 1,
            (Some('"'), '\\') => line += usize::from(all.next() == Some('\n')),
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => (),
            (None, '#') if before.is_whitespace() => {
                all = all.as_str().split_once('\n').map_or("", |(_, rest)| rest).chars();
                line += 1;
                before = '\n';
                continue;
            }
            (None, '"' | '\'') if before.is_whitespace() || "[{,:".contains(before) => quote = Some(c),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth = depth.saturating_sub(1),
            (None, _) => (),
        }
        if depth > MAX_NESTED {
            return Some(line);
        }
        before = c;
    }
    None
}

/// The line where more than `MAX_UNCLOSED` brackets are open at once. Those in quotes count, too.
fn too_many_open(text: &str) -> Option<usize> {
    let mut open = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => (),
        }
        if open > MAX_UNCLOSED {
            return Some(1 + text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count());
        }
    }
    None
}

/// Reads the text of a file. `file` is its name, for errors and answers.
pub fn parse(file: &str, text: &str) -> Result<Vec<GroupText>, String> {
    let at_file = |why: String| format!("{file}: {why}");
    if text.len() as u64 > MAX_FILE {
        return Err(at_file(format!("the file is larger than {MAX_FILE} bytes")));
    }
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    if let Some(line) = too_deep(text) {
        return Err(format!("{file}:{line}: more than {MAX_NESTED} brackets are open at once"));
    }
    if let Some(line) = too_many_open(text) {
        return Err(format!("{file}:{line}: more than {MAX_UNCLOSED} brackets are open at once, with those in quotes"));
    }
    let raw: RawFile = serde_yaml_ng::from_str(text).map_err(|e| match e.location() {
        Some(place) => {
            let said = e.to_string();
            // It ends with the place, which we say first, as compilers do.
            let words = said.rsplit_once(" at line ").map_or(said.as_str(), |(words, _)| words);
            format!("{file}:{}: {words}", place_of(text, place.line(), words))
        }
        None => at_file(e.to_string()),
    })?;
    if raw.groups.len() > MAX_GROUPS {
        return Err(at_file(format!("more than {MAX_GROUPS} groups")));
    }
    if raw.groups.iter().map(|g| g.rules.len()).sum::<usize>() > MAX_RULES {
        return Err(at_file(format!("more than {MAX_RULES} rules")));
    }
    let all: Vec<&RawRule> = raw.groups.iter().flat_map(|group| &group.rules).collect();
    for (place, rule) in all.iter().enumerate() {
        rule.check().map_err(|why| match line_of_rule(text, all.len(), place) {
            Some(line) => format!("{file}:{line}: {why}"),
            None => at_file(format!("rule {} of the file: {why}", place + 1)),
        })?;
    }
    let mut names = HashSet::new();
    let mut groups = Vec::new();
    for group in raw.groups {
        if !names.insert(group.name.0.clone()) {
            return Err(at_file(format!("groupname: {:?} is repeated in the same file", group.name.0)));
        }
        let rules = group.rules.into_iter().map(|rule| {
            // The labels of a rule count before those of its group.
            let mut labels = rule.labels.0;
            let own: HashSet<String> = labels.iter().map(|(name, _)| name.clone()).collect();
            labels.extend(group.labels.0.iter().filter(|(name, _)| !own.contains(name)).cloned());
            labels.sort_by(|a, b| a.0.cmp(&b.0));
            let (name, kind) = match (rule.record, rule.alert) {
                (Some(name), _) => (name.0, RuleKind::Record),
                (None, alert) => {
                    let (hold_ms, keep_ms) = (rule.r#for.map_or(0, |p| p.0), rule.keep_firing_for.map_or(0, |p| p.0));
                    (
                        alert.map_or_else(String::new, |a| a.0),
                        RuleKind::Alert { hold_ms, keep_ms, annotations: rule.annotations.0 },
                    )
                }
            };
            RuleText { name, query: rule.expr.0, labels, kind }
        });
        groups.push(GroupText {
            file: file.to_string(),
            interval_ms: group.interval.map(|i| i.0),
            limit: group.limit,
            rules: rules.collect(),
            name: group.name.0,
        });
        let _ = group.query_offset.map(|NotSupported(())| ());
    }
    Ok(groups)
}

/// Reads a file.
pub fn load(path: &Path) -> Result<Vec<GroupText>, String> {
    let file = path.display().to_string();
    let about = |e: std::io::Error| format!("{file}: {e}");
    let metadata = std::fs::metadata(path).map_err(about)?;
    if !metadata.is_file() {
        return Err(format!("{file}: it is not a file"));
    }
    if metadata.len() > MAX_FILE {
        return Err(format!("{file}: the file is larger than {MAX_FILE} bytes"));
    }
    let bytes = std::fs::read(path).map_err(about)?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{file}: the file is not valid UTF-8"))?;
    parse(&file, &text)
}

/// Reads all files of a configuration. The most rules of a file are the most of all of them together.
pub fn load_all(paths: &[PathBuf]) -> Result<Vec<GroupText>, String> {
    let mut groups = Vec::new();
    for path in paths {
        groups.extend(load(path)?);
        if groups.iter().map(|g: &GroupText| g.rules.len()).sum::<usize>() > MAX_RULES {
            return Err(format!("{}: with this file there are more than {MAX_RULES} rules", path.display()));
        }
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
groups:
  - name: engines
    interval: 30s
    limit: 10
    labels: {team: rl, severity: info}
    rules:
      - record: job:tokens:rate5m
        expr: sum by (job) (rate(tokens_total[5m]))
        labels:
          kind: derived
      - alert: Slow
        expr: job:tokens:rate5m < 100
        for: 5m
        keep_firing_for: 1m
        labels:
          severity: page
        annotations:
          summary: "{{ $labels.job }} makes {{ $value | humanize }} tokens/s"
  - name: empty
"#;

    #[test]
    fn a_file_as_prometheus_has_it() {
        let groups = parse("a.yml", GOOD).unwrap();
        assert_eq!(groups.len(), 2);
        let engines = &groups[0];
        assert_eq!((engines.name.as_str(), engines.interval_ms, engines.limit), ("engines", Some(30_000), 10));
        let labels = |rule: &RuleText| -> Vec<String> {
            rule.labels.iter().map(|(n, t)| format!("{n}={}", t.source())).collect()
        };
        assert_eq!(labels(&engines.rules[0]), ["kind=derived", "severity=info", "team=rl"]);
        assert_eq!(labels(&engines.rules[1]), ["severity=page", "team=rl"]);
        let RuleKind::Alert { hold_ms, keep_ms, annotations } = &engines.rules[1].kind else { panic!() };
        assert_eq!((*hold_ms, *keep_ms, annotations[0].0.as_str()), (300_000, 60_000, "summary"));
        assert!(parse("a.yml", "").unwrap().is_empty());
        assert!(parse("a.yml", "groups: []").unwrap().is_empty());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let rule = |text: &str| format!("groups:\n- name: g\n  rules:\n  - {}\n", text.replace('\n', "\n    "));
        for (text, line, named) in [
            (rule("alert: A\nexpr: sum("), 5, "could not parse expression"),
            (rule("alert: A\nexpr: up[5m]"), 5, "instant vector"),
            (rule("alert: A\nexpr: up\nfor: 5"), 6, "not a duration"),
            (rule("alert: A\nexpr: up\nfro: 5m"), 6, "fro"),
            (rule("alert: A\nexpr: up\nlabels:\n  a-b: x"), 7, "invalid label name"),
            (rule("alert: A\nexpr: up\nannotations:\n  s: '{{ query }}'"), 7, "query"),
            (rule("record: a-b\nexpr: up"), 4, "invalid recording rule name"),
            (rule("record: a\nalert: b\nexpr: up"), 6, "only one of"),
            (rule("expr: up"), 4, "one of `record` and `alert`"),
            (rule("record: a\nexpr: up\nfor: 5m"), 5, "`for` is for alerting rules"),
            ("groups:\n- nmae: g\n".into(), 2, "nmae"),
            ("groups:\n- name: g\n  query_offset: 5m\n".into(), 3, "query_offset"),
            ("groups: [\n".into(), 2, ""),
            // This took 26 s when it was read; its length is that of a small file.
            (format!("groups:\n- name: g\n- {}", "{a: ".repeat(64 << 10)), 3, "brackets"),
            (format!("# 'x\ngroups:\n- {}", "{a: ".repeat(1000)), 3, "brackets"),
            (format!("groups:\n- '{{'\n- [\"\\\"]\"{}", ", [']'".repeat(1000)), 3, "brackets"),
        ] {
            let why = parse("a.yml", &text).unwrap_err();
            assert!(why.starts_with(&format!("a.yml:{line}:")) && why.contains(named), "{text}{why}");
        }
        let why = parse("a.yml", "groups:\n- name: g\n- name: g\n").unwrap_err();
        assert!(why.contains("repeated"), "{why}");
        let many = format!("groups:\n- name: g\n  rules:\n{}", "  - {alert: A, expr: up}\n".repeat(MAX_RULES + 1));
        assert!(parse("a.yml", &many).unwrap_err().contains("rules"));
        let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
                    d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ngroups: [*d,*d,*d,*d,*d,*d,*d,*d,*d]\n";
        assert!(parse("a.yml", bomb).is_err());
    }

    #[test]
    fn brackets_are_bounded_whatever_looks_like_a_quote() {
        // YAML sees no quote after a dash without a space, and reads lists in lists.
        let hidden = format!("groups:{{{{'$labels/*na'groups:\n-{{{{'${}", "[alert: ".repeat(1 << 16));
        let error = parse("x.yml", &hidden).unwrap_err();
        assert!(error.starts_with("x.yml:2: more than 1000 brackets"), "{error}");
        // Patterns and templates in quotes may leave some open.
        let rule = "  - {alert: a, expr: 'up{job=~\"[(]x\\\\[\"} == 0', annotations: {text: 'at {{ $value }}'}}\n";
        let good = parse("x.yml", &format!("groups:\n- name: g\n  rules:\n{}", rule.repeat(300)));
        assert_eq!(good.map(|groups| groups[0].rules.len()), Ok(300));
    }
}
