//! Collectives: several processes must enter the same piece of work before any of them can leave it. Who is not there?
//!
//! Whoever has sent spans of this name, or as many others of its service do, takes part. A process is missing from a collective if it is not in it and has
//! finished no more of them since the step began than those that wait have.

use hashbrown::{HashMap, HashSet};

use super::scene::Scene;
use crate::kinds::Kind;

/// Words in the names of collectives.
const COLLECTIVES: &[&str] = &[
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "reduce_scatter",
    "broadcast",
    "barrier",
    "all_to_all",
    "alltoall",
    "synchronize",
    "nccl",
];

pub struct Collective {
    pub name: u32,
    /// Senders that are in it, and those that are not.
    pub inside: Vec<u32>,
    pub missing: Vec<u32>,
    pub since: i64,
}

/// Could a span like this be one that ranks do together?
pub fn is_collective(name: &str, kind: Kind) -> bool {
    let name = name.to_ascii_lowercase();
    COLLECTIVES.iter().any(|word| name.contains(word))
        || matches!(kind, Kind::Train | Kind::WeightSync | Kind::LogProbs | Kind::Idle | Kind::Checkpoint)
}

/// The collectives that are open, by the leaves of the trainer's spans.
pub fn collectives(scene: &Scene, leaves: &[usize]) -> Vec<Collective> {
    let mut by_name: HashMap<u32, Vec<usize>> = HashMap::new();
    for leaf in leaves {
        let open = &scene.open[*leaf];
        if is_collective(scene.texts.get(open.name), open.kind) {
            by_name.entry(open.name).or_default().push(*leaf);
        }
    }
    // Processes of an earlier start of the run are not expected back.
    let step_ns = scene.usual_step.map_or(3600.0, |usual| usual.longest) * 1e9;
    let since_when = scene.step_start.map_or(i64::MIN, |start| start.saturating_sub(step_ns as i64));
    let services: HashSet<&str> = by_name
        .values()
        .flatten()
        .filter_map(|leaf| scene.senders.get(&scene.open[*leaf].sender))
        .map(|sender| sender.service.as_str())
        .collect();
    let mut out: Vec<Collective> = by_name
        .into_iter()
        .filter_map(|(name, leaves)| {
            let mut inside: Vec<u32> = leaves.iter().map(|leaf| scene.open[*leaf].sender).collect();
            inside.sort_unstable();
            inside.dedup();
            let before = scene.sent.get(&name).cloned().unwrap_or_default();
            let is_named = COLLECTIVES.iter().any(|word| scene.texts.get(name).to_ascii_lowercase().contains(word));
            // In the first round, those of the same service are expected.
            let beside =
                scene.senders.iter().filter(|(_, sender)| is_named && services.contains(sender.service.as_str()));
            let beside: HashSet<u32> = beside.map(|(sender, _)| *sender).collect();
            let expected: HashSet<u32> = if before.len() > 1 { before } else { beside };
            if expected.len() < 2 {
                return None;
            }
            let done = |sender: u32| scene.finished.get(&(sender, name)).copied().unwrap_or(0);
            let least = inside.iter().map(|sender| done(*sender)).max().unwrap_or(0);
            let is_here = |sender: &u32| scene.senders.get(sender).is_some_and(|of| of.last_ns >= since_when);
            let mut missing: Vec<u32> = expected
                .into_iter()
                .filter(|sender| !inside.contains(sender) && done(*sender) <= least && is_here(sender))
                .collect();
            missing.sort_unstable();
            let since = leaves.iter().map(|leaf| scene.open[*leaf].start).min().unwrap_or(scene.at);
            Some(Collective { name, inside, missing, since })
        })
        .collect();
    out.sort_by_key(|collective| (collective.since, collective.name));
    out
}

/// Two collectives, each of which waits for those that are in the other.
pub fn deadlock(collectives: &[Collective]) -> Option<(usize, usize)> {
    let among = |missing: &[u32], inside: &[u32]| !missing.is_empty() && missing.iter().all(|m| inside.contains(m));
    for (a, first) in collectives.iter().enumerate() {
        for (b, second) in collectives.iter().enumerate().skip(a + 1) {
            if among(&first.missing, &second.inside) && among(&second.missing, &first.inside) {
                return Some((a, b));
            }
        }
    }
    None
}
