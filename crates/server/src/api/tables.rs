//! The tables that can be queried.

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::to_json;
use crate::App;
use crate::params::Params;
use crate::problem::Problem;

#[derive(Serialize, ToSchema)]
pub struct TablesAnswer {
    tables: Vec<TableInfo>,
}

#[derive(Serialize, ToSchema)]
pub struct TableInfo {
    name: &'static str,
    /// Rows on disk and in memory.
    rows: u64,
    /// Bytes on disk, not counting the log.
    bytes: u64,
    segments: usize,
    columns: Vec<ColumnInfo>,
}

#[derive(Serialize, ToSchema)]
pub struct ColumnInfo {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    nullable: bool,
    /// Meaning of the column.
    doc: String,
}

/// Lists the tables with their columns and sizes.
#[utoipa::path(get, path = "/api/v1/tables", tag = "sql", responses((status = 200, body = TablesAnswer)))]
pub async fn tables(State(app): State<App>, params: Params) -> Result<Response, Problem> {
    params.done()?;
    let columns = app.engine.columns();
    let tables = app.engine.table_stats().into_iter().map(|stats| TableInfo {
        name: stats.table,
        rows: stats.rows,
        bytes: stats.bytes,
        segments: stats.segments,
        columns: columns
            .iter()
            .filter(|c| c.table == stats.table)
            .map(|c| ColumnInfo {
                name: c.name.clone(),
                kind: c.data_type.clone(),
                nullable: c.nullable,
                doc: c.doc.clone(),
            })
            .collect(),
    });
    to_json(&TablesAnswer { tables: tables.collect() })
}
