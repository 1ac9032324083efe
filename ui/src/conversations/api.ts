// Conversations as the page gets them: from the server, or from the blocks of a static file. The server searches, sorts
// and pages; a static file holds a bounded number of conversations of each run in one answer, so there the page looks
// through them itself, with a small part of the language.
import { app } from '../lib/app.svelte';
import { fromStatic } from './offline';

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

export async function list(q: Question, signal?: AbortSignal): Promise<Listed> {
  if (app.source.kind === 'static') return fromStatic(q, (path) => app.source.get(path, signal));
  const params = new URLSearchParams();
  for (const [k, v] of Object.entries(q)) if (v !== undefined && v !== null && v !== '') params.set(k, String(v));
  return (await (await app.source.get(`/conversations?${params.toString()}`, signal)).json()) as Listed;
}

export async function one(id: string, signal?: AbortSignal): Promise<Conversation> {
  if (app.source.kind === 'static') {
    // An id begins with its run.
    for (const run of await app.source.runs()) {
      const all = await fromStatic({ run: run.run_id, limit: 1_000_000 }, (path) => app.source.get(path, signal)).catch(() => null);
      const found = all?.conversations.find((c) => c.id === id);
      if (found) return { ...found, messages: found.messages ?? [] };
    }
    throw new Error('This conversation was left out of the file.');
  }
  const found = (await (await app.source.get(`/conversations/${encodeURIComponent(id)}?timing=true`, signal)).json()) as Conversation;
  return { ...found, messages: asMessages(found.messages) };
}

/** Whatever came as messages, as a list of objects. */
export function asMessages(value: unknown): Message[] {
  const list = Array.isArray(value) ? value : value === undefined || value === null ? [] : [value];
  return list.map((m) => (typeof m === 'object' && m !== null && !Array.isArray(m) ? (m as Message) : { role: 'unknown', content: m }));
}

/** Address of a file of a conversation. */
export async function mediaUrl(hash: string, thumbnail?: number): Promise<string> {
  if (!/^[0-9a-f]{16,128}$/.test(hash)) throw new Error('no hash');
  if (app.source.kind === 'server') return `/api/v1/media/${hash}${thumbnail ? `?thumbnail=${thumbnail}` : ''}`;
  const bytes = new Uint8Array(await (await app.source.get(`/media/${hash}`)).arrayBuffer());
  const type = sniff(bytes);
  if (!type) throw new Error('no image that can be shown');
  return URL.createObjectURL(new Blob([bytes], { type }));
}

/** The type of an image that is safe to show, by its first bytes. */
export function sniff(b: Uint8Array): string | null {
  const at = (...bytes: number[]): boolean => bytes.every((x, i) => b[i] === x);
  if (at(0x89, 0x50, 0x4e, 0x47)) return 'image/png';
  if (at(0xff, 0xd8, 0xff)) return 'image/jpeg';
  if (at(0x47, 0x49, 0x46, 0x38)) return 'image/gif';
  if (at(0x52, 0x49, 0x46, 0x46) && b[8] === 0x57 && b[9] === 0x45) return 'image/webp';
  return null;
}

/** Where the conversations of one list come after one another: for J and K in the reader. */
export const lastList: { ids: string[]; search: string } = { ids: [], search: '' };
