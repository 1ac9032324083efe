// The list of a static file, out of all conversations of the run. Search is by words and phrases that must all occur, `role:`-less, and `status:`, `step:`, `reward:`; sorting by what a row has.
import type { Listed, Question, Row } from '../../data/conversations';

const textOf = (row: Row): string => JSON.stringify([row.messages ?? [], row.metadata ?? {}]).toLowerCase();

function number(row: Row, key: string): number | string | null {
  const name = key.replace(/^metadata\./, '');
  const direct: Record<string, unknown> = {
    step: row.step,
    reward: row.reward,
    time: row.logged_ns === null ? null : Number(row.logged_ns),
    turns: row.turn_count,
    messages: row.message_count,
    length: row.char_count,
    tokens: row.tokens,
    duration: row.duration_s,
    status: row.status,
  };
  const value = key.startsWith('metadata.') ? row.metadata?.[name] : direct[key];
  return typeof value === 'number' || typeof value === 'string' ? value : null;
}

export function matches(row: Row, search: string): boolean {
  const words = search.match(/[\w.]+:(?:"[^"]*"|\S+)|"[^"]*"|\S+/g) ?? [];
  return words.every((word) => {
    const field = /^([\w.]+):(<=|>=|<|>)?(.+)$/.exec(word);
    const value = field ? number(row, field[1]) : undefined;
    if (field && value !== undefined && (value !== null || ['step', 'reward', 'status'].includes(field[1]))) {
      if (value === null) return false;
      const [, , op, text] = field;
      const dots = text.lastIndexOf('..');
      if (dots >= 0) return Number(value) >= Number(text.slice(0, dots) || -Infinity) && Number(value) <= Number(text.slice(dots + 2) || Infinity);
      if (op === '<') return Number(value) < Number(text);
      if (op === '>') return Number(value) > Number(text);
      if (op === '<=') return Number(value) <= Number(text);
      if (op === '>=') return Number(value) >= Number(text);
      return text.split(',').includes(String(value));
    }
    return textOf(row).includes(word.replace(/^"|"$/g, '').replace(/\*$/, '').toLowerCase());
  });
}

export function listed(all: Row[], q: Question): Listed {
  let rows = all;
  if (q.step) rows = rows.filter((r) => matches(r, `step:${q.step}`));
  if (q.group) rows = rows.filter((r) => r.group_id === q.group);
  if (q.sample) rows = rows.filter((r) => r.sample_id === q.sample);
  if (q.search) rows = rows.filter((r) => matches(r, q.search!));
  const sort = q.sort && q.sort !== 'relevance' ? q.sort : '-time';
  const key = sort.replace(/^-/, '');
  const sign = sort.startsWith('-') ? -1 : 1;
  rows = [...rows].sort((a, b) => {
    const [x, y] = [number(a, key), number(b, key)];
    if (x === null || y === null) return x === y ? 0 : x === null ? 1 : -1;
    return (x < y ? -1 : x > y ? 1 : 0) * sign;
  });
  const counts = <T>(of: (r: Row) => T | null): { value: T; count: number }[] => {
    const m = new Map<T, number>();
    for (const r of rows) {
      const v = of(r);
      if (v !== null) m.set(v, (m.get(v) ?? 0) + 1);
    }
    return [...m].map(([value, count]) => ({ value, count }));
  };
  const facets = {
    status: { values: counts((r) => r.status).sort((a, b) => b.count - a.count), left_out: 0 },
    step: { values: counts((r) => r.step).sort((a, b) => a.value - b.value), left_out: 0 },
  };
  const from = Number(q.cursor ?? 0) || 0;
  const limit = q.limit ?? 50;
  return {
    conversations: rows.slice(from, from + limit),
    total: rows.length,
    next: from + limit < rows.length ? String(from + limit) : null,
    facets,
  };
}
