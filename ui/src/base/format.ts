// Numbers, times and sizes for people.

export function duration(ms: number): string {
  if (!Number.isFinite(ms)) return '–';
  const a = Math.abs(ms);
  if (a === 0) return '0';
  if (a < 0.001) return `${(ms * 1e6).toFixed(0)} ns`;
  if (a < 1) return `${trim(ms * 1000)} µs`;
  if (a < 1000) return `${trim(ms)} ms`;
  if (a < 60_000) return `${trim(ms / 1000)} s`;
  const minutes = Math.floor(a / 60_000);
  const sign = ms < 0 ? '-' : '';
  if (minutes < 60) return `${sign}${minutes} min ${String(Math.floor((a % 60_000) / 1000)).padStart(2, '0')} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${sign}${hours} h ${String(minutes % 60).padStart(2, '0')} min`;
  return `${sign}${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const trim = (n: number): string => (Math.abs(n) >= 100 ? n.toFixed(0) : Math.abs(n) >= 10 ? n.toFixed(1) : n.toFixed(2));

export function count(n: number): string {
  if (!Number.isFinite(n)) return '–';
  if (n < 100_000) return Math.round(n).toLocaleString('en-US');
  if (n < 1e6) return `${(n / 1e3).toFixed(0)}k`;
  if (n < 1e9) return `${(n / 1e6).toFixed(n < 1e7 ? 2 : 1)}M`;
  return `${(n / 1e9).toFixed(2)}G`;
}

/** `1 row`, `2,000 rows`. */
export const counted = (n: number, what: string, plural = `${what}s`): string => `${count(n)} ${n === 1 ? what : plural}`;

export function bytes(n: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let u = 0;
  while (n >= 1000 && u < units.length - 1) {
    n /= 1000;
    u++;
  }
  return `${u === 0 ? n : n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0)} ${units[u]}`;
}

export function number(n: number | null | undefined): string {
  if (n === null || n === undefined) return '–';
  if (!Number.isFinite(n)) return String(n);
  if (Number.isInteger(n) && Math.abs(n) < 1e6) return String(n);
  return Math.abs(n) >= 1e6 || (n !== 0 && Math.abs(n) < 1e-3) ? n.toExponential(2) : n.toFixed(3).replace(/\.?0+$/, '');
}

export const nsToMs = (ns: string): number => Number(BigInt(ns) / 1000n) / 1000;

/** Milliseconds from one instant to another, exact to the nanosecond where it matters. */
export const between = (from: string, to: string): number => Number(BigInt(to) - BigInt(from)) / 1e6;

export function ago(ns: string, now = Date.now()): string {
  const ms = now - nsToMs(ns);
  if (ms < 5000) return 'now';
  if (ms < 60_000) return `${Math.floor(ms / 1000)} s ago`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ago`;
  if (ms < 86_400_000) return `${Math.floor(ms / 3_600_000)} h ago`;
  return new Date(nsToMs(ns)).toISOString().slice(0, 10);
}

export function clock(ns: string): string {
  const d = new Date(nsToMs(ns));
  const p = (n: number): string => String(n).padStart(2, '0');
  return `${d.getFullYear()}-${p(d.getMonth() + 1)}-${p(d.getDate())} ${p(d.getHours())}:${p(d.getMinutes())}:${p(d.getSeconds())}`;
}

/** Steps of an axis: 1, 2 or 5 times a power of ten, at least `min` apart. */
export function niceStep(min: number): number {
  if (!(min > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(min));
  for (const m of [1, 2, 5, 10]) if (m * power >= min) return m * power;
  return 10 * power;
}

/** A time on an axis whose steps are `step` milliseconds. */
export function tick(ms: number, step: number): string {
  if (step >= 1000) {
    const s = Math.round(ms / 1000);
    if (Math.abs(ms) >= 60_000 || step >= 60_000) return `${Math.trunc(s / 60)}:${String(Math.abs(s % 60)).padStart(2, '0')}`;
    return `${s} s`;
  }
  if (step >= 1) {
    const digits = step >= 100 ? 1 : step >= 10 ? 2 : 3;
    return Math.abs(ms) >= 1000 ? `${(ms / 1000).toFixed(digits)} s` : `${Math.round(ms)} ms`;
  }
  const digits = Math.min(6, Math.ceil(-Math.log10(step)));
  return `${ms.toFixed(digits)} ms`;
}

/** A text in quotes, so that spaces and line ends are seen. Bytes of tokens that are no character are escaped already (`\xF0`). */
export const quoted = (text: string): string => JSON.stringify(text).replaceAll('\\\\', '\\');
