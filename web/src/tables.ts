// Markdown tables in a program's output: interpreters print data frames like that.

export interface Table {
  head: string[];
  rows: string[][];
}

/** A stretch of lines, or a table that was made of some. */
export type Block = { from: number; to: number; table?: Table };

const rule = /^\|(\s*:?-{3,}:?\s*\|)+$/;

/** Splits lines into stretches of text and tables. */
export function blocks(lines: readonly string[]): Block[] {
  const out: Block[] = [];
  let from = 0;
  for (let i = 0; i + 1 < lines.length; i++) {
    if (!isRow(lines[i]!) || !rule.test(lines[i + 1]!)) continue;
    const head = cells(lines[i]!);
    if (cells(lines[i + 1]!).length !== head.length) continue;
    let to = i + 2;
    const rows: string[][] = [];
    while (to < lines.length && isRow(lines[to]!)) rows.push(cells(lines[to++]!));
    if (i > from) out.push({ from, to: i });
    out.push({ from: i, to, table: { head, rows } });
    from = to;
    i = to - 1;
  }
  if (from < lines.length) out.push({ from, to: lines.length });
  return out;
}

function isRow(line: string): boolean {
  return line.length > 2 && line.startsWith("|") && line.endsWith("|");
}

function cells(line: string): string[] {
  return line.slice(1, -1).split(/(?<!\\)\|/).map((c) => c.trim().replaceAll("\\|", "|"));
}
