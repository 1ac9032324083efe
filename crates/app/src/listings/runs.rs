//! Runs.

use std::collections::HashMap;
use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::Mutex;
use rollscope_model::Table;
use rollscope_model::build::{NewRun, RunsBuilder};
use rollscope_model::time::now_ns;
use rollscope_query::Engine;
use rollscope_store::{Part, Snapshot, Store};
use serde::Serialize;
use utoipa::ToSchema;

use super::ns;
use crate::problem::Problem;
use crate::query::{collect, int_column, sql_text, text_column};

/// One run. Nanoseconds are text.
#[derive(Serialize, ToSchema)]
pub struct RunInfo {
    pub run_id: String,
    #[schema(required)]
    project: Option<String>,
    #[schema(required)]
    name: Option<String>,
    #[schema(required)]
    framework: Option<String>,
    tags: Vec<String>,
    /// `running`, `finished` or `failed`. Null if unknown.
    #[schema(required)]
    status: Option<String>,
    #[schema(required)]
    started_ns: Option<String>,
    #[schema(required)]
    ended_ns: Option<String>,
    /// Latest time in any of its rows.
    #[schema(required)]
    last_ns: Option<String>,
    spans: i64,
    samples: i64,
    /// Number of steps from the first to the last, both included.
    steps: i64,
    /// Bytes on disk: its segments, plus an estimate for its rows in the log.
    bytes: u64,
    /// Part of `bytes` that is in the log: rows of the last minutes, not compressed yet.
    log_bytes: u64,
    /// True for a sender that names no run, step or sample, such as a serving engine, a gateway or a tool server. What it did for a
    /// run is in the steps of that run; itself, it is listed apart from the runs, under the name of its service.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    service: bool,
}

impl RunInfo {
    /// Nothing but spans is known of it.
    fn says_nothing(&self) -> bool {
        let described =
            self.name.is_some() || self.project.is_some() || self.ended_ns.is_some() || !self.tags.is_empty();
        self.spans > 0 && self.samples == 0 && self.steps == 0 && !described
    }
}

/// Of more runs without steps it is not looked at whether they are services.
const MAX_SERVICES: usize = 100;

/// Runs that are known, those asked for last.
const MAX_KNOWN: NonZeroUsize = NonZeroUsize::new(50_000).unwrap();

/// What takes a while to find out about runs, and lists of them are requested often.
pub struct KnownRuns {
    /// How many samples the spans of a run name, and of how many spans that was.
    samples: Mutex<LruCache<String, (i64, i64)>>,
    /// Whether it is a service, and since when it was there.
    services: Mutex<LruCache<String, (Option<String>, bool)>>,
}

impl Default for KnownRuns {
    fn default() -> Self {
        KnownRuns { samples: Mutex::new(LruCache::new(MAX_KNOWN)), services: Mutex::new(LruCache::new(MAX_KNOWN)) }
    }
}

impl KnownRuns {
    async fn is_service(&self, engine: &Engine, run: &RunInfo) -> Result<bool, Problem> {
        if let Some((_, known)) = self.services.lock().get(&run.run_id).filter(|(since, _)| *since == run.started_ns) {
            return Ok(*known);
        }
        let is_service = engine.is_service(&run.run_id).await?;
        self.services.lock().put(run.run_id.clone(), (run.started_ns.clone(), is_service));
        Ok(is_service)
    }

    /// Counts the samples of runs from their spans, in one pass over those that are not known.
    async fn count_samples(&self, engine: &Engine, runs: Vec<&mut RunInfo>) -> Result<(), Problem> {
        let mut unknown = Vec::new();
        {
            let mut known = self.samples.lock();
            for run in runs {
                match known.get(&run.run_id).filter(|(spans, _)| *spans == run.spans) {
                    Some((_, samples)) => run.samples = *samples,
                    None => unknown.push(run),
                }
            }
        }
        if unknown.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = unknown.iter().map(|run| sql_text(&run.run_id)).collect();
        // A sample's id is unique within its step, which a span need not name.
        let sql = format!(
            "select run_id, sum(case when steps > 0 then steps else 1 end) as samples from \
             (select run_id, sample_id, count(distinct step) as steps from spans \
              where run_id in ({}) and sample_id is not null group by run_id, sample_id) group by run_id",
            names.join(", ")
        );
        let mut counted: HashMap<String, i64> = HashMap::new();
        for batch in collect(engine, &sql).await? {
            let (runs, samples) = (text_column(&batch, "run_id")?, int_column(&batch, "samples")?);
            counted.extend(runs.into_iter().zip(samples).filter_map(|(run, samples)| run.zip(samples)));
        }
        let mut known = self.samples.lock();
        for run in unknown {
            run.samples = counted.get(&run.run_id).copied().unwrap_or(0);
            known.put(run.run_id.clone(), (run.spans, run.samples));
        }
        Ok(())
    }
}

/// The newest first.
pub async fn list(engine: &Engine, known: &KnownRuns) -> Result<Vec<RunInfo>, Problem> {
    // A run that is being deleted may vanish between the snapshot and the reading: then the next snapshot knows.
    let batch = match engine.runs().await {
        Err(_) => engine.runs().await?,
        Ok(batch) => batch,
    };
    let extents = extents(&engine.snapshot());
    let text = |name| text_column(&batch, name);
    let int = |name| int_column(&batch, name);
    let (ids, projects, names) = (text("run_id")?, text("project")?, text("name")?);
    let (frameworks, statuses, tags) = (text("framework")?, text("status")?, text("tags")?);
    let (started, ended, last) = (int("started_ns")?, int("ended_ns")?, int("last_ns")?);
    let (spans, samples) = (int("spans")?, int("samples")?);
    let mut runs: Vec<RunInfo> = (0..batch.num_rows())
        .map(|i| {
            let run_id = ids[i].clone().unwrap_or_default();
            let extent = extents.get(&run_id).cloned().unwrap_or_default();
            RunInfo {
                project: projects[i].clone(),
                name: names[i].clone(),
                framework: frameworks[i].clone(),
                status: statuses[i].clone(),
                tags: tags[i].as_deref().and_then(|t| serde_json::from_str(t).ok()).unwrap_or_default(),
                started_ns: ns(started[i]),
                ended_ns: ns(ended[i]),
                last_ns: ns(last[i]),
                spans: spans[i].unwrap_or(0),
                samples: samples[i].unwrap_or(0),
                steps: extent.steps.map_or(0, |(first, last)| last.saturating_sub(first).saturating_add(1)),
                bytes: extent.segment_bytes + extent.log_bytes,
                log_bytes: extent.log_bytes,
                service: false,
                run_id,
            }
        })
        .collect();
    for run in runs.iter_mut().filter(|run| run.says_nothing()).take(MAX_SERVICES) {
        run.service = known.is_service(engine, run).await?;
    }
    // Without dumps, the spans tell.
    let uncounted = runs.iter_mut().filter(|run| run.samples == 0 && run.spans > 0 && run.steps > 0);
    known.count_samples(engine, uncounted.collect()).await?;
    Ok(runs)
}

#[derive(Clone, Default)]
struct Extent {
    segment_bytes: u64,
    log_bytes: u64,
    steps: Option<(i64, i64)>,
}

impl Extent {
    fn widen(&mut self, (first, last): (i64, i64)) {
        self.steps = Some(self.steps.map_or((first, last), |(a, b)| (a.min(first), b.max(last))));
    }
}

/// Bytes and steps of every run, from the manifest and the tail, without reading a segment.
fn extents(snapshot: &Snapshot) -> HashMap<String, Extent> {
    let mut runs: HashMap<String, Extent> = HashMap::new();
    let mut add = |part: Part<&str>, segment_bytes: u64, log_bytes: u64| {
        let extent = runs.entry(part.run_id.to_string()).or_default();
        extent.segment_bytes += segment_bytes;
        extent.log_bytes += log_bytes;
        if let Some(steps) = part.steps {
            extent.widen(steps);
        }
    };
    for (table, rows) in &snapshot.tables {
        for segment in &rows.segments {
            segment.parts().for_each(|part| add(part, segment.bytes * part.rows / segment.rows.max(1), 0));
        }
        // The log has a batch as it arrived, not compressed: what it takes in memory, by rows.
        for batch in snapshot.tail_contents(*table) {
            let rows: u64 = batch.parts.iter().map(|part| part.rows).sum();
            batch.parts.iter().for_each(|part| add(part.borrowed(), 0, batch.bytes * part.rows / rows.max(1)));
        }
    }
    runs
}

/// Replaces the tags of a run.
pub async fn set_tags(engine: &Engine, store: &Store, run: &str, tags: &[String]) -> Result<(), Problem> {
    let _held = store.hold_runs().await;
    let batch = engine.runs().await?;
    let ids = text_column(&batch, "run_id")?;
    let Some(at) = ids.iter().position(|id| id.as_deref() == Some(run)) else {
        return Err(Problem::not_found(format!("there is no run `{run}`")));
    };
    let text = |name| -> Result<Option<String>, Problem> { Ok(text_column(&batch, name)?.swap_remove(at)) };
    let int = |name| -> Result<Option<i64>, Problem> { Ok(int_column(&batch, name)?[at]) };
    let (project, name, framework) = (text("project")?, text("name")?, text("framework")?);
    let (config, status) = (text("config")?, text("status")?);
    let tags = serde_json::to_string(tags).map_err(|e| Problem::internal(e.to_string()))?;
    let mut rows = RunsBuilder::default();
    rows.push(&NewRun {
        run_id: run,
        project: project.as_deref(),
        name: name.as_deref(),
        framework: framework.as_deref(),
        config: config.as_deref(),
        tags: Some(&tags),
        started_ns: int("started_ns")?.or(int("first_ns")?).unwrap_or_else(now_ns),
        ended_ns: int("ended_ns")?,
        status: status.as_deref(),
        updated_ns: now_ns(),
    });
    let row = rows.finish().map_err(|e| Problem::internal(e.to_string()))?;
    store.append(Table::Runs, row).await?;
    Ok(())
}
