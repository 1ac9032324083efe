// Data inside the page: one HTML file that works from disk, without a server.
//
// The binary replaces the marker in dist-static/viewer.html by blocks, each one element:
//
//     <script type="application/octet-stream" id="rs-NAME">TEXT</script>
//
// TEXT is the gzip of the block's bytes as ascii.ts has it: seven bits per character, without `<`, so nothing in the data can
// end the element. Blocks are decoded when first needed.
//
// | id | bytes |
// |---|---|
// | `rs-manifest` | JSON, UTF-8: the Manifest below. Always there; everything else is named by it. |
// | `rs-runs` | Arrow IPC stream with the columns of `GET /api/v1/runs` (ns as Int64) |
// | `rs-steps-R` | JSON, the answer of `GET /runs/R/steps` (R: position of the run in the manifest) |
// | `rs-timeline-R-S` | Arrow IPC stream of one step, one batch: what `formats::export::timeline::pack` makes, which is also what `GET /runs/R/timeline` answers, with differences for numbers (`formats::export::html::thin`; S: position in `windows`) |
// | `rs-samples-R-S` | Arrow IPC stream of the samples table for that step |
// | `rs-attrs-R-S-C` | JSON, chunk C of the attributes of the spans: the Keyed below. Rows stand in the order of the timeline's `source`, `chunk_rows` (4096) to a chunk. |
// | `rs-rest-R-S-C` | Arrow IPC stream, the same rows: events, links, and any other column of the spans table that the timeline lacks; not ids as they came (`original_*`), nor columns of nothing but nulls |
// | `rs-links-R-S` | where there are any; Arrow IPC stream: trace_id, span_id, to_trace_id, to_span_id, one row per link |
// | `rs-conversations-R-S-C` | where there are any; Arrow IPC stream, part C of the conversations table for that step, without `messages` |
// | `rs-words-R-S-C` | `messages` of the same rows, as words.ts has them |
//
// Names are free as long as the manifest uses the same; the ids above are what the binary writes. Streams must be
// uncompressed inside (gzip is outside) and end with the end-of-stream marker.
import type { Message, Row } from './conversations';
import { fromAscii } from './ascii';
import { readStream, rowAt, rows, type ArrowStream } from './arrow';
import { packedIds } from './thin';
import { readWords } from './words';
import { SourceError } from '../base/errors';
import type { Column } from '../generated/tables';
import type {
  AttrTest,
  Attrs,
  DataSource,
  Health,
  RunInfo,
  SpanDetail,
  SpanPlace,
  SqlAnswer,
  StepInfo,
  TableInfo,
  TimelineAnswer,
  Window,
} from './types';

export interface Manifest {
  version: 2;
  /** Program and version that wrote it. */
  generator: string;
  /** Block ids without `rs-`. */
  runs: string;
  per_run: {
    run_id: string;
    steps: string;
    windows: {
      step: number | null;
      timeline: string;
      samples: string;
      attrs: string[];
      rest: string[];
      chunk_rows: number;
      links?: string;
      conversations?: string[];
      words?: string[];
    }[];
  }[];
  /** What was left out to keep the file small, for people. */
  notes?: string[];
}

/**
 * Attributes by key. Rows with the same keys have the same shape; under every key stand the values of these rows in their
 * order, or one value for all of them.
 */
interface Keyed {
  rows: number[];
  shapes: { keys: ['start_attrs' | 'end_attrs', string][]; values: unknown[][] }[];
}

/** Text of a block by its id without `rs-`, or null. */
export type Blocks = (id: string) => string | null;

const fromPage: Blocks = (id) => document.getElementById(`rs-${id}`)?.textContent ?? null;

export const hasStaticData = (): boolean => document.getElementById('rs-manifest') !== null;

async function inflate(text: string): Promise<Uint8Array<ArrayBuffer>> {
  const stream = new Blob([fromAscii(text)]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Attribute values are JSON text in the tables. */
function parseAttrs(value: unknown): Attrs {
  const out = Object.create(null) as Attrs;
  if (typeof value === 'string') return parseJson(value) as Attrs;
  for (const [k, v] of Object.entries((value as Attrs | null) ?? {})) out[k] = parseJson(String(v));
  return out;
}
function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** The value of the row that is the n-th of its shape. */
const valueOf = (values: unknown[], n: number): unknown => (values.length === 1 ? values[0] : values[n]);

/** The beginning of what the first message of a role says, or the last. */
function said(messages: Message[], role: string, last: boolean): string {
  const found = last ? messages.findLast((m) => m.role === role) : messages.find((m) => m.role === role);
  const content = found?.content;
  const parts = Array.isArray(content) ? (content as { text?: unknown }[]).map((p) => p?.text) : [content];
  return parts
    .filter((t) => typeof t === 'string')
    .join(' ')
    .slice(0, 300);
}

/** A row of the conversations table as the server's list tells it. */
function asConversation(row: Partial<Record<Column<'conversations'>, unknown>>): Row {
  const plain = Object.fromEntries(Object.entries(row).map(([k, v]) => [k, typeof v === 'bigint' ? (k.endsWith('_ns') ? String(v) : Number(v)) : v]));
  const parsed = parseJson(String(row.messages));
  const messages = (Array.isArray(parsed) ? parsed : []).filter((m): m is Message => typeof m === 'object' && m !== null && !Array.isArray(m));
  const metadata = typeof row.metadata === 'string' ? (parseJson(row.metadata) as Attrs) : null;
  return { ...plain, metadata, messages, preview: said(messages, 'user', false), answer: said(messages, 'assistant', true) } as unknown as Row;
}

/** What a file does not say of a run. */
const NOT_IN_A_FILE = { tags: [], last_ns: null, bytes: 0, log_bytes: 0 } satisfies Partial<RunInfo>;

const no = (what: string): SourceError =>
  new SourceError('Not in this file', `${what} needs a server: run \`rollscope serve\`, or \`rollscope view\` on the original file.`);

export class StaticSource implements DataSource {
  readonly kind = 'static' as const;
  readonly can = { sql: false, remove: false, live: false };
  private manifestPromise: Promise<Manifest> | null = null;
  private readonly chunks = new Map<string, Promise<unknown>>();
  private readonly talk = new Map<string, Promise<Row[]>>();

  constructor(private readonly blocks: Blocks = fromPage) {}

  private async bytes(id: string): Promise<Uint8Array<ArrayBuffer>> {
    const text = this.blocks(id);
    if (text === null) throw new SourceError('The file is incomplete', `The block rs-${id} is missing.`);
    try {
      return await inflate(text);
    } catch {
      throw new SourceError('The file is damaged', `The block rs-${id} cannot be decompressed.`);
    }
  }
  private async json<T>(id: string): Promise<T> {
    return JSON.parse(new TextDecoder().decode(await this.bytes(id))) as T;
  }
  manifest(): Promise<Manifest> {
    this.manifestPromise ??= this.json<Manifest>('manifest').then((m) => {
      if (m.version !== 2)
        throw new SourceError(
          'This file does not match its page',
          `Its manifest has version ${String(m.version)}, but the page reads version 2. Export the file again.`,
        );
      return m;
    });
    return this.manifestPromise;
  }
  private async place(run: string, window: Window): Promise<Manifest['per_run'][number]['windows'][number]> {
    const entry = (await this.manifest()).per_run.find((r) => r.run_id === run);
    const found = entry?.windows.find((w) => w.step === (window.step ?? null)) ?? (window.step === undefined ? entry?.windows[0] : undefined);
    if (!found) throw new SourceError('Not in this file', `Step ${String(window.step)} of run ${run} was not exported.`);
    return found;
  }

  conversations(run: string): Promise<Row[]> {
    let list = this.talk.get(run);
    if (!list) {
      list = this.readConversations(run);
      this.talk.set(run, list);
    }
    return list;
  }
  private async readConversations(run: string): Promise<Row[]> {
    const entry = (await this.manifest()).per_run.find((r) => r.run_id === run);
    const blocks = (entry?.windows ?? []).flatMap((w) => (w.conversations ?? []).map((id, k) => [id, w.words?.[k] ?? ''] as const));
    const parts = await Promise.all(
      blocks.map(async ([id, words]) => {
        const texts = readWords(await this.bytes(words));
        return rows<Column<'conversations'>>(readStream(await this.bytes(id))).map((row, k) => asConversation({ ...row, messages: texts[k] }));
      }),
    );
    return parts.flat();
  }
  async firing(): Promise<number> {
    return 0;
  }
  async isLake(): Promise<boolean> {
    return false;
  }
  async health(): Promise<Health> {
    const m = await this.manifest();
    return { status: 'ok', version: m.generator, problems: m.notes ?? [] };
  }
  async runs(): Promise<RunInfo[]> {
    const list = rows(readStream(await this.bytes((await this.manifest()).runs)));
    const plain = (k: string, v: unknown): unknown => (typeof v === 'bigint' ? (k.endsWith('_ns') ? String(v) : Number(v)) : v);
    return list.map((r) => {
      const run = Object.fromEntries(Object.entries(r).map(([k, v]) => [k, plain(k, v)])) as Omit<RunInfo, keyof typeof NOT_IN_A_FILE>;
      return { ...NOT_IN_A_FILE, ...run };
    });
  }
  async steps(run: string): Promise<StepInfo[]> {
    const entry = (await this.manifest()).per_run.find((r) => r.run_id === run);
    if (!entry) throw new SourceError('Not in this file', `This file has no run ${run}.`);
    // Nothing in a file runs, and a file has no division of the time among phases.
    const { steps } = await this.json<{ steps: Omit<StepInfo, 'running' | 'exclusive' | 'version'>[] }>(entry.steps);
    return steps.map((s) => ({ ...s, running: false, exclusive: s.phases, version: '' }));
  }
  async timeline(run: string, window: Window): Promise<TimelineAnswer> {
    return { bytes: await this.bytes((await this.place(run, window)).timeline), version: null, delta: false };
  }
  async links(run: string, window: Window): Promise<ArrowStream> {
    const { links } = await this.place(run, window);
    return links === undefined ? { fields: [], batches: [] } : readStream(await this.bytes(links));
  }
  async samples(run: string, window: Window): Promise<Uint8Array<ArrayBuffer>> {
    return this.bytes((await this.place(run, window)).samples);
  }
  async span(trace: string, span: string, place?: SpanPlace): Promise<SpanDetail> {
    if (!place) throw no('Looking up a span by its id');
    const w = await this.place(place.run, place.window);
    const chunk = Math.floor(place.row / w.chunk_rows);
    const [attrs, rest] = [w.attrs[chunk], w.rest[chunk]];
    if (attrs === undefined || rest === undefined)
      throw new SourceError('Not in this file', 'The attributes of this span were left out of the export.');
    const at = place.row - chunk * w.chunk_rows;
    const keyed = await this.kept(attrs, () => this.json<Keyed>(attrs));
    const row = rowAt<Column<'spans'>>(await this.kept(rest, async () => readStream(await this.bytes(rest))), at);
    if (!row || at >= keyed.rows.length) throw new SourceError('The file is damaged', `The block rs-${rest} does not contain span ${span}.`);
    const found = { start_attrs: Object.create(null) as Attrs, end_attrs: Object.create(null) as Attrs };
    const shape = keyed.shapes[keyed.rows[at]];
    let among = 0;
    for (let i = 0; i < at; i++) if (keyed.rows[i] === keyed.rows[at]) among++;
    shape?.keys.forEach(([column, key], k) => (found[column][key] = valueOf(shape.values[k], among)));
    const list = <T>(value: unknown): T[] => (Array.isArray(value) ? (value as T[]) : []);
    return {
      ...(row as Partial<SpanDetail>),
      ...found,
      trace_id: trace,
      span_id: span,
      parent_span_id: null,
      name: '',
      start_ns: '0',
      end_ns: null,
      events: list<SpanDetail['events'][number]>(row.events).map((e) => ({ ...e, time_ns: String(e.time_ns), attrs: parseAttrs(e.attrs) })),
      links: list<SpanDetail['links'][number]>(row.links).map((l) => ({ ...l, attrs: parseAttrs(l.attrs) })),
      resource: parseAttrs(row.resource ?? null),
      scope: parseAttrs(row.scope ?? null),
    };
  }
  /** A block that was unpacked lately. */
  private kept<T>(id: string, read: () => Promise<T>): Promise<T> {
    let value = this.chunks.get(id) as Promise<T> | undefined;
    if (!value) {
      value = read();
      this.chunks.set(id, value);
      if (this.chunks.size > 16) this.chunks.delete(this.chunks.keys().next().value as string);
    }
    return value;
  }
  /** Looks through every block of attributes. */
  async withAttr(run: string, window: Window, test: AttrTest, signal?: AbortSignal): Promise<Uint8Array> {
    const number = Number(test.value);
    const text = test.value.toLowerCase();
    const holds = (v: unknown): boolean => {
      if (v === undefined || v === null) return false;
      const said = typeof v === 'string' ? v : JSON.stringify(v);
      switch (test.op) {
        case 'is':
          return true;
        case '~':
          return said.toLowerCase().includes(text);
        case '=':
          return said === test.value;
        case '!=':
          return said !== test.value;
        case '<':
          return Number(v) < number;
        case '<=':
          return Number(v) <= number;
        case '>':
          return Number(v) > number;
        case '>=':
          return Number(v) >= number;
      }
    };
    const w = await this.place(run, window);
    const ids = await this.kept(`ids ${w.timeline}`, async () => packedIds(readStream(await this.bytes(w.timeline))));
    const found: number[] = [];
    for (const [c, id] of w.attrs.entries()) {
      if (signal?.aborted) break;
      const keyed = await this.json<Keyed>(id);
      // What was known at the end counts more than what was known at the start: it comes later.
      const columns = keyed.shapes.map((s) => s.values[s.keys.findLastIndex(([, key]) => key === test.key)]);
      const met = new Uint32Array(columns.length);
      for (let i = 0; i < keyed.rows.length; i++) {
        const shape = keyed.rows[i];
        const values = columns[shape];
        const row = c * w.chunk_rows + i;
        if (values && holds(valueOf(values, met[shape]++))) found.push(...ids.subarray(row * 8, row * 8 + 8));
      }
    }
    return Uint8Array.from(found);
  }
  setTags(): Promise<void> {
    return Promise.reject(no('Changing tags'));
  }
  removeRun(): Promise<void> {
    return Promise.reject(no('Deleting a run'));
  }
  tables(): Promise<TableInfo[]> {
    return Promise.resolve([]);
  }
  sql(): Promise<SqlAnswer> {
    return Promise.reject(no('SQL'));
  }
  exported(): Promise<Blob> {
    return Promise.reject(no('SQL'));
  }
  live(): () => void {
    return () => undefined;
  }
}
