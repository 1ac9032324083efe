//! The part of Go's templates that labels and annotations of rules use: `{{ $labels.x }}`, `{{ $value | humanize }}`,
//! `{{ printf "%.2f" $value }}`. What is not supported is refused by name when the file is read.

use rollscope_query::promql::Labels;

use crate::text;

/// Characters of a template, and of what it makes.
const MAX_TEMPLATE: usize = 16 << 10;
const MAX_EXPANDED: usize = 64 << 10;
/// Actions of a template, and words of one.
const MAX_ACTIONS: usize = 200;
const MAX_WORDS: usize = 50;
/// The widest number that `printf` writes.
const MAX_WIDTH: usize = 100;

const FUNCTIONS: [&str; 10] = [
    "humanize",
    "humanize1024",
    "humanizeDuration",
    "humanizePercentage",
    "humanizeTimestamp",
    "printf",
    "title",
    "toLower",
    "toUpper",
    "index",
];

/// A text with places to fill in.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    source: String,
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(String),
    /// Commands of a pipeline. Each gets what the one before it made as its last argument.
    Action(Vec<Vec<Word>>),
}

#[derive(Clone, Debug, PartialEq)]
enum Word {
    Function(usize),
    Value,
    Labels,
    Label(String),
    Number(f64),
    Text(String),
}

#[derive(Clone, Debug)]
enum Made {
    Number(f64),
    Text(String),
    Labels,
}

impl Template {
    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn parse(source: &str) -> Result<Template, String> {
        if source.len() > MAX_TEMPLATE {
            return Err(format!("the template is longer than {MAX_TEMPLATE} bytes"));
        }
        let (mut pieces, mut rest, mut trim, mut actions) = (Vec::new(), source, false, 0);
        while let Some(open) = rest.find("{{") {
            let inside = &rest[open + 2..];
            let end = closing(inside).ok_or("an action is not closed; expected }}")?;
            let (mut action, after) = (&inside[..end], &inside[end + 2..]);
            let mut before = &rest[..open];
            if trim {
                before = before.trim_start();
            }
            if let Some(trimmed) = action.strip_prefix("- ") {
                (action, before) = (trimmed, before.trim_end());
            }
            trim = action.ends_with(" -");
            if trim {
                action = &action[..action.len() - 2];
            }
            if !before.is_empty() {
                pieces.push(Piece::Text(before.into()));
            }
            if !(action.trim().starts_with("/*") && action.trim().ends_with("*/")) {
                pieces.push(Piece::Action(pipeline(action)?));
            }
            actions += 1;
            if actions > MAX_ACTIONS {
                return Err(format!("the template has more than {MAX_ACTIONS} actions"));
            }
            rest = after;
        }
        let rest = if trim { rest.trim_start() } else { rest };
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.into()));
        }
        let template = Template { source: source.into(), pieces };
        // A wrong argument is found now and not when an alarm is due.
        template.expand(&Labels::default(), 1.0)?;
        Ok(template)
    }

    /// Fills it in. What an expansion may hold is bounded.
    pub fn expand(&self, labels: &Labels, value: f64) -> Result<String, String> {
        let mut out = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Action(commands) => {
                    let mut made = None;
                    for command in commands {
                        made = Some(run(command, made, labels, value)?);
                    }
                    out.push_str(&as_text(&made.unwrap_or(Made::Text(String::new())), labels));
                }
            }
            if out.len() > MAX_EXPANDED {
                return Err(format!("the expanded template is longer than {MAX_EXPANDED} bytes"));
            }
        }
        Ok(out)
    }
}

/// Where an action ends. Quotes may hold `}}`.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(b'"'), b'\\') => at += 1,
            (Some(q), b) if q == b => quote = None,
            (None, b @ (b'"' | b'`')) => quote = Some(b),
            (None, b'}') if bytes.get(at + 1) == Some(&b'}') => return Some(at),
            _ => {}
        }
        at += 1;
    }
    None
}

fn pipeline(text: &str) -> Result<Vec<Vec<Word>>, String> {
    let mut commands: Vec<Vec<Word>> = vec![Vec::new()];
    let (mut rest, mut words) = (text.trim(), 0);
    if rest.is_empty() {
        return Err("an action is empty; expected one such as {{ $value }}".into());
    }
    while let Some(c) = rest.chars().next() {
        words += 1;
        if words > MAX_WORDS {
            return Err(format!("an action has more than {MAX_WORDS} words"));
        }
        let length = match c {
            '|' => {
                commands.push(Vec::new());
                1
            }
            '"' | '`' => {
                let end = quoted(rest).ok_or("a text is not closed")?;
                let inside = &rest[1..end - 1];
                let inside = if c == '"' { unescape(inside) } else { inside.to_string() };
                commands.last_mut().expect("there is one").push(Word::Text(inside));
                end
            }
            _ => {
                let end = rest.find(|c: char| c.is_whitespace() || c == '|').unwrap_or(rest.len());
                commands.last_mut().expect("there is one").push(word(&rest[..end])?);
                end
            }
        };
        rest = rest[length..].trim_start();
    }
    for (place, command) in commands.iter().enumerate() {
        match command.split_first() {
            None => return Err("a command is missing before or after |".into()),
            Some((Word::Function(_), _)) => {}
            Some((first, more)) if place > 0 || !more.is_empty() => {
                return Err(format!("{} is not a function; expected one of: {}", named(first), FUNCTIONS.join(", ")));
            }
            _ => {}
        }
        if command.iter().skip(1).any(|w| matches!(w, Word::Function(_))) {
            return Err("a function is no argument; write it after |".into());
        }
    }
    Ok(commands)
}

fn quoted(text: &str) -> Option<usize> {
    let quote = text.as_bytes()[0];
    let mut escaped = false;
    for (at, b) in text.bytes().enumerate().skip(1) {
        if b == quote && !escaped {
            return Some(at + 1);
        }
        escaped = b == b'\\' && !escaped && quote == b'"';
    }
    None
}

fn unescape(text: &str) -> String {
    let (mut out, mut chars) = (String::new(), text.chars());
    while let Some(c) = chars.next() {
        out.push(match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some(other) => other,
                None => '\\',
            },
            (c, _) => c,
        });
    }
    out
}

fn named(word: &Word) -> String {
    match word {
        Word::Function(i) => FUNCTIONS[*i].into(),
        Word::Value => "$value".into(),
        Word::Labels => "$labels".into(),
        Word::Label(name) => format!("$labels.{name}"),
        Word::Number(n) => n.to_string(),
        Word::Text(text) => format!("{text:?}"),
    }
}

fn word(text: &str) -> Result<Word, String> {
    if let Some(place) = FUNCTIONS.iter().position(|f| *f == text) {
        return Ok(Word::Function(place));
    }
    for labels in ["$labels", ".Labels"] {
        if text == labels {
            return Ok(Word::Labels);
        }
        if let Some(name) = text.strip_prefix(labels).and_then(|rest| rest.strip_prefix('.')) {
            return match is_label_name(name) {
                true => Ok(Word::Label(name.into())),
                false => Err(format!("{text}: {name:?} is no name of a label")),
            };
        }
    }
    match text {
        "$value" | ".Value" => Ok(Word::Value),
        _ => text.parse().map(Word::Number).map_err(|_| {
            format!(
                "{text:?} is not supported in templates; expected $value, $labels.NAME, a text, a number or one of: {}",
                FUNCTIONS.join(", ")
            )
        }),
    }
}

pub fn is_label_name(name: &str) -> bool {
    name.chars().enumerate().all(|(i, c)| c == '_' || c.is_ascii_alphabetic() || (i > 0 && c.is_ascii_digit()))
        && !name.is_empty()
}

fn as_text(made: &Made, labels: &Labels) -> String {
    match made {
        Made::Number(n) => text::plain(*n),
        Made::Text(text) => text.clone(),
        Made::Labels => {
            let pairs: Vec<String> = labels.iter().map(|(n, v)| format!("{n}:{v}")).collect();
            format!("map[{}]", pairs.join(" "))
        }
    }
}

fn run(command: &[Word], piped: Option<Made>, labels: &Labels, value: f64) -> Result<Made, String> {
    let made = |word: &Word| match word {
        Word::Value => Made::Number(value),
        Word::Labels => Made::Labels,
        Word::Label(name) => Made::Text(labels.get(name).into()),
        Word::Number(n) => Made::Number(*n),
        Word::Text(text) => Made::Text(text.clone()),
        Word::Function(_) => unreachable!("functions come first"),
    };
    let Word::Function(place) = command[0] else { return Ok(made(&command[0])) };
    let arguments: Vec<Made> = command[1..].iter().map(made).chain(piped).collect();
    let name = FUNCTIONS[place];
    if name == "printf" {
        return printf(&arguments, labels).map(Made::Text);
    }
    if name == "index" {
        return match &arguments[..] {
            [Made::Labels, Made::Text(name)] => Ok(Made::Text(labels.get(name).into())),
            _ => Err("index takes $labels and the name of a label".into()),
        };
    }
    let [argument] = &arguments[..] else {
        return Err(format!("{name} takes one argument and got {}", arguments.len()));
    };
    let number = || match argument {
        Made::Number(n) => Ok(*n),
        Made::Text(text) if text.is_empty() => Ok(f64::NAN),
        Made::Text(text) => text.parse().map_err(|_| format!("{name}: {text:?} is not a number")),
        Made::Labels => Err(format!("{name}: $labels is not a number")),
    };
    let words = || as_text(argument, labels);
    Ok(Made::Text(match name {
        "humanize" => text::humanize(number()?),
        "humanize1024" => text::humanize_1024(number()?),
        "humanizeDuration" => text::humanize_duration(number()?),
        "humanizePercentage" => text::significant(number()? * 100.0, 4) + "%",
        "humanizeTimestamp" => text::go_time(number()?),
        "toLower" => words().to_lowercase(),
        "toUpper" => words().to_uppercase(),
        _ => words().split(' ').map(title).collect::<Vec<_>>().join(" "),
    }))
}

fn title(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

/// `%v %s %d %f %e %g %%`, with width and precision.
fn printf(arguments: &[Made], labels: &Labels) -> Result<String, String> {
    let Some((Made::Text(format), mut arguments)) = arguments.split_first() else {
        return Err("printf takes a format first, such as \"%.2f\"".into());
    };
    let (mut out, mut chars) = (String::new(), format.chars().peekable());
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut spec = String::new();
        while let Some(c) = chars.peek().filter(|c| c.is_ascii_digit() || "-+.".contains(**c)) {
            spec.push(*c);
            chars.next();
        }
        let verb = chars.next().ok_or("printf: the format ends after %")?;
        if verb == '%' {
            out.push('%');
            continue;
        }
        let Some((argument, more)) = arguments.split_first() else {
            return Err(format!("printf: there is no argument for %{spec}{verb}"));
        };
        arguments = more;
        let (width, precision) = spec.split_once('.').map_or((spec.as_str(), None), |(w, p)| (w, Some(p)));
        let bad = || format!("printf: %{spec}{verb} is not supported; expected one such as %.2f, %d or %s");
        let left = width.starts_with('-');
        let zero = width.trim_start_matches(['-', '+']).starts_with('0');
        let plus = width.starts_with('+');
        let digits = width.trim_start_matches(['-', '+']);
        let width: usize = if digits.is_empty() { 0 } else { digits.parse().map_err(|_| bad())? };
        let precision: Option<usize> =
            precision.map(|p| if p.is_empty() { Ok(0) } else { p.parse().map_err(|_| bad()) }).transpose()?;
        if width > MAX_WIDTH || precision.is_some_and(|p| p > MAX_WIDTH) {
            return Err(format!("printf: %{spec}{verb} is wider than {MAX_WIDTH}"));
        }
        let number = || match argument {
            Made::Number(n) => Ok(*n),
            _ => Err(format!("printf: %{verb} takes a number, such as $value")),
        };
        let mut text = match verb {
            'v' | 's' => as_text(argument, labels),
            'f' => format!("{:.*}", precision.unwrap_or(6), number()?),
            'd' => format!("{:.0}", number()?),
            'g' => precision
                .map_or_else(|| Ok(text::plain(number()?)), |p| Ok::<_, String>(text::significant(number()?, p)))?,
            'e' => match precision {
                Some(p) => text::scientific(format!("{:.p$e}", number()?).parse().unwrap_or(f64::NAN)),
                None => text::scientific(number()?),
            },
            _ => return Err(bad()),
        };
        if plus && !text.starts_with('-') {
            text.insert(0, '+');
        }
        let pad = width.saturating_sub(text.chars().count());
        match (left, zero) {
            (true, _) => out.push_str(&(text + &" ".repeat(pad))),
            (false, true) => out.push_str(&("0".repeat(pad) + &text)),
            (false, false) => out.push_str(&(" ".repeat(pad) + &text)),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(template: &str) -> String {
        let labels = Labels::new([("job".into(), "sglang".into()), ("n".into(), "1500".into())]);
        Template::parse(template).unwrap().expand(&labels, 0.123_456).unwrap()
    }

    #[test]
    fn what_rules_use() {
        for (template, text) in [
            ("plain", "plain"),
            ("{{ $labels.job }} is at {{ $value }}", "sglang is at 0.123456"),
            ("{{.Labels.job}}/{{ .Value }}", "sglang/0.123456"),
            ("{{ $labels.missing }}!", "!"),
            ("{{ $value | humanizePercentage }}", "12.35%"),
            ("{{ $labels.n | humanize }}B", "1.5kB"),
            ("{{ humanizeDuration 90 }}", "1m 30s"),
            ("{{ printf \"%.2f of %s %%\" $value $labels.job }}", "0.12 of sglang %"),
            ("{{ $value | printf \"%6.1f|%d\" 12 }}", "  12.0|0"),
            ("{{ $labels.job | toUpper | printf \"<%s>\" }}", "<SGLANG>"),
            ("{{ index $labels \"job\" }}", "sglang"),
            ("a {{- /* why */ -}} b", "ab"),
            ("{{ `}}` }}{{ \"\\\"}}\" }}", "}}\"}}"),
            ("{{ title \"some words\" }}", "Some Words"),
        ] {
            assert_eq!(filled(template), text, "{template}");
        }
    }

    #[test]
    fn what_is_not_supported_is_named() {
        for (template, named) in [
            ("{{ query \"up\" }}", "query"),
            ("{{ if true }}x{{ end }}", "\"if\""),
            ("{{ $externalURL }}", "$externalURL"),
            ("{{ $value", "not closed"),
            ("{{ }}", "empty"),
            ("{{ $value | }}", "missing"),
            ("{{ $value humanize }}", "not a function"),
            ("{{ humanize $value 2 }}", "one argument"),
            ("{{ printf \"%q\" $value }}", "%q"),
            ("{{ printf \"%999999999f\" $value }}", "wider"),
            ("{{ printf \"%s\" }}", "no argument"),
            ("{{ $labels.a-b }}", "no name of a label"),
            ("{{ humanize \"x\" }}", "not a number"),
        ] {
            let why = Template::parse(template).unwrap_err();
            assert!(why.contains(named), "{template}: {why}");
        }
        assert!(Template::parse(&"x".repeat(MAX_TEMPLATE + 1)).unwrap_err().contains("longer"));
    }
}
