//! Opening a folder: the manifest, a check of the segments, and the replay of the log. Damage never keeps a store from
//! opening: what is damaged is moved to `quarantine/` and reported, what cannot be read is left where it is and reported,
//! and the rest is served.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::RecordBatch;
use rollscope_model::Table;
use rollscope_model::tables::FORMAT_VERSION;
use rollscope_model::time::now_ns;

use crate::error::StoreError;
use crate::journal::{self, Journal};
use crate::known::KnownSegments;
use crate::logs::WAL;
use crate::manifest::{self, Manifest, Segment, SetAside};
use crate::options::StoreOptions;
use crate::root::{Folder, Root};
use crate::segment;
use crate::tail::{Incoming, State, TableIndex};
use crate::wal;

pub(crate) struct Loaded {
    pub manifest: Manifest,
    pub journal: Journal,
    pub set_aside: Vec<SetAside>,
    /// Segments too many to check before serving.
    pub unchecked: Vec<Arc<Segment>>,
}

fn aside(file: &str, why: impl Into<String>) -> SetAside {
    SetAside { file: file.into(), why: why.into(), at_ns: now_ns() }
}

/// Reads the manifest and checks the newest segments.
pub(crate) async fn load(root: &Root, folder: &Folder, options: &StoreOptions) -> Result<Loaded, StoreError> {
    let mut set_aside = Vec::new();
    let found = journal::find(root).await?;
    let lacks_nothing = |manifest: &Manifest| {
        !found.is_incomplete && (!found.is_torn || has_everything(folder, manifest).unwrap_or(false))
    };
    let is_whole = found.manifest.as_ref().is_some_and(lacks_nothing);
    for (file, why) in found.damage {
        // A copy: until there is a new one, the damaged one says more than none.
        if let Ok(bytes) = root.get(file).await {
            root.put(&format!("quarantine/{file}"), bytes.into()).await?;
        }
        let mended = if is_whole { "nothing is lost" } else { "it was rebuilt from the segments" };
        set_aside.push(aside(file, format!("{why}; {mended}")));
    }
    let mut manifest = found.manifest.unwrap_or_default();
    if !is_whole {
        manifest = rebuild(root, manifest).await?;
    }
    manifest.format_version = manifest::VERSION;
    let journal = match found.end {
        Some(end) => end.open(folder),
        // From now on files that no manifest names are leftovers, those of a first flush that was cut off too.
        None => {
            let mut journal = Journal::default();
            journal.rewrite(folder, &manifest).map(|()| journal).map_err(|failed| failed.error)
        }
    };
    let journal = journal.map_err(|e| StoreError::io(folder.path(journal::COMMITS), e))?;
    manifest.segments.extend(manifest.unread.drain(..).map(|unread| Arc::new(unread.segment)));
    let mut budget = options.check_at_start_bytes;
    let mut unchecked = Vec::new();
    for segment in manifest.segments.clone().into_iter().rev() {
        if segment.bytes > budget {
            unchecked.push(segment);
            continue;
        }
        budget -= segment.bytes;
        match check(root, &segment).await {
            Ok(()) => {}
            Err(StoreError::Damaged(why)) => match root.set_aside(&segment.path, &why).await {
                Ok(()) => {
                    set_aside.push(aside(&segment.path, why));
                    manifest.remove(|s| s.path == segment.path);
                }
                // Files that no manifest names are deleted. This one may be worth a look.
                Err(why) => manifest.leave_out(&segment.path, &why),
            },
            Err(StoreError::Unreadable(why)) => {
                tracing::warn!(
                    file = segment.path,
                    why,
                    "a segment cannot be read; it is left out until the next start"
                );
                manifest.leave_out(&segment.path, &why);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(Loaded { manifest, journal, set_aside, unchecked })
}

pub(crate) async fn check(root: &Root, segment: &Segment) -> Result<(), StoreError> {
    if segment.format_version > FORMAT_VERSION {
        let found = segment.format_version;
        return Err(StoreError::Damaged(format!("it has format {found}; this version reads up to {FORMAT_VERSION}")));
    }
    root.read_segment(segment).await.map(drop)
}

/// Are all segments and logs still there that a manifest needs? A commit removes some only once it is on disk. So if it was cut
/// off and nothing is missing, it was never acknowledged, or does not matter: what it would have stored is in the log.
/// Segments without a commit must not count then. An attempt that failed may have left some, with the same rows.
fn has_everything(folder: &Folder, manifest: &Manifest) -> Result<bool, StoreError> {
    let mut logs = wal::list(&folder.path(WAL))?;
    logs.retain(|number| *number >= manifest.wal_floor);
    let has_logs = logs.iter().copied().eq((manifest.wal_floor.max(1)..).take(logs.len().max(1)));
    Ok(has_logs && manifest.kept().all(|segment| folder.path(&segment.path).exists()))
}

/// Adds to a manifest that lacks commits what the files of segments say of themselves: which there are, which others they
/// replace, and the types of their attributes. An empty folder gives an empty manifest.
async fn rebuild(root: &Root, mut manifest: Manifest) -> Result<Manifest, StoreError> {
    let known: HashSet<String> = manifest.kept().map(|s| &s.path).chain(&manifest.gone).cloned().collect();
    let mut segments = Vec::new();
    for table in Table::ALL {
        for path in root.list(table.name()).await?.into_iter().filter(|path| !known.contains(path)) {
            let data = root.get(&path).await?;
            if let Some((mut segment, types)) = segment::describe_self(&data) {
                segment.path = path;
                manifest.learn(segment.table.clone(), types);
                segments.push(segment);
            }
        }
    }
    // The name of a file begins with the time at which it was written.
    segments.sort_by(|a, b| a.path.rsplit('/').next().cmp(&b.path.rsplit('/').next()));
    let replaced: HashSet<String> = segments.iter().flat_map(|s| s.replaces.iter().cloned()).collect();
    manifest.segments.extend(segments.into_iter().map(Arc::new));
    manifest.remove(|segment| replaced.contains(&segment.path));
    manifest.gone.extend(replaced);
    Ok(manifest)
}

/// The tail, as it is read from logs.
pub(crate) struct Replayed {
    pub state: State,
    pub indices: [TableIndex; Table::COUNT],
    pub known: KnownSegments,
    pub set_aside: Vec<SetAside>,
}

impl Replayed {
    pub fn new(manifest: Manifest, options: &StoreOptions) -> Replayed {
        Replayed {
            state: State::new(manifest),
            indices: Default::default(),
            known: KnownSegments::new(options.duplicate_check_bytes),
            set_aside: Vec::new(),
        }
    }

    /// Puts a batch into the tail. Not for a thread of the reactor: segments may have to be read.
    pub fn take(
        &mut self,
        table: Table,
        batch: &RecordBatch,
        root: &Root,
        handle: &tokio::runtime::Handle,
    ) -> Result<(), StoreError> {
        let incoming = Incoming::new(table, segment::upgrade(table, batch)?);
        let candidates = self.known.of(&incoming, &self.state.manifest, root, handle);
        let admitted = self.indices[table as usize].admit(incoming, &candidates);
        self.state.publish(admitted);
        self.state.coalesce(&mut self.indices);
        Ok(())
    }
}

/// Puts every good record of the log into a fresh tail. With `mend` (the writer), what is torn is cut off and what is
/// damaged is copied to `quarantine/`; a reader leaves the files alone.
pub(crate) fn replay(
    root: &Root,
    folder: &Folder,
    options: &StoreOptions,
    manifest: Manifest,
    numbers: &[u64],
    handle: &tokio::runtime::Handle,
    mend: bool,
) -> Result<Replayed, StoreError> {
    let mut replayed = Replayed::new(manifest, options);
    let wal_dir = folder.path(WAL);
    let name_of = |number: u64| format!("wal/{number:016}.log");
    let mut unfinished: Vec<(u64, wal::Damage)> = Vec::new();
    for number in numbers {
        let path = wal::path(&wal_dir, *number);
        let bytes = std::fs::read(&path).map_err(|e| StoreError::io(&path, e))?;
        let file = name_of(*number);
        let mut refused = Vec::new();
        let report = wal::replay(&bytes, |table, batch| {
            let taken = replayed.take(table, &batch, root, handle);
            refused.extend(taken.err().map(|e| e.to_string()));
        })?;
        let set_aside = &mut replayed.set_aside;
        tracing::debug!(file, records = report.records, checksummed = report.checksummed, "read a log");
        set_aside.extend(refused.into_iter().map(|why| aside(&file, why)));
        for damage in &report.damage {
            let why = format!("{} (bytes {} to {})", damage.why, damage.from, damage.to);
            if mend {
                keep_copy(root, *number, damage, &bytes, handle);
            }
            set_aside.push(aside(&file, why));
        }
        // Only the file that was being written can end in an unfinished write. It need not be the last one: after it there may
        // be one whose beginning failed, and whose removal a power cut undid.
        if report.records > 0 {
            let ended = unfinished.drain(..);
            set_aside
                .extend(ended.map(|(n, torn)| aside(&name_of(n), format!("{} (from byte {})", torn.why, torn.from))));
        }
        if let Some(torn) = report.torn.filter(|_| mend) {
            tracing::warn!(
                file,
                from = torn.from,
                to = torn.to,
                why = torn.why,
                "removed an unfinished write from the log"
            );
            keep_copy(root, *number, &torn, &bytes, handle);
            unfinished.push((*number, torn));
        }
    }
    for number in numbers.iter().filter(|_| mend) {
        let path = wal::path(&wal_dir, *number);
        let io = |e| StoreError::io(&path, e);
        let mut log = folder.disk.open(&path).map_err(io)?;
        if let Some((_, torn)) = unfinished.iter().find(|(n, _)| n == number) {
            log.cut(torn.from as u64).map_err(io)?;
        }
        // The process that wrote it may have been killed before it synced. From now on its rows count as stored: when they come
        // again, they are acknowledged.
        log.sync().map_err(io)?;
    }
    Ok(replayed)
}

fn keep_copy(root: &Root, number: u64, damage: &wal::Damage, bytes: &[u8], handle: &tokio::runtime::Handle) {
    let file = format!("quarantine/wal__{number:016}.{}.bytes", damage.from);
    if let Err(e) = handle.block_on(root.put(&file, bytes[damage.from..damage.to].to_vec())) {
        tracing::warn!(error = %e, "cannot copy a damaged part of the log to quarantine");
    }
}
