//! What belongs together although no context was sent: spans of different trees that name the same request or the same bootstrap
//! room, or that a link connects.
//!
//! - [`Connections`] finds such spans.
//! - [`Connections::reach`] goes from traces to those that are connected with them.
//! - [`Connections::attach`] hangs a tree that served a request under the span that sent it, so that everybody sees it as if the
//!   request had carried a context.
//!
//! A request id may occur again: a request is retried, an engine starts and counts anew. Then time decides: the spans overlap,
//! but for clocks that differ by [`SKEW_NS`] at most.
//!
//! A disaggregated request has two sides, one that prefills and one that decodes. Each has a request id of its own, and the caller knows
//! one of them. Both name the same room: what called one side called the other. So it is with what sends the cache from one to the
//! other: SGLang traces it per rank, always in a trace of its own, with the room as its request id, too.

use std::cmp::Reverse;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use hashbrown::{HashMap, HashSet};
use rollscope_model::read::{Links, column};

use crate::forest::{Forest, NONE};
use crate::texts::Texts;

/// Clocks of machines that work together differ by this much at most.
pub const SKEW_NS: i64 = 10_000_000_000;
/// From a sample over a gateway and a router to an engine, and one more.
const MAX_HOPS: usize = 4;
/// An id that more traces or trees share says nothing about who served whom.
const MAX_SHARERS: usize = 64;

/// Spans of different traces or trees that have to do with each other.
#[derive(Default)]
pub struct Connections {
    /// Requests by number, and a span that names each; sorted.
    requests: Vec<(u32, u32)>,
    /// Bootstrap rooms in the same way.
    rooms: Vec<(u32, u32)>,
    /// Spans, in order, and spans that they link to.
    pub links: Vec<(u32, u32)>,
}

impl Connections {
    /// From the columns `request_id`, `bootstrap_room` and `links`, as far as they are there.
    pub fn read(forest: &Forest, batches: &[RecordBatch]) -> Result<Connections, ArrowError> {
        let has = |name: &str| batches.iter().all(|batch| batch.column_by_name(name).is_some());
        let by_text = |name: &str| {
            if !has(name) {
                return Ok(Vec::new());
            }
            let numbers = forest.texts(batches, name, &mut Texts::default())?.into_iter().enumerate();
            let named = numbers.filter(|(_, number)| *number != NONE);
            Ok::<_, ArrowError>(named.map(|(row, number)| (number, row as u32)).collect())
        };
        let mut out =
            Connections { requests: by_text("request_id")?, rooms: by_text("bootstrap_room")?, links: Vec::new() };
        if has("links") {
            let mut given = 0;
            for batch in batches {
                let links: Links = column(batch, "links")?;
                for row in 0..batch.num_rows() {
                    let to = links.of(row).filter_map(|i| links.trace_id.get(i).zip(links.span_id.get(i)));
                    let to = to.filter_map(|(trace, span)| forest.find(&trace, &span));
                    out.links.extend(to.map(|to| (forest.row_of(given + row as u32), to)));
                }
                given += batch.num_rows() as u32;
            }
        }
        out.sort();
        Ok(out)
    }

    /// The same for a forest that was put in order since.
    pub fn put_in_order(mut self, forest: &Forest) -> Connections {
        self.requests.iter_mut().chain(&mut self.rooms).for_each(|(_, row)| *row = forest.row_of(*row));
        self.links.iter_mut().for_each(|(from, to)| (*from, *to) = (forest.row_of(*from), forest.row_of(*to)));
        self.sort();
        self
    }

    fn sort(&mut self) {
        self.requests.sort_unstable();
        self.rooms.sort_unstable();
        // Those of one span stay as they were sent.
        self.links.sort_by_key(|(from, _)| *from);
    }

    fn links_between_traces(&self, forest: &Forest) -> impl Iterator<Item = (u32, u32)> {
        let trace_of = |row: u32| forest.trace[row as usize];
        self.links.iter().copied().filter(move |(from, to)| trace_of(*from) != trace_of(*to))
    }

    /// Adds the traces that are connected with those of `reached`, directly or through others, and that `may` be.
    /// Both go by the numbers of [`Forest::trace`].
    ///
    /// A trace that names no request and links to several others, such as an engine's batch to the requests in it, belongs to all of
    /// them and connects none of them with each other.
    pub fn reach(&self, forest: &Forest, reached: &mut [bool], may: impl Fn(usize) -> bool) {
        let trace_of = |row: u32| forest.trace[row as usize];
        let mut pairs: Vec<(u32, u32)> =
            self.links_between_traces(forest).map(|(from, to)| (trace_of(from), trace_of(to))).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let several = pairs.chunk_by(|a, b| a.0 == b.0).filter(|links| links.len() > 1).map(|links| links[0].0);
        let mut batches: HashSet<u32> = several.filter(|trace| !reached[*trace as usize]).collect();
        if !batches.is_empty() {
            for (_, row) in &self.requests {
                batches.remove(&trace_of(*row));
            }
        }
        for group in groups(&self.requests).chain(groups(&self.rooms)) {
            same_request(forest, group, &mut pairs);
        }
        for _ in 0..MAX_HOPS {
            let mut new = Vec::new();
            for (a, b) in &pairs {
                for (from, to) in [(a, b), (b, a)] {
                    let new_one = reached[*from as usize] && !reached[*to as usize] && may(*to as usize);
                    if new_one && !batches.contains(from) {
                        new.push(*to as usize);
                    }
                }
            }
            if new.is_empty() {
                return;
            }
            new.into_iter().for_each(|trace| reached[trace] = true);
        }
    }

    /// Hangs trees under the spans that called them: by request id, and by links where the tree names no sample and the caller's
    /// does. The other side of a request, which shares its room, hangs beside it. `sample` has the samples that spans name. Returns
    /// the rows that got a parent.
    ///
    /// A caller begins before what it called and ends after it. Of several the one fits that the tree sticks out of least,
    /// then the shortest, which is the innermost. A tree that outlives its caller fits too, if it begins within it.
    pub fn attach(&self, forest: &mut Forest, sample: &[u32]) -> Vec<u32> {
        let links: Vec<(u32, u32)> = self.links_between_traces(forest).collect();
        if links.is_empty() && groups(&self.requests).chain(groups(&self.rooms)).next().is_none() {
            return Vec::new();
        }
        let tops = tops(&forest.parent);
        // By root: its tree names a sample.
        let mut of_sample = vec![false; forest.len()];
        (0..forest.len()).filter(|row| sample[*row] != NONE).for_each(|row| of_sample[tops[row] as usize] = true);
        let room: HashMap<u32, u32> = self.rooms.iter().map(|(room, row)| (*row, *room)).collect();
        let mut found: HashMap<u32, Caller> = HashMap::new();
        let mut consider = |forest: &Forest, root: u32, caller: u32, by_link: bool| {
            let top = tops[caller as usize];
            // Samples call; nothing that knows of none calls them.
            let backwards = of_sample[root as usize] && !of_sample[top as usize];
            let beside = room.get(&root).is_some_and(|of_root| room.get(&caller) == Some(of_root));
            if top != root
                && !backwards
                && !beside
                && let Some(new) = Caller::of(forest, root as usize, caller, by_link)
            {
                let best = found.entry(root).or_insert(new);
                *best = (*best).min(new);
            }
        };
        for group in groups(&self.requests) {
            let roots: HashSet<u32> = group.iter().map(|(_, row)| tops[*row as usize]).collect();
            if !(2..=MAX_SHARERS).contains(&roots.len()) {
                continue;
            }
            for root in roots.iter().filter(|root| !forest.is_lost(**root as usize)) {
                group.iter().for_each(|(_, caller)| consider(forest, *root, *caller, false));
            }
        }
        for (a, b) in links {
            for (root, caller) in [(a, b), (b, a)] {
                let is_root = tops[root as usize] == root && !forest.is_lost(root as usize);
                if is_root && !of_sample[root as usize] && of_sample[tops[caller as usize] as usize] {
                    consider(forest, root, caller, true);
                }
            }
        }
        self.other_sides(forest, &tops, &mut found);
        let mut order: Vec<(Caller, Reverse<u32>)> =
            found.into_iter().map(|(root, best)| (best, Reverse(root))).collect();
        order.sort_unstable();
        // By root: the tree that it hangs in by now.
        let mut within: HashMap<u32, u32> = HashMap::new();
        let mut attached = Vec::with_capacity(order.len());
        for (Caller { row, .. }, Reverse(root)) in order {
            let (mut top, mut below) = (tops[row as usize], Vec::new());
            while let Some(up) = within.get(&top) {
                below.push(top);
                top = *up;
            }
            within.extend(below.into_iter().map(|root| (root, top)));
            if top != root {
                within.insert(root, top);
                forest.parent[root as usize] = row;
                attached.push(root);
            }
        }
        attached
    }

    /// Adds callers of trees that nothing is known to have called, but another side of the same request. Where nothing called that either,
    /// a side hangs under the longest one: the decode side waits for the prefill side.
    fn other_sides(&self, forest: &Forest, tops: &[u32], found: &mut HashMap<u32, Caller>) {
        let mut new = Vec::new();
        for group in groups(&self.rooms).filter(|group| group.len() <= MAX_SHARERS) {
            let alone =
                |row: u32| tops[row as usize] == row && !forest.is_lost(row as usize) && !found.contains_key(&row);
            let caller_of = |row: u32| match found.get(&row) {
                Some(caller) => caller.row,
                None => forest.parent[row as usize],
            };
            for (_, root) in group.iter().filter(|(_, row)| alone(*row)) {
                let start = forest.start[*root as usize];
                // Both sides are asked at once: should a room occur twice, the nearest start is the other side.
                let nearest = |callers: &dyn Fn(u32) -> Option<Caller>| {
                    let others = group.iter().map(|(_, row)| *row).filter(|row| tops[*row as usize] != *root);
                    let fits =
                        others.filter_map(|row| Some((start.abs_diff(forest.start[row as usize]), callers(row)?)));
                    fits.min().map(|(_, caller)| caller)
                };
                let fits = |caller: u32| Caller::of(forest, *root as usize, caller, false);
                let called = |row: u32| Some(caller_of(row)).filter(|caller| *caller != NONE).and_then(fits);
                let longer = |row: u32| fits(row).filter(|side| alone(row) && !side.outlived);
                new.extend(nearest(&called).or_else(|| nearest(&longer)).map(|caller| (*root, caller)));
            }
        }
        found.extend(new);
    }
}

/// Spans by the request or room that they name, where several do.
fn groups(named: &[(u32, u32)]) -> impl Iterator<Item = &[(u32, u32)]> {
    named.chunk_by(|a, b| a.0 == b.0).filter(|group| group.len() > 1)
}

/// Traces of spans that name one request and overlap in time. What overlaps nothing goes with the nearest that is alone, too.
fn same_request(forest: &Forest, group: &[(u32, u32)], pairs: &mut Vec<(u32, u32)>) {
    let mut times: Vec<(u32, i64, i64)> = Vec::new();
    for (_, row) in group {
        let row = *row as usize;
        let (trace, start, end) = (forest.trace[row], forest.start[row], forest.end[row]);
        match times.iter().position(|known| known.0 == trace) {
            Some(at) => times[at] = (trace, times[at].1.min(start), times[at].2.max(end)),
            None if times.len() == MAX_SHARERS => return,
            None => times.push((trace, start, end)),
        }
    }
    let apart = |a: &(u32, i64, i64), b: &(u32, i64, i64)| (a.1.saturating_sub(b.2)).max(b.1.saturating_sub(a.2));
    let mut alone = vec![true; times.len()];
    for (a, one) in times.iter().enumerate() {
        for (b, other) in times.iter().enumerate().skip(a + 1).filter(|(_, other)| apart(one, other) <= 0) {
            pairs.push((one.0, other.0));
            (alone[a], alone[b]) = (false, false);
        }
    }
    let alone: Vec<_> = times.iter().zip(alone).filter(|(_, alone)| *alone).map(|(times, _)| times).collect();
    for one in &alone {
        let others = alone.iter().filter(|other| other.0 != one.0);
        if let Some(nearest) = others.min_by_key(|other| apart(one, other)).filter(|other| apart(one, other) <= SKEW_NS)
        {
            pairs.push((one.0, nearest.0));
        }
    }
}

/// A span that may have called a tree. The least fits best.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Caller {
    by_link: bool,
    outlived: bool,
    sticks_out: i64,
    length: i64,
    row: u32,
}

impl Caller {
    fn of(forest: &Forest, root: usize, row: u32, by_link: bool) -> Option<Caller> {
        let at = row as usize;
        if forest.state[at].is_point() {
            return None;
        }
        let (start, end) = (forest.start[root], forest.end[root]);
        let (from, to) = (forest.start[at], forest.end[at]);
        let sticks_out = from.saturating_sub(start).max(end.saturating_sub(to)).max(0);
        let inside = forest.length(root) <= forest.length(at) && sticks_out <= SKEW_NS;
        let begins_inside = (from..=to).contains(&start);
        let length = forest.length(at);
        (inside || begins_inside).then_some(Caller { by_link, outlived: !inside, sticks_out, length, row })
    }
}

/// The root above each row.
fn tops(parent: &[u32]) -> Vec<u32> {
    let mut tops = vec![NONE; parent.len()];
    let mut path = Vec::new();
    for row in 0..parent.len() {
        let mut at = row;
        while tops[at] == NONE && parent[at] != NONE {
            path.push(at);
            at = parent[at] as usize;
        }
        let top = if tops[at] == NONE { at as u32 } else { tops[at] };
        tops[at] = top;
        path.drain(..).for_each(|row| tops[row] = top);
    }
    tops
}
