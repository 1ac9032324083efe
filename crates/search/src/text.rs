//! The text of a conversation: its messages, in any dialect, as texts by role. The one
//! place that knows how messages are written, for the index, for snippets and for looking by substring.

use serde_json::Value;

/// The role of a text. `Reasoning` is what the assistant thought before its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    System,
    User,
    Assistant,
    Reasoning,
    Tool,
    Other,
}

impl Role {
    pub const ALL: [Role; 6] = [Role::System, Role::User, Role::Assistant, Role::Reasoning, Role::Tool, Role::Other];

    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Reasoning => "reasoning",
            Role::Tool => "tool",
            Role::Other => "other",
        }
    }

    /// From the name a framework gives it.
    pub fn from_name(name: &str) -> Role {
        match name {
            "system" | "developer" => Role::System,
            "user" | "human" => Role::User,
            "assistant" | "model" | "ai" | "gpt" => Role::Assistant,
            "reasoning" | "thinking" => Role::Reasoning,
            "tool" | "function" | "ipython" | "observation" | "environment" => Role::Tool,
            _ => Role::Other,
        }
    }
}

/// A piece of text in a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of the message.
    pub message: usize,
    pub role: Role,
    pub text: String,
}

/// Everything that the index needs from the messages.
#[derive(Clone, Debug, Default)]
pub struct Said {
    pub pieces: Vec<Piece>,
    /// Names of the tools that were called, each once, in order.
    pub tools: Vec<String>,
    /// Content hashes of the media, in order.
    pub media: Vec<String>,
}

/// Deeper parts of a message are taken as the JSON text they are.
const MAX_DEPTH: usize = 16;
/// Most tools and media that are listed.
const MAX_LISTED: usize = 64;

/// Keys whose values are names, ids or bytes, not text.
const NOT_SAID: &[&str] = &[
    "type",
    "id",
    "call_id",
    "tool_call_id",
    "role",
    "media",
    "mime",
    "mime_type",
    "data",
    "blob",
    "sha256",
    "finish_reason",
];

impl Said {
    /// Reads the `messages` of a row. Anything but a list of messages is one piece of raw text, so that it can still be found.
    pub fn from_messages(messages: &str) -> Said {
        let mut said = Said::default();
        match serde_json::from_str::<Value>(messages) {
            Ok(Value::Array(list)) => {
                list.iter().enumerate().for_each(|(number, message)| said.message(number, message));
            }
            Ok(Value::Object(message)) => said.message(0, &Value::Object(message)),
            Ok(Value::String(text)) => said.push(0, Role::Other, &text),
            _ => said.push(0, Role::Other, messages),
        }
        said
    }

    /// The first words of the user, or of any role, for a list.
    pub fn opening(&self) -> &str {
        let first = |role| self.pieces.iter().find(|p| p.role == role);
        first(Role::User).or_else(|| self.pieces.first()).map_or("", |p| &p.text)
    }

    /// The last words of the assistant.
    pub fn closing(&self) -> &str {
        let last = |role| self.pieces.iter().rev().find(|p| p.role == role);
        last(Role::Assistant).map_or("", |p| &p.text)
    }

    fn push(&mut self, message: usize, role: Role, text: &str) {
        if !text.is_empty() {
            self.pieces.push(Piece { message, role, text: text.to_string() });
        }
    }

    fn message(&mut self, number: usize, message: &Value) {
        let Value::Object(fields) = message else {
            match message {
                Value::String(text) => self.push(number, Role::Other, text),
                other => self.push(number, Role::Other, &other.to_string()),
            }
            return;
        };
        let named = fields.get("role").or_else(|| fields.get("from")).and_then(Value::as_str);
        let role = named.map_or(Role::Other, Role::from_name);
        for (key, value) in fields {
            match key.as_str() {
                "role" | "from" | "tool_call_id" | "id" => {}
                "name" if role == Role::Tool => {}
                "reasoning_content" | "reasoning" | "thinking" => self.collect(number, Role::Reasoning, value, 0),
                "tool_calls" | "function_call" => self.calls(number, value),
                _ => self.collect(number, role, value, 0),
            }
        }
    }

    fn calls(&mut self, number: usize, calls: &Value) {
        let one = std::slice::from_ref(calls);
        for call in calls.as_array().map_or(one, Vec::as_slice) {
            let function = call.get("function").unwrap_or(call);
            if let Some(name) = function.get("name").and_then(Value::as_str) {
                self.tool(name);
                self.push(number, Role::Assistant, name);
            }
            match function.get("arguments").or_else(|| function.get("input")) {
                Some(Value::String(text)) => self.push(number, Role::Assistant, text),
                Some(other) => self.collect(number, Role::Assistant, other, 0),
                None => {}
            }
        }
    }

    fn tool(&mut self, name: &str) {
        if self.tools.len() < MAX_LISTED && !self.tools.iter().any(|t| t == name) {
            self.tools.push(name.to_string());
        }
    }

    /// Every text inside a value, in any shape.
    fn collect(&mut self, number: usize, role: Role, value: &Value, depth: usize) {
        match value {
            Value::String(text) if text.starts_with("data:") => {}
            Value::String(text) => self.push(number, role, text),
            _ if depth > MAX_DEPTH => self.push(number, role, &value.to_string()),
            Value::Array(items) => items.iter().for_each(|item| self.collect(number, role, item, depth + 1)),
            Value::Object(fields) => {
                let role = match fields.get("type").and_then(Value::as_str) {
                    Some("reasoning" | "thinking" | "redacted_thinking") => Role::Reasoning,
                    Some("tool_call" | "tool_use" | "function_call") => {
                        if let Some(name) = fields.get("name").and_then(Value::as_str) {
                            self.tool(name);
                        }
                        role
                    }
                    Some("tool_call_response" | "tool_result") => Role::Tool,
                    _ => role,
                };
                if let Some(hash) = fields.get("media").and_then(Value::as_str)
                    && self.media.len() < MAX_LISTED
                {
                    self.media.push(hash.to_string());
                }
                for (_, value) in fields.iter().filter(|(key, _)| !NOT_SAID.contains(&key.as_str())) {
                    self.collect(number, role, value, depth + 1);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(json: Value) -> Vec<(usize, &'static str, String)> {
        Said::from_messages(&json.to_string()).pieces.into_iter().map(|p| (p.message, p.role.name(), p.text)).collect()
    }

    #[test]
    fn who_said_what_is_found_in_every_dialect() {
        let openai = serde_json::json!([
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image", "media": "ab", "caption": "a cat"}]},
            {"role": "assistant", "reasoning_content": "hmm", "content": "", "tool_calls": [
                {"id": "c1", "function": {"name": "bash", "arguments": "{\"cmd\": \"ls"}}]},
            {"role": "tool", "tool_call_id": "c1", "name": "bash", "content": "boom"},
        ]);
        let all = said(openai.clone());
        assert_eq!(
            all.iter().map(|(n, role, text)| (*n, *role, text.as_str())).collect::<Vec<_>>(),
            [
                (0, "system", "be brief"),
                (1, "user", "look"),
                (1, "user", "a cat"),
                (2, "reasoning", "hmm"),
                (2, "assistant", "bash"),
                (2, "assistant", "{\"cmd\": \"ls"),
                (3, "tool", "boom"),
            ]
        );
        let read = Said::from_messages(&openai.to_string());
        assert_eq!((read.tools, read.media), (vec!["bash".to_string()], vec!["ab".to_string()]));

        let parts = serde_json::json!([{"role": "assistant", "parts": [
            {"type": "reasoning", "content": "deep"}, {"type": "tool_call", "name": "search", "arguments": {"q": "rust"}},
            {"type": "text", "content": "done"}]}]);
        let all = said(parts.clone());
        assert_eq!(all[0].1, "reasoning");
        assert!(all.iter().any(|(_, role, text)| *role == "assistant" && text == "rust"));
        assert_eq!(Said::from_messages(&parts.to_string()).tools, ["search"]);
    }

    #[test]
    fn what_is_no_list_of_messages_is_still_text() {
        for raw in ["{\"role\":\"user\",\"content\":\"hi\"}", "\"hi\"", "hi", "[\"hi\"]"] {
            assert_eq!(Said::from_messages(raw).pieces[0].text, "hi", "{raw}");
        }
        assert_eq!(Said::from_messages("[[[").pieces[0].text, "[[[");
        assert!(Said::from_messages("[]").pieces.is_empty());
        let deep = format!("[{{\"role\":\"user\",\"content\":{}\"x\"{}}}]", "[".repeat(100), "]".repeat(100));
        assert!(Said::from_messages(&deep).pieces[0].text.contains('x'));
    }
}
