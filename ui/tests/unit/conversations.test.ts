import { describe, expect, it } from 'vitest';
import { align } from '../../src/features/conversations/align';
import type { Row } from '../../src/data/conversations';
import { tokens } from '../../src/features/conversations/code';
import { calls, failed, pieces, pretty, textOf } from '../../src/features/conversations/content';
import { inline, parse, safeHref } from '../../src/features/conversations/markdown';
import { needles } from '../../src/features/conversations/marks';
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
  it('colours code without losing a character', () => {
    const code = 'def f(x):  # note\n    return "a\\"b" + 0x1F';
    expect(
      tokens(code, 'python')
        .map((t) => t.text)
        .join(''),
    ).toBe(code);
  });
});

it('finds the words of a search again', () => {
  expect(needles('role:tool "out of memory" alloc* -warn reward:<0.5 contains:"f(x)"')).toEqual(['out of memory', 'alloc', 'f(x)']);
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
