//! Metrics of a step: what the trainer would log, and, not stored, what rollscope should make of the step itself: `perf/`
//! and `rollout/` computed plainly from the simulated requests and samples. Percentiles here are by nearest rank.

use std::collections::BTreeMap;

use rollscope_model::build::{MetricsBuilder, NewMetric};

use crate::dice::Dice;
use crate::emit::seconds;
use crate::sample::{pd_segments, transfer_speed_gb_s};
use crate::sim::MS;
use crate::step::Plan;
use crate::task::{DRAFT, Status};

/// GPUs the rollout ran on, per engine rank.
fn gpus(plan: &Plan) -> f64 {
    (0..plan.fleet.engines()).map(|e| f64::from(crate::sim::tensor_parallel(e))).sum()
}

/// What rollscope computes itself and a trainer need not log.
fn is_computed(name: &str) -> bool {
    let computed = ["perf/request/", "perf/prefill/", "perf/decode/", "perf/rollout_time", "perf/non_generation_time/"];
    let tokens = ["perf/tokens_per_gpu_per_sec", "perf/longest_sample_tokens_per_sec"];
    computed.iter().any(|prefix| name.starts_with(prefix))
        || tokens.contains(&name)
        || (name.starts_with("rollout/") && !name.starts_with("rollout/staleness"))
}

/// Writes what the trainer logs, and returns what rollscope should compute.
pub fn write(out: &mut MetricsBuilder, run_id: &str, plan: &Plan, base: i64, dice: &mut Dice) -> BTreeMap<String, f64> {
    let time_ns = base + plan.end;
    let mut expected = BTreeMap::new();
    let mut put = |name: &str, value: f64| match is_computed(name) {
        true => drop(expected.insert(name.to_string(), value)),
        false => out.push(&NewMetric { run_id, step: Some(plan.step as i64), time_ns, name, value, source: None }),
    };
    requests(plan, &mut put);
    samples(plan, &mut put);
    training(plan, dice, &mut put);
    expected
}

fn stats(put: &mut impl FnMut(&str, f64), name: &str, mut values: Vec<f64>) {
    values.retain(|v| v.is_finite());
    if values.is_empty() {
        return;
    }
    values.sort_by(f64::total_cmp);
    let n = values.len();
    let rank = |p: f64| values[((p * n as f64).ceil() as usize).clamp(1, n) - 1];
    let median = if n % 2 == 1 { values[n / 2] } else { (values[n / 2 - 1] + values[n / 2]) / 2.0 };
    for (suffix, value) in [
        ("mean", values.iter().sum::<f64>() / n as f64),
        ("median", median),
        ("max", values[n - 1]),
        ("min", values[0]),
        ("p90", rank(0.90)),
        ("p95", rank(0.95)),
        ("p99", rank(0.99)),
        ("count", n as f64),
    ] {
        put(&format!("{name}/{suffix}"), value);
    }
}

fn requests(plan: &Plan, put: &mut impl FnMut(&str, f64)) {
    let all = &plan.outcome.requests;
    let turn = |r: &crate::sim::Request| &plan.tasks[r.sample].turns[r.turn];
    let e2e = |r: &crate::sim::Request| seconds(r.decode_end + MS / 2 - r.sent - MS * 2 / 5);
    stats(put, "perf/request/e2e_latency", all.iter().map(e2e).collect());
    stats(put, "perf/request/queue_time", all.iter().map(|r| seconds(r.queue_ns())).collect());
    let speed = |r: &crate::sim::Request| turn(r).completion_tokens as f64 / seconds(r.decode_end - r.decode_start);
    stats(put, "perf/decode/throughput", all.iter().map(speed).collect());
    put("perf/request/count", all.len() as f64);
    put("perf/request/profiled_count", all.len() as f64);
    let apart: Vec<_> = all.iter().filter(|r| r.disaggregated()).collect();
    let segments: Vec<_> = apart.iter().map(|r| pd_segments(r)).collect();
    for i in 0..10 {
        let Some((key, _)) = segments.first().map(|s| s[i]) else { break };
        let key = key.trim_start_matches("pd_");
        let name = match key.split_once('_') {
            Some((side, rest)) => format!("perf/{side}/{rest}"),
            None => continue,
        };
        stats(put, &name, segments.iter().map(|s| seconds(s[i].1.1 - s[i].1.0)).collect());
    }
    stats(put, "perf/prefill/transfer_speed_gb_s", apart.iter().map(|r| transfer_speed_gb_s(r)).collect());
    stats(put, "perf/prefill/transfer_total_mb", apart.iter().map(|r| r.transfer_mb).collect());
    stats(put, "perf/prefill/retry_count", apart.iter().map(|r| r.transfer_retries as f64).collect());
}

fn samples(plan: &Plan, put: &mut impl FnMut(&str, f64)) {
    let tasks = &plan.tasks;
    let n = tasks.len().max(1) as f64;
    let length = |i: usize| tasks[i].turns.iter().map(|t| t.completion_tokens).sum::<i64>() as f64;
    let lengths: Vec<f64> = (0..tasks.len()).map(length).collect();
    let total: f64 = lengths.iter().sum();
    let rollout = seconds(plan.phases[0].end - plan.phases[0].start);
    put("perf/rollout_time", rollout);
    put("perf/step_time", seconds(plan.end));
    for phase in &plan.phases[1..] {
        put(&format!("perf/{}_time", phase.name), seconds(phase.end - phase.start));
    }
    stats(put, "perf/non_generation_time", (0..tasks.len()).map(|i| plan.non_generation_s(i)).collect());
    put("perf/tokens_per_gpu_per_sec", total / rollout / gpus(plan));
    if let Some((i, longest)) = lengths.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1)) {
        let times = &plan.outcome.samples[i];
        put("perf/longest_sample_tokens_per_sec", longest / seconds(times.end - times.start));
    }
    stats(put, "rollout/response_len", lengths);
    let share = |s: Status| tasks.iter().filter(|t| t.status == s).count() as f64 / n;
    put("rollout/truncated_ratio", share(Status::Truncated));
    put("rollout/aborted_ratio", share(Status::Aborted));
    let turns = || tasks.iter().flat_map(|t| &t.turns);
    let prompt: i64 = turns().map(|t| t.prompt_tokens).sum();
    put("rollout/prefix_cache_hit_rate", turns().map(|t| t.cached_tokens).sum::<i64>() as f64 / prompt.max(1) as f64);
    let (accepted, verifies) = (turns().map(|t| t.accepted()).sum::<i64>(), turns().map(|t| t.verifies).sum::<i64>());
    put("rollout/spec_accept_rate", accepted as f64 / (verifies * DRAFT).max(1) as f64);
    put("rollout/spec_accept_length", 1.0 + accepted as f64 / verifies.max(1) as f64);
    put("rollout/staleness/mean", tasks.iter().map(|t| t.staleness as f64).sum::<f64>() / n);

    let rewards: Vec<f64> = tasks.iter().filter_map(|t| t.reward).collect();
    let mean = rewards.iter().sum::<f64>() / rewards.len().max(1) as f64;
    put("reward/mean", mean);
    put("reward/std", (rewards.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / rewards.len().max(1) as f64).sqrt());
    let (mut flat, mut solved, mut groups) = ([0, 0, 0], 0, 0);
    for group in tasks.chunk_by(|a, b| a.group == b.group) {
        groups += 1;
        let mut rewards = group.iter().filter_map(|t| t.reward);
        solved += usize::from(group.iter().any(|t| t.reward == Some(1.0)));
        if let Some(first) = rewards.next()
            && rewards.all(|r| r == first)
        {
            flat[(first * 2.0) as usize] += 1;
        }
    }
    for (i, name) in
        ["rollout/zero_std/count_0.0", "rollout/zero_std/count_0.5", "rollout/zero_std/count_1.0"].iter().enumerate()
    {
        if flat[i] > 0 {
            put(name, f64::from(flat[i]));
        }
    }
    put("rollout/pass@8", solved as f64 / f64::from(groups.max(1)));
}

fn training(plan: &Plan, dice: &mut Dice, put: &mut impl FnMut(&str, f64)) {
    let step = plan.step as f64;
    let mut noisy = |value: f64, by: f64| value * (1.0 + by * dice.normal());
    put("train/loss", noisy(0.012 + 0.05 * (-step / 15.0).exp(), 0.2));
    put("train/kl", noisy(0.0006 + 0.00009 * step, 0.12));
    put("train/entropy", noisy(0.32 + 0.5 * (-step / 20.0).exp(), 0.03));
    put("train/grad_norm", noisy(0.22 + 0.4 * (-step / 8.0).exp(), 0.15).abs());
    put("train/clip_fraction", noisy(0.004 + 0.0001 * step, 0.2).abs());
    put("train/lr", 1e-6 * ((step + 1.0) / 5.0).min(1.0));
    if plan.phases.iter().any(|p| p.name == "validation") {
        put("eval/aime24/pass@1", noisy(0.18 + 0.2 * (1.0 - (-step / 18.0).exp()), 0.05));
        put("eval/livecodebench/pass@1", noisy(0.22 + 0.12 * (1.0 - (-step / 18.0).exp()), 0.05));
    }
}
