//! What is kept of alarms in `series`: how they are written, what an earlier process knew, and when each began and ended.

use std::collections::{BTreeMap, HashMap};

use rollscope_model::Table;
use rollscope_model::build::{NewPoint, SeriesBuilder};
use rollscope_model::names::SCRAPED_RUN;
use rollscope_query::promql::{Labels, Points, PromAnswer, PromLimits, PromQuery};
use rollscope_query::{Engine, QueryError};
use rollscope_store::Store;
use serde::Serialize;
use utoipa::ToSchema;

use crate::alarm::Before;
use crate::evaluate::Samples;

/// What an earlier process knew counts for so long, as in Prometheus.
const OUTAGE_S: u64 = 3600;
/// Times at which an alarm was on that are listed, the newest.
const MAX_EPISODES: usize = 2000;

/// Writes samples. They belong to no run in particular: their labels say which run they are about.
pub async fn append(store: &Store, at_ms: i64, samples: &Samples) -> Result<(), String> {
    if samples.is_empty() {
        return Ok(());
    }
    let mut rows = SeriesBuilder::default();
    for (labels, value) in samples {
        let stored: serde_json::Map<String, serde_json::Value> =
            labels.iter().filter(|(n, _)| *n != "__name__").map(|(n, v)| (n.to_string(), v.into())).collect();
        let labels_json = serde_json::Value::Object(stored).to_string();
        rows.push(&NewPoint {
            run_id: SCRAPED_RUN,
            target: labels.get("instance"),
            name: labels.get("__name__"),
            labels: &labels_json,
            kind: "gauge",
            time_ns: at_ms * 1_000_000,
            value: *value,
        });
    }
    let batch = rows.finish().map_err(|e| e.to_string())?;
    store.append(Table::Series, batch).await.map(drop).map_err(|e| e.to_string())
}

async fn ask(
    engine: &Engine,
    text: &str,
    at_ms: i64,
    limits: &PromLimits,
) -> Result<Vec<(Labels, Points)>, QueryError> {
    let query = PromQuery::parse(text)?;
    match engine.promql(query, at_ms, at_ms, 1, limits).await? {
        PromAnswer::Vector(rows) | PromAnswer::Matrix(rows) => Ok(rows),
        PromAnswer::Scalar(_) | PromAnswer::Text(_) => Ok(Vec::new()),
    }
}

/// Alarms that were on when an earlier process ended.
pub async fn before(engine: &Engine, at_ms: i64, limits: &PromLimits) -> Result<HashMap<Labels, Before>, QueryError> {
    let limits = &PromLimits { promql_lookback_s: OUTAGE_S, ..limits.clone() };
    let own = |labels: &Labels| labels.drop(&["__name__".into(), "alertstate".into()]);
    let mut firing: HashMap<Labels, i64> = HashMap::new();
    for (labels, points) in ask(engine, "timestamp(ALERTS{alertstate=\"firing\"})", at_ms, limits).await? {
        firing.extend(points.first().map(|p| (own(&labels), (p.1 * 1000.0).round() as i64)));
    }
    let mut seen: HashMap<Labels, i64> = HashMap::new();
    for (labels, points) in ask(engine, "timestamp(ALERTS_FOR_STATE)", at_ms, limits).await? {
        seen.extend(points.first().map(|p| (own(&labels), (p.1 * 1000.0).round() as i64)));
    }
    let since = ask(engine, "ALERTS_FOR_STATE", at_ms, limits).await?;
    let known = since.into_iter().filter_map(|(labels, points)| {
        let labels = own(&labels);
        let active_ms = (points.first()?.1 * 1000.0).round() as i64;
        let seen_ms = *seen.get(&labels)?;
        let firing = firing.get(&labels) == Some(&seen_ms);
        Some((labels, Before { active_ms, seen_ms, firing }))
    });
    Ok(known.collect())
}

/// A time during which an alarm was on. Nanoseconds are text.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Episode {
    pub alarm: String,
    pub labels: BTreeMap<String, String>,
    /// When its condition began to hold.
    pub start_ns: String,
    /// When it began to fire. Null if it did not.
    #[schema(required)]
    pub fired_ns: Option<String>,
    /// When it was last on.
    pub end_ns: String,
    /// It still is.
    pub open: bool,
}

/// When alarms were on between two times, newest first. `open` has the starts of those that are on now.
pub async fn episodes(
    engine: &Engine,
    from_ms: i64,
    to_ms: i64,
    run: Option<&str>,
    open: &HashMap<Labels, i64>,
    limits: &PromLimits,
) -> Result<Vec<Episode>, QueryError> {
    let range = (to_ms - from_ms).max(1);
    let of_run = run.map(|run| format!("run={run:?}")).unwrap_or_default();
    let since = format!("ALERTS_FOR_STATE{{{of_run}}}[{range}ms]");
    let fired = format!("ALERTS{{alertstate=\"firing\",{of_run}}}[{range}ms]");
    let (since, fired) = futures::try_join!(ask(engine, &since, to_ms, limits), ask(engine, &fired, to_ms, limits))?;
    let own = |labels: &Labels| labels.drop(&["__name__".into(), "alertstate".into()]);
    let fired: HashMap<Labels, Points> = fired.into_iter().map(|(labels, points)| (own(&labels), points)).collect();
    let mut found: Vec<(i64, Episode)> = Vec::new();
    for (labels, points) in since {
        let labels = own(&labels);
        let fired = fired.get(&labels).map(Vec::as_slice).unwrap_or_default();
        // The value is the start: a new one is another time.
        for part in points.chunk_by(|a, b| a.1.to_bits() == b.1.to_bits()) {
            let (Some(first), Some(last)) = (part.first(), part.last()) else { continue };
            let start = (first.1 * 1000.0).round() as i64;
            let firing = fired.iter().find(|(t, _)| (first.0..=last.0).contains(t)).map(|(t, _)| *t);
            let ns = |ms: i64| (ms * 1_000_000).to_string();
            found.push((
                start,
                Episode {
                    alarm: labels.get("alertname").into(),
                    labels: labels.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect(),
                    start_ns: ns(start),
                    fired_ns: firing.map(ns),
                    end_ns: ns(last.0),
                    open: open.get(&labels) == Some(&start),
                },
            ));
        }
    }
    found.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.labels.cmp(&b.1.labels)));
    found.truncate(MAX_EPISODES);
    Ok(found.into_iter().map(|(_, episode)| episode).collect())
}
