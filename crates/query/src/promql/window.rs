//! Functions over the samples of a window `(start, end]`.

/// Samples of one series in a window; never empty. Times are milliseconds.
pub struct Window<'a> {
    pub times: &'a [i64],
    pub values: &'a [f64],
    /// Positions in `values` (from the second on) where a counter fell: it was started again.
    pub resets: Resets<'a>,
    pub start: i64,
    pub end: i64,
}

/// Resets of a whole series, found once; a window looks up its own.
#[derive(Clone, Copy)]
pub struct Resets<'a> {
    /// Positions in the series, rising.
    pub all: &'a [usize],
    /// Where the window begins in the series.
    pub offset: usize,
}

pub fn find_resets(values: &[f64]) -> Vec<usize> {
    (1..values.len()).filter(|i| values[*i] < values[*i - 1]).collect()
}

impl Resets<'_> {
    /// Positions inside a window of `len` samples, relative to it; never the first, which has no sample before it.
    fn within(&self, len: usize) -> impl Iterator<Item = usize> + '_ {
        let from = self.all.partition_point(|i| *i <= self.offset);
        let end = self.offset + len;
        self.all[from..].iter().take_while(move |i| **i < end).map(|i| i - self.offset)
    }
}

fn seconds(ms: i64) -> f64 {
    ms as f64 / 1000.0
}

/// `rate`, `increase` and `delta`: the difference between the last and the first sample, scaled up to the whole window. Where
/// the samples begin or end far from the edge, only half an interval beyond them is assumed, and a counter is not
/// assumed to have been below zero.
pub fn extrapolated(w: &Window, is_counter: bool, is_rate: bool) -> Option<f64> {
    let n = w.values.len();
    if n < 2 {
        return None;
    }
    let mut result = w.values[n - 1] - w.values[0];
    if is_counter {
        for i in w.resets.within(n) {
            result += w.values[i - 1];
        }
    }
    let mut to_start = seconds(w.times[0] - w.start);
    let mut to_end = seconds(w.end - w.times[n - 1]);
    let sampled = seconds(w.times[n - 1] - w.times[0]);
    let between = sampled / (n - 1) as f64;
    let threshold = between * 1.1;
    if to_start >= threshold {
        to_start = between / 2.0;
    }
    if is_counter && result > 0.0 && w.values[0] >= 0.0 {
        to_start = to_start.min(sampled * (w.values[0] / result));
    }
    if to_end >= threshold {
        to_end = between / 2.0;
    }
    let mut factor = (sampled + to_start + to_end) / sampled;
    if is_rate {
        factor /= seconds(w.end - w.start);
    }
    Some(result * factor)
}

/// `irate` and `idelta`: the last two samples.
pub fn instant(w: &Window, is_rate: bool) -> Option<f64> {
    let n = w.values.len();
    if n < 2 {
        return None;
    }
    let (before, last) = (w.values[n - 2], w.values[n - 1]);
    let apart = w.times[n - 1] - w.times[n - 2];
    if apart == 0 {
        return None;
    }
    if !is_rate {
        return Some(last - before);
    }
    Some(if last < before { last } else { last - before } / seconds(apart))
}

pub fn resets(w: &Window) -> f64 {
    w.resets.within(w.values.len()).count() as f64
}

pub fn changes(w: &Window) -> f64 {
    w.values.windows(2).filter(|p| p[0] != p[1] && !(p[0].is_nan() && p[1].is_nan())).count() as f64
}

/// Least squares: the value at `at`, and the slope a second.
fn regression(w: &Window, at: i64) -> (f64, f64) {
    let n = w.values.len() as f64;
    // A constant series has slope zero, regardless of rounding.
    if w.values.iter().all(|v| *v == w.values[0]) {
        return if w.values[0].is_infinite() { (f64::NAN, f64::NAN) } else { (w.values[0], 0.0) };
    }
    let (mut x_sum, mut y_sum, mut xy_sum, mut xx_sum) = (0.0, 0.0, 0.0, 0.0);
    for (t, y) in w.times.iter().zip(w.values) {
        let x = seconds(t - at);
        x_sum += x;
        y_sum += y;
        xy_sum += x * y;
        xx_sum += x * x;
    }
    let slope = (xy_sum - x_sum * y_sum / n) / (xx_sum - x_sum * x_sum / n);
    (y_sum / n - slope * x_sum / n, slope)
}

pub fn deriv(w: &Window) -> Option<f64> {
    (w.values.len() >= 2).then(|| regression(w, w.times[0]).1)
}

pub fn predict_linear(w: &Window, ahead_s: f64, now: i64) -> Option<f64> {
    if w.values.len() < 2 {
        return None;
    }
    let (value, slope) = regression(w, now);
    Some(value + slope * ahead_s)
}

/// The sum, with the error of rounding carried along (Neumaier).
pub fn sum(values: impl IntoIterator<Item = f64>) -> f64 {
    let (mut total, mut lost) = (0.0f64, 0.0f64);
    for v in values {
        let t = total + v;
        if t.is_infinite() {
            lost = 0.0;
        } else if total.abs() >= v.abs() {
            lost += (total - t) + v;
        } else {
            lost += (v - t) + total;
        }
        total = t;
    }
    if total.is_infinite() { total } else { total + lost }
}

/// The mean; of values too large to be added up, a running one.
pub fn mean(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let total = sum(values.iter().copied());
    if total.is_finite() || values.iter().any(|v| !v.is_finite()) {
        return total / n;
    }
    sum(values.iter().map(|v| v / n))
}

pub fn variance(values: &[f64]) -> f64 {
    let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
    for v in values {
        count += 1.0;
        let delta = v - mean;
        mean += delta / count;
        squares += delta * (v - mean);
    }
    squares / count
}

/// The largest; NaN only if there is nothing else.
pub fn max(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, |a, b| if b > a || a.is_nan() { b } else { a })
}

pub fn min(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, |a, b| if b < a || a.is_nan() { b } else { a })
}

/// Prometheus's quantile: linear between the two nearest ranks. Leaves the values in another order.
pub fn quantile(phi: f64, values: &mut [f64]) -> f64 {
    if values.is_empty() || phi.is_nan() {
        return f64::NAN;
    }
    if phi < 0.0 {
        return f64::NEG_INFINITY;
    }
    if phi > 1.0 {
        return f64::INFINITY;
    }
    let rank = phi * (values.len() - 1) as f64;
    let weight = rank - rank.floor();
    // NaN counts as the smallest.
    let order = |a: &f64, b: &f64| b.is_nan().cmp(&a.is_nan()).then(a.total_cmp(b));
    // Sorting all of them would take longer, and only two are needed.
    let (_, lower, above) = values.select_nth_unstable_by(rank.floor().max(0.0) as usize, order);
    let lower = *lower;
    let upper = above.iter().copied().min_by(order).unwrap_or(lower);
    lower * (1.0 - weight) + upper * weight
}

/// A cumulative bucket: its upper bound and how many were at most that.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    pub bound: f64,
    pub count: f64,
}

/// Scrapes of several targets may disagree by rounding: a bucket below its neighbour by no more than this share is taken
/// to be equal to it.
const SMALL_DELTA: f64 = 1e-12;

/// Sorts buckets by their bounds; those with the same bound become one. Is the last one, which counts all, there?
fn in_order(buckets: &mut Vec<Bucket>) -> bool {
    buckets.sort_by(|a, b| a.bound.total_cmp(&b.bound));
    buckets.dedup_by(|next, kept| {
        let same = next.bound == kept.bound;
        if same {
            kept.count += next.count;
        }
        same
    });
    buckets.last().is_some_and(|b| b.bound == f64::INFINITY)
}

/// How many there are.
pub fn histogram_count(buckets: &mut Vec<Bucket>) -> f64 {
    match in_order(buckets) {
        true => buckets[buckets.len() - 1].count,
        false => f64::NAN,
    }
}

/// The share that lies between two values, linear within a bucket. Nothing is known inside a bucket that has no end.
pub fn histogram_fraction(lower: f64, upper: f64, buckets: &mut Vec<Bucket>) -> f64 {
    if !in_order(buckets) {
        return f64::NAN;
    }
    let count = buckets[buckets.len() - 1].count;
    if count == 0.0 || lower.is_nan() || upper.is_nan() {
        return f64::NAN;
    }
    if lower >= upper {
        return 0.0;
    }
    // How many are below a value.
    let rank = |value: f64| {
        // Positive bounds only: then nothing is below zero.
        let mut start = if buckets[0].bound > 0.0 { 0.0 } else { f64::NEG_INFINITY };
        let mut below = 0.0;
        for b in &*buckets {
            if start >= value {
                return below;
            }
            if b.bound > value {
                return match start == f64::NEG_INFINITY {
                    true => b.count,
                    false => below + (b.count - below) * (value - start) / (b.bound - start),
                };
            }
            (start, below) = (b.bound, b.count);
        }
        count
    };
    (rank(upper).min(count) - rank(lower).min(count)) / count
}

pub fn histogram_quantile(q: f64, buckets: &mut Vec<Bucket>) -> f64 {
    if q.is_nan() {
        return f64::NAN;
    }
    if q < 0.0 {
        return f64::NEG_INFINITY;
    }
    if q > 1.0 {
        return f64::INFINITY;
    }
    if !in_order(buckets) {
        return f64::NAN;
    }
    let mut highest = buckets[0].count;
    for b in buckets.iter_mut().skip(1) {
        let almost = (b.count - highest).abs() <= SMALL_DELTA * (b.count.abs() + highest.abs());
        if almost || b.count < highest {
            b.count = highest;
        } else {
            highest = b.count;
        }
    }
    let n = buckets.len();
    if n < 2 {
        return f64::NAN;
    }
    let observations = buckets[n - 1].count;
    if observations == 0.0 {
        return f64::NAN;
    }
    let mut rank = q * observations;
    let b = buckets[..n - 1].partition_point(|b| b.count < rank);
    if b == n - 1 {
        return buckets[n - 2].bound;
    }
    if b == 0 && buckets[0].bound <= 0.0 {
        return buckets[0].bound;
    }
    let (mut start, end, mut count) = (0.0, buckets[b].bound, buckets[b].count);
    if b > 0 {
        start = buckets[b - 1].bound;
        count -= buckets[b - 1].count;
        rank -= buckets[b - 1].count;
    }
    start + (end - start) * (rank / count)
}
