// How many rows are in each phase over time: the strip above the rows, the minimap, and the cursor.
import { PHASES } from '../../domain/phases';
import { INSTANT, longestOf, STATE, totalOf, weightOf, type Items } from './items';
import { innermostAt, type Layout } from './layout';

export interface PhaseBins {
  bins: number;
  t0: number;
  t1: number;
  /** counts[phase * bins + bin]: mean number of rows in that phase during that bin. */
  counts: Float32Array;
  /** Highest sum over phases. */
  peak: number;
}

/**
 * At every moment a row counts once, for the phase of its innermost span: a lane takes what the lanes below it leave. So the
 * sum over the phases is the number of rows at work. One pass over each lane and what is covered below it.
 * @param shown which rows count; null: all
 */
export function phaseBins(items: Items, layout: Layout, bins: number, t0: number, t1: number, shown: Uint8Array | null): PhaseBins {
  const P = PHASES.length;
  const width = (t1 - t0) / bins || 1;
  // Two arrays: what lies partly in a bin, and steps that hold from a bin on.
  const part = new Float64Array(P * (bins + 1));
  const step = new Float64Array(P * (bins + 1));
  const { start, end, phase, flags } = items;
  const { order, laneOf, itemsOf } = layout;
  const add = (p: number, s: number, e: number): void => {
    if (e <= t0 || s >= t1) return;
    const a = s <= t0 ? 0 : (s - t0) / width;
    const b = e >= t1 ? bins : (e - t0) / width;
    const ia = a | 0;
    const ib = b | 0;
    const base = p * (bins + 1);
    if (ia === ib) {
      part[base + ia] += b - a;
      return;
    }
    part[base + ia] += ia + 1 - a;
    part[base + ib] += b - ib;
    step[base + ia + 1] += 1;
    step[base + ib] -= 1;
  };
  // What is covered so far in the row, and what will be: disjoint, in order, as starts and ends.
  let covered = new Float64Array(256);
  let next = new Float64Array(256);
  for (let r = 0; r < layout.rows; r++) {
    if (shown !== null && shown[r] === 0) continue;
    if (layout.rowEnd[r] <= t0 || layout.rowStart[r] >= t1) continue;
    let have = 0;
    for (let l = laneOf[r + 1] - 1; l >= laneOf[r]; l--) {
      const need = have + 2 * (itemsOf[l + 1] - itemsOf[l]) + 4;
      if (next.length < need) next = new Float64Array(need * 2);
      let k = 0; // next of what is covered to go into `next`
      let from = 0; // first of what is covered that may touch the item
      let n = 0;
      const put = (s: number, e: number): void => {
        if (n > 0 && s <= next[n - 1]) next[n - 1] = Math.max(next[n - 1], e);
        else {
          next[n++] = s;
          next[n++] = e;
        }
      };
      for (let j = itemsOf[l]; j < itemsOf[l + 1]; j++) {
        const i = order[j];
        if ((flags[i] & STATE) >= INSTANT || end[i] <= start[i]) continue;
        let s = start[i];
        const e = end[i];
        while (k < have && covered[k + 1] <= s) {
          put(covered[k], covered[k + 1]);
          k += 2;
        }
        // Between what is covered. An interval may cover several items, so it stays.
        while (from < have && covered[from + 1] <= s) from += 2;
        for (let c = from; c < have && covered[c] < e; c += 2) {
          if (covered[c] > s) add(phase[i], s, covered[c]);
          s = Math.max(s, covered[c + 1]);
        }
        if (s < e) add(phase[i], s, e);
        while (k < have && covered[k] <= start[i]) {
          put(covered[k], covered[k + 1]);
          k += 2;
        }
        put(start[i], e);
        while (k < have && covered[k] <= e) {
          put(covered[k], covered[k + 1]);
          k += 2;
        }
      }
      while (k < have) {
        put(covered[k], covered[k + 1]);
        k += 2;
      }
      [covered, next] = [next, covered];
      have = n;
    }
  }
  const counts = new Float32Array(P * bins);
  const sums = new Float64Array(bins);
  for (let p = 0; p < P; p++) {
    let level = 0;
    for (let b = 0; b < bins; b++) {
      level += step[p * (bins + 1) + b];
      const value = Math.max(0, level + part[p * (bins + 1) + b]);
      counts[p * bins + b] = value < 1e-6 ? 0 : value;
      sums[b] += counts[p * bins + b];
    }
  }
  let peak = 0;
  for (const s of sums) if (s > peak) peak = s;
  return { bins, t0, t1, counts, peak };
}

/** Exactly how many of the given rows are in each phase at time t, by their innermost span. */
export function countsAt(items: Items, layout: Layout, rows: ArrayLike<number>, t: number): Uint32Array {
  const counts = new Uint32Array(PHASES.length);
  for (let k = 0; k < rows.length; k++) {
    const r = rows[k];
    if (layout.rowEnd[r] < t || layout.rowStart[r] > t) continue;
    const i = innermostAt(layout, items, r, t);
    if (i >= 0) counts[items.phase[i]]++;
  }
  return counts;
}

export interface NameStats {
  name: number;
  count: number;
  total: number;
  mean: number;
  p50: number;
  p95: number;
  max: number;
}

/**
 * Statistics by name of the spans that overlap [a, b], each clipped to it, over the shown rows. Of an item that stands for several spans, as
 * many count as the share of it that lies in the range; their lengths are known together, and of the longest.
 */
export function statsIn(items: Items, layout: Layout, shown: Uint8Array | null, a: number, b: number): NameStats[] {
  // Of each name: durations and, where items stand for several spans, how many.
  const lists = new Map<number, { each: number[]; weight: number[]; max: number }>();
  for (const i of layout.order) {
    if ((items.flags[i] & STATE) >= INSTANT || items.start[i] >= b || items.end[i] <= a) continue;
    if (shown !== null && shown[layout.row[i]] === 0) continue;
    const d = Math.min(b, items.end[i]) - Math.max(a, items.start[i]);
    let list = lists.get(items.name[i]);
    if (!list) lists.set(items.name[i], (list = { each: [], weight: [], max: 0 }));
    const of = weightOf(items, i);
    const length = items.end[i] - items.start[i];
    const share = of === 1 || length <= 0 ? 1 : d / length;
    list.each.push(of === 1 ? d : totalOf(items, i) / of);
    list.weight.push(Math.max(1, Math.round(of * share)));
    list.max = Math.max(list.max, of === 1 ? d : longestOf(items, i));
  }
  return [...lists]
    .map(([name, { each, weight, max }]) => {
      // Each is one span: plain numbers are sorted much faster.
      if (items.weight === null) {
        const sorted = Float64Array.from(each).sort();
        const count = sorted.length;
        const total = sorted.reduce((x, y) => x + y, 0);
        const q = (f: number): number => sorted[Math.max(1, Math.ceil(f * count)) - 1];
        return { name, count, total, mean: total / count, p50: q(0.5), p95: q(0.95), max };
      }
      const order = Uint32Array.from(each, (_, k) => k).sort((x, y) => each[x] - each[y]);
      let [count, total] = [0, 0];
      for (const k of order) {
        count += weight[k];
        total += each[k] * weight[k];
      }
      const q = (f: number): number => {
        let left = Math.max(1, Math.ceil(f * count));
        for (const k of order) if ((left -= weight[k]) <= 0) return each[k];
        return 0;
      };
      return { name, count, total, mean: total / count, p50: q(0.5), p95: q(0.95), max };
    })
    .sort((x, y) => y.total - x.total);
}
