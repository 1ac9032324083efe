//! Which files are in each table, as [Delta Lake](https://github.com/delta-io/delta/blob/master/PROTOCOL.md) keeps it: a log of versions
//! beside the files, `TABLE/_delta_log/N.json`, each created once. DuckDB, Polars, Spark and others read the tables by this alone.
//!
//! A table is loaded through `deltalake-core`, which knows checkpoints. After that, its versions are followed one by one, which is one request
//! per version. What rollscope knows about a file beyond the protocol (runs, steps, checksum) is in the tags of its `add`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use deltalake_core::kernel::engine::arrow_conversion::TryIntoKernel;
use deltalake_core::kernel::transaction::{CommitData, TransactionError};
use deltalake_core::kernel::{Action, Add, Protocol, Remove, StructType, Transaction, new_metadata};
use deltalake_core::logstore::CommitOrBytes;
use deltalake_core::protocol::{DeltaOperation, SaveMode, checkpoints};
use deltalake_core::{DeltaTable, DeltaTableBuilder, DeltaTableError};
use futures::TryStreamExt;
use object_store::ObjectStore;
use rollscope_model::Table;
use rollscope_store::{AttrTypes, Segment, StoreError, TableChange, TableVersion, Tables};
use tokio::sync::Mutex;
use url::Url;
use uuid::Uuid;

/// What rollscope knows about a file.
const SEGMENT: &str = "rollscope.segment";
/// Types of attributes of the table that no file had before the commit that added this one.
const ATTR_TYPES: &str = "rollscope.attr_types";
/// A checkpoint is written after this many versions, so that a start need not read them one by one.
const CHECKPOINT_EVERY: u64 = 50;
/// The oldest versions of the protocol that do: everybody can read them.
const PROTOCOL: &str = r#"{"minReaderVersion":1,"minWriterVersion":2}"#;

pub struct DeltaTables {
    objects: Arc<dyn ObjectStore>,
    tables: [Mutex<Option<Followed>>; Table::COUNT],
}

/// A table as it was loaded, and what has happened since.
struct Followed {
    loaded: DeltaTable,
    number: u64,
    files: BTreeMap<String, File>,
    /// Also those of which nothing is recorded.
    marks: HashMap<String, Option<u64>>,
}

struct File {
    segment: Arc<Segment>,
    attr_types: AttrTypes,
}

impl DeltaTables {
    /// Tables in the folders of a store.
    pub fn new(objects: Arc<dyn ObjectStore>) -> DeltaTables {
        DeltaTables { objects, tables: Default::default() }
    }

    fn build(&self, table: Table) -> Result<DeltaTable, StoreError> {
        // Only the path counts: requests go to `objects`.
        let url = Url::parse(&format!("memory:///{}/", table.name())).expect("names of tables are plain");
        let builder = DeltaTableBuilder::from_url(url.clone()).map_err(|e| failed(table, &e))?;
        builder.with_storage_backend(self.objects.clone(), url).build().map_err(|e| failed(table, &e))
    }

    async fn load(&self, table: Table) -> Result<Followed, StoreError> {
        let mut loaded = self.build(table)?;
        match loaded.load().await {
            Err(DeltaTableError::NotATable(_) | DeltaTableError::InvalidTableLocation(_)) => {
                create(table, &loaded).await?;
                loaded.load().await.map_err(|e| failed(table, &e))?;
            }
            done => done.map_err(|e| failed(table, &e))?,
        }
        let number = loaded.version().unwrap_or(0);
        let state = loaded.snapshot().map_err(|e| failed(table, &e))?.snapshot();
        let views: Vec<_> =
            state.file_views(loaded.log_store().as_ref(), None).try_collect().await.map_err(|e| failed(table, &e))?;
        let mut files = BTreeMap::new();
        for view in views {
            #[expect(deprecated, reason = "nothing else gives the tags of a file")]
            let add = view.add_action();
            files.insert(add.path.clone(), file(table, &add)?);
        }
        Ok(Followed { loaded, number, files, marks: HashMap::new() })
    }
}

#[async_trait]
impl Tables for DeltaTables {
    async fn read(&self, table: Table) -> Result<TableVersion, StoreError> {
        let mut followed = self.tables[table as usize].lock().await;
        if followed.is_none() {
            *followed = Some(self.load(table).await?);
        }
        let followed = followed.as_mut().expect("it was just loaded");
        let log = followed.loaded.log_store();
        while let Some(entry) = log.read_commit_entry(followed.number + 1).await.map_err(|e| failed(table, &e))? {
            followed.apply(table, &entry)?;
        }
        Ok(followed.version())
    }

    async fn marks(&self, table: Table, names: &[String]) -> Result<Vec<Option<u64>>, StoreError> {
        let mut followed = self.tables[table as usize].lock().await;
        let Some(followed) = followed.as_mut() else { return Ok(vec![None; names.len()]) };
        let mut marks = Vec::with_capacity(names.len());
        for name in names {
            if !followed.marks.contains_key(name) {
                let state = followed.loaded.snapshot().map_err(|e| failed(table, &e))?;
                let log = followed.loaded.log_store();
                let mark = state.transaction_version(log.as_ref(), name).await.map_err(|e| failed(table, &e))?;
                followed.marks.insert(name.clone(), mark.map(|mark| mark as u64));
            }
            marks.push(followed.marks[name]);
        }
        Ok(marks)
    }

    async fn append(&self, table: Table, after: u64, change: &TableChange) -> Result<bool, StoreError> {
        let mut followed = self.tables[table as usize].lock().await;
        let Some(followed) = followed.as_mut().filter(|followed| followed.number == after) else { return Ok(false) };
        let entry = commit(table, change, &followed.types_for(table, change))
            .get_bytes()
            .map_err(|e| StoreError::Busy(e.to_string()))?;
        let log = followed.loaded.log_store();
        match log.write_commit_entry(after + 1, CommitOrBytes::LogBytes(entry.clone()), Uuid::new_v4()).await {
            Ok(()) => {}
            Err(TransactionError::VersionAlreadyExists(_)) => return Ok(false),
            Err(e) => return Err(StoreError::Busy(format!("cannot commit to the table {}: {e}", table.name()))),
        }
        followed.apply(table, &entry)?;
        if followed.number.is_multiple_of(CHECKPOINT_EVERY) {
            let mut fresh = self.build(table)?;
            // Nobody waits for it, and without it the next one does.
            tokio::spawn(async move {
                let written = async {
                    fresh.load().await?;
                    checkpoints::create_checkpoint(&fresh, None).await
                };
                if let Err(e) = written.await {
                    tracing::warn!(table = table.name(), error = %e, "cannot write a checkpoint; trying again later");
                }
            });
        }
        Ok(true)
    }
}

impl Followed {
    /// Takes in the next version.
    fn apply(&mut self, table: Table, entry: &[u8]) -> Result<(), StoreError> {
        for line in entry.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
            let action: Action = serde_json::from_slice(line).map_err(|e| {
                StoreError::Damaged(format!("version {} of the table {}: {e}", self.number + 1, table.name()))
            })?;
            match action {
                Action::Add(add) => drop(self.files.insert(add.path.clone(), file(table, &add)?)),
                Action::Remove(remove) => drop(self.files.remove(&remove.path)),
                Action::Txn(txn) => drop(self.marks.insert(txn.app_id, Some(txn.version as u64))),
                Action::Protocol(protocol) if protocol != our_protocol() => {
                    return Err(StoreError::Damaged(format!(
                        "another program has given the table {} a newer protocol; this version of rollscope cannot use it",
                        table.name()
                    )));
                }
                _ => {}
            }
        }
        self.number += 1;
        Ok(())
    }

    /// The files that a change adds, with the types of attributes that no other file would have: a table may have thousands of attributes, and
    /// they must not stand in each version again. If it adds none, a file that stays gets what only those had that go.
    fn types_for(&self, table: Table, change: &TableChange) -> Vec<(Arc<Segment>, AttrTypes)> {
        let removed: HashSet<String> = change.removed.iter().map(|segment| relative(table, segment)).collect();
        let kept = || self.files.iter().filter(|(path, _)| !removed.contains(*path)).map(|(_, file)| file);
        let mut lacking = change.attr_types.clone();
        for (column, keys) in kept().flat_map(|file| &file.attr_types) {
            let Some(lacking) = lacking.get_mut(column) else { continue };
            for (key, bits) in keys {
                // All kinds of values that were seen of an attribute are named together.
                if lacking.get(key).is_some_and(|wanted| bits & wanted == *wanted) {
                    lacking.remove(key);
                }
            }
        }
        lacking.retain(|_, keys| !keys.is_empty());
        let mut added: Vec<(Arc<Segment>, AttrTypes)> =
            change.added.iter().map(|segment| (segment.clone(), AttrTypes::new())).collect();
        if lacking.is_empty() {
            return added;
        }
        if added.is_empty() {
            // What the log says of a file again takes the place of what it said before.
            added.extend(kept().next().map(|file| (file.segment.clone(), file.attr_types.clone())));
        }
        if let Some((_, types)) = added.first_mut() {
            for (column, keys) in lacking {
                let of_column = types.entry(column).or_default();
                keys.into_iter().for_each(|(key, bits)| *of_column.entry(key).or_default() |= bits);
            }
        }
        added
    }

    fn version(&self) -> TableVersion {
        let mut segments: Vec<Arc<Segment>> = self.files.values().map(|file| file.segment.clone()).collect();
        // The name of a file begins with the time at which it was written.
        segments.sort_by(|a, b| a.path.rsplit('/').next().cmp(&b.path.rsplit('/').next()));
        let mut attr_types = AttrTypes::new();
        for file in self.files.values() {
            for (column, keys) in &file.attr_types {
                let known = attr_types.entry(column.clone()).or_default();
                keys.iter().for_each(|(key, bits)| *known.entry(key.clone()).or_default() |= bits);
            }
        }
        TableVersion { number: self.number, segments, attr_types }
    }
}

fn our_protocol() -> Protocol {
    serde_json::from_str(PROTOCOL).expect("it is right")
}

/// The first version of a table. Somebody else may be first.
async fn create(table: Table, loaded: &DeltaTable) -> Result<(), StoreError> {
    let schema: StructType = table.schema().as_ref().try_into_kernel().map_err(StoreError::Arrow)?;
    let none: [String; 0] = [];
    let config = [("delta.checkpointInterval", CHECKPOINT_EVERY.to_string())];
    let metadata = new_metadata(&schema, none, config).map_err(|e| StoreError::Busy(e.to_string()))?;
    let operation = DeltaOperation::Create {
        mode: SaveMode::Ignore,
        location: loaded.table_url().clone(),
        protocol: our_protocol(),
        metadata: metadata.clone(),
    };
    let actions = vec![Action::Protocol(our_protocol()), Action::Metadata(metadata)];
    let entry = CommitData::new(actions, operation, HashMap::new(), Vec::new()).get_bytes();
    let entry = CommitOrBytes::LogBytes(entry.map_err(|e| StoreError::Busy(e.to_string()))?);
    match loaded.log_store().write_commit_entry(0, entry, Uuid::new_v4()).await {
        Ok(()) | Err(TransactionError::VersionAlreadyExists(_)) => Ok(()),
        Err(e) => Err(StoreError::Busy(format!("cannot make the table {}: {e}", table.name()))),
    }
}

/// `added`: see [`Followed::types_for`].
fn commit(table: Table, change: &TableChange, added: &[(Arc<Segment>, AttrTypes)]) -> CommitData {
    let now = chrono::Utc::now().timestamp_millis();
    let mut actions = Vec::new();
    for (segment, attr_types) in added {
        let about = serde_json::to_string(segment.as_ref()).expect("a segment is plain data");
        let mut tags = HashMap::from([(SEGMENT.to_string(), Some(about))]);
        if !attr_types.is_empty() {
            let types = serde_json::to_string(attr_types).expect("types are plain data");
            tags.insert(ATTR_TYPES.to_string(), Some(types));
        }
        actions.push(Action::Add(Add {
            path: relative(table, segment),
            size: segment.bytes as i64,
            modification_time: now,
            data_change: change.is_new && !change.added.is_empty(),
            stats: Some(stats(segment)),
            tags: Some(tags),
            ..Add::default()
        }));
    }
    for segment in &change.removed {
        actions.push(Action::Remove(Remove {
            path: relative(table, segment),
            data_change: change.is_new,
            deletion_timestamp: Some(now),
            extended_file_metadata: Some(true),
            size: Some(segment.bytes as i64),
            partition_values: Some(HashMap::new()),
            ..Remove::default()
        }));
    }
    let mark = |(name, number): &(String, u64)| Transaction {
        app_id: name.clone(),
        version: *number as i64,
        last_updated: Some(now),
    };
    let operation = match (change.removed.is_empty(), change.added.is_empty()) {
        (true, _) => DeltaOperation::Write { mode: SaveMode::Append, partition_by: None, predicate: None },
        (false, true) => DeltaOperation::Delete { predicate: None },
        (false, false) => DeltaOperation::Update { predicate: None },
    };
    CommitData::new(actions, operation, HashMap::new(), change.marks.iter().map(mark).collect())
}

/// The path below the table.
fn relative(table: Table, segment: &Segment) -> String {
    let below = segment.path.strip_prefix(table.name()).and_then(|path| path.strip_prefix('/'));
    below.unwrap_or(&segment.path).to_string()
}

/// What lets others leave out files. Only what is exact: they may answer from it.
fn stats(segment: &Segment) -> String {
    let (mut min, mut max) = (serde_json::Map::new(), serde_json::Map::new());
    if let (Some(first), Some(last)) = (segment.runs().min(), segment.runs().max()) {
        min.insert("run_id".into(), first.into());
        max.insert("run_id".into(), last.into());
    }
    if let Some((first, last)) = segment.steps {
        min.insert("step".into(), first.into());
        max.insert("step".into(), last.into());
    }
    serde_json::json!({ "numRecords": segment.rows, "minValues": min, "maxValues": max, "nullCount": { "run_id": 0 } })
        .to_string()
}

fn file(table: Table, add: &Add) -> Result<File, StoreError> {
    let tag = |name: &str| add.tags.as_ref().and_then(|tags| tags.get(name)?.as_deref());
    let foreign = |why: &str| {
        StoreError::Damaged(format!(
            "the file {} of the table {name} was written by another program ({why}); others may read the tables of a lake, not change them. \
             To go on, delete the versions in {name}/_delta_log from that one on, if rollscope has written none after it",
            add.path,
            name = table.name()
        ))
    };
    let segment = tag(SEGMENT).ok_or_else(|| foreign("it has no description"))?;
    let segment: Segment = serde_json::from_str(segment).map_err(|e| foreign(&e.to_string()))?;
    if relative(table, &segment) != add.path {
        return Err(foreign("its description names another file"));
    }
    let attr_types = tag(ATTR_TYPES).map(serde_json::from_str).transpose().map_err(|e| foreign(&e.to_string()))?;
    Ok(File { segment: Arc::new(segment), attr_types: attr_types.unwrap_or_default() })
}

fn failed(table: Table, e: &DeltaTableError) -> StoreError {
    StoreError::Busy(format!("cannot read the table {}: {e}", table.name()))
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;
    use object_store::path::Path;

    use super::*;

    #[tokio::test]
    async fn attributes_stand_in_one_version_until_their_file_is_removed() {
        let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let tables = DeltaTables::new(objects.clone());
        let segment = |name: &str| {
            let path = format!("spans/{name}.parquet");
            Arc::new(Segment { table: "spans".into(), run_id: "r".into(), path, ..Segment::default() })
        };
        let types = |keys: &[(&str, u8)]| {
            let keys = keys.iter().map(|(key, bits)| (key.to_string(), *bits)).collect();
            AttrTypes::from([("attrs".to_string(), keys)])
        };
        let mut after = tables.read(Table::Spans).await.unwrap().number;
        let mut append = async |added: &str, removed: &[&str], known: &[(&str, u8)]| {
            let change = TableChange {
                added: Some(added).filter(|name| !name.is_empty()).map(segment).into_iter().collect(),
                removed: removed.iter().map(|name| segment(name)).collect(),
                is_new: true,
                attr_types: types(known),
                marks: Vec::new(),
            };
            assert!(tables.append(Table::Spans, after, &change).await.unwrap());
            after += 1;
            assert_eq!(tables.read(Table::Spans).await.unwrap().attr_types, types(known));
            let entry = objects.get(&Path::from(format!("spans/_delta_log/{after:020}.json"))).await.unwrap();
            let entry = String::from_utf8(entry.bytes().await.unwrap().to_vec()).unwrap();
            ["alpha", "beta", "gamma"].into_iter().filter(|key| entry.contains(key)).collect::<Vec<_>>()
        };
        assert_eq!(append("1", &[], &[("alpha", 1), ("beta", 1)]).await, ["alpha", "beta"]);
        assert!(append("2", &[], &[("alpha", 1), ("beta", 1)]).await.is_empty());
        assert_eq!(append("3", &[], &[("alpha", 1), ("beta", 3), ("gamma", 2)]).await, ["beta", "gamma"]);
        assert_eq!(append("4", &["1"], &[("alpha", 1), ("beta", 3), ("gamma", 2)]).await, ["alpha"]);
        assert_eq!(append("5", &["2", "3", "4"], &[("alpha", 1), ("beta", 3), ("gamma", 2)]).await.len(), 3);
        // A file goes, and none comes: one that stays gets what only that one had.
        let all = [("alpha", 1), ("beta", 3), ("gamma", 2)];
        assert!(append("6", &[], &all).await.is_empty());
        assert_eq!(append("", &["5"], &all).await.len(), 3);
        let fresh = DeltaTables::new(objects.clone()).read(Table::Spans).await.unwrap();
        assert_eq!((fresh.segments.len(), fresh.attr_types), (1, types(&all)));
    }
}
