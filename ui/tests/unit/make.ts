// Small timelines for tests: spans as objects in, an Arrow stream as the reader gives it out.
import type { ArrowStream, Vector } from '../../src/data/arrow';
import { buildItems, type Items } from '../../src/features/timeline/items';

export interface S {
  id: number;
  parent?: number;
  name?: string;
  start: number;
  end?: number | null;
  state?: string;
  status?: string;
  phase?: string | null;
  sample?: string | null;
  group?: string | null;
  service?: string;
  thread?: string | null;
  attempt?: number;
  trace?: number;
}

const BASE = 1_700_000_000_000_000_000n;
const none = { nullCount: 0, validity: null, offsets: null, bytes: [], children: [], names: [], dictionary: null };

function text(values: (string | null | undefined)[]): Vector {
  const distinct = [...new Set(values.filter((v): v is string => typeof v === 'string'))];
  const parts = distinct.map((t) => new TextEncoder().encode(t));
  const offsets = new Int32Array(parts.length + 1);
  parts.forEach((p, i) => (offsets[i + 1] = offsets[i] + p.length));
  const bytes = new Uint8Array(offsets[parts.length]);
  parts.forEach((p, i) => bytes.set(p, offsets[i]));
  const validity = new Uint8Array(Math.ceil(values.length / 8));
  values.forEach((v, i) => typeof v === 'string' && (validity[i >> 3] |= 1 << (i & 7)));
  const dictionary: Vector = { ...none, type: { name: 'utf8', width: 0 }, length: parts.length, values: new Uint8Array(0), offsets, bytes: [bytes] };
  return {
    ...none,
    type: { name: 'utf8', width: 0 },
    length: values.length,
    nullCount: 1,
    validity,
    values: Int32Array.from(values, (v) => (typeof v === 'string' ? distinct.indexOf(v) : 0)),
    dictionary,
  };
}
function fixed(values: (number | undefined)[], width: number): Vector {
  const out = new Uint8Array(values.length * width);
  const validity = new Uint8Array(Math.ceil(values.length / 8));
  values.forEach((v, i) => {
    if (v === undefined) return;
    validity[i >> 3] |= 1 << (i & 7);
    new DataView(out.buffer).setUint32(i * width, v, true);
  });
  return { ...none, type: { name: 'fixed', width }, length: values.length, nullCount: 1, validity, values: out };
}
function times(values: (number | null | undefined)[]): Vector {
  const validity = new Uint8Array(Math.ceil(values.length / 8));
  values.forEach((v, i) => typeof v === 'number' && (validity[i >> 3] |= 1 << (i & 7)));
  return {
    ...none,
    type: { name: 'int', width: 64 },
    length: values.length,
    nullCount: 1,
    validity,
    values: BigInt64Array.from(values, (v) => BASE + BigInt(Math.round((v ?? 0) * 1e6))),
  };
}

export function streamOf(spans: S[]): ArrowStream {
  const columns: Record<string, Vector> = {
    trace_id: fixed(
      spans.map((s) => s.trace ?? 1),
      16,
    ),
    span_id: fixed(
      spans.map((s) => s.id),
      8,
    ),
    parent_span_id: fixed(
      spans.map((s) => s.parent),
      8,
    ),
    name: text(spans.map((s) => s.name ?? 'work')),
    service: text(spans.map((s) => s.service ?? 'svc')),
    phase: text(spans.map((s) => s.phase)),
    thread: text(spans.map((s) => s.thread)),
    host: text(spans.map(() => null)),
    state: text(spans.map((s) => s.state ?? (s.end === null ? 'open' : 'closed'))),
    status: text(spans.map((s) => s.status ?? 'unset')),
    sample_id: text(spans.map((s) => s.sample)),
    group_id: text(spans.map((s) => s.group)),
    attempt: { ...none, type: { name: 'int', width: 32 }, length: spans.length, values: Int32Array.from(spans, (s) => s.attempt ?? 0) },
    start_ns: times(spans.map((s) => s.start)),
    end_ns: times(spans.map((s) => s.end)),
  };
  return {
    fields: Object.entries(columns).map(([name, v]) => ({ name, nullable: true, type: v.type, children: [] })),
    batches: [{ length: spans.length, columns: Object.values(columns) }],
  };
}

export const itemsOf = (spans: S[], live = false): Items => buildItems(streamOf(spans), live);

export function random(seed: number): () => number {
  let s = seed;
  return () => {
    s = (Math.imul(s, 1664525) + 1013904223) >>> 0;
    return s / 4294967296;
  };
}
