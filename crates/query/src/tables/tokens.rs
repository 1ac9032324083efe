//! `tokens` as users see it: a row per sample. An engine and a trainer may each send what they know of a sample on its own; these
//! are two rows in the store, which this view joins. Rows that need no join stream through it: only trainers' rows are held in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::metadata::FieldMetadata;
use datafusion::common::{Column, JoinType, NullEquality, Result};
use datafusion::datasource::{ViewTable, provider_as_source};
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::functions_nested::expr_fn::cardinality;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder, col, lit, when};
use rollscope_model::Table;
use rollscope_model::tables::doc;
use rollscope_tokenizer::Tokenizers;

use crate::functions::token_texts;

/// What both rows of a sample have in common.
const KEYS: [&str; 4] = ["run_id", "step", "sample_id", "split"];
/// What the trainer knows best, if it sent as many tokens as the engine.
const TRAINERS: [&str; 6] = ["mask", "trainer_logprobs", "entropy", "advantages", "ratios", "clipped"];
/// What either may send: the engine's counts.
const SHARED: [&str; 7] = ["group_id", "source", "prompt_tokens", "ids", "texts", "logprobs", "file"];
const HALF: &str = "half";
const TEXTS: &str = "texts";

/// The view over the stored `tokens`. Texts that nobody sent come from the tokenizer of the run, if it has one.
pub fn tokens_view(stored: Arc<dyn TableProvider>, tokenizers: &Tokenizers) -> Result<ViewTable> {
    let schema = stored.schema();
    let fields = || schema.fields().iter().filter(|field| field.name() != HALF);
    let scan = || LogicalPlanBuilder::scan(Table::Tokens.name(), provider_as_source(stored.clone()), None);
    // Each side has names of its own: DataFusion takes columns of one name for each other where it moves a filter below a join.
    let trainers = || {
        let renamed = fields().map(|field| col(field.name()).alias(of_trainer(field.name())));
        scan()?.filter(col(HALF).is_not_null())?.project(renamed)
    };
    let others = || scan()?.filter(col(HALF).is_null())?.build();
    let keys = || {
        let name = |key: &&str| Column::from_name(*key);
        (KEYS.iter().map(|key| Column::from_name(of_trainer(key))).collect::<Vec<_>>(), KEYS.iter().map(name).collect())
    };
    // The side that a join holds in memory comes first.
    let join = |how| trainers()?.join_detailed(others()?, how, keys(), None, NullEquality::NullEqualsNull);

    let mut joined = fields()
        .map(|field| {
            let name = field.name().as_str();
            let value = match name {
                TEXTS => with_texts(joined(TEXTS)?, col("run_id"), joined("ids")?, tokenizers),
                _ => joined(name)?,
            };
            Ok(described(value, name, doc(field)))
        })
        .collect::<Result<Vec<Expr>>>()?;
    joined.push(described(trainer("count"), "trainer_count", TRAINER_COUNT));
    joined.push(described(when(agree(), trainer("ids")).end()?, "trainer_ids", TRAINER_IDS));

    let mut alone: Vec<Expr> = fields()
        .map(|field| {
            let value = match field.name().as_str() {
                TEXTS => with_texts(trainer(TEXTS), trainer("run_id"), trainer("ids"), tokenizers),
                name => trainer(name),
            };
            described(value, field.name(), doc(field))
        })
        .collect();
    alone.push(described(trainer("count"), "trainer_count", TRAINER_COUNT));
    alone.push(described(trainer("ids"), "trainer_ids", TRAINER_IDS));

    let alone = join(JoinType::LeftAnti)?.project(alone)?.build()?;
    Ok(ViewTable::new(join(JoinType::Right)?.project(joined)?.union(alone)?.build()?, None))
}

fn with_texts(texts: Expr, run: Expr, ids: Expr, tokenizers: &Tokenizers) -> Expr {
    if tokenizers.is_empty() { texts } else { coalesce(vec![texts, token_texts(tokenizers).call(vec![run, ids])]) }
}

fn of_trainer(name: &str) -> String {
    format!("trainers_{name}")
}

fn trainer(name: &str) -> Expr {
    col(Column::from_name(of_trainer(name)))
}

fn described(value: Expr, name: &str, doc: &str) -> Expr {
    let entries = BTreeMap::from([("doc".to_string(), doc.to_string())]);
    value.alias_with_metadata(name, Some(FieldMetadata::from(entries)))
}

/// A column of a sample of which one row or both are there.
fn joined(name: &str) -> Result<Expr> {
    let (trainers, other) = (trainer(name), col(Column::from_name(name)));
    let is_trainers = if TRAINERS.contains(&name) {
        // What was sent as a whole later replaces what the trainer sent.
        let is_newer = col("logged_ns").gt(trainer("logged_ns"));
        trainers.clone().is_null().or(other.clone().is_not_null().and(is_newer)).is_not_true()
    } else if SHARED.contains(&name) {
        other.clone().is_null()
    } else if name == "parts" {
        cardinality(other.clone()).eq(lit(0_u64))
    } else {
        return Ok(other);
    };
    when(agree().and(is_trainers), trainers).otherwise(other)
}

const TRAINER_COUNT: &str = "number of tokens in what the trainer sent on its own; null if nothing. \
                             Where it differs from count, the trainer's values are left out";

const TRAINER_IDS: &str = "ids of the tokens as the trainer sent them on its own";

/// Have both sides sent as many tokens? If not, nobody knows which belong together.
fn agree() -> Expr {
    trainer("count").eq(col("count"))
}
