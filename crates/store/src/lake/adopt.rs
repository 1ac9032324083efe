//! What to do with the logs that others have left, and how readers read those of all.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use arrow::array::RecordBatch;
use futures::TryStreamExt;
use object_store::path::Path;
use rollscope_model::Table;

use super::log::{Part, WRITERS, WriterLog, decode, parse};
use super::tables::LakeTables;
use crate::error::StoreError;
use crate::manifest::SetAside;
use crate::root::Root;
use crate::wal::{self, Kind, Log};

/// The log of one writer, as it is in the lake.
struct Found {
    numbers: BTreeSet<u64>,
    /// Who answers for it, if not the writer itself: the last one that fenced it.
    adopter: Option<String>,
}

impl Found {
    /// Is there anything but fences?
    async fn has_records(&self, log: &WriterLog) -> Result<bool, StoreError> {
        // Fences are at the end: the first object tells.
        let Some(first) = self.numbers.first() else { return Ok(false) };
        Ok(!matches!(decode(&log.get(*first).await?), Ok(Part::Fence(_))))
    }
}

async fn find(root: &Root) -> Result<BTreeMap<String, Found>, StoreError> {
    let mut found = BTreeMap::new();
    for (writer, numbers) in find_numbers(root).await? {
        let place = WriterLog { objects: root.objects.clone(), writer: writer.clone() };
        let mut adopter = None;
        if let Some(last) = numbers.last()
            && let Ok(Part::Fence(name)) = decode(&place.get(*last).await?)
        {
            adopter = Some(name);
        }
        found.insert(writer, Found { numbers, adopter });
    }
    Ok(found)
}

/// Takes over the logs that the `dead` writers answer for: fences them, and copies what is not in the tables to `log`, which is ours,
/// as one part each. `each` gets what was copied.
pub(crate) async fn adopt_dead(
    root: &Root,
    tables: &mut LakeTables,
    log: &mut dyn Log,
    writer: &str,
    mut dead: HashSet<String>,
    set_aside: &mut Vec<SetAside>,
    mut each: impl FnMut(Table, RecordBatch),
) -> Result<(), StoreError> {
    let (mut looked, mut copied) = (HashSet::new(), HashSet::new());
    // A writer that is adopted may have been about to adopt others.
    while let Some(name) = dead.iter().find(|name| !looked.contains(*name)).cloned() {
        let found = find(root).await?;
        // Its own log says which of the others it has copied.
        let mut order: Vec<(&String, &Found)> = found.iter().collect();
        order.sort_by_key(|(other, _)| **other != name);
        for (other, about) in order {
            let answers = about.adopter.as_ref().unwrap_or(other);
            let place = WriterLog { objects: root.objects.clone(), writer: other.clone() };
            if *answers != name || !about.has_records(&place).await? {
                continue;
            }
            let next = about.numbers.last().map_or(1, |n| n + 1);
            let Some(fence) = place.fence(next, writer, &dead).await? else { continue };
            if copied.contains(other) {
                // It was copied by the writer that we have just adopted.
                place.forget(fence).await?;
                continue;
            }
            let floors = tables.fence(other).await?;
            let mut copy = Vec::new();
            for number in read_numbers(&place, fence).await? {
                match decode(&place.get(number).await?) {
                    Ok(Part::Fence(_)) => {}
                    Ok(Part::Records(records)) => {
                        for record in wal::records(&records) {
                            let (kind, bytes) = record?;
                            match kind {
                                Kind::Rows(table, batches) if number > floors[table as usize] => {
                                    copy.extend_from_slice(bytes);
                                    batches.into_iter().for_each(|batch| each(table, batch));
                                }
                                Kind::Rows(..) => {}
                                Kind::Adopted(third) => {
                                    copy.extend_from_slice(bytes);
                                    copied.insert(third);
                                }
                            }
                        }
                    }
                    Err(e) => set_aside.push(keep_damaged(root, &place, number, e).await?),
                }
            }
            copy.extend_from_slice(&wal::encode_adopted(other));
            log.write(&copy)?;
            if let Err(e) = log.sync() {
                log.rewind();
                return Err(e);
            }
            tracing::info!(writer = other, "took over the log of a writer that has ended");
            dead.insert(other.clone());
            // Before what was copied can be flushed and forgotten: where a log is left, it was not adopted.
            place.forget(fence).await?;
        }
        looked.insert(name);
    }
    Ok(())
}

async fn read_numbers(place: &WriterLog, fence: u64) -> Result<Vec<u64>, StoreError> {
    let mut numbers = place.numbers().await?;
    numbers.retain(|n| *n < fence);
    Ok(numbers)
}

async fn keep_damaged(root: &Root, place: &WriterLog, number: u64, e: StoreError) -> Result<SetAside, StoreError> {
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
        let writers = all.keys().cloned().collect();
        let mut logs = Logs { parts: Vec::new(), missing: Vec::new(), writers };
        for (writer, numbers) in all {
            let place = WriterLog { objects: root.objects.clone(), writer };
            for number in numbers {
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
        let mut adopted = HashSet::new();
        let mut rows = Vec::new();
        for (writer, number, records) in &self.parts {
            for record in wal::records(records) {
                match record?.0 {
                    Kind::Rows(table, batches) if *number > floors[writer][table as usize] => {
                        rows.extend(batches.into_iter().map(|batch| (writer, table, batch)));
                    }
                    Kind::Rows(..) => {}
                    Kind::Adopted(other) => drop(adopted.insert(other)),
                }
            }
        }
        for (_, table, batch) in rows.into_iter().filter(|(writer, ..)| !adopted.contains(*writer)) {
            each(table, batch);
        }
        Ok(true)
    }
}

async fn find_numbers(root: &Root) -> Result<BTreeMap<String, BTreeSet<u64>>, StoreError> {
    let mut found: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    let mut listed = root.objects.list(Some(&Path::from(WRITERS)));
    while let Some(object) = listed.try_next().await? {
        if let Some((writer, number)) = parse(&object.location) {
            found.entry(writer).or_default().insert(number);
        }
    }
    Ok(found)
}
