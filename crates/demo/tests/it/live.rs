//! A step that is played ends up as the finished step.

use std::collections::{BTreeMap, HashMap};

use rollscope_demo::Generator;
use rollscope_model::Table;

use crate::rows::{Span, id, read_spans, small, spans, text};

#[test]
fn what_arrived_in_the_end_is_the_finished_step() {
    let mut generator = Generator::new(small());
    let data = generator.step(1).unwrap();
    let mut arrived: BTreeMap<Vec<u8>, Span> = BTreeMap::new();
    let mut samples: HashMap<Option<String>, Option<String>> = HashMap::new();
    let mut rows: HashMap<Table, usize> = HashMap::new();
    let (mut last, mut opened, mut pending) = (0, 0, 0);
    let mut live = generator.live(1).unwrap();
    for (at, table, batch) in live.by_ref() {
        assert!(at >= last && batch.num_rows() > 0);
        last = at;
        match table {
            Table::Spans => {
                for span in read_spans(&batch) {
                    // Nothing arrives before it happened.
                    assert!(span.end.unwrap_or(span.start) <= data.start_ns + at);
                    if span.state == "open" {
                        assert!(span.end.is_none() && !arrived.contains_key(&span.id));
                        opened += 1;
                    }
                    arrived.insert(span.id.clone(), span);
                }
            }
            Table::Samples => {
                for r in 0..batch.num_rows() {
                    let status = text(&batch, "status", r);
                    pending += usize::from(status.as_deref() == Some("pending"));
                    samples.insert(text(&batch, "sample_id", r), status);
                }
            }
            _ => *rows.entry(table).or_default() += batch.num_rows(),
        }
    }
    assert!(live.error().is_none());
    assert!(last <= data.end_ns - data.start_ns + 10_000_000_000);
    let finished = spans(&data);
    assert_eq!(arrived.len(), finished.len());
    for span in finished {
        let mut got = arrived.remove(&span.id).unwrap();
        got.row = span.row;
        assert_eq!(got, span);
    }
    assert!(opened > 100, "{opened}");
    assert_eq!(pending, 32);
    let batch = data.batch(Table::Samples).unwrap();
    for r in 0..32 {
        assert_eq!(samples[&text(batch, "sample_id", r)], text(batch, "status", r));
    }
    for table in [Table::Conversations, Table::Metrics, Table::Series] {
        assert_eq!(rows[&table], data.rows(table), "{}", table.name());
    }
}

#[test]
fn a_step_in_the_middle_has_open_spans() {
    let mut generator = Generator::new(small());
    let live = generator.live(2).unwrap();
    let middle = (live.end_ns() - live.start_ns()) / 4;
    let mut state = HashMap::new();
    for (_, table, batch) in live.take_while(|(at, ..)| *at < middle) {
        if table == Table::Spans {
            for r in 0..batch.num_rows() {
                state.insert(id(&batch, "span_id", r), (text(&batch, "name", r), text(&batch, "state", r)));
            }
        }
    }
    let open =
        |name: &str| state.values().filter(|(n, s)| n.as_deref() == Some(name) && s.as_deref() == Some("open")).count();
    assert_eq!(open("pipeline_step"), 1);
    assert_eq!(open("rollout"), 1);
    assert!(open("generate_and_rm") > 0);
    assert_eq!(open("train"), 0);
}
