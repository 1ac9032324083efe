//! Files of OTLP: JSON (one object, an array, or lines) and protobuf (one request, or the collector's stream of requests
//! with their lengths). Read piece by piece in bounded memory; rows are handed on in batches that suit the store.
//!
//! A piece that is damaged does not take the others with it: it is counted, and the summary names it.

use std::io::{BufRead, BufReader, Read};
use std::num::NonZeroUsize;
use std::path::Path;

use lru::LruCache;
use rollscope_model::Table;
use rollscope_model::build::{NewRun, RunsBuilder};

use super::metrics::SeriesWriter;
use super::room::Room;
use super::span::{Fault, Reason};
use super::write::Writer;
use super::{DecodeOptions, Delta, MAX_REQUEST_BYTES, RunSeen, Source, Summed, json, logs, metrics_json, protobuf};
use crate::conversations::events::{Calls, Finished};
use crate::import::{ImportError, ImportOptions, Imported, Importer, Sink};
use crate::json::{BOM, Reader};

/// One line, or one element of an array. More is an error that names this limit.
pub const MAX_PIECE_BYTES: usize = MAX_REQUEST_BYTES;
/// Reasons that are kept for the summary.
const MAX_REASONS: usize = 10;
/// Sources of delta temporality whose totals are kept, those seen last. The others begin again, which rates take for a restart.
const MAX_SOURCES: NonZeroUsize = NonZeroUsize::new(1000).unwrap();

/// Log records whose model calls are held. If a file has more, the messages of one call that are further apart do not meet.
const MAX_CALL_BYTES: usize = 256 << 20;

/// OTLP JSON files: one object, an array, or lines; the caller has undone gzip or zstd.
pub struct OtlpJson;

impl Importer for OtlpJson {
    fn name(&self) -> &'static str {
        "OTLP JSON"
    }

    fn detects(&self, head: &[u8], _path: &Path) -> bool {
        let head = head.strip_prefix(BOM).unwrap_or(head).trim_ascii_start();
        let keys = ["Spans", "_spans", "Metrics", "_metrics", "Logs", "_logs"];
        matches!(head.first(), Some(b'{' | b'['))
            && keys.iter().any(|key| {
                let key = format!("\"resource{key}\"");
                memchr::memmem::find(head, key.as_bytes()).is_some()
            })
    }

    fn import(
        &self,
        _path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let decode = DecodeOptions { run: options.run.clone(), ..DecodeOptions::default() };
        let mut import = Import::new(&decode, options, sink);
        let mut input = BufReader::with_capacity(1 << 20, input);
        let mut line = Vec::new();
        // The first line decides: if it is a whole object, so is every line; otherwise brackets are counted.
        let mut number = 0u64;
        loop {
            line.clear();
            if !next_line(&mut input, &mut line)? {
                return import.finish();
            }
            number += 1;
            if !blank(&line) {
                break;
            }
        }
        let first = line.strip_prefix(BOM).unwrap_or(&line).trim_ascii();
        if !is_whole_object(first) {
            by_brackets(line, &mut input, &mut import)?;
            return import.finish();
        }
        loop {
            if !blank(&line) {
                import.json(&line, || format!("line {number}"))?;
            }
            line.clear();
            if !next_line(&mut input, &mut line)? {
                return import.finish();
            }
            number += 1;
        }
    }
}

/// OTLP protobuf files of traces: a bare `ExportTraceServiceRequest`, or the stream that the collector's file exporter
/// writes with `format: proto`, each request behind its length in four bytes, most significant first.
pub struct OtlpProtobuf;

impl Importer for OtlpProtobuf {
    fn name(&self) -> &'static str {
        "OTLP protobuf"
    }

    fn detects(&self, head: &[u8], _path: &Path) -> bool {
        is_bare_request(head) || framed_length(head).is_some()
    }

    fn import(
        &self,
        _path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let decode = DecodeOptions { run: options.run.clone(), ..DecodeOptions::default() };
        let mut import = Import::new(&decode, options, sink);
        let mut input = BufReader::with_capacity(1 << 20, input);
        let framed = !is_bare_request(input.fill_buf()?);
        let mut piece = Vec::new();
        for number in 1u64.. {
            piece.clear();
            if input.fill_buf()?.is_empty() {
                break;
            }
            let name = || format!("message {number}");
            let len = if framed {
                let mut len = [0; 4];
                input.read_exact(&mut len).map_err(|_| cut_off(&name()))?;
                u64::from(u32::from_be_bytes(len))
            } else {
                bare_field(&mut input, &mut piece).ok_or_else(|| cut_off(&name()))?
            };
            if len > MAX_PIECE_BYTES as u64 {
                return Err(too_long(name()));
            }
            let wanted = piece.len() + len as usize;
            (&mut input).take(len).read_to_end(&mut piece)?;
            if piece.len() < wanted {
                import.damage(&name(), "the file ends inside it");
                break;
            }
            import.protobuf(&piece, name)?;
        }
        import.finish()
    }
}

fn cut_off(name: &str) -> ImportError {
    ImportError::Malformed(format!("{name}: the file is truncated or damaged here"))
}

fn too_long(what: String) -> ImportError {
    ImportError::Limit { what, name: "MAX_PIECE_BYTES", limit: MAX_PIECE_BYTES as u64 }
}

/// Does this begin with field 1, a `ResourceSpans`, that begins with one of its own fields?
fn is_bare_request(head: &[u8]) -> bool {
    let Some((&0x0a, rest)) = head.split_first() else { return false };
    let Some((outer, rest)) = varint(rest) else { return false };
    let Some((&(0x0a | 0x12 | 0x1a), rest)) = rest.split_first() else { return false };
    varint(rest).is_some_and(|(inner, _)| inner < outer)
}

fn framed_length(head: &[u8]) -> Option<u32> {
    let len = u32::from_be_bytes(*head.first_chunk()?);
    (len as usize <= MAX_PIECE_BYTES && is_bare_request(&head[4..])).then_some(len)
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (i, b) in bytes.iter().take(9).enumerate() {
        value |= u64::from(b & 0x7f) << (7 * i);
        if b & 0x80 == 0 {
            return Some((value, &bytes[i + 1..]));
        }
    }
    None
}

/// Tag and length of the next field 1 of a bare request, copied into `piece`. Gives the length.
fn bare_field(input: &mut impl Read, piece: &mut Vec<u8>) -> Option<u64> {
    let mut byte = [0];
    while piece.len() < 10 {
        input.read_exact(&mut byte).ok()?;
        piece.push(byte[0]);
        if piece.len() > 1 && byte[0] & 0x80 == 0 {
            break;
        }
    }
    let (&0x0a, rest) = piece.split_first()? else { return None };
    varint(rest).map(|(len, _)| len)
}

fn blank(line: &[u8]) -> bool {
    line.strip_prefix(BOM).unwrap_or(line).trim_ascii().is_empty()
}

/// Reads up to and with the next line feed. False at the end of the file.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> Result<bool, ImportError> {
    let limit = MAX_PIECE_BYTES as u64 + 1;
    let n = input.take(limit).read_until(b'\n', line)?;
    if n as u64 == limit && line.last() != Some(&b'\n') {
        return Err(too_long("a line".into()));
    }
    Ok(n > 0)
}

fn is_whole_object(text: &[u8]) -> bool {
    text.first() == Some(&b'{') && Brackets::default().end(text) == Some(text.len())
}

/// Finds where a JSON value ends, over pieces of text.
#[derive(Default)]
struct Brackets {
    depth: usize,
    in_text: bool,
    escaped: bool,
}

impl Brackets {
    /// The place behind the bracket that closes the value, if it is in this piece.
    fn end(&mut self, piece: &[u8]) -> Option<usize> {
        for (i, b) in piece.iter().enumerate() {
            if self.in_text {
                match b {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_text = false,
                    _ => {}
                }
                continue;
            }
            match b {
                b'"' => self.in_text = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(i + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// Objects that span several lines or are in an array, read one by one.
fn by_brackets(mut text: Vec<u8>, input: &mut impl BufRead, import: &mut Import) -> Result<(), ImportError> {
    // Where the value in hand (or the gap before it) begins, and up to where brackets have been counted.
    let mut start = if text.starts_with(BOM) { BOM.len() } else { 0 };
    let mut counted = start;
    let mut inside = false;
    let mut brackets = Brackets::default();
    let mut number = 0u64;
    loop {
        if !inside {
            let rest = &text[start..];
            let gap = rest.iter().position(|b| !matches!(b, b' ' | b'\t' | b'\r' | b'\n' | b',' | b'[' | b']'));
            start += gap.unwrap_or(rest.len());
            counted = start;
            brackets = Brackets::default();
            inside = start < text.len();
            number += u64::from(inside);
            if inside && text[start] != b'{' {
                import.damage(&format!("value {number}"), "expected an object");
                return Ok(());
            }
        }
        if inside && let Some(n) = brackets.end(&text[counted..]) {
            let end = counted + n;
            import.json(&text[start..end], || format!("value {number}"))?;
            start = end;
            inside = false;
            continue;
        }
        text.drain(..start);
        start = 0;
        counted = text.len();
        if text.len() > MAX_PIECE_BYTES {
            return Err(too_long(format!("value {number}")));
        }
        let chunk = input.fill_buf()?;
        let n = chunk.len();
        if n == 0 {
            if inside {
                import.damage(&format!("value {number}"), "the file ends inside it");
            }
            return Ok(());
        }
        text.extend_from_slice(chunk);
        input.consume(n);
    }
}

/// A file being read.
struct Import<'a, 'o, 's> {
    options: &'o DecodeOptions,
    batch_rows: usize,
    spans: Writer<'o>,
    series: SeriesWriter<'o>,
    /// By run and target.
    deltas: LruCache<(String, String), Source>,
    sink: &'a mut Sink<'s>,
    /// Bytes read since the last batch.
    bytes: usize,
    rows: u64,
    damaged: u64,
    /// Of what is not spans.
    rejected: u64,
    reasons: Vec<String>,
    other_runs: Vec<RunSeen>,
    /// Model calls in log records: the messages of one may be far apart.
    calls: Calls,
    call_bytes: usize,
    /// Something was read well.
    good: bool,
}

impl<'a, 'o, 's> Import<'a, 'o, 's> {
    fn new(options: &'o DecodeOptions, import: &ImportOptions, sink: &'a mut Sink<'s>) -> Self {
        Import {
            options,
            batch_rows: import.batch_rows,
            spans: Writer::new(options),
            series: SeriesWriter::new(options),
            deltas: LruCache::new(MAX_SOURCES),
            sink,
            bytes: 0,
            rows: 0,
            damaged: 0,
            rejected: 0,
            reasons: Vec::new(),
            other_runs: Vec::new(),
            calls: Calls::default(),
            call_bytes: 0,
            good: false,
        }
    }

    fn json(&mut self, text: &[u8], name: impl Fn() -> String) -> Result<(), ImportError> {
        self.make_room(text.len())?;
        let (mut known, mut logs) = (false, false);
        let (spans, series, options) = (&mut self.spans, &mut self.series, self.options);
        series.room = Room::of(text);
        let mut r = Reader::new(text);
        let done = json::members(&mut r, |r, key| {
            let of_ours = match key {
                "resourceSpans" | "resource_spans" => json::resource_spans_list(r, spans),
                "resourceMetrics" | "resource_metrics" => metrics_json::resource_metrics_list(r, series, options),
                "resourceLogs" | "resource_logs" => {
                    logs = true;
                    Ok(r.skip()?)
                }
                _ => return Ok(r.skip()?),
            };
            known = true;
            of_ours
        })
        .and_then(|()| Ok(r.end()?));
        if done.is_ok() && !known {
            self.spans.rejects.add(Reason::Unknown, 1);
        }
        if done.is_ok() && logs {
            self.logs(text, &name)?;
        }
        self.settle(done, name)
    }

    /// Stores what our own SDK and model calls tell in log records, as a server does.
    fn logs(&mut self, text: &[u8], name: impl Fn() -> String) -> Result<(), ImportError> {
        let decoded = match logs::decode_json(text, self.options) {
            Ok(decoded) => decoded,
            Err(error) => {
                self.damage(&name(), &error.0);
                return Ok(());
            }
        };
        self.reject(decoded.rejected, decoded.reasons);
        let media = decoded.media.len() as u64;
        if media > 0 {
            self.reject(media, vec![format!("images and other files in log records are not imported ({media})")]);
        }
        self.see(decoded.seen);
        if !decoded.runs.is_empty() {
            (self.sink)(Table::Runs, logs::runs_batch(&decoded.runs))?;
        }
        for (table, batch) in decoded.batches {
            self.rows += batch.num_rows() as u64;
            (self.sink)(table, batch)?;
        }
        self.calls.absorb(decoded.calls);
        self.call_bytes += text.len();
        if self.call_bytes > MAX_CALL_BYTES { self.finish_calls() } else { Ok(()) }
    }

    fn finish_calls(&mut self) -> Result<(), ImportError> {
        self.call_bytes = 0;
        let Finished { batch, rejected, reasons } = std::mem::take(&mut self.calls).finish();
        self.reject(rejected, reasons);
        if let Some(batch) = batch {
            self.rows += batch.num_rows() as u64;
            (self.sink)(Table::Conversations, batch)?;
        }
        Ok(())
    }

    fn reject(&mut self, rows: u64, reasons: Vec<String>) {
        self.rejected += rows;
        let left = MAX_REASONS.saturating_sub(self.reasons.len());
        self.reasons.extend(reasons.into_iter().take(left));
    }

    fn see(&mut self, runs: Vec<RunSeen>) {
        for run in runs {
            match self.other_runs.iter_mut().find(|r| r.run_id == run.run_id) {
                Some(seen) => seen.first_ns = seen.first_ns.min(run.first_ns),
                None => self.other_runs.push(run),
            }
        }
    }

    fn protobuf(&mut self, bytes: &[u8], name: impl Fn() -> String) -> Result<(), ImportError> {
        self.make_room(bytes.len())?;
        let done = protobuf::request(bytes, &mut self.spans);
        self.settle(done, name)
    }

    /// After a piece: what was good in it stays.
    fn settle(&mut self, done: Result<(), Fault>, name: impl Fn() -> String) -> Result<(), ImportError> {
        match done {
            Ok(()) => self.good = true,
            Err(fault) => {
                self.spans.recover();
                self.damage(&name(), &fault.into_error().0);
            }
        }
        if self.spans.rows().max(self.series.rows()) >= self.batch_rows || self.bytes >= self.batch_rows << 10 {
            self.flush()?;
        }
        Ok(())
    }

    fn damage(&mut self, name: &str, what: &str) {
        self.damaged += 1;
        if self.reasons.len() < MAX_REASONS {
            self.reasons.push(format!("{name}: {what}"));
        }
    }

    fn make_room(&mut self, bytes: usize) -> Result<(), ImportError> {
        if self.bytes + bytes > MAX_REQUEST_BYTES {
            self.flush()?;
        }
        self.bytes += bytes;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ImportError> {
        self.bytes = 0;
        if self.spans.rows() > 0 {
            let batch = self.spans.take();
            self.rows += batch.num_rows() as u64;
            (self.sink)(Table::Spans, batch)?;
        }
        let decoded = self.series.finish();
        let mut summed = Summed::default();
        for (source, deltas) in Delta::by_source(decoded.deltas) {
            self.deltas.get_or_insert_mut(source, Default::default).add(deltas, &mut summed);
        }
        let (totals, not_added, why) = summed.finish();
        self.reject(decoded.rejected + not_added, decoded.reasons.into_iter().chain(why).collect());
        self.see(decoded.runs);
        for batch in [decoded.batch, totals] {
            if batch.num_rows() > 0 {
                self.rows += batch.num_rows() as u64;
                (self.sink)(Table::Series, batch)?;
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Imported, ImportError> {
        self.flush()?;
        self.finish_calls()?;
        if !self.good
            && let Some(first) = self.reasons.first()
        {
            return Err(ImportError::Malformed(first.clone()));
        }
        let mut runs = self.spans.runs();
        for run in std::mem::take(&mut self.other_runs) {
            if !runs.iter().any(|r| r.run_id == run.run_id) {
                runs.push(run);
            }
        }
        if !runs.is_empty() {
            (self.sink)(Table::Runs, runs_batch(&runs))?;
        }
        self.reasons.extend(self.spans.rejects.reasons());
        self.reasons.truncate(MAX_REASONS);
        Ok(Imported {
            rows: self.rows,
            rejected: self.damaged + self.spans.rejects.total + self.rejected,
            reasons: self.reasons,
            ..Imported::default()
        })
    }
}

/// Rows for `runs`. They are dated at the start of the run, so that what the run reports about itself later counts more
/// than what we conclude from its spans.
fn runs_batch(runs: &[RunSeen]) -> arrow::array::RecordBatch {
    let mut columns = RunsBuilder::default();
    for run in runs {
        columns.push(&NewRun {
            run_id: &run.run_id,
            project: run.project.as_deref(),
            name: run.name.as_deref(),
            framework: run.framework.as_deref(),
            started_ns: run.first_ns,
            updated_ns: run.first_ns,
            ..NewRun::default()
        });
    }
    columns.finish().expect("columns are written row by row")
}
