// The page finds kinds as the server does: kinds.json is what crates/names says of the same names.
import { describe, expect, it } from 'vitest';
import { PHASES, phaseOf } from '../../src/domain/phases';
import cases from './kinds.json';

const kind = (name: string, said: string | null = null): string => PHASES[phaseOf(name, said)].key;

describe('kinds of work', () => {
  it('are those that the server finds', () => {
    const wrong = (cases as [string, string | null, string][]).filter(([name, said, want]) => kind(name, said) !== want);
    expect(wrong).toEqual([]);
    expect(cases.length).toBeGreaterThan(100);
  });
  it('settle what the page and the server once disagreed about', () => {
    expect(['prefill_transfer_queue', 'compute_advantages', 'tokenize', 'eval'].map((name) => kind(name))).toEqual([
      'transfer',
      'train',
      'tokenize',
      'validation',
    ]);
    expect(kind('anything', 'eval')).toBe('validation');
  });
});
