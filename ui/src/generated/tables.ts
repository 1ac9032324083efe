// Columns of every table, from crates/model/src/tables.rs; made by a test of crates/model. Stale: UPDATE=1 cargo test --workspace.

export const COLUMNS = {
  runs: ['run_id', 'project', 'name', 'framework', 'config', 'tags', 'started_ns', 'ended_ns', 'status', 'updated_ns'],
  spans: ['run_id', 'step', 'trace_id', 'span_id', 'parent_span_id', 'name', 'kind', 'service', 'phase', 'thread', 'host', 'pid', 'tp_rank', 'dp_rank', 'pp_rank', 'start_ns', 'end_ns', 'state', 'status', 'status_message', 'sample_id', 'group_id', 'attempt', 'request_id', 'start_attrs', 'end_attrs', 'events', 'links', 'resource', 'scope', 'trace_state', 'flags', 'dropped_attrs', 'dropped_events', 'dropped_links', 'original_trace_id', 'original_span_id', 'original_parent_span_id'],
  samples: ['run_id', 'step', 'sample_id', 'split', 'group_id', 'trace_id', 'attempt', 'status', 'reward', 'reward_json', 'label', 'source', 'start_ns', 'end_ns', 'prompt_tokens', 'response_tokens', 'total_tokens', 'response_length', 'turns', 'tool_calls', 'weight_versions', 'cached_tokens', 'cache_total_tokens', 'spec_accepted', 'spec_drafted', 'spec_verifies', 'non_generation_s', 'removed', 'metadata', 'file'],
  conversations: ['id', 'run_id', 'step', 'key', 'index', 'sample_id', 'group_id', 'trace_id', 'span_id', 'messages', 'metadata', 'reward', 'status', 'message_count', 'turn_count', 'tool_call_count', 'media_count', 'char_count', 'logged_ns'],
  metrics: ['run_id', 'step', 'time_ns', 'name', 'value', 'source'],
  series: ['run_id', 'target', 'name', 'labels', 'kind', 'time_ns', 'value'],
} as const;

export type Table = keyof typeof COLUMNS;
export type Column<T extends Table> = (typeof COLUMNS)[T][number];
