//! Metrics of a run, and PromQL over series.

use rollscope_app::duration::parse_duration;
use rollscope_app::listings;
use rollscope_model::time::now_ns;
use rollscope_query::promql::{Labels, Points, PromAnswer, PromQuery};
use serde_json::{Value, json};

use super::{Answer, Call, LIMIT, OFFSET, Problem, RUN, Tool, needed, page_of, text};
use crate::text::{cell, number, shown, table};

pub const METRICS: Tool = Tool {
    name: "metrics",
    title: "Metrics of a run",
    about: "Lists the metrics that a run logged, and those that rollscope computed (perf/, rollout/), each with its last, smallest and largest value \
            and their steps. For single values, use sql over the table `metrics`.",
    arguments: &[
        RUN.required(),
        text("prefix", "Only names that begin with this, such as train/ or perf/"),
        LIMIT,
        OFFSET,
    ],
    run: |call| Box::pin(metrics(call)),
};

async fn metrics(call: Call) -> Result<Answer, Problem> {
    let mut params = call.params()?;
    let run = needed(&mut params, "run", "the run; `runs` lists them")?;
    let prefix = params.text("prefix").unwrap_or_default().to_string();
    let (limit, offset) = page_of(&mut params, 40, 500)?;
    params.done()?;
    let desk = call.source.desk().await?;
    let run = desk.engine().find_run(&run).await?;
    let listed = json!(listings::metrics::list(desk.engine(), &run).await?);
    let named = |metric: &&Value| metric["name"].as_str().is_some_and(|name| name.starts_with(&prefix));
    let metrics: Vec<&Value> = listed.as_array().into_iter().flatten().filter(named).collect();
    let at = |value: &Value, step: &Value| match step {
        Value::Null => cell(value),
        step => format!("{} (step {step})", cell(value)),
    };
    let row = |m: &&Value| {
        vec![
            cell(&m["name"]),
            at(&m["last"], &m["last_step"]),
            at(&m["min"], &m["min_step"]),
            at(&m["max"], &m["max_step"]),
            cell(&m["points"]),
        ]
    };
    let rows: Vec<_> = metrics.iter().skip(offset).take(limit).map(row).collect();
    let note = shown(rows.len(), offset, metrics.len(), "metrics");
    let header = ["metric", "last", "smallest", "largest", "points"];
    let text = if rows.is_empty() { note } else { format!("{}\n{note}", table(&header, &rows)) };
    Ok(Answer { text, link: call.page.to(&["run", &run, "metrics"]) })
}

pub const PROMQL: Tool = Tool {
    name: "promql",
    title: "PromQL",
    about: "Evaluates PromQL over the series of serving engines and services: queues, throughput, cache hits, latency. With `start` it evaluates over a range, \
            else at one time. Names of SGLang begin with sglang: (for example sum(sglang:num_queue_reqs)). \
            {__name__=~\"sglang.*\"} shows what there is.",
    arguments: &[
        text("query", "The expression").required(),
        text("time", "Seconds since the epoch, RFC 3339, or an age such as 10m. Now if it is left out"),
        text("start", "Begin of a range, written as `time` is"),
        text("end", "End of the range. Now if it is left out"),
        text("step", "Time between two values of a range, such as 30s. A twelfth of the range if it is left out"),
        LIMIT,
    ],
    run: |call| Box::pin(promql(call)),
};

/// Values of a series that are shown of a range.
const VALUES: i64 = 12;

async fn promql(call: Call) -> Result<Answer, Problem> {
    let mut params = call.params()?;
    let query = needed(&mut params, "query", "a PromQL expression")?;
    let now = now_ns() / 1_000_000;
    let good = "seconds since the epoch, RFC 3339, or an age such as 10m";
    let mut time = |name: &'static str| match params.text(name) {
        None => Ok(None),
        Some(text) => moment(text, now).map(Some).ok_or_else(|| Problem::parameter(name, good)),
    };
    let (at, start, end) = (time("time")?, time("start")?, time("end")?);
    let step = match params.text("step") {
        None => None,
        Some(text) => {
            let step = parse_duration(text).ok().and_then(|d| i64::try_from(d.as_millis()).ok()).filter(|ms| *ms > 0);
            Some(step.ok_or_else(|| Problem::parameter("step", "a duration such as 30s"))?)
        }
    };
    let (limit, _) = page_of(&mut params, 20, 200)?;
    params.done()?;
    let (start, end, step) = match start {
        None => {
            let at = at.unwrap_or(now);
            (at, at, 1)
        }
        Some(start) => {
            let end = end.unwrap_or(now);
            (start, end, step.unwrap_or(((end - start) / VALUES).max(1)))
        }
    };
    let desk = call.source.desk().await?;
    let parsed =
        PromQuery::parse(&query).map_err(|e| Problem::about("query", format!("parameter `query`: {}", e.message)))?;
    let answer = desk.engine().promql(parsed, start, end, step, &desk.promql).await?;
    let text = match answer {
        PromAnswer::Scalar(points) => values(&points),
        PromAnswer::Text(text) => text,
        PromAnswer::Vector(rows) | PromAnswer::Matrix(rows) => series(&rows, limit),
    };
    Ok(Answer { text, link: call.page.to(&["serving"]) })
}

fn moment(text: &str, now_ms: i64) -> Option<i64> {
    if let Ok(seconds) = text.parse::<f64>() {
        return (seconds.is_finite() && seconds.abs() < 1e12).then(|| (seconds * 1000.0).round() as i64);
    }
    if let Ok(age) = parse_duration(text) {
        return now_ms.checked_sub(i64::try_from(age.as_millis()).ok()?);
    }
    Some(chrono::DateTime::parse_from_rfc3339(text).ok()?.timestamp_millis())
}

fn series(rows: &[(Labels, Points)], limit: usize) -> String {
    if rows.is_empty() {
        return "No series matches at that time. Check the name and the time.".into();
    }
    let row = |(labels, points): &(Labels, Points)| {
        let name: String = labels.iter().filter(|(name, _)| *name == "__name__").map(|(_, value)| value).collect();
        let rest: Vec<String> = labels
            .iter()
            .filter(|(name, _)| *name != "__name__")
            .map(|(name, value)| format!("{name}={value:?}"))
            .collect();
        vec![format!("{name}{{{}}}", rest.join(",")), values(points)]
    };
    let table = table(&["series", "values"], &rows.iter().take(limit).map(row).collect::<Vec<_>>());
    match rows.len() > limit {
        true => {
            format!("{table}\n{limit} of {} series are shown. Aggregate (sum by (...)), or pass limit.", rows.len())
        }
        false => format!("{table}\n{} series.", rows.len()),
    }
}

/// One value, or the values of a range with the time of the first.
fn values(points: &Points) -> String {
    let time = |ms: i64| {
        chrono::DateTime::from_timestamp_millis(ms).map_or(String::new(), |t| t.format("%H:%M:%S").to_string())
    };
    match points[..] {
        [] => "no value".into(),
        [(_, value)] => number(value),
        [(first, _), .., (last, _)] => {
            let every = points.len().div_ceil(VALUES as usize).max(1);
            let shown: Vec<String> = points.iter().step_by(every).map(|(_, value)| number(*value)).collect();
            let note = if every > 1 { format!(", every {every}th") } else { String::new() };
            format!("{} ({} to {} UTC{note})", shown.join(" "), time(first), time(last))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        let now = 1_700_000_000_000;
        assert_eq!(moment("1700000000.5", now), Some(1_700_000_000_500));
        assert_eq!(moment("10m", now), Some(now - 600_000));
        assert_eq!(moment("2023-11-14T22:13:20Z", now), Some(now));
        assert_eq!((moment("soon", now), moment("1e99", now)), (None, None));
    }
}
