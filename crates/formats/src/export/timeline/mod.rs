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
//! | `weight` | UInt32 | only of a thinned batch ([`thin`]): how many spans an item stands for |
//! | `source` | Int32 | only with [`Options::source`]: the row among those given, -1: we made it up |
//!
//! Order: by sample (spans without one: by worker), lane, start.

mod pd;
mod read;
mod thin;
mod write;

pub use thin::{Focus, PART_MS, thin};

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use read::Items;
use rollscope_spans::{NONE, lanes, open};

/// Metadata of the schema of a packed batch: time 0, and from there to the latest end.
const BASE_NS: &str = "base_ns";
const EXTENT_MS: &str = "extent_ms";

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
pub const COLUMNS: [&str; 22] = [
    "trace_id",
    "span_id",
    "parent_span_id",
    "name",
    "service",
    "phase",
    "thread",
    "host",
    "pid",
    "tp_rank",
    "dp_rank",
    "pp_rank",
    "state",
    "status",
    "sample_id",
    "group_id",
    "attempt",
    "start_ns",
    "end_ns",
    "request_id",
    "bootstrap_room",
    "links",
];

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The step still runs: open spans reach to the newest time.
    pub live: bool,
    /// Send `source`: for a static page, which keeps the rest of each span in the order it came.
    pub source: bool,
}

/// Whether attributes of this batch tell of prefill and decode, so that `end_attrs` is worth keeping for [`pack`].
pub fn has_pd(batch: &RecordBatch) -> bool {
    read::has_pd(batch)
}

/// From the first start to the latest end of a packed batch, in nanoseconds since the epoch.
pub fn extent(packed: &RecordBatch) -> (i64, i64) {
    let metadata = packed.schema_ref().metadata();
    let from: i64 = metadata.get(BASE_NS).and_then(|text| text.parse().ok()).unwrap_or(0);
    let ms: f64 = metadata.get(EXTENT_MS).and_then(|text| text.parse().ok()).unwrap_or(0.0);
    (from, from.saturating_add((ms * 1e6) as i64))
}

/// Packs spans of a step or a window. Spans must be there once.
pub fn pack(batches: &[RecordBatch], options: Options) -> Result<RecordBatch, ArrowError> {
    let mut items = Items::read(batches)?;
    pd::place(&mut items);
    open::close(&mut items.forest, &items.sample, options.live);
    // A row of the picture: a sample, or a worker for what belongs to none.
    let samples = items.samples.list.len() as u32;
    let place = |(sample, worker): (&u32, &u32)| if *sample == NONE { samples + worker } else { *sample };
    let row: Vec<u32> = items.sample.iter().zip(&items.worker).map(place).collect();
    let rows = items.samples.list.len() + items.workers.list.len();
    let sides = pd::side_names(&items);
    let placed = lanes::place(&items.forest, &items.depth, &row, rows, |parent, child| {
        pd::lanes_below(&items, parent, child, sides)
    });
    write::write(&items, &placed, options)
}
