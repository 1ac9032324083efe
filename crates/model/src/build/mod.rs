//! Column and row builders. Importers fill these. No other code builds a batch of a table by hand.
//!
//! Hot paths (OTLP) write the columns directly with interned keys; everyone else fills a row struct ([`NewSpan`],
//! [`NewSample`], ...) and calls `push`. A row struct is an argument list with names: it borrows, and is never stored.
//! [`read`](crate::read) is the mirror.

mod columns;
mod lists;
mod spans;
mod tables;

pub use columns::{AttrsColumn, DictColumn, EventsColumn, IdColumn, LinksColumn, NULL_KEY};
pub use lists::{NewPart, rounded};
pub use spans::{NewEvent, NewLink, NewSpan, SpansBuilder};
pub use tables::{
    ConversationsBuilder, MetricsBuilder, NewConversation, NewMetric, NewPoint, NewRun, NewSample, NewTokens,
    RunsBuilder, SamplesBuilder, SeriesBuilder, TokensBuilder,
};

#[cfg(test)]
mod tests {
    use arrow::array::{Array, MapArray};

    use super::*;
    use crate::attrs::Value;

    #[test]
    fn a_pushed_span_fits_the_schema() {
        let mut b = SpansBuilder::default();
        b.push(&NewSpan {
            run_id: "r",
            name: "a",
            start_attrs: &[("n", Value::Int(3))],
            events: &[NewEvent { time_ns: 5, name: "e", attrs: &[("k", "v".into())] }],
            links: &[NewLink { trace_id: [1; 16], span_id: [2; 8], attrs: &[] }],
            ..NewSpan::default()
        });
        b.push(&NewSpan { run_id: "r", name: "b", phase: Some("train"), ..NewSpan::default() });
        let batch = b.finish().unwrap();
        assert_eq!(batch.num_rows(), 2);
        assert_eq!(batch.column_by_name("phase").unwrap().null_count(), 1);
        assert_eq!(b.finish().unwrap().num_rows(), 0);
    }

    #[test]
    fn every_table_builds_an_empty_batch_and_a_row() {
        let mut samples = SamplesBuilder::default();
        samples.push(&NewSample { run_id: "r", sample_id: "0", split: "train", ..NewSample::default() });
        assert_eq!(samples.finish().unwrap().num_rows(), 1);
        assert_eq!(RunsBuilder::default().finish().unwrap().num_rows(), 0);
        assert_eq!(ConversationsBuilder::default().finish().unwrap().num_rows(), 0);
        assert_eq!(MetricsBuilder::default().finish().unwrap().num_rows(), 0);
        assert_eq!(SeriesBuilder::default().finish().unwrap().num_rows(), 0);
        assert_eq!(TokensBuilder::default().finish().unwrap().num_rows(), 0);
    }

    #[test]
    fn a_bad_row_can_be_undone() {
        let mut column = AttrsColumn::default();
        column.put_int("a", 1);
        column.end_row();
        column.put_int("b", 2);
        assert_eq!(column.open_entries(), 1);
        column.truncate(1);
        column.put_str("c", "x");
        column.end_row();
        let array = column.finish();
        let map = array.as_any().downcast_ref::<MapArray>().unwrap();
        assert_eq!(map.value_length(0), 1);
        assert_eq!(map.value_length(1), 1);
        assert_eq!(map.keys().len(), 2);
    }
}
