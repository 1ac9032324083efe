//! The nodes of a lake.

use axum::extract::State;
use axum::response::Response;
use rollscope_store::{NodeLoad, SeenNode};
use serde::Serialize;
use utoipa::ToSchema;

use super::to_json;
use crate::App;
use crate::params::Params;
use crate::problem::Problem;

#[derive(Serialize, ToSchema)]
pub struct NodesAnswer {
    /// By name. Empty if the data is in a folder.
    nodes: Vec<NodeInfo>,
    /// Rows that nodes have acknowledged and that are not in the tables yet: nodes that answer read them from the logs.
    log_rows: u64,
    /// Queries of this node that ran on workers since it started.
    queries_on_workers: u64,
    /// How often such a query failed and ran again.
    queries_again: u64,
}

/// A node, as the one that was asked sees it.
#[derive(Serialize, ToSchema)]
pub struct NodeInfo {
    name: String,
    /// `all`, `ingest`, `query` or `worker`.
    role: String,
    /// The machine that it is on.
    host: String,
    version: String,
    /// It is the one that was asked.
    is_self: bool,
    /// It has said something within half a minute.
    is_there: bool,
    /// For how long it has said nothing, in seconds, by the clock of the one that was asked.
    silent_s: f64,
    /// Where it works for the queries of others.
    #[schema(required)]
    worker: Option<String>,
    /// As it last said itself.
    #[schema(required)]
    load: Option<NodeLoad>,
}

impl NodeInfo {
    fn new(node: SeenNode, own: Option<&str>) -> NodeInfo {
        let (is_there, silent_s) = (node.is_there(), node.since.elapsed().as_secs_f64());
        let is_self = node.writes && own == Some(node.about.name.as_str());
        let (about, version, load) = (node.about, node.version, node.load);
        let (name, role, host, worker) = (about.name, about.role, about.host, about.worker);
        NodeInfo { name, role, host, version, is_self, is_there, silent_s, worker, load }
    }
}

/// Lists the nodes that share a lake, how busy they are, and what is not settled yet.
#[utoipa::path(get, path = "/api/v1/nodes", tag = "server", responses((status = 200, body = NodesAnswer)))]
pub async fn nodes(State(app): State<App>, params: Params) -> Result<Response, Problem> {
    params.done()?;
    let seen = app.store.look_at_nodes().await?;
    let nodes: Vec<NodeInfo> = seen.into_iter().map(|node| NodeInfo::new(node, app.store.node_name())).collect();
    let log_rows = nodes.iter().filter_map(|node| node.load).map(|load| load.log_rows).sum();
    let (queries_on_workers, queries_again) = app.answers.engine().spread();
    to_json(&NodesAnswer { nodes, log_rows, queries_on_workers, queries_again })
}
