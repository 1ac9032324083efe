// Conversations in a real browser against the real binary and its demo run, under the server's own content-security policy.
// Needs target/debug/rollscope (or ROLLSCOPE_BIN). Screenshots go to artifacts/.
import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { launch } from './browser.mjs';

const BINARY = process.env.ROLLSCOPE_BIN ?? '../target/debug/rollscope';
const data = mkdtempSync(join(tmpdir(), 'rollscope-talk-'));
let server: ChildProcess;
let url = '';
let http = '';
let browser: Browser;
let page: Page;
let errors: string[];

/** A conversation made to break the page, sent as any agent framework would. */
const HOSTILE = [
  { role: 'user', content: '<img src=x onerror="window.hacked=1"> [click](javascript:window.hacked=2) ![i](javascript:window.hacked=3)' },
  { role: 'assistant', content: '# Title\n\n<script>window.hacked=4</script>\n\n```html\n<svg onload="window.hacked=5"></svg>\n```\n\n**bold** and $\\frac{a}{b}$ and $\\href{javascript:window.hacked=6}{x}$', tool_calls: [{ id: 'c1', function: { name: 'bash<img src=x onerror=window.hacked=7>', arguments: '{"command": "half' } }] },
  { role: 'tool', tool_call_id: 'c1', content: [{ type: 'image_url', image_url: { url: 'data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+' } }, { type: 'hologram', beam: 3 }] },
];

async function get(path: string): Promise<{ total: number; conversations: { id: string; reward: number | null; run_id: string; step: number; group_id: string }[] }> {
  return (await (await fetch(url + path)).json()) as never;
}

beforeAll(async () => {
  if (!existsSync(BINARY)) throw new Error(`${BINARY} is not there: run cargo build`);
  mkdirSync('artifacts', { recursive: true });
  const made = spawnSync(BINARY, ['demo', '--no-serve', '--data', data, '--steps', '4', '--samples', '32'], { encoding: 'utf8' });
  if (made.status !== 0) throw new Error(made.stderr);
  server = spawn(BINARY, ['serve', '--data', data, '--listen', '127.0.0.1:0', '--otlp-grpc', '', '--otlp-http', '127.0.0.1:0'], { stdio: ['ignore', 'pipe', 'ignore'] });
  for await (const line of createInterface({ input: server.stdout! })) {
    if (line.startsWith('rollscope is at')) url = line.split(' ').at(-1)!;
    if (line.startsWith('OTLP HTTP')) http = line.split(' ').at(-1)!;
    if (line.startsWith('data')) break;
  }
  const now = BigInt(Date.now()) * 1_000_000n;
  const attribute = (key: string, value: unknown): object => ({ key, value: { stringValue: typeof value === 'string' ? value : JSON.stringify(value) } });
  const body = { resourceSpans: [{ resource: { attributes: [attribute('rl.run.id', 'hostile')] }, scopeSpans: [{ spans: [{ traceId: '0'.repeat(30) + 'aa', spanId: '0'.repeat(14) + 'bb', name: 'chat', startTimeUnixNano: String(now), endTimeUnixNano: String(now + 1_000_000n), attributes: [attribute('gen_ai.input.messages', HOSTILE)] }] }] }] };
  const sent = await fetch(`${http}/v1/traces`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });
  if (!sent.ok) throw new Error(await sent.text());
  // The index follows what is written.
  for (let i = 0; i < 600 && (await get('/api/v1/conversations?limit=0')).total < 129; i++) await new Promise((r) => setTimeout(r, 100));
  browser = await launch();
}, 180_000);
afterAll(async () => {
  await browser?.close();
  server?.kill('SIGTERM');
  await new Promise((done) => (server && server.exitCode === null ? server.once('exit', done) : done(null)));
  rmSync(data, { recursive: true, force: true });
});
beforeEach(async () => {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: 'dark' });
  page = await context.newPage();
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
const open = (hash: string): Promise<unknown> => page.goto(`${url}/${hash}`);
const hash = (): Promise<string> => page.evaluate(() => location.hash);
const items = () => page.locator('.item');

async function runId(): Promise<string> {
  return (await get('/api/v1/conversations?limit=1&search=media:%3E%3D0&sort=step&messages=false')).conversations[0].run_id;
}

it('finds the worst sample of a step, the tool error that spoiled it, and its best sibling', async () => {
  const run = await runId();
  await open(`#/run/${encodeURIComponent(run)}/conversations`);
  await items().first().waitFor();
  // Search as you type, then sort.
  await page.keyboard.press('/');
  await page.keyboard.type('role:tool error* step:0..3');
  await expect.poll(hash).toContain('q=role:tool');
  await page.getByLabel('Sort').selectOption('reward');
  await expect.poll(() => page.locator('mark').count()).toBeGreaterThan(0);
  await page.screenshot({ path: 'artifacts/conversations-search-dark.png' });
  const worst = await get(`/api/v1/conversations?run=${encodeURIComponent(run)}&search=${encodeURIComponent('role:tool error* step:0..3')}&sort=reward&limit=1&messages=false`);
  await expect.poll(() => page.locator('[role=status].total').innerText()).toContain(String(worst.total));
  await items().first().click();
  await page.locator('article.broken').first().waitFor();
  await expect.poll(hash).toContain('open=');
  await page.screenshot({ path: 'artifacts/conversations-reader-dark.png' });
  await page.getByRole('link', { name: 'Siblings' }).click();
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
  await open(`#/run/${encodeURIComponent(run)}/conversations`);
  await items().first().waitFor();
  const before = await page.locator('[role=status].total').innerText();
  const facet = page.getByLabel('Facets').getByRole('button').filter({ hasText: 'bash' });
  await facet.click();
  await expect.poll(hash).toContain('tool:bash');
  await expect.poll(() => page.locator('[role=status].total').innerText()).not.toBe(before);
  const count = (await get(`/api/v1/conversations?run=${encodeURIComponent(run)}&search=tool:bash&limit=0`)).total;
  await expect.poll(() => page.locator('[role=status].total').innerText()).toContain(String(count));
  await page.goBack();
  await expect.poll(() => page.locator('[role=status].total').innerText()).toBe(before);
});

it('is read with the keyboard, message by message, with its timing', async () => {
  const run = await runId();
  const agent = (await get(`/api/v1/conversations?run=${encodeURIComponent(run)}&sort=-tool_calls&limit=1&messages=false`)).conversations[0];
  await open(`#/run/${encodeURIComponent(run)}/conversations?sort=-tool_calls`);
  await items().first().waitFor();
  await page.keyboard.press('j');
  await page.locator('article').first().waitFor();
  await page.keyboard.press('j');
  await page.keyboard.press('j');
  await expect.poll(() => page.locator('article.current').getAttribute('data-message')).toBe('1');
  await expect.poll(hash).toContain('m=1');
  expect(await page.locator('.strip').count()).toBeGreaterThan(1);
  await page.keyboard.press('J');
  await expect.poll(hash).not.toContain(encodeURIComponent(agent.id));
  await page.keyboard.press('K');
  await page.keyboard.press('Enter');
  await expect.poll(hash).toContain('#/conversation/');
  await page.locator('article').first().waitFor();
  await page.screenshot({ path: 'artifacts/conversation-dark.png' });
  await page.evaluate(() => (document.documentElement.dataset.theme = 'light'));
  await page.screenshot({ path: 'artifacts/conversation-light.png' });
  // From a message to the bar in the timeline, and back to the message.
  const strip = page.locator('.strip').nth(1);
  const message = await strip.evaluate((e) => e.closest('article')!.getAttribute('data-message'));
  await strip.click();
  await expect.poll(hash).toContain('/timeline');
  const back = page.getByRole('link', { name: 'Conversation', exact: true });
  await back.waitFor({ timeout: 30_000 });
  await back.click();
  await expect.poll(() => page.locator('article.current').getAttribute('data-message'), { timeout: 20_000 }).toBe(message);
});

it('a link to a message opens there', async () => {
  const id = (await get('/api/v1/conversations?sort=-messages&limit=1&messages=false&search=step:2')).conversations[0].id;
  await open(`#/conversation/${encodeURIComponent(id)}?m=3`);
  await expect.poll(() => page.locator('article.current').getAttribute('data-message')).toBe('3');
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
  expect(text).toContain('no image that can be shown');
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
  await box.fill('tool:bash ');
  await expect.poll(() => items().count()).toBeGreaterThan(0);
  const settled = await page.locator('[role=status].total').innerText();
  await page.waitForTimeout(1800);
  expect(await page.locator('[role=status].total').innerText()).toBe(settled);
});

it('a mistake in the search is told, not swallowed', async () => {
  await open('#/conversations?q=stpe:3');
  await page.getByRole('alert').getByText('there is no field `stpe`').waitFor();
  // The browser logs the refusal of its own.
  errors = errors.filter((e) => !e.includes('400'));
});
