// What tokens are coloured by. Each overlay gives every token a value, and the scale turns values into colours.
import { seriesColor } from '../../base/charts/colors';
import { number } from '../../base/format';
import { partOf, type Part, type Tokens } from './model';

export interface Overlay {
  key: string;
  label: string;
  /** What it means, in a sentence. */
  about: string;
  /** A number, or the name of a class. Null: nothing is known. */
  value: (token: number) => number | string | null;
  /** `low`: what is far below zero stands out. `high`: what is far above it. `both`: what is far from `middle`. */
  scale: 'low' | 'high' | 'both' | 'classes';
  middle?: number;
}

export function overlaysOf(t: Tokens): Overlay[] {
  const found: Overlay[] = [];
  const add = (o: Overlay | null | false): void => void (o && found.push(o));
  const finite = (list: Float32Array, i: number): number | null => (Number.isFinite(list[i]) ? list[i] : null);
  const of =
    (list: Float32Array) =>
    (i: number): number | null =>
      finite(list, i);
  const { logprobs, trainer, entropy, advantages, ratios, mask, clipped, parts } = t;
  add(logprobs && { key: 'logprob', label: 'Log-prob', about: 'log-probability by the engine', value: of(logprobs), scale: 'low' });
  add(trainer && { key: 'trainer', label: 'Trainer', about: 'log-probability by the trainer', value: of(trainer), scale: 'low' });
  if (logprobs && trainer) {
    const difference = (i: number): number | null => (Number.isFinite(logprobs[i] - trainer[i]) ? trainer[i] - logprobs[i] : null);
    add({ key: 'difference', label: 'Difference', about: 'trainer minus engine, in nats', value: difference, scale: 'both', middle: 0 });
    if (!ratios) {
      const ratio = (i: number): number | null => {
        const d = difference(i);
        return d === null ? null : Math.exp(d);
      };
      add({ key: 'ratio', label: 'Ratio', about: 'importance ratio: exp(trainer - engine)', value: ratio, scale: 'both', middle: 1 });
    }
  }
  add(ratios && { key: 'ratio', label: 'Ratio', about: 'importance ratio, as the trainer reports it', value: of(ratios), scale: 'both', middle: 1 });
  add(entropy && { key: 'entropy', label: 'Entropy', about: 'entropy that the token was drawn with, in nats', value: of(entropy), scale: 'high' });
  add(advantages && { key: 'advantage', label: 'Advantage', about: 'advantage', value: of(advantages), scale: 'both', middle: 0 });
  add(
    mask && {
      key: 'mask',
      label: 'Mask',
      about: 'whether the token is trained on',
      value: (i) => (mask[i] ? 'trained' : 'masked'),
      scale: 'classes',
    },
  );
  add(
    clipped && {
      key: 'clipped',
      label: 'Clipped',
      about: 'whether the ratio was clipped',
      value: (i) => (clipped[i] ? 'clipped' : 'not clipped'),
      scale: 'classes',
    },
  );
  const part = (key: string, label: string, about: string, name: (p: Part) => string | number | null): void => {
    if (!parts.some((p) => name(p) !== null)) return;
    const value = (i: number): string | null => {
      const p = partOf(parts, i);
      const found = p ? name(p) : null;
      return found === null ? null : String(found);
    };
    add({ key, label, about, value, scale: 'classes' });
  };
  part('turn', 'Turn', 'the turn that it was produced in', (p) => p.turn);
  part('version', 'Weights', 'the version of the weights that produced it', (p) => p.weight_version);
  part('engine', 'Engine', 'the engine that produced it', (p) => p.engine);
  return found;
}

export interface Colours {
  /** The colour of a value, or null for none. */
  of: (value: number | string | null) => string | null;
  /** How strong the colour of a value is, from 0 to 1: what a small picture shows. */
  strength: (value: number | string | null) => number;
  legend: { label: string; color: string }[];
}

/** So many classes have colours of their own. */
const CLASSES = 10;
/** Values beyond this share of all have the strongest colour. */
const STRONG = 0.98;

/** How far values reach, but for the few furthest. A sample of them is enough. */
function reach(o: Overlay, count: number): number {
  const every = Math.max(1, Math.floor(count / 5000));
  const far: number[] = [];
  for (let i = 0; i < count; i += every) {
    const v = o.value(i);
    if (typeof v === 'number') far.push(Math.abs(v - (o.middle ?? 0)));
  }
  far.sort((a, b) => a - b);
  const found = far[Math.min(far.length - 1, Math.floor(far.length * STRONG))] ?? 0;
  return found > 0 ? found : (far[far.length - 1] ?? 0) || 1;
}

export function coloursOf(o: Overlay, count: number, dark: boolean): Colours {
  const colour = (i: number, strength: number): string => {
    const [, r, g, b] = /^#(..)(..)(..)/.exec(seriesColor(i, dark))!;
    const share = (strength * (dark ? 0.75 : 0.6)).toFixed(2);
    return `rgb(${parseInt(r, 16)} ${parseInt(g, 16)} ${parseInt(b, 16)} / ${share})`;
  };
  const [cool, warm] = [0, 6];
  if (o.scale === 'classes') {
    const seen = new Map<string, number>();
    for (let i = 0; i < count && seen.size < CLASSES; i++) {
      const v = o.value(i);
      if (typeof v === 'string' && !seen.has(v)) seen.set(v, seen.size);
    }
    const place = (v: number | string | null): number | undefined => (v === null ? undefined : seen.get(String(v)));
    return {
      of: (v) => (place(v) === undefined ? null : colour(place(v)!, 0.7)),
      strength: (v) => ((place(v) ?? 0) + 1) / (seen.size + 1),
      legend: [...seen].map(([label, i]) => ({ label, color: colour(i, 0.7) })),
    };
  }
  const most = reach(o, count);
  const middle = o.middle ?? 0;
  const strength = (v: number | string | null): number => (typeof v === 'number' ? Math.min(1, Math.abs(v - middle) / most) : 0);
  const side = (v: number): number => (o.scale === 'both' ? (v < middle ? warm : cool) : o.scale === 'low' ? warm : cool);
  const ends = o.scale === 'both' ? [middle - most, middle, middle + most] : o.scale === 'low' ? [-most, 0] : [0, most];
  return {
    of: (v) => (typeof v === 'number' && strength(v) > 0.02 ? colour(side(v), strength(v)) : null),
    strength,
    legend: ends.map((v) => ({ label: number(Number(v.toPrecision(2))), color: colour(side(v), strength(v)) })),
  };
}
