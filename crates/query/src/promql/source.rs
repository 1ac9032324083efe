//! Samples of a selector, read from the store in one pass and put together by series.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use arrow::array::{RecordBatch, StringArray};
use arrow::datatypes::DataType;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DFSchema, DataFusionError, Result, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, col, lit};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, execute_stream_partitioned};
use futures::StreamExt;
use hashbrown::HashMap;
use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::VectorSelector;
use rollscope_model::Table;
use rollscope_model::names::SCRAPED_RUN;
use rollscope_model::read::{Floats, Ints, Text, column};

use super::is_absent;
use super::labels::{Labels, NAME};
use super::window::find_resets;
use crate::tables::{self, SnapshotTable};

const NS_PER_MS: i64 = 1_000_000;

/// What to read: matchers, and samples after `from` up to and with `to`, in milliseconds.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub matchers: Vec<Matcher>,
    pub from: i64,
    pub to: i64,
}

impl Wanted {
    /// Selectors with the same matchers share their samples.
    pub fn key(selector: &VectorSelector) -> String {
        format!("{:?} {:?}", selector.name, selector.matchers.matchers)
    }

    /// The one name that it selects, if it is one.
    pub fn name(&self) -> Option<&str> {
        let named = |m: &&Matcher| matches!(m.op, MatchOp::Equal) && m.name == NAME && !m.value.is_empty();
        self.matchers.iter().find(named).map(|m| m.value.as_str())
    }

    pub fn matchers(selector: &VectorSelector) -> Vec<Matcher> {
        let mut matchers = selector.matchers.matchers.clone();
        if let Some(name) = &selector.name {
            matchers.push(Matcher::new(MatchOp::Equal, NAME, name));
        }
        matchers
    }
}

/// Do these labels fit?
pub fn matches(matchers: &[Matcher], labels: &Labels) -> bool {
    matchers.iter().all(|m| m.is_match(labels.get(&m.name)))
}

/// One stored series: times in milliseconds, rising; stale markers are still there.
#[derive(Debug, Default)]
pub struct Stored {
    pub labels: Labels,
    pub times: Vec<i64>,
    pub values: Vec<f64>,
    clean: OnceLock<Option<(Vec<i64>, Vec<f64>)>>,
    resets: OnceLock<Vec<usize>>,
}

impl Stored {
    pub fn new(labels: Labels, times: Vec<i64>, values: Vec<f64>) -> Self {
        Stored { labels, times, values, ..Stored::default() }
    }

    /// Without stale markers, as ranges see it.
    pub fn clean(&self) -> (&[i64], &[f64]) {
        let clean = self.clean.get_or_init(|| {
            if !self.values.iter().any(|v| is_absent(*v)) {
                return None;
            }
            let kept = self.times.iter().zip(&self.values).filter(|(_, v)| !is_absent(**v));
            Some(kept.map(|(t, v)| (*t, *v)).unzip())
        });
        match clean {
            Some((times, values)) => (times, values),
            None => (&self.times, &self.values),
        }
    }

    pub fn resets(&self) -> &[usize] {
        self.resets.get_or_init(|| find_resets(self.clean().1))
    }
}

/// The limits of a reading, and what it has used.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pub samples: usize,
    pub series: usize,
}

fn text_literal(value: &str) -> Expr {
    lit(ScalarValue::Dictionary(Box::new(DataType::Int32), Box::new(ScalarValue::from(value))))
}

/// What the store itself can leave out: other times, names and runs.
fn filter(wanted: &Wanted) -> Vec<Expr> {
    let ns = |ms: i64| lit(ms.saturating_mul(NS_PER_MS));
    // A sample's time is cut to milliseconds, so that all of a millisecond counts.
    let mut filters =
        vec![col("time_ns").gt_eq(ns(wanted.from + 1)), col("time_ns").lt(ns(wanted.to.saturating_add(1)))];
    for m in &wanted.matchers {
        if matches!(m.op, MatchOp::Equal) && !m.value.is_empty() {
            match m.name.as_str() {
                NAME => filters.push(col("name").eq(text_literal(&m.value))),
                // Series of no run in particular may have a label of this name.
                "run" => filters
                    .push(col("run_id").eq(text_literal(&m.value)).or(col("run_id").eq(text_literal(SCRAPED_RUN)))),
                _ => {}
            }
        }
    }
    filters
}

/// What the store can leave out for all of several selectors: one condition per start of a window, with its names.
fn filter_all(all: &[&Wanted]) -> Vec<Expr> {
    let ns = |ms: i64| lit(ms.saturating_mul(NS_PER_MS));
    let to = all.iter().map(|w| w.to).max().unwrap_or_default();
    let first = all.iter().map(|w| w.from).min().unwrap_or_default();
    // None: any name.
    let mut by_start: BTreeMap<i64, Option<BTreeSet<&str>>> = BTreeMap::new();
    for wanted in all {
        let names = by_start.entry(wanted.from).or_insert_with(|| Some(BTreeSet::new()));
        match (wanted.name(), names.as_mut()) {
            (Some(name), Some(names)) => drop(names.insert(name)),
            _ => *names = None,
        }
    }
    let windows = by_start.into_iter().map(|(from, names)| {
        let after = col("time_ns").gt_eq(ns(from + 1));
        match names {
            Some(names) => col("name").in_list(names.into_iter().map(text_literal).collect(), false).and(after),
            None => after,
        }
    });
    let mut filters = vec![col("time_ns").gt_eq(ns(first + 1)), col("time_ns").lt(ns(to.saturating_add(1)))];
    filters.extend(windows.reduce(Expr::or));
    filters
}

/// The scan of a selector: the given columns of the rows that may match.
async fn plan(
    state: &SessionState,
    table: &SnapshotTable,
    filters: Vec<Expr>,
    columns: &[&str],
) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = tables::schema(Table::Series);
    let projected: Vec<usize> = columns.iter().map(|c| schema.index_of(c)).collect::<Result<_, _>>()?;
    let all = filters.iter().cloned().reduce(Expr::and).expect("there is always a time");
    let predicate = state.create_physical_expr(all.clone(), &DFSchema::try_from(schema.clone())?)?;
    let scan = table.plan(state, Some(&projected), &filters, Some(predicate), None).await?;
    let over = state.create_physical_expr(all, &DFSchema::try_from(scan.schema())?)?;
    Ok(Arc::new(FilterExec::try_new(over, scan)?))
}

const COLUMNS: [&str; 6] = ["run_id", "target", "name", "labels", "time_ns", "value"];

/// Reads a selector's series, sorted by labels.
pub async fn read_selector(
    state: &SessionState,
    table: &SnapshotTable,
    wanted: &Wanted,
    budget: &mut Budget,
) -> Result<Vec<Arc<Stored>>> {
    read(state, table, filter(wanted), Selectors::new(&[wanted]), budget).await
}

/// Reads the series of several selectors in one pass, sorted by labels. Each may have samples outside of a selector's window.
pub async fn read_selectors(
    state: &SessionState,
    table: &SnapshotTable,
    wanted: &[&Wanted],
    budget: &mut Budget,
) -> Result<Vec<Arc<Stored>>> {
    read(state, table, filter_all(wanted), Selectors::new(wanted), budget).await
}

/// Several selectors, by the name that they select, so that a series is not held against all of them.
struct Selectors {
    by_name: HashMap<String, Vec<Vec<Matcher>>>,
    of_any_name: Vec<Vec<Matcher>>,
}

impl Selectors {
    fn new(wanted: &[&Wanted]) -> Self {
        let mut all = Selectors { by_name: HashMap::new(), of_any_name: Vec::new() };
        for one in wanted {
            match one.name() {
                Some(name) => all.by_name.entry(name.to_string()).or_default().push(one.matchers.clone()),
                None => all.of_any_name.push(one.matchers.clone()),
            }
        }
        all
    }

    /// The labels of a series that one of them selects.
    fn select(&self, run: &str, target: &str, name: &str, labels: &str) -> Option<Labels> {
        let of_name = self.by_name.get(name);
        if of_name.is_none() && self.of_any_name.is_empty() {
            return None;
        }
        let labels = full_labels(run, target, name, labels);
        let fits = of_name.into_iter().flatten().chain(&self.of_any_name).any(|matchers| matches(matchers, &labels));
        fits.then_some(labels)
    }
}

/// The series that any of the selectors selects.
async fn read(
    state: &SessionState,
    table: &SnapshotTable,
    filters: Vec<Expr>,
    selectors: Selectors,
    budget: &mut Budget,
) -> Result<Vec<Arc<Stored>>> {
    let selectors = Arc::new(selectors);
    let plan = plan(state, table, filters, &COLUMNS).await?;
    let partitions = plan.output_partitioning().partition_count();
    let streams = execute_stream_partitioned(plan, state.task_ctx())?;
    debug_assert_eq!(streams.len(), partitions);
    // Each partition is decoded and sorted out on its own; what they found is joined afterwards. These tasks end with the query,
    // which tasks of Tokio's would not.
    let tasks: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            let (selectors, limit) = (selectors.clone(), budget.samples);
            SpawnedTask::spawn(async move {
                let mut found = FoundSeries::default();
                while let Some(batch) = stream.next().await {
                    found.take(&batch?, &selectors)?;
                    if found.samples > limit {
                        return Err(too_much());
                    }
                }
                Ok(found)
            })
        })
        .collect();
    let mut all: HashMap<Labels, Vec<Chunk>> = HashMap::new();
    for task in tasks {
        let found = task.await.map_err(|e| DataFusionError::Execution(format!("cannot read series: {e}")))??;
        budget.samples = budget.samples.checked_sub(found.samples).ok_or_else(too_much)?;
        for (labels, chunks) in found.series {
            all.entry(labels).or_default().extend(chunks);
        }
    }
    budget.series = budget.series.checked_sub(all.len()).ok_or_else(|| {
        DataFusionError::Plan(
            "the query selects more series than promql_max_series allows; narrow it with a label".into(),
        )
    })?;
    let mut series: Vec<Arc<Stored>> = all.into_iter().map(|(labels, chunks)| Arc::new(join(labels, chunks))).collect();
    series.sort_by(|a, b| a.labels.cmp(&b.labels));
    Ok(series)
}

fn too_much() -> DataFusionError {
    DataFusionError::Plan(
        "the query reads more samples than promql_max_samples allows; narrow it (a label, a shorter time) or \
         raise the limit"
            .into(),
    )
}

/// Samples of a series that came together, in their order.
struct Chunk {
    times: Vec<i64>,
    values: Vec<f64>,
}

#[derive(Default)]
struct FoundSeries {
    /// Position in `series` by run, target, name and labels as they are stored; none if the matchers do not hold.
    known: HashMap<[Arc<str>; 4], Option<usize>>,
    series: Vec<(Labels, Vec<Chunk>)>,
    samples: usize,
}

/// Keys and distinct values of a column of `series`.
fn dictionary<'a>(batch: &'a RecordBatch, name: &str) -> Result<(&'a [i32], &'a StringArray)> {
    let (keys, values) = column::<Text>(batch, name)?
        .dictionary()
        .ok_or_else(|| DataFusionError::Internal(format!("series.{name} is not as declared")))?;
    Ok((keys.values(), values))
}

impl FoundSeries {
    fn take(&mut self, batch: &RecordBatch, selectors: &Selectors) -> Result<()> {
        let texts = [
            dictionary(batch, "run_id")?,
            dictionary(batch, "target")?,
            dictionary(batch, "name")?,
            dictionary(batch, "labels")?,
        ];
        let times = column::<Ints>(batch, "time_ns")?.values();
        let values = column::<Floats>(batch, "value")?.values();
        let key = |row: usize| texts.map(|(keys, _)| keys[row]);
        let mut in_batch: HashMap<[i32; 4], Option<usize>> = HashMap::new();
        let mut row = 0;
        while row < batch.num_rows() {
            let first = key(row);
            let mut end = row + 1;
            while end < batch.num_rows() && key(end) == first {
                end += 1;
            }
            let place = match in_batch.get(&first) {
                Some(place) => *place,
                None => {
                    let of_first = [0, 1, 2, 3].map(|c: usize| Arc::from(texts[c].1.value(first[c] as usize)));
                    let place = self.place(of_first, selectors);
                    in_batch.insert(first, place);
                    place
                }
            };
            if let Some(place) = place {
                let chunks = &mut self.series[place].1;
                let fits = chunks.last().is_some_and(|c| c.times.last().is_some_and(|t| *t <= times[row] / NS_PER_MS));
                if !fits {
                    chunks.push(Chunk { times: Vec::new(), values: Vec::new() });
                }
                let chunk = chunks.last_mut().expect("there is one");
                chunk.times.extend(times[row..end].iter().map(|t| t / NS_PER_MS));
                chunk.values.extend_from_slice(&values[row..end]);
                self.samples += end - row;
            }
            row = end;
        }
        Ok(())
    }

    fn place(&mut self, texts: [Arc<str>; 4], selectors: &Selectors) -> Option<usize> {
        if let Some(known) = self.known.get(&texts) {
            return *known;
        }
        let place = selectors.select(&texts[0], &texts[1], &texts[2], &texts[3]).map(|labels| {
            self.series.push((labels, Vec::new()));
            self.series.len() - 1
        });
        self.known.insert(texts, place);
        place
    }
}

/// The labels that PromQL sees.
pub fn full_labels(run: &str, target: &str, name: &str, labels: &str) -> Labels {
    let stored: serde_json::Map<String, serde_json::Value> = serde_json::from_str(labels).unwrap_or_default();
    let mut pairs: Vec<(String, String)> = Vec::with_capacity(stored.len() + 3);
    if run != SCRAPED_RUN {
        pairs.push(("run".into(), run.into()));
    }
    pairs.push(("instance".into(), target.into()));
    // The sender's own labels come later, so they count.
    pairs.extend(stored.into_iter().map(|(name, value)| match value {
        serde_json::Value::String(text) => (name, text),
        other => (name, other.to_string()),
    }));
    pairs.push((NAME.into(), name.into()));
    Labels::new(pairs)
}

/// Chunks in the order of time. Of samples with the same time the last counts.
fn join(labels: Labels, mut chunks: Vec<Chunk>) -> Stored {
    chunks.retain(|c| !c.times.is_empty());
    chunks.sort_by_key(|c| c.times[0]);
    let len = chunks.iter().map(|c| c.times.len()).sum();
    let (mut times, mut values): (Vec<i64>, Vec<f64>) = (Vec::with_capacity(len), Vec::with_capacity(len));
    for chunk in chunks {
        times.extend(chunk.times);
        values.extend(chunk.values);
    }
    if !times.is_sorted() {
        let mut order: Vec<usize> = (0..times.len()).collect();
        order.sort_by_key(|i| times[*i]);
        values = order.iter().map(|i| values[*i]).collect();
        times = order.iter().map(|i| times[*i]).collect();
    }
    if times.windows(2).any(|w| w[0] == w[1]) {
        let mut kept: Vec<(i64, f64)> = Vec::with_capacity(times.len());
        for (t, v) in times.into_iter().zip(values) {
            match kept.last_mut() {
                Some(last) if last.0 == t => last.1 = v,
                _ => kept.push((t, v)),
            }
        }
        (times, values) = kept.into_iter().unzip();
    }
    Stored::new(labels, times, values)
}

/// A series without its samples: labels, and its kind.
pub async fn list(
    state: &SessionState,
    table: &SnapshotTable,
    wanted: &Wanted,
    limit: usize,
) -> Result<Vec<(Labels, String)>> {
    let plan = plan(state, table, filter(wanted), &["run_id", "target", "name", "labels", "kind", "time_ns"]).await?;
    let mut known: HashMap<[Arc<str>; 5], ()> = HashMap::new();
    let mut found = Vec::new();
    for mut stream in execute_stream_partitioned(plan, state.task_ctx())? {
        while let Some(batch) = stream.next().await {
            let batch = batch?;
            let columns = [
                dictionary(&batch, "run_id")?,
                dictionary(&batch, "target")?,
                dictionary(&batch, "name")?,
                dictionary(&batch, "labels")?,
                dictionary(&batch, "kind")?,
            ];
            let mut seen = std::collections::HashSet::new();
            for row in 0..batch.num_rows() {
                let key = columns.map(|(keys, _)| keys[row]);
                if !seen.insert(key) {
                    continue;
                }
                let texts: [Arc<str>; 5] =
                    [0, 1, 2, 3, 4].map(|c: usize| Arc::from(columns[c].1.value(key[c] as usize)));
                if known.contains_key(&texts) {
                    continue;
                }
                let labels = full_labels(&texts[0], &texts[1], &texts[2], &texts[3]);
                if matches(&wanted.matchers, &labels) {
                    found.push((labels, texts[4].to_string()));
                }
                if found.len() > limit {
                    return Err(DataFusionError::Plan(format!(
                        "more than {limit} series match; narrow it with a label"
                    )));
                }
                known.insert(texts, ());
            }
        }
    }
    found.sort();
    found.dedup_by(|a, b| a.0 == b.0);
    Ok(found)
}
