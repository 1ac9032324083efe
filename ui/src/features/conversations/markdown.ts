// Markdown as a tree, never as HTML: what a model writes cannot become markup by any path. A small dialect: paragraphs,
// headings, lists, quotes, tables, rules, fenced code, mathematics; bold, italics, code, strikethrough, links. Everything
// else is text. Linear in the length of the text, nesting bounded.

export type Inline =
  | { t: 'text'; text: string }
  | { t: 'code'; text: string }
  | { t: 'math'; text: string }
  | { t: 'bold' | 'italic' | 'strike'; kids: Inline[] }
  | { t: 'link'; href: string; kids: Inline[] }
  | { t: 'break' };

export type Block =
  | { t: 'p'; kids: Inline[] }
  | { t: 'h'; level: number; kids: Inline[] }
  | { t: 'code'; lang: string; text: string }
  | { t: 'math'; text: string }
  | { t: 'quote'; kids: Block[] }
  | { t: 'list'; ordered: boolean; start: number; items: Block[][] }
  | { t: 'table'; head: Inline[][]; rows: Inline[][][] }
  | { t: 'rule' };

const MAX_DEPTH = 8;
/** Lines that a formula may have after its first. */
const MAX_MATH_LINES = 200;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/s;

/** Only addresses that a click may follow. */
export function safeHref(href: string): string | null {
  const trimmed = href.trim();
  return /^(https?:|mailto:)/i.test(trimmed) && trimmed.length < 4096 ? trimmed : null;
}

/** The text of a heading, without the signs that may close it. By hand: a pattern for a run of signs would begin again at each of them. */
function headingText(text: string): string {
  const trimmed = text.trim();
  let end = trimmed.length;
  while (trimmed[end - 1] === '#') end--;
  return trimmed.slice(0, end).trimEnd();
}

/** The cells of a line of a table. */
const cellsOf = (line: string): string[] =>
  line
    .trim()
    .replace(/^\||\|$/g, '')
    .split('|')
    .map((cell) => cell.trim());

/** Is it the line below the head of a table? Cell by cell: a pattern for all of it takes quadratic time where it does not fit. */
const isTableRule = (line: string): boolean => cellsOf(line).every((cell) => /^:?-{2,}:?$/.test(cell));

export function parse(text: string, depth = 0): Block[] {
  const lines = text.replace(/\r\n?/g, '\n').split('\n');
  // The line where a mark was found is kept. It is only looked for further down, so every line is looked at once.
  const linesFound = new Map<string, number>();
  const lineWith = (mark: string, from: number): number => {
    let at = Math.max(from, linesFound.get(mark) ?? 0);
    while (at < lines.length && !lines[at].includes(mark)) at++;
    linesFound.set(mark, at);
    return at;
  };
  const out: Block[] = [];
  let i = 0;
  let para: string[] = [];
  const flush = (): void => {
    if (para.length > 0) out.push({ t: 'p', kids: inline(para.join('\n')) });
    para = [];
  };
  while (i < lines.length) {
    const line = lines[i];
    const fence = /^\s{0,3}(`{3,}|~{3,})\s*([^`\s]*)/.exec(line);
    if (fence) {
      flush();
      const body: string[] = [];
      i++;
      while (i < lines.length && !lines[i].trimStart().startsWith(fence[1])) body.push(lines[i++]);
      i++;
      out.push({ t: 'code', lang: fence[2].slice(0, 40), text: body.join('\n') });
      continue;
    }
    const block = /^\s*(\$\$|\\\[)/.exec(line);
    if (block) {
      const end = block[1] === '$$' ? '$$' : '\\]';
      const first = line.trimStart().slice(2);
      const last = first.includes(end) ? i : lineWith(end, i + 1);
      if (last < lines.length && last - i <= MAX_MATH_LINES) {
        const closing = last === i ? first : lines[last];
        const at = closing.indexOf(end);
        if (closing.slice(at + 2).trim() === '') {
          const before = last === i ? [] : [first, ...lines.slice(i + 1, last)];
          flush();
          out.push({ t: 'math', text: [...before, closing.slice(0, at)].join('\n').trim() });
          i = last + 1;
          continue;
        }
      }
    }
    if (line.trim() === '') {
      flush();
      i++;
      continue;
    }
    const heading = /^\s{0,3}(#{1,6})\s/.exec(line);
    if (heading) {
      flush();
      out.push({ t: 'h', level: heading[1].length, kids: inline(headingText(line.slice(heading[0].length))) });
      i++;
      continue;
    }
    if (/^\s{0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) {
      flush();
      out.push({ t: 'rule' });
      i++;
      continue;
    }
    if (/^\s{0,3}>/.test(line) && depth < MAX_DEPTH) {
      flush();
      const body: string[] = [];
      while (i < lines.length && /^\s{0,3}>/.test(lines[i])) body.push(lines[i++].replace(/^\s{0,3}>\s?/, ''));
      out.push({ t: 'quote', kids: parse(body.join('\n'), depth + 1) });
      continue;
    }
    const item = ITEM.exec(line);
    if (item && depth < MAX_DEPTH) {
      flush();
      const ordered = /\d/.test(item[2]);
      const items: Block[][] = [];
      while (i < lines.length) {
        const next = ITEM.exec(lines[i]);
        if (!next || next[1].length > item[1].length + 1 || /\d/.test(next[2]) !== ordered) break;
        const indent = next[1].length + next[2].length + 1;
        const body = [next[3]];
        i++;
        while (i < lines.length) {
          const l = lines[i];
          const pad = /^\s*/.exec(l)![0].length;
          if (l.trim() === '') {
            // A blank line stays inside if the item goes on after it.
            const after = lines[i + 1];
            if (after === undefined || /^\s*/.exec(after)![0].length < Math.min(indent, 2) || after.trim() === '') break;
            body.push('');
          } else if (pad >= Math.min(indent, 2) && pad > item[1].length) body.push(l.slice(Math.min(pad, indent)));
          else break;
          i++;
        }
        items.push(parse(body.join('\n'), depth + 1));
        while (i < lines.length && lines[i].trim() === '' && ITEM.test(lines[i + 1] ?? '')) i++;
      }
      out.push({ t: 'list', ordered, start: ordered ? parseInt(item[2], 10) : 1, items });
      continue;
    }
    if (line.includes('|') && isTableRule(lines[i + 1] ?? '')) {
      flush();
      const cells = (l: string): Inline[][] =>
        cellsOf(l)
          .slice(0, 64)
          .map((c) => inline(c));
      const head = cells(line);
      const rows: Inline[][][] = [];
      i += 2;
      while (i < lines.length && lines[i].includes('|') && lines[i].trim() !== '') rows.push(cells(lines[i++]));
      out.push({ t: 'table', head, rows });
      continue;
    }
    para.push(line);
    i++;
  }
  flush();
  return out;
}

/** The marks inside a line. One pass; what does not close is text. */
export function inline(text: string, depth = 0): Inline[] {
  const out: Inline[] = [];
  let plain = '';
  const push = (node: Inline): void => {
    if (plain) out.push({ t: 'text', text: plain });
    plain = '';
    out.push(node);
  };
  // Where a mark was found is kept, and that there is none. It is only looked for further on, so no text makes this quadratic.
  const marksFound = new Map<string, number>();
  /** `alone`: not next to another of its kind. */
  const find = (mark: string, from: number, alone = false): number => {
    let at = marksFound.get(mark) ?? -1;
    if (at < from) {
      at = text.indexOf(mark, from);
      while (alone && at >= 0 && (text[at + 1] === mark || text[at - 1] === mark)) at = text.indexOf(mark, at + 2);
      marksFound.set(mark, at < 0 ? Infinity : at);
    }
    return at === Infinity ? -1 : at;
  };
  let i = 0;
  while (i < text.length) {
    const c = text[i];
    if (c === '\\' && i + 1 < text.length) {
      if (text[i + 1] === '(' || text[i + 1] === '[') {
        const end = find(text[i + 1] === '(' ? '\\)' : '\\]', i + 2);
        if (end > 0) {
          push({ t: 'math', text: text.slice(i + 2, end) });
          i = end + 2;
          continue;
        }
      }
      if (/[\\`*_{}[\]()#+\-.!|$~>]/.test(text[i + 1])) {
        plain += text[i + 1];
        i += 2;
        continue;
      }
    } else if (c === '`') {
      const ticks = /^`+/.exec(text.slice(i, i + 16))![0];
      const end = find(ticks, i + ticks.length);
      if (end > 0) {
        push({ t: 'code', text: text.slice(i + ticks.length, end).replace(/^ (.*) $/s, '$1') });
        i = end + ticks.length;
        continue;
      }
      plain += ticks;
      i += ticks.length;
      continue;
    } else if (c === '$' && text[i + 1] !== ' ' && text[i + 1] !== '$') {
      const end = find('$', i + 1);
      // "$5 and $6" is money.
      if (end > i + 1 && text[end - 1] !== ' ' && !/\d/.test(text[end + 1] ?? '') && !text.slice(i + 1, end).includes('\n\n')) {
        push({ t: 'math', text: text.slice(i + 1, end) });
        i = end + 1;
        continue;
      }
    } else if ((c === '*' || c === '_' || c === '~') && depth < MAX_DEPTH) {
      const mark = text.startsWith(c + c, i) ? c + c : c;
      const single = mark.length === 1;
      const inWord = c === '_' && /\w/.test(text[i - 1] ?? '');
      if (!(single && c === '~') && !inWord && /\S/.test(text[i + mark.length] ?? '')) {
        const end = find(mark, i + mark.length, single);
        if (end > i + mark.length && /\S/.test(text[end - 1])) {
          push({ t: c === '~' ? 'strike' : single ? 'italic' : 'bold', kids: inline(text.slice(i + mark.length, end), depth + 1) });
          i = end + mark.length;
          continue;
        }
      }
      plain += mark;
      i += mark.length;
      continue;
    } else if ((c === '[' || (c === '!' && text[i + 1] === '[')) && depth < MAX_DEPTH) {
      const open = c === '!' ? i + 2 : i + 1;
      const close = find('](', open);
      const end = close > 0 ? find(')', close) : -1;
      if (close > 0 && end > 0 && close - open < 2000 && !text.slice(open, close).includes('[')) {
        const href = safeHref(text.slice(close + 2, end).split(/\s/)[0]);
        const kids = inline(text.slice(open, close), depth + 1);
        if (href) push({ t: 'link', href, kids });
        else push({ t: 'text', text: text.slice(i, end + 1) });
        i = end + 1;
        continue;
      }
    } else if (c === 'h' && /^https?:\/\//.test(text.slice(i, i + 8)) && !/\w/.test(text[i - 1] ?? '')) {
      const url = /^https?:\/\/[^\s<>"'`]+[^\s<>"'`.,;:!?)\]}]/.exec(text.slice(i, i + 2048));
      if (url) {
        push({ t: 'link', href: url[0], kids: [{ t: 'text', text: url[0] }] });
        i += url[0].length;
        continue;
      }
    } else if (c === '\n') {
      push({ t: 'break' });
      i++;
      continue;
    }
    plain += c;
    i++;
  }
  if (plain) out.push({ t: 'text', text: plain });
  return out;
}
