// What is new in a running step, joined to what is there: spans that came, open ones that ended, children whose parent has
// arrived. Linear in the spans; runs in the worker where there are many.
import { hex } from '../../data/arrow';
import { closeOpen, ERROR, findParents, LOST_PARENT, OPEN, PARENT, STATE, tally, VIRTUAL, walk, wordsOf, type Items } from './items';

/** Numbers of `more` in `texts`, which grows. */
function mapTexts(texts: string[], more: string[]): Int32Array {
  const index = new Map(texts.map((t, i) => [t, i]));
  return Int32Array.from(more, (t) => {
    let i = index.get(t);
    if (i === undefined) {
      i = texts.length;
      index.set(t, i);
      texts.push(t);
    }
    return i;
  });
}

function joined<T extends Float64Array | Int32Array | Uint8Array>(
  a: T,
  b: ArrayLike<number>,
  rows: number[],
  width = 1,
  map: (x: number) => number = (x) => x,
): T {
  const out = new (a.constructor as new (n: number) => T)(a.length + rows.length * width);
  out.set(a);
  let at = a.length;
  for (const r of rows) for (let k = 0; k < width; k++) out[at++] = map(b[r * width + k]);
  return out;
}

/** Null where it cannot be joined (earlier than all we have, or without ids): then everything must be read again. */
export function mergeItems(base: Items, more: Items, live: boolean): Items | null {
  if (base.parentIds === null || more.parentIds === null || base.n === 0) return null;
  if (more.n === 0) return base;
  const shift = Number(more.baseNs - base.baseNs) / 1e6;
  if (shift < 0) return null;
  const coded =
    (m: Int32Array) =>
    (x: number): number =>
      x < 0 ? -1 : m[x];
  const [names, samples, groups, workers] = [base.names, base.samples, base.groups, base.workers].map((t) => [...t]);
  const nameOf = coded(mapTexts(names, more.names));
  const sampleOf = coded(mapTexts(samples, more.samples));
  const groupOf = coded(mapTexts(groups, more.groups));
  const workerOf = coded(mapTexts(workers, more.workers));
  const traceTexts = Array.from({ length: base.traceIds.length / 16 }, (_, i) => hex(base.traceIds.subarray(i * 16, i * 16 + 16)));
  const known = traceTexts.length;
  const traceMap = mapTexts(
    traceTexts,
    Array.from({ length: more.traceIds.length / 16 }, (_, i) => hex(more.traceIds.subarray(i * 16, i * 16 + 16))),
  );
  const newTraces = [...traceMap.keys()].filter((k) => traceMap[k] >= known);
  const traceIds = joined(base.traceIds, more.traceIds, newTraces, 16);

  // Rows that we have already: an open span and its end, or a report sent twice.
  const index = new Map<string, number>();
  const b = wordsOf(base.spanIds);
  const m = wordsOf(more.spanIds);
  const touched = new Set(traceMap);
  for (let i = 0; i < base.n; i++)
    if (touched.has(base.trace[i]) && (base.flags[i] & VIRTUAL) === 0) index.set(`${base.trace[i]}/${b[2 * i]}/${b[2 * i + 1]}`, i);
  const fresh: number[] = [];
  const replaced: [number, number][] = [];
  for (let j = 0; j < more.n; j++) {
    const at = index.get(`${traceMap[more.trace[j]]}/${m[2 * j]}/${m[2 * j + 1]}`);
    if (at === undefined) fresh.push(j);
    else replaced.push([at, j]);
  }

  const start = joined(base.start, more.start, fresh, 1, (t) => t + shift);
  const end = joined(base.end, more.end, fresh, 1, (t) => t + shift);
  const flags = joined(base.flags, more.flags, fresh, 1, (f) => f & ~(PARENT | LOST_PARENT));
  const phase = joined(base.phase, more.phase, fresh);
  const name = joined(base.name, more.name, fresh, 1, nameOf);
  const sample = joined(base.sample, more.sample, fresh, 1, sampleOf);
  const worker = joined(base.worker, more.worker, fresh, 1, workerOf);
  const attempt = joined(base.attempt, more.attempt, fresh);
  const trace = joined(base.trace, more.trace, fresh, 1, (t) => traceMap[t]);
  const spanIds = joined(base.spanIds, more.spanIds, fresh, 8);
  const parentIds = joined(base.parentIds, more.parentIds, fresh, 8);
  for (const [i, j] of replaced) {
    end[i] = more.end[j] + shift;
    phase[i] = more.phase[j];
    if (sample[i] < 0) sample[i] = sampleOf(more.sample[j]);
    flags[i] = (flags[i] & ~(STATE | ERROR)) | (more.flags[j] & (STATE | ERROR));
  }
  const n = start.length;
  for (let i = 0; i < n; i++) flags[i] &= ~LOST_PARENT;
  const parent = findParents(wordsOf(spanIds), wordsOf(parentIds), null, trace, flags);
  // Rows that the server made or moved know their parents by number.
  for (let i = 0; i < base.n; i++) {
    if (base.parent[i] >= 0) {
      parent[i] = base.parent[i];
      flags[i] &= ~LOST_PARENT;
      flags[parent[i]] |= PARENT;
    }
  }
  const depth = walk(parent, sample, new Int32Array(n).fill(-1), n);
  lend(trace, sample, traceIds.length / 16);

  const sampleGroup = new Int32Array(samples.length).fill(-1);
  sampleGroup.set(base.sampleGroup);
  more.sampleGroup.forEach((g, s) => {
    if (g >= 0) sampleGroup[sampleOf(s)] = groupOf(g);
  });
  let extent = base.extent;
  for (let i = 0; i < n; i++) {
    if ((flags[i] & STATE) === OPEN) end[i] = NaN;
    if (start[i] > extent) extent = start[i];
    if (end[i] > extent) extent = end[i];
  }
  closeOpen(start, end, flags, parent, trace, sample, samples.length, extent, live);
  return {
    ...base,
    n,
    start,
    end,
    extent,
    parent,
    depth,
    flags,
    phase,
    name,
    names,
    sample,
    samples,
    sampleGroup,
    groups,
    worker,
    workers,
    attempt,
    trace,
    traceIds,
    spanIds,
    parentIds,
    ...tally(flags, phase, attempt),
    lane: null,
    source: null,
  };
}

/** A trace of one sample lends it to its spans that have none. */
function lend(trace: Int32Array, sample: Int32Array, traces: number): void {
  const of = new Int32Array(traces).fill(-1);
  for (let i = 0; i < trace.length; i++) {
    if (sample[i] >= 0) of[trace[i]] = of[trace[i]] === -1 || of[trace[i]] === sample[i] ? sample[i] : -2;
  }
  for (let i = 0; i < trace.length; i++) if (sample[i] < 0 && of[trace[i]] >= 0) sample[i] = of[trace[i]];
}
