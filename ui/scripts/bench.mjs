// The page at a million items: time to the first picture, main-thread time of a frame while zooming and panning, time of a
// keystroke in the filter, heap. Against the mock server, headless Chromium; prints JSON.
import { launch } from '../tests/page/browser.mjs';
import { start } from '../mock/server.mjs';

const mock = await start({ big: true });
await fetch(`${mock.url}/api/v1/runs/big/steps`);
await (await fetch(`${mock.url}/api/v1/runs/big/timeline?step=0`)).arrayBuffer();
await (await fetch(`${mock.url}/api/v1/runs/big/samples?step=0`)).arrayBuffer();
const browser = await launch(['--enable-precise-memory-info']);
const page = await browser.newPage({ viewport: { width: 1440, height: 900 } });
page.on('pageerror', (e) => console.error(e.stack));
const cdp = await page.context().newCDPSession(page);
await page.goto(`${mock.url}/#/run/big`);
await page.waitForSelector('text=step 0');
const quantiles = (xs) => {
  const s = [...xs].sort((a, b) => a - b);
  const q = (f) => Number(s[Math.min(s.length - 1, Math.floor(f * s.length))]?.toFixed(2));
  return { n: s.length, p50: q(0.5), p95: q(0.95), max: q(1) };
};
const took = await page.evaluate(async () => {
  const began = performance.now();
  location.hash = '#/run/big/timeline?step=0';
  while (!(globalThis.rsFrames?.length > 0)) await new Promise((r) => setTimeout(r, 5));
  await new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)));
  return performance.now() - began;
});
const stages = await page.locator('footer [title]').getAttribute('title');
const items = await page.locator('footer').textContent();
const drive = async (name, act) => {
  await page.evaluate(() => (globalThis.rsFrames.length = 0));
  await act();
  await page.waitForTimeout(100);
  return [name, quantiles(await page.evaluate(() => globalThis.rsFrames))];
};
const out = { items, first_picture_ms: Math.round(took), stages };
const wheel = async (dy, n) => {
  for (let i = 0; i < n; i++) {
    await page.mouse.wheel(0, dy);
    await page.waitForTimeout(16);
  }
};
await page.mouse.move(620, 500);
Object.assign(out, Object.fromEntries([
  await drive('zoom_in', () => wheel(-60, 60)),
  await drive('zoom_out', () => wheel(60, 60)),
  await drive('pan', async () => {
    await wheel(-120, 12);
    await page.mouse.down();
    for (let i = 0; i < 60; i++) {
      await page.mouse.move(620 + 4 * i, 500 - 3 * i);
      await page.waitForTimeout(16);
    }
    await page.mouse.up();
  }),
  await drive('scroll_rows', async () => {
    await page.keyboard.press('f');
    for (let i = 0; i < 40; i++) {
      await page.keyboard.press('PageDown');
      await page.waitForTimeout(16);
    }
  }),
  await drive('expanded_zoom', async () => {
    await page.keyboard.press('Shift+E');
    await wheel(-60, 40);
    await wheel(60, 40);
  }),
]));
await page.keyboard.press('f');
const keys = await page.evaluate(async () => {
  const input = document.querySelector('[data-filter]');
  const times = [];
  for (const text of ['s', 'sw', 'swe', 'swe r', 'swe', 'reward:<0.2', '12', '']) {
    const began = performance.now();
    input.value = text;
    input.dispatchEvent(new Event('input', { bubbles: true }));
    await new Promise((r) => requestAnimationFrame(() => setTimeout(r)));
    times.push(performance.now() - began);
  }
  return times;
});
out.filter_keystroke_to_frame_ms = quantiles(keys);
await page.waitForTimeout(600);
await cdp.send('HeapProfiler.collectGarbage');
const heap = await page.evaluate(() => performance.memory.usedJSHeapSize);
const usage = await cdp.send('Runtime.getHeapUsage');
out.heap_mb = { js: Math.round(heap / 1e6), array_buffers: Math.round((usage.backingStorageSize ?? 0) / 1e6) };
await page.screenshot({ path: 'artifacts/bench.png' });
console.log(JSON.stringify(out, null, 1));
await browser.close();
await mock.stop();
