// Where trainer and engine disagree, in a real browser against the real binary: one engine of four is off from the third step on.
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { launch } from '../page/browser.mjs';
import { serve, type Server } from './server';

let server: Server;
let browser: Browser;
let page: Page;
let errors: string[];

const SAMPLES = 24;
const COUNT = 120;
const STEPS = 5;
const base64 = (values: Float32Array): string => Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString('base64');
/** Random numbers that are the same each time. */
function dice(): () => number {
  let state = 7;
  return () => (state = (state * 48271) % 2147483647) / 2147483647;
}

beforeAll(async () => {
  [server, browser] = await Promise.all([serve('serve', []), launch()]);
  const next = dice();
  for (let step = 0; step < STEPS; step++) {
    const logRecords = Array.from({ length: SAMPLES }, (_, sample) => {
      const engine = sample % 4;
      const off = engine === 2 && step >= 2 ? 0.9 : 0.01;
      const logprobs = Float32Array.from({ length: COUNT }, () => -2 * next());
      const trainer = logprobs.map((v) => v + off * (2 * next() - 1));
      const parts = JSON.stringify([
        { start: 0, turn: 0, engine: `10.0.0.${engine}`, weight_version: String(200 + step) },
        { start: 60, turn: 1, engine: `10.0.0.${engine}`, weight_version: String(200 + step), ...(sample === 3 ? { differs_at: 55 } : {}) },
      ]);
      const values = [
        { key: 'logprobs', value: { bytesValue: base64(logprobs) } },
        { key: 'trainer_logprobs', value: { bytesValue: base64(trainer) } },
        { key: 'parts', value: { stringValue: parts } },
        { key: 'texts', value: { stringValue: JSON.stringify(Array.from({ length: COUNT }, (_, i) => ` w${i}`)) } },
      ];
      const attributes = [
        { key: 'rl.run.id', value: { stringValue: 'grpo' } },
        { key: 'rl.sample.id', value: { stringValue: `s${sample}` } },
        { key: 'rl.step', value: { intValue: String(step) } },
      ];
      return { eventName: 'rollscope.tokens', timeUnixNano: `${Date.now()}000000`, body: { kvlistValue: { values } }, attributes };
    });
    const body = JSON.stringify({ resourceLogs: [{ scopeLogs: [{ logRecords }] }] });
    const answer = await fetch(`${server.otlp}/v1/logs`, { method: 'POST', headers: { 'content-type': 'application/json' }, body });
    expect(answer.status, await answer.clone().text()).toBe(200);
  }
});
afterAll(async () => {
  await browser?.close();
  await server?.stop();
});
beforeEach(async () => {
  const context = await browser.newContext({ viewport: { width: 1440, height: 1100 }, colorScheme: 'dark' });
  page = await context.newPage();
  page.setDefaultTimeout(40_000);
  errors = [];
  page.on('pageerror', (e) => errors.push(String(e.stack)));
  page.on('console', (m) => m.type() === 'error' && !m.text().includes('404') && errors.push(m.text()));
});
afterEach(async () => {
  const found = errors;
  await page.context().close();
  expect(found).toEqual([]);
});

it('names the engine that is off, and leads to its worst token', async () => {
  await page.goto(`${server.url}/#/run/grpo/mismatch`);
  const summary = page.locator('.summary');
  await summary.waitFor();
  expect(await summary.innerText()).toContain('engine 10.0.0.2 is');
  const first = page.locator('.groups li').first();
  expect(await first.innerText()).toContain('10.0.0.2');
  await page.locator('.uplot').waitFor();
  await page.screenshot({ path: 'artifacts/mismatch-dark.png', fullPage: true });
  await page.emulateMedia({ colorScheme: 'light' });
  await page.reload();
  await page.locator('.uplot').waitFor();
  await page.screenshot({ path: 'artifacts/mismatch-light.png', fullPage: true });
  await first.getByRole('link').click();
  await page.waitForSelector('[data-token].selected');
  expect(page.url()).toMatch(/run\/grpo\/tokens\/\d\/s(2|6|10|14|18|22)\?/);
  expect(page.url()).toContain('by=difference');
  // And back from the tokens.
  await page.getByRole('link', { name: 'where trainer and engine disagree' }).click();
  await page.locator('.groups').waitFor();
});

it('goes from step to step, and says where nothing stands out', async () => {
  await page.goto(`${server.url}/#/run/grpo/mismatch?step=1`);
  await page.getByText('nothing stands out').waitFor();
  await page.keyboard.press('j');
  await expect.poll(() => page.url()).toContain('step=2');
  await page.getByText('it missed a weight sync').waitFor();
  await page.keyboard.press('j');
  await page.getByText('nats off since version 202 (step 2)').waitFor();
  await page.keyboard.press('k');
  await expect.poll(() => page.url()).toContain('step=2');
  await page.getByText('it missed a weight sync').waitFor();
  await page.keyboard.press('k');
  await page.getByText('nothing stands out').waitFor();
  await page.getByRole('button', { name: /^All \d+ groups$/ }).click();
  expect(await page.locator('.groups li').count()).toBeGreaterThan(8);
});

it('marks tokens that were tokenised again', async () => {
  await page.goto(`${server.url}/#/run/grpo/tokens/1/s3`);
  await page.waitForSelector('[data-token="59"]');
  expect(await page.locator('.again').count()).toBe(5);
});

it('says what is missing where there is nothing to compare', async () => {
  await page.goto(`${server.url}/#/run/grpo/mismatch?step=77`);
  await page.getByText('step 77 of run `grpo` has no tokens').waitFor();
});
