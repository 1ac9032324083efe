// The top of the step page: why the step took as long as it did, in words and a picture. The component gets the run and
// the step, fetches what it needs, and shows nothing while it has nothing to say. Another issue brings it; it is one line
// here: `export const ANSWERS = () => import('../../answers/StepAnswers.svelte')`.
import type { Component } from 'svelte';

export interface AnswersProps {
  run: string;
  step: number;
  /** Rises when the step changed under the page. */
  version: number;
}

export const ANSWERS: (() => Promise<{ default: Component<AnswersProps> }>) | null = null as (() => Promise<{ default: Component<AnswersProps> }>) | null;
