// What a message holds, part by part, in any dialect: text, images, and unknown parts as they are.
import type { Message, ToolCall } from '../../data/conversations';
import { lookup } from '../../base/lookup';

export type Piece = { t: 'text'; text: string } | { t: 'image'; hash?: string; inline?: string; caption: string } | { t: 'raw'; json: string };

const str = (v: unknown): string | null => (typeof v === 'string' ? v : null);

/** Levels of JSON that are indented: each level indents all that is inside of it. */
const MAX_LEVELS = 50;
const isDeeper = (v: unknown, levels: number): boolean =>
  typeof v === 'object' && v !== null && (levels === 0 || Object.values(v).some((inside) => isDeeper(inside, levels - 1)));

/** A value as JSON. A browser can read JSON that is nested more deeply than it can write. */
export function jsonOf(v: unknown, indent = 0): string {
  try {
    return JSON.stringify(v, null, indent > 0 && isDeeper(v, MAX_LEVELS) ? 0 : indent) ?? 'null';
  } catch {
    return '(nested too deeply)';
  }
}

/** What should be text: anything may stand there. */
const words = (v: unknown): string => (typeof v === 'string' ? v : jsonOf(v));

export type Kind = 'system' | 'user' | 'assistant' | 'tool' | 'other';
const KINDS: Record<string, Kind> = {
  system: 'system',
  developer: 'system',
  user: 'user',
  human: 'user',
  assistant: 'assistant',
  tool: 'tool',
  function: 'tool',
};
export const roleOf = (m: Message): string => words(m.role ?? 'unknown');
export const kindOf = (m: Message): Kind => lookup(KINDS, roleOf(m)) ?? 'other';

function part(p: unknown): Piece[] {
  if (typeof p === 'string') return p === '' ? [] : [{ t: 'text', text: p }];
  if (typeof p !== 'object' || p === null) return p === null || p === undefined ? [] : [{ t: 'raw', json: jsonOf(p) }];
  const o = p as Record<string, unknown>;
  const type = str(o.type) ?? '';
  const text = str(o.text) ?? (/^(text|input_text|output_text)$/.test(type) ? str(o.content) : null);
  if (text !== null && (type === '' || type.includes('text'))) return [{ t: 'text', text }];
  const caption = str(o.caption) ?? str(o.alt) ?? '';
  if (str(o.media)) return [{ t: 'image', hash: str(o.media)!, caption }];
  const url = str(o.image_url) ?? str((o.image_url as Record<string, unknown> | undefined)?.url) ?? (type.includes('image') ? str(o.url) : null);
  if (url !== null) return [{ t: 'image', inline: url, caption: caption || (url.startsWith('data:') ? '' : url) }];
  return [{ t: 'raw', json: jsonOf(p, 2) }];
}

export function pieces(content: unknown): Piece[] {
  return Array.isArray(content) ? content.flatMap(part) : part(content);
}

export const textOf = (content: unknown): string =>
  pieces(content)
    .map((p) => (p.t === 'text' ? p.text : p.t === 'raw' ? p.json : ''))
    .join('\n');

export interface Call {
  id: string;
  name: string;
  args: string;
  /** Arguments that are JSON, parsed. */
  parsed: Record<string, unknown> | null;
}

export function calls(m: Message): Call[] {
  if (!Array.isArray(m.tool_calls)) return [];
  return m.tool_calls
    .filter((c): c is ToolCall => typeof c === 'object' && c !== null)
    .map((c) => {
      const raw = c.function?.arguments ?? c.arguments ?? '';
      const args = words(raw);
      let parsed: Record<string, unknown> | null = null;
      try {
        const v: unknown = typeof raw === 'string' ? JSON.parse(raw) : raw;
        if (typeof v === 'object' && v !== null && !Array.isArray(v)) parsed = v as Record<string, unknown>;
      } catch {
        // Half-written arguments are shown as they are.
      }
      return { id: words(c.id ?? ''), name: words(c.function?.name ?? c.name ?? 'tool'), args, parsed };
    });
}

/** JSON written out for reading, or null if the text is none. */
export function pretty(text: string): string | null {
  const t = text.trim();
  if (!/^[[{]/.test(t) || t.length > 2_000_000) return null;
  try {
    const parsed: unknown = JSON.parse(t);
    return isDeeper(parsed, MAX_LEVELS) ? null : JSON.stringify(parsed, null, 2);
  } catch {
    return null;
  }
}

/** Fields of a message that nothing else shows. */
export function rest(m: Message): [string, string][] {
  const known = ['role', 'content', 'reasoning_content', 'reasoning', 'thinking', 'tool_calls', 'tool_call_id', 'name', 'id'];
  return Object.entries(m)
    .filter(([k, v]) => !known.includes(k) && v !== null && v !== '')
    .map(([k, v]) => [k, typeof v === 'string' ? v : jsonOf(v, 2)]);
}

export const reasoningOf = (m: Message): string => {
  const own = m.reasoning_content ?? m.reasoning ?? m.thinking;
  return own === undefined || own === null ? '' : textOf(own);
};

/** A message without any formatting: what is left when showing it fails. */
export const plainOf = (m: Message): string => (typeof m.content === 'string' && m.content !== '' ? m.content : jsonOf(m, 2));

/** Does a tool's answer look like a failure? */
export const failed = (text: string): boolean =>
  /(^|\b)(Traceback \(most recent call last\)|[A-Z]\w*(Error|Exception)\b|timed? ?out|command not found|exit code [1-9])/i.test(
    text.slice(0, 20_000),
  );
