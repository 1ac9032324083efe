//! What the server calls.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use datafusion::common::DataFusionError;
use futures::future::BoxFuture;
use promql_parser::label::Matcher;
use promql_parser::parser::value::ValueType;
use promql_parser::parser::{self, Expr};
use promql_parser::util::{ExprVisitor, unquote_string, walk_expr};
use rollscope_model::Table;
use serde::{Deserialize, Serialize};

use super::eval::{self, Context, Data, PromAnswer, Room, Steps};
use super::labels::{Labels, NAME};
use super::patterns;
use super::source::{self, Budget, Wanted};
use crate::Engine;
use crate::error::{ErrorKind, QueryError};

/// What a PromQL query may cost. How long it may take is the engine's `timeout`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PromLimits {
    /// Samples that one query may read and values that it may compute, 16 bytes of memory each. Default: 64 Mi.
    pub promql_max_samples: usize,
    /// Series one query may select. Default: 200,000.
    pub promql_max_series: usize,
    /// Steps one query, and one window of a subquery, may have. Default: 11,000, as in Prometheus.
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

impl PromLimits {
    pub(super) fn lookback_ms(&self) -> i64 {
        (self.promql_lookback_s.min(i64::MAX as u64 / 2000) * 1000) as i64
    }
}

/// Longest text of a query.
const MAX_TEXT: usize = 64 << 10;
/// Brackets and operators of a query.
const MAX_OPERATORS: usize = 500;

/// What a query would cost to parse, read from its text before that.
#[derive(Default)]
struct Outline<'a> {
    /// Parentheses and operators make an expression deep, and code that walks one is recursive. Braces, quotes and comments do
    /// not count.
    operators: usize,
    /// What stands after `=~` and `!~`, with its quotes. The parser compiles it.
    patterns: Vec<&'a str>,
}

fn outline(text: &str) -> Outline<'_> {
    let (mut count, mut in_braces, mut in_match) = (0, false, false);
    let mut patterns = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let mut length = c.len_utf8();
        match c {
            '"' | '\'' | '`' => {
                let mut escaped = false;
                let end = rest[1..].find(|d| {
                    let closes = d == c && !escaped;
                    escaped = d == '\\' && !escaped && c != '`';
                    closes
                });
                length = end.map_or(rest.len(), |end| end + 2);
                if in_match {
                    patterns.push(&rest[..length]);
                }
            }
            '#' => length = rest.find('\n').unwrap_or(rest.len()),
            '{' => {
                count += 1;
                in_braces = true;
            }
            '}' => in_braces = false,
            '(' | '[' | '+' | '-' | '*' | '/' | '%' | '^' | '=' | '!' | '<' | '>' if !in_braces => count += 1,
            c if c.is_alphanumeric() || c == '_' || c == ':' => {
                let word = |d: char| d.is_alphanumeric() || d == '_' || d == ':';
                length = rest.find(|d| !word(d)).unwrap_or(rest.len());
                let operator = ["and", "or", "unless", "atan2"].iter().any(|o| rest[..length].eq_ignore_ascii_case(o));
                count += usize::from(operator && !in_braces);
            }
            _ => {}
        }
        in_match = c == '~' || (in_match && (c.is_whitespace() || c == '#'));
        rest = &rest[length..];
    }
    Outline { operators: count, patterns }
}

/// A query that was understood.
#[derive(Clone, Debug)]
pub struct PromQuery {
    pub(super) expr: Expr,
    text: String,
}

/// As Prometheus writes it.
impl std::fmt::Display for PromQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.expr)
    }
}

pub(super) fn refused(message: impl Into<String>) -> QueryError {
    QueryError::new(ErrorKind::Plan, message)
}

impl PromQuery {
    pub fn parse(text: &str) -> Result<PromQuery, QueryError> {
        if text.len() > MAX_TEXT {
            return Err(QueryError::new(ErrorKind::Limit, format!("the query is longer than {MAX_TEXT} bytes")));
        }
        let Outline { operators, patterns } = outline(text);
        let limit = |text: String| Err(QueryError::new(ErrorKind::Limit, text));
        if operators > MAX_OPERATORS {
            return limit(format!("the query has more than {MAX_OPERATORS} parentheses and operators"));
        }
        if patterns.len() > patterns::MAX_PATTERNS {
            return limit(format!("the query has more than {} regular expressions", patterns::MAX_PATTERNS));
        }
        // The parser panics on durations that do not fit a `Duration`, such as [1e300], and on a backslash before a character of
        // several bytes.
        let unquoted = |quoted: &&str| std::panic::catch_unwind(|| unquote_string(quoted)).ok()?.ok();
        for pattern in patterns.iter().filter_map(unquoted) {
            patterns::check(&pattern).map_err(|e| QueryError::new(ErrorKind::Parse, e))?;
        }
        let parsed = std::panic::catch_unwind(|| parser::parse(text))
            .unwrap_or_else(|_| Err("a number or a duration is out of range, or an escape is unknown".into()));
        let expr = parsed.map_err(|e| QueryError::new(ErrorKind::Parse, e))?;
        walk_expr(&mut Ours, &expr).map_err(|e| QueryError::new(ErrorKind::Parse, e))?;
        Ok(PromQuery { expr, text: text.to_string() })
    }

    /// Does it have one value per step? Range vectors and strings do not, so they cannot be evaluated over a range.
    pub fn has_steps(&self) -> bool {
        matches!(self.expr.value_type(), ValueType::Scalar | ValueType::Vector)
    }

    /// A selector, as in `match[]`.
    pub fn selector(text: &str) -> Result<Vec<Matcher>, QueryError> {
        match Self::parse(text)?.expr {
            Expr::VectorSelector(vs) if vs.offset.is_none() && vs.at.is_none() => Ok(Wanted::matchers(&vs)),
            _ => Err(refused(format!("{text} is not a selector; expected one such as up{{job=\"sglang\"}}"))),
        }
    }
}

/// Refuses what the parser takes and Prometheus's does not.
struct Ours;

impl ExprVisitor for Ours {
    type Error = String;

    fn pre_visit(&mut self, expr: &Expr) -> Result<bool, String> {
        let matchers = match expr {
            Expr::VectorSelector(vs) => &vs.matchers,
            Expr::MatrixSelector(ms) => &ms.vs.matchers,
            _ => return Ok(true),
        };
        match matchers.or_matchers.is_empty() {
            true => Ok(true),
            false => Err("`or` between matchers is not PromQL; write `or` between selectors".into()),
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
    ) -> BoxFuture<'a, Result<PromAnswer, QueryError>> {
        Box::pin(self.evaluate(query, start, end, step, limits))
    }

    async fn evaluate(
        &self,
        query: PromQuery,
        start: i64,
        end: i64,
        step: i64,
        limits: &PromLimits,
    ) -> Result<PromAnswer, QueryError> {
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
        let lookback = limits.lookback_ms();
        let mut wanted = HashMap::new();
        let max_steps = limits.promql_max_steps;
        let (nothing, room) = (Data::new(), Room::new(budget.samples));
        let cx = Context::new(steps, lookback, max_steps, &nothing, &room);
        eval::wanted(&query.expr, &cx, &mut wanted).map_err(refused)?;
        budget.samples = room.left();
        self.with_table(Table::Series, query.text.clone(), move |state, table| async move {
            let mut data = Data::new();
            for (key, wanted) in wanted {
                data.insert(key, Arc::new(source::read_selector(&state, &table, &wanted, &mut budget).await?));
            }
            let room = Room::new(budget.samples);
            // It is stopped when the caller gets a timeout, and when the caller has gone. Until it ends, it keeps its turn.
            let why_stopped = || table.progress().why_stopped();
            let cx = Context::new(steps, lookback, max_steps, &data, &room).until(&why_stopped);
            eval::answer(&query.expr, &cx).map_err(|e| DataFusionError::External(Box::new(e)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_a_query_deep_is_counted() {
        for (text, count) in [
            ("a", 0),
            ("sum(rate(a{b=\"c+d\", e!=\"}\"}[5m])) by (x)", 5),
            ("a and b OR c unless d atan2 android", 4),
            ("# \" ( +\n-1 + 'x\\'+' + `\\` ^ 2", 4),
            ("a >= bool 1", 2),
            ("\"never closed + + +", 0),
        ] {
            assert_eq!(outline(text).operators, count, "{text}");
        }
        let refused = |text: String| PromQuery::parse(&text).err().map(|e| e.message).unwrap_or_default();
        assert!(refused("1".to_string() + &"+1".repeat(30_000)).contains("operators"));
        assert!(refused("a".to_string() + &" or a".repeat(10_000)).contains("operators"));
        assert!(refused("-".repeat(60_000) + "1").contains("operators"));
        assert!(refused("1".to_string() + &"+1".repeat(400)).is_empty());
        let many = |count: usize| format!("{{{}}}", vec!["a=~\"b\""; count].join(","));
        assert!(refused(many(patterns::MAX_PATTERNS)).is_empty());
        assert!(refused(many(patterns::MAX_PATTERNS + 1)).contains("regular expressions"));
        // 16 bytes that take 5 MB.
        assert!(refused(r#"{a=~"\\pL{99}"}"#.into()).contains("too large"));
        assert!(refused("{a!~ # why\n `(\\w{50}){50}`}".into()).contains("too large"));
        assert!(refused(r#"{a=~"x{y} (\\pL{9}){9}"}"#.into()).contains("illegal"));
        assert!(refused(r#"{a=~"x{y}", b="\\pL{99}"}"#.into()).is_empty());
        assert!(refused("a offset 1e300".into()).contains("out of range"));
        assert!(refused("a[1e300:1]".into()).contains("out of range"));
        let said = refused("a{b=~\"\\ä\"}".into());
        assert!(said.contains("unknown escape"), "{said}");
    }
}
