//! What a run waits for, at any moment of a run that ended well: nothing hangs, and nothing depends on the order of rows.

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use rollscope_answers::hang::{Hang, Rows, State, hang};
use rollscope_demo::{DemoOptions, Generator};
use rollscope_model::Table;
use rollscope_model::read::{Text, column};

use crate::support::Chance;

struct Run {
    spans: Vec<RecordBatch>,
    /// Of each step.
    times: Vec<(i64, i64)>,
}

fn demo() -> Run {
    let mut generator = Generator::new(DemoOptions { steps: 4, samples: 24, ..DemoOptions::default() });
    let steps: Vec<_> = generator.steps().map(|step| step.unwrap()).collect();
    Run {
        spans: steps.iter().map(|step| step.batch(Table::Spans).unwrap().clone()).collect(),
        times: steps.iter().map(|step| (step.start_ns, step.end_ns)).collect(),
    }
}

fn ask(run: &Run, spans: Vec<RecordBatch>, at_ns: i64) -> Hang {
    let name = column::<Text>(&run.spans[0], "run_id").unwrap().at(0).to_string();
    hang(&Rows { run: name, at_ns, details: spans.clone(), spans, ..Rows::default() }).unwrap()
}

#[test]
fn a_run_that_goes_well_never_hangs() {
    let run = demo();
    let (begin, end) = (run.times[0].0, run.times[3].1);
    for part in 1..40 {
        let at = begin + (end - begin) / 40 * part;
        let said = ask(&run, run.spans.clone(), at);
        assert!(matches!(said.state, State::Moving | State::Slow), "{part}: {}", said.text);
        assert!(said.last_ns.unwrap() <= at && said.quiet_s >= 0.0);
        for wait in &said.waits {
            assert!(wait.from < said.nodes.len() && wait.to < said.nodes.len() && wait.from != wait.to);
        }
    }
    // Long after: what was to end has ended, and nothing came after it.
    let said = ask(&run, run.spans.clone(), end + 7_200_000_000_000);
    assert_eq!(said.state, State::Hanging, "{}", said.text);
    assert!(said.suspects.is_empty() && said.text.contains("cannot be seen"), "{}", said.text);
}

#[test]
fn nothing_depends_on_the_order_of_rows() {
    let run = demo();
    let mut chance = Chance::new(7);
    for step in 1..4 {
        let at = run.times[step].0 + (run.times[step].1 - run.times[step].0) / 2;
        let said = ask(&run, run.spans.clone(), at);
        let mut shuffled: Vec<RecordBatch> = Vec::new();
        for batch in run.spans.iter().rev() {
            let mut rows: Vec<u32> = (0..batch.num_rows() as u32).collect();
            for at in (1..rows.len()).rev() {
                rows.swap(at, chance.below(at + 1));
            }
            shuffled.push(take_record_batch(batch, &UInt32Array::from(rows)).unwrap());
        }
        let again = ask(&run, shuffled, at);
        assert_eq!((said.state, &said.text, &said.workers), (again.state, &again.text, &again.workers));
        assert_eq!(said.suspects.len(), again.suspects.len());
    }
}

#[test]
fn nothing_is_known_of_nothing() {
    let said = hang(&Rows { run: "x".into(), at_ns: 1, ..Rows::default() }).unwrap();
    assert_eq!((said.state, said.suspects.len(), said.last_ns), (State::Unknown, 0, None));
    let over =
        Rows { run: "x".into(), at_ns: 2_000_000_000, over: Some(("failed".into(), 1_000_000_000)), ..Rows::default() };
    assert_eq!(hang(&over).unwrap().text, "The run is over: it failed at 00:00:01 UTC.");
}
