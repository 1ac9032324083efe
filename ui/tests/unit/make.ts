// Small timelines for tests: spans as objects in, columns as the server's answer gives them out. Parents are looked for among
// the spans of the trace, samples are handed down, open spans reach to the end.
import { phaseOf } from '../../src/domain/phases';
import { CLOSED, ERROR, INSTANT, OPEN, ORPHAN, PARENT, tally, type Items } from '../../src/features/timeline/items';

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
const STATES: Record<string, number> = { closed: CLOSED, open: OPEN, instant: INSTANT, orphan_end: ORPHAN };

class Numbers {
  readonly texts: string[] = [];
  of(text: string | null | undefined): number {
    if (text === null || text === undefined) return -1;
    if (!this.texts.includes(text)) this.texts.push(text);
    return this.texts.indexOf(text);
  }
}

export function itemsOf(spans: S[]): Items {
  const n = spans.length;
  const first = Math.min(...spans.map((s) => s.start), Infinity);
  const at = new Map(spans.map((s, i) => [`${s.trace ?? 1}/${s.id}`, i]));
  const parent = Int32Array.from(spans, (s) => at.get(`${s.trace ?? 1}/${s.parent}`) ?? -1);
  const up = (i: number): number[] => (parent[i] < 0 ? [] : [parent[i], ...up(parent[i])]);
  const [names, samples, groups, workers] = [new Numbers(), new Numbers(), new Numbers(), new Numbers()];
  const sample = Int32Array.from(spans, (_, i) =>
    samples.of([i, ...up(i)].map((k) => spans[k].sample).find((id) => id !== undefined && id !== null)),
  );
  const sampleGroup = new Int32Array(samples.texts.length).fill(-1);
  spans.forEach((s, i) => {
    if (sample[i] >= 0 && s.group) sampleGroup[sample[i]] = groups.of(s.group);
  });
  const start = Float64Array.from(spans, (s) => s.start - first);
  const extent = Math.max(0, ...spans.map((s) => (s.end ?? s.start) - first));
  const flags = Uint8Array.from(spans, (s) => STATES[s.state ?? (s.end === null ? 'open' : 'closed')] | (s.status === 'error' ? ERROR : 0));
  parent.forEach((p) => p >= 0 && (flags[p] |= PARENT));
  const phase = Uint8Array.from(spans, (s) => phaseOf(s.name ?? 'work', s.phase ?? null));
  const attempt = Uint8Array.from(spans, (s) => s.attempt ?? 0);
  const traces = [...new Set(spans.map((s) => s.trace ?? 1))];
  const ids = (values: number[], width: number): Uint8Array => {
    const bytes = new Uint8Array(values.length * width);
    values.forEach((v, i) => new DataView(bytes.buffer).setUint32(i * width, v, true));
    return bytes;
  };
  return {
    n,
    baseNs: BASE + BigInt(Math.round((n > 0 ? first : 0) * 1e6)),
    start,
    end: Float64Array.from(spans, (s) => (s.end === null || s.end === undefined ? extent : s.end - first)),
    extent,
    parent,
    depth: Uint8Array.from(spans, (_, i) => up(i).length),
    flags,
    phase,
    name: Int32Array.from(spans, (s) => names.of(s.name ?? 'work')),
    names: names.texts,
    sample,
    samples: samples.texts,
    sampleGroup,
    groups: groups.texts,
    worker: Int32Array.from(spans, (s) => workers.of([s.thread, s.service ?? 'svc'].filter(Boolean).join(' · '))),
    workers: workers.texts,
    attempt,
    trace: Int32Array.from(spans, (s) => traces.indexOf(s.trace ?? 1)),
    traceIds: ids(traces, 16),
    spanIds: ids(
      spans.map((s) => s.id),
      8,
    ),
    ...tally(flags, phase, attempt, null),
    lane: null,
    weight: null,
    total: null,
    longest: null,
    thinned: null,
    source: null,
  };
}

export function random(seed: number): () => number {
  let s = seed;
  return () => {
    s = (Math.imul(s, 1664525) + 1013904223) >>> 0;
    return s / 4294967296;
  };
}
