//! NeMo-RL's `train_data_step{N}.jsonl` and `val_data_step{N}.jsonl`, in the folder of its logger.
//!
//! A line is a batch of one: every field is a list with one element. Fields with a value per token are padded to the longest sample of
//! the step; `input_lengths` says where the padding begins. In training data, `content` has the messages without their roles:
//! prompt and answer take turns. A validation has the roles.

use std::io::Read;
use std::path::Path;

use rollscope_model::build::NewSample;

use super::lines;
use super::record::Json;
use super::rows::{self, Fault, Rows};
use super::tokens::Tokens;
use crate::import::{ImportError, ImportOptions, Imported, Importer, Sink};

pub struct NemoRl;

impl Importer for NemoRl {
    fn name(&self) -> &'static str {
        "NeMo-RL data"
    }

    fn belongs(&self, path: &Path) -> bool {
        split_of(path).is_some()
    }

    fn detects(&self, head: &[u8], path: &Path) -> bool {
        split_of(path).is_some() && !lines::first_keys(head).0.is_empty()
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let mut rows = Rows::new(path, &rows::home(path, |_| false), "nemo-rl", options, sink);
        let (split, step) = (split_of(path).unwrap_or("train"), rows::number_in(path));
        lines::each(input, &mut rows, |rows, line, record| sample(rows, record, split, step, line))?;
        rows.finish()
    }
}

fn split_of(path: &Path) -> Option<&'static str> {
    let name = path.file_name()?.to_string_lossy().into_owned();
    let (stem, ending) = name.split_once('.')?;
    let is_lines = matches!(ending, "jsonl" | "jsonl.gz" | "jsonl.zst");
    let numbered = |prefix: &str| stem.strip_prefix(prefix).is_some_and(|n| n.parse::<u64>().is_ok());
    match is_lines {
        true if numbered("train_data_step") => Some("train"),
        true if numbered("val_data_step") => Some("eval"),
        _ => None,
    }
}

fn sample(rows: &mut Rows, mut record: Json, split: &str, step: Option<i64>, line: u64) -> Result<(), Fault> {
    let name = record.take("idx").and_then(|idx| idx.as_id()).unwrap_or_else(|| (line - 1).to_string());
    let mut only = |name: &str| record.take(name).and_then(only);
    let messages = only("content").map(talk).unwrap_or_default();
    let reward = only("rewards").and_then(|r| r.as_f64());
    let agent = only("agent_ref");
    let removed = only("sample_loss_mask").and_then(|m| m.as_f64()).map(|m| m == 0.0);
    let length = only("input_lengths").and_then(|n| n.as_i64()).and_then(|n| usize::try_from(n).ok());
    let mut per_token = |name: &str| only(name).and_then(|values| values.numbers()).unwrap_or_default();
    let ids = per_token("token_ids");
    let tokens = Tokens {
        count: length.unwrap_or(ids.len()),
        ids: ids.into_iter().map(|id| id as i64).collect(),
        trained: per_token("token_loss_mask").into_iter().map(|m| m != 0.0).collect(),
        advantages: per_token("advantages"),
        rollout_log_probs: per_token("generation_logprobs"),
        train_log_probs: per_token("prev_logprobs"),
        turns: Vec::new(),
    };
    let tokens = tokens.checked().map_err(Fault::Line)?;
    let mut others = tokens.means();
    let rest = record.into_entries().into_iter();
    others.extend(rest.filter_map(|(name, value)| Some((name, only_one(value)?))));
    let group = messages.first().map(|prompt| rows::group_of(&prompt.to_text()));
    let sample_id = rows.unique(step, split, &name, line);
    let source = agent.as_ref().and_then(|a| a.as_str().or_else(|| a.str_of("name")));
    let turns = messages.iter().filter(|m| m.str_of("role") == Some("assistant")).count();
    let row = NewSample {
        step,
        sample_id: &sample_id,
        split,
        group_id: group.as_deref(),
        reward,
        source,
        turns: i32::try_from(turns).ok().filter(|turns| *turns > 0),
        removed,
        ..tokens.lengths()
    };
    rows.tokens(&row, &tokens)?;
    rows.sample(row, &others, &messages, line);
    Ok(())
}

/// What is in a list of one element.
fn only(list: Json) -> Option<Json> {
    match list {
        Json::List(mut items) if items.len() == 1 => items.pop(),
        Json::Ints(items) if items.len() == 1 => Some(Json::Int(items[0])),
        Json::Doubles(items) if items.len() == 1 => Some(Json::Double(items[0])),
        Json::Bools(items) if items.len() == 1 => Some(Json::Bool(items[0])),
        Json::List(_) | Json::Ints(_) | Json::Doubles(_) | Json::Bools(_) => None,
        one => Some(one),
    }
}

/// The same, for a field that we do not know.
fn only_one(value: Json) -> Option<Json> {
    if value.count().is_some_and(|count| count > 1) { Some(value) } else { only(value) }
}

fn talk(content: Json) -> Vec<Json> {
    match content {
        Json::List(items) => {
            let roles = ["user", "assistant"].into_iter().cycle();
            items.into_iter().zip(roles).flat_map(|(item, role)| rows::messages(role, item)).collect()
        }
        other => rows::messages("assistant", other),
    }
}
