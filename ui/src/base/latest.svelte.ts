import { untrack } from 'svelte';
import { isRefusal } from './errors';

// Answers that come late. Each new question aborts the one before, and an answer counts only if its question is still the
// newest: a slow answer never overwrites a newer one. Made in a component, it ends with it: what is on its way is aborted.

export class Latest<T> {
  value: T | undefined = $state.raw();
  error: Error | null = $state.raw(null);
  loading = $state(false);
  private turn = 0;
  private abort: AbortController | null = null;

  constructor() {
    $effect(() => () => this.cancel());
  }

  /** @param keep leave the old value in place while the new one is on its way */
  async ask(question: (signal: AbortSignal) => Promise<T>, keep = true): Promise<void> {
    const mine = ++this.turn;
    this.pending = null;
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    this.loading = true;
    if (!keep) {
      this.value = undefined;
      this.error = null;
    }
    try {
      const value = await question(abort.signal);
      if (mine !== this.turn) return;
      this.value = value;
      this.error = null;
    } catch (e) {
      if (mine !== this.turn) return;
      this.error = e as Error;
    } finally {
      if (mine === this.turn) this.loading = false;
    }
  }
  /**
   * For news: the same question again. Waits for an answer that is on its way instead of aborting it, so that a slow one is not
   * put off for ever. A question that was refused is not asked again: news does not make it right, only another question does (`ask`).
   */
  async again(question: (signal: AbortSignal) => Promise<T>): Promise<void> {
    // Whoever asks from an effect must not be run again by the answer.
    const [refused, loading] = untrack(() => [isRefusal(this.error), this.loading]);
    if (refused) return;
    if (loading) {
      this.pending = question;
      return;
    }
    await this.ask(question);
    const next = this.pending;
    this.pending = null;
    if (next) await this.again(next);
  }
  private pending: ((signal: AbortSignal) => Promise<T>) | null = null;
  cancel(): void {
    this.turn++;
    this.pending = null;
    this.abort?.abort();
    this.loading = false;
  }
}
