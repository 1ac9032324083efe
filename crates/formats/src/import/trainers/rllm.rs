//! Episodes of rLLM, a document each: `episodes/{train,val}_step_N_epoch_E/episode_hashH_idID.json` of the trainer's `EpisodeLogger`, and
//! `episodes/episode_NNNNNN_TASK.json` of `rllm eval`. An episode has a trajectory per agent; each becomes a sample. Only evaluations
//! have tokens.

use std::io::Read;
use std::path::Path;

use rollscope_model::build::NewSample;

use super::lines;
use super::record::Json;
use super::rows::{self, Fault, Rows, message};
use super::tokens::{Turn, of_turns};
use crate::import::{ImportError, ImportOptions, Imported, Importer, Sink};

pub struct Rllm;

impl Importer for Rllm {
    fn name(&self) -> &'static str {
        "rLLM episode"
    }

    fn belongs(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("episode_") && name.ends_with(".json")
    }

    fn detects(&self, head: &[u8], path: &Path) -> bool {
        let (keys, all) = lines::first_keys(head);
        let has = |names: &[&str]| names.iter().all(|name| keys.iter().any(|key| key == name));
        has(&["training_step", "episode_id", "task"])
            || has(&["id", "task", "termination_reason", "is_correct"])
            || (!all && self.belongs(path) && has(&["id"]))
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let document = lines::document(input)?;
        let says_what = |name: &str| name == "episodes" || mode_and_step(name).is_some();
        let mut rows = Rows::new(path, &rows::home(path, says_what), "rllm", options, sink);
        match episode(&mut rows, path, document) {
            Ok(()) => rows.finish(),
            Err(Fault::Line(why)) => Err(ImportError::Malformed(why)),
            Err(Fault::Stop(error)) => Err(error),
        }
    }
}

/// `train_step_12_epoch_0`
fn mode_and_step(folder: &str) -> Option<(&str, i64)> {
    let (mode, rest) = folder.split_once("_step_")?;
    let (step, epoch) = rest.split_once("_epoch_")?;
    epoch.parse::<i64>().ok()?;
    Some((mode, step.parse().ok()?))
}

fn episode(rows: &mut Rows, path: &Path, mut episode: Json) -> Result<(), Fault> {
    let Some(id) = episode.get("episode_id").or(episode.get("id")).and_then(Json::as_id) else {
        return Err(Fault::Line("the episode has no \"id\"".into()));
    };
    let Some(Json::List(trajectories)) = episode.take("trajectories") else {
        return Err(Fault::Line("the episode has no list \"trajectories\"".into()));
    };
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let place = mode_and_step(&folder);
    let split = if place.is_none_or(|(mode, _)| mode != "train") { "eval" } else { "train" };
    let step = episode.i64_of("training_step").or(place.map(|(_, step)| step));
    // `TASK:NUMBER`: episodes of one task are a group.
    let group = id.split_once(':').map_or(id.as_str(), |(task, _)| task).to_string();
    let status = match episode.str_of("termination_reason") {
        Some("env_done") => Some("completed"),
        Some("max_turns_exceeded" | "max_response_length_exceeded" | "max_prompt_length_exceeded" | "timeout") => {
            Some("truncated")
        }
        Some("error") => Some("failed"),
        _ => None,
    };
    let label = episode.get("task").and_then(|task| {
        let answer = |of: &Json| of.get("answer").or(of.get("ground_truth")).map(Json::to_text);
        answer(task).or_else(|| answer(task.get("metadata")?))
    });
    let others: Vec<(String, Json)> = episode
        .into_entries()
        .into_iter()
        .filter(|(key, value)| key != "trajectories" && *value != Json::Null)
        .collect();
    let several = trajectories.len() > 1;
    for trajectory in &trajectories {
        let agent = trajectory.str_of("name").unwrap_or("default");
        let name = if several { format!("{id}/{agent}") } else { id.clone() };
        let name = rows.unique(step, split, &name, 1);
        let steps = trajectory.get("steps").map_or(&[][..], Json::items);
        let mut turns = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            let turn = Turn::read(step.get("prompt_ids"), step.get("response_ids"), step.get("logprobs"));
            let turn = turn.map_err(|why| Fault::Line(format!("step {number} of trajectory {agent}: {why}")))?;
            turns.push(Turn { weight_version: step.get("weight_version").and_then(Json::as_id), ..turn });
        }
        let versions: Vec<Json> = turns.iter().filter_map(|turn| turn.weight_version.clone()).map(Json::Str).collect();
        let versions = (!versions.is_empty()).then(|| Json::List(versions).to_text());
        let produced: usize = turns.iter().map(|turn| turn.produced.len()).sum();
        let prompt = turns.first().map_or(0, |turn| turn.prompt.len());
        let count = |n: usize| (n > 0).then_some(n).and_then(|n| i64::try_from(n).ok());
        let sample = NewSample {
            step,
            sample_id: &name,
            split,
            group_id: Some(&group),
            source: several.then_some(agent),
            status,
            reward: trajectory.f64_of("reward"),
            label: label.as_deref(),
            prompt_tokens: count(prompt),
            response_tokens: count(produced),
            turns: i32::try_from(steps.len()).ok(),
            weight_versions: versions.as_deref(),
            ..NewSample::default()
        };
        if let Some(tokens) = of_turns(&turns) {
            rows.token_row(&sample, &tokens)?;
        }
        let own = ["signals", "metadata", "timing", "output"];
        let own = own.iter().filter_map(|key| Some((format!("trajectory.{key}"), trajectory.get(key)?.clone())));
        let others: Vec<(String, Json)> = others.iter().cloned().chain(own).collect();
        rows.sample(sample, &others, &messages(steps), 1);
    }
    Ok(())
}

/// The conversation as it was at the end. If a step does not continue that of the step before, both are there.
fn messages(steps: &[Json]) -> Vec<Json> {
    let mut all: Vec<Json> = Vec::new();
    let mut before: &[Json] = &[];
    for step in steps {
        let said = step.get("chat_completions").map_or(&[][..], Json::items);
        if said.is_empty() {
            // Agents that keep no messages.
            for (role, name) in [("user", "observation"), ("assistant", "model_response")] {
                if let Some(text) = step.get(name).filter(|text| **text != Json::text("")) {
                    let text = text.as_str().map_or_else(|| text.to_text(), str::to_string);
                    all.push(message(role, Json::text(text)));
                }
            }
        } else if said.starts_with(before) {
            all.extend_from_slice(&said[before.len()..]);
        } else {
            all.extend_from_slice(said);
        }
        before = said;
    }
    all
}
