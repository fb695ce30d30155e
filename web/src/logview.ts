// The output of a program on screen. Short output is laid out whole and wraps; of long output, only
// the visible lines exist.
import { paintOf, type Span } from "./ansi.ts";
import { h } from "./dom.ts";
import { Lines, spansOf, type Line, type Stream } from "./lines.ts";
import { windowOf } from "./virtual.ts";

/** Output up to this size is laid out whole. */
const wholeLines = 500;
const rowHeight = 20;

export class LogView {
  readonly element = h("div", { class: "log", role: "log", "aria-label": "Program output", "aria-live": "off" });
  #rows: HTMLElement[] = []; // of complete lines, by index
  #rendered = 0; // lines that have a row
  #changed = Infinity; // the first line that changed after that
  #frame = 0;
  #spacer: HTMLElement | undefined; // if only visible lines exist
  #slice: HTMLElement | undefined;

  #observer = new ResizeObserver(() => this.#schedule());

  /** scroller is the element that scrolls the log. */
  constructor(
    private readonly scroller: HTMLElement,
    readonly lines = new Lines(),
  ) {}

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
    this.lines.gap(bytes);
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
  if (Object.keys(span.style).length === 0) return document.createTextNode(span.text);
  const { classes, color, background } = paintOf(span.style);
  const element = h("span", { class: classes.join(" ") }, span.text);
  if (color !== "") element.style.color = color;
  if (background !== "") element.style.backgroundColor = background;
  return element;
}
