//! The few attributes that answers need, of generations, tool calls and samples: from slime, SGLang and `gen_ai.*`. All values are
//! JSON text; only finite numbers count, and booleans are not numbers.

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use hashbrown::HashMap;
use rollscope_model::read::{Attrs, Ids, column};
use rollscope_model::{names, pd};

/// What is known of one generation or tool call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpanFacts {
    pub tool: Option<String>,
    /// Where the prompt comes from.
    pub source: Option<String>,
    pub turn: Option<i64>,
    pub completion_tokens: Option<f64>,
    pub prompt_tokens: Option<f64>,
    pub cached_tokens: Option<f64>,
    pub queue_s: Option<f64>,
    pub prefill_s: Option<f64>,
    pub decode_s: Option<f64>,
    /// Tokens per second.
    pub throughput: Option<f64>,
    /// Prefill and decode fields of the older style, in seconds: bootstrap queue, prefill forward, transfer queue (the tail
    /// of forward), decode forward. What lies inside one of these is not read.
    pub pd: [Option<f64>; 4],
}

/// The fields of [`SpanFacts::pd`].
const PD: [usize; 4] = [pd::BOOTSTRAP_QUEUE, pd::PREFILL_FORWARD, pd::TRANSFER_QUEUE, pd::DECODE_FORWARD];

/// Longest name of a tool or a source.
const MAX_NAME: usize = 64;

/// The value under the first of several names that mean the same: an earlier one is believed.
struct FirstOf<'a> {
    names: &'static [&'static str],
    found: Option<(usize, &'a str)>,
}

impl<'a> FirstOf<'a> {
    fn new(names: &'static [&'static str]) -> Self {
        FirstOf { names, found: None }
    }

    fn take(&mut self, key: &str, value: &'a str) {
        if let Some(place) = self.names.iter().position(|name| *name == key)
            && self.found.is_none_or(|(known, _)| place < known)
        {
            self.found = Some((place, value));
        }
    }

    fn text(&self) -> Option<String> {
        let text: String = self.found.and_then(|(_, json)| serde_json::from_str(json).ok())?;
        Some(text.chars().take(MAX_NAME).collect())
    }

    fn number(&self) -> Option<f64> {
        self.found.and_then(|(_, value)| number(value))
    }
}

fn number(value: &str) -> Option<f64> {
    value.parse().ok().filter(|v: &f64| v.is_finite() && *v >= 0.0)
}

impl SpanFacts {
    fn from_attributes<'a>(attributes: impl Iterator<Item = (&'a str, &'a str)>) -> SpanFacts {
        let mut facts = SpanFacts::default();
        let [mut tool, mut source, mut completion, mut prompt, mut cached, mut queue, mut prefill, mut decode] = [
            names::TOOL_NAME,
            names::SOURCE,
            names::COMPLETION_TOKENS,
            names::PROMPT_TOKENS,
            names::CACHED_TOKENS,
            names::QUEUE_TIME,
            names::PREFILL_TIME,
            names::DECODE_TIME,
        ]
        .map(FirstOf::new);
        for (key, value) in attributes {
            match key {
                "turn" => facts.turn = number(value).map(|v| v as i64),
                "decode_throughput" => facts.throughput = number(value).filter(|v| *v > 0.0),
                key if key.starts_with(pd::KEY_PREFIX) => {
                    if let Some(i) = PD.iter().position(|segment| pd::SEGMENTS[*segment].key == key) {
                        facts.pd[i] = number(value);
                    }
                }
                key => {
                    let lists = [&mut completion, &mut prompt, &mut cached, &mut queue, &mut prefill, &mut decode];
                    for list in lists.into_iter().chain([&mut tool, &mut source]) {
                        list.take(key, value);
                    }
                }
            }
        }
        (facts.tool, facts.source) = (tool.text(), source.text());
        facts.completion_tokens = completion.number();
        facts.prompt_tokens = prompt.number();
        facts.cached_tokens = cached.number();
        facts.queue_s = queue.number();
        facts.prefill_s = prefill.number();
        facts.decode_s = decode.number();
        facts
    }

    /// What another span tells of the same generation, where this one tells nothing.
    pub fn fill_from(&mut self, other: &SpanFacts) {
        self.completion_tokens = self.completion_tokens.or(other.completion_tokens);
        self.prompt_tokens = self.prompt_tokens.or(other.prompt_tokens);
        self.cached_tokens = self.cached_tokens.or(other.cached_tokens);
        self.queue_s = self.queue_s.or(other.queue_s);
        self.prefill_s = self.prefill_s.or(other.prefill_s);
        self.decode_s = self.decode_s.or(other.decode_s);
    }
}

/// Reads the rows that `row_of` knows.
pub fn read(
    batch: &RecordBatch,
    facts: &mut HashMap<u32, SpanFacts>,
    row_of: impl Fn([u8; 16], [u8; 8]) -> Option<u32>,
) -> Result<(), ArrowError> {
    let (traces, spans): (Ids<16>, Ids<8>) = (column(batch, "trace_id")?, column(batch, "span_id")?);
    let (start, end): (Attrs, Attrs) = (column(batch, "start_attrs")?, column(batch, "end_attrs")?);
    for row in 0..batch.num_rows() {
        let Some(at) = row_of(traces.at(row), spans.at(row)) else { continue };
        let found = SpanFacts::from_attributes(start.row(row).chain(end.row(row)));
        if found != SpanFacts::default() {
            facts.insert(at, found);
        }
    }
    Ok(())
}

/// The integers of a JSON array, numbers or texts (slime writes both); at most a few thousand.
pub fn integers(text: &str) -> Vec<i64> {
    let Ok(list) = serde_json::from_str::<Vec<serde_json::Value>>(text) else { return Vec::new() };
    let number = |v: &serde_json::Value| v.as_i64().or_else(|| v.as_str()?.parse().ok());
    list.iter().take(4096).filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_finite_numbers_count() {
        let facts = SpanFacts::from_attributes(
            [
                ("completion_tokens", "12"),
                ("queue_time", "true"),
                ("decode_throughput", "0"),
                ("name", "\"other\""),
                ("tool", "\"bash\""),
            ]
            .into_iter(),
        );
        assert_eq!(
            facts,
            SpanFacts { completion_tokens: Some(12.0), tool: Some("bash".into()), ..SpanFacts::default() }
        );
        let both = [("prompt_tokens", "5"), ("gen_ai.usage.input_tokens", "6"), ("llm.token_count.prompt", "7")];
        assert_eq!(
            SpanFacts::from_attributes(both.into_iter()).prompt_tokens,
            Some(6.0),
            "the standard's name is believed"
        );
        assert_eq!(integers("[1,\"2\",null,3.5]"), [1, 2]);
        assert!(integers("oops").is_empty());
    }
}
