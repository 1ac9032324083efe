//! What Ray says about a run that hangs: actors that died or cannot start, and tasks that wait.

use std::collections::BTreeMap;

use rollscope_answers::hang::{Hang, State, capital};
use rollscope_answers::words::time;
use rollscope_formats::dumps::ray::{Actor, Ray, Task};

use super::dumps::{SHOWN, suspect};

const NS_PER_MS: f64 = 1e6;
/// States of actors that have not started.
const NOT_STARTED: &[&str] = &["DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING"];
const OVER: &[&str] = &["FINISHED", "FAILED"];
/// The constructor of an actor: it is the actor that is waited for.
const INIT: &str = ".__init__";
/// A task that waits for less is no news.
const LEAST_WAIT_S: f64 = 5.0;

/// Adds what Ray says to an answer.
pub fn join_ray(hang: &mut Hang, ray: &Ray) {
    let waiting = |actor: &Actor| {
        let of =
            |task: &&Task| task.actor_id.as_deref() == Some(&actor.actor_id) && !OVER.contains(&task.state.as_str());
        ray.tasks.iter().filter(of).filter(|task| !task.name.ends_with(INIT)).count()
    };
    let mut found = Vec::new();
    for node in ray.nodes.iter().filter(|node| node.state == "DEAD").take(SHOWN) {
        let why = node.state_message.as_deref().map_or(String::new(), |why| format!(": {why}"));
        let text = format!("Ray's node {} is dead{why}", node.node_ip);
        found.push(("process", format!("node {}", node.node_ip), text, 0));
    }
    let dead = ray.actors.iter().filter(|actor| actor.state == "DEAD");
    for (actor, why) in dead.filter_map(|actor| Some((actor, actor.death()?))).take(SHOWN) {
        let by_pid =
            hang.workers.iter().find(|worker| worker.pid.is_some() && worker.pid == actor.pid && worker.silent);
        let name = by_pid.map_or_else(|| format!("actor {}", actor.label()), |worker| worker.name.clone());
        let wait = waits(waiting(actor));
        found.push(("process", name, format!("Ray's actor {} is dead: {why}{wait}", actor.label()), waiting(actor)));
    }
    let pending = ray.actors.iter().filter(|actor| NOT_STARTED.contains(&actor.state.as_str()));
    for actor in pending.take(SHOWN) {
        let needs = lacking(ray, &actor.required_resources);
        let wait = waits(waiting(actor));
        let text =
            format!("Ray's actor {} has not started ({}){needs}{wait}", actor.label(), actor.state.to_lowercase());
        found.push(("process", format!("actor {}", actor.label()), text, waiting(actor)));
    }
    for (_, _, text, _) in &found {
        hang.dumps.push(format!("{}.", capital(text)));
    }
    hang.dumps.extend(tasks(hang.at_ns, ray));
    if found.is_empty() || hang.state != State::Hanging {
        return;
    }
    hang.text.push_str(&format!(" By Ray: {}.", found[0].2));
    // Of those that the run's own spans point at, too, it is said beside that.
    found.retain(|(_, name, text, _)| match hang.suspects.iter_mut().find(|suspect| suspect.name == *name) {
        Some(suspect) => {
            suspect.text.push_str(&format!("; {text}"));
            suspect.known = true;
            false
        }
        None => true,
    });
    if found.is_empty() {
        return;
    }
    // Who is known to be the cause from what the run sent comes first. What Ray knows is more than what is only likely.
    let made: Vec<_> =
        found.into_iter().map(|(kind, name, text, waiting)| suspect(hang, kind, &name, text, waiting)).collect();
    let at = hang.suspects.iter().take_while(|suspect| suspect.known).count();
    if at == 0 {
        hang.chain = vec![0, made[0].node];
    }
    hang.suspects.splice(at..at, made);
}

fn waits(tasks: usize) -> String {
    match tasks {
        0 => String::new(),
        1 => "; 1 task waits for it".into(),
        n => format!("; {n} tasks wait for it"),
    }
}

/// What no node has as much of as is needed.
fn lacking(ray: &Ray, needed: &BTreeMap<String, f64>) -> String {
    let has = |what: &str, amount: f64| {
        let alive = ray.nodes.iter().filter(|node| node.state == "ALIVE");
        alive.filter_map(|node| node.resources_total.get(what)).any(|total| *total >= amount)
    };
    let lacking: Vec<String> = needed
        .iter()
        .filter(|(what, amount)| !ray.nodes.is_empty() && !has(what, **amount))
        .map(|(what, amount)| format!("{amount} {what}"))
        .collect();
    if lacking.is_empty() { String::new() } else { format!(": no node has {}", lacking.join(" and ")) }
}

/// Tasks that wait or run, by name and state: how many, and for how long.
fn tasks(at_ns: i64, ray: &Ray) -> Vec<String> {
    let mut groups: BTreeMap<(&str, &str), (usize, f64)> = BTreeMap::new();
    let open = ray.tasks.iter().filter(|task| !OVER.contains(&task.state.as_str()) && !task.name.ends_with(INIT));
    for task in open {
        let since = task.start_time_ms.or(task.creation_time_ms).unwrap_or(f64::MAX);
        let of = groups.entry((&task.name, state(task))).or_insert((0, f64::MAX));
        *of = (of.0 + 1, of.1.min(since));
    }
    let age = |since: f64| ((at_ns as f64 - since * NS_PER_MS) / 1e9).max(0.0);
    let mut groups: Vec<_> = groups.into_iter().map(|(of, (count, since))| (of, count, age(since))).collect();
    groups.retain(|(_, _, age)| *age >= LEAST_WAIT_S);
    groups.sort_by(|a, b| b.2.total_cmp(&a.2));
    let said = |((name, state), count, age): &((&str, &str), usize, f64)| match *count {
        1 => format!("In Ray, 1 task `{name}` {state}, for {}.", time(*age)),
        n => format!("In Ray, {n} tasks `{name}`: each {state}, the oldest for {}.", time(*age)),
    };
    groups.iter().take(SHOWN).map(said).collect()
}

/// What a task does, in words.
fn state(task: &Task) -> &str {
    match task.state.as_str() {
        "RUNNING" => "runs",
        "PENDING_NODE_ASSIGNMENT" if task.actor_id.is_some() => "waits for its actor to start",
        "PENDING_NODE_ASSIGNMENT" => "waits for free resources",
        "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY" => "waits behind others of its actor",
        "PENDING_ARGS_AVAIL" => "waits for its arguments",
        "PENDING_OBJ_STORE_MEM_AVAIL" => "waits for memory of the object store",
        _ => "is on its way",
    }
}

#[cfg(test)]
mod tests {
    use rollscope_answers::hang::Rows;
    use rollscope_formats::dumps::ray::rows;

    use super::*;

    fn hang(state: State) -> Hang {
        let rows = Rows { run: "r".into(), at_ns: 1_794_969_481_130_000_000, ..Rows::default() };
        Hang { state, ..rollscope_answers::hang::hang(&rows).unwrap() }
    }

    fn ray() -> Ray {
        let read = |name: &str| {
            std::fs::read(format!("{}/../../fixtures/ray/{name}.json", env!("CARGO_MANIFEST_DIR"))).unwrap()
        };
        Ray {
            actors: rows(&read("actors")).unwrap(),
            tasks: rows(&read("tasks")).unwrap(),
            nodes: rows(&read("nodes")).unwrap(),
        }
    }

    #[test]
    fn the_dead_come_first_and_then_what_cannot_start() {
        let mut hang = hang(State::Hanging);
        join_ray(&mut hang, &ray());
        let said: Vec<&str> = hang.suspects.iter().map(|suspect| suspect.text.as_str()).collect();
        assert_eq!(
            said,
            [
                "Ray's actor rollout-1 (RolloutWorker) is dead: its worker process has died",
                "Ray's actor judge (RewardModel) has not started (pending_creation): no node has 1 GPU; 1 task waits for it"
            ]
        );
        assert!(
            hang.text.ends_with("By Ray: Ray's actor rollout-1 (RolloutWorker) is dead: its worker process has died.")
        );
        let tasks: Vec<&str> =
            hang.dumps.iter().filter(|line| line.starts_with("In Ray")).map(String::as_str).collect();
        assert_eq!(
            tasks,
            [
                "In Ray, 2 tasks `RolloutWorker.generate`: each waits behind others of its actor, the oldest for 20 s.",
                "In Ray, 1 task `RolloutWorker.generate` runs, for 20 s.",
                "In Ray, 1 task `RewardModel.score` waits for its actor to start, for 20 s.",
                "In Ray, 3 tasks `tokenize`: each waits for free resources, the oldest for 20 s.",
                "In Ray, 1 task `tokenize` runs, for 18 s.",
            ]
        );
    }

    #[test]
    fn a_run_that_moves_has_no_suspects() {
        let mut hang = hang(State::Moving);
        join_ray(&mut hang, &ray());
        assert!(hang.suspects.is_empty() && !hang.dumps.is_empty());
    }
}
