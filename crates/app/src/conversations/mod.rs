//! Conversations, for the API, the command line and the export. The index finds them and their order
//! (`rollscope-search`), and the store has the messages.
//!
//! [`Conversations::list`] goes: [`ask`] (parameters, checked in one place) -> the index -> the messages of this page, if
//! they are requested. [`scan`] searches texts for a substring or a regular expression. [`timing`] assigns
//! spans to messages. [`media`] serves images after a check.

pub mod ask;
pub mod export;
pub mod lift;
pub mod media;
mod scan;
pub mod timing;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use parking_lot::Mutex;
use rollscope_model::Table;
use rollscope_model::read::{Ids, Text, column};
use rollscope_query::scope::{Scope, ScopeRead};
use rollscope_query::{Engine, ErrorKind, MAX_TRACE_SPANS, too_many_spans};
use rollscope_search::snippet::{Needles, Snippet};
use rollscope_search::text::Said;
use rollscope_search::{Facet, Follower, ListedRow, Row, Search, SearchError, Splitter};
use rollscope_store::{ReadOnlyStore, Snapshot, SnapshotSource, Store, StoreOptions};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::encode::row::{row, row_schema};
use crate::problem::Problem;
use crate::query::text_column;
use ask::Ask;

/// Folder of the index beside the tables.
pub const INDEX: &str = "index";

const SPLITTER_STOPS_IN: Duration = Duration::from_secs(5);

/// Most bytes of messages and metadata on one page, unless a single conversation has more: a page may end before its limit.
const PAGE_BYTES: usize = 64 << 20;
/// Conversations are read in portions of about so many bytes.
const PORTION_BYTES: u64 = 16 << 20;
/// What a conversation may take besides its text.
const BESIDE_TEXT_BYTES: u64 = 4 << 10;

/// A handle; clones share it.
#[derive(Clone)]
pub struct Conversations {
    engine: Engine,
    search: Search,
    follower: Arc<Mutex<Option<Follower>>>,
    /// In a lake.
    splitter: Arc<Mutex<Option<Splitter>>>,
}

/// A page of conversations.
pub struct Listed {
    pub rows: Vec<FoundConversation>,
    pub total: u64,
    pub next: Option<String>,
    pub facets: Vec<(&'static str, Facet)>,
}

/// One of them: what the index keeps of it, and what was read for it.
pub struct FoundConversation {
    pub id: String,
    pub row: Box<RawValue>,
    pub full: Option<Full>,
    pub snippet: Option<Snippet>,
}

/// What only the store has.
pub struct Full {
    /// JSON.
    pub messages: String,
    pub metadata: Option<String>,
}

/// The answer of `GET /api/v1/conversations`. [`Listed::to_json`] puts it together from JSON that is stored.
#[derive(ToSchema)]
#[allow(dead_code, reason = "this is the description of the answer")]
pub struct ConversationsAnswer {
    conversations: Vec<ListedConversation>,
    /// Conversations on all pages.
    total: u64,
    /// To be passed as `cursor`. Null on the last page.
    #[schema(required)]
    next: Option<String>,
    /// By the names of `facets`.
    facets: BTreeMap<&'static str, Facet>,
}

#[derive(ToSchema)]
#[allow(dead_code, reason = "this is the description of the answer")]
pub struct ListedConversation {
    #[serde(flatten)]
    row: ListedRow<'static>,
    /// With `snippets=true`: the text around the words that were found.
    #[serde(skip_serializing_if = "Option::is_none")]
    snippet: Option<Snippet>,
    /// The messages as they were logged, usually an array in OpenAI's format. Not with `messages=false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<Value>,
}

/// One conversation.
#[derive(Serialize, ToSchema)]
pub struct Conversation {
    #[serde(flatten)]
    #[schema(value_type = ConversationColumns)]
    columns: Map<String, Value>,
    /// With `timing=true`: the spans that produced each message.
    #[serde(skip_serializing_if = "Option::is_none")]
    timing: Option<Vec<timing::Strip>>,
    /// As they were logged, usually an array in OpenAI's format.
    #[schema(value_type = Value)]
    messages: Box<RawValue>,
}

/// Columns of `conversations` that hold a JSON object as text.
const OBJECTS: &[&str] = &["metadata"];

/// The columns of `conversations` but for the messages.
pub struct ConversationColumns;

impl PartialSchema for ConversationColumns {
    fn schema() -> RefOr<Schema> {
        let mut columns = row_schema(Table::Conversations, OBJECTS);
        columns.properties.remove("messages");
        columns.required.retain(|name| name != "messages");
        columns.into()
    }
}

impl ToSchema for ConversationColumns {}

/// How many conversations there are, and their size.
#[derive(Serialize, ToSchema)]
pub struct ConversationStats {
    conversations: u64,
    text_chars: u64,
    stored_bytes: u64,
    index_bytes: u64,
    /// Version of the store that the index has reached.
    indexed_version: u64,
    /// Why the index is behind.
    #[schema(required)]
    problem: Option<String>,
}

impl Conversations {
    /// Opens the index of a store and keeps it up to date.
    pub fn start(store: &Store, engine: Engine) -> Result<Conversations, SearchError> {
        let search = Search::open(&store.options().dir.join(INDEX))?;
        let follower = Follower::start(search.clone(), Arc::new(store.clone()), store.changes(), store.vitals())?;
        let splitter = match store.node_name() {
            Some(_) => Some(Splitter::start(search.clone(), Arc::new(store.clone()), store.vitals())?),
            None => None,
        };
        let (follower, splitter) = (Arc::new(Mutex::new(Some(follower))), Arc::new(Mutex::new(splitter)));
        Ok(Conversations { engine, search, follower, splitter })
    }

    /// For the command line: a folder, whether a server writes it or not.
    pub async fn open(dir: &Path, engine: Engine) -> Result<Conversations, SearchError> {
        let index = dir.join(INDEX);
        // Nobody writes it: bring the index up to date. Somebody does: theirs is less than a second behind.
        let search = match Store::open(StoreOptions::at(dir)).await {
            Ok(store) => {
                let search = Search::open(&index)?;
                let (snapshot, inner) = (store.snapshot(), search.clone());
                let handle = tokio::runtime::Handle::current();
                let done = tokio::task::spawn_blocking(move || rollscope_search::catch_up(&inner, &snapshot, &handle));
                done.await.map_err(|e| SearchError::Io(std::io::Error::other(e)))??;
                store.close().await?;
                search
            }
            Err(_) => Search::open_existing(&index)?,
        };
        Ok(Conversations { engine, search, follower: Arc::default(), splitter: Arc::default() })
    }

    /// For the command line: a lake, with its index in a folder of this machine.
    pub async fn of_snapshot(dir: &Path, snapshot: Snapshot, engine: Engine) -> Result<Conversations, SearchError> {
        std::fs::create_dir_all(dir).map_err(SearchError::Io)?;
        let search = Search::open(&dir.join(INDEX))?;
        let (inner, handle) = (search.clone(), tokio::runtime::Handle::current());
        let done = tokio::task::spawn_blocking(move || rollscope_search::catch_up(&inner, &snapshot, &handle));
        done.await.map_err(|e| SearchError::Io(std::io::Error::other(e)))??;
        Ok(Conversations { engine, search, follower: Arc::default(), splitter: Arc::default() })
    }

    /// The same index over another view of the store.
    pub fn with_engine(self, engine: Engine) -> Conversations {
        Conversations { engine, ..self }
    }

    /// Rebuilds the index of a folder. Returns how many conversations are in it.
    pub async fn reindex(dir: &Path) -> Result<u64, SearchError> {
        // Held while it is built: no server may write the index meanwhile.
        let store = Store::open(StoreOptions::at(dir)).await?;
        let search = Search::create(&dir.join(INDEX))?;
        let snapshot = ReadOnlyStore::open(dir).await?.snapshot();
        let handle = tokio::runtime::Handle::current();
        let inner = search.clone();
        let done = tokio::task::spawn_blocking(move || rollscope_search::catch_up(&inner, &snapshot, &handle));
        done.await.map_err(|e| SearchError::Io(std::io::Error::other(e)))??;
        store.close().await?;
        Ok(search.len())
    }

    /// Ends following, after a last commit.
    pub async fn stop(&self) {
        let (follower, splitter) = (self.follower.lock().take(), self.splitter.lock().take());
        // A split that is being made is not worth waiting for: others can do without.
        if let Some(splitter) = splitter {
            let stopped = tokio::task::spawn_blocking(move || splitter.stop());
            let _ = tokio::time::timeout(SPLITTER_STOPS_IN, stopped).await;
        }
        if let Some(mut follower) = follower {
            let _ = tokio::task::spawn_blocking(move || follower.stop()).await;
        }
    }

    /// Why new conversations are not found.
    pub fn problem(&self) -> Option<String> {
        let status = self.follower.lock().as_ref().map(Follower::status)?;
        Some(format!("new conversations are not found: {}", status.failure?))
    }

    /// What there is, and what it takes.
    pub fn stats(&self) -> ConversationStats {
        let status = self.follower.lock().as_ref().map(Follower::status).unwrap_or_default();
        let tables = self.engine.table_stats();
        let stored = tables.iter().find(|t| t.table == "conversations").map_or(0, |t| t.bytes);
        ConversationStats {
            conversations: self.search.len(),
            text_chars: self.search.chars(),
            stored_bytes: stored,
            index_bytes: self.search.bytes(),
            indexed_version: status.version,
            problem: status.failure,
        }
    }

    pub async fn list(&self, ask: Ask) -> Result<Listed, Problem> {
        let mut request = ask.request;
        request.runs = self.runs(ask.project.as_deref(), ask.run.as_deref()).await?;
        if !request.search.slow().is_empty() {
            request.allowed = Some(Arc::new(scan::look(&self.engine, &self.search, &request).await?));
        }
        let needles = if ask.snippets { Needles::new(&request.search) } else { None };
        let search = self.search.clone();
        let answer = tokio::task::spawn_blocking(move || search.ask(&request))
            .await
            .map_err(|e| Problem::internal(e.to_string()))??;
        let (reads, found) = (ask.messages || needles.is_some(), answer.rows.len());
        let mut rows = Vec::with_capacity(found);
        let (mut left, mut bytes) = (answer.rows.into_iter(), 0);
        'page: while !left.as_slice().is_empty() {
            let count = if reads { portion(left.as_slice()) } else { found };
            let together: Vec<Row> = left.by_ref().take(count).collect();
            let mut full = match reads {
                true => self.full(together.iter().map(|row| row.id.clone()).collect()).await?,
                false => HashMap::new(),
            };
            for row in together {
                let read = full.remove(&row.id);
                if ask.messages {
                    bytes += read.as_ref().map_or(0, Full::bytes);
                    if bytes > PAGE_BYTES && !rows.is_empty() {
                        break 'page;
                    }
                }
                let snippet = match (&needles, &read) {
                    (Some(needles), Some(read)) => needles.find(&Said::from_messages(&read.messages)),
                    _ => None,
                };
                let full = read.filter(|_| ask.messages);
                rows.push(FoundConversation { id: row.id, row: row.json, full, snippet });
            }
        }
        // A page that is full early goes on behind its last row.
        let next = match rows.len() < found {
            true => answer.places.into_iter().nth(rows.len() - 1),
            false => answer.next,
        };
        let next = next.map(|place| ask::cursor(&ask.sort, &place));
        Ok(Listed { rows, total: answer.total, next, facets: answer.facets })
    }

    /// The runs that are meant: of a project, or by id or name, within a project if one is given.
    async fn runs(&self, project: Option<&str>, run: Option<&str>) -> Result<Option<Vec<String>>, Problem> {
        match (project, run) {
            (None, None) => Ok(None),
            (project, Some(run)) => Ok(Some(self.engine.find_runs(project, run).await?)),
            (Some(project), None) => {
                let batch = self.engine.runs().await?;
                let (ids, projects) = (text_column(&batch, "run_id")?, text_column(&batch, "project")?);
                let of_project = ids.into_iter().zip(projects).filter(|(_, p)| p.as_deref() == Some(project));
                Ok(Some(of_project.filter_map(|(id, _)| id).collect()))
            }
        }
    }

    /// The messages of some conversations, by id.
    async fn full(&self, ids: Vec<String>) -> Result<HashMap<String, Full>, Problem> {
        let mut found = HashMap::new();
        for batch in self.engine.conversations(ids).await? {
            let text = |name: &str| column::<Text>(&batch, name).map_err(|e| Problem::internal(e.to_string()));
            let (ids, messages, metadata) = (text("id")?, text("messages")?, text("metadata")?);
            for row in 0..batch.num_rows() {
                let Some(id) = ids.get(row) else { continue };
                let messages = messages.get(row).unwrap_or("[]").to_string();
                found.insert(id.to_string(), Full { messages, metadata: metadata.get(row).map(str::to_string) });
            }
        }
        Ok(found)
    }

    /// One conversation with all it has, as a JSON object. With `timing` also the spans beside its messages.
    pub async fn one(&self, id: &str, timing: bool) -> Result<Vec<u8>, Problem> {
        let batches = self.engine.conversations(vec![id.to_string()]).await?;
        let Some(batch) = batches.iter().find(|b| b.num_rows() > 0) else {
            return Err(Problem::not_found(format!("there is no conversation {id}")));
        };
        let mut columns = row(batch, 0, OBJECTS).map_err(|e| Problem::internal(e.to_string()))?;
        columns.remove("messages");
        let messages = text_column(batch, "messages")?[0].clone().unwrap_or_else(|| "[]".into());
        let timing = if timing { Some(self.timing(batch).await?) } else { None };
        let conversation = Conversation { columns, timing, messages: as_json(messages) };
        serde_json::to_vec(&conversation).map_err(|e| Problem::internal(e.to_string()))
    }

    async fn timing(&self, batch: &RecordBatch) -> Result<Vec<timing::Strip>, Problem> {
        let trace = column::<Ids<16>>(batch, "trace_id").ok().and_then(|ids| ids.get(0));
        let span = column::<Ids<8>>(batch, "span_id").ok().and_then(|ids| ids.get(0));
        let sample = column::<Text>(batch, "sample_id").ok().and_then(|ids| ids.get(0));
        let Some(trace) = trace else { return Ok(Vec::new()) };
        let read = ScopeRead {
            columns: timing::COLUMNS.into(),
            max_rows: MAX_TRACE_SPANS,
            too_many: too_many_spans(&trace),
            traces: None,
            at_once: false,
            details: None,
        };
        let spans = match self.engine.spans_of(Scope::Trace { trace, joined: true }, read).await {
            Ok(spans) => spans.batches,
            // The conversation is worth showing without them.
            Err(error) if error.kind == ErrorKind::Limit => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let messages = text_column(batch, "messages")?[0].clone().unwrap_or_default();
        let keys = message_keys(&messages);
        Ok(timing::strips(&spans, &keys, &hex::encode(trace), span, sample))
    }
}

fn message_keys(messages: &str) -> Vec<timing::MessageKey> {
    let list: Vec<Value> = serde_json::from_str(messages).unwrap_or_default();
    list.iter()
        .map(|m| timing::MessageKey {
            assistant: m["role"] == "assistant",
            tool_call_id: (m["role"] == "tool").then(|| m["tool_call_id"].as_str().unwrap_or_default().to_string()),
        })
        .collect()
}

/// How many of these are read together. At least one.
fn portion(rows: &[Row]) -> usize {
    let mut bytes = 0u64;
    let fits = rows.iter().take_while(|row| {
        bytes = bytes.saturating_add(row.chars).saturating_add(BESIDE_TEXT_BYTES);
        bytes <= PORTION_BYTES
    });
    fits.count().max(1)
}

impl Full {
    fn bytes(&self) -> usize {
        self.messages.len() + self.metadata.as_ref().map_or(0, String::len)
    }
}

/// The text as it is if it is JSON, else as a JSON string.
fn as_json(text: String) -> Box<RawValue> {
    match serde_json::from_str(&text) {
        Ok(json) => json,
        Err(_) => serde_json::value::to_raw_value(&text).expect("text is plain data"),
    }
}

impl Listed {
    /// The answer of `GET /api/v1/conversations`.
    pub fn to_json(&self) -> Vec<u8> {
        let mut out = b"{\"conversations\":[".to_vec();
        for (n, found) in self.rows.iter().enumerate() {
            if n > 0 {
                out.push(b',');
            }
            out.extend(found.to_json());
        }
        let facets: Map<String, Value> =
            self.facets.iter().map(|(name, facet)| ((*name).to_string(), json!(facet))).collect();
        let rest = json!({ "total": self.total, "next": self.next, "facets": facets }).to_string();
        out.extend_from_slice(b"],");
        out.extend_from_slice(&rest.as_bytes()[1..]);
        out
    }
}

impl FoundConversation {
    pub fn to_json(&self) -> Vec<u8> {
        let mut out = match &self.full {
            // Long metadata are only in the store.
            Some(full) if self.row.get().contains("\"metadata\":null") && full.metadata.is_some() => {
                let mut row: Map<String, Value> = serde_json::from_str(self.row.get()).unwrap_or_default();
                let text = full.metadata.as_deref().unwrap_or("null");
                row.insert("metadata".into(), serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)));
                serde_json::to_vec(&row).unwrap_or_default()
            }
            _ => self.row.get().as_bytes().to_vec(),
        };
        if let Some(snippet) = &self.snippet {
            out.pop();
            out.extend_from_slice(b",\"snippet\":");
            out.extend(serde_json::to_vec(snippet).unwrap_or_default());
            out.push(b'}');
        }
        if let Some(full) = &self.full {
            out.pop();
            out.extend_from_slice(b",\"messages\":");
            // As in `as_json`, without copies of what may be large.
            match serde_json::from_str::<&RawValue>(&full.messages) {
                Ok(json) => out.extend_from_slice(json.get().as_bytes()),
                Err(_) => out.extend(serde_json::to_vec(&full.messages).unwrap_or_default()),
            }
            out.push(b'}');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_conversations_are_read_one_by_one_and_short_ones_together() {
        let rows = |chars: &[u64]| -> Vec<Row> {
            let json = || RawValue::from_string("{}".into()).unwrap();
            chars.iter().map(|chars| Row { id: "c".into(), chars: *chars, json: json() }).collect()
        };
        assert_eq!(portion(&rows(&[20_000; 500])), 500);
        assert_eq!(portion(&rows(&[u64::MAX, 1])), 1);
        assert_eq!(portion(&rows(&[PORTION_BYTES, 1])), 1);
        assert_eq!(portion(&rows(&[1, 2, PORTION_BYTES, 3])), 2);
        assert_eq!(portion(&rows(&[1 << 20; 100])), 15);
    }
}
