import { describe, expect, it } from 'vitest';
import { themeOf } from '../../src/base/theme';
import type { RunInfo, StepInfo } from '../../src/data/types';
import {
  applyChoices,
  choicesOf,
  isRunning,
  itemOf,
  lastMinutes,
  madeUpIn,
  spanIn,
  spanText,
  stepOf,
  toggled,
  windowOf,
} from '../../src/features/timeline/choices';
import { paletteOf } from '../../src/features/timeline/colors';
import { phaseBins } from '../../src/features/timeline/counts';
import { hitAt } from '../../src/features/timeline/hit';
import { VIRTUAL, type Items } from '../../src/features/timeline/items';
import { buildLayout } from '../../src/features/timeline/layout';
import { orderRows, rowTable } from '../../src/features/timeline/rows';
import { GUTTER, Scene } from '../../src/features/timeline/scene';
import { itemsOf } from './make';

const steps = [{ step: 3 }, { step: 7 }] as StepInfo[];
const run = (more: Partial<RunInfo>): RunInfo => ({ status: null, ended_ns: null, last_ns: '0', started_ns: null, spans: 1, ...more }) as RunInfo;

describe('what was chosen', () => {
  it('has a default for everything', () => {
    expect(choicesOf({})).toMatchObject({
      rowsBy: 'group',
      sort: 'sample',
      desc: false,
      colorBy: 'phase',
      follow: true,
      rowHeight: null,
      expanded: null,
    });
  });
  it('is read from the address, and what makes no sense is left out', () => {
    const c = choicesOf({ rows: 'tool', sort: '-tail', attempt: '2', hide: 'open,instant', h: '8', x: '0', rx: 'a,b', follow: '0' });
    expect(c).toMatchObject({
      rowsBy: 'tool',
      sort: 'tail',
      desc: true,
      attempt: 2,
      rowHeight: 8,
      expanded: false,
      toggled: ['a', 'b'],
      follow: false,
    });
    expect([...c.hidden]).toEqual(['open', 'instant']);
    expect(choicesOf({ rows: 'x', sort: 'x', attempt: '-1', h: '900' })).toMatchObject({
      rowsBy: 'group',
      sort: 'sample',
      attempt: null,
      rowHeight: null,
    });
  });
  it('puts a word in, or takes it out', () => {
    expect(toggled(['a'], 'b')).toBe('a,b');
    expect(toggled(['a', 'b'], 'a')).toBe('b');
  });
});

describe('what is shown', () => {
  it('is the step of the address, else the newest, else a window of time', () => {
    expect(stepOf({ step: '3' }, steps)).toBe(3);
    expect(stepOf({}, steps)).toBe(7);
    expect(stepOf({ from_ns: '1', to_ns: '2' }, steps)).toBeNull();
    expect(windowOf({ from_ns: '1', to_ns: '2' }, null)).toEqual({ from_ns: '1', to_ns: '2' });
    expect(windowOf({}, 7)).toEqual({ step: 7 });
    expect(windowOf({}, null)).toBeNull();
  });
  it('of a run without steps are its last ten minutes', () => {
    expect(lastMinutes(run({ started_ns: '5', last_ns: '100' }))).toEqual({ from_ns: '5', to_ns: '101' });
    expect(lastMinutes(run({ started_ns: '5', last_ns: '900000000000' }))).toEqual({ from_ns: '300000000001', to_ns: '900000000001' });
    expect(lastMinutes(run({ spans: 0 }))).toBeNull();
    expect(lastMinutes(undefined)).toBeNull();
  });
  it('runs while its run does, or for a minute after the last span', () => {
    expect(isRunning(run({ status: 'running' }), 1e9)).toBe(true);
    expect(isRunning(run({ status: 'finished' }), 0)).toBe(false);
    expect(isRunning(run({ last_ns: '60000000000' }), 100_000)).toBe(true);
    expect(isRunning(run({ last_ns: '60000000000' }), 200_000)).toBe(false);
    expect(isRunning(undefined, 0)).toBe(false);
  });
});

describe('a scene', () => {
  const items = itemsOf([
    { id: 1, name: 'root', start: 0, end: 100, sample: 'a' },
    { id: 2, parent: 1, name: 'decode', start: 10, end: 60, sample: 'a' },
    { id: 3, name: 'root', start: 0, end: 50, sample: 'b' },
    { id: 4, name: 'mark', start: 80, end: 80, state: 'instant', sample: 'b' },
  ]);
  const layout = buildLayout(items, 'sample');
  const table = rowTable(items, layout, null);
  const rows = orderRows(items, layout, table, { text: '', sort: 'sample', desc: false, grouped: false, attempt: null });
  const theme = themeOf(true);
  const make = (params: Record<string, string> = {}): Scene => {
    const bins = phaseBins(items, layout, 64, 0, 100, rows.shown);
    const s = new Scene(items, layout, table, bins, rows, theme, paletteOf(items, theme, 'phase'));
    s.width = GUTTER + 1000;
    s.height = 400;
    s.clampWindow(0, 100);
    applyChoices(s, rows, choicesOf(params), 400);
    return s;
  };
  it('finds an item by the name that the address has for it', () => {
    for (let i = 0; i < items.n; i++) expect(itemOf(items, spanText(items, i))).toBe(i);
    expect(itemOf(items, undefined)).toBe(-1);
    expect(itemOf(items, `${'0'.repeat(32)}.${'0'.repeat(16)}`)).toBe(-1);
  });
  it('finds a row that the server made up by its trace, name and start', () => {
    const rows = [
      { id: 1, trace: 1, name: 'generate', start: 100, end: 200 },
      { id: 0, trace: 1, name: 'prefill', start: 100, end: 120 },
      { id: 0, trace: 1, name: 'decode', start: 120, end: 150 },
      { id: 0, trace: 1, name: 'decode', start: 150, end: 200 },
      { id: 0, trace: 2, name: 'decode', start: 151, end: 200 },
      { id: 2, trace: 1, name: 'decode', start: 150, end: 200 },
    ];
    const made = (list: typeof rows): Items => {
      const x = itemsOf(list);
      list.forEach(({ id }, i) => id === 0 && (x.flags[i] |= VIRTUAL));
      return x;
    };
    const old = made(rows);
    expect(spanIn(spanText(old, 3))).toBeNull();
    expect(spanIn(spanText(old, 5))).not.toBeNull();
    // The newer answer begins earlier, and numbers everything in another way.
    const more = [{ id: 9, trace: 3, name: 'tool', start: 0, end: 10 }, ...rows.toReversed()];
    for (const i of [1, 2, 3, 4]) expect(madeUpIn(made(more), old, i)).toBe(6 - i);
    expect(madeUpIn(made(rows.slice(0, 2)), old, 3)).toBe(-1);
    expect(madeUpIn(made(rows.slice(4)), old, 1)).toBe(-1);
  });
  it('expands rows where there is room, and the other way where it was asked for', () => {
    expect([...make().expanded]).toEqual([1, 1]);
    expect([...make({ x: '0' }).expanded]).toEqual([0, 0]);
    expect([...make({ x: '0', rx: table.label[1] }).expanded]).toEqual([0, 1]);
    expect(make({ h: '8' })).toMatchObject({ rowHeight: 8, laneHeight: 8 });
  });
  it('leaves out what is hidden, dims what is not highlighted', () => {
    expect(make({ hide: 'open,orphan' }).states).toBe(0b0101);
    expect(make().dimmed).toBeNull();
    const dimmed = make({ hl: 'decode', color: 'name' }).dimmed!;
    expect(items.names.map((n, k) => [n, dimmed[k]])).toEqual(items.names.map((n) => [n, n === 'decode' ? 0 : 1]));
  });
  it('turns times into pixels and back', () => {
    const s = make();
    expect(s.time(s.x(37))).toBeCloseTo(37, 9);
    s.zoom(0.5, s.x(40));
    expect(s.t1 - s.t0).toBeCloseTo(50, 6);
    expect(s.time(s.x(40))).toBeCloseTo(40, 9);
  });
  it('knows what lies under the pointer: the innermost bar, a mark before a bar, the row beside', () => {
    const s = make({ x: '0' });
    const y = (row: number): number => s.y[rows.order.indexOf(row)] + 2;
    const row = layout.row[0];
    expect(hitAt(s, s.x(30), y(row))).toMatchObject({ row, item: 1 });
    expect(hitAt(s, s.x(70), y(row))).toMatchObject({ row, item: 0 });
    expect(hitAt(s, s.x(80), y(layout.row[3]))).toMatchObject({ item: 3, count: 1 });
    expect(hitAt(s, 10, y(row))).toEqual({ row, item: -1, count: 0 });
    expect(hitAt(s, s.x(30), 5000)).toBeNull();
  });
});
