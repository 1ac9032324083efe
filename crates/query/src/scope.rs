//! Which spans belong to a question: a step, a window of time, or a trace. Answers, timeline and exports ask here, so all of them mean
//! the same spans.
//!
//! **A step** has the spans that name it, what is below them in their traces, and what served them: ROLL names the step on its
//! root alone; a gateway, a serving engine, a tool or a judge names none. This is decided here and nowhere else, when rows are
//! read. It cannot be decided when they arrive: a root ends, and is sent, after everything below it, and by another process.
//!
//! A span that names no step follows its parents upwards. If it meets a span of this step, it belongs to it; a span of
//! another step, it does not. What is above a step (a span around the whole training) and beside it (another child of that)
//! belongs to no step. A tree of its own inside a trace of the step, and one whose parent never came, belong to the step.
//!
//! A trace in which nothing names a step belongs to the step if it is connected with it ([`Connections`]): its spans link to spans
//! of the step, or these to them, or both name the same request. A sample's span knows the serving engine's request id
//! (`sglang_request_id`), the engine's spans know it too (`rid`); both are `spans.request_id`. This goes on from there, from a
//! sample over a gateway to an engine, and from the decode side of a request to the prefill side, which names the same room
//! (`spans.bootstrap_room`). A trace that lasts longer than the step on both sides is around it, and does not belong.
//!
//! **A trace** has its spans and, where they are wanted, those of traces that served its requests.
//!
//! **A window of time** has the spans of the run that are there at some time in it, those of other runs in their traces, and
//! what is connected with them.

use std::sync::atomic::Ordering::Relaxed;

use arrow::array::{Array, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::error::ArrowError;
use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt};
use hashbrown::HashSet;
use rollscope_model::TraceId;
use rollscope_model::names::state;
use rollscope_model::read::{Ids, Ints, Text, column};
use rollscope_spans::joins::{Connections, SKEW_NS};
use rollscope_spans::{Forest, NONE, Texts};

use crate::engine::Engine;
use crate::error::{ErrorKind, QueryError};
use crate::running::Running;
use crate::sql_text::{sql_text, sql_trace_ids};

pub type Traces = HashSet<TraceId>;

/// Traces that are read with the one whose requests they served, at most.
pub const MAX_JOINED: usize = 1000;

/// Batches whose details are worked on at the same time.
const AT_ONCE: usize = 4;

/// Traces that a query lists by name, at most.
const MAX_LISTED: usize = 200;

/// From a sample over a gateway and a router to an engine, and to the other side of its request.
const MAX_SERVED: usize = 4;

/// The columns by which it is decided what belongs.
const DECIDING: [&str; 11] = [
    "trace_id",
    "span_id",
    "parent_span_id",
    "step",
    "start_ns",
    "end_ns",
    "state",
    "sample_id",
    "request_id",
    "bootstrap_room",
    "links",
];

/// What a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    Step {
        run: &'a str,
        step: i64,
    },
    Window {
        run: &'a str,
        from: i64,
        to: i64,
    },
    /// `joined`: with the traces that served its requests, [`MAX_JOINED`] at most.
    Trace {
        trace: TraceId,
        joined: bool,
    },
}

/// How to read the spans of a scope.
pub struct ScopeRead {
    /// Of `spans`, separated by a comma and a space. The rows have others, too.
    pub columns: String,
    pub max_rows: usize,
    /// What to say of a scope that has more rows.
    pub too_many: String,
    /// Of a step: only the spans of these traces, and of those that are shown with them.
    pub traces: Option<Traces>,
    /// Does not wait for a turn among the queries: for what works on behalf of a query that has one.
    pub at_once: bool,
    /// Of a step: also read some spans' larger columns, while it is decided what belongs.
    pub details: Option<Details>,
}

/// More columns of some spans.
#[derive(Clone, Copy)]
pub struct Details {
    /// As [`ScopeRead::columns`].
    pub columns: &'static str,
    /// Which spans, as an SQL condition, from the columns of all that may belong. `None`: of none.
    pub of: fn(&[RecordBatch]) -> Option<String>,
    /// What is kept of their rows, which may be much larger: batch by batch, while others are read. It has the column `trace_id`.
    pub keep: fn(&RecordBatch) -> Result<RecordBatch, ArrowError>,
}

/// The spans of a scope.
#[derive(Default)]
pub struct ScopeSpans {
    pub batches: Vec<RecordBatch>,
    /// All of them, as they stand here, if it was needed to decide and nothing was left out.
    pub connected: Option<(Forest, Connections)>,
    /// What [`ScopeRead::details`] asks for, also of spans that do not belong.
    pub details: Vec<RecordBatch>,
    /// An SQL condition that all of them fulfil, and perhaps others.
    pub filter: String,
    /// Spans count as the step's whose parent may yet come and belong to another one.
    pub may_leave: bool,
}

/// Tells which spans belong to a step or a run, for whoever reads them piece by piece.
pub struct Members {
    /// An SQL condition that all of them fulfil, and perhaps others: those [`Members::keep`] leaves out.
    pub filter: String,
    /// Of a whole run: its own spans belong. Else those that name the step.
    run: Option<String>,
    /// The others: they name no step.
    unnamed: HashSet<Id>,
}

impl Members {
    /// The rows of a batch that belong. It needs the columns `trace_id`, `span_id`, and `step` or, of a whole run, `run_id`.
    pub fn keep(&self, batch: &RecordBatch) -> Result<RecordBatch, QueryError> {
        let named: Vec<bool> = match (&self.run, batch.column_by_name("step")) {
            (Some(run), _) => {
                let runs: Text = column(batch, "run_id").map_err(internal)?;
                (0..batch.num_rows()).map(|row| runs.get(row) == Some(run)).collect()
            }
            // Rows that name a step belong: whoever asks has chosen it.
            (None, Some(steps)) => (0..batch.num_rows()).map(|row| steps.is_valid(row)).collect(),
            (None, None) => vec![false; batch.num_rows()],
        };
        let mut mask = Vec::with_capacity(batch.num_rows());
        let each = each_id(batch, |id| mask.push(named[mask.len()] || self.unnamed.contains(&id)));
        each.and_then(|()| filter_record_batch(batch, &BooleanArray::from(mask))).map_err(internal)
    }
}

/// Steps that are read together, and about how many of their rows.
const MAX_TOGETHER: usize = 32;
const ROWS_TOGETHER: i64 = 500_000;

/// Divides steps, each with the number of spans that name it, into those to be read together.
pub fn together(steps: &[(i64, i64)]) -> Vec<Vec<i64>> {
    let (mut out, mut rows): (Vec<Vec<i64>>, i64) = (Vec::new(), 0);
    for (step, spans) in steps {
        match out.last_mut() {
            Some(last) if last.len() < MAX_TOGETHER && rows + spans <= ROWS_TOGETHER => last.push(*step),
            _ => {
                out.push(vec![*step]);
                rows = 0;
            }
        }
        rows += spans;
    }
    out
}

/// Spans that are there at some time between `from` and `to`, as an SQL condition.
pub fn overlaps(from: i64, to: i64) -> String {
    format!("start_ns <= {to} and (end_ns >= {from} or (end_ns is null and (state = 'open' or start_ns >= {from})))")
}

impl Engine {
    pub fn spans_of<'a>(&'a self, scope: Scope<'a>, read: ScopeRead) -> BoxFuture<'a, Result<ScopeSpans, QueryError>> {
        Box::pin(async move {
            match scope {
                Scope::Step { run, step } => self.spans_of_step(run, step, &read).await,
                Scope::Window { run, from, to } => self.spans_of_window(run, from, to, &read).await,
                Scope::Trace { trace, joined } => self.spans_of_trace(trace, joined, &read).await,
            }
        })
    }

    /// Which spans belong to a step, without their other columns: for those who have no room for all of it.
    pub fn members_of_step<'a>(&'a self, run: &'a str, step: i64) -> BoxFuture<'a, Result<Members, QueryError>> {
        Box::pin(async move { Ok(self.read_step(run, step, &only_deciding()).await?.members()) })
    }

    /// Which spans belong to a run: its own, and those of others that belong to its steps, such as a serving engine's.
    pub fn members_of_run<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<Members, QueryError>> {
        Box::pin(async move {
            let of_run = format!("run_id = {}", sql_text(run));
            let sizes = format!(
                "select step, count(*) as spans from spans where {of_run} and step is not null group by step order by step"
            );
            let mut steps = Vec::new();
            for batch in self.rows_of(&only_deciding(), sizes).await? {
                let (step, spans): (Ints, Ints) =
                    (column(&batch, "step").map_err(internal)?, column(&batch, "spans").map_err(internal)?);
                steps.extend((0..batch.num_rows()).map(|row| (step.at(row), spans.at(row))));
            }
            let (mut unnamed, mut filter) = (HashSet::new(), of_run.clone());
            for steps in together(&steps) {
                for rows in self.read_steps(run, &steps, &only_deciding()).await? {
                    unnamed.extend(rows.members().unnamed);
                }
            }
            if !unnamed.is_empty() {
                filter = format!("({of_run} or step is null)");
            }
            Ok(Members { filter, run: Some(run.to_string()), unnamed })
        })
    }

    async fn spans_of_step(&self, run: &str, step: i64, read: &ScopeRead) -> Result<ScopeSpans, QueryError> {
        let Some(wanted) = &read.traces else {
            return self.read_step(run, step, read).await?.spans(own(run, &[step])).map_err(internal);
        };
        if wanted.is_empty() {
            return Ok(ScopeSpans { filter: "false".into(), ..ScopeSpans::default() });
        }
        // What belongs is a matter of the whole step.
        let deciding =
            ScopeRead { columns: String::new(), traces: None, too_many: read.too_many.clone(), details: None, ..*read };
        let mut rows = self.read_step(run, step, &deciding).await?;
        let shown = rows.shown_with(wanted).map_err(internal)?;
        let members = rows.members();
        // The store skips what has none of a few traces; many are cheaper told apart here.
        let listed = match shown.len() {
            1..=MAX_LISTED => format!(" and trace_id in ({})", sql_trace_ids(&shown)),
            _ => String::new(),
        };
        let filter = format!("{}{listed}", members.filter);
        let mut batches = Vec::new();
        for batch in self.rows_of(read, format!("select {} from spans where {filter}", columns(read))).await? {
            let kept = members.keep(&of_traces(&batch, &shown).map_err(internal)?)?;
            if kept.num_rows() > 0 {
                batches.push(kept);
            }
        }
        Ok(ScopeSpans { batches, filter, ..ScopeSpans::default() })
    }

    /// The spans of several steps of a run, each in its place, read together: a list of steps is about many small ones.
    pub fn spans_of_steps<'a>(
        &'a self,
        run: &'a str,
        steps: &'a [i64],
        read: ScopeRead,
    ) -> BoxFuture<'a, Result<Vec<ScopeSpans>, QueryError>> {
        Box::pin(async move {
            let rows = self.read_steps(run, steps, &read).await?;
            let each = steps.iter().zip(rows);
            each.map(|(step, rows)| rows.spans(own(run, &[*step])).map_err(internal)).collect()
        })
    }

    async fn read_step(&self, run: &str, step: i64, read: &ScopeRead) -> Result<StepRows, QueryError> {
        Ok(self.read_steps(run, &[step], read).await?.swap_remove(0))
    }

    /// Of each step: the spans that name it, those that may belong to it, and which of these do.
    async fn read_steps(&self, run: &str, steps: &[i64], read: &ScopeRead) -> Result<Vec<StepRows>, QueryError> {
        let own = own(run, steps);
        let select = format!("select {} from spans where", columns(read));
        let named = self.rows_of(read, format!("{select} {own}")).await?;
        let Some(times) = extent(&named) else {
            let nothing = || StepRows { filter: own.clone(), ..StepRows::default() };
            return Ok(steps.iter().map(|_| nothing()).collect());
        };
        let during = |(from, to): (i64, i64)| (from.saturating_sub(SKEW_NS), to.saturating_add(SKEW_NS));
        let (from, to) = during(times);
        let overlapping = overlaps(from, to);
        let unnamed = format!("step is null and {overlapping}");
        let others = self.rows_of(read, format!("{select} {unnamed}")).await?;
        let filter = format!("({own} or {unnamed})");
        let by_step = by_step(&named, steps).map_err(internal)?;
        let details = self.details_of(read, &filter, named.into_iter().chain(others.iter().cloned()).collect());
        let decided = async {
            let mut out = Vec::with_capacity(steps.len());
            for own in &by_step {
                let times = extent(own).unwrap_or(times);
                let others = there_during(&others, during(times)).map_err(internal)?;
                let rows = StepRows { own: own.clone(), others, filter: filter.clone(), ..StepRows::default() };
                out.push(match rows.others.is_empty() {
                    true => rows,
                    false => self.compute(move || rows.decide(times)).await?.map_err(internal)?,
                });
            }
            if out.iter().any(StepRows::may_be_elsewhere) {
                // What names another step takes what is below it along, and its whole trace.
                let elsewhere = format!(
                    "select trace_id, span_id, start_ns, end_ns, state from spans \
                     where step is not null and not ({own}) and {overlapping}"
                );
                let elsewhere = self.rows_of(read, elsewhere).await?;
                for at in (0..out.len()).filter(|at| out[*at].may_be_elsewhere()).collect::<Vec<_>>() {
                    let times = during(extent(&by_step[at]).unwrap_or(times));
                    let beside =
                        by_step.iter().enumerate().filter(|(other, _)| *other != at).flat_map(|(_, rows)| rows);
                    let all: Vec<RecordBatch> = elsewhere.iter().chain(beside).cloned().collect();
                    let all = there_during(&all, times).map_err(internal)?;
                    let rows = std::mem::take(&mut out[at]);
                    out[at] = self.compute(move || rows.without(&all)).await?.map_err(internal)?;
                }
            }
            Ok(out)
        };
        let (mut out, details) = futures::try_join!(decided, details)?;
        if let [rows] = out.as_mut_slice() {
            rows.details = details;
            return Ok(out);
        }
        let divided = self.compute(move || {
            for rows in out.iter_mut().filter(|_| !details.is_empty()) {
                let mut of_step = traces(&rows.own)?;
                of_step.extend(traces(&rows.others)?);
                let of_step = details.iter().map(|batch| of_traces(batch, &of_step));
                rows.details = of_step.collect::<Result<_, _>>()?;
            }
            Ok(out)
        });
        divided.await?.map_err(internal)
    }

    async fn details_of(
        &self,
        read: &ScopeRead,
        filter: &str,
        spans: Vec<RecordBatch>,
    ) -> Result<Vec<RecordBatch>, QueryError> {
        let Some(Details { columns, of, keep }) = read.details else { return Ok(Vec::new()) };
        let Some(which) = self.compute(move || of(&spans)).await? else { return Ok(Vec::new()) };
        let sql = format!("select {columns} from spans where {filter} and ({which})");
        let Running { stream, truncated, .. } = self.begin(read, &sql).await?;
        let kept = stream.map(async |batch| {
            let batch = batch?;
            self.compute(move || keep(&batch)).await?.map_err(internal)
        });
        let kept = kept.buffered(AT_ONCE).try_collect().await?;
        if truncated.load(Relaxed) { Err(too_many(read)) } else { Ok(kept) }
    }

    /// The run's spans in a window of time, and those of other runs that belong to them, such as a serving engine's.
    async fn spans_of_window(&self, run: &str, from: i64, to: i64, read: &ScopeRead) -> Result<ScopeSpans, QueryError> {
        let (run, filter) = (sql_text(run), overlaps(from, to));
        let select = format!("select {} from spans where", columns(read));
        let mut batches = self.rows_of(read, format!("{select} run_id = {run} and {filter}")).await?;
        if !batches.is_empty() {
            let others = self.rows_of(read, format!("{select} run_id <> {run} and {filter}")).await?;
            let own = batches.clone();
            batches.extend(self.compute(move || connected(&own, &others)).await?.map_err(internal)?);
        }
        Ok(ScopeSpans { batches, filter, ..ScopeSpans::default() })
    }

    async fn spans_of_trace(&self, trace: TraceId, joined: bool, read: &ScopeRead) -> Result<ScopeSpans, QueryError> {
        let columns: Vec<&str> = read.columns.split(", ").collect();
        let served = async { if joined { self.traces_that_served(&trace).await } else { Ok(Traces::new()) } };
        let own = self.trace_columns(trace, &columns, read.max_rows);
        let (own, served) = futures::try_join!(own, served)?;
        let mut batches = own.ok_or_else(|| too_many(read))?;
        let mut left = read.max_rows.saturating_sub(rows(&batches));
        for other in &served {
            // The trace is worth showing without some of those that served it.
            let Some(more) = self.trace_columns(*other, &columns, left).await? else { continue };
            left = left.saturating_sub(rows(&more));
            batches.extend(more);
        }
        let filter = format!("trace_id in ({})", sql_trace_ids(std::iter::once(&trace).chain(&served)));
        Ok(ScopeSpans { batches, filter, ..ScopeSpans::default() })
    }

    /// Traces whose first spans carry a request id or a room that a span of this trace carries, and traces that served these.
    async fn traces_that_served(&self, trace: &TraceId) -> Result<Traces, QueryError> {
        let (mut served, mut last) = (Traces::new(), Traces::from_iter([*trace]));
        for _ in 0..MAX_SERVED {
            let by = sql_trace_ids(&last);
            let sharing = |name: &str| {
                format!(
                    "select distinct s.trace_id as trace_id from spans s \
                     join (select {name}, start_ns, coalesce(end_ns, start_ns) as end_ns from spans \
                           where trace_id in ({by}) and {name} is not null) r on s.{name} = r.{name} \
                     where s.trace_id not in ({by}) and s.parent_span_id is null \
                       and s.start_ns <= r.end_ns + {SKEW_NS} and coalesce(s.end_ns, s.start_ns) >= r.start_ns - {SKEW_NS} \
                     limit {MAX_JOINED}"
                )
            };
            let rooms = format!("select 1 from spans where trace_id in ({by}) and bootstrap_room is not null limit 1");
            let (mut rows, _) = self.sql_rows(&sharing("request_id"), MAX_JOINED).await?.collect().await?;
            // Few requests have rooms, and all spans are looked at for them.
            if !self.sql_rows(&rooms, 1).await?.collect().await?.0.is_empty() {
                rows.extend(self.sql_rows(&sharing("bootstrap_room"), MAX_JOINED).await?.collect().await?.0);
            }
            last = traces(&rows).map_err(internal)?;
            last.retain(|found| found != trace && !served.contains(found));
            if last.is_empty() || served.len() + last.len() > MAX_JOINED {
                break;
            }
            served.extend(last.iter().copied());
        }
        Ok(served)
    }

    async fn rows_of(&self, read: &ScopeRead, sql: String) -> Result<Vec<RecordBatch>, QueryError> {
        let (rows, truncated) = self.begin(read, &sql).await?.collect().await?;
        if truncated { Err(too_many(read)) } else { Ok(rows) }
    }

    async fn begin(&self, read: &ScopeRead, sql: &str) -> Result<Running, QueryError> {
        match read.at_once {
            true => self.sql_at_once(sql, read.max_rows).await,
            false => self.sql_rows(sql, read.max_rows).await,
        }
    }
}

fn too_many(read: &ScopeRead) -> QueryError {
    QueryError::new(ErrorKind::Limit, read.too_many.clone())
}

/// Reads nothing but what decides.
fn only_deciding() -> ScopeRead {
    ScopeRead {
        columns: String::new(),
        max_rows: usize::MAX,
        too_many: String::new(),
        traces: None,
        at_once: false,
        details: None,
    }
}

/// The columns that were asked for, and those that decide.
fn columns(read: &ScopeRead) -> String {
    let asked: Vec<&str> = read.columns.split(", ").filter(|name| !name.is_empty()).collect();
    let added = DECIDING.into_iter().filter(|name| !asked.contains(name));
    asked.iter().copied().chain(added).collect::<Vec<_>>().join(", ")
}

/// Spans that name one of the steps, as an SQL condition.
fn own(run: &str, steps: &[i64]) -> String {
    let run = sql_text(run);
    match steps {
        [step] => format!("run_id = {run} and step = {step}"),
        _ => {
            let list: Vec<String> = steps.iter().map(i64::to_string).collect();
            format!("run_id = {run} and step in ({})", list.join(", "))
        }
    }
}

/// The rows of each step. They have the column `step`.
pub fn by_step(batches: &[RecordBatch], steps: &[i64]) -> Result<Vec<Vec<RecordBatch>>, ArrowError> {
    if let [_] = steps {
        return Ok(vec![batches.to_vec()]);
    }
    let mut named = Vec::with_capacity(rows(batches));
    for batch in batches {
        named.extend(column::<Ints>(batch, "step")?.iter());
    }
    steps.iter().map(|step| filtered(batches, |row| named[row] == Some(*step))).collect()
}

/// Of rows that were read, those that [`overlaps`] is true of.
fn there_during(batches: &[RecordBatch], (from, to): (i64, i64)) -> Result<Vec<RecordBatch>, ArrowError> {
    let mut there = Vec::with_capacity(rows(batches));
    for batch in batches {
        let (starts, ends): (Ints, Ints) = (column(batch, "start_ns")?, column(batch, "end_ns")?);
        let states: Text = column(batch, "state")?;
        there.extend((0..batch.num_rows()).map(|row| {
            let start = starts.get(row).unwrap_or_default();
            let lasts = match ends.get(row) {
                Some(end) => end >= from,
                None => start >= from || states.get(row) == Some(state::OPEN),
            };
            start <= to && lasts
        }));
    }
    filtered(batches, |row| there[row])
}

/// The rows of these traces.
fn of_traces(batch: &RecordBatch, traces: &Traces) -> Result<RecordBatch, ArrowError> {
    let mut mask = Vec::with_capacity(batch.num_rows());
    each_id(batch, |id| mask.push(traces.contains(&id.0)))?;
    filter_record_batch(batch, &BooleanArray::from(mask))
}

/// The traces of these rows.
pub fn traces(batches: &[RecordBatch]) -> Result<Traces, ArrowError> {
    let mut traces = Traces::new();
    for batch in batches {
        let ids: Ids<16> = column(batch, "trace_id")?;
        traces.extend((0..batch.num_rows()).filter_map(|row| ids.get(row)));
    }
    Ok(traces)
}

fn internal(error: ArrowError) -> QueryError {
    QueryError::new(ErrorKind::Internal, format!("cannot read the step's spans: {error}"))
}

/// From the first start to the last end; none where there are no rows.
fn extent(batches: &[RecordBatch]) -> Option<(i64, i64)> {
    let mut out: Option<(i64, i64)> = None;
    for batch in batches {
        for name in ["start_ns", "end_ns"] {
            let times = column::<Ints>(batch, name).ok();
            let ends = times.and_then(|times| Some((times.iter().flatten().min()?, times.iter().flatten().max()?)));
            if let Some((low, high)) = ends {
                out = Some(out.map_or((low, high), |(from, to)| (from.min(low), to.max(high))));
            }
        }
    }
    out
}

type Id = ([u8; 16], [u8; 8]);

#[derive(Clone, Copy, PartialEq)]
enum Verdict {
    Unknown,
    Belongs,
    DoesNot,
    /// Hangs under this row, whose parent is not among the rows.
    Orphan(u32),
}

/// The spans that name a step, and those that name none and may belong to it. Rows are numbered through both.
#[derive(Default)]
struct StepRows {
    own: Vec<RecordBatch>,
    others: Vec<RecordBatch>,
    /// Of several steps that are read together, those in its traces.
    details: Vec<RecordBatch>,
    /// See [`Members::filter`].
    filter: String,
    forest: Forest,
    connections: Connections,
    /// Of the rows that name no step, in traces of the step.
    verdicts: Vec<Verdict>,
    /// By trace: one of its spans names the step.
    of_step: Vec<bool>,
    /// By trace: it lasts longer than the step on both sides.
    around: Vec<bool>,
    /// By trace: it is the step's, or connected with it.
    joined: Vec<bool>,
}

impl StepRows {
    fn named(&self) -> usize {
        self.forest.len() - self.verdicts.len()
    }

    fn decide(mut self, (from, to): (i64, i64)) -> Result<StepRows, ArrowError> {
        let all: Vec<RecordBatch> = self.own.iter().chain(&self.others).cloned().collect();
        self.forest = Forest::read_as_given(&all)?;
        self.connections = Connections::read(&self.forest, &all)?;
        let forest = &self.forest;
        self.verdicts = vec![Verdict::Unknown; rows(&self.others)];
        let named = self.named();
        self.of_step = vec![false; forest.traces.len()];
        forest.trace[..named].iter().for_each(|trace| self.of_step[*trace as usize] = true);
        let mut times = vec![(i64::MAX, i64::MIN); forest.traces.len()];
        for row in named..forest.len() {
            let (start, end) = &mut times[forest.trace[row] as usize];
            (*start, *end) = ((*start).min(forest.start[row]), (*end).max(forest.end[row]));
        }
        self.around = times.into_iter().map(|(start, end)| start < from && end > to).collect();
        self.judge();
        self.join(&Traces::new());
        Ok(self)
    }

    /// Which of the spans that name no step belong to this one by their parents.
    fn judge(&mut self) {
        let (forest, named) = (&self.forest, self.named());
        let place = |row: u32| (row as usize).checked_sub(named);
        let mut path = Vec::new();
        for row in 0..named {
            let mut at = forest.parent[row];
            let verdict = loop {
                let Some(above) = (at != NONE).then(|| place(at)) else { break Verdict::DoesNot };
                // Between two spans of the step is inside it.
                let Some(above) = above else { break Verdict::Belongs };
                if self.verdicts[above] != Verdict::Unknown {
                    break self.verdicts[above];
                }
                path.push(above);
                at = forest.parent[at as usize];
            };
            path.drain(..).for_each(|above| self.verdicts[above] = verdict);
        }
        for row in named..forest.len() {
            if !self.of_step[forest.trace[row] as usize] {
                continue;
            }
            let mut at = row as u32;
            let verdict = loop {
                let Some(unnamed) = place(at) else { break Verdict::Belongs };
                if self.verdicts[unnamed] != Verdict::Unknown {
                    break self.verdicts[unnamed];
                }
                path.push(unnamed);
                match forest.parent[at as usize] {
                    NONE if forest.is_lost(at as usize) => break Verdict::Orphan(at),
                    NONE => break Verdict::Belongs,
                    parent => at = parent,
                }
            };
            path.drain(..).for_each(|unnamed| self.verdicts[unnamed] = verdict);
        }
    }

    fn join(&mut self, elsewhere: &Traces) {
        let (forest, around) = (&self.forest, &self.around);
        self.joined = self.of_step.clone();
        let may = |trace: usize| !around[trace] && !elsewhere.contains(&forest.traces[trace]);
        self.connections.reach(forest, &mut self.joined, may);
    }

    fn may_be_elsewhere(&self) -> bool {
        self.joined != self.of_step || self.verdicts.iter().any(|verdict| matches!(verdict, Verdict::Orphan(_)))
    }

    /// Orphans whose parent is among these rows of other steps belong there, and so do traces that one of these rows is in.
    fn without(mut self, elsewhere: &[RecordBatch]) -> Result<StepRows, ArrowError> {
        let mut ids = HashSet::new();
        for batch in elsewhere {
            each_id(batch, |id| {
                ids.insert(id);
            })?;
        }
        let forest = &self.forest;
        for verdict in &mut self.verdicts {
            let Verdict::Orphan(row) = *verdict else { continue };
            let row = row as usize;
            if ids.contains(&(forest.traces[forest.trace[row] as usize], forest.parent_id[row])) {
                *verdict = Verdict::DoesNot;
            }
        }
        self.join(&ids.into_iter().map(|id| id.0).collect());
        Ok(self)
    }

    /// Of a row that names no step.
    fn belongs(&self, unnamed: usize) -> bool {
        match self.verdicts[unnamed] {
            Verdict::Belongs | Verdict::Orphan(_) => true,
            Verdict::DoesNot => false,
            Verdict::Unknown => self.joined[self.forest.trace[self.named() + unnamed] as usize],
        }
    }

    /// What belongs to the step. `named` is the condition of those that name it.
    fn spans(mut self, named: String) -> Result<ScopeSpans, ArrowError> {
        let own = self.own.len();
        let may_leave = self.verdicts.iter().any(|verdict| matches!(verdict, Verdict::Orphan(_)));
        if (0..self.verdicts.len()).all(|unnamed| self.belongs(unnamed)) {
            self.own.append(&mut self.others);
        } else {
            self.own.extend(self.belonging()?);
            self.forest = Forest::default();
        }
        Ok(ScopeSpans {
            filter: if self.own.len() > own { self.filter } else { named },
            connected: (!self.forest.is_empty()).then_some((self.forest, self.connections)),
            batches: self.own,
            details: self.details,
            may_leave,
        })
    }

    /// The rows that name no step and belong to it.
    fn belonging(&self) -> Result<Vec<RecordBatch>, ArrowError> {
        let mut belongs = (0..self.verdicts.len()).map(|unnamed| self.belongs(unnamed));
        filtered(&self.others, |_| belongs.next().unwrap_or(false))
    }

    fn members(self) -> Members {
        let (forest, named) = (&self.forest, self.named());
        let id = |row: usize| (forest.traces[forest.trace[row] as usize], forest.span[row]);
        let unnamed =
            (0..self.verdicts.len()).filter(|unnamed| self.belongs(*unnamed)).map(|unnamed| id(named + unnamed));
        Members { unnamed: unnamed.collect(), filter: self.filter, run: None }
    }

    /// These traces, what belongs to the step through them, and what hangs under them or above.
    fn shown_with(&mut self, wanted: &Traces) -> Result<Traces, ArrowError> {
        if self.verdicts.is_empty() {
            return Ok(wanted.clone());
        }
        let all: Vec<RecordBatch> = self.own.iter().chain(&self.others).cloned().collect();
        let samples = self.forest.texts(&all, "sample_id", &mut Texts::default())?;
        let mut shown: Vec<bool> = self.forest.traces.iter().map(|trace| wanted.contains(trace)).collect();
        self.connections.reach(&self.forest, &mut shown, |trace| self.joined[trace] && !self.of_step[trace]);
        let attached = self.connections.attach(&mut self.forest, &samples);
        let trace_of = |row: u32| self.forest.trace[row as usize] as usize;
        let pairs: Vec<_> =
            attached.iter().map(|row| (trace_of(*row), trace_of(self.forest.parent[*row as usize]))).collect();
        loop {
            let before = shown.iter().filter(|shown| **shown).count();
            for (a, b) in &pairs {
                let either = shown[*a] || shown[*b];
                (shown[*a], shown[*b]) = (either, either);
            }
            if shown.iter().filter(|shown| **shown).count() == before {
                break;
            }
        }
        let found = self.forest.traces.iter().zip(shown).filter(|(_, shown)| *shown).map(|(trace, _)| *trace);
        Ok(found.chain(wanted.iter().copied()).collect())
    }
}

/// Of the rows of other runs: those in the run's own traces, and those in traces that are connected with them and name no step.
fn connected(own: &[RecordBatch], others: &[RecordBatch]) -> Result<Vec<RecordBatch>, ArrowError> {
    let all: Vec<RecordBatch> = own.iter().chain(others).cloned().collect();
    let forest = Forest::read_as_given(&all)?;
    let connections = Connections::read(&forest, &all)?;
    let named = rows(own);
    let mut reached = vec![false; forest.traces.len()];
    forest.trace[..named].iter().for_each(|trace| reached[*trace as usize] = true);
    let mut of_a_step = vec![false; forest.traces.len()];
    let mut row = named;
    for batch in others {
        for step in column::<Ints>(batch, "step")?.iter() {
            of_a_step[forest.trace[row] as usize] |= step.is_some();
            row += 1;
        }
    }
    connections.reach(&forest, &mut reached, |trace| !of_a_step[trace]);
    filtered(others, |row| reached[forest.trace[named + row] as usize])
}

fn rows(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

/// The rows that `keep` holds for, which it gets by their number through all batches, in order.
fn filtered(batches: &[RecordBatch], mut keep: impl FnMut(usize) -> bool) -> Result<Vec<RecordBatch>, ArrowError> {
    let (mut out, mut from) = (Vec::new(), 0);
    for batch in batches {
        let mask: BooleanArray = (from..from + batch.num_rows()).map(|row| Some(keep(row))).collect();
        from += batch.num_rows();
        match mask.true_count() {
            0 => {}
            all if all == batch.num_rows() => out.push(batch.clone()),
            _ => out.push(filter_record_batch(batch, &mask)?),
        }
    }
    Ok(out)
}

fn each_id(batch: &RecordBatch, mut each: impl FnMut(Id)) -> Result<(), ArrowError> {
    let (traces, spans): (Ids<16>, Ids<8>) = (column(batch, "trace_id")?, column(batch, "span_id")?);
    (0..batch.num_rows())
        .for_each(|row| each((traces.get(row).unwrap_or_default(), spans.get(row).unwrap_or_default())));
    Ok(())
}
