//! Which steps got new spans, samples or logged metrics since the last call. Bounded: beyond the bound it logs a warning.

use std::collections::BTreeSet;

use arrow::array::cast::AsArray;
use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{Int32Type, Int64Type};
use parking_lot::Mutex;
use rollscope_model::Table;

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
    let (Some(run), Some(step)) = (batch.column_by_name("run_id"), batch.column_by_name("step")) else {
        return Vec::new();
    };
    let (run, step) = (run.as_dictionary::<Int32Type>(), step.as_primitive::<Int64Type>());
    let computed = batch.column_by_name("source").filter(|_| table == Table::Metrics);
    let mut seen: BTreeSet<(i32, i64)> = BTreeSet::new();
    let mut last = None;
    for row in (0..batch.num_rows()).filter(|row| step.is_valid(*row)) {
        if computed.is_some_and(|c| c.is_valid(row)) {
            continue;
        }
        // Rows of a step come together as a rule.
        let this = (run.keys().value(row), step.value(row));
        if last != Some(this) {
            seen.insert(this);
            last = Some(this);
        }
    }
    let names = run.values().as_string::<i32>();
    seen.into_iter().map(|(run, step)| (names.value(run as usize).to_string(), step)).collect()
}
