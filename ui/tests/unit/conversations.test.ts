import { describe, expect, it } from 'vitest';
import { align } from '../../src/features/conversations/align';
import type { Row } from '../../src/data/conversations';
import { tokens } from '../../src/features/conversations/code';
import { calls, failed, jsonOf, kindOf, pieces, plainOf, pretty, roleOf, textOf } from '../../src/features/conversations/content';
import { inline, parse, safeHref } from '../../src/features/conversations/markdown';
import { endsInWord, needles } from '../../src/features/conversations/marks';
import { parseMath, type MathNode } from '../../src/features/conversations/math';
import { listed, matches } from '../../src/features/conversations/offline';

const row = (more: Partial<Row>): Row => ({
  id: 'x',
  run_id: 'r',
  step: 1,
  key: null,
  index: null,
  sample_id: null,
  group_id: null,
  trace_id: null,
  span_id: null,
  reward: null,
  status: null,
  message_count: 0,
  turn_count: 0,
  tool_call_count: 0,
  media_count: 0,
  char_count: 0,
  logged_ns: '1',
  metadata: null,
  preview: '',
  answer: '',
  ...more,
});

describe('markdown', () => {
  it('knows the blocks that models write', () => {
    const kinds = parse(
      '# T\n\ntext **b**\n\n- a\n- b\n  - c\n\n1. x\n\n> q\n\n```py\nx = 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n---\n\n$$x^2$$',
    ).map((b) => b.t);
    expect(kinds).toEqual(['h', 'p', 'list', 'list', 'quote', 'code', 'table', 'rule', 'math']);
  });
  it('never makes markup or a script out of text', () => {
    const text = '<script>alert(1)</script> [x](javascript:alert(1)) ![y](data:text/html,x) [z](https://ok.example)';
    const flat = JSON.stringify(parse(text));
    expect(flat).toContain('<script>alert(1)</script>');
    const links = inline(text).filter((n) => n.t === 'link');
    expect(links).toHaveLength(1);
    for (const bad of ['javascript:x', ' JaVaScRiPt:x', 'data:text/html,x', 'vbscript:x', '//evil', 'file:///etc']) expect(safeHref(bad)).toBeNull();
  });
  it('what does not close is text, and odd text costs no time', () => {
    expect(inline('a * b ** c `d')).toEqual([{ t: 'text', text: 'a * b ** c `d' }]);
    expect(inline('costs $5 and $6').every((n) => n.t === 'text')).toBe(true);
    expect(inline('snake_case_name')).toEqual([{ t: 'text', text: 'snake_case_name' }]);
    for (const c of ['*', '_', '[', '`', '$', '> ', '- ', '![', '**a ']) {
      // Quadratic work on this would not end within the test's patience.
      expect(parse(c.repeat(20_000)).length).toBeGreaterThan(0);
    }
  });
  it('lines that almost fit cost no time either', () => {
    const n = 200_000;
    const kinds = (text: string): string[] => parse(text).map((b) => b.t);
    // With patterns that go back and forth, a heading of two thousand spaces took ten seconds, and most of these do not end.
    expect(kinds(`# a${' '.repeat(n)}b`)).toEqual(['h']);
    expect(kinds(`# a${'#'.repeat(n)}b`)).toEqual(['h']);
    expect(kinds(`# ${' #'.repeat(n)} b`)).toEqual(['h']);
    expect(kinds(`a|b\n${' '.repeat(n)}x`)).toEqual(['p']);
    expect(kinds(`a|b\n|--${' '.repeat(n)}x`)).toEqual(['p']);
    expect(kinds(`- ${' '.repeat(n)}a\u2028b`)).toEqual(['list']);
    expect(kinds('***b '.repeat(n))).toEqual(['p']);
    expect(kinds(`${'['.repeat(n)}](x)`)).toEqual(['p']);
    expect(kinds('\\[\n'.repeat(n))).toEqual(['p']);
    expect(kinds(`${'$$\n'.repeat(400)}$$ x`)).toContain('math');
  });
  it('headings end before the signs that close them', () => {
    const texts = ['# a', '  ###### a ##', '# a #b', '# a # #', '# #', '#  ', '# a#\t'].map((line) => parse(line)[0]);
    expect(texts).toEqual(
      ['a', 'a', 'a #b', 'a #', '', '', 'a'].map((text, i) => ({ t: 'h', level: i === 1 ? 6 : 1, kids: text === '' ? [] : [{ t: 'text', text }] })),
    );
    for (const line of ['#a', '#', '####### a', '    # a']) expect(parse(line)[0].t).toBe('p');
  });
  it('a table has a line of dashes below its head', () => {
    const isTable = (rule: string): boolean => parse(`a|b\n${rule}`)[0].t === 'table';
    for (const rule of ['--|--', '|--|', ' | :--: | ---: | ', '--', ':--']) expect([rule, isTable(rule)]).toEqual([rule, true]);
    for (const rule of ['', '|', '-|-', '||--|', '--||', '-- --', '--|a', '--::', '--|--||']) expect([rule, isTable(rule)]).toEqual([rule, false]);
  });
  it('a formula ends at its mark, where nothing follows', () => {
    expect(parse('\\[ a\nb\n c \\] ')).toEqual([{ t: 'math', text: 'a\nb\n c' }]);
    expect(parse('$$\na\n$$ b')[0].t).toBe('p');
    expect(parse(`\\[${'\n'.repeat(200)}\\]`)[0].t).toBe('math');
    expect(parse(`\\[${'\n'.repeat(201)}\\]`)[0].t).toBe('p');
  });
});

const show = (n: MathNode | null): string =>
  n === null ? 'null' : n.text !== undefined ? n.text : `${n.tag}(${(n.kids ?? []).map(show).join(',')})`;

describe('mathematics', () => {
  it('draws what models write', () => {
    expect(show(parseMath('\\frac{a}{b}'))).toBe('mfrac(a,b)');
    expect(show(parseMath('x_1^{2}'))).toBe('msubsup(x,1,2)');
    expect(show(parseMath('\\sum_{i=1}^n i'))).toBe('mrow(munderover(∑,mrow(i,=,1),n),i)');
    expect(show(parseMath('\\boxed{42}'))).toBe('mrow(42)');
    expect(show(parseMath('\\left(\\frac12\\right)'))).toContain('mfrac');
    expect(show(parseMath('\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}'))).toContain('mtr(mtd(1),mtd(2))');
    expect(show(parseMath('\\mathbb{R}'))).toBe('ℝ');
    expect(show(parseMath('7^{83} \\equiv 3 \\pmod{11}'))).toContain('≡');
  });
  it('leaves alone what it does not know', () => {
    for (const bad of ['\\href{javascript:x}{y}', '\\frac{a', 'a}', '\\unknown', '{'.repeat(5000), '\\begin{foo}x\\end{foo}'])
      expect(parseMath(bad)).toBeNull();
  });
  it('knows no names that every object has', () => {
    for (const name of ['constructor', 'toString', '__proto__', 'hasOwnProperty']) {
      expect(parseMath(`\\begin{${name}}x\\end{${name}}`)).toBeNull();
      expect(parseMath(`\\${name.replaceAll('_', '')}{x}`)).toBeNull();
      expect(show(parseMath(`\\left\\${name} x \\right)`))).not.toMatch(/native|object/);
    }
  });
  it('is no deeper than a browser can draw', () => {
    for (const mark of ['\\hat', '\\sqrt', '\\not']) expect(parseMath(`${mark.repeat(1000)} x`)).toBeNull();
    expect(show(parseMath("f' ' '"))).toBe('msup(f,′′′)');
    expect(show(parseMath("f'_a"))).toBe('msubsup(f,a,′)');
    expect(show(parseMath("x^2'"))).toBe('msup(x,mrow(′,2))');
  });
});

describe('content', () => {
  it('takes parts of every kind and keeps unknown ones', () => {
    expect(
      pieces([
        { type: 'text', text: 'a' },
        { type: 'image', media: 'ab', caption: 'c' },
        { type: 'image_url', image_url: { url: 'data:x' } },
        { type: 'hologram', beam: 3 },
      ]).map((p) => p.t),
    ).toEqual(['text', 'image', 'image', 'raw']);
    expect(textOf(null)).toBe('');
  });
  it('shows arguments that are no JSON as they are', () => {
    const [a, b] = calls({
      tool_calls: [{ id: '1', function: { name: 'f', arguments: '{"x":1}' } }, { function: { name: 'g', arguments: '{"x": "half' } }],
    });
    expect(a.parsed).toEqual({ x: 1 });
    expect([b.parsed, b.args]).toEqual([null, '{"x": "half']);
    expect(pretty('{"a":1}')).toContain('\n');
    expect(pretty('{"a":')).toBeNull();
    expect(failed('Traceback (most recent call last):\n')).toBe(true);
    expect(failed('3 passed')).toBe(false);
  });
  it('takes a role and a name of any kind', () => {
    expect(['user', 'developer', 'constructor', '__proto__', 'toString'].map((role) => kindOf({ role }))).toEqual([
      'user',
      'system',
      'other',
      'other',
      'other',
    ]);
    // An object that has no text.
    const odd = { toString: 1 } as unknown as string;
    expect([roleOf({ role: odd }), kindOf({ role: odd }), roleOf({})]).toEqual(['{"toString":1}', 'other', 'unknown']);
    expect(calls({ tool_calls: [{ id: odd, name: odd }] })[0]).toMatchObject({ id: '{"toString":1}', name: '{"toString":1}' });
    expect(plainOf({ role: 'user', content: 'a' })).toBe('a');
    expect(plainOf({ role: 'user', content: [1] })).toContain('"content"');
  });
  it('JSON of any depth is shown', () => {
    const nested = (levels: number): string => '['.repeat(levels) + ']'.repeat(levels);
    expect(pretty(nested(40))).toContain('\n');
    // Each level indents what is inside of it: of ten thousand characters became fifty million.
    expect(pretty(nested(5000))).toBeNull();
    expect(jsonOf(JSON.parse(nested(1000)), 2)).toBe(nested(1000));
    const { parsed } = calls({ tool_calls: [{ name: 'f', arguments: `{"a":${nested(100_000)}}` }] })[0];
    expect(jsonOf(parsed)).toBe('(nested too deeply)');
  });
  const joined = (code: string, lang: string): string =>
    tokens(code, lang)
      .map((t) => t.text)
      .join('');
  it('colours code without losing a character', () => {
    for (const code of ['def f(x):  # note\n    return "a\\"b" + 0x1F', '"""a\n"b"""c', "x = 'a\n' /* b", '`a\\`b'])
      expect(joined(code, 'python')).toBe(code);
  });
  it('colours strings and comments that close', () => {
    const kinds = (code: string): string =>
      tokens(code, 'js')
        .map((t) => `${t.kind}:${t.text}`)
        .join('|');
    expect(kinds('/* a */ /* b')).toBe('com:/* a */|plain: /* |plain:b');
    expect(kinds('"""a"b"""')).toBe('str:"""a"b"""');
    expect(kinds('"""a')).toBe('str:""|plain:"|plain:a');
    expect(kinds('"a\n"b"')).toBe('plain:"|plain:a|plain:\n|str:"b"');
    expect(kinds('"\\"" "\\"a')).toBe('str:"\\""|plain: "\\"|plain:a');
    expect(kinds('`a\nb`')).toBe('str:`a\nb`');
  });
  it('colours strings and comments that never close at no cost', () => {
    for (const part of ['"\\', "'\\", '\\`', '/* ', '"""', "'''a ", '`\\\n']) {
      const code = part.repeat(60_000 / part.length);
      expect(joined(code, 'python')).toBe(code);
    }
  });
});

it('finds the words of a search again', () => {
  expect(needles('role:tool "out of memory" alloc* -warn reward:<0.5 contains:"f(x)"')).toEqual(['out of memory', 'alloc', 'f(x)']);
});

it('knows where a search ends within a word', () => {
  for (const search of ['mem', 'role:tool mem', 'a/b mem', '"out of', 'é']) expect([search, endsInWord(search)]).toEqual([search, true]);
  for (const search of ['', 'mem ', 'role:tool', '"out', '/out', 'a~1', 'mem*']) expect([search, endsInWord(search)]).toEqual([search, false]);
  // With a pattern that begins again at each colon, this takes minutes.
  expect(endsInWord(`${':'.repeat(1_000_000)} a`)).toBe(true);
});

describe('the samples of a group', () => {
  const talk = (reward: number, ...said: string[]): Row =>
    row({ id: String(reward), reward, messages: [{ role: 'user', content: 'q' }, ...said.map((content) => ({ role: 'assistant', content }))] });
  it('are aligned by turns, and the parting is where good and bad do different things', () => {
    const a = align([talk(1, 'look', 'right'), talk(0.9, 'look', 'right'), talk(0, 'look', 'wrong')]);
    expect(a.shared).toBe(2);
    expect(a.turns[0].map((c) => c?.letter)).toEqual(['A', 'A', '']);
    expect(a.parting).toBe(0);
    const b = align([talk(1, 'x', 'right'), talk(0, 'y', 'wrong'), talk(0, 'x', 'wrong')]);
    expect([b.shared, b.parting]).toEqual([1, 1]);
    expect(align([talk(1, 'a'), talk(1, 'b')]).parting).toBe(-1);
    expect(align([]).turns).toEqual([]);
  });
  it('may have calls that are no list, or none', () => {
    const odd = (tool_calls: unknown): Row => row({ messages: [{ role: 'assistant', content: '', tool_calls: tool_calls as [] }] });
    expect(align([odd({}), odd([null])]).shared).toBe(1);
    const deep = `{"a":${'['.repeat(100_000)}${']'.repeat(100_000)}}`;
    expect(align([odd([{ name: 'f', arguments: deep }]), odd([])]).turns[0][0]?.action).toBe('f (nested too deeply)');
  });
});

it('a static file searches, sorts and pages by itself', () => {
  const rows = [0, 1, 2].map((i) =>
    row({ id: `c${i}`, reward: i / 2, step: i, status: i ? 'completed' : 'failed', messages: [{ role: 'user', content: `word${i} common` }] }),
  );
  const ask = (q: object): string[] => listed(rows, q).conversations.map((c) => c.id);
  expect(ask({ sort: '-reward' })).toEqual(['c2', 'c1', 'c0']);
  expect(ask({ search: 'common word1' })).toEqual(['c1']);
  expect(ask({ search: 'reward:<0.5' })).toEqual(['c0']);
  expect(ask({ search: 'step:1..2', sort: 'step', limit: 1 })).toEqual(['c1']);
  expect(matches(rows[0], 'status:failed')).toBe(true);
});
