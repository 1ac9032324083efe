//! Where the metrics of a step go besides the store: TensorBoard, Weights & Biases, a file of JSON lines. Each sink gets every
//! step once, on its own thread behind a bounded queue. A sink that fails or is slow never holds up anything, and the steps
//! that it missed are counted (`GET /api/v1/sinks`).

mod wandb;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lru::LruCache;
use parking_lot::Mutex;
use rollscope_formats::export::tensorboard::EventWriter;
use rollscope_model::time::ns_to_seconds;
use rollscope_store::Vitals;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use utoipa::ToSchema;

pub use wandb::WandbConfig;

/// `[server.sinks]` of the configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SinkConfig {
    /// Folder for TensorBoard event files, with one subfolder per run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensorboard: Option<PathBuf>,
    /// File that gets one JSON object per step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_lines: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wandb: Option<WandbConfig>,
    /// How many steps may wait for a sink. Further steps are dropped and counted.
    pub max_backlog: usize,
}

impl Default for SinkConfig {
    fn default() -> Self {
        SinkConfig { tensorboard: None, json_lines: None, wandb: None, max_backlog: 1000 }
    }
}

/// The metrics of one step that a sink has not seen.
#[derive(Clone, Debug)]
pub struct StepRow {
    pub run: String,
    pub step: i64,
    pub time_ns: i64,
    pub metrics: BTreeMap<String, f64>,
}

impl StepRow {
    /// JSON has no NaN and no infinity: they are text.
    pub fn json(&self) -> String {
        let metrics: serde_json::Map<String, serde_json::Value> = self
            .metrics
            .iter()
            .map(|(name, value)| {
                let json = serde_json::Number::from_f64(*value).map(serde_json::Value::Number);
                let text = || match value.is_nan() {
                    true => "NaN".into(),
                    false => if *value > 0.0 { "Infinity" } else { "-Infinity" }.into(),
                };
                (name.clone(), json.unwrap_or_else(text))
            })
            .collect();
        serde_json::json!({
            "run": self.run, "step": self.step, "time_s": ns_to_seconds(self.time_ns), "metrics": metrics,
        })
        .to_string()
    }
}

/// How a sink is.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SinkStatus {
    pub name: &'static str,
    /// Steps that wait.
    pub backlog: u64,
    pub written: u64,
    pub failed: u64,
    /// Steps that found the backlog full.
    pub dropped: u64,
    #[schema(required)]
    pub last_error: Option<String>,
}

#[derive(Default)]
struct Figures {
    written: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    last_error: Mutex<Option<String>>,
}

struct Running {
    name: &'static str,
    queue: mpsc::Sender<StepRow>,
    capacity: usize,
    figures: Arc<Figures>,
}

#[derive(Clone, Default)]
pub struct Sinks(Arc<Vec<Running>>);

/// Writes steps somewhere. May block: it has a thread.
trait Sink: Send {
    fn write(&mut self, row: &StepRow) -> Result<(), String>;
}

impl Sinks {
    pub fn start(config: &SinkConfig, vitals: &Vitals) -> Sinks {
        let mut running = Vec::new();
        let mut add = |name, sink: Box<dyn Sink>| running.push(start(name, sink, config.max_backlog.max(1), vitals));
        if let Some(folder) = &config.tensorboard {
            add("tensorboard", Box::new(TensorBoard { folder: folder.clone(), files: LruCache::new(MAX_OPEN) }));
        }
        if let Some(path) = &config.json_lines {
            add("json_lines", Box::new(JsonLines { path: path.clone(), file: None }));
        }
        if let Some(config) = &config.wandb {
            add("wandb", Box::new(wandb::Wandb::new(config.clone())));
        }
        Sinks(Arc::new(running))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Never waits.
    pub fn send(&self, row: &StepRow) {
        for sink in self.0.iter() {
            if sink.queue.try_send(row.clone()).is_err() {
                sink.figures.dropped.fetch_add(1, Relaxed);
                tracing::warn!(sink = sink.name, step = row.step, "the backlog of a sink is full; a step was dropped");
            }
        }
    }

    pub fn status(&self) -> Vec<SinkStatus> {
        let status = |s: &Running| SinkStatus {
            name: s.name,
            backlog: (s.capacity - s.queue.capacity()) as u64,
            written: s.figures.written.load(Relaxed),
            failed: s.figures.failed.load(Relaxed),
            dropped: s.figures.dropped.load(Relaxed),
            last_error: s.figures.last_error.lock().clone(),
        };
        self.0.iter().map(status).collect()
    }
}

fn start(name: &'static str, mut sink: Box<dyn Sink>, capacity: usize, vitals: &Vitals) -> Running {
    let (queue, mut rows) = mpsc::channel::<StepRow>(capacity);
    let figures = Arc::new(Figures::default());
    let counted = figures.clone();
    let spawned = vitals.thread(&format!("sink-{name}"), move || {
        while let Some(row) = rows.blocking_recv() {
            match sink.write(&row) {
                Ok(()) => counted.written.fetch_add(1, Relaxed),
                Err(error) => {
                    tracing::warn!(sink = name, run = row.run, step = row.step, error, "a sink failed to write a step");
                    *counted.last_error.lock() = Some(error);
                    counted.failed.fetch_add(1, Relaxed)
                }
            };
        }
    });
    if let Err(error) = spawned {
        tracing::error!(sink = name, %error, "cannot start a sink");
    }
    Running { name, queue, capacity, figures }
}

/// A name that is safe as a folder.
pub(crate) fn folder_name(run: &str) -> String {
    let safe: String =
        run.chars().take(120).map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
    match safe.trim_matches('.') {
        "" => "run".into(),
        _ if safe.starts_with('.') => format!("_{safe}"),
        _ => safe,
    }
}

/// How many event files are open at the same time: those written to last.
const MAX_OPEN: NonZeroUsize = NonZeroUsize::new(64).unwrap();

struct TensorBoard {
    folder: PathBuf,
    files: LruCache<String, EventWriter<BufWriter<File>>>,
}

/// A fresh event file in a run's folder.
pub fn event_file(folder: &Path, run: &str, time_ns: i64) -> std::io::Result<EventWriter<BufWriter<File>>> {
    let folder = folder.join(folder_name(run));
    std::fs::create_dir_all(&folder)?;
    let seconds = time_ns / 1_000_000_000;
    // Several in one second get a number.
    for n in 0.. {
        let path = folder.join(format!("events.out.tfevents.{seconds}.rollscope.{}.{n}", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return EventWriter::new(BufWriter::new(file), ns_to_seconds(time_ns)),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && n < 1000 => {}
            Err(e) => return Err(e),
        }
    }
    unreachable!("the loop returns")
}

impl Sink for TensorBoard {
    fn write(&mut self, row: &StepRow) -> Result<(), String> {
        let mut write = || -> std::io::Result<()> {
            let create = || event_file(&self.folder, &row.run, rollscope_model::time::now_ns());
            let file = self.files.try_get_or_insert_mut(row.run.clone(), create)?;
            for (name, value) in &row.metrics {
                file.scalar(ns_to_seconds(row.time_ns), row.step, name, *value)?;
            }
            file.flush()
        };
        let written = write();
        if written.is_err() {
            // A file that failed half-way is not written to again.
            self.files.pop(&row.run);
        }
        written.map_err(|e| format!("{}: {e}", self.folder.display()))
    }
}

struct JsonLines {
    path: PathBuf,
    file: Option<File>,
}

impl Sink for JsonLines {
    fn write(&mut self, row: &StepRow) -> Result<(), String> {
        let fail = |e: std::io::Error| format!("{}: {e}", self.path.display());
        if self.file.is_none() {
            self.file = Some(OpenOptions::new().create(true).append(true).open(&self.path).map_err(fail)?);
        }
        let file = self.file.as_mut().expect("it was opened");
        let written = file.write_all(format!("{}\n", row.json()).as_bytes());
        if written.is_err() {
            self.file = None;
        }
        written.map_err(fail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Stuck(std::sync::mpsc::Receiver<()>);

    impl Sink for Stuck {
        fn write(&mut self, _: &StepRow) -> Result<(), String> {
            self.0.recv().map_err(|_| "let go".to_string())
        }
    }

    fn row(step: i64) -> StepRow {
        let metrics = [("a".to_string(), f64::NAN), ("b".to_string(), 1.5)].into();
        StepRow { run: "r".into(), step, time_ns: 1_500_000_000, metrics }
    }

    #[test]
    fn a_sink_that_hangs_drops_and_says_so() {
        let (_hold, wait) = std::sync::mpsc::channel();
        let sinks = Sinks(Arc::new(vec![start("stuck", Box::new(Stuck(wait)), 2, &Vitals::default())]));
        for step in 0..10 {
            sinks.send(&row(step));
        }
        let status = &sinks.status()[0];
        assert!(status.backlog <= 2 && status.dropped >= 7, "{status:?}");
        assert_eq!(status.written, 0);
    }

    #[test]
    fn a_busy_run_keeps_its_event_file_while_others_come_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let mut sink = TensorBoard { folder: folder.path().to_path_buf(), files: LruCache::new(MAX_OPEN) };
        for step in 0..2 * MAX_OPEN.get() as i64 {
            sink.write(&StepRow { run: "busy".into(), ..row(step) }).unwrap();
            sink.write(&StepRow { run: format!("other-{step}"), ..row(step) }).unwrap();
        }
        assert_eq!(sink.files.len(), MAX_OPEN.get());
        assert_eq!(folder.path().join("busy").read_dir().unwrap().count(), 1);
    }

    #[test]
    fn json_has_words_for_what_it_lacks() {
        assert_eq!(row(3).json(), r#"{"run":"r","step":3,"time_s":1.5,"metrics":{"a":"NaN","b":1.5}}"#);
        assert_eq!(folder_name("a/b c"), "a_b_c");
        assert_eq!((folder_name(".."), folder_name("../x")), ("run".into(), "_.._x".into()));
    }
}
