// Draws what follows the pointer, over everything else.
import { niceStep, tick } from '../../base/format';
import { INSTANT, STATE } from './items';
import { CLUSTER } from './lines';
import { AXIS, FONT_SMALL, GUTTER, HEAD, MINIMAP, type Scene } from './scene';

const ARROWS_MAX = 400;

export interface Over {
  /** Where the pointer is, in pixels. */
  x: number | null;
  hover: number;
  selected: number;
  range: [number, number] | null;
}

/** Cursor, hovered and selected span, measured range: redrawn alone when the pointer moves. */
export function drawOverlay(scene: Scene, ctx: CanvasRenderingContext2D, over: Over): void {
  const d = scene.dpr;
  const { theme } = scene;
  ctx.setTransform(d, 0, 0, d, 0, 0);
  ctx.clearRect(0, 0, scene.width, HEAD + scene.height);
  ctx.save();
  ctx.beginPath();
  ctx.rect(GUTTER, 0, scene.plot, HEAD + scene.height);
  ctx.clip();
  if (over.range) {
    const [a, b] = over.range.map((t) => scene.x(t));
    ctx.fillStyle = theme.dark ? 'rgb(88 166 232 / 16%)' : 'rgb(31 116 189 / 14%)';
    ctx.fillRect(Math.min(a, b), MINIMAP, Math.abs(b - a), scene.height + HEAD);
    ctx.fillStyle = theme.accent;
    ctx.fillRect(a, MINIMAP, 1, scene.height + HEAD);
    ctx.fillRect(b, MINIMAP, 1, scene.height + HEAD);
  }
  if (over.x !== null && over.x >= GUTTER) {
    ctx.fillStyle = theme.dark ? 'rgb(220 226 234 / 45%)' : 'rgb(26 32 40 / 40%)';
    ctx.fillRect(Math.round(over.x), MINIMAP, 1, scene.height + HEAD);
    const text = tick(scene.time(over.x), Math.min(100, niceStep(10 / scene.scale)));
    ctx.font = FONT_SMALL;
    const w = ctx.measureText(text).width + 8;
    const x = Math.min(scene.width - w, over.x + 1);
    ctx.fillStyle = theme.text;
    ctx.fillRect(x, HEAD - AXIS + 2, w, AXIS - 6);
    ctx.fillStyle = theme.panel;
    ctx.textBaseline = 'middle';
    ctx.fillText(text, x + 4, HEAD - AXIS / 2 - 1);
  }
  ctx.beginPath();
  ctx.rect(GUTTER, HEAD, scene.plot, scene.height);
  ctx.clip();
  for (const [i, color, width] of [
    [over.hover, theme.text, 1],
    [over.selected, theme.accent, 2],
  ] as const) {
    const r = i >= 0 ? scene.rect(i) : null;
    if (!r) continue;
    const mark = (scene.items.flags[i] & STATE) >= INSTANT;
    const x0 = mark ? r.x0 - CLUSTER / 2 : Math.max(GUTTER - 4, r.x0);
    const x1 = mark ? r.x0 + CLUSTER / 2 + 1 : Math.min(scene.width + 4, r.x1);
    ctx.strokeStyle = color;
    ctx.lineWidth = width;
    ctx.strokeRect(x0 - 0.5, r.y0 + HEAD - 0.5, Math.max(3, x1 - x0), r.y1 - r.y0);
  }
  drawLinks(scene, ctx, over.selected >= 0 ? over.selected : over.hover);
  ctx.restore();
}

/** Arrows from a span to what it links to: those of one span, or, where none is chosen, all that are in view. */
function drawLinks(scene: Scene, ctx: CanvasRenderingContext2D, of: number): void {
  const { links, theme } = scene;
  let left = ARROWS_MAX;
  ctx.strokeStyle = ctx.fillStyle = theme.accent;
  ctx.lineWidth = 1;
  for (let k = 0; k < links.length && left > 0; k += 2) {
    if (of >= 0 && links[k] !== of && links[k + 1] !== of) continue;
    const [a, b] = [scene.rect(links[k]), scene.rect(links[k + 1])];
    if (!a || !b || Math.max(a.y1, b.y1) < 0 || Math.min(a.y0, b.y0) > scene.height) continue;
    // From the end of the earlier one to the start of the later, whichever way the link points.
    const [x0, y0, x1, y1] = [a.x0, (a.y0 + a.y1) / 2 + HEAD, Math.min(b.x1, Math.max(b.x0, a.x0)), (b.y0 + b.y1) / 2 + HEAD];
    if (Math.max(x0, x1) < GUTTER || Math.min(x0, x1) > scene.width) continue;
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
