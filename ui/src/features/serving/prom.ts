// Series, asked in PromQL at the server's own /prometheus.
import { getJson, prometheus, withParams } from '../../data/http';

export interface Series {
  labels: Record<string, string>;
  /** Milliseconds since the epoch. */
  t: number[];
  v: (number | null)[];
}

interface Answer<T> {
  data: T;
}

/** Points at every step from one time to the other; where there is none, null. Times in milliseconds. */
export async function range(query: string, from: number, to: number, step: number, signal?: AbortSignal): Promise<Series[]> {
  const start = Math.floor(from / step) * step;
  const end = Math.max(start, Math.ceil(to / step) * step);
  const params = { query, start: start / 1000, end: end / 1000, step: step / 1000 };
  const answer = await getJson<Answer<{ result: { metric: Record<string, string>; values: [number, string][] }[] }>>(
    withParams(prometheus`/query_range`, params),
    signal,
  );
  const t: number[] = [];
  for (let x = start; x <= end; x += step) t.push(x);
  return answer.data.result.map((r) => {
    const v: (number | null)[] = new Array<null>(t.length).fill(null);
    for (const [seconds, text] of r.values) {
      const value = Number(text);
      v[Math.round((seconds * 1000 - start) / step)] = Number.isFinite(value) ? value : null;
    }
    return { labels: r.metric, t, v };
  });
}

/** Names of metrics that have a sample there. */
export async function names(selector: string, from: number, to: number, signal?: AbortSignal): Promise<string[]> {
  const params = { 'match[]': selector, start: from / 1000, end: to / 1000 };
  return (await getJson<Answer<string[]>>(withParams(prometheus`/label/__name__/values`, params), signal)).data;
}

const quote = (text: string): string => JSON.stringify(text);
/** Text as a literal inside a regular expression. */
const literal = (text: string): string => text.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&');

/** Series of a run, and those that were scraped for no run in particular. */
export const ofRun = (run: string | null): string => (run === null ? '' : `run=~${quote(`${literal(run)}|`)}`);

/** A selector by name. Names with a colon are plain PromQL; others are quoted. */
export function select(name: string, run: string | null): string {
  const inside = ofRun(run);
  return /^[a-zA-Z_:][a-zA-Z0-9_:]*$/.test(name) ? `${name}{${inside}}` : `{${[quote(name), inside].filter(Boolean).join(', ')}}`;
}

/** A step that gives about `points` points, of a length people know. */
export function niceStep(ms: number, points: number): number {
  const least = Math.max(1000, ms / points);
  for (const s of [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 86_400]) if (s * 1000 >= least) return s * 1000;
  return Math.ceil(least / 86_400_000) * 86_400_000;
}
