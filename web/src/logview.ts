// The output of a program on screen. Short output is laid out whole and wraps; of long output, only
// the visible lines exist.
import { plain, strip, type Span, type Style } from "./ansi.ts";
import { h } from "./dom.ts";
import { Lines, spansOf, type Line, type Stream } from "./lines.ts";
import { windowOf } from "./virtual.ts";

/** Output up to this size is laid out whole. */
const wholeLines = 500;
const rowHeight = 20;

export class LogView {
  readonly lines = new Lines();
  readonly element = h("div", { class: "log", role: "log", "aria-label": "Program output", "aria-live": "off" });
  #rows: HTMLElement[] = []; // of complete lines, by index
  #rendered = 0; // lines that have a row
  #changed = Infinity; // the first line that changed after that
  #frame = 0;
  #spacer: HTMLElement | undefined; // if only visible lines exist
  #slice: HTMLElement | undefined;
  #whole = false; // whether every line has a row
  #instead: Line[] | undefined; // the lines that are shown instead of all

  #observer = new ResizeObserver(() => this.#schedule());

  /** scroller is the element that scrolls the log. */
  constructor(private readonly scroller: HTMLElement) {}

  /** Follows the scroller once the element is in it. */
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

  /** Shows that output is missing here. */
  gap(bytes: number): void {
    this.lines.note(`… ${bytes.toLocaleString("en")} bytes of output are left out here …`);
    this.#schedule();
  }

  /** Whether the end of the output is in view, so that new output should be as well. */
  get atEnd(): boolean {
    return this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight < 40;
  }

  #schedule = (): void => {
    if (!this.element.isConnected) return;
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#render();
    });
  };

  /** Renders new output at once. */
  flush(): void {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#render();
  }

  #render(): void {
    const atEnd = this.atEnd;
    const grown = this.#rendered < this.lines.all.length;
    if (this.lines.all.length > wholeLines && !this.#whole) this.#renderWindow();
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
    const lines = this.#instead ?? this.lines.all;
    const view = windowOf(lines.length, rowHeight, this.scroller.scrollTop - offset, this.scroller.clientHeight);
    this.#spacer.style.height = `${view.height}px`;
    this.#slice!.style.transform = `translateY(${view.top}px)`;
    this.#slice!.replaceChildren(...lines.slice(view.first, view.last).map(rowOf));
  }

  /**
   * Shows elements in place of texts that were printed to stdout in that order, once all output has
   * arrived. Returns the elements without a place: their text was not found, or only the visible
   * lines exist.
   */
  replace(items: { plain: string; element: HTMLElement }[]): Set<HTMLElement> {
    this.flush();
    const left = new Set<HTMLElement>();
    const places: { lines: number[]; element: HTMLElement }[] = [];
    for (const { plain, element } of items) {
      const lines = findText(this.lines.all, plain, (places.at(-1)?.lines.at(-1) ?? -1) + 1);
      if (lines) places.push({ lines, element });
      else left.add(element);
    }
    const replaced = new Set(places.flatMap((place) => place.lines));
    if (replaced.size === 0) return left;
    if (this.lines.all.length - replaced.size > wholeLines) {
      const first = new Set(places.map((place) => place.lines[0]!));
      this.#instead = this.lines.all.flatMap((line, i) => (first.has(i) ? [belowNote] : replaced.has(i) ? [] : [line]));
      this.#renderWindow();
      for (const { element } of places) left.add(element);
      return left;
    }
    if (this.#spacer) this.#layOutWhole();
    for (const { lines, element } of places) this.#rows[lines[0]!]!.before(h("div", { class: "in-log" }, element));
    for (const i of replaced) this.#rows[i]!.remove();
    return left;
  }

  /** Gives every line a row, because few lines remain. */
  #layOutWhole(): void {
    this.#spacer = this.#slice = undefined;
    this.#whole = true;
    this.element.classList.remove("virtual");
    this.#rows = this.lines.all.map(rowOf);
    this.element.replaceChildren(...this.#rows);
  }
}

const belowNote: Line = { stream: "note", text: "… a table that is shown below …", style: plain };

/** Returns the indices of the stdout lines, from a start, that make up the text, or undefined. */
export function findText(lines: readonly Line[], text: string, from: number): number[] | undefined {
  const wanted = text.replace(/\n$/, "").split("\n");
  const stdout = lines.map((line, i) => ({ line, i })).filter(({ line, i }) => i >= from && line.stream === "stdout");
  for (let at = 0; at + wanted.length <= stdout.length; at++) {
    if (wanted.every((w, k) => strip(stdout[at + k]!.line.text) === w)) return stdout.slice(at, at + wanted.length).map(({ i }) => i);
  }
  return undefined;
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
