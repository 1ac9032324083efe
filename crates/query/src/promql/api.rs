//! What the server calls.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use futures::future::BoxFuture;
use promql_parser::label::Matcher;
use promql_parser::parser::{self, Expr};
use rollscope_model::Table;
use serde::{Deserialize, Serialize};

use super::eval::{self, Answer, Context, Data, Steps};
use super::labels::{Labels, NAME};
use super::source::{self, Budget, Wanted};
use crate::Engine;
use crate::error::{ErrorKind, QueryError};

/// What a PromQL query may cost. How long it may take is the engine's `timeout`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PromLimits {
    /// Samples one query may read, 16 bytes of memory each. Default: 64 Mi.
    pub promql_max_samples: usize,
    /// Series one query may select. Default: 200,000.
    pub promql_max_series: usize,
    /// Steps one query may have, as in Prometheus. Default: 11,000.
    pub promql_max_steps: usize,
    /// How long a sample is current, in seconds. Default: 300, as in Prometheus.
    pub promql_lookback_s: u64,
}

impl Default for PromLimits {
    fn default() -> Self {
        PromLimits {
            promql_max_samples: 64 << 20,
            promql_max_series: 200_000,
            promql_max_steps: 11_000,
            promql_lookback_s: 300,
        }
    }
}

/// Longest text of a query.
const MAX_TEXT: usize = 64 << 10;

/// A query that was understood.
pub struct PromQuery {
    expr: Expr,
    text: String,
}

fn refused(message: impl Into<String>) -> QueryError {
    QueryError::new(ErrorKind::Plan, message)
}

impl PromQuery {
    pub fn parse(text: &str) -> Result<PromQuery, QueryError> {
        if text.len() > MAX_TEXT {
            return Err(QueryError::new(ErrorKind::Limit, format!("the query is longer than {MAX_TEXT} bytes")));
        }
        // The parser walks by recursion; brackets are what makes an expression deep.
        let depth = text.bytes().filter(|b| matches!(b, b'(' | b'[' | b'{')).count();
        if depth > 500 {
            return Err(QueryError::new(ErrorKind::Limit, "the query has more than 500 brackets"));
        }
        let expr = parser::parse(text).map_err(|e| QueryError::new(ErrorKind::Parse, e))?;
        Ok(PromQuery { expr, text: text.to_string() })
    }

    /// A selector, as in `match[]`.
    pub fn selector(text: &str) -> Result<Vec<Matcher>, QueryError> {
        match Self::parse(text)?.expr {
            Expr::VectorSelector(vs) if vs.offset.is_none() && vs.at.is_none() => Ok(Wanted::matchers(&vs)),
            _ => Err(refused(format!("{text} is no selector such as up{{job=\"sglang\"}}"))),
        }
    }
}

/// A series without its samples.
#[derive(Clone, Debug, PartialEq)]
pub struct SeriesInfo {
    pub labels: Labels,
    /// `gauge`, `counter`, `histogram`, `summary` or `unknown`.
    pub kind: String,
}

impl Engine {
    /// Evaluates at every `step` from `start` to `end`, in milliseconds. An instant query has `start == end`.
    pub fn promql<'a>(
        &'a self,
        query: PromQuery,
        start: i64,
        end: i64,
        step: i64,
        limits: &'a PromLimits,
    ) -> BoxFuture<'a, Result<Answer, QueryError>> {
        Box::pin(self.evaluate(query, start, end, step, limits))
    }

    async fn evaluate(
        &self,
        query: PromQuery,
        start: i64,
        end: i64,
        step: i64,
        limits: &PromLimits,
    ) -> Result<Answer, QueryError> {
        if step <= 0 || end < start {
            return Err(refused("the end must not be before the start, and the step must be positive"));
        }
        let steps = Steps { start, end, step };
        if (end - start) / step >= limits.promql_max_steps as i64 {
            return Err(refused(format!(
                "exceeded maximum resolution of {} points per timeseries (promql_max_steps). Try decreasing the query \
                 resolution (?step=XX)",
                limits.promql_max_steps
            )));
        }
        let mut budget = Budget { samples: limits.promql_max_samples, series: limits.promql_max_series };
        let lookback = (limits.promql_lookback_s.min(i64::MAX as u64 / 2000) * 1000) as i64;
        let mut wanted = HashMap::new();
        let context = |data| Context { steps, query: steps, lookback, default_step: 60_000, data, depth: 0 };
        eval::wanted(&query.expr, &context(&Data::new()), &mut wanted).map_err(refused)?;
        self.with_table(Table::Series, query.text.clone(), move |state, table| async move {
            let mut data = Data::new();
            for (key, wanted) in wanted {
                data.insert(key, Arc::new(source::read(&state, &table, &wanted, &mut budget).await?));
            }
            let cx = Context { steps, query: steps, lookback, default_step: 60_000, data: &data, depth: 0 };
            eval::answer(&query.expr, &cx).map_err(datafusion::common::DataFusionError::Plan)
        })
        .await
    }

    /// Series that match any of the selectors (all of them if there is none) and have a sample between two times.
    pub fn promql_series(
        &self,
        selectors: Vec<Vec<Matcher>>,
        start: i64,
        end: i64,
        limits: &PromLimits,
    ) -> BoxFuture<'_, Result<Vec<SeriesInfo>, QueryError>> {
        let selectors = if selectors.is_empty() { vec![Vec::new()] } else { selectors };
        let limit = limits.promql_max_series;
        Box::pin(self.with_table(Table::Series, "list of series".into(), move |state, table| async move {
            let mut all: BTreeMap<Labels, String> = BTreeMap::new();
            for matchers in selectors {
                let wanted = Wanted { matchers, from: start.saturating_sub(1), to: end };
                all.extend(source::list(&state, &table, &wanted, limit).await?);
            }
            Ok(all.into_iter().map(|(labels, kind)| SeriesInfo { labels, kind }).collect())
        }))
    }
}

/// Names of labels among series, sorted.
pub fn label_names(series: &[SeriesInfo]) -> BTreeSet<String> {
    series.iter().flat_map(|s| s.labels.iter().map(|(n, _)| n.to_string()).collect::<Vec<_>>()).collect()
}

/// Values of a label among series, sorted.
pub fn label_values(series: &[SeriesInfo], name: &str) -> BTreeSet<String> {
    series.iter().map(|s| s.labels.get(name)).filter(|v| !v.is_empty()).map(str::to_string).collect()
}

/// The kind of every metric, by the name of its family.
pub fn kinds(series: &[SeriesInfo]) -> BTreeMap<String, String> {
    let family = |name: &str, kind: &str| {
        let suffixes: &[&str] = match kind {
            "histogram" => &["_bucket", "_sum", "_count"],
            "summary" => &["_sum", "_count"],
            _ => &[],
        };
        suffixes.iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name).to_string()
    };
    series.iter().map(|s| (family(s.labels.get(NAME), &s.kind), s.kind.clone())).collect()
}
