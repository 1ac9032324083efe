//! What is unusual about a run, from figures per step. Pure functions: a step is compared with those before it, by their median and
//! their spread (1.4826 times the median absolute deviation, which is the standard deviation of normal figures).

/// Steps that a step is compared with: at least, and at most.
const LEAST_HISTORY: usize = 8;
const MOST_HISTORY: usize = 50;
/// Steps in a row that must be unusual where one may be chance.
const IN_A_ROW: usize = 3;
/// A slow step takes at least this many times the median.
const SLOW: f64 = 1.5;
/// Where all steps take the same time, this share of it is their spread.
const LEAST_SPREAD: f64 = 0.05;
/// Steps that tell what reward a run had last.
const REWARD_WINDOW: usize = 10;
/// A collapse loses at least this share of the reward.
const LEAST_DROP: f64 = 0.3;
/// Steps that tell what entropy a run had.
const ENTROPY_WINDOW: usize = 5;

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    match n % 2 {
        _ if n == 0 => f64::NAN,
        0 => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        _ => sorted[n / 2],
    }
}

fn spread(values: &[f64], center: f64) -> f64 {
    let off: Vec<f64> = values.iter().map(|v| (v - center).abs()).collect();
    1.4826 * median(&off)
}

/// How much figures differ from one to the next by chance. Unlike `spread`, it does not grow with a trend: the reward of a run that
/// learns well may be anywhere between nothing and everything.
fn noise(values: &[f64]) -> f64 {
    let changes: Vec<f64> = values.windows(2).map(|pair| pair[1] - pair[0]).collect();
    spread(&changes, median(&changes)) / std::f64::consts::SQRT_2
}

fn recent(values: &[f64]) -> &[f64] {
    &values[values.len().saturating_sub(MOST_HISTORY)..]
}

/// The last step against those before it: how many times the median it took, and the median.
pub fn slow_step(seconds: &[f64], threshold: f64) -> Option<(f64, f64)> {
    let (last, before) = seconds.split_last()?;
    let before = recent(before);
    if before.len() < LEAST_HISTORY {
        return None;
    }
    let usual = median(before);
    let limit = usual + threshold * spread(before, usual).max(LEAST_SPREAD * usual);
    (usual > 0.0 && *last > limit && *last > SLOW * usual).then_some((last / usual, usual))
}

/// The mean of the last steps and what was usual, if each of them lost much.
pub fn reward_collapse(rewards: &[f64], threshold: f64) -> Option<(f64, f64)> {
    if rewards.len() < LEAST_HISTORY + IN_A_ROW {
        return None;
    }
    let (before, last) = rewards.split_at(rewards.len() - IN_A_ROW);
    let before = recent(before);
    let usual = median(&before[before.len().saturating_sub(REWARD_WINDOW)..]);
    let chance = (threshold * noise(before)).max(spread(before, median(before)));
    let limit = usual - chance.max(LEAST_DROP * usual.abs());
    let fell = limit < usual && last.iter().all(|r| *r < limit);
    fell.then(|| (last.iter().sum::<f64>() / last.len() as f64, usual))
}

/// The entropy now and the highest that the run had for a while, if little of it is left.
pub fn entropy_collapse(entropies: &[f64], threshold: f64) -> Option<(f64, f64)> {
    if entropies.len() < LEAST_HISTORY + IN_A_ROW {
        return None;
    }
    let (before, last) = entropies.split_at(entropies.len() - IN_A_ROW);
    let had = before.windows(ENTROPY_WINDOW).map(median).fold(f64::NEG_INFINITY, f64::max);
    let fell = had > 0.0 && last.iter().all(|e| *e < threshold * had);
    fell.then(|| (last[IN_A_ROW - 1], had))
}

/// The last share, if the last few all exceed the threshold.
pub fn share(shares: &[f64], threshold: f64, in_a_row: usize) -> Option<f64> {
    let last = &shares[shares.len().checked_sub(in_a_row)?..];
    last.iter().all(|s| *s > threshold).then(|| last[in_a_row - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(n: usize, value: f64) -> Vec<f64> {
        (0..n).map(|i| value * (1.0 + 0.02 * ((i * 7 % 5) as f64 - 2.0))).collect()
    }

    fn and(mut values: Vec<f64>, more: &[f64]) -> Vec<f64> {
        values.extend_from_slice(more);
        values
    }

    #[test]
    fn a_slow_step_is_slow_for_its_run() {
        assert_eq!(slow_step(&flat(20, 60.0), 6.0), None);
        let (times, usual) = slow_step(&and(flat(20, 60.0), &[120.0]), 6.0).unwrap();
        assert!((times - 2.0).abs() < 0.1 && (usual - 60.0).abs() < 2.0);
        assert_eq!(slow_step(&and(flat(20, 60.0), &[80.0]), 6.0), None, "a third is not much");
        assert_eq!(slow_step(&and(flat(7, 60.0), &[600.0]), 6.0), None, "too few to compare with");
        let uneven: Vec<f64> = (0..20).map(|i| 40.0 + 8.0 * (i % 6) as f64).collect();
        assert_eq!(slow_step(&and(uneven, &[120.0]), 6.0), None, "within its spread");
        assert_eq!(slow_step(&[], 6.0), None);
        assert_eq!(slow_step(&[0.0; 20], 6.0), None);
    }

    #[test]
    fn a_collapse_lasts_and_is_deep() {
        assert_eq!(reward_collapse(&and(flat(20, 0.6), &[0.1, 0.6, 0.1]), 3.0), None, "one that recovers");
        let (now, usual) = reward_collapse(&and(flat(20, 0.6), &[0.1, 0.05, 0.0]), 3.0).unwrap();
        assert!((now - 0.05).abs() < 1e-9 && (usual - 0.6).abs() < 0.02);
        assert_eq!(reward_collapse(&and(flat(20, 0.6), &[0.5, 0.5, 0.5]), 3.0), None, "a little");
        assert!(reward_collapse(&and(flat(20, -1.0), &[-3.0, -3.0, -3.0]), 3.0).is_some(), "below zero");
        assert_eq!(reward_collapse(&[0.0; 30], 3.0), None);
        let rising: Vec<f64> = (0..40).map(|i| i as f64 / 40.0).collect();
        assert_eq!(reward_collapse(&rising, 3.0), None);
        assert!(reward_collapse(&and(rising, &[0.1, 0.0, 0.0]), 3.0).is_some(), "after it rose");
    }

    #[test]
    fn entropy_is_compared_with_what_it_was() {
        assert_eq!(entropy_collapse(&and(flat(20, 0.5), &[0.2, 0.2, 0.2]), 0.1), None);
        assert!(entropy_collapse(&and(flat(20, 0.5), &[0.02, 0.02, 0.02]), 0.1).is_some());
        assert_eq!(entropy_collapse(&and(flat(20, 0.5), &[0.02, 0.2, 0.02]), 0.1), None);
        assert_eq!(entropy_collapse(&[0.0; 30], 0.1), None);
    }

    #[test]
    fn shares_in_a_row() {
        assert_eq!(share(&[0.1, 0.6, 0.7], 0.5, 2), Some(0.7));
        assert_eq!(share(&[0.6, 0.1, 0.7], 0.5, 2), None);
        assert_eq!(share(&[0.7], 0.5, 2), None);
    }
}
