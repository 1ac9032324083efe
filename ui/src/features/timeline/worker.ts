// The worker: Arrow bytes in, columns and layout out, off the main thread. One worker does one job and ends, so that the
// memory of the bytes goes with it. A job for another layout gets a copy of the columns that it needs.
import { readStream, type ArrowStream } from '../../data/arrow';
import { phaseBins, type PhaseBins } from './counts';
import { buffersOf, type Items } from './items';
import { mergeItems } from './merge';
import { packedItems } from './packed';
import { buildLayout, type Layout, type RowMode } from './layout';

/** Bins of the minimap and of the strip when the view is not narrower. */
export const BASE_BINS = 8192;

export type Ask =
  | { kind: 'merge'; items: Items; bytes: Uint8Array<ArrayBuffer>; mode: RowMode }
  | { kind: 'load'; bytes: Uint8Array<ArrayBuffer>; mode: RowMode }
  | { kind: 'layout'; items: Items; mode: RowMode };
export type Answer =
  /** The script runs: the first thing that a worker says. */
  { ok: 'started' } | { ok: true; items: Items | null; layout: Layout; bins: PhaseBins; ms: Record<string, number> } | { ok: false; error: string };

function itemsOf(ask: Ask, stream: ArrowStream | null): Items {
  if (ask.kind === 'layout') return ask.items;
  const items = packedItems(stream!);
  return ask.kind === 'merge' ? mergeItems(ask.items, items) : items;
}

export function work(ask: Ask): { items: Items; layout: Layout; bins: PhaseBins; ms: Record<string, number> } {
  const t = [performance.now()];
  const stream = ask.kind === 'layout' ? null : readStream(ask.bytes);
  t.push(performance.now());
  const items = itemsOf(ask, stream);
  t.push(performance.now());
  const layout = buildLayout(items, ask.mode);
  t.push(performance.now());
  const bins = phaseBins(items, layout, BASE_BINS, 0, items.extent || 1, null);
  t.push(performance.now());
  return { items, layout, bins, ms: { read: t[1] - t[0], columns: t[2] - t[1], layout: t[3] - t[2], bins: t[4] - t[3] } };
}

if (typeof document === 'undefined' && typeof self !== 'undefined' && 'postMessage' in self) {
  const post = (a: Answer, transfer: ArrayBuffer[] = []): void => (self as unknown as Worker).postMessage(a, transfer);
  self.onmessage = (m: MessageEvent<Ask>): void => {
    try {
      const { items, layout, bins, ms } = work(m.data);
      const loaded = m.data.kind !== 'layout';
      post({ ok: true, items: loaded ? items : null, layout, bins, ms }, loaded ? buffersOf(items, layout, bins) : buffersOf(layout, bins));
    } catch (e) {
      post({ ok: false, error: (e as Error).message });
    }
  };
  post({ ok: 'started' });
}
