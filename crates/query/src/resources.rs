//! What queries run on: threads of their own, and memory.

use std::sync::{Arc, OnceLock};

use datafusion::common::Result;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use tokio::runtime::Runtime;

use crate::error::{ErrorKind, QueryError};
use crate::limits::QueryLimits;

/// Stack of a query thread. Plans are trees; deep ones are walked by recursion.
const STACK_BYTES: usize = 64 << 20;
/// Footers of segments, decoded, kept over all queries.
const FOOTER_CACHE_BYTES: usize = 128 << 20;
/// Rows in a batch.
pub const BATCH_ROWS: usize = 8192;

/// Queries keep cores busy for long; on threads of their own they do not hold up whoever serves requests. The threads live as
/// long as the process: to let go of a thread that is about to end can crash in the C library, whose `pthread_detach` reads
/// from the thread's stack when that may be gone.
pub fn threads() -> Result<&'static Runtime, QueryError> {
    static THREADS: OnceLock<std::io::Result<Runtime>> = OnceLock::new();
    let started = THREADS.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(cores())
            .thread_name("query")
            .thread_stack_size(STACK_BYTES)
            .enable_all()
            .build()
    });
    let failed = |e| QueryError::new(ErrorKind::Internal, format!("cannot start the query threads: {e}"));
    started.as_ref().map_err(failed)
}

pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// Memory, and caches that last.
pub fn runtime(limits: &QueryLimits) -> Result<RuntimeEnv> {
    RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(GreedyMemoryPool::new(limits.memory_bytes)))
        .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled))
        .with_metadata_cache_limit(FOOTER_CACHE_BYTES)
        .build()
}
