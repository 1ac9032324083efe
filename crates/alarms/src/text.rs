//! Numbers and durations as Prometheus and Go write them, and durations as Prometheus reads them.

use std::fmt::Write as _;

/// The longest duration that a rule may state: 100 years.
const MAX_DURATION_MS: i64 = 100 * 365 * 86_400_000;
/// Units from long to short, in the order in which they must come.
const UNITS: [(&str, i64); 7] = [
    ("y", 365 * 86_400_000),
    ("w", 7 * 86_400_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// `1h30m`, `90s`, `250ms`, `0`, in milliseconds.
pub fn parse_duration(text: &str) -> Result<i64, String> {
    let bad = || format!("{text:?} is not a duration; expected one such as 30s, 5m or 1h30m");
    if text == "0" {
        return Ok(0);
    }
    let (mut rest, mut total, mut next_unit) = (text, 0i64, 0);
    if rest.is_empty() {
        return Err(bad());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let number: i64 = rest[..digits].parse().map_err(|_| bad())?;
        let after = &rest[digits..];
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let at = UNITS[next_unit..].iter().position(|(unit, _)| *unit == &after[..letters]).ok_or_else(bad)?;
        let ms = number.checked_mul(UNITS[next_unit + at].1).ok_or_else(bad)?;
        total = total.checked_add(ms).filter(|total| *total <= MAX_DURATION_MS).ok_or_else(bad)?;
        next_unit += at + 1;
        rest = &after[letters..];
    }
    Ok(total)
}

fn special(v: f64) -> Option<&'static str> {
    match v {
        v if v.is_nan() => Some("NaN"),
        f64::INFINITY => Some("+Inf"),
        f64::NEG_INFINITY => Some("-Inf"),
        _ => None,
    }
}

/// Digits and exponent of Rust's `1.5e-7`, with Go's exponent of at least two digits.
fn with_go_exponent(text: &str) -> String {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (sign, size) = match exponent.strip_prefix('-') {
        Some(size) => ('-', size),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{size:0>2}")
}

/// As people write it.
pub fn number(v: f64) -> String {
    special(v).map_or_else(|| v.to_string(), str::to_string)
}

/// Go's `%v`, as templates write numbers: from a million on with an exponent.
pub fn plain(v: f64) -> String {
    match special(v) {
        Some(text) => text.into(),
        None if v == 0.0 || (1e-4..1e6).contains(&v.abs()) => v.to_string(),
        None => with_go_exponent(&format!("{v:e}")),
    }
}

/// Go's `%e` with as many digits as needed, as `/api/v1/alerts` writes values.
pub fn scientific(v: f64) -> String {
    special(v).map_or_else(|| with_go_exponent(&format!("{v:e}")), str::to_string)
}

/// Go's `%.Ng`: so many significant digits, without zeros at the end.
pub fn significant(v: f64, digits: usize) -> String {
    if let Some(text) = special(v) {
        return text.into();
    }
    let digits = digits.clamp(1, 17);
    let rounded = format!("{v:.*e}", digits - 1);
    let exponent: i32 = rounded.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text.to_string(),
    };
    if exponent < -4 || exponent >= digits as i32 {
        let (mantissa, exponent) = rounded.split_once('e').unwrap_or((&rounded, "0"));
        return with_go_exponent(&format!("{}e{exponent}", trimmed(mantissa)));
    }
    trimmed(&format!("{v:.*}", (digits as i32 - 1 - exponent).max(0) as usize))
}

/// `1.234k`, `12.35m`.
pub fn humanize(mut v: f64) -> String {
    let mut prefix = "";
    if v.is_finite() && v != 0.0 {
        if v.abs() >= 1.0 {
            for next in ["k", "M", "G", "T", "P", "E", "Z", "Y"] {
                if v.abs() < 1000.0 {
                    break;
                }
                prefix = next;
                v /= 1000.0;
            }
        } else {
            for next in ["m", "u", "n", "p", "f", "a", "z", "y"] {
                if v.abs() >= 1.0 {
                    break;
                }
                prefix = next;
                v *= 1000.0;
            }
        }
    }
    significant(v, 4) + prefix
}

/// `1.5Gi`.
pub fn humanize_1024(mut v: f64) -> String {
    let mut prefix = "";
    if v.is_finite() && v.abs() > 1.0 {
        for next in ["ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi"] {
            if v.abs() < 1024.0 {
                break;
            }
            prefix = next;
            v /= 1024.0;
        }
    }
    significant(v, 4) + prefix
}

/// `1h 2m 3s`, `250ms`.
pub fn humanize_duration(v: f64) -> String {
    if !v.is_finite() {
        return significant(v, 4);
    }
    if v == 0.0 {
        return "0s".into();
    }
    if v.abs() < 1.0 {
        return humanize(v) + "s";
    }
    let (sign, size) = (if v < 0.0 { "-" } else { "" }, v.abs());
    let whole = size as i64;
    let (seconds, minutes, hours, days) = (whole % 60, whole / 60 % 60, whole / 3600 % 24, whole / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{sign}{}s", significant(size, 4)),
        (0, 0, _) => format!("{sign}{minutes}m {seconds}s"),
        (0, ..) => format!("{sign}{hours}h {minutes}m {seconds}s"),
        _ => format!("{sign}{days}d {hours}h {minutes}m {seconds}s"),
    }
}

/// A time in milliseconds as RFC 3339 in UTC.
pub fn rfc3339(ms: i64) -> String {
    let since = std::time::Duration::from_millis(ms.clamp(0, 253_402_300_799_000) as u64);
    humantime::format_rfc3339_millis(std::time::UNIX_EPOCH + since).to_string()
}

/// `2026-11-17 14:22:51 +0000 UTC`, as Go prints a time.
pub fn go_time(seconds: f64) -> String {
    if !seconds.is_finite() || seconds.abs() > 2e11 {
        return significant(seconds, 4);
    }
    let text = rfc3339((seconds * 1000.0) as i64);
    let (date, time) = text.trim_end_matches('Z').split_once('T').unwrap_or((&text, ""));
    let time = if time.contains('.') { time.trim_end_matches('0').trim_end_matches('.') } else { time };
    format!("{date} {time} +0000 UTC")
}

/// A part of an address.
pub fn address_part(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Seconds and milliseconds as a Prometheus duration.
pub fn duration(ms: i64) -> String {
    if ms == 0 {
        return "0s".into();
    }
    let (mut rest, mut out) = (ms, String::new());
    for (unit, size) in UNITS.iter().skip(2) {
        let n = rest / size;
        if n > 0 {
            let _ = write!(out, "{n}{unit}");
        }
        rest %= size;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_prometheus_reads_them() {
        for (text, ms) in [
            ("0", 0),
            ("0s", 0),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("250ms", 250),
            ("1d12h", 129_600_000),
            ("1y", 31_536_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(ms), "{text}");
        }
        for bad in ["", "5", "m", "5x", "30m1h", "1s1s", "1.5h", "-1s", "99999999999999999999s", "101y", " 5m"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        assert_eq!([duration(0), duration(90_000), duration(86_400_250)], ["0s", "1m30s", "1d250ms"]);
    }

    /// Expected values are those of Go 1.22.
    #[test]
    fn numbers_as_go_writes_them() {
        for (v, text) in [(1.0, "1"), (0.1, "0.1"), (1e9, "1e+09"), (1.5e-5, "1.5e-05"), (1_234_567.0, "1.234567e+06")]
        {
            assert_eq!(plain(v), text);
        }
        for (v, text) in [(1.0, "1e+00"), (12345.0, "1.2345e+04"), (0.25, "2.5e-01"), (f64::NAN, "NaN"), (0.0, "0e+00")]
        {
            assert_eq!(scientific(v), text);
        }
        for (v, text) in
            [(1234.5678, "1235"), (0.00001234567, "1.235e-05"), (12.5, "12.5"), (99999.0, "1e+05"), (0.0, "0")]
        {
            assert_eq!(significant(v, 4), text);
        }
    }

    /// The cases of Prometheus's own tests.
    #[test]
    fn humanized_as_by_prometheus() {
        for (v, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (1_234_567.0, "1.235M"),
            (0.12, "120m"),
            (-1500.0, "-1.5k"),
            (f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(humanize(v), text);
        }
        for (v, text) in [(0.0, "0"), (1.0, "1"), (1_048_576.0, "1Mi"), (0.12, "0.12")] {
            assert_eq!(humanize_1024(v), text);
        }
        for (v, text) in [
            (0.0, "0s"),
            (0.1, "100ms"),
            (0.0001, "100us"),
            (0.12345, "123.5ms"),
            (1.0, "1s"),
            (12.5, "12.5s"),
            (60.0, "1m 0s"),
            (61.0, "1m 1s"),
            (3600.0, "1h 0m 0s"),
            (86_400.0, "1d 0h 0m 0s"),
            (899.99, "14m 59s"),
            (-90.0, "-1m 30s"),
        ] {
            assert_eq!(humanize_duration(v), text);
        }
        assert_eq!(go_time(1_435_065_584.128), "2015-06-23 13:19:44.128 +0000 UTC");
        assert_eq!(go_time(0.0), "1970-01-01 00:00:00 +0000 UTC");
    }
}
