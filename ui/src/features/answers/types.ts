// The answers of the server as the page uses them (crates/answers/src/report.rs), and small things that all of their
// components need.
import { app } from '../../domain/app.svelte';
import { phaseOf } from '../../domain/phases';

export interface SpanRef {
  trace_id: string;
  span_id: string;
  sample_id: string;
  seconds: number;
}
export interface Evidence {
  count: number;
  of: number;
  samples?: string[];
  spans?: SpanRef[];
  tool?: string;
  engine?: string;
  group?: string;
  phase?: string;
  measured?: number;
  usual?: number;
}
export interface Finding {
  kind: string;
  step?: number;
  text: string;
  cost_s: number;
  without_s?: number;
  evidence: Evidence;
}
export interface PathPart {
  name: string;
  kind: string;
  seconds: number;
  slack_s: number;
  start_s: number;
  sample_id?: string;
  worker?: string;
  trace_id?: string;
  span_id?: string;
}
export interface Share {
  why: string;
  seconds: number;
}
export interface Straggler {
  sample_id: string;
  group_id: string;
  seconds: number;
  end_s: number;
  behind_s: number;
  why: { part: string; more_s: number }[];
}
export interface StepReport {
  run: string;
  step: number | null;
  text: string;
  sentence: { text: string; finding?: number }[];
  wall_s: number;
  running: boolean;
  start_ns: string;
  end_ns: string;
  usual: { median_s: number; spread_s: number; steps: number } | null;
  findings: Finding[];
  phases: { name: string; kind: string; seconds: number }[];
  critical_path: {
    parts: PathPart[];
    left_out: number;
    totals: { name: string; kind: string; seconds: number; parts: number }[];
    open: number;
    missing_parents: number;
  };
  stragglers: {
    samples: number;
    tail: Straggler[];
    tail_count: number;
    tail_start_s: number;
    cost_s: number;
    idle_worker_s: number;
    gpu_hours: number | null;
    median_sample_id: string;
    median_s: number;
  };
  idle: {
    workers: number;
    wall_s: number;
    idle_s: number;
    bubble_ratio: number;
    why: Share[];
    by_worker: { worker: string; busy_s: number; idle_s: number; why: Share[] }[];
  };
  health: {
    samples: number;
    truncated: number;
    aborted: number;
    failed: number;
    retried: number;
    groups: { groups: number; zero_variance: number; sample_s: number; tokens: number };
    staleness: { samples: number; stale: number; most_versions_behind: number };
    cache_hit_rate: number | null;
    spec_accept_rate: number | null;
    tools: { tool: string; calls: number; failed: number; median_s: number; p95_s: number; max_s: number; total_s: number }[];
    data: { open: number; missing_parents: number; orphan_ends: number; dropped_by_senders: number };
  };
}
export interface RunFindings {
  run: string;
  text: string;
  steps: { step: number | null; wall_s: number; running: boolean; cost_s: number; findings: number }[];
  steps_left_out: number;
  median_s: number | null;
  findings: Finding[];
}
export interface Change {
  name: string;
  kind: string;
  before_s: number;
  after_s: number;
  change_s: number;
  why: string;
  count_before: number;
  count_after: number;
  each_before_s: number;
  each_after_s: number;
  significance?: number;
}
export interface Difference {
  before: string;
  after: string;
  before_s: number;
  after_s: number;
  change_s: number;
  text: string;
  changes: Change[];
  phases: { name: string; before_s: number; after_s: number }[];
}

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
