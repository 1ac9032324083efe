//! Where the time of each message went: the spans of a conversation's trace, laid beside its messages. An assistant
//! message has the generation that made it (queue, prefill, transfer, decode, tokens), a tool's answer the call.

use std::collections::{HashMap, HashSet};

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use rollscope_model::SpanId;
use rollscope_model::kinds::{Kind, classify};
use rollscope_model::names;
use rollscope_model::read::{Attrs, SmallInts, column};
use rollscope_spans::joins::Connections;
use rollscope_spans::{Forest, NONE, State, Texts, Walk, intervals};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// Most spans of a trace that are looked at.
const MAX_SPANS: usize = 200_000;

/// One bar beside a message.
#[derive(Debug, Serialize, ToSchema)]
pub struct Strip {
    /// Number of the message.
    pub message: usize,
    /// `generation` or `tool`.
    pub kind: &'static str,
    pub name: String,
    pub trace_id: String,
    pub span_id: String,
    /// Nanoseconds, as text.
    pub start_ns: String,
    #[schema(required)]
    pub seconds: Option<f64>,
    pub status: String,
    pub parts: Vec<Part>,
    #[schema(required)]
    pub prompt_tokens: Option<i64>,
    #[schema(required)]
    pub completion_tokens: Option<i64>,
    #[schema(required)]
    pub cached_tokens: Option<i64>,
    #[schema(required)]
    pub tokens_per_s: Option<f64>,
    #[schema(required)]
    pub finish_reason: Option<String>,
}

/// A stretch of the bar, in seconds from its start.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = StripPart)]
pub struct Part {
    pub kind: Kind,
    pub from: f64,
    pub seconds: f64,
}

/// The columns of `spans` that strips are made from.
pub const COLUMNS: &str = "trace_id, span_id, parent_span_id, name, phase, status, sample_id, attempt, state, start_ns, end_ns, \
                           request_id, bootstrap_room, links, start_attrs, end_attrs";

/// What a message needs to find its spans.
pub struct MessageKey {
    pub assistant: bool,
    pub tool_call_id: Option<String>,
}

/// The spans of a trace. Rows are those of the forest.
struct Trace<'a> {
    batches: &'a [RecordBatch],
    forest: Forest,
    walk: Walk,
    texts: Texts,
    name: Vec<u32>,
    phase: Vec<u32>,
    status: Vec<u32>,
    sample: Vec<u32>,
    attempt: Vec<Option<i32>>,
}

impl<'a> Trace<'a> {
    fn read(batches: &'a [RecordBatch]) -> Result<Trace<'a>, ArrowError> {
        let mut forest = Forest::read(batches)?;
        let mut texts = Texts::default();
        let mut text = |name: &str| forest.texts(batches, name, &mut texts);
        let (name, phase, status, sample) = (text("name")?, text("phase")?, text("status")?, text("sample_id")?);
        Connections::read(&forest, batches)?.attach(&mut forest, &sample);
        let walk = Walk::of(&forest);
        let attempts: Result<Vec<SmallInts>, ArrowError> = batches.iter().map(|b| column(b, "attempt")).collect();
        let attempt = forest.arrange(attempts?.iter().flat_map(SmallInts::iter).collect());
        Ok(Trace { batches, forest, walk, texts, name, phase, status, sample, attempt })
    }

    fn name(&self, row: usize) -> &str {
        self.texts.get(self.name[row])
    }

    fn phase(&self, row: usize) -> Option<&str> {
        (self.phase[row] != NONE).then(|| self.texts.get(self.phase[row]))
    }

    /// None while it is open.
    fn end(&self, row: usize) -> Option<i64> {
        (self.forest.state[row] != State::Open).then(|| self.forest.end[row])
    }

    fn attr(&self, row: usize, keys: &[&str]) -> Option<Value> {
        let (batch, at) = self.forest.place(row);
        for name in ["end_attrs", "start_attrs"] {
            let Ok(attrs) = column::<Attrs>(&self.batches[batch], name) else { continue };
            let parsed = |key: &&str| serde_json::from_str(attrs.get(at, key)?).ok();
            if let Some(value) = keys.iter().find_map(parsed) {
                return Some(value);
            }
        }
        None
    }

    fn text_attr(&self, row: usize, keys: &[&str]) -> Option<String> {
        match self.attr(row, keys)? {
            Value::String(text) => Some(text),
            Value::Array(items) => items.first().and_then(Value::as_str).map(str::to_string),
            other => Some(other.to_string()),
        }
    }

    fn int_attr(&self, row: usize, keys: &[&str]) -> Option<i64> {
        self.attr(row, keys)?.as_f64().map(|n| n as i64)
    }

    fn is_generation(&self, row: usize) -> bool {
        if self.phase(row) == Some("generate") || matches!(self.name(row), "sglang_generate" | "generate") {
            return true;
        }
        let operation = self.text_attr(row, &["gen_ai.operation.name"]);
        matches!(operation.as_deref(), Some("chat" | "text_completion" | "generate_content"))
            || self.text_attr(row, &["openinference.span.kind"]).as_deref() == Some("LLM")
    }

    fn is_tool(&self, row: usize) -> bool {
        self.phase(row) == Some("tool")
            || self.text_attr(row, &["gen_ai.operation.name"]).as_deref() == Some("execute_tool")
            || self.text_attr(row, &["openinference.span.kind"]).as_deref() == Some("TOOL")
    }

    /// Every span below, itself not among them, by start.
    fn below(&self, row: usize) -> Vec<usize> {
        let mut found: Vec<usize> = self.walk.below(row).into_iter().map(|row| row as usize).collect();
        found.sort_unstable();
        found
    }

    /// Of these, the outermost ones that `is` holds for.
    fn outermost(&self, among: &[usize], is: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut chosen = vec![false; self.forest.len()];
        among.iter().filter(|row| is(**row)).for_each(|row| chosen[*row] = true);
        let mut inside = vec![false; self.forest.len()];
        for row in self.walk.order.iter().map(|row| *row as usize) {
            if let Some(parent) = Some(self.forest.parent[row]).filter(|parent| *parent != NONE) {
                inside[row] = inside[parent as usize] || chosen[parent as usize];
            }
        }
        among.iter().copied().filter(|row| chosen[*row] && !inside[*row]).collect()
    }

    /// Which part of a generation a span below it is, if it is one.
    fn part_kind(&self, row: usize) -> Option<Kind> {
        let kind = classify(self.name(row), self.phase(row));
        matches!(kind, Kind::Tokenize | Kind::Queue | Kind::Prefill | Kind::Transfer | Kind::Decode).then_some(kind)
    }
}

/// The strips of a conversation. `span` and `sample` are the conversation's own, where it knows them.
pub fn strips(
    batches: &[RecordBatch],
    messages: &[MessageKey],
    trace_id: &str,
    span: Option<SpanId>,
    sample: Option<&str>,
) -> Vec<Strip> {
    let first = batches.iter().scan(0, |rows, batch| {
        let room = MAX_SPANS - *rows;
        *rows += batch.num_rows().min(room);
        (room > 0).then(|| batch.slice(0, batch.num_rows().min(room)))
    });
    let batches: Vec<RecordBatch> = first.collect();
    let Ok(trace) = Trace::read(&batches) else { return Vec::new() };
    let forest = &trace.forest;
    let everything: Vec<usize> = (0..forest.len()).collect();
    let own = span.and_then(|id| (0..forest.len()).find(|row| forest.span[*row] == id));
    let mut from_the_end = false;
    let mut among = match own {
        // A conversation that one generation's span told: earlier turns are earlier siblings of it.
        Some(own) if trace.is_generation(own) => {
            from_the_end = true;
            let before = |row: &usize| {
                forest.parent_id[*row] == forest.parent_id[own] && forest.start[*row] <= forest.start[own]
            };
            everything.iter().copied().filter(before).collect()
        }
        Some(own) => trace.below(own),
        None => everything.clone(),
    };
    if !from_the_end && !among.iter().any(|row| trace.is_generation(*row)) {
        among = everything;
    }
    if let Some(sample) = sample {
        among.retain(|row| trace.sample[*row] == NONE || trace.texts.get(trace.sample[*row]) == sample);
    }
    let mut generations = trace.outermost(&among, |row| trace.is_generation(row));
    let mut tools = trace.outermost(&among, |row| trace.is_tool(row));
    // Of several attempts the last one made the conversation.
    if let Some(last) = generations.iter().filter_map(|row| trace.attempt[*row]).max() {
        let of_last = |row: &usize| trace.attempt[*row].is_none_or(|a| a == last);
        generations.retain(of_last);
        tools.retain(of_last);
    }
    let mut out = Vec::new();
    let assistants: Vec<usize> = (0..messages.len()).filter(|m| messages[*m].assistant).collect();
    if from_the_end {
        for (message, generation) in assistants.iter().rev().zip(generations.iter().rev()) {
            out.push(generation_strip(&trace, *message, *generation, trace_id));
        }
    } else {
        for (n, generation) in generations.iter().enumerate() {
            // More generations than messages (a dump keeps one text for all turns): they all belong to the last.
            if let Some(message) = assistants.get(n).or(assistants.last()) {
                out.push(generation_strip(&trace, *message, *generation, trace_id));
            }
        }
    }
    let answers: Vec<usize> = (0..messages.len()).filter(|m| messages[*m].tool_call_id.is_some()).collect();
    let mut left: Vec<usize> = Vec::new();
    let mut taken: HashSet<usize> = HashSet::new();
    for tool in tools {
        let id = trace.text_attr(tool, &["gen_ai.tool.call.id", "tool_call_id", "tool_call.id"]);
        match answers.iter().find(|m| id.is_some() && messages[**m].tool_call_id == id && !taken.contains(m)) {
            Some(message) => {
                taken.insert(*message);
                out.push(tool_strip(&trace, *message, tool, trace_id));
            }
            None => left.push(tool),
        }
    }
    let free = answers.into_iter().filter(|m| !taken.contains(m)).collect::<Vec<_>>();
    for (message, tool) in free.into_iter().zip(left) {
        out.push(tool_strip(&trace, message, tool, trace_id));
    }
    out.sort_by(|a, b| (a.message, &a.start_ns).cmp(&(b.message, &b.start_ns)));
    out
}

fn bare(trace: &Trace, message: usize, row: usize, trace_id: &str, kind: &'static str) -> Strip {
    let start = trace.forest.start[row];
    Strip {
        message,
        kind,
        name: trace.name(row).trim().to_string(),
        trace_id: trace_id.to_string(),
        span_id: hex::encode(trace.forest.span[row]),
        start_ns: start.to_string(),
        seconds: trace.end(row).map(|end| seconds(end - start)),
        status: trace.texts.get(trace.status[row]).to_string(),
        parts: Vec::new(),
        prompt_tokens: None,
        completion_tokens: None,
        cached_tokens: None,
        tokens_per_s: None,
        finish_reason: None,
    }
}

fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

fn tool_strip(trace: &Trace, message: usize, row: usize, trace_id: &str) -> Strip {
    let mut strip = bare(trace, message, row, trace_id, "tool");
    if let Some(tool) = trace.text_attr(row, names::TOOL_NAME) {
        strip.name = tool;
    }
    if let Some(seconds) = strip.seconds {
        strip.parts.push(Part { kind: Kind::Tool, from: 0.0, seconds });
    }
    strip
}

fn generation_strip(trace: &Trace, message: usize, row: usize, trace_id: &str) -> Strip {
    let start = trace.forest.start[row];
    let below = trace.below(row);
    let mut strip = bare(trace, message, row, trace_id, "generation");
    let mut stretches: HashMap<Kind, Vec<(i64, i64)>> = HashMap::new();
    for inner in &below {
        if let (Some(kind), Some(end)) = (trace.part_kind(*inner), trace.end(*inner)) {
            stretches.entry(kind).or_default().push((trace.forest.start[*inner], end));
        }
    }
    for (kind, mut list) in stretches {
        // Ranks that work side by side count once.
        intervals::union(&mut list);
        for (from, to) in list {
            strip.parts.push(Part { kind, from: seconds(from - start), seconds: seconds(to - from) });
        }
    }
    strip.parts.sort_by(|a, b| a.from.total_cmp(&b.from));
    let int = |keys: &[&str]| std::iter::once(&row).chain(&below).find_map(|row| trace.int_attr(*row, keys));
    strip.prompt_tokens = int(names::PROMPT_TOKENS);
    strip.completion_tokens = int(names::COMPLETION_TOKENS);
    strip.cached_tokens = int(names::CACHED_TOKENS);
    strip.finish_reason =
        trace.text_attr(row, &["finish_reason", "gen_ai.response.finish_reasons", "gen_ai.response.finish_reason"]);
    if strip.parts.is_empty()
        && let Some(waited) = trace.attr(row, names::QUEUE_TIME).and_then(|v| v.as_f64())
        && waited > 0.0
    {
        strip.parts.push(Part { kind: Kind::Queue, from: 0.0, seconds: waited });
    }
    let decode: f64 = strip.parts.iter().filter(|p| p.kind == Kind::Decode).map(|p| p.seconds).sum();
    let over = if decode > 0.0 { Some(decode) } else { strip.seconds };
    strip.tokens_per_s = match (strip.completion_tokens, over) {
        (Some(tokens), Some(seconds)) if seconds > 0.0 => Some(tokens as f64 / seconds),
        _ => None,
    };
    strip
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollscope_model::attrs::Value as Attr;
    use rollscope_model::build::{NewSpan, SpansBuilder};

    fn message(role: &str, call: Option<&str>) -> MessageKey {
        MessageKey { assistant: role == "assistant", tool_call_id: call.map(str::to_string) }
    }

    #[test]
    fn generations_and_tools_find_their_messages() {
        let mut b = SpansBuilder::default();
        let base = NewSpan { run_id: "r", trace_id: [1; 16], end_ns: Some(10_000_000_000), ..NewSpan::default() };
        b.push(&NewSpan { span_id: [9; 8], name: "sample", ..base.clone() });
        for (n, start) in [(1u8, 0i64), (2, 5_000_000_000)] {
            b.push(&NewSpan {
                span_id: [n; 8],
                parent_span_id: Some([9; 8]),
                name: "sglang_generate",
                phase: Some("generate"),
                start_ns: start,
                end_ns: Some(start + 2_000_000_000),
                end_attrs: &[("completion_tokens", Attr::Int(100)), ("cached_tokens", Attr::Int(7))],
                ..base.clone()
            });
            for rank in [10u8, 20] {
                b.push(&NewSpan {
                    span_id: [n + rank; 8],
                    parent_span_id: Some([n; 8]),
                    name: "decode_forward",
                    start_ns: start + 1_000_000_000,
                    end_ns: Some(start + 2_000_000_000),
                    ..base.clone()
                });
            }
        }
        b.push(&NewSpan {
            span_id: [5; 8],
            parent_span_id: Some([9; 8]),
            name: "tool_call",
            phase: Some("tool"),
            status: "error",
            start_ns: 3_000_000_000,
            end_ns: Some(4_000_000_000),
            start_attrs: &[("tool_call_id", Attr::from("c1")), ("tool", Attr::from("bash"))],
            ..base.clone()
        });
        let batch = b.finish().unwrap();
        let messages = [
            message("user", None),
            message("assistant", None),
            message("tool", Some("c1")),
            message("assistant", None),
        ];
        let strips = strips(&[batch], &messages, "01", Some([9; 8]), None);
        let seen: Vec<_> = strips.iter().map(|s| (s.message, s.kind, s.name.as_str())).collect();
        assert_eq!(
            seen,
            [(1, "generation", "sglang_generate"), (2, "tool", "bash"), (3, "generation", "sglang_generate")]
        );
        assert_eq!(strips[0].parts, [Part { kind: Kind::Decode, from: 1.0, seconds: 1.0 }]);
        assert_eq!((strips[0].tokens_per_s, strips[0].cached_tokens), (Some(100.0), Some(7)));
        assert_eq!((strips[1].seconds, strips[1].status.as_str()), (Some(1.0), "error"));
    }
}
