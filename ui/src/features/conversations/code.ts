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
      String.raw`(?<com>\/\*[\s\S]*?\*\/|\/\/[^\n]*${hash ? String.raw`|#[^\n]*` : ''}|--\s[^\n]*)`,
      String.raw`(?<str>"""[\s\S]*?"""|'''[\s\S]*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|${'`'}(?:\\.|[^${'`'}\\])*${'`'})`,
      String.raw`(?<num>\b0x[0-9a-fA-F]+\b|\b\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?\b)`,
      String.raw`(?<word>[A-Za-z_$][\w$]*)`,
    ].join('|'),
    'g',
  );
  const out: Token[] = [];
  let at = 0;
  for (const m of code.matchAll(pattern)) {
    if (m.index > at) out.push({ kind: 'plain', text: code.slice(at, m.index) });
    const g = m.groups!;
    const kind =
      g.com !== undefined
        ? 'com'
        : g.str !== undefined
          ? 'str'
          : g.num !== undefined
            ? 'num'
            : KEYS.has(m[0])
              ? 'key'
              : code[m.index + m[0].length] === '('
                ? 'name'
                : 'plain';
    out.push({ kind, text: m[0] });
    at = m.index + m[0].length;
  }
  if (at < code.length) out.push({ kind: 'plain', text: code.slice(at) });
  return out;
}
