//! Short texts: rounded numbers, lists and long texts that are cut and say how to get more.

use chrono::DateTime;
use serde_json::Value;

/// Characters of a whole answer. What assistants read costs them, and crowds out the rest of the conversation.
pub const MAX_CHARS: usize = 24_000;

/// Four digits: `0.1235`, `1234`, `1.235e7`.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return value.to_string();
    }
    let size = value.abs();
    if size == 0.0 || (1.0..1e15).contains(&size) && value.fract() == 0.0 {
        return format!("{value:.0}");
    }
    if !(1e-4..1e7).contains(&size) {
        return format!("{value:.3e}");
    }
    let digits = (3 - size.log10().floor() as i32).max(0) as usize;
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    }
}

/// A value of an answer as a cell: numbers rounded, nothing for null.
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Number(n) => match (n.as_i64(), n.as_f64()) {
            (Some(whole), _) => whole.to_string(),
            (None, Some(n)) => number(n),
            _ => n.to_string(),
        },
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Nanoseconds since the epoch, as text or as a number.
pub fn when(ns: &Value) -> String {
    let ns = ns.as_i64().or_else(|| ns.as_str()?.parse().ok());
    ns.map_or(String::new(), |ns| DateTime::from_timestamp_nanos(ns).format("%Y-%m-%d %H:%M:%S UTC").to_string())
}

pub fn seconds(value: f64) -> String {
    rollscope_answers::words::time(value)
}

/// At most so many characters.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_string(),
        Some((end, _)) => format!("{}… ({} more characters)", &text[..end], text[end..].chars().count()),
    }
}

/// One line of it, for a cell.
pub fn line(text: &str, most: usize) -> String {
    let flat: String = text.chars().map(|c| if c.is_control() || c == '|' { ' ' } else { c }).collect();
    match flat.char_indices().nth(most) {
        None => flat,
        Some((end, _)) => format!("{}…", &flat[..end]),
    }
}

/// A table in Markdown.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut out = format!("| {} |\n|{}\n", header.join(" | "), "---|".repeat(header.len()));
    for row in rows {
        let cells: Vec<String> = row.iter().map(|cell| line(cell, 200)).collect();
        out.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    out
}

/// How much of a list this is, and how to get the rest.
pub fn shown(shown: usize, offset: usize, total: usize, what: &str) -> String {
    match (shown, total) {
        (_, 0) => format!("No {what}."),
        (0, _) => format!("There are {total} {what}; offset {offset} is past the end."),
        _ if shown == total => format!("{total} {what}."),
        _ => {
            let next = offset + shown;
            let more = if next < total { format!(" For more, pass offset={next}.") } else { String::new() };
            format!("{what} {} to {next} of {total}.{more}", offset + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        let of = [0.0, 7.0, -1234567.0, 0.123456, 12.3456, 1234.56, 1.5, 3e-7, 1.23456e9 + 0.5, f64::NAN].map(number);
        assert_eq!(of, ["0", "7", "-1234567", "0.1235", "12.35", "1235", "1.5", "3.000e-7", "1.235e9", "NaN"]);
    }

    #[test]
    fn what_is_cut_says_so() {
        assert_eq!(cut("äbc", 3), "äbc");
        assert_eq!(cut("äbcdef", 2), "äb… (4 more characters)");
        assert_eq!(line("a|b\nc", 9), "a b c");
        assert_eq!(shown(2, 0, 2, "runs"), "2 runs.");
        assert_eq!(shown(2, 2, 9, "runs"), "runs 3 to 4 of 9. For more, pass offset=4.");
        assert_eq!(shown(0, 0, 0, "runs"), "No runs.");
    }

    #[test]
    fn times() {
        assert_eq!(when(&"1700000000000000000".into()), "2023-11-14 22:13:20 UTC");
        assert_eq!(when(&Value::Null), "");
    }
}
