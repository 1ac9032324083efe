//! Files beside the tables, named by the SHA-256 of their content: the same image is kept once. Conversations name them, in
//! their messages and metadata.

use std::collections::HashSet;

use arrow::array::RecordBatch;
use bytes::Bytes;
use rollscope_model::Table;
use rollscope_model::read::{Ints, Text, column};
use sha2::{Digest, Sha256};

use crate::error::StoreError;
use crate::manifest::Segment;
use crate::root::Root;
use crate::segment::SegmentBatches;
use crate::snapshot::Snapshot;

/// Digits of a hash.
const DIGITS: usize = 64;

/// Where media are named.
const TEXTS: [&str; 2] = ["messages", "metadata"];

pub(crate) fn path(hash: &str) -> String {
    format!("media/{}/{hash}", &hash[..2])
}

fn hash_of(data: &[u8]) -> String {
    Sha256::digest(data).iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) async fn put(root: &Root, data: Vec<u8>) -> Result<String, StoreError> {
    let hash = hash_of(&data);
    root.put(&path(&hash), data).await?;
    Ok(hash)
}

fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// `None` if there is no such file, or the hash is not a valid one. An error if the file is not what was stored.
pub(crate) async fn get(root: &Root, hash: &str) -> Result<Option<Bytes>, StoreError> {
    if hash.len() != DIGITS || !hash.bytes().all(is_digit) {
        return Ok(None);
    }
    match root.get(&path(hash)).await {
        Ok(data) if hash_of(&data) == hash => Ok(Some(data)),
        Ok(_) => Err(StoreError::Damaged("its content does not match its name".into())),
        Err(StoreError::ObjectStore(object_store::Error::NotFound { .. })) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Everything in a text that can be the name of a file.
fn hashes(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii() || !is_digit(c as u8)).filter(|word| word.len() == DIGITS)
}

fn texts_of(batch: &RecordBatch, row: usize) -> impl Iterator<Item = &str> {
    TEXTS.into_iter().filter_map(move |name| column::<Text>(batch, name).ok()?.get(row))
}

/// The hashes that conversations of a batch name, of all runs or of one.
pub(crate) fn named_in(batch: &RecordBatch, run_id: Option<&str>, found: &mut HashSet<String>) {
    let runs: Option<Text> = column(batch, "run_id").ok();
    let of_run = |row: usize| run_id.zip(runs).is_none_or(|(wanted, runs)| runs.get(row) == Some(wanted));
    for row in (0..batch.num_rows()).filter(|row| of_run(*row)) {
        found.extend(texts_of(batch, row).flat_map(hashes).map(str::to_string));
    }
}

/// The texts of a segment that may name media, batch by batch. Messages are large and seldom have any: they are read only
/// where the count says so.
async fn texts_of_segment(snapshot: &Snapshot, segment: &Segment) -> Result<SegmentBatches, StoreError> {
    let mut any = false;
    for batch in snapshot.read_segment(Table::Conversations, segment, &["media_count"]).await? {
        let counts = batch?;
        let counts: Option<Ints> = column(&counts, "media_count").ok();
        any |= counts.is_none_or(|counts| counts.iter().flatten().any(|n| n > 0));
    }
    let wanted = if any { &TEXTS[..] } else { &TEXTS[1..] };
    snapshot.read_segment(Table::Conversations, segment, wanted).await
}

pub(crate) async fn named_in_segment(
    snapshot: &Snapshot,
    segment: &Segment,
    found: &mut HashSet<String>,
) -> Result<(), StoreError> {
    for batch in texts_of_segment(snapshot, segment).await? {
        named_in(&batch?, None, found);
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Takes out of `doomed` what conversations name. Segments in `looked_at` are left out, and those that were read go in.
/// An error comes with the segment that could not be read.
pub(crate) async fn leave_named(
    snapshot: &Snapshot,
    doomed: &mut HashSet<String>,
    looked_at: &mut HashSet<String>,
) -> Result<(), (String, StoreError)> {
    let table = &snapshot.tables[&Table::Conversations];
    let mut named = HashSet::new();
    table.tail.iter().for_each(|batch| named_in(batch, None, &mut named));
    doomed.retain(|hash| !named.contains(hash));
    for segment in &table.segments {
        if doomed.is_empty() {
            break;
        }
        if looked_at.contains(&segment.path) {
            continue;
        }
        named.clear();
        named_in_segment(snapshot, segment, &mut named).await.map_err(|e| (segment.path.clone(), e))?;
        doomed.retain(|hash| !named.contains(hash));
        looked_at.insert(segment.path.clone());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_found_in_any_text() {
        let hash = "0123456789abcdef".repeat(4);
        let text = format!(r#"[{{"type":"image","media":"{hash}"}}, "ü{hash}ü", "{hash}0", "{}"]"#, &hash[1..]);
        assert_eq!(hashes(&text).collect::<Vec<_>>(), [&hash, &hash]);
    }
}
