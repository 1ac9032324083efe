//! What miles writes for its dashboard, `dashboard/{stream}.jsonl` or `dashboard/{stream}/{hour}.jsonl`: metrics, phases of processes, samples on
//! their way, GPUs and engines. Its dumps are slime's: see [`slime_pt`](crate::import::slime_pt).
//!
//! Phases and samples have no step here. Engines and GPUs get the names that a scraper would have seen.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::Path;

use rollscope_model::build::{NewPoint, NewSpan};
use rollscope_model::ids;
use rollscope_model::names::state;
use rollscope_model::time::seconds_to_ns;
use xxhash_rust::xxh3::xxh3_128;

use super::lines;
use super::record::Json;
use super::rows::{self, Fault, Rows};
use crate::import::{ImportError, ImportOptions, Imported, Importer, Sink};

/// Segments of samples that began and have not ended, within a file.
const MAX_BEGUN: usize = 1 << 20;
/// `t1` of a phase that still runs.
const OPEN: f64 = -1.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Metrics,
    Phases,
    Trajectories,
    Gpus,
    Engines,
    Buffer,
}

/// Names of streams, and the fields by which a record is known.
const STREAMS: [(Stream, &str, &[&str]); 6] = [
    (Stream::Metrics, "metrics", &["ts", "step_key", "metrics"]),
    (Stream::Phases, "phases", &["name", "t0", "t1", "node", "role"]),
    (Stream::Trajectories, "trajectories", &["ts", "kind", "sample_index", "turn"]),
    (Stream::Gpus, "gpu_util", &["ts", "node", "gpu", "util"]),
    (Stream::Engines, "engine_series", &["ts", "addr", "metric", "value"]),
    (Stream::Buffer, "data_buffer", &["ts", "length"]),
];

/// The stream that a path in a folder `dashboard` names.
fn named(path: &Path) -> Option<Stream> {
    let mut parts = path.iter().rev().map(|part| part.to_string_lossy());
    let file = parts.next()?;
    let (folder, above) = (parts.next()?, parts.next());
    let name = match above.as_deref() {
        Some("dashboard") if folder != "dashboard" => folder.into_owned(),
        _ if folder == "dashboard" => file.split('.').next()?.to_string(),
        _ => return None,
    };
    let is_lines = file.contains(".jsonl");
    STREAMS.iter().find(|(_, stream, _)| is_lines && *stream == name).map(|(stream, _, _)| *stream)
}

pub struct Miles;

impl Importer for Miles {
    fn name(&self) -> &'static str {
        "miles dashboard"
    }

    fn belongs(&self, path: &Path) -> bool {
        named(path).is_some()
    }

    fn detects(&self, head: &[u8], path: &Path) -> bool {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let (keys, _) = lines::first_keys(head);
        let fields = STREAMS.iter().find(|(stream, _, _)| named(&path) == Some(*stream)).map(|(_, _, fields)| fields);
        fields.is_some_and(|fields| fields.iter().all(|name| keys.iter().any(|key| key == name)))
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let Some(stream) = named(&path) else {
            return Err(ImportError::Malformed("the path names no stream of a dashboard".into()));
        };
        let home =
            rows::home(&path, |name| name == "dashboard" || STREAMS.iter().any(|(_, stream, _)| *stream == name));
        // The end of a segment does not say when it began: a file that grows is read from its start.
        let options = &match stream {
            Stream::Trajectories => ImportOptions { lines_before: 0, ..options.clone() },
            _ => options.clone(),
        };
        let mut rows = Rows::new(&path, &home, "miles", options, sink);
        let mut begun = Begun::default();
        lines::each(input, &mut rows, |rows, _, record| match stream {
            Stream::Metrics => metrics(rows, &record),
            Stream::Phases => phase(rows, &record),
            Stream::Trajectories => begun.event(rows, &record),
            Stream::Gpus => gpu(rows, &record),
            Stream::Engines => engine(rows, &record),
            Stream::Buffer => {
                let length = number(&record, "length")?;
                point(rows, time(&record, "ts")?, "", "miles_data_buffer_length", BTreeMap::new(), length);
                Ok(())
            }
        })?;
        begun.finish(&mut rows);
        rows.finish()
    }
}

fn missing(name: &str) -> Fault {
    Fault::Line(format!("it has no \"{name}\" of the right type"))
}

fn time(record: &Json, name: &str) -> Result<i64, Fault> {
    record.f64_of(name).and_then(seconds_to_ns).ok_or_else(|| missing(name))
}

fn number(record: &Json, name: &str) -> Result<f64, Fault> {
    record.f64_of(name).ok_or_else(|| missing(name))
}

fn text<'a>(record: &'a Json, name: &str) -> Result<&'a str, Fault> {
    record.str_of(name).ok_or_else(|| missing(name))
}

fn metrics(rows: &mut Rows, record: &Json) -> Result<(), Fault> {
    let time_ns = time(record, "ts")?;
    let step = record.i64_of("step");
    for (name, value) in record.get("metrics").ok_or_else(|| missing("metrics"))?.entries() {
        if let Some(value) = value.as_f64() {
            rows.metric(step, time_ns, name, value);
        }
    }
    Ok(())
}

/// A phase is written when it begins and again when it ends.
fn phase(rows: &mut Rows, record: &Json) -> Result<(), Fault> {
    let (start_ns, name, role) = (time(record, "t0")?, text(record, "name")?, text(record, "role")?);
    let end_ns = match record.f64_of("t1") {
        Some(OPEN) => None,
        _ => Some(time(record, "t1")?.max(start_ns)),
    };
    let (node, rank) = (text(record, "node")?, record.i64_of("rank").unwrap_or(-1));
    let process = if rank < 0 { role.to_string() } else { format!("{role} {rank}") };
    let trace_id = xxh3_128(format!("{process}\0{node}\0{name}\0{start_ns}").as_bytes()).to_be_bytes();
    rows.span(NewSpan {
        trace_id,
        span_id: ids::span_id_from_place(&trace_id, 0),
        name,
        thread: Some(&process),
        host: Some(node),
        dp_rank: i32::try_from(rank).ok().filter(|rank| *rank >= 0),
        start_ns,
        end_ns,
        state: if end_ns.is_some() { state::CLOSED } else { state::OPEN },
        ..NewSpan::default()
    });
    Ok(())
}

/// A sample, or a turn of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Segment {
    name: &'static str,
    sample: i64,
    turn: i64,
}

/// Segments that began, and when.
#[derive(Default)]
struct Begun {
    segments: HashMap<Segment, (i64, String)>,
    /// Ends without a beginning in this file.
    alone: u64,
}

impl Begun {
    fn event(&mut self, rows: &mut Rows, record: &Json) -> Result<(), Fault> {
        let kind = text(record, "kind")?;
        let (segment, is_start) = match kind.rsplit_once('_') {
            Some((segment, "start")) => (segment, true),
            Some((segment, "end")) => (segment, false),
            _ => return Err(Fault::Line(format!("it has an unknown \"kind\": {kind:.40}"))),
        };
        let name = match segment {
            "attempt" => "sample",
            "gen" => "generate",
            "tool" => "tool",
            _ => return Err(Fault::Line(format!("it has an unknown \"kind\": {kind:.40}"))),
        };
        let sample = record.i64_of("sample_index").ok_or_else(|| missing("sample_index"))?;
        let segment = Segment { name, sample, turn: record.i64_of("turn").unwrap_or(-1) };
        let time_ns = time(record, "ts")?;
        let group = record.i64_of("group_index").filter(|group| *group >= 0).map(|group| group.to_string());
        let group = group.unwrap_or_default();
        if !is_start {
            match self.segments.remove(&segment) {
                Some((start_ns, _)) => {
                    span(rows, segment, start_ns, Some(time_ns.max(start_ns)), &group, record.str_of("detail"))
                }
                None => self.alone += 1,
            }
        } else if self.segments.len() < MAX_BEGUN {
            if let Some((start_ns, group)) = self.segments.insert(segment, (time_ns, group)) {
                span(rows, segment, start_ns, None, &group, None);
            }
        } else {
            return Err(Fault::Line(format!("more than {MAX_BEGUN} segments have not ended (MAX_BEGUN)")));
        }
        Ok(())
    }

    /// What has not ended is open.
    fn finish(self, rows: &mut Rows) {
        let mut open: Vec<_> = self.segments.into_iter().collect();
        open.sort_unstable_by_key(|(segment, (start_ns, _))| (*start_ns, segment.sample, segment.turn));
        for (segment, (start_ns, group)) in open {
            span(rows, segment, start_ns, None, &group, None);
        }
        if self.alone > 0 {
            rows.note(format!("{} ends of segments have no beginning in this file and were left out", self.alone));
        }
    }
}

fn span(rows: &mut Rows, segment: Segment, start_ns: i64, end_ns: Option<i64>, group: &str, detail: Option<&str>) {
    let Segment { name, sample, turn } = segment;
    let trace_id = xxh3_128(format!("miles sample\0{sample}").as_bytes()).to_be_bytes();
    let place = xxh3_128(format!("{name}\0{turn}\0{start_ns}").as_bytes()).to_be_bytes();
    let [span_id, _] = *place.as_chunks::<8>().0 else { return };
    let sample = sample.to_string();
    let detail = detail.filter(|detail| !detail.is_empty()).map(|detail| ("detail", detail.into()));
    let end_attrs: Vec<_> = detail.into_iter().collect();
    rows.span(NewSpan {
        trace_id,
        span_id,
        name,
        phase: Some(if name == "sample" { "rollout" } else { name }),
        sample_id: Some(&sample),
        group_id: Some(group).filter(|group| !group.is_empty()),
        start_ns,
        end_ns,
        state: if end_ns.is_some() { state::CLOSED } else { state::OPEN },
        end_attrs: &end_attrs,
        ..NewSpan::default()
    });
}

/// The names of NVIDIA's exporter of the same figures.
fn gpu(rows: &mut Rows, record: &Json) -> Result<(), Fault> {
    let (time_ns, node) = (time(record, "ts")?, text(record, "node")?);
    let gpu = record.i64_of("gpu").ok_or_else(|| missing("gpu"))?;
    for (field, name) in
        [("util", "DCGM_FI_DEV_GPU_UTIL"), ("mem_mb", "DCGM_FI_DEV_FB_USED"), ("power_w", "DCGM_FI_DEV_POWER_USAGE")]
    {
        if let Some(value) = record.f64_of(field) {
            point(rows, time_ns, node, name, BTreeMap::from([("gpu", gpu.to_string())]), value);
        }
    }
    Ok(())
}

fn engine(rows: &mut Rows, record: &Json) -> Result<(), Fault> {
    let (time_ns, addr, metric) = (time(record, "ts")?, text(record, "addr")?, text(record, "metric")?);
    // miles writes `_` for the `:` of the engine.
    let name = match metric.strip_prefix("sglang_") {
        Some(rest) => format!("sglang:{rest}"),
        None => metric.to_string(),
    };
    let instance = addr.split_once("://").map_or(addr, |(_, rest)| rest);
    let labels = record.get("labels").map_or(&[][..], Json::entries);
    let labels = labels.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?.to_string()))).collect();
    point(rows, time_ns, instance, &name, labels, number(record, "value")?);
    Ok(())
}

fn point(rows: &mut Rows, time_ns: i64, instance: &str, name: &str, mut labels: BTreeMap<&str, String>, value: f64) {
    if !instance.is_empty() {
        labels.insert("instance", instance.to_string());
    }
    labels.insert("job", "miles".into());
    let counts = ["_total", "_sum", "_count", "_bucket"].iter().any(|end| name.ends_with(end));
    let labels = serde_json::to_string(&labels).expect("text maps to text");
    let kind = if counts { "counter" } else { "gauge" };
    rows.point(NewPoint { target: instance, name, labels: &labels, kind, time_ns, value, ..NewPoint::default() });
}
