// The picture of the timeline: geometry, drawing and finding what lies under the pointer. Bars are painted line by line
// into a pixel buffer (see lines.ts), so that a frame costs what the screen has pixels, not what the step has spans; text
// and outlines go over it. No DOM beyond the contexts it is given, and nothing here is reactive.
import { PHASES } from '../../domain/phases';
import { niceStep, tick } from '../../base/format';
import { css, type Theme } from '../../base/theme';
import type { Palette } from './colors';
import type { PhaseBins } from './counts';
import { ERROR, INSTANT, OPEN, ORPHAN, PARENT, STATE, type Items } from './items';
import { firstFrom, type Layout } from './layout';
import { mix } from '../../base/theme';
import { CLUSTER, LaneMarks, paintLane, SHADES, type Frame } from './lines';
import type { RowOrder, RowTable } from './rows';

export const GUTTER = 168;
export const MINIMAP = 30;
export const STRIP = 52;
export const AXIS = 22;
export const HEAD = MINIMAP + STRIP + AXIS;
const SHORT: Record<string, string> = { truncated: 'trunc', pending: 'wait', aborted: 'abort' };
const LABELS_MAX = 700;
const ARROWS_MAX = 400;
const FONT = '11px Inter, system-ui, sans-serif';
const FONT_SMALL = '10px Inter, system-ui, sans-serif';

export interface Hit {
  row: number;
  item: number;
  /** Items behind a cluster of marks. */
  count: number;
}

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
  private image: ImageData | null = null;
  private pixels = new Uint32Array(0);
  private line = new Uint32Array(0);
  private readonly found = new LaneMarks();
  private readonly widths = new Map<string, number>();
  private mini: { key: string; canvas: HTMLCanvasElement } | null = null;
  /** [item, left, right, top, height] of bars with room for a label. */
  private labels: number[] = [];
  private counts: number[] = [];

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
    if (this.t0 <= 0) this.fit();
    else this.clampWindow(extent * 1.01 - span, extent * 1.01);
  }
  zoom(factor: number, x: number): void {
    const at = this.time(x);
    this.clampWindow(at - (at - this.t0) * factor, at + (this.t1 - at) * factor);
  }

  /** Item at a point of the rows' canvas. */
  hit(px: number, py: number): Hit | null {
    const k = this.rowAt(py + this.scroll);
    if (k >= this.rows.order.length || py + this.scroll < this.y[k]) return null;
    const row = this.rows.order[k];
    if (px < GUTTER) return { row, item: -1, count: 0 };
    const t = this.time(px);
    const near = 4 / this.scale;
    const { laneOf, itemsOf, order } = this.layout;
    const { start, end, flags } = this.items;
    const lanes = laneOf[row + 1] - laneOf[row];
    const inRow = py + this.scroll - this.y[k];
    const from = this.expanded[row] ? Math.min(lanes - 1, Math.max(0, Math.floor((inRow - 1) / this.laneHeight))) : lanes - 1;
    const to = this.expanded[row] ? from : 0;
    // Marks lie over bars, so they are asked first.
    let best = -1;
    let bestDistance = near;
    let count = 0;
    for (let l = from; l >= to; l--) {
      const lo = itemsOf[laneOf[row] + l];
      const hi = itemsOf[laneOf[row] + l + 1];
      for (let j = firstFrom(order, start, lo, hi, t - near); j < hi && start[order[j]] <= t + near; j++) {
        const i = order[j];
        if ((flags[i] & STATE) < INSTANT || !(this.states & (1 << (flags[i] & STATE)))) continue;
        count++;
        if (Math.abs(start[i] - t) <= bestDistance) {
          best = i;
          bestDistance = Math.abs(start[i] - t);
        }
      }
    }
    if (best >= 0) return { row, item: best, count };
    for (let l = from; l >= to; l--) {
      const lo = itemsOf[laneOf[row] + l];
      let j = firstFrom(order, start, lo, itemsOf[laneOf[row] + l + 1], t + 1.5 / this.scale) - 1;
      for (let back = 0; j >= lo && back < 64; j--, back++) {
        const i = order[j];
        if ((flags[i] & STATE) >= INSTANT || !(this.states & (1 << (flags[i] & STATE)))) continue;
        if (end[i] >= t - 1.5 / this.scale) return { row, item: i, count: 1 };
        break;
      }
    }
    return { row, item: -1, count: 0 };
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

  // Rows

  drawRows(ctx: CanvasRenderingContext2D): void {
    const d = this.dpr;
    const W = Math.max(1, Math.round(this.plot * d));
    const H = Math.max(1, Math.round(this.height * d));
    if (!this.image || this.image.width !== W || this.image.height !== H) {
      this.image = new ImageData(W, H);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.line = new Uint32Array(W);
    }
    const { order, breaks } = this.rows;
    const { laneOf } = this.layout;
    const { theme, pixels, line, found } = this;
    const frame: Frame = {
      t0: this.t0,
      scale: this.scale * d,
      width: W,
      colorOf: this.palette.of,
      colors: this.palette.colors,
      errorColor: theme.badRgba,
      background: theme.background,
      dimmed: this.dimmed,
      states: this.states,
      attempt: this.attempt,
      only: this.only,
    };
    pixels.fill(theme.background);
    this.labels.length = 0;
    this.counts.length = 0;
    const first = this.rowAt(this.scroll);
    let band = 0;
    for (let k = 0; k <= first && k < order.length; k++) if (breaks[k]) band ^= 1;
    let last = first;
    for (let k = first; k < order.length; k++, last = k) {
      const top = this.y[k] - this.scroll;
      if (top >= this.height) break;
      if (k > first && breaks[k]) band ^= 1;
      const r = order[k];
      const back = band ? theme.band : theme.background;
      const y0 = Math.round(top * d);
      const y1 = Math.round((top + this.rowSpan(r)) * d);
      if (this.expanded[r]) {
        line.fill(back);
        this.blit(y0, y1);
        line.fill(theme.lineRgba);
        this.blit(y0, y0 + 1);
        for (let l = 0; l < laneOf[r + 1] - laneOf[r]; l++) {
          const a = Math.round((top + 1 + l * this.laneHeight) * d);
          const b = Math.round((top + (l + 1) * this.laneHeight) * d);
          if (b <= 0 || a >= H) continue;
          line.fill(back);
          found.clear();
          paintLane(line, frame, this.items, this.layout, laneOf[r] + l, found);
          this.finish(a, b, back, true);
        }
      } else {
        line.fill(back);
        found.clear();
        for (let l = laneOf[r]; l < laneOf[r + 1]; l++) paintLane(line, frame, this.items, this.layout, l, found);
        this.finish(y0, y1 - (y1 - y0 >= 5 * d ? Math.max(1, Math.round(d)) : y1 - y0 >= 3 ? 1 : 0), back, false);
      }
    }
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.putImageData(this.image, Math.round(GUTTER * d), 0);
    ctx.setTransform(d, 0, 0, d, 0, 0);
    this.drawLabels(ctx);
    this.drawGutter(ctx, first, last);
  }

  /** Copies the line into the rows of pixels from y0 to y1. */
  private blit(y0: number, y1: number): void {
    const W = this.line.length;
    const H = this.image!.height;
    for (let y = Math.max(0, y0); y < y1 && y < H; y++) this.pixels.set(this.line, y * W);
  }

  /** Separators, pixels, hatching, failures and marks of what was painted into the line. */
  private finish(y0: number, y1: number, back: number, lane: boolean): void {
    const { line, found, pixels, items, theme } = this;
    const W = line.length;
    const H = this.image!.height;
    const d = this.dpr;
    const { bars, marks } = found;
    for (let b = 0; b < bars.length; b += 3) {
      const xa = bars[b + 1];
      if (xa > 0) line[xa] = mix(line[xa], back, 0.75);
    }
    this.blit(y0, y1);
    const tall = y1 - y0 >= 11 * d;
    const ya = Math.max(0, y0);
    const yb = Math.min(H, y1);
    for (let b = 0; b < bars.length; b += 3) {
      const i = bars[b];
      const f = items.flags[i];
      // In a collapsed row children lie over their parent: only what is still seen of a bar is hatched or underlined.
      const color = this.palette.colors[this.palette.of(i) * SHADES + this.shade(i)];
      if ((f & STATE) === OPEN) {
        for (let y = ya; y < yb; y++) {
          const at = y * W;
          for (let x = bars[b + 1] + 1; x < bars[b + 2]; x++) if ((x + y) % 8 < 3 && line[x] === color) pixels[at + x] = mix(color, back, 0.6);
        }
      }
      if (f & ERROR) {
        for (let y = Math.max(ya, y1 - Math.max(2, Math.round(3 * d))); y < yb; y++) {
          for (let x = bars[b + 1]; x < bars[b + 2]; x++) if (line[x] === color) pixels[y * W + x] = theme.badRgba;
        }
      }
    }
    // Names, the innermost first: in a collapsed row only one of several bars in a place is named.
    const named: number[] = [];
    for (let b = bars.length - 3; tall && b >= 0 && this.labels.length < LABELS_MAX * 5; b -= 3) {
      const [xa, xb] = [bars[b + 1], bars[b + 2]];
      if (xb - xa <= 24 * d || (!lane && items.flags[bars[b]] & PARENT)) continue;
      let free = true;
      for (let k = 0; !lane && free && k < named.length; k += 2) free = xb <= named[k] || xa >= named[k + 1];
      if (!free) continue;
      if (!lane) named.push(xa, xb);
      this.labels.push(bars[b], xa / d, xb / d, y0 / d, (y1 - y0) / d);
    }
    for (let m = 0; m < marks.length; m += 3) {
      const i = marks[m];
      const x = Math.round(marks[m + 1]);
      const many = marks[m + 2];
      const orphan = (items.flags[i] & STATE) === ORPHAN;
      const color = orphan ? theme.badRgba : theme.textRgba;
      const cy = (y0 + y1 - 1) / 2;
      if (y1 - y0 < 8 * d) {
        // No room for a shape: a tick.
        if (x >= 0 && x < W) for (let y = ya; y < yb; y++) pixels[y * W + x] = mix(pixels[y * W + x], color, 0.8);
        continue;
      }
      const size = Math.min((y1 - y0) / 2, (many > 1 ? 5.5 : 4.5) * d);
      for (let y = ya; y < yb; y++) {
        const dy = Math.abs(y - cy);
        if (dy > size) continue;
        // An instant is a diamond; an end without a start is a bracket: ⊣.
        const half = orphan ? (dy < d ? size : 0) : size - dy;
        const from = Math.max(0, Math.round(x - half));
        const to = Math.min(W, Math.round(orphan ? x + Math.max(1, d) : x + half) + (orphan ? 0 : 1));
        for (let xx = from; xx < to; xx++) pixels[y * W + xx] = !orphan && half > 1.5 && (xx === from || xx === to - 1) ? theme.background : color;
      }
      const next = m + 3 < marks.length ? marks[m + 4] - marks[m + 1] : Infinity;
      if (many > 1 && tall && (next > 22 * d || next < 0) && this.counts.length < 900) this.counts.push(x / d, (y0 + y1) / 2 / d, many);
    }
  }

  private shade(i: number): number {
    if (this.attempt >= 0 && this.items.attempt[i] !== this.attempt) return 2;
    return this.dimmed && this.dimmed[this.items.name[i]] ? 2 : this.items.flags[i] & PARENT ? 1 : 0;
  }
  private textWidth(ctx: CanvasRenderingContext2D, text: string): number {
    let w = this.widths.get(text);
    if (w === undefined) {
      w = ctx.measureText(text.slice(0, 200)).width;
      if (this.widths.size > 5000) this.widths.clear();
      this.widths.set(text, w);
    }
    return w;
  }
  private drawLabels(ctx: CanvasRenderingContext2D): void {
    const { labels, items, palette } = this;
    ctx.font = FONT;
    ctx.textBaseline = 'middle';
    ctx.textAlign = 'left';
    let ink = '';
    for (let k = 0; k < labels.length; k += 5) {
      const i = labels[k];
      const color = palette.ink[palette.of(i) * SHADES + this.shade(i)];
      if (color !== ink) ctx.fillStyle = ink = color;
      const room = labels[k + 2] - labels[k + 1] - 9;
      let text = shownName(items.names[items.name[i]] ?? '');
      if (items.flags[i] & ERROR) text = `✕ ${text}`;
      const width = this.textWidth(ctx, text);
      if (width > room) {
        const fits = Math.floor((Math.min(text.length, 200) * room) / width) - 1;
        if (fits < 2) continue;
        text = `${text.slice(0, fits)}…`;
      } else if (text.length > 200) text = text.slice(0, 200);
      ctx.fillText(text, GUTTER + labels[k + 1] + 5, labels[k + 3] + labels[k + 4] / 2 + 0.5);
    }
    if (this.counts.length > 0) {
      ctx.font = '9px Inter, system-ui, sans-serif';
      ctx.fillStyle = this.theme.dim;
      for (let k = 0; k < this.counts.length; k += 3) ctx.fillText(String(this.counts[k + 2]), GUTTER + this.counts[k] + 7, this.counts[k + 1] + 0.5);
    }
  }

  private drawGutter(ctx: CanvasRenderingContext2D, first: number, last: number): void {
    const { theme, table, rows, items, layout } = this;
    ctx.fillStyle = theme.panel;
    ctx.fillRect(0, 0, GUTTER - 1, this.height);
    ctx.fillStyle = theme.line;
    ctx.fillRect(GUTTER - 1, 0, 1, this.height);
    ctx.textBaseline = 'middle';
    const range = table.rewardMax - table.rewardMin || 1;
    const text = this.rowHeight >= 10;
    for (let k = first; k < last && k < rows.order.length; k++) {
      const r = rows.order[k];
      const top = this.y[k] - this.scroll;
      const h = this.rowSpan(r);
      const line = Math.min(h, Math.max(this.rowHeight, this.laneHeight));
      const mid = top + line / 2;
      const sample = layout.rowKind[r] === 0;
      const reward = table.reward[r];
      if (!Number.isNaN(reward)) {
        const w = 2 + ((reward - table.rewardMin) / range) * 34;
        ctx.fillStyle = theme.dark ? '#2d6a86' : '#9cc7dd';
        const slim = text || this.expanded[r] === 1;
        ctx.fillRect(GUTTER - 42, slim ? mid - 3 : top, w, Math.max(1, slim ? 6 : h - (h >= 3 ? 1 : 0)));
      }
      if (text || this.expanded[r]) {
        ctx.font = FONT;
        ctx.textAlign = 'left';
        ctx.fillStyle = sample ? theme.text : theme.dim;
        const label = table.label[r];
        const bad = table.status[r] === 'failed' || table.status[r] === 'aborted';
        const clip = sample ? 62 : GUTTER - 16;
        const w = this.textWidth(ctx, label);
        const shown = w <= clip ? label.slice(0, 60) : `${label.slice(0, Math.max(1, Math.floor((Math.min(200, label.length) * clip) / w) - 1))}…`;
        ctx.fillText(shown, sample ? 46 : 8, mid + 0.5);
        if (sample && table.status[r] !== '' && table.status[r] !== 'completed') {
          ctx.font = FONT_SMALL;
          ctx.fillStyle = bad ? theme.bad : theme.dim;
          ctx.textAlign = 'right';
          ctx.fillText(SHORT[table.status[r]] ?? table.status[r].slice(0, 6), GUTTER - 48, mid + 0.5);
        } else if (layout.rowErrors[r] > 0 && sample) {
          ctx.fillStyle = theme.bad;
          ctx.textAlign = 'right';
          ctx.fillText('✕', GUTTER - 48, mid + 0.5);
        }
      } else if (layout.rowErrors[r] > 0) {
        ctx.fillStyle = theme.bad;
        ctx.fillRect(GUTTER - 50, top, 4, Math.max(1, h - 1));
      }
      // A group is named at its first row, and bracketed down its rows; without groups each row names its own.
      if (sample && table.group[r] >= 0) {
        const begins = rows.grouped ? k === 0 || rows.breaks[k] === 1 || table.group[rows.order[k - 1]] !== table.group[r] : h >= 10;
        if (rows.grouped) {
          ctx.fillStyle = theme.line;
          ctx.fillRect(38, top, 2, h);
        }
        if (begins && (!rows.grouped || this.groupRoom(k) >= 10)) {
          ctx.font = FONT_SMALL;
          ctx.textAlign = 'right';
          ctx.fillStyle = theme.faint;
          const group = items.groups[table.group[r]];
          ctx.fillText((/^\d/.test(group) ? `g${group}` : group).slice(0, 6), 33, top + Math.min(line, 12) / 2 + 1);
        }
      }
    }
  }
  /** Height from the k-th row to the end of its group. */
  private groupRoom(k: number): number {
    const g = this.table.group[this.rows.order[k]];
    let j = k;
    while (j < this.rows.order.length && this.table.group[this.rows.order[j]] === g && this.y[j] - this.y[k] < 10) j++;
    return this.y[j] - this.y[k];
  }

  // Above the rows: minimap, strip of phases, axis

  /** Stacked areas of the numbers of rows in each phase, from a to b, drawn into pixels. */
  private stack(bins: PhaseBins, a: number, b: number, W: number, H: number): ImageData {
    const image = new ImageData(W, H);
    const px = new Uint32Array(image.data.buffer);
    px.fill(this.theme.background);
    const P = PHASES.length;
    const peak = bins.peak || 1;
    const perPixel = (b - a) / W;
    const toBin = bins.bins / (bins.t1 - bins.t0);
    const colors = PHASES.map((p) => p[this.theme.dark ? 'dark' : 'light']).map((h) => {
      const n = parseInt(h.slice(1), 16);
      return (0xff000000 | ((n & 0xff) << 16) | (n & 0xff00) | (n >> 16)) >>> 0;
    });
    for (let x = 0; x < W; x++) {
      const f = (a + x * perPixel - bins.t0) * toBin;
      const t = (a + (x + 1) * perPixel - bins.t0) * toBin;
      if (t <= 0 || f >= bins.bins) continue;
      const from = Math.max(0, Math.floor(f));
      const to = Math.min(bins.bins, Math.max(from + 1, Math.ceil(t)));
      let level = 0;
      for (let p = P - 1; p >= 0; p--) {
        let sum = 0;
        for (let k = from; k < to; k++) sum += bins.counts[p * bins.bins + k];
        if (sum === 0) continue;
        const next = level + sum / (to - from) / peak;
        const y1 = H - Math.round(level * H);
        const y0 = Math.max(0, H - Math.round(next * H));
        for (let y = y0; y < y1; y++) px[y * W + x] = colors[p];
        level = next;
      }
    }
    return image;
  }

  drawHead(ctx: CanvasRenderingContext2D): void {
    const d = this.dpr;
    const { theme, items } = this;
    const W = Math.max(1, Math.round(this.plot * d));
    ctx.setTransform(d, 0, 0, d, 0, 0);
    ctx.fillStyle = theme.panel;
    ctx.fillRect(0, 0, this.width, HEAD);
    ctx.font = FONT_SMALL;
    ctx.textBaseline = 'middle';
    ctx.textAlign = 'left';
    ctx.fillStyle = theme.faint;
    ctx.fillText('whole step', 8, MINIMAP / 2);
    ctx.fillText(this.layout.mode === 'sample' ? 'samples by phase' : 'rows by phase', 8, MINIMAP + STRIP / 2 - 7);
    ctx.fillText(`peak ${Math.round((this.strip ?? this.bins).peak)}`, 8, MINIMAP + STRIP / 2 + 7);

    const key = `${W}/${d}/${theme.dark}/${this.bins.peak}/${items.extent}`;
    if (this.mini?.key !== key || this.mini === null) {
      const canvas = document.createElement('canvas');
      canvas.width = W;
      canvas.height = Math.round((MINIMAP - 5) * d);
      canvas.getContext('2d')!.putImageData(this.stack(this.bins, 0, items.extent || 1, W, canvas.height), 0, 0);
      this.mini = { key, canvas };
    }
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.globalAlpha = 0.75;
    ctx.drawImage(this.mini.canvas, Math.round(GUTTER * d), Math.round(2 * d));
    ctx.globalAlpha = 1;
    ctx.putImageData(
      this.stack(this.strip ?? this.bins, this.t0, this.t1, W, Math.round((STRIP - 2) * d)),
      Math.round(GUTTER * d),
      Math.round(MINIMAP * d),
    );
    ctx.setTransform(d, 0, 0, d, 0, 0);
    // The window within the whole.
    const all = items.extent || 1;
    const a = GUTTER + Math.max(0, this.t0 / all) * this.plot;
    const b = GUTTER + Math.min(1, this.t1 / all) * this.plot;
    ctx.fillStyle = theme.dark ? 'rgb(12 15 19 / 62%)' : 'rgb(255 255 255 / 66%)';
    ctx.fillRect(GUTTER, 2, a - GUTTER, MINIMAP - 5);
    ctx.fillRect(b, 2, this.width - b, MINIMAP - 5);
    ctx.strokeStyle = theme.accent;
    ctx.lineWidth = 1;
    ctx.strokeRect(a + 0.5, 2.5, Math.max(2, b - a - 1), MINIMAP - 6);

    ctx.fillStyle = theme.line;
    ctx.fillRect(GUTTER - 1, 0, 1, HEAD);
    ctx.fillRect(0, HEAD - 1, this.width, 1);
    ctx.fillRect(GUTTER, MINIMAP + STRIP - 2, this.plot, 1);
    const step = niceStep(90 / this.scale);
    ctx.font = FONT_SMALL;
    ctx.fillStyle = theme.faint;
    const caption = MINIMAP + STRIP + AXIS / 2 - 1;
    if (this.layout.mode === 'sample') {
      ctx.fillText('sample', 46, caption);
      if (this.table.rewardMax >= this.table.rewardMin) ctx.fillText('reward', GUTTER - 42, caption);
    } else ctx.fillText(this.layout.mode, 8, caption);
    for (let t = Math.ceil(this.t0 / step) * step; t <= this.t1; t += step) {
      const x = Math.round(this.x(t)) + 0.5;
      ctx.fillStyle = theme.line;
      ctx.fillRect(x - 0.5, MINIMAP + STRIP - 1, 1, AXIS);
      ctx.fillStyle = theme.dim;
      ctx.fillText(tick(Math.abs(t) < step / 1e6 ? 0 : t, step), x + 4, MINIMAP + STRIP + AXIS / 2 - 1);
    }
  }

  /** Cursor, hovered and selected span, measured range: redrawn alone when the pointer moves. */
  drawOverlay(ctx: CanvasRenderingContext2D, over: { x: number | null; hover: number; selected: number; range: [number, number] | null }): void {
    const d = this.dpr;
    const { theme } = this;
    ctx.setTransform(d, 0, 0, d, 0, 0);
    ctx.clearRect(0, 0, this.width, HEAD + this.height);
    ctx.save();
    ctx.beginPath();
    ctx.rect(GUTTER, 0, this.plot, HEAD + this.height);
    ctx.clip();
    if (over.range) {
      const [a, b] = over.range.map((t) => this.x(t));
      ctx.fillStyle = theme.dark ? 'rgb(88 166 232 / 16%)' : 'rgb(31 116 189 / 14%)';
      ctx.fillRect(Math.min(a, b), MINIMAP, Math.abs(b - a), this.height + HEAD);
      ctx.fillStyle = theme.accent;
      ctx.fillRect(a, MINIMAP, 1, this.height + HEAD);
      ctx.fillRect(b, MINIMAP, 1, this.height + HEAD);
    }
    if (over.x !== null && over.x >= GUTTER) {
      ctx.fillStyle = theme.dark ? 'rgb(220 226 234 / 45%)' : 'rgb(26 32 40 / 40%)';
      ctx.fillRect(Math.round(over.x), MINIMAP, 1, this.height + HEAD);
      const text = tick(this.time(over.x), Math.min(100, niceStep(10 / this.scale)));
      ctx.font = FONT_SMALL;
      const w = ctx.measureText(text).width + 8;
      const x = Math.min(this.width - w, over.x + 1);
      ctx.fillStyle = theme.text;
      ctx.fillRect(x, HEAD - AXIS + 2, w, AXIS - 6);
      ctx.fillStyle = theme.panel;
      ctx.textBaseline = 'middle';
      ctx.fillText(text, x + 4, HEAD - AXIS / 2 - 1);
    }
    ctx.beginPath();
    ctx.rect(GUTTER, HEAD, this.plot, this.height);
    ctx.clip();
    for (const [i, color, width] of [
      [over.hover, theme.text, 1],
      [over.selected, theme.accent, 2],
    ] as const) {
      const r = i >= 0 ? this.rect(i) : null;
      if (!r) continue;
      const mark = (this.items.flags[i] & STATE) >= INSTANT;
      const x0 = mark ? r.x0 - CLUSTER / 2 : Math.max(GUTTER - 4, r.x0);
      const x1 = mark ? r.x0 + CLUSTER / 2 + 1 : Math.min(this.width + 4, r.x1);
      ctx.strokeStyle = color;
      ctx.lineWidth = width;
      ctx.strokeRect(x0 - 0.5, r.y0 + HEAD - 0.5, Math.max(3, x1 - x0), r.y1 - r.y0);
    }
    this.drawLinks(ctx, over.selected >= 0 ? over.selected : over.hover);
    ctx.restore();
  }

  /** Arrows from a span to what it links to: those of one span, or, where none is chosen, all that are in view. */
  private drawLinks(ctx: CanvasRenderingContext2D, of: number): void {
    const { links, theme } = this;
    let left = ARROWS_MAX;
    ctx.strokeStyle = ctx.fillStyle = theme.accent;
    ctx.lineWidth = 1;
    for (let k = 0; k < links.length && left > 0; k += 2) {
      if (of >= 0 && links[k] !== of && links[k + 1] !== of) continue;
      const [a, b] = [this.rect(links[k]), this.rect(links[k + 1])];
      if (!a || !b || Math.max(a.y1, b.y1) < 0 || Math.min(a.y0, b.y0) > this.height) continue;
      // From the end of the earlier one to the start of the later, whichever way the link points.
      const [x0, y0, x1, y1] = [a.x0, (a.y0 + a.y1) / 2 + HEAD, Math.min(b.x1, Math.max(b.x0, a.x0)), (b.y0 + b.y1) / 2 + HEAD];
      if (Math.max(x0, x1) < GUTTER || Math.min(x0, x1) > this.width) continue;
      left--;
      const bend = Math.max(14, Math.min(60, Math.abs(x1 - x0) / 2));
      ctx.globalAlpha = of >= 0 ? 0.95 : 0.5;
      ctx.beginPath();
      ctx.moveTo(x0, y0);
      ctx.bezierCurveTo(x0 - bend, y0, x1 + bend, y1, x1, y1);
      ctx.stroke();
      ctx.beginPath();
      ctx.moveTo(x1, y1);
      ctx.lineTo(x1 + 6, y1 - 3);
      ctx.lineTo(x1 + 6, y1 + 3);
      ctx.fill();
    }
    ctx.globalAlpha = 1;
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
  cssColor(i: number): string {
    return css(this.palette.colors[this.palette.of(i) * SHADES]);
  }
}
