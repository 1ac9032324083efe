//! How runs enter the `runs` table: the first message that names a run writes a row for it, status
//! `running`. A row that was sent explicitly (the SDK's `init` and `finish`) is never overwritten by this.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;
use rollscope_formats::import::otlp::{RunRecord, RunSeen, runs_batch};
use rollscope_model::Table;
use rollscope_model::build::{NewRun, RunsBuilder};
use rollscope_model::time::now_ns;
use rollscope_query::Engine;
use rollscope_store::Store;

use crate::problem::Problem;
use crate::query::{int_column, sql_text, text_column};

/// Ids remembered, those used last. Others are looked up again.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();
/// In a lake, a run is looked up again after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

pub struct Runs {
    store: Store,
    engine: Engine,
    /// With when they were last seen to be there.
    known: Mutex<LruCache<String, Instant>>,
    /// One at a time, so that two messages of a new run do not both write it.
    entering: tokio::sync::Mutex<()>,
}

impl Runs {
    pub fn new(store: Store, engine: Engine) -> Self {
        Runs { store, engine, known: Mutex::new(LruCache::new(REMEMBERED)), entering: tokio::sync::Mutex::new(()) }
    }

    pub fn forget(&self, run_id: &str) {
        self.known.lock().pop(run_id);
    }

    fn unknown<'a>(&self, seen: &'a [RunSeen]) -> Vec<&'a RunSeen> {
        let mut known = self.known.lock();
        seen.iter().filter(|run| known.get(&run.run_id).is_none()).collect()
    }

    /// In a lake, another node may have deleted a run. One message looks for it again, while others go on.
    fn look_again<'a>(&self, seen: &'a [RunSeen]) -> Vec<&'a RunSeen> {
        if self.store.node_name().is_none() {
            return Vec::new();
        }
        let mut known = self.known.lock();
        let mut is_due = |run: &RunSeen| match known.peek_mut(&run.run_id) {
            Some(at) if at.elapsed() >= LOOK_AGAIN => {
                *at = Instant::now();
                true
            }
            _ => false,
        };
        seen.iter().filter(|run| is_due(run)).collect()
    }

    pub async fn enter(&self, seen: &[RunSeen]) -> Result<(), Problem> {
        let again = self.look_again(seen);
        if again.is_empty() && self.unknown(seen).is_empty() {
            return Ok(());
        }
        let _turn = self.entering.lock().await;
        let unknown = [again, self.unknown(seen)].concat();
        if unknown.is_empty() {
            return Ok(());
        }
        let stored = match self.stored(&unknown).await {
            Ok(stored) => stored,
            Err(error) => {
                // The rows themselves must not wait for this; the next message tries again.
                tracing::warn!(%error, "cannot look up runs");
                return Ok(());
            }
        };
        let mut rows = RunsBuilder::default();
        let (mut new, now) = (0, now_ns());
        for run in unknown.iter().filter(|run| !stored.contains(&run.run_id)) {
            new += 1;
            rows.push(&NewRun {
                run_id: &run.run_id,
                project: run.project.as_deref(),
                name: run.name.as_deref(),
                framework: run.framework.as_deref(),
                started_ns: run.first_ns,
                status: Some("running"),
                updated_ns: now,
                ..NewRun::default()
            });
        }
        if new > 0 {
            let batch = rows.finish().map_err(|e| Problem::internal(e.to_string()))?;
            self.store.append(Table::Runs, batch).await?;
        }
        self.remember(unknown.iter().map(|run| &run.run_id));
        Ok(())
    }

    /// Writes rows that their sender sent explicitly. One that is older than the end of its run changes nothing: it
    /// was delayed, for instance in a spilled file.
    pub async fn write(&self, records: &[RunRecord]) -> Result<(), Problem> {
        let _turn = self.entering.lock().await;
        let ended = match self.ended(records).await {
            Ok(ended) => ended,
            Err(error) => {
                tracing::warn!(%error, "cannot look up runs");
                HashMap::new()
            }
        };
        let late = |record: &&RunRecord| ended.get(&record.run_id).is_none_or(|at| record.updated_ns >= *at);
        let rows: Vec<&RunRecord> = records.iter().filter(late).collect();
        if rows.is_empty() {
            return Ok(());
        }
        self.store.append(Table::Runs, runs_batch(rows.iter().copied())).await?;
        self.remember(rows.iter().map(|run| &run.run_id));
        Ok(())
    }

    fn remember<'a>(&self, ids: impl Iterator<Item = &'a String>) {
        let (mut known, now) = (self.known.lock(), Instant::now());
        ids.for_each(|id| {
            known.put(id.clone(), now);
        });
    }

    /// When the rows that mark these runs as ended were written.
    async fn ended(&self, records: &[RunRecord]) -> Result<HashMap<String, i64>, Problem> {
        let list: Vec<String> = records.iter().map(|run| sql_text(&run.run_id)).collect();
        let list = list.join(", ");
        let sql = format!("select run_id, updated_ns from runs where ended_ns is not null and run_id in ({list})");
        let mut found = HashMap::new();
        for batch in &crate::query::collect(&self.engine, &sql).await? {
            let (ids, times) = (text_column(batch, "run_id")?, int_column(batch, "updated_ns")?);
            for (id, time) in ids.into_iter().zip(times) {
                if let (Some(id), Some(time)) = (id, time) {
                    found.insert(id, time);
                }
            }
        }
        Ok(found)
    }

    async fn stored(&self, runs: &[&RunSeen]) -> Result<HashSet<String>, Problem> {
        let list: Vec<String> = runs.iter().map(|run| sql_text(&run.run_id)).collect();
        let sql = format!("select run_id from runs where run_id in ({})", list.join(", "));
        let batches = crate::query::collect(&self.engine, &sql).await?;
        let mut ids = HashSet::new();
        for batch in &batches {
            ids.extend(text_column(batch, "run_id")?.into_iter().flatten());
        }
        Ok(ids)
    }
}
