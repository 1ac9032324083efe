//! OTLP log records in JSON into the generated structs, as leniently as spans; [`super::logs`] does the rest. A bad record
//! is left out alone and counted.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::json::{elements, id, members, pairs, tolerate, uint, value};
use super::room::Room;
use super::span::{Fault, Reason, Rejects};
use super::{DecodeError, Limits};
use crate::json::Reader;

type Result<T> = std::result::Result<T, Fault>;

/// A whole `ExportLogsServiceRequest`.
pub(super) fn request(
    bytes: &[u8],
    limits: &Limits,
    rejects: &mut Rejects,
) -> std::result::Result<ExportLogsServiceRequest, DecodeError> {
    let mut out = ExportLogsServiceRequest::default();
    let mut room = Room::of(bytes);
    let mut r = Reader::new(bytes);
    members(&mut r, |r, key| match key {
        "resourceLogs" | "resource_logs" => elements(r, |r| {
            room.take::<ResourceLogs>(1)?;
            out.resource_logs.push(resource_logs(r, limits, rejects, &mut room)?);
            Ok(())
        }),
        _ => Ok(r.skip()?),
    })
    .and_then(|()| Ok(r.end()?))
    .map_err(Fault::into_error)?;
    Ok(out)
}

fn resource_logs(r: &mut Reader, limits: &Limits, rejects: &mut Rejects, room: &mut Room) -> Result<ResourceLogs> {
    let mut out = ResourceLogs::default();
    members(r, |r, key| {
        match key {
            "resource" => members(r, |r, key| {
                match key {
                    "attributes" => {
                        let attributes = pairs(r, limits, room)?;
                        out.resource = Some(Resource { attributes, ..Resource::default() });
                    }
                    _ => r.skip()?,
                }
                Ok(())
            })?,
            "scopeLogs" | "scope_logs" => elements(r, |r| {
                let mut log_records = Vec::new();
                members(r, |r, key| match key {
                    "logRecords" | "log_records" => elements(r, |r| {
                        match tolerate(r, |r| record(r, limits, room))? {
                            Ok(record) => {
                                room.take::<LogRecord>(1)?;
                                log_records.push(record);
                            }
                            Err(reason) => rejects.add(reason, 1),
                        }
                        Ok(())
                    }),
                    _ => Ok(r.skip()?),
                })?;
                room.take::<ScopeLogs>(1)?;
                out.scope_logs.push(ScopeLogs { log_records, ..ScopeLogs::default() });
                Ok(())
            })?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(out)
}

fn record(r: &mut Reader, limits: &Limits, room: &mut Room) -> Result<LogRecord> {
    let mut out = LogRecord::default();
    members(r, |r, key| {
        match key {
            "timeUnixNano" | "time_unix_nano" => out.time_unix_nano = uint(r)?,
            "observedTimeUnixNano" | "observed_time_unix_nano" => out.observed_time_unix_nano = uint(r)?,
            "eventName" | "event_name" => out.event_name = r.string()?.into_owned(),
            "body" => out.body = Some(value(r, limits, room)?),
            "attributes" => out.attributes = pairs(r, limits, room)?,
            "traceId" | "trace_id" => out.trace_id = id::<16>(r, Reason::TraceId)?.to_vec(),
            "spanId" | "span_id" => out.span_id = id::<8>(r, Reason::SpanId)?.to_vec(),
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(out)
}
