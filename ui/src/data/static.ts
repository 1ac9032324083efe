// Data inside the page: one HTML file that works from disk, without a server.
//
// The binary replaces the marker in dist-static/viewer.html by blocks, each one element:
//
//     <script type="application/octet-stream" id="rs-NAME">BASE64</script>
//
// BASE64 is standard base64 (white space allowed) of the gzip of the block's bytes. Base64 and the names below contain no
// `<`, so nothing in the data can end the element. Blocks are decoded when first needed.
//
// | id | bytes |
// |---|---|
// | `rs-manifest` | JSON, UTF-8: the Manifest below. Always there; everything else is named by it. |
// | `rs-runs` | Arrow IPC stream with the columns of `GET /api/v1/runs` (ns as Int64) |
// | `rs-steps-R` | JSON, the answer of `GET /runs/R/steps` (R: position of the run in the manifest) |
// | `rs-timeline-R-S` | Arrow IPC stream of one step, one batch: what `formats::export::timeline::pack` makes, which is also what `GET /runs/R/timeline` answers (S: position in `windows`) |
// | `rs-samples-R-S` | Arrow IPC stream of the samples table for that step |
// | `rs-attrs-R-S-C` | Arrow IPC stream, chunk C of the rest of the spans: span_id, start_attrs, end_attrs, events, links, and any other column of the spans table that the timeline lacks. Rows stand in the order of `Packed::order` (the timeline block without the rows that `pack` made up), `chunk_rows` (4096) to a chunk. |
// | `rs-links-R-S` | where there are any; Arrow IPC stream: trace_id, span_id, to_trace_id, to_span_id, one row a link |
// | `rs-conversations-R-S-C` | where there are any; Arrow IPC stream, part C of the conversations table for that step |
//
// Names are free as long as the manifest uses the same; the ids above are what the binary writes. Streams must be
// uncompressed inside (gzip is outside) and end with the end-of-stream marker.
import type { Message, Row } from '../conversations/api';
import { readStream, rowAt, rows, type ArrowStream } from './arrow';
import { SourceError, type AttrTest, type Attrs, type DataSource, type Health, type RunInfo, type SpanDetail, type SpanPlace, type SqlAnswer, type StepInfo, type TableInfo, type TimelineAnswer, type Window } from './types';

export interface Manifest {
  version: 1;
  /** Program and version that wrote it. */
  generator: string;
  /** Block ids without `rs-`. */
  runs: string;
  per_run: {
    run_id: string;
    steps: string;
    windows: { step: number | null; timeline: string; samples: string; attrs: string[]; chunk_rows: number; links?: string; conversations?: string[] }[];
  }[];
  /** What was left out to keep the file small, for people. */
  notes?: string[];
}

/** Text of a block by its id without `rs-`, or null. */
export type Blocks = (id: string) => string | null;

const fromPage: Blocks = (id) => document.getElementById(`rs-${id}`)?.textContent ?? null;

export const hasStaticData = (): boolean => document.getElementById('rs-manifest') !== null;

/** The browser's own decoder where there is one: a step of a million items is 40 MB of text. */
function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  const decode = (Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array<ArrayBuffer> }).fromBase64;
  if (decode) return decode.call(Uint8Array, base64);
  const raw = atob(base64.trim());
  const packed = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) packed[i] = raw.charCodeAt(i);
  return packed;
}

async function inflate(base64: string): Promise<Uint8Array<ArrayBuffer>> {
  const packed = bytesOf(base64);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
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

/** The beginning of what the first message of a role says, or the last. */
function said(messages: Message[], role: string, last: boolean): string {
  const found = last ? messages.findLast((m) => m.role === role) : messages.find((m) => m.role === role);
  const content = found?.content;
  const parts = Array.isArray(content) ? (content as { text?: unknown }[]).map((p) => p?.text) : [content];
  return parts.filter((t) => typeof t === 'string').join(' ').slice(0, 300);
}

/** A row of the conversations table as the server's list tells it. */
function asConversation(row: Record<string, unknown>): Row {
  const plain = Object.fromEntries(Object.entries(row).map(([k, v]) => [k, typeof v === 'bigint' ? (k.endsWith('_ns') ? String(v) : Number(v)) : v]));
  const parsed = parseJson(String(row.messages));
  const messages = (Array.isArray(parsed) ? parsed : []).filter((m): m is Message => typeof m === 'object' && m !== null && !Array.isArray(m));
  const metadata = typeof row.metadata === 'string' ? (parseJson(row.metadata) as Attrs) : null;
  return { ...plain, metadata, messages, preview: said(messages, 'user', false), answer: said(messages, 'assistant', true) } as unknown as Row;
}

const no = (what: string): SourceError => new SourceError('Not in this file', `${what} needs a server: run \`rollscope serve\`, or \`rollscope view\` on the original file.`);

export class StaticSource implements DataSource {
  readonly kind = 'static' as const;
  readonly can = { sql: false, remove: false, live: false };
  private manifestPromise: Promise<Manifest> | null = null;
  private readonly chunks = new Map<string, Promise<ArrowStream>>();
  private readonly talk = new Map<string, Promise<Row[]>>();

  constructor(private readonly blocks: Blocks = fromPage) {}

  private async bytes(id: string): Promise<Uint8Array<ArrayBuffer>> {
    const text = this.blocks(id);
    if (text === null) throw new SourceError('The file is incomplete', `The block rs-${id} is missing.`);
    try {
      return await inflate(text);
    } catch {
      throw new SourceError('The file is damaged', `The block rs-${id} cannot be unpacked.`);
    }
  }
  private async json<T>(id: string): Promise<T> {
    return JSON.parse(new TextDecoder().decode(await this.bytes(id))) as T;
  }
  manifest(): Promise<Manifest> {
    this.manifestPromise ??= this.json<Manifest>('manifest').then((m) => {
      if (m.version !== 1) throw new SourceError('The file is newer than its page', `Manifest version ${String(m.version)} is not known here.`);
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

  get(): Promise<Response> {
    return Promise.reject(no('This'));
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
    const blocks = (entry?.windows ?? []).flatMap((w) => w.conversations ?? []);
    const parts = await Promise.all(blocks.map((id) => this.bytes(id)));
    return parts.flatMap((bytes) => rows(readStream(bytes)).map(asConversation));
  }
  async health(): Promise<Health> {
    const m = await this.manifest();
    return { status: 'ok', version: m.generator, problems: m.notes ?? [] };
  }
  async runs(): Promise<RunInfo[]> {
    const list = rows(readStream(await this.bytes((await this.manifest()).runs)));
    return list.map((r) => Object.fromEntries(Object.entries(r).map(([k, v]) => [k, typeof v === 'bigint' ? (k.endsWith('_ns') ? String(v) : Number(v)) : v])) as unknown as RunInfo);
  }
  async steps(run: string): Promise<StepInfo[]> {
    const entry = (await this.manifest()).per_run.find((r) => r.run_id === run);
    if (!entry) throw new SourceError('Not in this file', `This file has no run ${run}.`);
    return (await this.json<{ steps: StepInfo[] }>(entry.steps)).steps;
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
    if (!place) throw no('Looking a span up by its id');
    const w = await this.place(place.run, place.window);
    const chunk = Math.floor(place.row / w.chunk_rows);
    const id = w.attrs[chunk];
    if (id === undefined) throw new SourceError('Not in this file', 'The attributes of this span were left out of the export.');
    let stream = this.chunks.get(id);
    if (!stream) {
      stream = this.bytes(id).then(readStream);
      this.chunks.set(id, stream);
      if (this.chunks.size > 8) this.chunks.delete(this.chunks.keys().next().value as string);
    }
    const row = rowAt(await stream, place.row - chunk * w.chunk_rows);
    if (!row || row.span_id !== span) throw new SourceError('The file is damaged', `Block rs-${id} does not hold span ${span}.`);
    const list = <T>(value: unknown): T[] => (Array.isArray(value) ? (value as T[]) : []);
    return {
      ...row, trace_id: trace, span_id: span, parent_span_id: null, name: '', start_ns: '0', end_ns: null,
      start_attrs: parseAttrs(row.start_attrs),
      end_attrs: parseAttrs(row.end_attrs),
      events: list<Attrs>(row.events).map((e) => ({ time_ns: String(e.time_ns), name: String(e.name), attrs: parseAttrs(e.attrs) })),
      links: list<Attrs>(row.links).map((l) => ({ trace_id: String(l.trace_id), span_id: String(l.span_id), attrs: parseAttrs(l.attrs) })),
      resource: parseAttrs(row.resource ?? null),
      scope: parseAttrs(row.scope ?? null),
    };
  }
  /** Looks through every block of attributes. */
  async withAttr(run: string, window: Window, test: AttrTest, signal?: AbortSignal): Promise<Uint8Array> {
    const found: number[] = [];
    const number = Number(test.value);
    const text = test.value.toLowerCase();
    for (const id of (await this.place(run, window)).attrs) {
      if (signal?.aborted) break;
      for (const row of rows(readStream(await this.bytes(id)))) {
        const v = { ...parseAttrs(row.start_attrs), ...parseAttrs(row.end_attrs) }[test.key];
        if (v === undefined || v === null) continue;
        const said = typeof v === 'string' ? v : JSON.stringify(v);
        const ok =
          test.op === 'is' || (test.op === '~' ? said.toLowerCase().includes(text) : test.op === '=' ? said === test.value : test.op === '!=' ? said !== test.value
          : test.op === '<' ? Number(v) < number : test.op === '<=' ? Number(v) <= number : test.op === '>' ? Number(v) > number : Number(v) >= number);
        if (ok) for (let k = 0; k < 16; k += 2) found.push(parseInt(String(row.span_id).slice(k, k + 2), 16));
      }
    }
    return Uint8Array.from(found);
  }
  setTags(): Promise<void> {
    return Promise.reject(no('Changing tags'));
  }
  removeRun(): Promise<void> {
    return Promise.reject(no('Deleting'));
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
