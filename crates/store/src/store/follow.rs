//! In a lake: what other writers have acknowledged is shown before it is in the tables. A node that answers reads their logs, again and again.
//!
//! Nothing that this node keeps or writes waits for this or depends on it ([`crate::tail::Theirs`]). If logs cannot be read, what they have
//! is shown when it is in the tables.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use rollscope_model::Table;
use tokio::runtime::Handle;

use super::shared::Shared;
use crate::error::StoreError;
use crate::known::KnownSegments;
use crate::lake::{LogsSeen, OthersLogs};
use crate::manifest::{Manifest, Segment};
use crate::root::Root;
use crate::tail::{Extents, KnownSegment, LogPart};

/// How often rows are compared with segments if these change meanwhile.
const TRIES: usize = 10;

/// What this node has read of the logs of others.
pub(super) struct Follower {
    writer_id: String,
    logs: OthersLogs,
    /// Segments that what is held was compared with.
    compared: HashSet<String>,
    /// Segments that could not be read. They are tried again.
    uncompared: HashSet<String>,
    /// The segments of this one were all compared.
    looked_at: Option<Arc<Manifest>>,
    known: KnownSegments,
    limit: usize,
    /// Since when logs cannot be read, and why.
    failing: Option<(Instant, String)>,
}

impl Follower {
    pub fn new(writer: &str, writer_id: &str, limit: usize, duplicate_check_bytes: usize) -> Follower {
        Follower {
            writer_id: writer_id.into(),
            logs: OthersLogs::new(writer, limit),
            compared: HashSet::new(),
            uncompared: HashSet::new(),
            looked_at: None,
            known: KnownSegments::new(duplicate_check_bytes),
            limit,
            failing: None,
        }
    }

    /// For each batch of a part, the segments that may hold its rows.
    fn known_of(&mut self, part: &LogPart, manifest: &Manifest, root: &Root) -> Vec<Vec<KnownSegment>> {
        let handle = Handle::current();
        part.rows.iter().map(|rows| self.known.of(rows, manifest, root, &handle)).collect()
    }

    /// Segments of others that what was held before was not compared with, and that may hold some of it. What is new is compared with all.
    fn new_segments(&mut self, manifest: &Arc<Manifest>, new: &[Arc<LogPart>]) -> Vec<Arc<Segment>> {
        if self.uncompared.is_empty() && self.looked_at.as_ref().is_some_and(|last| Arc::ptr_eq(last, manifest)) {
            return Vec::new();
        }
        let is_new = |segment: &&Arc<Segment>| !self.compared.contains(&segment.path);
        let unknown: Vec<&Arc<Segment>> = manifest.segments.iter().filter(is_new).collect();
        // What this node has flushed, it had in its tail; what was merged was compared before.
        let is_compared = |segment: &Segment| match segment.level {
            0 => segment.writer == self.writer_id && segment.replaces.is_empty(),
            _ => segment.replaces.iter().all(|path| self.compared.contains(path)),
        };
        let extents = Extents::of(self.logs.held_beside(new));
        let is_wanted = |segment: &&Arc<Segment>| {
            self.uncompared.contains(&segment.path) || !is_compared(segment) && extents.may_meet(segment)
        };
        let (wanted, other): (Vec<&Arc<Segment>>, Vec<&Arc<Segment>>) = unknown.into_iter().partition(is_wanted);
        self.compared.extend(other.into_iter().map(|segment| segment.path.clone()));
        let live: HashSet<&str> = manifest.segments.iter().map(|segment| segment.path.as_str()).collect();
        self.compared.retain(|path| live.contains(path.as_str()));
        self.uncompared.retain(|path| live.contains(path.as_str()));
        wanted.into_iter().cloned().collect()
    }

    /// Reads what rows of segments are compared by.
    async fn read(&mut self, segments: Vec<Arc<Segment>>, root: &Root) -> Vec<KnownSegment> {
        let mut read = Vec::new();
        for segment in segments {
            match KnownSegments::read(root, &segment).await {
                Ok(Some(known)) => read.push(known),
                // It is damaged.
                Ok(None) => self.has_compared(&segment.path),
                Err(_) => drop(self.uncompared.insert(segment.path.clone())),
            }
        }
        read
    }

    fn has_compared(&mut self, path: &str) {
        self.uncompared.remove(path);
        self.compared.insert(path.to_string());
    }

    /// Rows were shown without comparing them with some segments.
    fn note_unreadable(&mut self) {
        for path in self.known.take_unreadable() {
            self.compared.remove(&path);
            self.uncompared.insert(path);
        }
    }

    /// What does not go well, in words.
    fn problems(&self) -> Vec<String> {
        let failing = self.failing.as_ref().map(|(since, why)| {
            let seconds = since.elapsed().as_secs();
            format!("logs of other nodes cannot be read for {seconds} s ({why}); what they take in is shown later")
        });
        let left_out = self.logs.left_out;
        let too_much = (left_out > 0).then(|| {
            format!(
                "other nodes take in more than fits into {} MiB of memory here: {left_out} parts of their logs are shown once they are in the tables",
                self.limit >> 20
            )
        });
        failing.into_iter().chain(too_much).collect()
    }
}

impl Shared {
    /// In a lake: shows what others have acknowledged since this was last called.
    pub(super) async fn follow(&self) -> Result<(), StoreError> {
        let mut follower = self.follower.lock().await;
        let Some(follower) = follower.as_mut() else { return Ok(()) };
        let followed = self.try_follow(follower).await;
        let failure = match &followed {
            Ok(()) => follower.logs.unreadable.values().next().cloned(),
            Err(e) => {
                self.note_fence(e);
                Some(e.to_string())
            }
        };
        follower.failing =
            failure.map(|why| (follower.failing.take().map_or_else(Instant::now, |(since, _)| since), why));
        *self.follow_problems.lock() = follower.problems();
        followed
    }

    async fn try_follow(&self, follower: &mut Follower) -> Result<(), StoreError> {
        let since = self.state.read().version;
        let seen = follower.logs.look(&self.root).await?;
        let shown = self.show(follower, &seen, since).await;
        if shown.is_err() {
            follower.logs.take_back(&seen);
        }
        shown
    }

    async fn show(&self, follower: &mut Follower, seen: &LogsSeen, since: u64) -> Result<(), StoreError> {
        let LogsSeen { new, gone, is_flushed } = seen;
        // What a flush has left open goes on in the next part of a log. Where that cannot be read, the one before stays.
        let since = if follower.logs.unreadable.is_empty() { since } else { 0 };
        let unknown = self.follow_writers(new);
        if *is_flushed || !unknown.is_empty() {
            self.refresh(&mut *self.commit.lock().await).await.inspect_err(|_| self.forget_writers(&unknown))?;
        }
        for _ in 0..TRIES {
            let manifest = self.state.read().manifest.clone();
            let segments = follower.new_segments(&manifest, new);
            let has_passed = self.state.read().theirs.as_ref().is_some_and(|theirs| theirs.has_passed(since));
            if new.is_empty() && gone.is_empty() && segments.is_empty() && !has_passed {
                follower.looked_at = follower.uncompared.is_empty().then_some(manifest);
                return Ok(());
            }
            let met = follower.read(segments, &self.root).await;
            // Segments that cannot be read are no news.
            if new.is_empty() && gone.is_empty() && met.is_empty() && !has_passed {
                return Ok(());
            }
            let known: Vec<Vec<Vec<KnownSegment>>> = tokio::task::block_in_place(|| {
                new.iter().map(|part| follower.known_of(part, &manifest, &self.root)).collect()
            });
            let writer = self.writer.lock().await;
            let mut state = self.state.write();
            if !Arc::ptr_eq(&state.manifest, &manifest) {
                continue;
            }
            state.let_go(|writer, number| gone.contains(&(writer.clone(), number)));
            for (part, known) in new.iter().zip(known) {
                state.hold(part, known, &writer.indices);
            }
            for known in met {
                state.meet(&known);
                follower.has_compared(&known.segment.path);
            }
            follower.note_unreadable();
            follower.looked_at = follower.uncompared.is_empty().then_some(manifest);
            state.let_passed_go(since);
            state.version += 1;
            self.changes.send_replace(state.version);
            if let Some(theirs) = &mut state.theirs {
                follower.logs.passed(|writer| theirs.floors.get(writer).copied());
                theirs.floors.retain(|writer, _| follower.logs.has(writer));
            }
            return Ok(());
        }
        Err(StoreError::Busy("the tables change all the time".into()))
    }

    /// Writers that are new: how much of their logs is in the tables is not known before these are looked at.
    fn follow_writers(&self, parts: &[Arc<LogPart>]) -> Vec<String> {
        let mut state = self.state.write();
        let Some(theirs) = &mut state.theirs else { return Vec::new() };
        let writers: HashSet<String> = parts.iter().map(|part| part.writer.to_string()).collect();
        let unknown: Vec<String> = writers.into_iter().filter(|w| !theirs.floors.contains_key(w)).collect();
        theirs.floors.extend(unknown.iter().map(|writer| (writer.clone(), [0; Table::COUNT])));
        unknown
    }

    /// The tables could not be looked at.
    fn forget_writers(&self, writers: &[String]) {
        if let Some(theirs) = &mut self.state.write().theirs {
            theirs.floors.retain(|writer, _| !writers.contains(writer));
        }
    }
}
