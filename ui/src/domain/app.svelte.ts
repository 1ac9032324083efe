// State that the whole page shares: where we are, the theme, the data source, what is open on top.
import type { Component } from 'svelte';
import { formatRoute, parseRoute, type Route } from '../base/route';
import { store, stored } from '../base/storage';
import { ServerSource } from '../data/server';
import { StaticSource, hasStaticData } from '../data/static';
import type { Change, DataSource, RunInfo } from '../data/types';
import type { Slots } from './slots';
import type { ViewSpec } from './views';

export type Theme = 'system' | 'dark' | 'light';

export interface Command {
  title: string;
  hint?: string;
  run: () => void;
}

const systemDark = matchMedia('(prefers-color-scheme: dark)');

/** How often we ask whether an alarm fires. */
const FIRING_EVERY_MS = 15_000;

class App {
  readonly source: DataSource = __STATIC__ || hasStaticData() ? new StaticSource() : new ServerSource();
  /** Every view and what fills the slots: the shell gives them in `open`, before anything is shown. */
  views: readonly ViewSpec[] = [];
  slots: Slots = { panels: [], answers: null, findings: null, alarms: null };
  route: Route = $state.raw({ view: '', run: null, params: {} });
  /**
   * The run that the navigation shows: the route's, or that of what is shown. Views that are `ofRun` set it when they know;
   * until then it is the run we came from.
   */
  home: string | null = $state(null);
  /** The component of the route's view, once it is loaded. */
  component: Component | null = $state.raw(null);
  viewError: Error | null = $state.raw(null);
  theme: Theme = $state((stored('rs.theme') as Theme | null) ?? 'system');
  private systemIsDark = $state(systemDark.matches);
  dark = $derived(this.theme === 'system' ? this.systemIsDark : this.theme === 'dark');
  overlay: 'none' | 'palette' | 'keys' = $state('none');
  /** Runs as last listed, for the palette and the title. */
  runs: RunInfo[] = $state.raw([]);
  /** Rises when the server says that something changed. */
  change: Change = $state.raw({ version: 0, runs: [] });
  liveUp = $state(false);
  /** How many alarms fire and are not silenced. */
  firing = $state(0);
  /** Nodes share the data. */
  isLake = $state(false);
  /** Commands of the current view, for the palette. */
  commands: Command[] = $state.raw([]);

  open(views: readonly ViewSpec[], slots: Slots): void {
    this.views = views;
    this.slots = slots;
    this.route = parseRoute(location.hash, views);
    this.home = this.route.run;
    addEventListener('hashchange', () => {
      clearTimeout(this.writing);
      this.known = location.hash;
      this.arrive(parseRoute(location.hash, this.views));
    });
    this.arrive(this.route);
    systemDark.addEventListener('change', (e) => (this.systemIsDark = e.matches));
  }

  /** A file with one step, such as one dump, opens at its timeline: there is nothing to choose. */
  private async openOnlyStep(): Promise<void> {
    if (location.hash.length > 2) return;
    try {
      const runs = await this.source.runs();
      const alone = runs.length === 1 && (await this.source.steps(runs[0].run_id)).length <= 1;
      if (alone && location.hash.length <= 2) location.replace(this.href('timeline', runs[0].run_id));
    } catch {
      // The list of runs says what is wrong with the file.
    }
  }

  start(): () => void {
    if (this.source.kind === 'static') void this.openOnlyStep();
    if (!this.source.can.live) return () => undefined;
    // At most one change per second reaches the views: they read, and the reading costs.
    let waiting: Change | null = null;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let last = -Infinity;
    const pass = (): void => {
      timer = undefined;
      if (!waiting) return;
      last = performance.now();
      this.change = waiting;
      waiting = null;
    };
    const stop = this.source.live(
      (c) => {
        // Any run may have changed if one of the changes says so.
        const any = waiting !== null && (waiting.runs.length === 0 || c.runs.length === 0);
        waiting = waiting === null ? c : { version: c.version, runs: any ? [] : [...new Set([...waiting.runs, ...c.runs])] };
        timer ??= setTimeout(pass, Math.max(0, last + 1000 - performance.now()));
      },
      (up) => (this.liveUp = up),
    );
    // Whoever looks at a run must see that something fires.
    const look = (): void => {
      if (document.visibilityState !== 'visible') return;
      this.source.firing().then(
        (n) => (this.firing = n),
        () => undefined,
      );
    };
    look();
    this.source.isLake().then(
      (is) => (this.isLake = is),
      () => undefined,
    );
    const looking = setInterval(look, FIRING_EVERY_MS);
    return () => {
      clearInterval(looking);
      clearTimeout(timer);
      stop();
    };
  }
  /** Can the data source show this view? */
  can(view: ViewSpec): boolean {
    if (view.needs === 'lake') return this.isLake;
    return view.needs === undefined || this.source.can[view.needs];
  }
  setTheme(theme: Theme): void {
    this.theme = theme;
    store('rs.theme', theme);
  }
  /** Address of a view: parts of its path and all else come from `params`. */
  href(view: string, run: string | null = null, params: Record<string, string> = {}): string {
    return formatRoute({ view, run, params }, this.views);
  }
  go(view: string, run: string | null = null, params: Record<string, string> = {}): void {
    location.hash = this.href(view, run, params);
  }
  /** Changes parameters of the current view. Small moves replace the entry in the history, so that "back" goes back. */
  set(changes: Record<string, string | null>, push = false): void {
    const params: Record<string, string> = { ...this.route.params };
    for (const [k, v] of Object.entries(changes)) {
      if (v === null || v === '') delete params[k];
      else params[k] = v;
    }
    if (push) this.write();
    this.route = { ...this.route, params };
    clearTimeout(this.writing);
    if (push) this.write(true);
    else this.writing = setTimeout(() => this.write(), 120);
  }
  /** Route and component change together, so that no view ever sees the parameters of another. */
  private arrive(route: Route): void {
    const turn = ++this.turn;
    if (route.run !== null && this.source.findRun && !this.settled.has(route.run)) {
      void this.settle(route, route.run, turn);
      return;
    }
    const show = (component: Component): void => {
      if (turn !== this.turn) return;
      this.components.set(route.view, component);
      this.viewError = null;
      this.component = component;
      if (route.run !== null || !this.views.find((v) => v.key === route.view)?.ofRun) this.home = route.run;
      this.route = route;
    };
    const known = this.components.get(route.view);
    if (known) show(known);
    else {
      this.prepare(route).then(
        (m) => show(m.default),
        () =>
          (this.viewError = new Error(
            'Part of the page could not be loaded. The server may have been updated or stopped. Retry to reload the page.',
          )),
      );
    }
  }
  private prepare(route: Route): Promise<{ default: Component }> {
    const view = this.views.find((v) => v.key === route.view)!;
    if (route.run !== null && this.source.kind !== 'static') view.ahead?.(route.run, route.params);
    return view.load();
  }
  /** An address may name a run by its name or a beginning. The one with the id takes its place; views know ids only. */
  private async settle(route: Route, named: string, turn: number): Promise<void> {
    // What shows it comes meanwhile; if it cannot, that is said when it is its turn.
    this.prepare(route).catch(() => undefined);
    // A run that is not there: the view says so, with what is near.
    const id = await this.source.findRun!(named).catch(() => named);
    this.settled.add(id);
    if (turn !== this.turn) return;
    if (id === named) this.arrive(route);
    else location.replace(formatRoute({ ...route, run: id }, this.views));
  }
  private readonly settled = new Set<string>();
  private turn = 0;
  private readonly components = new Map<string, Component>();
  private writing: ReturnType<typeof setTimeout> | undefined;
  /** The address as we know it: if it is another, somebody goes elsewhere just now. */
  private known = location.hash;
  /** Browsers limit how often the address may change, so typing and zooming write it when they pause. */
  private write(push = false): void {
    clearTimeout(this.writing);
    const hash = formatRoute(this.route, this.views);
    if (hash === location.hash || location.hash !== this.known) return;
    this.known = hash;
    if (push) history.pushState(null, '', hash);
    else history.replaceState(null, '', hash);
  }
}

export const app = new App();
