// What lies under the pointer.
import { INSTANT, STATE, weightOf } from './items';
import { firstFrom } from './layout';
import { GUTTER, type Scene } from './scene';

export interface Hit {
  row: number;
  item: number;
  /** Spans behind a cluster of marks, or an item. */
  count: number;
}

/** Item at a point of the rows' canvas. */
export function hitAt(scene: Scene, px: number, py: number): Hit | null {
  const k = scene.rowAt(py + scene.scroll);
  if (k >= scene.rows.order.length || py + scene.scroll < scene.y[k]) return null;
  const row = scene.rows.order[k];
  if (px < GUTTER) return { row, item: -1, count: 0 };
  const t = scene.time(px);
  const near = 4 / scene.scale;
  const { laneOf, itemsOf, order } = scene.layout;
  const { start, end, flags } = scene.items;
  const lanes = laneOf[row + 1] - laneOf[row];
  const inRow = py + scene.scroll - scene.y[k];
  const from = scene.expanded[row] ? Math.min(lanes - 1, Math.max(0, Math.floor((inRow - 1) / scene.laneHeight))) : lanes - 1;
  const to = scene.expanded[row] ? from : 0;
  // Marks lie over bars, so they are asked first.
  let best = -1;
  let bestDistance = near;
  let count = 0;
  for (let l = from; l >= to; l--) {
    const lo = itemsOf[laneOf[row] + l];
    const hi = itemsOf[laneOf[row] + l + 1];
    for (let j = firstFrom(order, start, lo, hi, t - near); j < hi && start[order[j]] <= t + near; j++) {
      const i = order[j];
      if ((flags[i] & STATE) < INSTANT || !(scene.states & (1 << (flags[i] & STATE)))) continue;
      count += weightOf(scene.items, i);
      if (Math.abs(start[i] - t) <= bestDistance) {
        best = i;
        bestDistance = Math.abs(start[i] - t);
      }
    }
  }
  if (best >= 0) return { row, item: best, count };
  for (let l = from; l >= to; l--) {
    const lo = itemsOf[laneOf[row] + l];
    let j = firstFrom(order, start, lo, itemsOf[laneOf[row] + l + 1], t + 1.5 / scene.scale) - 1;
    for (let back = 0; j >= lo && back < 64; j--, back++) {
      const i = order[j];
      if ((flags[i] & STATE) >= INSTANT || !(scene.states & (1 << (flags[i] & STATE)))) continue;
      if (end[i] >= t - 1.5 / scene.scale) return { row, item: i, count: weightOf(scene.items, i) };
      break;
    }
  }
  return { row, item: -1, count: 0 };
}
