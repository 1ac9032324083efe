//! prime-rl's `rollouts/step_N/{train,eval}/{all,effective}/traces.jsonl` and `metrics.jsonl`, and the `traces.jsonl` of an evaluation
//! with verifiers.
//!
//! A line is an episode with one trace per agent. A trace is a sample: a graph of messages (`nodes`), model calls with their times and
//! usage, rewards, and the times of its phases. A trace may be in `all` of one step and in `effective` of a later one, so its step is the
//! one at which it was dispatched, which both files have.

use std::io::Read;
use std::path::Path;

use rollscope_model::build::{NewSample, NewSpan};
use rollscope_model::names::state;
use rollscope_model::time::seconds_to_ns;
use rollscope_model::{SpanId, TraceId, attrs, ids};

use super::lines;
use super::record::Json;
use super::rows::{self, Fault, Rows};
use super::tokens::Tokens;
use crate::import::{ImportError, ImportOptions, Imported, Importer, Sink};

const TRACES: &str = "traces.jsonl";
const METRICS: &str = "metrics.jsonl";
/// Versions of the weights that are listed for a sample.
const MAX_VERSIONS: i64 = 1000;
/// Stop conditions of verifiers that are limits.
const LIMITS: &[&str] = &["max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "context_length"];

pub struct PrimeRl;

impl Importer for PrimeRl {
    fn name(&self) -> &'static str {
        "prime-rl episodes"
    }

    fn belongs(&self, path: &Path) -> bool {
        path.file_name().is_some_and(|name| name == TRACES)
    }

    fn detects(&self, head: &[u8], path: &Path) -> bool {
        let (keys, all) = lines::first_keys(head);
        let has = |name: &str| keys.iter().any(|key| key == name);
        has("id") && has("env") && (has("traces") || (!all && has("task") && self.belongs(path)))
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let place = Place::of(path);
        let home = rows::home(path, |folder| {
            place.step.is_some()
                && (folder == "rollouts" || numbered(folder).is_some() || Place::parts().contains(&folder))
        });
        let mut rows = Rows::new(path, &home, "prime-rl", options, sink);
        lines::each(input, &mut rows, |rows, line, record| episode(rows, record, &place, line))?;
        rows.finish()
    }
}

/// What the path says: `step_N/train/effective`.
struct Place {
    step: Option<i64>,
    split: &'static str,
    trained_on: bool,
}

impl Place {
    fn parts() -> [&'static str; 4] {
        ["train", "eval", "all", "effective"]
    }

    fn of(path: &Path) -> Place {
        let folders: Vec<String> =
            path.parent().into_iter().flat_map(Path::iter).map(|f| f.to_string_lossy().into_owned()).collect();
        match &folders[..] {
            [.., step, split, subset] if numbered(step).is_some() => Place {
                step: numbered(step),
                split: if split == "eval" { "eval" } else { "train" },
                trained_on: split == "train" && subset == "effective",
            },
            _ => Place { step: None, split: "eval", trained_on: false },
        }
    }
}

pub fn numbered(folder: &str) -> Option<i64> {
    folder.strip_prefix("step_")?.parse().ok()
}

fn episode(rows: &mut Rows, mut episode: Json, place: &Place, line: u64) -> Result<(), Fault> {
    let Some(Json::List(traces)) = episode.take("traces") else {
        return Err(Fault::Line("it has no list of \"traces\"".into()));
    };
    let about = Episode::new(&episode, place);
    if traces.is_empty() {
        about.without_trace(rows, &episode, line);
    }
    for trace in traces {
        about.trace(rows, &trace, line)?;
    }
    Ok(())
}

/// What the traces of an episode share.
struct Episode<'a> {
    id: String,
    step: Option<i64>,
    split: &'a str,
    group: Option<String>,
    source: Option<String>,
    weight_versions: Option<String>,
    place: &'a Place,
}

impl<'a> Episode<'a> {
    fn new(episode: &Json, place: &'a Place) -> Episode<'a> {
        let work = episode.get("run").and_then(|run| run.get("work"));
        let policy = work.and_then(|work| work.get("policy"));
        let versions = policy.and_then(|p| Some((p.i64_of("start")?, p.i64_of("end")?)));
        let env = episode.get("env");
        Episode {
            id: episode.get("id").and_then(Json::as_id).unwrap_or_default(),
            step: work.and_then(|work| work.i64_of("step")).or(place.step),
            split: match work.and_then(|work| work.str_of("type")) {
                Some("train") => "train",
                Some("eval") => "eval",
                _ => place.split,
            },
            group: episode.get("group").and_then(|g| g.get("id")).and_then(Json::as_id),
            source: env.and_then(|e| e.str_of("name").or(e.str_of("id"))).map(str::to_string).filter(|s| !s.is_empty()),
            weight_versions: versions.filter(|(start, end)| start <= end).map(|(start, end)| {
                Json::Ints((start..=end.min(start.saturating_add(MAX_VERSIONS))).collect()).to_text()
            }),
            place,
        }
    }

    /// It failed before any agent began.
    fn without_trace(&self, rows: &mut Rows, episode: &Json, line: u64) {
        let others: Vec<(String, Json)> = [("errors", episode.get("errors"))]
            .into_iter()
            .filter_map(|(k, v)| Some((k.to_string(), v?.clone())))
            .collect();
        let name = if self.id.is_empty() { format!("line {line}") } else { self.id.clone() };
        let name = rows.unique(self.step, self.split, &name, line);
        rows.sample(NewSample { status: Some("failed"), ..self.sample(&name) }, &others, &[], line);
    }

    fn sample<'b>(&'b self, name: &'b str) -> NewSample<'b> {
        NewSample {
            step: self.step,
            sample_id: name,
            split: self.split,
            group_id: self.group.as_deref(),
            source: self.source.as_deref(),
            weight_versions: self.weight_versions.as_deref(),
            removed: self.place.trained_on.then_some(false),
            ..NewSample::default()
        }
    }

    fn trace(&self, rows: &mut Rows, trace: &Json, line: u64) -> Result<(), Fault> {
        let Some(own) = trace.get("id").and_then(Json::as_id) else {
            return Err(Fault::Line("a trace has no \"id\"".into()));
        };
        let name = rows.unique(self.step, self.split, &own, line);
        let (trace_id, _) = ids::trace_id_from_text(&own);
        let path = last_path(trace);
        let nodes: Vec<&Json> = path.iter().filter_map(|at| trace.get("nodes")?.items().get(*at)).collect();
        let messages: Vec<Json> = nodes.iter().filter_map(|node| Some(in_openai_shape(node.get("message")?))).collect();
        let tokens = tokens(&nodes).map_err(Fault::Line)?;
        let calls = trace.get("calls").map_or(&[][..], Json::items);
        let (reward, reward_json) = reward(trace);
        let all = trace.get("nodes").map_or(&[][..], Json::items);
        let sampled = || all.iter().filter(|n| n.get("sampled").and_then(Json::as_bool) == Some(true));
        let tool_calls = sampled().filter_map(|n| n.get("message")?.get("tool_calls")?.count()).sum::<usize>();
        let times = Times::of(trace);
        let label = trace.get("task").and_then(|t| t.get("data")?.get("answer")).map(Json::to_text);
        let mut others = vec![("episode".to_string(), Json::text(self.id.clone()))];
        if let (true, Some(step)) = (self.place.trained_on, self.place.step) {
            others.push(("trained_in_step".into(), Json::Int(step)));
        }
        for name in ["stop_condition", "rewards", "metrics", "info", "errors"] {
            let empty = |v: &&Json| v.count() != Some(0) && **v != Json::Map(Vec::new());
            others.extend(trace.get(name).filter(empty).map(|v| (name.to_string(), v.clone())));
        }
        if let Some(agent) = trace.get("agent").and_then(|a| a.str_of("name")) {
            others.push(("agent".into(), Json::text(agent)));
        }
        others.extend(tokens.as_ref().map(Tokens::means).unwrap_or_default());
        let lengths = tokens.as_ref().map_or_else(|| usage(calls), |tokens| NewSample { ..tokens.lengths() });
        let cached = sum(calls, "cached_input_tokens");
        let row = NewSample {
            trace_id: Some(trace_id),
            status: Some(status(trace, calls)),
            reward,
            reward_json: reward_json.as_deref(),
            label: label.as_deref(),
            start_ns: times.start,
            end_ns: times.end,
            prompt_tokens: lengths.prompt_tokens,
            response_tokens: lengths.response_tokens,
            total_tokens: lengths.total_tokens,
            response_length: lengths.response_length,
            turns: i32::try_from(sampled().count()).ok(),
            tool_calls: i32::try_from(tool_calls).ok(),
            cached_tokens: cached,
            cache_total_tokens: cached.and(sum(calls, "prompt_tokens")).map(|p| p.saturating_add(cached.unwrap_or(0))),
            ..self.sample(&name)
        };
        if let Some(tokens) = &tokens {
            rows.tokens(&row, tokens)?;
        }
        rows.sample(row, &others, &messages, line);
        self.spans(rows, trace, &name, trace_id, &times, calls);
        Ok(())
    }

    /// The trace from beginning to end, its phases inside, and the model calls inside the agent's.
    fn spans(&self, rows: &mut Rows, trace: &Json, name: &str, trace_id: TraceId, times: &Times, calls: &[Json]) {
        let (Some(start_ns), Some(end_ns)) = (times.start, times.end) else { return };
        let error = trace.get("errors").and_then(|e| e.items().last()).and_then(|e| e.str_of("message"));
        let mut place = 0;
        let mut id = || {
            place += 1;
            ids::span_id_from_place(&trace_id, place)
        };
        let span = NewSpan {
            step: self.step,
            trace_id,
            sample_id: Some(name),
            group_id: self.group.as_deref(),
            state: state::CLOSED,
            ..NewSpan::default()
        };
        let root: SpanId = id();
        rows.span(NewSpan {
            span_id: root,
            name: "rollout",
            phase: Some("rollout"),
            start_ns,
            end_ns: Some(end_ns),
            status: if error.is_some() { "error" } else { "unset" },
            status_message: error,
            ..span.clone()
        });
        let mut agent = root;
        for (name, phase, (start_ns, end_ns)) in &times.phases {
            let span_id = id();
            if *name == "agent" {
                agent = span_id;
            }
            let parent_span_id = Some(root);
            let (phase, start_ns, end_ns) = (*phase, *start_ns, Some(*end_ns));
            rows.span(NewSpan { span_id, parent_span_id, name, phase, start_ns, end_ns, ..span.clone() });
        }
        for call in calls {
            let span_id = id();
            let Some((start_ns, end_ns)) = call.get("time").and_then(time_span) else { continue };
            let usage = call.get("usage");
            let of = |name: &str| usage.and_then(|u| u.i64_of(name));
            let mut end_attrs: Vec<(&str, attrs::Value)> = Vec::new();
            for (name, value) in [
                ("gen_ai.request.model", call.str_of("model").map(attrs::Value::from)),
                ("gen_ai.response.finish_reasons", call.str_of("finish_reason").map(attrs::Value::from)),
                (
                    "prompt_tokens",
                    of("prompt_tokens").map(|p| p.saturating_add(of("cached_input_tokens").unwrap_or(0)).into()),
                ),
                ("completion_tokens", of("completion_tokens").map(attrs::Value::from)),
                ("cached_tokens", of("cached_input_tokens").map(attrs::Value::from)),
            ] {
                end_attrs.extend(value.map(|value| (name, value)));
            }
            let error = call.get("error").and_then(|e| e.str_of("message"));
            rows.span(NewSpan {
                span_id,
                parent_span_id: Some(agent),
                name: "generate",
                kind: "client",
                phase: Some("generate"),
                start_ns,
                end_ns: Some(end_ns),
                status: if error.is_some() { "error" } else { "unset" },
                status_message: error,
                end_attrs: &end_attrs,
                ..span.clone()
            });
        }
    }
}

/// When a trace began and ended, and its phases that took place.
struct Times {
    start: Option<i64>,
    end: Option<i64>,
    phases: Vec<(&'static str, Option<&'static str>, (i64, i64))>,
}

impl Times {
    fn of(trace: &Json) -> Times {
        let timing = trace.get("timing");
        let phases: Vec<_> = [
            ("boot", None),
            ("setup", None),
            ("agent", Some("rollout")),
            ("finalize", None),
            ("scoring", Some("reward")),
        ]
        .into_iter()
        .filter_map(|(name, phase)| Some((name, phase, time_span(timing?.get(name)?)?)))
        .collect();
        let begun = timing.and_then(|t| t.f64_of("start")).filter(|s| *s > 0.0).and_then(seconds_to_ns);
        let start = begun.into_iter().chain(phases.iter().map(|(_, _, (start, _))| *start)).min();
        let end = phases.iter().map(|(_, _, (_, end))| *end).max();
        Times { start, end, phases }
    }
}

/// A zero is a time that never came.
fn time_span(value: &Json) -> Option<(i64, i64)> {
    let at = |name: &str| value.f64_of(name).filter(|s| *s > 0.0 && s.is_finite()).and_then(seconds_to_ns);
    Some((at("start")?, at("end")?)).filter(|(start, end)| start <= end)
}

/// The places of the messages that lead to the last leaf: the conversation as it ended.
fn last_path(trace: &Json) -> Vec<usize> {
    let nodes = trace.get("nodes").map_or(&[][..], Json::items);
    let parent = |at: usize| nodes[at].i64_of("parent").and_then(|p| usize::try_from(p).ok());
    let mut is_parent = vec![false; nodes.len()];
    for parent in (0..nodes.len()).filter_map(parent).filter(|p| *p < nodes.len()) {
        is_parent[parent] = true;
    }
    let mut path = Vec::new();
    let mut at = (0..nodes.len()).rev().find(|at| !is_parent[*at]);
    while let Some(node) = at {
        path.push(node);
        // A parent comes before its children; anything else would lead in a circle.
        at = parent(node).filter(|parent| *parent < node);
    }
    path.reverse();
    path
}

/// verifiers writes the name and arguments of a tool call beside its id.
fn in_openai_shape(message: &Json) -> Json {
    let mut message = message.clone();
    if let Some(Json::List(calls)) = message.take("tool_calls") {
        let calls = calls.into_iter().map(|mut call| match (call.take("name"), call.take("arguments")) {
            (Some(name), arguments) => Json::map([
                ("id", call.take("id").unwrap_or_default()),
                ("type", Json::text("function")),
                ("function", Json::map([("name", name), ("arguments", arguments.unwrap_or_default())])),
            ]),
            _ => call,
        });
        let calls = Json::List(calls.collect());
        if let Json::Map(entries) = &mut message {
            entries.push(("tool_calls".into(), calls));
        }
    }
    message
}

/// The tokens along a path. `None` where the engine returned none.
fn tokens(nodes: &[&Json]) -> Result<Option<Tokens>, String> {
    let mut tokens = Tokens::default();
    let any_advantage = nodes.iter().any(|node| node.get("advantages").is_some());
    for node in nodes {
        let list = |name: &str| node.get(name).and_then(Json::numbers).unwrap_or_default();
        let (ids, mask) = (list("token_ids"), list("mask"));
        if ids.len() != mask.len() {
            return Err(format!("a message has {} values of the mask for {} tokens", mask.len(), ids.len()));
        }
        // The template around what was sampled belongs to the turn before.
        if let Some(first) = mask.iter().position(|m| *m != 0.0) {
            tokens.turns.push(tokens.ids.len() + first);
        }
        // Values of the sampled tokens only: of the others nothing is known.
        let spread = |values: Vec<f64>| {
            let mut values = values.into_iter();
            mask.iter()
                .map(move |m| if *m == 0.0 { f64::NAN } else { values.next().unwrap_or(f64::NAN) })
                .collect::<Vec<_>>()
        };
        tokens.rollout_log_probs.extend(spread(list("logprobs")));
        if any_advantage {
            tokens.advantages.extend(spread(list("advantages")));
        }
        tokens.ids.extend(ids.iter().map(|id| *id as i64));
        tokens.trained.extend(mask.iter().map(|m| *m != 0.0));
    }
    tokens.count = tokens.ids.len();
    if tokens.count == 0 { Ok(None) } else { tokens.checked().map(Some) }
}

/// Lengths as the provider reported them, where there are no tokens.
fn usage<'a>(calls: &[Json]) -> NewSample<'a> {
    let of = |call: &Json| {
        let usage = call.get("usage")?;
        let input = usage.i64_of("prompt_tokens")?.saturating_add(usage.i64_of("cached_input_tokens").unwrap_or(0));
        Some((input, usage.i64_of("completion_tokens")?))
    };
    let reported: Vec<(i64, i64)> = calls.iter().filter_map(of).collect();
    let total = reported.last().map(|(input, output)| input.saturating_add(*output));
    let prompt = reported.first().map(|(input, _)| *input);
    NewSample {
        prompt_tokens: prompt,
        response_tokens: sum(calls, "completion_tokens"),
        total_tokens: total,
        response_length: total.zip(prompt).map(|(total, prompt)| total.saturating_sub(prompt).max(0)),
        ..NewSample::default()
    }
}

fn sum(calls: &[Json], name: &str) -> Option<i64> {
    let reported = calls.iter().filter_map(|call| call.get("usage")?.i64_of(name));
    reported.fold(None, |sum: Option<i64>, n| Some(sum.unwrap_or(0).saturating_add(n)))
}

/// The weighted sum of the rewards, and the rewards themselves where there are several.
fn reward(trace: &Json) -> (Option<f64>, Option<String>) {
    let Some(rewards) = trace.get("rewards") else { return (None, None) };
    let value = |reward: &Json| match reward {
        Json::Map(_) => Some(reward.f64_of("score")? * reward.f64_of("weight").unwrap_or(1.0)),
        score => score.as_f64(),
    };
    let values: Vec<f64> = rewards.entries().iter().filter_map(|(_, reward)| value(reward)).collect();
    let sum = (!values.is_empty()).then(|| values.iter().sum());
    (sum, (rewards.entries().len() > 1).then(|| rewards.to_text()))
}

fn status(trace: &Json, calls: &[Json]) -> &'static str {
    let last = calls.iter().rev().find(|call| call.get("error").is_none());
    let is = |name: &str| trace.get(name).and_then(Json::as_bool);
    let stopped = trace.str_of("stop_condition");
    if stopped.is_some_and(|s| LIMITS.contains(&s)) || last.is_some_and(|c| c.str_of("finish_reason") == Some("length"))
    {
        "truncated"
    } else if is("ok") == Some(false) || stopped == Some("error") {
        "failed"
    } else if is("is_completed") == Some(false) {
        "pending"
    } else {
        "completed"
    }
}

/// prime-rl's `metrics.jsonl`: `step`, `time` and a value per metric.
pub struct PrimeRlMetrics;

impl Importer for PrimeRlMetrics {
    fn name(&self) -> &'static str {
        "prime-rl metrics"
    }

    fn belongs(&self, path: &Path) -> bool {
        path.file_name().is_some_and(|name| name == METRICS)
    }

    fn detects(&self, head: &[u8], _path: &Path) -> bool {
        lines::first_keys(head).0.starts_with(&["step".into(), "time".into()])
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let mut rows = Rows::new(path, &rows::home(path, |_| false), "prime-rl", options, sink);
        lines::each(input, &mut rows, |rows, _, record| {
            let Some(time_ns) = record.f64_of("time").and_then(seconds_to_ns) else {
                return Err(Fault::Line("it has no \"time\" in seconds".into()));
            };
            let step = record.i64_of("step");
            for (name, value) in record.entries().iter().filter(|(name, _)| name != "step" && name != "time") {
                if let Some(value) = value.as_f64() {
                    rows.metric(step, time_ns, name, value);
                }
            }
            Ok(())
        })?;
        rows.finish()
    }
}
