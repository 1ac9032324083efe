//! The text that `/metrics` pages answer with: Prometheus's text format (0.0.4) and OpenMetrics (1.0).
//!
//! [`lines`] finds the samples and leaves the text of their series alone, because the same few thousand texts come again
//! with every scrape: the scraper remembers what a text meant. [`parse_series`] parses such a text.
//! A bad line is reported with its number and skipped; the rest of the page counts.

use std::collections::{BTreeMap, HashMap};

/// A sample may be this far ahead of our clock.
pub const MAX_AHEAD_MS: i64 = 10 * 60 * 1000;

/// Bounds on what one page may hold.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Labels of one series.
    pub labels: usize,
    /// Bytes of a metric's or a label's name.
    pub name_bytes: usize,
    /// Bytes of a label's value.
    pub value_bytes: usize,
    /// Metric families with a type.
    pub families: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { labels: 64, name_bytes: 512, value_bytes: 4096, families: 50_000 }
    }
}

/// One sample as written on the page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line<'a> {
    /// Name and labels, not parsed.
    pub series: &'a str,
    pub value: f64,
    /// Where the page gives one.
    pub time_ms: Option<i64>,
    /// Line of the page, from 1.
    pub number: usize,
}

/// A line that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    pub number: usize,
    pub why: String,
}

/// Kinds by metric family, as declared so far.
#[derive(Clone, Debug, Default)]
pub struct Kinds {
    families: HashMap<String, &'static str>,
}

impl Kinds {
    /// Notes the kind of a family, within the limits.
    pub fn declare(&mut self, family: String, kind: &'static str, limits: &Limits) {
        if self.families.len() < limits.families && family.len() <= limits.name_bytes {
            self.families.insert(family, kind);
        }
    }

    /// The kind of a sample by its name: a histogram's buckets are samples of their own.
    pub fn of(&self, name: &str) -> &'static str {
        if let Some(kind) = self.families.get(name) {
            return kind;
        }
        for (suffix, kinds) in [
            ("_bucket", &["histogram"] as &[&str]),
            ("_sum", &["histogram", "summary"]),
            ("_count", &["histogram", "summary"]),
            ("_total", &["counter"]),
            ("_created", &["counter", "histogram", "summary"]),
        ] {
            let family = name.strip_suffix(suffix).and_then(|family| self.families.get(family));
            if let Some(kind) = family.filter(|k| kinds.contains(k)) {
                return if suffix == "_created" { "gauge" } else { kind };
            }
        }
        "unknown"
    }
}

fn kind_of(text: &str) -> &'static str {
    match text {
        "counter" => "counter",
        "gauge" | "info" | "stateset" => "gauge",
        "histogram" | "gaugehistogram" => "histogram",
        "summary" => "summary",
        _ => "unknown",
    }
}

/// Name and kind of a `# TYPE`. The name may be quoted, and then hold anything.
fn declared(text: &str) -> Option<(String, &'static str)> {
    let (name, rest) = match text.strip_prefix('"') {
        Some(text) => quoted(text).ok()?,
        None => text.split_once([' ', '\t']).map(|(name, rest)| (name.to_string(), rest))?,
    };
    Some((name, kind_of(rest.split_ascii_whitespace().next()?)))
}

/// Walks a page. `open_metrics` comes from the content type of the answer.
pub fn lines<'a>(
    page: &'a str,
    open_metrics: bool,
    limits: &Limits,
    mut sample: impl FnMut(Line<'a>, &Kinds),
    mut bad: impl FnMut(BadLine),
) -> Kinds {
    let mut kinds = Kinds::default();
    let mut ended = false;
    for (i, raw) in page.split('\n').enumerate() {
        let number = i + 1;
        let line = raw.strip_suffix('\r').unwrap_or(raw).trim_start_matches([' ', '\t']);
        if line.is_empty() {
            continue;
        }
        if ended {
            bad(BadLine { number, why: "unexpected text after # EOF".into() });
            break;
        }
        if let Some(comment) = line.strip_prefix('#') {
            match comment.trim_start_matches([' ', '\t']) {
                "EOF" if open_metrics => ended = true,
                rest => {
                    if let Some(rest) = rest.strip_prefix("TYPE").filter(|r| r.starts_with([' ', '\t']))
                        && let Some((name, kind)) = declared(rest.trim_start_matches([' ', '\t']))
                    {
                        kinds.declare(name, kind, limits);
                    }
                }
            }
            continue;
        }
        match split(line, open_metrics) {
            Ok((series, value, time_ms)) => sample(Line { series, value, time_ms, number }, &kinds),
            Err(why) => bad(BadLine { number, why }),
        }
    }
    if open_metrics && !ended {
        bad(BadLine { number: 0, why: "the page does not end with # EOF and may be truncated".into() });
    }
    kinds
}

/// Series, value and time of a line.
fn split(line: &str, open_metrics: bool) -> Result<(&str, f64, Option<i64>), String> {
    let bytes = line.as_bytes();
    let brace = memchr::memchr3(b'{', b' ', b'\t', bytes).ok_or("missing value")?;
    let end = if bytes[brace] == b'{' {
        close(bytes, brace).ok_or("missing closing brace or quote")? + 1
    } else {
        // `name {a="b"} 1` is allowed too.
        let rest = line[brace..].trim_start_matches([' ', '\t']);
        match rest.starts_with('{') {
            true => close(bytes, line.len() - rest.len()).ok_or("missing closing brace or quote")? + 1,
            false => brace,
        }
    };
    let series = line[..end].trim_end_matches([' ', '\t']);
    if series.is_empty() {
        return Err("missing name".into());
    }
    // An exemplar is not kept.
    let rest = match open_metrics {
        true => line[end..].split(" # ").next().unwrap_or_default(),
        false => &line[end..],
    };
    let mut words = rest.split([' ', '\t']).filter(|w| !w.is_empty());
    let value = words.next().ok_or("missing value")?;
    let value = number(value).ok_or_else(|| format!("{:?} is not a number", shorten(value)))?;
    let time_ms = match words.next() {
        None => None,
        Some(text) if open_metrics => {
            let seconds = number(text).filter(|s| s.is_finite() && s.abs() < 1e13);
            Some((seconds.ok_or_else(|| format!("{:?} is not a time", shorten(text)))? * 1000.0).round() as i64)
        }
        Some(text) => Some(text.parse().map_err(|_| format!("{:?} is not a time in milliseconds", shorten(text)))?),
    };
    match words.next() {
        Some(more) => Err(format!("unexpected text {:?} after the sample", shorten(more))),
        None => Ok((series, value, time_ms)),
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(40).collect()
}

/// The brace that closes the one at `open`. Braces inside quotes do not count.
fn close(bytes: &[u8], open: usize) -> Option<usize> {
    let mut at = open + 1;
    loop {
        at += memchr::memchr2(b'"', b'}', bytes.get(at..)?)?;
        if bytes[at] == b'}' {
            return Some(at);
        }
        at += 1;
        loop {
            at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
            if bytes[at] == b'"' {
                at += 1;
                break;
            }
            at += 2;
        }
    }
}

fn number(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "+Inf" | "Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        // Rust also reads `infinity` and `nan` in any case, as Go does.
        _ => text.parse().ok(),
    }
}

/// A name and its labels, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

impl Series {
    /// The labels as a JSON object, keys in order: what `series.labels` holds.
    pub fn labels_json(&self) -> String {
        serde_json::to_string(&self.labels).expect("text maps to text")
    }
}

fn is_name(text: &str, colons: bool) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || (colons && b == b':'))
}

/// Takes the text of a series apart: `name{label="value"}`, or `{"name", label="value"}` as newer exporters write.
pub fn parse_series(text: &str, limits: &Limits) -> Result<Series, String> {
    let (name, inside) = match text.split_once('{') {
        None => (text.trim(), None),
        Some((name, rest)) => (name.trim(), Some(rest.strip_suffix('}').ok_or("missing closing brace")?)),
    };
    let mut series = Series { name: name.to_string(), ..Series::default() };
    let mut rest = inside.unwrap_or_default().trim_start();
    while !rest.is_empty() {
        let (label, after, quoted) = match rest.strip_prefix('"') {
            Some(r) => {
                let (label, after) = quoted(r)?;
                (label, after, true)
            }
            None => {
                let end = rest.find(['=', ',', ' ', '\t']).ok_or("a label has no value")?;
                (rest[..end].to_string(), &rest[end..], false)
            }
        };
        let after = after.trim_start();
        match after.strip_prefix('=') {
            None if quoted && series.name.is_empty() => {
                series.name = label;
                rest = after;
            }
            None => return Err(format!("label {:?} has no value", shorten(&label))),
            Some(value) => {
                let value = value.trim_start().strip_prefix('"').ok_or("the value of a label is not quoted")?;
                let (value, after) = self::quoted(value)?;
                if !quoted && !is_name(&label, false) {
                    return Err(format!("{:?} is not a valid label name", shorten(&label)));
                }
                if label.len() > limits.name_bytes || value.len() > limits.value_bytes {
                    return Err(format!(
                        "label {:?} is longer than {} (name) or {} (value) bytes",
                        shorten(&label),
                        limits.name_bytes,
                        limits.value_bytes
                    ));
                }
                if series.labels.insert(label.clone(), value).is_some() {
                    return Err(format!("duplicate label {:?}", shorten(&label)));
                }
                rest = after.trim_start();
            }
        }
        if series.labels.len() > limits.labels {
            return Err(format!("more than {} labels", limits.labels));
        }
        rest = match rest.strip_prefix(',') {
            Some(r) => r.trim_start(),
            None if rest.is_empty() => rest,
            None => return Err("missing comma between labels".into()),
        };
    }
    // An empty label is the same as none.
    series.labels.retain(|_, value| !value.is_empty());
    let quoted_name = name.is_empty();
    if series.name.is_empty() || series.name.len() > limits.name_bytes || !(quoted_name || is_name(&series.name, true))
    {
        return Err(format!("{:?} is not a valid metric name", shorten(&series.name)));
    }
    Ok(series)
}

/// The text up to the closing quote, and what follows.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => return Ok((out, &text[i + 1..])),
            '\\' => match chars.next() {
                Some((_, 'n')) => out.push('\n'),
                Some((_, c @ ('"' | '\\'))) => out.push(c),
                Some((_, c)) => {
                    out.push('\\');
                    out.push(c);
                }
                None => break,
            },
            c => out.push(c),
        }
    }
    Err("missing closing quote".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, labels, value, time, kind.
    type Sampled = (String, String, f64, Option<i64>, &'static str);

    fn read(page: &str, open_metrics: bool) -> (Vec<Sampled>, Vec<BadLine>) {
        let (mut samples, mut bad) = (Vec::new(), Vec::new());
        let limits = Limits::default();
        lines(
            page,
            open_metrics,
            &limits,
            |line, kinds| {
                let series = parse_series(line.series, &limits).unwrap();
                let kind = kinds.of(&series.name);
                samples.push((series.name.clone(), series.labels_json(), line.value, line.time_ms, kind));
            },
            |b| bad.push(b),
        );
        (samples, bad)
    }

    #[test]
    fn the_text_format() {
        let page = "# HELP sglang:num_queue_reqs requests that wait\n# TYPE sglang:num_queue_reqs gauge\n\
            sglang:num_queue_reqs{model_name=\"a\\\"b\\\\c\\nd\",tp_rank=\"0\"} 3\n\
            # TYPE lat histogram\nlat_bucket{le=\"0.5\",} 1 1700000000123\nlat_bucket { le=\"+Inf\" } 2\nlat_sum 0.7\nlat_count 2\n\
            \tplain NaN\r\nup +Inf\n{\"dotted.name\", \"a.b\"=\"{}\"} -Inf\n";
        let (samples, bad) = read(page, false);
        assert_eq!(bad, []);
        let got: Vec<_> = samples.iter().map(|s| (s.0.as_str(), s.1.as_str(), s.3, s.4)).collect();
        assert_eq!(
            got,
            [
                ("sglang:num_queue_reqs", r#"{"model_name":"a\"b\\c\nd","tp_rank":"0"}"#, None, "gauge"),
                ("lat_bucket", r#"{"le":"0.5"}"#, Some(1_700_000_000_123), "histogram"),
                ("lat_bucket", r#"{"le":"+Inf"}"#, None, "histogram"),
                ("lat_sum", "{}", None, "histogram"),
                ("lat_count", "{}", None, "histogram"),
                ("plain", "{}", None, "unknown"),
                ("up", "{}", None, "unknown"),
                ("dotted.name", r#"{"a.b":"{}"}"#, None, "unknown"),
            ]
        );
        assert!(samples[5].2.is_nan() && samples[6].2 == f64::INFINITY && samples[7].2 == f64::NEG_INFINITY);
    }

    #[test]
    fn names_in_quotes() {
        let page = "# HELP \"sglang:reqs\" all of them\n# TYPE \"sglang:reqs\" gauge\n{\"sglang:reqs\",tp=\"0\"} 3\n\
            # TYPE \"tokens in\\\"é\" counter\n{\"tokens in\\\"é_total\"} 4\n{ \"sglang:reqs\" , \"a.b\"=\"}\" } 5 7\n\
            # TYPE sglang:plain counter\nsglang:plain_total{tp=\"0\"} 6\n";
        for open_metrics in [false, true] {
            let page = if open_metrics { format!("{page}# EOF\n") } else { page.to_string() };
            let (samples, bad) = read(&page, open_metrics);
            assert_eq!(bad, []);
            let got: Vec<_> = samples.iter().map(|s| (s.0.as_str(), s.1.as_str(), s.2, s.4)).collect();
            assert_eq!(
                got,
                [
                    ("sglang:reqs", r#"{"tp":"0"}"#, 3.0, "gauge"),
                    ("tokens in\"é_total", "{}", 4.0, "counter"),
                    ("sglang:reqs", r#"{"a.b":"}"}"#, 5.0, "gauge"),
                    ("sglang:plain_total", r#"{"tp":"0"}"#, 6.0, "counter"),
                ]
            );
        }
    }

    #[test]
    fn open_metrics() {
        let page = "# TYPE reqs counter\nreqs_total{a=\"x # y\"} 17 1700000000.5 # {trace_id=\"abc\"} 0.67\nreqs_created 1.7e9\n# EOF\n";
        let (samples, bad) = read(page, true);
        assert_eq!(bad, []);
        assert_eq!((samples[0].2, samples[0].3, samples[0].4), (17.0, Some(1_700_000_000_500), "counter"));
        assert_eq!(samples[1].4, "gauge");
        assert!(read("a 1\n", true).1[0].why.contains("EOF"));
        assert!(read("a 1\n# EOF\nb 2\n", true).1[0].why.contains("after"));
    }

    #[test]
    fn bad_lines_are_named_and_the_rest_counts() {
        let page = "good 1\nno_value\na{b=\"c} 1\nx 1 2 3\ny one\nz{} 1 soon\n{} 4\nlast 2\n";
        let (mut good, mut bad) = (0, Vec::new());
        let limits = Limits::default();
        let read = |line: Line, _: &Kinds| match parse_series(line.series, &limits) {
            Ok(_) => good += 1,
            Err(_) => assert_eq!(line.number, 7),
        };
        lines(page, false, &limits, read, |b| bad.push(b.number));
        assert_eq!((good, bad), (2, vec![2, 3, 4, 5, 6]));
        for text in
            ["1a", "a{b}", "a{b=c}", "a{b=\"c\" d=\"e\"}", "a{1b=\"c\"}", "a{b=\"1\",b=\"2\"}", "a b", "a{\"x\"}"]
        {
            assert!(parse_series(text, &limits).is_err(), "{text}");
        }
        let many: String = (0..70).map(|i| format!("l{i}=\"v\",")).collect();
        assert!(parse_series(&format!("a{{{many}}}"), &limits).unwrap_err().contains("more than 64"));
        assert!(parse_series(&format!("a{{b=\"{}\"}}", "x".repeat(5000)), &limits).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_survived(page in "\\PC{0,200}", open in proptest::bool::ANY) {
            let limits = Limits::default();
            lines(&page, open, &limits, |l, _| { let _ = parse_series(l.series, &limits); }, |_| {});
        }

        #[test]
        fn labels_come_back_as_they_were(value in "\\PC{0,40}") {
            let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let line = format!("m{{a=\"{escaped}\"}} 1");
            let limits = Limits::default();
            let mut seen = 0;
            lines(&line, false, &limits, |l, _| {
                let series = parse_series(l.series, &limits).unwrap();
                assert_eq!(series.labels.get("a").map_or("", String::as_str), value);
                seen += 1;
            }, |b| panic!("{b:?}"));
            assert_eq!(seen, 1);
        }
    }
}
