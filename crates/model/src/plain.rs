//! The tables that are built by row, in the order of their schemas, stated once for those who write rows and those who read
//! them. `spans` is not among them: it has a hot path of its own.

/// Calls `$each!(Table, NewRow, Builder, { column: kind, ... })` for each table.
macro_rules! plain_tables {
    ($each:ident) => {
        $each!(Runs, NewRun, RunsBuilder, {
            run_id: dict, project: dict_opt, name: text_opt, framework: dict_opt, config: text_opt, tags: text_opt,
            started_ns: int, ended_ns: int_opt, status: dict_opt, updated_ns: int,
        });

        $each!(Samples, NewSample, SamplesBuilder, {
            run_id: dict, step: int_opt, sample_id: dict, split: dict, group_id: dict_opt, trace_id: trace_opt,
            attempt: int32_opt, status: dict_opt, reward: float_opt, reward_json: text_opt, label: text_opt,
            source: dict_opt, start_ns: int_opt, end_ns: int_opt, prompt_tokens: int_opt, response_tokens: int_opt,
            total_tokens: int_opt, response_length: int_opt, turns: int32_opt, tool_calls: int32_opt,
            weight_versions: text_opt, cached_tokens: int_opt, cache_total_tokens: int_opt, spec_accepted: int_opt,
            spec_drafted: int_opt, spec_verifies: int_opt, non_generation_s: float_opt, removed: bool_opt,
            metadata: text_opt, file: dict_opt,
        });

        $each!(Conversations, NewConversation, ConversationsBuilder, {
            id: text, run_id: dict, step: int_opt, key: dict_opt, index: int_opt, sample_id: dict_opt, group_id: dict_opt,
            trace_id: trace_opt, span_id: span_opt, messages: text, metadata: text_opt, reward: float_opt,
            status: dict_opt, message_count: int, turn_count: int, tool_call_count: int, media_count: int,
            char_count: int, logged_ns: int,
        });

        $each!(Metrics, NewMetric, MetricsBuilder, {
            run_id: dict, step: int_opt, time_ns: int, name: dict, value: float, source: dict_opt,
        });

        $each!(Series, NewPoint, SeriesBuilder, {
            run_id: dict, target: dict, name: dict, labels: dict, kind: dict, time_ns: int, value: float,
        });

        $each!(Tokens, NewTokens, TokensBuilder, {
            run_id: dict, step: int_opt, sample_id: dict, split: dict, group_id: dict_opt, source: dict_opt,
            logged_ns: int_opt, count: int32, prompt_tokens: int_opt, ids: ints_opt, texts: texts_opt, mask: bools_opt,
            logprobs: measured_opt, trainer_logprobs: measured_opt, entropy: measured_opt, advantages: measured_opt,
            ratios: measured_opt, clipped: bools_opt, parts: parts, file: dict_opt, half: dict_opt,
        });
    };
}

pub(crate) use plain_tables;
