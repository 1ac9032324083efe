//! What kind of work a span is, and how each kind is written and drawn. One table of rules, read from the top; the first
//! that fits counts.
//!
//! A sender may say it (`rl.phase`, the column `phase`). That is believed, except for `rollout`, which everything inside a
//! rollout is: there the name says more, if it says anything. Names are those of slime, SGLang (2.1 of the specification:
//! slices), ROLL, verl and OpenTelemetry's `gen_ai`. The page has the same tables, generated (`ui/src/generated/kinds.ts`).

/// A kind of work. Order is the order of precedence where several run at the same time in one sample: what is being
/// computed counts before what is being waited for, and the most telling of the waits counts first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "bitcode", derive(bitcode::Encode, bitcode::Decode))]
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
    /// Text on its way to tokens, in front of the engine. It is part of the generation: see [`Kind::under`].
    Tokenize,
    /// A generation as its caller sees it; by itself, whatever of it nothing else explains.
    Generate,
    LogProbs,
    /// The model learns: advantages, forward and backward, the optimizer.
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
    /// Waiting that its sender marks: at a barrier, for others.
    Idle,
    Other,
}

/// How a kind is written and drawn.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub kind: Kind,
    /// In data and in addresses.
    pub name: &'static str,
    /// For people.
    pub label: &'static str,
    /// Colour is never the only sign.
    pub letter: char,
    /// On a dark page.
    pub dark: &'static str,
    /// On a light page.
    pub light: &'static str,
}

/// In the order of a step, as legends and bars show them. The palette is built on Okabe and Ito's, which people with the
/// common kinds of colour blindness can tell apart; neighbours in a usual step also differ in lightness.
pub const LOOKS: [Look; Kind::COUNT] = [
    look(Kind::Other, "other", "other", '·', "#7d8590", "#8a929c"),
    look(Kind::Step, "step", "step", 'S', "#58687c", "#a3b0c0"),
    look(Kind::Data, "data", "data", 'A', "#a59bd6", "#8a7ec2"),
    look(Kind::Rollout, "rollout", "rollout", 'R', "#6f8fb5", "#86a3c6"),
    look(Kind::Generate, "generate", "generate", 'G', "#3d8fd1", "#2f83c8"),
    look(Kind::Tokenize, "tokenize", "tokenize", 'Z', "#c9dbe6", "#a9c3d3"),
    look(Kind::Queue, "queue", "queue", 'Q', "#b8a04a", "#b89a2e"),
    look(Kind::Prefill, "prefill", "prefill", 'P', "#7cc4ee", "#63b4e4"),
    look(Kind::Decode, "decode", "decode", 'D', "#2f6fb0", "#1f5f9f"),
    look(Kind::Transfer, "transfer", "KV transfer", 'K', "#c58bd0", "#b571c2"),
    look(Kind::Tool, "tool", "tool", 'T', "#e0973a", "#d9851c"),
    look(Kind::Reward, "reward", "reward", 'E', "#35b08c", "#139a74"),
    look(Kind::LogProbs, "log_probs", "log probs", 'B', "#eab08f", "#dd9368"),
    look(Kind::Train, "train", "train", 'L', "#d2693c", "#c9541f"),
    look(Kind::WeightSync, "weight_sync", "weight sync", 'W', "#cf7aa6", "#bf5b90"),
    look(Kind::Checkpoint, "checkpoint", "checkpoint", 'C', "#94765a", "#8a6848"),
    look(Kind::Validation, "validation", "validation", 'V', "#9cc063", "#7da33c"),
    look(Kind::Idle, "idle", "wait", 'I', "#4a525c", "#c3c9d0"),
];

const fn look(
    kind: Kind,
    name: &'static str,
    label: &'static str,
    letter: char,
    dark: &'static str,
    light: &'static str,
) -> Look {
    Look { kind, name, label, letter, dark, light }
}

impl Kind {
    pub const COUNT: usize = 18;
    pub const ALL: [Kind; Kind::COUNT] = [
        Kind::Tool,
        Kind::Reward,
        Kind::Decode,
        Kind::Prefill,
        Kind::Queue,
        Kind::Transfer,
        Kind::Tokenize,
        Kind::Generate,
        Kind::LogProbs,
        Kind::Train,
        Kind::WeightSync,
        Kind::Checkpoint,
        Kind::Validation,
        Kind::Data,
        Kind::Rollout,
        Kind::Step,
        Kind::Idle,
        Kind::Other,
    ];

    pub fn look(self) -> &'static Look {
        /// Where in [`LOOKS`] a kind stands.
        static PLACES: [usize; Kind::COUNT] = {
            let mut places = [0; Kind::COUNT];
            let mut at = 0;
            while at < Kind::COUNT {
                places[LOOKS[at].kind as usize] = at;
                at += 1;
            }
            places
        };
        &LOOKS[PLACES[self as usize]]
    }

    pub fn name(self) -> &'static str {
        self.look().name
    }

    /// For people.
    pub fn label(self) -> &'static str {
        self.look().label
    }

    /// The kind that this one is a part of, where figures have no row of its own for it.
    pub fn under(self) -> Kind {
        match self {
            Kind::Tokenize => Kind::Generate,
            other => other,
        }
    }

    /// Keeps a worker busy; the others contain work or wait for it.
    pub fn is_work(self) -> bool {
        !matches!(
            self.under(),
            Kind::Queue | Kind::Transfer | Kind::Generate | Kind::Rollout | Kind::Step | Kind::Idle | Kind::Other
        )
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

#[cfg(feature = "serde")]
impl serde::Serialize for Kind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(feature = "utoipa")]
impl utoipa::PartialSchema for Kind {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        let text = utoipa::openapi::ObjectBuilder::new().schema_type(utoipa::openapi::Type::String);
        text.description(Some("Kind of work.")).enum_values(Some(Kind::ALL.map(Kind::name))).into()
    }
}

#[cfg(feature = "utoipa")]
impl utoipa::ToSchema for Kind {}

/// What senders say, in `phase`, in lower case and with `_` for spaces and dashes. [`SAID_ROLLOUT`] is no part of it.
pub const SAID: &[(&str, Kind)] = &[
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
    ("tokenize", Kind::Tokenize),
    ("log_probs", Kind::LogProbs),
    ("ref_log_probs", Kind::LogProbs),
    ("train", Kind::Train),
    ("training", Kind::Train),
    ("update", Kind::Train),
    ("actor_update", Kind::Train),
    ("advantage", Kind::Train),
    ("weight_sync", Kind::WeightSync),
    ("weight_update", Kind::WeightSync),
    ("weights", Kind::WeightSync),
    ("sync", Kind::WeightSync),
    ("checkpoint", Kind::Checkpoint),
    ("validation", Kind::Validation),
    ("eval", Kind::Validation),
    ("data", Kind::Data),
    ("step", Kind::Step),
    ("idle", Kind::Idle),
    ("wait", Kind::Idle),
];

/// Said of the rollout as a whole and of everything in it.
pub const SAID_ROLLOUT: &str = "rollout";

/// What a name must be like.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    Is(&'static str),
    Starts(&'static str),
    Has(&'static str),
}
use Rule::{Has, Is, Starts};

/// By name, in lower case.
pub const NAMES: &[(Rule, Kind)] = &[
    // Threads of SGLang: they contain slices.
    (Has("(host:"), Kind::Other),
    // Its requests, "<role> Req <rid>": they contain threads, whatever the role.
    (Starts("req "), Kind::Generate),
    (Has(" req "), Kind::Generate),
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
    (Has("tokeniz"), Kind::Tokenize),
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
    (Is("val"), Kind::Validation),
    (Starts("val_"), Kind::Validation),
    (Starts("eval"), Kind::Validation),
    (Has("checkpoint"), Kind::Checkpoint),
    (Starts("save_"), Kind::Checkpoint),
    (Has("log_prob"), Kind::LogProbs),
    (Has("logprob"), Kind::LogProbs),
    (Is("forward_only"), Kind::LogProbs),
    // verl's timers.
    (Is("gen"), Kind::Rollout),
    (Is("ref"), Kind::LogProbs),
    (Is("adv"), Kind::Train),
    (Is("testing"), Kind::Validation),
    // TRL's methods carry the name of their class, such as `GRPOTrainer._calculate_rewards`. They are about a whole batch.
    (Has("trainer.vllm.generat"), Kind::Rollout),
    (Has("trainer._generat"), Kind::Rollout),
    (Has("trainer._calculate_reward"), Kind::Reward),
    (Has("trainer._move_model_to_vllm"), Kind::WeightSync),
    (Has("trainer._get_per_token_logps"), Kind::LogProbs),
    (Has("trainer.transformers.generat"), Kind::Rollout),
    // They generate and score: containers.
    (Starts("generate_and_"), Kind::Rollout),
    // ROLL's parts of a rollout.
    (Starts("rollout.generat"), Kind::Generate),
    (Starts("rollout.compute_reward"), Kind::Reward),
    (Has("rollout"), Kind::Rollout),
    (Has("episode"), Kind::Rollout),
    (Has("trajectory"), Kind::Rollout),
    (Has("reward"), Kind::Reward),
    (Has("verif"), Kind::Reward),
    (Has("judge"), Kind::Reward),
    (Starts("tool"), Kind::Tool),
    (Has("tool_call"), Kind::Tool),
    (Starts("execute_tool"), Kind::Tool),
    (Has("env_step"), Kind::Tool),
    (Has("environment_step"), Kind::Tool),
    (Has("sandbox"), Kind::Tool),
    (Has("train"), Kind::Train),
    (Has("advantage"), Kind::Train),
    (Has("backward"), Kind::Train),
    (Has("optim"), Kind::Train),
    (Has("all_reduce"), Kind::Train),
    (Has("generat"), Kind::Generate),
    (Starts("chat "), Kind::Generate),
    (Has("completion"), Kind::Generate),
    (Is("post /generate"), Kind::Generate),
    (Has("get_batch"), Kind::Data),
    (Has("dataload"), Kind::Data),
    // Words that say less: only where nothing above fits.
    (Has("grade"), Kind::Reward),
    (Has("score"), Kind::Reward),
    (Has("execute"), Kind::Tool),
    (Has("browser"), Kind::Tool),
    (Has("bash"), Kind::Tool),
    (Has("python"), Kind::Tool),
    (Has("search"), Kind::Tool),
    (Has("actor"), Kind::Train),
    (Has("critic"), Kind::Train),
    (Has("sglang"), Kind::Generate),
    (Has("llm"), Kind::Generate),
    (Has("idle"), Kind::Idle),
    (Has("barrier"), Kind::Idle),
    (Starts("step"), Kind::Step),
    (Starts("global_step"), Kind::Step),
    (Starts("iter"), Kind::Step),
    (Starts("wait"), Kind::Idle),
];

/// Characters of a name that are looked at.
pub const LOOKED_AT: usize = 96;

/// The kind of a span with this name, whose sender said `said`.
pub fn classify(name: &str, said: Option<&str>) -> Kind {
    let said = said.map(plain_word);
    if let Some((_, kind)) = SAID.iter().find(|(word, _)| Some(*word) == said.as_deref()) {
        return *kind;
    }
    let cut = name.char_indices().nth(LOOKED_AT).map_or(name.len(), |(at, _)| at);
    let name = name[..cut].to_ascii_lowercase();
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
            ("compute_advantage", None, Kind::Train),
            ("GRPOTrainer.vLLM.generate", None, Kind::Rollout),
            ("GRPOTrainer._calculate_rewards", None, Kind::Reward),
            ("GRPOTrainer.compute_loss", None, Kind::Train),
            ("gen", None, Kind::Rollout),
            ("tokenize", None, Kind::Tokenize),
            ("eval", None, Kind::Validation),
            ("anything", Some("eval"), Kind::Validation),
            ("validation", None, Kind::Validation),
            ("val", None, Kind::Validation),
            ("value", None, Kind::Other),
            ("rollout.generate", None, Kind::Generate),
            ("rollout.compute_rewards", None, Kind::Reward),
            ("generate_and_reward", None, Kind::Rollout),
            ("whatever", Some("Weight-Sync"), Kind::WeightSync),
            ("whatever", Some("unheard of"), Kind::Other),
            ("iteration 7", Some("step"), Kind::Step),
            ("iteration-7", None, Kind::Step),
            ("step 7", None, Kind::Step),
            ("step_reward", None, Kind::Reward),
            ("collect", Some("rollout"), Kind::Rollout),
            ("sglang_generate", Some("rollout"), Kind::Generate),
        ] {
            assert_eq!(classify(name, said), kind, "{name}");
        }
        assert!(is_generation("sglang_generate", None) && is_generation("generate", Some("generate")));
        assert!(!is_generation("generate_and_rm", None) && !is_generation("POST /generate", None));
        assert!(!is_generation(" Req 2a7c1880", None));
    }

    #[test]
    fn every_kind_is_named_and_drawn_in_its_own_way() {
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
            assert_eq!(kind.look().kind, kind);
            if !matches!(kind, Kind::Rollout | Kind::Other) {
                assert_eq!(classify("", Some(kind.name())), kind, "what is written is read back");
            }
        }
        let all_differ = |of: &dyn Fn(&Look) -> String| {
            let seen: std::collections::HashSet<String> = LOOKS.iter().map(of).collect();
            assert_eq!(seen.len(), LOOKS.len(), "{seen:?}");
        };
        all_differ(&|look| look.name.to_string());
        all_differ(&|look| look.label.to_string());
        all_differ(&|look| look.letter.to_string());
        all_differ(&|look| look.dark.to_string());
        all_differ(&|look| look.light.to_string());
    }
}
