//! Times are `i64` nanoseconds since the Unix epoch.

/// 2000-01-01T00:00:00Z. A live span that claims to be older comes from a clock that was never set.
pub const EARLIEST_LIVE_NS: i64 = 946_684_800_000_000_000;

/// 2200-01-01T00:00:00Z. Far enough for any real clock and safely inside `i64`.
pub const LATEST_NS: i64 = 7_258_118_400_000_000_000;

pub const NS_PER_S: i64 = 1_000_000_000;

/// Seconds as Python writes them, rounded to the nearest nanosecond. `None` when not finite or out of range.
pub fn seconds_to_ns(seconds: f64) -> Option<i64> {
    let ns = (seconds * 1e9).round();
    (ns.is_finite() && ns.abs() < i64::MAX as f64).then_some(ns as i64)
}

pub fn ns_to_seconds(ns: i64) -> f64 {
    // Split so that microseconds survive: an epoch in nanoseconds does not fit the 53 bits of a double.
    (ns / NS_PER_S) as f64 + (ns % NS_PER_S) as f64 / 1e9
}

/// The wall clock, now.
pub fn now_ns() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64)
}
