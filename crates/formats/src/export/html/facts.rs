//! The lists of runs and steps, collected while the rows pass by.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::error::ArrowError;
use rollscope_model::names::state;
use rollscope_model::read::{Floats, Ints, Text, column};
use rollscope_spans::intervals;
use serde::Serialize;

/// One run, as `GET /api/v1/runs` returns it.
#[derive(Clone, Debug, Default)]
pub struct RunFacts {
    pub project: Option<String>,
    pub name: Option<String>,
    pub framework: Option<String>,
    pub status: Option<String>,
    pub started_ns: Option<i64>,
    pub ended_ns: Option<i64>,
    pub spans: u64,
    pub samples: u64,
    pub steps: u64,
}

/// One step, as `GET /api/v1/runs/{run}/steps` returns it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StepFacts {
    pub step: Option<i64>,
    #[serde(serialize_with = "ns_as_text")]
    pub start_ns: Option<i64>,
    #[serde(serialize_with = "ns_as_text")]
    pub end_ns: Option<i64>,
    pub spans: u64,
    pub samples: u64,
    pub open: u64,
    pub reward_mean: Option<f64>,
    pub phases: BTreeMap<String, f64>,
}

/// Nanoseconds do not fit a JavaScript number.
fn ns_as_text<S: serde::Serializer>(ns: &Option<i64>, out: S) -> Result<S::Ok, S::Error> {
    match ns {
        Some(ns) => out.collect_str(ns),
        None => out.serialize_none(),
    }
}

fn earliest(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    a.into_iter().chain(b).min()
}

fn latest(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    a.into_iter().chain(b).max()
}

/// Gathers the facts of one step.
#[derive(Default)]
pub struct Gather {
    facts: StepFacts,
    sample_ids: HashSet<String>,
    rewards: (f64, u64),
    /// By phase, when spans of it ran.
    intervals: BTreeMap<String, Vec<(i64, i64)>>,
}

impl Gather {
    pub fn new(step: Option<i64>) -> Gather {
        Gather { facts: StepFacts { step, ..StepFacts::default() }, ..Gather::default() }
    }

    pub fn spans(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let (start, end): (Ints, Ints) = (column(batch, "start_ns")?, column(batch, "end_ns")?);
        let (state, phase): (Text, Text) = (column(batch, "state")?, column(batch, "phase")?);
        self.facts.spans += batch.num_rows() as u64;
        self.facts.start_ns = earliest(self.facts.start_ns, start.iter().flatten().min());
        self.facts.end_ns =
            latest(self.facts.end_ns, end.iter().flatten().max().or_else(|| start.iter().flatten().max()));
        for row in 0..batch.num_rows() {
            self.facts.open += u64::from(state.get(row) == Some(state::OPEN));
            let (Some(name), Some(end)) = (phase.get(row), end.get(row)) else { continue };
            match self.intervals.get_mut(name) {
                Some(list) => list.push((start.at(row), end)),
                None => {
                    self.intervals.insert(name.to_string(), vec![(start.at(row), end)]);
                }
            }
        }
        Ok(())
    }

    pub fn samples(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let (ids, split): (Text, Text) = (column(batch, "sample_id")?, column(batch, "split")?);
        let reward: Floats = column(batch, "reward")?;
        for row in 0..batch.num_rows() {
            self.sample_ids.extend(ids.get(row).map(str::to_string));
            if let Some(reward) = reward.get(row).filter(|r| r.is_finite() && split.get(row) == Some("train")) {
                self.rewards.0 += reward;
                self.rewards.1 += 1;
            }
        }
        Ok(())
    }

    pub fn finish(mut self) -> StepFacts {
        self.facts.samples = self.sample_ids.len() as u64;
        self.facts.reward_mean = (self.rewards.1 > 0).then(|| self.rewards.0 / self.rewards.1 as f64);
        for (phase, mut list) in self.intervals {
            intervals::union(&mut list);
            self.facts.phases.insert(phase, intervals::length(&list) as f64 / 1e9);
        }
        self.facts
    }
}

impl RunFacts {
    pub fn add(&mut self, step: &StepFacts) {
        self.started_ns = earliest(self.started_ns, step.start_ns);
        self.ended_ns = latest(self.ended_ns, step.end_ns);
        self.spans += step.spans;
        self.samples += step.samples;
        self.steps += u64::from(step.step.is_some());
    }

    /// Takes over a row of the table `runs`.
    pub fn describe(runs: &mut BTreeMap<String, RunFacts>, batch: &RecordBatch) -> Result<(), ArrowError> {
        let text = |name| column::<Text>(batch, name);
        let (ids, projects, names) = (text("run_id")?, text("project")?, text("name")?);
        let (frameworks, statuses) = (text("framework")?, text("status")?);
        for row in 0..batch.num_rows() {
            let value = |column: &Text| column.get(row).map(str::to_string);
            let facts = runs.entry(ids.at(row).to_string()).or_default();
            facts.project = value(&projects);
            facts.name = value(&names);
            facts.framework = value(&frameworks);
            facts.status = value(&statuses);
        }
        Ok(())
    }
}

/// The columns of `GET /api/v1/runs`.
pub fn runs_batch(runs: &BTreeMap<String, RunFacts>) -> Result<RecordBatch, ArrowError> {
    let text =
        |get: fn(&RunFacts) -> Option<&str>| -> ArrayRef { Arc::new(runs.values().map(get).collect::<StringArray>()) };
    let int =
        |get: fn(&RunFacts) -> Option<i64>| -> ArrayRef { Arc::new(runs.values().map(get).collect::<Int64Array>()) };
    let ids: ArrayRef = Arc::new(runs.keys().map(|k| Some(k.as_str())).collect::<StringArray>());
    RecordBatch::try_from_iter_with_nullable([
        ("run_id", ids, false),
        ("project", text(|r| r.project.as_deref()), true),
        ("name", text(|r| r.name.as_deref()), true),
        ("framework", text(|r| r.framework.as_deref()), true),
        ("status", text(|r| r.status.as_deref()), true),
        ("started_ns", int(|r| r.started_ns), true),
        ("ended_ns", int(|r| r.ended_ns), true),
        ("last_ns", int(|r| r.ended_ns), true),
        ("spans", int(|r| i64::try_from(r.spans).ok()), true),
        ("samples", int(|r| i64::try_from(r.samples).ok()), true),
        ("steps", int(|r| i64::try_from(r.steps).ok()), true),
        ("bytes", int(|_| Some(0)), true),
    ])
}
