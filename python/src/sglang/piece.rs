//! One span of a request: the request itself, a thread that it passes, or a slice.

use std::sync::atomic::AtomicBool;

use smallvec::SmallVec;

use crate::clock;
use crate::core::Core;
use crate::open::{OpenSpan, Opened};
use crate::row::{Row, STATUS_ERROR, STATUS_UNSET, SpanId, TraceId, put_link};

pub type Ids = (TraceId, SpanId);

/// What is known of it at its start.
pub struct Piece {
    pub ids: Ids,
    pub parent: Option<SpanId>,
    pub name: SmallVec<[u8; 48]>,
    pub start_ns: u64,
    pub attrs: SmallVec<[u8; 128]>,
    pub count: u32,
    pub link: Option<Ids>,
    pub reported: AtomicBool,
}

impl Piece {
    /// A new span of a trace.
    pub fn new(trace: TraceId, parent: Option<SpanId>, name: SmallVec<[u8; 48]>, start_ns: u64) -> Piece {
        Piece {
            ids: (trace, clock::new_id()),
            parent,
            name,
            start_ns,
            attrs: SmallVec::new(),
            count: 0,
            link: None,
            reported: AtomicBool::new(false),
        }
    }

    fn row(&self) -> Row<'_> {
        Row {
            parent_id: self.parent.as_ref(),
            start_attrs: [&self.attrs, &[]],
            start_count: self.count,
            ..Row::new((&self.ids.0, &self.ids.1), &self.name, self.start_ns)
        }
    }

    /// The whole span, given to `record`.
    fn ended(&self, end: &End<'_>, record: impl FnOnce(&Row<'_>)) {
        let mut links = SmallVec::<[u8; 32]>::new();
        if let Some((trace, span)) = &self.link {
            put_link(&mut links, trace, span, &[]);
        }
        record(&Row {
            end_ns: Some(end.ns),
            end_attrs: [end.late, end.attrs],
            events: end.events,
            links: &links,
            status: if end.failed { STATUS_ERROR } else { STATUS_UNSET },
            ..self.row()
        });
    }

    /// Records a span that is over already.
    pub fn record(&self, core: &Core, end: &End<'_>) {
        self.ended(end, |row| core.record_row(row));
    }
}

impl OpenSpan for Piece {
    fn start_ns(&self) -> u64 {
        self.start_ns
    }

    fn reported(&self) -> &AtomicBool {
        &self.reported
    }

    fn write_open(&self, out: &mut Vec<u8>) {
        self.row().write(out);
    }
}

/// What the end of a span brings.
#[derive(Default)]
pub struct End<'a> {
    pub ns: u64,
    /// Attributes that were set while it ran, and those of its end.
    pub late: &'a [u8],
    pub attrs: &'a [u8],
    pub events: &'a [u8],
    pub failed: bool,
}

/// A piece that runs.
pub struct Running {
    pub piece: Opened<Piece>,
    pub level: i64,
    pub late: Vec<u8>,
}

impl Running {
    pub fn start(core: &'static Core, piece: Piece, level: i64) -> Running {
        Running { piece: Opened::start(core, piece), level, late: Vec::new() }
    }

    pub fn end(mut self, end: &End<'_>) -> Ids {
        let end = End { late: &self.late, ..*end };
        self.piece.end(|piece, core, queue| piece.ended(&end, |row| core.record_row_locked(queue, row)));
        self.piece.ids
    }
}
