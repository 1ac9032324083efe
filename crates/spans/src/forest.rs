//! Spans and their parents.

use std::cmp::Reverse;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use hashbrown::HashMap;
use rollscope_model::ids::{SpanId, TraceId};
use rollscope_model::names::state;
use rollscope_model::read::{Ids, Ints, column};

use crate::texts::Texts;

/// No row, no text, no number.
pub const NONE: u32 = u32::MAX;

/// Row numbers go over the wire as signed ones, and rows are added.
const MAX_ROWS: usize = i32::MAX as usize / 4;

/// What is known of a span's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    Closed = 0,
    /// It has no end yet, or never got one.
    Open = 1,
    Instant = 2,
    /// Only its end came.
    OrphanEnd = 3,
}

impl State {
    /// It has no length.
    pub fn is_point(self) -> bool {
        matches!(self, State::Instant | State::OrphanEnd)
    }
}

/// Bits of [`Forest::faults`].
pub mod fault {
    /// It names a parent that is not here, or itself.
    pub const LOST_PARENT: u8 = 1;
    /// It named a parent that is below it: one span of the circle loses its own.
    pub const IN_CIRCLE: u8 = 4;
    /// It ends before it begins; its end is taken for its start.
    pub const BACKWARDS: u8 = 2;
}

/// Spans, column by column, and who is whose parent. Rows stand by start, the longest first, then by their ids.
///
/// A parent is a span of the same trace, also one of which only the end came. In a circle of spans that name each other as
/// parents, one loses its own.
#[derive(Default)]
pub struct Forest {
    pub start: Vec<i64>,
    /// Of an open span: the latest time of all spans.
    pub end: Vec<i64>,
    pub state: Vec<State>,
    /// See [`fault`].
    pub faults: Vec<u8>,
    /// Rows; [`NONE`] for roots.
    pub parent: Vec<u32>,
    /// The parent as the span names it, zero where it names none.
    pub parent_id: Vec<SpanId>,
    pub span: Vec<SpanId>,
    /// Places in `traces`.
    pub trace: Vec<u32>,
    pub traces: Vec<TraceId>,
    /// The row among those that were given.
    pub source: Vec<u32>,
    pub latest: i64,
    /// The reverse of `source`; empty while rows stand as they were given.
    rows: Vec<u32>,
    /// Where each batch begins among the rows that were given.
    begins: Vec<u32>,
    trace_numbers: HashMap<TraceId, u32>,
    /// Rows as they were given. Ids may be anything, also counters or chosen to collide: the map's own seeded hash takes them
    /// all.
    by_id: HashMap<(u32, SpanId), u32>,
}

impl Forest {
    /// Needs the columns `trace_id`, `span_id`, `parent_span_id`, `start_ns`, `end_ns` and `state`.
    pub fn read(batches: &[RecordBatch]) -> Result<Forest, ArrowError> {
        Ok(Forest::read_as_given(batches)?.put_in_order())
    }

    /// The same with rows as they were given: for those who put them into an order of their own. Spans of a trace mostly come
    /// together, which is quicker to go through.
    pub fn read_as_given(batches: &[RecordBatch]) -> Result<Forest, ArrowError> {
        let mut forest = Forest::of_rows(batches)?;
        forest.source = (0..forest.len() as u32).collect();
        forest.find_parents();
        forest.cut_circles();
        Ok(forest)
    }

    fn of_rows(batches: &[RecordBatch]) -> Result<Forest, ArrowError> {
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        if rows > MAX_ROWS {
            return Err(ArrowError::InvalidArgumentError(format!("{rows} spans are too many for one picture")));
        }
        let mut forest = Forest::default();
        let mut words = Texts::default();
        let states = words.column(batches, "state")?;
        let state_of = |word: u32, has_end: bool| match words.get(word) {
            state::INSTANT => State::Instant,
            state::ORPHAN_END => State::OrphanEnd,
            state::OPEN => State::Open,
            _ if !has_end => State::Open,
            _ => State::Closed,
        };
        for batch in batches {
            let at = forest.start.len();
            forest.begins.push(at as u32);
            let (traces, spans, parents): (Ids<16>, Ids<8>, Ids<8>) =
                (column(batch, "trace_id")?, column(batch, "span_id")?, column(batch, "parent_span_id")?);
            let (starts, ends): (Ints, Ints) = (column(batch, "start_ns")?, column(batch, "end_ns")?);
            for row in 0..batch.num_rows() {
                let number = forest.number_of(traces.get(row).unwrap_or_default());
                forest.trace.push(number);
                forest.span.push(spans.get(row).unwrap_or_default());
                forest.parent_id.push(parents.get(row).unwrap_or_default());
                let (from, to) = (starts.get(row).unwrap_or_default(), ends.get(row));
                let state = state_of(states[at + row], to.is_some());
                let (start, end) = match state {
                    State::Instant => (from, from),
                    State::OrphanEnd => (to.unwrap_or(from), to.unwrap_or(from)),
                    State::Open => (from, from),
                    State::Closed => (from, to.unwrap_or(from).max(from)),
                };
                let backwards = state == State::Closed && to.is_some_and(|to| to < from);
                forest.start.push(start);
                forest.end.push(end);
                forest.state.push(state);
                forest.faults.push(if backwards { fault::BACKWARDS } else { 0 });
            }
        }
        forest.latest = forest.end.iter().copied().max().unwrap_or(0);
        for (end, state) in forest.end.iter_mut().zip(&forest.state) {
            if *state == State::Open {
                *end = forest.latest;
            }
        }
        Ok(forest)
    }

    pub fn len(&self) -> usize {
        self.start.len()
    }

    pub fn is_empty(&self) -> bool {
        self.start.is_empty()
    }

    pub fn length(&self, row: usize) -> i64 {
        self.end[row] - self.start[row]
    }

    pub fn is_lost(&self, row: usize) -> bool {
        self.faults[row] & fault::LOST_PARENT != 0
    }

    /// The row of a span.
    pub fn find(&self, trace: &TraceId, span: &SpanId) -> Option<u32> {
        self.by_id.get(&(*self.trace_numbers.get(trace)?, *span)).map(|given| self.row_of(*given))
    }

    /// The batch that a row came in, and its row there.
    pub fn place(&self, row: usize) -> (usize, usize) {
        let source = self.source[row];
        let batch = self.begins.partition_point(|begin| *begin <= source) - 1;
        (batch, (source - self.begins[batch]) as usize)
    }

    /// Values that stand in the order of the rows that were given, in the order of the forest.
    pub fn arrange<T: Copy>(&self, given: Vec<T>) -> Vec<T> {
        if self.rows.is_empty() { given } else { self.source.iter().map(|row| given[*row as usize]).collect() }
    }

    /// Where a row stands that was given.
    pub fn row_of(&self, given: u32) -> u32 {
        if self.rows.is_empty() { given } else { self.rows[given as usize] }
    }

    /// A text column, in the order of the forest.
    pub fn texts(&self, batches: &[RecordBatch], name: &str, texts: &mut Texts) -> Result<Vec<u32>, ArrowError> {
        Ok(self.arrange(texts.column(batches, name)?))
    }

    /// Adds a span that nobody sent, below one that somebody did. It has no id.
    pub fn add_below(&mut self, parent: usize, start: i64, end: i64) -> usize {
        self.start.push(start);
        self.end.push(end);
        self.state.push(State::Closed);
        self.faults.push(0);
        self.parent.push(parent as u32);
        self.parent_id.push(SpanId::default());
        self.span.push(SpanId::default());
        self.trace.push(self.trace[parent]);
        self.source.push(NONE);
        self.len() - 1
    }

    /// Spans of a trace mostly come together, so the one before is tried first.
    fn number_of(&mut self, id: TraceId) -> u32 {
        if let Some(last) = self.trace.last().filter(|last| self.traces[**last as usize] == id) {
            return *last;
        }
        *self.trace_numbers.entry(id).or_insert_with(|| {
            self.traces.push(id);
            self.traces.len() as u32 - 1
        })
    }

    /// Puts rows that stand as they were given in the order of a forest.
    pub fn put_in_order(mut self) -> Forest {
        let mut order: Vec<(i64, Reverse<i64>, u32)> =
            (0..self.len()).map(|row| (self.start[row], Reverse(self.end[row]), row as u32)).collect();
        let compare = |a: &(i64, Reverse<i64>, u32), b: &(i64, Reverse<i64>, u32)| {
            (a.0, a.1).cmp(&(b.0, b.1)).then_with(|| self.id(a.2).cmp(&self.id(b.2)))
        };
        if order.is_sorted_by(|a, b| compare(a, b).is_le()) {
            return self;
        }
        order.sort_unstable_by(compare);
        self.source = order.into_iter().map(|(_, _, row)| row).collect();
        fn sort<T: Copy>(values: &mut Vec<T>, source: &[u32]) {
            *values = source.iter().map(|row| values[*row as usize]).collect();
        }
        sort(&mut self.start, &self.source);
        sort(&mut self.end, &self.source);
        sort(&mut self.state, &self.source);
        sort(&mut self.faults, &self.source);
        sort(&mut self.parent_id, &self.source);
        sort(&mut self.span, &self.source);
        sort(&mut self.trace, &self.source);
        self.rows = vec![0; self.len()];
        self.source.iter().enumerate().for_each(|(row, given)| self.rows[*given as usize] = row as u32);
        sort(&mut self.parent, &self.source);
        self.parent.iter_mut().filter(|up| **up != NONE).for_each(|up| *up = self.rows[*up as usize]);
        self
    }

    fn id(&self, row: u32) -> (SpanId, TraceId) {
        (self.span[row as usize], self.traces[self.trace[row as usize] as usize])
    }

    /// What the order of a forest goes by.
    fn place_in_order(&self, row: u32) -> (i64, Reverse<i64>, (SpanId, TraceId)) {
        (self.start[row as usize], Reverse(self.end[row as usize]), self.id(row))
    }

    fn find_parents(&mut self) {
        let nobody = SpanId::default();
        let mut by_id = HashMap::with_capacity(self.len());
        for row in 0..self.len() {
            if self.span[row] != nobody {
                let first = by_id.entry((self.trace[row], self.span[row])).or_insert(row as u32);
                // Of several with one id, the first in the order of a forest, whichever came first.
                if *first != row as u32 && self.place_in_order(row as u32) < self.place_in_order(*first) {
                    *first = row as u32;
                }
            }
        }
        self.by_id = by_id;
        self.parent = vec![NONE; self.len()];
        for row in 0..self.len() {
            if self.parent_id[row] == nobody {
                continue;
            }
            match self.by_id.get(&(self.trace[row], self.parent_id[row])) {
                Some(parent) if *parent as usize != row => self.parent[row] = *parent,
                _ => self.faults[row] |= fault::LOST_PARENT,
            }
        }
    }

    fn cut_circles(&mut self) {
        // 0: not seen, 1: on the way up, 2: leads to a root.
        let mut seen = vec![0u8; self.len()];
        let mut path: Vec<usize> = Vec::new();
        for row in 0..self.len() {
            let mut at = row as u32;
            while at != NONE && seen[at as usize] == 0 {
                seen[at as usize] = 1;
                path.push(at as usize);
                at = self.parent[at as usize];
            }
            if at != NONE && seen[at as usize] == 1 {
                let around =
                    std::iter::successors(Some(at), |row| Some(self.parent[*row as usize]).filter(|up| *up != at));
                let first = around.min_by_key(|row| self.place_in_order(*row)).unwrap_or(at) as usize;
                self.parent[first] = NONE;
                self.faults[first] |= fault::IN_CIRCLE;
            }
            path.drain(..).for_each(|row| seen[row] = 2);
        }
    }
}
