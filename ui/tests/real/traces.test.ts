// Finding traces and reading one, in a real browser against the real binary. Screenshots go to artifacts/. Run by
// `make test-page`.
import { mkdirSync } from 'node:fs';
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { launch } from '../page/browser.mjs';
import { send, serve, type Server, type Span } from './server';

const WAIT = { timeout: 40_000 };
/** Spans of the large trace; they come in several requests, so that the server holds them in several batches. */
const MANY = 20_000;
const PART = 4_000;
const LARGE = (4096).toString(16).padStart(32, '0');
let server: Server;
let browser: Browser;
let page: Page;
let errors: string[];

beforeAll(async () => {
  mkdirSync('artifacts', { recursive: true });
  [server, browser] = await Promise.all([serve('serve'), launch()]);
  const now = Date.now() - 60_000;
  const names = ['prefill', 'decode', 'tool call', 'reward'];
  const span = (n: number): Span => ({
    id: n + 1,
    trace: 4096,
    name: n === 0 ? 'rollout' : names[n % 4],
    start: now + (n === 0 ? 0 : n / 2),
    end: now + (n === 0 ? MANY : n / 2 + 5 + (n % 97)),
    // Ten below the root, a thousand below each of these and their children.
    ...(n === 0 ? {} : { parent: n <= 10 ? 1 : 2 + (n % 10) }),
    ...(n === 12_345 ? { error: 'out of memory' } : {}),
    attrs: { n, 'rl.step': 4 },
  });
  for (let from = 0; from < MANY; from += PART)
    await send(
      server,
      'large',
      Array.from({ length: PART }, (_, i) => span(from + i)),
    );
  for (let k = 0; k < 30; k++)
    await send(server, 'small', [
      { id: 1, trace: 100 + k, name: 'request', start: now + k * 100, end: now + k * 100 + 10 * (k + 1), attrs: { rid: `r${k}` } },
    ]);
});
afterAll(async () => {
  await browser?.close();
  await server?.stop();
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
  await page.context().close();
  expect(errors).toEqual([]);
});
const open = (hash: string): Promise<unknown> => page.goto(`${server.url}/${hash}`);
const hash = (): Promise<string> => page.evaluate(() => decodeURIComponent(location.hash));
/** How many different colours a canvas shows: an empty one has one. */
const colours = (label: string): Promise<number> =>
  page.evaluate((label) => {
    const c = document.querySelector<HTMLCanvasElement>(`canvas[aria-label^="${label}"]`)!;
    const data = c.getContext('2d')!.getImageData(0, 0, c.width, c.height).data;
    const seen = new Set<number>();
    for (let i = 0; i < data.length; i += 4) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
    return seen.size;
  }, label);

it('finds traces by name, duration and service, and opens one', async () => {
  await open('#/traces');
  await page.getByText('31 found').waitFor(WAIT);
  await page.locator('form').getByLabel('at least').fill('250ms');
  await page.keyboard.press('Enter');
  await page.getByText('7 found').waitFor(WAIT);
  await page.getByRole('button', { name: 'Duration' }).click();
  await expect.poll(() => page.locator('tbody tr td:nth-child(3)').first().innerText(), WAIT).toBe('20.0 s');
  await page.screenshot({ path: 'artifacts/traces-found.png' });
  await page.locator('tbody tr a').first().click();
  await page.getByRole('heading', { name: 'rollout' }).waitFor(WAIT);
  expect(await hash()).toContain(LARGE);
});

it('opens a trace of many spans that came in several batches, folds, finds and scrolls it', async () => {
  await open(`#/trace/${LARGE}`);
  await page.getByText('20,000 spans').waitFor(WAIT);
  await page.getByLabel('Waterfall of 20000 spans').waitFor(WAIT);
  await expect.poll(() => colours('Waterfall'), WAIT).toBeGreaterThan(8);
  await page.getByLabel('Critical path', { exact: true }).waitFor(WAIT);
  // Each name appears once, though every batch has its own list of names.
  await page.locator('select').selectOption('name');
  await expect
    .poll(async () => (await page.locator('.legend:not(.path) span').allInnerTexts()).sort(), WAIT)
    .toEqual(['decode', 'prefill', 'reward', 'rollout', 'tool call']);
  await page.getByTitle('Unfold all').click();
  const before = await page.getByLabel('Waterfall').screenshot();
  await page.getByLabel('Waterfall').hover();
  await page.mouse.wheel(0, 4000);
  await expect.poll(async () => (await page.getByLabel('Waterfall').screenshot()).equals(before), WAIT).toBe(false);
  await page.getByLabel('Find in this trace').fill('reward');
  await page.getByText('5,000 found').waitFor(WAIT);
  await page.keyboard.press('Enter');
  await page.getByLabel('Span details').getByText('reward').first().waitFor(WAIT);
  await expect.poll(hash, WAIT).toMatch(/span=[0-9a-f]{16}/);
  await page.screenshot({ path: 'artifacts/trace-large.png' });
});

it('counts a trace by name, and a link opens one span of it', async () => {
  await open(`#/trace/${LARGE}?tab=stats`);
  await expect.poll(async () => (await page.locator('tbody tr').allInnerTexts()).length, WAIT).toBe(5);
  const texts = (await page.locator('tbody tr').allInnerTexts()).join('\n');
  for (const [name, n] of [
    ['prefill', '4,999'],
    ['decode', '5,000'],
    ['rollout', '1'],
  ])
    expect(texts).toMatch(new RegExp(`${name}[\\s\\S]*?${n}`));
  await open(`#/trace/${LARGE}?span=${(12_346).toString(16).padStart(16, '0')}`);
  await page.getByLabel('Span details').getByText('out of memory').waitFor(WAIT);
  await page.getByRole('button', { name: '1 error', exact: true }).waitFor(WAIT);
});
