//! OTLP metrics in JSON into the generated structs, as leniently as spans; [`super::metrics`] does the rest. A bad data
//! point is left out alone and counted.

use opentelemetry_proto::tonic::metrics::v1::exponential_histogram_data_point::Buckets;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::summary_data_point::ValueAtQuantile;
use opentelemetry_proto::tonic::metrics::v1::{
    ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, Summary, SummaryDataPoint,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::json::{boolean, double, elements, enumeration, int, members, pairs, tolerate, uint, uint32};
use super::metrics::SeriesWriter;
use super::room::Room;
use super::span::{Fault, Reason, Rejects};
use super::{DecodeError, DecodeOptions, Decoded, Limits};
use crate::json::Reader;

type Result<T> = std::result::Result<T, Fault>;

pub(super) fn decode(bytes: &[u8], options: &DecodeOptions) -> std::result::Result<Decoded, DecodeError> {
    let mut writer = SeriesWriter::new(options);
    writer.room = Room::of(bytes);
    let mut r = Reader::new(bytes);
    members(&mut r, |r, key| match key {
        "resourceMetrics" | "resource_metrics" => resource_metrics_list(r, &mut writer, options),
        _ => Ok(r.skip()?),
    })
    .and_then(|()| Ok(r.end()?))
    .map_err(Fault::into_error)?;
    Ok(writer.finish())
}

pub(super) fn resource_metrics_list(r: &mut Reader, writer: &mut SeriesWriter, options: &DecodeOptions) -> Result<()> {
    elements(r, |r| {
        let mut json = Json { limits: &options.limits, rejects: &mut writer.rejects, room: &mut writer.room };
        let resource = json.resource_metrics(r)?;
        writer.resource(&resource);
        Ok(())
    })
}

struct Json<'w> {
    limits: &'w Limits,
    rejects: &'w mut Rejects,
    room: &'w mut Room,
}

impl Json<'_> {
    fn resource_metrics(&mut self, r: &mut Reader) -> Result<ResourceMetrics> {
        let mut out = ResourceMetrics::default();
        members(r, |r, key| {
            match key {
                "resource" => {
                    let mut resource = Resource::default();
                    members(r, |r, key| {
                        match key {
                            "attributes" => resource.attributes = pairs(r, self.limits, self.room)?,
                            _ => r.skip()?,
                        }
                        Ok(())
                    })?;
                    out.resource = Some(resource);
                }
                "scopeMetrics" | "scope_metrics" => elements(r, |r| {
                    let mut metrics = Vec::new();
                    members(r, |r, key| match key {
                        "metrics" => elements(r, |r| {
                            match tolerate(r, |r| self.metric(r))? {
                                Ok(metric) => {
                                    self.room.take::<Metric>(1)?;
                                    metrics.push(metric);
                                }
                                Err(reason) => self.rejects.add(reason, 1),
                            }
                            Ok(())
                        }),
                        _ => Ok(r.skip()?),
                    })?;
                    self.room.take::<ScopeMetrics>(1)?;
                    out.scope_metrics.push(ScopeMetrics { metrics, ..ScopeMetrics::default() });
                    Ok(())
                })?,
                _ => r.skip()?,
            }
            Ok(())
        })?;
        Ok(out)
    }

    fn metric(&mut self, r: &mut Reader) -> Result<Metric> {
        let mut out = Metric::default();
        members(r, |r, key| {
            match key {
                "name" => out.name = r.string()?.into_owned(),
                "gauge" => {
                    let (data_points, ..) = self.points(r, number)?;
                    out.data = Some(Data::Gauge(Gauge { data_points }));
                }
                "sum" => {
                    let (data_points, aggregation_temporality, is_monotonic) = self.points(r, number)?;
                    out.data = Some(Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic }));
                }
                "histogram" => {
                    let (data_points, aggregation_temporality, _) = self.points(r, histogram)?;
                    out.data = Some(Data::Histogram(Histogram { data_points, aggregation_temporality }));
                }
                "exponentialHistogram" | "exponential_histogram" => {
                    let (data_points, aggregation_temporality, _) = self.points(r, exponential)?;
                    let histogram = ExponentialHistogram { data_points, aggregation_temporality };
                    out.data = Some(Data::ExponentialHistogram(histogram));
                }
                "summary" => {
                    let (data_points, ..) = self.points(r, summary)?;
                    out.data = Some(Data::Summary(Summary { data_points }));
                }
                _ => r.skip()?,
            }
            Ok(())
        })?;
        Ok(out)
    }

    /// The points of a metric, its temporality and whether it only grows.
    fn points<T>(
        &mut self,
        r: &mut Reader,
        read: impl Fn(&mut Reader, &Limits, &mut Room) -> Result<T>,
    ) -> Result<(Vec<T>, i32, bool)> {
        let (mut points, mut temporality, mut monotonic) = (Vec::new(), 0, false);
        members(r, |r, key| {
            match key {
                "dataPoints" | "data_points" => elements(r, |r| {
                    match tolerate(r, |r| read(r, self.limits, self.room))? {
                        Ok(point) => {
                            self.room.take::<T>(1)?;
                            points.push(point);
                        }
                        Err(reason) => self.rejects.add(reason, 1),
                    }
                    Ok(())
                })?,
                "aggregationTemporality" | "aggregation_temporality" => {
                    let names = ["unspecified", "delta", "cumulative"];
                    temporality = enumeration(r, "AGGREGATION_TEMPORALITY_", &names)?;
                }
                "isMonotonic" | "is_monotonic" => monotonic = boolean(r)?,
                _ => r.skip()?,
            }
            Ok(())
        })?;
        Ok((points, temporality, monotonic))
    }
}

fn number(r: &mut Reader, limits: &Limits, room: &mut Room) -> Result<NumberDataPoint> {
    let mut out = NumberDataPoint::default();
    members(r, |r, key| {
        match key {
            "attributes" => out.attributes = pairs(r, limits, room)?,
            "timeUnixNano" | "time_unix_nano" => out.time_unix_nano = uint(r)?,
            "startTimeUnixNano" | "start_time_unix_nano" => out.start_time_unix_nano = uint(r)?,
            "asDouble" | "as_double" => out.value = Some(Number::AsDouble(double(r)?)),
            "asInt" | "as_int" => out.value = Some(Number::AsInt(int(r)?)),
            "flags" => out.flags = uint32(r)?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(out)
}

fn histogram(r: &mut Reader, limits: &Limits, room: &mut Room) -> Result<HistogramDataPoint> {
    let mut out = HistogramDataPoint::default();
    members(r, |r, key| {
        match key {
            "attributes" => out.attributes = pairs(r, limits, room)?,
            "timeUnixNano" | "time_unix_nano" => out.time_unix_nano = uint(r)?,
            "startTimeUnixNano" | "start_time_unix_nano" => out.start_time_unix_nano = uint(r)?,
            "count" => out.count = uint(r)?,
            "sum" => out.sum = Some(double(r)?),
            "bucketCounts" | "bucket_counts" => out.bucket_counts = list(r, uint)?,
            "explicitBounds" | "explicit_bounds" => out.explicit_bounds = list(r, double)?,
            "flags" => out.flags = uint32(r)?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(out)
}

fn exponential(r: &mut Reader, limits: &Limits, room: &mut Room) -> Result<ExponentialHistogramDataPoint> {
    let mut out = ExponentialHistogramDataPoint::default();
    members(r, |r, key| {
        match key {
            "attributes" => out.attributes = pairs(r, limits, room)?,
            "timeUnixNano" | "time_unix_nano" => out.time_unix_nano = uint(r)?,
            "startTimeUnixNano" | "start_time_unix_nano" => out.start_time_unix_nano = uint(r)?,
            "count" => out.count = uint(r)?,
            "sum" => out.sum = Some(double(r)?),
            "scale" => out.scale = int32(r)?,
            "zeroCount" | "zero_count" => out.zero_count = uint(r)?,
            "zeroThreshold" | "zero_threshold" => out.zero_threshold = double(r)?,
            "positive" => out.positive = Some(buckets(r)?),
            "negative" => out.negative = Some(buckets(r)?),
            "flags" => out.flags = uint32(r)?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(out)
}

fn buckets(r: &mut Reader) -> Result<Buckets> {
    let mut out = Buckets::default();
    members(r, |r, key| {
        match key {
            "offset" => out.offset = int32(r)?,
            "bucketCounts" | "bucket_counts" => out.bucket_counts = list(r, uint)?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(out)
}

fn summary(r: &mut Reader, limits: &Limits, room: &mut Room) -> Result<SummaryDataPoint> {
    let mut out = SummaryDataPoint::default();
    members(r, |r, key| {
        match key {
            "attributes" => out.attributes = pairs(r, limits, room)?,
            "timeUnixNano" | "time_unix_nano" => out.time_unix_nano = uint(r)?,
            "startTimeUnixNano" | "start_time_unix_nano" => out.start_time_unix_nano = uint(r)?,
            "count" => out.count = uint(r)?,
            "sum" => out.sum = double(r)?,
            "quantileValues" | "quantile_values" => {
                out.quantile_values = list(r, |r| {
                    let mut q = ValueAtQuantile::default();
                    members(r, |r, key| {
                        match key {
                            "quantile" => q.quantile = double(r)?,
                            "value" => q.value = double(r)?,
                            _ => r.skip()?,
                        }
                        Ok(())
                    })?;
                    Ok(q)
                })?;
            }
            "flags" => out.flags = uint32(r)?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(out)
}

fn list<'a, T>(r: &mut Reader<'a>, read: impl Fn(&mut Reader<'a>) -> Result<T>) -> Result<Vec<T>> {
    let mut out = Vec::new();
    elements(r, |r| {
        out.push(read(r)?);
        Ok(())
    })?;
    Ok(out)
}

fn int32(r: &mut Reader) -> Result<i32> {
    int(r)?.try_into().map_err(|_| Reason::Number.into())
}
