//! Counts over the messages of a conversation, in one place for all sources.

use serde_json::Value;

/// Counts that the `conversations` table keeps beside the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub messages: i64,
    /// Messages of the assistant.
    pub turns: i64,
    pub tool_calls: i64,
    pub media: i64,
    /// Characters of text content, of arguments of tool calls too.
    pub chars: i64,
}

/// Counts messages in the OpenAI shape: `role`, `content` (text or a list of parts), `tool_calls`.
pub fn count(messages: &[Value]) -> Counts {
    let mut counts = Counts { messages: messages.len() as i64, ..Counts::default() };
    for message in messages {
        if message["role"] == "assistant" {
            counts.turns += 1;
        }
        content(&message["content"], &mut counts);
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            counts.tool_calls += 1;
            if let Some(arguments) = call["function"]["arguments"].as_str() {
                counts.chars += arguments.chars().count() as i64;
            }
        }
        // A picture may be anywhere else in a message too.
        for (key, value) in message.as_object().into_iter().flatten() {
            if key != "content" {
                counts.media += media(value);
            }
        }
    }
    counts
}

fn content(value: &Value, counts: &mut Counts) {
    match value {
        Value::String(text) => counts.chars += text.chars().count() as i64,
        Value::Array(parts) => {
            for part in parts {
                match part {
                    Value::String(text) => counts.chars += text.chars().count() as i64,
                    _ => counts.chars += part["text"].as_str().map_or(0, |t| t.chars().count() as i64),
                }
            }
            counts.media += media(value);
        }
        _ => counts.media += media(value),
    }
}

/// How many media are named in a value: objects with a `media` hash, and OpenAI's parts that carry one themselves.
fn media(value: &Value) -> i64 {
    match value {
        Value::Array(items) => items.iter().map(media).sum(),
        Value::Object(object) => {
            let carried = matches!(
                object.get("type").and_then(Value::as_str),
                Some("image_url" | "input_image" | "input_audio" | "audio" | "video_url")
            );
            if carried || object.get("media").is_some_and(Value::is_string) {
                return 1;
            }
            object.values().map(media).sum()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_parts_calls_and_pictures_are_counted() {
        let messages = json!([
            {"role": "user", "content": [{"type": "text", "text": "häh?"}, {"type": "image", "media": "ab", "caption": "c"}]},
            {"role": "assistant", "content": "ok", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "content": null, "extra": {"shot": {"type": "image", "media": "cd"}}},
            "no message",
        ]);
        let counts = count(messages.as_array().unwrap());
        assert_eq!(counts, Counts { messages: 4, turns: 1, tool_calls: 1, media: 2, chars: 8 });
    }
}
