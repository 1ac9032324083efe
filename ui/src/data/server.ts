// The HTTP API as a DataSource.
import type { AlarmsAnswer, NodesAnswer, RunsAnswer, StepsAnswer, TablesAnswer } from '../generated/api';
import { readStream, valueAt, type ArrowStream } from './arrow';
import { api, bytesOf, getArrow, getJson, request, sendJson, withParams } from './http';
import { SAMPLE_COLUMNS } from './samples';
import type {
  AttrTest,
  Change,
  DataSource,
  Health,
  HowTimeline,
  Owners,
  RunInfo,
  SpanDetail,
  SqlAnswer,
  StepInfo,
  TableInfo,
  TimelineAnswer,
  Window,
} from './types';

/** Spans, or their owners, that a test of an attribute may find. */
const MOST_WITH_ATTR = 500_000;

/** The first column: ids of so many bytes each. */
function firstIds(stream: ArrowStream, width: number): Uint8Array {
  const parts = stream.batches.map((b) => (b.columns[0].values as Uint8Array).subarray(0, b.length * width));
  const out = new Uint8Array(parts.reduce((n, p) => n + p.length, 0));
  parts.reduce((at, p) => (out.set(p, at), at + p.length), 0);
  return out;
}

export class ServerSource implements DataSource {
  readonly kind = 'server' as const;
  readonly can = { sql: true, remove: true, live: true };

  private query(query: string, format: string, maxRows: number | undefined, signal?: AbortSignal): Promise<Response> {
    return sendJson('POST', api`/sql`, { query, format, max_rows: maxRows }, signal);
  }

  health(signal?: AbortSignal): Promise<Health> {
    return getJson(api`/health`, signal);
  }
  async firing(): Promise<number> {
    return (await getJson<AlarmsAnswer>(withParams(api`/alarms`, { history: 'false' }))).firing;
  }
  async isLake(): Promise<boolean> {
    return (await getJson<NodesAnswer>(api`/nodes`)).nodes.length > 0;
  }
  async runs(signal?: AbortSignal): Promise<RunInfo[]> {
    return (await getJson<RunsAnswer>(api`/runs`, signal)).runs;
  }
  async findRun(run: string): Promise<string> {
    return (await getJson<RunInfo>(api`/runs/${run}`)).run_id;
  }
  async removeRun(run: string): Promise<void> {
    await request(api`/runs/${run}`, { method: 'DELETE' });
  }
  async steps(run: string, signal?: AbortSignal): Promise<StepInfo[]> {
    return (await getJson<StepsAnswer>(api`/runs/${run}/steps`, signal)).steps;
  }
  async timeline(run: string, w: Window, how: HowTimeline = {}, signal?: AbortSignal): Promise<TimelineAnswer> {
    const { focus } = how;
    const looks = focus && {
      focus_from_ns: String(focus.fromNs),
      focus_to_ns: String(focus.toNs),
      focus_samples: focus.samples && JSON.stringify(focus.samples),
    };
    const params = { ...w, live: how.live ? 1 : null, since: how.since, most: how.most, apart: how.apart, ...looks };
    const response = await getArrow(withParams(api`/runs/${run}/timeline`, params), signal);
    return {
      bytes: await bytesOf(response),
      version: response.headers.get('rollscope-version'),
      delta: response.headers.get('rollscope-delta') === 'true',
    };
  }
  async links(run: string, w: Window, signal?: AbortSignal): Promise<ArrowStream> {
    return readStream(await bytesOf(await getArrow(withParams(api`/runs/${run}/links`, { ...w }), signal)));
  }
  /** Spans of a window with an attribute, as SQL. */
  private spansWith(run: string, w: Window, test: AttrTest): string {
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
    return `spans where run_id = ${text(run)} and ${within} and ${compare}`;
  }
  async withAttr(run: string, w: Window, test: AttrTest, signal?: AbortSignal): Promise<Uint8Array> {
    return firstIds((await this.sql(`select span_id from ${this.spansWith(run, w, test)}`, MOST_WITH_ATTR, signal)).stream, 8);
  }
  async ownersWithAttr(run: string, w: Window, test: AttrTest, signal?: AbortSignal): Promise<Owners> {
    const query = `select distinct trace_id, sample_id from ${this.spansWith(run, w, test)}`;
    const { stream } = await this.sql(query, MOST_WITH_ATTR, signal);
    const samples = stream.batches.flatMap((b) => Array.from({ length: b.length }, (_, i) => valueAt(b.columns[1], i) as string | null));
    return { traceIds: firstIds(stream, 16), samples };
  }
  async setTags(run: string, tags: string[]): Promise<void> {
    await sendJson('PUT', api`/runs/${run}/tags`, { tags });
  }
  async samples(run: string, w: Window, signal?: AbortSignal): Promise<Uint8Array<ArrayBuffer>> {
    return bytesOf(await getArrow(withParams(api`/runs/${run}/samples`, { ...w, columns: SAMPLE_COLUMNS.join() }), signal));
  }
  span(trace: string, span: string, _place?: unknown, signal?: AbortSignal): Promise<SpanDetail> {
    return getJson(api`/spans/${trace}/${span}`, signal);
  }
  async tables(signal?: AbortSignal): Promise<TableInfo[]> {
    return (await getJson<TablesAnswer>(api`/tables`, signal)).tables;
  }
  async sql(query: string, maxRows: number, signal?: AbortSignal): Promise<SqlAnswer> {
    // A short answer says in its header whether it is whole. A long one says so in a trailer, which browsers do not show:
    // so one row more is asked for than is wanted.
    const response = await this.query(query, 'arrow', maxRows + 1, signal);
    const said = response.headers.get('rollscope-truncated') === 'true';
    const stream = readStream(await bytesOf(response));
    const rows = stream.batches.reduce((n, b) => n + b.length, 0);
    const last = stream.batches.at(-1);
    if (rows > maxRows && last) last.length -= rows - maxRows;
    return { stream, truncated: said || rows > maxRows };
  }
  async exported(query: string, format: 'csv' | 'json' | 'arrow', signal?: AbortSignal): Promise<Blob> {
    return (await this.query(query, format, undefined, signal)).blob();
  }
  live(changed: (c: Change) => void, state: (up: boolean) => void): () => void {
    const events = new EventSource(api`/live`);
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
