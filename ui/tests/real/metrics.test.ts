// Charts of a run and the series of its engines, in the page of the real binary.
import { mkdirSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { launch } from '../page/browser.mjs';
import { run, serve, type Server } from './server';

const WAIT = { timeout: 60_000 };
let server: Server;
let browser: Browser;
let page: Page;
let errors: string[];

beforeAll(async () => {
  mkdirSync('artifacts', { recursive: true });
  [server, browser] = await Promise.all([
    serve('serve', [], (dir) => void run('demo', '--no-serve', '--steps', '6', '--samples', '32', '--data', dir)),
    launch(),
  ]);
});
afterAll(async () => {
  await browser?.close();
  await server?.stop();
});
beforeEach(async () => {
  page = await (await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: 'dark' })).newPage();
  page.setDefaultTimeout(60_000);
  errors = [];
  page.on('pageerror', (e) => errors.push(String(e.stack)));
  page.on('console', (m) => m.type() === 'error' && errors.push(m.text()));
});
afterEach(async () => {
  await page.context().close();
  expect(errors).toEqual([]);
});
const open = async (hash: string): Promise<void> => {
  await page.goto('about:blank');
  await page.goto(`${server.url}/${hash}`);
};
const hash = (): Promise<string> => page.evaluate(() => decodeURIComponent(location.hash));

it('metrics: a chart per name, filter, scale, smoothing, pins, zoom shared by all, and a way to the step', async () => {
  await open('#/run/demo/metrics');
  await page.locator('[data-filter]').fill('reward');
  const charts = page.locator('section.chart-panel');
  await expect.poll(() => charts.count(), WAIT).toBeGreaterThan(0);
  const first = charts.first();
  const name = (await first.getAttribute('aria-label'))!;
  expect(name).toContain('reward');
  await expect.poll(() => first.locator('canvas').count(), WAIT).toBeGreaterThan(0);
  await page.getByRole('button', { name: 'log scale' }).click();
  await expect.poll(hash, WAIT).toContain('log=1');
  await page.getByLabel(/^smooth/).fill('0.5');
  await expect.poll(hash, WAIT).toContain('smooth=0.5');
  await page.getByRole('button', { name: `Pin ${name}`, exact: true }).click();
  await page.getByText('★ pinned').waitFor();
  await page.screenshot({ path: 'artifacts/real-metrics.png' });
  // A drag on one chart zooms them all, and the address keeps it.
  // Charts move when one is pinned: a drag that began before they stood still is tried again.
  const drag = async (): Promise<string> => {
    const box = (await first.locator('canvas').boundingBox())!;
    await page.mouse.move(box.x + box.width * 0.4, box.y + box.height / 2);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.6, box.y + box.height / 2, { steps: 5 });
    // What would draw the chart anew meanwhile (new data, here the theme) does not end the drag.
    await page.emulateMedia({ colorScheme: 'light' });
    await page.mouse.move(box.x + box.width * 0.8, box.y + box.height / 2, { steps: 5 });
    await page.mouse.up();
    return hash();
  };
  await expect.poll(drag, { ...WAIT, interval: 1000 }).toContain('zoom=');
  await page.getByRole('button', { name: 'Reset zoom' }).click();
  await expect.poll(hash, WAIT).not.toContain('zoom=');
  await first.getByRole('link').first().click();
  await expect.poll(hash, WAIT).toMatch(/timeline\?.*step=\d/);
});

it('serving: panels of the engines, one line per engine or per rank, and the trace level for all', async () => {
  await open('#/run/demo/serving');
  await page.getByText('Queues').waitFor();
  await expect.poll(() => page.locator('canvas').count(), WAIT).toBeGreaterThan(4);
  await page.getByRole('button', { name: 'Per rank' }).click();
  await expect.poll(hash, WAIT).toContain('by=rank');
  await page.getByLabel('Trace level').selectOption('1');
  await page.getByText('set for SDKs').waitFor();
  expect(await (await fetch(`${server.url}/api/v1/trace-level`)).json()).toEqual({ level: 1 });
  await page.getByLabel('Trace level').selectOption('');
  await expect.poll(async () => (await fetch(`${server.url}/api/v1/trace-level`)).json(), WAIT).toEqual({ level: null });
  await page.screenshot({ path: 'artifacts/real-serving.png' });
});

/** What a vLLM 0.11 server with two data-parallel engines exposes, as far as panels show it, after so many scrapes. */
function vllmPage(n: number): string {
  const engine = (e: number): string[] => {
    const labels = `engine="${e}",model_name="Qwen/Qwen3-8B"`;
    const histogram = (name: string, bounds: number[]): string[] => [
      ...bounds.map((le, i) => `vllm:${name}_bucket{${labels},le="${le}"} ${n * (i + 1)}`),
      `vllm:${name}_bucket{${labels},le="+Inf"} ${n * (bounds.length + 1)}`,
      `vllm:${name}_sum{${labels}} ${n * 2}`,
      `vllm:${name}_count{${labels}} ${n * (bounds.length + 1)}`,
    ];
    return [
      `vllm:num_requests_running{${labels}} ${8 + e}`,
      `vllm:num_requests_waiting{${labels}} ${3 * (n % 4)}`,
      `vllm:kv_cache_usage_perc{${labels}} 0.${25 + e}`,
      `vllm:prompt_tokens_total{${labels}} ${1000 * n}`,
      `vllm:generation_tokens_total{${labels}} ${500 * n}`,
      `vllm:prefix_cache_queries_total{${labels}} ${1000 * n}`,
      `vllm:prefix_cache_hits_total{${labels}} ${750 * n}`,
      `vllm:num_preemptions_total{${labels}} ${n}`,
      ...['e2e_request_latency_seconds', 'time_to_first_token_seconds', 'request_queue_time_seconds'].flatMap((h) => histogram(h, [0.3, 1, 10])),
    ];
  };
  return `${[...engine(0), ...engine(1)].join('\n')}\n`;
}

it('serving: the series of vLLM, and the share of its cache hits', async () => {
  let scrapes = 0;
  const vllm = createServer((_, answer) => {
    answer.setHeader('content-type', 'text/plain; version=0.0.4');
    answer.end(vllmPage(++scrapes));
  });
  await new Promise<void>((done) => vllm.listen(0, '127.0.0.1', done));
  const { port } = vllm.address() as AddressInfo;
  const mine = await serve('serve', ['--scrape', `http://127.0.0.1:${port}/metrics@1s`]);
  try {
    await expect.poll(() => scrapes, WAIT).toBeGreaterThan(6);
    await page.goto(`${mine.url}/#/serving`);
    const panel = (name: string) => page.getByRole('region', { name, exact: true });
    for (const name of ['Waiting', 'Running', 'Tokens generated', 'Prefix cache hits', 'KV cache in use', 'Preempted requests', 'Time in queue'])
      await panel(name).waitFor();
    const hits = `${mine.url}/prometheus/api/v1/query?query=${encodeURIComponent('sum(rate(vllm:prefix_cache_hits_total[1m])) / sum(rate(vllm:prefix_cache_queries_total[1m]))')}`;
    const answer = (await (await fetch(hits)).json()) as { data: { result: { value: [number, string] }[] } };
    expect(Number(answer.data.result[0].value[1])).toBeCloseTo(0.75, 5);
    await expect.poll(() => panel('Prefix cache hits').locator('canvas').count(), WAIT).toBeGreaterThan(0);
    await page.screenshot({ path: 'artifacts/real-serving-vllm.png', fullPage: true });
  } finally {
    await mine.stop();
    vllm.close();
  }
});
