//! Opens a [lake](rollscope_store::Lake): the object store behind a URL, and its tables, which are [Delta Lake](delta).
//!
//! Knows Delta Lake and the clients of object stores; knows nothing of what the rows mean.

mod delta;
mod place;

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use rollscope_store::{AboutNode, Lake};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use delta::DeltaTables;
pub use place::is_url;

/// What is at the prefix of a lake: `store.json`.
#[derive(Serialize, Deserialize)]
struct About {
    format: u32,
    /// What nodes show each other. Made once, at random.
    #[serde(default)]
    key: String,
}

const ABOUT: &str = "store.json";
/// Of what is written here.
const FORMAT: u32 = 1;
/// How many try at once when a store proves itself for a new lake, and when a node starts later. Some stores take ten seconds for the first.
const TRIES: usize = 32;
const TRIES_AGAIN: usize = 8;
/// A node that says nothing for this long has ended: six times what it waits between two signs.
const SILENCE: Duration = Duration::from_secs(60);

/// Why a lake cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum LakeError {
    #[error("{url}: {why}; expected s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX")]
    Url { url: String, why: String },
    #[error(
        "cannot use the object store at {url}: {why}; check the bucket, its region or endpoint, and the credentials"
    )]
    Unusable { url: String, why: String },
    #[error(
        "the object store at {url} does not keep writers apart: of {tries} that created an object at once, {winners} succeeded instead of one; use a store with conditional writes, such as Amazon S3, Google Cloud Storage, Azure Blob Storage, MinIO or SeaweedFS 4.48"
    )]
    NoConditions { url: String, tries: usize, winners: usize },
    #[error("{url} holds something that is not a lake of rollscope ({ABOUT}: {why}); choose another prefix")]
    NotOurs { url: String, why: String },
    #[error(
        "{url} was written by a newer rollscope (format {found}; this version reads up to {FORMAT}); upgrade rollscope"
    )]
    Newer { url: String, found: u32 },
    #[error(
        "there is no lake at {url}; check the bucket and the prefix, or start `rollscope serve --data {url}` to make one"
    )]
    Missing { url: String },
}

/// Opens the lake at a URL for writing, as this node. Makes it if there is none.
pub async fn open(url: &str, node: AboutNode) -> Result<Lake, LakeError> {
    let objects = connect(url)?;
    let is_new = matches!(objects.head(&Path::from(ABOUT)).await, Err(object_store::Error::NotFound { .. }));
    prove(&objects, url, if is_new { TRIES } else { TRIES_AGAIN }).await?;
    let key = Uuid::new_v4().simple().to_string() + &Uuid::new_v4().simple().to_string();
    let about = serde_json::to_vec(&About { format: FORMAT, key }).expect("it is plain data");
    match objects.put_opts(&Path::from(ABOUT), about.into(), PutOptions::from(PutMode::Create)).await {
        Ok(_) | Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {}
        Err(e) => return Err(unusable(url, &e)),
    }
    let about = check(&objects, url).await?;
    Ok(Lake { key: about.key, node, ..lake(objects) })
}

/// Opens the lake at a URL for reading, perhaps as a node that only works for others.
pub async fn open_for_reading(url: &str, node: AboutNode) -> Result<Lake, LakeError> {
    let objects = connect(url)?;
    let about = check(&objects, url).await?;
    Ok(Lake { key: about.key, node, ..lake(objects) })
}

/// A lake in an object store.
pub fn lake(objects: Arc<dyn ObjectStore>) -> Lake {
    let tables = Arc::new(DeltaTables::new(objects.clone()));
    let (key, node) = (String::new(), AboutNode::default());
    Lake { objects, tables, key, node, silence: SILENCE, follow_every: None }
}

fn connect(url: &str) -> Result<Arc<dyn ObjectStore>, LakeError> {
    let (objects, prefix) = place::connect(url)?;
    Ok(if prefix.as_ref().is_empty() { objects } else { Arc::new(PrefixStore::new(objects, prefix)) })
}

fn unusable(url: &str, e: &object_store::Error) -> LakeError {
    // The sources have what the store said.
    let mut why = e.to_string();
    let mut source = std::error::Error::source(e);
    while let Some(error) = source {
        let text = error.to_string();
        if !why.contains(&text) {
            why = format!("{why}: {text}");
        }
        source = error.source();
    }
    LakeError::Unusable { url: url.into(), why }
}

async fn check(objects: &Arc<dyn ObjectStore>, url: &str) -> Result<About, LakeError> {
    let bytes = match objects.get(&Path::from(ABOUT)).await {
        Err(object_store::Error::NotFound { .. }) => return Err(LakeError::Missing { url: url.into() }),
        Err(e) => return Err(unusable(url, &e)),
        Ok(found) => found.bytes().await.map_err(|e| unusable(url, &e))?,
    };
    let about: About =
        serde_json::from_slice(&bytes).map_err(|e| LakeError::NotOurs { url: url.into(), why: e.to_string() })?;
    if about.format > FORMAT {
        return Err(LakeError::Newer { url: url.into(), found: about.format });
    }
    if about.key.is_empty() {
        return Err(LakeError::NotOurs { url: url.into(), why: "it has no key".into() });
    }
    Ok(about)
}

/// A store must keep writers apart: of many that create an object at once, one succeeds. Some that look like S3 do not.
async fn prove(objects: &Arc<dyn ObjectStore>, url: &str, tries: usize) -> Result<(), LakeError> {
    let scratch = Path::from(format!("scratch/{}", Uuid::new_v4()));
    let create = |n: usize| {
        let (objects, scratch) = (objects.clone(), scratch.clone());
        async move { objects.put_opts(&scratch, n.to_string().into_bytes().into(), PutMode::Create.into()).await }
    };
    let results = join_all((0..tries).map(create)).await;
    let winners = results.iter().filter(|result| result.is_ok()).count();
    let _ = objects.delete(&scratch).await;
    match winners {
        1 => Ok(()),
        // Who could not even try says nothing about the store.
        0 => Err(unusable(url, &results.into_iter().find_map(Result::err).expect("nobody succeeded"))),
        winners => Err(LakeError::NoConditions { url: url.into(), tries, winners }),
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use rollscope_model::Table;
    use rollscope_model::build::{NewSpan, SpansBuilder};
    use rollscope_store::{ReadOnlyStore, SnapshotSource, Store, StoreOptions, Tables};

    use super::*;

    fn spans(first: u64, n: u64) -> deltalake_core::arrow::array::RecordBatch {
        let mut b = SpansBuilder::default();
        for i in first..first + n {
            let start_ns = 1_790_000_000_000_000_000 + i as i64;
            b.push(&NewSpan {
                run_id: "a/b %2F ü",
                step: Some(1),
                trace_id: [1; 16],
                span_id: (i + 1).to_be_bytes(),
                name: "work",
                start_ns,
                end_ns: Some(start_ns + 1),
                ..NewSpan::default()
            });
        }
        b.finish().unwrap()
    }

    fn count(source: &dyn SnapshotSource) -> u64 {
        let snapshot = source.snapshot();
        let spans = &snapshot.tables[&Table::Spans];
        spans.segments.iter().map(|s| s.rows).sum::<u64>() + spans.tail.iter().map(|b| b.num_rows() as u64).sum::<u64>()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn rows_stay_in_delta_tables_over_many_commits_and_restarts() {
        let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let dir = tempfile::tempdir().unwrap();
        let open = async |node: &str| {
            let node = AboutNode { name: node.into(), ..AboutNode::default() };
            let lake = Lake { node, ..lake(objects.clone()) };
            Store::open_lake(StoreOptions { delete_grace_s: 0, log_every_ms: 0, ..StoreOptions::at(dir.path()) }, lake)
                .await
                .unwrap()
        };
        let mut store = open("a").await;
        // Beyond a checkpoint.
        for i in 0..60 {
            store.append(Table::Spans, spans(i * 10, 10)).await.unwrap();
            store.flush().await.unwrap();
            if i % 20 == 19 {
                store.compact().await.unwrap();
                store.close().await.unwrap();
                store = open("a").await;
            }
        }
        store.append(Table::Spans, spans(600, 10)).await.unwrap();
        assert_eq!(count(&store), 610);
        drop(store);
        let reader = ReadOnlyStore::open_lake(lake(objects.clone())).await.unwrap();
        assert_eq!(count(&reader), 610, "what is not in tables is in the log");
        let store = open("a").await;
        assert_eq!(count(&store), 610);
        assert_eq!(store.append(Table::Spans, spans(0, 620)).await.unwrap().accepted, 10);
        store.close().await.unwrap();
        let tables = DeltaTables::new(objects.clone());
        let version = tables.read(Table::Spans).await.unwrap();
        assert_eq!(version.segments.iter().map(|s| s.rows).sum::<u64>(), 620);
        assert!(version.number > 60, "{}", version.number);
        // Others see the same, through the published protocol alone.
        let url = url::Url::parse("memory:///spans/").unwrap();
        let mut table = deltalake_core::DeltaTableBuilder::from_url(url.clone())
            .unwrap()
            .with_storage_backend(objects, url)
            .build()
            .unwrap();
        table.load().await.unwrap();
        assert_eq!(table.version(), Some(version.number));
        assert_eq!(table.get_file_uris().unwrap().count(), version.segments.len());
    }

    #[tokio::test]
    async fn what_is_no_lake_is_refused_with_a_reason() {
        let error =
            async |url: &str| open_for_reading(url, AboutNode::default()).await.map(drop).unwrap_err().to_string();
        assert!(error("s3://").await.contains("expected s3://BUCKET/PREFIX"));
        assert!(error("http://bucket/x").await.contains("expected s3://BUCKET/PREFIX"));
        let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        prove(&objects, "memory", TRIES).await.unwrap();
        assert!(matches!(check(&objects, "m").await, Err(LakeError::Missing { .. })));
        objects.put(&Path::from(ABOUT), "{\"format\":2}".into()).await.unwrap();
        assert!(matches!(check(&objects, "m").await, Err(LakeError::Newer { found: 2, .. })));
        objects.put(&Path::from(ABOUT), "<html>".into()).await.unwrap();
        assert!(matches!(check(&objects, "m").await, Err(LakeError::NotOurs { .. })));
    }
}
