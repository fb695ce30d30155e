// The output of a program on screen. Short output is laid out as it is and wraps; of long output only the lines in view exist.
import { strip, type Span, type Style } from "./ansi.ts";
import { h } from "./dom.ts";
import { Lines, spansOf, type Line, type Stream } from "./lines.ts";
import { numericColumns } from "./csv.ts";
import { blocks, type Table } from "./tables.ts";
import { windowOf } from "./virtual.ts";

/** Up to here output is laid out whole. */
const wholeLines = 500;
const rowHeight = 20;

export class LogView {
  readonly lines = new Lines();
  readonly element = h("div", { class: "log", role: "log", "aria-label": "Program output", "aria-live": "off" });
  #rows: HTMLElement[] = []; // of the whole lines, by index
  #rendered = 0; // lines that have a row
  #changed = Infinity; // the first line that has changed since
  #frame = 0;
  #spacer: HTMLElement | undefined; // of the virtual mode
  #slice: HTMLElement | undefined;

  #observer = new ResizeObserver(() => this.#schedule());

  /** scroller is the element that scrolls the log. */
  constructor(private readonly scroller: HTMLElement) {}

  /** Follows the scroller, once the element is in it. */
  attach(): void {
    this.scroller.addEventListener("scroll", this.#schedule, { passive: true });
    this.#observer.observe(this.scroller);
    this.flush();
  }

  detach(): void {
    this.scroller.removeEventListener("scroll", this.#schedule);
    this.#observer.disconnect();
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
  }

  add(stream: Stream, text: string): void {
    this.#changed = Math.min(this.#changed, this.lines.add(stream, text));
    this.#schedule();
  }

  #schedule = (): void => {
    if (!this.element.isConnected) return;
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#render();
    });
  };

  /** Renders at once what has come. */
  flush(): void {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#render();
  }

  #render(): void {
    const atEnd = this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight < 40;
    const grown = this.#rendered < this.lines.all.length;
    if (this.lines.all.length > wholeLines) this.#renderWindow();
    else this.#renderWhole();
    this.#rendered = this.lines.all.length;
    if (grown && atEnd) {
      this.scroller.scrollTop = this.scroller.scrollHeight;
      if (this.#spacer) this.#renderWindow();
    }
  }

  #renderWhole(): void {
    for (let i = this.#changed; i < this.#rows.length; i++) fill(this.#rows[i]!, this.lines.all[i]!);
    this.#changed = Infinity;
    for (let i = this.#rows.length; i < this.lines.all.length; i++) {
      const row = rowOf(this.lines.all[i]!);
      this.#rows.push(row);
      this.element.append(row);
    }
  }

  #renderWindow(): void {
    if (!this.#spacer) {
      this.#rows = [];
      this.#slice = h("div", { class: "log-slice" });
      this.#spacer = h("div", { class: "log-spacer" }, this.#slice);
      this.element.classList.add("virtual");
      this.element.replaceChildren(this.#spacer);
    }
    this.#changed = Infinity;
    const offset = this.element.getBoundingClientRect().top - this.scroller.getBoundingClientRect().top + this.scroller.scrollTop;
    const view = windowOf(this.lines.all.length, rowHeight, this.scroller.scrollTop - offset, this.scroller.clientHeight);
    this.#spacer.style.height = `${view.height}px`;
    this.#slice!.style.transform = `translateY(${view.top}px)`;
    this.#slice!.replaceChildren(...this.lines.all.slice(view.first, view.last).map(rowOf));
  }

  /** Once all has come: shows the tables that were printed as tables. */
  finish(): void {
    this.flush();
    if (this.#spacer) return;
    const text = this.lines.all.map((l) => (l.stream === "stdout" ? strip(l.text) : ""));
    const found = blocks(text);
    if (!found.some((b) => b.table)) return;
    this.element.replaceChildren();
    for (const block of found) {
      if (block.table) this.element.append(tableOf(block.table));
      else this.element.append(...this.#rows.slice(block.from, block.to));
    }
  }
}

function rowOf(line: Line): HTMLElement {
  const row = h("div", { class: "log-line", "data-stream": line.stream });
  fill(row, line);
  return row;
}

function fill(row: HTMLElement, line: Line): void {
  row.replaceChildren(...spansOf(line).map(nodeOf));
}

function nodeOf(span: Span): Node {
  const { style } = span;
  if (Object.keys(style).length === 0) return document.createTextNode(span.text);
  const element = h("span", { class: classesOf(style) }, span.text);
  const [fg, bg] = style.inverse ? [style.bg, style.fg] : [style.fg, style.bg];
  if (typeof fg === "string") element.style.color = fg;
  if (typeof bg === "string") element.style.backgroundColor = bg;
  return element;
}

function classesOf(style: Style): string {
  const names: string[] = [];
  const [fg, bg] = style.inverse ? [style.bg ?? "surface", style.fg ?? "text"] : [style.fg, style.bg];
  if (typeof fg === "number" || fg === "surface") names.push(`fg-${fg}`);
  if (typeof bg === "number" || bg === "text") names.push(`bg-${bg}`);
  for (const flag of ["bold", "dim", "italic", "underline", "strike"] as const) if (style[flag]) names.push(`ansi-${flag}`);
  return names.join(" ");
}

/** What a browser lays out at once without anybody waiting for it. */
const mostColumns = 200;
const mostCells = 40_000;

/** A table of text, with numbers aligned. Of a very large one, the beginning. */
export function tableOf(whole: Table, label = "Table"): HTMLElement {
  const table = { head: whole.head.slice(0, mostColumns), rows: whole.rows.map((row) => row.slice(0, mostColumns)) };
  let cells = 0;
  table.rows = table.rows.filter((row) => (cells += row.length) <= mostCells);
  const cut = table.rows.length < whole.rows.length || [whole.head, ...whole.rows].some((row) => row.length > mostColumns);
  const numeric = numericColumns(table.rows);
  const align = (c: number) => (numeric[c] ? "number" : null);
  return h(
    "div",
    { class: "table-scroll", tabindex: 0, role: "region", "aria-label": label },
    h(
      "table",
      { class: "data" },
      h("thead", {}, h("tr", {}, ...table.head.map((text, c) => (text === "" ? h("td") : h("th", { scope: "col", class: align(c) }, text))))),
      h("tbody", {}, ...table.rows.map((row) => h("tr", {}, ...row.map((text, c) => h("td", { class: align(c) }, text))))),
    ),
    cut && h("p", { class: "muted" }, `${table.rows.length} of ${whole.rows.length} rows and at most ${mostColumns} columns are shown.`),
  );
}
