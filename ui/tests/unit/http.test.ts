import { Dictionary, FixedSizeBinary, Int32, Table, tableToIPC, Utf8, vectorFromArray } from 'apache-arrow';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { SourceError } from '../../src/base/errors';
import { api, askAhead, getJson, prometheus, request, withParams } from '../../src/data/http';
import { ServerSource } from '../../src/data/server';

afterEach(() => vi.unstubAllGlobals());
function answer(status: number, body: string): void {
  vi.stubGlobal('fetch', () => Promise.resolve(new Response(body, { status, statusText: 'Bad' })));
}

describe('addresses', () => {
  it('encode what is put into a path', () => {
    expect(api`/runs/${'a/b ?#'}/steps/${3}`).toBe('/api/v1/runs/a%2Fb%20%3F%23/steps/3');
    expect(prometheus`/query_range`).toBe('/prometheus/api/v1/query_range');
  });
  it('encode parameters, leave out empty ones, repeat lists', () => {
    const params = { q: 'a&b=c', step: 0, live: false, none: null, gone: undefined, empty: '', attr: ['x=1', 'y'] };
    expect(withParams('/p', params)).toBe('/p?q=a%26b%3Dc&step=0&live=false&attr=x%3D1&attr=y');
    expect(withParams('/p', { none: null, list: [] })).toBe('/p');
  });
});

describe('what was asked ahead', () => {
  it('answers the first who asks, with the error if there is one, and not when it is old', async () => {
    let asked = 0;
    vi.stubGlobal('fetch', () => Promise.resolve(new Response(JSON.stringify(++asked), { status: asked === 3 ? 500 : 200 })));
    askAhead('/a');
    askAhead('/a');
    expect(await getJson('/a')).toBe(1);
    expect(await getJson('/a')).toBe(2);
    askAhead('/b');
    await expect(getJson('/b')).rejects.toMatchObject({ status: 500 });
    askAhead('/c');
    const later = performance.now() + 6000;
    vi.spyOn(performance, 'now').mockReturnValue(later);
    expect(await getJson('/c')).toBe(5);
    vi.restoreAllMocks();
  });
});

describe('a refusal', () => {
  it('is reported in the words of a problem document', async () => {
    answer(404, JSON.stringify({ title: 'No such run', detail: 'There is no run a.' }));
    await expect(getJson(api`/runs/a`)).rejects.toMatchObject({ title: 'No such run', detail: 'There is no run a.', status: 404 });
  });
  it('is reported in the words of Prometheus', async () => {
    answer(400, JSON.stringify({ status: 'error', error: 'parse error' }));
    await expect(request('/x')).rejects.toMatchObject({ title: '400 Bad', detail: 'parse error' });
  });
  it('is reported as text where it is nothing else', async () => {
    answer(502, '<html>bad gateway</html>');
    await expect(request('/x')).rejects.toMatchObject({ title: '502 Bad', detail: '<html>bad gateway</html>' });
  });
  it('of a server that is gone says what to check, and an abort stays an abort', async () => {
    vi.stubGlobal('fetch', () => Promise.reject(new TypeError('failed')));
    await expect(request('/x')).rejects.toBeInstanceOf(SourceError);
    vi.stubGlobal('fetch', () => Promise.reject(new DOMException('aborted', 'AbortError')));
    await expect(request('/x')).rejects.toMatchObject({ name: 'AbortError' });
  });
});

describe('whose the spans with an attribute are', () => {
  it('is asked for by the same condition as the spans', async () => {
    const asked: string[] = [];
    const ids = [1, 2, 3].map((k) => new Uint8Array(16).fill(k));
    const table = new Table({
      trace_id: vectorFromArray(ids, new FixedSizeBinary(16)),
      sample_id: vectorFromArray(['a', null, 'a'], new Dictionary(new Utf8(), new Int32())),
    });
    vi.stubGlobal('fetch', (_: string, { body }: { body: string }) => {
      asked.push((JSON.parse(body) as { query: string }).query);
      return Promise.resolve(new Response(Uint8Array.from(tableToIPC(table, 'stream'))));
    });
    const source = new ServerSource();
    const owners = await source.ownersWithAttr("it's", { step: 7 }, { key: 'tool', op: '=', value: 'bash' });
    expect(owners.samples).toEqual(['a', null, 'a']);
    expect([...owners.traceIds]).toEqual(ids.flatMap((id) => [...id]));
    await source.withAttr("it's", { step: 7 }, { key: 'tool', op: '=', value: 'bash' });
    const condition = "from spans where run_id = 'it''s' and step = 7 and cast(attr(attrs, 'tool') as varchar) = 'bash'";
    expect(asked).toEqual([`select distinct trace_id, sample_id ${condition}`, `select span_id ${condition}`]);
  });
});
