// What a page of another site can do to a server on this machine, in a real browser. Run by `make test-page`.
import { createServer, type Server as Http } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { launch } from '../page/browser.mjs';
import { serve, type Server } from './server';

const COSTLY = ['/prometheus/api/v1/query?query=vector(1)', '/api/v1/runs', '/api/v1/conversations', '/jaeger/api/services', '/metrics'];
let server: Server;
let browser: Browser;
let other: Http;

beforeAll(async () => {
  [server, browser] = await Promise.all([serve('serve'), launch()]);
  const images = COSTLY.map((path) => `<img src="${server.url}${path}">`).join('');
  other = createServer((_, answer) => answer.end(`<!doctype html><title>other</title>${images}<a href="${server.url}/">rollscope</a>`));
  await new Promise<void>((done) => other.listen(0, '127.0.0.1', done));
});
afterAll(async () => {
  await browser?.close();
  await server?.stop();
  other?.close();
});

it('refuses questions of another site and lets it link to the page', async () => {
  const page = await browser.newPage();
  // From the network itself: the browser keeps answers that are no images from whoever asked for images. The two events of
  // a request come in any order.
  const network = await page.context().newCDPSession(page);
  await network.send('Network.enable');
  const urls = new Map<string, string>();
  const statuses = new Map<string, number>();
  network.on('Network.requestWillBeSent', (e) => urls.set(e.requestId, e.request.url));
  network.on('Network.responseReceivedExtraInfo', (e) => statuses.set(e.requestId, e.statusCode));
  const status = (path: string): number | undefined => statuses.get([...urls].find(([, url]) => url === server.url + path)?.[0] ?? '');
  // A browser resolves every name under localhost to this machine; this one is another site than 127.0.0.1.
  await page.goto(`http://other.localhost:${(other.address() as AddressInfo).port}/`, { waitUntil: 'load' });
  await expect.poll(() => COSTLY.map(status)).toEqual(COSTLY.map(() => 403));
  const runs = page.waitForResponse(`${server.url}/api/v1/runs*`);
  await page.getByRole('link', { name: 'rollscope' }).click();
  expect((await runs).status()).toBe(200);
});
