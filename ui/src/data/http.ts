// Requests to the server. This is the one place where addresses are put together and encoded, and where a refusal becomes an error
// in the server's words. Errors are RFC 9457 problems; /prometheus has its own form.
import { SourceError } from '../base/errors';

/** Parameters of an address. Null, undefined and empty ones are left out; a list repeats its parameter. */
export type Params = Record<string, string | number | boolean | null | undefined | readonly string[]>;

const under =
  (base: string) =>
  (text: TemplateStringsArray, ...parts: (string | number)[]): string =>
    base + String.raw(text, ...parts.map((p) => encodeURIComponent(p)));

/** A path of the API, its parts encoded: api`/runs/${run}/steps`. */
export const api = under('/api/v1');
/** The same for what speaks PromQL. */
export const prometheus = under('/prometheus/api/v1');

export function withParams(path: string, params: Params): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (Array.isArray(value)) for (const v of value as readonly string[]) query.append(name, v);
    else if (value !== null && value !== undefined && value !== '') query.set(name, String(value));
  }
  return query.size === 0 ? path : `${path}?${query.toString()}`;
}

export async function request(address: string, init: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(address, { ...init, credentials: 'same-origin' });
  } catch (e) {
    if ((e as Error).name === 'AbortError') throw e;
    throw new SourceError('The server is not responding', 'Check that `rollscope serve` is still running, then retry.');
  }
  if (response.ok) return response;
  const text = await response.text();
  let title = `${response.status} ${response.statusText}`.trim();
  let detail = text.slice(0, 4000);
  try {
    const problem = JSON.parse(text) as { title?: unknown; detail?: unknown; error?: unknown };
    if (typeof problem.title === 'string') title = problem.title;
    const words = problem.detail ?? problem.error;
    detail = typeof words === 'string' ? words : '';
  } catch {
    // Not a problem document: the text itself is the best there is.
  }
  throw new SourceError(title, detail, response.status);
}

const json = async (address: string, signal?: AbortSignal): Promise<unknown> =>
  (await request(address, { signal, headers: { accept: 'application/json' } })).json();

export function getJson<T>(address: string, signal?: AbortSignal): Promise<T> {
  const asked = ahead.get(address);
  ahead.delete(address);
  const answer = asked && performance.now() - asked.at < AHEAD_MS ? asked.answer : json(address, signal);
  return answer as Promise<T>;
}

/** Asks for what `getJson` will ask for in a moment, when the code that does so is there. */
export function askAhead(address: string): void {
  if (ahead.has(address)) return;
  const answer = json(address);
  // Whoever takes the answer takes the error, too.
  answer.catch(() => undefined);
  ahead.set(address, { answer, at: performance.now() });
}
const ahead = new Map<string, { answer: Promise<unknown>; at: number }>();
/** After this, an answer that nobody took is old. */
const AHEAD_MS = 5000;

/** An Arrow IPC stream. */
export function getArrow(address: string, signal?: AbortSignal): Promise<Response> {
  return request(address, { signal, headers: { accept: 'application/vnd.apache.arrow.stream' } });
}

export const bytesOf = async (response: Response): Promise<Uint8Array<ArrayBuffer>> => new Uint8Array(await response.arrayBuffer());

export function sendJson(method: 'POST' | 'PUT', address: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  return request(address, { method, headers: { 'content-type': 'application/json' }, body: JSON.stringify(body), signal });
}
