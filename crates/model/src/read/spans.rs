//! Rows of `spans`.

use arrow::array::RecordBatch;
use arrow::error::ArrowError;

use super::columns::{Attrs, Counts, Ids, Ints, SmallInts, Text, column};
use super::lists::{Events, Links};

macro_rules! spans {
    ($($field:ident: $type:ty),+ $(,)?) => {
        /// Every column of `spans`.
        pub struct Spans<'a> {
            rows: usize,
            $(pub $field: $type),+
        }

        impl<'a> Spans<'a> {
            pub fn of(batch: &'a RecordBatch) -> Result<Self, ArrowError> {
                Ok(Spans { rows: batch.num_rows(), $($field: column(batch, stringify!($field))?),+ })
            }
        }
    };
}

spans! {
    run_id: Text<'a>, step: Ints<'a>, trace_id: Ids<'a, 16>, span_id: Ids<'a, 8>, parent_span_id: Ids<'a, 8>,
    name: Text<'a>, kind: Text<'a>, service: Text<'a>, phase: Text<'a>, thread: Text<'a>, host: Text<'a>,
    pid: Ints<'a>, tp_rank: SmallInts<'a>, dp_rank: SmallInts<'a>, pp_rank: SmallInts<'a>, start_ns: Ints<'a>,
    end_ns: Ints<'a>, state: Text<'a>, status: Text<'a>, status_message: Text<'a>, sample_id: Text<'a>,
    group_id: Text<'a>, attempt: SmallInts<'a>, request_id: Text<'a>, bootstrap_room: Text<'a>,
    start_attrs: Attrs<'a>, end_attrs: Attrs<'a>, events: Events<'a>, links: Links<'a>, resource: Text<'a>, scope: Text<'a>, trace_state: Text<'a>,
    flags: Counts<'a>, dropped_attrs: Counts<'a>, dropped_events: Counts<'a>, dropped_links: Counts<'a>,
    original_trace_id: Text<'a>, original_span_id: Text<'a>, original_parent_span_id: Text<'a>,
}

impl<'a> Spans<'a> {
    pub fn len(&self) -> usize {
        self.rows
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Every attribute of a row: first those of the start, then the others.
    pub fn attrs(&self, row: usize) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.start_attrs.row(row).chain(self.end_attrs.row(row))
    }
}
