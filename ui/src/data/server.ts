// The HTTP API as a DataSource. Errors are RFC 9457 problems; their `detail` is what the page shows.
import { readStream, type ArrowStream } from './arrow';
import { SourceError, type Change, type DataSource, type Health, type RunInfo, type SpanDetail, type StepInfo, type TableInfo, type Window } from './types';

const BASE = '/api/v1';
const part = encodeURIComponent;

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
  timeline(run: string, w: Window, signal?: AbortSignal): Promise<Uint8Array<ArrayBuffer>> {
    return this.bytes(`/runs/${part(run)}/timeline?${this.window(w)}`, signal);
  }
  samples(run: string, w: Window, signal?: AbortSignal): Promise<Uint8Array<ArrayBuffer>> {
    return this.bytes(`/runs/${part(run)}/samples?${this.window(w)}`, signal);
  }
  span(trace: string, span: string, _place?: unknown, signal?: AbortSignal): Promise<SpanDetail> {
    return this.json(`/spans/${part(trace)}/${part(span)}`, signal);
  }
  async tables(signal?: AbortSignal): Promise<TableInfo[]> {
    const answer = await this.json<{ tables: TableInfo[] } | TableInfo[]>('/tables', signal);
    return Array.isArray(answer) ? answer : answer.tables;
  }
  async sql(query: string, maxRows: number, signal?: AbortSignal): Promise<ArrowStream> {
    const response = await this.query(query, 'arrow', maxRows, signal);
    return readStream(new Uint8Array(await response.arrayBuffer()));
  }
  async csv(query: string, signal?: AbortSignal): Promise<Blob> {
    return (await this.query(query, 'csv', undefined, signal)).blob();
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
