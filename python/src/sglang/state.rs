//! Where a request stands: its spans, and what waits for them.

use smallvec::SmallVec;

use super::piece::{End, Ids, Piece, Running};
use super::thread;
use crate::core;
use crate::row::put_event;

/// Something that happened in a slice that has not ended yet.
pub struct CachedEvent {
    pub name: Vec<u8>,
    pub time_ns: u64,
    pub attrs: Vec<u8>,
}

/// Where a request stands, in this thread.
#[derive(Default)]
pub struct State {
    pub rid: String,
    pub enabled: bool,
    pub level: i64,
    pub start_ns: u64,
    pub bootstrap_room: Option<u64>,
    pub role: String,
    pub module: String,
    pub is_copy: bool,
    pub external: Option<Ids>,
    pub root: Option<Running>,
    /// The request's span, here or in the process where the request began.
    pub root_ids: Option<Ids>,
    /// The last first-level slice: the next one is linked to it.
    pub last: Option<Ids>,
    pub thread: Option<Running>,
    pub slices: Vec<Running>,
    pub events: Vec<CachedEvent>,
    pub pid: i64,
}

impl State {
    pub fn skips(&self, level: i64) -> bool {
        !self.enabled || self.thread.is_none() || level > self.level
    }

    pub fn begin_thread(&mut self, ts: u64) {
        let (Some(core), Some((trace, root))) = (core::core(), self.root_ids) else { return };
        let mut piece = Piece::new(trace, Some(root), SmallVec::new(), ts);
        thread::describe(self.pid, &mut piece);
        self.thread = Some(Running::start(core, piece, 0));
    }

    /// A slice that starts at `ts`: inside the one that runs, else on the thread and linked to the one before.
    pub fn slice(&self, name: SmallVec<[u8; 48]>, ts: u64) -> Option<Piece> {
        let (outer, link) = match self.slices.last() {
            Some(outer) => (outer, None),
            None => (self.thread.as_ref()?, self.last),
        };
        let (trace, parent) = outer.piece.ids;
        Some(Piece { link, ..Piece::new(trace, Some(parent), name, ts) })
    }

    /// A slice has ended. The next one on the thread is linked to it.
    pub fn slice_ended(&mut self, ids: Ids, ts: u64, thread_finish_flag: bool) {
        if self.slices.is_empty() {
            self.last = Some(ids);
        }
        if thread_finish_flag {
            self.abort(ts, None);
        }
    }

    /// Takes the cached events of a stretch of time, encoded.
    pub fn take_events(&mut self, from: u64, to: u64, out: &mut Vec<u8>) {
        if self.events.is_empty() {
            return;
        }
        self.events.retain(|event| {
            let inside = event.time_ns >= from && event.time_ns < to;
            if inside {
                put_event(out, &event.name, event.time_ns, &event.attrs, 0);
            }
            !inside
        });
    }

    pub fn abort(&mut self, ts: u64, info: Option<&[u8]>) {
        if !self.enabled {
            return;
        }
        let Some(thread) = self.thread.take() else { return };
        while let Some(slice) = self.slices.pop() {
            slice.end(&End { ns: ts, ..End::default() });
        }
        let mut events = Vec::new();
        for event in self.events.drain(..) {
            put_event(&mut events, &event.name, event.time_ns, &event.attrs, 0);
        }
        let attrs = info.unwrap_or_default();
        thread.end(&End { ns: ts, attrs, events: &events, failed: info.is_some(), ..End::default() });
    }

    /// Where a copy continues: the slice that runs, or the last one that ran.
    pub fn previous(&self) -> Option<Ids> {
        self.slices.first().map(|slice| slice.piece.ids).or(self.last)
    }
}
