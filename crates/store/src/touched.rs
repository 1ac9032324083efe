//! Which steps got new spans, samples or logged metrics since the last call. Bounded: beyond the bound it logs a warning.

use std::collections::BTreeSet;

use arrow::array::RecordBatch;
use parking_lot::Mutex;
use rollscope_model::Table;
use rollscope_model::read::{Ints, Text, column};

/// Steps remembered between two questions.
const MAX: usize = 100_000;

/// Run and step.
pub type Step = (String, i64);

#[derive(Default)]
pub(crate) struct Touched {
    steps: Mutex<BTreeSet<Step>>,
}

impl Touched {
    pub fn note(&self, steps: Vec<Step>) {
        let mut all = self.steps.lock();
        for step in steps {
            if all.len() >= MAX && !all.contains(&step) {
                tracing::warn!(
                    limit = MAX,
                    "too many steps changed at once; the metrics of some steps are not computed"
                );
                return;
            }
            all.insert(step);
        }
    }

    pub fn forget(&self, run: &str) {
        self.steps.lock().retain(|(of, _)| of != run);
    }

    pub fn take(&self) -> Vec<Step> {
        std::mem::take(&mut *self.steps.lock()).into_iter().collect()
    }
}

/// The steps in a batch of spans, samples or metrics. Metrics that rollscope computed do not count.
pub(crate) fn steps(table: Table, batch: &RecordBatch) -> Vec<Step> {
    if !matches!(table, Table::Spans | Table::Samples | Table::Metrics) {
        return Vec::new();
    }
    let (Ok(runs), Ok(steps)) = (column::<Text>(batch, "run_id"), column::<Ints>(batch, "step")) else {
        return Vec::new();
    };
    let Some((keys, names)) = runs.dictionary() else { return Vec::new() };
    let computed: Option<Text> = column(batch, "source").ok().filter(|_| table == Table::Metrics);
    let mut seen: BTreeSet<(i32, i64)> = BTreeSet::new();
    let mut last = None;
    for row in 0..batch.num_rows() {
        let Some(step) = steps.get(row).filter(|_| computed.is_none_or(|source| source.get(row).is_none())) else {
            continue;
        };
        // Rows of a step come together as a rule.
        let this = (keys.value(row), step);
        if last != Some(this) {
            seen.insert(this);
            last = Some(this);
        }
    }
    seen.into_iter().map(|(run, step)| (names.value(run as usize).to_string(), step)).collect()
}
