//! Finding traces.

use std::collections::HashMap;

use arrow::array::RecordBatch;
use rollscope_answers::traces::find::{Sort, TraceSearch, details_sql};
use rollscope_model::TraceId;
use rollscope_model::read::{Ids, column};
use rollscope_query::Engine;
use serde::Serialize;
use utoipa::ToSchema;

use crate::duration::parse_duration;
use crate::problem::Problem;
use crate::query::{collect, int_column, text_column};

/// The most traces in one response.
const MAX_LIMIT: usize = 5000;
/// The most conditions on attributes.
const MAX_ATTRIBUTES: usize = 20;

/// A trace as a point of a scatter plot.
#[derive(Serialize, ToSchema)]
pub struct TracePoint {
    trace_id: String,
    /// Nanoseconds, as text.
    start_ns: String,
    duration_ns: i64,
    spans: i64,
    /// Spans with an error.
    errors: i64,
    /// Spans that have not ended.
    open: i64,
}

/// Root, services and identity of a trace.
#[derive(Clone, Default, Serialize, ToSchema)]
pub struct TraceDetails {
    /// Name of the root.
    root: String,
    /// Service of the root.
    service: String,
    /// Number of services.
    services: i64,
    run_id: String,
    #[schema(required)]
    step: Option<i64>,
    #[schema(required)]
    sample_id: Option<String>,
    /// Request id of the serving engine.
    #[schema(required)]
    request_id: Option<String>,
}

/// A trace as a list shows it.
#[derive(Serialize, ToSchema)]
pub struct FoundTrace {
    #[serde(flatten)]
    point: TracePoint,
    #[serde(flatten)]
    details: TraceDetails,
}

#[derive(Serialize, ToSchema)]
pub struct TracePoints {
    traces: Vec<TracePoint>,
    /// Traces on all pages.
    total: i64,
    limit: usize,
    offset: usize,
}

#[derive(Serialize, ToSchema)]
pub struct FoundTraces {
    traces: Vec<FoundTrace>,
    /// Traces on all pages.
    total: i64,
    limit: usize,
    offset: usize,
}

/// Traces without their details: points, ids, and how many there are in all.
async fn search(engine: &Engine, search: &TraceSearch) -> Result<(Vec<TracePoint>, Vec<TraceId>, i64), Problem> {
    let mut search = search.clone();
    if let Some(run) = &mut search.run {
        *run = engine.find_run(run).await?;
    }
    let rows = collect(engine, &search.sql()).await?;
    let mut traces: Vec<TracePoint> = Vec::new();
    let mut ids: Vec<TraceId> = Vec::new();
    let mut total = 0;
    for batch in &rows {
        let found = trace_ids(batch)?;
        let columns = ["start_ns", "duration_ns", "spans", "errors", "open", "total"];
        let [start, duration, spans, errors, open, all] = columns.map(|name| int_column(batch, name));
        let (start, duration, spans, errors, open, all) = (start?, duration?, spans?, errors?, open?, all?);
        for row in 0..batch.num_rows() {
            total = all[row].unwrap_or(0);
            ids.push(found[row]);
            traces.push(TracePoint {
                trace_id: hex::encode(found[row]),
                start_ns: start[row].unwrap_or(0).to_string(),
                duration_ns: duration[row].unwrap_or(0),
                spans: spans[row].unwrap_or(0),
                errors: errors[row].unwrap_or(0),
                open: open[row].unwrap_or(0),
            });
        }
    }
    Ok((traces, ids, total))
}

/// What a scatter plot needs.
pub async fn points(engine: &Engine, wanted: &TraceSearch) -> Result<TracePoints, Problem> {
    let (traces, _, total) = search(engine, wanted).await?;
    Ok(TracePoints { traces, total, limit: wanted.limit, offset: wanted.offset })
}

/// What a list needs.
pub async fn find(engine: &Engine, wanted: &TraceSearch) -> Result<FoundTraces, Problem> {
    let (traces, ids, total) = search(engine, wanted).await?;
    let details = describe(engine, &ids).await?;
    let of = |id| details.get(id).cloned().unwrap_or_default();
    let traces = traces.into_iter().zip(&ids).map(|(point, id)| FoundTrace { point, details: of(id) }).collect();
    Ok(FoundTraces { traces, total, limit: wanted.limit, offset: wanted.offset })
}

/// Root, services and identity of the traces of one page.
async fn describe(engine: &Engine, ids: &[TraceId]) -> Result<HashMap<TraceId, TraceDetails>, Problem> {
    let mut details = HashMap::new();
    if ids.is_empty() {
        return Ok(details);
    }
    for batch in collect(engine, &details_sql(ids)).await? {
        let texts = ["root", "service", "run_id", "sample_id", "request_id"].map(|name| text_column(&batch, name));
        let [roots, names, runs, samples, requests] = texts;
        let (roots, names, runs, samples, requests) = (roots?, names?, runs?, samples?, requests?);
        let (services, steps) = (int_column(&batch, "services")?, int_column(&batch, "step")?);
        for (row, id) in trace_ids(&batch)?.into_iter().enumerate() {
            let found = TraceDetails {
                root: roots[row].clone().unwrap_or_default(),
                service: names[row].clone().unwrap_or_default(),
                services: services[row].unwrap_or(0),
                run_id: runs[row].clone().unwrap_or_default(),
                step: steps[row],
                sample_id: samples[row].clone(),
                request_id: requests[row].clone(),
            };
            details.insert(id, found);
        }
    }
    Ok(details)
}

pub fn trace_ids(batch: &RecordBatch) -> Result<Vec<TraceId>, Problem> {
    let ids: Ids<16> = column(batch, "trace_id").map_err(|e| Problem::internal(e.to_string()))?;
    Ok((0..batch.num_rows()).map(|row| ids.get(row).unwrap_or_default()).collect())
}

/// Reads the parameters of a search, and whether only points are wanted.
pub fn parse(pairs: impl IntoIterator<Item = (String, String)>) -> Result<(TraceSearch, bool), Problem> {
    let mut search = TraceSearch::default();
    let mut points = false;
    let mut seen: Vec<String> = Vec::new();
    for (key, value) in pairs {
        if value.len() > 4096 {
            return Err(Problem::parameter(&key, "at most 4096 bytes long"));
        }
        if key != "attr" && seen.contains(&key) {
            return Err(Problem::parameter(&key, "given only once"));
        }
        let number = |good: &str| value.parse::<i64>().map_err(|_| Problem::parameter(&key, good));
        let ns = "an integer: nanoseconds since the epoch";
        match key.as_str() {
            "run" => search.run = Some(value),
            "step" => search.step = Some(number("an integer")?),
            "sample" => search.sample = Some(value),
            "rid" => search.request = Some(value),
            "service" => search.service = Some(value),
            "name" => search.name = Some(value),
            "status" if ["unset", "ok", "error"].contains(&value.as_str()) => search.status = Some(value),
            "status" => return Err(Problem::parameter("status", "unset, ok or error")),
            "attr" => {
                let Some((name, wanted)) = value.split_once('=').filter(|(name, _)| !name.is_empty()) else {
                    return Err(Problem::parameter("attr", "KEY=VALUE"));
                };
                if search.attributes.len() == MAX_ATTRIBUTES {
                    return Err(Problem::parameter("attr", format!("given at most {MAX_ATTRIBUTES} times")));
                }
                search.attributes.push((name.to_string(), wanted.to_string()));
            }
            "from_ns" => search.from_ns = Some(number(ns)?),
            "to_ns" => search.to_ns = Some(number(ns)?),
            "min_duration" | "max_duration" => {
                let Some(ns) = duration_ns(&value) else {
                    return Err(Problem::parameter(&key, "a number and a unit, such as 250ms or 1.5s"));
                };
                *(if key == "min_duration" { &mut search.min_duration_ns } else { &mut search.max_duration_ns }) =
                    Some(ns);
            }
            "sort" => {
                let name = value.strip_prefix('-').unwrap_or(&value);
                let Some((_, sort)) = Sort::NAMES.iter().find(|(n, _)| *n == name) else {
                    return Err(Problem::parameter(
                        "sort",
                        "start, duration, spans or errors, with a leading `-` for descending order",
                    ));
                };
                (search.sort, search.descending) = (*sort, value.starts_with('-'));
            }
            "limit" => {
                search.limit = value
                    .parse()
                    .ok()
                    .filter(|n| (1..=MAX_LIMIT).contains(n))
                    .ok_or_else(|| Problem::parameter("limit", format!("a number from 1 to {MAX_LIMIT}")))?;
            }
            "offset" => {
                search.offset = value.parse().map_err(|_| Problem::parameter("offset", "a non-negative integer"))?;
            }
            "points" => points = value != "false",
            _ => {
                let known = "run, step, sample, rid, service, name, status, attr, from_ns, to_ns, min_duration, \
                             max_duration, sort, limit, offset, points";
                return Err(Problem::unknown_parameter(&key, &[known]));
            }
        }
        seen.push(key);
    }
    Ok((search, points))
}

pub fn duration_ns(text: &str) -> Option<i64> {
    i64::try_from(parse_duration(text).ok()?.as_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_judged_by_name() {
        let pairs = |text: &str| -> Vec<(String, String)> {
            let pair =
                |pair: &str| pair.split_once('=').map_or((pair.into(), String::new()), |(k, v)| (k.into(), v.into()));
            text.split('&').map(pair).collect()
        };
        let (search, points) = parse(pairs("attr=a=1&attr=b==x&sort=-duration&limit=7&points")).unwrap();
        assert_eq!(search.attributes, [("a".to_string(), "1".to_string()), ("b".to_string(), "=x".to_string())]);
        assert!(points && search.descending && search.sort == Sort::Duration && search.limit == 7);
        for (bad, name) in [
            ("limit=0", "limit"),
            ("sort=x", "sort"),
            ("stpe=1", "stpe"),
            ("step=1&step=2", "step"),
            ("attr=x", "attr"),
        ] {
            assert!(parse(pairs(bad)).unwrap_err().detail().contains(name), "{bad}");
        }
    }
}
