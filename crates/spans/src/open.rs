//! Where spans without an end are drawn to.

use hashbrown::HashMap;

use crate::forest::{Forest, NONE, State};

/// Ends open spans at the earliest of: the end of their sample, the start of their next sibling, the end of their nearest
/// closed ancestor. While the step runs (`live`): at the latest time, within their closed ancestors.
pub fn close(forest: &mut Forest, sample: &[u32], live: bool) {
    let open: Vec<usize> = (0..forest.len()).filter(|row| forest.state[*row] == State::Open).collect();
    if open.is_empty() {
        return;
    }
    let samples = sample.iter().filter(|sample| **sample != NONE).max().map_or(0, |last| *last as usize + 1);
    let mut sample_end = vec![i64::MIN; samples];
    let family = |row: usize| match forest.parent[row] {
        NONE => (NONE, forest.trace[row]),
        parent => (parent, NONE),
    };
    let mut families: HashMap<(u32, u32), Vec<i64>> = open.iter().map(|row| (family(*row), Vec::new())).collect();
    for (row, sample) in sample.iter().enumerate() {
        // What is known of an open span is its start.
        let known = if forest.state[row] == State::Open { forest.start[row] } else { forest.end[row] };
        if let Some(end) = sample_end.get_mut(*sample as usize) {
            *end = known.max(*end);
        }
        if !forest.state[row].is_point()
            && let Some(starts) = families.get_mut(&family(row))
        {
            starts.push(forest.start[row]);
        }
    }
    families.values_mut().for_each(|starts| starts.sort_unstable());
    let mut ends = Vec::with_capacity(open.len());
    for row in &open {
        let mut limit = match sample_end.get(sample[*row] as usize) {
            Some(end) if !live => *end,
            _ => forest.latest,
        };
        let mut ancestor = forest.parent[*row];
        while ancestor != NONE && forest.state[ancestor as usize] != State::Closed {
            ancestor = forest.parent[ancestor as usize];
        }
        if ancestor != NONE {
            limit = limit.min(forest.end[ancestor as usize]);
        }
        if !live {
            let starts = &families[&family(*row)];
            let next = starts.partition_point(|start| *start <= forest.start[*row]);
            limit = starts.get(next).map_or(limit, |start| limit.min(*start));
        }
        ends.push(limit.max(forest.start[*row]));
    }
    for (row, end) in open.into_iter().zip(ends) {
        forest.end[row] = end;
    }
}
