// Links between spans as pairs of items, for the arrows.
import { type ArrowStream } from '../../data/arrow';
import { wordsOf, type Items } from './items';

/** from, to, from, to ... by item; links that leave the window are left out. */
export function linkPairs(items: Items, stream: ArrowStream): Int32Array {
  const at = (name: string): number => stream.fields.findIndex((f) => f.name === name);
  const [from, to] = [at('span_id'), at('to_span_id')];
  if (from < 0 || to < 0) return new Int32Array(0);
  const wanted = new Map<string, number>();
  const columns = stream.batches.map((b) => [from, to].map((c) => wordsOf(aligned(b.columns[c].values as Uint8Array))));
  const key = (w: Uint32Array, i: number): string => `${w[2 * i]}/${w[2 * i + 1]}`;
  stream.batches.forEach((b, p) => {
    for (let i = 0; i < b.length; i++) for (const w of columns[p]) wanted.set(key(w, i), -1);
  });
  const own = wordsOf(items.spanIds);
  for (let i = 0; i < items.n; i++) {
    const k = key(own, i);
    if (wanted.get(k) === -1) wanted.set(k, i);
  }
  const out: number[] = [];
  stream.batches.forEach((b, p) => {
    for (let i = 0; i < b.length; i++) {
      const [x, y] = [wanted.get(key(columns[p][0], i))!, wanted.get(key(columns[p][1], i))!];
      if (x >= 0 && y >= 0 && x !== y) out.push(x, y);
    }
  });
  return Int32Array.from(out);
}

const aligned = (b: Uint8Array): Uint8Array => (b.byteOffset % 4 === 0 ? b : b.slice());
