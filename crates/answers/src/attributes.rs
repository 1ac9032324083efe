//! The few attributes that answers need, of generations, tool calls and samples: from slime, SGLang and `gen_ai.*`. All values are
//! JSON text; only finite numbers count, and booleans are not numbers.

use std::sync::LazyLock;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use hashbrown::HashMap;
use rollscope_model::read::{Attrs, Ids, column};
use rollscope_model::{SpanId, TraceId, names, pd};
use rollscope_spans::{Forest, NONE, Texts};

/// What is known of one generation or tool call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpanFacts {
    /// A text's number. So is the source.
    pub tool: Option<u32>,
    /// Where the prompt comes from.
    pub source: Option<u32>,
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

/// What the value of an attribute means.
#[derive(Clone, Copy)]
enum Meaning {
    Turn,
    Throughput,
    Pd(usize),
    /// One of several names that mean the same: its place in [`LISTS`], and among those names. An earlier one is believed.
    Named(usize, usize),
}

/// Names that mean the same.
const LISTS: [&[&str]; 8] = [
    names::TOOL_NAME,
    names::SOURCE,
    names::COMPLETION_TOKENS,
    names::PROMPT_TOKENS,
    names::CACHED_TOKENS,
    names::QUEUE_TIME,
    names::PREFILL_TIME,
    names::DECODE_TIME,
];

static MEANINGS: LazyLock<HashMap<&str, Meaning>> = LazyLock::new(|| {
    let pd = PD.iter().enumerate().map(|(i, segment)| (pd::SEGMENTS[*segment].key, Meaning::Pd(i)));
    let named = LISTS.iter().enumerate().flat_map(|(list, names)| {
        names.iter().enumerate().map(move |(place, name)| (*name, Meaning::Named(list, place)))
    });
    let others = [("turn", Meaning::Turn), ("decode_throughput", Meaning::Throughput)];
    others.into_iter().chain(pd).chain(named).collect()
});

fn text(json: &str) -> Option<String> {
    let text: String = serde_json::from_str(json).ok()?;
    Some(text.chars().take(MAX_NAME).collect())
}

fn number(value: &str) -> Option<f64> {
    value.parse().ok().filter(|v: &f64| v.is_finite() && *v >= 0.0)
}

impl SpanFacts {
    fn from_attributes<'a>(attributes: impl Iterator<Item = (&'a str, &'a str)>, texts: &mut Texts) -> SpanFacts {
        let mut facts = SpanFacts::default();
        let mut found: [Option<(usize, &str)>; LISTS.len()] = [None; LISTS.len()];
        for (key, value) in attributes {
            match MEANINGS.get(key) {
                None => {}
                Some(Meaning::Turn) => facts.turn = number(value).map(|v| v as i64),
                Some(Meaning::Throughput) => facts.throughput = number(value).filter(|v| *v > 0.0),
                Some(Meaning::Pd(i)) => facts.pd[*i] = number(value),
                Some(Meaning::Named(list, place)) => {
                    let known = &mut found[*list];
                    if known.is_none_or(|(before, _)| *place < before) {
                        *known = Some((*place, value));
                    }
                }
            }
        }
        let [tool, source, numbers @ ..] = found.map(|found| found.map(|(_, value)| value));
        let mut number_of = |json: &str| text(json).map(|text| texts.number(&text));
        (facts.tool, facts.source) = (tool.and_then(&mut number_of), source.and_then(&mut number_of));
        [
            facts.completion_tokens,
            facts.prompt_tokens,
            facts.cached_tokens,
            facts.queue_s,
            facts.prefill_s,
            facts.decode_s,
        ] = numbers.map(|value| value.and_then(number));
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

/// What is known of spans, where anything is.
#[derive(Default)]
pub struct Facts {
    list: Vec<SpanFacts>,
    /// By row: the place in the list, or [`NONE`].
    places: Vec<u32>,
}

impl Facts {
    pub fn get(&self, row: u32) -> Option<&SpanFacts> {
        // `NONE` is beyond any list.
        self.list.get(*self.places.get(row as usize)? as usize)
    }

    pub fn insert(&mut self, row: u32, facts: SpanFacts) {
        self.places[row as usize] = self.list.len() as u32;
        self.list.push(facts);
    }

    /// Every row of which anything is known, in order.
    pub fn rows(&self) -> impl Iterator<Item = u32> {
        self.places.iter().enumerate().filter(|(_, place)| **place != NONE).map(|(row, _)| row as u32)
    }
}

/// What is known of spans by their ids.
#[derive(Default)]
pub struct FactsById {
    ids: Vec<(TraceId, SpanId)>,
    facts: Vec<SpanFacts>,
}

impl FactsById {
    /// Attributes are most of what is read of a step, so each batch is let go when it is read.
    pub fn read(batches: Vec<RecordBatch>, texts: &mut Texts) -> Result<FactsById, ArrowError> {
        let mut out = FactsById::default();
        for batch in batches {
            let (traces, spans): (Ids<16>, Ids<8>) = (column(&batch, "trace_id")?, column(&batch, "span_id")?);
            let (start, end): (Attrs, Attrs) = (column(&batch, "start_attrs")?, column(&batch, "end_attrs")?);
            for row in 0..batch.num_rows() {
                let found = SpanFacts::from_attributes(start.row(row).chain(end.row(row)), texts);
                if found != SpanFacts::default() {
                    out.ids.push((traces.at(row), spans.at(row)));
                    out.facts.push(found);
                }
            }
        }
        Ok(out)
    }

    /// The row of each.
    pub fn find(&self, forest: &Forest) -> Vec<Option<u32>> {
        self.ids.iter().map(|(trace, span)| forest.find(trace, span)).collect()
    }

    /// By row, of those that are `wanted`. `rows` are as [`FactsById::find`] found them, of so many.
    pub fn by_row(self, rows: Vec<Option<u32>>, of: usize, wanted: impl Fn(usize) -> bool) -> Facts {
        let mut places = vec![NONE; of];
        for (place, row) in rows.into_iter().enumerate() {
            if let Some(row) = row.filter(|row| wanted(*row as usize)) {
                places[row as usize] = place as u32;
            }
        }
        Facts { list: self.facts, places }
    }
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
        let mut texts = Texts::default();
        let mut read = |attributes: &[(&'static str, &'static str)]| {
            SpanFacts::from_attributes(attributes.iter().copied(), &mut texts)
        };
        let facts = read(&[
            ("completion_tokens", "12"),
            ("queue_time", "true"),
            ("decode_throughput", "0"),
            ("name", "\"other\""),
            ("tool", "\"bash\""),
        ]);
        let both = [("prompt_tokens", "5"), ("gen_ai.usage.input_tokens", "6"), ("llm.token_count.prompt", "7")];
        assert_eq!(read(&both).prompt_tokens, Some(6.0), "the standard's name is believed");
        let tool = texts.find("bash");
        assert!(tool.is_some());
        assert_eq!(facts, SpanFacts { completion_tokens: Some(12.0), tool, ..SpanFacts::default() });
        assert_eq!(integers("[1,\"2\",null,3.5]"), [1, 2]);
        assert!(integers("oops").is_empty());
    }
}
