//! Reading rows as easily as building them: the mirror of [`build`](crate::build).
//!
//! A column is read as what it holds ([`Text`], [`Ints`], [`Ids`], ...), whether it is a dictionary or not, and every row
//! of it is an `Option`. [`column`] finds one by name, for batches that hold a few columns; [`Spans`], [`Samples`],
//! [`Conversations`], [`Runs`], [`Metrics`], [`Series`] and [`Tokens`] hold all columns of a table.

mod columns;
mod lists;
mod spans;
mod tables;

use std::collections::BTreeMap;

use arrow::array::{Array, RecordBatch};

pub use columns::{Attrs, Bools, Column, Counts, Floats, Ids, Ints, Numbers, SmallInts, Text, column};
pub use lists::{BoolLists, Events, Links, Lists, Parts, TextLists};
pub use spans::Spans;
pub use tables::{Conversations, Metrics, Runs, Samples, Series, Tokens};

use crate::tables::Table;

/// The runs in a batch, each with its earliest time.
pub fn runs(table: Table, batch: &RecordBatch) -> BTreeMap<String, i64> {
    let (Ok(runs), Ok(times)) = (column::<Text>(batch, "run_id"), column::<Ints>(batch, table.time_column())) else {
        return BTreeMap::new();
    };
    let Some((keys, names)) = runs.dictionary() else { return BTreeMap::new() };
    let mut first: Vec<Option<i64>> = vec![None; names.len()];
    for (row, key) in keys.iter().enumerate() {
        let Some(slot) = key.and_then(|k| first.get_mut(k as usize)) else { continue };
        let time = times.get(row).unwrap_or(i64::MAX);
        *slot = Some(slot.map_or(time, |t| t.min(time)));
    }
    names.iter().flatten().zip(first).filter_map(|(name, t)| Some((name.to_string(), t?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attrs::Value;
    use crate::build::{
        NewEvent, NewLink, NewPart, NewSample, NewSpan, NewTokens, SamplesBuilder, SpansBuilder, TokensBuilder,
    };

    #[test]
    fn a_span_reads_as_it_was_built() {
        let mut built = SpansBuilder::default();
        built.push(&NewSpan {
            run_id: "r",
            step: Some(3),
            trace_id: [1; 16],
            span_id: [2; 8],
            parent_span_id: Some([3; 8]),
            name: "a",
            phase: Some("train"),
            start_ns: 5,
            end_ns: Some(9),
            start_attrs: &[("n", Value::Int(3))],
            end_attrs: &[("text", "x".into())],
            events: &[NewEvent { time_ns: 7, name: "e", attrs: &[("k", "v".into())] }],
            links: &[NewLink { trace_id: [4; 16], span_id: [5; 8], attrs: &[] }],
            ..NewSpan::default()
        });
        built.push(&NewSpan { run_id: "s", name: "b", start_ns: 4, ..NewSpan::default() });
        let batch = built.finish().unwrap();
        let spans = Spans::of(&batch).unwrap();
        assert_eq!(spans.len(), 2);
        assert_eq!((spans.run_id.at(0), spans.name.at(1)), ("r", "b"));
        assert_eq!((spans.step.get(0), spans.step.get(1)), (Some(3), None));
        assert_eq!((spans.trace_id.get(0), spans.parent_span_id.get(0)), (Some([1; 16]), Some([3; 8])));
        assert_eq!((spans.parent_span_id.get(1), spans.phase.get(1), spans.end_ns.get(1)), (None, None, None));
        assert_eq!(spans.attrs(0).collect::<Vec<_>>(), [("n", "3"), ("text", "\"x\"")]);
        assert_eq!(spans.end_attrs.get(0, "text"), Some("\"x\""));
        let event = spans.events.of(0).next().unwrap();
        assert_eq!((spans.events.time_ns.at(event), spans.events.name.at(event)), (7, "e"));
        let link = spans.links.of(0).next().unwrap();
        assert_eq!((spans.links.trace_id.at(link), spans.links.trace_state.get(link)), ([4; 16], None));
        assert!(spans.events.of(1).is_empty() && spans.links.of(1).is_empty());
        assert_eq!(runs(Table::Spans, &batch), BTreeMap::from([("r".to_string(), 5), ("s".to_string(), 4)]));
    }

    #[test]
    fn a_sample_reads_as_it_was_built() {
        let mut built = SamplesBuilder::default();
        built.push(&NewSample {
            run_id: "r",
            sample_id: "0",
            split: "train",
            reward: Some(0.5),
            turns: Some(2),
            removed: Some(true),
            label: Some("\"4\""),
            ..NewSample::default()
        });
        let batch = built.finish().unwrap();
        let samples = Samples::of(&batch).unwrap();
        assert_eq!(
            (samples.sample_id.at(0), samples.split.get(0), samples.label.get(0)),
            ("0", Some("train"), Some("\"4\""))
        );
        assert_eq!(
            (samples.reward.get(0), samples.turns.get(0), samples.removed.get(0)),
            (Some(0.5), Some(2), Some(true))
        );
        assert_eq!((samples.status.get(0), samples.trace_id.get(0), samples.step.get(0)), (None, None, None));
    }

    #[test]
    fn tokens_read_as_they_were_built() {
        let mut built = TokensBuilder::default();
        let part = NewPart { start: 1, turn: Some(2), engine: Some("e"), ..NewPart::default() };
        built.push(&NewTokens {
            run_id: "r",
            sample_id: "0",
            split: "train",
            count: 2,
            ids: Some(&[5, 6]),
            texts: Some(&["a", ""]),
            mask: Some(&[true, false]),
            logprobs: Some(&[-0.5, f32::NAN]),
            parts: &[part],
            ..NewTokens::default()
        });
        built.push(&NewTokens { run_id: "r", sample_id: "1", split: "train", ..NewTokens::default() });
        let batch = built.finish().unwrap();
        for first in [0, 1] {
            let batch = batch.slice(first, 2 - first);
            let tokens = Tokens::of(&batch).unwrap();
            let last = tokens.len() - 1;
            assert!(
                tokens.ids.get(last).is_none() && tokens.mask.get(last).is_none() && tokens.parts.of(last).is_empty()
            );
            if first == 1 {
                continue;
            }
            assert_eq!((tokens.count.at(0), tokens.ids.get(0)), (2, Some([5, 6].as_slice())));
            assert_eq!(tokens.texts.get(0).unwrap().collect::<Vec<_>>(), ["a", ""]);
            assert_eq!(tokens.mask.get(0).unwrap().collect::<Vec<_>>(), [true, false]);
            assert!(tokens.logprobs.get(0).is_some_and(|values| values[0] == -0.5 && values[1].is_nan()));
            let at = tokens.parts.of(0).next().unwrap();
            assert_eq!(
                (tokens.parts.start.at(at), tokens.parts.turn.get(at), tokens.parts.engine.get(at)),
                (1, Some(2), Some("e"))
            );
            assert_eq!((tokens.parts.weight_version.get(at), tokens.parts.differs_at.get(at)), (None, None));
        }
    }

    #[test]
    fn what_is_missing_or_of_another_type_is_named() {
        let batch = SpansBuilder::default().finish().unwrap();
        let missing = column::<Text>(&batch, "nmae").err().unwrap().to_string();
        assert!(missing.contains("no column `nmae`"), "{missing}");
        let other = column::<Ints>(&batch, "name").err().unwrap().to_string();
        assert!(other.contains("`name`") && other.contains("not such numbers"), "{other}");
        assert!(column::<Ids<16>>(&batch, "span_id").is_err(), "ids have a length");
    }
}
