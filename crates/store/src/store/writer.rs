//! The writer thread: recognises duplicates, writes the log, makes rows visible.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rollscope_model::Table;
use tokio::sync::{mpsc, oneshot};

use super::Appended;
use super::shared::Shared;
use crate::error::StoreError;
use crate::known::KnownSegments;
use crate::tail::{Admitted, Incoming, TableIndex};
use crate::wal::{self, Log};

/// Most bytes written between two syncs.
const GROUP_BYTES: usize = 64 << 20;
/// So many bytes are worth a sync of their own: they wait for no others.
const WORTH_A_SYNC: usize = 4 << 20;
/// Without this thread nothing can be stored.
pub(super) const WRITER: &str = "store-writer";

/// Behind one lock: the log, and the index of what is in the tail.
pub(super) struct Writer {
    pub(super) log: Box<dyn Log>,
    pub(super) indices: [TableIndex; Table::COUNT],
    pub(super) known: KnownSegments,
    /// Once the sealed generation is in segments, log files below this are not needed.
    pub(super) sealed_floor: u64,
}

pub(super) struct Request {
    pub(super) incoming: Incoming,
    pub(super) record: Vec<u8>,
    pub(super) reply: oneshot::Sender<Result<Appended, StoreError>>,
}

/// Group commit: takes what is waiting, writes it, syncs once, then makes it visible and answers.
pub(super) fn write_loop(shared: &Arc<Shared>, mut requests: mpsc::Receiver<Request>, handle: &tokio::runtime::Handle) {
    while let Some(first) = requests.blocking_recv() {
        let pause = shared.writer.blocking_lock().log.pause();
        let group = gather(first, &mut requests, pause, handle);
        let room = shared.wait_for_room();
        if let Err(e) = room {
            refuse(shared, group.into_iter().map(|r| r.reply), &e);
            continue;
        }
        write_group(shared, group, handle);
        if shared.flush_due() {
            shared.flush_wanted.notify_one();
        }
    }
}

/// What is waiting, and what comes during the pause.
fn gather(
    first: Request,
    requests: &mut mpsc::Receiver<Request>,
    pause: Duration,
    handle: &tokio::runtime::Handle,
) -> Vec<Request> {
    let until = tokio::time::Instant::now() + pause;
    let mut bytes = first.record.len();
    let mut group = vec![first];
    while bytes < GROUP_BYTES {
        let waits = !pause.is_zero() && bytes < WORTH_A_SYNC;
        let next = match requests.try_recv() {
            Err(_) if waits => {
                let next = async { tokio::time::timeout_at(until, requests.recv()).await };
                handle.block_on(next).ok().flatten()
            }
            next => next.ok(),
        };
        let Some(next) = next else { break };
        bytes += next.record.len();
        group.push(next);
    }
    group
}

fn write_group(shared: &Arc<Shared>, group: Vec<Request>, handle: &tokio::runtime::Handle) {
    let mut writer = shared.writer.blocking_lock();
    let writer = &mut *writer;
    let manifest = shared.state.read().manifest.clone();
    let mut admitted: Vec<(Admitted, oneshot::Sender<Result<Appended, StoreError>>)> = Vec::new();
    let mut failed: Option<StoreError> = None;
    let mut rest = Vec::new();
    for request in group {
        if failed.is_some() {
            rest.push(request.reply);
            continue;
        }
        let table = request.incoming.table;
        let known = writer.known.of(&request.incoming, &manifest, &shared.root, handle);
        let one = writer.indices[table as usize].admit(request.incoming, &known);
        match log(&mut *writer.log, &one, request.record) {
            Ok(bytes) => drop(shared.counters.log_bytes.fetch_add(bytes, Ordering::Relaxed)),
            Err(e) => failed = Some(e),
        }
        admitted.push((one, request.reply));
    }
    if failed.is_none() {
        failed = writer.log.sync().err();
        shared.counters.log_syncs.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(error) = failed {
        for (one, reply) in admitted.into_iter().rev() {
            let index = &mut writer.indices[one.table() as usize];
            index.undo(one);
            rest.push(reply);
        }
        writer.log.rewind();
        shared.note_fence(&error);
        tracing::warn!(error = %error, "refused {} requests", rest.len());
        refuse(shared, rest.into_iter(), &error);
        return;
    }
    let mut state = shared.state.write();
    let mut answers = Vec::with_capacity(admitted.len());
    for (one, reply) in admitted {
        let answer = Appended { accepted: one.accepted, duplicates: one.duplicates };
        shared.counters.rows[one.table() as usize].fetch_add(one.accepted, Ordering::Relaxed);
        shared.counters.duplicates.fetch_add(one.duplicates, Ordering::Relaxed);
        state.publish(one);
        answers.push((reply, answer));
    }
    state.coalesce(&mut writer.indices);
    let version = state.version;
    drop(state);
    shared.counters.note(writer);
    shared.changes.send_replace(version);
    for (reply, answer) in answers {
        // The caller may be gone, but the rows stay.
        let _ = reply.send(Ok(answer));
    }
}

/// Writes what is new of a batch, of which `record` is the whole. Returns how many bytes that took.
fn log(log: &mut dyn Log, batch: &Admitted, record: Vec<u8>) -> Result<u64, StoreError> {
    if batch.is_empty() {
        return Ok(0);
    }
    let record = match batch.duplicates {
        0 => record,
        _ => wal::encode(batch.table(), &batch.accepted_rows()?)?,
    };
    log.write(&record)?;
    Ok(record.len() as u64)
}

fn refuse(
    shared: &Shared,
    replies: impl Iterator<Item = oneshot::Sender<Result<Appended, StoreError>>>,
    error: &StoreError,
) {
    for reply in replies {
        shared.counters.append_errors.fetch_add(1, Ordering::Relaxed);
        let _ = reply.send(Err(error.again()));
    }
}
