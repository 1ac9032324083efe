import { describe, expect, it } from 'vitest';
import { block, makeStep, samplesStream, timelineStream } from '../../mock/generate.mjs';
import { readStream } from '../../src/data/arrow';
import { fromAscii } from '../../src/data/ascii';
import { readWords } from '../../src/data/words';
import { StaticSource, type Manifest } from '../../src/data/static';
import { csvField, jsonText, toCsv } from '../../src/base/cells';
import { duration, niceStep, tick } from '../../src/base/format';
import { fuzzy } from '../../src/base/fuzzy';
import { PHASES, phaseOf } from '../../src/domain/phases';
import { formatRoute, formatWindow, parseRoute, parseWindow, type Route } from '../../src/base/route';
import { VIEWS } from '../../src/shell/views';
import { packedItems } from '../../src/features/timeline/packed';

describe('the address', () => {
  it('goes there and back', () => {
    const routes: Route[] = [
      { view: 'runs' as const, run: null, params: { q: 'a b&c=d#?%', sort: '-spans' } },
      { view: 'run' as const, run: 'math/ablation 3?#', params: {} },
      { view: 'timeline' as const, run: 'ü/中', params: { step: '5', w: '1.5,2', span: 'ab.cd', q: 'reward:<0.5 +x' } },
      { view: 'step', run: 'a/b', params: { step: '-3', x: '1' } },
      { view: 'sql' as const, run: null, params: { q: "SELECT 1\nFROM x WHERE a = '100%'" } },
    ];
    for (const r of routes) {
      const back = parseRoute(formatRoute(r, VIEWS), VIEWS);
      expect({ ...back, params: { ...back.params } }).toEqual(r);
    }
  });
  it('takes anything', () => {
    for (const bad of ['', '#', '#/', '#/run', '#/run/', '#/nowhere/x', '#/runs?%zz&=&a', '#/run/%E0%A4%A/timeline?step=%'])
      expect(() => parseRoute(bad, VIEWS)).not.toThrow();
    expect(parseRoute('#/runs?__proto__=1', VIEWS).params['__proto__']).toBe('1');
  });
  it('windows keep what can be seen', () => {
    const [a, b] = parseWindow(formatWindow(1234.567891, 1234.567999))!;
    expect(Math.abs(a - 1234.567891)).toBeLessThan(1e-6);
    expect(b).toBeGreaterThan(a);
    for (const bad of [undefined, '', '1', '2,1', 'a,b', '1,1', '1,2,3']) expect(parseWindow(bad)).toBeNull();
  });
});

describe('text for people', () => {
  it('durations', () => {
    expect([0, 0.00002, 0.5, 12.34, 999, 1500, 61_000, 3_720_000, NaN].map(duration)).toEqual([
      '0',
      '20 ns',
      '500 µs',
      '12.3 ms',
      '999 ms',
      '1.50 s',
      '1 min 01 s',
      '1 h 02 min',
      '–',
    ]);
  });
  it('axis steps are 1, 2 or 5 times a power of ten', () => {
    expect([0.3, 1, 1.2, 7, 30].map(niceStep)).toEqual([0.5, 1, 2, 10, 50]);
    expect([tick(65_000, 5000), tick(1500, 500), tick(20, 10), tick(0.25, 0.05)]).toEqual(['1:05', '1.5 s', '20 ms', '0.25 ms']);
  });
  it('finds by a few letters', () => {
    expect(fuzzy(['Go to runs', 'Go to SQL', 'Timeline: fit all'], 'gsql', (x) => x)).toEqual(['Go to SQL']);
  });
  it('CSV quotes, and disarms formulas', () => {
    expect([csvField('a,"b"\n'), csvField('=1+1'), csvField(-5), csvField(null), csvField(5n)]).toEqual(['"a,""b""\n"', "'=1+1", '-5', '', '5']);
    expect(toCsv(['a', 'b'], 2, (r, c) => r * 10 + c)).toBe('a,b\n0,1\n10,11\n');
    expect(jsonText({ a: 2n ** 63n, b: NaN, c: 3n })).toBe('{"a":"9223372036854775808","b":"NaN","c":3}');
  });
});

describe('phases', () => {
  const key = (name: string, said: string | null = null): string => PHASES[phaseOf(name, said)].key;
  it('the sender is believed, the name says what it leaves open', () => {
    expect(key('anything', 'tool')).toBe('tool');
    expect(key('sglang_generate', 'rollout')).toBe('generate');
    expect(key('whatever', 'rollout')).toBe('rollout');
    expect(key('whatever', 'weight-sync')).toBe('weight_sync');
    expect(key('whatever', 'something new')).toBe('other');
  });
  it('knows the names of slime, SGLang and ROLL', () => {
    expect(
      [
        'prefill_waiting',
        'prefill_forward',
        'decode_loop',
        'decode_forward',
        'prefill_transfer_kv_cache',
        'sglang_pd_prefill',
        'model_update',
        'ref_log_probs',
        'reward_model',
      ].map((n) => key(n)),
    ).toEqual(['queue', 'prefill', 'decode', 'decode', 'transfer', 'generate', 'weight_sync', 'log_probs', 'reward']);
  });
});

describe('a file with the data inside', () => {
  const step = makeStep({ seed: 4, samples: 6, perSample: 20 });
  const manifest: Manifest = {
    version: 2,
    generator: 'test',
    runs: 'runs',
    per_run: [
      {
        run_id: 'r',
        steps: 'steps-0',
        windows: [{ step: 0, timeline: 'timeline-0-0', samples: 'samples-0-0', attrs: [], rest: [], chunk_rows: 4096 }],
      },
    ],
  };
  const blocks: Record<string, string> = {
    manifest: block(JSON.stringify(manifest)),
    'steps-0': block(JSON.stringify({ steps: [{ step: 0 }] })),
    'timeline-0-0': block(timelineStream(step, 5n, { thin: true })),
    'samples-0-0': block(samplesStream(step, 5n, 'r', 0)),
  };
  const source = new StaticSource((id) => blocks[id] ?? null);
  it('reads every byte out of its text', () => {
    const text = block(Uint8Array.from({ length: 5000 }, (_, i) => (i * 7919) >> 3));
    // eslint-disable-next-line no-control-regex -- control characters are the subject
    expect(text).toMatch(/^[\x01-\x09\x0b\x0c\x0e-;=-\x7f]*$/);
    expect(() => fromAscii('\u0100')).toThrow();
    expect(() => fromAscii('abc\x1b')).toThrow();
    expect([...fromAscii(block('x'))].slice(0, 2)).toEqual([0x1f, 0x8b]);
  });
  it('gives the same timeline as the server', async () => {
    const items = packedItems(readStream((await source.timeline('r', { step: 0 })).bytes));
    expect(items.n).toBe(step.spans.n);
    expect(items.samples).toHaveLength(6);
    expect(readStream(await source.samples('r', { step: 0 })).batches[0].length).toBe(6);
    expect(await source.steps('r')).toMatchObject([{ step: 0, running: false }]);
  });
  it('says what is missing', async () => {
    await expect(source.timeline('r', { step: 3 })).rejects.toThrow(/Step 3/);
    await expect(source.steps('other')).rejects.toThrow(/no run other/);
    await expect(source.runs()).rejects.toThrow(/rs-runs is missing/);
    await expect(source.span('t', 's', { run: 'r', window: { step: 0 }, row: 5 })).rejects.toThrow(/left out/);
    await expect(new StaticSource(() => '!!!').manifest()).rejects.toThrow(/damaged|decompressed/);
  });
});

describe('texts as numbers of words', () => {
  const planes = (ns: number[]): number[] => [0, 8, 16, 24].flatMap((s) => ns.map((n) => (n >> s) & 255));
  const u32 = (n: number): number[] => [n & 255, (n >> 8) & 255, (n >> 16) & 255, n >>> 24];
  const make = (texts: number[][], tokens: string[]): Uint8Array<ArrayBuffer> => {
    const bytes = tokens.map((t) => [...new TextEncoder().encode(t)]);
    return Uint8Array.from([
      ...u32(texts.length),
      ...u32(texts.flat().length),
      ...u32(tokens.length),
      ...planes(texts.map((t) => t.length)),
      ...planes(bytes.map((b) => b.length)),
      ...bytes.flat(),
      ...planes(texts.flat()),
    ]);
  };
  it('puts back one space between words, and nothing else', () => {
    expect(readWords(make([[0, 1, 2, 0, 3], [], [4, 0, 0]], ['to', 'be', ', ', '中文ü', '\\n']))).toEqual(['to be, to 中文ü', '', '\\nto to']);
  });
  it('never reads beyond what is there', () => {
    const whole = make([[0, 1]], ['a', 'b']);
    for (let k = 0; k < whole.length; k++) expect(() => readWords(whole.slice(0, k))).toThrow();
    expect(() => readWords(make([[7]], ['a']))).toThrow();
  });
});
