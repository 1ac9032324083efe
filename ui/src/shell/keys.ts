// What the keys do: the list behind `?`. The views act on them; this is the one place where they are written down.

export const KEYS: { title: string; keys: [string[], string][] }[] = [
  {
    title: 'Everywhere',
    keys: [
      [['Ctrl K', '⌘ K'], 'command palette'],
      [['?'], 'this list'],
      [['/'], 'filter'],
      [['g', 'r'], 'runs'],
      [['g', 'q'], 'SQL'],
      [['g', 'u'], 'the current run'],
      [['g', 't'], 'the timeline of the current run'],
      [['Esc'], 'close or clear'],
    ],
  },
  {
    title: 'Timeline: moving',
    keys: [
      [['w', 's'], 'zoom in and out at the cursor'],
      [['a', 'd', '←', '→'], 'pan left and right'],
      [['↑', '↓', 'PgUp', 'PgDn'], 'scroll rows'],
      [['f', 'F'], 'fit everything, fit the filtered rows'],
      [['z'], 'zoom to the selected span'],
      [['[', ']'], 'previous, next step'],
    ],
  },
  {
    title: 'Timeline: spans',
    keys: [
      [['e'], 'expand or collapse the row'],
      [['E'], 'expand or collapse all rows'],
      [['h', 'l'], 'previous, next span in the row'],
      [['k', 'j'], 'previous, next row'],
      [['p'], 'parent span'],
      [['Enter'], 'select the first span in view'],
    ],
  },
  {
    title: 'Timeline: mouse',
    keys: [
      [['wheel'], 'zoom at the cursor'],
      [['drag'], 'pan'],
      [['Shift', 'drag'], 'measure a time range'],
      [['Shift', 'wheel'], 'scroll rows (over the labels, without Shift)'],
      [['double click'], 'zoom to a span'],
    ],
  },
  {
    title: 'Conversations',
    keys: [
      [['/'], 'search'],
      [['J', 'K', '↑', '↓'], 'next, previous conversation'],
      [['j', 'k'], 'next, previous message of the open conversation'],
      [['Enter'], 'open the conversation on its own page'],
      [['m'], 'Markdown or raw text'],
      [['Esc'], 'close the conversation'],
    ],
  },
  {
    title: 'Tokens',
    keys: [
      [['[', ']'], 'previous, next overlay'],
      [['j', 'k'], 'next, previous turn'],
      [['←', '→'], 'previous, next token'],
    ],
  },
  { title: 'SQL', keys: [[['Ctrl Enter'], 'run the query']] },
];
