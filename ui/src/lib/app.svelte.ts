// State that the whole page shares: where we are, the theme, the data source, what is open on top.
import { ServerSource } from '../data/server';
import { StaticSource, hasStaticData } from '../data/static';
import type { Change, DataSource, RunInfo } from '../data/types';
import { formatRoute, parseRoute, type Route, type View } from './route';

export type Theme = 'system' | 'dark' | 'light';

export interface Command {
  title: string;
  hint?: string;
  run: () => void;
}

function stored(key: string): string | null {
  try {
    return localStorage.getItem(key);
  } catch {
    return null; // Some browsers refuse storage to file: pages.
  }
}
export function store(key: string, value: string): void {
  try {
    localStorage.setItem(key, value);
  } catch {
    // Then it lasts as long as the page.
  }
}
export { stored };

const systemDark = matchMedia('(prefers-color-scheme: dark)');

class App {
  readonly source: DataSource = __STATIC__ || hasStaticData() ? new StaticSource() : new ServerSource();
  route: Route = $state.raw(parseRoute(location.hash));
  theme: Theme = $state((stored('rs.theme') as Theme | null) ?? 'system');
  private systemIsDark = $state(systemDark.matches);
  dark = $derived(this.theme === 'system' ? this.systemIsDark : this.theme === 'dark');
  overlay: 'none' | 'palette' | 'keys' = $state('none');
  /** Runs as last listed, for the palette and the title. */
  runs: RunInfo[] = $state.raw([]);
  /** Rises when the server says that something changed. */
  change: Change = $state.raw({ version: 0, runs: [] });
  liveUp = $state(false);
  /** Commands of the current view, for the palette. */
  commands: Command[] = $state.raw([]);

  constructor() {
    addEventListener('hashchange', () => {
      clearTimeout(this.writing);
      this.known = location.hash;
      this.route = parseRoute(location.hash);
    });
    systemDark.addEventListener('change', (e) => (this.systemIsDark = e.matches));
  }

  start(): () => void {
    if (!this.source.can.live) return () => undefined;
    return this.source.live(
      (c) => (this.change = c),
      (up) => (this.liveUp = up),
    );
  }
  setTheme(theme: Theme): void {
    this.theme = theme;
    store('rs.theme', theme);
  }
  href(view: View, run: string | null = null, params: Record<string, string> = {}): string {
    return formatRoute({ view, run, params });
  }
  go(view: View, run: string | null = null, params: Record<string, string> = {}): void {
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
  private writing: ReturnType<typeof setTimeout> | undefined;
  /** The address as we know it: if it is another, somebody goes elsewhere just now. */
  private known = location.hash;
  /** Browsers limit how often the address may change, so typing and zooming write it when they pause. */
  private write(push = false): void {
    clearTimeout(this.writing);
    const hash = formatRoute(this.route);
    if (hash === location.hash || location.hash !== this.known) return;
    this.known = hash;
    if (push) history.pushState(null, '', hash);
    else history.replaceState(null, '', hash);
  }
}

export const app = new App();
