// What kind of work a span is, and how it is drawn. Kinds, colours, letters and rules are generated from crates/names.
import { KINDS, LOOKED_AT, NAMES, SAID, SAID_ROLLOUT, type Kind, type KindKey } from '../generated/kinds';

export type Phase = Kind;
export const PHASES = KINDS;

const byKey = new Map<string, number>(PHASES.map((p, i) => [p.key, i]));
const index = (key: KindKey): number => byKey.get(key)!;
export const PHASE_OTHER = index('other');
export const PHASE_TOOL = index('tool');

const FITS = {
  is: (name: string, part: string): boolean => name === part,
  starts: (name: string, part: string): boolean => name.startsWith(part),
  has: (name: string, part: string): boolean => name.includes(part),
};
const lower = (text: string): string => text.replace(/[A-Z]/g, (c) => c.toLowerCase());

/** The kind of a span with this name, whose sender stated `said`: `classify` of crates/names/src/kinds.rs. */
export function phaseOf(name: string, said: string | null): number {
  const word = said === null ? '' : lower(said.trim()).replace(/[ -]/g, '_');
  const stated = SAID.get(word);
  if (stated !== undefined) return index(stated);
  const short = lower(name.length > LOOKED_AT ? Array.from(name).slice(0, LOOKED_AT).join('') : name);
  for (const [how, part, kind] of NAMES) if (FITS[how](short, part)) return index(kind);
  return index(word === SAID_ROLLOUT ? 'rollout' : 'other');
}

/** A kind for people: `KV transfer`, not `transfer`. What is not a kind stays as it is. */
export const kindLabel = (kind: string): string => PHASES[byKey.get(kind) ?? -1]?.label ?? kind;

export const phaseColor = (index: number, dark: boolean): string => (dark ? PHASES[index].dark : PHASES[index].light);

/** For colours by name: the most common names get one each, the rest stay grey. */
const BY_NAME: readonly KindKey[] = ['generate', 'tool', 'reward', 'transfer', 'prefill', 'train', 'queue', 'weight_sync', 'decode', 'rollout'];
export const NAME_COLORS: readonly { dark: string; light: string }[] = BY_NAME.map((key) => PHASES[index(key)]);
