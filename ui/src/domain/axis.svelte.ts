// The time axis that the rows of the timeline and the panels under them share. Reactive: read it in an effect or a
// derived value, and draw again when it changes (at most once per frame).

export class TimeAxis {
  /** Nanoseconds since the epoch of time 0. */
  baseNs = $state.raw(0n);
  /** The whole extent of the data, in milliseconds since `baseNs`. */
  extent = $state(1);
  /** The window in view, in milliseconds since `baseNs`. */
  t0 = $state(0);
  t1 = $state(1);
  /** Where the window lies, in CSS pixels from the left edge of the panel: left edge and width. */
  left = $state(0);
  width = $state(1);
  /** The time under the pointer, or null. The rows and every panel draw a line there. */
  cursor: number | null = $state(null);
  /** Set by the timeline: moves the window of the rows and the panels. */
  setWindow: (t0: number, t1: number) => void = () => undefined;

  x(t: number): number {
    return this.left + ((t - this.t0) / (this.t1 - this.t0)) * this.width;
  }
  time(x: number): number {
    return this.t0 + ((x - this.left) / this.width) * (this.t1 - this.t0);
  }
  /** Milliseconds on this axis of a time in nanoseconds since the epoch. */
  fromNs(ns: bigint): number {
    return Number(ns - this.baseNs) / 1e6;
  }
  toNs(t: number): bigint {
    return this.baseNs + BigInt(Math.round(t * 1e6));
  }
}
