// What is known of each token of a sample.
import { readStream, valueAt, type ArrowStream, type Vector } from '../../data/arrow';
import { api, bytesOf, getArrow, withParams } from '../../data/http';
import type { Column } from '../../generated/tables';

/** Consecutive tokens that were produced together. */
export interface Part {
  start: number;
  turn: number | null;
  engine: string | null;
  weight_version: string | null;
  differs_at: number | null;
}

export interface Tokens {
  step: number | null;
  split: string;
  count: number;
  promptTokens: number | null;
  /** How many tokens the trainer sent, if it sent them on its own. */
  trainerCount: number | null;
  ids: Int32Array | null;
  texts: string[] | null;
  mask: boolean[] | null;
  logprobs: Float32Array | null;
  trainer: Float32Array | null;
  entropy: Float32Array | null;
  advantages: Float32Array | null;
  ratios: Float32Array | null;
  clipped: boolean[] | null;
  parts: Part[];
}

/** A list of numbers as it lies in the answer; nothing is copied. */
function numbers<T extends Int32Array | Float32Array>(v: Vector, row: number): T | null {
  if (v.validity && (v.validity[row >> 3] & (1 << (row & 7))) === 0) return null;
  const offsets = v.offsets as Int32Array;
  return (v.children[0].values as T).subarray(offsets[row], offsets[row + 1]) as T;
}

export function decode(stream: ArrowStream): Tokens[] {
  const at = new Map(stream.fields.map((f, i) => [f.name, i]));
  return stream.batches.flatMap((batch) => {
    const column = (name: Column<'tokens'> | 'trainer_count'): Vector => batch.columns[at.get(name)!];
    return Array.from({ length: batch.length }, (_, row): Tokens => {
      const value = (name: Column<'tokens'> | 'trainer_count'): unknown => valueAt(column(name), row);
      const number = (name: Column<'tokens'> | 'trainer_count'): number | null => (value(name) === null ? null : Number(value(name)));
      return {
        step: number('step'),
        split: String(value('split')),
        count: Number(value('count')),
        promptTokens: number('prompt_tokens'),
        trainerCount: at.has('trainer_count') ? number('trainer_count') : null,
        ids: numbers(column('ids'), row),
        texts: value('texts') as string[] | null,
        mask: value('mask') as boolean[] | null,
        logprobs: numbers(column('logprobs'), row),
        trainer: numbers(column('trainer_logprobs'), row),
        entropy: numbers(column('entropy'), row),
        advantages: numbers(column('advantages'), row),
        ratios: numbers(column('ratios'), row),
        clipped: value('clipped') as boolean[] | null,
        parts: value('parts') as Part[],
      };
    });
  });
}

export async function load(run: string, sample: string, step: string, signal?: AbortSignal): Promise<Tokens[]> {
  const address = withParams(api`/runs/${run}/tokens`, { sample, step: step === '-' ? null : step });
  return decode(readStream(await bytesOf(await getArrow(address, signal))));
}

/** The part that a token belongs to. */
export function partOf(parts: readonly Part[], token: number): Part | null {
  let low = 0;
  let high = parts.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (parts[middle].start <= token) low = middle + 1;
    else high = middle;
  }
  return low > 0 ? parts[low - 1] : null;
}

/** What stands for a token that has no text, because it lies inside of a character. It must be there to be pointed at. */
const INSIDE = '·';

/** What a token says, for people: its text, or its id. */
export function textOf(t: Tokens, token: number): string {
  return t.texts ? t.texts[token] || INSIDE : t.ids ? String(t.ids[token]) : '·';
}
