//! Times are `i64` nanoseconds since the Unix epoch.

/// 2000-01-01T00:00:00Z. A live span that claims to be older comes from a clock that was never set.
pub const EARLIEST_LIVE_NS: i64 = 946_684_800_000_000_000;

/// 2200-01-01T00:00:00Z. Far enough for any real clock and safely inside `i64`.
pub const LATEST_NS: i64 = 7_258_118_400_000_000_000;

pub const NS_PER_S: i64 = 1_000_000_000;

/// Seconds as Python writes them, rounded to the nearest nanosecond. `None` when not finite or out of range.
pub fn seconds_to_ns(seconds: f64) -> Option<i64> {
    // Whole seconds and the fraction apart: an epoch in nanoseconds does not fit the 53 bits of a double.
    let whole = seconds.trunc();
    if whole.is_nan() || whole.abs() >= (i64::MAX / NS_PER_S) as f64 {
        return None;
    }
    Some(whole as i64 * NS_PER_S + ((seconds - whole) * 1e9).round() as i64)
}

pub fn ns_to_seconds(ns: i64) -> f64 {
    (ns / NS_PER_S) as f64 + (ns % NS_PER_S) as f64 / 1e9
}

/// The wall clock, now.
pub fn now_ns() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_keep_what_a_double_holds() {
        assert_eq!(seconds_to_ns(1_756_000_000.25), Some(1_756_000_000_250_000_000));
        // The double next to .8656208 is .86562085151672...
        assert_eq!(seconds_to_ns(1_756_000_000.865_620_8), Some(1_756_000_000_865_620_852));
        assert_eq!(seconds_to_ns(-1.5), Some(-1_500_000_000));
        assert_eq!(seconds_to_ns(f64::NAN), None);
        assert_eq!(seconds_to_ns(1e300), None);
        assert_eq!(seconds_to_ns(ns_to_seconds(1_756_000_000_250_000_000)), Some(1_756_000_000_250_000_000));
    }
}
