//! Causality: what must hold between the spans of a step.

use std::collections::{HashMap, HashSet};

use rollscope_demo::{DemoOptions, Generator};

use crate::rows::{Span, small, spans, step};

fn by_id(spans: &[Span]) -> HashMap<(&[u8], &[u8]), &Span> {
    spans.iter().map(|s| ((s.trace.as_slice(), s.id.as_slice()), s)).collect()
}

#[test]
fn children_lie_inside_their_parents() {
    for n in 0..3 {
        let spans = spans(&step(small(), n));
        let index = by_id(&spans);
        let mut roots = 0;
        for s in &spans {
            let end = s.end.unwrap();
            assert!(end >= s.start, "{s:?}");
            let Some(parent) = &s.parent else {
                // What an engine was asked without a context is a trace of its own.
                roots += usize::from(s.service != "sglang");
                continue;
            };
            let parent =
                index.get(&(s.trace.as_slice(), parent.as_slice())).unwrap_or_else(|| panic!("no parent: {s:?}"));
            assert!(parent.start <= s.start && end <= parent.end.unwrap(), "{s:?} outside {parent:?}");
        }
        // One trace a sample, and the trainer's.
        assert_eq!(roots, 33);
    }
}

#[test]
fn links_point_to_spans_that_exist_and_ended_before() {
    let spans = spans(&step(small(), 1));
    let index = by_id(&spans);
    let mut count = 0;
    for s in &spans {
        for (trace, id) in &s.links {
            let target = index.get(&(trace.as_slice(), id.as_slice())).unwrap_or_else(|| panic!("dangling: {s:?}"));
            if s.service == "sglang" {
                assert_eq!(trace, &s.trace);
                // A slice follows the one it is linked to; the KV transfer and the wait for it end together.
                assert!(target.end.unwrap() <= s.end.unwrap(), "{s:?} linked to {target:?}");
            } else {
                assert_eq!(target.name, "rollout");
            }
            count += 1;
        }
    }
    assert!(count > 500, "{count}");
}

#[test]
fn ids_are_unique_over_steps() {
    let mut generator = Generator::new(small());
    let mut seen = HashSet::new();
    for n in 0..4 {
        for s in spans(&generator.step(n).unwrap()) {
            assert!(seen.insert(s.id.clone()), "{s:?}");
        }
    }
}

#[test]
fn the_shapes_of_slime_and_sglang_are_there() {
    let data = step(DemoOptions { samples: 64, ..small() }, 2);
    let spans = spans(&data);
    let names: HashSet<&str> = spans.iter().map(|s| s.name.as_str()).collect();
    for name in [
        "pipeline_step",
        "rollout",
        "reward",
        "ref_log_probs",
        "log_probs",
        "train",
        "weight_sync",
        "train_worker",
        "forward_backward",
        "generate_and_rm_group",
        "generate_and_rm",
        "sglang_generate",
        "tool_call",
        "reward_model",
        "tool_enqueue",
        "sglang_pd_prefill",
        "sglang_pd_decode_transfer",
        "sglang_pd_summary",
        "POST /generate",
        "tokenize",
        "api_server_dispatch",
        "request_process",
        "prefill_waiting",
        "prefill_forward",
        "decode_waiting",
        "decode_forward",
        "decode_loop",
        "prefill_bootstrap",
        "prefill_transfer_kv_cache",
        "decode_transferred",
    ] {
        assert!(names.contains(name), "{name}");
    }
    // Engines and the gateway name nothing; they have a context or a request id in common with who asked them.
    let index = by_id(&spans);
    let generations: HashMap<&str, &Span> =
        spans.iter().filter(|s| s.name == "sglang_generate").filter_map(|s| Some((s.request.as_deref()?, s))).collect();
    let (mut with_context, mut without) = (0, 0);
    for s in spans.iter().filter(|s| s.service == "sglang" && s.name.starts_with("Req ") || s.name.contains(" Req ")) {
        let asked = match &s.parent {
            Some(parent) => {
                with_context += 1;
                let parent = index[&(s.trace.as_slice(), parent.as_slice())];
                assert_eq!(parent.service, "smg");
                index[&(parent.trace.as_slice(), parent.parent.as_deref().unwrap())]
            }
            None => {
                without += 1;
                let rid = s.name.rsplit(' ').next().unwrap();
                generations.iter().find(|(id, _)| id.starts_with(rid)).unwrap().1
            }
        };
        assert_eq!(asked.name, "sglang_generate");
        assert!(asked.sample.is_some() && s.sample.is_none());
        assert!(asked.start <= s.start && s.end <= asked.end);
    }
    assert!(with_context > 0 && without > 0, "{with_context} {without}");
}

#[test]
fn phases_follow_one_another_and_the_rollout_waits_for_its_slowest_sample() {
    let data = step(small(), 1);
    let spans = spans(&data);
    let find = |name: &str| spans.iter().find(|s| s.name == name && s.service == "trainer").unwrap();
    let order = ["rollout", "reward", "ref_log_probs", "log_probs", "train", "weight_sync"];
    for pair in order.windows(2) {
        assert!(find(pair[0]).end.unwrap() <= find(pair[1]).start, "{pair:?}");
    }
    let groups: Vec<&Span> = spans.iter().filter(|s| s.name == "generate_and_rm_group").collect();
    let slowest = groups.iter().map(|s| s.end.unwrap()).max().unwrap();
    let waited = find("rollout").end.unwrap() - slowest;
    assert!((0..100_000_000).contains(&waited), "{waited}");
    assert_eq!(groups.len(), 32);
    for s in &spans {
        assert!(s.start >= data.start_ns && s.end.unwrap() <= data.end_ns);
    }
}

/// A scheduler prefills one batch at a time: two slices of prefill on the same thread are the same batch, or apart.
#[test]
fn prefill_batches_of_a_thread_do_not_overlap() {
    let spans = spans(&step(small(), 1));
    let mut lanes: HashMap<_, HashSet<(i64, i64)>> = HashMap::new();
    for s in spans.iter().filter(|s| s.name == "prefill_forward") {
        lanes.entry(s.lane.clone().unwrap()).or_default().insert((s.start, s.end.unwrap()));
    }
    assert!(lanes.len() >= 5, "{}", lanes.len());
    for times in lanes.values() {
        let mut times: Vec<_> = times.iter().collect();
        times.sort();
        for pair in times.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "{pair:?}");
        }
    }
}

#[test]
fn batches_are_shared_by_their_requests() {
    let spans = spans(&step(DemoOptions { samples: 64, ..small() }, 1));
    let mut same: HashMap<_, usize> = HashMap::new();
    for s in spans.iter().filter(|s| s.name == "decode_loop") {
        *same.entry((s.lane.clone(), s.start, s.end)).or_default() += 1;
    }
    assert!(same.values().any(|n| *n > 4), "no decode window is shared");
}
