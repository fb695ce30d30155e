// Comma-separated values, as RFC 4180 and the world's spreadsheets write them.

/** Guesses the separator from the first lines. */
export function separatorOf(text: string): string {
  const head = text.slice(0, 4096).split(/\r?\n/).slice(0, 5).join("\n").replace(/"[^"]*"/g, "");
  let best = ",";
  let most = 0;
  for (const candidate of [",", ";", "\t", "|"]) {
    const n = head.split(candidate).length - 1;
    if (n > most) [best, most] = [candidate, n];
  }
  return best;
}

/** Parses at most maxRows rows. */
export function parseCSV(text: string, separator = separatorOf(text), maxRows = Infinity): { rows: string[][]; truncated: boolean } {
  const rows: string[][] = [];
  let row: string[] = [];
  let i = text.startsWith("\ufeff") ? 1 : 0;
  const end = text.length;
  while (i < end) {
    if (rows.length >= maxRows) return { rows, truncated: true };
    let field = "";
    if (text[i] === '"') {
      i++;
      for (;;) {
        const quote = text.indexOf('"', i);
        if (quote < 0) {
          field += text.slice(i);
          i = end;
          break;
        }
        field += text.slice(i, quote);
        i = quote + 1;
        if (text[i] !== '"') break;
        field += '"';
        i++;
      }
    }
    const start = i; // text after a closing quote is kept unchanged
    while (i < end && text[i] !== separator && text[i] !== "\n" && text[i] !== "\r") i++;
    field += text.slice(start, i);
    row.push(field);
    if (i < end && text[i] === separator) {
      i++;
      if (i === end) row.push("");
      else continue;
    }
    if (text[i] === "\r") i++;
    if (text[i] === "\n") i++;
    if (row.length > 1 || row[0] !== "") rows.push(row);
    row = [];
  }
  if (row.length > 0) rows.push(row);
  return { rows, truncated: false };
}

/** Finds the columns with numbers, for alignment. */
export function numericColumns(rows: string[][]): boolean[] {
  const width = rows.reduce((n, r) => Math.max(n, r.length), 0);
  return Array.from({ length: width }, (_, c) => {
    const values = rows.map((r) => (r[c] ?? "").trim()).filter((v) => v !== "");
    return values.length > 0 && values.every((v) => /^[-+]?(\d[\d,_]*\.?\d*|\.\d+)(e[-+]?\d+)?%?$|^(nan|inf|-inf|…|\.\.\.)$/i.test(v));
  });
}
