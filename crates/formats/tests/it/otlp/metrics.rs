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
use rollscope_formats::import::otlp::{DecodeOptions, Decoded, decode_metrics, decode_metrics_json};
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
            "delta{} gauge 3.0",
        ]
    );
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
    for reason in ["no value", "after the year 2199", "attribute_bytes", "do not fit", "more than 512 buckets"] {
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
