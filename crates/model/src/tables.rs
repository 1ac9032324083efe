//! Every table, declared once. Docs, TypeScript types and Python stubs are generated from here.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};

/// Rises when a column changes meaning. Written into every file; older files are upgraded on read.
pub const FORMAT_VERSION: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Table {
    Runs = 0,
    Spans = 1,
    Samples = 2,
    Conversations = 3,
    Metrics = 4,
    Series = 5,
    Tokens = 6,
}

/// Which of two rows with the same identity stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The first row is kept: a repeated row has nothing new.
    First,
    /// The first stays, except that a closed span replaces an open one, and a newer report of an open span an older.
    FirstClosed,
    /// The newest replaces the others.
    Last,
}

impl Table {
    pub const COUNT: usize = 7;
    pub const ALL: [Table; Table::COUNT] =
        [Table::Runs, Table::Spans, Table::Samples, Table::Conversations, Table::Metrics, Table::Series, Table::Tokens];

    pub fn name(self) -> &'static str {
        match self {
            Table::Runs => "runs",
            Table::Spans => "spans",
            Table::Samples => "samples",
            Table::Conversations => "conversations",
            Table::Metrics => "metrics",
            Table::Series => "series",
            Table::Tokens => "tokens",
        }
    }

    pub fn from_name(name: &str) -> Option<Table> {
        Self::ALL.into_iter().find(|t| t.name() == name)
    }

    pub fn from_u8(n: u8) -> Option<Table> {
        Self::ALL.into_iter().find(|t| *t as u8 == n)
    }

    pub fn schema(self) -> SchemaRef {
        static SCHEMAS: LazyLock<[SchemaRef; Table::COUNT]> = LazyLock::new(|| Table::ALL.map(declare));
        SCHEMAS[self as usize].clone()
    }

    /// The columns that identify a row. The run is among them: the same file imported under another name is another run.
    pub fn identity(self) -> &'static [&'static str] {
        match self {
            Table::Runs => &["run_id"],
            Table::Spans => &["run_id", "trace_id", "span_id"],
            Table::Samples => &["run_id", "step", "sample_id", "split"],
            // What an engine and what a trainer sends of a sample replaces itself only. Reading joins them.
            Table::Tokens => &["run_id", "step", "sample_id", "split", "half"],
            Table::Conversations => &["id"],
            Table::Metrics => &["run_id", "step", "name", "time_ns"],
            // With the value: a sender that reports two values for one time has both kept; PromQL takes the later.
            Table::Series => &["run_id", "target", "name", "labels", "time_ns", "value"],
        }
    }

    pub fn keep(self) -> Keep {
        match self {
            Table::Spans => Keep::FirstClosed,
            Table::Series => Keep::First,
            _ => Keep::Last,
        }
    }

    /// The column with the time of a row: for retention, pruning and sorting.
    pub fn time_column(self) -> &'static str {
        match self {
            Table::Runs => "started_ns",
            Table::Spans | Table::Samples => "start_ns",
            Table::Conversations | Table::Tokens => "logged_ns",
            Table::Metrics | Table::Series => "time_ns",
        }
    }

    /// Rows that share this column are kept together in a segment, ordered by time within; groups are ordered by their
    /// first time. Keeps a trace in one place without losing the order of time.
    pub fn cluster_column(self) -> Option<&'static str> {
        match self {
            Table::Spans => Some("trace_id"),
            Table::Metrics => Some("name"),
            _ => None,
        }
    }

    /// Rows of a segment are sorted by these, then by time, instead of by cluster: samples of a series are next to each other.
    pub fn sort_columns(self) -> &'static [&'static str] {
        match self {
            Table::Series => &["name", "labels", "target"],
            _ => &[],
        }
    }

    /// Looked up by exact value: gets a bloom filter in every segment.
    pub fn bloom_columns(self) -> &'static [&'static str] {
        match self {
            Table::Spans => &["trace_id"],
            Table::Samples | Table::Tokens => &["sample_id"],
            Table::Conversations => &["id"],
            _ => &[],
        }
    }
}

/// Repeated text: a dictionary in memory and on disk.
pub fn dict() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

pub fn attrs_type() -> DataType {
    let entry =
        Fields::from(vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Utf8, false)]);
    DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entry), false)), false)
}

pub fn event_fields() -> Fields {
    Fields::from(vec![
        Field::new("time_ns", DataType::Int64, false),
        Field::new("name", DataType::Utf8, false),
        Field::new("attrs", attrs_type(), false),
        Field::new("dropped_attrs", DataType::UInt32, false),
    ])
}

pub fn link_fields() -> Fields {
    Fields::from(vec![
        Field::new("trace_id", DataType::FixedSizeBinary(16), false),
        Field::new("span_id", DataType::FixedSizeBinary(8), false),
        Field::new("trace_state", DataType::Utf8, true),
        Field::new("attrs", attrs_type(), false),
        Field::new("flags", DataType::UInt32, false),
        Field::new("dropped_attrs", DataType::UInt32, false),
    ])
}

/// Consecutive tokens that were produced together.
pub fn part_fields() -> Fields {
    Fields::from(vec![
        Field::new("start", DataType::Int32, false),
        Field::new("turn", DataType::Int32, true),
        Field::new("engine", DataType::Utf8, true),
        Field::new("weight_version", DataType::Utf8, true),
        Field::new("differs_at", DataType::Int32, true),
    ])
}

pub fn list_of(fields: Fields) -> DataType {
    list(DataType::Struct(fields))
}

pub fn list(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("item", item, false)))
}

/// One column: name, type, may it be null, what it means. The meaning goes into the docs and the SQL page.
type Column = (&'static str, DataType, bool, &'static str);

fn declare(table: Table) -> SchemaRef {
    let fields: Vec<Field> = columns(table)
        .into_iter()
        .map(|(name, ty, nullable, doc)| {
            Field::new(name, ty, nullable).with_metadata([("doc".to_string(), doc.to_string())].into())
        })
        .collect();
    Arc::new(Schema::new(fields))
}

/// In `tokens.half`: what a trainer sent of a sample on its own.
pub const TRAINER_HALF: &str = "trainer";
const TOKENS_HALF: &str = "in files only: `trainer` for what a trainer sent of a sample on its own. The other row of the sample has the rest; SQL and the API join them";

fn columns(table: Table) -> Vec<Column> {
    use DataType::{Boolean, FixedSizeBinary, Float32, Float64, Int32, Int64, UInt32, Utf8};
    match table {
        Table::Runs => vec![
            ("run_id", dict(), false, "id of the run; every other table refers to it"),
            ("project", dict(), true, "project that the run belongs to"),
            ("name", Utf8, true, "readable name"),
            ("framework", dict(), true, "slime, verl, roll, trl, sglang, opentelemetry, ..."),
            ("config", Utf8, true, "JSON object, as passed to init"),
            ("tags", Utf8, true, "JSON array of strings"),
            ("started_ns", Int64, false, "time of the first data"),
            ("ended_ns", Int64, true, "null while the run is running"),
            ("status", dict(), true, "running, finished, failed"),
            ("updated_ns", Int64, false, "when this row was written; the newest row counts"),
        ],
        Table::Spans => vec![
            ("run_id", dict(), false, "the run"),
            ("step", Int64, true, "training step"),
            ("trace_id", FixedSizeBinary(16), false, "W3C trace id"),
            ("span_id", FixedSizeBinary(8), false, "W3C span id"),
            ("parent_span_id", FixedSizeBinary(8), true, "null at the root"),
            ("name", dict(), false, "name of the work"),
            ("kind", dict(), false, "unspecified, internal, server, client, producer, consumer"),
            ("service", dict(), false, "service.name of the sender"),
            ("phase", dict(), true, "rollout, reward, train, weight_sync, tool, ... if the sender sets it"),
            ("thread", dict(), true, "label of the thread or worker"),
            ("host", dict(), true, "host of the thread"),
            ("pid", Int64, true, "process id of the thread"),
            ("tp_rank", Int32, true, "tensor-parallel rank"),
            ("dp_rank", Int32, true, "data-parallel rank"),
            ("pp_rank", Int32, true, "pipeline-parallel rank"),
            ("start_ns", Int64, false, "start, nanoseconds since the epoch"),
            ("end_ns", Int64, true, "end; null while the span is open"),
            ("state", dict(), false, "closed, open, instant, orphan_end"),
            ("status", dict(), false, "unset, ok, error"),
            ("status_message", dict(), true, "reason for the status, if the sender sets it"),
            ("sample_id", dict(), true, "rollout sample"),
            ("group_id", dict(), true, "group of samples that share a prompt"),
            ("attempt", Int32, true, "0 for the first attempt"),
            ("request_id", dict(), true, "request id of the serving engine (SGLang's rid)"),
            (
                "bootstrap_room",
                dict(),
                true,
                "connects the prefill and decode sides of a disaggregated request; a hexadecimal number",
            ),
            (
                "start_attrs",
                attrs_type(),
                false,
                "attributes known to be set at the start; use attr(start_attrs, 'key')",
            ),
            ("end_attrs", attrs_type(), false, "all other attributes; use attr(end_attrs, 'key')"),
            ("events", list_of(event_fields()), false, "span events"),
            ("links", list_of(link_fields()), false, "links to other spans"),
            ("resource", dict(), false, "JSON object of resource attributes; attr(resource, 'key')"),
            ("scope", dict(), false, "JSON object: name, version, attributes and schema of the instrumentation scope"),
            ("trace_state", dict(), true, "W3C tracestate"),
            ("flags", UInt32, false, "OTLP span flags"),
            ("dropped_attrs", UInt32, false, "attributes that the sender dropped"),
            ("dropped_events", UInt32, false, "events that the sender dropped"),
            ("dropped_links", UInt32, false, "links that the sender dropped"),
            ("original_trace_id", Utf8, true, "the id as sent, if it was not a W3C id"),
            ("original_span_id", Utf8, true, "the id as sent, if it was not a W3C id"),
            ("original_parent_span_id", Utf8, true, "the id as sent, if it was not a W3C id"),
        ],
        Table::Samples => vec![
            ("run_id", dict(), false, "the run"),
            ("step", Int64, true, "training step"),
            ("sample_id", dict(), false, "unique within the step"),
            ("split", dict(), false, "train or eval"),
            ("group_id", dict(), true, "group of samples that share a prompt"),
            ("trace_id", FixedSizeBinary(16), true, "trace of its spans"),
            ("attempt", Int32, true, "the last attempt"),
            ("status", dict(), true, "pending, completed, truncated, aborted, failed"),
            ("reward", Float64, true, "the reward, if it is a number"),
            ("reward_json", Utf8, true, "the reward as sent, if it is not a plain number"),
            ("label", Utf8, true, "the expected answer, as JSON text"),
            ("source", dict(), true, "data set or task that the prompt came from"),
            ("start_ns", Int64, true, "start of its first span"),
            ("end_ns", Int64, true, "end of its last span"),
            ("prompt_tokens", Int64, true, "tokens in the prompt"),
            ("response_tokens", Int64, true, "tokens that the model produced"),
            ("total_tokens", Int64, true, "all tokens"),
            ("response_length", Int64, true, "slime's response_length"),
            ("turns", Int32, true, "generations in this sample"),
            ("tool_calls", Int32, true, "tool calls in this sample"),
            ("weight_versions", Utf8, true, "JSON array: versions of the weights that produced it"),
            ("cached_tokens", Int64, true, "prompt tokens found in the prefix cache"),
            ("cache_total_tokens", Int64, true, "prompt tokens that could have been cached"),
            ("spec_accepted", Int64, true, "speculated tokens accepted"),
            ("spec_drafted", Int64, true, "speculated tokens drafted"),
            ("spec_verifies", Int64, true, "verification rounds"),
            ("non_generation_s", Float64, true, "seconds outside generation"),
            ("removed", Boolean, true, "true if the sample was left out of training"),
            ("metadata", Utf8, true, "JSON object; attr(metadata, 'key')"),
            ("file", dict(), true, "dump that it was read from"),
        ],
        Table::Conversations => vec![
            ("id", Utf8, false, "unique over runs, steps, keys and indices"),
            ("run_id", dict(), false, "the run"),
            ("step", Int64, true, "training step"),
            ("key", dict(), true, "name under which it was logged"),
            ("index", Int64, true, "position among conversations that were logged together"),
            ("sample_id", dict(), true, "rollout sample"),
            ("group_id", dict(), true, "group of samples that share a prompt"),
            ("trace_id", FixedSizeBinary(16), true, "trace that it belongs to"),
            ("span_id", FixedSizeBinary(8), true, "span in which it was logged"),
            ("messages", Utf8, false, "JSON array of messages"),
            ("metadata", Utf8, true, "JSON object"),
            ("reward", Float64, true, "if known"),
            ("status", dict(), true, "if known"),
            ("message_count", Int64, false, "messages"),
            ("turn_count", Int64, false, "assistant messages"),
            ("tool_call_count", Int64, false, "tool calls"),
            ("media_count", Int64, false, "images and other media"),
            ("char_count", Int64, false, "characters of text"),
            ("logged_ns", Int64, false, "when it was logged"),
        ],
        Table::Metrics => vec![
            ("run_id", dict(), false, "the run"),
            ("step", Int64, true, "training step"),
            ("time_ns", Int64, false, "wall time"),
            ("name", dict(), false, "metric name"),
            ("value", Float64, false, "NaN and infinities are kept"),
            ("source", dict(), true, "null: logged by the run; rollscope: computed from the step's spans and samples"),
        ],
        Table::Series => vec![
            ("run_id", dict(), false, "the run"),
            ("target", dict(), false, "what was scraped, or the sending service"),
            ("name", dict(), false, "series name"),
            ("labels", dict(), false, "JSON object of labels, keys sorted; attr(labels, 'key')"),
            ("kind", dict(), false, "gauge, counter, histogram, summary, unknown"),
            ("time_ns", Int64, false, "sample time"),
            ("value", Float64, false, "NaN is kept; a stale marker is Prometheus's own NaN"),
        ],
        // A row per sample: a row per token would have to be recognised as new or known token by token.
        Table::Tokens => vec![
            ("run_id", dict(), false, "the run"),
            ("step", Int64, true, "training step"),
            ("sample_id", dict(), false, "rollout sample"),
            ("split", dict(), false, "train or eval"),
            ("group_id", dict(), true, "group of samples that share a prompt"),
            ("source", dict(), true, "data set or task that the prompt came from"),
            ("logged_ns", Int64, true, "when it was logged; null if it was read from a file"),
            ("count", Int32, false, "tokens after the prompt; every list has so many, or is null"),
            ("prompt_tokens", Int64, true, "tokens in the prompt"),
            ("ids", list(Int32), true, "token ids"),
            ("texts", list(Utf8), true, "texts of the tokens, if the sender knows them"),
            ("mask", list(Boolean), true, "true for tokens that are trained on"),
            (
                "logprobs",
                list(Float32),
                true,
                "log-probability by the engine that produced the token; NaN where it is not known",
            ),
            ("trainer_logprobs", list(Float32), true, "log-probability by the trainer, before the update"),
            ("entropy", list(Float32), true, "entropy of the distribution that the token was drawn from, in nats"),
            ("advantages", list(Float32), true, "advantage"),
            ("ratios", list(Float32), true, "importance ratio, if the trainer reports it"),
            ("clipped", list(Boolean), true, "true for tokens whose ratio was clipped"),
            (
                "parts",
                list_of(part_fields()),
                false,
                "consecutive tokens that were produced together: the first of them, the turn, the engine, the version of the weights, \
                 and the first token of the turn's prefix that differs from what was produced before",
            ),
            ("file", dict(), true, "dump that it was read from"),
            ("half", dict(), true, TOKENS_HALF),
        ],
    }
}

/// The meaning of a column, as declared above.
pub fn doc(field: &Field) -> &str {
    field.metadata().get("doc").map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_a_table_declares_is_a_column() {
        for table in Table::ALL {
            let schema = table.schema();
            let mut named = [table.identity(), table.bloom_columns()].concat();
            named.extend(table.cluster_column());
            named.extend(table.sort_columns());
            named.push(table.time_column());
            for column in named {
                assert!(schema.column_with_name(column).is_some(), "{}.{column}", table.name());
            }
            assert_eq!(Table::from_u8(table as u8), Some(table));
            assert_eq!(Table::from_name(table.name()), Some(table));
        }
    }
}
