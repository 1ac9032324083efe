//! The few attributes that answers need, of generations and tool calls: from slime, SGLang and `gen_ai.*`. All values are
//! JSON text; only finite numbers count, and booleans are no numbers.

use arrow::array::cast::AsArray;
use arrow::array::{Array, MapArray, RecordBatch, StringArray};
use arrow::error::ArrowError;
use hashbrown::HashMap;

use super::step::column;

/// What is known of one generation or tool call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpanFacts {
    pub tool: Option<String>,
    pub turn: Option<i64>,
    pub completion_tokens: Option<f64>,
    pub prompt_tokens: Option<f64>,
    pub cached_tokens: Option<f64>,
    pub queue_s: Option<f64>,
    /// Tokens per second.
    pub throughput: Option<f64>,
    /// Prefill and decode fields of the older style, in seconds: bootstrap queue, prefill forward, transfer queue (the tail
    /// of forward), decode forward. What lies inside one of these is not read.
    pub pd: [Option<f64>; 4],
}

const TOOL: &[&str] = &["tool", "tool_name", "gen_ai.tool.name", "name"];
const COMPLETION: &[&str] = &["completion_tokens", "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"];
const PROMPT: &[&str] = &["prompt_tokens", "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"];
const CACHED: &[&str] = &["cached_tokens", "gen_ai.usage.cached_tokens"];
const PD: [&str; 4] = [
    "pd_prefill_bootstrap_queue_duration",
    "pd_prefill_forward_duration",
    "pd_prefill_transfer_queue_duration",
    "pd_decode_forward_duration",
];

/// Longest name of a tool.
const MAX_TOOL: usize = 64;

impl SpanFacts {
    fn take(&mut self, key: &str, value: &str) {
        let number = || value.parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0);
        match key {
            "turn" => self.turn = number().map(|v| v as i64),
            "queue_time" => self.queue_s = number(),
            "decode_throughput" => self.throughput = number().filter(|v| *v > 0.0),
            key if TOOL.contains(&key) => {
                // The first name in the list is the one to believe.
                if self.tool.is_none() || key == TOOL[0] {
                    self.tool = serde_json::from_str::<String>(value)
                        .ok()
                        .map(|t| t.chars().take(MAX_TOOL).collect::<String>())
                        .or(self.tool.take());
                }
            }
            key if COMPLETION.contains(&key) => self.completion_tokens = number(),
            key if PROMPT.contains(&key) => self.prompt_tokens = number(),
            key if CACHED.contains(&key) => self.cached_tokens = number(),
            key => {
                if let Some(i) = PD.iter().position(|k| *k == key) {
                    self.pd[i] = number();
                }
            }
        }
    }
}

/// Reads the rows that `row_of` knows.
pub fn read(
    batch: &RecordBatch,
    facts: &mut HashMap<u32, SpanFacts>,
    row_of: impl Fn([u8; 16], [u8; 8]) -> Option<u32>,
) -> Result<(), ArrowError> {
    let (traces, spans) =
        (column(batch, "trace_id")?.as_fixed_size_binary(), column(batch, "span_id")?.as_fixed_size_binary());
    let maps = [column(batch, "start_attrs")?, column(batch, "end_attrs")?];
    for row in 0..batch.num_rows() {
        let id = (traces.value(row).try_into().unwrap_or_default(), spans.value(row).try_into().unwrap_or_default());
        let Some(at) = row_of(id.0, id.1) else { continue };
        let mut found = SpanFacts::default();
        for map in maps {
            entries(map.as_map(), row, |key, value| found.take(key, value))?;
        }
        if found != SpanFacts::default() {
            facts.insert(at, found);
        }
    }
    Ok(())
}

fn entries(map: &MapArray, row: usize, mut each: impl FnMut(&str, &str)) -> Result<(), ArrowError> {
    let texts: (Option<&StringArray>, Option<&StringArray>) =
        (map.keys().as_string_opt::<i32>(), map.values().as_string_opt::<i32>());
    let (Some(keys), Some(values)) = texts else {
        return Err(ArrowError::SchemaError("attributes must be a map of text to text".to_string()));
    };
    if map.is_null(row) {
        return Ok(());
    }
    let ends = map.value_offsets();
    for at in ends[row] as usize..ends[row + 1] as usize {
        each(keys.value(at), values.value(at));
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
        let mut facts = SpanFacts::default();
        for (key, value) in
            [("completion_tokens", "12"), ("queue_time", "true"), ("decode_throughput", "0"), ("tool", "\"bash\"")]
        {
            facts.take(key, value);
        }
        facts.take("name", "\"other\"");
        assert_eq!(
            facts,
            SpanFacts { completion_tokens: Some(12.0), tool: Some("bash".into()), ..SpanFacts::default() }
        );
        assert_eq!(integers("[1,\"2\",null,3.5]"), [1, 2]);
        assert!(integers("oops").is_empty());
    }
}
