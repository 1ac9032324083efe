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
/// What a source takes beside its names and its totals.
const ENTRY_BYTES: usize = 256;
/// A series that was quiet for longer than this begins again at zero, which rates take for a restart.
const LOOK_BACK_NS: i64 = 86_400_000_000_000;
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A source: the run and the target.
type Key = (String, String);
/// None: to be looked up.
type Shared = Arc<tokio::sync::Mutex<Option<Source>>>;

struct Entry {
    source: Shared,
    /// With its key: a source without totals takes memory too.
    bytes: usize,
    used: u64,
}

#[derive(Default)]
struct Sources {
    entries: HashMap<Key, Entry>,
    turn: u64,
}

fn key_bytes((run, target): &Key) -> usize {
    run.len() + target.len() + ENTRY_BYTES
}

impl Sources {
    fn share(&mut self, key: &Key) -> Shared {
        self.turn += 1;
        let new = || Entry { source: Shared::default(), bytes: key_bytes(key), used: 0 };
        let entry = self.entries.entry(key.clone()).or_insert_with(new);
        entry.used = self.turn;
        entry.source.clone()
    }

    /// Forgets the sources that were quiet longest if all take more than `most`. Then an eighth becomes free, so that the next
    /// new sources do not sort all of them again.
    fn forget_down_to(&mut self, most: usize) {
        let mut total: usize = self.entries.values().map(|e| e.bytes).sum();
        if total <= most {
            return;
        }
        // Nobody waits for a source that only this table knows.
        let idle = self.entries.iter().filter(|(_, e)| Arc::strong_count(&e.source) == 1);
        let mut idle: Vec<(u64, Key)> = idle.map(|(key, e)| (e.used, key.clone())).collect();
        idle.sort_unstable();
        for (_, key) in idle {
            if total <= most - most / 8 {
                break;
            }
            total -= self.entries.remove(&key).map_or(0, |e| e.bytes);
        }
    }
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
        self.sources.lock().share(key)
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
                entry.bytes = key_bytes(&key) + bytes;
            }
        }
        sources.forget_down_to(MAX_BYTES);
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        for (_, source) in &mut self.held {
            **source = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_without_totals_are_forgotten_too() {
        let key = |n: usize| ("run".to_string(), format!("service/{n:04}"));
        let mut sources = Sources::default();
        let held = sources.share(&key(0));
        (1..1000).for_each(|n| drop(sources.share(&key(n))));
        let each = key_bytes(&key(0));
        sources.forget_down_to(1000 * each);
        assert_eq!(sources.entries.len(), 1000);
        sources.forget_down_to(800 * each);
        assert_eq!(sources.entries.len(), 700);
        // The one that is in use is the oldest. The others that stay are the newest.
        assert!(sources.entries.contains_key(&key(0)) && !sources.entries.contains_key(&key(300)));
        assert!(sources.entries.contains_key(&key(999)));
        drop(held);
        sources.forget_down_to(600 * each);
        assert!(!sources.entries.contains_key(&key(0)));
    }
}
