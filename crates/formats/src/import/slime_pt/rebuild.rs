//! Spans from slime's events: one pass over the events of one trace, in the order of the file, then a few linear passes
//! over the spans. Dumps and live carriers both come through here.
//!
//! - A `span_start` opens, the `span_end` with the same id closes; an end without a start is an orphan; a start without
//!   an end stays open and is drawn until the earliest of: the end of the row, the start of the next sibling, the end of
//!   the nearest closed ancestor.
//! - A parent that is not named is the innermost span open at that point of the list.
//! - Ids may repeat, parents may form circles, clocks may run backwards: nothing here loops or is quadratic.

use std::borrow::Cow;

use hashbrown::HashMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Start,
    End,
    /// An instant, regardless of its type.
    Other,
}

/// One event, as far as rebuilding needs it. Everything else is found again by its number.
#[derive(Clone, Debug)]
pub struct Event<'a> {
    pub kind: Kind,
    /// Seconds; finite.
    pub ts: f64,
    pub name: Cow<'a, str>,
    /// Empty if there is none.
    pub span_id: Cow<'a, [u8]>,
    pub parent_id: Cow<'a, [u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Closed,
    Open,
    Instant,
    OrphanEnd,
}

/// Why an open span is drawn no longer than it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClippedBy {
    RowEnd,
    NextSiblingStart,
    AncestorEnd,
    Itself,
}

impl ClippedBy {
    pub fn name(self) -> &'static str {
        match self {
            ClippedBy::RowEnd => "row_end",
            ClippedBy::NextSiblingStart => "next_sibling_start",
            ClippedBy::AncestorEnd => "ancestor_end",
            ClippedBy::Itself => "self",
        }
    }
}

/// Where a parent's id is to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    None,
    /// In the event itself.
    Named,
    /// It is the span that this event started.
    Inferred(u32),
}

#[derive(Clone, Debug)]
pub struct Item {
    pub state: State,
    /// The event that started it; of an orphan, the end.
    pub event: u32,
    /// The event that closed it.
    pub end_event: Option<u32>,
    pub start: f64,
    pub end: Option<f64>,
    /// Where drawing stops: the end, or what an open span was clipped to. An instant's own time.
    pub display_end: f64,
    /// Of an open span.
    pub clipped_by: Option<ClippedBy>,
    /// Depth in the chain of parents.
    pub depth: u32,
    pub parent: Parent,
    /// Number of the parent's item, if it is among them.
    pub parent_item: Option<u32>,
}

/// A trace, rebuilt. Items: closed spans as they closed, open spans as they opened, instants, orphans.
#[derive(Clone, Debug, Default)]
pub struct Rebuilt {
    pub items: Vec<Item>,
    /// Starts whose id was started again before it ended. No viewer shows them; they are open spans.
    pub superseded: Vec<Item>,
    /// How many of the items are spans; they come first.
    pub spans: usize,
}

/// Position in the list of open spans, newest last; entries are crossed out, not removed.
struct Active {
    entries: Vec<(u32, u32, Option<u32>, bool)>,
    /// Newest entry of each id.
    newest: Vec<Option<u32>>,
}

impl Active {
    fn push(&mut self, id: u32, event: u32) {
        let at = self.entries.len() as u32;
        self.entries.push((id, event, self.newest[id as usize].replace(at), true));
    }

    fn remove(&mut self, id: u32) {
        if let Some(at) = self.newest[id as usize] {
            self.entries[at as usize].3 = false;
            self.newest[id as usize] = self.entries[at as usize].2;
        }
        while let Some((.., false)) = self.entries.last() {
            self.entries.pop();
        }
    }

    /// The event that started the innermost open span, and its id.
    fn innermost(&self) -> Option<(u32, u32)> {
        self.entries.last().map(|(id, event, ..)| (*event, *id))
    }
}

const NO_ITEM: u32 = u32::MAX;

pub fn rebuild(events: &[Event]) -> Rebuilt {
    // Ids become small numbers.
    let mut ids: HashMap<&[u8], u32> = HashMap::with_capacity(events.len());
    let mut numbered: Vec<(Option<u32>, Option<u32>)> = Vec::with_capacity(events.len());
    for event in events {
        let mut number = |id| {
            let next = ids.len() as u32;
            *ids.entry(id).or_insert(next)
        };
        let span = (!event.span_id.is_empty()).then(|| number(&*event.span_id));
        let parent = (!event.parent_id.is_empty()).then(|| number(&*event.parent_id));
        numbered.push((span, parent));
    }
    let id_count = ids.len();
    drop(ids);

    let mut active = Active { entries: Vec::new(), newest: vec![None; id_count] };
    // The open span of each id: number in `open`. Ended ones are crossed out there.
    let mut open_of: Vec<Option<u32>> = vec![None; id_count];
    let mut open: Vec<Option<(Item, u32, Option<u32>)>> = Vec::new();
    let mut closed: Vec<(Item, u32, Option<u32>)> = Vec::new();
    let mut instants: Vec<(Item, Option<u32>)> = Vec::new();
    let mut orphans: Vec<(Item, Option<u32>)> = Vec::new();
    let mut superseded = Vec::new();
    let mut row_end = f64::NEG_INFINITY;

    for (n, event) in events.iter().enumerate() {
        let (span, named_parent) = numbered[n];
        row_end = row_end.max(event.ts);
        let innermost = active.innermost();
        let (parent, parent_id) = match (named_parent, innermost) {
            (Some(id), _) => (Parent::Named, Some(id)),
            (None, Some((start, id))) => (Parent::Inferred(start), Some(id)),
            (None, None) => (Parent::None, None),
        };
        let item = Item {
            state: State::Open,
            event: n as u32,
            end_event: None,
            start: event.ts,
            end: None,
            display_end: event.ts,
            clipped_by: None,
            depth: 0,
            parent,
            parent_item: None,
        };
        match (event.kind, span) {
            (Kind::Start, Some(id)) => {
                active.push(id, n as u32);
                match open_of[id as usize] {
                    // Started again: the newer start takes the older one's place.
                    Some(at) => superseded.extend(open[at as usize].replace((item, id, parent_id)).map(|o| o.0)),
                    None => {
                        open_of[id as usize] = Some(open.len() as u32);
                        open.push(Some((item, id, parent_id)));
                    }
                }
            }
            (Kind::End, span) => {
                if let Some(id) = span {
                    active.remove(id);
                }
                let started = span.and_then(|id| open_of[id as usize].take()).and_then(|at| open[at as usize].take());
                match started {
                    Some((mut item, id, parent_id)) => {
                        item.state = State::Closed;
                        item.end_event = Some(n as u32);
                        item.end = Some(event.ts);
                        item.display_end = event.ts;
                        closed.push((item, id, parent_id));
                    }
                    None => orphans.push((Item { state: State::OrphanEnd, ..item }, parent_id)),
                }
            }
            _ => instants.push((Item { state: State::Instant, ..item }, parent_id)),
        }
    }

    let mut spans = closed;
    let first_open = spans.len();
    spans.extend(open.into_iter().flatten());

    // The span of each id; of several the last counts.
    let mut span_of = vec![NO_ITEM; id_count];
    for (at, (_, id, _)) in spans.iter().enumerate() {
        span_of[*id as usize] = at as u32;
    }
    let found = |id: Option<u32>| id.map(|id| span_of[id as usize]).filter(|at| *at != NO_ITEM);
    let parent_of: Vec<Option<u32>> = spans.iter().map(|(_, _, parent)| found(*parent)).collect();

    clip(&mut spans, first_open, &parent_of, row_end);
    let depth_of = depths(&spans, &span_of, &parent_of);

    let count = spans.len();
    let mut items = Vec::with_capacity(events.len());
    for (at, (mut item, id, _)) in spans.into_iter().enumerate() {
        item.depth = depth_of[span_of[id as usize] as usize];
        item.parent_item = parent_of[at];
        items.push(item);
    }
    for (mut item, parent) in instants.into_iter().chain(orphans) {
        item.parent_item = found(parent);
        item.depth = item.parent_item.map_or(0, |at| depth_of[at as usize] + 1);
        items.push(item);
    }
    Rebuilt { items, superseded, spans: count }
}

/// Where open spans stop being drawn.
fn clip(spans: &mut [(Item, u32, Option<u32>)], first_open: usize, parent_of: &[Option<u32>], row_end: f64) {
    if first_open == spans.len() {
        return;
    }
    // Starts of siblings, in order: groups by parent, then by time.
    let mut siblings: Vec<(Option<u32>, f64)> = spans.iter().map(|(item, _, parent)| (*parent, item.start)).collect();
    siblings.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let ends = ancestor_ends(spans, parent_of);
    for at in first_open..spans.len() {
        let (item, _, parent) = &mut spans[at];
        let start = item.start;
        let next = siblings.partition_point(|(p, s)| (*p, *s) <= (*parent, start) || p < parent);
        let next = siblings.get(next).filter(|(p, s)| p == parent && *s > start).map(|(_, s)| *s);
        let mut best = (row_end, ClippedBy::RowEnd);
        for candidate in [
            next.map(|s| (s, ClippedBy::NextSiblingStart)),
            ends[at].filter(|e| *e > start).map(|e| (e, ClippedBy::AncestorEnd)),
        ] {
            if let Some(candidate) = candidate
                && candidate.0 < best.0
            {
                best = candidate;
            }
        }
        if best.0 <= start {
            best = (start, ClippedBy::Itself);
        }
        item.display_end = best.0;
        item.clipped_by = Some(best.1);
    }
}

/// For each span the end of the nearest ancestor that has one. A circle of open spans has none.
fn ancestor_ends(spans: &[(Item, u32, Option<u32>)], parent_of: &[Option<u32>]) -> Vec<Option<f64>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        No,
        OnPath,
        Done(Option<f64>),
    }
    let mut seen = vec![Seen::No; spans.len()];
    let mut path = Vec::new();
    for first in 0..spans.len() {
        let mut at = first;
        let end = loop {
            match seen[at] {
                Seen::Done(end) => break end,
                Seen::OnPath => break None,
                Seen::No => {}
            }
            seen[at] = Seen::OnPath;
            path.push(at);
            match parent_of[at] {
                None => break None,
                Some(parent) => match spans[parent as usize].0.end {
                    Some(end) => break Some(end),
                    None => at = parent as usize,
                },
            }
        };
        for at in path.drain(..) {
            seen[at] = Seen::Done(end);
        }
    }
    seen.into_iter().map(|s| if let Seen::Done(end) = s { end } else { None }).collect()
}

/// Depth of each span. In a circle the span that was reached first counts from where the circle closes.
fn depths(spans: &[(Item, u32, Option<u32>)], span_of: &[u32], parent_of: &[Option<u32>]) -> Vec<u32> {
    let mut depth: Vec<Option<u32>> = vec![None; spans.len()];
    let mut on_path = vec![false; spans.len()];
    let mut path: Vec<u32> = Vec::new();
    for (_, id, _) in spans {
        let mut at = span_of[*id as usize];
        let mut below = loop {
            if let Some(known) = depth[at as usize] {
                break known + 1;
            }
            if on_path[at as usize] {
                break 1;
            }
            on_path[at as usize] = true;
            path.push(at);
            match parent_of[at as usize] {
                Some(parent) => at = parent,
                None => break 0,
            }
        };
        for at in path.drain(..).rev() {
            on_path[at as usize] = false;
            depth[at as usize] = Some(below);
            below += 1;
        }
    }
    depth.into_iter().map(Option::unwrap_or_default).collect()
}
