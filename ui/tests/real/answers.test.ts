// Answers and traces in the page of the real binary: why the planted step was slow, what changed, one trace as a tree.
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { launch } from '../page/browser.mjs';
import { ROOT, run, serve, type Server } from './server';

const WAIT = { timeout: 60_000 };
let server: Server;
let browser: Browser;
let page: Page;
let errors: string[];

beforeAll(async () => {
  mkdirSync('artifacts', { recursive: true });
  const prepare = (dir: string): void => {
    run('demo', '--no-serve', '--steps', '26', '--data', dir);
    run('import', join(ROOT, 'fixtures/sglang/sglang_otel.jsonl'), '--run', 'engines', '--data', dir);
  };
  [server, browser] = await Promise.all([serve('serve', [], prepare), launch()]);
});
afterAll(async () => {
  await browser?.close();
  await server?.stop();
});
beforeEach(async () => {
  page = await (await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: 'light' })).newPage();
  page.setDefaultTimeout(60_000);
  errors = [];
  page.on('pageerror', (e) => errors.push(String(e.stack)));
  page.on('console', (m) => m.type() === 'error' && errors.push(m.text()));
});
afterEach(async () => {
  await page.context().close();
  expect(errors).toEqual([]);
});
const open = async (hash: string): Promise<void> => {
  await page.goto('about:blank');
  await page.goto(`${server.url}/${hash}`);
};
const shot = (name: string): Promise<unknown> => page.screenshot({ path: `artifacts/real-${name}.png` });

it('a step opens with its sentence, and each clause leads to its evidence', async () => {
  await open('#/run/demo/step/23');
  const sentence = page.locator('p.sentence');
  await expect.poll(() => sentence.innerText(), WAIT).toMatch(/^Step 23 took .* longer than usual: 4 of 64 samples waited .* for the browser tool/);
  await shot('answers-step');
  await sentence.getByRole('button').first().click();
  const finding = page.locator('#finding-0');
  expect(await finding.getAttribute('class')).toContain('chosen');
  await page.getByRole('img', { name: /^Critical path: browser/ }).waitFor();
  await page.getByRole('heading', { name: 'The tail' }).waitFor();
  await page.getByRole('heading', { name: 'Idle' }).waitFor();
  // The evidence is a span of the timeline, where the path is drawn under the rows.
  await finding
    .getByRole('link', { name: /^sample / })
    .first()
    .click();
  await page.getByLabel('Span details').getByText('browser').first().waitFor();
  await expect.poll(() => page.locator('svg[aria-label="Critical path"] rect').count(), WAIT).toBeGreaterThan(5);
  await shot('answers-timeline');
});

it('a run lists what stands out; two steps are compared part by part', async () => {
  await open('#/run/demo/findings');
  await page.getByText(/1 of 26 steps stands out/).waitFor();
  expect(await page.locator('.findings li').count()).toBe(1);
  await shot('answers-findings');
  await open('#/run/demo/diff?step=22&with=23');
  await page.getByText('browser (tool)').first().waitFor();
  await page.getByRole('heading', { name: /part by part/ }).waitFor();
  await shot('answers-diff');
});

it('traces are found, and one is a tree with its threads, its path and its statistics', async () => {
  await open('#/traces?run=engines');
  await page.getByText('6 found').waitFor();
  await page.getByLabel('at least').fill('1h');
  await page.keyboard.press('Enter');
  await page.getByText('No traces match').waitFor();
  await page.getByRole('button', { name: 'clear' }).click();
  await page.getByRole('textbox', { name: 'run', exact: true }).fill('engines');
  await page.keyboard.press('Enter');
  await page.getByText('6 found').waitFor();
  await shot('traces');
  await page.locator('tbody a').first().click();
  await page.getByRole('heading', { name: /^Req / }).waitFor();
  await page
    .getByLabel('Critical path')
    .getByText(/decode|prefill/)
    .first()
    .waitFor();
  await page.getByText('32 spans').waitFor();
  await shot('trace');
  await page.getByLabel('Find in this trace').fill('prefill_forward');
  await page.getByText('2 found').waitFor();
  await page.keyboard.press('Enter');
  await expect.poll(() => page.evaluate(() => location.hash)).toContain('span=');
  await page.getByRole('tab', { name: 'Threads' }).click();
  await shot('trace-threads');
  await page.getByRole('tab', { name: 'Statistics' }).click();
  await page
    .getByRole('row', { name: /decode_forward/ })
    .first()
    .waitFor();
});
