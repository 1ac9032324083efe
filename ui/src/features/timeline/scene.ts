// What the picture of the timeline consists of, and its geometry: where a time, a row and an item lie. Drawing is in paint-*.ts,
// finding what lies under the pointer in hit.ts. No DOM, and nothing here is reactive.
import type { Theme } from '../../base/theme';
import type { Palette } from './colors';
import type { PhaseBins } from './counts';
import type { Items } from './items';
import type { Layout } from './layout';
import type { RowOrder, RowTable } from './rows';

export const GUTTER = 168;
export const MINIMAP = 30;
export const STRIP = 52;
export const AXIS = 22;
export const HEAD = MINIMAP + STRIP + AXIS;
export const FONT = '11px Inter, system-ui, sans-serif';
export const FONT_SMALL = '10px Inter, system-ui, sans-serif';

/** Prefill and decode as people write them: `[P] forward`. */
export function shownName(name: string): string {
  const m = /^sglang_pd_(prefill|decode)(?:_(.+))?$/.exec(name);
  return m ? `[${m[1] === 'prefill' ? 'P' : 'D'}] ${m[2] ?? m[1]}` : name;
}

export class Scene {
  t0 = 0;
  t1 = 1;
  scroll = 0;
  width = 0;
  height = 0;
  dpr = 1;
  rowHeight = 14;
  laneHeight = 14;
  expanded = new Uint8Array(0);
  /** y[k]: top of the k-th shown row; one more than rows. */
  y = new Float64Array(1);
  /** Place of each row in the order, -1: not shown. */
  private position = new Int32Array(0);
  /** Links as pairs of items: from, to. */
  links: Int32Array = new Int32Array(0);
  dimmed: Uint8Array | null = null;
  states = 15;
  /** One attempt is looked at: others are dim, or with `only` not drawn. -1: all. */
  attempt = -1;
  only = false;
  strip: PhaseBins | null = null;

  constructor(
    public items: Items,
    public layout: Layout,
    public table: RowTable,
    public bins: PhaseBins,
    public rows: RowOrder,
    public theme: Theme,
    public palette: Palette,
  ) {}

  // Geometry

  get plot(): number {
    return Math.max(1, this.width - GUTTER);
  }
  /** Pixels per millisecond. */
  get scale(): number {
    return this.plot / (this.t1 - this.t0);
  }
  x(t: number): number {
    return GUTTER + (t - this.t0) * this.scale;
  }
  time(x: number): number {
    return this.t0 + (x - GUTTER) / this.scale;
  }
  get total(): number {
    return this.y[this.rows.order.length] ?? 0;
  }
  rowSpan(r: number): number {
    return this.expanded[r] ? (this.layout.laneOf[r + 1] - this.layout.laneOf[r]) * this.laneHeight + 3 : this.rowHeight;
  }
  place(): void {
    const { order, breaks } = this.rows;
    if (this.expanded.length !== this.layout.rows) this.expanded = new Uint8Array(this.layout.rows);
    const y = new Float64Array(order.length + 1);
    const gap = this.rowHeight >= 8 ? 5 : this.rowHeight >= 4 ? 3 : 1;
    for (let k = 0; k < order.length; k++) {
      if (breaks[k]) y[k] += gap;
      y[k + 1] = y[k] + this.rowSpan(order[k]);
    }
    this.y = y;
    this.position = new Int32Array(this.layout.rows).fill(-1);
    order.forEach((r, k) => (this.position[r] = k));
  }
  /** Position in the order of the row at height y (of the rows, not of the window). */
  rowAt(y: number): number {
    let lo = 0;
    let hi = this.rows.order.length;
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      if (this.y[mid + 1] <= y) lo = mid + 1;
      else hi = mid;
    }
    return lo;
  }
  clampWindow(t0: number, t1: number): void {
    const all = this.items.extent || 1;
    const least = 0.0005;
    let span = Math.min(Math.max(t1 - t0, least), all * 1.04);
    if (!(span > 0)) span = all;
    const margin = all * 0.02;
    const from = Math.max(-margin, Math.min(t0, all + margin - span));
    this.t0 = from;
    this.t1 = from + span;
  }
  fit(): void {
    const m = (this.items.extent || 1) * 0.01;
    this.clampWindow(-m, (this.items.extent || 1) + m);
  }
  /** Keeps the newest at the right edge: the whole while it is in view, else a window of the same length. */
  follow(extent: number): void {
    const span = this.t1 - this.t0;
    // In a narrow window, a margin of the whole would be all there is.
    const to = extent + Math.min(extent * 0.01, span * 0.1);
    if (this.t0 <= 0) this.fit();
    else this.clampWindow(to - span, to);
  }
  zoom(factor: number, x: number): void {
    const at = this.time(x);
    this.clampWindow(at - (at - this.t0) * factor, at + (this.t1 - at) * factor);
  }

  /** Rectangle of an item in the rows' canvas, or null when its row is not shown. */
  rect(i: number): { x0: number; x1: number; y0: number; y1: number } | null {
    const r = this.layout.row[i];
    if (r < 0) return null;
    const k = this.position[r] ?? -1;
    if (k < 0) return null;
    const top = this.y[k] - this.scroll;
    const x0 = this.x(this.items.start[i]);
    const x1 = Math.max(x0 + 1, this.x(this.items.end[i]));
    if (!this.expanded[r]) return { x0, x1, y0: top, y1: top + this.rowHeight };
    const y0 = top + 1 + this.layout.lane[i] * this.laneHeight;
    return { x0, x1, y0, y1: y0 + this.laneHeight };
  }

  /** A running step: open spans reach to `t`. */
  grow(open: Int32Array, t: number): void {
    const { items, layout } = this;
    items.extent = t;
    for (const i of open) {
      items.end[i] = t;
      const r = layout.row[i];
      if (r >= 0) layout.rowEnd[r] = t;
    }
  }
}
