//! Metrics of a run, for charts: names with their last and extreme values, and points thinned to what a screen can show. A point
//! represents an interval of the axis and has the smallest, the largest and the last value in it, so that no spike is hidden.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use arrow::array::RecordBatch;
use rollscope_query::Engine;
use serde::Serialize;
use utoipa::ToSchema;

use crate::params::Params;
use crate::problem::Problem;
use crate::query::{collect, float_column, int_column, sql_text, text_column};

/// The most metrics in one request.
const MAX_NAMES: usize = 500;
const MAX_POINTS: i64 = 20_000;
/// NaN sorts above, so that a comparison leaves it out too.
const FINITE: &str = "value >= -1.7976931348623157e308 and value <= 1.7976931348623157e308";

/// One metric of a run, over all its steps.
#[derive(Serialize, ToSchema)]
pub struct MetricInfo {
    name: String,
    points: i64,
    /// Points that are NaN or infinite.
    not_finite: i64,
    #[schema(required)]
    first_step: Option<i64>,
    #[schema(required)]
    last_step: Option<i64>,
    /// Null if it is not finite.
    #[schema(required)]
    last: Option<f64>,
    #[schema(required)]
    min: Option<f64>,
    #[schema(required)]
    min_step: Option<i64>,
    #[schema(required)]
    max: Option<f64>,
    #[schema(required)]
    max_step: Option<i64>,
    /// True if rollscope computed it, false if the run logged it.
    computed: bool,
}

fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|v| v.is_finite())
}

/// Lists the metrics of a run, each with its last, smallest and largest value.
pub async fn list(engine: &Engine, run: &str) -> Result<Vec<MetricInfo>, Problem> {
    let sql = format!(
        "select name, count(*) as points, sum(case when {FINITE} then 0 else 1 end) as not_finite, \
                min(step) as first_step, max(step) as last_step, last_value(value order by step, time_ns) as last, \
                min(case when {FINITE} then value end) as lo, max(case when {FINITE} then value end) as hi, \
                first_value(step order by case when {FINITE} then value end asc nulls last) as lo_step, \
                first_value(step order by case when {FINITE} then value end desc nulls last) as hi_step, \
                max(case when source is null then 0 else 1 end) as computed \
         from metrics where run_id = {} group by name order by name",
        sql_text(run)
    );
    let mut metrics = Vec::new();
    for batch in collect(engine, &sql).await? {
        let names = text_column(&batch, "name")?;
        let int = |name| int_column(&batch, name);
        let float = |name| float_column(&batch, name);
        let (points, not_finite, first, last_step) =
            (int("points")?, int("not_finite")?, int("first_step")?, int("last_step")?);
        let (last, lo, hi) = (float("last")?, float("lo")?, float("hi")?);
        let (lo_step, hi_step, computed) = (int("lo_step")?, int("hi_step")?, int("computed")?);
        metrics.extend((0..batch.num_rows()).map(|i| MetricInfo {
            name: names[i].clone().unwrap_or_default(),
            points: points[i].unwrap_or(0),
            not_finite: not_finite[i].unwrap_or(0),
            first_step: first[i],
            last_step: last_step[i],
            last: finite(last[i]),
            min: lo[i],
            min_step: lo[i].and(lo_step[i]),
            max: hi[i],
            max_step: hi[i].and(hi_step[i]),
            computed: computed[i] == Some(1),
        }));
    }
    Ok(metrics)
}

#[derive(Serialize, ToSchema)]
pub struct PointsAnswer {
    /// `step`, `time` (milliseconds since the epoch) or `tokens` (number of tokens trained on so far).
    x: &'static str,
    /// One entry per metric that has points, sorted by name.
    series: Vec<PointSeries>,
}

/// A metric over the axis. All lists have the same length. A value is null if none in its interval is finite.
#[derive(Default, Serialize, ToSchema)]
pub struct PointSeries {
    name: String,
    /// End of each interval on the axis.
    x: Vec<f64>,
    /// Training step at the end of the interval.
    step: Vec<Option<i64>>,
    lo: Vec<Option<f64>>,
    hi: Vec<Option<f64>>,
    mean: Vec<Option<f64>>,
    last: Vec<Option<f64>>,
    /// Number of values in the interval.
    n: Vec<i64>,
    /// Number of values that are NaN or infinite.
    not_finite: Vec<i64>,
}

#[derive(Clone, Copy, PartialEq)]
enum Axis {
    Step,
    Time,
    Tokens,
}

impl Axis {
    fn name(self) -> &'static str {
        match self {
            Axis::Step => "step",
            Axis::Time => "time",
            Axis::Tokens => "tokens",
        }
    }

    /// The points of the metrics with their place on the axis, as an integer.
    fn points(self, run: &str, names: &str) -> String {
        let from = format!("metrics where run_id = {run} and name in ({names})");
        match self {
            Axis::Step => format!("select name, step, time_ns, value, step as x from {from} and step is not null"),
            Axis::Time => format!("select name, step, time_ns, value, time_ns as x from {from}"),
            Axis::Tokens => format!(
                "select m.name, m.step, m.time_ns, m.value, t.x from (select name, step, time_ns, value from {from}) m join \
                 (select step, sum(tokens) over (order by step) as x from (select step, \
                         sum(coalesce(total_tokens, coalesce(prompt_tokens, 0) + coalesce(response_tokens, 0))) as tokens \
                         from samples where run_id = {run} and split = 'train' and step is not null group by step)) t \
                 on m.step = t.step"
            ),
        }
    }

    /// From the integer of the table to the number of the answer.
    fn shown(self, x: i64) -> f64 {
        if self == Axis::Time { x as f64 / 1e6 } else { x as f64 }
    }
}

fn names(text: &str) -> Result<Vec<String>, Problem> {
    let names: Vec<String> = match text.starts_with('[') {
        true => serde_json::from_str(text)
            .map_err(|_| Problem::parameter("names", "comma-separated names, or a JSON array of strings"))?,
        false => text.split(',').map(str::to_string).collect(),
    };
    match names.is_empty() || names.len() > MAX_NAMES {
        true => Err(Problem::parameter("names", format!("a list of 1 to {MAX_NAMES} names"))),
        false => Ok(names),
    }
}

/// Returns metrics over steps, time or tokens, thinned without hiding spikes.
///
/// Parameters: `names` with commas between or as a JSON array, `x` (step, time or tokens), `from`, `to`, `points`.
pub async fn points(engine: &Engine, run: &str, mut params: Params) -> Result<PointsAnswer, Problem> {
    let names = names(params.text("names").ok_or_else(|| Problem::missing_parameter("names", "metric names"))?)?;
    let axis = match params.text("x") {
        None | Some("step") => Axis::Step,
        Some("time") => Axis::Time,
        Some("tokens") => Axis::Tokens,
        Some(_) => return Err(Problem::parameter("x", "step, time or tokens")),
    };
    let from: Option<f64> = params.number("from", "a number on the axis")?;
    let to: Option<f64> = params.number("to", "a number on the axis")?;
    let wanted: i64 = params.number("points", "an integer")?.unwrap_or(1000);
    params.done()?;
    if !(1..=MAX_POINTS).contains(&wanted) {
        return Err(Problem::parameter("points", format!("from 1 to {MAX_POINTS}")));
    }
    let list: Vec<String> = names.iter().map(|n| sql_text(n)).collect();
    let all = axis.points(&sql_text(run), &list.join(", "));
    let stored = |v: f64| if axis == Axis::Time { v * 1e6 } else { v } as i64;
    let mut bounds = String::from("true");
    if let Some(from) = from {
        let _ = write!(bounds, " and x >= {}", stored(from));
    }
    if let Some(to) = to {
        let _ = write!(bounds, " and x <= {}", stored(to));
    }
    let range = collect(engine, &format!("select min(x) as lo, max(x) as hi from ({all}) where {bounds}")).await?;
    let first = |name: &str| -> Result<Option<i64>, Problem> {
        Ok(range.first().map(|b| int_column(b, name)).transpose()?.and_then(|c| c.first().copied().flatten()))
    };
    let mut series: BTreeMap<String, PointSeries> = BTreeMap::new();
    if let (Some(lo), Some(hi)) = (first("lo")?, first("hi")?) {
        // Whole numbers, so that the same place always falls into the same stretch.
        let width = ((hi - lo) / wanted + 1).max(1);
        let sql = format!(
            "select name, (x - {lo}) / {width} as stretch, max(x) as x, last_value(step order by x, time_ns) as step, \
                    min(case when {FINITE} then value end) as lo, max(case when {FINITE} then value end) as hi, \
                    avg(case when {FINITE} then value end) as mean, last_value(value order by x, time_ns) as last, \
                    count(*) as n, sum(case when {FINITE} then 0 else 1 end) as not_finite \
             from ({all}) where {bounds} group by name, (x - {lo}) / {width} order by name, stretch"
        );
        for batch in collect(engine, &sql).await? {
            add_points(&mut series, axis, &batch)?;
        }
    }
    Ok(PointsAnswer { x: axis.name(), series: series.into_values().collect() })
}

fn add_points(series: &mut BTreeMap<String, PointSeries>, axis: Axis, batch: &RecordBatch) -> Result<(), Problem> {
    let names = text_column(batch, "name")?;
    let int = |name| int_column(batch, name);
    let float = |name| float_column(batch, name);
    let (x, step, n, bad) = (int("x")?, int("step")?, int("n")?, int("not_finite")?);
    let (lo, hi, mean, last) = (float("lo")?, float("hi")?, float("mean")?, float("last")?);
    for i in 0..batch.num_rows() {
        let (Some(name), Some(x)) = (&names[i], x[i]) else { continue };
        if !series.contains_key(name) {
            series.insert(name.clone(), PointSeries { name: name.clone(), ..PointSeries::default() });
        }
        let s = series.get_mut(name).expect("it was put there");
        s.x.push(axis.shown(x));
        s.step.push(step[i]);
        s.lo.push(lo[i]);
        s.hi.push(hi[i]);
        s.mean.push(mean[i]);
        s.last.push(finite(last[i]));
        s.n.push(n[i].unwrap_or(0));
        s.not_finite.push(bad[i].unwrap_or(0));
    }
    Ok(())
}
