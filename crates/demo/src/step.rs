//! A step: as planned, and as written.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use rollscope_model::Table;

use crate::emit::seconds;
use crate::sim::{Fleet, Outcome};
use crate::task::Task;
use crate::trainer::Phase;

/// Everything about a step that has a time. Times are relative to its start.
pub(crate) struct Plan {
    pub step: u64,
    pub tasks: Vec<Task>,
    pub fleet: Fleet,
    pub outcome: Outcome,
    pub phases: Vec<Phase>,
    pub end: i64,
    pub skew: Vec<i64>,
    pub lost: f64,
}

impl Plan {
    pub fn non_generation_s(&self, sample: usize) -> f64 {
        let times = &self.outcome.samples[sample];
        let generating: i64 = self.outcome.of(sample).iter().map(|r| r.done - r.sent).sum();
        seconds(times.end - times.start - generating)
    }

    pub fn tokens(&self) -> i64 {
        self.tasks.iter().flat_map(|t| &t.turns).map(|t| t.completion_tokens).sum()
    }
}

/// The batches of one step.
#[derive(Clone, Debug)]
pub struct StepData {
    pub step: u64,
    pub start_ns: i64,
    pub end_ns: i64,
    pub batches: Vec<(Table, RecordBatch)>,
    /// Metrics that rollscope should compute from the batches, for tests.
    pub expected: BTreeMap<String, f64>,
}

impl StepData {
    pub fn batch(&self, table: Table) -> Option<&RecordBatch> {
        self.batches.iter().find(|(t, _)| *t == table).map(|(_, batch)| batch)
    }

    pub fn rows(&self, table: Table) -> usize {
        self.batches.iter().filter(|(t, _)| *t == table).map(|(_, batch)| batch.num_rows()).sum()
    }
}
