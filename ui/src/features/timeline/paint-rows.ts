// Draws the rows: bars line by line into a pixel buffer (see lines.ts), so that a frame costs what the screen has pixels, not what
// the step has spans; text goes over it.
import { lookup } from '../../base/lookup';
import { mix } from '../../base/theme';
import { ERROR, OPEN, ORPHAN, PARENT, STATE } from './items';
import { LaneMarks, paintLane, SHADES, type Frame } from './lines';
import { FONT, FONT_SMALL, GUTTER, shownName, type Scene } from './scene';

const SHORT: Record<string, string> = { truncated: 'trunc', pending: 'wait', aborted: 'abort' };
const LABELS_MAX = 700;

/** Keeps its buffers from frame to frame. */
export class RowPainter {
  private image: ImageData | null = null;
  private pixels = new Uint32Array(0);
  private line = new Uint32Array(0);
  private readonly found = new LaneMarks();
  private readonly widths = new Map<string, number>();
  /** [item, left, right, top, height] of bars with room for a label. */
  private readonly labels: number[] = [];
  private readonly counts: number[] = [];

  draw(scene: Scene, ctx: CanvasRenderingContext2D): void {
    const d = scene.dpr;
    const W = Math.max(1, Math.round(scene.plot * d));
    const H = Math.max(1, Math.round(scene.height * d));
    if (!this.image || this.image.width !== W || this.image.height !== H) {
      this.image = new ImageData(W, H);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.line = new Uint32Array(W);
    }
    const { order, breaks } = scene.rows;
    const { laneOf } = scene.layout;
    const { theme } = scene;
    const { pixels, line, found } = this;
    const frame: Frame = {
      t0: scene.t0,
      scale: scene.scale * d,
      width: W,
      colorOf: scene.palette.of,
      colors: scene.palette.colors,
      errorColor: theme.badRgba,
      background: theme.background,
      dimmed: scene.dimmed,
      states: scene.states,
      attempt: scene.attempt,
      only: scene.only,
    };
    pixels.fill(theme.background);
    this.labels.length = 0;
    this.counts.length = 0;
    const first = scene.rowAt(scene.scroll);
    let band = 0;
    for (let k = 0; k <= first && k < order.length; k++) if (breaks[k]) band ^= 1;
    let last = first;
    for (let k = first; k < order.length; k++, last = k) {
      const top = scene.y[k] - scene.scroll;
      if (top >= scene.height) break;
      if (k > first && breaks[k]) band ^= 1;
      const r = order[k];
      const back = band ? theme.band : theme.background;
      const y0 = Math.round(top * d);
      const y1 = Math.round((top + scene.rowSpan(r)) * d);
      if (scene.expanded[r]) {
        line.fill(back);
        this.blit(y0, y1);
        line.fill(theme.lineRgba);
        this.blit(y0, y0 + 1);
        for (let l = 0; l < laneOf[r + 1] - laneOf[r]; l++) {
          const a = Math.round((top + 1 + l * scene.laneHeight) * d);
          const b = Math.round((top + (l + 1) * scene.laneHeight) * d);
          if (b <= 0 || a >= H) continue;
          line.fill(back);
          found.clear();
          paintLane(line, frame, scene.items, scene.layout, laneOf[r] + l, found);
          this.finish(scene, a, b, back, true);
        }
      } else {
        line.fill(back);
        found.clear();
        for (let l = laneOf[r]; l < laneOf[r + 1]; l++) paintLane(line, frame, scene.items, scene.layout, l, found);
        this.finish(scene, y0, y1 - (y1 - y0 >= 5 * d ? Math.max(1, Math.round(d)) : y1 - y0 >= 3 ? 1 : 0), back, false);
      }
    }
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.putImageData(this.image, Math.round(GUTTER * d), 0);
    ctx.setTransform(d, 0, 0, d, 0, 0);
    this.drawLabels(scene, ctx);
    this.drawGutter(scene, ctx, first, last);
  }

  /** Copies the line into the rows of pixels from y0 to y1. */
  private blit(y0: number, y1: number): void {
    const W = this.line.length;
    const H = this.image!.height;
    for (let y = Math.max(0, y0); y < y1 && y < H; y++) this.pixels.set(this.line, y * W);
  }

  /** Separators, pixels, hatching, failures and marks of what was painted into the line. */
  private finish(scene: Scene, y0: number, y1: number, back: number, lane: boolean): void {
    const { items, theme } = scene;
    const { line, found, pixels } = this;
    const W = line.length;
    const H = this.image!.height;
    const d = scene.dpr;
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
      const color = scene.palette.colors[scene.palette.of(i) * SHADES + shadeOf(scene, i)];
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

  private textWidth(ctx: CanvasRenderingContext2D, text: string): number {
    let w = this.widths.get(text);
    if (w === undefined) {
      w = ctx.measureText(text.slice(0, 200)).width;
      if (this.widths.size > 5000) this.widths.clear();
      this.widths.set(text, w);
    }
    return w;
  }
  private drawLabels(scene: Scene, ctx: CanvasRenderingContext2D): void {
    const { items, palette } = scene;
    const { labels } = this;
    ctx.font = FONT;
    ctx.textBaseline = 'middle';
    ctx.textAlign = 'left';
    let ink = '';
    for (let k = 0; k < labels.length; k += 5) {
      const i = labels[k];
      const color = palette.ink[palette.of(i) * SHADES + shadeOf(scene, i)];
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
      ctx.fillStyle = scene.theme.dim;
      for (let k = 0; k < this.counts.length; k += 3) ctx.fillText(String(this.counts[k + 2]), GUTTER + this.counts[k] + 7, this.counts[k + 1] + 0.5);
    }
  }

  private drawGutter(scene: Scene, ctx: CanvasRenderingContext2D, first: number, last: number): void {
    const { theme, table, rows, items, layout } = scene;
    ctx.fillStyle = theme.panel;
    ctx.fillRect(0, 0, GUTTER - 1, scene.height);
    ctx.fillStyle = theme.line;
    ctx.fillRect(GUTTER - 1, 0, 1, scene.height);
    ctx.textBaseline = 'middle';
    const range = table.rewardMax - table.rewardMin || 1;
    const text = scene.rowHeight >= 10;
    for (let k = first; k < last && k < rows.order.length; k++) {
      const r = rows.order[k];
      const top = scene.y[k] - scene.scroll;
      const h = scene.rowSpan(r);
      const line = Math.min(h, Math.max(scene.rowHeight, scene.laneHeight));
      const mid = top + line / 2;
      const sample = layout.rowKind[r] === 0;
      const reward = table.reward[r];
      if (!Number.isNaN(reward)) {
        const w = 2 + ((reward - table.rewardMin) / range) * 34;
        ctx.fillStyle = theme.dark ? '#2d6a86' : '#9cc7dd';
        const slim = text || scene.expanded[r] === 1;
        ctx.fillRect(GUTTER - 42, slim ? mid - 3 : top, w, Math.max(1, slim ? 6 : h - (h >= 3 ? 1 : 0)));
      }
      if (text || scene.expanded[r]) {
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
          ctx.fillText(lookup(SHORT, table.status[r]) ?? table.status[r].slice(0, 6), GUTTER - 48, mid + 0.5);
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
        if (begins && (!rows.grouped || groupRoom(scene, k) >= 10)) {
          ctx.font = FONT_SMALL;
          ctx.textAlign = 'right';
          ctx.fillStyle = theme.faint;
          const group = items.groups[table.group[r]];
          ctx.fillText((/^\d/.test(group) ? `g${group}` : group).slice(0, 6), 33, top + Math.min(line, 12) / 2 + 1);
        }
      }
    }
  }
}

function shadeOf(scene: Scene, i: number): number {
  if (scene.attempt >= 0 && scene.items.attempt[i] !== scene.attempt) return 2;
  return scene.dimmed && scene.dimmed[scene.items.name[i]] ? 2 : scene.items.flags[i] & PARENT ? 1 : 0;
}

/** Height from the k-th row to the end of its group. */
function groupRoom(scene: Scene, k: number): number {
  const g = scene.table.group[scene.rows.order[k]];
  let j = k;
  while (j < scene.rows.order.length && scene.table.group[scene.rows.order[j]] === g && scene.y[j] - scene.y[k] < 10) j++;
  return scene.y[j] - scene.y[k];
}
