//! Who belongs to whom: parents, samples, and where open spans are cut.

use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;

use super::flag;
use super::read::{Items, NONE, UNKNOWN};

/// Ids are random already; this only mixes trace and span.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(26) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn write_i32(&mut self, word: i32) {
        self.write_u64(word as u64);
    }
}

/// Fills `parent` by (trace, span id), and gives back the ids of the parents.
pub fn find_parents(items: &mut Items) -> Vec<u64> {
    let parent_ids = std::mem::take(&mut items.parent_id);
    let mut index: HashMap<(i32, u64), u32, BuildHasherDefault<Mix>> =
        HashMap::with_capacity_and_hasher(items.len(), BuildHasherDefault::default());
    for i in 0..items.len() {
        // An end without a start carries the id of a span that is not here; it must not stand for that span.
        if items.state(i) != flag::ORPHAN_END && items.span[i] != 0 {
            index.entry((items.trace[i], items.span[i])).or_insert(i as u32);
        }
    }
    for (i, parent) in parent_ids.iter().enumerate() {
        if *parent == 0 {
            continue;
        }
        match index.get(&(items.trace[i], *parent)) {
            Some(p) if *p as usize != i => items.parent[i] = *p as i32,
            _ => items.flags[i] |= flag::LOST_PARENT,
        }
    }
    parent_ids
}

/// Depths; cuts cycles; hands sample and group down to descendants that do not name their own; marks parents.
pub fn walk(items: &mut Items) {
    let n = items.len();
    let mut seen = vec![0u8; n]; // 0 new, 1 on the path, 2 done
    let mut path: Vec<usize> = Vec::new();
    for i in 0..n {
        let mut k = i;
        while seen[k] == 0 {
            seen[k] = 1;
            path.push(k);
            match items.parent[k] {
                NONE => break,
                p if seen[p as usize] == 1 => {
                    items.parent[k] = NONE;
                    break;
                }
                p => k = p as usize,
            }
        }
        while let Some(k) = path.pop() {
            seen[k] = 2;
            let Ok(p) = usize::try_from(items.parent[k]) else { continue };
            items.flags[p] |= flag::PARENT;
            items.depth[k] = items.depth[p].saturating_add(1);
            if items.sample[k] == NONE && items.sample[p] != NONE {
                items.sample[k] = items.sample[p];
                if items.group[k] == NONE {
                    items.group[k] = items.group[p];
                }
            }
        }
    }
}

/// A trace of one sample lends it to its spans that have none; a trace of many has none to lend.
pub fn lend_samples(items: &mut Items) {
    const MANY: i32 = -2;
    let mut of = vec![(NONE, NONE); items.traces.len()];
    for i in 0..items.len() {
        let (sample, slot) = (items.sample[i], &mut of[items.trace[i] as usize]);
        if sample == NONE || slot.0 == sample {
            continue;
        }
        *slot = if slot.0 == NONE { (sample, items.group[i]) } else { (MANY, NONE) };
    }
    for i in 0..items.len() {
        let (sample, group) = of[items.trace[i] as usize];
        if items.sample[i] == NONE && sample >= 0 {
            items.sample[i] = sample;
            if items.group[i] == NONE {
                items.group[i] = group;
            }
        }
    }
}

/// An open span is drawn until the earliest of: end of its row, start of its next sibling, end of its nearest closed
/// ancestor. While the step runs: until the newest time, within its closed ancestors.
pub fn close_open(items: &mut Items, live: bool) {
    let open: Vec<usize> = (0..items.len()).filter(|i| items.state(*i) == flag::OPEN).collect();
    if open.is_empty() {
        return;
    }
    let family = |items: &Items, i: usize| match items.parent[i] {
        NONE => -2 - i64::from(items.trace[i]),
        p => i64::from(p),
    };
    let mut row_end = vec![0i64; items.samples.texts.len()];
    let mut families: HashMap<i64, Vec<i64>> = open.iter().map(|i| (family(items, *i), Vec::new())).collect();
    for i in 0..items.len() {
        if let Ok(sample) = usize::try_from(items.sample[i]) {
            row_end[sample] = row_end[sample].max(items.start[i]).max(items.end[i]);
        }
        if items.state(i) <= flag::OPEN
            && let Some(starts) = families.get_mut(&family(items, i))
        {
            starts.push(items.start[i]);
        }
    }
    families.values_mut().for_each(|starts| starts.sort_unstable());
    for i in open {
        let mut limit = match usize::try_from(items.sample[i]) {
            Ok(sample) if !live => row_end[sample],
            _ => items.extent,
        };
        let mut ancestor = items.parent[i];
        for _ in 0..256 {
            let Ok(p) = usize::try_from(ancestor) else { break };
            if items.state(p) == flag::CLOSED {
                limit = limit.min(items.end[p]);
                break;
            }
            ancestor = items.parent[p];
        }
        if !live {
            let starts = &families[&family(items, i)];
            let next = starts.partition_point(|s| *s <= items.start[i]);
            limit = starts.get(next).map_or(limit, |s| limit.min(*s));
        }
        items.end[i] = limit.max(items.start[i]);
    }
    debug_assert!(items.end.iter().all(|e| *e != UNKNOWN));
}
