//! OTLP metrics into `series`, one row per value, named as Prometheus would: a histogram is `name_bucket` with a label
//! `le`, `name_sum` and `name_count`; a summary is `name` with a label `quantile`. Names stay as they came. Points of
//! delta temporality are handed on as they are, to be added up ([`super::deltas`]).
//!
//! Metrics are few beside spans, so this goes through the generated structs.

use std::collections::HashMap;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::exponential_histogram_data_point::Buckets;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, ExponentialHistogramDataPoint, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, SummaryDataPoint,
};
use prost::Message as _;
use rollscope_model::attrs;
use rollscope_model::build::{NewPoint, SeriesBuilder};
use rollscope_model::limits::RUN_ID_BYTES;
use rollscope_model::names;
use rollscope_model::time::{EARLIEST_LIVE_NS, LATEST_NS};

use super::deltas::{Delta, Total};
use super::room::{self, Room, Shape};
use super::span::{Reason, Rejects};
use super::{DecodeError, DecodeOptions, Decoded, MAX_RUNS, RunSeen};
use crate::any_value;

/// Buckets of one histogram.
pub(super) const MAX_BUCKETS: usize = 512;
/// The finest scale at which exponential histograms are added up: eight buckets for every factor of two. Deltas choose
/// their scale again each time; a series for every bound that was ever seen would be of no use.
const MAX_DELTA_SCALE: i32 = 3;
/// Text of the labels of one data point: it is repeated in every bucket.
const MAX_LABELS_BYTES: usize = 16 << 10;
/// Rows and text of labels that one request can make, however small it is on the wire.
const MAX_ROWS: usize = 4 << 20;
const MAX_ALL_LABELS_BYTES: usize = 256 << 20;
/// `DataPointFlags::NO_RECORDED_VALUE`: the series ended here.
const NO_VALUE: u32 = 1;
/// Prometheus's own mark for a series that ended.
pub(super) const STALE: f64 = f64::from_bits(0x7ff0_0000_0000_0002);

pub(super) const GAUGE: &str = "gauge";
pub(super) const COUNTER: &str = "counter";
pub(super) const HISTOGRAM: &str = "histogram";
const SUMMARY: &str = "summary";

pub(super) fn decode(bytes: &[u8], options: &DecodeOptions) -> Result<Decoded, DecodeError> {
    room::check(bytes, Shape::Metrics)?;
    let request =
        ExportMetricsServiceRequest::decode(bytes).map_err(|e| DecodeError(format!("malformed request: {e}")))?;
    let mut writer = SeriesWriter::new(options);
    for resource in &request.resource_metrics {
        writer.resource(resource);
    }
    Ok(writer.finish())
}

pub(super) struct SeriesWriter<'o> {
    options: &'o DecodeOptions,
    pub rejects: Rejects,
    /// Of the message that is being read.
    pub room: Room,
    columns: SeriesBuilder,
    deltas: Vec<Delta>,
    rows: usize,
    label_bytes: usize,
    runs: Vec<RunSeen>,
    run_index: HashMap<String, usize>,
    run: usize,
    target: String,
}

impl<'o> SeriesWriter<'o> {
    pub fn new(options: &'o DecodeOptions) -> Self {
        SeriesWriter {
            options,
            rejects: Rejects::default(),
            room: Room::of(&[]),
            columns: SeriesBuilder::default(),
            deltas: Vec::new(),
            rows: 0,
            label_bytes: 0,
            runs: Vec::new(),
            run_index: HashMap::new(),
            run: 0,
            target: String::new(),
        }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The rows so far, with what was rejected.
    pub fn finish(&mut self) -> Decoded {
        self.rows = 0;
        self.label_bytes = 0;
        let rejects = std::mem::take(&mut self.rejects);
        let mut runs = std::mem::take(&mut self.runs);
        self.run_index.clear();
        runs.retain(|r| r.first_ns != i64::MAX);
        Decoded {
            batch: self.columns.finish().expect("columns are written row by row"),
            deltas: std::mem::take(&mut self.deltas),
            rejected: rejects.total,
            reasons: rejects.reasons(),
            runs,
        }
    }

    pub fn resource(&mut self, resource: &ResourceMetrics) {
        let attributes = resource.resource.as_ref().map_or(&[][..], |r| &r.attributes);
        let service = first_text(attributes, &[names::SERVICE_NAME]);
        let run = (self.options.run.clone())
            .or_else(|| first_text(attributes, names::RUN_ID))
            .or_else(|| service.clone())
            .unwrap_or_else(|| "default".into());
        let service = service.unwrap_or_else(|| "unknown_service".into());
        self.target = match first_text(attributes, &["service.instance.id"]) {
            Some(instance) => format!("{service}/{instance}"),
            None => service.clone(),
        };
        let refused = if run.len() > RUN_ID_BYTES {
            Some(Reason::RunTooLong)
        } else if self.target.len() > MAX_LABELS_BYTES {
            Some(Reason::AttributeBytes(MAX_LABELS_BYTES))
        } else {
            self.see_run(run, &service, attributes).err()
        };
        for metric in resource.scope_metrics.iter().flat_map(|s| &s.metrics) {
            match refused {
                Some(reason) => self.rejects.add(reason, points(metric)),
                None => self.metric(metric),
            }
        }
    }

    fn see_run(&mut self, run: String, service: &str, attributes: &[KeyValue]) -> Result<(), Reason> {
        if let Some(index) = self.run_index.get(&run) {
            self.run = *index;
            return Ok(());
        }
        if self.runs.len() >= MAX_RUNS {
            return Err(Reason::TooManyRuns(MAX_RUNS));
        }
        let framework = first_text(attributes, &[names::SYSTEM]).unwrap_or_else(|| match service {
            "sglang" | "smg" => "sglang".into(),
            _ => "opentelemetry".into(),
        });
        self.run = self.runs.len();
        self.run_index.insert(run.clone(), self.run);
        self.runs.push(RunSeen {
            run_id: run,
            project: first_text(attributes, &[names::PROJECT]),
            name: first_text(attributes, &[names::RUN_NAME]),
            framework: Some(framework),
            first_ns: i64::MAX,
        });
        Ok(())
    }

    fn metric(&mut self, metric: &Metric) {
        let name = &metric.name;
        match &metric.data {
            None => self.rejects.add(Reason::NoMetricData, 1),
            Some(Data::Gauge(gauge)) => {
                for point in &gauge.data_points {
                    let done = self.number(name, GAUGE, false, point);
                    self.note(done);
                }
            }
            Some(Data::Sum(sum)) => {
                let kind = if sum.is_monotonic { COUNTER } else { GAUGE };
                for point in &sum.data_points {
                    let done = self.number(name, kind, is_delta(sum.aggregation_temporality), point);
                    self.note(done);
                }
            }
            Some(Data::Histogram(histogram)) => {
                for point in &histogram.data_points {
                    let done = self.histogram(name, is_delta(histogram.aggregation_temporality), point);
                    self.note(done);
                }
            }
            Some(Data::ExponentialHistogram(histogram)) => {
                for point in &histogram.data_points {
                    let done = self.exponential(name, is_delta(histogram.aggregation_temporality), point);
                    self.note(done);
                }
            }
            Some(Data::Summary(summary)) => {
                for point in &summary.data_points {
                    let done = self.summary(name, point);
                    self.note(done);
                }
            }
        }
    }

    fn note(&mut self, done: Result<(), Reason>) {
        if let Err(reason) = done {
            self.rejects.add(reason, 1);
        }
    }

    fn number(&mut self, name: &str, kind: &'static str, delta: bool, point: &NumberDataPoint) -> Result<(), Reason> {
        let ended = point.flags & NO_VALUE != 0;
        let value = match &point.value {
            _ if ended => STALE,
            Some(Number::AsDouble(d)) => *d,
            Some(Number::AsInt(i)) => *i as f64,
            None => return Err(Reason::NoValue),
        };
        if delta {
            let added = (!ended).then_some(Total::Number(value));
            let times = (point.start_time_unix_nano, point.time_unix_nano);
            return self.delta(name, kind, times, &point.attributes, added);
        }
        self.point(kind, point.time_unix_nano, &point.attributes, 1)?.push(name, None, value);
        Ok(())
    }

    fn histogram(&mut self, name: &str, delta: bool, point: &HistogramDataPoint) -> Result<(), Reason> {
        let (bounds, counts) = (&point.explicit_bounds, &point.bucket_counts);
        if counts.len() > MAX_BUCKETS {
            return Err(Reason::TooManyBuckets(MAX_BUCKETS));
        }
        let fits = counts.len() == bounds.len() + 1 || (counts.is_empty() && bounds.is_empty());
        let ordered = bounds.windows(2).all(|w| w[0] < w[1]) && bounds.iter().all(|b| b.is_finite());
        if !fits || !ordered {
            return Err(Reason::Buckets);
        }
        let buckets = bounds.iter().copied().zip(counts.iter().copied());
        let histogram = Histogram::new(buckets, point.count, point.sum);
        let times = (point.start_time_unix_nano, point.time_unix_nano);
        self.any_histogram(name, delta, times, &point.attributes, histogram, point.flags & NO_VALUE != 0)
    }

    fn exponential(&mut self, name: &str, delta: bool, point: &ExponentialHistogramDataPoint) -> Result<(), Reason> {
        let scale = if delta { point.scale.min(MAX_DELTA_SCALE) } else { point.scale };
        let coarser = point.scale.saturating_sub(scale);
        let (positive_at, positive) = side(point.positive.as_ref(), coarser)?;
        let (negative_at, negative) = side(point.negative.as_ref(), coarser)?;
        if positive.len() + negative.len() > MAX_BUCKETS {
            return Err(Reason::TooManyBuckets(MAX_BUCKETS));
        }
        // The bound below bucket i of the positive side is base^i with base = 2^(2^-scale).
        let bound = |index: i64| (index as f64 * (-f64::from(scale)).exp2()).exp2();
        let mut buckets = Vec::with_capacity(positive.len() + negative.len() + 3);
        if delta && !negative.is_empty() {
            buckets.push((-bound(negative_at + negative.len() as i64), 0));
        }
        for (i, count) in negative.iter().enumerate().rev() {
            buckets.push((-bound(negative_at + i as i64), *count));
        }
        buckets.push((point.zero_threshold.max(0.0), point.zero_count));
        if delta && !positive.is_empty() {
            // Where the buckets begin: without it the first one reaches down to zero.
            buckets.push((bound(positive_at), 0));
        }
        for (i, count) in positive.iter().enumerate() {
            buckets.push((bound(positive_at + i as i64 + 1), *count));
        }
        // A scale beyond the range of doubles makes neighbours equal: they become one.
        let mut merged: Vec<(f64, u64)> = Vec::with_capacity(buckets.len());
        for (bound, count) in buckets {
            match merged.last_mut() {
                Some((last, sum)) if bound <= *last => *sum = sum.saturating_add(count),
                _ => merged.push((bound, count)),
            }
        }
        let histogram = Histogram::new(merged.into_iter(), point.count, point.sum);
        let times = (point.start_time_unix_nano, point.time_unix_nano);
        self.any_histogram(name, delta, times, &point.attributes, histogram, point.flags & NO_VALUE != 0)
    }

    fn any_histogram(
        &mut self,
        name: &str,
        delta: bool,
        times: (u64, u64),
        attributes: &[KeyValue],
        histogram: Histogram,
        ended: bool,
    ) -> Result<(), Reason> {
        if delta {
            return self.delta(name, HISTOGRAM, times, attributes, (!ended).then_some(Total::Histogram(histogram)));
        }
        let mut out = self.point(HISTOGRAM, times.1, attributes, histogram.buckets.len() + 3)?;
        histogram.write(&mut out, name, ended, |_| true);
        Ok(())
    }

    /// A point that states what was added since the last one.
    fn delta(
        &mut self,
        name: &str,
        kind: &'static str,
        (start, time): (u64, u64),
        attributes: &[KeyValue],
        added: Option<Total>,
    ) -> Result<(), Reason> {
        let (rows, finite, falls) = match &added {
            None => (1, true, false),
            Some(Total::Number(n)) => (1, n.is_finite(), kind == COUNTER && *n < 0.0),
            Some(Total::Histogram(h)) => (h.buckets.len() + 3, h.sum.is_none_or(f64::is_finite), false),
        };
        if !finite {
            return Err(Reason::InfiniteDelta);
        }
        if falls {
            return Err(Reason::NegativeDelta);
        }
        if start > time {
            return Err(Reason::EndBeforeStart);
        }
        // Twice: a series that is new gets a sample of what it was before.
        let point = self.point(kind, time, attributes, 2 * rows)?;
        let delta = Delta {
            run_id: point.run_id.to_string(),
            target: point.target.to_string(),
            kind,
            name: name.to_string(),
            labels: point.labels,
            start_ns: start as i64,
            time_ns: time as i64,
            added,
        };
        self.deltas.push(delta);
        Ok(())
    }

    fn summary(&mut self, name: &str, point: &SummaryDataPoint) -> Result<(), Reason> {
        if point.quantile_values.len() > MAX_BUCKETS {
            return Err(Reason::TooManyBuckets(MAX_BUCKETS));
        }
        let rows = point.quantile_values.len() + 2;
        let stale = point.flags & NO_VALUE != 0;
        let mut out = self.point(SUMMARY, point.time_unix_nano, &point.attributes, rows)?;
        let value = |v: f64| if stale { STALE } else { v };
        for q in &point.quantile_values {
            out.push(name, Some(("quantile", &plain(q.quantile))), value(q.value));
        }
        out.push(&format!("{name}_sum"), None, value(point.sum));
        out.push(&format!("{name}_count"), None, value(point.count as f64));
        Ok(())
    }

    /// Checks what all kinds of points have in common, before a row is written.
    fn point<'w>(
        &'w mut self,
        kind: &'w str,
        time: u64,
        attributes: &[KeyValue],
        rows: usize,
    ) -> Result<Point<'w>, Reason> {
        if time > LATEST_NS as u64 {
            return Err(Reason::TimeTooLate);
        }
        if self.options.live && time < EARLIEST_LIVE_NS as u64 {
            return Err(Reason::TimeTooEarly);
        }
        let labels = labels(attributes, &self.options.limits)?;
        let bytes: usize = labels.iter().map(|(k, v)| k.len() + v.len() + 4).sum();
        if bytes > MAX_LABELS_BYTES {
            return Err(Reason::AttributeBytes(MAX_LABELS_BYTES));
        }
        self.rows += rows;
        self.label_bytes += rows * (bytes + 16);
        if self.rows > MAX_ROWS || self.label_bytes > MAX_ALL_LABELS_BYTES {
            return Err(Reason::TooManyRows(MAX_ROWS));
        }
        let run = &mut self.runs[self.run];
        run.first_ns = run.first_ns.min(time as i64);
        Ok(Point {
            columns: &mut self.columns,
            run_id: &run.run_id,
            target: &self.target,
            kind,
            labels,
            time_ns: time as i64,
        })
    }
}

fn is_delta(temporality: i32) -> bool {
    temporality == AggregationTemporality::Delta as i32
}

/// The index of the first bucket, and the counts, at a scale that is coarser by so much.
fn side(buckets: Option<&Buckets>, coarser: i32) -> Result<(i64, Vec<u64>), Reason> {
    let Some(buckets) = buckets.filter(|b| !b.bucket_counts.is_empty()) else { return Ok((0, Vec::new())) };
    if buckets.bucket_counts.len() > MAX_BUCKETS {
        return Err(Reason::TooManyBuckets(MAX_BUCKETS));
    }
    // Every step towards a coarser scale joins two buckets; the index is 32 bits wide.
    let shift = coarser.clamp(0, 40) as u32;
    let first = i64::from(buckets.offset);
    let at = first >> shift;
    let mut counts: Vec<u64> = Vec::new();
    for (i, count) in buckets.bucket_counts.iter().enumerate() {
        let place = (((first + i as i64) >> shift) - at) as usize;
        counts.resize(counts.len().max(place + 1), 0);
        counts[place] = counts[place].saturating_add(*count);
    }
    Ok((at, counts))
}

/// A histogram as `series` has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram {
    /// Finite upper bounds, rising, and how many were at most that.
    pub buckets: Vec<(f64, f64)>,
    pub count: f64,
    pub sum: Option<f64>,
}

impl Histogram {
    /// Of upper bounds, rising, and how many are in each bucket.
    fn new(buckets: impl Iterator<Item = (f64, u64)>, count: u64, sum: Option<f64>) -> Self {
        let mut total = 0u64;
        let mut cumulative = Vec::new();
        for (bound, n) in buckets {
            total = total.saturating_add(n);
            if bound.is_finite() {
                cumulative.push((bound, total as f64));
            }
        }
        Histogram { buckets: cumulative, count: count as f64, sum }
    }

    /// Its rows, as far as they are wanted: those of a bound, and those that every histogram has (none).
    pub fn write(&self, out: &mut Point, name: &str, stale: bool, wanted: impl Fn(Option<f64>) -> bool) {
        let value = |v: f64| if stale { STALE } else { v };
        let bucket = format!("{name}_bucket");
        for (bound, n) in self.buckets.iter().filter(|(bound, _)| wanted(Some(*bound))) {
            out.push(&bucket, Some(("le", &plain(*bound))), value(*n));
        }
        if !wanted(None) {
            return;
        }
        out.push(&bucket, Some(("le", "+Inf")), value(self.count));
        if let Some(sum) = self.sum {
            out.push(&format!("{name}_sum"), None, value(sum));
        }
        out.push(&format!("{name}_count"), None, value(self.count));
    }
}

/// A data point being written, maybe as several rows.
pub(super) struct Point<'w> {
    pub columns: &'w mut SeriesBuilder,
    pub run_id: &'w str,
    pub target: &'w str,
    pub kind: &'w str,
    /// Sorted; values as JSON text.
    pub labels: Vec<(String, String)>,
    pub time_ns: i64,
}

impl Point<'_> {
    pub fn push(&mut self, name: &str, extra: Option<(&str, &str)>, value: f64) {
        let mut text = Vec::with_capacity(64);
        let mut extra = extra;
        text.push(b'{');
        let mut first = true;
        for (key, label) in &self.labels {
            if let Some((k, v)) = extra.take_if(|(k, _)| *k <= key.as_str()) {
                write_label(&mut text, &mut first, k, &attrs::to_text(&v.into()));
            }
            write_label(&mut text, &mut first, key, label);
        }
        if let Some((k, v)) = extra {
            write_label(&mut text, &mut first, k, &attrs::to_text(&v.into()));
        }
        text.push(b'}');
        self.columns.push(&NewPoint {
            run_id: self.run_id,
            target: self.target,
            name,
            labels: std::str::from_utf8(&text).expect("only UTF-8 is written"),
            kind: self.kind,
            time_ns: self.time_ns,
            value,
        });
    }
}

fn write_label(out: &mut Vec<u8>, first: &mut bool, key: &str, text: &str) {
    super::protobuf::separate(out, first);
    attrs::write_key(out, key);
    out.extend_from_slice(text.as_bytes());
}

/// A number as a label: `0.5`, `1`, `1e30`.
fn plain(value: f64) -> String {
    if value != 0.0 && (value.abs() >= 1e21 || value.abs() < 1e-6) { format!("{value:e}") } else { value.to_string() }
}

/// Labels by key, values as JSON text. Of a repeated key the last counts.
fn labels(attributes: &[KeyValue], limits: &super::Limits) -> Result<Vec<(String, String)>, Reason> {
    if attributes.len() > limits.attributes_per_span {
        return Err(Reason::Attributes(limits.attributes_per_span));
    }
    let nesting = limits.nesting.min(attrs::MAX_DEPTH);
    let mut labels = std::collections::BTreeMap::new();
    for attribute in attributes {
        let mut text = Vec::new();
        if !any_value::write_text(&mut text, attribute.value.as_ref(), nesting) {
            return Err(Reason::Nesting(nesting));
        }
        labels.insert(attribute.key.clone(), String::from_utf8(text).map_err(|_| Reason::Utf8)?);
    }
    Ok(labels.into_iter().collect())
}

/// The first of the names that is there, as text.
fn first_text(attributes: &[KeyValue], names: &[&str]) -> Option<String> {
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    names.iter().find_map(|name| {
        let attribute = attributes.iter().find(|a| a.key == *name)?;
        match attribute.value.as_ref()?.value.as_ref()? {
            Value::StringValue(s) if !s.is_empty() => Some(s.clone()),
            Value::IntValue(i) => Some(i.to_string()),
            _ => None,
        }
    })
}

fn points(metric: &Metric) -> u64 {
    let count = match &metric.data {
        None => 1,
        Some(Data::Gauge(d)) => d.data_points.len(),
        Some(Data::Sum(d)) => d.data_points.len(),
        Some(Data::Histogram(d)) => d.data_points.len(),
        Some(Data::ExponentialHistogram(d)) => d.data_points.len(),
        Some(Data::Summary(d)) => d.data_points.len(),
    };
    count as u64
}
