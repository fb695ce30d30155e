// Tables made of text, or read from HTML that code showed. Cells are text with the styles that
// cellstyle.ts lets through; nothing else of the HTML reaches the page.
import { cellStyles, colorOf, readable, type CellStyle } from "./cellstyle.ts";
import { numericColumns } from "./csv.ts";
import { h } from "./dom.ts";
import { cleanHTML } from "./html.ts";

export interface Cell {
  text: string;
  head: boolean;
  columns: number;
  rows: number;
  style?: CellStyle;
}

export interface Table {
  head: Cell[][];
  body: Cell[][];
  caption?: string;
  notes: string[]; // text around the table, such as how large the whole is
}

/** A browser lays this many out at once without a delay. */
const mostColumns = 200;
const mostCells = 40_000;
const longestCaption = 500;
/** A table is at least as wide as a caption of this length. */
const shortCaption = 40;

const entities = new Map(Object.entries({ amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", times: "×", hellip: "…", minus: "−" }));

function decoded(text: string): string {
  return text.replace(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z]+));/gi, (all, decimal?: string, hex?: string, name?: string) => {
    if (name !== undefined) return entities.get(name) ?? all;
    const code = decimal !== undefined ? Number(decimal) : parseInt(hex!, 16);
    return code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000) ? String.fromCodePoint(code) : "\ufffd";
  });
}

function span(attributes: string, name: string): number {
  const n = Number(new RegExp(` ${name}="(\\d{1,4})"`).exec(attributes)?.[1] ?? 1);
  return Math.min(Math.max(n, 1), mostColumns);
}

/**
 * Returns the only table in the HTML, or undefined if there is anything else, or a nested table.
 */
export function tableOfHTML(html: string): Table | undefined {
  const table: Table = { head: [], body: [], notes: [] };
  const styles = cellStyles(html);
  let [tables, inTable, inHead, inCaption] = [0, false, false, false];
  let caption = "";
  let row: Cell[] | undefined;
  let cell: Cell | undefined;
  let note = "";
  const endNote = () => {
    if (note.trim() !== "") table.notes.push(note.replace(/\s+/g, " ").trim());
    note = "";
  };
  for (const [, closing, name, attributes, text] of cleanHTML(html, true).matchAll(/<(\/?)([a-z0-9]+)((?: [a-z]+="[^"]*")*)>|([^<]+)/g)) {
    if (text !== undefined) {
      if (cell) cell.text += decoded(text);
      else if (inCaption) caption += decoded(text);
      else if (!inTable) note += decoded(text);
    } else if (name === "table") {
      if (!closing && ++tables > 1) return undefined;
      inTable = !closing;
      endNote();
    } else if (name === "br") {
      if (cell) cell.text += "\n";
    } else if (!inTable) {
      if (name !== "div" && name !== "p" && name !== "span") return undefined;
      endNote();
    } else if (name === "caption") {
      inCaption = !closing;
    } else if (name === "thead") {
      inHead = !closing;
    } else if (name === "tr") {
      cell = undefined;
      row = closing ? undefined : [];
      if (row) (inHead ? table.head : table.body).push(row);
    } else if (name === "th" || name === "td") {
      cell = closing ? undefined : { text: "", head: name === "th", columns: span(attributes!, "colspan"), rows: span(attributes!, "rowspan") };
      const style = styles.get(/ id="([\w-]{1,100})"/.exec(attributes!)?.[1] ?? "");
      if (cell && style) cell.style = style;
      if (cell) row?.push(cell);
    }
  }
  endNote();
  caption = caption.replace(/\s+/g, " ").trim();
  if (caption !== "") table.caption = caption.length > longestCaption ? `${caption.slice(0, longestCaption)}…` : caption;
  for (const c of [...table.head, ...table.body].flat()) c.text = c.text.trim();
  return tables === 1 && table.body.length + table.head.length > 0 ? table : undefined;
}

/** Makes a table of rows of text. The first row is its head. */
export function tableOfRows(head: string[], rows: string[][]): Table {
  const cells = (row: string[], isHead: boolean) => row.map((text) => ({ text, head: isHead, columns: 1, rows: 1 }));
  return { head: [cells(head, true)], body: rows.map((row) => cells(row, false)), notes: [] };
}

/** Returns the column of each cell, counting spans of earlier rows. */
export function columnsOf(rows: Cell[][]): number[][] {
  const open: number[] = []; // rows that a cell above still spans, by column
  return rows.map((row) => {
    let at = 0;
    const places = row.map((cell) => {
      while ((open[at] ?? 0) > 0) at++;
      const place = at;
      for (let i = 0; i < cell.columns; i++) open[at++] = cell.rows;
      return place;
    });
    for (let i = 0; i < open.length; i++) if ((open[i] ?? 0) > 0) open[i]!--;
    return places;
  });
}

/**
 * Returns the start of a table, small enough to lay out. A cell counts for all places that it
 * spans.
 */
export function beginningOf(whole: Table): { head: Cell[][]; body: Cell[][]; cut: boolean } {
  let [cells, cut] = [0, false];
  const fit = (rows: Cell[][]) => {
    const narrow = rows.map((row) => {
      let width = 0;
      const kept = row.filter((cell) => (width += cell.columns) <= mostColumns);
      cut ||= kept.length < row.length;
      return kept;
    });
    const kept = narrow.filter((row) => (cells += row.reduce((sum, cell) => sum + cell.columns * cell.rows, 1)) <= mostCells);
    cut ||= kept.length < rows.length;
    return kept;
  };
  const [head, body] = [fit(whole.head), fit(whole.body)];
  return { head, body, cut };
}

/** Renders a table with aligned numbers, or the start of a very large one. */
export function renderTable(whole: Table, label = "Table"): HTMLElement {
  const { cut, ...table } = beginningOf(whole);
  const places = columnsOf(table.body);
  const values = table.body.map((row, r) => {
    const texts: string[] = [];
    row.forEach((cell, i) => (texts[places[r]![i]!] = cell.head ? "" : cell.text));
    return Array.from(texts, (t) => t ?? "");
  });
  const numeric = numericColumns(values);
  const render = (row: Cell[], columns: number[], inHead: boolean, rowsLeft: number) =>
    h(
      "tr",
      {},
      ...row.map((cell, i) => {
        const classes = [numeric[columns[i]!] && cell.columns === 1 && "number", cell.rows >= rowsLeft && "last"].filter((c) => typeof c === "string");
        const attributes = {
          class: classes.join(" ") || null,
          colspan: cell.columns > 1 ? cell.columns : null,
          rowspan: cell.rows > 1 ? cell.rows : null,
        };
        if (!cell.head || cell.text === "") return dress(h("td", attributes, cell.text), cell.style);
        return dress(h("th", { ...attributes, scope: inHead ? (cell.columns > 1 ? "colgroup" : "col") : "row" }, cell.text), cell.style);
      }),
    );
  const headPlaces = columnsOf(table.head);
  return h(
    "div",
    { class: "table-block", "data-testid": "output-table" },
    h(
      "div",
      { class: "table-scroll", tabindex: 0, role: "group", "aria-label": label },
      h(
        "table",
        { class: "data" },
        whole.caption !== undefined && h("caption", { class: whole.caption.length <= shortCaption ? "short" : null }, whole.caption),
        table.head.length > 0 && h("thead", {}, ...table.head.map((row, r) => render(row, headPlaces[r]!, true, Infinity))),
        h("tbody", {}, ...table.body.map((row, r) => render(row, places[r]!, false, table.body.length - r))),
      ),
    ),
    ...whole.notes.map((note) => h("p", { class: "muted" }, note)),
    cut && h("p", { class: "muted" }, `${table.body.length} of ${whole.body.length} rows and at most ${mostColumns} columns are shown.`),
  );
}

/** Sets the style of a cell. The page's policy forbids style attributes, not the object model. */
function dress(element: HTMLElement, style: CellStyle | undefined): HTMLElement {
  if (!style) return element;
  for (const [name, value] of readable(style, colorOf)) element.style.setProperty(name, value);
  if (style.has("background-image")) element.classList.add("bar");
  return element;
}
