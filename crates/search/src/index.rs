//! The index on disk, and questions to it.

use std::collections::HashSet;
use std::os::unix::fs::DirBuilderExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use tantivy::columnar::Column;
use tantivy::directory::error::OpenReadError;
use tantivy::directory::{Directory, MmapDirectory};
use tantivy::schema::Value as _;
use tantivy::tokenizer::TextAnalyzer;
use tantivy::{Index, IndexReader, IndexSettings, IndexWriter, ReloadPolicy, Searcher, TantivyDocument, TantivyError};
use utoipa::ToSchema;

use crate::collect::{By, FacetCounts, FacetKind, FacetWanted, MAX_FACET_VALUES, Page, Place, Sort, bucket_width};
use crate::error::SearchError;
use crate::plan;
use crate::query::{self, Node};
use crate::schema::{self, Fields, NUMBERS, TEXTS, VERSION};
use crate::words::{self, Words};

/// The facets.
pub const FACETS: &[&str] = &["step", "reward", "status", "tool", "source", "key", "role", "run"];
/// Most conversations of one answer, and deepest offset: further on, a cursor leads.
pub const MAX_LIMIT: usize = 1000;
pub const MAX_OFFSET: usize = 100_000;

/// Memory of a writer that adds nothing.
const SMALL_WRITER_BYTES: usize = 15 << 20;

/// A handle; clones share the index.
#[derive(Clone)]
pub struct Search {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub dir: PathBuf,
    pub index: Index,
    pub reader: IndexReader,
    pub fields: Fields,
}

/// A search. All conditions must hold.
#[derive(Clone, Debug)]
pub struct Request {
    pub search: Node,
    /// Only these runs.
    pub runs: Option<Vec<String>>,
    pub filters: Vec<Node>,
    pub sort: Sort,
    pub limit: usize,
    pub offset: usize,
    pub after: Option<Place>,
    pub facets: Vec<&'static str>,
    /// Only these conversations, by the hash of their ids: what looking through the texts found.
    pub allowed: Option<Arc<HashSet<u64>>>,
}

impl Default for Request {
    fn default() -> Self {
        Request {
            search: Node::And(Vec::new()),
            runs: None,
            filters: Vec::new(),
            sort: Sort { by: By::Number("time"), descending: true },
            limit: 50,
            offset: 0,
            after: None,
            facets: Vec::new(),
            allowed: None,
        }
    }
}

/// One conversation of an answer.
pub struct Row {
    pub id: String,
    /// Characters of its text.
    pub chars: u64,
    /// What a list shows of it, as a JSON object.
    pub json: Box<RawValue>,
}

pub struct SearchResults {
    pub rows: Vec<Row>,
    /// Where each of the rows is in the order.
    pub places: Vec<Place>,
    pub total: u64,
    /// Where the next page begins.
    pub next: Option<Place>,
    pub facets: Vec<(&'static str, Facet)>,
}

/// A facet: values with counts, most frequent first (numbers in their order).
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Facet {
    pub values: Vec<FacetValue>,
    /// Values beyond the most frequent ones.
    pub left_out: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum FacetValue {
    Text {
        value: String,
        count: u64,
    },
    Integer {
        value: i64,
        count: u64,
    },
    /// `to` is not included.
    Bucket {
        from: f64,
        to: f64,
        count: u64,
    },
}

/// Reads a sort key: a name, with `-` before it for descending order.
pub fn parse_sort(text: &str) -> Result<Sort, SearchError> {
    let (name, descending) = match text.strip_prefix('-') {
        Some(name) => (name, true),
        None => (text.strip_prefix('+').unwrap_or(text), false),
    };
    let by = match name {
        // What its name was in other tools.
        "time" | "logged_ns" | "timestamp" | "created" => By::Number("time"),
        "turn_count" => By::Number("turns"),
        "message_count" => By::Number("messages"),
        "char_count" => By::Number("length"),
        "duration_s" => By::Number("duration"),
        "relevance" | "score" => By::Relevance,
        "run_id" => By::Text("run"),
        "sample_id" => By::Text("sample"),
        "group_id" => By::Text("group"),
        _ => {
            let number = NUMBERS.iter().find(|(n, _)| *n == name).map(|(n, _)| By::Number(n));
            let text = TEXTS.iter().find(|(n, _)| *n == name && !matches!(*n, "id" | "trace"));
            let metadata = name.strip_prefix("metadata.").filter(|key| !key.is_empty() && key.len() <= 256);
            match number.or_else(|| text.map(|(n, _)| By::Text(n))).or_else(|| metadata.map(|m| By::Metadata(m.into())))
            {
                Some(by) => by,
                None => {
                    let good: Vec<&str> = NUMBERS
                        .iter()
                        .chain(TEXTS)
                        .map(|(n, _)| *n)
                        .filter(|n| !matches!(*n, "id" | "trace"))
                        .collect();
                    return Err(SearchError::Parameter {
                        name: "sort",
                        text: format!(
                            "one of: relevance, {}, metadata.NAME, with a leading - for descending order",
                            good.join(", ")
                        ),
                    });
                }
            }
        }
    };
    // The best match comes first, with either sign.
    let descending = descending || by == By::Relevance;
    Ok(Sort { by, descending })
}

impl Search {
    /// Opens the index in a folder, or makes an empty one: also in place of one that is damaged or of another version, for
    /// everything in it can be built again from the store.
    pub fn open(dir: &Path) -> Result<Search, SearchError> {
        match guarded(|| Self::open_existing(dir)) {
            Ok(search) => Ok(search),
            Err(error) => {
                if dir.join("meta.json").exists() {
                    tracing::info!(%error, "rebuilding the search index");
                }
                Self::create(dir)
            }
        }
    }

    /// Opens an existing index for reading only. Another process may be writing it.
    pub fn open_existing(dir: &Path) -> Result<Search, SearchError> {
        let stale = |why: &str| SearchError::Io(std::io::Error::other(why.to_string()));
        if !dir.join("meta.json").is_file() {
            return Err(stale("there is no index yet"));
        }
        match std::fs::read_to_string(dir.join(VERSION_FILE)) {
            Ok(text) if text.trim() == VERSION.to_string() => {}
            _ => return Err(stale("it has another version")),
        }
        let index = Index::open_in_dir(dir)?;
        if index.schema() != schema::schema().0 {
            return Err(stale("it has other fields"));
        }
        Self::with(dir, index)
    }

    /// Creates an empty index and removes what was there before.
    pub fn create(dir: &Path) -> Result<Search, SearchError> {
        if dir.exists() {
            std::fs::remove_dir_all(dir)?;
        }
        // Its files hold text of conversations: the folder is for its owner alone.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        std::fs::write(dir.join(VERSION_FILE), VERSION.to_string())?;
        Self::create_in(dir, MmapDirectory::open(dir).map_err(TantivyError::from)?)
    }

    pub(crate) fn create_in(dir: &Path, files: impl Directory) -> Result<Search, SearchError> {
        Self::with(dir, Index::create(files, schema::schema().0, IndexSettings::default())?)
    }

    fn with(dir: &Path, index: Index) -> Result<Search, SearchError> {
        Self::know_words(&index);
        let reader = index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into()?;
        let (_, fields) = schema::schema();
        Ok(Search { inner: Arc::new(Inner { dir: dir.to_path_buf(), index, reader, fields }) })
    }

    /// How texts are cut into words is not kept with an index.
    pub(crate) fn know_words(index: &Index) {
        index.tokenizers().register(words::NAME, TextAnalyzer::from(Words::default()));
    }

    /// Reads all files and compares them with their checksums, until `is_over`.
    pub(crate) fn is_damaged(&self, is_over: &dyn Fn() -> bool) -> bool {
        let look = || {
            let files = self.inner.index.directory();
            for file in self.inner.index.load_metas()?.list_segment_files() {
                if is_over() {
                    break;
                }
                match files.validate_checksum(&file) {
                    Ok(true) => {}
                    Ok(false) => return Ok(true),
                    // Not every segment has each kind of file, and segments are merged.
                    Err(OpenReadError::FileDoesNotExist(_)) => {}
                    Err(error) => return Err(TantivyError::from(error).into()),
                }
            }
            Ok(false)
        };
        guarded(look).unwrap_or_else(|error| !error.is_of_the_system())
    }

    /// Removes files that no commit names.
    pub(crate) fn collect_garbage(&self) -> Result<(), SearchError> {
        let writer: IndexWriter = self.inner.index.writer_with_num_threads(1, SMALL_WRITER_BYTES)?;
        writer.garbage_collect_files().wait()?;
        Ok(())
    }

    /// Makes an empty index of this one, without reading what it holds.
    pub(crate) fn start_over(&self) -> Result<(), SearchError> {
        let mut writer: IndexWriter = self.inner.index.writer_with_num_threads(1, SMALL_WRITER_BYTES)?;
        writer.delete_all_documents()?;
        writer.commit()?;
        self.inner.reader.reload()?;
        Ok(())
    }

    /// Conversations in the index.
    pub fn len(&self) -> u64 {
        self.inner.reader.searcher().num_docs()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        let Ok(entries) = std::fs::read_dir(&self.inner.dir) else { return 0 };
        entries.flatten().filter_map(|e| e.metadata().ok()).map(|m| m.len()).sum()
    }

    /// Characters of text of all conversations.
    pub fn chars(&self) -> u64 {
        let mut sum = 0;
        for segment in self.inner.reader.searcher().segment_readers() {
            let Ok(column): tantivy::Result<Column<i64>> = segment.fast_fields().i64("length") else { continue };
            sum += segment.doc_ids_alive().filter_map(|d| column.first(d)).map(|n| n.max(0) as u64).sum::<u64>();
        }
        sum
    }

    pub fn ask(&self, request: &Request) -> Result<SearchResults, SearchError> {
        let searcher = self.inner.reader.searcher();
        let query = self.plan(request)?;
        let facets = request.facets.iter().map(|name| wanted(&searcher, name)).collect::<Result<Vec<_>, _>>()?;
        let limit = request.limit.min(MAX_LIMIT);
        let offset = if request.after.is_some() { 0 } else { request.offset.min(MAX_OFFSET) };
        let page = Page {
            sort: request.sort.clone(),
            after: request.after.clone(),
            // One more than wanted: is there a next page?
            limit: offset + limit + 1,
            facets: facets.clone(),
            allowed: request.allowed.clone(),
        };
        let mut found = searcher.search(&*query, &page)?;
        let more = found.hits.len() > offset + limit;
        found.hits.truncate(offset + limit);
        let shown = found.hits.get(offset..).unwrap_or_default();
        let rows = shown.iter().map(|hit| self.row(&searcher, hit.address)).collect::<Result<Vec<_>, _>>()?;
        let places: Vec<Place> = shown.iter().map(|hit| hit.place.clone()).collect();
        let next = if more { places.last().cloned() } else { None };
        let facets =
            facets.iter().zip(found.facets).map(|(wanted, counts)| (wanted.name, finish(wanted, counts))).collect();
        Ok(SearchResults { rows, places, total: found.total, next, facets })
    }

    /// The hashes of the ids of everything that the indexed part of a request finds.
    pub fn candidates(&self, request: &Request) -> Result<HashSet<u64>, SearchError> {
        let searcher = self.inner.reader.searcher();
        let found = searcher.search(&*self.plan(request)?, &tantivy::collector::DocSetCollector)?;
        let ids: Vec<Column<u64>> = searcher
            .segment_readers()
            .iter()
            .map(|s| s.fast_fields().u64("id_hash"))
            .collect::<tantivy::Result<_>>()?;
        Ok(found.into_iter().filter_map(|at| ids[at.segment_ord as usize].first(at.doc_id)).collect())
    }

    fn plan(&self, request: &Request) -> Result<Box<dyn tantivy::query::Query>, SearchError> {
        let fields = &self.inner.fields;
        let mut parts = vec![plan::plan(fields, &request.search)?];
        for filter in &request.filters {
            parts.push(plan::plan(fields, filter)?);
        }
        if let Some(runs) = &request.runs {
            parts.push(plan::one_of_runs(fields, runs));
        }
        Ok(plan::all_of(parts))
    }

    pub(crate) fn row_id(&self, searcher: &Searcher, address: tantivy::DocAddress) -> Result<String, SearchError> {
        Ok(self.row(searcher, address)?.id)
    }

    fn row(&self, searcher: &Searcher, address: tantivy::DocAddress) -> Result<Row, SearchError> {
        let doc: TantivyDocument = searcher.doc(address)?;
        let damaged = || SearchError::Io(std::io::Error::other("a row is damaged; run `rollscope reindex`"));
        let bytes = doc.get_first(self.inner.fields.row).and_then(|v| v.as_bytes()).ok_or_else(damaged)?;
        #[derive(serde::Deserialize)]
        struct Known {
            id: String,
            #[serde(default)]
            char_count: i64,
        }
        let text = String::from_utf8(bytes.to_vec()).map_err(|_| damaged())?;
        let Known { id, char_count } = serde_json::from_str(&text).map_err(|_| damaged())?;
        let chars = u64::try_from(char_count).unwrap_or(0);
        Ok(Row { id, chars, json: RawValue::from_string(text).map_err(|_| damaged())? })
    }
}

/// Where files of the index are damaged, reading them may panic.
pub(crate) fn guarded<T>(read: impl FnOnce() -> Result<T, SearchError>) -> Result<T, SearchError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(broken(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into())).unwrap_or_default()))
    })
}

fn broken(why: String) -> SearchError {
    SearchError::Io(std::io::Error::other(format!("it is damaged and built again ({why})")))
}

const VERSION_FILE: &str = "rollscope-index-version";

/// Parses the text of a search box.
pub fn parse_search(text: &str) -> Result<Node, SearchError> {
    query::parse(text)
}

fn wanted(searcher: &Searcher, name: &&'static str) -> Result<FacetWanted, SearchError> {
    let kind = match *name {
        "step" => FacetKind::Integers,
        "reward" => {
            let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
            for segment in searcher.segment_readers() {
                let column: Column<f64> = segment.fast_fields().f64("reward")?;
                if column.values.num_vals() > 0 {
                    min = min.min(column.min_value());
                    max = max.max(column.max_value());
                }
            }
            FacetKind::Buckets(bucket_width(min, max))
        }
        _ => FacetKind::Texts,
    };
    Ok(FacetWanted { name, kind })
}

fn finish(wanted: &FacetWanted, counts: FacetCounts) -> Facet {
    let mut values: Vec<FacetValue> = match wanted.kind {
        FacetKind::Integers => {
            counts.integers.into_iter().map(|(value, count)| FacetValue::Integer { value, count }).collect()
        }
        FacetKind::Buckets(width) => {
            // Edges as people write them: 0.3, not 0.30000000000000004.
            let digits = 10f64.powi((3.0 - width.log10().floor()) as i32);
            let edge = |n: i64| (n as f64 * width * digits).round() / digits;
            let bucket = |(n, count)| FacetValue::Bucket { from: edge(n), to: edge(n + 1), count };
            counts.buckets.into_iter().map(bucket).collect()
        }
        FacetKind::Texts => {
            let mut all: Vec<(String, u64)> = counts.texts.into_iter().collect();
            all.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
            all.into_iter().map(|(value, count)| FacetValue::Text { value, count }).collect()
        }
    };
    let left_out = values.len().saturating_sub(MAX_FACET_VALUES) as u64;
    if left_out > 0 && matches!(wanted.kind, FacetKind::Integers) {
        // The newest steps are the interesting ones.
        values.drain(..left_out as usize);
    }
    values.truncate(MAX_FACET_VALUES);
    Facet { values, left_out }
}
