// Tokens in a real browser against the real binary: of a dump that slime wrote, and as programs send them.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { launch } from '../page/browser.mjs';
import { ROOT, run, serve, type Server } from './server';

let server: Server;
let browser: Browser;
let page: Page;
let errors: string[];
const model = mkdtempSync(join(tmpdir(), 'rollscope-model-'));

const base64 = (values: Float32Array | Int32Array | Uint8Array): string =>
  Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString('base64');

const bytes = (key: string, values: Float32Array | Int32Array | Uint8Array): object => ({ key, value: { bytesValue: base64(values) } });

/** Sends the tokens of a sample as any program may, in OTLP's JSON. */
async function sendTokens(sample: string, texts: string[], parts: object[]): Promise<void> {
  const count = texts.length;
  const logprobs = Float32Array.from({ length: count }, (_, i) => -(i % 7) / 4);
  const trainer = logprobs.map((v, i) => (i === 3 ? v - 1 : v));
  await send('sent', sample, [
    bytes('logprobs', logprobs),
    bytes('trainer_logprobs', trainer),
    bytes(
      'mask',
      Uint8Array.from({ length: count }, (_, i) => Number(i % 10 !== 9)),
    ),
    { key: 'texts', value: { stringValue: JSON.stringify(texts) } },
    { key: 'parts', value: { stringValue: JSON.stringify(parts) } },
  ]);
}

async function send(run: string, sample: string, values: object[]): Promise<void> {
  const attributes = [
    { key: 'rl.run.id', value: { stringValue: run } },
    { key: 'rl.sample.id', value: { stringValue: sample } },
    { key: 'rl.step', value: { intValue: '2' } },
  ];
  const record = { eventName: 'rollscope.tokens', timeUnixNano: `${Date.now()}000000`, body: { kvlistValue: { values } }, attributes };
  const body = JSON.stringify({ resourceLogs: [{ scopeLogs: [{ logRecords: [record] }] }] });
  const answer = await fetch(`${server.otlp}/v1/logs`, { method: 'POST', headers: { 'content-type': 'application/json' }, body });
  expect(answer.status, await answer.clone().text()).toBe(200);
  expect(await answer.text()).not.toContain('rejected');
}

beforeAll(async () => {
  const dump = join(ROOT, 'fixtures/slime/small.pt');
  // As in a byte-level vocabulary: the emoji is two tokens.
  const vocab = { Ġhi: 0, ðŁ: 1, ĺĢ: 2, Ċ: 3 };
  writeFileSync(join(model, 'tokenizer.json'), JSON.stringify({ model: { type: 'BPE', vocab }, decoder: { type: 'ByteLevel' } }));
  const flags = ['--tokenizer', `spelt=${model}`];
  [server, browser] = await Promise.all([serve('serve', flags, (dir) => void run('import', '--data', dir, '--run', 'dump', dump)), launch()]);
  await sendTokens(
    'few',
    ['<img src=x onerror="window.hacked=1">', ' two\n', ' three', ' four', ' five'],
    [
      { start: 0, turn: 0, engine: 'a' },
      { start: 3, turn: 1, engine: 'b', weight_version: '8', differs_at: 2 },
    ],
  );
  await sendTokens(
    'many',
    Array.from({ length: 100_000 }, (_, i) => ` word${i}`),
    [],
  );
});
afterAll(async () => {
  await browser?.close();
  await server?.stop();
  rmSync(model, { recursive: true });
});
beforeEach(async () => {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: 'dark' });
  page = await context.newPage();
  page.setDefaultTimeout(40_000);
  errors = [];
  page.on('pageerror', (e) => errors.push(String(e.stack)));
  page.on('console', (m) => m.type() === 'error' && errors.push(m.text()));
});
afterEach(async () => {
  const found = errors;
  const hacked = await page.evaluate(() => (globalThis as { hacked?: unknown }).hacked);
  await page.context().close();
  expect(found).toEqual([]);
  expect(hacked).toBeUndefined();
});

const token = (n: number): string => `[data-token="${n}"]`;

it('leads from a conversation of a dump to its tokens', async () => {
  await page.goto(`${server.url}/#/run/dump/conversations`);
  await page.locator('.item').first().click();
  await page.getByRole('link', { name: 'Tokens' }).click();
  await page.waitForSelector(token(0));
  expect(page.url()).toContain('/run/dump/tokens/0/');
  // Without texts, the ids.
  expect(await page.locator(token(0)).textContent()).toMatch(/^\d+$/);
  expect(await page.locator('[role="radio"]').allTextContents()).toEqual(expect.arrayContaining(['Log-prob', 'Mask']));
});

it('shows the text of ids, with characters that several tokens share', async () => {
  const [logprobs, trainer] = [Float32Array.of(-0.5, -0.25, -1, -0.5, -2), Float32Array.of(-0.5, -0.25, -1, -0.5, -8)];
  await send('spelt', 'a', [bytes('ids', Int32Array.of(0, 1, 2, 3, 1)), bytes('logprobs', logprobs), bytes('trainer_logprobs', trainer)]);
  await page.goto(`${server.url}/#/run/spelt/tokens/2/a`);
  await page.waitForSelector(token(4));
  const texts = await Promise.all([0, 1, 2, 3, 4].map((n) => page.locator(token(n)).textContent()));
  expect(texts).toEqual([' hi', '😀', '·', '↵\n', '\\xF0\\x9F']);
  await page.locator(token(2)).hover();
  expect(await page.locator('aside').innerText()).toContain('part of the character before');
  for (const scheme of ['dark', 'light'] as const) {
    await page.emulateMedia({ colorScheme: scheme });
    await page.screenshot({ path: `artifacts/tokens-text-${scheme}.png` });
  }
  await page.goto(`${server.url}/#/run/spelt/mismatch?step=2`);
  await page.getByText('"\\xF0\\x9F"').waitFor();
  await page.screenshot({ path: 'artifacts/mismatch-text.png' });
});

it('colours tokens by one value after the other, and shows all of them', async () => {
  await page.goto(`${server.url}/#/run/sent/tokens/2/few`);
  await page.waitForSelector(token(4));
  const colour = (n: number): Promise<string> => page.locator(token(n)).evaluate((e) => e.style.backgroundColor);
  expect(await colour(0)).toBe('');
  expect(await colour(4)).not.toBe('');
  // Log-prob, trainer, difference.
  await page.keyboard.press(']');
  await page.keyboard.press(']');
  await expect.poll(() => page.url()).toContain('by=difference');
  await expect.poll(() => colour(4)).toBe('');
  expect(await colour(3)).not.toBe('');
  await page.locator(token(3)).hover();
  const values = await page.locator('aside').innerText();
  for (const value of ['" four"', '-0.75', '-1.75', 'trained', '8', 'b']) expect(values).toContain(value);
  expect(await page.locator('.changed').innerText()).toContain('1 turn');
  // From part to part, and the address follows.
  await page.keyboard.press('j');
  await expect.poll(() => page.url()).toContain('t=3');
  await page.screenshot({ path: 'artifacts/tokens.png' });
});

it('draws only what is near, of a hundred thousand tokens', async () => {
  await page.goto(`${server.url}/#/run/sent/tokens/2/many`);
  await page.waitForSelector(token(0));
  await page.locator('.overview').click({ position: { x: 700, y: 10 } });
  await page.waitForSelector('.selected');
  await expect.poll(() => page.locator('.selected').evaluate((e) => e.getBoundingClientRect().top)).toBeLessThan(900);
  await expect.poll(() => page.locator('[data-token]').count()).toBeLessThan(6000);
});

it('says so where nothing is known', async () => {
  await page.goto(`${server.url}/#/run/sent/tokens/2/nobody`);
  await page.getByText('Nothing is known of the tokens of sample nobody').waitFor();
});
