//! The alarms that are there without being asked for: their names, and what they mean by default.

/// One built-in alarm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec {
    /// In the configuration.
    pub key: &'static str,
    /// `alertname`.
    pub name: &'static str,
    pub threshold: f64,
    /// The thresholds that make sense.
    pub range: (f64, f64),
    pub hold_ms: i64,
    /// When it fires, for people. `{}` is the threshold.
    pub about: &'static str,
}

pub const NO_PROGRESS: &str = "no_progress";
pub const STEP_SLOW: &str = "step_slow";
pub const REWARD_COLLAPSE: &str = "reward_collapse";
pub const ENTROPY_COLLAPSE: &str = "entropy_collapse";
pub const SAMPLES_TRUNCATED: &str = "samples_truncated";
pub const SAMPLES_ABORTED: &str = "samples_aborted";
pub const GROUPS_WITHOUT_VARIANCE: &str = "groups_without_variance";
pub const ENGINE_GONE: &str = "engine_gone";
pub const DATA_DROPPED: &str = "data_dropped";
pub const DISK_NEARLY_FULL: &str = "disk_nearly_full";

pub const SPECS: [Spec; 10] = [
    Spec {
        key: NO_PROGRESS,
        name: "NoProgress",
        threshold: 2.0,
        range: (1.0, 1000.0),
        hold_ms: 30_000,
        about: "a run hangs: nothing has happened for {} times its longest pause, or what is open is far overdue",
    },
    Spec {
        key: STEP_SLOW,
        name: "StepSlow",
        threshold: 6.0,
        range: (1.0, 1000.0),
        hold_ms: 0,
        about: "the last complete step took longer than the median of the run's steps by {} times their spread, and by half",
    },
    Spec {
        key: REWARD_COLLAPSE,
        name: "RewardCollapse",
        threshold: 3.0,
        range: (1.0, 1000.0),
        hold_ms: 0,
        about: "the mean reward of each of the last 3 steps is below the median of the 10 before by {} times the noise from step to step, by the run's spread, and by 30 %",
    },
    Spec {
        key: ENTROPY_COLLAPSE,
        name: "EntropyCollapse",
        threshold: 0.1,
        range: (0.0, 1.0),
        hold_ms: 0,
        about: "the entropy of each of the last 3 steps is below {} of what the run had",
    },
    Spec {
        key: SAMPLES_TRUNCATED,
        name: "SamplesTruncated",
        threshold: 0.5,
        range: (0.0, 1.0),
        hold_ms: 0,
        about: "the share of truncated samples exceeds {} in each of the last 2 steps",
    },
    Spec {
        key: SAMPLES_ABORTED,
        name: "SamplesAborted",
        threshold: 0.2,
        range: (0.0, 1.0),
        hold_ms: 0,
        about: "the share of aborted and failed samples exceeds {} in each of the last 2 steps",
    },
    Spec {
        key: GROUPS_WITHOUT_VARIANCE,
        name: "GroupsWithoutVariance",
        threshold: 0.9,
        range: (0.0, 1.0),
        hold_ms: 0,
        about: "the share of groups whose rewards are all the same exceeds {} in each of the last 3 steps",
    },
    Spec {
        key: ENGINE_GONE,
        name: "EngineGone",
        threshold: 0.0,
        range: (0.0, 0.0),
        hold_ms: 60_000,
        about: "a scrape target does not answer (up == 0)",
    },
    Spec {
        key: DATA_DROPPED,
        name: "DataDropped",
        threshold: 0.0,
        range: (0.0, 1e12),
        hold_ms: 0,
        about: "more than {} rows, samples or messages were rejected or dropped in the last 5 minutes",
    },
    Spec {
        key: DISK_NEARLY_FULL,
        name: "DiskNearlyFull",
        threshold: 0.05,
        range: (0.0, 1.0),
        hold_ms: 0,
        about: "less than {} of the disk with the data is free, or nothing can be stored",
    },
];

/// What a node of a lake says about itself, with its name in the label `node`. It tells the sinks itself.
pub const OF_A_NODE: [&str; 2] = ["DataDropped", "DiskNearlyFull"];
