// Columns of a timeline inside a page: crates/formats/src/export/html/thin.rs wrote them.
import type { ArrowStream } from './arrow';

/**
 * Numbers of a thin timeline, as a file has it: each byte of them is a column (`start:0`, `start:1`, ...), the sign is in the
 * lowest bit, and what they say is a difference (crates/formats/src/export/html/thin.rs).
 */
export function differences(stream: ArrowStream, name: string, n: number): Float64Array | null {
  const bytes: Uint8Array[] = [];
  for (let k = 0; k < 8; k++) {
    const at = stream.fields.findIndex((f) => f.name === `${name}:${k}`);
    const v = at < 0 ? null : stream.batches[0]?.columns[at]?.values;
    if (v instanceof Uint8Array) bytes.push(v);
    else break;
  }
  if (bytes.length === 0) return null;
  const out = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    // Times of more than 104 days in nanoseconds are not exact; a picture does not show it.
    let folded = 0;
    for (let k = bytes.length - 1; k >= 0; k--) folded = folded * 256 + bytes[k][i];
    out[i] = folded % 2 === 0 ? folded / 2 : -(folded + 1) / 2;
  }
  return out;
}

export function sourcesOf(stream: ArrowStream, n: number): Int32Array | null {
  const on = differences(stream, 'source', n);
  let row = -1;
  return on && Int32Array.from(on, (d) => (row += d));
}

/** Ids of the spans of a file, eight bytes each, in the order of `source`. */
export function packedIds(stream: ArrowStream): Uint8Array {
  const n = stream.batches[0]?.length ?? 0;
  const ids = stream.batches[0]?.columns[stream.fields.findIndex((f) => f.name === 'span_id')]?.values;
  const source = sourcesOf(stream, n);
  if (!(ids instanceof Uint8Array)) return new Uint8Array(0);
  if (!source) return ids;
  const out = new Uint8Array(8 * n);
  for (let i = 0; i < n; i++) if (source[i] >= 0 && source[i] < n) out.set(ids.subarray(8 * i, 8 * i + 8), 8 * source[i]);
  return out;
}
