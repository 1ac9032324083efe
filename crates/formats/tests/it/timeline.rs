//! Packing of timelines: what the page relies on, on dumps that slime wrote and on random spans.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float32Type, Float64Type, Int32Type, UInt8Type, UInt32Type};
use proptest::prelude::*;
use rollscope_formats::export::timeline::{Focus, Options, flag, pack, thin};
use rollscope_formats::import::slime_pt::SlimeDump;
use rollscope_formats::import::{ImportOptions, Importer};
use rollscope_model::Table;
use rollscope_model::attrs::Value;
use rollscope_model::build::{NewSpan, SpansBuilder};

struct Row {
    start: f64,
    end: f64,
    parent: i32,
    flags: u8,
    lane: u8,
    name: String,
    sample: Option<String>,
    worker: String,
    span: u64,
}

fn rows(batch: &RecordBatch) -> Vec<Row> {
    let float = |name| batch.column_by_name(name).unwrap().as_primitive::<Float64Type>().clone();
    let byte = |name| batch.column_by_name(name).unwrap().as_primitive::<UInt8Type>().clone();
    let text = |name: &str, row: usize| {
        let column = batch.column_by_name(name).unwrap().as_dictionary::<Int32Type>();
        column
            .is_valid(row)
            .then(|| column.values().as_string::<i32>().value(column.keys().value(row) as usize).to_string())
    };
    let parent = batch.column_by_name("parent").unwrap().as_primitive::<Int32Type>();
    let span = batch.column_by_name("span_id").unwrap().as_fixed_size_binary();
    (0..batch.num_rows())
        .map(|i| Row {
            start: float("start").value(i),
            end: float("end").value(i),
            parent: parent.value(i),
            flags: byte("flags").value(i),
            lane: byte("lane").value(i),
            name: text("name", i).unwrap_or_default(),
            sample: text("sample", i),
            worker: text("worker", i).unwrap_or_default(),
            span: u64::from_be_bytes(span.value(i).try_into().unwrap()),
        })
        .collect()
}

fn dump(name: &str) -> Vec<Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/slime").join(name);
    let mut spans = Vec::new();
    let mut take = |table: Table, batch: RecordBatch| {
        if table == Table::Spans {
            spans.push(batch);
        }
        Ok(())
    };
    let mut file = std::fs::File::open(&path).unwrap();
    SlimeDump.import(&path, &mut file, &ImportOptions::default(), &mut take).unwrap();
    rows(&pack(&spans, Options { source: true, ..Options::default() }).unwrap())
}

/// Rows stand by row, lane and start; bars of a lane do not overlap.
fn check_order(rows: &[Row]) {
    for pair in rows.windows(2) {
        let key = |r: &Row| (r.sample.clone(), if r.sample.is_none() { r.worker.clone() } else { String::new() });
        if key(&pair[0]) != key(&pair[1]) {
            continue;
        }
        assert!(pair[0].lane <= pair[1].lane);
        if pair[0].lane == pair[1].lane {
            assert!(pair[0].start <= pair[1].start);
            if pair[0].flags & flag::STATE < flag::INSTANT
                && pair[1].flags & flag::STATE < flag::INSTANT
                && pair[0].lane < 31
            {
                assert!(pair[0].end <= pair[1].start + 0.0011, "{} {}", pair[0].name, pair[1].name);
            }
        }
    }
}

#[test]
fn prefill_and_decode_lie_inside_their_request_in_both_styles() {
    let rows = dump("small.pt");
    check_order(&rows);
    let mut seen = [0, 0];
    for (i, row) in
        rows.iter().enumerate().filter(|(_, r)| r.name.starts_with("sglang_pd_") && r.name != "sglang_pd_summary")
    {
        let parent = &rows[row.parent as usize];
        assert!(
            row.start >= parent.start - 1e-6 && row.end <= parent.end + 1e-6,
            "{i} {} in {}",
            row.name,
            parent.name
        );
        let inside = ["_bootstrap", "_alloc_wait", "_transfer_queue"].iter().any(|s| row.name.ends_with(s));
        let segment = row.name.matches('_').count() > 2;
        if segment {
            assert_eq!(inside, rows[parent.parent as usize].name.starts_with("sglang_pd_"), "{}", row.name);
        }
        seen[usize::from(row.flags & flag::VIRTUAL != 0)] += 1;
    }
    // Samples 0, 2 and 4: two sides and ten segments as spans. Sample 5: two requests, the same from attributes.
    assert_eq!(seen, [36, 24]);
    // The sides of one request: prefill's lanes above decode's, everything else below.
    let generate = rows.iter().position(|r| r.flags & flag::HAS_PD != 0).unwrap();
    let lane = |name: &str| rows.iter().find(|r| r.parent == generate as i32 && r.name == name).unwrap().lane;
    assert_eq!(lane("sglang_pd_prefill"), rows[generate].lane + 1);
    assert_eq!(lane("sglang_pd_decode"), rows[generate].lane + 4);
}

#[test]
fn open_spans_end_where_the_cache_of_slimes_viewer_ends_them() {
    let rows = dump("small.pt");
    let open: Vec<&Row> = rows.iter().filter(|r| r.flags & flag::STATE == flag::OPEN).collect();
    assert_eq!(open.len(), 2);
    assert!(open.iter().all(|r| r.end > r.start));
    assert_eq!(rows.iter().filter(|r| r.flags & flag::STATE == flag::ORPHAN_END).count(), 3);
}

#[derive(Clone, Debug)]
struct Spec {
    parent: Option<usize>,
    start: i64,
    length: Option<i64>,
    sample: Option<u8>,
    trace: u8,
}

fn specs() -> impl Strategy<Value = Vec<Spec>> {
    let one =
        (any::<Option<u16>>(), 0i64..1000, prop::option::weighted(0.9, 0i64..400), prop::option::of(0u8..4), 0u8..3);
    prop::collection::vec(one, 0..60).prop_map(|list| {
        let n = list.len().max(1);
        let spec = |(parent, start, length, sample, trace): (Option<u16>, i64, Option<i64>, Option<u8>, u8)| Spec {
            parent: parent.map(|p| p as usize % n),
            start,
            length,
            sample,
            trace,
        };
        list.into_iter().map(spec).collect()
    })
}

fn id(i: usize) -> [u8; 8] {
    (i as u64 + 1).to_be_bytes()
}

/// No row is its own ancestor.
fn no_cycle(rows: &[Row]) -> bool {
    (0..rows.len()).all(|row| {
        let (mut at, mut hops) = (rows[row].parent, 0);
        while at >= 0 && hops <= rows.len() {
            at = rows[at as usize].parent;
            hops += 1;
        }
        hops <= rows.len()
    })
}

proptest! {
    /// Parents may be missing, in other traces, later, or in cycles: every span is there once, under the right parent.
    #[test]
    fn every_span_once_under_its_parent(specs in specs(), live in any::<bool>()) {
        let mut builder = SpansBuilder::default();
        for (i, s) in specs.iter().enumerate() {
            let sample = s.sample.map(|n| n.to_string());
            builder.push(&NewSpan {
                run_id: "r",
                trace_id: [s.trace; 16],
                span_id: id(i),
                parent_span_id: s.parent.map(id),
                name: "work",
                service: "svc",
                start_ns: 1_700_000_000_000_000_000 + s.start * 1_000_000,
                end_ns: s.length.map(|l| 1_700_000_000_000_000_000 + (s.start + l) * 1_000_000),
                state: if s.length.is_some() { "closed" } else { "open" },
                status: "ok",
                sample_id: sample.as_deref(),
                end_attrs: &[("pd_prefill_forward_duration", Value::Double(0.05))],
                ..NewSpan::default()
            });
        }
        let batch = builder.finish().unwrap();
        let batch = pack(&[batch], Options { live, source: true }).unwrap();
        let packed = rows(&batch);
        check_order(&packed);
        let thinned = thin(batch, packed.len() / 3, None, None).unwrap();
        if thinned.num_rows() < packed.len() {
            prop_assert_eq!(weights(&thinned).iter().sum::<u32>() as usize, packed.len());
            prop_assert!(no_cycle(&rows(&thinned)));
        }
        let real: Vec<&Row> = packed.iter().filter(|r| r.flags & flag::VIRTUAL == 0).collect();
        prop_assert_eq!(real.len(), specs.len());
        let place: HashMap<u64, usize> = packed.iter().enumerate().filter(|(_, r)| r.span != 0).map(|(at, r)| (r.span, at)).collect();
        prop_assert_eq!(place.len(), specs.len());
        for (i, s) in specs.iter().enumerate() {
            let row = &packed[place[&(i as u64 + 1)]];
            prop_assert!(row.end >= row.start);
            if row.parent >= 0 {
                let parent = &packed[row.parent as usize];
                prop_assert_eq!(Some(parent.span as usize - 1), s.parent);
                prop_assert_eq!(specs[parent.span as usize - 1].trace, s.trace);
            }
            if let Some(n) = s.sample {
                prop_assert_eq!(row.sample.clone(), Some(n.to_string()));
            }
        }
        prop_assert!(no_cycle(&packed));
        for row in packed.iter().filter(|r| r.flags & flag::VIRTUAL != 0) {
            let parent = &packed[row.parent as usize];
            prop_assert!(row.start >= parent.start && row.end <= parent.end);
        }
    }
}

/// A step of several samples with many short spans one after the other, some of them failed, instants among them, and long ones.
fn many(samples: usize, each: usize, seed: u64) -> RecordBatch {
    let mut state = seed;
    let mut dice = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let base = 1_700_000_000_000_000_000;
    let mut builder = SpansBuilder::default();
    let mut number = 0;
    for sample in 0..samples {
        let name = sample.to_string();
        let mut at = base;
        let mut push = |builder: &mut SpansBuilder,
                        parent: Option<[u8; 8]>,
                        name_of: &str,
                        start: i64,
                        end: i64,
                        status: &str,
                        state: &str| {
            number += 1;
            let span = id(number);
            builder.push(&NewSpan {
                run_id: "r",
                trace_id: [1; 16],
                span_id: span,
                parent_span_id: parent,
                name: name_of,
                service: "svc",
                start_ns: start,
                end_ns: (state != "open").then_some(end),
                state,
                status,
                sample_id: Some(&name),
                ..NewSpan::default()
            });
            span
        };
        let root = push(&mut builder, None, "sample", base, base + 10_000_000_000, "ok", "closed");
        for _ in 0..each {
            at += dice(9_000_000) as i64;
            let length = if dice(50) == 0 { 300_000_000 } else { dice(4_000_000) as i64 };
            let (name, status) =
                (["decode", "tool", "reward"][dice(3) as usize], ["ok", "ok", "ok", "error"][dice(4) as usize]);
            let span = push(&mut builder, Some(root), name, at, at + length, status, "closed");
            if dice(3) == 0 {
                push(&mut builder, Some(span), "inner", at + length / 4, at + length / 2, "ok", "closed");
            }
            if dice(9) == 0 {
                push(&mut builder, Some(span), "mark", at, at, "ok", "instant");
            }
            at += length;
        }
        push(&mut builder, Some(root), "left", at, at, "ok", "open");
    }
    pack(&[builder.finish().unwrap()], Options::default()).unwrap()
}

fn weights(batch: &RecordBatch) -> Vec<u32> {
    batch.column_by_name("weight").unwrap().as_primitive::<UInt32Type>().values().to_vec()
}

/// Row, lane, name and flags.
type Look = (Option<String>, u8, String, u8);

/// How many spans of each look there are, and how many milliseconds they take.
fn looks(rows: &[Row], weights: &[u32]) -> BTreeMap<Look, (u32, f64)> {
    let mut out = BTreeMap::new();
    for (row, weight) in rows.iter().zip(weights) {
        let (spans, ms) = out.entry((row.sample.clone(), row.lane, row.name.clone(), row.flags)).or_insert((0, 0.0));
        *spans += weight;
        *ms += row.end - row.start;
    }
    out
}

#[test]
fn a_thinned_timeline_has_fewer_items_for_the_same_spans_and_times() {
    for seed in 0..8 {
        let whole = many(7, 400, seed);
        let n = whole.num_rows();
        let before = rows(&whole);
        let same = thin(whole.clone(), n, None, None).unwrap();
        assert_eq!(same, whole, "there is room for all");
        for most in [n - 1, n / 2, n / 5] {
            let thinned = thin(whole.clone(), most, None, None).unwrap();
            let (after, weights) = (rows(&thinned), weights(&thinned));
            assert!(after.len() <= most, "{} of {most}", after.len());
            assert_eq!(thinned.schema_ref().metadata()["spans"], n.to_string());
            check_order(&after);
            let (before, after_looks) = (looks(&before, &vec![1; n]), looks(&after, &weights));
            assert_eq!(before.keys().collect::<Vec<_>>(), after_looks.keys().collect::<Vec<_>>());
            for (key, (spans, ms)) in &before {
                assert_eq!(after_looks[key].0, *spans, "{key:?}");
                assert!(
                    (after_looks[key].1 - ms).abs() < 0.01 * *spans as f64,
                    "{key:?}: {} of {ms}",
                    after_looks[key].1
                );
            }
            for row in after.iter().filter(|row| row.parent >= 0) {
                let parent = &after[row.parent as usize];
                assert!(parent.lane < row.lane && parent.sample == row.sample);
            }
            let part: f64 = thinned.schema_ref().metadata()["part_ms"].parse().unwrap();
            for (row, weight) in after.iter().zip(&weights) {
                assert!(*weight == 1 || row.end - row.start < 2.0 * part && row.flags & flag::STATE != flag::OPEN);
            }
        }
    }
}

#[test]
fn where_somebody_looks_spans_stay_apart() {
    let whole = many(7, 400, 3);
    let most = whole.num_rows() / 3;
    let focus = Focus { from: 500.0, to: 900.0, rows: Some(["2".to_string(), "5".to_string()].into()) };
    let is_inside =
        |row: &Row| row.start <= 900.0 && row.end >= 500.0 && matches!(row.sample.as_deref(), Some("2" | "5"));
    let thinned = thin(whole.clone(), most, Some(&focus), None).unwrap();
    let (after, weight) = (rows(&thinned), weights(&thinned));
    assert!(after.len() <= most);
    let inside = |rows: &[Row]| rows.iter().filter(|row| is_inside(row)).map(|row| row.span).collect::<Vec<_>>();
    let wanted = inside(&rows(&whole));
    assert!(wanted.len() > 50);
    assert_eq!(inside(&after), wanted);
    assert!(after.iter().zip(&weight).all(|(row, weight)| !is_inside(row) || *weight == 1));
    assert_eq!(thinned.schema_ref().metadata()["focus_part_ms"], "0");
    assert_eq!(weight.iter().sum::<u32>() as usize, whole.num_rows());
    // Everything in a window of time, with less room than it needs.
    let focus = Focus { from: 0.0, to: 1e9, rows: None };
    let thinned = thin(whole.clone(), most, Some(&focus), None).unwrap();
    assert!(thinned.num_rows() <= most);
    assert!(thinned.schema_ref().metadata()["focus_part_ms"].parse::<f64>().unwrap() > 0.0);
    // What looks different stays apart, whatever room there is.
    let thinned = thin(whole.clone(), 10, Some(&focus), None).unwrap();
    assert_eq!(
        looks(&rows(&thinned), &weights(&thinned)).len(),
        looks(&rows(&whole), &vec![1; whole.num_rows()]).len()
    );
}

fn milliseconds(batch: &RecordBatch, name: &str) -> Vec<f64> {
    let values = batch.column_by_name(name).unwrap().as_primitive::<Float32Type>().values();
    values.iter().map(|ms| f64::from(*ms)).collect()
}

/// Spans of two names that come every tenth of a millisecond and last up to 20: far more at a time than a row has lanes. `sample`: two
/// engines work for it in turns. Else each has a row of its own.
fn crowded(spans: usize, sample: Option<&str>) -> RecordBatch {
    let mut builder = SpansBuilder::default();
    for i in 0..spans {
        let start_ns = 1_700_000_000_000_000_000 + i as i64 * 100_000;
        builder.push(&NewSpan {
            run_id: "r",
            trace_id: [(i % 7) as u8 + 1; 16],
            span_id: id(i),
            name: ["decode", "prefill"][i % 3 / 2],
            service: ["engine-0", "engine-1"][i % 2],
            start_ns,
            end_ns: Some(start_ns + (i as i64 * 7_919 % 200 + 1) * 100_000),
            state: "closed",
            status: "ok",
            sample_id: sample,
            ..NewSpan::default()
        });
    }
    pack(&[builder.finish().unwrap()], Options::default()).unwrap()
}

#[test]
fn spans_that_overlap_keep_their_times_their_order_and_their_engine() {
    for sample in [None, Some("1")] {
        let whole = crowded(20_000, sample);
        let before = rows(&whole);
        for most in [10_000, 3_000, 1_000] {
            let thinned = thin(whole.clone(), most, None, None).unwrap();
            let after = rows(&thinned);
            assert!(after.len() <= most);
            let (weight, total, longest) =
                (weights(&thinned), milliseconds(&thinned, "total"), milliseconds(&thinned, "longest"));
            let mut found: BTreeMap<(&str, &str), (u32, f64, f64)> = BTreeMap::new();
            for (i, row) in after.iter().enumerate() {
                let (spans, ms, most) = found.entry((&row.name, &row.worker)).or_default();
                (*spans, *ms, *most) = (*spans + weight[i], *ms + total[i], most.max(longest[i]));
            }
            let mut wanted: BTreeMap<(&str, &str), (u32, f64, f64)> = BTreeMap::new();
            for row in &before {
                let (spans, ms, most) = wanted.entry((&row.name, &row.worker)).or_default();
                (*spans, *ms, *most) = (*spans + 1, *ms + row.end - row.start, most.max(row.end - row.start));
            }
            assert_eq!(wanted.len(), 4);
            for (key, (spans, ms, most)) in &wanted {
                let (found_spans, found_ms, found_most) = found[key];
                assert_eq!(found_spans, *spans, "{key:?}");
                assert!((found_ms - ms).abs() < 1e-4 * ms, "{key:?}: {found_ms} of {ms}");
                assert!((found_most - most).abs() < 1e-3, "{key:?}: {found_most} of {most}");
            }
            // The page searches a lane by starts.
            for pair in after.windows(2) {
                let same = |row: &Row| (row.sample.clone(), row.sample.is_none().then(|| row.worker.clone()), row.lane);
                assert!(same(&pair[0]) != same(&pair[1]) || pair[0].start <= pair[1].start);
            }
        }
    }
}

#[test]
fn a_span_that_is_asked_for_stays_apart() {
    let whole = crowded(5_000, None);
    let items = thin(whole.clone(), 500, None, None).unwrap().num_rows();
    assert!(items < 2_000);
    for i in [0, 1, 2_500, 4_999] {
        let wanted = (([(i % 7) as u8 + 1; 16]), id(i));
        let thinned = thin(whole.clone(), 500, None, Some(wanted)).unwrap();
        let (after, weight) = (rows(&thinned), weights(&thinned));
        let at = after.iter().position(|row| row.span == i as u64 + 1).unwrap();
        assert_eq!(weight[at], 1);
        assert_eq!((after[at].start * 10.0).round() as usize, i);
        assert!(after.len() < items + 20);
    }
    // Nobody has such a one.
    let thinned = thin(whole.clone(), 500, None, Some(([9; 16], [9; 8]))).unwrap();
    assert_eq!(thinned, thin(whole, 500, None, None).unwrap());
}
