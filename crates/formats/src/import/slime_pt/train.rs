//! Samples as slime and miles trained on them (`--save-debug-train-data`): no prompts and no traces, but what the trainer computed
//! for each token. They become rows of `tokens`, under the names that the samples have in the rollout dump of the same step.

use std::path::Path;

use rollscope_model::Table;
use rollscope_model::build::{NewRun, RunsBuilder, TokensBuilder};

use super::row::whole;
use super::tables::{self, BATCH_BYTES, arrow_error};
use super::{MAX_SAMPLES, Names, SERVICE, default_run, limit, no_dump, step_and_split};
use crate::import::torch::{Tag, Torch, Value};
use crate::import::{ImportError, ImportOptions, Imported, Sink, written_ns};
use crate::tokens::{About, MAX_TOKENS, Tokens};

/// What a token takes in memory, about: an id, a mask, and five numbers.
const TOKEN_BYTES: usize = 25;

/// Fields of a sample. slime has a dict per sample since format 2 of this file; before that, and in miles, there is a list per
/// field, and two of them have another name.
const FIELDS: [(&str, &str); 10] = [
    ("sample_index", "sample_indices"),
    ("rollout_position", "partition"),
    ("response_lengths", "response_lengths"),
    ("tokens", "tokens"),
    ("loss_masks", "loss_masks"),
    ("log_probs", "log_probs"),
    ("rollout_log_probs", "rollout_log_probs"),
    ("entropy", "entropy"),
    ("advantages", "advantages"),
    ("weight_versions", "weight_versions"),
];
/// The values of [`FIELDS`].
type Sample = [Option<Value>; FIELDS.len()];

/// Is it such a file, rather than a rollout dump?
pub fn is_train_data(torch: &Torch) -> bool {
    let heap = &torch.heap;
    heap.field(torch.root, "dp_shards").is_some()
        || heap.field(torch.root, "rollout_data").is_some_and(|data| heap.field(data, "response_lengths").is_some())
}

fn samples(torch: &Torch) -> Result<Vec<Sample>, ImportError> {
    let heap = &torch.heap;
    let known = |value: Option<Value>| value.filter(|value| !value.is_none());
    if let Some(columns) = heap.field(torch.root, "rollout_data") {
        let lengths = heap.field(columns, "response_lengths").ok_or_else(|| ImportError::Malformed(no_dump(torch)))?;
        limit("samples", "MAX_SAMPLES", heap.len(lengths) as u64, MAX_SAMPLES)?;
        let mut samples: Vec<Sample> = vec![[None; FIELDS.len()]; heap.len(lengths)];
        for (at, (_, column)) in FIELDS.iter().enumerate() {
            let values = heap.field(columns, column).into_iter().flat_map(|values| heap.items(values));
            for (sample, value) in samples.iter_mut().zip(values) {
                sample[at] = known(Some(value));
            }
        }
        return Ok(samples);
    }
    let list = heap.field(torch.root, "samples").filter(|list| matches!(list.tag(), Tag::List | Tag::Tuple));
    let list = list.ok_or_else(|| ImportError::Malformed(no_dump(torch)))?;
    limit("samples", "MAX_SAMPLES", heap.len(list) as u64, MAX_SAMPLES)?;
    Ok(heap.items(list).map(|sample| FIELDS.map(|(name, _)| known(heap.field(sample, name)))).collect())
}

/// The tokens after the prompt, and whether lists had to be left out because they have another length: with context parallelism,
/// miles writes a slice of them per rank.
fn tokens(torch: &Torch, sample: &Sample) -> (Tokens, bool) {
    let [_, _, length, ids, mask, trainer, rollout, entropy, advantages, versions] = *sample;
    let length = length.map(|length| whole(torch, length));
    let mut is_cut = false;
    let (prompt, ids) = tables::after_prompt(torch, ids, length);
    let mut numbers = |value: Option<Value>| {
        let list = torch.numbers(value?, MAX_TOKENS + 1)?;
        let fits = length.is_some_and(|length| usize::try_from(length) == Ok(list.len()));
        is_cut |= !fits;
        fits.then_some(list).filter(|list| !list.is_empty())
    };
    let mask = numbers(mask).map(|list| list.into_iter().map(|value| value != 0.0).collect());
    let mut floats =
        |value| numbers(value).map(|list| list.into_iter().map(|value| value as f32).collect::<Vec<f32>>());
    let tokens = Tokens {
        prompt_tokens: Some(prompt as i64),
        ids,
        mask,
        trainer_logprobs: floats(trainer),
        logprobs: floats(rollout),
        entropy: floats(entropy),
        advantages: floats(advantages),
        parts: tables::weights(torch, versions).into_iter().collect(),
        is_trainers: true,
        ..Tokens::default()
    };
    (tokens, is_cut)
}

/// Rows of `tokens`, and the run.
pub fn write(torch: &Torch, path: &Path, options: &ImportOptions, sink: &mut Sink) -> Result<Imported, ImportError> {
    let run = options.run.clone().unwrap_or_else(|| default_run(path));
    let file = path.file_name().map(|name| name.to_string_lossy());
    let ((step, split), written_ns) = (step_and_split(torch, path), written_ns(path));
    let (mut rows, mut pending, mut imported) = (TokensBuilder::default(), 0, Imported::default());
    let (mut uneven, mut cut, mut names) = (0u64, 0u64, Names::default());
    let mut hand_on = |rows: &mut TokensBuilder, imported: &mut Imported| {
        let batch = rows.finish().map_err(arrow_error)?;
        imported.rows += batch.num_rows() as u64;
        if batch.num_rows() > 0 { sink(Table::Tokens, batch) } else { Ok(()) }
    };
    for (at, sample) in samples(torch)?.iter().enumerate() {
        let position = sample[1].and_then(|position| usize::try_from(whole(torch, position)).ok());
        let sample_id = names.of(torch, sample[0], position.unwrap_or(at));
        if !options.tokens {
            continue;
        }
        let about = About {
            run_id: &run,
            step,
            sample_id: &sample_id,
            split,
            logged_ns: Some(written_ns),
            file: file.as_deref(),
            ..About::default()
        };
        let (tokens, is_cut) = tokens(torch, sample);
        cut += u64::from(is_cut);
        match tokens.push(about, &mut rows) {
            Ok(count) => pending += count as usize * TOKEN_BYTES,
            Err(_) => uneven += 1,
        }
        if pending > BATCH_BYTES {
            hand_on(&mut rows, &mut imported)?;
            pending = 0;
        }
    }
    hand_on(&mut rows, &mut imported)?;
    let mut runs = RunsBuilder::default();
    runs.push(&NewRun {
        run_id: &run,
        name: Some(&run),
        // miles is a fork of slime, and only its files say how tokens are packed.
        framework: Some(if torch.heap.field(torch.root, "qkv_format").is_some() { "miles" } else { SERVICE }),
        started_ns: written_ns,
        ended_ns: Some(written_ns),
        status: Some("finished"),
        updated_ns: written_ns,
        ..NewRun::default()
    });
    sink(Table::Runs, runs.finish().map_err(arrow_error)?)?;
    imported.rows += 1;
    imported.rejected = uneven;
    for (count, why) in [
        (uneven, "samples have lists of tokens that differ in length; their tokens were left out"),
        (
            cut,
            "samples have lists that are shorter or longer than their response, as slices of context parallelism are; these lists were left out",
        ),
    ] {
        if count > 0 {
            imported.reasons.push(format!("{count} {why}"));
        }
    }
    Ok(imported)
}
