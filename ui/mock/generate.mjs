// Generated runs in the shape of the API, for developing the page and for its tests. Deterministic.
import { gzipSync } from 'node:zlib';
import {
  Bool,
  Dictionary,
  List,
  Map_,
  FixedSizeBinary,
  Float32,
  Float64,
  Int32,
  Int64,
  RecordBatch,
  RecordBatchStreamWriter,
  Schema,
  Field,
  Struct,
  Uint32,
  Uint8,
  Utf8,
  Vector,
  makeData,
  vectorFromArray,
} from 'apache-arrow';

export function random(seed) {
  let s = seed >>> 0 || 1;
  return () => {
    s = (s + 0x6d2b79f5) | 0;
    let t = Math.imul(s ^ (s >>> 15), 1 | s);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** Growable columns of spans. */
class Spans {
  constructor(capacity) {
    this.n = 0;
    this.trace = new Uint32Array(capacity * 4);
    this.span = new Uint32Array(capacity * 2);
    this.parent = new Int32Array(capacity).fill(-1);
    this.start = new Float64Array(capacity); // ms
    this.end = new Float64Array(capacity); // NaN: null
    this.codes = {};
    this.texts = {};
    this.index = {};
    for (const c of ['name', 'service', 'phase', 'thread', 'host', 'state', 'status', 'sample_id', 'group_id']) {
      this.codes[c] = new Int32Array(capacity).fill(-1);
      this.texts[c] = [];
      this.index[c] = new Map();
    }
    this.attempt = new Int32Array(capacity);
  }
  code(column, text) {
    if (text === null || text === undefined) return -1;
    let k = this.index[column].get(text);
    if (k === undefined) {
      k = this.texts[column].length;
      this.texts[column].push(text);
      this.index[column].set(text, k);
    }
    return k;
  }
  add(o) {
    const i = this.n++;
    this.trace.set(o.trace, i * 4);
    this.span[i * 2] = (i + 1) * 2654435761;
    this.span[i * 2 + 1] = i + 1;
    this.parent[i] = o.parent ?? -1;
    this.start[i] = o.start;
    this.end[i] = o.end ?? NaN;
    for (const c of Object.keys(this.codes)) this.codes[c][i] = this.code(c, o[c]);
    this.attempt[i] = o.attempt ?? 0;
    return i;
  }
}

const TOOLS = ['bash', 'python', 'search', 'browser'];

/** One step. `perSample` is about how many items a sample gets; `cut` (ms) leaves open what ends later. */
export function makeStep({ seed, samples, group = 8, perSample = 24, cut = Infinity, hostile = false }) {
  const rnd = random(seed);
  const normal = () => Math.sqrt(-2 * Math.log(rnd() + 1e-12)) * Math.cos(6.283185 * rnd());
  const spans = new Spans(Math.ceil(samples * (perSample + 16) * 1.4) + 4096);
  const rows = [];
  let wall = 0;
  const bar = (o) => {
    if (o.start > cut) return -1;
    const open = o.end > cut;
    return spans.add({
      service: 'slime',
      status: 'unset',
      phase: null,
      thread: null,
      host: null,
      ...o,
      end: open ? NaN : o.end,
      state: open ? 'open' : 'closed',
    });
  };
  const turnsMean = Math.max(1, (perSample - 4) / 8);
  for (let s = 0; s < samples; s++) {
    const trace = [(seed * 7919) >>> 0, 0xabcdef01, s + 1, (s * 2654435761) >>> 0];
    const id = { trace, sample_id: String(s), group_id: String(Math.floor(s / group)) };
    const tail = rnd() < 0.02;
    const turns = Math.max(1, Math.round(turnsMean * (1 + 0.35 * normal()) * (tail ? 1.6 : 1)));
    const begin = rnd() * 1500;
    const worker = Math.floor(rnd() * 8);
    const root = bar({
      ...id,
      name: hostile && s === 0 ? '<img src=x onerror=alert(1)>' : 'rollout_sample',
      phase: 'rollout',
      start: begin,
      end: Infinity,
    });
    if (root < 0) continue;
    let t = begin + 2;
    let tokens = 0;
    let failed = false;
    spans.add({ ...id, name: 'sample_start', service: 'slime', state: 'instant', status: 'unset', start: t, end: t, parent: root });
    for (let k = 0; k < turns && t <= cut; k++) {
      const queue = Math.max(3, 60 * Math.exp(0.8 * normal()));
      const prefill = 30 + 60 * rnd();
      const decode = 300 * Math.exp(0.7 * normal()) * (tail ? 2.4 : 1);
      const e2e = queue + prefill + decode + 6;
      const turn = bar({ ...id, name: 'turn', phase: 'rollout', start: t, end: t + e2e + 1, parent: root });
      const gen = bar({ ...id, name: 'sglang_generate', start: t + 1, end: t + e2e, parent: turn });
      const engine = { trace, service: 'sglang', thread: `scheduler [TP ${worker % 4}]`, host: `node-${worker >> 2}`, parent: gen };
      bar({ ...engine, name: 'prefill_waiting', start: t + 2, end: t + 2 + queue });
      bar({ ...engine, name: 'prefill_forward', start: t + 2 + queue, end: t + 2 + queue + prefill });
      bar({ ...engine, name: 'decode_loop', start: t + 3 + queue + prefill, end: t + e2e - 1 });
      tokens += Math.round(decode / 8);
      t += e2e + 2;
      if (k < turns - 1 && t <= cut) {
        const tool = TOOLS[Math.floor(rnd() * rnd() * TOOLS.length)];
        const error = rnd() < 0.02;
        const took = tool === 'browser' ? 900 * Math.exp(0.9 * normal()) : 120 * Math.exp(0.9 * normal());
        failed ||= error;
        bar({ ...id, name: tool, phase: 'tool', start: t, end: t + took, parent: root, status: error ? 'error' : 'ok' });
        if (rnd() < 0.5 && t + took < cut)
          spans.add({
            ...id,
            name: 'tool_result',
            service: 'slime',
            state: 'instant',
            status: 'unset',
            start: t + took,
            end: t + took,
            parent: root,
          });
        t += took + 3;
      }
    }
    const rewarded = t + 40 + 200 * rnd();
    bar({ ...id, name: 'reward_model', phase: 'reward', start: t, end: rewarded, parent: root });
    if (rnd() < 0.01 && t < cut)
      spans.add({ ...id, name: 'late_end', service: 'slime', state: 'orphan_end', status: 'unset', start: t + 5, end: t + 5, parent: root });
    const done = rewarded <= cut;
    spans.end[root] = done ? rewarded + 1 : NaN;
    spans.codes.state[root] = spans.code('state', done ? 'closed' : 'open');
    wall = Math.max(wall, Math.min(cut, rewarded + 1));
    rows.push({
      sample_id: id.sample_id,
      group_id: id.group_id,
      status: !done ? 'pending' : failed && rnd() < 0.3 ? 'failed' : tail && rnd() < 0.5 ? 'truncated' : 'completed',
      reward: done ? Math.round(Math.min(1, Math.max(0, 0.5 + 0.35 * normal() - (tail ? 0.2 : 0))) * 1000) / 1000 : null,
      source: ['math', 'swe', 'web'][s % 3],
      response_length: tokens,
      response_tokens: tokens,
      turns,
      start: begin,
      end: done ? rewarded + 1 : null,
    });
  }
  // The trainer, which belongs to no sample.
  const trace = [(seed * 7919) >>> 0, 0xabcdef01, 0, 1];
  const trainer = { trace, service: 'trainer', host: 'node-9', phase: null };
  const roll = bar({ ...trainer, name: 'rollout', thread: 'driver', phase: 'rollout', start: 0, end: wall });
  void roll;
  if (cut === Infinity) {
    for (let r = 0; r < 4; r++) {
      const train = bar({ ...trainer, name: 'train', thread: `rank ${r}`, phase: 'train', start: wall + 20, end: wall * 1.22 });
      const micro = 8;
      const each = (wall * 0.22 - 30) / micro;
      for (let m = 0; m < micro; m++) {
        bar({
          ...trainer,
          name: 'forward_backward',
          thread: `rank ${r}`,
          phase: 'train',
          start: wall + 22 + m * each,
          end: wall + 20 + (m + 0.93) * each,
          parent: train,
        });
      }
      bar({ ...trainer, name: 'update_weights', thread: `rank ${r}`, phase: 'weight_sync', start: wall * 1.22 + 1, end: wall * 1.27 });
    }
    wall *= 1.27;
  }
  return { spans, rows, wall, trace };
}

const bitmap = (n, valid) => {
  const bits = new Uint8Array(Math.ceil(n / 8));
  let nulls = 0;
  for (let i = 0; i < n; i++) {
    if (valid(i)) bits[i >> 3] |= 1 << (i & 7);
    else nulls++;
  }
  return { bits, nulls };
};
const dictType = () => new Dictionary(new Utf8(), new Int32());

/** An Arrow IPC stream of columns [name, data, nullable]. */
function ipc(columns, n, metadata) {
  const fields = columns.map(([name, data, nullable]) => new Field(name, data.type, nullable));
  const schema = new Schema(fields, metadata);
  const batch = new RecordBatch(schema, makeData({ type: new Struct(fields), length: n, nullCount: 0, children: columns.map((c) => c[1]) }));
  return RecordBatchStreamWriter.writeAll([batch]).toUint8Array(true);
}
const dict = (codes, texts, n) => {
  const { bits, nulls } = bitmap(n, (i) => codes[i] >= 0);
  const data = Int32Array.from(codes.subarray(0, n), (c) => Math.max(0, c));
  return makeData({
    type: dictType(),
    length: n,
    nullCount: nulls,
    nullBitmap: nulls ? bits : undefined,
    data,
    dictionary: vectorFromArray(texts.length ? texts : [''], new Utf8()),
  });
};
const int64 = (values, n, valid = () => true) => {
  const { bits, nulls } = bitmap(n, valid);
  return makeData({ type: new Int64(), length: n, nullCount: nulls, nullBitmap: nulls ? bits : undefined, data: values });
};

const FLAGS = { closed: 0, open: 1, instant: 2, orphan_end: 3 };
const [ERROR, PARENT, VIRTUAL] = [4, 8, 32];
const MAX_LANES = 32;

/** What crates/formats/src/export/timeline decides: samples and lanes of the spans, ends of open ones, the order of the rows. */
function place(s, live) {
  const { n, parent, start } = s;
  const workers = { code: new Int32Array(n), texts: [] };
  const sample = s.codes.sample_id.slice(0, n);
  const group = s.codes.group_id.slice(0, n);
  const depth = new Uint8Array(n);
  const flags = new Uint8Array(n);
  const end = s.end.slice(0, n);
  const newest = Math.max(0, ...Array.from({ length: n }, (_, i) => (Number.isNaN(end[i]) ? start[i] : end[i])));
  for (let i = 0; i < n; i++) {
    // A parent stands before its children.
    const p = parent[i];
    if (p >= 0) {
      if (sample[i] < 0) [sample[i], group[i]] = [sample[p], group[p]];
      depth[i] = Math.min(255, depth[p] + 1);
      flags[p] |= PARENT;
    }
    flags[i] |= FLAGS[s.texts.state[s.codes.state[i]]] | (s.texts.status[s.codes.status[i]] === 'error' ? ERROR : 0);
    const [thread, host, service] = ['thread', 'host', 'service'].map((c) => s.texts[c][s.codes[c][i]]);
    const text = [[thread, host && `@${host}`].filter(Boolean).join(' '), service].filter(Boolean).join(' · ');
    if (!workers.texts.includes(text)) workers.texts.push(text);
    workers.code[i] = workers.texts.indexOf(text);
  }
  const rowOf = (i) => (sample[i] >= 0 ? sample[i] : s.texts.sample_id.length + workers.code[i]);
  const row = Int32Array.from({ length: n }, (_, i) => rowOf(i));
  const rowEnd = new Map();
  for (let i = 0; i < n; i++) rowEnd.set(row[i], Math.max(rowEnd.get(row[i]) ?? 0, Number.isNaN(end[i]) ? start[i] : end[i]));
  for (let i = 0; i < n; i++) if (Number.isNaN(end[i])) end[i] = live ? newest : rowEnd.get(row[i]);
  const lane = new Uint8Array(n);
  const laneEnd = new Map();
  const byStart = Array.from({ length: n }, (_, i) => i).sort(
    (a, b) => row[a] - row[b] || start[a] - start[b] || end[b] - end[a] || depth[a] - depth[b] || a - b,
  );
  for (const i of byStart) {
    const p = parent[i];
    let l = p >= 0 && row[p] === row[i] ? Math.min(MAX_LANES - 1, lane[p] + 1) : 0;
    if ((flags[i] & 3) < FLAGS.instant) {
      const ends = laneEnd.get(row[i]) ?? new Float64Array(MAX_LANES).fill(-Infinity);
      while (l < MAX_LANES - 1 && ends[l] > start[i] + 0.001) l++;
      ends[l] = Math.max(ends[l], end[i]);
      laneEnd.set(row[i], ends);
    }
    lane[i] = l;
  }
  const order = byStart.sort((a, b) => row[a] - row[b] || lane[a] - lane[b]);
  return { order, lane, depth, flags, end, sample, group, workers, newest };
}

/** Numbers as a file has them: differences, each byte of them a column (crates/formats/src/export/html/thin.rs). */
function thinned(name, differences) {
  const folded = differences.map((d) => (d < 0n ? -2n * d - 1n : 2n * d));
  const bytes = Math.max(1, Math.ceil(folded.reduce((a, b) => a | b, 0n).toString(16).length / 2));
  return Array.from({ length: bytes }, (_, k) => {
    const data = Uint8Array.from(folded, (d) => Number((d >> BigInt(8 * k)) & 255n));
    return [`${name}:${k}`, makeData({ type: new Uint8(), length: folded.length, nullCount: 0, data }), false];
  });
}

/**
 * The timeline of a step, packed as the server sends it.
 * @param how `live`: the step still runs. `thin`: as it stands in a file.
 */
/** `parts`: each item stands for ten spans, as where parts are so long (milliseconds): everywhere, and where somebody looks. */
export function timelineStream(step, baseNs, { live = false, thin = false, parts = null } = {}) {
  const s = step.spans;
  const n = s.n;
  const p = place(s, live);
  const at = new Int32Array(n);
  p.order.forEach((i, k) => (at[i] = k));
  const numbers = (type, Array, get) => makeData({ type, length: n, nullCount: 0, data: Array.from(p.order, get) });
  const texts = (codes, words) =>
    dict(
      Int32Array.from(p.order, (i) => codes[i]),
      words,
      n,
    );
  const ids = (words) => {
    const data = new Uint32Array(n * 2);
    p.order.forEach((i, k) => words(i) && data.set(words(i), k * 2));
    return makeData({ type: new FixedSizeBinary(8), length: n, nullCount: 0, data: new Uint8Array(data.buffer) });
  };
  const own = (i) => s.span.subarray(i * 2, i * 2 + 2);
  const traces = new Map();
  const trace = Int32Array.from({ length: n }, (_, i) => {
    const words = s.trace.subarray(i * 4, i * 4 + 4);
    const key = words.join();
    if (!traces.has(key)) traces.set(key, { k: traces.size, bytes: new Uint8Array(words.slice().buffer) });
    return traces.get(key).k;
  });
  const traceIds = Buffer.concat([...traces.values()].map((t) => t.bytes));
  const traceType = new FixedSizeBinary(16);
  const dictionary = new Vector([makeData({ type: traceType, length: traces.size, nullCount: 0, data: new Uint8Array(traceIds) })]);
  const parentRow = (i) => (s.parent[i] < 0 ? -1 : at[s.parent[i]]);
  const ns = (ms) => BigInt(Math.round(ms * 1e6));
  const places = thin
    ? [
        ...thinned(
          'start',
          p.order.map((i, k) => ns(s.start[i]) - (k === 0 ? 0n : ns(p.end[p.order[k - 1]]))),
        ),
        ...thinned(
          'end',
          p.order.map((i) => ns(p.end[i]) - ns(s.start[i])),
        ),
        ...thinned(
          'parent',
          p.order.map((i, k) => (s.parent[i] < 0 ? 0n : BigInt(k - parentRow(i)))),
        ),
      ]
    : [
        ['start', numbers(new Float64(), Float64Array, (i) => s.start[i]), true],
        ['end', numbers(new Float64(), Float64Array, (i) => p.end[i]), true],
        ['parent', numbers(new Int32(), Int32Array, parentRow), true],
      ];
  const columns = [
    ...places,
    ['flags', numbers(new Uint8(), Uint8Array, (i) => p.flags[i] | (own(i).some(Boolean) ? 0 : VIRTUAL)), true],
    ['depth', numbers(new Uint8(), Uint8Array, (i) => p.depth[i]), true],
    ['lane', numbers(new Uint8(), Uint8Array, (i) => p.lane[i]), true],
    ['attempt', numbers(new Uint8(), Uint8Array, (i) => s.attempt[i]), true],
    ['name', texts(s.codes.name, s.texts.name), true],
    ['phase', texts(s.codes.phase, s.texts.phase), true],
    ['sample', texts(p.sample, s.texts.sample_id), true],
    ['group', texts(p.group, s.texts.group_id), true],
    ['worker', texts(p.workers.code, p.workers.texts), true],
    [
      'trace',
      makeData({
        type: new Dictionary(traceType, new Int32()),
        length: n,
        nullCount: 0,
        data: Int32Array.from(p.order, (i) => trace[i]),
        dictionary,
      }),
      true,
    ],
    ['span_id', ids(own), true],
    ...(thin
      ? thinned(
          'source',
          p.order.map((i, k) => BigInt(i - (k === 0 ? -1 : p.order[k - 1]))),
        )
      : []),
    ...(parts
      ? [
          ['weight', numbers(new Uint32(), Uint32Array, () => 10), true],
          ['total', numbers(new Float32(), Float32Array, (i) => p.end[i] - s.start[i]), true],
          ['longest', numbers(new Float32(), Float32Array, (i) => (p.end[i] - s.start[i]) / 5), true],
        ]
      : []),
  ];
  const metadata = { base_ns: baseNs, extent_ms: p.newest, part_ms: parts?.[0], focus_part_ms: parts?.[1] };
  const known = Object.entries(metadata).filter(([, value]) => value !== undefined);
  return ipc(columns, n, new Map(known.map(([key, value]) => [key, String(value)])));
}

export function samplesStream(step, baseNs, run, number) {
  const rows = step.rows;
  const n = rows.length;
  const text = (get) => {
    const seen = new Map();
    const codes = Int32Array.from(rows, (r) => {
      const t = get(r);
      if (!seen.has(t)) seen.set(t, seen.size);
      return seen.get(t);
    });
    return dict(codes, [...seen.keys()], n);
  };
  const ints = (get) =>
    int64(
      BigInt64Array.from(rows, (r) => BigInt(get(r) ?? 0)),
      n,
      (i) => get(rows[i]) !== null,
    );
  const ns = (ms) => (ms === null ? null : baseNs + BigInt(Math.round(ms * 1e6)));
  const rewards = bitmap(n, (i) => rows[i].reward !== null);
  const traceIds = new Uint32Array(n * 4);
  rows.forEach((r, i) => traceIds.set([step.trace[0], 0xabcdef01, Number(r.sample_id) + 1, (Number(r.sample_id) * 2654435761) >>> 0], i * 4));
  return ipc(
    [
      ['run_id', text(() => run), false],
      ['step', ints(() => number), true],
      ['sample_id', text((r) => r.sample_id), false],
      ['group_id', text((r) => r.group_id), true],
      ['trace_id', makeData({ type: new FixedSizeBinary(16), length: n, nullCount: 0, data: new Uint8Array(traceIds.buffer) }), true],
      ['status', text((r) => r.status), true],
      [
        'reward',
        makeData({
          type: new Float64(),
          length: n,
          nullCount: rewards.nulls,
          nullBitmap: rewards.nulls ? rewards.bits : undefined,
          data: Float64Array.from(rows, (r) => r.reward ?? 0),
        }),
        true,
      ],
      ['source', text((r) => r.source), true],
      ['start_ns', ints((r) => ns(r.start)), true],
      ['end_ns', ints((r) => ns(r.end)), true],
      ['response_tokens', ints((r) => r.response_tokens), true],
      ['response_length', ints((r) => r.response_length), true],
      ['turns', makeData({ type: new Int32(), length: n, nullCount: 0, data: Int32Array.from(rows, (r) => r.turns) }), true],
      ['removed', makeData({ type: new Bool(), length: n, nullCount: 0, data: new Uint8Array(Math.ceil(n / 8)) }), true],
    ],
    n,
  );
}

/** A small answer for the SQL view: columns as arrays of values. */
export function sqlStream(columns) {
  const names = Object.keys(columns);
  const vectors = names.map((k) => vectorFromArray(columns[k]));
  const fields = names.map((k, i) => new Field(k, vectors[i].type, true));
  const n = vectors[0]?.length ?? 0;
  const batch = new RecordBatch(
    new Schema(fields),
    makeData({ type: new Struct(fields), length: n, nullCount: 0, children: vectors.map((v) => v.data[0]) }),
  );
  return RecordBatchStreamWriter.writeAll([batch]).toUint8Array(true);
}

const attrsType = () =>
  new Map_(new Field('entries', new Struct([new Field('key', new Utf8(), false), new Field('value', new Utf8(), false)]), false));

/** Attributes of the rows `from` to `to` of a step, by key, as the binary puts them into the one-file page. */
function attrsOf(step, from, to) {
  const s = step.spans;
  const rows = Array.from({ length: to - from }, (_, i) => from + i);
  const shape = {
    keys: [
      ['start_attrs', 'row'],
      ['start_attrs', 'hostile'],
      ['end_attrs', 'name'],
      ['end_attrs', 'tokens'],
    ],
    values: [rows, ['</script><script>window.hacked=1</script>'], rows.map((i) => s.texts.name[s.codes.name[i]]), rows.map((i) => i * 2)],
  };
  return JSON.stringify({ rows: rows.map(() => 0), shapes: [shape] });
}

/** What else there is of these rows. */
function restStream(n) {
  const event = new Struct([new Field('time_ns', new Int64(), false), new Field('name', new Utf8(), false), new Field('attrs', attrsType(), false)]);
  const events = vectorFromArray(
    Array.from({ length: n }, () => []),
    new List(new Field('item', event, false)),
  ).data[0];
  return ipc([['events', events, false]], n);
}

export function block(bytes) {
  let [text, pending, bits] = ['', 0, 0];
  const push = (c) => (text += [0, 10, 13, 27, 60].includes(c) ? String.fromCharCode(27, c + 64) : String.fromCharCode(c));
  for (const byte of gzipSync(bytes)) {
    pending = ((pending << 8) | byte) & 0x7fff;
    for (bits += 8; bits >= 7;) push((pending >> (bits -= 7)) & 127);
  }
  if (bits > 0) push((pending << (7 - bits)) & 127);
  return text;
}

/** The one-file page with these steps inside, in the format that src/data/static.ts describes. */
export function staticPage(template, steps) {
  const base = 1_763_000_000_000_000_000n;
  const blocks = new Map();
  const windows = steps.map((step, k) => {
    blocks.set(`timeline-0-${k}`, timelineStream(step, base, { thin: true }));
    blocks.set(`samples-0-${k}`, samplesStream(step, base, 'dump', k));
    const [attrs, rest] = [[], []];
    for (let from = 0; from < step.spans.n; from += 4096) {
      const to = Math.min(step.spans.n, from + 4096);
      attrs.push(`attrs-0-${k}-${attrs.length}`);
      rest.push(`rest-0-${k}-${rest.length}`);
      blocks.set(attrs.at(-1), attrsOf(step, from, to));
      blocks.set(rest.at(-1), restStream(to - from));
    }
    return { step: k, timeline: `timeline-0-${k}`, samples: `samples-0-${k}`, attrs, rest, chunk_rows: 4096 };
  });
  blocks.set(
    'runs',
    sqlStream({
      run_id: ['dump'],
      project: [null].map(String),
      name: ['rollout_0.pt'],
      framework: ['slime'],
      status: ['finished'],
      started_ns: BigInt64Array.of(base),
      ended_ns: BigInt64Array.of(base + 5_000_000_000n),
      last_ns: BigInt64Array.of(base + 5_000_000_000n),
      spans: BigInt64Array.of(BigInt(steps[0].spans.n)),
      samples: BigInt64Array.of(BigInt(steps[0].rows.length)),
      steps: BigInt64Array.of(BigInt(steps.length)),
      bytes: BigInt64Array.of(0n),
    }),
  );
  blocks.set(
    'steps-0',
    Buffer.from(
      JSON.stringify({
        steps: steps.map((s, k) => ({
          step: k,
          start_ns: String(base),
          end_ns: String(base + BigInt(Math.round(s.wall * 1e6))),
          spans: s.spans.n,
          samples: s.rows.length,
          open: 0,
          reward_mean: 0.5,
          phases: { rollout: s.wall / 1000 },
        })),
      }),
    ),
  );
  blocks.set(
    'manifest',
    Buffer.from(JSON.stringify({ version: 2, generator: 'mock', runs: 'runs', per_run: [{ run_id: 'dump', steps: 'steps-0', windows }] })),
  );
  const html = [...blocks].map(([id, bytes]) => `<script type="application/octet-stream" id="rs-${id}">${block(bytes)}</script>`).join('\n');
  return template.replace('<!--ROLLSCOPE_DATA-->', () => html);
}
