//! Prefill and decode of a disaggregated request (SPEC 1.4). Two styles come in: spans `sglang_pd_prefill` and
//! `sglang_pd_decode` with a child per segment, which slime lays end to end although some contain others; and, older, the
//! durations among the end attributes of the generating span, for which we make rows. Both are placed alike: what is
//! contained lies inside, and nothing reaches beyond the generating span.

use hashbrown::HashMap;
use rollscope_model::pd::{PER_SIDE, SEGMENTS, SIDES};

use rollscope_spans::{NONE, State};

use super::flag;
use super::read::Items;

/// Durations in nanoseconds, in the order of [`SEGMENTS`].
pub type Times = [Option<i64>; 10];

/// Where every segment lies, within `from..to`.
pub fn arrange(times: &Times, from: i64, to: i64) -> [Option<(i64, i64)>; 10] {
    let clip = |(a, b): (i64, i64)| (a.clamp(from, to), b.clamp(from, to));
    let mut out = [None; 10];
    for (outer, first, second) in [(0, 1, 2), (5, 6, 7)] {
        let hand_shake = times[first].unwrap_or(0);
        // Without the container the contained ones say how long it was.
        let whole = times[outer].unwrap_or(hand_shake + times[second].unwrap_or(0));
        let end = from + whole;
        out[outer] = times[outer].map(|_| clip((from, end)));
        out[first] = times[first].map(|d| clip((from, (from + d).min(end))));
        out[second] = times[second].map(|d| {
            let begin = (from + hand_shake).min(end);
            clip((begin, (begin + d).min(end)))
        });
    }
    let after = |which: usize, inner: [usize; 2], out: &[Option<(i64, i64)>; 10]| {
        let ends = [which, inner[0], inner[1]].into_iter().filter_map(|w| out[w].map(|(_, end)| end));
        ends.max().unwrap_or(from)
    };
    let queued = after(0, [1, 2], &out);
    out[3] = times[3].map(|d| clip((queued, queued + d)));
    let prefilled = out[3].map_or(queued, |(_, end)| end);
    out[4] = times[4].map(|d| {
        let least = out[3].map_or(queued, |(start, _)| start);
        clip(((prefilled - d).max(least), if out[3].is_some() { prefilled } else { prefilled + d }))
    });
    let allocated = after(5, [6, 7], &out);
    out[8] = times[8].map(|d| clip((allocated, allocated + d)));
    let transferred = out[8].map_or(allocated, |(_, end)| end);
    out[9] = times[9].map(|d| clip((transferred, transferred + d)));
    out
}

pub fn place(items: &mut Items) {
    let names = SEGMENTS.each_ref().map(|segment| items.names.find(segment.span));
    let sides = side_names(items);
    let mut with_spans: HashMap<u32, [Option<u32>; 2]> = HashMap::new();
    if sides.iter().any(Option::is_some) {
        for i in 0..items.len() {
            let side = sides.iter().position(|side| *side == Some(items.name[i]));
            let parent = items.forest.parent[i];
            if let (Some(side), true) = (side, parent != NONE) {
                with_spans.entry(parent).or_default()[side] = Some(i as u32);
            }
        }
        place_spans(items, &names, &with_spans);
    }
    for (row, times) in std::mem::take(&mut items.pd) {
        let i = row as usize;
        // The segments of the newer style carry their own duration as an attribute.
        let name = Some(items.name[i]);
        let is_part = names.contains(&name) || sides.contains(&name);
        if !is_part && !with_spans.contains_key(&row) && items.forest.state[i] == State::Closed {
            make_rows(items, i, &times);
        }
    }
}

/// Newer style. Segments that are laid flat under their side, as slime does, are moved to where they belong; those that
/// are nested already are right as they are.
fn place_spans(items: &mut Items, names: &[Option<u32>], sides: &HashMap<u32, [Option<u32>; 2]>) {
    let which: HashMap<u32, usize> =
        names.iter().enumerate().filter_map(|(which, name)| Some(((*name)?, which))).collect();
    let of_side: HashMap<u32, u32> =
        sides.iter().flat_map(|(g, s)| s.iter().flatten().map(|side| (*side, *g))).collect();
    let mut segments: HashMap<u32, [Option<u32>; 10]> = HashMap::new();
    for i in 0..items.len() {
        let Some(w) = which.get(&items.name[i]) else { continue };
        let Some(generate) = of_side.get(&items.forest.parent[i]) else { continue };
        segments.entry(*generate).or_insert([None; 10])[*w] = Some(i as u32);
    }
    for (generate, side) in sides {
        let g = *generate as usize;
        items.flags[g] |= flag::HAS_PD;
        let Some(found) = segments.get(generate) else { continue };
        // Flat: something that belongs inside another stands beside it.
        let flat = (0..10).any(|w| found[w].is_some() && SEGMENTS[w].inside.is_some_and(|c| found[c].is_some()));
        if !flat || items.forest.state[g] == State::Open {
            continue;
        }
        let mut times: Times = [None; 10];
        for w in 0..10 {
            times[w] = found[w].map(|i| items.forest.length(i as usize));
        }
        let (from, to) = (items.forest.start[g], items.forest.end[g]);
        let placed = arrange(&times, from, to);
        for w in 0..10 {
            let (Some(row), Some((start, end))) = (found[w], placed[w]) else { continue };
            let row = row as usize;
            (items.forest.start[row], items.forest.end[row]) = (start, end);
            if let Some(outer) = SEGMENTS[w].inside.and_then(|c| found[c]) {
                items.forest.parent[row] = outer;
                items.flags[outer as usize] |= flag::PARENT;
                items.depth[row] = items.depth[outer as usize].saturating_add(1);
            }
        }
        for (n, side) in side.iter().enumerate() {
            let Some(side) = side.map(|s| s as usize) else { continue };
            let last = placed[n * PER_SIDE..][..PER_SIDE].iter().flatten().map(|(_, end)| *end).max().unwrap_or(from);
            (items.forest.start[side], items.forest.end[side]) = (from, last);
        }
    }
}

/// Older style: a row for each side and segment.
fn make_rows(items: &mut Items, generate: usize, times: &Times) {
    let (from, to) = (items.forest.start[generate], items.forest.end[generate]);
    let placed = arrange(times, from, to);
    items.flags[generate] |= flag::HAS_PD | flag::PARENT;
    for (n, side) in SIDES.iter().enumerate() {
        let range = n * PER_SIDE..(n + 1) * PER_SIDE;
        let Some(last) = placed[range.clone()].iter().flatten().map(|(_, end)| *end).max() else { continue };
        let top = push(items, generate, side.span, from, last);
        let mut rows = [None; 10];
        for w in range {
            let Some((start, end)) = placed[w] else { continue };
            let parent = SEGMENTS[w].inside.and_then(|c| rows[c]).unwrap_or(top);
            items.flags[parent] |= flag::PARENT;
            rows[w] = Some(push(items, parent, SEGMENTS[w].span, start, end));
        }
    }
}

fn push(items: &mut Items, parent: usize, name: &str, start: i64, end: i64) -> usize {
    let name = items.names.number(name);
    items.depth.push(items.depth[parent].saturating_add(1));
    items.flags.push(flag::VIRTUAL | flag::CLOSED);
    items.name.push(name);
    items.phase.push(NONE);
    for column in [&mut items.sample, &mut items.group, &mut items.worker] {
        column.push(column[parent]);
    }
    items.attempt.push(items.attempt[parent]);
    items.forest.add_below(parent, start, end)
}

/// Lanes between the generating span and a row under it: prefill, then decode, then everything else.
pub fn lanes_below(items: &Items, parent: usize, child: usize, [prefill, decode]: [Option<u32>; 2]) -> u8 {
    let name = Some(items.name[child]);
    if items.flags[parent] & flag::HAS_PD == 0 || name == prefill {
        1
    } else if name == decode {
        4
    } else {
        7
    }
}

/// What spans of prefill and of decode are called, where there are any.
pub fn side_names(items: &Items) -> [Option<u32>; 2] {
    SIDES.each_ref().map(|side| items.names.find(side.span))
}
