//! What rollscope knows about data, and nothing else: the tables and their columns, and how attribute values are
//! written into a column. The names it uses are those of `crates/names`.
//!
//! No IO, no async. Every importer builds its [`RecordBatch`](arrow::array::RecordBatch)es with
//! the builders in [`build`]; the store, the query engine and the page take the schemas from [`tables`].
//!
//! - [`tables`]: each table, its Arrow schema, what identifies a row and which of two equal rows wins.
//! - [`build`]: column builders, and one row builder a table.
//! - [`attrs`]: typed attribute values as JSON text in a `Map<Utf8, Utf8>` column (see `docs/adr/0001-attributes.md`).
//! - [`read`]: the mirror of the builders: columns by type, all columns of a table.
//! - [`names`], [`kinds`], [`ids`], [`time`], ...: the vocabulary, which is `crates/names`.

pub mod attrs;
pub mod build;
mod plain;
pub mod read;
pub mod tables;

pub use rollscope_names::{attributes as names, figures, ids, kinds, limits, pd, percent, protobuf, time};

pub use ids::{SpanId, TraceId};
pub use tables::Table;
