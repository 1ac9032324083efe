// What was searched for, found again in the texts on the page, by CSS highlights: the texts themselves stay untouched.

/** The words and phrases of a search, without fields, signs and negations. */
export function needles(search: string): string[] {
  const out: string[] = [];
  const parts = search.match(/-?[\w.]+:(?:"[^"]*"|\S+)|-?"(?:\\.|[^"\\])*"|\S+/g) ?? [];
  for (const part of parts) {
    if (part.startsWith('-') || part === 'OR' || part === 'AND' || part === 'NOT') continue;
    const contains = /^contains:"?([^"]*)"?$/.exec(part);
    if (contains) out.push(contains[1]);
    else if (/^[\w.]+:\S/.test(part) && !/^(https?|std)/.test(part)) continue;
    else
      out.push(
        part
          .replace(/^"|"$/g, '')
          .replace(/[*~]\d?$/, '')
          .replace(/^\(|\)$/g, ''),
      );
  }
  return [...new Set(out.map((t) => t.toLowerCase()).filter((t) => /[\p{L}\p{N}]/u.test(t)))];
}

/** Does a search end within a word, of which the beginning may be meant? Not in a condition, a phrase or an expression. */
export const endsInWord = (search: string): boolean => /[\p{L}\p{N}]$/u.test(search) && !/[:"/~]/.test(search.split(/\s/).at(-1)!);

const MAX_RANGES = 2000;

/** Marks every place under `root` where one of the texts stands. Returns how many. */
export function mark(root: Element, texts: string[], name = 'found'): number {
  const registry = (CSS as unknown as { highlights?: Map<string, unknown> }).highlights;
  const Make = (globalThis as unknown as { Highlight?: new (...r: Range[]) => unknown }).Highlight;
  if (!registry || !Make) return 0;
  registry.delete(name);
  if (texts.length === 0) return 0;
  const ranges: Range[] = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node && ranges.length < MAX_RANGES; node = walker.nextNode()) {
    const text = (node.nodeValue ?? '').toLowerCase();
    for (const want of texts) {
      for (let at = text.indexOf(want); at >= 0 && ranges.length < MAX_RANGES; at = text.indexOf(want, at + want.length)) {
        // A word is a word, not a part of one; a beginning counts.
        if (/\p{L}|\p{N}/u.test(text[at - 1] ?? '') && /[a-z0-9]/.test(want[0])) continue;
        const range = document.createRange();
        range.setStart(node, at);
        range.setEnd(node, Math.min(at + want.length, (node.nodeValue ?? '').length));
        ranges.push(range);
      }
    }
  }
  if (ranges.length > 0) registry.set(name, new Make(...ranges));
  return ranges.length;
}
