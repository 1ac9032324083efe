//! Trajectories in the Agent Trajectory Interchange Format (ATIF) of Harbor: `trajectory.json`, a document per trajectory, with a step
//! for each message. Harbor writes `JOB/TRIAL/agent/trajectory.json`, other agents wherever they like.

use std::io::Read;
use std::path::{Path, PathBuf};

use rollscope_model::build::{NewSample, NewSpan};
use rollscope_model::ids;
use rollscope_model::names::state;
use xxhash_rust::xxh3::xxh3_128;

use super::lines;
use super::record::Json;
use super::rows::{self, Fault, Rows, message};
use super::times::parse_time;
use super::tokens::{Turn, of_turns};
use crate::import::{ImportError, ImportOptions, Imported, Importer, Sink};

/// Trajectories of agents that an agent started, and those that they started.
const MAX_SUBAGENT_DEPTH: usize = 4;

pub struct Atif;

impl Importer for Atif {
    fn name(&self) -> &'static str {
        "ATIF trajectory"
    }

    fn belongs(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("trajectory") && name.ends_with(".json")
    }

    fn detects(&self, head: &[u8], _path: &Path) -> bool {
        lines::first_keys(head).0.iter().any(|key| key == "schema_version")
            && memchr::memmem::find(head, b"\"ATIF-v").is_some()
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let document = lines::document(input)?;
        let (home, trial) = place(path);
        let mut rows = Rows::new(path, &home, "atif", options, sink);
        let name = trial.or_else(|| document.get("trajectory_id").or(document.get("session_id")).and_then(Json::as_id));
        let Some(name) = name else {
            return Err(ImportError::Malformed(
                "the trajectory has neither a \"trajectory_id\" nor a \"session_id\"".into(),
            ));
        };
        match trajectory(&mut rows, document, &name, 0) {
            Ok(()) => rows.finish(),
            Err(Fault::Line(why)) => Err(ImportError::Malformed(why)),
            Err(Fault::Stop(error)) => Err(error),
        }
    }
}

/// The folder of the run, and the name of the trial: in Harbor's layout, the job and the folder in it.
fn place(path: &Path) -> (PathBuf, Option<String>) {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let name = |folder: Option<&Path>| Some(folder?.file_name()?.to_string_lossy().into_owned());
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let above: Vec<&Path> = path.ancestors().take(4).collect();
    match above[..] {
        [_, agent, trial, job] if name(Some(agent)).as_deref() == Some("agent") && name(Some(job)).is_some() => {
            let trial = name(Some(trial)).map(|trial| match stem.as_str() {
                "trajectory" => trial,
                // A continuation, `trajectory.cont-1.json`.
                _ => format!("{trial}/{stem}"),
            });
            (job.to_path_buf(), trial)
        }
        _ => (rows::home(&path, |_| false), None),
    }
}

fn trajectory(rows: &mut Rows, mut document: Json, name: &str, depth: usize) -> Result<(), Fault> {
    let Some(Json::List(steps)) = document.take("steps") else {
        return Err(Fault::Line("the trajectory has no list \"steps\"".into()));
    };
    let subagents = document.take("subagent_trajectories");
    let name = rows.unique(None, "train", name, 1);
    let times: Vec<i64> = steps.iter().filter_map(|step| parse_time(step.str_of("timestamp")?)).collect();
    let (start_ns, end_ns) = (times.iter().min().copied(), times.iter().max().copied());
    let of_agent = || steps.iter().filter(|step| step.str_of("source") == Some("agent"));
    // Those that were copied for context belong to the trajectory before.
    let own = || of_agent().filter(|step| step.get("is_copied_context").and_then(Json::as_bool) != Some(true));
    let called = own().filter(|step| step.i64_of("llm_call_count") != Some(0)).count();
    let tool_calls: usize = own().filter_map(|step| step.get("tool_calls")?.count()).sum();
    let metric = |step: &Json, name: &str| step.get("metrics").and_then(|metrics| metrics.i64_of(name));
    let sum = |name: &str| own().filter_map(|step| metric(step, name)).reduce(i64::saturating_add);
    let totals = document.get("final_metrics").cloned().unwrap_or_default();
    let mut turns = Vec::new();
    for step in own() {
        let of = |name: &str| step.get("metrics").and_then(|metrics| metrics.get(name));
        let turn = Turn::read(of("prompt_token_ids"), of("completion_token_ids"), of("logprobs"));
        turns.push(turn.map_err(|why| Fault::Line(format!("step {}: {why}", step.i64_of("step_id").unwrap_or(0))))?);
    }
    let trace_id = xxh3_128(format!("atif\0{name}\0{}", start_ns.unwrap_or(0)).as_bytes()).to_be_bytes();
    let source = document.get("agent").and_then(|agent| agent.str_of("name")).map(str::to_string);
    // Harbor names a trial after its task: `TASK__RANDOM`.
    let group = name.split_once("__").map(|(task, _)| task.to_string());
    let sample = NewSample {
        sample_id: &name,
        split: "train",
        group_id: group.as_deref(),
        source: source.as_deref(),
        trace_id: Some(trace_id),
        status: Some("completed"),
        start_ns,
        end_ns,
        prompt_tokens: own().find_map(|step| metric(step, "prompt_tokens")),
        response_tokens: totals.i64_of("total_completion_tokens").or_else(|| sum("completion_tokens")),
        cached_tokens: totals.i64_of("total_cached_tokens").or_else(|| sum("cached_tokens")),
        turns: i32::try_from(called).ok(),
        tool_calls: i32::try_from(tool_calls).ok(),
        ..NewSample::default()
    };
    if let Some(tokens) = of_turns(&turns) {
        rows.token_row(&sample, &tokens)?;
    }
    let messages: Vec<Json> = steps.iter().flat_map(messages_of).collect();
    let others: Vec<(String, Json)> =
        document.into_entries().into_iter().filter(|(_, value)| *value != Json::Null).collect();
    rows.sample(sample, &others, &messages, 1);
    if let (Some(start_ns), Some(end_ns)) = (start_ns, end_ns) {
        rows.span(NewSpan {
            trace_id,
            span_id: ids::span_id_from_place(&trace_id, 0),
            sample_id: Some(&name),
            group_id: group.as_deref(),
            name: "rollout",
            phase: Some("rollout"),
            start_ns,
            end_ns: Some(end_ns),
            state: state::CLOSED,
            ..NewSpan::default()
        });
    }
    if let Some(Json::List(subagents)) = subagents.filter(|_| depth < MAX_SUBAGENT_DEPTH) {
        for (number, subagent) in subagents.into_iter().enumerate() {
            let own = subagent.get("trajectory_id").and_then(Json::as_id).unwrap_or_else(|| number.to_string());
            trajectory(rows, subagent, &format!("{name}/{own}"), depth + 1)?;
        }
    }
    Ok(())
}

/// A step as messages: what was said, and what tools answered.
fn messages_of(step: &Json) -> Vec<Json> {
    let content = step.get("message").cloned().unwrap_or_else(|| Json::text(""));
    let source = step.str_of("source").unwrap_or("user");
    let Json::Map(mut said) = message(if source == "agent" { "assistant" } else { source }, content) else {
        return Vec::new();
    };
    if let Some(reasoning) = step.get("reasoning_content") {
        said.push(("reasoning_content".into(), reasoning.clone()));
    }
    let calls = step.get("tool_calls").map_or(&[][..], Json::items);
    if !calls.is_empty() {
        let call = |call: &Json| {
            let arguments = call.get("arguments").map_or(String::new(), Json::to_text);
            let name = call.get("function_name").cloned().unwrap_or_default();
            Json::map([
                ("id", call.get("tool_call_id").cloned().unwrap_or_default()),
                ("type", Json::text("function")),
                ("function", Json::map([("name", name), ("arguments", Json::text(arguments))])),
            ])
        };
        said.push(("tool_calls".into(), Json::List(calls.iter().map(call).collect())));
    }
    let results = step.get("observation").and_then(|observation| observation.get("results"));
    let answers = results.map_or(&[][..], Json::items).iter().map(|result| {
        let content = result.get("content").cloned().unwrap_or_else(|| Json::text(""));
        let Json::Map(mut answer) = message("tool", content) else { return Json::Null };
        if let Some(id) = result.get("source_call_id") {
            answer.push(("tool_call_id".into(), id.clone()));
        }
        Json::Map(answer)
    });
    std::iter::once(Json::Map(said)).chain(answers).collect()
}
