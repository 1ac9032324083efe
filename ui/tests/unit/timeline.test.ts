import { describe, expect, it } from 'vitest';
import { PHASES } from '../../src/domain/phases';
import { countsAt, phaseBins, statsIn } from '../../src/features/timeline/counts';
import { hex } from '../../src/data/arrow';
import { ERROR, OPEN, STATE, storedOf, VIRTUAL, type Items } from '../../src/features/timeline/items';
import { mergeItems } from '../../src/features/timeline/merge';
import { buildLayout, firstFrom, gallop, innermostAt } from '../../src/features/timeline/layout';
import { mix } from '../../src/base/theme';
import { CLUSTER, LaneMarks, paintLane, SHADES, type Frame } from '../../src/features/timeline/lines';
import { tailShares } from '../../src/domain/tail';
import { attrTests, orderRows, rowsOfOwners, rowsOfSpans, rowTable, type RowQuery } from '../../src/features/timeline/rows';
import { itemsOf, random, type S } from './make';

const phase = (key: string): number => PHASES.findIndex((p) => p.key === key);

describe('layout', () => {
  it('lane is the depth; parallel siblings get lanes of their own', () => {
    const x = itemsOf([
      { id: 1, start: 0, end: 100, sample: 'a' },
      { id: 2, parent: 1, start: 0, end: 50, sample: 'a' },
      { id: 3, parent: 1, start: 50, end: 90, sample: 'a' },
      { id: 4, parent: 1, start: 60, end: 80, sample: 'a' },
      { id: 5, parent: 3, start: 55, end: 58, sample: 'a' },
      { id: 6, parent: 1, start: 55, end: 55, state: 'instant', sample: 'a' },
    ]);
    const l = buildLayout(x, 'sample');
    expect([...l.lane]).toEqual([0, 1, 1, 2, 2, 1]);
    expect(l.rows).toBe(1);
  });
  it('holds every item once, in order of start, bars of a lane apart', () => {
    const rnd = random(11);
    const spans: S[] = [];
    for (let i = 0; i < 2000; i++) {
      const start = rnd() * 1000;
      spans.push({
        id: i + 1,
        start,
        end: start + rnd() * 30,
        sample: String(Math.floor(rnd() * 20)),
        parent: i > 0 && rnd() < 0.7 ? 1 + Math.floor(rnd() * i) : undefined,
      });
    }
    const x = itemsOf(spans);
    const l = buildLayout(x, 'sample');
    expect(new Set(l.order).size).toBe(2000);
    for (let lane = 0; lane < l.itemsOf.length - 1; lane++) {
      for (let k = l.itemsOf[lane] + 1; k < l.itemsOf[lane + 1]; k++) {
        const [a, b] = [l.order[k - 1], l.order[k]];
        expect(x.start[a]).toBeLessThanOrEqual(x.start[b]);
        expect(x.end[a]).toBeLessThanOrEqual(x.start[b] + 0.0011);
      }
    }
    x.start.forEach((_, i) => expect(x.sample[i]).toBe(l.rowKey[l.row[i]]));
  });
  it('rows by worker and by tool', () => {
    const x = itemsOf([
      { id: 1, start: 0, end: 9, thread: 't0' },
      { id: 2, start: 0, end: 5, thread: 't1' },
      { id: 3, start: 6, end: 7, name: 'bash', phase: 'tool', thread: 't0' },
    ]);
    const w = buildLayout(x, 'worker');
    expect([...w.rowKey].map((k) => x.workers[k])).toEqual(['t0 · svc', 't1 · svc']);
    const t = buildLayout(x, 'tool');
    expect([t.rows, [...t.order]]).toEqual([1, [2]]);
    expect(t.row[0]).toBe(-1);
  });
  it('an empty timeline has no rows', () => {
    const l = buildLayout(itemsOf([]), 'sample');
    expect([l.rows, l.order.length]).toEqual([0, 0]);
  });
  it('searching and galloping agree', () => {
    const rnd = random(3);
    const start = Float64Array.from({ length: 300 }, () => Math.floor(rnd() * 100)).sort();
    const order = Uint32Array.from(start.keys());
    for (let t = -1; t < 102; t++) for (const lo of [0, 7, 299]) expect(gallop(order, start, lo, 300, t)).toBe(firstFrom(order, start, lo, 300, t));
  });
});

const palette = Uint32Array.from({ length: PHASES.length * SHADES }, (_, i) => 0xff808000 + i);
const frame = (x: { phase: Uint8Array }, t0: number, scale: number, width: number): Frame => ({
  t0,
  scale,
  width,
  colorOf: (i) => x.phase[i],
  colors: palette,
  errorColor: 0xff0000ff,
  background: 0xff000000,
  dimmed: null,
  states: 15,
});

describe('level of detail', () => {
  const bars = (n: number, gap: number, length: number): S[] =>
    Array.from({ length: n }, (_, i) => ({ id: i + 1, start: i * gap, end: i * gap + length, sample: 'a' }));
  it('paints whole pixels exactly and edges by coverage', () => {
    const x = itemsOf([
      { id: 1, start: 0, end: 0.001 },
      { id: 2, start: 10, end: 20.5 },
    ]);
    const l = buildLayout(x, 'worker');
    const line = new Uint32Array(40).fill(0xff000000);
    const out = new LaneMarks();
    paintLane(line, frame(x, 0, 1, 40), x, l, 0, out);
    const c = palette[x.phase[1] * SHADES];
    expect([...line.slice(10, 20)]).toEqual(Array<number>(10).fill(c));
    expect(line[20]).toBe(mix(0xff000000, c, 0.5));
    expect(line[21]).toBe(0xff000000);
    expect(out.bars).toEqual([1, 10, 21]);
  });
  it('steps at most once a pixel however many items there are', () => {
    const x = itemsOf(bars(50_000, 0.01, 0.009));
    const l = buildLayout(x, 'sample');
    let asked = 0;
    const f = frame(x, 0, 1, 500);
    paintLane(new Uint32Array(500), { ...f, colorOf: (i) => (asked++, f.colorOf(i)) }, x, l, 0, new LaneMarks());
    expect(asked).toBeLessThanOrEqual(501);
    expect(asked).toBeGreaterThan(490);
  });
  it('never loses a narrow item or a wide one that starts beside it', () => {
    const x = itemsOf([
      { id: 1, start: 5.1, end: 5.15 },
      { id: 2, start: 5.2, end: 5.25 },
      { id: 3, start: 5.3, end: 15 },
      { id: 4, start: 30.4, end: 30.41 },
    ]);
    const line = new Uint32Array(40).fill(0xff000000);
    paintLane(line, frame(x, -5.1, 1, 40), x, buildLayout(x, 'worker'), 0, new LaneMarks());
    expect(line[5]).not.toBe(0xff000000);
    expect(line[10]).toBe(palette[x.phase[2] * SHADES]);
    expect(line[30]).not.toBe(0xff000000);
    expect(line[31]).toBe(0xff000000);
  });
  it('keeps the marks among bars that are merged', () => {
    const x = itemsOf([
      { id: 1, start: 0, end: 0.1 },
      { id: 2, start: 0.2, end: 0.2, state: 'instant' },
      { id: 3, start: 0.3, end: 0.4 },
      { id: 4, start: 90, end: 91 },
    ]);
    const out = new LaneMarks();
    paintLane(new Uint32Array(100), frame(x, 0, 1, 100), x, buildLayout(x, 'worker'), 0, out);
    expect(out.marks).toEqual([1, 0.2, 1]);
  });
  it('shows a bar that began before the window', () => {
    const x = itemsOf([
      { id: 1, start: 0, end: 1000 },
      { id: 9, parent: 1, start: 2, end: 2, state: 'instant' },
    ]);
    const line = new Uint32Array(10).fill(0);
    paintLane(line, frame(x, 500, 1, 10), x, buildLayout(x, 'worker'), 0, new LaneMarks());
    expect(line[0]).not.toBe(0);
    expect(line[9]).not.toBe(0);
  });
  it('clusters marks that lie closer than a mark is wide', () => {
    const at = [1, 2, 3, 3 + CLUSTER, 60, 62];
    const x = itemsOf(at.map((start, i) => ({ id: i + 1, start, end: start, state: 'instant' })));
    const out = new LaneMarks();
    paintLane(new Uint32Array(100), frame(x, -0.5, 1, 100), x, buildLayout(x, 'worker'), 0, out);
    const clusters = Array.from({ length: out.marks.length / 3 }, (_, k) => out.marks[k * 3 + 2]);
    expect(clusters).toEqual([3, 1, 2]);
    expect(clusters.reduce((a, b) => a + b)).toBe(at.length);
  });
  it('leaves out states that are switched off', () => {
    const x = itemsOf([
      { id: 1, start: 0, end: null, sample: 'a' },
      { id: 2, parent: 1, start: 0, end: 8, sample: 'a' },
    ]);
    expect(x.flags[0] & STATE).toBe(OPEN);
    const line = new Uint32Array(10).fill(7);
    paintLane(line, { ...frame(x, 0, 1, 10), states: 15 & ~(1 << OPEN) }, x, buildLayout(x, 'sample'), 0, new LaneMarks());
    expect([...line]).toEqual(Array<number>(10).fill(7));
  });
});

describe('counts', () => {
  const x = itemsOf([
    { id: 1, start: 0, end: 100, sample: 'a', phase: 'rollout', name: 'root' },
    { id: 2, parent: 1, start: 20, end: 60, sample: 'a', phase: 'decode' },
    { id: 3, start: 0, end: 50, sample: 'b', phase: 'tool', trace: 2 },
    { id: 4, start: 50, end: 100, sample: 'b', phase: 'reward', trace: 2, status: 'error' },
  ]);
  const l = buildLayout(x, 'sample');
  it('a child takes its time from its parent', () => {
    const b = phaseBins(x, l, 10, 0, 100, null);
    const at = (key: string): number[] => Array.from(b.counts.slice(phase(key) * 10, phase(key) * 10 + 10));
    expect(at('rollout')).toEqual([1, 1, 0, 0, 0, 0, 1, 1, 1, 1]);
    expect(at('decode')).toEqual([0, 0, 1, 1, 1, 1, 0, 0, 0, 0]);
    expect(at('tool')).toEqual([1, 1, 1, 1, 1, 0, 0, 0, 0, 0]);
    expect(b.peak).toBe(2);
  });
  it('bins and cursor agree, also for shown rows only and on random data', () => {
    const rnd = random(9);
    const spans: S[] = [];
    for (let s = 0; s < 12; s++) {
      let t = rnd() * 50;
      for (let k = 0; k < 20; k++) {
        const end = t + rnd() * 30;
        spans.push({ id: spans.length + 1, trace: s + 1, start: t, end, sample: String(s), phase: ['tool', 'decode', 'reward'][k % 3] });
        t = end + rnd();
      }
    }
    const y = itemsOf(spans);
    const m = buildLayout(y, 'sample');
    const shown = Uint8Array.from({ length: m.rows }, (_, r) => r % 2);
    const rows = [...shown.keys()].filter((r) => shown[r]);
    const n = 20_000;
    const b = phaseBins(y, m, n, 0, y.extent, shown);
    for (let k = 50; k < n; k += 997) {
      const t = ((k + 0.5) / n) * y.extent;
      const exact = countsAt(y, m, rows, t);
      const around = (p: number): number[] => [k - 1, k, k + 1].map((j) => b.counts[p * n + j]);
      PHASES.forEach((_, p) => expect(Math.min(...around(p).map((v) => Math.abs(v - exact[p])))).toBeLessThan(0.02));
    }
  });
  it('the innermost span at a moment', () => {
    expect(innermostAt(l, x, l.row[0], 30)).toBe(1);
    expect(innermostAt(l, x, l.row[0], 70)).toBe(0);
    expect(innermostAt(l, x, l.row[0], 101)).toBe(-1);
  });
  it('statistics of a range are clipped to it', () => {
    const s = statsIn(x, l, null, 40, 80);
    const work = s.find((e) => x.names[e.name] === 'work')!;
    expect(work).toMatchObject({ count: 3, total: 20 + 10 + 30, max: 30 });
    expect(s.find((e) => x.names[e.name] === 'root')).toMatchObject({ count: 1, total: 40, p50: 40 });
    // Sorted as numbers; and the same where each item stands for one span.
    const y = itemsOf(Array.from({ length: 20 }, (_, k) => ({ id: k + 1, trace: k + 1, start: 0, end: 20 - k, sample: String(k) })));
    const of = statsIn(y, buildLayout(y, 'sample'), null, 0, 20);
    expect(of).toEqual([{ name: 0, count: 20, total: 210, mean: 10.5, p50: 10, p95: 19, max: 20 }]);
    const weighed = { ...y, weight: new Uint32Array(y.n).fill(1) };
    expect(statsIn(weighed, buildLayout(weighed, 'sample'), null, 0, 20)).toEqual(of);
  });
  it('rows that are shown, sorted and grouped', () => {
    const spans: S[] = ['10', '9', '2', '1'].map((sample, i) => ({
      id: i + 1,
      trace: i + 1,
      start: i * 10,
      end: i * 10 + 5 * (i + 1),
      sample,
      group: i % 2 ? 'x' : 'y',
      name: i === 2 ? 'browser' : 'bash',
      status: i === 3 ? 'error' : 'ok',
    }));
    const y = itemsOf([...spans, { id: 50, trace: 50, start: 0, end: 50, thread: 'driver' }]);
    const m = buildLayout(y, 'sample');
    const t = rowTable(y, m, null);
    const q: RowQuery = { text: '', sort: 'sample', desc: false, grouped: false, attempt: null };
    const order = (more: Partial<RowQuery>): string[] => [...orderRows(y, m, t, { ...q, ...more }).order].map((r) => t.label[r]);
    expect(order({})).toEqual(['driver · svc', '1', '2', '9', '10']);
    expect(order({ sort: 'duration', desc: true })).toEqual(['driver · svc', '1', '2', '9', '10']);
    expect(order({ sort: 'start' })).toEqual(['driver · svc', '10', '9', '2', '1']);
    expect(order({ grouped: true })).toEqual(['driver · svc', '1', '9', '2', '10']);
    expect(order({ text: 'name:browser' })).toEqual(['2']);
    expect(order({ text: 'is:error' })).toEqual(['1']);
    expect(order({ text: 'group:x -is:error' })).toEqual(['9']);
    expect(order({ text: 'duration:>0.012' })).toEqual(['driver · svc', '1', '2']);
    expect(order({ text: 'nothing' })).toEqual([]);
    expect(order({ sort: 'reward' })).toHaveLength(5);
    expect(y.flags[3] & ERROR).toBeTruthy();
  });
});

describe('what changed in a running step', () => {
  const whole: S[] = [
    { id: 1, start: 0, end: 90, sample: 'a', name: 'rollout' },
    { id: 2, parent: 1, start: 5, end: 30, sample: 'a', name: 'turn' },
    { id: 3, parent: 2, start: 6, end: 20, name: 'engine' },
    { id: 4, trace: 2, start: 10, end: 60, sample: 'b', group: 'g', name: 'rollout' },
    { id: 5, trace: 2, parent: 4, start: 11, end: 40, name: 'tool', thread: 't1' },
    { id: 6, trace: 3, start: 2, end: 3, name: 'driver' },
  ];
  const picture = (x: Items): string[] =>
    Array.from({ length: x.n }, (_, i) =>
      [
        x.names[x.name[i]],
        Number(x.baseNs) + x.start[i],
        Number(x.baseNs) + x.end[i],
        x.sample[i] < 0 ? '' : x.samples[x.sample[i]],
        x.sample[i] < 0 || x.sampleGroup[x.sample[i]] < 0 ? '' : x.groups[x.sampleGroup[x.sample[i]]],
        x.workers[x.worker[i]],
        x.parent[i] < 0 ? '' : x.names[x.name[x.parent[i]]],
        hex(x.traceIds.subarray(x.trace[i] * 16, x.trace[i] * 16 + 16)),
        hex(x.spanIds.subarray(i * 8, i * 8 + 8)),
        x.depth[i],
        x.flags[i],
        x.phase[i],
      ].join(' '),
    ).sort();
  it('traces in any order and any parts give the same as all at once', () => {
    for (const order of [
      [1, 2, 3],
      [3, 1, 2],
      [2, 3, 1],
    ]) {
      const parts = order.map((trace) => itemsOf(whole.filter((s) => (s.trace ?? 1) === trace)));
      const joined = parts.reduce((all, part) => mergeItems(all, part), itemsOf([]));
      expect(picture(joined)).toEqual(picture(itemsOf(whole)));
      expect([joined.extent, joined.baseNs]).toEqual([90, itemsOf(whole).baseNs]);
    }
  });
  it('a trace takes the place of what was known of it', () => {
    const early = itemsOf([whole[3], { ...whole[0], end: null }, whole[5]]);
    expect(early.states).toEqual([2, 1, 0, 0]);
    const joined = mergeItems(early, itemsOf(whole.slice(0, 3)));
    expect([joined.n, joined.states]).toEqual([5, [5, 0, 0, 0]]);
    expect(picture(joined)).toEqual(picture(itemsOf([...whole.slice(0, 4), whole[5]])));
    expect(mergeItems(joined, itemsOf([]))).toBe(joined);
  });
  it('what is open reaches to the newest time, wherever it came from', () => {
    const open: S[] = [
      { id: 1, start: 0, end: null, sample: 'a' },
      { id: 2, parent: 1, start: 1, end: 20, sample: 'a' },
    ];
    const joined = mergeItems(
      itemsOf(open),
      itemsOf([
        { id: 7, trace: 2, start: 30, end: null },
        { id: 8, trace: 2, start: 31, end: 50 },
      ]),
    );
    expect([joined.extent, joined.end[0], joined.end[1], joined.end[2]]).toEqual([50, 50, 20, 50]);
  });
});

describe('rows', () => {
  it('shares of the tail add up to it', () => {
    const ends = [100, 95, ...Array.from({ length: 18 }, (_, i) => 10 + i)];
    const share = tailShares(ends);
    // Nine of ten samples have ended at 27; until 95 two share the time, until 100 one has it.
    expect(share.reduce((a, b) => a + b, 0)).toBeCloseTo(100 - 27);
    expect([share[0], share[1]]).toEqual([39, 34]);
    expect(share.filter((ms) => ms > 0)).toHaveLength(2);
    expect(tailShares([])).toHaveLength(0);
    expect([...tailShares([7])]).toEqual([0]);
  });
  it('tests of attributes are found among the words', () => {
    expect([...attrTests('status:ok @tool=bash -@n>=3 @error~"time out" @key').entries()]).toEqual([
      ['@tool=bash', { key: 'tool', op: '=', value: 'bash' }],
      ['@n>=3', { key: 'n', op: '>=', value: '3' }],
      ['@error~time out', { key: 'error', op: '~', value: 'time out' }],
      ['@key', { key: 'key', op: 'is', value: '' }],
    ]);
  });
  it('an attribute that is not answered yet leaves nothing out', () => {
    const x = itemsOf([
      { id: 1, start: 0, end: 1, sample: 'a' },
      { id: 2, trace: 2, start: 0, end: 1, sample: 'b' },
    ]);
    const l = buildLayout(x, 'sample');
    const t = rowTable(x, l, null);
    const q: RowQuery = { text: '@k=v', sort: 'sample', desc: false, grouped: false, attempt: null };
    expect(orderRows(x, l, t, q).order).toHaveLength(2);
    const ids = new Uint8Array(8);
    new DataView(ids.buffer).setUint32(0, 2, true);
    const attrs = new Map([['@k=v', rowsOfSpans(x, l, ids)]]);
    expect([...orderRows(x, l, t, { ...q, attrs }).order].map((r) => t.label[r])).toEqual(['b']);
    expect([...orderRows(x, l, t, { ...q, text: '-@k=v', attrs }).order].map((r) => t.label[r])).toEqual(['a']);
  });
  it('spans that others stand for are found by their sample, or by the one sample of their trace', () => {
    const x = itemsOf([
      { id: 1, trace: 1, start: 0, end: 1, sample: 'a' },
      { id: 2, trace: 2, start: 0, end: 1, sample: 'b' },
      { id: 3, trace: 3, start: 0, end: 1, sample: 'c' },
      { id: 4, trace: 3, start: 0, end: 1, sample: 'd' },
      { id: 5, trace: 2, start: 0, end: 1, thread: 'driver' },
    ]);
    const found = (mode: 'sample' | 'worker', ...owners: [number, string | null][]): string[] => {
      const l = buildLayout(x, mode);
      const ids = owners.flatMap(([t]) => [...x.traceIds.subarray(t * 16 - 16, t * 16)]);
      const rows = rowsOfOwners(x, l, { traceIds: Uint8Array.from(ids), samples: owners.map(([, name]) => name) });
      return rowTable(x, l, null).label.filter((_, r) => rows[r] === 1);
    };
    expect(found('sample', [1, null])).toEqual(['a']);
    expect(found('sample', [2, null])).toEqual(['b']);
    expect(found('sample', [3, 'd'], [3, 'gone'])).toEqual(['d']);
    expect(found('sample', [3, null])).toEqual([]);
    expect(found('worker', [1, 'a'])).toEqual([]);
    const elsewhere = { traceIds: new Uint8Array(16).fill(9), samples: [null] };
    expect(rowsOfOwners(x, buildLayout(x, 'sample'), elsewhere)).not.toContain(1);
  });
  it('a row counts once however many spans run in it', () => {
    const x = itemsOf([
      { id: 1, start: 0, end: 100, sample: 'a', name: 'rollout' },
      { id: 2, parent: 1, start: 10, end: 60, sample: 'a', name: 'decode' },
      { id: 3, parent: 1, start: 20, end: 90, sample: 'a', name: 'bash tool' },
      ...Array.from({ length: 8 }, (_, k) => ({ id: 10 + k, parent: 1, start: 12 + k * 5, end: 16 + k * 5, sample: 'a', name: 'reward' })),
    ]);
    const b = phaseBins(x, buildLayout(x, 'sample'), 100, 0, 100, null);
    for (let k = 0; k < 100; k++) expect(PHASES.reduce((a, _, p) => a + b.counts[p * 100 + k], 0)).toBeCloseTo(1);
    expect(b.peak).toBeCloseTo(1);
  });
});

describe('the span that a row shows', () => {
  // A generation, a side and a segment that were made of its attributes, and a span below.
  const items = itemsOf([
    { id: 1, start: 0, end: 100 },
    { id: 0, parent: 1, start: 0, end: 50 },
    { id: 0, start: 0, end: 10 },
    { id: 2, parent: 1, start: 60, end: 90 },
  ]);
  items.parent[2] = 1;
  items.flags[1] |= VIRTUAL;
  items.flags[2] |= VIRTUAL;
  const all = (weight: number[] | null, parent = items.parent): number[] =>
    [0, 1, 2, 3].map((i) => storedOf({ ...items, parent, weight: weight && Uint32Array.from(weight) }, i));
  it('is its own, or the one with the attributes', () => {
    expect(all(null)).toEqual([0, 0, 0, 3]);
    expect(all([1, 1, 1, 1])).toEqual([0, 0, 0, 3]);
  });
  it('is not known where something above stands for several', () => {
    expect(all([2, 1, 1, 1])).toEqual([0, -1, -1, 3]);
    // The side is that of the longest generation, the segment may be that of another.
    expect(all([1, 2, 1, 1])).toEqual([0, 0, -1, 3]);
    expect(all([1, 1, 2, 2])).toEqual([0, 0, 0, 3]);
  });
  it('is not known where a row was cut off', () => {
    expect(all([1, 1, 1, 1], Int32Array.from([-1, -1, 1, 0]))).toEqual([0, -1, -1, 3]);
  });
});
