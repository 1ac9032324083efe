//! The trainer's side of a step: the phases that follow one another, and the ranks that work in them.

use rollscope_model::{SpanId, TraceId};

use crate::dice::Dice;
use crate::emit::{Lane, Row, Sender, Sink, nothing};
use crate::sim::{MS, ns};

pub const RANKS: usize = 8;
const MICRO_BATCHES: i64 = 4;
/// Steps between two checkpoints, and between two validations.
const CHECKPOINT_EVERY: u64 = 10;
const VALIDATION_EVERY: u64 = 10;

/// One phase of a step. Its name is also its `rl.phase`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    pub name: &'static str,
    pub start: i64,
    pub end: i64,
}

/// Everything after the rollout, in order. `tokens` is the mean length of a sample.
pub fn phases(dice: &mut Dice, step: u64, rollout_end: i64, tokens: f64, slow_sync_s: f64) -> Vec<Phase> {
    let mut phases = vec![Phase { name: "rollout", start: 2 * MS, end: rollout_end }];
    let mut at = rollout_end;
    let mut add = |name, seconds: f64| {
        let start = at + MS;
        at = start + ns(seconds);
        phases.push(Phase { name, start, end: at });
    };
    let size = tokens / 1500.0;
    add("reward", dice.between(0.5, 0.8));
    add("ref_log_probs", 1.0 + dice.between(2.8, 3.1) * size);
    add("log_probs", 1.0 + dice.between(2.8, 3.1) * size);
    add("train", 4.0 + dice.between(13.0, 14.0) * size);
    if step % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1 {
        add("checkpoint", dice.between(6.0, 7.0));
    }
    add("weight_sync", dice.between(3.1, 3.6) + slow_sync_s);
    if step % VALIDATION_EVERY == VALIDATION_EVERY - 1 {
        add("validation", dice.between(17.0, 19.0));
    }
    phases
}

/// Trainer ranks as threads: two tensor-parallel, four data-parallel, on one host.
pub fn lanes() -> Vec<Lane> {
    (0..RANKS)
        .map(|rank| Lane {
            title: String::new(),
            thread: format!("train rank {rank}"),
            host: "train-node-0".to_string(),
            pid: 2100 + rank as i64,
            tp: Some((rank % 2) as i32),
            dp: Some((rank / 2) as i32),
            pp: Some(0),
        })
        .collect()
}

/// The ids that samples refer to.
pub struct Root {
    pub trace: TraceId,
    pub step: SpanId,
    pub rollout: SpanId,
}

impl Root {
    pub fn new(sink: &mut Sink) -> Self {
        Root { trace: sink.ids.trace(), step: sink.ids.span(), rollout: sink.ids.span() }
    }
}

pub struct StepFigures {
    pub step: u64,
    pub end: i64,
    pub samples: usize,
    pub tokens: i64,
}

pub fn write(
    sink: &mut Sink,
    sender: &Sender,
    lanes: &[Lane],
    root: &Root,
    phases: &[Phase],
    figures: &StepFigures,
    dice: &mut Dice,
) {
    let row = |id, name, start, end| Row { ..Row::new(sender, root.trace, id, name, start, end) };
    sink.span(
        &row(root.step, "pipeline_step", 0, figures.end),
        |a| a.put_int("rl.step", figures.step as i64),
        |a| {
            a.put_int("rl.samples", figures.samples as i64);
            a.put_int("rl.tokens", figures.tokens);
        },
    );
    for phase in phases {
        let id = if phase.name == "rollout" { root.rollout } else { sink.ids.span() };
        let whole =
            Row { parent: Some(root.step), phase: Some(phase.name), ..row(id, phase.name, phase.start, phase.end) };
        sink.span(&whole, |a| a.put_str("rl.phase", phase.name), nothing);
        match phase.name {
            "ref_log_probs" | "log_probs" | "train" | "weight_sync" | "checkpoint" => {
                for lane in lanes {
                    worker(sink, Row { parent: Some(id), lane: Some(lane), ..whole }, figures.step, dice);
                }
            }
            "reward" => {
                let id_inner = sink.ids.span();
                let inner = Row { id: id_inner, parent: Some(id), name: "compute_advantages", ..whole };
                sink.span(&inner, |a| a.put_str("estimator", "grpo"), nothing);
            }
            _ => {}
        }
    }
}

/// One rank in one phase. Ranks differ a little; the phase ends with the slowest.
fn worker(sink: &mut Sink, whole: Row, step: u64, dice: &mut Dice) {
    let (start, length) = (whole.start + MS / 2, whole.end - whole.start - MS);
    let end = start + (length as f64 * dice.between(0.975, 0.999)) as i64;
    let id = sink.ids.span();
    let phase = whole.name;
    let name = match phase {
        "train" => "train_worker",
        "weight_sync" => "update_weights",
        "checkpoint" => "save_shard",
        _ => "forward_only",
    };
    let row = Row { id, name, start, end, ..whole };
    sink.span(&row, nothing, |a| match phase {
        "weight_sync" => {
            a.put_int("weight_version", step as i64 + 1);
            a.put_double("gb", 15.2 / RANKS as f64);
        }
        "train" => a.put_int("micro_batches", MICRO_BATCHES),
        _ => {}
    });
    if phase != "train" {
        return;
    }
    let inner = Row { parent: Some(id), ..row };
    let forward = (end - start) * 88 / 100;
    for i in 0..MICRO_BATCHES {
        let (from, to) = (start + forward * i / MICRO_BATCHES, start + forward * (i + 1) / MICRO_BATCHES);
        let id = sink.ids.span();
        sink.span(&Row { id, name: "forward_backward", start: from, end: to, ..inner }, nothing, |a| {
            a.put_int("micro_batch", i);
        });
    }
    let reduced = start + (end - start) * 94 / 100;
    for (name, from, to) in [("all_reduce_grads", start + forward, reduced), ("optimizer_step", reduced, end)] {
        let id = sink.ids.span();
        sink.span(&Row { id, name, start: from, end: to, ..inner }, nothing, nothing);
    }
}
