//! How the manifest is kept on disk, so that a commit costs what it changes, and no single file can be lost.
//!
//! `commits.log` is the truth: lines of a checksum and JSON. The first holds a whole manifest, each of the others what a
//! commit changed. A commit counts when its line is synced. From time to time the file is replaced by one that holds a
//! whole manifest alone; then `manifest.json` becomes a copy of that line, for people, and for the day when `commits.log`
//! is damaged. What both of them do not say is found in the segments themselves ([`crate::open`]).

use std::io;

use serde::{Deserialize, Serialize};

use crate::disk::DiskFile;
use crate::error::StoreError;
use crate::manifest::{Commit, Manifest, VERSION};
use crate::root::{Folder, Root};

pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const COMMITS: &str = "commits.log";

/// `commits.log` is written again when its commits are larger than the manifest, and than this.
const REWRITE_BYTES: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line<W> {
    Whole(W),
    Commit(Commit),
}

fn encode<W: Serialize>(line: &Line<W>) -> Vec<u8> {
    let json = serde_json::to_vec(line).expect("a manifest is plain data");
    let mut out = format!("{:08x} ", crc32fast::hash(&json)).into_bytes();
    out.extend(json);
    out.push(b'\n');
    out
}

fn decode(line: &[u8]) -> Result<Line<Manifest>, StoreError> {
    let damaged = || StoreError::Damaged("the checksum of a line is wrong".into());
    let (sum, json) = line.split_at_checked(9).ok_or_else(damaged)?;
    if sum != format!("{:08x} ", crc32fast::hash(json)).as_bytes() {
        return Err(damaged());
    }
    let line: Line<Box<serde_json::value::RawValue>> =
        serde_json::from_slice(json).map_err(|e| StoreError::Damaged(e.to_string()))?;
    Ok(match line {
        Line::Whole(whole) => Line::Whole(Manifest::parse(whole.get().as_bytes())?),
        Line::Commit(commit) => Line::Commit(commit),
    })
}

/// What the two files say.
#[derive(Default)]
pub(crate) struct Found {
    /// `None`: neither is there, or neither can be read.
    pub manifest: Option<Manifest>,
    /// A file that is damaged, and how.
    pub damage: Vec<(&'static str, String)>,
    /// Commits are missing.
    pub is_incomplete: bool,
    /// `commits.log` ends within a commit: it was being written, or it is damaged.
    pub is_torn: bool,
    /// Where `commits.log` goes on. `None`: it has to be written again.
    pub end: Option<Journal>,
}

pub(crate) async fn find(root: &Root) -> Result<Found, StoreError> {
    let read = async |path: &str| match root.get(path).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.is_missing() => Ok(None),
        Err(e) => Err(e),
    };
    judge(read(MANIFEST).await?.as_deref(), read(COMMITS).await?.as_deref())
}

/// What the two files say, from their bytes. `None`: a file is missing.
pub(crate) fn judge(manifest: Option<&[u8]>, commits: Option<&[u8]>) -> Result<Found, StoreError> {
    let mut found = Found::default();
    let mut newer = None;
    if let Some(bytes) = manifest {
        match Manifest::parse(bytes) {
            Ok(manifest) => found.manifest = Some(manifest),
            Err(StoreError::Damaged(why)) => found.damage.push((MANIFEST, why)),
            Err(e) => newer = Some(e),
        }
    }
    if let Some(e) = newer {
        // It has no checksum. A newer version writes both files: if the other one is of this version, a bit has flipped.
        let is_ours = |line: &[u8]| matches!(decode(line), Ok(Line::Whole(_)));
        if !commits.is_some_and(|bytes| bytes.split(|b| *b == b'\n').next().is_some_and(is_ours)) {
            return Err(e);
        }
        found.damage.push((MANIFEST, e.to_string()));
    }
    let Some(bytes) = commits else {
        // Before version 2 there was none.
        if found.manifest.as_ref().is_some_and(|m| m.format_version >= 2) {
            found.damage.push((COMMITS, "it is missing".into()));
            found.is_incomplete = true;
        }
        return Ok(found);
    };
    let mut lines: Vec<&[u8]> = bytes.split(|b| *b == b'\n').collect();
    // After the last line there is nothing, or the beginning of a line.
    let torn = lines.pop().is_some_and(|rest| !rest.is_empty());
    let mut whole = None;
    let mut commits = Vec::new();
    let mut bad = None;
    for line in &lines {
        match decode(line) {
            Ok(Line::Whole(manifest)) => whole = Some((manifest, line.len() as u64 + 1)),
            Ok(Line::Commit(commit)) => commits.push(commit),
            Err(StoreError::Damaged(why)) => bad = Some(why),
            Err(e) => return Err(e),
        }
    }
    if whole.is_none() {
        bad.get_or_insert_with(|| "it does not begin with a manifest".into());
    }
    let whole_bytes = whole.as_ref().map_or(0, |(_, bytes)| *bytes);
    let copy = found.manifest.take();
    let is_copied = copy.as_ref().is_some_and(|m| m.format_version == VERSION);
    // A copy is never newer, unless an older version of rollscope wrote it.
    let newer = copy.as_ref().filter(|m| m.format_version < VERSION).map_or(0, |m| m.version);
    let whole = whole.map(|(manifest, _)| manifest).filter(|whole| whole.version >= newer);
    let Some(mut manifest) = whole.or(copy) else {
        found.damage.push((COMMITS, bad.unwrap_or_default()));
        found.is_incomplete = true;
        return Ok(found);
    };
    commits.retain(|commit| commit.version > manifest.version);
    let follows = |(i, commit): (usize, &Commit)| commit.version == manifest.version + 1 + i as u64;
    if bad.is_none() && !commits.iter().enumerate().all(follows) {
        bad = Some("commits are missing".into());
    }
    manifest.apply(commits);
    (found.is_incomplete, found.is_torn) = (bad.is_some(), torn);
    if !found.is_incomplete && !torn && is_copied && found.damage.is_empty() && whole_bytes > 0 {
        found.end = Some(Journal { file: None, synced: bytes.len() as u64, whole: whole_bytes });
    }
    found.damage.extend(bad.map(|why| (COMMITS, why)));
    found.manifest = Some(manifest);
    Ok(found)
}

/// Why a commit failed.
pub(crate) struct Unwritten {
    pub error: io::Error,
    /// The next start will not find it either.
    pub is_certain: bool,
}

/// `commits.log`, as it is continued.
#[derive(Default)]
pub(crate) struct Journal {
    /// `None`: it must be written again before it can be continued.
    file: Option<DiskFile>,
    /// Bytes that are on disk, and of them the whole manifest.
    synced: u64,
    whole: u64,
}

impl Journal {
    /// Goes on in the file that was found.
    pub fn open(mut self, folder: &Folder) -> io::Result<Journal> {
        let mut file = folder.disk.open(&folder.path(COMMITS))?;
        // A process that was killed may not have come to it.
        file.sync()?;
        self.file = Some(file);
        Ok(self)
    }

    pub fn has_commits(&self) -> bool {
        self.synced > self.whole
    }

    /// Returns when a commit is on disk. `manifest` is what it leads to.
    pub fn commit(&mut self, folder: &Folder, commit: Commit, manifest: &Manifest) -> Result<(), Unwritten> {
        let is_due = self.synced > self.whole.max(REWRITE_BYTES) + self.whole;
        let Some(file) = self.file.as_mut().filter(|_| !is_due) else { return self.rewrite(folder, manifest) };
        let line = encode::<Manifest>(&Line::Commit(commit));
        match file.write(&line).and_then(|()| file.sync()) {
            Ok(()) => {
                self.synced += line.len() as u64;
                Ok(())
            }
            Err(error) => {
                let undone = file.cut(self.synced).and_then(|()| file.sync());
                if undone.is_err() {
                    self.file = None;
                }
                Err(Unwritten { error, is_certain: undone.is_ok() })
            }
        }
    }

    /// Begins again with a whole manifest.
    pub fn rewrite(&mut self, folder: &Folder, manifest: &Manifest) -> Result<(), Unwritten> {
        let line = encode(&Line::Whole(manifest));
        let path = folder.path(COMMITS);
        let staged = folder.disk.stage(&path, &line).map_err(|error| Unwritten { error, is_certain: true })?;
        self.file = None;
        staged.publish().map_err(|error| Unwritten { error, is_certain: false })?;
        (self.synced, self.whole) = (line.len() as u64, line.len() as u64);
        self.file = folder.disk.open(&path).ok();
        let json = serde_json::to_vec(manifest).expect("a manifest is plain data");
        if let Err(e) = folder.disk.stage(&folder.path(MANIFEST), &json).and_then(|mut copy| copy.name()) {
            tracing::warn!(error = %e, "cannot write {MANIFEST}; {COMMITS} has everything");
        }
        Ok(())
    }
}
