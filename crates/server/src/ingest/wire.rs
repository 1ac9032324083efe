//! What OTLP answers look like on the wire: partial success, and `google.rpc.Status` with `RetryInfo`. Few and small, so
//! they are declared here and the generated server code is not needed.

use std::time::Duration;

use prost::Message;

use super::{Outcome, Signal};

/// `ExportTraceServiceResponse`, `ExportMetricsServiceResponse` and `ExportLogsServiceResponse`: the same fields under different names.
#[derive(Clone, PartialEq, Message)]
struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<ProtoDuration>,
}

#[derive(Clone, PartialEq, Message)]
struct ProtoDuration {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// The protobuf answer to an export. Empty when all was stored.
pub fn response(outcome: &Outcome) -> Vec<u8> {
    let partial_success = (outcome.rejected > 0)
        .then(|| PartialSuccess { rejected: outcome.rejected as i64, error_message: outcome.message.clone() });
    ExportResponse { partial_success }.encode_to_vec()
}

/// The same in OTLP's JSON, where 64-bit integers are text.
pub fn response_json(outcome: &Outcome, signal: Signal) -> Vec<u8> {
    if outcome.rejected == 0 {
        return b"{}".to_vec();
    }
    let rejected = match signal {
        Signal::Traces => "rejectedSpans",
        Signal::Metrics => "rejectedDataPoints",
        Signal::Logs => "rejectedLogRecords",
    };
    let json = serde_json::json!({
        "partialSuccess": { rejected: outcome.rejected.to_string(), "errorMessage": outcome.message }
    });
    json.to_string().into_bytes()
}

/// An error, with the delay after which to come again.
pub fn status(code: i32, message: &str, retry_after: Option<Duration>) -> Vec<u8> {
    let details = retry_after.map(|after| {
        let delay = ProtoDuration { seconds: after.as_secs() as i64, nanos: after.subsec_nanos() as i32 };
        Any {
            type_url: "type.googleapis.com/google.rpc.RetryInfo".into(),
            value: RetryInfo { retry_delay: Some(delay) }.encode_to_vec(),
        }
    });
    RpcStatus { code, message: message.into(), details: details.into_iter().collect() }.encode_to_vec()
}

pub fn status_json(code: i32, message: &str) -> Vec<u8> {
    serde_json::json!({ "code": code, "message": message }).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;

    use super::*;

    #[test]
    fn the_official_types_read_our_answers() {
        let outcome = Outcome { rejected: 3, message: "3 rejected: no trace id (3)".into() };
        let traces = ExportTraceServiceResponse::decode(&response(&outcome)[..]).unwrap().partial_success.unwrap();
        assert_eq!((traces.rejected_spans, traces.error_message), (3, outcome.message.clone()));
        let metrics = ExportMetricsServiceResponse::decode(&response(&outcome)[..]).unwrap().partial_success.unwrap();
        assert_eq!((metrics.rejected_data_points, metrics.error_message), (3, outcome.message));
        assert!(response(&Outcome::default()).is_empty());
        assert_eq!(response_json(&Outcome::default(), Signal::Traces), b"{}");
    }

    #[test]
    fn a_delay_travels_as_retry_info() {
        let bytes = status(14, "full", Some(Duration::from_millis(2500)));
        let read = RpcStatus::decode(&bytes[..]).unwrap();
        assert_eq!((read.code, read.message.as_str()), (14, "full"));
        assert_eq!(read.details[0].type_url, "type.googleapis.com/google.rpc.RetryInfo");
        let delay = RetryInfo::decode(&read.details[0].value[..]).unwrap().retry_delay.unwrap();
        assert_eq!((delay.seconds, delay.nanos), (2, 500_000_000));
    }
}
