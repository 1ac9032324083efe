import { flushSync } from 'svelte';
import { describe, expect, it } from 'vitest';
import { SourceError } from '../../src/base/errors';
import { Latest } from '../../src/base/latest.svelte';

/** Lives as long as a component would. */
function within<R>(make: () => R): { it: R; end: () => void } {
  let made: R;
  const end = $effect.root(() => {
    made = make();
  });
  flushSync();
  return { it: made!, end };
}

describe('answers that come late', () => {
  it('never overwrite the answer to a newer question', async () => {
    const { it: latest, end } = within(() => new Latest<string>());
    let slow: (v: string) => void = () => undefined;
    const first = latest.ask(() => new Promise((done) => (slow = done)));
    await latest.ask(() => Promise.resolve('new'));
    slow('old');
    await first;
    expect(latest.value).toBe('new');
    expect(latest.loading).toBe(false);
    end();
  });
  it('are aborted with the component', () => {
    const { it: latest, end } = within(() => new Latest<string>());
    let signal: AbortSignal | undefined;
    void latest.ask((s) => ((signal = s), new Promise(() => undefined)));
    end();
    expect(signal?.aborted).toBe(true);
  });
});

describe('news', () => {
  it('is not taken for a change by the effect that asks', async () => {
    let asked = 0;
    const { end } = within(() => {
      const latest = new Latest<number>();
      $effect(() => void latest.again(() => Promise.resolve(++asked)));
    });
    for (let k = 0; k < 10; k++) {
      await Promise.resolve();
      flushSync();
    }
    expect(asked).toBe(1);
    end();
  });
  it('waits for the answer on its way, then asks once more', async () => {
    const { it: latest, end } = within(() => new Latest<number>());
    let done: (v: number) => void = () => undefined;
    let asked = 0;
    const first = latest.again(() => (asked++, new Promise((d) => (done = d))));
    for (let k = 0; k < 5; k++) void latest.again(() => Promise.resolve(++asked));
    expect(asked).toBe(1);
    done(1);
    await first;
    expect(asked).toBe(2);
    expect(latest.value).toBe(2);
    end();
  });
  it.each([400, 401, 413, 422])('does not ask a question again that was refused with %i; another question is asked', async (status) => {
    const { it: latest, end } = within(() => new Latest<string>());
    let asked = 0;
    const refused = (): Promise<string> => {
      asked++;
      return Promise.reject(new SourceError('Bad Request', 'unknown field `stpe`', status));
    };
    await latest.ask(refused);
    for (let k = 0; k < 35; k++) await latest.again(refused);
    expect(asked).toBe(1);
    expect(latest.error?.message).toBe('unknown field `stpe`');
    await latest.ask(() => Promise.resolve('right'));
    expect(latest.error).toBeNull();
    await latest.again(() => Promise.resolve('news'));
    expect(latest.value).toBe('news');
    end();
  });
  it.each([0, 404, 408, 429, 500, 503])('asks again after an error that may pass: %i', async (status) => {
    const { it: latest, end } = within(() => new Latest<string>());
    await latest.again(() => Promise.reject(new SourceError('not now', '', status)));
    expect(latest.error).not.toBeNull();
    await latest.again(() => Promise.resolve('there'));
    expect(latest.value).toBe('there');
    expect(latest.error).toBeNull();
    end();
  });
});
