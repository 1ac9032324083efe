//! OTLP over gRPC: `TraceService/Export`, `MetricsService/Export`, and `LogsService/Export` for our SDK's records and
//! the events of model calls.
//!
//! An export is one message each way, so the frame (five bytes before the message) is read here rather than by tonic's
//! server: its decoder unpacks compressed messages on the thread that serves sockets, and answers `OUT_OF_RANGE` to a
//! message over the limit, which OTLP senders take as an invitation to send it again. Statuses are tonic's.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;
use axum::routing::post;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body::Frame;
use http_body_util::StreamBody;
use tonic::{Code, Status};

use super::{Encoding, Form, Ingest, Message, Outcome, Refusal, Signal, wire};
use crate::metrics::Protocol;

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

pub fn router(ingest: &Ingest) -> Router {
    Router::new()
        .route("/opentelemetry.proto.collector.trace.v1.TraceService/Export", post(traces))
        .route("/opentelemetry.proto.collector.metrics.v1.MetricsService/Export", post(metrics))
        .route("/opentelemetry.proto.collector.logs.v1.LogsService/Export", post(logs))
        .with_state(ingest.clone())
}

/// Whether a client of gRPC waits for the answer.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).is_some_and(|v| {
        v == "application/grpc" || v.starts_with("application/grpc+") || v.starts_with("application/grpc;")
    })
}

/// A gRPC error as an HTTP response.
pub fn error(status: Status) -> Response {
    status.into_http()
}

async fn traces(State(ingest): State<Ingest>, request: Request) -> Response {
    export(ingest, Signal::Traces, request).await
}

async fn metrics(State(ingest): State<Ingest>, request: Request) -> Response {
    export(ingest, Signal::Metrics, request).await
}

async fn logs(State(ingest): State<Ingest>, request: Request) -> Response {
    export(ingest, Signal::Logs, request).await
}

async fn export(ingest: Ingest, signal: Signal, request: Request) -> Response {
    if !is_grpc(request.headers()) {
        return error(Status::invalid_argument("the content type must be application/grpc"));
    }
    let result = take(&ingest, signal, request).await;
    ingest.count(Protocol::Grpc, &result);
    let mut response = match result {
        Ok(outcome) => success(&outcome),
        Err(refusal) => error(status(&refusal)),
    };
    ingest.tell(&mut response);
    response
}

async fn take(ingest: &Ingest, signal: Signal, request: Request) -> Result<Outcome, Refusal> {
    let named = request.headers().get(GRPC_ENCODING).map_or(Some(""), |v| v.to_str().ok());
    let Some(named) = named.and_then(Encoding::from_name) else {
        return Err(Refusal::Unsupported(format!("grpc-encoding must be one of {}", Encoding::ACCEPTED)));
    };
    let mut charge = ingest.charge();
    let body = ingest.read_body(request.into_body(), &mut charge).await?;
    let (compressed, bytes) = unframe(body)?;
    let encoding = match (compressed, named) {
        (false, _) => Encoding::Identity,
        (true, Encoding::Identity) => {
            return Err(Refusal::Malformed("the frame is compressed, but grpc-encoding is missing".into()));
        }
        (true, encoding) => encoding,
    };
    ingest.accept(Message { protocol: Protocol::Grpc, signal, form: Form::Protobuf, encoding, bytes, charge }).await
}

/// The one message of a unary call, and whether it is compressed.
fn unframe(mut body: Bytes) -> Result<(bool, Bytes), Refusal> {
    if body.len() < 5 {
        return Err(Refusal::Malformed("the gRPC frame is truncated".into()));
    }
    let compressed = match body.get_u8() {
        0 => false,
        1 => true,
        n => return Err(Refusal::Malformed(format!("the gRPC frame has an unknown compression flag {n}"))),
    };
    let length = body.get_u32() as usize;
    if length != body.len() {
        let (said, got) = (length, body.len());
        return Err(Refusal::Malformed(format!("the gRPC frame has {got} bytes instead of {said}")));
    }
    Ok((compressed, body))
}

fn status(refusal: &Refusal) -> Status {
    let (code, after) = match refusal {
        Refusal::Malformed(_) => (Code::InvalidArgument, None),
        // Without RetryInfo: OTLP reads this as "not again".
        Refusal::TooLarge { .. } => (Code::ResourceExhausted, None),
        Refusal::Unsupported(_) => (Code::Unimplemented, None),
        Refusal::Timeout(_) => (Code::DeadlineExceeded, None),
        Refusal::Overload { after, .. } | Refusal::Unavailable { after, .. } => (Code::Unavailable, Some(*after)),
        Refusal::Internal(_) => (Code::Internal, None),
    };
    let message = refusal.to_string();
    let mut status = match after {
        Some(_) => Status::with_details(code, &message, wire::status(code as i32, &message, after).into()),
        None => Status::new(code, message),
    };
    if matches!(refusal, Refusal::Unsupported(_))
        && let Ok(accepted) = Encoding::ACCEPTED.parse()
    {
        status.metadata_mut().insert("grpc-accept-encoding", accepted);
    }
    status
}

fn success(outcome: &Outcome) -> Response {
    let message = wire::response(outcome);
    let mut framed = BytesMut::with_capacity(5 + message.len());
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(&message);
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    let frames = [Frame::data(framed.freeze()), Frame::trailers(trailers)].map(Ok::<_, std::convert::Infallible>);
    let mut response = Response::new(Body::new(StreamBody::new(futures::stream::iter(frames))));
    response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
    response.headers_mut().insert(GRPC_ACCEPT_ENCODING, HeaderValue::from_static(Encoding::ACCEPTED));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_do_not_add_up_are_refused() {
        let frame = |bytes: &'static [u8]| unframe(Bytes::from_static(bytes));
        assert_eq!(frame(b"\0\0\0\0\x02ab").unwrap(), (false, Bytes::from_static(b"ab")));
        assert!(frame(b"\x01\0\0\0\0").unwrap().0);
        for bad in [&b""[..], b"\0\0\0\0", b"\x02\0\0\0\0", b"\0\0\0\0\x03ab", b"\0\0\0\0\x01ab", b"\0\xff\xff\xff\xff"]
        {
            assert!(matches!(frame(bad), Err(Refusal::Malformed(_))), "{bad:?}");
        }
    }

    #[test]
    fn only_what_may_be_sent_again_says_when() {
        let full = Refusal::Unavailable { detail: "full".into(), after: std::time::Duration::from_secs(2) };
        assert_eq!(status(&full).code(), Code::Unavailable);
        assert!(!status(&full).details().is_empty());
        let large = Refusal::TooLarge { limit: "max_message_bytes", detail: "large".into() };
        assert_eq!(status(&large).code(), Code::ResourceExhausted);
        assert!(status(&large).details().is_empty());
    }
}
