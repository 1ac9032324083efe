// The timeline as the server packs it (crates/formats/src/export/timeline): parents, lanes and order are decided there, so
// the columns of the answer are used as they lie, over the bytes that came. What is left to do here is one pass.
import { type ArrowStream, type Vector, valueAt } from '../../data/arrow';
import { differences, sourcesOf } from '../../data/thin';
import { phaseOf, PHASES } from '../../domain/phases';
import { STATE, type Items } from './items';

/** Start and end in milliseconds. */
function timesOf(stream: ArrowStream, n: number): { start: Float64Array; end: Float64Array } | null {
  const [start, end] = [differences(stream, 'start', n), differences(stream, 'end', n)];
  if (!start || !end) return null;
  let before = 0;
  for (let i = 0; i < n; i++) {
    const from = before + start[i];
    before = from + end[i];
    start[i] = from / 1e6;
    end[i] = before / 1e6;
  }
  return { start, end };
}

function parentsOf(stream: ArrowStream, n: number): Int32Array | null {
  const up = differences(stream, 'parent', n);
  return up && Int32Array.from(up, (d, i) => (d === 0 ? -1 : i - d));
}

function textsOf(v: Vector | undefined): string[] {
  const d = v?.dictionary;
  return d ? Array.from({ length: d.length }, (_, i) => String(valueAt(d, i) ?? '')) : [];
}

/** Codes of a dictionary column, in place: -1 where there is no value. */
function codesOf(v: Vector, n: number): Int32Array {
  const codes = v.values instanceof Int32Array ? v.values : Int32Array.from(v.values as Uint16Array);
  const limit = v.dictionary?.length ?? 0;
  const { validity } = v;
  for (let i = 0; i < n; i++) {
    if ((validity !== null && (validity[i >> 3] & (1 << (i & 7))) === 0) || codes[i] < 0 || codes[i] >= limit) codes[i] = -1;
  }
  return codes;
}

export function packedItems(stream: ArrowStream): Items {
  if (stream.batches.length > 1) throw new Error('a packed timeline is one batch');
  const batch = stream.batches[0] ?? { length: 0, columns: [] };
  const n = batch.length;
  const column = (name: string): Vector => {
    const v = batch.columns[stream.fields.findIndex((f) => f.name === name)];
    if (!v) throw new Error(`the timeline has no column ${name}`);
    return v;
  };
  const baseNs = BigInt(stream.metadata?.base_ns ?? 0);
  if (n === 0) return empty(baseNs);
  const as = <T>(name: string, type: new (n: number) => T): T => {
    const v = column(name).values;
    if (!(v instanceof type)) throw new Error(`the timeline's column ${name} has another type than this page knows`);
    return v;
  };
  const { start, end } = timesOf(stream, n) ?? { start: as('start', Float64Array), end: as('end', Float64Array) };
  const parent = parentsOf(stream, n) ?? as('parent', Int32Array);
  const flags = as('flags', Uint8Array);
  const names = textsOf(column('name'));
  const name = codesOf(column('name'), n);
  const samples = textsOf(column('sample'));
  const sample = codesOf(column('sample'), n);
  const groups = textsOf(column('group'));
  const group = codesOf(column('group'), n);
  const said = textsOf(column('phase'));
  const saidOf = column('phase');
  const attempt = as('attempt', Uint8Array);
  const isThinned = stream.fields.some((f) => f.name === 'weight');
  const weight = isThinned ? as('weight', Uint32Array) : null;

  // Phases are decided once for each pair of name and what the sender said.
  const width = said.length + 1;
  const known = new Int16Array((names.length + 1) * width).fill(-1);
  const phase = new Uint8Array(n);
  const sampleGroup = new Int32Array(samples.length).fill(-1);
  const states: [number, number, number, number] = [0, 0, 0, 0];
  const phaseCounts = new Uint32Array(PHASES.length);
  const attempts = new Uint8Array(256);
  let extent = 0;
  let spans = 0;
  const { validity, values } = saidOf;
  for (let i = 0; i < n; i++) {
    const says = validity !== null && (validity[i >> 3] & (1 << (i & 7))) === 0 ? 0 : Number(values[i]) + 1;
    const key = (name[i] + 1) * width + (says < width ? says : 0);
    let p = known[key];
    if (p < 0) p = known[key] = phaseOf(names[name[i]] ?? '', says > 0 && says < width ? said[says - 1] : null);
    phase[i] = p;
    const w = weight === null ? 1 : weight[i];
    spans += w;
    phaseCounts[p] += w;
    states[flags[i] & STATE] += w;
    attempts[attempt[i]] = 1;
    if (end[i] > extent) extent = end[i];
    if (parent[i] >= n || parent[i] < 0) parent[i] = -1;
    if (sample[i] >= 0 && group[i] >= 0) sampleGroup[sample[i]] = group[i];
  }
  const trace = codesOf(column('trace'), n);
  const traceIds = column('trace').dictionary!.values as Uint8Array;
  return {
    n,
    baseNs,
    start,
    end,
    extent,
    parent,
    depth: as('depth', Uint8Array),
    flags,
    phase,
    name,
    names,
    sample,
    samples,
    sampleGroup,
    groups,
    worker: codesOf(column('worker'), n),
    workers: textsOf(column('worker')),
    attempt,
    trace,
    traceIds,
    spanIds: as('span_id', Uint8Array),
    states,
    phaseCounts,
    attempts: [...attempts.keys()].filter((a) => attempts[a] === 1),
    lane: as('lane', Uint8Array),
    weight,
    total: isThinned ? as('total', Float32Array) : null,
    longest: isThinned ? as('longest', Float32Array) : null,
    spans,
    thinned: isThinned ? thinnedOf(stream) : null,
    source: sourcesOf(stream, n),
  };
}

function thinnedOf(stream: ArrowStream): Items['thinned'] {
  const { part_ms: part, focus_part_ms: focus } = stream.metadata ?? {};
  return { part: Number(part ?? 0), focusPart: focus === undefined ? null : Number(focus) };
}

function empty(baseNs: bigint): Items {
  const i32 = new Int32Array(0);
  const u8 = new Uint8Array(0);
  const f64 = new Float64Array(0);
  return {
    n: 0,
    baseNs,
    start: f64,
    end: f64,
    extent: 0,
    parent: i32,
    depth: u8,
    flags: u8,
    phase: u8,
    name: i32,
    names: [],
    sample: i32,
    samples: [],
    sampleGroup: i32,
    groups: [],
    worker: i32,
    workers: [],
    attempt: u8,
    trace: i32,
    traceIds: u8,
    spanIds: u8,
    states: [0, 0, 0, 0],
    phaseCounts: new Uint32Array(PHASES.length),
    attempts: [],
    lane: null,
    weight: null,
    total: null,
    longest: null,
    spans: 0,
    thinned: null,
    source: null,
  };
}
