//! A small store made by hand: Parquet files in a folder, and a tail.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::array::cast::AsArray;
use arrow::datatypes::{DataType, Int64Type};
use arrow::util::pretty::pretty_format_batches;
use datafusion::object_store::local::LocalFileSystem;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::parquet::schema::types::ColumnPath;
use rollscope_model::Table;
use rollscope_model::attrs::{self, Value};
use rollscope_model::build::{NewSpan, SpansBuilder};
use rollscope_query::{Engine, QueryError, QueryLimits, WorkerServer, Workers};
use rollscope_store::{Segment, Snapshot, SnapshotSource, TableSnapshot};
use tempfile::TempDir;

/// A store whose files and tails a test puts in place.
pub struct Stored {
    pub folder: TempDir,
    pub tables: Mutex<BTreeMap<Table, TableSnapshot>>,
    pub types: Mutex<BTreeMap<Table, rollscope_store::AttrTypes>>,
}

impl SnapshotSource for Stored {
    fn snapshot(&self) -> Snapshot {
        Snapshot {
            object_store: Arc::new(LocalFileSystem::new_with_prefix(self.folder.path()).unwrap()),
            keeper: None,
            version: 1,
            settled: 1,
            tables: self.tables.lock().unwrap().clone(),
            attr_types: Arc::new(self.types.lock().unwrap().clone()),
        }
    }
}

impl Stored {
    pub fn new() -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        Arc::new(Stored { folder, tables: Mutex::default(), types: Mutex::default() })
    }

    pub fn path(&self, segment: &str) -> std::path::PathBuf {
        self.folder.path().join(segment)
    }

    /// Writes a batch (rows of one run) as a segment. Returns its path.
    pub fn add_segment(&self, table: Table, batch: &RecordBatch) -> String {
        let mut tables = self.tables.lock().unwrap();
        let snapshot = tables.entry(table).or_default();
        let path = format!("{}-{}.parquet", table.name(), snapshot.segments.len());
        let mut properties = WriterProperties::builder().set_max_row_group_row_count(Some(50_000));
        for column in table.bloom_columns() {
            properties = properties.set_column_bloom_filter_enabled(ColumnPath::from(*column), true);
        }
        let file = std::fs::File::create(self.path(&path)).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).unwrap();
        writer.write(batch).unwrap();
        writer.close().unwrap();
        let ints = |name: &str| -> Vec<i64> {
            batch.column_by_name(name).map_or(vec![], |c| c.as_primitive::<Int64Type>().iter().flatten().collect())
        };
        let times = ints(table.time_column());
        let steps = ints("step");
        let run = batch.column_by_name("run_id").unwrap();
        let run = arrow::compute::cast(run, &DataType::Utf8).unwrap();
        snapshot.segments.push(Arc::new(Segment {
            table: table.name().to_string(),
            run_id: run.as_string::<i32>().value(0).to_string(),
            path: path.clone(),
            rows: batch.num_rows() as u64,
            bytes: std::fs::metadata(self.path(&path)).unwrap().len(),
            min_time: times.iter().copied().min().unwrap_or(0),
            max_time: times.iter().copied().chain(ints("end_ns")).max().unwrap_or(0),
            steps: steps.iter().copied().min().zip(steps.iter().copied().max()),
            has_open: false,
            format_version: 1,
            writer: "test".to_string(),
            ..Segment::default()
        }));
        drop(tables);
        self.note_types(table, batch);
        path
    }

    pub fn add_tail(&self, table: Table, batch: RecordBatch) {
        self.note_types(table, &batch);
        let mut tables = self.tables.lock().unwrap();
        let rows = tables.entry(table).or_default();
        rows.tail.push(batch);
        rows.contents.push(Arc::default());
    }

    /// Rows of a run in segments that rows in the tail replace.
    pub fn set_replaced(&self, table: Table, run: &str, hashes: HashSet<u128>) {
        let mut tables = self.tables.lock().unwrap();
        let rows = tables.entry(table).or_default();
        rows.replaced_of = Arc::new([(run.to_string(), hashes.len() as u64)].into());
        rows.replaced = Arc::new(hashes);
    }

    fn note_types(&self, table: Table, batch: &RecordBatch) {
        let mut types = self.types.lock().unwrap();
        for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
            let Some(map) = column.as_map_opt() else { continue };
            let keys = types.entry(table).or_default().entry(field.name().clone()).or_default();
            for (key, value) in map.keys().as_string::<i32>().iter().zip(map.values().as_string::<i32>()) {
                *keys.entry(key.unwrap().to_string()).or_default() |= attrs::type_of(value.unwrap()) as u8;
            }
        }
    }

    pub fn engine(self: &Arc<Self>) -> Engine {
        self.engine_with(QueryLimits::default())
    }

    pub fn engine_with(self: &Arc<Self>, limits: QueryLimits) -> Engine {
        let limits = QueryLimits { spread_bytes: 1, ..limits };
        let engine = Engine::new(self.clone(), limits.clone()).unwrap();
        // The same tests, with every query cut into parts: `ROLLSCOPE_TEST_WORKERS=2`.
        if let Some(n) = std::env::var("ROLLSCOPE_TEST_WORKERS").ok().and_then(|n| n.parse().ok()) {
            engine.use_workers(Crew::start(self, n, &limits));
        }
        engine
    }
}

/// Workers in this process, behind sockets.
pub struct Crew(pub Mutex<Vec<WorkerServer>>);

pub const KEY: &str = "a key";

impl Crew {
    pub fn start(stored: &Stored, n: usize, limits: &QueryLimits) -> Arc<Crew> {
        let objects = stored.snapshot().object_store;
        let worker = |_| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            WorkerServer::start(listener, objects.clone(), KEY, limits).unwrap()
        };
        Arc::new(Crew(Mutex::new((0..n).map(worker).collect())))
    }
}

impl Workers for Crew {
    fn urls(&self) -> Vec<url::Url> {
        let url = |worker: &WorkerServer| format!("http://{}", worker.address()).parse().unwrap();
        self.0.lock().unwrap().iter().map(url).collect()
    }

    fn key(&self) -> String {
        KEY.into()
    }
}

pub fn trace(n: u64) -> [u8; 16] {
    let mut id = [7; 16];
    id[8..].copy_from_slice(&n.to_be_bytes());
    id
}

/// `rows` spans of a run, four to a trace, from trace `first` on; two names, steps of a hundred spans.
pub fn spans(run: &str, first: u64, rows: u64) -> RecordBatch {
    let mut b = SpansBuilder::default();
    for i in 0..rows {
        let n = first * 4 + i;
        let start = 1_700_000_000_000_000_000 + n as i64 * 1_000;
        b.push(&NewSpan {
            run_id: run,
            step: Some((n / 100) as i64),
            trace_id: trace(n / 4),
            span_id: n.to_be_bytes(),
            name: if n.is_multiple_of(4) { "generate" } else { "tool" },
            service: "trainer",
            start_ns: start,
            end_ns: Some(start + 500),
            sample_id: Some(&(n / 4).to_string()),
            start_attrs: &[("n", Value::Int(n as i64)), ("model", "m-1".into())],
            end_attrs: &[("tokens", Value::Int(i as i64 % 7)), ("score", Value::Double(0.5))],
            resource: r#"{"service.name":"trainer","replicas":3}"#,
            ..NewSpan::default()
        });
    }
    b.finish().unwrap()
}

/// The rows of an answer.
pub async fn rows(engine: &Engine, sql: &str) -> Vec<RecordBatch> {
    try_rows(engine, sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"))
}

pub async fn try_rows(engine: &Engine, sql: &str) -> Result<Vec<RecordBatch>, QueryError> {
    Ok(engine.sql(sql).await?.collect().await?.0)
}

/// The rows of an answer, one line each, values separated by bars, in order.
pub async fn lines(engine: &Engine, sql: &str) -> Vec<String> {
    let text = pretty_format_batches(&rows(engine, sql).await).unwrap().to_string();
    let lines: Vec<&str> = text.lines().collect();
    let body = if lines.len() > 4 { &lines[3..lines.len() - 1] } else { &[] };
    body.iter().map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>().join("|")).collect()
}

/// The only value of an answer, as text.
pub async fn value(engine: &Engine, sql: &str) -> String {
    let lines = lines(engine, sql).await;
    assert_eq!(lines.len(), 1, "{sql}: {lines:?}");
    lines[0].clone()
}

/// The text of a plan.
pub async fn plan(engine: &Engine, sql: &str) -> String {
    lines(engine, &format!("explain {sql}")).await.join("\n")
}
