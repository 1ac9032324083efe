//! Spans of one row of a picture, placed beside each other so that none covers another.

use crate::forest::{Forest, NONE};

/// Deeper nesting and further overlaps share the last lane.
pub const MAX_LANES: usize = 32;
/// Clocks jitter: an overlap of up to a microsecond is none.
const JITTER_NS: i64 = 1000;

pub struct Lanes {
    /// By row of the picture, lane, start.
    pub order: Vec<u32>,
    /// By span.
    pub lane: Vec<u8>,
}

/// `row` says which of `rows` each span is in. A span lies in a lane below its parent's, if that is in the same row: the next
/// one that is free, but not before `below` (parent, child) of them.
pub fn place(forest: &Forest, depth: &[u8], row: &[u32], rows: usize, below: impl Fn(usize, usize) -> u8) -> Lanes {
    let (offsets, mut by_row) = counting_sort(row, rows, 0..forest.len() as u32);
    let mut lane = vec![0u8; forest.len()];
    for r in 0..rows {
        let mine = &mut by_row[offsets[r] as usize..offsets[r + 1] as usize];
        let key = |i: &u32| {
            let i = *i as usize;
            (forest.start[i], std::cmp::Reverse(forest.end[i]), depth[i], i)
        };
        if !mine.is_sorted_by_key(key) {
            mine.sort_unstable_by_key(key);
        }
        let mut lane_end = [i64::MIN; MAX_LANES];
        for i in mine.iter().map(|i| *i as usize) {
            let mut at = match forest.parent[i] {
                NONE => 0,
                parent if row[parent as usize] != r as u32 => 0,
                parent => {
                    let parent = parent as usize;
                    usize::from(lane[parent].saturating_add(below(parent, i))).min(MAX_LANES - 1)
                }
            };
            if !forest.state[i].is_point() {
                while at < MAX_LANES - 1 && lane_end[at] > forest.start[i].saturating_add(JITTER_NS) {
                    at += 1;
                }
                lane_end[at] = lane_end[at].max(forest.end[i]);
            }
            lane[i] = at as u8;
        }
    }
    // A second, stable sort: by lane within the row.
    let slot: Vec<u32> = row.iter().zip(&lane).map(|(row, lane)| row * MAX_LANES as u32 + u32::from(*lane)).collect();
    let (_, order) = counting_sort(&slot, rows * MAX_LANES, by_row.into_iter());
    Lanes { order, lane }
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
