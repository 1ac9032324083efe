//! Metrics into `series`, protobuf and JSON.

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::exponential_histogram_data_point::Buckets;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::summary_data_point::ValueAtQuantile;
use opentelemetry_proto::tonic::metrics::v1::{
    ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, Summary, SummaryDataPoint,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use rollscope_formats::import::otlp::{
    DecodeOptions, Decoded, Source, Stored, Summed, decode_metrics, decode_metrics_json,
};
use serde_json::{Value as Json, json};

use super::support::{Style, kv, rows};

const TIME: u64 = 1_700_000_000_000_000_000;

fn request(resource: Vec<KeyValue>, metrics: Vec<(&str, Data)>) -> ExportMetricsServiceRequest {
    let metrics =
        metrics.into_iter().map(|(name, data)| Metric { name: name.into(), data: Some(data), ..Metric::default() });
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource { attributes: resource, ..Resource::default() }),
            scope_metrics: vec![ScopeMetrics { metrics: metrics.collect(), ..ScopeMetrics::default() }],
            ..ResourceMetrics::default()
        }],
    }
}

fn point(value: Option<Number>, attributes: Vec<KeyValue>) -> NumberDataPoint {
    NumberDataPoint { attributes, time_unix_nano: TIME, value, ..NumberDataPoint::default() }
}

fn decode(request: &ExportMetricsServiceRequest) -> Decoded {
    decode_metrics(&request.encode_to_vec(), &DecodeOptions::default()).unwrap()
}

/// `name{labels} kind value` of every row.
fn lines(decoded: &Decoded) -> Vec<String> {
    let line = |r: &Json| {
        let s = |key: &str| r[key].as_str().unwrap().to_string();
        format!("{}{} {} {}", s("name"), s("labels"), s("kind"), r["value"])
    };
    rows(&decoded.batch).iter().map(line).collect()
}

#[test]
fn numbers_keep_name_labels_and_kind() {
    let sum = |temporality, is_monotonic| {
        Data::Sum(Sum {
            data_points: vec![point(Some(Number::AsInt(3)), vec![])],
            aggregation_temporality: temporality,
            is_monotonic,
        })
    };
    let gauge = point(Some(Number::AsDouble(0.5)), vec![kv("z", "1"), kv("a", 2), kv("é\"", true)]);
    let resource = vec![kv("service.name", "sglang"), kv("service.instance.id", "i-1"), kv("rl.run.id", "run")];
    let decoded = decode(&request(
        resource,
        vec![
            ("sglang:num_queue_reqs", Data::Gauge(Gauge { data_points: vec![gauge] })),
            ("cumulative", sum(2, true)),
            ("up_down", sum(2, false)),
            ("delta", sum(1, true)),
        ],
    ));
    assert_eq!(
        lines(&decoded),
        [
            r#"sglang:num_queue_reqs{"a":2,"z":"1","é\"":true} gauge 0.5"#,
            "cumulative{} counter 3.0",
            "up_down{} gauge 3.0",
        ]
    );
    assert_eq!(decoded.deltas.len(), 1, "a delta is added up before it becomes a row");
    let row = &rows(&decoded.batch)[0];
    assert_eq!((&row["run_id"], &row["target"]), (&json!("run"), &json!("sglang/i-1")));
    assert_eq!(row["time_ns"], TIME);
    assert_eq!(decoded.runs.len(), 1);
    assert_eq!((decoded.runs[0].run_id.as_str(), decoded.runs[0].first_ns), ("run", TIME as i64));
    assert_eq!(decoded.runs[0].framework.as_deref(), Some("sglang"));
}

fn histogram(bounds: &[f64], counts: &[u64]) -> HistogramDataPoint {
    HistogramDataPoint {
        attributes: vec![kv("az", "x"), kv("me", "y")],
        time_unix_nano: TIME,
        count: counts.iter().sum(),
        sum: Some(10.5),
        bucket_counts: counts.to_vec(),
        explicit_bounds: bounds.to_vec(),
        ..HistogramDataPoint::default()
    }
}

#[test]
fn histograms_are_cumulative_buckets() {
    let data = Histogram { data_points: vec![histogram(&[0.5, 1.0], &[1, 2, 4])], aggregation_temporality: 2 };
    let decoded = decode(&request(vec![], vec![("h", Data::Histogram(data))]));
    assert_eq!(
        lines(&decoded),
        [
            r#"h_bucket{"az":"x","le":"0.5","me":"y"} histogram 1.0"#,
            r#"h_bucket{"az":"x","le":"1","me":"y"} histogram 3.0"#,
            r#"h_bucket{"az":"x","le":"+Inf","me":"y"} histogram 7.0"#,
            r#"h_sum{"az":"x","me":"y"} histogram 10.5"#,
            r#"h_count{"az":"x","me":"y"} histogram 7.0"#,
        ]
    );
}

#[test]
fn exponential_histograms_get_bounds() {
    let point = ExponentialHistogramDataPoint {
        time_unix_nano: TIME,
        count: 10,
        scale: 0,
        zero_count: 3,
        zero_threshold: 0.25,
        positive: Some(Buckets { offset: -1, bucket_counts: vec![1, 2] }),
        negative: Some(Buckets { offset: 1, bucket_counts: vec![4] }),
        ..ExponentialHistogramDataPoint::default()
    };
    let data = ExponentialHistogram { data_points: vec![point], aggregation_temporality: 2 };
    let decoded = decode(&request(vec![], vec![("e", Data::ExponentialHistogram(data))]));
    assert_eq!(
        lines(&decoded),
        [
            r#"e_bucket{"le":"-2"} histogram 4.0"#,
            r#"e_bucket{"le":"0.25"} histogram 7.0"#,
            r#"e_bucket{"le":"1"} histogram 8.0"#,
            r#"e_bucket{"le":"2"} histogram 10.0"#,
            r#"e_bucket{"le":"+Inf"} histogram 10.0"#,
            "e_count{} histogram 10.0",
        ]
    );
}

fn summary() -> Data {
    let quantile_values = vec![ValueAtQuantile { quantile: 0.99, value: 3.0 }];
    let point =
        SummaryDataPoint { time_unix_nano: TIME, count: 2, sum: 4.0, quantile_values, ..SummaryDataPoint::default() };
    Data::Summary(Summary { data_points: vec![point] })
}

#[test]
fn summaries_are_quantiles() {
    let decoded = decode(&request(vec![], vec![("s", summary())]));
    let expected = [r#"s{"quantile":"0.99"} summary 3.0"#, "s_sum{} summary 4.0", "s_count{} summary 2.0"];
    assert_eq!(lines(&decoded), expected);
}

#[test]
fn bad_points_are_refused_one_by_one() {
    let gauge = |p| Data::Gauge(Gauge { data_points: vec![p, point(Some(Number::AsInt(1)), vec![])] });
    let late = NumberDataPoint { time_unix_nano: u64::MAX, ..point(Some(Number::AsInt(1)), vec![]) };
    let histograms = vec![
        histogram(&[1.0], &[1]),
        histogram(&[2.0, 1.0], &[1, 1, 1]),
        histogram(&[1.0; 600], &[1; 601]),
        histogram(&[1.0], &[1, 1]),
    ];
    let request = request(
        vec![],
        vec![
            ("no_value", gauge(point(None, vec![]))),
            ("late", gauge(late)),
            ("long", gauge(point(Some(Number::AsInt(1)), vec![kv("k", "x".repeat(20_000))]))),
            ("h", Data::Histogram(Histogram { data_points: histograms, aggregation_temporality: 2 })),
        ],
    );
    let decoded = decode(&request);
    assert_eq!(decoded.rejected, 6);
    for reason in
        ["no value", "after the year 2199", "attribute_bytes", "does not match its bounds", "more than 512 buckets"]
    {
        assert!(decoded.reasons.iter().any(|r| r.contains(reason)), "{reason}: {:?}", decoded.reasons);
    }
    assert_eq!(lines(&decoded).len(), 3 + 4);
    assert!(decode_metrics(&[0x0a, 0x05], &DecodeOptions::default()).is_err());
}

#[test]
fn a_series_that_ended_is_marked_as_prometheus_does() {
    let ended = NumberDataPoint { flags: 1, ..point(None, vec![]) };
    let decoded = decode(&request(vec![], vec![("g", Data::Gauge(Gauge { data_points: vec![ended] }))]));
    use arrow::array::AsArray as _;
    use arrow::datatypes::Float64Type;
    let value = decoded.batch.column_by_name("value").unwrap().as_primitive::<Float64Type>().value(0);
    assert_eq!(value.to_bits(), 0x7ff0_0000_0000_0002);
}

#[test]
fn json_gives_the_same_rows() {
    let labels = vec![kv("b", "x"), kv("a", 1)];
    let resource = vec![kv("service.name", "s")];
    let style = Style(0);
    let text = json!({"resourceMetrics": [{
        "resource": {"attributes": style.pairs(&resource)},
        "scopeMetrics": [{"scope": {"name": "m"}, "metrics": [
            {"name": "g", "gauge": {"dataPoints": [
                {"attributes": style.pairs(&labels), "timeUnixNano": TIME.to_string(), "asInt": "7"},
                {"timeUnixNano": TIME, "asDouble": "NaN"},
                {"timeUnixNano": "never", "asDouble": 1},
            ]}},
            {"name": "c", "sum": {"aggregationTemporality": "AGGREGATION_TEMPORALITY_CUMULATIVE", "isMonotonic": true,
                "data_points": [{"time_unix_nano": TIME, "as_double": 1.5, "exemplars": [{}]}]}},
            {"name": "h", "histogram": {"aggregationTemporality": 2, "dataPoints": [{
                "attributes": style.pairs(&[kv("az", "x"), kv("me", "y")]), "timeUnixNano": TIME.to_string(),
                "count": "7", "sum": 10.5, "bucketCounts": ["1", 2, "4"], "explicitBounds": [0.5, 1]}]}},
            {"name": "e", "exponentialHistogram": {"dataPoints": [{
                "timeUnixNano": TIME, "count": 3, "scale": 1, "zeroCount": 0,
                "positive": {"offset": 2, "bucketCounts": ["3"]}}]}},
            {"name": "s", "summary": {"dataPoints": [{"timeUnixNano": TIME, "count": 2, "sum": 4,
                "quantileValues": [{"quantile": 0.99, "value": 3}]}]}},
            {"name": "empty"},
        ]}],
    }]});
    let from_json = decode_metrics_json(text.to_string().as_bytes(), &DecodeOptions::default()).unwrap();
    let exponential = ExponentialHistogramDataPoint {
        time_unix_nano: TIME,
        count: 3,
        scale: 1,
        positive: Some(Buckets { offset: 2, bucket_counts: vec![3] }),
        ..ExponentialHistogramDataPoint::default()
    };
    let points = vec![point(Some(Number::AsInt(7)), labels), point(Some(Number::AsDouble(f64::NAN)), vec![])];
    let sum = Sum {
        data_points: vec![point(Some(Number::AsDouble(1.5)), vec![])],
        aggregation_temporality: 2,
        is_monotonic: true,
    };
    let h = Histogram { data_points: vec![histogram(&[0.5, 1.0], &[1, 2, 4])], aggregation_temporality: 2 };
    let e = ExponentialHistogram { data_points: vec![exponential], aggregation_temporality: 0 };
    let request = request(
        resource,
        vec![
            ("g", Data::Gauge(Gauge { data_points: points })),
            ("c", Data::Sum(sum)),
            ("h", Data::Histogram(h)),
            ("e", Data::ExponentialHistogram(e)),
            ("s", summary()),
        ],
    );
    let from_protobuf = decode(&request);
    assert_eq!(lines(&from_json), lines(&from_protobuf));
    assert_eq!(from_json.runs, from_protobuf.runs);
    assert_eq!(from_json.rejected, 2, "a time that is none, and a metric without data: {:?}", from_json.reasons);
}

/// Sums of deltas, of one source, as `name{labels} kind value @ seconds since TIME`; and what was refused.
fn add(source: &mut Source, metrics: Vec<(&str, Data)>) -> (Vec<String>, Vec<String>) {
    let decoded = decode(&request(vec![], metrics));
    let mut summed = Summed::default();
    source.add(decoded.deltas, &mut summed);
    let (batch, _, reasons) = summed.finish();
    let line = |r: &Json| {
        let s = |key: &str| r[key].as_str().unwrap().to_string();
        let at = (r["time_ns"].as_i64().unwrap() - TIME as i64) as f64 / 1e9;
        format!("{}{} {} {} @ {at}", s("name"), s("labels"), s("kind"), r["value"])
    };
    (rows(&batch).iter().map(line).collect(), [decoded.reasons, reasons].concat())
}

fn between(from_s: u64, to_s: u64) -> (u64, u64) {
    (TIME + from_s * 1_000_000_000, TIME + to_s * 1_000_000_000)
}

fn delta(from_s: u64, to_s: u64, value: f64) -> Data {
    let (start_time_unix_nano, time_unix_nano) = between(from_s, to_s);
    let point = NumberDataPoint {
        start_time_unix_nano,
        time_unix_nano,
        value: Some(Number::AsDouble(value)),
        ..NumberDataPoint::default()
    };
    Data::Sum(Sum { data_points: vec![point], aggregation_temporality: 1, is_monotonic: true })
}

#[test]
fn deltas_become_totals_and_no_point_counts_twice() {
    let mut source = Source::default();
    let (first, _) = add(&mut source, vec![("d", delta(0, 10, 3.0))]);
    assert_eq!(first, ["d{} counter 0.0 @ 0.001", "d{} counter 3.0 @ 10"]);
    assert_eq!(add(&mut source, vec![("d", delta(10, 20, 4.0))]).0, ["d{} counter 7.0 @ 20"]);
    // Retries, of the last point and of one before it.
    assert_eq!(add(&mut source, vec![("d", delta(10, 20, 4.0))]), (vec![], vec![]));
    assert_eq!(add(&mut source, vec![("d", delta(0, 10, 3.0))]), (vec![], vec![]));
    // Another sender of the same stream, a little late; and again.
    assert_eq!(add(&mut source, vec![("d", delta(5, 15, 1.0))]).0, ["d{} counter 8.0 @ 20.001"]);
    assert_eq!(add(&mut source, vec![("d", delta(5, 15, 1.0))]), (vec![], vec![]));
    // Two scopes with a metric of the same name, in one message.
    let twice = vec![("d", delta(20, 30, 1.0)), ("d", delta(20, 30, 1.0))];
    assert_eq!(add(&mut source, twice).0, ["d{} counter 10.0 @ 30"]);
    let (rows, reasons) = add(&mut source, vec![("d", delta(990, 1000, 1.0)), ("d", delta(3, 4, 1.0))]);
    assert_eq!(rows, ["d{} counter 11.0 @ 30.001", "d{} counter 12.0 @ 1000"]);
    assert_eq!(reasons, [] as [&str; 0]);
    // Too late, not to be added, not possible.
    let bad = vec![
        ("d", delta(6, 7, 1.0)),
        ("d", delta(1000, 1010, f64::NAN)),
        ("d", delta(1000, 1010, -1.0)),
        ("d", delta(1020, 1010, 1.0)),
    ];
    let (rows, reasons) = add(&mut source, bad);
    assert_eq!((rows.len(), reasons.len()), (0, 4), "{reasons:?}");
    for words in ["came too late", "not a finite number", "is negative", "before the start"] {
        assert!(reasons.iter().any(|r| r.contains(words)), "{words}: {reasons:?}");
    }
}

#[test]
fn delta_histograms_become_totals() {
    let point = |from, to, counts: &[u64]| {
        let (start_time_unix_nano, time_unix_nano) = between(from, to);
        let point = HistogramDataPoint { attributes: vec![], ..histogram(&[0.5, 1.0], counts) };
        let point = HistogramDataPoint { start_time_unix_nano, time_unix_nano, ..point };
        Data::Histogram(Histogram { data_points: vec![point], aggregation_temporality: 1 })
    };
    let mut source = Source::default();
    let (first, _) = add(&mut source, vec![("h", point(0, 10, &[1, 2, 4]))]);
    assert_eq!(first.len(), 10, "{first:?}");
    assert!(first[..5].iter().all(|l| l.ends_with(" 0.0 @ 0.001")), "{first:?}");
    let then = [
        r#"h_bucket{"le":"0.5"} histogram 2.0 @ 20"#,
        r#"h_bucket{"le":"1"} histogram 4.0 @ 20"#,
        r#"h_bucket{"le":"+Inf"} histogram 9.0 @ 20"#,
        "h_sum{} histogram 21.0 @ 20",
        "h_count{} histogram 9.0 @ 20",
    ];
    assert_eq!(add(&mut source, vec![("h", point(10, 20, &[1, 0, 1]))]).0, then);
}

#[test]
fn exponential_deltas_with_other_buckets_each_time_become_totals() {
    // At scale 10 one observation is one bucket; they are added up at scale 3, 8 buckets for a factor of two.
    let point = |from, to, index: i32, n: u64| {
        let (start_time_unix_nano, time_unix_nano) = between(from, to);
        let point = ExponentialHistogramDataPoint {
            start_time_unix_nano,
            time_unix_nano,
            count: n,
            scale: 10,
            positive: Some(Buckets { offset: index, bucket_counts: vec![n] }),
            ..ExponentialHistogramDataPoint::default()
        };
        Data::ExponentialHistogram(ExponentialHistogram { data_points: vec![point], aggregation_temporality: 1 })
    };
    let mut source = Source::default();
    add(&mut source, vec![("e", point(0, 10, 1024, 5))]);
    // (2, 2.18], then (4, 4.36]: every bound tells all that is below it.
    let (rows, _) = add(&mut source, vec![("e", point(10, 20, 2048, 2))]);
    let value = |le: &str, at: &str| {
        let row = rows.iter().find(|r| r.contains(&format!(r#""le":"{le}""#)) && r.ends_with(&format!("@ {at}")));
        row.map(|r| r.split(' ').nth(2).unwrap().to_string())
    };
    assert_eq!(value("2", "20").as_deref(), Some("0.0"));
    assert_eq!(value("2.1810154653305154", "20").as_deref(), Some("5.0"));
    assert_eq!(value("4", "20").as_deref(), Some("5.0"));
    assert_eq!(value("4.362030930661031", "20").as_deref(), Some("7.0"));
    assert_eq!(value("+Inf", "20").as_deref(), Some("7.0"));
    // A bound that is new begins with what was below it before.
    assert_eq!(value("4.362030930661031", "10.001").as_deref(), Some("5.0"));
    assert_eq!(value("2", "10.001"), None);
}

#[test]
fn totals_go_on_from_what_is_stored() {
    let stored = |name: &str, labels: &str, kind: &str, seconds: i64, value| Stored {
        name: name.into(),
        labels: labels.into(),
        kind: kind.into(),
        time_ns: TIME as i64 + seconds * 1_000_000_000,
        value,
    };
    let mut source = Source::of_stored(vec![
        stored("d", "{}", "counter", 10, 3.0),
        stored("h_bucket", r#"{"le":"0.5"}"#, "histogram", 10, 1.0),
        stored("h_bucket", r#"{"le":"7"}"#, "histogram", 5, 1.0),
        stored("h_bucket", r#"{"le":"+Inf"}"#, "histogram", 10, 7.0),
        stored("h_count", "{}", "histogram", 10, 7.0),
    ]);
    // What was stored before the restart comes again.
    assert_eq!(add(&mut source, vec![("d", delta(0, 10, 3.0))]), (vec![], vec![]));
    assert_eq!(add(&mut source, vec![("d", delta(10, 20, 4.0))]).0, ["d{} counter 7.0 @ 20"]);
    let (start_time_unix_nano, time_unix_nano) = between(10, 20);
    let point = HistogramDataPoint {
        attributes: vec![],
        start_time_unix_nano,
        time_unix_nano,
        sum: None,
        ..histogram(&[0.5], &[1, 1])
    };
    let data = Histogram { data_points: vec![point], aggregation_temporality: 1 };
    let then = [
        r#"h_bucket{"le":"0.5"} histogram 2.0 @ 20"#,
        r#"h_bucket{"le":"+Inf"} histogram 9.0 @ 20"#,
        "h_count{} histogram 9.0 @ 20",
    ];
    assert_eq!(add(&mut source, vec![("h", Data::Histogram(data))]).0, then);
}
