//! Model calls in log events, as OpenTelemetry's instrumentations of model clients send them. Until 1.36 of the
//! conventions each message is an event (`gen_ai.user.message`, `gen_ai.choice`); since then one event has the whole call
//! (`gen_ai.client.inference.operation.details`).
//!
//! The messages of one call name the same span, and may come in several requests and more than once: [`Calls::join`] adds what
//! is stored already. So that this works in any order, `message_times_ns` in the metadata has the time of each message.

use std::collections::{HashMap, HashSet};

use arrow::array::RecordBatch;
use rollscope_model::build::{ConversationsBuilder, NewConversation};
use rollscope_model::limits::CONVERSATION_BYTES;
use serde_json::{Map, Value};

pub use super::Attrs;
use super::{about, call_messages, ended, event_message, event_role};
use crate::conversation::count;

const DETAILS: &str = "gen_ai.client.inference.operation.details";
const TIMES: &str = "message_times_ns";

/// Whether a log record of this name is about a model call.
pub fn is_one(name: &str) -> bool {
    name == DETAILS || event_role(name).is_some()
}

/// A log record about a model call. The fields of its body are among the attributes.
#[derive(Debug)]
pub struct Event<'a> {
    pub name: &'a str,
    pub run_id: &'a str,
    pub trace_id: Option<[u8; 16]>,
    pub span_id: Option<[u8; 8]>,
    pub step: Option<i64>,
    pub sample_id: Option<String>,
    pub group_id: Option<String>,
    pub time_ns: i64,
    pub attributes: Attrs,
}

/// Model calls, of one request or of several.
#[derive(Debug, Default)]
pub struct Calls {
    list: Vec<Call>,
    by_id: HashMap<String, usize>,
}

#[derive(Debug)]
struct Call {
    id: String,
    run_id: String,
    trace_id: Option<[u8; 16]>,
    span_id: Option<[u8; 8]>,
    step: Option<i64>,
    sample_id: Option<String>,
    group_id: Option<String>,
    /// With the time of each message.
    messages: Vec<(i64, Value)>,
    /// All messages are here: none is added.
    whole: bool,
    /// The whole of it is stored.
    stored: bool,
    metadata: Map<String, Value>,
    logged_ns: i64,
    records: u64,
}

/// What became of the calls.
#[derive(Debug, Default)]
pub struct Finished {
    /// Rows of `conversations`.
    pub batch: Option<RecordBatch>,
    /// Records that are in no row, and why.
    pub rejected: u64,
    pub reasons: Vec<String>,
}

impl Calls {
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// False if the event does not name its call.
    pub fn add(&mut self, event: Event) -> bool {
        let whole = event.name == DETAILS;
        let id = match (event.trace_id, event.span_id) {
            // As for a span that has its messages itself.
            (Some(trace), Some(span)) => format!("{}/{}/{}", event.run_id, hex::encode(trace), hex::encode(span)),
            _ if whole => format!("{}/-/{}", event.run_id, event.time_ns),
            _ => return false,
        };
        let (mut metadata, _) = about(&event.attributes);
        let mut messages = Vec::new();
        if whole {
            messages.extend(call_messages(&event.attributes, &[]).into_iter().map(|m| (event.time_ns, m)));
        } else if let Some(message) = event_message(event.name, &event.attributes) {
            messages.push((event.time_ns, message));
            if let Some(Value::String(finish)) = event.attributes.get("finish_reason") {
                metadata.insert("finish_reason".into(), finish.as_str().into());
            }
        }
        self.put(Call {
            id,
            run_id: event.run_id.to_string(),
            trace_id: event.trace_id,
            span_id: event.span_id,
            step: event.step,
            sample_id: event.sample_id,
            group_id: event.group_id,
            messages,
            whole,
            stored: false,
            metadata,
            logged_ns: event.time_ns,
            records: 1,
        });
        true
    }

    /// Adds the calls of the next request.
    pub fn absorb(&mut self, next: Calls) {
        next.list.into_iter().for_each(|call| self.put(call));
    }

    fn put(&mut self, new: Call) {
        let Some(at) = self.by_id.get(&new.id) else {
            self.by_id.insert(new.id.clone(), self.list.len());
            self.list.push(new);
            return;
        };
        let call = &mut self.list[*at];
        call.records += new.records;
        call.logged_ns = call.logged_ns.max(new.logged_ns);
        call.metadata.extend(new.metadata);
        if new.whole {
            call.messages = new.messages;
            call.whole = true;
        } else if !call.whole {
            call.messages.extend(new.messages);
        }
    }

    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(|call| call.id.as_str())
    }

    /// Every message, to take images out of.
    pub fn messages_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.list.iter_mut().flat_map(|call| call.messages.iter_mut().map(|(_, message)| message))
    }

    /// Adds what is stored of a call. Messages that are there already came again and are kept once.
    pub fn join(&mut self, id: &str, messages: &str, metadata: Option<&str>) {
        let Some(call) = self.by_id.get(id).map(|at| &mut self.list[*at]) else { return };
        let (Ok(stored), Ok(mut known)) = (
            serde_json::from_str::<Vec<Value>>(messages),
            serde_json::from_str::<Map<String, Value>>(metadata.unwrap_or("{}")),
        ) else {
            return;
        };
        let Some(Value::Array(times)) = known.remove(TIMES) else {
            // A span or an event had the whole call.
            call.stored = true;
            return;
        };
        if !call.whole {
            let time = |t: &Value| t.as_str().and_then(|t| t.parse().ok()).unwrap_or(0);
            let mut all: Vec<(i64, Value)> = times.iter().map(time).zip(stored).collect();
            let there: HashSet<(i64, String)> = all.iter().map(|(time, m)| (*time, m.to_string())).collect();
            let told = std::mem::take(&mut call.messages).into_iter();
            all.extend(told.filter(|(time, m)| !there.contains(&(*time, m.to_string()))));
            call.messages = all;
        }
        known.extend(std::mem::take(&mut call.metadata));
        call.metadata = known;
    }

    pub fn finish(self) -> Finished {
        let mut done = Finished::default();
        let (mut rows, mut any) = (ConversationsBuilder::default(), false);
        let (mut empty, mut large) = (0, 0);
        for mut call in self.list.into_iter().filter(|call| !call.stored) {
            call.messages.sort_by_key(|(time, _)| *time);
            if !call.messages.iter().any(|(_, message)| says_something(message)) {
                empty += call.records;
                continue;
            }
            if !call.whole {
                let times = call.messages.iter().map(|(time, _)| Value::from(time.to_string())).collect();
                call.metadata.insert(TIMES.into(), Value::Array(times));
            }
            let messages: Vec<Value> = call.messages.into_iter().map(|(_, message)| message).collect();
            let counts = count(&messages);
            let messages = Value::Array(messages).to_string();
            if messages.len() > CONVERSATION_BYTES {
                large += call.records;
                continue;
            }
            let finish = call.metadata.get("finish_reason").and_then(Value::as_str);
            let status = (call.whole || finish.is_some()).then(|| ended(finish));
            let named = |key: &str| call.metadata.get(key).and_then(Value::as_str);
            let key = named("operation").zip(named("model")).map(|(operation, model)| format!("{operation} {model}"));
            rows.push(&NewConversation {
                id: &call.id,
                run_id: &call.run_id,
                step: call.step,
                key: key.as_deref(),
                sample_id: call.sample_id.as_deref(),
                group_id: call.group_id.as_deref(),
                trace_id: call.trace_id,
                span_id: call.span_id,
                messages: &messages,
                metadata: Some(&Value::from(call.metadata.clone()).to_string()),
                status,
                message_count: counts.messages,
                turn_count: counts.turns,
                tool_call_count: counts.tool_calls,
                media_count: counts.media,
                char_count: counts.chars,
                logged_ns: call.logged_ns,
                ..NewConversation::default()
            });
            any = true;
        }
        done.batch = any.then(|| rows.finish().expect("columns are written row by row"));
        done.rejected = empty + large;
        if empty > 0 {
            done.reasons.push(format!(
                "the events have no content; set OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT in the sender \
                 ({empty})"
            ));
        }
        if large > 0 {
            done.reasons.push(format!("a conversation is larger than {CONVERSATION_BYTES} bytes ({large})"));
        }
        done
    }
}

fn says_something(message: &Value) -> bool {
    let text = match &message["content"] {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(parts) => !parts.is_empty(),
        _ => true,
    };
    text || ["tool_calls", "reasoning_content"].iter().any(|key| !message[*key].is_null())
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use serde_json::json;

    use super::*;

    fn event(name: &str, time_ns: i64, attributes: Value) -> Event<'_> {
        let Value::Object(fields) = attributes else { panic!("an object") };
        Event {
            name,
            run_id: "r",
            trace_id: Some([1; 16]),
            span_id: Some([2; 8]),
            step: None,
            sample_id: None,
            group_id: None,
            time_ns,
            attributes: fields.into_iter().collect(),
        }
    }

    fn texts(batch: &RecordBatch) -> (Vec<Value>, Value) {
        let text = |name: &str| batch.column_by_name(name).unwrap().as_string::<i32>().value(0).to_string();
        assert_eq!(batch.num_rows(), 1);
        (serde_json::from_str(&text("messages")).unwrap(), serde_json::from_str(&text("metadata")).unwrap())
    }

    #[test]
    fn messages_of_a_call_join_in_any_order_and_once() {
        let asked = || event("gen_ai.user.message", 10, json!({ "content": "weather?" }));
        let answered = || {
            let message = json!({ "role": "assistant", "content": "rain" });
            event("gen_ai.choice", 20, json!({ "index": 0, "finish_reason": "length", "message": message }))
        };
        let wanted =
            vec![json!({ "role": "user", "content": "weather?" }), json!({ "role": "assistant", "content": "rain" })];
        let orders: [&[&dyn Fn() -> Event<'static>]; 4] =
            [&[&asked, &answered], &[&answered, &asked], &[&asked, &asked, &answered], &[&answered, &asked, &answered]];
        for order in orders {
            let mut stored: Option<(Vec<Value>, Value)> = None;
            for event in order {
                let mut calls = Calls::default();
                assert!(calls.add(event()));
                let id = calls.ids().next().unwrap().to_string();
                assert_eq!(id, format!("r/{}/{}", "01".repeat(16), "02".repeat(8)));
                if let Some((messages, metadata)) = &stored {
                    calls.join(&id, &json!(messages).to_string(), Some(&metadata.to_string()));
                }
                stored = Some(texts(&calls.finish().batch.unwrap()));
            }
            let (messages, metadata) = stored.unwrap();
            assert_eq!(messages, wanted);
            assert_eq!(metadata, json!({ "finish_reason": "length", "message_times_ns": ["10", "20"] }));
        }
    }

    #[test]
    fn a_call_that_was_told_whole_stays_as_it_is() {
        let mut calls = Calls::default();
        assert!(calls.add(event("gen_ai.user.message", 10, json!({ "content": "again" }))));
        let id = calls.ids().next().unwrap().to_string();
        calls.join(&id, "[{\"role\":\"user\",\"content\":\"all of it\"}]", Some("{\"model\":\"m\"}"));
        let done = calls.finish();
        assert_eq!((done.batch.is_none(), done.rejected), (true, 0));
    }

    #[test]
    fn without_content_or_span_nothing_is_kept() {
        let mut calls = Calls::default();
        assert!(calls.add(event("gen_ai.user.message", 10, json!({}))));
        let choice = json!({ "index": 0, "finish_reason": "stop", "message": { "role": "assistant" } });
        assert!(calls.add(event("gen_ai.choice", 11, choice)));
        let done = calls.finish();
        assert_eq!((done.batch.is_none(), done.rejected), (true, 2));
        assert!(done.reasons[0].contains("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"));
        let lost = Event { span_id: None, ..event("gen_ai.user.message", 10, json!({ "content": "x" })) };
        assert!(!Calls::default().add(lost));
    }
}
