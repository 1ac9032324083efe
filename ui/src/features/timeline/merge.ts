// What changed in a running step, joined to what is there. The server sends whole traces: they take the place of what was
// known of them. Linear in the spans; runs in the worker where there are many.
import { hex } from '../../data/arrow';
import { OPEN, STATE, tally, type Items } from './items';

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

const tracesOf = (items: Items): string[] =>
  Array.from({ length: items.traceIds.length / 16 }, (_, i) => hex(items.traceIds.subarray(i * 16, i * 16 + 16)));

const weights = (items: Items): Uint32Array => items.weight ?? new Uint32Array(items.n).fill(1);
const lengths = (items: Items, known: Float32Array | null): Float32Array =>
  known ?? items.end.reduce((all, end, i) => ((all[i] = end - items.start[i]), all), new Float32Array(items.n));

export function mergeItems(base: Items, more: Items): Items {
  if (more.n === 0) return base;
  if (base.n === 0) return more;
  const [names, samples, groups, workers] = [base.names, base.samples, base.groups, base.workers].map((t) => [...t]);
  const traces = tracesOf(base);
  const numbers = {
    name: mapTexts(names, more.names),
    sample: mapTexts(samples, more.samples),
    group: mapTexts(groups, more.groups),
    worker: mapTexts(workers, more.workers),
    trace: mapTexts(traces, tracesOf(more)),
  };
  const traceIds = new Uint8Array(traces.length * 16);
  traceIds.set(base.traceIds);
  numbers.trace.forEach((to, from) => traceIds.set(more.traceIds.subarray(from * 16, from * 16 + 16), to * 16));

  // Where each row of before goes, -1: it is replaced.
  const replaced = new Uint8Array(traces.length);
  for (let i = 0; i < more.n; i++) replaced[numbers.trace[more.trace[i]]] = 1;
  const place = new Int32Array(base.n);
  let kept = 0;
  for (let i = 0; i < base.n; i++) place[i] = replaced[base.trace[i]] === 1 ? -1 : kept++;
  const n = kept + more.n;

  const column = <T extends Float64Array | Float32Array | Int32Array | Uint32Array | Uint8Array>(
    a: T,
    b: T,
    old: (x: number, i: number) => number = (x) => x,
    map: (x: number, i: number) => number = (x) => x,
  ): T => {
    const out = new (a.constructor as new (n: number) => T)(n);
    for (let i = 0; i < base.n; i++) if (place[i] >= 0) out[place[i]] = old(a[i], i);
    for (let i = 0; i < more.n; i++) out[kept + i] = map(b[i], i);
    return out;
  };
  const coded = (key: 'name' | 'sample' | 'worker' | 'trace'): Int32Array =>
    column(base[key], more[key], undefined, (x) => (x < 0 ? -1 : numbers[key][x]));

  // Both count from the earlier base. What is still open reaches to the latest time.
  const baseNs = base.baseNs < more.baseNs ? base.baseNs : more.baseNs;
  const [before, after] = [base, more].map((x) => Number(x.baseNs - baseNs) / 1e6);
  const extent = Math.max(base.extent + before, more.extent + after);
  const ends =
    (x: Items, shift: number) =>
    (t: number, i: number): number =>
      (x.flags[i] & STATE) === OPEN && t >= x.extent ? extent : t + shift;
  const isThinned = base.weight !== null || more.weight !== null;
  const weight = isThinned ? column(weights(base), weights(more)) : null;
  const flags = column(base.flags, more.flags);
  const phase = column(base.phase, more.phase);
  const attempt = column(base.attempt, more.attempt);
  const spanIds = new Uint8Array(n * 8);
  for (let i = 0; i < base.n; i++) if (place[i] >= 0) spanIds.set(base.spanIds.subarray(i * 8, i * 8 + 8), place[i] * 8);
  spanIds.set(more.spanIds.subarray(0, more.n * 8), kept * 8);
  const sampleGroup = new Int32Array(samples.length).fill(-1);
  sampleGroup.set(base.sampleGroup);
  more.sampleGroup.forEach((g, s) => {
    if (g >= 0) sampleGroup[numbers.sample[s]] = numbers.group[g];
  });
  return {
    n,
    baseNs,
    start: column(
      base.start,
      more.start,
      (t) => t + before,
      (t) => t + after,
    ),
    end: column(base.end, more.end, ends(base, before), ends(more, after)),
    extent,
    // Parents are of the same trace: they stay or go together.
    parent: column(
      base.parent,
      more.parent,
      (p) => (p < 0 ? -1 : place[p]),
      (p) => (p < 0 ? -1 : kept + p),
    ),
    depth: column(base.depth, more.depth),
    flags,
    phase,
    name: coded('name'),
    names,
    sample: coded('sample'),
    samples,
    sampleGroup,
    groups,
    worker: coded('worker'),
    workers,
    attempt,
    trace: coded('trace'),
    traceIds,
    spanIds,
    ...tally(flags, phase, attempt, weight),
    weight,
    total: isThinned ? column(lengths(base, base.total), lengths(more, more.total)) : null,
    longest: isThinned ? column(lengths(base, base.longest), lengths(more, more.longest)) : null,
    thinned: base.thinned ?? more.thinned,
    lane: null,
    source: null,
  };
}
