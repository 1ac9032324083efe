// The mathematics that models write, as MathML, which browsers draw themselves: no fonts, no library, works in a file.
// A part of TeX: fractions, roots, scripts, Greek, operators, brackets, matrices, cases, text. What is not known makes the
// whole formula plain TeX again: nothing is shown that is not what was written.
import { lookup } from '../../base/lookup';

export interface MathNode {
  tag: string;
  text?: string;
  kids?: MathNode[];
  attrs?: Record<string, string>;
}

const SYMBOLS: Record<string, string> = {
  alpha: 'α',
  beta: 'β',
  gamma: 'γ',
  delta: 'δ',
  epsilon: 'ϵ',
  varepsilon: 'ε',
  zeta: 'ζ',
  eta: 'η',
  theta: 'θ',
  vartheta: 'ϑ',
  iota: 'ι',
  kappa: 'κ',
  lambda: 'λ',
  mu: 'μ',
  nu: 'ν',
  xi: 'ξ',
  pi: 'π',
  varpi: 'ϖ',
  rho: 'ρ',
  varrho: 'ϱ',
  sigma: 'σ',
  varsigma: 'ς',
  tau: 'τ',
  upsilon: 'υ',
  phi: 'ϕ',
  varphi: 'φ',
  chi: 'χ',
  psi: 'ψ',
  omega: 'ω',
  Gamma: 'Γ',
  Delta: 'Δ',
  Theta: 'Θ',
  Lambda: 'Λ',
  Xi: 'Ξ',
  Pi: 'Π',
  Sigma: 'Σ',
  Upsilon: 'Υ',
  Phi: 'Φ',
  Psi: 'Ψ',
  Omega: 'Ω',
  infty: '∞',
  partial: '∂',
  nabla: '∇',
  ell: 'ℓ',
  hbar: 'ℏ',
  emptyset: '∅',
  varnothing: '∅',
  aleph: 'ℵ',
  Re: 'ℜ',
  Im: 'ℑ',
  angle: '∠',
  triangle: '△',
  degree: '°',
  dots: '…',
  ldots: '…',
  cdots: '⋯',
  vdots: '⋮',
  ddots: '⋱',
  prime: '′',
};
const OPERATORS: Record<string, string> = {
  times: '×',
  cdot: '⋅',
  div: '÷',
  pm: '±',
  mp: '∓',
  ast: '∗',
  star: '⋆',
  circ: '∘',
  bullet: '∙',
  oplus: '⊕',
  otimes: '⊗',
  odot: '⊙',
  le: '≤',
  leq: '≤',
  leqslant: '≤',
  ge: '≥',
  geq: '≥',
  geqslant: '≥',
  ne: '≠',
  neq: '≠',
  equiv: '≡',
  approx: '≈',
  sim: '∼',
  simeq: '≃',
  cong: '≅',
  propto: '∝',
  ll: '≪',
  gg: '≫',
  prec: '≺',
  succ: '≻',
  mid: '∣',
  nmid: '∤',
  parallel: '∥',
  perp: '⊥',
  in: '∈',
  notin: '∉',
  ni: '∋',
  subset: '⊂',
  subseteq: '⊆',
  supset: '⊃',
  supseteq: '⊇',
  cup: '∪',
  cap: '∩',
  setminus: '∖',
  forall: '∀',
  exists: '∃',
  nexists: '∄',
  neg: '¬',
  lnot: '¬',
  land: '∧',
  wedge: '∧',
  lor: '∨',
  vee: '∨',
  therefore: '∴',
  because: '∵',
  to: '→',
  rightarrow: '→',
  leftarrow: '←',
  leftrightarrow: '↔',
  Rightarrow: '⇒',
  Leftarrow: '⇐',
  Leftrightarrow: '⇔',
  implies: '⟹',
  iff: '⟺',
  mapsto: '↦',
  longrightarrow: '⟶',
  uparrow: '↑',
  downarrow: '↓',
  sum: '∑',
  prod: '∏',
  coprod: '∐',
  int: '∫',
  iint: '∬',
  iiint: '∭',
  oint: '∮',
  bigcup: '⋃',
  bigcap: '⋂',
  langle: '⟨',
  rangle: '⟩',
  lfloor: '⌊',
  rfloor: '⌋',
  lceil: '⌈',
  rceil: '⌉',
  lbrace: '{',
  rbrace: '}',
  vert: '|',
  Vert: '‖',
  colon: ':',
  backslash: '\\',
};
const LARGE = new Set(['sum', 'prod', 'coprod', 'bigcup', 'bigcap', 'lim', 'max', 'min', 'sup', 'inf', 'limsup', 'liminf', 'argmax', 'argmin']);
const NAMES = new Set([
  'sin',
  'cos',
  'tan',
  'cot',
  'sec',
  'csc',
  'arcsin',
  'arccos',
  'arctan',
  'sinh',
  'cosh',
  'tanh',
  'log',
  'ln',
  'lg',
  'exp',
  'lim',
  'max',
  'min',
  'sup',
  'inf',
  'limsup',
  'liminf',
  'gcd',
  'lcm',
  'det',
  'dim',
  'ker',
  'deg',
  'arg',
  'argmax',
  'argmin',
  'mod',
  'Pr',
]);
const ACCENTS: Record<string, string> = {
  hat: '^',
  widehat: '^',
  bar: '¯',
  overline: '¯',
  vec: '→',
  tilde: '~',
  widetilde: '~',
  dot: '˙',
  ddot: '¨',
  check: 'ˇ',
  overrightarrow: '→',
};
const SPACES: Record<string, string> = { ',': '0.17em', ':': '0.22em', ';': '0.28em', '!': '-0.17em', ' ': '0.25em', quad: '1em', qquad: '2em' };
const FONTS: Record<string, string> = {
  mathbb: 'double-struck',
  mathcal: 'script',
  mathscr: 'script',
  mathfrak: 'fraktur',
  mathbf: 'bold',
  boldsymbol: 'bold',
  bm: 'bold',
  mathrm: 'normal',
  mathit: 'italic',
  mathsf: 'sans-serif',
  mathtt: 'monospace',
  operatorname: 'normal',
};
const IGNORED = new Set([
  'displaystyle',
  'textstyle',
  'limits',
  'nolimits',
  'big',
  'Big',
  'bigg',
  'Bigg',
  'bigl',
  'bigr',
  'Bigl',
  'Bigr',
  'biggl',
  'biggr',
  'Biggl',
  'Biggr',
  'nonumber',
  'notag',
  'boxed@',
]);

class Unknown extends Error {}

const MAX_NODES = 4000;
const MAX_DEPTH = 40;

class Tex {
  private at = 0;
  private made = 0;
  constructor(private readonly s: string) {}

  private node(tag: string, more: Partial<MathNode>): MathNode {
    if (++this.made > MAX_NODES) throw new Unknown('long');
    return { tag, ...more };
  }
  private skip(): void {
    while (/\s/.test(this.s[this.at] ?? '')) this.at++;
  }
  private peek(word: string): boolean {
    this.skip();
    return this.s.startsWith(word, this.at);
  }
  private command(): string {
    const m = /^\\([A-Za-z]+|.)/s.exec(this.s.slice(this.at, this.at + 64));
    if (!m) throw new Unknown('\\');
    this.at += m[0].length;
    return m[1];
  }
  private raw(): string {
    this.skip();
    if (this.s[this.at] !== '{') throw new Unknown('{');
    let depth = 0;
    const from = this.at + 1;
    for (; this.at < this.s.length; this.at++) {
      if (this.s[this.at] === '\\') this.at++;
      else if (this.s[this.at] === '{') depth++;
      else if (this.s[this.at] === '}' && --depth === 0) return this.s.slice(from, this.at++);
    }
    throw new Unknown('}');
  }
  row(depth: number, until: () => boolean): MathNode {
    const kids: MathNode[] = [];
    for (;;) {
      this.skip();
      if (until()) break;
      if (this.at >= this.s.length) throw new Unknown('end');
      const kid = this.scripted(depth);
      if (kid) kids.push(kid);
    }
    return kids.length === 1 ? kids[0] : this.node('mrow', { kids });
  }
  all(): MathNode {
    return this.row(0, () => this.at >= this.s.length);
  }
  private argument(depth: number): MathNode {
    this.skip();
    if (this.s[this.at] === '{') {
      this.at++;
      const inner = this.row(depth + 1, () => this.s[this.at] === '}');
      this.at++;
      return inner;
    }
    // Without braces one digit is the argument: \frac12 is a half.
    if (/\d/.test(this.s[this.at] ?? '')) return this.node('mn', { text: this.s[this.at++] });
    return this.atom(depth + 1).node ?? this.node('mrow', { kids: [] });
  }
  private scripted(depth: number): MathNode | null {
    const { node: base, large } = this.atom(depth);
    let sub: MathNode | null = null;
    let sup: MathNode | null = null;
    let primes = '';
    for (;;) {
      this.skip();
      const c = this.s[this.at];
      if (c === '_' && !sub) {
        this.at++;
        sub = this.argument(depth);
      } else if (c === '^' && !sup && primes === '') {
        this.at++;
        sup = this.argument(depth);
      } else if (c === "'") {
        primes += '′';
        this.at++;
      } else if (this.peek('\\limits') || this.peek('\\nolimits')) this.command();
      else break;
    }
    if (primes !== '') {
      const mark = this.node('mo', { text: primes });
      sup = sup ? this.node('mrow', { kids: [mark, sup] }) : mark;
    }
    if (!sub && !sup) return base;
    const b = base ?? this.node('mrow', { kids: [] });
    if (sub && sup) return this.node(large ? 'munderover' : 'msubsup', { kids: [b, sub, sup] });
    return this.node(sub ? (large ? 'munder' : 'msub') : large ? 'mover' : 'msup', { kids: [b, (sub ?? sup)!] });
  }
  private atom(depth: number): { node: MathNode | null; large?: boolean } {
    if (depth > MAX_DEPTH) throw new Unknown('deep');
    this.skip();
    const c = this.s[this.at];
    if (c === undefined) throw new Unknown('end');
    if (c === '{') return { node: this.argument(depth) };
    if (c === '\\') return this.named(this.command(), depth);
    const digits = /^\d+(?:[.,]\d+)*/.exec(this.s.slice(this.at, this.at + 64));
    if (digits) {
      this.at += digits[0].length;
      return { node: this.node('mn', { text: digits[0] }) };
    }
    if (/[&^_}%#$]/.test(c)) throw new Unknown(c);
    const ch = String.fromCodePoint(this.s.codePointAt(this.at)!);
    this.at += ch.length;
    if (/[\p{L}]/u.test(ch)) return { node: this.node('mi', { text: ch }) };
    const sign: Record<string, string> = { '-': '−', '*': '∗', '~': '\u00a0' };
    const fence = '()[]|'.includes(ch) ? { stretchy: 'false' } : undefined;
    return { node: this.node('mo', { text: lookup(sign, ch) ?? ch, attrs: fence }) };
  }
  private named(name: string, depth: number): { node: MathNode | null; large?: boolean } {
    const symbol = lookup(SYMBOLS, name);
    if (symbol) return { node: this.node('mi', { text: symbol }) };
    const operator = lookup(OPERATORS, name);
    if (operator) return { node: this.node('mo', { text: operator }), large: LARGE.has(name) };
    if (NAMES.has(name)) return { node: this.node('mi', { text: name, attrs: { mathvariant: 'normal' } }), large: LARGE.has(name) };
    const width = lookup(SPACES, name);
    if (width) return { node: this.node('mspace', { attrs: { width } }) };
    if (IGNORED.has(name)) return { node: null };
    if ('{}%$#&_|'.includes(name)) return { node: this.node('mo', { text: name === '|' ? '‖' : name, attrs: { stretchy: 'false' } }) };
    const variant = lookup(FONTS, name);
    if (variant) {
      const text = /^\s*\{([^{}\\]*)\}/.exec(this.s.slice(this.at, this.at + 200));
      if (text) {
        this.at += text[0].length;
        return { node: this.node('mi', { text: styled(text[1], variant), attrs: variant === 'normal' ? { mathvariant: 'normal' } : {} }) };
      }
      return { node: this.argument(depth) };
    }
    const accent = lookup(ACCENTS, name);
    if (accent) return { node: this.node('mover', { kids: [this.argument(depth), this.node('mo', { text: accent })], attrs: { accent: 'true' } }) };
    switch (name) {
      case 'frac':
      case 'dfrac':
      case 'tfrac':
      case 'cfrac':
        return { node: this.node('mfrac', { kids: [this.argument(depth), this.argument(depth)] }) };
      case 'binom':
      case 'dbinom':
      case 'tbinom': {
        const inner = this.node('mfrac', { kids: [this.argument(depth), this.argument(depth)], attrs: { linethickness: '0' } });
        return { node: this.node('mrow', { kids: [this.node('mo', { text: '(' }), inner, this.node('mo', { text: ')' })] }) };
      }
      case 'sqrt':
        if (this.peek('[')) {
          this.at++;
          const degree = this.row(depth + 1, () => this.s[this.at] === ']');
          this.at++;
          return { node: this.node('mroot', { kids: [this.argument(depth), degree] }) };
        }
        return { node: this.node('msqrt', { kids: [this.argument(depth)] }) };
      case 'text':
      case 'textbf':
      case 'textit':
      case 'textrm':
      case 'mbox':
      case 'texttt':
        return { node: this.node('mtext', { text: this.raw().replace(/\\([{}$%&_# ])/g, '$1') }) };
      case 'boxed':
      case 'fbox':
        return { node: this.node('mrow', { kids: [this.argument(depth)], attrs: { class: 'boxed' } }) };
      case 'overset':
      case 'stackrel': {
        const top = this.argument(depth);
        return { node: this.node('mover', { kids: [this.argument(depth), top] }) };
      }
      case 'underset': {
        const below = this.argument(depth);
        return { node: this.node('munder', { kids: [this.argument(depth), below] }) };
      }
      case 'underbrace':
      case 'overbrace':
        return {
          node: this.node(name === 'underbrace' ? 'munder' : 'mover', {
            kids: [this.argument(depth), this.node('mo', { text: name === 'underbrace' ? '⏟' : '⏞' })],
          }),
          large: true,
        };
      case 'not': {
        const { node } = this.atom(depth + 1);
        if (!node?.text) throw new Unknown('not');
        return { node: { ...node, text: `${node.text}\u0338` } };
      }
      case 'pmod':
        return {
          node: this.node('mrow', { kids: [this.node('mtext', { text: ' (mod ' }), this.argument(depth), this.node('mtext', { text: ')' })] }),
        };
      case 'bmod':
        return { node: this.node('mo', { text: 'mod', attrs: { lspace: '0.3em', rspace: '0.3em' } }) };
      case 'left': {
        const open = this.delimiter();
        const inner = this.row(depth + 1, () => this.peek('\\right') && !/[a-z]/i.test(this.s[this.at + 6] ?? ''));
        this.command();
        const close = this.delimiter();
        const fence = (text: string): MathNode[] => (text === '' ? [] : [this.node('mo', { text, attrs: { stretchy: 'true' } })]);
        return { node: this.node('mrow', { kids: [...fence(open), inner, ...fence(close)] }) };
      }
      case 'middle':
        return { node: this.node('mo', { text: this.delimiter() }) };
      case 'begin':
        return { node: this.environment(this.raw(), depth) };
      default:
        throw new Unknown(name);
    }
  }
  private delimiter(): string {
    this.skip();
    const c = this.s[this.at];
    if (c === '\\') {
      const name = this.command();
      return lookup(OPERATORS, name) ?? ('{}|'.includes(name) ? (name === '|' ? '‖' : name) : '');
    }
    this.at++;
    return c === '.' || c === undefined ? '' : c;
  }
  private environment(name: string, depth: number): MathNode {
    const kind = name.replace('*', '');
    const fences: Record<string, [string, string]> = {
      pmatrix: ['(', ')'],
      bmatrix: ['[', ']'],
      vmatrix: ['|', '|'],
      Vmatrix: ['‖', '‖'],
      Bmatrix: ['{', '}'],
      cases: ['{', ''],
      matrix: ['', ''],
      smallmatrix: ['', ''],
      aligned: ['', ''],
      align: ['', ''],
      alignat: ['', ''],
      gathered: ['', ''],
      gather: ['', ''],
      equation: ['', ''],
      split: ['', ''],
      array: ['', ''],
    };
    const around = lookup(fences, kind);
    if (!around) throw new Unknown(name);
    if (kind === 'array') this.raw();
    const rows: MathNode[] = [];
    let cells: MathNode[] = [];
    const stops = (): boolean => this.s[this.at] === '&' || this.s.startsWith('\\\\', this.at) || this.s.startsWith('\\end', this.at);
    for (;;) {
      cells.push(this.node('mtd', { kids: [this.row(depth + 1, stops)] }));
      if (this.s[this.at] === '&') this.at++;
      else {
        rows.push(this.node('mtr', { kids: cells }));
        cells = [];
        if (this.s.startsWith('\\\\', this.at)) {
          this.at += 2;
          if (this.peek('\\end')) break;
        } else break;
      }
    }
    this.skip();
    this.at += 4;
    if (this.raw() !== name) throw new Unknown('end');
    const align = kind === 'cases' ? 'left' : /align|split/.test(kind) ? 'right left' : 'center';
    const table = this.node('mtable', { kids: rows, attrs: { columnalign: align } });
    const [open, close] = around;
    const fence = (text: string): MathNode[] => (text === '' ? [] : [this.node('mo', { text, attrs: { stretchy: 'true' } })]);
    return this.node('mrow', { kids: [...fence(open), table, ...fence(close)] });
  }
}

/** Letters of other alphabets that Unicode has: MathML Core knows no variants but normal. */
function styled(text: string, variant: string): string {
  const special: Record<string, string> = { C: 'ℂ', H: 'ℍ', N: 'ℕ', P: 'ℙ', Q: 'ℚ', R: 'ℝ', Z: 'ℤ' };
  const base: Record<string, number> = {
    bold: 0x1d400,
    script: 0x1d49c,
    fraktur: 0x1d504,
    'double-struck': 0x1d538,
    'sans-serif': 0x1d5a0,
    monospace: 0x1d670,
  };
  const first = lookup(base, variant);
  if (first === undefined) return text;
  return [...text]
    .map((c) => {
      const own = variant === 'double-struck' ? lookup(special, c) : undefined;
      if (own) return own;
      if (/[A-Z]/.test(c) && !(variant === 'script' && 'BEFHILMR'.includes(c)) && !(variant === 'fraktur' && 'CHIRZ'.includes(c)))
        return String.fromCodePoint(first + c.charCodeAt(0) - 65);
      if (/[a-z]/.test(c) && variant === 'bold') return String.fromCodePoint(first + 26 + c.charCodeAt(0) - 97);
      return c;
    })
    .join('');
}

/** The formula as a tree, or null: then it is shown as it was written. */
export function parseMath(tex: string): MathNode | null {
  if (tex.length > 20_000) return null;
  try {
    return new Tex(tex.trim()).all();
  } catch {
    // Whatever went wrong, the rest of the page can be shown.
    return null;
  }
}

const NS = 'http://www.w3.org/1998/Math/MathML';

/** Puts a formula into an element: for `use:`. */
export function math(host: HTMLElement, { tex, block }: { tex: string; block: boolean }): void {
  const tree = parseMath(tex);
  if (!tree) {
    host.textContent = tex;
    host.classList.add('tex');
    return;
  }
  const build = (n: MathNode): Element => {
    const e = document.createElementNS(NS, n.tag);
    for (const [k, v] of Object.entries(n.attrs ?? {})) e.setAttribute(k, v);
    if (n.text !== undefined) e.textContent = n.text;
    for (const kid of n.kids ?? []) e.append(build(kid));
    return e;
  };
  const root = document.createElementNS(NS, 'math');
  if (block) root.setAttribute('display', 'block');
  root.append(build(tree));
  host.title = tex;
  host.replaceChildren(root);
}
