// Screenshots of every view in both themes into artifacts/, for looking at:
//
//     node scripts/shots.mjs URL [part of a name] [WIDTHxHEIGHT] [dark|light]
//
// URL is a server with the demo run.
import { mkdirSync } from 'node:fs';
import { launch } from '../tests/page/browser.mjs';

const [url, only = '', size = '1280x800', scheme] = process.argv.slice(2);
const [width, height] = size.split('x').map(Number);
mkdirSync('artifacts', { recursive: true });
const browser = await launch();
for (const theme of scheme ? [scheme] : ['dark', 'light']) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: theme });
  const page = await context.newPage();
  page.on('console', (m) => ['error', 'warning'].includes(m.type()) && console.log(theme, m.type(), m.text()));
  page.on('pageerror', (e) => console.log(theme, 'pageerror', e.stack));
  const shot = async (name, hash, act) => {
    if (!name.includes(only)) return;
    await page.goto('about:blank');
    await page.goto(`${url}/${hash}`);
    await page.waitForTimeout(1800);
    if (act) await act();
    await page.waitForTimeout(500);
    await page.screenshot({ path: `artifacts/${name}-${theme}-${width}.png` });
  };
  const T = '#/run/demo/timeline';
  await shot('runs', '#/');
  await shot('run', '#/run/demo', () => page.mouse.move(500, 330));
  await shot('step', '#/run/demo/step/3');
  await shot('compare', '#/compare?runs=demo,demo-2');
  await shot('timeline', `${T}?step=3`, () => page.mouse.move(700, 520));
  await shot('tl-expanded', `${T}?step=3&x=1&q=group:3`);
  await shot('tl-pd', `${T}?step=3&x=1&q=name:sglang_pd_prefill`);
  await shot('tl-details', `${T}?step=3&x=1&sort=-duration&rows=sample`, async () => {
    await page.keyboard.press('Enter');
    await page.keyboard.press('j');
    await page.waitForTimeout(500);
  });
  await shot('tl-live', T);
  await shot('tl-worker', `${T}?step=3&rows=worker`);
  await shot('tl-links', `${T}?step=3&links=1&x=1&q=sample:0`);
  await shot('tl-menu', `${T}?step=3`, () => page.getByRole('button', { name: 'View' }).click());
  await shot('tl-range', `${T}?step=3`, async () => {
    await page.keyboard.down('Shift');
    await page.mouse.move(500, 400);
    await page.mouse.down();
    await page.mouse.move(800, 420, { steps: 4 });
    await page.mouse.up();
    await page.keyboard.up('Shift');
  });
  await shot('sql', '#/sql', async () => {
    await page.click('button.primary');
    await page.waitForTimeout(1500);
  });
  await shot('sql-plot', '#/sql?plot=1', async () => {
    await page.click('button.primary');
    await page.waitForTimeout(1500);
  });
  await shot('palette', '#/', () => page.keyboard.press('Control+k'));
  await shot('keys', '#/', () => page.keyboard.press('?'));
  await shot('error', '#/run/nothing');
  await context.close();
}
await browser.close();
