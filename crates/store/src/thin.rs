//! Series that are old enough are thinned: of every five minutes of a series stay the last sample, a gauge's smallest
//! and largest, a counter's last before it was reset, and all stale markers. What stays is as it was, at its own time, so
//! that every query keeps working, and no spike is lost.

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use rollscope_model::read::{Floats, Ints, Text, column};

use crate::error::StoreError;

const STALE: u64 = 0x7ff0_0000_0000_0002;

/// Rows sorted by series, then by time.
pub(crate) fn thin(batch: &RecordBatch, bucket_ns: i64) -> Result<RecordBatch, StoreError> {
    let text = |name: &str| column::<Text>(batch, name).expect("declared");
    let ids = ["name", "labels", "target"].map(|c| crate::segment::ranks(text(c)));
    let kinds = text("kind");
    let times = column::<Ints>(batch, "time_ns").expect("declared").values();
    let values = column::<Floats>(batch, "value").expect("declared").values();
    let same = |a: usize, b: usize| {
        ids.iter().all(|id| id[a] == id[b]) && times[a].div_euclid(bucket_ns) == times[b].div_euclid(bucket_ns)
    };
    let mut keep = vec![false; batch.num_rows()];
    let mut from = 0;
    while from < keep.len() {
        let mut to = from + 1;
        while to < keep.len() && same(from, to) {
            to += 1;
        }
        let counts = matches!(kinds.at(from), "counter" | "histogram");
        let mut real: Option<(usize, usize, usize)> = None;
        for row in from..to {
            if values[row].to_bits() == STALE {
                keep[row] = true;
                continue;
            }
            real = Some(match real {
                None => (row, row, row),
                Some((least, most, last)) => {
                    if counts && values[row] < values[last] {
                        keep[last] = true;
                    }
                    (
                        if values[row] < values[least] { row } else { least },
                        if values[row] > values[most] { row } else { most },
                        row,
                    )
                }
            });
        }
        if let Some((least, most, last)) = real {
            keep[last] = true;
            if !counts {
                (keep[least], keep[most]) = (true, true);
            }
        }
        from = to;
    }
    Ok(filter_record_batch(batch, &BooleanArray::from(keep))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollscope_model::build::{NewPoint, SeriesBuilder};

    fn kept(kind: &str, values: &[f64]) -> Vec<f64> {
        let mut b = SeriesBuilder::default();
        for (i, value) in values.iter().enumerate() {
            let time_ns = i as i64 * 10_000_000_000;
            b.push(&NewPoint { run_id: "r", target: "t", name: "n", labels: "{}", kind, time_ns, value: *value });
        }
        let thinned = thin(&b.finish().unwrap(), 300_000_000_000).unwrap();
        column::<Floats>(&thinned, "value").unwrap().values().to_vec()
    }

    #[test]
    fn spikes_resets_and_ends_stay() {
        let mut gauge = vec![5.0; 30];
        (gauge[7], gauge[11], gauge[29]) = (100.0, -3.0, 6.0);
        assert_eq!(kept("gauge", &gauge), [100.0, -3.0, 6.0]);
        let mut counter: Vec<f64> = (0..30).map(f64::from).collect();
        counter[20..].iter_mut().for_each(|v| *v -= 20.0);
        assert_eq!(kept("counter", &counter), [19.0, 9.0]);
        let stale = f64::from_bits(STALE);
        assert_eq!(kept("counter", &[1.0, 2.0, stale]).len(), 2);
        // Two buckets; thinning again changes nothing.
        let once = kept("gauge", &(0..60).map(f64::from).collect::<Vec<_>>());
        assert_eq!(once, [0.0, 29.0, 30.0, 59.0]);
    }
}
