//! Works an expression out over all steps at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::UNIX_EPOCH;

use promql_parser::parser::{AtModifier, Expr, MatrixSelector, Offset, SubqueryExpr, VectorSelector};

use super::source::{Stored, Wanted};
use super::window::{Resets, Window, find_resets};
use super::{ABSENT, Labels, Row, aggregate, binary, functions, is_absent};
use crate::error::{ErrorKind, QueryError};

/// Deepest nesting of an expression.
const MAX_DEPTH: usize = 100;
/// Series times steps from which on the work is shared out over several threads.
const PARALLEL: usize = 100_000;
/// Values that an evaluation goes through before it looks again whether it is still wanted.
const VALUES_PER_LOOK: usize = 1 << 16;
/// Longer durations mean the same as this one (35,000 years). Sums of them, one for each level of nesting, do not overflow.
const FOREVER_MS: i64 = 1 << 50;

/// In words, for the user.
pub type Failed = String;

/// Steps of an evaluation, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    pub start: i64,
    pub end: i64,
    pub step: i64,
}

impl Steps {
    pub fn count(&self) -> usize {
        ((self.end - self.start) / self.step.max(1)) as usize + 1
    }

    pub fn at(&self, i: usize) -> i64 {
        self.start + i as i64 * self.step
    }

    pub fn iter(self) -> impl Iterator<Item = i64> {
        (0..self.count()).map(move |i| self.at(i))
    }
}

pub enum Value {
    Scalar(Vec<f64>),
    Vector(Vec<Row>),
    Text(String),
}

/// Everything that was read for a query, by selector.
pub type Data = HashMap<String, Arc<Vec<Arc<Stored>>>>;

#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub steps: Steps,
    /// Of the whole query: what `@ start()` and `@ end()` mean.
    pub query: Steps,
    pub lookback: i64,
    /// Step of subqueries that give none.
    pub default_step: i64,
    pub data: &'a Data,
    /// Steps that one window of a subquery may have.
    pub max_steps: usize,
    pub room: &'a Room,
    why_stopped: &'a WhyStopped<'a>,
    pub depth: usize,
}

/// Why an evaluation must end, once it must: it was cancelled, its time is over, or its client has gone. To abort its task does
/// not help, because an evaluation never waits.
pub type WhyStopped<'a> = dyn Fn() -> Option<QueryError> + Sync + 'a;

fn goes_on() -> Option<QueryError> {
    None
}

/// Counts what is gone through, and looks from time to time whether the answer is still wanted.
pub struct Watch<'a> {
    cx: &'a Context<'a>,
    since_look: usize,
}

impl Watch<'_> {
    /// This many values more are gone through. Fails as [`Context::still_wanted`] does.
    pub fn pass(&mut self, values: usize) -> Result<(), Failed> {
        self.since_look += values;
        if self.since_look < VALUES_PER_LOOK {
            return Ok(());
        }
        self.since_look = 0;
        self.cx.still_wanted()
    }
}

/// How many samples and values a query may still hold. Code that creates new ones takes from this first. Nothing is given
/// back, so that the bound holds even if everything is kept until the end.
pub struct Room(AtomicUsize);

impl Room {
    pub fn new(values: usize) -> Self {
        Room(AtomicUsize::new(values))
    }

    pub fn left(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// Takes room for this many series of this many steps.
    pub fn take(&self, series: usize, steps: usize) -> Result<(), Failed> {
        let values = series.saturating_mul(steps);
        match self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(values)) {
            Ok(_) => Ok(()),
            Err(_) => Err(format!(
                "query processing would load too many samples into memory: {series} series of {steps} steps exceed \
                 the limit promql_max_samples; narrow the query (a label, a shorter time, a longer step) or raise \
                 the limit"
            )),
        }
    }
}

/// Points of a result.
pub type Points = Vec<(i64, f64)>;

/// What a query answers.
#[derive(Debug)]
pub enum PromAnswer {
    Scalar(Points),
    Text(String),
    /// Only the steps where there is a value.
    Vector(Vec<(Labels, Points)>),
    /// Samples as stored: the answer to a bare range selector.
    Matrix(Vec<(Labels, Points)>),
}

fn millis(d: std::time::Duration) -> i64 {
    i64::try_from(d.as_millis()).unwrap_or(FOREVER_MS).min(FOREVER_MS)
}

fn offset_ms(offset: &Option<Offset>) -> i64 {
    match offset {
        None => 0,
        Some(Offset::Pos(d)) => millis(*d),
        Some(Offset::Neg(d)) => -millis(*d),
    }
}

impl<'a> Context<'a> {
    /// Of a whole query.
    pub fn new(steps: Steps, lookback: i64, max_steps: usize, data: &'a Data, room: &'a Room) -> Self {
        let why_stopped = &goes_on;
        Context { steps, query: steps, lookback, default_step: 60_000, data, max_steps, room, why_stopped, depth: 0 }
    }

    /// The same, as long as this gives no error.
    pub fn until(self, why_stopped: &'a WhyStopped<'a>) -> Self {
        Context { why_stopped, ..self }
    }

    /// Fails once nobody waits for the answer any more. Code that goes through series asks this for each of them.
    pub fn still_wanted(&self) -> Result<(), Failed> {
        match (self.why_stopped)() {
            Some(error) => Err(error.message),
            None => Ok(()),
        }
    }

    /// For code that goes through many values of one series, or through many series at one step.
    pub fn watch(&self) -> Watch<'_> {
        Watch { cx: self, since_look: 0 }
    }

    /// The fixed time of an `@`, if there is one.
    fn fixed(&self, at: &Option<AtModifier>) -> Option<i64> {
        match at {
            None => None,
            Some(AtModifier::Start) => Some(self.query.start),
            Some(AtModifier::End) => Some(self.query.end),
            Some(AtModifier::At(time)) => Some(match time.duration_since(UNIX_EPOCH) {
                Ok(after) => millis(after),
                Err(before) => -millis(before.duration()),
            }),
        }
    }

    /// The first and the last of [`Self::times`].
    fn ends(&self, at: &Option<AtModifier>, offset: &Option<Offset>) -> (i64, i64) {
        let back = offset_ms(offset);
        match self.fixed(at) {
            Some(time) => (time - back, time - back),
            None => (self.steps.start - back, self.steps.at(self.steps.count() - 1) - back),
        }
    }

    /// The times at which a selector is evaluated, one per step.
    fn times(&self, at: &Option<AtModifier>, offset: &Option<Offset>) -> Vec<i64> {
        let back = offset_ms(offset);
        match self.fixed(at) {
            Some(time) => vec![time - back; self.steps.count()],
            None => self.steps.iter().map(|t| t - back).collect(),
        }
    }

    fn stored(&self, selector: &VectorSelector) -> &[Arc<Stored>] {
        &self.data[&Wanted::key(selector)]
    }

    /// The steps at which a subquery is computed. Its window is bounded as the range of a query is; how much all its windows
    /// hold together is a question of [`Room`].
    fn subquery_steps(&self, sub: &SubqueryExpr) -> Result<Steps, Failed> {
        let step = sub.step.map_or(self.default_step, millis).max(1);
        let range = millis(sub.range);
        if range / step > self.max_steps as i64 {
            return Err(format!(
                "exceeded maximum resolution of {} points per timeseries (promql_max_steps): the subquery {sub} has {} \
                 steps per window. Shorten its range or lengthen its step",
                self.max_steps,
                range / step
            ));
        }
        let (first, last) = self.ends(&sub.at, &sub.offset);
        // Steps of a subquery are multiples of its step, after the start of the window.
        let from = first - range;
        let start = from.div_euclid(step) * step + step;
        Ok(Steps { start, end: last.max(start), step })
    }
}

/// What must be read for an expression. Refuses what would be too much before anything is read or computed.
pub fn wanted(expr: &Expr, cx: &Context, out: &mut HashMap<String, Wanted>) -> Result<(), Failed> {
    if cx.depth > MAX_DEPTH {
        return Err(format!("the expression is nested deeper than {MAX_DEPTH}"));
    }
    let cx = &Context { depth: cx.depth + 1, ..*cx };
    // Whatever an expression is, it has a value per step; what selectors find comes on top.
    cx.room.take(1, cx.steps.count())?;
    let mut add = |vs: &VectorSelector, back: i64| {
        let (first, to) = cx.ends(&vs.at, &vs.offset);
        let from = first - back;
        let entry = out.entry(Wanted::key(vs)).or_insert_with(|| Wanted { matchers: Wanted::matchers(vs), from, to });
        entry.from = entry.from.min(from);
        entry.to = entry.to.max(to);
    };
    match expr {
        Expr::VectorSelector(vs) => add(vs, cx.lookback),
        Expr::MatrixSelector(ms) => add(&ms.vs, millis(ms.range)),
        Expr::Paren(e) => wanted(&e.expr, cx, out)?,
        Expr::Unary(e) => wanted(&e.expr, cx, out)?,
        Expr::Aggregate(e) => {
            wanted(&e.expr, cx, out)?;
            if let Some(param) = &e.param {
                wanted(param, cx, out)?;
            }
        }
        Expr::Binary(e) => {
            wanted(&e.lhs, cx, out)?;
            wanted(&e.rhs, cx, out)?;
        }
        Expr::Call(call) => {
            functions::check(call.func.name)?;
            for arg in &call.args.args {
                wanted(arg, cx, out)?;
            }
        }
        Expr::Subquery(sub) => wanted(&sub.expr, &Context { steps: cx.subquery_steps(sub)?, ..*cx }, out)?,
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) => {}
        Expr::Extension(_) => return Err("extensions are not supported".into()),
    }
    Ok(())
}

pub fn eval(expr: &Expr, cx: &Context) -> Result<Value, Failed> {
    let n = cx.steps.count();
    let value = match expr {
        Expr::NumberLiteral(number) => Value::Scalar(vec![number.val; n]),
        Expr::StringLiteral(text) => Value::Text(text.val.clone()),
        Expr::Paren(e) => eval(&e.expr, cx)?,
        Expr::Unary(e) => match eval(&e.expr, cx)? {
            Value::Scalar(values) => Value::Scalar(values.into_iter().map(|v| -v).collect()),
            Value::Vector(rows) => Value::Vector(functions::map_rows(rows, cx, |v| -v)?),
            Value::Text(_) => return Err("a string cannot be negated".into()),
        },
        Expr::VectorSelector(vs) => Value::Vector(instant(vs, cx, false)?),
        Expr::MatrixSelector(ms) => {
            return Err(format!("{ms} is a range vector; wrap it in a function such as rate(...)"));
        }
        Expr::Subquery(sub) => {
            return Err(format!("{sub} is a range vector; wrap it in a function such as max_over_time(...)"));
        }
        Expr::Aggregate(e) => Value::Vector(aggregate::eval(e, cx)?),
        Expr::Binary(e) => binary::eval(e, cx)?,
        Expr::Call(call) => functions::call(call, cx)?,
        Expr::Extension(_) => return Err("extensions are not supported".into()),
    };
    cx.still_wanted()?;
    Ok(value)
}

/// An instant vector at every step: the last sample within the lookback, unless it is stale. With `times`, the sample's
/// time in seconds instead of its value.
pub fn instant(vs: &VectorSelector, cx: &Context, times: bool) -> Result<Vec<Row>, Failed> {
    let at = cx.times(&vs.at, &vs.offset);
    let rows = over_series(cx, cx.stored(vs), |series| {
        let mut next = 0;
        let values = at
            .iter()
            .map(|t| {
                // Times rise from step to step, or stay.
                while next < series.times.len() && series.times[next] <= *t {
                    next += 1;
                }
                match next.checked_sub(1) {
                    Some(i) if series.times[i] > t - cx.lookback && !is_absent(series.values[i]) => match times {
                        true => series.times[i] as f64 / 1000.0,
                        false => series.values[i],
                    },
                    _ => ABSENT,
                }
            })
            .collect();
        Ok(Row { labels: series.labels.clone(), values })
    });
    Ok(rows?.into_iter().filter(|r| r.values.iter().any(|v| !is_absent(*v))).collect())
}

/// Does the same for every series, on several threads if there is much to do.
fn over_series<T: Sync>(
    cx: &Context,
    series: &[T],
    work: impl Fn(&T) -> Result<Row, Failed> + Sync,
) -> Result<Vec<Row>, Failed> {
    let steps = cx.steps.count();
    cx.room.take(series.len(), steps)?;
    let work_on = |part: &[T]| -> Result<Vec<Row>, Failed> {
        let mut rows = Vec::with_capacity(part.len());
        for one in part {
            cx.still_wanted()?;
            rows.push(work(one)?);
        }
        Ok(rows)
    };
    if series.len() < 2 || series.len() * steps < PARALLEL {
        return work_on(series);
    }
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(8);
    let share = series.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let work_on = &work_on;
        let parts: Vec<_> = series.chunks(share).map(|part| scope.spawn(move || work_on(part))).collect();
        let mut rows = Vec::with_capacity(series.len());
        for part in parts {
            rows.extend(part.join().expect("work does not panic")?);
        }
        Ok(rows)
    })
}

/// A range argument of a function: from the store, or made by a subquery.
pub fn windows(
    expr: &Expr,
    cx: &Context,
    keep_name: bool,
    work: impl Fn(&Window, usize) -> Option<f64> + Sync,
) -> Result<Vec<Row>, Failed> {
    let labels_of = |labels: &Labels| if keep_name { labels.clone() } else { labels.without_name() };
    match expr {
        Expr::Paren(e) => windows(&e.expr, cx, keep_name, work),
        Expr::MatrixSelector(MatrixSelector { vs, range }) => {
            let at = cx.times(&vs.at, &vs.offset);
            let rows = over_series(cx, cx.stored(vs), |series| {
                let (times, values) = series.clean();
                let values = slide(cx, times, values, series.resets(), &at, millis(*range), &work)?;
                Ok(Row { labels: labels_of(&series.labels), values })
            });
            functions::merge(rows?)
        }
        Expr::Subquery(sub) => {
            let inner = Context { steps: cx.subquery_steps(sub)?, ..*cx };
            let rows = match eval(&sub.expr, &inner)? {
                Value::Vector(rows) => rows,
                Value::Scalar(values) => vec![Row { labels: Labels::default(), values }],
                Value::Text(_) => return Err("a string has no range".into()),
            };
            cx.room.take(rows.len(), cx.steps.count())?;
            let at = cx.times(&sub.at, &sub.offset);
            let slid = rows.into_iter().map(|row| -> Result<Row, Failed> {
                cx.still_wanted()?;
                let points = row.values.iter().enumerate().filter(|(_, v)| !is_absent(**v));
                let (times, values): (Vec<i64>, Vec<f64>) = points.map(|(i, v)| (inner.steps.at(i), *v)).unzip();
                let values = slide(cx, &times, &values, &find_resets(&values), &at, millis(sub.range), &work)?;
                Ok(Row { labels: labels_of(&row.labels), values })
            });
            functions::merge(slid.collect::<Result<_, _>>()?)
        }
        other => Err(format!("{other} is not a range vector; add a range such as [5m] to a selector")),
    }
}

/// One function over the windows of one series.
fn slide(
    cx: &Context,
    times: &[i64],
    values: &[f64],
    resets: &[usize],
    at: &[i64],
    range: i64,
    work: &impl Fn(&Window, usize) -> Option<f64>,
) -> Result<Vec<f64>, Failed> {
    let (mut from, mut to) = (0, 0);
    let mut watch = cx.watch();
    let mut out = Vec::with_capacity(at.len());
    for (step, t) in at.iter().enumerate() {
        while to < times.len() && times[to] <= *t {
            to += 1;
        }
        while from < to && times[from] <= t - range {
            from += 1;
        }
        // Windows may be long and overlap, so that each sample is gone through again and again.
        watch.pass(to - from + 1)?;
        if from == to {
            out.push(ABSENT);
            continue;
        }
        let window = Window {
            times: &times[from..to],
            values: &values[from..to],
            resets: Resets { all: resets, offset: from },
            start: t - range,
            end: *t,
        };
        out.push(work(&window, step).unwrap_or(ABSENT));
    }
    Ok(out)
}

/// The answer of a whole query.
pub fn answer(expr: &Expr, cx: &Context) -> Result<PromAnswer, QueryError> {
    let refused = |text: String| (cx.why_stopped)().unwrap_or_else(|| QueryError::new(ErrorKind::Plan, text));
    answer_in_words(expr, cx).map_err(refused)
}

fn answer_in_words(expr: &Expr, cx: &Context) -> Result<PromAnswer, Failed> {
    cx.still_wanted()?;
    let mut bare = expr;
    while let Expr::Paren(e) = bare {
        bare = &e.expr;
    }
    if let Expr::MatrixSelector(ms) = bare
        && cx.steps.count() == 1
    {
        let (end, _) = cx.ends(&ms.vs.at, &ms.vs.offset);
        let start = end - millis(ms.range);
        let rows = cx.stored(&ms.vs).iter().map(|series| {
            let (times, values) = series.clean();
            let inside = times.iter().zip(values).filter(|(t, _)| **t > start && **t <= end);
            (series.labels.clone(), inside.map(|(t, v)| (*t, *v)).collect::<Points>())
        });
        return Ok(PromAnswer::Matrix(rows.filter(|(_, points)| !points.is_empty()).collect()));
    }
    if let Expr::Subquery(sub) = bare
        && cx.steps.count() == 1
    {
        let inner = Context { steps: cx.subquery_steps(sub)?, ..*cx };
        let (end, _) = cx.ends(&sub.at, &sub.offset);
        let Value::Vector(rows) = eval(&sub.expr, &inner)? else {
            return Err(format!("{sub}: a subquery needs an instant vector"));
        };
        let rows = rows.into_iter().map(|row| {
            let there = row.values.into_iter().enumerate().filter(|(_, v)| !is_absent(*v));
            let inside = there.map(|(i, v)| (inner.steps.at(i), v)).filter(|(t, _)| *t <= end);
            (row.labels, inside.collect::<Points>())
        });
        return Ok(PromAnswer::Matrix(rows.filter(|(_, points)| !points.is_empty()).collect()));
    }
    let points = |values: Vec<f64>| -> Points {
        values.into_iter().enumerate().filter(|(_, v)| !is_absent(*v)).map(|(i, v)| (cx.steps.at(i), v)).collect()
    };
    Ok(match eval(expr, cx)? {
        Value::Text(text) => PromAnswer::Text(text),
        Value::Scalar(values) => PromAnswer::Scalar(points(values)),
        Value::Vector(rows) => {
            let rows = functions::merge(rows)?;
            let rows = rows.into_iter().map(|row| (row.labels, points(row.values)));
            PromAnswer::Vector(rows.filter(|(_, points)| !points.is_empty()).collect())
        }
    })
}
