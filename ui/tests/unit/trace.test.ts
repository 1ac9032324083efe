// A trace's rows: what is shown when parts are folded, what is found, clocks, lanes, sums.
import { describe, expect, it } from 'vitest';
import {
  byName,
  corrected,
  distinct,
  foldBelow,
  indexOf,
  JOINED,
  lanes,
  REPEATED,
  search,
  visible,
  type Trace,
} from '../../src/features/traces/model';
import type { TraceView } from '../../src/generated/api';

type Row = { name: string; parent: number; start: number; end: number; lane?: string; host?: string; flags?: number; service?: string };

function make(rows: Row[], hosts: TraceView['hosts'] = []): Trace {
  const n = rows.length;
  const texts = (of: (r: Row) => string | undefined): { of: Int32Array; list: string[] } => {
    const list = [...new Set(rows.map(of).filter((t): t is string => t !== undefined))];
    return { of: Int32Array.from(rows, (r) => (of(r) === undefined ? -1 : list.indexOf(of(r)!))), list };
  };
  const depth = new Int32Array(n);
  const subtree = new Int32Array(n).fill(1);
  rows.forEach((r, i) => (depth[i] = r.parent < 0 ? 0 : depth[r.parent] + 1));
  for (let i = n - 1; i >= 0; i--) if (rows[i].parent >= 0) subtree[rows[i].parent] += subtree[i];
  const summary = { duration_ns: Math.max(...rows.map((r) => r.end)), hosts, base_ns: '0' } as TraceView;
  return {
    summary,
    n,
    depth,
    subtree,
    parent: Int32Array.from(rows, (r) => r.parent),
    link: new Int32Array(n).fill(-1),
    flags: Uint32Array.from(rows, (r) => r.flags ?? 0),
    start: Float64Array.from(rows, (r) => r.start),
    end: Float64Array.from(rows, (r) => r.end),
    own: Float64Array.from(rows, (r) => r.end - r.start),
    name: texts((r) => r.name),
    service: texts((r) => r.service ?? 's'),
    host: texts((r) => r.host),
    lane: texts((r) => r.lane ?? 'l'),
    spans: new Uint8Array(n * 8),
    traceId: () => '',
    spanId: (i) => i.toString(16).padStart(16, '0'),
  };
}

const tree = make([
  { name: 'request', parent: -1, start: 0, end: 100 },
  { name: 'tokenizer', parent: 0, start: 0, end: 10 },
  { name: 'tokenize', parent: 1, start: 0, end: 5 },
  { name: 'scheduler', parent: 0, start: 10, end: 90 },
  { name: 'prefill', parent: 3, start: 10, end: 30 },
  { name: 'decode', parent: 3, start: 30, end: 90 },
]);

it('a text that stands in the dictionary twice is one text', () => {
  const { of, list } = distinct(Int32Array.from([0, 1, 2, -1, 3]), ['a', 'b', 'a', 'c']);
  expect(list).toEqual(['a', 'b', 'c']);
  expect([...of]).toEqual([0, 1, 0, -1, 2]);
});

describe('folding', () => {
  it('steps over what is folded', () => {
    const folded = new Uint8Array(6);
    expect([...visible(tree, folded)]).toEqual([0, 1, 2, 3, 4, 5]);
    folded[3] = 1;
    expect([...visible(tree, folded)]).toEqual([0, 1, 2, 3]);
    expect([...visible(tree, foldBelow(tree, 1))]).toEqual([0, 1, 3]);
    expect([...visible(tree, foldBelow(tree, 0))]).toEqual([0]);
  });
  it('finds a hidden row at its folded ancestor', () => {
    const shown = visible(tree, foldBelow(tree, 1));
    expect(indexOf(shown, 5)).toBe(2);
    expect(indexOf(shown, 2)).toBe(1);
  });
});

it('finds by words, all of which must fit', () => {
  expect([...search(tree, 'DECO')]).toEqual([5]);
  expect([...search(tree, 'token')]).toEqual([1, 2]);
  expect([...search(tree, 'token nothing')]).toEqual([]);
  expect([...search(tree, '  ')]).toEqual([]);
  expect([...search(tree, '000000000000000')]).toHaveLength(6);
});

it('puts clocks right, also for spans that have their host from the parent', () => {
  const t = make(
    [
      { name: 'a', parent: -1, start: 0, end: 100, host: 'one' },
      { name: 'b', parent: 0, start: -40, end: -20, host: 'two' },
      { name: 'c', parent: 1, start: -35, end: -30 },
      { name: 'd', parent: 1, start: -35, end: -30, service: 'other' },
    ],
    [
      { host: 'one', shift_ns: 0, pairs: 0, consistent: true },
      { host: 'two', shift_ns: 40, pairs: 1, consistent: true },
    ],
  );
  expect([...corrected(t).start]).toEqual([0, 0, 5, -35]);
});

it('counts what a batch repeats once', () => {
  const t = make([
    { name: 'decode', parent: -1, start: 0, end: 10 },
    { name: 'decode', parent: -1, start: 0, end: 10, flags: REPEATED },
    { name: 'decode', parent: -1, start: 10, end: 15, flags: JOINED },
  ]);
  expect(byName(t)).toMatchObject([{ count: 3, total: 25, once: 15, longest: 10, longestRow: 0 }]);
});

it('gives overlapping spans of a lane lines of their own', () => {
  const t = make([
    { name: 'a', parent: -1, start: 0, end: 10, lane: 'x' },
    { name: 'b', parent: -1, start: 5, end: 8, lane: 'x' },
    { name: 'c', parent: -1, start: 10, end: 12, lane: 'x' },
    { name: 'd', parent: -1, start: 0, end: 1, lane: 'y' },
  ]);
  const l = lanes(t, t.start, t.end);
  expect(l.lines.map((line) => t.lane.list[line.lane])).toEqual(['x', 'x', 'y']);
  expect([...l.of]).toEqual([0, 1, 0, 2]);
});
