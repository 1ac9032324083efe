//! A store on object storage, which many processes may write and read.
//!
//! Bytes are objects below a prefix. Which files a table has is kept by [`Tables`] (Delta Lake, in `crates/lake`). Every process that
//! writes is a *writer* with a random name, and has a log of objects ([`log`]): a group of batches is one object, put before it
//! is acknowledged. Flushing puts segments, commits them to their table together with the number of the log up to which they
//! go, and deletes the log so far. Where a writer ended without that, another one [adopts](adopt) its log.
//!
//! ```text
//! writers/W/log/N   acknowledged, and perhaps not in tables; N has no gaps
//! nodes/NAME.json   which writer a node is
//! spans/ ...        the tables
//! media/ derived/   as in a folder
//! ```
//!
//! What keeps rows safe:
//! 1. A log object is created, never replaced. So a writer whose next number was taken by a *fence* can acknowledge nothing more.
//! 2. A version of a table is created, never replaced. So a commit is made on top of everything that its writer has seen, or
//!    fails. A writer that finds a fence in a table commits nothing more.
//! 3. A commit of a flush carries a mark: the writer's name, and its last log number that is in the table. So a flush whose
//!    outcome was lost is recognised.

mod adopt;
mod clean;
mod files;
mod load;
mod log;
mod nodes;
mod others;
mod tables;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use object_store::ObjectStore;
use rollscope_model::Table;

use crate::error::StoreError;
use crate::manifest::{AttrTypes, Segment};

pub(crate) use adopt::{Beginner, Heir, Logs as AllLogs, adopt_dead, answers_for_others, orphans};
pub(crate) use clean::Found as FilesFound;
pub use files::SharedFiles;
pub use load::{NodeLoad, resident_bytes};
pub(crate) use log::{ObjectLog, Stuck, WriterLog};
pub use nodes::{AboutNode, BEAT, Nodes, SeenNode, WORKER, WorkerEntry};
pub(crate) use nodes::{NodeEntry, Silent, Watch};
pub(crate) use others::{OthersLogs, Seen as LogsSeen};
pub(crate) use tables::{LakeTables, Listed};

/// Where a lake is, and who opens it.
#[derive(Clone)]
pub struct Lake {
    /// Below the prefix of the lake.
    pub objects: Arc<dyn ObjectStore>,
    pub tables: Arc<dyn Tables>,
    /// What nodes show each other. Whoever can read the lake has it.
    pub key: String,
    pub node: AboutNode,
    /// A node that says nothing for this long has ended.
    pub silence: Duration,
    /// A node that answers looks this often what others have acknowledged. `None`: it shows what is in the tables and its own log.
    pub follow_every: Option<Duration>,
}

/// Which files are in each table, for all who share a lake.
#[async_trait]
pub trait Tables: Send + Sync {
    /// The newest version of a table. Makes the table if there is none.
    async fn read(&self, table: Table) -> Result<TableVersion, StoreError>;

    /// What was last recorded under each of these names, up to the version that was last read.
    async fn marks(&self, table: Table, names: &[String]) -> Result<Vec<Option<u64>>, StoreError>;

    /// Adds the version after `after`, which was read. `false`: somebody else was first. After an error, it may be there or not, or come
    /// later.
    async fn append(&self, table: Table, after: u64, change: &TableChange) -> Result<bool, StoreError>;
}

#[derive(Clone, Debug, Default)]
pub struct TableVersion {
    pub number: u64,
    pub segments: Vec<Arc<Segment>>,
    /// Of all segments together.
    pub attr_types: AttrTypes,
}

/// What one version changes.
#[derive(Clone, Debug, Default)]
pub struct TableChange {
    pub added: Vec<Arc<Segment>>,
    pub removed: Vec<Arc<Segment>>,
    /// Rows came or went, as opposed to being written again.
    pub is_new: bool,
    /// Attributes of all rows in the table after this.
    pub attr_types: AttrTypes,
    pub marks: Vec<(String, u64)>,
}

/// So much of the name of a writer stands in the names of its segments.
pub(crate) const WRITER_ID_LENGTH: usize = 16;

/// A name for a writer that nobody else has.
pub(crate) fn new_writer() -> Result<String, StoreError> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|e| StoreError::Busy(format!("cannot get random numbers: {e}")))?;
    Ok(format!("{:032x}", u128::from_be_bytes(random)))
}
