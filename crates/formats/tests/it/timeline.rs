//! Packing of timelines: what the page relies on, on dumps that slime wrote and on random spans.

use std::collections::HashMap;
use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int32Type, UInt8Type};
use proptest::prelude::*;
use rollscope_formats::export::timeline::{Options, flag, pack};
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
        let packed = rows(&pack(&[batch], Options { live, source: true }).unwrap());
        check_order(&packed);
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
        // No row is its own ancestor.
        for i in 0..packed.len() {
            let (mut at, mut hops) = (packed[i].parent, 0);
            while at >= 0 && hops <= packed.len() {
                at = packed[at as usize].parent;
                hops += 1;
            }
            prop_assert!(hops <= packed.len());
        }
        for row in packed.iter().filter(|r| r.flags & flag::VIRTUAL != 0) {
            let parent = &packed[row.parent as usize];
            prop_assert!(row.start >= parent.start && row.end <= parent.end);
        }
    }
}
