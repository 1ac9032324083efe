// The columns of a whole timeline. `timeline.arrow` and `timeline-live.arrow` are answers of a real server with the demo run
// (`GET /runs/demo/timeline`, two milliseconds of a finished and of a running step).
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { makeStep, timelineStream } from '../../mock/generate.mjs';
import { hex, readStream, type ArrowStream } from '../../src/data/arrow';
import { packedIds } from '../../src/data/thin';
import { PHASES } from '../../src/domain/phases';
import { CLOSED, HAS_PD, OPEN, PARENT, STATE, VIRTUAL, type Items } from '../../src/features/timeline/items';
import { buildLayout } from '../../src/features/timeline/layout';
import { packedItems } from '../../src/features/timeline/packed';

const recorded = (name: string): ArrowStream => readStream(new Uint8Array(readFileSync(new URL(`../fixtures/${name}.arrow`, import.meta.url))));
const nameOf = (items: Items, i: number): string => items.names[items.name[i]];
const all = (items: Items): number[] => Array.from({ length: items.n }, (_, i) => i);

describe('an answer of the server', () => {
  const items = packedItems(recorded('timeline'));
  it('has times since its base', () => {
    expect(items.n).toBe(80);
    expect(items.baseNs).toBe(1794820916240783604n);
    expect(items.start[0]).toBeCloseTo(12.269046, 6);
    expect(items.end[0]).toBeCloseTo(65936.492998, 6);
    expect(items.extent).toBe(Math.max(...items.end));
    expect(all(items).every((i) => items.end[i] >= items.start[i])).toBe(true);
  });
  it('has parents, depths and flags that fit each other', () => {
    expect(nameOf(items, 4)).toBe('generate_and_rm');
    expect(items.parent[4]).toBe(3);
    for (const i of all(items)) {
      const p = items.parent[i];
      if (p < 0) continue;
      expect(items.flags[p] & PARENT).toBe(PARENT);
      expect(items.depth[i]).toBe(items.depth[p] + 1);
    }
    expect(items.states).toEqual([80, 0, 0, 0]);
    expect(all(items).filter((i) => items.flags[i] & VIRTUAL)).toHaveLength(12);
    expect(
      all(items)
        .filter((i) => items.flags[i] & HAS_PD)
        .map((i) => nameOf(items, i)),
    ).toContain('sglang_generate');
  });
  it('has texts, with -1 where there is none', () => {
    expect(items.samples[items.sample[0]]).toBe('8');
    expect(items.groups[items.sampleGroup[items.sample[0]]]).toBe('1');
    expect(items.workers[items.worker[0]]).toBe('rollout');
    const train = all(items).find((i) => nameOf(items, i) === 'pipeline_step')!;
    expect(items.sample[train]).toBe(-1);
    expect(all(items).every((i) => items.sample[i] < items.samples.length && items.worker[i] < items.workers.length)).toBe(true);
  });
  it('has a phase for every span, counted', () => {
    const key = (i: number): string => PHASES[items.phase[i]].key;
    expect(key(all(items).find((i) => nameOf(items, i) === 'decode_loop')!)).toBe('decode');
    expect(key(all(items).find((i) => nameOf(items, i) === 'sglang_generate')!)).toBe('generate');
    expect(items.phaseCounts.reduce((a, b) => a + b, 0)).toBe(80);
    expect(items.attempts).toEqual([0]);
  });
  it('has ids', () => {
    expect(items.spanIds).toHaveLength(80 * 8);
    expect(hex(items.spanIds.subarray(0, 8))).toBe('c3cc889ef8327205');
    expect(hex(items.traceIds.subarray(items.trace[0] * 16, items.trace[0] * 16 + 16))).toBe('4030bc3be42035' + '6c47cd9154856712' + '64');
    expect(items.source).toBeNull();
  });
  it('is laid out by sample in the order that it came in', () => {
    const layout = buildLayout(items, 'sample');
    expect([...layout.order]).toEqual(all(items));
    for (const i of all(items)) expect(layout.lane[i]).toBe(items.lane![i]);
  });
});

it('of a running step, open spans reach to the newest time', () => {
  const items = packedItems(recorded('timeline-live'));
  expect(items.states[OPEN]).toBe(24);
  expect(items.states[CLOSED]).toBe(3);
  for (const i of all(items)) if ((items.flags[i] & STATE) === OPEN && !(items.flags[i] & VIRTUAL)) expect(items.end[i]).toBe(items.extent);
});

describe('a timeline inside a file', () => {
  const step = makeStep({ seed: 11, samples: 9, perSample: 24 });
  const plain = readStream(timelineStream(step, 7n));
  const thin = readStream(timelineStream(step, 7n, { thin: true }));
  it('says the same with differences for numbers', () => {
    const [a, b] = [packedItems(plain), packedItems(thin)];
    expect(b.n).toBe(a.n);
    expect([...b.parent]).toEqual([...a.parent]);
    for (const i of all(a)) {
      expect(b.start[i]).toBeCloseTo(a.start[i], 5);
      expect(b.end[i]).toBeCloseTo(a.end[i], 5);
    }
    expect(a.source).toBeNull();
    expect([...b.source!].sort((x, y) => x - y)).toEqual(all(b));
  });
  it('gives the ids of its spans in the order of their attributes', () => {
    const items = packedItems(thin);
    const ids = packedIds(thin);
    for (const i of all(items)) {
      const at = items.source![i] * 8;
      expect(hex(ids.subarray(at, at + 8))).toBe(hex(items.spanIds.subarray(i * 8, i * 8 + 8)));
    }
  });
});

describe('what does not fit', () => {
  const without = (name: string): ArrowStream => {
    const s = recorded('timeline');
    return { ...s, fields: s.fields.map((f) => (f.name === name ? { ...f, name: 'gone' } : f)) };
  };
  it('is named', () => {
    expect(() => packedItems(without('flags'))).toThrow(/no column flags/);
    expect(() => packedItems(without('trace'))).toThrow(/no column trace/);
    const s = recorded('timeline');
    expect(() => packedItems({ ...s, batches: [...s.batches, ...s.batches] })).toThrow(/one batch/);
    const flags = s.fields.findIndex((f) => f.name === 'flags');
    s.batches[0].columns[flags] = s.batches[0].columns[s.fields.findIndex((f) => f.name === 'parent')];
    expect(() => packedItems(s)).toThrow(/flags/);
  });
  it('parents outside of the rows are none', () => {
    const s = recorded('timeline');
    const parents = s.batches[0].columns[s.fields.findIndex((f) => f.name === 'parent')].values as Int32Array;
    parents[5] = 80;
    parents[6] = -7;
    const items = packedItems(s);
    expect([items.parent[5], items.parent[6]]).toEqual([-1, -1]);
  });
  it('nothing at all is an empty timeline', () => {
    const items = packedItems({ ...recorded('timeline'), batches: [] });
    expect(items.n).toBe(0);
    expect(items.extent).toBe(0);
  });
});
