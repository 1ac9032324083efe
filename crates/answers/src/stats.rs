//! Mean, median, extremes and percentiles. Exact, not sketched: all values of a step fit into memory. Percentiles are
//! linear between the two nearest ranks, as numpy's default.

/// What is written of every set of values, in this order.
pub const SUFFIXES: [&str; 8] = ["mean", "median", "max", "min", "p90", "p95", "p99", "count"];

/// The figures named by [`SUFFIXES`]. None if there is no value. Only finite numbers count; the caller sees to that.
pub fn summary(values: &mut [f64]) -> Option<[f64; 8]> {
    if values.is_empty() {
        return None;
    }
    values.sort_unstable_by(f64::total_cmp);
    let n = values.len();
    let mean = values.iter().sum::<f64>() / n as f64;
    let at = |p: f64| percentile(values, p);
    Some([mean, at(0.5), values[n - 1], values[0], at(0.90), at(0.95), at(0.99), n as f64])
}

/// Of sorted values.
pub fn percentile(sorted: &[f64], p: f64) -> f64 {
    let rank = p * (sorted.len() - 1) as f64;
    let (low, high) = (rank.floor() as usize, rank.ceil() as usize);
    let (a, b, t) = (sorted[low], sorted[high], rank - rank.floor());
    // From the nearer end, as numpy does: exact at both.
    if t >= 0.5 { b - (b - a) * (1.0 - t) } else { a + (b - a) * t }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn of_few_values() {
        assert_eq!(summary(&mut []), None);
        assert_eq!(summary(&mut [2.0]), Some([2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0]));
        let [mean, median, max, min, p90, ..] = summary(&mut [4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((mean, median, max, min), (2.5, 2.5, 4.0, 1.0));
        assert!((p90 - 3.7).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn percentiles_rise_and_stay_inside(mut values in prop::collection::vec(-1e9f64..1e9, 1..200)) {
            let [mean, median, max, min, p90, p95, p99, count] = summary(&mut values).unwrap();
            prop_assert!(min <= median && median <= p90 && p90 <= p95 && p95 <= p99 && p99 <= max);
            prop_assert!(min <= mean + 1e-6 && mean <= max + 1e-6);
            prop_assert_eq!(count, values.len() as f64);
        }
    }
}
