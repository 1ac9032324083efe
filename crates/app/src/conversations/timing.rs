//! Where the time of each message went: the spans of a conversation's trace, laid beside its messages. An assistant
//! message has the generation that made it (queue, prefill, transfer, decode, tokens), a tool's answer the call.

use std::collections::{HashMap, HashSet};

use arrow::array::RecordBatch;
use rollscope_model::kinds::{Kind, classify};
use rollscope_model::names;
use rollscope_model::read::{Attrs, Ids, Ints, SmallInts, Text, column};
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

/// What a message needs to find its spans.
pub struct MessageKey {
    pub assistant: bool,
    pub tool_call_id: Option<String>,
}

#[derive(Clone)]
struct SpanRow {
    id: [u8; 8],
    parent: Option<[u8; 8]>,
    name: String,
    phase: Option<String>,
    status: String,
    sample: Option<String>,
    attempt: Option<i32>,
    start: i64,
    end: Option<i64>,
    batch: usize,
    row: usize,
}

struct Trace<'a> {
    batches: &'a [RecordBatch],
    spans: Vec<SpanRow>,
    by_id: HashMap<[u8; 8], usize>,
    children: HashMap<[u8; 8], Vec<usize>>,
}

impl<'a> Trace<'a> {
    fn read(batches: &'a [RecordBatch]) -> Option<Trace<'a>> {
        let mut spans = Vec::new();
        for (b, batch) in batches.iter().enumerate() {
            let (ids, parents): (Ids<8>, Ids<8>) =
                (column(batch, "span_id").ok()?, column(batch, "parent_span_id").ok()?);
            let (starts, ends): (Ints, Ints) = (column(batch, "start_ns").ok()?, column(batch, "end_ns").ok()?);
            let text = |name| column::<Text>(batch, name).ok();
            let (names, phases) = (text("name")?, text("phase")?);
            let (statuses, samples) = (text("status")?, text("sample_id")?);
            let attempts: SmallInts = column(batch, "attempt").ok()?;
            for row in 0..batch.num_rows().min(MAX_SPANS.saturating_sub(spans.len())) {
                spans.push(SpanRow {
                    id: ids.at(row),
                    parent: parents.get(row),
                    name: names.at(row).to_string(),
                    phase: phases.get(row).map(str::to_string),
                    status: statuses.at(row).to_string(),
                    sample: samples.get(row).map(str::to_string),
                    attempt: attempts.get(row),
                    start: starts.at(row),
                    end: ends.get(row),
                    batch: b,
                    row,
                });
            }
        }
        spans.sort_by_key(|s| (s.start, s.id));
        let by_id = spans.iter().enumerate().map(|(i, s)| (s.id, i)).collect();
        let mut children: HashMap<[u8; 8], Vec<usize>> = HashMap::new();
        for (i, span) in spans.iter().enumerate() {
            if let Some(parent) = span.parent {
                children.entry(parent).or_default().push(i);
            }
        }
        Some(Trace { batches, spans, by_id, children })
    }

    fn attr(&self, span: &SpanRow, keys: &[&str]) -> Option<Value> {
        let batch = &self.batches[span.batch];
        for name in ["end_attrs", "start_attrs"] {
            let Ok(attrs) = column::<Attrs>(batch, name) else { continue };
            let parsed = |key: &&str| serde_json::from_str(attrs.get(span.row, key)?).ok();
            if let Some(value) = keys.iter().find_map(parsed) {
                return Some(value);
            }
        }
        None
    }

    fn text_attr(&self, span: &SpanRow, keys: &[&str]) -> Option<String> {
        match self.attr(span, keys)? {
            Value::String(text) => Some(text),
            Value::Array(items) => items.first().and_then(Value::as_str).map(str::to_string),
            other => Some(other.to_string()),
        }
    }

    fn int_attr(&self, span: &SpanRow, keys: &[&str]) -> Option<i64> {
        self.attr(span, keys)?.as_f64().map(|n| n as i64)
    }

    fn is_generation(&self, span: &SpanRow) -> bool {
        if span.phase.as_deref() == Some("generate") || matches!(span.name.as_str(), "sglang_generate" | "generate") {
            return true;
        }
        let operation = self.text_attr(span, &["gen_ai.operation.name"]);
        matches!(operation.as_deref(), Some("chat" | "text_completion" | "generate_content"))
            || self.text_attr(span, &["openinference.span.kind"]).as_deref() == Some("LLM")
    }

    fn is_tool(&self, span: &SpanRow) -> bool {
        span.phase.as_deref() == Some("tool")
            || self.text_attr(span, &["gen_ai.operation.name"]).as_deref() == Some("execute_tool")
            || self.text_attr(span, &["openinference.span.kind"]).as_deref() == Some("TOOL")
    }

    /// Every span below, itself not among them. Spans that claim each other as parents are looked at once.
    fn below(&self, id: [u8; 8]) -> Vec<usize> {
        let (mut found, mut seen, mut wait) = (Vec::new(), HashSet::from([id]), vec![id]);
        while let Some(id) = wait.pop() {
            for &child in self.children.get(&id).map_or(&[][..], Vec::as_slice) {
                if seen.insert(self.spans[child].id) {
                    found.push(child);
                    wait.push(self.spans[child].id);
                }
            }
        }
        found.sort_unstable();
        found
    }

    /// Of these, the outermost ones that `is` holds for.
    fn outermost(&self, among: &[usize], is: impl Fn(&SpanRow) -> bool) -> Vec<usize> {
        let chosen: HashSet<[u8; 8]> = among.iter().map(|i| &self.spans[*i]).filter(|s| is(s)).map(|s| s.id).collect();
        let inside = |span: &SpanRow| {
            let (mut at, mut steps) = (span.parent, 0);
            while let Some(parent) = at {
                if chosen.contains(&parent) {
                    return true;
                }
                steps += 1;
                at = self.by_id.get(&parent).filter(|_| steps < 64).and_then(|i| self.spans[*i].parent);
            }
            false
        };
        among.iter().copied().filter(|i| chosen.contains(&self.spans[*i].id) && !inside(&self.spans[*i])).collect()
    }
}

/// Which part of a generation a span below it is, if it is one.
fn part_kind(span: &SpanRow) -> Option<Kind> {
    let kind = classify(&span.name, span.phase.as_deref());
    matches!(kind, Kind::Tokenize | Kind::Queue | Kind::Prefill | Kind::Transfer | Kind::Decode).then_some(kind)
}

/// The strips of a conversation. `span` and `sample` are the conversation's own, where it knows them.
pub fn strips(
    batches: &[RecordBatch],
    messages: &[MessageKey],
    trace_id: &str,
    span: Option<[u8; 8]>,
    sample: Option<&str>,
) -> Vec<Strip> {
    let Some(trace) = Trace::read(batches) else { return Vec::new() };
    let everything: Vec<usize> = (0..trace.spans.len()).collect();
    let own = span.and_then(|id| trace.by_id.get(&id)).map(|i| &trace.spans[*i]);
    let mut from_the_end = false;
    let mut among = match own {
        // A conversation that one generation's span told: earlier turns are earlier siblings of it.
        Some(own) if trace.is_generation(own) => {
            from_the_end = true;
            let before = |s: &SpanRow| s.parent == own.parent && s.start <= own.start;
            everything.iter().copied().filter(|i| before(&trace.spans[*i])).collect()
        }
        Some(own) => trace.below(own.id),
        None => everything.clone(),
    };
    if !from_the_end && !among.iter().any(|i| trace.is_generation(&trace.spans[*i])) {
        among = everything;
    }
    if let Some(sample) = sample {
        among.retain(|i| trace.spans[*i].sample.as_deref().is_none_or(|s| s == sample));
    }
    let mut generations = trace.outermost(&among, |s| trace.is_generation(s));
    let mut tools = trace.outermost(&among, |s| trace.is_tool(s));
    // Of several attempts the last one made the conversation.
    if let Some(last) = generations.iter().filter_map(|i| trace.spans[*i].attempt).max() {
        let of_last = |i: &usize| trace.spans[*i].attempt.is_none_or(|a| a == last);
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
        let id = trace.text_attr(&trace.spans[tool], &["gen_ai.tool.call.id", "tool_call_id", "tool_call.id"]);
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

fn bare(trace: &Trace, message: usize, at: usize, trace_id: &str, kind: &'static str) -> Strip {
    let span = &trace.spans[at];
    Strip {
        message,
        kind,
        name: span.name.trim().to_string(),
        trace_id: trace_id.to_string(),
        span_id: hex::encode(span.id),
        start_ns: span.start.to_string(),
        seconds: span.end.map(|end| seconds(end - span.start)),
        status: span.status.clone(),
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

fn tool_strip(trace: &Trace, message: usize, at: usize, trace_id: &str) -> Strip {
    let mut strip = bare(trace, message, at, trace_id, "tool");
    if let Some(tool) = trace.text_attr(&trace.spans[at], names::TOOL_NAME) {
        strip.name = tool;
    }
    if let Some(seconds) = strip.seconds {
        strip.parts.push(Part { kind: Kind::Tool, from: 0.0, seconds });
    }
    strip
}

fn generation_strip(trace: &Trace, message: usize, at: usize, trace_id: &str) -> Strip {
    let span = &trace.spans[at];
    let mut strip = bare(trace, message, at, trace_id, "generation");
    let mut stretches: HashMap<Kind, Vec<(i64, i64)>> = HashMap::new();
    for i in trace.below(span.id) {
        let inner = &trace.spans[i];
        if let (Some(kind), Some(end)) = (part_kind(inner), inner.end) {
            stretches.entry(kind).or_default().push((inner.start, end));
        }
    }
    for (kind, list) in stretches {
        // Ranks that work side by side count once.
        for (from, to) in union(list) {
            strip.parts.push(Part { kind, from: seconds(from - span.start), seconds: seconds(to - from) });
        }
    }
    strip.parts.sort_by(|a, b| a.from.total_cmp(&b.from));
    let below: Vec<usize> = std::iter::once(at).chain(trace.below(span.id)).collect();
    let int = |keys: &[&str]| below.iter().find_map(|i| trace.int_attr(&trace.spans[*i], keys));
    strip.prompt_tokens = int(names::PROMPT_TOKENS);
    strip.completion_tokens = int(names::COMPLETION_TOKENS);
    strip.cached_tokens = int(names::CACHED_TOKENS);
    strip.finish_reason =
        trace.text_attr(span, &["finish_reason", "gen_ai.response.finish_reasons", "gen_ai.response.finish_reason"]);
    if strip.parts.is_empty()
        && let Some(waited) = trace.attr(span, names::QUEUE_TIME).and_then(|v| v.as_f64())
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

fn union(mut list: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    list.sort_unstable();
    let mut out: Vec<(i64, i64)> = Vec::new();
    for (from, to) in list {
        match out.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => out.push((from, to)),
        }
    }
    out
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
