//! The tables agree with each other, and the run as a whole looks like one.

use std::collections::{HashMap, HashSet};

use arrow::array::{Array, AsArray};
use rollscope_demo::{DemoOptions, Generator, bench_spans};
use rollscope_model::Table;
use rollscope_model::names::state;
use serde_json::Value;

use crate::rows::{attr, float, id, int, metric, small, spans, step, text};

#[test]
fn the_same_options_give_the_same_bytes() {
    let mut straight = Generator::new(small());
    let first: Vec<_> = straight.steps().map(Result::unwrap).collect();
    // The last step without asking for the others first.
    let jumped = step(small(), 3);
    assert_eq!(first[3].batches, jumped.batches);
    assert_eq!(straight.header(5).unwrap(), Generator::new(small()).header(5).unwrap());
    let other = step(DemoOptions { seed: 8, ..small() }, 3);
    assert_ne!(first[3].batches, other.batches);
    for pair in first.windows(2) {
        assert!(pair[0].end_ns < pair[1].start_ns);
    }
}

#[test]
fn a_run_can_be_made_to_end_now() {
    let now = 1_800_000_000_000_000_000;
    let mut generator = Generator::ending_at(small(), now);
    assert_eq!(generator.start_ns(4), now);
    assert!(generator.step(3).unwrap().end_ns < now);
}

#[test]
fn every_sample_has_a_conversation_and_a_trace() {
    let data = step(small(), 2);
    let (samples, conversations) = (data.batch(Table::Samples).unwrap(), data.batch(Table::Conversations).unwrap());
    assert_eq!((samples.num_rows(), conversations.num_rows()), (32, 32));
    let spans = spans(&data);
    let ids: HashMap<_, _> = spans.iter().map(|s| ((s.trace.clone(), s.id.clone()), s)).collect();
    for row in 0..32 {
        let trace = id(samples, "trace_id", row).unwrap();
        assert_eq!(id(conversations, "trace_id", row).unwrap(), trace);
        assert_eq!(text(conversations, "sample_id", row), text(samples, "sample_id", row));
        let span = ids[&(trace, id(conversations, "span_id", row).unwrap())];
        assert_eq!(span.name, "generate_and_rm");
        assert_eq!(span.sample, text(samples, "sample_id", row));
        assert_eq!(int(samples, "end_ns", row), span.end);
    }
    let mean = (0..32).filter_map(|r| float(samples, "reward", r)).collect::<Vec<_>>();
    let mean = mean.iter().sum::<f64>() / mean.len() as f64;
    assert!((metric(&data, "reward/mean").unwrap() - mean).abs() < 1e-12);
    let requests = spans.iter().filter(|s| s.name == "sglang_generate").count();
    assert_eq!(metric(&data, "perf/request/count"), Some(requests as f64));
}

#[test]
fn json_columns_parse_and_counts_are_right() {
    let data = step(small(), 1);
    let parse = |text: String| serde_json::from_str::<Value>(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let json = [
        (Table::Spans, vec!["resource", "scope"]),
        (Table::Samples, vec!["reward_json", "label", "weight_versions", "metadata"]),
        (Table::Conversations, vec!["messages", "metadata"]),
        (Table::Series, vec!["labels"]),
    ];
    for (table, columns) in json {
        let batch = data.batch(table).unwrap();
        for column in columns {
            (0..batch.num_rows()).filter_map(|r| text(batch, column, r)).for_each(|t| drop(parse(t)));
        }
    }
    let batch = data.batch(Table::Spans).unwrap();
    for column in ["start_attrs", "end_attrs"] {
        let values = batch.column_by_name(column).unwrap().as_map().values().as_string::<i32>();
        values.iter().flatten().for_each(|v| drop(parse(v.to_string())));
    }
    let generator = Generator::new(small());
    let media: HashSet<&str> = generator.media().iter().map(|m| m.hash.as_str()).collect();
    let batch = data.batch(Table::Conversations).unwrap();
    for row in 0..batch.num_rows() {
        let messages = parse(text(batch, "messages", row).unwrap());
        let messages = messages.as_array().unwrap();
        assert_eq!(int(batch, "message_count", row), Some(messages.len() as i64));
        let mut pictures = 0;
        let mut calls = Vec::new();
        for m in messages {
            for part in m["content"].as_array().into_iter().flatten().filter(|p| p["type"] == "image") {
                assert!(media.contains(part["media"].as_str().unwrap()));
                pictures += 1;
            }
            calls.extend(m["tool_calls"].as_array().into_iter().flatten().map(|c| c["id"].clone()));
            if m["role"] == "tool" {
                assert_eq!(Some(&m["tool_call_id"]), calls.last());
            }
        }
        assert_eq!(int(batch, "media_count", row), Some(pictures));
        assert_eq!(int(batch, "tool_call_count", row), Some(calls.len() as i64));
        assert_eq!(
            int(batch, "turn_count", row),
            Some(messages.iter().filter(|m| m["role"] == "assistant").count() as i64)
        );
    }
}

/// The default run, whole: size, rewards, variety.
#[test]
fn the_demo_run_looks_like_a_run() {
    let started = std::time::Instant::now();
    let mut generator = Generator::new(DemoOptions::default());
    let mut rewards = Vec::new();
    let (mut total, mut points, mut chars) = (0, 0, 0);
    let (mut statuses, mut flat, mut stale, mut retried, mut failed_tools, mut images) =
        (HashSet::new(), 0.0, 0, 0, 0, 0);
    for data in generator.steps() {
        let data = data.unwrap();
        total += data.rows(Table::Spans);
        points += data.rows(Table::Series);
        rewards.push(metric(&data, "reward/mean").unwrap());
        flat += metric(&data, "rollout/zero_std/count_0.0").unwrap_or(0.0)
            + metric(&data, "rollout/zero_std/count_1.0").unwrap_or(0.0);
        let samples = data.batch(Table::Samples).unwrap();
        for r in 0..samples.num_rows() {
            statuses.insert(text(samples, "status", r).unwrap());
            stale += usize::from(text(samples, "weight_versions", r).unwrap().contains(','));
        }
        let conversations = data.batch(Table::Conversations).unwrap();
        images += (0..conversations.num_rows()).filter_map(|r| int(conversations, "media_count", r)).sum::<i64>();
        chars += (0..conversations.num_rows()).filter_map(|r| int(conversations, "char_count", r)).sum::<i64>();
        let batch = data.batch(Table::Spans).unwrap();
        for s in spans(&data) {
            retried += usize::from(s.name == "attempt_start" && s.state == state::INSTANT);
            if s.name == "tool_call" && s.status == "error" {
                failed_tools += 1;
                assert!(attr(batch, "end_attrs", s.row, "error_type").is_some());
            }
        }
    }
    println!("{total} spans, {points} points, {chars} characters, read in {:?}", started.elapsed());
    assert!((150_000..400_000).contains(&total), "{total}");
    let mean = |r: &[f64]| r.iter().sum::<f64>() / r.len() as f64;
    assert!(mean(&rewards[30..]) > mean(&rewards[..10]) + 0.15, "{rewards:?}");
    let all: HashSet<String> = ["completed", "truncated", "aborted", "failed"].map(String::from).into();
    assert_eq!(statuses, all);
    assert!(
        flat > 20.0 && stale > 50 && retried > 5 && failed_tools > 50 && images > 50,
        "{flat} {stale} {retried} {failed_tools} {images}"
    );
}

#[test]
fn counters_of_the_series_never_fall() {
    let mut generator = Generator::new(small());
    let mut last: HashMap<String, (i64, f64)> = HashMap::new();
    let mut sum = 0.0;
    for data in generator.steps() {
        let data = data.unwrap();
        let batch = data.batch(Table::Series).unwrap();
        for r in 0..batch.num_rows() {
            let part = |c| text(batch, c, r).unwrap();
            if part("kind") == "gauge" {
                continue;
            }
            let key = format!("{} {} {}", part("target"), part("name"), part("labels"));
            let (time, value) = (int(batch, "time_ns", r).unwrap(), float(batch, "value", r).unwrap());
            if let Some((before, old)) = last.insert(key.clone(), (time, value)) {
                assert_eq!(time - before, 10_000_000_000, "{key}");
                assert!(value >= old, "{key}: {old} then {value}");
            }
            sum += value;
        }
    }
    assert!(sum > 0.0 && last.len() > 100);
}

#[test]
fn odd_sizes_are_served() {
    for (samples, group_size, max_turns) in [(1, 8, 1), (13, 5, 3), (130, 0, 0)] {
        let data = step(DemoOptions { samples, group_size, max_turns, steps: 1, ..small() }, 0);
        assert_eq!(data.rows(Table::Samples), samples);
    }
}

#[test]
fn bench_spans_are_plain_and_repeatable() {
    let batch = bench_spans(1, 1000, 8).unwrap();
    assert_eq!(batch, bench_spans(1, 1000, 8).unwrap());
    assert_eq!(batch.num_rows(), 1000);
    let attrs = batch.column_by_name("end_attrs").unwrap().as_map();
    assert_eq!(attrs.keys().len(), 8000);
    let ids: HashSet<_> = (0..1000).map(|r| id(&batch, "span_id", r)).collect();
    assert_eq!(ids.len(), 1000);
    // Protobuf's size, field by field: what the benchmark says a span weighs.
    let values: usize = attrs.values().as_string::<i32>().iter().flatten().map(str::len).sum();
    let keys: usize = attrs.keys().as_string::<i32>().iter().flatten().map(str::len).sum();
    let names: usize = (0..1000).map(|r| text(&batch, "name", r).unwrap().len()).sum();
    let about = (values + keys + names) / 1000 + 8 * 8 + 18 + 10 + 10 + 9 + 9 + 2;
    assert!((230..320).contains(&about), "{about}");
}
