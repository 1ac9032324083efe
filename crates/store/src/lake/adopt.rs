//! What to do with the logs that others have left, and how readers read those of all.

use std::collections::{BTreeMap, HashMap, HashSet};

use arrow::array::RecordBatch;
use futures::TryStreamExt;
use futures::future::BoxFuture;
use object_store::path::Path;
use rollscope_model::Table;

use super::log::{FENCE_BYTES, Part, WRITERS, WriterLog, decode, parse};
use super::nodes;
use super::tables::LakeTables;
use crate::error::StoreError;
use crate::manifest::SetAside;
use crate::root::Root;
use crate::wal::{self, Kind, Log};

/// The log of one writer that is not only fences, as it is in the lake.
struct Found {
    place: WriterLog,
    numbers: BTreeMap<u64, u64>,
    /// Who answers for it: the last one that fenced it, or the writer itself.
    answers: String,
}

async fn find(root: &Root) -> Result<Vec<Found>, StoreError> {
    let mut found = Vec::new();
    for (writer, numbers) in find_numbers(root).await? {
        // Fences are at the end. A log that was closed or taken over has nothing else.
        if numbers.values().all(|size| *size == FENCE_BYTES) {
            continue;
        }
        let place = WriterLog { objects: root.objects.clone(), writer: writer.clone() };
        let mut answers = writer;
        if let Some((last, _)) = numbers.last_key_value().filter(|(_, size)| **size == FENCE_BYTES)
            && let Ok(Part::Fence(name)) = decode(&place.get(*last).await?)
        {
            answers = name;
        }
        found.push(Found { place, numbers, answers });
    }
    Ok(found)
}

/// Does this writer answer for the logs of others?
pub(crate) async fn answers_for_others(root: &Root, writer: &str) -> Result<bool, StoreError> {
    Ok(find(root).await?.iter().any(|found| found.answers == writer && found.place.writer != writer))
}

/// Writers that answer for logs, and that no node names: they have ended or been taken over, perhaps while they were fencing others.
pub(crate) async fn orphans(root: &Root, writer: &str) -> Result<HashSet<String>, StoreError> {
    // Logs first: whoever fences one was named by a node before.
    let answering: HashSet<String> = find(root).await?.into_iter().map(|found| found.answers).collect();
    let named = nodes::named(root).await?;
    Ok(answering.into_iter().filter(|name| name != writer && !named.contains(name)).collect())
}

/// Who gets what others have left: their rows, and the same as records for a log.
pub(crate) trait Heir: Send {
    /// Writes the records to our own log. Only then are the rows ours.
    fn take(&mut self, records: Vec<u8>, rows: Vec<(Table, RecordBatch)>) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// A writer that takes no rows of its own yet.
pub(crate) struct Beginner<'a> {
    pub log: &'a mut dyn Log,
    pub rows: Vec<(Table, RecordBatch)>,
}

impl Heir for Beginner<'_> {
    fn take(&mut self, records: Vec<u8>, rows: Vec<(Table, RecordBatch)>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            wal::append(self.log, &records)?;
            self.rows.extend(rows);
            Ok(())
        })
    }
}

/// Takes over the logs that the `dead` writers answer for, and those that we have fenced and not finished: fences them, and gives what is not in
/// the tables to the heir.
pub(crate) async fn adopt_dead(
    root: &Root,
    tables: &mut LakeTables,
    heir: &mut dyn Heir,
    writer: &str,
    mut dead: HashSet<String>,
    set_aside: &mut Vec<SetAside>,
) -> Result<(), StoreError> {
    let (mut looked, mut copied) = (HashSet::new(), HashSet::new());
    // A writer that is adopted may have been about to adopt others.
    while let Some(name) = dead.iter().find(|name| !looked.contains(*name)).cloned() {
        let mut found = find(root).await?;
        // Its own log says which of the others it has copied.
        found.sort_by_key(|found| found.place.writer != name);
        for Found { place, numbers, answers } in found {
            let other = place.writer.clone();
            let is_unfinished = answers == writer && other != writer && !tables.has_copied(&other);
            if answers != name && !is_unfinished {
                continue;
            }
            let mut fence = numbers.last_key_value().map_or(0, |(last, _)| *last);
            if !is_unfinished {
                let Some(number) = place.fence(fence + 1, writer, &dead).await? else { continue };
                fence = number;
            }
            dead.insert(other.clone());
            if copied.contains(&other) {
                // It was copied by the writer that we have just adopted.
                tables.taken_over(place, fence);
                continue;
            }
            let floors = tables.fence(&other).await?;
            let reached = floors.into_iter().max().unwrap_or(0);
            let (mut copy, mut rows) = (Vec::new(), Vec::new());
            for number in read_numbers(&place, fence).await? {
                let records = match decode(&place.get(number).await?) {
                    Ok(Part::Fence(_)) => continue,
                    Ok(Part::Records(records)) => records,
                    Err(e) => {
                        set_aside.push(keep_damaged(root, &place, number, &e).await?);
                        continue;
                    }
                };
                for record in wal::records(&records) {
                    match record {
                        Ok((Kind::Rows(table, batches), bytes)) if number > floors[table as usize] => {
                            copy.extend_from_slice(bytes);
                            rows.extend(batches.into_iter().map(|batch| (table, batch)));
                        }
                        Ok((Kind::Rows(..), _)) => {}
                        // Where it is in the tables already, the log that was copied is gone, or was never copied.
                        Ok((Kind::Adopted(third), bytes)) if number > reached => {
                            copy.extend_from_slice(bytes);
                            copied.insert(third);
                        }
                        Ok((Kind::Adopted(_), _)) => {}
                        Err(e) => set_aside.push(keep_damaged(root, &place, number, &e).await?),
                    }
                    if copy.len() > COPY_BYTES {
                        heir.take(std::mem::take(&mut copy), std::mem::take(&mut rows)).await?;
                    }
                }
            }
            copy.extend_from_slice(&wal::encode_adopted(&other));
            heir.take(copy, rows).await?;
            tracing::info!(writer = other, "took over the log of a writer that has ended");
            tables.taken_over(place, fence);
        }
        looked.insert(name);
    }
    // What cannot be deleted now is before the next flush.
    if let Err(e) = tables.finish_takeovers().await {
        tracing::warn!(error = %e, "cannot delete a log that was taken over; trying again later");
    }
    Ok(())
}

/// About so many bytes are copied at once: a log as a whole, as a rule. What comes from senders waits as long.
const COPY_BYTES: usize = 256 << 20;

async fn read_numbers(place: &WriterLog, fence: u64) -> Result<Vec<u64>, StoreError> {
    Ok(place.numbers().await?.into_keys().filter(|n| *n < fence).collect())
}

async fn keep_damaged(root: &Root, place: &WriterLog, number: u64, e: &StoreError) -> Result<SetAside, StoreError> {
    let file = format!("quarantine/{}__{number:016}.log", place.writer);
    root.put(&file, place.get(number).await?.into()).await?;
    tracing::warn!(file, error = %e, "copied a damaged part of a log to quarantine");
    Ok(SetAside { file, why: e.to_string(), at_ns: rollscope_model::time::now_ns() })
}

/// The logs of all writers, as they were read. Tables are read after them: then a row is in one or the other, and the marks of the tables say
/// which rows are in both.
pub(crate) struct Logs {
    parts: Vec<(String, u64, Vec<u8>)>,
    /// Parts that were listed, and gone when they were read.
    missing: Vec<(String, u64)>,
    writers: Vec<String>,
}

impl Logs {
    pub async fn read(root: &Root) -> Result<Logs, StoreError> {
        // A log that is adopted is first put elsewhere, perhaps where the first list has been already. The second one sees it.
        let mut all = find_numbers(root).await?;
        for (writer, numbers) in find_numbers(root).await? {
            all.entry(writer).or_default().extend(numbers);
        }
        all.values_mut().for_each(|numbers| numbers.retain(|_, size| *size != FENCE_BYTES));
        all.retain(|_, numbers| !numbers.is_empty());
        let writers = all.keys().cloned().collect();
        let mut logs = Logs { parts: Vec::new(), missing: Vec::new(), writers };
        for (writer, numbers) in all {
            let place = WriterLog { objects: root.objects.clone(), writer };
            for number in numbers.into_keys() {
                let bytes = match place.get(number).await {
                    Err(e) if e.is_missing() => {
                        logs.missing.push((place.writer.clone(), number));
                        continue;
                    }
                    bytes => bytes?,
                };
                match decode(&bytes) {
                    Ok(Part::Fence(_)) => {}
                    Ok(Part::Records(records)) => logs.parts.push((place.writer.clone(), number, records)),
                    Err(e) => tracing::warn!(writer = place.writer, number, error = %e, "left out a part of a log"),
                }
            }
        }
        Ok(logs)
    }

    /// Was a log flushed meanwhile? Open spans that a flush leaves out begin the log that comes after it, which was not listed.
    async fn is_behind(&self, root: &Root, floors: &HashMap<&String, [u64; Table::COUNT]>) -> Result<bool, StoreError> {
        let mut last: HashMap<&String, u64> = HashMap::new();
        let read = self.parts.iter().map(|(writer, number, _)| (writer, number));
        for (writer, number) in read.chain(self.missing.iter().map(|(writer, number)| (writer, number))) {
            let last = last.entry(writer).or_default();
            *last = (*last).max(*number);
        }
        last.retain(|writer, number| *number <= floors[*writer][Table::Spans as usize]);
        if last.is_empty() {
            return Ok(false);
        }
        let now = find_numbers(root).await?;
        let has_more = |(writer, last): (&&String, &u64)| {
            now.get(*writer).is_some_and(|numbers| numbers.iter().any(|(n, size)| n > last && *size != FENCE_BYTES))
        };
        Ok(last.iter().any(has_more))
    }

    /// Gives the rows that are not in the tables, as these have been read since. `false`: something was adopted meanwhile, so all has to
    /// be read again.
    pub async fn replay(
        self,
        tables: &LakeTables,
        mut each: impl FnMut(Table, RecordBatch),
    ) -> Result<bool, StoreError> {
        let floors: HashMap<&String, [u64; Table::COUNT]> =
            self.writers.iter().zip(tables.floors(&self.writers).await?).collect();
        let reached = |writer: &String| floors[writer].into_iter().max().unwrap_or(0);
        if self.missing.iter().any(|(writer, number)| *number > reached(writer)) {
            return Ok(false);
        }
        if self.is_behind(tables.root(), &floors).await? {
            return Ok(false);
        }
        // Some tables may have had them, and the log that has the others now was not read.
        let missing: Vec<String> = self.missing.iter().map(|(writer, _)| writer.clone()).collect();
        if !missing.is_empty() && tables.is_any_fenced(&missing).await? {
            return Ok(false);
        }
        let mut adopted = HashSet::new();
        let mut rows = Vec::new();
        for (writer, number, records) in &self.parts {
            for record in wal::records(records) {
                match record.map(|(kind, _)| kind) {
                    Ok(Kind::Rows(table, batches)) if *number > floors[writer][table as usize] => {
                        rows.extend(batches.into_iter().map(|batch| (writer, table, batch)));
                    }
                    Ok(Kind::Rows(..)) => {}
                    Ok(Kind::Adopted(other)) if *number > reached(writer) => drop(adopted.insert(other)),
                    Ok(Kind::Adopted(_)) => {}
                    Err(e) => tracing::warn!(writer, number, error = %e, "left out a record of a log"),
                }
            }
        }
        for (_, table, batch) in rows.into_iter().filter(|(writer, ..)| !adopted.contains(*writer)) {
            each(table, batch);
        }
        Ok(true)
    }
}

/// The parts of all logs, with their sizes.
pub(super) async fn find_numbers(root: &Root) -> Result<BTreeMap<String, BTreeMap<u64, u64>>, StoreError> {
    let mut found: BTreeMap<String, BTreeMap<u64, u64>> = BTreeMap::new();
    let mut listed = root.objects.list(Some(&Path::from(WRITERS)));
    while let Some(object) = listed.try_next().await? {
        if let Some((writer, number)) = parse(&object.location) {
            found.entry(writer).or_default().insert(number, object.size);
        }
    }
    Ok(found)
}
