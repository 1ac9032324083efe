//! Is it hanging, and who waits for whom? Asked about one moment, which is a parameter: old data can be asked about any time in it.
//!
//! **Does it move?** Something happens when a span starts or ends, when a metric is logged, or when an engine that serves open
//! requests works. The time since then is compared with the longest pause so far, and the age of what is open with the longest
//! that spans of its name took. A run hangs if both are exceeded by far ([`PAUSES`], [`OVERDUE`]). Where there is nothing to compare
//! with, it takes [`PATIENCE_S`].
//!
//! **Who waits?** Open spans wait for their open children. The trainer's rollout waits for samples, also in other traces. What has
//! no open child waits for what it calls: a request for its engine, a tool call for its tool, a reward for its judge, a
//! collective for the ranks that have not entered it ([`peers`]). A span whose process gives no sign of life waits for that process.
//! What nothing else is behind is a suspect. Suspects are ranked by what is known against them, then by how many wait.
//!
//! **What is known** comes from spans, series and dumps. What follows only by exclusion is said to be likely.

mod judge;
mod peers;
pub mod scene;
pub mod signs;
mod words;

use arrow::error::ArrowError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use scene::Rows;
use scene::Scene;
pub use signs::{EngineNow, EngineState};
pub use words::capital;

/// The least time without any event that counts as standing still.
const LEAST_QUIET_S: f64 = 30.0;
/// The same where nothing comparable has ended before.
const PATIENCE_S: f64 = 600.0;
/// How many times the longest pause so far.
const PAUSES: f64 = 2.0;
/// How many times the longest of its name something must have lasted.
const OVERDUE: f64 = 1.5;
/// The same where other things still move, and the least time for that.
const FAR_OVERDUE: f64 = 4.0;
const FAR_OVERDUE_S: f64 = 120.0;
/// A step is slow that takes longer than this many times the median.
const SLOW: f64 = 1.25;
/// Of workers, engines, suspects and spans, how many are listed.
const MAX_WORKERS: usize = 1024;
const MAX_SUSPECTS: usize = 16;
const MAX_NODES: usize = 64;
/// Nodes of the graph. What is beyond that is shown together.
const MAX_GRAPH: usize = 512;
const MAX_SPANS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Moving,
    /// It moves, and its step takes longer than usual.
    Slow,
    Hanging,
    /// The run has ended.
    Finished,
    /// There is nothing to judge by.
    Unknown,
}

/// Something that waits or is waited for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// run, step, phase, samples, engine, tool, judge, collective, process, span or deadlock.
    pub kind: String,
    pub label: String,
    /// How many spans, samples or workers it stands for.
    pub count: usize,
    /// Since when the oldest of them has been open.
    #[schema(required)]
    pub since_ns: Option<i64>,
    /// How long that usually takes, and the longest so far.
    #[schema(required)]
    pub usual_s: Option<f64>,
    #[schema(required)]
    pub longest_s: Option<f64>,
    /// What is known of it, in words.
    pub about: String,
    /// Some of its spans.
    pub spans: Vec<OpenSpan>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OpenSpan {
    pub trace_id: String,
    pub span_id: String,
    #[schema(required)]
    pub sample_id: Option<String>,
}

/// One waits for another. Both are places in the list of nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Wait {
    pub from: usize,
    pub to: usize,
    /// How many of `from` do.
    pub count: usize,
    /// False: it follows only by exclusion.
    pub known: bool,
}

/// What everything waits for in the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Suspect {
    /// Its place in the list of nodes.
    pub node: usize,
    pub kind: String,
    pub name: String,
    pub text: String,
    /// False: it is only likely.
    pub known: bool,
    /// How many wait for it.
    pub waiting: usize,
}

/// What one process does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerNow {
    pub name: String,
    pub service: String,
    pub host: String,
    #[schema(required)]
    pub pid: Option<i64>,
    /// The innermost open span that has been open for longest; empty if none is.
    pub doing: String,
    /// How many such spans it has.
    pub open: usize,
    #[schema(required)]
    pub since_ns: Option<i64>,
    #[schema(required)]
    pub usual_s: Option<f64>,
    #[schema(required)]
    pub longest_s: Option<f64>,
    /// The last span that it started or ended.
    pub last: String,
    pub last_ns: i64,
    /// Its last sign of life, if it sends any, and whether the next is overdue.
    #[schema(required)]
    pub beat_ns: Option<i64>,
    pub silent: bool,
    /// Where its Python code is, if it was asked for its stacks since something last happened, and the span that has all of them.
    #[schema(required)]
    pub place: Option<String>,
    #[schema(required)]
    pub stacks: Option<OpenSpan>,
}

/// What everyone is waiting for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Hang {
    pub run: String,
    pub at_ns: i64,
    pub state: State,
    pub text: String,
    /// When something last happened, and for how long nothing has.
    #[schema(required)]
    pub last_ns: Option<i64>,
    pub quiet_s: f64,
    /// The longest pause before.
    #[schema(required)]
    pub pause_s: Option<f64>,
    #[schema(required)]
    pub step: Option<i64>,
    #[schema(required)]
    pub step_s: Option<f64>,
    #[schema(required)]
    pub usual_step_s: Option<f64>,
    pub suspects: Vec<Suspect>,
    /// From the step to the first suspect: places in the list of nodes.
    pub chain: Vec<usize>,
    pub nodes: Vec<Node>,
    pub waits: Vec<Wait>,
    pub engines: Vec<EngineNow>,
    pub workers: Vec<WorkerNow>,
    /// What would tell more.
    pub advice: Vec<String>,
    /// What stacks say that processes sent, and dumps that were added, in words.
    pub dumps: Vec<String>,
    /// Spans that were read.
    pub spans: usize,
}

/// Judges a run at one moment.
pub fn hang(rows: &Rows) -> Result<Hang, ArrowError> {
    let signs = signs::Signs::read(&rows.series, &rows.beats, rows.at_ns)?;
    Ok(judge::judge(Scene::read(rows)?, signs))
}
