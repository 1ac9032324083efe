//! What kind of work a span is. One table of rules, read from the top; the first that fits counts.
//!
//! A sender may say it (`rl.phase`, the column `phase`). That is believed, except for `rollout`, which everything inside a
//! rollout is: there the name says more, if it says anything. Names are those of slime, SGLang (2.1 of the specification: slices), ROLL, verl
//! and OpenTelemetry's `gen_ai`. The page has the same table for its colours (`ui/src/lib/phases.ts`).

use serde::Serialize;

/// A kind of work. Order is the order of precedence where several run at the same time in one sample: what is being
/// computed counts before what is being waited for, and the most telling of the waits counts first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Kind {
    Tool,
    Reward,
    Decode,
    Prefill,
    /// Waiting for a place: in the scheduler, for memory on the decode side, for a hand-shake.
    Queue,
    /// KV cache on its way from prefill to decode.
    Transfer,
    /// A generation as its caller sees it; by itself, whatever of it nothing else explains.
    Generate,
    LogProbs,
    Train,
    WeightSync,
    Checkpoint,
    Validation,
    /// Loading, batching, moving data.
    Data,
    /// A sample, a group, the rollout as a whole: they contain, they do not work.
    Rollout,
    /// One training step as a whole.
    Step,
    Other,
}

impl Kind {
    pub const COUNT: usize = 16;
    pub const ALL: [Kind; Kind::COUNT] = [
        Kind::Tool,
        Kind::Reward,
        Kind::Decode,
        Kind::Prefill,
        Kind::Queue,
        Kind::Transfer,
        Kind::Generate,
        Kind::LogProbs,
        Kind::Train,
        Kind::WeightSync,
        Kind::Checkpoint,
        Kind::Validation,
        Kind::Data,
        Kind::Rollout,
        Kind::Step,
        Kind::Other,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Tool => "tool",
            Kind::Reward => "reward",
            Kind::Decode => "decode",
            Kind::Prefill => "prefill",
            Kind::Queue => "queue",
            Kind::Transfer => "transfer",
            Kind::Generate => "generate",
            Kind::LogProbs => "log_probs",
            Kind::Train => "train",
            Kind::WeightSync => "weight_sync",
            Kind::Checkpoint => "checkpoint",
            Kind::Validation => "validation",
            Kind::Data => "data",
            Kind::Rollout => "rollout",
            Kind::Step => "step",
            Kind::Other => "other",
        }
    }

    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Kind::Transfer => "KV transfer",
            Kind::WeightSync => "weight sync",
            Kind::LogProbs => "log probs",
            other => other.name(),
        }
    }

    /// Keeps a worker busy; the others contain work or wait for it.
    pub fn is_work(self) -> bool {
        !matches!(self, Kind::Queue | Kind::Transfer | Kind::Generate | Kind::Rollout | Kind::Step | Kind::Other)
    }

    /// A step or a part of one that is not about any sample in particular.
    pub fn is_trainers(self) -> bool {
        matches!(
            self,
            Kind::Step
                | Kind::LogProbs
                | Kind::Train
                | Kind::WeightSync
                | Kind::Checkpoint
                | Kind::Validation
                | Kind::Data
        )
    }
}

/// What senders say, in `phase`.
const SAID: &[(&str, Kind)] = &[
    ("tool", Kind::Tool),
    ("env", Kind::Tool),
    ("environment", Kind::Tool),
    ("reward", Kind::Reward),
    ("rewards", Kind::Reward),
    ("verify", Kind::Reward),
    ("generate", Kind::Generate),
    ("generation", Kind::Generate),
    ("inference", Kind::Generate),
    ("queue", Kind::Queue),
    ("prefill", Kind::Prefill),
    ("decode", Kind::Decode),
    ("transfer", Kind::Transfer),
    ("log_probs", Kind::LogProbs),
    ("ref_log_probs", Kind::LogProbs),
    ("train", Kind::Train),
    ("training", Kind::Train),
    ("update", Kind::Train),
    ("weight_sync", Kind::WeightSync),
    ("weight_update", Kind::WeightSync),
    ("sync", Kind::WeightSync),
    ("checkpoint", Kind::Checkpoint),
    ("validation", Kind::Validation),
    ("eval", Kind::Validation),
    ("data", Kind::Data),
    ("step", Kind::Step),
];

/// Said of the rollout as a whole and of everything in it.
const SAID_ROLLOUT: &str = "rollout";

enum Rule {
    Is(&'static str),
    Starts(&'static str),
    Has(&'static str),
}
use Rule::{Has, Is, Starts};

/// By name, in lower case.
const NAMES: &[(Rule, Kind)] = &[
    (Is("pipeline_step"), Kind::Step),
    (Is("training_step"), Kind::Step),
    (Is("step"), Kind::Step),
    // SGLang through slime: the two sides contain the segments that follow.
    (Is("sglang_pd_prefill"), Kind::Generate),
    (Is("sglang_pd_decode"), Kind::Generate),
    (Has("prealloc"), Kind::Queue),
    (Has("alloc_wait"), Kind::Queue),
    (Has("bootstrap"), Kind::Queue),
    (Has("transfer"), Kind::Transfer),
    (Has("kv_cache"), Kind::Transfer),
    (Has("mooncake"), Kind::Transfer),
    // SGLang's own slices.
    (Has("_waiting"), Kind::Queue),
    (Is("prefill_prepare"), Kind::Queue),
    (Is("decode_prepare"), Kind::Queue),
    (Has("queue"), Kind::Queue),
    (Is("tokenize"), Kind::Generate),
    (Is("request_process"), Kind::Generate),
    (Has("_dispatch"), Kind::Generate),
    (Has("prefill"), Kind::Prefill),
    (Is("mm_encode"), Kind::Prefill),
    (Has("decode"), Kind::Decode),
    (Starts("spec_"), Kind::Decode),
    // Trainers.
    (Has("weight"), Kind::WeightSync),
    (Has("model_update"), Kind::WeightSync),
    (Has("sync_model"), Kind::WeightSync),
    (Has("validat"), Kind::Validation),
    (Starts("eval"), Kind::Validation),
    (Has("checkpoint"), Kind::Checkpoint),
    (Starts("save_"), Kind::Checkpoint),
    (Has("log_prob"), Kind::LogProbs),
    (Has("logprob"), Kind::LogProbs),
    (Is("forward_only"), Kind::LogProbs),
    (Starts("generate_and_rm"), Kind::Rollout),
    (Has("rollout"), Kind::Rollout),
    (Has("episode"), Kind::Rollout),
    (Has("trajectory"), Kind::Rollout),
    (Has("reward"), Kind::Reward),
    (Has("verif"), Kind::Reward),
    (Has("judge"), Kind::Reward),
    (Has("advantage"), Kind::Reward),
    (Starts("tool"), Kind::Tool),
    (Has("tool_call"), Kind::Tool),
    (Starts("execute_tool"), Kind::Tool),
    (Has("env_step"), Kind::Tool),
    (Has("environment_step"), Kind::Tool),
    (Has("sandbox"), Kind::Tool),
    (Has("train"), Kind::Train),
    (Has("backward"), Kind::Train),
    (Has("optim"), Kind::Train),
    (Has("all_reduce"), Kind::Train),
    (Has("generat"), Kind::Generate),
    (Starts("chat "), Kind::Generate),
    (Has("completion"), Kind::Generate),
    (Is("post /generate"), Kind::Generate),
    (Has("get_batch"), Kind::Data),
    (Has("dataload"), Kind::Data),
];

/// Longest part of a name that is looked at.
const LOOKED_AT: usize = 96;

/// The kind of a span with this name, whose sender said `said`.
pub fn classify(name: &str, said: Option<&str>) -> Kind {
    let said = said.map(plain_word);
    if let Some((_, kind)) = SAID.iter().find(|(word, _)| Some(*word) == said.as_deref()) {
        return *kind;
    }
    let cut = (0..=name.len().min(LOOKED_AT)).rev().find(|i| name.is_char_boundary(*i)).unwrap_or(0);
    let name = name[..cut].to_ascii_lowercase();
    // Threads of SGLang: they contain slices.
    if name.contains("(host:") {
        return Kind::Other;
    }
    // Its requests, "<role> Req <rid>": they contain threads, whatever the role.
    if name.starts_with("req ") || name.contains(" req ") {
        return Kind::Generate;
    }
    let fits = |rule: &Rule| match rule {
        Is(text) => name == *text,
        Starts(text) => name.starts_with(text),
        Has(text) => name.contains(text),
    };
    let unnamed = if said.as_deref() == Some(SAID_ROLLOUT) { Kind::Rollout } else { Kind::Other };
    NAMES.iter().find(|(rule, _)| fits(rule)).map_or(unnamed, |(_, kind)| *kind)
}

fn plain_word(said: &str) -> String {
    said.trim().to_ascii_lowercase().replace(['-', ' '], "_")
}

/// Does the sender say that it is a rollout, or part of one?
pub fn is_said_rollout(said: Option<&str>) -> bool {
    said.is_some_and(|said| plain_word(said) == SAID_ROLLOUT)
}

/// Is this the caller's view of one generation (and not a part of it, nor the engine's request)?
pub fn is_generation(name: &str, said: Option<&str>) -> bool {
    if classify(name, said) != Kind::Generate {
        return false;
    }
    let name = name.to_ascii_lowercase();
    (said.is_some() || name.contains("generat") || name.starts_with("chat ") || name.contains("completion"))
        && !name.starts_with("post ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_system_have_a_kind() {
        for (name, said, kind) in [
            ("pipeline_step", None, Kind::Step),
            ("generate_and_rm_group", Some("rollout"), Kind::Rollout),
            ("generate_and_rm", None, Kind::Rollout),
            ("sglang_generate", None, Kind::Generate),
            ("sglang_pd_prefill", None, Kind::Generate),
            ("sglang_pd_prefill_forward", None, Kind::Prefill),
            ("sglang_pd_prefill_transfer_queue", None, Kind::Transfer),
            ("sglang_pd_prefill_bootstrap_queue", None, Kind::Queue),
            ("sglang_pd_decode_prealloc", None, Kind::Queue),
            ("sglang_pd_decode_transfer", None, Kind::Transfer),
            ("sglang_pd_decode_forward", None, Kind::Decode),
            ("prefill_waiting", None, Kind::Queue),
            ("decode_waiting", None, Kind::Queue),
            ("decode_prepare", None, Kind::Queue),
            ("prefill_transfer_kv_cache", None, Kind::Transfer),
            ("decode_transferred", None, Kind::Transfer),
            ("chunked_prefill", None, Kind::Prefill),
            ("decode_loop", None, Kind::Decode),
            ("spec_verify", None, Kind::Decode),
            ("Scheduler [TP 0] [PP 0] [DP 0] (host:abcd1234 | pid:4711)", None, Kind::Other),
            ("decode Req 2a7c1880", None, Kind::Generate),
            ("tool_call", None, Kind::Tool),
            ("reward_model", None, Kind::Reward),
            ("model_update", None, Kind::WeightSync),
            ("update_weights", None, Kind::WeightSync),
            ("ref_log_probs", None, Kind::LogProbs),
            ("train", None, Kind::Train),
            ("forward_backward", None, Kind::Train),
            ("validation", None, Kind::Validation),
            ("whatever", Some("Weight-Sync"), Kind::WeightSync),
            ("whatever", Some("unheard of"), Kind::Other),
            ("iteration 7", Some("step"), Kind::Step),
            ("collect", Some("rollout"), Kind::Rollout),
            ("sglang_generate", Some("rollout"), Kind::Generate),
        ] {
            assert_eq!(classify(name, said), kind, "{name}");
        }
        assert!(is_generation("sglang_generate", None) && is_generation("generate", Some("generate")));
        assert!(!is_generation("generate_and_rm", None) && !is_generation("POST /generate", None));
        assert!(!is_generation(" Req 2a7c1880", None));
    }
}
