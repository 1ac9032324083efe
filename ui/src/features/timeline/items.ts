// The spans of a timeline as columns: typed arrays of one length, no object per span. They come packed (packed.ts); what
// changed in a running step takes the place of what was there (merge.ts).
import { PHASES } from '../../domain/phases';

export const CLOSED = 0;
export const OPEN = 1;
export const INSTANT = 2;
export const ORPHAN = 3;
/** Lower two bits of `flags` are the state. */
export const STATE = 3;
export const ERROR = 4;
/** Has children in this window: drawn paler, so that the innermost work stands out. */
export const PARENT = 8;
/** Names a parent that is not in this window. */
export const LOST_PARENT = 16;
/** Made by the server from attributes of its parent; there is no such span in the store. */
export const VIRTUAL = 32;
/** Its first lanes below are for prefill and decode. */
export const HAS_PD = 64;

export interface Items {
  n: number;
  /** Nanoseconds since the epoch of time 0. */
  baseNs: bigint;
  /** Milliseconds since baseNs. */
  start: Float64Array;
  /** As drawn: an open span ends where it is clipped, an instant where it starts. */
  end: Float64Array;
  /** Latest end. */
  extent: number;
  parent: Int32Array;
  depth: Uint8Array;
  flags: Uint8Array;
  phase: Uint8Array;
  name: Int32Array;
  names: string[];
  /** -1: belongs to no sample. Inherited from the nearest ancestor that has one. */
  sample: Int32Array;
  samples: string[];
  /** Group of each sample, -1: none. */
  sampleGroup: Int32Array;
  groups: string[];
  worker: Int32Array;
  workers: string[];
  attempt: Uint8Array;
  trace: Int32Array;
  /** 16 bytes per trace. */
  traceIds: Uint8Array;
  /** 8 bytes per span. */
  spanIds: Uint8Array;
  /** Number of items per state. */
  states: [number, number, number, number];
  /** Number of items per phase. */
  phaseCounts: Uint32Array;
  /** Attempts that occur. */
  attempts: number[];
  /** Lanes of the rows by sample where the server gave them; the items then stand by row, lane and start. */
  lane: Uint8Array | null;
  /** How many spans an item stands for; null: each is one. */
  weight: Uint32Array | null;
  /** Milliseconds of the spans that an item stands for together, and of the longest of them; null: as it is drawn. */
  total: Float32Array | null;
  longest: Float32Array | null;
  /** All spans that the items stand for. */
  spans: number;
  /** Spans shorter than so many milliseconds stand for each other: everywhere, and where somebody looked. Null: none do. */
  thinned: { part: number; focusPart: number | null } | null;
  /** In a static page: the row of the item among the blocks of attributes, -1: made up. Null: the same row. */
  source: Int32Array | null;
}

/** How many spans an item stands for, how long they are together, and the longest of them. */
export const weightOf = (items: Items, i: number): number => (items.weight === null ? 1 : items.weight[i]);
export const totalOf = (items: Items, i: number): number => (items.total === null ? items.end[i] - items.start[i] : items.total[i]);
export const longestOf = (items: Items, i: number): number => (items.longest === null ? items.end[i] - items.start[i] : items.longest[i]);

/**
 * The span in the store that an item shows: its own, or for a row that the server made from attributes, the span that has them. -1: not
 * known. What stands for several spans does not say which of them it was, and thinning may cut a row off from its span.
 */
export function storedOf(items: Items, item: number): number {
  let i = item;
  while ((items.flags[i] & VIRTUAL) !== 0) {
    i = items.parent[i];
    if (i < 0 || weightOf(items, i) > 1) return -1;
  }
  return i;
}

export const wordsOf = (b: Uint8Array): Uint32Array => new Uint32Array(b.buffer, b.byteOffset, b.byteLength >> 2);

/** Numbers that the page shows beside its switches. */
export function tally(
  flags: Uint8Array,
  phase: Uint8Array,
  attempt: Uint8Array,
  weight: Uint32Array | null,
): Pick<Items, 'states' | 'phaseCounts' | 'attempts' | 'spans'> {
  const states: [number, number, number, number] = [0, 0, 0, 0];
  const phaseCounts = new Uint32Array(PHASES.length);
  const seen = new Uint8Array(256);
  let spans = 0;
  for (let i = 0; i < flags.length; i++) {
    const w = weight === null ? 1 : weight[i];
    spans += w;
    states[flags[i] & STATE] += w;
    phaseCounts[phase[i]] += w;
    seen[attempt[i]] = 1;
  }
  return { states, phaseCounts, attempts: [...seen.keys()].filter((a) => seen[a] === 1), spans };
}

/** The buffers to hand over between threads; columns may share one. */
export const buffersOf = (...all: object[]): ArrayBuffer[] => [
  ...new Set(all.flatMap((x) => Object.values(x)).flatMap((v) => (ArrayBuffer.isView(v) && v.byteLength > 0 ? [v.buffer as ArrayBuffer] : []))),
];
