//! What request ids and links connect, on shapes that occur: retries, counters that start anew, clocks that differ, gateways.

use arrow::array::RecordBatch;
use rollscope_model::build::{NewLink, NewSpan, SpansBuilder};
use rollscope_spans::joins::{Connections, SKEW_NS};
use rollscope_spans::{Forest, NONE, Texts};

const SECOND: i64 = 1_000_000_000;

#[derive(Clone, Copy)]
struct Row {
    trace: u8,
    id: u8,
    parent: u8,
    /// Seconds.
    time: (i64, i64),
    request: Option<&'static str>,
    sample: Option<&'static str>,
    /// Trace and span.
    link: Option<(u8, u8)>,
}

fn row(trace: u8, id: u8, parent: u8, time: (i64, i64), request: &'static str) -> Row {
    Row { trace, id, parent, time, request: Some(request).filter(|id| !id.is_empty()), sample: None, link: None }
}

fn batch(rows: &[Row]) -> RecordBatch {
    let mut built = SpansBuilder::default();
    for row in rows {
        let link = row.link.map(|(trace, span)| NewLink { trace_id: [trace; 16], span_id: [span; 8], attrs: &[] });
        built.push(&NewSpan {
            run_id: "r",
            trace_id: [row.trace; 16],
            span_id: [row.id; 8],
            parent_span_id: (row.parent != 0).then_some([row.parent; 8]),
            name: "work",
            start_ns: row.time.0 * SECOND,
            end_ns: Some(row.time.1 * SECOND),
            sample_id: row.sample,
            request_id: row.request,
            links: link.as_slice(),
            ..NewSpan::default()
        });
    }
    built.finish().unwrap()
}

/// Traces that are reached from the first.
fn reached(rows: &[Row]) -> Vec<u8> {
    let spans = [batch(rows)];
    let forest = Forest::read_as_given(&spans).unwrap();
    let mut reached: Vec<bool> = forest.traces.iter().map(|trace| trace[0] == 1).collect();
    Connections::read(&forest, &spans).unwrap().reach(&forest, &mut reached, |_| true);
    let mut found: Vec<u8> =
        forest.traces.iter().zip(reached).filter(|(_, reached)| *reached).map(|(trace, _)| trace[0]).collect();
    found.sort_unstable();
    found
}

/// Parents after attaching, by id; 0: none. Whether rows come in order or not makes no difference.
fn parents(rows: &[Row]) -> Vec<u8> {
    let mut turned = rows.to_vec();
    turned.reverse();
    let [given, other] = [rows.to_vec(), turned].map(|rows| {
        let spans = [batch(&rows[..1]), batch(&rows[1..])];
        let mut forest = Forest::read(&spans).unwrap();
        let sample = forest.texts(&spans, "sample_id", &mut Texts::default()).unwrap();
        Connections::read(&forest, &spans).unwrap().attach(&mut forest, &sample);
        let mut found: Vec<(u8, u8)> = (0..forest.len())
            .map(|row| match forest.parent[row] {
                NONE => (forest.span[row][0], 0),
                parent => (forest.span[row][0], forest.span[parent as usize][0]),
            })
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, parent)| parent).collect::<Vec<u8>>()
    });
    assert_eq!(given, other);
    given
}

#[test]
fn a_sample_a_gateway_and_an_engine_are_three_traces() {
    let rows = [
        row(1, 1, 0, (0, 100), ""),
        row(1, 2, 1, (10, 50), "x"),
        row(2, 3, 0, (11, 49), "x"),
        row(2, 4, 3, (12, 48), "rid"),
        row(3, 5, 0, (13, 47), "rid"),
        row(3, 6, 5, (14, 46), ""),
        row(9, 7, 0, (13, 47), "another"),
    ];
    assert_eq!(reached(&rows), [1, 2, 3]);
    assert_eq!(parents(&rows), [0, 1, 2, 3, 4, 5, 0]);
}

#[test]
fn all_three_may_name_the_same_request() {
    let rows = [
        row(1, 1, 0, (0, 100), ""),
        row(1, 2, 1, (10, 50), "x"),
        row(3, 4, 0, (13, 47), "x"),
        row(2, 3, 0, (11, 49), "x"),
    ];
    assert_eq!(parents(&rows), [0, 1, 2, 3], "the innermost that contains it called it");
}

#[test]
fn of_a_request_that_occurs_again_time_decides() {
    // A retry within one step, and a counter that began anew much later.
    let rows = [
        row(1, 1, 0, (0, 100), ""),
        row(1, 2, 1, (10, 20), "5"),
        row(1, 3, 1, (30, 40), "5"),
        row(2, 4, 0, (11, 19), "5"),
        row(3, 5, 0, (31, 39), "5"),
        row(4, 6, 0, (700, 710), "5"),
        row(5, 7, 0, (701, 709), "5"),
    ];
    assert_eq!(reached(&rows), [1, 2, 3]);
    assert_eq!(parents(&rows), [0, 1, 1, 2, 3, 0, 6]);
}

#[test]
fn clocks_may_differ_and_a_request_may_outlive_its_caller() {
    let late = SKEW_NS / SECOND - 1;
    let rows = [row(1, 1, 0, (0, 4), "a"), row(2, 2, 0, (late, late + 3), "a")];
    assert_eq!((reached(&rows), parents(&rows)), (vec![1, 2], vec![0, 1]));
    let rows = [row(1, 1, 0, (0, 4), "a"), row(2, 2, 0, (4 + SKEW_NS / SECOND + 1, 40), "a")];
    assert_eq!((reached(&rows), parents(&rows)), (vec![1], vec![0, 0]));
    // The caller gave up; the engine did not.
    let sample = Row { sample: Some("s"), ..row(1, 1, 0, (0, 4), "a") };
    let rows = [sample, row(2, 2, 0, (1, 60), "a")];
    assert_eq!(parents(&rows), [0, 1]);
}

#[test]
fn links_connect_and_attach_what_has_no_sample() {
    let sample = Row { sample: Some("s"), ..row(1, 1, 0, (0, 100), "") };
    let linked = |link| Row { link: Some(link), ..row(2, 3, 0, (11, 40), "") };
    let called = Row { link: Some((2, 3)), ..row(1, 2, 1, (10, 50), "") };
    for rows in
        [vec![sample, row(1, 2, 1, (10, 50), ""), linked((1, 2))], vec![sample, called, row(2, 3, 0, (11, 40), "")]]
    {
        assert_eq!((reached(&rows), parents(&rows)), (vec![1, 2], vec![0, 1, 2]));
    }
    // A sample stays a tree of its own beside the trainer that it links to.
    let trainer = row(1, 1, 0, (0, 100), "");
    let rows = [trainer, Row { sample: Some("s"), link: Some((1, 1)), ..row(2, 2, 0, (1, 9), "") }];
    assert_eq!((reached(&rows), parents(&rows)), (vec![1, 2], vec![0, 0]));
}

#[test]
fn an_id_that_everybody_shares_connects_nobody() {
    let mut rows = vec![row(1, 1, 0, (0, 100), "default")];
    rows.extend((2..=100).map(|n| row(n, n, 0, (1, 99), "default")));
    assert_eq!(reached(&rows), [1]);
    assert!(parents(&rows).iter().all(|parent| *parent == 0));
}

#[test]
fn trees_never_hang_under_themselves() {
    let rows = [
        row(1, 1, 0, (0, 10), "a"),
        row(1, 2, 1, (0, 10), "b"),
        row(2, 3, 0, (0, 10), "b"),
        row(2, 4, 3, (0, 10), "a"),
    ];
    let found = parents(&rows);
    assert!(found.contains(&0), "{found:?}");
}
