import { between } from '../base/format';
import type { StepInfo } from '../generated/api';

/** Milliseconds from the start of a step to its latest end so far. Null: samples of a dump may have no times. */
export const wallMs = (step: StepInfo | undefined | null): number | null =>
  step?.start_ns && step.end_ns ? between(step.start_ns, step.end_ns) : null;
