//! Power cuts. Everything that a store does to its disk is recorded. After each change, every state that a cut may leave at
//! that moment is made and opened: what was acknowledged is there once, what was deleted stays away, and nothing is
//! reported as damaged.
//!
//! What a cut may leave, as POSIX has it: of a file, what was synced, and any beginning of what was written since; of a
//! folder, what was synced, and any of the names made, changed and removed since, as long as those of one name stay in
//! order. A rename within a folder is done or not done.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollscope_model::Table;
use rollscope_store::{Change, Disk, SnapshotSource, Store, StoreOptions};

use crate::damage::copy;
use crate::once::{metrics, values};
use crate::{open, open_spans, seen, spans};

/// States made of one moment, at most.
const STATES: usize = 24;

type Rows = BTreeMap<String, String>;
/// Files with what they hold, and folders.
pub type Left = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// What readers see, one text for each row.
fn rows(source: &dyn SnapshotSource) -> Vec<(String, String)> {
    let spans = seen(source).into_iter().map(|(run, number, state)| (format!("span {run} {number}"), state));
    let metrics = values(source)
        .into_iter()
        .flat_map(|(name, values)| values.into_iter().map(move |value| (format!("metric {name}"), value.to_string())));
    let mut rows: Vec<_> = spans.chain(metrics).collect();
    rows.sort();
    rows
}

fn put(rows: &mut Rows, run: &str, numbers: std::ops::Range<u64>, state: &str) {
    rows.extend(numbers.map(|n| (format!("span {run} {n}"), state.to_string())));
}

#[derive(Clone)]
enum Event {
    Change(Op),
    /// From here on a cut leaves one of these.
    Expect(Vec<Rows>),
}

#[derive(Clone)]
pub enum Op {
    MakeFolder(PathBuf),
    Create(PathBuf),
    Write(PathBuf, Vec<u8>),
    Cut(PathBuf, u64),
    Sync(PathBuf),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    SyncFolder(PathBuf),
}

impl Op {
    pub fn of(change: Change, root: &Path) -> Option<Op> {
        let inside = |path: &Path| path.strip_prefix(root).ok().map(Path::to_path_buf);
        Some(match change {
            Change::MakeFolder(path) => Op::MakeFolder(inside(path)?),
            Change::Create(path) => Op::Create(inside(path)?),
            Change::Write(path, data) => Op::Write(inside(path)?, data.to_vec()),
            Change::Cut(path, length) => Op::Cut(inside(path)?, length),
            Change::Sync(path) => Op::Sync(inside(path)?),
            Change::Rename(from, to) => Op::Rename(inside(from)?, inside(to)?),
            Change::Remove(path) => Op::Remove(inside(path)?),
            Change::SyncFolder(path) => Op::SyncFolder(inside(path)?),
        })
    }
}

enum Node {
    /// What it held when it was synced, and after each change since.
    File(Vec<Vec<u8>>),
    Folder {
        synced: BTreeMap<String, usize>,
        /// Names that change together.
        since: Vec<Vec<(String, Option<usize>)>>,
    },
}

/// A disk as a power cut sees it.
pub struct Model {
    nodes: Vec<Node>,
    /// What is where now.
    paths: BTreeMap<PathBuf, usize>,
}

impl Model {
    pub fn new() -> Model {
        let root = Node::Folder { synced: BTreeMap::new(), since: Vec::new() };
        Model { nodes: vec![root], paths: [(PathBuf::new(), 0)].into() }
    }

    /// A disk that holds this, all of it for good.
    pub fn of(left: &Left) -> Model {
        let mut model = Model::new();
        for (path, content) in left.iter().filter(|(path, _)| !path.as_os_str().is_empty()) {
            model.add(
                path,
                match content {
                    Some(content) => Node::File(vec![content.clone()]),
                    None => Node::Folder { synced: BTreeMap::new(), since: Vec::new() },
                },
            );
        }
        for folder in left.iter().filter(|(_, content)| content.is_none()) {
            model.apply(&Op::SyncFolder(folder.0.clone()));
        }
        model
    }

    fn names(&mut self, path: &Path) -> &mut Vec<Vec<(String, Option<usize>)>> {
        match &mut self.nodes[self.paths[path.parent().unwrap()]] {
            Node::Folder { since, .. } => since,
            Node::File(_) => panic!("{} is in a file", path.display()),
        }
    }

    fn file(&mut self, path: &Path) -> &mut Vec<Vec<u8>> {
        match &mut self.nodes[self.paths[path]] {
            Node::File(history) => history,
            Node::Folder { .. } => panic!("{} is a folder", path.display()),
        }
    }

    fn add(&mut self, path: &Path, node: Node) {
        self.nodes.push(node);
        let id = self.nodes.len() - 1;
        self.names(path).push(vec![(name(path), Some(id))]);
        self.paths.insert(path.to_path_buf(), id);
    }

    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::MakeFolder(path) => self.add(path, Node::Folder { synced: BTreeMap::new(), since: Vec::new() }),
            Op::Create(path) => self.add(path, Node::File(vec![Vec::new()])),
            Op::Write(path, data) => {
                let history = self.file(path);
                let longer = [history.last().unwrap().as_slice(), data].concat();
                history.push(longer);
            }
            Op::Cut(path, length) => {
                let history = self.file(path);
                let shorter = history.last().unwrap()[..*length as usize].to_vec();
                history.push(shorter);
            }
            Op::Sync(path) => {
                let history = self.file(path);
                history.drain(..history.len() - 1);
            }
            Op::Rename(from, to) => {
                // The disk refuses it if there is no such file.
                let Some(id) = self.paths.remove(from) else { return };
                match from.parent() == to.parent() {
                    true => self.names(from).push(vec![(name(from), None), (name(to), Some(id))]),
                    false => {
                        self.names(to).push(vec![(name(to), Some(id))]);
                        self.names(from).push(vec![(name(from), None)]);
                    }
                }
                self.paths.insert(to.clone(), id);
            }
            Op::Remove(path) => {
                if self.paths.remove(path).is_some() {
                    self.names(path).push(vec![(name(path), None)]);
                }
            }
            Op::SyncFolder(path) => {
                // The disk refuses it if there is no such folder.
                let Some(id) = self.paths.get(path) else { return };
                if let Node::Folder { synced, since } = &mut self.nodes[*id] {
                    since.drain(..).flatten().for_each(|(name, id)| set(synced, name, id));
                }
            }
        }
    }

    /// In how many ways each thing that is not synced can be left.
    pub fn options(&self) -> Vec<usize> {
        let of = |node: &Node| match node {
            // As it was synced, as it is after each change, and in the middle of each.
            Node::File(history) => vec![history.len() * 2 - 1],
            Node::Folder { since, .. } => vec![2; since.len()],
        };
        self.nodes.iter().flat_map(of).filter(|options| *options > 1).collect()
    }

    /// The files and folders after a cut. The numbers choose among the options.
    pub fn left(&self, choices: &[usize]) -> Left {
        let mut choices = choices.iter().copied();
        let mut folders: Vec<Option<BTreeMap<String, usize>>> = Vec::new();
        let mut files: Vec<Option<Vec<u8>>> = Vec::new();
        for node in &self.nodes {
            match node {
                Node::File(history) => {
                    let choice = if history.len() > 1 { choices.next().unwrap() } else { 0 };
                    let (before, after) = (&history[choice / 2], &history[choice.div_ceil(2)]);
                    let half = (before.len() + after.len()) / 2;
                    let longer = if before.len() > after.len() { before } else { after };
                    files.push(Some(if before == after { after.clone() } else { longer[..half].to_vec() }));
                    folders.push(None);
                }
                Node::Folder { synced, since } => {
                    let mut names = synced.clone();
                    let mut lost: HashSet<&str> = HashSet::new();
                    for change in since {
                        let is_kept = choices.next().unwrap() == 1;
                        // What was done to a name before comes first.
                        if is_kept && !change.iter().any(|(name, _)| lost.contains(name.as_str())) {
                            change.iter().for_each(|(name, id)| set(&mut names, name.clone(), *id));
                        } else {
                            lost.extend(change.iter().map(|(name, _)| name.as_str()));
                        }
                    }
                    folders.push(Some(names));
                    files.push(None);
                }
            }
        }
        let mut found = BTreeMap::new();
        let mut open = vec![(PathBuf::new(), 0)];
        while let Some((path, id)) = open.pop() {
            if let Some(names) = &folders[id] {
                open.extend(names.iter().map(|(name, id)| (path.join(name), *id)));
            }
            found.insert(path, files[id].clone());
        }
        found
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_string()
}

fn set(names: &mut BTreeMap<String, usize>, name: String, id: Option<usize>) {
    match id {
        Some(id) => drop(names.insert(name, id)),
        None => drop(names.remove(&name)),
    }
}

/// A store that writes on a recorded disk, beside what is to be in it.
struct Recording {
    dir: tempfile::TempDir,
    events: Arc<Mutex<Vec<Event>>>,
    rows: Rows,
    /// The process is killed before it syncs its log.
    kill: Arc<AtomicBool>,
}

impl Recording {
    fn new() -> Recording {
        let recording = Recording { dir: folder(), events: Arc::default(), rows: Rows::new(), kill: Arc::default() };
        recording.expect(vec![Rows::new()]);
        recording
    }

    fn expect(&self, rows: Vec<Rows>) {
        self.events.lock().unwrap().push(Event::Expect(rows));
    }

    /// Opens the store, as after a `kill -9`: nothing is lost, and nothing is synced.
    async fn open(&self) -> Store {
        let (events, root) = (self.events.clone(), self.dir.path().canonicalize().unwrap());
        let (kill, is_dead) = (self.kill.clone(), AtomicBool::new(false));
        let disk = Disk::watched(Arc::new(move |change| {
            let syncs_log = matches!(change, Change::Sync(path) if path.extension().is_some_and(|e| e == "log"));
            if is_dead.load(Ordering::Relaxed) || syncs_log && kill.swap(false, Ordering::Relaxed) {
                is_dead.store(true, Ordering::Relaxed);
                return Err(std::io::Error::other("the process was killed"));
            }
            events.lock().unwrap().extend(Op::of(change, &root).map(Event::Change));
            Ok(())
        }));
        let options = StoreOptions { delete_grace_s: 0, ..StoreOptions::at(self.dir.path()) };
        Store::open_on(options, disk).await.unwrap()
    }

    /// Does something that leads to these rows.
    async fn change(&mut self, change: impl FnOnce(&mut Rows), work: impl Future<Output = ()>) {
        let before = self.rows.clone();
        change(&mut self.rows);
        self.expect(vec![before, self.rows.clone()]);
        work.await;
        self.expect(vec![self.rows.clone()]);
    }

    async fn append(&mut self, store: &Store, run: &str, numbers: std::ops::Range<u64>, state: &str) {
        let make = if state == "open" { open_spans } else { spans };
        let batch = make(run, numbers.start, numbers.end - numbers.start);
        let work = async { assert!(store.append(Table::Spans, batch).await.is_ok()) };
        self.change(|rows| put(rows, run, numbers, state), work).await;
    }

    /// The process is killed when the rows are in its log, which is not synced.
    async fn append_and_be_killed(&mut self, store: Store, run: &str, numbers: std::ops::Range<u64>) {
        let before = self.rows.clone();
        self.kill.store(true, Ordering::Relaxed);
        let batch = spans(run, numbers.start, numbers.end - numbers.start);
        put(&mut self.rows, run, numbers, "closed");
        self.expect(vec![before, self.rows.clone()]);
        assert!(store.append(Table::Spans, batch).await.is_err());
    }

    async fn measure(&mut self, store: &Store, value: f64) {
        let work = async { assert!(store.append(Table::Metrics, metrics("a", 0, 3, value)).await.is_ok()) };
        let change = |rows: &mut Rows| rows.extend((0..3).map(|i| (format!("metric m{i}"), value.to_string())));
        self.change(change, work).await;
    }

    async fn delete(&mut self, store: &Store, run: &str) {
        let work = async { assert!(store.delete_run(run).await.unwrap()) };
        self.change(|rows| rows.retain(|key, _| !key.starts_with(&format!("span {run} "))), work).await;
    }
}

/// In memory, where there is such a place.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Two processes, the first of which is killed: rows of all kinds come, are replaced, merged, deleted and come again.
async fn record() -> Vec<Event> {
    let mut it = Recording::new();
    let store = it.open().await;
    it.append(&store, "a", 0..10, "closed").await;
    it.append(&store, "a", 20..22, "open").await;
    it.measure(&store, 1.0).await;
    store.flush().await.unwrap();
    it.append(&store, "b", 30..40, "closed").await;
    it.append(&store, "a", 20..21, "closed").await;
    it.measure(&store, 2.0).await;
    store.flush().await.unwrap();
    it.append(&store, "a", 40..50, "closed").await;
    store.compact().await.unwrap();
    it.append(&store, "b", 50..52, "closed").await;
    it.delete(&store, "b").await;
    it.append(&store, "b", 30..33, "closed").await;
    store.snapshot().keep_derived("a", "x", vec![1]).await;
    it.append(&store, "c", 60..70, "open").await;
    it.append_and_be_killed(store, "b", 80..83).await;
    let store = it.open().await;
    // It was not acknowledged, so it comes again.
    it.append(&store, "b", 80..83, "closed").await;
    it.measure(&store, 3.0).await;
    store.close().await.unwrap();
    drop(store);
    let store = it.open().await;
    it.append(&store, "c", 60..65, "closed").await;
    store.flush().await.unwrap();
    it.delete(&store, "c").await;
    it.measure(&store, 4.0).await;
    store.compact().await.unwrap();
    drop(store);
    std::mem::take(&mut it.events.lock().unwrap())
}

/// All ways to choose, if there are few; otherwise all of none, all of everything, and some by chance.
fn choices(options: &[usize], chance: &mut StdRng) -> Vec<Vec<usize>> {
    let ways = options.iter().try_fold(1usize, |ways, n| ways.checked_mul(*n)).unwrap_or(usize::MAX);
    let nth = |mut way: usize| {
        let digit = |n: &usize| {
            let digit = way % n;
            way /= n;
            digit
        };
        options.iter().map(digit).collect()
    };
    if ways <= STATES {
        return (0..ways).map(nth).collect();
    }
    let mut some = vec![vec![0; options.len()], options.iter().map(|n| n - 1).collect()];
    some.extend((2..STATES).map(|_| options.iter().map(|n| chance.random_range(0..*n)).collect::<Vec<_>>()));
    some
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_at_any_moment_loses_nothing_and_doubles_nothing() {
    let seed: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(18);
    let mut chance = StdRng::seed_from_u64(seed);
    let events = record().await;
    let mut model = Model::new();
    let mut expected = Vec::new();
    let mut tried: HashSet<u64> = HashSet::new();
    let (mut moments, mut states, mut opened) = (0, 0, 0);
    for event in &events {
        match event {
            Event::Expect(rows) => {
                expected = rows.clone();
                tried.clear();
            }
            Event::Change(op) => model.apply(op),
        }
        moments += 1;
        for choice in choices(&model.options(), &mut chance) {
            states += 1;
            let left = model.left(&choice);
            let mut hasher = DefaultHasher::new();
            left.hash(&mut hasher);
            if tried.insert(hasher.finish()) {
                check(&left, &expected, &format!("seed {seed}, moment {moments}, choice {choice:?}")).await;
                opened += 1;
            }
        }
    }
    println!("power cuts: {moments} moments, {states} states, {opened} of them different and opened, seed {seed}");
}

/// Makes what a cut left.
pub fn restore(left: &Left, dir: &Path) {
    for (path, content) in left {
        match content {
            None => std::fs::create_dir_all(dir.join(path)).unwrap(),
            Some(content) => std::fs::write(dir.join(path), content).unwrap(),
        }
    }
}

async fn check(left: &Left, expected: &[Rows], at: &str) {
    let dir = folder();
    restore(left, dir.path());
    let store = match Store::open(StoreOptions::at(dir.path())).await {
        Ok(store) => store,
        Err(e) => panic!("{at}: {e}"),
    };
    let found = rows(&store);
    let is_one = |rows: &&Rows| rows.iter().map(|(k, v)| (k.clone(), v.clone())).eq(found.iter().cloned());
    assert!(expected.iter().any(|rows| is_one(&rows)), "{at}: {found:?} instead of {expected:?}\n{:#?}", left.keys());
    assert_eq!(store.health().problems, Vec::<String>::new(), "{at}");
    if found.iter().any(|(key, _)| key.starts_with("span")) {
        let types = &store.snapshot().attr_types[&Table::Spans]["end_attrs"];
        assert!(types.contains_key("n") && types.contains_key("text"), "{at}: {types:?}");
    }
}

/// The manifest is kept twice. Whichever is lost or damaged, nothing comes back and nothing is forgotten, while all files
/// that were replaced and deleted are still there.
#[tokio::test]
async fn a_lost_manifest_says_the_same_when_it_is_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.append(Table::Spans, spans("a", 0, 10)).await.unwrap();
    store.append(Table::Spans, spans("deleted", 100, 10)).await.unwrap();
    store.append(Table::Metrics, metrics("a", 0, 3, 1.0)).await.unwrap();
    store.flush().await.unwrap();
    store.append(Table::Metrics, metrics("a", 0, 3, 2.0)).await.unwrap();
    store.append(Table::Metrics, metrics("a", 10, 3, 1.0)).await.unwrap();
    store.flush().await.unwrap();
    store.append(Table::Metrics, metrics("a", 10, 1, 2.0)).await.unwrap();
    store.append(Table::Spans, spans("a", 10, 10)).await.unwrap();
    store.compact().await.unwrap();
    assert!(store.delete_run("deleted").await.unwrap());
    let (wanted, types) = (rows(&store), store.snapshot().attr_types.clone());
    drop(store);
    for file in ["manifest.json", "commits.log"] {
        for kind in ["gone", "empty", "cut", "flip"] {
            let again = tempfile::tempdir().unwrap();
            copy(dir.path(), again.path());
            let path = again.path().join(file);
            let mut data = std::fs::read(&path).unwrap();
            let middle = data.len() / 2;
            data[middle] ^= 1;
            match kind {
                "gone" => std::fs::remove_file(&path).unwrap(),
                "empty" => std::fs::write(&path, b"").unwrap(),
                "cut" => std::fs::write(&path, &data[..middle]).unwrap(),
                _ => std::fs::write(&path, &data).unwrap(),
            }
            for round in 0..2 {
                let store = open(again.path()).await;
                assert_eq!(rows(&store), wanted, "{file} {kind} {round}");
                assert_eq!(store.snapshot().attr_types, types, "{file} {kind} {round}");
                let problems = store.health().problems;
                assert!(problems.iter().all(|problem| problem.contains(file)), "{file} {kind}: {problems:?}");
            }
        }
    }
    // Without both, the types of attributes are in the segments.
    for file in ["manifest.json", "commits.log"] {
        std::fs::remove_file(dir.path().join(file)).unwrap();
    }
    assert_eq!(open(dir.path()).await.snapshot().attr_types, types);
}
