// Finding by a few letters: all of them, in order; words and runs of letters that stand together rank first.

export function score(text: string, query: string): number {
  const t = text.toLowerCase();
  const q = query.toLowerCase().replace(/\s+/g, '');
  let at = -1;
  let sum = 0;
  for (const ch of q) {
    const next = t.indexOf(ch, at + 1);
    if (next < 0) return -1;
    sum += next === at + 1 ? 3 : /[^a-z0-9]/.test(t[next - 1] ?? ' ') ? 2 : 0;
    at = next;
  }
  return sum - at / 100;
}

export function fuzzy<T>(list: readonly T[], query: string, text: (x: T) => string): T[] {
  if (query.trim() === '') return [...list];
  return list
    .map((x) => ({ x, s: score(text(x), query) }))
    .filter((e) => e.s >= 0)
    .sort((a, b) => b.s - a.s)
    .map((e) => e.x);
}
