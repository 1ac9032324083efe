// Level of detail: one lane of the timeline as one line of pixels. A lane costs at most as many steps as it has pixels,
// however many items it holds: items narrower than a pixel are merged, and the rest of their pixel is skipped by search.
// Marks (instants, unmatched ends), edges, open and failed bars are listed beside the line for what pixels cannot say.
import { mix, type Rgba } from '../../base/theme';
import { ERROR, INSTANT, OPEN, ORPHAN, PARENT, STATE, weightOf, type Items } from './items';
import { firstFrom, gallop, type Layout } from './layout';

/** Each colour has three shades: bar, bar with children (paler), bar that the highlight leaves out. */
export const SHADES = 3;

export interface Frame {
  /** Time of the left edge in ms, and pixels per ms. */
  t0: number;
  scale: number;
  width: number;
  /** Colour number of each item: by phase or by name. */
  colorOf: (item: number) => number;
  /** SHADES entries per colour. */
  colors: Uint32Array;
  errorColor: Rgba;
  background: Rgba;
  /** 1: name is left out by the highlight. Null: nothing is highlighted. */
  dimmed: Uint8Array | null;
  /** Bits by state: 1 << state is set when that state is shown. */
  states: number;
  /** One attempt: others are dimmed, or with `only` left out. -1: all. */
  attempt?: number;
  only?: boolean;
}

/** What a lane has beside its pixels. Reused from lane to lane; arrays grow as needed. */
export class LaneMarks {
  /** Bars at least MIN_EDGE wide: item, left and right pixel. */
  bars: number[] = [];
  /** Marks: first item, pixel, number of spans it stands for. */
  marks: number[] = [];
  clear(): void {
    this.bars.length = 0;
    this.marks.length = 0;
  }
}

/** Bars narrower than this get no edge, label or hatching of their own. */
export const MIN_EDGE = 4;
/** Marks closer than this, in pixels, are one cluster. */
export const CLUSTER = 9;

/** Up to so many items merged into a pixel are looked through for marks. */
const SCAN = 16;

function addMark(marks: number[], items: Items, i: number, x: number): void {
  const m = marks.length;
  const spans = weightOf(items, i);
  if (m > 0 && Math.abs(x - marks[m - 2]) < CLUSTER) marks[m - 1] += spans;
  else marks.push(i, x, spans);
}

/** Paints lane `l` into `line` (already filled with the background). */
export function paintLane(line: Uint32Array, f: Frame, items: Items, layout: Layout, l: number, out: LaneMarks): void {
  const { order } = layout;
  const { start, end, flags, name } = items;
  const lo = layout.itemsOf[l];
  const hi = layout.itemsOf[l + 1];
  const { t0, scale, width, colors, dimmed } = f;
  const attempt = f.attempt ?? -1;
  const t1 = t0 + width / scale;
  let k = firstFrom(order, start, lo, hi, t0);
  // The bar before may reach into view; instants may stand between.
  for (let back = 0; k > lo && back < 64; back++) {
    k--;
    if (end[order[k]] > t0 && (flags[order[k]] & STATE) < INSTANT) break;
  }
  while (k < hi) {
    const i = order[k];
    const s = start[i];
    if (s > t1) break;
    const state = flags[i] & STATE;
    const other = attempt >= 0 && items.attempt[i] !== attempt;
    if ((f.states & (1 << state)) === 0 || (other && f.only)) {
      k++;
      continue;
    }
    const x0 = (s - t0) * scale;
    if (state === INSTANT || state === ORPHAN) {
      if (x0 > -CLUSTER) addMark(out.marks, items, i, x0);
      k++;
      continue;
    }
    const x1 = (end[i] - t0) * scale;
    if (x1 < 0) {
      k++;
      continue;
    }
    const shade = other || (dimmed !== null && dimmed[name[i]] === 1) ? 2 : flags[i] & PARENT ? 1 : 0;
    const color = colors[f.colorOf(i) * SHADES + shade];
    if (x1 - x0 >= 1) {
      const a = x0 <= 0 ? 0 : x0;
      const b = x1 >= width ? width : x1;
      let pa = a | 0;
      const pb = b | 0;
      if (a > pa && pa < width) {
        line[pa] = mix(line[pa], color, pa + 1 - a);
        pa++;
      }
      if (pb > pa) line.fill(color, pa, pb);
      if (b > pb && pb < width) line[pb] = mix(line[pb], color, b - pb);
      if (b - a >= MIN_EDGE) out.bars.push(i, Math.round(a), Math.round(b));
      k++;
      continue;
    }
    // Narrower than a pixel: one pixel stands for all items that start in it.
    const px = x0 < 0 ? 0 : x0 | 0;
    if (px >= width) break;
    const after = gallop(order, start, k + 1, hi, t0 + (px + 1) / scale);
    const lastEnd = end[order[after - 1]];
    const reach = (Math.min(lastEnd, t0 + (px + 1) / scale) - s) * scale;
    const failed = (flags[i] & ERROR) !== 0;
    line[px] = mix(line[px], failed ? f.errorColor : color, Math.min(1, Math.max(0.4, reach)));
    // Marks among the merged keep their place; where very many items share a pixel, bars stand for all.
    if (after - k <= SCAN) {
      for (let j = k + 1; j < after; j++) {
        const st = flags[order[j]] & STATE;
        if (st >= INSTANT && f.states & (1 << st)) addMark(out.marks, items, order[j], (start[order[j]] - t0) * scale);
      }
    }
    // The last one may be wide: it is drawn in its own right.
    k = after - 1 > k && (lastEnd - start[order[after - 1]]) * scale >= 1 ? after - 1 : after;
  }
}

export const isOpen = (items: Items, i: number): boolean => (items.flags[i] & STATE) === OPEN;
