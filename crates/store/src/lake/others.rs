//! What other writers have in their logs, for a node that shows it before it is in the tables. Parts are read once, in the order of each log,
//! and forgotten when they are gone.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use futures::future::join_all;
use rollscope_model::Table;

use super::adopt::find_numbers;
use super::log::{FENCE_BYTES, Part, WriterLog, decode};
use crate::contents::batch_bytes;
use crate::error::StoreError;
use crate::root::Root;
use crate::segment;
use crate::tail::{Floors, Incoming, LogPart};
use crate::wal::{self, Kind};

/// Parts that are read at once, and their bytes: how much room they take is known after that.
const AT_ONCE: usize = 16;
const BYTES_AT_ONCE: usize = 4 << 20;
/// What is known of a row beside it: its identity, and where it is.
const ROW_BYTES: usize = 80;
/// How much more room rows take in memory than in a log, about.
const UNPACKED: usize = 4;

/// A writer, and a number of its log.
pub(crate) type Key = (Arc<str>, u64);

/// A part of a log as it was read.
struct Read {
    part: Arc<LogPart>,
    /// Writers of which all is in this part, in those before it, or in the tables.
    adopted: Vec<String>,
    bytes: usize,
}

/// Rows that are in memory.
struct Held {
    part: Arc<LogPart>,
    bytes: usize,
}

/// The parts that are there, as they were last seen.
pub(crate) struct OthersLogs {
    /// The writer that looks. Its own log is not looked at.
    own: String,
    /// What was read. `None`: it is in the tables.
    parts: BTreeMap<Key, Option<Held>>,
    /// Writers whose logs were copied by others, until they are gone.
    adopted: HashSet<String>,
    /// Bytes of rows that may be in memory.
    limit: usize,
    /// Parts that are there and were not read, because there was no room.
    pub left_out: usize,
    /// Logs of which a part could not be read, and why.
    pub unreadable: BTreeMap<Arc<str>, String>,
}

/// What has changed since the last look.
#[derive(Default)]
pub(crate) struct Seen {
    /// In the order of each log.
    pub new: Vec<Arc<LogPart>>,
    /// Parts that are not there any more: what was in them is in the tables, or in what is new.
    pub gone: HashSet<Key>,
    /// There may be rows in the tables that were in no part that was read.
    pub is_flushed: bool,
}

type Listed = BTreeMap<String, BTreeMap<u64, u64>>;

/// What was read in a look. `None`: it was listed, and gone when it was read.
type Found = BTreeMap<Key, Option<Read>>;

/// The room that a log takes, and its parts that are not read, with their sizes.
struct Room {
    bytes: usize,
    unread: Vec<(Key, usize)>,
}

impl OthersLogs {
    pub fn new(own: &str, limit: usize) -> OthersLogs {
        let (parts, adopted) = (BTreeMap::new(), HashSet::new());
        OthersLogs { own: own.into(), parts, adopted, limit, left_out: 0, unreadable: BTreeMap::new() }
    }

    /// Looks what is there, and reads what is new. If this fails, nothing has changed. A log of which a part cannot be read waits, the others
    /// do not.
    pub async fn look(&mut self, root: &Root) -> Result<Seen, StoreError> {
        let mut listed = self.list(root).await?;
        if !self.gone(&listed).is_empty() {
            // A log that is adopted is first put elsewhere, perhaps where the list has been already.
            listed = self.list(root).await?;
        }
        let mut gone = self.gone(&listed);
        let mut found = BTreeMap::new();
        self.unreadable.clear();
        let left_out = loop {
            let (wanted, left_out) = self.wanted(&listed, &gone, &found);
            if wanted.is_empty() {
                break left_out;
            }
            for ((writer, number), read) in read(root, wanted).await {
                match read {
                    // What comes after a part that cannot be read may replace what is in it.
                    _ if self.unreadable.contains_key(&writer) => {}
                    Ok(read) => drop(found.insert((writer, number), read)),
                    Err(e) => drop(self.unreadable.insert(writer, e.to_string())),
                }
            }
        };
        if !self.unreadable.is_empty() {
            // What is gone may have been copied to a part that cannot be read.
            gone.clear();
        }
        let is_missing = found.values().any(Option::is_none);
        let read: Vec<Read> = found.into_values().flatten().collect();
        // Whoever has copied a log has left out what is in the tables.
        let has_copied = read.iter().any(|read| !read.adopted.is_empty());
        let is_flushed = is_missing || has_copied || !gone.is_empty() || self.has_gap(&listed);
        let mut seen = Seen { new: Vec::new(), is_flushed, gone };
        self.left_out = left_out;
        self.adopted.retain(|writer| listed.contains_key(writer));
        self.adopted.extend(read.iter().flat_map(|read| read.adopted.iter().cloned()));
        // Whoever has copied a log shows what was in it.
        let is_copied = |key: &&Key| self.adopted.contains(&*key.0);
        seen.gone.extend(self.parts.keys().filter(is_copied).cloned());
        self.parts.retain(|key, _| !seen.gone.contains(key));
        for Read { part, bytes, .. } in read.into_iter().filter(|read| !self.adopted.contains(&*read.part.writer)) {
            seen.new.push(part.clone());
            self.parts.insert((part.writer.clone(), part.number), Some(Held { part, bytes }));
        }
        Ok(seen)
    }

    /// What was seen is not shown: it is seen again.
    pub fn take_back(&mut self, seen: &Seen) {
        for part in &seen.new {
            self.parts.remove(&(part.writer.clone(), part.number));
        }
        self.parts.extend(seen.gone.iter().map(|key| (key.clone(), None)));
    }

    /// The logs of others that are not copied, with the sizes of their parts.
    async fn list(&self, root: &Root) -> Result<Listed, StoreError> {
        let mut all = find_numbers(root).await?;
        all.remove(&self.own);
        all.values_mut().for_each(|numbers| numbers.retain(|_, size| *size != FENCE_BYTES));
        all.retain(|_, numbers| !numbers.is_empty());
        Ok(all)
    }

    /// Were there parts of a known log that nobody has listed?
    fn has_gap(&self, listed: &Listed) -> bool {
        let writers: HashSet<&Arc<str>> = self.parts.keys().map(|(writer, _)| writer).collect();
        writers.into_iter().any(|writer| {
            let mut known = self.parts.range((writer.clone(), 0)..=(writer.clone(), u64::MAX)).map(|(key, _)| key.1);
            let listed = listed.get(&**writer).into_iter().flat_map(|numbers| numbers.keys().copied());
            let last = known.next_back().unwrap_or_default();
            listed.filter(|number| *number > last).min().is_some_and(|next| next > last + 1)
        })
    }

    fn gone(&self, listed: &Listed) -> HashSet<Key> {
        let is_there = |(writer, number): &Key| listed.get(&**writer).is_some_and(|n| n.contains_key(number));
        self.parts.keys().filter(|key| !is_there(key)).cloned().collect()
    }

    /// What to read next, after what was `found` in this look, and how many parts there is no room for. Each writer has the same share, and
    /// what one does not need is for the others. Of a log the beginning is read: what comes later may replace what is in it.
    fn wanted(&self, listed: &Listed, gone: &HashSet<Key>, found: &Found) -> (Vec<Key>, usize) {
        let (mut wanted, mut packed, mut left_out) = (Vec::new(), 0, 0);
        let of_others = listed.iter().filter(|(writer, _)| !self.adopted.contains(*writer));
        let room = |(writer, parts): (&String, &BTreeMap<u64, u64>)| {
            let mut room = self.room(writer, parts, gone, found);
            if self.unreadable.contains_key(writer.as_str()) {
                room.unread.clear();
            }
            room
        };
        let mut logs: Vec<Room> = of_others.map(room).collect();
        logs.sort_by_key(Room::needed);
        let (mut left, mut sharing) = (self.limit, logs.len());
        for Room { mut bytes, unread } in logs {
            let share = left / sharing;
            for (key, size) in unread {
                if bytes >= share {
                    left_out += 1;
                    continue;
                }
                if wanted.len() == AT_ONCE || !wanted.is_empty() && packed + size > BYTES_AT_ONCE {
                    return (wanted, left_out);
                }
                bytes += size * UNPACKED;
                packed += size;
                wanted.push(key);
            }
            (left, sharing) = (left.saturating_sub(bytes), sharing - 1);
        }
        (wanted, left_out)
    }

    /// What a log takes in memory, and what of it is not read.
    fn room(&self, writer: &str, parts: &BTreeMap<u64, u64>, gone: &HashSet<Key>, found: &Found) -> Room {
        let writer: Arc<str> = writer.into();
        let all = (writer.clone(), 0)..=(writer.clone(), u64::MAX);
        let held =
            self.parts.range(all.clone()).filter(|(key, _)| !gone.contains(*key)).filter_map(|(_, part)| part.as_ref());
        let read = found.range(all).filter_map(|(_, read)| read.as_ref());
        let bytes = held.map(|part| part.bytes).chain(read.map(|read| read.bytes)).sum();
        let unread = parts.iter().map(|(number, size)| ((writer.clone(), *number), *size as usize));
        let unread = unread.filter(|(key, _)| !self.parts.contains_key(key) && !found.contains_key(key)).collect();
        Room { bytes, unread }
    }

    /// Forgets rows that are in the tables.
    pub fn passed(&mut self, floors: impl Fn(&str) -> Option<Floors>) {
        for ((writer, number), part) in &mut self.parts {
            let Some(floors) = floors(writer) else { continue };
            let is_in_table = |rows: &Arc<Incoming>| *number <= floors[rows.table as usize];
            if part.as_ref().is_some_and(|held| held.part.rows.iter().all(is_in_table)) {
                *part = None;
            }
        }
    }

    pub fn has(&self, writer: &str) -> bool {
        let writer: Arc<str> = writer.into();
        self.parts.range((writer.clone(), 0)..=(writer, u64::MAX)).next().is_some()
    }

    /// The rows that are held beside those of some parts.
    pub fn held_beside(&self, new: &[Arc<LogPart>]) -> impl Iterator<Item = &Arc<Incoming>> + Clone {
        let new: HashSet<*const LogPart> = new.iter().map(Arc::as_ptr).collect();
        let held = self.parts.values().flatten().filter(move |held| !new.contains(&Arc::as_ptr(&held.part)));
        held.flat_map(|held| &held.part.rows)
    }
}

impl Room {
    /// For all of the log.
    fn needed(&self) -> usize {
        self.bytes + self.unread.iter().map(|(_, size)| size * UNPACKED).sum::<usize>()
    }
}

/// Reads parts, all at once. The answers are in the order of what is wanted.
async fn read(root: &Root, wanted: Vec<Key>) -> Vec<(Key, Result<Option<Read>, StoreError>)> {
    let get = |(writer, number): Key| async move {
        let place = WriterLog { objects: root.objects.clone(), writer: writer.to_string() };
        let bytes = match place.get(number).await {
            Err(e) if e.is_missing() => return Ok(None),
            bytes => bytes?,
        };
        let read = tokio::task::spawn_blocking(move || Read::of(&bytes, writer, number)).await;
        read.map(Some).map_err(|e| StoreError::Busy(e.to_string()))
    };
    join_all(wanted.into_iter().map(|key| async { (key.clone(), get(key).await) })).await
}

impl Read {
    /// What cannot be read is left out: it is shown when its writer has it in the tables, or it is damaged.
    fn of(bytes: &[u8], writer: Arc<str>, number: u64) -> Read {
        let mut of_tables: [Vec<RecordBatch>; Table::COUNT] = Default::default();
        let mut adopted = Vec::new();
        let mut take = |kind| -> Result<(), StoreError> {
            match kind {
                Kind::Rows(table, batches) => {
                    for batch in batches {
                        of_tables[table as usize].push(segment::upgrade(table, &batch)?);
                    }
                }
                Kind::Adopted(other) => adopted.push(other),
            }
            Ok(())
        };
        let records = match decode(bytes) {
            Ok(Part::Records(records)) => records,
            Ok(Part::Fence(_)) => Vec::new(),
            Err(e) => {
                tracing::warn!(%writer, number, error = %e, "left out a part of a log");
                Vec::new()
            }
        };
        for record in wal::records(&records) {
            if let Err(e) = record.and_then(|(kind, _)| take(kind)) {
                tracing::warn!(%writer, number, error = %e, "left out a record of a log");
            }
        }
        // Each message is a record. Few large batches are read faster than many small ones.
        let (mut rows, mut bytes) = (Vec::new(), 0);
        for (table, batches) in Table::ALL.into_iter().zip(of_tables).filter(|(_, batches)| !batches.is_empty()) {
            let merged = concat_batches(&table.schema(), &batches).map_or(batches, |merged| vec![merged]);
            for batch in merged {
                bytes += batch_bytes(&batch) + batch.num_rows() * ROW_BYTES;
                rows.push(Arc::new(Incoming::new(table, batch)));
            }
        }
        Read { part: Arc::new(LogPart { writer, number, rows }), adopted, bytes }
    }
}
