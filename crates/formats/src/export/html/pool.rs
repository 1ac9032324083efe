//! Packing on every core, results in the order of the requests, memory bounded.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

type Packed = io::Result<Vec<u8>>;
type Job = Box<dyn FnOnce() -> Packed + Send>;

/// More threads than this gain nothing: one thread writes.
const MAX_THREADS: usize = 8;

pub struct Pool<K> {
    /// Dropped to end the threads.
    jobs: SyncSender<(Job, SyncSender<Packed>)>,
    pending: VecDeque<(K, Receiver<Packed>)>,
    threads: usize,
}

impl<K> Pool<K> {
    pub fn new() -> Pool<K> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let (jobs, queue) = sync_channel::<(Job, SyncSender<Packed>)>(threads);
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..threads {
            let queue = queue.clone();
            std::thread::spawn(move || {
                loop {
                    let next = queue.lock().map(|q| q.recv());
                    let Ok(Ok((job, done))) = next else { return };
                    // Nobody waits any more: the writer gave up.
                    let _ = done.send(job());
                }
            });
        }
        Pool { jobs, pending: VecDeque::new(), threads }
    }

    /// Starts a job; hands older results to `take` where too many wait.
    pub fn submit(
        &mut self,
        key: K,
        job: impl FnOnce() -> Packed + Send + 'static,
        take: &mut dyn FnMut(K, Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (done, result) = sync_channel(1);
        if self.jobs.send((Box::new(job), done)).is_err() {
            return Err(io::Error::other("the packing threads stopped"));
        }
        self.pending.push_back((key, result));
        while self.pending.len() > 2 * self.threads {
            self.take_one(take)?;
        }
        Ok(())
    }

    fn take_one(&mut self, take: &mut dyn FnMut(K, Vec<u8>) -> io::Result<()>) -> io::Result<()> {
        let Some((key, result)) = self.pending.pop_front() else { return Ok(()) };
        let packed = result.recv().map_err(|_| io::Error::other("a packing thread failed"))??;
        take(key, packed)
    }

    pub fn drain(&mut self, take: &mut dyn FnMut(K, Vec<u8>) -> io::Result<()>) -> io::Result<()> {
        while !self.pending.is_empty() {
            self.take_one(take)?;
        }
        Ok(())
    }
}
