//! Signs of life: what engines report about themselves, and whether processes still report at all.

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use hashbrown::HashMap;
use rollscope_model::read::{Floats, Ints, Text, column};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::scene::SECOND;

/// Series of a process that uses our package. Each point is a sign of life. Earlier versions send only the second.
pub const BEATS: [&str; 2] = ["rollscope_sdk_beats_total", "rollscope_sdk_recorded_total"];
/// Written by each scrape.
const UP: &str = "up";
/// Requests that an engine works on, and those that wait for it; SGLang, vLLM.
const RUNNING: &[&str] = &["sglang:num_running_reqs", "vllm:num_requests_running"];
const QUEUED: &[&str] = &["sglang:num_queue_reqs", "vllm:num_requests_waiting"];
/// These change only while an engine works.
const WORK: &[&str] = &[
    "sglang:generation_tokens_total",
    "sglang:prompt_tokens_total",
    "sglang:gen_throughput",
    "sglang:num_used_tokens",
    "sglang:num_requests_total",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:kv_cache_usage_perc",
    "vllm:request_success_total",
];

/// Intervals between signs of life after which a sender counts as silent, and the least time for that.
const MISSED: f64 = 3.0;
const LEAST_SILENCE_S: f64 = 15.0;
/// After this long without a change, an engine that has requests stands still.
pub const STILL_S: f64 = 30.0;

/// The names that are read.
pub fn series_names() -> Vec<&'static str> {
    [&[UP][..], RUNNING, QUEUED, WORK].concat()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EngineState {
    /// It works.
    Moving,
    /// It has nothing to do.
    Idle,
    /// It has requests and makes no progress.
    Still,
    /// Requests wait and none runs.
    NotServing,
    /// It does not answer.
    Down,
    Unknown,
}

/// A serving engine, by its own series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineNow {
    pub name: String,
    pub state: EngineState,
    #[schema(required)]
    pub running: Option<f64>,
    #[schema(required)]
    pub queued: Option<f64>,
    /// When it last reported anything.
    #[schema(required)]
    pub reported_ns: Option<i64>,
    /// When its figures last showed that it works.
    #[schema(required)]
    pub moved_ns: Option<i64>,
}

/// When a process last said that it lives, and whether that is longer ago than it should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beat {
    pub last_ns: i64,
    pub interval_s: f64,
    pub silent: bool,
}

#[derive(Default)]
pub struct Signs {
    pub engines: Vec<EngineNow>,
    /// By `service/instance`.
    pub beats: HashMap<String, Beat>,
    /// Times at which some engine worked.
    pub worked: Vec<i64>,
    /// All processes that gave signs of life are silent, or all engines: then nothing can be said about one of them.
    pub all_silent: bool,
}

/// A time and a value.
type Point = (i64, f64);

#[derive(Default)]
struct Target {
    is_engine: bool,
    /// Times at which it reported, in order.
    reported: Vec<i64>,
    up: Option<Point>,
    running: HashMap<(String, String), Point>,
    queued: HashMap<(String, String), Point>,
    worked: Vec<i64>,
}

impl Signs {
    pub fn read(batches: &[RecordBatch], beats: &[RecordBatch], at: i64) -> Result<Signs, ArrowError> {
        // By target, name and labels: samples may stand in any order.
        let mut series: HashMap<[&str; 3], Vec<Point>> = HashMap::new();
        for batch in batches {
            let text = |name: &str| column::<Text>(batch, name);
            let (targets, names, labels) = (text("target")?, text("name")?, text("labels")?);
            let (times, values): (Ints, Floats) = (column(batch, "time_ns")?, column(batch, "value")?);
            for row in (0..batch.num_rows()).filter(|row| times.at(*row) <= at) {
                let key = [targets.at(row), names.at(row), labels.at(row)];
                series.entry(key).or_default().push((times.at(row), values.at(row)));
            }
        }
        let mut targets: HashMap<&str, Target> = HashMap::new();
        for ([target, name, labels], mut points) in series {
            points.sort_unstable_by_key(|(time, _)| *time);
            let of = targets.entry(target).or_default();
            let known: Vec<Point> = points.into_iter().filter(|(_, value)| !value.is_nan()).collect();
            let Some(last) = known.last().copied() else { continue };
            if name == UP {
                of.up = Some(last);
                of.reported.extend(known.iter().filter(|(_, value)| *value > 0.0).map(|(time, _)| *time));
                continue;
            }
            of.is_engine = true;
            of.reported.extend(known.iter().map(|(time, _)| *time));
            let key = || (name.to_string(), labels.to_string());
            if RUNNING.contains(&name) {
                of.running.insert(key(), last);
            } else if QUEUED.contains(&name) {
                of.queued.insert(key(), last);
                continue;
            }
            of.worked.extend(known.windows(2).filter(|pair| pair[0].1 != pair[1].1).map(|pair| pair[1].0));
        }
        let mut signs = Signs { beats: read_beats(beats, at)?, ..Signs::default() };
        signs.judge(targets, at);
        Ok(signs)
    }

    fn judge(&mut self, targets: HashMap<&str, Target>, at: i64) {
        let signs = self;
        let mut engines: Vec<(&str, Target)> = targets.into_iter().filter(|(_, target)| target.is_engine).collect();
        engines.sort_unstable_by_key(|(name, _)| *name);
        let beats: Vec<Option<Beat>> = engines
            .iter_mut()
            .map(|(_, target)| {
                target.reported.sort_unstable();
                target.reported.dedup();
                beat(&target.reported, at)
            })
            .collect();
        // With nobody left to compare with, it may be ours that is away: the scraper, or the network.
        let scraped_now = beats.iter().flatten().any(|beat| !beat.silent)
            || engines.iter().any(|(_, target)| target.up.is_some_and(|(time, _)| is_recent(time, at)));
        for ((name, target), beat) in engines.into_iter().zip(beats) {
            let now = |of: &HashMap<(String, String), Point>| {
                (!of.is_empty()).then(|| of.values().map(|(_, value)| *value).sum::<f64>())
            };
            let (running, queued) = (now(&target.running), now(&target.queued));
            let moved_ns = target.worked.iter().copied().max();
            let silent = beat.is_none_or(|beat| beat.silent);
            let interval = beat.map_or(10.0, |beat| beat.interval_s);
            let still = moved_ns.is_none_or(|moved| (at - moved) as f64 / 1e9 > STILL_S.max(MISSED * interval));
            let said_down = target.up.is_some_and(|(_, value)| value == 0.0);
            let state = match () {
                () if said_down || silent && scraped_now => EngineState::Down,
                () if silent => EngineState::Unknown,
                () if !still => EngineState::Moving,
                () if queued > Some(0.0) && running.is_none_or(|n| n == 0.0) => EngineState::NotServing,
                () if running > Some(0.0) => EngineState::Still,
                () if running.is_some() => EngineState::Idle,
                () => EngineState::Unknown,
            };
            signs.worked.extend(target.worked);
            let reported_ns = beat.map(|beat| beat.last_ns);
            signs.engines.push(EngineNow { name: name.to_string(), state, running, queued, reported_ns, moved_ns });
        }
        signs.all_silent = !signs.beats.is_empty() && signs.beats.values().all(|beat| beat.silent);
    }

    /// The engine that is meant by an address: `http://10.0.0.12:30000/generate`, `10.0.0.12:30000`, `10.0.0.12`.
    pub fn engine(&self, address: &str) -> Option<usize> {
        let wanted = bare(address);
        let exact = self.engines.iter().position(|engine| bare(&engine.name) == wanted);
        exact.or_else(|| {
            let host = |text: &str| text.rsplit_once(':').map_or(text.to_string(), |(host, _)| host.to_string());
            let mut same = (0..self.engines.len()).filter(|at| host(bare(&self.engines[*at].name)) == host(wanted));
            let first = same.next()?;
            same.next().is_none().then_some(first)
        })
    }
}

/// Host and port alone.
pub fn bare(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap_or(rest)
}

fn is_recent(time: i64, at: i64) -> bool {
    ((at - time) as f64 / 1e9) < 4.0 * LEAST_SILENCE_S
}

/// Seconds between two reports of which nothing is known.
const USUAL_INTERVAL_S: f64 = 10.0;

/// Of times in order.
fn beat(times: &[i64], at: i64) -> Option<Beat> {
    let last_ns = *times.last()?;
    let mut gaps: Vec<i64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    let interval_s = gaps.get(gaps.len() / 2).map_or(USUAL_INTERVAL_S, |gap| *gap as f64 / SECOND as f64);
    Some(Beat::new(last_ns, interval_s, at))
}

impl Beat {
    fn new(last_ns: i64, interval_s: f64, at: i64) -> Beat {
        let silent = (at - last_ns) as f64 / 1e9 > (MISSED * interval_s).max(LEAST_SILENCE_S);
        Beat { last_ns, interval_s, silent }
    }
}

/// By process. Of several series and stretches of time, the one with the shortest interval tells how often it reports.
fn read_beats(batches: &[RecordBatch], at: i64) -> Result<HashMap<String, Beat>, ArrowError> {
    let mut found: HashMap<String, (i64, Option<f64>)> = HashMap::new();
    for batch in batches {
        let targets: Text = column(batch, "target")?;
        let int = |name: &str| column::<Ints>(batch, name);
        let (firsts, lasts, points) = (int("first_ns")?, int("last_ns")?, int("points")?);
        for row in 0..batch.num_rows() {
            let (first, last, points) = (firsts.at(row), lasts.at(row), points.at(row));
            let interval = (points > 2).then(|| (last - first) as f64 / SECOND as f64 / (points - 1) as f64);
            let known = found.entry_ref(targets.at(row)).or_insert((last, None));
            known.0 = known.0.max(last);
            known.1 = [known.1, interval].into_iter().flatten().reduce(f64::min);
        }
    }
    let beat = |(last, interval): (i64, Option<f64>)| Beat::new(last, interval.unwrap_or(USUAL_INTERVAL_S), at);
    Ok(found.into_iter().map(|(target, seen)| (target, beat(seen))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_found_by_address() {
        let engine = |name: &str| EngineNow {
            name: name.to_string(),
            state: EngineState::Unknown,
            running: None,
            queued: None,
            reported_ns: None,
            moved_ns: None,
        };
        let signs = Signs {
            engines: vec![engine("10.0.0.12:30000"), engine("10.0.0.13:30000"), engine("10.0.0.13:30001")],
            ..Signs::default()
        };
        assert_eq!(signs.engine("http://10.0.0.12:30000/generate"), Some(0));
        assert_eq!(signs.engine("10.0.0.12"), Some(0));
        assert_eq!(signs.engine("10.0.0.13:30001"), Some(2));
        assert_eq!(signs.engine("10.0.0.13"), None, "it could be either");
        assert_eq!(signs.engine("10.0.0.14"), None);
    }

    #[test]
    fn silence_is_measured_by_the_usual_interval() {
        let times: Vec<i64> = (0..10).map(|at| at * 10 * SECOND).collect();
        assert!(!beat(&times, 115 * SECOND).unwrap().silent);
        assert!(beat(&times, 125 * SECOND).unwrap().silent);
        assert_eq!(beat(&[], 0), None);
    }
}
