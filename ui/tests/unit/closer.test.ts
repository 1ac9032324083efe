// What a thinned timeline asks for where somebody looks: the rows and the time in view, and nothing that it has already.
import { describe, expect, it } from 'vitest';
import { themeOf } from '../../src/base/theme';
import type { Focus } from '../../src/data/types';
import { closer } from '../../src/features/timeline/closer';
import { namesByTime, paletteOf } from '../../src/features/timeline/colors';
import { phaseBins, statsIn } from '../../src/features/timeline/counts';
import { buildLayout } from '../../src/features/timeline/layout';
import { mergeItems } from '../../src/features/timeline/merge';
import { orderRows, rowTable } from '../../src/features/timeline/rows';
import { GUTTER, Scene } from '../../src/features/timeline/scene';
import type { Items } from '../../src/features/timeline/items';
import { itemsOf, type S } from './make';

const SAMPLES = 1000;
/** A thousand samples of ten seconds, each item of a second standing for ten spans. */
function thinned(): Items {
  const spans: S[] = [];
  for (let s = 0; s < SAMPLES; s++)
    for (let k = 0; k < 10; k++)
      spans.push({ id: s * 10 + k + 1, name: k % 2 ? 'tool' : 'decode', start: k * 1000, end: k * 1000 + 900, sample: `s${s}` });
  const items = itemsOf(spans);
  return {
    ...items,
    weight: new Uint32Array(items.n).fill(10),
    // They lie beside and over each other.
    total: new Float32Array(items.n).fill(1200),
    longest: new Float32Array(items.n).fill(300),
    spans: items.n * 10,
    thinned: { part: 1000, focusPart: null },
  };
}
function sceneOf(items: Items): Scene {
  const theme = themeOf(true);
  const layout = buildLayout(items, 'sample');
  const table = rowTable(items, layout, null);
  const rows = orderRows(items, layout, table, { text: '', sort: 'sample', desc: false, grouped: false, attempt: null });
  const s = new Scene(items, layout, table, phaseBins(items, layout, 64, 0, items.extent, null), rows, theme, paletteOf(items, theme, 'phase'));
  Object.assign(s, { width: GUTTER + 1000, height: 140, rowHeight: 14 });
  s.place();
  s.fit();
  return s;
}
const fine = (s: Scene, part: number): void => {
  s.items.thinned = { part: 1000, focusPart: part };
};
const NO_END = 2n ** 63n - 1n;
const seconds = (s: Scene, f: Focus): [number, number] =>
  [f.fromNs, f.toNs].map((ns) => (ns === NO_END ? Infinity : Number(ns - s.items.baseNs) / 1e9)) as [number, number];

describe('where somebody looks', () => {
  it('asks for the rows in view and half a screen around them', () => {
    const s = sceneOf(thinned());
    const focus = closer(s, null)!;
    expect(focus.samples).toEqual(Array.from({ length: 16 }, (_, k) => `s${k}`));
    expect(seconds(s, focus)).toEqual([0, Infinity]);
    s.scroll = 14 * 500;
    s.clampWindow(2000, 4000);
    const there = closer(s, focus)!;
    expect(there.samples?.[0]).toBe('s495');
    expect(seconds(s, there)).toEqual([1, 5]);
  });
  it('asks for nothing that is fine enough', () => {
    const s = sceneOf(thinned());
    const focus = closer(s, null)!;
    fine(s, 0);
    expect(closer(s, focus)).toBeNull();
    // A little to the side, it is still inside.
    s.scroll = 28;
    s.clampWindow(500, 3000);
    expect(closer(s, focus)).toBeNull();
    s.scroll = 14 * 30;
    expect(closer(s, focus)).not.toBeNull();
    expect(closer(sceneOf({ ...thinned(), thinned: null }), null)).toBeNull();
  });
  it('asks again where there was no room for all, once much less is in view', () => {
    const s = sceneOf(thinned());
    const focus = closer(s, null)!;
    fine(s, 100);
    expect(closer(s, focus)).toBeNull();
    s.clampWindow(1000, 1500);
    expect(closer(s, focus)).not.toBeNull();
  });
  it('asks for a step that grows no more often than for one that is over', () => {
    const s = sceneOf(thinned());
    const focus = closer(s, null)!;
    for (const extent of [10_000, 20_000, 39_000]) {
      s.items.extent = extent;
      s.fit();
      fine(s, 0);
      expect(closer(s, focus)).toBeNull();
      // As fine as there was room for: what was asked for is as long as it is now.
      fine(s, 500);
      expect(closer(s, focus)).toBeNull();
    }
    s.clampWindow(30_000, 39_000);
    expect(seconds(s, closer(s, focus)!)).toEqual([25.5, Infinity]);
  });
  it('asks again where there was no room for all, once much fewer samples are in view, and comes to an end', () => {
    const s = sceneOf(thinned());
    s.height = 14 * 200;
    const focus = closer(s, null)!;
    expect(focus.samples).toHaveLength(301);
    fine(s, 100);
    expect(closer(s, focus)).toBeNull();
    s.height = 14 * 40;
    const fewer = closer(s, focus)!;
    expect(fewer.samples).toHaveLength(61);
    expect(closer(s, fewer)).toBeNull();
    // None was named: all were asked for.
    const all = closer(s, { ...focus, samples: null })!;
    expect(all.samples).toHaveLength(61);
    expect(closer(s, all)).toBeNull();
  });
  it('names no samples where rows are no samples or very many', () => {
    const s = sceneOf(thinned());
    s.rowHeight = 1;
    s.height = 900;
    s.place();
    expect(closer(s, null)!.samples).toBeNull();
  });
  it('names no samples whose names are too long for an address', () => {
    const s = sceneOf({ ...thinned(), samples: thinned().samples.map((name) => name + 'x'.repeat(500)) });
    expect(closer(s, null)!.samples).toBeNull();
  });
});

it('a running step is followed in a window that is narrower than the margin', () => {
  const s = sceneOf(thinned());
  s.clampWindow(9895, 9905);
  s.follow(9900);
  expect(s.t0).toBeLessThan(9892);
  expect(s.t1).toBeGreaterThan(9900);
  expect(s.t1 - s.t0).toBeCloseTo(10);
});

it('counts the spans that items stand for', () => {
  const items = thinned();
  const layout = buildLayout(items, 'sample');
  expect([...new Set(layout.rowItems)]).toEqual([100]);
  const [decode] = statsIn(items, layout, null, 0, 10_000);
  expect(decode).toMatchObject({ count: 50 * SAMPLES, total: 5 * 1200 * SAMPLES, mean: 120, p50: 120, max: 300 });
  expect(namesByTime(items).map((x) => x.time)).toEqual([5 * 1200 * SAMPLES, 5 * 1200 * SAMPLES]);
  // Of an item at the edge of the range, as many as lie in it.
  const [half] = statsIn(items, layout, null, 0, 450);
  expect(half).toMatchObject({ count: 5 * SAMPLES, mean: 120 });
  // What changed in a running step comes as it is.
  const more = itemsOf([{ id: 1, name: 'decode', start: 0, end: 900, sample: 's0', trace: 2 }]);
  const merged = mergeItems(items, { ...more, traceIds: more.traceIds.slice(16) });
  expect(merged.spans).toBe(items.spans + 1);
  expect([merged.weight, merged.total, merged.longest].map((x) => x?.at(-1))).toEqual([1, 900, 900]);
  expect(merged.thinned).toEqual(items.thinned);
});
