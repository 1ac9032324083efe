// The top of the step page: why the step took as long as it did, in words and a picture. The component gets the run and
// the step, fetches what it needs, and shows nothing while it has nothing to say.
// A page that opens from disk has no answers.
import type { Component } from 'svelte';
import type { StepReport } from '../../answers/types';

export interface AnswersProps {
  run: string;
  step: number;
  /** Rises when the step changed under the page. */
  version: number;
  /** Called with every report: its figures are those of the page. */
  told: (report: StepReport) => void;
}

export interface FindingsProps {
  run: string;
  /** The first so many; the rest is a link. */
  most: number;
}

/** On the page of a run: what stands out in its steps. */
export const FINDINGS: (() => Promise<{ default: Component<FindingsProps> }>) | null = __STATIC__ ? null : () => import('../../answers/RunFindings.svelte') as Promise<{ default: Component<FindingsProps> }>;

export const ANSWERS: (() => Promise<{ default: Component<AnswersProps> }>) | null = __STATIC__ ? null : () => import('../../answers/StepAnswers.svelte');
