//! What rollscope knows about data, and nothing else: the tables and their columns, the names of the attributes we
//! understand, ids, times, and how attribute values are written into a column.
//!
//! This is the leaf of the workspace: no IO, no async. Every importer builds its [`RecordBatch`](arrow::array::RecordBatch)es with
//! the builders in [`build`]; the store, the query engine and the page take the schemas from [`tables`].
//!
//! - [`tables`]: each table, its Arrow schema, what identifies a row and which of two equal rows wins.
//! - [`build`]: column builders, and one row builder a table.
//! - [`attrs`]: typed attribute values as JSON text in a `Map<Utf8, Utf8>` column (see `docs/adr/0001-attributes.md`).
//! - [`names`]: attribute names that carry meaning (`rl.*`, slime's, SGLang's, ROLL's, our reserved `rollscope.*`).
//! - [`kinds`]: what kind of work a span is, by its name and what its sender says of it.
//! - [`read`]: which runs a batch holds.
//! - [`ids`], [`time`]: trace and span ids of any length, nanoseconds since the epoch.

pub mod attrs;
pub mod build;
pub mod ids;
pub mod kinds;
pub mod names;
pub mod read;
pub mod tables;
pub mod time;

pub use ids::{SpanId, TraceId};
pub use tables::Table;
