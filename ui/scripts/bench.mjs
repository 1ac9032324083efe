// The page at a million items, headless Chromium against a running server:
//
//     node scripts/bench.mjs URL      (the first run and its first step; else URL#/run/ID/timeline?step=N)
//
// Time from the click to the first full picture, main-thread time of a frame while zooming, panning and scrolling, time of a
// keystroke in the filter, heap, first paint. Prints one line of JSON. `make bench TOPICS=page` makes the data and runs it.
import { mkdirSync } from 'node:fs';
import { launch } from '../tests/page/browser.mjs';

const [base, hash] = process.argv[2].split('#');
const url = base.replace(/\/$/, '');
let target = hash ? `#${hash}` : null;
let from = '#/';
if (!target) {
  const { runs } = await (await fetch(`${url}/api/v1/runs`)).json();
  const run = encodeURIComponent(runs[0].run_id);
  const { steps } = await (await fetch(`${url}/api/v1/runs/${run}/steps`)).json();
  target = `#/run/${run}/timeline?step=${steps[0].step}`;
  from = `#/run/${run}`;
}
const browser = await launch(['--enable-precise-memory-info', '--js-flags=--expose-gc']);
const page = await browser.newPage({ viewport: { width: 1440, height: 900 } });
page.on('pageerror', (e) => console.error(e.stack));
const cdp = await page.context().newCDPSession(page);
const quantiles = (xs) => {
  const s = [...xs].sort((a, b) => a - b);
  const q = (f) => Number(s[Math.min(s.length - 1, Math.floor(f * s.length))]?.toFixed(2));
  return { n: s.length, p50: q(0.5), p95: q(0.95), max: q(1) };
};
await page.goto(`${url}/${from}`);
await page.waitForSelector('main table');
const paint = await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null);
await page.waitForTimeout(1000);

// From the click to the picture, three times: the first has cold code, the others what a person sees all day.
const opened = [];
let stages = '';
for (let k = 0; k < 3; k++) {
  opened.push(
    await page.evaluate(async (to) => {
      globalThis.rsFrames = undefined;
      const began = performance.now();
      location.hash = to;
      while (!(globalThis.rsFrames?.length > 0)) await new Promise((r) => setTimeout(r, 2));
      await new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)));
      return performance.now() - began;
    }, target),
  );
  stages = await page.locator('footer [title]').last().getAttribute('title');
  if (k < 2) {
    await page.evaluate((to) => (location.hash = to), from);
    await page.waitForSelector('main table');
    await page.waitForTimeout(1500);
  }
}
const items = await page.locator('footer').textContent();
const drive = async (act) => {
  await page.evaluate(() => (globalThis.rsFrames.length = 0));
  await act();
  await page.waitForTimeout(100);
  return page.evaluate(() => [...globalThis.rsFrames]);
};
const wheel = async (dy, n) => {
  for (let i = 0; i < n; i++) {
    await page.mouse.wheel(0, dy);
    await page.waitForTimeout(16);
  }
};
await page.mouse.move(620, 500);
const parts = {
  zoom_in: await drive(() => wheel(-60, 60)),
  zoom_out: await drive(() => wheel(60, 60)),
  pan: await drive(async () => {
    await wheel(-120, 12);
    await page.mouse.down();
    for (let i = 0; i < 60; i++) {
      await page.mouse.move(620 + 4 * i, 500 - 3 * i);
      await page.waitForTimeout(16);
    }
    await page.mouse.up();
  }),
  scroll_rows: await drive(async () => {
    await page.keyboard.press('f');
    for (let i = 0; i < 40; i++) {
      await page.keyboard.press('PageDown');
      await page.waitForTimeout(16);
    }
  }),
  expanded: await drive(async () => {
    await page.keyboard.press('Shift+E');
    await wheel(-60, 40);
    await wheel(60, 40);
  }),
};
await page.keyboard.press('f');
const keys = await page.evaluate(async () => {
  const input = document.querySelector('[data-filter]');
  const times = [];
  for (const text of ['c', 'co', 'com', 'comp', 'compl', 'compl r', 'reward:<0.2', '12', '1', '']) {
    const began = performance.now();
    input.value = text;
    input.dispatchEvent(new Event('input', { bubbles: true }));
    await new Promise((r) => requestAnimationFrame(() => setTimeout(r)));
    times.push(performance.now() - began);
  }
  return times;
});
await page.waitForTimeout(800);
await cdp.send('HeapProfiler.collectGarbage');
const usage = await cdp.send('Runtime.getHeapUsage');
mkdirSync('artifacts', { recursive: true });
await page.screenshot({ path: 'artifacts/bench.png' });
console.log(
  JSON.stringify({
    items,
    first_paint_ms: paint,
    opened_ms: opened.map(Math.round),
    stages,
    frames: quantiles(Object.values(parts).flat()),
    by_move: Object.fromEntries(Object.entries(parts).map(([k, v]) => [k, quantiles(v)])),
    keystroke_ms: quantiles(keys),
    heap_mb: Math.round((usage.usedSize + (usage.backingStorageSize ?? 0)) / 1e6),
  }),
);
await browser.close();
