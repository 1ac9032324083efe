//! Tokens of model calls with their log-probabilities, in the attributes and events of spans. OpenTelemetry's conventions have no place for
//! them. These instrumentations send them, if the client asked for them:
//!
//! | instrumentation | where |
//! |---|---|
//! | OpenInference | `output.value`: the whole response of an API like OpenAI's, with `choices[].logprobs` |
//! | OpenLLMetry (JavaScript) | event `logprobs`, attribute `logprobs`: a list of tokens with their log-probabilities |
//!
//! They become rows of `tokens` under the id of the span: a sample may have many calls, and what its trainer sends is more.

use arrow::array::RecordBatch;
use rollscope_model::build::TokensBuilder;
use rollscope_model::names::state;
use rollscope_model::read::{self, Spans};
use serde_json::Value;

use crate::tokens::{About, Tokens};

const RESPONSE: &str = "output.value";
const EVENT: &str = "logprobs";
/// vLLM writes ids in the place of texts if it is told to (`return_tokens_as_token_ids`).
const ID: &str = "token_id:";
/// Answers of one call.
const MAX_CHOICES: usize = 128;

/// The tokens in a batch of spans. `None` if there are none, which is a quick check.
pub fn from_spans(batch: &RecordBatch) -> Option<RecordBatch> {
    let spans = Spans::of(batch).ok()?;
    let has = |bytes: &[u8], name: &str| memchr::memmem::find(bytes, name.as_bytes()).is_some();
    let attrs = [&spans.start_attrs, &spans.end_attrs].map(read::Attrs::key_bytes);
    if !attrs.into_iter().any(|keys| has(keys, RESPONSE)) && !has(spans.events.name.bytes(), EVENT) {
        return None;
    }
    let (mut rows, mut any) = (TokensBuilder::default(), false);
    for row in (0..spans.len()).filter(|row| spans.state.get(*row) == Some(state::CLOSED)) {
        let id = hex::encode(spans.span_id.at(row));
        for (choice, tokens) in of_span(&spans, row).iter().enumerate() {
            let name = if choice == 0 { id.clone() } else { format!("{id}-{choice}") };
            let about = About {
                run_id: spans.run_id.at(row),
                step: spans.step.get(row),
                sample_id: &name,
                split: "train",
                group_id: spans.group_id.get(row),
                source: None,
                logged_ns: spans.end_ns.get(row),
                file: None,
            };
            any |= tokens.push(about, &mut rows).is_ok_and(|count| count > 0);
        }
    }
    any.then(|| rows.finish().ok()).flatten()
}

fn of_span(spans: &Spans, row: usize) -> Vec<Tokens> {
    for attrs in [&spans.end_attrs, &spans.start_attrs] {
        let response = attrs.row(row).find(|(key, json)| *key == RESPONSE && json.contains("logprobs"));
        if let Some(response) = response.and_then(|(_, json)| text_of(json)) {
            return serde_json::from_str(&response).map(|response| of_response(&response)).unwrap_or_default();
        }
    }
    for event in spans.events.of(row).filter(|event| spans.events.name.at(*event) == EVENT) {
        let list = spans.events.attrs.row(event).find(|(key, _)| *key == EVENT).and_then(|(_, json)| text_of(json));
        let list = list.and_then(|text| serde_json::from_str::<Value>(&text).ok());
        if let Some(tokens) = list.and_then(|list| of_list(list.as_array()?)) {
            return vec![tokens];
        }
    }
    Vec::new()
}

/// An attribute that is a text.
fn text_of(json: &str) -> Option<String> {
    serde_json::from_str::<Value>(json).ok()?.as_str().map(str::to_string)
}

/// A response as OpenAI, SGLang and vLLM write it.
fn of_response(response: &Value) -> Vec<Tokens> {
    let prompt_tokens = response["usage"]["prompt_tokens"].as_i64();
    let choices = response["choices"].as_array().into_iter().flatten().take(MAX_CHOICES);
    choices
        .filter_map(|choice| {
            let logprobs = &choice["logprobs"];
            let mut tokens = match logprobs["content"].as_array() {
                Some(list) => of_list(list)?,
                None => of_lists(logprobs["tokens"].as_array()?, logprobs["token_logprobs"].as_array()?)?,
            };
            if tokens.ids.is_none() {
                tokens.ids =
                    ids(&choice["token_ids"]).filter(|ids| Some(ids.len()) == tokens.logprobs.as_ref().map(Vec::len));
            }
            tokens.prompt_tokens = prompt_tokens;
            Some(tokens)
        })
        .collect()
}

fn ids(list: &Value) -> Option<Vec<i32>> {
    list.as_array()?.iter().map(|id| i32::try_from(id.as_i64()?).ok()).collect()
}

/// Of a chat: an object per token.
fn of_list(list: &[Value]) -> Option<Tokens> {
    made(list.iter().map(|token| (&token["token"], &token["logprob"])))
}

/// Of a completion: two lists.
fn of_lists(tokens: &[Value], logprobs: &[Value]) -> Option<Tokens> {
    if tokens.len() == logprobs.len() { made(tokens.iter().zip(logprobs)) } else { None }
}

fn made<'a>(tokens: impl Iterator<Item = (&'a Value, &'a Value)>) -> Option<Tokens> {
    let (mut texts, mut logprobs) = (Vec::new(), Vec::new());
    for (text, logprob) in tokens {
        texts.push(text.as_str()?.to_string());
        logprobs.push(logprob.as_f64().map_or(f32::NAN, |value| value as f32));
    }
    let ids: Option<Vec<i32>> = texts.iter().map(|text| text.strip_prefix(ID)?.parse().ok()).collect();
    let ids = ids.filter(|ids| !ids.is_empty());
    let texts = if ids.is_some() { None } else { Some(texts) };
    (!logprobs.is_empty()).then(|| Tokens { ids, texts, logprobs: Some(logprobs), ..Tokens::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn responses_of_several_servers() {
        let chat = json!({ "usage": { "prompt_tokens": 9 }, "choices": [
            { "logprobs": { "content": [{ "token": "Hi", "logprob": -0.5, "top_logprobs": [] }, { "token": "!", "logprob": null }] } },
            { "logprobs": null },
            { "token_ids": [7], "logprobs": { "content": [{ "token": "x", "logprob": -1 }] } },
            { "logprobs": { "content": [{ "token": "token_id:42", "logprob": -1 }] } },
        ]});
        let found = of_response(&chat);
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].prompt_tokens, found[0].texts.clone()), (Some(9), Some(vec!["Hi".into(), "!".into()])));
        assert!(found[0].logprobs.as_ref().is_some_and(|list| list[0] == -0.5 && list[1].is_nan()));
        assert_eq!((found[1].ids.clone(), found[2].ids.clone()), (Some(vec![7]), Some(vec![42])));
        assert_eq!((found[1].texts.is_some(), found[2].texts.is_some()), (true, false));
        let completion =
            json!({ "choices": [{ "logprobs": { "tokens": ["a", "b"], "token_logprobs": [null, -0.25] } }] });
        assert_eq!(of_response(&completion)[0].texts.as_ref().map(Vec::len), Some(2));
        for bad in [json!(null), json!({ "choices": 5 }), json!({ "choices": [{ "logprobs": { "content": [5] } }] })] {
            assert!(of_response(&bad).is_empty(), "{bad}");
        }
    }
}
