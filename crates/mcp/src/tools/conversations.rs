//! Searching and reading conversations.

use rollscope_app::conversations::ask::Ask;
use serde_json::Value;

use super::{Answer, Call, LIMIT, Problem, Tool, integer, needed, text};
use crate::text::{cell, cut, line, shown, table};

pub const SEARCH: Tool = Tool {
    name: "conversations",
    title: "Search conversations",
    about: "Searches what the model was asked and what it answered. `search` takes words, \"phrases\", prefixes*, role:tool, reward:<0.5, \
            step:100..120, status:truncated, contains:\"text\" and /regex/. Returns ids, rewards and the text around what was found; read one with `conversation`.",
    arguments: &[
        text("search", "What to search for. Everything if it is left out"),
        text("run", "Only of this run"),
        text("project", "Only of runs of this project"),
        text("step", "A step, or a range such as 100..120"),
        text("sample", "Only of this sample"),
        text("group", "Only of this group: the samples that share a prompt"),
        text("status", "Only with this status, such as truncated"),
        text("tool", "Only with calls of this tool"),
        text(
            "sort",
            "step, reward, time, turns, length, tokens, duration, tool_calls or relevance, with a leading - for descending order",
        ),
        LIMIT,
        text("cursor", "The next page: what the last answer said"),
    ],
    run: |call| Box::pin(search(call)),
};

async fn search(call: Call) -> Result<Answer, Problem> {
    let mut pairs = call.pairs()?;
    if !pairs.iter().any(|(name, _)| name == "limit") {
        pairs.push(("limit".into(), "10".into()));
    }
    pairs.push(("messages".into(), "false".into()));
    pairs.push(("snippets".into(), "true".into()));
    let mut ask = Ask::from_pairs(pairs)?;
    ask.request.limit = ask.request.limit.clamp(1, 50);
    let run = ask.run.clone();
    let listed = call.source.conversations().await?.list(ask).await?;
    let answer: Value = serde_json::from_slice(&listed.to_json()).map_err(|e| Problem::internal(e.to_string()))?;
    let row = |found: &Value| {
        let what = match found["snippet"]["pieces"].as_array() {
            Some(pieces) => pieces.iter().filter_map(Value::as_str).collect::<String>(),
            None => cell(&found["preview"]),
        };
        vec![
            cell(&found["id"]),
            cell(&found["run_id"]),
            cell(&found["step"]),
            cell(&found["reward"]),
            cell(&found["status"]),
            cell(&found["turn_count"]),
            cell(&found["char_count"]),
            line(&what, 160),
        ]
    };
    let rows: Vec<_> = answer["conversations"].as_array().into_iter().flatten().map(row).collect();
    let total = answer["total"].as_u64().unwrap_or(0) as usize;
    let note = match answer["next"].as_str() {
        Some(next) if rows.len() < total => {
            format!("{} of {total} conversations. For more, pass cursor={next}", rows.len())
        }
        _ => shown(rows.len(), total.saturating_sub(rows.len()), total, "conversations"),
    };
    let header = ["conversation", "run", "step", "reward", "status", "turns", "characters", "what"];
    let text =
        if rows.is_empty() { format!("{note} Remove a filter.") } else { format!("{}\n{note}", table(&header, &rows)) };
    let link = match run {
        Some(run) => {
            let run = call.source.desk().await?.engine().find_run(&run).await.unwrap_or(run);
            call.page.to(&["run", &run, "conversations"])
        }
        None => call.page.to(&["conversations"]),
    };
    Ok(Answer { text, link })
}

pub const READ: Tool = Tool {
    name: "conversation",
    title: "Read a conversation",
    about: "Returns the messages of one conversation, with its reward and status. Long messages are cut: pass `message` to read one in full, \
            and `from` to continue in it.",
    arguments: &[
        text("id", "The id, as `conversations` returns it").required(),
        integer("message", "Only this message, counted from 0"),
        integer("from", "Begin at this character of the message"),
    ],
    run: |call| Box::pin(read(call)),
};

/// Characters of a message among others, and of one alone.
const MESSAGE: usize = 1500;
const ALONE: usize = 16_000;
/// Messages that are shown: the first ones and the last ones.
const FIRST: usize = 4;
const LAST: usize = 8;

async fn read(call: Call) -> Result<Answer, Problem> {
    let mut params = call.params()?;
    let id = needed(&mut params, "id", "the id of a conversation; `conversations` finds them")?;
    let wanted: Option<usize> = params.number("message", "a message, counted from 0")?;
    let from: usize = params.number("from", "a non-negative integer")?.unwrap_or(0);
    params.done()?;
    let json = call.source.conversations().await?.one(&id, false).await?;
    let found: Value = serde_json::from_slice(&json).map_err(|e| Problem::internal(e.to_string()))?;
    let messages = found["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let mut text = String::new();
    for name in ["id", "run_id", "step", "sample_id", "group_id", "reward", "status"] {
        if !found[name].is_null() {
            text.push_str(&format!("{name}: {}\n", cell(&found[name])));
        }
    }
    text.push_str(&format!("messages: {}\n", messages.len()));
    match wanted {
        Some(n) => {
            let message = messages.get(n).ok_or_else(|| {
                Problem::parameter("message", format!("a number below {}, the number of messages", messages.len()))
            })?;
            let whole = said(message);
            let rest: String = whole.chars().skip(from).take(ALONE).collect();
            let next = from + rest.chars().count();
            text.push_str(&format!("\n[{n}] {}\n{rest}\n", role(message)));
            if next < whole.chars().count() {
                text.push_str(&format!("\nThe message goes on: pass message={n} and from={next}.\n"));
            }
        }
        None => {
            for (n, message) in messages.iter().enumerate() {
                let left_out = FIRST..messages.len().saturating_sub(LAST).max(FIRST);
                if n == left_out.start && !left_out.is_empty() {
                    let (first, last) = (left_out.start, left_out.end - 1);
                    text.push_str(&format!("\n[{first} to {last}] left out: pass message=N to read one.\n"));
                }
                if !left_out.contains(&n) {
                    text.push_str(&format!("\n[{n}] {}\n{}\n", role(message), cut(&said(message), MESSAGE)));
                }
            }
        }
    }
    Ok(Answer { text, link: call.page.to(&["conversation", &id]) })
}

fn role(message: &Value) -> &str {
    message["role"].as_str().unwrap_or("?")
}

/// What a message says: its content, and whatever else it has.
fn said(message: &Value) -> String {
    let mut out = String::new();
    for (key, value) in message.as_object().into_iter().flatten() {
        match (key.as_str(), value) {
            ("role", _) | (_, Value::Null) => {}
            ("content", Value::String(text)) => out.push_str(text),
            (_, Value::String(text)) if text.is_empty() => {}
            (key, value) => out.push_str(&format!("\n[{key}] {}", cell(value))),
        }
    }
    out
}
