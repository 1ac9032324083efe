// The built page in a real browser: against the mock server, under the server's content-security policy, and as one file
// from disk. Run `npm run build` first. Screenshots go to artifacts/.
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { makeStep, staticPage, timelineStream } from '../../mock/generate.mjs';
import { start, type Mock } from '../../mock/server.mjs';
import { launch } from './browser.mjs';

let mock: Mock;
let browser: Browser;
let page: Page;
let errors: string[];
// What a test provokes itself, such as an answer of 404; it may come late.
let expected: RegExp;

beforeAll(async () => {
  if (!existsSync('dist/index.html') || !existsSync('dist-static/viewer.html')) throw new Error('the page is not built: run npm run build');
  mkdirSync('artifacts', { recursive: true });
  [mock, browser] = await Promise.all([start(), launch()]);
});
afterAll(async () => {
  await browser?.close();
  await mock?.stop();
});
async function fresh(): Promise<void> {
  const context = await browser.newContext({ viewport: { width: 1360, height: 820 }, colorScheme: 'dark' });
  await context.grantPermissions(['clipboard-read', 'clipboard-write']);
  page = await context.newPage();
  errors = [];
  expected = /^$/;
  page.on('pageerror', (e) => errors.push(String(e.stack)));
  page.on('console', (m) => m.type() === 'error' && errors.push(m.text()));
  page.on('dialog', (d) => {
    errors.push(`dialog: ${d.message()}`);
    void d.dismiss();
  });
}
beforeEach(fresh);
afterEach(async () => {
  const hacked = await page.evaluate(() => (globalThis as { hacked?: unknown }).hacked);
  await page.context().close();
  expect(errors.filter((e) => !expected.test(e))).toEqual([]);
  expect(hacked).toBeUndefined();
});
const open = (hash: string): Promise<unknown> => page.goto(`${mock.url}/${hash}`);
const frames = (): Promise<number> => page.evaluate(() => (globalThis as { rsFrames?: number[] }).rsFrames?.length ?? 0);
const footer = (): Promise<string> => page.locator('footer').innerText();
const drawn = async (): Promise<void> => {
  await expect.poll(frames, { timeout: 20_000 }).toBeGreaterThan(0);
};
const hash = (): Promise<string> => page.evaluate(() => location.hash);

it('lists runs, filters, sorts, and deletes after confirmation', async () => {
  await open('#/runs');
  await page.getByRole('link', { name: 'grpo-search-7b' }).waitFor();
  // A name with markup is shown as text.
  await page.getByText('math ablation <b>3</b>').waitFor();
  await page.keyboard.press('/');
  await page.keyboard.type('math');
  await expect.poll(() => page.locator('tbody tr').count()).toBe(1);
  await expect.poll(hash).toContain('q=math');
  await page.locator('[data-filter]').fill('');
  await page.getByRole('button', { name: 'Spans' }).click();
  await expect.poll(() => page.locator('tbody tr').first().innerText()).toContain('math');
  await page.getByRole('button', { name: 'Delete run sglang-smoke' }).click();
  const confirm = page.getByRole('button', { name: 'Delete', exact: true });
  expect(await confirm.isDisabled()).toBe(true);
  await page.getByLabel('Run id').fill('sglang-smoke');
  await confirm.click();
  await expect.poll(() => page.locator('tbody tr').count()).toBe(3);
});

it('an empty store says how to send the first data', async () => {
  const none = await start({ empty: true });
  await page.goto(`${none.url}/`);
  await page.getByText('--otlp-traces-endpoint').waitFor();
  for (const name of ['slime', 'SGLang', 'ROLL', 'OpenTelemetry']) await page.getByRole('heading', { name, exact: true }).waitFor();
  await page.getByRole('button', { name: 'Copy to the clipboard' }).first().click();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toContain('rollscope view rollout_0.pt');
  await page.screenshot({ path: 'artifacts/test-empty.png' });
  // The page goes on asking until it is left.
  await page.goto('about:blank');
  await none.stop();
});

it('goes from the run to the timeline of a step, and back', async () => {
  await open('#/run/grpo-search-7b');
  await page.getByRole('link', { name: 'Timeline of step 5', exact: true }).click();
  await drawn();
  expect(await footer()).toContain('101 rows');
  await page.goBack();
  await page.getByText('Time by phase').waitFor();
});

it('a run without steps opens at its last minutes', async () => {
  await open('#/run/engine-only');
  await page.getByRole('link', { name: 'timeline of its last minutes' }).click();
  await drawn();
  expect(await footer()).toContain('17 rows');
  await expect.poll(hash).toContain('from_ns=');
});

it('zooms, pans and keeps the window in the address', async () => {
  await open('#/run/grpo-search-7b/timeline?step=5');
  await drawn();
  await page.mouse.move(700, 450);
  await page.mouse.wheel(0, -600);
  await expect.poll(hash).toMatch(/w=/);
  const zoomed = await hash();
  await page.mouse.down();
  await page.mouse.move(500, 450, { steps: 5 });
  await page.mouse.up();
  await expect.poll(hash).not.toBe(zoomed);
  const panned = /w=([^&]*)/.exec(await hash())![1];
  await page.keyboard.press('f');
  await expect.poll(hash).not.toContain('w=');
  // The link reproduces the view.
  await page.goto('about:blank');
  await open(`#/run/grpo-search-7b/timeline?step=5&w=${panned}`);
  await drawn();
  await page.mouse.move(701, 450);
  expect(await hash()).toContain(panned);
});

it('a finer picture with fewer items takes the place of the one under the pointer', async () => {
  const [coarse, fine] = [80, 2].map((samples, k) => {
    const step = makeStep({ seed: 5, samples, perSample: 20 });
    return Buffer.from(timelineStream(step, 1_763_000_000_000_000_000n, { parts: [60_000, 0].slice(0, k + 1) }));
  });
  let go = (): void => undefined;
  const hovered = new Promise<void>((done) => (go = done));
  await page.route(/\/timeline\?/, async (route) => {
    const isFine = route.request().url().includes('focus_from_ns');
    if (isFine) await hovered;
    await route.fulfill({ contentType: 'application/vnd.apache.arrow.stream', body: isFine ? fine : coarse });
  });
  await open('#/run/grpo-search-7b/timeline?step=5');
  await drawn();
  await expect.poll(footer).toMatch(/updating/);
  const tip = page.locator('.tip');
  // Some item of the last rows, which the finer picture does not have.
  const { x, y, height } = (await page.getByRole('application').boundingBox())!;
  for (let left = 200; left < 700 && !(await tip.isVisible()); left += 7) await page.mouse.move(x + left, y + height - 60);
  await tip.waitFor();
  const before = await footer();
  go();
  await expect.poll(footer).not.toMatch(/updating/);
  expect(await footer()).not.toBe(before);
  await expect.poll(() => tip.count()).toBe(0);
});

it('filters and sorts rows', async () => {
  await open('#/run/grpo-search-7b/timeline?step=5');
  await drawn();
  await page.keyboard.press('/');
  await page.keyboard.type('is:error');
  await expect.poll(footer).toMatch(/^[1-9]\d? of 101 rows/);
  await page.locator('[data-filter]').fill('no such thing');
  await page.getByText('No rows match').waitFor();
  await page.getByRole('button', { name: 'Clear filter' }).click();
  await expect.poll(footer).toContain('101 rows');
  await page.getByLabel('sort').selectOption('reward');
  await page.getByRole('button', { name: /Ascending/ }).click();
  await expect.poll(hash).toContain('sort=-reward');
  await page.getByLabel('rows', { exact: false }).first().selectOption('worker');
  await expect.poll(footer).toContain('14 rows');
  await page.getByLabel('rows', { exact: false }).first().selectOption('tool');
  await expect.poll(footer).toContain('4 rows');
});

it('shows a span with its attributes as text, its relations and its JSON', async () => {
  await open('#/run/grpo-search-7b/timeline?step=3&x=1&q=sample:0');
  await drawn();
  await page.keyboard.press('Enter');
  const panel = page.getByLabel('Span details');
  // The name of this span is markup.
  await panel.getByRole('heading', { name: '<img src=x onerror=alert(1)>' }).waitFor();
  await panel.getByText('At the start').waitFor();
  await panel.getByText('At the end').waitFor();
  await panel.getByText('<img src=x onerror="window.hacked=1">').waitFor();
  expect(await panel.locator('img').count()).toBe(0);
  await expect.poll(hash).toMatch(/span=/);
  const root = await hash();
  await panel
    .getByRole('button', { name: /^child turn/ })
    .first()
    .click();
  await panel.getByRole('heading', { name: 'turn' }).waitFor();
  await expect.poll(hash).not.toBe(root);
  await expect.poll(hash).toMatch(/span=[0-9a-f]{32}\.[0-9a-f]{16}/);
  const link = await hash();
  await panel.getByRole('tab', { name: 'Raw JSON' }).click();
  await panel.getByText('"completion_tokens": 212').waitFor();
  await page.keyboard.press('p');
  await panel.getByRole('heading', { name: '<img' }).waitFor();
  await page.screenshot({ path: 'artifacts/test-details.png' });
  await page.keyboard.press('Escape');
  await expect.poll(() => panel.count()).toBe(0);
  await page.goto('about:blank');
  await open(link);
  await panel.getByRole('heading', { name: 'turn' }).waitFor();
});

it('measures a range', async () => {
  await open('#/run/grpo-search-7b/timeline?step=5');
  await drawn();
  await page.keyboard.down('Shift');
  await page.mouse.move(500, 450);
  await page.mouse.down();
  await page.mouse.move(700, 460, { steps: 4 });
  await page.mouse.up();
  await page.keyboard.up('Shift');
  const stats = page.getByLabel('Statistics of the measured range');
  await stats.getByText('decode_loop').waitFor();
  await stats.getByRole('button', { name: 'Zoom' }).click();
  await expect.poll(hash).toMatch(/w=/);
});

it('a running step grows by itself', async () => {
  await open('#/run/grpo-search-7b/timeline');
  await drawn();
  const before = await footer();
  expect(before).toContain('running');
  mock.advance('grpo-search-7b', 900);
  await expect.poll(footer, { timeout: 15_000 }).not.toBe(before);
  expect(await footer()).toMatch(/running/);
});

it('news of a run makes the page of a step read it again only if the step changed', async () => {
  expected = /404/;
  const asked: string[] = [];
  page.on('request', (r) => asked.push(new URL(r.url()).pathname.split('/').at(-1)!));
  const samplesAsked = (): number => asked.filter((a) => a === 'samples').length;
  const stepsAsked = (): number => asked.filter((a) => a === 'steps').length;
  for (const [step, isRunning] of [
    [5, false],
    [14, true],
  ] as const) {
    await page.goto('about:blank');
    asked.length = 0;
    await open(`#/run/grpo-search-7b/step/${step}`);
    await page.getByRole('heading', { name: `Step ${step}` }).waitFor();
    await page.getByText('Slowest samples').waitFor();
    expect(samplesAsked()).toBe(1);
    const before = stepsAsked();
    mock.advance('grpo-search-7b', 100);
    await expect.poll(stepsAsked).toBeGreaterThan(before);
    await page.waitForTimeout(300);
    expect(samplesAsked()).toBe(isRunning ? 2 : 1);
  }
});

it('a late answer does not overwrite a newer one', async () => {
  mock.delay(1500);
  await open('#/run/math%2Fablation-3/timeline?step=0');
  await page.waitForTimeout(300);
  await page.evaluate(() => (location.hash = '#/run/math%2Fablation-3/timeline?step=1'));
  await drawn();
  const shown = await footer();
  await page.waitForTimeout(1800);
  mock.delay(0);
  expect((await footer()).replace(/loaded in.*/, '')).toBe(shown.replace(/loaded in.*/, ''));
  expect(await page.getByLabel('Step', { exact: true }).inputValue()).toBe('1');
});

it('SQL: runs, shows markup as text, shows the server’s words, keeps history', async () => {
  expected = /400/;
  await open('#/sql');
  await page.getByLabel('SQL', { exact: true }).fill('SELECT name FROM spans');
  await page.keyboard.press('Control+Enter');
  await page.getByText('<script>alert(1)</script>').first().waitFor();
  await page.getByText('2,000 rows').waitFor();
  expect(await page.locator('tr.data').count()).toBeLessThan(80);
  await page.getByLabel('Result').evaluate((e) => (e.scrollTop = e.scrollHeight));
  await page.locator('tr.data td', { hasText: /^2000$/ }).waitFor();
  const download = page.waitForEvent('download');
  await page.getByRole('button', { name: 'Save as CSV' }).click();
  const csv = readFileSync((await (await download).path())!, 'utf8');
  expect(csv.split('\n')[3]).toMatch(/^'=cmd\(\),/);
  await page.getByLabel('SQL', { exact: true }).fill('SELECT * FROM nowhere');
  await page.keyboard.press('Control+Enter');
  await page.getByText("table 'nowhere' not found").waitFor();
  await page.getByRole('button', { name: 'SELECT name FROM spans' }).waitFor();
});

it('palette, keys, themes, and errors in the server’s words', async () => {
  expected = /404/;
  await open('#/runs');
  await page.getByRole('link', { name: 'grpo-search-7b' }).waitFor();
  await page.keyboard.press('?');
  await page.getByText('zoom in and out at the cursor').waitFor();
  await page.keyboard.press('Escape');
  await page.keyboard.press('Control+k');
  await page.keyboard.type('theme light');
  await page.keyboard.press('Enter');
  await expect.poll(() => page.evaluate(() => document.documentElement.dataset.theme)).toBe('light');
  await page.keyboard.press('Control+k');
  await page.keyboard.type('open grpo');
  await page.keyboard.press('Enter');
  await page.getByText('Time by phase').waitFor();
  await page.screenshot({ path: 'artifacts/test-light.png' });
  await open('#/run/nothing');
  await page.getByText('There is no run nothing.').waitFor();
});

it('lists the nodes of a lake, and shows no such view for a folder', async () => {
  await open('#/runs');
  await page.getByRole('link', { name: 'grpo-search-7b' }).waitFor();
  expect(await page.getByRole('link', { name: 'Nodes' }).count()).toBe(0);
  const load = (cores: number, rows: number): object => ({ cores, memory_bytes: 3e8, rows_per_s: rows / 4, log_rows: rows });
  const node = (name: string, role: string, more: object): object => {
    const usual = { host: 'gpu-<b>1</b>', version: '0.1.0', is_self: false, is_there: true, silent_s: 3.2, worker: null, load: load(0.4, 0) };
    return { name, role, ...usual, ...more };
  };
  const nodes = [
    node('ingest-1', 'ingest', { load: load(1.6, 84_000) }),
    node('ingest-2', 'ingest', { is_there: false, silent_s: 47 }),
    node('query', 'query', { is_self: true, load: null }),
    node('worker-7201', 'worker', { worker: 'http://10.0.0.3:7201', load: load(3.9, 0) }),
  ];
  let status = 200;
  const answer = { nodes, log_rows: 84_000, queries_on_workers: 12, queries_again: 1 };
  await page.route('**/api/v1/nodes', (route) =>
    status === 200
      ? route.fulfill({ json: answer })
      : route.fulfill({ status, json: { title: 'x', status, detail: 'the object store does not answer' } }),
  );
  await page.reload();
  await page.getByRole('link', { name: 'Nodes' }).waitFor();
  await page.keyboard.press('g');
  await page.keyboard.press('o');
  const rows = page.locator('tbody tr');
  await expect.poll(() => rows.count()).toBe(4);
  await page.screenshot({ path: 'artifacts/test-nodes.png' });
  await page.getByText('3 nodes here').waitFor();
  await page.getByText('1 silent').waitFor();
  await page.getByText('84,000 rows only in logs').waitFor();
  expect(await rows.nth(1).innerText()).toContain('silent');
  expect(await rows.nth(2).innerText()).toContain('(this one)');
  expect(await rows.nth(3).innerText()).toContain('http://10.0.0.3:7201');
  expect(await rows.nth(0).innerText()).toContain('gpu-<b>1</b>');
  await page.screenshot({ path: 'artifacts/test-nodes.png' });
  await page.emulateMedia({ colorScheme: 'light' });
  await page.screenshot({ path: 'artifacts/test-nodes-light.png' });
  // What was seen stays when the next look fails.
  status = 503;
  expected = /503/;
  await page.waitForTimeout(5500);
  expect(await rows.count()).toBe(4);
});

it('works as one file from disk', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'rollscope-'));
  try {
    const steps = [makeStep({ seed: 21, samples: 400, perSample: 30 }), makeStep({ seed: 22, samples: 8, perSample: 20 })];
    expect(steps[0].spans.n).toBeGreaterThan(8192);
    const html = staticPage(readFileSync('dist-static/viewer.html', 'utf8'), steps);
    writeFileSync(join(dir, 'view.html'), html);
    await page.goto(`file://${join(dir, 'view.html')}`);
    await page.getByRole('link', { name: 'rollout_0.pt' }).click();
    await page.getByRole('link', { name: 'Timeline of step 0', exact: true }).click();
    await drawn();
    expect(await footer()).toContain('405 rows');
    expect(await page.getByRole('link', { name: 'SQL' }).count()).toBe(0);
    // A sample near the end: its attributes are in a later block.
    await page.locator('[data-filter]').fill('sample:390');
    await expect.poll(footer).toContain('1 of 405 rows');
    await page.keyboard.press('Escape');
    await page.keyboard.press('Enter');
    const panel = page.getByLabel('Span details');
    await panel.getByText('</script><script>window.hacked=1</script>').waitFor();
    await panel.getByText('rollout_sample').first().waitFor();
    await page.screenshot({ path: 'artifacts/test-file.png' });
  } finally {
    rmSync(dir, { recursive: true });
  }
});
