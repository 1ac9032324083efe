// One trace as the server lays it out: rows in the order they are drawn, everything in typed arrays. Pure: bytes in, arrays
// out; what is folded, found or corrected is computed from them.
import { hex, readStream, valueAt, type Vector } from '../../data/arrow';
import type { TracePath, TraceView } from '../../generated/api';

/** Bits of `flags`; declared in crates/answers/src/traces/view.rs. */
export const OPEN = 1;
export const INSTANT = 2;
export const ORPHAN_END = 4;
export const ERROR = 8;
export const MISSING_PARENT = 16;
export const OUTSIDE_PARENT = 32;
export const JOINED = 64;
export const REPEATED = 128;
export const HAS_EVENTS = 256;
export const HAS_LINKS = 512;
export const NEGATIVE = 1024;
export const THREAD = 2048;

export type { HostClock } from '../../generated/api';

/** A column of repeated text: a number a row, and the texts. -1 where there is none. */
export interface Texts {
  of: Int32Array;
  list: string[];
}

export interface Trace {
  summary: TraceView;
  n: number;
  parent: Int32Array;
  depth: Int32Array;
  subtree: Int32Array;
  /** Row that the first link leads to; -1 none, -2 out of this view. */
  link: Int32Array;
  flags: Uint32Array;
  /** Nanoseconds since the base. */
  start: Float64Array;
  end: Float64Array;
  own: Float64Array;
  name: Texts;
  service: Texts;
  host: Texts;
  lane: Texts;
  /** Eight bytes a row. */
  spans: Uint8Array;
  traceId: (row: number) => string;
  spanId: (row: number) => string;
}

/** Dictionaries of several batches were joined on the way: a text may stand in them more than once, but must not here. */
export function distinct(keys: Int32Array, dictionary: string[]): Texts {
  const list = [...new Set(dictionary)];
  if (list.length === dictionary.length) return { of: keys, list };
  const place = new Map(list.map((text, i) => [text, i]));
  const of = Int32Array.from(dictionary, (text) => place.get(text)!);
  return { of: keys.map((k) => (k < 0 ? -1 : of[k])), list };
}

function texts(v: Vector): Texts {
  const dictionary = v.dictionary;
  if (!dictionary) throw new Error('The trace cannot be read: a text column has no dictionary.');
  const list = Array.from({ length: dictionary.length }, (_, i) => String(valueAt(dictionary, i) ?? ''));
  const keys = v.values as Int32Array;
  if (v.nullCount === 0 || !v.validity) return distinct(keys, list);
  const of = new Int32Array(v.length);
  for (let i = 0; i < v.length; i++) of[i] = v.validity[i >> 3] & (1 << (i & 7)) ? keys[i] : -1;
  return distinct(of, list);
}

export function decode(bytes: Uint8Array<ArrayBuffer>): Trace {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const summary = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length))) as TraceView;
  const stream = readStream(bytes.subarray(4 + length));
  const batch = stream.batches[0];
  if (!batch || stream.batches.length !== 1) throw new Error('The trace cannot be read: it is not one batch.');
  const column = (name: string): Vector => {
    const at = stream.fields.findIndex((f) => f.name === name);
    if (at < 0) throw new Error(`The trace cannot be read: the column ${name} is missing.`);
    return batch.columns[at];
  };
  const [traces, spans] = [column('trace').values as Int32Array, column('span_id').values as Uint8Array];
  return {
    summary,
    n: batch.length,
    parent: column('parent').values as Int32Array,
    depth: column('depth').values as Int32Array,
    subtree: column('subtree').values as Int32Array,
    link: column('link').values as Int32Array,
    flags: column('flags').values as Uint32Array,
    start: column('start').values as Float64Array,
    end: column('end').values as Float64Array,
    own: column('own').values as Float64Array,
    name: texts(column('name')),
    service: texts(column('service')),
    host: texts(column('host')),
    lane: texts(column('lane')),
    spans,
    traceId: (row) => summary.traces[traces[row]],
    spanId: (row) => hex(spans.subarray(row * 8, row * 8 + 8)),
  };
}

/** The row of a span, -1 if it is not here. */
export function rowOf(t: Trace, spanId: string): number {
  if (!/^[0-9a-f]{16}$/.test(spanId)) return -1;
  const want = Uint8Array.from({ length: 8 }, (_, i) => parseInt(spanId.slice(i * 2, i * 2 + 2), 16));
  for (let i = 0; i < t.n; i++) {
    let k = 0;
    while (k < 8 && t.spans[i * 8 + k] === want[k]) k++;
    if (k === 8) return i;
  }
  return -1;
}

/** Rows that are shown: those without a folded ancestor. Steps over folded subtrees, so it costs what is shown. */
export function visible(t: Trace, folded: Uint8Array): Int32Array {
  const out = new Int32Array(t.n);
  let count = 0;
  for (let i = 0; i < t.n;) {
    out[count++] = i;
    i += folded[i] ? t.subtree[i] : 1;
  }
  return out.subarray(0, count);
}

/** Where a row is among those shown; a hidden row is where its folded ancestor is. */
export function indexOf(shown: Int32Array, row: number): number {
  let [lo, hi] = [0, shown.length - 1];
  while (lo < hi) {
    const mid = (lo + hi + 1) >> 1;
    if (shown[mid] <= row) lo = mid;
    else hi = mid - 1;
  }
  return lo;
}

/** Folds everything below a depth. */
export function foldBelow(t: Trace, depth: number): Uint8Array {
  const folded = new Uint8Array(t.n);
  for (let i = 0; i < t.n; i++) if (t.depth[i] >= depth && t.subtree[i] > 1) folded[i] = 1;
  return folded;
}

/** Rows whose name, service, lane or id has the text. */
export function search(t: Trace, text: string): Int32Array {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return new Int32Array(0);
  const hits = (list: string[]): Uint8Array[] => words.map((w) => Uint8Array.from(list, (s) => (s.toLowerCase().includes(w) ? 1 : 0)));
  const [names, services, lanes] = [hits(t.name.list), hits(t.service.list), hits(t.lane.list)];
  const ids = words.map((w) => /^[0-9a-f]{6,16}$/.test(w));
  const out: number[] = [];
  for (let i = 0; i < t.n; i++) {
    let all = true;
    for (let w = 0; w < words.length && all; w++) {
      all = (names[w][t.name.of[i]] ||
        services[w][t.service.of[i]] ||
        lanes[w][t.lane.of[i]] ||
        (ids[w] && t.spanId(i).startsWith(words[w]))) as boolean;
    }
    if (all) out.push(i);
  }
  return Int32Array.from(out);
}

/** Start and end with the hosts' clocks put right as far as the spans tell. */
export function corrected(t: Trace): { start: Float64Array; end: Float64Array } {
  const shift = new Map(t.summary.hosts.map((h) => [h.host, h.shift_ns]));
  const byHost = t.host.list.map((h) => shift.get(h) ?? 0);
  const [start, end, of] = [new Float64Array(t.n), new Float64Array(t.n), new Float64Array(t.n)];
  for (let i = 0; i < t.n; i++) {
    const own = t.host.of[i];
    const parent = t.parent[i];
    // A span without a host is where its parent is, if it is of the same service.
    of[i] = own >= 0 ? byHost[own] : parent >= 0 && t.service.of[parent] === t.service.of[i] ? of[parent] : 0;
    start[i] = t.start[i] + of[i];
    end[i] = t.end[i] + of[i];
  }
  return { start, end };
}

export interface NameRow {
  name: number;
  count: number;
  errors: number;
  /** All of it; without what a batch repeats; without children; longest. Nanoseconds. */
  total: number;
  once: number;
  own: number;
  longest: number;
  longestRow: number;
}

/** Statistics by name. */
export function byName(t: Trace): NameRow[] {
  const list: NameRow[] = t.name.list.map((_, name) => ({ name, count: 0, errors: 0, total: 0, once: 0, own: 0, longest: -1, longestRow: -1 }));
  for (let i = 0; i < t.n; i++) {
    const row = list[t.name.of[i]];
    if (!row) continue;
    const d = t.end[i] - t.start[i];
    row.count++;
    if (t.flags[i] & ERROR) row.errors++;
    row.total += d;
    if (!(t.flags[i] & REPEATED)) row.once += d;
    row.own += t.own[i];
    if (d > row.longest) [row.longest, row.longestRow] = [d, i];
  }
  return list.filter((r) => r.count > 0);
}

export interface Lanes {
  /** Lane of each drawn line, and how many lines each lane has. */
  lines: { lane: number; line: number }[];
  /** Line of a row, -1 where it is not drawn (it only frames others). */
  of: Int32Array;
}

/** Threads as lanes: every span on the lane of its thread, in as many lines as overlap. */
export function lanes(t: Trace, start: Float64Array, end: Float64Array): Lanes {
  const order = Array.from({ length: t.n }, (_, i) => i).sort((a, b) => start[a] - start[b] || end[b] - end[a] || a - b);
  const ends: number[][] = t.lane.list.map(() => []);
  const within = new Int32Array(t.n);
  for (const i of order) {
    // A repeated slice of a batch lies on the one that was drawn for it.
    const mine = ends[t.lane.of[i]];
    let line = mine.findIndex((until) => until <= start[i]);
    if (line < 0) line = mine.push(0) - 1;
    mine[line] = Math.max(end[i], start[i]);
    within[i] = line;
    if (mine.length > 200) mine.length = 200;
  }
  const first: number[] = [];
  const lines: Lanes['lines'] = [];
  const used = t.lane.list
    .map((name, lane) => ({ name, lane }))
    .filter(({ lane }) => ends[lane].length > 0)
    .sort((a, b) => (a.name < b.name ? -1 : 1));
  for (const { lane } of used) {
    first[lane] = lines.length;
    for (let line = 0; line < ends[lane].length; line++) lines.push({ lane, line });
  }
  const of = new Int32Array(t.n);
  for (let i = 0; i < t.n; i++) of[i] = first[t.lane.of[i]] + Math.min(within[i], ends[t.lane.of[i]].length - 1);
  return { lines, of };
}

/** The critical path of a trace. */
export type Held = TracePath & { trace: string };

/** By row, when it held the trace: pairs of start and end, in the trace's nanoseconds. */
export function heldRows(t: Trace, held: Held): Map<number, number[]> {
  const rows = new Map<string, number>();
  // Four bytes of the id tell almost all rows apart: text is made only of those that may be wanted.
  const begin = (id: string): number => parseInt(id.slice(0, 8), 16);
  const wanted = new Set(held.parts.map((p) => begin(p.span_id ?? '')));
  for (let i = 0; i < t.n; i++) {
    const at = i * 8;
    if (wanted.has(((t.spans[at] << 24) | (t.spans[at + 1] << 16) | (t.spans[at + 2] << 8) | t.spans[at + 3]) >>> 0)) rows.set(t.spanId(i), i);
  }
  const shift = Number(BigInt(held.start_ns) - BigInt(t.summary.base_ns));
  const out = new Map<number, number[]>();
  for (const p of held.parts) {
    const row = rows.get(p.span_id ?? '');
    if (row === undefined) continue;
    const from = shift + p.start_s * 1e9;
    const list = out.get(row);
    if (list) list.push(from, from + p.seconds * 1e9);
    else out.set(row, [from, from + p.seconds * 1e9]);
  }
  return out;
}
