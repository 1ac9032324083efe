// The answers of the server as the page uses them (crates/answers/src/report.rs), and small things that all of their
// components need.
import { app } from '../../domain/app.svelte';
import { phaseOf } from '../../domain/phases';
import type { Evidence } from '../../generated/api';

export type { Difference, Finding, Hang, IdleShare as Share, PathPart, RunFindings, StepReport } from '../../generated/api';

/** Seconds for people, in the words of the reports. */
export function time(seconds: number): string {
  const s = Math.abs(seconds);
  const sign = seconds < 0 ? '−' : '';
  if (s >= 3600) return `${sign}${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  const whole = Math.round(s);
  if (whole >= 180) return `${sign}${Math.floor(whole / 60)} min${whole % 60 ? ` ${whole % 60} s` : ''}`;
  if (s >= 9.95) return `${sign}${whole} s`;
  if (s >= 0.9995) return `${sign}${s.toFixed(1)} s`;
  if (s >= 0.0009995) return `${sign}${(s * 1e3).toFixed(0)} ms`;
  return s === 0 ? '0 s' : `${sign}${(s * 1e6).toFixed(0)} µs`;
}

/** The number of a kind of work, for its colour. */
export const phase = (kind: string, name = ''): number => phaseOf(name, kind);

/** The timeline with what a finding rests on in view. */
export function evidenceHref(run: string, step: number | null | undefined, e: Evidence): string {
  const params: Record<string, string> = {};
  if (step !== null && step !== undefined) params.step = String(step);
  if (e.spans?.length) params.span = `${e.spans[0].trace_id}.${e.spans[0].span_id}`;
  if (e.samples?.length === 1) params.q = e.samples[0];
  return app.href('timeline', run, params);
}
export const spanHref = (run: string, step: number | null | undefined, trace: string, span: string): string =>
  app.href('timeline', run, { ...(step === null || step === undefined ? {} : { step: String(step) }), span: `${trace}.${span}` });
export const sampleHref = (run: string, step: number | null | undefined, sample: string): string =>
  app.href('timeline', run, { ...(step === null || step === undefined ? {} : { step: String(step) }), q: sample });
