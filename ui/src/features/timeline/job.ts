// Runs one job of worker.ts: in a worker where the browser lets us have one, else here. A worker that fails, or that says
// nothing for too long, is an error with words: nobody waits for ever.
import makeWorker from '#worker';
import { SourceError } from '../../base/errors';
import { type Items } from './items';
import { type Layout, type RowMode } from './layout';
import { type PhaseBins } from './counts';
import { work, type Answer, type Ask } from './worker';

export interface Loaded {
  items: Items;
  layout: Layout;
  bins: PhaseBins;
  ms: Record<string, number>;
}
type Done = Loaded | { error: Error };

/** Below this many items a layout takes less than a frame or two; a worker would only add its start. */
const INLINE = 20_000;
/** Bytes of an item at least. */
const ITEM_BYTES = 45;
/** A worker's script is read within this time, also where everything is slow. */
const START_MS = 30_000;
/** The largest step that the page takes is laid out in seconds. */
const WORK_MS = 300_000;

const failed = (why: string): Error =>
  new SourceError(
    'The timeline could not be laid out',
    `The worker that lays it out ${why}. Retry starts another; if that fails too, try another browser, or open the data with \`rollscope view\`.`,
  );

/** One worker, from its start to the end of its one job. Listens from the start: it may fail before there is a job. */
class Runner {
  private readonly worker = makeWorker();
  private done: ((d: Done) => void) | null = null;
  private started = false;
  private timer = setTimeout(() => this.end({ error: failed(`did not start within ${START_MS / 1000} seconds`) }), START_MS);

  constructor() {
    this.worker.onmessage = (m: MessageEvent<Answer>) => {
      const a = m.data;
      if (a.ok === 'started') {
        this.started = true;
        clearTimeout(this.timer);
        if (this.done) this.limit();
      } else this.end(a.ok ? { ...a, items: a.items! } : { error: new Error(a.error) });
    };
    this.worker.onerror = (e) =>
      this.end({
        error: failed(
          this.started ? `failed: ${e.message || 'the browser gave no reason'}` : `could not be started${e.message ? `: ${e.message}` : ''}`,
        ),
      });
    this.worker.onmessageerror = () => this.end({ error: failed('sent an answer that could not be read') });
  }
  private limit(): void {
    this.timer = setTimeout(() => this.end({ error: failed(`gave no answer within ${WORK_MS / 60_000} minutes`) }), WORK_MS);
  }
  private end(outcome: Done): void {
    this.stop();
    if (spare === this) spare = null;
    this.done?.(outcome);
  }
  stop(): void {
    clearTimeout(this.timer);
    this.worker.terminate();
  }
  run(ask: Ask, transfer: ArrayBuffer[]): Promise<Done> {
    return new Promise((done) => {
      this.done = done;
      if (this.started) this.limit();
      this.worker.postMessage(ask, transfer);
    });
  }
}

/** A worker that was started ahead: its script is read while the data is still on its way. */
let spare: Runner | null = null;
export function warm(): void {
  try {
    spare ??= new Runner();
  } catch {
    // Then the job is done here.
  }
}

async function run(ask: Ask, transfer: ArrayBuffer[], signal: AbortSignal): Promise<Loaded> {
  signal.throwIfAborted();
  let runner: Runner;
  try {
    runner = spare ?? new Runner();
  } catch {
    return work(ask);
  }
  spare = null;
  const done = await new Promise<Done>((resolve, reject) => {
    signal.addEventListener(
      'abort',
      () => {
        runner.stop();
        reject(new DOMException('superseded', 'AbortError'));
      },
      { once: true },
    );
    runner.run(ask, transfer).then(resolve, reject);
  });
  if ('error' in done) throw done.error;
  return done;
}

export async function load(bytes: Uint8Array<ArrayBuffer>, mode: RowMode, signal: AbortSignal): Promise<Loaded> {
  const ask: Ask = { kind: 'load', bytes, mode };
  return bytes.byteLength < INLINE * ITEM_BYTES ? work(ask) : run(ask, [bytes.buffer], signal);
}

/** Joins what changed to what there is. */
export async function merge(items: Items, bytes: Uint8Array<ArrayBuffer>, mode: RowMode, signal: AbortSignal): Promise<Loaded> {
  const ask: Ask = { kind: 'merge', items, bytes, mode };
  return items.n < INLINE ? work(ask) : run(ask, [bytes.buffer], signal);
}

export async function relayout(items: Items, mode: RowMode, signal: AbortSignal): Promise<Loaded> {
  if (items.n < INLINE) return work({ kind: 'layout', items, mode });
  const none = new Uint8Array(0);
  const lean: Items = { ...items, spanIds: none, traceIds: none, trace: new Int32Array(0), attempt: none };
  return { ...(await run({ kind: 'layout', items: lean, mode }, [], signal)), items };
}
