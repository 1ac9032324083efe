// The samples of a group side by side: turn by turn, what each did, which did the same, and where high and low rewards diverge.
import type { Message, Row } from '../../data/conversations';
import { calls, jsonOf, reasoningOf, textOf } from './content';

export interface Cell {
  /** Numbers of the messages of this turn. */
  messages: number[];
  /** What was done, in short. */
  action: string;
  /** Samples that did the same have the same letter; empty where all differ. */
  letter: string;
}

export interface Aligned {
  /** Messages at the beginning that all have in common. */
  shared: number;
  /** By turn, then by sample; null where a sample has ended. */
  turns: (Cell | null)[][];
  /** The turn where high and low rewards diverge, or -1. */
  parting: number;
  /** Characters that all first answers have in common. */
  common: number;
}

const key = (m: Message): string => jsonOf([m.role, m.content, m.reasoning_content, calls(m).map((c) => [c.name, c.args])]);

const shorten = (text: string, n = 90): string => {
  const line = text.trim().replace(/\s+/g, ' ');
  return line.length > n ? `${line.slice(0, n)}…` : line;
};

/** What a turn did: the tools it called, or what it said. */
export function actionOf(messages: Message[]): string {
  const called = messages.flatMap((m) =>
    calls(m).map(
      (c) =>
        `${c.name} ${shorten(
          c.parsed
            ? Object.values(c.parsed)
                .map((v) => (typeof v === 'string' ? v : jsonOf(v)))
                .join(' ')
            : c.args,
        )}`,
    ),
  );
  if (called.length > 0) return called.join('; ');
  const said = messages
    .filter((m) => m.role === 'assistant')
    .map((m) => textOf(m.content))
    .join(' ');
  return said.trim() === '' ? '(no text)' : shorten(said);
}

/** A turn begins with an assistant's message and ends before the next. */
function turnsOf(messages: Message[], from: number): number[][] {
  const turns: number[][] = [];
  for (let i = from; i < messages.length; i++) {
    if (messages[i].role === 'assistant' || turns.length === 0) turns.push([]);
    turns[turns.length - 1].push(i);
  }
  return turns;
}

const mean = (xs: number[]): number => xs.reduce((a, b) => a + b, 0) / xs.length;

export function align(rows: Row[]): Aligned {
  const all = rows.map((r) => r.messages ?? []);
  if (all.length === 0) return { shared: 0, turns: [], parting: -1, common: 0 };
  let shared = 0;
  const shortest = Math.min(...all.map((m) => m.length));
  const keys = all.map((m) => m.slice(0, shortest).map(key));
  while (shared < shortest && keys.every((k) => k[shared] === keys[0][shared])) shared++;
  // Alike to the end: there is nothing to compare, all of it is shown.
  if (all.length > 1 && all.every((m) => m.length === shared)) return { shared, turns: [], parting: -1, common: 0 };
  if (all.length === 1)
    shared = Math.max(
      0,
      all[0].findIndex((m) => m.role === 'assistant'),
    );

  const turns = all.map((m) => turnsOf(m, shared));
  const count = Math.max(0, ...turns.map((t) => t.length));
  const table: (Cell | null)[][] = [];
  for (let t = 0; t < count; t++) {
    const cells = turns.map((list, s): Cell | null => {
      const numbers = list[t];
      return numbers ? { messages: numbers, action: actionOf(numbers.map((n) => all[s][n])), letter: '' } : null;
    });
    const same = new Map<string, Cell[]>();
    for (const c of cells) if (c) same.set(c.action, [...(same.get(c.action) ?? []), c]);
    let n = 0;
    for (const list of [...same.values()].filter((l) => l.length > 1).sort((a, b) => b.length - a.length)) {
      const letter = String.fromCharCode(65 + (n++ % 26));
      for (const c of list) c.letter = letter;
    }
    table.push(cells);
  }
  return { shared, turns: table, parting: partingOf(rows, table), common: commonText(all, shared) };
}

/** The first turn in which no sample with a high reward did what one with a low reward did. */
function partingOf(rows: Row[], turns: (Cell | null)[][]): number {
  const rewards = rows.map((r) => r.reward);
  const known = rewards.filter((r): r is number => r !== null);
  if (known.length < 2 || Math.min(...known) === Math.max(...known)) return -1;
  const middle = mean(known);
  return turns.findIndex((cells) => {
    const of = (good: boolean): Set<string> =>
      new Set(
        cells
          .map((c, i) => (rewards[i] !== null && rewards[i]! > middle === good ? (c?.action ?? '(ended)') : null))
          .filter((a): a is string => a !== null),
      );
    const [good, bad] = [of(true), of(false)];
    return good.size > 0 && bad.size > 0 && ![...good].some((a) => bad.has(a));
  });
}

function commonText(all: Message[][], shared: number): number {
  const texts = all.map((m) => (m[shared] ? reasoningOf(m[shared]) + textOf(m[shared].content) : ''));
  if (texts.length < 2) return 0;
  let n = 0;
  const shortest = Math.min(...texts.map((t) => t.length));
  while (n < shortest && texts.every((t) => t[n] === texts[0][n])) n++;
  return n;
}
