// Conversations as the API answers them.

export interface ToolCall {
  id?: string;
  type?: string;
  function?: { name?: string; arguments?: unknown };
  name?: string;
  arguments?: unknown;
  [key: string]: unknown;
}

export interface Message {
  role?: string;
  content?: unknown;
  reasoning_content?: unknown;
  tool_calls?: ToolCall[];
  tool_call_id?: string;
  name?: string;
  [key: string]: unknown;
}

export interface Snippet {
  message: number;
  role: string;
  /** Plain, hit, plain, hit, plain. */
  pieces: string[];
}

export interface Part {
  kind: string;
  from: number;
  seconds: number;
}

/** The span that made a message. */
export interface Strip {
  message: number;
  kind: 'generation' | 'tool';
  name: string;
  trace_id: string;
  span_id: string;
  start_ns: string;
  seconds: number | null;
  status: string;
  parts: Part[];
  prompt_tokens: number | null;
  completion_tokens: number | null;
  cached_tokens: number | null;
  tokens_per_s: number | null;
  finish_reason: string | null;
}

/** What a list shows of a conversation. */
export interface Row {
  id: string;
  run_id: string;
  step: number | null;
  key: string | null;
  index: number | null;
  sample_id: string | null;
  group_id: string | null;
  trace_id: string | null;
  span_id: string | null;
  reward: number | null;
  status: string | null;
  source?: string | null;
  message_count: number;
  turn_count: number;
  tool_call_count: number;
  media_count: number;
  char_count: number;
  tokens?: number | null;
  duration_s?: number | null;
  tools?: string[];
  logged_ns: string | null;
  metadata: Record<string, unknown> | null;
  preview?: string;
  answer?: string;
  thumbnails?: string[];
  snippet?: Snippet;
  messages?: Message[];
}

export interface Conversation extends Row {
  messages: Message[];
  timing?: Strip[];
}

export interface FacetValue {
  value?: string | number;
  from?: number;
  to?: number;
  count: number;
}

export interface Listed {
  conversations: Row[];
  total: number;
  next: string | null;
  facets: Record<string, { values: FacetValue[]; left_out: number }>;
}

export interface Question {
  run?: string | null;
  search?: string;
  sort?: string;
  step?: string;
  group?: string;
  sample?: string;
  cursor?: string;
  limit?: number;
  facets?: string;
  messages?: boolean;
  snippets?: boolean;
}
