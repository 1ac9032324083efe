//! The log of a writer, as objects. Each holds the records of one group of batches, compressed. They are created, never replaced.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::error::StoreError;
use crate::wal::Log;

const MAGIC: &[u8; 8] = b"RSLAKE1\0";
const FENCE: &[u8; 8] = b"RSFENCE\0";
/// A fence and the name of a writer. No other part has this length: an empty one is shorter, all others are longer.
pub(super) const FENCE_BYTES: u64 = 8 + 32;
/// Compresses to a third in a tenth of the time that encoding takes.
const LEVEL: i32 = 1;
/// Most bytes of a log object, unpacked: twice what the tail may hold.
const MAX_BYTES: usize = 1 << 30;

/// How long a put is tried before senders are told to come again.
const PATIENCE: Duration = Duration::from_secs(20);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Folder of all writers.
pub(super) const WRITERS: &str = "writers";

/// Where the log of a writer is.
#[derive(Clone)]
pub(crate) struct WriterLog {
    pub objects: Arc<dyn ObjectStore>,
    pub writer: String,
}

/// What an object of a log is.
pub(super) enum Part {
    /// Records, as in a log file.
    Records(Vec<u8>),
    /// Nothing comes after it. Holds the name of the writer that answers for the log now.
    Fence(String),
}

/// What became of a put.
enum Put {
    Done,
    /// The number has been used, by a put that was given up and came later.
    Taken,
    Fenced,
}

pub(super) fn decode(bytes: &[u8]) -> Result<Part, StoreError> {
    let damaged = |why: &str| StoreError::Damaged(format!("a part of the log is damaged: {why}"));
    if let Some(adopter) = bytes.strip_prefix(FENCE) {
        return Ok(Part::Fence(String::from_utf8_lossy(adopter).into_owned()));
    }
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| damaged("its header is wrong"))?;
    let (sum, rest) = rest.split_first_chunk::<4>().ok_or_else(|| damaged("it is too short"))?;
    if crc32fast::hash(rest) != u32::from_le_bytes(*sum) {
        return Err(damaged("its checksum is wrong"));
    }
    let (length, packed) = rest.split_first_chunk::<4>().ok_or_else(|| damaged("it is too short"))?;
    let length = u32::from_le_bytes(*length) as usize;
    if length > MAX_BYTES {
        return Err(damaged("it is too large"));
    }
    let records = zstd::bulk::decompress(packed, length).map_err(|e| damaged(&e.to_string()))?;
    Ok(Part::Records(records))
}

fn encode(records: &[u8]) -> Result<Bytes, StoreError> {
    if records.len() > MAX_BYTES {
        return Err(StoreError::Busy(format!("{} bytes are too many for one part of the log", records.len())));
    }
    let length = (records.len() as u32).to_le_bytes();
    let packed = zstd::bulk::compress(records, LEVEL).map_err(|e| StoreError::Busy(e.to_string()))?;
    let rest = [length.as_slice(), &packed].concat();
    Ok([MAGIC.as_slice(), &crc32fast::hash(&rest).to_le_bytes(), &rest].concat().into())
}

/// The writer and the number that a path names.
pub(super) fn parse(path: &Path) -> Option<(String, u64)> {
    let mut parts = path.as_ref().strip_prefix(WRITERS)?.strip_prefix('/')?.split('/');
    let (writer, folder, number) = (parts.next()?, parts.next()?, parts.next()?);
    (folder == "log" && parts.next().is_none()).then_some(())?;
    Some((writer.to_string(), number.parse().ok()?))
}

impl WriterLog {
    pub(super) fn path(&self, number: u64) -> Path {
        Path::from(format!("{WRITERS}/{}/log/{number:016}", self.writer))
    }

    async fn create(&self, number: u64, bytes: &Bytes) -> Result<Put, StoreError> {
        let (path, begun) = (self.path(number), Instant::now());
        let mut pause = FIRST_PAUSE;
        loop {
            let options = PutOptions::from(PutMode::Create);
            let Err(error) = self.objects.put_opts(&path, bytes.clone().into(), options).await else {
                return Ok(Put::Done);
            };
            // It may be there all the same: the answer was lost, or a put was repeated on the way.
            if let Ok(found) = self.get(number).await {
                return Ok(match found == *bytes {
                    true => Put::Done,
                    false if found.starts_with(FENCE) => Put::Fenced,
                    false => Put::Taken,
                });
            }
            if begun.elapsed() > PATIENCE {
                return Err(error.into());
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Keeps a writer from acknowledging anything more. `number` is the first that it may not have used. `None`: another one that is not
    /// `dead` has done so, and answers for the log.
    pub async fn fence(
        &self,
        mut number: u64,
        adopter: &str,
        dead: &HashSet<String>,
    ) -> Result<Option<u64>, StoreError> {
        let fence = Bytes::from([FENCE.as_slice(), adopter.as_bytes()].concat());
        loop {
            match self.create(number, &fence).await? {
                Put::Done => return Ok(Some(number)),
                Put::Fenced => match decode(&self.get(number).await?)? {
                    Part::Fence(other) if !dead.contains(&other) => return Ok(None),
                    _ => {}
                },
                Put::Taken => {}
            }
            number += 1;
        }
    }

    pub(super) async fn get(&self, number: u64) -> Result<Bytes, StoreError> {
        Ok(self.objects.get(&self.path(number)).await?.bytes().await?)
    }

    /// The numbers of all parts, with their sizes.
    pub(super) async fn numbers(&self) -> Result<BTreeMap<u64, u64>, StoreError> {
        let listed = self.objects.list(Some(&Path::from(format!("{WRITERS}/{}/log", self.writer))));
        Ok(listed
            .try_filter_map(|o| async move { Ok(parse(&o.location).map(|(_, n)| (n, o.size))) })
            .try_collect()
            .await?)
    }

    /// Deletes what is below a number, oldest first. The last object stays: its number says where a fence has to be. Fences stay for good: a
    /// writer that wakes up late must find them.
    pub async fn forget(&self, floor: u64) -> Result<(), StoreError> {
        let numbers = self.numbers().await?;
        let last = numbers.last_key_value().map_or(0, |(last, _)| *last);
        let is_old = |(n, size): &(u64, u64)| *n < floor && *n < last && *size != FENCE_BYTES;
        let old: Vec<Path> = numbers.into_iter().filter(is_old).map(|(n, _)| self.path(n)).collect();
        let mut gone = self.objects.delete_stream(futures::stream::iter(old).map(Ok).boxed());
        while let Some(deleted) = gone.next().await {
            match deleted {
                Err(object_store::Error::NotFound { .. }) => {}
                deleted => drop(deleted?),
            }
        }
        Ok(())
    }
}

/// Whether the object store takes the log, for whoever asks how this node is. Senders wait meanwhile, and then are told to come again.
#[derive(Clone, Default)]
pub(crate) struct Stuck(Arc<Mutex<Option<Trouble>>>);

/// A put that goes on, or the last one, which failed.
struct Trouble {
    since: Instant,
    goes_on: bool,
    tried: Instant,
    why: String,
}

/// A put of the log may take this long.
const USUAL: Duration = Duration::from_secs(5);
/// So long after a put has failed, it counts as failing if nobody has sent anything since.
const REMEMBERED: Duration = Duration::from_secs(15);

impl Stuck {
    fn begin(&self) {
        let now = Instant::now();
        let mut trouble = self.0.lock();
        match trouble.as_mut().filter(|trouble| trouble.tried.elapsed() < REMEMBERED) {
            Some(trouble) => (trouble.goes_on, trouble.tried) = (true, now),
            None => *trouble = Some(Trouble { since: now, goes_on: true, tried: now, why: "no answer yet".into() }),
        }
    }

    fn end(&self, failure: Option<&StoreError>) {
        let mut trouble = self.0.lock();
        match (failure, trouble.as_mut()) {
            (Some(e), Some(trouble)) => {
                (trouble.goes_on, trouble.tried, trouble.why) = (false, Instant::now(), e.to_string());
            }
            _ => *trouble = None,
        }
    }

    /// What is wrong, in words.
    pub fn problem(&self) -> Option<String> {
        let trouble = self.0.lock();
        let Trouble { since, goes_on, tried, why } = trouble.as_ref()?;
        let is_wrong = if *goes_on { since.elapsed() > USUAL } else { tried.elapsed() < REMEMBERED };
        let seconds = since.elapsed().as_secs();
        is_wrong.then(|| {
            format!("the object store has not taken the log for {seconds} s ({why}); senders are told to send again")
        })
    }
}

/// The log that is being written.
pub(crate) struct ObjectLog {
    pub stuck: Stuck,
    place: WriterLog,
    next: u64,
    group: Vec<u8>,
    put_at: Option<Instant>,
    every: Duration,
    bytes: u64,
    handle: Handle,
}

impl ObjectLog {
    /// A log with one part, which is empty. Must be called inside a tokio runtime with several threads.
    pub async fn create(place: WriterLog, every: Duration) -> Result<ObjectLog, StoreError> {
        match place.create(1, &encode(&[])?).await? {
            Put::Done => {}
            Put::Taken | Put::Fenced => return Err(StoreError::Fenced),
        }
        let stuck = Stuck::default();
        Ok(ObjectLog {
            stuck,
            place,
            next: 2,
            group: Vec::new(),
            put_at: None,
            every,
            bytes: 0,
            handle: Handle::current(),
        })
    }
}

impl Log for ObjectLog {
    fn write(&mut self, record: &[u8]) -> Result<(), StoreError> {
        self.group.extend_from_slice(record);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        if self.group.is_empty() {
            return Ok(());
        }
        self.put_at = Some(Instant::now());
        let bytes = encode(&self.group)?;
        loop {
            self.stuck.begin();
            let put = self.place.create(self.next, &bytes);
            let put = tokio::task::block_in_place(|| self.handle.block_on(put));
            self.stuck.end(put.as_ref().err());
            match put? {
                Put::Done => break,
                Put::Taken => self.next += 1,
                Put::Fenced => return Err(StoreError::Fenced),
            }
        }
        self.next += 1;
        self.bytes += bytes.len() as u64;
        self.group.clear();
        Ok(())
    }

    fn rewind(&mut self) {
        self.group.clear();
    }

    fn begin(&mut self, first: Option<&[u8]>) -> Result<u64, StoreError> {
        let number = self.next;
        if let Some(record) = first {
            self.write(record)?;
            if let Err(e) = self.sync() {
                self.rewind();
                return Err(e);
            }
        }
        self.bytes = 0;
        Ok(number)
    }

    fn close(&mut self) -> Result<(), StoreError> {
        let none = HashSet::new();
        let fence = self.place.fence(self.next, &self.place.writer, &none);
        self.next = tokio::task::block_in_place(|| self.handle.block_on(fence))?.ok_or(StoreError::Fenced)?;
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn pause(&self) -> Duration {
        self.put_at.map_or(Duration::ZERO, |at| self.every.saturating_sub(at.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_from_the_first_failure_to_the_first_success() {
        let stuck = Stuck::default();
        stuck.begin();
        assert_eq!(stuck.problem(), None, "a put takes a while");
        stuck.end(Some(&StoreError::Busy("503".into())));
        assert!(stuck.problem().unwrap().contains("503"));
        stuck.0.lock().as_mut().unwrap().since -= Duration::from_secs(60);
        stuck.begin();
        assert!(stuck.problem().unwrap().contains("for 60 s"), "it is tried again");
        stuck.end(None);
        assert_eq!(stuck.problem(), None);
        stuck.begin();
        stuck.0.lock().as_mut().unwrap().since -= USUAL * 2;
        assert!(stuck.problem().unwrap().contains("no answer yet"));
        stuck.end(Some(&StoreError::Busy("503".into())));
        stuck.0.lock().as_mut().unwrap().tried -= REMEMBERED * 2;
        assert_eq!(stuck.problem(), None, "nobody has tried for long");
    }

    #[test]
    fn only_fences_have_the_length_of_fences() {
        assert!((encode(&[]).unwrap().len() as u64) < FENCE_BYTES);
        for _ in 0..1000 {
            let adopted = crate::wal::encode_adopted(&crate::lake::new_writer().unwrap());
            assert!(encode(&adopted).unwrap().len() as u64 > FENCE_BYTES);
        }
        let Part::Records(records) = decode(&encode(&[7; 5000]).unwrap()).unwrap() else { panic!("it is no fence") };
        assert_eq!(records, [7; 5000]);
        let mut damaged = encode(&[7; 5000]).unwrap().to_vec();
        damaged[15] ^= 1;
        assert!(decode(&damaged).is_err());
    }
}
