//! Which spans belong to a step.
//!
//! Those that name it, and what is below them in their traces: ROLL names the step on its root alone, a serving engine names
//! none. This is decided here and nowhere else, when rows are read. It cannot be decided when they arrive: a root ends, and
//! is sent, after everything below it, and by another process.
//!
//! A span that names no step follows its parents upwards. If it meets a span of this step, it belongs to it; a span of
//! another step, it does not. What is above a step (a span around the whole training) and beside it (another child of that)
//! belongs to no step. A tree of its own inside a trace of the step, and one whose parent never came, belong to the step.

use arrow::array::{Array, AsArray, BooleanArray, FixedSizeBinaryArray, RecordBatch};
use arrow::compute::{filter_record_batch, max, min};
use arrow::datatypes::Int64Type;
use arrow::error::ArrowError;
use futures::future::BoxFuture;
use hashbrown::{HashMap, HashSet};

use crate::engine::Engine;
use crate::error::{ErrorKind, QueryError};

/// What to read of a step.
pub struct StepScope<'a> {
    pub run: &'a str,
    pub step: i64,
    /// Of `spans`; `trace_id`, `span_id`, `parent_span_id`, `start_ns` and `end_ns` must be among them.
    pub columns: String,
    pub max_rows: usize,
    /// What to say of a step that has more rows.
    pub too_many: String,
    /// Does not wait for a turn among the queries: for what works on behalf of a query that has one.
    pub at_once: bool,
}

/// The spans of a step.
pub struct StepSpans {
    pub batches: Vec<RecordBatch>,
    /// An SQL condition that all of them fulfil, and perhaps others.
    pub filter: String,
}

/// `'text'`, quotes doubled.
fn text(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

/// Spans that are there at some time between `from` and `to`, as an SQL condition.
pub fn overlaps(from: i64, to: i64) -> String {
    format!("start_ns <= {to} and (end_ns >= {from} or (end_ns is null and (state = 'open' or start_ns >= {from})))")
}

impl Engine {
    pub fn spans_of_step<'a>(&'a self, scope: StepScope<'a>) -> BoxFuture<'a, Result<StepSpans, QueryError>> {
        Box::pin(self.spans_of_step_here(scope))
    }

    async fn spans_of_step_here(&self, scope: StepScope<'_>) -> Result<StepSpans, QueryError> {
        let own = format!("run_id = {} and step = {}", text(scope.run), scope.step);
        let mut batches = self.scope_rows(&scope, &scope.columns, &own).await?;
        let Some((from, to)) = extent(&batches) else { return Ok(StepSpans { batches, filter: own }) };
        let during = overlaps(from, to);
        let unnamed = format!("step is null and {during}");
        let others = self.scope_rows(&scope, &scope.columns, &unnamed).await?;
        let mut below = Below::new(&batches, &others).map_err(internal)?;
        if below.orphans() {
            // Their parents may belong to another step, and they with them.
            let elsewhere = format!("step is not null and step <> {} and {during}", scope.step);
            let rows = self.scope_rows(&scope, "trace_id, span_id", &elsewhere).await?;
            below.without(&rows).map_err(internal)?;
        }
        let named = batches.len();
        for batch in &others {
            let kept = below.of(batch).map_err(internal)?;
            if kept.num_rows() > 0 {
                batches.push(kept);
            }
        }
        let filter = if batches.len() > named { format!("({own} or {unnamed})") } else { own };
        Ok(StepSpans { batches, filter })
    }

    async fn scope_rows(
        &self,
        scope: &StepScope<'_>,
        columns: &str,
        filter: &str,
    ) -> Result<Vec<RecordBatch>, QueryError> {
        let sql = format!("select {columns} from spans where {filter}");
        let running = match scope.at_once {
            true => self.sql_at_once(&sql, scope.max_rows).await?,
            false => self.sql_rows(&sql, scope.max_rows).await?,
        };
        let (rows, truncated) = running.collect().await?;
        if truncated { Err(QueryError::new(ErrorKind::Limit, scope.too_many.clone())) } else { Ok(rows) }
    }
}

fn internal(error: ArrowError) -> QueryError {
    QueryError::new(ErrorKind::Internal, format!("cannot read the step's spans: {error}"))
}

/// From the first start to the last end; none where there are no rows.
fn extent(batches: &[RecordBatch]) -> Option<(i64, i64)> {
    let mut out: Option<(i64, i64)> = None;
    for batch in batches {
        for name in ["start_ns", "end_ns"] {
            let column = batch.column_by_name(name).and_then(|c| c.as_primitive_opt::<Int64Type>());
            if let Some((low, high)) = column.and_then(|c| Some((min(c)?, max(c)?))) {
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

    fn of(&self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let mut mask = Vec::with_capacity(batch.num_rows());
        each_id(batch, |id, _| {
            mask.push(self.verdicts.get(&id).is_some_and(|v| *v != Verdict::DoesNot));
        })?;
        filter_record_batch(batch, &BooleanArray::from(mask))
    }
}

/// Every row's id and, where it has the column, its parent.
fn each_id(batch: &RecordBatch, mut each: impl FnMut(Id, Option<[u8; 8]>)) -> Result<(), ArrowError> {
    let column = |name: &str| -> Result<&FixedSizeBinaryArray, ArrowError> {
        let column = batch.column_by_name(name).and_then(|c| c.as_fixed_size_binary_opt());
        column.ok_or_else(|| ArrowError::SchemaError(format!("spans have no {name}")))
    };
    let (traces, spans, parents) = (column("trace_id")?, column("span_id")?, column("parent_span_id").ok());
    for row in 0..batch.num_rows() {
        let id = (traces.value(row).try_into().unwrap_or_default(), spans.value(row).try_into().unwrap_or_default());
        let parent = parents.filter(|p| p.is_valid(row)).and_then(|p| p.value(row).try_into().ok());
        each(id, parent);
    }
    Ok(())
}
