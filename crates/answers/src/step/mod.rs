//! The spans and samples of one step, read once into arrays that every question shares.
//!
//! Rows stand as in [`Forest`](rollscope_spans::Forest), which finds their parents. Then, in linear passes:
//! - **lost parents** are counted, and the child hangs under the longest span of its trace.
//! - **clocks**: see [`clocks`]; the times of senders whose clock is off are moved, and it is said by how much.
//! - **shared spans**: slime writes a span over a group once for each member. Spans of one name and group whose ends agree
//!   are one span with the children of all ([`StepData::shared`]); so a group waits for its slowest member and its time
//!   counts once.
//! - **waits**: who waits for a span ([`StepData::waiter`]) is its parent, if that ends later; a child that outlives its
//!   parent is waited for by the nearest ancestor that outlives it, or by nobody. A root that is linked to a span around
//!   it (slime's samples to the trainer's rollout) or belongs to a sample inside a rollout is waited for by that.
//! - **hand-overs**: where one engine prefills and another decodes, the transfer on the decode side waits for what the prefill side
//!   did last ([`StepData::handed_over`]).

pub mod clocks;
mod read;
mod relate;

use hashbrown::HashMap;
use rollscope_model::ids::{SpanId, TraceId};
pub use rollscope_spans::{NONE, Texts};

use super::attributes::Facts;
use super::kinds::Kind;
use clocks::Clock;
pub use read::{OUTLINE_COLUMNS, SAMPLE_COLUMNS, SPAN_COLUMNS, with_attributes};

pub mod flag {
    pub const OPEN: u8 = 1;
    pub const ERROR: u8 = 2;
    /// No length: an instant, or an end without a start.
    pub const POINT: u8 = 4;
    pub const GENERATION: u8 = 8;
    pub const MISSING_PARENT: u8 = 16;
    /// Written once for each member of a group.
    pub const SHARED: u8 = 32;
    /// Its sender says that it is a rollout, or part of one.
    pub const SAID_ROLLOUT: u8 = 64;
}

/// Where spans run: a process or thread with its ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Worker {
    pub service: u32,
    pub host: u32,
    pub thread: u32,
    pub pid: Option<i64>,
    pub ranks: [Option<i32>; 3],
    /// The sender it belongs to: an engine with all its processes.
    pub sender: u32,
}

/// What the table of samples says.
#[derive(Clone, Debug, Default)]
pub struct SampleRow {
    pub group: u32,
    pub source: u32,
    pub status: u32,
    pub reward: Option<f64>,
    pub response_tokens: Option<i64>,
    pub cached_tokens: Option<i64>,
    pub cache_total_tokens: Option<i64>,
    pub spec_accepted: Option<i64>,
    pub spec_drafted: Option<i64>,
    pub spec_verifies: Option<i64>,
    pub weight_versions: Vec<i64>,
    pub listed: bool,
}

#[derive(Default)]
pub struct StepData {
    pub start: Vec<i64>,
    /// Of open spans: the latest time known of the step.
    pub end: Vec<i64>,
    pub name: Vec<u32>,
    /// What its sender says it is for; [`NONE`]: nothing.
    pub phase: Vec<u32>,
    pub kind: Vec<Kind>,
    pub flags: Vec<u8>,
    pub parent: Vec<u32>,
    /// Who waits for it; [`NONE`]: the step itself, [`DETACHED`]: nobody.
    pub waiter: Vec<u32>,
    /// Transfers on the side of a request that decodes, and the last span of the prefill side, which they wait for.
    pub handed_over: HashMap<u32, u32>,
    /// The span that stands for it where a span was written once for each member of a group; else itself.
    pub shared: Vec<u32>,
    pub trace: Vec<u32>,
    pub sample: Vec<u32>,
    pub group: Vec<u32>,
    pub attempt: Vec<i32>,
    pub worker: Vec<u32>,
    pub sender: Vec<u32>,
    pub ids: Vec<(TraceId, SpanId)>,
    link_ends: Vec<u32>,
    link_targets: Vec<u32>,
    /// Attributes of tool calls and generations, by row.
    pub facts: Facts,
    pub texts: Texts,
    pub workers: Vec<Worker>,
    /// Samples by number: their id as a text, and what is known of them.
    pub sample_ids: Vec<u32>,
    pub samples: Vec<SampleRow>,
    pub clocks: Vec<Clock>,
    /// Requests of an engine and nothing else: no trainer says what they were for.
    pub requests_only: bool,
    /// The step's own span, where a trainer wrote one.
    pub root: Option<u32>,
    pub step_start: i64,
    pub step_end: i64,
    /// The step goes on: its own span is open, or there is none and something in it is.
    pub running: bool,
    pub open: usize,
    pub missing_parents: usize,
    pub orphan_ends: usize,
    pub dropped: u64,
}

/// In [`StepData::waiter`]: outlives everything that could wait for it.
pub const DETACHED: u32 = u32::MAX - 1;

impl StepData {
    pub fn len(&self) -> usize {
        self.flags.len()
    }

    pub fn is_empty(&self) -> bool {
        self.flags.is_empty()
    }

    pub fn is(&self, row: usize, flag: u8) -> bool {
        self.flags[row] & flag != 0
    }

    pub fn length(&self, row: usize) -> i64 {
        (self.end[row] - self.start[row]).max(0)
    }

    pub fn name_of(&self, row: usize) -> &str {
        self.texts.get(self.name[row])
    }

    /// What to call time that is no span's own.
    pub fn own_name(&self) -> (&'static str, Kind) {
        match self.requests_only {
            true => ("between requests", Kind::Other),
            false => ("the step itself", Kind::Step),
        }
    }

    pub fn sample_name(&self, sample: u32) -> &str {
        self.sample_ids.get(sample as usize).map_or("", |id| self.texts.get(*id))
    }

    pub fn links(&self, row: usize) -> &[u32] {
        let from = if row == 0 { 0 } else { self.link_ends[row - 1] };
        &self.link_targets[from as usize..self.link_ends[row] as usize]
    }

    /// What a person would call a sender: its instance id, its host, or its service.
    pub fn sender_name(&self, sender: u32) -> String {
        let Some(worker) = self.workers.iter().find(|w| w.sender == sender) else {
            return self.texts.get(sender).split('\u{1}').next().map(instance).unwrap_or_default();
        };
        let said = instance(self.texts.get(sender).split('\u{1}').next().unwrap_or(""));
        if !said.is_empty() {
            return said;
        }
        let (host, service) = (self.texts.get(worker.host), self.texts.get(worker.service));
        if host.is_empty() { service.to_string() } else { format!("{service} on {}", short(host)) }
    }

    pub fn worker_name(&self, worker: u32) -> String {
        let Some(w) = self.workers.get(worker as usize) else { return String::new() };
        let label = if w.thread == NONE { self.texts.get(w.service) } else { self.texts.get(w.thread) };
        let mut name = label.to_string();
        let said = self.sender_name(w.sender);
        if !said.is_empty() && said != label {
            name = format!("{said} {name}");
        }
        for (rank, text) in w.ranks.iter().zip(["TP", "DP", "PP"]) {
            if let Some(rank) = rank
                && !name.contains("rank")
            {
                name.push_str(&format!(" {text}{rank}"));
            }
        }
        name
    }
}

/// `service.instance.id` of a resource.
fn instance(resource: &str) -> String {
    let parsed: serde_json::Value = serde_json::from_str(resource).unwrap_or_default();
    short(parsed["service.instance.id"].as_str().unwrap_or("")).to_string()
}

/// Ids made by machines are cut to what tells them apart.
fn short(id: &str) -> &str {
    let long = id.len() > 20 && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    if long { &id[..8] } else { id }
}
