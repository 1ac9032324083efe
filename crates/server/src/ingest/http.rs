//! OTLP over HTTP: `POST /v1/traces`, `/v1/metrics` and, for our SDK's records and the events of model calls, `/v1/logs`; protobuf or JSON by content
//! type, answered in kind; errors carry a `google.rpc.Status` in the same form.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tonic::Code;

use super::{Encoding, Form, Ingest, Message, Outcome, Refusal, Signal, wire};
use crate::metrics::Protocol;
use crate::problem::{Problem, retry_after_value};

pub fn router(ingest: &Ingest) -> Router {
    Router::new()
        .route("/v1/traces", any(traces))
        .route("/v1/metrics", any(metrics))
        .route("/v1/logs", any(logs))
        .with_state(ingest.clone())
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
    if request.method() != Method::POST {
        let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "use POST to send OTLP");
        return (problem.status(), [(header::ALLOW, "POST")], problem).into_response();
    }
    let Some(form) = form(request.headers()) else {
        let detail = "the content type must be application/x-protobuf or application/json";
        let refused = Err(Refusal::Unsupported(detail.into()));
        ingest.count(Protocol::HttpProtobuf, &refused);
        return Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail).into_response();
    };
    let protocol = match form {
        Form::Protobuf => Protocol::HttpProtobuf,
        Form::Json => Protocol::HttpJson,
    };
    let result = take(&ingest, protocol, signal, form, request).await;
    ingest.count(protocol, &result);
    let mut response = match result {
        Ok(outcome) => {
            let body = match form {
                Form::Protobuf => wire::response(&outcome),
                Form::Json => wire::response_json(&outcome, signal),
            };
            ([(header::CONTENT_TYPE, content_type(form))], body).into_response()
        }
        Err(refusal) => refused(&refusal, form),
    };
    ingest.tell(&mut response);
    response
}

fn form(headers: &HeaderMap) -> Option<Form> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    match value.split(';').next()?.trim().to_ascii_lowercase().as_str() {
        "application/x-protobuf" | "application/protobuf" => Some(Form::Protobuf),
        "application/json" => Some(Form::Json),
        _ => None,
    }
}

fn content_type(form: Form) -> HeaderValue {
    HeaderValue::from_static(match form {
        Form::Protobuf => "application/x-protobuf",
        Form::Json => "application/json",
    })
}

async fn take(
    ingest: &Ingest,
    protocol: Protocol,
    signal: Signal,
    form: Form,
    request: Request,
) -> Result<Outcome, Refusal> {
    let named = request.headers().get(header::CONTENT_ENCODING).map_or(Some(""), |v| v.to_str().ok());
    let Some(encoding) = named.and_then(Encoding::from_name) else {
        return Err(Refusal::Unsupported(format!("content-encoding must be one of {}", Encoding::ACCEPTED)));
    };
    let mut charge = ingest.charge();
    let bytes = ingest.read_body(request.into_body(), &mut charge).await?;
    ingest.accept(Message { protocol, signal, form, encoding, bytes, charge }).await
}

fn refused(refusal: &Refusal, form: Form) -> Response {
    let (status, code, after) = match refusal {
        Refusal::Malformed(_) => (StatusCode::BAD_REQUEST, Code::InvalidArgument, None),
        Refusal::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, Code::ResourceExhausted, None),
        Refusal::Unsupported(_) => (StatusCode::UNSUPPORTED_MEDIA_TYPE, Code::Unimplemented, None),
        Refusal::Timeout(_) => (StatusCode::REQUEST_TIMEOUT, Code::DeadlineExceeded, None),
        Refusal::Overload { after, .. } => (StatusCode::TOO_MANY_REQUESTS, Code::Unavailable, Some(*after)),
        Refusal::Unavailable { after, .. } => (StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable, Some(*after)),
        Refusal::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal, None),
    };
    let message = refusal.to_string();
    let body = match form {
        Form::Protobuf => wire::status(code as i32, &message, after),
        Form::Json => wire::status_json(code as i32, &message),
    };
    let mut response = (status, [(header::CONTENT_TYPE, content_type(form))], body).into_response();
    if let Some(after) = after {
        response.headers_mut().insert(header::RETRY_AFTER, retry_after_value(after));
    }
    if matches!(refusal, Refusal::Unsupported(_)) {
        response.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static(Encoding::ACCEPTED));
    }
    response
}
