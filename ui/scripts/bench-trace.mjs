// The trace page in headless Chromium against a running server:
//
//     node scripts/bench-trace.mjs URL TRACE_ID
//
// Time from the click to the first picture (the first time, and again), time of a frame while everything is unfolded and
// scrolled, heap. Prints one line of JSON. `make bench TOPICS=traces` makes the data and runs it.
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
  opened.push(await page.evaluate(async (id) => {
    const began = performance.now();
    location.hash = `#/trace/${id}`;
    for (;;) {
      await new Promise((r) => requestAnimationFrame(r));
      if (document.querySelector('main canvas') && /spans/.test(document.querySelector('.trace header')?.innerText ?? '')) break;
      if (performance.now() - began > 60_000) throw new Error('the trace did not open within a minute');
    }
    await new Promise((r) => requestAnimationFrame(() => setTimeout(r)));
    return performance.now() - began;
  }, trace));
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
  const times = [];
  for (let i = 0; i < 120; i++) {
    const began = performance.now();
    canvas.dispatchEvent(new WheelEvent('wheel', { deltaY: 400, clientX: box.x + 100, clientY: box.y + 100, bubbles: true, cancelable: true }));
    await new Promise((r) => requestAnimationFrame(r));
    await new Promise((r) => setTimeout(r));
    times.push(performance.now() - began);
  }
  return times.sort((a, b) => a - b);
});
const heap = await page.evaluate(() => { globalThis.gc?.(); return performance.memory.usedJSHeapSize / 1e6; });
console.log(JSON.stringify({ opened_ms: opened, frame_p50: frames[60], frame_p95: frames[114], heap_mb: heap }));
await browser.close();
