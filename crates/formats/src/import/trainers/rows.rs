//! What trainers' files have in common: samples with a reward and a conversation, metrics, spans, and the run they belong to.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use rollscope_model::Table;
use rollscope_model::build::{
    ConversationsBuilder, MetricsBuilder, NewConversation, NewMetric, NewPoint, NewRun, NewSample, NewSpan,
    RunsBuilder, SamplesBuilder, SeriesBuilder, SpansBuilder, TokensBuilder,
};
use rollscope_model::limits::{CONVERSATION_BYTES, RUN_ID_BYTES};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::lines::Range;
use super::record::{Json, write_map};
use super::tokens::Tokens;
use crate::conversation::count;
use crate::import::{ImportError, ImportOptions, Imported, Sink, written_ns};
use crate::tokens::About;

/// Reasons that are kept for the summary.
const MAX_REASONS: usize = 10;
/// Samples of one file whose names are remembered, to tell repeated ones apart.
const MAX_NAMES: usize = 10_000_000;
/// A name is cut at this length.
const MAX_NAME_CHARS: usize = 200;

/// Why a line became no rows.
pub enum Fault {
    /// It is left out, for this reason.
    Line(String),
    /// Reading ends.
    Stop(ImportError),
}

impl From<ImportError> for Fault {
    fn from(error: ImportError) -> Fault {
        Fault::Stop(error)
    }
}

pub struct Rows<'a, 's> {
    sink: &'a mut Sink<'s>,
    run: String,
    framework: &'static str,
    file: String,
    written_ns: i64,
    samples: SamplesBuilder,
    conversations: ConversationsBuilder,
    metrics: MetricsBuilder,
    spans: SpansBuilder,
    series: SeriesBuilder,
    tokens: TokensBuilder,
    with_tokens: bool,
    /// Rows and bytes since batches were handed on last.
    pending_rows: usize,
    pending_bytes: usize,
    batch_rows: usize,
    /// Which lines of the file are read.
    pub range: Range,
    imported: Imported,
    names: HashSet<u64>,
    first_ns: Option<i64>,
    last_ns: Option<i64>,
}

impl<'a, 's> Rows<'a, 's> {
    /// Rows of a file in the run that `home` names, unless the options name one.
    pub fn new(
        path: &Path,
        home: &Path,
        framework: &'static str,
        options: &ImportOptions,
        sink: &'a mut Sink<'s>,
    ) -> Self {
        let folder = home.file_name().map_or_else(|| framework.to_string(), |f| f.to_string_lossy().into_owned());
        Rows {
            sink,
            run: options.run.clone().unwrap_or_else(|| cut(&folder, RUN_ID_BYTES).to_string()),
            framework,
            file: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            written_ns: written_ns(path),
            samples: SamplesBuilder::default(),
            conversations: ConversationsBuilder::default(),
            metrics: MetricsBuilder::default(),
            spans: SpansBuilder::default(),
            series: SeriesBuilder::default(),
            tokens: TokensBuilder::default(),
            with_tokens: options.tokens,
            pending_rows: 0,
            pending_bytes: 0,
            batch_rows: options.batch_rows,
            range: Range::of(options),
            imported: Imported::default(),
            names: HashSet::new(),
            first_ns: None,
            last_ns: None,
        }
    }

    /// The line was left out.
    pub fn reject(&mut self, line: u64, why: &str) {
        self.reject_what(&format!("line {line}"), why);
    }

    /// The same, in files that have no lines.
    pub fn reject_what(&mut self, what: &str, why: &str) {
        self.imported.rejected += 1;
        self.note(format!("{what}: {why}"));
    }

    /// The file has so many whole lines.
    pub fn lines(&mut self, lines: u64) {
        self.imported.lines = Some(lines);
    }

    /// Something else the summary should say.
    pub fn note(&mut self, what: String) {
        if self.imported.reasons.len() < MAX_REASONS {
            self.imported.reasons.push(what);
        }
    }

    /// Bytes of the file became rows. Hands on what is enough for a batch.
    pub fn read(&mut self, bytes: usize) -> Result<(), ImportError> {
        self.pending_bytes += bytes;
        if self.pending_rows >= self.batch_rows || self.pending_bytes >= self.batch_rows.saturating_mul(1024) {
            self.flush()?;
        }
        Ok(())
    }

    /// Puts these times into the run.
    pub fn seen(&mut self, times_ns: impl IntoIterator<Item = i64>) {
        for time in times_ns {
            self.first_ns = Some(self.first_ns.map_or(time, |first| first.min(time)));
            self.last_ns = Some(self.last_ns.map_or(time, |last| last.max(time)));
        }
    }

    /// A name that no other sample of this step and split in this file has.
    pub fn unique(&mut self, step: Option<i64>, split: &str, name: &str, line: u64) -> String {
        let name = cut(name, MAX_NAME_CHARS).to_string();
        let hash = xxh3_64_with_seed(format!("{split}/{name}").as_bytes(), step.unwrap_or(-1) as u64);
        if self.names.len() >= MAX_NAMES || self.names.insert(hash) { name } else { format!("{name}#{line}") }
    }

    /// Adds a sample and the conversation that it is. `row` needs neither run, metadata nor file; `others` are the fields
    /// that have no column.
    pub fn sample(&mut self, row: NewSample, others: &[(String, Json)], messages: &[Json], line: u64) {
        let file = std::mem::take(&mut self.file);
        let run = std::mem::take(&mut self.run);
        let metadata = (!others.is_empty()).then(|| to_text(others.iter().map(|(key, value)| (key.as_str(), value))));
        self.seen(row.start_ns.into_iter().chain(row.end_ns));
        self.samples.push(&NewSample { run_id: &run, metadata: metadata.as_deref(), file: Some(&file), ..row.clone() });
        self.pending_rows += 1;
        if !messages.is_empty() {
            self.conversation(&run, &row, others, messages, line);
        }
        self.file = file;
        self.run = run;
    }

    /// Adds the tokens of a sample.
    pub fn tokens(&mut self, of: &NewSample, tokens: &Tokens) -> Result<(), Fault> {
        if self.with_tokens { self.token_row(of, &tokens.after_prompt()) } else { Ok(()) }
    }

    /// The same, for those who have them as they are kept.
    pub fn token_row(&mut self, of: &NewSample, tokens: &crate::tokens::Tokens) -> Result<(), Fault> {
        if !self.with_tokens {
            return Ok(());
        }
        let about = About {
            run_id: &self.run,
            step: of.step,
            sample_id: of.sample_id,
            split: of.split,
            group_id: of.group_id,
            source: of.source,
            logged_ns: of.end_ns.or(of.start_ns),
            file: Some(&self.file),
        };
        let count = tokens.push(about, &mut self.tokens).map_err(|e| Fault::Line(e.to_string()))?;
        self.pending_rows += usize::from(count > 0);
        Ok(())
    }

    fn conversation(&mut self, run: &str, row: &NewSample, others: &[(String, Json)], messages: &[Json], line: u64) {
        let step = row.step.map_or_else(|| "-".into(), |s| s.to_string());
        let messages: Vec<serde_json::Value> = messages.iter().map(Json::to_plain).collect();
        let counts = count(&messages);
        let text = serde_json::Value::from(messages).to_string();
        if text.len() > CONVERSATION_BYTES {
            let what =
                format!("line {line}: the conversation is longer than {CONVERSATION_BYTES} bytes (CONVERSATION_BYTES)");
            self.note(format!("{what}; only the sample was kept"));
            return;
        }
        let parsed = |text: Option<&str>| text.and_then(|t| Json::parse(t.as_bytes()).ok());
        let known = [
            ("reward", parsed(row.reward_json).or(row.reward.map(Json::Double))),
            ("label", parsed(row.label)),
            ("status", row.status.map(Json::text)),
            ("source", row.source.map(Json::text)),
        ];
        let known: Vec<(&str, Json)> = known.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        let others = others.iter().map(|(key, value)| (key.as_str(), value));
        let others = others.filter(|(key, _)| !["reward", "label", "status", "source"].contains(key));
        let about = to_text(known.iter().map(|(key, value)| (*key, value)).chain(others));
        self.conversations.push(&NewConversation {
            id: &format!("{run}/{}/{step}/{}", row.split, row.sample_id),
            run_id: run,
            step: row.step,
            key: Some("rollout"),
            index: i64::try_from(line).ok().map(|line| line - 1),
            sample_id: Some(row.sample_id),
            group_id: row.group_id,
            trace_id: row.trace_id,
            messages: &text,
            metadata: Some(&about),
            reward: row.reward,
            status: row.status,
            message_count: counts.messages,
            turn_count: counts.turns,
            tool_call_count: counts.tool_calls,
            media_count: counts.media,
            char_count: counts.chars,
            logged_ns: row.end_ns.or(row.start_ns).unwrap_or(self.written_ns),
            ..NewConversation::default()
        });
        self.pending_rows += 1;
    }

    /// Of a file without times: the time tells points apart, and says nothing of the run.
    pub fn metric_without_time(&mut self, step: i64, time_ns: i64, name: &str, value: f64) {
        let row = NewMetric { run_id: &self.run, step: Some(step), time_ns, name, value, source: None };
        self.metrics.push(&row);
        self.pending_rows += 1;
    }

    pub fn metric(&mut self, step: Option<i64>, time_ns: i64, name: &str, value: f64) {
        self.seen([time_ns]);
        self.metrics.push(&NewMetric { run_id: &self.run, step, time_ns, name, value, source: None });
        self.pending_rows += 1;
    }

    /// Adds a point of a series. `row` needs no run.
    pub fn point(&mut self, row: NewPoint) {
        self.seen([row.time_ns]);
        self.series.push(&NewPoint { run_id: &self.run, ..row });
        self.pending_rows += 1;
    }

    /// Adds a span. `row` needs neither run, service nor resource.
    pub fn span(&mut self, row: NewSpan) {
        self.seen(std::iter::once(row.start_ns).chain(row.end_ns));
        let resource = format!("{{\"service.name\":\"{}\"}}", self.framework);
        self.spans.push(&NewSpan { run_id: &self.run, service: self.framework, resource: &resource, ..row });
        self.pending_rows += 1;
    }

    fn flush(&mut self) -> Result<(), ImportError> {
        (self.pending_rows, self.pending_bytes) = (0, 0);
        let batches = [
            (Table::Spans, self.spans.finish()),
            (Table::Samples, self.samples.finish()),
            (Table::Conversations, self.conversations.finish()),
            (Table::Metrics, self.metrics.finish()),
            (Table::Series, self.series.finish()),
            (Table::Tokens, self.tokens.finish()),
        ];
        for (table, batch) in batches {
            let batch = batch.map_err(|e| ImportError::Malformed(format!("cannot build the rows: {e}")))?;
            if batch.num_rows() > 0 {
                self.imported.rows += batch.num_rows() as u64;
                (self.sink)(table, batch)?;
            }
        }
        Ok(())
    }

    /// Hands on the rest, and the run.
    pub fn finish(mut self) -> Result<Imported, ImportError> {
        self.flush()?;
        if self.imported.rows == 0 && self.imported.rejected > 0 && !self.range.continues() {
            let first = self.imported.reasons.first().cloned().unwrap_or_default();
            return Err(ImportError::Malformed(format!("no line can be read; {first}")));
        }
        let mut runs = RunsBuilder::default();
        runs.push(&NewRun {
            run_id: &self.run,
            name: Some(&self.run),
            framework: Some(self.framework),
            started_ns: self.first_ns.unwrap_or(self.written_ns),
            ended_ns: self.last_ns.or(Some(self.written_ns)),
            status: Some("finished"),
            updated_ns: self.written_ns,
            ..NewRun::default()
        });
        let batch = runs.finish().map_err(|e| ImportError::Malformed(format!("cannot build the rows: {e}")))?;
        self.imported.rows += 1;
        (self.sink)(Table::Runs, batch)?;
        Ok(self.imported)
    }
}

fn to_text<'a>(entries: impl Iterator<Item = (&'a str, &'a Json)>) -> String {
    let mut out = Vec::new();
    write_map(&mut out, entries);
    String::from_utf8(out).unwrap_or_default()
}

/// At most so many bytes of a text.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// The group of samples that share this prompt, where the file does not name it.
pub fn group_of(prompt: &str) -> String {
    format!("{:016x}", xxh3_64(prompt.as_bytes()))
}

/// A message in OpenAI's shape.
pub fn message(role: &str, content: Json) -> Json {
    Json::map([("role", Json::text(role)), ("content", content)])
}

/// A prompt or an answer: a text, a message, or a list of messages.
pub fn messages(role: &str, value: Json) -> Vec<Json> {
    match value {
        Json::List(items) => items
            .into_iter()
            .map(|item| match item {
                Json::Map(_) => item,
                other => message(role, other),
            })
            .collect(),
        Json::Map(_) => vec![value],
        other => vec![message(role, other)],
    }
}

/// The folder of a run: the nearest above the file whose name does not say what is in it.
pub fn home(path: &Path, says_what_is_in_it: impl Fn(&str) -> bool) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let folder = path.parent().unwrap_or(Path::new(""));
    let name = |folder: &Path| folder.file_name().map(|f| f.to_string_lossy().into_owned());
    let home = folder.ancestors().find(|f| name(f).is_some_and(|n| !says_what_is_in_it(&n)));
    home.unwrap_or(folder).to_path_buf()
}

/// The last number in a file's name.
pub fn number_in(path: &Path) -> Option<i64> {
    let name = path.file_name()?.to_string_lossy().into_owned();
    let stem = name.split('.').next()?;
    let end = stem.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = stem[..end].trim_end_matches(|c: char| c.is_ascii_digit()).len();
    stem[start..end].parse().ok()
}
