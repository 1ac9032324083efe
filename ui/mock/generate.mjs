// Generated runs in the shape of the API, for developing the page and for its tests. Deterministic.
import { gzipSync } from 'node:zlib';
import {
  Bool,
  Dictionary,
  List,
  Map_,
  FixedSizeBinary,
  Float64,
  Int32,
  Int64,
  RecordBatch,
  RecordBatchStreamWriter,
  Schema,
  Field,
  Struct,
  Utf8,
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
function ipc(columns, n) {
  const fields = columns.map(([name, data, nullable]) => new Field(name, data.type, nullable));
  const schema = new Schema(fields);
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

export function timelineStream(step, baseNs) {
  const s = step.spans;
  const n = s.n;
  const start = new BigInt64Array(n);
  const end = new BigInt64Array(n);
  const parents = new Uint32Array(n * 2);
  for (let i = 0; i < n; i++) {
    start[i] = baseNs + BigInt(Math.round(s.start[i] * 1e6));
    end[i] = Number.isNaN(s.end[i]) ? 0n : baseNs + BigInt(Math.round(s.end[i] * 1e6));
    if (s.parent[i] >= 0) parents.set(s.span.subarray(s.parent[i] * 2, s.parent[i] * 2 + 2), i * 2);
  }
  const fixed = (words, width, valid = () => true) => {
    const { bits, nulls } = bitmap(n, valid);
    return makeData({
      type: new FixedSizeBinary(width),
      length: n,
      nullCount: nulls,
      nullBitmap: nulls ? bits : undefined,
      data: new Uint8Array(words.buffer, 0, n * width),
    });
  };
  return ipc(
    [
      ['trace_id', fixed(s.trace, 16), false],
      ['span_id', fixed(s.span, 8), false],
      ['parent_span_id', fixed(parents, 8, (i) => s.parent[i] >= 0), true],
      ...Object.keys(s.codes).map((c) => [c, dict(s.codes[c], s.texts[c], n), true]),
      ['attempt', makeData({ type: new Int32(), length: n, nullCount: 0, data: s.attempt.subarray(0, n) }), true],
      ['start_ns', int64(start, n), false],
      ['end_ns', int64(end, n, (i) => !Number.isNaN(s.end[i])), true],
    ],
    n,
  );
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
    blocks.set(`timeline-0-${k}`, timelineStream(step, base));
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
