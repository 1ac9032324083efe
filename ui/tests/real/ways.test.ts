// Ways through the page of the real binary: the navigation of a run stays with what belongs to it, a missing run and an
// address that nothing has are said and can be left, and `rollscope view` leads to what there is to see. Nothing is said on
// the console meanwhile. Screenshots go to artifacts/. Run by `make test-page`.
import { spawn } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { launch } from '../page/browser.mjs';
import { BINARY, ROOT, send, serve, type Server } from './server';

const WAIT = { timeout: 60_000 };
let server: Server;
let browser: Browser;
let page: Page;
let said: string[];
/** What a test provokes itself: the browser's own line about an answer of 404. */
let expected: RegExp;

beforeAll(async () => {
  mkdirSync('artifacts', { recursive: true });
  [server, browser] = await Promise.all([serve('demo', ['--steps', '3', '--samples', '16']), launch()]);
});
afterAll(async () => {
  await browser?.close();
  await server?.stop();
});
async function fresh(colorScheme: 'dark' | 'light' = 'dark'): Promise<void> {
  page = await (await browser.newContext({ viewport: { width: 1280, height: 800 }, colorScheme })).newPage();
  page.setDefaultTimeout(WAIT.timeout);
  said = [];
  expected = /^$/;
  page.on('pageerror', (e) => said.push(String(e.stack)));
  page.on('console', (m) => ['error', 'warning'].includes(m.type()) && said.push(m.text()));
}
beforeEach(() => fresh());
afterEach(async () => {
  await page.context().close();
  expect(said.filter((line) => !expected.test(line))).toEqual([]);
});
const open = async (hash: string): Promise<void> => {
  await page.goto('about:blank');
  await page.goto(`${server.url}/${hash}`);
};
const go = (hash: string): Promise<void> => page.evaluate((to) => void (location.hash = to), hash);
const hash = (): Promise<string> => page.evaluate(() => location.hash);
const shot = (name: string): Promise<unknown> => page.screenshot({ path: `artifacts/ways-${name}.png` });
const nav = () => page.getByRole('navigation', { name: 'Views' });
const OF_RUN = ['Run', 'Timeline', 'Findings', 'Metrics', 'Serving', 'Conversations'];
async function atHome(run: string): Promise<void> {
  for (const title of OF_RUN) await nav().getByRole('link', { name: title, exact: true }).waitFor();
  expect(await nav().getByRole('link', { name: 'Run', exact: true }).getAttribute('href')).toBe(`#/run/${run}`);
}
async function ask<T>(path: string): Promise<T> {
  return (await (await fetch(server.url + path)).json()) as T;
}

it('a conversation keeps the navigation of its run, by a link and by itself', async () => {
  let id = '';
  await expect
    .poll(
      async () => (id = (await ask<{ conversations: { id: string }[] }>('/api/v1/conversations?run=demo&limit=1')).conversations[0]?.id ?? ''),
      WAIT,
    )
    .not.toBe('');
  await open(`#/conversation/${encodeURIComponent(id)}`);
  await page.locator('[data-message="0"]').waitFor();
  await atHome('demo');
  await shot('conversation');
  await nav().getByRole('link', { name: 'Conversations', exact: true }).click();
  await expect.poll(hash, WAIT).toBe('#/run/demo/conversations');
  await go(`#/conversation/${encodeURIComponent(id)}`);
  await page.locator('[data-message="0"]').waitFor();
  await atHome('demo');
  // The keys of the run work there too, and away from the run its navigation goes.
  await page.keyboard.press('g');
  await page.keyboard.press('t');
  await expect.poll(hash, WAIT).toContain('#/run/demo/timeline');
  await nav().getByRole('link', { name: 'Runs', exact: true }).click();
  await page.getByRole('heading', { name: 'Runs' }).waitFor();
  expect(await nav().getByRole('link', { name: 'Timeline' }).count()).toBe(0);
});

it('a trace keeps the navigation of its run, also of another than we came from', async () => {
  const now = Date.now();
  await send(server, 'other run', [
    { id: 71, trace: 7100, name: 'request', start: now - 50, end: now },
    { id: 72, trace: 7100, parent: 71, name: 'inner', start: now - 40, end: now - 10 },
  ]);
  await open('#/run/demo');
  await atHome('demo');
  await go(`#/trace/${(7100).toString(16).padStart(32, '0')}`);
  await page.getByRole('heading', { name: 'request' }).waitFor();
  await expect.poll(() => nav().getByRole('link', { name: 'Run', exact: true }).getAttribute('href'), WAIT).toBe('#/run/other%20run');
  await atHome('other%20run');
  await shot('trace');
  await open(`#/trace/${(7100).toString(16).padStart(32, '0')}`);
  await atHome('other%20run');
  // One that is not there is said, and nothing is made up.
  expected = /404/;
  await open(`#/trace/${'9'.repeat(32)}`);
  await page.getByRole('alert').getByText('there is no trace').waitFor();
  expect(await nav().getByRole('link', { name: 'Timeline' }).count()).toBe(0);
});

it('a missing run can be left from every one of its views, and nothing is said on the console', async () => {
  expected = /404/;
  const views = [
    '',
    '/timeline',
    '/timeline?step=3',
    '/step/3',
    '/findings',
    '/metrics',
    '/serving',
    '/conversations',
    '/diff',
    '/group/1/2',
    '/attempts/1/2',
  ];
  for (const view of views) {
    // Before the answers are there, and after.
    for (const wait of [0, 400]) {
      await open(`#/run/nobody${view}`);
      await page.waitForTimeout(wait);
      // Something comes in, so that timers of the view are set.
      await send(server, 'noise', [{ id: 1, trace: 31, name: 'tick', start: Date.now(), end: Date.now() + 1 }]);
      for (const to of ['#/', '#/run/demo/timeline', '#/run/demo/conversations', '#/']) {
        await go(to);
        await page.waitForTimeout(60);
      }
      await page.getByRole('heading', { name: 'Runs' }).waitFor();
    }
  }
  // What the last views left behind has had its time.
  await page.waitForTimeout(2500);
  await open('#/run/nobody');
  await page
    .getByRole('alert')
    .getByText(/there is no run .?nobody/i)
    .waitFor();
  await shot('missing-run');
  // It appears when it sends something.
  await send(server, 'nobody', [{ id: 1, trace: 32, name: 'tick', start: Date.now(), end: Date.now() + 1, attrs: { 'rl.step': 0 } }]);
  await page.getByRole('heading', { name: 'nobody' }).waitFor();
});

it('an address that nothing has says so, and leads home', async () => {
  for (const [colors, address] of [
    ['dark', '#/run/demo/timelime?step=2'],
    ['light', '#/no/<b>such</b>/page'],
  ] as const) {
    await page.context().close();
    await fresh(colors);
    await open(address);
    const told = page.getByRole('alert');
    await told.getByRole('heading', { name: 'No such page' }).waitFor();
    await told.getByText(colors === 'dark' ? '#/run/demo/timelime' : '#/no/<b>such</b>/page', { exact: true }).waitFor();
    await shot(`nowhere-${colors}`);
    await told.getByRole('link', { name: 'All runs' }).click();
    await page.getByRole('heading', { name: 'Runs' }).waitFor();
    await page.goBack();
    await told.getByRole('heading', { name: 'No such page' }).waitFor();
    await go('#/run/demo');
    await atHome('demo');
  }
  await open('#/runs');
  await page.getByRole('heading', { name: 'Runs' }).waitFor();
});

it('what is in the log is on disk', async () => {
  // A server of its own: after two minutes rows leave the log.
  let data = '';
  const young = await serve('serve', [], (dir) => (data = dir));
  try {
    const now = Date.now();
    for (let k = 0; k < 5; k++)
      await send(
        young,
        'in the log',
        Array.from({ length: 400 }, (_, i) => ({
          id: k * 400 + i + 1,
          trace: 5000 + k,
          name: 'work',
          start: now + i,
          end: now + i + 1,
          attrs: { 'rl.step': k, note: `number ${i}` },
        })),
      );
    const log = readdirSync(join(data, 'wal')).reduce((sum, name) => sum + statSync(join(data, 'wal', name)).size, 0);
    const { runs } = (await (await fetch(`${young.url}/api/v1/runs`)).json()) as { runs: { run_id: string; bytes: number; log_bytes: number }[] };
    expect(runs.map((r) => r.run_id)).toEqual(['in the log']);
    expect(runs[0].log_bytes).toBe(runs[0].bytes);
    // The log has every message with its schema; the figure has the rows.
    expect(runs[0].bytes).toBeGreaterThan(log / 4);
    expect(runs[0].bytes).toBeLessThan(log * 1.5);
    await page.goto(`${young.url}/`);
    const row = page.locator('tbody tr', { hasText: 'in the log' });
    await row.getByTitle('All of it is in the log, not compressed yet').waitFor();
    expect(await row.innerText()).not.toMatch(/\b0 B\b/);
    await shot('on-disk');
    await page.goto('about:blank');
  } finally {
    await young.stop();
  }
});

it('a dump that is served opens at its timeline, as its file does', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'rollscope-view-'));
  copyFileSync(join(ROOT, 'fixtures/slime/small.pt'), join(dir, 'rollout_7.pt'));
  const child = spawn(BINARY, ['view', join(dir, 'rollout_7.pt'), '--run', 'my run'], { stdio: ['ignore', 'pipe', 'inherit'] });
  try {
    let text = '';
    const url = await new Promise<string>((done, fail) => {
      child.on('exit', (code) => fail(new Error(`rollscope view ended with ${code}: ${text}`)));
      child.stdout.on('data', (part: Buffer) => {
        text += String(part);
        const found = /rollscope is at (http:\S+)\n/.exec(text);
        if (found) done(found[1]);
      });
    });
    expect(url).toMatch(/#\/run\/my%20run\/timeline\?step=\d+$/);
    await page.goto(url);
    await expect.poll(() => page.evaluate(() => (globalThis as { rsFrames?: number[] }).rsFrames?.length ?? 0), WAIT).toBeGreaterThan(0);
    await expect.poll(() => page.locator('footer').innerText(), WAIT).toMatch(/^8 rows/);
    await shot('view');
    await page.goto('about:blank');
  } finally {
    child.removeAllListeners('exit');
    const ended = new Promise((done) => child.on('exit', done));
    child.kill('SIGINT');
    await ended;
    rmSync(dir, { recursive: true, force: true });
  }
});
