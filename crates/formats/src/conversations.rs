//! Conversations in the attributes and events of spans. Agent frameworks put the messages of a model call on its span; the dialects differ:
//!
//! | dialect | where |
//! |---|---|
//! | OpenTelemetry | attributes `gen_ai.system_instructions`, `gen_ai.input.messages`, `gen_ai.output.messages`, on the span or on an event |
//! | OpenTelemetry, as log events | see [`events`] |
//! | OpenTelemetry before 1.37 | events `gen_ai.user.message`, `gen_ai.choice`, ...; `gen_ai.prompt` and `gen_ai.completion` as JSON |
//! | OpenLLMetry | `gen_ai.prompt.0.role`, `gen_ai.prompt.0.content`, `gen_ai.completion.0.tool_calls.0.name`, ... |
//! | OpenInference | `llm.input_messages.0.message.role`, `llm.output_messages.0.message.tool_calls.0.tool_call.id`, ... |
//! | Pydantic AI, Logfire | `pydantic_ai.all_messages`, `all_messages_events`, `request_data` and `response_data` |
//!
//! All become one kind of row: messages as OpenAI writes them (`role`, `content`, `reasoning_content`, `tool_calls`,
//! `tool_call_id`), with unknown parts kept as they are.

pub mod events;

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use rollscope_model::build::{ConversationsBuilder, NewConversation};
use rollscope_model::limits::CONVERSATION_BYTES;
use rollscope_model::names::{self, state};
use rollscope_model::read::{self, Spans};
use serde_json::{Map, Value, json};

use crate::conversation::count;
use events::Finished;

/// Largest number in a name such as `gen_ai.prompt.17.content`, and deepest name.
const MAX_INDEX: usize = 100_000;
const MAX_NAME_DEPTH: usize = 12;

/// JSON values that the messages of one conversation may have: each is two bytes of text or more, and about seventy of memory.
pub(crate) const MAX_VALUES: usize = 1 << 20;

/// How many values a text has at most, with those of JSON that is written as text inside it. The commas of other text are no values.
pub(crate) fn most_values(json: &[u8]) -> usize {
    let within = |json: &[u8]| memchr::memchr3_iter(b',', b'[', b'{', json).count();
    let (mut values, mut rest) = (1, json);
    while let Some(quote) = memchr::memchr(b'"', rest) {
        values += within(&rest[..quote]);
        let end = quote + 1 + end_of_text(&rest[quote + 1..]);
        if may_be_json(&rest[quote + 1..end]) {
            // With each text inside of a text, what is escaped gets shorter.
            let text = rest.get(quote..=end).and_then(|text| serde_json::from_slice::<String>(text).ok());
            values += text.map_or(0, |text| most_values(text.as_bytes()));
        }
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    values + within(rest)
}

/// Where the quote is that ends a text.
fn end_of_text(text: &[u8]) -> usize {
    let mut at = 0;
    while let Some(found) = text.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += found;
        if text[at] == b'"' {
            return at;
        }
        at += 2;
    }
    text.len()
}

/// See [`parsed_one`].
fn may_be_json(text: &[u8]) -> bool {
    let mut rest = text.trim_ascii_start();
    // Line ends and tabs are escaped in a text.
    while let [b'\\', b'n' | b'r' | b't' | b'f', more @ ..] = rest {
        rest = more.trim_ascii_start();
    }
    // Spaces may also be written as numbers, or be those of other scripts.
    matches!(rest, [b'[' | b'{' | 0x80.., ..] | [b'\\', b'"' | b'u', ..])
}

/// The conversations in a batch of spans, and how many are too large to be kept. That there are none is a quick check.
pub fn from_spans(batch: &RecordBatch) -> Finished {
    let mut done = Finished::default();
    let Ok(spans) = Spans::of(batch) else { return done };
    // The bytes of all keys of all rows lie in one buffer. Earlier conventions have the telling word in the names of events.
    let keys = [&spans.start_attrs, &spans.end_attrs, &spans.events.attrs].map(read::Attrs::key_bytes);
    if !keys.into_iter().any(tells) && !tells(spans.events.name.bytes()) {
        return done;
    }
    let mut rows = ConversationsBuilder::default();
    let mut any = false;
    for row in 0..spans.len() {
        let Some(talk) = talk(&spans, row) else { continue };
        match talk.and_then(|talk| push(&mut rows, &spans, row, talk)) {
            Ok(()) => any = true,
            Err(TooLarge) => done.rejected += 1,
        }
    }
    done.batch = any.then(|| rows.finish().ok()).flatten();
    if done.rejected > 0 {
        done.reasons.push(format!(
            "the messages of a model call have more than {CONVERSATION_BYTES} bytes or {MAX_VALUES} JSON values; its span is \
             stored without them ({})",
            done.rejected
        ));
    }
    done
}

fn tells(bytes: &[u8]) -> bool {
    [&b"gen_ai."[..], b"llm.", b"all_messages", b"request_data"]
        .iter()
        .any(|needle| memchr::memmem::find(bytes, needle).is_some())
}

/// What a span tells is larger than a conversation may be.
struct TooLarge;

struct Talk {
    messages: Vec<Value>,
    metadata: Map<String, Value>,
    finish: Option<String>,
    reward: Option<f64>,
}

pub type Attrs = BTreeMap<String, Value>;

/// `values`: how many were read of the span so far.
fn attrs_of(attrs: &read::Attrs, row: usize, into: &mut Attrs, values: &mut usize) -> Result<(), TooLarge> {
    for (key, json) in attrs.row(row).filter(|(key, _)| interesting(key)) {
        *values += most_values(json.as_bytes());
        if *values > MAX_VALUES {
            return Err(TooLarge);
        }
        if let Ok(value) = serde_json::from_str(json) {
            into.insert(key.to_string(), value);
        }
    }
    Ok(())
}

fn interesting(key: &str) -> bool {
    key.starts_with("gen_ai.")
        || key.starts_with("llm.")
        || key.starts_with("openinference.")
        || matches!(
            key,
            "pydantic_ai.all_messages"
                | "all_messages_events"
                | "request_data"
                | "response_data"
                | "input.value"
                | "output.value"
                | "content"
                | "role"
                | "tool_calls"
                | "message"
                | "id"
                | "name"
                | "index"
                | "finish_reason"
                | "reasoning_content"
                | "rl.reward"
                | "reward"
        )
}

/// What a span has said of a model call. `None` if it is about none.
fn talk(spans: &Spans, row: usize) -> Option<Result<Talk, TooLarge>> {
    if spans.state.get(row) != Some(state::CLOSED) {
        return None;
    }
    let mut attrs = Attrs::new();
    let mut events = Vec::new();
    if let Err(too_large) = told(spans, row, &mut attrs, &mut events) {
        // Other spans have inputs and outputs, too, and nothing is left out of those.
        let mut names = [&spans.start_attrs, &spans.end_attrs].into_iter().flat_map(|attrs| attrs.row(row));
        let is_call = names.any(|(key, _)| tells(key.as_bytes())) || !events.is_empty();
        return is_call.then_some(Err(too_large));
    }
    let messages = call_messages(&attrs, &events);
    if messages.is_empty() {
        return None;
    }
    let (mut metadata, finish) = about(&attrs);
    if let Some(end) = spans.end_ns.get(row) {
        metadata.insert("duration_s".into(), json!((end - spans.start_ns.at(row)) as f64 / 1e9));
    }
    let reward = ["rl.reward", "reward"].iter().find_map(|name| attrs.get(*name)?.as_f64());
    Some(Ok(Talk { messages, metadata, finish, reward }))
}

/// The attributes of a span and of its events.
fn told<'s>(
    spans: &'s Spans,
    row: usize,
    attrs: &mut Attrs,
    events: &mut Vec<(&'s str, Attrs)>,
) -> Result<(), TooLarge> {
    let mut values = 0;
    attrs_of(&spans.start_attrs, row, attrs, &mut values)?;
    attrs_of(&spans.end_attrs, row, attrs, &mut values)?;
    for i in spans.events.of(row) {
        let name = spans.events.name.at(i);
        if name.starts_with("gen_ai.") {
            let mut of_event = Attrs::new();
            attrs_of(&spans.events.attrs, i, &mut of_event, &mut values)?;
            events.push((name, of_event));
        }
    }
    Ok(())
}

fn push(rows: &mut ConversationsBuilder, spans: &Spans, row: usize, talk: Talk) -> Result<(), TooLarge> {
    let (run, trace, span) = (spans.run_id.at(row), spans.trace_id.at(row), spans.span_id.at(row));
    let counts = count(&talk.messages);
    let status = match spans.status.get(row) {
        Some("error") => "failed",
        _ => ended(talk.finish.as_deref()),
    };
    let (messages, metadata) = (Value::Array(talk.messages).to_string(), Value::Object(talk.metadata).to_string());
    if messages.len() + metadata.len() > CONVERSATION_BYTES {
        return Err(TooLarge);
    }
    rows.push(&NewConversation {
        id: &format!("{run}/{}/{}", hex::encode(trace), hex::encode(span)),
        run_id: run,
        step: spans.step.get(row),
        key: spans.name.get(row),
        sample_id: spans.sample_id.get(row),
        group_id: spans.group_id.get(row),
        trace_id: Some(trace),
        span_id: Some(span),
        messages: &messages,
        metadata: Some(&metadata),
        reward: talk.reward,
        status: Some(status),
        message_count: counts.messages,
        turn_count: counts.turns,
        tool_call_count: counts.tool_calls,
        media_count: counts.media,
        char_count: counts.chars,
        logged_ns: spans.end_ns.get(row).unwrap_or(spans.start_ns.at(row)),
        ..NewConversation::default()
    });
    Ok(())
}

/// The model, the tokens and why it ended: what is known of a call beside its messages.
fn about(attrs: &Attrs) -> (Map<String, Value>, Option<String>) {
    let first = |names: &[&str]| names.iter().find_map(|name| attrs.get(*name)).cloned();
    let mut about = Map::new();
    for (name, sources) in [
        ("model", &["gen_ai.response.model", "gen_ai.request.model", "llm.model_name"] as &[&str]),
        ("agent", &["gen_ai.agent.name"]),
        ("conversation_id", &["gen_ai.conversation.id"]),
        ("operation", &["gen_ai.operation.name"]),
        ("temperature", &["gen_ai.request.temperature"]),
        ("prompt_tokens", names::PROMPT_TOKENS),
        ("completion_tokens", names::COMPLETION_TOKENS),
    ] {
        if let Some(value) = first(sources) {
            about.insert(name.to_string(), value);
        }
    }
    let finish = match first(&["gen_ai.response.finish_reasons", "gen_ai.completion.0.finish_reason"]) {
        Some(Value::Array(reasons)) => reasons.first().and_then(Value::as_str).map(str::to_string),
        Some(Value::String(reason)) => Some(reason),
        _ => None,
    };
    if let Some(finish) = &finish {
        about.insert("finish_reason".into(), finish.as_str().into());
    }
    (about, finish)
}

/// The status of a call by the reason it gave for its end.
fn ended(finish: Option<&str>) -> &'static str {
    match finish {
        Some("length" | "max_tokens") => "truncated",
        _ => "completed",
    }
}

/// The messages of a model call, in the first dialect that has any.
fn call_messages(attrs: &Attrs, events: &[(&str, Attrs)]) -> Vec<Value> {
    let sources = std::iter::once(attrs).chain(events.iter().map(|(_, attrs)| attrs));
    for source in sources.clone() {
        let list = |name: &str| source.get(name).map(parsed).unwrap_or_default();
        let mut messages = Vec::new();
        match source.get("gen_ai.system_instructions").map(parsed_one) {
            Some(Value::Array(parts)) => messages.push(normal(json!({ "role": "system", "parts": parts }), "system")),
            Some(Value::String(text)) => messages.push(json!({ "role": "system", "content": text })),
            _ => {}
        }
        messages.extend(list("gen_ai.input.messages").into_iter().map(|m| normal(m, "user")));
        messages.extend(list("gen_ai.output.messages").into_iter().map(|m| normal(m, "assistant")));
        if !messages.is_empty() {
            return messages.into_iter().flatten_tools().collect();
        }
    }
    for (input, output) in [("gen_ai.prompt", "gen_ai.completion"), ("llm.input_messages", "llm.output_messages")] {
        let mut messages: Vec<Value> = unflatten(attrs, input).into_iter().map(|m| normal(m, "user")).collect();
        messages.extend(unflatten(attrs, output).into_iter().map(|m| normal(m, "assistant")));
        if !messages.is_empty() {
            return messages;
        }
        for source in sources.clone() {
            let of = |name: &str, role| source.get(name).map(|v| plain(v, role)).unwrap_or_default();
            let mut messages = of(input, "user");
            messages.extend(of(output, "assistant"));
            if !messages.is_empty() {
                // Prompt and answer may be on two events.
                for (_, other) in events.iter().filter(|(_, e)| !std::ptr::eq(e, source)) {
                    messages.extend(other.get(output).map(|v| plain(v, "assistant")).unwrap_or_default());
                }
                return messages;
            }
        }
    }
    let told: Vec<Value> = events.iter().filter_map(|(name, attrs)| event_message(name, attrs)).collect();
    if !told.is_empty() {
        return told;
    }
    for name in ["pydantic_ai.all_messages", "all_messages_events"] {
        let messages: Vec<Value> = attrs.get(name).map(parsed).unwrap_or_default();
        if !messages.is_empty() {
            return messages.into_iter().map(|m| normal(m, "user")).flatten_tools().collect();
        }
    }
    if let Some(request) = attrs.get("request_data").map(parsed_one) {
        let mut messages: Vec<Value> =
            request["messages"].as_array().into_iter().flatten().map(|m| normal(m.clone(), "user")).collect();
        let answer = attrs.get("response_data").map(parsed_one).unwrap_or_default();
        if answer["message"].is_object() {
            messages.push(normal(answer["message"].clone(), "assistant"));
        }
        return messages;
    }
    if attrs.get("openinference.span.kind").and_then(Value::as_str) == Some("LLM") {
        let of = |name: &str, role| attrs.get(name).map(|v| plain(v, role)).unwrap_or_default();
        let mut messages = of("input.value", "user");
        messages.extend(of("output.value", "assistant"));
        return messages;
    }
    Vec::new()
}

/// Values that may be JSON inside a text.
fn parsed_one(value: &Value) -> Value {
    match value {
        Value::String(text) if text.trim_start().starts_with(['[', '{', '"']) => {
            serde_json::from_str(text).unwrap_or_else(|_| value.clone())
        }
        other => other.clone(),
    }
}

fn parsed(value: &Value) -> Vec<Value> {
    match parsed_one(value) {
        Value::Array(items) => items,
        Value::Null => Vec::new(),
        one => vec![one],
    }
}

/// A whole prompt or answer in one attribute: a list of messages, an object that has one, or text.
fn plain(value: &Value, role: &str) -> Vec<Value> {
    match parsed_one(value) {
        Value::Array(items) => items.into_iter().map(|m| normal(m, role)).collect(),
        Value::Object(fields) => match fields.get("messages") {
            Some(Value::Array(items)) => items.iter().map(|m| normal(m.clone(), role)).collect(),
            _ => vec![normal(Value::Object(fields), role)],
        },
        Value::Null => Vec::new(),
        Value::String(text) => vec![json!({ "role": role, "content": text })],
        other => vec![json!({ "role": role, "content": other.to_string() })],
    }
}

/// The role of the message in an event such as `gen_ai.user.message` or `gen_ai.choice`.
fn event_role(name: &str) -> Option<&str> {
    match name {
        "gen_ai.choice" => Some("assistant"),
        name => name.strip_prefix("gen_ai.")?.strip_suffix(".message").filter(|role| !role.contains('.')),
    }
}

fn event_message(name: &str, attrs: &Attrs) -> Option<Value> {
    let role = event_role(name)?;
    let mut fields = Map::new();
    if let Some(Value::Object(message)) = attrs.get("message").map(parsed_one) {
        fields.extend(message);
    }
    for (key, value) in attrs {
        match key.strip_prefix("gen_ai.event.").unwrap_or(key) {
            "id" if role == "tool" => drop(fields.insert("tool_call_id".into(), value.clone())),
            "tool_calls" => drop(fields.insert("tool_calls".into(), parsed_one(value))),
            key @ ("content" | "role" | "name" | "reasoning_content") => drop(fields.insert(key.into(), value.clone())),
            key if key.starts_with("message.") => drop(fields.insert(key[8..].into(), parsed_one(value))),
            _ => {}
        }
    }
    Some(normal(Value::Object(fields), role))
}

/// `PREFIX.3.message.role` and its like as a list of nested values.
fn unflatten(attrs: &Attrs, prefix: &str) -> Vec<Value> {
    let mut list: BTreeMap<usize, Tree> = BTreeMap::new();
    let start = format!("{prefix}.");
    for (key, value) in attrs.range(start.clone()..).take_while(|(key, _)| key.starts_with(&start)) {
        let path: Vec<&str> = key[start.len()..].split('.').take(MAX_NAME_DEPTH + 1).collect();
        let Some(index) = path[0].parse().ok().filter(|n| *n <= MAX_INDEX) else { continue };
        if path.len() < 2 || path.len() > MAX_NAME_DEPTH {
            continue;
        }
        list.entry(index).or_default().put(&path[1..], value);
    }
    list.into_values().map(Tree::into_value).collect()
}

/// Nested values that are put together from the last parts of names. Numbers come out of order (names are sorted as text, so 10
/// comes before 2) and may have gaps, which are left out: a name of a few bytes would make thousands of values.
#[derive(Default)]
enum Tree<'a> {
    #[default]
    Empty,
    Leaf(&'a Value),
    List(BTreeMap<usize, Tree<'a>>),
    Fields(BTreeMap<&'a str, Tree<'a>>),
}

impl<'a> Tree<'a> {
    /// What came before under the same name and is of another kind gives way.
    fn put(&mut self, path: &[&'a str], value: &'a Value) {
        let Some((first, rest)) = path.split_first() else {
            *self = Tree::Leaf(value);
            return;
        };
        let inner = match first.parse::<usize>() {
            Ok(index) if index <= MAX_INDEX => self.list().entry(index).or_default(),
            _ => self.fields().entry(*first).or_default(),
        };
        inner.put(rest, value);
    }

    fn list(&mut self) -> &mut BTreeMap<usize, Tree<'a>> {
        if !matches!(self, Tree::List(_)) {
            *self = Tree::List(BTreeMap::new());
        }
        match self {
            Tree::List(items) => items,
            _ => unreachable!("made above"),
        }
    }

    fn fields(&mut self) -> &mut BTreeMap<&'a str, Tree<'a>> {
        if !matches!(self, Tree::Fields(_)) {
            *self = Tree::Fields(BTreeMap::new());
        }
        match self {
            Tree::Fields(fields) => fields,
            _ => unreachable!("made above"),
        }
    }

    fn into_value(self) -> Value {
        match self {
            Tree::Empty => Value::Null,
            Tree::Leaf(value) => value.clone(),
            Tree::List(items) => Value::Array(items.into_values().map(Tree::into_value).collect()),
            Tree::Fields(fields) => {
                let fields = fields.into_iter().map(|(name, inner)| (name.to_string(), inner.into_value()));
                Value::Object(fields.collect())
            }
        }
    }
}

/// A message of any dialect as OpenAI would write it. What is not known stays as it is.
fn normal(message: Value, role: &str) -> Value {
    let mut fields = match message {
        Value::Object(fields) => fields,
        Value::String(text) => return json!({ "role": role, "content": text }),
        other => return json!({ "role": role, "content": other.to_string() }),
    };
    // OpenInference wraps every message.
    if fields.len() == 1
        && let Some(Value::Object(inner)) = fields.remove("message")
    {
        fields = inner;
    }
    let named = fields.remove("role").and_then(|r| r.as_str().map(str::to_string)).unwrap_or_else(|| role.to_string());
    let mut out = Map::new();
    out.insert(
        "role".into(),
        match named.as_str() {
            "human" => "user".into(),
            "ai" | "model" => "assistant".into(),
            _ => Value::from(named),
        },
    );
    if let Some(Value::Array(parts)) = fields.remove("parts") {
        take_parts(&mut out, parts);
    }
    if let Some(Value::Array(parts)) = fields.remove("contents") {
        let parts: Vec<Value> = parts.into_iter().map(unwrap_content).collect();
        out.insert("content".into(), Value::Array(parts));
    }
    if let Some(calls) = fields.remove("tool_calls") {
        let calls = match calls {
            Value::Array(calls) => calls,
            one => vec![one],
        };
        out.insert("tool_calls".into(), calls.into_iter().filter(|c| !c.is_null()).map(call).collect());
    }
    if let Some(content) = fields.remove("content") {
        out.insert(
            "content".into(),
            match parsed_content(content) {
                Value::Array(parts)
                    if parts.iter().all(|p| p["type"] == "text" && p["text"].is_string()) && parts.len() == 1 =>
                {
                    parts[0]["text"].clone()
                }
                other => other,
            },
        );
    }
    out.extend(fields);
    out.entry("content").or_insert(Value::from(""));
    Value::Object(out)
}

/// Content that is a list of parts written as text.
fn parsed_content(content: Value) -> Value {
    match &content {
        Value::String(text) if text.starts_with("[{\"type\"") => serde_json::from_str(text).unwrap_or(content),
        _ => content,
    }
}

fn unwrap_content(part: Value) -> Value {
    let inner = part.get("message_content").cloned().unwrap_or(part);
    match inner["image"]["image"]["url"].as_str() {
        Some(url) => json!({ "type": "image_url", "image_url": { "url": url } }),
        None => inner,
    }
}

/// A tool call as `{id, type, function: {name, arguments}}`. Arguments stay the text they came as.
fn call(call: Value) -> Value {
    let call = call.get("tool_call").cloned().unwrap_or(call);
    if call["function"].is_object() {
        return call;
    }
    let Value::Object(mut fields) = call else { return call };
    let name = fields.remove("name").unwrap_or_default();
    let arguments = match fields.remove("arguments").or_else(|| fields.remove("input")) {
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
        None => String::new(),
    };
    fields.insert("type".into(), "function".into());
    fields.insert("function".into(), json!({ "name": name, "arguments": arguments }));
    Value::Object(fields)
}

/// OpenTelemetry's parts: text is content, reasoning and tool calls have their own places.
fn take_parts(out: &mut Map<String, Value>, parts: Vec<Value>) {
    let (mut content, mut reasoning, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for part in parts {
        let text = |key: &str| part[key].as_str().map(str::to_string);
        match part["type"].as_str() {
            Some("text") => match text("content").or_else(|| text("text")) {
                Some(text) => content.push(json!({ "type": "text", "text": text })),
                None => content.push(part),
            },
            Some("reasoning" | "thinking") => match text("content").or_else(|| text("text")) {
                Some(text) => reasoning.push(text),
                None => content.push(part),
            },
            Some("tool_call") => calls.push(call(part)),
            Some("blob") => {
                let mime = text("mime_type").unwrap_or_else(|| "application/octet-stream".into());
                match text("content").or_else(|| text("data")) {
                    Some(data) => content.push(
                        json!({ "type": "image_url", "image_url": { "url": format!("data:{mime};base64,{data}") } }),
                    ),
                    None => content.push(part),
                }
            }
            _ => content.push(part),
        }
    }
    let only_text = content.iter().all(|p| p["type"] == "text");
    let value = match content.as_slice() {
        [one] if only_text => one["text"].clone(),
        [] => Value::from(""),
        _ => Value::Array(content),
    };
    out.insert("content".into(), value);
    if !reasoning.is_empty() {
        out.insert("reasoning_content".into(), reasoning.join("\n\n").into());
    }
    if !calls.is_empty() {
        out.insert("tool_calls".into(), Value::Array(calls));
    }
}

/// OpenTelemetry puts the answers of several tools into one message; here each is its own message.
trait FlattenTools: Iterator<Item = Value> + Sized {
    fn flatten_tools(self) -> impl Iterator<Item = Value> {
        self.flat_map(|message| {
            let is_answer = |p: &Value| matches!(p["type"].as_str(), Some("tool_call_response" | "tool_result"));
            let parts = match &message["content"] {
                Value::Array(parts) if parts.iter().any(is_answer) => parts.clone(),
                _ => return vec![message],
            };
            let (answers, rest): (Vec<Value>, Vec<Value>) = parts.into_iter().partition(is_answer);
            let mut all: Vec<Value> = answers
                .into_iter()
                .map(|part| {
                    let said = ["response", "result", "content"].iter().map(|k| &part[*k]).find(|v| !v.is_null());
                    let content = match said {
                        Some(Value::String(text)) => text.clone(),
                        Some(other) => other.to_string(),
                        None => String::new(),
                    };
                    let mut answer = json!({ "role": "tool", "tool_call_id": part["id"], "content": content });
                    if part["name"].is_string() {
                        answer["name"] = part["name"].clone();
                    }
                    answer
                })
                .collect();
            if !rest.is_empty() {
                let mut message = message;
                message["content"] = Value::Array(rest);
                all.push(message);
            }
            all
        })
    }
}

impl<I: Iterator<Item = Value>> FlattenTools for I {}

#[cfg(test)]
mod tests;
