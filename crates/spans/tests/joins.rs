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
    room: Option<&'static str>,
    sample: Option<&'static str>,
    /// Trace and span.
    link: Option<(u8, u8)>,
}

fn row(trace: u8, id: u8, parent: u8, time: (i64, i64), request: &'static str) -> Row {
    let request = Some(request).filter(|id| !id.is_empty());
    Row { trace, id, parent, time, request, room: None, sample: None, link: None }
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
            bootstrap_room: row.room,
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
fn a_room_connects_the_two_sides_of_a_request() {
    let side = |room, row| Row { room: Some(room), ..row };
    let caller = [row(1, 1, 0, (0, 100), ""), row(1, 2, 1, (10, 50), "d")];
    let decode = side("0x1", row(2, 3, 0, (11, 49), "d"));
    let prefill = side("0x1", row(3, 4, 0, (11, 30), "p"));
    let rows = [caller[0], caller[1], decode, prefill, row(3, 5, 4, (12, 29), "")];
    assert_eq!((reached(&rows), parents(&rows)), (vec![1, 2, 3], vec![0, 1, 2, 2, 4]), "beside each other");
    // The ranks that send the cache have the room for a request id.
    let sender = |trace, id, end| side("0x1", row(trace, id, 0, (15, end), "0x1"));
    let senders = [sender(4, 6, 30), sender(5, 7, 29)];
    let all = [rows.as_slice(), &senders].concat();
    assert_eq!((reached(&all), parents(&all)), (vec![1, 2, 3, 4, 5], vec![0, 1, 2, 2, 4, 2, 2]));
    // The caller may know the other side, and a side that broke off may be the shorter one.
    let rows = [caller[0], caller[1], Row { request: Some("p"), ..decode }, Row { request: Some("d"), ..prefill }];
    assert_eq!((reached(&rows), parents(&rows)), (vec![1, 2, 3], vec![0, 1, 2, 2]));
    // One side got a context.
    let rows = [caller[0], caller[1], side("0x1", row(1, 3, 2, (11, 49), "other")), prefill];
    assert_eq!((reached(&rows), parents(&rows)), (vec![1, 3], vec![0, 1, 2, 2]));
    // Nobody is known to have called either: the decode side waits for the prefill side.
    assert_eq!(parents(&[decode, prefill]), [0, 3]);
    // Another room, and the same room much later, are other requests.
    let late = SKEW_NS / SECOND + 60;
    for other in [side("0x2", prefill), side("0x1", row(3, 4, 0, (late, late + 20), "p"))] {
        let rows = [caller[0], caller[1], decode, other];
        assert_eq!((reached(&rows), parents(&rows)), (vec![1, 2], vec![0, 1, 2, 0]));
    }
    // Twice at the same time: the sides of a request begin together.
    let rows = [
        caller[0],
        row(1, 2, 1, (10, 90), "d"),
        row(1, 3, 1, (10, 60), "e"),
        side("0x1", row(2, 4, 0, (11, 89), "d")),
        side("0x1", row(3, 5, 0, (15, 59), "e")),
        side("0x1", row(4, 6, 0, (11, 50), "p")),
        side("0x1", row(5, 7, 0, (15, 40), "q")),
    ];
    assert_eq!(parents(&rows), [0, 1, 1, 2, 3, 2, 3]);
    // A room is no request id.
    let rows = [Row { request: Some("0x1"), ..caller[0] }, Row { request: None, ..prefill }];
    assert_eq!((reached(&rows), parents(&rows)), (vec![1], vec![0, 0]));
}

#[test]
fn a_batch_belongs_to_its_requests_and_connects_none_of_them() {
    // Requests of two steps in one batch, whose two spans link to them.
    let linked = |id, link| Row { link: Some(link), ..row(4, id, 0, (12, 14), "") };
    let rows = [
        row(1, 1, 0, (10, 50), "a"),
        row(2, 2, 0, (11, 49), "a"),
        row(3, 3, 0, (11, 49), "b"),
        linked(4, (2, 2)),
        linked(5, (3, 3)),
    ];
    assert_eq!(reached(&rows), [1, 2, 4]);
    assert_eq!(parents(&rows), [0, 1, 0, 0, 0]);
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
