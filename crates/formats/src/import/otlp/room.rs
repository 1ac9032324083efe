//! What a message takes in memory as generated structs, counted before they are made. An empty record is two bytes on the wire and two
//! hundred in memory: a few kilobytes, compressed, would become gigabytes.

use opentelemetry_proto::tonic::common::v1::{AnyValue, EntityRef, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::metrics::v1::summary_data_point::ValueAtQuantile;
use opentelemetry_proto::tonic::metrics::v1::{
    Exemplar, ExponentialHistogramDataPoint, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, SummaryDataPoint,
};
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};

use super::DecodeError;
use super::span::Fault;
use crate::import::wire::Wire;

/// Memory for the structs of one message: so much, or so much per byte of the message if that is more. An attribute with a key of
/// eight letters and a small number is 16 bytes on the wire and 64 here.
const FIXED_MIB: usize = 256;
const PER_BYTE: usize = 8;
/// Messages in messages that are gone through. Prost refuses those that are more than 100 deep.
const DEEPEST: usize = 128;

/// Memory that is left for the structs of a message.
pub(super) struct Room {
    left: usize,
}

impl Room {
    pub fn of(message: &[u8]) -> Self {
        Room { left: (FIXED_MIB << 20).max(message.len().saturating_mul(PER_BYTE)) }
    }

    /// Takes room for structs that are about to be kept.
    pub fn take<T>(&mut self, count: usize) -> Result<(), Fault> {
        self.take_bytes(count.saturating_mul(size_of::<T>()))
    }

    fn take_bytes(&mut self, bytes: usize) -> Result<(), Fault> {
        self.left = self.left.checked_sub(bytes).ok_or(Fault::TooDense)?;
        Ok(())
    }
}

/// What is said of a message for which there is no room.
pub(super) fn too_dense() -> DecodeError {
    DecodeError(format!(
        "the records, values and attributes of the message would take more than {FIXED_MIB} MiB of memory, and more than \
         {PER_BYTE} times its bytes; send smaller batches"
    ))
}

/// What is in a message, as far as it becomes structs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Traces,
    ResourceSpans,
    ScopeSpans,
    Span,
    Event,
    Link,
    Logs,
    ResourceLogs,
    ScopeLogs,
    Record,
    Metrics,
    ResourceMetrics,
    ScopeMetrics,
    Metric,
    Numbers,
    Number,
    Histograms,
    Histogram,
    Exponentials,
    Exponential,
    Summaries,
    Summary,
    Exemplar,
    Resource,
    Entity,
    Scope,
    /// A key and its value.
    Pair,
    Value,
    List,
    Map,
    /// Nothing more: it is not gone through.
    Leaf,
}

/// What one value of a field takes beside its parent, and what is in it. None: no struct, or one that is there once.
fn of_field(message: Shape, field: u32) -> Option<(usize, Shape)> {
    use Shape as S;
    Some(match (message, field) {
        (S::Traces, 1) => (size_of::<ResourceSpans>(), S::ResourceSpans),
        (S::Logs, 1) => (size_of::<ResourceLogs>(), S::ResourceLogs),
        (S::Metrics, 1) => (size_of::<ResourceMetrics>(), S::ResourceMetrics),
        (S::ResourceSpans | S::ResourceLogs | S::ResourceMetrics, 1) => (0, S::Resource),
        (S::ResourceSpans, 2) => (size_of::<ScopeSpans>(), S::ScopeSpans),
        (S::ResourceLogs, 2) => (size_of::<ScopeLogs>(), S::ScopeLogs),
        (S::ResourceMetrics, 2) => (size_of::<ScopeMetrics>(), S::ScopeMetrics),
        (S::ScopeSpans | S::ScopeLogs | S::ScopeMetrics, 1) => (0, S::Scope),
        (S::ScopeSpans, 2) => (size_of::<Span>(), S::Span),
        (S::ScopeLogs, 2) => (size_of::<LogRecord>(), S::Record),
        (S::ScopeMetrics, 2) => (size_of::<Metric>(), S::Metric),
        (S::Span, 11) => (size_of::<Event>(), S::Event),
        (S::Span, 13) => (size_of::<Link>(), S::Link),
        (S::Metric, 5 | 7) => (0, S::Numbers),
        (S::Metric, 9) => (0, S::Histograms),
        (S::Metric, 10) => (0, S::Exponentials),
        (S::Metric, 11) => (0, S::Summaries),
        (S::Numbers, 1) => (size_of::<NumberDataPoint>(), S::Number),
        (S::Histograms, 1) => (size_of::<HistogramDataPoint>(), S::Histogram),
        (S::Exponentials, 1) => (size_of::<ExponentialHistogramDataPoint>(), S::Exponential),
        (S::Summaries, 1) => (size_of::<SummaryDataPoint>(), S::Summary),
        (S::Number, 5) | (S::Histogram, 8) | (S::Exponential, 11) => (size_of::<Exemplar>(), S::Exemplar),
        (S::Summary, 6) => (size_of::<ValueAtQuantile>(), S::Leaf),
        (S::Resource, 3) => (size_of::<EntityRef>(), S::Entity),
        (S::Entity, 3 | 4) => (size_of::<String>(), S::Leaf),
        // Attributes.
        (S::Resource | S::Exponential | S::Map, 1)
        | (S::Scope | S::Event, 3)
        | (S::Link, 4)
        | (S::Record, 6)
        | (S::Number | S::Summary | S::Exemplar, 7)
        | (S::Span | S::Histogram, 9)
        | (S::Metric, 12) => (size_of::<KeyValue>(), S::Pair),
        (S::Pair, 2) | (S::Record, 5) => (0, S::Value),
        (S::Value, 5) => (0, S::List),
        (S::Value, 6) => (0, S::Map),
        (S::List, 1) => (size_of::<AnyValue>(), S::Value),
        _ => return None,
    })
}

/// Refuses a message in protobuf for whose structs there is no room.
pub(super) fn check(message: &[u8], shape: Shape) -> Result<(), DecodeError> {
    walk(Wire::new(message), shape, 0, &mut Room::of(message)).map_err(Fault::into_error)
}

fn walk(mut message: Wire, shape: Shape, depth: usize, room: &mut Room) -> Result<(), Fault> {
    while let Some((field, wire)) = message.tag()? {
        match of_field(shape, field) {
            None => message.skip(wire)?,
            Some((bytes, inner)) => {
                room.take_bytes(bytes)?;
                let value = message.message(wire)?;
                if inner != Shape::Leaf && depth < DEEPEST {
                    walk(value, inner, depth + 1, room)?;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    use opentelemetry_proto::tonic::common::v1::{ArrayValue, KeyValueList};
    use opentelemetry_proto::tonic::metrics::v1::ExponentialHistogram;
    use opentelemetry_proto::tonic::metrics::v1::metric::Data;
    use opentelemetry_proto::tonic::resource::v1::Resource;
    use prost::Message as _;

    use super::*;

    /// What the structs of a message take.
    fn taken(message: &[u8], shape: Shape) -> usize {
        let mut room = Room { left: 1 << 30 };
        walk(Wire::new(message), shape, 0, &mut room).unwrap();
        (1 << 30) - room.left
    }

    #[test]
    fn all_structs_of_a_message_are_counted() {
        let value = |value| Some(AnyValue { value: Some(value) });
        let list = ArrayValue { values: vec![AnyValue::default(); 3] };
        let pair = KeyValue { value: value(Value::ArrayValue(list)), ..KeyValue::default() };
        let map = KeyValueList { values: vec![pair, KeyValue::default()] };
        let entity = EntityRef { id_keys: vec!["\u{a}".into()], ..EntityRef::default() };
        let resource = Resource { entity_refs: vec![entity], ..Resource::default() };
        let record = LogRecord { body: value(Value::KvlistValue(map)), ..LogRecord::default() };
        let scope_logs = vec![ScopeLogs { log_records: vec![record, LogRecord::default()], ..ScopeLogs::default() }];
        let resource_logs = vec![ResourceLogs { resource: Some(resource), scope_logs, ..ResourceLogs::default() }];
        let logs = size_of::<ResourceLogs>() + size_of::<ScopeLogs>() + 2 * size_of::<LogRecord>();
        let values = 2 * size_of::<KeyValue>() + 3 * size_of::<AnyValue>();
        let wanted = logs + values + size_of::<EntityRef>() + size_of::<String>();
        assert_eq!(taken(&ExportLogsServiceRequest { resource_logs }.encode_to_vec(), Shape::Logs), wanted);

        let point = ExponentialHistogramDataPoint {
            attributes: vec![KeyValue::default()],
            exemplars: vec![Exemplar::default()],
            ..ExponentialHistogramDataPoint::default()
        };
        let histogram = ExponentialHistogram { data_points: vec![point; 2], ..ExponentialHistogram::default() };
        let metric = Metric { data: Some(Data::ExponentialHistogram(histogram)), ..Metric::default() };
        let scope_metrics = vec![ScopeMetrics { metrics: vec![metric], ..ScopeMetrics::default() }];
        let resource_metrics = vec![ResourceMetrics { scope_metrics, ..ResourceMetrics::default() }];
        let metrics = size_of::<ResourceMetrics>() + size_of::<ScopeMetrics>() + size_of::<Metric>();
        let point = size_of::<ExponentialHistogramDataPoint>() + size_of::<KeyValue>() + size_of::<Exemplar>();
        let message = ExportMetricsServiceRequest { resource_metrics }.encode_to_vec();
        assert_eq!(taken(&message, Shape::Metrics), metrics + 2 * point);
    }
}
