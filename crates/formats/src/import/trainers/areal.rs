//! AReaL's `session_tracer/[ROLE/]sessions-r{rank}.jsonl`: a session per line, which is one try at a sample, with the times of its phases.
//!
//! Sessions have no step: AReaL generates while it trains, and the file does not say which step took the result.
//! `perf_tracer/[ROLE/]traces-r{rank}.jsonl` holds events of Chrome's format: see [`chrome`](crate::import::chrome).

use std::io::Read;
use std::path::Path;

use rollscope_model::build::{NewSample, NewSpan};
use rollscope_model::names::state;
use rollscope_model::time::seconds_to_ns;
use rollscope_model::{TraceId, ids};
use xxhash_rust::xxh3::xxh3_128;

use super::lines;
use super::record::Json;
use super::rows::{self, Fault, Rows};
use crate::import::{ImportError, ImportOptions, Imported, Importer, Sink};

/// Phases and what they are for.
const PHASES: &[(&str, &str)] = &[("generate", "generate"), ("reward", "reward"), ("toolcall", "tool")];

pub struct ArealSessions;

impl Importer for ArealSessions {
    fn name(&self) -> &'static str {
        "AReaL sessions"
    }

    fn belongs(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("sessions-r") && name.contains(".jsonl")
    }

    fn detects(&self, head: &[u8], _path: &Path) -> bool {
        let (keys, _) = lines::first_keys(head);
        ["task_id", "session_id", "submit_ts", "status"].iter().all(|name| keys.iter().any(|key| key == name))
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let mut rows = Rows::new(path, &home(path, "session_tracer"), "areal", options, sink);
        lines::each(input, &mut rows, session)?;
        rows.finish()
    }
}

/// The folder of the trial: above that of the tracer, which may have one for each role.
pub fn home(path: &Path, tracer: &str) -> std::path::PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let above = path.ancestors().find(|f| f.file_name().is_some_and(|name| name == tracer)).and_then(Path::parent);
    above.map_or_else(|| rows::home(&path, |_| false), Path::to_path_buf)
}

fn session(rows: &mut Rows, line: u64, mut record: Json) -> Result<(), Fault> {
    let time = |record: &Json, name: &str| record.f64_of(name).and_then(seconds_to_ns);
    let Some(start_ns) = time(&record, "submit_ts") else {
        return Err(Fault::Line("it has no \"submit_ts\" in seconds".into()));
    };
    let (Some(session), Some(rank)) = (record.i64_of("session_id"), record.i64_of("rank")) else {
        return Err(Fault::Line("it has no \"session_id\" or no \"rank\"".into()));
    };
    // Every process counts its sessions and tasks.
    let process = match record.str_of("role") {
        Some(role) => format!("{role}-r{rank}"),
        None => format!("r{rank}"),
    };
    let name = rows.unique(None, "train", &format!("{process}-s{session}"), line);
    let group = record.get("task_id").and_then(Json::as_id).map(|task| format!("{process}-t{task}"));
    let trace_id = xxh3_128(format!("{name}\0{start_ns}").as_bytes()).to_be_bytes();
    let phases = record.take("phases").unwrap_or_default();
    let count = |name: &str| phases.get(name).and_then(Json::count).and_then(|n| i32::try_from(n).ok());
    let last = PHASES.iter().flat_map(|(name, _)| phases.get(name).map_or(&[][..], Json::items));
    let last = last.filter_map(|entry| time(entry, "end_ts")).max();
    let end_ns = time(&record, "finalized_ts").into_iter().chain(last).max();
    let (status, removed) = match record.str_of("status") {
        Some("accepted") => (Some("completed"), Some(false)),
        Some("rejected") => (Some("completed"), Some(true)),
        Some("dropped") => (Some("aborted"), Some(true)),
        Some("failed") => (Some("failed"), Some(true)),
        Some("pending") => (Some("pending"), None),
        _ => (None, None),
    };
    let error = (status == Some("failed")).then(|| record.str_of("reason").unwrap_or("failed").to_string());
    let others: Vec<(String, Json)> = record.entries().iter().filter(|(_, v)| *v != Json::Null).cloned().collect();
    rows.sample(
        NewSample {
            sample_id: &name,
            split: "train",
            group_id: group.as_deref(),
            trace_id: Some(trace_id),
            status,
            start_ns: Some(start_ns),
            end_ns,
            turns: count("generate"),
            tool_calls: count("toolcall"),
            removed,
            ..NewSample::default()
        },
        &others,
        &[],
        line,
    );
    spans(rows, &phases, &name, group.as_deref(), &process, trace_id, (start_ns, end_ns), error.as_deref());
    Ok(())
}

/// The session, and inside it every phase as often as it took place.
#[allow(clippy::too_many_arguments)]
fn spans(
    rows: &mut Rows,
    phases: &Json,
    name: &str,
    group_id: Option<&str>,
    process: &str,
    trace_id: TraceId,
    (start_ns, end_ns): (i64, Option<i64>),
    error: Option<&str>,
) {
    let root = ids::span_id_from_place(&trace_id, 0);
    let state_of = |end: Option<i64>| if end.is_some() { state::CLOSED } else { state::OPEN };
    let span = NewSpan { trace_id, sample_id: Some(name), group_id, thread: Some(process), ..NewSpan::default() };
    rows.span(NewSpan {
        span_id: root,
        name: "session",
        phase: Some("rollout"),
        start_ns,
        end_ns,
        state: state_of(end_ns),
        status: if error.is_some() { "error" } else { "unset" },
        status_message: error,
        ..span.clone()
    });
    let mut place = 0;
    for (name, phase) in PHASES {
        for entry in phases.get(name).map_or(&[][..], Json::items) {
            place += 1;
            let time = |name: &str| entry.f64_of(name).and_then(seconds_to_ns);
            let Some(start_ns) = time("start_ts") else { continue };
            let end_ns = time("end_ts").filter(|end| *end >= start_ns);
            rows.span(NewSpan {
                span_id: ids::span_id_from_place(&trace_id, place),
                parent_span_id: Some(root),
                name,
                phase: Some(phase),
                start_ns,
                end_ns,
                state: state_of(end_ns),
                ..span.clone()
            });
        }
    }
}
