//! Opening a folder: the manifest, a check of the segments, and the replay of the log. Damage never keeps a store from
//! opening: what cannot be read is moved to `quarantine/` and reported, and the rest is served.

use std::path::Path;
use std::sync::Arc;

use rollscope_model::Table;
use rollscope_model::tables::FORMAT_VERSION;
use rollscope_model::time::now_ns;

use crate::error::StoreError;
use crate::known::KnownSegments;
use crate::manifest::{self, Manifest, Segment, SetAside};
use crate::options::StoreOptions;
use crate::root::Root;
use crate::segment;
use crate::tail::{Incoming, State, TableIndex};
use crate::wal;

pub(crate) struct Loaded {
    pub manifest: Manifest,
    pub set_aside: Vec<SetAside>,
    /// Segments too many to check before serving.
    pub unchecked: Vec<Arc<Segment>>,
}

fn aside(file: &str, why: impl Into<String>) -> SetAside {
    SetAside { file: file.into(), why: why.into(), at_ns: now_ns() }
}

/// Reads the manifest and checks the newest segments.
pub(crate) async fn load(root: &Root, options: &StoreOptions) -> Result<Loaded, StoreError> {
    let mut set_aside = Vec::new();
    let mut is_new = false;
    let mut manifest = match root.get(manifest::PATH).await {
        Ok(bytes) => match Manifest::parse(&bytes) {
            Ok(manifest) => manifest,
            Err(e @ StoreError::Newer { .. }) => return Err(e),
            Err(e) => {
                root.set_aside(manifest::PATH).await?;
                set_aside.push(aside(manifest::PATH, format!("{e}; it was rebuilt from the segments")));
                rebuild(root).await?
            }
        },
        Err(StoreError::ObjectStore(object_store::Error::NotFound { .. })) => {
            is_new = true;
            rebuild(root).await?
        }
        Err(e) => return Err(e),
    };
    let mut budget = options.check_at_start_bytes;
    let mut unchecked = Vec::new();
    for segment in manifest.segments.clone().into_iter().rev() {
        if segment.bytes > budget {
            unchecked.push(segment);
            continue;
        }
        budget -= segment.bytes;
        if let Err(why) = check(root, &segment).await {
            let _ = root.set_aside(&segment.path).await;
            set_aside.push(aside(&segment.path, why));
            manifest.segments.retain(|s| s.path != segment.path);
        }
    }
    if is_new {
        // From now on files that no manifest names are leftovers, those of a first flush that was cut off too.
        root.put(manifest::PATH, manifest.to_bytes()).await?;
    }
    Ok(Loaded { manifest, set_aside, unchecked })
}

pub(crate) async fn check(root: &Root, segment: &Segment) -> Result<(), String> {
    if segment.format_version > FORMAT_VERSION {
        return Err(format!("it has format {}; this version reads up to {FORMAT_VERSION}", segment.format_version));
    }
    let data = root.get(&segment.path).await.map_err(|e| e.to_string())?;
    segment::verify(segment, &data)
}

/// A manifest rebuilt from the metadata of the segments. Segments that a compaction replaced are left out. An empty
/// folder gives an empty manifest.
async fn rebuild(root: &Root) -> Result<Manifest, StoreError> {
    let mut segments = Vec::new();
    for table in Table::ALL {
        for object in root.list(table.name()).await? {
            let data = root.get(object.location.as_ref()).await?;
            if let Some(mut segment) = segment::describe_self(&data) {
                segment.path = object.location.to_string();
                segments.push(segment);
            }
        }
    }
    let replaced: Vec<String> = segments.iter().flat_map(|s| s.replaces.clone()).collect();
    segments.retain(|s| !replaced.contains(&s.path));
    segments.sort_by(|a, b| a.path.rsplit('/').next().cmp(&b.path.rsplit('/').next()));
    Ok(Manifest { segments: segments.into_iter().map(Arc::new).collect(), ..Manifest::default() })
}

pub(crate) struct Replayed {
    pub state: State,
    pub indices: [TableIndex; 6],
    pub known: KnownSegments,
    pub set_aside: Vec<SetAside>,
}

/// Puts every good record of the log into a fresh tail. With `mend` (the writer), what is torn is cut off and what is
/// damaged is copied to `quarantine/`; a reader leaves the files alone.
pub(crate) fn replay(
    root: &Root,
    options: &StoreOptions,
    wal_dir: &Path,
    manifest: Manifest,
    numbers: &[u64],
    handle: &tokio::runtime::Handle,
    mend: bool,
) -> Result<Replayed, StoreError> {
    let mut state = State::new(manifest);
    let mut indices: [TableIndex; 6] = Default::default();
    let mut known = KnownSegments::new(options.duplicate_check_bytes);
    let mut set_aside = Vec::new();
    for (i, number) in numbers.iter().enumerate() {
        let path = wal::path(wal_dir, *number);
        let bytes = std::fs::read(&path).map_err(|e| StoreError::io(&path, e))?;
        let file = format!("wal/{number:016}.log");
        let mut refused = Vec::new();
        let report = wal::replay(&bytes, |table, batch| {
            let batch = match segment::upgrade(table, &batch) {
                Ok(batch) => batch,
                Err(e) => return refused.push(e.to_string()),
            };
            let incoming = Incoming::new(table, batch);
            let candidates = known.of(&incoming, &state.manifest, root, handle);
            let admitted = indices[table as usize].admit(incoming, &candidates);
            state.publish(admitted);
            state.coalesce(&mut indices);
        })?;
        set_aside.extend(refused.into_iter().map(|why| aside(&file, why)));
        for damage in &report.damage {
            let why = format!("{} (bytes {} to {})", damage.why, damage.from, damage.to);
            if mend {
                keep_copy(wal_dir, *number, damage, &bytes);
            }
            set_aside.push(aside(&file, why));
        }
        if let Some(torn) = &report.torn
            && mend
        {
            tracing::warn!(
                file,
                from = torn.from,
                to = torn.to,
                why = torn.why,
                "removed an unfinished write from the log"
            );
            // Only the file that was being written can end in an unfinished write.
            if i + 1 < numbers.len() {
                keep_copy(wal_dir, *number, torn, &bytes);
                set_aside.push(aside(&file, format!("{} (from byte {})", torn.why, torn.from)));
            } else {
                keep_copy(wal_dir, *number, torn, &bytes);
                let cut = std::fs::OpenOptions::new().write(true).open(&path);
                cut.and_then(|f| f.set_len(torn.from as u64)).map_err(|e| StoreError::io(&path, e))?;
            }
        }
    }
    Ok(Replayed { state, indices, known, set_aside })
}

fn keep_copy(wal_dir: &Path, number: u64, damage: &wal::Damage, bytes: &[u8]) {
    let Some(dir) = wal_dir.parent().map(|d| d.join("quarantine")) else { return };
    let file = dir.join(format!("wal__{number:016}.{}.bytes", damage.from));
    let kept = std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(&file, &bytes[damage.from..damage.to]));
    if let Err(e) = kept {
        tracing::warn!(error = %e, "cannot copy a damaged part of the log to quarantine");
    }
}
