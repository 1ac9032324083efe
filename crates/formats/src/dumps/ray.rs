//! What Ray's state API (`/api/v0/actors`, `/api/v0/tasks`, `/api/v0/nodes` of its dashboard) says of a cluster.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::cut;
use crate::import::ImportError;

/// Rows of one answer that are looked at.
pub const MAX_ROWS: usize = 10_000;

#[derive(Clone, Debug, Default)]
pub struct Ray {
    pub actors: Vec<Actor>,
    pub tasks: Vec<Task>,
    pub nodes: Vec<RayNode>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Actor {
    pub actor_id: String,
    pub class_name: String,
    pub name: Option<String>,
    pub state: String,
    pub pid: Option<i64>,
    pub node_id: Option<String>,
    pub required_resources: BTreeMap<String, f64>,
    pub death_cause: Option<DeathCause>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeathCause {
    pub actor_died_error_context: Option<Death>,
    pub creation_task_failure_context: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Death {
    pub error_message: String,
    /// `WORKER_DIED`, `NODE_DIED`, `RAY_KILL`, `OUT_OF_SCOPE`, ...
    pub reason: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Task {
    pub name: String,
    pub state: String,
    pub actor_id: Option<String>,
    pub worker_pid: Option<i64>,
    pub creation_time_ms: Option<f64>,
    pub start_time_ms: Option<f64>,
    pub required_resources: BTreeMap<String, f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RayNode {
    pub node_id: String,
    pub node_ip: String,
    pub state: String,
    pub state_message: Option<String>,
    pub resources_total: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
struct Answer<T> {
    data: Data<T>,
}

#[derive(Deserialize)]
struct Data<T> {
    result: Rows<T>,
}

#[derive(Deserialize)]
struct Rows<T> {
    result: Vec<T>,
}

/// The rows of one answer of the state API.
pub fn rows<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<Vec<T>, ImportError> {
    let answer: Answer<T> = serde_json::from_slice(bytes)
        .map_err(|e| ImportError::Malformed(format!("this is no answer of Ray's state API: {e}")))?;
    let mut rows = answer.data.result.result;
    rows.truncate(MAX_ROWS);
    Ok(rows)
}

impl Actor {
    /// As people call it.
    pub fn label(&self) -> String {
        match self.name.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => cut(&format!("{name} ({})", self.class_name)),
            None => cut(&self.class_name),
        }
    }

    /// Why it is dead, in the first sentence of Ray's words; none if somebody wanted it so.
    pub fn death(&self) -> Option<String> {
        const WANTED: &[&str] = &["RAY_KILL", "OUT_OF_SCOPE", "REF_DELETED", "OWNER_DIED"];
        let cause = self.death_cause.as_ref()?;
        if cause.creation_task_failure_context.is_some() {
            return Some("its constructor failed".into());
        }
        let death = cause.actor_died_error_context.as_ref()?;
        let normal = WANTED.contains(&death.reason.as_str()) || death.error_message.contains("INTENDED_");
        let first = death.error_message.split(". ").next().unwrap_or_default().trim_end_matches('.');
        let first = first.strip_prefix("The actor is dead because ").unwrap_or(first);
        (!normal).then(|| cut(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_ray_2_60() {
        let read = |name: &str| {
            std::fs::read(format!("{}/../../fixtures/ray/{name}.json", env!("CARGO_MANIFEST_DIR"))).unwrap()
        };
        let actors: Vec<Actor> = rows(&read("actors")).unwrap();
        let tasks: Vec<Task> = rows(&read("tasks")).unwrap();
        let nodes: Vec<RayNode> = rows(&read("nodes")).unwrap();
        assert_eq!((actors.len(), tasks.len(), nodes.len()), (3, 12, 1));
        let dead = actors.iter().find(|actor| actor.state == "DEAD").unwrap();
        assert_eq!(
            (dead.label().as_str(), dead.death().as_deref()),
            ("rollout-1 (RolloutWorker)", Some("its worker process has died"))
        );
        assert!(actors.iter().filter(|actor| actor.state != "DEAD").all(|actor| actor.death().is_none()));
        assert_eq!(tasks.iter().filter(|task| task.state == "PENDING_NODE_ASSIGNMENT").count(), 5);
        assert_eq!(nodes[0].resources_total["CPU"], 2.0);
        for bad in [&b""[..], b"{}", b"[]", b"Unauthorized", b"{\"data\":{\"result\":{\"result\":[{\"pid\":\"x\"}]}}}"]
        {
            assert!(rows::<Actor>(bad).is_err());
        }
    }
}
