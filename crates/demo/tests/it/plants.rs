//! A planted cause does what it says, and only to its step.

use rollscope_demo::{DemoOptions, Plant, StepData};
use rollscope_model::Table;

use crate::rows::{Span, float, metric, seconds, small, spans, step, text, with};

fn clean(n: u64) -> StepData {
    step(DemoOptions { samples: 64, ..small() }, n)
}

fn longest(data: &StepData, pick: impl Fn(&Span) -> bool) -> f64 {
    spans(data).iter().filter(|s| pick(s)).map(|s| (s.end.unwrap() - s.start) as f64 / 1e9).fold(0.0, f64::max)
}

#[test]
fn the_default_run_is_slow_at_step_23_by_about_what_was_planted() {
    let planted = step(DemoOptions::default(), 23);
    let clean = step(DemoOptions { planted: Vec::new(), ..DemoOptions::default() }, 23);
    let longer = seconds(&planted) - seconds(&clean);
    assert!((30.0..70.0).contains(&longer), "{longer}");
    let neighbour = seconds(&step(DemoOptions::default(), 22));
    assert!(seconds(&planted) > neighbour + 25.0, "{} and {neighbour}", seconds(&planted));
    let slow =
        spans(&planted).iter().filter(|s| s.name == "tool_call" && s.end.unwrap() - s.start > 55_000_000_000).count();
    assert_eq!(slow, 4);
}

#[test]
fn other_steps_do_not_change() {
    let plant = Plant::SlowTool { step: 2, tool: "browser".into(), seconds: 50.0, samples: 2 };
    assert_eq!(step(with(plant), 1).batches, clean(1).batches);
}

#[test]
fn long_outputs_and_straggling_groups_take_longer() {
    let long = step(with(Plant::LongOutputs { step: 1, tokens: 4000, samples: 3 }), 1);
    assert!(seconds(&long) > seconds(&clean(1)) + 30.0);
    let group = step(with(Plant::StragglingGroup { step: 1, group: 1, factor: 6.0 }), 1);
    assert!(seconds(&group) > seconds(&clean(1)) + 20.0, "{} {}", seconds(&group), seconds(&clean(1)));
}

#[test]
fn a_starved_engine_shows_in_the_queue_series() {
    let queued = |data: &StepData| {
        let batch = data.batch(Table::Series).unwrap();
        let rows =
            (0..batch.num_rows()).filter(|r| text(batch, "name", *r).as_deref() == Some("sglang:num_queue_reqs"));
        rows.filter_map(|r| float(batch, "value", r)).fold(0.0, f64::max)
    };
    let starved = step(with(Plant::StarvedEngine { step: 1, engine: 0, slots: 2 }), 1);
    assert!(queued(&starved) >= queued(&clean(1)) + 8.0, "{} {}", queued(&starved), queued(&clean(1)));
    let waited = |d: &StepData| metric(d, "perf/request/queue_time/max").unwrap();
    assert!(waited(&starved) > waited(&clean(1)) + 10.0);
}

#[test]
fn weight_sync_transfer_and_reward_can_be_slowed() {
    let sync = step(with(Plant::SlowWeightSync { step: 1, seconds: 40.0 }), 1);
    assert!((seconds(&sync) - seconds(&clean(1)) - 40.0).abs() < 0.5);
    assert!(longest(&sync, |s| s.name == "weight_sync") > 40.0);

    let stall = step(with(Plant::KvTransferStall { step: 1, seconds: 5.0 }), 1);
    let moved = longest(&stall, |s| s.name == "prefill_transfer_kv_cache");
    assert!(moved > 4.0, "{moved}");
    assert!(metric(&stall, "perf/prefill/transfer_speed_gb_s/max").unwrap() < 0.1);

    let reward = step(with(Plant::RewardTimeout { step: 1, seconds: 60.0, samples: 3 }), 1);
    let hit = spans(&reward).iter().filter(|s| s.name == "reward_model" && s.status == "error").count();
    assert_eq!(hit, 3);
    assert!(seconds(&reward) > seconds(&clean(1)) + 40.0);
}

#[test]
fn a_wrong_clock_and_lost_data_damage_only_the_report() {
    let skewed = step(with(Plant::ClockSkew { step: 1, engine: 1, ms: 900.0 }), 1);
    let (a, b) = (spans(&skewed), spans(&clean(1)));
    assert_eq!(a.len(), b.len());
    let moved = a.iter().zip(&b).filter(|(a, b)| a.start - b.start == 900_000_000).count();
    assert!(moved > 100);
    assert!(a.iter().zip(&b).all(|(a, b)| a.start == b.start || a.service == "sglang"));

    let dropped = step(with(Plant::DroppedData { step: 1, share: 0.2 }), 1);
    let share = 1.0 - spans(&dropped).len() as f64 / b.len() as f64;
    assert!((0.1..0.2).contains(&share), "{share}");
    assert_eq!(seconds(&dropped), seconds(&clean(1)));
}
