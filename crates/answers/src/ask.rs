//! Asks the store for a step or a run, and keeps what was worked out ([`Kept`]). A step is read again only when rows of it came
//! or moved. So a run's findings cost one step when one step is new.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use futures::{StreamExt, TryStreamExt};
use hashbrown::{HashMap, HashSet};
use rollscope_model::read::{self, Ints, Text};
use rollscope_model::{Table, TraceId};
use rollscope_query::columns::int_column;
use rollscope_query::scope::{Details, Scope, ScopeRead, ScopeSpans, by_step, overlaps, together};
use rollscope_query::{Engine, ErrorKind, QueryError, sql_text};
use rollscope_spans::joins::SKEW_NS;
use serde::Serialize;

use super::attributes::facts_of;
use super::critical_path::{CriticalPath, Divided, critical_path, walk};
use super::difference::{Difference, PhaseChange, Shape, Side, difference};
use super::extent::Extent;
use super::findings::{Finding, Judge};
use super::kept::{AnswersJson, Kept, KnownStep, Line, Lines, Moment, OnDisk};
use super::report::{RunFindings, StepReport, answer, run_findings, step_report};
use super::samples::sample_times;
use super::sentence::{Clause, join};
use super::step::{SAMPLE_COLUMNS, SPAN_COLUMNS, StepData};
use super::summary::StepSummary;

/// Spans of one step that are read.
pub const MAX_STEP_SPANS: usize = 16_000_000;
/// Spans of a step that is worked out before anybody asks for it: it takes some 600 bytes of memory per span while that lasts.
pub const MAX_PREPARED_SPANS: i64 = 2_000_000;
/// Steps that a run is judged by: the newest, or those nearest to the one asked for.
pub const MAX_STEPS: usize = 256;
/// Steps that are read from what is kept at the same time. What must be worked out takes turns.
const READ_AT_ONCE: usize = 8;

/// Said of a run without steps.
const NAMES_NO_STEP: &str = "None of its spans names a training step; set the attribute `rl.step` on the root span of each step to compare steps.";

/// The attributes that are worth reading.
const ATTRIBUTES: Details = Details {
    columns: "trace_id, span_id, start_attrs, end_attrs",
    of: |spans| super::step::with_attributes(spans, sql_text),
    keep: facts_of,
};

/// Answers questions about an engine's steps and runs. Cheap to clone; all clones share what was worked out already.
#[derive(Clone)]
pub struct Answers {
    pub(crate) engine: Engine,
    pub(crate) kept: Arc<Kept>,
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

fn unreadable(error: ArrowError) -> QueryError {
    QueryError::new(ErrorKind::Internal, format!("cannot read the step's columns: {error}"))
}

fn all_columns() -> ScopeRead {
    ScopeRead {
        columns: SPAN_COLUMNS.join(", "),
        max_rows: MAX_STEP_SPANS,
        too_many: too_many_spans(),
        traces: None,
        at_once: true,
        details: Some(ATTRIBUTES),
    }
}

fn read_step(spans: ScopeSpans, samples: &[RecordBatch]) -> Result<StepData, ArrowError> {
    StepData::read_connected(spans.batches, spans.connected, spans.details, samples)
}

/// Everything about a step that is kept of it.
fn answer_step(step: Option<i64>, mut data: StepData, goes_on: bool) -> (StepSummary, AnswersJson, Shape) {
    // What has no end in a run that is over was cut off, and goes on no more.
    data.running &= goes_on;
    let (summary, answers, shape) = answer(step, &mut data);
    // It is large: nobody waits for it to go.
    drop(std::thread::Builder::new().spawn(move || drop(data)));
    (summary, json_map(&answers), shape)
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
    pub(crate) async fn all_rows(&self, sql: &str) -> Result<Vec<RecordBatch>, QueryError> {
        let running = self.engine.sql_at_once(sql, MAX_STEP_SPANS).await?;
        let (rows, truncated) = running.collect().await?;
        if truncated {
            return Err(QueryError::new(ErrorKind::Limit, too_many_spans()));
        }
        Ok(rows)
    }

    /// A run as it is now.
    async fn moment(&self, run: &str) -> Result<Moment, QueryError> {
        let run = self.engine.find_run(run).await?;
        let goes_on = self.goes_on(&run).await?;
        let snapshot = self.engine.snapshot();
        let extent = Extent::read(&self.kept.censuses, &snapshot, &run).await;
        Ok(Moment { run, snapshot, extent, goes_on })
    }

    /// The steps of a run, in order; `[None]` for a run whose rows name no step.
    async fn steps_of(&self, moment: &Moment) -> Result<Vec<Option<i64>>, QueryError> {
        let mut steps: Vec<Option<i64>> = match moment.extent.steps() {
            Some(steps) => steps.into_iter().map(Some).collect(),
            None => self.read_steps(&moment.run).await?,
        };
        if steps.is_empty() {
            if !moment.extent.has_rows() {
                return Err(QueryError::new(ErrorKind::NotFound, format!("there is no run `{}`", moment.run)));
            }
            steps.push(None);
        }
        Ok(steps)
    }

    async fn read_steps(&self, run: &str) -> Result<Vec<Option<i64>>, QueryError> {
        let run = sql_text(run);
        let sql = format!(
            "select distinct step from spans where run_id = {run} and step is not null union \
             select distinct step from samples where run_id = {run} and step is not null"
        );
        let mut steps: Vec<Option<i64>> = Vec::new();
        for batch in self.all_rows(&sql).await? {
            steps.extend(int_column(&batch, "step").unwrap_or_default().into_iter().filter(Option::is_some));
        }
        steps.sort_unstable();
        steps.dedup();
        Ok(steps)
    }

    /// The steps that a question is judged by, and how many are left out: those around one, or the newest.
    async fn chosen_steps(
        &self,
        moment: &Moment,
        around: Option<Option<i64>>,
    ) -> Result<(Vec<Option<i64>>, usize), QueryError> {
        let mut steps = self.steps_of(moment).await?;
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
            let run = &moment.run;
            return Err(QueryError::new(ErrorKind::NotFound, format!("run `{run}` has no {name}; {range}")));
        }
        if all > MAX_STEPS {
            let at = around.and_then(|s| steps.iter().position(|o| *o == s)).unwrap_or(all);
            let first = at.saturating_sub(MAX_STEPS / 2).min(all - MAX_STEPS);
            steps = steps[first..first + MAX_STEPS].to_vec();
        }
        Ok((steps, all.saturating_sub(MAX_STEPS)))
    }

    /// Reads the columns of a step that the answers need.
    pub async fn step_data(&self, run: &str, step: Option<i64>) -> Result<StepData, QueryError> {
        let of_step = filter(run, step);
        let spans = async {
            match step {
                None => self.spans_without_step(&SPAN_COLUMNS.join(", "), &of_step).await,
                Some(step) => self.engine.spans_of(Scope::Step { run, step }, all_columns()).await,
            }
        };
        let samples = format!("select {} from samples where {of_step}", SAMPLE_COLUMNS.join(", "));
        let (spans, samples) = futures::try_join!(spans, self.all_rows(&samples))?;
        self.engine.compute(move || read_step(spans, &samples)).await?.map_err(unreadable)
    }

    /// Works out the steps that nothing is known of, several together: most of a small step's time would go into planning queries.
    async fn work_out(&self, moment: &Moment, steps: &[Option<i64>]) -> Result<(), QueryError> {
        let missing = async |step: i64| match self.kept.get(moment, Some(step), false) {
            Some(_) => None,
            None => self.kept.read(&self.engine, moment, Some(step), false).await.is_none().then_some(step),
        };
        let steps = futures::stream::iter(steps.iter().copied().flatten());
        let missing: Vec<Option<i64>> = steps.map(missing).buffered(READ_AT_ONCE).collect().await;
        let missing: Vec<i64> = missing.into_iter().flatten().collect();
        if missing.len() < 2 {
            return Ok(());
        }
        let missing = self.sizes(moment, missing).await?;
        for steps in together(&missing).into_iter().filter(|steps| steps.len() > 1) {
            let _turn = self.kept.turns.acquire().await;
            // Somebody else may have worked them out meanwhile.
            let mut steps = steps;
            steps.retain(|step| self.kept.get(moment, Some(*step), false).is_none());
            if steps.is_empty() {
                continue;
            }
            let list: Vec<String> = steps.iter().map(i64::to_string).collect();
            let (columns, run) = (SAMPLE_COLUMNS.join(", "), sql_text(&moment.run));
            let list = list.join(", ");
            let samples = format!("select {columns}, step from samples where run_id = {run} and step in ({list})");
            let spans = self.engine.spans_of_steps(&moment.run, &steps, all_columns());
            let (spans, samples) = futures::try_join!(spans, self.all_rows(&samples))?;
            let samples = by_step(&samples, &steps).map_err(unreadable)?;
            let goes_on = moment.goes_on;
            let work = steps.iter().zip(spans).zip(samples).map(|((step, spans), samples)| {
                let step = Some(*step);
                self.engine.compute(move || Ok(answer_step(step, read_step(spans, &samples)?, goes_on)))
            });
            for worked_out in join_all(work).await {
                let (summary, answers, shape) = worked_out?.map_err(unreadable)?;
                self.kept.keep(moment, summary, shape, answers).await;
            }
        }
        Ok(())
    }

    /// About how many spans are read of each step: those that name it, and its share of the others, which may belong to it.
    async fn sizes(&self, moment: &Moment, steps: Vec<i64>) -> Result<Vec<(i64, i64)>, QueryError> {
        let list = steps.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
        let run = sql_text(&moment.run);
        let sql = format!(
            "select step, count(*) as spans from spans where run_id = {run} and step in ({list}) group by step"
        );
        let mut named: HashMap<i64, i64> = HashMap::new();
        for batch in self.all_rows(&sql).await? {
            let values = |name: &str| int_column(&batch, name).map_err(unreadable);
            let rows = values("step")?.into_iter().zip(values("spans")?);
            named.extend(rows.filter_map(|(step, spans)| Some((step?, spans?))));
        }
        let others = (moment.most_rows() - named.values().sum::<i64>()).max(0);
        let share = others / moment.extent.steps().map_or(1, |steps| steps.len().max(1)) as i64;
        Ok(steps.into_iter().map(|step| (step, named.get(&step).copied().unwrap_or(0) + share)).collect())
    }

    async fn spans_without_step(&self, columns: &str, filter: &str) -> Result<ScopeSpans, QueryError> {
        let batches = self.all_rows(&format!("select {columns} from spans where {filter}")).await?;
        let (spans, mut details) = (batches.clone(), Vec::new());
        if let Some(which) = self.engine.compute(move || (ATTRIBUTES.of)(&spans)).await? {
            let columns = ATTRIBUTES.columns;
            let rows = self.all_rows(&format!("select {columns} from spans where {filter} and ({which})")).await?;
            let facts = move || rows.iter().map(facts_of).collect::<Result<_, _>>();
            details = self.engine.compute(facts).await?.map_err(unreadable)?;
        }
        Ok(ScopeSpans { batches, details, filter: filter.to_string(), ..ScopeSpans::default() })
    }

    /// What held a trace from its beginning to its end, and when that was.
    pub async fn trace_path(&self, id: TraceId) -> Result<(i64, CriticalPath), QueryError> {
        let spans = self.engine.trace(id).await?;
        if spans.is_empty() {
            return Err(QueryError::new(ErrorKind::NotFound, format!("there is no trace {}", hex::encode(id))));
        }
        let read = self.engine.compute(move || {
            let mut data = StepData::read(&spans, &spans, &[])?;
            let divided = Divided::of(&sample_times(&mut data).requests);
            Ok((data.step_start, critical_path(&data, &walk(&data), &divided)))
        });
        read.await?.map_err(|e: ArrowError| {
            QueryError::new(ErrorKind::Internal, format!("cannot read the trace's columns: {e}"))
        })
    }

    /// A step as it is known; `full`: with its answers.
    async fn known(&self, moment: &Moment, step: Option<i64>, full: bool) -> Result<KnownStep, QueryError> {
        if let Some(known) = self.kept.get(moment, step, full) {
            return Ok(known);
        }
        if let Some(known) = self.kept.read(&self.engine, moment, step, full).await {
            return Ok(known);
        }
        let _turn = self.kept.turns.acquire().await;
        // Somebody else may have worked it out meanwhile.
        if let Some(known) = self.kept.get(moment, step, full) {
            return Ok(known);
        }
        let data = self.step_data(&moment.run, step).await?;
        let goes_on = moment.goes_on;
        let (summary, answers, shape) = self.engine.compute(move || answer_step(step, data, goes_on)).await?;
        Ok(self.kept.keep(moment, summary, shape, answers).await)
    }

    /// What is kept of each step of a run for a list of them.
    pub fn lines<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<Lines, QueryError>> {
        Box::pin(async move {
            let moment = self.moment(run).await?;
            let steps: Vec<i64> = match moment.extent.steps() {
                Some(steps) => steps.into_iter().collect(),
                None => self.read_steps(&moment.run).await?.into_iter().flatten().collect(),
            };
            Ok(self.kept.lines(moment, steps.into_iter()).await)
        })
    }

    /// Keeps the lines of steps that nothing was known of.
    pub fn keep_lines(&self, lines: Lines, fresh: Vec<Line>) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.kept.keep_lines(&lines.moment, fresh).await })
    }

    /// What is kept of a step under a name, if its rows are still the same.
    pub fn on_disk<'a>(&'a self, run: &'a str, step: i64, name: &'a str) -> BoxFuture<'a, Result<OnDisk, QueryError>> {
        Box::pin(async move { Ok(self.kept.on_disk(&self.engine, self.moment(run).await?, step, name).await) })
    }

    /// Keeps what was made of the rows of a step that lasted from one time to another. False: nothing is kept.
    pub fn keep_on_disk<'a>(
        &'a self,
        of: &'a OnDisk,
        name: &'a str,
        window: (i64, i64),
        data: Vec<u8>,
    ) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            // Whoever deleted the run meanwhile has deleted what was kept of it, too. Another one may have a name that begins so.
            let is_there = self.engine.find_run(&of.moment.run).await.is_ok_and(|run| run == of.moment.run);
            is_there && self.kept.keep_on_disk(&self.engine, of, name, window, data).await
        })
    }

    /// About how many spans are read for a step: those that name it, and those that name none and were there at its time.
    pub fn spans_of_step<'a>(&'a self, run: &'a str, step: i64) -> BoxFuture<'a, Result<i64, QueryError>> {
        Box::pin(async move {
            let one = async |sql: String| -> Result<[Option<i64>; 3], QueryError> {
                let rows = self.all_rows(&sql).await?;
                let Some(row) = rows.iter().find(|batch| batch.num_rows() > 0) else { return Ok([None; 3]) };
                let value = |name: &str| int_column(row, name).map(|values| values[0]).map_err(unreadable);
                Ok([value("n")?, value("from_ns")?, value("to_ns")?])
            };
            let select =
                "select count(*) as n, min(start_ns) as from_ns, max(coalesce(end_ns, start_ns)) as to_ns from spans";
            let [Some(named), Some(from), Some(to)] =
                one(format!("{select} where {}", filter(run, Some(step)))).await?
            else {
                return Ok(0);
            };
            let during = overlaps(from.saturating_sub(SKEW_NS), to.saturating_add(SKEW_NS));
            let [unnamed, ..] = one(format!("{select} where step is null and {during}")).await?;
            Ok(named + unnamed.unwrap_or(0))
        })
    }

    /// About how many spans were there between two times.
    pub fn spans_during(&self, from: i64, to: i64) -> BoxFuture<'_, Result<i64, QueryError>> {
        Box::pin(async move {
            let rows = self.all_rows(&format!("select count(*) as n from spans where {}", overlaps(from, to))).await?;
            let Some(row) = rows.first() else { return Ok(0) };
            Ok(int_column(row, "n").map_err(unreadable)?.first().copied().flatten().unwrap_or(0))
        })
    }

    /// The steps of the runs that got rows last, by which they are judged; the newest step of the newest run last.
    pub fn steps_of_newest_runs(&self, runs: usize) -> BoxFuture<'_, Vec<(String, i64)>> {
        Box::pin(async move {
            let snapshot = self.engine.snapshot();
            let segments = snapshot.tables.get(&Table::Spans).map_or(&[][..], |rows| &rows.segments);
            let mut newest: HashMap<&str, i64> = HashMap::new();
            for part in segments.iter().flat_map(|segment| segment.parts()).filter(|part| part.steps.is_some()) {
                let latest = newest.entry(part.run_id).or_insert(i64::MIN);
                *latest = part.max_time.max(*latest);
            }
            let mut newest: Vec<(i64, &str)> = newest.into_iter().map(|(run, at)| (at, run)).collect();
            newest.sort_unstable();
            let mut out = Vec::new();
            for (_, run) in newest.iter().skip(newest.len().saturating_sub(runs)) {
                let Ok(moment) = self.moment(run).await else { continue };
                let steps = self.chosen_steps(&moment, None).await.map_or(Vec::new(), |(steps, _)| steps);
                out.extend(steps.into_iter().flatten().map(|step| (run.to_string(), step)));
            }
            out
        })
    }

    /// Works a step out, so that whoever asks for it later finds it. Not if it is huge.
    pub fn prepare<'a>(&'a self, run: &'a str, step: i64) -> BoxFuture<'a, Result<(), QueryError>> {
        Box::pin(async move {
            let moment = self.moment(run).await?;
            if !self.kept.is_kept(&moment, Some(step)).await
                && self.spans_of_step(&moment.run, step).await? <= MAX_PREPARED_SPANS
            {
                self.known(&moment, Some(step), false).await?;
            }
            self.prepare_tokens(&moment.run, step).await
        })
    }

    /// The same for steps of a run that were written just now, small ones together; and, where these are all that it has, what is said of
    /// the last one.
    pub fn prepare_all<'a>(&'a self, run: &'a str, steps: &'a [i64]) -> BoxFuture<'a, Result<(), QueryError>> {
        Box::pin(async move {
            let moment = self.moment(run).await?;
            let is_small = moment.most_rows() <= MAX_PREPARED_SPANS;
            let mut usual = Vec::with_capacity(steps.len());
            for step in steps {
                if is_small || self.spans_of_step(run, *step).await? <= MAX_PREPARED_SPANS {
                    usual.push(Some(*step));
                }
            }
            let mut prepared = self.work_out(&moment, &usual).await;
            // What fails for one step may go well for the others.
            for step in usual.iter().flatten() {
                prepared = prepared.and(self.prepare(run, *step).await);
            }
            // Else it might be worked out from steps that are too large.
            let (all, _) = self.chosen_steps(&moment, None).await?;
            if all.iter().all(|step| usual.contains(step)) {
                self.step_report_json(run, all.last().copied().flatten()).await?;
            }
            prepared
        })
    }

    /// Those of some steps that spans or samples name. Of others, such as those of metrics, there is nothing to work out.
    pub fn with_rows<'a>(&'a self, run: &'a str, steps: Vec<i64>) -> BoxFuture<'a, Result<Vec<i64>, QueryError>> {
        Box::pin(async move {
            let moment = self.moment(run).await?;
            let named = match moment.extent.has_rows() {
                true => self.steps_of(&moment).await?.into_iter().flatten().collect(),
                false => HashSet::new(),
            };
            Ok(steps.into_iter().filter(|step| named.contains(step)).collect())
        })
    }

    /// May rows of this run still come? Not if it says that it is over, nor if it was read from files, which say nothing.
    pub async fn goes_on(&self, run: &str) -> Result<bool, QueryError> {
        let snapshot = self.engine.snapshot();
        let Some(rows) = snapshot.tables.get(&Table::Runs) else { return Ok(true) };
        // Every question asks this: without a query, as far as that is possible.
        if let Some(said) = rows.tail.iter().find_map(|batch| says_to_go_on(batch, run)) {
            return Ok(said);
        }
        let stored = rows.segments.iter().filter(|segment| segment.part(run).is_some());
        let stored: Vec<String> = stored.map(|segment| segment.path.clone()).collect();
        // Spans came and no row of the run: nobody has said anything yet.
        if stored.is_empty() {
            return Ok(true);
        }
        if let Some(said) = self.kept.goes_on(run, &stored) {
            return Ok(said);
        }
        let sql = format!("select run_id, status, ended_ns from runs where run_id = {}", sql_text(run));
        let said = self.all_rows(&sql).await?.iter().find_map(|batch| says_to_go_on(batch, run)).unwrap_or(true);
        self.kept.keep_goes_on(run, stored, said);
        Ok(said)
    }

    /// The steps, each as it is known, `full` with its answers. Boxed, so that reading and computing them is compiled here and not
    /// once more in each crate that asks.
    fn history<'a>(
        &'a self,
        moment: &'a Moment,
        steps: &'a [Option<i64>],
        full: Option<Option<i64>>,
    ) -> BoxFuture<'a, Result<Vec<KnownStep>, QueryError>> {
        Box::pin(async move {
            let changing =
                |step| full.is_some_and(|asked| asked != step).then(|| self.kept.get_changing(moment, step))?;
            let others: Vec<Option<i64>> = steps.iter().copied().filter(|step| changing(*step).is_none()).collect();
            self.work_out(moment, &others).await?;
            let known = async |step: Option<i64>| match changing(step) {
                Some(known) => Ok(known),
                None => self.known(moment, step, full == Some(step)).await,
            };
            futures::stream::iter(steps.to_vec()).map(known).buffered(READ_AT_ONCE).try_collect().await
        })
    }

    /// Why did this step take as long as it did?
    pub async fn step_report(&self, run: &str, step: Option<i64>) -> Result<StepReport, QueryError> {
        let moment = self.moment(run).await?;
        let (steps, _) = self.chosen_steps(&moment, Some(step)).await?;
        let known = self.history(&moment, &steps, Some(step)).await?;
        let mut report = self.report_of(&moment, step, known).await?;
        if step.is_some() {
            report.findings.extend(self.disagreements(&moment.run, step).await?);
        }
        Ok(report)
    }

    /// The same as JSON, from what was said before where that still holds.
    pub fn step_report_json<'a>(&'a self, run: &'a str, step: Option<i64>) -> BoxFuture<'a, Result<Bytes, QueryError>> {
        Box::pin(async move {
            let moment = self.moment(run).await?;
            let (steps, _) = self.chosen_steps(&moment, Some(step)).await?;
            let name = step.map_or("report".to_string(), |step| format!("report={step}"));
            let said = match self.kept.said(&moment, &name, Some(step), &steps).await {
                Some(said) => said,
                None => {
                    let known = self.history(&moment, &steps, Some(step)).await?;
                    let report = self.report_of(&moment, step, known.clone()).await?;
                    self.kept.keep_said(&moment, &name, &known, json(&report)?).await
                }
            };
            let about_tokens = if step.is_some() { self.disagreements(&moment.run, step).await? } else { Vec::new() };
            with_disagreements(said, about_tokens)
        })
    }

    async fn report_of(
        &self,
        moment: &Moment,
        step: Option<i64>,
        known: Vec<KnownStep>,
    ) -> Result<StepReport, QueryError> {
        let run = moment.run.clone();
        let work = self.engine.compute(move || {
            let judge = Judge::new(known.iter().map(|k| k.summary.as_ref()).collect());
            let index = known.iter().position(|k| k.summary.step == step).unwrap_or(0);
            let answers = known[index].answers.clone().unwrap_or_default();
            let mut report = step_report(&run, &judge, index, answers);
            if step.is_none() {
                report.sentence.push(Clause { text: format!(" {NAMES_NO_STEP}"), finding: None });
                report.text = join(&report.sentence);
            }
            report
        });
        work.await
    }

    /// What stands out in a run, by cost.
    pub async fn run_findings(&self, run: &str) -> Result<RunFindings, QueryError> {
        let moment = self.moment(run).await?;
        let (steps, left_out) = self.chosen_steps(&moment, None).await?;
        let known = self.history(&moment, &steps, None).await?;
        let mut found = self.findings_of(&moment, left_out, known).await?;
        found.findings.extend(self.disagreements(&moment.run, None).await?);
        Ok(found)
    }

    /// The same as JSON, from what was said before where that still holds.
    pub fn run_findings_json<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<Bytes, QueryError>> {
        Box::pin(async move {
            let moment = self.moment(run).await?;
            let (steps, left_out) = self.chosen_steps(&moment, None).await?;
            let said = match self.kept.said(&moment, "findings", None, &steps).await {
                Some(said) => said,
                None => {
                    let known = self.history(&moment, &steps, None).await?;
                    let findings = self.findings_of(&moment, left_out, known.clone()).await?;
                    self.kept.keep_said(&moment, "findings", &known, json(&findings)?).await
                }
            };
            with_disagreements(said, self.disagreements(&moment.run, None).await?)
        })
    }

    async fn findings_of(
        &self,
        moment: &Moment,
        left_out: usize,
        known: Vec<KnownStep>,
    ) -> Result<RunFindings, QueryError> {
        let run = moment.run.clone();
        let work = self.engine.compute(move || {
            let judge = Judge::new(known.iter().map(|k| k.summary.as_ref()).collect());
            let mut findings = run_findings(&run, &judge, left_out);
            if judge.steps.iter().all(|step| step.step.is_none()) {
                findings.text.push_str(&format!(" {NAMES_NO_STEP}"));
            }
            findings
        });
        work.await
    }

    /// What changed from one step to another, or from one run to another.
    pub async fn difference(&self, before: &Which, after: &Which) -> Result<Difference, QueryError> {
        let (before, old) = self.side_of(before).await?;
        let (after, new) = self.side_of(after).await?;
        self.engine
            .compute(move || {
                let (a, b) = (side(&before, &after.run, &old), side(&after, &before.run, &new));
                let mut out = difference(&a, &b);
                out.phases = phase_changes(&chosen(&before, &old), &chosen(&after, &new));
                out
            })
            .await
    }

    async fn side_of(&self, which: &Which) -> Result<(Which, Vec<KnownStep>), QueryError> {
        let moment = self.moment(&which.run).await?;
        let (steps, _) = self.chosen_steps(&moment, which.step.map(Some)).await?;
        let known = self.history(&moment, &steps, None).await?;
        Ok((Which { run: moment.run, step: which.step }, known))
    }
}

/// What the row of a run says, if it is here.
fn says_to_go_on(runs: &RecordBatch, run: &str) -> Option<bool> {
    let (ids, statuses) = (read::column::<Text>(runs, "run_id").ok()?, read::column::<Text>(runs, "status").ok()?);
    let ends: Ints = read::column(runs, "ended_ns").ok()?;
    let row = (0..runs.num_rows()).find(|row| ids.get(*row) == Some(run))?;
    Some(statuses.get(row) == Some("running") && ends.get(row).is_none())
}

/// Adds what stands out among the tokens to what was said of times: the two change with different rows.
fn with_disagreements(said: Bytes, found: Vec<Finding>) -> Result<Bytes, QueryError> {
    if found.is_empty() {
        return Ok(said);
    }
    let unreadable = |e: serde_json::Error| QueryError::new(ErrorKind::Internal, e.to_string());
    let mut answer: serde_json::Value = serde_json::from_slice(&said).map_err(unreadable)?;
    for (n, finding) in found.iter().enumerate() {
        let steps = answer["steps"].as_array_mut().into_iter().flatten();
        for line in steps.filter(|line| line["step"].as_i64() == finding.step) {
            line["findings"] = serde_json::json!(line["findings"].as_u64().unwrap_or(0) + 1);
        }
        let mut place = 0;
        if let Some(findings) = answer["findings"].as_array_mut() {
            place = findings.len();
            findings.push(serde_json::to_value(finding).map_err(unreadable)?);
        }
        if n > 0 {
            continue;
        }
        let at = finding
            .step
            .filter(|_| answer.get("steps").is_some())
            .map_or(String::new(), |step| format!("in step {step}, "));
        let clause =
            Clause { text: format!(" Trainer and engine disagree: {at}{}.", finding.text), finding: Some(place) };
        let text = format!("{}{}", answer["text"].as_str().unwrap_or(""), clause.text);
        answer["text"] = text.into();
        if let Some(sentence) = answer["sentence"].as_array_mut() {
            sentence.push(serde_json::to_value(clause).map_err(unreadable)?);
        }
    }
    Ok(Bytes::from(json(&answer)?))
}

fn json(answer: &impl Serialize) -> Result<Vec<u8>, QueryError> {
    serde_json::to_vec(answer).map_err(|e| QueryError::new(ErrorKind::Internal, e.to_string()))
}

fn json_map(answer: &impl Serialize) -> AnswersJson {
    match serde_json::to_value(answer) {
        Ok(serde_json::Value::Object(map)) => map,
        _ => unreachable!("answers are an object"),
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
