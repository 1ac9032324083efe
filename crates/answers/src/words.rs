//! Numbers in words, the same everywhere.

/// `96 s`, `2.4 s`, `350 ms`, `3 min 20 s`, `2 h 5 min`.
pub fn time(seconds: f64) -> String {
    let s = seconds.abs();
    let sign = if seconds < 0.0 { "-" } else { "" };
    if s >= 3600.0 {
        return format!("{sign}{} h {} min", (s / 3600.0) as u64, (s % 3600.0 / 60.0) as u64);
    }
    let whole = s.round() as u64;
    if whole >= 180 {
        return match whole % 60 {
            0 => format!("{sign}{} min", whole / 60),
            rest => format!("{sign}{} min {rest} s", whole / 60),
        };
    }
    match s {
        s if s >= 9.95 => format!("{sign}{whole} s"),
        s if s >= 0.9995 => format!("{sign}{s:.1} s"),
        s if s >= 0.000_999_5 => format!("{sign}{:.0} ms", s * 1e3),
        0.0 => "0 s".to_string(),
        s => format!("{sign}{:.0} µs", s * 1e6),
    }
}

/// `1 request`, `12 requests`.
pub fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// `4 of 512 samples`, `all 8 samples`, `1 of 64 samples`.
pub fn some_of(count: usize, of: usize, what: &str) -> String {
    match (count, of) {
        (1, 1) => format!("the only {what}"),
        (n, of) if n == of => format!("all {of} {what}s"),
        (n, of) => format!("{n} of {of} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_for_people() {
        for (seconds, text) in [
            (96.4, "96 s"),
            (2.44, "2.4 s"),
            (0.35, "350 ms"),
            (200.0, "3 min 20 s"),
            (240.0, "4 min"),
            (7500.0, "2 h 5 min"),
            (0.0, "0 s"),
            (0.0000123, "12 µs"),
            (-1.5, "-1.5 s"),
        ] {
            assert_eq!(time(seconds), text);
        }
        assert_eq!(some_of(4, 512, "sample"), "4 of 512 samples");
        assert_eq!(some_of(8, 8, "sample"), "all 8 samples");
    }
}
