//! A running query as the body of an answer. The first part is made before the status is sent, so that a query that fails
//! early is answered with a problem, and a short response has a header that states whether it is complete. A long response has
//! a trailer. An error after the first part breaks the body off: no reader can take it for a whole one.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use arrow::array::RecordBatch;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::StreamExt;
use http_body::Frame;
use http_body_util::StreamBody;

use crate::problem::Problem;
use crate::query::StreamedResult;
use rollscope_app::encode::{self, ArrowStream};

/// `true` or `false`: header of a short answer, trailer of a long one.
pub const TRUNCATED: HeaderName = HeaderName::from_static("rollscope-truncated");

/// The size of the part that is made before anything is sent, and of every later part.
const PART: usize = 256 << 10;

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Arrow,
    Json,
    Csv,
}

impl Format {
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Arrow => "application/vnd.apache.arrow.stream",
            Format::Json => "application/json",
            Format::Csv => "text/csv; charset=utf-8",
        }
    }
}

enum Encoder {
    Arrow(Box<ArrowStream>),
    Json { first: bool },
    Csv,
}

struct Rows {
    answer: StreamedResult,
    encoder: Encoder,
    out: Vec<u8>,
    /// Rows that may still go out, by the request's own wish.
    left: u64,
    truncated: bool,
    done: bool,
}

impl Rows {
    fn new(answer: StreamedResult, format: Format, max_rows: u64) -> Result<Self, Problem> {
        let mut out = Vec::new();
        let encoder = match format {
            Format::Arrow => Encoder::Arrow(Box::new(ArrowStream::new(&answer.schema).map_err(internal)?)),
            Format::Json => {
                out.extend_from_slice(b"{\"columns\":");
                out.extend(encode::json_columns(&answer.schema));
                out.extend_from_slice(b",\"rows\":[");
                Encoder::Json { first: true }
            }
            Format::Csv => {
                encode::csv_header(&mut out, &answer.schema);
                Encoder::Csv
            }
        };
        Ok(Rows { answer, encoder, out, left: max_rows, truncated: false, done: false })
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), Problem> {
        match &mut self.encoder {
            Encoder::Arrow(stream) => {
                stream.write(batch).map_err(internal)?;
                self.out.append(&mut stream.drain());
            }
            Encoder::Json { first } => encode::json_rows(&mut self.out, batch, first).map_err(internal)?,
            Encoder::Csv => encode::csv_rows(&mut self.out, batch).map_err(internal)?,
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Problem> {
        self.done = true;
        self.truncated |= self.answer.truncated.load(Relaxed);
        match &mut self.encoder {
            Encoder::Arrow(stream) => {
                stream.finish().map_err(internal)?;
                self.out.append(&mut stream.drain());
            }
            Encoder::Json { .. } => {
                self.out.extend_from_slice(format!("\n],\"truncated\":{}}}\n", self.truncated).as_bytes());
            }
            Encoder::Csv => {}
        }
        Ok(())
    }

    /// The next part, or what is left when the rows are at their end.
    async fn part(&mut self) -> Result<Bytes, Problem> {
        while !self.done && self.out.len() < PART {
            match self.answer.batches.next().await {
                None => self.finish()?,
                Some(batch) => {
                    let batch = batch?;
                    let take = self.left.min(batch.num_rows() as u64);
                    self.left -= take;
                    if take > 0 {
                        self.write(&batch.slice(0, take as usize))?;
                    }
                    if take < batch.num_rows() as u64 {
                        self.truncated = true;
                        self.finish()?;
                    }
                }
            }
        }
        Ok(std::mem::take(&mut self.out).into())
    }

    fn flag(&self) -> HeaderValue {
        HeaderValue::from_static(if self.truncated { "true" } else { "false" })
    }
}

fn internal(error: arrow::error::ArrowError) -> Problem {
    Problem::internal(format!("cannot write the response: {error}"))
}

/// Answers with the rows of a query, at most `max_rows` of them.
pub async fn respond(answer: StreamedResult, format: Format, max_rows: u64) -> Result<Response, Problem> {
    let mut rows = Rows::new(answer, format, max_rows)?;
    let first = rows.part().await?;
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if rows.done {
        headers.insert(TRUNCATED, rows.flag());
        return Ok((headers, first).into_response());
    }
    headers.insert(header::TRAILER, HeaderValue::from_static("rollscope-truncated"));
    Ok((headers, Body::new(StreamBody::new(frames(first, rows)))).into_response())
}

fn frames(first: Bytes, rows: Rows) -> impl futures::Stream<Item = io::Result<Frame<Bytes>>> {
    enum Next {
        Part(Rows),
        Trailer(HeaderValue),
        Nothing,
    }
    let rest = futures::stream::unfold(Next::Part(rows), |next| async move {
        match next {
            Next::Part(mut rows) => match rows.part().await {
                Ok(part) if rows.done => Some((Ok(Frame::data(part)), Next::Trailer(rows.flag()))),
                Ok(part) => Some((Ok(Frame::data(part)), Next::Part(rows))),
                Err(problem) => {
                    tracing::debug!(detail = problem.detail(), "a response ended early");
                    Some((Err(io::Error::other(problem.detail())), Next::Nothing))
                }
            },
            Next::Trailer(flag) => {
                let trailers = HeaderMap::from_iter([(TRUNCATED, flag)]);
                Some((Ok(Frame::trailers(trailers)), Next::Nothing))
            }
            Next::Nothing => None,
        }
    });
    futures::stream::once(async { Ok(Frame::data(first)) }).chain(rest)
}
