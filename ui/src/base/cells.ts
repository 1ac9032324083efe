// Values of a result as text: for the table and for CSV.

/** Null stays null, so that the table can show it as such. */
export function cellText(v: unknown): string | null {
  if (v === null || v === undefined) return null;
  if (typeof v === 'string') return v;
  if (typeof v === 'object') return jsonText(v);
  return String(v);
}

/** JSON that can hold 64-bit integers and what JSON has no words for. */
export function jsonText(v: unknown, indent?: number): string {
  return (
    JSON.stringify(
      v,
      (_, x: unknown) =>
        typeof x === 'bigint'
          ? x >= -9007199254740991n && x <= 9007199254740991n
            ? Number(x)
            : String(x)
          : typeof x === 'number' && !Number.isFinite(x)
            ? String(x)
            : x,
      indent,
    ) ?? 'null'
  );
}

/**
 * One field as RFC 4180 has it. Text that a spreadsheet would take for a formula gets a quote before it: what stands in
 * these tables was written by a model.
 */
export function csvField(v: unknown): string {
  let t = cellText(v) ?? '';
  if (typeof v === 'string' && /^[=+\-@\t\r]/.test(t)) t = `'${t}`;
  return /[",\n\r]/.test(t) ? `"${t.replaceAll('"', '""')}"` : t;
}

export function toCsv(names: string[], rows: number, cell: (row: number, column: number) => unknown): string {
  const lines = [names.map(csvField).join(',')];
  for (let r = 0; r < rows; r++) lines.push(names.map((_, c) => csvField(cell(r, c))).join(','));
  return `${lines.join('\n')}\n`;
}
