//! Durations as people write them, in parameters, on the command line and in configuration files.

use std::time::Duration;

/// `250ms`, `1.5s`, `1m30s`, `10us`, `12h`, `30d`, `2w`. A number without a unit is not a duration.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    // Months and years have no fixed length: Prometheus and `humantime` give them different ones.
    let no_fixed_length = |unit: &str| unit == "M" || unit.starts_with("month") || unit.starts_with('y');
    // Go also writes the micro sign as a Greek letter.
    let text_for_humantime = text.replace('\u{3bc}', "\u{b5}");
    match humantime::parse_duration(&text_for_humantime) {
        Ok(duration) if !text.split(|c: char| !c.is_alphabetic()).any(no_fixed_length) => Ok(duration),
        _ => Err(format!("{text:?} is not a duration; expected one such as 10s, 1m30s or 500ms")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_people_write_them() {
        for (text, ns) in [
            ("250ms", 250_000_000),
            ("1.5s", 1_500_000_000),
            ("0.000000001s", 1),
            ("1m30s", 90_000_000_000),
            (" 1h 30m ", 5_400_000_000_000),
            ("10us", 10_000),
            ("10\u{b5}s", 10_000),
            ("10\u{3bc}s", 10_000),
            ("7ns", 7),
            ("0s", 0),
            ("2h", 7_200_000_000_000),
            ("30d", 2_592_000_000_000_000),
            ("2 days", 172_800_000_000_000),
            ("1w", 604_800_000_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        for bad in ["", " ", "5", "s", "1x", "1.s.", "-1s", "99999999999999999999d", "1e3s", "1y", "2 months", "1M"] {
            assert!(parse_duration(bad).unwrap_err().starts_with(&format!("{bad:?} is not a duration")), "{bad}");
        }
    }
}
