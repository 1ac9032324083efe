//! The evaluator without a store: known answers, and properties against plain definitions. That it agrees with Prometheus
//! itself is tested with the real one, in `tests/test_prometheus.py`.

use std::collections::HashMap;

use proptest::prelude::*;

use super::eval::PromAnswer;
use super::source::Stored;
use super::testing::{ask, stored};
use super::{ABSENT, window};

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
