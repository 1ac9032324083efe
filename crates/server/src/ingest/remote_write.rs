//! Prometheus's remote write: `POST /prometheus/api/v1/write`, 1.0 or 2.0 by content type, compressed with snappy. What was not stored
//! is in the answer, as the specification of 2.0 has it: the status is not 2xx, and the headers count what was.
//!
//! Senders drop what is answered 4xx and, unless they are configured otherwise, 429. So whatever may be sent again is answered 5xx.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use rollscope_formats::import::prometheus;
use rollscope_formats::import::remote_write::{self, Decoded, Options, Version};
use rollscope_model::limits::RUN_ID_BYTES;
use rollscope_model::names::SCRAPED_RUN;
use rollscope_model::time::now_ns;

use super::{Encoding, INLINE_OTHER_BYTES, Ingest, Outcome, Refusal, Target, body};
use crate::metrics::{Protocol, add};
use crate::params::pairs;
use crate::problem::Problem;

pub(crate) const PATH: &str = "/prometheus/api/v1/write";

const SAMPLES_WRITTEN: &str = "x-prometheus-remote-write-samples-written";
/// Native histograms and exemplars are not stored: always 0.
const NOT_WRITTEN: [&str; 2] =
    ["x-prometheus-remote-write-histograms-written", "x-prometheus-remote-write-exemplars-written"];

pub fn router(ingest: &Ingest) -> Router {
    Router::new().route(PATH, any(write)).with_state(ingest.clone())
}

async fn write(State(ingest): State<Ingest>, request: Request) -> Response {
    if request.method() != Method::POST {
        let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "use POST to send samples");
        return (problem.status(), [(header::ALLOW, "POST")], problem).into_response();
    }
    let mut written = 0;
    let outcome = take(&ingest, request, &mut written).await;
    ingest.count(Protocol::RemoteWrite, &outcome);
    let mut response = match outcome {
        Ok(outcome) if outcome.rejected == 0 => StatusCode::NO_CONTENT.into_response(),
        Ok(outcome) => Problem::bad_request(outcome.message).into_response(),
        Err(refusal) => refused(refusal).into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(SAMPLES_WRITTEN, written.into());
    for name in NOT_WRITTEN {
        headers.insert(name, HeaderValue::from_static("0"));
    }
    response
}

fn refused(refusal: Refusal) -> Problem {
    let detail = refusal.to_string();
    match refusal {
        Refusal::Malformed(_) => Problem::bad_request(detail),
        Refusal::TooLarge { limit, .. } => Problem::too_large(limit, detail),
        Refusal::Unsupported(_) => Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail),
        Refusal::Timeout(_) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail),
        Refusal::Overload { after, .. } | Refusal::Unavailable { after, .. } => Problem::unavailable(detail, after),
        Refusal::Internal(_) => Problem::internal(detail),
    }
}

/// Which message the content type names. Without a parameter it is that of 1.0, which had none.
fn version(headers: &HeaderMap) -> Option<Version> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Some(Version::One) };
    let mut parts = value.to_str().ok()?.split(';').map(str::trim);
    if !parts.next()?.eq_ignore_ascii_case("application/x-protobuf") {
        return None;
    }
    let proto = parts.find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.trim().eq_ignore_ascii_case("proto").then(|| value.trim().trim_matches('"'))
    });
    match proto {
        None | Some("prometheus.WriteRequest") => Some(Version::One),
        Some("io.prometheus.write.v2.Request") => Some(Version::Two),
        Some(_) => None,
    }
}

/// The run in `?run=`, as a scrape target may have one.
fn run_of(request: &Request) -> Result<String, Refusal> {
    let mut run = SCRAPED_RUN.to_string();
    for (name, value) in pairs(request.uri().query().unwrap_or("")) {
        if name != "run" {
            return Err(Refusal::Malformed(format!("unknown parameter `{name}`; expected one of: run")));
        }
        if value.is_empty() || value.len() > RUN_ID_BYTES {
            return Err(Refusal::Malformed(format!("the run id must have 1 to {RUN_ID_BYTES} bytes")));
        }
        run = value;
    }
    Ok(run)
}

async fn take(ingest: &Ingest, request: Request, written: &mut u64) -> Result<Outcome, Refusal> {
    let inner = &ingest.inner;
    let Target::Store(intake) = &inner.target else {
        return Err(Refusal::Unsupported(
            "this collector accepts traces only; send samples to a rollscope server".into(),
        ));
    };
    let version = version(request.headers()).ok_or_else(|| {
        Refusal::Unsupported(
            "the content type must be application/x-protobuf with proto=prometheus.WriteRequest (or none) or \
             proto=io.prometheus.write.v2.Request"
                .into(),
        )
    })?;
    let encoding = request.headers().get(header::CONTENT_ENCODING);
    if encoding.is_some_and(|v| !v.as_bytes().eq_ignore_ascii_case(b"snappy")) {
        return Err(Refusal::Unsupported("content-encoding must be snappy".into()));
    }
    let run = run_of(&request)?;
    let mut charge = ingest.charge();
    let bytes = ingest.read_body(request.into_body(), &mut charge).await?;
    let counters = inner.counters.ingest(Protocol::RemoteWrite);
    add(&counters.bytes, bytes.len() as u64);

    let (most, limits) = (inner.limits.max_message_bytes, inner.series_limits.clone());
    let kinds = inner.kinds.lock().clone();
    let decoded = ingest.work(bytes.len() <= INLINE_OTHER_BYTES, move || {
        let bytes = body::decompress(bytes, Encoding::Snappy, most, &mut charge)?;
        let options = Options {
            limits: &limits.of_series(),
            max_samples: limits.max_samples,
            run_id: &run,
            kinds: &kinds,
            now_ms: now_ns() / 1_000_000,
        };
        Ok((remote_write::decode(&bytes, version, &options)?, charge))
    });
    let (mut decoded, _charge) = decoded.await?;
    ingest.declare(&mut decoded);
    let samples = decoded.batch.num_rows() as u64;
    let receipt = ingest.keep(intake, decoded.into(), counters).await?;
    *written = samples;
    let message = match receipt.rejected {
        0 => String::new(),
        n => format!("{n} samples were not stored, {samples} were: {}", receipt.reasons.join("; ")),
    };
    Ok(Outcome { rejected: receipt.rejected, message })
}

impl Ingest {
    fn declare(&self, decoded: &mut Decoded) {
        if decoded.declared.is_empty() {
            return;
        }
        let limits = prometheus::Limits::default();
        let mut kinds = self.inner.kinds.lock();
        let kinds = Arc::make_mut(&mut kinds);
        for (family, kind) in decoded.declared.drain(..) {
            kinds.declare(family, kind, &limits);
        }
    }
}

impl From<remote_write::Error> for Refusal {
    fn from(error: remote_write::Error) -> Self {
        match error {
            remote_write::Error::TooLarge { limit, detail } => Refusal::TooLarge { limit, detail },
            malformed => Refusal::Malformed(malformed.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_type_names_the_message() {
        let of = |value: &str| version(&HeaderMap::from_iter([(header::CONTENT_TYPE, value.parse().unwrap())]));
        assert_eq!(version(&HeaderMap::new()), Some(Version::One));
        assert_eq!(of("application/x-protobuf"), Some(Version::One));
        assert_eq!(of("application/x-protobuf;proto=prometheus.WriteRequest"), Some(Version::One));
        assert_eq!(of("application/x-protobuf; proto=io.prometheus.write.v2.Request"), Some(Version::Two));
        assert_eq!(of("Application/X-Protobuf ;a=b; proto=\"io.prometheus.write.v2.Request\""), Some(Version::Two));
        for other in ["application/json", "application/x-protobuf;proto=io.prometheus.write.v3.Request", ""] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
