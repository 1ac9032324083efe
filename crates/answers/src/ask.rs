//! Asks the store for a step or a run, and keeps what was worked out. A step is read again only when rows of it came or
//! moved: its fingerprint is the segments that can hold it, how many of its rows are in the live tail, and how many rows of
//! its time there name no step ([`rollscope_query::scope`]). So a run's findings cost one step when one step is new.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt};
use hashbrown::HashMap;
use rollscope_model::read::{self, Bools, Ints, Text};
use rollscope_model::{Table, TraceId};
use rollscope_query::columns::int_column;
use rollscope_query::scope::{Scope, ScopeRead};
use rollscope_query::{Engine, ErrorKind, QueryError, sql_text};
use rollscope_spans::joins::SKEW_NS;
use rollscope_store::Snapshot;
use tokio::sync::Semaphore;

use super::critical_path::{CriticalPath, critical_path, walk};
use super::difference::{Difference, PhaseChange, Shape, Side, difference};
use super::findings::Judge;
use super::report::{RunFindings, StepAnswers, StepReport, answer, run_findings, step_report};
use super::sentence::{Clause, join};
use super::step::{SAMPLE_COLUMNS, SPAN_COLUMNS, StepData};
use super::summary::StepSummary;

/// Spans of one step that are read.
pub const MAX_STEP_SPANS: usize = 16_000_000;
/// Steps that a run is judged by: the newest, or those nearest to the one asked for.
pub const MAX_STEPS: usize = 256;
/// Steps that are read at the same time.
const AT_ONCE: usize = 2;
/// Requests and calls (see [`super::samples`]) that are kept over all steps and runs, about 150 bytes each; the longest unused
/// go first.
const MAX_KEPT: usize = 2_000_000;
/// Full answers that are kept.
const MAX_KEPT_ANSWERS: usize = 64;

/// Said of a run without steps.
const NAMES_NO_STEP: &str = "None of its spans names a training step; set the attribute `rl.step` on the root span of each step to compare steps.";

#[derive(Clone)]
struct KnownStep {
    fingerprint: u64,
    used: u64,
    summary: Arc<StepSummary>,
    shape: Arc<Shape>,
    answers: Option<Arc<StepAnswers>>,
}

/// A run and a step of it.
type Place = (String, Option<i64>);

/// Answers questions about an engine's steps and runs. Cheap to clone; all clones share what was worked out already.
#[derive(Clone)]
pub struct Answers {
    pub(crate) engine: Engine,
    pub(crate) kept: Arc<Kept>,
}

/// What was worked out already.
pub(crate) struct Kept {
    /// By run and step; the number counts uses.
    known: Mutex<(u64, HashMap<Place, KnownStep>)>,
    /// Steps are large: few are read at the same time, whoever asks.
    turns: Semaphore,
}

impl Default for Kept {
    fn default() -> Self {
        Kept { known: Mutex::default(), turns: Semaphore::new(AT_ONCE) }
    }
}

impl Kept {
    fn get(&self, run: &str, step: Option<i64>, extent: &Extent) -> Option<KnownStep> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.0 += 1;
        let now = known.0;
        let found = known.1.get_mut(&(run.to_string(), step))?;
        if found.fingerprint != extent.fingerprint(step, found.summary.window()) {
            return None;
        }
        found.used = now;
        Some(found.clone())
    }

    fn put(&self, run: &str, step: Option<i64>, mut new: KnownStep) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.0 += 1;
        new.used = known.0;
        known.1.insert((run.to_string(), step), new);
        let mut by_use: Vec<(u64, usize, Place)> =
            known.1.iter().map(|(key, k)| (k.used, k.summary.size(), key.clone())).collect();
        by_use.sort_by_key(|(used, ..)| std::cmp::Reverse(*used));
        let (mut kept, mut answers) = (0, 0);
        for (_, size, key) in by_use {
            kept += size;
            if kept > MAX_KEPT {
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

/// What of a run's rows lies where, and whether the run goes on.
struct Extent {
    segments: Vec<SegmentExtent>,
    /// Rows in the tail by step.
    tail: BTreeMap<Option<i64>, u64>,
    /// Starts of the tail's spans, of any run, that name no step; sorted.
    unnamed: Vec<i64>,
    goes_on: bool,
}

struct SegmentExtent {
    /// Of this run; else it may hold spans that name no step and belong to one of the run.
    own: bool,
    steps: Option<(i64, i64)>,
    times: (i64, i64),
    path: u64,
}

impl Extent {
    fn new(snapshot: &Snapshot, run: &str, goes_on: bool) -> Extent {
        let mut out = Extent { segments: Vec::new(), tail: BTreeMap::new(), unnamed: Vec::new(), goes_on };
        for table in [Table::Spans, Table::Samples] {
            let Some(rows) = snapshot.tables.get(&table) else { continue };
            for segment in rows.segments.iter().filter(|s| s.run_id == run || table == Table::Spans) {
                let mut hasher = DefaultHasher::new();
                segment.path.hash(&mut hasher);
                out.segments.push(SegmentExtent {
                    own: segment.run_id == run,
                    steps: segment.steps,
                    times: (segment.min_time, segment.max_time),
                    path: hasher.finish(),
                });
            }
            for batch in &rows.tail {
                count_tail(batch, run, &mut out.tail);
                if table == Table::Spans {
                    out.unnamed.extend(starts_without_step(batch));
                }
            }
        }
        out.unnamed.sort_unstable();
        out
    }

    fn has_rows(&self) -> bool {
        !self.tail.is_empty() || self.segments.iter().any(|s| s.own)
    }

    fn fingerprint(&self, step: Option<i64>, (from, to): (i64, i64)) -> u64 {
        let mut hasher = DefaultHasher::new();
        // As far as rows are looked for that belong to the step.
        let (from, to) = (from.saturating_sub(SKEW_NS), to.saturating_add(SKEW_NS));
        let holds = |segment: &SegmentExtent| match (segment.own, segment.steps, step) {
            (true, Some((first, last)), Some(step)) if (first..=last).contains(&step) => true,
            (true, None, _) | (true, _, None) => true,
            // A run without steps is its own rows only.
            (false, _, None) => false,
            _ => segment.times.0 <= to && segment.times.1 >= from,
        };
        let mut segments: Vec<u64> = self.segments.iter().filter(|s| holds(s)).map(|s| s.path).collect();
        segments.sort_unstable();
        let before = |at: i64| self.unnamed.partition_point(|start| *start < at);
        let unnamed = before(to.saturating_add(1)).saturating_sub(before(from));
        (segments, self.tail.get(&step).copied().unwrap_or(0), unnamed, self.goes_on).hash(&mut hasher);
        hasher.finish()
    }
}

fn starts_without_step(batch: &RecordBatch) -> Vec<i64> {
    let int = |name: &str| read::column::<Ints>(batch, name).ok();
    let (Some(steps), Some(starts)) = (int("step"), int("start_ns")) else { return Vec::new() };
    (0..batch.num_rows()).filter(|row| steps.get(*row).is_none()).map(|row| starts.at(row)).collect()
}

fn count_tail(batch: &RecordBatch, run: &str, counts: &mut BTreeMap<Option<i64>, u64>) {
    let (Ok(runs), Ok(steps)) = (read::column::<Text>(batch, "run_id"), read::column::<Ints>(batch, "step")) else {
        return;
    };
    if runs.distinct().all(|name| name != run) {
        return;
    }
    let mut last: Option<(Option<i64>, u64)> = None;
    for row in (0..batch.num_rows()).filter(|row| runs.get(*row) == Some(run)) {
        let step = steps.get(row);
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

fn filter(run: &str, step: Option<i64>) -> String {
    match step {
        Some(step) => format!("run_id = {} and step = {step}", sql_text(run)),
        None => format!("run_id = {} and step is null", sql_text(run)),
    }
}

fn too_many_spans() -> String {
    format!("the step has more than {MAX_STEP_SPANS} spans, the limit for answers")
}

/// One side of a difference: a step of a run, or a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Which {
    pub run: String,
    pub step: Option<i64>,
}

impl Answers {
    /// Plain SQL and look-ups, for what is no question of its own.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// All rows of a query of our own, past `max_rows`, which is there for users.
    async fn all_rows(&self, sql: &str) -> Result<Vec<RecordBatch>, QueryError> {
        let running = self.engine.sql_at_once(sql, MAX_STEP_SPANS).await?;
        let (rows, truncated) = running.collect().await?;
        if truncated {
            return Err(QueryError::new(ErrorKind::Limit, too_many_spans()));
        }
        Ok(rows)
    }

    /// The steps of a run, in order; `[None]` for a run whose rows name no step.
    async fn steps_of(&self, run: &str) -> Result<Vec<Option<i64>>, QueryError> {
        let run_text = sql_text(run);
        let sql = format!(
            "select distinct step from spans where run_id = {run_text} and step is not null union \
             select distinct step from samples where run_id = {run_text} and step is not null"
        );
        let mut steps: Vec<Option<i64>> = Vec::new();
        for batch in self.all_rows(&sql).await? {
            steps.extend(int_column(&batch, "step").unwrap_or_default().into_iter().filter(Option::is_some));
        }
        steps.sort_unstable();
        steps.dedup();
        if steps.is_empty() {
            if !Extent::new(&self.engine.snapshot(), run, false).has_rows() {
                return Err(QueryError::new(ErrorKind::NotFound, format!("there is no run `{run}`")));
            }
            steps.push(None);
        }
        Ok(steps)
    }

    /// Reads the columns of a step that the answers need.
    pub async fn step_data(&self, run: &str, step: Option<i64>) -> Result<StepData, QueryError> {
        let filter = filter(run, step);
        let columns = SPAN_COLUMNS.join(", ");
        let (spans, of_spans) = match step {
            None => (self.all_rows(&format!("select {columns} from spans where {filter}")).await?, filter.clone()),
            Some(step) => {
                let (max_rows, too_many) = (MAX_STEP_SPANS, too_many_spans());
                let read = ScopeRead { columns, max_rows, too_many, traces: None, at_once: true };
                let found = self.engine.spans_of(Scope::Step { run, step }, read);
                let found = found.await?;
                (found.batches, found.filter)
            }
        };
        let samples =
            self.all_rows(&format!("select {} from samples where {filter}", SAMPLE_COLUMNS.join(", "))).await?;
        let (worth, spans) =
            self.engine.compute(move || (super::step::with_attributes(&spans, sql_text), spans)).await?;
        let mut attributes = Vec::new();
        if let Some(worth) = worth {
            let sql =
                format!("select trace_id, span_id, start_attrs, end_attrs from spans where {of_spans} and ({worth})");
            attributes = self.all_rows(&sql).await?;
        }
        self.engine
            .compute(move || StepData::read(&spans, &attributes, &samples))
            .await?
            .map_err(|e| QueryError::new(ErrorKind::Internal, format!("cannot read the step's columns: {e}")))
    }

    /// What held a trace from its beginning to its end, and when that was.
    pub async fn trace_path(&self, id: TraceId) -> Result<(i64, CriticalPath), QueryError> {
        let spans = self.engine.trace(id).await?;
        if spans.is_empty() {
            return Err(QueryError::new(ErrorKind::NotFound, format!("there is no trace {}", hex::encode(id))));
        }
        let read = self.engine.compute(move || {
            StepData::read(&spans, &spans, &[]).map(|data| (data.step_start, critical_path(&data, &walk(&data))))
        });
        read.await?.map_err(|e| QueryError::new(ErrorKind::Internal, format!("cannot read the trace's columns: {e}")))
    }

    async fn known(&self, run: &str, step: Option<i64>, extent: &Extent, full: bool) -> Result<KnownStep, QueryError> {
        if let Some(known) = self.kept.get(run, step, extent).filter(|k| !full || k.answers.is_some()) {
            return Ok(known);
        }
        let _turn = self.kept.turns.acquire().await;
        let mut data = self.step_data(run, step).await?;
        // What has no end in a run that is over was cut off, and goes on no more.
        data.running &= extent.goes_on;
        let (summary, answers, shape) = self.engine.compute(move || answer(step, &mut data)).await?;
        let known = KnownStep {
            fingerprint: extent.fingerprint(step, summary.window()),
            used: 0,
            summary: Arc::new(summary),
            shape: Arc::new(shape),
            answers: full.then(|| Arc::new(answers)),
        };
        self.kept.put(run, step, known.clone());
        Ok(known)
    }

    /// May rows of this run still come? Not if it says that it is over, nor if it was read from files, which say nothing.
    pub async fn goes_on(&self, run: &str) -> Result<bool, QueryError> {
        let sql = format!(
            "select status = 'running' and ended_ns is null as goes_on from runs where run_id = {}",
            sql_text(run)
        );
        let rows = self.all_rows(&sql).await?;
        let row = rows.iter().find(|batch| batch.num_rows() > 0);
        // Spans came and no row of the run: nobody has said anything yet.
        let Some(row) = row else { return Ok(true) };
        Ok(read::column::<Bools>(row, "goes_on").is_ok_and(|said| said.get(0) == Some(true)))
    }

    /// The steps around one (or the newest), each as it is known. Boxed, so that reading and computing them is compiled here and
    /// not once more in each crate that asks.
    fn history<'a>(
        &'a self,
        run: &'a str,
        around: Option<Option<i64>>,
    ) -> BoxFuture<'a, Result<(Vec<KnownStep>, usize), QueryError>> {
        Box::pin(self.history_here(run, around))
    }

    async fn history_here(
        &self,
        run: &str,
        around: Option<Option<i64>>,
    ) -> Result<(Vec<KnownStep>, usize), QueryError> {
        let mut steps = self.steps_of(run).await?;
        let all = steps.len();
        if let Some(step) = around
            && !steps.contains(&step)
        {
            let name = step.map_or("rows without a step".to_string(), |s| format!("step {s}"));
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
        let goes_on = self.goes_on(run).await?;
        let extent = Extent::new(&self.engine.snapshot(), run, goes_on);
        let known: Vec<KnownStep> = futures::stream::iter(steps)
            .map(|step| self.known(run, step, &extent, around == Some(step)))
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        Ok((known, all.saturating_sub(MAX_STEPS)))
    }

    /// Why did this step take as long as it did?
    pub async fn step_report(&self, run: &str, step: Option<i64>) -> Result<StepReport, QueryError> {
        let run = self.engine.find_run(run).await?;
        let (known, _) = self.history(&run, Some(step)).await?;
        self.engine
            .compute(move || {
                let judge = Judge::new(known.iter().map(|k| k.summary.as_ref()).collect());
                let index = known.iter().position(|k| k.summary.step == step).unwrap_or(0);
                let answers = known[index].answers.clone().unwrap_or_default();
                let mut report = step_report(&run, &judge, index, answers);
                if step.is_none() {
                    report.sentence.push(Clause { text: format!(" {NAMES_NO_STEP}"), finding: None });
                    report.text = join(&report.sentence);
                }
                report
            })
            .await
    }

    /// What stands out in a run, by cost.
    pub async fn run_findings(&self, run: &str) -> Result<RunFindings, QueryError> {
        let run = self.engine.find_run(run).await?;
        let (known, left_out) = self.history(&run, None).await?;
        self.engine
            .compute(move || {
                let judge = Judge::new(known.iter().map(|k| k.summary.as_ref()).collect());
                let mut findings = run_findings(&run, &judge, left_out);
                if judge.steps.iter().all(|step| step.step.is_none()) {
                    findings.text.push_str(&format!(" {NAMES_NO_STEP}"));
                }
                findings
            })
            .await
    }

    /// What changed from one step to another, or from one run to another.
    pub async fn difference(&self, before: &Which, after: &Which) -> Result<Difference, QueryError> {
        let around = |w: &Which| w.step.map(Some);
        let before = Which { run: self.engine.find_run(&before.run).await?, step: before.step };
        let after = Which { run: self.engine.find_run(&after.run).await?, step: after.step };
        let (old, _) = self.history(&before.run, around(&before)).await?;
        let (new, _) = self.history(&after.run, around(&after)).await?;
        self.engine
            .compute(move || {
                let (a, b) = (side(&before, &after.run, &old), side(&after, &before.run, &new));
                let mut out = difference(&a, &b);
                out.phases = phase_changes(&chosen(&before, &old), &chosen(&after, &new));
                out
            })
            .await
    }
}

fn chosen<'a>(which: &Which, known: &'a [KnownStep]) -> Vec<&'a KnownStep> {
    // Of a run: the steps that are over, unless none is.
    let of: Vec<&KnownStep> = match which.step {
        Some(step) => known.iter().filter(|k| k.summary.step == Some(step)).collect(),
        None => known.iter().filter(|k| !k.summary.running).collect(),
    };
    if of.is_empty() { known.iter().collect() } else { of }
}

fn side<'a>(which: &Which, other_run: &str, known: &'a [KnownStep]) -> Side<'a> {
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

fn phase_changes(before: &[&KnownStep], after: &[&KnownStep]) -> Vec<PhaseChange> {
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
