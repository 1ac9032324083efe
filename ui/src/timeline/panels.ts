// Panels under the rows of the timeline, on the same time axis: series of the serving engines, metrics, whatever belongs to
// the same moments. A new panel is one component and one line here. The timeline gives it its whole width and a height of
// `height` pixels, which the user can change; `axis.left` is where the plot begins (keep the labels left of it).
//
// A panel reads `axis.t0`, `axis.t1`, `axis.left`, `axis.width` to draw, `axis.cursor` for the line under the pointer, sets
// `axis.cursor = axis.time(x)` (null when the pointer leaves) while the pointer is over it, and calls `axis.setWindow` to
// zoom or pan everything. It fetches what it shows itself, for [axis.toNs(0), axis.toNs(axis.extent)] or narrower.
import type { Component } from 'svelte';
import type { Window } from '../data/types';
import type { TimeAxis } from './axis.svelte';

export interface PanelProps {
  axis: TimeAxis;
  run: string;
  /** The step or the window of time that the timeline shows. */
  window: Window;
  /** Rises when the data changed under a running step. */
  version: number;
}

export interface PanelSpec {
  key: string;
  title: string;
  height: number;
  /** Shown unless the user closed it. */
  open: boolean;
  load: () => Promise<{ default: Component<PanelProps> }>;
}

export const PANELS: readonly PanelSpec[] = __STATIC__
  ? []
  : [
      { key: 'path', title: 'Critical path', height: 62, open: true, load: () => import('../answers/PathPanel.svelte') },
      // On a low window the rows need the room.
      { key: 'serving', title: 'Serving engines', height: 190, open: innerHeight >= 1000, load: () => import('../serving/Strip.svelte') },
    ];
