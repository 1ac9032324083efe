//! Which writer a node is. `nodes/NAME.json` also names the writers that were the same node before, until their logs are taken over.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::root::Root;

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Node {
    /// `None`: it was shut down, and has left nothing.
    writer: Option<String>,
    before: HashSet<String>,
    version: String,
    at_ns: i64,
}

/// The entry of one node.
#[derive(Clone)]
pub(crate) struct NodeEntry {
    root: Root,
    path: String,
    writer: String,
}

impl NodeEntry {
    /// Enters a writer under the name of a node. Returns the writers that were this node before.
    pub async fn claim(root: &Root, name: &str, writer: &str) -> Result<(NodeEntry, HashSet<String>), StoreError> {
        let path = format!("nodes/{}.json", crate::segment::path_safe(name));
        let found = match root.get(&path).await {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(e) if e.is_missing() => Node::default(),
            Err(e) => return Err(e),
        };
        let before: HashSet<String> = found.before.into_iter().chain(found.writer).collect();
        let entry = NodeEntry { root: root.clone(), path, writer: writer.into() };
        entry.write(Some(writer), before.clone()).await?;
        Ok((entry, before))
    }

    /// The logs of those before it are taken over.
    pub async fn settle(&self) -> Result<(), StoreError> {
        self.write(Some(&self.writer), HashSet::new()).await
    }

    /// It has left nothing.
    pub async fn leave(&self) -> Result<(), StoreError> {
        self.write(None, HashSet::new()).await
    }

    async fn write(&self, writer: Option<&str>, before: HashSet<String>) -> Result<(), StoreError> {
        let (version, at_ns) = (env!("CARGO_PKG_VERSION").into(), rollscope_model::time::now_ns());
        let node = Node { writer: writer.map(str::to_string), before, version, at_ns };
        self.root.put(&self.path, serde_json::to_vec(&node).expect("it is plain data")).await
    }
}
