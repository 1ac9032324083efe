//! Spans as the page draws them: one batch with everything decided that needs a look at all spans at once. Parents are
//! row numbers, samples are inherited, open spans are cut, lanes are given, and rows stand in the order in which they are
//! painted, so that the page only wraps the columns. `GET /runs/{run}/timeline` and the static page both send it.
//!
//! | column | type | meaning |
//! |---|---|---|
//! | `start`, `end` | Float64 | milliseconds since `base_ns` (metadata of the schema); of an open span the end as drawn |
//! | `parent` | Int32 | row of the parent, -1: none |
//! | `flags` | UInt8 | see [`flag`] |
//! | `depth`, `lane` | UInt8 | depth in the tree; lane within the row of the sample (or worker) |
//! | `attempt` | UInt8 | |
//! | `name`, `phase`, `sample`, `group`, `worker` | dictionary of text | phase as the sender said it |
//! | `trace` | dictionary of 16 bytes | |
//! | `span_id` | 8 bytes | zero for rows that we made up ([`flag::VIRTUAL`]) |
//! | `parent_span_id` | 8 bytes | only with [`Options::live`]: lets the page join what comes later |
//! | `source` | Int32 | only with [`Options::source`]: the row among those given, -1: we made it up |
//!
//! Order: by sample (spans without one: by worker), lane, start.

mod lanes;
mod pd;
mod read;
mod tree;
mod write;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;

/// Bits of `flags`. The lower two are the state.
pub mod flag {
    pub const CLOSED: u8 = 0;
    pub const OPEN: u8 = 1;
    pub const INSTANT: u8 = 2;
    pub const ORPHAN_END: u8 = 3;
    pub const STATE: u8 = 3;
    pub const ERROR: u8 = 4;
    /// Has children here.
    pub const PARENT: u8 = 8;
    /// Names a parent that is not here.
    pub const LOST_PARENT: u8 = 16;
    /// Made from attributes of its parent; there is no such span in the store.
    pub const VIRTUAL: u8 = 32;
    /// Its first lanes below are for prefill and decode.
    pub const HAS_PD: u8 = 64;
}

/// Columns that are needed; others are ignored. `end_attrs` may be left out where no span has `pd_*` attributes.
pub const COLUMNS: [&str; 15] = [
    "trace_id",
    "span_id",
    "parent_span_id",
    "name",
    "service",
    "phase",
    "thread",
    "host",
    "state",
    "status",
    "sample_id",
    "group_id",
    "attempt",
    "start_ns",
    "end_ns",
];

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The step still runs: open spans reach to the newest time, and `parent_span_id` is sent too.
    pub live: bool,
    /// Send `source`: for a static page, which keeps the rest of each span in the order it came.
    pub source: bool,
}

/// Whether attributes of this batch tell of prefill and decode, so that `end_attrs` is worth keeping for [`pack`].
pub fn has_pd(batch: &RecordBatch) -> bool {
    read::has_pd(batch)
}

/// Packs spans of a step or a window. Spans must be there once.
pub fn pack(batches: &[RecordBatch], options: Options) -> Result<RecordBatch, ArrowError> {
    let mut items = read::read(batches)?;
    let parent_ids = tree::find_parents(&mut items);
    tree::walk(&mut items);
    tree::lend_samples(&mut items);
    pd::place(&mut items, &parent_ids);
    tree::close_open(&mut items, options.live);
    let placed = lanes::place(&items);
    write::write(&items, &placed, &parent_ids, options)
}
