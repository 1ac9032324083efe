// Draws a waterfall: only the rows in sight, each bar at least a pixel wide. No state of its own.
import { duration, niceStep, tick } from '../../base/format';
import { NAME_COLORS, PHASES } from '../../domain/phases';
import { themeOf } from '../../base/theme';
import { ERROR, INSTANT, JOINED, MISSING_PARENT, NEGATIVE, OPEN, ORPHAN_END, OUTSIDE_PARENT, REPEATED, type Lanes, type Trace } from './model';

export const ROW = 22;
export const AXIS = 26;
export const MAP = 44;

export type ColorBy = 'service' | 'name' | 'status';

export interface Scene {
  trace: Trace;
  start: Float64Array;
  end: Float64Array;
  /** Rows in sight order, or null when lanes are drawn. */
  shown: Int32Array;
  lanes: Lanes | null;
  folded: Uint8Array;
  /** Window of time, nanoseconds. */
  from: number;
  to: number;
  scroll: number;
  width: number;
  height: number;
  /** Where the bars begin. */
  gutter: number;
  dark: boolean;
  color: ColorBy;
  selected: number;
  hover: number;
  hits: Uint8Array | null;
  arrows: boolean;
  /** When a row held the trace: pairs of start and end. Null: not shown. */
  path: Map<number, number[]> | null;
}

const GREY = PHASES[0];

/** A colour number for every service or name: the commonest get the clearest. */
export function ranks(of: Int32Array, count: number): Uint8Array {
  const seen = new Int32Array(count);
  for (const k of of) if (k >= 0) seen[k]++;
  const order = Array.from(seen.keys())
    .filter((k) => seen[k] > 0)
    .sort((a, b) => seen[b] - seen[a]);
  const out = new Uint8Array(count);
  order.forEach((k, i) => (out[k] = (i % NAME_COLORS.length) + 1));
  return out;
}

export interface Colors {
  of: (row: number) => string;
  legend: { label: string; color: string }[];
}

export function colors(t: Trace, by: ColorBy, dark: boolean): Colors {
  const shade = (k: number): string => (k === 0 ? (dark ? GREY.dark : GREY.light) : dark ? NAME_COLORS[k - 1].dark : NAME_COLORS[k - 1].light);
  if (by === 'status') {
    const theme = themeOf(dark);
    const [good, open] = dark ? ['#3fb68f', '#d9a441'] : ['#16805e', '#96690a'];
    return {
      of: (i) => (t.flags[i] & ERROR ? theme.bad : t.flags[i] & OPEN ? open : good),
      legend: [
        { label: 'ended', color: good },
        { label: 'open', color: open },
        { label: 'error', color: theme.bad },
      ],
    };
  }
  const texts = by === 'service' ? t.service : t.name;
  const rank = ranks(texts.of, texts.list.length);
  const list = texts.list
    .map((label, k) => ({ label, k }))
    .filter(({ k }) => rank[k] > 0)
    .sort((a, b) => rank[a.k] - rank[b.k]);
  return {
    of: (i) => shade(texts.of[i] >= 0 ? rank[texts.of[i]] : 0),
    legend: list.slice(0, 10).map(({ label, k }) => ({ label, color: shade(rank[k]) })),
  };
}

export const x = (s: Scene, ns: number): number => s.gutter + ((ns - s.from) / (s.to - s.from)) * (s.width - s.gutter - 8);
export const time = (s: Scene, px: number): number => s.from + ((px - s.gutter) / (s.width - s.gutter - 8)) * (s.to - s.from);
export const lines = (s: Scene): number => (s.lanes ? s.lanes.lines.length : s.shown.length);

export function damage(t: Trace, i: number): string[] {
  const f = t.flags[i];
  const out: string[] = [];
  if (f & MISSING_PARENT) out.push('its parent never arrived');
  if (f & OUTSIDE_PARENT) out.push('it starts before its parent or ends after it');
  if (f & NEGATIVE) out.push('it ends before it starts');
  if (f & ORPHAN_END) out.push('it has an end but no start');
  if (f & OPEN) out.push('it is still open');
  if (f & REPEATED) out.push('another request reported the same batch');
  if (f & JOINED) out.push('joined by its request id');
  return out;
}

export function paint(g: CanvasRenderingContext2D, s: Scene, c: Colors): void {
  const theme = themeOf(s.dark);
  const background = s.dark ? '#0c0f13' : '#ffffff';
  g.fillStyle = background;
  g.fillRect(0, 0, s.width, s.height);
  g.font = '12px Inter, system-ui, sans-serif';
  g.textBaseline = 'middle';
  axis(g, s, theme);
  g.save();
  g.beginPath();
  g.rect(0, AXIS, s.width, s.height - AXIS);
  g.clip();
  const first = Math.max(0, Math.floor(s.scroll / ROW));
  const last = Math.min(lines(s), Math.ceil((s.scroll + s.height - AXIS) / ROW));
  if (s.lanes) drawLanes(g, s, c, theme, first, last);
  else {
    for (let at = first; at < last; at++) row(g, s, c, theme, at);
    if (s.arrows) for (let at = first; at < last; at++) arrow(g, s, theme, at);
  }
  g.restore();
  // The line between names and bars.
  g.fillStyle = theme.line;
  g.fillRect(s.gutter - 1, 0, 1, s.height);
}

function axis(g: CanvasRenderingContext2D, s: Scene, theme: ReturnType<typeof themeOf>): void {
  const step = niceStep(((s.to - s.from) / 1e6 / Math.max(1, s.width - s.gutter)) * 110);
  g.fillStyle = theme.dim;
  for (let ms = Math.ceil(s.from / 1e6 / step) * step; ms <= s.to / 1e6; ms += step) {
    const px = x(s, ms * 1e6);
    if (px < s.gutter) continue;
    g.fillStyle = theme.line;
    g.fillRect(Math.round(px), AXIS - 6, 1, s.height);
    g.fillStyle = theme.dim;
    g.fillText(tick(ms, step), px + 4, AXIS / 2);
  }
  g.fillStyle = theme.line;
  g.fillRect(0, AXIS - 1, s.width, 1);
}

function bar(g: CanvasRenderingContext2D, s: Scene, c: Colors, theme: ReturnType<typeof themeOf>, i: number, y: number, h: number): [number, number] {
  const t = s.trace;
  const f = t.flags[i];
  const left = x(s, s.start[i]);
  const right = x(s, s.end[i]);
  const a = Math.max(left, s.gutter);
  const b = Math.min(Math.max(right, left + 1.5), s.width);
  if (b < s.gutter || a > s.width) return [left, right];
  g.globalAlpha = s.hits && !s.hits[i] ? 0.22 : f & REPEATED ? 0.55 : 1;
  g.fillStyle = c.of(i);
  if (f & (INSTANT | ORPHAN_END)) {
    g.beginPath();
    g.moveTo(left, y + 2);
    g.lineTo(left + 5, y + h / 2);
    g.lineTo(left, y + h - 2);
    g.lineTo(left - 5, y + h / 2);
    g.fill();
  } else {
    g.fillRect(a, y, b - a, h);
    if (f & OPEN) {
      // Open: it fades out instead of ending.
      const fade = g.createLinearGradient(b - 24, 0, b, 0);
      fade.addColorStop(0, 'rgb(0 0 0 / 0%)');
      fade.addColorStop(1, s.dark ? '#0c0f13' : '#ffffff');
      g.fillStyle = fade;
      g.fillRect(Math.max(a, b - 24), y, Math.min(24, b - a), h);
    }
  }
  if (f & ERROR) {
    g.fillStyle = theme.bad;
    g.fillRect(a, y + h - 3, Math.max(b - a, 2), 3);
  }
  if (f & (OUTSIDE_PARENT | NEGATIVE | MISSING_PARENT)) {
    g.strokeStyle = s.dark ? '#d9a441' : '#96690a';
    g.setLineDash([3, 2]);
    g.strokeRect(a + 0.5, y + 0.5, Math.max(b - a - 1, 1), h - 1);
    g.setLineDash([]);
  }
  g.globalAlpha = 1;
  const held = s.path?.get(i);
  if (held) {
    g.fillStyle = theme.text;
    for (let k = 0; k < held.length; k += 2) {
      const from = Math.max(x(s, held[k]), s.gutter);
      const to = Math.min(Math.max(x(s, held[k + 1]), from + 1), s.width);
      if (to > s.gutter && from < s.width) g.fillRect(from, y + h, to - from, 2);
    }
  }
  if (i === s.selected || i === s.hover) {
    g.strokeStyle = i === s.selected ? theme.accent : theme.dim;
    g.lineWidth = i === s.selected ? 2 : 1;
    g.strokeRect(a - 1, y - 1, b - a + 2, h + 2);
    g.lineWidth = 1;
  }
  return [left, right];
}

function clipped(g: CanvasRenderingContext2D, text: string, px: number, y: number, room: number): void {
  if (room < 12) return;
  let shown = text;
  if (g.measureText(shown).width > room) {
    let [lo, hi] = [0, Math.min(shown.length, 400)];
    while (lo < hi) {
      const mid = (lo + hi + 1) >> 1;
      if (g.measureText(`${shown.slice(0, mid)}…`).width <= room) lo = mid;
      else hi = mid - 1;
    }
    if (lo === 0) return;
    shown = `${shown.slice(0, lo)}…`;
  }
  g.fillText(shown, px, y);
}

function row(g: CanvasRenderingContext2D, s: Scene, c: Colors, theme: ReturnType<typeof themeOf>, at: number): void {
  const t = s.trace;
  const i = s.shown[at];
  const y = AXIS + at * ROW - s.scroll;
  if (i === s.selected || i === s.hover) {
    g.fillStyle = i === s.selected ? (s.dark ? '#17324a' : '#dcecf9') : s.dark ? '#151a21' : '#f0f3f6';
    g.fillRect(0, y, s.width, ROW);
  }
  // The tree.
  const indent = 10 + Math.min(t.depth[i], 40) * 12;
  g.fillStyle = theme.line;
  for (let d = 1; d <= Math.min(t.depth[i], 40); d++) g.fillRect(10 + d * 12 - 7, y, 1, ROW);
  if (t.subtree[i] > 1) {
    g.fillStyle = theme.dim;
    g.fillText(s.folded[i] ? '▸' : '▾', indent - 2, y + ROW / 2);
  }
  g.fillStyle = c.of(i);
  g.fillRect(indent + 12, y + 6, 3, ROW - 12);
  const bad = t.flags[i] & ERROR;
  g.globalAlpha = s.hits && !s.hits[i] ? 0.4 : 1;
  g.fillStyle = bad ? theme.bad : theme.text;
  const label = t.name.list[t.name.of[i]] || '(unnamed)';
  const under = s.folded[i] ? `  +${(t.subtree[i] - 1).toLocaleString('en-US')}` : '';
  clipped(g, label + under, indent + 20, y + ROW / 2, s.gutter - indent - 28);
  g.globalAlpha = 1;
  const [left, right] = bar(g, s, c, theme, i, y + 4, ROW - 8);
  // Its duration behind the bar, or before it where there is no room.
  if (!(t.flags[i] & (INSTANT | ORPHAN_END))) {
    const text = duration((s.end[i] - s.start[i]) / 1e6);
    const w = g.measureText(text).width;
    g.fillStyle = theme.dim;
    if (right + 6 + w < s.width && right > s.gutter - 4) g.fillText(text, Math.max(right, s.gutter) + 6, y + ROW / 2);
    else if (left - 6 - w > s.gutter) g.fillText(text, left - 6 - w, y + ROW / 2);
  }
}

/** From what a span follows to where it begins. */
function arrow(g: CanvasRenderingContext2D, s: Scene, theme: ReturnType<typeof themeOf>, at: number): void {
  const t = s.trace;
  const i = s.shown[at];
  const l = t.link[i];
  if (l < 0) return;
  const active = i === s.selected || l === s.selected;
  if (!active && s.shown.length > 4000) return;
  let from = -1;
  // Its row among those shown, near by mostly.
  let [lo, hi] = [0, s.shown.length - 1];
  while (lo <= hi) {
    const mid = (lo + hi) >> 1;
    if (s.shown[mid] === l) {
      from = mid;
      break;
    }
    if (s.shown[mid] < l) lo = mid + 1;
    else hi = mid - 1;
  }
  if (from < 0) return;
  const [x1, y1] = [Math.max(s.gutter, x(s, s.end[l])), AXIS + from * ROW - s.scroll + ROW / 2];
  const [x2, y2] = [Math.max(s.gutter, x(s, s.start[i])), AXIS + at * ROW - s.scroll + ROW / 2];
  g.strokeStyle = active ? theme.accent : theme.faint;
  g.globalAlpha = active ? 1 : 0.55;
  g.beginPath();
  g.moveTo(x1, y1);
  g.bezierCurveTo(x1 + 14, y1, x2 - 14, y2, x2, y2);
  g.stroke();
  g.fillStyle = g.strokeStyle;
  g.beginPath();
  g.moveTo(x2, y2);
  g.lineTo(x2 - 5, y2 - 3);
  g.lineTo(x2 - 5, y2 + 3);
  g.fill();
  g.globalAlpha = 1;
}

function drawLanes(g: CanvasRenderingContext2D, s: Scene, c: Colors, theme: ReturnType<typeof themeOf>, first: number, last: number): void {
  const t = s.trace;
  const all = s.lanes!;
  for (let at = first; at < last; at++) {
    const y = AXIS + at * ROW - s.scroll;
    const { lane, line } = all.lines[at];
    if (line === 0) {
      g.fillStyle = theme.line;
      g.fillRect(0, y, s.width, 1);
      g.fillStyle = theme.text;
      clipped(g, t.lane.list[lane] || '(no thread)', 10, y + ROW / 2, s.gutter - 20);
    }
  }
  const lastPixel = new Float64Array(Math.max(0, last - first)).fill(-1);
  for (let i = 0; i < t.n; i++) {
    const at = all.of[i];
    if (at < first || at >= last || s.end[i] < s.from || s.start[i] > s.to) continue;
    const right = x(s, s.end[i]);
    // Thousands in one pixel are one pixel.
    if (right < lastPixel[at - first] + 0.5 && i !== s.selected) continue;
    const y = AXIS + at * ROW - s.scroll + 3;
    const [left] = bar(g, s, c, theme, i, y, ROW - 6);
    lastPixel[at - first] = Math.max(right, left + 1);
    const room = Math.min(right, s.width) - Math.max(left, s.gutter) - 8;
    if (room > 24) {
      g.fillStyle = s.dark ? '#0b0f14' : '#ffffff';
      clipped(g, t.name.list[t.name.of[i]] ?? '', Math.max(left, s.gutter) + 4, y + (ROW - 6) / 2, room);
    }
  }
}

/** The whole trace, small: rows squeezed to the height, errors on top. */
export function paintMap(g: CanvasRenderingContext2D, s: Scene, c: Colors, width: number): void {
  const t = s.trace;
  const theme = themeOf(s.dark);
  g.fillStyle = s.dark ? '#12161c' : '#f6f7f8';
  g.fillRect(0, 0, width, MAP);
  const whole = Math.max(1, t.summary.duration_ns);
  const count = s.shown.length;
  // At most a few thousand bars: more would be drawn over each other.
  const step = Math.max(1, Math.floor(count / 6000));
  const h = Math.max(1, Math.min(3, (MAP - 4) / Math.max(1, count)));
  for (let at = 0; at < count; at += step) {
    const i = s.shown[at];
    g.fillStyle = t.flags[i] & ERROR ? theme.bad : c.of(i);
    const a = (s.start[i] / whole) * width;
    g.fillRect(a, 2 + (at / count) * (MAP - 4), Math.max(0.75, ((s.end[i] - s.start[i]) / whole) * width), h);
  }
}
