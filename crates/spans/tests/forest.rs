//! Who belongs to whom, on shapes that arrive: late, twice, in circles, without an end.

use arrow::array::RecordBatch;
use proptest::prelude::*;
use rollscope_model::build::{NewSpan, SpansBuilder};
use rollscope_model::names::state;
use rollscope_spans::{Forest, NONE, State, Texts, Walk, fault, lanes, open, samples};

#[derive(Clone, Copy, Debug)]
struct Row {
    id: u8,
    parent: u8,
    trace: u8,
    start: i64,
    end: Option<i64>,
    state: &'static str,
    sample: Option<&'static str>,
}

const ROW: Row = Row { id: 0, parent: 0, trace: 1, start: 0, end: Some(100), state: state::CLOSED, sample: None };

fn batch(rows: &[Row]) -> RecordBatch {
    let mut built = SpansBuilder::default();
    for row in rows {
        built.push(&NewSpan {
            run_id: "r",
            trace_id: [row.trace; 16],
            span_id: [row.id; 8],
            parent_span_id: (row.parent != 0).then_some([row.parent; 8]),
            name: "work",
            start_ns: row.start,
            end_ns: row.end,
            state: row.state,
            sample_id: row.sample,
            ..NewSpan::default()
        });
    }
    built.finish().unwrap()
}

fn forest(rows: &[Row]) -> Forest {
    Forest::read(&[batch(rows)]).unwrap()
}

/// The id of a row's parent; 0: none.
fn parent(forest: &Forest, id: u8) -> u8 {
    let row = forest.span.iter().position(|span| span[0] == id).unwrap();
    match forest.parent[row] {
        NONE => 0,
        parent => forest.span[parent as usize][0],
    }
}

fn end(forest: &Forest, id: u8) -> i64 {
    forest.end[forest.span.iter().position(|span| span[0] == id).unwrap()]
}

#[test]
fn parents_are_found_before_and_after_and_only_in_the_trace() {
    let rows = [
        Row { id: 2, parent: 1, start: 10, ..ROW },
        Row { id: 1, ..ROW },
        Row { id: 3, parent: 2, start: 20, ..ROW },
        Row { id: 4, parent: 99, start: 30, ..ROW },
        Row { id: 5, parent: 1, trace: 7, start: 40, ..ROW },
    ];
    let found = forest(&rows);
    assert_eq!([1, 2, 3, 4, 5].map(|id| parent(&found, id)), [0, 1, 2, 0, 0]);
    let lost: Vec<u8> = (0..5).filter(|row| found.is_lost(*row)).map(|row| found.span[row][0]).collect();
    assert_eq!(lost, [4, 5]);
    let walk = Walk::of(&found);
    let order: Vec<u8> = walk.order.iter().map(|row| found.span[*row as usize][0]).collect();
    assert_eq!(order, [1, 2, 3, 4, 5]);
    assert_eq!(walk.depth, [0, 1, 2, 0, 0]);
    assert_eq!(walk.below(0), [1, 2]);
}

#[test]
fn rows_do_not_depend_on_how_they_arrive() {
    let rows = [
        Row { id: 1, start: 5, ..ROW },
        Row { id: 2, start: 0, end: Some(10), ..ROW },
        Row { id: 3, start: 0, end: Some(50), ..ROW },
        Row { id: 4, start: 0, end: None, state: state::OPEN, ..ROW },
    ];
    let mut turned = rows;
    turned.reverse();
    for given in [rows, turned] {
        let found = Forest::read(&[batch(&given[..1]), batch(&given[1..])]).unwrap();
        // The longest first: an open span has no end yet.
        assert_eq!(found.span.iter().map(|id| id[0]).collect::<Vec<_>>(), [4, 3, 2, 1]);
        for row in 0..4 {
            let (batch, at) = found.place(row);
            assert_eq!(given[if batch == 0 { 0 } else { 1 + at }].id, found.span[row][0]);
        }
    }
}

#[test]
fn an_end_without_a_start_stands_where_it_ends_and_is_a_parent() {
    let rows = [
        Row { id: 1, start: 7, end: Some(9), state: state::ORPHAN_END, ..ROW },
        Row { id: 2, parent: 1, start: 8, ..ROW },
        Row { id: 3, start: 50, end: Some(40), ..ROW },
    ];
    let found = forest(&rows);
    assert_eq!(parent(&found, 2), 1);
    let row = found.state.iter().position(|state| *state == State::OrphanEnd).unwrap();
    assert_eq!((found.start[row], found.end[row]), (9, 9));
    let backwards = found.faults.iter().position(|faults| faults & fault::BACKWARDS != 0).unwrap();
    assert_eq!((found.span[backwards][0], found.start[backwards], found.end[backwards]), (3, 50, 50));
}

#[test]
fn a_sample_is_handed_down_and_lent_but_not_to_the_trainer() {
    let rows = [
        Row { id: 1, sample: Some("7"), ..ROW },
        Row { id: 2, parent: 1, start: 1, ..ROW },
        Row { id: 3, start: 2, ..ROW },
        // Of two samples, and of a trainer with one.
        Row { id: 4, trace: 2, start: 3, sample: Some("8"), ..ROW },
        Row { id: 5, trace: 2, start: 4, sample: Some("9"), ..ROW },
        Row { id: 6, trace: 2, start: 5, ..ROW },
        Row { id: 7, trace: 3, start: 6, ..ROW },
        Row { id: 8, trace: 3, parent: 7, start: 7, sample: Some("10"), ..ROW },
        Row { id: 9, trace: 3, parent: 7, start: 8, ..ROW },
    ];
    let spans = [batch(&rows)];
    let found = Forest::read(&spans).unwrap();
    let mut texts = Texts::default();
    let mut sample = found.texts(&spans, "sample_id", &mut texts).unwrap();
    samples::inherit(&found, &Walk::of(&found), &mut sample);
    let of_traces = samples::of_traces(&found, &sample, |row| found.span[row][0] == 7);
    samples::lend(&found, &of_traces, &mut sample);
    let given: Vec<&str> = sample.iter().map(|number| texts.get(*number)).collect();
    assert_eq!(given, ["7", "7", "7", "8", "9", "", "", "10", ""]);
}

#[test]
fn an_open_span_ends_at_its_sibling_its_closed_ancestor_or_its_sample() {
    let (a, b) = (Some("a"), Some("b"));
    let unended = Row { end: None, state: state::OPEN, ..ROW };
    let rows = [
        Row { id: 1, sample: a, ..ROW },
        Row { id: 2, parent: 1, start: 10, sample: a, ..unended },
        Row { id: 3, parent: 1, start: 30, end: Some(40), sample: a, ..ROW },
        Row { id: 4, parent: 1, start: 60, sample: a, ..unended },
        Row { id: 5, trace: 2, sample: b, ..unended },
        Row { id: 6, trace: 2, parent: 5, start: 5, end: Some(25), sample: b, ..ROW },
        Row { id: 7, trace: 3, start: 1, end: Some(300), ..ROW },
    ];
    let ends = |live: bool| {
        let spans = [batch(&rows)];
        let mut found = Forest::read(&spans).unwrap();
        let sample = found.texts(&spans, "sample_id", &mut Texts::default()).unwrap();
        open::close(&mut found, &sample, live);
        [2, 4, 5].map(|id| end(&found, id))
    };
    assert_eq!(ends(false), [30, 100, 25]);
    assert_eq!(ends(true), [100, 100, 300], "while the step runs, to the newest time");
}

#[test]
fn spans_of_a_row_lie_beside_each_other() {
    let rows = [
        Row { id: 1, end: Some(100_000), ..ROW },
        Row { id: 2, parent: 1, end: Some(50_000), ..ROW },
        Row { id: 3, parent: 1, start: 50_000, end: Some(90_000), ..ROW },
        Row { id: 4, parent: 1, start: 60_000, end: Some(80_000), ..ROW },
        Row { id: 5, parent: 1, start: 55_000, end: Some(55_000), state: state::INSTANT, ..ROW },
    ];
    let found = forest(&rows);
    let depth: Vec<u8> = Walk::of(&found).depth.iter().map(|depth| *depth as u8).collect();
    let placed = lanes::place(&found, &depth, &vec![0; found.len()], 1, |_, _| 1);
    let lane = |id: u8| placed.lane[found.span.iter().position(|span| span[0] == id).unwrap()];
    assert_eq!([1, 2, 3, 4, 5].map(lane), [0, 1, 1, 2, 1]);
    let order: Vec<u8> = placed.order.iter().map(|row| found.span[*row as usize][0]).collect();
    assert_eq!(order, [1, 2, 3, 5, 4], "by lane, then by start");
}

fn any_row() -> impl Strategy<Value = Row> {
    let states = prop::sample::select(vec![state::CLOSED, state::OPEN, state::INSTANT, state::ORPHAN_END, "odd"]);
    (1u8..40, 0u8..45, 1u8..4, 0i64..1000, prop::option::of(0i64..1000), states)
        .prop_map(|(id, parent, trace, start, end, state)| Row { id, parent, trace, start, end, state, sample: None })
}

proptest! {
    /// Parents are found as a plain search finds them, but for circles, which are cut; every span is walked once.
    #[test]
    fn any_spans_make_a_forest(rows in prop::collection::vec(any_row(), 0..120)) {
        let mut once: Vec<Row> = Vec::new();
        for row in rows {
            if !once.iter().any(|known| (known.id, known.trace) == (row.id, row.trace)) {
                once.push(row);
            }
        }
        let found = forest(&once);
        for row in 0..found.len() {
            let given = &once[found.source[row] as usize];
            let named = once.iter().find(|other| {
                (other.id, other.trace) == (given.parent, given.trace) && other.id != given.id
            });
            match found.parent[row] {
                NONE => prop_assert_eq!(found.is_lost(row) || found.faults[row] & fault::IN_CIRCLE != 0, given.parent != 0),
                parent => prop_assert_eq!(Some(found.span[parent as usize][0]), named.map(|named| named.id)),
            }
            prop_assert!(found.end[row] >= found.start[row] && found.end[row] <= found.latest);
            // Upwards there is an end.
            let (mut at, mut hops) = (row as u32, 0);
            while at != NONE {
                (at, hops) = (found.parent[at as usize], hops + 1);
                prop_assert!(hops <= found.len());
            }
        }
        let walk = Walk::of(&found);
        let mut walked = walk.order.clone();
        walked.sort_unstable();
        prop_assert_eq!(walked, (0..found.len() as u32).collect::<Vec<_>>());
    }
}

/// A hash that keeps only some bits of an id makes this take minutes.
#[test]
fn ids_that_count_up_are_as_good_as_any() {
    let mut built = SpansBuilder::default();
    for number in 1..=200_000u64 {
        built.push(&NewSpan {
            run_id: "r",
            trace_id: [1; 16],
            span_id: number.to_be_bytes(),
            parent_span_id: (number > 1).then_some((number / 2).to_be_bytes()),
            name: "work",
            start_ns: number as i64,
            end_ns: Some(1_000_000),
            ..NewSpan::default()
        });
    }
    let found = Forest::read(&[built.finish().unwrap()]).unwrap();
    assert_eq!(found.parent.iter().filter(|parent| **parent == NONE).count(), 1);
    assert_eq!(Walk::of(&found).depth.iter().max(), Some(&17));
}
