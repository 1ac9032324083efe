// Alarms in a real browser against the real binary: rules that always hold, one that never does, and a run with a slow step.
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { launch } from '../page/browser.mjs';
import { ROOT, send, serve, type Server } from './server';

const RULES = `
groups:
  - name: demo
    rules:
      - alert: QueueLong
        expr: vector(12)
        labels: { severity: page, engine: 10.0.0.7 }
        annotations:
          summary: 'An engine has {{ $value }} requests waiting.'
      - alert: SoonSlow
        expr: vector(1)
        for: 1h
      - alert: Never
        expr: vector(1) > 2
      - record: job:queue:sum
        expr: vector(12)
`;

let server: Server;
let browser: Browser;
let page: Page;
let errors: string[];

beforeAll(async () => {
  const folder = mkdtempSync(join(tmpdir(), 'rollscope-alarms-'));
  writeFileSync(join(folder, 'rules.yml'), RULES);
  writeFileSync(join(folder, 'rollscope.toml'), '[server.alarms]\ninterval_s = 0.5\n[[server.alarms.command]]\ncommand = ["true"]\n');
  [server, browser] = await Promise.all([
    serve('serve', ['--rules', join(folder, 'rules.yml'), '--config', join(folder, 'rollscope.toml')]),
    launch(),
  ]);
  const seconds = [...Array.from({ length: 12 }, (_, i) => 20 + (i % 3)), 70];
  let start = Date.now() - 1000 * seconds.reduce((a, b) => a + b, 0);
  const spans = seconds.map((took, step) => {
    const span = { id: step + 1, trace: step + 1, name: 'rollscope.step', start, end: start + took * 1000, attrs: { 'rl.step': step } };
    start = span.end;
    return span;
  });
  await send(server, 'slow-run', spans);
});
afterAll(async () => {
  await browser?.close();
  await server?.stop();
});
beforeEach(async () => {
  const context = await browser.newContext({ viewport: { width: 1440, height: 1000 }, colorScheme: 'dark' });
  page = await context.newPage();
  page.setDefaultTimeout(40_000);
  errors = [];
  page.on('pageerror', (e) => errors.push(e.message));
  // The browser logs a refusal, which one test is about.
  page.on('console', (m) => m.type() === 'error' && !m.text().includes('400') && errors.push(m.text()));
});
afterEach(async () => {
  await page.context().close();
  expect(errors).toEqual([]);
});

const shot = (name: string): Promise<Buffer> => page.screenshot({ path: join(ROOT, 'ui/artifacts', `alarms-${name}.png`), fullPage: true });

it('shows what fires, what is pending, when, and who is told', async () => {
  await page.goto(`${server.url}/#/alarms`);
  await page.getByText('2 alarms firing').waitFor();
  await page.getByText('An engine has 12 requests waiting.').waitFor();
  await page.getByText(/Step 12 of slow-run took 1m10s/).waitFor();
  await expect.poll(() => page.locator('nav .badge').textContent(), { timeout: 30_000 }).toBe('2');
  expect(await page.locator('.card.pending b').allTextContents()).toEqual(['SoonSlow']);
  const rows = page.getByRole('table', { name: 'When alarms were on' });
  await rows.getByText('QueueLong').waitFor();
  expect(await rows.locator('.bar').count()).toBe(3);
  await page.getByRole('cell', { name: 'command', exact: true }).first().waitFor();
  await shot('dark');
  await page.getByRole('button', { name: /Theme/ }).click();
  await page.getByRole('button', { name: /Theme/ }).click();
  await shot('light');
  // A rule leads to its alarms, and the address says which.
  await page.getByRole('link', { name: 'QueueLong', exact: true }).click();
  await page.getByText('1 alarm firing').waitFor();
  expect(page.url()).toContain('#/alarms?alarm=QueueLong');
});

it('silences an alarm by mouse and ends the silence by keyboard', async () => {
  await page.goto(`${server.url}/#/alarms?alarm=QueueLong`);
  await page.getByRole('button', { name: 'Silence…' }).click();
  expect(await page.getByLabel('Alarms to silence').inputValue()).toBe('{alertname="QueueLong",engine="10.0.0.7",severity="page"}');
  await page.getByLabel('Comment').fill('known');
  await page.getByRole('button', { name: 'Silence', exact: true }).click();
  await page.locator('.card.silenced').waitFor();
  await page.getByRole('cell', { name: 'known' }).waitFor();
  await page.getByRole('button', { name: 'End' }).focus();
  await page.keyboard.press('Enter');
  await page.locator('.card.silenced').waitFor({ state: 'detached' });
});

it('says what is wrong with a silence', async () => {
  await page.goto(`${server.url}/#/alarms`);
  await page.getByLabel('Alarms to silence').fill('sum(x)');
  await page.keyboard.press('Enter');
  await page.getByRole('alert').getByText('selector').waitFor();
});

it('shows the alarms of a run on its page', async () => {
  await page.goto(`${server.url}/#/run/slow-run`);
  await page.getByRole('heading', { name: 'Alarms' }).waitFor();
  await page.getByText(/Step 12 of slow-run took 1m10s/).waitFor();
  await shot('run');
  await page.keyboard.press('g');
  await page.keyboard.press('a');
  await page.getByRole('heading', { name: 'Alarms', exact: true }).waitFor();
});
