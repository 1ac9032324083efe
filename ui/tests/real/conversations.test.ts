// Conversations in a real browser against the real binary and its demo run, under the server's own content-security policy.
// Screenshots go to artifacts/. Run by `make test-page`.
import { mkdirSync } from 'node:fs';
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { launch } from '../page/browser.mjs';
import { send, serve, type Server } from './server';

const WAIT = { timeout: 40_000 };
let server: Server;
let browser: Browser;
let page: Page;
let errors: string[];

/** A conversation made to break the page, sent as any agent framework would. */
const HOSTILE = [
  { role: 'user', content: '<img src=x onerror="window.hacked=1"> [click](javascript:window.hacked=2) ![i](javascript:window.hacked=3)' },
  {
    role: 'assistant',
    content:
      '# Title\n\n<script>window.hacked=4</script>\n\n```html\n<svg onload="window.hacked=5"></svg>\n```\n\n**bold** and $\\frac{a}{b}$ and $\\href{javascript:window.hacked=6}{x}$',
    tool_calls: [{ id: 'c1', function: { name: 'bash<img src=x onerror=window.hacked=7>', arguments: '{"command": "half' } }],
  },
  {
    role: 'tool',
    tool_call_id: 'c1',
    content: [
      { type: 'image_url', image_url: { url: 'data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+' } },
      { type: 'hologram', beam: 3 },
    ],
  },
];

async function get(
  path: string,
): Promise<{ total: number; conversations: { id: string; reward: number | null; run_id: string; step: number; group_id: string }[] }> {
  return (await (await fetch(server.url + path)).json()) as never;
}

beforeAll(async () => {
  mkdirSync('artifacts', { recursive: true });
  [server, browser] = await Promise.all([serve('demo', ['--steps', '4', '--samples', '32']), launch()]);
  const now = Date.now();
  await send(server, 'hostile', [
    { id: 187, trace: 170, name: 'chat', start: now, end: now + 1, attrs: { 'gen_ai.input.messages': JSON.stringify(HOSTILE) } },
  ]);
  const said = (answer: string): Record<string, unknown> => ({
    'gen_ai.input.messages': JSON.stringify([{ role: 'user', content: 'What is 6 times 7?' }]),
    'gen_ai.output.messages': JSON.stringify([{ role: 'assistant', content: answer }]),
    'rl.step': 3,
    'rl.sample.id': 's7',
  });
  await send(server, 'retried', [
    { id: 1, trace: 171, name: 'chat', start: now, end: now + 1, attrs: { ...said('It is 43.'), 'rl.attempt': 0 } },
    { id: 2, trace: 171, name: 'chat', start: now + 5, end: now + 6, attrs: { ...said('It is 42.'), 'rl.attempt': 1 } },
  ]);
  for (let i = 0; i < 600 && (await get('/api/v1/conversations?limit=0&run=retried')).total < 2; i++) await new Promise((r) => setTimeout(r, 100));
  // The index follows what is written.
  for (let i = 0; i < 600 && (await get('/api/v1/conversations?limit=0&run=hostile')).total < 1; i++) await new Promise((r) => setTimeout(r, 100));
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
  page.on('dialog', (d) => {
    errors.push(`dialog: ${d.message()}`);
    void d.dismiss();
  });
});
afterEach(async () => {
  const found = errors;
  const hacked = await page.evaluate(() => (globalThis as { hacked?: unknown }).hacked);
  await page.context().close();
  expect(found).toEqual([]);
  expect(hacked).toBeUndefined();
});
const open = (hash: string): Promise<unknown> => page.goto(`${server.url}/${hash}`);
const hash = (): Promise<string> => page.evaluate(() => location.hash);
const items = () => page.locator('.item');

async function runId(): Promise<string> {
  return (await get('/api/v1/conversations?limit=1&search=step:%3E%3D0&sort=step&messages=false')).conversations[0].run_id;
}

it('finds the worst sample of a step, the tool error that spoiled it, and the best sample of its group', async () => {
  const run = await runId();
  await open(`#/run/${encodeURIComponent(run)}/conversations`);
  await items().first().waitFor();
  // Search as you type, then sort.
  await page.keyboard.press('/');
  await page.keyboard.type('role:tool error* step:0..3');
  await expect.poll(hash, WAIT).toContain('q=role:tool');
  await page.getByLabel('Sort').selectOption('reward');
  await expect.poll(() => page.locator('mark').count(), WAIT).toBeGreaterThan(0);
  await page.screenshot({ path: 'artifacts/conversations-search-dark.png' });
  const worst = await get(
    `/api/v1/conversations?run=${encodeURIComponent(run)}&search=${encodeURIComponent('role:tool error* step:0..3')}&sort=reward&limit=1&messages=false`,
  );
  await expect.poll(() => page.locator('[role=status].total').innerText(), WAIT).toContain(String(worst.total));
  await items().first().click();
  await page.locator('article.broken').first().waitFor();
  await expect.poll(hash, WAIT).toContain('open=');
  await page.screenshot({ path: 'artifacts/conversations-reader-dark.png' });
  // Typed slowly, half a search may have been sent and refused.
  errors = errors.filter((e) => !e.includes('400'));
  await page.getByRole('link', { name: 'Group', exact: true }).click();
  await page.getByRole('heading', { name: /^Group / }).waitFor();
  const rewards = await page.locator('thead .head b').allInnerTexts();
  const numbers = rewards.filter((r) => r !== '–').map(Number);
  expect(numbers).toEqual([...numbers].sort((a, b) => b - a));
  expect(rewards.length).toBeGreaterThan(1);
  await page.screenshot({ path: 'artifacts/conversations-group-dark.png' });
  await page.evaluate(() => (document.documentElement.dataset.theme = 'light'));
  await page.screenshot({ path: 'artifacts/conversations-group-light.png' });
});

it('facets narrow the list, the back button widens it', async () => {
  const run = await runId();
  await open(`#/run/${encodeURIComponent(run)}/conversations?q=step:0..3`);
  await items().first().waitFor();
  const before = await page.locator('[role=status].total').innerText();
  const facet = page.getByLabel('Facets').getByRole('button').filter({ hasText: 'bash' });
  await facet.click();
  await expect.poll(hash, WAIT).toContain('tool:bash');
  await expect.poll(() => page.locator('[role=status].total').innerText(), WAIT).not.toBe(before);
  const count = (await get(`/api/v1/conversations?run=${encodeURIComponent(run)}&search=${encodeURIComponent('step:0..3 tool:bash')}&limit=0`)).total;
  await expect.poll(() => page.locator('[role=status].total').innerText(), WAIT).toContain(String(count));
  await page.goBack();
  await expect.poll(() => page.locator('[role=status].total').innerText(), WAIT).toBe(before);
});

it('is read with the keyboard, message by message, with its timing', async () => {
  const run = await runId();
  const agent = (await get(`/api/v1/conversations?run=${encodeURIComponent(run)}&search=step:0..3&sort=-tool_calls&limit=1&messages=false`))
    .conversations[0];
  await open(`#/run/${encodeURIComponent(run)}/conversations?q=step:0..3&sort=-tool_calls`);
  await items().first().waitFor();
  await page.keyboard.press('j');
  await page.locator('article').first().waitFor();
  await page.keyboard.press('j');
  await page.keyboard.press('j');
  await expect.poll(() => page.locator('article.current').getAttribute('data-message'), WAIT).toBe('1');
  await expect.poll(hash, WAIT).toContain('m=1');
  expect(await page.locator('.strip').count()).toBeGreaterThan(1);
  await page.keyboard.press('J');
  await expect.poll(hash, WAIT).not.toContain(encodeURIComponent(agent.id));
  await page.keyboard.press('K');
  await page.keyboard.press('Enter');
  await expect.poll(hash, WAIT).toContain('#/conversation/');
  await page.locator('article').first().waitFor();
  await page.screenshot({ path: 'artifacts/conversation-dark.png' });
  await page.evaluate(() => (document.documentElement.dataset.theme = 'light'));
  await page.screenshot({ path: 'artifacts/conversation-light.png' });
  // From a message to the bar in the timeline, and back to the message.
  const strip = page.locator('.strip').nth(1);
  const message = await strip.evaluate((e) => e.closest('article')!.getAttribute('data-message'));
  await strip.click();
  await expect.poll(hash, WAIT).toContain('/timeline');
  const back = page.getByRole('link', { name: 'Conversation →', exact: true });
  await back.waitFor({ timeout: 30_000 });
  await back.click();
  await expect.poll(() => page.locator('article.current').getAttribute('data-message'), WAIT).toBe(message);
});

it('shows the attempts of one sample side by side', async () => {
  const tried = (await get('/api/v1/conversations?run=retried&sort=time&messages=false')).conversations;
  await open(`#/conversation/${encodeURIComponent(tried[1].id)}`);
  await page.getByRole('link', { name: '2 attempts' }).click();
  await page.getByRole('heading', { name: 'Sample s7' }).waitFor(WAIT);
  const heads = await page.locator('thead .head a').allInnerTexts();
  expect(heads).toEqual(['attempt 0', 'attempt 1']);
  await page.getByText('It is 43.').first().waitFor(WAIT);
  await page.getByText('1 message in common').waitFor(WAIT);
  await page.screenshot({ path: 'artifacts/conversation-attempts.png' });
});

it('opens a message of twenty megabytes, folded', async () => {
  // As the Python package sends it: a log record in protobuf.
  const number = (n: number): number[] => (n < 128 ? [n] : [(n % 128) + 128, ...number(Math.floor(n / 128))]);
  const field = (n: number, ...parts: (Uint8Array | string)[]): Buffer => {
    const value = Buffer.concat(parts.map((x) => (typeof x === 'string' ? Buffer.from(x) : x)));
    return Buffer.concat([Buffer.from([...number(n * 8 + 2), ...number(value.length)]), value]);
  };
  const text = (n: number, key: string, value: string): Buffer => field(n, field(1, key), field(2, field(1, value)));
  const time = Buffer.alloc(9, 9);
  time.writeBigUInt64LE(BigInt(Date.now()) * 1_000_000n, 1);
  const messages = JSON.stringify([
    { role: 'user', content: 'Tell me everything.' },
    { role: 'assistant', content: 'word '.repeat(4 << 20) },
  ]);
  const record = field(2, time, field(5, field(1, messages)), text(6, 'rollscope.id', 'long-one'), field(12, 'rollscope.conversation'));
  const body = field(1, field(1, text(1, 'rl.run.id', 'long')), field(2, record));
  const sent = await fetch(`${server.otlp}/v1/logs`, {
    method: 'POST',
    headers: { 'content-type': 'application/x-protobuf' },
    body: new Uint8Array(body),
  });
  expect(sent.status).toBe(200);
  await open('#/conversation/long-one');
  await page.getByText('Tell me everything.').waitFor(WAIT);
  await page.getByText('20,971,5').first().waitFor(WAIT);
  expect((await page.locator('.messages').innerText()).length).toBeLessThan(100_000);
  await page.screenshot({ path: 'artifacts/conversation-long.png' });
});

it('a link to a message opens there', async () => {
  const id = (await get('/api/v1/conversations?sort=-messages&limit=1&messages=false&search=step:2')).conversations[0].id;
  await open(`#/conversation/${encodeURIComponent(id)}?m=3`);
  await expect.poll(() => page.locator('article.current').getAttribute('data-message'), WAIT).toBe('3');
});

it('shows what a hostile model wrote, harmlessly', async () => {
  await open('#/conversations?q=id:hostile*');
  await items().first().click();
  await page.locator('article').nth(2).waitFor();
  const text = await page.locator('.side').innerText();
  expect(text).toContain('<img src=x onerror="window.hacked=1">');
  expect(text).toContain('<script>window.hacked=4</script>');
  expect(text).toContain('not JSON');
  expect(text).toContain('hologram');
  expect(text).toContain('not a supported image');
  expect(await page.locator('math mfrac').count()).toBe(1);
  expect(await page.locator('.side a[href^="javascript"]').count()).toBe(0);
  await page.waitForTimeout(300);
});

it('a late answer to an older question never overwrites a newer one', async () => {
  await open('#/conversations');
  await items().first().waitFor();
  let slow = true;
  await page.route('**/api/v1/conversations?*', async (route) => {
    if (slow && route.request().url().includes('search=slow')) {
      slow = false;
      await new Promise((r) => setTimeout(r, 1500));
    }
    await route.continue().catch(() => undefined);
  });
  const box = page.getByLabel('Search conversations');
  await box.fill('slow ');
  await page.waitForTimeout(250);
  await box.fill('step:0..3 tool:bash ');
  const total = (await get(`/api/v1/conversations?limit=0&search=${encodeURIComponent('step:0..3 tool:bash')}`)).total;
  const shown = (): Promise<string> => page.locator('[role=status].total').innerText();
  await expect.poll(shown, WAIT).toBe(`${total} conversations`);
  await page.waitForTimeout(1800);
  expect(await shown()).toBe(`${total} conversations`);
});

it('a mistake in the search is reported, and the search is not repeated when data arrives', async () => {
  let asked = 0;
  page.on('request', (r) => (asked += Number(r.url().includes('search=stpe'))));
  await open('#/conversations?q=stpe:3');
  await page.getByRole('alert').getByText('unknown field `stpe`').waitFor();
  expect(await page.getByRole('alert').getByRole('button', { name: 'Retry' }).count()).toBe(0);
  const news = page.evaluate(
    () =>
      new Promise<void>((done) => {
        const live = new EventSource('/api/v1/live');
        let n = 0;
        live.onmessage = () => ++n > 1 && (live.close(), done());
      }),
  );
  await send(server, 'news', [{ id: 1, name: 'work', start: Date.now() - 1000, end: Date.now() }]);
  await news;
  await page.waitForTimeout(2500);
  expect(asked).toBe(1);
  // The browser logs the refusal of its own.
  errors = errors.filter((e) => !e.includes('400'));
});
