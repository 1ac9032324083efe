//! Metrics with delta temporality: running totals of every source (a run and a target) that sends
//! them. The totals here are a cache of what the store has. What is not here, for instance after a restart, is looked up.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use parking_lot::Mutex;
use rollscope_formats::import::otlp::{Delta, Source, Stored, Summed};
use rollscope_query::Engine;
use tokio::sync::OwnedMutexGuard;

use crate::problem::Problem;
use crate::query::{float_column, int_column, sql_text, text_column};

/// Memory for the totals of all sources. Past this the sources that were quiet longest are looked up again.
const MAX_BYTES: usize = 128 << 20;
/// A series that was quiet for longer than this begins again at zero, which rates take for a restart.
const LOOK_BACK_NS: i64 = 86_400_000_000_000;
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A source: the run and the target.
type Key = (String, String);
/// None: to be looked up.
type Shared = Arc<tokio::sync::Mutex<Option<Source>>>;

#[derive(Default)]
struct Entry {
    source: Shared,
    bytes: usize,
    used: u64,
}

#[derive(Default)]
struct Sources {
    entries: HashMap<Key, Entry>,
    turn: u64,
}

pub struct Deltas {
    engine: Engine,
    sources: Mutex<Sources>,
}

/// Totals that are being stored. If this is dropped before [`Counted::stored`] (the store refuses them, the
/// sender disconnects), their sources forget what they summed.
pub struct Counted<'d> {
    deltas: &'d Deltas,
    held: Vec<(Key, OwnedMutexGuard<Option<Source>>)>,
}

/// What a message's deltas became.
pub struct Totals<'d> {
    pub batch: RecordBatch,
    pub rejected: u64,
    pub reasons: Vec<String>,
    pub counted: Counted<'d>,
}

impl Deltas {
    pub fn new(engine: Engine) -> Self {
        Deltas { engine, sources: Mutex::default() }
    }

    /// Adds the points up. Their sources wait until the rows are stored.
    pub async fn add(&self, deltas: Vec<Delta>) -> Result<Totals<'_>, Problem> {
        let mut counted = Counted { deltas: self, held: Vec::new() };
        let mut summed = Summed::default();
        // In the order of their names, so that two messages do not wait for each other.
        for (key, deltas) in Delta::by_source(deltas) {
            let mut held = self.shared(&key).lock_owned().await;
            let source = match held.take() {
                Some(source) => source,
                None => self.stored(&key, &deltas).await.map_err(|problem| {
                    let detail = format!("cannot look up the totals of {}: {}", key.1, problem.detail());
                    Problem::unavailable(detail, RETRY_AFTER)
                })?,
            };
            held.insert(source).add(deltas, &mut summed);
            counted.held.push((key, held));
        }
        let (batch, rejected, reasons) = summed.finish();
        Ok(Totals { batch, rejected, reasons, counted })
    }

    /// A run was deleted: its totals are gone with it.
    pub fn forget_run(&self, run_id: &str) {
        self.sources.lock().entries.retain(|(run, _), _| run != run_id);
    }

    fn shared(&self, key: &Key) -> Shared {
        let mut sources = self.sources.lock();
        sources.turn += 1;
        let turn = sources.turn;
        let entry = sources.entries.entry(key.clone()).or_default();
        entry.used = turn;
        entry.source.clone()
    }

    /// The last totals that the store has of a source.
    async fn stored(&self, (run, target): &Key, deltas: &[Delta]) -> Result<Source, Problem> {
        let earliest = deltas.iter().map(Delta::start_ns).min().unwrap_or(0).saturating_sub(LOOK_BACK_NS);
        let sql = format!(
            "select name, labels, kind, max(time_ns) as time_ns, last_value(value order by time_ns) as value from series \
             where run_id = {} and target = {} and time_ns >= {earliest} and kind in ('counter', 'gauge', 'histogram') \
             and not isnan(value) group by name, labels, kind",
            sql_text(run),
            sql_text(target)
        );
        let mut rows = Vec::new();
        for batch in &crate::query::collect(&self.engine, &sql).await? {
            let (names, labels, kinds) =
                (text_column(batch, "name")?, text_column(batch, "labels")?, text_column(batch, "kind")?);
            let (times, values) = (int_column(batch, "time_ns")?, float_column(batch, "value")?);
            for ((((name, labels), kind), time), value) in
                names.into_iter().zip(labels).zip(kinds).zip(times).zip(values)
            {
                if let (Some(name), Some(labels), Some(kind), Some(time_ns), Some(value)) =
                    (name, labels, kind, time, value)
                {
                    rows.push(Stored { name, labels, kind, time_ns, value });
                }
            }
        }
        Ok(Source::of_stored(rows))
    }
}

impl Counted<'_> {
    /// The rows are on disk.
    pub fn stored(mut self) {
        let held = std::mem::take(&mut self.held);
        let mut sources = self.deltas.sources.lock();
        for (key, source) in held {
            let bytes = source.as_ref().map_or(0, Source::bytes);
            if let Some(entry) = sources.entries.get_mut(&key) {
                entry.bytes = bytes;
            }
        }
        let mut total: usize = sources.entries.values().map(|e| e.bytes).sum();
        while total > MAX_BYTES {
            // Nobody waits for a source that only this table knows.
            let idle = sources.entries.iter().filter(|(_, e)| Arc::strong_count(&e.source) == 1);
            let Some(key) = idle.min_by_key(|(_, e)| e.used).map(|(key, _)| key.clone()) else { break };
            total -= sources.entries.remove(&key).map_or(0, |e| e.bytes);
        }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        for (_, source) in &mut self.held {
            **source = None;
        }
    }
}
