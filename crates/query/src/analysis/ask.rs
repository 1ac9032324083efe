//! Asks the store for a step or a run, and keeps what was worked out. A step is read again only when rows of it came or
//! moved: its fingerprint is the segments that can hold it and how many of its rows are in the live tail. So a run's
//! findings cost one step when one step is new.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Int32Type, Int64Type};
use futures::{StreamExt, TryStreamExt};
use hashbrown::HashMap;
use rollscope_model::{Table, TraceId};
use rollscope_store::Snapshot;
use tokio::sync::Semaphore;

use super::critical_path::{CriticalPath, critical_path};
use super::difference::{Difference, PhaseChange, Shape, Side, difference};
use super::findings::Judge;
use super::report::{RunFindings, StepAnswers, StepReport, answer, run_findings, step_report};
use super::step::{SAMPLE_COLUMNS, SPAN_COLUMNS, StepData};
use super::summary::StepSummary;
use crate::engine::Engine;
use crate::error::{ErrorKind, QueryError};

/// Spans of one step that are read.
pub const MAX_STEP_SPANS: usize = 16_000_000;
/// Steps that a run is judged by: the newest, or those nearest to the one asked for.
pub const MAX_STEPS: usize = 256;
/// Steps that are read at the same time.
const AT_ONCE: usize = 2;
/// Units (see [`super::samples`]) that are kept over all steps and runs, about 100 bytes each; the longest unused go first.
const MAX_KEPT_UNITS: usize = 3_000_000;
/// Full answers that are kept.
const MAX_KEPT_ANSWERS: usize = 64;

#[derive(Clone)]
struct Known {
    fingerprint: u64,
    used: u64,
    summary: Arc<StepSummary>,
    shape: Arc<Shape>,
    answers: Option<Arc<StepAnswers>>,
}

/// A run and a step of it.
type Place = (String, Option<i64>);

/// What was worked out already.
pub struct Answers {
    /// By run and step; the number counts uses.
    known: Mutex<(u64, HashMap<Place, Known>)>,
    /// Steps are large: few are read at the same time, whoever asks.
    turns: Semaphore,
}

impl Default for Answers {
    fn default() -> Self {
        Answers { known: Mutex::default(), turns: Semaphore::new(AT_ONCE) }
    }
}

impl Answers {
    fn get(&self, run: &str, step: Option<i64>, fingerprint: u64) -> Option<Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.0 += 1;
        let now = known.0;
        let found = known.1.get_mut(&(run.to_string(), step)).filter(|k| k.fingerprint == fingerprint)?;
        found.used = now;
        Some(found.clone())
    }

    fn put(&self, run: &str, step: Option<i64>, mut new: Known) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.0 += 1;
        new.used = known.0;
        known.1.insert((run.to_string(), step), new);
        let mut by_use: Vec<(u64, usize, Place)> =
            known.1.iter().map(|(key, k)| (k.used, k.summary.units.len() + 100, key.clone())).collect();
        by_use.sort_by_key(|(used, ..)| std::cmp::Reverse(*used));
        let (mut units, mut answers) = (0, 0);
        for (_, size, key) in by_use {
            units += size;
            if units > MAX_KEPT_UNITS {
                known.1.remove(&key);
            } else if let Some(k) = known.1.get_mut(&key)
                && k.answers.is_some()
            {
                answers += 1;
                if answers > MAX_KEPT_ANSWERS {
                    k.answers = None;
                }
            }
        }
    }
}

/// What of a run's rows lies where.
struct Extent {
    segments: Vec<(Option<(i64, i64)>, u64)>,
    /// Rows in the tail by step.
    tail: BTreeMap<Option<i64>, u64>,
}

impl Extent {
    fn new(snapshot: &Snapshot, run: &str) -> Extent {
        let mut out = Extent { segments: Vec::new(), tail: BTreeMap::new() };
        for table in [Table::Spans, Table::Samples] {
            let Some(rows) = snapshot.tables.get(&table) else { continue };
            for segment in rows.segments.iter().filter(|s| s.run_id == run) {
                let mut hasher = DefaultHasher::new();
                segment.path.hash(&mut hasher);
                out.segments.push((segment.steps, hasher.finish()));
            }
            for batch in &rows.tail {
                count_tail(batch, run, &mut out.tail);
            }
        }
        out
    }

    fn fingerprint(&self, step: Option<i64>) -> u64 {
        let mut hasher = DefaultHasher::new();
        let holds = |range: &Option<(i64, i64)>| match (range, step) {
            (Some((first, last)), Some(step)) => (*first..=*last).contains(&step),
            _ => true,
        };
        let mut segments: Vec<u64> = self.segments.iter().filter(|(r, _)| holds(r)).map(|(_, h)| *h).collect();
        segments.sort_unstable();
        (segments, self.tail.get(&step).copied().unwrap_or(0)).hash(&mut hasher);
        hasher.finish()
    }
}

fn count_tail(batch: &RecordBatch, run: &str, counts: &mut BTreeMap<Option<i64>, u64>) {
    let (Some(runs), Some(steps)) = (batch.column_by_name("run_id"), batch.column_by_name("step")) else { return };
    let (Some(runs), Some(steps)) = (runs.as_dictionary_opt::<Int32Type>(), steps.as_primitive_opt::<Int64Type>())
    else {
        return;
    };
    let names = runs.values().as_string::<i32>();
    let Some(key) = (0..names.len()).find(|i| names.value(*i) == run).map(|i| i as i32) else { return };
    let mut last: Option<(Option<i64>, u64)> = None;
    for row in (0..batch.num_rows()).filter(|r| runs.is_valid(*r) && runs.keys().value(*r) == key) {
        let step = steps.is_valid(row).then(|| steps.value(row));
        match &mut last {
            Some((s, n)) if *s == step => *n += 1,
            _ => {
                if let Some((s, n)) = last.replace((step, 1)) {
                    *counts.entry(s).or_default() += n;
                }
            }
        }
    }
    if let Some((s, n)) = last {
        *counts.entry(s).or_default() += n;
    }
}

fn text(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

fn filter(run: &str, step: Option<i64>) -> String {
    match step {
        Some(step) => format!("run_id = {} and step = {step}", text(run)),
        None => format!("run_id = {} and step is null", text(run)),
    }
}

/// One side of a difference: a step of a run, or a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Which {
    pub run: String,
    pub step: Option<i64>,
}

impl Engine {
    /// All rows of a query of our own, past `max_rows`, which is there for users.
    async fn all_rows(&self, sql: &str) -> Result<Vec<RecordBatch>, QueryError> {
        let running = self.sql_at_once(sql, MAX_STEP_SPANS).await?;
        let (rows, truncated) = running.collect().await?;
        if truncated {
            let text = format!("the step has more than {MAX_STEP_SPANS} spans, which is the limit for answers");
            return Err(QueryError::new(ErrorKind::Limit, text));
        }
        Ok(rows)
    }

    /// The steps of a run, in order; `[None]` for a run whose rows name no step.
    async fn steps_of(&self, run: &str) -> Result<Vec<Option<i64>>, QueryError> {
        let run_text = text(run);
        let sql = format!(
            "select distinct step from spans where run_id = {run_text} and step is not null union \
             select distinct step from samples where run_id = {run_text} and step is not null"
        );
        let mut steps: Vec<Option<i64>> = Vec::new();
        for batch in self.all_rows(&sql).await? {
            steps.extend(batch.column(0).as_primitive::<Int64Type>().iter().filter(Option::is_some));
        }
        steps.sort_unstable();
        steps.dedup();
        if steps.is_empty() {
            let extent = Extent::new(&self.snapshot(), run);
            let any = !extent.tail.is_empty() || !extent.segments.is_empty();
            if !any {
                return Err(QueryError::new(ErrorKind::NotFound, format!("there is no run `{run}`")));
            }
            steps.push(None);
        }
        Ok(steps)
    }

    /// Reads the columns of a step that the answers need.
    pub async fn step_data(&self, run: &str, step: Option<i64>) -> Result<StepData, QueryError> {
        let filter = filter(run, step);
        let spans = self.all_rows(&format!("select {} from spans where {filter}", SPAN_COLUMNS.join(", "))).await?;
        let samples =
            self.all_rows(&format!("select {} from samples where {filter}", SAMPLE_COLUMNS.join(", "))).await?;
        let names = self.compute(move || (super::step::names_with_attributes(&spans), spans)).await?;
        let (names, spans) = names;
        let mut attributes = Vec::new();
        if !names.is_empty() {
            let list: Vec<String> = names.iter().map(|n| text(n)).collect();
            let sql = format!(
                "select trace_id, span_id, start_attrs, end_attrs from spans where {filter} and name in ({})",
                list.join(", ")
            );
            attributes = self.all_rows(&sql).await?;
        }
        self.compute(move || StepData::read(&spans, &attributes, &samples))
            .await?
            .map_err(|e| QueryError::new(ErrorKind::Internal, format!("cannot read the step's columns: {e}")))
    }

    /// What held a trace from its beginning to its end, and when that was.
    pub async fn trace_path(&self, id: TraceId) -> Result<(i64, CriticalPath), QueryError> {
        let spans = self.trace(id).await?;
        if spans.is_empty() {
            return Err(QueryError::new(ErrorKind::NotFound, format!("there is no trace {}", hex::encode(id))));
        }
        let read = self
            .compute(move || StepData::read(&spans, &spans, &[]).map(|data| (data.step_start, critical_path(&data))));
        read.await?.map_err(|e| QueryError::new(ErrorKind::Internal, format!("cannot read the trace's columns: {e}")))
    }

    async fn known(&self, run: &str, step: Option<i64>, extent: &Extent, full: bool) -> Result<Known, QueryError> {
        let fingerprint = extent.fingerprint(step);
        if let Some(known) = self.answers().get(run, step, fingerprint).filter(|k| !full || k.answers.is_some()) {
            return Ok(known);
        }
        let _turn = self.answers().turns.acquire().await;
        let mut data = self.step_data(run, step).await?;
        let (summary, answers, shape) = self.compute(move || answer(step, &mut data)).await?;
        let known = Known {
            fingerprint,
            used: 0,
            summary: Arc::new(summary),
            shape: Arc::new(shape),
            answers: full.then(|| Arc::new(answers)),
        };
        self.answers().put(run, step, known.clone());
        Ok(known)
    }

    /// The steps around one (or the newest), each as it is known.
    async fn history(&self, run: &str, around: Option<Option<i64>>) -> Result<(Vec<Known>, usize), QueryError> {
        let mut steps = self.steps_of(run).await?;
        let all = steps.len();
        if let Some(step) = around
            && !steps.contains(&step)
        {
            let name = step.map_or("a part without steps".to_string(), |s| format!("step {s}"));
            let (first, last) = (steps[0], steps[steps.len() - 1]);
            let range = match (first, last) {
                (Some(first), Some(last)) => format!("its steps are {first} to {last}"),
                _ => "it has no steps".to_string(),
            };
            return Err(QueryError::new(ErrorKind::NotFound, format!("run `{run}` has no {name}; {range}")));
        }
        if all > MAX_STEPS {
            let at = around.and_then(|s| steps.iter().position(|o| *o == s)).unwrap_or(all);
            let first = at.saturating_sub(MAX_STEPS / 2).min(all - MAX_STEPS);
            steps = steps[first..first + MAX_STEPS].to_vec();
        }
        let extent = Extent::new(&self.snapshot(), run);
        let known: Vec<Known> = futures::stream::iter(steps)
            .map(|step| self.known(run, step, &extent, around == Some(step)))
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        Ok((known, all.saturating_sub(MAX_STEPS)))
    }

    /// Why did this step take as long as it did?
    pub async fn step_report(&self, run: &str, step: Option<i64>) -> Result<StepReport, QueryError> {
        let (known, _) = self.history(run, Some(step)).await?;
        let run = run.to_string();
        self.compute(move || {
            let judge = Judge::new(known.iter().map(|k| k.summary.as_ref()).collect());
            let index = known.iter().position(|k| k.summary.step == step).unwrap_or(0);
            let answers = known[index].answers.clone().unwrap_or_default();
            step_report(&run, &judge, index, answers)
        })
        .await
    }

    /// What stands out in a run, by cost.
    pub async fn run_findings(&self, run: &str) -> Result<RunFindings, QueryError> {
        let (known, left_out) = self.history(run, None).await?;
        let run = run.to_string();
        self.compute(move || {
            let judge = Judge::new(known.iter().map(|k| k.summary.as_ref()).collect());
            run_findings(&run, &judge, left_out)
        })
        .await
    }

    /// What changed from one step to another, or from one run to another.
    pub async fn difference(&self, before: &Which, after: &Which) -> Result<Difference, QueryError> {
        let around = |w: &Which| w.step.map(Some);
        let (old, _) = self.history(&before.run, around(before)).await?;
        let (new, _) = self.history(&after.run, around(after)).await?;
        let (before, after) = (before.clone(), after.clone());
        self.compute(move || {
            let (a, b) = (side(&before, &after.run, &old), side(&after, &before.run, &new));
            let mut out = difference(&a, &b);
            out.phases = phase_changes(&chosen(&before, &old), &chosen(&after, &new));
            out
        })
        .await
    }
}

fn chosen<'a>(which: &Which, known: &'a [Known]) -> Vec<&'a Known> {
    // Of a run: the steps that are over, unless none is.
    let of: Vec<&Known> = match which.step {
        Some(step) => known.iter().filter(|k| k.summary.step == Some(step)).collect(),
        None => known.iter().filter(|k| !k.summary.running).collect(),
    };
    if of.is_empty() { known.iter().collect() } else { of }
}

fn side<'a>(which: &Which, other_run: &str, known: &'a [Known]) -> Side<'a> {
    let steps: Vec<&Shape> = chosen(which, known).into_iter().map(|k| k.shape.as_ref()).collect();
    let others = match which.step {
        Some(step) => known
            .iter()
            .filter(|k| k.summary.step != Some(step) && !k.summary.running)
            .map(|k| k.shape.as_ref())
            .collect(),
        None => Vec::new(),
    };
    let name = match which.step {
        Some(step) if which.run == other_run => format!("step {step}"),
        Some(step) => format!("{} step {step}", which.run),
        None => which.run.clone(),
    };
    let mut letters = name.chars();
    let name = match letters.next() {
        Some(first) if which.step.is_some() && which.run == other_run => first.to_uppercase().chain(letters).collect(),
        _ => name,
    };
    Side { name, steps, others }
}

fn phase_changes(before: &[&Known], after: &[&Known]) -> Vec<PhaseChange> {
    let mut out: Vec<PhaseChange> = Vec::new();
    for (side, known) in [before, after].into_iter().enumerate() {
        for step in known {
            for phase in &step.summary.phases {
                let at = out.iter().position(|p| p.name == phase.name).unwrap_or_else(|| {
                    out.push(PhaseChange { name: phase.name.clone(), before_s: 0.0, after_s: 0.0 });
                    out.len() - 1
                });
                let slot = if side == 0 { &mut out[at].before_s } else { &mut out[at].after_s };
                *slot += phase.seconds / known.len() as f64;
            }
        }
    }
    out
}
