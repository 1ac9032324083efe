//! Which spans belong to a question: a step, a window of time, or a trace. Answers, timeline and exports ask here, so all of them mean
//! the same spans.
//!
//! **A step** has the spans that name it, and what is below them in their traces: ROLL names the step on its root alone, a
//! serving engine names none. This is decided here and nowhere else, when rows are read. It cannot be decided when they
//! arrive: a root ends, and is sent, after everything below it, and by another process.
//!
//! A span that names no step follows its parents upwards. If it meets a span of this step, it belongs to it; a span of
//! another step, it does not. What is above a step (a span around the whole training) and beside it (another child of that)
//! belongs to no step. A tree of its own inside a trace of the step, and one whose parent never came, belong to the step.
//!
//! **A trace** has its spans and, where they are wanted, those of traces that served its requests. A sample's span knows the
//! serving engine's request id (`sglang_request_id`), the engine's spans know it too (`rid`); both are `spans.request_id`.
//! Where the request carried no `traceparent`, the engine's spans are a trace of their own.
//!
//! **A window of time** has the spans of the run that are there at some time in it, and those of other runs in their traces.

use arrow::array::{Array, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::error::ArrowError;
use futures::future::BoxFuture;
use hashbrown::{HashMap, HashSet};
use rollscope_model::TraceId;
use rollscope_model::read::{Ids, Ints, column};

use crate::engine::Engine;
use crate::error::{ErrorKind, QueryError};
use crate::sql_text::{sql_text, sql_trace_ids};

pub type Traces = HashSet<TraceId>;

/// Traces that are read with the one whose requests they served, at most.
pub const MAX_JOINED: usize = 1000;

/// Traces that a query lists by name, at most.
const MAX_LISTED: usize = 200;

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
    /// Of `spans`, separated by a comma and a space; `trace_id`, `span_id`, `parent_span_id`, `start_ns` and `end_ns` must be
    /// among them.
    pub columns: String,
    pub max_rows: usize,
    /// What to say of a scope that has more rows.
    pub too_many: String,
    /// Only the spans of these traces.
    pub traces: Option<Traces>,
    /// Does not wait for a turn among the queries: for what works on behalf of a query that has one.
    pub at_once: bool,
}

/// The spans of a scope.
pub struct ScopeSpans {
    pub batches: Vec<RecordBatch>,
    /// An SQL condition that all of them fulfil, and perhaps others.
    pub filter: String,
}

/// Tells which spans belong to a step, for whoever reads them piece by piece.
pub struct StepMembers {
    /// An SQL condition that all of them fulfil, and perhaps others: those [`StepMembers::keep`] leaves out.
    pub filter: String,
    below: Option<Below>,
}

impl StepMembers {
    /// The rows of a batch that belong to the step. It needs the columns `trace_id`, `span_id` and `step`.
    pub fn keep(&self, batch: &RecordBatch) -> Result<RecordBatch, QueryError> {
        match &self.below {
            None => Ok(batch.clone()),
            Some(below) => below.of(batch).map_err(internal),
        }
    }
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
    pub fn members_of_step<'a>(&'a self, run: &'a str, step: i64) -> BoxFuture<'a, Result<StepMembers, QueryError>> {
        let read = ScopeRead {
            columns: "trace_id, span_id, parent_span_id, step, start_ns, end_ns".into(),
            max_rows: usize::MAX,
            too_many: String::new(),
            traces: None,
            at_once: false,
        };
        Box::pin(async move { Ok(self.read_step(run, step, &read).await?.2) })
    }

    async fn spans_of_step(&self, run: &str, step: i64, read: &ScopeRead) -> Result<ScopeSpans, QueryError> {
        let (mut batches, others, members) = self.read_step(run, step, read).await?;
        let named = batches.len();
        for batch in &others {
            let kept = members.keep(batch)?;
            if kept.num_rows() > 0 {
                batches.push(kept);
            }
        }
        let filter = if batches.len() > named { members.filter } else { own(run, step) };
        Ok(ScopeSpans { batches, filter })
    }

    /// The spans that name the step, those that may belong to it, and which of these do.
    async fn read_step(
        &self,
        run: &str,
        step: i64,
        read: &ScopeRead,
    ) -> Result<(Vec<RecordBatch>, Vec<RecordBatch>, StepMembers), QueryError> {
        let own = own(run, step);
        let batches = self.scope_rows(read, &read.columns, &own).await?;
        let extent = match (&read.traces, batches.is_empty()) {
            (Some(_), false) => self.extent_of(read, &own).await?,
            _ => extent(&batches),
        };
        let Some((from, to)) = extent else {
            return Ok((batches, Vec::new(), StepMembers { filter: own, below: None }));
        };
        let during = overlaps(from, to);
        let unnamed = format!("step is null and {during}");
        let others = self.scope_rows(read, &read.columns, &unnamed).await?;
        let mut below = Below::new(&batches, &others).map_err(internal)?;
        if below.orphans() {
            // Their parents may belong to another step, and they with them.
            let elsewhere = format!("step is not null and step <> {step} and {during}");
            let rows = self.scope_rows(read, "trace_id, span_id", &elsewhere).await?;
            below.without(&rows).map_err(internal)?;
        }
        let members = StepMembers { filter: format!("({own} or {unnamed})"), below: Some(below) };
        Ok((batches, others, members))
    }

    /// The run's spans in a window of time, and those of other runs in the same traces, such as a serving engine's.
    async fn spans_of_window(&self, run: &str, from: i64, to: i64, read: &ScopeRead) -> Result<ScopeSpans, QueryError> {
        let (run, filter) = (sql_text(run), overlaps(from, to));
        let mut batches = self.scope_rows(read, &read.columns, &format!("run_id = {run} and {filter}")).await?;
        let traces = traces(&batches).map_err(internal)?;
        if !traces.is_empty() {
            for batch in self.scope_rows(read, &read.columns, &format!("run_id <> {run} and {filter}")).await? {
                let kept = of_traces(&batch, &traces).map_err(internal)?;
                if kept.num_rows() > 0 {
                    batches.push(kept);
                }
            }
        }
        Ok(ScopeSpans { batches, filter })
    }

    async fn spans_of_trace(&self, trace: TraceId, joined: bool, read: &ScopeRead) -> Result<ScopeSpans, QueryError> {
        let columns: Vec<&str> = read.columns.split(", ").collect();
        let served = async { if joined { self.traces_that_served(&trace).await } else { Ok(Traces::new()) } };
        let (mut batches, served) = futures::try_join!(self.trace_columns(trace, &columns), served)?;
        for other in &served {
            batches.extend(self.trace_columns(*other, &columns).await?);
        }
        if batches.iter().map(RecordBatch::num_rows).sum::<usize>() > read.max_rows {
            return Err(QueryError::new(ErrorKind::Limit, read.too_many.clone()));
        }
        let filter = format!("trace_id in ({})", sql_trace_ids(std::iter::once(&trace).chain(&served)));
        Ok(ScopeSpans { batches, filter })
    }

    /// Traces whose first spans carry a request id that a span of this trace carries.
    async fn traces_that_served(&self, trace: &TraceId) -> Result<Traces, QueryError> {
        let own = sql_trace_ids([trace]);
        let sql = format!(
            "select distinct s.trace_id as trace_id from spans s \
             join (select distinct request_id from spans where trace_id = {own} and request_id is not null) r \
               on s.request_id = r.request_id \
             where s.trace_id <> {own} and s.parent_span_id is null limit {MAX_JOINED}"
        );
        let (rows, _) = self.sql_rows(&sql, MAX_JOINED).await?.collect().await?;
        traces(&rows).map_err(internal)
    }

    async fn scope_rows(&self, read: &ScopeRead, columns: &str, filter: &str) -> Result<Vec<RecordBatch>, QueryError> {
        let Some(wanted) = &read.traces else {
            return self.rows_of(read, format!("select {columns} from spans where {filter}")).await;
        };
        // The store skips what has none of a few traces; many are cheaper told apart here.
        let listed = match wanted.len() {
            0 => return Ok(Vec::new()),
            1..=MAX_LISTED => format!(" and trace_id in ({})", sql_trace_ids(wanted)),
            _ => String::new(),
        };
        let rows = self.rows_of(read, format!("select {columns} from spans where ({filter}){listed}")).await?;
        rows.iter().map(|batch| of_traces(batch, wanted).map_err(internal)).collect()
    }

    async fn rows_of(&self, read: &ScopeRead, sql: String) -> Result<Vec<RecordBatch>, QueryError> {
        let running = match read.at_once {
            true => self.sql_at_once(&sql, read.max_rows).await?,
            false => self.sql_rows(&sql, read.max_rows).await?,
        };
        let (rows, truncated) = running.collect().await?;
        if truncated { Err(QueryError::new(ErrorKind::Limit, read.too_many.clone())) } else { Ok(rows) }
    }

    /// From the first start to the last end of all spans that fulfil a condition, whatever traces are wanted.
    async fn extent_of(&self, read: &ScopeRead, filter: &str) -> Result<Option<(i64, i64)>, QueryError> {
        let sql = format!(
            "select min(start_ns) as start_ns, max(coalesce(end_ns, start_ns)) as end_ns from spans where {filter}"
        );
        Ok(extent(&self.rows_of(read, sql).await?))
    }
}

/// Spans that name the step, as an SQL condition.
fn own(run: &str, step: i64) -> String {
    format!("run_id = {} and step = {step}", sql_text(run))
}

/// The rows of these traces.
fn of_traces(batch: &RecordBatch, traces: &Traces) -> Result<RecordBatch, ArrowError> {
    let mut mask = Vec::with_capacity(batch.num_rows());
    each_id(batch, |id, _| mask.push(traces.contains(&id.0)))?;
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
    Belongs,
    DoesNot,
    /// Hangs under this span, which is not among the rows.
    Orphan(Id),
}

/// Which of the spans that name no step belong to this one.
struct Below {
    verdicts: HashMap<Id, Verdict>,
}

impl Below {
    fn new(own: &[RecordBatch], others: &[RecordBatch]) -> Result<Below, ArrowError> {
        let mut named = HashMap::new();
        for batch in own {
            each_id(batch, |id, parent| {
                named.insert(id, parent);
            })?;
        }
        let traces: HashSet<[u8; 16]> = named.keys().map(|id| id.0).collect();
        let mut unnamed: HashMap<Id, Option<[u8; 8]>> = HashMap::new();
        for batch in others {
            each_id(batch, |id, parent| {
                if traces.contains(&id.0) {
                    unnamed.insert(id, parent);
                }
            })?;
        }
        let mut above: HashSet<Id> = HashSet::new();
        for (id, parent) in &named {
            let mut at = parent.map(|parent| (id.0, parent));
            while let Some(up) = at.filter(|up| unnamed.contains_key(up) && above.insert(*up)) {
                at = unnamed[&up].map(|parent| (up.0, parent));
            }
        }
        let mut verdicts: HashMap<Id, Verdict> = HashMap::with_capacity(unnamed.len());
        let mut path = Vec::new();
        for start in unnamed.keys() {
            let mut at = *start;
            let verdict = loop {
                if let Some(known) = verdicts.get(&at) {
                    break *known;
                }
                if above.contains(&at) {
                    break Verdict::DoesNot;
                }
                path.push(at);
                // A circle ends here: it leads to nothing above.
                verdicts.insert(at, Verdict::Belongs);
                let Some(parent) = unnamed[&at] else { break Verdict::Belongs };
                let up = (at.0, parent);
                if named.contains_key(&up) {
                    break Verdict::Belongs;
                }
                if !unnamed.contains_key(&up) {
                    break Verdict::Orphan(up);
                }
                at = up;
            };
            verdicts.extend(path.drain(..).map(|id| (id, verdict)));
        }
        verdicts.extend(above.into_iter().map(|id| (id, Verdict::DoesNot)));
        Ok(Below { verdicts })
    }

    fn orphans(&self) -> bool {
        self.verdicts.values().any(|v| matches!(v, Verdict::Orphan(_)))
    }

    /// Orphans whose parent is among these rows of other steps belong there.
    fn without(&mut self, elsewhere: &[RecordBatch]) -> Result<(), ArrowError> {
        let mut ids = HashSet::new();
        for batch in elsewhere {
            each_id(batch, |id, _| {
                ids.insert(id);
            })?;
        }
        for verdict in self.verdicts.values_mut() {
            if matches!(verdict, Verdict::Orphan(parent) if ids.contains(parent)) {
                *verdict = Verdict::DoesNot;
            }
        }
        Ok(())
    }

    /// Rows that name a step belong: whoever asks has chosen it.
    fn of(&self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let steps = batch.column_by_name("step").filter(|steps| steps.null_count() < steps.len());
        let mut mask = Vec::with_capacity(batch.num_rows());
        each_id(batch, |id, _| {
            let named = steps.is_some_and(|steps| steps.is_valid(mask.len()));
            mask.push(named || self.verdicts.get(&id).is_some_and(|v| *v != Verdict::DoesNot));
        })?;
        filter_record_batch(batch, &BooleanArray::from(mask))
    }
}

/// Every row's id and, where it has the column, its parent.
fn each_id(batch: &RecordBatch, mut each: impl FnMut(Id, Option<[u8; 8]>)) -> Result<(), ArrowError> {
    let (traces, spans): (Ids<16>, Ids<8>) = (column(batch, "trace_id")?, column(batch, "span_id")?);
    let parents = column::<Ids<8>>(batch, "parent_span_id").ok();
    for row in 0..batch.num_rows() {
        let id = (traces.get(row).unwrap_or_default(), spans.get(row).unwrap_or_default());
        each(id, parents.as_ref().and_then(|parents| parents.get(row)));
    }
    Ok(())
}
