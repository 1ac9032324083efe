//! Rows (a sample, or a worker for what belongs to none) and lanes within them.

use super::read::{Items, NONE};
use super::{flag, pd};

/// Deeper nesting and further overlaps share the last lane.
pub const MAX_LANES: usize = 32;
/// Clocks jitter: an overlap of up to a microsecond is none.
const JITTER_NS: i64 = 1000;

pub struct Placed {
    /// Items by row, lane, start.
    pub order: Vec<u32>,
    pub lane: Vec<u8>,
}

pub fn place(items: &Items) -> Placed {
    let samples = items.samples.texts.len();
    let row: Vec<u32> = (0..items.len())
        .map(|i| match items.sample[i] {
            NONE => samples as u32 + items.worker[i] as u32,
            sample => sample as u32,
        })
        .collect();
    let rows = samples + items.workers.texts.len();
    let (offsets, mut by_row) = counting_sort(&row, rows, 0..items.len() as u32);
    let sides = pd::side_codes(items);
    let mut lane = vec![0u8; items.len()];
    for r in 0..rows {
        let mine = &mut by_row[offsets[r] as usize..offsets[r + 1] as usize];
        let key = |i: &u32| {
            let i = *i as usize;
            (items.start[i], -items.end[i], items.depth[i], i)
        };
        if !mine.is_sorted_by_key(key) {
            mine.sort_unstable_by_key(key);
        }
        let mut lane_end = [i64::MIN; MAX_LANES];
        for i in mine.iter().map(|i| *i as usize) {
            let base = match usize::try_from(items.parent[i]) {
                Ok(p) if row[p] == r as u32 => (lane[p] + pd::lane_below(items, p, i, sides)).min(MAX_LANES as u8 - 1),
                _ => 0,
            };
            let mut l = base as usize;
            if items.state(i) < flag::INSTANT {
                while l < MAX_LANES - 1 && lane_end[l] > items.start[i].saturating_add(JITTER_NS) {
                    l += 1;
                }
                lane_end[l] = lane_end[l].max(items.end[i]);
            }
            lane[i] = l as u8;
        }
    }
    // A second, stable sort: by lane within the row.
    let slot: Vec<u32> = (0..items.len()).map(|i| row[i] * MAX_LANES as u32 + u32::from(lane[i])).collect();
    let (_, order) = counting_sort(&slot, rows * MAX_LANES, by_row.into_iter());
    Placed { order, lane }
}

fn counting_sort(key: &[u32], keys: usize, items: impl Iterator<Item = u32>) -> (Vec<u32>, Vec<u32>) {
    let mut offsets = vec![0u32; keys + 1];
    key.iter().for_each(|k| offsets[*k as usize + 1] += 1);
    (0..keys).for_each(|k| offsets[k + 1] += offsets[k]);
    let mut next = offsets.clone();
    let mut out = vec![0u32; key.len()];
    for i in items {
        let place = &mut next[key[i as usize] as usize];
        out[*place as usize] = i;
        *place += 1;
    }
    (offsets, out)
}
