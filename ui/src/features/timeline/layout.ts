// Which row and lane every item stands in, for one way of making rows. The result is one index array, ordered by row, then
// lane, then start, with offsets: a lane's items in a time window are found by binary search. One pass and two counting
// sorts over the items; runs in the worker.
import { PHASE_TOOL } from '../../domain/phases';
import { ERROR, HAS_PD, INSTANT, ORPHAN, STATE, type Items } from './items';

export type RowMode = 'sample' | 'worker' | 'tool';
export const ROW_MODES: readonly RowMode[] = ['sample', 'worker', 'tool'];

/** Deeper nesting and further overlaps share the last lane. */
export const MAX_LANES = 32;
/** Clocks jitter: an overlap of up to a microsecond is none. */
const JITTER = 0.001;

export interface Layout {
  mode: RowMode;
  rows: number;
  /** Sample, worker or name number of each row; `rowKind` says which. */
  rowKey: Int32Array;
  /** 0: sample, 1: worker, 2: name. */
  rowKind: Uint8Array;
  rowStart: Float64Array;
  rowEnd: Float64Array;
  rowItems: Uint32Array;
  rowErrors: Uint32Array;
  /** Row r has lanes laneOf[r] .. laneOf[r + 1]. */
  laneOf: Uint32Array;
  /** Lane l has items order[itemsOf[l] .. itemsOf[l + 1]]. */
  itemsOf: Uint32Array;
  order: Uint32Array;
  /** Lane within the row, by item; 255: not drawn in this mode. */
  lane: Uint8Array;
  /** Row of every item, -1: none. */
  row: Int32Array;
}

/** The server gave the lanes and the order: only the boundaries are left to find. */
function packedLayout(items: Items, lane: Uint8Array): Layout {
  const { n, sample, worker, start, end, flags, weight } = items;
  const base = items.samples.length;
  const row = new Int32Array(n);
  const order = new Uint32Array(n);
  const [rowKey, rowKind, laneOf, itemsOf, rowStart, rowEnd, rowItems, rowErrors] = Array.from({ length: 8 }, () => [] as number[]);
  let r = -1;
  let key = -1;
  let at = -1; // lane of the row that is being filled
  for (let i = 0; i < n; i++) {
    order[i] = i;
    const k = sample[i] >= 0 ? sample[i] : base + worker[i];
    if (k !== key) {
      key = k;
      r++;
      at = -1;
      rowKey.push(sample[i] >= 0 ? k : k - base);
      rowKind.push(sample[i] >= 0 ? 0 : 1);
      laneOf.push(itemsOf.length);
      rowStart.push(start[i]);
      rowEnd.push(end[i]);
      rowItems.push(0);
      rowErrors.push(0);
    }
    while (at < lane[i]) {
      itemsOf.push(i);
      at++;
    }
    row[i] = r;
    const w = weight === null ? 1 : weight[i];
    rowItems[r] += w;
    if (start[i] < rowStart[r]) rowStart[r] = start[i];
    if (end[i] > rowEnd[r]) rowEnd[r] = end[i];
    if (flags[i] & ERROR) rowErrors[r] += w;
  }
  laneOf.push(itemsOf.length);
  itemsOf.push(n);
  return {
    mode: 'sample',
    rows: r + 1,
    rowKey: Int32Array.from(rowKey),
    rowKind: Uint8Array.from(rowKind),
    rowStart: Float64Array.from(rowStart),
    rowEnd: Float64Array.from(rowEnd),
    rowItems: Uint32Array.from(rowItems),
    rowErrors: Uint32Array.from(rowErrors),
    laneOf: Uint32Array.from(laneOf),
    itemsOf: Uint32Array.from(itemsOf),
    order,
    lane,
    row,
  };
}

/** First lane below its parent: prefill, then decode, then everything else. As crates/formats/src/export/timeline/pd.rs. */
function laneBelow(items: Items, p: number, i: number): number {
  if ((items.flags[p] & HAS_PD) === 0) return 1;
  const name = items.names[items.name[i]];
  return name === 'sglang_pd_prefill' ? 1 : name === 'sglang_pd_decode' ? 4 : 7;
}

export function buildLayout(items: Items, mode: RowMode): Layout {
  if (mode === 'sample' && items.lane !== null) return packedLayout(items, items.lane);
  const { n } = items;
  const row = new Int32Array(n).fill(-1);
  const workerBase = mode === 'sample' ? items.samples.length : 0;
  const keys = mode === 'tool' ? items.names.length : workerBase + items.workers.length;
  const used = new Int32Array(keys).fill(-1);
  const rowKeys: number[] = [];
  const rowKinds: number[] = [];
  for (let i = 0; i < n; i++) {
    let key: number;
    let kind: number;
    if (mode === 'tool') {
      // Calls only: instants have no duration to compare.
      if (items.phase[i] !== PHASE_TOOL || items.name[i] < 0 || (items.flags[i] & STATE) >= INSTANT) continue;
      key = items.name[i];
      kind = 2;
    } else if (mode === 'sample' && items.sample[i] >= 0) {
      key = items.sample[i];
      kind = 0;
    } else {
      key = workerBase + items.worker[i];
      kind = 1;
    }
    let r = used[key];
    if (r < 0) {
      r = used[key] = rowKeys.length;
      rowKeys.push(kind === 1 ? key - workerBase : key);
      rowKinds.push(kind);
    }
    row[i] = r;
  }
  const rows = rowKeys.length;

  const { offsets, order: byRow } = countingSort(row, rows);
  const { start, end, flags, parent, weight } = items;
  const earlier = (a: number, b: number): number => start[a] - start[b] || end[b] - end[a] || items.depth[a] - items.depth[b] || a - b;
  const lane = new Uint8Array(n).fill(255);
  const laneEnd = new Float64Array(MAX_LANES);
  const laneOf = new Uint32Array(rows + 1);
  const rowStart = new Float64Array(rows);
  const rowEnd = new Float64Array(rows);
  const rowErrors = new Uint32Array(rows);
  const rowItems = new Uint32Array(rows);
  for (let r = 0; r < rows; r++) {
    const mine = byRow.subarray(offsets[r], offsets[r + 1]);
    for (let k = 1; k < mine.length; k++) {
      if (earlier(mine[k - 1], mine[k]) > 0) {
        mine.sort(earlier);
        break;
      }
    }
    laneEnd.fill(-Infinity);
    let lanes = 1;
    let last = -Infinity;
    for (const i of mine) {
      const p = parent[i];
      const base = Math.min(MAX_LANES - 1, p >= 0 && row[p] === r && lane[p] !== 255 ? lane[p] + laneBelow(items, p, i) : 0);
      let l = base;
      const state = flags[i] & STATE;
      if (state !== INSTANT && state !== ORPHAN) {
        while (l < MAX_LANES - 1 && laneEnd[l] > start[i] + JITTER) l++;
        laneEnd[l] = Math.max(laneEnd[l], end[i]);
      }
      lane[i] = l;
      if (l >= lanes) lanes = l + 1;
      if (end[i] > last) last = end[i];
      const w = weight === null ? 1 : weight[i];
      rowItems[r] += w;
      if (flags[i] & ERROR) rowErrors[r] += w;
    }
    laneOf[r + 1] = laneOf[r] + lanes;
    rowStart[r] = start[mine[0]];
    rowEnd[r] = last;
  }

  // Second counting sort: lanes within rows. It is stable, so starts stay in order.
  const laneTotal = laneOf[rows];
  const itemsOf = new Uint32Array(laneTotal + 1);
  for (const i of byRow) itemsOf[laneOf[row[i]] + lane[i] + 1]++;
  for (let l = 0; l < laneTotal; l++) itemsOf[l + 1] += itemsOf[l];
  const next = itemsOf.slice(0, laneTotal);
  const order = new Uint32Array(byRow.length);
  for (const i of byRow) order[next[laneOf[row[i]] + lane[i]]++] = i;

  return {
    mode,
    rows,
    rowKey: Int32Array.from(rowKeys),
    rowKind: Uint8Array.from(rowKinds),
    rowStart,
    rowEnd,
    rowItems,
    rowErrors,
    laneOf,
    itemsOf,
    order,
    lane,
    row,
  };
}

function countingSort(row: Int32Array, rows: number): { offsets: Uint32Array; order: Uint32Array } {
  const offsets = new Uint32Array(rows + 1);
  for (let i = 0; i < row.length; i++) if (row[i] >= 0) offsets[row[i] + 1]++;
  for (let r = 0; r < rows; r++) offsets[r + 1] += offsets[r];
  const order = new Uint32Array(offsets[rows]);
  const next = offsets.slice(0, rows);
  for (let i = 0; i < row.length; i++) if (row[i] >= 0) order[next[row[i]]++] = i;
  return { offsets, order };
}

/** First position in order[lo..hi) whose item starts at or after t. */
export function firstFrom(order: Uint32Array, start: Float64Array, lo: number, hi: number, t: number): number {
  while (lo < hi) {
    const mid = (lo + hi) >>> 1;
    if (start[order[mid]] < t) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

/** The same, looking near `lo` first: for walking a lane from pixel to pixel. */
export function gallop(order: Uint32Array, start: Float64Array, lo: number, hi: number, t: number): number {
  let step = 1;
  let reach = lo;
  while (reach < hi && start[order[reach]] < t) {
    lo = reach + 1;
    reach += step;
    step *= 2;
  }
  return firstFrom(order, start, lo, Math.min(hi, reach), t);
}

/** The innermost item of a row that covers time t, or -1. */
export function innermostAt(layout: Layout, items: Items, r: number, t: number): number {
  for (let l = layout.laneOf[r + 1] - 1; l >= layout.laneOf[r]; l--) {
    const lo = layout.itemsOf[l];
    let k = firstFrom(layout.order, items.start, lo, layout.itemsOf[l + 1], t + 1e-9) - 1;
    // Instants may stand between a bar's start and t.
    for (let back = 0; k >= lo && back < 64; k--, back++) {
      const i = layout.order[k];
      if ((items.flags[i] & STATE) >= INSTANT) continue;
      if (items.end[i] > t) return i;
      break;
    }
  }
  return -1;
}
