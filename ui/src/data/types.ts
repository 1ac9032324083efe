// What the page knows of the data, and the one interface through which it gets it. Two implementations: server.ts (the
// HTTP API) and static.ts (blocks inside the page). Times in JSON are nanoseconds as text: they do not fit a number.
import type { ArrowStream } from './arrow';
import type { Row } from './conversations';

export interface RunInfo {
  run_id: string;
  project: string | null;
  name: string | null;
  framework: string | null;
  tags?: string[];
  status: string | null;
  started_ns: string | null;
  ended_ns: string | null;
  last_ns: string | null;
  spans: number;
  samples: number;
  steps: number;
  /** On disk; `log_bytes` of it still in the log. */
  bytes: number;
  log_bytes?: number;
}

export interface StepInfo {
  step: number;
  start_ns: string;
  end_ns: string | null;
  spans: number;
  samples: number;
  open: number;
  /** Some span has not ended, and the run goes on. Nothing in a file does. */
  running?: boolean;
  reward_mean: number | null;
  /** Seconds during which at least one span of the phase was running. */
  phases: Record<string, number>;
  /** Seconds split over the phases: every moment counts once. What is missing to the wall time, nobody claims. */
  exclusive?: Record<string, number>;
}

export type Attrs = Record<string, unknown>;

export interface SpanDetail {
  trace_id: string;
  span_id: string;
  parent_span_id: string | null;
  name: string;
  start_ns: string;
  end_ns: string | null;
  state?: string;
  status?: string;
  status_message?: string | null;
  start_attrs: Attrs;
  end_attrs: Attrs;
  events: { time_ns: string; name: string; attrs: Attrs }[];
  links: { trace_id: string; span_id: string; attrs: Attrs }[];
  resource?: Attrs | null;
  scope?: Attrs | null;
  [column: string]: unknown;
}

export interface TableInfo {
  name: string;
  columns: { name: string; type: string; doc?: string; nullable?: boolean }[];
}

export interface Health {
  status: string;
  version: string;
  store?: Record<string, unknown>;
  problems: unknown[];
  ingest?: Record<string, number>;
}

export interface Change {
  version: number;
  runs: string[];
}

/** The caller owns the bytes. */
export interface TimelineAnswer {
  bytes: Uint8Array<ArrayBuffer>;
  /** For `since`; null: this source never has news. */
  version: string | null;
  /** Only what is new, to be joined. */
  delta: boolean;
}

export interface AttrTest {
  key: string;
  op: '=' | '!=' | '<' | '<=' | '>' | '>=' | '~' | 'is';
  value: string;
}

/** The answer to a query, and whether rows are missing from it. */
export interface SqlAnswer {
  stream: ArrowStream;
  truncated: boolean;
}

/** A step, or a window of time in nanoseconds. */
export interface Window {
  step?: number;
  from_ns?: string;
  to_ns?: string;
}

/** Where the timeline of a span was drawn: lets the static page find its block without looking through all of them. */
export interface SpanPlace {
  run: string;
  window: Window;
  row: number;
}

export interface DataSource {
  readonly kind: 'server' | 'static';
  /** What this source can do; the page leaves out what it cannot. */
  readonly can: { sql: boolean; remove: boolean; live: boolean };
  /** Every conversation of a run, with its messages, where the page holds them itself. */
  conversations?(run: string): Promise<Row[]>;
  health(signal?: AbortSignal): Promise<Health>;
  runs(signal?: AbortSignal): Promise<RunInfo[]>;
  /** The id of the run that is meant by an id, a name, project/name or a beginning of these. A file knows ids only. */
  findRun?(run: string): Promise<string>;
  removeRun(run: string): Promise<void>;
  steps(run: string, signal?: AbortSignal): Promise<StepInfo[]>;
  /** Arrow IPC stream of packed spans without attributes; with `since`, of the traces that changed after that version. */
  timeline(run: string, window: Window, how?: { live?: boolean; since?: string | null }, signal?: AbortSignal): Promise<TimelineAnswer>;
  /** Arrow IPC stream: trace_id, span_id, to_trace_id, to_span_id. */
  links(run: string, window: Window, signal?: AbortSignal): Promise<ArrowStream>;
  /** Ids of the spans (8 bytes each) whose attribute compares so. `is`: the attribute is there. */
  withAttr(run: string, window: Window, test: AttrTest, signal?: AbortSignal): Promise<Uint8Array>;
  setTags(run: string, tags: string[]): Promise<void>;
  /** Arrow IPC stream of the samples table, at least the columns that tables and rows show. */
  samples(run: string, window: Window, signal?: AbortSignal): Promise<Uint8Array<ArrayBuffer>>;
  span(trace: string, span: string, place?: SpanPlace, signal?: AbortSignal): Promise<SpanDetail>;
  tables(signal?: AbortSignal): Promise<TableInfo[]>;
  sql(query: string, maxRows: number, signal?: AbortSignal): Promise<SqlAnswer>;
  /** The whole answer as a file, made by the server. */
  exported(query: string, format: 'csv' | 'json' | 'arrow', signal?: AbortSignal): Promise<Blob>;
  /** Calls back when something changed; returns how to stop. `state` says whether the stream stands. */
  live(changed: (c: Change) => void, state: (up: boolean) => void): () => void;
}
