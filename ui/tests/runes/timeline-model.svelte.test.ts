// The timeline without its picture: which step it shows, what it asks the source for, and what it writes into the address.
import { flushSync } from 'svelte';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { makeStep, samplesStream, timelineStream, type MockStep } from '../../mock/generate.mjs';
import { SourceError } from '../../src/base/errors';
import type { AttrTest, Change, DataSource, HowTimeline, Owners, RunInfo, StepInfo, TimelineAnswer, Window } from '../../src/data/types';
import { spanText } from '../../src/features/timeline/choices';
import { VIRTUAL } from '../../src/features/timeline/items';
import { TimelineModel, type Page, type Picture } from '../../src/features/timeline/model.svelte';

const BASE = 1_763_000_000_000_000_000n;
const SECOND = 1_000_000_000n;
const RUN = 'grpo';

type Params = Record<string, string>;

/** What `app` is to the model: an address that can be changed, and news. */
class FakePage implements Page {
  params: Params = $state.raw({});
  change: Change = $state.raw({ version: 0, runs: [] });
  dark = $state(true);
  runs: RunInfo[] = $state.raw([]);
  readonly pushed: Record<string, string | null>[] = [];
  readonly source: DataSource;

  constructor(source: FakeSource, params: Params) {
    this.source = source as unknown as DataSource;
    this.params = params;
    this.runs = [source.info];
  }
  get route(): { params: Params } {
    return { params: this.params };
  }
  set(changes: Record<string, string | null>, push = false): void {
    if (push) this.pushed.push(changes);
    const next = { ...this.params };
    for (const [k, v] of Object.entries(changes)) {
      if (v === null || v === '') delete next[k];
      else next[k] = v;
    }
    this.params = next;
  }
}

/** Steps 3, 5 and 7 of a run; what was asked is counted, and any answer may be replaced. */
class FakeSource {
  readonly kind = 'server' as const;
  readonly can = { sql: true, remove: true, live: true };
  info = {
    run_id: RUN,
    status: 'finished',
    started_ns: String(BASE),
    ended_ns: null,
    last_ns: String(BASE + 1000n * SECOND),
    spans: 10,
  } as RunInfo;
  data = new Map<number, MockStep>([3, 5, 7].map((n) => [n, makeStep({ seed: n, samples: n, perSample: 10 })]));
  open = 0;
  asked: ({ window: Window } & HowTimeline)[] = [];
  tests: AttrTest[] = [];
  linksAsked = 0;
  stepsAsked = 0;
  version = 1;

  facts(n: number): StepInfo {
    const { spans, rows, wall } = this.data.get(n)!;
    const end = this.open ? null : String(BASE + BigInt(Math.round(wall * 1e6)));
    return {
      step: n,
      start_ns: String(BASE),
      end_ns: end,
      spans: spans.n,
      samples: rows.length,
      open: n === 7 ? this.open : 0,
      reward_mean: null,
      phases: {},
      exclusive: {},
      running: this.open > 0,
      version: '',
    };
  }
  steps = (): Promise<StepInfo[]> => {
    this.stepsAsked++;
    return Promise.resolve([...this.data.keys()].map((n) => this.facts(n)));
  };
  runs = (): Promise<RunInfo[]> => Promise.resolve([this.info]);
  timeline = (_run: string, window: Window, how: HowTimeline = {}): Promise<TimelineAnswer> => {
    this.asked.push({ window, ...how });
    return this.answer(window, how.live ?? false);
  };
  answer = (window: Window, live: boolean): Promise<TimelineAnswer> => {
    const bytes = timelineStream(this.data.get(window.step ?? 3)!, BASE, { live });
    return Promise.resolve({ bytes, version: String(this.version), delta: false });
  };
  samples = (_run: string, window: Window): Promise<Uint8Array<ArrayBuffer>> =>
    Promise.resolve(new Uint8Array(samplesStream(this.data.get(window.step ?? 3)!, BASE, RUN, window.step ?? 3)));
  withAttr = (_run: string, _window: Window, test: AttrTest): Promise<Uint8Array> => {
    this.tests.push(test);
    return Promise.resolve(new Uint8Array(0));
  };
  owners: Owners = { traceIds: new Uint8Array(0), samples: [] };
  ownersAsked = 0;
  ownersWithAttr = (): Promise<Owners> => {
    this.ownersAsked++;
    return Promise.resolve(this.owners);
  };
  links = (): Promise<{ fields: []; batches: [] }> => {
    this.linksAsked++;
    return Promise.resolve({ fields: [], batches: [] });
  };
}

const picture = { height: () => 700, redraw: vi.fn<() => void>(), reveal: vi.fn<(item: number) => void>() } satisfies Picture;

interface Made {
  model: TimelineModel;
  page: FakePage;
  source: FakeSource;
  end: () => void;
}
let ends: (() => void)[] = [];
function make(params: Params = {}, source = new FakeSource()): Made {
  const page = new FakePage(source, params);
  let model: TimelineModel;
  const end = $effect.root(() => {
    model = new TimelineModel(RUN, page, picture);
  });
  ends.push(end);
  return { model: model!, page, source, end };
}
/** Lets answers come and effects run; with time, timers too. */
async function rest(ms = 0): Promise<void> {
  flushSync();
  await vi.advanceTimersByTimeAsync(ms);
  flushSync();
}
async function shown(params: Params = {}, source = new FakeSource()): Promise<Made> {
  const made = make(params, source);
  await rest();
  expect(made.model.scene).not.toBeNull();
  return made;
}
function news(m: Made, runs = [RUN]): void {
  m.page.change = { version: m.page.change.version + 1, runs };
  flushSync();
}
const labels = (m: TimelineModel): string[] => Array.from(m.rows!.order, (r) => m.scene!.table.label[r]);
const samplesShown = (m: TimelineModel): string[] => {
  const { layout, table } = m.scene!;
  return [...m.rows!.order].filter((r) => layout.rowKind[r] === 0).map((r) => table.label[r]);
};
const place = (m: TimelineModel, t: 't0' | 't1'): number => m.scene![t];

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal('matchMedia', () => ({ matches: false }));
  vi.stubGlobal('requestAnimationFrame', (f: () => void) => setTimeout(f, 16));
  picture.redraw.mockClear();
  picture.reveal.mockClear();
});
afterEach(() => {
  ends.forEach((end) => end());
  ends = [];
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

describe('the step', () => {
  it('is the newest, unless the address names one', async () => {
    const newest = await shown();
    expect(newest.model.stepNo).toBe(7);
    expect(newest.source.asked.map((a) => a.window)).toEqual([{ step: 7 }]);
    expect(samplesShown(newest.model)).toHaveLength(7);
    const named = await shown({ step: '3' });
    expect(named.source.asked.map((a) => a.window)).toEqual([{ step: 3 }]);
    expect(samplesShown(named.model)).toHaveLength(3);
  });
  it('changes by one, and not beyond the ends; what was chosen in the old step is forgotten', async () => {
    const m = await shown({ step: '5', span: 'x', w: '0,1', rx: '2', sort: 'start' });
    expect([m.model.hasBefore, m.model.hasAfter]).toEqual([true, true]);
    m.model.go(1);
    await rest();
    expect(m.page.params).toEqual({ step: '7', sort: 'start' });
    expect(m.page.pushed).toHaveLength(1);
    expect(m.model.hasAfter).toBe(false);
    expect(m.source.asked.at(-1)?.window).toEqual({ step: 7 });
    m.model.go(1);
    await rest();
    expect(m.model.stepNo).toBe(7);
    m.model.openStep(3);
    await rest();
    expect(m.model.hasBefore).toBe(false);
    expect(samplesShown(m.model)).toHaveLength(3);
  });
  it('whose answer comes late does not replace a newer one', async () => {
    const m = make({ step: '3' });
    let late: (a: TimelineAnswer) => void = () => undefined;
    const { answer } = m.source;
    m.source.answer = (w, live) => (w.step === 3 ? new Promise((done) => (late = done)) : answer(w, live));
    await rest();
    expect(m.model.scene).toBeNull();
    m.model.openStep(7);
    await rest();
    late(await answer({ step: 3 }, false));
    await rest();
    expect(samplesShown(m.model)).toHaveLength(7);
  });
  it('is a window of time where the run has none', async () => {
    const source = new FakeSource();
    const steps = source.steps;
    source.steps = async () => (await steps()).slice(0, 0);
    const m = await shown({}, source);
    expect(m.page.params).toEqual({ from_ns: String(BASE + 400n * SECOND + 1n), to_ns: String(BASE + 1000n * SECOND + 1n) });
    expect(m.model.stepNo).toBeNull();
    expect(source.asked.map((a) => a.window)).toEqual([m.page.params]);
  });
});

describe('rows', () => {
  it('are filtered by the address, and the counts above them follow once typing pauses', async () => {
    const m = await shown({ step: '7' });
    const { bins } = m.model.scene!;
    m.page.set({ q: 'sample:2' });
    await rest();
    expect(labels(m.model)).toEqual(['2']);
    expect(m.model.scene!.bins).toBe(bins);
    await rest(300);
    expect(m.model.scene!.bins).not.toBe(bins);
    expect(m.model.scene!.bins.peak).toBeCloseTo(1);
    m.page.set({ q: null });
    await rest(300);
    expect(m.model.scene!.bins).toBe(bins);
    expect(m.source.asked).toHaveLength(1);
  });
  it('are sorted, and turned round', async () => {
    const m = await shown({ step: '7', rows: 'sample', sort: 'duration' });
    const up = samplesShown(m.model);
    m.page.set({ sort: '-duration' });
    await rest();
    expect(samplesShown(m.model)).toEqual(up.toReversed());
  });
  it('of another kind are another layout of the same answer', async () => {
    const m = await shown({ step: '7' });
    m.page.set({ rows: 'worker' });
    await rest();
    expect(m.model.scene!.layout.mode).toBe('worker');
    expect(m.model.rows!.order.length).toBe(m.model.data.value!.layout.rows);
    expect(m.source.asked).toHaveLength(1);
  });
  it('are expanded one by one or all together', async () => {
    const m = await shown({ step: '7', x: '0' });
    expect(m.model.someExpanded()).toBe(false);
    const row = m.model.rows!.order[0];
    m.model.expand(row);
    await rest();
    expect(m.page.params.rx).toBe(m.model.scene!.table.label[row]);
    expect([...m.model.scene!.expanded].filter(Boolean)).toHaveLength(1);
    m.model.expandAll();
    await rest();
    expect(m.page.params).toMatchObject({ x: '0' });
    expect(m.page.params.rx).toBeUndefined();
    m.model.expandAll();
    await rest();
    expect(m.model.scene!.expanded.every((e) => e === 1)).toBe(true);
  });
  it('are tested by attributes at the source; until it answers nothing is left out', async () => {
    const m = await shown({ step: '7' });
    const all = labels(m.model).length;
    let done: (ids: Uint8Array) => void = () => undefined;
    m.source.withAttr = (_run, _window, test) => (m.source.tests.push(test), new Promise((d) => (done = d)));
    m.page.set({ q: '@tool=ba' });
    await rest(100);
    m.page.set({ q: '@tool=bash' });
    await rest(1000);
    // Only what was typed in the end.
    expect(m.source.tests).toEqual([{ key: 'tool', op: '=', value: 'bash' }]);
    expect(labels(m.model)).toHaveLength(all);
    const { items } = m.model.scene!;
    const i = items.sample.findIndex((s) => items.samples[s] === '4');
    done(items.spanIds.slice(8 * i, 8 * i + 8));
    await rest();
    expect(labels(m.model)).toEqual(['4']);
    expect(m.source.ownersAsked).toBe(0);
    m.page.set({ q: null });
    await rest();
    expect(labels(m.model)).toHaveLength(all);
    expect(m.model.asked.value).toBeUndefined();
  });
  it('stay where an attribute cannot be looked up, and the error goes with the word', async () => {
    const m = await shown({ step: '7' });
    m.source.withAttr = () => Promise.reject(new SourceError('Bad Request', 'no', 400));
    m.page.set({ q: '@tool=bash' });
    await rest(300);
    expect(m.model.asked.error?.message).toBe('no');
    m.page.set({ q: 'sample:2' });
    await rest();
    expect(m.model.asked.error).toBeNull();
    expect(labels(m.model)).toEqual(['2']);
  });
});

describe('a step of very many spans', () => {
  const thinned = (source: FakeSource, stepOf = (n: number): number => n): FakeSource => {
    const { answer } = source;
    source.answer = async (w, live) => {
      // Fine where somebody looks: so the page asks once.
      const parts = source.asked.at(-1)?.focus ? [60_000, 0] : [60_000];
      return { ...(await answer(w, live)), bytes: timelineStream(source.data.get(stepOf(w.step ?? 3))!, BASE, { live, parts }) };
    };
    return source;
  };
  it('is asked for once more where somebody looks, with what was chosen and measured left as it is', async () => {
    const m = await shown({ step: '7' }, thinned(new FakeSource()));
    const { items } = m.model.scene!;
    expect(items.spans).toBe(10 * items.n);
    Object.assign(m.model.scene!, { width: 1200, height: 600 });
    m.model.select(4);
    m.model.range = [1, 2];
    await rest(1000);
    expect(m.source.asked.map((a) => a.focus !== null)).toEqual([false, true]);
    const { focus } = m.source.asked[1];
    expect(focus!.samples).toEqual(samplesShown(m.model));
    expect(focus!.fromNs).toBe(BASE);
    expect(m.model.scene!.items).not.toBe(items);
    expect([m.model.chosen, m.model.range]).toEqual([4, [1, 2]]);
    // It is fine enough now, wherever one goes within it.
    Object.assign(m.model.scene!, { width: 1200, height: 600 });
    m.model.scene!.clampWindow(10, 20);
    m.model.moved(10, 20);
    await rest(1000);
    expect(m.source.asked).toHaveLength(2);
    expect(m.source.stepsAsked).toBe(1);
  });
  it('that is over stays where somebody looks, also at its end', async () => {
    const m = await shown({ step: '7' }, thinned(new FakeSource()));
    const { extent } = m.model.scene!.items;
    Object.assign(m.model.scene!, { width: 1200, height: 600 });
    m.model.scene!.clampWindow(extent - 4, extent + 1);
    const [t0, t1] = [place(m.model, 't0'), place(m.model, 't1')];
    await rest(1000);
    expect(m.source.asked).toHaveLength(2);
    expect([place(m.model, 't0'), place(m.model, 't1')]).toEqual([t0, t1]);
  });
  it('counts the rows that a filter leaves, in each answer', async () => {
    const m = await shown({ step: '7', q: 'sample:2' }, thinned(new FakeSource()));
    await rest(250);
    expect(m.model.scene!.bins.peak).toBeCloseTo(1);
    const { items } = m.model.scene!;
    Object.assign(m.model.scene!, { width: 1200, height: 600 });
    await rest(60);
    expect(m.model.scene!.items).not.toBe(items);
    // At first as before.
    expect(m.model.scene!.bins.peak).toBeCloseTo(1);
    const { bins } = m.model.scene!;
    await rest(250);
    expect(m.model.scene!.bins).not.toBe(bins);
    expect(m.model.scene!.bins.peak).toBeCloseTo(1);
    m.page.set({ q: null });
    await rest(250);
    expect(m.model.scene!.bins).toBe(m.model.data.value!.bins);
  });
  it('asks whose the spans with an attribute are: most of their ids are not in the picture', async () => {
    const m = await shown({ step: '7', q: '@tool=bash' }, thinned(new FakeSource()));
    const { items } = m.model.scene!;
    const i = items.sample.findIndex((s) => items.samples[s] === '4');
    const t = items.trace[i];
    m.source.owners = { traceIds: items.traceIds.slice(t * 16, t * 16 + 16), samples: [null] };
    await rest(1000);
    expect(m.source.ownersAsked).toBe(1);
    expect(labels(m.model)).toEqual(['4']);
  });
  it('asks for the span of a link that others stand for, and shows it', async () => {
    const span = spanText((await shown({ step: '7' })).model.scene!.items, 9);
    // Another step's spans have other ids.
    const source: FakeSource = thinned(new FakeSource(), (n) => (source.asked.at(-1)?.apart === span ? n : 5));
    picture.reveal.mockClear();
    const m = await shown({ step: '7', span }, source);
    await rest(100);
    expect(m.source.asked.map((a) => a.apart)).toEqual([null, span]);
    expect(m.model.chosen).toBe(9);
    expect(m.page.params.span).toBe(span);
    expect(picture.reveal).toHaveBeenLastCalledWith(9);
    // It stays apart wherever one looks next.
    Object.assign(m.model.scene!, { width: 1200, height: 600 });
    m.model.look();
    await rest(1000);
    expect(m.source.asked.at(-1)).toMatchObject({ apart: span, focus: { fromNs: BASE } });
    // One that does not exist is asked for once.
    m.page.set({ span: 'f'.repeat(32) + '.' + 'f'.repeat(16) });
    await rest(1000);
    const { length } = m.source.asked;
    await rest(3000);
    expect(m.source.asked).toHaveLength(length);
    expect(m.model.chosen).toBe(-1);
  });
  it('is asked for as a whole while it runs: no trace can be taken out of what stands for several', async () => {
    const source = thinned(new FakeSource());
    source.info = { ...source.info, status: 'running' };
    source.open = 3;
    const m = await shown({ step: '7' }, source);
    source.facts = ((facts) => (n: number) => ({ ...facts(n), spans: 99 }))(source.facts.bind(source));
    news(m);
    await rest(2000);
    expect(m.source.asked.length).toBeGreaterThan(1);
    expect(m.source.asked.map((a) => a.since)).toEqual(m.source.asked.map(() => null));
  });
  it('is asked for closely once while it runs, and no more often than for news', async () => {
    const source = thinned(new FakeSource());
    source.info = { ...source.info, status: 'running' };
    source.open = 3;
    source.data.set(7, makeStep({ seed: 7, samples: 7, perSample: 10, cut: 2000 }));
    const { answer } = source;
    source.answer = async (w, live) => {
      await new Promise((done) => setTimeout(done, 1000));
      return answer(w, live);
    };
    const m = make({ step: '7' }, source);
    await rest(1010);
    Object.assign(m.model.scene!, { width: 1200, height: 600 });
    await rest(1900);
    expect(source.asked).toHaveLength(1);
    await rest(1200);
    expect(source.asked).toHaveLength(2);
    Object.assign(m.model.scene!, { width: 1200, height: 600 });
    // It grows on.
    const { extent } = m.model.scene!.items;
    await rest(20_000);
    expect(m.model.scene!.items.extent).toBeGreaterThan(extent + 10_000);
    expect(source.asked).toHaveLength(2);
  });
  it('takes as many items as the address says', async () => {
    const m = await shown({ step: '7', most: '5000' });
    expect(m.source.asked[0].most).toBe('5000');
    await rest(1000);
    expect(m.source.asked).toHaveLength(1);
  });
});

describe('the selected span', () => {
  it('is in the address; the first is a new entry of the history, the next ones replace it', async () => {
    const m = await shown({ step: '7' });
    m.model.select(4);
    await rest();
    expect(m.page.params.span).toBe(spanText(m.model.scene!.items, 4));
    expect(m.page.pushed).toHaveLength(1);
    m.model.select(5);
    await rest();
    expect(m.page.params.span).toBe(spanText(m.model.scene!.items, 5));
    expect(m.page.pushed).toHaveLength(1);
    m.model.select(-1);
    await rest();
    expect(m.page.params.span).toBeUndefined();
  });
  it('follows the back button and edited addresses', async () => {
    const m = await shown({ step: '7' });
    m.model.select(4);
    await rest();
    m.page.set({ span: spanText(m.model.scene!.items, 9) });
    await rest();
    expect(m.model.chosen).toBe(9);
    m.page.set({ span: `${'0'.repeat(32)}.${'0'.repeat(16)}` });
    await rest();
    expect(m.model.chosen).toBe(-1);
  });
  it('may be a row that the server made up: its id says nothing, and the row stays selected', async () => {
    const source = new FakeSource();
    const { answer } = source;
    source.answer = async (w, live) => {
      const { spans } = source.data.get(7)!;
      for (let i = 0; i < spans.n; i++) if (i % 3 > 0) spans.span.fill(0, i * 2, i * 2 + 2);
      const focused = source.asked.at(-1)?.focus;
      return { ...(await answer(w, live)), bytes: timelineStream(source.data.get(7)!, BASE, { live, parts: focused ? [60_000, 0] : [60_000] }) };
    };
    const m = await shown({ step: '7' }, source);
    const { items } = m.model.scene!;
    const made = Array.from({ length: items.n }, (_, i) => i).filter((i) => items.flags[i] & VIRTUAL && items.trace[i] === items.trace[9]);
    expect(made.length).toBeGreaterThan(3);
    const chosen = made.at(-1)!;
    Object.assign(m.model.scene!, { width: 1200, height: 600 });
    m.model.select(chosen);
    await rest(1000);
    expect(m.model.scene!.items).not.toBe(items);
    expect(m.model.chosen).toBe(chosen);
    // There is no such span to ask for.
    expect(source.asked.map((a) => a.apart)).toEqual([null, null]);
    // What is not there any more is not selected again.
    source.data.set(7, makeStep({ seed: 8, samples: 7, perSample: 10 }));
    m.model.fetch(true);
    await rest();
    expect(m.model.chosen).toBe(-1);
  });
  it('of a link is selected and shown once', async () => {
    const first = await shown({ step: '7' });
    const span = spanText(first.model.scene!.items, 6);
    picture.reveal.mockClear();
    const second = await shown({ step: '7', span });
    await rest(50);
    expect(second.model.chosen).toBe(6);
    expect(picture.reveal.mock.calls).toEqual([[6]]);
    second.page.set({ q: 'sample' });
    await rest(300);
    expect(picture.reveal).toHaveBeenCalledTimes(1);
  });
});

describe('the window', () => {
  it('is written once the view rests, and a link opens at it', async () => {
    const m = await shown({ step: '7' });
    m.model.moved(100, 200);
    m.model.moved(1000, 2500);
    await rest();
    expect(m.page.params.w).toBeUndefined();
    await rest(300);
    expect(m.page.params.w).toBe('1,2.5');
    const again = await shown({ ...m.page.params });
    expect([place(again.model, 't0'), place(again.model, 't1')]).toEqual([1000, 2500]);
    expect([again.model.axis.t0, again.model.axis.t1]).toEqual([1000, 2500]);
  });
  it('is left out of the address when it is everything', async () => {
    const m = await shown({ step: '7', w: '1,2.5' });
    m.model.moved(0, m.model.scene!.items.extent);
    await rest(300);
    expect(m.page.params.w).toBeUndefined();
  });
  it('can be set to a measured range', async () => {
    const m = await shown({ step: '7' });
    m.model.range = [2000, 500];
    m.model.zoomToRange();
    await rest(300);
    expect([place(m.model, 't0'), place(m.model, 't1')]).toEqual([500, 2000]);
    expect(m.model.range).toBeNull();
    expect(m.page.params.w).toBe('0.5,2');
  });
});

describe('a running step', () => {
  const running = (cut = 2000): FakeSource => {
    const source = new FakeSource();
    source.info = { ...source.info, status: 'running' };
    source.open = 3;
    source.data.set(7, makeStep({ seed: 7, samples: 7, perSample: 10, cut }));
    return source;
  };
  const grow = (m: Made, cut: number): void => {
    m.source.data.set(7, makeStep({ seed: 7, samples: 7, perSample: 10, cut }));
    m.source.version++;
    news(m);
  };
  it('is fetched again when it changed, once for many changes', async () => {
    const m = await shown({}, running());
    expect(m.model.isLive).toBe(true);
    expect(m.source.asked[0].live).toBe(true);
    const before = m.model.scene!.items;
    for (const cut of [2100, 2200, 2300]) {
      grow(m, cut);
      await rest(50);
    }
    expect(m.source.asked).toHaveLength(1);
    await rest(2000);
    expect(m.source.asked).toHaveLength(2);
    expect(m.model.scene!.items).not.toBe(before);
    expect(m.model.scene!.items.extent).toBeGreaterThan(2200);
  });
  it('is fetched while it changes all the time', async () => {
    const m = await shown({}, running());
    for (let cut = 2010; cut <= 2400; cut += 10) {
      m.source.open++;
      grow(m, cut);
      await rest(100);
    }
    expect(m.source.asked.length).toBeGreaterThan(3);
    expect(m.source.asked.length).toBeLessThan(12);
  });
  it('is not fetched again when it did not change, or another run did', async () => {
    const m = await shown({}, running());
    news(m);
    await rest(2000);
    expect(m.source.stepsAsked).toBe(2);
    news(m, ['other']);
    await rest(2000);
    expect(m.source.stepsAsked).toBe(2);
    expect(m.source.asked).toHaveLength(1);
  });
  it('keeps what is selected and in view', async () => {
    const m = await shown({}, running());
    m.model.select(5);
    const span = m.page.params.span;
    m.model.scene!.clampWindow(200, 700);
    grow(m, 4000);
    await rest(2000);
    expect(m.source.asked).toHaveLength(2);
    expect([place(m.model, 't0'), place(m.model, 't1')]).toEqual([200, 700]);
    expect(spanText(m.model.scene!.items, m.model.chosen)).toBe(span);
  });
  it('is followed at its right edge, unless that was turned off', async () => {
    for (const follow of [true, false]) {
      const m = await shown(follow ? {} : { follow: '0' }, running());
      const width = place(m.model, 't1') - place(m.model, 't0');
      const before = place(m.model, 't1');
      grow(m, 6000);
      await rest(2000);
      if (follow) expect(place(m.model, 't1')).toBeGreaterThan(before + 1000);
      else expect(place(m.model, 't1')).toBe(before);
      expect(place(m.model, 't1') - place(m.model, 't0')).toBeGreaterThanOrEqual(width * 0.99);
      m.model.toggleFollow();
      expect(m.page.params.follow).toBe(follow ? '0' : undefined);
      m.end();
    }
  });
  it('grows between two answers, and stops with the component', async () => {
    const m = await shown({}, running());
    const { extent } = m.model.axis;
    await rest(1000);
    expect(m.model.axis.extent).toBeGreaterThan(extent);
    expect(picture.redraw).toHaveBeenCalled();
    m.end();
    picture.redraw.mockClear();
    await rest(1000);
    expect(picture.redraw).not.toHaveBeenCalled();
  });
  it('of a run that is over does not grow', async () => {
    const source = running();
    source.info = { ...source.info, status: 'failed' };
    const m = await shown({}, source);
    expect(m.model.isLive).toBe(false);
    await rest(1000);
    expect(picture.redraw).not.toHaveBeenCalled();
  });
  it('that cannot be read just now stays in view, and is read when it changes again', async () => {
    const m = await shown({}, running());
    const { scene } = m.model;
    const { answer } = m.source;
    m.source.answer = () => Promise.reject(new SourceError('Service Unavailable', 'busy', 503));
    grow(m, 3000);
    await rest(2000);
    expect(m.model.data.error?.message).toBe('busy');
    expect(m.model.scene).toBe(scene);
    m.source.answer = answer;
    grow(m, 3500);
    await rest(5000);
    expect(m.model.data.error).toBeNull();
    expect(m.model.scene).not.toBe(scene);
  });
  it('that was refused is not asked for again at every change', async () => {
    const m = await shown({}, running());
    m.source.answer = () => Promise.reject(new SourceError('Bad Request', 'unknown parameter', 400));
    for (const cut of [3000, 3500, 4000, 4500]) {
      grow(m, cut);
      await rest(3000);
    }
    expect(m.source.asked).toHaveLength(2);
  });
});

describe('an error', () => {
  it('of the first answer is held until a retry succeeds', async () => {
    const source = new FakeSource();
    const { answer } = source;
    source.answer = () => Promise.reject(new SourceError('Not Found', 'no such step', 404));
    const m = make({ step: '7' }, source);
    await rest();
    expect(m.model.data.error?.message).toBe('no such step');
    expect(m.model.scene).toBeNull();
    source.answer = answer;
    m.model.fetch(false);
    await rest();
    expect(m.model.data.error).toBeNull();
    expect(samplesShown(m.model)).toHaveLength(7);
  });
  it('of the list of steps is held until a retry succeeds', async () => {
    const source = new FakeSource();
    const { steps } = source;
    source.steps = () => Promise.reject(new Error('gone'));
    const m = make({}, source);
    await rest();
    expect(m.model.steps.error?.message).toBe('gone');
    source.steps = steps;
    await m.model.loadSteps();
    await rest();
    expect(m.model.steps.error).toBeNull();
    expect(m.model.scene).not.toBeNull();
  });
  it('of a damaged answer has words', async () => {
    const source = new FakeSource();
    source.answer = () => Promise.resolve({ bytes: new Uint8Array(64), version: null, delta: false });
    const m = make({ step: '7' }, source);
    await rest();
    expect(m.model.data.error?.message).toMatch(/Arrow|stream/);
  });
  it('of the samples leaves the rows without their rewards', async () => {
    const source = new FakeSource();
    source.samples = () => Promise.reject(new Error('gone'));
    const m = await shown({ step: '7' }, source);
    expect(samplesShown(m.model)).toHaveLength(7);
    expect(m.model.data.error).toBeNull();
    expect(m.model.scene!.table.reward.every((r) => Number.isNaN(r))).toBe(true);
  });
});

describe('what is drawn', () => {
  it('leaves out kinds of items, and brings them back', async () => {
    const m = await shown({ step: '7' });
    const all = m.model.scene!.states;
    m.model.toggleHidden('instant');
    await rest();
    expect(m.page.params.hide).toBe('instant');
    expect(m.model.scene!.states).toBe(all & ~4);
    m.model.toggleHidden('instant');
    await rest();
    expect(m.model.scene!.states).toBe(all);
  });
  it('has links only when they are wanted', async () => {
    const m = await shown({ step: '7' });
    expect(m.source.linksAsked).toBe(0);
    m.model.toggleLinks();
    await rest();
    expect(m.source.linksAsked).toBe(1);
    expect(m.page.params.links).toBe('1');
    m.model.toggleLinks();
    await rest();
    expect(m.model.links).toHaveLength(0);
  });
  it('changes its colours with the theme, without another answer', async () => {
    const m = await shown({ step: '7' });
    const { palette } = m.model.scene!;
    m.page.dark = false;
    await rest();
    expect(m.model.scene!.theme.dark).toBe(false);
    expect(m.model.scene!.palette).not.toBe(palette);
    expect(m.source.asked).toHaveLength(1);
  });
});
