// What the serving page shows, as a list: a title, the metric behind it, how it is put together. SGLang's and vLLM's names, with a
// colon or with an underscore, whichever the store has.
import { select } from './prom';

export type Unit = 'requests' | 'tokens/s' | 'share' | 'GB/s' | 's' | 'ms' | 'MB' | 'per second' | 'tokens';

interface Metric {
  /** Without the name of the engine. */
  metric: string;
  /** SGLang by default. */
  engine?: 'vllm';
}

export interface GaugePanel extends Metric {
  kind: 'gauge';
  title: string;
  unit: Unit;
  /** How ranks of an engine are put together: a sum where each does a part, the largest where each says the same. */
  join: 'sum' | 'max' | 'avg';
}
export interface RatePanel extends Metric {
  kind: 'rate';
  title: string;
  unit: Unit;
}
export interface HeatPanel extends Metric {
  kind: 'heat';
  title: string;
  unit: Unit;
}
/** The share that one counter has of another. */
export interface RatioPanel extends Metric {
  kind: 'ratio';
  title: string;
  of: string;
  unit: Unit;
}
export type PanelSpec = GaugePanel | RatePanel | HeatPanel | RatioPanel;

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
      { kind: 'gauge', title: 'Waiting', engine: 'vllm', metric: 'num_requests_waiting', unit: 'requests', join: 'sum' },
      { kind: 'gauge', title: 'Running', engine: 'vllm', metric: 'num_requests_running', unit: 'requests', join: 'sum' },
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
      { kind: 'rate', title: 'Tokens generated', engine: 'vllm', metric: 'generation_tokens_total', unit: 'tokens/s' },
      { kind: 'rate', title: 'Prompt tokens', engine: 'vllm', metric: 'prompt_tokens_total', unit: 'tokens/s' },
      {
        kind: 'ratio',
        title: 'Prefix cache hits',
        engine: 'vllm',
        metric: 'prefix_cache_hits_total',
        of: 'prefix_cache_queries_total',
        unit: 'share',
      },
      { kind: 'gauge', title: 'KV cache in use', engine: 'vllm', metric: 'kv_cache_usage_perc', unit: 'share', join: 'max' },
      { kind: 'gauge', title: 'KV cache in use', engine: 'vllm', metric: 'gpu_cache_usage_perc', unit: 'share', join: 'max' },
      { kind: 'rate', title: 'Preempted requests', engine: 'vllm', metric: 'num_preemptions_total', unit: 'per second' },
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
      { kind: 'heat', title: 'End to end', engine: 'vllm', metric: 'e2e_request_latency_seconds', unit: 's' },
      { kind: 'heat', title: 'Time to first token', engine: 'vllm', metric: 'time_to_first_token_seconds', unit: 's' },
      { kind: 'heat', title: 'Time in queue', engine: 'vllm', metric: 'request_queue_time_seconds', unit: 's' },
      { kind: 'heat', title: 'Prefill', engine: 'vllm', metric: 'request_prefill_time_seconds', unit: 's' },
      { kind: 'heat', title: 'Decode', engine: 'vllm', metric: 'request_decode_time_seconds', unit: 's' },
      { kind: 'heat', title: 'Time between tokens', engine: 'vllm', metric: 'inter_token_latency_seconds', unit: 's' },
    ],
  },
];

/** Selects the series of engines. */
export const ENGINES = '__name__=~"(sglang|vllm)[:_].+"';

/** What may stand under the timeline. */
export const STRIP: GaugePanel[] = SECTIONS.flatMap((s) => s.panels).filter((p): p is GaugePanel => p.kind === 'gauge');

/** The name that the store has, if any. */
export function nameOf(spec: PanelSpec, known: ReadonlySet<string>): string | null {
  const suffix = spec.kind === 'heat' ? '_bucket' : '';
  return [':', '_'].map((colon) => `${engineOf(spec)}${colon}${spec.metric}${suffix}`).find((n) => known.has(n)) ?? null;
}

function engineOf(spec: PanelSpec) {
  return spec.engine ?? 'sglang';
}

/** Tells panels apart. */
export const keyOf = (spec: PanelSpec) => `${engineOf(spec)} ${spec.metric}`;

/** `engine` is vLLM's name of a data-parallel rank. */
export const RANKS = ['dp_rank', 'tp_rank', 'pp_rank', 'engine'];

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
    case 'ratio': {
      const rate = (selected: string) => `sum by (${labels.join(', ')}) (rate(${selected}[${window}]))`;
      return `${rate(selector)} / ${rate(select(name.replace(spec.metric, spec.of), run))}`;
    }
    case 'heat':
      return `sum by (le) (increase(${selector}[${window}]))`;
  }
}
