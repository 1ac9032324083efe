//! OTLP in, and Prometheus's [`remote_write`]. [`grpc`] and [`http`] know their protocol's envelope; both end in [`Ingest::accept`], which undoes the compression,
//! decodes into a batch, and appends it. It returns when the rows are on disk and visible. Only then does the sender get its acknowledgement.

mod body;
pub mod grpc;
pub mod http;
mod level;
pub mod lines;
mod remote_write;
mod stacks;
mod wire;

pub(crate) use body::discard;
pub(crate) use remote_write::PATH as REMOTE_WRITE;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use parking_lot::Mutex;
use rollscope_app::intake::{Intake, Receipt, Rows};
use rollscope_app::problem::{Problem, ProblemKind};
use rollscope_formats::import::otlp::{self, DecodeError, DecodeOptions};
use rollscope_formats::import::prometheus::Kinds;
use rollscope_model::Table;
use rollscope_query::Engine;
use rollscope_store::{Store, StoreError};
use tokio::sync::Semaphore;

use crate::config::Limits;
use crate::metrics::{Counters, IngestCounters, Protocol, add};
use crate::scrape::config::ScrapeLimits;
pub use body::{Budget, Charge, Encoding};
pub use level::{HIGHEST as HIGHEST_LEVEL, TraceLevel};
use lines::Lines;
pub use stacks::StackRequests;

/// Larger messages are decoded off the threads that serve sockets, and so are all that are compressed: a few kilobytes may become
/// as much as a message may have.
const INLINE_PROTOBUF_BYTES: usize = 256 << 10;
/// JSON costs more per byte, and so does snappy, which becomes 32 times as long at most.
const INLINE_OTHER_BYTES: usize = 64 << 10;

/// What the rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Traces,
    Metrics,
    /// What our own SDK sends beside spans, and the events of model calls.
    Logs,
}

/// How a message is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Protobuf,
    Json,
}

/// Why a message was refused. Each protocol reports it in its own form.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    Malformed(String),
    #[error("{detail}")]
    TooLarge { limit: &'static str, detail: String },
    /// A content type or encoding that we do not read.
    #[error("{0}")]
    Unsupported(String),
    #[error("{0}")]
    Timeout(String),
    /// Too much at the same time. The same message is accepted later.
    #[error("{detail}")]
    Overload { detail: String, after: Duration },
    /// The store takes nothing now (disk full, for one); the same message is welcome later.
    #[error("{detail}")]
    Unavailable { detail: String, after: Duration },
    #[error("{0}")]
    Internal(String),
}

impl Refusal {
    pub fn retryable(&self) -> bool {
        matches!(self, Refusal::Overload { .. } | Refusal::Unavailable { .. })
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error.retry_after() {
            Some(after) => Refusal::Unavailable { detail: error.to_string(), after },
            None => Refusal::Internal(error.to_string()),
        }
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        match (problem.kind, problem.retry_after) {
            (ProblemKind::Unavailable, Some(after)) => Refusal::Unavailable { detail: problem.to_string(), after },
            _ => Refusal::Internal(problem.to_string()),
        }
    }
}

impl From<DecodeError> for Refusal {
    fn from(error: DecodeError) -> Self {
        Refusal::Malformed(error.0)
    }
}

/// What was not stored although the message was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub rejected: u64,
    /// Why, for people. Empty if nothing was rejected.
    pub message: String,
}

/// One message and where it came from.
pub struct Message {
    pub protocol: Protocol,
    pub signal: Signal,
    pub form: Form,
    pub encoding: Encoding,
    pub bytes: Bytes,
    pub charge: Charge,
}

/// Ingest, shared by all listeners.
#[derive(Clone)]
pub struct Ingest {
    inner: Arc<Inner>,
}

/// Where messages go.
#[allow(clippy::large_enum_variant, reason = "a server has one of them")]
enum Target {
    Store(Intake),
    /// Files, as they came: `rollscope collect`.
    Lines(Lines),
}

struct Inner {
    target: Target,
    counters: Arc<Counters>,
    limits: Limits,
    options: DecodeOptions,
    budget: Arc<Budget>,
    level: TraceLevel,
    stacks: StackRequests,
    /// What a series may have that is not scraped but sent.
    series_limits: ScrapeLimits,
    /// What senders of 1.0 declared. They repeat it every minute.
    kinds: Mutex<Arc<Kinds>>,
    /// Limits how many large messages are decoded at the same time: one per processor.
    workers: Arc<Semaphore>,
}

impl Ingest {
    pub fn new(
        store: Store,
        engine: Engine,
        counters: Arc<Counters>,
        limits: &Limits,
        series_limits: &ScrapeLimits,
    ) -> Self {
        Self::with_target(Target::Store(Intake::new(store, engine)), counters, limits, series_limits)
    }

    /// Into files instead of a store.
    pub fn for_files(lines: Lines, counters: Arc<Counters>, limits: &Limits) -> Self {
        Self::with_target(Target::Lines(lines), counters, limits, &ScrapeLimits::default())
    }

    fn with_target(target: Target, counters: Arc<Counters>, limits: &Limits, series_limits: &ScrapeLimits) -> Self {
        let workers = std::thread::available_parallelism().map_or(2, usize::from);
        Ingest {
            inner: Arc::new(Inner {
                target,
                counters,
                options: limits.decode_options(),
                budget: Budget::new(limits.max_inflight_bytes),
                level: TraceLevel::default(),
                stacks: StackRequests::default(),
                limits: limits.clone(),
                series_limits: series_limits.clone(),
                kinds: Mutex::default(),
                workers: Arc::new(Semaphore::new(workers)),
            }),
        }
    }

    /// OTLP over gRPC and over HTTP, and remote write.
    pub fn router(&self) -> Router {
        http::router(self).merge(grpc::router(self)).merge(remote_write::router(self))
    }

    pub fn inflight_bytes(&self) -> usize {
        self.inner.budget.used()
    }

    /// The run was deleted. If it sends again, it is entered again.
    pub fn forget_run(&self, run_id: &str) {
        if let Target::Store(intake) = &self.inner.target {
            intake.forget_run(run_id);
        }
    }

    /// The trace level that SDKs get.
    pub fn level(&self) -> &TraceLevel {
        &self.inner.level
    }

    /// Requests for stacks that SDKs get.
    pub fn stacks(&self) -> &StackRequests {
        &self.inner.stacks
    }

    /// What every SDK that sends here is told with the response.
    fn tell(&self, response: &mut Response) {
        self.inner.level.tell(response.headers_mut());
        self.inner.stacks.tell(response.headers_mut());
    }

    async fn read_body(&self, body: Body, charge: &mut Charge) -> Result<Bytes, Refusal> {
        let limits = &self.inner.limits;
        body::read_body(body, limits.max_message_bytes, Duration::from_secs(limits.body_timeout_s), charge).await
    }

    fn charge(&self) -> Charge {
        self.inner.budget.charge()
    }

    /// Counts what became of a request.
    fn count(&self, protocol: Protocol, outcome: &Result<Outcome, Refusal>) {
        let counters = self.inner.counters.ingest(protocol);
        add(&counters.requests, 1);
        match outcome {
            Ok(outcome) => add(&counters.rejected, outcome.rejected),
            Err(refusal) if refusal.retryable() => add(&counters.deferred, 1),
            Err(refusal) => {
                add(&counters.refused, 1);
                tracing::debug!(protocol = protocol.name(), %refusal, "refused a message");
            }
        }
    }

    /// Stores one message. When this returns `Ok`, its rows are on disk.
    async fn accept(&self, message: Message) -> Result<Outcome, Refusal> {
        let inner = &self.inner;
        let counters = inner.counters.ingest(message.protocol);
        add(&counters.bytes, message.bytes.len() as u64);
        let intake = match &inner.target {
            Target::Store(intake) => intake,
            Target::Lines(lines) => return self.write_line(lines, message).await,
        };
        let (rows, _charge) = self.decode(message).await?;
        let receipt = self.keep(intake, rows, counters).await?;
        let message = match receipt.rejected {
            0 => String::new(),
            n => format!("{n} rejected: {}", receipt.reasons.join("; ")),
        };
        Ok(Outcome { rejected: receipt.rejected, message })
    }

    async fn keep(&self, intake: &Intake, rows: Rows, counters: &IngestCounters) -> Result<Receipt, Refusal> {
        let most = self.inner.limits.max_runs_per_message;
        if rows.runs.len() > most {
            return Err(Refusal::TooLarge {
                limit: "max_runs_per_message",
                detail: format!("the message names {} runs, more than max_runs_per_message ({most})", rows.runs.len(),),
            });
        }
        let mut receipt = Receipt::default();
        let kept = intake.keep(rows, &mut receipt).await;
        add(&counters.accepted, receipt.accepted);
        add(&counters.duplicates, receipt.duplicates);
        kept?;
        Ok(receipt)
    }

    /// One message as one line of OTLP JSON.
    async fn write_line(&self, lines: &Lines, message: Message) -> Result<Outcome, Refusal> {
        let inner = &self.inner;
        let counters = inner.counters.ingest(message.protocol);
        if message.signal != Signal::Traces {
            return Err(Refusal::Unsupported(
                "this collector accepts traces only; turn off the exporters of metrics and logs".into(),
            ));
        }
        let (limit, options) = (inner.limits.max_message_bytes, inner.options.clone());
        let line = self.work(false, move || line(message, limit, &options)).await?;
        if line.spans > 0 {
            lines.append(line.text, line.spans).await?;
            add(&counters.accepted, line.spans);
        }
        Ok(line.outcome)
    }

    async fn decode(&self, message: Message) -> Result<(Rows, Charge), Refusal> {
        let inner = &self.inner;
        let inline = is_inline(message.form, message.encoding, message.bytes.len());
        let (limit, options) = (inner.limits.max_message_bytes, inner.options.clone());
        self.work(inline, move || decode(message, limit, &options)).await
    }

    /// Decodes here, or off the threads that serve sockets. There it counts as work until it is done, even if the sender hangs up.
    async fn work<T: Send + 'static>(
        &self,
        inline: bool,
        decode: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        if inline {
            return decode();
        }
        let workers = self.inner.workers.clone();
        let permit =
            workers.acquire_owned().await.map_err(|_| Refusal::Internal("the server is shutting down".into()))?;
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            decode()
        });
        task.await.map_err(|e| Refusal::Internal(format!("decoding failed: {e}")))?
    }
}

/// Is a message of so many bytes decoded on the thread that serves its socket?
fn is_inline(form: Form, encoding: Encoding, len: usize) -> bool {
    let most = match form {
        Form::Protobuf => INLINE_PROTOBUF_BYTES,
        Form::Json => INLINE_OTHER_BYTES,
    };
    encoding == Encoding::Identity && len <= most
}

/// A message, ready to be written, with the memory it was given.
struct Line {
    text: Vec<u8>,
    spans: u64,
    outcome: Outcome,
    _charge: Charge,
}

fn line(mut message: Message, limit: usize, options: &DecodeOptions) -> Result<Line, Refusal> {
    let bytes = body::decompress(message.bytes, message.encoding, limit, &mut message.charge)?;
    let (text, spans, outcome) = match message.form {
        Form::Protobuf => {
            let (text, spans) = rollscope_formats::export::otlp::protobuf_to_json_line(&bytes)?;
            (text, spans, Outcome::default())
        }
        Form::Json => {
            let decoded = otlp::decode_traces_json(&bytes, options)?;
            let mut text = Vec::new();
            rollscope_formats::export::otlp::write_json_line(&decoded.batch, &mut text)
                .map_err(|e| Refusal::Internal(e.to_string()))?;
            let message = match decoded.rejected {
                0 => String::new(),
                n => format!("{n} rejected: {}", decoded.reasons.join("; ")),
            };
            (text, decoded.batch.num_rows() as u64, Outcome { rejected: decoded.rejected, message })
        }
    };
    Ok(Line { text, spans, outcome, _charge: message.charge })
}

fn decode(mut message: Message, limit: usize, options: &DecodeOptions) -> Result<(Rows, Charge), Refusal> {
    let bytes = body::decompress(message.bytes, message.encoding, limit, &mut message.charge)?;
    let rows = match (message.signal, message.form) {
        (Signal::Traces, Form::Protobuf) => Rows::of(Table::Spans, otlp::decode_traces(&bytes, options)?),
        (Signal::Traces, Form::Json) => Rows::of(Table::Spans, otlp::decode_traces_json(&bytes, options)?),
        (Signal::Metrics, Form::Protobuf) => Rows::of(Table::Series, otlp::decode_metrics(&bytes, options)?),
        (Signal::Metrics, Form::Json) => Rows::of(Table::Series, otlp::decode_metrics_json(&bytes, options)?),
        (Signal::Logs, Form::Protobuf) => otlp::decode_logs(&bytes, options)?.into(),
        (Signal::Logs, Form::Json) => otlp::decode_logs_json(&bytes, options)?.into(),
    };
    Ok((rows, message.charge))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_small_messages_that_are_not_compressed_are_decoded_inline() {
        assert!(is_inline(Form::Protobuf, Encoding::Identity, INLINE_PROTOBUF_BYTES));
        assert!(!is_inline(Form::Protobuf, Encoding::Identity, INLINE_PROTOBUF_BYTES + 1));
        assert!(is_inline(Form::Json, Encoding::Identity, INLINE_OTHER_BYTES));
        assert!(!is_inline(Form::Json, Encoding::Identity, INLINE_OTHER_BYTES + 1));
        for encoding in [Encoding::Gzip, Encoding::Zstd, Encoding::Deflate] {
            assert!(!is_inline(Form::Protobuf, encoding, 10), "{encoding:?}");
        }
    }
}
