//! prime-rl's `token_exports/step_N/rank_R.jsonl` (`enable_token_export`): what the trainer computed for each token of a sequence.
//!
//! A line does not say which trace the sequence is from, so the tokens get a name of their own: their rank and number.

use std::io::Read;
use std::path::Path;

use rollscope_model::build::NewSample;

use super::lines;
use super::prime::numbered;
use super::record::Json;
use super::rows::{self, Fault, Rows};
use crate::import::{ImportError, ImportOptions, Imported, Importer, Sink};
use crate::tokens::Tokens;

pub struct PrimeRlTokens;

impl Importer for PrimeRlTokens {
    fn name(&self) -> &'static str {
        "prime-rl token export"
    }

    fn belongs(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        name.starts_with("rank_") && name.contains(".jsonl") && numbered(&folder).is_some()
    }

    fn detects(&self, head: &[u8], _path: &Path) -> bool {
        let (keys, _) = lines::first_keys(head);
        ["schema_version", "export_sequence_idx", "token_ids"].iter().all(|name| keys.iter().any(|key| key == name))
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let home = rows::home(path, |folder| folder == "token_exports" || numbered(folder).is_some());
        let mut rows = Rows::new(path, &home, "prime-rl", options, sink);
        lines::each(input, &mut rows, |rows, _, record| sequence(rows, &record))?;
        rows.finish()
    }
}

fn sequence(rows: &mut Rows, record: &Json) -> Result<(), Fault> {
    let int = |name: &str| record.i64_of(name).ok_or_else(|| Fault::Line(format!("it has no \"{name}\"")));
    let (step, rank, number) = (int("step")?, int("rank")?, int("export_sequence_idx")?);
    let ids = values(record, "token_ids").unwrap_or_default();
    let mask = values(record, "loss_mask").unwrap_or_default();
    let Some(prompt) = mask.iter().position(|trained| *trained != 0.0) else {
        return Err(Fault::Line("no token is trained on".into()));
    };
    let after = |name: &str| -> Result<Option<Vec<f64>>, Fault> {
        match values(record, name) {
            Some(list) if list.len() != ids.len() => {
                Err(Fault::Line(format!("it has {} values of \"{name}\" for {} tokens", list.len(), ids.len())))
            }
            list => Ok(list.map(|list| list[prompt..].to_vec())),
        }
    };
    let floats = |name| Ok::<_, Fault>(after(name)?.map(|list| list.into_iter().map(|value| value as f32).collect()));
    let flags = |name| Ok::<_, Fault>(after(name)?.map(|list| list.into_iter().map(|value| value == 1.0).collect()));
    let tokens = Tokens {
        prompt_tokens: i64::try_from(prompt).ok(),
        ids: after("token_ids")?.map(|list| list.into_iter().map(|id| id as i32).collect()),
        mask: flags("loss_mask")?,
        logprobs: floats("inference_logprobs")?,
        trainer_logprobs: floats("trainer_logprobs")?,
        entropy: floats("entropy")?,
        advantages: floats("advantages")?,
        ratios: floats("importance_ratio")?,
        clipped: flags("is_masked")?,
        ..Tokens::default()
    };
    let name = format!("rank {rank} #{number}");
    let source = record.str_of("env_name");
    let of = NewSample { step: Some(step), sample_id: &name, split: "train", source, ..NewSample::default() };
    rows.token_row(&of, &tokens)
}

/// A value per token, NaN where there is none. `None` if there is none at all.
fn values(record: &Json, name: &str) -> Option<Vec<f64>> {
    match record.get(name)? {
        Json::List(items) => {
            let values: Vec<f64> = items.iter().map(|item| item.as_f64().unwrap_or(f64::NAN)).collect();
            values.iter().any(|value| !value.is_nan()).then_some(values)
        }
        packed => packed.numbers(),
    }
}
