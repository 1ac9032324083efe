// Samples of a step as objects, for tables and histograms.
import { rows, type ArrowStream } from '../../data/arrow';
import type { SampleColumn } from '../../data/samples';
import { tailShares } from '../../domain/tail';

export interface SampleRow {
  id: string;
  group: string | null;
  status: string | null;
  reward: number | null;
  response: number | null;
  turns: number | null;
  toolCalls: number | null;
  source: string | null;
  /** Milliseconds since the step's first sample. */
  start: number | null;
  duration: number | null;
  /** Milliseconds of the tail that it answers for. */
  tail: number | null;
}

const num = (v: unknown): number | null => (v === null || v === undefined ? null : Number(v));
const text = (v: unknown): string | null => (v === null || v === undefined ? null : String(v));

/** The samples that were trained on; those of an evaluation only where there are no others. */
export function sampleRows(stream: ArrowStream): SampleRow[] {
  const every = rows<SampleColumn>(stream);
  const trained = every.filter((r) => (text(r.split) ?? 'train') === 'train');
  const list = trained.length > 0 ? trained : every;
  const starts = list.map((r) => r.start_ns as bigint | null).filter((t): t is bigint => t !== null);
  const first = starts.reduce((a, b) => (b < a ? b : a), starts[0] ?? 0n);
  const out = list.map((r): SampleRow => {
    const [a, b] = [r.start_ns as bigint | null, r.end_ns as bigint | null];
    return {
      id: String(r.sample_id),
      group: text(r.group_id),
      status: text(r.status),
      reward: num(r.reward),
      response: num(r.response_length) ?? num(r.response_tokens),
      turns: num(r.turns),
      toolCalls: num(r.tool_calls),
      source: text(r.source),
      start: a === null ? null : Number(a - first) / 1e6,
      duration: a === null || b === null ? null : Number(b - a) / 1e6,
      tail: null,
    };
  });
  const ended = out.filter((s) => s.start !== null && s.duration !== null);
  tailShares(ended.map((s) => s.start! + s.duration!)).forEach((ms, k) => (ended[k].tail = ms));
  return out;
}

/** Groups whose samples all have the same reward give no gradient. As in the answers: of samples that have a reward. */
export function flatGroups(samples: SampleRow[]): { flat: number; groups: number } {
  const groups = new Map<string, Set<number>>();
  const sizes = new Map<string, number>();
  for (const s of samples) {
    if (s.group === null || s.reward === null) continue;
    const set = groups.get(s.group) ?? new Set();
    groups.set(s.group, set.add(s.reward));
    sizes.set(s.group, (sizes.get(s.group) ?? 0) + 1);
  }
  const real = [...groups].filter(([g]) => sizes.get(g)! > 1);
  return { flat: real.filter(([, set]) => set.size === 1).length, groups: real.length };
}
