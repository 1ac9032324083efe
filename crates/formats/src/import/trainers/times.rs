//! Times as other programs write them.

use chrono::{DateTime, NaiveDateTime};

/// A time in ISO 8601, with `T` or a space, with or without an offset (then it is UTC), in nanoseconds since 1970.
pub fn parse_time(text: &str) -> Option<i64> {
    let text = text.trim();
    let at = DateTime::parse_from_rfc3339(text).ok().map(|at| at.to_utc());
    let plain = || {
        let formats = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f"];
        formats.iter().find_map(|format| NaiveDateTime::parse_from_str(text, format).ok()).map(|at| at.and_utc())
    };
    at.or_else(plain)?.timestamp_nanos_opt().filter(|ns| *ns > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_several_hands() {
        let at = 1_790_000_000_000_000_000;
        for text in [
            "2026-09-21T14:13:20Z",
            "2026-09-21T16:13:20.000+02:00",
            "2026-09-21 14:13:20",
            "2026-09-21T14:13:20.000000",
        ] {
            assert_eq!(parse_time(text), Some(at), "{text}");
        }
        assert_eq!(parse_time("2026-09-21 14:13:20.5"), Some(at + 500_000_000));
        for text in ["", "now", "2026-09-21", "0000-00-00 00:00:00", "1790000000"] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }
}
