// What the page knows of the data, and the one interface through which it gets it. Two implementations: server.ts (the
// HTTP API) and static.ts (blocks inside the page). Times in JSON are nanoseconds as text: they do not fit a number.
import type { HealthAnswer, LiveEvent, RunInfo, SpanDetail as Span, StepInfo, TableInfo } from '../generated/api';
import type { ArrowStream } from './arrow';
import type { Row } from './conversations';

export type { RunInfo, StepInfo, TableInfo } from '../generated/api';
export type { LiveEvent as Change } from '../generated/api';

export type Attrs = Record<string, unknown>;

/** A file leaves out columns that are null everywhere, and those that the timeline has. */
export type SpanDetail = Partial<Span> & Pick<Span, 'trace_id' | 'span_id' | 'start_attrs' | 'end_attrs' | 'events' | 'links'>;

/** A file has no store, and nothing is sent to it. */
export type Health = Pick<HealthAnswer, 'status' | 'version' | 'problems'> & Partial<HealthAnswer>;

/** Where somebody looks closely at a timeline: a window of time and, if not everywhere, some samples. */
export interface Focus {
  fromNs: bigint;
  toNs: bigint;
  samples: readonly string[] | null;
}

export interface HowTimeline {
  live?: boolean;
  since?: string | null;
  /** Items, about: short spans stand for each other beyond that. */
  most?: string | null;
  focus?: Focus | null;
  /** A span that stays apart, as the address names it. */
  apart?: string | null;
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

/** Whose some spans are: a trace (16 bytes) and the sample that they name. No pair twice. */
export interface Owners {
  traceIds: Uint8Array;
  samples: (string | null)[];
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
  /** How many alarms fire and are not silenced. */
  firing(): Promise<number>;
  /** Is the data in a lake, which nodes share? */
  isLake(): Promise<boolean>;
  runs(signal?: AbortSignal): Promise<RunInfo[]>;
  /** The id of the run that is meant by an id, a name, project/name or a beginning of these. A file knows ids only. */
  findRun?(run: string): Promise<string>;
  removeRun(run: string): Promise<void>;
  steps(run: string, signal?: AbortSignal): Promise<StepInfo[]>;
  /** Arrow IPC stream of packed spans without attributes; with `since`, of the traces that changed after that version. */
  timeline(run: string, window: Window, how?: HowTimeline, signal?: AbortSignal): Promise<TimelineAnswer>;
  /** Arrow IPC stream: trace_id, span_id, to_trace_id, to_span_id. */
  links(run: string, window: Window, signal?: AbortSignal): Promise<ArrowStream>;
  /** Ids of the spans (8 bytes each) whose attribute compares so. `is`: the attribute is there. */
  withAttr(run: string, window: Window, test: AttrTest, signal?: AbortSignal): Promise<Uint8Array>;
  /** Whose these spans are: where spans stand for each other, most ids are not in the picture. A file has them all. */
  ownersWithAttr?(run: string, window: Window, test: AttrTest, signal?: AbortSignal): Promise<Owners>;
  setTags(run: string, tags: string[]): Promise<void>;
  /** Arrow IPC stream of the samples table, at least the columns that tables and rows show. */
  samples(run: string, window: Window, signal?: AbortSignal): Promise<Uint8Array<ArrayBuffer>>;
  span(trace: string, span: string, place?: SpanPlace, signal?: AbortSignal): Promise<SpanDetail>;
  tables(signal?: AbortSignal): Promise<TableInfo[]>;
  sql(query: string, maxRows: number, signal?: AbortSignal): Promise<SqlAnswer>;
  /** The whole answer as a file, made by the server. */
  exported(query: string, format: 'csv' | 'json' | 'arrow', signal?: AbortSignal): Promise<Blob>;
  /** Calls back when something changed; returns how to stop. `state` says whether the stream stands. */
  live(changed: (c: LiveEvent) => void, state: (up: boolean) => void): () => void;
}
