// Colours for code: words, strings, comments and numbers, in any language. Enough to read by, in one pass.

export interface Token {
  kind: 'plain' | 'key' | 'str' | 'com' | 'num' | 'name';
  text: string;
}

const KEYS = new Set(
  'and as assert async await bool break case catch class const continue def default del do elif else enum except export extends false False final finally fn for from func function global go if impl import in int interface is lambda let loop match mod module mut new nil None not null or pass private public pub raise return self static str string struct super switch this throw trait true True try type typeof undefined unless until use var void where while with yield select insert update delete join group order by limit echo then fi done esac'.split(
    ' ',
  ),
);

/** Longer code is shown without colours. */
const MAX = 60_000;

export function tokens(code: string, lang: string): Token[] {
  if (code.length > MAX || /^(text|txt|plain|log|output)$/i.test(lang)) return [{ kind: 'plain', text: code }];
  const hash = !/^(c|cpp|c\+\+|java|js|ts|javascript|typescript|rust|go|swift|kotlin|css|json)$/i.test(lang);
  const pattern = new RegExp(
    [
      String.raw`(?<com>\/\/[^\n]*${hash ? String.raw`|#[^\n]*` : ''}|--\s[^\n]*)`,
      String.raw`(?<open>\/\*|"""|'''|["'${'`'}])`,
      String.raw`(?<num>\b0x[0-9a-fA-F]+\b|\b\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?\b)`,
      String.raw`(?<word>[A-Za-z_$][\w$]*)`,
    ].join('|'),
    'g',
  );
  const ends = new Ends(code);
  const out: Token[] = [];
  let at = 0;
  for (let m = pattern.exec(code); m; m = pattern.exec(code)) {
    const g = m.groups!;
    const end = g.open === undefined ? pattern.lastIndex : ends.of(g.open, m.index);
    if (end < 0) {
      // What does not close is no string and no comment: it goes on behind its first character.
      pattern.lastIndex = m.index + 1;
      continue;
    }
    pattern.lastIndex = end;
    if (m.index > at) out.push({ kind: 'plain', text: code.slice(at, m.index) });
    const text = code.slice(m.index, end);
    const kind =
      g.com !== undefined || g.open === '/*'
        ? 'com'
        : g.open !== undefined
          ? 'str'
          : g.num !== undefined
            ? 'num'
            : KEYS.has(text)
              ? 'key'
              : code[end] === '('
                ? 'name'
                : 'plain';
    out.push({ kind, text });
    at = end;
  }
  if (at < code.length) out.push({ kind: 'plain', text: code.slice(at) });
  return out;
}

/** The characters of a string, up to its quote or up to where it cannot go on. */
const INSIDE: Record<string, RegExp> = { '"': /(?:\\.|[^"\\\n])*/y, "'": /(?:\\.|[^'\\\n])*/y, '`': /(?:\\.|[^`\\])*/y };

/** Where strings and comments end. How far was looked in vain is kept, so that no code makes this quadratic. */
class Ends {
  private readonly unclosed = new Map<string, number>();
  constructor(private readonly code: string) {}

  /** The end of what opens at `from`, -1: it does not close. */
  of(open: string, from: number): number {
    if (open.length === 1) return this.quoted(open, from);
    const close = open === '/*' ? '*/' : open;
    const at = this.unclosed.has(open) ? -1 : this.code.indexOf(close, from + open.length);
    if (at >= 0) return at + close.length;
    this.unclosed.set(open, this.code.length);
    // Three quotes that do not close begin with an empty string.
    return open === '/*' ? -1 : from + 2;
  }

  private quoted(quote: string, from: number): number {
    // Where none closed from an earlier one on, every such quote stands behind a backslash, and none closes from there on either.
    if (from < (this.unclosed.get(quote) ?? 0)) return -1;
    const inside = INSIDE[quote];
    inside.lastIndex = from + 1;
    inside.exec(this.code);
    const end = inside.lastIndex;
    if (this.code[end] === quote) return end + 1;
    this.unclosed.set(quote, end);
    return -1;
  }
}
