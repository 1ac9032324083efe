// Draws what stands above the rows: minimap, strip of phases, axis.
import { niceStep, tick } from '../../base/format';
import { rgba, type Theme } from '../../base/theme';
import { PHASES } from '../../domain/phases';
import type { PhaseBins } from './counts';
import { AXIS, FONT_SMALL, GUTTER, HEAD, MINIMAP, STRIP, type Scene } from './scene';

/** Stacked areas of the numbers of rows in each phase, from a to b, drawn into pixels. */
function stack(theme: Theme, bins: PhaseBins, a: number, b: number, W: number, H: number): ImageData {
  const image = new ImageData(W, H);
  const px = new Uint32Array(image.data.buffer);
  px.fill(theme.background);
  const P = PHASES.length;
  const peak = bins.peak || 1;
  const perPixel = (b - a) / W;
  const toBin = bins.bins / (bins.t1 - bins.t0);
  const colors = PHASES.map((p) => rgba(theme.dark ? p.dark : p.light));
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

/** Keeps the minimap from frame to frame. */
export class HeadPainter {
  private mini: { key: string; bins: PhaseBins; canvas: HTMLCanvasElement } | null = null;

  draw(scene: Scene, ctx: CanvasRenderingContext2D): void {
    const d = scene.dpr;
    const { theme, items } = scene;
    const W = Math.max(1, Math.round(scene.plot * d));
    ctx.setTransform(d, 0, 0, d, 0, 0);
    ctx.fillStyle = theme.panel;
    ctx.fillRect(0, 0, scene.width, HEAD);
    ctx.font = FONT_SMALL;
    ctx.textBaseline = 'middle';
    ctx.textAlign = 'left';
    ctx.fillStyle = theme.faint;
    ctx.fillText('overview', 8, MINIMAP / 2);
    ctx.fillText(scene.layout.mode === 'sample' ? 'samples by kind' : 'rows by kind', 8, MINIMAP + STRIP / 2 - 7);
    ctx.fillText(`peak ${Math.round((scene.strip ?? scene.bins).peak)}`, 8, MINIMAP + STRIP / 2 + 7);

    const key = `${W}/${d}/${theme.dark}/${items.extent}`;
    if (this.mini?.key !== key || this.mini.bins !== scene.bins) {
      const canvas = document.createElement('canvas');
      canvas.width = W;
      canvas.height = Math.round((MINIMAP - 5) * d);
      canvas.getContext('2d')!.putImageData(stack(theme, scene.bins, 0, items.extent || 1, W, canvas.height), 0, 0);
      this.mini = { key, bins: scene.bins, canvas };
    }
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.globalAlpha = 0.75;
    ctx.drawImage(this.mini.canvas, Math.round(GUTTER * d), Math.round(2 * d));
    ctx.globalAlpha = 1;
    ctx.putImageData(
      stack(theme, scene.strip ?? scene.bins, scene.t0, scene.t1, W, Math.round((STRIP - 2) * d)),
      Math.round(GUTTER * d),
      Math.round(MINIMAP * d),
    );
    ctx.setTransform(d, 0, 0, d, 0, 0);
    // The window within the whole.
    const all = items.extent || 1;
    const a = GUTTER + Math.max(0, scene.t0 / all) * scene.plot;
    const b = GUTTER + Math.min(1, scene.t1 / all) * scene.plot;
    ctx.fillStyle = theme.dark ? 'rgb(12 15 19 / 62%)' : 'rgb(255 255 255 / 66%)';
    ctx.fillRect(GUTTER, 2, a - GUTTER, MINIMAP - 5);
    ctx.fillRect(b, 2, scene.width - b, MINIMAP - 5);
    ctx.strokeStyle = theme.accent;
    ctx.lineWidth = 1;
    ctx.strokeRect(a + 0.5, 2.5, Math.max(2, b - a - 1), MINIMAP - 6);

    ctx.fillStyle = theme.line;
    ctx.fillRect(GUTTER - 1, 0, 1, HEAD);
    ctx.fillRect(0, HEAD - 1, scene.width, 1);
    ctx.fillRect(GUTTER, MINIMAP + STRIP - 2, scene.plot, 1);
    const step = niceStep(90 / scene.scale);
    ctx.font = FONT_SMALL;
    ctx.fillStyle = theme.faint;
    const caption = MINIMAP + STRIP + AXIS / 2 - 1;
    if (scene.layout.mode === 'sample') {
      ctx.fillText('sample', 46, caption);
      if (scene.table.rewardMax >= scene.table.rewardMin) ctx.fillText('reward', GUTTER - 42, caption);
    } else ctx.fillText(scene.layout.mode, 8, caption);
    for (let t = Math.ceil(scene.t0 / step) * step; t <= scene.t1; t += step) {
      const x = Math.round(scene.x(t)) + 0.5;
      ctx.fillStyle = theme.line;
      ctx.fillRect(x - 0.5, MINIMAP + STRIP - 1, 1, AXIS);
      ctx.fillStyle = theme.dim;
      ctx.fillText(tick(Math.abs(t) < step / 1e6 ? 0 : t, step), x + 4, MINIMAP + STRIP + AXIS / 2 - 1);
    }
  }
}
