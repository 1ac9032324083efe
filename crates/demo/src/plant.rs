//! Causes of slowness that can be planted into a step, so that tests can check whether a report finds them. A plant changes
//! the tasks of the samples of a step, or what the machines can do, before the step is simulated: everything that
//! follows from it (queues, barriers, waiting ranks) follows by itself.
//!
//! `ClockSkew` and `DroppedData` are different: they leave the step as it was and damage what is reported about it.

/// A cause, and the step it acts on.
#[derive(Clone, Debug, PartialEq)]
pub enum Plant {
    /// The last call of `tool` in some samples takes `seconds` longer. Samples that end late are chosen, so that the
    /// step as a whole takes about that much longer.
    SlowTool {
        step: u64,
        tool: String,
        seconds: f64,
        samples: usize,
    },
    /// The last answer of some samples becomes `tokens` longer.
    LongOutputs {
        step: u64,
        tokens: u32,
        samples: usize,
    },
    /// An engine runs at most `slots` requests at a time; the others queue.
    StarvedEngine {
        step: u64,
        engine: usize,
        slots: usize,
    },
    SlowWeightSync {
        step: u64,
        seconds: f64,
    },
    /// Every transfer of KV cache from prefill to decode takes `seconds` longer.
    KvTransferStall {
        step: u64,
        seconds: f64,
    },
    /// The reward of some samples ends in a time-out after `seconds`.
    RewardTimeout {
        step: u64,
        seconds: f64,
        samples: usize,
    },
    /// All members of one group decode `factor` times slower.
    StragglingGroup {
        step: u64,
        group: usize,
        factor: f64,
    },
    /// The clock of one engine's host is wrong by `ms`.
    ClockSkew {
        step: u64,
        engine: usize,
        ms: f64,
    },
    /// This share of the engines' spans never arrives.
    DroppedData {
        step: u64,
        share: f64,
    },
}

impl Plant {
    pub fn step(&self) -> u64 {
        match self {
            Plant::SlowTool { step, .. }
            | Plant::LongOutputs { step, .. }
            | Plant::StarvedEngine { step, .. }
            | Plant::SlowWeightSync { step, .. }
            | Plant::KvTransferStall { step, .. }
            | Plant::RewardTimeout { step, .. }
            | Plant::StragglingGroup { step, .. }
            | Plant::ClockSkew { step, .. }
            | Plant::DroppedData { step, .. } => *step,
        }
    }

    /// The kind, as a report would name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Plant::SlowTool { .. } => "slow_tool",
            Plant::LongOutputs { .. } => "long_outputs",
            Plant::StarvedEngine { .. } => "starved_engine",
            Plant::SlowWeightSync { .. } => "slow_weight_sync",
            Plant::KvTransferStall { .. } => "kv_transfer_stall",
            Plant::RewardTimeout { .. } => "reward_timeout",
            Plant::StragglingGroup { .. } => "straggling_group",
            Plant::ClockSkew { .. } => "clock_skew",
            Plant::DroppedData { .. } => "dropped_data",
        }
    }
}
