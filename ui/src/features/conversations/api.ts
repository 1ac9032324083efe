// Conversations as the page gets them: from the server, or from the blocks of a static file. The server searches, sorts
// and pages; a static file holds a bounded number of conversations of each run in one answer, so there the page looks
// through them itself, with a small part of the language.
import { readStream, rows } from '../../data/arrow';
import type { Conversation, Listed, Message, Question } from '../../data/conversations';
import { api, bytesOf, getArrow, getJson, withParams } from '../../data/http';
import { app } from '../../domain/app.svelte';
import type { ConversationStats, Conversation as Stored } from '../../generated/api';
import { listed } from './offline';

export type { ConversationStats as Stats } from '../../generated/api';

export async function list(q: Question, signal?: AbortSignal): Promise<Listed> {
  if (app.source.conversations) {
    const runs = q.run ? [q.run] : (await app.source.runs()).map((r) => r.run_id);
    return listed((await Promise.all(runs.map((run) => app.source.conversations!(run)))).flat(), q);
  }
  return getJson(withParams(api`/conversations`, { ...q }), signal);
}

/** As many of them, also where messages are so long that a page ends early. */
export async function listUpTo(most: number, q: Question, signal?: AbortSignal): Promise<Listed> {
  const all = await list({ ...q, limit: most }, signal);
  while (all.next && all.conversations.length < most) {
    const more = await list({ ...q, limit: most - all.conversations.length, cursor: all.next }, signal);
    all.conversations.push(...more.conversations);
    all.next = more.next;
  }
  return all;
}

export async function one(id: string, signal?: AbortSignal): Promise<Conversation> {
  if (app.source.conversations) {
    const found = (await list({ limit: Infinity })).conversations.find((c) => c.id === id);
    if (!found) throw new Error('This conversation is not in this file.');
    return { ...found, messages: found.messages ?? [] };
  }
  const found = await getJson<Stored>(withParams(api`/conversations/${id}`, { timing: true }), signal);
  return { ...found, messages: asMessages(found.messages) };
}

/** How many tokens of a sample something is known of. */
export async function tokenCount(run: string, step: number | null, sample: string, signal?: AbortSignal): Promise<number> {
  if (app.source.kind !== 'server') return 0;
  const address = withParams(api`/runs/${run}/tokens`, { sample, step, columns: 'count' });
  const found = rows<'count'>(readStream(await bytesOf(await getArrow(address, signal))));
  return found.reduce((sum, row) => sum + Number(row.count), 0);
}

/** Whatever came as messages, as a list of objects. */
export function asMessages(value: unknown): Message[] {
  const list = Array.isArray(value) ? value : value === undefined || value === null ? [] : [value];
  return list.map((m) => (typeof m === 'object' && m !== null && !Array.isArray(m) ? (m as Message) : { role: 'unknown', content: m }));
}

/** Null: a static file does not count. */
export const stats = (): Promise<ConversationStats | null> =>
  app.source.kind === 'server' ? getJson<ConversationStats>(api`/conversations-stats`) : Promise.resolve(null);

export const exportHref = (q: Pick<Question, 'run' | 'search' | 'sort'>): string => withParams(api`/conversations-export`, { ...q });

/** Address of a file of a conversation, or null: static files hold none. */
export function mediaUrl(hash: string, thumbnail?: number): string | null {
  return app.source.kind === 'server' && /^[0-9a-f]{16,128}$/.test(hash) ? withParams(api`/media/${hash}`, { thumbnail }) : null;
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
