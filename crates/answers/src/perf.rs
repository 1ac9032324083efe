//! `perf/` and `rollout/`: the figures of one step, from its spans and samples, once per step and never once per request.
//!
//! A request is a closed span with one of the names in [`PerfRules::request_spans`]. Its timings are in its own attributes,
//! or, for prefill and decode apart, in those of the spans and instants below it: both styles occur, and a field that a
//! request has twice counts once. Only finite numbers count, booleans do not; what has no value is absent, never zero.
//! `docs/metrics.md` explains every one.

use std::collections::{BTreeMap, HashMap};

use arrow::array::RecordBatch;
use rollscope_model::kinds::{Kind, classify};
use rollscope_model::read::{Attrs, Bools, Ids, column};
use rollscope_model::{SpanId, TraceId, pd};
use rollscope_query::columns::{float_column, int_column, text_column};
use rollscope_query::scope::Members;
use rollscope_query::{Engine, QueryError, sql_text};
use serde::{Deserialize, Serialize};

use super::stats::{SUFFIXES, summary};

/// What counts as what. All of it can be set in the configuration file under `[perf]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PerfRules {
    /// Compute the metrics when a step completes.
    pub enabled: bool,
    /// Names of spans that are requests to the serving engine.
    pub request_spans: Vec<String>,
    /// Spans and instants below a request whose names begin with this carry its prefill and decode timings.
    pub segment_prefix: String,
    /// Names of spans whose end completes a step.
    pub step_spans: Vec<String>,
    /// Phases (`spans.phase`) of the rollout: `perf/rollout_time` is the time from their start to their end. Where no span states
    /// one of them, the names of spans tell rollouts. Without those, it is the time of the samples.
    pub rollout_phases: Vec<String>,
    /// Prefix of metrics from requests.
    pub perf_prefix: String,
    /// Prefix of metrics from samples.
    pub rollout_prefix: String,
    /// GPUs of the rollout, for `perf/tokens_per_gpu_per_sec`. 0 means the value in the configuration of the run, if it has one.
    pub rollout_gpus: f64,
    /// Seconds without new rows before a completed step is computed.
    pub settle_s: f64,
}

impl Default for PerfRules {
    fn default() -> Self {
        let texts = |names: &[&str]| names.iter().map(|n| n.to_string()).collect();
        PerfRules {
            enabled: true,
            request_spans: texts(&["sglang_generate"]),
            segment_prefix: pd::SPAN_PREFIX.into(),
            step_spans: texts(&["step", "rollscope.step", "pipeline_step", "train_step"]),
            rollout_phases: texts(&["rollout", "generate"]),
            perf_prefix: "perf/".into(),
            rollout_prefix: "rollout/".into(),
            rollout_gpus: 0.0,
            settle_s: 2.0,
        }
    }
}

/// Attribute of a request, and the name of its metric after the prefix: first the request's own.
const REQUEST_FIELDS: [(&str, &str); FIRST_SEGMENT_FIELD + pd::SEGMENTS.len() + pd::SUMMARY.len()] = {
    let mut fields = [("", ""); FIRST_SEGMENT_FIELD + pd::SEGMENTS.len() + pd::SUMMARY.len()];
    fields[0] = ("e2e_latency", "request/e2e_latency");
    fields[1] = ("queue_time", "request/queue_time");
    fields[2] = ("decode_throughput", "decode/throughput");
    let mut n = 0;
    while n < pd::SEGMENTS.len() {
        fields[FIRST_SEGMENT_FIELD + n] = (pd::SEGMENTS[n].key, pd::SEGMENTS[n].metric);
        n += 1;
    }
    while n < pd::SEGMENTS.len() + pd::SUMMARY.len() {
        fields[FIRST_SEGMENT_FIELD + n] = pd::SUMMARY[n - pd::SEGMENTS.len()];
        n += 1;
    }
    fields
};
/// The fields above from here on may be on spans below the request.
const FIRST_SEGMENT_FIELD: usize = 3;
/// Keys of a run's configuration with the number of GPUs of the rollout.
const GPU_KEYS: [&str; 2] = ["rollout_num_gpus", "rollout_gpus"];
/// The last characters of a response that are checked for repetition, if it is longer than this.
const REPETITION_CHARS: usize = 10_000;
/// Text that shrinks by more than this repeats itself.
const REPETITION_RATIO: f64 = 10.0;
/// From a segment's span up to its request.
const MAX_CLIMB: usize = 4;

/// Name and value, sorted by name.
pub type StepMetrics = BTreeMap<String, f64>;

/// The figures of a step and when it was: the end of its last span or sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepFigures {
    pub metrics: StepMetrics,
    pub end_ns: Option<i64>,
}

fn sql_list(texts: &[String]) -> String {
    let list: Vec<String> = texts.iter().map(|t| sql_text(t)).collect();
    // An empty list is not valid SQL.
    if list.is_empty() { "''".into() } else { list.join(", ") }
}

/// Computes the metrics of one step from everything that the store has about it now.
pub async fn step_figures(engine: &Engine, run: &str, step: i64, rules: &PerfRules) -> Result<StepFigures, QueryError> {
    let of = format!("run_id = {} and step = {step}", sql_text(run));
    let members = engine.members_of_step(run, step).await?;
    let prefix = sql_text(&rules.segment_prefix);
    let spans = format!(
        "select trace_id, span_id, step, parent_span_id, name in ({}) as request, start_attrs, end_attrs from spans \
         where {} and (name in ({}) and state = 'closed' or starts_with(name, {prefix}))",
        sql_list(&rules.request_spans),
        members.filter,
        sql_list(&rules.request_spans),
    );
    let rollout = |which: &str| {
        let columns = "trace_id, span_id, step, start_ns, end_ns";
        format!("select {columns} from spans where {} and {which} and end_ns is not null", members.filter)
    };
    let said_rollout = rollout(&format!("phase in ({})", sql_list(&rules.rollout_phases)));
    let step_end = format!("select max(coalesce(end_ns, start_ns)) as step_end from spans where {of}");
    let samples = format!(
        "select group_id, status, reward, start_ns, end_ns, coalesce(response_length, response_tokens) as length, \
                response_tokens, cached_tokens, cache_total_tokens, spec_accepted, spec_drafted, spec_verifies, \
                non_generation_s from samples where {of} and split = 'train' order by group_id, sample_id"
    );
    let texts = format!(
        "select case when char_count > {REPETITION_CHARS} then messages end as messages from conversations where {of}"
    );
    let config = format!("select config from runs where run_id = {}", sql_text(run));
    let mut out = StepFigures::default();
    requests(&members_of(engine, &spans, &members).await?, &rules.perf_prefix, &mut out.metrics);
    let samples = rows(engine, &samples).await?;
    let mut rollouts = members_of(engine, &said_rollout, &members).await?;
    if rollouts.iter().all(|batch| batch.num_rows() == 0) {
        let names = rollouts_by_name(engine, &members).await?;
        rollouts =
            members_of(engine, &rollout(&format!("sample_id is null and name in ({})", sql_list(&names))), &members)
                .await?;
    }
    let step_end = rows(engine, &step_end).await?;
    let step_end = step_end.first().and_then(|b| int(b, "step_end").first().copied()?);
    let pick = |batches: &[RecordBatch], name: &str, pick: fn(i64, i64) -> i64| {
        batches.iter().flat_map(|b| int(b, name)).flatten().reduce(pick)
    };
    let from_samples = |name: &str, which: fn(i64, i64) -> i64| pick(&samples, name, which);
    let (start, end) = match (pick(&rollouts, "start_ns", i64::min), pick(&rollouts, "end_ns", i64::max)) {
        (Some(start), Some(end)) => (Some(start), Some(end)),
        _ => (from_samples("start_ns", i64::min), from_samples("end_ns", i64::max)),
    };
    out.end_ns = [step_end, from_samples("end_ns", i64::max), end].into_iter().flatten().max();
    let rollout_s = match (start, end) {
        (Some(start), Some(end)) if end > start => Some((end - start) as f64 / 1e9),
        _ => None,
    };
    let gpus = match rules.rollout_gpus > 0.0 {
        true => Some(rules.rollout_gpus),
        false => rows(engine, &config).await?.first().and_then(configured_gpus),
    };
    from_samples_of_step(&samples, rollout_s, gpus, rules, &mut out.metrics);
    let texts = rows(engine, &texts).await?;
    repetition(&texts, &rules.rollout_prefix, &mut out.metrics);
    out.metrics.retain(|_, v| v.is_finite());
    Ok(out)
}

/// Names that are listed in a query.
const MAX_NAMES: usize = 200;

/// Of spans that state no phase: the names that rollouts have.
async fn rollouts_by_name(engine: &Engine, members: &Members) -> Result<Vec<String>, QueryError> {
    let sql =
        format!("select distinct name from spans where {} and phase is null and sample_id is null", members.filter);
    let rows = rows(engine, &sql).await?;
    let names = rows.iter().flat_map(|batch| text_values(batch, "name")).flatten();
    Ok(names.filter(|name| classify(name, None) == Kind::Rollout).take(MAX_NAMES).collect())
}

/// Of the rows of a query, those of the step.
async fn members_of(engine: &Engine, sql: &str, members: &Members) -> Result<Vec<RecordBatch>, QueryError> {
    rows(engine, sql).await?.iter().map(|batch| members.keep(batch)).collect()
}

async fn rows(engine: &Engine, sql: &str) -> Result<Vec<RecordBatch>, QueryError> {
    Ok(engine.sql(sql).await?.collect().await?.0)
}

// What is not there has no values.
fn int(batch: &RecordBatch, name: &str) -> Vec<Option<i64>> {
    int_column(batch, name).unwrap_or_default()
}

fn float(batch: &RecordBatch, name: &str) -> Vec<Option<f64>> {
    float_column(batch, name).unwrap_or_default()
}

fn text_values(batch: &RecordBatch, name: &str) -> Vec<Option<String>> {
    text_column(batch, name).unwrap_or_default()
}

/// A JSON text that is a finite number.
fn number(json: &str) -> Option<f64> {
    json.starts_with(|c: char| c == '-' || c.is_ascii_digit())
        .then(|| json.parse().ok())?
        .filter(|v: &f64| v.is_finite())
}

/// Calls back with every wanted field of a row.
fn fields(attrs: &Attrs, row: usize, mut found: impl FnMut(usize, f64)) {
    for (key, json) in attrs.row(row) {
        if let Some(field) = REQUEST_FIELDS.iter().position(|(name, _)| *name == key)
            && let Some(value) = number(json)
        {
            found(field, value);
        }
    }
}

/// A span in its trace.
type SpanKey = (TraceId, SpanId);

fn requests(batches: &[RecordBatch], prefix: &str, out: &mut StepMetrics) {
    // Every request has a row of values; segments find theirs through their parents.
    let mut values: Vec<[Option<f64>; REQUEST_FIELDS.len()]> = Vec::new();
    let mut request_of: HashMap<SpanKey, usize> = HashMap::new();
    let mut parent_of: HashMap<SpanKey, SpanKey> = HashMap::new();
    let mut below: Vec<(SpanKey, usize, f64)> = Vec::new();
    for batch in batches {
        let (Ok(traces), Ok(spans), Ok(parents)) = (
            column::<Ids<16>>(batch, "trace_id"),
            column::<Ids<8>>(batch, "span_id"),
            column::<Ids<8>>(batch, "parent_span_id"),
        ) else {
            continue;
        };
        let is_request = column::<Bools>(batch, "request").ok();
        let attrs = ["end_attrs", "start_attrs"].map(|name| column::<Attrs>(batch, name).ok());
        for row in 0..batch.num_rows() {
            let key = (traces.at(row), spans.at(row));
            let request = is_request.as_ref().is_some_and(|r| r.get(row) == Some(true)).then(|| {
                values.push([None; REQUEST_FIELDS.len()]);
                request_of.insert(key, values.len() - 1);
                values.len() - 1
            });
            if let (None, Some(parent)) = (request, parents.get(row)) {
                parent_of.insert(key, (key.0, parent));
            }
            for attrs in attrs.iter().flatten() {
                fields(attrs, row, |field, value| match request {
                    // What was set at the end comes first here, and counts.
                    Some(request) => {
                        values[request][field].get_or_insert(value);
                    }
                    None if field >= FIRST_SEGMENT_FIELD => below.push((key, field, value)),
                    None => {}
                });
            }
        }
    }
    for (key, field, value) in below {
        let mut at = key;
        for _ in 0..MAX_CLIMB {
            let Some(parent) = parent_of.get(&at) else { break };
            at = *parent;
            if let Some(request) = request_of.get(&at) {
                values[*request][field].get_or_insert(value);
                break;
            }
        }
    }
    if values.is_empty() {
        return;
    }
    out.insert(format!("{prefix}request/count"), values.len() as f64);
    let profiled = values.iter().filter(|v| v.iter().any(Option::is_some)).count();
    out.insert(format!("{prefix}request/profiled_count"), profiled as f64);
    for (field, (_, name)) in REQUEST_FIELDS.iter().enumerate() {
        put(out, &format!("{prefix}{name}"), values.iter().filter_map(|v| v[field]).collect());
    }
}

/// All figures of a set of values; nothing if there are none.
fn put(out: &mut StepMetrics, name: &str, mut values: Vec<f64>) {
    values.retain(|v| v.is_finite());
    if let Some(figures) = summary(&mut values) {
        out.extend(SUFFIXES.iter().zip(figures).map(|(suffix, value)| (format!("{name}/{suffix}"), value)));
    }
}

fn configured_gpus(batch: &RecordBatch) -> Option<f64> {
    let config: serde_json::Value = serde_json::from_str(text_values(batch, "config").first()?.as_deref()?).ok()?;
    GPU_KEYS.iter().find_map(|key| config.get(key)?.as_f64()).filter(|n| *n > 0.0)
}

fn from_samples_of_step(
    batches: &[RecordBatch],
    rollout_s: Option<f64>,
    gpus: Option<f64>,
    rules: &PerfRules,
    out: &mut StepMetrics,
) {
    let (perf, rollout) = (&rules.perf_prefix, &rules.rollout_prefix);
    let all_int = |name: &str| batches.iter().flat_map(|b| int(b, name)).collect::<Vec<_>>();
    let all_float = |name: &str| batches.iter().flat_map(|b| float(b, name)).collect::<Vec<_>>();
    let all_text = |name: &str| batches.iter().flat_map(|b| text_values(b, name)).collect::<Vec<_>>();
    let statuses = all_text("status");
    if let Some(seconds) = rollout_s {
        out.insert(format!("{perf}rollout_time"), seconds);
    }
    if statuses.is_empty() {
        return;
    }
    let elsewhere: Vec<f64> = all_float("non_generation_s").into_iter().flatten().collect();
    // Where nothing but zeros is reported, nothing was measured.
    if elsewhere.iter().any(|s| *s > 0.0) {
        put(out, &format!("{perf}non_generation_time"), elsewhere);
    }
    let lengths: Vec<f64> = all_int("length").into_iter().flatten().map(|n| n as f64).collect();
    if let (Some(seconds), false) = (rollout_s, lengths.is_empty()) {
        let longest = lengths.iter().copied().fold(0.0, f64::max);
        out.insert(format!("{perf}longest_sample_tokens_per_sec"), longest / seconds);
        if let Some(gpus) = gpus {
            let tokens: f64 = lengths.iter().sum();
            out.insert(format!("{perf}tokens_per_gpu_per_sec"), tokens / seconds / gpus);
        }
    }
    put(out, &format!("{rollout}response_len"), lengths);
    let share = |status: &str| {
        let known = statuses.iter().flatten().count();
        (known > 0).then(|| statuses.iter().flatten().filter(|s| *s == status).count() as f64 / known as f64)
    };
    for status in ["truncated", "aborted"] {
        if let Some(share) = share(status) {
            out.insert(format!("{rollout}{status}_ratio"), share);
        }
    }
    ratio(out, &format!("{rollout}prefix_cache_hit_rate"), &all_int("cached_tokens"), &all_int("cache_total_tokens"));
    ratio(out, &format!("{rollout}spec_accept_rate"), &all_int("spec_accepted"), &all_int("spec_drafted"));
    ratio(out, &format!("{rollout}spec_accept_length"), &all_int("response_tokens"), &all_int("spec_verifies"));
    groups(&all_text("group_id"), &all_float("reward"), rollout, out);
}

/// The sum of one over the sum of the other, over samples that have both.
fn ratio(out: &mut StepMetrics, name: &str, above: &[Option<i64>], below: &[Option<i64>]) {
    let both = above.iter().zip(below).filter_map(|(a, b)| Some(((*a)?, (*b)?)));
    let (a, b) = both.fold((0i64, 0i64), |(x, y), (a, b)| (x.saturating_add(a), y.saturating_add(b)));
    if b > 0 {
        out.insert(name.to_string(), a as f64 / b as f64);
    }
}

/// Groups whose rewards are all the same (no gradient), and how often one of k tries succeeds.
fn groups(ids: &[Option<String>], rewards: &[Option<f64>], prefix: &str, out: &mut StepMetrics) {
    let mut groups: BTreeMap<&str, Vec<Option<f64>>> = BTreeMap::new();
    for (id, reward) in ids.iter().zip(rewards) {
        if let Some(id) = id {
            groups.entry(id).or_default().push(*reward);
        }
    }
    let complete: Vec<Vec<f64>> =
        groups.into_values().filter_map(|g| g.into_iter().collect::<Option<Vec<f64>>>()).collect();
    for group in &complete {
        if group.iter().all(|r| *r == group[0]) {
            *out.entry(format!("{prefix}zero_std/count_{:?}", (group[0] * 10.0).round() / 10.0)).or_default() += 1.0;
        }
    }
    let Some(size) = complete.first().map(Vec::len).filter(|n| complete.iter().all(|g| g.len() == *n)) else { return };
    let binary = complete.iter().flatten().all(|r| *r == 0.0 || *r == 1.0);
    let mut k = 1;
    while binary && size > 1 && k <= size {
        let passed: f64 = complete.iter().map(|g| pass_at(k, size, g.iter().filter(|r| **r == 1.0).count())).sum();
        out.insert(format!("{prefix}pass@{k}"), passed / complete.len() as f64);
        k *= 2;
    }
}

/// The chance that one of `k` drawn from `n`, of which `good` are good, is good.
fn pass_at(k: usize, n: usize, good: usize) -> f64 {
    if n - good < k {
        return 1.0;
    }
    1.0 - (n - good + 1..=n).map(|i| 1.0 - k as f64 / i as f64).product::<f64>()
}

/// The share of responses that go round in circles: the end of a long one shrinks more than tenfold.
fn repetition(batches: &[RecordBatch], prefix: &str, out: &mut StepMetrics) {
    let (mut all, mut repeated) = (0.0, 0.0);
    for messages in batches.iter().flat_map(|b| text_values(b, "messages")) {
        all += 1.0;
        repeated += f64::from(messages.is_some_and(|m| repeats(&m)));
    }
    if all > 0.0 {
        out.insert(format!("{prefix}repetition_frac"), repeated / all);
    }
}

fn repeats(messages: &str) -> bool {
    use std::io::Write;
    let Ok(serde_json::Value::Array(messages)) = serde_json::from_str(messages) else { return false };
    let last = messages.iter().rev().find(|m| m["role"] == "assistant").and_then(|m| m["content"].as_str());
    let Some(response) = last else { return false };
    let chars = response.chars().count();
    if chars <= REPETITION_CHARS {
        return false;
    }
    let tail: String = response.chars().skip(chars - REPETITION_CHARS).collect();
    let mut shrunk = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    let written = shrunk.write_all(tail.as_bytes()).and_then(|()| shrunk.finish());
    written.is_ok_and(|shrunk| tail.len() as f64 / shrunk.len() as f64 > REPETITION_RATIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_finite_numbers_are_numbers() {
        assert_eq!(number("0.5"), Some(0.5));
        assert_eq!(number("-3"), Some(-3.0));
        for no in ["true", "\"1\"", "null", "{\"$double\":\"NaN\"}", "[1]", "1e999", ""] {
            assert_eq!(number(no), None, "{no}");
        }
    }

    #[test]
    fn chances_of_success() {
        assert_eq!(pass_at(1, 4, 1), 0.25);
        assert_eq!(pass_at(4, 4, 1), 1.0);
        assert_eq!(pass_at(2, 4, 0), 0.0);
        assert!((pass_at(2, 4, 1) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn groups_without_gradient_are_counted_by_reward() {
        let ids: Vec<_> = ["a", "a", "b", "b", "c", "c"].iter().map(|s| Some(s.to_string())).collect();
        let rewards = [1.0, 1.0, 0.0, 1.0, 1.0, 1.0].map(Some);
        let mut out = StepMetrics::new();
        groups(&ids, &rewards, "rollout/", &mut out);
        assert_eq!(out["rollout/zero_std/count_1.0"], 2.0);
        assert_eq!(out["rollout/pass@2"], 1.0);
        assert!((out["rollout/pass@1"] - 5.0 / 6.0).abs() < 1e-12);
        assert!(!out.contains_key("rollout/zero_std/count_0.0"));
    }

    #[test]
    fn text_in_circles() {
        let say = |text: String| serde_json::json!([{"role": "assistant", "content": text}]).to_string();
        assert!(repeats(&say("again and ".repeat(2000))));
        assert!(!repeats(&say("again and ".repeat(20))));
        assert!(!repeats(&say((0..9000).map(|i| format!("{} ", i * 7919 % 10007)).collect())));
        assert!(!repeats("no json"));
    }
}
