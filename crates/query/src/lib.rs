//! SQL over the store. The only crate that knows DataFusion.
//!
//! A query takes one [`Snapshot`](rollscope_store::Snapshot) of all tables and keeps it to its end. Each table is a
//! plain union of Parquet segments (pruned by the manifest, then by footers, bloom filters and pages) and the live tail;
//! see [`tables`]. What users call in SQL beyond DataFusion's own is in [`functions`]. [`Engine`] plans and runs
//! queries on its own threads, within [`QueryLimits`], and can list and stop what is running.
//!
//! [`promql`] answers Prometheus's query language over the table `series`. Questions that are not one query are in
//! `crates/answers`, which adds them to SQL as [table functions](functions::TableFunction).
//!
//! Everything is read-only: statements that would change anything are refused before they are planned.
//! Plans consist of DataFusion's own operators, and everything that they need at run time is in their literals, so that another
//! process with [`functions::register`] can execute them. Only the process that executes a plan adds to it: the filters of
//! its joins look whether the query is still wanted ([`interrupt`]). [`workers`] sends parts of plans to other processes.

pub mod columns;
mod describe;
mod engine;
mod error;
pub mod functions;
mod group_ids;
mod interrupt;
mod limits;
mod optimizer;
mod progress;
pub mod promql;
mod resources;
mod running;
mod runs;
pub mod scope;
mod session;
mod sql_text;
pub mod tables;
mod workers;

pub use describe::{ColumnInfo, TableStats, visible_schema};
pub use engine::{Engine, WeakEngine};
pub use error::{ErrorKind, QueryError};
pub use limits::{MAX_TRACE_SPANS, QueryLimits, too_many_spans};
pub use progress::{Progress, ProgressSnapshot};
pub use running::{QueryStream, Running};
pub use sql_text::{sql_text, sql_trace_ids};
pub use workers::{WorkerServer, Workers};
