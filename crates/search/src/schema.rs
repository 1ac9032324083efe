//! The fields of the index, and how a row of `conversations` becomes a document. Numbers and short texts are columns
//! ("fast fields"): sorting, facets and ranges read them on every page. What a list shows of a conversation is kept
//! beside them as one small JSON text, so that a list needs nothing but the index.

use arrow::array::RecordBatch;
use rollscope_model::limits::CONVERSATION_BYTES;
use rollscope_model::read::{self, Floats, Ids, Ints, Text};
use serde::Serialize;
use serde_json::{Map, Value};
use tantivy::TantivyDocument;
use tantivy::schema::{
    FAST, Field, INDEXED, IndexRecordOption, JsonObjectOptions, OwnedValue, STORED, Schema, TextFieldIndexing,
    TextOptions,
};
use utoipa::ToSchema;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::text::{Role, Said};
use crate::words;

/// Rises when the fields or what goes into them change: an index of another version is rebuilt.
pub const VERSION: u32 = 1;

/// Limits on the metadata that can be searched and sorted by: number of values, bytes per value, depth.
const MAX_METADATA_VALUES: usize = 64;
const MAX_METADATA_BYTES: usize = 256;
const MAX_METADATA_DEPTH: usize = 4;
/// Metadata up to this size is in the list; beyond it is only in the conversation itself.
const MAX_LISTED_METADATA_BYTES: usize = 4096;
/// Characters of the opening and closing words in a list.
const PREVIEW_CHARS: usize = 240;
const MAX_THUMBNAILS: usize = 4;

/// Columns that can be sorted by and searched, with their meaning.
pub const NUMBERS: &[(&str, &str)] = &[
    ("step", "training step"),
    ("reward", "reward"),
    ("time", "when it was logged, nanoseconds"),
    ("turns", "assistant messages"),
    ("messages", "messages"),
    ("length", "characters of text"),
    ("tokens", "tokens, if the metadata has them"),
    ("duration", "seconds, if the metadata has them"),
    ("tool_calls", "tool calls"),
    ("media", "images and other media"),
    ("index", "position among conversations that were logged together"),
];
pub const TEXTS: &[(&str, &str)] = &[
    ("status", "completed, truncated, aborted, failed, ..."),
    ("source", "data set or task"),
    ("key", "name under which it was logged"),
    ("run", "run id"),
    ("sample", "sample id"),
    ("group", "group id"),
    ("tool", "name of a tool that was called"),
    ("trace", "trace id, hex"),
    ("id", "the conversation's id"),
];

/// Metadata that mean the same under several names.
const SOURCE: &[&str] = &["source", "data_source", "dataset", "task"];
const DURATION: &[&str] = &["duration_s", "duration", "latency_s", "latency", "elapsed_s"];
const TOKENS: &[&str] = &[
    "response_tokens",
    "completion_tokens",
    "output_tokens",
    "total_tokens",
    "num_tokens",
    "tokens",
    "response_length",
];

#[derive(Clone)]
pub struct Fields {
    pub id: Field,
    pub id_hash: Field,
    pub version: Field,
    pub run: Field,
    pub sample: Field,
    pub group: Field,
    pub trace: Field,
    pub key: Field,
    pub status: Field,
    pub source: Field,
    pub role: Field,
    pub tool: Field,
    pub numbers: Vec<(&'static str, Field, bool)>,
    /// By role, in the order of [`Role::ALL`].
    pub said: Vec<Field>,
    pub about: Field,
    pub metadata: Field,
    pub row: Field,
}

/// Columns of floating numbers; the others are integers.
pub fn is_float(name: &str) -> bool {
    matches!(name, "reward" | "duration")
}

pub fn schema() -> (Schema, Fields) {
    let mut b = Schema::builder();
    let raw = TextFieldIndexing::default()
        .set_tokenizer("raw")
        .set_fieldnorms(false)
        .set_index_option(IndexRecordOption::Basic);
    let name = TextOptions::default().set_indexing_options(raw.clone());
    let column = name.clone().set_fast("raw");
    let text = TextOptions::default().set_indexing_options(
        TextFieldIndexing::default()
            .set_tokenizer(words::NAME)
            .set_index_option(IndexRecordOption::WithFreqsAndPositions),
    );
    let fields = Fields {
        id: b.add_text_field("id", name.clone()),
        id_hash: b.add_u64_field("id_hash", FAST),
        version: b.add_u64_field("version", FAST),
        run: b.add_text_field("run", column.clone()),
        sample: b.add_text_field("sample", column.clone()),
        group: b.add_text_field("group", column.clone()),
        trace: b.add_text_field("trace", name),
        key: b.add_text_field("key", column.clone()),
        status: b.add_text_field("status", column.clone()),
        source: b.add_text_field("source", column.clone()),
        role: b.add_text_field("role", column.clone()),
        tool: b.add_text_field("tool", column),
        numbers: NUMBERS
            .iter()
            .map(|(n, _)| match is_float(n) {
                true => (*n, b.add_f64_field(n, FAST), true),
                // Searches by step are frequent.
                false if *n == "step" => (*n, b.add_i64_field(n, FAST | INDEXED), false),
                false => (*n, b.add_i64_field(n, FAST), false),
            })
            .collect(),
        said: Role::ALL.iter().map(|r| b.add_text_field(&format!("said_{}", r.name()), text.clone())).collect(),
        about: b.add_text_field("about", text),
        metadata: b.add_json_field(
            "metadata",
            JsonObjectOptions::default().set_indexing_options(raw).set_fast("raw").set_expand_dots_enabled(),
        ),
        row: b.add_bytes_field("row", STORED),
    };
    (b.build(), fields)
}

impl Fields {
    pub fn said(&self, role: Role) -> Field {
        self.said[Role::ALL.iter().position(|r| *r == role).expect("every role has a field")]
    }

    pub fn number(&self, name: &str) -> Option<(Field, bool)> {
        self.numbers.iter().find(|(n, _, _)| *n == name).map(|(_, field, float)| (*field, *float))
    }

    pub fn name(&self, name: &str) -> Option<Field> {
        Some(match name {
            "id" => self.id,
            "run" => self.run,
            "sample" => self.sample,
            "group" => self.group,
            "trace" => self.trace,
            "key" => self.key,
            "status" => self.status,
            "source" => self.source,
            "tool" => self.tool,
            _ => return None,
        })
    }
}

/// Represents an id in sets and orders.
pub fn id_hash(id: &str) -> u64 {
    xxh3_64(id.as_bytes())
}

/// Rows of `conversations`, column by column. `messages` may be missing: the version of a row does not need it.
pub struct Rows<'a> {
    batch: &'a RecordBatch,
}

impl<'a> Rows<'a> {
    pub fn new(batch: &'a RecordBatch) -> Rows<'a> {
        Rows { batch }
    }

    pub fn len(&self) -> usize {
        self.batch.num_rows()
    }

    pub fn text_at(&self, column: &str, row: usize) -> Option<&'a str> {
        read::column::<Text>(self.batch, column).ok()?.get(row)
    }

    fn int(&self, column: &str, row: usize) -> Option<i64> {
        read::column::<Ints>(self.batch, column).ok()?.get(row)
    }

    fn float(&self, column: &str, row: usize) -> Option<f64> {
        read::column::<Floats>(self.batch, column).ok()?.get(row)
    }

    fn hex<const N: usize>(&self, column: &str, row: usize) -> Option<String> {
        read::column::<Ids<N>>(self.batch, column).ok()?.get(row).map(hex::encode)
    }

    pub fn id(&self, row: usize) -> &'a str {
        self.text_at("id", row).unwrap_or_default()
    }

    /// A number that changes when anything of the row but the wording of its messages does (their counts are in it): tells
    /// a row that is in the index from one that replaced it, without reading the messages.
    pub fn version(&self, row: usize) -> u64 {
        let mut hash = Xxh3::new();
        for name in VERSION_TEXTS {
            let text = self.text_at(name, row).unwrap_or("\u{0}");
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        for name in VERSION_INTS {
            hash.update(&self.int(name, row).unwrap_or(i64::MIN).to_le_bytes());
        }
        hash.update(&self.float("reward", row).unwrap_or(f64::NAN).to_bits().to_le_bytes());
        hash.digest()
    }

    pub fn document(&self, fields: &Fields, row: usize) -> TantivyDocument {
        let id = self.id(row);
        let said = Said::from_messages(self.text_at("messages", row).unwrap_or("[]"));
        let metadata_text = self.text_at("metadata", row);
        let metadata = match metadata_text.map(serde_json::from_str::<Value>) {
            Some(Ok(Value::Object(object))) => object,
            _ => Map::new(),
        };
        let reward = self.float("reward", row).or_else(|| number(&metadata, &["reward"]));
        let status = self.text_at("status", row).or_else(|| metadata.get("status").and_then(Value::as_str));
        let source = SOURCE.iter().find_map(|k| metadata.get(*k).and_then(Value::as_str));
        let duration = number(&metadata, DURATION);
        let tokens = number(&metadata, TOKENS).map(|n| n as i64);

        let mut doc = TantivyDocument::default();
        doc.add_text(fields.id, id);
        doc.add_u64(fields.id_hash, id_hash(id));
        doc.add_u64(fields.version, self.version(row));
        let trace = self.hex::<16>("trace_id", row);
        for (field, value) in [
            (fields.run, self.text_at("run_id", row)),
            (fields.sample, self.text_at("sample_id", row)),
            (fields.group, self.text_at("group_id", row)),
            (fields.trace, trace.as_deref()),
            (fields.key, self.text_at("key", row)),
            (fields.status, status),
            (fields.source, source),
        ] {
            if let Some(value) = value {
                doc.add_text(field, value);
            }
        }
        for (name, field, _) in &fields.numbers {
            match *name {
                "reward" => reward.into_iter().for_each(|v| doc.add_f64(*field, v)),
                "duration" => duration.into_iter().for_each(|v| doc.add_f64(*field, v)),
                "tokens" => tokens.into_iter().for_each(|v| doc.add_i64(*field, v)),
                name => self.int(column_of(name), row).into_iter().for_each(|v| doc.add_i64(*field, v)),
            }
        }
        said.tools.iter().for_each(|tool| doc.add_text(fields.tool, tool));
        let mut left = CONVERSATION_BYTES;
        for piece in &said.pieces {
            let text = clip(&piece.text, left);
            left -= text.len();
            doc.add_text(fields.said(piece.role), text);
        }
        for role in Role::ALL.iter().filter(|r| said.pieces.iter().any(|p| p.role == **r)) {
            doc.add_text(fields.role, role.name());
        }
        let (mut leaves, mut about) = (Vec::new(), String::new());
        flatten(&mut leaves, &mut about, "", &metadata, 0);
        if !about.is_empty() {
            doc.add_text(fields.about, about);
        }
        if !leaves.is_empty() {
            doc.add_field_value(fields.metadata, &OwnedValue::Object(leaves));
        }
        let count = |column| self.int(column, row).unwrap_or_default();
        let listed = ListedRow {
            id,
            run_id: self.text_at("run_id", row).unwrap_or_default(),
            step: self.int("step", row),
            key: self.text_at("key", row),
            index: self.int("index", row),
            sample_id: self.text_at("sample_id", row),
            group_id: self.text_at("group_id", row),
            trace_id: trace,
            span_id: self.hex::<8>("span_id", row),
            reward,
            status,
            source,
            message_count: count("message_count"),
            turn_count: count("turn_count"),
            tool_call_count: count("tool_call_count"),
            media_count: count("media_count"),
            char_count: count("char_count"),
            tokens,
            duration_s: duration,
            logged_ns: count("logged_ns").to_string(),
            metadata: metadata_text.filter(|t| t.len() <= MAX_LISTED_METADATA_BYTES).map(|_| &metadata),
            preview: preview(said.opening()),
            answer: preview(said.closing()),
            thumbnails: &said.media[..said.media.len().min(MAX_THUMBNAILS)],
            tools: &said.tools,
        };
        doc.add_bytes(fields.row, &serde_json::to_vec(&listed).expect("a row is plain data"));
        doc
    }
}

/// What a list shows of a conversation. The index keeps it as JSON.
#[derive(Serialize, ToSchema)]
pub struct ListedRow<'a> {
    id: &'a str,
    run_id: &'a str,
    #[schema(required)]
    step: Option<i64>,
    /// Name under which it was logged.
    #[schema(required)]
    key: Option<&'a str>,
    /// Position among conversations that were logged together.
    #[schema(required)]
    index: Option<i64>,
    #[schema(required)]
    sample_id: Option<&'a str>,
    #[schema(required)]
    group_id: Option<&'a str>,
    #[schema(required)]
    trace_id: Option<String>,
    #[schema(required)]
    span_id: Option<String>,
    #[schema(required)]
    reward: Option<f64>,
    #[schema(required)]
    status: Option<&'a str>,
    #[schema(required)]
    source: Option<&'a str>,
    message_count: i64,
    /// Messages of the assistant.
    turn_count: i64,
    tool_call_count: i64,
    /// Images and other media.
    media_count: i64,
    /// Characters of text.
    char_count: i64,
    /// From the metadata, as `duration_s` is.
    #[schema(required)]
    tokens: Option<i64>,
    #[schema(required)]
    duration_s: Option<f64>,
    /// Names of the tools that were called, each once, in order.
    tools: &'a [String],
    /// Nanoseconds, as text.
    logged_ns: String,
    /// Null if there are none, or if they are long and `messages=false`.
    #[schema(required, value_type = Option<BTreeMap<String, Value>>)]
    metadata: Option<&'a Map<String, Value>>,
    /// The opening words.
    preview: String,
    /// The closing words.
    answer: String,
    /// Content hashes of the first media.
    thumbnails: &'a [String],
}

/// The columns that [`Rows::version`] reads.
pub const VERSION_TEXTS: &[&str] = &["id", "run_id", "key", "sample_id", "group_id", "metadata", "status"];
pub const VERSION_INTS: &[&str] =
    &["step", "index", "message_count", "turn_count", "tool_call_count", "media_count", "char_count", "logged_ns"];

/// All columns but the messages.
pub fn light_columns() -> Vec<&'static str> {
    [VERSION_TEXTS, VERSION_INTS, &["reward"]].concat()
}

fn column_of(name: &str) -> &str {
    match name {
        "time" => "logged_ns",
        "turns" => "turn_count",
        "messages" => "message_count",
        "length" => "char_count",
        "tool_calls" => "tool_call_count",
        "media" => "media_count",
        other => other,
    }
}

fn number(metadata: &Map<String, Value>, names: &[&str]) -> Option<f64> {
    names.iter().find_map(|name| metadata.get(*name)?.as_f64())
}

fn clip(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// One line, for a list.
fn preview(text: &str) -> String {
    let mut out = String::new();
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
        if out.len() > PREVIEW_CHARS * 4 {
            break;
        }
    }
    match out.char_indices().nth(PREVIEW_CHARS) {
        Some((at, _)) => format!("{}…", &out[..at]),
        None => out,
    }
}

/// Values of the metadata by dotted path, and all their text.
fn flatten(
    leaves: &mut Vec<(String, OwnedValue)>,
    about: &mut String,
    path: &str,
    object: &Map<String, Value>,
    depth: usize,
) {
    for (key, value) in object {
        if leaves.len() >= MAX_METADATA_VALUES {
            return;
        }
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let leaf = match value {
            Value::Bool(b) => OwnedValue::Bool(*b),
            Value::Number(n) => match (n.as_i64(), n.as_f64()) {
                (Some(i), _) => OwnedValue::I64(i),
                (None, Some(f)) => OwnedValue::F64(f),
                _ => continue,
            },
            Value::String(text) => {
                about.push_str(clip(text, CONVERSATION_BYTES));
                about.push('\n');
                OwnedValue::Str(clip(text, MAX_METADATA_BYTES).to_string())
            }
            Value::Object(inner) if depth < MAX_METADATA_DEPTH => {
                flatten(leaves, about, &path, inner, depth + 1);
                continue;
            }
            Value::Array(_) | Value::Object(_) => {
                about.push_str(&value.to_string());
                about.push('\n');
                continue;
            }
            Value::Null => continue,
        };
        leaves.push((path, leaf));
    }
}
