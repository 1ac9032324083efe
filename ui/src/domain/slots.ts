// Places in which one feature shows a part of another. Features know the places and what they hand over; shell/slots.ts fills
// them, so that no feature imports another.
import type { Component } from 'svelte';
import type { Window } from '../data/types';
import type { TimeAxis } from './axis.svelte';

type Loader<Part> = () => Promise<{ default: Part }>;

/**
 * A panel under the rows of the timeline, on the same time axis. The timeline gives it its whole width and a height of `height`
 * pixels, which the user can change. `axis.left` is where the plot begins; labels stand left of it.
 *
 * A panel reads `axis.t0`, `axis.t1`, `axis.left` and `axis.width` to draw, and `axis.cursor` for the line under the pointer.
 * While the pointer is over the panel, it sets `axis.cursor = axis.time(x)`, and null when the pointer leaves. It calls
 * `axis.setWindow` to zoom or pan everything. It fetches what it shows, for [axis.toNs(0), axis.toNs(axis.extent)] or narrower.
 */
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
  load: Loader<Component<PanelProps>>;
}

/** The part of a step's report that the figures of its page are taken from. */
export interface StepFigures {
  stragglers: { cost_s: number };
  health: { groups: { zero_variance: number; groups: number } };
}

/** At the top of the step page: why the step took as long as it did. The component shows nothing while it has no answer. */
export interface AnswersProps {
  run: string;
  step: number;
  /** Rises when the step changed under the page. */
  version: number;
  onreport: (figures: StepFigures) => void;
}

/** On the page of a run: what stands out in its steps. */
export interface FindingsProps {
  run?: string;
  /** How many findings to show; the rest is a link. */
  most?: number;
}

/** On the page of a run: its alarms, and when they were on. The component shows nothing if there were none. */
export interface AlarmsProps {
  run: string;
}

/** Null: this page has no such part. */
export interface Slots {
  panels: readonly PanelSpec[];
  answers: Loader<Component<AnswersProps>> | null;
  findings: Loader<Component<FindingsProps>> | null;
  alarms: Loader<Component<AlarmsProps>> | null;
}
