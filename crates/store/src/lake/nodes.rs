//! Who is there. `nodes/NAME.json` names the writer that a node is, and those that were the same node before, until their logs are taken
//! over. It is written again from time to time. Who is silent is told by the clock of the one who watches: clocks of two machines are never
//! compared.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Lake;
use super::load::{Meter, NodeLoad};
use crate::error::StoreError;
use crate::root::Root;

/// An entry is read again after this time although its node is known: it may be another process by now.
const READ_AGAIN: Duration = Duration::from_secs(60);
/// The same for who wants to know how busy nodes are.
const READ_AGAIN_SOON: Duration = Duration::from_secs(5);
/// The role of a node that only works for others.
pub const WORKER: &str = "worker";
/// After so many times the silence of a node that has ended, its entry is deleted if it has left nothing.
const FORGOTTEN: u32 = 10;
const NODES: &str = "nodes";
/// Entries that are read at the same time.
const READ_AT_ONCE: usize = 16;
/// How often an entry is written at once.
const TRIES: usize = 3;
/// How often a node says that it is there.
pub const BEAT: Duration = Duration::from_secs(10);

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Node {
    name: String,
    /// `None`: it writes nothing, or another node has taken over what it left.
    #[serde(skip_serializing_if = "Option::is_none")]
    writer: Option<String>,
    #[serde(skip_serializing_if = "HashSet::is_empty")]
    before: HashSet<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    role: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    host: String,
    /// Where it works for queries of others.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    alarms: Option<String>,
    version: String,
    beat: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<NodeLoad>,
}

impl Node {
    fn writers(self) -> HashSet<String> {
        self.before.into_iter().chain(self.writer).collect()
    }
}

/// What a node says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AboutNode {
    /// One that starts under the same name takes the place of the one before.
    pub name: String,
    pub role: String,
    /// The machine that it is on.
    pub host: String,
    /// Where it works for queries of others, such as `http://10.0.0.3:7201`.
    pub worker: Option<String>,
    /// Which alarms it watches for. One of those that watch for the same ones tells the sinks.
    pub alarms: Option<String>,
}

fn path_of(name: &str) -> String {
    format!("{NODES}/{}.json", crate::segment::path_safe(name))
}

/// The entry of one node that writes.
#[derive(Clone)]
pub(crate) struct NodeEntry {
    root: Root,
    path: String,
    about: AboutNode,
    pub writer: String,
    beats: Arc<AtomicU64>,
    meter: Arc<Mutex<Meter>>,
}

/// A name of its own kind: a worker that has the name of a node that writes does not touch the entry of that.
fn path_of_worker(name: &str) -> String {
    format!("{NODES}/{WORKER}__{}.json", crate::segment::path_safe(name))
}

/// The entry of a node that only works for others.
pub struct WorkerEntry {
    root: Root,
    about: AboutNode,
    beats: u64,
    meter: Meter,
}

impl WorkerEntry {
    pub fn new(lake: &Lake) -> WorkerEntry {
        WorkerEntry {
            root: Root::of_lake(lake.objects.clone()),
            about: lake.node.clone(),
            beats: 0,
            meter: Meter::new(),
        }
    }

    /// Says that it is there. To be called every [`BEAT`].
    pub async fn beat(&mut self) -> Result<(), StoreError> {
        self.beats += 1;
        let load = Some(self.meter.read(0, 0));
        let node = Node { load, ..Node::new(&self.about, None, HashSet::new(), self.beats) };
        self.root.put(&path_of_worker(&self.about.name), node.to_json()).await
    }

    pub async fn leave(&self) -> Result<(), StoreError> {
        self.root.delete(&path_of_worker(&self.about.name)).await
    }
}

impl NodeEntry {
    /// Enters a writer under the name of a node. Returns the writers that were this node before.
    pub async fn claim(
        root: &Root,
        about: &AboutNode,
        writer: &str,
    ) -> Result<(NodeEntry, HashSet<String>), StoreError> {
        let path = path_of(&about.name);
        let found = match root.get(&path).await {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(e) if e.is_missing() => Node::default(),
            Err(e) => return Err(e),
        };
        let before = found.writers();
        let (root, about) = (root.clone(), about.clone());
        let meter = Arc::new(Mutex::new(Meter::new()));
        let entry = NodeEntry { root: root.clone(), path, about, writer: writer.into(), beats: Arc::default(), meter };
        root.put(&entry.path, entry.entry(before.clone(), None).to_json()).await?;
        Ok((entry, before))
    }

    /// It is there. The logs of those `before` it are not taken over yet. `rows`: taken in since the start; `log_rows`: not in tables yet.
    /// Fails if the node is another writer by now: this one was replaced.
    pub async fn beat(&self, rows: u64, log_rows: u64, before: &HashSet<String>) -> Result<(), StoreError> {
        let load = self.meter.lock().read(rows, log_rows);
        let mut tries = 0;
        loop {
            tries += 1;
            match self.write(&self.entry(before.clone(), Some(load))).await {
                // An earlier beat that was given up has come late.
                Err(StoreError::ObjectStore(
                    object_store::Error::Precondition { .. } | object_store::Error::AlreadyExists { .. },
                )) if tries < TRIES => {}
                written => return written,
            }
        }
    }

    async fn write(&self, entry: &Node) -> Result<(), StoreError> {
        let path = Path::from(self.path.as_str());
        let mode = match self.root.objects.get(&path).await {
            Ok(found) => {
                let seen = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
                let node: Node = serde_json::from_slice(&found.bytes().await?).unwrap_or_default();
                if node.writer.as_deref() != Some(&self.writer) {
                    return Err(StoreError::Fenced);
                }
                PutMode::Update(seen)
            }
            Err(object_store::Error::NotFound { .. }) => PutMode::Create,
            Err(e) => return Err(e.into()),
        };
        self.root.objects.put_opts(&path, entry.to_json().into(), PutOptions::from(mode)).await?;
        Ok(())
    }

    pub fn name(&self) -> &str {
        &self.about.name
    }

    pub fn about(&self) -> &AboutNode {
        &self.about
    }

    /// It has left nothing.
    pub async fn leave(&self) -> Result<(), StoreError> {
        self.root.delete(&self.path).await
    }

    fn entry(&self, before: HashSet<String>, load: Option<NodeLoad>) -> Node {
        let beat = self.beats.fetch_add(1, Ordering::Relaxed);
        Node { load, ..Node::new(&self.about, Some(self.writer.clone()), before, beat) }
    }
}

impl Node {
    fn new(about: &AboutNode, writer: Option<String>, before: HashSet<String>, beat: u64) -> Node {
        let AboutNode { name, role, host, worker, alarms } = about.clone();
        let version = env!("CARGO_PKG_VERSION").into();
        Node { name, writer, before, role, host, worker, alarms, version, beat, load: None }
    }

    fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("it is plain data")
    }
}

/// All writers that nodes name.
pub(super) async fn named(root: &Root) -> Result<HashSet<String>, StoreError> {
    let entries: Vec<ObjectMeta> = root.objects.list(Some(&Path::from(NODES))).try_collect().await?;
    let read = |about: ObjectMeta| async move {
        match root.get(about.location.as_ref()).await {
            // Whoever cannot be read may be alive.
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Node::writers)
                .map_err(|e| StoreError::Damaged(format!("{}: {e}; delete it if its node is gone", about.location))),
            // It has just left.
            Err(e) if e.is_missing() => Ok(HashSet::new()),
            Err(e) => Err(e),
        }
    };
    let named: Vec<HashSet<String>> =
        futures::stream::iter(entries.into_iter().map(read)).buffer_unordered(READ_AT_ONCE).try_collect().await?;
    Ok(named.into_iter().flatten().collect())
}

/// Looks at the other nodes again and again.
pub(crate) struct Watch {
    /// For each entry, what it was, and since when it is.
    seen: HashMap<String, (ObjectMeta, Instant)>,
    looked: Instant,
    patience: Duration,
}

/// Who has not looked for so long knows nothing of the others: perhaps the object store could not be reached by anybody.
const LONG: Duration = Duration::from_secs(30);

/// An entry that has not changed for long.
pub(crate) struct Silent {
    about: ObjectMeta,
    pub writers: HashSet<String>,
}

impl Watch {
    pub fn new(patience: Duration) -> Watch {
        Watch { seen: HashMap::new(), looked: Instant::now(), patience }
    }

    /// Nobody has been silent up to now.
    pub fn begin_again(&mut self) {
        self.seen.clear();
    }

    /// The nodes that have been silent for long, and have left something.
    pub async fn silent(&mut self, own: &NodeEntry) -> Result<Vec<Silent>, StoreError> {
        let root = &own.root;
        let entries: Vec<ObjectMeta> = root.objects.list(Some(&Path::from(NODES))).try_collect().await?;
        if self.looked.elapsed() > LONG {
            self.seen.clear();
        }
        self.looked = Instant::now();
        let mut silent = Vec::new();
        for about in entries.into_iter().filter(|about| about.location.as_ref() != own.path) {
            let path = about.location.to_string();
            match self.seen.get(&path) {
                Some((before, since)) if *before == about => {
                    if since.elapsed() < self.patience {
                        continue;
                    }
                    // What a list says of an object is not enough for changing it under a condition: on Google Cloud, its version is missing.
                    let found = match root.objects.get(&about.location).await {
                        Ok(found) => found,
                        Err(object_store::Error::NotFound { .. }) => continue,
                        Err(e) => return Err(e.into()),
                    };
                    if is_another(&about, &found.meta) {
                        // It came back after the list was made.
                        continue;
                    }
                    let about = ObjectMeta { location: about.location, ..found.meta.clone() };
                    let writers = serde_json::from_slice(&found.bytes().await?).map(Node::writers);
                    match writers {
                        // A worker, or one that was taken over. It writes its entry again if it is there after all.
                        Ok(writers) if writers.is_empty() => {
                            if since.elapsed() > self.patience * FORGOTTEN {
                                root.delete(&path).await?;
                            }
                        }
                        Ok(writers) => silent.push(Silent { about, writers }),
                        // It says so each time that [`named`] is asked.
                        Err(_) => {}
                    }
                }
                _ => drop(self.seen.insert(path, (about, Instant::now()))),
            }
        }
        Ok(silent)
    }

    /// Its logs are taken over: it has left nothing, unless it has come back.
    pub async fn settle(&mut self, own: &NodeEntry, silent: Silent) {
        let seen = UpdateVersion { e_tag: silent.about.e_tag, version: silent.about.version };
        let options = PutOptions::from(PutMode::Update(seen));
        let node = Node { version: env!("CARGO_PKG_VERSION").into(), ..Node::default() };
        if let Err(e) = own.root.objects.put_opts(&silent.about.location, node.to_json().into(), options).await {
            tracing::warn!(node = %silent.about.location, error = %e, "cannot sign off for another node");
        }
    }
}

/// Was an object written again since it was listed? Stores write tags and times in other ways in a list, so both must differ.
fn is_another(listed: &ObjectMeta, found: &ObjectMeta) -> bool {
    let tag = |meta: &ObjectMeta| meta.e_tag.as_deref().map(|tag| tag.trim_matches('"').to_string());
    let second = |meta: &ObjectMeta| meta.last_modified.timestamp();
    tag(listed) != tag(found) && second(listed) != second(found)
}

/// A node, as another one sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenNode {
    pub about: AboutNode,
    pub version: String,
    /// It takes data in.
    pub writes: bool,
    /// Since when it has said nothing, by the clock of who looks.
    pub since: Instant,
    /// As it last said itself, before it was last read.
    pub load: Option<NodeLoad>,
}

impl SeenNode {
    /// It has said something lately.
    pub fn is_there(&self) -> bool {
        self.since.elapsed() < BEAT * 3
    }
}

/// Looks who is there, again and again.
pub struct Nodes {
    root: Root,
    seen: HashMap<String, Seen>,
}

struct Seen {
    about: ObjectMeta,
    since: Instant,
    read: Instant,
    node: Node,
}

impl Nodes {
    pub fn new(lake: &Lake) -> Nodes {
        Nodes { root: Root::of_lake(lake.objects.clone()), seen: HashMap::new() }
    }

    /// All nodes that have an entry, by their names. Who was never seen to change is taken to be there, for a while.
    pub async fn look(&mut self) -> Result<Vec<SeenNode>, StoreError> {
        self.look_again(READ_AGAIN).await
    }

    /// The same, with how busy they are now.
    pub async fn look_closely(&mut self) -> Result<Vec<SeenNode>, StoreError> {
        self.look_again(READ_AGAIN_SOON).await
    }

    async fn look_again(&mut self, again: Duration) -> Result<Vec<SeenNode>, StoreError> {
        let entries: Vec<ObjectMeta> = self.root.objects.list(Some(&Path::from(NODES))).try_collect().await?;
        let now = Instant::now();
        let mut seen = HashMap::new();
        for about in entries {
            let path = about.location.to_string();
            let before = self.seen.remove(&path);
            let entry = match before {
                Some(before) if before.about == about => before,
                Some(before) if before.read.elapsed() < again => Seen { about, since: now, ..before },
                _ => match self.root.get(&path).await {
                    Ok(bytes) => {
                        let node = serde_json::from_slice(&bytes).unwrap_or_default();
                        Seen { about, since: now, read: now, node }
                    }
                    // It has just left.
                    Err(e) if e.is_missing() => continue,
                    Err(e) => return Err(e),
                },
            };
            seen.insert(path, entry);
        }
        self.seen = seen;
        let show = |seen: &Seen| {
            let Node { name, role, host, worker, alarms, version, writer, load, .. } = seen.node.clone();
            let about = AboutNode { name, role, host, worker, alarms };
            SeenNode { about, version, writes: writer.is_some(), since: seen.since, load }
        };
        // One without a name has left nothing but its entry.
        let mut all: Vec<SeenNode> = self.seen.values().filter(|seen| !seen.node.name.is_empty()).map(show).collect();
        all.sort_by(|a, b| a.about.name.cmp(&b.about.name));
        Ok(all)
    }
}
