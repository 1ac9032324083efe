//! The few attributes that answers need, of generations, tool calls and samples: from slime, SGLang and `gen_ai.*`. All values are
//! JSON text; only finite numbers count, and booleans are not numbers.

use std::sync::{Arc, LazyLock};

use arrow::array::{
    ArrayRef, FixedSizeBinaryBuilder, Float64Builder, Int64Builder, RecordBatch, StringDictionaryBuilder,
};
use arrow::datatypes::Int32Type;
use arrow::error::ArrowError;
use hashbrown::HashMap;
use rollscope_model::read::{Attrs, Floats, Ids, Ints, column};
use rollscope_model::{SpanId, TraceId, names, pd};
use rollscope_spans::{Forest, NONE, Texts};

/// What is known of one generation or tool call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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
    /// What each of [`NUMBERS`] is.
    fn numbers(&mut self) -> [&mut Option<f64>; NUMBERS.len()] {
        let [bootstrap, forward, transfer, decode] = &mut self.pd;
        [
            &mut self.completion_tokens,
            &mut self.prompt_tokens,
            &mut self.cached_tokens,
            &mut self.queue_s,
            &mut self.prefill_s,
            &mut self.decode_s,
            &mut self.throughput,
            bootstrap,
            forward,
            transfer,
            decode,
        ]
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

/// What attributes say, before texts have numbers.
#[derive(Default)]
struct Said {
    tool: Option<String>,
    source: Option<String>,
    facts: SpanFacts,
}

impl Said {
    fn by<'a>(attributes: impl Iterator<Item = (&'a str, &'a str)>) -> Said {
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
        [
            facts.completion_tokens,
            facts.prompt_tokens,
            facts.cached_tokens,
            facts.queue_s,
            facts.prefill_s,
            facts.decode_s,
        ] = numbers.map(|value| value.and_then(number));
        Said { tool: tool.and_then(text), source: source.and_then(text), facts }
    }

    fn is_nothing(&self) -> bool {
        self.tool.is_none() && self.source.is_none() && self.facts == SpanFacts::default()
    }
}

/// The columns of [`facts_of`] that are numbers.
const NUMBERS: [&str; 11] = [
    "completion_tokens",
    "prompt_tokens",
    "cached_tokens",
    "queue_s",
    "prefill_s",
    "decode_s",
    "throughput",
    "bootstrap_s",
    "forward_s",
    "transfer_s",
    "decode_forward_s",
];

/// What the attributes of spans say, where they say anything: a tenth of the attributes themselves, or less. A column in which nobody says anything
/// is not there. Rows need `trace_id`, `span_id`, `start_attrs` and `end_attrs`.
pub fn facts_of(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let (traces, spans): (Ids<16>, Ids<8>) = (column(batch, "trace_id")?, column(batch, "span_id")?);
    let (start, end): (Attrs, Attrs) = (column(batch, "start_attrs")?, column(batch, "end_attrs")?);
    let (mut trace_ids, mut span_ids) = (FixedSizeBinaryBuilder::new(16), FixedSizeBinaryBuilder::new(8));
    let (mut tools, mut sources) =
        (StringDictionaryBuilder::<Int32Type>::new(), StringDictionaryBuilder::<Int32Type>::new());
    let mut turns = Int64Builder::new();
    let mut numbers: [Float64Builder; NUMBERS.len()] = std::array::from_fn(|_| Float64Builder::new());
    for row in 0..batch.num_rows() {
        let mut said = Said::by(start.row(row).chain(end.row(row)));
        if said.is_nothing() {
            continue;
        }
        trace_ids.append_value(traces.at(row))?;
        span_ids.append_value(spans.at(row))?;
        tools.append_option(said.tool);
        sources.append_option(said.source);
        turns.append_option(said.facts.turn);
        for (column, number) in numbers.iter_mut().zip(said.facts.numbers()) {
            column.append_option(*number);
        }
    }
    let columns: [(&str, ArrayRef); 5] = [
        ("trace_id", Arc::new(trace_ids.finish())),
        ("span_id", Arc::new(span_ids.finish())),
        ("tool", Arc::new(tools.finish())),
        ("source", Arc::new(sources.finish())),
        ("turn", Arc::new(turns.finish())),
    ];
    let numbers = numbers.map(|mut column| Arc::new(column.finish()) as ArrayRef);
    let all = columns.into_iter().chain(NUMBERS.into_iter().zip(numbers));
    let said = all.filter(|(name, column)| name.ends_with("_id") || column.null_count() < column.len());
    RecordBatch::try_from_iter_with_nullable(said.map(|(name, column)| (name, column, true)))
}

/// Facts column by column, because most spans say few of them, and all the same.
#[derive(Default)]
struct FactColumns {
    tools: Vec<u32>,
    sources: Vec<u32>,
    /// Those that are known up to a place: none is NaN.
    turns: Vec<f64>,
    numbers: [Vec<f64>; NUMBERS.len()],
}

impl FactColumns {
    fn len(&self) -> usize {
        self.tools.len()
    }

    fn push(&mut self, mut facts: SpanFacts) {
        let at = self.len();
        let put = |column: &mut Vec<f64>, value: Option<f64>| {
            if let Some(value) = value {
                column.resize(at, f64::NAN);
                column.push(value);
            }
        };
        put(&mut self.turns, facts.turn.map(|turn| turn as f64));
        self.numbers.iter_mut().zip(facts.numbers()).for_each(|(column, value)| put(column, *value));
        self.tools.push(facts.tool.unwrap_or(NONE));
        self.sources.push(facts.source.unwrap_or(NONE));
    }

    /// Everything that a batch of [`facts_of`] says.
    fn extend(&mut self, batch: &RecordBatch, texts: &mut Texts) -> Result<(), ArrowError> {
        let (at, of) = (self.len(), std::slice::from_ref(batch));
        let is_there = |name: &str| batch.column_by_name(name).is_some();
        for (name, column) in [("tool", &mut self.tools), ("source", &mut self.sources)] {
            match is_there(name) {
                true => column.extend(texts.column(of, name)?),
                false => column.resize(at + batch.num_rows(), NONE),
            }
        }
        if is_there("turn") {
            let turns: Ints = column(batch, "turn")?;
            self.turns.resize(at, f64::NAN);
            self.turns.extend(turns.iter().map(|turn| turn.map_or(f64::NAN, |turn| turn as f64)));
        }
        for (name, values) in NUMBERS.iter().zip(&mut self.numbers).filter(|(name, _)| is_there(name)) {
            let numbers: Floats = column(batch, name)?;
            values.resize(at, f64::NAN);
            values.extend(numbers.iter().map(|number| number.unwrap_or(f64::NAN)));
        }
        Ok(())
    }

    fn get(&self, at: usize) -> Option<SpanFacts> {
        let text = |column: &[u32]| column.get(at).copied().filter(|number| *number != NONE);
        let known = |column: &[f64]| column.get(at).copied().filter(|number| !number.is_nan());
        let mut facts = SpanFacts::default();
        for (number, column) in facts.numbers().into_iter().zip(&self.numbers) {
            *number = known(column);
        }
        let turn = known(&self.turns).map(|turn| turn as i64);
        (at < self.len()).then_some(SpanFacts { tool: text(&self.tools), source: text(&self.sources), turn, ..facts })
    }
}

/// What is known of spans, where anything is.
#[derive(Default)]
pub struct Facts {
    columns: FactColumns,
    /// By row: the place in the columns, or [`NONE`].
    places: Vec<u32>,
}

impl Facts {
    pub fn get(&self, row: u32) -> Option<SpanFacts> {
        // `NONE` is beyond any list.
        self.columns.get(*self.places.get(row as usize)? as usize)
    }

    pub fn insert(&mut self, row: u32, facts: SpanFacts) {
        self.places[row as usize] = self.columns.len() as u32;
        self.columns.push(facts);
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
    columns: FactColumns,
}

impl FactsById {
    /// Of batches that [`facts_of`] has made. Each is let go when it is read.
    pub fn read(batches: Vec<RecordBatch>, texts: &mut Texts) -> Result<FactsById, ArrowError> {
        let mut out = FactsById::default();
        out.ids.reserve_exact(batches.iter().map(RecordBatch::num_rows).sum());
        for batch in batches {
            let (traces, spans): (Ids<16>, Ids<8>) = (column(&batch, "trace_id")?, column(&batch, "span_id")?);
            out.ids.extend((0..batch.num_rows()).map(|row| (traces.at(row), spans.at(row))));
            out.columns.extend(&batch, texts)?;
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
        Facts { columns: self.columns, places }
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
    fn columns_keep_facts() {
        let some = SpanFacts { tool: Some(3), turn: Some(2), queue_s: Some(0.5), ..SpanFacts::default() };
        let other = SpanFacts {
            source: Some(0),
            pd: [None, Some(1.0), None, Some(2.0)],
            queue_s: Some(1.5),
            ..SpanFacts::default()
        };
        let all = [SpanFacts::default(), some, SpanFacts::default(), other, some];
        let mut columns = FactColumns::default();
        all.into_iter().for_each(|facts| columns.push(facts));
        assert_eq!((0..5).map(|at| columns.get(at).unwrap()).collect::<Vec<_>>(), all);
        assert_eq!(columns.get(5), None);
    }

    #[test]
    fn only_finite_numbers_count() {
        let said = Said::by(
            [
                ("completion_tokens", "12"),
                ("queue_time", "true"),
                ("decode_throughput", "0"),
                ("name", "\"other\""),
                ("tool", "\"bash\""),
            ]
            .into_iter(),
        );
        assert_eq!((said.tool.as_deref(), said.source), (Some("bash"), None));
        assert_eq!(said.facts, SpanFacts { completion_tokens: Some(12.0), ..SpanFacts::default() });
        let both = [("prompt_tokens", "5"), ("gen_ai.usage.input_tokens", "6"), ("llm.token_count.prompt", "7")];
        assert_eq!(Said::by(both.into_iter()).facts.prompt_tokens, Some(6.0), "the standard's name is believed");
        assert_eq!(integers("[1,\"2\",null,3.5]"), [1, 2]);
        assert!(integers("oops").is_empty());
    }
}
