import { describe, expect, it } from 'vitest';
import { labelText, rows, selectorOf } from '../../src/features/alarms/bars';

const ns = (ms: number): string => String(BigInt(ms) * 1_000_000n);
const labels = { alertname: 'A', run: 'r"1', severity: 'page' };
const episode = (start: number, fired: number | null, end: number, open = false) => ({
  alarm: 'A',
  labels,
  start_ns: ns(start),
  fired_ns: fired === null ? null : ns(fired),
  end_ns: ns(end),
  open,
});

describe('bars of alarms', () => {
  it('places them between two times and keeps one row per alarm', () => {
    const [row, ...more] = rows([episode(8000, 8500, 9000, true), episode(2000, null, 4000), episode(100, 200, 500)], 1000, 11_000);
    expect(more).toEqual([]);
    expect(row.bars.map((b) => [b.from, b.fired, b.to])).toEqual([
      [0.7, 0.75, 1],
      [0.1, null, 0.3],
    ]);
  });
  it('cuts what began before', () => {
    expect(rows([episode(0, 500, 6000)], 1000, 11_000)[0].bars[0]).toMatchObject({ from: 0, fired: 0, to: 0.5 });
  });
  it('writes labels for people and for a selector', () => {
    expect(labelText(labels, ['run'])).toBe('severity page');
    expect(selectorOf(labels)).toBe('{alertname="A",run="r\\"1",severity="page"}');
  });
});
