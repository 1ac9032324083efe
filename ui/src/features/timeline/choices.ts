// What a person chose on the timeline, as the address has it, and what follows from it. Pure.
import { hex } from '../../data/arrow';
import type { RunInfo, StepInfo, Window } from '../../data/types';
import { nsToMs } from '../../base/format';
import { PHASES } from '../../domain/phases';
import { VIRTUAL, type Items } from './items';
import type { RowMode } from './layout';
import type { RowOrder } from './rows';
import { SORTS, type SortKey } from './rows';
import type { Scene } from './scene';

export type Params = Readonly<Record<string, string | undefined>>;

export interface Choices {
  /** `group`: samples, those of a group together. */
  rowsBy: 'group' | RowMode;
  sort: SortKey;
  desc: boolean;
  colorBy: 'phase' | 'name';
  /** The phase or the name that stands out; empty: none. */
  highlight: string;
  attempt: number | null;
  /** Other attempts are not drawn at all. */
  only: boolean;
  /** Kinds of items that are not drawn: open, instant, orphan. */
  hidden: ReadonlySet<string>;
  links: boolean;
  follow: boolean;
  filter: string;
  /** Pixels of a row; null: as it fits. */
  rowHeight: number | null;
  /** Null: expanded where there is room. */
  expanded: boolean | null;
  /** Labels of the rows that are the other way than `expanded`. */
  toggled: readonly string[];
}

const wordsOf = (text: string | undefined): string[] => (text ?? '').split(',').filter(Boolean);

export function choicesOf(p: Params): Choices {
  const height = Number(p.h);
  return {
    rowsBy: p.rows === 'sample' || p.rows === 'worker' || p.rows === 'tool' ? p.rows : 'group',
    sort: SORTS.find((s) => s === (p.sort ?? '').replace(/^-/, '')) ?? 'sample',
    desc: (p.sort ?? '').startsWith('-'),
    colorBy: p.color === 'name' ? 'name' : 'phase',
    highlight: p.hl ?? '',
    attempt: /^\d+$/.test(p.attempt ?? '') ? Number(p.attempt) : null,
    only: p.only === '1',
    hidden: new Set(wordsOf(p.hide)),
    links: p.links === '1',
    follow: p.follow !== '0',
    filter: p.q ?? '',
    rowHeight: height >= 3 && height <= 40 ? height : null,
    expanded: p.x === '1' ? true : p.x === '0' ? false : null,
    toggled: wordsOf(p.rx),
  };
}

/** The list with a word put in, or taken out if it was there; as a parameter. */
export function toggled(list: Iterable<string>, word: string): string {
  const set = new Set(list);
  if (!set.delete(word)) set.add(word);
  return [...set].slice(0, 200).join(',');
}

/** The step that is shown: the one of the address, else the newest. Null: a window of time is shown, or nothing. */
export function stepOf(p: Params, steps: readonly StepInfo[]): number | null {
  if (/^-?\d+$/.test(p.step ?? '')) return Number(p.step);
  return p.from_ns ? null : (steps.at(-1)?.step ?? null);
}

export function windowOf(p: Params, step: number | null): Window | null {
  if (p.from_ns && p.to_ns) return { from_ns: p.from_ns, to_ns: p.to_ns };
  return step === null ? null : { step };
}

const LAST_NS = 600_000_000_000n;
/** The last minutes of a run without steps (an engine alone, plain OpenTelemetry), or null: it has no spans. */
export function lastMinutes(run: RunInfo | undefined): { from_ns: string; to_ns: string } | null {
  if (!run?.last_ns || run.spans === 0) return null;
  const to = BigInt(run.last_ns) + 1n;
  const first = BigInt(run.started_ns ?? run.last_ns);
  return { from_ns: String(to - LAST_NS > first ? to - LAST_NS : first), to_ns: String(to) };
}

/** A run without a status counts as running for a minute after its last span. */
export function isRunning(run: RunInfo | undefined, now: number): boolean {
  if (!run) return false;
  return run.status === 'running' || (run.status === null && run.ended_ns === null && now - nsToMs(run.last_ns ?? '0') < 60_000);
}

/** An item as the address names it: trace and span. */
export function spanText(items: Items, i: number): string {
  const { traceIds, trace, spanIds } = items;
  return `${hex(traceIds.subarray(trace[i] * 16, trace[i] * 16 + 16))}.${hex(spanIds.subarray(i * 8, i * 8 + 8))}`;
}

const SPAN = /^([0-9a-f]{32})\.([0-9a-f]{16})$/;

/** The id of all rows that the server made up: there are no such spans. */
const MADE_UP = '.' + '0'.repeat(16);

/** The span that the address names, if it names one: people cut addresses off. */
export const spanIn = (text: string | undefined): string | null => (text !== undefined && SPAN.test(text) && !text.endsWith(MADE_UP) ? text : null);

/** The number of a trace, -1: it is not there. */
function traceIn({ traceIds }: Items, id: string): number {
  for (let k = 0; k * 16 < traceIds.length; k++) if (hex(traceIds.subarray(k * 16, k * 16 + 16)) === id) return k;
  return -1;
}

/** The item that the address names, -1: none. */
export function itemOf(items: Items, text: string | undefined): number {
  const m = SPAN.exec(text ?? '');
  if (!m) return -1;
  const { trace, spanIds, n } = items;
  const t = traceIn(items, m[1]);
  if (t < 0) return -1;
  const want = m[2].match(/../g)!.map((b) => parseInt(b, 16));
  for (let i = 0; i < n; i++) if (trace[i] === t && want.every((b, k) => spanIds[i * 8 + k] === b)) return i;
  return -1;
}

/** A row that the server made up, in a newer answer, -1: none. Its id says nothing: it is known by its trace, its name and the nearest start. */
export function madeUpIn(items: Items, old: Items, row: number): number {
  const t = traceIn(items, spanText(old, row).slice(0, 32));
  const name = items.names.indexOf(old.names[old.name[row]]);
  const at = old.start[row] + Number(old.baseNs - items.baseNs) / 1e6;
  let best = -1;
  for (let i = 0; i < items.n; i++) {
    if ((items.flags[i] & VIRTUAL) === 0 || items.trace[i] !== t || items.name[i] !== name) continue;
    if (best < 0 || Math.abs(items.start[i] - at) < Math.abs(items.start[best] - at)) best = i;
  }
  return best;
}

/** Names that the highlight leaves out, null: nothing is highlighted. */
function dimmedNames(items: Items, c: Choices): Uint8Array | null {
  if (c.highlight === '') return null;
  const dimmed = new Uint8Array(items.names.length).fill(1);
  if (c.colorBy === 'name') items.names.forEach((x, k) => x === c.highlight && (dimmed[k] = 0));
  else for (let i = 0; i < items.n; i++) if (PHASES[items.phase[i]].key === c.highlight) dimmed[items.name[i]] = 0;
  return dimmed;
}

const LANE = 15;

/** Lays what was chosen over a scene. `height`: pixels that there are for the rows. */
export function applyChoices(s: Scene, rows: RowOrder, c: Choices, height: number): void {
  const { layout, table, items } = s;
  const n = Math.max(1, rows.order.length);
  s.rows = rows;
  s.laneHeight = c.rowHeight ?? LANE;
  s.rowHeight = c.rowHeight ?? Math.max(n <= 160 ? 11 : 3, Math.min(LANE, Math.floor(height / n)));
  s.states = 15 & ~((c.hidden.has('open') ? 2 : 0) | (c.hidden.has('instant') ? 4 : 0) | (c.hidden.has('orphan') ? 8 : 0));
  s.attempt = c.attempt ?? -1;
  s.only = c.only;
  s.dimmed = dimmedNames(items, c);
  const lanes = rows.order.reduce((a, r) => a + layout.laneOf[r + 1] - layout.laneOf[r], 0);
  const all = c.expanded ?? (c.rowHeight === null && lanes * LANE <= height * 1.6);
  if (s.expanded.length !== layout.rows) s.expanded = new Uint8Array(layout.rows);
  s.expanded.fill(all ? 1 : 0);
  for (const label of c.toggled) {
    const k = table.label.indexOf(label);
    if (k >= 0) s.expanded[k] ^= 1;
  }
  s.place();
}
