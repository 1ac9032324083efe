//! Weights & Biases, through its own Python package: one small process per run, which reads JSON lines.

use std::io::{BufRead as _, BufReader, Write as _};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use lru::LruCache;
use serde::{Deserialize, Serialize};

use super::{Sink, StepRow, folder_name};

const HELPER: &str = include_str!("wandb_sink.py");
/// How many runs are written at the same time: those written to last.
const MAX_RUNS: NonZeroUsize = NonZeroUsize::new(8).unwrap();

/// `[server.sinks.wandb]` of the configuration file. Credentials are W&B's own business (`wandb login`, `WANDB_API_KEY`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WandbConfig {
    pub project: String,
    pub entity: String,
    /// `online` or `offline`.
    pub mode: String,
    /// Folder that W&B writes to.
    pub dir: PathBuf,
    /// The Python that has the package `wandb`.
    pub python: PathBuf,
}

impl Default for WandbConfig {
    fn default() -> Self {
        WandbConfig {
            project: "rollscope".into(),
            entity: String::new(),
            mode: "online".into(),
            dir: ".".into(),
            python: "python3".into(),
        }
    }
}

struct Helper {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Drop for Helper {
    fn drop(&mut self) {
        // The end of its input ends it, after W&B has written everything.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

impl Helper {
    fn answer(&mut self) -> Result<String, String> {
        loop {
            let mut line = String::new();
            match self.answers.read_line(&mut line) {
                Ok(0) => return Err("the Python process ended; check that the package wandb is installed there".into()),
                Err(e) => return Err(e.to_string()),
                Ok(_) => {}
            }
            // Any other output is W&B's own.
            let line = line.trim();
            if line == "ok" || line == "ready" {
                return Ok(line.into());
            }
            if let Some(why) = line.strip_prefix("failed: ") {
                return Err(why.into());
            }
        }
    }
}

pub struct Wandb {
    config: WandbConfig,
    helpers: LruCache<String, Helper>,
}

impl Wandb {
    pub fn new(config: WandbConfig) -> Self {
        Wandb { config, helpers: LruCache::new(MAX_RUNS) }
    }
}

/// Starts the process of a run.
fn start(config: &WandbConfig, run: &str) -> Result<Helper, String> {
    let settings = serde_json::json!({
        "project": config.project,
        "entity": config.entity,
        "mode": config.mode,
        "dir": config.dir,
        "run": run,
        "id": folder_name(run),
    });
    std::fs::create_dir_all(&config.dir).map_err(|e| format!("{}: {e}", config.dir.display()))?;
    let mut child = Command::new(&config.python)
        .args(["-c", HELPER, &settings.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("{}: {e}", config.python.display()))?;
    let answers = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut helper = Helper { child, answers };
    helper.answer()?;
    Ok(helper)
}

impl Sink for Wandb {
    fn write(&mut self, row: &StepRow) -> Result<(), String> {
        let start = || start(&self.config, &row.run);
        let helper = self.helpers.try_get_or_insert_mut(row.run.clone(), start)?;
        let line = format!("{}\n", row.json());
        let sent = match helper.child.stdin.as_mut() {
            Some(stdin) => stdin.write_all(line.as_bytes()).map_err(|e| e.to_string()),
            None => Err("the input of the Python process is closed".into()),
        };
        let done = sent.and_then(|()| helper.answer());
        if done.is_err() && helper.child.try_wait().ok().flatten().is_some() {
            self.helpers.pop(&row.run);
        }
        done.map(|_| ())
    }
}
