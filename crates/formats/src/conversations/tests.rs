use rollscope_model::attrs::Value as Attr;
use rollscope_model::build::{NewEvent, NewSpan, SpansBuilder};

use super::*;

fn talk(attrs: &[(&str, Attr)], events: &[NewEvent]) -> Vec<Value> {
    let mut spans = SpansBuilder::default();
    spans.push(&NewSpan { run_id: "r", name: "unrelated", end_ns: Some(1), ..NewSpan::default() });
    spans.push(&NewSpan {
        run_id: "r",
        step: Some(3),
        trace_id: [1; 16],
        span_id: [2; 8],
        name: "chat",
        sample_id: Some("s"),
        start_ns: 1_000_000_000,
        end_ns: Some(3_500_000_000),
        end_attrs: attrs,
        events,
        ..NewSpan::default()
    });
    let done = from_spans(&spans.finish().unwrap());
    assert_eq!((done.rejected, done.reasons.len()), (0, 0), "{:?}", done.reasons);
    let Some(batch) = done.batch else { return Vec::new() };
    assert_eq!(batch.num_rows(), 1);
    let text = |name: &str| read::column::<read::Text>(&batch, name).unwrap().at(0).to_string();
    assert_eq!(text("id"), format!("r/{}/{}", "01".repeat(16), "02".repeat(8)));
    let about: Value = serde_json::from_str(&text("metadata")).unwrap();
    assert_eq!(about["duration_s"], 2.5);
    serde_json::from_str(&text("messages")).unwrap()
}

/// What all the dialects below tell.
fn wanted() -> Value {
    json!([
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "get", "arguments": "{\"city\":\"Basel\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "assistant", "content": "It rains."},
    ])
}

fn same(found: Vec<Value>) {
    assert_eq!(Value::from(found), wanted());
}

#[test]
fn opentelemetry_as_it_is_now() {
    let input = json!([
        {"role": "user", "parts": [{"type": "text", "content": "weather?"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "get", "arguments": {"city": "Basel"}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "rain"}]},
    ]);
    let output = json!([{"role": "assistant", "parts": [{"type": "text", "content": "It rains."}]}]);
    let attrs = [
        ("gen_ai.system_instructions", Attr::from("[{\"type\":\"text\",\"content\":\"be brief\"}]")),
        ("gen_ai.input.messages", Attr::from(input.to_string())),
        ("gen_ai.output.messages", Attr::from(output.to_string())),
    ];
    same(talk(&attrs, &[]));
    let on_event = NewEvent { time_ns: 5, name: "gen_ai.client.inference.operation.details", attrs: &attrs };
    same(talk(&[], &[on_event]));
}

#[test]
fn events_of_earlier_conventions() {
    let call =
        json!([{"id": "c1", "type": "function", "function": {"name": "get", "arguments": "{\"city\":\"Basel\"}"}}]);
    let call = call.to_string();
    let events = [
        NewEvent { time_ns: 1, name: "gen_ai.system.message", attrs: &[("content", "be brief".into())] },
        NewEvent { time_ns: 2, name: "gen_ai.user.message", attrs: &[("content", "weather?".into())] },
        NewEvent { time_ns: 3, name: "gen_ai.assistant.message", attrs: &[("tool_calls", call.as_str().into())] },
        NewEvent { time_ns: 4, name: "gen_ai.tool.message", attrs: &[("id", "c1".into()), ("content", "rain".into())] },
        NewEvent { time_ns: 5, name: "gen_ai.choice", attrs: &[("message", "{\"content\":\"It rains.\"}".into())] },
    ];
    let found = talk(&[], &events);
    let roles: Vec<&str> = found.iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant"]);
    assert_eq!(found[2]["tool_calls"][0]["function"]["name"], "get");
    assert_eq!((&found[3]["tool_call_id"], &found[4]["content"]), (&json!("c1"), &json!("It rains.")));
}

#[test]
fn flattened_names() {
    let mut open_llmetry: Vec<(String, Attr)> = Vec::new();
    let mut open_inference: Vec<(String, Attr)> = Vec::new();
    let messages = wanted();
    for (n, message) in messages.as_array().unwrap().iter().enumerate() {
        let (prompt, input, n_out) = if n < 4 { ("prompt", "input", n) } else { ("completion", "output", 0) };
        let mut put = |name: &str, value: &str| {
            open_llmetry.push((format!("gen_ai.{prompt}.{n_out}.{name}"), value.into()));
            let nested =
                name.replace("tool_calls.0.", "tool_calls.0.tool_call.").replace("call.name", "call.function.name");
            let nested = nested.replace("call.arguments", "call.function.arguments");
            open_inference.push((format!("llm.{input}_messages.{n_out}.message.{nested}"), value.into()));
        };
        put("role", message["role"].as_str().unwrap());
        if let Some(id) = message["tool_call_id"].as_str() {
            put("tool_call_id", id);
        }
        if let Some(call) = message["tool_calls"].get(0) {
            put("tool_calls.0.id", "c1");
            put("tool_calls.0.name", call["function"]["name"].as_str().unwrap());
            put("tool_calls.0.arguments", call["function"]["arguments"].as_str().unwrap());
        } else {
            put("content", message["content"].as_str().unwrap());
        }
    }
    for attrs in [open_llmetry, open_inference] {
        let attrs: Vec<(&str, Attr)> = attrs.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
        let found = talk(&attrs, &[]);
        assert_eq!(found.len(), 5, "{found:?}");
        assert_eq!(found[2]["tool_calls"][0]["function"], wanted()[2]["tool_calls"][0]["function"]);
        assert_eq!(found[3]["tool_call_id"], "c1");
        assert_eq!(found[4]["content"], "It rains.");
    }
}

#[test]
fn prompts_as_one_text_and_half_written_things() {
    let found = talk(&[("gen_ai.prompt", "say hi".into()), ("gen_ai.completion", "hi".into())], &[]);
    assert_eq!(
        Value::from(found),
        json!([{"role": "user", "content": "say hi"}, {"role": "assistant", "content": "hi"}])
    );
    let half = talk(&[("gen_ai.input.messages", "[{\"role\":\"user\",\"parts\":[{\"type\":\"te".into())], &[]);
    assert_eq!(half[0]["content"], "[{\"role\":\"user\",\"parts\":[{\"type\":\"te");
    let odd = json!([{"role": "user", "parts": [{"type": "hologram", "beam": 3}, {"type": "text", "content": "x"}]}]);
    let odd = talk(&[("gen_ai.input.messages", odd.to_string().into())], &[]);
    assert_eq!(odd[0]["content"][0], json!({"type": "hologram", "beam": 3}));
    assert!(talk(&[("gen_ai.request.model", "m".into())], &[]).is_empty());
    assert!(talk(&[("gen_ai.prompt.99999999999.content", "x".into())], &[]).is_empty());
    let gap =
        talk(&[("gen_ai.prompt.7.content", "x".into()), ("gen_ai.prompt.0.tool_calls.90000.name", "y".into())], &[]);
    assert_eq!(gap.len(), 2);
    assert_eq!(gap[0]["tool_calls"].as_array().map(Vec::len), Some(1));
}

#[test]
fn numbers_in_names_make_no_values_that_nobody_sent() {
    let path = ".4095".repeat(8);
    let names: Vec<String> = (0..1024).map(|n| format!("gen_ai.prompt.0.content.{n}{path}")).collect();
    let attrs: Vec<(&str, Attr)> = names.iter().map(|name| (name.as_str(), "x".into())).collect();
    let found = talk(&attrs, &[]);
    assert_eq!(found[0]["content"].as_array().map(Vec::len), Some(1024));
    let text = Value::from(found).to_string();
    assert!(text.len() < 64 << 10, "{} bytes", text.len());
}

#[test]
fn messages_that_are_too_large_are_left_out_and_counted() {
    let values = format!("[{}0]", "0,".repeat(MAX_VALUES));
    let mut spans = SpansBuilder::default();
    // A table that a tool returned is one text, as it is and as a message.
    let table = "1,".repeat(MAX_VALUES);
    let message = json!([{"role": "user", "content": table}]).to_string();
    let texts = [values.clone(), values.replace("[", "\n\u{a0}["), "x".repeat(CONVERSATION_BYTES)];
    for (n, prompt) in (1..).zip(texts.into_iter().chain(["small".to_string(), table, message])) {
        spans.push(&NewSpan {
            run_id: "r",
            trace_id: [n; 16],
            span_id: [n; 8],
            name: "chat",
            end_ns: Some(1),
            end_attrs: &[("gen_ai.prompt", prompt.into())],
            ..NewSpan::default()
        });
    }
    // No model call, so nothing is left out.
    spans.push(&NewSpan {
        run_id: "r",
        trace_id: [9; 16],
        span_id: [9; 8],
        name: "embed",
        end_ns: Some(1),
        end_attrs: &[("output.value", values.into())],
        ..NewSpan::default()
    });
    let done = from_spans(&spans.finish().unwrap());
    assert_eq!((done.batch.map(|batch| batch.num_rows()), done.rejected), (Some(3), 3));
    assert!(done.reasons[0].ends_with("(3)"), "{:?}", done.reasons);
}
