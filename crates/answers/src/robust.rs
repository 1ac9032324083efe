//! Robust statistics. The order in which values came does not matter.

/// The value at rank `q` (0 to 1) of sorted values: the nearest rank, so always a value that occurred.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    Some(sorted[((q * sorted.len() as f64).ceil() as usize).saturating_sub(1).min(last)])
}

pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    median_of(&mut values.into_iter().filter(|v| v.is_finite()).collect::<Vec<f64>>())
}

/// The same of finite numbers, which are put into another order: for those who have many.
pub fn median_of(values: &mut [f64]) -> Option<f64> {
    let n = values.len();
    if n == 0 {
        return None;
    }
    let (below, middle, _) = values.select_nth_unstable_by(n / 2, f64::total_cmp);
    let middle = *middle;
    let before = below.iter().copied().max_by(f64::total_cmp).filter(|_| n.is_multiple_of(2));
    Some(before.map_or(middle, |before| (before + middle) / 2.0))
}

/// Median, and the median distance from it times 1.4826, which for a normal distribution is its standard deviation.
pub fn middle(values: &[f64]) -> Option<(f64, f64)> {
    let centre = median(values.iter().copied())?;
    let spread = median(values.iter().map(|v| (v - centre).abs()))?;
    Some((centre, 1.4826 * spread))
}

pub fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_middles() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), Some(2.0));
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 1.0), Some(3.0));
        assert_eq!(median([3.0, 1.0, 2.0, 10.0]), Some(2.5));
        let (centre, spread) = middle(&[1.0, 2.0, 3.0, 4.0, 100.0]).unwrap();
        assert_eq!((centre, spread), (3.0, 1.4826));
    }
}
