// What the page knows of a view without loading it. The views themselves are listed in shell/views.ts.
import type { Component } from 'svelte';

export interface ViewSpec {
  key: string;
  title: string;
  path: string;
  /** Where the navigation shows it: always, when a run is chosen, or nowhere (it is reached by links). */
  nav: 'always' | 'run' | 'never';
  /** The data source must be able to do this, or the data must be in a lake; a static page cannot do everything. */
  needs?: 'sql' | 'live' | 'lake';
  /** What it shows belongs to a run that its path does not name: the navigation of the run stays, and the view says which it is (`app.home`). */
  ofRun?: true;
  /** After `g`: goes there. */
  shortcut?: string;
  load: () => Promise<{ default: Component }>;
  /** Asks for what takes longest, while the component is on its way. */
  ahead?: (run: string, params: Record<string, string>) => void;
}
