//! Who is there. `nodes/NAME.json` names the writer that a node is, and those that were the same node before, until their logs are taken
//! over. It is written again from time to time. Who is silent is told by the clock of the one who watches: clocks of two machines are never
//! compared.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, PutMode, PutOptions, UpdateVersion};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::root::Root;

const NODES: &str = "nodes";
/// How often a node says that it is there.
pub(crate) const BEAT: Duration = Duration::from_secs(10);

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Node {
    /// `None`: another node has taken over what it left.
    writer: Option<String>,
    before: HashSet<String>,
    version: String,
    beat: u64,
}

impl Node {
    fn writers(self) -> HashSet<String> {
        self.before.into_iter().chain(self.writer).collect()
    }
}

/// The entry of one node.
#[derive(Clone)]
pub(crate) struct NodeEntry {
    root: Root,
    path: String,
    pub writer: String,
    beats: Arc<AtomicU64>,
}

impl NodeEntry {
    /// Enters a writer under the name of a node. Returns the writers that were this node before.
    pub async fn claim(root: &Root, name: &str, writer: &str) -> Result<(NodeEntry, HashSet<String>), StoreError> {
        let path = format!("{NODES}/{}.json", crate::segment::path_safe(name));
        let found = match root.get(&path).await {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(e) if e.is_missing() => Node::default(),
            Err(e) => return Err(e),
        };
        let before = found.writers();
        let entry = NodeEntry { root: root.clone(), path, writer: writer.into(), beats: Arc::default() };
        entry.write(before.clone()).await?;
        Ok((entry, before))
    }

    /// It is there, and the logs of those before it are taken over.
    pub async fn beat(&self) -> Result<(), StoreError> {
        self.write(HashSet::new()).await
    }

    /// It has left nothing.
    pub async fn leave(&self) -> Result<(), StoreError> {
        self.root.delete(&self.path).await
    }

    async fn write(&self, before: HashSet<String>) -> Result<(), StoreError> {
        let beat = self.beats.fetch_add(1, Ordering::Relaxed);
        let (version, writer) = (env!("CARGO_PKG_VERSION").into(), Some(self.writer.clone()));
        self.root.put(&self.path, Node { writer, before, version, beat }.to_json()).await
    }
}

impl Node {
    fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("it is plain data")
    }
}

/// All writers that nodes name.
pub(super) async fn named(root: &Root) -> Result<HashSet<String>, StoreError> {
    let entries: Vec<ObjectMeta> = root.objects.list(Some(&Path::from(NODES))).try_collect().await?;
    let mut named = HashSet::new();
    for about in entries {
        match root.get(about.location.as_ref()).await {
            Ok(bytes) => named.extend(serde_json::from_slice::<Node>(&bytes).unwrap_or_default().writers()),
            // It has just left.
            Err(e) if e.is_missing() => {}
            Err(e) => return Err(e),
        }
    }
    Ok(named)
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
                    let node: Node = serde_json::from_slice(&root.get(&path).await?).unwrap_or_default();
                    let writers = node.writers();
                    if !writers.is_empty() {
                        silent.push(Silent { about, writers });
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
            tracing::debug!(node = %silent.about.location, error = %e, "cannot sign off for another node");
        }
    }
}
