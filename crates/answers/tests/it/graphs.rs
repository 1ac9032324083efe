//! The critical path on graphs made by hand and by chance, against a slow reference.

use std::collections::BTreeMap;

use rollscope_answers::critical_path::{Segment, walk};
use rollscope_answers::step::{DETACHED, NONE, StepData, flag};
use rollscope_model::build::{NewLink, NewSpan, SpansBuilder};

use crate::support::Chance;

const MS: i64 = 1_000_000;

/// A span of a test: everything by number, times in milliseconds.
#[derive(Clone, Debug, Default)]
struct S {
    id: u64,
    trace: u64,
    parent: u64,
    start: i64,
    /// Negative: open.
    end: i64,
    links: Vec<(u64, u64)>,
    name: &'static str,
    group: Option<&'static str>,
    sample: Option<String>,
}

fn s(id: u64, parent: u64, start: i64, end: i64) -> S {
    S { id, trace: 1, parent, start, end, name: "work", ..S::default() }
}

fn trace_id(n: u64) -> [u8; 16] {
    u128::from(n).to_be_bytes()
}

fn read(spans: &[S]) -> StepData {
    let mut b = SpansBuilder::default();
    for span in spans {
        let links: Vec<NewLink> = span
            .links
            .iter()
            .map(|(trace, id)| NewLink { trace_id: trace_id(*trace), span_id: id.to_be_bytes(), attrs: &[] })
            .collect();
        b.push(&NewSpan {
            run_id: "r",
            trace_id: trace_id(span.trace),
            span_id: span.id.to_be_bytes(),
            parent_span_id: (span.parent != 0).then(|| span.parent.to_be_bytes()),
            name: span.name,
            service: "t",
            start_ns: span.start * MS,
            end_ns: (span.end >= 0).then_some(span.end * MS),
            state: if span.end >= 0 { "closed" } else { "open" },
            group_id: span.group,
            sample_id: span.sample.as_deref(),
            links: &links,
            resource: "{}",
            ..NewSpan::default()
        });
    }
    let batch = b.finish().unwrap();
    StepData::read(std::slice::from_ref(&batch), std::slice::from_ref(&batch), &[]).unwrap()
}

/// The path as (id, start, end, slack) in milliseconds; id 0 is the step itself.
fn path(spans: &[S]) -> Vec<(u64, i64, i64, i64)> {
    let data = read(spans);
    let id = |row: u32| if row == NONE { 0 } else { u64::from_be_bytes(data.ids[row as usize].1) };
    walk(&data).iter().map(|p| (id(p.row), p.start / MS, p.end / MS, p.slack / MS)).collect()
}

#[test]
fn fork_and_join() {
    let spans = [s(1, 0, 0, 100), s(2, 1, 10, 40), s(3, 1, 10, 80), s(4, 1, 80, 95)];
    // Without 3 the join would have waited for 2, which ended 40 earlier.
    assert_eq!(path(&spans), [(1, 0, 10, 10), (3, 10, 80, 40), (4, 80, 95, 15), (1, 95, 100, 5)]);
}

#[test]
fn a_producer_is_reached_from_its_consumer() {
    // Two processes, two traces: the consumer waits for what the producer made, not for its own parent.
    let producer = [s(1, 0, 0, 50), s(2, 1, 5, 45)];
    let consumer = [
        S { trace: 2, ..s(10, 0, 0, 100) },
        S { trace: 2, ..s(11, 10, 0, 8) },
        S { trace: 2, links: vec![(1, 2)], ..s(12, 10, 60, 98) },
    ];
    let spans = [producer.as_slice(), &consumer].concat();
    let found = path(&spans);
    assert_eq!(found, [(1, 0, 5, 5), (2, 5, 45, 40), (10, 45, 60, 15), (12, 60, 98, 38), (10, 98, 100, 2)]);
}

#[test]
fn a_detached_child_is_not_waited_for() {
    // 3 is started by 2 and outlives the step's end: nobody waits for it.
    let spans = [s(1, 0, 0, 40), s(2, 1, 0, 10), s(3, 2, 5, 60), s(4, 1, 12, 38)];
    assert_eq!(path(&spans), [(2, 0, 10, 10), (1, 10, 12, 2), (4, 12, 38, 26), (1, 38, 40, 2)]);
}

#[test]
fn one_that_ran_beside_limits_what_earlier_parts_can_gain() {
    // 2 and 3 follow one another, 4 ran beside them: without 2 the step would have waited for 4.
    let spans = [s(1, 0, 0, 100), s(2, 1, 0, 50), s(3, 1, 50, 100), s(4, 1, 0, 90)];
    assert_eq!(path(&spans), [(2, 0, 50, 10), (3, 50, 100, 10)]);
}

#[test]
fn an_asynchronous_child_is_waited_for_by_whoever_outlives_it() {
    // 2 starts 3 and returns; 1 ends when 3 does. The path goes through 3, and from its start back into 2.
    let spans = [s(1, 0, 0, 62), s(2, 1, 0, 10), s(3, 2, 5, 60)];
    assert_eq!(path(&spans), [(2, 0, 5, 5), (3, 5, 60, 50), (1, 60, 62, 2)]);
}

/// One engine prefills and another decodes, as SGLang's slices have it. The prefill side is over a little late by its own clock.
fn two_sides() -> [S; 12] {
    let slice = |id, parent, start, end, name, after: u64| {
        let links = if after == 0 { Vec::new() } else { vec![(1, after)] };
        S { name, links, ..s(id, parent, start, end) }
    };
    [
        slice(1, 0, 0, 100, "sglang_generate", 0),
        slice(2, 1, 1, 99, "decode Req 00000d", 0),
        slice(3, 2, 2, 98, "Decode Scheduler (host:b | pid:1)", 0),
        slice(4, 3, 2, 10, "decode_bootstrap", 0),
        slice(5, 3, 10, 60, "decode_transferred", 4),
        slice(6, 3, 60, 98, "decode_forward", 5),
        slice(7, 1, 1, 62, "prefill Req 00000p", 0),
        slice(8, 7, 2, 61, "Prefill Scheduler (host:a | pid:1)", 0),
        slice(9, 8, 2, 12, "prefill_bootstrap", 0),
        slice(10, 8, 12, 30, "prefill_waiting", 9),
        slice(11, 8, 30, 50, "prefill_forward", 10),
        slice(12, 8, 50, 61, "prefill_transfer_kv_cache", 11),
    ]
}

fn without_slack(spans: &[S]) -> Vec<(u64, i64, i64)> {
    path(spans).into_iter().map(|(id, start, end, _)| (id, start, end)).collect()
}

#[test]
fn a_transfer_waits_for_the_side_that_prefills() {
    let prefill = [(1, 0, 1), (7, 1, 2), (9, 2, 12), (10, 12, 30), (11, 30, 50), (12, 50, 60)];
    let decode = [(6, 60, 98), (2, 98, 99), (1, 99, 100)];
    assert_eq!(without_slack(&two_sides()), [prefill.as_slice(), &decode].concat());
    // Shortening the prefill gains no more than the decode side's own readiness allows.
    let mut late = two_sides();
    (late[3].end, late[4].start) = (45, 45);
    let slack = path(&late).into_iter().find(|part| part.0 == 11).map(|part| part.3);
    assert_eq!(slack, Some(15));
    // Of several ranks the last to be done counts.
    let rank = [
        S { name: "Prefill Scheduler [TP 1] (host:a | pid:2)", ..s(20, 7, 2, 61) },
        S { name: "prefill_transfer_kv_cache", ..s(21, 20, 50, 58) },
    ];
    assert_eq!(without_slack(&[two_sides().as_slice(), &rank].concat()), [prefill.as_slice(), &decode].concat());
}

#[test]
fn a_transfer_that_waits_for_nobody_keeps_its_time() {
    // The cache was there before anybody waited for it; or it is the prefill of another request.
    let mut early = two_sides();
    for (at, (start, end)) in [(8, (2, 3)), (9, (3, 4)), (10, (4, 6)), (11, (6, 9)), (7, (2, 9)), (6, (1, 9))] {
        (early[at].start, early[at].end) = (start, end);
    }
    let mut another = two_sides();
    another[6].parent = 0;
    for spans in [early, another] {
        let path = without_slack(&spans);
        assert!(path.contains(&(5, 10, 60)), "{path:?}");
    }
}

#[test]
fn a_group_waits_for_its_slowest_member() {
    let member = |n: u64, end: i64| {
        let sample = Some(n.to_string());
        let base = S { trace: n, group: Some("g"), sample, ..S::default() };
        [
            S { id: n * 10, start: 0, end: 91, name: "generate_and_rm_group", ..base.clone() },
            S { id: n * 10 + 1, parent: n * 10, start: 1, end, name: "generate_and_rm", ..base },
        ]
    };
    let spans = [member(1, 30), member(2, 90), member(3, 50)].concat();
    let found = path(&spans);
    // The shared span is the first copy; 2's generation is the slowest, 3's the next.
    assert_eq!(found[1], (21, 1, 90, 40), "{found:?}");
    assert_eq!((found[0].1, found[0].2, found[2].1, found[2].2), (0, 1, 90, 91));
}

#[test]
fn open_spans_missing_parents_and_circles_do_no_harm() {
    // 2 is open: it holds the step until now, the latest time known.
    let open = path(&[s(1, 0, 0, -1), s(2, 1, 10, -1), s(3, 2, 20, 70)]);
    assert_eq!(open.last().map(|p| p.2), Some(70));
    assert!(open.iter().any(|p| p.0 == 3));
    // 3's parent never came: it hangs under the trace's longest span.
    let orphan = [s(1, 0, 0, 100), s(3, 99, 20, 90)];
    assert_eq!(read(&orphan).missing_parents, 1);
    assert_eq!(path(&orphan), [(1, 0, 20, 20), (3, 20, 90, 70), (1, 90, 100, 10)]);
    let circle = [s(1, 2, 0, 100), s(2, 3, 10, 50), s(3, 1, 10, 60), s(4, 4, 0, 100)];
    let data = read(&circle);
    let length: i64 = walk(&data).iter().map(|p| p.end - p.start).sum();
    assert_eq!(length, data.step_end - data.step_start);
    assert!(path(&[]).is_empty());
}

/// The same definition, told as simply as possible: every step looks at every span.
fn slow_walk(data: &StepData) -> Vec<(u32, i64, i64)> {
    let mut entered = vec![false; data.len()];
    let mut out = Vec::new();
    let (mut at, mut t) = (NONE, data.step_end);
    let stands = |r: usize| data.shared[r] == r as u32 && !data.is(r, flag::POINT) && data.length(r) > 0;
    loop {
        let begin = if at == NONE { data.step_start } else { data.start[at as usize] };
        let last = |entered: &[bool], at: u32, t: i64| {
            (0..data.len())
                .filter(|r| stands(*r) && data.waiter[*r] == at && *r as u32 != at && !entered[*r] && data.end[*r] <= t)
                .max_by(|a, b| {
                    let key = |r: usize| (data.end[r], -data.start[r]);
                    key(*a).cmp(&key(*b)).then_with(|| data.ids[*b].cmp(&data.ids[*a]))
                })
        };
        if let Some(row) = last(&entered, at, t).filter(|r| data.end[*r] > begin) {
            out.push((at, data.end[row], t));
            entered[row] = true;
            (at, t) = (row as u32, data.end[row]);
            continue;
        }
        out.push((at, begin.max(data.step_start), t));
        if at == NONE {
            break;
        }
        t = t.min(begin);
        if t <= data.step_start {
            break;
        }
        let row = at as usize;
        let up = match (data.parent[row], data.waiter[row]) {
            (NONE, DETACHED) => NONE,
            (NONE, waiter) => waiter,
            (up, _) => data.shared[up as usize],
        };
        let producer = data.links(row).iter().map(|r| data.shared[*r as usize]).filter(|r| {
            let r = *r as usize;
            !entered[r] && data.end[r] <= t && data.length(r) > 0 && !data.is(r, flag::POINT)
        });
        let producer = producer.max_by_key(|r| (data.end[*r as usize], data.ids[*r as usize]));
        let sibling = last(&entered, up, t).map(|r| data.end[r]);
        match producer {
            Some(p) if sibling.is_none_or(|e| e <= data.end[p as usize]) => {
                out.push((up, data.end[p as usize].max(data.step_start), t));
                entered[p as usize] = true;
                (at, t) = (p, data.end[p as usize]);
            }
            _ => {
                if up != NONE {
                    entered[up as usize] = true;
                }
                at = up;
            }
        }
    }
    out.retain(|(_, from, to)| to > from);
    out.reverse();
    out
}

#[test]
fn random_graphs_give_what_the_slow_reference_gives() {
    for seed in 0..1500 {
        let mut chance = Chance::new(seed);
        let n = 1 + chance.below(30) as u64;
        let mut spans: Vec<S> = Vec::new();
        for id in 1..=n {
            // Parents anywhere, also later ones, missing ones and oneself; children beyond their parents.
            let parent = chance.below(n as usize + 2) as u64;
            let start = chance.below(60) as i64;
            let end = start + chance.below(40) as i64;
            let end = if chance.below(20) == 0 { -1 } else { end };
            let trace = 1 + id % 3;
            let links = (0..chance.below(3)).map(|_| (1 + chance.bits() % 3, 1 + chance.bits() % n)).collect();
            spans.push(S { id, trace, parent, start, end, links, name: "work", ..S::default() });
        }
        let data = read(&spans);
        let fast: Vec<(u32, i64, i64)> = walk(&data).iter().map(|p| (p.row, p.start, p.end)).collect();
        assert_eq!(fast, slow_walk(&data), "seed {seed}: {spans:?}");
        let wall = data.step_end - data.step_start;
        assert_eq!(fast.iter().map(|p| p.2 - p.1).sum::<i64>(), wall, "seed {seed}");
    }
}

/// A program of work in sequence and in parallel: its schedule is known exactly.
enum Program {
    Work(u64, i64),
    Seq(u64, Vec<Program>),
    Par(u64, Vec<Program>),
}

fn program(chance: &mut Chance, depth: usize, next: &mut u64) -> Program {
    *next += 1;
    let id = *next;
    if depth == 0 || chance.below(4) == 0 {
        return Program::Work(id, 1 + chance.below(50) as i64);
    }
    let parts = (0..1 + chance.below(4)).map(|_| program(chance, depth - 1, next)).collect();
    if chance.below(2) == 0 { Program::Seq(id, parts) } else { Program::Par(id, parts) }
}

impl Program {
    /// How long it takes if `none` takes no time.
    fn length(&self, none: u64) -> i64 {
        match self {
            Program::Work(id, length) => {
                if *id == none {
                    0
                } else {
                    *length
                }
            }
            Program::Seq(_, parts) => parts.iter().map(|p| p.length(none)).sum(),
            Program::Par(_, parts) => parts.iter().map(|p| p.length(none)).max().unwrap_or(0),
        }
    }

    fn spans(&self, parent: u64, start: i64, out: &mut Vec<S>) {
        let (Program::Work(id, _) | Program::Seq(id, _) | Program::Par(id, _)) = self;
        out.push(s(*id, parent, start, start + self.length(0)));
        let mut at = start;
        match self {
            Program::Work(..) => {}
            Program::Seq(_, parts) => parts.iter().for_each(|p| {
                p.spans(*id, at, out);
                at += p.length(0);
            }),
            Program::Par(_, parts) => parts.iter().for_each(|p| p.spans(*id, start, out)),
        }
    }
}

#[test]
fn slack_is_what_the_program_gains_without_the_part() {
    for seed in 0..800 {
        let mut chance = Chance::new(seed + 7);
        let program = program(&mut chance, 4, &mut 0);
        let mut spans = Vec::new();
        program.spans(0, 0, &mut spans);
        let data = read(&spans);
        let mut slack: BTreeMap<u64, i64> = BTreeMap::new();
        for Segment { row, slack: gained, .. } in walk(&data) {
            assert_ne!(row, NONE, "seed {seed}: containers do nothing by themselves");
            *slack.entry(u64::from_be_bytes(data.ids[row as usize].1)).or_default() += gained / MS;
        }
        for (id, gained) in slack {
            assert_eq!(gained, program.length(0) - program.length(id), "seed {seed}, part {id}");
        }
    }
}
