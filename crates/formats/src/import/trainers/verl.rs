//! verl's dumps of generations: `trainer.rollout_data_dir` and `trainer.validation_data_dir` hold a file `{step}.jsonl` each step,
//! with a line per sample: `input`, `output`, `gts`, `score`, `step`, and whatever the reward function returned beside the score.
//!
//! Newer versions name each sample in `uid`, as `{prompt}_{session}_{output}`.

use std::io::Read;
use std::path::Path;

use rollscope_model::build::NewSample;

use super::lines;
use super::record::Json;
use super::rows::{self, Fault, Rows};
use crate::import::{ImportError, ImportOptions, Imported, Importer, Sink};

const ROLLOUT_FOLDERS: &[&str] = &["rollout", "rollouts", "rollout_data", "rollout_data_dir", "train", "training"];
const VALIDATION_FOLDERS: &[&str] =
    &["validation", "validation_data", "validation_data_dir", "val", "val_data", "eval", "eval_data", "test"];

pub struct Verl;

impl Importer for Verl {
    fn name(&self) -> &'static str {
        "verl generations"
    }

    fn belongs(&self, path: &Path) -> bool {
        is_named_by_step(path)
    }

    fn detects(&self, head: &[u8], path: &Path) -> bool {
        let (keys, all) = lines::first_keys(head);
        let has = |name: &str| keys.iter().any(|key| key == name);
        has("input") && (["output", "score", "step"].into_iter().all(has) || (!all && is_named_by_step(path)))
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let known = |folder: &str| {
            let folder = folder.to_ascii_lowercase();
            ROLLOUT_FOLDERS.contains(&&*folder) || VALIDATION_FOLDERS.contains(&&*folder)
        };
        let home = rows::home(path, known);
        let mut rows = Rows::new(path, &home, "verl", options, sink);
        let split = split_of(path);
        let named_step = rows::number_in(path);
        lines::each(input, &mut rows, |rows, line, record| sample(rows, record, split, named_step, line))?;
        rows.finish()
    }
}

/// `12.jsonl`, also compressed.
fn is_named_by_step(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some((stem, ending)) = name.split_once('.') else { return false };
    !stem.is_empty() && stem.bytes().all(|b| b.is_ascii_digit()) && matches!(ending, "jsonl" | "jsonl.gz" | "jsonl.zst")
}

/// Nothing in the file tells a validation from a rollout, so the folder must.
fn split_of(path: &Path) -> &'static str {
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let is_validation = VALIDATION_FOLDERS.contains(&&*folder) || folder.contains("val") || folder.contains("test");
    if is_validation { "eval" } else { "train" }
}

fn sample(rows: &mut Rows, mut record: Json, split: &str, named_step: Option<i64>, line: u64) -> Result<(), Fault> {
    let (Some(input), Some(output)) = (record.take("input"), record.take("output")) else {
        return Err(Fault::Line("it has no \"input\" or no \"output\"".into()));
    };
    let step = record.take("step").and_then(|s| s.as_i64()).or(named_step);
    let uid = record.get("uid").and_then(Json::as_id);
    let (name, group) = match &uid {
        Some(uid) => (uid.clone(), prompt_of(uid).to_string()),
        None => ((line - 1).to_string(), rows::group_of(&input.to_text())),
    };
    let sample_id = rows.unique(step, split, &name, line);
    let score = record.take("score");
    let reward = score.as_ref().and_then(Json::as_f64);
    let reward_json = score.filter(|s| !matches!(s, Json::Int(_) | Json::Double(_))).map(|s| s.to_text());
    let label = record.take("gts").map(|l| l.to_text());
    let source = record.str_of("data_source").map(str::to_string);
    let turns = record.i64_of("num_turns").and_then(|n| i32::try_from(n).ok());
    let mut messages = rows::messages("user", input);
    messages.extend(rows::messages("assistant", output));
    rows.sample(
        NewSample {
            step,
            sample_id: &sample_id,
            split,
            group_id: Some(&group),
            reward,
            reward_json: reward_json.as_deref(),
            label: label.as_deref(),
            source: source.as_deref(),
            turns,
            ..NewSample::default()
        },
        &record.into_entries(),
        &messages,
        line,
    );
    Ok(())
}

/// `{prompt}_{session}_{output}` is of this prompt.
fn prompt_of(uid: &str) -> &str {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    match uid.rsplitn(3, '_').collect::<Vec<_>>()[..] {
        [output, session, prompt] if number(output) && number(session) => prompt,
        _ => uid,
    }
}
