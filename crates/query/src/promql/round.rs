//! Many queries about one moment, such as the rules of a round: what all of them need is read in one pass, and each is
//! answered from memory. Planning a scan takes longer than evaluating most rules.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use futures::future::BoxFuture;
use rollscope_model::Table;

use super::api::{PromLimits, PromQuery, refused};
use super::eval::{self, Context, Data, PromAnswer, Room, Steps};
use super::labels::{Labels, NAME};
use super::source::{self, Budget, Stored, Wanted, matches};
use crate::Engine;
use crate::error::QueryError;
use crate::limits::QueryLimits;
use crate::progress::Progress;
use crate::running::timed_out;

/// What was read for a round.
pub struct PromRound {
    at: i64,
    limits: PromLimits,
    /// How long each answer may take.
    query_limits: QueryLimits,
    wanted: HashMap<String, Wanted>,
    data: Data,
    /// What could not be read, by selector, and why.
    unread: HashMap<String, QueryError>,
}

fn at_once(at: i64) -> Steps {
    Steps { start: at, end: at, step: 1 }
}

/// The selectors of a query, with the windows that it needs.
fn wants(query: &PromQuery, at: i64, limits: &PromLimits) -> Result<HashMap<String, Wanted>, String> {
    let (nothing, room) = (Data::new(), Room::new(limits.promql_max_samples));
    let cx = Context::new(at_once(at), limits.lookback_ms(), limits.promql_max_steps, &nothing, &room);
    let mut wanted = HashMap::new();
    eval::wanted(&query.expr, &cx, &mut wanted)?;
    Ok(wanted)
}

impl Engine {
    /// Reads what these queries need at one moment, in milliseconds. It does not wait for other queries. Where all of it together
    /// exceeds a limit, each selector is read on its own, so that only queries that exceed it themselves fail.
    pub fn promql_round<'a>(
        &'a self,
        queries: impl Iterator<Item = &'a PromQuery> + Send + 'a,
        at: i64,
        limits: &'a PromLimits,
    ) -> BoxFuture<'a, PromRound> {
        // A query that is refused here says why when it is answered.
        let mut wanted: HashMap<String, Wanted> = HashMap::new();
        for (key, one) in queries.filter_map(|query| wants(query, at, limits).ok()).flatten() {
            let all = wanted.entry(key).or_insert_with(|| one.clone());
            all.from = all.from.min(one.from);
            all.to = all.to.max(one.to);
        }
        Box::pin(async move {
            let mut round = PromRound {
                at,
                limits: limits.clone(),
                query_limits: self.limits().clone(),
                wanted,
                data: Data::new(),
                unread: HashMap::new(),
            };
            let all: Vec<Wanted> = round.wanted.values().cloned().collect();
            match self.series_of(all, limits).await {
                Ok(series) => round.share_out(&series),
                Err(_) => {
                    for (key, wanted) in round.wanted.clone() {
                        match self.series_of(vec![wanted], limits).await {
                            Ok(series) => drop(round.data.insert(key, Arc::new(series))),
                            Err(error) => drop(round.unread.insert(key, error)),
                        }
                    }
                }
            }
            round
        })
    }

    async fn series_of(&self, wanted: Vec<Wanted>, limits: &PromLimits) -> Result<Vec<Arc<Stored>>, QueryError> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let mut budget = Budget { samples: limits.promql_max_samples, series: limits.promql_max_series };
        let progress = Arc::new(Progress::new(0, "round of rules"));
        self.with_table_at_once(Table::Series, progress, move |state, table| async move {
            let wanted: Vec<&Wanted> = wanted.iter().collect();
            source::read_selectors(&state, &table, &wanted, &mut budget).await
        })
        .await
    }
}

impl PromRound {
    /// Gives each selector its series.
    fn share_out(&mut self, series: &[Arc<Stored>]) {
        let mut by_name: HashMap<&str, Vec<&Arc<Stored>>> = HashMap::new();
        for one in series {
            by_name.entry(one.labels.get(NAME)).or_default().push(one);
        }
        for (key, wanted) in &self.wanted {
            let fits = |one: &Arc<Stored>| matches(&wanted.matchers, &one.labels);
            let found: Vec<Arc<Stored>> = match wanted.name() {
                Some(name) => by_name.get(name).into_iter().flatten().copied().filter(|s| fits(s)).cloned().collect(),
                None => series.iter().filter(|s| fits(s)).cloned().collect(),
            };
            self.data.insert(key.clone(), Arc::new(found));
        }
    }

    /// The answer to one of the queries that the round was read for, within the engine's `timeout`.
    pub fn answer(&self, query: &PromQuery) -> Result<PromAnswer, QueryError> {
        let needed = wants(query, self.at, &self.limits).map_err(refused)?;
        if let Some(error) = needed.keys().find_map(|key| self.unread.get(key)) {
            return Err(error.clone());
        }
        let room = Room::new(self.limits.promql_max_samples);
        let lookback = self.limits.lookback_ms();
        let started = Instant::now();
        let is_late = || started.elapsed() >= self.query_limits.timeout;
        let why_stopped = || is_late().then(|| timed_out(&self.query_limits));
        let cx = Context::new(at_once(self.at), lookback, self.limits.promql_max_steps, &self.data, &room);
        eval::answer(&query.expr, &cx.until(&why_stopped))
    }

    /// What a query computed counts for those after it as if it had been stored.
    pub fn add(&mut self, labels: &Labels, value: f64) {
        for (key, wanted) in &self.wanted {
            if !matches(&wanted.matchers, labels) {
                continue;
            }
            let series = Arc::make_mut(self.data.entry(key.clone()).or_default());
            match series.binary_search_by(|one| one.labels.cmp(labels)) {
                Ok(place) => {
                    let mut before = series[place].times.partition_point(|t| *t < self.at);
                    before = before.min(series[place].values.len());
                    let mut times = series[place].times[..before].to_vec();
                    let mut values = series[place].values[..before].to_vec();
                    times.push(self.at);
                    values.push(value);
                    series[place] = Arc::new(Stored::new(labels.clone(), times, values));
                }
                Err(place) => {
                    series.insert(place, Arc::new(Stored::new(labels.clone(), vec![self.at], vec![value])));
                }
            }
        }
    }
}
