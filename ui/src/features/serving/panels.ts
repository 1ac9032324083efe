// What the serving page shows, as a list: a title, the metric behind it, how it is put together. SGLang's names, with a colon or
// with an underscore, whichever the store has.
import { select } from './prom';

export type Unit = 'requests' | 'tokens/s' | 'share' | 'GB/s' | 's' | 'ms' | 'MB' | 'per second' | 'tokens';

export interface GaugePanel {
  kind: 'gauge';
  title: string;
  metric: string;
  unit: Unit;
  /** How ranks of an engine are put together: a sum where each does a part, the largest where each says the same. */
  join: 'sum' | 'max' | 'avg';
}
export interface RatePanel {
  kind: 'rate';
  title: string;
  metric: string;
  unit: Unit;
}
export interface HeatPanel {
  kind: 'heat';
  title: string;
  metric: string;
  unit: Unit;
}
export type PanelSpec = GaugePanel | RatePanel | HeatPanel;

export const SECTIONS: { title: string; panels: PanelSpec[] }[] = [
  {
    title: 'Queues',
    panels: [
      { kind: 'gauge', title: 'Waiting', metric: 'num_queue_reqs', unit: 'requests', join: 'max' },
      { kind: 'gauge', title: 'Running', metric: 'num_running_reqs', unit: 'requests', join: 'max' },
      { kind: 'gauge', title: 'Prefill: bootstrap queue', metric: 'num_prefill_bootstrap_queue_reqs', unit: 'requests', join: 'max' },
      { kind: 'gauge', title: 'Prefill: in flight', metric: 'num_prefill_inflight_queue_reqs', unit: 'requests', join: 'max' },
      { kind: 'gauge', title: 'Decode: preallocation queue', metric: 'num_decode_prealloc_queue_reqs', unit: 'requests', join: 'max' },
      { kind: 'gauge', title: 'Decode: transfer queue', metric: 'num_decode_transfer_queue_reqs', unit: 'requests', join: 'max' },
    ],
  },
  {
    title: 'Throughput and cache',
    panels: [
      { kind: 'gauge', title: 'Tokens generated', metric: 'gen_throughput', unit: 'tokens/s', join: 'max' },
      { kind: 'rate', title: 'Prompt tokens', metric: 'prompt_tokens_total', unit: 'tokens/s' },
      { kind: 'gauge', title: 'Prefix cache hits', metric: 'cache_hit_rate', unit: 'share', join: 'avg' },
      { kind: 'gauge', title: 'KV cache in use', metric: 'token_usage', unit: 'share', join: 'max' },
      { kind: 'gauge', title: 'Accepted tokens per speculation', metric: 'spec_accept_length', unit: 'tokens', join: 'avg' },
      { kind: 'rate', title: 'Aborted requests', metric: 'num_aborted_requests_total', unit: 'per second' },
      { kind: 'rate', title: 'Failed transfers', metric: 'num_transfer_failed_reqs_total', unit: 'per second' },
    ],
  },
  {
    title: 'Latency and transfer',
    panels: [
      { kind: 'heat', title: 'End to end', metric: 'e2e_request_latency_seconds', unit: 's' },
      { kind: 'heat', title: 'Time to first token', metric: 'time_to_first_token_seconds', unit: 's' },
      { kind: 'heat', title: 'Time in queue', metric: 'queue_time_seconds', unit: 's' },
      { kind: 'heat', title: 'Time between tokens', metric: 'inter_token_latency_seconds', unit: 's' },
      { kind: 'heat', title: 'KV transfer: speed', metric: 'kv_transfer_speed_gb_s', unit: 'GB/s' },
      { kind: 'heat', title: 'KV transfer: time', metric: 'kv_transfer_latency_ms', unit: 'ms' },
      { kind: 'heat', title: 'KV transfer: size', metric: 'kv_transfer_total_mb', unit: 'MB' },
    ],
  },
];

/** What may stand under the timeline. */
export const STRIP: GaugePanel[] = SECTIONS.flatMap((s) => s.panels).filter((p): p is GaugePanel => p.kind === 'gauge');

/** The name that the store has, if any. */
export function nameOf(spec: PanelSpec, known: ReadonlySet<string>): string | null {
  const suffix = spec.kind === 'heat' ? '_bucket' : '';
  return [`sglang:${spec.metric}${suffix}`, `sglang_${spec.metric}${suffix}`].find((n) => known.has(n)) ?? null;
}

export const RANKS = ['dp_rank', 'tp_rank', 'pp_rank'];

/** The query of a panel. A gauge shows its largest value within every step, so that no peak is hidden between two points. */
export function queryOf(spec: PanelSpec, name: string, run: string | null, step: number, by: 'engine' | 'rank'): string {
  const labels = by === 'rank' ? ['instance', ...RANKS] : ['instance'];
  const selector = select(name, run);
  const window = `${Math.max(step / 1000, 30)}s`;
  switch (spec.kind) {
    case 'gauge':
      return `${by === 'rank' ? 'max' : spec.join} by (${labels.join(', ')}) (max_over_time(${selector}[${step / 1000}s]) or ${selector})`;
    case 'rate':
      return `sum by (${labels.join(', ')}) (rate(${selector}[${window}]))`;
    case 'heat':
      return `sum by (le) (increase(${selector}[${window}]))`;
  }
}
