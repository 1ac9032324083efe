// The spans of a timeline as columns: typed arrays of one length, no object per span. A whole timeline comes packed
// (packed.ts); what is built here comes as the store has it: what is new in a running step, joined to what is there.
import { isNull, valueAt, type ArrowStream, type Vector } from '../../data/arrow';
import { phaseOf, PHASES } from '../../domain/phases';

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
  /** 16 bytes a trace. */
  traceIds: Uint8Array;
  /** 8 bytes a span. */
  spanIds: Uint8Array;
  /** Number of items per state. */
  states: [number, number, number, number];
  /** Number of items per phase. */
  phaseCounts: Uint32Array;
  /** Attempts that occur. */
  attempts: number[];
  /** Lanes of the rows by sample where the server gave them; the items then stand by row, lane and start. */
  lane: Uint8Array | null;
  /** 8 bytes a span, while the step runs: for joining what comes later. */
  parentIds: Uint8Array | null;
  /** In a static page: the row of the item among the blocks of attributes, -1: made up. Null: the same row. */
  source: Int32Array | null;
}

/** Texts numbered in the order they are met. */
class Interner {
  readonly texts: string[] = [];
  private readonly index = new Map<string, number>();
  add(text: string): number {
    let i = this.index.get(text);
    if (i === undefined) {
      i = this.texts.length;
      this.texts.push(text);
      this.index.set(text, i);
    }
    return i;
  }
}

/** Numbers of the texts in one column of one batch. Dictionary columns cost one lookup per distinct text. */
function codes(v: Vector | undefined, n: number, texts: Interner, out: Int32Array, at: number): void {
  if (!v) {
    out.fill(-1, at, at + n);
    return;
  }
  if (!v.dictionary) {
    for (let i = 0; i < n; i++) out[at + i] = isNull(v, i) ? -1 : texts.add(String(valueAt(v, i)));
    return;
  }
  const d = v.dictionary;
  const map = new Int32Array(d.length).fill(-2);
  const { values, validity } = v;
  for (let i = 0; i < n; i++) {
    if (validity !== null && (validity[i >> 3] & (1 << (i & 7))) === 0) {
      out[at + i] = -1;
      continue;
    }
    const k = Number(values[i]);
    let code = k >= 0 && k < map.length ? map[k] : -1;
    if (code === -2) {
      const text = valueAt(d, k);
      code = map[k] = text === null ? -1 : texts.add(String(text));
    }
    out[at + i] = code;
  }
}

export const wordsOf = (b: Uint8Array): Uint32Array => new Uint32Array(b.buffer, b.byteOffset, b.byteLength >> 2);

/** A power of two with room for `n` keys at a load of at most a half. */
function slotsFor(n: number): number {
  let size = 16;
  while (size < n * 2) size *= 2;
  return size;
}

/** Numbers traces in the order they are met. Spans of a trace mostly stand together, so the one before is tried first. */
function numberTraces(words: Uint32Array, n: number): { trace: Int32Array; firsts: number[] } {
  const trace = new Int32Array(n);
  const firsts: number[] = [];
  const seen = new Map<string, number>();
  for (let i = 0; i < n; i++) {
    const a = i * 4;
    if (i > 0 && words[a] === words[a - 4] && words[a + 1] === words[a - 3] && words[a + 2] === words[a - 2] && words[a + 3] === words[a - 1]) {
      trace[i] = trace[i - 1];
      continue;
    }
    const key = String.fromCharCode(
      words[a] & 0xffff,
      words[a] >>> 16,
      words[a + 1] & 0xffff,
      words[a + 1] >>> 16,
      words[a + 2] & 0xffff,
      words[a + 2] >>> 16,
      words[a + 3] & 0xffff,
      words[a + 3] >>> 16,
    );
    let k = seen.get(key);
    if (k === undefined) {
      k = firsts.length;
      firsts.push(i);
      seen.set(key, k);
    }
    trace[i] = k;
  }
  return { trace, firsts };
}

/** A column of 64-bit integers as pairs of halves: arithmetic on bigints is too slow for a million of them. */
function halves(v: Vector | undefined): { lo: Uint32Array; hi: Int32Array } | null {
  const x = v?.values;
  if (!(x instanceof BigInt64Array)) return null;
  return { lo: new Uint32Array(x.buffer, x.byteOffset, x.length * 2), hi: new Int32Array(x.buffer, x.byteOffset, x.length * 2) };
}

const STATES = new Map([
  ['closed', CLOSED],
  ['open', OPEN],
  ['instant', INSTANT],
  ['orphan_end', ORPHAN],
]);

/** Bytes of a fixed-size column of all batches in one array; of a single batch the column itself, unless it must be `owned`. */
function fixedBytes(
  parts: (Vector | undefined)[],
  lengths: number[],
  width: number,
  n: number,
  owned = false,
): { bytes: Uint8Array; valid: Uint8Array | null } {
  const only = parts.length === 1 && !owned ? parts[0] : undefined;
  if (only && only.type.name === 'fixed' && only.type.width === width && only.validity === null && only.values.byteOffset % 4 === 0) {
    return { bytes: (only.values as Uint8Array).subarray(0, n * width), valid: null };
  }
  const bytes = new Uint8Array(n * width);
  let valid: Uint8Array | null = null;
  let at = 0;
  parts.forEach((v, p) => {
    const length = lengths[p];
    if (!v || v.type.name !== 'fixed' || v.type.width !== width) {
      valid ??= new Uint8Array(n).fill(1);
      valid.fill(0, at, at + length);
    } else {
      bytes.set((v.values as Uint8Array).subarray(0, length * width), at * width);
      if (v.validity) {
        valid ??= new Uint8Array(n).fill(1);
        for (let i = 0; i < length; i++) if (isNull(v, i)) valid[at + i] = 0;
      }
    }
    at += length;
  });
  return { bytes, valid };
}

/**
 * @param live the step is still running: open spans reach to the newest time seen. Otherwise they end where their row ends.
 */
export function buildItems(stream: ArrowStream, live: boolean): Items {
  const lengths = stream.batches.map((b) => b.length);
  const n = lengths.reduce((a, b) => a + b, 0);
  const column = (name: string): (Vector | undefined)[] => {
    const c = stream.fields.findIndex((f) => f.name === name);
    return stream.batches.map((b) => (c < 0 ? undefined : b.columns[c]));
  };
  const coded = (name: string, texts: Interner, out = new Int32Array(n)): Int32Array => {
    let at = 0;
    column(name).forEach((v, p) => {
      codes(v, lengths[p], texts, out, at);
      at += lengths[p];
    });
    return out;
  };

  // Times. The base is the earliest start, so that a double holds the rest to the nanosecond.
  const starts = column('start_ns').map(halves);
  const endColumns = column('end_ns');
  const ends = endColumns.map(halves);
  let baseHi = Infinity;
  let baseLo = 0;
  starts.forEach((v, p) => {
    if (!v) return;
    for (let i = 0; i < lengths[p]; i++) {
      const hi = v.hi[2 * i + 1];
      const lo = v.lo[2 * i];
      if (hi < baseHi || (hi === baseHi && lo < baseLo)) {
        baseHi = hi;
        baseLo = lo;
      }
    }
  });
  if (baseHi === Infinity) baseHi = 0;
  const base = BigInt(baseHi) * 4294967296n + BigInt(baseLo);
  const start = new Float64Array(n);
  const end = new Float64Array(n);
  let extent = 0;
  for (let p = 0, at = 0; p < lengths.length; at += lengths[p++]) {
    const s = starts[p];
    const e = ends[p];
    const validity = endColumns[p]?.validity ?? null;
    for (let i = 0; i < lengths[p]; i++) {
      const from = s ? ((s.hi[2 * i + 1] - baseHi) * 4294967296 + (s.lo[2 * i] - baseLo)) / 1e6 : 0;
      const known = e !== null && (validity === null || (validity[i >> 3] & (1 << (i & 7))) !== 0);
      let to = known ? ((e.hi[2 * i + 1] - baseHi) * 4294967296 + (e.lo[2 * i] - baseLo)) / 1e6 : NaN;
      if (to < from) to = from;
      start[at + i] = from;
      end[at + i] = to;
      if (to > extent) extent = to;
      else if (from > extent) extent = from;
    }
  }

  const names = new Interner();
  const name = coded('name', names);
  const samples = new Interner();
  const sample = coded('sample_id', samples);
  const groups = new Interner();
  const group = coded('group_id', groups);

  // Flags and phases, decided once per distinct value.
  const flags = new Uint8Array(n);
  const phase = new Uint8Array(n);
  const scratch = [0, 1, 2].map(() => new Int32Array(n));
  {
    const texts = new Interner();
    const state = coded('state', texts, scratch[0]);
    const status = coded('status', texts, scratch[1]);
    const said = coded('phase', texts, scratch[2]);
    const isError = texts.texts.map((t) => t === 'error');
    const stateOf = texts.texts.map((t) => STATES.get(t) ?? CLOSED);
    const width = texts.texts.length + 1;
    const known = new Int16Array((names.texts.length + 1) * width).fill(-1);
    for (let i = 0; i < n; i++) {
      let f = state[i] >= 0 ? stateOf[state[i]] : Number.isNaN(end[i]) ? OPEN : CLOSED;
      if (f === CLOSED && Number.isNaN(end[i])) f = OPEN;
      if (status[i] >= 0 && isError[status[i]]) f |= ERROR;
      flags[i] = f;
      const key = (name[i] + 1) * width + said[i] + 1;
      let ph = known[key];
      if (ph < 0) ph = known[key] = phaseOf(names.texts[name[i]] ?? '', said[i] < 0 ? null : texts.texts[said[i]]);
      phase[i] = ph;
    }
  }

  // Worker: thread, host and service as one text, decided once per combination.
  const workers = new Interner();
  const worker = new Int32Array(n);
  {
    const texts = new Interner();
    const service = coded('service', texts, scratch[0]);
    const thread = coded('thread', texts, scratch[1]);
    const host = coded('host', texts, scratch[2]);
    const k = texts.texts.length + 1;
    const known = new Map<number, number>();
    let last = -1;
    for (let i = 0; i < n; i++) {
      if (i > 0 && service[i] === service[i - 1] && thread[i] === thread[i - 1] && host[i] === host[i - 1]) {
        worker[i] = last;
        continue;
      }
      const key = ((service[i] + 1) * k + thread[i] + 1) * k + host[i] + 1;
      let w = known.get(key);
      if (w === undefined) {
        const t = [service[i], thread[i], host[i]].map((c) => (c < 0 ? '' : texts.texts[c]));
        w = workers.add([t[1], t[2] && `@${t[2]}`, t[0] && (t[1] ? `· ${t[0]}` : t[0])].filter(Boolean).join(' ') || 'unknown');
        known.set(key, w);
      }
      worker[i] = last = w;
    }
  }
  const attempt = new Uint8Array(n);
  {
    let k = 0;
    column('attempt').forEach((v, p) => {
      for (let i = 0; i < lengths[p]; i++, k++) if (v && !isNull(v, i)) attempt[k] = Math.min(255, Math.max(0, Number(v.values[i])));
    });
  }

  // Ids: number the traces, then find parents by (trace, span id).
  const traces = fixedBytes(column('trace_id'), lengths, 16, n);
  const { trace, firsts } = numberTraces(wordsOf(traces.bytes), n);
  const traceIds = new Uint8Array(firsts.length * 16);
  firsts.forEach((i, k) => traceIds.set(traces.bytes.subarray(i * 16, i * 16 + 16), k * 16));

  const spanIds = fixedBytes(column('span_id'), lengths, 8, n, true).bytes;
  const parents = fixedBytes(column('parent_span_id'), lengths, 8, n);
  const parent = findParents(wordsOf(spanIds), wordsOf(parents.bytes), parents.valid, trace, flags);
  const depth = walk(parent, sample, group, n);

  const sampleGroup = new Int32Array(samples.texts.length).fill(-1);
  for (let i = 0; i < n; i++) if (sample[i] >= 0 && group[i] >= 0) sampleGroup[sample[i]] = group[i];

  closeOpen(start, end, flags, parent, trace, sample, samples.texts.length, extent, live);
  return {
    n,
    baseNs: base,
    start,
    end,
    extent,
    parent,
    depth,
    flags,
    phase,
    name,
    names: names.texts,
    sample,
    samples: samples.texts,
    sampleGroup,
    groups: groups.texts,
    worker,
    workers: workers.texts,
    attempt,
    trace,
    traceIds,
    spanIds,
    ...tally(flags, phase, attempt),
    lane: null,
    source: null,
    parentIds: fixedBytes(column('parent_span_id'), lengths, 8, n, true).bytes,
  };
}

/** Numbers that the page shows beside its switches. */
export function tally(flags: Uint8Array, phase: Uint8Array, attempt: Uint8Array): Pick<Items, 'states' | 'phaseCounts' | 'attempts'> {
  const states: [number, number, number, number] = [0, 0, 0, 0];
  const phaseCounts = new Uint32Array(PHASES.length);
  const seen = new Uint8Array(256);
  for (let i = 0; i < flags.length; i++) {
    states[flags[i] & STATE]++;
    phaseCounts[phase[i]]++;
    seen[attempt[i]] = 1;
  }
  return { states, phaseCounts, attempts: [...seen.keys()].filter((a) => seen[a] === 1) };
}

/**
 * Finds each item's parent by (trace, span id). Spans mostly come in the order they started, so the parent is the span
 * before or one of its ancestors; what is not found that way is looked up in a table over all ids.
 */
export function findParents(ids: Uint32Array, parents: Uint32Array, valid: Uint8Array | null, trace: Int32Array, flags: Uint8Array): Int32Array {
  const n = trace.length;
  const parent = new Int32Array(n).fill(-1);
  const missed: number[] = [];
  for (let i = 0; i < n; i++) {
    const a = parents[2 * i];
    const b = parents[2 * i + 1];
    if ((valid !== null && valid[i] === 0) || (a === 0 && b === 0)) continue;
    const t = trace[i];
    let k = i - 1;
    for (let hops = 0; k >= 0 && hops < 6; k = parent[k], hops++) {
      if (trace[k] !== t) k = -1;
      else if (ids[2 * k] === a && ids[2 * k + 1] === b && (flags[k] & STATE) !== ORPHAN) break;
      if (k < 0 || hops === 5) {
        k = -1;
        break;
      }
    }
    if (k >= 0) {
      parent[i] = k;
      flags[k] |= PARENT;
    } else missed.push(i);
  }
  if (missed.length === 0) return parent;

  const size = slotsFor(n);
  const mask = size - 1;
  const slots = new Int32Array(size).fill(-1);
  /** Slot of the item with this id in this trace, or of the free place for it. */
  const slot = (a: number, b: number, t: number): number => {
    let h = Math.imul(a ^ Math.imul(t, 0x85ebca6b), 0x9e3779b1);
    h = Math.imul((h ^ (h >>> 15)) + b, 0xc2b2ae35);
    let s = (h ^ (h >>> 13)) & mask;
    for (let k = slots[s]; k >= 0; k = slots[(s = (s + 1) & mask)]) if (ids[2 * k] === a && ids[2 * k + 1] === b && trace[k] === t) break;
    return s;
  };
  for (let i = 0; i < n; i++) {
    // An orphan end carries the id of a span that is not here; it must not stand for that span.
    if ((flags[i] & STATE) === ORPHAN || (ids[2 * i] === 0 && ids[2 * i + 1] === 0)) continue;
    const s = slot(ids[2 * i], ids[2 * i + 1], trace[i]);
    if (slots[s] < 0) slots[s] = i;
  }
  for (const i of missed) {
    const k = slots[slot(parents[2 * i], parents[2 * i + 1], trace[i])];
    if (k >= 0 && k !== i) {
      parent[i] = k;
      flags[k] |= PARENT;
    } else flags[i] |= LOST_PARENT;
  }
  return parent;
}

/** Depth of every item; cuts cycles; hands sample and group down to descendants that do not name their own. */
export function walk(parent: Int32Array, sample: Int32Array, group: Int32Array, n: number): Uint8Array {
  const depth = new Uint8Array(n);
  const seen = new Uint8Array(n); // 0 new, 1 on the path, 2 done
  const path: number[] = [];
  for (let i = 0; i < n; i++) {
    let k = i;
    while (k >= 0 && seen[k] === 0) {
      seen[k] = 1;
      path.push(k);
      const p = parent[k];
      if (p >= 0 && seen[p] === 1) {
        parent[k] = -1;
        break;
      }
      k = p;
    }
    while (path.length > 0) {
      k = path.pop()!;
      const p = parent[k];
      if (p >= 0) {
        depth[k] = Math.min(255, depth[p] + 1);
        if (sample[k] < 0 && sample[p] >= 0) {
          sample[k] = sample[p];
          if (group[k] < 0) group[k] = group[p];
        }
      }
      seen[k] = 2;
    }
  }
  return depth;
}

/** An open span is drawn until the earliest of: end of its row, start of its next sibling, end of its nearest closed ancestor. */
export function closeOpen(
  start: Float64Array,
  end: Float64Array,
  flags: Uint8Array,
  parent: Int32Array,
  trace: Int32Array,
  sample: Int32Array,
  sampleCount: number,
  extent: number,
  live: boolean,
): void {
  const n = start.length;
  const open: number[] = [];
  for (let i = 0; i < n; i++) {
    const state = flags[i] & STATE;
    if (state === OPEN) open.push(i);
    else if (state !== CLOSED) end[i] = start[i] = state === ORPHAN && !Number.isNaN(end[i]) ? end[i] : start[i];
  }
  if (open.length === 0) return;
  const rowEnd = new Float64Array(sampleCount);
  for (let i = 0; i < n; i++) {
    if (sample[i] >= 0) rowEnd[sample[i]] = Math.max(rowEnd[sample[i]], Number.isNaN(end[i]) ? start[i] : end[i]);
  }
  const familyOf = (i: number): number => (parent[i] >= 0 ? parent[i] : -2 - trace[i]);
  const families = new Map<number, number[]>();
  for (const i of open) families.set(familyOf(i), []);
  for (let i = 0; i < n; i++) if ((flags[i] & STATE) <= OPEN) families.get(familyOf(i))?.push(start[i]);
  for (const list of families.values()) list.sort((a, b) => a - b);
  for (const i of open) {
    let limit = live || sample[i] < 0 ? extent : rowEnd[sample[i]];
    for (let p = parent[i], hops = 0; p >= 0 && hops < 256; p = parent[p], hops++) {
      if ((flags[p] & STATE) === CLOSED) {
        limit = Math.min(limit, end[p]);
        break;
      }
    }
    if (!live) {
      const siblings = families.get(familyOf(i))!;
      let lo = 0;
      let hi = siblings.length;
      while (lo < hi) {
        const mid = (lo + hi) >> 1;
        if (siblings[mid] <= start[i]) lo = mid + 1;
        else hi = mid;
      }
      if (lo < siblings.length) limit = Math.min(limit, siblings[lo]);
    }
    end[i] = Math.max(start[i], limit);
  }
}

/** The buffers to hand over between threads; columns may share one. */
export const buffersOf = (...all: object[]): ArrayBuffer[] => [
  ...new Set(all.flatMap((x) => Object.values(x)).flatMap((v) => (ArrayBuffer.isView(v) && v.byteLength > 0 ? [v.buffer as ArrayBuffer] : []))),
];
