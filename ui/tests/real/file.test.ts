// A dump as one file that opens from disk, at sizes that people have: from 20,000 items on a worker lays the timeline out,
// and from file: a browser is choosier about workers than from a server. And what the page says of a worker that fails.
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { launch } from '../page/browser.mjs';
import { BINARY, run } from './server';

const WAIT = { timeout: 120_000 };
let browser: Browser;
let dir: string;
let page: Page;
let said: string[];

beforeAll(async () => {
  mkdirSync('artifacts', { recursive: true });
  dir = mkdtempSync(join(tmpdir(), 'rollscope-file-'));
  browser = await launch();
});
afterAll(async () => {
  await browser?.close();
  rmSync(dir, { recursive: true, force: true });
});
async function fresh(colorScheme: 'dark' | 'light'): Promise<void> {
  page = await (await browser.newContext({ viewport: { width: 1280, height: 800 }, colorScheme })).newPage();
  page.setDefaultTimeout(WAIT.timeout);
  said = [];
  page.on('pageerror', (e) => said.push(String(e.stack)));
  page.on('console', (m) => ['error', 'warning'].includes(m.type()) && said.push(m.text()));
}
beforeEach(() => fresh('dark'));
afterEach(async () => {
  await page.context().close();
  expect(said).toEqual([]);
});

/** The page of a dump of so many samples, made once. */
const made = new Map<number, string>();
function fileOf(samples: number): string {
  let file = made.get(samples);
  if (!file) {
    const dump = join(dir, `rollout_${samples}.pt`);
    const { status, stderr } = spawnSync(join(dirname(BINARY), 'rollscope-bench'), ['--write-dump', String(samples), dump], { encoding: 'utf8' });
    if (status !== 0) throw new Error(`rollscope-bench --write-dump: ${stderr}`);
    run('view', dump, '--no-serve', '--cache-format', 'none');
    rmSync(dump);
    file = join(dir, `rollout_${samples}.trace_timeline_viewer.html`);
    made.set(samples, file);
  }
  return file;
}
const frames = (): Promise<number> => page.evaluate(() => (globalThis as { rsFrames?: number[] }).rsFrames?.length ?? 0);
const footer = (): Promise<string> => page.locator('footer').innerText();
/** How many colours the rows of the timeline are painted with: a picture without bars has few. */
const colours = (): Promise<number> =>
  page.evaluate(() => {
    const seen = new Set<number>();
    for (const canvas of document.querySelectorAll('canvas')) {
      const g = canvas.getContext('2d');
      if (!g || canvas.width === 0 || canvas.height < 100) continue;
      for (const word of new Uint32Array(g.getImageData(0, 0, canvas.width, canvas.height).data.buffer)) seen.add(word);
    }
    return seen.size;
  });

for (const samples of [1024, 8192]) {
  it(`a dump of ${samples} samples opens from disk`, async () => {
    await page.goto(`file://${fileOf(samples)}`);
    await expect.poll(footer, WAIT).toContain(`${samples.toLocaleString('en')} rows`);
    await expect.poll(frames, WAIT).toBeGreaterThan(0);
    await expect.poll(colours, WAIT).toBeGreaterThan(8);
    await page.screenshot({ path: `artifacts/file-${samples}.png` });
    // Other rows are another job of the worker.
    await page.getByLabel('rows').first().selectOption('tool');
    await expect.poll(() => page.evaluate(() => location.hash), WAIT).toContain('rows=tool');
    await expect.poll(footer, WAIT).not.toContain(`${samples.toLocaleString('en')} rows`);
    expect(await page.getByRole('alert').count()).toBe(0);
  });
}

it('what a dump holds of a span is there, and is found', async () => {
  await page.goto(`file://${fileOf(1024)}`);
  await expect.poll(footer, WAIT).toContain('1,024 rows');
  await page.locator('[data-filter]').fill('sample:1000');
  await expect.poll(footer, WAIT).toMatch(/^1 of 1,024 rows/);
  await page.keyboard.press('Escape');
  await page.keyboard.press('Enter');
  const details = page.getByLabel('Span details');
  await details.getByText('group_size').waitFor();
  await details.getByRole('button', { name: /^child generate_and_rm/ }).click();
  await details
    .getByRole('button', { name: /^child sglang_generate/ })
    .first()
    .click();
  await details.getByText('completion_tokens').waitFor();
  await details.getByText('max_new_tokens').waitFor();
  await page.screenshot({ path: 'artifacts/file-span.png' });
  await page.locator('[data-filter]').fill('sample:1000 @completion_tokens=40');
  await expect.poll(footer, WAIT).toMatch(/^1 of 1,024 rows/);
  await page.locator('[data-filter]').fill('@completion_tokens>40');
  await expect.poll(footer, WAIT).toMatch(/^0 of 1,024 rows/);
});

it('a conversation of the file keeps the way back to its run', async () => {
  await page.goto(`file://${fileOf(1024)}`);
  await page.getByRole('link', { name: 'Conversations' }).click();
  await page
    .getByText(/^1,024 conversations/)
    .first()
    .waitFor();
  await page.screenshot({ path: 'artifacts/file-conversations.png' });
  await page.getByText('264 ch').first().click();
  await page.locator('a.id').click();
  await expect.poll(() => page.evaluate(() => location.hash), WAIT).toMatch(/^#\/conversation\//);
  await page.locator('[data-message="1"]').waitFor();
  for (const title of ['Run', 'Timeline', 'Conversations'])
    await page.getByRole('navigation', { name: 'Views' }).getByRole('link', { name: title, exact: true }).waitFor();
  await page.getByRole('navigation', { name: 'Views' }).getByRole('link', { name: 'Timeline' }).click();
  await expect.poll(footer, WAIT).toContain('1,024 rows');
});

// The ways in which a worker fails: each in place of the browser's own.
const FAILURES: [string, string, RegExp][] = [
  ['never starts', 'class extends EventTarget { postMessage() {} terminate() {} }', /did not start within \d+ seconds/],
  [
    'starts and never answers',
    "class extends EventTarget { constructor() { super(); setTimeout(() => this.onmessage({ data: { ok: 'started' } })); } postMessage() {} terminate() {} }",
    /gave no answer within \d+ minutes/,
  ],
  [
    'fails as it starts',
    "class extends EventTarget { constructor() { super(); setTimeout(() => this.onerror(new Event('error'))); } postMessage() {} terminate() {} }",
    /could not be started/,
  ],
  [
    'answers what cannot be read',
    "class extends EventTarget { constructor() { super(); setTimeout(() => this.onmessage({ data: { ok: 'started' } })); } postMessage() { setTimeout(() => this.onmessageerror(new MessageEvent('messageerror'))); } terminate() {} }",
    /could not be read/,
  ],
];
for (const [what, worker, words] of FAILURES) {
  it(`a worker that ${what} is an error with words`, async () => {
    await page.clock.install();
    await page.addInitScript(`{ const Own = Worker; globalThis.Worker = ${worker}; globalThis.mend = () => { globalThis.Worker = Own; }; }`);
    await page.goto(`file://${fileOf(1024)}`);
    const alert = page.getByRole('alert');
    // Time passes quickly here: also for what has not been started yet.
    await expect
      .poll(async () => {
        await page.clock.fastForward(60_000);
        return alert.count();
      }, WAIT)
      .toBe(1);
    expect(await alert.innerText()).toMatch(/could not be laid out/);
    expect(await alert.innerText()).toMatch(words);
    await page.screenshot({ path: `artifacts/file-worker-${what.split(' ').join('-')}.png` });
    await page.evaluate(() => (globalThis as unknown as { mend: () => void }).mend());
    await alert.getByRole('button', { name: 'Retry' }).click();
    await expect.poll(footer, WAIT).toContain('1,024 rows');
  });
}

it('the same in light colours', async () => {
  await page.context().close();
  await fresh('light');
  await page.goto(`file://${fileOf(1024)}`);
  await expect.poll(footer, WAIT).toContain('1,024 rows');
  await expect.poll(colours, WAIT).toBeGreaterThan(8);
  await page.screenshot({ path: 'artifacts/file-light.png' });
});
