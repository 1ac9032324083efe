//! Computes the metrics of a step when it completes, and again when late rows arrive.
//!
//! A step is complete when a span that represents it has ended (`rollscope.step`, `pipeline_step`; the names are in
//! [`PerfRules::step_spans`]), when a later step of the run has begun, or when the run has ended. Then, after a moment
//! without new rows, its figures go into `metrics` with the source `rollscope`, and to the sinks. A metric that the run
//! logged itself under the same name is left alone. The answers about the step and its timeline are worked out, too, so that nobody waits
//! for them; after a start also those of the newest runs, which may have been imported meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lru::LruCache;
use rollscope_answers::Answers;
use rollscope_answers::ask::MAX_PREPARED_SPANS;
use rollscope_answers::perf::{PerfRules, step_figures};
use rollscope_model::Table;
use rollscope_model::build::{MetricsBuilder, NewMetric};
use rollscope_model::names::source::COMPUTED;
use rollscope_model::time::now_ns;
use rollscope_query::Engine;
use rollscope_store::Store;
use tokio_util::sync::CancellationToken;

use crate::listings::steps::list;
use crate::problem::Problem;
use crate::query::{collect, float_column, int_column, sql_text, text_column};
use crate::sinks::{Sinks, StepRow};
use crate::timeline;

/// A step that gets rows all the time is computed this often.
const AT_LEAST_EVERY: Duration = Duration::from_secs(15);
/// A waiting step is checked for its end when its rows pause, and otherwise this often, because a check costs a query.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// Steps that wait for their completion. Beyond this, the oldest are dropped.
const MAX_WAITING: usize = 10_000;
/// Steps for which we remember what the sinks got.
const MAX_SENT: usize = 2_000;
/// Runs whose steps are looked through after a start, the newest.
const MAX_CAUGHT_UP: usize = 8;
/// Spans of the timelines that are made then, some 20 bytes each.
const CAUGHT_UP_SPANS: i64 = 20_000_000;
/// Runs whose latest step is remembered.
const MAX_RUNS: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

#[derive(Debug, Default)]
pub struct StepCounters {
    pub computed: AtomicU64,
    pub failed: AtomicU64,
    pub microseconds: AtomicU64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

/// Computes one step and stores what changed. Returns all metrics of the step.
pub async fn compute(
    engine: &Engine,
    store: &Store,
    rules: &PerfRules,
    run: &str,
    step: i64,
) -> Result<StepRow, Problem> {
    let _held = store.hold_runs().await;
    let figures = step_figures(engine, run, step, rules).await?;
    let stored = format!(
        "select name, time_ns, value, source from metrics where run_id = {} and step = {step} order by time_ns",
        sql_text(run)
    );
    let mut logged: HashMap<String, f64> = HashMap::new();
    let mut before: HashMap<String, (i64, f64)> = HashMap::new();
    for batch in collect(engine, &stored).await? {
        let (names, sources) = (text_column(&batch, "name")?, text_column(&batch, "source")?);
        let (times, values) = (int_column(&batch, "time_ns")?, float_column(&batch, "value")?);
        for i in 0..batch.num_rows() {
            let (Some(name), Some(time), Some(value)) = (names[i].clone(), times[i], values[i]) else { continue };
            match sources[i].as_deref() {
                Some(COMPUTED) => drop(before.insert(name, (time, value))),
                _ => drop(logged.insert(name, value)),
            }
        }
    }
    // Later figures of a step replace the earlier ones, which takes the same time.
    let time_ns = before.values().map(|(t, _)| *t).next().or(figures.end_ns).unwrap_or_else(now_ns);
    let mut rows = MetricsBuilder::default();
    let mut metrics: BTreeMap<String, f64> = BTreeMap::new();
    for (name, value) in figures.metrics {
        let same = before.get(&name).is_some_and(|(_, old)| old.to_bits() == value.to_bits());
        if !same && !logged.contains_key(&name) {
            let source = Some(COMPUTED);
            rows.push(&NewMetric { run_id: run, step: Some(step), time_ns, name: &name, value, source });
        }
        metrics.insert(name, value);
    }
    metrics.extend(logged);
    let batch = rows.finish().map_err(|e| Problem::internal(e.to_string()))?;
    store.append(Table::Metrics, batch).await?;
    Ok(StepRow { run: run.to_string(), step, time_ns, metrics })
}

/// What the sinks have seen of the latest steps, so that they get every value once, and again only if it changed.
#[derive(Default)]
struct Sent(BTreeMap<(String, i64), HashMap<String, u64>>);

impl Sent {
    fn unseen(&mut self, mut row: StepRow) -> StepRow {
        let seen = self.0.entry((row.run.clone(), row.step)).or_default();
        row.metrics.retain(|name, value| seen.insert(name.clone(), value.to_bits()) != Some(value.to_bits()));
        while self.0.len() > MAX_SENT {
            self.0.pop_first();
        }
        row
    }
}

/// Many steps at once, for instance after an import, leave half of the time to users of the page.
async fn rest(started: Instant) {
    tokio::time::sleep(started.elapsed().min(AT_LEAST_EVERY)).await;
}

struct Waiting {
    first: Instant,
    last: Instant,
    asked: Option<Instant>,
}

pub struct StepWatcher {
    pub answers: Answers,
    pub store: Store,
    pub rules: PerfRules,
    pub sinks: Sinks,
    pub counters: Arc<StepCounters>,
}

impl Waiting {
    fn should_ask(&self, now: Instant, settle: Duration) -> bool {
        self.asked.is_none_or(|asked| now - asked >= ASK_EVERY || (self.last > asked && now - self.last >= settle))
    }
}

impl StepWatcher {
    pub async fn run(self, stop: CancellationToken) {
        let mut waiting: BTreeMap<(String, i64), Waiting> = BTreeMap::new();
        let mut latest: LruCache<String, i64> = LruCache::new(MAX_RUNS);
        let mut sent = Sent::default();
        // Two nodes that take in rows of a step work it out from the same ones, if they wait for those of each other.
        let settle = Duration::from_secs_f64(self.rules.settle_s.clamp(0.0, 3600.0)).max(self.store.behind_others());
        let at_least_every = AT_LEAST_EVERY.max(settle);
        let mut unprepared = self.answers.steps_of_newest_runs(MAX_CAUGHT_UP).await;
        // The newest come first. If all were made, those that were made first would have to go for the others.
        let mut room = CAUGHT_UP_SPANS;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(Duration::from_millis(500)) => {}
            }
            let now = Instant::now();
            for (run, step) in self.store.touched_steps() {
                let highest = match latest.get(&run) {
                    Some(highest) => *highest,
                    None => self.latest(&run).await.unwrap_or(step),
                };
                latest.put(run.clone(), highest.max(step));
                let entry = waiting.entry((run, step)).or_insert(Waiting { first: now, last: now, asked: None });
                entry.last = now;
            }
            while waiting.len() > MAX_WAITING {
                waiting.pop_first();
            }
            let due: Vec<(String, i64)> = waiting
                .iter()
                .filter(|(_, w)| now - w.last >= settle || now - w.first >= at_least_every)
                .map(|(key, _)| key.clone())
                .collect();
            if due.is_empty()
                && let Some((run, step)) = unprepared.pop()
            {
                room -= self.prepare(&run, step, room.min(MAX_PREPARED_SPANS)).await;
            }
            for key in due {
                if stop.is_cancelled() {
                    return;
                }
                let (run, step) = &key;
                let entry = waiting.get_mut(&key).expect("it is there");
                let mut complete = latest.peek(run).is_some_and(|l| step < l);
                if !complete && entry.should_ask(now, settle) {
                    entry.asked = Some(now);
                    complete = self.has_ended(run, *step).await;
                }
                if complete {
                    waiting.remove(&key);
                    let started = Instant::now();
                    self.work_out(run, *step, &mut sent).await;
                    rest(started).await;
                    self.prepare(run, *step, MAX_PREPARED_SPANS).await;
                }
            }
        }
    }

    /// Works out the answers about a step, and its timeline, unless that has more than `most` spans. Returns the spans that were packed for it.
    /// Whoever asks for a step that this failed for gets the reason.
    async fn prepare(&self, run: &str, step: i64, most: i64) -> i64 {
        let started = Instant::now();
        if let Err(error) = self.answers.prepare(run, step).await {
            tracing::debug!(run, step, %error, "cannot prepare the answers about a step");
        }
        if let Err(error) = list(&self.answers, run).await {
            tracing::debug!(run, %error, "cannot prepare the list of steps");
        }
        let packed = timeline::prepare(&self.answers, run, step, most).await.unwrap_or_else(|error| {
            tracing::debug!(run, step, %error, "cannot prepare the timeline of a step");
            0
        });
        rest(started).await;
        packed
    }

    async fn work_out(&self, run: &str, step: i64, sent: &mut Sent) {
        let started = Instant::now();
        let computed = compute(self.answers.engine(), &self.store, &self.rules, run, step).await;
        add(&self.counters.microseconds, started.elapsed().as_micros() as u64);
        match computed {
            Ok(row) => {
                add(&self.counters.computed, 1);
                if !self.sinks.is_empty() {
                    let row = sent.unseen(row);
                    if !row.metrics.is_empty() {
                        self.sinks.send(&row);
                    }
                }
            }
            Err(error) => {
                add(&self.counters.failed, 1);
                tracing::warn!(run, step, %error, "cannot compute the metrics of a step");
            }
        }
    }

    async fn latest(&self, run: &str) -> Option<i64> {
        let mut latest = None;
        for table in ["spans", "samples", "metrics"] {
            let sql = format!("select max(step) as step from {table} where run_id = {}", sql_text(run));
            let batches = collect(self.answers.engine(), &sql).await.ok()?;
            latest = latest.max(int_column(batches.first()?, "step").ok()?.first().copied()?);
        }
        latest
    }

    /// Has the step's own span ended, or the whole run?
    async fn has_ended(&self, run: &str, step: i64) -> bool {
        let names: Vec<String> = self.rules.step_spans.iter().map(|n| sql_text(n)).collect();
        let run = sql_text(run);
        let spans = format!(
            "select count(*) as n from spans where run_id = {run} and step = {step} and state = 'closed' and name in ({})",
            if names.is_empty() { "''".into() } else { names.join(", ") }
        );
        let runs = format!("select count(*) as n from runs where run_id = {run} and status in ('finished', 'failed')");
        for sql in [spans, runs] {
            let batches = collect(self.answers.engine(), &sql).await.unwrap_or_default();
            let n = batches.first().and_then(|b| int_column(b, "n").ok()?.first().copied()?);
            if n.unwrap_or(0) > 0 {
                return true;
            }
        }
        false
    }
}
