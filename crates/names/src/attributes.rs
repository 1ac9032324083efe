//! Attribute names that carry meaning. `rl.*` follows the open OpenTelemetry proposal for reinforcement learning where
//! it has a name; the rest are the names that slime, SGLang and ROLL write. Order in the lists below is the order in
//! which they are believed.

/// Resource or span attribute: which run this belongs to.
/// The last is verl's, whose tracing over MLflow tags the root of each trajectory.
pub const RUN_ID: &[&str] = &["rl.run.id", "rollscope.run", "mlflow.traceTag.experiment_name"];
pub const RUN_NAME: &str = "rl.run.name";
pub const PROJECT: &str = "rl.project";
/// The framework (`slime`, `verl`, ...), a resource attribute of the proposal.
pub const SYSTEM: &str = "rl.system";

pub const STEP: &[&str] = &[
    "rl.step",
    "rl.loop.iteration",
    "rl.rollout_id",
    "rollout_id",
    "global_step",
    "global_steps",
    "train_step",
    "training_step",
    "mlflow.traceTag.step",
    "step",
    "iteration",
];
/// Of these: names that count other things, too (an agent's turns, a solver's rounds). They are believed on resources, on roots,
/// and on spans of the trainer.
pub const STEP_OR_OTHER: &[&str] = &["step", "iteration"];
pub const SAMPLE_ID: &[&str] = &["rl.sample.id", "sample_id", "sample_index", "traj_id", "trajectory_id"];
pub const GROUP_ID: &[&str] =
    &["rl.group.id", "group_id", "group_index", "traj_group_id", "mlflow.traceTag.sample_index"];
/// Which of a group's samples it is. With the group, it names the sample where nothing else does.
pub const SAMPLE_OF_GROUP: &[&str] = &["mlflow.traceTag.rollout_n"];
pub const ATTEMPT: &[&str] = &["rl.attempt", "attempt"];
/// What kind of work a span is: `rollout`, `reward`, `train`, `weight_sync`, `tool`, ...
pub const PHASE: &str = "rl.phase";

/// The id of a request, on the spans of whoever serves it and on the caller's. Engines first: SGLang, vLLM.
pub const REQUEST_ID: &[&str] = &[
    "rid",
    "sglang_request_id",
    "gen_ai.request.id",
    "gen_ai.response.id",
    "x-request-id",
    "http.request.header.x-request-id",
    "x_request_id",
    "request_id",
];
/// What the prefill and the decode side of a disaggregated request agree on, where each has a request id of its own. SGLang's name.
pub const BOOTSTRAP_ROOM: &str = "bootstrap_room";

/// Tokens of a generation. The standard's names first: of several that a span carries, they say it most precisely.
pub const PROMPT_TOKENS: &[&str] =
    &["gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "prompt_tokens", "llm.token_count.prompt"];
pub const COMPLETION_TOKENS: &[&str] = &[
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "completion_tokens",
    "llm.token_count.completion",
];
pub const CACHED_TOKENS: &[&str] = &[
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cached_tokens",
    "cached_tokens",
    "llm.token_count.prompt_details.cache_read",
];
/// Seconds in the engine's queue.
pub const QUEUE_TIME: &[&str] = &["queue_time", "gen_ai.latency.time_in_queue"];
/// Seconds of prefill and of decoding, as vLLM notes them on its request.
pub const PREFILL_TIME: &[&str] = &["gen_ai.latency.time_in_model_prefill"];
pub const DECODE_TIME: &[&str] = &["gen_ai.latency.time_in_model_decode"];
/// Where the prompt of a sample comes from.
pub const SOURCE: &[&str] = &["data_source", "dataset", "source", "domain", "env"];
/// The tool that was called.
pub const TOOL_NAME: &[&str] = &["gen_ai.tool.name", "tool", "tool_name", "tool.name", "name"];

pub const SERVICE_NAME: &str = "service.name";
pub const SERVICE_INSTANCE_ID: &str = "service.instance.id";
pub const HOST: &[&str] = &["host_id", "host.name", "host.id"];
pub const PROCESS_PID: &str = "process.pid";
pub const PID: &[&str] = &["pid", PROCESS_PID];
pub const THREAD_LABEL: &[&str] = &["thread_label", "thread.name"];
pub const TP_RANK: &str = "tp_rank";
pub const DP_RANK: &str = "dp_rank";
pub const PP_RANK: &str = "pp_rank";

/// Reserved: how rows that OTLP has no field for travel through OTLP. Written on export and by our SDK, taken out on
/// import, never stored as attributes.
pub mod reserved {
    pub const PREFIX: &str = "rollscope.";
    /// `instant` or `orphan_end`; a span without an end time is open without this attribute.
    pub const STATE: &str = "rollscope.state";
    /// The first N attributes were set at the start.
    pub const START_ATTRS: &str = "rollscope.start_attrs";
    pub const ORIGINAL_TRACE_ID: &str = "rollscope.original_trace_id";
    pub const ORIGINAL_SPAN_ID: &str = "rollscope.original_span_id";
    pub const ORIGINAL_PARENT_SPAN_ID: &str = "rollscope.original_parent_span_id";
}

/// What our SDK sends as OTLP log records: the event names, and the attributes that have no OTLP name. `docs/wire.md`
/// describes them.
pub mod event {
    pub const RUN: &str = "rollscope.run";
    pub const METRICS: &str = "rollscope.metrics";
    pub const CONVERSATION: &str = "rollscope.conversation";
    pub const MEDIA: &str = "rollscope.media";
    pub const TOKENS: &str = "rollscope.tokens";
    pub const STATS: &str = "rollscope.stats";

    pub const CONFIG: &str = "rollscope.config";
    pub const TAGS: &str = "rollscope.tags";
    pub const STARTED_NS: &str = "rollscope.started_ns";
    pub const ENDED_NS: &str = "rollscope.ended_ns";
    pub const STATUS: &str = "rollscope.status";
    pub const ID: &str = "rollscope.id";
    pub const KEY: &str = "rollscope.key";
    pub const INDEX: &str = "rollscope.index";
    pub const METADATA: &str = "rollscope.metadata";
    pub const SPLIT: &str = "rollscope.split";
    pub const SOURCE: &str = "rollscope.source";
    pub const STAT_PREFIX: &str = "rollscope.stat.";

    /// Response header in which the server sends the trace level to SDKs.
    pub const LEVEL_HEADER: &str = "rollscope-trace-level";
    /// Response header in which the server asks the processes of a run for their stacks: `NUMBER RUN`, the run percent-encoded.
    /// It is repeated for each run that is asked.
    pub const STACKS_HEADER: &str = "rollscope-stacks";
    /// The span that a process sends in return, and its attribute with the stacks.
    pub const STACKS: &str = "rollscope.stacks";
}

/// The run of series that were scraped for no run in particular: a serving engine may serve many. It is not listed.
pub const SCRAPED_RUN: &str = "_scraped";

/// Values of `metrics.source`.
pub mod source {
    /// Worked out by rollscope from the spans and samples of a step.
    pub const COMPUTED: &str = "rollscope";
}

/// Values of `spans.state`.
pub mod state {
    pub const CLOSED: &str = "closed";
    pub const OPEN: &str = "open";
    pub const INSTANT: &str = "instant";
    pub const ORPHAN_END: &str = "orphan_end";
}

/// Values of `spans.kind`, by OTLP number.
pub const KINDS: [&str; 6] = ["unspecified", "internal", "server", "client", "producer", "consumer"];

/// Values of `spans.status`, by OTLP number.
pub const STATUSES: [&str; 3] = ["unset", "ok", "error"];

/// The step that a root names in its own name: `step 12`, `train_step_12`, `iteration-3`. Only for roots that say it nowhere else.
pub fn step_in_name(name: &str) -> Option<i64> {
    const WORDS: [&str; 6] = ["step", "train_step", "training_step", "global_step", "iteration", "iter"];
    let name = name.trim();
    let number = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    if !(1..=9).contains(&number) {
        return None;
    }
    let (word, number) = name.split_at(name.len() - number);
    let bare = word.trim_end_matches([' ', '_', '-', '#', ':', '=']);
    let fits = bare.len() < word.len() && WORDS.iter().any(|known| bare.eq_ignore_ascii_case(known));
    if fits { number.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_steps_are_few() {
        for (name, step) in
            [("step 12", 12), ("train_step_12", 12), ("iteration-3", 3), ("Step #007", 7), ("iter: 0", 0)]
        {
            assert_eq!(step_in_name(name), Some(step), "{name}");
        }
        for name in
            ["step", "step12", "12", "env_step 3", "step 3 of 4", "step -", "steps 3", "step 1234567890", "étape 3"]
        {
            assert_eq!(step_in_name(name), None, "{name}");
        }
        assert!(STEP_OR_OTHER.iter().all(|name| STEP.contains(name)));
    }
}
