//! Samples of a dump as rows of `samples`, `spans`, `conversations`, `tokens` and `runs`.

use std::borrow::Cow;

use arrow::array::RecordBatch;
use rollscope_model::build::{
    ConversationsBuilder, NewConversation, NewRun, NewSample, NewSpan, RunsBuilder, SamplesBuilder, SpansBuilder,
    TokensBuilder,
};
use rollscope_model::kinds::{Kind, classify};
use rollscope_model::limits::CONVERSATION_BYTES;
use rollscope_model::names::{self, state};
use rollscope_model::time::seconds_to_ns;
use rollscope_model::{SpanId, Table, TraceId, attrs, ids};

use super::rebuild::{Item, Parent, State};
use super::row::{self, Reader, Row, is_true, whole};
use super::{Dump, SERVICE, parallel};
use crate::import::torch::render::Style;
use crate::import::torch::{Key, Tag, Torch, Value};
use crate::import::{ImportError, ImportOptions, Imported};
use crate::tokens::{About, MAX_TOKENS, Part, Tokens};

/// One attribute; a longer one is replaced by a note.
pub const MAX_ATTRIBUTE_BYTES: usize = 4 << 20;
/// A batch is handed on at this size.
pub(super) const BATCH_BYTES: usize = 128 << 20;
/// What a token takes in memory, about: an id, a mask, a log-probability.
const TOKEN_BYTES: usize = 9;
/// Samples a worker turns into rows at a time.
const CHUNK: usize = 64;

const RESOURCE: &str = "{\"service.name\":\"slime\"}";

/// The tokens after the prompt. `tokens` has the prompt, too; the other lists begin after it.
fn tokens(torch: &Torch, sample: Value, response_length: Option<i64>) -> Tokens {
    let heap = &torch.heap;
    let field = |name: &str| heap.field(sample, name).filter(|value| !value.is_none());
    // One more than may be, so that too many are noticed.
    let numbers = |name: &str| torch.numbers(field(name)?, MAX_TOKENS + 1).filter(|list| !list.is_empty());
    let floats = |name: &str| numbers(name).map(|list| list.into_iter().map(|value| value as f32).collect());
    let (prompt, ids) = after_prompt(torch, field("tokens"), response_length);
    Tokens {
        prompt_tokens: Some(prompt as i64),
        ids,
        mask: numbers("loss_mask").map(|list| list.into_iter().map(|value| value != 0.0).collect()),
        logprobs: floats("rollout_log_probs"),
        parts: weights(torch, field("weight_versions")).into_iter().collect(),
        ..Tokens::default()
    }
}

/// How many ids the prompt has, and those after it.
pub(super) fn after_prompt(
    torch: &Torch,
    ids: Option<Value>,
    response_length: Option<i64>,
) -> (usize, Option<Vec<i32>>) {
    let mut ids = ids.and_then(|ids| torch.integers(ids, 2 * MAX_TOKENS + 1)).unwrap_or_default();
    let response = usize::try_from(response_length.unwrap_or(0)).unwrap_or(usize::MAX).min(ids.len());
    let prompt = ids.len() - response;
    let ids: Option<Vec<i32>> = ids.drain(prompt..).map(|id| i32::try_from(id).ok()).collect();
    (prompt, ids.filter(|ids| !ids.is_empty()))
}

/// The version of the weights that produced the tokens, if it is one. Of several, it is not known which token is of which.
pub(super) fn weights(torch: &Torch, versions: Option<Value>) -> Option<Part> {
    let versions = versions.into_iter().flat_map(|list| torch.heap.items(list));
    let mut versions: Vec<String> = versions.map(|version| super::short(torch.python_str(version))).collect();
    versions.dedup();
    let [version] = <[String; 1]>::try_from(versions).ok()?;
    Some(Part { weight_version: Some(version), ..Part::default() })
}

/// What a worker made of its samples.
#[derive(Default)]
struct Chunk {
    batches: Vec<(Table, RecordBatch)>,
    rows: u64,
    text_bytes: u64,
    rejected: u64,
    skipped: u64,
    shortened: u64,
    /// Samples whose lists of tokens differ in length.
    uneven: u64,
    start_ns: Option<i64>,
    end_ns: Option<i64>,
}

pub fn write(
    dump: &Dump,
    options: &ImportOptions,
    sink: &mut dyn FnMut(Table, RecordBatch) -> Result<(), ImportError>,
) -> Result<Imported, ImportError> {
    let run = options.run.clone().unwrap_or_else(|| super::default_run(&dump.path));
    let limit = dump.torch.output_limit();
    let mut total = Chunk::default();
    parallel::ordered(
        dump.samples.len().div_ceil(CHUNK),
        || Maker::new(dump, &run, options, limit),
        |maker, chunk| {
            for at in (chunk * CHUNK..dump.samples.len()).take(CHUNK) {
                maker.sample(at)?;
            }
            maker.finish()
        },
        |chunk: Result<Chunk, ImportError>| {
            let chunk = chunk?;
            dump.went_through(CHUNK);
            total.text_bytes += chunk.text_bytes;
            if total.text_bytes > limit {
                return Err(too_large(limit));
            }
            total.rows += chunk.rows;
            total.rejected += chunk.rejected;
            total.skipped += chunk.skipped;
            total.shortened += chunk.shortened;
            total.uneven += chunk.uneven;
            total.start_ns = total.start_ns.into_iter().chain(chunk.start_ns).min();
            total.end_ns = total.end_ns.into_iter().chain(chunk.end_ns).max();
            chunk.batches.into_iter().try_for_each(|(table, batch)| sink(table, batch))
        },
    )?;
    let mut runs = RunsBuilder::default();
    runs.push(&NewRun {
        run_id: &run,
        name: Some(&run),
        framework: Some(SERVICE),
        started_ns: total.start_ns.unwrap_or(dump.written_ns),
        ended_ns: total.end_ns.or(Some(dump.written_ns)),
        status: Some("finished"),
        updated_ns: dump.written_ns,
        ..NewRun::default()
    });
    sink(Table::Runs, runs.finish().map_err(arrow_error)?)?;
    let mut reasons = Vec::new();
    for (count, why) in [
        (total.rejected, "spans have a time outside the years 1678 to 2262"),
        (total.skipped, "events have no time and were left out"),
        (total.shortened, "values were too large and were replaced by a note"),
        (total.uneven, "samples have lists of tokens that differ in length; their tokens were left out"),
    ] {
        if count > 0 {
            reasons.push(format!("{count} {why}"));
        }
    }
    Ok(Imported { rows: total.rows + 1, rejected: total.rejected + total.skipped, reasons, ..Imported::default() })
}

fn too_large(limit: u64) -> ImportError {
    ImportError::Limit { what: "the text of the dump's rows".into(), name: "MAX_GROWTH", limit }
}

pub(super) fn arrow_error(e: arrow::error::ArrowError) -> ImportError {
    ImportError::Malformed(format!("cannot build the rows: {e}"))
}

/// Fills the builders. One per thread.
struct Maker<'a> {
    dump: &'a Dump,
    run: &'a str,
    limit: u64,
    with_tokens: bool,
    reader: Reader<'a>,
    error_type: Option<Key>,
    error_message: Option<Key>,
    request_ids: [Option<Key>; names::REQUEST_ID.len()],
    phase: Option<Key>,
    spans: SpansBuilder,
    samples: SamplesBuilder,
    conversations: ConversationsBuilder,
    tokens: TokensBuilder,
    /// Bytes of text and tokens in the builders.
    pending: usize,
    made: Chunk,
}

impl<'a> Maker<'a> {
    fn new(dump: &'a Dump, run: &'a str, options: &ImportOptions, limit: u64) -> Maker<'a> {
        let key = |name: &str| dump.torch.heap.key(name);
        Maker {
            dump,
            run,
            limit,
            with_tokens: options.tokens,
            reader: Reader::new(&dump.torch),
            error_type: key("error_type"),
            error_message: key("error_message"),
            request_ids: std::array::from_fn(|i| key(names::REQUEST_ID[i])),
            phase: key(names::PHASE),
            spans: SpansBuilder::default(),
            samples: SamplesBuilder::default(),
            conversations: ConversationsBuilder::default(),
            tokens: TokensBuilder::default(),
            pending: 0,
            made: Chunk::default(),
        }
    }

    fn flush(&mut self) -> Result<(), ImportError> {
        let batches = [
            (Table::Spans, self.spans.finish()),
            (Table::Samples, self.samples.finish()),
            (Table::Conversations, self.conversations.finish()),
            (Table::Tokens, self.tokens.finish()),
        ];
        for (table, batch) in batches {
            let batch = batch.map_err(arrow_error)?;
            if batch.num_rows() > 0 {
                self.made.rows += batch.num_rows() as u64;
                self.made.batches.push((table, batch));
            }
        }
        self.made.text_bytes += self.pending as u64;
        self.pending = 0;
        Ok(())
    }

    fn finish(&mut self) -> Result<Chunk, ImportError> {
        self.flush()?;
        Ok(std::mem::take(&mut self.made))
    }

    fn added(&mut self, bytes: usize) -> Result<(), ImportError> {
        self.pending += bytes;
        if self.made.text_bytes + self.pending as u64 > self.limit {
            return Err(too_large(self.limit));
        }
        if self.pending > BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    fn get(&self, attrs: Value, key: Option<Key>) -> Option<Value> {
        self.dump.torch.heap.get_key(attrs, key?)
    }

    fn sample(&mut self, at: usize) -> Result<(), ImportError> {
        let dump = self.dump;
        let (torch, heap, sample) = (&dump.torch, &dump.torch.heap, dump.samples[at]);
        let row = self.reader.row(sample, at);
        let sample_id = &dump.sample_ids[at];
        let group = heap.field(sample, "group_index").filter(|g| !g.is_none()).map(|g| torch.python_str(g));
        let step = dump.step.map_or_else(|| "-".into(), |s| s.to_string());
        let id = format!("{}/{}/{step}/{sample_id}", self.run, dump.split);
        let trace = heap.field(sample, "trace").filter(|t| t.tag() == Tag::Dict);
        let trace_text =
            trace.and_then(|t| heap.get(t, "trace_id")).and_then(|t| heap.str(t)).filter(|t| !t.is_empty());
        let (trace_id, canonical) = match &trace_text {
            Some(text) => ids::trace_id_from_text(text),
            None => (ids::trace_id_from_text(&id).0, true),
        };
        let stats = row.as_ref().map(Row::stats);
        let start_ns = stats.and_then(|s| seconds_to_ns(s.start));
        let end_ns = stats.and_then(|s| seconds_to_ns(s.end));
        self.made.start_ns = self.made.start_ns.into_iter().chain(start_ns).min();
        self.made.end_ns = self.made.end_ns.into_iter().chain(end_ns).max();
        let (mut turns, mut tool_calls) = (0, 0);
        if let Some(row) = &row {
            self.made.skipped += row.skipped;
            let spans = &row.rebuilt.items[..row.rebuilt.spans];
            turns = spans.iter().filter(|item| &*row.events[item.event as usize].name == "sglang_generate").count();
            tool_calls = self.tool_calls(row, spans);
            let original = trace_text.as_deref().filter(|_| !canonical);
            self.spans(row, trace_id, original, sample_id, group.as_deref())?;
        }

        let field = |name: &str| heap.field(sample, name).filter(|v| !v.is_none());
        let number = |name: &str| field(name).map(|v| whole(torch, v));
        let inner = |outer: &str, name: &str| heap.field(field(outer)?, name).and_then(|v| heap.int(v));
        let reward = field("reward");
        let reward_number = reward.and_then(|r| torch.number(r));
        let reward_json = reward.filter(|r| !matches!(r.tag(), Tag::Float | Tag::Int)).map(|r| self.json(r));
        let label = field("label").map(|l| self.json(l));
        let metadata = field("metadata").map(|m| self.json(m));
        let status = row::status(torch, sample).filter(|s| !s.is_none()).map(|s| torch.python_str(s));
        let source = row::source(torch, sample).map(|s| super::short(torch.python_str(s)));
        let total_tokens = field("tokens").and_then(|t| torch.count(t)).and_then(|n| i64::try_from(n).ok());
        let response_length = number("response_length");
        let weight_versions = field("weight_versions").filter(|w| is_true(torch, *w)).map(|w| self.json(w));
        let file = dump.path.file_name().map(|f| f.to_string_lossy());
        self.samples.push(&NewSample {
            run_id: self.run,
            step: dump.step,
            sample_id,
            split: dump.split,
            group_id: group.as_deref(),
            trace_id: trace.map(|_| trace_id),
            attempt: trace.and_then(|t| heap.get(t, "attempt")).and_then(|a| i32::try_from(whole(torch, a)).ok()),
            status: status.as_deref(),
            reward: reward_number,
            reward_json: reward_json.as_deref(),
            label: label.as_deref(),
            source: source.as_deref(),
            start_ns,
            end_ns,
            prompt_tokens: total_tokens.zip(response_length).map(|(t, r)| t.saturating_sub(r).max(0)),
            response_tokens: response_length,
            total_tokens,
            response_length,
            turns: row.as_ref().and_then(|_| i32::try_from(turns).ok()),
            tool_calls: row.as_ref().and_then(|_| i32::try_from(tool_calls).ok()),
            weight_versions: weight_versions.as_deref(),
            cached_tokens: inner("prefix_cache_info", "cached_tokens"),
            cache_total_tokens: inner("prefix_cache_info", "total_prompt_tokens"),
            spec_accepted: inner("spec_info", "spec_accept_token_num"),
            spec_drafted: inner("spec_info", "spec_draft_token_num"),
            spec_verifies: inner("spec_info", "spec_verify_ct"),
            non_generation_s: field("non_generation_time").and_then(|v| torch.number(v)),
            removed: field("remove_sample").map(|v| is_true(torch, v)),
            metadata: metadata.as_deref(),
            file: file.as_deref(),
        });
        let texts = [&reward_json, &label, &metadata].into_iter().flatten().map(String::len).sum();
        self.added(texts)?;

        if self.with_tokens {
            let about = About {
                run_id: self.run,
                step: dump.step,
                sample_id,
                split: dump.split,
                group_id: group.as_deref(),
                source: source.as_deref(),
                logged_ns: end_ns.or(start_ns),
                file: file.as_deref(),
            };
            match tokens(torch, sample, response_length).push(about, &mut self.tokens) {
                Ok(count) => self.added(count as usize * TOKEN_BYTES)?,
                Err(_) => self.made.uneven += 1,
            }
        }

        let Some(talk) = Conversation::new(self, sample) else { return Ok(()) };
        let about = self.about(sample, reward, status.as_deref(), source.as_deref());
        self.conversations.push(&NewConversation {
            id: &id,
            run_id: self.run,
            step: dump.step,
            key: Some("rollout"),
            index: Some(at as i64),
            sample_id: Some(sample_id),
            group_id: group.as_deref(),
            trace_id: trace.map(|_| trace_id),
            messages: &talk.messages,
            metadata: Some(&about),
            reward: reward_number,
            status: status.as_deref(),
            message_count: talk.count,
            turn_count: talk.turns,
            tool_call_count: talk.tool_calls,
            media_count: talk.media,
            char_count: talk.chars,
            logged_ns: end_ns.or(start_ns).unwrap_or(dump.written_ns),
            ..NewConversation::default()
        });
        self.added(talk.messages.len() + about.len())
    }

    fn json(&mut self, value: Value) -> String {
        let mut out = Vec::new();
        let whole = self.dump.torch.write_json(&mut out, value, Style::Typed, CONVERSATION_BYTES);
        self.made.shortened += u64::from(!whole);
        String::from_utf8(out).unwrap_or_default()
    }

    /// Metadata of a conversation: the sample's own, with what people sort and filter by.
    /// Counted as the answers count them: by what the answers call a tool, and a call inside a call is part of it.
    fn tool_calls(&self, row: &Row, spans: &[Item]) -> usize {
        let is_tool = |item: &Item| {
            let name = &row.events[item.event as usize].name;
            classify(name, self.said_phase(self.attrs_of(row, item)).as_deref()) == Kind::Tool
        };
        let tools: Vec<bool> = spans.iter().map(is_tool).collect();
        let inside = |item: &Item| {
            let mut at = item.parent_item;
            // Parents that lead in a circle are followed no further than there are spans.
            for _ in 0..spans.len() {
                let Some(parent) = at.and_then(|at| Some((at, spans.get(at as usize)?))) else { return false };
                if tools[parent.0 as usize] {
                    return true;
                }
                at = parent.1.parent_item;
            }
            false
        };
        spans.iter().zip(&tools).filter(|(item, is_tool)| **is_tool && !inside(item)).count()
    }

    fn about(&mut self, sample: Value, reward: Option<Value>, status: Option<&str>, source: Option<&str>) -> String {
        let heap = &self.dump.torch.heap;
        let label = heap.field(sample, "label").filter(|l| !l.is_none());
        let own = heap.field(sample, "metadata").filter(|m| m.tag() == Tag::Dict);
        let mut out = String::from("{");
        let mut put = |name: &str, json: &str| {
            if out.len() > 1 {
                out.push(',');
            }
            let mut key = Vec::new();
            attrs::write_key(&mut key, name);
            out.push_str(&String::from_utf8(key).unwrap_or_default());
            out.push_str(json);
        };
        if let Some(reward) = reward {
            put("reward", &self.json(reward));
        }
        if let Some(label) = label {
            put("label", &self.json(label));
        }
        for (name, text) in [("status", status), ("source", source)] {
            if let Some(text) = text {
                put(name, &attrs::to_text(&text.into()));
            }
        }
        for (key, value) in own.into_iter().flat_map(|m| heap.entries(m)) {
            let name = self.dump.torch.python_str(key);
            if !["reward", "label", "status", "source"].contains(&&*name) {
                put(&name, &self.json(value));
            }
        }
        out.push('}');
        out
    }

    fn spans(
        &mut self,
        row: &Row,
        trace_id: TraceId,
        original_trace_id: Option<&str>,
        sample_id: &str,
        group_id: Option<&str>,
    ) -> Result<(), ImportError> {
        // Ids that were given out in this trace: a row's identity must be its own.
        let mut taken = hashbrown::HashSet::with_capacity(row.rebuilt.items.len());
        for item in row.rebuilt.items.iter().chain(&row.rebuilt.superseded) {
            self.span(row, item, trace_id, original_trace_id, sample_id, group_id, &mut taken)?;
        }
        Ok(())
    }

    /// The attributes at its start and at its end.
    fn attrs_of(&self, row: &Row, item: &Item) -> (Value, Value) {
        let at_event = row.raw[item.event as usize].attrs;
        match item.state {
            State::OrphanEnd => (Value::NONE, at_event),
            _ => (at_event, item.end_event.map_or(Value::NONE, |end| row.raw[end as usize].attrs)),
        }
    }

    fn said_phase(&self, (start_attrs, end_attrs): (Value, Value)) -> Option<Cow<'a, str>> {
        [start_attrs, end_attrs].into_iter().find_map(|a| self.dump.torch.heap.str(self.get(a, self.phase)?))
    }

    #[allow(clippy::too_many_arguments)]
    fn span(
        &mut self,
        row: &Row,
        item: &Item,
        trace_id: TraceId,
        original_trace_id: Option<&str>,
        sample_id: &str,
        group_id: Option<&str>,
        taken: &mut hashbrown::HashSet<SpanId>,
    ) -> Result<(), ImportError> {
        let (torch, heap) = (&self.dump.torch, &self.dump.torch.heap);
        let raw = &row.raw[item.event as usize];
        let event = &row.events[item.event as usize];
        let (Some(start_ns), Some(end_ns)) =
            (seconds_to_ns(item.start), item.end.map_or(Some(None), |e| seconds_to_ns(e).map(Some)))
        else {
            self.made.rejected += 1;
            return Ok(());
        };
        let own = (item.state != State::Instant && !event.span_id.is_empty()).then(|| id_text(&event.span_id));
        let (mut span_id, canonical) = match &own {
            Some(own) => ids::span_id_from_text(own),
            None => (ids::span_id_from_place(&trace_id, item.event), true),
        };
        if !taken.insert(span_id) {
            span_id = ids::span_id_from_place(&trace_id, item.event);
            taken.insert(span_id);
        }
        let parent = match item.parent {
            Parent::None => None,
            Parent::Named => Some(&event.parent_id),
            Parent::Inferred(start) => Some(&row.events[start as usize].span_id),
        };
        let parent = parent.map(|id| id_text(id));
        let parent_id = parent.as_deref().map(ids::span_id_from_text);
        let (start_attrs, end_attrs) = self.attrs_of(row, item);
        let error = self.get(end_attrs, self.error_type);
        let message = error.map(|kind| match self.get(end_attrs, self.error_message) {
            Some(message) => super::short(format!("{}: {}", torch.python_str(kind), torch.python_str(message))),
            None => super::short(torch.python_str(kind)),
        });
        let request = [end_attrs, start_attrs]
            .into_iter()
            .flat_map(|a| self.request_ids.iter().map(move |k| (a, *k)))
            .find_map(|(a, k)| heap.str(self.get(a, k)?));
        let phase = self.said_phase((start_attrs, end_attrs));
        let mut bytes = 160;
        for (attrs, starts) in [(start_attrs, true), (end_attrs, false)] {
            let column = if starts { &mut self.spans.start_attrs } else { &mut self.spans.end_attrs };
            let mut put = |key: &str, value: Value| {
                column.put_with(key, |out| {
                    let before = out.len();
                    let whole = torch.write_json(out, value, Style::Typed, MAX_ATTRIBUTE_BYTES);
                    self.made.shortened += u64::from(!whole);
                    bytes += key.len() + out.len() - before;
                });
            };
            match attrs.tag() {
                Tag::None => {}
                Tag::Dict => {
                    for (key, value) in heap.entries(attrs) {
                        match heap.str(key) {
                            Some(key) if key.len() <= MAX_ATTRIBUTE_BYTES => put(&key, value),
                            _ => put(&super::short(torch.python_str(key)), value),
                        }
                    }
                }
                _ => put("value", attrs),
            }
        }
        self.spans.push(&NewSpan {
            run_id: self.run,
            step: self.dump.step,
            trace_id,
            span_id,
            parent_span_id: parent_id.map(|p| p.0),
            name: &event.name,
            service: SERVICE,
            phase: phase.as_deref(),
            start_ns,
            end_ns: if item.state == State::Closed {
                end_ns
            } else if item.state == State::Open {
                None
            } else {
                Some(start_ns)
            },
            state: match item.state {
                State::Closed => state::CLOSED,
                State::Open => state::OPEN,
                State::Instant => state::INSTANT,
                State::OrphanEnd => state::ORPHAN_END,
            },
            status: if error.is_some() { "error" } else { "unset" },
            status_message: message.as_deref(),
            sample_id: Some(sample_id),
            group_id,
            attempt: i32::try_from(raw.attempt).ok(),
            request_id: request.as_deref(),
            resource: RESOURCE,
            original_trace_id,
            original_span_id: own.as_deref().filter(|_| !canonical),
            original_parent_span_id: parent.as_deref().filter(|_| parent_id.is_some_and(|p| !p.1)),
            ..NewSpan::default()
        });
        self.added(bytes + event.name.len())
    }
}

/// An id as text; what was no text was given a leading NUL.
fn id_text(id: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(id) {
        Ok(id) => Cow::Borrowed(id.trim_start_matches('\0')),
        Err(_) => Cow::Owned(String::from_utf8_lossy(id).trim_start_matches('\0').to_string()),
    }
}

/// Prompt and response as messages.
#[derive(Default)]
struct Conversation {
    messages: String,
    count: i64,
    turns: i64,
    tool_calls: i64,
    media: i64,
    chars: i64,
}

impl Conversation {
    /// `None` where the sample has neither prompt nor response.
    fn new(maker: &mut Maker, sample: Value) -> Option<Conversation> {
        let (torch, heap) = (&maker.dump.torch, &maker.dump.torch.heap);
        let prompt = heap.field(sample, "prompt").filter(|p| is_true(torch, *p));
        let response = heap.field(sample, "response").filter(|r| r.tag() == Tag::Str && is_true(torch, *r));
        if prompt.is_none() && response.is_none() {
            return None;
        }
        let mut talk = Conversation::default();
        let mut out: Vec<u8> = vec![b'['];
        let mut message = |out: &mut Vec<u8>, role: &str, value: Value| {
            if out.len() > 1 {
                out.push(b',');
            }
            if role.is_empty() {
                maker.made.shortened += u64::from(!torch.write_json(out, value, Style::Slime, CONVERSATION_BYTES));
                talk.look_at(torch, value);
                return;
            }
            out.extend_from_slice(format!("{{\"role\":\"{role}\",\"content\":").as_bytes());
            maker.made.shortened += u64::from(!torch.write_json(out, value, Style::Slime, CONVERSATION_BYTES));
            out.push(b'}');
            talk.count += 1;
            talk.turns += i64::from(role == "assistant");
            talk.chars += heap.str(value).map_or(0, |t| t.chars().count() as i64);
        };
        match prompt {
            Some(list) if matches!(list.tag(), Tag::List | Tag::Tuple) => {
                for item in heap.items(list) {
                    if out.len() > CONVERSATION_BYTES {
                        break;
                    }
                    message(&mut out, if item.tag() == Tag::Dict { "" } else { "user" }, item);
                }
            }
            Some(dict) if dict.tag() == Tag::Dict => message(&mut out, "", dict),
            Some(other) => message(&mut out, "user", other),
            None => {}
        }
        if let Some(response) = response {
            message(&mut out, "assistant", response);
        }
        out.push(b']');
        talk.messages = String::from_utf8(out).unwrap_or_default();
        Some(talk)
    }

    /// Counts what is in a message that came as one.
    fn look_at(&mut self, torch: &Torch, message: Value) {
        let heap = &torch.heap;
        let text = |v: Value| heap.str(v).map_or(0, |t| t.chars().count() as i64);
        self.count += 1;
        self.turns += i64::from(heap.get(message, "role").and_then(|r| heap.str_bytes(r)) == Some(b"assistant"));
        self.tool_calls += heap.get(message, "tool_calls").map_or(0, |t| heap.len(t) as i64);
        match heap.get(message, "content") {
            Some(parts) if parts.tag() == Tag::List => {
                for part in heap.items(parts) {
                    let kind = heap.get(part, "type").and_then(|t| heap.str(t));
                    self.media += i64::from(kind.is_some_and(|k| !k.starts_with("text")));
                    self.chars += heap.get(part, "text").map_or(0, text);
                }
            }
            Some(content) => self.chars += text(content),
            None => {}
        }
    }
}
