//! The evaluator without a store: known answers, and properties against plain definitions. That it agrees with Prometheus
//! itself is tested with the real one, in `tests/test_prometheus.py`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use proptest::prelude::*;

use super::eval::{Points, PromAnswer, Steps};
use super::source::Stored;
use super::testing::{ask, ask_until, stored};
use super::{ABSENT, Labels, window};
use crate::error::{ErrorKind, QueryError};

/// The values of an instant query, as `labels => value`.
fn instant(text: &str, stored: Vec<Stored>, at: i64) -> Vec<(String, f64)> {
    match ask(text, stored, at, at, 1).unwrap() {
        PromAnswer::Vector(rows) => rows.into_iter().map(|(l, p)| (l.to_string(), p[0].1)).collect(),
        PromAnswer::Scalar(points) => vec![("scalar".into(), points[0].1)],
        other => panic!("{other:?}"),
    }
}

fn counter(labels: &[(&str, &str)]) -> Stored {
    let samples: Vec<(i64, f64)> = (0..100).map(|i| (i * 10_000, i as f64 * 5.0)).collect();
    stored(labels, &samples)
}

/// The series of a range query.
fn rows(text: &str, stored: Vec<Stored>, steps: Steps) -> Vec<(Labels, Points)> {
    match ask(text, stored, steps.start, steps.end, steps.step).unwrap() {
        PromAnswer::Vector(rows) => rows,
        other => panic!("{other:?}"),
    }
}

fn close(a: f64, b: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-9)
}

#[test]
fn selectors_look_back_and_stop_at_stale_markers() {
    let series = || vec![stored(&[("__name__", "a")], &[(1000, 1.0), (2000, 2.0), (3000, ABSENT), (9000, 4.0)])];
    assert_eq!(instant("a", series(), 1500), [("a{}".into(), 1.0)]);
    assert_eq!(instant("a", series(), 3500), []);
    assert_eq!(instant("a", series(), 9000 + 299_999), [("a{}".into(), 4.0)]);
    assert_eq!(instant("a", series(), 9000 + 300_000), []);
    assert_eq!(instant("a offset 7s", series(), 9000), [("a{}".into(), 2.0)]);
    assert_eq!(instant("a @ 1.5", series(), 9000), [("a{}".into(), 1.0)]);
    assert_eq!(instant("timestamp(a)", series(), 2500), [("{}".into(), 2.0)]);
    assert_eq!(instant("count_over_time(a[10s])", series(), 9000), [("{}".into(), 3.0)]);
    // Open on the left.
    assert_eq!(instant("count_over_time(a[8s])", series(), 9000), [("{}".into(), 2.0)]);
}

#[test]
fn rates_extrapolate_and_survive_resets() {
    let series = || vec![counter(&[("__name__", "c"), ("job", "x")])];
    let [(labels, rate)] = &instant("rate(c[1m])", series(), 500_500)[..] else { panic!() };
    assert_eq!(labels, "{job=\"x\"}");
    assert!(close(*rate, 0.5), "{rate}");
    assert!(close(instant("increase(c[1m])", series(), 500_500)[0].1, 30.0));
    assert!(close(instant("irate(c[1m])", series(), 500_500)[0].1, 0.5));
    let reset = vec![stored(&[("__name__", "c")], &[(0, 100.0), (10_000, 110.0), (20_000, 5.0), (30_000, 15.0)])];
    // 10, then 5 from zero, then 10: 25 in 30 s, over a window of 30 s that has samples from its edge on.
    let increase = instant("increase(c[31s])", reset, 30_000)[0].1;
    assert!(close(increase, 25.0 * 31.0 / 30.0), "{increase}");
    assert_eq!(instant("rate(c[1m])", vec![stored(&[("__name__", "c")], &[(0, 1.0)])], 10), []);
}

#[test]
fn aggregations_group() {
    let gauge = |id: &str, zone: &str, v: f64| stored(&[("__name__", "g"), ("id", id), ("zone", zone)], &[(0, v)]);
    let all = || vec![gauge("1", "a", 1.0), gauge("2", "a", 2.0), gauge("3", "b", 30.0)];
    assert_eq!(instant("sum(g)", all(), 10), [("{}".into(), 33.0)]);
    assert_eq!(instant("sum by (zone) (g)", all(), 10), [("{zone=\"a\"}".into(), 3.0), ("{zone=\"b\"}".into(), 30.0)]);
    assert_eq!(instant("max without (id) (g)", all(), 10).len(), 2);
    assert_eq!(instant("topk(1, g)", all(), 10)[0].1, 30.0);
    assert_eq!(instant("bottomk(1, g)", all(), 10)[0].1, 1.0);
    assert_eq!(instant("quantile(0.5, g)", all(), 10)[0].1, 2.0);
    assert_eq!(instant("count(g > 1)", all(), 10)[0].1, 2.0);
    assert_eq!(instant("count_values(\"v\", g > bool 1)", all(), 10).len(), 2);
    assert!(
        close(instant("stddev(g)", all(), 10)[0].1, (542.0f64 / 3.0).sqrt() * 1.0),
        "{:?}",
        instant("stddev(g)", all(), 10)
    );
}

#[test]
fn vectors_are_matched() {
    let make = |name: &str, id: &str, v: f64| stored(&[("__name__", name), ("id", id)], &[(0, v)]);
    let all = || vec![make("a", "1", 10.0), make("a", "2", 20.0), make("b", "1", 2.0), make("b", "3", 5.0)];
    assert_eq!(instant("a / b", all(), 1), [("{id=\"1\"}".into(), 5.0)]);
    assert_eq!(instant("a > 15", all(), 1), [("a{id=\"2\"}".into(), 20.0)]);
    assert_eq!(instant("a and on(id) b", all(), 1), [("a{id=\"1\"}".into(), 10.0)]);
    assert_eq!(instant("a unless on(id) b", all(), 1), [("a{id=\"2\"}".into(), 20.0)]);
    assert_eq!(instant("a or b", all(), 1).len(), 3);
    assert_eq!(instant("a * on() group_left() sum(b)", all(), 1).len(), 2);
    assert!(ask("a * on() b", all(), 1, 1, 1).unwrap_err().contains("many-to-many"));
    assert!(ask("a * on() sum(b)", all(), 1, 1, 1).unwrap_err().contains("many-to-one"));
    assert!(ask("1 > 2", vec![], 1, 1, 1).unwrap_err().to_lowercase().contains("bool"));
    assert_eq!(instant("1 + 2 * 3 ^ 2", vec![], 1)[0].1, 19.0);
}

/// A series that is on both sides is one series. The plain definition compares every series with every other.
#[test]
fn either_of_many_series() {
    let steps = Steps { start: 0, end: 800_000, step: 400_000 };
    let series = || {
        let one = |i: i32| {
            let id = i.to_string();
            let samples = [(0, f64::from(i % 7)), (400_000, f64::from(i % 5)), (800_000, f64::from(i % 3))];
            stored(&[("__name__", "m"), ("id", id.as_str())], &samples)
        };
        (0..2000).map(one).collect::<Vec<Stored>>()
    };
    let some = "m{id=~\"1.*\"} > 3";
    let mut expected = rows(some, series(), steps);
    for (labels, points) in rows("m", series(), steps) {
        match expected.iter_mut().find(|(known, _)| *known == labels) {
            Some((_, have)) => {
                let missing = |(at, _): &(i64, f64)| have.iter().all(|(t, _)| t != at);
                let more: Points = points.into_iter().filter(missing).collect();
                have.extend(more);
                have.sort_by_key(|(at, _)| *at);
            }
            None => expected.push((labels, points)),
        }
    }
    let mut found = rows(&format!("{some} or m"), series(), steps);
    found.sort_by(|a, b| a.0.cmp(&b.0));
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(found.len(), 2000);
    assert_eq!(found, expected);
}

#[test]
fn a_partner_may_change_over_time() {
    let one = |version: &str, samples: &[(i64, f64)]| {
        stored(&[("__name__", "info"), ("id", "1"), ("version", version)], samples)
    };
    let series = |first_ends: i64| {
        vec![
            stored(&[("__name__", "m"), ("id", "1")], &[(0, 10.0), (1000, 20.0), (2000, 30.0), (3000, 40.0)]),
            one("1", &[(0, 1.0), (first_ends, ABSENT)]),
            one("2", &[(1000, 2.0), (2000, ABSENT)]),
        ]
    };
    let query = "m * on(id) group_left(version) info";
    let found = rows(query, series(1000), Steps { start: 0, end: 3000, step: 1000 });
    let found: Vec<(String, Points)> = found.into_iter().map(|(labels, points)| (labels.to_string(), points)).collect();
    assert_eq!(
        found,
        [
            ("{id=\"1\", version=\"1\"}".to_string(), vec![(0, 10.0)]),
            ("{id=\"1\", version=\"2\"}".to_string(), vec![(1000, 40.0)]),
        ]
    );
    // Both at once: the first is named.
    let why = ask(query, series(2000), 0, 3000, 1000).unwrap_err();
    assert!(why.contains("right hand-side") && why.contains("version=\"1\""), "{why}");
}

fn cancelled() -> Option<QueryError> {
    Some(QueryError::new(ErrorKind::Cancelled, "the query was cancelled"))
}

/// One of each kind of work.
const WORK: [&str; 14] = [
    "-c",
    "c > 3",
    "round(c)",
    "rate(c[5m])",
    "quantile_over_time(0.5, c[5m])",
    "mad_over_time(c[5m:1s])",
    "sum by (id) (c)",
    "topk(3, c)",
    "count_values(\"v\", c)",
    "histogram_quantile(0.5, c)",
    "c or c offset 1m",
    "c and c unless c offset 1h",
    "c / on(id) group_left() c",
    "label_replace(c, \"x\", \"$1\", \"id\", \"(.*)\")",
];

fn counters() -> Vec<Stored> {
    let one = |i: i32| {
        let number = i.to_string();
        counter(&[("__name__", "c"), ("id", number.as_str()), ("le", number.as_str())])
    };
    (0..20).map(one).collect()
}

#[test]
fn a_stopped_evaluation_gives_no_answer() {
    let at_once = Steps { start: 0, end: 0, step: 1 };
    let over_time = Steps { start: 0, end: 600_000, step: 10_000 };
    for text in WORK.into_iter().chain(["1", "vector(1)", "c", "c[5m]", "c[5m:1s]", "\"text\"", "nothing"]) {
        for steps in [at_once, over_time] {
            let error = ask_until(text, counters(), steps, &cancelled).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Cancelled, "{text}: {error}");
        }
    }
}

/// It looks in the middle of its work, and ends with the first look at which it is stopped.
#[test]
fn an_evaluation_ends_soon_after_it_is_stopped() {
    let steps = Steps { start: 0, end: 600_000, step: 10_000 };
    // One series, so that it is its windows that are gone through for long.
    let windows = "quantile_over_time(0.5, vector(time())[2h:1s])";
    for text in WORK.into_iter().chain([windows]) {
        let looks = AtomicUsize::new(0);
        let never = || -> Option<QueryError> {
            looks.fetch_add(1, Relaxed);
            None
        };
        ask_until(text, counters(), steps, &never).unwrap();
        let middle = looks.load(Relaxed) / 2;
        assert!(middle >= 3, "{text}: {middle}");
        looks.store(0, Relaxed);
        let in_the_middle = || if looks.fetch_add(1, Relaxed) < middle { None } else { cancelled() };
        let error = ask_until(text, counters(), steps, &in_the_middle).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Cancelled, "{text}: {error}");
        // The look that stopped it, and the one that gave the reason.
        assert_eq!(looks.load(Relaxed), middle + 2, "{text}");
    }
}

#[test]
fn subqueries_and_absent() {
    let series = || vec![counter(&[("__name__", "c")])];
    let found = instant("max_over_time(rate(c[1m])[5m:1m])", series(), 600_500)[0].1;
    assert!(close(found, 0.5), "{found}");
    assert_eq!(instant("absent(nothing{job=\"x\"})", series(), 600_000), [("{job=\"x\"}".into(), 1.0)]);
    assert_eq!(instant("absent(c)", series(), 600_000), []);
}

/// Nested calls doubled a label with each level.
#[test]
fn labels_cannot_grow_without_end() {
    let series = || vec![stored(&[("__name__", "a"), ("x", "0123456789abcdef")], &[(0, 1.0)])];
    let nested = |depth, around: fn(String) -> String| (0..depth).fold("a".to_string(), |text, _| around(text));
    let doubling: [fn(String) -> String; 2] = [
        |text| format!("label_replace({text}, \"x\", \"$1$1\", \"x\", \"(.*)\")"),
        |text| format!("label_join({text}, \"x\", \"\", \"x\", \"x\")"),
    ];
    for around in doubling {
        assert!(ask(&nested(8, around), series(), 1, 1, 1).is_ok());
        assert!(ask(&nested(9, around), series(), 1, 1, 1).unwrap_err().contains("longer than"));
    }
    let long = format!("label_replace(a, \"x\", \"{}\", \"x\", \".*\")", "y".repeat(1025));
    assert!(ask(&long, series(), 1, 1, 1).unwrap_err().contains("replacement"));
}

#[test]
fn what_is_not_supported_is_named() {
    for (text, named) in [
        ("holt_winters(c[1m], 0.5, 0.5)", "holt_winters"),
        ("double_exponential_smoothing(c[1m], 0.5, 0.5)", "double_exponential_smoothing"),
        ("histogram_avg(c)", "histogram_avg"),
        ("c[5m]", ""),
        ("rate(c)", ""),
        ("sum(", ""),
    ] {
        let error = ask(text, vec![], 0, 10_000, 1000).unwrap_err();
        assert!(error.contains(named), "{text}: {error}");
    }
}

#[test]
fn histograms() {
    let bucket = |le: &str, v: f64| stored(&[("__name__", "h_bucket"), ("le", le)], &[(0, v)]);
    let all = || vec![bucket("0.1", 10.0), bucket("1", 30.0), bucket("+Inf", 40.0)];
    assert!(close(instant("histogram_quantile(0.5, h_bucket)", all(), 1)[0].1, 0.1 + 0.9 * 0.5));
    assert_eq!(instant("histogram_quantile(0.99, h_bucket)", all(), 1)[0].1, 1.0);
    assert_eq!(instant("histogram_quantile(2, h_bucket)", all(), 1)[0].1, f64::INFINITY);
    assert!(instant("histogram_quantile(0.5, h_bucket{le!=\"+Inf\"})", all(), 1)[0].1.is_nan());
}

proptest! {
    /// Steps that are computed together are the same as each on its own.
    #[test]
    fn a_range_query_is_many_instant_ones(
        values in prop::collection::vec(-5.0f64..50.0, 2..60),
        gaps in prop::collection::vec(1i64..40_000, 60),
        query in prop::sample::select(vec![
            "m", "rate(m[1m])", "increase(m[45s])", "sum_over_time(m[30s])", "max_over_time(m[1m]) - m", "m > 3",
            "quantile_over_time(0.3, m[1m])", "avg_over_time(m[1m:7s])", "deriv(m[1m])", "irate(m[2m])", "changes(m[1m])",
        ]),
        start in 0i64..200_000,
        step in 500i64..30_000,
    ) {
        let mut t = 0;
        let samples: Vec<(i64, f64)> = values.iter().zip(&gaps).map(|(v, g)| { t += g; (t, *v) }).collect();
        let series = || vec![stored(&[("__name__", "m")], &samples)];
        let end = start + 20 * step;
        let PromAnswer::Vector(rows) = ask(query, series(), start, end, step).unwrap() else { panic!() };
        let together: HashMap<i64, f64> = rows.iter().flat_map(|(_, p)| p.iter().copied()).collect();
        for i in 0..=20 {
            let at = start + i * step;
            let alone = instant(query, series(), at);
            match (together.get(&at), alone.first()) {
                (None, None) => {}
                (Some(a), Some((_, b))) => prop_assert!(close(*a, *b), "{query} at {at}: {a} {b}"),
                other => prop_assert!(false, "{query} at {at}: {other:?}"),
            }
        }
    }

    /// The quantile of a histogram lies in the bucket that holds its rank.
    #[test]
    fn a_histogram_quantile_is_in_its_bucket(counts in prop::collection::vec(0u32..50, 2..12), q in 0.0f64..=1.0) {
        let mut total = 0.0;
        let n = counts.len();
        let mut buckets: Vec<window::Bucket> = counts.iter().enumerate().map(|(i, c)| {
            total += f64::from(*c);
            window::Bucket { bound: if i + 1 == n { f64::INFINITY } else { (i + 1) as f64 }, count: total }
        }).collect();
        let value = window::histogram_quantile(q, &mut buckets);
        if total == 0.0 {
            prop_assert!(value.is_nan());
        } else {
            prop_assert!(value >= 0.0 && value <= (n - 1) as f64, "{value}");
        }
    }

    /// Nothing is sorted for it. NaN would come first.
    #[test]
    fn a_quantile_is_that_of_sorted_values(
        values in prop::collection::vec(
            prop::sample::select(vec![
                -0.0, 0.0, 1.0, 1.5, -2.5, 1e300, f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE,
            ]),
            1..60,
        ),
        phi in prop_oneof![Just(0.0f64), Just(0.5), Just(1.0), 0.0f64..=1.0],
    ) {
        let mut sorted = values.clone();
        sorted.sort_by(|a, b| b.is_nan().cmp(&a.is_nan()).then(a.total_cmp(b)));
        let rank = phi * (sorted.len() - 1) as f64;
        let (lower, weight) = (rank.floor() as usize, rank - rank.floor());
        let upper = (lower + 1).min(sorted.len() - 1);
        let expected = sorted[lower] * (1.0 - weight) + sorted[upper] * weight;
        let found = window::quantile(phi, &mut values.clone());
        prop_assert!(
            found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()),
            "{phi} of {values:?}: {found} {expected}"
        );
    }

    /// The sum keeps what plain adding loses.
    #[test]
    fn sums_are_exact_enough(values in prop::collection::vec(-1e15f64..1e15, 0..100)) {
        let small = window::sum(values.iter().copied().chain([1e-3]).chain(values.iter().map(|v| -v)));
        prop_assert!((small - 1e-3).abs() < 1e-6, "{small}");
    }
}

#[test]
fn subqueries_are_bounded_like_ranges() {
    let at = 1_700_000_000_000;
    // Per window: as many steps as a range may have.
    let most = ask("count_over_time(vector(1)[11000s:1s])", vec![], at, at, 1).unwrap();
    assert!(matches!(most, PromAnswer::Vector(rows) if rows[0].1[0].1 == 11_000.0));
    for query in [
        "count_over_time(vector(1)[10y:1s])",
        "count_over_time(vector(1)[10y:1s] @ 0)",
        "count_over_time(vector(1)[10y:1s] offset 5y)",
        "sum_over_time(count_over_time(vector(1)[10y:1s])[1h:1m])",
        "sum_over_time(count_over_time(vector(1)[5m:1s])[10y:1s])",
        "absent_over_time(nothing[10y:1ms])",
        "vector(scalar(max_over_time(vector(1)[4294967295y:1ms])))",
    ] {
        let why = ask(query, vec![], at, at, 1).unwrap_err();
        assert!(why.contains("11000 points per timeseries"), "{query}: {why}");
    }
    // All windows together: as many values as a query may hold.
    let nested = "sum_over_time(count_over_time(vector(1)[3h:1s])[3000h:1h])";
    assert!(ask(nested, vec![], at, at, 1).unwrap_err().contains("promql_max_samples"));
    // A series for every value.
    let values = ask("count_values(\"v\", vector(time()))", vec![], at, at + 10_000, 1).unwrap_err();
    assert!(values.contains("promql_max_samples"), "{values}");
    // Durations without end do not overflow, however deep they are nested.
    let forever = (0..20).fold("vector(1)".to_string(), |e, _| {
        format!("max_over_time({e}[4294967295y:4294967295y] offset 4294967295y)")
    });
    ask(&forever, vec![], at, at, 1).unwrap();
}
