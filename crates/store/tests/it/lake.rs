//! A lake: several writers on one object store, with faults, kills and takeovers. The tables are a list in memory here; `crates/lake` has
//! Delta Lake.
//!
//! A seed decides what happens. `SEED=7` repeats one seed and prints its steps, `SEEDS=10000` tries many, `FIRST=5000` starts at another one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arrow::compute::concat_batches;
use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollscope_model::Table;
use rollscope_model::attrs::Value;
use rollscope_model::build::{NewRun, RunsBuilder};
use rollscope_model::read::{Text, column};
use rollscope_store::{
    AboutNode, Lake, ReadOnlyStore, SnapshotSource, Store, StoreError, StoreOptions, TableChange, TableVersion, Tables,
};
use tokio::sync::watch;

use crate::once::{rows, series};
use crate::{open_spans, seen, spans, spans_with};

/// Seeds that `cargo test` tries.
const SEEDS: u64 = 60;
/// How often a reader looks again if a file was merged under its hands.
const READS: usize = 5;

/// A lake is below a prefix, as a rule.
type Memory = PrefixStore<InMemory>;

/// Versions of tables, as Delta Lake has them.
#[derive(Default)]
struct Versions {
    tables: Mutex<HashMap<Table, Newest>>,
    weather: Arc<Weather>,
}

/// The newest version of a table, and its marks.
type Newest = (TableVersion, HashMap<String, u64>);

impl Versions {
    /// The numbers of all spans in the tables.
    async fn rows(&self, objects: &Arc<Memory>) -> Vec<u64> {
        let numbers =
            |path: &str| crate::read_file(objects.clone(), path).iter().flat_map(crate::numbers).collect::<Vec<_>>();
        for _ in 0..READS {
            let segments = self.tables.lock().get(&Table::Spans).map(|(version, _)| version.segments.clone());
            let rows =
                || segments.iter().flatten().flat_map(|segment| numbers(&segment.path)).map(|row| row.1).collect();
            if let Ok(rows) = catch_unwind(AssertUnwindSafe(rows)) {
                return rows;
            }
        }
        panic!("files of the table are missing")
    }
}

/// What goes wrong, one time in so many. 0: nothing.
#[derive(Default)]
struct Weather {
    one_in: AtomicU64,
    /// Nothing can be deleted.
    keeps_all: AtomicBool,
    random: Mutex<Option<StdRng>>,
    /// Objects with this in their path cannot be got, or only once it has changed.
    refused: Mutex<String>,
    held: watch::Sender<String>,
    waiting: AtomicU64,
}

#[derive(PartialEq)]
enum Fault {
    None,
    Before,
    After,
}

impl Weather {
    fn fault(&self) -> Fault {
        let one_in = self.one_in.load(Ordering::Relaxed);
        let mut random = self.random.lock();
        match (one_in, random.as_mut()) {
            (1.., Some(random)) => match random.random_range(0..one_in * 2) {
                0 => Fault::Before,
                1 => Fault::After,
                _ => Fault::None,
            },
            _ => Fault::None,
        }
    }
}

/// Whether a path has a text that is not empty.
fn has(path: &Path, text: &str) -> bool {
    !text.is_empty() && path.as_ref().contains(text)
}

fn broken<T>() -> Result<T> {
    Err(object_store::Error::Generic { store: "test", source: "503".into() })
}

#[async_trait]
impl Tables for Versions {
    async fn read(&self, table: Table) -> std::result::Result<TableVersion, StoreError> {
        if self.weather.fault() != Fault::None {
            return Ok(broken()?);
        }
        Ok(self.tables.lock().entry(table).or_default().0.clone())
    }

    async fn marks(&self, table: Table, names: &[String]) -> std::result::Result<Vec<Option<u64>>, StoreError> {
        if self.weather.fault() != Fault::None {
            return Ok(broken()?);
        }
        let mut tables = self.tables.lock();
        let marks = &tables.entry(table).or_default().1;
        Ok(names.iter().map(|name| marks.get(name).copied()).collect())
    }

    async fn append(&self, table: Table, after: u64, change: &TableChange) -> std::result::Result<bool, StoreError> {
        let fault = self.weather.fault();
        if fault == Fault::Before {
            return Ok(broken()?);
        }
        let mut tables = self.tables.lock();
        let (version, marks) = tables.entry(table).or_default();
        let is_next = version.number == after;
        if is_next {
            let live: BTreeSet<&String> = version.segments.iter().map(|s| &s.path).collect();
            assert!(change.removed.iter().all(|s| live.contains(&s.path)), "removes what is not there");
            assert!(change.added.iter().all(|s| !live.contains(&s.path)), "adds what is there");
            version.number += 1;
            version.segments.retain(|s| !change.removed.iter().any(|r| r.path == s.path));
            version.segments.extend(change.added.iter().cloned());
            for (column, keys) in &change.attr_types {
                let known = version.attr_types.entry(column.clone()).or_default();
                keys.iter().for_each(|(key, bits)| *known.entry(key.clone()).or_default() |= bits);
            }
            marks.extend(change.marks.iter().cloned());
        }
        if fault == Fault::After { Ok(broken()?) } else { Ok(is_next) }
    }
}

/// An object store with faults before and after the effect.
struct Objects {
    inner: Arc<Memory>,
    weather: Arc<Weather>,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Objects")
    }
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Objects")
    }
}

#[async_trait]
impl ObjectStore for Objects {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let fault = self.weather.fault();
        if fault == Fault::Before {
            return broken();
        }
        let put = self.inner.put_opts(path, payload, options).await;
        if fault == Fault::After { broken() } else { put }
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let mut held = self.weather.held.subscribe();
        if has(path, &held.borrow()) {
            self.weather.waiting.fetch_add(1, Ordering::Relaxed);
            held.wait_for(|text| !has(path, text)).await.unwrap();
        }
        let is_refused = has(path, &self.weather.refused.lock());
        match self.weather.fault() {
            Fault::None if !is_refused => self.inner.get_opts(path, options).await,
            _ => broken(),
        }
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        match self.weather.keeps_all.load(Ordering::Relaxed) {
            true => futures::stream::once(async { broken() }).boxed(),
            false => self.inner.delete_stream(paths),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// What all nodes share.
struct World {
    inner: Arc<Memory>,
    weather: Arc<Weather>,
    tables: Arc<Versions>,
    cache: tempfile::TempDir,
    /// How long a file stays that others may still read.
    grace_s: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let weather = Arc::new(Weather::default());
        *weather.random.lock() = Some(StdRng::seed_from_u64(seed ^ 0x77));
        let tables = Arc::new(Versions { weather: weather.clone(), ..Versions::default() });
        let inner = Arc::new(PrefixStore::new(InMemory::new(), "lakes/one"));
        World { inner, weather, tables, cache: tempfile::tempdir().unwrap(), grace_s: seed % 2 * 900 }
    }

    fn lake(&self, node: &str) -> Lake {
        let objects = Objects { inner: self.inner.clone(), weather: self.weather.clone() };
        Lake {
            objects: Arc::new(objects),
            tables: self.tables.clone(),
            key: String::new(),
            node: AboutNode { name: node.into(), ..AboutNode::default() },
            silence: Duration::ZERO,
            // One of them shows its own log, and what is in the tables.
            follow_every: (node != "ingest").then_some(Duration::from_secs(3600)),
        }
    }

    async fn open(&self, node: &str) -> std::result::Result<Store, StoreError> {
        let options = StoreOptions {
            delete_grace_s: self.grace_s,
            log_every_ms: 0,
            ..StoreOptions::at(self.cache.path().join(node))
        };
        Store::open_lake(options, self.lake(node)).await
    }

    fn set_weather(&self, one_in: u64) {
        self.weather.one_in.store(one_in, Ordering::Relaxed);
    }

    /// Every span that a reader of the lake finds. The background of a node may merge files between looking and reading.
    async fn read(&self) -> Vec<(String, u64, String)> {
        for _ in 0..READS {
            let reader = ReadOnlyStore::open_lake(self.lake("reader")).await.unwrap();
            if let Ok(rows) = catch_unwind(AssertUnwindSafe(|| seen(&reader))) {
                return rows;
            }
        }
        panic!("files of the tables are missing")
    }

    /// Files of spans that the table does not name.
    async fn strays(&self) -> Vec<String> {
        use futures::TryStreamExt;
        let all: Vec<ObjectMeta> = self.inner.list(Some(&Path::from("spans"))).try_collect().await.unwrap();
        let tables = self.tables.tables.lock();
        let live = &tables[&Table::Spans].0.segments;
        let paths = all.into_iter().map(|object| object.location.to_string());
        paths.filter(|path| !live.iter().any(|segment| segment.path == *path)).collect()
    }

    /// Parts of logs that are not fences.
    async fn log_objects(&self) -> Vec<String> {
        use futures::TryStreamExt;
        let all: Vec<ObjectMeta> = self.inner.list(Some(&Path::from("writers"))).try_collect().await.unwrap();
        let mut logs: BTreeMap<String, Vec<&ObjectMeta>> = BTreeMap::new();
        for object in &all {
            logs.entry(object.location.as_ref().split('/').nth(1).unwrap().to_string()).or_default().push(object);
        }
        // The last object of a log that nobody has closed stays.
        let parts = logs.values().flat_map(|log| &log[..log.len() - 1]).filter(|o| o.size != 40);
        parts.map(|o| o.location.to_string()).collect()
    }
}

fn expected(run: &str, numbers: impl IntoIterator<Item = u64>) -> Vec<(String, u64, String)> {
    numbers.into_iter().map(|n| (run.to_string(), n, "closed".to_string())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lake_keeps_rows_through_flushes_merges_and_restarts() {
    let world = World::new(0);
    let store = world.open("a").await.unwrap();
    assert_eq!(store.append(Table::Spans, spans("r", 0, 50)).await.unwrap().accepted, 50);
    assert_eq!(world.read().await, expected("r", 0..50), "others find them in the log");
    store.flush().await.unwrap();
    assert!(world.log_objects().await.is_empty(), "what is in tables leaves the log");
    assert_eq!(store.append(Table::Spans, spans("r", 40, 20)).await.unwrap().duplicates, 10);
    store.flush().await.unwrap();
    store.compact().await.unwrap();
    assert_eq!(world.read().await, expected("r", 0..60));
    store.append(Table::Spans, spans("s", 0, 5)).await.unwrap();
    store.append(Table::Spans, open_spans("s", 5, 1)).await.unwrap();
    store.close().await.unwrap();
    assert!(world.log_objects().await.is_empty());
    let store = world.open("a").await.unwrap();
    store.append(Table::Spans, spans("s", 5, 1)).await.unwrap();
    assert_eq!(seen(&store).len(), 66);
    assert_eq!(seen(&store), world.read().await);
    store.flush().await.unwrap();
    assert!(store.delete_run("r").await.unwrap());
    assert_eq!(world.read().await, expected("s", 0..6));
    let types = &store_types(&store);
    assert!(types.contains("n") && types.contains("text"), "{types:?}");
}

fn store_types(store: &Store) -> BTreeSet<String> {
    let types = store.snapshot().attr_types.clone();
    types.get(&Table::Spans).unwrap().values().flat_map(|keys| keys.keys().cloned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_writer_acknowledged_is_taken_over() {
    let world = World::new(0);
    let first = world.open("a").await.unwrap();
    first.append(Table::Spans, spans("r", 0, 10)).await.unwrap();
    first.flush().await.unwrap();
    first.append(Table::Spans, spans("r", 10, 10)).await.unwrap();
    drop(first);
    let second = world.open("a").await.unwrap();
    assert_eq!(seen(&second), expected("r", 0..20));
    assert_eq!(world.read().await, expected("r", 0..20));
    assert_eq!(second.append(Table::Spans, spans("r", 5, 20)).await.unwrap().accepted, 5);
    drop(second);
    let third = world.open("a").await.unwrap();
    assert_eq!(seen(&third), expected("r", 0..25));
    third.close().await.unwrap();
    assert!(world.log_objects().await.is_empty());
    assert_eq!(world.read().await, expected("r", 0..25));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_was_replaced_acknowledges_and_commits_nothing_more() {
    let world = World::new(0);
    let old = world.open("a").await.unwrap();
    old.append(Table::Spans, spans("r", 0, 10)).await.unwrap();
    let new = world.open("a").await.unwrap();
    assert_eq!(seen(&new), expected("r", 0..10));
    let refused = old.append(Table::Spans, spans("r", 10, 10)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Fenced), "{refused}");
    assert!(refused.retry_after().is_some(), "senders keep what was refused");
    assert!(matches!(old.flush().await.unwrap_err(), StoreError::Fenced));
    new.append(Table::Spans, spans("r", 10, 10)).await.unwrap();
    new.flush().await.unwrap();
    assert_eq!(world.read().await, expected("r", 0..20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_of_a_silent_node_is_taken_over_by_another() {
    let world = World::new(0);
    let (a, b) = (world.open("a").await.unwrap(), world.open("b").await.unwrap());
    a.append(Table::Spans, spans("r", 0, 10)).await.unwrap();
    a.flush().await.unwrap();
    a.append(Table::Spans, spans("r", 10, 10)).await.unwrap();
    b.append(Table::Spans, spans("r", 20, 5)).await.unwrap();
    b.adopt_silent().await.unwrap();
    assert_eq!(a.append(Table::Spans, spans("r", 25, 1)).await.unwrap().accepted, 1, "it was seen once");
    b.adopt_silent().await.unwrap();
    assert!(matches!(a.append(Table::Spans, spans("r", 30, 1)).await.unwrap_err(), StoreError::Fenced));
    assert!(!a.health().writable);
    assert!(matches!(a.flush().await.unwrap_err(), StoreError::Fenced));
    b.flush().await.unwrap();
    assert!(world.log_objects().await.is_empty());
    assert_eq!(world.read().await, expected("r", 0..26));
    drop(a);
    b.adopt_silent().await.unwrap();
    b.adopt_silent().await.unwrap();
    let nodes = || async { world.inner.list(Some(&Path::from("nodes"))).map(|o| o.unwrap().location).collect().await };
    let named: Vec<Path> = nodes().await;
    assert_eq!(named, [Path::from("nodes/b.json")], "nothing is left of it");
    world.inner.put(&Path::from("nodes/c.json"), "{".into()).await.unwrap();
    for _ in 0..3 {
        assert!(b.adopt_silent().await.is_err(), "whoever cannot be read may be alive");
    }
    let named: Vec<Path> = nodes().await;
    assert_eq!(named.len(), 2);
    world.inner.delete(&Path::from("nodes/c.json")).await.unwrap();
    let a = world.open("a").await.unwrap();
    assert_eq!(seen(&a), expected("r", 0..26), "it comes back with nothing to take over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_cannot_be_read_keeps_no_other_from_being_shown() {
    let world = World::new(1);
    let node = world.open("c").await.unwrap();
    let (a, b) = (world.open("a").await.unwrap(), world.open("b").await.unwrap());
    let entry = world.inner.get(&Path::from("nodes/a.json")).await.unwrap().bytes().await.unwrap();
    let entry = String::from_utf8(entry.to_vec()).unwrap();
    let writer = entry.split("\"writer\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    a.append(Table::Spans, spans("r", 0, 1)).await.unwrap();
    a.append(Table::Spans, spans("r", 1, 1)).await.unwrap();
    b.append(Table::Spans, spans("r", 10, 5)).await.unwrap();
    *world.weather.refused.lock() = writer.into();
    node.follow().await.unwrap();
    assert_eq!(seen(&node), expected("r", 10..15));
    assert!(node.health().problems.iter().any(|p| p.contains("logs of other nodes cannot be read")));
    // What has left the log of another stays to be seen.
    b.flush().await.unwrap();
    node.follow().await.unwrap();
    assert_eq!(seen(&node), expected("r", 10..15));
    world.weather.refused.lock().clear();
    node.follow().await.unwrap();
    assert_eq!(seen(&node), expected("r", (0..2).chain(10..15)));
    assert_eq!(node.health().problems, Vec::<String>::new());
    assert_eq!(node.stats().followed_rows, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_who_sends_waits_while_a_log_is_taken_over() {
    let world = World::new(0);
    let (a, b) = (world.open("a").await.unwrap(), Arc::new(world.open("b").await.unwrap()));
    a.append(Table::Spans, spans("r", 0, 10)).await.unwrap();
    b.append(Table::Spans, spans("r", 10, 10)).await.unwrap();
    drop(a);
    b.adopt_silent().await.unwrap();
    // The log of the dead node cannot be got for a while.
    world.weather.held.send_replace("writers/".into());
    let adopting = tokio::spawn({
        let b = b.clone();
        async move { b.adopt_silent().await }
    });
    while world.weather.waiting.load(Ordering::Relaxed) == 0 {
        assert!(!adopting.is_finished(), "there is something to take over");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let sent = tokio::time::timeout(Duration::from_secs(60), b.append(Table::Spans, spans("r", 5, 20)));
    assert_eq!(sent.await.expect("it does not wait").unwrap().accepted, 10, "ten are here already, and five not yet");
    assert!(!adopting.is_finished());
    world.weather.held.send_replace(String::new());
    adopting.await.unwrap().unwrap();
    assert_eq!(seen(b.as_ref()), expected("r", 0..25));
    b.flush().await.unwrap();
    assert!(world.log_objects().await.is_empty());
    assert_eq!(world.read().await, expected("r", 0..25));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_that_somebody_else_has_deleted_stops_nothing() {
    let world = World::new(1);
    let (a, b) = (world.open("a").await.unwrap(), world.open("b").await.unwrap());
    a.append(Table::Spans, spans("r", 0, 10)).await.unwrap();
    a.flush().await.unwrap();
    let path = world.tables.tables.lock()[&Table::Spans].0.segments[0].path.clone();
    world.inner.delete(&Path::from(path.as_str())).await.unwrap();
    // This node compares its rows with those of the segment.
    b.append(Table::Spans, spans("r", 0, 5)).await.unwrap();
    b.flush().await.unwrap();
    b.tidy().await.unwrap();
    a.append(Table::Spans, spans("r", 20, 5)).await.unwrap();
    a.flush().await.unwrap();
    a.compact().await.unwrap();
    assert_eq!(seen(&a), expected("r", (0..5).chain(20..25)));
    let health = format!("{:?}", a.health());
    assert!(health.contains(&path) && health.contains("it is missing"), "{health}");
    // One that this node has written, so that it knows what was in it: a row that replaces some of that comes.
    let row = |value| crate::once::metrics("r", 0, 1, value);
    a.append(Table::Metrics, row(1.0)).await.unwrap();
    a.flush().await.unwrap();
    let other = world.tables.tables.lock()[&Table::Metrics].0.segments[0].path.clone();
    world.inner.delete(&Path::from(other.as_str())).await.unwrap();
    a.append(Table::Metrics, row(2.0)).await.unwrap();
    a.flush().await.unwrap();
    assert_eq!(rows(&a, Table::Metrics), 1);
    assert!(format!("{:?}", a.health()).contains(&other));
    // Nothing is said of what no table names any more.
    b.tidy().await.unwrap();
    assert!(b.delete_run("r").await.unwrap());
    a.tidy().await.unwrap();
    let health = a.health();
    assert!(seen(&a).is_empty() && health.problems.is_empty(), "{health:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_missing_is_noticed_before_anybody_reads_it_and_taken_up_when_it_is_back() {
    let world = World::new(1);
    let a = world.open("a").await.unwrap();
    a.append(Table::Spans, spans("r", 0, 10)).await.unwrap();
    a.flush().await.unwrap();
    a.append(Table::Spans, spans("r", 10, 10)).await.unwrap();
    a.flush().await.unwrap();
    let path = world.tables.tables.lock()[&Table::Spans].0.segments[0].path.clone();
    let path = Path::from(path);
    let data = world.inner.get(&path).await.unwrap().bytes().await.unwrap();
    world.inner.delete(&path).await.unwrap();
    assert_eq!(a.clean().await.unwrap(), 0);
    assert_eq!(seen(&a).len(), 10);
    let health = format!("{:?}", a.health());
    assert!(health.contains(path.as_ref()) && health.contains("it is missing"), "{health}");
    world.inner.put(&path, data.into()).await.unwrap();
    a.clean().await.unwrap();
    assert_eq!(seen(&a), expected("r", 0..20));
    assert_eq!(a.health().problems, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_said_of_a_run_stays_when_another_node_only_knows_that_there_is_one() {
    let world = World::new(1);
    let (a, b) = (world.open("a").await.unwrap(), world.open("ingest").await.unwrap());
    let row = |config: Option<&str>, status: &str| {
        let mut rows = RunsBuilder::default();
        rows.push(&NewRun { run_id: "r", config, status: Some(status), updated_ns: 7, ..NewRun::default() });
        rows.finish().unwrap()
    };
    let shown = |store: &Store| {
        let all = crate::batches(store, Table::Runs);
        let texts = all.iter().flat_map(|batch| {
            let (configs, states): (Text, Text) = (column(batch, "config").unwrap(), column(batch, "status").unwrap());
            let text = |values: &Text, row| values.get(row).unwrap_or("none").to_string();
            (0..batch.num_rows()).map(|row| [text(&configs, row), text(&states, row)].join(" ")).collect::<Vec<_>>()
        });
        texts.collect::<Vec<String>>()
    };
    let configs = async || {
        a.tidy().await.unwrap();
        shown(&a)
    };
    // One node is told what the run is, the other one gets rows of it. Both orders of flushing.
    for (one, other) in [(&a, &b), (&b, &a)] {
        one.append(Table::Runs, row(Some("{}"), "finished")).await.unwrap();
        // The other one shows what was said, if it follows.
        a.follow().await.unwrap();
        other.append(Table::Runs, row(None, "running")).await.unwrap();
        a.follow().await.unwrap();
        assert_eq!(shown(&a), ["{} finished"]);
        one.flush().await.unwrap();
        other.flush().await.unwrap();
        assert_eq!(configs().await, ["{} finished"]);
        assert!(a.delete_run("r").await.unwrap());
        b.tidy().await.unwrap();
    }
    b.append(Table::Runs, row(None, "running")).await.unwrap();
    a.append(Table::Runs, row(Some("{}"), "running")).await.unwrap();
    b.flush().await.unwrap();
    a.flush().await.unwrap();
    assert_eq!(configs().await, ["{} running"]);
    // What somebody says later counts.
    b.append(Table::Runs, row(None, "failed")).await.unwrap();
    b.flush().await.unwrap();
    assert_eq!(configs().await, ["none failed"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_merge_the_same_segments_at_once_are_in_nobodys_way() {
    let world = World::new(1);
    let (a, b) = (world.open("a").await.unwrap(), world.open("b").await.unwrap());
    for round in 0..3 {
        for i in 0..6 {
            for node in [&a, &b] {
                node.append(Table::Spans, spans("r", round * 100 + i * 10, 10)).await.unwrap();
                node.flush().await.unwrap();
            }
        }
        let (one, other) = tokio::join!(a.tidy(), b.tidy());
        one.unwrap();
        other.unwrap();
    }
    assert!(world.tables.tables.lock()[&Table::Spans].0.segments.len() < 18, "they were merged");
    assert_eq!(world.read().await.len(), 180);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_hear_only_of_what_has_changed() {
    let world = World::new(1);
    let (a, b, c) = (world.open("a").await.unwrap(), world.open("b").await.unwrap(), world.open("c").await.unwrap());
    let changes = b.changes();
    let version = || *changes.borrow();
    a.append(Table::Spans, spans("r", 0, 10)).await.unwrap();
    b.follow().await.unwrap();
    c.append(Table::Spans, spans("r", 0, 10)).await.unwrap();
    b.follow().await.unwrap();
    c.flush().await.unwrap();
    // What this node would have to compare cannot be got.
    *world.weather.refused.lock() = "spans/".into();
    b.follow().await.unwrap();
    let before = version();
    b.follow().await.unwrap();
    assert_eq!(version(), before);
    world.weather.refused.lock().clear();
    b.follow().await.unwrap();
    assert!(version() > before);
    assert_eq!(seen(&b), expected("r", 0..10));
    a.flush().await.unwrap();
    b.tidy().await.unwrap();
    b.follow().await.unwrap();
    let before = version();
    b.tidy().await.unwrap();
    b.follow().await.unwrap();
    assert_eq!(version(), before, "nothing has happened");
    assert_eq!(seen(&b), expected("r", 0..10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writers_share_the_tables() {
    let world = World::new(0);
    let (a, b) = (world.open("a").await.unwrap(), world.open("b").await.unwrap());
    for i in 0..10 {
        a.append(Table::Spans, spans("r", i * 20, 10)).await.unwrap();
        b.append(Table::Spans, spans("r", i * 20 + 10, 10)).await.unwrap();
        let (one, other) = tokio::join!(a.flush(), b.flush());
        one.unwrap();
        other.unwrap();
    }
    assert_eq!(world.read().await, expected("r", 0..200));
    a.compact().await.unwrap();
    assert_eq!(world.read().await, expected("r", 0..200));
    // It was open on one node, and ends on the other.
    a.append(Table::Spans, open_spans("q", 0, 3)).await.unwrap();
    a.close().await.unwrap();
    b.tidy().await.unwrap();
    b.append(Table::Spans, spans("q", 0, 3)).await.unwrap();
    assert_eq!(seen(&b).len(), 203);
    b.close().await.unwrap();
    assert_eq!(world.read().await.len(), 203);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_two_nodes_were_sent_is_there_once() {
    let world = World::new(1);
    let (a, b) = (world.open("a").await.unwrap(), world.open("b").await.unwrap());
    // A client lost the answer of one node, and sent the same to the other. Neither knows.
    a.append(Table::Spans, spans("r", 0, 30)).await.unwrap();
    a.append(Table::Spans, open_spans("r", 100, 2)).await.unwrap();
    assert_eq!(b.append(Table::Spans, spans("r", 20, 30)).await.unwrap().accepted, 30);
    b.append(Table::Spans, spans("r", 100, 1)).await.unwrap();
    let all = || [expected("r", 0..50), expected("r", 100..101)].concat();
    let closed =
        |rows: Vec<(String, u64, String)>| rows.into_iter().filter(|row| row.2 == "closed").collect::<Vec<_>>();
    assert_eq!(closed(world.read().await), all(), "a reader of the logs sees each once");
    let (one, other) = tokio::join!(a.flush(), b.flush());
    one.unwrap();
    other.unwrap();
    let mut rows = world.tables.rows(&world.inner).await;
    rows.sort_unstable();
    assert_eq!(rows, (0..50).chain([100]).collect::<Vec<u64>>(), "and so does who reads the tables alone");
    a.tidy().await.unwrap();
    b.tidy().await.unwrap();
    assert_eq!(closed(seen(&a)), all());
    assert_eq!(closed(seen(&b)), all());
    assert_eq!(seen(&a).iter().filter(|row| row.1 == 100).count(), 1, "it has ended");
    // What was there before is recognised when it comes.
    assert_eq!(a.append(Table::Spans, spans("r", 40, 10)).await.unwrap().duplicates, 10);
    // Of rows of which the last one counts, the one stays that is written last.
    let row = |value| crate::once::metrics("r", 0, 1, value);
    a.append(Table::Metrics, row(1.0)).await.unwrap();
    b.append(Table::Metrics, row(2.0)).await.unwrap();
    a.flush().await.unwrap();
    b.flush().await.unwrap();
    a.tidy().await.unwrap();
    for node in [&a, &b] {
        let rows = crate::batches(node, Table::Metrics);
        assert_eq!(rows.iter().map(arrow::array::RecordBatch::num_rows).sum::<usize>(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_point_of_a_series_that_two_nodes_were_sent_is_there_once() {
    let world = World::new(1);
    let (a, b) = (world.open("a").await.unwrap(), world.open("b").await.unwrap());
    a.append(Table::Series, series("r", 0, 30)).await.unwrap();
    assert_eq!(b.append(Table::Series, series("r", 20, 30)).await.unwrap().accepted, 30);
    a.flush().await.unwrap();
    b.flush().await.unwrap();
    assert_eq!(b.stats().duplicates, 10);
    // It looks at the tables. To tidy would make fewer points of old ones.
    a.clean().await.unwrap();
    for node in [&a, &b] {
        assert_eq!(rows(node, Table::Series), 50);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_shows_what_others_have_acknowledged() {
    let world = World::new(1);
    let (a, b) = (world.open("a").await.unwrap(), world.open("b").await.unwrap());
    let follow = async |node: &Store| node.follow().await.unwrap();
    a.append(Table::Spans, spans("r", 0, 30)).await.unwrap();
    a.append(Table::Spans, open_spans("r", 30, 3)).await.unwrap();
    a.append(Table::Series, series("r", 0, 30)).await.unwrap();
    let before = b.snapshot().version;
    follow(&b).await;
    assert_eq!((seen(&b).len(), rows(&b, Table::Series)), (33, 30));
    let snapshot = b.snapshot();
    assert!(snapshot.version > before);
    // More of the same log, without reading it all again: the end of what was open, and what this node has, too.
    b.append(Table::Spans, spans("r", 40, 2)).await.unwrap();
    b.append(Table::Series, series("r", 30, 2)).await.unwrap();
    a.append(Table::Spans, spans("r", 30, 2)).await.unwrap();
    a.append(Table::Spans, spans("r", 41, 2)).await.unwrap();
    a.append(Table::Series, series("r", 31, 2)).await.unwrap();
    follow(&b).await;
    let states = |node: &Store| seen(node).into_iter().map(|row| (row.1, row.2 == "closed")).collect::<Vec<_>>();
    let expected: Vec<(u64, bool)> = (0..33).chain(40..43).map(|n| (n, n != 32)).collect();
    assert_eq!((states(&b), rows(&b, Table::Series)), (expected.clone(), 33));
    assert_eq!(b.stats().followed_rows, 33 + 1 + 30 + 1, "what this node has itself is not counted");
    // A flush moves it to the tables. What is open goes on in the log.
    a.flush().await.unwrap();
    assert_eq!(states(&b), expected, "nobody has looked yet");
    follow(&b).await;
    assert_eq!((states(&b), rows(&b, Table::Series)), (expected.clone(), 33));
    assert_eq!(b.stats().followed_rows, 1);
    // An end that comes here hides the beginning there, and one there ends what is open here.
    b.append(Table::Spans, spans("r", 32, 1)).await.unwrap();
    b.append(Table::Spans, open_spans("r", 50, 2)).await.unwrap();
    a.append(Table::Spans, spans("r", 50, 1)).await.unwrap();
    follow(&b).await;
    let expected: Vec<(u64, bool)> = (0..33).chain(40..43).chain(50..52).map(|n| (n, n != 51)).collect();
    assert_eq!(states(&b), expected);
    // Each flushes its own.
    b.flush().await.unwrap();
    a.flush().await.unwrap();
    for node in [&a, &b] {
        follow(node).await;
        assert_eq!((states(node), rows(node, Table::Series)), (expected.clone(), 33));
    }
    let mut tables = world.tables.rows(&world.inner).await;
    tables.sort_unstable();
    assert_eq!(tables, (0..33).chain(40..43).chain([50]).collect::<Vec<u64>>());
    // Rows of which the last one counts.
    let values = |node: &Store| crate::once::values(node).into_values().flatten().collect::<Vec<_>>();
    a.append(Table::Metrics, crate::once::metrics("r", 0, 1, 1.0)).await.unwrap();
    a.flush().await.unwrap();
    a.append(Table::Metrics, crate::once::metrics("r", 0, 1, 2.0)).await.unwrap();
    follow(&b).await;
    assert_eq!(values(&b), [2.0]);
    a.flush().await.unwrap();
    follow(&b).await;
    assert_eq!(values(&b), [2.0]);
    // Whoever is taken over is shown once.
    a.append(Table::Spans, spans("q", 100, 5)).await.unwrap();
    follow(&b).await;
    drop(a);
    b.adopt_silent().await.unwrap();
    b.adopt_silent().await.unwrap();
    follow(&b).await;
    assert_eq!(states(&b).len(), expected.len() + 5);
    assert_eq!(b.stats().followed_rows, 0);
    let c = world.open("c").await.unwrap();
    assert_eq!(states(&c).len(), expected.len() + 5, "whoever comes has read the logs");
}

/// As a client does that reports a span that is open, and its end, before it sends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_may_say_the_same_row_twice() {
    let world = World::new(1);
    let (a, b) = (world.open("a").await.unwrap(), world.open("b").await.unwrap());
    let both = |table: Table, one, other| concat_batches(&table.schema(), &[one, other]).unwrap();
    let metrics = |value| crate::once::metrics("r", 0, 1, value);
    a.append(Table::Spans, both(Table::Spans, open_spans("r", 0, 3), spans("r", 0, 3))).await.unwrap();
    a.append(Table::Spans, both(Table::Spans, spans("r", 10, 2), spans("r", 10, 2))).await.unwrap();
    a.append(Table::Metrics, both(Table::Metrics, metrics(1.0), metrics(2.0))).await.unwrap();
    let values = |node: &Store| crate::once::values(node).into_values().flatten().collect::<Vec<_>>();
    for node in [&a, &b] {
        node.follow().await.unwrap();
        let states: Vec<(u64, bool)> = seen(node).into_iter().map(|row| (row.1, row.2 == "closed")).collect();
        assert_eq!(states, [0, 1, 2, 10, 11].map(|n| (n, true)));
        assert_eq!(values(node), [2.0]);
    }
    // What may change is shown as it arrived last, wherever that was.
    b.append(Table::Metrics, metrics(3.0)).await.unwrap();
    assert_eq!(values(&b), [3.0]);
    a.append(Table::Metrics, metrics(4.0)).await.unwrap();
    b.follow().await.unwrap();
    assert_eq!(values(&b), [4.0]);
    // Also if the earlier one is in a table now.
    let replaced = |node: &Store| node.snapshot().tables[&Table::Metrics].replaced_of.clone();
    b.flush().await.unwrap();
    assert_eq!((values(&b), replaced(&b)["r"]), (vec![4.0], 1));
    b.follow().await.unwrap();
    assert_eq!(values(&b), [4.0]);
    b.append(Table::Metrics, metrics(5.0)).await.unwrap();
    assert_eq!(values(&b), [5.0]);
    a.append(Table::Metrics, metrics(6.0)).await.unwrap();
    b.follow().await.unwrap();
    assert_eq!((values(&b), replaced(&b)["r"]), (vec![6.0], 1), "both replace the same row");
    b.flush().await.unwrap();
    a.flush().await.unwrap();
    for node in [&a, &b] {
        node.follow().await.unwrap();
        assert_eq!((values(node).len(), seen(node).len()), (1, 5));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_span_that_has_ended_elsewhere_stays_so_when_it_is_written_as_open() {
    let world = World::new(1);
    let (a, b) = (world.open("a").await.unwrap(), world.open("b").await.unwrap());
    b.append(Table::Spans, open_spans("r", 0, 3)).await.unwrap();
    a.append(Table::Spans, spans("r", 0, 3)).await.unwrap();
    b.follow().await.unwrap();
    assert_eq!(seen(&b), expected("r", 0..3));
    b.close().await.unwrap();
    assert_eq!(seen(&b), expected("r", 0..3));
    assert_eq!(world.read().await, expected("r", 0..3));
}

/// Whoever takes over a log copies only what the tables lack. A node that sees the copy before the log is gone must look at them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_flushed_before_a_takeover_stays_to_be_seen() {
    let world = World::new(1);
    let (a, c) = (world.open("a").await.unwrap(), world.open("c").await.unwrap());
    let options = StoreOptions::at(world.cache.path().join("b"));
    let lake = Lake { follow_every: Some(Duration::from_millis(50)), ..world.lake("b") };
    let b = Store::open_lake(options, lake).await.unwrap();
    a.append(Table::Spans, spans("r", 0, 10)).await.unwrap();
    let shows = async |number| {
        while seen(&b).last().is_none_or(|row| row.1 != number) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    shows(9).await;
    world.weather.keeps_all.store(true, Ordering::Relaxed);
    a.append(Table::Spans, spans("r", 10, 10)).await.unwrap();
    a.flush().await.unwrap_err();
    c.adopt_silent().await.unwrap();
    b.beat().await.unwrap();
    c.adopt_silent().await.unwrap();
    c.append(Table::Spans, spans("r", 20, 1)).await.unwrap();
    shows(20).await;
    assert_eq!(seen(&b), expected("r", 0..21));
}

/// Bytes of rows that a node shows from the logs of others.
fn followed_bytes(node: &Store) -> usize {
    let snapshot = node.snapshot();
    let columns = snapshot.tables.values().flat_map(|rows| &rows.tail).flat_map(|batch| batch.columns());
    columns.map(|column| column.to_data().get_slice_memory_size().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_take_in_takes_no_more_memory_than_it_may() {
    const LIMIT: usize = 4_000_000;
    let world = World::new(1);
    let a = world.open("a").await.unwrap();
    // It compresses well.
    let attrs: &'static [(&str, Value)] = Box::leak(Box::new([("text", Value::Str("x".repeat(1000)))]));
    let long = |run, first| spans_with(run, first, 50, |span| span.end_attrs = attrs);
    for i in 0..300 {
        a.append(Table::Spans, long("r", i * 50)).await.unwrap();
    }
    let options = StoreOptions { flush_bytes: LIMIT, ..StoreOptions::at(world.cache.path().join("b")) };
    let b = Store::open_lake(options, world.lake("b")).await.unwrap();
    assert!((LIMIT / 2..LIMIT * 5 / 4).contains(&followed_bytes(&b)), "{}", followed_bytes(&b));
    a.flush().await.unwrap();
    b.follow().await.unwrap();
    assert_eq!(seen(&b).len(), 300 * 50);
    // Nodes that take nothing in leave their room to those that do.
    let mut idle = Vec::new();
    for i in 0..7 {
        idle.push(world.open(&format!("idle{i}")).await.unwrap());
    }
    for i in 0..20 {
        a.append(Table::Spans, long("s", i * 50)).await.unwrap();
    }
    b.follow().await.unwrap();
    assert_eq!((seen(&b).len(), b.health().problems), (320 * 50, Vec::new()));
    assert!(followed_bytes(&b) > LIMIT / 8, "{}", followed_bytes(&b));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_part_of_the_log_waits_for_no_others() {
    let world = World::new(1);
    let options = StoreOptions { log_every_ms: 3_600_000, ..StoreOptions::at(world.cache.path().join("a")) };
    let store = Arc::new(Store::open_lake(options, world.lake("a")).await.unwrap());
    let send = |first, text: &str| {
        let attrs: &'static [(&str, Value)] = Box::leak(Box::new([("text", Value::Str(text.into()))]));
        let (store, batch) = (store.clone(), spans_with("r", first, 50, |span| span.end_attrs = attrs));
        tokio::spawn(async move { store.append(Table::Spans, batch).await })
    };
    // Nothing was put before it.
    send(0, "small").await.unwrap().unwrap();
    let small = send(50, "small");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!small.is_finished() && seen(store.as_ref()).len() == 50, "it waits for others");
    let large: Vec<_> = (0..5).map(|i| send(100 + i * 50, &"x".repeat(20_000))).collect();
    let all = async {
        small.await.unwrap().unwrap();
        for sent in large {
            sent.await.unwrap().unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("what is large enough does not wait");
    assert_eq!(seen(store.as_ref()).len(), 350);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_into_memory_is_shown_later() {
    let world = World::new(1);
    let a = world.open("a").await.unwrap();
    let options = StoreOptions { flush_bytes: 20_000, ..StoreOptions::at(world.cache.path().join("b")) };
    let b = Store::open_lake(options, world.lake("b")).await.unwrap();
    for i in 0..20 {
        a.append(Table::Spans, spans("r", i * 50, 50)).await.unwrap();
    }
    b.follow().await.unwrap();
    let shown = seen(&b).len();
    assert!(shown > 0 && shown < 1000, "{shown}");
    assert!(b.health().problems[0].contains("parts of their logs are shown once they are in the tables"));
    a.flush().await.unwrap();
    b.follow().await.unwrap();
    assert_eq!(seen(&b).len(), 1000);
    assert!(b.health().problems.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_stays_that_another_node_has_written() {
    let world = World::new(1);
    // An open span is in the table. One node gets it again, another one its end.
    let c = world.open("c").await.unwrap();
    c.append(Table::Spans, open_spans("r", 0, 3)).await.unwrap();
    c.close().await.unwrap();
    let (a, b) = (world.open("a").await.unwrap(), world.open("b").await.unwrap());
    a.append(Table::Spans, open_spans("r", 0, 3)).await.unwrap();
    b.append(Table::Spans, spans("r", 0, 3)).await.unwrap();
    b.flush().await.unwrap();
    a.tidy().await.unwrap();
    assert_eq!(seen(&a), expected("r", 0..3));
    a.append(Table::Spans, spans("r", 3, 1)).await.unwrap();
    a.flush().await.unwrap();
    assert_eq!(seen(&a), expected("r", 0..4));
    assert_eq!(world.read().await, expected("r", 0..4));
    assert_eq!(world.tables.rows(&world.inner).await.len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_replaced_does_not_replace_its_successor() {
    let world = World::new(1);
    let old = world.open("a").await.unwrap();
    old.beat().await.unwrap();
    let new = world.open("a").await.unwrap();
    assert!(matches!(old.beat().await.unwrap_err(), StoreError::Fenced));
    old.adopt_silent().await.ok();
    old.adopt_silent().await.ok();
    new.beat().await.unwrap();
    new.append(Table::Spans, spans("r", 0, 10)).await.unwrap();
    new.flush().await.unwrap();
    assert_eq!(world.read().await, expected("r", 0..10));
}

/// Something happens when a table is read.
struct Meanwhile {
    tables: Arc<Versions>,
    what: tokio::sync::Mutex<Option<Store>>,
}

#[async_trait]
impl Tables for Meanwhile {
    async fn read(&self, table: Table) -> std::result::Result<TableVersion, StoreError> {
        if let Some(store) = self.what.lock().await.take() {
            store.flush().await.unwrap();
        }
        self.tables.read(table).await
    }

    async fn marks(&self, table: Table, names: &[String]) -> std::result::Result<Vec<Option<u64>>, StoreError> {
        self.tables.marks(table, names).await
    }

    async fn append(&self, table: Table, after: u64, change: &TableChange) -> std::result::Result<bool, StoreError> {
        self.tables.append(table, after, change).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_sees_open_spans_that_a_flush_passes_on() {
    let world = World::new(1);
    let store = world.open("a").await.unwrap();
    store.append(Table::Spans, open_spans("r", 0, 2)).await.unwrap();
    store.append(Table::Spans, spans("r", 2, 2)).await.unwrap();
    let tables = Arc::new(Meanwhile { tables: world.tables.clone(), what: Some(store).into() });
    let reader = ReadOnlyStore::open_lake(Lake { tables, ..world.lake("reader") }).await.unwrap();
    assert_eq!(seen(&reader).len(), 4);
}

/// A row may be there that was refused, whole or not at all. A span that was open may be closed.
#[derive(Default)]
struct Model {
    /// Whether the end is acknowledged, too.
    acknowledged: BTreeMap<u64, bool>,
    refused: BTreeSet<u64>,
}

impl Model {
    fn sent(&mut self, numbers: std::ops::Range<u64>, is_closed: bool, is_acknowledged: bool) {
        for number in numbers {
            if is_acknowledged {
                *self.acknowledged.entry(number).or_default() |= is_closed;
            } else {
                self.refused.insert(number);
            }
        }
    }
}

async fn run(seed: u64, verbose: bool) -> std::result::Result<u64, String> {
    let world = World::new(seed);
    let mut random = StdRng::seed_from_u64(seed);
    let names = ["a", "b", "ingest"];
    let mut nodes: Vec<Option<Store>> = vec![None; names.len()];
    let mut model = Model::default();
    let mut next = 0;
    let steps = random.random_range(10..50);
    for step in 0..steps {
        let at = random.random_range(0..names.len());
        if nodes[at].is_none() {
            world.set_weather(if random.random_ratio(1, 3) { 30 } else { 0 });
            nodes[at] = world.open(names[at]).await.ok();
            world.set_weather(0);
        }
        let Some(store) = nodes[at].clone() else { continue };
        let what = random.random_range(0..100);
        let say = |text: &str| {
            if verbose {
                println!("{step}: {} {text}", names[at]);
            }
        };
        world.set_weather(if random.random_ratio(1, 4) { random.random_range(2..40) } else { 0 });
        match what {
            0..60 => {
                let n = random.random_range(1..8);
                // Something new, the beginnings of new spans, or what was sent before, perhaps to another node.
                let (first, is_closed) = match random.random_range(0..10) {
                    0..4 => (next, true),
                    4..6 => (next, false),
                    _ => (random.random_range(0..=next), random.random_ratio(3, 4)),
                };
                next = next.max(first + n);
                let rows = if is_closed { spans("r", first, n) } else { open_spans("r", first, n) };
                let sent = store.append(Table::Spans, rows).await;
                let kind = if is_closed { "closed" } else { "open" };
                say(&format!("appends {first}..{} {kind} {sent:?}", first + n));
                model.sent(first..first + n, is_closed, sent.is_ok());
                if matches!(sent, Err(StoreError::Fenced)) {
                    nodes[at] = None;
                }
            }
            60..75 => say(&format!("flushes {:?}", store.flush().await)),
            75..80 => say(&format!("merges {:?}", store.compact().await)),
            80..83 => say(&format!("tidies {:?}", store.tidy().await)),
            // Readers here read at once: there is nobody to wait for.
            83 if world.grace_s == 0 => {
                let cleaned = (store.clean().await, store.clean().await);
                say(&format!("cleans {cleaned:?}"));
            }
            // Whoever has said nothing between two looks counts as dead here, and may go on all the same.
            83..87 => {
                let looked = (store.adopt_silent().await, store.adopt_silent().await);
                say(&format!("looks after others {looked:?}"));
            }
            87..95 => {
                say("is killed");
                nodes[at] = None;
            }
            _ => {
                say(&format!("closes {:?}", store.close().await));
                nodes[at] = None;
            }
        }
        // Where some logs cannot be read, those of others are looked at all the same.
        let _ = store.follow().await;
        world.set_weather(0);
        check(&world.read().await, &model, seed, step)?;
        check_tables(&world, &model, seed, step, false).await?;
        // What this node says itself has each row once, too. It may be behind what others have done. Where it could not read a file to
        // compare it, that is made up for before the next flush.
        let is_sure = world.grace_s > 0 && store.stats().duplicate_check_skipped == 0;
        let follows = names[at] != "ingest";
        // Once it has looked, a node that follows others shows what all have acknowledged.
        let has_looked = is_sure && follows && nodes[at].is_some() && store.follow().await.is_ok();
        let own = if is_sure && (has_looked || !follows) { seen(&store) } else { Vec::new() };
        if own.windows(2).any(|rows| rows[0].1 == rows[1].1) {
            let snapshot = store.snapshot();
            for (i, b) in snapshot.tables[&Table::Spans].tail.iter().enumerate() {
                eprintln!("tail {i} v{} {:?}", snapshot.tables[&Table::Spans].tail_versions[i], crate::numbers(b));
            }
            for s in &snapshot.tables[&Table::Spans].segments {
                eprintln!("segment {} {} open {} {:?}", s.path, s.writer, s.has_open, s.replaces);
            }
            eprintln!("replaced {}", snapshot.tables[&Table::Spans].replaced.len());
            return Err(format!("seed {seed}, step {step}: {} itself has a row twice: {own:?}", names[at]));
        }
        if has_looked {
            check(&own, &model, seed, step).map_err(|why| format!("{} itself: {why}", names[at]))?;
        }
        drop(store);
    }
    // Everything settles: all nodes come back, close, and leave nothing in logs.
    for (name, node) in names.iter().zip(&mut nodes) {
        *node = None;
        let store = world.open(name).await.map_err(|e| format!("seed {seed}: {name} does not open: {e}"))?;
        store.close().await.map_err(|e| format!("seed {seed}: {name} does not close: {e}"))?;
        if verbose {
            println!("{name} leaves {:?}", world.log_objects().await);
        }
    }
    check(&world.read().await, &model, seed, steps)?;
    check_tables(&world, &model, seed, steps, true).await?;
    let store = world.open("a").await.map_err(|e| format!("seed {seed}: a does not open: {e}"))?;
    let cleaned = store.clean().await.and(if world.grace_s == 0 { store.clean().await } else { Ok(0) });
    cleaned.map_err(|e| format!("seed {seed}: a does not clean: {e}"))?;
    store.close().await.map_err(|e| format!("seed {seed}: a does not close: {e}"))?;
    check(&world.read().await, &model, seed, steps)?;
    let strays = world.strays().await;
    if world.grace_s == 0 && !strays.is_empty() {
        return Err(format!("seed {seed}: no table names {strays:?}"));
    }
    let left = world.log_objects().await;
    if left.is_empty() { Ok(steps) } else { Err(format!("seed {seed}: {left:?} are left in logs")) }
}

/// What a reader finds: every row once, with its end if that was acknowledged.
fn check(rows: &[(String, u64, String)], model: &Model, seed: u64, step: u64) -> std::result::Result<(), String> {
    let found: BTreeMap<u64, bool> = rows.iter().map(|(_, number, state)| (*number, state == "closed")).collect();
    let is_there = |(number, closed): (&u64, &bool)| found.get(number).is_some_and(|found| *found || !closed);
    let lost: Vec<u64> = model.acknowledged.iter().filter(|row| !is_there(*row)).map(|(n, _)| *n).collect();
    let is_known = |n: &&u64| model.acknowledged.contains_key(n) || model.refused.contains(n);
    let strange: Vec<&u64> = found.keys().filter(|n| !is_known(n)).collect();
    if lost.is_empty() && strange.is_empty() && rows.len() == found.len() {
        return Ok(());
    }
    let doubled = rows.windows(2).filter(|rows| rows[0].1 == rows[1].1).map(|rows| rows[0].1).collect::<Vec<_>>();
    Err(format!("seed {seed}, step {step}: lost {lost:?}, never sent {strange:?}, doubled {doubled:?}"))
}

/// The tables alone, as other programs see them: no row twice and, at the end, all of them.
async fn check_tables(
    world: &World,
    model: &Model,
    seed: u64,
    step: u64,
    is_end: bool,
) -> std::result::Result<(), String> {
    let mut rows = world.tables.rows(&world.inner).await;
    rows.sort_unstable();
    let doubled: Vec<u64> = rows.windows(2).filter(|rows| rows[0] == rows[1]).map(|rows| rows[0]).collect();
    let missing = model.acknowledged.keys().filter(|n| is_end && rows.binary_search(n).is_err()).collect::<Vec<_>>();
    match doubled.is_empty() && missing.is_empty() {
        true => Ok(()),
        false => {
            Err(format!("seed {seed}, step {step}: the tables alone have {doubled:?} twice, and lack {missing:?}"))
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_row_is_lost_or_doubled() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let (first, seeds, verbose) = match number("SEED") {
        Some(seed) => (seed, 1, true),
        None => (number("FIRST").unwrap_or(0), number("SEEDS").unwrap_or(SEEDS), false),
    };
    let (mut steps, mut failures) = (0, Vec::new());
    for seed in first..first + seeds {
        match AssertUnwindSafe(run(seed, verbose)).catch_unwind().await {
            Ok(Ok(n)) => steps += n,
            Ok(Err(why)) => failures.push(why),
            Err(_) => failures.push(format!("seed {seed} panicked")),
        }
    }
    println!("lake: {seeds} seeds from {first}, {steps} steps, failures: {failures:?}");
    assert!(failures.is_empty(), "{failures:#?}");
}
