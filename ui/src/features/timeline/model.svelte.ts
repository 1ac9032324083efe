// The timeline of a step without its picture: loads it, follows it while it runs, and holds what was chosen, all of which is in
// the address. Made in a component (or in an effect root), it ends with it.
import { untrack } from 'svelte';
import { isRefusal } from '../../base/errors';
import { Latest } from '../../base/latest.svelte';
import { formatWindow, parseWindow } from '../../base/route';
import { themeOf } from '../../base/theme';
import { readStream, type ArrowStream } from '../../data/arrow';
import type { AttrTest, Change, DataSource, Focus, Owners, RunInfo, StepInfo, Window } from '../../data/types';
import { TimeAxis } from '../../domain/axis.svelte';
import { applyChoices, choicesOf, isRunning, itemOf, lastMinutes, madeUpIn, spanIn, spanText, stepOf, toggled, windowOf } from './choices';
import { closer } from './closer';
import { paletteOf } from './colors';
import { phaseBins } from './counts';
import { OPEN, STATE, type Items } from './items';
import { load, merge, relayout, warm, type Loaded } from './job';
import type { RowMode } from './layout';
import { linkPairs } from './links';
import { attrTests, orderRows, rowsOfOwners, rowsOfSpans, rowTable } from './rows';
import { HEAD, Scene } from './scene';

/** What the model needs of the page; `app` is one. */
export interface Page {
  readonly route: { readonly params: Record<string, string> };
  readonly source: DataSource;
  readonly change: Change;
  readonly dark: boolean;
  runs: RunInfo[];
  set(changes: Record<string, string | null>, push?: boolean): void;
}

/** The picture, as the model knows it. */
export interface Picture {
  /** Pixels that the timeline has for head and rows. */
  height(): number;
  redraw(): void;
  reveal(item: number): void;
}

interface Shown extends Loaded {
  samples: ArrowStream | null;
  key: string;
  /** What the answer shows; news is what came after it. */
  version: string | null;
  /** The step still ran. */
  live: boolean;
  /** Where its spans are finer. */
  focus: Focus | null;
  /** The span that was to stay apart. */
  apart: string | null;
}

/** What a test of an attribute found; where spans stand for each other, whose these are. */
interface Found {
  ids: Uint8Array;
  owners: Owners | null;
}

/** From this many spans on, a worker lays the step out. */
const LARGE = 20_000;
/** News is joined to no more than this. Beyond, everything is asked for again, which comes thinned. */
const MOST_JOINED = 1_000_000;
const FORGET = { span: null, w: null, rx: null };

export class TimelineModel {
  readonly #page: Page;
  readonly #picture: Picture;
  readonly run: string;

  readonly params = $derived.by(() => this.#page.route.params);
  readonly choices = $derived(choicesOf(this.params));
  readonly mode: RowMode = $derived(this.choices.rowsBy === 'group' ? 'sample' : this.choices.rowsBy);
  readonly #sort = $derived(this.choices.sort);
  readonly #desc = $derived(this.choices.desc);
  readonly #grouped = $derived(this.choices.rowsBy === 'group');
  readonly #colorBy = $derived(this.choices.colorBy);
  readonly #attempt = $derived(this.choices.attempt);
  readonly #filter = $derived(this.choices.filter);
  readonly #follow = $derived(this.choices.follow);
  readonly #showLinks = $derived(this.choices.links);

  readonly steps = new Latest<StepInfo[]>();
  /** Spans that belong to no step may be listed as one without a number: they are reached by time. */
  readonly list = $derived((this.steps.value ?? []).filter((s) => typeof s.step === 'number'));
  readonly stepNo = $derived(stepOf(this.params, this.list));
  readonly step = $derived(this.list.find((s) => s.step === this.stepNo));
  readonly window = $derived(windowOf(this.params, this.stepNo));
  readonly #windowKey = $derived(this.window ? JSON.stringify(this.window) : '');
  readonly #info = $derived.by(() => this.#page.runs.find((r) => r.run_id === this.run));
  /** As far as anybody said: then open spans reach to the newest time, else they are cut as in a dump. */
  readonly running = $derived(isRunning(this.#info, Date.now()));
  readonly isLive = $derived.by(() => (this.step?.open ?? 0) > 0 && this.#page.source.can.live && this.running);

  readonly data = new Latest<Shown>();
  /** Milliseconds from the question to the layout. */
  took = $state(0);
  /** When the newest data came: open spans grow from there. */
  #arrived = 0;

  readonly axis = new TimeAxis();
  /** Follows from the data; what was chosen is laid over it without building it again. */
  scene: Scene | null = $state.raw(null);
  /** Rises when the scene changed inside. */
  version = $state(0);
  /** Rises with every new answer, for the panels. */
  dataVersion = $state(0);
  #sceneKey = '';
  #sceneLive = false;
  /** Not where somebody has been moving about already. */
  #toReveal = true;
  readonly #theme = $derived.by(() => themeOf(this.#page.dark));
  readonly #table = $derived(this.data.value ? rowTable(this.data.value.items, this.data.value.layout, this.data.value.samples) : null);
  readonly #palette = $derived(this.data.value ? paletteOf(this.data.value.items, this.#theme, this.#colorBy) : null);
  // Tests of attributes are answered by the source; until then they leave nothing out.
  readonly #tests = $derived(attrTests(this.#filter));
  readonly asked = new Latest<Map<string, Found>>();
  readonly #isThinned = $derived(!!this.data.value?.items.thinned);
  readonly #attrRows = $derived(new Map([...(this.asked.value ?? [])].map(([word, found]) => [word, this.rowsOf(found)])));
  readonly rows = $derived(
    this.data.value && this.#table
      ? orderRows(this.data.value.items, this.data.value.layout, this.#table, {
          text: this.#filter,
          sort: this.#sort,
          desc: this.#desc,
          grouped: this.#grouped,
          attempt: this.#attempt,
          attrs: this.#attrRows,
        })
      : null,
  );
  readonly linked = new Latest<ArrowStream>();
  readonly links = $derived(
    this.#showLinks && this.linked.value && this.data.value ? linkPairs(this.data.value.items, this.linked.value) : new Int32Array(0),
  );

  /** The selected item, -1: none. */
  chosen = $state(-1);
  /** A measured stretch of time. */
  range: [number, number] | null = $state.raw(null);

  readonly #last = new Latest<void>();
  readonly #timers: Partial<Record<'news' | 'count' | 'window' | 'closer', ReturnType<typeof setTimeout>>> = {};

  constructor(run: string, page: Page, picture: Picture) {
    this.run = run;
    this.#page = page;
    this.#picture = picture;
    this.watchSteps();
    this.watchData();
    this.watchQuestions();
    this.watchScene();
    $effect(() => () => Object.values(this.#timers).forEach(clearTimeout));
  }

  // Loading

  readonly loadSteps = (): Promise<void> => this.steps.again((s) => this.#page.source.steps(this.run, s));

  private watchSteps(): void {
    $effect(() => {
      const c = this.#page.change;
      if (c.version === 0 || c.runs.length === 0 || c.runs.includes(this.run)) void this.loadSteps();
    });
    $effect(() => {
      if (this.steps.value && this.list.length === 0 && !this.params.from_ns) untrack(() => void this.#last.ask((s) => this.openLast(s)));
    });
  }

  /** A run without steps opens at its last minutes. */
  private async openLast(signal: AbortSignal): Promise<void> {
    const known = this.#info ? this.#page.runs : await this.#page.source.runs(signal);
    signal.throwIfAborted();
    this.#page.runs = known;
    const at = lastMinutes(known.find((r) => r.run_id === this.run));
    if (at && this.list.length === 0) this.#page.set(at);
  }

  private watchData(): void {
    $effect(() => {
      if (this.#windowKey !== '') untrack(() => this.fetch(false));
    });
    // A running step grows: what is new is fetched when it changed, at most twice per second, and not before twice the time that it takes.
    let before = '';
    $effect(() => {
      const { step } = this;
      const now = step ? `${step.step}/${step.spans}/${step.open}/${step.end_ns}` : '';
      untrack(() => {
        // One that waits is for this change, too: to put it off at each would show nothing of a step that changes all the time.
        if (before.split('/')[0] === now.split('/')[0] && before !== now && this.data.value && !this.#timers.news) {
          this.later('news', Math.max(500, this.took * 2), () => this.news());
        }
        before = now;
      });
    });
    $effect(() => {
      const [m, d] = [this.mode, this.data.value];
      if (d && d.layout.mode !== m) untrack(() => void this.data.ask(async (s) => ({ ...d, ...(await relayout(d.items, m, s)) })));
    });
    $effect(() => this.grow());
  }

  /** What is new, with the detail that there is. A question under way is not cut off by it. */
  private news(): void {
    if (isRefusal(this.data.error)) return;
    if (this.data.loading) this.later('news', 500, () => this.news());
    else this.fetch(true, this.data.value?.focus);
  }

  /** The selected span, if another stands for it: then it is asked for by its name. */
  private seek(): void {
    const [d, span] = [this.data.value, spanIn(this.params.span)];
    if (!d?.items.thinned || !span || this.chosen >= 0 || d.apart === span || this.data.loading) return;
    this.#toReveal = true;
    this.fetch(true, d.focus, span);
  }

  /**
   * @param keep what is shown stays until the answer is there, and only news is asked for
   * @param focus where spans are wanted one by one; then everything is asked for
   * @param apart a span that is wanted for itself; the selected one, where spans stand for each other
   */
  fetch(keep: boolean, focus: Focus | null = null, apart: string | null = null): void {
    const { window, mode, run } = this;
    const key = this.#windowKey;
    if (!window) return;
    if ((this.step?.spans ?? 0) > LARGE) warm();
    const { source } = this.#page;
    const began = performance.now();
    const shown = keep && this.data.value?.key === key ? this.data.value : null;
    const isThinned = shown?.items.thinned ?? null;
    // Of an item that stands for spans of several traces, no trace can be taken out.
    const old = focus || isThinned || (shown?.items.n ?? 0) > MOST_JOINED ? null : shown;
    apart ??= (isThinned && spanIn(this.params.span)) || null;
    void this.data.ask(async (signal) => {
      const samples =
        (focus && !this.isLive ? shown?.samples : null) ??
        source
          .samples(run, window, signal)
          .then(readStream)
          .catch(() => null);
      if (!this.#info) this.#page.runs = await source.runs(signal).catch(() => this.#page.runs);
      signal.throwIfAborted();
      const live = this.isLive;
      // The first answer after the end is whole: then open spans end where their sample does.
      const since = live ? (old?.version ?? null) : null;
      const answer = await source.timeline(run, window, { live, since, most: this.params.most ?? null, focus, apart }, signal);
      const loaded = await (answer.delta && old ? merge(old.items, answer.bytes, mode, signal) : load(answer.bytes, mode, signal));
      const result = { ...loaded, samples: await samples, key, version: answer.version, live, focus, apart };
      if (!focus || live) this.took = performance.now() - began;
      this.#arrived = performance.now();
      return result;
    }, keep);
  }

  /** Between two answers open spans go on growing, and with `follow` the right edge stays in view. */
  private grow(): (() => void) | undefined {
    const s = this.scene;
    if (!this.isLive || !s) return undefined;
    const { start, end, flags, n, extent } = s.items;
    const open: number[] = [];
    for (let i = 0; i < n; i++) if ((flags[i] & STATE) === OPEN && end[i] >= extent && start[i] <= extent) open.push(i);
    if (open.length === 0) return undefined;
    const list = Int32Array.from(open);
    const still = matchMedia('(prefers-reduced-motion: reduce)').matches;
    const tick = (): void => {
      const grown = Math.min(extent + performance.now() - this.#arrived, extent + 60_000);
      const atEdge = s.t1 >= s.items.extent;
      s.grow(list, grown);
      this.axis.extent = grown;
      if (this.#follow && atEdge) s.follow(grown);
      this.#picture.redraw();
    };
    const timer = setInterval(tick, still ? 1000 : 125);
    return () => clearInterval(timer);
  }

  private watchQuestions(): void {
    $effect(() => {
      const [tests, isThinned] = [this.#tests, this.#isThinned];
      if (this.window) untrack(() => this.askAttrs(tests, isThinned));
    });
    $effect(() => {
      const { window } = this;
      if (this.#showLinks && window) untrack(() => void this.linked.ask((s) => this.#page.source.links(this.run, window, s)));
    });
  }

  private askAttrs(tests: ReturnType<typeof attrTests>, isThinned: boolean): void {
    const { window } = this;
    if (tests.size === 0 || !window) {
      this.asked.cancel();
      this.asked.value = undefined;
      this.asked.error = null;
      return;
    }
    void this.asked.ask(async (signal) => {
      await new Promise((done) => setTimeout(done, 250));
      if (signal.aborted) throw new DOMException('superseded', 'AbortError');
      const answers = [...tests].map(async ([word, test]) => [word, await this.find(window, test, isThinned, signal)] as const);
      return new Map(await Promise.all(answers));
    });
  }

  private async find(window: Window, test: AttrTest, isThinned: boolean, signal: AbortSignal): Promise<Found> {
    const { source } = this.#page;
    const owners = isThinned ? source.ownersWithAttr?.(this.run, window, test, signal) : null;
    const [ids, found] = await Promise.all([source.withAttr(this.run, window, test, signal), owners]);
    return { ids, owners: found ?? null };
  }

  private rowsOf({ ids, owners }: Found): Uint8Array {
    const d = this.data.value;
    if (!d) return new Uint8Array(0);
    const rows = rowsOfSpans(d.items, d.layout, ids);
    if (d.items.thinned && owners) rowsOfOwners(d.items, d.layout, owners).forEach((has, r) => (rows[r] |= has));
    return rows;
  }

  // The scene

  private watchScene(): void {
    $effect(() => {
      const d = this.data.value;
      if (!d || !this.#table || !this.rows || !this.#palette) return;
      void [this.#theme, this.choices, this.links];
      untrack(() => this.build(d));
    });
    // The back button and edited addresses.
    $effect(() => {
      const text = this.params.span;
      untrack(() => {
        if (!this.scene || (text ?? '') === this.chosenText()) return;
        this.chosen = itemOf(this.scene.items, text);
        this.seek();
      });
    });
  }

  private build(d: Shown): void {
    const [table, rows, palette] = [this.#table, this.rows, this.#palette];
    if (!table || !rows || !palette) return;
    let s = this.scene;
    let filtered = s?.rows !== rows;
    if (!s || s.layout !== d.layout) {
      s = this.fresh(d, new Scene(d.items, d.layout, table, d.bins, rows, this.#theme, palette), s);
      // The answer counts all rows.
      filtered = rows.order.length !== d.layout.rows;
    }
    Object.assign(s, { table, theme: this.#theme, palette, links: this.links });
    applyChoices(s, rows, this.choices, Math.max(100, this.#picture.height() - HEAD));
    if (filtered) {
      s.strip = null;
      this.recount();
    }
    this.scene = s;
    this.version++;
    this.look();
    if (this.chosen >= 0 && this.#toReveal) requestAnimationFrame(() => this.#picture.reveal(this.chosen));
    // What was asked for may come with the next answer.
    if (this.chosen >= 0 || !this.data.loading) this.#toReveal = false;
    this.seek();
  }

  /** A scene for new data: of the same step, it stays where we were; at the right edge, it follows. */
  private fresh(d: Shown, s: Scene, old: Scene | null): Scene {
    const isSame = this.#sceneKey === d.key;
    if (old && isSame) {
      s.clampWindow(old.t0, old.t1);
      // What was followed is followed to the last answer of the step; one that is over stays where it is.
      if (this.#sceneLive && this.#follow && old.t1 >= old.items.extent) s.follow(d.items.extent);
      // Until the rows that the filter leaves are counted in the new answer.
      if (s.rows.order.length !== d.layout.rows) s.bins = old.bins;
    } else {
      s.fit();
      const w = parseWindow(this.params.w);
      if (w) s.clampWindow(...w);
    }
    this.#sceneKey = d.key;
    this.#sceneLive = d.live;
    Object.assign(this.axis, { baseNs: d.items.baseNs, extent: d.items.extent || 1, t0: s.t0, t1: s.t1 });
    this.dataVersion++;
    this.chosen = this.chosenIn(d.items, isSame ? old : null);
    if (!isSame) this.range = null;
    return s;
  }

  /** The item of a new answer that the address names. All that the server made up in a trace share one: there, what was selected counts. */
  private chosenIn(items: Items, old: Scene | null): number {
    const { span } = this.params;
    if (!old || spanIn(span) !== null) return itemOf(items, span);
    return span === this.chosenText() ? madeUpIn(items, old.items, this.chosen) : -1;
  }

  /** Once the view rests: spans that stand for each other, and could be told apart here, are asked for. */
  readonly look = (): void => {
    if (!this.data.value?.items.thinned) return;
    // A running step is asked for again and again, with rows and time that are new: no more often than news.
    this.later('closer', this.isLive ? Math.max(300, this.took * 2) : 300, () => {
      const [s, d] = [this.scene, this.data.value];
      if (!s || !d || s.items !== d.items || this.data.loading) return;
      const focus = closer(s, d.focus);
      if (focus) this.fetch(true, focus);
    });
  };

  /** After a filter, minimap and strip count the rows that are left; not at every keystroke. */
  private recount(): void {
    this.later('count', 220, () => {
      const [s, d] = [this.scene, this.data.value];
      if (!s || !d || s.layout !== d.layout) return;
      const all = s.rows.order.length === d.layout.rows;
      s.bins = all ? d.bins : phaseBins(s.items, s.layout, 4096, 0, s.items.extent || 1, s.rows.shown);
      this.version++;
    });
  }

  private later(what: 'news' | 'count' | 'window' | 'closer', ms: number, then: () => void): void {
    clearTimeout(this.#timers[what]);
    this.#timers[what] = setTimeout(() => {
      delete this.#timers[what];
      then();
    }, ms);
  }

  // What a person does

  private chosenText(): string {
    return this.scene && this.chosen >= 0 ? spanText(this.scene.items, this.chosen) : '';
  }
  readonly select = (item: number): void => {
    const had = this.chosen >= 0;
    this.chosen = item;
    this.#page.set({ span: this.chosenText() || null }, !had && item >= 0);
  };
  /** The window in view was moved. */
  readonly moved = (t0: number, t1: number): void => {
    this.look();
    this.later('window', 250, () => {
      const all = this.scene ? t0 <= 0 && t1 >= this.scene.items.extent : true;
      this.#page.set({ w: all ? null : formatWindow(t0, t1) });
    });
  };
  zoomToRange(): void {
    const { range, scene } = this;
    if (!range || !scene) return;
    scene.clampWindow(Math.min(...range), Math.max(...range));
    this.range = null;
    this.version++;
    this.moved(scene.t0, scene.t1);
  }
  readonly #at = $derived(this.list.findIndex((s) => s.step === this.stepNo));
  readonly hasBefore = $derived(this.#at > 0);
  readonly hasAfter = $derived(this.#at < this.list.length - 1);
  /** To the step before or after. */
  readonly go = (by: number): void => {
    const next = this.list[this.#at + by];
    if (next) this.#page.set({ step: String(next.step), ...FORGET }, true);
  };
  openStep(step: number | string): void {
    this.#page.set({ step: String(step), ...FORGET, from_ns: null, to_ns: null }, true);
  }
  readonly expand = (row: number): void => {
    const label = this.#table?.label[row];
    if (label !== undefined) this.#page.set({ rx: toggled(this.choices.toggled, label) });
  };
  readonly someExpanded = (): boolean => this.version >= 0 && (this.scene?.expanded.includes(1) ?? false);
  readonly expandAll = (): void => this.#page.set({ x: this.someExpanded() ? '0' : '1', rx: null });
  readonly toggleHidden = (what: string): void => this.#page.set({ hide: toggled(this.choices.hidden, what) });
  readonly toggleLinks = (): void => this.#page.set({ links: this.#showLinks ? null : '1' });
  readonly toggleFollow = (): void => this.#page.set({ follow: this.#follow ? '0' : null });
}
