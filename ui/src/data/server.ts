// The HTTP API as a DataSource. Errors are RFC 9457 problems; their `detail` is what the page shows.
import { readStream, type ArrowStream } from './arrow';
import { SourceError } from '../base/errors';
import type { AttrTest, Change, DataSource, Health, RunInfo, SpanDetail, SqlAnswer, StepInfo, TableInfo, TimelineAnswer, Window } from './types';

const BASE = '/api/v1';
const part = encodeURIComponent;
/** What the page shows of a sample; texts such as metadata are many times larger. */
const SAMPLE_COLUMNS = 'sample_id,group_id,status,reward,reward_json,source,start_ns,end_ns,response_tokens,response_length,turns,tool_calls';

export class ServerSource implements DataSource {
  readonly kind = 'server' as const;
  readonly can = { sql: true, remove: true, live: true };

  private async call(path: string, init: RequestInit = {}): Promise<Response> {
    let response: Response;
    try {
      response = await fetch(BASE + path, { ...init, credentials: 'same-origin' });
    } catch (e) {
      if ((e as Error).name === 'AbortError') throw e;
      throw new SourceError('The server does not answer', 'Is `rollscope serve` still running? The page tries again when you press Retry.');
    }
    if (response.ok) return response;
    const text = await response.text();
    let title = `${response.status} ${response.statusText}`.trim();
    let detail = text.slice(0, 4000);
    try {
      const problem = JSON.parse(text) as { title?: unknown; detail?: unknown };
      if (typeof problem.title === 'string') title = problem.title;
      detail = typeof problem.detail === 'string' ? problem.detail : '';
    } catch {
      // Not a problem document: the text itself is the best there is.
    }
    throw new SourceError(title, detail, response.status);
  }
  private async json<T>(path: string, signal?: AbortSignal): Promise<T> {
    return (await (await this.call(path, { signal, headers: { accept: 'application/json' } })).json()) as T;
  }
  private async bytes(path: string, signal?: AbortSignal): Promise<Uint8Array<ArrayBuffer>> {
    return new Uint8Array(await (await this.call(path, { signal, headers: { accept: 'application/vnd.apache.arrow.stream' } })).arrayBuffer());
  }
  private query(query: string, format: string, maxRows: number | undefined, signal?: AbortSignal): Promise<Response> {
    return this.call('/sql', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ query, format, max_rows: maxRows }),
      signal,
    });
  }

  get(path: string, signal?: AbortSignal): Promise<Response> {
    return this.call(path, { signal });
  }
  health(signal?: AbortSignal): Promise<Health> {
    return this.json('/health', signal);
  }
  async runs(signal?: AbortSignal): Promise<RunInfo[]> {
    return (await this.json<{ runs: RunInfo[] }>('/runs', signal)).runs;
  }
  async findRun(run: string): Promise<string> {
    return (await this.json<RunInfo>(`/runs/${part(run)}`)).run_id;
  }
  async removeRun(run: string): Promise<void> {
    await this.call(`/runs/${part(run)}`, { method: 'DELETE' });
  }
  async steps(run: string, signal?: AbortSignal): Promise<StepInfo[]> {
    return (await this.json<{ steps: StepInfo[] }>(`/runs/${part(run)}/steps`, signal)).steps;
  }
  private window(w: Window): string {
    const q = new URLSearchParams();
    for (const [k, v] of Object.entries(w)) if (v !== undefined) q.set(k, String(v));
    return q.toString();
  }
  async timeline(run: string, w: Window, how: { live?: boolean; since?: string | null } = {}, signal?: AbortSignal): Promise<TimelineAnswer> {
    const more = `${how.live ? '&live=1' : ''}${how.since ? `&since=${part(how.since)}` : ''}`;
    const response = await this.call(`/runs/${part(run)}/timeline?${this.window(w)}${more}`, {
      signal,
      headers: { accept: 'application/vnd.apache.arrow.stream' },
    });
    return {
      bytes: new Uint8Array(await response.arrayBuffer()),
      version: response.headers.get('rollscope-version'),
      delta: response.headers.get('rollscope-delta') === 'true',
    };
  }
  async links(run: string, w: Window, signal?: AbortSignal): Promise<ArrowStream> {
    return readStream(await this.bytes(`/runs/${part(run)}/links?${this.window(w)}`, signal));
  }
  async withAttr(run: string, w: Window, test: AttrTest, signal?: AbortSignal): Promise<Uint8Array> {
    const text = (t: string): string => `'${t.replaceAll("'", "''")}'`;
    const attr = `attr(attrs, ${text(test.key)})`;
    const number = Number(test.value);
    const wide = `cast(${attr} as varchar)`;
    const compare =
      test.op === 'is'
        ? `${attr} is not null`
        : test.op === '~'
          ? `strpos(lower(${wide}), ${text(test.value.toLowerCase())}) > 0`
          : test.op === '=' || test.op === '!='
            ? `${wide} ${test.op === '=' ? '=' : '<>'} ${text(test.value)}`
            : `try_cast(${attr} as double) ${test.op} ${Number.isFinite(number) ? number : 'null'}`;
    const within =
      w.step !== undefined ? `step = ${w.step}` : `start_ns <= ${BigInt(w.to_ns ?? 0)} and coalesce(end_ns, start_ns) >= ${BigInt(w.from_ns ?? 0)}`;
    const { stream } = await this.sql(`select span_id from spans where run_id = ${text(run)} and ${within} and ${compare}`, 500_000, signal);
    const parts = stream.batches.map((b) => (b.columns[0].values as Uint8Array).subarray(0, b.length * 8));
    const out = new Uint8Array(parts.reduce((n, p) => n + p.length, 0));
    parts.reduce((at, p) => (out.set(p, at), at + p.length), 0);
    return out;
  }
  async setTags(run: string, tags: string[]): Promise<void> {
    await this.call(`/runs/${part(run)}/tags`, { method: 'PUT', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ tags }) });
  }
  samples(run: string, w: Window, signal?: AbortSignal): Promise<Uint8Array<ArrayBuffer>> {
    return this.bytes(`/runs/${part(run)}/samples?${this.window(w)}&columns=${SAMPLE_COLUMNS}`, signal);
  }
  span(trace: string, span: string, _place?: unknown, signal?: AbortSignal): Promise<SpanDetail> {
    return this.json(`/spans/${part(trace)}/${part(span)}`, signal);
  }
  async tables(signal?: AbortSignal): Promise<TableInfo[]> {
    const answer = await this.json<{ tables: TableInfo[] } | TableInfo[]>('/tables', signal);
    return Array.isArray(answer) ? answer : answer.tables;
  }
  async sql(query: string, maxRows: number, signal?: AbortSignal): Promise<SqlAnswer> {
    // A short answer says in its header whether it is whole. A long one says so in a trailer, which browsers do not show:
    // so one row more is asked for than is wanted.
    const response = await this.query(query, 'arrow', maxRows + 1, signal);
    const said = response.headers.get('rollscope-truncated') === 'true';
    const stream = readStream(new Uint8Array(await response.arrayBuffer()));
    const rows = stream.batches.reduce((n, b) => n + b.length, 0);
    const last = stream.batches.at(-1);
    if (rows > maxRows && last) last.length -= rows - maxRows;
    return { stream, truncated: said || rows > maxRows };
  }
  async exported(query: string, format: 'csv' | 'json' | 'arrow', signal?: AbortSignal): Promise<Blob> {
    return (await this.query(query, format, undefined, signal)).blob();
  }
  live(changed: (c: Change) => void, state: (up: boolean) => void): () => void {
    const events = new EventSource(`${BASE}/live`);
    events.onopen = () => state(true);
    events.onerror = () => state(false);
    events.onmessage = (m) => {
      state(true);
      try {
        const c = JSON.parse(String(m.data)) as Partial<Change>;
        changed({ version: c.version ?? 0, runs: Array.isArray(c.runs) ? c.runs : [] });
      } catch {
        // A message we do not understand changes nothing.
      }
    };
    return () => events.close();
  }
}
