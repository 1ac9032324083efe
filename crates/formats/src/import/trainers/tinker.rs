//! What tinker-cookbook writes into its `log_path`: `iteration_NNNNNN/NAME_rollout_summaries.jsonl` (`rollout_json_export`: a trajectory per
//! line, without its texts and tokens) and `metrics.jsonl`. `timing_spans.jsonl` has times that count from the start of each step, and the
//! file does not say when that was, so it is not read.

use std::io::Read;
use std::path::Path;

use rollscope_model::build::NewSample;

use super::lines;
use super::record::Json;
use super::rows::{self, Fault, Rows};
use crate::import::{ImportError, ImportOptions, Imported, Importer, Sink};

const NS_PER_S: i64 = 1_000_000_000;

pub struct Tinker;

impl Importer for Tinker {
    fn name(&self) -> &'static str {
        "tinker-cookbook rollouts"
    }

    fn belongs(&self, path: &Path) -> bool {
        path.file_name().is_some_and(|name| name.to_string_lossy().ends_with("_rollout_summaries.jsonl"))
    }

    fn detects(&self, head: &[u8], _path: &Path) -> bool {
        let (keys, _) = lines::first_keys(head);
        let wanted = ["schema_version", "split", "iteration", "group_idx", "traj_idx"];
        wanted.iter().all(|name| keys.iter().any(|key| key == name))
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let home = rows::home(path, |name| name.starts_with("iteration_"));
        let mut rows = Rows::new(path, &home, "tinker-cookbook", options, sink);
        lines::each(input, &mut rows, trajectory)?;
        rows.finish()
    }
}

fn trajectory(rows: &mut Rows, line: u64, record: Json) -> Result<(), Fault> {
    let (Some(step), Some(group), Some(number)) =
        (record.i64_of("iteration"), record.i64_of("group_idx"), record.i64_of("traj_idx"))
    else {
        return Err(Fault::Line("it has no \"iteration\", \"group_idx\" or \"traj_idx\"".into()));
    };
    // `train`, or the name of an evaluation.
    let named = record.str_of("split").unwrap_or("train");
    let split = if named == "train" { "train" } else { "eval" };
    let of_split = if named == "train" { String::new() } else { format!("{named}/") };
    let name = rows.unique(Some(step), split, &format!("{of_split}{group}-{number}"), line);
    let steps = record.get("steps").map_or(&[][..], Json::items);
    let sum = |name: &str| steps.iter().filter_map(|step| step.i64_of(name)).reduce(i64::saturating_add);
    let tags: Vec<&str> = record.get("tags").map_or(&[][..], Json::items).iter().filter_map(Json::as_str).collect();
    let source = tags.join(", ");
    let version = record.i64_of("sampling_client_step").map(|version| format!("[{version}]"));
    let finished = steps.last().and_then(|step| step.get("episode_done")).and_then(Json::as_bool);
    let others = record.entries().iter().filter(|(key, value)| {
        !["schema_version", "iteration", "tags", "total_reward"].contains(&key.as_str()) && *value != Json::Null
    });
    let others: Vec<(String, Json)> = others.cloned().collect();
    rows.sample(
        NewSample {
            step: Some(step),
            sample_id: &name,
            split,
            group_id: Some(&format!("{of_split}{group}")),
            source: (!source.is_empty()).then_some(source.as_str()),
            status: finished.map(|done| if done { "completed" } else { "truncated" }),
            reward: record.f64_of("total_reward"),
            prompt_tokens: steps.first().and_then(|step| step.i64_of("ob_len")),
            response_tokens: sum("ac_len"),
            total_tokens: record.i64_of("final_ob_len"),
            turns: i32::try_from(steps.len()).ok(),
            weight_versions: version.as_deref(),
            ..NewSample::default()
        },
        &others,
        &[],
        line,
    );
    Ok(())
}

/// `metrics.jsonl`: `step` and a value per metric. There are no times: see `docs/trainers.md`.
pub struct TinkerMetrics;

impl Importer for TinkerMetrics {
    fn name(&self) -> &'static str {
        "tinker-cookbook metrics"
    }

    fn belongs(&self, path: &Path) -> bool {
        path.file_name().is_some_and(|name| name == "metrics.jsonl")
    }

    fn detects(&self, head: &[u8], _path: &Path) -> bool {
        let (keys, _) = lines::first_keys(head);
        keys.first().is_some_and(|key| key == "step") && keys.iter().any(|key| key.starts_with("progress/"))
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let mut rows = Rows::new(path, &rows::home(path, |_| false), "tinker-cookbook", options, sink);
        lines::each(input, &mut rows, |rows, _, record| {
            let Some(step) = record.i64_of("step") else { return Err(Fault::Line("it has no \"step\"".into())) };
            for (name, value) in record.entries().iter().filter(|(name, _)| name != "step") {
                if let Some(value) = value.as_f64() {
                    // The same whenever the file is read, so that nothing is stored twice.
                    rows.metric_without_time(step, step.saturating_mul(NS_PER_S), name, value);
                }
            }
            Ok(())
        })?;
        rows.finish()
    }
}
