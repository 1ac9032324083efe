// A timeline of very many spans comes thinned: short spans that look alike stand for each other. Where somebody looks more
// closely, the spans themselves are asked for: those of the rows and of the time in view, and a little around it.
import type { Focus } from '../../data/types';
import type { Scene } from './scene';

/** Parts that are this wide, in pixels, can be told from what they stand for. */
const COARSE = 2;
/** Rows that are named in a question, and how long it may get: proxies take addresses of 8 KiB. */
const MOST_ROWS = 600;
const MOST_TEXT = 6000;
/** A view has become much smaller when it is this share of what was asked for. */
const MUCH = 4;
/** The end of a running step moves on, so what touches it has none. */
const NO_END = 2n ** 63n - 1n;

/** What is in view, as times in the scene and rows. */
interface View {
  from: number;
  to: number;
  rows: readonly number[];
}

/** @param around what is taken along on each side, as a share of what is in view */
function viewOf(s: Scene, around: number): View {
  const wide = (s.t1 - s.t0) * around;
  const high = s.height * around;
  const first = s.rowAt(Math.max(0, s.scroll - high));
  const last = s.rowAt(s.scroll + s.height + high);
  return {
    from: Math.max(0, s.t0 - wide),
    to: Math.min(s.items.extent, s.t1 + wide),
    rows: Array.from(s.rows.order.subarray(first, last + 1)),
  };
}

/** Samples among the rows; null: rows are something else, or too many to name. What belongs to no sample is always asked for. */
function samplesOf(s: Scene, rows: readonly number[]): string[] | null {
  if (s.layout.mode !== 'sample' || rows.length > MOST_ROWS) return null;
  const names = rows.filter((r) => s.layout.rowKind[r] === 0).map((r) => s.items.samples[s.layout.rowKey[r]]);
  return encodeURIComponent(JSON.stringify(names)).length > MOST_TEXT ? null : names;
}

/**
 * What to ask for, or null if the picture is as fine as it can be seen.
 * @param had where the items of the scene are finer
 */
export function closer(s: Scene, had: Focus | null): Focus | null {
  const { thinned, baseNs } = s.items;
  if (!thinned) return null;
  const ns = (ms: number): bigint => baseNs + BigInt(Math.round(ms * 1e6));
  const view = viewOf(s, 0);
  const seen = samplesOf(s, view.rows);
  const inTime = had !== null && had.fromNs <= ns(view.from) && had.toNs >= ns(view.to);
  const named = had?.samples ? new Set(had.samples) : null;
  const isInside = inTime && thinned.focusPart !== null && (named === null || (seen?.every((x) => named.has(x)) ?? false));
  const part = isInside ? thinned.focusPart! : thinned.part;
  if (part * s.scale <= COARSE) return null;
  const wide = viewOf(s, 0.5);
  const samples = samplesOf(s, wide.rows);
  if (isInside) {
    // It was as fine as there was room for: only a much smaller stretch, or much fewer samples, would be finer.
    const end = ns(s.items.extent);
    const isShorter = (ns(view.to) - ns(view.from)) * BigInt(MUCH) <= (had.toNs < end ? had.toNs : end) - had.fromNs;
    const before = named?.size ?? s.items.samples.length;
    const areFewer = seen !== null && samples !== null && seen.length * MUCH < before && samples.length < before;
    if (!isShorter && !areFewer) return null;
  }
  return { fromNs: ns(wide.from), toNs: wide.to < s.items.extent ? ns(wide.to) : NO_END, samples };
}
