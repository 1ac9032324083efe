//! TRL's `completions/completions_NNNNN.parquet` (`log_completions=True`): a row per completion, with `step`, `prompt`,
//! `completion`, a column per reward function, what the reward functions logged besides, and `advantage`.
//!
//! Reading Parquet is the business of the store's crate. The caller passes its reader in [`ImportOptions::parquet`].

use std::fs::File;
use std::io::Read;
use std::path::Path;

use arrow::array::RecordBatch;
use rollscope_model::build::NewSample;

use super::cells::cell;
use super::record::Json;
use super::rows::{self, Rows};
use crate::import::{ImportError, ImportOptions, Imported, Importer, Sink};

const MAGIC: &[u8] = b"PAR1";

pub struct Trl;

impl Importer for Trl {
    fn name(&self) -> &'static str {
        "TRL completions"
    }

    fn belongs(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("completions_") && name.ends_with(".parquet")
    }

    fn detects(&self, head: &[u8], _path: &Path) -> bool {
        head.starts_with(MAGIC)
    }

    fn import(
        &self,
        path: &Path,
        _input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let home = rows::home(path, |folder| folder == "completions");
        let mut rows = Rows::new(path, &home, "trl", options, sink);
        let mut number = 0;
        for batch in (options.parquet)(File::open(path)?)? {
            completions(&mut rows, &batch?, rows::number_in(path), &mut number)?;
        }
        rows.finish()
    }
}

fn completions(
    rows: &mut Rows,
    batch: &RecordBatch,
    named_step: Option<i64>,
    number: &mut u64,
) -> Result<(), ImportError> {
    let schema = batch.schema();
    let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
    if !["prompt", "completion"].iter().all(|name| names.contains(name)) {
        let columns = names.iter().take(10).copied().collect::<Vec<_>>().join(", ");
        return Err(ImportError::Malformed(format!(
            "this Parquet file has no columns \"prompt\" and \"completion\", so TRL did not write it; its columns are {columns}"
        )));
    }
    let rewards = reward_columns(batch);
    for row in 0..batch.num_rows() {
        *number += 1;
        let mut step = named_step;
        let (mut prompt, mut completion) = (Json::Null, Json::Null);
        let (mut scores, mut others) = (Vec::new(), Vec::new());
        for (at, name) in names.iter().enumerate() {
            let value = cell(batch.column(at), row);
            match *name {
                "step" => step = value.as_i64().or(step),
                "prompt" => prompt = value,
                "completion" => completion = value,
                // pandas keeps its row numbers in a column.
                "__index_level_0__" => {}
                name if rewards.iter().any(|reward| reward == name) => scores.push((name.to_string(), value)),
                _ => others.push((name.to_string(), value)),
            }
        }
        // A reward function that does not apply to a sample gives nothing, which pandas writes as NaN.
        let given: Vec<f64> = scores.iter().filter_map(|(_, s)| s.as_f64()).filter(|s| !s.is_nan()).collect();
        let reward = (!given.is_empty()).then(|| given.iter().sum());
        let reward_json = (scores.len() > 1).then(|| Json::Map(scores.clone()).to_text());
        others.splice(0..0, scores);
        let group = rows::group_of(&prompt.to_text());
        let name = (*number - 1).to_string();
        let size = batch_bytes(batch);
        let mut messages = rows::messages("user", prompt);
        messages.extend(rows::messages("assistant", completion));
        messages.retain(|m| m.get("content").is_some() || m.get("tool_calls").is_some());
        rows.sample(
            NewSample {
                step,
                sample_id: &name,
                split: "train",
                group_id: Some(&group),
                reward,
                reward_json: reward_json.as_deref(),
                ..NewSample::default()
            },
            &others,
            &messages,
            *number,
        );
        rows.read(size)?;
    }
    Ok(())
}

/// What a row of the batch takes on average.
fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.get_array_memory_size() / batch.num_rows().max(1)
}

/// The file does not say which columns are rewards. Reward functions are called so by custom; where none is, every column of
/// doubles counts.
fn reward_columns(batch: &RecordBatch) -> Vec<String> {
    let schema = batch.schema();
    let doubles = schema.fields().iter().filter(|f| f.data_type().is_floating());
    let doubles: Vec<String> = doubles.map(|f| f.name().clone()).filter(|n| n != "advantage" && n != "step").collect();
    let named: Vec<String> = doubles.iter().filter(|n| n.to_lowercase().contains("reward")).cloned().collect();
    if named.is_empty() { doubles } else { named }
}
