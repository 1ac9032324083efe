//! Remote write. Requests are encoded by prost from Prometheus's `.proto` files, written down once more here.

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use prost::Message;
use rollscope_formats::import::prometheus::{Kinds, Limits};
use rollscope_formats::import::remote_write::{Decoded, Error, Options, Version, decode};

#[derive(Clone, PartialEq, Message)]
struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    timeseries: Vec<TimeSeries>,
    #[prost(message, repeated, tag = "3")]
    metadata: Vec<MetricMetadata>,
}

#[derive(Clone, PartialEq, Message)]
struct MetricMetadata {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(string, tag = "2")]
    family: String,
    #[prost(string, tag = "4")]
    help: String,
}

#[derive(Clone, PartialEq, Message)]
struct TimeSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    exemplars: Vec<Exemplar>,
    #[prost(message, repeated, tag = "4")]
    histograms: Vec<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Sample {
    #[prost(double, tag = "1")]
    value: f64,
    #[prost(int64, tag = "2")]
    timestamp: i64,
    #[prost(int64, tag = "3")]
    start_timestamp: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Exemplar {
    #[prost(double, tag = "2")]
    value: f64,
    #[prost(int64, tag = "3")]
    timestamp: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(double, tag = "3")]
    sum: f64,
    #[prost(int64, tag = "15")]
    timestamp: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Request2 {
    #[prost(string, repeated, tag = "4")]
    symbols: Vec<String>,
    #[prost(message, repeated, tag = "5")]
    timeseries: Vec<TimeSeries2>,
}

#[derive(Clone, PartialEq, Message)]
struct TimeSeries2 {
    #[prost(uint32, repeated, tag = "1")]
    labels_refs: Vec<u32>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    histograms: Vec<Histogram>,
    #[prost(message, repeated, tag = "4")]
    exemplars: Vec<Exemplar>,
    #[prost(message, optional, tag = "5")]
    metadata: Option<Metadata2>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Metadata2 {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(uint32, tag = "3")]
    help_ref: u32,
}

const NOW: i64 = 1_700_000_000_000;

fn read(bytes: &[u8], version: Version, kinds: &Kinds) -> Result<Decoded, Error> {
    let options = Options { limits: &Limits::default(), max_samples: 1000, run_id: "_scraped", kinds, now_ms: NOW };
    decode(bytes, version, &options)
}

fn one(request: &WriteRequest) -> Decoded {
    read(&request.encode_to_vec(), Version::One, &Kinds::default()).unwrap()
}

fn two(request: &Request2) -> Decoded {
    read(&request.encode_to_vec(), Version::Two, &Kinds::default()).unwrap()
}

/// Target, name, labels, kind, milliseconds, bits of the value.
fn rows(batch: &RecordBatch) -> Vec<(String, String, String, String, i64, u64)> {
    let text = |name: &str| cast(batch.column_by_name(name).unwrap(), &DataType::Utf8).unwrap();
    let [targets, names, labels, kinds] = ["target", "name", "labels", "kind"].map(text);
    let times = batch.column_by_name("time_ns").unwrap().as_primitive::<Int64Type>();
    let values = batch.column_by_name("value").unwrap().as_primitive::<Float64Type>();
    let at = |column: &arrow::array::ArrayRef, row: usize| column.as_string::<i32>().value(row).to_string();
    (0..batch.num_rows())
        .map(|i| {
            let value = values.value(i).to_bits();
            (at(&targets, i), at(&names, i), at(&labels, i), at(&kinds, i), times.value(i) / 1_000_000, value)
        })
        .collect()
}

fn sample(timestamp: i64, value: f64) -> Sample {
    Sample { value, timestamp, start_timestamp: 0 }
}

fn series(labels: &[(&str, &str)], samples: &[Sample]) -> TimeSeries {
    let labels = labels.iter().map(|(name, value)| Label { name: (*name).into(), value: (*value).into() }).collect();
    TimeSeries { labels, samples: samples.to_vec(), ..TimeSeries::default() }
}

/// The same series in 2.0, every text a symbol.
fn symbolised(request: &WriteRequest, kind: i32) -> Request2 {
    let mut symbols = vec![String::new()];
    let mut timeseries = Vec::new();
    for series in &request.timeseries {
        let mut labels_refs = Vec::new();
        for text in series.labels.iter().flat_map(|l| [&l.name, &l.value]) {
            let place = symbols.iter().position(|s| s == text).unwrap_or_else(|| {
                symbols.push(text.clone());
                symbols.len() - 1
            });
            labels_refs.push(place as u32);
        }
        let metadata = (kind > 0).then_some(Metadata2 { kind, help_ref: 0 });
        let (samples, histograms) = (series.samples.clone(), series.histograms.clone());
        timeseries.push(TimeSeries2 { labels_refs, samples, histograms, metadata, exemplars: Vec::new() });
    }
    Request2 { symbols, timeseries }
}

#[test]
fn both_versions_give_the_rows_that_scraping_gives() {
    let stale = f64::from_bits(0x7ff0_0000_0000_0002);
    let nan = f64::from_bits(0x7ff8_0000_0000_0001);
    let labels =
        [("__name__", "sglang:reqs"), ("instance", "h:1"), ("job", "sglang"), ("model", "a\"b\\é"), ("none", "")];
    let samples = [sample(NOW - 2000, 1.5), sample(NOW - 1000, nan), sample(NOW, stale), sample(NOW - 3000, -2.5)];
    let rules = series(&[("__name__", "job:reqs:sum")], &[sample(NOW, f64::INFINITY)]);
    let request = WriteRequest { timeseries: vec![series(&labels, &samples), rules], metadata: Vec::new() };
    let found = rows(&one(&request).batch);
    let text = r#"{"instance":"h:1","job":"sglang","model":"a\"b\\é"}"#;
    let expected = |kind: &str| -> Vec<_> {
        let of = |s: &Sample| {
            ("h:1".into(), "sglang:reqs".into(), text.into(), kind.to_string(), s.timestamp, s.value.to_bits())
        };
        let mut rows: Vec<_> = samples.iter().map(of).collect();
        // Without an instance there is no target: PromQL then sees no such label, as in Prometheus.
        let (name, bits) = ("job:reqs:sum".to_string(), f64::INFINITY.to_bits());
        rows.push((String::new(), name, "{}".into(), kind.to_string(), NOW, bits));
        rows
    };
    assert_eq!(found, expected("unknown"));
    let second = two(&symbolised(&request, 2));
    assert_eq!((rows(&second.batch), second.rejected), (expected("gauge"), 0));
}

#[test]
fn kinds_come_with_the_metadata_of_this_request_or_an_earlier_one() {
    let metadata = |kind, family: &str| MetricMetadata { kind, family: family.into(), help: "words".into() };
    let histogram = series(&[("__name__", "lat_bucket"), ("le", "1")], &[sample(NOW, 1.0)]);
    let counter = series(&[("__name__", "reqs_total")], &[sample(NOW, 1.0)]);
    let request = WriteRequest {
        timeseries: vec![histogram, counter],
        metadata: vec![metadata(3, "lat"), metadata(1, "reqs"), metadata(0, "other"), metadata(1, "")],
    };
    let decoded = one(&request);
    assert_eq!(rows(&decoded.batch).iter().map(|r| r.3.as_str()).collect::<Vec<_>>(), ["histogram", "counter"]);
    let mut kinds = Kinds::default();
    for (family, kind) in decoded.declared {
        kinds.declare(family, kind, &Limits::default());
    }
    let later = WriteRequest { metadata: Vec::new(), ..request };
    let later = read(&later.encode_to_vec(), Version::One, &kinds).unwrap();
    assert_eq!(rows(&later.batch).iter().map(|r| r.3.as_str()).collect::<Vec<_>>(), ["histogram", "counter"]);
}

#[test]
fn what_is_wrong_is_rejected_and_named_and_the_rest_counts() {
    let good = || series(&[("__name__", "good")], &[sample(NOW, 1.0)]);
    let with = |bad: TimeSeries| WriteRequest { timeseries: vec![good(), bad, good()], metadata: Vec::new() };
    let many: Vec<(String, String)> = (0..65).map(|i| (format!("l{i}"), "v".into())).collect();
    let mut many: Vec<(&str, &str)> = many.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    many.push(("__name__", "many"));
    let long = "x".repeat(5000);
    let at = |ms| series(&[("__name__", "late")], &[sample(ms, 1.0)]);
    let histograms = vec![Histogram { sum: 1.0, timestamp: NOW }];
    let native = TimeSeries { histograms, ..series(&[("__name__", "native")], &[]) };
    for (bad, why) in [
        (series(&[("a", "b")], &[sample(NOW, 1.0)]), "no name"),
        (series(&[("__name__", "")], &[sample(NOW, 1.0)]), "no name"),
        (series(&[("__name__", "x"), ("", "b")], &[sample(NOW, 1.0)]), "a label has no name"),
        (series(&[("__name__", "x"), ("a", "b"), ("a", "c")], &[sample(NOW, 1.0)]), "occurs twice (1, first of \"x\")"),
        (series(&many, &[sample(NOW, 1.0)]), "more than 64 labels"),
        (series(&[("__name__", "x"), ("a", &long)], &[sample(NOW, 1.0)]), "max_label_bytes"),
        (series(&[("__name__", &long[..600])], &[sample(NOW, 1.0)]), "longer than 512"),
        (at(0), "before the year 2000"),
        (at(i64::MIN), "before the year 2000"),
        (at(NOW + 601_000), "ten minutes ahead"),
        (at(i64::MAX), "ten minutes ahead"),
        (native, "send_native_histograms"),
    ] {
        let request = with(bad);
        for decoded in [one(&request), two(&symbolised(&request, 0))] {
            assert_eq!((decoded.batch.num_rows(), decoded.rejected), (2, 1), "{why}");
            assert!(decoded.reasons[0].contains(why), "{:?}", decoded.reasons);
        }
    }
    // As many labels as are allowed, and the name.
    let decoded = one(&with(series(&many[1..], &[sample(NOW, 1.0)])));
    assert_eq!((decoded.batch.num_rows(), decoded.rejected), (3, 0));
    // An exemplar is passed over, as on a page.
    let exemplars = vec![Exemplar { value: 1.0, timestamp: NOW }];
    assert_eq!(one(&with(TimeSeries { exemplars, ..good() })).rejected, 0);
}

#[test]
fn symbols_that_are_not_there_are_rejected() {
    let of = |labels_refs: &[u32]| {
        let series =
            TimeSeries2 { labels_refs: labels_refs.to_vec(), samples: vec![sample(NOW, 1.0)], ..Default::default() };
        two(&Request2 { symbols: ["", "__name__", "x"].map(String::from).to_vec(), timeseries: vec![series] })
    };
    assert_eq!(of(&[1, 2]).batch.num_rows(), 1);
    for (refs, why) in
        [(&[1, 2, 7, 1][..], "symbol"), (&[1, u32::MAX], "symbol"), (&[1, 2, 1], "pairs"), (&[], "no name")]
    {
        let decoded = of(refs);
        assert_eq!((decoded.batch.num_rows(), decoded.rejected), (0, 1), "{refs:?}");
        assert!(decoded.reasons[0].contains(why), "{:?}", decoded.reasons);
    }
    // Not packed, and before the symbols: both are allowed.
    let mut bytes = vec![0x2a, 15, 0x08, 1, 0x08, 2, 0x12, 9];
    bytes.extend([0x10]);
    prost::encoding::encode_varint(NOW as u64, &mut bytes);
    bytes[1] = (bytes.len() - 2) as u8;
    bytes[7] = (bytes.len() - 8) as u8;
    bytes.extend(b"\x22\x00\x22\x08__name__\x22\x01x");
    assert_eq!(rows(&read(&bytes, Version::Two, &Kinds::default()).unwrap().batch)[0].1, "x");
}

#[test]
fn too_much_is_refused_whole() {
    let samples: Vec<Sample> = (0..1001).map(|i| sample(NOW - i, 1.0)).collect();
    let request = WriteRequest { timeseries: vec![series(&[("__name__", "x")], &samples)], metadata: Vec::new() };
    let refused = read(&request.encode_to_vec(), Version::One, &Kinds::default());
    assert!(matches!(refused, Err(Error::TooLarge { limit: "max_samples", .. })), "{refused:?}");
    // A long symbol that every label of every series uses.
    let mut symbols: Vec<String> = (0..60).map(|i| format!("l{i}")).collect();
    symbols.extend(["__name__".into(), "v".repeat(4000)]);
    let labels_refs: Vec<u32> = (0..60).flat_map(|i| [i, 61]).chain([60, 0]).collect();
    let one = TimeSeries2 { labels_refs, samples: vec![sample(NOW, 1.0)], ..TimeSeries2::default() };
    let request = Request2 { symbols, timeseries: vec![one; 900] };
    let refused = read(&request.encode_to_vec(), Version::Two, &Kinds::default());
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
}

#[test]
fn a_request_that_is_cut_is_malformed_wherever_it_is_cut() {
    let labels = [("__name__", "a"), ("job", "b")];
    let request = WriteRequest { timeseries: vec![series(&labels, &[sample(NOW, 1.0)])], metadata: Vec::new() };
    for (bytes, version) in [
        (request.encode_to_vec(), Version::One),
        (Request2 { symbols: Vec::new(), ..symbolised(&request, 1) }.encode_to_vec(), Version::Two),
    ] {
        for end in 1..bytes.len() {
            let cut = read(&bytes[..end], version, &Kinds::default());
            assert!(matches!(cut, Err(Error::Malformed { .. })), "{end} of {}", bytes.len());
        }
    }
    // The other message has other fields: nothing is found, and nothing is invented.
    let crossed = read(&symbolised(&request, 1).encode_to_vec(), Version::One, &Kinds::default()).unwrap();
    assert_eq!((crossed.batch.num_rows(), crossed.rejected), (0, 0));
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
        for version in [Version::One, Version::Two] {
            let _ = read(&bytes, version, &Kinds::default());
        }
    }
}
