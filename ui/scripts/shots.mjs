// Screenshots of every view in both themes, from the mock server, into artifacts/. For looking at.
import { mkdirSync } from 'node:fs';
import { launch } from '../tests/page/browser.mjs';
import { start } from '../mock/server.mjs';

mkdirSync('artifacts', { recursive: true });
const mock = await start();
const none = await start({ empty: true });
const browser = await launch();
const only = process.argv[2];
for (const scheme of ['dark', 'light']) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: scheme });
  const page = await context.newPage();
  page.on('console', (m) => ['error', 'warning'].includes(m.type()) && console.log(scheme, m.type(), m.text()));
  page.on('pageerror', (e) => console.log(scheme, 'pageerror', e.stack));
  const shot = async (name, hash, act, base = mock.url) => {
    if (only && !name.includes(only)) return;
    await page.goto(`about:blank`);
    await page.goto(`${base}/${hash}`);
    await page.waitForTimeout(600);
    if (act) await act();
    await page.waitForTimeout(250);
    await page.screenshot({ path: `artifacts/${name}-${scheme}.png` });
  };
  await shot('empty', '#/runs', null, none.url);
  await shot('runs', '#/runs');
  await shot('run', '#/run/grpo-search-7b', () => page.mouse.move(500, 380));
  await shot('timeline', '#/run/grpo-search-7b/timeline?step=5', () => page.mouse.move(700, 420));
  await shot('timeline-512', '#/run/math%2Fablation-3/timeline?step=0');
  await shot('timeline-details', '#/run/grpo-search-7b/timeline?step=5&x=1&w=1,3.2', async () => {
    await page.mouse.click(800, 420);
    await page.waitForTimeout(300);
  });
  await shot('timeline-live', '#/run/grpo-search-7b/timeline');
  await shot('timeline-worker', '#/run/grpo-search-7b/timeline?step=2&rows=worker&x=1');
  await shot('timeline-tool', '#/run/grpo-search-7b/timeline?step=2&rows=tool');
  await shot('timeline-small', '#/run/sglang-smoke/timeline?color=name');
  await shot('timeline-range', '#/run/grpo-search-7b/timeline?step=5&sort=-duration&group=0', async () => {
    await page.keyboard.down('Shift');
    await page.mouse.move(500, 400);
    await page.mouse.down();
    await page.mouse.move(800, 420, { steps: 4 });
    await page.mouse.up();
    await page.keyboard.up('Shift');
  });
  await shot('sql', '#/sql', () => page.click('button.primary'));
  await shot('palette', '#/runs', () => page.keyboard.press('Control+k'));
  await shot('keys', '#/runs', () => page.keyboard.press('?'));
  await shot('error', '#/run/nothing');
  await context.close();
}
await browser.close();
await mock.stop();
await none.stop();
