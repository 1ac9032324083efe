// The trace page in headless Chromium against a running server:
//
//     node scripts/bench-trace.mjs URL TRACE_ID
//
// Time from the click to the first picture (the first time, and again), main-thread time of a frame while everything is
// unfolded and scrolled, heap. Prints one line of JSON. `make bench TOPICS=traces` makes the data and runs it.
import { launch } from '../tests/page/browser.mjs';

const [base, trace] = process.argv.slice(2);
const url = base.replace(/\/$/, '');
const browser = await launch(['--enable-precise-memory-info', '--js-flags=--expose-gc']);
const page = await browser.newPage({ viewport: { width: 1440, height: 900 } });
page.on('pageerror', (e) => console.error(e.stack));
await page.goto(`${url}/#/`);
await page.waitForTimeout(1500);
const opened = [];
for (let k = 0; k < 2; k++) {
  opened.push(
    await page.evaluate(async (id) => {
      const began = performance.now();
      location.hash = `#/trace/${id}`;
      for (;;) {
        await new Promise((r) => requestAnimationFrame(r));
        if (document.querySelector('main canvas') && /spans/.test(document.querySelector('.trace header')?.innerText ?? '')) break;
        if (performance.now() - began > 60_000) throw new Error('the trace did not open within a minute');
      }
      await new Promise((r) => requestAnimationFrame(() => setTimeout(r)));
      return performance.now() - began;
    }, trace),
  );
  if (k === 0) {
    await page.evaluate(() => (location.hash = '#/'));
    await page.waitForTimeout(1500);
  }
}
await page.getByTitle('Unfold everything').click();
await page.waitForTimeout(1500);
const frames = await page.evaluate(async () => {
  const canvas = [...document.querySelectorAll('canvas')].at(-1);
  const box = canvas.getBoundingClientRect();
  globalThis.rsTraceFrames.length = 0;
  for (let i = 0; i < 120; i++) {
    canvas.dispatchEvent(new WheelEvent('wheel', { deltaY: 400, clientX: box.x + 100, clientY: box.y + 100, bubbles: true, cancelable: true }));
    await new Promise((r) => requestAnimationFrame(() => setTimeout(r)));
  }
  return globalThis.rsTraceFrames.toSorted((a, b) => a - b);
});
const quantile = (f) => frames[Math.min(frames.length - 1, Math.floor(frames.length * f))];
const heap = await page.evaluate(() => {
  globalThis.gc?.();
  return performance.memory.usedJSHeapSize / 1e6;
});
console.log(JSON.stringify({ opened_ms: opened, frames: frames.length, frame_p50: quantile(0.5), frame_p95: quantile(0.95), heap_mb: heap }));
await browser.close();
