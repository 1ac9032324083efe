//! OTLP in. [`grpc`] and [`http`] know their protocol's envelope; both end in [`Ingest::accept`], which undoes the compression,
//! decodes into a batch, and appends it. It returns when the rows are on disk and visible. Only then does the sender get its acknowledgement.

mod body;
mod calls;
mod deltas;
pub mod grpc;
pub mod http;
mod level;
pub mod lines;
mod runs;
mod wire;

pub(crate) use body::discard;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use rollscope_formats::conversations;
use rollscope_formats::conversations::events::Calls;
use rollscope_formats::import::otlp::{
    self, DecodeError, DecodeOptions, Decoded, DecodedLogs, Delta, RunRecord, RunSeen,
};
use rollscope_model::Table;
use rollscope_query::Engine;
use rollscope_store::{Store, StoreError};

use crate::config::Limits;
use crate::conversations::lift;
use crate::metrics::{Counters, Protocol, add};
pub use body::{Budget, Charge, Encoding};
use calls::ModelCalls;
use deltas::Deltas;
pub use level::{HIGHEST as HIGHEST_LEVEL, TraceLevel};
use lines::Lines;
use runs::Runs;

/// Larger messages are decoded off the threads that serve sockets.
const INLINE_PROTOBUF_BYTES: usize = 256 << 10;
/// JSON and compressed messages cost more a byte.
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
    Store {
        store: Store,
        runs: Runs,
        calls: ModelCalls,
        deltas: Deltas,
    },
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
    /// Limits how many large messages are decoded at the same time: one per processor.
    workers: tokio::sync::Semaphore,
}

impl Ingest {
    pub fn new(store: Store, engine: Engine, counters: Arc<Counters>, limits: &Limits) -> Self {
        let calls = ModelCalls::new(store.clone(), engine.clone());
        let (runs, deltas) = (Runs::new(store.clone(), engine.clone()), Deltas::new(engine));
        Self::with_target(Target::Store { store, runs, calls, deltas }, counters, limits)
    }

    /// Into files instead of a store.
    pub fn for_files(lines: Lines, counters: Arc<Counters>, limits: &Limits) -> Self {
        Self::with_target(Target::Lines(lines), counters, limits)
    }

    fn with_target(target: Target, counters: Arc<Counters>, limits: &Limits) -> Self {
        let workers = std::thread::available_parallelism().map_or(2, usize::from);
        Ingest {
            inner: Arc::new(Inner {
                target,
                counters,
                options: limits.decode_options(),
                budget: Budget::new(limits.max_inflight_bytes),
                level: TraceLevel::default(),
                limits: limits.clone(),
                workers: tokio::sync::Semaphore::new(workers),
            }),
        }
    }

    /// OTLP over gRPC and over HTTP.
    pub fn router(&self) -> Router {
        http::router(self).merge(grpc::router(self))
    }

    pub fn inflight_bytes(&self) -> usize {
        self.inner.budget.used()
    }

    /// The run was deleted. If it sends again, it is entered again.
    pub fn forget_run(&self, run_id: &str) {
        if let Target::Store { runs, deltas, .. } = &self.inner.target {
            runs.forget(run_id);
            deltas.forget_run(run_id);
        }
    }

    /// The trace level that SDKs get.
    pub fn level(&self) -> &TraceLevel {
        &self.inner.level
    }

    async fn read(&self, body: Body, charge: &mut Charge) -> Result<Bytes, Refusal> {
        let limits = &self.inner.limits;
        body::read(body, limits.max_message_bytes, Duration::from_secs(limits.body_timeout_s), charge).await
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
        let (store, runs, calls, deltas) = match &inner.target {
            Target::Store { store, runs, calls, deltas } => (store, runs, calls, deltas),
            Target::Lines(lines) => return self.write_line(lines, message).await,
        };
        let (mut rows, _charge) = self.decode(message).await?;
        if rows.runs.len() > inner.limits.max_runs_per_message {
            return Err(Refusal::TooLarge {
                limit: "max_runs_per_message",
                detail: format!(
                    "the message names {} runs, more than max_runs_per_message ({})",
                    rows.runs.len(),
                    inner.limits.max_runs_per_message
                ),
            });
        }
        // Runs, media and rows of one message go in together, or the deletion of a run would come between them.
        let _held = store.hold_runs().await;
        let counted = match rows.deltas.is_empty() {
            true => None,
            false => {
                let totals = deltas.add(std::mem::take(&mut rows.deltas)).await?;
                rows.batches.push((Table::Series, totals.batch));
                rows.rejected += totals.rejected;
                rows.reasons.extend(totals.reasons);
                Some(totals.counted)
            }
        };
        for file in rows.media {
            store.media_put(file).await?;
            add(&counters.accepted, 1);
        }
        if !rows.written.is_empty() {
            runs.write(&rows.written).await?;
            add(&counters.accepted, rows.written.len() as u64);
        }
        if !rows.calls.is_empty() || rows.batches.iter().any(|(_, batch)| batch.num_rows() > 0) {
            runs.enter(&rows.runs).await?;
        }
        if !rows.calls.is_empty() {
            let kept = calls.keep(rows.calls).await?;
            add(&counters.accepted, kept.accepted);
            rows.rejected += kept.rejected;
            rows.reasons.extend(kept.reasons);
        }
        for (table, batch) in rows.batches {
            if batch.num_rows() == 0 {
                continue;
            }
            // Model calls on spans are conversations too.
            let talks = if table == Table::Spans { conversations::from_spans(&batch) } else { None };
            let batch = match table {
                Table::Conversations => lift::media(store, batch).await?,
                _ => batch,
            };
            let talks = match talks {
                Some(talks) => Some(lift::media(store, talks).await?),
                None => None,
            };
            // Together: they share one write to the disk.
            let keep_talks = async {
                match talks {
                    Some(talks) => store.append(Table::Conversations, talks).await.map(drop),
                    None => Ok(()),
                }
            };
            let (appended, ()) = tokio::try_join!(store.append(table, batch), keep_talks)?;
            add(&counters.accepted, appended.accepted);
            add(&counters.duplicates, appended.duplicates);
        }
        if let Some(counted) = counted {
            counted.stored();
        }
        let message = match rows.rejected {
            0 => String::new(),
            n => format!("{n} rejected: {}", rows.reasons.join("; ")),
        };
        Ok(Outcome { rejected: rows.rejected, message })
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
        let permit =
            inner.workers.acquire().await.map_err(|_| Refusal::Internal("the server is shutting down".into()))?;
        let task = tokio::task::spawn_blocking(move || line(message, limit, &options));
        let line = task.await.map_err(|e| Refusal::Internal(format!("decoding failed: {e}")))??;
        drop(permit);
        if line.spans > 0 {
            lines.append(line.text, line.spans).await?;
            add(&counters.accepted, line.spans);
        }
        Ok(line.outcome)
    }

    async fn decode(&self, message: Message) -> Result<(Rows, Charge), Refusal> {
        let inner = &self.inner;
        let inline = match (message.form, message.encoding) {
            (Form::Protobuf, Encoding::Identity) => INLINE_PROTOBUF_BYTES,
            _ => INLINE_OTHER_BYTES,
        };
        if message.bytes.len() <= inline {
            return decode(message, inner.limits.max_message_bytes, &inner.options);
        }
        let _permit =
            inner.workers.acquire().await.map_err(|_| Refusal::Internal("the server is shutting down".into()))?;
        let (limit, options) = (inner.limits.max_message_bytes, inner.options.clone());
        let task = tokio::task::spawn_blocking(move || decode(message, limit, &options));
        task.await.map_err(|e| Refusal::Internal(format!("decoding failed: {e}")))?
    }
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

/// What one message brought, of any signal.
struct Rows {
    /// In the order in which they are appended.
    batches: Vec<(Table, RecordBatch)>,
    /// Metrics that are to be added up first.
    deltas: Vec<Delta>,
    /// Rows of `runs` that an SDK sent explicitly.
    written: Vec<RunRecord>,
    media: Vec<Vec<u8>>,
    /// Model calls in log events.
    calls: Calls,
    runs: Vec<RunSeen>,
    rejected: u64,
    reasons: Vec<String>,
}

impl Rows {
    fn of(table: Table, decoded: Decoded) -> Rows {
        Rows {
            batches: vec![(table, decoded.batch)],
            deltas: decoded.deltas,
            written: Vec::new(),
            media: Vec::new(),
            calls: Calls::default(),
            runs: decoded.runs,
            rejected: decoded.rejected,
            reasons: decoded.reasons,
        }
    }
}

impl From<DecodedLogs> for Rows {
    fn from(decoded: DecodedLogs) -> Rows {
        Rows {
            batches: decoded.batches,
            deltas: Vec::new(),
            written: decoded.runs,
            media: decoded.media,
            calls: decoded.calls,
            runs: decoded.seen,
            rejected: decoded.rejected,
            reasons: decoded.reasons,
        }
    }
}
