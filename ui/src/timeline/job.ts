// Runs one job of worker.ts: in a worker where the browser lets us have one, else here.
import makeWorker from '#worker';
import { type Items } from './items';
import { type Layout, type RowMode } from './layout';
import { type PhaseBins } from './counts';
import { UNJOINABLE, work, type Answer, type Ask } from './worker';

export interface Loaded {
  items: Items;
  layout: Layout;
  bins: PhaseBins;
  ms: Record<string, number>;
}

/** Below this many items a layout takes less than a frame or two; a worker would only add its start. */
const INLINE = 20_000;

/** A worker that was started ahead: its script is read while the data is still on its way. */
let spare: Worker | null = null;
export function warm(): void {
  try {
    spare ??= makeWorker();
  } catch {
    spare = null;
  }
}

function run(ask: Ask, transfer: ArrayBuffer[], signal: AbortSignal): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const here = (): void => {
      try {
        const done = work(ask);
        resolve({ ok: true, ...done });
      } catch (e) {
        resolve({ ok: false, error: (e as Error).message });
      }
    };
    let worker: Worker;
    try {
      worker = spare ?? makeWorker();
      spare = null;
    } catch {
      here();
      return;
    }
    const stop = (): void => {
      worker.terminate();
      signal.removeEventListener('abort', aborted);
    };
    const aborted = (): void => {
      stop();
      reject(new DOMException('superseded', 'AbortError'));
    };
    signal.addEventListener('abort', aborted);
    worker.onmessage = (m: MessageEvent<Answer>) => {
      stop();
      resolve(m.data);
    };
    worker.onerror = (e) => {
      stop();
      resolve({ ok: false, error: e.message || 'the layout worker could not be started' });
    };
    worker.postMessage(ask, transfer);
  });
}

export async function load(bytes: Uint8Array<ArrayBuffer>, live: boolean, mode: RowMode, signal: AbortSignal): Promise<Loaded> {
  const ask: Ask = { kind: 'load', bytes, live, mode };
  const answer: Answer = bytes.byteLength < INLINE * 90 ? { ok: true, ...work(ask) } : await run(ask, [bytes.buffer], signal);
  if (!answer.ok) throw new Error(answer.error);
  return { ...answer, items: answer.items! };
}

/** Joins what is new to what there is. Null: it cannot be joined. */
export async function merge(items: Items, bytes: Uint8Array<ArrayBuffer>, live: boolean, mode: RowMode, signal: AbortSignal): Promise<Loaded | null> {
  const ask: Ask = { kind: 'merge', items, bytes, live, mode };
  let answer: Answer;
  try {
    answer = items.n < INLINE ? { ok: true, ...work(ask) } : await run(ask, [bytes.buffer], signal);
  } catch (e) {
    answer = { ok: false, error: (e as Error).message };
  }
  if (!answer.ok) {
    if (answer.error === UNJOINABLE) return null;
    throw new Error(answer.error);
  }
  return { ...answer, items: answer.items! };
}

export async function relayout(items: Items, mode: RowMode, signal: AbortSignal): Promise<Loaded> {
  if (items.n < INLINE) return work({ kind: 'layout', items, mode });
  const none = new Uint8Array(0);
  const lean: Items = { ...items, spanIds: none, traceIds: none, trace: new Int32Array(0), attempt: none, parentIds: null };
  const answer = await run({ kind: 'layout', items: lean, mode }, [], signal);
  if (!answer.ok) throw new Error(answer.error);
  return { ...answer, items };
}

