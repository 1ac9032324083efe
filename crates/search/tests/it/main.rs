//! Search as its users see it: conversations go into a store, the index follows, searches find them.

mod follow;
mod plan;
mod schema;

use std::path::PathBuf;

use rollscope_model::Table;
use rollscope_model::build::{ConversationsBuilder, NewConversation};
use rollscope_search::{Request, Search, SearchResults, catch_up, parse_search};
use rollscope_store::{SnapshotSource, Store, StoreOptions};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub const T0: i64 = 1_790_000_000_000_000_000;

/// A conversation of run `a`, unless it says otherwise.
#[derive(Clone)]
pub struct Talk {
    pub id: &'static str,
    pub run: &'static str,
    pub step: Option<i64>,
    pub sample: Option<&'static str>,
    pub status: Option<&'static str>,
    pub reward: Option<f64>,
    pub messages: Value,
    pub metadata: Option<Value>,
    pub logged_ns: i64,
}

/// A conversation in which the user says one thing.
pub fn talk(id: &'static str, text: &str) -> Talk {
    Talk {
        id,
        run: "a",
        step: None,
        sample: None,
        status: None,
        reward: None,
        messages: json!([{"role": "user", "content": text}]),
        metadata: None,
        logged_ns: T0,
    }
}

/// A store and its index, in one folder.
pub struct World {
    pub runtime: Runtime,
    pub dir: TempDir,
    pub store: Store,
    pub search: Search,
}

impl World {
    pub fn empty() -> World {
        let (runtime, dir) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
        World::open(runtime, dir)
    }

    fn open(runtime: Runtime, dir: TempDir) -> World {
        let store = runtime.block_on(Store::open(StoreOptions::at(dir.path().join("store")))).unwrap();
        let search = Search::open(&dir.path().join("index")).unwrap();
        World { runtime, dir, store, search }
    }

    /// As after the end of the process: what was not committed is gone.
    pub fn restart(self) -> World {
        let World { runtime, dir, store, search } = self;
        drop((store, search));
        World::open(runtime, dir)
    }

    pub fn index_dir(&self) -> PathBuf {
        self.dir.path().join("index")
    }

    pub fn add(&self, talks: &[Talk]) {
        let mut rows = ConversationsBuilder::default();
        for talk in talks {
            let (messages, metadata) = (talk.messages.to_string(), talk.metadata.as_ref().map(Value::to_string));
            rows.push(&NewConversation {
                id: talk.id,
                run_id: talk.run,
                step: talk.step,
                sample_id: talk.sample,
                status: talk.status,
                reward: talk.reward,
                messages: &messages,
                metadata: metadata.as_deref(),
                message_count: talk.messages.as_array().map_or(0, Vec::len) as i64,
                char_count: messages.len() as i64,
                logged_ns: talk.logged_ns,
                ..NewConversation::default()
            });
        }
        self.runtime.block_on(self.store.append(Table::Conversations, rows.finish().unwrap())).unwrap();
    }

    pub fn flush(&self) {
        self.runtime.block_on(self.store.flush()).unwrap();
    }

    /// How many conversations went into the index.
    pub fn catch_up(&self) -> u64 {
        catch_up(&self.search, &self.store.snapshot(), self.runtime.handle()).unwrap()
    }

    pub fn find(&self, text: &str) -> Vec<String> {
        ids(&self.ask(text))
    }

    pub fn ask(&self, text: &str) -> SearchResults {
        self.search.ask(&Request { search: parse_search(text).unwrap(), ..Request::default() }).unwrap()
    }
}

/// Sorted.
pub fn ids(results: &SearchResults) -> Vec<String> {
    let mut ids: Vec<String> = results.rows.iter().map(|row| row.id.clone()).collect();
    ids.sort();
    ids
}
