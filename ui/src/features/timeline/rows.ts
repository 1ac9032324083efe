// What is known of each row, which rows are shown, and in which order. Pure; a keystroke in the filter costs one pass over
// the rows (and one over the items where a span's name is asked for).
import { hex, isNull, valueAt, type ArrowStream } from '../../data/arrow';
import { number } from '../../base/format';
import type { SampleColumn } from '../../data/samples';
import type { AttrTest, Owners } from '../../data/types';
import { tailShares } from '../../domain/tail';
import { STATE, wordsOf, type Items } from './items';
import type { Layout } from './layout';

export const SORTS = ['sample', 'start', 'end', 'duration', 'response', 'reward', 'tail'] as const;
export type SortKey = (typeof SORTS)[number];

export interface RowTable {
  label: string[];
  /** Sample number (of items.samples) or -1. */
  sample: Int32Array;
  group: Int32Array;
  /** NaN: unknown. */
  reward: Float64Array;
  response: Float64Array;
  status: string[];
  source: string[];
  /** Lower-case text that the filter looks through. */
  hay: string[];
  /** Place of the row when sorted by label, numbers as numbers. */
  rank: Int32Array;
  rewardMin: number;
  rewardMax: number;
  /** Milliseconds of the tail that a sample answers for; see tailShares. NaN: no sample. */
  tail: Float64Array;
}

export function rowTable(items: Items, layout: Layout, samples: ArrowStream | null): RowTable {
  const n = layout.rows;
  const facts = new Map<string, { status: string; reward: number; response: number; source: string; more: string }>();
  if (samples) {
    const at = (name: string): number => samples.fields.findIndex((f) => f.name === name);
    const [id, status, reward, length, tokens, source, json] = (
      ['sample_id', 'status', 'reward', 'response_length', 'response_tokens', 'source', 'reward_json'] satisfies SampleColumn[]
    ).map(at);
    for (const b of samples.batches) {
      // Distinct texts are decoded once.
      const seen = b.columns.map((v) => new Array<unknown>(v.dictionary?.length ?? 0));
      const get = (c: number, i: number): unknown => {
        if (c < 0 || isNull(b.columns[c], i)) return null;
        const v = b.columns[c];
        return v.dictionary ? (seen[c][Number(v.values[i])] ??= valueAt(v, i)) : valueAt(v, i);
      };
      const num = (v: unknown): number => (v === null ? NaN : Number(v));
      for (let i = 0; i < b.length; i++) {
        const response = num(get(length, i));
        facts.set(String(get(id, i)), {
          status: String(get(status, i) ?? ''),
          reward: num(get(reward, i)),
          response: Number.isNaN(response) ? num(get(tokens, i)) : response,
          source: String(get(source, i) ?? ''),
          more: String(get(json, i) ?? ''),
        });
      }
    }
  }
  const t: RowTable = {
    label: new Array<string>(n),
    sample: new Int32Array(n).fill(-1),
    group: new Int32Array(n).fill(-1),
    reward: new Float64Array(n).fill(NaN),
    response: new Float64Array(n).fill(NaN),
    status: new Array<string>(n).fill(''),
    source: new Array<string>(n).fill(''),
    hay: new Array<string>(n),
    rank: new Int32Array(n),
    rewardMin: Infinity,
    rewardMax: -Infinity,
    tail: new Float64Array(n).fill(NaN),
  };
  const sampleRows = Array.from({ length: n }, (_, r) => r).filter((r) => layout.rowKind[r] === 0);
  tailShares(sampleRows.map((r) => layout.rowEnd[r])).forEach((ms, k) => (t.tail[sampleRows[k]] = ms));
  // The trace of each sample, for the filter.
  const traceOf = new Int32Array(items.samples.length).fill(-1);
  for (let i = 0; i < items.trace.length; i++) if (items.sample[i] >= 0 && traceOf[items.sample[i]] < 0) traceOf[items.sample[i]] = items.trace[i];
  const traceHex = (s: number): string => (traceOf[s] < 0 ? '' : hex(items.traceIds.subarray(traceOf[s] * 16, traceOf[s] * 16 + 16)));
  for (let r = 0; r < n; r++) {
    const key = layout.rowKey[r];
    if (layout.rowKind[r] !== 0) {
      t.label[r] = (layout.rowKind[r] === 1 ? items.workers[key] : items.names[key]) ?? '';
      t.hay[r] = t.label[r].toLowerCase();
      continue;
    }
    t.label[r] = items.samples[key];
    t.sample[r] = key;
    t.group[r] = items.sampleGroup[key];
    const f = facts.get(items.samples[key]);
    if (f) {
      t.status[r] = f.status;
      t.reward[r] = f.reward;
      t.response[r] = f.response;
      t.source[r] = f.source;
      if (f.reward < t.rewardMin) t.rewardMin = f.reward;
      if (f.reward > t.rewardMax) t.rewardMax = f.reward;
    }
    t.hay[r] =
      `${t.label[r]} ${t.group[r] < 0 ? '' : items.groups[t.group[r]]} ${t.status[r]} ${t.source[r]} ${number(f?.reward)} ${traceHex(key)}`.toLowerCase();
  }
  // Plain numbers compare as such: a collator is slow, and most samples are numbered.
  const collator = new Intl.Collator('en', { numeric: true });
  const plain = Float64Array.from(t.label, (x) => (/^\d{1,15}$/.test(x) ? Number(x) : NaN));
  Array.from({ length: n }, (_, r) => r)
    .sort(
      (a, b) =>
        layout.rowKind[b] - layout.rowKind[a] || (plain[a] >= 0 && plain[b] >= 0 ? plain[a] - plain[b] : collator.compare(t.label[a], t.label[b])),
    )
    .forEach((r, k) => (t.rank[r] = k));
  return t;
}

export interface RowQuery {
  text: string;
  sort: SortKey;
  desc: boolean;
  grouped: boolean;
  /** Show rows of this attempt only; null: all. */
  attempt: number | null;
  /** Rows by test of an attribute, as far as they are known: see attrTests. */
  attrs?: Map<string, Uint8Array>;
}

const ATTR = /^@([^\s=<>!~]+)(?:(!=|<=|>=|=|<|>|~)(.*))?$/;

/** Words like `@tool=bash`, `@tokens>100`, `@error~time`, `@key`: tests of attributes, which the page must ask for. */
export function attrTests(text: string): Map<string, AttrTest> {
  const out = new Map<string, AttrTest>();
  for (const [word] of text.matchAll(/@(?:"[^"]*"|[^\s"])+/g)) {
    const m = ATTR.exec(word.replaceAll('"', ''));
    if (m) out.set(word.replaceAll('"', '').toLowerCase(), { key: m[1], op: (m[2] as AttrTest['op'] | undefined) ?? 'is', value: m[3] ?? '' });
  }
  return out;
}

/** Rows that hold one of these spans. */
export function rowsOfSpans(items: Items, layout: Layout, ids: Uint8Array): Uint8Array {
  const rows = new Uint8Array(layout.rows);
  const words = wordsOf(ids.byteOffset % 4 === 0 ? ids : ids.slice());
  const wanted = new Map<number, number[]>();
  for (let k = 0; k + 1 < words.length; k += 2) {
    const list = wanted.get(words[k]);
    if (list) list.push(words[k + 1]);
    else wanted.set(words[k], [words[k + 1]]);
  }
  const own = wordsOf(items.spanIds);
  for (let i = 0; i < items.n; i++) if (layout.row[i] >= 0 && wanted.get(own[2 * i])?.includes(own[2 * i + 1])) rows[layout.row[i]] = 1;
  return rows;
}

/**
 * Rows of the samples that own spans: those that the spans name, else the one sample of their trace. Finds spans that others stand for; where
 * rows are something else, or a trace has several samples, there is no telling.
 */
export function rowsOfOwners(items: Items, layout: Layout, { traceIds, samples }: Owners): Uint8Array {
  const rows = new Uint8Array(layout.rows);
  if (layout.mode !== 'sample') return rows;
  const names = (ids: Uint8Array): string[] => Array.from({ length: ids.length / 16 }, (_, k) => hex(ids.subarray(k * 16, k * 16 + 16)));
  // The sample of each trace, -1: none, -2: several.
  const only = new Int32Array(items.traceIds.length / 16).fill(-1);
  for (let i = 0; i < items.n; i++) {
    const [s, t] = [items.sample[i], items.trace[i]];
    if (s >= 0 && only[t] !== s) only[t] = only[t] === -1 ? s : -2;
  }
  const sampleOf = new Map(items.samples.map((name, s) => [name, s]));
  const traceOf = new Map(names(items.traceIds).map((id, t) => [id, t]));
  const wanted = new Set(names(traceIds).map((id, k) => (samples[k] === null ? only[traceOf.get(id) ?? -1] : sampleOf.get(samples[k]))));
  for (let r = 0; r < layout.rows; r++) if (layout.rowKind[r] === 0 && wanted.has(layout.rowKey[r])) rows[r] = 1;
  return rows;
}

type Test = (r: number) => boolean;

const COMPARE: Record<string, (a: number, b: number) => boolean> = {
  '<': (a, b) => a < b,
  '<=': (a, b) => a <= b,
  '>': (a, b) => a > b,
  '>=': (a, b) => a >= b,
  '': (a, b) => a === b,
};

/** Words of a filter, all of which must hold: plain text, or `field:value` with <, > for numbers; `-` before a word denies it. */
function tests(text: string, t: RowTable, items: Items, layout: Layout, attrs: Map<string, Uint8Array> | undefined): Test[] {
  const rowsWith = (pick: (i: number) => boolean): Test => {
    const has = new Uint8Array(layout.rows);
    for (const i of layout.order) if (pick(i)) has[layout.row[i]] = 1;
    return (r) => has[r] === 1;
  };
  return [...text.matchAll(/(-?)(?:([a-z]+):(<=|>=|<|>)?)?((?:"[^"]*"|[^\s"])+)/gi)].map((m) => {
    const [, not, fieldRaw, op, raw] = m;
    if (raw.startsWith('@') && !fieldRaw) {
      // Not answered yet: nothing is left out.
      const rows = attrs?.get(raw.replaceAll('"', '').toLowerCase());
      return (r: number) => rows === undefined || (rows[r] === 1) !== (not === '-');
    }
    const value = raw.replaceAll('"', '').toLowerCase();
    const field = fieldRaw?.toLowerCase();
    const num = Number(value);
    const numeric =
      (column: ArrayLike<number>, unit = 1): Test =>
      (r) =>
        COMPARE[op ?? ''](column[r] / unit, num);
    let test: Test;
    if (field === 'reward') test = numeric(t.reward);
    else if (field === 'response' || field === 'tokens') test = numeric(t.response);
    else if (field === 'duration') test = (r) => COMPARE[op ?? '']((layout.rowEnd[r] - layout.rowStart[r]) / 1000, num);
    else if (field === 'tail') test = numeric(t.tail, 1000);
    else if (field === 'status') test = (r) => t.status[r].toLowerCase().includes(value);
    else if (field === 'source') test = (r) => t.source[r].toLowerCase().includes(value);
    else if (field === 'sample') test = (r) => t.label[r].toLowerCase() === value;
    else if (field === 'group') test = (r) => t.group[r] >= 0 && items.groups[t.group[r]].toLowerCase() === value;
    else if (field === 'name') {
      const hit = items.names.map((x) => x.toLowerCase().includes(value));
      test = rowsWith((i) => hit[items.name[i]]);
    } else if (field === 'is') {
      if (value === 'error') test = (r) => layout.rowErrors[r] > 0;
      else if (value === 'open') test = rowsWith((i) => (items.flags[i] & STATE) === 1);
      else if (value === 'orphan') test = rowsWith((i) => (items.flags[i] & STATE) === 3);
      else test = () => false;
    } else {
      const whole = (field ? `${field}:${op ?? ''}${value}` : value).toLowerCase();
      test = (r) => t.hay[r].includes(whole);
    }
    return not ? (r: number) => !test(r) : test;
  });
}

export interface RowOrder {
  /** Rows in the order they are drawn. */
  order: Int32Array;
  /** 1: a new group begins here. */
  breaks: Uint8Array;
  /** By row: 1 where shown. */
  shown: Uint8Array;
  /** The rows of a group stand together. */
  grouped: boolean;
}

export function orderRows(items: Items, layout: Layout, t: RowTable, q: RowQuery): RowOrder {
  const all = tests(q.text, t, items, layout, q.attrs);
  if (q.attempt !== null) {
    const has = new Uint8Array(layout.rows);
    for (const i of layout.order) if (items.attempt[i] === q.attempt) has[layout.row[i]] = 1;
    all.push((r) => has[r] === 1);
  }
  const rows: number[] = [];
  const shown = new Uint8Array(layout.rows);
  for (let r = 0; r < layout.rows; r++) {
    if (all.every((f) => f(r))) {
      rows.push(r);
      shown[r] = 1;
    }
  }
  const value = ((): ((r: number) => number) => {
    switch (q.sort) {
      case 'start':
        return (r) => layout.rowStart[r];
      case 'end':
        return (r) => layout.rowEnd[r];
      case 'duration':
        return (r) => layout.rowEnd[r] - layout.rowStart[r];
      case 'response':
        return (r) => t.response[r];
      case 'reward':
        return (r) => t.reward[r];
      case 'tail':
        return (r) => t.tail[r];
      default:
        return (r) => t.rank[r];
    }
  })();
  // In a view of samples, workers (the trainer, engines) stand on top; what has no value comes last either way.
  const context = (r: number): number => (layout.mode === 'sample' && layout.rowKind[r] === 1 ? 0 : 1);
  const keys = new Float64Array(layout.rows);
  for (const r of rows) keys[r] = context(r) === 0 ? t.rank[r] : value(r) * (q.desc ? -1 : 1);
  rows.sort((a, b) => {
    const c = context(a) - context(b);
    if (c !== 0) return c;
    const [x, y] = [keys[a], keys[b]];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number(Number.isNaN(x)) - Number(Number.isNaN(y)) || t.rank[a] - t.rank[b];
    return x - y || t.rank[a] - t.rank[b];
  });
  let order = rows;
  if (q.grouped && layout.mode === 'sample') {
    // A group stands where its first row would; rows keep their order inside.
    const buckets = new Map<number, number[]>();
    rows.forEach((r, k) => {
      const g = t.group[r] >= 0 ? t.group[r] : -2 - (context(r) === 0 ? 0 : k + 1);
      const b = buckets.get(g);
      if (b) b.push(r);
      else buckets.set(g, [r]);
    });
    order = [...buckets.values()].flat();
  }
  const breaks = new Uint8Array(order.length);
  for (let k = 1; k < order.length; k++) {
    const [a, b] = [order[k - 1], order[k]];
    if (context(a) !== context(b) || (q.grouped && t.group[a] !== t.group[b])) breaks[k] = 1;
  }
  return { order: Int32Array.from(order), breaks, shown, grouped: q.grouped && layout.mode === 'sample' };
}
