//! Background work: flushing what is due, merging small segments, retention, deleting dead files.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rollscope_model::Table;
use rollscope_model::tables::Keep;
use rollscope_model::time::{NS_PER_S, now_ns};
use tokio::sync::oneshot;

use super::shared::{Shared, WeakShared, What};
use crate::error::StoreError;
use crate::identity::{identity_hashes, open_rows};
use crate::lake::{BEAT, NodeEntry};
use crate::manifest::{Manifest, Segment};
use crate::segment::{self, Effort};

/// Retention, thinning and merging rest this long in between.
const TIDY_EVERY: Duration = Duration::from_secs(10);
/// In a lake: and so many times as long for each node that does it before this one.
const TIDY_RARELY: u32 = 6;
/// How often files are looked for that no table names. What was found once is deleted the next time: by then, no query reads it.
const CLEAN_EVERY: Duration = Duration::from_secs(3600);
/// Segments below this share of the target are small.
const SMALL: u64 = 2;
/// Small segments that are merged into one in the background when there are this many.
const MERGE_AT: usize = 6;
/// Most memory that the rows of one merge may take.
const MERGE_BYTES: u64 = 512 << 20;

pub(super) async fn run(weak: WeakShared) {
    let (mut refreshed, mut tidied) = (Instant::now(), Instant::now());
    loop {
        {
            let Some(shared) = weak.upgrade() else { return };
            if shared.is_closed() {
                return;
            }
            tokio::select! {
                () = shared.wait_for_flush_request() => {}
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
            if shared.is_closed() {
                return;
            }
            if shared.flush_due()
                && let Err(e) = shared.flush().await
            {
                tracing::warn!(error = %e, "cannot flush the live tail; it stays in the log");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            if refreshed.elapsed() >= TIDY_EVERY {
                let done = if tidied.elapsed() >= TIDY_EVERY * (1 + TIDY_RARELY * shared.nodes_before()) {
                    tidied = Instant::now();
                    tidy(&shared).await
                } else {
                    refresh(&shared).await
                };
                if let Err(e) = done {
                    shared.note_fence(&e);
                    tracing::warn!(error = %e, "background maintenance failed; trying again later");
                }
                refreshed = Instant::now();
            }
            shared.check_unreadable().await;
            shared.delete_doomed().await;
        }
        tokio::task::yield_now().await;
    }
}

/// In a lake: says that this node is there.
pub(super) async fn be_a_node(weak: WeakShared) {
    while let Some(shared) = next_beat(&weak).await {
        // One that hangs must not be the last: silent nodes are taken over.
        let beat = tokio::time::timeout(BEAT, shared.beat()).await;
        let beat = beat.unwrap_or_else(|_| Err(StoreError::Busy(format!("no answer within {} s", BEAT.as_secs()))));
        match beat {
            Ok(()) => *shared.unheard.lock() = None,
            Err(e) => {
                shared.note_fence(&e);
                tracing::warn!(error = %e, "cannot tell the other nodes that this one is there");
                shared.unheard.lock().get_or_insert((Instant::now() - BEAT, String::new())).1 = e.to_string();
            }
        }
    }
}

/// The same while it reads logs, which may take longer than others wait. `before`: whose logs are not taken over yet.
pub(super) async fn beat_while_starting(node: NodeEntry, before: HashSet<String>) {
    loop {
        tokio::time::sleep(BEAT).await;
        if let Err(e) = node.beat(0, 0, &before).await {
            tracing::warn!(error = %e, "cannot tell the other nodes that this one is there");
        }
    }
}

/// In a lake: shows what others have acknowledged. `looked` is told when it has tried for the first time.
pub(super) async fn follow(weak: WeakShared, every: Duration, looked: oneshot::Sender<()>) {
    let (mut was_well, mut looked) = (true, Some(looked));
    loop {
        let shared = weak.upgrade().filter(|shared| !shared.is_closed() && !shared.is_fenced.load(Ordering::Relaxed));
        let Some(shared) = shared else { return };
        let followed = shared.follow().await;
        if let (Err(e), true) = (&followed, was_well) {
            tracing::warn!(error = %e, "cannot read the logs of other nodes; what they take in is shown later");
        }
        was_well = followed.is_ok();
        drop(shared);
        looked.take().map(|looked| looked.send(()));
        tokio::time::sleep(every).await;
    }
}

/// In a lake: takes over what nodes have left that are silent. It may take long, so it is not what says that this node is there.
pub(super) async fn look_after_nodes(weak: WeakShared) {
    while let Some(shared) = next_beat(&weak).await {
        if let Err(e) = shared.adopt_silent().await {
            shared.note_fence(&e);
            tracing::warn!(error = %e, "cannot take over what a node has left; trying again later");
        }
    }
}

/// In a lake: deletes what processes have left that were killed.
pub(super) async fn clean_up(weak: WeakShared) {
    loop {
        tokio::time::sleep(CLEAN_EVERY).await;
        let shared = weak.upgrade().filter(|shared| !shared.is_closed() && !shared.is_fenced.load(Ordering::Relaxed));
        let Some(shared) = shared else { return };
        if let Err(e) = shared.clean().await {
            shared.note_fence(&e);
            tracing::warn!(error = %e, "cannot delete what killed processes have left; trying again in an hour");
        }
    }
}

/// In a lake: looks who is there.
pub(super) async fn look_at_nodes(weak: WeakShared) {
    let mut shared = weak.upgrade();
    while let Some(here) = shared {
        let looked = match here.looking.lock().await.as_mut() {
            Some(nodes) => nodes.look().await,
            None => return,
        };
        match looked {
            Ok(seen) => *here.nodes.write() = seen,
            Err(e) => tracing::warn!(error = %e, "cannot see which nodes are there"),
        }
        drop(here);
        shared = next_beat(&weak).await;
    }
}

async fn next_beat(weak: &WeakShared) -> Option<Arc<Shared>> {
    tokio::time::sleep(BEAT).await;
    weak.upgrade().filter(|shared| !shared.is_closed() && !shared.is_fenced.load(Ordering::Relaxed))
}

/// In a lake: takes in what others have committed.
async fn refresh(shared: &Shared) -> Result<(), StoreError> {
    shared.refresh(&mut *shared.commit.lock().await).await
}

/// Retention, thinning, merging, and the media of deleted runs.
pub(super) async fn tidy(shared: &Shared) -> Result<(), StoreError> {
    let tidied = async {
        refresh(shared).await?;
        expire(shared).await?;
        thin(shared).await?;
        compact(shared, false).await
    };
    let tidied = tidied.await;
    shared.sweep_media().await;
    tidied
}

/// Checks the segments that were not checked at start because there were too many.
pub(super) async fn check_rest(weak: WeakShared, segments: Vec<Arc<Segment>>) {
    for segment in segments {
        let Some(shared) = weak.upgrade() else { return };
        let live = shared.state.read().manifest.segments.contains(&segment);
        if live
            && let Err(e) = crate::open::check(&shared.root, &segment).await
            && let Err(e) = shared.drop_segment(&segment.path, e).await
        {
            tracing::warn!(file = segment.path, error = %e, "cannot check a segment");
        }
    }
}

/// Applies retention: deletes whole segments. What was worked out from rows counts, too.
async fn expire(shared: &Shared) -> Result<(), StoreError> {
    let options = &shared.options;
    let derived = shared.trim_derived().await?;
    if options.retention_age_s == 0 && options.retention_bytes == 0 {
        return Ok(());
    }
    let mut commit = shared.commit.lock().await;
    let mut manifest = Manifest::clone(&shared.state.read().manifest);
    let before = manifest.segments.len();
    let oldest_kept =
        if options.retention_age_s == 0 { i64::MIN } else { now_ns() - options.retention_age_s as i64 * NS_PER_S };
    let mut by_age: Vec<Arc<Segment>> = manifest.segments.clone();
    by_age.sort_by_key(|s| std::cmp::Reverse(s.newest()));
    let mut total = derived;
    let mut expired = HashSet::new();
    for segment in by_age {
        total += segment.bytes;
        let too_much = options.retention_bytes > 0 && total > options.retention_bytes;
        // The list of runs is small and records what was there, so it stays.
        if segment.table != Table::Runs.name() && (segment.newest() < oldest_kept || too_much) {
            total -= segment.bytes;
            expired.insert(segment.path.clone());
        }
    }
    if expired.is_empty() {
        return Ok(());
    }
    manifest.segments.retain(|s| !expired.contains(&s.path));
    let count = (before - manifest.segments.len()) as u64;
    shared.commit_manifest(&mut commit, manifest, What::default(), |_, _| {}).await?;
    shared.counters.expired_segments.fetch_add(count, Ordering::Relaxed);
    Ok(())
}

/// Merges small segments of the same table and run, and those of small runs. With `full`, also when there are few, and
/// compresses again what a flush compressed in a hurry.
pub(super) async fn compact(shared: &Shared, full: bool) -> Result<(), StoreError> {
    let manifest = shared.state.read().manifest.clone();
    // What was thinned is never mixed with what was not.
    let mut tables: BTreeMap<(&str, bool), Vec<Arc<Segment>>> = BTreeMap::new();
    for s in &manifest.segments {
        let target = if s.is_shared() { segment::SHARED_ROWS } else { shared.options.segment_rows };
        let small = s.rows < target / SMALL && s.memory_bytes < MERGE_BYTES / SMALL;
        if small || (full && s.level == 0) {
            tables.entry((&s.table, s.level == segment::THINNED)).or_default().push(s.clone());
        }
    }
    for ((table, thinned), segments) in tables {
        let effort = if thinned { Effort::Thin } else { Effort::Compact };
        let table = Table::from_name(table).expect("manifests name known tables");
        for batch in groups_of(segments).into_iter().flat_map(|group| batches_of(group, shared.options.segment_rows)) {
            let saved = batch.len().saturating_sub(files_after(&batch));
            let worth = saved >= MERGE_AT - 1 || (full && (saved > 0 || batch.iter().any(|s| s.level == 0)));
            if worth && !shared.is_closed() && !merge(shared, table, batch, effort).await? {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Those that are merged with each other: of a run, and of all small runs.
fn groups_of(segments: Vec<Arc<Segment>>) -> Vec<Vec<Arc<Segment>>> {
    let (mut small, own): (Vec<_>, Vec<_>) = segments.into_iter().partition(|s| s.is_shared());
    let mut by_run: BTreeMap<String, Vec<Arc<Segment>>> = BTreeMap::new();
    for segment in own {
        by_run.entry(segment.run_id.clone()).or_default().push(segment);
    }
    let is_small = |segments: &[Arc<Segment>]| {
        let rows: u64 = segments.iter().map(|s| s.rows).sum();
        let bytes: u64 = segments.iter().map(|s| s.bytes).sum();
        rows < segment::SMALL_RUN_ROWS && bytes < segment::SMALL_RUN_BYTES
    };
    if !small.is_empty() || by_run.values().filter(|segments| is_small(segments)).count() >= segment::SHARED_AT {
        small.extend(by_run.extract_if(.., |_, segments| is_small(segments)).flat_map(|(_, segments)| segments));
    }
    by_run.into_values().chain([small]).collect()
}

/// Neighbours in time, as many as one merge can hold.
fn batches_of(mut segments: Vec<Arc<Segment>>, segment_rows: u64) -> Vec<Vec<Arc<Segment>>> {
    segments.sort_by_key(|s| s.min_time);
    let mut batches: Vec<Vec<Arc<Segment>>> = Vec::new();
    let (mut rows, mut memory) = (0, 0);
    for s in segments {
        match batches.last_mut() {
            Some(last) if rows + s.rows <= segment_rows && memory + s.memory_bytes <= MERGE_BYTES => {
                rows += s.rows;
                memory += s.memory_bytes;
                last.push(s);
            }
            _ => {
                (rows, memory) = (s.rows, s.memory_bytes);
                batches.push(vec![s]);
            }
        }
    }
    batches
}

/// Files that a merge leaves, about.
fn files_after(batch: &[Arc<Segment>]) -> usize {
    let runs = batch.iter().flat_map(|s| s.runs()).collect::<HashSet<&str>>().len();
    if runs < segment::SHARED_AT {
        return runs;
    }
    let rows: u64 = batch.iter().map(|s| s.rows).sum();
    runs.div_ceil(segment::SHARED_RUNS).max(rows.div_ceil(segment::SHARED_ROWS) as usize)
}

/// Thins series that are older than `series_full_age_s`, a segment at a time.
async fn thin(shared: &Shared) -> Result<(), StoreError> {
    let options = &shared.options;
    if options.series_full_age_s == 0 || options.series_thin_s == 0 {
        return Ok(());
    }
    let before = now_ns().saturating_sub((options.series_full_age_s as i64).saturating_mul(NS_PER_S));
    let manifest = shared.state.read().manifest.clone();
    let old = manifest.segments_of(Table::Series).filter(|s| s.max_time < before && s.level != segment::THINNED);
    for segment in old.cloned().collect::<Vec<_>>() {
        if shared.is_closed() {
            return Ok(());
        }
        if !merge(shared, Table::Series, vec![segment], Effort::Thin).await? {
            return Ok(());
        }
    }
    Ok(())
}

/// False: in a lake, another node does the same, and was quicker. What else there is to merge is looked up again.
async fn merge(shared: &Shared, table: Table, old: Vec<Arc<Segment>>, effort: Effort) -> Result<bool, StoreError> {
    let bucket_ns = shared.options.series_thin_s as i64 * NS_PER_S;
    let mut parts = Vec::with_capacity(old.len());
    for s in &old {
        match shared.read_segment(s).await {
            Ok(data) => parts.push((s.path.clone(), data)),
            // The others are merged another time, without it.
            Err(e) => return shared.drop_segment(&s.path, e).await.map(|()| true),
        }
    }
    // Oldest file first, so that "the first" and "the last" of equal rows keep their meaning.
    parts.sort_by(|a, b| a.0.rsplit('/').next().cmp(&b.0.rsplit('/').next()));
    let read = tokio::task::spawn_blocking(move || {
        let mut batches = Vec::new();
        for (_, data) in parts {
            batches.extend(segment::read_batches(table, data)?);
        }
        if matches!(effort, Effort::Thin) {
            batches = segment::in_order(table, &batches)?;
            batches = batches.iter().map(|b| crate::thin::thin(b, bucket_ns)).collect::<Result<_, _>>()?;
        }
        keep_one_of_each(table, batches)
    });
    let batches = read.await.map_err(|e| StoreError::Busy(e.to_string()))??;
    let paths: Vec<String> = old.iter().map(|s| s.path.clone()).collect();
    let fresh = shared.build(table, batches, effort, paths.clone()).await?;
    // A flush may have rewritten one of them meanwhile: then this merge is stale.
    let is_stale = |manifest: &Manifest| !paths.iter().all(|p| manifest.segments.iter().any(|s| s.path == *p));
    if is_stale(&shared.state.read().manifest) {
        return Ok(true);
    }
    // Nobody knows these files yet, and to write them takes a while.
    let fresh = shared.put_segments(fresh).await?;
    let mut commit = shared.commit.lock().await;
    let mut manifest = Manifest::clone(&shared.state.read().manifest);
    if is_stale(&manifest) {
        drop(commit);
        let stale: Vec<String> = fresh.into_iter().map(|(segment, _)| segment.path.clone()).collect();
        shared.discard(&stale).await;
        return Ok(true);
    }
    manifest.segments.retain(|s| !paths.contains(&s.path));
    manifest.segments.extend(fresh.into_iter().map(|(segment, _)| segment));
    match shared.commit_manifest(&mut commit, manifest, What::default(), |_, _| {}).await {
        Err(StoreError::Conflict) => return Ok(false),
        committed => committed?,
    }
    shared.counters.compactions.fetch_add(1, Ordering::Relaxed);
    Ok(true)
}

/// Duplicates that were not recognised when they came (see `duplicate_check_bytes`) end here.
fn keep_one_of_each(
    table: Table,
    batches: Vec<arrow::array::RecordBatch>,
) -> Result<Vec<arrow::array::RecordBatch>, StoreError> {
    let last_wins = table.keep() == Keep::Last;
    // Walk so that the row that stays comes first.
    let mut order: Vec<usize> = (0..batches.len()).collect();
    if last_wins {
        order.reverse();
    }
    let hashes: Vec<Vec<u128>> = batches.iter().map(|b| identity_hashes(table, b)).collect();
    let open: Vec<Vec<bool>> = batches.iter().map(|b| open_rows(table, b)).collect();
    let is_open = |b: usize, row: usize| open[b].get(row).copied().unwrap_or(false);
    let closed: HashSet<u128> = if open.iter().all(Vec::is_empty) {
        HashSet::new()
    } else {
        (0..batches.len())
            .flat_map(|b| hashes[b].iter().enumerate().filter(move |(row, _)| !is_open(b, *row)).map(|(_, h)| *h))
            .collect()
    };
    let mut seen: HashSet<u128> = HashSet::with_capacity(hashes.iter().map(Vec::len).sum());
    let mut kept: Vec<Option<arrow::array::RecordBatch>> = vec![None; batches.len()];
    for b in order {
        let rows = batches[b].num_rows();
        let mut keep = vec![false; rows];
        let mut walk: Vec<usize> = (0..rows).collect();
        if last_wins {
            walk.reverse();
        }
        for row in walk {
            let hash = hashes[b][row];
            keep[row] = !(is_open(b, row) && closed.contains(&hash)) && seen.insert(hash);
        }
        kept[b] = Some(if keep.contains(&false) {
            arrow::compute::filter_record_batch(&batches[b], &keep.into())?
        } else {
            batches[b].clone()
        });
    }
    Ok(kept.into_iter().flatten().collect())
}
