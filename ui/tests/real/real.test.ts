// The page of the real binary in a real browser: a demo run, spans sent by OTLP while we look, and a dump as one file from
// disk. Screenshots of what was seen go to artifacts/. Run by `make test-page`.
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { launch } from '../page/browser.mjs';
import { ROOT, run, send, serve, type Server, type Span } from './server';

const WAIT = { timeout: 40_000 };
let server: Server;
let browser: Browser;
let page: Page;
let errors: string[];

beforeAll(async () => {
  mkdirSync('artifacts', { recursive: true });
  [server, browser] = await Promise.all([serve('demo', ['--steps', '5', '--samples', '32']), launch()]);
});
afterAll(async () => {
  await browser?.close();
  await server?.stop();
});
async function fresh(colorScheme: 'dark' | 'light' = 'dark'): Promise<void> {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, colorScheme });
  await context.grantPermissions(['clipboard-read', 'clipboard-write']);
  page = await context.newPage();
  page.setDefaultTimeout(40_000);
  errors = [];
  page.on('pageerror', (e) => errors.push(String(e.stack)));
  page.on('console', (m) => m.type() === 'error' && errors.push(m.text()));
  page.on('response', (r) => r.status() >= 500 && errors.push(`${r.status()} ${r.url()}`));
  page.on('dialog', (d) => {
    errors.push(`dialog: ${d.message()}`);
    void d.dismiss();
  });
}
beforeEach(() => fresh());
afterEach(async () => {
  const found = errors;
  const hacked = await page.evaluate(() => (globalThis as { hacked?: unknown }).hacked);
  await page.context().close();
  expect(found).toEqual([]);
  expect(hacked).toBeUndefined();
});
const open = async (hash: string): Promise<void> => {
  await page.goto('about:blank');
  await page.goto(`${server.url}/${hash}`);
};
const frames = (): Promise<number> => page.evaluate(() => (globalThis as { rsFrames?: number[] }).rsFrames?.length ?? 0);
const drawn = (): Promise<void> => expect.poll(frames, WAIT).toBeGreaterThan(0);
const footer = (): Promise<string> => page.locator('footer').innerText();
const hash = (): Promise<string> => page.evaluate(() => location.hash);
const shot = (name: string): Promise<unknown> => page.screenshot({ path: `artifacts/real-${name}.png` });
const details = () => page.getByLabel('Span details');
const T = '#/run/demo/timeline';
async function rowsOf<R>(query: string): Promise<R[]> {
  const answer = await fetch(`${server.url}/api/v1/sql`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ query, format: 'json' }),
  });
  return ((await answer.json()) as { rows: R[] }).rows;
}

it('runs: curves, filter, tags, comparing, deleting', async () => {
  const now = Date.now();
  for (const step of [0, 1, 2]) {
    await send(server, 'second', [
      {
        id: 100 + step,
        trace: 900 + step,
        name: 'pipeline_step',
        start: now - 90_000 + step * 30_000,
        end: now - 65_000 + step * 30_000,
        attrs: { 'rl.step': step, 'rl.phase': 'train' },
      },
    ]);
  }
  await send(server, 'doomed', [{ id: 99, trace: 999, name: 'gone soon', start: now - 1000, end: now, attrs: { 'rl.step': 0 } }]);
  await open('#/');
  const row = page.locator('tbody tr', { hasText: 'qwen2.5-7b-grpo' });
  await row.getByRole('img', { name: /Mean reward by step/ }).waitFor();
  await row.getByRole('img', { name: /Time by step/ }).waitFor();
  await shot('runs');
  await page.keyboard.press('/');
  await page.keyboard.type('#grpo');
  await expect.poll(() => page.locator('tbody tr').count(), WAIT).toBe(1);
  await page.locator('[data-filter]').fill('');
  await page.getByRole('button', { name: 'Tags of run second' }).click();
  await page.getByRole('textbox', { name: 'Tags' }).fill('baseline, <b>bold</b>');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('button', { name: '<b>bold</b>' }).waitFor();
  await page.getByLabel('Compare qwen2.5-7b-grpo').check();
  await page.getByLabel('Compare second').check();
  await page.getByRole('link', { name: 'Compare 2 runs' }).click();
  await page.getByRole('heading', { name: 'Mean reward' }).waitFor();
  await page.getByRole('heading', { name: 'Step time' }).waitFor();
  await page.getByText('samples per minute').waitFor();
  await shot('compare');
  await open('#/');
  await page.getByRole('button', { name: 'Delete run doomed' }).click();
  expect(await page.getByRole('button', { name: 'Delete', exact: true }).isDisabled()).toBe(true);
  await page.getByLabel('Run id').fill('doomed');
  await page.getByRole('button', { name: 'Delete', exact: true }).click();
  await expect.poll(() => page.getByRole('link', { name: 'doomed' }).count(), WAIT).toBe(0);
});

it('from the run to a step to its timeline, and back', async () => {
  await open('#/run/demo');
  await page.getByText('No data is known to be missing').waitFor();
  await shot('run');
  await page.getByRole('link', { name: 'step 2', exact: true }).click();
  await page.getByRole('heading', { name: 'Step 2' }).waitFor();
  await page.getByRole('heading', { name: 'Slowest samples' }).waitFor();
  await page.getByText('Sample duration').waitFor();
  await expect.poll(() => page.locator('section.table').first().locator('tbody tr').count(), WAIT).toBe(12);
  await shot('step');
  await page.keyboard.press(']');
  await page.getByRole('heading', { name: 'Step 3' }).waitFor();
  await page.getByRole('link', { name: 'Timeline →' }).click();
  await drawn();
  expect(await hash()).toContain('step=3');
  await page.goBack();
  await page.getByRole('heading', { name: 'Step 3' }).waitFor();
});

it('timeline: rows, sorts, filters', async () => {
  await open(`${T}?step=2`);
  await drawn();
  const all = Number(/^(\d+) rows/.exec(await footer())![1]);
  expect(all).toBeGreaterThan(32);
  await shot('timeline');
  for (const sort of ['start', 'end', 'duration', 'response', 'reward', 'tail']) {
    await page.getByLabel('sort').selectOption(sort);
    await expect.poll(hash, WAIT).toContain(`sort=${sort}`);
  }
  await page.getByRole('button', { name: /Ascending/ }).click();
  await expect.poll(hash, WAIT).toContain('sort=-tail');
  const shown = async (filter: string, rows: RegExp): Promise<void> => {
    await page.locator('[data-filter]').fill(filter);
    await expect.poll(footer, { ...WAIT, message: filter }).toMatch(rows);
  };
  const some = new RegExp(`^[1-9]\\d* of ${all} rows`);
  await shown('reward:>0.5', some);
  await shown('status:completed', some);
  await shown('is:error', some);
  await shown('name:tool_call', some);
  await shown('@exit_code=1', some);
  await shown('@completion_tokens>1', some);
  await shown('@no_such_attribute', new RegExp(`^0 of ${all} rows`));
  await page.getByRole('button', { name: 'Clear filter' }).click();
  await expect.poll(footer, WAIT).toMatch(new RegExp(`^${all} rows`));
  for (const rows of ['sample', 'worker', 'tool', 'group']) {
    await page.getByLabel('rows').first().selectOption(rows);
    await expect.poll(async () => (rows === 'group' ? !(await hash()).includes('rows=') : (await hash()).includes(`rows=${rows}`)), WAIT).toBe(true);
    await expect.poll(footer, WAIT).toMatch(/^[1-9]\d* rows?/);
    if (rows === 'worker') await shot('workers');
  }
});

it('timeline: zoom, pan, range, links, deep links', async () => {
  await open(`${T}?step=1`);
  await drawn();
  await page.mouse.move(700, 450);
  await page.mouse.wheel(0, -600);
  await expect.poll(hash, WAIT).toMatch(/w=/);
  const zoomed = await hash();
  await page.mouse.down();
  await page.mouse.move(500, 450, { steps: 5 });
  await page.mouse.up();
  await expect.poll(hash, WAIT).not.toBe(zoomed);
  const link = await hash();
  await page.keyboard.press('f');
  await expect.poll(hash, WAIT).not.toContain('w=');
  await open(link);
  await drawn();
  expect(await hash()).toBe(link);
  await page.keyboard.press('f');
  await page.keyboard.down('Shift');
  await page.mouse.move(300, 450);
  await page.mouse.down();
  await page.mouse.move(600, 460, { steps: 4 });
  await page.mouse.up();
  await page.keyboard.up('Shift');
  const stats = page.getByLabel('Statistics of the measured range');
  await stats.getByText('sglang_generate', { exact: true }).waitFor();
  for (const column of ['Count', 'Total', 'Mean', 'p50', 'p95', 'Max']) await stats.getByText(column, { exact: true }).waitFor();
  await shot('range');
  await page.getByRole('button', { name: 'View' }).click();
  await page.getByLabel('links as arrows').check();
  await expect.poll(() => page.getByRole('dialog', { name: 'View' }).innerText(), WAIT).toMatch(/links as arrows\s+[1-9]/);
  await page.keyboard.press('Escape');
  expect(await page.getByRole('dialog', { name: 'View' }).count()).toBe(0);
});

it('timeline: with fewer items than spans, all are counted, and those in view are asked for', async () => {
  await open(`${T}?step=1`);
  await drawn();
  const [, all] = /([\d.,]+\w?) items/.exec(await footer())!;
  const focused: string[] = [];
  page.on('request', (r) => r.url().includes('/timeline?') && r.url().includes('focus_from_ns') && focused.push(r.url()));
  await open(`${T}?step=1&most=1000`);
  await drawn();
  await expect.poll(footer, WAIT).toContain(`${all} items, drawn as`);
  await expect.poll(() => focused.length, WAIT).toBe(1);
  await expect.poll(footer, WAIT).not.toContain('updating');
  await page.mouse.move(700, 450);
  for (let i = 0; i < 4; i++) await page.mouse.wheel(0, -600);
  await expect.poll(() => focused.length, WAIT).toBeGreaterThan(1);
  await expect.poll(footer, WAIT).not.toContain('updating');
  await expect.poll(footer, WAIT).toContain(`${all} items, drawn as`);
  await shot('thinned');
});

it('timeline: a link to a span that another stands for shows that span', async () => {
  const spans = await rowsOf<[string, string]>(
    "select hex(trace_id), hex(span_id) from spans where run_id = 'demo' and step = 1 and state = 'closed' and sample_id is not null order by end_ns - start_ns limit 1000",
  );
  const drawnSpans = Buffer.from(await (await fetch(`${server.url}/api/v1/runs/demo/timeline?step=1&most=1000`)).arrayBuffer());
  const [t, s] = spans.find(([, id]) => !drawnSpans.includes(Buffer.from(id, 'hex')))!;
  const asked: string[] = [];
  const note = (r: { url(): string }): unknown => r.url().includes('/timeline?') && asked.push(r.url());
  page.on('request', note);
  await open(`${T}?step=1&most=1000&span=${t}.${s}`);
  await details().getByText(s).waitFor();
  await expect.poll(footer, WAIT).not.toContain('updating');
  expect(asked[0]).not.toContain('apart=');
  expect(asked[1]).toContain(`apart=${t}.${s}`);
  expect(await details().getByText('Stands for').count()).toBe(0);
  page.off('request', note);
  await shot('thinned-link');
});

it('details: the engine under the turn, prefill and decode in lanes, ways on', async () => {
  const [[step, sample, t, s] = []] = await rowsOf<[number, string, string, string]>(
    "select step, sample_id, hex(trace_id) as t, hex(span_id) as s from spans where run_id = 'demo' and attr(end_attrs, 'pd_decode_forward_duration') is not null and name = 'sglang_generate' limit 1",
  );
  expect(sample).toBeDefined();
  await open(`${T}?step=${step}&q=sample:${sample}&x=1&span=${t}.${s}`);
  await details().getByRole('heading', { name: 'sglang_generate' }).waitFor();
  await details()
    .getByRole('button', { name: /^child \[P\] prefill/ })
    .waitFor();
  await details()
    .getByRole('button', { name: /^child POST/ })
    .waitFor();
  await details().getByText('At the end').waitFor();
  await shot('details');
  await details()
    .getByRole('button', { name: /^child \[D\] decode/ })
    .click();
  await details().getByText('Drawn from attributes of').waitFor();
  await details()
    .getByRole('button', { name: /^child \[D\] forward/ })
    .waitFor();
  await details()
    .getByRole('link', { name: /Sample in step/ })
    .first()
    .waitFor();
  await details().getByRole('tab', { name: 'Raw JSON' }).click();
  await details().getByText('"pd_decode_forward_duration"').waitFor();
});

it('live: a running step grows by what is new, and an open span ends', async () => {
  const now = Date.now();
  const asked: string[] = [];
  page.on('request', (r) => r.url().includes('/timeline?') && asked.push(r.url()));
  const attrs = { 'rl.step': 7, 'rl.sample.id': 's1', 'rl.group.id': 'g1' };
  await send(server, 'live', [
    { id: 1, trace: 77, name: 'rollout', start: now - 4000, attrs },
    { id: 2, trace: 77, parent: 1, name: 'turn one', start: now - 3900, end: now - 3000, attrs },
  ]);
  await open('#/run/live/timeline');
  await drawn();
  await expect.poll(footer, WAIT).toMatch(/^1 row\s+2 items/);
  expect(await footer()).toContain('running');
  await page.getByRole('button', { name: 'follow' }).waitFor();
  await send(server, 'live', [
    { id: 3, trace: 77, parent: 1, name: 'turn two', start: now - 2900, end: now - 2000, attrs },
    { id: 9, trace: 78, name: 'rollout', start: now - 2500, attrs: { ...attrs, 'rl.sample.id': 's2' } },
  ]);
  await expect.poll(footer, WAIT).toMatch(/^2 rows\s+4 items/);
  await shot('live');
  expect(asked.at(-1)).toContain('since=');
  // The child arrives before its parent, as OpenTelemetry sends them.
  await send(server, 'live', [{ id: 5, trace: 78, parent: 4, name: 'inner', start: now - 1500, end: now - 1400, attrs: { 'rl.step': 7 } }]);
  await expect.poll(footer, WAIT).toMatch(/5 items/);
  await send(server, 'live', [{ id: 4, trace: 78, parent: 9, name: 'outer', start: now - 1600, end: now - 1300, attrs: { 'rl.step': 7 } }]);
  await expect.poll(footer, WAIT).toMatch(/^2 rows\s+6 items/);
  await page.keyboard.press('Escape');
  await send(server, 'live', [
    { id: 1, trace: 77, name: 'rollout', start: now - 4000, end: now, attrs },
    { id: 9, trace: 78, name: 'rollout', start: now - 2500, end: now, attrs: { ...attrs, 'rl.sample.id': 's2' } },
  ]);
  await expect.poll(footer, WAIT).not.toContain('running');
  expect(await footer()).toMatch(/6 items/);
});

it('now: a run that hangs says who waits for whom, and moves again', async () => {
  const begin = Date.now() - 1_200_000;
  const spans: Span[] = [];
  for (const step of [0, 1, 2, 3]) {
    const at = begin + step * 60_000;
    const [root, trace, last] = [5000 + step * 10, 5000 + step, step === 3];
    spans.push(
      { id: root, trace, name: 'step', start: at, end: last ? undefined : at + 50_000, attrs: { 'rl.step': step } },
      { id: root + 1, trace, parent: root, name: 'rollout', start: at, end: last ? undefined : at + 40_000 },
      { id: root + 2, trace, parent: root + 1, name: 'sample', start: at, end: last ? undefined : at + 40_000, attrs: { 'rl.sample.id': 's<b>1' } },
      { id: root + 3, trace, parent: root + 2, name: 'tool_call', start: at, end: last ? undefined : at + 30_000, attrs: { tool: 'browser' } },
    );
  }
  await send(server, 'stuck', spans);
  for (const theme of ['dark', 'light'] as const) {
    await page.context().close();
    await fresh(theme);
    await open('#/run/stuck');
    await page.getByRole('link', { name: 'Now', exact: true }).click();
    await page.getByText('Hanging').waitFor();
    expect(await page.locator('.summary').innerText()).toContain('Tool browser has not answered');
    expect(await page.locator('.chain strong').allInnerTexts()).toEqual(['step 3', 'rollout', 'the only sample', 'browser']);
    expect(await page.locator('.chain a').last().innerText()).toBe('sample s<b>1');
    expect(await page.locator('table').last().innerText()).toContain('tool_call');
    await shot(`now-${theme}`);
  }
  // It updates by itself.
  const now = Date.now();
  await send(server, 'stuck', [
    { ...spans[15], end: now },
    { id: 5999, trace: 5003, parent: 5032, name: 'generate', start: now },
  ]);
  await page.getByText('Moving').or(page.getByText('Slow')).first().waitFor();
  await page.keyboard.press('g');
  await page.keyboard.press('f');
  await expect.poll(hash, WAIT).toContain('/findings');
  await page.keyboard.press('g');
  await page.keyboard.press('n');
  await expect.poll(hash, WAIT).toBe('#/run/stuck/now');
});

it('hostile content is text', async () => {
  const bad = [
    '<script>window.hacked=1</script>',
    '<img src=x onerror="window.hacked=1">',
    'javascript:window.hacked=1',
    `x${'​'}y${'‮'}z`,
    'A'.repeat(60_000),
  ];
  const now = Date.now();
  await send(
    server,
    '<i>evil</i>',
    bad.map((name, k) => ({
      id: 50 + k,
      trace: 500,
      parent: k ? 50 : undefined,
      name,
      start: now - 5000 + k,
      end: now,
      error: bad[1],
      attrs: { 'rl.step': 0, 'rl.sample.id': '<u>7</u>', [bad[1]]: bad[0], link: bad[2], long: bad[4], __proto__x: bad[3] },
    })),
  );
  await open('#/');
  await page.getByRole('link', { name: '<i>evil</i>' }).waitFor();
  await open(`#/run/${encodeURIComponent('<i>evil</i>')}/step/0`);
  await page.getByRole('cell', { name: bad[1], exact: true }).first().waitFor();
  await open(`#/run/${encodeURIComponent('<i>evil</i>')}/timeline?step=0&x=1`);
  await drawn();
  await page.keyboard.press('Enter');
  await details().getByRole('heading', { name: bad[0] }).waitFor();
  await details().getByText(bad[1]).first().waitFor();
  await details()
    .getByRole('button', { name: /all 60,000 characters/ })
    .waitFor();
  expect(await page.locator('aside img, aside script, aside a[href^="javascript"]').count()).toBe(0);
  await page.mouse.move(600, 300);
  await shot('hostile');
});

it('SQL: answer, plot, history, what is cut off, saving', async () => {
  await open('#/sql');
  const editor = page.getByLabel('SQL', { exact: true });
  await editor.fill('select name, count(*) as n from spans group by name order by n desc limit 12');
  await page.keyboard.press('Control+Enter');
  await page.getByText('12 rows').waitFor();
  await page.getByRole('button', { name: 'Plot' }).click();
  await page.getByRole('img', { name: 'n by name' }).waitFor();
  await shot('sql-plot');
  await editor.fill(
    'select step, count(*) as spans, count(distinct sample_id) as samples from spans where step is not null group by step order by step',
  );
  await page.keyboard.press('Control+Enter');
  await page.getByRole('group', { name: /arrow keys to read the values/ }).waitFor();
  await page.getByRole('button', { name: 'Table' }).click();
  await editor.fill('select a.value as x from generate_series(1, 100001) as a');
  await page.keyboard.press('Control+Enter');
  await page.getByText('Only the first 100k rows are shown').waitFor();
  await editor.fill('select 1 as one, 2.5 as two');
  await page.keyboard.press('Control+Enter');
  await page.getByText('1 row ·').waitFor();
  for (const [format, text] of [
    ['CSV', 'one,two'],
    ['JSON', '"columns"'],
    ['ARROW', 'one'],
  ] as const) {
    const download = page.waitForEvent('download');
    await page.getByRole('button', { name: `Save as ${format}` }).click();
    expect(readFileSync((await (await download).path())!, 'latin1')).toContain(text);
  }
  await editor.fill('select nothing from spans');
  await page.keyboard.press('Control+Enter');
  await page.getByRole('alert').getByText('nothing').waitFor();
  errors = errors.filter((e) => !e.includes('400'));
  expect(await page.getByRole('button', { name: /^select 1 as one/ }).count()).toBe(1);
});

it('keyboard alone: from the list to the attributes of a span', async () => {
  await open('#/');
  await page.getByRole('link', { name: 'qwen2.5-7b-grpo' }).waitFor();
  await page.keyboard.press('Control+k');
  await page.keyboard.type('open run qwen');
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'qwen2.5-7b-grpo' }).waitFor();
  const chart = page.getByRole('group', { name: /Steps: seconds in each phase/ });
  await chart.waitFor();
  for (let k = 0; k < 60 && !(await chart.evaluate((e) => e === document.activeElement)); k++) await page.keyboard.press('Tab');
  expect(await chart.evaluate((e) => getComputedStyle(e).outlineStyle)).not.toBe('none');
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Step 1' }).waitFor();
  await page.keyboard.press('g');
  await page.keyboard.press('t');
  await drawn();
  await page.keyboard.press('w');
  await expect.poll(hash, WAIT).toMatch(/w=/);
  await page.keyboard.press('f');
  await page.keyboard.press('Shift+E');
  await page.keyboard.press('Enter');
  await details().waitFor();
  const first = await details().getByRole('heading').first().innerText();
  await page.keyboard.press('j');
  await page.keyboard.press('l');
  await page.keyboard.press('p');
  await expect.poll(hash, WAIT).toContain('span=');
  expect(first.length).toBeGreaterThan(0);
  await page.keyboard.press('Escape');
  await expect.poll(() => details().count(), WAIT).toBe(0);
  await page.keyboard.press('?');
  await page.getByText('zoom in and out at the cursor').waitFor();
});

it('an empty store says how to send the first data, and fills by itself', async () => {
  const none = await serve('serve');
  try {
    await page.goto(`${none.url}/`);
    for (const name of ['slime', 'SGLang', 'ROLL', 'OpenTelemetry']) await page.getByRole('heading', { name, exact: true }).waitFor();
    await page.getByRole('button', { name: 'Copy to the clipboard' }).nth(1).click();
    expect(await page.evaluate(() => navigator.clipboard.readText())).toContain('--enable-trace');
    await shot('empty');
    await send(none, 'first', [{ id: 1, name: 'hello', start: Date.now() - 10, end: Date.now() }]);
    await page.getByRole('link', { name: 'first' }).waitFor();
  } finally {
    await page.goto('about:blank');
    await none.stop();
  }
});

it('files of a trainer without times: rewards, samples, and what they said', async () => {
  const watching = await serve('serve', ['--watch', join(ROOT, 'fixtures/nemo-rl')]);
  try {
    await page.goto(`${watching.url}/`);
    await page.getByRole('link', { name: 'exp_001' }).first().click();
    await page.getByRole('heading', { name: 'Mean reward by step' }).waitFor();
    await page.getByText('2 steps without spans').waitFor();
    expect(await page.getByRole('columnheader').allInnerTexts()).toEqual(['Step', 'Samples', 'Mean reward']);
    await shot('untimed-run');
    await page.getByRole('link', { name: 'step 2', exact: true }).click();
    await page.getByText('Step 2 has no spans').waitFor();
    const samples = page.locator('section', { has: page.getByRole('heading', { name: 'Samples by reward' }) });
    // Those of the evaluation are not among them. The lowest reward comes first.
    await expect.poll(() => samples.locator('tbody tr').count(), WAIT).toBe(4);
    expect(await samples.locator('tbody tr td:last-child').allInnerTexts()).toEqual(['0', '0.5', '0.5', '1']);
    for (const gone of ['Critical path', 'Idle', 'Time by phase', 'Slowest samples', 'Errors'])
      expect(await page.getByRole('heading', { name: gone }).count()).toBe(0);
    await shot('untimed-step');
    await samples.getByRole('link').first().click();
    // One that was trained on, and one of the evaluation.
    await page.getByText('2 conversations', { exact: true }).waitFor();
  } finally {
    await page.goto('about:blank');
    await watching.stop();
  }
});

it('light and dark, by the system and by the switch', async () => {
  await page.context().close();
  await fresh('light');
  const theme = (): Promise<string | undefined> => page.evaluate(() => document.documentElement.dataset.theme);
  for (const [name, at] of [
    ['timeline', `${T}?step=2`],
    ['step', '#/run/demo/step/2'],
    ['run', '#/run/demo'],
    ['runs', '#/'],
  ]) {
    await open(at);
    expect(await theme()).toBe('light');
    await page.locator('main canvas, main table, main svg').first().waitFor();
    await page.waitForTimeout(800);
    await shot(`light-${name}`);
  }
  await page.getByRole('button', { name: /^Theme/ }).click();
  await expect.poll(theme, WAIT).toBe('dark');
  await page.reload();
  await expect.poll(theme, WAIT).toBe('dark');
});

it('a dump as one file from disk', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'rollscope-view-'));
  try {
    run('view', join(ROOT, 'fixtures/slime/small.pt'), '--no-serve', '--out', dir);
    await page.goto(`file://${join(dir, 'small.trace_timeline_viewer.html')}`);
    // One dump: it opens at its timeline.
    await drawn();
    expect(await footer()).toMatch(/^8 rows/);
    expect(await page.getByRole('link', { name: 'SQL' }).count()).toBe(0);
    // Newer style, laid flat by slime: nested here, and within its parent.
    await page.locator('[data-filter]').fill('sample:0');
    await expect.poll(footer, WAIT).toMatch(/^1 of 8 rows/);
    await page.keyboard.press('Escape');
    await page.keyboard.press('Enter');
    await details()
      .getByRole('button', { name: /^child generate_and_rm/ })
      .click();
    await details()
      .getByRole('button', { name: /^child sglang_generate/ })
      .click();
    await details().getByText('completion_tokens').first().waitFor();
    await details()
      .getByRole('button', { name: /^child \[P\] prefill/ })
      .click();
    await details()
      .getByRole('button', { name: /^child \[P\] bootstrap_queue/ })
      .click();
    await details()
      .getByRole('button', { name: /^child \[P\] alloc_wait/ })
      .waitFor();
    await details().getByText('pd_prefill_bootstrap_queue_duration').waitFor();
    await shot('file');
    // Attributes are looked for in the file too.
    await page.locator('[data-filter]').fill('@prompt_tokens>100');
    await expect.poll(footer, WAIT).toMatch(/^[1-7] of 8 rows/);
    await page.locator('[data-filter]').fill('is:open');
    await expect.poll(footer, WAIT).toMatch(/^1 of 8 rows/);
    await page.locator('[data-filter]').fill('is:orphan');
    await expect.poll(footer, WAIT).toMatch(/^1 of 8 rows/);
    // What was said is in the file as well.
    await page.getByRole('link', { name: 'Conversations' }).click();
    await page
      .getByText(/^8 conversations/)
      .first()
      .waitFor();
    await shot('file-conversations');
  } finally {
    rmSync(dir, { recursive: true });
  }
});

it('an address may name a run by its name or a beginning; the id takes its place', async () => {
  for (const [named, view] of [
    ['qwen2.5-7b-grpo', 'timeline'],
    ['dem', 'step/3'],
  ]) {
    await open(`#/run/${encodeURIComponent(named)}/${view}`);
    await expect.poll(hash, WAIT).toMatch(new RegExp(`^#/run/demo/${view}`));
  }
  await page.getByRole('heading', { name: 'Step 3' }).waitFor();
});
