// A small server with generated data in exactly the shape of the API, for developing the page and for its tests.
//
//     node mock/server.mjs [--port 7200] [--empty] [--big]
//
// Serves ui/dist under the same content-security policy as the real server.
import { createServer } from 'node:http';
import { existsSync, readFileSync } from 'node:fs';
import { extname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';
import { makeStep, samplesStream, sqlStream, timelineStream } from './generate.mjs';

export const CSP =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const ARROW = 'application/vnd.apache.arrow.stream';
const TYPES = { '.html': 'text/html; charset=utf-8', '.js': 'text/javascript', '.css': 'text/css', '.json': 'application/json' };
const hex = (words) => Buffer.from(Uint32Array.from(words).buffer).toString('hex');
const BASE = 1_763_000_000_000_000_000n;

/** Runs: id -> options of its steps. */
function makeRuns({ big }) {
  const runs = new Map();
  const add = (run_id, more, steps) =>
    runs.set(run_id, { run_id, project: 'agents', name: run_id, framework: 'slime', status: 'finished', steps, ...more });
  const demo = Array.from({ length: 14 }, (_, i) => ({ seed: 100 + i, samples: 96, perSample: 26, hostile: i === 3 }));
  demo.push({ seed: 120, samples: 96, perSample: 26, cut: 3200, live: true });
  add('grpo-search-7b', { status: 'running' }, demo);
  add('math/ablation-3', { project: 'math', name: 'math ablation <b>3</b>', framework: 'roll' }, [
    { seed: 7, samples: 512, perSample: 40 },
    { seed: 8, samples: 512, perSample: 40 },
  ]);
  add('sglang-smoke', { project: null, name: null, framework: 'sglang', status: 'failed' }, [{ seed: 9, samples: 8, perSample: 30 }]);
  add('engine-only', { framework: 'sglang', loose: { seed: 31, samples: 12, perSample: 30 } }, []);
  if (big) add('big', { name: 'a million spans' }, [{ seed: 1, samples: 8192, perSample: 149 }]);
  return runs;
}

export async function start({ port = 0, empty = false, big = false, page = fileURLToPath(new URL('../dist/', import.meta.url)) } = {}) {
  const runs = empty ? new Map() : makeRuns({ big });
  const cache = new Map();
  const listeners = new Set();
  let version = 1;
  let slow = 0;
  const stepOf = (run, n) => {
    const key = `${run.run_id}/${n}`;
    if (!cache.has(key)) cache.set(key, makeStep(run.steps[n] ?? run.loose));
    return cache.get(key);
  };
  const baseOf = (n) => BASE + BigInt(n) * 60_000_000_000n;
  const facts = (run, n) => {
    const s = stepOf(run, n);
    const phases = {};
    const end = Math.max(...s.rows.map((r) => r.end ?? s.wall));
    phases.rollout = end / 1000;
    if (s.wall > end) Object.assign(phases, { train: ((s.wall - end) * 0.8) / 1000, weight_sync: ((s.wall - end) * 0.2) / 1000 });
    let open = 0;
    for (let i = 0; i < s.spans.n; i++) if (s.spans.texts.state[s.spans.codes.state[i]] === 'open') open++;
    const rewards = s.rows.map((r) => r.reward).filter((r) => r !== null);
    return {
      step: n,
      start_ns: String(baseOf(n)),
      end_ns: open ? null : String(baseOf(n) + BigInt(Math.round(s.wall * 1e6))),
      spans: s.spans.n,
      samples: s.rows.length,
      open,
      reward_mean: rewards.length ? rewards.reduce((a, b) => a + b, 0) / rewards.length + n * 0.01 : null,
      phases,
      version: String(run.steps[n]?.cut ?? 0),
    };
  };
  const info = (run) => {
    const steps = run.steps.map((_, n) => facts(run, n));
    const last = String(baseOf(Math.max(0, steps.length - 1)) + 50_000_000_000n);
    if (run.loose) steps.push({ spans: stepOf(run, 'loose').spans.n, samples: 0 });
    return {
      run_id: run.run_id,
      project: run.project,
      name: run.name,
      framework: run.framework,
      status: run.status,
      started_ns: String(baseOf(0)),
      ended_ns: run.status === 'running' ? null : last,
      last_ns: last,
      spans: steps.reduce((a, s) => a + s.spans, 0),
      samples: steps.reduce((a, s) => a + s.samples, 0),
      steps: run.steps.length,
      bytes: steps.reduce((a, s) => a + s.spans, 0) * 31,
    };
  };

  const server = createServer((req, res) => {
    const url = new URL(req.url, 'http://localhost');
    const send = (status, type, body, more = {}) => {
      res.writeHead(status, { 'content-type': type, 'content-security-policy': CSP, 'x-content-type-options': 'nosniff', ...more });
      res.end(body);
    };
    const json = (value, status = 200) => send(status, 'application/json', JSON.stringify(value));
    const problem = (status, title, detail) =>
      send(status, 'application/problem+json', JSON.stringify({ type: 'about:blank', title, status, detail }));
    const answer = () => {
      const p = url.pathname;
      // No series here: the panel under the timeline says so.
      if (p.startsWith('/prometheus/')) return json({ status: 'success', data: p.includes('/label') ? [] : { resultType: 'matrix', result: [] } });
      if (!p.startsWith('/api/v1/')) {
        const file = join(page, normalize(p === '/' ? '/index.html' : p));
        if (!file.startsWith(page) || !existsSync(file)) return problem(404, 'Not found', p);
        return send(200, TYPES[extname(file)] ?? 'application/octet-stream', readFileSync(file));
      }
      const parts = p.slice('/api/v1/'.length).split('/').map(decodeURIComponent);
      if (parts[0] === 'health')
        return json({ status: 'ok', version: 'mock', store: {}, problems: [], ingest: { spans_accepted: 0, spans_rejected: 0, duplicates: 0 } });
      if (parts[0] === 'live') {
        res.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' });
        res.write(`data: ${JSON.stringify({ version, tables: {}, runs: [] })}\n\n`);
        listeners.add(res);
        return res.on('close', () => listeners.delete(res));
      }
      if (parts[0] === 'tables') return json({ tables: TABLES });
      if (parts[0] === 'nodes') return json({ nodes: [], log_rows: 0, queries_on_workers: 0, queries_again: 0 });
      if (parts[0] === 'alarms')
        return json({
          enabled: true,
          firing: 0,
          alarms: [],
          history: [],
          rules: [],
          silences: [],
          sinks: [],
          problems: [],
          rounds: 1,
          speaker: null,
          round_s: 0.01,
          interval_s: 15,
        });
      if (parts[0] === 'sql' && req.method === 'POST') {
        let body = '';
        req.on('data', (c) => (body += c));
        return req.on('end', () => {
          const { query, format } = JSON.parse(body);
          if (!/^\s*(select|with)/i.test(query))
            return problem(400, 'SQL error', `Only queries are allowed, this begins with: ${query.slice(0, 40)}`);
          if (/nowhere/.test(query)) return problem(400, 'SQL error', "table 'nowhere' not found; there are: runs, spans, samples");
          if (format === 'csv') return send(200, 'text/csv', 'name,n\r\n');
          const n = 2000;
          const names = ['sglang_generate', '<script>alert(1)</script>', '=cmd()', 'turn', null];
          send(
            200,
            ARROW,
            Buffer.from(
              sqlStream({
                name: Array.from({ length: n }, (_, i) => names[i % 5]),
                n: BigInt64Array.from({ length: n }, (_, i) => BigInt(i) * 1000003n),
                mean_ms: Float64Array.from({ length: n }, (_, i) => Math.sqrt(i) * 3.7),
              }),
            ),
          );
        });
      }
      if (parts[0] === 'spans') {
        for (const run of runs.values()) {
          for (let n = 0; n < run.steps.length; n++) {
            const s = stepOf(run, n).spans;
            for (let i = 0; i < s.n; i++) {
              if (s.span[i * 2 + 1] !== Buffer.from(parts[2], 'hex').readUInt32LE(4) || hex(s.trace.subarray(i * 4, i * 4 + 4)) !== parts[1])
                continue;
              return json({
                trace_id: parts[1],
                span_id: parts[2],
                parent_span_id: s.parent[i] < 0 ? null : hex(s.span.subarray(s.parent[i] * 2, s.parent[i] * 2 + 2)),
                name: s.texts.name[s.codes.name[i]],
                start_ns: String(baseOf(n) + BigInt(Math.round(s.start[i] * 1e6))),
                end_ns: Number.isNaN(s.end[i]) ? null : String(baseOf(n) + BigInt(Math.round(s.end[i] * 1e6))),
                request_id: 'req-7f3a',
                kind: 'internal',
                start_attrs: { 'rl.sample.id': '12', temperature: 0.7, prompt: 'Find the population of <b>Lisbon</b>.\n'.repeat(30) },
                end_attrs: {
                  prompt_tokens: 1841,
                  completion_tokens: 212,
                  cached_tokens: 1536,
                  finish_reason: 'stop',
                  html: '<img src=x onerror="window.hacked=1">',
                  nested: { a: [1, 2, { b: null }] },
                },
                events: [
                  { time_ns: String(baseOf(n) + BigInt(Math.round(s.start[i] * 1e6)) + 1_500_000n), name: 'first_token', attrs: { index: 0 } },
                ],
                links: [{ trace_id: parts[1], span_id: '00000000000000aa', attrs: {} }],
                resource: { 'service.name': 'slime', 'host.name': 'node-0' },
                scope: { name: 'rollscope', version: '0.1' },
              });
            }
          }
        }
        return problem(404, 'No such span', `There is no span ${parts[2]} in trace ${parts[1]}.`);
      }
      if (parts[0] !== 'runs') return problem(404, 'Not found', `There is nothing at ${p}.`);
      if (parts.length === 1) return json({ runs: [...runs.values()].map(info) });
      const run = runs.get(parts[1]);
      if (!run) return problem(404, 'No such run', `There is no run ${parts[1]}. It may have been deleted.`);
      if (parts.length === 2 && req.method === 'GET') return json(info(run));
      // The mock has no analysis: a step about which nothing can be said.
      if (parts[2] === 'findings') return json({ run: parts[1], text: '', steps: [], steps_left_out: 0, median_s: null, findings: [] });
      if (parts[2] === 'steps' && parts[4] === 'report') {
        return json({
          run: parts[1],
          step: Number(parts[3]),
          text: '',
          sentence: [],
          wall_s: 1,
          running: false,
          start_ns: String(baseOf(0)),
          end_ns: String(baseOf(0)),
          usual: null,
          findings: [],
          phases: [],
          critical_path: { parts: [], totals: [], open: 0, missing_parents: 0, left_out: 0 },
          stragglers: { tail: [], tail_count: 0, cost_s: 0, samples: 0 },
          idle: { workers: 0, why: [] },
          health: {
            groups: { groups: 0 },
            truncated: 0,
            aborted: 0,
            staleness: { stale: 0 },
            cache_hit_rate: null,
            tools: [],
            data: { open: 0, missing_parents: 0 },
          },
        });
      }
      if (req.method === 'DELETE') {
        runs.delete(parts[1]);
        return json({});
      }
      if (parts[2] === 'steps') return json({ steps: run.steps.map((_, n) => facts(run, n)) });
      const n = url.searchParams.has('from_ns') ? 0 : Number(url.searchParams.get('step'));
      if (!run.steps[n] && !run.loose) return problem(404, 'No such step', `Run ${run.run_id} has no step ${n}.`);
      const live = url.searchParams.get('live') === '1';
      const key = `${run.run_id}/${n}/${parts[2]}/${run.steps[n]?.cut ?? ''}/${live}`;
      if (!cache.has(key))
        cache.set(
          key,
          Buffer.from(
            parts[2] === 'timeline' ? timelineStream(stepOf(run, n), baseOf(n), { live }) : samplesStream(stepOf(run, n), baseOf(n), run.run_id, n),
          ),
        );
      setTimeout(() => send(200, ARROW, cache.get(key)), n === 0 ? slow : 0);
    };
    try {
      answer();
    } catch (e) {
      problem(500, 'Mock failed', String(e.stack));
    }
  });
  await new Promise((resolve) => server.listen(port, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    /** Lets a running step go on by so many milliseconds and tells the page. */
    advance(run, ms) {
      const r = runs.get(run);
      const n = r.steps.length - 1;
      r.steps[n].cut += ms;
      cache.delete(`${run}/${n}`);
      version++;
      for (const l of listeners) l.write(`data: ${JSON.stringify({ version, tables: {}, runs: [run] })}\n\n`);
    },
    /** Delays the answers for step 0. */
    delay(ms) {
      slow = ms;
    },
    async stop() {
      for (const l of listeners) l.end();
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

const column = (name, type, doc) => ({ name, type, doc });
const TABLES = [
  {
    name: 'runs',
    columns: [
      column('run_id', 'dict', 'the run'),
      column('project', 'dict', 'project that the run belongs to'),
      column('started_ns', 'int64', 'time of the first data'),
    ],
  },
  {
    name: 'spans',
    columns: [
      column('run_id', 'dict', 'the run'),
      column('step', 'int64', 'training step'),
      column('trace_id', 'binary(16)', 'W3C trace id'),
      column('span_id', 'binary(8)', 'W3C span id'),
      column('name', 'dict', 'name of the work'),
      column('start_ns', 'int64', 'start'),
      column('end_ns', 'int64', 'end; null while the span is open'),
      column('end_attrs', 'map', 'attributes'),
    ],
  },
  { name: 'samples', columns: [column('sample_id', 'dict', 'unique within the step'), column('reward', 'float64', 'the reward, if it is a number')] },
];

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const at = process.argv.indexOf('--port');
  const mock = await start({
    port: at > 0 ? Number(process.argv[at + 1]) : 7200,
    empty: process.argv.includes('--empty'),
    big: process.argv.includes('--big'),
  });
  console.log(mock.url);
  setInterval(() => mock.advance?.('grpo-search-7b', 400), 2000).unref();
}
